/* Row calls on the threads of a context, wide rows, odd dims, keys and values of different dims, no tokens, undo in one call. */
#include "aura_kernels.h"

/* ---- threads ---------------------------------------------------------------------------------------------------------- */

/* An executor that runs the last item first, and counts. */
static size_t items_seen;

static void run_backwards(void *user, size_t items, void (*item)(void *work, size_t i), void *work)
{
    (void)user;
    items_seen += items;
    for (size_t i = items; i-- > 0;)
        item(work, i);
}

/* All outputs of the row functions, at sizes that are worth more than one thread. */
struct outputs {
    float dequant[2 * 700 * 128], score[8 * 700], value[8 * 128], o[8 * 3 * 128], m[24], l[24], pass2[8 * 128], sdpa[8 * 128];
    float temp[8 * 4 * 130], reduced[8 * 128], vec[8 * 128], rotated[700 * 128], undone[700 * 128], decoded[700 * 128];
    float scales[700];
    uint8_t packed[700 * 64];
};
enum { CALLS = 13 };

static void expect_ok(aura_status status, const char *what)
{
    EXPECT(!status, "%s: %s", what, aura_last_error());
}

/* Runs everything; items[i], where it is not NULL, becomes the number of items of call i. */
static void run_all(const aura_ctx *c, const struct problem *p, struct outputs *x, size_t *items)
{
    aura_rotation r = AURA_ROTATION_INIT;
    aura_codebook book;
    aura_codebook_get(AURA_TABLE_EXACT, 4, &book);
    r.dim = 128;
    aura_dequant_args d = {sizeof d, p->k.packed, 128, 2, 700, x->dequant, AURA_F32, 0};
    aura_score_args s = {sizeof s, p->k.packed, 128, 8, 2, 700, p->q, x->score, AURA_F32, AURA_F32, 0};
    aura_value_args v = {sizeof v, p->v.packed, 128, 8, 2, 700, x->score, x->value, AURA_F32, AURA_F32, 0, -1e30f};
    aura_flash_p1_args a = {sizeof a, p->k.packed, p->v.packed, 128, 8, 2, 700, p->q, AURA_F32, AURA_F32, x->o, x->m, x->l,
                            3, 250, 0, 0, 0};
    aura_flash_pass2_args b = AURA_FLASH_PASS2_ARGS_INIT;
    aura_flash_sdpa_args f = AURA_FLASH_SDPA_ARGS_INIT;
    aura_flash_attn_vec_args g = AURA_FLASH_ATTN_VEC_ARGS_INIT;
    aura_flash_attn_vec_reduce_args h = AURA_FLASH_ATTN_VEC_REDUCE_ARGS_INIT;
    aura_rotate_args t = {sizeof t, &r, 700, x->dequant, x->rotated, AURA_F32, AURA_F32, 0, 0}, u = t;
    aura_encode_args e = AURA_ENCODE_ARGS_INIT;
    aura_decode_args z = AURA_DECODE_ARGS_INIT;
    b.dim = 128, b.q_heads = 8, b.num_blocks = 3, b.o = x->o, b.m = x->m, b.l = x->l, b.out = x->pass2;
    f.keys = p->k.packed, f.values = p->v.packed, f.dim = 128, f.q_heads = 8, f.kv_heads = 2, f.tokens = 700, f.q = p->q,
        f.out = x->sdpa;
    g.k.rows = g.v.rows = x->dequant, g.dim = 128, g.q_heads = 8, g.kv_heads = 2, g.tokens = g.capacity = 700, g.q = p->q,
        g.out = x->vec;
    h.dim = 128, h.rows = 8, h.nwg = 4, h.temp = x->temp, h.out = x->reduced;
    u.in = x->rotated, u.out = x->undone;
    e.codebook = &book, e.rotation = &r, e.dim = 128, e.rows = 700, e.in = x->dequant, e.packed = x->packed, e.scales = x->scales;
    z.codebook = &book, z.rotation = &r, z.dim = 128, z.rows = 700, z.packed = x->packed, z.scales = x->scales, z.out = x->decoded;
    for (int call = 0; call < CALLS; call++) {
        items_seen = 0;
        switch (call) {
        case 0: expect_ok(aura_dequant(c, &d), "dequant"); break;
        case 1: expect_ok(aura_score(c, &s), "score"); break;
        case 2: expect_ok(aura_value(c, &v), "value"); break;
        case 3: expect_ok(aura_flash_p1(c, &a), "p1"); break;
        case 4: expect_ok(aura_flash_pass2(c, &b), "pass2"); break;
        case 5: expect_ok(aura_flash_sdpa(c, &f), "sdpa"); break;
        case 6: expect_ok(aura_flash_attn_vec(c, &g), "vec"); break;
        case 7: g.temp = x->temp, g.nwg = 4; expect_ok(aura_flash_attn_vec(c, &g), "vec, 4 workgroups"); break;
        case 8: expect_ok(aura_flash_attn_vec_reduce(c, &h), "reduce"); break;
        case 9: expect_ok(aura_rotate(c, &t), "rotate"); break;
        case 10: expect_ok(aura_undo(c, &u), "undo"); break;
        case 11: expect_ok(aura_encode(c, &e), "encode"); break;
        default: expect_ok(aura_decode(c, &z), "decode"); break;
        }
        if (items)
            items[call] = items_seen;
    }
}

