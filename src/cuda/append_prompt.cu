/* A prompt into the device cache: many tokens of a sequence, whose tiles close independently of each other once the
 * reference of their page is known. A block of threads of append.cu is a KV head of a sequence; here it is some
 * tiles of one. Three launches of one kernel, since what is stored depends on all vectors, and rows of open tokens
 * are written over by new ones:
 *
 *     check    are all vectors good? A bad one leaves a mark in `arrived` of the sequence
 *     tiles    those that close, from rows that were open before and from vectors of the call, which a block rotates
 *              itself; and numbers of plain sides. A page's reference is made of the keys that close first in it: each
 *              block makes it anew, from the same numbers in the same order, and the block that has these keys stores
 *              it
 *     rows     of what is open afterwards, and of pinned tokens. Then the last block writes the new state
 *
 * All blocks read the state before it changes, and no bit depends on how tiles are dealt to blocks. */
#include "append_prompt.cuh"
#include "append.cuh"

enum { CHECK, TILES, ROWS };             /* launches */
enum { NOT_GOOD = 1u << 31 };            /* the mark, above what counts blocks */
enum { CHECK_TOKENS = 8, ROW_TOKENS = 8 }; /* of a block */

struct dev_prompt {
    struct dev_append a;
    uint32_t launch;
    uint32_t tiles; /* of a block, side by side, a power of two that divides a page */
};

/* What a call makes of a sequence. */
struct prompt_change {
    uint32_t tokens; /* that it takes */
    uint32_t mark;   /* why it takes none; 0: it is not the call's doing */
    uint32_t closed; /* afterwards, if it takes all */
};

/* Reads the state of the sequence; false where there is none. */
template <int M>
__device__ __forceinline__ bool read_state(const struct dev_append &a)
{
    if (threadIdx.x == 0) {
        space<M>()->seq = a.seqs[blockIdx.y];
        if (space<M>()->seq < a.c.n_seqs)
            space<M>()->state = a.c.seqs[space<M>()->seq];
    }
    __syncthreads();
    return space<M>()->seq < a.c.n_seqs;
}

__device__ __forceinline__ struct prompt_change change_of(const struct dev_append &a, const struct dev_seq &state)
{
    struct prompt_change p = {tokens_of_job(a, blockIdx.y), 0, state.closed};
    if (is_marked(state))
        p.tokens = 0;
    else if (p.tokens)
        p.mark = state.arrived & NOT_GOOD              ? AURA_CUDA_BAD_VALUE
                 : is_full(a.c, state, p.tokens) ? AURA_CUDA_OUT_OF_PAGES
                                                 : 0;
    if (p.mark)
        p.tokens = 0;
    if (a.c.k_rows || a.c.v_rows)
        p.closed = (uint32_t)aura_closed_after(state.closed, state.len + p.tokens, a.c.rollback, a.c.open);
    return p;
}

/* ---- are the vectors good? --------------------------------------------------------------------------------------- */

