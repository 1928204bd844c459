/* aura bench rows --device cuda: the kernels of the public families beside a plain read of the bytes that they must read. */
#include <string>

#include "../../include/aura_cuda_rows.h"
#include "bench_cuda.cuh"

/* Bytes that are no numbers in particular; halves are between -2 and 2, floats of a norm between 0.5 and 1. */
enum filling { CODES, HALVES, FLOATS };

static __global__ void fill_kernel(uint32_t *to, size_t n, int filling)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += step) {
        uint32_t x = (uint32_t)i * 2654435761u;
        x = (x ^ x >> 15) * 0x85ebca6bu, x ^= x >> 13;
        to[i] = filling == CODES ? x : filling == HALVES ? (x & 0x83ff83ffu) | 0x38003800u : (x & 0x007fffffu) | 0x3f000000u;
    }
}

/* Arrays of a case, one after the other in one piece of memory: a plain read reads the first of them. */
struct arena {
    uint8_t *memory;
    size_t bytes = (size_t)1400 << 20, used = 0;
    arena()
    {
        MUST_CUDA(cudaMalloc(&memory, bytes));
    }
    ~arena()
    {
        cudaFree(memory);
    }
    void *take(size_t n, enum filling filling)
    {
        void *p = memory + used;
        used += (n + 255) / 256 * 256;
        if (used > bytes)
            printf("aura bench: a case does not fit\n"), exit(1);
        fill_kernel<<<1024, 256>>>((uint32_t *)p, (n + 3) / 4, filling);
        return p;
    }
};

struct rows_bench {
    timer t;
    aura_ctx *ctx = NULL;
    aura_cuda_rows *rows = NULL;
    struct rows_out out = {ROWS_TEXT, 0};
    /* A line: the call beside a read of the first `read` bytes. Returns microseconds of the call. */
    double line(const char *name, const std::string &shape, const arena &a, size_t read, const std::function<aura_status()> &call)
    {
        double plain = 1e9;
        for (int blocks : {4, 8, 16})
            plain = std::min(plain, t.time([&] { t.read(a.memory, read, blocks); }));
        const double us = t.time([&] { MUST(call()); });
        MUST(aura_cuda_rows_finish(rows, NULL));
        if (out.as)
            print_row(&out, "{\"rows\": \"%s\", \"shape\": \"%s\", \"bytes\": %zu, \"read_us\": %.2f, \"call_us\": %.2f}", name,
                      shape.c_str(), read, plain, us);
        else
            printf("%-28s %-26s read %7.1f us  call %7.1f us  %5.1f %%  %.2f TB/s\n", name, shape.c_str(), plain, us,
                   plain / us * 100, (double)read / us / 1e6);
        fflush(stdout);
        return us;
    }
};

/* ---- merging ------------------------------------------------------------------------------------------------------------ */

static void bench_pass2(rows_bench &b, uint32_t dim, aura_dtype dtype, const char *name)
{
    enum { ROWS = 16384, PARTS = 32 };
    arena a;
    const size_t element = aura_dtype_bytes(dtype), parts = (size_t)ROWS * PARTS;
    aura_flash_pass2_args x = AURA_FLASH_PASS2_ARGS_INIT;
    x.o = a.take(parts * dim * element, dtype == AURA_F32 ? FLOATS : HALVES);
    x.m = a.take(parts * element, dtype == AURA_F32 ? FLOATS : HALVES),
    x.l = a.take(parts * element, dtype == AURA_F32 ? FLOATS : HALVES);
    const size_t read = a.used;
    MUST_CUDA(cudaMemset((void *)x.l, 0x3c, parts * element)); /* above 0 in every type */
    x.out = a.take((size_t)ROWS * dim * 4, CODES);
    x.dim = dim, x.q_heads = ROWS, x.num_blocks = PARTS, x.partial_dtype = dtype;
    b.line(name, "16384 x 32 D" + std::to_string(dim), a, read, [&] { return aura_cuda_flash_pass2(b.rows, &x, NULL); });
}

