/* Rows of the public families into a cache and out of it. */
#include "../cache/cache_tools.h"

enum { HEADS = 2, TOKENS = 300, SPACE = 320 }; /* SPACE: rows from head to head */

static float *keys, *values; /* [HEADS][TOKENS][512] at most, of one dim at a time */

static void fill(uint32_t dim)
{
    free(keys), free(values);
    keys = random_tokens(81, TOKENS, HEADS, dim, 1), values = random_tokens(82, TOKENS, HEADS, dim, 0);
}

/* A cache of one sequence. */
static aura_cache *cache_of(aura_ctx *in, aura_kind k, aura_kind v, uint32_t dim, aura_seq *seq)
{
    aura_config config = config_of(k, v, dim, dim, HEADS);
    aura_cache *cache = cache_new(in, &config);
    *seq = seq_new(cache);
    return cache;
}

static aura_status append_f32(aura_cache *cache, aura_seq seq, const float *k, const float *v, int head_major, uint32_t dim)
{
    aura_append_job job = AURA_APPEND_JOB_INIT;
    job.seq = seq, job.tokens = TOKENS;
    job.k.data = (void *)k, job.v.data = (void *)v;
    if (head_major)
        job.k.token_stride = job.v.token_stride = dim, job.k.head_stride = job.v.head_stride = (ptrdiff_t)TOKENS * dim;
    return aura_append(cache, &job, 1);
}

/* Both sequences hold the same bits. */
static void expect_equal(const aura_cache *a, aura_seq x, const aura_cache *b, aura_seq y, uint32_t dim, const char *what)
{
    size_t n = (size_t)TOKENS * HEADS * dim;
    float *out[4];
    for (int i = 0; i < 4; i++)
        out[i] = calloc(n, sizeof(float));
    aura_view view[4];
    for (int i = 0; i < 4; i++)
        view[i] = (aura_view){out[i], AURA_F32, 0, 0, NULL};
    EXPECT(seq_tokens(a, x) == TOKENS && seq_tokens(b, y) == TOKENS, "%s: %llu tokens", what, (unsigned long long)seq_tokens(b, y));
    EXPECT(!aura_cache_decode(a, x, 0, TOKENS, &view[0], &view[1]) &&
           !aura_cache_decode(b, y, 0, TOKENS, &view[2], &view[3]), "%s: %s", what, aura_last_error());
    EXPECT(!memcmp(out[0], out[2], n * 4) && !memcmp(out[1], out[3], n * 4), "%s: other numbers", what);
    for (int i = 0; i < 4; i++)
        free(out[i]);
}

/* ---- AURA rows --------------------------------------------------------------------------------------------------------- */

/* One encoded side: [HEADS][SPACE] rows; the last rows of each head are not used. */
struct rows {
    aura_codebook book;
    aura_rotation rotation;
    uint8_t signs[AURA_MAX_DIM / 8];
    float *matrix;
    uint8_t *codes, *norms;
    size_t code_bytes, norm_bytes;
    aura_dtype norm_dtype;
};

static void rows_init(struct rows *r, aura_table table, uint32_t bits, uint32_t dim, int dense, aura_dtype norm_dtype)
{
    static const aura_rotation none = AURA_ROTATION_INIT;
    EXPECT(!aura_codebook_get(table, bits, &r->book), "%s", aura_last_error());
    r->rotation = none, r->rotation.dim = dim, r->matrix = NULL;
    if (dense) { /* a permutation with signs is orthogonal, and no Hadamard matrix */
        r->matrix = calloc((size_t)dim * dim, sizeof(float));
        for (uint32_t i = 0; i < dim; i++)
            r->matrix[(size_t)i * dim + (i * 7 + 3) % dim] = i % 3 ? 1.f : -1.f;
        r->rotation.kind = AURA_ROTATION_DENSE, r->rotation.matrix = r->matrix;
    } else {
        aura_signs(99, 0, dim, r->signs);
        r->rotation.signs = r->signs;
    }
    r->norm_dtype = norm_dtype;
    r->code_bytes = (size_t)HEADS * SPACE * aura_row_bytes(dim, bits),
        r->norm_bytes = (size_t)HEADS * SPACE * aura_dtype_bytes(norm_dtype);
    r->codes = malloc(r->code_bytes), r->norms = malloc(r->norm_bytes);
    memset(r->codes, 0xcc, r->code_bytes), memset(r->norms, 0xcc, r->norm_bytes);
}

