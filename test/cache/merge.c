/* aura_merge compared with double: merging the parts of an attention gives the whole, wherever it is split. */
#include "../base/modes.h"
#include "../oracle.h"

enum { ROWS = 7, DIM = 80, TOKENS = 60 };

static const aura_dtype dtypes[] = {AURA_F32, AURA_F16, AURA_BF16};

/* One attention result: rows of any type in `bytes`, and what they are as numbers. */
struct part {
    float lse[ROWS];
    double x[ROWS][DIM];
    uint32_t bytes[ROWS * DIM]; /* room for f32 */
};

static void part_store(struct part *p, aura_dtype dtype)
{
    for (size_t i = 0; i < ROWS * DIM; i++) {
        aura_store(p->bytes, dtype, i, (float)p->x[i / DIM][i % DIM]);
        p->x[i / DIM][i % DIM] = aura_load(p->bytes, dtype, i);
    }
}

static void part_random(struct part *p, aura_dtype dtype, float spread, uint64_t *seed)
{
    for (int r = 0; r < ROWS; r++) {
        p->lse[r] = spread * random_normal(seed);
        for (int d = 0; d < DIM; d++)
            p->x[r][d] = random_normal(seed);
    }
    part_store(p, dtype);
}

static aura_merge_args args_of(struct part *out, const struct part *a, const struct part *b, aura_dtype dtype)
{
    aura_merge_args args = {sizeof args, ROWS, DIM, dtype, a->bytes, b->bytes, a->lse, b->lse, out->bytes, out->lse};
    return args;
}

static void part_load(struct part *p, aura_dtype dtype)
{
    for (size_t i = 0; i < ROWS * DIM; i++)
        p->x[i / DIM][i % DIM] = aura_load(p->bytes, dtype, i);
}

static void merge(struct part *out, const struct part *a, const struct part *b, aura_dtype dtype)
{
    aura_merge_args args = args_of(out, a, b, dtype);
    EXPECT(aura_merge(ctx, &args) == AURA_OK, "%s", aura_last_error());
    part_load(out, dtype);
}

/* What merge computes, in double. */
static void want_row(double *x, double *lse, const struct part *a, const struct part *b, int r)
{
    double m = fmax(a->lse[r], b->lse[r]), wa = exp(a->lse[r] - m), wb = exp(b->lse[r] - m);
    for (int d = 0; d < DIM; d++)
        x[d] = (wa * a->x[r][d] + wb * b->x[r][d]) / (wa + wb);
    *lse = m + log(wa + wb);
}

static void is_what_double_says(void)
{
    static const float spreads[] = {0, 1, 30, 300, 1e30f};
    static struct part a, b, out;
    uint64_t seed = 1;
    for (int t = 0; t < 3; t++)
        for (int s = 0; s < 5; s++) {
            part_random(&a, dtypes[t], spreads[s], &seed);
            part_random(&b, dtypes[t], spreads[s], &seed);
            merge(&out, &a, &b, dtypes[t]);
            for (int r = 0; r < ROWS; r++) {
                double x[DIM], lse;
                want_row(x, &lse, &a, &b, r);
                EXPECT(fabs(out.lse[r] - lse) <= 0x1p-24 * fabs(lse) + 1e-12, "lse %g, not %g", (double)out.lse[r], lse);
                for (int d = 0; d < DIM; d++) {
                    double size = fmax(fabs(a.x[r][d]), fabs(b.x[r][d]));
                    EXPECT(fabs(out.x[r][d] - x[d]) <= 1.001 * oracle_unit(dtypes[t]) * size, "dtype %d row %d: %g, not %g",
                           t, r, out.x[r][d], x[d]);
                }
            }
        }
}

/* Tokens [first, end) of one attention. */
static void attend_part(struct part *p, const double *k, const double *v, const double *q, int first, int end, double sink)
{
    struct oracle o = {DIM, (size_t)(end - first), k + first * DIM, v + first * DIM, NULL, 0.2, 0, sink};
    for (int r = 0; r < ROWS; r++) {
        double lse;
        oracle_attend(p->x[r], &lse, NULL, &o, q + r * DIM);
        p->lse[r] = (float)lse;
    }
}

