/* Attention to a cache, compared with double: every kind, dim and length on either side, every ratio of heads, every option. */
#include "cache_attend.h"

/* ---- kind x dim x planes x length ------------------------------------------------------------------------------------ */

static const uint32_t lengths[] = {1, 3, 4, 5, 31, 32, 33, 63, 64, 65, 255, 256, 257, 1000, 4097};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

/* Attends and compares. Long contexts must also be within the tolerance for random data. */
static void attend_one_length(const aura_cache *cache, aura_seq seq, struct attention *a, const aura_config *config)
{
    for (uint32_t planes = 0; planes < 3; planes++) {
        /* one of them is 0 */
        uint32_t pk = planes_of(config->format.k, planes), pv = planes_of(config->format.v, planes), pair = pk + pv;
        struct call c = call_new(a, seq, AURA_F32, AURA_F32, DENSE);
        a->options.planes = planes;
        EXPECT(!aura_attend(cache, &c.job, 1, &a->options), "%s", aura_last_error());
        expect_rows(&c.out, c.lse, a, 0, config_text(config));
        EXPECT(a->model->len < 255 || worst_row(&c, a) <= tolerance.typical[pair],
               "%s, planes %u, %llu tokens: off by %.3g", config_text(config),
               planes, (unsigned long long)a->model->len, worst_row(&c, a));
        call_free(&c);
    }
}

static void attend_one_shape(struct scene *s, struct attention *at, uint32_t n_lengths)
{
    aura_cache *cache = cache_new(ctx, &s->config);
    aura_seq seq = cache ? seq_new(cache) : 0;
    if (ctx == isas[0].ctx && (s->config.k_dim > 128 || s->config.v_dim > 128))
        n_lengths = N_LENGTHS - 2; /* ref*.c is slow */
    if (ctx == isas[0].ctx && small_run())
        n_lengths = N_LENGTHS - 5;
    for (uint32_t i = 0, len = 0; seq && i < n_lengths; i++) {
        EXPECT(!append(cache, seq, &s->k, &s->v, len, lengths[i] - len), "%s", aura_last_error());
        len = lengths[i];
        model_view(s->model, len);
        attend_one_length(cache, seq, &at[i], &s->config);
    }
    aura_cache_destroy(cache);
}

/* One side of one kind and dim, f32 on the other. */
static void try_shape(aura_kind kind, uint32_t dim, int keys, uint32_t n_lengths)
{
    aura_config config = keys ? config_of(kind, AURA_KIND_F32, dim, 64, 1) : config_of(AURA_KIND_F32, kind, 64, dim, 1);
    struct attention at[N_LENGTHS];
    config.q_heads = 2;
    struct scene s = scene_new(config, lengths[n_lengths - 1]);
    for (uint32_t i = 0; i < n_lengths; i++) {
        model_view(s.model, lengths[i]);
        at[i] = attention_new(s.model, 1, 2, 60 + i);
        oracle_compute(&at[i]);
    }
    for (int isa = 0; use_isa(isa); isa++)
        attend_one_shape(&s, at, n_lengths);
    for (uint32_t i = 0; i < n_lengths; i++)
        attention_free(&at[i]);
    scene_free(&s);
}

static void every_kind_dim_planes_and_length(void)
{
    for (uint32_t i = 0; i < N_KINDS; i++)
        for (uint32_t j = 0; j < N_DIMS; j++)
            if (!small_run() || (i + j) % N_DIMS == 0) /* then each kind with one dim */
                for (int keys = 0; keys < 2; keys++) /* every kind and every dim has the longest, not every pair */
                    try_shape(kinds[i], dims[j], keys, small_run() || (i + j) % 3 ? N_LENGTHS - 2 : N_LENGTHS);
}

/* ---- heads and queries -------------------------------------------------------------------------------------------------- */

/* Runs the same problems on the caches of all instruction sets. */
static void attend_on_every_isa(const struct scene *s, struct attention *at, uint32_t n)
{
    for (int isa = 0; use_isa(isa); isa++) {
        aura_seq seq;
        aura_cache *cache = scene_cache(ctx, s, &seq);
        for (uint32_t i = 0; seq && i < n; i++)
            expect_attention(cache, seq, &at[i], "heads and queries");
        aura_cache_destroy(cache);
    }
    for (uint32_t i = 0; i < n; i++)
        attention_free(&at[i]);
}

/* From one query to a prefill chunk that begins before the second page, for every ratio that models have. */
static void every_ratio_and_number_of_queries(void)
{
    static const uint32_t ratios[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20}, queries[] = {1, 2, 3, 4, 7, 16, 40, 150};
    for (uint32_t i = 0; i < sizeof ratios / sizeof *ratios; i++) {
        uint32_t kv_heads = ratios[i] < 4 ? 3 : 1, n = small_run() ? 6 : 8;
        aura_config config = config_of(kinds[i % N_KINDS], kinds[(i * 2 + 1) % N_KINDS], 64, 80, kv_heads);
        struct attention at[8];
        config.q_heads = ratios[i] * kv_heads;
        struct scene s = scene_new(config, 365);
        for (uint32_t j = 0; j < n; j++) {
            at[j] = attention_new(s.model, queries[j], config.q_heads, 70 + j);
            at[j].options.planes = (i + j) % 3;
            oracle_compute(&at[j]);
        }
        attend_on_every_isa(&s, at, n);
        scene_free(&s);
    }
}

