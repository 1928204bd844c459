/* The cache used wrongly: every misuse gives its error and a message that names the call, and writes nothing. */
#include "cache_attend.h"

/* A cache with two sequences, their models, and arguments that are right. */
enum { TOKENS = 100, QUERIES = 3 };

static struct {
    struct scene scene;
    aura_cache *cache;
    aura_seq seq[2];
    struct attention at;
    struct call call;
    aura_append_job append;
    struct tensor k, v; /* what decode writes to */
    size_t bytes;
} g;

static void setup(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B3, 64, 80, 2);
    config.q_heads = 4;
    g.scene = scene_new(config, TOKENS);
    g.cache = scene_cache(ctx, &g.scene, &g.seq[0]);
    g.seq[1] = seq_new(g.cache);
    g.at = attention_new(g.scene.model, QUERIES, 4, 1);
    g.call = call_new(&g.at, g.seq[0], AURA_F32, AURA_F32, DENSE);
    g.append = append_job(g.seq[1], &g.scene.k, &g.scene.v, 0, 10);
    g.k = tensor_new(TOKENS, 2, 64, AURA_F32, PADDED), g.v = tensor_new(TOKENS, 2, 80, AURA_F32, PADDED);
    g.bytes = aura_cache_bytes(g.cache);
}

static void teardown(void)
{
    aura_cache_destroy(g.cache);
    scene_free(&g.scene);
    attention_free(&g.at);
    call_free(&g.call);
    tensor_free(&g.k), tensor_free(&g.v);
}

static int is_poison(const void *memory, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (((const unsigned char *)memory)[i] != 0xff)
            return 0;
    return 1;
}

/* Expects that no output byte was written and that the cache is unchanged. */
static void expect_untouched(const char *what)
{
    EXPECT(is_poison(g.call.out.memory, g.call.out.elements * 4) && is_poison(g.call.lse, QUERIES * 4 * 4),
           "%s: out or lse was written", what);
    EXPECT(is_poison(g.k.memory, g.k.elements * 4) && is_poison(g.v.memory, g.v.elements * 4), "%s: k or v was written", what);
    EXPECT(aura_cache_bytes(g.cache) == g.bytes && seq_tokens(g.cache, g.seq[1]) == 0, "%s: the cache has changed", what);
    expect_model(g.cache, g.seq[0], g.scene.model, what);
}

/* Runs a misuse. Expects its status, a message that begins with the name of the call, and no change. */
static void refused(aura_status status, aura_status expected, const char *call, const char *why)
{
    EXPECT(status == expected, "%s, %s: %s, %s", call, why, aura_status_text(status), aura_last_error());
    EXPECT(strncmp(aura_last_error(), call, strcspn(call, "(")) == 0, "%s: the message is %s", call, aura_last_error());
    expect_untouched(why);
    teardown(), setup();
}
#define REFUSED(call, expected) refused((call), (expected), #call, "")
#define WRONG(assignment, call, expected) ((assignment), refused((call), (expected), #call, #assignment))

/* ---- formats ---------------------------------------------------------------------------------------------------- */

static const char *kind_text(aura_kind kind, char text[16])
{
    static const char *const plain[] = {"f32", "f16", "bf16"};
    snprintf(text, 16, "%s%u", aura_is_trellis(kind) ? "t" : "", aura_bits_of(kind));
    return is_plain(kind) ? plain[kind - AURA_KIND_F32] : text;
}

static void formats_by_name(void)
{
    static const char *const wrong[] = {"",      "k",     "k4",    "v4",     "k4v",   "kv4",   "k4v4 ", " k4v4",
                                        "k4v4x", "K4V4",  "k9v4",  "k4v1",   "k04v4", "k4v44", "kf64v4", "kf8v4",
                                        "k-4v4", "best",  "balance", "k4v4k4v4", "kf16vf16vf16vf16"};
    static const struct {
        const char *name;
        aura_kind kind;
    } presets[] = {{"max", AURA_KIND_B8}, {"safe", AURA_KIND_B6}, {"quality", AURA_KIND_B5}, {"balanced", AURA_KIND_B4},
                   {"small", AURA_KIND_B3}};
    for (uint32_t i = 0; i < N_KINDS; i++)
        for (uint32_t j = 0; j < N_KINDS; j++) {
            char want[32], name[16], k[16], v[16];
            aura_format format = {(aura_kind)0, (aura_kind)0};
            snprintf(want, sizeof want, "k%sv%s", kind_text(kinds[i], k), kind_text(kinds[j], v));
            EXPECT(!aura_format_parse(want, &format) && format.k == kinds[i] && format.v == kinds[j], "%s", want);
            EXPECT(!aura_format_name(format, name) && !strcmp(name, want), "%s, not %s", name, want);
        }
    for (int i = 0; i < 5; i++) {
        aura_format format = {(aura_kind)0, (aura_kind)0};
        EXPECT(!aura_format_parse(presets[i].name, &format) && format.k == presets[i].kind && format.v == presets[i].kind,
               "%s", presets[i].name);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        aura_format format = {AURA_KIND_B2, AURA_KIND_F16};
        EXPECT(aura_format_parse(wrong[i], &format) == AURA_BAD_ARGUMENT && format.k == AURA_KIND_B2 &&
               format.v == AURA_KIND_F16, "\"%s\"", wrong[i]);
    }
    aura_format format = {(aura_kind)1, AURA_KIND_B4};
    char name[16] = "untouched";
    EXPECT(aura_format_parse(NULL, &format) == AURA_BAD_ARGUMENT && aura_format_parse("k4v4", NULL) == AURA_BAD_ARGUMENT, "NULL");
    EXPECT(aura_format_name(format, name) == AURA_BAD_ARGUMENT && !strcmp(name, "untouched"), "kind 1 is %s", name);
    EXPECT(aura_format_name(format, NULL) == AURA_BAD_ARGUMENT, "NULL");
}

