/* Many layers: one budget, one file, and every sequence in all layers or in none. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "../file/snapshot_tools.h"

enum { LAYERS = 5 };

/* Layers of different formats and shapes, one of them with a window; `balance` belongs to layers 0 and 3. */
static void some_configs(aura_config configs[LAYERS], const float *balance)
{
    static const aura_kind kinds_of[LAYERS][2] = {{AURA_KIND_B4, AURA_KIND_B4}, {AURA_KIND_F16, AURA_KIND_B3},
                                                  {AURA_KIND_B8, AURA_KIND_B8},
                                                  {AURA_KIND_B5, AURA_KIND_F32}, {AURA_KIND_B4, AURA_KIND_B4}};
    for (uint32_t i = 0; i < LAYERS; i++) {
        configs[i] = config_of(kinds_of[i][0], kinds_of[i][1], i == 2 ? 128 : 64, i == 2 ? 128 : 64, 2);
        configs[i].seed = i;
    }
    configs[0].balance = balance;
    configs[4].window = 300, configs[4].max_queries = 40;
}

static aura_model_cache *model_new(aura_ctx *in, size_t budget)
{
    aura_config configs[LAYERS];
    aura_model_config config = AURA_MODEL_CONFIG_INIT;
    aura_model_cache *model = NULL;
    float *balance = some_balance(2, 64);
    some_configs(configs, balance);
    config.layers = LAYERS, config.configs = configs, config.budget_bytes = budget;
    EXPECT(!aura_model_cache_create(in, &config, &model), "%s", aura_last_error());
    free(balance);
    return model;
}

/* A text for every layer. */
struct texts {
    struct text layer[LAYERS];
};

static struct texts texts_new(void)
{
    struct texts t;
    aura_config configs[LAYERS];
    some_configs(configs, NULL);
    for (int i = 0; i < LAYERS; i++)
        t.layer[i] = text_new(&configs[i], 900);
    return t;
}

static void texts_free(struct texts *t)
{
    for (int i = 0; i < LAYERS; i++)
        text_free(&t->layer[i]);
}

static void grow_model(aura_model_cache *model, aura_seq seq, const struct texts *t, uint32_t tokens, uint32_t salt)
{
    for (uint32_t i = 0; i < LAYERS; i++)
        grow(aura_model_cache_layer(model, i), seq, &t->layer[i], tokens, salt);
}

static void expect_same_model(const aura_model_cache *a, aura_seq x, const aura_model_cache *b, aura_seq y, const char *what)
{
    for (uint32_t i = 0; i < LAYERS; i++)
        expect_same(aura_model_cache_layer(a, i), x, aura_model_cache_layer(b, i), y, what);
}

static aura_model_cache_info model_info(const aura_model_cache *model)
{
    aura_model_cache_info info = AURA_MODEL_CACHE_INFO_INIT;
    EXPECT(!aura_model_cache_get_info(model, &info), "%s", aura_last_error());
    return info;
}

/* Expects n sequences in each layer. */
static void expect_seqs(const aura_model_cache *model, size_t n, const char *what)
{
    for (uint32_t i = 0; i < LAYERS; i++) {
        aura_cache_info info = AURA_CACHE_INFO_INIT;
        EXPECT(!aura_cache_get_info(aura_model_cache_layer(model, i), &info) && info.seqs == n,
               "%s: layer %u has %zu sequences, not %zu", what, i, info.seqs, n);
    }
}

static aura_seq model_seq(aura_model_cache *model)
{
    aura_seq seq = 0;
    EXPECT(!aura_model_seq_create(model, &seq) && seq, "%s", aura_last_error());
    return seq;
}

/* A layer does what a cache of the same configuration does. */
static void layers_are_caches(void)
{
    float *balance = some_balance(2, 64);
    aura_config configs[LAYERS];
    some_configs(configs, balance);
    struct texts t = texts_new();
    aura_model_cache *model = model_new(ctx, 0);
    aura_seq seq = model_seq(model), fork = 0;
    grow_model(model, seq, &t, 400, 0);
    EXPECT(!aura_model_seq_fork(model, seq, 380, &fork) && fork != seq, "%s", aura_last_error());
    grow_model(model, fork, &t, 50, 3);
    EXPECT(!aura_model_seq_truncate(model, fork, 390), "%s", aura_last_error());
    for (uint32_t i = 0; i < LAYERS; i++) {
        aura_cache *cache = cache_new(ctx, &configs[i]), *layer = aura_model_cache_layer(model, i);
        aura_seq own = seq_new(cache), own_fork = 0;
        grow(cache, own, &t.layer[i], 400, 0);
        EXPECT(!aura_seq_fork(cache, own, 380, &own_fork), "%s", aura_last_error());
        grow(cache, own_fork, &t.layer[i], 50, 3);
        EXPECT(!aura_truncate(cache, own_fork, 390), "%s", aura_last_error());
        expect_same(cache, own, layer, seq, "a layer"), expect_same(cache, own_fork, layer, fork, "a layer's fork");
        aura_cache_destroy(cache);
    }
    EXPECT(!aura_model_cache_layer(model, LAYERS) && !aura_model_cache_layer(NULL, 0), "no such layer");
    aura_model_cache_destroy(model), aura_model_cache_destroy(NULL);
    texts_free(&t), free(balance);
}

