/* Calls every function that allocates, and lets each of its allocations fail in turn. The status says so, and nothing has
 * changed: no cache, no file, no buffer of the caller. Then the call works, and in the end no byte is lost. Every function of
 * aura.h, aura_file.h and aura_rows.h is in one of two lists here. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "../file/snapshot_tools.h"

#include <ctype.h>

enum { TOKENS = 280, WIDE = 256, WIDE_TOKENS = 40, OUT_BYTES = 1 << 19, LAYERS = 2 };
enum { CROWD = 64 }; /* sequences that a cache has room for; one more makes it allocate */

static struct text text, wide_text;
static float *balance, *matrix;
static uint8_t out[OUT_BYTES], rows[OUT_BYTES]; /* out: where calls write; rows: what imports read */
static struct counting memory;

/* ---- something of everything ------------------------------------------------------------------------------------------ */

struct world {
    aura_ctx *ctx;
    aura_cache *cache, *wide;
    aura_seq seq[3], wide_seq; /* seq[1] is a fork of seq[0]; all others are empty */
    aura_seq crowd[CROWD];     /* more of the cache's, from 3 on */
    aura_model_cache *model;
    aura_seq model_seq;
    aura_profile *profile;

    /* objects that calls create */
    aura_ctx *new_ctx;
    aura_cache *new_cache;
    aura_model_cache *new_model;
    aura_profile *new_profile;
    aura_calibration *new_calibration;
    aura_listing *new_listing;
    aura_extents *new_extents;
    aura_page_codec *new_codec;
    aura_seq new_seq;
};

static aura_config cache_config(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B3, 64, 64, 1);
    config.balance = balance;
    return config;
}

static aura_config wide_config(void)
{
    return config_of(AURA_KIND_B8, AURA_KIND_F16, WIDE, WIDE, 1);
}

static aura_status make_model(aura_ctx *in, const aura_profile *profile, aura_model_cache **model)
{
    aura_config configs[LAYERS] = {config_of(AURA_KIND_B4, AURA_KIND_B3, 64, 64, 1),
                                   config_of(AURA_KIND_F16, AURA_KIND_B4, 64, 64, 1)};
    aura_model_config config = AURA_MODEL_CONFIG_INIT;
    configs[1].window = 100, configs[1].max_queries = 40;
    config.layers = LAYERS, config.configs = configs, config.profile = profile;
    return aura_model_cache_create(in, &config, model);
}

static void world_new(struct world *w, aura_ctx *in)
{
    aura_config config = cache_config(), wide = wide_config();
    memset(w, 0, sizeof *w);
    w->ctx = in;
    w->cache = cache_new(in, &config), w->wide = cache_new(in, &wide);
    w->seq[0] = seq_new(w->cache), w->wide_seq = seq_new(w->wide);
    grow(w->cache, w->seq[0], &text, TOKENS, 0), grow(w->wide, w->wide_seq, &wide_text, WIDE_TOKENS, 0);
    EXPECT(!aura_seq_fork(w->cache, w->seq[0], TOKENS - 10, &w->seq[1]), "%s", aura_last_error());
    w->seq[2] = seq_new(w->cache);
    EXPECT(!aura_profile_create(in, LAYERS, &w->profile) && !aura_profile_set(w->profile, 0, 1, 64, balance), "%s",
           aura_last_error());
    EXPECT(!make_model(in, w->profile, &w->model) && !aura_model_seq_create(w->model, &w->model_seq), "%s", aura_last_error());
    for (uint32_t i = 0; i < LAYERS; i++)
        grow(aura_model_cache_layer(w->model, i), w->model_seq, &text, TOKENS, i);
    for (int i = 1; i < CROWD; i++) {
        aura_seq other;
        EXPECT(!aura_model_seq_create(w->model, &other) && (i < 3 || !aura_seq_create(w->cache, &w->crowd[i])), "%s",
               aura_last_error());
    }
    memset(out, 0x5a, sizeof out);
    write_file(file_path("out"), "before", 6);
}

static void world_free(struct world *w)
{
    aura_extents_destroy(w->new_extents);
    aura_cache_destroy(w->cache), aura_cache_destroy(w->wide), aura_cache_destroy(w->new_cache);
    aura_model_cache_destroy(w->model), aura_model_cache_destroy(w->new_model);
    aura_profile_destroy(w->profile), aura_profile_destroy(w->new_profile);
    aura_calibration_destroy(w->new_calibration), aura_listing_destroy(w->new_listing);
    aura_page_codec_destroy(w->new_codec);
    aura_ctx_destroy(w->new_ctx);
}

