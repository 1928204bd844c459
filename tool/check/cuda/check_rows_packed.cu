/* Score and value over packed rows on the device, against double; and misuse. */
#include "check_rows.cuh"

#include <string.h>

static const aura_dtype types[] = {AURA_F32, AURA_F16, AURA_BF16};
static const uint32_t widths[] = {AURA_CUDA_BITS(AURA_DIM_ITEM)};

/* ---- score, value ------------------------------------------------------------------------------------------------- */

static void run_score(struct rows_case &c, const struct problem &p, const struct arrays &x)
{
    const struct scene &s = c.s;
    const size_t stride = p.tokens + 3;
    output scores((p.q_heads - 1) * stride + p.tokens, p.out_dtype);
    aura_score_args a = AURA_SCORE_ARGS_INIT;
    a.keys = x.keys, a.dim = p.dim, a.q_heads = p.q_heads, a.kv_heads = p.kv_heads, a.tokens = p.tokens, a.q = x.q.device->p;
    a.q_dtype = p.q_dtype, a.scores = scores.device.p, a.score_dtype = p.out_dtype, a.score_stride = stride;
    TRY(aura_cuda_score(c.rows, &a, NULL));
    c.expect(AURA_OK, "score");
    const std::vector<float> got = scores.get(c);
    for (size_t h = 0; h < p.q_heads; h++) {
        const std::vector<double> q = x.query(p, h);
        for (size_t t = 0; t < stride && h * stride + t < got.size(); t++) {
            double sum = 0, size = 0;
            for (uint32_t d = 0; d < p.dim && t < p.tokens; d++) {
                const double term = q[d] * x.k.at(h / (p.q_heads / p.kv_heads), t, d);
                sum += term, size += fabs(term);
            }
            c.compare(got[h * stride + t], t < p.tokens ? sum : NAN, 1e-6 * size + unit_of(p.out_dtype) * fabs(sum), "score",
                      h * stride + t);
        }
    }
}

/* unit: what weights and the threshold are multiplied with. */
static void run_value(struct rows_case &c, const struct problem &p, const struct arrays &x, float threshold, float unit = 1)
{
    const struct scene &s = c.s;
    const size_t stride = p.tokens + 1;
    std::vector<float> w(p.q_heads * stride, NAN);
    for (size_t i = 0; i < w.size(); i++)
        w[i] = i % stride == p.tokens || i % 11 == 5 ? NAN
             : i % 7 == 3                            ? threshold
                                                     : (float)random_uniform(&c.seed) * 0.4f - 0.05f;
    threshold *= unit;
    for (float &weight : w)
        weight *= unit;
    typed weights(w, p.q_dtype);
    output out((size_t)p.q_heads * p.v_dim, p.out_dtype);
    aura_value_args a = AURA_VALUE_ARGS_INIT;
    a.values = x.values, a.dim = p.v_dim, a.q_heads = p.q_heads, a.kv_heads = p.kv_heads, a.tokens = p.tokens;
    a.weights = weights.put(), a.weight_dtype = p.q_dtype, a.weight_stride = stride, a.out = out.device.p,
    a.out_dtype = p.out_dtype;
    a.sparse_threshold = threshold;
    TRY(aura_cuda_value(c.rows, &a, NULL));
    c.expect(AURA_OK, "value");
    const std::vector<float> got = out.get(c);
    for (size_t h = 0; h < p.q_heads; h++)
        for (uint32_t d = 0; d < p.v_dim; d++) {
            double sum = 0, size = 1e-30;
            for (size_t t = 0; t < p.tokens; t++) {
                const float weight = weights.at(h * stride + t);
                const double term = weight >= threshold ? weight * x.v.at(h / (p.q_heads / p.kv_heads), t, d) : 0;
                sum += term, size += fabs(term);
            }
            c.compare(got[h * p.v_dim + d], sum, 2e-6 * size + unit_of(p.out_dtype) * fabs(sum), "value", h * p.v_dim + d);
        }
}

