/* Rotate, undo, encode and dequant on the device: the bytes of ref.c. */
#include "check_rows.cuh"

#include <string.h>

#include <algorithm>

static const aura_dtype types[] = {AURA_F32, AURA_F16, AURA_BF16};

/* A rotation whose matrix and balance are on the device, and the same on the host. */
struct both_rotations {
    std::vector<uint8_t> signs;
    std::vector<float> matrix, balance;
    std::unique_ptr<device_array> device_matrix, device_balance;
    aura_rotation host = AURA_ROTATION_INIT, device = AURA_ROTATION_INIT;
    both_rotations(struct rows_case &c, uint32_t dim, bool dense, bool balanced) : signs(dim / 8 + 1), balance(dim, 1)
    {
        aura_signs(c.seed++, 0, dim, signs.data());
        host.dim = dim, host.kind = dense ? AURA_ROTATION_DENSE : AURA_ROTATION_HADAMARD, host.signs = dense ? NULL : signs.data();
        if (dense) { /* a reflection: I - 2 v v^T */
            std::vector<double> v(dim);
            double size = 0;
            for (double &x : v)
                x = c.normal(), size += x * x;
            matrix.resize((size_t)dim * dim);
            for (uint32_t i = 0; i < dim; i++)
                for (uint32_t j = 0; j < dim; j++)
                    matrix[(size_t)i * dim + j] = (float)((i == j) - 2 * v[i] * v[j] / size);
        }
        for (float &x : balance)
            x = 0.5f + (float)random_uniform(&c.seed);
        device = host;
        host.matrix = dense ? matrix.data() : NULL, host.balance = balanced ? balance.data() : NULL;
        device_matrix.reset(new device_array(matrix.data(), matrix.size() * 4));
        device_balance.reset(new device_array(balance.data(), balance.size() * 4));
        device.matrix = dense ? (float *)device_matrix->p : NULL, device.balance = balanced ? (float *)device_balance->p : NULL;
    }
    /* One row, by the definition. */
    void apply(float *y, const float *x, int undo) const
    {
        const uint32_t dim = host.dim;
        struct aura_rotation_plan plan;
        if (host.kind == AURA_ROTATION_HADAMARD) {
            aura_rotation_plan_init(&plan, dim, host.signs, host.balance, undo);
            (undo ? aura_undo_ref : aura_rotate_ref)(y, x, &plan, 1);
            return;
        }
        std::vector<float> in(x, x + dim), columns(matrix);
        for (uint32_t d = 0; d < dim && host.balance && !undo; d++)
            in[d] = in[d] * host.balance[d];
        for (uint32_t i = 0; i < dim && !undo; i++)
            for (uint32_t j = 0; j < dim; j++)
                columns[(size_t)j * dim + i] = matrix[(size_t)i * dim + j];
        aura_row_rotate_dense_ref(y, in.data(), columns.data(), dim, 1);
        for (uint32_t d = 0; d < dim && host.balance && undo; d++)
            y[d] = y[d] * host.balance[d];
    }
};

static void rotate_dim(struct rows_case &c, uint32_t dim, bool dense, bool balanced, int undo, aura_dtype in, aura_dtype out)
{
    enum { ROWS = 5 };
    const both_rotations r(c, dim, dense, balanced);
    std::vector<float> x((size_t)ROWS * (dim + 3));
    for (float &number : x)
        number = c.normal();
    typed from(x, in);
    output to((size_t)ROWS * dim, out);
    aura_rotate_args a = AURA_ROTATE_ARGS_INIT;
    a.rotation = &r.device, a.rows = ROWS, a.in = from.put(), a.out = to.device.p, a.in_dtype = in, a.out_dtype = out;
    a.in_stride = dim + 3;
    const struct scene &s = c.s;
    TRY((undo ? aura_cuda_undo : aura_cuda_rotate)(c.rows, &a, NULL));
    c.expect(AURA_OK, "rotate");
    const std::vector<float> got = to.get(c);
    for (uint32_t row = 0; row < ROWS; row++) {
        std::vector<float> y(dim), want(dim);
        for (uint32_t d = 0; d < dim; d++)
            y[d] = from.at((size_t)row * (dim + 3) + d);
        r.apply(want.data(), y.data(), undo);
        const typed stored(want, out);
        for (uint32_t d = 0; d < dim; d++)
            c.compare(got[(size_t)row * dim + d], stored.at(d), 0, undo ? "undo" : "rotate", (size_t)row * dim + d);
    }
}

