/* Tokens into the device cache, in one launch:
 *
 *     K,V ─ balance ─ rotate ─ f16 row ─┬─▶ pinned and open tokens
 *                                       └─ tile closes: reference ─ codes ─ pack ─▶ tile
 *
 * A block is one KV head of one sequence. Every block looks at all vectors of its sequence before it stores any, so that all
 * come to the same answer; the last of them to be done advances the sequence. */
#include "cache.cuh"
#include "encode.cuh"
#include "rotate.cuh"

enum { APPEND_WARPS = 8, APPEND_THREADS = 32 * APPEND_WARPS };
#define LONGEST 60000.f /* append.c says why */

/* Shared memory of a block, for dims of up to M. Vectors are 16 floats further apart than they are long: the two that a
 * warp works on are then in different banks. */
template <int M>
struct append_space {
    struct aura_codec_plan codec;
    float reference[M], mean[M];
    float row[APPEND_WARPS][2][M];
    __half scale[AURA_TILE];
    uint8_t code[AURA_TILE][M];
    float y[APPEND_WARPS * 2][M + 16];
};

template <int M>
struct append_block {
    append_space<M> *s;
    uint32_t slot, seq, head;
    uint32_t len, closed; /* of this head, as far as it is stored */
};

__device__ __forceinline__ float load_balanced(const struct dev_append &a, uint32_t slot, uint32_t token, uint32_t head, uint32_t d,
                                               bool values)
{
    const struct dev_view &v = values ? a.v : a.k;
    float x = load_element(v.data, v.dtype, slot * v.seq + token * v.token + head * v.head + d);
    return values || !a.c.balance ? x : __fmul_rn(x, a.c.balance[(size_t)head * a.c.k_dim + d]);
}

/* ---- are the vectors good? ----------------------------------------------------------------------------------------- */

/* One vector by half a warp: as length_of and bad_row of append.c have it. */
__device__ __forceinline__ bool bad_vector(const struct dev_append &a, uint32_t slot, uint32_t token, uint32_t head, bool values)
{
    const uint32_t lane = threadIdx.x % 16, dim = values ? a.c.v_dim : a.c.k_dim, kind = values ? a.c.v_kind : a.c.k_kind;
    const float limit = kind == AURA_ROW_F16 ? 65520.f : kind == AURA_ROW_BF16 ? 0x1.ffp127f : INFINITY;
    float partial = 0, sum = 0;
    bool bad = false;
    for (uint32_t d = lane; d < dim; d += 16) {
        float x = load_balanced(a, slot, token, head, d, values);
        partial = __fadd_rn(partial, __fmul_rn(x, x));
        bad |= !(fabsf(x) < limit);
    }
    for (int i = 0; i < 16; i++) /* by both halves of the warp, which may be of different sides */
        sum = __fadd_rn(sum, __shfl_sync(~0u, partial, i, 16));
    return kind > 8 ? bad : !(__fsqrt_rn(sum) <= LONGEST);
}

__device__ __forceinline__ bool any_bad(const struct dev_append &a, uint32_t slot, uint32_t tokens)
{
    bool bad = false;
    const uint32_t n = tokens * a.c.kv_heads * 2;
    for (uint32_t first = 0; first < n; first += 2 * APPEND_WARPS) { /* all lanes stay together */
        uint32_t i = min(first + threadIdx.x / 16, n - 1);
        bad |= bad_vector(a, slot, i / 2 / a.c.kv_heads, i / 2 % a.c.kv_heads, i % 2);
    }
    return __syncthreads_or(bad);
}

/* ---- tiles ---------------------------------------------------------------------------------------------------------- */

template <int M>
__device__ __forceinline__ __half *rows_of(const struct dev_append &a, const append_block<M> &b, bool values)
{
    const size_t dim = values ? a.c.v_dim : a.c.k_dim;
    return (values ? a.c.v_rows : a.c.k_rows) + ((size_t)b.seq * a.c.kv_heads + b.head) * a.c.rows * dim;
}

template <int M>
__device__ __forceinline__ uint8_t *head_of(const struct dev_append &a, const append_block<M> &b, uint32_t token)
{
    return (uint8_t *)page_head(a.c, b.seq, token / AURA_PAGE, b.head);
}

