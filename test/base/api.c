/* The public interface, used well and used wrongly. Every misuse must give its error code and a message, and must leave
 * every output byte as it was. */
#define _GNU_SOURCE
#include "api.h"

#include "../../src/base/dtype.h"

static int untouched(void)
{
    const uint8_t *p = (const uint8_t *)&g.out;
    for (size_t i = 0; i < sizeof g.out; i++)
        if (p[i] != 0x5a)
            return 0;
    return 1;
}

/* Runs a misused call. Expects its status, a message that names the call, and that it wrote no byte. */
#define REFUSED(call, expected)                                                                                        \
    do {                                                                                                               \
        aura_status status_ = (call);                                                                                  \
        EXPECT(status_ == (expected), "%s", aura_status_text(status_));                                                \
        EXPECT(strncmp(aura_last_error(), #call, strcspn(#call, "(")) == 0, "message: %s", aura_last_error());         \
        EXPECT(untouched(), "an output was written");                                                                  \
        setup();                                                                                                       \
    } while (0)

static void versions_and_texts(void)
{
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", AURA_VERSION_MAJOR, AURA_VERSION_MINOR, AURA_VERSION_PATCH);
    EXPECT(!strcmp(text, aura_version()) && !strcmp(text, AURA_VERSION_STRING), "%s", aura_version());
    for (int a = AURA_OK; a <= AURA_DEVICE; a++)
        for (int b = AURA_OK; b < a; b++)
            EXPECT(strcmp(aura_status_text((aura_status)a), aura_status_text((aura_status)b)), "%d and %d read alike", a, b);
    EXPECT(!strcmp(aura_status_text(AURA_OUT_OF_PAGES), "out of pages"), "%s", aura_status_text(AURA_OUT_OF_PAGES));
    EXPECT(!strcmp(aura_status_text(AURA_DEVICE), "device failure"), "%s", aura_status_text(AURA_DEVICE));
    EXPECT(!strcmp(aura_status_text((aura_status)99), "unknown status"), "99");
    EXPECT(aura_dtype_bytes(AURA_F32) == 4 && aura_dtype_bytes(AURA_F16) == 2 && aura_dtype_bytes(AURA_BF16) == 2 &&
               aura_dtype_bytes((aura_dtype)7) == 0, "dtype sizes");
    EXPECT(aura_row_bytes(128, 4) == 64 && aura_row_bytes(80, 3) == 32 && aura_row_bytes(8, 2) == 4, "row bytes");
    EXPECT(!aura_row_bytes(0, 4) && !aura_row_bytes(2000, 4) && !aura_row_bytes(64, 0) && !aura_row_bytes(64, 9), "bad rows");
}

static size_t allocated, allocations;
static void *counting_alloc(void *user, size_t bytes, size_t align)
{
    void *memory = NULL;
    allocated += bytes, allocations++;
    return *(int *)user || posix_memalign(&memory, align, bytes) ? NULL : memory;
}
static void counting_free(void *user, void *memory, size_t bytes)
{
    (void)user;
    allocated -= bytes;
    free(memory);
}
static char logged[512];
static void keep_log(void *user, aura_log_level level, const char *message)
{
    (void)user;
    snprintf(logged, sizeof logged, "%d %s", (int)level, message);
}

static void contexts(void)
{
    aura_ctx_options o = AURA_CTX_OPTIONS_INIT;
    aura_ctx *made = (aura_ctx *)&o;
    int out_of_memory = 0;
    EXPECT(aura_ctx_create(NULL, NULL) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "ctx is NULL"), "%s", aura_last_error());
    o.size = 3;
    EXPECT(aura_ctx_create(&o, &made) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "size is 3"), "%s", aura_last_error());
    o.size = sizeof o;
    o.allocator.alloc = counting_alloc;
    EXPECT(aura_ctx_create(&o, &made) == AURA_BAD_ARGUMENT, "half an allocator");
    o.allocator.free = counting_free;
    o.allocator.user = &out_of_memory;
    o.isa_mask = 1u << 31;
    EXPECT(aura_ctx_create(&o, &made) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "isa_mask"), "%s", aura_last_error());
    o.isa_mask = 0;
    out_of_memory = 1;
    EXPECT(aura_ctx_create(&o, &made) == AURA_OUT_OF_MEMORY, "no memory");
    EXPECT(made == (aura_ctx *)&o, "a failing create changed *ctx");
    out_of_memory = 0;
    allocated = allocations = 0;
    o.log = keep_log;
    EXPECT(aura_ctx_create(&o, &made) == AURA_OK && allocations == 1 && allocated > 0, "%s", aura_last_error());
    EXPECT(!strncmp(logged, "1 aura ", 7) && strstr(logged, " ref"), "log: %s", logged);
    EXPECT(aura_ctx_isas(made) == aura_cpu_isas() && aura_ctx_isas(NULL) == 0, "isas");
    EXPECT(aura_rotate(made, NULL) == AURA_BAD_ARGUMENT && strstr(logged, "0 aura_rotate: args is NULL"), "log: %s", logged);
    aura_ctx_destroy(made);
    EXPECT(allocated == 0, "%zu bytes not given back", allocated);
    aura_ctx_destroy(NULL);
    o.allocator.alloc = NULL, o.allocator.free = NULL;
    o.isa_mask = AURA_ISA_REF;
    EXPECT(!aura_ctx_create(&o, &made) && aura_ctx_isas(made) == AURA_ISA_REF, "only plain C");
    aura_ctx_destroy(made);
}

