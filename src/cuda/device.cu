/* The device cache and its memory. */
#include "cache.cuh"
#include "search.cuh"

#include <math.h>
#include <mutex>
#include <new>
#include <stdlib.h>
#include <string.h>

extern "C" aura_status aura_cuda_probe(int device)
{
    const char *call = "aura_cuda_probe";
    int count = 0, major = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess)
        return cuda_status(NULL, call, error, "the CUDA runtime finds no device");
    if (device < 0 || device >= count)
        return aura_backend_fail(NULL, AURA_DEVICE, "%s: device %d; there are %d", call, device, count);
    if ((error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device)) != cudaSuccess)
        return cuda_status(NULL, call, error, "asking for the compute capability");
    if (major < 8)
        return aura_backend_fail(NULL, AURA_DEVICE, "%s: device %d has compute capability %d.x; 8.0 or more is needed", call,
                                 device, major);
    return AURA_OK;
}

cudaError_t aura_cuda_allow_shared(const void *kernel, size_t bytes)
{
    static std::mutex one_at_a_time;
    std::lock_guard<std::mutex> hold(one_at_a_time);
    cudaFuncAttributes now;
    const cudaError_t error = cudaFuncGetAttributes(&now, kernel);
    if (error != cudaSuccess || (size_t)now.maxDynamicSharedSizeBytes >= bytes)
        return error;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

void (*aura_cuda_tell_launch)(const char *name);

aura_status aura_cuda_launch(const aura_cuda_cache *c, const char *call, const char *name, const void *kernel,
                             const struct launch &how, void **params)
{
    const cudaError_t error = cudaLaunchKernel(kernel, how.blocks, dim3(how.threads), params, how.shared_bytes, how.stream);
    if (error == cudaSuccess && aura_cuda_tell_launch)
        aura_cuda_tell_launch(name);
    return cuda_status(c->ctx, call, error, "launching a kernel");
}

/* ---- making one ---------------------------------------------------------------------------------------------------- */

static void copy_signs(uint32_t *words, const struct aura_rotation_plan *plan)
{
    for (uint32_t d = 0; plan && d < plan->dim; d++)
        words[d / 32] |= (uint32_t)(plan->negative[d / AURA_LANES] >> d % AURA_LANES & 1) << d % 32;
}

static void copy_levels(uint32_t *table, const struct aura_side *side)
{
    const uint32_t first = side->kind == AURA_TRELLIS_4 ? 16 : 0; /* levels above 0 suffice */
    for (uint32_t i = 0; aura_is_packed(side->kind) && aura_is_table(side->kind) && i < 16; i++)
        table[i / 4] |= (uint32_t)(side->level[first + i] + 64) << i % 4 * 8;
}

/* The signs of a Paley factor, from the plan, which has them for every coordinate. */
static void copy_paley(uint32_t *rows, const struct aura_rotation_plan *plan)
{
    for (uint32_t i = 0; plan && plan->outer > 1 && i < plan->outer; i++)
        for (uint32_t j = 0; j < plan->outer; j++) {
            uint32_t d = i * plan->inner;
            rows[i] |= (uint32_t)(plan->outer_negative[d / AURA_LANES * plan->outer + j] >> d % AURA_LANES & 1) << j;
        }
}

static cudaError_t copy_codecs(const aura_cuda_cache *c)
{
    struct dev_codecs d;
    const struct aura_backend_cache *r = &c->facts;
    memset(&d, 0, sizeof d);
    if (r->k_codec)
        aura_cuda_make_encoder(&d.encoder[0], r->k_codec, &r->layout->k), d.k_inner = r->k_rotate->inner,
            d.k_outer = r->k_rotate->outer;
    if (r->v_codec)
        aura_cuda_make_encoder(&d.encoder[1], r->v_codec, &r->layout->v), d.v_inner = r->v_rotate->inner,
            d.v_outer = r->v_rotate->outer;
    aura_cuda_make_encoder(&d.encoder[2], r->reference_codec, NULL);
    copy_paley(d.paley[0], r->k_rotate);
    copy_paley(d.paley[1], r->v_rotate);
    copy_paley(d.paley[2], r->v_undo);
    return cudaMemcpy((void *)c->dev.codecs, &d, sizeof d, cudaMemcpyHostToDevice);
}

/* Everything of dev_cache but the pointers. */
static void describe(struct dev_cache *d, const struct aura_backend_cache *r)
{
    const struct aura_layout *l = r->layout;
    memset(d, 0, sizeof *d);
    d->page_bytes = r->page_bytes;
    d->kv_heads = r->config->kv_heads;
    d->q_heads = r->config->q_heads;
    d->ratio = d->q_heads / d->kv_heads;
    d->k_kind = l->k.kind, d->v_kind = l->v.kind;
    d->k_dim = l->k.dim, d->v_dim = l->v.dim;
    d->head_bytes = l->head_bytes, d->tile_bytes = l->tile_bytes;
    d->v_at = l->v_at, d->k_scale_at = l->k_scale_at, d->v_scale_at = l->v_scale_at;
    d->reference_at = l->reference_at, d->reference_scale_at = l->reference_scale_at;
    d->pinned = r->pinned, d->rollback = r->rollback, d->rows = r->rows;
    d->has_reference = aura_keeps_references(l->k.kind, r->config->flags);
    d->open = !(r->config->flags & AURA_NO_OPEN);
    d->window = r->window;
    d->keep_first = r->config->keep_first < INT32_MAX ? r->config->keep_first : INT32_MAX; /* no sequence is as long */
    if (d->keep_first > (r->k_rotate || r->v_rotate ? r->pinned : 0)) /* else all that are kept have f16 rows */
        d->kept_tiles = (uint32_t)(((uint64_t)d->keep_first + AURA_TILE - 1) / AURA_TILE);
    copy_signs(d->k_sign, r->k_rotate);
    copy_signs(d->v_sign, r->v_rotate);
    copy_levels(d->k_table, &l->k);
    copy_levels(d->v_table, &l->v);
    d->k_norm = r->k_rotate ? r->k_rotate->norm : 1;
    d->v_norm = r->v_rotate ? r->v_rotate->norm : 1;
    d->k_step = l->k.step, d->v_step = l->v.step, d->reference_step = l->reference_step;
}

/* The parts, in order; with a NULL base only their size. */
size_t aura_cuda_cache_carve(aura_cuda_cache *c, uint8_t *base)
{
    const aura_config *f = c->facts.config;
    size_t rows = (size_t)c->seqs * f->kv_heads * c->facts.rows * sizeof(__half);
    size_t balance = (size_t)f->kv_heads * f->k_dim * 4, v_balance = (size_t)f->kv_heads * f->v_dim * 4;
    struct {
        void **to;
        size_t bytes;
    } parts[] = {
        {(void **)&c->dev.table, (size_t)c->seqs * c->table_pages * 4},
        {(void **)&c->dev.k_rows, c->facts.k_rotate ? rows * f->k_dim : 0},
        {(void **)&c->dev.v_rows, c->facts.v_rotate ? rows * f->v_dim : 0},
        {(void **)&c->dev.codecs, sizeof(struct dev_codecs)},
        {(void **)&c->dev.balance, c->facts.balance ? balance : 0},
        {(void **)&c->dev.inverse_balance, c->facts.balance ? balance : 0},
        {(void **)&c->dev.v_balance, c->facts.v_balance ? v_balance : 0},
        {(void **)&c->dev.v_inverse_balance, c->facts.v_balance ? v_balance : 0},
        {(void **)&c->dev.k_metric, c->facts.k_metric ? (size_t)f->kv_heads * metric_floats(f->k_dim) * 4 : 0},
        {(void **)&c->dev.v_metric, c->facts.v_metric ? (size_t)f->kv_heads * metric_floats(f->v_dim) * 4 : 0},
    };
    size_t at = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (base)
            *parts[i].to = parts[i].bytes ? base + at : NULL;
        at += (parts[i].bytes + 255) / 256 * 256;
    }
    return at;
}

