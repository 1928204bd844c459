/* flash_attn_vec over plain, TQ and TQ-HB rows and its reduce on the device, against double. */
#include "check_rows.cuh"

#include <float.h>
#include <string.h>

static const aura_dtype types[] = {AURA_F32, AURA_F16, AURA_BF16};

/* One side of a cache of mlx-native; slots that hold no token are poisoned. */
struct vec_rows {
    uint32_t bits, dim;
    uint64_t capacity;
    float factor; /* of norms */
    typed numbers, norms;
    std::vector<uint8_t> codes;
    aura_codebook book;
    std::unique_ptr<device_array> device;
    vec_rows(struct rows_case &c, uint32_t bits_, aura_dtype dtype, uint32_t dim_, uint32_t heads, uint64_t tokens,
             uint64_t capacity_, float sf)
        : bits(bits_), dim(dim_), capacity(capacity_), factor(dim_ == 256  ? 1 / 16.f
                                                              : sf < 1e-6f ? 1
                                                                           : 1 / sf)
    {
        const size_t slots = (size_t)(heads * capacity), parts = dim / 256;
        std::vector<float> x(bits ? 0 : slots * dim, NAN), n(bits ? slots * parts : 1, NAN);
        if (bits)
            aura_codebook_get(AURA_TABLE_TQ, bits, &book);
        codes.assign(bits ? slots * dim / (bits == 4 ? 2 : 1) : 0, 0xff);
        for (size_t slot = 0; slot < slots; slot++) {
            if (slot % capacity >= tokens)
                continue;
            for (size_t d = 0; !bits && d < dim; d++)
                x[slot * dim + d] = c.normal() * 0.5f;
            for (size_t i = 0; i < codes.size() / slots; i++) /* upper bits of a byte are ignored */
                codes[slot * (codes.size() / slots) + i] = (uint8_t)c.random(256);
            for (size_t part = 0; bits && part < parts; part++)
                n[slot * parts + part] = (dim == 256 ? 16.f : 1.f) * (0.3f + (float)random_uniform(&c.seed));
        }
        numbers = typed(x, dtype), norms = typed(n, AURA_F32);
    }
    aura_vec_side put()
    {
        device.reset(new device_array(bits ? codes.data() : numbers.bytes.data(), bits ? codes.size() : numbers.bytes.size()));
        return {bits, numbers.dtype, device->p, bits ? (const float *)norms.put() : NULL};
    }
    double at(size_t head, uint64_t slot, uint32_t d) const
    {
        const size_t i = (size_t)(head * capacity + slot) * dim + d;
        if (!bits)
            return numbers.at(i);
        const uint32_t byte = codes[bits == 4 ? i / 2 : i],
                       code = bits == 4 ? byte >> 4 * (i % 2) & 15 : byte & ((1u << bits) - 1);
        return (double)book.centroid[code] * (norms.at(i / 256) * factor);
    }
};

struct vec_case {
    uint32_t k_bits, v_bits;
    aura_dtype dtype;
    uint32_t dim, v_dim, q_heads, kv_heads;
    uint64_t tokens, capacity;
    uint32_t nwg = 0; /* 0: straight to the output */
    uint32_t mask_type = 0;
    uint64_t window = 0, keep_first = 0, ring_start = 0;
    float scale = 0, softcap = 0, sf = 0;
    bool sinks = false, q_as_f16 = false, undo = false;
};

/* The slots that are seen, one by one. */
static std::vector<uint64_t> seen_slots(const struct vec_case &v)
{
    std::vector<uint64_t> slots;
    const uint64_t hidden = v.mask_type == 2 && v.window && v.tokens > v.window ? v.tokens - v.window : 0;
    for (uint64_t slot = 0; slot < v.tokens; slot++) {
        const uint64_t time = (slot + v.capacity - v.ring_start) % v.capacity;
        if (time < v.tokens && (time >= hidden || time < v.keep_first))
            slots.push_back(slot);
    }
    return slots;
}

static float sink_of_head(size_t h)
{
    return h == 2 ? -INFINITY : (float)(h % 5) - 1;
}

