/* What a cache holds: compares every format and shape with the model, bit by bit, however the tokens were appended. */
#define _GNU_SOURCE
#include "cache_tools.h"

#include "../base/modes.h"

/* ---- kind x dim x length, on both sides ------------------------------------------------------------------------------- */

static void grow_one_shape(const aura_config *config, const struct tensor *k, const struct tensor *v, struct model *model)
{
    static const uint32_t lengths[] = {1, 3, 4, 5, 31, 32, 33, 63, 64, 65, 255, 256, 257, 1000, 4097};
    aura_cache *cache = cache_new(ctx, config);
    aura_seq seq = cache ? seq_new(cache) : 0;
    uint32_t len = 0;
    uint32_t longest = ctx == isas[0].ctx && k->dim > 128 ? 257 : k->tokens; /* ref*.c, which the model uses too, is slow */
    for (size_t i = 0; seq && i < sizeof lengths / sizeof *lengths && lengths[i] <= longest; i++) {
        EXPECT(!append(cache, seq, k, v, len, lengths[i] - len), "%s", aura_last_error());
        len = lengths[i];
        model_view(model, len);
        expect_model(cache, seq, model, config_text(config));
    }
    aura_cache_destroy(cache);
}

static void try_shape(aura_kind k_kind, aura_kind v_kind, uint32_t dim, uint32_t heads, uint32_t longest, int search)
{
    aura_config config = config_of(k_kind, v_kind, dim, 0, heads);
    float *keys = random_tokens(3, longest, heads, dim, 1), *values = random_tokens(4, longest, heads, dim, 0);
    struct tensor k = tensor_new(longest, heads, dim, AURA_F32, DENSE), v = tensor_new(longest, heads, dim, AURA_F32, DENSE);
    config.flags = search ? 0 : AURA_NO_SEARCH;
    struct model *model = model_create(&config, longest);
    tensor_set(&k, keys), tensor_set(&v, values);
    model_append(model, keys, values, longest);
    for (int i = 0; use_isa(i); i++)
        grow_one_shape(&config, &k, &v, model);
    model_destroy(model);
    tensor_free(&k), tensor_free(&v);
    free(keys), free(values);
}

/* The kind of the values is that of the keys plus a number that depends on the dim, so each side has every kind with every dim. A
 * third of the caches search for the best scale. */
static void every_kind_dim_and_length(void)
{
    for (uint32_t i = 0; i < N_KINDS; i++)
        for (uint32_t j = 0; j < N_DIMS; j++)
            if (!small_run() || (i + j) % N_DIMS == 0) /* then each kind with one dim */
                try_shape(kinds[i], kinds[(i + 2 * j + 1) % N_KINDS], dims[j], dims[j] <= 96 ? 2 : 1,
                          small_run() || (i + j) % 2 ? 257 : 1000, (i + j) % 3 == 0);
    for (uint32_t i = 0; i < N_KINDS && !small_run(); i++)
        try_shape(kinds[i], kinds[(i + 5) % N_KINDS], i % 2 ? 64 : 80, 1, 4097, 0);
}

/* ---- a sequence beside its model ------------------------------------------------------------------------------------- */

struct twin {
    aura_config config;
    struct tensor k, v;
    float *keys, *values; /* the same numbers, [tokens][heads][dim] */
    struct model *model;  /* of all tokens */
    uint32_t tokens;
};

static struct twin twin_new(aura_config config, uint32_t tokens, aura_dtype k_dtype, aura_dtype v_dtype, enum layout layout)
{
    struct twin t;
    uint32_t v_dim = config.v_dim ? config.v_dim : config.k_dim;
    t.config = config, t.tokens = tokens;
    t.keys = random_tokens(5, tokens, config.kv_heads, config.k_dim, 1);
    t.values = random_tokens(6, tokens, config.kv_heads, v_dim, 0);
    t.k = tensor_new(tokens, config.kv_heads, config.k_dim, k_dtype, layout);
    t.v = tensor_new(tokens, config.kv_heads, v_dim, v_dtype, (enum layout)((layout + 2) % N_LAYOUTS));
    tensor_set(&t.k, t.keys), tensor_set(&t.v, t.values);
    tensor_get(t.keys, &t.k), tensor_get(t.values, &t.v); /* rounded to the dtype */
    t.model = model_create(&config, tokens);
    model_append(t.model, t.keys, t.values, tokens);
    return t;
}

static void twin_free(struct twin *t)
{
    model_destroy(t->model);
    tensor_free(&t->k), tensor_free(&t->v);
    free(t->keys), free(t->values);
}