static void codebooks_and_signs(void)
{
    aura_codebook book, before;
    uint8_t bits[AURA_MAX_DIM / 8 + 1], other[AURA_MAX_DIM / 8 + 1];
    memset(&book, 0x11, sizeof book);
    before = book;
    EXPECT(aura_codebook_get(AURA_TABLE_EXACT, 4, NULL) == AURA_BAD_ARGUMENT, "NULL");
    EXPECT(aura_codebook_get((aura_table)0, 4, &book) == AURA_BAD_ARGUMENT, "table 0");
    EXPECT(aura_codebook_get((aura_table)9, 4, &book) == AURA_BAD_ARGUMENT, "table 9");
    EXPECT(aura_codebook_get(AURA_TABLE_GRID, 7, &book) == AURA_UNSUPPORTED, "7-bit grid");
    EXPECT(aura_codebook_get(AURA_TABLE_EXACT, 0, &book) == AURA_UNSUPPORTED, "0 bits");
    EXPECT(!memcmp(&book, &before, sizeof book), "a failing call wrote the book");
    EXPECT(!aura_codebook_get(AURA_TABLE_TQ, 8, &book) && book.id == 0x48 && book.levels == 256, "id 0x%x", book.id);
    EXPECT(aura_signs(1, 0, 64, NULL) == AURA_BAD_ARGUMENT && aura_signs(1, 0, 0, bits) == AURA_BAD_ARGUMENT &&
               aura_signs(1, 0, AURA_MAX_DIM + 1, bits) == AURA_BAD_ARGUMENT, "bad signs");
    memset(bits, 0xee, sizeof bits);
    EXPECT(!aura_signs(1, 0, 12, bits) && (bits[1] & 0xf0) == 0 && bits[2] == 0xee, "12 signs take 2 bytes");
    aura_signs(1, 0, AURA_MAX_DIM, bits), aura_signs(1, 1, AURA_MAX_DIM, other);
    EXPECT(memcmp(bits, other, AURA_MAX_DIM / 8), "keys and values have the same signs");
    aura_signs(2, 0, AURA_MAX_DIM, other);
    EXPECT(memcmp(bits, other, AURA_MAX_DIM / 8), "two seeds give the same signs");
}