static void parts_make_the_whole(void)
{
    static double k[TOKENS * DIM], v[TOKENS * DIM], q[ROWS * DIM];
    static struct part left, right, whole, out;
    uint64_t seed = 2;
    for (int i = 0; i < TOKENS * DIM; i++)
        k[i] = random_normal(&seed), v[i] = random_normal(&seed);
    for (int i = 0; i < ROWS * DIM; i++)
        q[i] = random_normal(&seed);
    for (int sink = 0; sink < 2; sink++)
        for (int split = 0; split <= TOKENS; split++) { /* at both ends one part has no tokens */
            attend_part(&whole, k, v, q, 0, TOKENS, sink ? 1.5 : -INFINITY);
            attend_part(&left, k, v, q, 0, split, -INFINITY);
            attend_part(&right, k, v, q, split, TOKENS, sink ? 1.5 : -INFINITY);
            part_store(&left, AURA_F32), part_store(&right, AURA_F32);
            merge(&out, &left, &right, AURA_F32);
            for (int r = 0; r < ROWS; r++) {
                EXPECT(fabs(out.lse[r] - whole.lse[r]) < 2e-6, "split %d: lse %g", split, (double)out.lse[r]);
                for (int d = 0; d < DIM; d++)
                    EXPECT(fabs(out.x[r][d] - whole.x[r][d]) < 3e-6, "split %d row %d: %g, not %g", split, r,
                           out.x[r][d], whole.x[r][d]);
            }
        }
}

static void order_does_not_matter(void)
{
    static struct part a, b, c, ab, bc, ba, left, right;
    uint64_t seed = 3;
    for (int t = 0; t < 3; t++) {
        part_random(&a, dtypes[t], 3, &seed), part_random(&b, dtypes[t], 3, &seed), part_random(&c, dtypes[t], 3, &seed);
        merge(&ab, &a, &b, dtypes[t]), merge(&ba, &b, &a, dtypes[t]), merge(&bc, &b, &c, dtypes[t]);
        merge(&left, &ab, &c, dtypes[t]), merge(&right, &a, &bc, dtypes[t]);
        EXPECT(!memcmp(&ab, &ba, sizeof ab), "a + b is not b + a");
        for (int r = 0; r < ROWS; r++) {
            EXPECT(fabs(left.lse[r] - right.lse[r]) < 3e-6, "lse %g and %g", (double)left.lse[r], (double)right.lse[r]);
            for (int d = 0; d < DIM; d++)
                EXPECT(fabs(left.x[r][d] - right.x[r][d]) < 10 * oracle_unit(dtypes[t]), "%g and %g", left.x[r][d],
                       right.x[r][d]);
        }
    }
}

static void in_place(void)
{
    static struct part a, b, apart, same;
    uint64_t seed = 4;
    for (int t = 0; t < 3; t++)
        for (int way = 0; way < 4; way++) { /* out is a or b, out_lse is that of a or of b */
            part_random(&a, dtypes[t], 2, &seed), part_random(&b, dtypes[t], 2, &seed);
            merge(&apart, &a, &b, dtypes[t]);
            aura_merge_args args = args_of(&apart, &a, &b, dtypes[t]);
            args.out = way & 1 ? b.bytes : a.bytes;
            args.out_lse = way & 2 ? b.lse : a.lse;
            EXPECT(aura_merge(ctx, &args) == AURA_OK, "%s", aura_last_error());
            memcpy(same.bytes, args.out, sizeof same.bytes);
            EXPECT(!memcmp(same.bytes, apart.bytes, ROWS * DIM * aura_dtype_bytes(dtypes[t])), "rows, way %d", way);
            EXPECT(!memcmp(args.out_lse, apart.lse, sizeof apart.lse), "lse, way %d", way);
        }
}

static void empty_and_infinite_parts(void)
{
    static struct part a, b, out;
    uint64_t seed = 5;
    part_random(&a, AURA_F32, 1, &seed), part_random(&b, AURA_F32, 1, &seed);
    a.lse[0] = -INFINITY;
    b.lse[1] = -INFINITY;
    a.lse[2] = b.lse[2] = -INFINITY;
    ((float *)a.bytes)[3] = NAN;             /* row 0: merge does not read the row of an empty part */
    ((float *)b.bytes)[2 * DIM] = INFINITY;  /* row 2: both are empty */
    a.lse[3] = 3.4e38f, b.lse[3] = 3.4e38f;
    a.lse[4] = -3.4e38f, b.lse[4] = 3.4e38f;
    a.lse[5] = INFINITY; /* a sink of +inf */
    merge(&out, &a, &b, AURA_F32);
    for (int d = 0; d < DIM; d++) {
        EXPECT(out.x[0][d] == b.x[0][d] && out.x[1][d] == a.x[1][d] && out.x[2][d] == 0, "channel %d of an empty part", d);
        EXPECT(fabs(out.x[3][d] - (a.x[3][d] + b.x[3][d]) / 2) < 1e-6 && out.x[4][d] == b.x[4][d], "huge lse");
        EXPECT(out.x[5][d] == a.x[5][d], "+inf takes all");
    }
    EXPECT(out.lse[0] == b.lse[0] && out.lse[1] == a.lse[1] && out.lse[2] == -INFINITY, "lse of empty parts");
    EXPECT(out.lse[3] == 3.4e38f && out.lse[4] == 3.4e38f && out.lse[5] == INFINITY, "huge lse");
    aura_merge_args args = args_of(&out, &a, &b, AURA_F32);
    args.out_lse = NULL;
    EXPECT(aura_merge(ctx, &args) == AURA_OK, "without out_lse: %s", aura_last_error());
}

