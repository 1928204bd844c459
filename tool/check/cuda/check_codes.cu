/* Trellis codes and metrics: what the device makes of tokens, and what attention makes of that. */
#include <math.h>

#include "check.cuh"

static const uint32_t trellis[] = {AURA_CUDA_TRELLIS(AURA_DIM_ITEM)}, dims[] = {AURA_DIMS(AURA_DIM_ITEM)};
static const uint32_t n_dims = sizeof dims / sizeof *dims;

static void named(struct scene s, const std::string &what)
{
    s.name += " " + what;
    run_scene(s);
}

/* One plane for all keys, two for all, or as each deserves: of which some are long. */
static struct scene pair_of(uint32_t k, uint32_t v, uint32_t dim, uint32_t i)
{
    struct scene s = scene_of(k, v, dim, 6, 2, {330, 40, 1});
    s.planes = i % 3, s.queries = 1 + i % 3, s.seed = 400 + i, s.balance = i % 2;
    s.sinks = i % 4 == 1, s.alibi = i % 5 == 2, s.window = i % 6 == 3 ? 70 : 0, s.softcap = i % 7 == 4 ? 5.f : 0;
    s.mask_keys = i % 8 == 5;
    s.loud = i % 9 == 0 && k != AURA_ROW_F32 && k != AURA_ROW_F16 && k != AURA_ROW_BF16;
    s.name += " p" + std::to_string(s.planes) + " q" + std::to_string(s.queries);
    return s;
}

/* Every kind beside every other; dims that end within a run of keys; the kernel of 128 channels, and those of others. */
static void check_pairs()
{
    static const uint32_t others[] = {AURA_CUDA_CODES(AURA_DIM_ITEM) AURA_PLAIN(AURA_KIND_ITEM)};
    uint32_t i = 0;
    for (uint32_t t : trellis)
        for (uint32_t other : others) {
            struct scene s = pair_of(t, other, i % 3 ? 128 : dims[i % n_dims], i), turned = s;
            named(s, "trellis");
            if (other >= AURA_TRELLIS_2)
                continue;
            turned = pair_of(other, t, i % 3 == 1 ? 128 : dims[i % n_dims], i + 1);
            turned.balance = turned.balance && other <= 8;
            named(turned, "trellis");
            i++;
        }
    for (uint32_t dim : dims)
        named(pair_of(trellis[i % 3], trellis[i % 3], dim, i), "trellis"), i++;
}

/* By images: more than 16 queries, and numbers that the caller gets. */
static void check_trellis_images()
{
    uint32_t i = 0;
    for (uint32_t t : trellis) {
        struct scene s = scene_of(t, trellis[(i + 1) % 3], dims[i * 2], 4, 2, {170, 3}), other = s;
        s.config.v_dim = dims[(i * 3 + 1) % n_dims], s.queries = 18 + i, s.seed = 30 + i;
        s.name += "/" + std::to_string(s.config.v_dim);
        named(s, std::to_string(s.queries) + " queries");
        other = scene_of(t, t, i == 1 ? 64 : 128, 4, 2, {300, 20});
        other.queries = 20, other.window = i == 2 ? 100 : 0;
        named(other, "20 queries");
        run_unpack_of(other, 20, 250, i == 1);
        run_unpack_of(scene_of(t, trellis[(i + 2) % 3], 80, 4, 2, {200}), 1, 190, i == 2);
        i++;
    }
}

/* Tokens in: the bytes of the CPU. */
static void check_tokens()
{
    static const uint32_t searched[][2] = {{12, 12}, {13, 13}, {14, 14}, {12, 4}, {10, 13}, {14, 2}};
    static const uint32_t fed[][2] = {{4, 4}, {3, 3}, {2, 5}, {8, 6}, {4, 11}, {9, 8}};
    for (const auto *pairs : {searched, fed})
        for (uint32_t i = 0; i < 6; i++) {
            struct scene s = scene_of(pairs[i][0], pairs[i][1], i % 2 ? 64 : 80, 2, 2, {100, 31, 70});
            s.metric = pairs == fed, s.balance = pairs[i][0] <= 8, s.seed = 20 + i;
            s.name += s.metric ? " metric" : " searched";
            run_append(s, 50);
        }
    for (uint32_t t : trellis) { /* and both */
        struct scene s = scene_of(t, trellis[(t + 1) % 3], t % 2 ? 64 : 80, 2, 1, {70, 31});
        s.metric = true, s.seed = t, s.name += " metric";
        run_append(s, 40);
        s.config.flags = AURA_NO_SEARCH, s.tokens = {66}, s.name += ", no search";
        run_append(s, 66);
    }
    for (uint32_t dim : {128, 256, 512})
        for (bool metric : {false, true}) {
            struct scene s = scene_of(metric ? 4 : 14, metric ? 3 : 13, dim, 1, 1, {dim == 128 ? 130u : 66u});
            s.metric = metric, s.name += metric ? " metric" : " searched";
            run_append(s, 66);
        }
    static const uint32_t flags[] = {AURA_NO_REFERENCE, AURA_NO_REFERENCE | AURA_NO_OPEN, AURA_NO_SEARCH};
    for (uint32_t f : flags)
        for (bool metric : {false, true}) {
            struct scene s = scene_of(metric ? 4 : 13, metric ? 4 : 13, 64, 2, 2, {70});
            s.config.flags = f, s.metric = metric;
            s.name += std::string(metric ? " metric" : " searched") + " flags " + std::to_string(f);
            run_append(s, 40);
        }
    struct scene fork = scene_of(13, 12, 64, 2, 1, {700}), with = scene_of(4, 4, 64, 2, 1, {700});
    with.metric = true, with.name += " metric";
    run_fork(fork);
    run_fork(with);
    run_caches(scene_of(14, 12, 64, 2, 2, {700, 40, 0}), false);
    struct scene attend = with;
    attend.tokens = {300, 40}, attend.queries = 2;
    run_scene(attend);
}

void check_codes()
{
    check_tokens();
    check_pairs();
    check_trellis_images();
}