/* A whole prompt in one call: the first query sees one key. */
static void a_query_for_every_token(void)
{
    static const uint32_t sizes[] = {1, 5, 33, 64, 300};
    for (uint32_t i = 0; i < 5; i++) {
        aura_config config = config_of(kinds[i], kinds[i + 1], 64, 64, 1);
        config.q_heads = 2;
        struct scene s = scene_new(config, sizes[i]);
        struct attention a = attention_new(s.model, sizes[i], 2, 7);
        oracle_compute(&a);
        attend_on_every_isa(&s, &a, 1);
        scene_free(&s);
    }
}

/* ---- options, one at a time -------------------------------------------------------------------------------------------- */

/* The scene that options are tried on, and a cache of it for every instruction set. */
static struct scene options_scene;
static struct {
    aura_cache *cache;
    aura_seq seq;
} options_on[8];

static void options_open(aura_kind k, aura_kind v)
{
    aura_config config = config_of(k, v, 64, 80, 2);
    config.q_heads = 4;
    options_scene = scene_new(config, 300);
    for (int isa = 0; use_isa(isa); isa++)
        options_on[isa].cache = scene_cache(ctx, &options_scene, &options_on[isa].seq);
}

static void options_close(void)
{
    for (int isa = 0; use_isa(isa); isa++)
        aura_cache_destroy(options_on[isa].cache);
    scene_free(&options_scene);
}

/* The oracle, then the calls. */
static void try_options(struct attention *a, const char *what)
{
    oracle_compute(a);
    for (int isa = 0; use_isa(isa); isa++)
        expect_attention(options_on[isa].cache, options_on[isa].seq, a, what);
}

static void windows(void)
{
    static const uint64_t sizes[] = {1, 2, 4, 31, 32, 33, 44, 45, 255, 256, 257, 299, 300, 301, 1000, UINT64_MAX};
    for (uint32_t queries = 1; queries < 20; queries += 9)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (uint32_t not_causal = 0; not_causal < 2; not_causal++) {
                struct attention a = attention_new(options_scene.model, queries, 4, 80 + i);
                a.options.window = sizes[i], a.options.not_causal = not_causal, a.options.planes = (uint32_t)i % 3;
                try_options(&a, "window");
                attention_free(&a);
            }
}

static void scales_and_softcaps(void)
{
    static const float scales[] = {0, 0.01f, 0.125f, 0.5f, -0.125f}, softcaps[] = {0, 0.5f, 5, 50, 1e6f};
    for (int i = 0; i < 25; i++) {
        struct attention a = attention_new(options_scene.model, 3, 4, 90);
        a.options.scale = scales[i / 5], a.options.softcap = softcaps[i % 5], a.options.planes = (uint32_t)i % 3;
        try_options(&a, "scale and softcap");
        attention_free(&a);
    }
}

static void alibi_slopes(void)
{
    static const float slopes[][4] = {{0.5f, 0.25f, 0.125f, 0.0625f}, {0, 3, -0.01f, 1e-4f}};
    for (uint32_t i = 0; i < 8; i++) {
        struct attention a = attention_new(options_scene.model, i & 4 ? 11 : 1, 4, 91);
        a.options.alibi = slopes[i % 2], a.options.not_causal = i >> 1 & 1, a.options.planes = i % 3;
        try_options(&a, "alibi");
        attention_free(&a);
    }
}

/* Sinks that take nothing up to everything; a sink of -inf is no sink. */
static void sinks(void)
{
    static const float logits[][4] = {{0, 1, -1, 0.5f}, {-INFINITY, 3, -INFINITY, -50}, {20, 88, 200, 1000}, {-1000, -200, 0, 2}};
    for (uint32_t i = 0; i < 12; i++) {
        struct attention a = attention_new(options_scene.model, i & 1 ? 5 : 1, 4, 92);
        a.options.sinks = logits[i % 4], a.options.planes = i / 4;
        try_options(&a, "sinks");
        attention_free(&a);
    }
}

/* Masks: a tree of drafts over the newest keys, numbers over all keys, a row that hides all keys; and every width of a mask.
 * Of every other pair of widths each head has its own. */
