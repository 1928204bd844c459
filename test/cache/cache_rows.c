/* Inputs and outputs whose tokens are rows of a larger tensor: the same as copies of those rows. */
#include "cache_tools.h"

enum { ROWS = 90, TOKENS = 70, QUERIES = 9, HEADS = 2, Q_HEADS = 4, DIM = 64 };

static const aura_dtype dtypes[] = {AURA_F32, AURA_F16, AURA_BF16};

/* TOKENS rows of a tensor, one after the other. */
static struct tensor gathered(const struct tensor *t, const uint32_t *rows, uint32_t n)
{
    struct tensor out = tensor_new(n, t->heads, t->dim, t->view.dtype, DENSE);
    size_t row = (size_t)t->heads * t->dim;
    float *all = malloc(t->tokens * row * sizeof *all), *some = malloc(n * row * sizeof *some);
    tensor_get(all, t);
    for (uint32_t i = 0; i < n; i++)
        memcpy(some + i * row, all + rows[i] * row, row * sizeof *some);
    tensor_set(&out, some);
    free(all), free(some);
    return out;
}

static struct tensor some_tensor(uint64_t seed, uint32_t tokens, uint32_t heads, aura_dtype dtype, enum layout layout)
{
    struct tensor t = tensor_new(tokens, heads, DIM, dtype, layout);
    float *x = random_tokens(seed, tokens, heads, DIM, 1);
    tensor_set(&t, x);
    free(x);
    return t;
}

/* Both caches hold the same, and a decode into rows leaves what is between them alone. */
static void expect_same_tokens(aura_cache *cache, aura_seq a, aura_seq b, const uint32_t *rows)
{
    static float want[2][TOKENS * HEADS * DIM], got[2][2 * TOKENS * HEADS * DIM], fill = 7;
    aura_view k = {want[0], AURA_F32, 0, 0, NULL}, v = {want[1], AURA_F32, 0, 0, NULL};
    EXPECT(!aura_cache_decode(cache, a, 0, TOKENS, &k, &v), "%s", aura_last_error());
    for (size_t side = 0; side < 2; side++)
        for (size_t i = 0; i < sizeof *got / sizeof **got; i++)
            got[side][i] = fill;
    k.data = got[0], v.data = got[1], k.rows = v.rows = rows;
    EXPECT(!aura_cache_decode(cache, b, 0, TOKENS, &k, &v), "%s", aura_last_error());
    for (int side = 0; side < 2; side++)
        for (uint32_t row = 0, i = 0; row < 2 * TOKENS; row++) {
            int ours = i < TOKENS && rows[i] == row;
            for (size_t d = 0; d < HEADS * DIM; d++) {
                float expected = ours ? want[side][i * HEADS * DIM + d] : fill;
                if (got[side][row * HEADS * DIM + d] != expected)
                    EXPECT(0, "side %d, row %u, number %zu", side, row, d);
            }
            i += (uint32_t)ours;
        }
}

static void tokens_from_rows(void)
{
    uint64_t seed = 5;
    uint32_t in[TOKENS], out[TOKENS];
    for (uint32_t i = 0; i < TOKENS; i++) {
        in[i] = (uint32_t)(random_bits(&seed) % ROWS);
        out[i] = 2 * i - (i % 3 == 1);
    }
    for (int t = 0; t < 3; t++)
        for (int layout = 0; layout < N_LAYOUTS; layout++) {
            aura_config config = config_of(AURA_KIND_B4, layout % 2 ? AURA_KIND_F32 : AURA_KIND_B3, DIM, DIM, HEADS);
            aura_cache *cache = cache_new(ctx, &config);
            struct tensor k = some_tensor(1, ROWS, HEADS, dtypes[t], (enum layout)layout);
            struct tensor v = some_tensor(2, ROWS, HEADS, dtypes[t], DENSE);
            struct tensor k_copy = gathered(&k, in, TOKENS), v_copy = gathered(&v, in, TOKENS);
            aura_seq a = seq_new(cache), b = seq_new(cache);
            aura_append_job job = append_job(b, &k, &v, 0, TOKENS);
            job.k.rows = job.v.rows = in;
            EXPECT(!append(cache, a, &k_copy, &v_copy, 0, TOKENS) && !aura_append(cache, &job, 1), "%s", aura_last_error());
            expect_same_tokens(cache, a, b, out);
            tensor_free(&k), tensor_free(&v), tensor_free(&k_copy), tensor_free(&v_copy);
            aura_cache_destroy(cache);
        }
}