static void threads_change_no_bit(void)
{
    static struct outputs alone, other;
    /* of pass 2 and the reduce, eight rows are not worth a second thread */
    static const size_t least[CALLS] = {6, 2, 2, 6, 0, 2, 2, 8, 0, 11, 11, 22, 11};
    struct problem p = {4, 4, 128, 8, 2, 700, 700, 700, 0, 0, 8, AURA_F32, AURA_F32, AURA_F32, NO_SIDE, NO_SIDE, NULL, NULL};
    const aura_executor executor = {run_backwards, NULL};
    finish_problem(&p, 0, 0, 0, 0);
    run_all(ctx, &p, &alone, NULL);
    for (uint32_t threads = 0; threads <= 3; threads++) { /* 0: an executor */
        aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
        aura_ctx *many;
        size_t items[CALLS];
        options.isa_mask = aura_ctx_isas(ctx), options.threads = threads;
        if (!threads)
            options.executor = executor;
        EXPECT(!aura_ctx_create(&options, &many), "%s", aura_last_error());
        memset(&other, 0x5a, sizeof other);
        run_all(many, &p, &other, items);
        EXPECT(!memcmp(&alone, &other, sizeof alone), "%u threads: other bits", threads);
        for (int i = 0; i < CALLS && !threads; i++)
            EXPECT(items[i] >= least[i], "call %d has %zu items, not %zu", i, items[i], least[i]);
        aura_ctx_destroy(many);
    }
    free_problem(&p);
}