static void masks(void)
{
    static const uint32_t widths[] = {1, 7, 8, 31, 32, 33, 44, 45, 60, 256, 299, 300};
    for (uint32_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (uint32_t not_causal = 0; not_causal < 2; not_causal++) {
            struct attention a = attention_new(options_scene.model, 8, 4, 93);
            uint64_t seed = i;
            const uint32_t heads = i & 2 ? 4 : 1;
            a.mask_keys = widths[i], a.mask_stride = widths[i] + (i % 3) * 5;
            a.mask_head_stride = heads > 1 ? 8 * a.mask_stride : 0;
            a.mask = malloc(heads * 8 * a.mask_stride * sizeof *a.mask);
            for (size_t at = 0; at < heads * 8 * a.mask_stride; at++)
                a.mask[at] = at % a.mask_stride >= widths[i]                        ? NAN
                             : random_bits(&seed) % 3 == 0 || at / a.mask_stride == 5 ? -INFINITY
                                                                                      : random_normal(&seed);
            a.options.not_causal = not_causal, a.options.planes = i % 3;
            a.options.window = i % 4 == 3 ? 50 : 0;
            try_options(&a, "mask");
            attention_free(&a);
        }
}

/* Every query sees all keys, and there may be more queries than keys. */
static void not_causal(void)
{
    for (uint32_t queries = 1; queries < 400; queries = queries * 3 + 1) {
        struct attention a = attention_new(options_scene.model, queries, 4, 94);
        a.options.not_causal = 1, a.options.planes = queries % 3;
        try_options(&a, "not causal");
        attention_free(&a);
    }
}

static void every_option(void)
{
    static const aura_kind pairs[][2] = {{AURA_KIND_B4, AURA_KIND_B4}, {AURA_KIND_F16, AURA_KIND_B3},
                                         {AURA_KIND_B8, AURA_KIND_BF16}};
    for (int i = 0; i < (small_run() ? 1 : 3); i++) {
        options_open(pairs[i][0], pairs[i][1]);
        windows(), scales_and_softcaps(), alibi_slopes(), sinks(), masks(), not_causal();
        options_close();
    }
}

/* Element types and layouts of queries and outputs; attention must not write between rows. */
static void every_dtype_and_layout(void)
{
    static const aura_dtype dtypes[] = {AURA_F32, AURA_F16, AURA_BF16};
    for (uint32_t i = 0; i < 9 * N_LAYOUTS; i++) {
        aura_config config = config_of(kinds[i % N_KINDS], kinds[(i * 5 + 2) % N_KINDS], 80, 64, 2);
        config.q_heads = 6;
        struct scene s = scene_new(config, 70);
        struct attention a = attention_new(s.model, 3, 6, i);
        a.options.planes = 2;
        attention_round(&a, dtypes[i % 3]);
        oracle_compute(&a);
        for (int isa = 0; use_isa(isa); isa++) {
            aura_seq seq;
            aura_cache *cache = scene_cache(ctx, &s, &seq);
            struct call c = call_new(&a, seq, dtypes[i % 3], dtypes[i / 3 % 3], (enum layout)(i / 9));
            EXPECT(!aura_attend(cache, &c.job, 1, &a.options), "%s", aura_last_error());
            expect_rows(&c.out, c.lse, &a, 0, "dtype and layout");
            EXPECT(tensor_gaps_are(&c.out, 0xff), "bytes between rows were written");
            call_free(&c);
            aura_cache_destroy(cache);
        }
        attention_free(&a);
        scene_free(&s);
    }
}

/* aura_cache_decode gives the keys and values that attention uses. With one key, its weight is 1 and the output is its value. */
static void a_single_key_gives_its_value(void)
{
    for (uint32_t i = 0; i < N_KINDS; i++) {
        struct scene s = scene_new(config_of(kinds[i], kinds[i], 64, 96, 1), 70);
        struct attention a = attention_new(s.model, 1, 1, 5);
        float want[96];
        aura_seq seq;
        aura_cache *cache = scene_cache(ctx, &s, &seq);
        for (uint32_t len = 70; len > 0; len -= len > 10 ? 9 : 1) {
            aura_view v = {want, AURA_F32, 0, 0, NULL}, none = AURA_VIEW_INIT;
            EXPECT(!aura_truncate(cache, seq, len) && !aura_cache_decode(cache, seq, len - 1, 1, &none, &v), "%s",
                   aura_last_error());
            a.options.window = 1, a.options.planes = 2;
            struct call c = call_new(&a, seq, AURA_F32, AURA_F32, DENSE);
            const float *got = (const float *)c.out.memory;
            EXPECT(!aura_attend(cache, &c.job, 1, &a.options), "%s", aura_last_error());
            for (uint32_t d = 0; d < 96; d++)
                EXPECT(fabsf(got[d] - want[d]) <= 2e-5f * 4, "kind %u, token %u: [%u] is %g, not %g", kinds[i], len - 1, d,
                       (double)got[d], (double)want[d]);
            call_free(&c);
        }
        aura_cache_destroy(cache);
        attention_free(&a);
        scene_free(&s);
    }
}

static void tests(void)
{
    RUN(a_single_key_gives_its_value);
}

int main(int argc, char **argv)
{
    isas_open(1);
    RUN(every_kind_dim_planes_and_length);
    RUN(every_ratio_and_number_of_queries);
    RUN(a_query_for_every_token);
    RUN(every_option);
    RUN(every_dtype_and_layout);
    isas_close();
    on_every_tile_isa(tests);
    if (argc > 1 && !strcmp(argv[1], "-v"))
        print_worst();
    return test_result();
}
