/* Vectors whose best fit is hard to find: where it is decided by the last bits of sums, by how a number next to a threshold is
 * rounded, or where nearly all numbers are alike. On the device they become the bytes that they become on the CPU. */
#include <cuda_fp16.h>
#include <math.h>
#include <string.h>

#include "check.cuh"
extern "C" {
#define _Alignas(n) alignas(n)
#include "../../../src/ref.h"
#undef _Alignas
}

/* A vector as it is encoded, and how well each fit does. */
struct tried {
    std::vector<float> y;
    float factor[9];
    double dot[9], size2[9];
};

static double cosine_of(double dot, double size2)
{
    return dot / sqrt(size2);
}

/* What the cache has of values x. */
static std::vector<float> row_of_values(const struct aura_backend_cache &facts, const std::vector<float> &x)
{
    std::vector<float> y(x.size());
    aura_rotate_ref(y.data(), x.data(), facts.v_rotate, 1);
    for (float &number : y)
        number = __half2float(__float2half_rn(number));
    return y;
}

static struct tried try_fits(const struct aura_codec_plan *p, const std::vector<float> &y)
{
    struct tried t;
    t.y = y;
    const float size = sqrtf(aura_ref_dot(y.data(), y.data(), p->dim) / (float)p->dim);
    for (int f = 0; f < 9; f++) {
        t.factor[f] = p->fits[f] * p->sigma / size;
        t.dot[f] = t.size2[f] = 0;
        for (float number : y) {
            const double c = p->centroid[aura_ref_index(p, number * t.factor[f])];
            t.dot[f] += number * c;
            t.size2[f] += c * c;
        }
    }
    return t;
}

static int best_fit(const struct tried &t)
{
    int best = 0;
    for (int f = 1; f < 9; f++)
        best = cosine_of(t.dot[f], t.size2[f]) > cosine_of(t.dot[best], t.size2[best]) ? f : best;
    return best;
}

/* Two fits, not with the same codes, are nearly equal. */
static bool nearly_tied(const struct tried &t)
{
    const int best = best_fit(t);
    const double most = cosine_of(t.dot[best], t.size2[best]);
    for (int f = 0; f < 9; f++)
        if (t.size2[f] != t.size2[best] && cosine_of(t.dot[f], t.size2[f]) > most * (1 - 2e-6))
            return true;
    return false;
}

/* A number is so near a threshold that roundings decide, and that decides the fit. */
static bool on_threshold(const struct tried &t, const struct aura_codec_plan *p)
{
    const int best = best_fit(t);
    for (int f = 0; f < 9; f++)
        for (float y : t.y) {
            const float v = y * t.factor[f];
            const uint32_t below = aura_ref_index(p, v * (1 - 2e-7f)), above = aura_ref_index(p, v * (1 + 2e-7f));
            if (below == above)
                continue;
            const double was = p->centroid[aura_ref_index(p, v)], other = p->centroid[below] + p->centroid[above] - was;
            struct tried changed = t;
            changed.dot[f] += y * (other - was);
            changed.size2[f] += other * other - was * was;
            if (best_fit(changed) != best)
                return true;
        }
    return false;
}

/* Chance has few of these. So the first number, if it can be a small one, is made such that fit f brings number i to threshold
 * k. */
static bool put_on_threshold(std::vector<float> &y, const struct aura_codec_plan *p, size_t i, int f, uint32_t k)
{
    const double size = fabs(y[i]) * p->fits[f] * p->sigma / p->threshold[(1u << (p->bits - 1)) + k];
    double others = 0;
    for (size_t j = 1; j < y.size(); j++)
        others += (double)y[j] * y[j];
    const double square = size * size * p->dim - others;
    if (square < 1e-4 || square > 0.1)
        return false;
    y[0] = __half2float(__float2half_rn((float)sqrt(square)));
    return true;
}

