/* aura_cuda_unpack against aura_cache_decode: every kernel, format and dim, in both spaces. */
#include <math.h>
#include <string.h>

#include "check.cuh"

extern "C" {
#include "../../../src/ref.h"
}

/* A call: tokens [first, first + tokens) of all sequences of a scene. */
struct unpacking {
    uint32_t first, tokens;
    aura_dtype dtype;
    bool rotated, strided;
    bool only_values;
};

/* What the vectors of a head should be: model space by the CPU, then rotated as an append does. Beyond the end, 0. */
static std::vector<float> wanted(const struct scene &s, const struct filled &f, size_t seq, const struct unpacking &u, bool values)
{
    struct aura_backend_cache facts;
    aura_backend_describe(&facts, f.cache);
    const aura_config &c = *facts.config;
    const uint32_t dim = values ? c.v_dim : c.k_dim, there = s.tokens[seq] > u.first ? s.tokens[seq] - u.first : 0;
    std::vector<float> x((size_t)u.tokens * c.kv_heads * dim);
    const uint32_t n = std::min(there, u.tokens);
    aura_view view = AURA_VIEW_INIT, none = AURA_VIEW_INIT;
    view.data = x.data();
    if (n && aura_cache_decode(f.cache, f.seqs[seq], u.first, n, values ? &none : &view, values ? &view : &none))
        complain(s, "%s", aura_last_error());
    const struct aura_rotation_plan *plan = values ? facts.v_rotate : facts.k_rotate;
    const float *balance = values ? facts.v_balance : facts.balance;
    for (size_t i = 0; u.rotated && plan && i < (size_t)n * c.kv_heads; i++) {
        for (uint32_t d = 0; balance && d < dim; d++)
            x[i * dim + d] *= balance[i % c.kv_heads * dim + d];
        aura_rotate_ref(&x[i * dim], &x[i * dim], plan, 1);
    }
    return x;
}

/* The worst error of a vector, relative to its length. */
static double worst_vector(const std::vector<float> &want, const float *got, uint32_t dim)
{
    double worst = 0;
    for (size_t i = 0; i < want.size(); i += dim) {
        double error = 0, norm = 0;
        for (uint32_t d = 0; d < dim; d++) {
            const double e = (double)got[i + d] - want[i + d];
            error += e * e, norm += (double)want[i + d] * want[i + d];
        }
        const double relative = norm > 0 ? sqrt(error / norm) : error > 0 ? INFINITY : 0;
        worst = relative <= worst ? worst : isnan(relative) ? INFINITY : relative;
    }
    return worst;
}

/* A tensor of the call on the device: heads first where it is strided. */
struct unpacked {
    uint32_t n, tokens, heads, dim;
    ptrdiff_t seq = 0, token = 0, head = 0;
    device_array data;
    unpacked(uint32_t n_, uint32_t t, uint32_t h, uint32_t d, bool strided)
        : n(n_), tokens(t), heads(h), dim(d), data((size_t)n_ * (h * t * (d + 8) + 5) * 2)
    {
        if (strided)
            token = d + 3, head = token * t, seq = head * h + 5;
    }
    aura_cuda_view view(aura_dtype dtype) const
    {
        return {data.p, dtype, seq, token, head};
    }
    /* Of one sequence, [token][head][dim]. */
    std::vector<float> read(aura_dtype dtype, uint32_t which) const
    {
        std::vector<uint8_t> bytes(data.bytes / 2 * 2);
        cudaMemcpy(bytes.data(), data.p, bytes.size(), cudaMemcpyDeviceToHost);
        const std::vector<float> all = as_float(bytes, dtype);
        std::vector<float> x;
        for (uint32_t t = 0; t < tokens; t++)
            for (uint32_t h = 0; h < heads; h++)
                for (uint32_t d = 0; d < dim; d++)
                    x.push_back(token ? all[which * seq + t * token + h * head + d]
                                      : all[((size_t)(which * tokens + t) * heads + h) * dim + d]);
        return x;
    }
};

static void run_unpack(struct scene s, const struct unpacking &u)
{
    struct filled f;
    struct device_side d;
    const int before = failures;
    s.name += " " + std::to_string(u.tokens) + " from " + std::to_string(u.first) + (u.dtype == AURA_F16 ? " f16" : " bf16") +
              (u.rotated ? " rotated" : "") + (u.strided ? " strided" : "") + (u.only_values ? " values" : "");
    if (!begin_case(s, f, d))
        return;
    const struct dev_cache &c = d.cache->dev;
    const uint32_t n = (uint32_t)d.seqs.size();
    struct unpacked k(n, u.tokens, c.kv_heads, c.k_dim, u.strided), v(n, u.tokens, c.kv_heads, c.v_dim, u.strided);
    device_array ids(d.seqs.data(), n * 4);
    aura_cuda_unpack_args args = AURA_CUDA_UNPACK_ARGS_INIT;
    args.seqs = (const aura_cuda_seq *)ids.p, args.n_seqs = n, args.first = u.first, args.tokens = u.tokens;
    args.k = k.view(u.dtype), args.v = v.view(u.dtype), args.rotated = u.rotated;
    if (u.only_values)
        args.k.data = NULL;
    TRY(aura_cuda_unpack(d.cache, &args, NULL));
    TRY_CUDA(cudaDeviceSynchronize());
    double worst = 0;
    for (uint32_t i = 0; i < n; i++)
        for (int values = u.only_values; values < 2; values++)
            worst = fmax(worst, worst_vector(wanted(s, f, i, u, values), (values ? v : k).read(u.dtype, i).data(),
                                             values ? c.v_dim : c.k_dim));
    /* An f16 of each number on the way, and what its product and sum with a reference are rounded to; then the type. */
    const double allowed = 1.5 * 0x1p-10 + (u.dtype == AURA_BF16 ? 0x1p-9 : 0);
    if (!(worst <= allowed))
        complain(s, "a vector is off by %.2e of its length; allowed are %.2e", worst, allowed);
    char text[64];
    snprintf(text, sizeof text, "error %8.1e of |vector|", worst);
    end_case(s, before, text);
}

