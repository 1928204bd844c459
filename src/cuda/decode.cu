/* aura_cuda_unpack: tokens as f16 or bf16 numbers, for kernels of the caller's own.
 *
 * A block of threads makes the image (image.cuh) of 128 tokens of a head, in shared memory. Then a warp takes 16 tokens of a side:
 * they are the rows of A of products with a Walsh-Hadamard matrix of 16 channels, whose columns are in such an order that a lane
 * ends up with four channels side by side. The other channels of a lane are 16 apart, so the rest of the rotation is additions
 * within the lane, and nothing is shuffled. In rotated space the matrix is that of 1, and there is no rest.
 *
 * That is for codes of dims 64, 128 and 256 on both sides. Everything else is decoded number by number, a vector by a warp. */
#include "cache.cuh"
#include "image.cuh"
#include "rotate.cuh"
#include "split.cuh"

/* One call. a: only what names sequences is set. */
struct dev_unpack {
    struct dev_attend a;
    struct dev_images im;
    struct dev_view k, v;         /* data NULL: not wanted */
    uint32_t first, tokens;
    uint32_t rotated;
};

/* What a block has: tokens [from, to) of a head of a sequence, among those of an image. */
struct unpack_block {
    struct image_block image;
    uint32_t job, from, to;
    uint32_t gone;                /* 1: they are not there, and become NaN */
};

__device__ __forceinline__ struct unpack_block unpack_block_of(const struct dev_unpack &u)
{
    const struct dev_cache &c = u.a.c;
    const uint32_t head = blockIdx.y % c.kv_heads, first = (u.first / IMAGE_TOKENS + blockIdx.x) * IMAGE_TOKENS;
    struct unpack_block b = {};
    b.job = blockIdx.y / c.kv_heads;
    struct seq_now now = seq_at(u.a, b.job);
    b.from = max(first, u.first), b.to = min(first + IMAGE_TOKENS, u.first + u.tokens);
    b.gone = now.seq >= c.n_seqs;
    if (now.top && u.first < now.len && !aura_window_has(&c.window, aura_window_first(&c.window, now.top), u.first, now.len)) {
        if (threadIdx.x == 0)
            atomicOr(&c.seqs[now.seq].status, (uint32_t)AURA_CUDA_GONE);
        b.gone = 1;
    }
    if (b.gone)
        now.len = now.closed = 0;
    b.image = image_block_of(c, now.seq, now.len, now.closed, head, first);
    return b;
}

__device__ __forceinline__ int64_t unpacked_at(const struct dev_unpack &u, const struct dev_view &to, const struct unpack_block &b,
                                               uint32_t token)
{
    return b.job * to.seq + (token - u.first) * to.token + b.image.head * to.head;
}

/* ---- by products ------------------------------------------------------------------------------------------------------ */

/* B of the products: column n of number `half` is channel 4 (n / 2) + n % 2 + 2 half. */
__device__ __forceinline__ uint32_t matrix_pair(uint32_t row, uint32_t column, bool rotated)
{
    uint32_t pair = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t r = row + i, sign = __popc(r & column) & 1;
        pair |= (rotated ? (r == column ? 0x3c00u : 0u) : 0x3c00u | sign << 15) << 16 * i;
    }
    return pair;
}

/* The lane's four channels, from `channel` on, of a token. */
__device__ __forceinline__ void store_four(const struct dev_view &to, int64_t at, const float (&x)[4])
{
    uint2 word;
    if (to.dtype == AURA_F16)
        word = make_uint2(bits_of(__floats2half2_rn(x[0], x[1])), bits_of(__floats2half2_rn(x[2], x[3])));
    else
        word = make_uint2(bf16_bits(x[0]) | (uint32_t)bf16_bits(x[1]) << 16, bf16_bits(x[2]) | (uint32_t)bf16_bits(x[3]) << 16);
    uint16_t *p = (uint16_t *)to.data + at;
    if ((uintptr_t)p % 8 == 0) {
        *(uint2 *)p = word;
        return;
    }
    p[0] = (uint16_t)word.x, p[1] = (uint16_t)(word.x >> 16), p[2] = (uint16_t)word.y, p[3] = (uint16_t)(word.y >> 16);
}