__device__ __forceinline__ void check_tokens(const struct dev_append &a)
{
    const uint32_t seq = a.seqs[blockIdx.y], from = blockIdx.x * CHECK_TOKENS;
    const uint32_t to = min(from + CHECK_TOKENS, tokens_of_job(a, blockIdx.y));
    if (from >= to || seq >= a.c.n_seqs || !__syncthreads_or(!surely_good(a, blockIdx.y, from, to)))
        return;
    if (any_bad(a, blockIdx.y, from, to) && threadIdx.x == 0)
        atomicOr(&a.c.seqs[seq].arrived, (uint32_t)NOT_GOOD);
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* The f16 vectors of tokens [from, to) of a tile to shared memory: rows that were open before, or what the call
 * brings. They are there after copies_arrived() and a barrier. */
template <int M>
__device__ __forceinline__ void gather(const struct dev_append &a, const append_block &b, uint32_t from, uint32_t to,
                                       bool values)
{
    const uint32_t lane = threadIdx.x % 32, dim = values ? a.c.v_dim : a.c.k_dim;
    for (uint32_t t = from + threadIdx.x / 32; t < to; t += APPEND_WARPS) {
        uint16_t *open = space<M>()->row[values][t % AURA_TILE];
        if (t >= b.len) {
            put_rotated<M>(a, t - b.len, NULL, (__half *)open, values);
            continue;
        }
        const __half *row = rows_of(a, b, values) + (size_t)row_of(a.c, t) * dim;
        for (uint32_t i = lane; i < dim / 8; i += 32)
            copy_ahead(open + 8 * i, row + 8 * i);
    }
}

/* Where the reference of a page comes from. */
enum { OF_THE_PAGE, OF_THIS_TILE, OF_AN_EARLIER_TILE };

__device__ __forceinline__ int whose_reference(const struct dev_append &a, const struct dev_seq &state, uint32_t tile)
{
    const uint32_t page = tile / AURA_PAGE_TILES;
    if (aura_page_has_reference(state.closed, page, a.c.pinned))
        return OF_THE_PAGE;
    return max(page * AURA_PAGE, a.c.pinned) / AURA_TILE == tile ? OF_THIS_TILE : OF_AN_EARLIER_TILE;
}

/* The numbers of the reference that an earlier tile of this call makes. Ends with a barrier. */
template <int M>
__device__ __forceinline__ void repeat_reference(const struct dev_append &a, const append_block &b, uint32_t tile)
{
    struct closing c = {};
    const uint32_t first = max(tile / AURA_PAGE_TILES * AURA_PAGE, a.c.pinned);
    c.from = first % AURA_TILE, c.to = AURA_TILE;
    gather<M>(a, b, first, (first / AURA_TILE + 1) * AURA_TILE, false);
    copies_arrived();
    __syncthreads();
    make_reference<M>(a, c);
    __syncthreads();
}

/* Tokens [b.closed, b.end), which are the end of a tile. knows: shared memory has the reference of their page. Ends
 * with a barrier. */
template <int M>
__device__ __forceinline__ void close_of_prompt(const struct dev_append &a, const append_block &b, bool knows)
{
    append_space<M> *s = space<M>();
    const uint32_t tile = b.closed / AURA_TILE, first = max(b.closed, a.c.pinned);
    const int whose = knows || !a.c.has_reference ? OF_THE_PAGE : whose_reference(a, s->state, tile);
    if (whose == OF_AN_EARLIER_TILE)
        repeat_reference<M>(a, b, tile);
    if (a.c.k_rows)
        gather<M>(a, b, first, b.end, false);
    if (a.c.v_rows)
        gather<M>(a, b, first, b.end, true);
    if (threadIdx.x == 0)
        begin_closing<M>(a, b);
    copies_arrived();
    __syncthreads();
    const struct closing c = s->closing;
    if (whose == OF_THIS_TILE)
        make_reference<M>(a, c);
    else if (whose == OF_THE_PAGE && !knows && a.c.has_reference)
        load_reference<M>(a, c.head);
    __syncthreads();
    encode_pairs<M>(a, c);
    __syncthreads();
    put_codes<M>(a, c);
    __syncthreads();
}

/* What the tokens of the call that are in a tile have on plain sides. */
template <int M>
__device__ __forceinline__ void store_plain_sides(const struct dev_append &a, const append_block &b, uint32_t tile)
{
    const uint32_t from = max(tile * AURA_TILE, b.len), to = min((tile + 1) * AURA_TILE, b.until);
    for (uint32_t side = 0; side < 2; side++)
        for (uint32_t t = from + threadIdx.x / 32; t < to && !(side ? a.c.v_rows : a.c.k_rows); t += APPEND_WARPS)
            store_plain(a, b, t - b.len, t, side);
}

template <int M>
__device__ __forceinline__ void store_tiles(const struct dev_prompt &p)
{
    const struct dev_append &a = p.a;
    const struct dev_seq &state = space<M>()->state;
    if (!read_state<M>(a))
        return;
    const struct prompt_change change = change_of(a, state);
    struct append_block b = {space<M>()->seq, state.len, state.closed, 0, state.len + change.tokens};
    const uint32_t begin = (uint32_t)aura_settled(b.len, b.closed, a.c.k_rows || a.c.v_rows) / AURA_TILE;
    const uint32_t end = change.tokens ? (b.until + AURA_TILE - 1) / AURA_TILE : 0;
    uint32_t known = ~0u; /* the page whose reference is in shared memory */
    bool ready = false;
    for (uint32_t first = (begin / p.tiles + blockIdx.z) * p.tiles; first < end; first += gridDim.z * p.tiles)
        for (uint32_t tile = max(first, begin); tile < min(first + p.tiles, end); tile++) {
            store_plain_sides<M>(a, b, tile);
            b.closed = max(tile * AURA_TILE, state.closed), b.end = (tile + 1) * AURA_TILE;
            if (b.end > change.closed || b.end <= a.c.pinned)
                continue;
            if (!ready)
                load_encoders<M>(a);
            ready = true;
            close_of_prompt<M>(a, b, known == tile / AURA_PAGE_TILES);
            known = tile / AURA_PAGE_TILES;
        }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Rows of some of the new tokens: pinned ones, and then the newest, which the ring has room for. */
template <int M>
__device__ __forceinline__ void store_rows(const struct dev_append &a, const append_block &b)
{
    const uint32_t ring = a.c.rows - a.c.pinned, pinned = b.len < a.c.pinned ? min(b.until, a.c.pinned) - b.len : 0;
    const uint32_t newest = max(max(b.len, a.c.pinned), b.until > ring ? b.until - ring : 0);
    const uint32_t n = pinned + (b.until > newest ? b.until - newest : 0);
    const uint32_t first = blockIdx.z * ROW_TOKENS;
    for (uint32_t i = first + threadIdx.x / 32; i < min(first + ROW_TOKENS, n); i += APPEND_WARPS)
        for (uint32_t side = 0; side < 2; side++) {
            const uint32_t t = i < pinned ? b.len + i : newest + i - pinned;
            const uint32_t dim = side ? a.c.v_dim : a.c.k_dim;
            if (side ? a.c.v_rows : a.c.k_rows)
                put_rotated<M>(a, t - b.len, rows_of(a, b, side) + (size_t)row_of(a.c, t) * dim, NULL, side);
        }
}

/* By one thread. The last block of all writes the new state. */
__device__ __forceinline__ void finish_prompt(const struct dev_append &a, uint32_t seq, const struct dev_seq &state,
                                              const struct prompt_change &change)
{
    struct dev_seq *to = &a.c.seqs[seq];
    if ((atomicAdd(&to->arrived, 1u) & ~NOT_GOOD) != gridDim.x * gridDim.z - 1)
        return;
    to->arrived = 0;
    if (change.mark)
        atomicOr(&to->status, change.mark);
    to->len = state.len + change.tokens;
    to->closed = change.closed;
    if (change.closed > state.closed)
        to->tiles += change.closed / AURA_TILE - state.closed / AURA_TILE;
}

template <int M>
__device__ __forceinline__ void end_prompt(const struct dev_append &a)
{
    const struct dev_seq &state = space<M>()->state;
    if (!read_state<M>(a))
        return;
    const struct prompt_change change = change_of(a, state);
    if (change.tokens)
        store_rows<M>(a, {space<M>()->seq, state.len, state.closed, 0, state.len + change.tokens});
    if (threadIdx.x == 0)
        finish_prompt(a, space<M>()->seq, state, change);
}

template <int M>
__device__ __forceinline__ void prompt_body(const struct dev_prompt &p)
{
    if (p.launch == CHECK)
        check_tokens(p.a);
    else if (p.launch == TILES)
        store_tiles<M>(p);
    else
        end_prompt<M>(p.a);
}

#define STAMP(name, dim)                                                               \
    extern "C" __global__ void __launch_bounds__(APPEND_THREADS, (dim) <= 128 ? 4 : 2) \
        aura_##name(const __grid_constant__ struct dev_prompt p)                       \
    {                                                                                  \
        prompt_body<dim>(p);                                                           \
    }
AURA_CUDA_PROMPT(STAMP)
#undef STAMP

/* ---- the call ---------------------------------------------------------------------------------------------------- */

/* The first whose dim is large enough. */
static struct append_kernel choose(const struct dev_cache *d)
{
#define ENTRY(name, dim) {#name, dim, (const void *)aura_##name, sizeof(append_space<dim>)},
    static const struct append_kernel all[] = {AURA_CUDA_PROMPT(ENTRY)};
#undef ENTRY
    const struct append_kernel *k = all;
    while (k->dim < d->k_dim || k->dim < d->v_dim)
        k++;
    return *k;
}

cudaError_t aura_cuda_prepare_prompt(const aura_cuda_cache *c)
{
    const struct append_kernel k = choose(&c->dev);
    return aura_cuda_allow_shared(k.run, k.shared_bytes);
}

/* The most tokens that one call may change: those that it brings, and what was open before. */
static uint64_t touched(const struct dev_cache *d, uint32_t tokens)
{
    return (uint64_t)tokens + d->rollback + 2 * AURA_TILE;
}

/* Where a window's pages go round, no two of those that are written to may be one. */
int aura_cuda_is_prompt(const aura_cuda_cache *c, uint32_t tokens)
{
    const struct dev_cache *d = &c->dev;
    const uint64_t ring = d->window.span ? (aura_window_ring(&d->window) - 1) * (uint64_t)AURA_PAGE : UINT64_MAX;
    return tokens >= PROMPT_TOKENS && d->open && touched(d, tokens) <= ring;
}

/* Tiles of a block: more where there are more tiles than blocks run at once, for the sake of references. */
static uint32_t tiles_of_block(const aura_cuda_cache *c, uint32_t seqs, uint32_t tokens)
{
    const uint64_t at_once = (uint64_t)c->multiprocessors * 4;
    const uint64_t all = (uint64_t)seqs * c->dev.kv_heads * (tokens / AURA_TILE);
    return all <= at_once ? 1 : all <= 2 * at_once ? 2 : all <= 4 * at_once ? 4 : 8;
}

aura_status aura_cuda_append_prompt(const aura_cuda_cache *c, const char *call, const struct dev_append &d,
                                    uint32_t seqs, struct CUstream_st *stream)
{
    const struct append_kernel k = choose(&c->dev);
    struct dev_prompt p = {d, CHECK, tiles_of_block(c, seqs, d.tokens)};
    const uint64_t tiles = touched(&c->dev, d.tokens) / AURA_TILE / p.tiles + 2;
    const dim3 grids[] = {dim3((d.tokens + CHECK_TOKENS - 1) / CHECK_TOKENS, seqs),
                          dim3(d.c.kv_heads, seqs, (uint32_t)(tiles < 32768 ? tiles : 32768)),
                          dim3(d.c.kv_heads, seqs, (d.c.rows + ROW_TOKENS - 1) / ROW_TOKENS)};
    aura_status status = AURA_OK;
    for (; p.launch <= ROWS && !status; p.launch++) {
        void *params[] = {&p};
        const struct launch how = {grids[p.launch], APPEND_THREADS, k.shared_bytes, stream};
        status = aura_cuda_launch(c, call, k.name, k.run, how, params);
    }
    return status;
}