static void sequences_are_in_all_layers(void)
{
    aura_model_cache *model = model_new(ctx, 0);
    aura_seq seq[200], other = 7;
    for (int i = 0; i < 200; i++)
        seq[i] = model_seq(model);
    for (int i = 0; i < 200; i += 3)
        EXPECT(!aura_model_seq_release(model, seq[i]), "%s", aura_last_error());
    for (int i = 0; i < 200; i += 3)
        seq[i] = model_seq(model);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (int i = 0; i < 200; i++)
            EXPECT(seq_tokens(aura_model_cache_layer(model, l), seq[i]) == 0, "sequence %d is not in layer %u", i, l);
    EXPECT(model_info(model).seqs == 200 && model_info(model).layers == LAYERS, "%zu sequences", model_info(model).seqs);
    aura_cache *layer = aura_model_cache_layer(model, 1);
    EXPECT(aura_seq_create(layer, &other) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "aura_model_seq_create"), "%s",
           aura_last_error());
    EXPECT(aura_seq_fork(layer, seq[0], 0, &other) == AURA_BAD_ARGUMENT &&
           strstr(aura_last_error(), "aura_model_seq_fork"), "%s", aura_last_error());
    EXPECT(aura_seq_release(layer, seq[0]) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "aura_model_seq_release"),
           "%s", aura_last_error());
    aura_cache_destroy(layer); /* the model owns the layer: nothing happens */
    EXPECT(other == 7 && !aura_model_seq_truncate(model, seq[0], 0), "%s", aura_last_error());
    EXPECT(!aura_model_seq_release(model, seq[5]) && aura_model_seq_release(model, seq[5]) == AURA_BAD_ARGUMENT, "released twice");
    EXPECT(aura_model_seq_fork(model, seq[5], 0, &other) == AURA_BAD_ARGUMENT &&
           aura_model_seq_truncate(model, seq[5], 0) == AURA_BAD_ARGUMENT &&
               aura_model_seq_reserve(model, seq[5], 10) == AURA_BAD_ARGUMENT && other == 7, "a sequence that is gone");
    aura_model_cache_destroy(model);
}

/* ---- budget ---------------------------------------------------------------------------------------------------------- */

static void bytes_are_what_the_allocator_saw(void)
{
    static struct counting c;
    aura_ctx *own = counting_ctx(&c, 0xee, 1);
    size_t base = c.bytes;
    struct texts t = texts_new();
    aura_model_cache *model = model_new(own, 0);
    EXPECT(model_info(model).bytes == c.bytes - base, "%zu bytes, counted %zu", model_info(model).bytes, c.bytes - base);
    for (int i = 0; i < 3; i++) {
        aura_seq seq = model_seq(model);
        grow_model(model, seq, &t, 500, (uint32_t)i);
        EXPECT(model_info(model).bytes == c.bytes - base, "%zu bytes, counted %zu", model_info(model).bytes, c.bytes - base);
    }
    EXPECT(model_info(model).tokens == 3 * 500 * 4 + 3 * 500 && model_info(model).pages >= 30, "%llu tokens, %zu pages",
           (unsigned long long)model_info(model).tokens, model_info(model).pages);
    size_t sum = 0;
    for (uint32_t i = 0; i < LAYERS; i++)
        sum += aura_cache_bytes(aura_model_cache_layer(model, i));
    EXPECT(sum <= c.bytes - base && sum + 1024 > c.bytes - base, "layers have %zu of %zu", sum, c.bytes - base);
    aura_model_cache_destroy(model);
    EXPECT(c.bytes == base && !c.wrong, "%zu bytes lost", c.bytes - base);
    aura_ctx_destroy(own), texts_free(&t);
}