/* The metrics of a side, by panels: what is on the diagonal and above it is 0. */
static cudaError_t copy_metrics(const float *to, const struct aura_metric *metric, uint32_t heads)
{
    std::vector<float> all;
    for (uint32_t h = 0; metric && h < heads; h++) {
        const uint32_t dim = metric[h].dim;
        for (uint32_t first = 0; first < dim; first += PANEL)
            for (uint32_t j = first; j < dim; j++)
                all.insert(all.end(), metric[h].l + (size_t)j * dim + first, metric[h].l + (size_t)j * dim + first + PANEL);
        all.insert(all.end(), metric[h].weight, metric[h].weight + dim);
    }
    return all.empty() ? cudaSuccess : cudaMemcpy((void *)to, all.data(), all.size() * sizeof(float), cudaMemcpyHostToDevice);
}

/* Factors of a side and their inverses; none where the cache has none. */
static cudaError_t copy_balance(const float *to, const float *to_inverse, const float *from, const float *inverse, size_t n)
{
    if (!from)
        return cudaSuccess;
    cudaError_t error = cudaMemcpy((void *)to, from, n * sizeof *from, cudaMemcpyHostToDevice);
    return error == cudaSuccess ? cudaMemcpy((void *)to_inverse, inverse, n * sizeof *from, cudaMemcpyHostToDevice) : error;
}