/* ---- create -------------------------------------------------------------------------------------------------------- */

static void expect_no_cache(aura_config config, aura_status expected, const char *what)
{
    aura_cache *cache = (aura_cache *)&cache;
    aura_status status = aura_cache_create(ctx, &config, &cache);
    EXPECT(status == expected, "%s: %s", what, aura_status_text(status));
    EXPECT(cache == (aura_cache *)&cache, "%s: *cache was written", what);
    EXPECT(!strncmp(aura_last_error(), "aura_cache_create", 17), "%s: message: %s", what, aura_last_error());
}

/* A good configuration in which one field is wrong. */
#define NO_CACHE(field, value, expected)                                       \
    do {                                                                       \
        aura_config c_ = config_of(AURA_KIND_B4, AURA_KIND_B4, 64, 64, 2);     \
        c_.field = (value);                                                    \
        expect_no_cache(c_, (expected), #field " " #value);                    \
    } while (0)

static void create_misuse(void)
{
    static const uint32_t no_dims[] = {513, 576, 1024, UINT32_MAX};
    static const float factors[] = {0, -1, 0.1f, 8.5f, NAN, INFINITY, 1e-30f};
    aura_config good = config_of(AURA_KIND_B4, AURA_KIND_B4, 64, 0, 2);
    float *balance = some_balance(2, 64);
    aura_cache *cache = NULL;
    EXPECT(aura_cache_create(NULL, &good, &cache) == AURA_BAD_ARGUMENT && !cache, "no context");
    EXPECT(aura_cache_create(ctx, NULL, &cache) == AURA_BAD_ARGUMENT && !cache, "no config");
    EXPECT(aura_cache_create(ctx, &good, NULL) == AURA_BAD_ARGUMENT, "no place");
    NO_CACHE(size, sizeof(aura_config) - 1, AURA_BAD_ARGUMENT);
    NO_CACHE(kv_heads, 0, AURA_BAD_ARGUMENT);
    NO_CACHE(q_heads, 5, AURA_BAD_ARGUMENT);
    NO_CACHE(flags, 64, AURA_BAD_ARGUMENT);
    NO_CACHE(flags, AURA_NO_OPEN, AURA_BAD_ARGUMENT);
    NO_CACHE(rollback, 225, AURA_BAD_ARGUMENT);
    NO_CACHE(format.k, (aura_kind)1, AURA_UNSUPPORTED);
    NO_CACHE(format.v, (aura_kind)1, AURA_UNSUPPORTED);
    NO_CACHE(format.v, (aura_kind)15, AURA_UNSUPPORTED);
    for (size_t i = 0; i < sizeof no_dims / sizeof *no_dims; i++) {
        NO_CACHE(k_dim, no_dims[i], AURA_UNSUPPORTED);
        NO_CACHE(v_dim, no_dims[i], AURA_UNSUPPORTED);
    }
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        balance[77] = factors[i];
        NO_CACHE(balance, balance, AURA_BAD_VALUE);
    }
    balance[77] = 0.125f, balance[78] = 8;
    good.balance = balance;
    EXPECT(!aura_cache_create(ctx, &good, &cache), "1/8 and 8 are factors: %s", aura_last_error());
    aura_cache_destroy(cache);
    good.format.k = AURA_KIND_F16;
    expect_no_cache(good, AURA_BAD_ARGUMENT, "balance for plain keys");
    aura_cache_destroy(NULL);
    free(balance);
}

/* ---- sequences and tokens ------------------------------------------------------------------------------------------- */

