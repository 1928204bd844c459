/* aura_cuda_attend: checks a call, chooses a kernel, launches it. */
#include "cache.cuh"
#include "cut.h"

#include <math.h>
#include <new>

static const struct attend_kernel *each_kernel(size_t i)
{
#define LIST(kind, ...) fused_kernels_b##kind(), wide_kernels_b##kind(),
    static const struct attend_kernels lists[] = {AURA_CUDA_KINDS(LIST) fused_kernels_few(), fused_kernels_trellis()};
#undef LIST
    for (const struct attend_kernels &l : lists) {
        if (i < l.n)
            return &l.list[i];
        i -= l.n;
    }
    return NULL;
}

static const uint32_t list_bytes = (ATTEND_MAX_SEQS + 1) * 4; /* of the list of sequences, in shared memory */

/* Keeps what takes this cache on this device, ready to be launched. Kernels for many rows have code for sm_90 alone; some have no
 * room for a list of many sequences, and such calls take another. */
static aura_status add_kernel(aura_cuda_cache *c, const char *call, struct attend_kernel k)
{
    int blocks = 0;
    cudaFuncAttributes known;
    const uint32_t least = k.tile_rows ? 33 * 4 : list_bytes;
    if (k.shared_bytes + least > c->shared_limit)
        return AURA_OK;
    if (k.tile_rows && cudaFuncGetAttributes(&known, k.run) != cudaSuccess) {
        cudaGetLastError();
        return AURA_OK;
    }
    const size_t most = k.shared_bytes + list_bytes;
    cudaError_t error = aura_cuda_allow_shared(k.run, most < c->shared_limit ? most : c->shared_limit);
    if (error == cudaSuccess)
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, k.run, (int)k.threads, k.shared_bytes + 64);
    if (error != cudaSuccess)
        return cuda_status(c->ctx, call, error, "preparing a kernel");
    k.blocks_per_sm = k.blocks_per_sm && (int)k.blocks_per_sm < blocks ? k.blocks_per_sm : (uint32_t)blocks;
    if (k.blocks_per_sm)
        c->kernels.push_back(k);
    return k.blocks_per_sm && k.tile_rows ? aura_cuda_make_tile_map(c, call, k.tile_rows) : AURA_OK;
}

/* What the fused kernels were compiled for: see struct shape. */
static int has_fused_layout(const struct dev_cache *d)
{
    const uint32_t keys = aura_bits_of(d->k_kind) * d->k_dim * 4, both = keys + aura_bits_of(d->v_kind) * d->v_dim * 4;
    const uint32_t tile = both + 128;
    return d->v_at == keys && d->k_scale_at == both && d->v_scale_at == both + 64 && d->tile_bytes == tile &&
           d->reference_at == AURA_PAGE_TILES * tile && d->reference_scale_at == d->reference_at + d->k_dim;
}

aura_status aura_cuda_prepare_attend(aura_cuda_cache *c, const char *call)
{
    const struct attend_kernel *k;
    aura_status status = AURA_OK;
    for (size_t i = 0; !status && (k = each_kernel(i)); i++)
        if (k->kind == c->dev.k_kind && (k->v_kind ? k->v_kind : k->kind) == c->dev.v_kind && k->dim == c->dev.k_dim &&
            k->dim == c->dev.v_dim &&
            has_fused_layout(&c->dev))
            status = add_kernel(c, call, *k);
    struct attend_kernel list[2];
    const struct attend_kernels general = general_kernels(&c->dev, list);
    for (uint32_t i = 0; !status && i < general.n; i++)
        status = add_kernel(c, call, general.list[i]);
    if (!status && c->kernels.empty())
        status = aura_backend_fail(c->ctx, AURA_UNSUPPORTED,
                                   "%s: no kernel for dims %u and %u fits into this device's shared memory",
                               call, c->dev.k_dim, c->dev.v_dim);
    return status;
}

