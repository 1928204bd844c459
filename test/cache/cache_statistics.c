/* What a cache says about the work that it has done: pages copied, tiles closed, and the time of calls. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "cache_twins.h"

#include <time.h>

enum { TOKENS = 336, HEADS = 2 }; /* 10 tiles and the 16 tokens of rollback: one token less leaves a tile open */

static aura_config some_config(aura_kind kind)
{
    aura_config config = config_of(kind, kind, 64, 64, HEADS);
    config.q_heads = 4;
    return config;
}

static void tiles_close(void)
{
    const aura_kind kinds[] = {AURA_KIND_B4, AURA_KIND_F16};
    for (int i = 0; i < 2; i++) {
        struct text t = text_new(some_config(kinds[i]), TOKENS + 32);
        aura_cache *cache = cache_new(ctx, &t.config);
        aura_seq seq = seq_new(cache);
        const uint64_t packed = i == 0;
        EXPECT(cache_info(cache).tiles_closed == 0, "before any");
        EXPECT(!text_append(cache, seq, &t, 0, 0, TOKENS - 1), "%s", aura_last_error());
        EXPECT(cache_info(cache).tiles_closed == packed * 9 * HEADS, "%llu", (unsigned long long)cache_info(cache).tiles_closed);
        EXPECT(!text_append(cache, seq, &t, 0, TOKENS - 1, 1), "%s", aura_last_error());
        EXPECT(cache_info(cache).tiles_closed == packed * 10 * HEADS, "one more token: %llu",
               (unsigned long long)cache_info(cache).tiles_closed);
        EXPECT(!aura_truncate(cache, seq, 256) && !text_append(cache, seq, &t, 0, 256, TOKENS - 256), "%s", aura_last_error());
        EXPECT(cache_info(cache).tiles_closed == packed * 12 * HEADS, "the same tokens again: %llu",
               (unsigned long long)cache_info(cache).tiles_closed);
        aura_cache_destroy(cache);
        text_free(&t);
    }
}

static void pages_are_copied(void)
{
    struct text t = text_new(some_config(AURA_KIND_B4), TOKENS + 32);
    aura_cache *cache = cache_new(ctx, &t.config);
    aura_seq parent = seq_new(cache), child;
    EXPECT(!text_append(cache, parent, &t, 0, 0, TOKENS), "%s", aura_last_error());
    EXPECT(!aura_seq_fork(cache, parent, TOKENS, &child), "%s", aura_last_error());
    EXPECT(cache_info(cache).pages_copied == 0, "a fork copies none: %llu", (unsigned long long)cache_info(cache).pages_copied);
    EXPECT(!text_append(cache, child, &t, 1, TOKENS, 32), "%s", aura_last_error());
    EXPECT(cache_info(cache).pages_copied == 1, "the last page, of two: %llu", (unsigned long long)cache_info(cache).pages_copied);
    EXPECT(!text_append(cache, parent, &t, 0, TOKENS, 32), "%s", aura_last_error());
    EXPECT(cache_info(cache).pages_copied == 1, "who has it alone copies none: %llu",
           (unsigned long long)cache_info(cache).pages_copied);
    aura_cache_destroy(cache);
    text_free(&t);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Each kind of call takes time of its own kind, and no more than has gone by. */
static void calls_take_time(void)
{
    struct text t = text_new(some_config(AURA_KIND_B4), TOKENS + 32);
    aura_cache *cache = cache_new(ctx, &t.config);
    aura_seq seq = seq_new(cache);
    aura_append_job in;
    aura_attend_job question = AURA_ATTEND_JOB_INIT;
    float q[4 * 64] = {0}, out[4 * 64];
    double start = now();
    question.seq = seq, question.queries = 1, question.q.data = q, question.out.data = out;
    EXPECT(!text_append(cache, seq, &t, 0, 0, TOKENS), "%s", aura_last_error());
    aura_cache_info a = cache_info(cache);
    EXPECT(a.append_s > 0 && a.append_s <= now() - start && a.attend_s == 0 && a.step_s == 0, "append: %g, %g, %g", a.append_s,
           a.attend_s, a.step_s);
    start = now();
    EXPECT(!aura_attend(cache, &question, 1, NULL), "%s", aura_last_error());
    aura_cache_info b = cache_info(cache);
    EXPECT(b.attend_s > 0 && b.attend_s <= now() - start && b.append_s == a.append_s && b.step_s == 0, "attend: %g, %g, %g",
           b.append_s, b.attend_s, b.step_s);
    start = now();
    in = text_job(&t, 0, TOKENS, 1, seq);
    EXPECT(!aura_append_attend(cache, &in, 1, &question, 1, NULL), "%s", aura_last_error());
    aura_cache_info c = cache_info(cache);
    EXPECT(c.step_s > 0 && c.step_s <= now() - start && c.append_s == a.append_s && c.attend_s == b.attend_s, "both: %g, %g, %g",
           c.append_s, c.attend_s, c.step_s);
    EXPECT(!aura_attend(cache, &question, 1, NULL) && cache_info(cache).attend_s > b.attend_s, "one more call adds to it");
    aura_cache_destroy(cache);
    text_free(&t);
}

static void a_model_has_the_sums(void)
{
    aura_config configs[2] = {some_config(AURA_KIND_B4), some_config(AURA_KIND_B3)};
    struct text t = text_new(configs[0], TOKENS + 32);
    aura_model_config config = AURA_MODEL_CONFIG_INIT;
    aura_model_cache_info info = AURA_MODEL_CACHE_INFO_INIT;
    aura_model_cache *model = NULL;
    aura_seq seq = 0, child = 0;
    config.layers = 2, config.configs = configs;
    EXPECT(!aura_model_cache_create(ctx, &config, &model) && !aura_model_seq_create(model, &seq), "%s", aura_last_error());
    for (uint32_t i = 0; i < 2; i++)
        EXPECT(!text_append(aura_model_cache_layer(model, i), seq, &t, 0, 0, TOKENS), "%s", aura_last_error());
    EXPECT(!aura_model_seq_fork(model, seq, TOKENS, &child), "%s", aura_last_error());
    for (uint32_t i = 0; i < 2; i++) {
        aura_cache *layer = aura_model_cache_layer(model, i);
        size_t bytes;
        EXPECT(!text_append(layer, child, &t, 1, TOKENS, 32), "%s", aura_last_error());
        free(ask(layer, seq, 1, NULL, &bytes));
    }
    EXPECT(!aura_model_cache_get_info(model, &info), "%s", aura_last_error());
    const aura_cache_info a = cache_info(aura_model_cache_layer(model, 0)), b = cache_info(aura_model_cache_layer(model, 1));
    EXPECT(info.tiles_closed == 2 * 11 * HEADS && info.pages_copied == 2, "%llu tiles, %llu pages",
           (unsigned long long)info.tiles_closed, (unsigned long long)info.pages_copied);
    EXPECT(info.append_s == a.append_s + b.append_s && info.attend_s == a.attend_s + b.attend_s && info.attend_s > 0 &&
           info.step_s == 0, "%g, %g, %g", info.append_s, info.attend_s, info.step_s);
    aura_model_cache_destroy(model);
    text_free(&t);
}

int main(void)
{
    if (aura_ctx_create(NULL, &ctx))
        return 1;
    RUN(tiles_close);
    RUN(pages_are_copied);
    RUN(calls_take_time);
    RUN(a_model_has_the_sums);
    aura_ctx_destroy(ctx);
    return test_result();
}
