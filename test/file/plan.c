/* Plans: what a cache will take is what it then takes. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "snapshot_tools.h"

static aura_plan_info plan_for(const aura_config *configs, uint32_t layers, size_t seqs, uint64_t tokens, uint32_t queries)
{
    aura_plan_job job = AURA_PLAN_JOB_INIT;
    aura_plan_info info = AURA_PLAN_INFO_INIT;
    job.configs = configs, job.layers = layers, job.seqs = seqs, job.tokens = tokens, job.queries = queries;
    EXPECT(!aura_plan(ctx, &job, &info), "%s", aura_last_error());
    EXPECT(info.bytes == info.page_bytes + info.idle_bytes + info.tail_bytes + info.seq_bytes + info.overhead_bytes +
                             info.fixed_bytes, "the parts are not the whole");
    return info;
}

static size_t workspace_of(const aura_cache *cache, const aura_seq *seq, size_t n, uint32_t queries)
{
    aura_attend_job *jobs = calloc(n + 1, sizeof *jobs), one = AURA_ATTEND_JOB_INIT;
    size_t bytes = 0;
    one.queries = queries;
    for (size_t i = 0; i < n; i++)
        jobs[i] = one, jobs[i].seq = seq[i];
    EXPECT(!aura_attend_workspace(cache, jobs, n, 0, &bytes), "%s", aura_last_error());
    free(jobs);
    return bytes;
}

/* A cache with so many sequences, filled. */
static void expect_exact(const aura_config *config, const struct text *t, size_t seqs, uint32_t tokens, uint32_t queries)
{
    const aura_plan_info plan = plan_for(config, 0, seqs, tokens, queries);
    aura_seq *seq = calloc(seqs + 1, sizeof *seq);
    aura_cache *cache = cache_new(ctx, config);
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    size_t snapshot = 0;
    for (size_t i = 0; i < seqs; i++) {
        seq[i] = seq_new(cache);
        EXPECT(!config->window || !aura_seq_reserve(cache, seq[i], tokens), "%s", aura_last_error());
        grow(cache, seq[i], t, tokens, (uint32_t)i);
    }
    aura_cache_get_info(cache, &info);
    EXPECT(!aura_cache_size(cache, NULL, &snapshot), "%s", aura_last_error());
    EXPECT(plan.bytes == info.bytes, "%s, %zu of %u tokens: %zu bytes were planned, %zu taken", config_text(config), seqs, tokens,
           plan.bytes, info.bytes);
    EXPECT(plan.pages == info.pages - info.free_pages && plan.page_bytes == plan.pages * info.page_bytes &&
               plan.idle_bytes == info.free_pages * info.page_bytes,
           "%s, %zu of %u tokens: %zu pages were planned, %zu taken", config_text(config), seqs, tokens, plan.pages,
           info.pages - info.free_pages);
    EXPECT(plan.snapshot_bytes == snapshot, "%s, %zu of %u tokens: a snapshot of %zu bytes was planned, and has %zu",
           config_text(config), seqs, tokens, plan.snapshot_bytes, snapshot);
    EXPECT(!queries || plan.workspace_bytes == workspace_of(cache, seq, seqs, queries),
           "%s, %zu of %u tokens: a workspace of %zu bytes, not %zu", config_text(config), seqs, tokens, plan.workspace_bytes,
           workspace_of(cache, seq, seqs, queries));
    aura_cache_destroy(cache);
    free(seq);
}

static void every_kind_and_dim(void)
{
    static const uint32_t lengths[] = {0, 1, 33, 256, 257, 530};
    for (int k = 0; k < N_KINDS; k++)
        for (int v = 0; v < N_KINDS; v++)
            for (int d = (k + v) % 3; d < N_DIMS && test_bad_lines < 5; d += small_run() ? 5 : 3) {
                aura_config config = config_of(kinds[k], kinds[v], dims[d], dims[(d + v) % N_DIMS], 1 + (uint32_t)k % 3);
                struct text t = text_new(&config, 100);
                config.q_heads = 4 * config.kv_heads;
                expect_exact(&config, &t, 1 + (size_t)v % 2, lengths[(k + v + d) % 6], 1 + (uint32_t)d);
                text_free(&t);
            }
}