static bool has_options(const aura_cuda_attend_args *a)
{
    return a->softcap > 0 || a->alibi || a->mask;
}

/* Whether queries say what they see. */
static bool has_ranges(const aura_cuda_attend_args *a)
{
    return a->from || a->until;
}

/* What decides which kernel a call takes. */
struct wanted {
    uint32_t planes, rows, seqs; /* rows: of a unit */
    bool options, wide, kept;
};

/* Whether rows see codes from beyond their window. */
static bool keeps_tiles(const aura_cuda_cache *c, const aura_cuda_attend_args *a)
{
    return c->dev.kept_tiles && !a->from && aura_window_of_call(a->window, c->facts.config->window) <= UINT32_MAX;
}

/* The rule: a general kernel where there is no other, and where tiles are kept, as fused kernels walk over one range of tiles.
 * Kernels for many rows cost more to begin with. They are used where the caller says that sequences are long; and where all rows
 * of a call are a crowd, unless the caller of up to 16 queries wants two planes, as their weights are f16. Not in a batch-invariant
 * cache, which has one kernel for long and short sequences; nor for scales below 0, since they hide tokens by factors above 0.
 * They may have more planes than are asked for. Of what is left, the kernel whose blocks hold the rows with the least to spare, or,
 * where none does, that with most; of two such, the first, which has fewer planes. */
enum {
    WIDE_ROWS = 9, CROWD_ROWS = 17,      /* of a KV head, at least: of long sequences; of a crowd */
    CROWD = 4096, CROWD_OF_MORE = 2048   /* rows of all KV heads and sequences; where each has more than 16 queries */
};

static struct wanted wanted_of(const aura_cuda_cache *c, const aura_cuda_attend_args *a)
{
    const uint32_t rows = a->queries * c->dev.ratio;
    const uint64_t all = (uint64_t)rows * c->dev.kv_heads * a->n_seqs;
    const bool more = a->queries > FEW_QUERIES;
    const bool crowd = rows >= CROWD_ROWS && (more ? all >= CROWD_OF_MORE : all >= CROWD && a->planes != 2);
    return {aura_planes_of(c->dev.k_kind, a->planes), rows, a->n_seqs, has_options(a),
            (crowd || (a->long_seqs && rows >= WIDE_ROWS)) && !c->batch_invariant && a->scale >= 0, keeps_tiles(c, a)};
}

static const struct attend_kernel *choose(const aura_cuda_cache *c, const struct wanted &w)
{
    const struct attend_kernel *best = NULL;
    for (const struct attend_kernel &k : c->kernels) {
        if (k.kind ? (k.tile_rows ? k.planes < w.planes : k.planes != w.planes) || w.kept : best && best->kind)
            continue;
        if (k.tile_rows && (!w.wide || (k.no_options && w.options) || 2 * w.rows <= k.rows || /* half of it would be idle */
                            k.shared_bytes + (w.seqs + 1) * 4 > c->shared_limit))
            continue;
        if (!best || (k.tile_rows && !best->tile_rows) ||
            (!k.tile_rows == !best->tile_rows &&
             (best->rows < w.rows ? k.rows > best->rows : k.rows >= w.rows && k.rows < best->rows)))
            best = &k;
    }
    return best;
}

static uint32_t grid_of(const aura_cuda_cache *c, const struct attend_kernel *k)
{
    return c->multiprocessors * k->blocks_per_sm;
}

static uint32_t row_blocks_of(const struct attend_kernel *k, uint32_t rows)
{
    return (rows + k->rows - 1) / k->rows;
}

/* Of the whole grid. */
static size_t warps_of(const aura_cuda_cache *c, const struct attend_kernel *k)
{
    return (size_t)grid_of(c, k) * (k->threads / 32);
}

