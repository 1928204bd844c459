/* Pass 1 and 2 and single-pass attention over packed rows on the device, against double. */
#include "check_rows.cuh"

#include <string.h>

static const aura_dtype types[] = {AURA_F32, AURA_F16, AURA_BF16};
static const uint32_t widths[] = {AURA_CUDA_BITS(AURA_DIM_ITEM)};

/* ---- what is right ------------------------------------------------------------------------------------------------- */

static std::vector<uint64_t> tokens_between(uint64_t first, uint64_t end)
{
    std::vector<uint64_t> all;
    for (uint64_t t = first; t < end; t++)
        all.push_back(t);
    return all;
}

/* Head h over tokens [first, end), in rotated space. */
static struct in_double right_row(const struct problem &p, const struct arrays &x, size_t h, uint64_t first, uint64_t end)
{
    const size_t kv = h / (p.q_heads / p.kv_heads);
    return attend_in_double([&](uint64_t t, uint32_t d) { return x.k.at(kv, t, d); },
                            [&](uint64_t t, uint32_t d) { return x.v.at(kv, t, d); }, x.query(p, h), p.v_dim,
                            tokens_between(first, end), 1, 0, p.sink_heads ? x.sinks.at(h % p.sink_heads) : -INFINITY);
}

/* The signs of the rotations that are undone here. */
static const uint8_t *signs_of(uint32_t dim)
{
    static uint8_t signs[AURA_MAX_DIM / 8];
    aura_signs(5, 1, dim, signs);
    return signs;
}

/* out and lse of all heads against what is right. A rotation spreads an error over all coordinates. */
static void compare_rows(struct rows_case &c, const struct problem &p, const struct arrays &x, const output &out,
                         const output &lse, uint64_t first, double tolerance, const char *what)
{
    const std::vector<float> got = out.get(c), sums = lse.get(c);
    for (size_t h = 0; h < p.q_heads; h++) {
        struct in_double want = right_row(p, x, h, first, p.tokens);
        if (p.undo) {
            struct aura_rotation_plan plan;
            std::vector<double> y(p.v_dim);
            aura_rotation_plan_init(&plan, p.v_dim, signs_of(p.v_dim), NULL, 1);
            aura_ref_rotate_double(y.data(), NULL, want.out.data(), &plan);
            want.out = y, want.size *= sqrt(p.v_dim);
        }
        for (uint32_t d = 0; d < p.v_dim; d++)
            c.compare(got[h * p.v_dim + d], want.out[d], tolerance * want.size + unit_of(p.out_dtype) * fabs(want.out[d]) + 6e-8,
                      what, h * p.v_dim + d);
        c.compare(sums[h], want.lse, fmax(1e-5, tolerance) * (1 + fabs(want.lse)), "log-sum-exp", h);
    }
}

/* ---- calls --------------------------------------------------------------------------------------------------------- */

static void run_sdpa(struct rows_case &c, const struct problem &p, const struct arrays &x, const char *what,
                     double tolerance = 3e-6)
{
    const struct scene &s = c.s;
    output out((size_t)p.q_heads * p.v_dim, p.out_dtype), lse(p.q_heads, AURA_F32);
    aura_rotation undo = AURA_ROTATION_INIT;
    undo.dim = p.v_dim, undo.signs = signs_of(p.v_dim);
    aura_flash_sdpa_args a = AURA_FLASH_SDPA_ARGS_INIT;
    a.keys = x.keys, a.values = x.values, a.dim = p.dim, a.v_dim = p.v_dim, a.q_heads = p.q_heads, a.kv_heads = p.kv_heads;
    a.tokens = p.tokens, a.q = x.q.device->p, a.q_dtype = p.q_dtype, a.out = out.device.p, a.out_dtype = p.out_dtype;
    a.sinks = p.sink_heads ? x.sinks.device->p : NULL, a.sink_dtype = p.side, a.sink_heads = p.sink_heads;
    a.window = p.window, a.lse = (float *)lse.device.p, a.undo = p.undo ? &undo : NULL;
    TRY(aura_cuda_flash_sdpa(c.rows, &a, NULL));
    c.expect(AURA_OK, what);
    compare_rows(c, p, x, out, lse, aura_ref_first_visible(p.tokens, p.window), tolerance, what);
}