/* Every call that takes an id, with an id of no sequence. */
static void try_id(aura_seq id)
{
    aura_seq_info info = AURA_SEQ_INFO_INIT;
    aura_append_job append = g.append;
    aura_attend_job attend = g.call.job;
    aura_seq fork = 5;
    size_t bytes;
    append.seq = attend.seq = id;
    EXPECT(aura_seq_release(g.cache, id) == AURA_BAD_ARGUMENT, "release %u", id);
    EXPECT(aura_seq_get_info(g.cache, id, &info) == AURA_BAD_ARGUMENT, "info %u", id);
    EXPECT(aura_seq_reserve(g.cache, id, 10) == AURA_BAD_ARGUMENT, "reserve %u", id);
    EXPECT(aura_truncate(g.cache, id, 0) == AURA_BAD_ARGUMENT, "truncate %u", id);
    EXPECT(aura_seq_fork(g.cache, id, 0, &fork) == AURA_BAD_ARGUMENT && fork == 5, "fork %u", id);
    EXPECT(aura_seq_remove(g.cache, id, 0, 0) == AURA_BAD_ARGUMENT, "remove from %u", id);
    EXPECT(aura_seq_copy(g.cache, id, 0, 0, g.seq[1]) == AURA_BAD_ARGUMENT &&
           aura_seq_copy(g.cache, g.seq[0], 0, 0, id) == AURA_BAD_ARGUMENT, "copy %u", id);
    EXPECT(aura_append(g.cache, &append, 1) == AURA_BAD_ARGUMENT, "append %u", id);
    EXPECT(aura_cache_decode(g.cache, id, 0, 1, &g.k.view, &g.v.view) == AURA_BAD_ARGUMENT, "decode %u", id);
    EXPECT(aura_attend(g.cache, &attend, 1, NULL) == AURA_BAD_ARGUMENT, "attend %u", id);
    EXPECT(aura_attend_workspace(g.cache, &attend, 1, 0, &bytes) == AURA_BAD_ARGUMENT, "workspace %u", id);
    expect_untouched("an id that is none");
}

static void ids_of_sequences(void)
{
    aura_seq_info info = AURA_SEQ_INFO_INIT;
    aura_cache_info cache_info = AURA_CACHE_INFO_INIT;
    setup();
    aura_seq gone = seq_new(g.cache);
    EXPECT(gone != g.seq[0] && gone != g.seq[1], "ids are unique");
    EXPECT(!aura_seq_release(g.cache, gone), "%s", aura_last_error());
    g.bytes = aura_cache_bytes(g.cache);
    try_id(0), try_id(gone), try_id(UINT32_MAX), try_id(77);
    EXPECT(aura_seq_create(NULL, &gone) == AURA_BAD_ARGUMENT && aura_seq_create(g.cache, NULL) == AURA_BAD_ARGUMENT, "NULL");
    EXPECT(aura_seq_release(NULL, g.seq[0]) == AURA_BAD_ARGUMENT && aura_truncate(NULL, g.seq[0], 0) == AURA_BAD_ARGUMENT, "NULL");
    EXPECT(aura_seq_reserve(NULL, g.seq[0], 1) == AURA_BAD_ARGUMENT &&
           aura_seq_get_info(NULL, g.seq[0], &info) == AURA_BAD_ARGUMENT, "NULL");
    EXPECT(aura_seq_get_info(g.cache, g.seq[0], NULL) == AURA_BAD_ARGUMENT &&
           aura_cache_get_info(g.cache, NULL) == AURA_BAD_ARGUMENT, "NULL");
    info.size = 5, cache_info.size = 5;
    EXPECT(aura_seq_get_info(g.cache, g.seq[0], &info) == AURA_BAD_ARGUMENT &&
           aura_cache_get_info(g.cache, &cache_info) == AURA_BAD_ARGUMENT, "size");
    EXPECT(aura_cache_get_info(NULL, &cache_info) == AURA_BAD_ARGUMENT, "NULL");
    for (int i = 0; i < 300; i++) { /* sequences come and go: no id is used twice */
        aura_seq id = seq_new(g.cache);
        EXPECT(id != g.seq[0] && id != g.seq[1] && !aura_seq_release(g.cache, id) &&
               aura_truncate(g.cache, id, 0) == AURA_BAD_ARGUMENT, "id %u", id);
    }
    expect_untouched("sequences come and go");
    teardown();
}