static void rows_free(struct rows *r)
{
    free(r->matrix), free(r->codes), free(r->norms);
}

static void rows_encode(struct rows *r, const float *x, uint32_t dim)
{
    for (size_t h = 0; h < HEADS; h++) {
        aura_encode_args args = AURA_ENCODE_ARGS_INIT;
        args.codebook = &r->book, args.rotation = &r->rotation, args.dim = dim, args.rows = TOKENS;
        args.in = x + h * dim, args.in_stride = HEADS * dim; /* [token][head][dim] */
        args.packed = r->codes + h * SPACE * aura_row_bytes(dim, r->book.bits),
            args.scales = r->norms + h * SPACE * aura_dtype_bytes(r->norm_dtype);
        args.scale_dtype = r->norm_dtype;
        EXPECT(!aura_encode(ctx, &args), "%s", aura_last_error());
    }
}

/* What the rows stand for, by aura_decode. [HEADS][TOKENS][dim] */
static float *rows_decode(const struct rows *r, uint32_t dim)
{
    float *x = calloc((size_t)HEADS * TOKENS * dim, sizeof *x);
    for (size_t h = 0; h < HEADS; h++) {
        aura_decode_args args = AURA_DECODE_ARGS_INIT;
        args.codebook = &r->book, args.rotation = &r->rotation, args.dim = dim, args.rows = TOKENS;
        args.packed = r->codes + h * SPACE * aura_row_bytes(dim, r->book.bits),
            args.scales = r->norms + h * SPACE * aura_dtype_bytes(r->norm_dtype);
        args.scale_dtype = r->norm_dtype, args.out = x + h * TOKENS * dim;
        EXPECT(!aura_decode(ctx, &args), "%s", aura_last_error());
    }
    return x;
}

static aura_packed packed_of(const struct rows *r)
{
    aura_packed p = AURA_PACKED_INIT;
    p.bits = r->book.bits, p.codes = r->codes, p.norms = r->norms, p.codebook = r->book.centroid;
    p.norm_dtype = r->norm_dtype, p.stride = SPACE;
    return p;
}

static aura_packed_out out_of(const struct rows *r)
{
    aura_packed_out p = AURA_PACKED_OUT_INIT;
    p.codebook = &r->book, p.rotation = &r->rotation, p.codes = r->codes, p.norms = r->norms, p.norm_dtype = r->norm_dtype,
        p.stride = SPACE;
    return p;
}

static const struct {
    aura_table table;
    uint32_t bits, dim;
    int dense;
    aura_dtype norm;
} row_cases[] = {{AURA_TABLE_AURA, 4, 128, 0, AURA_F32},  {AURA_TABLE_AURA, 2, 128, 1, AURA_F16},
                 {AURA_TABLE_AURA, 3, 128, 0, AURA_BF16},
                 {AURA_TABLE_EXACT, 5, 80, 0, AURA_F32},  {AURA_TABLE_AURA, 6, 128, 1, AURA_F32},
                 {AURA_TABLE_AURA, 8, 128, 0, AURA_F16}};
enum { ROW_CASES = sizeof row_cases / sizeof *row_cases };