/* The first bad row and their number are the same whoever finds them first; encode says which row it was. */
static void bad_rows_are_named_whoever_finds_them(void)
{
    static float o[512 * 2 * 64], m[512 * 2], l[512 * 2], out[512 * 64];
    const aura_executor executor = {run_backwards, NULL};
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    aura_flash_pass2_args a = AURA_FLASH_PASS2_ARGS_INIT;
    aura_encode_args e = AURA_ENCODE_ARGS_INIT;
    aura_codebook book;
    aura_ctx *many;
    static uint8_t packed[1024 * 32];
    static float scales[1024];
    options.executor = executor;
    EXPECT(!aura_ctx_create(&options, &many), "%s", aura_last_error());
    memset(o, 0, sizeof o);
    for (int i = 0; i < 1024; i++)
        l[i] = i == 2 * 100 || i == 2 * 37 + 1 || i == 2 * 501 ? NAN : 1;
    a.dim = 64, a.q_heads = 512, a.num_blocks = 2, a.o = o, a.m = m, a.l = l, a.out = out;
    EXPECT(aura_flash_pass2(many, &a) == AURA_NOT_FINITE && strstr(aura_last_error(), "3 of the rows") &&
           strstr(aura_last_error(), "row 37"), "%s", aura_last_error());
    o[900 * 64 + 3] = INFINITY, o[70 * 64 + 5] = NAN;
    aura_codebook_get(AURA_TABLE_EXACT, 4, &book);
    packed[0] = 0x5a;
    e.codebook = &book, e.dim = 64, e.rows = 1024, e.in = o, e.packed = packed, e.scales = scales;
    EXPECT(aura_encode(many, &e) == AURA_BAD_VALUE && strstr(aura_last_error(), "in[70][5]"), "%s", aura_last_error());
    EXPECT(packed[0] == 0x5a, "wrote before it had looked at all rows");
    aura_ctx_destroy(many);
}

/* ---- rows that are wider than their codes ------------------------------------------------------------------------------ */

/* The same side with `extra` bytes, all ones, behind each row. */
static uint8_t *widen(aura_packed *p, uint32_t dim, size_t rows, size_t extra)
{
    size_t bytes = aura_row_bytes(dim, p->bits), wide = bytes + extra;
    uint8_t *codes = malloc(rows * wide);
    memset(codes, 0xff, rows * wide);
    for (size_t r = 0; r < rows; r++)
        memcpy(codes + r * wide, (const uint8_t *)p->codes + r * bytes, bytes);
    p->codes = codes, p->packed_stride = wide;
    return codes;
}

static void rows_wider_than_their_codes(void)
{
    for (uint32_t bits = 3; bits <= 8; bits += bits == 6 ? 2 : 1)
        for (size_t extra = 1; extra < 80; extra += 39) {
            struct problem p = {bits, 4, 72, 4, 2, 9, 11, 9, 0, 0, 4, AURA_F32, AURA_F32, AURA_F32, NO_SIDE, NO_SIDE, NULL, NULL};
            float narrow[4 * 72], wide[4 * 72], rows[2][2 * 9 * 72];
            aura_flash_sdpa_args a = AURA_FLASH_SDPA_ARGS_INIT;
            aura_dequant_args d = AURA_DEQUANT_ARGS_INIT;
            finish_problem(&p, 0, 0, 0, 0);
            a.keys = p.k.packed, a.values = p.v.packed, a.dim = 72, a.q_heads = 4, a.kv_heads = 2, a.tokens = 9, a.q = p.q;
            a.out = narrow;
            d.rows = p.k.packed, d.dim = 72, d.kv_heads = 2, d.tokens = 9, d.out = rows[0];
            expect_ok(aura_flash_sdpa(ctx, &a), "narrow"), expect_ok(aura_dequant(ctx, &d), "narrow");
            uint8_t *k = widen(&a.keys, 72, 2 * 11, extra), *v = widen(&a.values, 72, 2 * 9, extra + 3);
            a.out = wide, d.rows = a.keys, d.out = rows[1];
            expect_ok(aura_flash_sdpa(ctx, &a), "wide"), expect_ok(aura_dequant(ctx, &d), "wide");
            EXPECT(!memcmp(narrow, wide, sizeof wide) && !memcmp(rows[0], rows[1], sizeof rows[0]), "%u bits and %zu bytes", bits,
                   extra);
            a.keys.packed_stride = aura_row_bytes(72, bits) - 1;
            EXPECT(aura_flash_sdpa(ctx, &a) == AURA_BAD_ARGUMENT, "rows that overlap");
            free(k), free(v), free_problem(&p);
        }
}

/* ---- any dim of values --------------------------------------------------------------------------------------------------- */

