/* Tells the copy engine of sm_90 how tiles lie in memory. The driver makes the description; it is asked for by name, so that the
 * library needs no driver to link. */
#include "cache.cuh"

#ifdef AURA_EMULATED
static cudaError_t make_map(struct tile_map *map, const aura_cuda_cache *c, uint32_t rows)
{
    *map = {c->dev.pages, c->dev.head_bytes, tiles_of_copy(rows) * rows};
    return cudaSuccess;
}
#else
#include <cuda.h>

typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
                           const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static cudaError_t make_map(struct tile_map *map, const aura_cuda_cache *c, uint32_t rows)
{
    static_assert(sizeof *map == sizeof(CUtensorMap), "the driver's size");
    void *encode = NULL;
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
#else
    cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &encode, cudaEnableDefault, &found);
#endif
    if (error != cudaSuccess || !encode)
        return error != cudaSuccess ? error : cudaErrorNotSupported;
    const cuuint64_t dims[3] = {32, AURA_PAGE_TILES * rows, (cuuint64_t)c->n_pages * c->dev.kv_heads}, strides[2] = {128,
                                                                                                             c->dev.head_bytes};
    const cuuint32_t box[3] = {32, tiles_of_copy(rows) * rows, 1}, steps[3] = {1, 1, 1};
    const CUresult result = ((encode_fn *)encode)((CUtensorMap *)map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 3, c->dev.pages, dims,
                                                  strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorNotSupported;
}
#endif

aura_status aura_cuda_make_tile_map(aura_cuda_cache *c, const char *call, uint32_t rows)
{
    return cuda_status(c->ctx, call, make_map(&c->tiles, c, rows), "describing tiles");
}