/* All rows of a call against double. */
static void compare_vec(struct rows_case &c, const struct vec_case &v, const vec_rows &k, const vec_rows &x, const typed &q,
                        const output &out, const output *lse, const char *what)
{
    const std::vector<uint64_t> slots = seen_slots(v);
    const std::vector<float> got = out.get(c), sums = lse ? lse->get(c) : std::vector<float>();
    for (size_t h = 0; h < v.q_heads; h++) {
        const size_t kv = h / (v.q_heads / v.kv_heads);
        std::vector<double> query(v.dim), y(v.v_dim);
        for (uint32_t d = 0; d < v.dim; d++)
            query[d] = v.q_as_f16 ? typed({q.at(h * v.dim + d)}, AURA_F16).at(0) : q.at(h * v.dim + d);
        struct in_double want = attend_in_double(
            [&](uint64_t t, uint32_t d) { return k.at(kv, t, d); }, [&](uint64_t t, uint32_t d) { return x.at(kv, t, d); }, query,
            v.v_dim, slots, v.scale != 0 ? v.scale : 1 / sqrt(v.dim), v.softcap, v.sinks ? sink_of_head(h) : -INFINITY);
        if (v.undo) {
            struct aura_rotation_plan plan;
            aura_rotation_plan_init(&plan, v.v_dim, aura_tq_signs(v.v_dim), NULL, 1);
            aura_ref_rotate_double(y.data(), NULL, want.out.data(), &plan);
            want.out = y, want.size *= sqrt(v.v_dim);
        }
        for (uint32_t d = 0; d < v.v_dim; d++)
            c.compare(got[h * v.v_dim + d], want.out[d], 1e-5 * want.size + 1e-30, what, h * v.v_dim + d);
        if (lse)
            c.compare(sums[h], want.lse, 1e-5 * (1 + fabs(want.lse)), "log-sum-exp", h);
    }
}

static void run_vec(struct rows_case &c, const struct vec_case &v, const char *what)
{
    const struct scene &s = c.s;
    vec_rows k(c, v.k_bits, v.dtype, v.dim, v.kv_heads, v.tokens, v.capacity, v.sf);
    vec_rows x(c, v.v_bits, v.dtype, v.v_dim, v.kv_heads, v.tokens, v.capacity, v.sf);
    std::vector<float> numbers((size_t)v.q_heads * v.dim), logits(v.q_heads);
    for (float &number : numbers)
        number = c.normal();
    for (size_t h = 0; h < logits.size(); h++)
        logits[h] = sink_of_head(h);
    typed q(numbers, AURA_F32), sinks(logits, AURA_F32);
    output out((size_t)v.q_heads * v.v_dim, AURA_F32), lse(v.q_heads, AURA_F32);
    output temp((size_t)v.q_heads * (v.nwg + !v.nwg) * (v.v_dim + (v.nwg > 1 ? 2 : 0)), AURA_F32);
    aura_rotation undo = AURA_ROTATION_INIT;
    undo.dim = v.v_dim, undo.signs = aura_tq_signs(v.v_dim);
    aura_flash_attn_vec_args a = AURA_FLASH_ATTN_VEC_ARGS_INIT;
    a.k = k.put(), a.v = x.put(), a.dim = v.dim, a.v_dim = v.v_dim, a.q_heads = v.q_heads, a.kv_heads = v.kv_heads;
    a.tokens = v.tokens, a.capacity = v.capacity, a.q = (const float *)q.put(), a.out = (float *)out.device.p;
    a.temp = v.nwg ? (float *)temp.device.p : NULL, a.nwg = v.nwg, a.mask_type = v.mask_type, a.window = v.window;
    a.keep_first = v.keep_first, a.ring_start = v.ring_start, a.scale = v.scale, a.softcap = v.softcap, a.scale_factor_d512 = v.sf;
    a.q_as_f16 = v.q_as_f16, a.sinks = v.sinks && !v.nwg ? (const float *)sinks.put() : NULL;
    a.lse = v.nwg ? NULL : (float *)lse.device.p, a.undo = v.undo && v.nwg <= 1 ? &undo : NULL;
    TRY(aura_cuda_flash_attn_vec(c.rows, &a, NULL));
    if (v.nwg) {
        aura_flash_attn_vec_reduce_args r = AURA_FLASH_ATTN_VEC_REDUCE_ARGS_INIT;
        r.dim = v.v_dim, r.rows = v.q_heads, r.nwg = v.nwg, r.temp = a.temp, r.out = a.out,
        r.undo = v.undo && v.nwg > 1 ? &undo : NULL;
        r.sinks = v.sinks && v.nwg > 1 ? (const float *)sinks.put() : NULL, r.lse = v.nwg > 1 ? (float *)lse.device.p : NULL;
        TRY(aura_cuda_flash_attn_vec_reduce(c.rows, &r, NULL));
    }
    c.expect(AURA_OK, what);
    struct vec_case seen = v;
    seen.sinks &= v.nwg != 1;
    compare_vec(c, seen, k, x, q, out, v.nwg == 1 ? NULL : &lse, what);
}