template <int M>
__device__ __forceinline__ void load_codec(append_space<M> *s, const struct aura_codec_plan *from)
{
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < sizeof *from / 4; i += APPEND_THREADS)
        ((uint32_t *)&s->codec)[i] = ((const uint32_t *)from)[i];
    __syncthreads();
}

/* The mean of the unpinned keys of a tile, all of them open, as 8-bit codes. */
template <int M>
__device__ void make_reference(const struct dev_append &a, const append_block<M> &b, uint32_t first, uint8_t *head)
{
    append_space<M> *s = b.s;
    const __half *rows = rows_of(a, b, false);
    int8_t *code = (int8_t *)(head + a.c.reference_at);
    load_codec(s, &a.c.codecs->reference);
    const uint32_t from = max(first, a.c.pinned), end = first + AURA_TILE;
    for (uint32_t d = threadIdx.x; d < a.c.k_dim; d += APPEND_THREADS) {
        float sum = 0;
#pragma unroll 8
        for (uint32_t t = from; t < end; t++)
            sum = __fadd_rn(sum, __half2float(rows[(size_t)row_of(a.c, t) * a.c.k_dim + d]));
        s->mean[d] = __fdiv_rn(sum, (float)(end - from));
    }
    __syncthreads();
    if (threadIdx.x < 32) { /* both halves of the warp do the same */
        float scale = encode_any(s->code[0], s->mean, &s->codec);
        if (threadIdx.x == 0)
            *(__half *)(head + a.c.reference_scale_at) = __float2half_rn(scale);
    }
    __syncthreads();
    for (uint32_t d = threadIdx.x; d < a.c.reference_scale_at - a.c.reference_at; d += APPEND_THREADS)
        code[d] = d < a.c.k_dim ? (int8_t)aura_code_of_index(s->code[0][d], 8) : 0;
    __syncthreads();
}

/* Codes of columns [from, to) of a side into s->code and s->scale. */
template <int M>
__device__ void encode_columns(const struct dev_append &a, const append_block<M> &b, uint32_t first, uint32_t from, uint32_t to,
                               bool values, bool relative)
{
    append_space<M> *s = b.s;
    const uint32_t dim = values ? a.c.v_dim : a.c.k_dim, kind = values ? a.c.v_kind : a.c.k_kind, lane = threadIdx.x % 16;
    const __half *rows = rows_of(a, b, values);
    load_codec(s, values ? &a.c.codecs->v : &a.c.codecs->k);
    for (uint32_t at = from; at < to; at += 2 * APPEND_WARPS) {
        const uint32_t c = at + threadIdx.x / 16, column = min(c, to - 1); /* half warps beyond do the last once more */
        float *y = s->y[threadIdx.x / 16];
        const __half *row = rows + (size_t)row_of(a.c, first + column) * dim;
        for (uint32_t d = lane; d < dim; d += 16)
            y[d] = relative ? __fsub_rn(__half2float(row[d]), s->reference[d]) : __half2float(row[d]);
        __syncwarp();
        float scale = encode_any(s->code[column], y, &s->codec);
        if (lane == 0 && c < to)
            s->scale[c] = __float2half_rn(scale);
        __syncthreads();
    }
    for (uint32_t i = threadIdx.x; kind == 8 && i < (to - from) * dim; i += APPEND_THREADS)
        s->code[from + i / dim][i % dim] = aura_code_of_index(s->code[from + i / dim][i % dim], 8);
    __syncthreads();
}

/* How a side is laid out, as format.h asks for it. */
__device__ __forceinline__ struct aura_side side_of(uint32_t kind, uint32_t dim, bool values)
{
    struct aura_side side = {};
    side.kind = kind;
    side.dim = dim;
    side.runs = values ? 1 : aura_padded_run(dim) / AURA_RUN;
    side.lanes = values ? dim : AURA_TILE;
    return side;
}

