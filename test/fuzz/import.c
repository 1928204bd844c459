/* Imports rows of the public families, in every shape, into a cache, and exports them again. Buffers have exactly the documented
 * sizes. A refused import changes nothing; after a good one the cache can be used. */
#include "../../include/aura_rows.h"
#include "fuzz.h"

enum { MOST_TOKENS = 70, HEADS = 2 };

static const aura_dtype dtypes[] = {AURA_F32, AURA_F16, AURA_BF16, (aura_dtype)3};

/* Bytes of the input, or zeros, in memory of their own, so that a sanitizer notices an access behind the end. */
static void *buffer(struct source *s, size_t bytes)
{
    void *memory = malloc(bytes + 1);
    take(s, memory, bytes);
    return realloc(memory, bytes ? bytes : 1);
}

/* Numbers of a dtype; all but one are ordinary. */
static void *numbers(struct source *s, aura_dtype dtype, size_t n)
{
    uint8_t *memory = buffer(s, 0);
    size_t size = aura_dtype_bytes(dtype) ? aura_dtype_bytes(dtype) : 4;
    memory = realloc(memory, n * size + 1);
    for (size_t i = 0; i < n; i++) {
        float x = 1 + (float)(i % 5) / 8;
        uint32_t bits;
        memcpy(&bits, &x, 4);
        uint16_t half = dtype == AURA_F16 ? (uint16_t)(0x3c00 + i % 7) : (uint16_t)(bits >> 16);
        memcpy(memory + i * size, size == 4 ? (void *)&bits : (void *)&half, size);
    }
    if (n)
        take(s, memory + take_u16(s) % n * size, size);
    return realloc(memory, n ? n * size : 1);
}

static aura_cache *cache_of(struct source *s, uint32_t dim, aura_seq *seq)
{
    aura_config config = AURA_CONFIG_INIT;
    aura_cache *cache = NULL;
    uint8_t kinds = take_u8(s);
    config.format.k = (aura_kind)(2 + kinds % 8), config.format.v = (aura_kind)(2 + kinds / 8 % 8);
    config.format.k = config.format.k == 7 ? AURA_KIND_BF16 : config.format.k;
    config.format.v = config.format.v == 7 ? AURA_KIND_BF16 : config.format.v;
    config.q_heads = config.kv_heads = HEADS, config.k_dim = dim;
    config.budget_bytes = FUZZ_BUDGET;
    MUST(!aura_cache_create(fuzz_ctx, &config, &cache) && !aura_seq_create(cache, seq));
    return cache;
}

/* Demands that an import stored all tokens, or failed and stored none. */
static void expect_import(aura_cache *cache, aura_seq seq, aura_status status, uint32_t tokens)
{
    aura_seq_info info = AURA_SEQ_INFO_INIT;
    MUST(!aura_seq_get_info(cache, seq, &info) && info.tokens == (status ? 0 : tokens));
    fuzz_use(cache, seq);
}

/* ---- rows of the AURA kernels ---- */

static aura_packed packed_of(struct source *s, uint32_t tokens)
{
    aura_packed p = AURA_PACKED_INIT;
    p.bits = take_u8(s) % 10;
    p.stride = take_u8(s) % 3 ? take_u8(s) % (MOST_TOKENS + 10) : 0;
    p.norm_dtype = dtypes[take_u8(s) % 4], p.codebook_dtype = dtypes[take_u8(s) % 4];
    size_t rows = HEADS * (p.stride ? p.stride : tokens);
    p.codebook = numbers(s, p.codebook_dtype, (size_t)1 << p.bits);
    p.norms = numbers(s, p.norm_dtype, rows);
    p.codes = buffer(s, rows * aura_row_bytes(64, p.bits));
    return p;
}

static void packed_free(aura_packed p)
{
    free((void *)p.codes), free((void *)p.norms), free((void *)p.codebook);
}

static aura_rotation rotation_of(struct source *s, uint8_t *signs)
{
    aura_rotation r = AURA_ROTATION_INIT;
    uint8_t how = take_u8(s);
    take(s, signs, 64);
    r.kind = (aura_rotation_kind)(how % 16 ? 0 : how / 16 % 3);
    r.dim = how & 1 ? 64 : take_u8(s);
    r.signs = how & 2 ? signs : NULL;
    r.balance = how & 4 ? (const float *)(const void *)signs : NULL;
    r.balance = r.dim <= 16 ? r.balance : NULL;
    r.matrix = how & 8 && r.dim <= 128 ? fuzz_numbers : NULL;
    return r;
}