static void check_rotations()
{
    static const uint32_t dims[] = {AURA_DIMS(AURA_DIM_ITEM) 8, 24, 320, 576, 1024};
    rows_case c("rotate, undo");
    int turn = 0;
    for (uint32_t dim : dims)
        for (int undo = 0; undo < 2; undo++, turn++) {
            const bool none = aura_paley_order(dim) == 0;
            rotate_dim(c, dim, none, turn % 3 == 0, undo, types[turn % 3], types[(turn / 2) % 3]);
        }
    for (int undo = 0; undo < 2; undo++)
        rotate_dim(c, 72, true, true, undo, AURA_F32, AURA_F32);
}

/* ---- encode --------------------------------------------------------------------------------------------------------- */

/* How rows are encoded in one call. */
struct encode_way {
    uint32_t dim, rotation; /* 0: none, 1: Hadamard, 2: dense */
    bool balanced;
    aura_scale_rule rule;
    uint32_t search;
    float tiny;
    aura_dtype in, scale;
    size_t rows;
};

static void encode_rows(struct rows_case &c, const aura_codebook &book, const struct encode_way &w)
{
    const both_rotations r(c, w.dim, w.rotation == 2, w.balanced);
    const size_t row_bytes = aura_row_bytes(w.dim, book.bits), in_stride = w.dim + 5, packed_stride = row_bytes + 3;
    std::vector<float> x(w.rows * in_stride);
    for (size_t row = 0; row < w.rows; row++)
        fill_vector(&x[row * in_stride], w.dim, (enum vector_kind)(w.in == AURA_F32 ? row % N_VECTOR_KINDS : NORMAL), &c.seed);
    typed from(x, w.in);
    device_array packed(w.rows * packed_stride);
    output scales(w.rows, w.scale);
    aura_encode_args a = AURA_ENCODE_ARGS_INIT;
    a.codebook = &book, a.rotation = w.rotation ? &r.device : NULL, a.dim = w.dim, a.rows = w.rows, a.in = from.put();
    a.packed = packed.p, a.scales = scales.device.p, a.in_dtype = w.in, a.scale_dtype = w.scale, a.in_stride = in_stride;
    a.packed_stride = packed_stride, a.rule = w.rule, a.search = w.search, a.tiny = w.tiny;
    const struct scene &s = c.s;
    TRY(aura_cuda_encode(c.rows, &a, NULL));
    const aura_status got_status = aura_cuda_rows_finish(c.rows, NULL); /* huge vectors do not fit f16 scales */
    std::vector<uint8_t> got(packed.bytes);
    TRY_CUDA(cudaMemcpy(got.data(), packed.p, packed.bytes, cudaMemcpyDeviceToHost));
    const std::vector<float> got_scales = scales.get(c);
    struct aura_codec_plan plan;
    aura_codec_plan_init(&plan, &book, w.dim, w.rule, w.search);
    if (w.tiny > 0)
        plan.tiny = w.tiny, plan.keep_tiny = 1;
    size_t refused = 0;
    for (size_t row = 0; row < w.rows; row++) {
        std::vector<float> y(w.dim), rotated(w.dim);
        std::vector<uint8_t> want(packed_stride, 0xff); /* what is between rows stays as it was */
        float scale;
        for (uint32_t d = 0; d < w.dim; d++)
            rotated[d] = y[d] = from.at(row * in_stride + d);
        if (w.rotation)
            r.apply(rotated.data(), y.data(), 0);
        aura_row_encode_ref(want.data(), &scale, rotated.data(), &plan, 1);
        const bool fits = w.scale != AURA_F16 || fabsf(scale) < 65520.f;
        if (!fits)
            want.assign(packed_stride, 0xff), refused++;
        if (memcmp(&got[row * packed_stride], want.data(), packed_stride) && failures == c.before)
            complain(s, "row %zu of %u bits, dim %u, rotation %u, rule %d, search %u has other bytes", row, book.bits, w.dim,
                     w.rotation, (int)w.rule, w.search);
        if (fits)
            c.compare(got_scales[row], typed({scale}, w.scale).at(0), 0, "scale", row);
    }
    c.calls++;
    if (got_status != (refused ? AURA_BAD_VALUE : AURA_OK) && failures == c.before)
        complain(s, "%zu rows are refused, and the status is %s", refused, aura_status_text(got_status));
}