static void check_published_dense()
{
    static const struct {
        uint32_t dim, q, kv;
        uint64_t tokens, capacity, window;
        float scale;
    } all[] = {{256, 4, 4, 32, 64, 0, 0.0625f}, {256, 16, 8, 48, 48, 0, 1},     {256, 4, 4, 64, 128, 16, 0.0625f},
               {512, 4, 4, 32, 64, 0, 0.044f},  {512, 8, 2, 40, 64, 0, 0.044f}, {512, 4, 2, 64, 70, 16, 0.044f}};
    rows_case c("flash_attn_vec: published dense cases");
    int turn = 0;
    for (const auto &p : all)
        for (aura_dtype type : types)
            for (uint32_t nwg : {0u, 1u, 2u, 17u, 32u}) {
                struct vec_case v = {0, 0, type, p.dim, p.dim, p.q, p.kv, p.tokens, p.capacity};
                v.nwg = nwg, v.mask_type = p.window ? 2 : 1, v.window = p.window, v.scale = p.scale, v.q_as_f16 = nwg & 1;
                if (turn++ % 2 == 0 || p.dim == 256)
                    run_vec(c, v, "dense");
            }
}

static void check_published_tq()
{
    static const struct {
        uint32_t bits, dim, q, kv;
        uint64_t tokens, window;
    } all[] = {{4, 256, 8, 4, 64, 0},   {4, 256, 4, 4, 8, 0},  {4, 512, 4, 2, 32, 0}, {8, 256, 8, 4, 64, 0},
               {8, 256, 8, 4, 256, 64}, {5, 256, 4, 2, 32, 0}, {6, 256, 4, 2, 32, 0}, {8, 256, 16, 4, 600, 0},
               {8, 512, 8, 4, 64, 0},   {5, 512, 8, 2, 33, 0}, {6, 512, 3, 1, 65, 20}};
    rows_case c("flash_attn_vec: published TQ cases");
    int turn = 0;
    for (const auto &p : all) {
        struct vec_case v = {p.bits, p.bits, AURA_F32, p.dim, p.dim, p.q, p.kv, p.tokens, p.tokens + 3};
        v.nwg = 16, v.mask_type = p.window ? 2 : 0, v.window = p.window, v.sf = turn % 2 ? 16.f : 0, v.undo = turn % 3 == 1;
        run_vec(c, v, "TQ");
        v.nwg = turn % 2, v.softcap = 5;
        run_vec(c, v, "TQ with softcap");
        turn++;
    }
}