/* Numbers that are no sequences, tokens that are gone, arguments that are not good. */
static void run_unpack_nothing(struct scene s)
{
    struct filled f;
    struct device_side d;
    struct both a;
    const int before = failures;
    s.config.window = 300, s.config.max_queries = 16, s.tokens = {0};
    if (!begin_seqs(s, " unpacking what is not there", f, d, a))
        return;
    TRY(aura_cuda_seq_reserve(d.cache, a.gpu, 2000));
    for (uint32_t i = 0; i < 100; i++)
        append_both(s, f, d, a, 16, 500 + i, 0);
    const aura_cuda_seq id[] = {a.gpu, 999};
    device_array ids(id, sizeof id);
    const struct dev_cache &c = d.cache->dev;
    struct unpacked k(2, 40, c.kv_heads, c.k_dim, false), v(2, 40, c.kv_heads, c.v_dim, false);
    aura_cuda_unpack_args args = AURA_CUDA_UNPACK_ARGS_INIT;
    args.seqs = (const aura_cuda_seq *)ids.p, args.n_seqs = 2, args.first = 1580, args.tokens = 40;
    args.k = k.view(AURA_F16), args.v = v.view(AURA_F16);
    aura_cuda_seq_info info = AURA_CUDA_SEQ_INFO_INIT;
    for (int gone = 0; gone < 2; gone++) {
        args.first = gone ? 100 : 1580;
        TRY(aura_cuda_unpack(d.cache, &args, NULL));
        TRY_CUDA(cudaDeviceSynchronize());
        TRY(aura_cuda_seq_get_info(d.cache, a.gpu, &info));
        const std::vector<float> mine = k.read(AURA_F16, 0), other = v.read(AURA_F16, 1);
        if (info.status != (gone ? AURA_CUDA_GONE : 0) || !isnan(other[0]) || !isnan(other.back()) || isnan(mine[0]) != !!gone ||
            (gone ? !isnan(mine.back()) : mine.back() != 0))
            complain(s, "status %u, numbers %g %g", info.status, (double)mine[0], (double)mine.back());
    }
    for (int i = 0; i < 5; i++) {
        aura_cuda_unpack_args bad = args;
        if (i == 0)
            bad.size--;
        else if (i == 1)
            bad.k.data = bad.v.data = NULL;
        else if (i == 2)
            bad.tokens = 0;
        else if (i == 3)
            bad.first = 1ull << 31;
        else
            bad.k.dtype = AURA_F32;
        if (aura_cuda_unpack(d.cache, &bad, NULL) != (i < 4 ? AURA_BAD_ARGUMENT : AURA_UNSUPPORTED))
            complain(s, "bad arguments %d were taken", i);
    }
    end_case(s, before, "NaN and a status");
}

void run_unpack_of(const struct scene &s, uint32_t first, uint32_t tokens, bool rotated)
{
    run_unpack(s, {first, tokens, AURA_F16, rotated, false, false});
}

void check_unpack()
{
    static const uint32_t kinds[] = {AURA_CUDA_BITS(AURA_DIM_ITEM)}, dims[] = {AURA_CUDA_DIMS(AURA_DIM_ITEM)};
    uint32_t i = 0;
    for (uint32_t kind : kinds) {
        struct scene s = scene_of(kind, kinds[(i + 2) % 6], dims[i % 3], 4, 2, {700, 90 + i});
        s.balance = i % 2, s.seed = 70 + i, i++;
        run_unpack(s, {i * 37 % 300, 300, i % 2 ? AURA_F16 : AURA_BF16, i % 3 == 2, i % 4 == 3, i == 5});
    }
    struct scene s = scene_of(4, 4, 128, 8, 2, {500}), mixed = scene_of(4, 4, 128, 8, 2, {300, 40});
    run_unpack(s, {0, 500, AURA_F16, true, false, false});
    run_unpack(s, {129, 3, AURA_F16, false, false, false});
    struct scene both = scene_of(4, 4, 128, 6, 3, {700, 130, 3});
    both.balance = true;
    for (i = 0; i < 4; i++)
        run_unpack(both, {i * 41, 250 + 93 * i, i % 2 ? AURA_F16 : AURA_BF16, i / 2 == 1, false, i == 3});
    run_unpack(both, {30, 300, AURA_F16, false, true, false});
    mixed.config.v_dim = 64, mixed.name += "/64", mixed.balance = true;
    run_unpack(mixed, {1, 299, AURA_F16, false, false, false});
    struct scene any = scene_of(4, 3, 80, 6, 2, {300, 40}), plain = scene_of(AURA_ROW_F16, 4, 96, 6, 2, {300, 40});
    any.balance = true;
    for (const struct scene &x : {any, plain})
        for (bool rotated : {false, true})
            run_unpack(x, {20, 270, AURA_F16, rotated, rotated, false});
    run_unpack_nothing(scene_of(4, 4, 128, 4, 2, {0}));
    run_unpack_nothing(scene_of(4, 2, 80, 4, 2, {0}));
}