static void rows_come_in(void)
{
    for (int i = 0; i < ROW_CASES; i++)
        for (int packed = 0; packed < 2; packed++) {
            uint32_t dim = row_cases[i].dim;
            struct rows k, v;
            fill(dim);
            rows_init(&k, row_cases[i].table, row_cases[i].bits, dim, row_cases[i].dense, row_cases[i].norm);
            rows_init(&v, AURA_TABLE_EXACT, 3, dim, !row_cases[i].dense, AURA_F32);
            rows_encode(&k, keys, dim), rows_encode(&v, values, dim);
            float *x = rows_decode(&k, dim), *y = rows_decode(&v, dim);
            aura_seq seq[2];
            aura_kind kind = packed ? AURA_KIND_B4 : AURA_KIND_F32;
            aura_cache *a = cache_of(ctx, kind, kind, dim, &seq[0]), *b = cache_of(ctx, kind, kind, dim, &seq[1]);
            EXPECT(!append_f32(a, seq[0], x, y, 1, dim), "%s", aura_last_error());
            aura_import_rows_args args = AURA_IMPORT_ROWS_ARGS_INIT;
            args.seq = seq[1], args.tokens = TOKENS, args.k = packed_of(&k), args.v = packed_of(&v),
                args.k_rotation = &k.rotation, args.v_rotation = &v.rotation;
            EXPECT(!aura_import_rows(b, &args), "%s", aura_last_error());
            expect_equal(a, seq[0], b, seq[1], dim, "imported");
            aura_cache_destroy(a), aura_cache_destroy(b);
            free(x), free(y), rows_free(&k), rows_free(&v);
        }
}

/* Exporting a plain cache gives the rows that aura_encode makes of the original numbers, and writes nothing between rows. */
static void rows_go_out(void)
{
    for (int i = 0; i < ROW_CASES; i++) {
        uint32_t dim = row_cases[i].dim;
        struct rows k, v, got_k, got_v;
        fill(dim);
        rows_init(&k, row_cases[i].table, row_cases[i].bits, dim, row_cases[i].dense, row_cases[i].norm);
        rows_init(&got_k, row_cases[i].table, row_cases[i].bits, dim, row_cases[i].dense, row_cases[i].norm);
        rows_init(&v, AURA_TABLE_EXACT, 3, dim, 0, AURA_F32), rows_init(&got_v, AURA_TABLE_EXACT, 3, dim, 0, AURA_F32);
        rows_encode(&k, keys, dim), rows_encode(&v, values, dim);
        aura_seq seq;
        aura_cache *cache = cache_of(ctx, AURA_KIND_F32, AURA_KIND_F32, dim, &seq);
        EXPECT(!append_f32(cache, seq, values, keys, 0, dim) && !append_f32(cache, seq, keys, values, 0, dim), "%s",
               aura_last_error());
        aura_export_rows_args args = AURA_EXPORT_ROWS_ARGS_INIT;
        args.seq = seq, args.first = TOKENS, args.tokens = TOKENS, args.k = out_of(&got_k), args.v = out_of(&got_v);
        EXPECT(!aura_export_rows(cache, &args), "%s", aura_last_error());
        EXPECT(!memcmp(k.codes, got_k.codes, k.code_bytes) && !memcmp(k.norms, got_k.norms, k.norm_bytes), "case %d: keys", i);
        EXPECT(!memcmp(v.codes, got_v.codes, v.code_bytes) && !memcmp(v.norms, got_v.norms, v.norm_bytes), "case %d: values", i);
        memset(got_k.codes, 0x11, k.code_bytes);
        args.v.codes = NULL;
        EXPECT(!aura_export_rows(cache, &args) && got_k.codes[0] == k.codes[0], "keys alone: %s", aura_last_error());
        aura_cache_destroy(cache);
        rows_free(&k), rows_free(&v), rows_free(&got_k), rows_free(&got_v);
    }
}

/* ---- TQ ------------------------------------------------------------------------------------------------------------------ */

struct tq {
    uint32_t dim, bits;
    uint8_t *packed;
    float *norms;
    size_t bytes, norm_bytes;
};

static struct tq tq_new(uint32_t dim, uint32_t bits)
{
    struct tq t = {dim, bits, NULL, NULL, (size_t)HEADS * SPACE * (bits == 0 ? 4 * dim : bits == 4 ? dim / 2 : dim),
                   (size_t)HEADS * SPACE * (dim / 256) * sizeof(float)};
    t.packed = malloc(t.bytes), t.norms = malloc(t.norm_bytes);
    memset(t.packed, 0xcc, t.bytes), memset(t.norms, 0xcc, t.norm_bytes);
    return t;
}

static void tq_free(struct tq *t)
{
    free(t->packed), free(t->norms);
}

