/* Attention of more than 16 queries, from images: every kernel, format, dim and option against double. */
#include "check.cuh"

static void named(struct scene s, const std::string &what)
{
    s.name += " " + what;
    run_scene(s);
}

/* What every dim with a kernel of its own goes through: codes of every width, tiles that are not full, sequences that are short. */
static void check_dim(uint32_t dim)
{
    static const uint32_t kinds[] = {AURA_CUDA_BITS(AURA_DIM_ITEM)};
    uint32_t i = 0;
    for (uint32_t kind : kinds) {
        struct scene s = scene_of(kind, kinds[(i + dim / 64) % 6], dim, 6, 2, {150 + 90 * i, 3});
        s.queries = 17 + 9 * i, s.balance = i % 2, s.seed = 40 + i;
        s.q_dtype = s.out_dtype = i % 3 == 1 ? AURA_F16 : i % 3 == 2 ? AURA_BF16 : AURA_F32;
        named(s, std::to_string(s.queries) + " queries");
        i++;
    }
}

/* Every format and dim, by the kernel for all of them. */
static void check_any()
{
    static const uint32_t kinds[] = {AURA_CUDA_BITS(AURA_DIM_ITEM) AURA_PLAIN(AURA_KIND_ITEM)}, dims[] = {AURA_DIMS(AURA_DIM_ITEM)};
    const uint32_t n_dims = sizeof dims / sizeof *dims, n_kinds = sizeof kinds / sizeof *kinds;
    for (uint32_t i = 0; i < n_kinds; i++) {
        struct scene s = scene_of(kinds[i], kinds[(i * 2 + 3) % n_kinds], dims[(i + 1) % n_dims], 4, 2, {170 + 20 * i});
        s.config.v_dim = dims[(i * 3 + 1) % n_dims];
        s.queries = 18 + i, s.seed = 60 + i, s.softcap = i % 3 == 1 ? 5.f : 0;
        s.name += "/" + std::to_string(s.config.v_dim);
        named(s, std::to_string(s.queries) + " queries");
    }
}

/* Images and what is carried lie where others have been a moment before. */
static void check_room()
{
    struct scene base = scene_of(4, 4, 64, 3, 3, {900, 640, 1100, 30}), s;
    base.image_bytes = 1, base.queries = 150, base.name += " room for four images,";
    s = base, named(s, "three heads carried");
    s.batch_invariant = true, named(s, "batch invariant");
    s = base; /* most images of the call are seen by nobody */
    for (uint32_t i = 0; i < s.queries * 4; i++)
        s.until.push_back(1 + (i * 7 + i / 150 * 131) % 30);
    named(s, "until");
    s = scene_of(4, 4, 64, 16, 8, {1400, 700, 1500, 20}), s.image_bytes = 32 * 32768, s.queries = 180;
    named(s, "parts of all heads, room for 32 images");
}

void check_prefill()
{
    for (uint32_t dim : {AURA_CUDA_DIMS(AURA_DIM_ITEM)})
        check_dim(dim);
    check_any();
    struct scene base = scene_of(4, 4, 128, 4, 2, {420, 30}), s;
    base.queries = 40, base.name += " 40 queries";
    s = base, s.sinks = true, named(s, "sinks");
    s = base, s.window = 50, named(s, "window 50");
    s = base, s.window = 300, s.tokens = {700}, named(s, "window 300");
    s = base, s.not_causal = 1, named(s, "not causal");
    s = base, s.softcap = 5, named(s, "softcap");
    s = base, s.alibi = true, named(s, "ALiBi");
    s = base, s.mask_keys = 45, named(s, "mask of 45 keys");
    s = base, s.sinks = s.alibi = true, s.softcap = 8, s.window = 200, s.mask_keys = 40, s.scale = 0.2f, named(s, "everything");
    s = base, s.config.q_heads = 10, named(s, "GQA 5");
    s = base, s.config.q_heads = s.config.kv_heads = 1, s.queries = 300, s.tokens = {310, 200}, named(s, "300 queries, one head");
    s = base, s.counts = {40, 1}, named(s, "and one");
    s = base, s.tokens = {140, 260, 90}, s.counts = {0, 33, 7}, named(s, "of none, 33 and 7");
    s = base, s.config.flags = AURA_NO_REFERENCE | AURA_NO_PINNED, named(s, "no reference, none pinned");
    s = base, s.config.flags = AURA_NO_OPEN | AURA_NO_REFERENCE, named(s, "none open");
    s = base, s.tokens = {0}, named(s, "of nothing");
    s = base, s.tokens.assign(40, 35), s.queries = 17, s.config.q_heads = 2, named(s, "40 sequences");
    s = base, s.tokens = {1500, 700}, s.image_bytes = 1, s.config.q_heads = 2, named(s, "room for four images");
    s.softcap = 5, named(s, "softcap");
    check_room();
}