static void every_option(void)
{
    static const uint32_t flags[] = {0, AURA_NO_PINNED, AURA_NO_ROLLBACK, AURA_NO_REFERENCE, AURA_NO_OPEN | AURA_NO_REFERENCE,
                                     AURA_NO_OPEN | AURA_NO_REFERENCE | AURA_NO_PINNED};
    static const size_t numbers[] = {0, 1, 3, 64, 65, 200};
    static const uint32_t lengths[] = {1, 40, 300, 700};
    static float metric[64 * 65 / 2]; /* nobody reads anything */
    float *balance = some_balance(1, 64);
    for (int f = 0; f < 6; f++)
        for (int n = 0; n < 6; n++)
            for (int l = 0; l < 4 && test_bad_lines < 5; l++) {
                aura_config config = config_of(AURA_KIND_B4, f % 2 ? AURA_KIND_B3 : AURA_KIND_F16, 64, 64, 1);
                struct text t = text_new(&config, 100);
                config.flags |= flags[f];
                config.rollback = 1 + (uint32_t)(f * 5 + n);
                config.balance = n % 2 ? balance : NULL;
                config.k_metric = n % 3 == 1 ? metric : NULL, config.flags |= n % 2 ? AURA_LEARN : 0;
                config.v_metric = f % 2 && n % 3 == 2 ? metric : NULL, config.v_balance = f % 2 && n % 3 ? balance : NULL;
                if (numbers[n] * lengths[l] < (small_run() ? 3000 : 30000))
                    expect_exact(&config, &t, numbers[n], lengths[l], 1);
                text_free(&t);
            }
    free(balance);
}

static void windows(void)
{
    static const uint32_t lengths[] = {10, 256, 400, 900, 1500, 3000};
    for (uint32_t window = 1; window < 1500; window = 3 * window + 50)
        for (uint32_t keep = 0; keep <= 600; keep += 300)
            for (int l = 0; l < 6 && test_bad_lines < 5; l += small_run() ? 2 : 1) {
                aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B8, 64, 64, 1);
                struct text t = text_new(&config, 100);
                config.window = window, config.max_queries = 40, config.keep_first = keep;
                expect_exact(&config, &t, 2, lengths[l], 3);
                text_free(&t);
            }
}

/* Long ones are reserved, which takes all the memory that they will take. */
static void many_slabs(void)
{
    static const uint64_t lengths[] = {5000, 100000, 1000001};
    for (int i = 0; i < 3; i++)
        for (size_t seqs = 1; seqs <= 7; seqs += 3) {
            aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, 128, 128, i == 2 ? 1 : 8);
            aura_cache *cache = cache_new(ctx, &config);
            for (size_t k = 0; k < seqs; k++)
                EXPECT(!aura_seq_reserve(cache, seq_new(cache), lengths[i]), "%s", aura_last_error());
            const size_t planned = plan_for(&config, 0, seqs, lengths[i], 1).bytes;
            EXPECT(planned == aura_cache_bytes(cache), "%zu of %llu tokens: %zu bytes were planned, %zu taken", seqs,
                   (unsigned long long)lengths[i], planned, aura_cache_bytes(cache));
            aura_cache_destroy(cache);
        }
}

/* The last slab is used up to its last page, or has one page less or more than are needed. */
static void slabs_that_are_full(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, 128, 128, 8);
    const size_t slab = ((size_t)16 << 20) / plan_for(&config, 0, 1, 1, 0).page_bytes;
    size_t doubled = 1;
    while (doubled < slab)
        doubled *= 2;
    for (size_t pages = doubled + 2 * slab - 1; pages <= doubled + 2 * slab + 1; pages++) {
        aura_cache *cache = cache_new(ctx, &config);
        EXPECT(!aura_seq_reserve(cache, seq_new(cache), pages * 256), "%s", aura_last_error());
        const aura_plan_info plan = plan_for(&config, 0, 1, pages * 256, 0);
        EXPECT(plan.bytes == aura_cache_bytes(cache) && !plan.idle_bytes == (pages == doubled + 2 * slab),
               "%zu pages: %zu bytes were planned, %zu idle; %zu taken", pages, plan.bytes, plan.idle_bytes,
               aura_cache_bytes(cache));
        aura_cache_destroy(cache);
    }
}

