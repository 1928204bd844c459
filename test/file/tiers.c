/* Pages for tiers: the bytes of a cache's pages, made without one, and its numbers again. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "snapshot_tools.h"

enum { LAYERS = 2, HEADS = 2, TOKENS = 512 };

/* Numbers [2][LAYERS][tokens][HEADS][dim] of a type. */
static void *numbers_of(uint32_t tokens, uint32_t dim, aura_dtype dtype)
{
    const size_t n = (size_t)tokens * HEADS * dim;
    uint8_t *all = malloc(2 * LAYERS * n * aura_dtype_bytes(dtype));
    for (int side = 0; side < 2; side++)
        for (int layer = 0; layer < LAYERS; layer++) {
            float *x = random_tokens((uint64_t)(31 + side * LAYERS + layer), tokens, HEADS, dim, !side);
            aura_store_row(all, dtype, (size_t)(side * LAYERS + layer) * n, x, n);
            free(x);
        }
    return all;
}

static aura_page_codec *codec_of(aura_ctx *in, const aura_config *config)
{
    aura_page_codec *codec = NULL;
    EXPECT(!aura_page_codec_create(in, config, LAYERS, &codec), "%s", aura_last_error());
    return codec;
}

/* A cache that holds one layer, all of it encoded; where its pages are in its snapshot. */
static aura_cache *cache_of(const aura_config *config, const void *numbers, aura_dtype dtype, int layer, aura_seq *seq)
{
    aura_config own = *config;
    own.flags |= AURA_NO_PINNED | AURA_NO_ROLLBACK;
    aura_cache *cache = cache_new(ctx, &own);
    aura_append_job job = AURA_APPEND_JOB_INIT;
    const size_t n = (size_t)TOKENS * HEADS * config->k_dim * aura_dtype_bytes(dtype);
    job.seq = *seq = seq_new(cache), job.tokens = TOKENS, job.k.dtype = job.v.dtype = dtype;
    job.k.data = (const uint8_t *)numbers + (size_t)layer * n, job.v.data = (const uint8_t *)numbers + (size_t)(LAYERS + layer) * n;
    EXPECT(!aura_append(cache, &job, 1), "%s", aura_last_error());
    return cache;
}

static void expect_like_a_cache(const aura_config *config, aura_dtype dtype)
{
    const size_t row = (size_t)HEADS * config->k_dim, n = (size_t)TOKENS * row;
    aura_page_codec *codec = codec_of(ctx, config);
    const size_t bytes = aura_page_codec_bytes(codec, TOKENS), layer_bytes = bytes / 2 / LAYERS;
    uint8_t *pages = malloc(bytes), *numbers = numbers_of(TOKENS, config->k_dim, dtype);
    float *out = malloc(2 * LAYERS * n * sizeof *out), *k = malloc(n * sizeof *k), *v = malloc(n * sizeof *v);
    memset(pages, 0xa5, bytes);
    EXPECT(!aura_pages_encode(codec, numbers, dtype, TOKENS, pages, bytes), "%s", aura_last_error());
    EXPECT(!aura_pages_decode(codec, pages, bytes, TOKENS, out, AURA_F32), "%s", aura_last_error());
    for (int layer = 0; layer < LAYERS; layer++) {
        aura_seq seq;
        aura_cache *cache = cache_of(config, numbers, dtype, layer, &seq);
        EXPECT(!aura_cache_save(cache, file_path("tier"), NULL), "%s", aura_last_error());
        struct bytes file = read_file(file_path("tier"));
        const uint8_t *want = file.data + section_of(file, 0, AURA_SECTION_PAGES)->offset;
        for (int page = 0; page < 2; page++)
            EXPECT(!memcmp(pages + (size_t)(page * LAYERS + layer) * layer_bytes, want + (size_t)page * layer_bytes, layer_bytes),
                   "%s: page %d of layer %d is not the cache's", config_text(config), page, layer);
        aura_view k_view = {k, AURA_F32, 0, 0, NULL}, v_view = {v, AURA_F32, 0, 0, NULL};
        EXPECT(!aura_cache_decode(cache, seq, 0, TOKENS, &k_view, &v_view), "%s", aura_last_error());
        EXPECT(!memcmp(out + (size_t)layer * n, k, n * sizeof *k) && !memcmp(out + (size_t)(LAYERS + layer) * n, v, n * sizeof *v),
               "%s: layer %d decodes to other numbers", config_text(config), layer);
        aura_cache_destroy(cache), free(file.data), unlink(file_path("tier"));
    }
    uint8_t *rounded = malloc(2 * LAYERS * n * 2), *want = malloc(2 * LAYERS * n * 2); /* the same numbers in f16 */
    aura_store_row(want, AURA_F16, 0, out, 2 * LAYERS * n);
    EXPECT(!aura_pages_decode(codec, pages, bytes, TOKENS, rounded, AURA_F16) && !memcmp(rounded, want, 2 * LAYERS * n * 2),
           "%s: other numbers in f16", config_text(config));
    free(rounded), free(want), free(pages), free(numbers), free(out), free(k), free(v), aura_page_codec_destroy(codec);
}