static void append_misuse(void)
{
    setup();
    REFUSED(aura_append(NULL, &g.append, 1), AURA_BAD_ARGUMENT);
    REFUSED(aura_append(g.cache, NULL, 1), AURA_BAD_ARGUMENT);
    WRONG(g.append.size = 8, aura_append(g.cache, &g.append, 1), AURA_BAD_ARGUMENT);
    WRONG(g.append.k.data = NULL, aura_append(g.cache, &g.append, 1), AURA_BAD_ARGUMENT);
    WRONG(g.append.v.data = NULL, aura_append(g.cache, &g.append, 1), AURA_BAD_ARGUMENT);
    WRONG(g.append.k.dtype = (aura_dtype)3, aura_append(g.cache, &g.append, 1), AURA_UNSUPPORTED);
    WRONG(g.append.v.dtype = (aura_dtype)-1, aura_append(g.cache, &g.append, 1), AURA_UNSUPPORTED);
    WRONG(g.append.k.data = (char *)g.append.k.data + 1, aura_append(g.cache, &g.append, 1), AURA_BAD_ARGUMENT);
    aura_append_job twice[2] = {g.append, g.append};
    REFUSED(aura_append(g.cache, twice, 2), AURA_BAD_ARGUMENT);
    teardown();
}

/* A vector that cannot be stored, in every place: the call stores nothing, not even the tokens of its other jobs. */
static void bad_vectors_are_refused(void)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY, 60100, -1e30f};
    static const uint32_t places[][2] = {{0, 0}, {9, 1}, {5, 0}};
    setup();
    for (uint32_t i = 0; i < 5 * 3 * 2; i++) {
        struct tensor k = tensor_new(10, 2, 64, AURA_F32, DENSE), v = tensor_new(10, 2, 80, AURA_F32, DENSE),
            *wrong = i % 2 ? &k : &v;
        aura_append_job jobs[2] = {append_job(g.seq[0], &g.scene.k, &g.scene.v, 0, 60), append_job(g.seq[1], &k, &v, 0, 10)};
        float *x = calloc(10 * 2 * 80, sizeof *x);
        tensor_set(&k, x), tensor_set(&v, x);
        ((float *)wrong->memory)[tensor_at(wrong, places[i / 2 % 3][0], places[i / 2 % 3][1]) + i] = bad[i / 6];
        EXPECT(aura_append(g.cache, jobs, 2) == AURA_BAD_VALUE, "%g in %s: %s", (double)bad[i / 6],
               i % 2 ? "a key" : "a value", aura_last_error());
        EXPECT(!strncmp(aura_last_error(), "aura_append", 11), "message: %s", aura_last_error());
        expect_untouched("a bad vector");
        tensor_free(&k), tensor_free(&v);
        free(x);
    }
    teardown();
}

/* A single token with these values; the key is 0. */
static aura_status append_value(aura_kind kind, const float *x)
{
    static const float zero[64];
    aura_config config = config_of(kind, kind, 64, 64, 1);
    struct tensor k = tensor_new(1, 1, 64, AURA_F32, DENSE), v = tensor_new(1, 1, 64, AURA_F32, DENSE);
    aura_cache *cache = cache_new(ctx, &config);
    aura_seq seq = seq_new(cache);
    tensor_set(&k, zero), tensor_set(&v, x);
    aura_status status = append(cache, seq, &k, &v, 0, 1);
    EXPECT(seq_tokens(cache, seq) == !status, "%llu tokens", (unsigned long long)seq_tokens(cache, seq));
    aura_cache_destroy(cache);
    tensor_free(&k), tensor_free(&v);
    return status;
}

/* The limit of 60 000 is for the length of a vector after balance, not for a coordinate. Plain numbers must be finite. */
static void the_longest_vector(void)
{
    static const float lengths[] = {59990, 60010};
    float balance[64], x[64];
    for (int d = 0; d < 64; d++)
        balance[d] = 4;
    for (uint32_t i = 0; i < 2 * N_BITS; i++) {
        aura_config config = config_of(kinds[i / 2], AURA_KIND_F32, 64, 64, 1);
        struct tensor k = tensor_new(1, 1, 64, AURA_F32, DENSE);
        for (int d = 0; d < 64; d++)
            x[d] = lengths[i % 2] / 8 * (d % 3 ? 1.f : -1.f);
        aura_status status = append_value(kinds[i / 2], x);
        EXPECT(status == (i % 2 ? AURA_BAD_VALUE : AURA_OK), "a value of length %g: %s", (double)lengths[i % 2],
               aura_status_text(status));
        for (int d = 0; d < 64; d++)
            x[d] /= 4;
        config.balance = balance;
        tensor_set(&k, x);
        aura_cache *cache = cache_new(ctx, &config);
        status = append(cache, seq_new(cache), &k, &k, 0, 1);
        EXPECT(status == (i % 2 ? AURA_BAD_VALUE : AURA_OK), "a balanced key of length %g: %s", (double)lengths[i % 2],
               aura_status_text(status));
        aura_cache_destroy(cache);
        tensor_free(&k);
    }
    for (uint32_t i = N_BITS; i < N_KINDS; i++) {
        memset(x, 0, sizeof x);
        x[3] = NAN;
        EXPECT(append_value(kinds[i], x) == AURA_BAD_VALUE, "NaN in plain values of kind %u", kinds[i]);
        x[3] = INFINITY;
        EXPECT(append_value(kinds[i], x) == AURA_BAD_VALUE, "Inf in plain values of kind %u", kinds[i]);
    }
    x[3] = 65520; /* becomes infinite in f16 */
    EXPECT(append_value(AURA_KIND_F16, x) == AURA_BAD_VALUE, "65520 in f16");
    x[3] = 65519;
    EXPECT(append_value(AURA_KIND_F16, x) == AURA_OK, "65519 in f16: %s", aura_last_error());
}

