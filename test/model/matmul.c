/* Products of weights: compares every type as it is unpacked with another implementation, and the products of every instruction
 * set with sums in double of the same numbers. */
#include <math.h>
#include <stdlib.h>

#include "../../src/base/dtype.h"
#include "../../model/matmul.h"
#include "../test.h"

/* ---- what the types mean --------------------------------------------------------------------------------------------- */

/* A block of bytes 37 i + 11, but with d = 0.1 and m = -0.175 in f16 at the given places; some of its numbers as ggml 0.25
 * decodes them. */
static const struct golden {
    uint32_t type;
    int d, m;
    struct {
        int at;
        float x;
    } numbers[8];
} goldens[] = {
    {GGUF_TYPE_Q8_0, 0, -1, {{0, 0x1.0fefp+3f}, {1, 0x1.864ep+3f}, {15, -0x1.998p+3f}, {16, -0x1.2321p+3f},
                             {31, -0x1.332p+2f}, {16, -0x1.2321p+3f}, {5, 0x1.665p+0f}, {31, -0x1.332p+2f}}},
    {GGUF_TYPE_Q4_0, 0, -1, {{0, -0x1.332p-2f}, {1, 0x1.998p-3f}, {15, -0x1.998p-1f}, {16, -0x1.332p-2f}, {31, 0x0p+0f},
                             {16, -0x1.332p-2f}, {5, 0x1.332p-1f}, {31, 0x0p+0f}}},
    {GGUF_TYPE_Q4_1, 0, 2, {{0, 0x1.5318p+0f}, {1, 0x1.cc8p-3f}, {15, 0x1.a64p-1f}, {16, 0x1.731p-1f}, {31, 0x1.065p+0f},
                            {16, 0x1.731p-1f}, {5, 0x1.3fep-1f}, {31, 0x1.065p+0f}}},
    {GGUF_TYPE_Q5_0, 0, -1, {{0, 0x1.ccbp-1f}, {1, -0x1.998p-3f}, {15, -0x1.332p+0f}, {16, 0x1.665p+0f}, {31, 0x1.998p-4f},
                             {16, 0x1.665p+0f}, {5, -0x1.665p+0f}, {31, 0x1.998p-4f}}},
    {GGUF_TYPE_Q5_1, 0, 2, {{0, 0x1.b978p+0f}, {1, 0x1.1cb8p+1f}, {15, 0x1.698p+1f}, {16, 0x1.b978p+0f}, {31, 0x1.4cap-2f},
                            {16, 0x1.b978p+0f}, {5, 0x1.065p+0f}, {31, 0x1.4cap-2f}}},
    {GGUF_TYPE_Q4_K, 0, 2, {{0, 0x1.58274p+5f}, {1, 0x1.1daep+3f}, {15, 0x1.b85ep+4f}, {16, 0x1.58274p+5f},
                            {31, 0x1.b85ep+4f}, {128, 0x1.67ebcp+5f}, {223, 0x1.02f3p+5f}, {255, 0x1.9734p+3f}}},
    {GGUF_TYPE_Q5_K, 0, 2, {{0, 0x1.726dap+6f}, {1, 0x1.1daep+3f}, {15, 0x1.b85ep+4f}, {16, 0x1.726dap+6f},
                            {31, 0x1.b85ep+4f}, {128, 0x1.ad7fep+6f}, {223, 0x1.baff8p+6f}, {255, 0x1.2b94p+4f}}},
    {GGUF_TYPE_Q6_K, 208, -1, {{0, -0x1.1e215p+7f}, {1, 0x1.531ep+7f}, {15, -0x1.fcadp+4f}, {16, -0x1.5984p+5f},
                               {31, -0x1.332p+3f}, {128, -0x1.18bb4p+5f}, {223, -0x1.931ap+6f}, {255, -0x1.7fe8p+2f}}},
};

enum { N_GOLDENS = sizeof goldens / sizeof goldens[0] };

static void put_half(uint8_t *block, int at, unsigned half)
{
    if (at >= 0)
        block[at] = (uint8_t)half, block[at + 1] = (uint8_t)(half >> 8);
}