/* With a fixed cut: tasks of a call of so many units, at most. */
static size_t tasks_of(const aura_cuda_cache *c, const struct attend_kernel *k, size_t units)
{
    const uint64_t rows = c->dev.rows / AURA_TILE + 3, kept = c->dev.kept_tiles ? 3 : 0; /* they begin and end nodes of their own */
    return aura_cut_most_tasks(units, warps_of(c, k), (uint64_t)c->table_pages * AURA_PAGE_TILES, rows + kept);
}

/* Partial results that a call may leave. */
static size_t partials_of(const aura_cuda_cache *c, const struct attend_kernel *k, size_t units)
{
    return c->batch_invariant ? tasks_of(c, k, units) + warps_of(c, k) * (AURA_CUT_LEVELS - 1) : grid_of(c, k) + units;
}

/* Counters of a call: of units, and with a fixed cut of nodes. */
static size_t counters_of(const aura_cuda_cache *c, const struct attend_kernel *k, size_t units)
{
    return units + (c->batch_invariant ? tasks_of(c, k, units) : 0);
}

/* ---- more than 16 queries -------------------------------------------------------------------------------------------
 *
 * They read codes too while that takes less time than to make images: a kernel reads them once for every block of rows, so there
 * is a number of blocks up to which it is so. Measured on an H200 (doc/speed.md): 8 blocks of the kernels for many rows, 32 of
 * others, of which trellis codes take the time of three. */
enum { WIDE_BLOCKS = 8, OTHER_BLOCKS = 32, TRELLIS_BLOCKS = 12 };

static uint32_t most_blocks_of(const aura_cuda_cache *c, const struct attend_kernel *k)
{
    const bool trellis = aura_is_trellis(c->dev.k_kind) || aura_is_trellis(c->dev.v_kind);
    return k->tile_rows ? WIDE_BLOCKS : trellis ? TRELLIS_BLOCKS : OTHER_BLOCKS;
}

/* What partial results take: numbers, then maxima and sums. */
static size_t partial_bytes(size_t rows, const struct attend_kernel *k)
{
    return rows * (k->dim * sizeof(float) + sizeof(float2));
}

/* Whether a call of more than 16 queries reads codes by this kernel: they are few enough, and there is room for what is left on the
 * way, which lies where images would. */
static bool takes_codes(const aura_cuda_cache *c, const aura_cuda_workspace *w, const struct attend_kernel *k,
                        const aura_cuda_attend_args *a)
{
    if (!k || (uint64_t)a->queries * c->dev.ratio > (uint64_t)most_blocks_of(c, k) * k->rows)
        return false;
    const size_t units = (size_t)a->n_seqs * c->dev.kv_heads * row_blocks_of(k, a->queries * c->dev.ratio);
    return units <= w->counters && partial_bytes(partials_of(c, k, units) * k->rows, k) <= w->prefill.image_bytes;
}

/* The kernel by which it does, or NULL: the one that a call of fewer queries would take, or where that needs too much room the
 * fused one. None in a batch-invariant cache, in which a row may not depend on how many queries are asked with it. */
static const struct attend_kernel *choose_for_more(const aura_cuda_cache *c, const aura_cuda_workspace *w,
                                                   const aura_cuda_attend_args *a)
{
    struct wanted wanted = wanted_of(c, a);
    const struct attend_kernel *k = c->batch_invariant || c->by_images ? NULL : choose(c, wanted);
    if (!k || takes_codes(c, w, k, a))
        return k;
    wanted.wide = false;
    k = choose(c, wanted);
    return takes_codes(c, w, k, a) ? k : NULL;
}

/* ---- workspace ----------------------------------------------------------------------------------------------------- */