/* Token i in slot (SPACE - 50 + i) % SPACE. */
static void tq_encode(struct tq *t, const float *x)
{
    aura_tq_encode_args args = AURA_TQ_ENCODE_ARGS_INIT;
    aura_kv_copy_args plain = AURA_KV_COPY_ARGS_INIT;
    args.dim = t->dim, args.bits = t->bits, args.kv_heads = HEADS, args.tokens = TOKENS, args.capacity = SPACE,
        args.write_pos = SPACE - 50, args.sliding = 1;
    args.in = x, args.packed = t->packed, args.norms = t->norms, args.scale_factor_d512 = 1.5f;
    plain.dim = t->dim, plain.heads = HEADS, plain.tokens = TOKENS, plain.capacity = SPACE, plain.write_pos = SPACE - 50,
        plain.sliding = 1;
    plain.in = x, plain.cache = t->packed;
    EXPECT(!(t->bits ? aura_tq_encode(ctx, &args) : aura_kv_copy(ctx, &plain)), "%s", aura_last_error());
}

/* What the rows stand for, in model space: [TOKENS][HEADS][dim]. */
static float *tq_decode(const struct tq *t, const float *plain)
{
    float *x = calloc((size_t)TOKENS * HEADS * t->dim, sizeof *x);
    aura_rotation rotation = AURA_ROTATION_INIT;
    rotation.dim = t->dim, rotation.signs = aura_tq_signs(t->dim);
    if (!t->bits)
        memcpy(x, plain, (size_t)TOKENS * HEADS * t->dim * sizeof *x);
    for (uint64_t i = 0; t->bits && i < TOKENS; i++) {
        aura_tq_dequant_args args = AURA_TQ_DEQUANT_ARGS_INIT;
        aura_rotate_args undo = AURA_ROTATE_ARGS_INIT;
        args.dim = t->dim, args.bits = t->bits, args.kv_heads = HEADS, args.capacity = SPACE, args.slot = (SPACE - 50 + i) % SPACE;
        args.packed = t->packed, args.norms = t->norms, args.out = x + i * HEADS * t->dim, args.scale_factor_d512 = 1.5f;
        undo.rotation = &rotation, undo.rows = HEADS, undo.in = undo.out = args.out;
        EXPECT(!aura_tq_dequant(ctx, &args) && !aura_undo(ctx, &undo), "%s", aura_last_error());
    }
    return x;
}

static const uint32_t tq_bits[][2] = {{4, 4}, {5, 6}, {8, 4}, {0, 8}, {6, 0}};

static void tq_comes_in(void)
{
    for (uint32_t dim = 256; dim <= 512; dim += 256)
        for (int i = 0; i < 5; i++) {
            fill(dim);
            struct tq k = tq_new(dim, tq_bits[i][0]), v = tq_new(dim, tq_bits[i][1]);
            tq_encode(&k, keys), tq_encode(&v, values);
            float *x = tq_decode(&k, keys), *y = tq_decode(&v, values);
            aura_seq seq[2];
            aura_kind kind = i % 2 ? AURA_KIND_B4 : AURA_KIND_F32;
            aura_cache *a = cache_of(ctx, kind, kind, dim, &seq[0]), *b = cache_of(ctx, kind, kind, dim, &seq[1]);
            EXPECT(!append_f32(a, seq[0], x, y, 0, dim), "%s", aura_last_error());
            aura_import_tq_args args = AURA_IMPORT_TQ_ARGS_INIT;
            args.seq = seq[1], args.tokens = TOKENS, args.capacity = SPACE, args.ring_start = SPACE - 50,
                args.scale_factor_d512 = 1.5f;
            args.k.bits = k.bits, args.k.rows = k.packed, args.k.norms = k.norms;
            args.v.bits = v.bits, args.v.rows = v.packed, args.v.norms = v.norms;
            EXPECT(!aura_import_tq(b, &args), "%s", aura_last_error());
            expect_equal(a, seq[0], b, seq[1], dim, "imported");
            aura_cache_destroy(a), aura_cache_destroy(b);
            free(x), free(y), tq_free(&k), tq_free(&v);
        }
}