/* ---- has anything changed? ---------------------------------------------------------------------------------------------- */

static uint32_t sum(uint32_t crc, const void *data, size_t bytes)
{
    return aura_crc32c(crc, data, bytes, AURA_ISA_REF);
}

static uint32_t sum_seq(uint32_t crc, const aura_cache *cache, aura_seq seq)
{
    aura_seq_info info = AURA_SEQ_INFO_INIT;
    aura_cache_info about = AURA_CACHE_INFO_INIT;
    float *answer;
    EXPECT(!aura_seq_get_info(cache, seq, &info) && !aura_cache_get_info(cache, &about), "%s", aura_last_error());
    uint32_t n = (uint32_t)(info.tokens - info.first), k_dim = about.config.k_dim, v_dim = about.config.v_dim;
    float *k = malloc((size_t)n * k_dim * 4 + 1), *v = malloc((size_t)n * v_dim * 4 + 1);
    aura_view k_view = {k, AURA_F32, 0, 0, NULL}, v_view = {v, AURA_F32, 0, 0, NULL};
    EXPECT(!aura_cache_decode(cache, seq, info.first, n, &k_view, &v_view), "%s", aura_last_error());
    crc = sum(sum(sum(crc, &info, sizeof info), k, (size_t)n * k_dim * 4), v, (size_t)n * v_dim * 4);
    size_t bytes = ask(cache, seq, n < 2 ? n : 2, &answer);
    crc = sum(crc, answer, bytes);
    free(k), free(v), free(answer);
    return crc;
}

/* Free pages, and page tables that have grown, do not count as changes. */
static uint32_t sum_cache(uint32_t crc, const aura_cache *cache)
{
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    EXPECT(!aura_cache_get_info(cache, &info), "%s", aura_last_error());
    uint64_t now[] = {info.pages - info.free_pages, info.seqs, info.shared_pages, info.holders, info.tokens};
    return sum(crc, now, sizeof now);
}

/* All that a failed call must not change. */
static uint32_t sum_world(const struct world *w)
{
    aura_profile_layer layer = AURA_PROFILE_LAYER_INIT;
    struct bytes file = read_file(file_path("out"));
    uint32_t crc = sum(sum(0, out, sizeof out), file.data, file.size);
    crc = sum_cache(sum_cache(crc, w->cache), w->wide);
    for (int i = 0; i < 3; i++)
        crc = sum_seq(crc, w->cache, w->seq[i]);
    crc = sum_seq(crc, w->wide, w->wide_seq);
    for (uint32_t i = 0; i < LAYERS; i++) {
        crc = sum_seq(sum_cache(crc, aura_model_cache_layer(w->model, i)), aura_model_cache_layer(w->model, i), w->model_seq);
        EXPECT(!aura_profile_get(w->profile, i, &layer), "%s", aura_last_error());
        uint32_t shape[] = {layer.layers, layer.kv_heads, layer.k_dim};
        crc = sum(sum(crc, shape, sizeof shape), layer.balance, (size_t)layer.kv_heads * layer.k_dim * sizeof(float));
    }
    free(file.data);
    return sum(crc, &w->new_ctx, sizeof *w - offsetof(struct world, new_ctx));
}

/* ---- the calls ------------------------------------------------------------------------------------------------------------ */

static aura_status ctx_create(struct world *w)
{
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    options.allocator.alloc = counting_alloc, options.allocator.free = counting_free, options.allocator.user = &memory;
    options.threads = 2;
    return aura_ctx_create(&options, &w->new_ctx);
}

static aura_rotation dense(uint32_t dim)
{
    aura_rotation r = AURA_ROTATION_INIT;
    r.kind = AURA_ROTATION_DENSE, r.dim = dim, r.matrix = matrix;
    return r;
}

static aura_status rotate(struct world *w)
{
    aura_rotation r = dense(64);
    aura_rotate_args args = AURA_ROTATE_ARGS_INIT;
    args.rotation = &r, args.rows = 5, args.in = text.k.memory, args.out = out;
    return aura_rotate(w->ctx, &args);
}

