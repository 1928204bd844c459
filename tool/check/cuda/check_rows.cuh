/* Rows of the public families for checks: arrays on both sides, and what comes of them in double, from ref*.c. */
#ifndef AURA_TOOL_CUDA_CHECK_ROWS_CUH
#define AURA_TOOL_CUDA_CHECK_ROWS_CUH

#include <math.h>

#include <functional>
#include <memory>

#include "../../../src/cuda/rows.cuh"
#include "check.cuh"
extern "C" {
#include "../../../src/ref.h"
}

/* A case: a context, a handle, and how far results were from what is right. */
struct rows_case {
    struct scene s; /* only its name is used */
    aura_ctx *ctx = NULL;
    aura_cuda_rows *rows = NULL;
    int before = failures, calls = 0;
    double worst = 0; /* of what is allowed */
    uint64_t seed = 7;
    explicit rows_case(const std::string &name, size_t scratch_bytes = 0);
    rows_case(const rows_case &) = delete;
    ~rows_case(); /* prints the line */
    float normal();
    uint32_t random(uint32_t below);
    /* That the device's status is this one. */
    void expect(aura_status wanted, const char *what);
    /* |got - want| <= limit; equal infinities and two NaN are equal. */
    void compare(double got, double want, double limit, const char *what, size_t i);
};

/* Numbers of a type, on both sides. */
struct typed {
    aura_dtype dtype;
    std::vector<uint8_t> bytes;
    std::unique_ptr<device_array> device;
    typed(const std::vector<float> &x, aura_dtype type) : dtype(type), bytes(as_type(x, type))
    {
    }
    typed() : dtype(AURA_F32)
    {
    }
    void *put() /* on the device, as it is now */
    {
        device.reset(new device_array(bytes.data(), bytes.size()));
        return device->p;
    }
    float at(size_t i) const;
    void set(size_t i, float x);
};

/* What a call is to write, on the device: n numbers, and some bytes after them that it must leave as they were. */
struct output {
    aura_dtype dtype;
    size_t n;
    device_array device;
    output(size_t count, aura_dtype type) : dtype(type), n(count), device(count * (type == AURA_F32 ? 4 : 2))
    {
    }
    std::vector<float> get(struct rows_case &c) const;
};

/* One side of a cache of the AURA kernels. Rows that hold no token have codes of ones and NaN for a norm. */
struct packed_rows {
    uint32_t bits, dim;
    size_t tokens, stride, row_bytes;
    std::vector<uint8_t> codes;
    typed norms, book;
    std::unique_ptr<device_array> device;
    packed_rows(struct rows_case &c, uint32_t bits_, uint32_t dim_, uint32_t heads, size_t tokens_, size_t stride_,
                aura_dtype norm_dtype, aura_dtype book_dtype, size_t wider = 0);
    aura_packed put(size_t offset = 0); /* offset: bytes from an aligned address */
    double at(size_t head, size_t t, uint32_t d) const;
};

/* Attention of a row in double. */
struct in_double {
    std::vector<double> out;
    double lse, size; /* size: of what was added up */
};
using coordinate_fn = std::function<double(uint64_t t, uint32_t d)>;
struct in_double attend_in_double(const coordinate_fn &key, const coordinate_fn &value, const std::vector<double> &q,
                                  uint32_t v_dim, const std::vector<uint64_t> &tokens, double scale, double softcap, double sink);

double unit_of(aura_dtype dtype); /* half of the last place, relative */

/* A whole problem: both sides, queries, sinks. */
struct problem {
    uint32_t k_bits, v_bits, dim, v_dim, q_heads, kv_heads;
    size_t tokens, k_stride, v_stride;
    uint64_t window = 0;
    uint32_t sink_heads = 0; /* 0: no sinks */
    aura_dtype side = AURA_F32, q_dtype = AURA_F32, out_dtype = AURA_F32;
    size_t wider = 0, offset = 0; /* bytes: rows are wider than their codes; codes begin beside an aligned address */
    bool undo = false;
};

/* Its arrays. */
struct arrays {
    packed_rows k, v;
    typed q, sinks;
    aura_packed keys, values;
    arrays(struct rows_case &c, const struct problem &p)
        : k(c, p.k_bits, p.dim, p.kv_heads, p.tokens, p.k_stride, p.side, p.side, p.wider),
          v(c, p.v_bits, p.v_dim, p.kv_heads, p.tokens, p.v_stride, p.side, p.side, p.wider)
    {
        std::vector<float> x((size_t)p.q_heads * p.dim), logits(p.sink_heads + 1);
        for (float &number : x)
            number = c.normal() * 0.3f;
        for (size_t h = 0; h < logits.size(); h++)
            logits[h] = h % 5 == 3 ? -INFINITY : -0.5f + 0.6f * (float)(h % 9);
        q = typed(x, p.q_dtype), sinks = typed(logits, p.side);
        keys = k.put(p.offset), values = v.put(p.offset);
        q.put(), sinks.put();
    }
    std::vector<double> query(const struct problem &p, size_t h) const
    {
        std::vector<double> x(p.dim);
        for (uint32_t d = 0; d < p.dim; d++)
            x[d] = q.at(h * p.dim + d);
        return x;
    }
};

void check_rows_codec();
void check_rows_packed();
void check_rows_flash();
void check_rows_vec();

#endif
