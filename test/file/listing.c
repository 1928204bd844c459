/* Listings: what is in a file is what was saved, and what is damaged is said to be. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "snapshot_tools.h"

#include "../../src/file/snapshot.h"

static aura_listing *listed(const char *path)
{
    aura_listing *l = NULL;
    EXPECT(!aura_list_file(ctx, path, &l), "%s", aura_last_error());
    return l;
}

static aura_listing_info info_of(const aura_listing *l)
{
    aura_listing_info info = AURA_LISTING_INFO_INIT;
    EXPECT(!aura_listing_get_info(l, &info), "%s", aura_last_error());
    return info;
}

/* A layer of a listing against the cache that was saved. */
static void expect_layer(const aura_listing *l, uint32_t layer, const aura_cache *cache)
{
    aura_listing_layer a = AURA_LISTING_LAYER_INIT;
    aura_cache_info b = AURA_CACHE_INFO_INIT;
    aura_seq ids[64];
    size_t n = 64;
    EXPECT(!aura_listing_get_layer(l, layer, &a) && !aura_cache_get_info(cache, &b) && !aura_cache_list(cache, ids, &n), "%s",
           aura_last_error());
    const aura_config *x = &a.config, *y = &b.config;
    EXPECT(x->format.k == y->format.k && x->format.v == y->format.v && x->q_heads == y->q_heads && x->kv_heads == y->kv_heads &&
               x->k_dim == y->k_dim && x->v_dim == y->v_dim && x->flags == y->flags && x->rollback == y->rollback &&
               x->seed == y->seed && x->window == y->window && x->max_queries == y->max_queries && x->keep_first == y->keep_first &&
               x->slots == y->slots, "layer %u: another configuration", layer);
    EXPECT(!x->balance == !y->balance && (!x->balance || !memcmp(x->balance, y->balance, (size_t)y->kv_heads * y->k_dim * 4)),
           "layer %u: another balance", layer);
    EXPECT(a.seqs == b.seqs + (y->slots > 0) && a.pages == b.pages - b.free_pages && !a.damaged &&
               a.bytes > a.pages * b.page_bytes, "layer %u: %llu sequences, %llu pages", layer, (unsigned long long)a.seqs,
           (unsigned long long)a.pages);
    for (size_t i = 0; i < n; i++) {
        aura_listing_seq s = AURA_LISTING_SEQ_INIT;
        aura_seq_info t = AURA_SEQ_INFO_INIT;
        EXPECT(!aura_listing_get_seq(l, layer, i, &s) && !aura_seq_get_info(cache, ids[i], &t), "%s", aura_last_error());
        EXPECT(s.number == i + 1 && s.tokens == t.tokens && s.closed == t.closed && s.first == t.first && s.pages == t.pages,
               "layer %u, sequence %zu: number %u, %llu tokens, first %llu, %llu pages", layer, i, s.number,
               (unsigned long long)s.tokens, (unsigned long long)s.first, (unsigned long long)s.pages);
    }
}

static void caches_and_sequences(void)
{
    for (int i = 0; i < N_KINDS; i++) {
        float *balance = some_balance(2, 64);
        aura_config config = config_of(kinds[i], kinds[(i + 3) % N_KINDS], 64, 128, 2);
        config.q_heads = 6, config.seed = 7, config.rollback = 9;
        config.balance = i % 2 && !is_plain(kinds[i]) ? balance : NULL;
        config.window = i % 3 ? 0 : 200, config.keep_first = i % 3 ? 0 : 100;
        struct text t = text_new(&config, 900);
        aura_seq seq[SEQS];
        aura_cache *cache = some_cache(ctx, &config, &t, 1100, seq);
        aura_snapshot_options o = AURA_SNAPSHOT_OPTIONS_INIT;
        o.note = i % 2 ? NULL : "a note", o.note_bytes = i % 2 ? 0 : 6;
        EXPECT(!aura_cache_save(cache, file_path("a"), &o), "%s", aura_last_error());
        struct bytes file = read_file(file_path("a"));
        aura_listing *l = listed(file_path("a"));
        aura_listing_info info = info_of(l);
        EXPECT(info.held == AURA_HELD_CACHE && info.major == 1 && info.layers == 1 && info.seqs == SEQS &&
                   info.bytes == file.size && info.checksum == header_of(file)->crc &&
                   info.sections == header_of(file)->sections && !info.damaged, "a cache");
        EXPECT(i % 2 ? !info.note && !info.note_bytes : info.note_bytes == 6 && !memcmp(info.note, "a note", 6), "its note");
        expect_layer(l, 0, cache);
        aura_listing_destroy(l);
        o.note = NULL, o.note_bytes = 0;
        EXPECT(!aura_seq_save(cache, seq[1], file_path("a"), &o), "%s", aura_last_error());
        l = listed(file_path("a"));
        aura_listing_seq s = AURA_LISTING_SEQ_INIT;
        EXPECT(info_of(l).seqs == 1 && !aura_listing_get_seq(l, 0, 0, &s) && s.number == 1 && s.tokens == seq_tokens(cache, seq[1]),
               "a sequence");
        aura_listing_destroy(l), aura_cache_destroy(cache);
        text_free(&t), free(file.data), free(balance);
    }
    unlink(file_path("a"));
}

