/* Scenes: caches with sequences on either side, and what is in them. */
#include <cuda_fp16.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "check.cuh"
extern "C" {
#define _Alignas(n) alignas(n)
#include "../../../src/ref.h"
#undef _Alignas
}

struct scene scene_of(uint32_t k, uint32_t v, uint32_t dim, uint32_t q_heads, uint32_t kv_heads, std::vector<uint32_t> tokens)
{
    struct scene s;
    char name[64], format[16];
    s.config.format.k = (aura_kind)k, s.config.format.v = (aura_kind)v;
    s.config.k_dim = dim;
    s.config.q_heads = q_heads, s.config.kv_heads = kv_heads;
    s.config.seed = 11;
    s.tokens = tokens;
    aura_format_name(s.config.format, format);
    snprintf(name, sizeof name, "%s d%u %u/%u", format, dim, q_heads, kv_heads);
    s.name = name;
    return s;
}

std::vector<uint8_t> as_type(const std::vector<float> &x, aura_dtype dtype)
{
    std::vector<uint8_t> bytes(x.size() * aura_dtype_bytes(dtype));
    for (size_t i = 0; i < x.size(); i++)
        if (dtype == AURA_F32) {
            memcpy(&bytes[4 * i], &x[i], 4);
        } else if (dtype == AURA_F16) {
            __half h = __float2half_rn(x[i]);
            memcpy(&bytes[2 * i], &h, 2);
        } else {
            uint32_t bits;
            memcpy(&bits, &x[i], 4);
            uint16_t h = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
            memcpy(&bytes[2 * i], &h, 2);
        }
    return bytes;
}

std::vector<float> as_float(const std::vector<uint8_t> &bytes, aura_dtype dtype)
{
    std::vector<float> x(bytes.size() / aura_dtype_bytes(dtype));
    for (size_t i = 0; i < x.size(); i++)
        if (dtype == AURA_F32) {
            memcpy(&x[i], &bytes[4 * i], 4);
        } else if (dtype == AURA_F16) {
            __half h;
            memcpy(&h, &bytes[2 * i], 2);
            x[i] = __half2float(h);
        } else {
            uint16_t h;
            memcpy(&h, &bytes[2 * i], 2);
            uint32_t bits = (uint32_t)h << 16;
            memcpy(&x[i], &bits, 4);
        }
    return x;
}
std::vector<float> some_tokens(uint64_t seed, uint32_t tokens, uint32_t heads, uint32_t dim, bool keys)
{
    std::vector<float> x((size_t)tokens * heads * dim);
    for (size_t i = 0; i < x.size(); i++) {
        uint32_t d = i % dim, h = i / dim % heads, t = i / dim / heads;
        float offset = keys ? (float)((d * 7 + h * 3) % 11) * 0.3f - 1.5f + (float)(t / 300) * (d % 3 ? 0.2f : -0.1f) : 0;
        x[i] = random_normal(&seed) * (keys && d % 13 == 5 ? 3.f : 1.f) + offset;
    }
    return x;
}

std::vector<float> some_numbers(uint64_t seed, size_t n)
{
    std::vector<float> x(n);
    for (float &y : x)
        y = random_normal(&seed);
    return x;
}

bool same_bytes(const aura_cache *a, aura_seq sa, const aura_cache *b, aura_seq sb)
{
    struct aura_backend_cache facts;
    struct aura_backend_seq ra, rb;
    aura_backend_describe(&facts, a);
    if (aura_backend_find("check", a, sa, &ra) || aura_backend_find("check", b, sb, &rb))
        return false;
    bool same = ra.len == rb.len && ra.closed == rb.closed && ra.pages == rb.pages && ra.first == rb.first;
    for (size_t i = 0; same && i < ra.pages; i++)
        same = !aura_backend_has_page(&facts, &ra, i) ||
               !memcmp(aura_backend_page(a, sa, i), aura_backend_page(b, sb, i), facts.page_bytes);
    const aura_config *c = facts.config;
    if (same && ra.k)
        same = !memcmp(ra.k, rb.k, (size_t)c->kv_heads * facts.rows * c->k_dim * 2);
    if (same && ra.v)
        same = !memcmp(ra.v, rb.v, (size_t)c->kv_heads * facts.rows * c->v_dim * 2);
    return same;
}