static aura_status encode(struct world *w)
{
    aura_rotation r = dense(64);
    aura_codebook book;
    aura_encode_args args = AURA_ENCODE_ARGS_INIT;
    aura_codebook_get(AURA_TABLE_EXACT, 4, &book);
    args.codebook = &book, args.rotation = &r, args.dim = 64, args.rows = 5;
    args.in = text.k.memory, args.packed = out, args.scales = out + 4096;
    return aura_encode(w->ctx, &args);
}

static aura_status cache_create(struct world *w)
{
    aura_config config = cache_config();
    return aura_cache_create(w->ctx, &config, &w->new_cache);
}

static aura_status cache_create_feedback(struct world *w)
{
    static float metric[2 * 64 * 65 / 2];
    aura_config config = cache_config();
    config.k_metric = config.v_metric = metric, config.v_balance = balance;
    return aura_cache_create(w->ctx, &config, &w->new_cache);
}

static aura_status cache_create_slots(struct world *w)
{
    aura_config config = cache_config();
    config.slots = 700;
    return aura_cache_create(w->ctx, &config, &w->new_cache);
}

static aura_status seq_create(struct world *w)
{
    return aura_seq_create(w->cache, &w->new_seq);
}

static aura_status seq_fork(struct world *w)
{
    return aura_seq_fork(w->cache, w->seq[0], 270, &w->new_seq);
}

static aura_status seq_reserve(struct world *w)
{
    return aura_seq_reserve(w->cache, w->seq[1], 6000);
}

static aura_status seq_copy(struct world *w)
{
    return aura_seq_copy(w->cache, w->seq[0], 0, 256, w->seq[2]);
}

/* Shared pages, new pages, and a first page table. */
static aura_status append_three(struct world *w)
{
    aura_append_job jobs[3];
    for (int i = 0; i < 3; i++)
        jobs[i] = append_job(w->seq[i], &text.k, &text.v, (uint32_t)i, 270);
    return aura_append(w->cache, jobs, 3);
}

static aura_status attend(struct world *w)
{
    aura_attend_job job = AURA_ATTEND_JOB_INIT;
    job.seq = w->seq[0], job.queries = 2, job.q.data = text.v.memory, job.out.data = out, job.lse = (float *)(void *)(out + 4096);
    return aura_attend(w->cache, &job, 1, NULL);
}

static aura_status append_attend(struct world *w)
{
    aura_append_job in = append_job(w->seq[2], &text.k, &text.v, 0, 270);
    aura_attend_job job = AURA_ATTEND_JOB_INIT;
    job.seq = w->seq[2], job.queries = 2, job.q.data = text.v.memory, job.out.data = out;
    return aura_append_attend(w->cache, &in, 1, &job, 1, NULL);
}

/* More sequences than have room on the stack. */
static aura_status step(struct world *w)
{
    aura_step_args args = AURA_STEP_ARGS_INIT;
    args.seqs = &w->crowd[3], args.n_seqs = 20, args.tokens = 3;
    args.k.data = args.q.data = text.k.memory, args.v.data = text.v.memory, args.out.data = out;
    return aura_step(w->cache, &args, NULL);
}

static aura_status calibration_create(struct world *w)
{
    aura_calibration_config config = AURA_CALIBRATION_CONFIG_INIT;
    config.q_heads = config.kv_heads = 1, config.k_dim = 64;
    return aura_calibration_create(w->ctx, &config, &w->new_calibration);
}

static aura_status profile_create(struct world *w)
{
    return aura_profile_create(w->ctx, 3, &w->new_profile);
}

static aura_status profile_set(struct world *w)
{
    return aura_profile_set(w->profile, 1, 1, 64, balance + 1);
}

static aura_status profile_replace(struct world *w)
{
    return aura_profile_set(w->profile, 0, 2, 64, balance);
}

static aura_status profile_put(struct world *w)
{
    static float metric[2 * 64 * 65 / 2];
    aura_profile_layer with = AURA_PROFILE_LAYER_INIT;
    with.kv_heads = 2, with.k_dim = with.v_dim = 64, with.balance = with.v_balance = balance;
    with.k_metric = with.v_metric = metric;
    return aura_profile_put(w->profile, 0, &with);
}

static aura_status profile_save(struct world *w)
{
    return aura_profile_save(w->profile, file_path("out"));
}

static aura_status profile_load(struct world *w)
{
    return aura_profile_load(w->ctx, file_path("profile"), &w->new_profile);
}

static aura_status cache_save(struct world *w)
{
    return aura_cache_save(w->cache, file_path("out"), NULL);
}