static void check_encode()
{
    static const uint32_t dims[] = {128, 64, 80, 96, 32, 256, 512, 1024, 8, 72};
    static const aura_table tables[] = {AURA_TABLE_GRID, AURA_TABLE_AURA, AURA_TABLE_EXACT, AURA_TABLE_TQ};
    rows_case c("encode");
    int turn = 0;
    for (uint32_t bits : {AURA_CUDA_BITS(AURA_DIM_ITEM)})
        for (aura_table table : tables) {
            aura_codebook book;
            if (aura_codebook_get(table, bits, &book))
                continue;
            const uint32_t dim = dims[turn % 10];
            struct encode_way w = {dim,
                                   dim == 72 ? 2u : (uint32_t)turn % 3,
                                   turn % 4 == 1,
                                   (aura_scale_rule)(turn % 3),
                                   (uint32_t)turn % 2,
                                   turn % 5 == 2 ? 1e-8f : 0,
                                   types[turn % 3],
                                   types[(turn + turn / 3) % 3],
                                   12};
            w.rotation = dim > 256 && w.rotation == 2 ? 1 : w.rotation;
            encode_rows(c, book, w);
            w.search = !w.search, w.rule = (aura_scale_rule)((turn + 1) % 3), w.in = AURA_F32, w.scale = AURA_F32;
            encode_rows(c, book, w);
            turn++;
        }
}

/* Rows that cannot be encoded stay as they were, the others are written, and the first is named. */
static void check_bad_values()
{
    enum { DIM = 64, ROWS = 6 };
    rows_case c("encode: NaN, Inf and beyond 2^40");
    const struct scene &s = c.s;
    std::vector<float> x(ROWS * DIM);
    for (float &number : x)
        number = c.normal();
    x[2 * DIM + 5] = NAN, x[3 * DIM] = INFINITY, x[5 * DIM + 63] = 0x1.1p40f;
    typed from(x, AURA_F32);
    device_array packed(ROWS * DIM / 2);
    output scales(ROWS, AURA_F32);
    aura_codebook book;
    aura_codebook_get(AURA_TABLE_GRID, 4, &book);
    aura_encode_args a = AURA_ENCODE_ARGS_INIT;
    a.codebook = &book, a.dim = DIM, a.rows = ROWS, a.in = from.put(), a.packed = packed.p, a.scales = scales.device.p;
    TRY(aura_cuda_encode(c.rows, &a, NULL));
    c.expect(AURA_BAD_VALUE, "bad rows");
    if (!strstr(aura_last_error(), "3 rows") || !strstr(aura_last_error(), "row 2"))
        complain(s, "the message is: %s", aura_last_error());
    const std::vector<float> got = scales.get(c);
    for (int row = 0; row < ROWS; row++)
        if (isnan(got[row]) != (row == 2 || row == 3 || row == 5) && failures == c.before)
            complain(s, "row %d has the scale %g", row, (double)got[row]);
    c.expect(AURA_OK, "the status is clear again");
}

/* ---- dequant -------------------------------------------------------------------------------------------------------- */

static void check_dequant()
{
    static const uint32_t dims[] = {AURA_DIMS(AURA_DIM_ITEM) 1024, 72, 8};
    rows_case c("dequant");
    const struct scene &s = c.s;
    int turn = 0;
    for (uint32_t bits : {AURA_CUDA_BITS(AURA_DIM_ITEM)})
        for (uint32_t dim : dims) {
            packed_rows p(c, bits, dim, 2, 3, 5, types[turn % 3], types[turn / 3 % 3], turn % 4 == 1 ? 5 : 0);
            const aura_dtype type = types[(turn + 1) % 3];
            output out((size_t)(4 + 3) * dim, type);
            aura_dequant_args a = AURA_DEQUANT_ARGS_INIT;
            a.rows = p.put(turn % 3), a.dim = dim, a.kv_heads = 2, a.tokens = 3, a.out = out.device.p, a.out_dtype = type,
            a.out_stride = 4;
            TRY(aura_cuda_dequant(c.rows, &a, NULL));
            c.expect(AURA_OK, "dequant");
            const std::vector<float> got = out.get(c);
            for (size_t i = 0; i < got.size(); i++) {
                const size_t head = i / dim / 4, t = i / dim % 4;
                const uint32_t d = (uint32_t)(i % dim);
                const float want = t == 3 ? NAN : (float)p.at(head, t, d);
                c.compare(got[i], t == 3 ? NAN : typed({want}, type).at(0), 0, "dequant", i);
            }
            turn++;
        }
}

