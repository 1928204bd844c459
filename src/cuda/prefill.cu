/* Attention of more than 16 queries: the place for its images, the jobs of a call, its launches. prefill.cuh says how it works. */
#include "cache.cuh"
#include "prefill.cuh"

#include <math.h>

/* ---- jobs ------------------------------------------------------------------------------------------------------------- */

/* What sequence number `job` of the call has to do, but for what comes before it. */
__device__ __forceinline__ struct prefill_job prefill_job_of(const struct dev_prefill &p, uint32_t job)
{
    const struct dev_attend &a = p.a;
    struct seq_now now = seq_at(a, job);
    struct prefill_job j = {};
    j.count = queries_of_job(a, job);
    uint32_t begin = a.seen ? min(a.seen[job].x, now.len)
                            : (uint32_t)aura_seen_begin(aura_seen_end(now.len, j.count, 0, a.not_causal), a.window);
    const uint32_t end = a.seen ? a.seen[job].y : now.len;
    if (j.count && now.top && !aura_window_has(&a.c.window, aura_window_first(&a.c.window, now.top), begin, end)) {
        atomicOr(&a.c.seqs[now.seq].status, (uint32_t)AURA_CUDA_GONE);
        now = {a.c.n_seqs, 0, 0, 0}, begin = 0;
    }
    j.seq = now.seq, j.len = now.len, j.closed = now.closed;
    if (!j.count)
        return j;
    j.first_block = begin / IMAGE_TOKENS;
    j.kept = min((a.c.keep_first + IMAGE_TOKENS - 1) / IMAGE_TOKENS, j.first_block);
    /* There is always one, so that a chunk has a number of its own. */
    j.blocks = max(1u, (now.len + IMAGE_TOKENS - 1) / IMAGE_TOKENS - j.first_block + j.kept);
    j.tiles = (j.count * a.c.ratio + p.tile_rows - 1) / p.tile_rows;
    return j;
}

/* How the chunks of a call are cut. Few items are cut side by side, as many as there are blocks of threads. Otherwise they are cut
 * where there is not room for all: wide, if a part of all heads has a place to be kept in, so that they keep all blocks of
 * threads busy; or else as long as there is room for two. */
__device__ __forceinline__ struct prefill_state prefill_cut(const struct dev_prefill &p)
{
    struct prefill_state s = {};
    float tiles = 0, images = 0, most_tiles = 0, most_blocks = 0;
    for (uint32_t i = threadIdx.x % 32; i < p.a.n_seqs; i += 32) {
        const struct prefill_job j = prefill_job_of(p, i);
        tiles += (float)j.tiles, images += (float)j.tiles * (float)j.blocks;
        most_tiles = fmaxf(most_tiles, (float)j.tiles), most_blocks = fmaxf(most_blocks, (float)j.blocks);
    }
    const float heads = (float)p.a.c.kv_heads, blocks = (float)(p.beside / 2), room = (float)p.room;
    tiles = heads * warp_sum(tiles), images = heads * warp_sum(images);
    most_tiles = heads * warp_max(most_tiles), most_blocks = heads * warp_max(most_blocks);
    const float part = fmaxf(2, ceilf(images / fmaxf(blocks, 1)));
    s.way = 4 * tiles < 3 * blocks && part <= room / 2                              ? PREFILL_BESIDE
            : most_blocks > room && most_tiles <= blocks && 4 * heads <= room ? PREFILL_WIDE
                                                                                    : PREFILL_NARROW;
    s.part = s.way == PREFILL_BESIDE ? (uint32_t)part : s.way == PREFILL_WIDE ? p.room / 2 / p.a.c.kv_heads : p.room / 2;
    return s;
}

/* One block: its first warp makes the jobs, the others clear what they will count. */
extern "C" __global__ void __launch_bounds__(IMAGE_THREADS, 1) aura_prefill_jobs_cuda(const __grid_constant__ struct dev_prefill p)
{
    const uint32_t lane = threadIdx.x % 32, heads = p.a.c.kv_heads;
    for (uint32_t i = threadIdx.x; i < p.room; i += IMAGE_THREADS)
        p.chunks[i] = {0, 0, 0, 0}, p.made[i] = 0;
    for (uint32_t i = threadIdx.x; i < p.beside; i += IMAGE_THREADS)
        p.tiles_done[i] = 0;
    if (threadIdx.x >= 32)
        return;
    const struct prefill_state state = prefill_cut(p);
    if (lane == 0)
        *p.state = state;
    uint32_t before[4] = {0, 0, 0, 0}, carried = 0;
    for (uint32_t first = 0; first <= p.a.n_seqs; first += 32) {
        const uint32_t i = first + lane;
        struct prefill_job j = {};
        if (i < p.a.n_seqs)
            j = prefill_job_of(p, i), j.parts = (j.blocks + state.part - 1) / state.part;
        const uint32_t chunks = heads * j.parts;
        const uint32_t mine[4] = {heads * j.blocks, chunks, chunks * j.tiles, j.parts > 1 ? heads : 0};
        uint32_t upto[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            upto[k] = before[k] + warp_prefix(mine[k]);
            before[k] = __shfl_sync(~0u, upto[k], 31);
        }
        j.block = upto[0] - mine[0], j.chunk = upto[1] - mine[1], j.item = upto[2] - mine[2], j.carry = upto[3] - mine[3];
        /* The last job before that has several parts; of narrow ones its last head. Numbers of chunks grow. */
        uint32_t last = j.parts < 2 ? 0 : state.way == PREFILL_WIDE ? j.chunk : j.chunk + (heads - 1) * j.parts;
        for (uint32_t far = 1; far < 32; far *= 2) {
            const uint32_t other = __shfl_up_sync(~0u, last, far);
            last = lane >= far ? max(last, other) : last;
        }
        const uint32_t previous = __shfl_up_sync(~0u, last, 1);
        j.carried = lane ? max(carried, previous) : carried;
        carried = max(carried, __shfl_sync(~0u, last, 31));
        if (i <= p.a.n_seqs)
            p.jobs[i] = j;
    }
}