static void value_of_any_dim(void)
{
    enum { T = 75 };
    static const uint32_t dims[] = {1, 2, 3, 4, 5, 7, 9, 12, 15, 17, 23, 33, 50, 63, 65, 100, 127, 129, 511, 1000, 1023};
    for (uint32_t bits = 2; bits <= 8; bits += bits == 6 ? 2 : 1)
        for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
            uint32_t dim = dims[i];
            struct side v = make_side(bits, dim, 2, T, T, 0, 0, 0.4f, 0.07f, AURA_F32, AURA_F32);
            uint8_t *codes = malloc((size_t)2 * T * aura_row_bytes(dim, bits)); /* not a byte more, for the sanitizer */
            float w[6 * T], *out = malloc(6 * dim * sizeof *out);
            aura_value_args a = AURA_VALUE_ARGS_INIT;
            for (int k = 0; k < 6 * T; k++)
                w[k] = (float)random_uniform(&state);
            memcpy(codes, v.codes, (size_t)2 * T * aura_row_bytes(dim, bits));
            a.values = v.packed, a.values.codes = codes, a.dim = dim, a.q_heads = 6, a.kv_heads = 2, a.tokens = T;
            a.weights = w, a.out = out;
            expect_ok(aura_value(ctx, &a), "value");
            for (uint32_t h = 0; h < 6; h++)
                for (uint32_t d = 0; d < dim; d++) {
                    double sum = 0, size = 0;
                    for (size_t t = 0; t < T; t++) {
                        double term = w[h * T + t] * v.x[(h / 3 * T + t) * dim + d];
                        sum += term, size += fabs(term);
                    }
                    EXPECT(fabs(out[h * dim + d] - sum) <= 2e-6 * size, "%u bits, dim %u: [%u][%u] is %g, not %g", bits, dim, h, d,
                           (double)out[h * dim + d], sum);
                }
            a.dim = 0;
            EXPECT(aura_value(ctx, &a) == AURA_BAD_ARGUMENT, "dim 0");
            a.dim = AURA_MAX_DIM + 1;
            EXPECT(aura_value(ctx, &a) == AURA_BAD_ARGUMENT, "dim 1025");
            free(codes), free(out), free_side(&v);
        }
}

/* ---- keys and values of different dims ------------------------------------------------------------------------------------- */

/* What head h of q[.][k_dim] gets of keys k[kv][T][k_dim] and values v[kv][T][v_dim]. */
static void expect_dims(double *out, double *size, const double *k, const double *v, const float *q, uint32_t k_dim, uint32_t v_dim,
                        size_t tokens, double scale)
{
    uint32_t dim = k_dim > v_dim ? k_dim : v_dim;
    double *kp = calloc(tokens * dim, 8), *vp = calloc(tokens * dim, 8), qp[AURA_MAX_DIM] = {0}, row[AURA_MAX_DIM], lse;
    struct oracle o = {dim, tokens, kp, vp, NULL, scale, 0, -INFINITY};
    for (size_t t = 0; t < tokens; t++) {
        memcpy(kp + t * dim, k + t * k_dim, k_dim * 8);
        memcpy(vp + t * dim, v + t * v_dim, v_dim * 8);
    }
    for (uint32_t d = 0; d < k_dim; d++)
        qp[d] = q[d];
    oracle_attend(row, &lse, size, &o, qp);
    memcpy(out, row, v_dim * 8);
    free(kp), free(vp);
}

static void compare_dims(const float *got, const double *k, const double *v, const float *q, uint32_t k_dim, uint32_t v_dim,
                         size_t tokens, double scale, const char *what)
{
    for (size_t h = 0; h < 4; h++) {
        double want[AURA_MAX_DIM], size;
        expect_dims(want, &size, k + h / 2 * tokens * k_dim, v + h / 2 * tokens * v_dim, q + h * k_dim, k_dim, v_dim, tokens,
                    scale);
        for (uint32_t d = 0; d < v_dim; d++)
            EXPECT(fabs(got[h * v_dim + d] - want[d]) <= 1e-5 * size, "%s %u/%u: [%zu][%u] is %g, not %g", what, k_dim, v_dim, h, d,
                   (double)got[h * v_dim + d], want[d]);
    }
}