static void models_slots_and_profiles(void)
{
    aura_config configs[3] = {config_of(AURA_KIND_B4, AURA_KIND_B4, 64, 64, 2), config_of(AURA_KIND_F16, AURA_KIND_B8, 128, 64, 1),
                              config_of(AURA_KIND_B2, AURA_KIND_B3, 64, 80, 1)};
    float *balance = some_balance(2, 64);
    aura_model_config config = AURA_MODEL_CONFIG_INIT;
    aura_model_cache *model = NULL;
    aura_profile *profile = NULL;
    aura_seq seq;
    configs[0].balance = balance;
    config.configs = configs, config.layers = 3;
    EXPECT(!aura_model_cache_create(ctx, &config, &model) && !aura_model_seq_create(model, &seq), "%s", aura_last_error());
    for (uint32_t i = 0; i < 3; i++) {
        struct text t = text_new(&configs[i], 900);
        grow(aura_model_cache_layer(model, i), seq, &t, 300 + i, 0);
        text_free(&t);
    }
    EXPECT(!aura_model_save(model, file_path("a"), NULL), "%s", aura_last_error());
    aura_listing *l = listed(file_path("a"));
    EXPECT(info_of(l).held == AURA_HELD_MODEL && info_of(l).layers == 3 && info_of(l).seqs == 1, "a model");
    for (uint32_t i = 0; i < 3; i++)
        expect_layer(l, i, aura_model_cache_layer(model, i));
    aura_listing_destroy(l), aura_model_cache_destroy(model);

    configs[2].slots = 600;
    aura_cache *slots = cache_new(ctx, &configs[2]);
    EXPECT(!aura_cache_save(slots, file_path("a"), NULL), "%s", aura_last_error());
    expect_layer(l = listed(file_path("a")), 0, slots);
    aura_listing_destroy(l), aura_cache_destroy(slots);

    aura_listing_layer layer = AURA_LISTING_LAYER_INIT;
    EXPECT(!aura_profile_create(ctx, 5, &profile) && !aura_profile_set(profile, 3, 2, 64, balance) &&
               !aura_profile_save(profile, file_path("a")), "%s", aura_last_error());
    l = listed(file_path("a"));
    EXPECT(info_of(l).held == AURA_HELD_PROFILE && info_of(l).layers == 5 && info_of(l).seqs == 0, "a profile");
    EXPECT(!aura_listing_get_layer(l, 3, &layer) && layer.config.kv_heads == 2 && layer.config.k_dim == 64 &&
               !memcmp(layer.config.balance, balance, 2 * 64 * 4), "its balance");
    EXPECT(!aura_listing_get_layer(l, 2, &layer) && !layer.config.balance && !layer.config.kv_heads && !layer.bytes, "none");
    aura_listing_destroy(l), aura_profile_destroy(profile), free(balance);
    unlink(file_path("a"));
}

/* Files of version 0.4 have ids for numbers. */
static void old_files(void)
{
    aura_listing *l = listed(golden_path("snapshot.aura"));
    aura_listing_seq s = AURA_LISTING_SEQ_INIT;
    EXPECT(info_of(l).seqs == 2 && !aura_listing_get_seq(l, 0, 1, &s) && s.number == (2u << 21 | 2) && s.tokens == 209,
           "%u, %llu tokens", s.number, (unsigned long long)s.tokens);
    aura_listing_destroy(l);
}

/* ---- damage -------------------------------------------------------------------------------------------------------- */