static void slots(void)
{
    for (uint64_t n = 1; n < 200000; n = 7 * n + 200) {
        aura_config config = config_of(AURA_KIND_B8, AURA_KIND_B4, 128, 64, 4);
        config.slots = n;
        aura_cache *cache = cache_new(ctx, &config);
        const aura_plan_info plan = plan_for(&config, 0, 0, 0, 2);
        aura_attend_job job = AURA_ATTEND_JOB_INIT;
        size_t snapshot = 0, workspace = 0;
        job.queries = 2, job.tokens = n;
        EXPECT(!aura_cache_size(cache, NULL, &snapshot) && !aura_attend_workspace(cache, &job, 1, 0, &workspace), "%s",
               aura_last_error());
        EXPECT(plan.bytes == aura_cache_bytes(cache) && plan.snapshot_bytes == snapshot && plan.workspace_bytes == workspace,
               "%llu slots: %zu, %zu, %zu bytes were planned, %zu, %zu, %zu taken", (unsigned long long)n, plan.bytes,
               plan.snapshot_bytes, plan.workspace_bytes, aura_cache_bytes(cache), snapshot, workspace);
        aura_cache_destroy(cache);
    }
}

static void models(void)
{
    aura_config configs[3] = {config_of(AURA_KIND_B4, AURA_KIND_B4, 64, 64, 2), config_of(AURA_KIND_F16, AURA_KIND_B8, 128, 64, 1),
                              config_of(AURA_KIND_B2, AURA_KIND_B3, 64, 64, 2)};
    float *balance = some_balance(2, 64);
    aura_model_config config = AURA_MODEL_CONFIG_INIT;
    static float metric[2 * 64 * 65 / 2];
    configs[0].balance = balance, configs[0].v_metric = metric;
    configs[2].flags |= AURA_LEARN, configs[2].window = 200, configs[2].max_queries = 64;
    config.configs = configs;
    for (config.layers = 1; config.layers <= 3; config.layers++)
        for (uint32_t tokens = 0; tokens < 800; tokens += 260) {
            aura_model_cache *model = NULL;
            aura_model_cache_info info = AURA_MODEL_CACHE_INFO_INIT;
            size_t snapshot = 0, workspace = 0;
            const aura_plan_info plan = plan_for(configs, config.layers, 2, tokens, 5);
            EXPECT(!aura_model_cache_create(ctx, &config, &model), "%s", aura_last_error());
            for (int i = 0; i < 2; i++) {
                aura_seq seq[2];
                EXPECT(!aura_model_seq_create(model, &seq[0]) && !aura_model_seq_reserve(model, seq[0], tokens), "%s",
                       aura_last_error());
                seq[1] = seq[0];
                for (uint32_t k = 0; k < config.layers; k++) {
                    struct text t = text_new(&configs[k], 100);
                    grow(aura_model_cache_layer(model, k), seq[0], &t, tokens, k);
                    size_t bytes = workspace_of(aura_model_cache_layer(model, k), seq, 2, 5);
                    workspace = bytes > workspace ? bytes : workspace;
                    text_free(&t);
                }
            }
            aura_model_cache_get_info(model, &info);
            EXPECT(!aura_model_size(model, NULL, &snapshot), "%s", aura_last_error());
            EXPECT(plan.bytes == info.bytes && plan.pages == info.pages - info.free_pages && plan.snapshot_bytes == snapshot &&
                       plan.workspace_bytes == workspace,
                   "%u layers, %u tokens: %zu bytes, a snapshot of %zu and a workspace of %zu were planned; it was %zu, %zu, %zu",
                   config.layers, tokens, plan.bytes, plan.snapshot_bytes, plan.workspace_bytes, info.bytes, snapshot, workspace);
            aura_model_cache_destroy(model);
        }
    free(balance);
}

