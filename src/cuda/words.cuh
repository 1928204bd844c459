/* Instructions that CUDA C has no word for. All inline assembly is here. test/cuda/emulate/emulated_words.h has the same words
 * in C++, so that a CPU can run everything else. */
#ifndef AURA_CUDA_WORDS_CUH
#define AURA_CUDA_WORDS_CUH

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#ifdef AURA_EMULATED
#include <emulated_words.h>
#else

__device__ __forceinline__ uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector)
{
    uint32_t d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return d;
}

/* x >> 16, as a product of halves: shifts share the unit that prmt needs, which has most to do. k4v4 of dim 64 48.9 -> 47.0 us,
 * of eight rows 90.1 -> 86.6, of 16 rows 135.6 -> 139.2 (H200, 8 x 32768); a multiplication's upper word instead is slower than
 * the shift. */
__device__ __forceinline__ uint32_t upper_half(uint32_t x)
{
    uint32_t d;
    asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(x), "r"(0x100), "r"(0));
    return d;
}

/* The lower and the upper half of x with all bits turned, in the lower 16 bits of the result; the others may be anything. By the
 * unit of upper_half(): with XOR, lower halves would be another instruction of the busiest one. */
__device__ __forceinline__ uint32_t lower_turned(uint32_t x)
{
    uint32_t d;
    asm("dp2a.lo.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(x), "r"(0x00ff), "r"(-1));
    return d;
}

__device__ __forceinline__ uint32_t upper_turned(uint32_t x)
{
    uint32_t d;
    asm("dp2a.lo.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(x), "r"(0xff00), "r"(-1));
    return d;
}

/* The bits of x where the mask has one, else those of y: one instruction, where the compiler makes two of
 * (x & mask) | (y & ~mask). */
__device__ __forceinline__ uint32_t picked(uint32_t mask, uint32_t x, uint32_t y)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(d) : "r"(mask), "r"(x), "r"(y));
    return d;
}

/* The same, with the bits of x turned. */
__device__ __forceinline__ uint32_t picked_turned(uint32_t mask, uint32_t x, uint32_t y)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0x3a;" : "=r"(d) : "r"(mask), "r"(x), "r"(y));
    return d;
}

__device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Over all lanes, by one instruction. */
__device__ __forceinline__ int warp_sum(int x)
{
    return __reduce_add_sync(~0u, x);
}

/* The largest of numbers that are not negative: their bits are in the same order. */
__device__ __forceinline__ float warp_largest(float x)
{
    return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(x)));
}

/* Adds one, or more, to the counter and returns what it was. Blocks that arrive later see all that this block wrote before its last
 * barrier. */
__device__ __forceinline__ uint32_t arrive(uint32_t *counter, uint32_t by = 1)
{
    uint32_t before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(by) : "memory");
    return before;
}

/* What another block has arrived at: all that it wrote before can be read. */
__device__ __forceinline__ uint32_t load_acquire(const uint32_t *p)
{
    uint32_t x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}

/* The same, but what the other block wrote may not be there yet. The first cache stays as it is. */
__device__ __forceinline__ uint32_t load_relaxed(const uint32_t *p)
{
    uint32_t x;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}

/* Between two looks at what another block is to write. */
__device__ __forceinline__ void wait_a_little()
{
    __nanosleep(200);
}

