/* The CUDA that src/cuda is written in, on a CPU without a GPU: words of the language, of a thread, of its warp and of the runtime.
 * Found in place of the toolkit's header of the same name. Every thread of a block is a fiber; emulate.cpp runs them. */
#ifndef AURA_EMULATE_CUDA_RUNTIME_H
#define AURA_EMULATE_CUDA_RUNTIME_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define AURA_EMULATED 1
#define __CUDACC__ 1
#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static /* one block runs at a time */
#define __align__(n) __attribute__((aligned(n)))

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

struct alignas(8) uint2 { uint32_t x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
static inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

/* ---- arithmetic: compiled without contraction, as the device's code is ---------------------------------------------- */

static inline uint32_t min(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint32_t max(uint32_t a, uint32_t b) { return a > b ? a : b; }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline int __float2int_rn(float x) { return (int)rintf(x); }
static inline uint32_t __float_as_uint(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
static inline float __uint_as_float(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
static inline float __int_as_float(int u) { return __uint_as_float((uint32_t)u); }

template <class T>
static inline T emulate_dot(uint32_t a, uint32_t b, T sum)
{
    for (int i = 0; i < 32; i += 8)
        sum += T(0) > T(-1) ? (T)((int8_t)(a >> i) * (int8_t)(b >> i)) : (T)((uint8_t)(a >> i) * (uint8_t)(b >> i));
    return sum;
}
static inline int __dp4a(int a, int b, int c) { return emulate_dot<int>((uint32_t)a, (uint32_t)b, c); }
static inline uint32_t __dp4a(uint32_t a, uint32_t b, uint32_t c) { return emulate_dot<uint32_t>(a, b, c); }

/* ---- memory ----------------------------------------------------------------------------------------------------------- */

template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline void __stcg(T *p, T x) { *p = x; }
static inline void __threadfence() {}
static inline uint32_t atomicAdd(uint32_t *p, uint32_t x) { uint32_t before = *p; *p += x; return before; }
static inline uint32_t atomicCAS(uint32_t *p, uint32_t is, uint32_t x)
{
    const uint32_t before = *p;
    *p = before == is ? x : before;
    return before;
}
static inline uint32_t atomicMax(uint32_t *p, uint32_t x) { uint32_t before = *p; *p = before > x ? before : x; return before; }
static inline uint32_t atomicExch(uint32_t *p, uint32_t x) { uint32_t before = *p; *p = x; return before; }
static inline uint32_t atomicOr(uint32_t *p, uint32_t x) { uint32_t before = *p; *p |= x; return before; }

/* ---- a thread and the others ------------------------------------------------------------------------------------------ */

void __syncthreads();
int __syncthreads_or(int condition);

/* What each lane of the warp had in `mine`, [32][words], when the last of them came. Valid until the next such call. */
const uint32_t (*emulate_warp(const uint32_t *mine, int words))[8];

static inline void __syncwarp() { emulate_warp(NULL, 0); }

static inline int __any_sync(uint32_t, int condition)
{
    uint32_t mine = condition != 0, any = 0;
    const uint32_t (*all)[8] = emulate_warp(&mine, 1);
    for (int i = 0; i < 32; i++)
        any |= all[i][0];
    return any != 0;
}

static inline uint32_t __ballot_sync(uint32_t, int condition)
{
    uint32_t mine = condition != 0, lanes = 0;
    const uint32_t (*all)[8] = emulate_warp(&mine, 1);
    for (int i = 0; i < 32; i++)
        lanes |= all[i][0] << i;
    return lanes;
}

static inline int __popc(uint32_t x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }

template <class T>
static inline T emulate_shuffle(T x, int from)
{
    static_assert(sizeof(T) == 4, "words");
    uint32_t mine;
    memcpy(&mine, &x, 4);
    memcpy(&x, emulate_warp(&mine, 1)[from], 4);
    return x;
}
template <class T>
static inline T __shfl_sync(uint32_t, T x, int from, int width = 32)
{
    int lane = threadIdx.x % 32;
    return emulate_shuffle(x, lane / width * width + (from & (width - 1)));
}
template <class T> static inline T __shfl_xor_sync(uint32_t, T x, int far)
{
    return emulate_shuffle(x, (int)(threadIdx.x % 32) ^ far);
}
template <class T>
static inline T __shfl_up_sync(uint32_t, T x, int far)
{
    int lane = threadIdx.x % 32;
    return emulate_shuffle(x, lane >= far ? lane - far : lane);
}

/* ---- the runtime: everything happens at once, or when a graph is launched --------------------------------------------- */

enum cudaError_t { cudaSuccess, cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaErrorLaunchFailure };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount, cudaDevAttrMaxSharedMemoryPerBlockOptin, cudaDevAttrComputeCapabilityMajor };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
typedef struct CUstream_st *cudaStream_t;
typedef struct emulate_graph *cudaGraph_t, *cudaGraphExec_t;
struct cudaDeviceProp {
    char name[64];
    int major, minor, multiProcessorCount;
    size_t totalGlobalMem;
};

cudaError_t cudaMalloc(void **p, size_t bytes);
template <class T> static inline cudaError_t cudaMalloc(T **p, size_t bytes) { return cudaMalloc((void **)p, bytes); }
cudaError_t cudaFree(void *p);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream = NULL);
cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind);
cudaError_t cudaMemset(void *to, int byte, size_t bytes);
cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream);
cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **params, size_t shared_bytes, cudaStream_t stream);
struct cudaFuncAttributes { int numRegs, maxDynamicSharedSizeBytes; };
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *kernel);
cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value);
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int threads, size_t shared_bytes);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *prop, int device);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaGetLastError();
const char *cudaGetErrorString(cudaError_t error);
const char *cudaGetErrorName(cudaError_t error);
cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

#endif
