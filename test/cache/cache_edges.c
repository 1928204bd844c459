/* Attention where it is hardest: flat tails of 128k tokens, single peaks, tiles made to round badly, no visible keys, NaN. */
#include "cache_attend.h"

/* ---- long flat tails ------------------------------------------------------------------------------------------------------ */

static void attend_flat(const struct scene *scene, struct attention *a)
{
    aura_seq seq;
    aura_cache *cache = scene_cache(ctx, scene, &seq);
    for (uint32_t planes = 1; seq && planes < 3; planes++) {
        struct call c = call_new(a, seq, AURA_F32, AURA_F32, DENSE);
        a->options.planes = planes;
        EXPECT(!aura_attend(cache, &c.job, 1, &a->options), "%s", aura_last_error());
        double error = worst_row(&c, a);
        EXPECT(error <= tolerance.flat[planes_of(scene->config.format.v, planes)], "%s planes %u: a flat tail is off by %.3g",
               config_text(&scene->config), planes, error);
        for (uint32_t h = 0; h < 2; h++)
            EXPECT(fabs((double)c.lse[h] - a->lse[h]) <= (planes == 1 ? 1e-4 : 1e-5), "lse %.9g, not %.9g",
                   (double)c.lse[h], a->lse[h]);
        call_free(&c);
    }
    aura_cache_destroy(cache);
}

/* Weights that differ by a few percent: if they were rounded against the largest weight of all tokens, most of them would be
 * lost. */
static void long_flat_tails(void)
{
    static const aura_kind pairs[][2] = {{AURA_KIND_B4, AURA_KIND_B4}, {AURA_KIND_B2, AURA_KIND_B8}, {AURA_KIND_F16, AURA_KIND_B3}};
    for (int i = 0; i < 3; i++) {
        aura_config config = config_of(pairs[i][0], pairs[i][1], 64, 64, 1);
        uint32_t tokens = small_run() ? 8000 : i == 0 ? 131072 : 40000;
        float *keys = random_tokens(61, tokens, 1, 64, 0), *values = random_tokens(62, tokens, 1, 64, 0);
        config.q_heads = 2;
        for (size_t j = 0; j < (size_t)tokens * 64; j++)
            values[j] += j % 64 == 5 ? 4.f : 0.1f;
        struct scene scene = scene_of(config, tokens, keys, values);
        struct attention a = attention_new(scene.model, 1, 2, 63);
        for (int d = 0; d < 128; d++)
            a.q[d] *= d < 64 ? 0.02f : 0.1f;
        oracle_compute(&a);
        for (int isa = 0; use_isa(isa); isa++)
            attend_flat(&scene, &a);
        attention_free(&a);
        scene_free(&scene);
        free(keys), free(values);
    }
}

/* ---- peaks ---------------------------------------------------------------------------------------------------------------- */

/* One key with a logit of +-1000 among keys of +-30: the output is its value alone, or does not depend on it. */
static void peaked_logits(void)
{
    static const uint32_t places[] = {0, 3, 4, 40, 255, 256, 288, 299};
    for (uint32_t i = 0; i < 2 * 8 * 3; i++) {
        uint32_t place = places[i / 2 % 8], planes = i / 16;
        aura_config config = config_of(kinds[i % N_KINDS], kinds[(i * 2 + 1) % N_KINDS], 64, 64, 1);
        float *keys = random_tokens(64, 300, 1, 64, 0), *values = random_tokens(65, 300, 1, 64, 0);
        for (uint32_t d = 0; d < 64; d++)
            keys[place * 64 + d] = d % 3 ? 4.f : -4.f;
        struct scene s = scene_of(config, 300, keys, values);
        struct attention a = attention_new(s.model, 1, 1, 66);
        aura_seq seq;
        aura_cache *cache = scene_cache(ctx, &s, &seq);
        for (uint32_t d = 0; d < 64; d++)
            a.q[d] = (i & 1 ? 31.25f : -31.25f) * (d % 3 ? 1.f : -1.f);
        a.options.planes = planes;
        oracle_compute(&a);
        struct call c = call_new(&a, seq, AURA_F32, AURA_F32, DENSE);
        EXPECT(!aura_attend(cache, &c.job, 1, &a.options), "%s", aura_last_error());
        EXPECT(fabs((double)c.lse[0] - a.lse[0]) <= 1e-2 * fabs(a.logit[0]), "lse %g, not %g", (double)c.lse[0], a.lse[0]);
        if (i & 1)
            EXPECT(worst_row(&c, &a) <= 1e-3, "%s planes %u: a single key at %u is off by %.3g", config_text(&config),
                   planes, place, worst_row(&c, &a));
        else
            expect_rows(&c.out, c.lse, &a, 1, config_text(&config));
        call_free(&c), attention_free(&a);
        aura_cache_destroy(cache);
        scene_free(&s);
        free(keys), free(values);
    }
}

