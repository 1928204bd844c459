/* Rows: rotate, undo, encode, also as TQ. A warp takes a row at a time, with the operations and the order of ref.c: the bits are
 * the CPU's. */
#include "rows.cuh"

#include <string.h>

enum { CODEC_WARPS = 4 }; /* of a block */

/* Blocks for so many rows, a warp each; rows beyond them are taken in turns. */
static uint32_t blocks_for(const aura_cuda_rows *rows, size_t n)
{
    const size_t most = (size_t)rows->multiprocessors * 16, wanted = (n + CODEC_WARPS - 1) / CODEC_WARPS;
    return (uint32_t)(wanted < most ? wanted : most);
}

/* ---- rotate, undo ------------------------------------------------------------------------------------------------- */

struct dev_rotate {
    const void *in;
    void *out;
    uint32_t in_dtype, out_dtype;
    size_t rows, in_stride, out_stride;
    struct dev_rotation rotation;
};

extern "C" __global__ void __launch_bounds__(32 * CODEC_WARPS) aura_rows_rotate_cuda(const __grid_constant__ struct dev_rotate a)
{
    const uint32_t dim = a.rotation.dim, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float *y = (float *)dynamic_shared() + warp * 2 * dim;
    for (size_t row = (size_t)blockIdx.x * CODEC_WARPS + warp; row < a.rows; row += (size_t)gridDim.x * CODEC_WARPS) {
        for (uint32_t d = lane; d < dim; d += 32)
            y[d] = load_element(a.in, a.in_dtype, (int64_t)(row * a.in_stride + d));
        __syncwarp();
        rotate_row(y, y + dim, a.rotation);
        for (uint32_t d = lane; d < dim; d += 32)
            store_element(a.out, a.out_dtype, (int64_t)(row * a.out_stride + d), y[d]);
        __syncwarp();
    }
}

static aura_status rotate(aura_cuda_rows *rows, const char *name, const aura_rotate_args *a, int undo, struct CUstream_st *stream)
{
    aura_status status = check_rows_handle(rows, name);
    if (status)
        return status;
    const struct aura_call call = {rows->ctx, name};
    if ((status = aura_check_call(call, a, sizeof *a)) ||
        (status = aura_check_rotation_shape(call, a->rotation, a->rotation ? a->rotation->dim : 0)) ||
        (status = aura_check_rotate(call, a)) || a->rows == 0)
        return status;
    const uint32_t dim = a->rotation->dim;
    struct dev_rotate d = {a->in,
                           a->out,
                           (uint32_t)a->in_dtype,
                           (uint32_t)a->out_dtype,
                           a->rows,
                           aura_or(a->in_stride, dim),
                           aura_or(a->out_stride, dim),
                           aura_cuda_rotation_of(a->rotation, undo)};
    const struct launch how = {dim3(blocks_for(rows, a->rows)), 32 * CODEC_WARPS, CODEC_WARPS * 2 * dim * sizeof(float), stream};
    void *params[] = {&d};
    return aura_cuda_rows_launch(rows, name, "rows_rotate_cuda", (const void *)aura_rows_rotate_cuda, how, params);
}

extern "C" aura_status aura_cuda_rotate(aura_cuda_rows *rows, const aura_rotate_args *args, struct CUstream_st *stream)
{
    return rotate(rows, "aura_cuda_rotate", args, 0, stream);
}

extern "C" aura_status aura_cuda_undo(aura_cuda_rows *rows, const aura_rotate_args *args, struct CUstream_st *stream)
{
    return rotate(rows, "aura_cuda_undo", args, 1, stream);
}

/* ---- encode ------------------------------------------------------------------------------------------------------- */

struct dev_row_encode {
    const void *in;
    uint8_t *packed;
    void *scales;
    uint32_t in_dtype, scale_dtype;
    size_t rows, in_stride, packed_stride;
    struct dev_rows_status *status;
    uint32_t dim, bits, row_bytes, uniform, rule, keep_tiny, n_fits;
    float tiny, fits[9], sigma, top;
    struct dev_rotation rotation;
    float centroid[256], threshold[256];
};

/* The order of aura_ref_dot: lane i of either half of the warp has the elements i, i + 16 ...; then halves are added. */
template <class TERM>
__device__ __forceinline__ float half_warp_dot(uint32_t dim, TERM term)
{
    float sum = 0;
    for (uint32_t d = threadIdx.x % 16; d < dim; d += 16)
        sum = __fadd_rn(sum, term(d));
    for (int far = 8; far; far /= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, far));
    return sum;
}