static void tq_goes_out(void)
{
    for (uint32_t dim = 256; dim <= 512; dim += 256)
        for (int i = 0; i < 5; i++) {
            fill(dim);
            struct tq k = tq_new(dim, tq_bits[i][0]), v = tq_new(dim, tq_bits[i][1]), got_k = tq_new(dim, tq_bits[i][0]),
                got_v = tq_new(dim, tq_bits[i][1]);
            tq_encode(&k, keys), tq_encode(&v, values);
            aura_seq seq;
            aura_cache *cache = cache_of(ctx, AURA_KIND_F32, AURA_KIND_F32, dim, &seq);
            EXPECT(!append_f32(cache, seq, values, keys, 0, dim) && !append_f32(cache, seq, keys, values, 0, dim), "%s",
                   aura_last_error());
            aura_export_tq_args args = AURA_EXPORT_TQ_ARGS_INIT;
            args.seq = seq, args.first = TOKENS, args.tokens = TOKENS, args.capacity = SPACE, args.write_pos = SPACE - 50,
                args.sliding = 1, args.scale_factor_d512 = 1.5f;
            args.k.bits = k.bits, args.k.rows = got_k.packed, args.k.norms = got_k.norms;
            args.v.bits = v.bits, args.v.rows = got_v.packed, args.v.norms = got_v.norms;
            EXPECT(!aura_export_tq(cache, &args), "%s", aura_last_error());
            EXPECT(!memcmp(k.packed, got_k.packed, k.bytes) && !memcmp(k.norms, got_k.norms, k.norm_bytes),
                   "dim %u, case %d: keys", dim, i);
            EXPECT(!memcmp(v.packed, got_v.packed, v.bytes) && !memcmp(v.norms, got_v.norms, v.norm_bytes),
                   "dim %u, case %d: values", dim, i);
            aura_cache_destroy(cache);
            tq_free(&k), tq_free(&v), tq_free(&got_k), tq_free(&got_v);
        }
}

/* ---- failures ------------------------------------------------------------------------------------------------------------ */