/* Appends all tokens in chunks of that many; 0: in chunks of 1, 2, 3 ... tokens. Then compares with the model. */
static void append_in_chunks(struct twin *t, uint32_t chunk)
{
    const char *what = config_text(&t->config);
    aura_cache *cache = cache_new(ctx, &t->config);
    aura_seq seq = cache ? seq_new(cache) : 0;
    for (uint32_t done = 0, n = chunk; seq && done < t->tokens; done += n) {
        n = chunk ? chunk : n + 1;
        n = n < t->tokens - done ? n : t->tokens - done;
        EXPECT(!append(cache, seq, &t->k, &t->v, done, n), "%s: %s", what, aura_last_error());
    }
    model_view(t->model, t->tokens);
    if (seq)
        expect_model(cache, seq, t->model, what);
    aura_cache_destroy(cache);
}

static void append_on_every_isa(struct twin *t, uint32_t chunk)
{
    for (int i = 0; use_isa(i); i++)
        append_in_chunks(t, chunk);
    twin_free(t);
}

static void chunks_change_no_byte(void)
{
    static const struct {
        aura_kind k, v;
        uint32_t k_dim, v_dim, flags, rollback;
    } cases[] = {{AURA_KIND_B4, AURA_KIND_B4, 64, 64, 0, 0},
                 {AURA_KIND_B3, AURA_KIND_B5, 80, 64, 0, 32},
                 {AURA_KIND_B8, AURA_KIND_B2, 64, 96, AURA_NO_ROLLBACK, 0},
                 {AURA_KIND_B6, AURA_KIND_F16, 64, 64, AURA_NO_PINNED, 1},
                 {AURA_KIND_BF16, AURA_KIND_B3, 64, 64, AURA_NO_REFERENCE | AURA_NO_OPEN, 0}};
    static const uint32_t chunks[] = {1, 7, 32, 33, 0, 1000};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        aura_config config = config_of(cases[i].k, cases[i].v, cases[i].k_dim, cases[i].v_dim, 2);
        config.flags = cases[i].flags, config.rollback = cases[i].rollback;
        struct twin t = twin_new(config, small_run() ? 290 : 700, AURA_F32, AURA_F32, DENSE);
        for (int isa = 0; use_isa(isa); isa++)
            for (size_t j = 0; j < sizeof chunks / sizeof *chunks; j += small_run() ? 2 : 1)
                append_in_chunks(&t, chunks[j]);
        twin_free(&t);
    }
}

/* Compares after every append. */
static void grow_with_switches(struct twin *t)
{
    aura_cache *cache = cache_new(ctx, &t->config);
    aura_seq seq = cache ? seq_new(cache) : 0;
    for (uint32_t len = 0; seq && len < t->tokens; len += 11) {
        EXPECT(!append(cache, seq, &t->k, &t->v, len, 11), "%s", aura_last_error());
        model_view(t->model, len + 11);
        if (len + 11 < t->tokens)
            expect_range(cache, seq, t->model, len > 60 ? len - 60 : 0, len > 60 ? 71 : len + 11, config_text(&t->config));
        else
            expect_model(cache, seq, t->model, config_text(&t->config));
    }
    aura_cache_destroy(cache);
}

static void try_switches(uint32_t flags, uint32_t rollback)
{
    aura_config config = config_of(kinds[flags % N_BITS], kinds[(flags + rollback) % N_BITS], 64, 128, 2);
    float *balance = some_balance(2, 64);
    config.flags = flags, config.rollback = rollback, config.balance = balance;
    struct twin t = twin_new(config, small_run() ? 110 : 330, AURA_F32, AURA_F32, DENSE);
    for (int i = 0; use_isa(i); i++)
        grow_with_switches(&t);
    twin_free(&t);
    free(balance);
}

static void every_switch(void)
{
    static const uint32_t rollbacks[] = {0, 1, 15, 31, 32, 33, 100, 224};
    for (uint32_t flags = 0; flags < 32; flags++) {
        if (flags & AURA_NO_OPEN && !(flags & AURA_NO_REFERENCE)) {
            aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, 64, 64, 1);
            aura_cache *cache = NULL;
            config.flags = flags;
            EXPECT(aura_cache_create(ctx, &config, &cache) == AURA_BAD_ARGUMENT && !cache, "references need open tokens");
            continue;
        }
        for (size_t i = 0; i < sizeof rollbacks / sizeof *rollbacks; i++)
            if (i == 0 || !(flags & (AURA_NO_OPEN | AURA_NO_ROLLBACK) || i != flags % 7 + 1))
                try_switches(flags, rollbacks[i]);
    }
}