static struct bytes small_file(void)
{
    float *balance = some_balance(1, 64);
    aura_config config = config_of(AURA_KIND_B2, AURA_KIND_B2, 64, 64, 1);
    aura_snapshot_options o = AURA_SNAPSHOT_OPTIONS_INIT;
    config.balance = balance, o.note = "a note of mine", o.note_bytes = 14;
    struct text t = text_new(&config, 200);
    aura_seq seq[SEQS];
    aura_cache *cache = some_cache(ctx, &config, &t, 100, seq);
    EXPECT(!aura_cache_save(cache, file_path("good"), &o), "%s", aura_last_error());
    struct bytes file = read_file(file_path("good"));
    aura_cache_destroy(cache), text_free(&t), free(balance), unlink(file_path("good"));
    return file;
}

/* The type of the section that a byte of a good file is in; 0: the header or the table. */
static uint32_t type_at(struct bytes file, size_t at)
{
    const struct aura_file_section *s = (const struct aura_file_section *)(const void *)(header_of(file) + 1);
    uint32_t found = 0;
    for (uint32_t i = 0; i < header_of(file)->sections; i++)
        found = at >= s[i].offset ? s[i].type : found;
    return found;
}

static void expect_damage(struct bytes file, size_t at, uint32_t type)
{
    aura_source source = AURA_SOURCE_INIT;
    aura_listing *l = NULL;
    source.data = file.data, source.bytes = file.size;
    aura_status status = aura_list_source(ctx, &source, &l);
    if (type <= AURA_SECTION_FILE) {
        EXPECT((status == AURA_BAD_FILE || status == AURA_UNSUPPORTED) && !l, "byte %zu: %s", at, aura_status_text(status));
        return;
    }
    EXPECT(!status && source.used == file.size, "byte %zu: %s", at, aura_last_error());
    aura_listing_layer layer = AURA_LISTING_LAYER_INIT;
    aura_listing_info info = info_of(l);
    EXPECT(!aura_listing_get_layer(l, 0, &layer), "%s", aura_last_error());
    EXPECT(info.damaged == 1 && layer.damaged == 1u << (type < 31 ? type : 31), "byte %zu, type %u: %u sections, 0x%x", at,
           type, info.damaged, layer.damaged);
    EXPECT(!layer.config.q_heads == (type == AURA_SECTION_CONFIG), "byte %zu: a config", at);
    EXPECT(!layer.config.balance == (type == AURA_SECTION_BALANCE) && layer.seqs == (type == AURA_SECTION_SEQS ? 0 : SEQS) &&
               !info.note == (type == AURA_SECTION_NOTE), "byte %zu: what is damaged is listed", at);
    aura_listing_destroy(l);
}

static void damage_is_said(void)
{
    struct bytes file = small_file();
    for (size_t at = 0; at < file.size && test_bad_lines < 5; at += small_run() ? 7 : 1) {
        const uint32_t type = type_at(file, at);
        file.data[at] ^= 0x10;
        expect_damage(file, at, type);
        file.data[at] ^= 0x10;
    }
    for (size_t size = 0; size < file.size; size += 97) {
        aura_source source = AURA_SOURCE_INIT;
        aura_listing *l = NULL;
        source.data = file.data, source.bytes = size;
        EXPECT(aura_list_source(ctx, &source, &l) == AURA_BAD_FILE && !l, "cut to %zu", size);
    }
    free(file.data);
}

/* What a file says of itself may be anything: nothing is believed, and nothing is read beyond its end. */
static void hostile_files(void)
{
    struct bytes file = small_file();
    uint32_t state = 5;
    for (int round = 0; round < (small_run() ? 2000 : 20000); round++) {
        struct bytes bad = {malloc(file.size), file.size};
        aura_source source = AURA_SOURCE_INIT;
        aura_listing *l = NULL;
        memcpy(bad.data, file.data, file.size);
        for (int i = 0; i < 3; i++) {
            state = state * 1664525 + 1013904223;
            bad.data[(state >> 8) % (round % 2 ? 1400 : file.size)] = (uint8_t)(state >> 3);
        }
        seal(bad);
        source.data = bad.data, source.bytes = bad.size;
        if (!aura_list_source(ctx, &source, &l)) {
            aura_listing_info info = info_of(l);
            for (uint32_t i = 0; i < info.layers && i < 3; i++) {
                aura_listing_layer layer = AURA_LISTING_LAYER_INIT;
                aura_listing_seq s = AURA_LISTING_SEQ_INIT;
                EXPECT(!aura_listing_get_layer(l, i, &layer), "%s", aura_last_error());
                for (uint64_t k = 0; k < layer.seqs; k++)
                    EXPECT(!aura_listing_get_seq(l, i, k, &s), "%s", aura_last_error());
                EXPECT(aura_listing_get_seq(l, i, layer.seqs, &s) == AURA_BAD_ARGUMENT, "one too many");
            }
            aura_listing_destroy(l);
        }
        free(bad.data);
    }
    free(file.data);
}

