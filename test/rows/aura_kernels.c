/* The AURA kernels: the cases of their published tests, then cases that those do not have. */
#include "aura_kernels.h"
#include "../../src/variants.h"

/* The right output of head h over tokens [first, end). */
static void expect_row(double *out, double *lse, double *size, const struct problem *p, size_t h, size_t first, size_t end)
{
    double q[AURA_MAX_DIM];
    size_t kv = h / (p->q_heads / p->kv_heads);
    struct oracle o = {p->dim, end - first, p->k.x + (kv * p->tokens + first) * p->dim,
                       p->v.x + (kv * p->tokens + first) * p->dim, NULL, 1, 0, -INFINITY};
    if (p->has_sinks)
        o.sink = number_of(p->sinks, h % p->sink_heads, p->side);
    for (uint32_t d = 0; d < p->dim; d++)
        q[d] = number_of(p->q, h * p->dim + d, p->q_dtype);
    oracle_attend(out, lse, size, &o, q);
}

static void compare_rows(const struct problem *p, const void *got, const float *lse, size_t first, double tolerance,
                         const char *what)
{
    for (size_t h = 0; h < p->q_heads; h++) {
        double want[AURA_MAX_DIM], want_lse, size;
        expect_row(want, &want_lse, &size, p, h, first, p->tokens);
        for (uint32_t d = 0; d < p->dim; d++) {
            double x = number_of(got, h * p->dim + d, p->out);
            EXPECT(fabs(x - want[d]) <= tolerance * (size + 1e-30) + oracle_unit(p->out) * fabs(want[d]) + 6e-8,
                   "%s k%uv%u dim %u tokens %zu heads %u/%u window %llu: [%zu][%u] is %g, not %g", what, p->kb, p->vb,
                   p->dim, p->tokens, p->q_heads, p->kv_heads, (unsigned long long)p->window, h, d, x, want[d]);
        }
        if (lse)
            EXPECT(lse[h] == want_lse || fabs(lse[h] - want_lse) < 1e-5 * (1 + fabs(want_lse)), "%s: lse %g, not %g", what,
                   (double)lse[h], want_lse);
    }
}

static void run_sdpa(const struct problem *p, const char *what)
{
    char *out = malloc((size_t)p->q_heads * p->dim * 4);
    float lse[64];
    aura_flash_sdpa_args a = AURA_FLASH_SDPA_ARGS_INIT;
    a.keys = p->k.packed, a.values = p->v.packed;
    a.dim = p->dim, a.q_heads = p->q_heads, a.kv_heads = p->kv_heads, a.tokens = p->tokens;
    a.q = p->q, a.q_dtype = p->q_dtype, a.out = out, a.out_dtype = p->out;
    a.sinks = p->has_sinks ? p->sinks : NULL, a.sink_dtype = p->side, a.sink_heads = p->sink_heads;
    a.window = p->window, a.lse = lse;
    memset(out, 0x5a, (size_t)p->q_heads * p->dim * 4);
    EXPECT(!aura_flash_sdpa(ctx, &a), "%s: %s", what, aura_last_error());
    compare_rows(p, out, lse, p->window && p->window < p->tokens ? p->tokens - p->window : 0, 3e-6, what);
    free(out);
}

static void run_two_pass(const struct problem *p, size_t block_size, aura_dtype partial, double tolerance, const char *what)
{
    size_t blocks = p->tokens / block_size + 2; /* the last blocks are empty */
    char *o = malloc(p->q_heads * blocks * p->dim * 4), *m = malloc(p->q_heads * blocks * 4), *l = malloc(p->q_heads * blocks * 4);
    char *out = malloc((size_t)p->q_heads * p->dim * 4);
    aura_flash_p1_args a = AURA_FLASH_P1_ARGS_INIT;
    aura_flash_pass2_args b = AURA_FLASH_PASS2_ARGS_INIT;
    float lse[64];
    a.keys = p->k.packed, a.values = p->v.packed, a.dim = p->dim, a.q_heads = p->q_heads, a.kv_heads = p->kv_heads;
    a.tokens = p->tokens, a.q = p->q, a.q_dtype = p->q_dtype, a.partial_dtype = partial;
    a.o = o, a.m = m, a.l = l, a.num_blocks = blocks, a.block_size = block_size;
    EXPECT(!aura_flash_p1(ctx, &a), "%s: %s", what, aura_last_error());
    b.dim = p->dim, b.q_heads = p->q_heads, b.num_blocks = blocks, b.o = o, b.m = m, b.l = l, b.partial_dtype = partial;
    b.out = out, b.out_dtype = p->out, b.lse = lse;
    b.sinks = p->has_sinks ? p->sinks : NULL, b.sink_dtype = p->side, b.sink_heads = p->sink_heads;
    EXPECT(!aura_flash_pass2(ctx, &b), "%s: %s", what, aura_last_error());
    compare_rows(p, out, partial == AURA_F32 ? lse : NULL, 0, tolerance, what);
    free(o), free(m), free(l), free(out);
}