static aura_status clear_tables(aura_cuda_cache *c, const char *call)
{
    const struct aura_backend_cache *f = &c->facts;
    const size_t heads = f->config->kv_heads;
    cudaError_t error = cudaMemset(c->dev.table, 0, (size_t)c->seqs * c->table_pages * 4);
    if (error == cudaSuccess)
        error = cudaMemset(c->dev.seqs, 0, c->seqs * sizeof(struct dev_seq));
    if (error == cudaSuccess)
        error = copy_codecs(c);
    if (error == cudaSuccess)
        error = copy_balance(c->dev.balance, c->dev.inverse_balance, f->balance, f->inverse_balance, heads * f->config->k_dim);
    if (error == cudaSuccess)
        error = copy_balance(c->dev.v_balance, c->dev.v_inverse_balance, f->v_balance, f->v_inverse_balance,
                             heads * f->config->v_dim);
    if (error == cudaSuccess)
        error = copy_metrics(c->dev.k_metric, f->k_metric, c->dev.kv_heads);
    if (error == cudaSuccess)
        error = copy_metrics(c->dev.v_metric, f->v_metric, c->dev.kv_heads);
    return cuda_status(c->ctx, call, when_done(error), "clearing the tables");
}

aura_status aura_cuda_cache_finish(aura_cuda_cache *c, const char *call)
{
    c->dev.n_seqs = c->seqs;
    c->dev.table_stride = c->table_pages;
    c->known = (struct dev_seq *)calloc(c->seqs, sizeof *c->known);
    if (!c->known)
        return aura_backend_fail(c->ctx, AURA_OUT_OF_MEMORY, "%s: no memory for %u sequences", call, c->seqs);
    aura_status status = clear_tables(c, call);
    if (!status)
        status = aura_cuda_prepare_append(c, call);
    if (!status)
        status = aura_cuda_prepare_attend(c, call);
    return status ? status : aura_cuda_prepare_prefill(c, call);
}

static aura_status open_device(aura_cuda_cache *c, const char *call)
{
    int sms = 0, shared = 0;
    cudaError_t error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, c->device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, c->device);
    c->multiprocessors = (uint32_t)sms;
    c->shared_limit = (size_t)shared;
    return cuda_status(c->ctx, call, error, "asking for the device's properties");
}

/* Whether the device holds sides of this kind: plain numbers, and the widths that it has kernels for. 0 is the default. */
static bool has_kind(aura_kind kind)
{
#define IS_IT(width, ...) || (int)kind == width
    return kind == 0 || !aura_is_packed((uint32_t)kind) AURA_CUDA_CODES(IS_IT);
#undef IS_IT
}

/* Of the dims that an append takes; the last of the list is the largest. */
static uint32_t largest_dim(void)
{
#define DIM_OF(name, dim) dim,
    static const uint32_t dims[] = {AURA_CUDA_APPEND(DIM_OF)};
#undef DIM_OF
    return dims[sizeof dims / sizeof *dims - 1];
}

/* Whether vectors of that dim need no zeros; those that are larger than all are somebody else's to refuse. */
static bool is_stored_as_it_is(uint32_t dim)
{
    static const uint32_t dims[] = {AURA_DIMS(AURA_DIM_ITEM)};
    bool smaller = false;
    for (uint32_t d : dims) {
        if (d == dim)
            return true;
        smaller |= d > dim;
    }
    return !smaller;
}