static aura_status cache_load(struct world *w)
{
    return aura_cache_load(w->ctx, file_path("cache"), NULL, &w->new_cache);
}

static aura_status seq_save(struct world *w)
{
    return aura_seq_save(w->cache, w->seq[1], file_path("out"), NULL);
}

static aura_status seq_load(struct world *w)
{
    return aura_seq_load(w->cache, file_path("seq"), NULL, &w->new_seq);
}

static aura_status model_create_again(struct world *w)
{
    return make_model(w->ctx, w->profile, &w->new_model);
}

static aura_status model_seq_create(struct world *w)
{
    return aura_model_seq_create(w->model, &w->new_seq);
}

static aura_status model_seq_fork(struct world *w)
{
    return aura_model_seq_fork(w->model, w->model_seq, TOKENS, &w->new_seq);
}

static aura_status model_seqs_select(struct world *w)
{
    static const uint32_t which[] = {0, 0};
    aura_seq to[2] = {0, 0};
    aura_status status = aura_model_seqs_select(w->model, &w->model_seq, 1, which, 2, to);
    w->new_seq = to[1];
    return status;
}

static aura_status model_seq_reserve(struct world *w)
{
    return aura_model_seq_reserve(w->model, w->model_seq, 6000);
}

static void negate(void *user, uint32_t layer, uint64_t token, uint32_t head, float *key)
{
    (void)user, (void)layer, (void)token, (void)head;
    for (int d = 0; d < 64; d++)
        key[d] = -key[d];
}

static aura_status seq_remove(struct world *w)
{
    return aura_seq_remove(w->cache, w->seq[0], 5, 7);
}

static aura_status seq_map_keys(struct world *w)
{
    return aura_seq_map_keys(w->cache, w->seq[0], 5, 70, negate, NULL);
}

static aura_status seq_shift(struct world *w)
{
    return aura_seq_shift(w->cache, w->seq[0], 5, 7, negate, NULL);
}

static aura_status model_seq_remove(struct world *w)
{
    return aura_model_seq_remove(w->model, w->model_seq, TOKENS - 20, 7);
}

static aura_status model_seq_map_keys(struct world *w)
{
    return aura_model_seq_map_keys(w->model, w->model_seq, TOKENS - 20, 7, negate, NULL);
}

static aura_status model_seq_shift(struct world *w)
{
    return aura_model_seq_shift(w->model, w->model_seq, TOKENS - 20, 7, negate, NULL);
}

static aura_status model_save(struct world *w)
{
    return aura_model_save(w->model, file_path("out"), NULL);
}

static aura_status model_load(struct world *w)
{
    return aura_model_load(w->ctx, file_path("model"), NULL, &w->new_model);
}

static aura_status model_seq_save(struct world *w)
{
    return aura_model_seq_save(w->model, w->model_seq, file_path("out"), NULL);
}

static aura_status model_seq_load(struct world *w)
{
    return aura_model_seq_load(w->model, file_path("model"), NULL, &w->new_seq);
}

/* ---- the same with sinks and sources ---- */

static int put(void *user, const void *data, size_t bytes)
{
    size_t *at = user;
    memcpy(out + *at % (OUT_BYTES / 2), data, bytes % (OUT_BYTES / 2));
    *at += bytes;
    return 0;
}

static ptrdiff_t get(void *user, void *data, size_t bytes)
{
    struct bytes *left = user;
    size_t n = bytes < left->size ? bytes : left->size;
    memcpy(data, left->data, n);
    left->data += n, left->size -= n;
    return (ptrdiff_t)n;
}

enum { SEQ, CACHE, MODEL, MODEL_SEQ };

static aura_status write_one(struct world *w, int what)
{
    aura_sink sink = AURA_SINK_INIT;
    size_t at = 0;
    sink.write = put, sink.user = &at;
    return what == SEQ     ? aura_seq_write(w->cache, w->seq[1], &sink, NULL)
           : what == CACHE ? aura_cache_write(w->cache, &sink, NULL)
           : what == MODEL ? aura_model_write(w->model, &sink, NULL)
                           : aura_model_seq_write(w->model, w->model_seq, &sink, NULL);
}

static aura_status size_one(struct world *w, int what)
{
    size_t bytes = 0;
    aura_status status = what == SEQ     ? aura_seq_size(w->cache, w->seq[1], NULL, &bytes)
                         : what == CACHE ? aura_cache_size(w->cache, NULL, &bytes)
                         : what == MODEL ? aura_model_size(w->model, NULL, &bytes)
                                         : aura_model_seq_size(w->model, w->model_seq, NULL, &bytes);
    if (!status)
        memcpy(out, &bytes, sizeof bytes);
    return status;
}

