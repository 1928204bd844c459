/* Instructions of sm_90a alone: tensor products by four warps together, copies by the copy engine, and barriers that count bytes.
 * test/cuda/emulate/emulated_sm90.h has the same words in C++. */
#ifndef AURA_CUDA_WORDS_SM90_CUH
#define AURA_CUDA_WORDS_SM90_CUH

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#ifdef AURA_EMULATED
#include <emulated_sm90.h>
#else

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- barriers in shared memory: 8 bytes each ---- */

/* `count` arrivals end a phase. By one thread, before a barrier of the block. */
__device__ __forceinline__ void meeting_init(uint64_t *at, uint32_t count)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(at)), "r"(count) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void meeting_arrive(uint64_t *at)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(at)) : "memory");
}

/* Arrives; the phase then lasts until so many bytes more have been copied. */
__device__ __forceinline__ void meeting_expect(uint64_t *at, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(at)), "r"(bytes) : "memory");
}

/* Waits for the end of a phase: phases have parity 0, 1, 0 ... */
__device__ __forceinline__ void meeting_wait(uint64_t *at, uint32_t parity)
{
    asm volatile("{\n\t.reg .pred over;\n\tAGAIN:\n\tmbarrier.try_wait.parity.shared.b64 over, [%0], %1;\n\t"
                 "@over bra OVER;\n\tbra AGAIN;\n\tOVER:\n\t}" ::"r"(shared_address(at)), "r"(parity) : "memory");
}

/* A barrier of the 256 threads after the first 128. */
__device__ __forceinline__ void meet_groups()
{
    asm volatile("barrier.cta.sync 1, 256;" ::: "memory");
}

/* Starts a copy of bytes side by side, a multiple of 16, that counts for the barrier. By one thread. */
__device__ __forceinline__ void copy_bulk(void *shared, const void *from, uint32_t bytes, uint64_t *at)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(shared)), "l"(from), "r"(bytes), "r"(shared_address(at)) : "memory");
}

/* What this thread has read and written before, in shared or global memory, comes before what the copy engine and the tensor
 * products read and write after. */
__device__ __forceinline__ void fence_engines()
{
    asm volatile("fence.proxy.async;" ::: "memory");
}

/* The same for shared memory that products read, alone. */
__device__ __forceinline__ void fence_products()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Loads from shared memory that stay where they are among products and barriers. */
__device__ __forceinline__ uint4 load_shared16(const void *shared)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(shared_address(shared)));
    return v;
}

__device__ __forceinline__ uint2 load_shared8(const void *shared)
{
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(shared_address(shared)));
    return v;
}

/* ---- registers: a warp group hands some back, or takes what others have handed back ---- */

template <int N>
__device__ __forceinline__ void fewer_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N>
__device__ __forceinline__ void more_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- products of f16 by a warp group ---- */

/* An operand in shared memory: rows of 64 numbers of the summed axis, 128 bytes, whose chunks of 16 bytes are swizzled by the row;
 * eight rows are 1024 bytes, and begin at a multiple of that. Adding 1 goes 16 bytes on: eight numbers of the summed axis. */
