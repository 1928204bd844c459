/* Dims without kernels of their own are stored with zeros up to the next that has them. The twin of such a cache has that dim and
 * is given the zeros: everything that is stored, attended to, decoded and saved is the same, bit by bit. */
#include <math.h>
#include <stdlib.h>

#include "../../include/aura_file.h"
#include "../../src/cache/cache.h"
#include "../test.h"

enum { Q_HEADS = 4, KV_HEADS = 2, TOKENS = 700, QUERIES = 5, MOST = 512 };

static float number(uint32_t i)
{
    i = (i + 1) * 2654435761u;
    i ^= i >> 15;
    return (float)(i * 2246822519u >> 8) / (1 << 23) - 1;
}

/* [n][dim] numbers, the first `given` of each the same whatever dim is, then zeros. */
static float *vectors(uint32_t n, uint32_t given, uint32_t dim, uint32_t seed)
{
    float *x = calloc((size_t)n * dim, sizeof *x);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t d = 0; d < given; d++)
            x[(size_t)i * dim + d] = number(seed + i * given + d);
    return x;
}

struct side {
    uint32_t k_dim, v_dim;
    aura_cache *cache;
    aura_seq seq;
    float *out, *k, *v; /* attended to, decoded */
    float lse[QUERIES * Q_HEADS];
};

static aura_config config_of(uint32_t k_dim, uint32_t v_dim, aura_kind k, aura_kind v)
{
    aura_config c = AURA_CONFIG_INIT;
    c.q_heads = Q_HEADS, c.kv_heads = KV_HEADS, c.k_dim = k_dim, c.v_dim = v_dim, c.format.k = k, c.format.v = v;
    return c;
}

/* A cache that has seen it all; the first k_given and v_given numbers of a vector are not 0. */
static void fill(aura_ctx *ctx, struct side *s, const aura_config *config, uint32_t k_given, uint32_t v_given)
{
    float *k = vectors(TOKENS * KV_HEADS, k_given, s->k_dim, 1), *v = vectors(TOKENS * KV_HEADS, v_given, s->v_dim, 2);
    aura_append_job in = AURA_APPEND_JOB_INIT;
    EXPECT(!aura_cache_create(ctx, config, &s->cache) && !aura_seq_create(s->cache, &s->seq), "%s", aura_last_error());
    in.seq = s->seq, in.tokens = TOKENS, in.k.data = k, in.v.data = v;
    EXPECT(!aura_append(s->cache, &in, 1), "%s", aura_last_error());
    free(k), free(v);
}

static void ask(struct side *s, uint32_t k_given)
{
    float *q = vectors(QUERIES * Q_HEADS, k_given, s->k_dim, 3);
    aura_attend_job job = AURA_ATTEND_JOB_INIT;
    aura_attend_options o = AURA_ATTEND_OPTIONS_INIT;
    aura_view k = AURA_VIEW_INIT, v = AURA_VIEW_INIT;
    s->out = calloc((size_t)QUERIES * Q_HEADS * s->v_dim, sizeof(float));
    s->k = calloc((size_t)TOKENS * KV_HEADS * s->k_dim, sizeof(float));
    s->v = calloc((size_t)TOKENS * KV_HEADS * s->v_dim, sizeof(float));
    o.scale = k_given == s->k_dim ? 0 : 1 / sqrtf((float)k_given); /* 0 is that of the dim that was given */
    job.seq = s->seq, job.queries = QUERIES, job.q.data = q, job.out.data = s->out, job.lse = s->lse;
    k.data = s->k, v.data = s->v;
    EXPECT(!aura_attend(s->cache, &job, 1, &o), "%s", aura_last_error());
    EXPECT(!aura_cache_decode(s->cache, s->seq, 0, TOKENS, &k, &v), "%s", aura_last_error());
    free(q);
}

static void drop(struct side *s)
{
    aura_cache_destroy(s->cache);
    free(s->out), free(s->k), free(s->v);
}

/* The first numbers of each vector. */
static int same(const float *a, uint32_t a_dim, const float *b, uint32_t b_dim, size_t n)
{
    int good = 1;
    for (size_t i = 0; i < n; i++)
        good &= !memcmp(a + i * a_dim, b + i * b_dim, a_dim * sizeof *a);
    return good;
}

static void expect_same(const struct side *a, const struct side *b, const char *what)
{
    EXPECT(same(a->out, a->v_dim, b->out, b->v_dim, QUERIES * Q_HEADS), "%s: %u, %u: outputs", what, a->k_dim, a->v_dim);
    EXPECT(!memcmp(a->lse, b->lse, sizeof a->lse), "%s: k_dim %u, v_dim %u: lse", what, a->k_dim, a->v_dim);
    EXPECT(same(a->k, a->k_dim, b->k, b->k_dim, TOKENS * KV_HEADS), "%s: k_dim %u: keys", what, a->k_dim);
    EXPECT(same(a->v, a->v_dim, b->v, b->v_dim, TOKENS * KV_HEADS), "%s: v_dim %u: values", what, a->v_dim);
}