static void rows(struct source *s)
{
    aura_seq seq;
    aura_cache *cache = cache_of(s, 64, &seq);
    aura_import_rows_args args = AURA_IMPORT_ROWS_ARGS_INIT;
    uint8_t signs[2][64], how = take_u8(s);
    aura_rotation k = rotation_of(s, signs[0]), v = rotation_of(s, signs[1]);
    args.seq = seq, args.tokens = take_u8(s) % MOST_TOKENS;
    args.k = packed_of(s, args.tokens), args.v = packed_of(s, args.tokens);
    args.k_rotation = how & 1 ? &k : NULL, args.v_rotation = how & 2 ? &v : NULL;
    expect_import(cache, seq, aura_import_rows(cache, &args), args.tokens);
    packed_free(args.k), packed_free(args.v);

    aura_export_rows_args out = AURA_EXPORT_ROWS_ARGS_INIT;
    aura_codebook book;
    if (!aura_codebook_get((aura_table)(1 + take_u8(s) % 4), 1 + take_u8(s) % 8, &book)) {
        out.seq = seq, out.first = take_u8(s) % MOST_TOKENS, out.tokens = take_u8(s) % MOST_TOKENS;
        out.k.codebook = &book, out.k.rotation = how & 4 ? &k : NULL, out.k.rule = (aura_scale_rule)(how / 8 % 4);
        out.k.search = how / 32 % 2, out.k.tiny = take_f32(s), out.k.norm_dtype = dtypes[take_u8(s) % 4],
            out.k.stride = take_u8(s) % MOST_TOKENS;
        size_t n = HEADS * (out.k.stride ? out.k.stride : out.tokens);
        out.k.codes = malloc(n * aura_row_bytes(64, book.bits) + 1), out.k.norms = malloc(n * 4 + 1);
        aura_export_rows(cache, &out);
        free(out.k.codes), free(out.k.norms);
    }
    aura_cache_destroy(cache);
}

/* ---- caches of mlx-native ---- */

static aura_vec_side side_of(struct source *s, uint64_t capacity)
{
    aura_vec_side side = AURA_VEC_SIDE_INIT;
    size_t n = HEADS * (size_t)capacity;
    side.bits = take_u8(s) % 10, side.dtype = dtypes[take_u8(s) % 4];
    if (side.bits) {
        side.norms = numbers(s, AURA_F32, n);
        side.rows = buffer(s, n * (side.bits == 4 ? 128 : 256));
    } else {
        side.rows = numbers(s, side.dtype, n * 256);
    }
    return side;
}

static void tq(struct source *s)
{
    aura_seq seq;
    aura_cache *cache = cache_of(s, 256, &seq);
    aura_import_tq_args args = AURA_IMPORT_TQ_ARGS_INIT;
    args.seq = seq, args.tokens = take_u8(s) % 40, args.capacity = take_u8(s) % 40, args.ring_start = take_u8(s) % 41;
    args.k = side_of(s, args.capacity), args.v = side_of(s, args.capacity);
    args.scale_factor_d512 = take_f32(s);
    expect_import(cache, seq, aura_import_tq(cache, &args), args.tokens);
    free((void *)args.k.rows), free((void *)args.k.norms), free((void *)args.v.rows), free((void *)args.v.norms);

    aura_export_tq_args out = AURA_EXPORT_TQ_ARGS_INIT;
    out.seq = seq, out.first = take_u8(s) % 40, out.tokens = take_u8(s) % 40, out.capacity = take_u8(s) % 40;
    out.write_pos = take_u8(s) % 41, out.sliding = take_u8(s) % 2;
    out.k.bits = take_u8(s) % 10, out.k.dtype = dtypes[take_u8(s) % 4];
    size_t n = HEADS * (size_t)out.capacity;
    out.k.rows = malloc(n * (out.k.bits == 4 ? 128 : out.k.bits ? 256
                             : 256 * (aura_dtype_bytes(out.k.dtype) ? aura_dtype_bytes(out.k.dtype) : 4)) + 1);
    out.k.norms = malloc(n * 4 + 1);
    aura_export_tq(cache, &out);
    free(out.k.rows), free(out.k.norms);
    aura_cache_destroy(cache);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct source s = {data, size};
    fuzz_begin();
    if (take_u8(&s) % 2)
        tq(&s);
    else
        rows(&s);
    return 0;
}