static void every_pair_of_kinds_and_of_dims(void)
{
    for (uint32_t i = 0; i < N_KINDS; i++)
        for (uint32_t j = 0; j < N_KINDS; j++) {
            struct twin t = twin_new(config_of(kinds[i], kinds[j], 80, 64, 1), 70, AURA_F32, AURA_F32, DENSE);
            append_on_every_isa(&t, 70);
        }
    for (uint32_t i = 0; i < N_DIMS; i++)
        for (uint32_t j = 0; j < N_DIMS; j++) {
            aura_kind v = kinds[(i + j) % N_KINDS];
            struct twin t = twin_new(config_of(kinds[(i + 2 * j) % N_BITS], v, dims[i], dims[j], 1), 50, AURA_F32, AURA_F32, DENSE);
            append_on_every_isa(&t, 50);
        }
}

static void every_dtype_and_layout(void)
{
    static const aura_dtype dtypes[] = {AURA_F32, AURA_F16, AURA_BF16};
    for (uint32_t i = 0; i < N_KINDS; i++)
        for (int layout = 0; layout < N_LAYOUTS; layout++) {
            aura_config config = config_of(kinds[(i * 5 + (uint32_t)layout) % N_KINDS], kinds[i], 64, 112, 3);
            struct twin t = twin_new(config, 60, dtypes[i % 3], dtypes[i / 3 % 3], (enum layout)layout);
            append_on_every_isa(&t, 41);
        }
}

static void every_number_of_heads(void)
{
    static const uint32_t heads[] = {1, 2, 3, 5, 8, 20};
    for (size_t i = 0; i < (small_run() ? 4 : sizeof heads / sizeof *heads); i++) {
        aura_config config = config_of(kinds[i % N_BITS], kinds[(i + 1) % N_BITS], 64, 80, heads[i]);
        float *balance = some_balance(heads[i], 64);
        config.balance = i % 2 ? balance : NULL;
        struct twin t = twin_new(config, 300, AURA_F16, AURA_BF16, PADDED);
        append_on_every_isa(&t, 100);
        free(balance);
    }
}

/* ---- vectors that are hard to store ------------------------------------------------------------------------------------ */

/* Zeros of both signs, one coordinate, constants, denormals of f16, and vectors of length nearly 60 000 that rotation turns into
 * a single coordinate. */
static void strange_vectors(float *x, uint32_t tokens, uint32_t dim, uint32_t stream)
{
    uint64_t seed = 12;
    uint8_t signs[AURA_MAX_DIM / 8];
    aura_signs(11, stream, dim, signs);
    for (uint32_t t = 0; t < tokens; t++, x += dim) {
        enum vector_kind kind = (enum vector_kind)(random_bits(&seed) % N_VECTOR_KINDS);
        float factor = kind == HUGE_VALUES ? 0x1p-28f : kind == MIXED ? 0x1p-9f : 1,
            power = ldexpf(1, (int)(random_bits(&seed) % 40) - 30);
        fill_vector(x, dim, kind, &seed);
        for (uint32_t d = 0; d < dim; d++)
            x[d] *= kind == NORMAL ? power : factor;
        for (uint32_t d = 0; t % 9 == 3 && d < dim; d++)
            x[d] = (t % 2 ? 59990.f : -59990.f) / sqrtf((float)dim) * (signs[d / 8] >> d % 8 & 1 ? -1.f : 1.f);
    }
}

static void vectors_that_are_hard_to_store(void)
{
    for (uint32_t i = 0; i < N_KINDS; i++) {
        uint32_t dim = dims[i % 3];
        aura_config config = config_of(kinds[i], kinds[i], dim, 0, 1);
        config.flags = 0;
        struct twin t = twin_new(config, 320, AURA_F32, AURA_F32, DENSE);
        strange_vectors(t.keys, 320, dim, 0), strange_vectors(t.values, 320, dim, 1);
        tensor_set(&t.k, t.keys), tensor_set(&t.v, t.values);
        model_truncate(t.model, 0);
        model_append(t.model, t.keys, t.values, 320);
        append_on_every_isa(&t, 100);
    }
}

static void try_float_mode(struct twin *t, unsigned mode)
{
    unsigned long before = mode_get();
    aura_cache *cache = cache_new(ctx, &t->config);
    aura_seq seq = seq_new(cache);
    float *x[2] = {malloc(300 * 64 * sizeof(float)), malloc(300 * 80 * sizeof(float))}, *want = malloc(300 * 80 * sizeof(float));
    aura_view k = {x[0], AURA_F32, 0, 0, NULL}, v = {x[1], AURA_F32, 0, 0, NULL};
    uint64_t token;
    mode_set(mode);
    int failed = append(cache, seq, &t->k, &t->v, 0, 300) || aura_cache_decode(cache, seq, 0, 300, &k, &v);
    unsigned long after = mode_get();
    mode_set(before);
    EXPECT(!failed && after == mode, "mode 0x%x: %s, left as 0x%lx", mode, aura_last_error(), after);
    model_decode(want, t->model, &t->model->k, 0, 300);
    EXPECT(!differing_rows(x[0], want, 300, 1, 64, &token), "mode 0x%x changed keys", mode);
    model_decode(want, t->model, &t->model->v, 0, 300);
    EXPECT(!differing_rows(x[1], want, 300, 1, 80, &token), "mode 0x%x changed values", mode);
    free(x[0]), free(x[1]), free(want);
    aura_cache_destroy(cache);
}

