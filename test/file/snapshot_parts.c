/* Snapshots of some sequences and of some KV heads, of rings and of slots. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "snapshot_tools.h"

/* ---- parts ----------------------------------------------------------------------------------------------------------- */

static void some_sequences(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, 64, 64, 1);
    struct text t = text_new(&config, 900);
    aura_seq seq[SEQS], got = 0, wanted[2];
    aura_cache *a = some_cache(ctx, &config, &t, 400, seq), *b = cache_new(ctx, &config), *c = NULL;
    aura_snapshot_options some = AURA_SNAPSHOT_OPTIONS_INIT;
    wanted[0] = seq[1], wanted[1] = seq[0];
    some.seqs = wanted, some.n_seqs = 2;
    EXPECT(!aura_cache_save(a, file_path("two"), &some) && !aura_cache_save(a, file_path("all"), NULL), "%s", aura_last_error());
    c = load(ctx, file_path("two"), NULL);
    expect_same(a, seq[0], c, 2, "one of two"), expect_same(a, seq[1], c, 1, "the other");
    EXPECT(seq_tokens(c, 3) == UINT64_MAX, "a third");
    aura_cache_destroy(c);
    wanted[0] = number_of(a, seq[1]), wanted[1] = number_of(a, seq[0]);
    c = load(ctx, file_path("all"), &some);
    expect_same(a, seq[0], c, wanted[1], "loaded by number"), expect_same(a, seq[1], c, wanted[0], "loaded by number");
    EXPECT(seq_tokens(c, number_of(a, seq[2])) == UINT64_MAX, "a third");
    aura_cache_destroy(c), c = NULL;

    grow(b, seq_new(b), &t, 100, 50); /* a cache in use */
    for (int i = 0; i < SEQS; i++) {
        wanted[0] = number_of(a, seq[i]), some.n_seqs = 1;
        EXPECT(!aura_seq_load(b, file_path("all"), &some, &got), "%s", aura_last_error());
        expect_same(a, seq[i], b, got, "one of a whole cache");
        EXPECT(!aura_seq_save(a, seq[i], file_path("one"), NULL) && !aura_seq_load(b, file_path("one"), NULL, &got), "%s",
               aura_last_error());
        expect_same(a, seq[i], b, got, "alone");
        grow(b, got, &t, 45, 1);
    }
    got = 7;
    EXPECT(aura_seq_load(b, file_path("all"), NULL, &got) == AURA_BAD_ARGUMENT && got == 7, "which of four?");
    wanted[0] = 0x7ffff;
    EXPECT(aura_seq_load(b, file_path("all"), &some, &got) == AURA_BAD_ARGUMENT && got == 7, "no such sequence");
    EXPECT(aura_cache_load(ctx, file_path("all"), &some, &c) == AURA_BAD_ARGUMENT && !c, "no such sequence");
    EXPECT(aura_cache_save(a, file_path("none"), &some) == AURA_BAD_ARGUMENT && access(file_path("none"), F_OK),
           "no such sequence");
    wanted[0] = wanted[1] = seq[0], some.n_seqs = 2;
    EXPECT(aura_cache_save(a, file_path("none"), &some) == AURA_BAD_ARGUMENT, "one twice");
    wanted[0] = wanted[1] = 1;
    EXPECT(aura_cache_load(ctx, file_path("all"), &some, &c) == AURA_BAD_ARGUMENT && !c, "one twice");
    some.n_seqs = 0;
    EXPECT(!aura_cache_save(a, file_path("one"), &some), "none at all: %s", aura_last_error());
    c = load(ctx, file_path("one"), NULL);
    EXPECT(seq_tokens(c, 1) == UINT64_MAX, "none at all");
    aura_cache_destroy(a), aura_cache_destroy(b), aura_cache_destroy(c);
    unlink(file_path("all")), unlink(file_path("one")), unlink(file_path("two")), text_free(&t);
}