/* Sizes up to all that there are: the right number, or AURA_TOO_LARGE. */
static void what_does_not_fit(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, 128, 128, 8);
    const double page = (double)plan_for(&config, 0, 1, 1, 0).page_bytes;
    int large = 0, good = 0;
    for (int t = 0; t < 64; t += 3)
        for (int s = 0; s < 64; s += 5)
            for (uint32_t queries = 0; queries < 2; queries++) {
                aura_plan_job job = AURA_PLAN_JOB_INIT;
                aura_plan_info info = AURA_PLAN_INFO_INIT;
                job.configs = &config, job.seqs = (size_t)1 << s, job.tokens = UINT64_MAX >> (63 - t), job.queries = queries;
                if (queries && s > 15)
                    continue; /* a job for each of them is gigabytes */
                const double bytes = (double)(job.tokens / 256 + 1) * (double)job.seqs * page;
                aura_status status = aura_plan(ctx, &job, &info);
                EXPECT(status == AURA_OK || status == AURA_TOO_LARGE, "2^%d of 2^%d tokens: %s", s, t, aura_last_error());
                EXPECT(status || (double)info.bytes > 0.9 * bytes, "2^%d of 2^%d tokens: %zu bytes", s, t, info.bytes);
                EXPECT(!status || bytes > 1e17 || s > 20 || queries, "2^%d of 2^%d tokens: %s", s, t, aura_last_error());
                EXPECT(!status || !info.bytes, "something was written");
                good += !status, large += status == AURA_TOO_LARGE;
            }
    EXPECT(good > 60 && large > 60, "%d fit, %d do not", good, large);
}

static void misuse(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, 64, 64, 1), bad = config;
    aura_plan_job job = AURA_PLAN_JOB_INIT, other;
    aura_plan_info info = AURA_PLAN_INFO_INIT, wrong = AURA_PLAN_INFO_INIT;
    job.configs = &config, job.seqs = 1, job.tokens = 100;
    EXPECT(aura_plan(NULL, &job, &info) == AURA_BAD_ARGUMENT && aura_plan(ctx, NULL, &info) == AURA_BAD_ARGUMENT &&
               aura_plan(ctx, &job, NULL) == AURA_BAD_ARGUMENT, "NULLs");
    wrong.size--;
    EXPECT(aura_plan(ctx, &job, &wrong) == AURA_BAD_ARGUMENT, "another size");
    other = job, other.size--;
    EXPECT(aura_plan(ctx, &other, &info) == AURA_BAD_ARGUMENT, "another size");
    other = job, other.configs = NULL;
    EXPECT(aura_plan(ctx, &other, &info) == AURA_BAD_ARGUMENT, "no configs");
    other = job, other.layers = 65537;
    EXPECT(aura_plan(ctx, &other, &info) == AURA_BAD_ARGUMENT, "layers");
    other = job, other.configs = &bad, bad.k_dim = 513;
    EXPECT(aura_plan(ctx, &other, &info) == AURA_UNSUPPORTED, "a dim: %s", aura_last_error());
    bad = config, bad.slots = 300;
    EXPECT(aura_plan(ctx, &other, &info) == AURA_BAD_ARGUMENT, "sequences of slots");
    other.seqs = 0, other.tokens = 0, other.layers = 1;
    EXPECT(aura_plan(ctx, &other, &info) == AURA_BAD_ARGUMENT, "slots in a model");
    bad = config, bad.window = 100, bad.max_queries = 8, other = job, other.configs = &bad, other.queries = 9;
    EXPECT(aura_plan(ctx, &other, &info) == AURA_BAD_ARGUMENT, "more queries than a window takes");
    bad = config, bad.q_heads = 0, other.queries = 1;
    EXPECT(aura_plan(ctx, &other, &info) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "query heads"), "queries of no heads");
    EXPECT(!info.bytes, "something was written");
}

int main(void)
{
    if (aura_ctx_create(NULL, &ctx))
        return 1;
    RUN(every_kind_and_dim);
    RUN(every_option);
    RUN(windows);
    RUN(many_slabs);
    RUN(slabs_that_are_full);
    RUN(slots);
    RUN(models);
    RUN(what_does_not_fit);
    RUN(misuse);
    aura_ctx_destroy(ctx);
    return test_result();
}