/* The configuration and the balance may speak of other sizes: a caller reads as many factors as the configuration says. */
static void sizes_that_disagree(void)
{
    struct bytes file = small_file();
    struct aura_file_config *f =
        (struct aura_file_config *)(void *)(file.data + section_of(file, 0, AURA_SECTION_CONFIG)->offset);
    for (int changed = 0; changed < 3; changed++) {
        aura_source source = AURA_SOURCE_INIT;
        aura_listing_layer layer = AURA_LISTING_LAYER_INIT;
        aura_listing *l = NULL;
        f->k_dim = changed == 1 ? 128 : 64, f->kv_heads = changed == 2 ? 2 : 1;
        seal(file);
        source.data = file.data, source.bytes = file.size;
        EXPECT(!aura_list_source(ctx, &source, &l) && !aura_listing_get_layer(l, 0, &layer), "%s", aura_last_error());
        EXPECT(layer.config.k_dim == f->k_dim && layer.config.kv_heads == f->kv_heads && !layer.config.balance == (changed > 0),
               "%u heads of %u, %s balance", layer.config.kv_heads, layer.config.k_dim, layer.config.balance ? "a" : "no");
        aura_listing_destroy(l);
    }
    free(file.data);
}

static void misuse(void)
{
    struct bytes file = small_file();
    aura_listing *l = NULL;
    aura_listing_info info = AURA_LISTING_INFO_INIT;
    aura_listing_layer layer = AURA_LISTING_LAYER_INIT;
    aura_listing_seq seq = AURA_LISTING_SEQ_INIT;
    aura_source source = AURA_SOURCE_INIT;
    source.data = file.data, source.bytes = file.size;
    EXPECT(aura_list_file(ctx, file_path("none"), &l) == AURA_IO && aura_list_file(ctx, NULL, &l) == AURA_BAD_ARGUMENT &&
               aura_list_file(NULL, "x", &l) == AURA_BAD_ARGUMENT && aura_list_source(ctx, NULL, &l) == AURA_BAD_ARGUMENT &&
               aura_list_source(ctx, &source, NULL) == AURA_BAD_ARGUMENT && !l, "NULLs");
    EXPECT(!aura_list_source(ctx, &source, &l), "%s", aura_last_error());
    memset(file.data, 0, file.size); /* a listing keeps nothing of it */
    EXPECT(!aura_listing_get_info(l, &info) && info.seqs == SEQS && !memcmp(info.note, "a note of mine", 14), "%s",
           aura_last_error());
    EXPECT(aura_listing_get_info(NULL, &info) == AURA_BAD_ARGUMENT && aura_listing_get_info(l, NULL) == AURA_BAD_ARGUMENT &&
               aura_listing_get_layer(l, 1, &layer) == AURA_BAD_ARGUMENT &&
               aura_listing_get_seq(l, 1, 0, &seq) == AURA_BAD_ARGUMENT &&
               aura_listing_get_seq(l, 0, SEQS, &seq) == AURA_BAD_ARGUMENT, "NULLs, and what is not there");
    layer.size++, seq.size--;
    EXPECT(aura_listing_get_layer(l, 0, &layer) == AURA_BAD_ARGUMENT && aura_listing_get_seq(l, 0, 0, &seq) == AURA_BAD_ARGUMENT,
           "other sizes");
    aura_listing_destroy(l), aura_listing_destroy(NULL);
    free(file.data);
}

int main(void)
{
    if (aura_ctx_create(NULL, &ctx) || !files_begin())
        return 1;
    RUN(caches_and_sequences);
    RUN(models_slots_and_profiles);
    RUN(old_files);
    RUN(damage_is_said);
    RUN(hostile_files);
    RUN(sizes_that_disagree);
    RUN(misuse);
    aura_ctx_destroy(ctx);
    files_end();
    return test_result();
}