/* Cache b has some of the heads of cache a: both decode the same tokens for these heads. */
static void expect_heads(const aura_cache *a, aura_seq seq, const aura_cache *b, aura_seq in_b, uint32_t first, uint32_t heads,
                         const char *what)
{
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    aura_cache_get_info(a, &info);
    uint32_t n = (uint32_t)seq_tokens(a, seq), all = info.config.kv_heads, dim = info.config.k_dim;
    float *x = calloc((size_t)n * all * dim, sizeof *x), *y = calloc((size_t)n * heads * dim, sizeof *y);
    for (int values = 0; values < 2; values++) {
        aura_view x_view = {x, AURA_F32, 0, 0, NULL}, y_view = {y, AURA_F32, 0, 0, NULL};
        EXPECT(!aura_cache_decode(a, seq, 0, n, values ? NULL : &x_view, values ? &x_view : NULL) &&
               !aura_cache_decode(b, in_b, 0, n, values ? NULL : &y_view, values ? &y_view : NULL), "%s: %s", what,
               aura_last_error());
        for (uint32_t i = 0; i < n; i++)
            EXPECT(!memcmp(x + ((size_t)i * all + first) * dim, y + (size_t)i * heads * dim, heads * dim * sizeof *x),
                   "%s: token %u differs", what, i);
    }
    free(x), free(y);
}

static void some_heads(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B6, 64, 64, 4), part = config;
    float *balance = some_balance(4, 64);
    config.q_heads = 12, config.balance = balance;
    struct text t = text_new(&config, 900);
    aura_seq seq[SEQS], got = 0;
    aura_cache *a = some_cache(ctx, &config, &t, 300, seq);
    EXPECT(!aura_cache_save(a, file_path("all"), NULL), "%s", aura_last_error());
    for (uint32_t first = 0; first < 4; first++)
        for (uint32_t heads = 1; heads <= 4 - first; heads++) {
            aura_snapshot_options o = AURA_SNAPSHOT_OPTIONS_INIT, one = AURA_SNAPSHOT_OPTIONS_INIT;
            aura_cache_info info = AURA_CACHE_INFO_INIT;
            char what[64];
            snprintf(what, sizeof what, "heads %u + %u", first, heads);
            o.first_head = first, o.heads = first + heads == 4 ? 0 : heads;
            aura_cache *b = load(ctx, file_path("all"), &o);
            EXPECT(!aura_cache_save(a, file_path("part"), &o), "%s", aura_last_error());
            aura_cache *c = load(ctx, file_path("part"), NULL);
            aura_cache_get_info(b, &info);
            EXPECT(info.config.kv_heads == heads && info.config.q_heads == 3 * heads &&
                   !memcmp(info.config.balance, balance + first * 64, heads * 256), "%s", what);
            for (int i = 0; i < SEQS - 1; i++) {
                const aura_seq number = number_of(a, seq[i]);
                expect_heads(a, seq[i], b, number, first, heads, what);
                expect_same(b, number, c, number, what);
            }
            part.q_heads = 3 * heads, part.kv_heads = heads, part.balance = balance + first * 64;
            aura_cache *d = cache_new(ctx, &part);
            const aura_seq second = number_of(a, seq[1]);
            one = o, one.seqs = &second, one.n_seqs = 1;
            EXPECT(!aura_seq_load(d, file_path("all"), &one, &got), "%s", aura_last_error());
            expect_same(b, second, d, got, what);
            one.first_head = one.heads = 0;
            EXPECT(!aura_seq_load(d, file_path("part"), &one, &got), "%s", aura_last_error());
            expect_same(b, second, d, got, what);
            aura_cache_destroy(b), aura_cache_destroy(c), aura_cache_destroy(d);
        }
    aura_snapshot_options o = AURA_SNAPSHOT_OPTIONS_INIT;
    aura_cache *none = NULL;
    const uint32_t bad[][2] = {{4, 0}, {4, 1}, {0, 5}, {3, 2}, {1, UINT32_MAX}, {UINT32_MAX, 2}};
    for (int i = 0; i < 6; i++) {
        o.first_head = bad[i][0], o.heads = bad[i][1];
        EXPECT(aura_cache_save(a, file_path("none"), &o) == AURA_BAD_ARGUMENT, "heads %u + %u", o.first_head, o.heads);
        EXPECT(aura_cache_load(ctx, file_path("all"), &o, &none) == AURA_BAD_ARGUMENT && !none, "heads %u + %u",
               o.first_head, o.heads);
    }
    aura_cache_destroy(a);
    unlink(file_path("all")), unlink(file_path("part")), text_free(&t), free(balance);
}

/* ---- rings and slots ------------------------------------------------------------------------------------------------- */