static void rotate_misuse(void)
{
    setup();
    REFUSED(aura_rotate(NULL, &g.rotate), AURA_BAD_ARGUMENT);
    REFUSED(aura_rotate(ctx, NULL), AURA_BAD_ARGUMENT);
    g.rotate.size = 8;
    REFUSED(aura_rotate(ctx, &g.rotate), AURA_BAD_ARGUMENT);
    g.rotate.rotation = NULL;
    REFUSED(aura_undo(ctx, &g.rotate), AURA_BAD_ARGUMENT);
    g.rotation.size = 0;
    REFUSED(aura_rotate(ctx, &g.rotate), AURA_BAD_ARGUMENT);
    static const uint32_t bad_dims[] = {0, 4, 12, 63, 1032, 2048, UINT32_MAX};
    for (size_t i = 0; i < sizeof bad_dims / sizeof *bad_dims; i++) {
        g.rotation.dim = bad_dims[i];
        REFUSED(aura_rotate(ctx, &g.rotate), AURA_BAD_ARGUMENT);
    }
    g.rotation.dim = 104; /* a multiple of 8 without a matrix */
    REFUSED(aura_rotate(ctx, &g.rotate), AURA_UNSUPPORTED);
    g.rotation.kind = (aura_rotation_kind)5;
    REFUSED(aura_rotate(ctx, &g.rotate), AURA_BAD_ARGUMENT);
    g.rotation.kind = AURA_ROTATION_DENSE, g.rotation.matrix = NULL;
    REFUSED(aura_rotate(ctx, &g.rotate), AURA_BAD_ARGUMENT);
    g.rotation.kind = AURA_ROTATION_DENSE, g.matrix[70] = NAN;
    REFUSED(aura_rotate(ctx, &g.rotate), AURA_BAD_VALUE);
    g.rotation.kind = AURA_ROTATION_DENSE, g.matrix[70] = -1.02f;
    REFUSED(aura_rotate(ctx, &g.rotate), AURA_BAD_VALUE);
    g.rotate.in = NULL;
    REFUSED(aura_rotate(ctx, &g.rotate), AURA_BAD_ARGUMENT);
    g.rotate.out = NULL;
    REFUSED(aura_rotate(ctx, &g.rotate), AURA_BAD_ARGUMENT);
    g.rotate.in = (const char *)g.x + 1, g.rotate.rows = 1;
    REFUSED(aura_rotate(ctx, &g.rotate), AURA_BAD_ARGUMENT);
    EXPECT(strstr(aura_last_error(), "aligned"), "%s", aura_last_error());
    g.rotate.in_stride = DIM - 1;
    REFUSED(aura_rotate(ctx, &g.rotate), AURA_BAD_ARGUMENT);
    g.rotate.in_dtype = (aura_dtype)9;
    REFUSED(aura_rotate(ctx, &g.rotate), AURA_UNSUPPORTED);
    g.rotate.rows = SIZE_MAX / 4;
    REFUSED(aura_rotate(ctx, &g.rotate), AURA_TOO_LARGE);
    g.rotate.out_stride = SIZE_MAX / 2;
    REFUSED(aura_rotate(ctx, &g.rotate), AURA_TOO_LARGE);
    g.rotate.rows = PTRDIFF_MAX / (DIM * sizeof(float)) + 1; /* more than any object has */
    REFUSED(aura_rotate(ctx, &g.rotate), AURA_TOO_LARGE);
    g.rotate.in = g.rotate.out, g.rotate.in_stride = 2 * DIM, g.rotate.rows = 2;
    REFUSED(aura_rotate(ctx, &g.rotate), AURA_BAD_ARGUMENT); /* in place, with another stride */
    g.rotate.in = g.rotate.out, g.rotate.in_dtype = AURA_F16;
    REFUSED(aura_rotate(ctx, &g.rotate), AURA_BAD_ARGUMENT); /* in place, with another type */
    g.rotate.in = g.out.y + 16, g.rotate.rows = 1;
    REFUSED(aura_rotate(ctx, &g.rotate), AURA_BAD_ARGUMENT); /* overlaps, and is not in place */
    g.rotate.in = g.out.y + DIM + 1, g.rotate.rows = 2, g.rotate.out_stride = 2 * DIM;
    REFUSED(aura_rotate(ctx, &g.rotate), AURA_BAD_ARGUMENT); /* begins in the gap and reaches into the next row */
    g.rotate.in = g.out.y, g.rotate.rows = 2, g.rotate.out = g.out.y + 3 * DIM - 1, g.rotate.in_stride = 2 * DIM;
    REFUSED(aura_rotate(ctx, &g.rotate), AURA_BAD_ARGUMENT); /* the last element of the last row */
    g.rotate.rows = 1, g.rotate.out = g.x + DIM, g.rotate.in_stride = 2 * DIM; /* right behind the last row, inside its stride */
    EXPECT(aura_rotate(ctx, &g.rotate) == AURA_OK, "%s", aura_last_error());
    setup();
    g.rotate.rows = 0, g.rotate.in = g.out.y + 16;
    EXPECT(aura_rotate(ctx, &g.rotate) == AURA_OK && untouched(), "no rows overlap nothing: %s", aura_last_error());
    g.rotate.rows = 0, g.rotate.in = NULL, g.rotate.out = NULL;
    EXPECT(aura_rotate(ctx, &g.rotate) == AURA_OK && untouched(), "no rows: %s", aura_last_error());
}