static void run_score_and_value(const struct problem *p, const char *what)
{
    size_t ratio = p->q_heads / p->kv_heads, stride = p->tokens + 3;
    float *scores = malloc(p->q_heads * stride * sizeof *scores), *out = malloc(p->q_heads * p->dim * sizeof *out);
    aura_score_args a = AURA_SCORE_ARGS_INIT;
    aura_value_args b = AURA_VALUE_ARGS_INIT;
    a.keys = p->k.packed, a.dim = p->dim, a.q_heads = p->q_heads, a.kv_heads = p->kv_heads, a.tokens = p->tokens;
    a.q = p->q, a.q_dtype = p->q_dtype, a.scores = scores, a.score_stride = stride;
    EXPECT(!aura_score(ctx, &a), "%s: %s", what, aura_last_error());
    b.values = p->v.packed, b.dim = p->dim, b.q_heads = p->q_heads, b.kv_heads = p->kv_heads, b.tokens = p->tokens;
    b.weights = scores, b.weight_stride = stride, b.out = out, b.sparse_threshold = -1e30f;
    EXPECT(!aura_value(ctx, &b), "%s: %s", what, aura_last_error());
    for (size_t h = 0; h < p->q_heads; h++) {
        const double *k = p->k.x + h / ratio * p->tokens * p->dim, *v = p->v.x + h / ratio * p->tokens * p->dim;
        for (size_t t = 0; t < p->tokens; t++) {
            double sum = 0, size = 0;
            for (uint32_t d = 0; d < p->dim; d++) {
                double term = number_of(p->q, h * p->dim + d, p->q_dtype) * k[t * p->dim + d];
                sum += term, size += fabs(term);
            }
            EXPECT(fabs(scores[h * stride + t] - sum) <= 1e-6 * size, "%s score [%zu][%zu] is %g, not %g", what, h, t,
                   (double)scores[h * stride + t], sum);
        }
        for (uint32_t d = 0; d < p->dim; d++) {
            double sum = 0, size = 1e-30;
            for (size_t t = 0; t < p->tokens; t++)
                sum += scores[h * stride + t] * v[t * p->dim + d], size += fabs(scores[h * stride + t] * v[t * p->dim + d]);
            EXPECT(fabs(out[h * p->dim + d] - sum) <= 2e-6 * size, "%s value [%zu][%u] is %g, not %g", what, h, d,
                   (double)out[h * p->dim + d], sum);
        }
    }
    free(scores), free(out);
}

/* ---- the published cases ------------------------------------------------------------------------------------------- */

static void published_attention_cases(void)
{
    static const aura_dtype types[] = {AURA_F32, AURA_F16, AURA_BF16};
    for (int i = 0; i < 3; i++)
        for (int option = 0; option < 4; option++) { /* plain, sinks, window 4, both */
            struct problem p = {4, 2, 128, 2, 1, 8, 8, 8, option & 2 ? 4 : 0, option & 1, 2, types[i], types[i], types[i],
                                NO_SIDE, NO_SIDE, NULL, NULL};
            finish_problem(&p, 7, 3, 11, 5);
            run_sdpa(&p, "published sdpa");
            if (!(option & 2))
                run_two_pass(&p, 4, AURA_F32, 3e-6, "published p1 + pass2");
            run_score_and_value(&p, "published score, value");
            free_problem(&p);
        }
    struct problem gqa = {4, 4, 128, 8, 2, 10, 10, 10, 0, 0, 8, AURA_F32, AURA_F32, AURA_F32, NO_SIDE, NO_SIDE, NULL, NULL};
    finish_problem(&gqa, 11, 7, 13, 5);
    run_score_and_value(&gqa, "published GQA");
    run_sdpa(&gqa, "published GQA");
    free_problem(&gqa);
}