static void decode_misuse(void)
{
    aura_view none = AURA_VIEW_INIT;
    setup();
    REFUSED(aura_cache_decode(NULL, g.seq[0], 0, 1, &g.k.view, &g.v.view), AURA_BAD_ARGUMENT);
    REFUSED(aura_cache_decode(g.cache, g.seq[0], 0, TOKENS + 1, &g.k.view, &g.v.view), AURA_BAD_ARGUMENT);
    REFUSED(aura_cache_decode(g.cache, g.seq[0], TOKENS, 1, &g.k.view, &g.v.view), AURA_BAD_ARGUMENT);
    REFUSED(aura_cache_decode(g.cache, g.seq[0], UINT64_MAX, 2, &g.k.view, &none), AURA_BAD_ARGUMENT);
    WRONG(g.k.view.dtype = (aura_dtype)9, aura_cache_decode(g.cache, g.seq[0], 0, 5, &g.k.view, &none), AURA_UNSUPPORTED);
    WRONG(g.k.view.head_stride = 63, aura_cache_decode(g.cache, g.seq[0], 0, 5, &g.k.view, &none), AURA_BAD_ARGUMENT);
    WRONG(g.v.view.token_stride = 79, aura_cache_decode(g.cache, g.seq[0], 0, 5, &none, &g.v.view), AURA_BAD_ARGUMENT);
    WRONG(g.v.view.data = (char *)g.v.view.data + 1, aura_cache_decode(g.cache, g.seq[0], 0, 5, &none, &g.v.view),
          AURA_BAD_ARGUMENT);
    teardown();
}

/* ---- attend ---------------------------------------------------------------------------------------------------------- */

static void attend_misuse(void)
{
    static float mask[QUERIES * TOKENS];
    static const uint32_t tile;
    aura_attend_job *job = &g.call.job;
    aura_attend_options *o = &g.at.options;
    setup();
    REFUSED(aura_attend(NULL, job, 1, NULL), AURA_BAD_ARGUMENT);
    REFUSED(aura_attend(g.cache, NULL, 1, NULL), AURA_BAD_ARGUMENT);
    WRONG(job->size = 3, aura_attend(g.cache, job, 1, o), AURA_BAD_ARGUMENT);
    WRONG(o->size = 3, aura_attend(g.cache, job, 1, o), AURA_BAD_ARGUMENT);
    WRONG(job->q.data = NULL, aura_attend(g.cache, job, 1, o), AURA_BAD_ARGUMENT);
    WRONG(job->out.data = NULL, aura_attend(g.cache, job, 1, o), AURA_BAD_ARGUMENT);
    WRONG(job->q.dtype = (aura_dtype)4, aura_attend(g.cache, job, 1, o), AURA_UNSUPPORTED);
    WRONG(job->out.dtype = (aura_dtype)4, aura_attend(g.cache, job, 1, o), AURA_UNSUPPORTED);
    WRONG(job->q.data = (char *)job->q.data + 2, aura_attend(g.cache, job, 1, o), AURA_BAD_ARGUMENT);
    WRONG(job->out.head_stride = 79, aura_attend(g.cache, job, 1, o), AURA_BAD_ARGUMENT);
    WRONG(job->out.token_stride = 80, aura_attend(g.cache, job, 1, o), AURA_BAD_ARGUMENT);
    WRONG(job->queries = TOKENS + 1, aura_attend(g.cache, job, 1, o), AURA_BAD_ARGUMENT);
    WRONG(job->tokens = 1, aura_attend(g.cache, job, 1, o), AURA_BAD_ARGUMENT);
    WRONG(job->tiles = &tile, aura_attend(g.cache, job, 1, o), AURA_BAD_ARGUMENT);
    WRONG((job->mask = mask, job->mask_keys = TOKENS + 1), aura_attend(g.cache, job, 1, o), AURA_BAD_ARGUMENT);
    WRONG((job->mask = mask, job->mask_keys = 20, job->mask_stride = 19), aura_attend(g.cache, job, 1, o), AURA_BAD_ARGUMENT);
    WRONG(o->planes = 3, aura_attend(g.cache, job, 1, o), AURA_BAD_ARGUMENT);
    WRONG(o->not_causal = 2, aura_attend(g.cache, job, 1, o), AURA_BAD_ARGUMENT);
    WRONG(o->scale = NAN, aura_attend(g.cache, job, 1, o), AURA_BAD_ARGUMENT);
    WRONG(o->scale = INFINITY, aura_attend(g.cache, job, 1, o), AURA_BAD_ARGUMENT);
    WRONG(o->softcap = -1, aura_attend(g.cache, job, 1, o), AURA_BAD_ARGUMENT);
    WRONG(o->softcap = NAN, aura_attend(g.cache, job, 1, o), AURA_BAD_ARGUMENT);
    aura_attend_job jobs[2] = {g.call.job, g.call.job};
    jobs[1].q.data = NULL;
    REFUSED(aura_attend(g.cache, jobs, 2, NULL), AURA_BAD_ARGUMENT);
    REFUSED(aura_attend_workspace(g.cache, job, 1, 0, NULL), AURA_BAD_ARGUMENT);
    REFUSED(aura_attend_workspace(NULL, job, 1, 0, &g.bytes), AURA_BAD_ARGUMENT);
    EXPECT(!aura_attend(g.cache, NULL, 0, NULL), "no jobs: %s", aura_last_error());
    job->queries = 0;
    EXPECT(!aura_attend(g.cache, job, 1, NULL), "no queries: %s", aura_last_error());
    expect_untouched("nothing to do");
    teardown();
}