/* Pass 1 into blocks of that size, some of them empty, then pass 2. */
static void run_two_passes(struct rows_case &c, const struct problem &p, const struct arrays &x, size_t block_size,
                           aura_dtype partial, double tolerance, const char *what)
{
    const struct scene &s = c.s;
    const size_t blocks = p.tokens / block_size + 2;
    output o(p.q_heads * blocks * p.v_dim, partial), m(p.q_heads * blocks, partial), l(p.q_heads * blocks, partial);
    output out((size_t)p.q_heads * p.v_dim, p.out_dtype), lse(p.q_heads, AURA_F32);
    aura_rotation undo = AURA_ROTATION_INIT;
    undo.dim = p.v_dim, undo.signs = signs_of(p.v_dim);
    aura_flash_p1_args a = AURA_FLASH_P1_ARGS_INIT;
    a.keys = x.keys, a.values = x.values, a.dim = p.dim, a.v_dim = p.v_dim, a.q_heads = p.q_heads, a.kv_heads = p.kv_heads;
    a.tokens = p.tokens, a.q = x.q.device->p, a.q_dtype = p.q_dtype, a.partial_dtype = partial;
    a.o = o.device.p, a.m = m.device.p, a.l = l.device.p, a.num_blocks = blocks, a.block_size = block_size;
    TRY(aura_cuda_flash_p1(c.rows, &a, NULL));
    aura_flash_pass2_args b = AURA_FLASH_PASS2_ARGS_INIT;
    b.dim = p.v_dim, b.q_heads = p.q_heads, b.num_blocks = blocks, b.o = a.o, b.m = a.m, b.l = a.l, b.partial_dtype = partial;
    b.out = out.device.p, b.out_dtype = p.out_dtype, b.lse = (float *)lse.device.p, b.undo = p.undo ? &undo : NULL;
    b.sinks = p.sink_heads ? x.sinks.device->p : NULL, b.sink_dtype = p.side, b.sink_heads = p.sink_heads;
    TRY(aura_cuda_flash_pass2(c.rows, &b, NULL));
    c.expect(AURA_OK, what);
    compare_rows(c, p, x, out, lse, 0, tolerance, what);
}

static void check_published()
{
    rows_case c("published cases of AURA");
    for (int type = 0; type < 3; type++)
        for (int option = 0; option < 4; option++) { /* plain, sinks, window 4, both */
            struct problem p = {4, 2, 128, 128, 2, 1, 8, 8, 8};
            p.window = option & 2 ? 4 : 0, p.sink_heads = option & 1 ? 2 : 0;
            p.side = p.q_dtype = p.out_dtype = types[type];
            const arrays x(c, p);
            run_sdpa(c, p, x, "sdpa");
            if (!(option & 2))
                run_two_passes(c, p, x, 4, AURA_F32, 3e-6, "p1 and pass2");
        }
    struct problem gqa = {4, 4, 128, 128, 8, 2, 10, 10, 10};
    const arrays x(c, gqa);
    run_sdpa(c, gqa, x, "GQA");
}