static void dims_of_packed_rows(void)
{
    static const uint32_t dims[][2] = {{64, 128}, {128, 64}, {192, 128}, {72, 8}, {8, 1024}};
    for (int i = 0; i < 5; i++) {
        enum { T = 70 };
        uint32_t k_dim = dims[i][0], v_dim = dims[i][1];
        struct side k = make_side(4, k_dim, 2, T, T, 0, 0, 0.3f, 0.05f, AURA_F32, AURA_F32);
        struct side v = make_side(3, v_dim, 2, T, T, 0, 0, 0.4f, 0.07f, AURA_F32, AURA_F32);
        float *q = malloc(4 * k_dim * 4), *out = malloc(4 * v_dim * 4), *o = malloc(4 * 3 * v_dim * 4), m[12], l[12];
        uint8_t signs[AURA_MAX_DIM / 8] = {0x5a, 3};
        aura_rotation undo = AURA_ROTATION_INIT;
        aura_flash_sdpa_args a = AURA_FLASH_SDPA_ARGS_INIT;
        aura_flash_p1_args b = AURA_FLASH_P1_ARGS_INIT;
        aura_flash_pass2_args c = AURA_FLASH_PASS2_ARGS_INIT;
        fill_vector(q, 4 * k_dim, NORMAL, &state);
        a.keys = k.packed, a.values = v.packed, a.dim = k_dim, a.v_dim = v_dim, a.q_heads = 4, a.kv_heads = 2, a.tokens = T;
        a.q = q, a.out = out;
        expect_ok(aura_flash_sdpa(ctx, &a), "sdpa");
        compare_dims(out, k.x, v.x, q, k_dim, v_dim, T, 1, "sdpa");
        b.keys = k.packed, b.values = v.packed, b.dim = k_dim, b.v_dim = v_dim, b.q_heads = 4, b.kv_heads = 2, b.tokens = T;
        b.q = q, b.o = o, b.m = m, b.l = l, b.num_blocks = 3, b.block_size = 30;
        c.dim = v_dim, c.q_heads = 4, c.num_blocks = 3, c.o = o, c.m = m, c.l = l, c.out = out;
        expect_ok(aura_flash_p1(ctx, &b), "p1"), expect_ok(aura_flash_pass2(ctx, &c), "pass2");
        compare_dims(out, k.x, v.x, q, k_dim, v_dim, T, 1, "p1 + pass2");
        undo.dim = v_dim, undo.signs = signs, a.undo = &undo; /* of the output, so of the values' dim */
        expect_ok(aura_flash_sdpa(ctx, &a), "undo");
        undo.dim = k_dim;
        EXPECT(aura_flash_sdpa(ctx, &a) == AURA_BAD_ARGUMENT, "undo of the keys' dim");
        free(q), free(out), free(o), free_side(&k), free_side(&v);
    }
}

/* Numbers, and the same as double. */
static float *numbers(size_t n, double **same)
{
    float *x = malloc(n * sizeof *x);
    *same = malloc(n * sizeof **same);
    fill_vector(x, n, NORMAL, &state);
    for (size_t i = 0; i < n; i++)
        (*same)[i] = x[i];
    return x;
}

