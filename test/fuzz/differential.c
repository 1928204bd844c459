/* A cache, its numbers and a call of attention, all chosen by the bytes of the input. On every instruction set of the machine the
 * stored numbers must be those of the definition, bit by bit, and the results within the tolerances of attention in double. With
 * other jobs in the call and a workspace the result must have the same bits. */
#include "fuzz.h"

#include "../cache/cache_attend.h"

enum { MOST_TOKENS = 340, MOST_NUMBERS = MOST_TOKENS * 64, MOST_QUERIES = 4, MOST_HEADS = 8, PIECES = 4 };

static const aura_dtype dtypes[] = {AURA_F32, AURA_F16, AURA_BF16};

/* Below n; 0 when there are no bytes left, which is always the smallest. */
static uint32_t choose(struct source *s, uint32_t n)
{
    return (n > 256 ? take_u16(s) : take_u8(s)) % n;
}

/* Everything but the cache of an instruction set. */
struct problem {
    aura_config config;
    float *balance;
    uint32_t tokens, piece[PIECES];
    aura_dtype kv_dtype, q_dtype, out_dtype;
    enum layout layout;
    float *keys, *values;
    struct scene scene;
    struct attention at;
};

/* ---- what the input chooses ---------------------------------------------------------------------------------------------- */

static uint32_t some_dim(struct source *s)
{
    uint32_t which = choose(s, 2 * N_DIMS);
    return dims[which < N_DIMS ? 0 : which - N_DIMS]; /* mostly the smallest: twice as many inputs a second */
}

static void some_cache(struct source *s, struct problem *p)
{
    static const uint32_t opens[] = {0, 0, AURA_NO_ROLLBACK, AURA_NO_OPEN | AURA_NO_REFERENCE};
    aura_kind k = kinds[choose(s, N_KINDS)], v = kinds[choose(s, N_KINDS)];
    uint32_t k_dim = some_dim(s), v_dim = some_dim(s), heads = 1 + choose(s, 2), how = take_u8(s);
    aura_config c = config_of(k, v, k_dim, v_dim, heads);
    c.q_heads = heads * (1 + choose(s, MOST_HEADS / 2));
    c.flags = opens[how % 4] | (how & 4 ? AURA_NO_REFERENCE : 0) | (how & 8 ? AURA_NO_PINNED : 0) | (how & 16 ? 0 : AURA_NO_SEARCH);
    c.rollback = how & 32 ? 1 + choose(s, 32) : 0;
    c.seed = how & 64 ? take_u64(s) : 11;
    if (how & 128) {
        c.window = 1 + choose(s, choose(s, 2) ? 300 : 40);
        c.max_queries = 1 + choose(s, 40);
        c.keep_first = choose(s, choose(s, 2) ? 270 : 6);
    }
    p->balance = !is_plain(k) && choose(s, 3) == 2 ? some_balance(heads, k_dim) : NULL;
    c.balance = p->balance;
    p->config = c;
    uint32_t widest = heads * (k_dim > v_dim ? k_dim : v_dim), kind = choose(s, 4);
    p->tokens = 1 + choose(s, kind == 0 ? 8 : kind < 3 ? 70 : MOST_TOKENS);
    p->tokens = p->tokens < MOST_NUMBERS / widest ? p->tokens : MOST_NUMBERS / widest;
    for (int i = 0; i < PIECES; i++) {
        p->piece[i] = 1 + choose(s, i % 2 ? MOST_TOKENS : 40);
        p->piece[i] = c.window && p->piece[i] > c.max_queries ? c.max_queries : p->piece[i];
    }
    p->kv_dtype = dtypes[choose(s, 3)], p->layout = (enum layout)choose(s, N_LAYOUTS);
}

/* Ordinary vectors, or such as break things, times a power of two; then some numbers straight from the input. Only a packed side
 * bounds its numbers: elsewhere products of larger ones than 2^40 would not fit in f32. */
