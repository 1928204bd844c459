/* The rules of src/rules.h against what design and format say of them, worked out by hand: no value here comes from calling
 * the rules, and loops count what the words say. */
#include "../src/rules.h"

#include "../src/base/dtype.h"
#include "test.h"

static const uint64_t far = (uint64_t)1 << 40; /* a token that 32 bits do not hold; a multiple of 256 */

/* "Tile j closes when len >= 32 (j + 1) + rollback." */
static void tiles_close(void)
{
    static const struct {
        uint64_t closed, len, rollback, after;
    } cases[] = {{0, 0, 16, 0},   {0, 15, 16, 0},  {0, 47, 16, 0},    {0, 48, 16, 32},  {32, 79, 16, 32},  {32, 80, 16, 64},
                 {0, 31, 0, 0},   {0, 32, 0, 32},  {32, 33, 0, 32},   {0, 63, 32, 0},   {0, 64, 32, 32},   {0, 200, 16, 160},
                 {50, 60, 16, 50}, {50, 79, 16, 50}, {50, 80, 16, 64}, {64, 64, 32, 64}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t after = aura_closed_after(cases[i].closed, cases[i].len, (uint32_t)cases[i].rollback, 1);
        EXPECT(after == cases[i].after, "case %zu: %llu", i, (unsigned long long)after);
    }
    for (uint32_t rollback = 0; rollback <= 32; rollback++)
        for (uint64_t len = 0; len < 300; len++) {
            uint64_t tiles = 0;
            while (len >= 32 * (tiles + 1) + rollback)
                tiles++;
            EXPECT(aura_closed_after(0, len, rollback, 1) == 32 * tiles, "%llu tokens, rollback %u", (unsigned long long)len,
                   rollback);
        }
    EXPECT(aura_closed_after(0, far + 48, 16, 1) == far + 32 && aura_closed_after(0, far + 47, 16, 1) == far, "far out");
    EXPECT(aura_closed_after(0, 7, 0, 0) == 7 && aura_closed_after(7, 8, 0, 0) == 8, "without open tokens each closes at once");
}

static void next_tile_closes(void)
{
    static const struct {
        uint64_t closed, rollback, len;
    } cases[] = {{0, 16, 48}, {32, 16, 80}, {50, 16, 80}, {63, 16, 80}, {64, 16, 112}, {0, 0, 32}, {31, 0, 32}, {32, 32, 96}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t len = aura_next_close(cases[i].closed, (uint32_t)cases[i].rollback);
        EXPECT(len == cases[i].len, "case %zu: %llu", i, (unsigned long long)len);
    }
    EXPECT(aura_next_close(far, 16) == far + 48, "far out");
}

/* "truncate(n) below closed: closed becomes n; the codes stay." Nobody writes to encoded tokens again; where nothing is
 * encoded, all tokens are settled. */
static void cuts(void)
{
    EXPECT(aura_closed_by_cut(64, 100) == 64 && aura_closed_by_cut(64, 64) == 64, "a cut above");
    EXPECT(aura_closed_by_cut(64, 50) == 50, "a cut below");
    EXPECT(aura_closed_by_cut(64, 0) == 0 && aura_closed_by_cut(far + 32, far + 7) == far + 7, "to nothing, and far out");
    EXPECT(aura_settled(100, 64, 1) == 64 && aura_settled(100, 64, 0) == 100 && aura_settled(far, 0, 1) == 0, "settled");
}

