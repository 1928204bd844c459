/* Tokens into the device cache, in one launch (many tokens at a time: append_prompt.cu):
 *
 *     K,V ─ balance ─ rotate ─ f16 row ─┬─▶ pinned and open tokens
 *                                       └─ tile closes: reference ─ codes ─ pack ─▶ tile
 *
 * A block of threads is one KV head of one sequence. Every block checks all vectors of its sequence before it stores any, so
 * that all blocks come to the same answer.
 *
 * With one token and no tile that closes, the time is spent waiting for memory. So a block starts every load as early as it
 * can: it checks vectors while the state of the sequence is on its way. And it says that it has read the state before it
 * stores, because the last block to say so writes the new state. */
#include "append.cuh"
#include "append_prompt.cuh"
#include "close_search.cuh"

/* The next tokens to store; tokens below `closed` are encoded after that. */
struct stretch {
    uint32_t tokens, closed;
};

/* `left` tokens are still to come: takes those up to the length at which a tile closes. */
__device__ __forceinline__ struct stretch next_stretch(const struct dev_cache &c, uint32_t len, uint32_t closed, uint32_t left)
{
    if (!c.k_rows && !c.v_rows) /* nothing ever does */
        return {left, closed};
    const uint32_t close = c.open ? (uint32_t)aura_next_close(closed, c.rollback) : len + 1;
    const uint32_t n = min(left, close > len ? close - len : 1);
    return {n, (uint32_t)aura_closed_after(closed, len + n, c.rollback, c.open)};
}

/* Calls close_tokens(), or close_by_search(). The state of the block is in shared memory meanwhile. */
template <int M, bool SEARCH>
__device__ __forceinline__ void close_tile(const struct dev_append &a, append_block &b)
{
    if (threadIdx.x == APPEND_THREADS - 64) /* a thread of a warp that has no vector to store and knows the page */
        begin_closing<M>(a, b);
    copies_arrived();
    __syncthreads();
    if constexpr (SEARCH)
        close_by_search<M>();
    else
        close_tokens<M>();
    b = space<M>()->block;
    b.closed = b.end;
    if (b.len < b.until) /* the next stretch writes to shared memory again */
        __syncthreads();
}

/* Stores all tokens that are left, stretch by stretch. */
template <int M, bool SEARCH>
__device__ __forceinline__ void append_tokens(const struct dev_append &a, append_block b)
{
    while (b.len < b.until) {
        const struct stretch n = next_stretch(a.c, b.len, b.closed, b.until - b.len);
        const uint32_t done = b.len - space<M>()->state.len;
        const bool closes = n.closed > b.closed;
        if (closes)
            copy_rows<M>(a, b, max(b.closed, a.c.pinned), min(b.len, n.closed));
        if (closes && b.closed == space<M>()->state.closed) /* for the first time */
            prepare_closing<M>(a, b);
        for (uint32_t i = threadIdx.x / 32; i < 2 * n.tokens; i += APPEND_WARPS)
            store_vector<M>(a, b, done + i / 2, b.len + i / 2, closes ? n.closed : 0, i % 2);
        b.len += n.tokens;
        b.end = n.closed;
        if (closes)
            close_tile<M, SEARCH>(a, b);
    }
}

/* ---- a block -------------------------------------------------------------------------------------------------------- */

/* A block calls this when it has read the state of the sequence and will not read it again. The last block to do so writes the
 * new state: `tokens` more, or a mark. */
__device__ __forceinline__ void arrive(const struct dev_cache &c, struct dev_seq *seq, uint32_t len, uint32_t closed,
                                       uint32_t tokens, uint32_t mark)
{
    const uint32_t before = closed;
    if (atomicAdd(&seq->arrived, 1u) != gridDim.x - 1)
        return;
    seq->arrived = 0;
    if (mark)
        atomicOr(&seq->status, mark);
    for (struct stretch n; tokens; tokens -= n.tokens) {
        n = next_stretch(c, len, closed, tokens);
        len += n.tokens;
        closed = n.closed;
    }
    seq->len = len;
    seq->closed = closed;
    if (closed > before)
        seq->tiles += closed / AURA_TILE - before / AURA_TILE;
}

/* Checks all vectors; true where they are surely good. One warp reads the state of the sequence for the others: it starts the
 * load before it checks its vectors and shares the state after that, so that neither waits for the other. */