static void try_dims(aura_ctx *ctx, uint32_t k_dim, uint32_t v_dim, uint32_t k_twin, uint32_t v_twin, aura_kind k, aura_kind v)
{
    static float balance[2][KV_HEADS * MOST];
    struct side a = {.k_dim = k_dim, .v_dim = v_dim}, b = {.k_dim = k_twin, .v_dim = v_twin}, c = a;
    aura_config given = config_of(k_dim, v_dim, k, v), twin = config_of(k_twin, v_twin, k, v);
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    aura_sink sink = AURA_SINK_INIT;
    aura_source source = AURA_SOURCE_INIT;
    for (uint32_t h = 0; h < KV_HEADS; h++)
        for (uint32_t d = 0; d < k_twin; d++) {
            balance[1][h * k_twin + d] = d < k_dim ? 1 + number(h * 1000 + d) / 2 : 1;
            balance[0][h * k_dim + (d < k_dim ? d : 0)] = balance[1][h * k_twin + (d < k_dim ? d : 0)];
        }
    if (k < AURA_KIND_F32 || k >= AURA_KIND_T2)
        given.balance = balance[0], twin.balance = balance[1];
    fill(ctx, &a, &given, k_dim, v_dim), fill(ctx, &b, &twin, k_dim, v_dim);
    EXPECT(a.cache->page_bytes == b.cache->page_bytes, "pages of %zu and %zu bytes", a.cache->page_bytes, b.cache->page_bytes);
    ask(&a, k_dim), ask(&b, k_dim);
    expect_same(&a, &b, "twin");
    EXPECT(!aura_cache_get_info(a.cache, &info) && info.config.k_dim == k_dim && info.config.v_dim == v_dim, "dims of the info");
    EXPECT(!given.balance || !memcmp(info.config.balance, balance[0], KV_HEADS * k_dim * sizeof(float)), "balance of the info");
    EXPECT(!aura_cache_size(a.cache, NULL, &sink.bytes), "%s", aura_last_error());
    source.data = sink.data = malloc(sink.bytes), source.bytes = sink.bytes;
    EXPECT(!aura_cache_write(a.cache, &sink, NULL) && !aura_cache_read(ctx, &source, NULL, &c.cache), "%s", aura_last_error());
    c.seq = a.seq;
    if (c.cache) {
        aura_seq ids[2];
        size_t n = 2;
        EXPECT(!aura_cache_list(c.cache, ids, &n) && n == 1, "%zu sequences", n);
        c.seq = ids[0];
        ask(&c, k_dim);
        expect_same(&a, &c, "loaded");
    }
    free(sink.data);
    drop(&a), drop(&b), drop(&c);
}

static void turn(void *user, uint32_t layer, uint64_t token, uint32_t head, float *key)
{
    const uint32_t dim = *(const uint32_t *)user;
    for (uint32_t d = 0; d < dim; d++)
        key[d] = key[d] / 2 + (float)((token + head + layer + d) % 3);
}

/* Tokens that move and keys that change are as if they had been decoded, changed and appended. */
static void edits_see_the_callers_dims(void)
{
    enum { FIRST = 70, CUT = 45, K = 100, V = 40, LEFT = TOKENS - FIRST - CUT };
    static float k[TOKENS * KV_HEADS * K], v[TOKENS * KV_HEADS * V];
    const aura_config config = config_of(K, V, AURA_KIND_B4, AURA_KIND_B8);
    struct side a = {.k_dim = K, .v_dim = V}, b = a;
    uint32_t dim = K;
    aura_ctx *ctx = NULL;
    aura_view k_view = {k, AURA_F32, 0, 0, NULL}, v_view = {v, AURA_F32, 0, 0, NULL};
    aura_append_job in = AURA_APPEND_JOB_INIT;
    EXPECT(!aura_ctx_create(NULL, &ctx), "%s", aura_last_error());
    fill(ctx, &a, &config, K, V);
    EXPECT(!aura_seq_fork(a.cache, a.seq, FIRST, &in.seq) &&
           !aura_cache_decode(a.cache, a.seq, FIRST + CUT, LEFT, &k_view, &v_view), "%s", aura_last_error());
    for (uint32_t i = 0; i < LEFT * KV_HEADS; i++)
        turn(&dim, 0, FIRST + i / KV_HEADS, i % KV_HEADS, k + (size_t)i * K);
    in.tokens = LEFT, in.k.data = k, in.v.data = v;
    EXPECT(!aura_append(a.cache, &in, 1) && !aura_seq_shift(a.cache, a.seq, FIRST, CUT, turn, &dim), "%s", aura_last_error());
    b.cache = a.cache, b.seq = in.seq;
    for (int round = 0; round < 2; round++) {
        float *all[2][2];
        for (int side = 0; side < 2; side++) {
            k_view.data = all[side][0] = malloc((TOKENS - CUT) * KV_HEADS * K * sizeof(float));
            v_view.data = all[side][1] = malloc((TOKENS - CUT) * KV_HEADS * V * sizeof(float));
            EXPECT(!aura_cache_decode(a.cache, side ? b.seq : a.seq, 0, TOKENS - CUT, &k_view, &v_view), "%s", aura_last_error());
        }
        EXPECT(!memcmp(all[0][1], all[1][1], (TOKENS - CUT) * KV_HEADS * V * sizeof(float)), "values, round %d", round);
        EXPECT(round || !memcmp(all[0][0], all[1][0], (TOKENS - CUT) * KV_HEADS * K * sizeof(float)), "keys");
        float worst = 0;
        for (uint32_t i = 0; round && i < (TOKENS - CUT) * KV_HEADS; i++) {
            turn(&dim, 0, i / KV_HEADS, i % KV_HEADS, all[1][0] + (size_t)i * K);
            for (uint32_t d = 0; d < K; d++)
                worst = fmaxf(worst, fabsf(all[1][0][i * K + d] - all[0][0][i * K + d]));
        }
        EXPECT(worst < 0.7f, "a mapped key is off by %g", (double)worst); /* 4 bits of numbers up to 3 */
        EXPECT(round || !aura_seq_map_keys(a.cache, a.seq, 0, TOKENS - CUT, turn, &dim), "%s", aura_last_error());
        for (int side = 0; side < 4; side++)
            free(all[side / 2][side % 2]);
    }
    aura_cache_destroy(a.cache);
    aura_ctx_destroy(ctx);
}