/* ---- images ----------------------------------------------------------------------------------------------------------- */

static bool has_ups(uint32_t kind)
{
    return kind == AURA_ROW_F32 || kind == AURA_ROW_BF16;
}

/* The exponent is below 10, so that levels and their offset, a byte, are below the leading bit of an f16. */
static struct dev_image_side image_side_of(uint32_t kind, float step)
{
    struct dev_image_side s = {0, 0, 1, 1};
    if (!aura_is_packed(kind))
        return s;
    const int e = (int)ceilf(-log2f(step)), offset = kind == 8 ? 128 : kind == 5 ? 31 : kind == 6 ? 63 : 64;
    const uint32_t zero = (uint32_t)(25 - e) << 10 | (uint32_t)offset;
    s.magic = (uint32_t)(25 - e) << 2, s.magic *= 0x01010101u;
    s.zero = zero | zero << 16;
    s.unit = ldexpf(step, e), s.inverse_unit = 1 / s.unit;
    return s;
}

struct dev_images aura_cuda_images_of(const struct dev_cache *c)
{
    struct dev_images im = {};
    im.k = image_side_of(c->k_kind, c->k_step), im.v = image_side_of(c->v_kind, c->v_step);
    im.reference = c->reference_step * im.k.inverse_unit;
    im.groups = (c->k_dim + IMAGE_ROW - 1) / IMAGE_ROW;
    im.v_at = im.groups * IMAGE_TOKENS * 128;
    im.bytes = im.v_at + 2 * c->v_dim * 128;
    if (has_ups(c->k_kind) || has_ups(c->v_kind))
        im.ups_at = im.bytes, im.bytes += 2 * IMAGE_TOKENS * 4;
    return im;
}

/* ---- what a cache and a workspace have for it ------------------------------------------------------------------------- */

static aura_status prepare(aura_cuda_cache *c, const char *call, const void *run, uint32_t threads, uint32_t shared_bytes,
                           uint32_t *blocks)
{
    int n = 0;
    cudaError_t error = aura_cuda_allow_shared(run, shared_bytes);
    if (error == cudaSuccess)
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, run, (int)threads, shared_bytes);
    *blocks = (uint32_t)n;
    return cuda_status(c->ctx, call, error, "preparing a kernel for many queries");
}

/* Keeps the kernels that this device has code and shared memory for. */
aura_status aura_cuda_prepare_prefill(aura_cuda_cache *c, const char *call)
{
    const struct dev_images im = aura_cuda_images_of(&c->dev);
    const struct prefill_kernel all[] = {prefill_wgmma_kernel(&c->dev, &im), prefill_any_kernel(&c->dev, &im)};
    aura_status status = AURA_OK;
    for (const struct prefill_kernel &k : all) {
        uint32_t blocks = 0;
        if (!k.run || k.shared_bytes > c->shared_limit || status)
            continue;
        status = prepare(c, call, k.run, k.threads, k.shared_bytes, &blocks);
        if (!status && blocks)
            c->prefill.push_back({k, blocks * c->multiprocessors});
    }
    return status;
}

static const size_t MOST_IMAGES = (size_t)64 << 20; /* bytes, where the caller leaves it to us */

/* Images that a workspace has room for: `bytes` of them, or, with 0, as many as a call can need, but no more than 64 MB. */
static uint32_t room_of(const aura_cuda_cache *c, const struct dev_images *im, uint32_t seqs, size_t bytes)
{
    const uint64_t least = 4, most = (bytes ? bytes : MOST_IMAGES) / im->bytes;
    const uint64_t all = 2 * (uint64_t)seqs * c->dev.kv_heads * (c->table_pages * (AURA_PAGE / IMAGE_TOKENS) + 1);
    const uint64_t room = all < most ? all : most;
    return (uint32_t)(room < least ? least : room > 1u << 24 ? 1u << 24 : room) / 2 * 2;
}