static void value_skips_what_is_below_the_threshold(void)
{
    enum { DIM = 128, T = 10 };
    struct side v = make_side(4, DIM, 2, T, T, 13, 5, 0.4f, 0.07f, AURA_F32, AURA_F32);
    float w[4 * T], out[4 * DIM];
    aura_value_args a = AURA_VALUE_ARGS_INIT;
    for (int i = 0; i < 4 * T; i++)
        w[i] = (float)((7 * i + 3) % 10) * 0.04f;
    w[3] = 0.1f, w[5] = NAN, w[6] = nextafterf(0.1f, 0); /* equal to the threshold: counts; NaN: skipped; just below: skipped */
    a.values = v.packed, a.dim = DIM, a.q_heads = 4, a.kv_heads = 2, a.tokens = T;
    a.weights = w, a.out = out, a.sparse_threshold = 0.1f;
    EXPECT(!aura_value(ctx, &a), "%s", aura_last_error());
    for (int h = 0; h < 4; h++)
        for (int d = 0; d < DIM; d++) {
            double sum = 0;
            for (int t = 0; t < T; t++)
                sum += w[h * T + t] >= 0.1f ? w[h * T + t] * v.x[(h / 2 * T + t) * DIM + d] : 0;
            EXPECT(fabs(out[h * DIM + d] - sum) < 1e-5, "[%d][%d] is %g, not %g", h, d, (double)out[h * DIM + d], sum);
        }
    ((float *)v.norms)[0] = NAN, w[0] = 0, w[T] = NAN; /* token 0, which both query heads of KV head 0 skip */
    EXPECT(!aura_value(ctx, &a), "a skipped token is not looked at: %s", aura_last_error());
    w[0] = 1;
    EXPECT(aura_value(ctx, &a) == AURA_NOT_FINITE && isnan(out[0]) && isfinite(out[DIM]), "a kept one is: %s", aura_last_error());
    ((float *)v.norms)[0] = ((float *)v.norms)[1] = 3e38f, w[1] = 1, w[T + 1] = 0; /* overflows in some coordinates only */
    EXPECT(aura_value(ctx, &a) == AURA_NOT_FINITE && strstr(aura_last_error(), "row 0"), "%s", aura_last_error());
    for (int d = 0; d < DIM; d++)
        EXPECT(isnan(out[d]) && isfinite(out[DIM + d]), "a row that is not finite is NaN: [%d] is %g", d, (double)out[d]);
    memset(out, 0x77, sizeof out);
    a.tokens = 0;
    EXPECT(!aura_value(ctx, &a) && out[0] == 0 && out[4 * DIM - 1] == 0, "no tokens: %g", (double)out[0]);
    free_side(&v);
}