/* The caller's float mode changes no byte of the cache, and is restored. */
static void float_modes_change_no_byte(void)
{
    struct twin t = twin_new(config_of(AURA_KIND_B4, AURA_KIND_B8, 64, 80, 1), 300, AURA_F32, AURA_F32, DENSE);
    strange_vectors(t.keys, 300, 64, 0), strange_vectors(t.values, 300, 80, 1);
    tensor_set(&t.k, t.keys), tensor_set(&t.v, t.values);
    model_truncate(t.model, 0);
    model_append(t.model, t.keys, t.values, 300);
    for (int isa = 0; use_isa(isa); isa++)
        for (int i = 0; i < N_MODES; i++)
            try_float_mode(&t, modes[i]);
    twin_free(&t);
}

/* ---- decode ---------------------------------------------------------------------------------------------------------------- */

/* Decodes one side of a range into a tensor of that dtype and layout, without the other side. */
static void decode_into(aura_cache *cache, aura_seq seq, struct model *m, int keys, uint32_t first, uint32_t n, aura_dtype dtype,
                        enum layout layout)
{
    struct model_side *s = keys ? &m->k : &m->v;
    size_t count = (size_t)n * s->heads * s->dim;
    struct tensor out = tensor_new(n, s->heads, s->dim, dtype, layout);
    float *got = malloc(count * sizeof *got), *want = malloc(count * sizeof *want);
    aura_view none = AURA_VIEW_INIT;
    EXPECT(!aura_cache_decode(cache, seq, first, n, keys ? &out.view : &none, keys ? &none : &out.view), "%s", aura_last_error());
    tensor_get(got, &out);
    model_decode(want, m, s, first, n);
    for (size_t i = 0; i < count; i++) {
        float x = oracle_round(want[i], dtype);
        EXPECT(!memcmp(&got[i], &x, sizeof x), "%s range %u + %u dtype %d layout %d: [%zu] is %g, not %g",
               keys ? "keys" : "values", first, n, (int)dtype, (int)layout, i, (double)got[i], (double)x);
    }
    EXPECT(tensor_gaps_are(&out, 0xff), "layout %d: bytes between rows were written", (int)layout);
    tensor_free(&out);
    free(got), free(want);
}

static void decode_ranges_dtypes_and_layouts(void)
{
    static const aura_dtype dtypes[] = {AURA_F32, AURA_F16, AURA_BF16};
    static const uint32_t ranges[][2] = {{0, 1}, {0, 300}, {3, 2}, {4, 28}, {31, 2}, {250, 20}, {256, 1}, {285, 15}, {299, 1}};
    struct twin t = twin_new(config_of(AURA_KIND_B5, AURA_KIND_B3, 64, 80, 3), 300, AURA_F32, AURA_F32, DENSE);
    for (int isa = 0; use_isa(isa); isa++) {
        aura_cache *cache = cache_new(ctx, &t.config);
        aura_seq seq = seq_new(cache);
        EXPECT(!append(cache, seq, &t.k, &t.v, 0, 300), "%s", aura_last_error());
        for (int i = 0; i < (int)(sizeof ranges / sizeof *ranges) * N_LAYOUTS * 3; i++) {
            const uint32_t *range = ranges[i / 3 / N_LAYOUTS];
            decode_into(cache, seq, t.model, (i / 3 + i) % 2, range[0], range[1], dtypes[i % 3], (enum layout)(i / 3 % N_LAYOUTS));
        }
        aura_cache_destroy(cache);
    }
    twin_free(&t);
}

int main(void)
{
    isas_open(0);
    RUN(every_kind_dim_and_length);
    RUN(chunks_change_no_byte);
    RUN(every_switch);
    RUN(every_pair_of_kinds_and_of_dims);
    RUN(every_dtype_and_layout);
    RUN(every_number_of_heads);
    RUN(vectors_that_are_hard_to_store);
    RUN(float_modes_change_no_byte);
    RUN(decode_ranges_dtypes_and_layouts);
    isas_close();
    return test_result();
}