static aura_status read_one(struct world *w, int what)
{
    aura_source source = AURA_SOURCE_INIT;
    struct bytes file = read_file(file_path(what == SEQ ? "seq" : what == CACHE ? "cache" : "model")), left = file;
    source.read = get, source.user = &left;
    aura_status status = what == SEQ     ? aura_seq_read(w->cache, &source, NULL, &w->new_seq)
                         : what == CACHE ? aura_cache_read(w->ctx, &source, NULL, &w->new_cache)
                         : what == MODEL ? aura_model_read(w->ctx, &source, NULL, &w->new_model)
                                         : aura_model_seq_read(w->model, &source, NULL, &w->new_seq);
    free(file.data);
    return status;
}

#define FOUR(verb)                                                                                \
    static aura_status seq_##verb(struct world *w) { return verb##_one(w, SEQ); }                 \
    static aura_status cache_##verb(struct world *w) { return verb##_one(w, CACHE); }             \
    static aura_status model_##verb(struct world *w) { return verb##_one(w, MODEL); }             \
    static aura_status model_seq_##verb(struct world *w) { return verb##_one(w, MODEL_SEQ); }
FOUR(write)
FOUR(size)
FOUR(read)

static aura_status list_file(struct world *w)
{
    return aura_list_file(w->ctx, file_path("cache"), &w->new_listing);
}

static aura_status list_source(struct world *w)
{
    aura_source source = AURA_SOURCE_INIT;
    struct bytes file = read_file(file_path("model")), left = file;
    source.read = get, source.user = &left;
    aura_status status = aura_list_source(w->ctx, &source, &w->new_listing);
    free(file.data);
    return status;
}

static aura_status plan(struct world *w)
{
    aura_config config = cache_config();
    aura_plan_job job = AURA_PLAN_JOB_INIT;
    aura_plan_info info = AURA_PLAN_INFO_INIT;
    job.configs = &config, job.seqs = 3, job.tokens = 100, job.queries = 1;
    aura_status status = aura_plan(w->ctx, &job, &info);
    memcpy(out, &info, status ? 0 : sizeof info);
    return status;
}

static aura_status seq_extents(struct world *w)
{
    return aura_seq_extents(w->cache, w->seq[0], NULL, &w->new_extents);
}

static aura_status model_seq_extents(struct world *w)
{
    return aura_model_seq_extents(w->model, w->model_seq, NULL, &w->new_extents);
}

/* A sequence leaves, and is expected in the same cache or model. */
static aura_status expect_it(struct world *w, int model)
{
    aura_extents_info from = AURA_EXTENTS_INFO_INIT, to = from;
    aura_extents *leaving = NULL;
    aura_status status = model ? aura_model_seq_extents(w->model, w->model_seq, NULL, &leaving)
                               : aura_seq_extents(w->cache, w->seq[0], NULL, &leaving);
    if (!status)
        status = aura_extents_get_info(leaving, &from);
    if (!status)
        status = model ? aura_model_seq_expect(w->model, from.header, from.header_bytes, &w->new_extents)
                       : aura_seq_expect(w->cache, from.header, from.header_bytes, &w->new_extents);
    if (!status)
        status = aura_extents_get_info(w->new_extents, &to);
    for (size_t i = 0; !status && i < from.n; i++)
        memcpy(to.pieces[i].data, from.pieces[i].data, from.pieces[i].bytes);
    aura_extents_destroy(leaving);
    return status;
}

static aura_status seq_expect(struct world *w)
{
    return expect_it(w, 0);
}

static aura_status model_seq_expect(struct world *w)
{
    return expect_it(w, 1);
}

static aura_status seq_adopt(struct world *w)
{
    aura_status status = expect_it(w, 1);
    if (!status)
        status = aura_seq_adopt(w->new_extents, &w->new_seq);
    aura_extents_destroy(w->new_extents);
    w->new_extents = NULL;
    return status;
}

static aura_status page_codec_create(struct world *w)
{
    aura_config config = cache_config();
    return aura_page_codec_create(w->ctx, &config, LAYERS, &w->new_codec);
}