/* Every row of the list has its numbers above. */
static void all_types_have_numbers(void)
{
#define FIND(name, ...)                                                    \
    {                                                                      \
        size_t k = 0;                                                      \
        while (k < N_GOLDENS && goldens[k].type != GGUF_TYPE_##name)       \
            k++;                                                           \
        EXPECT(k < N_GOLDENS, "no numbers of " #name);                     \
    }
    WEIGHT_TYPES(FIND, any)
#undef FIND
}

static void types(void)
{
    for (size_t k = 0; k < N_GOLDENS; k++) {
        const struct golden *g = &goldens[k];
        const struct gguf_type_info *info = gguf_type_info(g->type);
        uint8_t block[256];
        float x[256];
        for (int i = 0; i < 256; i++)
            block[i] = (uint8_t)(37 * i + 11);
        put_half(block, g->d, 0x2e66);
        put_half(block, g->m, 0xb19a);
        weight_row(g->type, block, info->block, x);
        for (int i = 0; i < 8; i++)
            EXPECT(x[g->numbers[i].at] == g->numbers[i].x, "%s number %d is %a, not %a", info->name, g->numbers[i].at,
                   (double)x[g->numbers[i].at], (double)g->numbers[i].x);
    }
}

static void floats(void)
{
    static const uint16_t half[] = {0x0000, 0x8000, 0x3c00, 0xc000, 0x0001, 0x7bff}, brain[] = {0x0000, 0x3f80, 0xc040, 0x0080};
    static const float half_x[] = {0, -0.0f, 1, -2, 0x1p-24f, 65504}, brain_x[] = {0, 1, -3, 0x1p-126f};
    float x[6];
    weight_row(GGUF_TYPE_F16, half, 6, x);
    EXPECT(!memcmp(x, half_x, sizeof half_x), "F16: %a %a %a ...", (double)x[0], (double)x[1], (double)x[2]);
    weight_row(GGUF_TYPE_BF16, brain, 4, x);
    EXPECT(!memcmp(x, brain_x, sizeof brain_x), "BF16: %a %a %a ...", (double)x[0], (double)x[1], (double)x[2]);
    weight_row(GGUF_TYPE_F32, half_x, 6, x);
    EXPECT(!memcmp(x, half_x, sizeof half_x), "F32: %a %a %a ...", (double)x[0], (double)x[1], (double)x[2]);
}

/* ---- products ---------------------------------------------------------------------------------------------------------- */

static const struct matmul_kernels *kernels;
static aura_ctx *ctx;
static uint64_t random_state;

static uint32_t random_bits(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

static float random_float(void)
{
    return (float)random_bits() / 1073741824.0f - 1;
}

/* f16 of any size: zero, subnormal, up to 2^top. */
static unsigned random_half(unsigned top)
{
    return (random_bits() & 0x83ff) | random_bits() % (15 + top) << 10;
}

/* Random bytes are codes of any kind; d and m must be finite. */
static void fill_weights(uint32_t type, uint8_t *data, size_t rows, size_t cols, unsigned top)
{
    const struct gguf_type_info *info = gguf_type_info(type);
    size_t blocks = rows * cols / info->block;
    for (size_t i = 0; i < blocks * info->bytes; i++)
        data[i] = (uint8_t)random_bits();
    for (size_t i = 0; i < blocks; i++) {
        uint8_t *block = data + i * info->bytes;
        float x = random_float() * (float)(1 << random_bits() % 12);
        for (size_t k = 0; k < N_GOLDENS; k++)
            if (goldens[k].type == type)
                put_half(block, goldens[k].d, random_half(top)), put_half(block, goldens[k].m, random_half(top));
        if (type == GGUF_TYPE_F32)
            memcpy(block, &x, sizeof x);
        if (type == GGUF_TYPE_F16)
            put_half(block, 0, random_half(top));
        if (type == GGUF_TYPE_BF16)
            put_half(block, 0, aura_bf16_from_f32(x));
    }
}

/* The product of a row with the rounded vector of a token, and the sum of the magnitudes added up. Code and min count one by one:
 * a number may be the small difference of both. */
static double double_product(uint32_t type, const uint8_t *row, size_t cols, const struct acts *acts, size_t t, double *size)
{
    const struct gguf_type_info *info = gguf_type_info(type);
    float *w = malloc(cols * sizeof *w);
    struct weight_block b;
    double sum = 0;
    weight_row(type, row, cols, w);
    *size = 0;
    for (size_t i = 0; i < cols; i++) {
        size_t batch = t / ACT_TOKENS * acts->blocks, place = t % ACT_TOKENS;
        const struct act_block *a = &acts->block[(batch + i / ACT_COLS) * ACT_TOKENS + place];
        double x = info->block == 1
            ? acts->plain[(batch * ACT_COLS + i) * ACT_TOKENS + place] : (double)a->scale * a->q[i % ACT_COLS];
        double least = 0;
        if (info->block > 1 && i % info->block == 0)
            weight_unpack(type, row, i / info->block, &b);
        if (info->block > 1 && type != GGUF_TYPE_Q6_K)
            least = fabs((double)aura_f32_from_f16(b.m) * b.min[i % info->block / 32]);
        sum += w[i] * x;
        *size += (fabs((double)w[i]) + 2 * least) * fabs(x);
    }
    free(w);
    return sum;
}

static void compare(const uint8_t *data, const struct matrix *m, const struct acts *acts, const float *out, size_t stride,
                    const float *bias, float before)
{
    const struct gguf_type_info *info = gguf_type_info(m->type);
    size_t row_bytes = m->cols / info->block * info->bytes;
    double eps = 0x1p-24 * (8 + (double)m->cols / (info->block == 1 ? 1 : 16)); /* a rounding for the sum of each part */
    for (size_t t = 0; t < acts->tokens; t++)
        for (size_t r = 0; r < m->rows; r++) {
            double size, want = double_product(m->type, data + r * row_bytes, m->cols, acts, t, &size), got = out[t * stride + r];
            want += (bias ? bias[r] : 0) + before;
            EXPECT(fabs(got - want) <= eps * (size + fabs(want)) + 1e-37,
                   "%s %s %zux%zu token %zu of %zu row %zu: %g, not %g +- %g",
                   kernels->isa, info->name, m->rows, m->cols, t, acts->tokens, r, got, want, eps * size);
        }
}

/* One matrix: its product is stored, and then added with a bias to old numbers. Numbers behind its rows must not change. */
static void one_product(uint32_t type, size_t rows, size_t cols, size_t tokens, unsigned top)
{
    const struct gguf_type_info *info = gguf_type_info(type);
    uint8_t *data = malloc(rows * cols / info->block * info->bytes);
    size_t stride = rows + 3;
    float *x = malloc(cols * tokens * sizeof *x), *out = malloc(stride * tokens * sizeof *out), *bias = malloc(rows * sizeof *bias);
    struct acts acts = {0};
    struct matrix m = {0};
    acts.wants_block = acts.wants_plain = 1;
    fill_weights(type, data, rows, cols, top);
    for (size_t i = 0; i < cols * tokens; i++)
        x[i] = random_float() * (float)(1 << i / 32 % 9);
    for (size_t r = 0; r < rows; r++)
        bias[r] = random_float();
    for (size_t i = 0; i < stride * tokens; i++)
        out[i] = 7;
    EXPECT(!matrix_create(ctx, type, data, rows, cols, &m) && !acts_resize(&acts, cols, tokens), "no memory");
    for (size_t t = 0; t < tokens; t++)
        acts_set(&acts, kernels, t, x + t * cols);
    matmul_run(ctx, kernels, &acts, &(struct product){&m, out, stride, bias, 1}, 1);
    compare(data, &m, &acts, out, stride, bias, 7);
    matmul_run(ctx, kernels, &acts, &(struct product){&m, out, stride, NULL, 0}, 1);
    compare(data, &m, &acts, out, stride, NULL, 0);
    for (size_t t = 0; t < tokens; t++)
        EXPECT(out[t * stride + rows] == 7, "%s: wrote behind its rows", info->name);
    matrix_destroy(&m);
    acts_destroy(&acts);
    free(data), free(x), free(out), free(bias);
}

static const uint32_t all_types[] = {
#define TYPE(name, ...) GGUF_TYPE_##name,
    WEIGHT_TYPES(TYPE, any) WEIGHT_FLOATS(TYPE, any)
#undef TYPE
};

static void products(void)
{
    static const size_t tokens[] = {1, 2, 5, 8, 21};
    for (size_t k = 0; k < sizeof all_types / sizeof all_types[0]; k++)
        for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++)
            one_product(all_types[k], 37, 256 * (1 + i % 2), tokens[i], 1), one_product(all_types[k], 16, 256, tokens[i], 16);
}

/* Rows of floats need not be a multiple of 32 long. */
static void odd_rows(void)
{
    one_product(GGUF_TYPE_F16, 5, 40, 3, 1);
    one_product(GGUF_TYPE_F32, 17, 33, 1, 1);
}

/* Every code is the highest and every byte of a token the largest: sums must not overflow. */
static void extremes(void)
{
    for (size_t k = 0; k < N_GOLDENS; k++)
        for (int sign = -1; sign <= 1; sign += 2) {
            const struct gguf_type_info *info = gguf_type_info(goldens[k].type);
            size_t rows = 16, cols = 256, bytes = rows * cols / info->block * info->bytes;
            uint8_t *data = malloc(bytes);
            float x[256], out[16];
            struct acts acts = {0};
            struct matrix m = {0};
            acts.wants_block = 1;
            memset(data, goldens[k].type == GGUF_TYPE_Q8_0 ? (sign < 0 ? 0x80 : 0x7f) : 0xff, bytes);
            for (size_t i = 0; i < bytes / info->bytes; i++)
                put_half(data + i * info->bytes, goldens[k].d, 0x7bff), put_half(data + i * info->bytes, goldens[k].m, 0xfbff);
            for (int i = 0; i < 256; i++)
                x[i] = (float)sign * 3;
            EXPECT(!matrix_create(ctx, goldens[k].type, data, rows, cols, &m) && !acts_resize(&acts, cols, 1), "no memory");
            acts_set(&acts, kernels, 0, x);
            matmul_run(ctx, kernels, &acts, &(struct product){&m, out, rows, NULL, 0}, 1);
            compare(data, &m, &acts, out, rows, NULL, 0);
            matrix_destroy(&m);
            acts_destroy(&acts);
            free(data);
        }
}

/* Several matrices at once give the bits that each gives alone. The gate of a feed-forward block is near that in double. */
static void together(void)
{
    enum { COLS = 64, TOKENS = 11 };
    static const size_t rows[3] = {48, 48, 33};
    uint8_t *data[3];
    struct matrix m[3] = {{0}};
    struct product p[3];
    struct acts acts = {0};
    float x[COLS], out[3][TOKENS * 48], alone[TOKENS * 48], gated[TOKENS * 48];
    acts.wants_block = 1;
    EXPECT(!acts_resize(&acts, COLS, TOKENS), "no memory");
    for (size_t t = 0; t < TOKENS; t++) {
        for (int i = 0; i < COLS; i++)
            x[i] = random_float();
        acts_set(&acts, kernels, t, x);
    }
    for (int i = 0; i < 3; i++) {
        data[i] = malloc(rows[i] * COLS);
        fill_weights(GGUF_TYPE_Q5_1, data[i], rows[i], COLS, 1);
        EXPECT(!matrix_create(ctx, GGUF_TYPE_Q5_1, data[i], rows[i], COLS, &m[i]), "no memory");
        p[i] = (struct product){&m[i], out[i], 48, NULL, 0};
    }
    matmul_run(ctx, kernels, &acts, p, 3);
    for (int i = 0; i < 3; i++) {
        matmul_run(ctx, kernels, &acts, &(struct product){&m[i], alone, 48, NULL, 0}, 1);
        for (size_t t = 0; t < TOKENS; t++)
            EXPECT(!memcmp(alone + 48 * t, out[i] + 48 * t, rows[i] * sizeof *alone), "matrix %d, token %zu", i, t);
    }
    matmul_gated(ctx, kernels, &acts, &m[0], &m[1], gated, 48);
    for (int i = 0; i < TOKENS * 48; i++) {
        double gate = out[0][i], want = gate / (1 + exp(-gate)) * out[1][i];
        EXPECT(fabs(gated[i] - want) <= 1e-6 * fabs(want) + 1e-30, "gate of %g: %g, not %g", gate, (double)gated[i], want);
    }
    acts_destroy(&acts);
    for (int i = 0; i < 3; i++)
        matrix_destroy(&m[i]), free(data[i]);
}

/* Rounding a token gives the nearest bytes; a block of zeros has scale 0; a number that is not finite makes the scale NaN. */
static void rounding(void)
{
    float x[32], zero[32] = {0};
    struct act_block b;
    for (int round = 0; round < 200; round++) {
        int sum = 0;
        float unit = ldexpf(1, (int)(random_bits() % 120) - 60);
        for (int i = 0; i < 32; i++)
            x[i] = random_float() * unit;
        kernels->round(&b, x);
        for (int i = 0; i < 32; sum += b.q[i++])
            EXPECT(fabs((double)x[i] - (double)b.scale * b.q[i]) <= 0.50001 * b.scale, "%g became %d of %g", (double)x[i],
                   b.q[i], (double)b.scale);
        EXPECT(b.sum == sum && b.half[0] + b.half[1] == sum && b.offset == b.scale * (float)sum, "sums %d, %d + %d", b.sum,
               b.half[0], b.half[1]);
    }
    kernels->round(&b, zero);
    EXPECT(b.scale == 0 && b.sum == 0 && b.q[31] == 0, "zeros have scale %g", (double)b.scale);
    for (int i = 0; i < 3; i++) {
        x[9] = i == 0 ? NAN : i == 1 ? INFINITY : -INFINITY;
        kernels->round(&b, x);
        EXPECT(isnan(b.scale) && isnan(b.offset), "a number that is not finite has scale %g", (double)b.scale);
    }
}

int main(void)
{
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    options.threads = 2;
    if (aura_ctx_create(&options, &ctx))
        return printf("FAIL context: %s\n", aura_last_error()), 1;
    RUN(all_types_have_numbers);
    RUN(types);
    RUN(floats);
    for (size_t i = 0; i < matmul_count; i++) {
        kernels = &matmul_list[i];
        random_state = 1;
        if (!kernels->round || !(aura_cpu_isas() & kernels->isa_flag))
            continue;
        EXPECT(matmul_kernels(kernels->isa_flag) == kernels, "%s is not chosen where it is all there is", kernels->isa);
        test_suffix = kernels->isa;
        RUN(products);
        RUN(odd_rows);
        RUN(extremes);
        RUN(together);
        RUN(rounding);
    }
    aura_ctx_destroy(ctx);
    return test_result();
}