/* Values that become a row with such a number; false where this one does not. */
static bool values_on_threshold(std::vector<float> &x, std::vector<float> y, const struct aura_backend_cache &facts)
{
    const struct aura_codec_plan *p = facts.v_codec;
    for (size_t i = 1; i < y.size(); i++)
        for (int f = 0; f < 9; f++)
            for (uint32_t k = 0; k + 1 < 1u << (p->bits - 1); k++) {
                if (!put_on_threshold(y, p, i, f, k) || !on_threshold(try_fits(p, y), p))
                    continue;
                aura_undo_ref(x.data(), y.data(), facts.v_undo, 1);
                if (row_of_values(facts, x) == y)
                    return true;
            }
    return false;
}

/* Thresholds that two fits have at the same number, or so near that no number is between them. Yet roundings have some below
 * the one and above the other. */
struct twins {
    int fit[2];
    uint32_t threshold[2]; /* of those above 0 */
};

static bool find_twins(struct twins *t, const struct aura_codec_plan *p)
{
    const uint32_t middle = 1u << (p->bits - 1);
    for (int f = 0; f < 9; f++)
        for (int g = 0; g < f; g++)
            for (uint32_t k = 0; k + 1 < middle; k++)
                for (uint32_t l = 0; l < k; l++)
                    if (fabs((double)p->threshold[middle + l] * p->fits[f] /
                             ((double)p->threshold[middle + k] * p->fits[g]) - 1) < 2e-7) {
                        *t = {{g, f}, {l, k}};
                        return true;
                    }
    return false;
}

/* Values that become a row whose second number is such, and which the fit that has it below suits best. */
static bool values_between_twins(std::vector<float> &x, std::vector<float> y, const struct aura_backend_cache &facts,
                                 const struct twins &twins)
{
    const struct aura_codec_plan *p = facts.v_codec;
    const uint32_t middle = 1u << (p->bits - 1);
    const float size = sqrtf(aura_ref_dot(y.data(), y.data(), p->dim) / (float)p->dim);
    const float at = p->threshold[middle + twins.threshold[0]] / (p->fits[twins.fit[0]] * p->sigma) * size;
    y[1] = __half2float(__float2half_rn(at));
    if (!put_on_threshold(y, p, 1, twins.fit[0], twins.threshold[0]))
        return false;
    const struct tried t = try_fits(p, y);
    bool above[2];
    for (int i = 0; i < 2; i++)
        above[i] = aura_ref_index(p, y[1] * t.factor[twins.fit[i]]) > middle + twins.threshold[i];
    if (above[0] == above[1] || best_fit(t) != twins.fit[above[0]])
        return false;
    aura_undo_ref(x.data(), y.data(), facts.v_undo, 1);
    return row_of_values(facts, x) == y;
}

/* These values, and keys, appended at once on either side. The first tokens are pinned and the last stay open: others are there. */
static void run_vectors(struct scene s, const std::vector<std::vector<float>> &vectors)
{
    const uint32_t dim = s.config.k_dim, before = 32, after = 64;
    s.tokens = {(uint32_t)vectors.size() + before + after};
    std::vector<float> v = some_numbers(3, (size_t)s.tokens[0] * dim);
    for (size_t i = 0; i < vectors.size(); i++)
        memcpy(&v[(before + i) * dim], vectors[i].data(), dim * 4);
    struct scene empty = s;
    empty.tokens = {0};
    struct filled f;
    struct device_side d;
    const int failed = failures;
    cases++;
    fill(empty, f);
    aura_append_job job = AURA_APPEND_JOB_INIT;
    job.seq = f.seqs[0], job.tokens = s.tokens[0], job.k.data = job.v.data = v.data();
    TRY(aura_append(f.cache, &job, 1));
    aura_cuda_config config = device_config(s, f);
    TRY(aura_cuda_cache_create(f.ctx, &config, &d.cache));
    d.seqs.resize(1);
    TRY(aura_cuda_seq_create(d.cache, &d.seqs[0]));
    TRY(aura_cuda_seq_reserve(d.cache, d.seqs[0], s.tokens[0]));
    device_array dv(v.data(), v.size() * 4), ids(d.seqs.data(), 4);
    aura_cuda_append_args args = AURA_CUDA_APPEND_ARGS_INIT;
    args.seqs = (const aura_cuda_seq *)ids.p, args.n_seqs = 1, args.tokens = s.tokens[0];
    args.k.data = args.v.data = dv.p;
    TRY(aura_cuda_append(d.cache, &args, NULL));
    compare_appended(s, f, d, config.cache);
    end_case(s, failed, "append: bytes equal");
}