static void pages_are_those_of_a_cache(void)
{
    static const uint32_t some_flags[] = {AURA_NO_SEARCH, AURA_NO_SEARCH | AURA_NO_REFERENCE, 0};
    for (size_t i = 0; i < 2 * N_KINDS && test_bad_lines < 5; i += small_run() ? 5 : 1) {
        const uint32_t dim = dims[i % 5];
        aura_config config = config_of(kinds[i % N_KINDS], kinds[(i / 2 + 3) % N_KINDS], dim, dim, HEADS);
        float *balance = some_balance(HEADS, dim);
        config.flags = small_run() ? AURA_NO_SEARCH : some_flags[i % 3];
        config.balance = i % 2 && !is_plain(config.format.k) ? balance : NULL;
        for (int isa = 0; use_isa(isa); isa++)
            expect_like_a_cache(&config, i % 3 == 1 ? AURA_BF16 : i % 3 == 2 ? AURA_F32 : AURA_F16);
        free(balance);
    }
}

/* Fewer tokens than pages hold, and any number of threads: a tile is as it always is. */
static void a_part_of_a_page(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B8, 64, 64, HEADS);
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    aura_ctx *threads = NULL;
    options.threads = 3;
    EXPECT(!aura_ctx_create(&options, &threads), "%s", aura_last_error());
    aura_page_codec *one = codec_of(ctx, &config), *three = codec_of(threads, &config);
    const size_t bytes = aura_page_codec_bytes(one, TOKENS), n = (size_t)HEADS * 64;
    uint8_t *whole = malloc(bytes), *part = malloc(bytes);
    uint16_t *numbers = numbers_of(TOKENS, 64, AURA_F16), *fewer = malloc(2 * LAYERS * TOKENS * n * sizeof *fewer);
    float *a = malloc(2 * LAYERS * TOKENS * n * sizeof *a), *b = malloc(2 * LAYERS * TOKENS * n * sizeof *b);
    EXPECT(!aura_pages_encode(one, numbers, AURA_F16, TOKENS, whole, bytes) &&
               !aura_pages_encode(three, numbers, AURA_F16, TOKENS, part, bytes) && !memcmp(whole, part, bytes), "threads");
    EXPECT(!aura_pages_decode(one, whole, bytes, TOKENS, a, AURA_F32), "%s", aura_last_error());
    for (uint32_t tokens = 0; tokens <= TOKENS; tokens += 43) {
        const size_t some = aura_page_codec_bytes(one, tokens);
        EXPECT(some == (tokens + 255) / 256 * (bytes / 2), "%u tokens: %zu bytes", tokens, some);
        for (size_t i = 0; i < 2 * LAYERS; i++)
            memcpy(fewer + i * tokens * n, numbers + i * TOKENS * n, tokens * n * sizeof *fewer);
        EXPECT(!aura_pages_encode(three, fewer, AURA_F16, tokens, part, some) &&
                   !aura_pages_decode(three, part, some, tokens, b, AURA_F32), "%s", aura_last_error());
        for (size_t i = 0; i < 2 * LAYERS; i++) { /* tokens of whole tiles */
            const size_t same = (tokens / 32 * 32) * n;
            EXPECT(!memcmp(b + i * tokens * n, a + i * TOKENS * n, same * sizeof *a), "%u tokens: other numbers", tokens);
        }
        for (size_t i = tokens / 256 * 256 * n; i < tokens * n; i++) /* values are 8 bits: all of them come back, nearly */
            EXPECT(fabsf(b[(size_t)LAYERS * tokens * n + i] - aura_f32_from_f16(fewer[(size_t)LAYERS * tokens * n + i])) < 0.1f,
                   "%u tokens: number %zu", tokens, i);
    }
    free(whole), free(part), free(numbers), free(fewer), free(a), free(b);
    aura_page_codec_destroy(one), aura_page_codec_destroy(three), aura_ctx_destroy(threads);
}