static void causal_blocks(void)
{
    static const size_t positions[] = {0, 3, 5, 7, 8, 100};
    struct problem p = {4, 2, 128, 2, 1, 8, 11, 9, 0, 0, 2, AURA_F32, AURA_F32, AURA_F32, NO_SIDE, NO_SIDE, NULL, NULL};
    finish_problem(&p, 7, 3, 11, 5);
    for (int i = 0; i < 6; i++) {
        float o[2 * 2 * 128], m[4], l[4];
        size_t seen = positions[i] + 1 < 8 ? positions[i] + 1 : 8;
        aura_flash_p1_args a = AURA_FLASH_P1_ARGS_INIT;
        a.keys = p.k.packed, a.values = p.v.packed, a.dim = 128, a.q_heads = 2, a.kv_heads = 1, a.tokens = 8;
        a.q = p.q, a.o = o, a.m = m, a.l = l, a.num_blocks = 2, a.block_size = 4, a.causal = 1, a.q_position = positions[i];
        EXPECT(!aura_flash_p1(ctx, &a), "%s", aura_last_error());
        for (size_t h = 0; h < 2; h++)
            for (size_t b = 0; b < 2; b++) {
                size_t first = b * 4 < seen ? b * 4 : seen, end = (b + 1) * 4 < seen ? (b + 1) * 4 : seen;
                double want[128], lse;
                expect_row(want, &lse, NULL, &p, h, first, end);
                if (first == end) {
                    EXPECT(m[h * 2 + b] == -INFINITY && l[h * 2 + b] == 0 && o[(h * 2 + b) * 128] == 0,
                           "an empty block is (0, -inf, 0)");
                    continue;
                }
                EXPECT(fabs(m[h * 2 + b] + log(l[h * 2 + b]) - lse) < 1e-5, "m and l of block %zu", b);
                for (int d = 0; d < 128; d++)
                    EXPECT(fabs(o[(h * 2 + b) * 128 + (size_t)d] / l[h * 2 + b] - want[d]) < 1e-5, "o of block %zu", b);
            }
    }
    free_problem(&p);
}

/* ---- encode, against the published steps ----------------------------------------------------------------------------- */

/* Normalise, rotate by the matrix, count thresholds, correct the norm: in double. Codes within 1e-6 of a threshold may
 * differ. Returns the number of codes that differ. */
static int compare_encode(const float *x, const float *matrix, uint32_t dim, const aura_codebook *book, const uint8_t *row,
                          double stored, int raw, double tolerance)
{
    double n = 0, r = 0;
    int wrong = 0;
    for (uint32_t d = 0; d < dim; d++)
        n += (double)x[d] * x[d];
    n = sqrt(n);
    for (uint32_t d = 0; d < dim; d++) {
        double y = 0, nearest = 1;
        uint32_t index = 0, got = oracle_unpack(row, book->bits, d);
        for (uint32_t j = 0; j < dim; j++)
            y += matrix[d * dim + j] * (n > 1e-8 ? x[j] / n : 0);
        for (uint32_t i = 0; i + 1 < book->levels; i++) {
            index += y > book->threshold[i];
            nearest = fabs(y - book->threshold[i]) < nearest ? fabs(y - book->threshold[i]) : nearest;
        }
        wrong += got != index && nearest > 1e-6;
        r += (double)book->centroid[got] * book->centroid[got];
    }
    double want = raw ? n : n / sqrt(r);
    EXPECT(fabs(stored - want) <= tolerance * want + 1e-12, "stored norm %g, not %g", stored, want);
    return wrong;
}