/* Pages without a cache: those of the twin, and the same numbers out of them. */
static void pages_of_odd_dims(void)
{
    enum { LAYERS = 2, N = 300, ROWS = 2 * LAYERS * N * KV_HEADS, DIM = 100, STORED = 112 };
    aura_ctx *ctx = NULL;
    EXPECT(!aura_ctx_create(NULL, &ctx), "%s", aura_last_error());
    for (int i = 0; i < 4; i++) {
        const aura_kind kinds[][2] = {{AURA_KIND_B4, AURA_KIND_B4}, {AURA_KIND_B8, AURA_KIND_B5}, {AURA_KIND_F16, AURA_KIND_B3},
                                      {AURA_KIND_F32, AURA_KIND_BF16}};
        const aura_config config[2] = {config_of(DIM, DIM, kinds[i][0], kinds[i][1]),
                                       config_of(STORED, STORED, kinds[i][0], kinds[i][1])};
        float *numbers[2] = {vectors(ROWS, DIM, DIM, 5), vectors(ROWS, DIM, STORED, 5)};
        aura_page_codec *codec[2] = {NULL, NULL};
        uint8_t *pages[2];
        size_t bytes[2];
        for (int j = 0; j < 2; j++) {
            EXPECT(!aura_page_codec_create(ctx, &config[j], LAYERS, &codec[j]), "%s", aura_last_error());
            bytes[j] = aura_page_codec_bytes(codec[j], N);
            pages[j] = calloc(bytes[j], 1);
            EXPECT(!aura_pages_encode(codec[j], numbers[j], AURA_F32, N, pages[j], bytes[j]), "%s", aura_last_error());
            EXPECT(!aura_pages_decode(codec[j], pages[j], bytes[j], N, numbers[j], AURA_F32), "%s", aura_last_error());
        }
        EXPECT(bytes[0] == bytes[1] && !memcmp(pages[0], pages[1], bytes[0]), "pages of format %d", i);
        EXPECT(same(numbers[0], DIM, numbers[1], STORED, ROWS), "numbers of format %d", i);
        for (int j = 0; j < 2; j++)
            aura_page_codec_destroy(codec[j]), free(pages[j]), free(numbers[j]);
    }
    aura_ctx_destroy(ctx);
}

static void zeros_change_nothing(void)
{
    static const uint32_t dims[][4] = {{100, 100, 112, 112}, {120, 100, 128, 112}, {8, 16, 64, 64}, {32, 63, 64, 64},
                                       {1, 129, 64, 192}, {65, 511, 80, 512}, {128, 40, 128, 64}};
    static const aura_kind kinds[][2] = {{AURA_KIND_B4, AURA_KIND_B4}, {AURA_KIND_B8, AURA_KIND_B3}, {AURA_KIND_F16, AURA_KIND_B5},
                                         {AURA_KIND_T4, AURA_KIND_T3}, {AURA_KIND_F32, AURA_KIND_F32}};
    aura_ctx *ctx = NULL;
    EXPECT(!aura_ctx_create(NULL, &ctx), "%s", aura_last_error());
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (size_t j = 0; j < sizeof kinds / sizeof *kinds; j++)
            try_dims(ctx, dims[i][0], dims[i][1], dims[i][2], dims[i][3], kinds[j][0], kinds[j][1]);
    aura_ctx_destroy(ctx);
}

int main(void)
{
    RUN(zeros_change_nothing);
    RUN(edits_see_the_callers_dims);
    RUN(pages_of_odd_dims);
    return test_result();
}