static size_t round_up(size_t bytes)
{
    return (bytes + 1023) / 1024 * 1024;
}

size_t aura_cuda_plan_prefill(aura_cuda_workspace *w, uint32_t seqs, uint32_t queries, size_t image_bytes, size_t partial_bytes)
{
    const aura_cuda_cache *c = w->cache;
    const struct dev_images im = aura_cuda_images_of(&c->dev);
    struct prefill_place *t = &w->prefill;
    t->seqs = seqs, t->queries = queries;
    t->room = room_of(c, &im, seqs, image_bytes);
    uint32_t rows = 0;
    for (const struct prefill_ready &k : c->prefill) {
        rows = k.kernel.rows > rows ? k.kernel.rows : rows;
        t->beside = 2 * k.blocks > t->beside && !c->batch_invariant ? 2 * k.blocks : t->beside;
    }
    /* No part is carried to the next where none can be longer than half the room. */
    const bool carries = (uint64_t)c->table_pages * (AURA_PAGE / IMAGE_TOKENS) + 1 > t->room / 2;
    const uint32_t least_rows = 64; /* of a tile of any kernel */
    const size_t tiles = carries ? PREFILL_CARRY * (queries * c->dev.ratio / least_rows + 1) : 0;
    t->state_at = 0;
    t->chunks_at = round_up(sizeof(struct prefill_state));
    t->jobs_at = t->chunks_at + round_up(t->room * sizeof(struct prefill_chunk));
    t->done_at = t->jobs_at + round_up((seqs + 1) * sizeof(struct prefill_job));
    t->made_at = t->done_at + round_up(t->beside * 4);
    t->carry_at = t->made_at + round_up(t->room * 4);
    t->images_at = t->carry_at +
        round_up((tiles > t->beside ? tiles : t->beside) * rows * (c->dev.v_dim + PREFILL_CARRIED) * sizeof(float));
    const size_t images = (size_t)t->room * im.bytes, partials = partial_bytes < MOST_IMAGES ? partial_bytes : MOST_IMAGES;
    t->image_bytes = round_up(image_bytes || images > partials ? images : partials);
    return t->images_at + t->image_bytes;
}

/* ---- the call --------------------------------------------------------------------------------------------------------- */

/* The first that takes the call: kernels of their own take no softcap, ALiBi or mask. */
static const struct prefill_ready *choose(const aura_cuda_cache *c, const struct dev_attend &d)
{
    for (const struct prefill_ready &k : c->prefill)
        if (&k == &c->prefill.back() || !d.options)
            return &k;
    return NULL;
}

aura_status aura_cuda_prefill(const aura_cuda_cache *c, const aura_cuda_workspace *w, const char *call, const struct dev_attend &d,
                              struct CUstream_st *stream)
{
    const struct prefill_place &t = w->prefill;
    if (!t.memory || d.n_seqs > t.seqs || d.queries > t.queries)
        return aura_backend_fail(c->ctx, AURA_TOO_LARGE, "%s: the workspace is too small for %u sequences of %u queries", call,
                                 d.n_seqs, d.queries);
    const struct prefill_ready *k = choose(c, d);
    if (!k)
        return aura_backend_fail(c->ctx, AURA_UNSUPPORTED, "%s: no kernel for more than 16 queries of these dims fits into this "
                                 "device's shared memory", call);
    struct dev_prefill p = {};
    p.a = d;
    p.im = aura_cuda_images_of(&c->dev);
    p.state = (struct prefill_state *)(t.memory + t.state_at);
    p.chunks = (struct prefill_chunk *)(t.memory + t.chunks_at);
    p.jobs = (struct prefill_job *)(t.memory + t.jobs_at);
    p.made = (uint32_t *)(t.memory + t.made_at);
    p.carry = (float *)(t.memory + t.carry_at);
    p.images = t.memory + t.images_at;
    p.tiles_done = (uint32_t *)(t.memory + t.done_at);
    p.room = t.room, p.tile_rows = k->kernel.rows;
    p.carry_tiles = (d.queries * c->dev.ratio + p.tile_rows - 1) / p.tile_rows;
    p.beside = c->batch_invariant ? 0 : 2 * k->blocks < t.beside ? 2 * k->blocks : t.beside;
    on_device here(c->device);
    void *params[] = {&p};
    const struct launch jobs = {dim3(1), IMAGE_THREADS, 0, stream}, how = {dim3(k->blocks), k->kernel.threads,
                                                                          k->kernel.shared_bytes, stream};
    aura_status status = aura_cuda_launch(c, call, "prefill_jobs_cuda", (const void *)aura_prefill_jobs_cuda, jobs, params);
    return status ? status : aura_cuda_launch(c, call, k->kernel.name, k->kernel.run, how, params);
}
