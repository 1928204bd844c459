/* Tools of the tests of the cache: tensors of every layout and dtype, an allocator that counts, caches and sequences with their
 * models. */
#ifndef AURA_TEST_CACHE_TOOLS_H
#define AURA_TEST_CACHE_TOOLS_H

#include "cache_model.h"

#include <stdio.h>

/* ---- tensors --------------------------------------------------------------------------------------------------------- */

enum layout {
    DENSE,       /* strides 0: [token][head][dim] */
    PADDED,      /* the same with gaps between heads and between tokens */
    HEADS_FIRST, /* [head][token][dim] */
    BACKWARDS,   /* the newest token first: a negative token stride */
    MIRRORED,    /* the last head first: a negative head stride */
    N_LAYOUTS
};

/* Memory of exactly the size that a view needs, so that a sanitizer notices an access behind it. */
struct tensor {
    uint32_t tokens, heads, dim;
    aura_view view;
    char *memory;
    size_t elements;
};

static inline struct tensor tensor_new(uint32_t tokens, uint32_t heads, uint32_t dim, aura_dtype dtype, enum layout layout)
{
    struct tensor t = {tokens, heads, dim, AURA_VIEW_INIT, NULL, (size_t)tokens * heads * dim};
    ptrdiff_t row = (ptrdiff_t)dim, all = (ptrdiff_t)heads * row, start = 0;
    t.view.dtype = dtype;
    if (layout == PADDED) {
        t.view.head_stride = row + 3, t.view.token_stride = (ptrdiff_t)heads * (row + 3) + 5;
        t.elements = (tokens - 1) * (size_t)t.view.token_stride + (heads - 1) * (size_t)t.view.head_stride + dim;
    } else if (layout == HEADS_FIRST) {
        t.view.head_stride = (ptrdiff_t)tokens * row, t.view.token_stride = row;
    } else if (layout == BACKWARDS) {
        t.view.token_stride = -all, start = (ptrdiff_t)(tokens - 1) * all;
    } else if (layout == MIRRORED) {
        t.view.head_stride = -row, t.view.token_stride = all, start = (ptrdiff_t)(heads - 1) * row;
    }
    t.memory = malloc(t.elements * aura_dtype_bytes(dtype) + 1);
    memset(t.memory, 0xff, t.elements * aura_dtype_bytes(dtype)); /* NaN in every dtype */
    t.view.data = t.memory + start * (ptrdiff_t)aura_dtype_bytes(dtype);
    return t;
}

static inline void tensor_free(struct tensor *t)
{
    free(t->memory);
    t->memory = NULL;
}

/* What was written, to be read. */
static inline aura_input as_input(aura_view v)
{
    aura_input in = {v.data, v.dtype, v.token_stride, v.head_stride, v.rows};
    return in;
}

/* The tensor from token `first` on. */
static inline aura_input tensor_from(const struct tensor *t, uint32_t first)
{
    aura_input view = as_input(t->view);
    ptrdiff_t stride = view.token_stride ? view.token_stride : (ptrdiff_t)t->heads * (ptrdiff_t)t->dim;
    view.data = (const char *)view.data + (ptrdiff_t)first * stride * (ptrdiff_t)aura_dtype_bytes(view.dtype);
    return view;
}

/* Element 0 of a row, counted in elements from the start of memory. */
static inline size_t tensor_at(const struct tensor *t, uint32_t token, uint32_t head)
{
    ptrdiff_t row = t->view.head_stride ? t->view.head_stride : (ptrdiff_t)t->dim;
    ptrdiff_t start = ((const char *)tensor_from(t, token).data - t->memory) / (ptrdiff_t)aura_dtype_bytes(t->view.dtype);
    return (size_t)(start + (ptrdiff_t)head * row);
}

/* From and to plain f32, [tokens][heads][dim]. */
static inline void tensor_set(struct tensor *t, const float *x)
{
    for (uint32_t i = 0; i < t->tokens; i++)
        for (uint32_t h = 0; h < t->heads; h++, x += t->dim)
            aura_store_row(t->memory, t->view.dtype, tensor_at(t, i, h), x, t->dim);
}