/* Every pair of widths; dims, heads, lengths, windows, types and all the rest take turns. */
static void check_pairs()
{
    static const uint32_t dims[] = {AURA_DIMS(AURA_DIM_ITEM) 8, 72, 1024};
    static const size_t tokens[] = {1, 31, 32, 33, 63, 64, 65, 130, 700};
    static const uint32_t ratios[] = {1, 2, 3, 4, 5, 7, 8, 12, 20};
    rows_case c("sdpa, p1 and pass2: every pair of widths");
    int turn = 0;
    for (uint32_t k : widths)
        for (uint32_t v : widths) {
            struct problem p = {k, v, dims[turn % 11], dims[turn * 3 % 11], 0, 0, tokens[turn % 9], 0, 0};
            p.v_dim = turn % 3 ? p.dim : p.v_dim;
            p.kv_heads = 1 + turn % 3, p.q_heads = p.kv_heads * ratios[turn * 2 % 9];
            p.q_heads = p.dim * p.q_heads > 4096 ? p.kv_heads * 2 : p.q_heads;
            p.k_stride = p.tokens + turn % 2 * 5, p.v_stride = p.tokens + turn % 4;
            const uint64_t windows[] = {0, 1, p.tokens - 1, p.tokens, p.tokens + 1, UINT32_MAX, UINT64_MAX, 7};
            p.window = windows[turn % 8], p.sink_heads = turn % 3 == 1 ? 0 : p.q_heads / (turn % 2 ? p.kv_heads : 1);
            p.side = types[turn / 2 % 3], p.q_dtype = types[turn % 3], p.out_dtype = types[turn / 3 % 3];
            p.wider = turn % 4 == 2 ? 16 : turn % 4 == 3 ? 3 : 0, p.offset = turn % 7 == 3 ? 1 : 0;
            p.undo = turn % 5 == 2 && aura_paley_order(p.v_dim);
            const arrays x(c, p);
            run_sdpa(c, p, x, "sdpa");
            run_two_passes(c, p, x, 1 + turn % 40, AURA_F32, 3e-6, "p1 and pass2");
            turn++;
        }
}

/* Every kernel of tiles: lengths around a tile, heads around four, windows, types. Then norms of values from 1e-12 to 1e12, and
 * logits so large that few tokens have all the weight: the error stays in proportion to what was added up. */
static void check_tiles()
{
    static const struct {
        uint32_t bits, dim;
    } all[] = {{2, 128}, {3, 128}, {4, 64}, {4, 128}, {4, 256}, {6, 128}, {8, 128}, {8, 256}};
    static const size_t tokens[] = {1, 15, 16, 17, 40, 130, 600};
    rows_case c("sdpa: tiles");
    int turn = 0;
    for (const auto &one : all)
        for (int i = 0; i < 4; i++, turn++) {
            struct problem p = {one.bits, one.bits, one.dim, one.dim, 0, 2, tokens[turn % 7], 0, 0};
            p.q_heads = p.kv_heads * (1 + (uint32_t)turn * 3 % 9), p.k_stride = p.tokens + turn % 3,
            p.v_stride = p.tokens + turn % 2;
            p.window = turn % 3 == 2 ? p.tokens / 2 + 1 : 0, p.sink_heads = turn % 2 ? p.q_heads : 0,
            p.wider = turn % 4 == 1 ? 16 : 0;
            p.side = types[turn % 3], p.q_dtype = types[turn / 3 % 3];
            arrays x(c, p);
            for (size_t t = 0; i == 3 && t < p.kv_heads * p.k_stride; t++)
                if (t % p.k_stride < p.tokens)
                    x.k.norms.set(t, 8 * x.k.norms.at(t));
            for (size_t t = 0; i == 3 && p.side != AURA_F16 && t < p.kv_heads * p.v_stride; t++)
                if (t % p.v_stride < p.tokens)
                    x.v.norms.set(t, powf(10, 24 * (float)random_uniform(&c.seed) - 12));
            x.keys = x.k.put(), x.values = x.v.put();
            run_sdpa(c, p, x, "sdpa", i == 3 ? 1e-5 : 3e-6); /* a logit of 40 is rounded by 2e-6 */
        }
}