/* ---- sizes that overflow ------------------------------------------------------------------------------------------- */

/* The call fails with one of the two errors and changes nothing. */
static void too_large(aura_status status, aura_status other, const char *call)
{
    EXPECT(status == AURA_TOO_LARGE || (other && status == other), "%s: %s", call, status ? aura_last_error() : "no error");
    EXPECT(strncmp(aura_last_error(), call, strcspn(call, "(")) == 0, "%s: the message is %s", call, aura_last_error());
    expect_untouched(call);
    teardown(), setup();
}
#define TOO_LARGE(assignment, call) ((assignment), too_large((call), AURA_OK, #call " " #assignment))
#define NOT_SO_MANY(call) too_large((call), AURA_BAD_ARGUMENT, #call)

static void strides_that_overflow(void)
{
    static const ptrdiff_t huge[] = {PTRDIFF_MAX, PTRDIFF_MIN, PTRDIFF_MAX / 2, PTRDIFF_MAX / 4, PTRDIFF_MIN / 4,
                                     (ptrdiff_t)1 << 61};
    static float mask[8];
    aura_attend_job *job = &g.call.job;
    setup();
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        TOO_LARGE(g.append.k.token_stride = huge[i], aura_append(g.cache, &g.append, 1));
        TOO_LARGE(g.append.k.head_stride = huge[i], aura_append(g.cache, &g.append, 1));
        TOO_LARGE(g.append.v.token_stride = huge[i], aura_append(g.cache, &g.append, 1));
        TOO_LARGE(g.append.v.head_stride = huge[i], aura_append(g.cache, &g.append, 1));
        TOO_LARGE(g.k.view.token_stride = huge[i], aura_cache_decode(g.cache, g.seq[0], 0, 5, &g.k.view, NULL));
        TOO_LARGE(g.v.view.head_stride = huge[i], aura_cache_decode(g.cache, g.seq[0], 0, 5, NULL, &g.v.view));
        TOO_LARGE(job->q.token_stride = huge[i], aura_attend(g.cache, job, 1, NULL));
        TOO_LARGE(job->q.head_stride = huge[i], aura_attend(g.cache, job, 1, NULL));
        TOO_LARGE(job->out.token_stride = huge[i], aura_attend(g.cache, job, 1, NULL));
        TOO_LARGE(job->out.head_stride = huge[i], aura_attend(g.cache, job, 1, NULL));
    }
    TOO_LARGE((job->mask = mask, job->mask_keys = 2, job->mask_stride = SIZE_MAX), aura_attend(g.cache, job, 1, NULL));
    TOO_LARGE((job->mask = mask, job->mask_keys = 2, job->mask_stride = SIZE_MAX / 8), aura_attend(g.cache, job, 1, NULL));
    TOO_LARGE((job->mask = mask, job->mask_keys = 2, job->mask_stride = 0, job->mask_head_stride = SIZE_MAX / 8),
              aura_attend(g.cache, job, 1, NULL));
    TOO_LARGE(g.append.tokens = UINT32_MAX, (g.append.k.token_stride = (ptrdiff_t)1 << 31, aura_append(g.cache, &g.append, 1)));
    teardown();
}