/* Open tokens are at their position modulo 64, pinned ones after the ring; without open tokens the ring is one row. */
static void rows_of_the_ring(void)
{
    static const struct {
        uint64_t token;
        uint32_t pinned, rows, row;
    } cases[] = {{0, 4, 68, 64}, {3, 4, 68, 67}, {4, 4, 68, 4},  {63, 4, 68, 63}, {64, 4, 68, 0}, {131, 4, 68, 3},
                 {0, 0, 64, 0},  {64, 0, 64, 0}, {127, 0, 64, 63}, {2, 4, 5, 3},   {4, 4, 5, 0},   {100, 4, 5, 0}, {9, 0, 1, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t row = aura_ring_row(cases[i].token, cases[i].pinned, cases[i].rows);
        EXPECT(row == cases[i].row, "case %zu: %u", i, row);
    }
    EXPECT(aura_ring_row(far + 5, 4, 68) == 5, "far out");
}

/* A page has a reference as soon as one token of it that is not pinned is encoded. */
static void references(void)
{
    EXPECT(!aura_page_has_reference(0, 0, 4) && !aura_page_has_reference(4, 0, 4) && aura_page_has_reference(5, 0, 4), "page 0");
    EXPECT(!aura_page_has_reference(0, 0, 0) && aura_page_has_reference(1, 0, 0), "page 0, nothing pinned");
    EXPECT(!aura_page_has_reference(256, 1, 4) && aura_page_has_reference(257, 1, 4), "page 1");
    EXPECT(!aura_page_has_reference(far, far / 256, 4) && aura_page_has_reference(far + 1, far / 256, 4), "far out");
    static const uint32_t packed[] = {2, 3, 4, 5, 6, 8}, plain[] = {9, 10, 11};
    for (size_t i = 0; i < 6; i++)
        EXPECT(aura_keeps_references(packed[i], 0) && aura_keeps_references(packed[i], AURA_NO_PINNED | AURA_NO_SEARCH) &&
                   !aura_keeps_references(packed[i], AURA_NO_REFERENCE), "%u bits", packed[i]);
    for (size_t i = 0; i < 3; i++)
        EXPECT(!aura_keeps_references(plain[i], 0), "plain keys of kind %u", plain[i]);
}

/* "Query token i of n attends to keys up to its own position. A window W keeps exactly the last W keys, the query's own
 * included." */
static void what_a_query_sees(void)
{
    static const struct {
        uint64_t len, query;
        uint32_t queries, not_causal;
        uint64_t end;
    } ends[] = {{10, 0, 1, 0, 10}, {10, 0, 3, 0, 8}, {10, 1, 3, 0, 9}, {10, 2, 3, 0, 10}, {10, 0, 3, 1, 10}, {3, 0, 3, 0, 1},
                {3, 0, 5, 0, 0},   {3, 1, 5, 0, 0},  {3, 2, 5, 0, 1},  {0, 0, 1, 0, 0},   {0, 0, 1, 1, 0}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        uint64_t end = aura_seen_end(ends[i].len, ends[i].queries, ends[i].query, ends[i].not_causal);
        EXPECT(end == ends[i].end, "case %zu: %llu", i, (unsigned long long)end);
    }
    EXPECT(aura_seen_end(far, 2, 0, 0) == far - 1 && aura_seen_begin(far, 5) == far - 5, "far out");
    static const uint64_t begins[][3] = { /* end, window, begin */
        {10, 0, 0}, {10, 1, 9}, {10, 4, 6}, {10, 10, 0}, {10, 11, 0}, {0, 3, 0}, {10, UINT64_MAX, 0}};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        EXPECT(aura_seen_begin(begins[i][0], begins[i][1]) == begins[i][2], "case %zu", i);
    const char *seen = "11....1111.."; /* begin 6, end 10, keep_first 2 */
    for (uint64_t t = 0; t < 12; t++)
        EXPECT(aura_sees(t, 6, 10, 2) == (seen[t] == '1'), "token %llu", (unsigned long long)t);
    EXPECT(aura_sees(9, 6, 10, 20) && !aura_sees(10, 6, 10, 20) && !aura_sees(0, 1, 10, 0), "keep_first beyond the end, and none");
}

/* "auto means one plane for a side of up to 5 bits and two for 6 to 8." */
static void planes(void)
{
    static const uint32_t wanted[][2] = {{2, 1}, {3, 1}, {4, 1}, {5, 1}, {6, 2}, {8, 2}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        EXPECT(aura_planes_of(wanted[i][0], 0) == wanted[i][1] && aura_planes_of(wanted[i][0], 1) == 1 &&
                   aura_planes_of(wanted[i][0], 2) == 2, "%u bits", wanted[i][0]);
}

/* "A row takes one plane for keys up to the scale with which its logit moves by a nat": log2 e over |unit| * k_step * the largest
 * level * step * the sum of |lo|, not rounded up. Here k_step is 1/2 and the largest level -12. */
static void limits(void)
{
    struct aura_side side = {.kind = 2, .step = 0.5f, .mul = 1, .level = {-12, -3, 3, 9}}, five = {.kind = 5, .step = 0.25f,
        .mul = 2, .add = -31}, six = {.kind = 6, .step = 0.5f, .mul = 2, .add = -63}, plain = {.kind = 10};
    const float unit = 2 * AURA_LOG2_E; /* softmax scale 2: a nat is 1 / (2 * 6) of step * sum of |lo| * scale */
    float call = aura_limit_of_call(&side, unit, 0);
    EXPECT(fabsf(call - 1 / 12.f) < 1e-7f && aura_limit_of_call(&side, -unit, 0) == call, "%g", (double)call);
    EXPECT(fabsf(aura_limit_of_call(&five, unit, 0) - 2 / 31.f) < 1e-7f, "31 * 1/4 * 2");
    EXPECT(isinf(aura_limit_of_call(&side, unit, 1)) && isinf(aura_limit_of_call(&side, unit, 2)), "somebody asked");
    EXPECT(isinf(aura_limit_of_call(&six, unit, 0)) && isinf(aura_limit_of_call(&plain, unit, 0)), "two planes; no codes");
    EXPECT(isinf(aura_limit_of_call(&side, 0, 0)) && aura_limit_of_call(&side, INFINITY, 0) == 0, "unit 0 and infinite");
    static const struct {
        float call, step;
        uint32_t lower, limit;
    } cases[] = {{1, 0.5f, 2, 0x3c00},        {1, 1, 3, 0x3555},          {1, 0.125f, 4, 0x4000},    {65503, 1, 1, 0x7bfe},
                 {65504, 1, 1, 0x7bff},       {1e30f, 1, 1, 0x7bff},      {INFINITY, 1, 1, 0x7bff},  {1, 0, 0, 0x7bff},
                 {INFINITY, 0, 0, 0x7bff},    {0, 1, 1, 0},               {1, 1e38f, 100, 0},        {0x1p-14f, 1, 1, 0x0400},
                 {0x1.ffcp-15f, 1, 1, 0x03ff}, {0x1p-24f, 1, 1, 1},       {0x1.fp-25f, 1, 1, 0},     {0x1.0007p-2f, 1, 1, 0x3400}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t limit = aura_limit_of_row(cases[i].call, cases[i].step, cases[i].lower);
        EXPECT(limit == cases[i].limit, "case %zu: %#x", i, limit);
    }
    EXPECT(aura_takes_both(0x3c01, 0x3c00) && !aura_takes_both(0x3c00, 0x3c00) && !aura_takes_both(0, 0), "the limit itself");
    EXPECT(aura_takes_both(0xbc01, 0x3c00) && !aura_takes_both(0x8000, 0), "the sign does not matter");
    for (uint32_t i = 0; i < 65536; i += 7)
        for (uint32_t limit = 0; limit <= AURA_NO_LIMIT; limit += limit < 5 ? 1 : 997) {
            uint64_t four = aura_four_above(i | (uint64_t)(65535 - i) << 16 | (uint64_t)i << 48, aura_room_of_limit(limit));
            int first = (i & 0x7fff) > limit, second = ((65535 - i) & 0x7fff) > limit;
            EXPECT((four >> 15 & 1) == (uint64_t)first && (four >> 31 & 1) == (uint64_t)second && !(four >> 47 & 1) &&
                       four >> 63 == (uint64_t)first && aura_some_above(four) == (first || second), "%#x, %#x", i, limit);
        }
    EXPECT(AURA_NO_LIMIT == aura_f16_from_f32(65504) && AURA_MOST_MOVED == 1, "constants");
}

/* The largest f16 is 65504, and half of its last bit 16; of bf16 0x1.fep127 and 0x1p119. */
static void numbers(void)
{
    EXPECT(aura_first_infinite(AURA_F16) == 65504 + 16, "f16");
    EXPECT(aura_f16_from_f32(65520) == 0x7c00 && aura_f16_from_f32(nextafterf(65520, 0)) == 0x7bff, "as f16 rounds");
    EXPECT(aura_first_infinite(AURA_BF16) == 0x1.fep127f + 0x1p119f, "bf16");
    EXPECT(aura_bf16_from_f32(0x1.ffp127f) == 0x7f80, "as bf16 rounds");
    EXPECT(aura_bf16_from_f32(nextafterf(0x1.ffp127f, 0)) == 0x7f7f, "as bf16 rounds");
    EXPECT(aura_first_infinite(AURA_F32) == INFINITY, "f32");
    EXPECT(AURA_LOG2_E == (float)(1 / log(2)) && AURA_LN_2 == (float)log(2) && AURA_LONGEST == 60000, "constants");
    EXPECT(aura_dtype_of_kind(9) == AURA_F32 && aura_dtype_of_kind(10) == AURA_F16 && aura_dtype_of_kind(11) == AURA_BF16,
           "types");
    EXPECT(aura_plain_bytes(9) == 4 && aura_plain_bytes(10) == 2 && aura_plain_bytes(11) == 2, "bytes");
    EXPECT(aura_is_good_sum(0x1p-149f) && aura_is_good_sum(1) && aura_is_good_sum(0x1p127f), "good sums");
    EXPECT(!aura_is_good_sum(0) && !aura_is_good_sum(-1) && !aura_is_good_sum(NAN) && !aura_is_good_sum(INFINITY) &&
               !aura_is_good_sum(nextafterf(0x1p127f, INFINITY)), "bad sums");
    EXPECT(aura_logit_scale(0, 64) == 0.125f && aura_logit_scale(0, 256) == 0.0625f, "the usual scale");
    EXPECT(aura_logit_scale(-0.5f, 64) == -0.5f, "the scale that was asked for");
}

static void options(void)
{
    EXPECT(aura_are_good_options(1, 0, 0, 0) && aura_are_good_options(-2, 50, 2, 1), "good ones");
    EXPECT(!aura_are_good_options(NAN, 0, 0, 0) && !aura_are_good_options(-INFINITY, 0, 0, 0), "scale");
    EXPECT(!aura_are_good_options(1, -1, 0, 0) && !aura_are_good_options(1, NAN, 0, 0) && !aura_are_good_options(1, INFINITY, 0, 0),
           "softcap");
    EXPECT(!aura_are_good_options(1, 0, 3, 0) && !aura_are_good_options(1, 0, 0, 2), "planes, not_causal");
}

static void windows_of_calls(void)
{
    EXPECT(aura_window_of_call(0, 0) == 0 && aura_window_of_call(0, 300) == 300 && aura_window_of_call(7, 300) == 7 &&
           aura_window_of_call(7, 0) == 7, "the window of a call");
    EXPECT(aura_takes_at_once(0, 0, 1000000) && aura_takes_at_once(300, 40, 40) && !aura_takes_at_once(300, 40, 41),
           "tokens at once");
}

int main(void)
{
    RUN(tiles_close);
    RUN(next_tile_closes);
    RUN(cuts);
    RUN(rows_of_the_ring);
    RUN(references);
    RUN(what_a_query_sees);
    RUN(planes);
    RUN(limits);
    RUN(numbers);
    RUN(options);
    RUN(windows_of_calls);
    return test_result();
}
