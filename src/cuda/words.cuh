/* What the device has an instruction for and CUDA C no word; all that there is of it. test/emulate says the same in C++, so that
 * everything else can be run where there is no GPU. */
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

/* x >> 16, as a product of halves: shifts share the unit that prmt needs, which has most to do. k4v4 of dim 64 48.9 -> 47.0 us, of
 * eight rows 90.1 -> 86.6, of 16 rows 135.6 -> 139.2 (H200, 8 x 32768); a multiplication's upper word instead is slower than the
 * shift. */
__device__ __forceinline__ uint32_t upper_half(uint32_t x)
{
    uint32_t d;
    asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(x), "r"(0x100), "r"(0));
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

/* One more has arrived at the counter; returns how many had before. What this block wrote before a barrier that came before is
 * there for whoever arrives later. */
__device__ __forceinline__ uint32_t arrive(uint32_t *counter)
{
    uint32_t before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
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

/* Bytes that are read once: past the first cache. */
__device__ __forceinline__ uint4 load_once(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* 16 bytes to shared memory, on their own; they are there after copies_arrived(), for the thread that asked. */
__device__ __forceinline__ void copy_ahead(void *shared, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(from)
                 : "memory");
}

/* The same where a condition holds, without a branch. */
__device__ __forceinline__ void copy_ahead_if(bool wanted, void *shared, const void *from)
{
    asm volatile(
        "{\n\t.reg .pred wanted;\n\tsetp.ne.u32 wanted, %2, 0;\n\t@wanted cp.async.cg.shared.global [%0], [%1], 16;\n\t}" ::"r"(
            (uint32_t)__cvta_generic_to_shared(shared)),
        "l"(from), "r"((uint32_t)wanted)
        : "memory");
}

__device__ __forceinline__ void copies_arrived()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* What was asked for since the last such word is one group of copies; and all groups but the last have arrived. */
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

/* Asks the second cache for so many bytes, a multiple of 16, by a warp: as one request where the device has such. */
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

/* The lane, kept in a register, and not asked for again and again; likewise what is kept(). */
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

/* One more, by one lane, and what it was before. The compiler would have all lanes that are there counted first. */
__device__ __forceinline__ uint32_t take_next(uint32_t *shared)
{
    uint32_t before;
    asm volatile("atom.shared.add.u32 %0, [%1], 1;" : "=r"(before) : "r"((uint32_t)__cvta_generic_to_shared(shared)) : "memory");
    return before;
}

/* A place in shared memory; still known to be there, so that it is one register and what is read takes the shorter way. */
__device__ __forceinline__ uint8_t *kept_shared(uint8_t *p)
{
    return (uint8_t *)__cvta_shared_to_generic(kept((uint32_t)__cvta_generic_to_shared(p)));
}

/* The end of the device, as far as this process is concerned; for checks. */
__device__ __forceinline__ void lose_everything()
{
    asm volatile("trap;");
}

/* The shared memory whose size the launch says. */
__device__ __forceinline__ uint8_t *dynamic_shared()
{
    extern __shared__ __align__(16) uint8_t shared[];
    return shared;
}

#endif
#endif