aura_status aura_cuda_check_kind(const aura_ctx *ctx, const char *call, const aura_config *config)
{
    if (!config->q_heads)
        return aura_backend_fail(ctx, AURA_UNSUPPORTED, "%s: q_heads is 0; the device has to know it when the cache is made", call);
    if (config->flags & AURA_LEARN)
        return aura_backend_fail(ctx, AURA_UNSUPPORTED, "%s: AURA_LEARN; the device does not learn", call);
    if (!has_kind(config->format.k) || !has_kind(config->format.v))
        return aura_backend_fail(ctx, AURA_UNSUPPORTED, "%s: format k %d, v %d; the device has no kernels for it", call,
                                 (int)config->format.k, (int)config->format.v);
    if (!is_stored_as_it_is(config->k_dim) || !is_stored_as_it_is(config->v_dim ? config->v_dim : config->k_dim))
        return aura_backend_fail(ctx, AURA_UNSUPPORTED, "%s: k_dim %u, v_dim %u; the device has no dims that are stored with zeros",
                                 call, config->k_dim, config->v_dim);
    if (config->k_dim > largest_dim() || config->v_dim > largest_dim())
        return aura_backend_fail(ctx, AURA_UNSUPPORTED, "%s: k_dim %u, v_dim %u; the device has kernels up to %u", call,
                                 config->k_dim, config->v_dim, largest_dim());
    return AURA_OK;
}

/* What does not depend on the cache itself. */
aura_status aura_cuda_check_config(aura_ctx *ctx, const char *call, const aura_cuda_config *config)
{
    const aura_cuda_allocator *a = &config->allocator;
    if (!config->cache.budget_bytes || config->seqs > 65536 || config->seq_tokens >= 1ull << 31 || config->batch_invariant > 1)
        return aura_backend_fail(ctx, AURA_BAD_ARGUMENT,
                                 "%s: budget_bytes %zu (must be given), seqs %u (at most 65536), seq_tokens %llu (below 2^31) or "
                                 "batch_invariant %u (0 or 1)", call, config->cache.budget_bytes, config->seqs,
                                 (unsigned long long)config->seq_tokens, config->batch_invariant);
    if (config->cache.slots >= 1ull << 31)
        return aura_backend_fail(ctx, AURA_TOO_LARGE, "%s: %llu slots (below 2^31)", call, (unsigned long long)config->cache.slots);
    if (!a->alloc != !a->free)
        return aura_backend_fail(ctx, AURA_BAD_ARGUMENT, "%s: half an allocator: give alloc and free, or neither", call);
    return AURA_OK;
}

aura_status aura_cuda_cache_begin(aura_ctx *ctx, const char *call, const aura_config *config, const aura_cuda_config *with,
                                  aura_cuda_cache **cache)
{
    aura_status status = aura_cuda_check_kind(ctx, call, config);
    if (status)
        return status;
    aura_cuda_cache *c = new (std::nothrow) aura_cuda_cache();
    if (!c)
        return aura_backend_fail(ctx, AURA_OUT_OF_MEMORY, "%s: no memory for the handle", call);
    *cache = c;
    aura_config shape = *config;
    shape.budget_bytes = 0;
    shape.slots = config->slots ? 1 : 0; /* the CPU would take memory for all of them */
    c->ctx = ctx;
    c->device = with->device;
    c->seqs = config->slots ? 1 : with->seqs ? with->seqs : 64;
    c->batch_invariant = with->batch_invariant;
    if ((status = aura_cache_create(ctx, &shape, &c->shape)))
        return status;
    aura_backend_describe(&c->facts, c->shape);
    describe(&c->dev, &c->facts);
    return open_device(c, call);
}

/* Tokens that a sequence can have, in pages. page: bytes of one, in all layers together. */
uint32_t aura_cuda_table_pages(const aura_cuda_config *config, size_t page)
{
    const size_t most = config->cache.budget_bytes / page;
    const uint64_t tokens = config->seq_tokens;
    return (uint32_t)(tokens ? (tokens + AURA_PAGE - 1) / AURA_PAGE : most < (1u << 23) ? most : 1u << 23);
}

