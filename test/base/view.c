/* Rows of strided tensors, and the conversions of their elements. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "../../src/base/arguments.h"
#include "../../src/base/view.h"
#include "../test.h"

/* ---- conversions, against a definition with one branch per case -------------------------------------------------- */

static uint32_t plain_f32_from_f16(uint32_t h)
{
    uint32_t sign = (h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    if (exponent == 31)
        return sign | 0x7f800000 | mantissa << 13;
    if (exponent == 0)
        return sign | aura_f32_bits(ldexpf((float)mantissa, -24));
    return sign | (exponent + 112) << 23 | mantissa << 13;
}

static uint32_t plain_f16_from_f32(uint32_t bits)
{
    uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return sign | 0x7e00;
    if (magnitude >= 0x477ff000)
        return sign | 0x7c00;
    if (magnitude < 0x38800000) /* units of 2^-24, ties to even */
        return sign | (uint32_t)lrint(ldexp(aura_f32_from_bits(magnitude), 24));
    return sign | (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13;
}

static uint32_t plain_bf16_from_f32(uint32_t bits)
{
    if ((bits & 0x7fffffff) > 0x7f800000)
        return bits >> 16 | 0x40;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static void every_half(void)
{
    for (uint32_t h = 0; h < 65536; h++) {
        EXPECT(aura_f32_bits(aura_f32_from_f16((uint16_t)h)) == plain_f32_from_f16(h), "f16 0x%04x", h);
        EXPECT(aura_f32_bits(aura_f32_from_bf16((uint16_t)h)) == h << 16, "bf16 0x%04x", h);
    }
}

/* Every upper half of a float, with the lower halves at which rounding changes and some in between. */
static void many_floats(void)
{
    static const uint32_t around[] = {0, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x3000, 0x7fff, 0x8000, 0x8001, 0xefff,
                                      0xf000, 0xffff};
    for (uint32_t upper = 0; upper < 65536; upper++)
        for (uint32_t i = 0; i < 13 + 40; i++) {
            uint32_t bits = upper << 16 | (i < 13 ? around[i] : (i * 40503u + upper * 30011u) & 0xffff);
            float x = aura_f32_from_bits(bits);
            if (aura_f16_from_f32(x) != plain_f16_from_f32(bits) || aura_bf16_from_f32(x) != plain_bf16_from_f32(bits))
                EXPECT(0, "0x%08x: f16 0x%04x, bf16 0x%04x", bits, aura_f16_from_f32(x), aura_bf16_from_f32(x));
        }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static const aura_dtype dtypes[] = {AURA_F32, AURA_F16, AURA_BF16};

/* Any length at any place: what is beside a row is left alone. */
static void rows_of_every_length(void)
{
    for (int t = 0; t < 3; t++)
        for (size_t first = 0; first < 9; first++)
            for (size_t n = 0; n <= 70; n++) {
                uint32_t array[90];
                float in[70], out[72] = {0};
                for (size_t i = 0; i < n; i++)
                    in[i] = (float)i * 0.5f - 7;
                memset(array, 0x11, sizeof array);
                const uint8_t *bytes = (const uint8_t *)array;
                aura_store_row(array, dtypes[t], first, in, n);
                out[n] = 99;
                aura_load_row(out, array, dtypes[t], first, n);
                for (size_t i = 0; i < n; i++)
                    EXPECT(out[i] == in[i], "dtype %d, element %zu of %zu", t, i, n);
                EXPECT(out[n] == 99, "loaded more than %zu", n);
                for (size_t i = 0; i < sizeof array; i++) {
                    size_t at = i / aura_dtype_bytes(dtypes[t]);
                    if (at < first || at >= first + n)
                        EXPECT(bytes[i] == 0x11, "stored outside: dtype %d, %zu elements at %zu", t, n, first);
                }
            }
}

static void default_strides(void)
{
    static const struct {
        ptrdiff_t token, head, want_token, want_head;
    } cases[] = {{0, 0, 320, 64}, {1000, 0, 1000, 64}, {0, 70, 350, 70}, {0, -70, 350, -70}, {-9, 640, -9, 640}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        aura_input v = {NULL, AURA_F16, cases[i].token, cases[i].head, NULL};
        struct aura_strides s = aura_view_strides(&v, 5, 64);
        EXPECT(s.token == cases[i].want_token && s.head == cases[i].want_head, "case %zu: %td %td", i, s.token, s.head);
    }
}

/* Writes every row through one view and reads it back element by element. */
static void strides_of_either_sign(void)
{
    enum { T = 3, H = 2, D = 8, ROW = 11 };
    for (int t = 0; t < 3; t++)
        for (int layout = 0; layout < 8; layout++) {
            uint32_t array[T * H * ROW];
            ptrdiff_t head = layout & 1 ? T * ROW : ROW, token = layout & 1 ? ROW : H * ROW, first = 0;
            if (layout & 2)
                first += (T - 1) * token, token = -token;
            if (layout & 4)
                first += (H - 1) * head, head = -head;
            aura_view v = {(char *)array + first * (ptrdiff_t)aura_dtype_bytes(dtypes[t]), dtypes[t], token, head, NULL};
            aura_input in = aura_place_of(&v);
            struct aura_strides s = aura_view_strides(&in, H, D);
            float x[D];
            memset(array, 0, sizeof array);
            for (uint32_t i = 0; i < T * H; i++) {
                for (int d = 0; d < D; d++)
                    x[d] = (float)(i * D + (uint32_t)d + 1);
                aura_view_store(&v, s, i / H, i % H, x, D);
            }
            for (uint32_t i = 0; i < T * H; i++) {
                aura_view_load(x, &in, s, i / H, i % H, D);
                for (int d = 0; d < D; d++) {
                    float want = (float)(i * D + (uint32_t)d + 1);
                    size_t at = (size_t)(first + (ptrdiff_t)(i / H) * token + (ptrdiff_t)(i % H) * head + d);
                    EXPECT(x[d] == want && aura_load(array, dtypes[t], at) == want, "layout %d: %g", layout, (double)x[d]);
                }
            }
        }
}

/* Rows of a list are those of the tensor, in any order, for reading and for writing. */
static void listed_rows(void)
{
    enum { T = 4, H = 2, D = 8, ALL = 7 };
    static const uint32_t rows[T] = {5, 0, 6, 5};
    for (int t = 0; t < 3; t++)
        for (int backwards = 0; backwards < 2; backwards++) {
            uint32_t array[ALL * H * D] = {0};
            ptrdiff_t token = backwards ? -H * D : 0, first = backwards ? (ALL - 1) * H * D : 0;
            aura_view v = {(char *)array + first * (ptrdiff_t)aura_dtype_bytes(dtypes[t]), dtypes[t], token, 0, rows};
            aura_input in = aura_place_of(&v);
            struct aura_strides s = aura_view_strides(&in, H, D);
            for (size_t i = 0; i < T; i++)
                for (uint32_t h = 0; h < H; h++) {
                    float x[D], y[D];
                    for (int d = 0; d < D; d++)
                        x[d] = (float)(i * 20 + h * 10 + (size_t)d);
                    aura_view_store(&v, s, i, h, x, D);
                    aura_view_load(y, &in, s, i, h, D);
                    size_t at = (size_t)(backwards ? ALL - 1 - rows[i] : rows[i]) * H * D + h * D;
                    for (int d = 0; d < D; d++)
                        EXPECT(y[d] == x[d] && aura_load(array, dtypes[t], at + (size_t)d) == x[d], "row %u", rows[i]);
                }
        }
}

static void checks_of_rows(void)
{
    struct aura_call call = {NULL, "aura_test"};
    static const uint32_t good[] = {2, 3, 9}, twice[] = {2, 9, 9}, back[] = {2, 9, 3}, far[] = {1, UINT32_MAX, 0};
    float data[8];
    aura_input v = {data, AURA_F32, 0, 0, good};
    EXPECT(!aura_check_view_extent(call, "o", &v, 3, 2, 64) && !aura_check_view_apart(call, "o", &v, 3, 2, 64), "%s",
           aura_last_error());
    v.token_stride = 64, v.head_stride = 8 * 64; /* head by head: eight rows from the first to the last fit, seven do not */
    EXPECT(!aura_check_view_apart(call, "o", &v, 3, 2, 64), "%s", aura_last_error());
    v.head_stride = 7 * 64;
    EXPECT(aura_check_view_apart(call, "o", &v, 3, 2, 64) == AURA_BAD_ARGUMENT, "heads overlap");
    v.head_stride = v.token_stride = 0, v.rows = twice;
    EXPECT(aura_check_view_apart(call, "o", &v, 3, 2, 64) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "o.rows[2] is 9"), "%s",
           aura_last_error());
    v.rows = back;
    EXPECT(aura_check_view_apart(call, "o", &v, 3, 2, 64) == AURA_BAD_ARGUMENT, "rows that descend");
    v.rows = far, v.token_stride = PTRDIFF_MAX / 64;
    EXPECT(aura_check_view_extent(call, "o", &v, 3, 1, 64) == AURA_TOO_LARGE, "a row that is too far away");
    v.rows = NULL;
    EXPECT(!aura_check_view_extent(call, "o", &v, 3, 1, 64), "%s", aura_last_error());
}

static void checks(void)
{
    struct aura_call call = {NULL, "aura_test"};
    float data[8];
    aura_input good = {data, AURA_F32, 0, 0, NULL}, v;
    EXPECT(!aura_check_view(call, "k", &good), "%s", aura_last_error());
    EXPECT(aura_check_view(call, "k", NULL) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "k is NULL"), "%s",
           aura_last_error());
    v = good, v.data = NULL;
    EXPECT(aura_check_view(call, "k", &v) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "k.data"), "%s", aura_last_error());
    v = good, v.dtype = (aura_dtype)3;
    EXPECT(aura_check_view(call, "k", &v) == AURA_UNSUPPORTED && strstr(aura_last_error(), "k.dtype 3"), "%s", aura_last_error());
    v = good, v.data = (char *)data + 2;
    EXPECT(aura_check_view(call, "k", &v) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "aligned"), "%s", aura_last_error());
    v.dtype = AURA_BF16;
    EXPECT(!aura_check_view(call, "k", &v), "%s", aura_last_error());

    static const ptrdiff_t huge[] = {PTRDIFF_MAX, PTRDIFF_MIN, PTRDIFF_MIN + 1, PTRDIFF_MAX / 32};
    EXPECT(!aura_check_view_extent(call, "k", &good, UINT32_MAX, 8, 128), "%s", aura_last_error());
    for (int i = 0; i < 4; i++) {
        v = good, v.token_stride = huge[i];
        EXPECT(aura_check_view_extent(call, "k", &v, 9, 1, 64) == AURA_TOO_LARGE, "token stride %td", huge[i]);
        v = good, v.head_stride = huge[i];
        EXPECT(aura_check_view_extent(call, "k", &v, 1, 9, 64) == AURA_TOO_LARGE, "head stride %td", huge[i]);
    }
    EXPECT(aura_check_view_extent(call, "k", &good, SIZE_MAX, UINT32_MAX, 512) == AURA_TOO_LARGE, "too many tokens");
}

int main(void)
{
    RUN(every_half);
    RUN(many_floats);
    RUN(rows_of_every_length);
    RUN(default_strides);
    RUN(strides_of_either_sign);
    RUN(checks);
    RUN(listed_rows);
    RUN(checks_of_rows);
    return test_result();
}