static void windows(void)
{
    for (uint32_t keep = 0; keep <= 300; keep += 150)
        for (uint32_t tokens = 10; tokens < 2500; tokens = tokens * 3 / 2 + 61) {
            aura_config config = config_of(AURA_KIND_B4, keep ? AURA_KIND_F16 : AURA_KIND_B4, 64, 64, 1);
            config.window = 300, config.max_queries = 40, config.keep_first = keep;
            struct text t = text_new(&config, 900);
            aura_cache *a = cache_new(ctx, &config);
            aura_seq seq[2] = {seq_new(a), 0}, got = 0;
            grow(a, seq[0], &t, tokens, 0);
            EXPECT(!aura_seq_fork(a, seq[0], tokens - (tokens < 20 ? 3 : 20), &seq[1]), "%s", aura_last_error());
            grow(a, seq[1], &t, 25, 4);
            struct bytes first = saved(a, "ring");
            aura_cache *b = load(ctx, file_path("ring"), NULL);
            if (!b)
                return;
            struct bytes second = saved(b, "ring");
            EXPECT(same_bytes(first, second), "%u tokens: saved again, other bytes", tokens);
            aura_snapshot_options o = AURA_SNAPSHOT_OPTIONS_INIT;
            const aura_seq in_b[2] = {number_of(a, seq[0]), number_of(a, seq[1])};
            o.seqs = in_b, o.n_seqs = 1;
            EXPECT(!aura_seq_load(b, file_path("ring"), &o, &got), "%s", aura_last_error());
            for (uint32_t n = 0; n < 400; n += 130) {
                expect_same(a, seq[0], b, in_b[0], "window"), expect_same(a, seq[1], b, in_b[1], "window"),
                    expect_same(a, seq[0], b, got, "window");
                grow(a, seq[0], &t, 130, 1), grow(b, in_b[0], &t, 130, 1), grow(b, got, &t, 130, 1);
                grow(a, seq[1], &t, 130, 2), grow(b, in_b[1], &t, 130, 2);
            }
            aura_cache_destroy(a), aura_cache_destroy(b);
            free(first.data), free(second.data), text_free(&t);
        }
    unlink(file_path("ring"));
}

static void slots(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B8, 64, 64, 2);
    config.slots = 700;
    struct text t = text_new(&config, 100);
    aura_cache *a = cache_new(ctx, &config), *b;
    aura_slot_job job = AURA_SLOT_JOB_INIT;
    uint64_t slot[100], all[700];
    float *x[2] = {malloc(700 * 128 * 4), malloc(700 * 128 * 4)}, *y[2] = {malloc(700 * 128 * 4), malloc(700 * 128 * 4)};
    for (uint64_t i = 0; i < 100; i++)
        slot[i] = i < 50 ? i * 3 + 500 : i * 2;
    for (uint64_t i = 0; i < 700; i++)
        all[i] = i;
    aura_input mean = tensor_from(&t.k, 0);
    EXPECT(!aura_slots_reference(a, 1, &mean), "%s", aura_last_error());
    job.tokens = 100, job.slot = slot, job.k = mean, job.v = tensor_from(&t.v, 0);
    EXPECT(!aura_slots_write(a, &job, 1), "%s", aura_last_error());
    EXPECT(!aura_cache_save(a, file_path("slots"), NULL), "%s", aura_last_error());
    b = load(ctx, file_path("slots"), NULL);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 2; i++) {
            aura_view k = {x[i], AURA_F32, 0, 0, NULL}, v = {y[i], AURA_F32, 0, 0, NULL};
            EXPECT(!aura_slots_decode(i ? b : a, all, 700, &k, &v), "%s", aura_last_error());
        }
        EXPECT(!memcmp(x[0], x[1], 700 * 128 * 4) && !memcmp(y[0], y[1], 700 * 128 * 4), "slots differ");
        EXPECT(aura_slots_reference(b, 2, &mean) == AURA_BAD_ARGUMENT, "a page that was written to takes a reference");
        slot[0] = 300, job.tokens = 1; /* relative to the page's reference */
        EXPECT(!aura_slots_write(a, &job, 1) && !aura_slots_write(b, &job, 1), "%s", aura_last_error());
    }
    EXPECT(!aura_cache_save(b, file_path("again"), NULL), "%s", aura_last_error());
    EXPECT(!aura_cache_save(a, file_path("slots"), NULL), "%s", aura_last_error());
    struct bytes p = read_file(file_path("slots")), q = read_file(file_path("again"));
    EXPECT(same_bytes(p, q), "saved again, other bytes");
    aura_seq seq = 1;
    aura_snapshot_options o = AURA_SNAPSHOT_OPTIONS_INIT;
    o.seqs = &seq, o.n_seqs = 1;
    EXPECT(aura_cache_save(a, file_path("none"), &o) == AURA_BAD_ARGUMENT &&
           aura_seq_load(b, file_path("slots"), NULL, &seq) == AURA_BAD_ARGUMENT, "sequences of slots");
    aura_cache_destroy(a), aura_cache_destroy(b);
    for (int i = 0; i < 2; i++)
        free(x[i]), free(y[i]);
    free(p.data), free(q.data), text_free(&t);
    unlink(file_path("slots")), unlink(file_path("again"));
}