/* One budget for all layers: memory that one layer takes, the others lack. A failed call changes no layer. */
static void one_budget(void)
{
    struct texts t = texts_new();
    aura_model_cache *model = model_new(ctx, 0);
    aura_seq seq = model_seq(model), fork = 7;
    grow_model(model, seq, &t, 300, 0);
    size_t budget = model_info(model).bytes + 1000;
    aura_model_cache_destroy(model);
    model = model_new(ctx, budget);
    EXPECT(model_info(model).budget_bytes == budget, "%zu", model_info(model).budget_bytes);
    seq = model_seq(model);
    grow_model(model, seq, &t, 300, 0);
    EXPECT(aura_model_seq_reserve(model, seq, 100000) == AURA_OUT_OF_PAGES, "%s", aura_last_error());
    aura_model_cache_destroy(model);
    aura_cache_info first = AURA_CACHE_INFO_INIT;
    model = model_new(ctx, budget += 36000); /* a page more, which layer 0 gets */
    EXPECT(!aura_cache_get_info(aura_model_cache_layer(model, 0), &first) && first.page_bytes < 35800, "%zu bytes a page",
           first.page_bytes);
    seq = model_seq(model);
    grow_model(model, seq, &t, 300, 0);
    aura_status status = aura_model_seq_reserve(model, seq, 600);
    EXPECT(status == AURA_OUT_OF_PAGES && model_info(model).bytes <= budget, "%s: %zu of %zu", aura_status_text(status),
           model_info(model).bytes, budget);
    EXPECT(!aura_cache_get_info(aura_model_cache_layer(model, 0), &first) && first.pages == 3, "layer 0 has %zu pages",
           first.pages);
    for (uint32_t i = 0; i < LAYERS; i++) {
        aura_seq_info info = AURA_SEQ_INFO_INIT;
        EXPECT(!aura_seq_get_info(aura_model_cache_layer(model, i), seq, &info) && info.pages == 2,
               "layer %u kept %zu pages of a reservation that failed", i, info.pages);
    }
    aura_append_job job = append_job(seq, &t.layer[2].k, &t.layer[2].v, 0, 800);
    EXPECT(aura_append(aura_model_cache_layer(model, 2), &job, 1) == AURA_OUT_OF_PAGES, "%s", aura_last_error());
    int made = 0;
    for (aura_seq more; made < 100 && !aura_model_seq_create(model, &more); made++)
        ;
    EXPECT(made < 100, "no end of sequences");
    EXPECT(aura_model_seq_fork(model, seq, 300, &fork) == AURA_OUT_OF_PAGES && fork == 7, "%s", aura_last_error());
    expect_seqs(model, (size_t)made + 1, "no more room");
    aura_model_cache_destroy(model), model = NULL;
    aura_config configs[LAYERS];
    aura_model_config config = AURA_MODEL_CONFIG_INIT;
    some_configs(configs, NULL);
    config.layers = LAYERS, config.configs = configs, config.budget_bytes = 10000;
    EXPECT(aura_model_cache_create(ctx, &config, &model) == AURA_OUT_OF_PAGES && !model, "%s", aura_last_error());
    texts_free(&t);
}

/* With equal layers, sequences that grow together can use nearly all of a budget. */
static void budget_is_not_hoarded(void)
{
    enum { N = 8 };
    aura_config configs[N];
    aura_model_config config = AURA_MODEL_CONFIG_INIT;
    aura_model_cache *model = NULL;
    for (int i = 0; i < N; i++)
        configs[i] = config_of(AURA_KIND_B4, AURA_KIND_B4, 64, 64, 1);
    config.layers = N, config.configs = configs, config.budget_bytes = (size_t)8 << 20;
    EXPECT(!aura_model_cache_create(ctx, &config, &model), "%s", aura_last_error());
    struct text t = text_new(&configs[0], 600);
    aura_seq seq = model_seq(model);
    uint64_t tokens = 0;
    for (int full = 0; !full; tokens += 256 * !full)
        for (uint32_t i = 0; i < N && !full; i++) {
            aura_append_job job = append_job(seq, &t.k, &t.v, 0, 256);
            full = aura_append(aura_model_cache_layer(model, i), &job, 1) != AURA_OK;
        }
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    aura_cache_get_info(aura_model_cache_layer(model, 0), &info);
    double used = (double)(tokens / 256 * info.page_bytes * N) / (double)config.budget_bytes;
    EXPECT(used > 0.85, "only %.2f of the budget was used", used);
    aura_model_cache_destroy(model), text_free(&t);
}

/* A model whose layers need different amounts of memory: one holds all tokens, one has a window. */
static aura_model_cache *uneven_new(size_t budget)
{
    aura_config configs[2] = {config_of(AURA_KIND_B4, AURA_KIND_B4, 64, 64, 1), config_of(AURA_KIND_B4, AURA_KIND_B4, 64, 64, 1)};
    aura_model_config config = AURA_MODEL_CONFIG_INIT;
    aura_model_cache *model = NULL;
    configs[1].window = 256, configs[1].max_queries = 64;
    config.layers = 2, config.configs = configs, config.budget_bytes = budget;
    EXPECT(!aura_model_cache_create(ctx, &config, &model), "%s", aura_last_error());
    return model;
}

/* How many sequences of 250 tokens a model takes. */
static int short_ones(aura_model_cache *model)
{
    int made = 0;
    for (aura_seq seq; !aura_model_seq_create(model, &seq) && !aura_model_seq_reserve(model, seq, 250); made++)
        ;
    return made;
}