static void encode_as_published(void)
{
    static const struct {
        uint32_t dim, rows, mod;
        int off, srht;
    } cases[] = {{128, 2, 23, 9, 0}, {32, 1, 13, 6, 0}, {128, 3, 29, 11, 1}, {64, 3, 31, 15, 1}, {80, 2, 29, 11, 0}};
    static const aura_dtype types[] = {AURA_F32, AURA_F16, AURA_BF16};
    static float matrix[128 * 128], x[3 * 128];
    for (int c = 0; c < 5; c++)
        for (uint32_t bits = 2; bits <= 8; bits++) {
            uint32_t dim = cases[c].dim, levels = 1u << bits;
            float centroid[256], threshold[255];
            uint8_t signs[16] = {0}, packed[3 * 128];
            uint64_t lcg = 0xa09a5eedu * 6364136223846793005u + 1442695040888963407u;
            if (bits == 7)
                continue;
            for (uint32_t i = 0; i < levels; i++)
                centroid[i] = -1 + 2 * (float)i / (float)(levels - 1);
            for (uint32_t i = 0; i + 1 < levels; i++)
                threshold[i] = (centroid[i] + centroid[i + 1]) / 2;
            aura_codebook book = {0, bits, levels, 0, 1 / sqrtf((float)dim), 0, centroid, threshold};
            for (uint32_t d = 0; d < dim; d++) {
                lcg = lcg * 6364136223846793005u + 1442695040888963407u;
                signs[d / 8] |= (uint8_t)((lcg >> 33 & 1) << d % 8);
            }
            for (uint32_t i = 0; i < dim; i++)
                for (uint32_t j = 0; j < dim; j++) {
                    int negative = (signs[j / 8] >> j % 8 & 1) ^ __builtin_parity(i & j);
                    matrix[i * dim + j] = cases[c].srht ? (negative ? -1.f : 1.f) / sqrtf((float)dim) : i == j;
                }
            for (uint32_t i = 0; i < cases[c].rows * dim; i++)
                x[i] = ((float)(i % cases[c].mod) - (float)cases[c].off) * 0.05f;
            for (int way = 0; way < 6; way++) { /* dense f32, f16, bf16 norms; raw norm; Hadamard; searched never */
                aura_encode_args a = AURA_ENCODE_ARGS_INIT;
                aura_rotation dense = {sizeof dense, AURA_ROTATION_DENSE, dim, NULL, matrix, NULL};
                aura_rotation fast = {sizeof fast, AURA_ROTATION_HADAMARD, dim, signs, NULL, NULL};
                aura_dtype dtype = way < 3 ? types[way] : AURA_F32;
                char norms[3 * 4];
                if (way == 4 && !cases[c].srht)
                    continue;
                a.codebook = &book, a.rotation = way == 4 ? &fast : &dense, a.dim = dim, a.rows = cases[c].rows;
                a.in = x, a.packed = packed, a.scales = norms, a.scale_dtype = dtype, a.tiny = 1e-8f;
                a.rule = way == 3 ? AURA_SCALE_RAW : AURA_SCALE_MATCHED;
                EXPECT(!aura_encode(ctx, &a), "%s", aura_last_error());
                for (uint32_t r = 0; r < cases[c].rows; r++)
                    EXPECT(compare_encode(x + r * dim, matrix, dim, &book, packed + r * aura_row_bytes(dim, bits),
                                          number_of(norms, r, dtype), way == 3, oracle_unit(dtype) + 2e-6) == 0,
                           "codes of case %d, %u bits, way %d", c, bits, way);
            }
        }
}

static void tiny_vectors_keep_their_norm(void)
{
    enum { DIM = 64 };
    static const float sizes[] = {0, 1e-11f, 1e-9f, 1e-8f, 1e-6f};
    float x[DIM], norm;
    uint8_t packed[DIM / 2];
    aura_codebook book;
    aura_encode_args a = AURA_ENCODE_ARGS_INIT;
    aura_codebook_get(AURA_TABLE_AURA, 4, &book);
    book.sigma = 1 / sqrtf(DIM);
    a.codebook = &book, a.dim = DIM, a.rows = 1, a.in = x, a.packed = packed, a.scales = &norm, a.tiny = 1e-8f;
    for (int i = 0; i < 5; i++) {
        for (int d = 0; d < DIM; d++)
            x[d] = d == 5 ? -sizes[i] : 0;
        EXPECT(!aura_encode(ctx, &a), "%s", aura_last_error());
        int zero_codes = 1;
        for (int d = 0; d < DIM; d++)
            zero_codes &= oracle_unpack(packed, 4, (uint32_t)d) == 7;
        EXPECT(zero_codes == (sizes[i] <= 1e-8f), "a vector of %g", (double)sizes[i]);
        EXPECT((norm > 0) == (sizes[i] > 0), "its norm is %g", (double)norm);
    }
}