/* In every tile one weight is 1 and 31 weights are just below (or above) half a step of a byte. All of them are rounded the same
 * way, and all values point the same way. */
static void tiles_that_round_badly(void)
{
    for (uint32_t i = 0; i < N_BITS * 4; i++) {
        uint32_t planes = 1 + (i & 1);
        aura_config config = config_of(AURA_KIND_F32, kinds[i / 4], 64, 128, 1);
        float *keys = calloc(330 * 64, sizeof *keys), *values = random_tokens(67, 330, 1, 128, 0);
        for (uint32_t t = 0; t < 330; t++) {
            keys[t * 64] = t % 32 == 7 ? 0 : logf((i & 2 ? 0.501f : 0.499f) / (planes == 1 ? 255 : 65280));
            memcpy(values + t * 128, values, 128 * sizeof *values);
        }
        struct scene s = scene_of(config, 330, keys, values);
        struct attention a = attention_new(s.model, 1, 1, 68);
        aura_seq seq;
        aura_cache *cache = scene_cache(ctx, &s, &seq);
        for (uint32_t d = 0; d < 64; d++)
            a.q[d] = d == 0;
        a.options.planes = planes, a.options.scale = 1;
        oracle_compute(&a);
        struct call c = call_new(&a, seq, AURA_F32, AURA_F32, DENSE);
        EXPECT(!aura_attend(cache, &c.job, 1, &a.options), "%s", aura_last_error());
        double error = worst_row(&c, &a);
        EXPECT(error <= tolerance.worst[planes], "%s planes %u: off by %.3g", config_text(&config), planes, error);
        EXPECT(fabs((double)c.lse[0] - a.lse[0]) <= 1e-5, "the weights are summed before they are rounded: lse %g, not %g",
               (double)c.lse[0], a.lse[0]);
        call_free(&c), attention_free(&a);
        aura_cache_destroy(cache);
        scene_free(&s);
        free(keys), free(values);
    }
}

/* Vectors of nearly 60 000, of zeros, and queries of every size. */
static void extreme_vectors(void)
{
    static const float sizes[] = {0, 1e-38f, 1e-20f, 1, 1e4f};
    for (uint32_t i = 0; i < N_KINDS * 5; i++) {
        aura_config config = config_of(kinds[i / 5], kinds[i / 5], 64, 64, 1);
        float *keys = random_tokens(69, 200, 1, 64, 0), *values = random_tokens(70, 200, 1, 64, 0);
        for (uint32_t j = 0; j < 200 * 64; j++) {
            keys[j] *= j / 64 % 5 == 1 ? 0 : 1;
            values[j] *= j / 64 % 3 == 0 ? 0 : j / 64 % 3 == 1 ? 1500.f : 1;
        }
        struct scene s = scene_of(config, 200, keys, values);
        struct attention a = attention_new(s.model, 2, 1, 71);
        aura_seq seq;
        aura_cache *cache = scene_cache(ctx, &s, &seq);
        for (uint32_t d = 0; d < 128; d++)
            a.q[d] *= sizes[i % 5];
        a.options.scale = sizes[i % 5] > 1 ? 1e-5f : 0, a.options.planes = 2;
        oracle_compute(&a);
        expect_attention(cache, seq, &a, config_text(&config));
        attention_free(&a);
        aura_cache_destroy(cache);
        scene_free(&s);
        free(keys), free(values);
    }
}