static aura_status import_rows(struct world *w)
{
    static float book[16];
    aura_rotation r = dense(64);
    aura_import_rows_args args = AURA_IMPORT_ROWS_ARGS_INIT;
    for (int i = 0; i < 16; i++)
        book[i] = (float)i - 7.5f;
    args.seq = w->seq[1], args.tokens = 260;
    args.k.bits = 4, args.k.codes = rows, args.k.norms = text.k.memory, args.k.codebook = book;
    args.v = args.k, args.k_rotation = &r;
    return aura_import_rows(w->cache, &args);
}

static aura_status export_rows(struct world *w)
{
    aura_rotation r = dense(64);
    aura_codebook book;
    aura_export_rows_args args = AURA_EXPORT_ROWS_ARGS_INIT;
    aura_codebook_get(AURA_TABLE_EXACT, 4, &book);
    args.seq = w->seq[0], args.tokens = 100;
    args.k.codebook = &book, args.k.rotation = &r, args.k.codes = out, args.k.norms = out + OUT_BYTES / 4;
    args.v = args.k, args.v.codes = out + OUT_BYTES / 2, args.v.norms = out + OUT_BYTES / 4 * 3;
    return aura_export_rows(w->cache, &args);
}

static aura_status import_tq(struct world *w)
{
    aura_import_tq_args args = AURA_IMPORT_TQ_ARGS_INIT;
    args.seq = w->wide_seq, args.tokens = args.capacity = 300;
    args.k.bits = 4, args.k.rows = rows, args.k.norms = (const float *)(const void *)text.k.memory;
    args.v = args.k;
    return aura_import_tq(w->wide, &args);
}

static aura_status export_tq(struct world *w)
{
    aura_export_tq_args args = AURA_EXPORT_TQ_ARGS_INIT;
    args.seq = w->wide_seq, args.tokens = args.capacity = WIDE_TOKENS;
    args.k.bits = 8, args.k.rows = out, args.k.norms = (float *)(void *)(out + OUT_BYTES / 4);
    args.v = args.k, args.v.rows = out + OUT_BYTES / 2, args.v.norms = (float *)(void *)(out + OUT_BYTES / 4 * 3);
    return aura_export_tq(w->wide, &args);
}

static const struct {
    const char *name;
    long least; /* allocations */
    aura_status (*call)(struct world *w);
} calls[] = {{"aura_ctx_create", 2, ctx_create},
             {"aura_rotate", 1, rotate},
             {"aura_encode", 1, encode},
             {"aura_cache_create", 2, cache_create},
             {"aura_cache_create", 6, cache_create_feedback},
             {"aura_cache_create", 4, cache_create_slots},
             {"aura_seq_create", 2, seq_create},
             {"aura_seq_fork", 3, seq_fork},
             {"aura_seq_reserve", 3, seq_reserve},
             {"aura_seq_copy", 1, seq_copy},
             {"aura_append", 3, append_three},
             {"aura_seq_remove", 2, seq_remove},
             {"aura_seq_map_keys", 2, seq_map_keys},
             {"aura_seq_shift", 2, seq_shift},
             {"aura_attend", 1, attend},
             {"aura_append_attend", 2, append_attend},
             {"aura_step", 2, step},
             {"aura_calibration_create", 1, calibration_create},
             {"aura_profile_create", 1, profile_create},
             {"aura_profile_set", 1, profile_set},
             {"aura_profile_set", 1, profile_replace},
             {"aura_profile_put", 6, profile_put},
             {"aura_profile_save", 1, profile_save},
             {"aura_profile_load", 2, profile_load},
             {"aura_cache_save", 3, cache_save},
             {"aura_cache_load", 8, cache_load},
             {"aura_seq_save", 3, seq_save},
             {"aura_seq_load", 5, seq_load},
             {"aura_model_cache_create", 4, model_create_again},
             {"aura_model_seq_create", 4, model_seq_create},
             {"aura_model_seq_fork", 6, model_seq_fork},
             {"aura_model_seqs_select", 6, model_seqs_select},
             {"aura_model_seq_reserve", 3, model_seq_reserve},
             {"aura_model_seq_remove", 1, model_seq_remove},
             {"aura_model_seq_map_keys", 1, model_seq_map_keys},
             {"aura_model_seq_shift", 1, model_seq_shift},
             {"aura_model_save", 4, model_save},
             {"aura_model_load", 12, model_load},
             {"aura_model_seq_save", 4, model_seq_save},
             {"aura_model_seq_load", 8, model_seq_load},
             {"aura_seq_write", 3, seq_write},
             {"aura_cache_write", 3, cache_write},
             {"aura_model_write", 4, model_write},
             {"aura_model_seq_write", 4, model_seq_write},
             {"aura_seq_size", 2, seq_size},
             {"aura_cache_size", 2, cache_size},
             {"aura_model_size", 3, model_size},
             {"aura_model_seq_size", 3, model_seq_size},
             {"aura_seq_read", 6, seq_read},
             {"aura_cache_read", 9, cache_read},
             {"aura_model_read", 13, model_read},
             {"aura_model_seq_read", 9, model_seq_read},
             {"aura_list_file", 1, list_file},
             {"aura_list_source", 2, list_source},
             {"aura_plan", 2, plan},
             {"aura_seq_extents", 4, seq_extents},
             {"aura_model_seq_extents", 5, model_seq_extents},
             {"aura_seq_expect", 8, seq_expect},
             {"aura_model_seq_expect", 9, model_seq_expect},
             {"aura_seq_adopt", 9, seq_adopt},
             {"aura_page_codec_create", 1, page_codec_create},
             {"aura_import_rows", 2, import_rows},
             {"aura_export_rows", 2, export_rows},
             {"aura_import_tq", 2, import_tq},
             {"aura_export_tq", 1, export_tq}};