/* A of 16 tokens, from `token` of the image on, and channels 16 j ...; a lane says where one row of a matrix is. */
template <bool VALUES>
__device__ __forceinline__ void load_tokens(uint32_t (&a)[4], const struct dev_unpack &u, const uint8_t *image, uint32_t token,
                                            uint32_t j)
{
    const uint32_t lane = threadIdx.x % 32, row = lane % 8, second = lane / 8 % 2, right = lane / 16;
    if (VALUES)
        load_matrices_turned(a, image_chunk((uint8_t *)image + u.im.v_at + token / 64 * u.a.c.v_dim * 128,
                                            16 * j + 8 * right + row, token % 64 / 8 + second));
    else
        load_matrices(a, image_chunk((uint8_t *)image + j / 4 * (IMAGE_TOKENS * 128), token + 8 * second + row,
                                     j % 4 * 2 + right));
}

/* 16 tokens of a side. */
template <int D, bool VALUES>
__device__ __forceinline__ void unpack_tokens(const struct dev_unpack &u, const struct unpack_block &b, const uint8_t *image,
                                              uint32_t token, const uint32_t (&matrix)[2][2])
{
    constexpr int N = D / 16;
    const struct dev_cache &c = u.a.c;
    const struct dev_view &to = VALUES ? u.v : u.k;
    const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const float *inverse = u.rotated ? NULL : VALUES ? c.v_inverse_balance : c.inverse_balance;
    const float unit = (VALUES ? u.im.v.unit : u.im.k.unit) * (u.rotated ? 1.f : VALUES ? c.v_norm : c.k_norm);
    float x[N][2][4]; /* [][half][two channels of token g, two of token g + 8] */
#pragma unroll
    for (int j = 0; j < N; j++) {
        uint32_t a[4];
        load_tokens<VALUES>(a, u, image, token, j);
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[j][half][i] = 0;
            mma_f16(x[j][half], a[0], a[1], a[2], a[3], matrix[half][0], matrix[half][1]);
        }
    }
#pragma unroll
    for (int stride = 1; stride < N; stride *= 2)
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (!(j & stride) && !u.rotated) {
                    const float low = x[j][i / 4][i % 4], high = x[j + stride][i / 4][i % 4];
                    x[j][i / 4][i % 4] = low + high, x[j + stride][i / 4][i % 4] = low - high;
                }
#pragma unroll
    for (int j = 0; j < N; j++) {
        const uint32_t channel = 16 * j + 4 * t, signs = u.rotated ? 0 : (VALUES ? c.v_sign : c.k_sign)[j / 2] >> channel % 32;
        float factor[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            factor[i] = signs >> i & 1 ? -unit : unit;
            if (inverse)
                factor[i] *= inverse[(size_t)b.image.head * D + channel + i];
        }
#pragma unroll
        for (int second = 0; second < 2; second++) {
            const uint32_t at = b.image.first + token + g + 8 * second;
            const float four[4] = {x[j][0][2 * second] * factor[0], x[j][0][2 * second + 1] * factor[1],
                                   x[j][1][2 * second] * factor[2], x[j][1][2 * second + 1] * factor[3]};
            if (at >= b.from && at < b.to)
                store_four(to, unpacked_at(u, to, b, at) + channel, four);
        }
    }
}

/* What is not there, as NaN. */
__device__ __forceinline__ void unpack_nothing(const struct dev_unpack &u, const struct unpack_block &b, bool values)
{
    const struct dev_view &to = values ? u.v : u.k;
    const uint32_t dim = values ? u.a.c.v_dim : u.a.c.k_dim;
    if (to.data)
        for (uint32_t i = threadIdx.x; i < (b.to - b.from) * dim; i += IMAGE_THREADS)
            store_element(to.data, to.dtype, unpacked_at(u, to, b, b.from + i / dim) + i % dim, NAN);
}