/* Rows that are not finite become NaN, and the status says so; all others are right. */
static void bad_rows(void)
{
    static struct part a, b, out, good;
    for (int t = 0; t < 3; t++)
        for (int kind = 0; kind < 5; kind++) {
            uint64_t seed = 6;
            part_random(&a, dtypes[t], 1, &seed), part_random(&b, dtypes[t], 1, &seed);
            merge(&good, &a, &b, dtypes[t]);
            if (kind == 0)
                a.lse[2] = NAN;
            else if (kind == 1)
                b.lse[2] = NAN, a.lse[2] = -INFINITY;
            else if (kind == 2)
                a.lse[2] = b.lse[2] = INFINITY;
            else
                aura_store(kind == 3 ? a.bytes : b.bytes, dtypes[t], 2 * DIM + 5, kind == 3 ? NAN : -INFINITY);
            aura_merge_args args = args_of(&out, &a, &b, dtypes[t]);
            EXPECT(aura_merge(ctx, &args) == AURA_NOT_FINITE && strstr(aura_last_error(), "1 of the rows") &&
                       strstr(aura_last_error(), "row 2"), "kind %d: %s", kind, aura_last_error());
            part_load(&out, dtypes[t]);
            for (int r = 0; r < ROWS; r++) {
                EXPECT(r == 2 ? isnan(out.lse[r]) : out.lse[r] == good.lse[r], "kind %d, lse of row %d: %g", kind, r,
                       (double)out.lse[r]);
                for (int d = 0; d < DIM; d++)
                    EXPECT(r == 2 ? isnan(out.x[r][d]) : out.x[r][d] == good.x[r][d], "kind %d row %d: %g", kind, r, out.x[r][d]);
            }
        }
}

static void float_modes_change_no_bit(void)
{
    static struct part a, b, want, got;
    unsigned long before = mode_get();
    uint64_t seed = 8;
    part_random(&a, AURA_F32, 2, &seed), part_random(&b, AURA_F32, 2, &seed);
    for (int d = 0; d < DIM; d++) /* one row of denormals */
        a.x[1][d] *= 0x1p-135, b.x[1][d] *= 0x1p-135;
    part_store(&a, AURA_F32), part_store(&b, AURA_F32);
    merge(&want, &a, &b, AURA_F32);
    EXPECT(want.x[1][0] != 0, "no denormals here, nothing is tested");
    for (int i = 0; i < N_MODES; i++) {
        aura_merge_args args = args_of(&got, &a, &b, AURA_F32);
        mode_set(modes[i]);
        aura_status status = aura_merge(ctx, &args);
        unsigned long after = mode_get();
        mode_set(before);
        EXPECT(!status && after == modes[i], "mode 0x%x came back as 0x%lx", modes[i], after);
        EXPECT(!memcmp(got.bytes, want.bytes, sizeof got.bytes) && !memcmp(got.lse, want.lse, sizeof got.lse),
               "mode 0x%x changed bits", modes[i]);
    }
}

/* Many rows are divided among threads: each is what a call of its own gives, and bad ones are counted over all of them. */
static void many_rows(void)
{
    enum { MANY = 64 * 5 + 9 };
    static float a[MANY * DIM], b[MANY * DIM], out[MANY * DIM], alone[DIM], lse[4][MANY];
    aura_ctx *several;
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    uint64_t seed = 9;
    for (int i = 0; i < MANY * DIM; i++)
        a[i] = random_normal(&seed), b[i] = random_normal(&seed);
    for (int i = 0; i < MANY; i++)
        lse[0][i] = random_normal(&seed), lse[1][i] = random_normal(&seed);
    options.threads = 3;
    EXPECT(!aura_ctx_create(&options, &several), "%s", aura_last_error());
    const aura_merge_args all = {sizeof all, MANY, DIM, AURA_F32, a, b, lse[0], lse[1], out, lse[2]};
    EXPECT(!aura_merge(several, &all), "%s", aura_last_error());
    for (int r = 0; r < MANY; r++) {
        const aura_merge_args one = {sizeof one,     1,          DIM,        AURA_F32, a + r * DIM,
                                     b + r * DIM, lse[0] + r, lse[1] + r, alone,    lse[3] + r};
        EXPECT(!aura_merge(ctx, &one) && !memcmp(alone, out + r * DIM, sizeof alone) && lse[2][r] == lse[3][r], "row %d", r);
    }
    a[70 * DIM + 1] = NAN, b[(MANY - 1) * DIM] = INFINITY;
    EXPECT(aura_merge(several, &all) == AURA_NOT_FINITE && strstr(aura_last_error(), "2 of the rows") &&
           strstr(aura_last_error(), "row 70"), "%s", aura_last_error());
    aura_ctx_destroy(several);
}

