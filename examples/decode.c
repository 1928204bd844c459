/* A decode loop: read a prompt, then token by token append its key and value and attend to all that came before. Beside the
 * cache of 4 bits runs one of plain f32, with which every output is compared. */
#include <aura.h>
#include <stdio.h>
#include <stdlib.h>

enum { PROMPT = 2000, NEW = 64, Q_HEADS = 8, KV_HEADS = 2, DIM = 128, KV = KV_HEADS * DIM, Q = Q_HEADS * DIM };

/* What a model would compute: here random numbers, keys with the bias that real ones have. */
static float k[(PROMPT + NEW) * KV], v[(PROMPT + NEW) * KV], q[NEW * Q];

static float noise(void) /* of mean 0 and standard deviation 1, nearly normal */
{
    static uint32_t state = 1;
    float sum = -6;
    for (int i = 0; i < 12; i++)
        sum += (float)((state = state * 1664525u + 1013904223u) >> 8) / (1 << 24);
    return sum;
}

static void check(aura_status status)
{
    if (status)
        exit((fprintf(stderr, "decode: %s\n", aura_last_error()), 1));
}

/* One cache from beginning to end; the outputs of all new tokens go to out. Returns the bytes it holds. */
static size_t decode(aura_ctx *ctx, const char *format, float out[NEW * Q])
{
    aura_config config = AURA_CONFIG_INIT;
    aura_append_job append = AURA_APPEND_JOB_INIT;
    aura_attend_job attend = AURA_ATTEND_JOB_INIT;
    aura_cache *cache;
    check(aura_format_parse(format, &config.format));
    config.q_heads = Q_HEADS, config.kv_heads = KV_HEADS, config.k_dim = DIM;
    check(aura_cache_create(ctx, &config, &cache));
    check(aura_seq_create(cache, &append.seq));
    append.tokens = PROMPT, append.k.data = k, append.v.data = v;
    check(aura_append(cache, &append, 1)); /* the prompt, all at once */
    attend.seq = append.seq, attend.queries = 1, append.tokens = 1;
    for (int i = 0; i < NEW; i++) {
        append.k.data = k + (PROMPT + i) * KV, append.v.data = v + (PROMPT + i) * KV;
        check(aura_append(cache, &append, 1)); /* a token attends to itself, so it comes first */
        attend.q.data = q + i * Q, attend.out.data = out + i * Q;
        check(aura_attend(cache, &attend, 1, NULL));
    }
    size_t bytes = aura_cache_bytes(cache);
    aura_cache_destroy(cache);
    return bytes;
}

int main(void)
{
    static float out[NEW * Q], exact[NEW * Q];
    aura_ctx *ctx;
    double apart = 0, size = 0;
    for (int i = 0; i < (PROMPT + NEW) * KV; i++)
        k[i] = noise() + (float)(i % KV % 7), v[i] = noise();
    for (int i = 0; i < NEW * Q; i++)
        q[i] = noise();
    check(aura_ctx_create(NULL, &ctx));
    size_t f32 = decode(ctx, "kf32vf32", exact), small = decode(ctx, "k4v4", out);
    for (int i = 0; i < NEW * Q; i++)
        apart += (double)(out[i] - exact[i]) * (out[i] - exact[i]), size += (double)exact[i] * exact[i];
    printf("decode: %d tokens after a prompt of %d; k4v4 takes %zu bytes instead of %zu in f32; "
           "squared error of the outputs %.4f\n", NEW, PROMPT, small, f32, apart / size);
    aura_ctx_destroy(ctx);
    return apart / size < 0.03 && small < f32 / 4 ? 0 : (fputs("decode: that is worse than it should be\n", stderr), 1);
}