/* ---- nothing to see --------------------------------------------------------------------------------------------------------- */

/* Out is exactly 0; lse is exactly -inf, or the sink. */
static void expect_nothing(const struct call *c, const float *sinks, uint32_t rows, uint32_t dim, const char *what)
{
    const float *out = (const float *)c->out.memory;
    for (uint32_t i = 0; i < rows * dim; i++)
        EXPECT(out[i] == 0, "%s: [%u] is %g", what, i, (double)out[i]);
    for (uint32_t row = 0; row < rows; row++)
        EXPECT(c->lse[row] == (sinks ? sinks[row % 2] : -INFINITY), "%s: lse is %g", what, (double)c->lse[row]);
}

static void nothing_to_see(void)
{
    static const float sinks[] = {1.5f, -3};
    for (uint32_t i = 0; i < N_KINDS; i++) {
        aura_config config = config_of(kinds[i], kinds[i], 64, 64, 1);
        config.q_heads = 2;
        struct scene s = scene_new(config, 100);
        struct attention a = attention_new(s.model, 2, 2, 72);
        aura_seq seq;
        aura_cache *cache = scene_cache(ctx, &s, &seq);
        aura_seq empty = seq_new(cache);
        a.mask_keys = 100, a.mask_stride = 100, a.mask = malloc(200 * sizeof *a.mask);
        for (int j = 0; j < 200; j++)
            a.mask[j] = -INFINITY;
        struct call c = call_new(&a, seq, AURA_F32, AURA_F32, MIRRORED);
        for (int with_sinks = 0; with_sinks < 2; with_sinks++) {
            a.options.sinks = with_sinks ? sinks : NULL;
            c.job.seq = seq, c.job.mask = a.mask, c.job.mask_keys = 100;
            a.options.not_causal = 0;
            EXPECT(!aura_attend(cache, &c.job, 1, &a.options), "%s", aura_last_error());
            expect_nothing(&c, a.options.sinks, 4, 64, "all masked");
            c.job.seq = empty, c.job.mask = NULL, c.job.mask_keys = 0;
            EXPECT(aura_attend(cache, &c.job, 1, &a.options) == AURA_BAD_ARGUMENT, "causal queries of an empty sequence");
            a.options.not_causal = 1;
            tensor_fill(&c.out, 0xff);
            EXPECT(!aura_attend(cache, &c.job, 1, &a.options), "%s", aura_last_error());
            expect_nothing(&c, a.options.sinks, 4, 64, "empty sequence");
        }
        call_free(&c), attention_free(&a);
        aura_cache_destroy(cache);
        scene_free(&s);
    }
}

/* ---- not finite -------------------------------------------------------------------------------------------------------------- */

/* Query `bad` is not finite in head `head`, or in all heads if head is 4: these rows are NaN, all others are right. */
static void expect_only(const struct call *c, const struct attention *a, uint32_t bad, uint32_t head, const char *what)
{
    size_t rows = (size_t)a->queries * a->q_heads, dim = a->model->v.dim;
    float *got = malloc(rows * dim * sizeof *got);
    tensor_get(got, &c->out);
    for (size_t row = 0; row < rows; row++) {
        if (row / a->q_heads == bad && (head == 4 || row % a->q_heads == head)) {
            for (size_t d = 0; d < dim; d++)
                EXPECT(isnan(got[row * dim + d]), "%s: [%zu][%zu] is %g, not NaN", what, row, d, (double)got[row * dim + d]);
            continue;
        }
        double error = row_error(got + row * dim, a, row, c->out.view.dtype, 0);
        EXPECT(error <= 1 && lse_error(c->lse[row], a, row, 0) <= 1, "%s: row %zu suffers: %.3g of what is allowed", what, row,
               error);
    }
    free(got);
}