static inline void tensor_get(float *x, const struct tensor *t)
{
    for (uint32_t i = 0; i < t->tokens; i++)
        for (uint32_t h = 0; h < t->heads; h++, x += t->dim)
            aura_load_row(x, t->memory, t->view.dtype, tensor_at(t, i, h), t->dim);
}

static inline void tensor_fill(struct tensor *t, int byte)
{
    memset(t->memory, byte, t->elements * aura_dtype_bytes(t->view.dtype));
}

/* Whether all bytes between rows are still `byte`. It overwrites the rows with `byte` first. */
static inline int tensor_gaps_are(struct tensor *t, int byte)
{
    size_t size = aura_dtype_bytes(t->view.dtype);
    for (uint32_t i = 0; i < t->tokens; i++)
        for (uint32_t h = 0; h < t->heads; h++)
            memset(t->memory + tensor_at(t, i, h) * size, byte, t->dim * size);
    for (size_t i = 0; i < t->elements * size; i++)
        if ((uint8_t)t->memory[i] != (uint8_t)byte)
            return 0;
    return 1;
}

/* Keys and values as in real models: keys with some large channels and an offset that drifts from page to page, so that a missing
 * or wrong reference shows. [tokens][heads][dim] */
static inline float *random_tokens(uint64_t seed, uint32_t tokens, uint32_t heads, uint32_t dim, int keys)
{
    float *x = malloc((size_t)tokens * heads * dim * sizeof *x + 1), *at = x;
    for (uint32_t i = 0; i < tokens; i++)
        for (uint32_t h = 0; h < heads; h++)
            for (uint32_t d = 0; d < dim; d++) {
                float offset = keys ? (float)((d * 7 + h * 3) % 11) * 0.3f - 1.5f + (float)(i / 300) * (d % 3 ? 0.2f : -0.1f) : 0;
                *at++ = random_normal(&seed) * (keys && d % 13 == 5 ? 3.f : 1.f) + offset;
            }
    return x;
}

/* Factors as from aura_calibration: between 1/4 and 4, different for every head. */
static inline float *some_balance(uint32_t heads, uint32_t dim)
{
    float *balance = malloc((size_t)heads * dim * sizeof *balance);
    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t d = 0; d < dim; d++)
            balance[h * dim + d] = ldexpf(1.f + 0.1f * (float)((d + h) % 7), (int)((d * 5 + h) % 4) - 2);
    return balance;
}

/* ---- instruction sets ---------------------------------------------------------------------------------------------------- */

/* Contexts for all instruction sets at once, so that a model or an oracle, which is slower than the cache, is made only once. */
static struct {
    aura_ctx *ctx;
    const char *name;
} isas[16];
static int n_isas;

static inline void isas_add(void)
{
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    options.isa_mask = aura_ctx_isas(ctx);
    isas[n_isas].name = test_suffix;
    if (!aura_ctx_create(&options, &isas[n_isas].ctx))
        n_isas++;
}

/* for (int i = 0; use_isa(i); i++): ctx is the context of instruction set i; after the loop, that of the best. */
static inline int use_isa(int i)
{
    ctx = isas[i < n_isas ? i : n_isas - 1].ctx;
    test_suffix = i < n_isas ? isas[i].name : NULL;
    return i < n_isas;
}

/* derived: also the instruction sets that have kernels for integer products only. */
static inline void isas_open(int derived)
{
    on_isas(isas_add, derived);
    use_isa(n_isas);
}

static inline void isas_close(void)
{
    while (n_isas)
        aura_ctx_destroy(isas[--n_isas].ctx);
}

/* ---- an allocator that counts --------------------------------------------------------------------------------------- */

enum { MAX_BLOCKS = 4096 };