static void encode_misuse(void)
{
    setup();
    REFUSED(aura_encode(NULL, &g.encode), AURA_BAD_ARGUMENT);
    REFUSED(aura_encode(ctx, NULL), AURA_BAD_ARGUMENT);
    g.encode.size++;
    REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_ARGUMENT);
    g.encode.codebook = NULL;
    REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_ARGUMENT);
    g.book.centroid = NULL;
    REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_ARGUMENT);
    g.book.bits = 9;
    REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_ARGUMENT);
    g.book.levels = 17;
    REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_ARGUMENT);
    g.book.sigma = NAN;
    REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_VALUE);
    g.book.threshold = g.x; /* does not ascend */
    REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_VALUE);
    g.book.levels = 1;
    REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_ARGUMENT);
    aura_codebook_get(AURA_TABLE_EXACT, 7, &g.book);
    REFUSED(aura_encode(ctx, &g.encode), AURA_UNSUPPORTED);
    aura_codebook_get(AURA_TABLE_EXACT, 1, &g.book);
    REFUSED(aura_encode(ctx, &g.encode), AURA_UNSUPPORTED);
    g.encode.dim = 128; /* not the dim of the rotation */
    REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_ARGUMENT);
    g.encode.dim = 60, g.encode.rotation = NULL;
    REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_ARGUMENT);
    g.encode.rule = (aura_scale_rule)3;
    REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_ARGUMENT);
    g.encode.search = 2;
    REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_ARGUMENT);
    static const float bad_tiny[] = {-1, 1.5f, NAN};
    for (int i = 0; i < 3; i++) {
        g.encode.tiny = bad_tiny[i];
        REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_ARGUMENT);
    }
    g.encode.packed = NULL;
    REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_ARGUMENT);
    g.encode.scales = NULL;
    REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_ARGUMENT);
    g.encode.scales = (char *)g.out.scales + 2, g.encode.rows = 1;
    REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_ARGUMENT);
    EXPECT(strstr(aura_last_error(), "aligned"), "%s", aura_last_error());
    g.encode.packed_stride = 31;
    REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_ARGUMENT);
    g.encode.scale_dtype = (aura_dtype)-1;
    REFUSED(aura_encode(ctx, &g.encode), AURA_UNSUPPORTED);
    g.encode.rows = SIZE_MAX / 100;
    REFUSED(aura_encode(ctx, &g.encode), AURA_TOO_LARGE);
    g.encode.scales = g.out.packed;
    REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_ARGUMENT);
    g.encode.packed = g.x;
    REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_ARGUMENT);
    g.encode.scales = g.x;
    REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_ARGUMENT);
}

/* A table of the caller's own, wrong in one number. */
static void bad_codebooks(void)
{
    static const struct {
        float centroid[4], threshold[3];
        const char *why;
    } bad[] = {{{-1, -0.5f, 0.5f, 0.25f}, {-0.75f, 0, 0.75f}, "levels do not ascend"},
               {{-1, -0.5f, 0.5f, 1}, {-0.75f, 0.75f, 0.75f}, "two thresholds are equal"},
               {{-1, -0.5f, 0.5f, 1}, {-0.75f, 0, 0x1p21f}, "a threshold beyond 2^20"},
               {{-1, -0.5f, 0x1p-21f, 1}, {-0.75f, 0, 0.75f}, "a level below 2^-20"},
               {{-1, -0.5f, 0.5f, 0x1p21f}, {-0.75f, 0, 0.75f}, "a level beyond 2^20"},
               {{-4, -3, -2, -1}, {-3.5f, -2.5f, -1.5f}, "no level above 0"},
               {{-1, -0.5f, 0.5f, NAN}, {-0.75f, 0, 0.75f}, "NaN"}};
    setup();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        aura_codebook book = {0, 2, 4, 0, 1, 0, bad[i].centroid, bad[i].threshold};
        g.book = book;
        REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_VALUE);
    }
    aura_codebook book = {0, 2, 4, 0, 1, 0, (const float[]){-1, 0, 0.5f, 1}, (const float[]){-0.75f, 0, 0.75f}};
    g.book = book;
    EXPECT(!aura_encode(ctx, &g.encode), "a good one: %s", aura_last_error());
}