static void dequant_keeps_strides_and_types(void)
{
    static const aura_dtype types[] = {AURA_F32, AURA_F16, AURA_BF16};
    static const uint32_t dims[] = {AURA_DIMS(AURA_DIM_ITEM) 1024, 72}, widths[] = {AURA_BITS(AURA_KIND_ITEM)};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
            for (int type = 0; type < 3; type++) {
                struct side s = make_side(widths[w], dims[i], 2, 3, 5, 7, 3, 0.5f, 0.1f, types[(type + 1) % 3],
                                          types[(type + 2) % 3]);
                char *out = malloc(2 * 4 * dims[i] * 4);
                size_t element = aura_dtype_bytes(types[type]);
                aura_dequant_args a = AURA_DEQUANT_ARGS_INIT;
                memset(out, 0x5a, 2 * 4 * dims[i] * 4);
                a.rows = s.packed, a.dim = dims[i], a.kv_heads = 2, a.tokens = 3, a.out = out, a.out_dtype = types[type],
                    a.out_stride = 4;
                EXPECT(!aura_dequant(ctx, &a), "%s", aura_last_error());
                for (size_t h = 0; h < 2; h++)
                    for (size_t e = 0; e < 3 * dims[i]; e++)
                        EXPECT(fabs(number_of(out, h * 4 * dims[i] + e, types[type]) - s.x[h * 3 * dims[i] + e]) <=
                                   (oracle_unit(types[type]) + 1e-7) * fabs(s.x[h * 3 * dims[i] + e]) + 1e-8, "element %zu", e);
                EXPECT(out[3 * dims[i] * element] == 0x5a, "wrote past the live tokens");
                free(out), free_side(&s);
            }
}

/* ---- everything else -------------------------------------------------------------------------------------------------- */

/* Every pair of widths at every dim; the other options take turns. */
static void every_pair_and_dim(void)
{
    static const uint32_t widths[] = {AURA_BITS(AURA_KIND_ITEM)}, dims[] = {AURA_DIMS(AURA_DIM_ITEM) 8, 72};
    const size_t n_widths = sizeof widths / sizeof *widths, n_dims = sizeof dims / sizeof *dims;
    static const uint32_t ratios[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 20}, kv_heads[] = {1, 2, 3};
    static const size_t tokens[] = {1, 31, 32, 33, 63, 64, 65, 130};
    static const aura_dtype types[] = {AURA_F32, AURA_F16, AURA_BF16};
    size_t n = 0;
    for (size_t kb = 0; kb < n_widths; kb++)
        for (size_t vb = 0; vb < n_widths; vb++)
            for (size_t d = 0; d < n_dims; d++, n++) {
                size_t t = tokens[random_bits(&state) % 8];
                uint64_t windows[] = {0, 1, t - 1, t, t + 1, UINT32_MAX, UINT64_MAX};
                uint32_t kv = kv_heads[random_bits(&state) % 3], ratio = ratios[random_bits(&state) % 10];
                uint32_t batches = kv == 2 ? 2 : 1; /* the heads of two batches share one set of sinks */
                struct problem p = {widths[kb], widths[vb], dims[d], kv * ratio, kv, t, t + random_bits(&state) % 3 * 7,
                                    t + random_bits(&state) % 3 * 5, windows[random_bits(&state) % 7], (int)(n % 2),
                                    kv * ratio / batches, types[random_bits(&state) % 3], types[random_bits(&state) % 3],
                                    types[random_bits(&state) % 3], NO_SIDE, NO_SIDE, NULL, NULL};
                finish_problem(&p, 0, 0, 0, 0);
                run_sdpa(&p, "sdpa");
                run_two_pass(&p, 1 + random_bits(&state) % 70, AURA_F32, 3e-6, "p1 + pass2");
                run_score_and_value(&p, "score, value");
                free_problem(&p);
            }
    EXPECT(n >= 360, "%zu cases", n);
}

/* One problem, cut into any number of blocks, gives the same answer. */
static void any_number_of_blocks(void)
{
    struct problem p = {4, 3, 96, 6, 2, 40, 45, 40, 0, 1, 6, AURA_F32, AURA_F32, AURA_F32, NO_SIDE, NO_SIDE, NULL, NULL};
    finish_problem(&p, 0, 0, 0, 0);
    for (size_t block = 1; block <= 41; block++)
        run_two_pass(&p, block, AURA_F32, 3e-6, "block sweep");
    free_problem(&p);
}