/* Blocks have exactly the alignment asked for and no better, and are full of `fill`. */
struct counting {
    size_t bytes, calls, blocks;
    long fail_in; /* how many allocations succeed before one fails; negative: none fails */
    int fill, failed, wrong;
    struct {
        void *memory, *whole;
        size_t bytes;
    } block[MAX_BLOCKS];
};

static inline void *counting_alloc(void *user, size_t bytes, size_t align)
{
    struct counting *c = user;
    c->calls++;
    if (c->fail_in >= 0 && c->fail_in-- == 0) {
        c->failed = 1;
        return NULL;
    }
    if (c->blocks == MAX_BLOCKS || align == 0 || align & (align - 1) || align > (size_t)2 << 20) {
        c->wrong++;
        return NULL;
    }
    char *whole = malloc(bytes + 3 * align);
    char *memory = whole + (2 * align - (uintptr_t)whole % (2 * align)) + align; /* an odd multiple of align */
    memset(memory, c->fill, bytes);
    c->block[c->blocks].memory = memory, c->block[c->blocks].whole = whole, c->block[c->blocks].bytes = bytes;
    c->blocks++;
    c->bytes += bytes;
    return memory;
}

static inline void counting_free(void *user, void *memory, size_t bytes)
{
    struct counting *c = user;
    for (size_t i = 0; i < c->blocks; i++)
        if (c->block[i].memory == memory && c->block[i].bytes == bytes) {
            free(c->block[i].whole);
            c->block[i] = c->block[--c->blocks];
            c->bytes -= bytes;
            return;
        }
    c->wrong++; /* not ours, or not of that size */
}

/* A context like the one under test, with this allocator and that many threads. */
static inline aura_ctx *counting_ctx(struct counting *c, int fill, uint32_t threads)
{
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    aura_ctx *made = NULL;
    memset(c, 0, sizeof *c);
    c->fill = fill, c->fail_in = -1;
    options.isa_mask = aura_ctx_isas(ctx);
    options.threads = threads;
    options.allocator.alloc = counting_alloc, options.allocator.free = counting_free, options.allocator.user = c;
    EXPECT(!aura_ctx_create(&options, &made), "%s", aura_last_error());
    return made;
}

/* ---- a cache, its sequence, its model ------------------------------------------------------------------------------- */

/* A cache without the search for the best scale: with it, ref*.c takes five times as long, and only codes change. */
static inline aura_config config_of(aura_kind k, aura_kind v, uint32_t k_dim, uint32_t v_dim, uint32_t kv_heads)
{
    aura_config c = AURA_CONFIG_INIT;
    c.format.k = k, c.format.v = v;
    c.k_dim = k_dim, c.v_dim = v_dim;
    c.q_heads = c.kv_heads = kv_heads;
    c.flags = AURA_NO_SEARCH;
    c.seed = 11;
    return c;
}

static inline const char *config_text(const aura_config *c)
{
    static char text[128];
    char name[16] = "?";
    aura_format_name(c->format, name);
    snprintf(text, sizeof text, "%s %s dims %u/%u heads %u/%u flags %u rollback %u", test_suffix ? test_suffix : "", name,
             c->k_dim, c->v_dim, c->q_heads, c->kv_heads, c->flags, c->rollback);
    return text;
}

static inline aura_cache *cache_new(aura_ctx *in, const aura_config *c)
{
    aura_cache *cache = NULL;
    EXPECT(!aura_cache_create(in, c, &cache), "%s: %s", config_text(c), aura_last_error());
    return cache;
}

static inline aura_seq seq_new(aura_cache *cache)
{
    aura_seq seq = 0;
    EXPECT(!aura_seq_create(cache, &seq) && seq, "%s", aura_last_error());
    return seq;
}

/* Tokens [first, first + n) of k and v. */
static inline aura_append_job append_job(aura_seq seq, const struct tensor *k, const struct tensor *v, uint32_t first, uint32_t n)
{
    aura_append_job job = AURA_APPEND_JOB_INIT;
    job.seq = seq, job.tokens = n;
    job.k = tensor_from(k, first), job.v = tensor_from(v, first);
    return job;
}