static void what_is_refused(void)
{
    aura_config config = config_of(AURA_KIND_B8, AURA_KIND_B8, 64, 64, HEADS);
    aura_page_codec *codec = codec_of(ctx, &config), *none = NULL;
    const size_t bytes = aura_page_codec_bytes(codec, 300), n = (size_t)2 * LAYERS * 300 * HEADS * 64;
    uint8_t *pages = calloc(1, bytes);
    uint16_t *numbers = numbers_of(300, 64, AURA_F16), *out = calloc(n, sizeof *out);
    for (size_t i = 77; i < n; i += n / 9) {
        const uint16_t was = numbers[i];
        numbers[i] = i % 2 ? 0x7e00 : 0x7c00; /* NaN, Inf */
        EXPECT(aura_pages_encode(codec, numbers, AURA_F16, 300, pages, bytes) == AURA_BAD_VALUE, "number %zu", i);
        numbers[i] = was;
    }
    for (size_t i = 0; i < bytes; i++)
        EXPECT(!pages[i], "byte %zu was written", i);
    EXPECT(!aura_pages_encode(codec, numbers, AURA_F16, 300, pages, bytes), "%s", aura_last_error());
    for (size_t i = 11; i < 4 * 64 * 32; i += 999) { /* codes of the first tile: one that none is */
        const uint8_t was = pages[i % 2048];
        pages[i % 2048] = 0x80;
        EXPECT(aura_pages_decode(codec, pages, bytes, 300, out, AURA_F16) == AURA_BAD_FILE, "code %zu", i);
        pages[i % 2048] = was;
    }
    for (size_t i = 0; i < n; i++)
        EXPECT(!out[i], "number %zu was written", i);
    EXPECT(aura_pages_encode(codec, numbers, AURA_F16, 300, pages, bytes - 1) == AURA_BAD_ARGUMENT, "a byte too few");
    EXPECT(aura_pages_encode(codec, pages, AURA_F16, 300, pages, bytes) == AURA_BAD_ARGUMENT, "an overlap");
    EXPECT(aura_pages_encode(codec, numbers, (aura_dtype)7, 300, pages, bytes) == AURA_UNSUPPORTED, "no dtype");
    EXPECT(aura_pages_decode(NULL, pages, bytes, 300, out, AURA_F16) == AURA_BAD_ARGUMENT, "NULL");
    EXPECT(!aura_page_codec_bytes(NULL, 1), "NULL");
    EXPECT(aura_pages_encode(codec, NULL, AURA_F16, 300, pages, bytes) == AURA_BAD_ARGUMENT, "NULL");
    EXPECT(aura_page_codec_create(ctx, &config, 0, &none) == AURA_BAD_ARGUMENT, "no layers");
    config.window = 100;
    EXPECT(aura_page_codec_create(ctx, &config, 1, &none) == AURA_BAD_ARGUMENT && !none, "a window");
    config.window = 0, config.v_dim = 128;
    EXPECT(aura_page_codec_create(ctx, &config, 1, &none) == AURA_BAD_ARGUMENT && !none, "two dims");
    free(pages), free(numbers), free(out), aura_page_codec_destroy(codec), aura_page_codec_destroy(NULL);
}

int main(void)
{
    if (!files_begin() || aura_ctx_create(NULL, &ctx))
        return 1;
    aura_ctx *first = ctx;
    isas_open(0);
    RUN(pages_are_those_of_a_cache);
    ctx = first;
    RUN(a_part_of_a_page);
    RUN(what_is_refused);
    isas_close();
    aura_ctx_destroy(first);
    files_end();
    return test_result();
}
