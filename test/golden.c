/* Golden bytes: what the stages give for fixed inputs, on every instruction set this machine has. The file was made by
 *
 *     build/test/gcc/test_golden --write > test/golden/rows.txt
 *
 * After these lines it has lines about pages of other formats, each made by
 *
 *     build/test/gcc/test_golden --page BITS DIM >> test/golden/rows.txt
 *
 * A line that changes is a broken promise to everyone who has stored such bytes. The program uses the public header
 * only, so that it can be linked with a library built by any compiler. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../include/aura_rows.h"
#include "test.h"

enum { ROWS = 8 };

/* Inputs from integers alone: the same floats everywhere. A few rows are zero, tiny, or have an outlier. */
static void fill(float *x, uint32_t dim, uint64_t seed)
{
    for (uint32_t i = 0; i < ROWS * dim; i++) {
        int sum = 0;
        for (int k = 0; k < 4; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            sum += (int)(seed >> 48) - 32768;
        }
        x[i] = (float)sum / 32768.f;
        if (i / dim == 3)
            x[i] *= 0x1p-70f;
        if (i / dim == 4)
            x[i] = 0;
        if (i / dim == 5 && i % 7 == 0)
            x[i] *= 40.f;
    }
}

static uint64_t hash(uint64_t h, const void *data, size_t n)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

static int rotate_line(char *line, size_t size, const aura_ctx *ctx, uint32_t dim, int undo)
{
    static float x[ROWS * AURA_MAX_DIM], y[ROWS * AURA_MAX_DIM], balance[AURA_MAX_DIM];
    uint8_t signs[AURA_MAX_DIM / 8] = {0};
    aura_rotation rotation = AURA_ROTATION_INIT;
    aura_rotate_args args = AURA_ROTATE_ARGS_INIT;
    aura_signs(42, (uint32_t)undo, dim, signs);
    for (uint32_t d = 0; d < dim; d++)
        balance[d] = 0.5f + (float)(d % 5) * 0.25f;
    fill(x, dim, dim);
    rotation.dim = dim;
    rotation.signs = signs;
    rotation.balance = balance;
    args.rotation = &rotation;
    args.rows = ROWS;
    args.in = x;
    args.out = y;
    if (undo ? aura_undo(ctx, &args) : aura_rotate(ctx, &args))
        return 0;
    snprintf(line, size, "%s dim %u signs %02x%02x %016llx", undo ? "undo" : "rotate", dim, signs[0], signs[1],
             (unsigned long long)hash(0xcbf29ce484222325u, y, sizeof *y * ROWS * dim));
    return 1;
}

static int encode_line(char *line, size_t size, const aura_ctx *ctx, int table, uint32_t bits, uint32_t dim,
                       aura_scale_rule rule, uint32_t search)
{
    static float x[ROWS * AURA_MAX_DIM], back[ROWS * AURA_MAX_DIM], scales[ROWS];
    static uint8_t packed[ROWS * AURA_MAX_DIM];
    uint8_t signs[AURA_MAX_DIM / 8];
    size_t row_bytes = aura_row_bytes(dim, bits), n;
    aura_codebook book;
    aura_rotation rotation = AURA_ROTATION_INIT;
    aura_encode_args in = AURA_ENCODE_ARGS_INIT;
    aura_decode_args out = AURA_DECODE_ARGS_INIT;
    if (aura_codebook_get((aura_table)table, bits, &book) || aura_signs(7, 0, dim, signs))
        return 0;
    fill(x, dim, bits);
    rotation.dim = dim;
    rotation.signs = signs;
    in.codebook = out.codebook = &book;
    in.rotation = out.rotation = &rotation;
    in.dim = out.dim = dim;
    in.rows = out.rows = ROWS;
    in.in = x;
    in.packed = packed;
    in.scales = scales;
    in.rule = rule;
    in.search = search;
    out.packed = packed;
    out.scales = scales;
    out.out = back;
    if (aura_encode(ctx, &in) || aura_decode(ctx, &out))
        return 0;
    n = (size_t)snprintf(line, size, "encode book %02x dim %u rule %d search %u codes %016llx scales %016llx decoded "
                         "%016llx first ", book.id, dim, (int)rule, search,
                         (unsigned long long)hash(0xcbf29ce484222325u, packed, ROWS * row_bytes),
                         (unsigned long long)hash(0xcbf29ce484222325u, scales, sizeof scales),
                         (unsigned long long)hash(0xcbf29ce484222325u, back, sizeof *back * ROWS * dim));
    for (size_t i = 0; i < 8; i++)
        n += (size_t)snprintf(line + n, size - n, "%02x", packed[i]);
    return 1;
}