static void bench_reduce(rows_bench &b, uint32_t dim)
{
    enum { ROWS = 16384, NWG = 32 };
    arena a;
    aura_flash_attn_vec_reduce_args x = AURA_FLASH_ATTN_VEC_REDUCE_ARGS_INIT;
    x.temp = (const float *)a.take((size_t)ROWS * NWG * (dim + 2) * 4, FLOATS);
    const size_t read = a.used;
    x.out = (float *)a.take((size_t)ROWS * dim * 4, CODES);
    x.dim = dim, x.rows = ROWS, x.nwg = NWG;
    const std::string shape = "16384 x 32 D" + std::to_string(dim);
    b.line("reduce", shape, a, read, [&] { return aura_cuda_flash_attn_vec_reduce(b.rows, &x, NULL); });
    aura_rotation undo = AURA_ROTATION_INIT;
    undo.dim = dim, undo.signs = aura_tq_signs(dim);
    aura_rotate_args step = AURA_ROTATE_ARGS_INIT;
    step.rotation = &undo, step.rows = ROWS, step.in = step.out = x.out;
    aura_flash_attn_vec_reduce_args fused = x;
    fused.undo = &undo;
    for (uint32_t rows : {(uint32_t)ROWS, 32u}) { /* a large batch, and the rows of one token */
        x.rows = fused.rows = rows, step.rows = rows;
        const std::string which = std::to_string(rows) + " x 32 D" + std::to_string(dim);
        const size_t bytes = read / ROWS * rows;
        b.line("reduce, then undo", which, a, bytes, [&] {
            const aura_status status = aura_cuda_flash_attn_vec_reduce(b.rows, &x, NULL);
            return status ? status : aura_cuda_undo(b.rows, &step, NULL);
        });
        b.line("reduce fused with undo", which, a, bytes, [&] { return aura_cuda_flash_attn_vec_reduce(b.rows, &fused, NULL); });
    }
}

/* ---- over a cache ------------------------------------------------------------------------------------------------------- */

enum { KV_HEADS = 64, Q_HEADS = 256, TOKENS = 32768 }; /* 8 sequences with 32/8 heads */

static aura_packed packed_of(arena &a, uint32_t bits, uint32_t dim)
{
    aura_packed p = AURA_PACKED_INIT;
    p.bits = bits, p.stride = TOKENS;
    p.codes = a.take((size_t)KV_HEADS * TOKENS * aura_row_bytes(dim, bits), CODES);
    p.norms = a.take((size_t)KV_HEADS * TOKENS * 4, FLOATS);
    p.codebook = a.take(4u << bits, FLOATS);
    return p;
}

static void bench_packed(rows_bench &b, uint32_t bits, uint32_t dim)
{
    const std::string shape = "8 x 32768 32/8 D" + std::to_string(dim),
                      width = "k" + std::to_string(bits) + "v" + std::to_string(bits);
    {
        arena a;
        aura_flash_sdpa_args x = AURA_FLASH_SDPA_ARGS_INIT;
        x.keys = packed_of(a, bits, dim), x.values = packed_of(a, bits, dim);
        const size_t read = a.used;
        x.q = a.take((size_t)Q_HEADS * dim * 4, FLOATS), x.out = a.take((size_t)Q_HEADS * dim * 4, CODES);
        x.dim = dim, x.q_heads = Q_HEADS, x.kv_heads = KV_HEADS, x.tokens = TOKENS;
        b.line(("sdpa " + width).c_str(), shape, a, read, [&] { return aura_cuda_flash_sdpa(b.rows, &x, NULL); });
    }
    arena a;
    aura_value_args x = AURA_VALUE_ARGS_INIT;
    x.values = packed_of(a, bits, dim);
    const size_t side = a.used;
    x.weights = a.take((size_t)Q_HEADS * TOKENS * 4, FLOATS);
    const size_t read = a.used;
    x.out = a.take((size_t)Q_HEADS * dim * 4, CODES), x.dim = dim, x.q_heads = Q_HEADS, x.kv_heads = KV_HEADS, x.tokens = TOKENS;
    b.line(("value " + std::to_string(bits) + " bits").c_str(), shape, a, read, [&] { return aura_cuda_value(b.rows, &x, NULL); });
    aura_score_args y = AURA_SCORE_ARGS_INIT;
    y.keys = x.values, y.q = a.take((size_t)Q_HEADS * dim * 4, FLOATS), y.scores = (void *)x.weights;
    y.dim = dim, y.q_heads = Q_HEADS, y.kv_heads = KV_HEADS, y.tokens = TOKENS;
    b.line(("score " + std::to_string(bits) + " bits").c_str(), shape, a, side, [&] { return aura_cuda_score(b.rows, &y, NULL); });
}