template <int M>
__device__ __forceinline__ bool begin_block(const struct dev_append &a, uint32_t tokens)
{
    const bool reads = threadIdx.x >= APPEND_THREADS - 32;
    uint32_t seq = 0;
    struct dev_seq state = {};
    if (reads)
        seq = a.seqs[blockIdx.y];
    if (reads && seq < a.c.n_seqs)
        state = a.c.seqs[seq];
    const bool good = surely_good(a, blockIdx.y, 0, tokens);
    if (threadIdx.x == APPEND_THREADS - 32) {
        space<M>()->seq = seq;
        space<M>()->state = state;
    }
    return !__syncthreads_or(!good);
}

template <int M, bool SEARCH>
__device__ __forceinline__ void append_body(const struct dev_append &a)
{
    const uint32_t tokens = tokens_of_job(a, blockIdx.y);
    const bool good = begin_block<M>(a, tokens);
    const struct dev_seq *state = &space<M>()->state;
    struct append_block b = {space<M>()->seq, state->len, state->closed, 0, 0};
    if (b.seq >= a.c.n_seqs)
        return;
    const bool full = is_full(a.c, *state, tokens);
    uint32_t accepted = tokens, mark = 0;
    if (is_marked(*state))
        accepted = 0;
    else if (tokens && (!good || full))
        mark = !good && any_bad(a, blockIdx.y, 0, tokens) ? AURA_CUDA_BAD_VALUE : full ? AURA_CUDA_OUT_OF_PAGES : 0;
    accepted = mark ? 0 : accepted;
    if (threadIdx.x == APPEND_THREADS - 32) /* a warp that has no vector of a single token to store */
        arrive(a.c, &a.c.seqs[b.seq], b.len, b.closed, accepted, mark);
    b.until = b.len + accepted;
    append_tokens<M, SEARCH>(a, b);
}

#define STAMP(name, dim)                                                               \
    extern "C" __global__ void __launch_bounds__(APPEND_THREADS, (dim) <= 128 ? 4 : 2) \
        aura_##name(const __grid_constant__ struct dev_append a)                       \
    {                                                                                  \
        append_body<dim, false>(a);                                                    \
    }
AURA_CUDA_APPEND(STAMP)
#undef STAMP

#define STAMP(name, dim)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(APPEND_THREADS, 1) aura_##name(const __grid_constant__ struct dev_append a) \
    {                                                                                                                      \
        append_body<dim, true>(a);                                                                                         \
    }
AURA_CUDA_SEARCH(STAMP)
#undef STAMP

/* ---- slots ---------------------------------------------------------------------------------------------------------- */

/* Whether a vector of a token of the call cannot be stored; all heads are asked, so that all blocks come to the same answer. */
__device__ __forceinline__ bool is_bad_token(const struct dev_append &a, uint32_t token, bool references)
{
    bool bad = false;
    const uint32_t n = a.c.kv_heads * (references ? 1 : 2);
    for (uint32_t first = 0; first < n; first += 2 * APPEND_WARPS) { /* all lanes stay together */
        const uint32_t i = min(first + threadIdx.x / 16, n - 1);
        bad |= bad_vector(a, blockIdx.y, token, i % a.c.kv_heads, i >= a.c.kv_heads);
    }
    return __syncthreads_or(bad);
}

/* Encodes a token into its slot: as an append does in a cache whose tokens are encoded at once, to a sequence that ends there. */
template <int M, bool SEARCH>
__device__ __forceinline__ void write_slot(const struct dev_append &a, uint32_t token, uint32_t slot, bool first)
{
    if (threadIdx.x == 0) {
        space<M>()->state.len = slot - token;
        space<M>()->state.closed = first ? slot : ~slot; /* what closing needs is loaded once */
    }
    __syncthreads();
    append_tokens<M, SEARCH>(a, {0, slot, slot, 0, slot + 1});
    __syncthreads();
}

/* Makes a key the reference of a page. */
template <int M>
__device__ __forceinline__ void write_reference(const struct dev_append &a, uint32_t token, uint32_t page)
{
    append_space<M> *s = space<M>();
    const struct append_block b = {0, page * AURA_PAGE, page * AURA_PAGE, 0, 0};
    prepare_closing<M>(a, b);
    float *y = s->y[0]; /* and on into those of the other warps, which have nothing to do */
    if (threadIdx.x < 32) {
        for (uint32_t d = threadIdx.x; d < a.c.k_dim; d += 32)
            y[d] = load_one(a, token, d, false);
        __syncwarp();
        rotate_shared(y, s->y[APPEND_WARPS], a.c.k_sign, a.c.codecs->paley[KEYS], a.c.codecs->k_inner, a.c.codecs->k_outer,
                      a.c.k_norm);
        for (uint32_t d = threadIdx.x; d < a.c.k_dim; d += 32)
            s->reference[d] = y[d];
    }
    copies_arrived();
    __syncthreads();
    struct closing c = {};
    c.head = head_of(a, b, page * AURA_PAGE);
    encode_reference<M>(a, c);
    __syncthreads();
}

