/* What the checks of rows share. */
#include "check_rows.cuh"

#include <string.h>

rows_case::rows_case(const std::string &name, size_t scratch_bytes)
{
    s.name = "rows " + name;
    cases++;
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    TRY(aura_ctx_create(&options, &ctx));
    TRY(aura_cuda_rows_create(ctx, 0, scratch_bytes, &rows));
}

rows_case::~rows_case()
{
    if (failures == before)
        report("ok", s.name, "%d calls, the worst error is %.2f of what is allowed", calls, worst);
    aura_cuda_rows_destroy(rows);
    aura_ctx_destroy(ctx);
}

float rows_case::normal()
{
    return random_normal(&seed);
}

uint32_t rows_case::random(uint32_t below)
{
    return (uint32_t)(random_bits(&seed) % below);
}

void rows_case::expect(aura_status wanted, const char *what)
{
    const aura_status got = aura_cuda_rows_finish(rows, NULL);
    calls++;
    if (got != wanted && failures == before)
        complain(s, "%s: the status is %s (%s), not %s", what, aura_status_text(got), got ? aura_last_error() : "",
                 aura_status_text(wanted));
}

void rows_case::compare(double got, double want, double limit, const char *what, size_t i)
{
    if (got == want || (isnan(got) && isnan(want)))
        return;
    const double error = fabs(got - want);
    worst = error / limit > worst ? error / limit : worst;
    if (!(error <= limit) && failures == before)
        complain(s, "%s: number %zu is %.9g, not %.9g; %.3g is allowed", what, i, got, want, limit);
}

float typed::at(size_t i) const
{
    const size_t n = aura_dtype_bytes(dtype);
    return as_float(std::vector<uint8_t>(bytes.begin() + (long)(i * n), bytes.begin() + (long)((i + 1) * n)), dtype)[0];
}

void typed::set(size_t i, float x)
{
    const std::vector<uint8_t> one = as_type({x}, dtype);
    memcpy(&bytes[i * one.size()], one.data(), one.size());
}

std::vector<float> output::get(struct rows_case &c) const
{
    std::vector<uint8_t> bytes(device.bytes);
    if (cudaMemcpy(bytes.data(), device.p, bytes.size(), cudaMemcpyDeviceToHost) != cudaSuccess)
        complain(c.s, "no copy from the device");
    for (size_t i = device.bytes - 16; i < bytes.size(); i++)
        if (bytes[i] != 0xff && failures == c.before)
            complain(c.s, "byte %zu after the output was written to", i - (device.bytes - 16));
    bytes.resize(device.bytes - 16);
    return as_float(bytes, dtype);
}

packed_rows::packed_rows(struct rows_case &c, uint32_t bits_, uint32_t dim_, uint32_t heads, size_t tokens_, size_t stride_,
                         aura_dtype norm_dtype, aura_dtype book_dtype, size_t wider)
    : bits(bits_), dim(dim_), tokens(tokens_), stride(stride_), row_bytes(aura_row_bytes(dim_, bits_) + wider)
{
    std::vector<float> norm(heads * stride, NAN), levels(1u << bits);
    codes.assign(heads * stride * row_bytes, 0xff);
    for (size_t i = 0; i < levels.size(); i++)
        levels[i] = -1 + 2 * (float)i / (float)(levels.size() - 1) + 0.01f * c.normal();
    for (size_t row = 0; row < norm.size(); row++) {
        if (row % stride >= tokens)
            continue;
        norm[row] = 0.3f + 0.4f * (float)random_uniform(&c.seed);
        uint8_t *to = &codes[row * row_bytes];
        memset(to, 0, aura_row_bytes(dim, bits));
        for (uint32_t d = 0; d < dim; d++)
            for (uint32_t k = 0, code = c.random(1u << bits); k < bits; k++)
                to[(d * bits + k) / 8] |= (uint8_t)((code >> k & 1) << (d * bits + k) % 8);
    }
    norms = typed(norm, norm_dtype), book = typed(levels, book_dtype);
}

aura_packed packed_rows::put(size_t offset)
{
    std::vector<uint8_t> moved(offset, 0xff);
    moved.insert(moved.end(), codes.begin(), codes.end());
    device.reset(new device_array(moved.data(), moved.size()));
    return {bits,        (uint8_t *)device->p + offset,
            norms.put(), book.put(),
            norms.dtype, book.dtype,
            stride,      row_bytes == aura_row_bytes(dim, bits) ? 0 : row_bytes};
}

double packed_rows::at(size_t head, size_t t, uint32_t d) const
{
    const size_t row = head * stride + t;
    return (double)norms.at(row) * book.at(aura_ref_unpack(&codes[row * row_bytes], bits, d));
}

struct in_double attend_in_double(const coordinate_fn &key, const coordinate_fn &value, const std::vector<double> &q,
                                  uint32_t v_dim, const std::vector<uint64_t> &tokens, double scale, double softcap, double sink)
{
    const size_t n = tokens.size();
    struct in_double r = {std::vector<double>(v_dim, 0), 0, 0};
    std::vector<double> score(n, 0), weight(n, 0);
    for (size_t i = 0; i < n; i++) {
        for (uint32_t d = 0; d < q.size(); d++)
            score[i] += q[d] * key(tokens[i], d);
        score[i] *= scale;
        score[i] = softcap > 0 ? softcap * tanh(score[i] / softcap) : score[i];
    }
    aura_ref_softmax(weight.data(), &r.lse, score.data(), n, sink);
    for (uint32_t d = 0; d < v_dim; d++) {
        double size = 0;
        for (size_t i = 0; i < n; i++) {
            const double term = weight[i] * value(tokens[i], d);
            r.out[d] += term, size += fabs(term);
        }
        r.size = size > r.size ? size : r.size;
    }
    return r;
}

double unit_of(aura_dtype dtype)
{
    return dtype == AURA_F32 ? 0x1p-24 : dtype == AURA_F16 ? 0x1p-11 : 0x1p-8;
}

void check_rows()
{
    check_rows_codec();
    check_rows_packed();
    check_rows_flash();
    check_rows_vec();
}