template <int M>
__device__ void put_keys(const struct dev_append &a, const append_block<M> &b, uint8_t *tile, uint32_t from, uint32_t to)
{
    const struct aura_side side = side_of(a.c.k_kind, a.c.k_dim, false);
    uint32_t *words = (uint32_t *)tile;
    for (uint32_t i = threadIdx.x; i < (to - from) * side.runs; i += APPEND_THREADS) {
        const uint32_t c = from + i % (to - from), run = i / (to - from);
        uint32_t quad[8], word[8];
        for (uint32_t k = 0; k < 8; k++) {
            const uint32_t d = run * AURA_RUN + 4 * k; /* dims are multiples of 4 */
            quad[k] = d < side.dim ? *(const uint32_t *)&b.s->code[c][d] : 0;
        }
        aura_pack_run(word, quad, side.kind);
        for (uint32_t w = 0; w < side.kind; w++)
            words[aura_word_at(&side, run, w) + c] = word[w];
    }
    for (uint32_t c = from + threadIdx.x; c < to; c += APPEND_THREADS)
        ((__half *)(tile + a.c.k_scale_at))[c] = b.s->scale[c];
    __syncthreads();
}

/* The other columns keep their bits. */
template <int M>
__device__ void put_values(const struct dev_append &a, const append_block<M> &b, uint8_t *tile, uint32_t from, uint32_t to)
{
    const struct aura_side side = side_of(a.c.v_kind, a.c.v_dim, true);
    uint32_t *words = (uint32_t *)(tile + a.c.v_at), ours[8], mask[8];
    const uint32_t all = side.kind == 8 ? 255 : (1u << side.kind) - 1;
    for (uint32_t k = 0; k < 8; k++) {
        ours[k] = 0;
        for (uint32_t i = 0; i < 4; i++)
            ours[k] |= 4 * k + i >= from && 4 * k + i < to ? all << 8 * i : 0;
    }
    aura_pack_run(mask, ours, side.kind);
    for (uint32_t d = threadIdx.x; d < side.dim; d += APPEND_THREADS) {
        uint32_t quad[8], word[8];
        for (uint32_t k = 0; k < 8; k++) {
            quad[k] = 0;
            for (uint32_t i = 0; i < 4; i++)
                quad[k] |= 4 * k + i >= from && 4 * k + i < to ? (uint32_t)b.s->code[4 * k + i][d] << 8 * i : 0;
        }
        aura_pack_run(word, quad, side.kind);
        for (uint32_t w = 0; w < side.kind; w++) {
            uint32_t *to_word = &words[aura_word_at(&side, 0, w) + d];
            *to_word = (*to_word & ~mask[w]) | word[w];
        }
    }
    for (uint32_t c = from + threadIdx.x; c < to; c += APPEND_THREADS)
        ((__half *)(tile + a.c.v_scale_at))[c] = b.s->scale[c];
    __syncthreads();
}

/* Encodes the tokens [closed, end) of the head; they are of one tile. */
template <int M>
__device__ void close_tokens(const struct dev_append &a, const append_block<M> &b, uint32_t end)
{
    const uint32_t first = b.closed / AURA_TILE * AURA_TILE, page = b.closed / AURA_PAGE;
    const uint32_t begin = max(b.closed, a.c.pinned);
    if (begin >= end) /* pinned tokens only, which are never encoded */
        return;
    uint8_t *head = head_of(a, b, b.closed), *tile = head + (b.closed / AURA_TILE % AURA_PAGE_TILES) * a.c.tile_bytes;
    if (a.c.k_rows) {
        if (a.c.has_reference && b.closed <= max(page * AURA_PAGE, a.c.pinned))
            make_reference(a, b, first, head);
        if (a.c.has_reference) {
            const float scale = __half2float(*(const __half *)(head + a.c.reference_scale_at));
            load_codec(b.s, &a.c.codecs->reference);
            for (uint32_t d = threadIdx.x; d < a.c.k_dim; d += APPEND_THREADS)
                b.s->reference[d] = __fmul_rn(b.s->codec.centroid[((const int8_t *)(head + a.c.reference_at))[d] + 127], scale);
        }
        encode_columns(a, b, first, begin - first, end - first, false, a.c.has_reference);
        put_keys(a, b, tile, begin - first, end - first);
    }
    if (a.c.v_rows) {
        encode_columns(a, b, first, begin - first, end - first, true, false);
        put_values(a, b, tile, begin - first, end - first);
    }
}