/* Queries from rows, outputs to rows. */
static void queries_from_rows(void)
{
    static const uint32_t in[QUERIES] = {7, 3, 3, 80, 0, 11, 12, 13, 5}, out[QUERIES] = {0, 1, 4, 5, 6, 9, 20, 21, 30};
    for (int t = 0; t < 3; t++)
        for (int layout = 0; layout < N_LAYOUTS; layout++) {
            aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, DIM, DIM, HEADS);
            config.q_heads = Q_HEADS;
            aura_cache *cache = cache_new(ctx, &config);
            aura_seq seq = seq_new(cache);
            struct tensor kv = some_tensor(3, TOKENS, HEADS, AURA_F32, DENSE);
            struct tensor q = some_tensor(4, ROWS, Q_HEADS, dtypes[t], (enum layout)layout);
            struct tensor q_copy = gathered(&q, in, QUERIES), want = tensor_new(QUERIES, Q_HEADS, DIM, dtypes[t], DENSE);
            struct tensor got = tensor_new(31, Q_HEADS, DIM, dtypes[t], (enum layout)layout);
            struct tensor untouched = tensor_new(1, Q_HEADS, DIM, dtypes[t], DENSE);
            aura_attend_job job = AURA_ATTEND_JOB_INIT;
            EXPECT(!append(cache, seq, &kv, &kv, 0, TOKENS), "%s", aura_last_error());
            job.seq = seq, job.queries = QUERIES, job.q = as_input(q_copy.view), job.out = want.view;
            EXPECT(!aura_attend(cache, &job, 1, NULL), "%s", aura_last_error());
            job.q = as_input(q.view), job.out = got.view, job.q.rows = in, job.out.rows = out;
            tensor_fill(&got, 0x11), tensor_fill(&untouched, 0x11);
            EXPECT(!aura_attend(cache, &job, 1, NULL), "%s", aura_last_error());
            float all[31][Q_HEADS * DIM], expected[QUERIES][Q_HEADS * DIM], fill[Q_HEADS * DIM];
            tensor_get(all[0], &got), tensor_get(expected[0], &want), tensor_get(fill, &untouched);
            for (uint32_t row = 0, i = 0; row < 31; row++) {
                int ours = i < QUERIES && out[i] == row;
                EXPECT(!memcmp(all[row], ours ? expected[i] : fill, sizeof fill), "dtype %d, layout %d, row %u", t, layout, row);
                i += (uint32_t)ours;
            }
            tensor_free(&kv), tensor_free(&q), tensor_free(&q_copy), tensor_free(&want), tensor_free(&got), tensor_free(&untouched);
            aura_cache_destroy(cache);
        }
}

/* Outputs whose rows would be written twice, in calls that then write nothing. */
static void rows_that_repeat(void)
{
    static const uint32_t twice[] = {3, 3}, back[] = {4, 1};
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, DIM, DIM, HEADS);
    aura_cache *cache = cache_new(ctx, &config);
    aura_seq seq = seq_new(cache);
    struct tensor kv = some_tensor(3, TOKENS, HEADS, AURA_F32, DENSE);
    static float out[8 * HEADS * DIM];
    EXPECT(!append(cache, seq, &kv, &kv, 0, TOKENS), "%s", aura_last_error());
    for (int i = 0; i < 2; i++) {
        aura_view view = {out, AURA_F32, 0, 0, i ? back : twice};
        aura_attend_job job = AURA_ATTEND_JOB_INIT;
        job.seq = seq, job.queries = 2, job.q = as_input(kv.view), job.out = view;
        EXPECT(aura_attend(cache, &job, 1, NULL) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "out.rows[1]"), "%s",
               aura_last_error());
        EXPECT(aura_cache_decode(cache, seq, 0, 2, &view, NULL) == AURA_BAD_ARGUMENT, "decode to rows that do not ascend");
    }
    for (size_t i = 0; i < sizeof out / sizeof *out; i++)
        if (out[i] != 0)
            EXPECT(0, "a call that failed wrote number %zu", i);
    tensor_free(&kv);
    aura_cache_destroy(cache);
}

int main(void)
{
    if (aura_ctx_create(NULL, &ctx))
        return 1;
    RUN(tokens_from_rows);
    RUN(queries_from_rows);
    RUN(rows_that_repeat);
    aura_ctx_destroy(ctx);
    return test_result();
}