enum { N_CALLS = sizeof calls / sizeof *calls };

/* The functions that allocate nothing. aura_truncate() and aura_slots_write() promise it; their own tests check it. */
static const char *const others[] = {
    "aura_version", "aura_status_text", "aura_last_error", "aura_dtype_bytes", "aura_cpu_isas", "aura_ctx_destroy", "aura_ctx_isas",
    "aura_codebook_get", "aura_signs", "aura_undo", "aura_row_bytes", "aura_decode", "aura_format_parse", "aura_format_name",
    "aura_cache_destroy", "aura_cache_get_info", "aura_cache_bytes", "aura_seq_release", "aura_seq_get_info", "aura_truncate",
    "aura_cache_decode", "aura_attend_workspace", "aura_slots_write", "aura_slots_reference", "aura_slots_clear",
    "aura_slots_decode", "aura_merge", "aura_calibration_destroy", "aura_calibration_keys", "aura_calibration_queries",
    "aura_calibration_next_text", "aura_calibration_balance", "aura_calibration_values", "aura_calibration_metric",
    "aura_calibration_k_balance", "aura_calibration_v_balance", "aura_profile_destroy", "aura_profile_get",
    "aura_extents_get_info", "aura_extents_destroy", "aura_page_codec_destroy", "aura_page_codec_bytes", "aura_pages_encode",
    "aura_pages_decode", "aura_snapshot_note", "aura_model_cache_destroy", "aura_cache_list", "aura_model_cache_list",
    "aura_listing_destroy", "aura_listing_get_info", "aura_listing_get_layer", "aura_listing_get_seq",
    "aura_model_cache_get_info", "aura_model_cache_layer", "aura_model_seq_release", "aura_model_seq_truncate", "aura_dequant",
    "aura_score", "aura_value", "aura_flash_p1", "aura_flash_pass2", "aura_flash_sdpa", "aura_flash_attn_vec",
    "aura_flash_attn_vec_reduce", "aura_tq_signs", "aura_tq_encode", "aura_tq_dequant", "aura_kv_copy"};
enum { N_OTHERS = sizeof others / sizeof *others };

/* ---- tests ------------------------------------------------------------------------------------------------------------------ */

/* One run, in which allocation number `fail` of the call fails. Returns whether the call made that many allocations. */
static int life_with_a_failure(aura_ctx *own, int i, long fail)
{
    struct world w;
    size_t base = memory.bytes;
    world_new(&w, own);
    uint32_t before = sum_world(&w);
    memory.failed = 0, memory.fail_in = fail;
    aura_status status = calls[i].call(&w);
    int failed = memory.failed;
    memory.fail_in = -1;
    EXPECT(status == (failed ? AURA_OUT_OF_MEMORY : AURA_OK), "%s, allocation %ld: %s", calls[i].name, fail,
           status ? aura_last_error() : "no error");
    if (failed) {
        EXPECT(strstr(aura_last_error(), "the allocator has no"), "%s: %s", calls[i].name, aura_last_error());
        EXPECT(sum_world(&w) == before, "%s, allocation %ld: something has changed", calls[i].name, fail);
        status = calls[i].call(&w);
        EXPECT(!status, "%s again, after allocation %ld failed: %s", calls[i].name, fail, aura_last_error());
    }
    EXPECT(sum_world(&w) != before, "%s: nothing happened", calls[i].name);
    world_free(&w);
    EXPECT(memory.bytes == base && !memory.wrong, "%s, allocation %ld: %zu bytes lost, %d wrong calls", calls[i].name, fail,
           memory.bytes - base, memory.wrong);
    return failed;
}