static void failed_imports_store_nothing(void)
{
    struct rows k, v;
    aura_seq seq;
    fill(256);
    aura_cache *cache = cache_of(ctx, AURA_KIND_B4, AURA_KIND_B4, 256, &seq);
    rows_init(&k, AURA_TABLE_EXACT, 4, 256, 0, AURA_F32), rows_init(&v, AURA_TABLE_EXACT, 4, 256, 0, AURA_F32);
    rows_encode(&k, keys, 256), rows_encode(&v, values, 256);
    aura_import_rows_args good = AURA_IMPORT_ROWS_ARGS_INIT, args;
    good.seq = seq, good.tokens = TOKENS, good.k = packed_of(&k), good.v = packed_of(&v), good.k_rotation = &k.rotation,
        good.v_rotation = &v.rotation;
    size_t before = aura_cache_bytes(cache);
    float *norm = (float *)(void *)v.norms + SPACE + 250, old = *norm;
#define REFUSED(change, wanted)                                                                                        \
    do {                                                                                                               \
        args = good;                                                                                                   \
        change;                                                                                                        \
        aura_status status = aura_import_rows(cache, &args);                                                           \
        EXPECT(status == wanted && seq_tokens(cache, seq) == 0 && aura_cache_bytes(cache) == before,      \
               "%s: %s", #change, aura_status_text(status));                                                            \
    } while (0)
    REFUSED(*norm = NAN, AURA_BAD_VALUE);
    REFUSED(*norm = 1e9f, AURA_BAD_VALUE);
    *norm = old;
    aura_rotation small = AURA_ROTATION_INIT;
    small.dim = 128;
    REFUSED(args.seq = 77, AURA_BAD_ARGUMENT);
    REFUSED(args.k.bits = 7, AURA_UNSUPPORTED);
    REFUSED(args.v.codes = NULL, AURA_BAD_ARGUMENT);
    REFUSED(args.v_rotation = &small, AURA_BAD_ARGUMENT);
    REFUSED(args.k.stride = 10, AURA_BAD_ARGUMENT);
    REFUSED(args.size++, AURA_BAD_ARGUMENT);
    EXPECT(aura_import_rows(NULL, &good) == AURA_BAD_ARGUMENT && aura_import_rows(cache, NULL) == AURA_BAD_ARGUMENT, "NULLs");
    args = good, args.tokens = 0, args.k.codes = NULL;
    EXPECT(!aura_import_rows(cache, &args), "no tokens: %s", aura_last_error());
    rows_free(&k), rows_free(&v);
    aura_cache_destroy(cache);
}

static void failed_imports_of_tq_store_nothing(void)
{
    aura_seq seq;
    fill(256);
    aura_cache *cache = cache_of(ctx, AURA_KIND_B4, AURA_KIND_B4, 256, &seq);
    struct tq t = tq_new(256, 4);
    tq_encode(&t, keys);
    aura_import_tq_args tq = AURA_IMPORT_TQ_ARGS_INIT;
    tq.seq = seq, tq.tokens = TOKENS, tq.capacity = SPACE, tq.ring_start = SPACE - 50;
    tq.k.bits = tq.v.bits = 4, tq.k.rows = tq.v.rows = t.packed, tq.k.norms = tq.v.norms = t.norms;
    aura_import_tq_args with = tq;
#define REFUSED_TQ(change, wanted)                                                                                     \
    do {                                                                                                               \
        with = tq;                                                                                                     \
        change;                                                                                                        \
        aura_status status = aura_import_tq(cache, &with);                                                             \
        EXPECT(status == wanted && seq_tokens(cache, seq) == 0, "%s: %s", #change, aura_status_text(status));          \
    } while (0)
    REFUSED_TQ(with.seq = 77, AURA_BAD_ARGUMENT);
    REFUSED_TQ(with.tokens = SPACE + 1, AURA_BAD_ARGUMENT);
    REFUSED_TQ(with.ring_start = SPACE, AURA_BAD_ARGUMENT);
    REFUSED_TQ(with.k.bits = 3, AURA_UNSUPPORTED);
    REFUSED_TQ(with.v.rows = NULL, AURA_BAD_ARGUMENT);
    REFUSED_TQ(with.v.norms = NULL, AURA_BAD_ARGUMENT);
    REFUSED_TQ((with.v.bits = 0, with.v.dtype = (aura_dtype)9), AURA_UNSUPPORTED);
    REFUSED_TQ((with.v.bits = 0, with.v.rows = NULL), AURA_BAD_ARGUMENT);
    t.norms[SPACE + 3] = INFINITY;
    REFUSED_TQ(with.size = sizeof with, AURA_BAD_VALUE);
    EXPECT(aura_import_tq(NULL, &tq) == AURA_BAD_ARGUMENT && aura_import_tq(cache, NULL) == AURA_BAD_ARGUMENT, "NULLs");
    tq_free(&t);
    aura_cache_destroy(cache);
}

static void failed_exports_write_nothing(void)
{
    struct rows k, v;
    aura_seq seq;
    fill(256);
    values[250 * HEADS * 256 + 256] = 1e30f; /* token 250, head 1: too large for a row */
    aura_cache *cache = cache_of(ctx, AURA_KIND_F32, AURA_KIND_F32, 256, &seq);
    EXPECT(!append_f32(cache, seq, keys, values, 0, 256), "%s", aura_last_error());
    rows_init(&k, AURA_TABLE_EXACT, 4, 256, 0, AURA_F16), rows_init(&v, AURA_TABLE_EXACT, 4, 256, 0, AURA_F16);
    struct tq a = tq_new(256, 4), b = tq_new(256, 8);
    aura_export_rows_args good = AURA_EXPORT_ROWS_ARGS_INIT, args;
    aura_export_tq_args good_tq = AURA_EXPORT_TQ_ARGS_INIT, tq;
    good.seq = good_tq.seq = seq, good.tokens = good_tq.tokens = TOKENS, good_tq.capacity = SPACE;
    good.k = out_of(&k), good.v = out_of(&v);
    good_tq.k.bits = 4, good_tq.k.rows = a.packed, good_tq.k.norms = a.norms, good_tq.v.bits = 8,
        good_tq.v.rows = b.packed, good_tq.v.norms = b.norms;
#define CLEAN() (k.codes[0] == 0xcc && k.norms[0] == 0xcc && v.codes[0] == 0xcc && a.packed[0] == 0xcc && b.packed[0] == 0xcc)
#define NOT_OUT(change, wanted)                                                                                        \
    do {                                                                                                               \
        args = good;                                                                                                   \
        change;                                                                                                        \
        aura_status status = aura_export_rows(cache, &args);                                                           \
        EXPECT(status == wanted && CLEAN(), "%s: %s", #change, aura_status_text(status));                              \
    } while (0)
#define NOT_OUT_TQ(change, wanted)                                                                                     \
    do {                                                                                                               \
        tq = good_tq;                                                                                                  \
        change;                                                                                                        \
        aura_status status = aura_export_tq(cache, &tq);                                                               \
        EXPECT(status == wanted && CLEAN(), "%s: %s", #change, aura_status_text(status));                              \
    } while (0)
    NOT_OUT(args.size = sizeof args, AURA_BAD_VALUE);
    NOT_OUT(args.tokens = TOKENS + 1, AURA_BAD_ARGUMENT);
    NOT_OUT(args.first = 1, AURA_BAD_ARGUMENT);
    NOT_OUT(args.seq = 77, AURA_BAD_ARGUMENT);
    NOT_OUT((args.tokens = 200, args.v.stride = 100), AURA_BAD_ARGUMENT);
    NOT_OUT((args.tokens = 200, args.v.norms = NULL), AURA_BAD_ARGUMENT);
    NOT_OUT((args.tokens = 200, args.v.codebook = NULL), AURA_BAD_ARGUMENT);
    NOT_OUT((args.tokens = 200, args.v.norm_dtype = (aura_dtype)9), AURA_BAD_ARGUMENT);
    NOT_OUT((args.tokens = 200, args.v.norms = args.v.codes), AURA_BAD_ARGUMENT);
    NOT_OUT(args.size = 1, AURA_BAD_ARGUMENT);
    NOT_OUT_TQ(tq.size = sizeof tq, AURA_BAD_VALUE);
    NOT_OUT_TQ(tq.capacity = 100, AURA_BAD_ARGUMENT);
    NOT_OUT_TQ((tq.tokens = 200, tq.v.bits = 3), AURA_UNSUPPORTED);
    NOT_OUT_TQ((tq.tokens = 200, tq.v.norms = NULL), AURA_BAD_ARGUMENT);
    NOT_OUT_TQ((tq.tokens = 200, tq.v.bits = 0, tq.v.dtype = (aura_dtype)9), AURA_UNSUPPORTED);
    NOT_OUT_TQ(tq.first = 1, AURA_BAD_ARGUMENT);
    NOT_OUT_TQ(tq.seq = 77, AURA_BAD_ARGUMENT);
    NOT_OUT_TQ(tq.size = 1, AURA_BAD_ARGUMENT);
    EXPECT(aura_export_rows(NULL, &good) == AURA_BAD_ARGUMENT && aura_export_tq(NULL, &good_tq) == AURA_BAD_ARGUMENT, "NULLs");
    args = good, args.tokens = 200;
    tq = good_tq, tq.tokens = 200;
    EXPECT(!aura_export_rows(cache, &args) && !aura_export_tq(cache, &tq) && !CLEAN(), "%s", aura_last_error());
    rows_free(&k), rows_free(&v), tq_free(&a), tq_free(&b);
    aura_cache_destroy(cache);
}

int main(void)
{
    if (aura_ctx_create(NULL, &ctx))
        return 1;
    RUN(rows_come_in);
    RUN(rows_go_out);
    RUN(tq_comes_in);
    RUN(tq_goes_out);
    RUN(failed_imports_store_nothing);
    RUN(failed_imports_of_tq_store_nothing);
    RUN(failed_exports_write_nothing);
    aura_ctx_destroy(ctx);
    free(keys), free(values);
    return test_result();
}