std::string first_difference(const aura_cache *a, aura_seq sa, const aura_cache *b, aura_seq sb)
{
    struct aura_backend_cache facts;
    struct aura_backend_seq x, y;
    aura_backend_describe(&facts, a);
    const struct aura_layout *l = facts.layout;
    if (aura_backend_find("check", a, sa, &x) || aura_backend_find("check", b, sb, &y))
        return "no such sequence";
    if (x.len != y.len || x.closed != y.closed)
        return "lengths " + std::to_string(x.len) + " " + std::to_string(x.closed) + " and " + std::to_string(y.len) + " " +
               std::to_string(y.closed);
    if (x.first != y.first)
        return "first pages " + std::to_string(x.first) + " and " + std::to_string(y.first);
    for (uint64_t t = 0; t < x.len; t++)
        for (uint32_t h = 0, heads = aura_backend_has_page(&facts, &x, t / AURA_PAGE) ? facts.config->kv_heads : 0; h < heads; h++)
            for (int values = 0; values < 2; values++) {
                const struct aura_side *side = values ? &l->v : &l->k;
                const uint8_t *heads[2] = {aura_backend_page(a, sa, t / AURA_PAGE) + (size_t)h * l->head_bytes,
                                           aura_backend_page(b, sb, t / AURA_PAGE) + (size_t)h * l->head_bytes};
                const uint16_t *rows[2] = {values ? x.v : x.k, values ? y.v : y.k};
                const size_t tile = t / AURA_TILE % AURA_PAGE_TILES * l->tile_bytes, c = t % AURA_TILE;
                const size_t ring = facts.rows - facts.pinned;
                bool same = true;
                if (!rows[0]) {
                    size_t bytes = side->bytes / AURA_TILE, at = tile + (values ? l->v_at : 0) + c * bytes;
                    same = !memcmp(heads[0] + at, heads[1] + at, bytes);
                } else if (t < facts.pinned || t >= x.closed) {
                    size_t at = ((size_t)h * facts.rows + (t < facts.pinned ? ring + t : t % ring)) * side->dim;
                    same = !memcmp(rows[0] + at, rows[1] + at, side->dim * 2);
                } else {
                    size_t scale = tile + (values ? l->v_scale_at : l->k_scale_at) + 2 * c;
                    same = !memcmp(heads[0] + scale, heads[1] + scale, 2);
                    for (uint32_t d = 0; same && d < side->dim; d++) {
                        uint8_t code[2];
                        for (int i = 0; i < 2; i++) {
                            struct aura_tile one = {(const uint32_t *)(heads[i] + tile + (values ? l->v_at : 0)), NULL, NULL, side,
                                                    1};
                            code[i] = values ? aura_ref_code(&one, (uint32_t)c, d) : aura_ref_code(&one, d, (uint32_t)c);
                        }
                        same = code[0] == code[1];
                    }
                    if (!values && !(facts.config->flags & AURA_NO_REFERENCE))
                        same = same && !memcmp(heads[0] + l->reference_at, heads[1] + l->reference_at,
                                               l->reference_scale_at + 2 - l->reference_at);
                }
                if (!same)
                    return (values ? "value of token " : "key of token ") + std::to_string(t) + " head " + std::to_string(h);
            }
    return "";
}

scratch_file::scratch_file(const char *what)
{
    const char *dir = getenv("TMPDIR");
    path = std::string(dir ? dir : "/tmp") + "/aura-check-" + std::to_string(getpid()) + what;
}

std::string read_all(const struct scratch_file &from)
{
    std::string text;
    FILE *in = fopen(from.path.c_str(), "rb");
    char part[65536];
    for (size_t n; in && (n = fread(part, 1, sizeof part, in)) > 0;)
        text.append(part, n);
    if (in)
        fclose(in);
    return text;
}

/* Of each head: some directions that count much, and all a little. */
std::vector<float> some_metric(uint64_t seed, uint32_t heads, uint32_t dim)
{
    enum { DIRECTIONS = 6 };
    std::vector<float> triangles, x = some_numbers(seed, (size_t)heads * DIRECTIONS * dim);
    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t i = 0; i < dim; i++)
            for (uint32_t j = 0; j <= i; j++) {
                float sum = i == j ? 0.2f : 0;
                for (uint32_t n = 0; n < DIRECTIONS; n++) {
                    const float *direction = &x[((size_t)h * DIRECTIONS + n) * dim];
                    sum += direction[i] * direction[j];
                }
                triangles.push_back(sum);
            }
    return triangles;
}

static std::vector<float> some_balance(uint32_t heads, uint32_t dim, uint32_t step)
{
    std::vector<float> balance;
    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t d = 0; d < dim; d++)
            balance.push_back(ldexpf(1.f + 0.1f * (float)((d + h) % 7), (int)((d * step + h) % 4) - 2));
    return balance;
}