/* The most that a call of up to so many sequences and queries needs, whichever kernel it takes. */
static void plan_workspace(const aura_cuda_cache *c, aura_cuda_workspace *w, uint32_t seqs, uint32_t queries)
{
    for (const struct attend_kernel &k : c->kernels) {
        const uint32_t least_rows = 4; /* of a kernel; all have two, four ... times as many */
        if ((k.rows > least_rows && 2 * queries * c->dev.ratio <= k.rows) || (k.tile_rows && c->batch_invariant))
            continue; /* choose() takes none with so much to spare */
        size_t units = (size_t)seqs * c->dev.kv_heads * row_blocks_of(&k, queries * c->dev.ratio);
        size_t rows = partials_of(c, &k, units) * k.rows;
        const size_t counters = counters_of(c, &k, units);
        w->counters = counters > w->counters ? counters : w->counters;
        w->partial_rows = rows > w->partial_rows ? rows : w->partial_rows;
        w->partial_floats = rows * k.dim > w->partial_floats ? rows * k.dim : w->partial_floats;
    }
}

/* More than 16 queries that read codes: their counters, and the bytes of their partial results. */
static size_t plan_more(const aura_cuda_cache *c, aura_cuda_workspace *w, uint32_t seqs, uint32_t queries)
{
    size_t bytes = 0;
    for (const struct attend_kernel &k : c->kernels) {
        const uint64_t rows = (uint64_t)queries * c->dev.ratio, most = (uint64_t)most_blocks_of(c, &k) * k.rows;
        const size_t units = (size_t)seqs * c->dev.kv_heads * row_blocks_of(&k, (uint32_t)(rows < most ? rows : most));
        const size_t partials = partial_bytes(partials_of(c, &k, units) * k.rows, &k);
        w->counters = units > w->counters ? units : w->counters;
        bytes = partials > bytes ? partials : bytes;
    }
    return bytes;
}

/* For the public function named call. */
static aura_status create_workspace(const char *call, const aura_cuda_cache *c, uint32_t seqs, uint32_t queries, size_t image_bytes,
                                    aura_cuda_workspace **workspace)
{
    if (!c || !workspace)
        return aura_backend_fail(c ? c->ctx : NULL, AURA_BAD_ARGUMENT, "%s: %s is NULL", call, c ? "workspace" : "cache");
    if (seqs == 0 || seqs > ATTEND_MAX_SEQS || queries == 0 || queries > ATTEND_MAX_QUERIES)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: %u sequences (1 to %d) of %u queries (1 to %d)", call, seqs,
                                 (int)ATTEND_MAX_SEQS, queries, (int)ATTEND_MAX_QUERIES);
    aura_cuda_workspace *w = new (std::nothrow) aura_cuda_workspace();
    if (!w)
        return aura_backend_fail(c->ctx, AURA_OUT_OF_MEMORY, "%s: no memory for the handle", call);
    on_device here(c->device);
    w->cache = c;
    w->seqs = seqs;
    plan_workspace(c, w, seqs, queries < FEW_QUERIES ? queries : (uint32_t)FEW_QUERIES);
    const size_t more = queries > FEW_QUERIES && !c->batch_invariant ? plan_more(c, w, seqs, queries) : 0;
    const size_t o = (w->partial_floats * 4 + 255) / 256 * 256, ml = (w->partial_rows * 8 + 255) / 256 * 256;
    const size_t counters = (w->counters * 4 + 255) / 256 * 256;
    const size_t lists = (seqs * sizeof(uint2) + 255) / 256 * 256, listed = c->slots ? seqs * (sizeof(struct dev_seq) + 4) : 0;
    const size_t few = (o + ml + counters + lists + listed + 1023) / 1024 * 1024;
    const size_t many = queries > FEW_QUERIES ? aura_cuda_plan_prefill(w, seqs, queries, image_bytes, more) : 0;
    w->bytes = few + many;
    void *memory;
    aura_status status = aura_cuda_alloc(c->store, call, w->bytes, "allocating a workspace", &memory);
    w->memory = (uint8_t *)memory;
    if (!status) {
        w->partial = (float *)w->memory;
        w->partial_ml = (float2 *)(w->memory + o);
        w->counter = (uint32_t *)(w->memory + o + ml);
        w->seen = (uint2 *)(w->memory + o + ml + counters);
        w->listed = (struct dev_seq *)(w->memory + o + ml + counters + lists);
        w->ids = (uint32_t *)(w->listed + seqs);
        w->prefill.memory = many ? w->memory + few : NULL;
        status = cuda_status(c->ctx, call, when_done(cudaMemset(w->counter, 0, w->counters * 4)), "clearing a workspace");
    }
    if (status) {
        aura_cuda_workspace_destroy(w);
        return status;
    }
    *workspace = w;
    return AURA_OK;
}