/* ---- notes ------------------------------------------------------------------------------------------------------------ */

static void expect_note(const char *path, const char *wanted)
{
    char note[32] = "?";
    size_t bytes = 0;
    EXPECT(!aura_snapshot_note(ctx, path, NULL, &bytes) && bytes == strlen(wanted), "%zu bytes: %s", bytes, aura_last_error());
    bytes = sizeof note;
    EXPECT(!aura_snapshot_note(ctx, path, note, &bytes) && bytes == strlen(wanted) && !memcmp(note, wanted, bytes), "%.*s",
           (int)bytes, note);
}

/* The caller's bytes go with a cache, a sequence and a model, and nothing else in the file notices. */
static void notes(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, 64, 64, 2);
    struct text t = text_new(&config, 300);
    aura_cache *a = cache_new(ctx, &config), *b;
    aura_model_config layers = AURA_MODEL_CONFIG_INIT;
    aura_model_cache *model = NULL;
    aura_snapshot_options o = AURA_SNAPSHOT_OPTIONS_INIT;
    aura_seq seq = seq_new(a);
    char small[4];
    size_t bytes = sizeof small;
    layers.layers = 1, layers.configs = &config;
    EXPECT(!aura_model_cache_create(ctx, &layers, &model), "%s", aura_last_error());
    grow(a, seq, &t, 200, 0);
    EXPECT(!aura_cache_save(a, file_path("plain"), NULL), "%s", aura_last_error());
    expect_note(file_path("plain"), "");
    o.note = "a note", o.note_bytes = 6;
    EXPECT(!aura_cache_save(a, file_path("noted"), &o), "%s", aura_last_error());
    expect_note(file_path("noted"), "a note");
    b = load(ctx, file_path("noted"), NULL);
    expect_same(a, seq, b, 1, "with a note");
    EXPECT(aura_snapshot_note(ctx, file_path("noted"), small, &bytes) == AURA_BAD_ARGUMENT && bytes == sizeof small,
           "%zu bytes", bytes);
    EXPECT(!aura_seq_save(a, seq, file_path("noted"), &o), "%s", aura_last_error());
    expect_note(file_path("noted"), "a note");
    EXPECT(!aura_model_save(model, file_path("noted"), &o), "%s", aura_last_error());
    expect_note(file_path("noted"), "a note");
    o.note = NULL;
    EXPECT(aura_cache_save(a, file_path("noted"), &o) == AURA_BAD_ARGUMENT, "a note that is NULL");
    EXPECT(aura_snapshot_note(ctx, file_path("none"), NULL, &bytes) == AURA_BAD_ARGUMENT, "no place for a note");
    bytes = 0;
    EXPECT(aura_snapshot_note(ctx, file_path("none"), NULL, &bytes) == AURA_IO, "no such file");
    aura_cache_destroy(a), aura_cache_destroy(b), aura_model_cache_destroy(model), text_free(&t);
    unlink(file_path("plain")), unlink(file_path("noted"));
}

int main(void)
{
    if (aura_ctx_create(NULL, &ctx) || !files_begin())
        return 1;
    RUN(some_sequences);
    RUN(some_heads);
    RUN(windows);
    RUN(slots);
    RUN(notes);
    aura_ctx_destroy(ctx);
    files_end();
    return test_result();
}