static void bad_vectors(void)
{
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY, 0x1p41f, 3e38f};
    setup();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        g.x[(ROWS - 1) * DIM + 5] = bad[i]; /* in the last row: the rows before it must not be written either */
        REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_VALUE);
        EXPECT(strstr(aura_last_error(), "in[3][5]"), "%s", aura_last_error());
    }
    g.x[5] = 0x1p40f;
    EXPECT(aura_encode(ctx, &g.encode) == AURA_OK, "2^40: %s", aura_last_error());
    setup();
    g.x[2 * DIM] = 4e6f, g.encode.scale_dtype = AURA_F16; /* an RMS of 5e5 */
    REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_VALUE);
    EXPECT(strstr(aura_last_error(), "row 2"), "%s", aura_last_error());
    g.rotation.balance = g.balance, g.balance[5] = INFINITY;
    REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_VALUE);
    aura_codebook_get(AURA_TABLE_GRID, 8, &g.book);
    g.x[2 * DIM] = 7e4f * g.book.centroid[254] * 8, g.encode.scale_dtype = AURA_F16; /* spread over 64 coordinates */
    REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_VALUE);
    for (int d = 0; d < DIM; d++)
        g.x[d] = 6.4e4f; /* its codes are the level just below 1, so the scale is just too large */
    g.encode.rotation = NULL, g.encode.scale_dtype = AURA_F16;
    REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_VALUE);
    g.book.sigma = 0x1p-20f, g.encode.rule = AURA_SCALE_RAW, g.encode.scale_dtype = AURA_F16; /* far below the levels */
    REFUSED(aura_encode(ctx, &g.encode), AURA_BAD_VALUE);
}

/* The limit below which a vector is stored as scale 0. */
static void small_vectors(void)
{
    for (int e = -49; e >= -51; e--) {
        setup();
        memset(g.x, 0, sizeof g.x);
        g.x[0] = ldexpf(1, e);
        EXPECT(!aura_encode(ctx, &g.encode), "%s", aura_last_error());
        EXPECT((g.out.scales[0] == 0) == (e < -50), "a vector of length 2^%d has scale %g", e, (double)g.out.scales[0]);
    }
}

static void decode_misuse(void)
{
    setup();
    REFUSED(aura_decode(ctx, NULL), AURA_BAD_ARGUMENT);
    REFUSED(aura_decode(NULL, &g.decode), AURA_BAD_ARGUMENT);
    g.decode.size = 1;
    REFUSED(aura_decode(ctx, &g.decode), AURA_BAD_ARGUMENT);
    g.decode.codebook = NULL;
    REFUSED(aura_decode(ctx, &g.decode), AURA_BAD_ARGUMENT);
    g.decode.dim = 0;
    REFUSED(aura_decode(ctx, &g.decode), AURA_BAD_ARGUMENT);
    g.decode.out = NULL;
    REFUSED(aura_decode(ctx, &g.decode), AURA_BAD_ARGUMENT);
    g.decode.packed = NULL;
    REFUSED(aura_decode(ctx, &g.decode), AURA_BAD_ARGUMENT);
    g.decode.scales = NULL;
    REFUSED(aura_decode(ctx, &g.decode), AURA_BAD_ARGUMENT);
    g.decode.out_dtype = (aura_dtype)3;
    REFUSED(aura_decode(ctx, &g.decode), AURA_UNSUPPORTED);
    g.decode.out_stride = 8;
    REFUSED(aura_decode(ctx, &g.decode), AURA_BAD_ARGUMENT);
    g.decode.rows = SIZE_MAX;
    REFUSED(aura_decode(ctx, &g.decode), AURA_TOO_LARGE);
    g.decode.out = g.out.packed;
    REFUSED(aura_decode(ctx, &g.decode), AURA_BAD_ARGUMENT);
    g.decode.scales = g.out.y + DIM;
    REFUSED(aura_decode(ctx, &g.decode), AURA_BAD_ARGUMENT);
}

/* A corrupt row cannot read beyond the tables: the 8-bit grid has 255 levels, and this row has index 255. */
static void corrupt_codes_decode_to_the_top_level(void)
{
    setup();
    aura_codebook_get(AURA_TABLE_GRID, 8, &g.book);
    memset(g.out.packed, 0xff, sizeof g.out.packed);
    for (int i = 0; i < ROWS; i++)
        g.out.scales[i] = 1;
    g.decode.rotation = NULL;
    EXPECT(!aura_decode(ctx, &g.decode) && g.out.y[0] == g.book.centroid[254], "%g", (double)g.out.y[0]);
}