/* A block is a KV head of a token. That of the first token of a tile writes all of the tile, in turn: their codes share words. */
template <int M, bool SEARCH>
__device__ __forceinline__ void slots_body(const struct dev_slots &s)
{
    const uint32_t job = blockIdx.y, width = s.references ? 1 : AURA_TILE;
    const uint64_t slot = s.slot[job];
    bool other = false, first = true;
    for (uint32_t i = threadIdx.x; i < job; i += APPEND_THREADS)
        other |= s.slot[i] / width == slot / width;
    if (__syncthreads_or(other))
        return;
    for (uint32_t i = job; i < s.tokens; i++) {
        const uint64_t to = s.slot[i];
        if (to / width != slot / width)
            continue;
        const uint32_t mark = to >= s.slots                                  ? AURA_CUDA_NO_SLOT
                              : is_bad_token(s.a, i - job, s.references) ? AURA_CUDA_BAD_VALUE
                                                                         : 0;
        if (mark && threadIdx.x == 0)
            atomicOr(&s.a.c.seqs[0].status, mark);
        if (mark)
            continue;
        if (s.references)
            write_reference<M>(s.a, i - job, (uint32_t)to);
        else
            write_slot<M, SEARCH>(s.a, i - job, (uint32_t)to, first);
        first = false;
    }
}

#define STAMP(name, dim)                                                               \
    extern "C" __global__ void __launch_bounds__(APPEND_THREADS, (dim) <= 128 ? 4 : 2) \
        aura_##name(const __grid_constant__ struct dev_slots s)                        \
    {                                                                                  \
        slots_body<dim, false>(s);                                                     \
    }
AURA_CUDA_SLOTS(STAMP)
#undef STAMP

#define STAMP(name, dim)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(APPEND_THREADS, 1) aura_##name(const __grid_constant__ struct dev_slots s) \
    {                                                                                                                     \
        slots_body<dim, true>(s);                                                                                         \
    }
AURA_CUDA_SLOTS_SEARCH(STAMP)
#undef STAMP

/* ---- the call ------------------------------------------------------------------------------------------------------- */

aura_status aura_cuda_check_append(const aura_cuda_cache *c, const char *call, const aura_cuda_append_args *a)
{
    if (!c || !a)
        return aura_backend_fail(c ? c->ctx : NULL, AURA_BAD_ARGUMENT, "%s: %s is NULL", call, c ? "args" : "cache");
    if (a->size != sizeof *a)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: args.size is %zu, this library knows %zu", call, a->size,
                                 sizeof *a);
    if (c->slots)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: the cache has slots, and no sequences", call);
    if (!a->seqs || !a->k.data || !a->v.data)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call,
                                 !a->seqs ? "seqs" : a->k.data ? "v.data" : "k.data");
    if (a->n_seqs == 0 || a->n_seqs > ATTEND_MAX_SEQS)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: %u sequences (1 to %d)", call, a->n_seqs, (int)ATTEND_MAX_SEQS);
    if (!aura_takes_at_once(c->facts.config->window, c->facts.config->max_queries, a->tokens))
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: %u tokens; with its window this cache takes %u at once", call,
                                 a->tokens, c->facts.config->max_queries);
    if (!aura_dtype_bytes(a->k.dtype) || !aura_dtype_bytes(a->v.dtype))
        return aura_backend_fail(c->ctx, AURA_UNSUPPORTED, "%s: k.dtype %d or v.dtype %d is not f32, f16 or bf16", call,
                                 (int)a->k.dtype, (int)a->v.dtype);
    return AURA_OK;
}

/* Whether codes of closing tiles are searched for: search.cuh. */
static bool is_searched(const struct dev_cache *d)
{
    return d->k_metric || d->v_metric || aura_is_trellis(d->k_kind) || aura_is_trellis(d->v_kind);
}