/* K and V of different kinds and dims, dims that the public kernels do not have, lengths around a chunk. */
static void check_kinds()
{
    static const uint32_t dims[] = {AURA_DIMS(AURA_DIM_ITEM) 320, 1024}, codes[] = {0, 4, 5, 6, 8};
    static const uint64_t tokens[] = {0, 1, 31, 32, 33, 63, 64, 65, 100};
    rows_case c("flash_attn_vec: kinds, dims, lengths");
    int turn = 0;
    for (uint32_t dim : dims)
        for (uint64_t n : tokens) {
            struct vec_case v = {
                0, 0, types[turn % 3], dim, turn % 4 == 2 ? 64 : dim, 0, 1 + (uint32_t)turn % 3, n, n + (uint64_t)turn % 5};
            const uint64_t windows[] = {0, 1, n - 1, n, n + 1, UINT32_MAX, UINT64_MAX, 7};
            v.q_heads = v.kv_heads * (1 + (uint32_t)turn % (dim > 512 ? 2 : 9)), v.nwg = (uint32_t)turn * 5 % 33, v.mask_type = 2;
            v.window = windows[turn % 8], v.scale = 0.1f, v.softcap = turn % 2 ? 30.f : 0, v.keep_first = (uint64_t)turn % 3 * 4;
            v.sinks = turn % 2, v.capacity = v.capacity ? v.capacity : 1;
            run_vec(c, v, "dense");
            turn++;
        }
    for (uint32_t k : codes)
        for (uint32_t v_bits : codes) {
            struct vec_case v = {k, v_bits, types[turn % 3], k % 2 ? 512u : 256u, turn % 3 ? 256u : 512u, 6, 2, 50, 60};
            v.nwg = k + v_bits, v.scale = 0.06f, v.sf = 1, v.undo = turn % 2;
            run_vec(c, v, "mixed");
            turn++;
        }
}

/* Every slot is the oldest once; windows are smaller than the ring; and every number of workgroups. */
static void check_rings()
{
    static const uint64_t windows[] = {0, 1, 7, 20, 39, 40};
    rows_case c("flash_attn_vec: rings and workgroups");
    for (uint64_t start = 0; start < 40; start++) {
        struct vec_case v = {start % 3 == 1 ? 4u : 0, start % 3 == 2 ? 8u : 0, AURA_F16, 256, 256, 2, 1, 40, 40};
        v.nwg = (uint32_t)(start * 7) % 33, v.mask_type = 2, v.window = windows[start % 6], v.ring_start = start, v.scale = 0.06f;
        v.keep_first = start % 5, v.sinks = start % 2;
        run_vec(c, v, "ring");
        v.mask_type = (uint32_t)start % 2, v.nwg = 3; /* mask types 0 and 1 have no window */
        run_vec(c, v, "ring without a window");
    }
    for (uint32_t dim : {64u, 128u, 256u}) /* tiles of f16 */
        for (uint64_t n : {1, 17, 300}) {
            struct vec_case v = {0, 0, AURA_F16, dim, dim, 10, 2, n, n + 2};
            v.nwg = n == 17 ? 3 : 0, v.softcap = dim == 64 ? 9.f : 0, v.ring_start = n == 300 ? 100 : 0;
            run_vec(c, v, "tiles");
        }
    for (uint32_t nwg = 0; nwg <= 32; nwg += 1 + nwg / 4) {
        struct vec_case v = {4, 8, AURA_F32, 256, 256, 4, 2, 1100, 1200};
        v.nwg = nwg, v.scale = nwg % 2 ? 0 : 0.06f;
        run_vec(c, v, "workgroups");
    }
}

/* ---- reduce ----------------------------------------------------------------------------------------------------------- */

