/* Dims and kinds of a cache: what is refused, and that the message lists what there is. */
#include <stdlib.h>

#include "../../include/aura_file.h"
#include "../test.h"

static aura_status create(uint32_t k_dim, uint32_t v_dim, aura_kind k, aura_kind v)
{
    aura_ctx *ctx = NULL;
    aura_cache *cache = NULL;
    aura_config config = AURA_CONFIG_INIT;
    config.k_dim = k_dim, config.v_dim = v_dim, config.format.k = k, config.format.v = v;
    config.q_heads = config.kv_heads = 1;
    if (aura_ctx_create(NULL, &ctx))
        abort();
    aura_status status = aura_cache_create(ctx, &config, &cache);
    if (!status)
        aura_cache_destroy(cache);
    aura_ctx_destroy(ctx);
    return status;
}

static int says(const char *begin, const char *end)
{
    const char *text = aura_last_error();
    size_t n = strlen(text), tail = strlen(end);
    return !strncmp(text, begin, strlen(begin)) && n >= tail && !strcmp(text + n - tail, end);
}

static void dims(void)
{
    static const uint32_t good[] = {1, 8, 63, 64, 72, 100, 128, 257, 512}, bad[] = {513, 576, 1024, UINT32_MAX};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        EXPECT(!create(good[i], 80, AURA_KIND_B4, AURA_KIND_B4) && !create(192, good[i], AURA_KIND_B4, AURA_KIND_B4), "%u: %s",
               good[i], aura_last_error());
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        EXPECT(create(bad[i], 64, AURA_KIND_B4, AURA_KIND_B4) == AURA_UNSUPPORTED &&
                   create(64, bad[i], AURA_KIND_B4, AURA_KIND_B4) == AURA_UNSUPPORTED, "%u", bad[i]);
    create(64, 513, AURA_KIND_B4, AURA_KIND_B4);
    EXPECT(says("aura_cache_create: v_dim is 513, not 1 to ", "512"), "%s", aura_last_error());
    aura_ctx *ctx = NULL;
    aura_calibration *calibration;
    aura_calibration_config config = {sizeof config, 1, 1, 513, 0};
    EXPECT(!aura_ctx_create(NULL, &ctx), "%s", aura_last_error());
    EXPECT(aura_calibration_create(ctx, &config, &calibration) == AURA_UNSUPPORTED, "513");
    EXPECT(says("aura_calibration_create: k_dim is 513, not 1 to ", "512"), "%s", aura_last_error());
    aura_ctx_destroy(ctx);
}

static void kinds(void)
{
    static const int good[] = {2, 3, 5, 8, 9, 10, 11, 12, 13, 14}, bad[] = {1, -1, 7, 15, 16, 32};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        EXPECT(!create(64, 64, (aura_kind)good[i], AURA_KIND_B4) && !create(64, 64, AURA_KIND_F32, (aura_kind)good[i]), "%d: %s",
               good[i], aura_last_error());
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        EXPECT(create(64, 64, (aura_kind)bad[i], AURA_KIND_B4) == AURA_UNSUPPORTED &&
                   create(64, 64, AURA_KIND_B4, (aura_kind)bad[i]) == AURA_UNSUPPORTED, "%d", bad[i]);
    create(64, 64, AURA_KIND_B4, (aura_kind)15);
    EXPECT(says("aura_cache_create: format {4, 15}: a side has 2, 3, ", " or 8 bits or is t2, t3, t4, f32, f16, bf16"), "%s",
           aura_last_error());
}

int main(void)
{
    RUN(dims);
    RUN(kinds);
    return test_result();
}