/* Of so many random vectors, those that are hard; there must be `least` of either kind. */
static void run_hard(uint32_t kind, uint32_t dim, int vectors, size_t least)
{
    struct scene s = scene_of(kind, kind, dim, 1, 1, {0});
    struct filled f;
    struct aura_backend_cache facts;
    fill(s, f);
    aura_backend_describe(&facts, f.cache);
    std::vector<std::vector<float>> tied, on;
    for (int i = 0; i < vectors; i++) {
        std::vector<float> x = some_numbers(1000 + (uint64_t)i, dim);
        const std::vector<float> y = row_of_values(facts, x);
        if (nearly_tied(try_fits(facts.v_codec, y)))
            tied.push_back(x);
        if (values_on_threshold(x, y, facts))
            on.push_back(x);
    }
    s.name += ", " + std::to_string(tied.size()) + " near ties, " + std::to_string(on.size()) + " on a threshold";
    if (tied.size() < least || on.size() < least)
        complain(s, "there are to be %zu of each", least);
    tied.insert(tied.end(), on.begin(), on.end());
    run_vectors(s, tied);
}

/* Vectors with a number between twins. Few large numbers, or many, have the smallest fit or the largest, which are the twins'. */
static void run_twins()
{
    struct scene s = scene_of(4, 4, 128, 1, 1, {0});
    struct filled f;
    struct aura_backend_cache facts;
    struct twins twins;
    fill(s, f);
    aura_backend_describe(&facts, f.cache);
    if (!find_twins(&twins, facts.v_codec))
        return complain(s, "there are no twins");
    std::vector<std::vector<float>> vectors;
    for (int i = 0; i < 12000; i++) {
        std::vector<float> y = some_numbers(9000 + (uint64_t)i, 128), x(128);
        for (float &number : y)
            number = __half2float(__float2half_rn(copysignf(powf(fabsf(number), i % 2 ? 0.5f : 1.5f), number)));
        if (values_between_twins(x, y, facts, twins))
            vectors.push_back(x);
    }
    s.name += ", " + std::to_string(vectors.size()) + " between two fits' thresholds";
    if (vectors.size() < 4)
        complain(s, "there are to be 4");
    run_vectors(s, vectors);
}

/* Rows with more than 255 numbers that are alike, between the same two thresholds of all fits; and one of zeros. */
static void run_alike()
{
    struct scene s = scene_of(4, 4, 512, 1, 1, {0});
    struct filled f;
    struct aura_backend_cache facts;
    fill(s, f);
    aura_backend_describe(&facts, f.cache);
    std::vector<std::vector<float>> vectors(1, std::vector<float>(512));
    for (uint32_t i = 0; i < 64; i++) {
        std::vector<float> y = some_numbers(7 + i, 512), x(512);
        for (uint32_t d = 0; d < 256 + 2 * i; d++)
            y[d] = d % 2 ? 1 : -1;
        aura_undo_ref(x.data(), y.data(), facts.v_undo, 1);
        vectors.push_back(x);
    }
    s.name += ", numbers alike";
    run_vectors(s, vectors);
}

void check_fits()
{
    run_hard(4, 128, 1500, 4);
    run_hard(3, 64, 1500, 4);
    run_twins();
    run_alike();
}