__device__ __forceinline__ uint16_t bf16_bits(float x)
{
    uint16_t y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float reciprocal_approx(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Of normal numbers. */
__device__ __forceinline__ float rsqrt_approx(float x)
{
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Loads bytes that nobody will read again: they do not go into the first cache. */
__device__ __forceinline__ uint4 load_once(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* Stores bytes that nobody reads soon, so that they are the first to leave the caches; if `wanted`, without a branch. No thread of
 * the kernel may read them: the compiler is free to move other loads and stores past it. */
__device__ __forceinline__ void store_once_if(bool wanted, void *p, uint4 v)
{
    asm volatile("{\n\t.reg .pred wanted;\n\tsetp.ne.u32 wanted, %0, 0;\n\t"
                 "@wanted st.global.cs.v4.u32 [%1], {%2, %3, %4, %5};\n\t}" ::"r"((uint32_t)wanted),
                 "l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w));
}

/* The same for bytes that others will read soon. */
__device__ __forceinline__ void store_if(bool wanted, void *p, uint4 v)
{
    asm volatile("{\n\t.reg .pred wanted;\n\tsetp.ne.u32 wanted, %0, 0;\n\t"
                 "@wanted st.global.v4.u32 [%1], {%2, %3, %4, %5};\n\t}" ::"r"((uint32_t)wanted),
                 "l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w));
}

/* Starts a copy of 16 bytes to shared memory. The thread that started it can read them after copies_arrived(). */
__device__ __forceinline__ void copy_ahead(void *shared, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(from)
                 : "memory");
}

/* The same, if `wanted`; without a branch. */
__device__ __forceinline__ void copy_ahead_if(bool wanted, void *shared, const void *from)
{
    asm volatile("{\n\t.reg .pred wanted;\n\tsetp.ne.u32 wanted, %2, 0;\n\t"
                 "@wanted cp.async.cg.shared.global [%0], [%1], 16;\n\t}" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(from), "r"((uint32_t)wanted)
                 : "memory");
}

__device__ __forceinline__ void copies_arrived()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* copies_grouped() makes one group of all copies since the last call of it. After copies_but_last_arrived(), all groups except
 * the last one have arrived. */
__device__ __forceinline__ void copies_grouped()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ __forceinline__ void copies_but_last_arrived()
{
    asm volatile("cp.async.wait_group 1;" ::: "memory");
}

/* D = A B + C for 16 x 32 bytes and 32 x 8 bytes: keys and values on the rows of A, (query row, plane) on the columns of B. C is
 * its own operand, so that what many sums begin with is kept once and not moved to each. */
#define MMA_BYTES(name, a_type, b_type)                                                                                \
    __device__ __forceinline__ void name(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,  \
                                         uint32_t b1, const int *c)                                                    \
    {                                                                                                                  \
        asm("mma.sync.aligned.m16n8k32.row.col.s32." a_type "." b_type                                                 \
            ".s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"                                 \
            : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])                                                           \
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));       \
    }
MMA_BYTES(mma_u8s8, "u8", "s8")
MMA_BYTES(mma_s8s8, "s8", "s8")
MMA_BYTES(mma_u8u8, "u8", "u8")
MMA_BYTES(mma_s8u8, "s8", "u8")
#undef MMA_BYTES

#define MMA_NUMBERS(name, type)                                                                                        \
    __device__ __forceinline__ void name(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, \
                                         uint32_t b1)                                                                  \
    {                                                                                                                  \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, " \
                     "{%8, %9}, {%0, %1, %2, %3};"                                                                     \
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                  \
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));                                          \
    }
MMA_NUMBERS(mma_f16, "f16")
MMA_NUMBERS(mma_bf16, "bf16")
#undef MMA_NUMBERS

/* What copy_tile() copies from; the driver makes it. */
struct alignas(64) tile_map {
    uint64_t opaque[16];
};

/* Four matrices of 8 x 8 numbers of 16 bits in shared memory; lane i has where row i % 8 of matrix i / 8 is, 16 bytes. A lane
 * (g, t) gets of each of them numbers 2 t and 2 t + 1 of row g. Turned: of rows 2 t and 2 t + 1, number g. */
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row)) : "memory");
}

__device__ __forceinline__ void load_matrices_turned(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row)) : "memory");
}

/* Asks the second cache for `bytes`, a multiple of 16. By a whole warp; it is one request where the device can do that. */
__device__ __forceinline__ void prefetch_bytes(const void *p, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 == 0)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes));
#else
    for (uint32_t at = threadIdx.x % 32 * 32; at < bytes; at += 32 * 32)
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const uint8_t *)p + at));
#endif
}

/* Asks the second cache for the line at p. */
__device__ __forceinline__ void prefetch(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* The number of the lane. The compiler keeps it in a register, because it does not know how to compute it again. kept(x) is x,
 * for the same purpose. */
__device__ __forceinline__ uint32_t lane_number()
{
    uint32_t lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

__device__ __forceinline__ uint32_t kept(uint32_t x)
{
    uint32_t y;
    asm volatile("mov.u32 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

__device__ __forceinline__ const uint8_t *kept(const uint8_t *p)
{
    const uint8_t *q;
    asm volatile("mov.u64 %0, %1;" : "=l"(q) : "l"(p));
    return q;
}

/* NaN where either is. */
__device__ __forceinline__ float largest_or_nan(float x, float y)
{
    float z;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}

/* By one lane: adds one and returns what it was. With atomicAdd() the compiler would first count the active lanes. */
__device__ __forceinline__ uint32_t take_next(uint32_t *shared)
{
    uint32_t before;
    asm volatile("atom.shared.add.u32 %0, [%1], 1;" : "=r"(before) : "r"((uint32_t)__cvta_generic_to_shared(shared)) : "memory");
    return before;
}

/* kept() for a pointer into shared memory. The compiler still knows that it points there: it takes one register, and loads from
 * shared memory are faster. */
__device__ __forceinline__ uint8_t *kept_shared(uint8_t *p)
{
    return (uint8_t *)__cvta_shared_to_generic(kept((uint32_t)__cvta_generic_to_shared(p)));
}

/* After this, every call of this process to the device fails. For checks. */
__device__ __forceinline__ void lose_everything()
{
    asm volatile("trap;");
}

/* Where something is in shared memory, as a number; and what is at such a place. */
__device__ __forceinline__ uint32_t shared_place(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

template <class T>
__device__ __forceinline__ T shared_at(uint32_t place)
{
    return *(const T *)__cvta_shared_to_generic(place);
}

/* The shared memory whose size the launch says. */
__device__ __forceinline__ uint8_t *dynamic_shared()
{
    extern __shared__ __align__(16) uint8_t shared[];
    return shared;
}

#endif

/* The same in all lanes, which the compiler then knows: products may be begun in branches that depend on it, and what is computed
 * from it is computed once for the warp. The latter only where no lane can be elsewhere: every branch around is uniform too. */
__device__ __forceinline__ uint32_t uniform(uint32_t x)
{
    return __shfl_sync(~0u, x, 0);
}

/* x once more, in a register of its own. Of two registers with the same number the compiler keeps one, also with kept(), and
 * copies it to where a product wants both; it does not know that lanes are below 32. */
__device__ __forceinline__ uint32_t another(uint32_t x)
{
    return x + lane_number() / 32;
}

#endif