static void some_numbers(struct source *s, float *x, uint32_t rows, uint32_t dim, int packed)
{
    uint64_t seed = take_u32(s);
    uint32_t how = take_u8(s), power = choose(s, 64);
    for (uint32_t row = 0; row < rows; row++) {
        enum vector_kind kind = how < 64 ? NORMAL : how < 128 ? (enum vector_kind)(how % N_VECTOR_KINDS)
                                                              : (enum vector_kind)pick(&seed, HUGE_VALUES);
        fill_vector(x + row * dim, dim, kind, &seed);
        for (uint32_t d = 0; d < dim && how & 1; d++)
            x[row * dim + d] = ldexpf(x[row * dim + d], (int)power - 48);
    }
    for (uint32_t n = choose(s, 4); n; n--)
        x[take_u16(s) % (rows * dim)] = take_f32(s);
    for (uint32_t i = 0; i < rows * dim; i++)
        if (!packed && isfinite(x[i]) && fabsf(x[i]) > 0x1p40f)
            x[i] = copysignf(0x1p40f, x[i]);
}

static void some_call(struct source *s, struct problem *p)
{
    static float sinks[MOST_HEADS], slopes[MOST_HEADS];
    static const float scales[] = {0, 0.07f, 1, -0.3f, 8, 1e-4f}, caps[] = {0, 30, 3, 1e-2f};
    struct attention *a = &p->at;
    uint32_t how = take_u8(s), queries = 1 + choose(s, MOST_QUERIES);
    queries = queries < p->tokens ? queries : p->tokens;
    queries = p->config.window && queries > p->config.max_queries ? p->config.max_queries : queries;
    *a = attention_new(p->scene.model, queries, p->config.q_heads, 1);
    some_numbers(s, a->q, queries * p->config.q_heads, p->config.k_dim, 0);
    attention_round(a, p->q_dtype = dtypes[choose(s, 3)]);
    p->out_dtype = dtypes[choose(s, 3)];
    a->cache_window = p->config.window, a->keep_first = p->config.window ? p->config.keep_first : 0;
    for (uint32_t h = 0; h < MOST_HEADS; h++)
        sinks[h] = how & 1 ? (float)take_u8(s) / 8 - 16 : 0, slopes[h] = how & 2 ? (float)take_u8(s) / 256 : 0;
    sinks[0] = how & 4 ? -INFINITY : sinks[0];
    a->options.sinks = how & 1 ? sinks : NULL, a->options.alibi = how & 2 ? slopes : NULL;
    a->options.scale = scales[choose(s, 6)], a->options.softcap = caps[choose(s, 4)];
    a->options.not_causal = how >> 3 & 1, a->options.planes = choose(s, 3);
    uint64_t widest = p->config.window && p->config.window < MOST_TOKENS ? p->config.window : MOST_TOKENS;
    a->options.window = how & 16 ? 1 + choose(s, (uint32_t)widest) : 0;
    if (how & 32) {
        static const float masks[] = {0, 0, -INFINITY, 1, -3, 100, -1e4f, -1e30f};
        uint64_t seed = take_u32(s);
        a->mask_keys = choose(s, p->tokens + 1), a->mask_stride = a->mask_keys + (how & 64 ? 3 : 0);
        a->mask = malloc(queries * a->mask_stride * sizeof *a->mask + 1);
        for (size_t i = 0; i < queries * a->mask_stride; i++)
            a->mask[i] = masks[random_bits(&seed) % 8];
        a->mask_stride = a->mask_keys ? a->mask_stride : 0;
    }
}

/* ---- numbers that no cache takes ---------------------------------------------------------------------------------------- */

enum verdict { GOOD, BAD, EITHER }; /* EITHER: so near the limit that rounding decides */

static enum verdict verdict_on(const float *x, const aura_config *c, int keys, uint32_t tokens)
{
    aura_kind kind = keys ? c->format.k : c->format.v;
    uint32_t dim = keys ? c->k_dim : c->v_dim;
    enum verdict verdict = GOOD;
    for (size_t row = 0; row < (size_t)tokens * c->kv_heads; row++) {
        const float *balance = keys && c->balance ? c->balance + row % c->kv_heads * dim : NULL;
        double length = 0, top = 0;
        for (uint32_t d = 0; d < dim; d++) {
            double y = (double)x[row * dim + d] * (balance ? (double)balance[d] : 1);
            length += y * y, top = fabs(y) > top ? fabs(y) : top;
            if (!isfinite(y))
                return BAD;
        }
        double most = is_plain(kind) ? (kind == AURA_KIND_F16 ? 65520 : INFINITY) : (double)60000;
        double size = is_plain(kind) ? top : sqrt(length);
        if (size > most * 1.0001)
            return BAD;
        verdict = size > most * 0.9999 ? EITHER : verdict;
    }
    return verdict;
}