/* MOST: the largest dim. Of eight warps the first four have keys, the others values, where both are wanted. */
template <int MOST>
__device__ __forceinline__ void unpack_by_products(const struct dev_unpack &u)
{
    const struct unpack_block b = unpack_block_of(u);
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    uint8_t *image = dynamic_shared();
    if (b.gone) {
        unpack_nothing(u, b, false), unpack_nothing(u, b, true);
        return;
    }
    make_image(u.im, u.a.c, b.image, image, threadIdx.x);
    uint32_t matrix[2][2];
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            matrix[half][i] = matrix_pair(8 * i + 2 * t, 4 * (g / 2) + g % 2 + 2 * half, u.rotated);
    __syncthreads();
    for (uint32_t i = warp; i < 2 * (IMAGE_TOKENS / 16); i += IMAGE_THREADS / 32) {
        const uint32_t token = i % 8 * 16;
        const bool values = i >= 8;
        if (!(values ? u.v.data : u.k.data) || b.image.first + token >= b.to || b.image.first + token + 16 <= b.from)
            continue;
#define UNPACK_DIM(dim, ...)                                                      \
    if (dim <= MOST && (values ? u.a.c.v_dim : u.a.c.k_dim) == dim) {             \
        if (values)                                                               \
            unpack_tokens<dim <= MOST ? dim : 64, true>(u, b, image, token, matrix);  \
        else                                                                      \
            unpack_tokens<dim <= MOST ? dim : 64, false>(u, b, image, token, matrix); \
    }
        AURA_CUDA_DIMS(UNPACK_DIM)
#undef UNPACK_DIM
    }
}

extern "C" __global__ void __launch_bounds__(IMAGE_THREADS, 3) aura_unpack_d128_cuda(const __grid_constant__ struct dev_unpack u)
{
    unpack_by_products<128>(u);
}

extern "C" __global__ void __launch_bounds__(IMAGE_THREADS, 1) aura_unpack_d256_cuda(const __grid_constant__ struct dev_unpack u)
{
    unpack_by_products<256>(u);
}

/* ---- number by number ------------------------------------------------------------------------------------------------- */

/* The undoing of a rotation has the transpose of its Paley factor. */
struct unpack_space {
    uint32_t k_undo[32];
    float y[IMAGE_THREADS / 32][2][AURA_TILE_DIM];
};

extern "C" __global__ void __launch_bounds__(IMAGE_THREADS) aura_unpack_any_cuda(const __grid_constant__ struct dev_unpack u)
{
    const struct dev_cache &c = u.a.c;
    const struct dev_codecs *p = c.codecs;
    const struct unpack_block b = unpack_block_of(u);
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    struct unpack_space &s = *(struct unpack_space *)dynamic_shared();
    if (b.gone) {
        unpack_nothing(u, b, false), unpack_nothing(u, b, true);
        return;
    }
    if (warp == 0) {
        uint32_t column = 0;
        for (uint32_t j = 0; j < 32; j++)
            column |= (p->paley[0][j] >> lane & 1) << j;
        s.k_undo[lane] = column;
    }
    __syncthreads();
    float *y = s.y[warp][0], *space = s.y[warp][1];
    for (uint32_t i = 2 * b.from + warp; i < 2 * b.to; i += IMAGE_THREADS / 32) {
        const bool values = i % 2;
        const struct dev_view &to = values ? u.v : u.k;
        const uint32_t dim = values ? c.v_dim : c.k_dim, token = i / 2;
        if (!to.data)
            continue;
        __syncwarp();
        for (uint32_t d = lane; d < dim; d += 32)
            y[d] = stored_number(c, b.image, values, token, d);
        __syncwarp();
        if (!u.rotated && (values ? c.v_rows : c.k_rows)) {
            hadamard_shared(y, space, values ? p->paley[2] : s.k_undo, values ? p->v_inner : p->k_inner,
                            values ? p->v_outer : p->k_outer);
            sign_and_scale(y, dim, values ? c.v_sign : c.k_sign, values ? c.v_norm : c.k_norm);
        }
        for (uint32_t d = lane; d < dim; d += 32) {
            const float *inverse = u.rotated ? NULL : values ? c.v_inverse_balance : c.inverse_balance;
            store_element(to.data, to.dtype, unpacked_at(u, to, b, token) + d,
                          inverse ? y[d] * inverse[(size_t)b.image.head * dim + d] : y[d]);
        }
    }
}