/* Fused with undo it has the bits of two steps, and both are right. */
static void check_reduce()
{
    enum { ROWS = 5 };
    rows_case c("reduce, and fused with undo");
    const struct scene &s = c.s;
    for (uint32_t dim : {64u, 80u, 128u, 256u, 512u, 1024u})
        for (uint32_t nwg : {1u, 2u, 3u, 8u, 18u, 32u}) {
            std::vector<float> x((size_t)ROWS * nwg * (dim + (nwg > 1 ? 2 : 0)));
            uint8_t signs[AURA_MAX_DIM / 8];
            aura_signs(nwg, 1, dim, signs);
            for (float &number : x)
                number = c.normal();
            for (size_t i = (size_t)ROWS * nwg * dim; i < x.size(); i += 2)
                x[i] = fabsf(x[i]) + 0.1f;
            typed temp(x, AURA_F32);
            output plain((size_t)ROWS * dim, AURA_F32), two((size_t)ROWS * dim, AURA_F32), fused((size_t)ROWS * dim, AURA_F32);
            aura_rotation undo = AURA_ROTATION_INIT;
            undo.dim = dim, undo.signs = signs;
            aura_flash_attn_vec_reduce_args r = AURA_FLASH_ATTN_VEC_REDUCE_ARGS_INIT;
            r.dim = dim, r.rows = ROWS, r.nwg = nwg, r.temp = (const float *)temp.put(), r.out = (float *)plain.device.p;
            TRY(aura_cuda_flash_attn_vec_reduce(c.rows, &r, NULL));
            aura_rotate_args step = AURA_ROTATE_ARGS_INIT;
            step.rotation = &undo, step.rows = ROWS, step.in = plain.device.p, step.out = two.device.p;
            TRY(aura_cuda_undo(c.rows, &step, NULL));
            r.undo = &undo, r.out = (float *)fused.device.p;
            TRY(aura_cuda_flash_attn_vec_reduce(c.rows, &r, NULL));
            c.expect(AURA_OK, "reduce");
            const std::vector<float> got = plain.get(c);
            if (two.get(c) != fused.get(c) && failures == c.before)
                complain(s, "dim %u nwg %u: fused has other bits", dim, nwg);
            for (size_t i = 0; i < got.size(); i++) {
                const size_t row = i / dim, d = i % dim;
                const float *sm = &x[(size_t)ROWS * dim * nwg + row * 2 * nwg];
                double sum = 0, total = 0, size = 0;
                for (uint32_t w = 0; w < nwg; w++) {
                    const double weight = nwg == 1 ? 1 : exp(sm[2 * w + 1]);
                    const double term = weight * x[row * dim * nwg + (d / 4 * nwg + w) * 4 + d % 4];
                    sum += nwg == 1 ? 1 : weight * sm[2 * w], total += term, size += fabs(term);
                }
                c.compare(got[i], total / sum, 2e-6 * size / sum, "reduce", i);
            }
        }
}

/* What is not finite, sinks of +inf, workgroups without tokens. */
static void check_reduce_edges()
{
    enum { DIM = 256, NWG = 4, ROWS = 6 };
    rows_case c("reduce: sinks, empty workgroups, what is not finite");
    const struct scene &s = c.s;
    std::vector<float> x(ROWS * NWG * (DIM + 2), 1), logits = {-INFINITY, INFINITY, INFINITY, 0, NAN, -INFINITY};
    float *sm = &x[ROWS * NWG * DIM];
    for (int i = 0; i < ROWS * NWG; i++)
        sm[2 * i + 1] = 0.25f;
    for (int w = 0; w < NWG; w++)
        sm[2 * w] = 0, sm[2 * w + 1] = -FLT_MAX / 2, x[4 * w] = 0; /* row 0: nothing seen */
    x[2 * NWG * DIM + 9] = INFINITY;                               /* row 2, whose sink takes all the weight */
    sm[2 * (5 * NWG + 1)] = INFINITY;                              /* row 5 */
    typed temp(x, AURA_F32), sinks(logits, AURA_F32);
    output out(ROWS * DIM, AURA_F32), lse(ROWS, AURA_F32);
    aura_flash_attn_vec_reduce_args r = AURA_FLASH_ATTN_VEC_REDUCE_ARGS_INIT;
    r.dim = DIM, r.rows = ROWS, r.nwg = NWG, r.temp = (const float *)temp.put(), r.out = (float *)out.device.p;
    r.sinks = (const float *)sinks.put(), r.lse = (float *)lse.device.p;
    TRY(aura_cuda_flash_attn_vec_reduce(c.rows, &r, NULL));
    c.expect(AURA_NOT_FINITE, "reduce");
    if (!strstr(aura_last_error(), "3 of the rows") || !strstr(aura_last_error(), "row 2"))
        complain(s, "the message is: %s", aura_last_error());
    const double right = 4 * exp(0.25) / (4 * exp(0.25) + 1), want[ROWS] = {0, 0, NAN, right, NAN, NAN};
    const double sums[ROWS] = {-INFINITY, INFINITY, NAN, log(4 * exp(0.25) + 1), NAN, NAN};
    const std::vector<float> got = out.get(c), got_lse = lse.get(c);
    for (size_t i = 0; i < got.size(); i++)
        c.compare(got[i], want[i / DIM], 1e-6, "edges", i);
    for (size_t i = 0; i < ROWS; i++)
        c.compare(got_lse[i], sums[i], 1e-6, "log-sum-exp", i);
}