/* All instruction sets refuse it, or none does; a refusal stores nothing. */
static void expect_refusal(struct problem *p, enum verdict verdict)
{
    struct tensor k = tensor_new(p->tokens, p->config.kv_heads, p->config.k_dim, p->kv_dtype, p->layout);
    struct tensor v = tensor_new(p->tokens, p->config.kv_heads, p->config.v_dim, p->kv_dtype, p->layout);
    aura_status first = AURA_OK;
    tensor_set(&k, p->keys), tensor_set(&v, p->values);
    p->tokens = p->config.window && p->tokens > p->config.max_queries ? p->config.max_queries : p->tokens;
    for (int isa = 0; use_isa(isa); isa++) {
        aura_cache *cache = cache_new(ctx, &p->config);
        aura_seq seq = seq_new(cache);
        aura_status status = append(cache, seq, &k, &v, 0, p->tokens);
        first = isa ? first : status;
        MUST(status == first && (!status || status == AURA_BAD_VALUE));
        MUST(seq_tokens(cache, seq) == (status ? 0 : p->tokens));
        aura_cache_destroy(cache);
    }
    MUST(verdict != BAD || first == AURA_BAD_VALUE || p->config.window);
    tensor_free(&k), tensor_free(&v);
}

/* ---- numbers that it takes ----------------------------------------------------------------------------------------------- */

static aura_cache *fill(const struct problem *p, aura_seq *seq)
{
    aura_cache *cache = cache_new(ctx, &p->config);
    *seq = seq_new(cache);
    for (uint32_t done = 0, i = 0, n; done < p->tokens; done += n, i++) {
        n = p->piece[i % PIECES] < p->tokens - done ? p->piece[i % PIECES] : p->tokens - done;
        MUST(!append(cache, *seq, &p->scene.k, &p->scene.v, done, n));
    }
    return cache;
}

static void expect_stored(const aura_cache *cache, aura_seq seq, const struct problem *p)
{
    aura_seq_info info = AURA_SEQ_INFO_INIT;
    MUST(!aura_seq_get_info(cache, seq, &info) && info.tokens == p->tokens);
    expect_range(cache, seq, p->scene.model, info.first, p->tokens - info.first, "stored");
    if (info.first && p->config.keep_first)
        expect_range(cache, seq, p->scene.model, 0, p->config.keep_first, "kept");
}

/* A row is NaN where its query is not finite, and only there. */
static void expect_results(const struct call *c, const struct attention *a, aura_status status)
{
    uint32_t k_dim = a->model->k.dim, v_dim = a->model->v.dim;
    size_t rows = (size_t)a->queries * a->q_heads;
    float *got = malloc(rows * v_dim * sizeof *got);
    int nan = 0;
    tensor_get(got, &c->out);
    for (size_t row = 0; row < rows; row++) {
        int finite = 1;
        for (uint32_t d = 0; d < k_dim; d++)
            finite &= isfinite(a->q[row * k_dim + d]) != 0;
        for (uint32_t d = 0; d < v_dim; d++)
            nan |= isnan(got[row * v_dim + d]);
        if (!finite)
            continue;
        double error = row_error(got + row * v_dim, a, row, c->out.view.dtype, 1), off = lse_error(c->lse[row], a, row, 1);
        EXPECT(error <= 1 && off <= 1, "%s row %zu: %.3g of the allowed error, of lse %.3g (%g, not %g); size %g logit %g term %g",
               test_suffix ? test_suffix : "", row, error, off, (double)c->lse[row], a->lse[row], a->size[row], a->logit[row],
               a->term[row]);
    }
    MUST(status == (nan ? AURA_NOT_FINITE : AURA_OK));
    free(got);
}