static void dims_and_undo_of_vec(void)
{
    static const uint32_t dims[][2] = {{64, 128}, {128, 64}, {576, 512}, {16, 1024}, {256, 256}};
    for (int i = 0; i < 5; i++) {
        enum { T = 70 };
        uint32_t k_dim = dims[i][0], v_dim = dims[i][1];
        double *k64, *v64, *q64;
        float *k = numbers(2 * T * k_dim, &k64), *v = numbers(2 * T * v_dim, &v64), *q = numbers(4 * k_dim, &q64);
        float *out = malloc(4 * v_dim * 4), *fused = malloc(4 * v_dim * 4), *temp = malloc(4 * 3 * (v_dim + 2) * 4);
        uint8_t signs[AURA_MAX_DIM / 8];
        aura_rotation undo = AURA_ROTATION_INIT;
        aura_flash_attn_vec_args a = AURA_FLASH_ATTN_VEC_ARGS_INIT;
        aura_flash_attn_vec_reduce_args r = AURA_FLASH_ATTN_VEC_REDUCE_ARGS_INIT;
        aura_signs(7, 1, v_dim, signs);
        undo.dim = v_dim, undo.signs = signs;
        aura_rotate_args two_step = {sizeof two_step, &undo, 4, out, out, AURA_F32, AURA_F32, 0, 0};
        a.k.rows = k, a.v.rows = v, a.dim = k_dim, a.v_dim = v_dim, a.q_heads = 4, a.kv_heads = 2, a.tokens = a.capacity = T;
        a.q = q, a.temp = temp, a.nwg = 3, a.scale = 0.1f;
        r.dim = v_dim, r.rows = 4, r.nwg = 3, r.temp = temp, r.out = out;
        expect_ok(aura_flash_attn_vec(ctx, &a), "vec"), expect_ok(aura_flash_attn_vec_reduce(ctx, &r), "reduce");
        compare_dims(out, k64, v64, q, k_dim, v_dim, T, 0.1f, "vec, 3 workgroups");
        a.undo = &undo;
        EXPECT(aura_flash_attn_vec(ctx, &a) == AURA_BAD_ARGUMENT, "undo of partial results");
        a.temp = NULL, a.out = fused;
        expect_ok(aura_flash_attn_vec(ctx, &a), "undo");
        a.undo = NULL, a.out = out;
        expect_ok(aura_flash_attn_vec(ctx, &a), "vec");
        compare_dims(out, k64, v64, q, k_dim, v_dim, T, 0.1f, "vec");
        expect_ok(aura_undo(ctx, &two_step), "undo");
        EXPECT(!memcmp(out, fused, 4 * v_dim * 4), "dim %u: undo in the call and after it differ", v_dim);
        a.undo = &undo, a.temp = temp, a.nwg = 1; /* finished rows in temp */
        expect_ok(aura_flash_attn_vec(ctx, &a), "undo in temp");
        EXPECT(!memcmp(temp, fused, 4 * v_dim * 4), "dim %u: undo in temp differs", v_dim);
        free(k), free(v), free(q), free(k64), free(v64), free(q64), free(out), free(fused), free(temp);
    }
}

/* ---- no tokens --------------------------------------------------------------------------------------------------------------- */

static void no_tokens_give_zeros(void)
{
    float q[2 * 64] = {1}, out[2 * 64], temp[2 * 2 * 66], lse[2], sinks[2] = {3, -INFINITY};
    aura_flash_attn_vec_args a = AURA_FLASH_ATTN_VEC_ARGS_INIT;
    aura_flash_attn_vec_reduce_args r = AURA_FLASH_ATTN_VEC_REDUCE_ARGS_INIT;
    a.dim = 64, a.q_heads = 2, a.kv_heads = 2, a.q = q, a.out = out, a.lse = lse;
    for (a.capacity = 0; a.capacity < 20; a.capacity += 10) { /* the arrays may be NULL */
        memset(out, 0x5a, sizeof out);
        a.sinks = a.capacity ? sinks : NULL, a.ring_start = a.capacity / 2;
        expect_ok(aura_flash_attn_vec(ctx, &a), "no tokens");
        for (int i = 0; i < 2 * 64; i++)
            EXPECT(out[i] == 0 && !signbit(out[i]), "[%d] is %g", i, (double)out[i]);
        EXPECT(lse[0] == (a.sinks ? 3 : -INFINITY) && lse[1] == -INFINITY, "lse %g %g", (double)lse[0], (double)lse[1]);
    }
    a.sinks = NULL, a.lse = NULL, a.temp = temp, a.nwg = 2;
    r.dim = 64, r.rows = 2, r.nwg = 2, r.temp = temp, r.out = out;
    memset(out, 0x5a, sizeof out);
    expect_ok(aura_flash_attn_vec(ctx, &a), "partials of no tokens"), expect_ok(aura_flash_attn_vec_reduce(ctx, &r), "reduce");
    EXPECT(out[0] == 0 && out[127] == 0 && temp[2 * 2 * 64] == 0, "%g", (double)out[0]);
    a.ring_start = a.capacity = 5;
    EXPECT(aura_flash_attn_vec(ctx, &a) == AURA_BAD_ARGUMENT, "ring_start beyond the ring");
}