/* How many thresholds are below x; NaN: none. */
__device__ __forceinline__ uint32_t index_of(const float *threshold, uint32_t bits, float x)
{
    uint32_t index = 0;
    for (uint32_t step = 1u << (bits - 1); step; step /= 2)
        index += x > threshold[index + step - 1] ? step : 0;
    return index;
}

/* A row that is being encoded: in shared memory, with the tables. */
struct row_codec {
    const struct dev_row_encode &a;
    const float *y, *centroid, *threshold;
    float norm2, norm, largest;
    __device__ __forceinline__ float gain(float fit) const
    {
        if (norm <= a.tiny)
            return 0;
        return a.uniform ? __fdiv_rn(__fmul_rn(fit, a.top), largest)
                         : __fdiv_rn(__fmul_rn(fit, a.sigma), __fsqrt_rn(__fdiv_rn(norm2, (float)a.dim)));
    }
    __device__ __forceinline__ uint32_t code(uint32_t d, float factor) const
    {
        return index_of(threshold, a.bits, __fmul_rn(y[d], factor));
    }
    /* <y,c> and <c,c> of the codes with this factor; of each half of the warp its own. */
    __device__ __forceinline__ void fit(float factor, float *dot, float *size2) const
    {
        *dot = half_warp_dot(a.dim, [&](uint32_t d) { return __fmul_rn(y[d], centroid[code(d, factor)]); });
        *size2 = half_warp_dot(a.dim, [&](uint32_t d) {
            const float c = centroid[code(d, factor)];
            return __fmul_rn(c, c);
        });
    }
    /* The fit with the best cosine, the first among equals. The halves of the warp try every other one. */
    __device__ __forceinline__ float best_fit() const
    {
        float best = -1;
        uint32_t which = 0;
        if (a.n_fits == 1)
            return a.fits[0];
        for (uint32_t k = threadIdx.x % 32 / 16; k - threadIdx.x % 32 / 16 < a.n_fits; k += 2) { /* as often in both halves */
            float dot, size2;
            fit(gain(a.fits[min(k, a.n_fits - 1)]), &dot, &size2);
            const float cosine = __fdiv_rn(dot, __fsqrt_rn(size2));
            if (k < a.n_fits && cosine > best)
                best = cosine, which = k;
        }
        const float other = __shfl_xor_sync(~0u, best, 16);
        const uint32_t its = __shfl_xor_sync(~0u, which, 16);
        return a.fits[other > best || (other == best && its < which) ? its : which];
    }
    __device__ __forceinline__ float scale(float dot, float size2) const
    {
        if ((norm <= a.tiny && !a.keep_tiny) || size2 == 0)
            return 0;
        if (a.rule == AURA_SCALE_MATCHED)
            return __fdiv_rn(norm, __fsqrt_rn(size2));
        if (a.rule == AURA_SCALE_UNBIASED)
            return dot > 0 ? __fdiv_rn(norm2, dot) : 0;
        return __fdiv_rn(__fsqrt_rn(__fdiv_rn(norm2, (float)a.dim)), a.sigma);
    }
};

/* Loads a row of `dim` numbers into y; false where a coordinate cannot be encoded. */
__device__ __forceinline__ bool load_good_row(float *y, const struct dev_row_encode &a, size_t row, uint32_t dim)
{
    bool bad = false;
    for (uint32_t d = threadIdx.x % 32; d < dim; d += 32) {
        y[d] = load_element(a.in, a.in_dtype, (int64_t)(row * a.in_stride + d));
        bad |= !(fabsf(a.rotation.balance ? __fmul_rn(y[d], a.rotation.balance[d]) : y[d]) <= 0x1p40f);
    }
    return !__any_sync(~0u, bad);
}

/* The codes, in place of y's copy in `space`, as one stream of bits. */
__device__ __forceinline__ void store_codes(uint8_t *packed, uint8_t *codes, const struct row_codec &c, float factor)
{
    const uint32_t lane = threadIdx.x % 32, bits = c.a.bits;
    for (uint32_t d = lane; d < c.a.dim; d += 32)
        codes[d] = (uint8_t)c.code(d, factor);
    __syncwarp();
    for (uint32_t i = lane; i < c.a.row_bytes; i += 32) {
        uint32_t byte = 0;
        for (uint32_t d = 8 * i / bits; d < c.a.dim && d * bits < 8 * i + 8; d++)
            byte |= d * bits < 8 * i ? (uint32_t)codes[d] >> (8 * i - d * bits) : (uint32_t)codes[d] << (d * bits - 8 * i);
        packed[i] = (uint8_t)byte;
    }
}

/* The vector in y, rotated: its codes to `packed`; codes: space. Returns false, and nothing is written, where its scale does not
 * fit its type. */