/* The same job behind another one, in a workspace. */
static void expect_same_bits(const aura_cache *cache, const struct call *c, const struct problem *p)
{
    struct call again = call_new(&p->at, c->job.seq, p->q_dtype, p->out_dtype, p->layout);
    struct call other = call_new(&p->at, c->job.seq, p->q_dtype, p->out_dtype, p->layout);
    aura_attend_job jobs[2] = {other.job, again.job};
    aura_attend_options options = p->at.options;
    MUST(!aura_attend_workspace(cache, jobs, 2, 0, &options.workspace_bytes));
    options.workspace = aligned_alloc(64, (options.workspace_bytes + 63) / 64 * 64 + 64);
    aura_status status = aura_attend(cache, jobs, 2, &options);
    MUST(!status || status == AURA_NOT_FINITE);
    MUST(!memcmp(again.out.memory, c->out.memory, c->out.elements * aura_dtype_bytes(p->out_dtype)));
    MUST(!memcmp(again.lse, c->lse, (size_t)p->at.queries * p->at.q_heads * sizeof *c->lse));
    free(options.workspace);
    call_free(&again), call_free(&other);
}

static void attend(const struct problem *p, int best)
{
    aura_seq seq;
    aura_cache *cache = fill(p, &seq);
    struct call c = call_new(&p->at, seq, p->q_dtype, p->out_dtype, p->layout);
    expect_stored(cache, seq, p);
    aura_status status = aura_attend(cache, &c.job, 1, &p->at.options);
    MUST(!status || status == AURA_NOT_FINITE);
    expect_results(&c, &p->at, status);
    if (best)
        expect_same_bits(cache, &c, p);
    call_free(&c);
    aura_cache_destroy(cache);
}

/* ---- one input ------------------------------------------------------------------------------------------------------------- */

static void compare(struct problem *p, struct source *s)
{
    p->scene = scene_typed(p->config, p->tokens, p->keys, p->values, p->kv_dtype, p->layout);
    some_call(s, p);
    for (size_t i = 0; i < (size_t)p->tokens * p->config.kv_heads * p->config.v_dim; i++)
        if (fabsf(p->values[i]) > 60000)
            p->out_dtype = AURA_F32; /* the others might not hold it */
    oracle_compute(&p->at);
    for (int isa = 0; use_isa(isa) && !test_bad_lines; isa++)
        attend(p, isa == n_isas - 1);
    if (test_bad_lines)
        printf("  %s tokens %u queries %u window %llu keep_first %u; the call's window %llu planes %u softcap %g scale %g "
               "causal %u mask %u\n",
               config_text(&p->config), p->tokens, p->at.queries, (unsigned long long)p->config.window, p->config.keep_first,
               (unsigned long long)p->at.options.window, p->at.options.planes, (double)p->at.options.softcap,
               (double)p->at.options.scale, !p->at.options.not_causal, p->at.mask_keys);
    MUST(!test_bad_lines);
    attention_free(&p->at);
    scene_free(&p->scene);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct source s = {data, size};
    struct problem p;
    memset(&p, 0, sizeof p);
    if (!n_isas)
        isas_open(1);
    if (!size)
        return 0;
    some_cache(&s, &p);
    uint32_t rows = p.tokens * p.config.kv_heads;
    p.keys = malloc(rows * p.config.k_dim * sizeof(float)), p.values = malloc(rows * p.config.v_dim * sizeof(float));
    some_numbers(&s, p.keys, rows, p.config.k_dim, !is_plain(p.config.format.k));
    some_numbers(&s, p.values, rows, p.config.v_dim, !is_plain(p.config.format.v));
    for (size_t i = 0; i < (size_t)rows * p.config.k_dim; i++)
        p.keys[i] = oracle_round(p.keys[i], p.kv_dtype);
    for (size_t i = 0; i < (size_t)rows * p.config.v_dim; i++)
        p.values[i] = oracle_round(p.values[i], p.kv_dtype);
    enum verdict k = verdict_on(p.keys, &p.config, 1, p.tokens), v = verdict_on(p.values, &p.config, 0, p.tokens);
    if (k == GOOD && v == GOOD)
        compare(&p, &s);
    else
        expect_refusal(&p, k == BAD || v == BAD ? BAD : EITHER);
    free(p.keys), free(p.values), free(p.balance);
    return 0;
}