static void check_score_and_value()
{
    static const uint32_t dims[] = {AURA_DIMS(AURA_DIM_ITEM) 8, 72, 1024};
    static const size_t tokens[] = {8, 1, 31, 33, 64, 130, 300};
    rows_case c("score, value");
    int turn = 0;
    for (uint32_t bits : widths)
        for (uint32_t dim : dims) {
            struct problem p = {bits, bits, dim, dim, 0, 0, tokens[turn % 7], 0, 0};
            p.kv_heads = 1 + turn % 3, p.q_heads = p.kv_heads * (1 + turn % 9);
            p.k_stride = p.tokens + turn % 2 * 3, p.v_stride = p.tokens + turn % 3;
            p.side = types[turn % 3], p.q_dtype = types[turn / 2 % 3], p.out_dtype = types[(turn + 1) % 3];
            p.wider = turn % 4 == 3 ? 4 : 0, p.offset = turn % 5 == 4 ? 1 : 0;
            const arrays x(c, p);
            run_score(c, p, x);
            run_value(c, p, x, turn % 2 ? 0.1f : -0.03f);
            turn++;
        }
    for (uint32_t bits : {3u, 4u, 8u}) /* tiles */
        for (size_t n : {1, 16, 17, 600}) {
            struct problem p = {bits, bits, 128, 128, 10, 2, n, n + 1, n};
            const arrays x(c, p);
            run_score(c, p, x);
            run_value(c, p, x, 0.1f);
            run_value(c, p, x, 0.1f, 1e-7f); /* as of tokens without number */
            p.side = types[(bits + n) % 3], p.q_dtype = types[n % 2 + 1], p.out_dtype = types[bits % 3];
            const arrays other(c, p);
            run_score(c, p, other);
            run_value(c, p, other, 0.1f);
        }
    for (uint32_t dim : {1u, 7u, 9u, 63u, 130u}) { /* any dim of values */
        struct problem p = {4, dim % 2 ? 3u : 6u, 64, dim, 4, 2, 70, 70, 71};
        const arrays x(c, p);
        run_value(c, p, x, 0.1f);
    }
}

/* Tokens that are skipped may hold anything; rows that are not finite are NaN, and the others are good. */
static void check_value_edges()
{
    enum { DIM = 128, T = 10 };
    rows_case c("value: what is skipped, and what is not finite");
    const struct scene &s = c.s;
    struct problem p = {4, 4, DIM, DIM, 4, 2, T, T, T};
    arrays x(c, p);
    std::vector<float> w(4 * T, 0.2f);
    w[0] = 0, w[T] = NAN; /* token 0, for both heads of KV head 0 */
    x.v.norms.set(0, NAN);
    for (int step = 0; step < 3; step++) {
        if (step == 1)
            w[0] = 1;
        if (step == 2)
            x.v.norms.set(0, 3e38f), x.v.norms.set(1, 3e38f), w[1] = 1, w[T + 1] = 0;
        typed weights(w, AURA_F32);
        output out(4 * DIM, AURA_F32);
        aura_value_args a = AURA_VALUE_ARGS_INIT;
        a.values = x.v.put(), a.dim = DIM, a.q_heads = 4, a.kv_heads = 2, a.tokens = T, a.weights = weights.put();
        a.out = out.device.p, a.sparse_threshold = 0.1f;
        TRY(aura_cuda_value(c.rows, &a, NULL));
        c.expect(step ? AURA_NOT_FINITE : AURA_OK, "value");
        if (step && !strstr(aura_last_error(), "1 of the rows") && failures == c.before)
            complain(s, "the message is: %s", aura_last_error());
        const std::vector<float> got = out.get(c);
        for (size_t i = 0; i < got.size(); i++)
            if (isfinite(got[i]) != (step == 0 || i >= DIM) && failures == c.before)
                complain(s, "step %d: number %zu is %g", step, i, (double)got[i]);
    }
    output none(4 * DIM, AURA_F32);
    aura_value_args a = AURA_VALUE_ARGS_INIT; /* no tokens: zeros, and arrays that are NULL */
    a.values.bits = 4, a.dim = DIM, a.q_heads = 4, a.kv_heads = 2, a.out = none.device.p;
    TRY(aura_cuda_value(c.rows, &a, NULL));
    c.expect(AURA_OK, "no tokens");
    for (float got : none.get(c))
        c.compare(got, 0, 0, "no tokens", 0);
}