static void what_is_not_finite_stays_in_its_row(void)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (uint32_t i = 0; i < N_KINDS * 3; i++) {
        aura_config config = config_of(kinds[i % N_KINDS], kinds[(i + i / N_KINDS + 1) % N_KINDS], 64, 80, 2);
        config.q_heads = 4;
        struct scene s = scene_new(config, 120);
        struct attention a = attention_new(s.model, 5, 4, 73);
        aura_seq seq;
        aura_cache *cache = scene_cache(ctx, &s, &seq);
        a.options.planes = 2;
        a.mask_keys = a.mask_stride = 10, a.mask = calloc(50, sizeof *a.mask);
        oracle_compute(&a);
        a.q[(3 * 4 + 2) * 64 + i % 64] = bad[i / N_KINDS];
        struct call c = call_new(&a, seq, AURA_F32, i % 2 ? AURA_F16 : AURA_F32, DENSE);
        EXPECT(aura_attend(cache, &c.job, 1, &a.options) == AURA_NOT_FINITE, "a query of %g", (double)bad[i / N_KINDS]);
        expect_only(&c, &a, 3, 2, config_text(&config));
        a.q[(3 * 4 + 2) * 64 + i % 64] = 1;
        tensor_set(&c.q, a.q);
        oracle_compute(&a);
        if (i / N_KINDS < 2) { /* a mask of NaN or +inf, on a key that the query sees */
            a.mask[1 * 10 + 4] = bad[i / N_KINDS];
            EXPECT(aura_attend(cache, &c.job, 1, &a.options) == AURA_NOT_FINITE, "a mask of %g", (double)bad[i / N_KINDS]);
            expect_only(&c, &a, 1, 4, config_text(&config));
        }
        call_free(&c), attention_free(&a);
        aura_cache_destroy(cache);
        scene_free(&s);
    }
}

/* Values stored as f32 that f16 cannot hold: rows that would be infinite are NaN. */
static void outputs_that_do_not_fit(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_F32, 64, 64, 2);
    float *keys = random_tokens(74, 50, 2, 64, 1), *values = random_tokens(75, 50, 2, 64, 0);
    for (uint32_t t = 0; t < 50; t++)
        values[(t * 2 + 1) * 64 + 9] = 70000;
    struct scene s = scene_of(config, 50, keys, values);
    struct attention a = attention_new(s.model, 1, 2, 76);
    aura_seq seq;
    aura_cache *cache = scene_cache(ctx, &s, &seq);
    a.options.planes = 2;
    oracle_compute(&a);
    struct call c = call_new(&a, seq, AURA_F32, AURA_F16, DENSE);
    EXPECT(aura_attend(cache, &c.job, 1, &a.options) == AURA_NOT_FINITE, "70000 in f16");
    expect_only(&c, &a, 0, 1, "70000 in f16");
    expect_attention(cache, seq, &a, "70000 in f32");
    call_free(&c), attention_free(&a);
    aura_cache_destroy(cache);
    scene_free(&s);
    free(keys), free(values);
}

static void tests(void)
{
    RUN(peaked_logits);
    RUN(tiles_that_round_badly);
    RUN(extreme_vectors);
    RUN(nothing_to_see);
    RUN(what_is_not_finite_stays_in_its_row);
    RUN(outputs_that_do_not_fit);
}

int main(void)
{
    isas_open(1);
    RUN(long_flat_tails);
    isas_close();
    on_every_tile_isa(tests);
    return test_result();
}
