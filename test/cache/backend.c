/* A cache as another backend sees it: a sequence that is copied byte by byte through backend.h is the same sequence. */
#include "../../src/base/exact.h"

#include <stdlib.h>

#include "../../src/cache/backend.h"
#include "../../tool/parts/inputs.h"
#include "../test.h"

enum { TOKENS = 700, SHORTER = 520, HEADS = 2, DIM = 64 };

static aura_ctx *ctx;

static aura_cache *cache_with(aura_kind k, aura_kind v, uint32_t tokens, aura_seq *seq)
{
    aura_config config = AURA_CONFIG_INIT;
    aura_append_job job = AURA_APPEND_JOB_INIT;
    aura_cache *cache = NULL;
    uint64_t seed = 5;
    float *x = malloc((size_t)TOKENS * HEADS * DIM * sizeof *x);
    for (size_t i = 0; i < (size_t)TOKENS * HEADS * DIM; i++)
        x[i] = random_normal(&seed);
    config.format.k = k, config.format.v = v;
    config.q_heads = config.kv_heads = HEADS, config.k_dim = DIM, config.seed = 3;
    EXPECT(!aura_cache_create(ctx, &config, &cache) && !aura_seq_create(cache, seq), "%s", aura_last_error());
    job.seq = *seq, job.tokens = tokens, job.k.data = job.v.data = x;
    EXPECT(!aura_append(cache, &job, 1), "%s", aura_last_error());
    free(x);
    return cache;
}

static void copy(aura_cache *to, aura_seq to_seq, const aura_cache *from, aura_seq from_seq)
{
    struct aura_backend_cache facts;
    struct aura_backend_seq a, b;
    aura_backend_describe(&facts, from);
    EXPECT(!aura_backend_find("copy", from, from_seq, &a), "%s", aura_last_error());
    EXPECT(a.len == TOKENS && a.pages == (TOKENS + AURA_PAGE - 1) / AURA_PAGE, "%zu pages", a.pages);
    EXPECT(!aura_backend_fill("copy", to, to_seq, a.len, a.closed, 0, &b), "%s", aura_last_error());
    for (size_t i = 0; i < a.pages; i++)
        memcpy(aura_backend_page(to, to_seq, i), aura_backend_page(from, from_seq, i), facts.page_bytes);
    if (a.k)
        memcpy(b.k, a.k, (size_t)HEADS * facts.rows * DIM * sizeof *a.k);
    if (a.v)
        memcpy(b.v, a.v, (size_t)HEADS * facts.rows * DIM * sizeof *a.v);
}

static void same_after_copy(aura_kind k, aura_kind v)
{
    aura_seq one, empty, other;
    aura_cache *from = cache_with(k, v, TOKENS, &one), *to = cache_with(k, v, 0, &empty);
    size_t n = (size_t)TOKENS * HEADS * DIM, bytes = n * sizeof(float);
    float *x = malloc(4 * bytes);
    aura_view view[4];
    for (int i = 0; i < 4; i++)
        view[i] = (aura_view){x + (size_t)i * n, AURA_F32, 0, 0, NULL};
    EXPECT(!aura_seq_create(to, &other), "%s", aura_last_error());
    copy(to, other, from, one);
    EXPECT(!aura_cache_decode(from, one, 0, TOKENS, &view[0], &view[1]), "%s", aura_last_error());
    EXPECT(!aura_cache_decode(to, other, 0, TOKENS, &view[2], &view[3]), "%s", aura_last_error());
    EXPECT(!memcmp(x, x + 2 * n, 2 * bytes), "k%d v%d: the copy decodes to other numbers", (int)k, (int)v);
    free(x);
    aura_cache_destroy(from), aura_cache_destroy(to);
}

static void copies(void)
{
    same_after_copy(AURA_KIND_B4, AURA_KIND_B4);
    same_after_copy(AURA_KIND_F16, AURA_KIND_B3);
    same_after_copy(AURA_KIND_B8, AURA_KIND_F32);
}

/* An empty sequence that has reserved pages may share them with a fork of its past. The last page of SHORTER has only open
 * tokens, so appending does not write to it. */
static void leaves_shared_pages_alone(void)
{
    aura_seq one, fork = 0;
    aura_cache *cache = cache_with(AURA_KIND_B4, AURA_KIND_B4, TOKENS, &one);
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    struct aura_backend_cache facts;
    struct aura_backend_seq filled;
    size_t n = (size_t)TOKENS * HEADS * DIM, bytes = n * sizeof(float);
    float *x = malloc(4 * bytes);
    aura_view view[4];
    for (int i = 0; i < 4; i++)
        view[i] = (aura_view){x + (size_t)i * n, AURA_F32, 0, 0, NULL};
    EXPECT(!aura_seq_reserve(cache, one, TOKENS) && !aura_seq_fork(cache, one, TOKENS, &fork), "%s", aura_last_error());
    EXPECT(!aura_cache_decode(cache, fork, 0, TOKENS, &view[0], &view[1]), "%s", aura_last_error());
    EXPECT(!aura_truncate(cache, one, 0), "%s", aura_last_error());
    aura_backend_describe(&facts, cache);
    EXPECT(!aura_backend_fill("fill", cache, one, SHORTER, 480, 0, &filled), "%s", aura_last_error());
    for (size_t i = 0; i < filled.pages; i++)
        memset(aura_backend_page(cache, one, i), 0, facts.page_bytes);
    EXPECT(!aura_cache_decode(cache, fork, 0, TOKENS, &view[2], &view[3]), "%s", aura_last_error());
    EXPECT(!memcmp(x, x + 2 * n, 2 * bytes), "another sequence has other numbers now");
    EXPECT(!aura_cache_get_info(cache, &info) && info.tokens == TOKENS + SHORTER && info.shared_pages == 0,
           "%llu tokens, %zu shared",
           (unsigned long long)info.tokens, info.shared_pages);
    free(x);
    aura_cache_destroy(cache);
}

static void misuse(void)
{
    aura_seq seq;
    struct aura_backend_seq facts;
    aura_cache *cache = cache_with(AURA_KIND_B4, AURA_KIND_B4, 10, &seq);
    EXPECT(aura_backend_fill("misuse", cache, seq, 20, 0, 0, &facts) == AURA_BAD_ARGUMENT, "a sequence with tokens was filled");
    EXPECT(strstr(aura_last_error(), "misuse") && strstr(aura_last_error(), "10 tokens"), "%s", aura_last_error());
    EXPECT(!aura_backend_find("misuse", cache, seq, &facts) && facts.len == 10, "%llu tokens", (unsigned long long)facts.len);
    EXPECT(aura_backend_find("misuse", cache, seq + 1, &facts) == AURA_BAD_ARGUMENT, "there is no such sequence");
    EXPECT(aura_backend_fail(NULL, AURA_DEVICE, "a %s", "text") == AURA_DEVICE && !strcmp(aura_last_error(), "a text"), "%s",
           aura_last_error());
    aura_cache_destroy(cache);
}

int main(void)
{
    EXPECT(!aura_ctx_create(NULL, &ctx), "%s", aura_last_error());
    RUN(copies);
    RUN(leaves_shared_pages_alone);
    RUN(misuse);
    aura_ctx_destroy(ctx);
    return test_result();
}