/* ---- caches of mlx-native ------------------------------------------------------------------------------------------- */

/* Bytes on both sides, which begin as the same ones. */
struct both_bytes {
    std::vector<uint8_t> host;
    device_array device;
    explicit both_bytes(size_t n) : host(n, 0xff), device(n)
    {
    }
    void compare(struct rows_case &c, const char *what) const
    {
        const struct scene &s = c.s;
        std::vector<uint8_t> got(host.size());
        TRY_CUDA(cudaMemcpy(got.data(), device.p, got.size(), cudaMemcpyDeviceToHost));
        const size_t at = (size_t)(std::mismatch(got.begin(), got.end(), host.begin()).first - got.begin());
        if (at < got.size() && failures == c.before)
            complain(s, "%s: byte %zu is %u, on the CPU %u", what, at, got[at], host[at]);
    }
};

/* Tokens into a cache, round its end where it slides, and a slot of it as numbers: beside the CPU's functions. */
static void tq_cache(struct rows_case &c, uint32_t dim, uint32_t bits, bool sliding, aura_dtype dtype, float sf)
{
    enum { HEADS = 3, CAPACITY = 7, TOKENS = 5 };
    const struct scene &s = c.s;
    std::vector<float> x(TOKENS * HEADS * dim);
    for (size_t row = 0; row < TOKENS * HEADS; row++)
        fill_vector(&x[row * dim], dim, (enum vector_kind)(dtype == AURA_F32 ? row % N_VECTOR_KINDS : NORMAL), &c.seed);
    typed from(x, dtype);
    both_bytes packed((size_t)HEADS * CAPACITY * dim * (bits == 4 ? 4 : 8) / 8), norms((size_t)HEADS * CAPACITY * (dim / 256) * 4);
    aura_tq_encode_args a = AURA_TQ_ENCODE_ARGS_INIT, b;
    a.dim = dim, a.bits = bits, a.kv_heads = HEADS, a.tokens = TOKENS, a.capacity = CAPACITY, a.write_pos = sliding ? 7004 : 2;
    a.sliding = sliding, a.in_dtype = dtype, a.scale_factor_d512 = sf, b = a;
    a.in = from.bytes.data(), a.packed = packed.host.data(), a.norms = (float *)norms.host.data();
    b.in = from.put(), b.packed = packed.device.p, b.norms = (float *)norms.device.p;
    TRY(aura_tq_encode(c.ctx, &a));
    TRY(aura_cuda_tq_encode(c.rows, &b, NULL));
    c.expect(AURA_OK, "tq_encode");
    packed.compare(c, "codes of TQ"), norms.compare(c, "norms of TQ");
    std::vector<float> want(HEADS * dim);
    output out(want.size(), AURA_F32);
    aura_tq_dequant_args d = AURA_TQ_DEQUANT_ARGS_INIT, e;
    d.dim = dim, d.bits = bits, d.kv_heads = HEADS, d.capacity = CAPACITY, d.slot = sliding ? 6 : 3;
    d.scale_factor_d512 = sf, e = d;
    d.packed = packed.host.data(), d.norms = (float *)norms.host.data(), d.out = want.data();
    e.packed = packed.device.p, e.norms = (float *)norms.device.p, e.out = (float *)out.device.p;
    TRY(aura_tq_dequant(c.ctx, &d));
    TRY(aura_cuda_tq_dequant(c.rows, &e, NULL));
    c.expect(AURA_OK, "tq_dequant");
    const std::vector<float> got = out.get(c);
    for (size_t i = 0; i < want.size(); i++)
        c.compare(got[i], want[i], 0, "tq_dequant", i);
}