/* After a failed reservation or a release, the memory of one layer is there for the other layers and sequences. */
static void idle_pages_go_to_others(void)
{
    enum { BUDGET = 2 << 20 };
    aura_model_cache *fresh = uneven_new(BUDGET), *used = uneven_new(BUDGET);
    aura_seq seq = model_seq(used);
    size_t before = model_info(used).bytes;
    EXPECT(aura_model_seq_reserve(used, seq, 10000000) == AURA_OUT_OF_PAGES && model_info(used).bytes == before,
           "a reservation that failed left %zu bytes", model_info(used).bytes - before);
    uint64_t most = 256;
    while (!aura_model_seq_reserve(used, seq, most))
        most += 256;
    EXPECT(most > 80 * 256 && model_info(used).bytes > BUDGET * 9 / 10, "%llu tokens", (unsigned long long)most);
    EXPECT(!aura_model_seq_release(used, seq), "%s", aura_last_error());
    int want = short_ones(fresh), got = short_ones(used);
    EXPECT(want > 20 && got >= want - 1, "%d sequences, %d where there was a long one before", want, got);
    aura_model_cache_destroy(fresh), aura_model_cache_destroy(used);
}

/* ---- profile --------------------------------------------------------------------------------------------------------- */

static void profile_gives_the_balance(void)
{
    aura_config configs[LAYERS];
    aura_model_config config = AURA_MODEL_CONFIG_INIT;
    aura_model_cache *model = NULL;
    aura_profile *profile = NULL, *other = NULL;
    float *own = some_balance(2, 64), *theirs = some_balance(2, 128);
    own[3] = 7;
    some_configs(configs, own);
    config.layers = LAYERS, config.configs = configs;
    EXPECT(!aura_profile_create(ctx, LAYERS, &profile) && !aura_profile_set(profile, 2, 2, 128, theirs), "%s", aura_last_error());
    float third = theirs[3];
    theirs[3] = 5;
    EXPECT(!aura_profile_set(profile, 0, 2, 64, theirs) && !aura_profile_set(profile, 1, 2, 64, theirs), "%s", aura_last_error());
    theirs[3] = third;
    config.profile = profile;
    EXPECT(!aura_model_cache_create(ctx, &config, &model), "%s", aura_last_error());
    const float *want[LAYERS] = {own, NULL, theirs, NULL, NULL}; /* its own; plain keys; the profile's; none */
    for (uint32_t i = 0; i < LAYERS; i++) {
        aura_cache_info info = AURA_CACHE_INFO_INIT;
        aura_cache_get_info(aura_model_cache_layer(model, i), &info);
        EXPECT(!info.config.balance == !want[i] &&
               (!want[i] || !memcmp(info.config.balance, want[i], 2 * info.config.k_dim * 4)), "layer %u has another balance", i);
    }
    aura_model_cache_destroy(model), model = NULL;
    EXPECT(!aura_profile_set(profile, 3, 1, 64, own) && aura_model_cache_create(ctx, &config, &model) == AURA_BAD_ARGUMENT,
           "another number of heads");
    EXPECT(!aura_profile_create(ctx, LAYERS + 1, &other), "%s", aura_last_error());
    config.profile = other;
    EXPECT(aura_model_cache_create(ctx, &config, &model) == AURA_BAD_ARGUMENT && !model, "another number of layers");
    aura_profile_destroy(profile), aura_profile_destroy(other);
    free(own), free(theirs);
}

/* A layer whose config says nothing is held as the profile says, and one that says something as it says itself. */
static void profile_gives_the_format(void)
{
    aura_config configs[3];
    aura_model_config config = AURA_MODEL_CONFIG_INIT;
    aura_model_cache *model = NULL;
    aura_profile *profile = NULL;
    aura_profile_layer with = AURA_PROFILE_LAYER_INIT;
    const aura_format b2f16 = {AURA_KIND_B2, AURA_KIND_F16}, b6b3 = {AURA_KIND_B6, AURA_KIND_B3}, none = {0},
                      want[3] = {b2f16, b6b3, {AURA_KIND_B4, AURA_KIND_B4}};
    for (int i = 0; i < 3; i++) {
        configs[i] = (aura_config)AURA_CONFIG_INIT;
        configs[i].q_heads = configs[i].kv_heads = 2, configs[i].k_dim = 64;
        configs[i].format = i == 1 ? b6b3 : none;
    }
    EXPECT(!aura_profile_create(ctx, 3, &profile), "%s", aura_last_error());
    with.format = b2f16;
    EXPECT(!aura_profile_put(profile, 0, &with) && !aura_profile_put(profile, 1, &with), "%s", aura_last_error());
    config.layers = 3, config.configs = configs, config.profile = profile;
    EXPECT(!aura_model_cache_create(ctx, &config, &model), "%s", aura_last_error());
    for (uint32_t i = 0; i < 3 && model; i++) {
        aura_cache_info info = AURA_CACHE_INFO_INIT;
        aura_cache_get_info(aura_model_cache_layer(model, i), &info);
        EXPECT(info.config.format.k == want[i].k && info.config.format.v == want[i].v, "layer %u has another format", i);
    }
    aura_model_cache_destroy(model);
    aura_profile_destroy(profile);
}

/* ---- files ------------------------------------------------------------------------------------------------------------ */