__device__ __forceinline__ bool encode_vector(const struct dev_row_encode &a, const float *tables, const float *y, uint8_t *codes,
                                              uint8_t *packed, float &scale)
{
    struct row_codec c = {a, y, tables, tables + 256, 0, 0, 0};
    float largest = 0, dot, size2;
    for (uint32_t d = threadIdx.x % 32; d < a.dim; d += 32)
        largest = fmaxf(largest, fabsf(y[d]));
    for (int far = 16; far; far /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, far));
    c.norm2 = half_warp_dot(a.dim, [&](uint32_t d) { return __fmul_rn(y[d], y[d]); });
    c.norm = __fsqrt_rn(c.norm2), c.largest = largest;
    const float factor = c.gain(c.best_fit());
    c.fit(factor, &dot, &size2);
    scale = c.scale(dot, size2);
    if (a.scale_dtype == AURA_F16 && is_beyond(scale, AURA_F16))
        return false;
    store_codes(packed, codes, c, factor);
    return true;
}

/* Returns false where the row was not encoded. */
__device__ __forceinline__ bool encode_one(const struct dev_row_encode &a, const float *tables, float *y, size_t row)
{
    float scale;
    if (!load_good_row(y, a, row, a.dim))
        return false;
    __syncwarp();
    rotate_row(y, y + a.dim, a.rotation);
    if (!encode_vector(a, tables, y, (uint8_t *)(y + a.dim), a.packed + row * a.packed_stride, scale))
        return false;
    if (threadIdx.x % 32 == 0)
        store_element(a.scales, a.scale_dtype, (int64_t)row, scale);
    return true;
}

extern "C" __global__ void __launch_bounds__(32 * CODEC_WARPS)
    aura_rows_encode_cuda(const __grid_constant__ struct dev_row_encode a)
{
    float *tables = (float *)dynamic_shared();
    const uint32_t warp = threadIdx.x / 32;
    for (uint32_t i = threadIdx.x; i < 256; i += blockDim.x)
        tables[i] = a.centroid[i], tables[256 + i] = a.threshold[i];
    __syncthreads();
    float *y = tables + 512 + warp * 2 * a.dim;
    for (size_t row = (size_t)blockIdx.x * CODEC_WARPS + warp; row < a.rows; row += (size_t)gridDim.x * CODEC_WARPS) {
        if (!encode_one(a, tables, y, row) && threadIdx.x % 32 == 0)
            note_row(&a.status->bad_values, &a.status->bad_values_before, row);
        __syncwarp();
    }
}

static void describe_codec(struct dev_row_encode *d, const struct aura_codec_plan &plan, uint32_t dim)
{
    d->dim = dim, d->bits = plan.bits, d->row_bytes = plan.row_bytes, d->uniform = plan.uniform, d->rule = (uint32_t)plan.rule;
    d->tiny = plan.tiny, d->keep_tiny = (uint32_t)plan.keep_tiny;
    d->n_fits = plan.n_fits, d->sigma = plan.sigma, d->top = plan.top;
    memcpy(d->fits, plan.fits, sizeof d->fits);
    memcpy(d->centroid, plan.centroid, sizeof d->centroid);
    memcpy(d->threshold, plan.threshold, sizeof d->threshold);
}

extern "C" aura_status aura_cuda_encode(aura_cuda_rows *rows, const aura_encode_args *a, struct CUstream_st *stream)
{
    const char *name = "aura_cuda_encode";
    aura_status status = check_rows_handle(rows, name);
    if (status)
        return status;
    const struct aura_call call = {rows->ctx, name};
    if ((status = aura_check_encode(call, a)) ||
        (a->rotation && (status = aura_check_rotation_shape(call, a->rotation, a->dim))) || a->rows == 0)
        return status;
    struct dev_row_encode d;
    struct aura_codec_plan plan;
    memset(&d, 0, sizeof d);
    aura_codec_plan_init(&plan, a->codebook, a->dim, a->rule, a->search);
    describe_codec(&d, plan, a->dim);
    d.tiny = a->tiny > 0 ? a->tiny : plan.tiny, d.keep_tiny = a->tiny > 0;
    d.in = a->in, d.packed = (uint8_t *)a->packed, d.scales = a->scales, d.rows = a->rows, d.status = rows->status;
    d.in_dtype = (uint32_t)a->in_dtype, d.scale_dtype = (uint32_t)a->scale_dtype;
    d.in_stride = aura_or(a->in_stride, a->dim), d.packed_stride = aura_or(a->packed_stride, d.row_bytes);
    d.rotation = aura_cuda_rotation_of(a->rotation, 0);
    const struct launch how = {dim3(blocks_for(rows, a->rows)), 32 * CODEC_WARPS, (512 + CODEC_WARPS * 2 * a->dim) * sizeof(float),
                               stream};
    void *params[] = {&d};
    return aura_cuda_rows_launch(rows, name, "rows_encode_cuda", (const void *)aura_rows_encode_cuda, how, params);
}