/* Every dim that pass 2 has a kernel for, every type of partials; bf16 rounds the largest score of a block. */
static void check_partials()
{
    rows_case c("pass2: dims, types, undo");
    int turn = 0;
    for (uint32_t dim : {AURA_DIMS(AURA_DIM_ITEM) 1024})
        for (aura_dtype partial : types) {
            struct problem p = {4, 4, dim, dim, 4, 2, 120, 120, 120};
            p.undo = turn % 2, p.sink_heads = turn % 3 ? 4 : 0, p.out_dtype = types[turn / 2 % 3];
            const arrays x(c, p);
            run_two_passes(c, p, x, turn % 2 ? 3 : 31, partial,
                           partial == AURA_F32   ? 3e-6
                           : partial == AURA_F16 ? 4e-3
                                                 : 4e-2,
                           "pass2");
            turn++;
        }
}

/* ---- edges ---------------------------------------------------------------------------------------------------------- */

/* Tokens after q_position are not seen; a block without tokens is (0, -inf, 0). */
static void check_causal()
{
    rows_case c("p1: causal blocks");
    const struct scene &s = c.s;
    struct problem p = {4, 2, 128, 128, 2, 1, 8, 11, 9};
    const arrays x(c, p);
    for (uint64_t position : {0, 3, 5, 7, 8, 100}) {
        const uint64_t seen = position + 1 < 8 ? position + 1 : 8;
        output o(2 * 2 * 128, AURA_F32), m(4, AURA_F32), l(4, AURA_F32);
        aura_flash_p1_args a = AURA_FLASH_P1_ARGS_INIT;
        a.keys = x.keys, a.values = x.values, a.dim = 128, a.q_heads = 2, a.kv_heads = 1, a.tokens = 8, a.q = x.q.device->p;
        a.o = o.device.p, a.m = m.device.p, a.l = l.device.p, a.num_blocks = 2, a.block_size = 4, a.causal = 1,
        a.q_position = position;
        TRY(aura_cuda_flash_p1(c.rows, &a, NULL));
        c.expect(AURA_OK, "p1");
        const std::vector<float> got = o.get(c), max = m.get(c), sum = l.get(c);
        for (size_t i = 0; i < 4; i++) {
            const uint64_t first = i % 2 * 4 < seen ? i % 2 * 4 : seen, end = first + 4 < seen ? first + 4 : seen;
            const struct in_double want = right_row(p, x, i / 2, first, end);
            const bool empty = first == end;
            c.compare(empty ? max[i] : max[i] + log(sum[i]), want.lse, 1e-5 * (1 + fabs(want.lse)), "m and l", i);
            for (uint32_t d = 0; d < 128; d++)
                c.compare(empty ? got[i * 128 + d] : got[i * 128 + d] / sum[i], want.out[d], 3e-6 * want.size, "o", i * 128 + d);
        }
    }
}

/* One number of one of the arrays is not what it should be: which rows are NaN, and what the others are. */
static void check_not_finite()
{
    rows_case c("sdpa: infinite norms, sinks, no tokens");
    const struct scene &s = c.s;
    struct problem p = {4, 4, 64, 64, 4, 2, 6, 6, 6};
    p.sink_heads = 4;
    for (int step = 0; step < 6; step++) {
        arrays x(c, p);
        output out(4 * 64, step == 4 ? AURA_F16 : AURA_F32), lse(4, AURA_F32);
        aura_flash_sdpa_args a = AURA_FLASH_SDPA_ARGS_INIT;
        if (step == 0)
            x.k.norms.set(8, NAN); /* KV head 1: heads 2 and 3 */
        if (step == 1)
            x.k.norms.set(8, INFINITY);
        if (step == 2)
            x.sinks.set(2, NAN), x.sinks.set(3, NAN);
        if (step == 3)
            x.sinks.set(2, INFINITY), x.sinks.set(3, INFINITY); /* takes all the weight */
        if (step == 4)
            for (size_t t = 6; t < 12; t++)
                x.v.norms.set(t, 1e7f); /* beyond f16 */
        a.keys = x.k.put(), a.values = x.v.put(), a.dim = 64, a.q_heads = 4, a.kv_heads = 2, a.tokens = step == 5 ? 0 : 6;
        a.q = x.q.device->p, a.out = out.device.p, a.out_dtype = out.dtype, a.lse = (float *)lse.device.p;
        a.sinks = step == 5 ? NULL : x.sinks.put();
        TRY(aura_cuda_flash_sdpa(c.rows, &a, NULL));
        c.expect(step == 3 || step == 5 ? AURA_OK : AURA_NOT_FINITE, "sdpa");
        const std::vector<float> got = out.get(c), sums = lse.get(c);
        for (size_t i = 0; i < got.size(); i++) {
            const bool nan = step != 3 && step != 5 && i >= 128, zero = step == 5 || (step == 3 && i >= 128);
            if ((isnan(got[i]) != nan || (zero && got[i] != 0)) && failures == c.before)
                complain(s, "step %d: number %zu is %g", step, i, (double)got[i]);
        }
        if ((step == 3 && sums[2] != INFINITY) || (step == 5 && sums[0] != -INFINITY) || (step == 4 && !isfinite(sums[2])))
            complain(s, "step %d: log-sum-exp %g", step, (double)sums[2]);
    }
}