static void failed_allocations_lose_nothing(void)
{
    aura_ctx *own = counting_ctx(&memory, 0xee, 1);
    long all = 0;
    for (int i = 0; i < N_CALLS && test_bad_lines < 5; i++) {
        long failures = 0;
        while (failures < 100 && life_with_a_failure(own, i, failures) && test_bad_lines < 5)
            failures++;
        EXPECT(failures >= calls[i].least && failures < 100, "%s: %ld allocations to fail, at least %ld", calls[i].name,
               failures, calls[i].least);
        all += failures;
    }
    printf("  %d calls, %ld allocations\n", N_CALLS, all);
    aura_ctx_destroy(own);
    EXPECT(!memory.bytes, "%zu bytes lost", memory.bytes);
}

static int listed(const char *name, size_t n)
{
    int found = 0;
    for (int i = 0; i < N_CALLS && !found; i++)
        found += strlen(calls[i].name) == n && !memcmp(calls[i].name, name, n);
    for (int i = 0; i < N_OTHERS; i++)
        found += strlen(others[i]) == n && !memcmp(others[i], name, n);
    return found;
}

/* A function is AURA_API, some type, aura_ and its name, and an opening bracket. Returns how many the header has. */
static int functions_are_listed(const char *header)
{
    const char *slash = strrchr(__FILE__, '/');
    char path[512];
    snprintf(path, sizeof path, "%.*s../../include/%s", slash ? (int)(slash - __FILE__) + 1 : 0, __FILE__, header);
    struct bytes text = read_file(path);
    int functions = 0;
    if (!text.data)
        return 0;
    text.data[text.size] = 0;
    for (const char *at = (const char *)text.data; (at = strstr(at, "\nAURA_API ")); at++) {
        const char *end = strchr(at, '('), *name = end;
        while (isalnum((unsigned char)name[-1]) || name[-1] == '_')
            name--;
        EXPECT(listed(name, (size_t)(end - name)) == 1, "%.*s is listed %d times: does it allocate?", (int)(end - name), name,
               listed(name, (size_t)(end - name)));
        functions++;
    }
    free(text.data);
    return functions;
}

static void every_function_is_listed(void)
{
    static const char *const headers[] = {"aura.h", "aura_file.h", "aura_rows.h"};
    int functions = 0;
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        functions += functions_are_listed(headers[i]);
    EXPECT(functions > 80, "only %d functions in the headers", functions);
}

static void begin(void)
{
    aura_config config = cache_config(), wide = wide_config();
    struct world w;
    text = text_new(&config, 900), wide_text = text_new(&wide, 100);
    balance = some_balance(2, 64);
    matrix = calloc((size_t)WIDE * WIDE, sizeof *matrix);
    for (int i = 0; i < 64; i++)
        matrix[i * 64 + (i * 7 + 3) % 64] = i % 3 ? 1.f : -1.f; /* orthogonal */
    world_new(&w, ctx);
    aura_snapshot_options three = AURA_SNAPSHOT_OPTIONS_INIT, one = three;
    three.seqs = w.seq, three.n_seqs = 3, one.seqs = &w.model_seq, one.n_seqs = 1;
    EXPECT(!aura_cache_save(w.cache, file_path("cache"), &three) && !aura_seq_save(w.cache, w.seq[0], file_path("seq"), NULL) &&
               !aura_model_save(w.model, file_path("model"), &one) && !aura_profile_save(w.profile, file_path("profile")),
               "%s", aura_last_error());
    world_free(&w);
}

int main(void)
{
    static const char *const files[] = {"cache", "seq", "model", "profile", "out"};
    if (!files_begin() || aura_ctx_create(NULL, &ctx))
        return 1;
    begin();
    RUN(failed_allocations_lose_nothing);
    RUN(every_function_is_listed);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        unlink(file_path(files[i]));
    text_free(&text), text_free(&wide_text);
    free(balance), free(matrix);
    aura_ctx_destroy(ctx);
    files_end();
    return test_result();
}