/* The first whose dim is large enough. */
static struct append_kernel choose(const struct dev_cache *d, bool slots)
{
#define ENTRY(name, dim) {#name, dim, (const void *)aura_##name, sizeof(append_space<dim>)},
    static const struct append_kernel appends[] = {AURA_CUDA_APPEND(ENTRY)}, writes[] = {AURA_CUDA_SLOTS(ENTRY)};
    static const struct append_kernel searches[] = {AURA_CUDA_SEARCH(ENTRY)}, searched[] = {AURA_CUDA_SLOTS_SEARCH(ENTRY)};
#undef ENTRY
    const struct append_kernel *k = is_searched(d) ? slots ? searched : searches : slots ? writes : appends;
    while (k->dim < d->k_dim || k->dim < d->v_dim)
        k++;
    struct append_kernel one = *k;
    const uint32_t dim = d->k_dim > d->v_dim ? d->k_dim : d->v_dim;
    if (is_searched(d))
        one.shared_bytes += search_block_bytes(dim) + d->search_warps * search_warp_bytes(dim, feeds_trellis(*d));
    return one;
}

/* As many warps search as there is shared memory for. */
static aura_status plan_search(aura_cuda_cache *c, const char *call)
{
    const uint32_t dim = c->dev.k_dim > c->dev.v_dim ? c->dev.k_dim : c->dev.v_dim;
    if (!is_searched(&c->dev))
        return AURA_OK;
    const size_t least = choose(&c->dev, false).shared_bytes, room = c->shared_limit > least ? c->shared_limit - least : 0;
    const size_t each = search_warp_bytes(dim, feeds_trellis(c->dev)), warps = room / each;
    c->dev.search_warps = (uint32_t)(warps < APPEND_WARPS ? warps : APPEND_WARPS);
    return warps ? AURA_OK
                 : aura_backend_fail(c->ctx, AURA_UNSUPPORTED, "%s: trellis codes or a metric of dim %u need %zu bytes of shared "
                                     "memory; the device has %zu", call, dim, least + each, c->shared_limit);
}

aura_status aura_cuda_prepare_append(aura_cuda_cache *c, const char *call)
{
    cudaError_t error = cudaSuccess;
    const aura_status status = plan_search(c, call);
    if (status)
        return status;
    for (int slots = 0; slots < 2 && error == cudaSuccess; slots++) {
        const struct append_kernel k = choose(&c->dev, slots);
        error = aura_cuda_allow_shared(k.run, k.shared_bytes);
    }
    error = error == cudaSuccess ? aura_cuda_prepare_prompt(c) : error;
    return cuda_status(c->ctx, call, error, "preparing a kernel");
}

aura_status aura_cuda_write_slots(const aura_cuda_cache *c, const char *call, struct dev_slots &s, struct CUstream_st *stream)
{
    on_device here(c->device);
    const struct append_kernel k = choose(&c->dev, true);
    void *params[] = {&s};
    const struct launch how = {dim3(c->dev.kv_heads, s.tokens), APPEND_THREADS, k.shared_bytes, stream};
    return aura_cuda_launch(c, call, k.name, k.run, how, params);
}

aura_status aura_cuda_append_as(const aura_cuda_cache *c, const char *call, const aura_cuda_append_args *args,
                                struct CUstream_st *stream)
{
    aura_status status = aura_cuda_check_append(c, call, args);
    if (status || args->tokens == 0)
        return status;
    struct dev_append d = {};
    d.c = c->dev;
    d.seqs = args->seqs, d.counts = args->counts, d.starts = args->starts, d.tokens = args->tokens;
    d.k = view_of(&args->k, args->tokens, c->dev.kv_heads, c->dev.k_dim);
    d.v = view_of(&args->v, args->tokens, c->dev.kv_heads, c->dev.v_dim);
    on_device here(c->device);
    if (aura_cuda_is_prompt(c, args->tokens) && !is_searched(&c->dev))
        return aura_cuda_append_prompt(c, call, d, args->n_seqs, stream);
    const struct append_kernel k = choose(&c->dev, false);
    void *params[] = {&d};
    const struct launch how = {dim3(c->dev.kv_heads, args->n_seqs), APPEND_THREADS, k.shared_bytes, stream};
    return aura_cuda_launch(c, call, k.name, k.run, how, params);
}

extern "C" aura_status aura_cuda_append(aura_cuda_cache *c, const aura_cuda_append_args *args, struct CUstream_st *stream)
{
    return aura_cuda_append_as(c, "aura_cuda_append", args, stream);
}
