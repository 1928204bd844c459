/* A batch of users whose sequences share the pages of one long prompt. Each goes on by itself; all append and all attend in one
 * call. A second cache has the same four sequences without sharing: every output must be the same to the last bit. */
#include <aura.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 3000, USERS = 4, STEPS = 40, Q_HEADS = 8, KV_HEADS = 2, DIM = 64, KV = KV_HEADS * DIM, Q = Q_HEADS * DIM };

static float prompt[PROMPT][KV], own[USERS][KV], q[USERS][Q], out[2][USERS][Q];

static void check(aura_status status)
{
    if (status)
        exit((fprintf(stderr, "paged: %s\n", aura_last_error()), 1));
}

static void fill(float *x, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((seed = seed * 1664525u + 1013904223u) >> 8) / (1 << 23) - 1;
}

static aura_cache *make(aura_ctx *ctx)
{
    aura_config config = AURA_CONFIG_INIT; /* k4v4 */
    aura_cache *cache;
    config.q_heads = Q_HEADS, config.kv_heads = KV_HEADS, config.k_dim = DIM;
    check(aura_cache_create(ctx, &config, &cache));
    return cache;
}

/* The same token of every user, in one call. */
static void step(aura_cache *cache, const aura_seq *seq, float result[USERS][Q])
{
    aura_append_job append[USERS], append_init = AURA_APPEND_JOB_INIT;
    aura_attend_job attend[USERS], attend_init = AURA_ATTEND_JOB_INIT;
    for (int u = 0; u < USERS; u++) {
        append[u] = append_init, append[u].seq = seq[u], append[u].tokens = 1;
        append[u].k.data = append[u].v.data = own[u];
        attend[u] = attend_init, attend[u].seq = seq[u], attend[u].queries = 1;
        attend[u].q.data = q[u], attend[u].out.data = result[u];
    }
    check(aura_append(cache, append, USERS));
    check(aura_attend(cache, attend, USERS, NULL));
}

int main(void)
{
    aura_ctx *ctx;
    aura_cache_info info = AURA_CACHE_INFO_INIT, alone = AURA_CACHE_INFO_INIT;
    aura_append_job read = AURA_APPEND_JOB_INIT;
    aura_seq shared[USERS], single[USERS];
    check(aura_ctx_create(NULL, &ctx));
    aura_cache *one = make(ctx), *many = make(ctx);
    fill(prompt[0], sizeof prompt / sizeof(float), 1);
    read.tokens = PROMPT, read.k.data = read.v.data = prompt;
    check(aura_seq_create(one, &read.seq));
    check(aura_append(one, &read, 1)); /* once, for all users */
    for (int u = 0; u < USERS; u++)
        check(aura_seq_fork(one, read.seq, PROMPT, &shared[u]));
    for (int u = 0; u < USERS; u++) {
        check(aura_seq_create(many, &single[u])), read.seq = single[u];
        check(aura_append(many, &read, 1));
    }
    for (int i = 0; i < STEPS; i++) {
        fill(own[0], sizeof own / sizeof(float), 100 + (uint32_t)i), fill(q[0], sizeof q / sizeof(float), 900 + (uint32_t)i);
        step(one, shared, out[0]), step(many, single, out[1]);
        if (memcmp(out[0], out[1], sizeof *out))
            return fputs("paged: sharing pages changed a result\n", stderr), 1;
    }
    check(aura_cache_get_info(one, &info)), check(aura_cache_get_info(many, &alone));
    printf("paged: %d users after a prompt of %d tokens: %zu pages with sharing, %zu without; outputs are the same bits\n", USERS,
           PROMPT, info.pages - info.free_pages, alone.pages - alone.free_pages);
    aura_cache_destroy(one), aura_cache_destroy(many), aura_ctx_destroy(ctx);
    return info.pages - info.free_pages < (alone.pages - alone.free_pages) / 2 ? 0 : 1;
}