static void copy_cache(struct rows_case &c, aura_dtype in, aura_dtype to, bool sliding, bool token_major)
{
    enum { HEADS = 2, DIM = 5, CAPACITY = 6, TOKENS = 4 };
    const struct scene &s = c.s;
    std::vector<float> x(TOKENS * HEADS * DIM);
    for (size_t i = 0; i < x.size(); i++)
        x[i] = i % 9 == 4 ? INFINITY : i % 9 == 7 ? 1e6f : c.normal();
    typed from(x, in);
    both_bytes cache((size_t)HEADS * DIM * CAPACITY * (to == AURA_F32 ? 4 : 2));
    aura_kv_copy_args a = AURA_KV_COPY_ARGS_INIT, b;
    a.heads = HEADS, a.dim = DIM, a.tokens = TOKENS, a.capacity = CAPACITY, a.write_pos = sliding ? 6004 : 1, a.sliding = sliding;
    a.token_major = token_major, a.in_dtype = in, a.cache_dtype = to, b = a;
    a.in = from.bytes.data(), a.cache = cache.host.data(), b.in = from.put(), b.cache = cache.device.p;
    TRY(aura_kv_copy(c.ctx, &a));
    TRY(aura_cuda_kv_copy(c.rows, &b, NULL));
    c.expect(AURA_OK, "kv_copy");
    cache.compare(c, "kv_copy");
}

/* Rows that cannot be encoded stay as they were; what the CPU refuses is refused. */
static void refuse_tq(struct rows_case &c)
{
    const struct scene &s = c.s;
    std::vector<float> x(3 * 256, 0.5f);
    x[256 + 9] = NAN, x[700] = -0x1.1p40f;
    typed from(x, AURA_F32);
    device_array packed(3 * 128);
    output norms(3, AURA_F32);
    aura_tq_encode_args a = AURA_TQ_ENCODE_ARGS_INIT;
    a.dim = 256, a.bits = 4, a.kv_heads = 1, a.tokens = a.capacity = 3;
    a.in = from.put(), a.packed = packed.p, a.norms = (float *)norms.device.p;
    TRY(aura_cuda_tq_encode(c.rows, &a, NULL));
    c.expect(AURA_BAD_VALUE, "bad rows");
    const std::vector<float> got = norms.get(c);
    for (int row = 0; row < 3; row++)
        if (isnan(got[row]) != (row > 0) && failures == c.before)
            complain(s, "row %d has the norm %g", row, (double)got[row]);
    a.capacity = 2;
    aura_tq_dequant_args d = AURA_TQ_DEQUANT_ARGS_INIT;
    d.dim = 128, d.bits = 4, d.kv_heads = 1, d.capacity = 3, d.packed = packed.p, d.norms = a.norms;
    d.out = (float *)from.device->p;
    aura_kv_copy_args k = AURA_KV_COPY_ARGS_INIT;
    k.heads = 1, k.dim = 4, k.tokens = k.capacity = 2, k.write_pos = 1, k.in = from.device->p, k.cache = packed.p;
    if (aura_cuda_tq_encode(c.rows, &a, NULL) != AURA_BAD_ARGUMENT || aura_cuda_tq_dequant(c.rows, &d, NULL) != AURA_UNSUPPORTED ||
        aura_cuda_kv_copy(c.rows, &k, NULL) != AURA_BAD_ARGUMENT || aura_cuda_kv_copy(NULL, &k, NULL) != AURA_BAD_ARGUMENT)
        complain(s, "a call that does not fit is taken");
    a.tokens = k.tokens = 0;
    TRY(aura_cuda_tq_encode(c.rows, &a, NULL));
    TRY(aura_cuda_kv_copy(c.rows, &k, NULL));
}

static void check_tq()
{
    rows_case c("tq_encode, tq_dequant, kv_copy");
    int turn = 0;
    for (uint32_t dim : {256u, 512u})
        for (uint32_t bits : {4u, 5u, 6u, 8u})
            for (int sliding = 0; sliding < 2; sliding++, turn++)
                tq_cache(c, dim, bits, sliding, types[turn % 3], turn % 4 == 3 ? 1.7f : 0);
    for (int way = 0; way < 9; way++)
        copy_cache(c, types[way % 3], types[way / 3], way % 2, way / 2 % 2);
    refuse_tq(c);
}

void check_rows_codec()
{
    check_tq();
    check_rotations();
    check_encode();
    check_bad_values();
    check_dequant();
}