static void saved_models(void)
{
    struct texts t = texts_new();
    aura_model_cache *a = model_new(ctx, 0), *b = NULL, *c = model_new(ctx, 0);
    aura_seq seq[3], got = 7;
    aura_snapshot_options o = AURA_SNAPSHOT_OPTIONS_INIT;
    EXPECT(!aura_model_seq_release(a, model_seq(a)), "%s", aura_last_error());
    seq[0] = model_seq(a), seq[2] = model_seq(a);
    grow_model(a, seq[0], &t, 700, 0);
    EXPECT(!aura_model_seq_fork(a, seq[0], 690, &seq[1]), "%s", aura_last_error());
    grow_model(a, seq[1], &t, 30, 9);
    EXPECT(!aura_model_save(a, file_path("model"), NULL), "%s", aura_last_error());
    EXPECT(!aura_model_load(ctx, file_path("model"), NULL, &b), "%s", aura_last_error());
    EXPECT(!aura_model_save(b, file_path("again"), NULL), "%s", aura_last_error());
    struct bytes x = read_file(file_path("model")), y = read_file(file_path("again"));
    EXPECT(same_bytes(x, y), "saved again, other bytes");
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 3; i++) {
            const aura_seq in_b[3] = {1, 3, 2}; /* the order of their places */
            expect_same_model(a, seq[i], b, in_b[i], "loaded");
            grow_model(a, seq[i], &t, 40, 2), grow_model(b, in_b[i], &t, 40, 2);
        }
    EXPECT(model_seq(b) > 3, "an id that a sequence has");

    EXPECT(!aura_model_seq_save(a, seq[1], file_path("one"), NULL) &&
           !aura_model_seq_load(c, file_path("one"), NULL, &got), "%s", aura_last_error());
    expect_same_model(a, seq[1], c, got, "one sequence");
    const aura_seq number = 1;
    o.seqs = &number, o.n_seqs = 1;
    EXPECT(!aura_model_save(a, file_path("model"), NULL) && !aura_model_seq_load(c, file_path("model"), &o, &got), "%s",
           aura_last_error());
    expect_same_model(a, seq[0], c, got, "one of many");
    o.seqs = NULL, o.n_seqs = 0, o.first_head = 1;
    aura_model_cache *half = NULL;
    EXPECT(!aura_model_load(ctx, file_path("model"), &o, &half), "%s", aura_last_error());
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    aura_cache_get_info(aura_model_cache_layer(half, 3), &info);
    EXPECT(info.config.kv_heads == 1 && info.config.q_heads == 1 && info.seqs == 3, "half the heads");
    got = 7;
    EXPECT(aura_model_seq_load(half, file_path("one"), NULL, &got) == AURA_BAD_ARGUMENT && got == 7 &&
           model_info(half).seqs == 3, "of other heads");
    EXPECT(!aura_model_seq_load(half, file_path("one"), &o, &got), "of these heads: %s", aura_last_error());
    aura_cache *cache = NULL;
    EXPECT(aura_cache_load(ctx, file_path("model"), NULL, &cache) == AURA_BAD_ARGUMENT && !cache, "a model is no cache");
    aura_model_cache_destroy(a), aura_model_cache_destroy(b), aura_model_cache_destroy(c), aura_model_cache_destroy(half);
    free(x.data), free(y.data), texts_free(&t);
    unlink(file_path("model")), unlink(file_path("again")), unlink(file_path("one"));
}

static int refused(void *user, const char *path, const char *what)
{
    aura_model_cache *model = user, *made = NULL;
    aura_seq got = 7;
    size_t bytes = model_info(model).bytes;
    aura_status status = aura_model_seq_load(model, path, NULL, &got), whole = aura_model_load(ctx, path, NULL, &made);
    (void)what;
    return (status == AURA_BAD_FILE || status == AURA_UNSUPPORTED) &&
        (whole == AURA_BAD_FILE || whole == AURA_UNSUPPORTED) && got == 7 && !made &&
           model_info(model).bytes == bytes;
}

/* Each layer of the file must be good before any layer of the model changes. */
static void damaged_models(void)
{
    struct texts t = texts_new();
    aura_model_cache *a = model_new(ctx, 0), *b = model_new(ctx, 0);
    aura_seq seq = model_seq(a);
    grow_model(a, seq, &t, 60, 0);
    EXPECT(!aura_model_save(a, file_path("model"), NULL), "%s", aura_last_error());
    struct bytes good = read_file(file_path("model"));
    expect_flips_refused(good, small_run() ? 200003 : 20011, refused, b);
    expect_lengths_refused(good, 40009, refused, b);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        struct aura_file_section *s = section_of(good, layer, AURA_SECTION_SEQS);
        uint32_t *id = (uint32_t *)(void *)(good.data + s->offset + 32), old = *id;
        *id = old + 1, seal(good); /* another sequence in this layer only */
        write_file(file_path("made"), good.data, good.size);
        EXPECT(refused(b, file_path("made"), ""), "layer %u has another sequence", layer);
        *id = old;
        uint64_t *tokens = (uint64_t *)(void *)(good.data + s->offset);
        *tokens += 3, seal(good);
        write_file(file_path("made"), good.data, good.size);
        EXPECT(refused(b, file_path("made"), ""), "layer %u has another length", layer);
        *tokens -= 3;
    }
    EXPECT(model_info(b).seqs == 0, "something was loaded");
    aura_model_cache_destroy(a), aura_model_cache_destroy(b);
    free(good.data), texts_free(&t);
    unlink(file_path("model")), unlink(file_path("made"));
}