extern "C" aura_status aura_cuda_workspace_create_sized(const aura_cuda_cache *c, uint32_t seqs, uint32_t queries,
                                                        size_t image_bytes, aura_cuda_workspace **workspace)
{
    return create_workspace("aura_cuda_workspace_create_sized", c, seqs, queries, image_bytes, workspace);
}

extern "C" aura_status aura_cuda_workspace_create(const aura_cuda_cache *c, uint32_t seqs, uint32_t queries,
                                                  aura_cuda_workspace **workspace)
{
    return create_workspace("aura_cuda_workspace_create", c, seqs, queries, 0, workspace);
}

extern "C" size_t aura_cuda_workspace_bytes(const aura_cuda_workspace *w)
{
    return w ? w->bytes : 0;
}

extern "C" void aura_cuda_workspace_destroy(aura_cuda_workspace *w)
{
    if (!w)
        return;
    on_device here(w->cache->device);
    aura_cuda_free(w->cache->store, w->memory, w->bytes);
    delete w;
}

void aura_cuda_trace(aura_cuda_workspace *w, float *trace, uint32_t tokens)
{
    w->trace = trace;
    w->trace_tokens = tokens;
}

/* ---- the call ------------------------------------------------------------------------------------------------------ */

static aura_status check_args(const aura_cuda_cache *c, const char *call, const aura_cuda_attend_args *a)
{
    if (a->size != sizeof *a)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: args.size is %zu, this library knows %zu", call, a->size,
                                 sizeof *a);
    if (c->slots ? a->seqs || !a->pages || !a->tokens || !a->page_stride : a->pages || a->tokens || a->page_stride)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, c->slots
                                 ? "%s: a cache of slots: pages, page_stride and tokens must be given, and no seqs"
                                 : "%s: pages, page_stride or tokens of a cache that has no slots", call);
    if ((!c->slots && !a->seqs) || !a->q.data || !a->out.data)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call,
                                 !c->slots && !a->seqs ? "seqs" : a->q.data ? "out.data" : "q.data");
    if (a->n_seqs == 0 || a->n_seqs > ATTEND_MAX_SEQS || a->queries == 0 || a->queries > ATTEND_MAX_QUERIES)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: %u sequences (1 to %d) of %u queries (1 to %d)", call, a->n_seqs,
                                 (int)ATTEND_MAX_SEQS, a->queries, (int)ATTEND_MAX_QUERIES);
    if (!aura_dtype_bytes(a->q.dtype) || !aura_dtype_bytes(a->out.dtype))
        return aura_backend_fail(c->ctx, AURA_UNSUPPORTED, "%s: q.dtype %d or out.dtype %d is not f32, f16 or bf16", call,
                                 (int)a->q.dtype, (int)a->out.dtype);
    const aura_config *f = c->facts.config;
    if ((f->window && a->window > f->window) || !aura_takes_at_once(f->window, f->max_queries, a->queries))
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT,
                                 "%s: window %llu of %u queries; the cache has a window of %llu, and %u at once", call,
                                 (unsigned long long)a->window, a->queries, (unsigned long long)f->window, f->max_queries);
    if (!aura_are_good_options(a->scale, a->softcap, a->planes, a->not_causal) || a->long_seqs > 1)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: scale %g, softcap %g, planes %u, not_causal %u or long_seqs %u is "
                                 "out of range", call, (double)a->scale, (double)a->softcap, a->planes, a->not_causal,
                                 a->long_seqs);
    return AURA_OK;
}