static void bench_vec(rows_bench &b, uint32_t dim, uint32_t bits, uint32_t tokens)
{
    arena a;
    aura_flash_attn_vec_args x = AURA_FLASH_ATTN_VEC_ARGS_INIT;
    const size_t row = bits ? dim * (bits == 4 ? 4 : 8) / 8 : dim * 2;
    x.k.bits = x.v.bits = bits, x.k.dtype = x.v.dtype = AURA_F16;
    x.k.rows = a.take((size_t)KV_HEADS * tokens * row, bits ? CODES : HALVES);
    x.v.rows = a.take((size_t)KV_HEADS * tokens * row, bits ? CODES : HALVES);
    x.k.norms = bits ? (const float *)a.take((size_t)KV_HEADS * tokens * 4, FLOATS) : NULL;
    x.v.norms = bits ? (const float *)a.take((size_t)KV_HEADS * tokens * 4, FLOATS) : NULL;
    const size_t read = a.used;
    x.q = (const float *)a.take((size_t)Q_HEADS * dim * 4, FLOATS), x.out = (float *)a.take((size_t)Q_HEADS * dim * 4, CODES);
    float *temp = (float *)a.take((size_t)Q_HEADS * 32 * (dim + 2) * 4, CODES);
    x.dim = dim, x.q_heads = Q_HEADS, x.kv_heads = KV_HEADS, x.tokens = x.capacity = tokens;
    const std::string shape = "8 x " + std::to_string(tokens) + " 32/8 D" + std::to_string(dim);
    const std::string name = bits ? "flash_attn_vec TQ " + std::to_string(bits) : "flash_attn_vec f16";
    b.line(name.c_str(), shape, a, read, [&] { return aura_cuda_flash_attn_vec(b.rows, &x, NULL); });
    x.temp = temp, x.nwg = 32;
    aura_flash_attn_vec_reduce_args r = AURA_FLASH_ATTN_VEC_REDUCE_ARGS_INIT;
    r.dim = dim, r.rows = Q_HEADS, r.nwg = 32, r.temp = temp, r.out = x.out;
    b.line((name + ", reduce").c_str(), shape + " nwg 32", a, read, [&] {
        const aura_status status = aura_cuda_flash_attn_vec(b.rows, &x, NULL);
        return status ? status : aura_cuda_flash_attn_vec_reduce(b.rows, &r, NULL);
    });
}

/* Tokens in and out: bytes that are read; as many or fewer are written. */
static void bench_codec(rows_bench &b)
{
    enum { ROWS = 1 << 19, DIM = 128 };
    arena a;
    aura_codebook book;
    aura_encode_args x = AURA_ENCODE_ARGS_INIT;
    uint8_t signs[DIM / 8];
    aura_rotation rotation = AURA_ROTATION_INIT;
    MUST(aura_codebook_get(AURA_TABLE_AURA, 4, &book));
    MUST(aura_signs(1, 0, DIM, signs));
    rotation.dim = DIM, rotation.signs = signs;
    x.in = a.take((size_t)ROWS * DIM * 2, HALVES), x.in_dtype = AURA_F16;
    const size_t read = a.used;
    x.packed = a.take((size_t)ROWS * DIM / 2, CODES), x.scales = a.take((size_t)ROWS * 4, FLOATS);
    x.codebook = &book, x.rotation = &rotation, x.dim = DIM, x.rows = ROWS;
    b.line("encode 4 bits", "524288 D128", a, read, [&] { return aura_cuda_encode(b.rows, &x, NULL); });
    aura_dequant_args d = AURA_DEQUANT_ARGS_INIT;
    d.rows.bits = 4, d.rows.codes = x.packed, d.rows.norms = x.scales, d.rows.codebook = a.take(64, FLOATS);
    d.dim = DIM, d.kv_heads = 1, d.tokens = ROWS, d.out = (void *)x.in, d.out_dtype = AURA_F16;
    b.line("dequant 4 bits to f16", "524288 D128", a, (size_t)ROWS * (DIM / 2 + 4),
           [&] { return aura_cuda_dequant(b.rows, &d, NULL); });
}

int cuda_bench_rows(int as)
{
    rows_bench b;
    cudaDeviceProp properties;
    MUST_CUDA(cudaGetDeviceProperties(&properties, 0));
    MUST(aura_ctx_create(NULL, &b.ctx));
    MUST(aura_cuda_rows_create(b.ctx, 0, 0, &b.rows));
    b.out.as = as;
    begin_rows(&b.out, properties.name);
    if (!as)
        printf("aura %s on %s; rows; medians of 41 runs, second cache flushed by a read\n", aura_version(), properties.name);
    for (uint32_t dim : {64u, 128u, 256u})
        bench_pass2(b, dim, AURA_F32, "pass2 f32");
    bench_pass2(b, 128, AURA_F16, "pass2 f16");
    bench_pass2(b, 128, AURA_BF16, "pass2 bf16");
    bench_reduce(b, 256);
    bench_reduce(b, 512);
    bench_packed(b, 4, 128);
    bench_packed(b, 3, 128);
    bench_packed(b, 8, 128);
    bench_vec(b, 128, 0, 32768);
    bench_vec(b, 256, 0, 16384);
    bench_vec(b, 256, 4, 32768);
    bench_vec(b, 256, 8, 16384);
    bench_codec(b);
    end_rows(&b.out);
    aura_cuda_rows_destroy(b.rows);
    aura_ctx_destroy(b.ctx);
    return 0;
}