/* ---- tokens --------------------------------------------------------------------------------------------------------- */

/* One vector of the head to where it is kept first, by one warp. */
template <int M>
__device__ __forceinline__ void store_vector(const struct dev_append &a, const append_block<M> &b, uint32_t token,
                                             uint32_t position, bool values)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, dim = values ? a.c.v_dim : a.c.k_dim;
    const uint32_t kind = values ? a.c.v_kind : a.c.k_kind;
    float *y = b.s->row[warp][0];
    for (uint32_t d = lane; d < dim; d += 32)
        y[d] = load_balanced(a, b.slot, token, b.head, d, values);
    __syncwarp();
    if (kind <= 8) {
        const struct dev_codecs *p = a.c.codecs;
        __half *row = rows_of(a, b, values) + (size_t)row_of(a.c, position) * dim;
        rotate_shared(y, b.s->row[warp][1], values ? a.c.v_sign : a.c.k_sign, p->paley[values], values ? p->v_inner : p->k_inner,
                      values ? p->v_outer : p->k_outer, values ? a.c.v_norm : a.c.k_norm);
        for (uint32_t d = lane; d < dim; d += 32)
            row[d] = __float2half_rn(y[d]);
    } else {
        uint8_t *tile = head_of(a, b, position) + (position / AURA_TILE % AURA_PAGE_TILES) * a.c.tile_bytes + (values ? a.c.v_at : 0);
        const uint32_t dtype = kind == AURA_ROW_F32 ? AURA_F32 : kind == AURA_ROW_F16 ? AURA_F16 : AURA_BF16;
        for (uint32_t d = lane; d < dim; d += 32)
            store_element(tile, dtype, (int64_t)(position % AURA_TILE) * dim + d, y[d]);
    }
    __syncwarp();
}

/* The length at which something closes next; 2^32 - 1 where nothing ever does. */
__device__ __forceinline__ uint32_t next_close(const struct dev_cache &c, uint32_t len, uint32_t closed)
{
    if (!c.k_rows && !c.v_rows)
        return UINT32_MAX;
    return c.open ? (closed / AURA_TILE + 1) * AURA_TILE + c.rollback : len + 1;
}

template <int M>
__device__ void append_tokens(const struct dev_append &a, append_block<M> &b, uint32_t tokens)
{
    for (uint32_t done = 0; done < tokens;) {
        const uint32_t close = next_close(a.c, b.len, b.closed), n = min(tokens - done, close > b.len ? close - b.len : 1);
        for (uint32_t i = threadIdx.x / 32; i < 2 * n; i += APPEND_WARPS)
            store_vector(a, b, done + i / 2, b.len + i / 2, i % 2);
        __syncthreads();
        done += n;
        b.len += n;
        if (b.len < close)
            continue;
        const uint32_t end = a.c.open ? close - a.c.rollback : b.len;
        close_tokens(a, b, end);
        b.closed = end;
        __syncthreads();
    }
}

template <int M>
__global__ void __launch_bounds__(APPEND_THREADS, M <= 128 ? 4 : 2) append_kernel(const __grid_constant__ struct dev_append a)
{
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ bool last;
    append_block<M> b = {(append_space<M> *)shared, blockIdx.y, a.seqs[blockIdx.y], blockIdx.x, 0, 0};
    if (b.seq >= a.c.n_seqs)
        return;
    struct dev_seq *seq = &a.c.seqs[b.seq];
    const uint32_t tokens = a.counts ? min(a.counts[b.slot], a.tokens) : a.tokens, status = seq->status;
    b.len = seq->len, b.closed = seq->closed;
    const bool full = tokens > seq->reserved || b.len > seq->reserved - tokens;
    const bool refused = status & (AURA_CUDA_BAD_VALUE | AURA_CUDA_OUT_OF_PAGES);
    const bool bad = tokens && !refused && any_bad(a, b.slot, tokens);
    if (tokens && !refused && !bad && !full)
        append_tokens(a, b, tokens);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicAdd(&seq->arrived, 1u) == gridDim.x - 1;
    __syncthreads();
    if (!last || threadIdx.x)
        return;
    seq->arrived = 0;
    if (refused)
        return;
    seq->len = b.len;
    seq->closed = b.closed;
    if (tokens && (bad || full))
        atomicOr(&seq->status, bad ? AURA_CUDA_BAD_VALUE : AURA_CUDA_OUT_OF_PAGES);
}