/* Partials that no attention makes: an empty block with NaN in o, a maximum of -inf, sums that are 0, negative or infinite. */
static void check_strange_partials()
{
    enum { DIM = 128, ROWS = 6, BLOCKS = 3 };
    rows_case c("pass2: strange partials");
    const struct scene &s = c.s;
    std::vector<float> o(ROWS * BLOCKS * DIM), m(ROWS * BLOCKS, 0.5f), l(ROWS * BLOCKS, 2);
    for (float &x : o)
        x = c.normal();
    l[1] = 0, o[DIM] = NAN, m[1] = NAN; /* row 0: block 1 is empty */
    m[3] = m[4] = m[5] = -INFINITY;     /* row 1: nothing was seen */
    m[6] = NAN;                         /* row 2: NaN */
    l[9] = -100;                        /* row 3: a negative sum */
    l[12] = INFINITY;                   /* row 4 */
    o[5 * BLOCKS * DIM + 7] = INFINITY; /* row 5 */
    typed dev_o(o, AURA_F32), dev_m(m, AURA_F32), dev_l(l, AURA_F32);
    output out(ROWS * DIM, AURA_F32), lse(ROWS, AURA_F32);
    aura_flash_pass2_args b = AURA_FLASH_PASS2_ARGS_INIT;
    b.dim = DIM, b.q_heads = ROWS, b.num_blocks = BLOCKS, b.o = dev_o.put(), b.m = dev_m.put(), b.l = dev_l.put();
    b.out = out.device.p, b.lse = (float *)lse.device.p;
    TRY(aura_cuda_flash_pass2(c.rows, &b, NULL));
    c.expect(AURA_NOT_FINITE, "pass2");
    if (!strstr(aura_last_error(), "4 of the rows") || !strstr(aura_last_error(), "row 2"))
        complain(s, "the message is: %s", aura_last_error());
    const std::vector<float> got = out.get(c), sums = lse.get(c);
    for (size_t i = 0; i < got.size(); i++) {
        const double first = i < DIM ? (o[i] + (double)o[2 * DIM + i]) / 4 : i < 2 * DIM ? 0 : NAN;
        c.compare(got[i], first, 1e-6, "strange", i);
    }
    c.compare(sums[1], -INFINITY, 0, "log-sum-exp", 1);
    b.num_blocks = 0, b.o = b.m = b.l = NULL;
    TRY(aura_cuda_flash_pass2(c.rows, &b, NULL));
    c.expect(AURA_OK, "no blocks");
    for (float x : out.get(c))
        c.compare(x, 0, 0, "no blocks", 0);
}