/* Norms that are NaN are reported by the part that meets them; a workgroup without tokens is (0, -FLT_MAX / 2). */
static void check_vec_edges()
{
    rows_case c("flash_attn_vec: empty workgroups, NaN, misuse");
    const struct scene &s = c.s;
    vec_rows k(c, 8, AURA_F32, 256, 2, 1, 4, 0), x(c, 8, AURA_F32, 256, 2, 1, 4, 0);
    typed q(std::vector<float>(512, 0.1f), AURA_F32);
    output out(512, AURA_F32), temp(2 * 3 * 258, AURA_F32);
    aura_flash_attn_vec_args a = AURA_FLASH_ATTN_VEC_ARGS_INIT;
    a.k = k.put(), a.v = x.put(), a.dim = 256, a.q_heads = a.kv_heads = 2, a.tokens = 1, a.capacity = 4;
    a.q = (const float *)q.put(), a.out = (float *)out.device.p,
    a.ring_start = 2; /* slot 0 is behind the one token that is there */
    TRY(aura_cuda_flash_attn_vec(c.rows, &a, NULL));
    c.expect(AURA_OK, "nothing is seen");
    for (float got : out.get(c))
        c.compare(got, 0, 0, "nothing is seen", 0);
    a.temp = (float *)temp.device.p, a.nwg = 3;
    TRY(aura_cuda_flash_attn_vec(c.rows, &a, NULL));
    const std::vector<float> parts = temp.get(c);
    c.compare(parts[2 * 3 * 256], 0, 0, "S of an empty workgroup", 0);
    c.compare(parts[2 * 3 * 256 + 1], -FLT_MAX / 2, 0, "M of an empty workgroup", 0);
    k.norms.set(4, NAN), a.k = k.put(), a.ring_start = 0; /* KV head 1 */
    TRY(aura_cuda_flash_attn_vec(c.rows, &a, NULL));
    c.expect(AURA_NOT_FINITE, "partials");
    if (!strstr(aura_last_error(), "row 1"))
        complain(s, "the message is: %s", aura_last_error());
    a.temp = NULL;
    TRY(aura_cuda_flash_attn_vec(c.rows, &a, NULL));
    c.expect(AURA_NOT_FINITE, "rows");
    const std::vector<float> got = out.get(c);
    if ((!isnan(got[300]) || !isfinite(got[3])) && failures == c.before)
        complain(s, "rows 0 and 1: %g and %g", (double)got[3], (double)got[300]);
    aura_flash_attn_vec_args wrong = a;
    wrong.dim = wrong.v_dim = 128; /* which codes do not have */
    if (aura_cuda_flash_attn_vec(c.rows, &wrong, NULL) != AURA_UNSUPPORTED)
        complain(s, "codes of dim 128");
    wrong = a, wrong.mask_type = 3;
    if (aura_cuda_flash_attn_vec(c.rows, &wrong, NULL) != AURA_BAD_ARGUMENT)
        complain(s, "mask type 3");
    aura_flash_attn_vec_reduce_args r = AURA_FLASH_ATTN_VEC_REDUCE_ARGS_INIT;
    r.dim = 256, r.rows = 2, r.nwg = 33, r.temp = (const float *)temp.device.p, r.out = a.out;
    if (aura_cuda_flash_attn_vec_reduce(c.rows, &r, NULL) != AURA_BAD_ARGUMENT)
        complain(s, "33 workgroups");
}

void check_rows_vec()
{
    check_published_dense();
    check_published_tq();
    check_kinds();
    check_rings();
    check_reduce();
    check_reduce_edges();
    check_vec_edges();
}