static inline aura_status append(aura_cache *cache, aura_seq seq, const struct tensor *k, const struct tensor *v,
                                 uint32_t first, uint32_t n)
{
    aura_append_job job = append_job(seq, k, v, first, n);
    return aura_append(cache, &job, 1);
}

static inline uint64_t seq_tokens(const aura_cache *cache, aura_seq seq)
{
    aura_seq_info info = AURA_SEQ_INFO_INIT;
    return aura_seq_get_info(cache, seq, &info) ? UINT64_MAX : info.tokens;
}

/* The number of rows of a side that differ from the model's, bit by bit; the first of them in *token. */
static inline uint32_t differing_rows(const float *got, const float *want, uint64_t n, uint32_t heads, uint32_t dim,
                                      uint64_t *token)
{
    uint32_t wrong = 0;
    for (uint64_t row = 0; row < n * heads; row++, got += dim, want += dim)
        if (memcmp(got, want, dim * sizeof *got) && wrong++ == 0)
            *token = row / heads;
    return wrong;
}

/* The sequence holds exactly what its model does, in tokens [first, first + n). */
static inline void expect_range(const aura_cache *cache, aura_seq seq, struct model *m, uint64_t first, uint64_t n,
                                const char *what)
{
    float *k = malloc(n * m->k.heads * m->k.dim * sizeof *k + 1), *v = malloc(n * m->v.heads * m->v.dim * sizeof *v + 1);
    float *want_k = malloc(n * m->k.heads * m->k.dim * sizeof *k + 1), *want_v = malloc(n * m->v.heads * m->v.dim * sizeof *v + 1);
    aura_view k_view = {k, AURA_F32, 0, 0, NULL}, v_view = {v, AURA_F32, 0, 0, NULL};
    uint64_t token = 0;
    aura_status status = aura_cache_decode(cache, seq, first, (uint32_t)n, &k_view, &v_view);
    EXPECT(!status, "%s: decode %llu + %llu: %s", what, (unsigned long long)first, (unsigned long long)n, aura_last_error());
    if (!status) {
        model_decode(want_k, m, &m->k, first, n);
        model_decode(want_v, m, &m->v, first, n);
        uint32_t wrong_k = differing_rows(k, want_k, n, m->k.heads, m->k.dim, &token);
        EXPECT(!wrong_k, "%s: %u keys differ at length %llu, the first is token %llu", what, wrong_k,
               (unsigned long long)m->len, (unsigned long long)(first + token));
        uint32_t wrong_v = differing_rows(v, want_v, n, m->v.heads, m->v.dim, &token);
        EXPECT(!wrong_v, "%s: %u values differ at length %llu, the first is token %llu", what, wrong_v,
               (unsigned long long)m->len, (unsigned long long)(first + token));
    }
    free(k), free(v), free(want_k), free(want_v);
}

/* All of it, and its lengths. */
static inline void expect_model(const aura_cache *cache, aura_seq seq, struct model *m, const char *what)
{
    aura_seq_info info = AURA_SEQ_INFO_INIT;
    EXPECT(!aura_seq_get_info(cache, seq, &info), "%s: %s", what, aura_last_error());
    EXPECT(info.tokens == m->len, "%s: %llu tokens, not %llu", what, (unsigned long long)info.tokens, (unsigned long long)m->len);
    if (!is_plain(m->k.kind) || !is_plain(m->v.kind))
        EXPECT(info.closed == m->closed, "%s: %llu of %llu closed, not %llu", what, (unsigned long long)info.closed,
               (unsigned long long)m->len, (unsigned long long)m->closed);
    EXPECT(info.pages >= (m->len + PAGE - 1) / PAGE, "%s: %zu pages", what, info.pages);
    if (info.tokens == m->len && m->len)
        expect_range(cache, seq, m, 0, m->len, what);
}

#endif