/* ---- TQ -------------------------------------------------------------------------------------------------------------- */

/* Rows of tokens times heads, each of one or two parts with a norm of its own. codec: of a part. */
struct dev_tq_encode {
    struct dev_row_encode codec;
    uint64_t tokens, capacity, first; /* slot of token 0; slots go round */
    uint32_t kv_heads, parts;
};

/* Returns false where the row was not encoded. */
__device__ __forceinline__ bool encode_tq(const struct dev_tq_encode &a, const float *tables, float *y, uint64_t row)
{
    const uint32_t dim = a.parts * AURA_TQ_PART;
    const uint64_t slot = a.first + row / a.kv_heads, around = slot < a.capacity ? slot : slot - a.capacity;
    const uint64_t to = row % a.kv_heads * a.capacity + around;
    if (!load_good_row(y, a.codec, row, dim))
        return false;
    __syncwarp();
    rotate_row(y, y + dim, a.codec.rotation);
    for (uint32_t part = 0; part < a.parts; part++) {
        const uint64_t at = to * a.parts + part;
        float rms;
        encode_vector(a.codec, tables, y + part * AURA_TQ_PART, (uint8_t *)(y + dim), a.codec.packed + at * a.codec.row_bytes, rms);
        if (threadIdx.x % 32 == 0)
            ((float *)a.codec.scales)[at] = a.parts == 1 ? __fmul_rn(16, rms) : rms;
        __syncwarp();
    }
    return true;
}

extern "C" __global__ void __launch_bounds__(32 * CODEC_WARPS)
    aura_rows_tq_encode_cuda(const __grid_constant__ struct dev_tq_encode a)
{
    float *tables = (float *)dynamic_shared();
    const uint32_t warp = threadIdx.x / 32;
    for (uint32_t i = threadIdx.x; i < 256; i += blockDim.x)
        tables[i] = a.codec.centroid[i], tables[256 + i] = a.codec.threshold[i];
    __syncthreads();
    float *y = tables + 512 + warp * 2 * a.parts * AURA_TQ_PART;
    for (uint64_t row = (uint64_t)blockIdx.x * CODEC_WARPS + warp; row < a.codec.rows; row += (uint64_t)gridDim.x * CODEC_WARPS) {
        if (!encode_tq(a, tables, y, row) && threadIdx.x % 32 == 0)
            note_row(&a.codec.status->bad_values, &a.codec.status->bad_values_before, row);
        __syncwarp();
    }
}

extern "C" aura_status aura_cuda_tq_encode(aura_cuda_rows *rows, const aura_tq_encode_args *a, struct CUstream_st *stream)
{
    const char *name = "aura_cuda_tq_encode";
    aura_status status = check_rows_handle(rows, name);
    if (status)
        return status;
    const struct aura_call call = {rows->ctx, name};
    if ((status = aura_check_tq_encode(call, a)) || a->tokens == 0)
        return status;
    aura_rotation rotation = AURA_ROTATION_INIT;
    struct aura_codec_plan plan;
    struct dev_tq_encode d;
    memset(&d, 0, sizeof d);
    rotation.dim = a->dim, rotation.signs = aura_tq_signs(a->dim);
    aura_tq_plan(&plan, a->dim, a->bits, a->scale_factor_d512);
    describe_codec(&d.codec, plan, AURA_TQ_PART);
    d.codec.in = a->in, d.codec.in_dtype = (uint32_t)a->in_dtype, d.codec.in_stride = a->dim;
    d.codec.packed = (uint8_t *)a->packed, d.codec.scales = a->norms, d.codec.scale_dtype = AURA_F32;
    d.codec.rows = (size_t)a->tokens * a->kv_heads, d.codec.status = rows->status;
    d.codec.rotation = aura_cuda_rotation_of(&rotation, 0);
    d.tokens = a->tokens, d.capacity = a->capacity, d.first = a->sliding ? a->write_pos % a->capacity : a->write_pos;
    d.kv_heads = a->kv_heads, d.parts = a->dim / AURA_TQ_PART;
    const struct launch how = {dim3(blocks_for(rows, d.codec.rows)), 32 * CODEC_WARPS,
                               (512 + CODEC_WARPS * 2 * a->dim) * sizeof(float), stream};
    void *params[] = {&d};
    return aura_cuda_rows_launch(rows, name, "rows_tq_encode_cuda", (const void *)aura_rows_tq_encode_cuda, how, params);
}