/* With scores of about 18 and more, rounding the maximum of a block to bf16 changes its weight by percents; f32 does not. */
static void large_maxima_need_f32_partials(void)
{
    enum { DIM = 128, T = 512, BLOCKS = 16 };
    struct problem p = {4, 4, DIM, 1, 1, T, T, T, 0, 0, 1, AURA_F32, AURA_F32, AURA_F32, NO_SIDE, NO_SIDE, NULL, NULL};
    double want[DIM], lse, size, error[3] = {0};
    finish_problem(&p, 0, 0, 0, 0);
    for (int d = 0; d < DIM; d++)
        ((float *)p.q)[d] *= 10;
    expect_row(want, &lse, &size, &p, 0, 0, T);
    EXPECT(lse > 16, "scores are too small to show anything: %g", lse);
    for (int type = AURA_F32; type <= AURA_BF16; type++) {
        float o[BLOCKS * DIM], m[BLOCKS], l[BLOCKS], out[DIM];
        aura_flash_p1_args a = {sizeof a, p.k.packed, p.v.packed, DIM, 1, 1, T, p.q, AURA_F32, (aura_dtype)type, o, m, l,
                                BLOCKS, T / BLOCKS, 0, 0, 0};
        aura_flash_pass2_args b = AURA_FLASH_PASS2_ARGS_INIT;
        b.dim = DIM, b.q_heads = 1, b.num_blocks = BLOCKS, b.o = o, b.m = m, b.l = l, b.partial_dtype = (aura_dtype)type,
            b.out = out;
        EXPECT(!aura_flash_p1(ctx, &a) && !aura_flash_pass2(ctx, &b), "%s", aura_last_error());
        for (int d = 0; d < DIM; d++)
            error[type] += fabs(out[d] - want[d]) / size / DIM;
    }
    EXPECT(error[AURA_F32] < 1e-6 && error[AURA_BF16] > 300 * error[AURA_F32], "f32 %g, f16 %g, bf16 %g", error[0],
           error[1], error[2]);
    free_problem(&p);
}

static void partials_in_low_precision_are_what_they_are(void)
{
    struct problem p = {4, 4, 128, 4, 2, 500, 512, 500, 0, 0, 4, AURA_F32, AURA_F32, AURA_F32, NO_SIDE, NO_SIDE, NULL, NULL};
    finish_problem(&p, 0, 0, 0, 0);
    run_two_pass(&p, 32, AURA_F32, 3e-6, "f32 partials");
    run_two_pass(&p, 32, AURA_F16, 0.01, "f16 partials");
    run_two_pass(&p, 32, AURA_BF16, 0.1, "bf16 partials");
    free_problem(&p);
}

static void empty_blocks_between_full_ones(void)
{
    enum { DIM = 64, BLOCKS = 70 };
    static float o[BLOCKS * DIM], m[BLOCKS], l[BLOCKS];
    float out[DIM], lse;
    double sum = 0, total = 0;
    aura_flash_pass2_args a = AURA_FLASH_PASS2_ARGS_INIT;
    for (int b = 0; b < BLOCKS; b++) {
        int empty = b % 3 == 2 || b == 0; /* the last of the first 64, not the first of the others */
        m[b] = empty ? (b % 2 ? NAN : 1e30f) : (float)(b % 7); /* of an empty block only l = 0 counts: m may be anything */
        l[b] = empty ? 0 : 1.5f;
        for (int d = 0; d < DIM; d++)
            o[b * DIM + d] = empty ? NAN : (float)b;
        if (!empty)
            sum += 1.5 * exp(m[b]), total += b * exp(m[b]);
    }
    a.dim = DIM, a.q_heads = 1, a.num_blocks = BLOCKS, a.o = o, a.m = m, a.l = l, a.out = out, a.lse = &lse;
    EXPECT(!aura_flash_pass2(ctx, &a) && fabs(out[9] - total / sum) < 1e-4, "%s: %g, not %g", aura_last_error(),
           (double)out[9], total / sum);
    EXPECT(fabs(lse - log(sum)) < 1e-5, "lse %g", (double)lse);
    a.num_blocks = 0;
    EXPECT(!aura_flash_pass2(ctx, &a) && out[9] == 0 && lse == -INFINITY, "no blocks: %g", (double)out[9]);
    a.num_blocks = BLOCKS, l[4] = NAN;
    EXPECT(aura_flash_pass2(ctx, &a) == AURA_NOT_FINITE && isnan(out[9]) && strstr(aura_last_error(), "row 0"),
           "NaN l: %g", (double)out[9]);
    l[4] = INFINITY;
    EXPECT(aura_flash_pass2(ctx, &a) == AURA_NOT_FINITE && isnan(out[9]), "infinite l: %g", (double)out[9]);
    l[4] = 1.5f, m[4] = NAN;
    EXPECT(aura_flash_pass2(ctx, &a) == AURA_NOT_FINITE && isnan(out[9]) && isnan(lse), "NaN m: %g", (double)out[9]);
}