/* ---- what differs from the public kernels (doc/families.md) ------------------------------------------------------------ */

static void sums_that_no_attention_has(void)
{
    static const struct {
        float l;
        int good;
    } cases[] = {{-2, 0}, {3e38f, 0}, {1.6e38f, 1}, {1, 1}};
    float o[64], m = 0, out[64];
    aura_flash_pass2_args a = AURA_FLASH_PASS2_ARGS_INIT;
    for (int i = 0; i < 64; i++)
        o[i] = 1;
    a.o = o, a.m = &m, a.out = out, a.dim = 64, a.q_heads = a.num_blocks = 1;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        a.l = &cases[i].l;
        const aura_status status = aura_flash_pass2(ctx, &a);
        EXPECT(status == (cases[i].good ? AURA_OK : AURA_NOT_FINITE) && isnan(out[5]) == !cases[i].good, "l %g: %s, %g",
               (double)cases[i].l, aura_status_text(status), (double)out[5]);
    }
}

static void scale_0_and_scores_near_the_lowest(void)
{
    float q[64] = {2e19f, 1}, k[2 * 64] = {0, 1}, v[2 * 64], out[64], plain[64];
    aura_flash_attn_vec_args a = AURA_FLASH_ATTN_VEC_ARGS_INIT;
    for (int i = 0; i < 2 * 64; i++)
        v[i] = i < 64 ? 7 : 3;
    a.k.rows = k, a.v.rows = v, a.k.dtype = a.v.dtype = AURA_F32, a.dim = 64, a.q_heads = a.kv_heads = 1, a.tokens = a.capacity = 2;
    a.q = q, a.out = plain, a.scale = 0.125f;
    expect_ok(aura_flash_attn_vec(ctx, &a), "scale 1 / 8");
    a.scale = 0, a.out = out;
    expect_ok(aura_flash_attn_vec(ctx, &a), "scale 0");
    EXPECT(!memcmp(out, plain, sizeof out) && out[0] > 5.1f, "scale 0 is not 1 / sqrt(dim): %g", (double)out[0]);
    k[0] = k[64] = -1.5e19f, a.scale = 1, a.tokens = 1;
    expect_ok(aura_flash_attn_vec(ctx, &a), "a score of -3e38");
    EXPECT(out[0] == 7, "a score of -3e38 is not seen: %g", (double)out[0]);
}

static void tests(void)
{
    RUN(sums_that_no_attention_has);
    RUN(scale_0_and_scores_near_the_lowest);
    RUN(threads_change_no_bit);
    RUN(bad_rows_are_named_whoever_finds_them);
    RUN(rows_wider_than_their_codes);
    RUN(value_of_any_dim);
    RUN(dims_of_packed_rows);
    RUN(dims_and_undo_of_vec);
    RUN(no_tokens_give_zeros);
}

int main(void)
{
    on_every_isa(tests);
    return test_result();
}