/* All that does not depend on the kernel. */
static struct dev_attend describe_call(const aura_cuda_cache *c, const aura_cuda_workspace *w, const aura_cuda_attend_args *a)
{
    struct dev_attend d = {};
    const float scale = aura_logit_scale(a->scale, c->dev.k_dim);
    d.c = c->dev;
    d.seqs = a->seqs, d.n_seqs = a->n_seqs, d.queries = a->queries, d.counts = a->counts;
    d.starts = a->starts, d.from = a->from, d.until = a->until;
    d.seen = has_ranges(a) ? w->seen : NULL;
    if (c->slots) {
        d.c.table = (uint32_t *)a->pages, d.c.table_stride = a->page_stride;
        d.c.seqs = w->listed, d.c.n_seqs = a->n_seqs, d.seqs = w->ids;
    }
    d.rows = a->queries * c->dev.ratio;
    d.q = view_of(&a->q, a->queries, c->dev.q_heads, c->dev.k_dim);
    d.out = view_of(&a->out, a->queries, c->dev.q_heads, c->dev.v_dim);
    d.lse = a->lse, d.mask = a->mask, d.sinks = a->sinks, d.alibi = a->alibi;
    d.mask_keys = a->mask_keys, d.not_causal = a->not_causal;
    d.by_ratio = aura_divider_of(c->dev.ratio);
    const uint64_t window = aura_window_of_call(a->window, c->facts.config->window);
    d.window = window > UINT32_MAX ? 0 : (uint32_t)window;
    if (a->from) /* that range is all that a query sees */
        d.c.keep_first = 0;
    if (!d.window || !d.c.keep_first)
        d.c.kept_tiles = 0;
    d.unit = scale * AURA_LOG2_E;
    d.softcap = a->softcap * AURA_LOG2_E;
    d.options = has_options(a);
    return d;
}

static struct dev_attend describe(const aura_cuda_cache *c, const aura_cuda_workspace *w, const aura_cuda_attend_args *a,
                                  const struct attend_kernel *k)
{
    struct dev_attend d = describe_call(c, w, a);
    d.options |= has_ranges(a); /* kernels then ask of every token whether a row sees it */
    d.row_blocks = row_blocks_of(k, d.rows);
    d.planes = aura_planes_of(c->dev.k_kind, a->planes) + 4 * aura_planes_of(c->dev.v_kind, a->planes);
    d.stage = general_stage(&c->dev);
    d.fixed_cut = c->batch_invariant;
    const uint32_t units = c->dev.kv_heads * d.row_blocks;
    d.even = aura_cut_even_of(units * d.n_seqs, grid_of(c, k));
    d.share = aura_cut_share((uint64_t)units * d.n_seqs, warps_of(c, k));
    d.scratch = (uint32_t)tasks_of(c, k, (size_t)units * d.n_seqs);
    d.by_splits = aura_divider_of(d.even.splits ? d.even.splits : 1), d.by_units = aura_divider_of(units);
    d.by_row_blocks = aura_divider_of(d.row_blocks);
    d.limit_of_call = aura_limit_of_call(&c->facts.layout->k, d.unit, a->planes);
    d.trace = w->trace, d.trace_tokens = w->trace_tokens;
    d.partial = w->partial, d.partial_ml = w->partial_ml, d.counter = w->counter;
    d.node_counter = w->counter + (size_t)units * d.n_seqs;
    return d;
}

/* A call that was checked: what is launched. */
struct ready {
    const struct attend_kernel *kernel; /* NULL: one for images */
    struct dev_attend d;
};