/* ---- the call ------------------------------------------------------------------------------------------------------- */

static struct dev_view view_of(const aura_cuda_view *v, uint32_t tokens, uint32_t heads, uint32_t dim)
{
    struct dev_view d = {v->data, (uint32_t)v->dtype, v->seq_stride, v->token_stride, v->head_stride};
    d.head = d.head ? d.head : dim;
    d.token = d.token ? d.token : d.head * heads;
    d.seq = d.seq ? d.seq : d.token * tokens;
    return d;
}

static aura_status check_args(const aura_cuda_cache *c, const char *call, const aura_cuda_append_args *a)
{
    if (a->size != sizeof *a)
        return aura_raw_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: args.size is %zu, this library knows %zu", call, a->size, sizeof *a);
    if (!a->seqs || !a->k.data || !a->v.data)
        return aura_raw_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call, !a->seqs ? "seqs" : a->k.data ? "v.data" : "k.data");
    if (a->n_seqs == 0 || a->n_seqs > ATTEND_MAX_SEQS)
        return aura_raw_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: %u sequences (1 to %d)", call, a->n_seqs, (int)ATTEND_MAX_SEQS);
    if (!aura_dtype_bytes(a->k.dtype) || !aura_dtype_bytes(a->v.dtype))
        return aura_raw_fail(c->ctx, AURA_UNSUPPORTED, "%s: k.dtype %d or v.dtype %d is not f32, f16 or bf16", call, (int)a->k.dtype,
                             (int)a->v.dtype);
    return AURA_OK;
}

/* The kernel for these dims, and its shared memory. */
struct append_choice {
    const void *run;
    size_t shared_bytes;
};

static struct append_choice choose(const struct dev_cache *d)
{
    const uint32_t most = d->k_dim > d->v_dim ? d->k_dim : d->v_dim;
    if (most <= 128)
        return {(const void *)append_kernel<128>, sizeof(append_space<128>)};
    if (most <= 256)
        return {(const void *)append_kernel<256>, sizeof(append_space<256>)};
    return {(const void *)append_kernel<512>, sizeof(append_space<512>)};
}

aura_status aura_cuda_prepare_append(const aura_cuda_cache *c, const char *call)
{
    const struct append_choice k = choose(&c->dev);
    return cuda_status(c->ctx, call,
                       cudaFuncSetAttribute(k.run, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)k.shared_bytes),
                       "preparing a kernel");
}

extern "C" aura_status aura_cuda_append(aura_cuda_cache *c, const aura_cuda_append_args *args, struct CUstream_st *stream)
{
    const char *call = "aura_cuda_append";
    if (!c || !args)
        return aura_raw_fail(c ? c->ctx : NULL, AURA_BAD_ARGUMENT, "%s: %s is NULL", call, c ? "args" : "cache");
    aura_status status = check_args(c, call, args);
    if (status || args->tokens == 0)
        return status;
    struct dev_append d = {};
    d.c = c->dev;
    d.seqs = args->seqs, d.counts = args->counts, d.tokens = args->tokens;
    d.k = view_of(&args->k, args->tokens, c->dev.kv_heads, c->dev.k_dim);
    d.v = view_of(&args->v, args->tokens, c->dev.kv_heads, c->dev.v_dim);
    on_device here(c->device);
    const struct append_choice k = choose(&c->dev);
    void *params[] = {&d};
    return cuda_status(c->ctx, call,
                       cudaLaunchKernel(k.run, dim3(c->dev.kv_heads, args->n_seqs), dim3(APPEND_THREADS), params, k.shared_bytes, stream),
                       "launching a kernel");
}