static void counts_that_overflow(void)
{
    static const uint64_t huge[] = {UINT64_MAX, UINT64_MAX - 1, UINT64_MAX - 255, UINT64_MAX / 2 + 2, (uint64_t)1 << 62};
    aura_seq fork = 0;
    size_t bytes = 0;
    setup();
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        NOT_SO_MANY(aura_seq_reserve(g.cache, g.seq[1], huge[i]));
        NOT_SO_MANY(aura_truncate(g.cache, g.seq[0], huge[i]));
        NOT_SO_MANY(aura_seq_fork(g.cache, g.seq[0], huge[i], &fork));
        NOT_SO_MANY(aura_seq_remove(g.cache, g.seq[0], huge[i], 5));
        NOT_SO_MANY(aura_seq_remove(g.cache, g.seq[0], 5, huge[i]));
        NOT_SO_MANY(aura_seq_copy(g.cache, g.seq[0], huge[i], 256, g.seq[1]));
        NOT_SO_MANY(aura_seq_copy(g.cache, g.seq[0], 0, huge[i], g.seq[1]));
        NOT_SO_MANY(aura_cache_decode(g.cache, g.seq[0], huge[i], UINT32_MAX, &g.k.view, NULL));
        g.call.job.queries = UINT32_MAX;
        NOT_SO_MANY(aura_attend_workspace(g.cache, &g.call.job, 1, huge[i], &bytes));
    }
    NOT_SO_MANY(aura_seq_reserve(g.cache, g.seq[1], (uint64_t)1 << 57));
    EXPECT(aura_seq_reserve(g.cache, g.seq[1], (uint64_t)1 << 45) == AURA_OUT_OF_MEMORY, "more than a machine has: %s",
           aura_last_error());
    expect_untouched("a reservation that no machine can hold");
    aura_attend_job many[32]; /* each of them could be */
    g.call.job.queries = 1;
    for (int i = 0; i < 32; i++)
        many[i] = g.call.job;
    NOT_SO_MANY(aura_attend_workspace(g.cache, many, 32, (uint64_t)1 << 57, &bytes));
    teardown();
}

/* A configuration too large for any memory. The budget refuses what the allocator might still try. */
static void configurations_that_overflow(void)
{
    static const uint64_t huge[] = {UINT64_MAX, UINT64_MAX / 2, UINT64_MAX / 4 + 1};
    aura_config good = config_of(AURA_KIND_B4, AURA_KIND_B4, 64, 64, 1);
    good.budget_bytes = (size_t)1 << 30;
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        aura_config c = good;
        c.window = huge[i];
        expect_no_cache(c, AURA_TOO_LARGE, "window");
        c = good, c.slots = huge[i];
        expect_no_cache(c, AURA_TOO_LARGE, "slots");
    }
    aura_config c = good;
    c.q_heads = c.kv_heads = UINT32_MAX;
    expect_no_cache(c, AURA_TOO_LARGE, "heads");
    c = good, c.window = UINT64_MAX / 4, c.max_queries = c.keep_first = UINT32_MAX;
    aura_cache *cache = cache_new(ctx, &c);
    aura_seq seq = seq_new(cache);
    EXPECT(aura_seq_reserve(cache, seq, UINT64_MAX) == AURA_TOO_LARGE &&
           aura_seq_reserve(cache, seq, (uint64_t)1 << 50) == AURA_OUT_OF_PAGES,
           "a ring that is larger than memory: %s", aura_last_error());
    aura_cache_destroy(cache);
}

static void slots_that_overflow(void)
{
    static const uint64_t huge[] = {UINT64_MAX, (uint64_t)1 << 56, UINT64_MAX / 256, UINT64_MAX / 32, 300};
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, 64, 64, 1);
    config.slots = 300;
    float x[2 * 64] = {0}, lse[2];
    aura_cache *cache = cache_new(ctx, &config);
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        aura_view view = {x, AURA_F32, 0, 0, NULL};
        aura_slot_job job = AURA_SLOT_JOB_INIT;
        aura_attend_job attend = AURA_ATTEND_JOB_INIT;
        uint32_t tile = (uint32_t)huge[i];
        size_t bytes;
        job.tokens = 1, job.slot = &huge[i], job.k = job.v = as_input(view);
        EXPECT(aura_slots_write(cache, &job, 1) == AURA_BAD_ARGUMENT &&
               aura_slots_decode(cache, &huge[i], 1, &view, NULL) == AURA_BAD_ARGUMENT, "slot %llu",
               (unsigned long long)huge[i]);
        EXPECT(aura_slots_reference(cache, huge[i], &job.k) == AURA_BAD_ARGUMENT &&
               aura_slots_clear(cache, huge[i]) == AURA_BAD_ARGUMENT, "page %llu",
               (unsigned long long)huge[i]);
        attend.queries = 1, attend.q = job.k, attend.out = view, attend.lse = lse, attend.tokens = huge[i] + 1;
        EXPECT(huge[i] + 1 == 0 || aura_attend(cache, &attend, 1, NULL) == AURA_BAD_ARGUMENT, "%llu tokens",
               (unsigned long long)huge[i] + 1);
        attend.queries = UINT32_MAX;
        aura_status status = aura_attend_workspace(cache, &attend, 1, 0, &bytes);
        EXPECT(attend.tokens < 1000 || status == AURA_TOO_LARGE || status == AURA_BAD_ARGUMENT,
               "workspace for %llu tokens: %s", (unsigned long long)huge[i] + 1, aura_status_text(status));
        attend.queries = 1, attend.tokens = 1, attend.tiles = &tile;
        EXPECT(aura_attend(cache, &attend, 1, NULL) == (tile < 10 ? AURA_OK : AURA_BAD_ARGUMENT), "tile %u", tile);
    }
    uint64_t slot[2] = {0, 1};
    aura_slot_job job = AURA_SLOT_JOB_INIT;
    job.tokens = 2, job.slot = slot, job.k.data = job.v.data = x, job.k.token_stride = PTRDIFF_MAX / 2;
    EXPECT(aura_slots_write(cache, &job, 1) == AURA_TOO_LARGE, "stride: %s", aura_last_error());
    aura_cache_destroy(cache);
}