static aura_status too_small(const aura_cuda_cache *c, const char *call, const aura_cuda_attend_args *a)
{
    return aura_backend_fail(c->ctx, AURA_TOO_LARGE, "%s: the workspace is too small for %u sequences of %u queries", call,
                             a->n_seqs, a->queries);
}

static aura_status make_ready(const aura_cuda_cache *c, const aura_cuda_workspace *w, const char *call,
                              const aura_cuda_attend_args *args, struct ready *r)
{
    if (!c || !w || !args)
        return aura_backend_fail(c ? c->ctx : NULL, AURA_BAD_ARGUMENT, "%s: %s is NULL", call,
                                 !c ? "cache" : w ? "args" : "workspace");
    if (w->cache != c)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: the workspace was made for another cache", call);
    aura_status status = check_args(c, call, args);
    if (status)
        return status;
    if ((has_ranges(args) || c->slots) && args->n_seqs > w->seqs)
        return too_small(c, call, args);
    const bool many = args->queries > FEW_QUERIES;
    const struct prefill_place &t = w->prefill;
    if (many && (!t.memory || args->n_seqs > t.seqs || args->queries > t.queries))
        return too_small(c, call, args);
    aura_cuda_attend_args asked = *args;
    if (many)
        asked.planes = 2; /* as exact as images are */
    const struct attend_kernel *k = r->kernel = many ? choose_for_more(c, w, &asked) : choose(c, wanted_of(c, &asked));
    if (many && !k) {
        r->d = describe_call(c, w, args);
        return AURA_OK;
    }
    if (!k)
        return aura_backend_fail(c->ctx, AURA_UNSUPPORTED,
                                 "%s: planes %u of this format need the general kernel, which does not fit "
                                 "into this device's shared memory", call, args->planes);
    r->d = describe(c, w, &asked, k);
    const size_t units = (size_t)r->d.n_seqs * c->dev.kv_heads * r->d.row_blocks, rows = partials_of(c, k, units) * k->rows;
    if (many) {
        r->d.partial = (float *)(t.memory + t.images_at);
        r->d.partial_ml = (float2 *)(r->d.partial + rows * k->dim);
    } else if (counters_of(c, k, units) > w->counters || rows > w->partial_rows || rows * k->dim > w->partial_floats) {
        return too_small(c, call, args);
    }
    return AURA_OK;
}

aura_status aura_cuda_check_attend(const aura_cuda_cache *c, const aura_cuda_workspace *w, const char *call,
                                   const aura_cuda_attend_args *args)
{
    struct ready r;
    return make_ready(c, w, call, args, &r);
}

aura_status aura_cuda_attend_as(const aura_cuda_cache *c, const aura_cuda_workspace *w, const char *call,
                                const aura_cuda_attend_args *args, struct CUstream_st *stream)
{
    struct ready r;
    aura_status status = make_ready(c, w, call, args, &r);
    if (status)
        return status;
    on_device here(c->device);
    const struct attend_kernel *k = r.kernel;
    if (c->slots && (status = aura_cuda_list_slots(c, w, call, args, stream)))
        return status;
    if (r.d.seen && (status = aura_cuda_find_seen(c, call, r.d, w->seen, stream)))
        return status;
    if (!k)
        return aura_cuda_prefill(c, w, call, r.d, stream);
    struct dev_wide wide = {r.d, c->tiles};
    void *params[] = {k->tile_rows ? (void *)&wide : (void *)&r.d};
    const struct launch how = {dim3(grid_of(c, k)), k->threads, k->shared_bytes + (r.d.n_seqs + 1) * 4, stream};
    return aura_cuda_launch(c, call, k->name, k->run, how, params);
}

extern "C" aura_status aura_cuda_attend(const aura_cuda_cache *c, aura_cuda_workspace *w, const aura_cuda_attend_args *args,
                                        struct CUstream_st *stream)
{
    return aura_cuda_attend_as(c, w, "aura_cuda_attend", args, stream);
}