/* Calls with strides, other element types or in place give the same results as calls with plain f32 arrays. */
static void strides_and_dtypes(void)
{
    enum { STRIDE = DIM + 13, PACKED = 47 };
    static float plain[ROWS * DIM], wide[ROWS * STRIDE];
    static uint16_t half[ROWS * STRIDE];
    static uint8_t packed[ROWS * PACKED];
    setup();
    for (int i = 0; i < ROWS * DIM; i++)
        g.x[i] = aura_f32_from_bf16(aura_bf16_from_f32(g.x[i]));
    EXPECT(!aura_rotate(ctx, &g.rotate), "%s", aura_last_error());
    memcpy(plain, g.out.y, sizeof plain);

    g.rotate.out = wide, g.rotate.out_stride = STRIDE;
    EXPECT(!aura_rotate(ctx, &g.rotate), "%s", aura_last_error());
    for (int i = 0; i < ROWS * DIM; i++)
        EXPECT(wide[i / DIM * STRIDE + i % DIM] == plain[i], "strided output only, element %d", i);
    memset(wide, 0, sizeof wide);

    for (int i = 0; i < ROWS * DIM; i++)
        half[i / DIM * STRIDE + i % DIM] = aura_bf16_from_f32(g.x[i]);
    g.rotate.in = half, g.rotate.in_dtype = AURA_BF16, g.rotate.in_stride = STRIDE;
    g.rotate.out = wide, g.rotate.out_stride = STRIDE;
    EXPECT(!aura_rotate(ctx, &g.rotate), "%s", aura_last_error());
    for (int i = 0; i < ROWS * DIM; i++)
        EXPECT(wide[i / DIM * STRIDE + i % DIM] == plain[i], "strided bf16 rotate, element %d", i);

    g.rotate.in = wide, g.rotate.in_dtype = AURA_F32; /* in place, back again */
    EXPECT(!aura_undo(ctx, &g.rotate), "%s", aura_last_error());
    for (int i = 0; i < ROWS * DIM; i++)
        EXPECT(fabsf(wide[i / DIM * STRIDE + i % DIM] - g.x[i]) < 1e-5f, "undo in place, element %d", i);

    setup();
    EXPECT(!aura_encode(ctx, &g.encode), "%s", aura_last_error());
    aura_encode_args e = g.encode;
    uint16_t scales[ROWS];
    memset(packed, 0x77, sizeof packed);
    for (int i = 0; i < ROWS * DIM; i++)
        wide[i / DIM * STRIDE + i % DIM] = g.x[i];
    e.in = wide, e.in_stride = STRIDE, e.packed = packed, e.packed_stride = PACKED;
    e.scales = scales, e.scale_dtype = AURA_F16;
    EXPECT(!aura_encode(ctx, &e), "%s", aura_last_error());
    for (int row = 0; row < ROWS; row++) {
        EXPECT(!memcmp(packed + row * PACKED, g.out.packed + row * 32, 32), "codes of row %d", row);
        EXPECT(packed[row * PACKED + 32] == 0x77, "the gap between rows was written");
        EXPECT(scales[row] == aura_f16_from_f32(g.out.scales[row]), "scale of row %d", row);
    }
    aura_decode_args d = g.decode;
    d.packed = packed, d.packed_stride = PACKED, d.scales = scales, d.scale_dtype = AURA_F16;
    d.out = half, d.out_dtype = AURA_F16, d.out_stride = STRIDE;
    EXPECT(!aura_decode(ctx, &d), "%s", aura_last_error());
    for (int i = 0; i < ROWS * DIM; i++)
        EXPECT(fabsf(aura_f32_from_f16(half[i / DIM * STRIDE + i % DIM]) - g.x[i]) < 1.2f, "decoded element %d", i);
}

static void dense_rotation_round_trip(void)
{
    setup();
    g.rotation.kind = AURA_ROTATION_DENSE; /* a cyclic shift */
    g.rotation.balance = g.balance;
    EXPECT(!aura_rotate(ctx, &g.rotate) && g.out.y[0] == 2 * g.x[1], "%s", aura_last_error());
    float back[ROWS * DIM], half[DIM];
    for (int i = 0; i < DIM; i++)
        half[i] = 0.5f;
    g.rotation.balance = half;
    g.rotate.in = g.out.y, g.rotate.out = back;
    EXPECT(!aura_undo(ctx, &g.rotate) && !memcmp(back, g.x, sizeof back), "undo of a permutation is exact");
}

int main(void)
{
    if (aura_ctx_create(NULL, &ctx))
        return 1;
    RUN(versions_and_texts);
    RUN(contexts);
    RUN(codebooks_and_signs);
    RUN(rotate_misuse);
    RUN(encode_misuse);
    RUN(bad_codebooks);
    RUN(bad_vectors);
    RUN(small_vectors);
    RUN(decode_misuse);
    RUN(corrupt_codes_decode_to_the_top_level);
    RUN(strides_and_dtypes);
    RUN(dense_rotation_round_trip);
    aura_ctx_destroy(ctx);
    return test_result();
}
