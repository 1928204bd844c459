/* Several threads use a model: layers append at once from one budget, while sequences come and go and one is saved. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "../file/snapshot_tools.h"

#include <pthread.h>

enum { LAYERS = 3, ROUNDS = 12 };

static aura_model_cache *model;
static struct text text;
static aura_seq growing, still; /* growing: the threads of all layers append to it; still: it is only read */

static void *grow_layer(void *user)
{
    aura_cache *layer = user;
    for (int i = 0; i < ROUNDS; i++) {
        aura_append_job job = append_job(growing, &text.k, &text.v, (uint32_t)i, 60);
        aura_status status = aura_append(layer, &job, 1);
        if (status && status != AURA_OUT_OF_PAGES)
            return (void *)"append";
    }
    return NULL;
}

static void *come_and_go(void *user)
{
    for (int i = 0; i < ROUNDS; i++) {
        aura_seq seq[2] = {0, 0};
        if (!aura_model_seq_create(model, &seq[0]))
            aura_model_seq_reserve(model, seq[0], 300);
        if (aura_model_seq_fork(model, still, 40 + (uint64_t)i, &seq[1]))
            seq[1] = 0;
        for (int k = 0; k < 2; k++)
            if (seq[k] && aura_model_seq_release(model, seq[k]))
                return (void *)"release";
    }
    (void)user;
    return NULL;
}

static void *save_one(void *user)
{
    aura_model_cache_info info = AURA_MODEL_CACHE_INFO_INIT;
    for (int i = 0; i < ROUNDS; i++)
        if (aura_model_seq_save(model, still, user, NULL) || aura_model_cache_get_info(model, &info) ||
            info.bytes > info.budget_bytes)
            return (void *)"save";
    return NULL;
}

static void layers_at_once(void)
{
    aura_config configs[LAYERS];
    aura_model_config config = AURA_MODEL_CONFIG_INIT;
    pthread_t thread[LAYERS + 3];
    const char *path = file_path("still");
    void *failed;
    for (int i = 0; i < LAYERS; i++)
        configs[i] = config_of(AURA_KIND_B4, AURA_KIND_B4, 64, 64, 1);
    text = text_new(&configs[0], 200);
    config.layers = LAYERS, config.configs = configs, config.budget_bytes = 400000;
    EXPECT(!aura_model_cache_create(ctx, &config, &model), "%s", aura_last_error());
    EXPECT(!aura_model_seq_create(model, &growing) && !aura_model_seq_create(model, &still), "%s", aura_last_error());
    for (uint32_t i = 0; i < LAYERS; i++)
        grow(aura_model_cache_layer(model, i), still, &text, 100, 0);
    EXPECT(!aura_model_seq_reserve(model, growing, 256), "%s", aura_last_error()); /* a page that is free again at the end */
    for (uint32_t i = 0; i < LAYERS; i++)
        pthread_create(&thread[i], NULL, grow_layer, aura_model_cache_layer(model, i));
    pthread_create(&thread[LAYERS], NULL, come_and_go, NULL);
    pthread_create(&thread[LAYERS + 1], NULL, come_and_go, NULL);
    pthread_create(&thread[LAYERS + 2], NULL, save_one, (void *)path);
    for (int i = 0; i < LAYERS + 3; i++) {
        pthread_join(thread[i], &failed);
        EXPECT(!failed, "%s", (const char *)failed);
    }
    aura_seq got = 0;
    EXPECT(!aura_model_seq_release(model, growing) && !aura_model_seq_load(model, path, NULL, &got), "%s", aura_last_error());
    for (uint32_t i = 0; i < LAYERS; i++) {
        aura_cache_info info = AURA_CACHE_INFO_INIT;
        aura_cache *layer = aura_model_cache_layer(model, i);
        EXPECT(!aura_cache_get_info(layer, &info) && info.seqs == 2 && info.holders == 2 && info.tokens == 200,
               "layer %u: %zu sequences, %zu references, %llu tokens",
               i, info.seqs, info.holders, (unsigned long long)info.tokens);
        if (got)
            expect_same(layer, still, layer, got, "saved meanwhile");
    }
    aura_model_cache_destroy(model);
    text_free(&text);
    unlink(path);
}

int main(void)
{
    if (aura_ctx_create(NULL, &ctx) || !files_begin())
        return 1;
    for (int i = 0; i < (small_run() ? 3 : 10); i++)
        RUN(layers_at_once);
    aura_ctx_destroy(ctx);
    files_end();
    return test_result();
}