/* A TQ or TQ-HB cache of 8 slots, written round its end. */
static int tq_line(char *line, size_t size, const aura_ctx *ctx, uint32_t bits, uint32_t dim)
{
    static float x[ROWS * AURA_MAX_DIM], norms[2 * ROWS];
    static uint8_t packed[ROWS * 512];
    size_t bytes = ROWS * (bits == 4 ? dim / 2 : dim);
    aura_tq_encode_args args = AURA_TQ_ENCODE_ARGS_INIT;
    fill(x, dim, bits);
    args.dim = dim, args.bits = bits, args.kv_heads = 2, args.tokens = ROWS / 2, args.capacity = ROWS / 2;
    args.write_pos = 3, args.sliding = 1;
    args.in = x, args.packed = packed, args.norms = norms;
    if (aura_tq_encode(ctx, &args))
        return 0;
    snprintf(line, size, "tq dim %u bits %u codes %016llx norms %016llx first %02x%02x%02x%02x", dim, bits,
             (unsigned long long)hash(0xcbf29ce484222325u, packed, bytes),
             (unsigned long long)hash(0xcbf29ce484222325u, norms, ROWS * dim / 256 * sizeof *norms), packed[0], packed[1],
             packed[2], packed[3]);
    return 1;
}

/* An allocator for a cache. It zeroes memory, so that columns without a token are 0, and remembers the last block of
 * `slab_bytes`: it has the pages. */
static size_t slab_bytes;
static void *slab;

static void *zeroed(void *user, size_t bytes, size_t align)
{
    size_t rounded = (bytes + align - 1) / align * align;
    void *memory = aligned_alloc(align, rounded);
    (void)user;
    if (memory)
        memset(memory, 0, rounded);
    if (bytes == slab_bytes)
        slab = memory;
    return memory;
}

static void release(void *user, void *memory, size_t bytes)
{
    (void)user, (void)bytes;
    free(memory);
}

/* The bytes of a page with two closed tiles, a reference included. */
static int page_line(char *line, size_t size, uint32_t isas, uint32_t bits, uint32_t dim)
{
    static float x[16 * ROWS * 512];
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    aura_config config = AURA_CONFIG_INIT;
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    aura_append_job job = AURA_APPEND_JOB_INIT;
    aura_ctx *ctx;
    aura_cache *cache;
    options.isa_mask = isas;
    options.allocator.alloc = zeroed, options.allocator.free = release;
    config.format.k = config.format.v = (aura_kind)bits, config.q_heads = config.kv_heads = 2, config.k_dim = dim;
    config.flags = AURA_NO_PINNED | AURA_NO_ROLLBACK, config.seed = 42;
    for (uint32_t i = 0; i < 16; i++)
        fill(x + i * ROWS * dim, dim, bits + 100 * i);
    job.tokens = 64, job.k.data = x, job.v.data = x;
    slab_bytes = 0;
    if (aura_ctx_create(&options, &ctx) || aura_cache_create(ctx, &config, &cache) || aura_cache_get_info(cache, &info))
        return 0;
    slab_bytes = 64 + info.page_bytes + 64; /* one page and its head, and the slab's own 64 bytes */
    if (aura_seq_create(cache, &job.seq) || aura_append(cache, &job, 1) || !slab)
        return 0;
    const uint8_t *page = (const uint8_t *)slab + 64;
    snprintf(line, size, "page k%uv%u dim %u bytes %zu %016llx first %02x%02x%02x%02x%02x%02x%02x%02x", bits, bits, dim,
             info.page_bytes, (unsigned long long)hash(0xcbf29ce484222325u, page, info.page_bytes), page[0], page[1],
             page[2], page[3], page[4], page[5], page[6], page[7]);
    aura_cache_destroy(cache);
    aura_ctx_destroy(ctx);
    return 1;
}