static struct part bad_a, bad_b, bad_out;
static void refused(aura_merge_args args, aura_status want, const char *text)
{
    const uint8_t *bytes = (const uint8_t *)&bad_out;
    aura_status status = aura_merge(ctx, &args);
    EXPECT(status == want && strstr(aura_last_error(), "aura_merge") && strstr(aura_last_error(), text), "%s: %s",
           text, aura_last_error());
    for (size_t i = 0; i < sizeof bad_out; i++)
        EXPECT(bytes[i] == 0x5a, "%s: an output was written", text);
}

static void misuse(void)
{
    uint64_t seed = 7;
    part_random(&bad_a, AURA_F32, 1, &seed), part_random(&bad_b, AURA_F32, 1, &seed);
    memset(&bad_out, 0x5a, sizeof bad_out);
    const aura_merge_args good = args_of(&bad_out, &bad_a, &bad_b, AURA_F32);
    aura_merge_args x;
    EXPECT(aura_merge(NULL, &good) == AURA_BAD_ARGUMENT && aura_merge(ctx, NULL) == AURA_BAD_ARGUMENT, "NULL");
    x = good, x.size = 7, refused(x, AURA_BAD_ARGUMENT, "size");
    x = good, x.dim = 0, refused(x, AURA_BAD_ARGUMENT, "dim 0");
    x = good, x.dim = 1025, refused(x, AURA_BAD_ARGUMENT, "dim 1025");
    x = good, x.dtype = (aura_dtype)4, refused(x, AURA_UNSUPPORTED, "dtype");
    x = good, x.rows = SIZE_MAX / 8, refused(x, AURA_TOO_LARGE, "fit in memory");
    x = good, x.a = NULL, refused(x, AURA_BAD_ARGUMENT, "a is NULL");
    x = good, x.b = NULL, refused(x, AURA_BAD_ARGUMENT, "b is NULL");
    x = good, x.a_lse = NULL, refused(x, AURA_BAD_ARGUMENT, "a_lse is NULL");
    x = good, x.b_lse = NULL, refused(x, AURA_BAD_ARGUMENT, "b_lse is NULL");
    x = good, x.out = NULL, refused(x, AURA_BAD_ARGUMENT, "out is NULL");
    x = good, x.rows = 1, x.b = (const char *)bad_b.bytes + 2, refused(x, AURA_BAD_ARGUMENT, "aligned");
    x = good, x.rows = 1, x.out_lse = (float *)((char *)bad_out.lse + 1), refused(x, AURA_BAD_ARGUMENT, "aligned");
    x = good, x.rows = 2, x.a = bad_out.bytes + 1, refused(x, AURA_BAD_ARGUMENT, "out overlaps a");
    x = good, x.rows = 2, x.b = bad_out.bytes + 2 * DIM - 1, refused(x, AURA_BAD_ARGUMENT, "out overlaps b");
    x = good, x.a_lse = (const float *)bad_out.bytes, refused(x, AURA_BAD_ARGUMENT, "out overlaps a_lse");
    x = good, x.b_lse = (const float *)bad_out.bytes + DIM, refused(x, AURA_BAD_ARGUMENT, "out overlaps b_lse");
    x = good, x.rows = 3, x.a_lse = bad_out.lse + 1, refused(x, AURA_BAD_ARGUMENT, "out_lse overlaps a_lse");
    x = good, x.rows = 3, x.b_lse = bad_out.lse + 2, refused(x, AURA_BAD_ARGUMENT, "out_lse overlaps b_lse");
    x = good, x.rows = 1, x.out_lse = (float *)bad_out.bytes, refused(x, AURA_BAD_ARGUMENT, "out_lse overlaps out");
    x = good, x.rows = 1, x.a = x.out_lse, x.dim = 2, refused(x, AURA_BAD_ARGUMENT, "out_lse overlaps a");
    x = good, x.rows = 1, x.b = x.out_lse, x.dim = 2, refused(x, AURA_BAD_ARGUMENT, "out_lse overlaps b");
    aura_merge_args nothing = AURA_MERGE_ARGS_INIT;
    nothing.dim = 64;
    EXPECT(aura_merge(ctx, &nothing) == AURA_OK, "no rows: %s", aura_last_error());
}

int main(void)
{
    if (aura_ctx_create(NULL, &ctx))
        return 1;
    RUN(is_what_double_says);
    RUN(parts_make_the_whole);
    RUN(order_does_not_matter);
    RUN(in_place);
    RUN(empty_and_infinite_parts);
    RUN(bad_rows);
    RUN(float_modes_change_no_bit);
    RUN(many_rows);
    RUN(misuse);
    aura_ctx_destroy(ctx);
    return test_result();
}
