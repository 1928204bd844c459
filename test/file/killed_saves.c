/* A process that saves is killed at every system call of every save, before it and after it: the file is then the old one or the
 * new one, byte by byte, and the next save succeeds. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/ptrace.h>

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

/* A child that saves the new thing and is killed when it has stopped `stops` times, where a call begins or ends. Returns 1 when it
 * was, 0 when it ended before that, -1 when nobody may watch a child here. */
static int killed_after(int stops, save_thing_fn *save, const struct things *t, const char *path)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
            _exit(99);
        raise(SIGSTOP);
        _exit(save(t, 1, path) ? 98 : 0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
        return -1;
    for (int i = 0; i < stops; i++)
        if (ptrace(PTRACE_SYSCALL, child, NULL, NULL)) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            return -1;
        } else if (waitpid(child, &status, 0) != child || WIFEXITED(status)) {
            EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0, "stop %d: status 0x%x", i, status);
            return 0;
        }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return 1;
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
    int olds = 0, news = 0, stops = 0, killed = 1;
    snprintf(path, sizeof path, "%s", file_path(name));
    EXPECT(!save(t, 1, path), "%s: %s", name, aura_last_error());
    struct bytes new = read_file(path);
    EXPECT(!save(t, 0, path), "%s: %s", name, aura_last_error());
    struct bytes old = read_file(path);
    EXPECT(!same_bytes(old, new), "%s: the two files are the same", name);
    for (; killed == 1 && test_bad_lines < 3 && !test_skip; stops++) {
        EXPECT(!save(t, 0, path), "%s, after stop %d: %s", name, stops - 1, aura_last_error()); /* over what a killed one left */
        killed = killed_after(stops, save, t, path);
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