void fill(const struct scene &s, struct filled &f)
{
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    aura_config config = s.config;
    options.threads = 8;
    TRY(aura_ctx_create(&options, &f.ctx));
    uint32_t v_dim = config.v_dim ? config.v_dim : config.k_dim;
    if (s.balance)
        f.balance = some_balance(config.kv_heads, config.k_dim, 5), config.balance = f.balance.data();
    if (s.balance && aura_is_packed((uint32_t)config.format.v))
        f.v_balance = some_balance(config.kv_heads, v_dim, 3), config.v_balance = f.v_balance.data();
    if (s.metric && aura_is_packed((uint32_t)config.format.k))
        f.k_metric = some_metric(s.seed + 50, config.kv_heads, config.k_dim), config.k_metric = f.k_metric.data();
    if (s.metric && aura_is_packed((uint32_t)config.format.v))
        f.v_metric = some_metric(s.seed + 51, config.kv_heads, v_dim), config.v_metric = f.v_metric.data();
    TRY(aura_cache_create(f.ctx, &config, &f.cache));
    for (uint32_t n : s.tokens) {
        aura_seq seq;
        TRY(aura_seq_create(f.cache, &seq));
        std::vector<float> k = some_tokens(s.seed + 2 * f.seqs.size(), n, config.kv_heads, config.k_dim, true);
        std::vector<float> v = some_tokens(s.seed + 2 * f.seqs.size() + 1, n, config.kv_heads, v_dim, false);
        for (size_t i = 0, token = (size_t)config.kv_heads * config.k_dim; s.loud && i < k.size(); i++) {
            const size_t t = i / token, tile = t + 64 < n ? t / AURA_TILE % 3 : 0; /* the newest are in f16 */
            k[i] *= tile == 1 || (tile == 2 && t % 5 == 0) ? s.loud_by : 1.f;
        }
        const uint32_t most = config.window ? config.max_queries : n; /* at once */
        for (uint32_t at = 0; at < n; at += most) {
            aura_append_job job = AURA_APPEND_JOB_INIT;
            job.seq = seq, job.tokens = std::min(most, n - at);
            job.k.data = &k[(size_t)at * config.kv_heads * config.k_dim], job.v.data = &v[(size_t)at * config.kv_heads * v_dim];
            TRY(aura_append(f.cache, &job, 1));
        }
        f.seqs.push_back(seq);
    }
}

aura_cuda_config device_config(const struct scene &s, const struct filled &f)
{
    aura_cuda_config config = AURA_CUDA_CONFIG_INIT;
    config.batch_invariant = s.batch_invariant;
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    aura_cache_get_info(f.cache, &info);
    config.cache = info.config;
    config.seqs = (uint32_t)s.tokens.size() + 1;
    size_t pages = 4;
    for (uint32_t n : s.tokens)
        pages += n / AURA_PAGE + 2;
    config.cache.budget_bytes = pages * info.page_bytes + config.seqs * (info.seq_bytes + 65536) + (s.metric ? 8 << 20 : 1 << 20);
    return config;
}

void upload(const struct scene &s, const struct filled &f, struct device_side &d)
{
    aura_cuda_config config = device_config(s, f);
    TRY(aura_cuda_cache_create(f.ctx, &config, &d.cache));
    d.cache->by_images = s.by_images;
    d.seqs.resize(s.tokens.size());
    for (size_t i = s.tokens.size(); i-- > 0;) {
        TRY(aura_cuda_seq_create(d.cache, &d.seqs[i]));
        TRY(aura_cuda_upload(d.cache, d.seqs[i], f.cache, f.seqs[i]));
    }
    for (size_t i = 0; i < s.tokens.size(); i++) {
        aura_cache *back;
        aura_seq seq;
        TRY(aura_cache_create(f.ctx, &config.cache, &back));
        aura_status status = aura_seq_create(back, &seq);
        status = status ? status : aura_cuda_download(d.cache, d.seqs[i], back, seq);
        if (status || !same_bytes(f.cache, f.seqs[i], back, seq))
            complain(s, "sequence %zu comes back with other bytes: %s", i, status ? aura_last_error() : "");
        aura_cache_destroy(back);
    }
}

bool begin_case(const struct scene &s, struct filled &f, struct device_side &d)
{
    int before = failures;
    cases++;
    fill(s, f);
    if (failures == before)
        upload(s, f, d);
    return failures == before;
}

void end_case(const struct scene &s, int failures_before, const char *what)
{
    if (failures == failures_before)
        report("ok", s.name, "%s", what);
}