__device__ __forceinline__ uint64_t operand_at(const void *shared)
{
    return (uint64_t)((shared_address(shared) & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)64 << 32 | (uint64_t)1 << 62;
}

/* Registers that products write are not touched between these. */
__device__ __forceinline__ void products_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void products_grouped()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* What sums begin with is in registers of its own when products begin: moved there later, it would make them wait for each
 * other. Likewise after the wait for products, where the compiler would compute with sums before it. */
template <int N>
__device__ __forceinline__ void sums_are_there(int (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(d[i])::"memory");
}

template <int N>
__device__ __forceinline__ void sums_are_there(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* All groups but the last N are done. */
template <int N>
__device__ __forceinline__ void products_but_last_done()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* D = A B, or D += A B, for 64 rows of A and 2 * N columns of B, over 16 numbers. Lane (g, t) of warp w has columns
 * 8 j + 2 t and the next, of rows 16 w + g (d[4 j], d[4 j + 1]) and 16 w + g + 8
 * (d[4 j + 2], d[4 j + 3]). */
__device__ __forceinline__ void product_shared(float (&d)[32], uint64_t a, uint64_t b, bool add)
{
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %34, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
                 "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, %32, %33, add, 1, 1, 0, 0;\n\t}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
                   "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
                   "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
                   "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "l"(a), "l"(b), "r"((int)add));
}

/* The same with rows of A in registers, as mma_f16() has them. */
__device__ __forceinline__ void product_registers(float (&d)[32], const uint32_t *a, uint64_t b)
{
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, 1, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
                 "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, {%32, %33, %34, %35}, %36, add, 1, 1, 0;\n\t}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
                   "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
                   "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
                   "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void product_shared(float (&d)[64], uint64_t a, uint64_t b, bool add)
{
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %66, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
                 "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
                 "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
                 "%62, %63"
                 "}, %64, %65, add, 1, 1, 0, 0;\n\t}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
                   "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
                   "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
                   "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
                   "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
                   "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
                   "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
                   "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "l"(a), "l"(b), "r"((int)add));
}

/* The same with rows of A in registers, as mma_f16() has them. */
__device__ __forceinline__ void product_registers(float (&d)[64], const uint32_t *a, uint64_t b)
{
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, 1, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
                 "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
                 "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
                 "%62, %63"
                 "}, {%64, %65, %66, %67}, %68, add, 1, 1, 0;\n\t}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
                   "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
                   "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
                   "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
                   "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
                   "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
                   "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
                   "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* The same for fewer columns. */
__device__ __forceinline__ void product_registers(float (&d)[8], const uint32_t *a, uint64_t b)
{
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, 1, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7"
                 "}, {%8, %9, %10, %11}, %12, add, 1, 1, 0;\n\t}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void product_registers(float (&d)[16], const uint32_t *a, uint64_t b)
{
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, 1, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
                 "}, {%16, %17, %18, %19}, %20, add, 1, 1, 0;\n\t}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* Products of bytes, 32 of the summed axis: rows of A in registers, as mma_u8s8() and mma_s8s8() have them. */
__device__ __forceinline__ void product_u8s8(int (&d)[8], const uint32_t *a, uint64_t b)
{
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, 1, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n16k32.s32.u8.s8 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7"
                 "}, {%8, %9, %10, %11}, %12, add;\n\t}"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void product_s8s8(int (&d)[8], const uint32_t *a, uint64_t b)
{
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, 1, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.s8 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7"
                 "}, {%8, %9, %10, %11}, %12, add;\n\t}"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void product_u8s8(int (&d)[16], const uint32_t *a, uint64_t b)
{
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, 1, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.s8 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
                 "}, {%16, %17, %18, %19}, %20, add;\n\t}"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]),
                   "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void product_s8s8(int (&d)[16], const uint32_t *a, uint64_t b)
{
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, 1, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
                 "}, {%16, %17, %18, %19}, %20, add;\n\t}"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]),
                   "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void product_u8s8(int (&d)[32], const uint32_t *a, uint64_t b)
{
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, 1, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
                 "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, {%32, %33, %34, %35}, %36, add;\n\t}"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]),
                   "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]),
                   "+r"(d[15]), "+r"(d[16]), "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]),
                   "+r"(d[22]), "+r"(d[23]), "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27]), "+r"(d[28]),
                   "+r"(d[29]), "+r"(d[30]), "+r"(d[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void product_s8s8(int (&d)[32], const uint32_t *a, uint64_t b)
{
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, 1, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
                 "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, {%32, %33, %34, %35}, %36, add;\n\t}"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]),
                   "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]),
                   "+r"(d[15]), "+r"(d[16]), "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]),
                   "+r"(d[22]), "+r"(d[23]), "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27]), "+r"(d[28]),
                   "+r"(d[29]), "+r"(d[30]), "+r"(d[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* ---- the 128 threads of a group ---- */

/* Barriers of them, by number: a number that is known when compiling is one that racecheck can follow. */
template <uint32_t number> __device__ __forceinline__ void meet_at()
{
    asm volatile("barrier.cta.sync %0, 128;" ::"n"(number) : "memory");
}

template <uint32_t number> __device__ __forceinline__ uint32_t any_at(uint32_t condition)
{
    uint32_t any;
    asm volatile("{\n\t.reg .pred mine, all;\n\tsetp.ne.u32 mine, %1, 0;\n\t"
                 "barrier.cta.red.or.pred all, %2, 128, mine;\n\tselp.u32 %0, 1, 0, all;\n\t}"
                 : "=r"(any)
                 : "r"(condition), "n"(number)
                 : "memory");
    return any;
}

/* A barrier of a group, 0 to 2. */
__device__ __forceinline__ void group_meets(uint32_t group)
{
    group == 0 ? meet_at<2>() : group == 1 ? meet_at<3>() : meet_at<4>();
}

/* The same; says whether any of them has the condition. */
__device__ __forceinline__ bool group_any(uint32_t group, bool condition)
{
    return (group == 0 ? any_at<2>(condition) : group == 1 ? any_at<3>(condition) : any_at<4>(condition)) != 0;
}

/* Four matrices as load_matrices_turned() reads them, to shared memory. */
__device__ __forceinline__ void store_matrices_turned(void *row, const uint32_t (&r)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* Starts a copy of a tile, its rows of 128 bytes swizzled as an operand's, that counts for the barrier. head: number of the KV
 * head, those of all pages being counted. By one thread. */
__device__ __forceinline__ void copy_tile(void *shared, const struct tile_map *map, uint32_t row, uint32_t head, uint64_t *at)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(shared)), "l"(map), "r"(0), "r"(row), "r"(head),
                 "r"(shared_address(at)) : "memory");
}

#endif
#endif
