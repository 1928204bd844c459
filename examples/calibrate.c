/* Calibration: keys are balanced by what queries look at, before they are rounded. The factors of a text go into a profile, the
 * profile into a file, and from there into the cache, whose error on another text must be smaller than without. */
#include <aura_file.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 1024, QUERIES = 256, Q_HEADS = 4, KV_HEADS = 1, DIM = 64, KV = TOKENS * DIM, Q = QUERIES * Q_HEADS * DIM };

static float k[KV], v[KV], q[Q], out[Q], exact[Q];

static void check(aura_status status)
{
    if (status)
        exit((fprintf(stderr, "calibrate: %s\n", aura_last_error()), 1));
}

static float uniform(uint32_t *state)
{
    return (float)((*state = *state * 1664525u + 1013904223u) >> 8) / (1 << 23) - 1;
}

/* A text as a model with rotary positions makes it: a few channels of the keys are loud, and queries listen to the others. */
static void read_text(uint32_t seed)
{
    for (int i = 0; i < KV; i++)
        k[i] = uniform(&seed) * (i % 16 ? 1.0f : 12.0f), v[i] = uniform(&seed);
    for (int i = 0; i < Q; i++)
        q[i] = uniform(&seed) * (i % 16 ? 3.0f : 0.2f);
}

/* The text through a cache of one layer: how far attention is from `exact`, which a cache of plain f32 fills instead. */
static double attend(aura_ctx *ctx, const char *format, const aura_profile *profile)
{
    aura_config config = AURA_CONFIG_INIT;
    aura_model_config model_config = AURA_MODEL_CONFIG_INIT;
    aura_append_job append = AURA_APPEND_JOB_INIT;
    aura_attend_job job = AURA_ATTEND_JOB_INIT;
    aura_model_cache *model;
    double apart = 0, size = 0;
    check(aura_format_parse(format, &config.format));
    config.q_heads = Q_HEADS, config.kv_heads = KV_HEADS, config.k_dim = DIM;
    model_config.layers = 1, model_config.configs = &config, model_config.profile = profile;
    check(aura_model_cache_create(ctx, &model_config, &model)), check(aura_model_seq_create(model, &append.seq));
    append.tokens = TOKENS, append.k.data = k, append.v.data = v;
    job.seq = append.seq, job.queries = QUERIES, job.q.data = q, job.out.data = config.format.k == AURA_KIND_F32 ? exact : out;
    check(aura_append(aura_model_cache_layer(model, 0), &append, 1));
    check(aura_attend(aura_model_cache_layer(model, 0), &job, 1, NULL));
    for (int i = 0; i < Q; i++)
        apart += (double)(out[i] - exact[i]) * (out[i] - exact[i]), size += (double)exact[i] * exact[i];
    aura_model_cache_destroy(model);
    return apart / size;
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "example.profile";
    aura_calibration_config config = AURA_CALIBRATION_CONFIG_INIT;
    aura_calibration *calibration;
    aura_profile *profile;
    aura_input keys = AURA_INPUT_INIT, queries = AURA_INPUT_INIT;
    aura_ctx *ctx;
    float balance[KV_HEADS * DIM];
    config.q_heads = Q_HEADS, config.kv_heads = KV_HEADS, config.k_dim = DIM, keys.data = k, queries.data = q;
    read_text(1);
    check(aura_ctx_create(NULL, &ctx)), check(aura_calibration_create(ctx, &config, &calibration));
    check(aura_calibration_keys(calibration, TOKENS, &keys)), check(aura_calibration_queries(calibration, QUERIES, &queries));
    check(aura_calibration_balance(calibration, balance));
    check(aura_profile_create(ctx, 1, &profile)), check(aura_profile_set(profile, 0, KV_HEADS, DIM, balance));
    check(aura_profile_save(profile, path));
    aura_calibration_destroy(calibration), aura_profile_destroy(profile);
    read_text(2); /* another text, and the file alone */
    check(aura_profile_load(ctx, path, &profile));
    attend(ctx, "kf32vf32", NULL);
    double without = attend(ctx, "k3v8", NULL), with = attend(ctx, "k3v8", profile);
    printf("calibrate: squared error of attention, 3-bit keys: %.4f without a profile, %.4f with %s\n", without, with, path);
    aura_profile_destroy(profile), aura_ctx_destroy(ctx);
    return with < without / 2 ? 0 : (fputs("calibrate: the profile did not help\n", stderr), 1);
}