/* ---- misuse ------------------------------------------------------------------------------------------------------- */

#define REFUSED(call, wanted, why)                                            \
    do {                                                                      \
        const aura_status got_ = (call);                                      \
        if (got_ != (wanted) && failures == c.before)                         \
            complain(s, "%s: the status is %s", why, aura_status_text(got_)); \
        a = good;                                                             \
        c.calls++;                                                            \
    } while (0)

static void check_misuse()
{
    rows_case c("misuse", 1024);
    const struct scene &s = c.s;
    struct problem p = {4, 4, 64, 64, 4, 2, 6, 8, 8};
    arrays x(c, p);
    output out(4 * 64, AURA_F32);
    aura_value_args a = AURA_VALUE_ARGS_INIT;
    a.values = x.values, a.dim = 64, a.q_heads = 4, a.kv_heads = 2, a.tokens = 6, a.weights = x.q.device->p, a.out = out.device.p;
    const aura_value_args good = a;
    REFUSED(aura_cuda_value(NULL, &a, NULL), AURA_BAD_ARGUMENT, "no handle");
    REFUSED(aura_cuda_value(c.rows, NULL, NULL), AURA_BAD_ARGUMENT, "no arguments");
    a.size = 4;
    REFUSED(aura_cuda_value(c.rows, &a, NULL), AURA_BAD_ARGUMENT, "size");
    a.kv_heads = 3;
    REFUSED(aura_cuda_value(c.rows, &a, NULL), AURA_BAD_ARGUMENT, "heads");
    a.values.bits = 7;
    REFUSED(aura_cuda_value(c.rows, &a, NULL), AURA_UNSUPPORTED, "7 bits");
    a.values.stride = 5;
    REFUSED(aura_cuda_value(c.rows, &a, NULL), AURA_BAD_ARGUMENT, "a stride below the tokens");
    a.dim = 2048;
    REFUSED(aura_cuda_value(c.rows, &a, NULL), AURA_BAD_ARGUMENT, "dim 2048");
    a.sparse_threshold = NAN;
    REFUSED(aura_cuda_value(c.rows, &a, NULL), AURA_BAD_ARGUMENT, "a NaN threshold");
    a.out = NULL;
    REFUSED(aura_cuda_value(c.rows, &a, NULL), AURA_BAD_ARGUMENT, "no output");
    a.out_dtype = (aura_dtype)9;
    REFUSED(aura_cuda_value(c.rows, &a, NULL), AURA_UNSUPPORTED, "dtype");
    a.weights = a.out;
    REFUSED(aura_cuda_value(c.rows, &a, NULL), AURA_BAD_ARGUMENT, "out over weights");
    a.dim = 65, a.values.stride = 6; /* 4 x 65 sums do not fit 1024 bytes */
    REFUSED(aura_cuda_value(c.rows, &a, NULL), AURA_TOO_LARGE, "scratch");
    REFUSED(aura_cuda_rows_finish(NULL, NULL), AURA_BAD_ARGUMENT, "finish without a handle");
    aura_cuda_rows *none;
    REFUSED(aura_cuda_rows_create(NULL, 0, 0, &none), AURA_BAD_ARGUMENT, "create without a context");
    REFUSED(aura_cuda_rows_create(c.ctx, 99, 0, &none), AURA_DEVICE, "no such device");
    for (float got : out.get(c))
        c.compare(got, NAN, 0, "what was refused wrote", 0);
    TRY(aura_cuda_value(c.rows, &a, NULL)); /* it is a good call */
    c.expect(AURA_OK, "a good call");
}

void check_rows_packed()
{
    check_score_and_value();
    check_value_edges();
    check_misuse();
}