/* ---- the call --------------------------------------------------------------------------------------------------------- */

static bool is_by_products(const struct dev_cache &c)
{
    bool k = false, v = false;
#define IS_DIM(dim, ...) k |= c.k_dim == dim, v |= c.v_dim == dim;
    AURA_CUDA_DIMS(IS_DIM)
#undef IS_DIM
    return k && v && aura_is_packed(c.k_kind) && aura_is_packed(c.v_kind);
}

static bool is_good_view(const aura_cuda_view *v)
{
    return !v->data || v->dtype == AURA_F16 || v->dtype == AURA_BF16;
}

static aura_status check_unpack(const aura_cuda_cache *c, const char *call, const aura_cuda_unpack_args *a)
{
    if (a->size != sizeof *a)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: args.size is %zu, this library knows %zu", call, a->size,
                                 sizeof *a);
    if (!a->seqs || (!a->k.data && !a->v.data))
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: %s NULL", call, a->seqs ? "k.data and v.data are" : "seqs is");
    if (a->n_seqs == 0 || a->n_seqs > ATTEND_MAX_SEQS || (uint64_t)a->n_seqs * c->dev.kv_heads > 65535 || a->rotated > 1)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT,
                                 "%s: %u sequences (1 to %d, with their KV heads 65535 at most) or rotated %u (0 or 1)", call,
                                 a->n_seqs, (int)ATTEND_MAX_SEQS, a->rotated);
    if (a->tokens == 0 || a->first >= 1ull << 31 || a->first + a->tokens > 1ull << 31)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: tokens %llu and %u more (at least 1, below 2^31)", call,
                                 (unsigned long long)a->first, a->tokens);
    if (!is_good_view(&a->k) || !is_good_view(&a->v))
        return aura_backend_fail(c->ctx, AURA_UNSUPPORTED, "%s: k.dtype %d or v.dtype %d is not f16 or bf16", call,
                                 (int)a->k.dtype, (int)a->v.dtype);
    return AURA_OK;
}

extern "C" aura_status aura_cuda_unpack(const aura_cuda_cache *c, const aura_cuda_unpack_args *args, struct CUstream_st *stream)
{
    const char *call = "aura_cuda_unpack";
    if (!c || !args)
        return aura_backend_fail(c ? c->ctx : NULL, AURA_BAD_ARGUMENT, "%s: %s is NULL", call, c ? "args" : "cache");
    aura_status status = check_unpack(c, call, args);
    if (status)
        return status;
    struct dev_unpack u = {};
    u.a.c = c->dev, u.a.seqs = args->seqs, u.a.n_seqs = args->n_seqs;
    u.im = aura_cuda_images_of(&c->dev);
    u.k = view_of(&args->k, args->tokens, c->dev.kv_heads, c->dev.k_dim);
    u.v = view_of(&args->v, args->tokens, c->dev.kv_heads, c->dev.v_dim);
    u.first = (uint32_t)args->first, u.tokens = args->tokens, u.rotated = args->rotated;
    const bool products = is_by_products(c->dev) && u.im.bytes <= c->shared_limit, large = c->dev.k_dim + c->dev.v_dim > 256;
    const void *run = !products ? (const void *)aura_unpack_any_cuda
                      : large   ? (const void *)aura_unpack_d256_cuda
                                : (const void *)aura_unpack_d128_cuda;
    const char *name = !products ? "unpack_any_cuda" : large ? "unpack_d256_cuda" : "unpack_d128_cuda";
    const uint32_t shared_bytes = products ? u.im.bytes : (uint32_t)sizeof(struct unpack_space);
    on_device here(c->device);
    status = cuda_status(c->ctx, call, aura_cuda_allow_shared(run, shared_bytes), "preparing a kernel");
    const uint32_t blocks = (u.first + u.tokens - 1) / IMAGE_TOKENS - u.first / IMAGE_TOKENS + 1;
    void *params[] = {&u};
    const struct launch how = {dim3(blocks, c->dev.kv_heads * u.a.n_seqs), IMAGE_THREADS, shared_bytes, stream};
    return status ? status : aura_cuda_launch(c, call, name, run, how, params);
}