extern "C" aura_status aura_cuda_cache_create(aura_ctx *ctx, const aura_cuda_config *config, aura_cuda_cache **cache)
{
    const char *call = "aura_cuda_cache_create";
    if (!ctx || !config || !cache)
        return aura_backend_fail(ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call, !ctx ? "ctx" : config ? "cache" : "config");
    if (config->size != sizeof *config)
        return aura_backend_fail(ctx, AURA_BAD_ARGUMENT, "%s: config.size is %zu, this library knows %zu", call, config->size,
                                 sizeof *config);
    aura_status status = aura_cuda_check_config(ctx, call, config);
    if (status || (status = aura_cuda_check_kind(ctx, call, &config->cache)) || (status = aura_cuda_probe(config->device)))
        return status;
    struct aura_cuda_store *store = new (std::nothrow) aura_cuda_store();
    if (!store)
        return aura_backend_fail(ctx, AURA_OUT_OF_MEMORY, "%s: no memory for the handle", call);
    on_device here(config->device);
    aura_cuda_cache *c = NULL;
    store->ctx = ctx, store->device = config->device, store->budget = config->cache.budget_bytes;
    store->allocator = config->allocator;
    status = aura_cuda_cache_begin(ctx, call, &config->cache, config, &c);
    if (c)
        store->layers.push_back(c);
    if (!status) {
        const uint64_t slots = config->cache.slots;
        c->table_pages = slots ? (uint32_t)aura_pages_of(slots) : aura_cuda_table_pages(config, c->facts.page_bytes);
        status = aura_cuda_store_make(store, call);
        if (!status && slots)
            status = aura_cuda_make_slots(c, call, slots);
    }
    if (status) {
        aura_cuda_store_unmake(store);
        delete store;
        return status;
    }
    *cache = c;
    return AURA_OK;
}

extern "C" void aura_cuda_cache_destroy(aura_cuda_cache *c)
{
    if (!c || c->is_layer)
        return;
    struct aura_cuda_store *store = c->store;
    aura_cuda_store_unmake(store);
    delete store;
}

extern "C" aura_status aura_cuda_cache_resize(aura_cuda_cache *c, size_t budget_bytes)
{
    const char *call = "aura_cuda_cache_resize";
    aura_status status = aura_cuda_check_alone(c, call);
    return status ? status : aura_cuda_store_resize(c->store, call, budget_bytes);
}

/* What all sequences of a cache have. It waits for the device. */
static aura_status count_tokens(const aura_cuda_cache *c, const char *call, aura_cuda_cache_info *info)
{
    struct dev_seq *state = (struct dev_seq *)malloc(c->seqs * sizeof *state);
    if (!state)
        return aura_backend_fail(c->ctx, AURA_OUT_OF_MEMORY, "%s: no memory for %u sequences", call, c->seqs);
    on_device here(c->device);
    const aura_status status =
        cuda_status(c->ctx, call, cudaMemcpy(state, c->dev.seqs, c->seqs * sizeof *state, cudaMemcpyDeviceToHost),
                    "reading the sequences");
    uint64_t tiles = c->tiles_of_released;
    for (uint32_t i = 0; i < c->seqs && !status; i++) {
        if (!c->page_table.used[i])
            continue;
        const struct aura_page_list *list = &c->page_table.seq[i];
        const uint64_t first = aura_window_first(&c->dev.window, top_of(state[i])), kept = c->dev.window.kept * AURA_PAGE;
        info->seqs_in_use++;
        info->tokens += first * AURA_PAGE <= kept || state[i].len <= kept ? state[i].len
                                                                        : kept + state[i].len - first * AURA_PAGE;
        info->holders += aura_list_count(&c->page_table.window, list);
        tiles += state[i].tiles;
    }
    info->token_slots = info->holders * AURA_PAGE;
    info->tiles_closed = tiles * c->dev.kv_heads;
    free(state);
    return status;
}

extern "C" aura_status aura_cuda_cache_get_info(const aura_cuda_cache *c, aura_cuda_cache_info *info)
{
    const char *call = "aura_cuda_cache_get_info";
    if (!c || !info || info->size != sizeof *info)
        return aura_backend_fail(c ? c->ctx : NULL, AURA_BAD_ARGUMENT, "%s: cache or info is NULL, or info.size is wrong", call);
    aura_cuda_cache_info now = AURA_CUDA_CACHE_INFO_INIT;
    const struct page_class &k = c->store->classes[c->page_class];
    const aura_status status = count_tokens(c, call, &now);
    if (status)
        return status;
    now.config = *c->facts.config;
    now.config.slots = c->slots;
    now.bytes = c->store->fixed_bytes + c->store->arena_bytes;
    now.budget_bytes = c->store->budget;
    now.page_bytes = c->facts.page_bytes;
    now.pages = k.given;
    now.free_pages = k.pool.n_free;
    now.shared_pages = k.pool.shared;
    now.pages_copied = c->pages_copied;
    now.seqs = c->seqs;
    now.multiprocessors = c->multiprocessors;
    *info = now;
    return AURA_OK;
}