/* ---- memory ----------------------------------------------------------------------------------------------------------- */

static int life_with_a_failure(aura_ctx *own, struct counting *c, const struct texts *t, long fail)
{
    size_t base = c->bytes;
    aura_config configs[LAYERS];
    aura_model_config config = AURA_MODEL_CONFIG_INIT;
    aura_model_cache *model = NULL, *loaded = NULL;
    aura_seq seq = 0, fork = 0, got = 0;
    aura_status status;
    float *balance = some_balance(2, 64);
    some_configs(configs, balance);
    config.layers = LAYERS, config.configs = configs;
    c->failed = 0, c->fail_in = fail;
#define TWICE(call)                                                                                              \
    for (int retry = 0; retry < 2 && (status = call); retry++) {                                                 \
        EXPECT(status == AURA_OUT_OF_MEMORY, "%ld, %s: %s", fail, #call, aura_status_text(status));              \
        EXPECT(!model || model_info(model).bytes + (loaded ? model_info(loaded).bytes : 0) == c->bytes - base,    \
               "%ld, %s: bytes", fail, #call);                                                                   \
    }
    TWICE(aura_model_cache_create(own, &config, &model));
    TWICE(aura_model_seq_create(model, &seq));
    TWICE(aura_model_seq_reserve(model, seq, 300));
    long left = c->fail_in;
    c->fail_in = -1;
    grow_model(model, seq, t, 60, 0);
    c->fail_in = left;
    TWICE(aura_model_seq_fork(model, seq, 50, &fork));
    TWICE(aura_model_save(model, file_path("memory"), NULL));
    TWICE(aura_model_load(own, file_path("memory"), NULL, &loaded));
    TWICE(aura_model_seq_save(model, seq, file_path("memory"), NULL));
    TWICE(aura_model_seq_load(loaded, file_path("memory"), NULL, &got));
    c->fail_in = -1;
    expect_seqs(model, 2, "after a failure"), expect_seqs(loaded, 3, "after a failure");
    expect_same_model(model, seq, loaded, got, "after a failure"), expect_same_model(model, fork, loaded, 2, "after a failure");
    aura_model_cache_destroy(model), aura_model_cache_destroy(loaded), free(balance);
    EXPECT(c->bytes == base && !c->wrong, "failure %ld: %zu bytes lost", fail, c->bytes - base);
    return c->failed;
}

static void failed_allocations_lose_nothing(void)
{
    static struct counting c;
    aura_ctx *own = counting_ctx(&c, 0xee, 1);
    struct texts t = texts_new();
    long failures = 0;
    while (failures < 400 && life_with_a_failure(own, &c, &t, failures) && !test_bad_lines)
        failures++;
    EXPECT(failures > 60 && failures < 400, "only %ld allocations to fail", failures);
    aura_ctx_destroy(own), texts_free(&t);
    unlink(file_path("memory"));
}

static void misuse(void)
{
    aura_config configs[LAYERS];
    aura_model_config config = AURA_MODEL_CONFIG_INIT;
    aura_model_cache *model = NULL;
    aura_model_cache_info info = AURA_MODEL_CACHE_INFO_INIT;
    aura_seq seq = 7;
    some_configs(configs, NULL);
    config.layers = LAYERS, config.configs = configs;
    EXPECT(aura_model_cache_create(NULL, &config, &model) == AURA_BAD_ARGUMENT &&
           aura_model_cache_create(ctx, NULL, &model) == AURA_BAD_ARGUMENT &&
               aura_model_cache_create(ctx, &config, NULL) == AURA_BAD_ARGUMENT, "NULLs");
    config.layers = 0;
    EXPECT(aura_model_cache_create(ctx, &config, &model) == AURA_BAD_ARGUMENT, "no layers");
    config.layers = 65537;
    EXPECT(aura_model_cache_create(ctx, &config, &model) == AURA_BAD_ARGUMENT, "too many layers");
    config.layers = LAYERS, config.configs = NULL;
    EXPECT(aura_model_cache_create(ctx, &config, &model) == AURA_BAD_ARGUMENT, "no configs");
    config.configs = configs;
    configs[4].budget_bytes = 1 << 20;
    EXPECT(aura_model_cache_create(ctx, &config, &model) == AURA_BAD_ARGUMENT, "a layer with a budget");
    configs[4].budget_bytes = 0, configs[4].window = 0, configs[4].max_queries = 0, configs[4].slots = 10;
    EXPECT(aura_model_cache_create(ctx, &config, &model) == AURA_BAD_ARGUMENT, "a layer of slots");
    configs[4].slots = 0, configs[4].k_dim = 513;
    EXPECT(aura_model_cache_create(ctx, &config, &model) == AURA_UNSUPPORTED && !model, "a dim nobody built");
    EXPECT(aura_model_seq_create(NULL, &seq) == AURA_BAD_ARGUMENT && aura_model_seq_fork(NULL, 1, 0, &seq) == AURA_BAD_ARGUMENT &&
               aura_model_seq_release(NULL, 1) == AURA_BAD_ARGUMENT && aura_model_seq_truncate(NULL, 1, 0) == AURA_BAD_ARGUMENT &&
               aura_model_seq_reserve(NULL, 1, 1) == AURA_BAD_ARGUMENT &&
               aura_model_cache_get_info(NULL, &info) == AURA_BAD_ARGUMENT, "no model");
    model = model_new(ctx, 0);
    EXPECT(aura_model_seq_create(model, NULL) == AURA_BAD_ARGUMENT &&
           aura_model_cache_get_info(model, NULL) == AURA_BAD_ARGUMENT, "NULLs");
    EXPECT(aura_model_save(NULL, "x", NULL) == AURA_BAD_ARGUMENT && aura_model_save(model, NULL, NULL) == AURA_BAD_ARGUMENT &&
               aura_model_load(NULL, "x", NULL, &model) == AURA_BAD_ARGUMENT &&
               aura_model_load(ctx, "x", NULL, NULL) == AURA_BAD_ARGUMENT &&
               aura_model_seq_load(NULL, "x", NULL, &seq) == AURA_BAD_ARGUMENT &&
               aura_model_seq_save(NULL, 1, "x", NULL) == AURA_BAD_ARGUMENT, "NULLs");
    /* all layers must have the tokens: a shorter layer limits the others */
    aura_seq mine = model_seq(model);
    struct texts t = texts_new();
    grow_model(model, mine, &t, 10, 0);
    grow(aura_model_cache_layer(model, 0), mine, &t.layer[0], 5, 0);
    EXPECT(aura_model_seq_fork(model, mine, 11, &seq) == AURA_BAD_ARGUMENT &&
           aura_model_seq_truncate(model, mine, 11) == AURA_BAD_ARGUMENT && seq == 7, "layer 1 has 10 tokens");
    expect_seqs(model, 1, "half done");
    EXPECT(seq_tokens(aura_model_cache_layer(model, 0), mine) == 15, "half done");
    EXPECT(!aura_model_seq_truncate(model, mine, 10) && seq_tokens(aura_model_cache_layer(model, 0), mine) == 10, "%s",
           aura_last_error());
    aura_model_cache_destroy(model), texts_free(&t);
}

/* Sequences of every layer's tokens in `to` are those of the choice; the bytes of a sequence do not depend on its id. */
static void expect_choice(aura_model_cache *model, const aura_seq *to, size_t n, uint8_t *const *want, const size_t *bytes,
                          const uint32_t *which)
{
    for (size_t i = 0; i < n; i++) {
        aura_sink sink = AURA_SINK_INIT;
        sink.data = malloc(1 << 22), sink.bytes = 1 << 22;
        EXPECT(!aura_model_seq_write(model, to[i], &sink, NULL), "%s", aura_last_error());
        EXPECT(sink.used == bytes[which[i]] && !memcmp(sink.data, want[which[i]], sink.used), "place %zu is not choice %u", i,
               which[i]);
        free(sink.data);
    }
}

static void note_layer(void *user, uint32_t layer, uint64_t token, uint32_t head, float *key)
{
    (void)token, (void)head, (void)key;
    ((uint32_t *)user)[layer < LAYERS ? layer : LAYERS]++;
}

/* A map is told the layer, whether it is called for one of them or for all. */
static void maps_know_their_layer(void)
{
    struct texts t = texts_new();
    aura_model_cache *model = model_new(ctx, 0);
    uint32_t told[LAYERS + 1];
    aura_seq seq = 0;
    EXPECT(!aura_model_seq_create(model, &seq), "%s", aura_last_error());
    grow_model(model, seq, &t, 40, 0);
    for (uint32_t one = 0; one <= LAYERS; one++) {
        memset(told, 0, sizeof told);
        EXPECT(!(one < LAYERS ? aura_seq_map_keys(aura_model_cache_layer(model, one), seq, 5, 10, note_layer, told)
                              : aura_model_seq_map_keys(model, seq, 5, 10, note_layer, told)), "%s", aura_last_error());
        for (uint32_t i = 0; i <= LAYERS; i++) /* each of 10 keys of 2 heads is asked for twice */
            EXPECT(told[i] == (i < LAYERS && (one == i || one == LAYERS) ? 40 : 0), "layer %u was told %u times", i, told[i]);
    }
    aura_model_cache_destroy(model);
    texts_free(&t);
}

/* Beams: kept, forked and released in one call, and then on their own. */
static void beams_are_selected(void)
{
    enum { BEAMS = 4 };
    struct texts t = texts_new();
    struct counting c;
    aura_ctx *in = counting_ctx(&c, 0xff, 1);
    aura_model_cache *model = model_new(in, 0);
    aura_model_cache_info info = AURA_MODEL_CACHE_INFO_INIT;
    aura_seq seqs[BEAMS], to[BEAMS + 2];
    uint8_t *want[BEAMS];
    size_t bytes[BEAMS];
    for (uint32_t i = 0; i < BEAMS; i++) {
        aura_sink sink = AURA_SINK_INIT;
        EXPECT(!aura_model_seq_create(model, &seqs[i]), "%s", aura_last_error());
        grow_model(model, seqs[i], &t, 300 + 7 * i, 50 * i);
        EXPECT(!aura_model_seq_size(model, seqs[i], NULL, &bytes[i]), "%s", aura_last_error());
        sink.data = want[i] = malloc(bytes[i]), sink.bytes = bytes[i];
        EXPECT(!aura_model_seq_write(model, seqs[i], &sink, NULL), "%s", aura_last_error());
    }
    static const uint32_t wrong[] = {0, 4}, more[] = {2, 0, 2, 2, 3, 0}, fewer[] = {3, 1};
    const aura_seq twice[] = {seqs[0], seqs[1], seqs[0]}, none[] = {seqs[0], 12345};
    EXPECT(aura_model_seqs_select(model, seqs, BEAMS, wrong, 2, to) == AURA_BAD_ARGUMENT, "a choice of none");
    EXPECT(aura_model_seqs_select(model, twice, 3, fewer + 1, 1, to) == AURA_BAD_ARGUMENT, "one twice");
    EXPECT(aura_model_seqs_select(model, none, 2, fewer + 1, 1, to) == AURA_BAD_ARGUMENT, "no such sequence");
    EXPECT(aura_model_seqs_select(model, NULL, 1, more, 1, to) == AURA_BAD_ARGUMENT, "NULL");
    EXPECT(aura_model_seqs_select(model, seqs, BEAMS, more, 1, NULL) == AURA_BAD_ARGUMENT, "NULL");
    EXPECT(aura_model_seqs_select(NULL, seqs, BEAMS, more, 1, to) == AURA_BAD_ARGUMENT, "NULL");
    static const uint32_t same[BEAMS] = {0, 1, 2, 3};
    for (long fail = 0, failed = 1; failed && fail < 200; fail++) { /* what was made is taken back */
        c.fail_in = fail, c.failed = 0;
        aura_status status = aura_model_seqs_select(model, seqs, BEAMS, more, 6, to);
        failed = c.failed, c.fail_in = -1;
        EXPECT(failed ? status == AURA_OUT_OF_MEMORY : !status && fail > 3 * LAYERS, "%d: %s", status, aura_last_error());
        EXPECT(!aura_model_cache_get_info(model, &info) && info.seqs == (failed ? BEAMS : 6), "%zu sequences", info.seqs);
        if (failed)
            expect_choice(model, seqs, BEAMS, want, bytes, same);
    }
    expect_choice(model, to, 6, want, bytes, more);
    EXPECT(to[0] == seqs[2] && to[1] == seqs[0] && to[4] == seqs[3], "the first keep their ids");
    grow_model(model, to[0], &t, 9, 0);
    expect_choice(model, to + 1, 5, want, bytes, more + 1);
    EXPECT(!aura_model_seqs_select(model, to, 6, fewer, 2, to) && !aura_model_cache_get_info(model, &info) && info.seqs == 2, "%s",
           aura_last_error());
    static const uint32_t left[] = {2, 0};
    expect_choice(model, to, 2, want, bytes, left);
    EXPECT(!aura_model_seqs_select(model, to, 2, NULL, 0, NULL) && !aura_model_cache_get_info(model, &info) && !info.seqs &&
           info.pages == info.free_pages, "all released");
    for (int i = 0; i < BEAMS; i++)
        free(want[i]);
    aura_model_cache_destroy(model);
    aura_ctx_destroy(in);
    texts_free(&t);
}

int main(void)
{
    if (aura_ctx_create(NULL, &ctx) || !files_begin())
        return 1;
    RUN(layers_are_caches);
    RUN(sequences_are_in_all_layers);
    RUN(bytes_are_what_the_allocator_saw);
    RUN(one_budget);
    RUN(budget_is_not_hoarded);
    RUN(idle_pages_go_to_others);
    RUN(profile_gives_the_balance);
    RUN(profile_gives_the_format);
    RUN(saved_models);
    RUN(damaged_models);
    RUN(failed_allocations_lose_nothing);
    RUN(misuse);
    RUN(maps_know_their_layer);
    RUN(beams_are_selected);
    aura_ctx_destroy(ctx);
    files_end();
    return test_result();
}