/* Undo in the same call gives the same as undo afterwards. */
static void fused_undo(void)
{
    struct problem p = {4, 4, 80, 6, 2, 40, 40, 40, 0, 1, 6, AURA_F32, AURA_F32, AURA_F32, NO_SIDE, NO_SIDE, NULL, NULL};
    float fused[6 * 80], plain[6 * 80];
    uint8_t signs[10];
    aura_rotation rotation = {sizeof rotation, AURA_ROTATION_HADAMARD, 80, signs, NULL, NULL};
    aura_rotate_args undo = {sizeof undo, &rotation, 6, plain, plain, AURA_F32, AURA_F32, 0, 0};
    aura_flash_sdpa_args a = AURA_FLASH_SDPA_ARGS_INIT;
    finish_problem(&p, 0, 0, 0, 0);
    aura_signs(3, 1, 80, signs);
    a.keys = p.k.packed, a.values = p.v.packed, a.dim = 80, a.q_heads = 6, a.kv_heads = 2, a.tokens = 40, a.q = p.q;
    a.sinks = p.sinks, a.out = plain;
    EXPECT(!aura_flash_sdpa(ctx, &a) && !aura_undo(ctx, &undo), "%s", aura_last_error());
    a.out = fused, a.undo = &rotation;
    EXPECT(!aura_flash_sdpa(ctx, &a) && !memcmp(fused, plain, sizeof fused), "fused and unfused differ");

    static float o[6 * 3 * 80], m[6 * 3], l[6 * 3], matrix[80 * 80];
    aura_flash_p1_args b = AURA_FLASH_P1_ARGS_INIT;
    aura_flash_pass2_args c = AURA_FLASH_PASS2_ARGS_INIT;
    b.keys = p.k.packed, b.values = p.v.packed, b.dim = 80, b.q_heads = 6, b.kv_heads = 2, b.tokens = 40, b.q = p.q;
    b.o = o, b.m = m, b.l = l, b.num_blocks = 3, b.block_size = 16;
    c.dim = 80, c.q_heads = 6, c.num_blocks = 3, c.o = o, c.m = m, c.l = l, c.sinks = p.sinks;
    for (int i = 0; i < 80; i++) /* a permutation with signs */
        matrix[i * 80 + (i * 7 + 3) % 80] = i % 3 ? 1 : -1;
    EXPECT(!aura_flash_p1(ctx, &b), "%s", aura_last_error());
    for (int kind = AURA_ROTATION_HADAMARD; kind <= AURA_ROTATION_DENSE; kind++) {
        rotation.kind = (aura_rotation_kind)kind, rotation.matrix = matrix;
        c.out = plain, c.undo = NULL;
        EXPECT(!aura_flash_pass2(ctx, &c) && !aura_undo(ctx, &undo), "%s", aura_last_error());
        c.out = fused, c.undo = &rotation;
        EXPECT(!aura_flash_pass2(ctx, &c) && !memcmp(fused, plain, sizeof fused),
               "pass 2: fused and unfused differ, kind %d", kind);
    }
    free_problem(&p);
}

static void tests(void)
{
    RUN(published_attention_cases);
    RUN(value_skips_what_is_below_the_threshold);
    RUN(causal_blocks);
    RUN(encode_as_published);
    RUN(tiny_vectors_keep_their_norm);
    RUN(dequant_keeps_strides_and_types);
    RUN(every_pair_and_dim);
    RUN(any_number_of_blocks);
    RUN(large_maxima_need_f32_partials);
    RUN(partials_in_low_precision_are_what_they_are);
    RUN(empty_blocks_between_full_ones);
    RUN(fused_undo);
}

int main(void)
{
    on_every_isa(tests);
    return test_result();
}