/* The same arguments are refused as on the CPU, by the same checks; one of each call. */
static void check_refusals()
{
    rows_case c("refusals of sdpa, p1, pass2", 1024);
    const struct scene &s = c.s;
    struct problem p = {4, 4, 64, 64, 4, 2, 6, 8, 8};
    const arrays x(c, p);
    output out(4 * 64, AURA_F32);
    aura_rotation undo = AURA_ROTATION_INIT;
    undo.dim = 128; /* not that of the rows */
    aura_flash_sdpa_args a = AURA_FLASH_SDPA_ARGS_INIT;
    a.keys = x.keys, a.values = x.values, a.dim = 64, a.q_heads = 4, a.kv_heads = 2, a.tokens = 6, a.q = x.q.device->p,
    a.out = out.device.p;
    aura_flash_sdpa_args wrong_undo = a, wrong_dim = a;
    wrong_undo.undo = &undo, wrong_dim.dim = 60;
    aura_flash_p1_args b = AURA_FLASH_P1_ARGS_INIT;
    b.keys = x.keys, b.values = x.values, b.dim = 64, b.q_heads = 4, b.kv_heads = 2, b.tokens = 6, b.q = a.q,
    b.o = b.m = b.l = a.out;
    b.num_blocks = 1, b.block_size = 5;
    aura_flash_pass2_args d = AURA_FLASH_PASS2_ARGS_INIT;
    d.dim = 64, d.q_heads = 4, d.num_blocks = 1, d.o = d.m = d.l = a.q, d.out = (void *)a.q;
    const struct {
        aura_status got, want;
        const char *what;
    } all[] = {{aura_cuda_flash_sdpa(NULL, &a, NULL), AURA_BAD_ARGUMENT, "no handle"},
               {aura_cuda_flash_sdpa(c.rows, &wrong_undo, NULL), AURA_BAD_ARGUMENT, "undo of another dim"},
               {aura_cuda_flash_sdpa(c.rows, &wrong_dim, NULL), AURA_BAD_ARGUMENT, "dim 60"},
               {aura_cuda_flash_sdpa(c.rows, &a, NULL), AURA_TOO_LARGE, "4 x 66 floats of scratch"},
               {aura_cuda_flash_p1(c.rows, &b, NULL), AURA_BAD_ARGUMENT, "blocks that do not cover the tokens"},
               {aura_cuda_flash_pass2(c.rows, &d, NULL), AURA_BAD_ARGUMENT, "out over o"},
               {aura_cuda_flash_pass2(c.rows, NULL, NULL), AURA_BAD_ARGUMENT, "no arguments"}};
    for (const auto &one : all)
        if (one.got != one.want)
            complain(s, "%s: the status is %s", one.what, aura_status_text(one.got));
    for (float x_ : out.get(c))
        c.compare(x_, NAN, 0, "what was refused wrote", 0);
}

/* Calls that are captured once give the same bits every time they are done again. */
static void check_captured()
{
    rows_case c("sdpa in a graph");
    const struct scene &s = c.s;
    struct problem p = {4, 4, 128, 128, 8, 2, 600, 600, 600};
    const arrays x(c, p);
    output out(8 * 128, AURA_F32), lse(8, AURA_F32);
    aura_flash_sdpa_args a = AURA_FLASH_SDPA_ARGS_INIT;
    a.keys = x.keys, a.values = x.values, a.dim = 128, a.q_heads = 8, a.kv_heads = 2, a.tokens = 600, a.q = x.q.device->p;
    a.out = out.device.p, a.lse = (float *)lse.device.p;
    captured graph(s, [&](cudaStream_t stream) { TRY(aura_cuda_flash_sdpa(c.rows, &a, stream)); });
    graph.replay(s);
    const std::vector<float> once = out.get(c);
    compare_rows(c, p, x, out, lse, 0, 3e-6, "sdpa");
    TRY_CUDA(cudaMemset(out.device.p, 0xff, out.n * 4));
    graph.replay(s);
    c.expect(AURA_OK, "sdpa");
    if (once != out.get(c))
        complain(s, "the second time gives other bits");
}

void check_rows_small()
{
    check_published();
    check_captured();
    check_strange_partials();
}

void check_rows_flash()
{
    check_published();
    check_pairs();
    check_tiles();
    check_partials();
    check_causal();
    check_not_finite();
    check_strange_partials();
    check_refusals();
    check_captured();
}