/* Line number `i` of those that --write gives; 0 past the last. */
static int golden_line(char *line, size_t size, const aura_ctx *ctx, int i)
{
    /* Lists of their own, not those of src/variants.h: what is added there must not move a line of the file. */
    static const uint32_t rotate_dims[] = {8, 64, 72, 80, 88, 96, 112, 120, 128, 192, 256, 320, 512, 576, 1024};
    static const uint32_t encode_dims[] = {64, 72, 80, 96, 112, 128, 192, 256, 512};
    static const uint32_t page_dims[] = {64, 80, 128, 512};
    static const uint32_t widths[] = {2, 3, 4, 5, 6, 8};
    int n = sizeof rotate_dims / sizeof *rotate_dims, at;
    if (i < 2 * n)
        return rotate_line(line, size, ctx, rotate_dims[i / 2], i % 2);
    at = 2 * n;
    for (int table = AURA_TABLE_EXACT; table <= AURA_TABLE_TQ; table++)
        for (int w = 0; w < 6; w++)
            for (int d = 0; d < 9; d++) {
                aura_codebook book;
                if (aura_codebook_get((aura_table)table, widths[w], &book))
                    continue;
                if (at++ == i)
                    return encode_line(line, size, ctx, table, widths[w], encode_dims[d],
                                       (aura_scale_rule)((w + d) % 3), (uint32_t)(d + table) % 2);
            }
    for (int w = 2; w < 6; w++)
        for (uint32_t dim = 256; dim <= 512; dim += 256)
            if (at++ == i)
                return tq_line(line, size, ctx, widths[w], dim);
    for (int w = 0; w < 6; w++)
        for (int d = 0; d < 4; d++)
            if (at++ == i)
                return page_line(line, size, aura_ctx_isas(ctx), widths[w], page_dims[d]);
    return 0;
}

static void make_path(char *path, size_t size)
{
    const char *slash = strrchr(__FILE__, '/');
    snprintf(path, size, "%.*sgolden/rows.txt", slash ? (int)(slash - __FILE__) + 1 : 0, __FILE__);
}

/* What line `i` of the file, which is `want`, should be. The lines after those of --write say themselves what they are of. */
static int expected_line(char *line, size_t size, const aura_ctx *ctx, int i, const char *want)
{
    unsigned k, v, dim;
    if (golden_line(line, size, ctx, i))
        return 1;
    return sscanf(want, "page k%uv%u dim %u ", &k, &v, &dim) == 3 && page_line(line, size, aura_ctx_isas(ctx), k, dim);
}

static uint32_t current_isa;

static void golden_rows(void)
{
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    aura_ctx *ctx;
    char path[512], want[512], got[512];
    int i = 0;
    make_path(path, sizeof path);
    FILE *file = fopen(path, "r");
    options.isa_mask = current_isa;
    EXPECT(file, "cannot open %s", path);
    if (!file || aura_ctx_create(&options, &ctx))
        return;
    EXPECT(aura_ctx_isas(ctx) == (current_isa | AURA_ISA_REF), "the mask was not honoured");
    while (fgets(want, sizeof want, file)) {
        want[strcspn(want, "\n")] = 0;
        EXPECT(expected_line(got, sizeof got, ctx, i, want), "line %d: %s", i + 1, aura_last_error());
        EXPECT(!strcmp(got, want), "line %d\n    want %s\n    got  %s", i + 1, want, got);
        i++;
    }
    EXPECT(i > 200 && !golden_line(got, sizeof got, ctx, i), "the file has %d lines, there are more", i);
    fclose(file);
    aura_ctx_destroy(ctx);
}

int main(int argc, char **argv)
{
    static const struct {
        uint32_t flag;
        const char *name;
    } isas[] = {{AURA_ISA_REF, "golden_rows ref"},
                {AURA_ISA_AVX2, "golden_rows avx2"},
                {AURA_ISA_AVX512, "golden_rows avx512"},
                {AURA_ISA_NEON, "golden_rows neon"}};
    if (argc > 1 && !strcmp(argv[1], "--write")) {
        aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
        aura_ctx *ctx;
        char line[512];
        options.isa_mask = AURA_ISA_REF;
        if (aura_ctx_create(&options, &ctx))
            return 1;
        for (int i = 0; golden_line(line, sizeof line, ctx, i); i++)
            puts(line);
        aura_ctx_destroy(ctx);
        return 0;
    }
    if (argc > 3 && !strcmp(argv[1], "--page")) {
        char line[512];
        return !page_line(line, sizeof line, AURA_ISA_REF, (uint32_t)atoi(argv[2]), (uint32_t)atoi(argv[3])) || puts(line) < 0;
    }
    for (int i = 0; i < 4; i++) /* what a machine cannot run, the run on another architecture covers */
        if (aura_cpu_isas() & isas[i].flag) {
            current_isa = isas[i].flag;
            test_run(isas[i].name, golden_rows);
        }
    return test_result();
}