/* Rows in and out. */
static void imports_that_overflow(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, 256, 256, 2);
    aura_cache *cache = cache_new(ctx, &config);
    aura_seq seq = seq_new(cache);
    float book[16] = {0};
    uint8_t codes[2 * 256] = {0};
    aura_codebook exact;
    aura_import_rows_args rows = AURA_IMPORT_ROWS_ARGS_INIT;
    aura_import_tq_args tq = AURA_IMPORT_TQ_ARGS_INIT;
    EXPECT(!aura_codebook_get(AURA_TABLE_EXACT, 4, &exact), "%s", aura_last_error());
    rows.seq = tq.seq = seq, rows.tokens = tq.tokens = 1;
    rows.k.bits = 4, rows.k.codes = codes, rows.k.norms = book, rows.k.codebook = book;
    for (size_t stride = SIZE_MAX; stride > SIZE_MAX / 512; stride /= 4) {
        rows.v = rows.k, rows.v.stride = stride;
        EXPECT(aura_import_rows(cache, &rows) == AURA_TOO_LARGE, "stride %zx: %s", stride, aura_last_error());
        tq.capacity = stride, tq.k.bits = 8, tq.k.rows = codes, tq.k.norms = book, tq.v = tq.k;
        EXPECT(aura_import_tq(cache, &tq) == AURA_TOO_LARGE, "capacity %zx: %s", stride, aura_last_error());
        EXPECT(seq_tokens(cache, seq) == 0, "something was imported");
    }
    aura_view view = {codes, AURA_F16, 0, 0, NULL};
    aura_append_job one = AURA_APPEND_JOB_INIT;
    float zero[2 * 256] = {0};
    view.dtype = AURA_F32, view.data = zero, one.seq = seq, one.tokens = 1, one.k = one.v = as_input(view);
    EXPECT(!aura_append(cache, &one, 1), "%s", aura_last_error());
    for (size_t stride = SIZE_MAX; stride > SIZE_MAX / 512; stride /= 4) {
        aura_export_rows_args out = AURA_EXPORT_ROWS_ARGS_INIT;
        aura_export_tq_args out_tq = AURA_EXPORT_TQ_ARGS_INIT;
        out.seq = out_tq.seq = seq, out.tokens = out_tq.tokens = 1;
        out.k.codebook = &exact, out.k.codes = codes, out.k.norms = book, out.k.stride = stride;
        EXPECT(aura_export_rows(cache, &out) == AURA_TOO_LARGE, "stride %zx: %s", stride, aura_last_error());
        out_tq.capacity = stride, out_tq.k.bits = 8, out_tq.k.rows = codes, out_tq.k.norms = book;
        EXPECT(aura_export_tq(cache, &out_tq) == AURA_TOO_LARGE, "capacity %zx: %s", stride, aura_last_error());
    }
    aura_cache_destroy(cache);
}

int main(void)
{
    if (aura_ctx_create(NULL, &ctx))
        return 1;
    RUN(formats_by_name);
    RUN(create_misuse);
    RUN(ids_of_sequences);
    RUN(append_misuse);
    RUN(bad_vectors_are_refused);
    RUN(the_longest_vector);
    RUN(decode_misuse);
    RUN(attend_misuse);
    RUN(strides_that_overflow);
    RUN(counts_that_overflow);
    RUN(configurations_that_overflow);
    RUN(slots_that_overflow);
    RUN(imports_that_overflow);
    aura_ctx_destroy(ctx);
    return test_result();
}
