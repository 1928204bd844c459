/* A process that saves is killed at every system call of every save, before it and after it: the file is then the old one or the
 * new one, byte by byte, and the next save succeeds. */
#define _GNU_SOURCE
#include "killed.h"
#include "snapshot_tools.h"

static aura_ctx *ctx;

/* Everything that can be saved, as it was when the old file was written and as it is now. */
struct things {
    aura_cache *cache[2];
    aura_seq seq[2];
    aura_model_cache *model[2];
    aura_seq model_seq[2];
    aura_profile *profile[2];
};

static aura_status save_cache(const struct things *t, int new, const char *path)
{
    return aura_cache_save(t->cache[new], path, NULL);
}

static aura_status save_seq(const struct things *t, int new, const char *path)
{
    return aura_seq_save(t->cache[new], t->seq[new], path, NULL);
}

static aura_status save_model(const struct things *t, int new, const char *path)
{
    return aura_model_save(t->model[new], path, NULL);
}

static aura_status save_model_seq(const struct things *t, int new, const char *path)
{
    return aura_model_seq_save(t->model[new], t->model_seq[new], path, NULL);
}

static aura_status save_profile(const struct things *t, int new, const char *path)
{
    return aura_profile_save(t->profile[new], path);
}

typedef aura_status save_thing_fn(const struct things *t, int new, const char *path);

/* What a child does that is to be killed. */
struct saving {
    save_thing_fn *save;
    const struct things *things;
    const char *path;
};

static int save_new(void *user)
{
    const struct saving *s = user;
    return s->save(s->things, 1, s->path) ? 98 : 0;
}

static void remove_leftovers(const char *path)
{
    char command[640];
    snprintf(command, sizeof command, "rm -f '%s'*", path);
    EXPECT(!system(command), "rm");
}

static void expect_old_or_new(save_thing_fn *save, const struct things *t, const char *name)
{
    char path[256];
    int olds = 0, news = 0, stops = 0, killed = 1, status = 0;
    snprintf(path, sizeof path, "%s", file_path(name));
    EXPECT(!save(t, 1, path), "%s: %s", name, aura_last_error());
    struct bytes new = read_file(path);
    EXPECT(!save(t, 0, path), "%s: %s", name, aura_last_error());
    struct bytes old = read_file(path);
    EXPECT(!same_bytes(old, new), "%s: the two files are the same", name);
    for (; killed == 1 && test_bad_lines < 3 && !test_skip; stops++) {
        EXPECT(!save(t, 0, path), "%s, after stop %d: %s", name, stops - 1, aura_last_error()); /* over what a killed one left */
        killed = killed_after(stops, save_new, &(struct saving){save, t, path}, &status, NULL);
        EXPECT(killed || !status, "%s, after %d stops: status %d", name, stops, status);
        if (killed < 0)
            test_skip = "no process may watch its child here";
        struct bytes got = read_file(path);
        const int is_old = same_bytes(got, old), is_new = same_bytes(got, new);
        EXPECT(is_old || is_new, "%s, killed at stop %d: neither the old file nor the new one", name, stops);
        olds += is_old, news += is_new;
        free(got.data);
    }
    printf("  %s: %d stops, the old file %d times, the new one %d times\n", name, stops, olds, news);
    EXPECT(test_skip || (olds > 10 && news > 1), "%s: it was not killed on both sides of the change", name);
    remove_leftovers(path);
    free(old.data), free(new.data);
}

static struct things things_new(void)
{
    struct things t = {0};
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B3, 64, 64, 2), layers[2] = {config, config};
    aura_model_config model = AURA_MODEL_CONFIG_INIT;
    struct text text = text_new(&config, 900);
    float balance[2][64];
    model.layers = 2, model.configs = layers;
    for (int new = 0; new < 2; new++) {
        t.cache[new] = cache_new(ctx, &config);
        t.seq[new] = seq_new(t.cache[new]);
        grow(t.cache[new], t.seq[new], &text, new ? 700 : 300, (uint32_t)new);
        EXPECT(!aura_model_cache_create(ctx, &model, &t.model[new]), "%s", aura_last_error());
        EXPECT(!aura_model_seq_create(t.model[new], &t.model_seq[new]), "%s", aura_last_error());
        for (uint32_t i = 0; i < 2; i++)
            grow(aura_model_cache_layer(t.model[new], i), t.model_seq[new], &text, new ? 400 : 100, i);
        for (int i = 0; i < 128; i++)
            balance[i / 64][i % 64] = 1 + (float)new / 2;
        EXPECT(!aura_profile_create(ctx, 1, &t.profile[new]) && !aura_profile_set(t.profile[new], 0, 2, 64, balance[0]), "%s",
               aura_last_error());
    }
    text_free(&text);
    return t;
}

static void things_free(struct things *t)
{
    for (int new = 0; new < 2; new++) {
        aura_cache_destroy(t->cache[new]);
        aura_model_cache_destroy(t->model[new]);
        aura_profile_destroy(t->profile[new]);
    }
}

static void a_killed_save_leaves_the_old_file_or_the_new_one(void)
{
    struct things t = things_new();
    expect_old_or_new(save_cache, &t, "cache");
    expect_old_or_new(save_seq, &t, "seq");
    expect_old_or_new(save_model, &t, "model");
    expect_old_or_new(save_model_seq, &t, "model-seq");
    expect_old_or_new(save_profile, &t, "profile");
    things_free(&t);
}

int main(void)
{
    aura_ctx_options o = AURA_CTX_OPTIONS_INIT;
    o.threads = 1; /* a child has the thread that forked, and no other */
    if (!files_begin() || aura_ctx_create(&o, &ctx))
        return 125;
    RUN(a_killed_save_leaves_the_old_file_or_the_new_one);
    aura_ctx_destroy(ctx);
    files_end();
    return test_result();
}
