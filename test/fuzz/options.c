/* Configurations, and the options and jobs of attention; every field comes from bytes of the input. Pointers point to memory that
 * is as large as the fields say, if the fields are possible at all. */
#include "../../src/variants.h"
#include "fuzz.h"

enum { REACH = 1 << 20, MOST_QUERIES = 4, MOST_HEADS = 8, MOST_TOKENS = 40 };

static float *space; /* [2 * REACH]; views begin in its middle */

/* One of the values that matter, or any. */
static uint32_t one_of(struct source *s, const uint32_t *good, uint32_t n)
{
    uint8_t which = take_u8(s);
    return which == 255 ? take_u32(s) : good[which % n];
}

static aura_config config_of(struct source *s)
{
    static const uint32_t kinds[] = {0, AURA_KINDS(AURA_KIND_ITEM) 1, 7, 15}, dims[] = {AURA_DIMS(AURA_DIM_ITEM) 0, 72};
    const uint32_t n_kinds = sizeof kinds / sizeof *kinds, n_dims = sizeof dims / sizeof *dims;
    static const uint32_t heads[] = {1, 2, 4, 8, 0, 3}, small[] = {0, 1, 2, 16, 32, 33, 100, 300};
    aura_config c = AURA_CONFIG_INIT;
    c.size = take_u8(s) == 255 ? take_u32(s) : c.size;
    c.format.k = (aura_kind)one_of(s, kinds, n_kinds), c.format.v = (aura_kind)one_of(s, kinds, n_kinds);
    c.q_heads = one_of(s, heads, 6), c.kv_heads = one_of(s, heads, 6);
    c.k_dim = one_of(s, dims, n_dims), c.v_dim = one_of(s, dims, n_dims);
    c.flags = one_of(s, small, 6), c.rollback = one_of(s, small, 7);
    c.seed = take_u64(s);
    c.balance = take_u8(s) % 4 || (uint64_t)c.kv_heads * c.k_dim > FUZZ_FLOATS ? NULL : fuzz_numbers;
    c.budget_bytes = FUZZ_BUDGET; /* without a budget, pages of 65536 heads would take all the time */
    c.window = take_u8(s) % 4 ? one_of(s, small, 8) : take_u64(s);
    c.max_queries = one_of(s, small, 8), c.keep_first = one_of(s, small, 8);
    c.slots = take_u8(s) % 4 ? 0 : take_u8(s) % 2 ? take_u16(s) : take_u64(s);
    return c;
}

/* Strides and rows with which everything stays within REACH. */
static aura_view view_of(struct source *s)
{
    static uint32_t rows[MOST_TOKENS];
    aura_view view = AURA_VIEW_INIT;
    uint8_t how = take_u8(s);
    view.data = how % 64 ? space + REACH + how % 3 : NULL;
    view.dtype = (aura_dtype)(how / 64);
    view.token_stride = how & 1 ? (int16_t)take_u16(s) : 0;
    view.head_stride = how & 2 ? (int16_t)take_u16(s) : 0;
    for (uint32_t i = 0; i < MOST_TOKENS && (how & 12) == 12; i++)
        rows[i] = how & 16 ? take_u8(s) % 8 : i % 8;
    view.rows = (how & 12) == 12 ? rows : NULL;
    return view;
}

static aura_input input_of(struct source *s)
{
    aura_view view = view_of(s);
    aura_input in = {view.data, view.dtype, view.token_stride, view.head_stride, view.rows};
    return in;
}

static aura_attend_options options_of(struct source *s)
{
    aura_attend_options o = AURA_ATTEND_OPTIONS_INIT;
    uint8_t how = take_u8(s);
    o.size = how == 255 ? take_u16(s) : o.size;
    o.scale = how & 1 ? take_f32(s) : 0, o.softcap = how & 2 ? take_f32(s) : 0;
    o.window = how & 4 ? take_u64(s) >> take_u8(s) % 64 : 0;
    o.sinks = how & 8 ? fuzz_numbers : NULL, o.alibi = how & 16 ? fuzz_numbers + 5 : NULL;
    o.not_causal = how & 32 ? take_u8(s) % 3 : 0, o.planes = how & 64 ? take_u8(s) % 4 : 0;
    return o;
}

static aura_attend_job attend_of(struct source *s, aura_seq seq)
{
    static float mask[MOST_QUERIES << 12];
    static uint32_t tiles[64];
    aura_attend_job job = AURA_ATTEND_JOB_INIT;
    uint8_t how = take_u8(s);
    job.size = how == 255 ? take_u16(s) : job.size;
    job.seq = how & 1 ? take_u32(s) : seq;
    job.queries = how & 2 ? take_u8(s) % (MOST_QUERIES + 1) : 1;
    job.q = input_of(s), job.out = view_of(s);
    job.lse = how & 4 ? space : NULL;
    job.mask = how & 8 ? mask : NULL;
    job.mask_keys = how & 16 ? take_u32(s) >> take_u8(s) % 32 : how & 8 ? take_u8(s) % 64 : 0;
    job.mask_stride = how & 32 ? take_u16(s) % (1 << 12) : 0;
    job.mask = job.mask_keys > 1 << 12 ? NULL : job.mask;
    for (int i = 0; i < 64 && how & 64; i++)
        tiles[i] = take_u8(s) == 255 ? take_u32(s) : (uint32_t)i % 8;
    job.tiles = how & 64 ? tiles : NULL;
    job.tokens = how & 128 ? take_u64(s) >> take_u8(s) % 64 : 0;
    job.tokens = job.tiles && job.tokens > 64 * 32 ? 64 * 32 : job.tokens;
    static uint64_t limits[2][MOST_QUERIES];
    uint8_t limited = take_u8(s);
    for (int i = 0; i < MOST_QUERIES && limited & 3; i++)
        limits[0][i] = take_u8(s), limits[1][i] = limited & 4 ? take_u64(s) >> take_u8(s) % 64 : take_u8(s);
    job.from = limited & 1 ? limits[0] : NULL, job.until = limited & 2 ? limits[1] : NULL;
    job.q_heads = limited & 8 ? take_u8(s) % (MOST_HEADS + 1) : 0;
    return job;
}

static aura_seq fill(struct source *s, aura_cache *cache, const aura_config *c)
{
    aura_seq seq = 0;
    uint64_t slot[MOST_TOKENS];
    uint32_t tokens = take_u8(s) % MOST_TOKENS;
    aura_append_job job = AURA_APPEND_JOB_INIT;
    aura_slot_job slots = AURA_SLOT_JOB_INIT;
    for (int i = 0; i < MOST_TOKENS; i++)
        slot[i] = take_u8(s) == 255 ? take_u64(s) : (uint64_t)i * 3;
    aura_seq_create(cache, &seq);
    job.seq = seq, job.tokens = slots.tokens = tokens, slots.slot = slot;
    job.k = input_of(s), job.v = input_of(s);
    job.k.dtype = job.v.dtype = AURA_F32, job.k.data = job.v.data = fuzz_numbers, job.k.token_stride = job.k.head_stride = 0;
    job.v.token_stride = job.v.head_stride = 0;
    slots.k = job.k, slots.v = job.v;
    if ((uint64_t)tokens * c->kv_heads * 512 > FUZZ_FLOATS)
        return seq;
    aura_append(cache, &job, 1);
    aura_slots_write(cache, &slots, 1);
    return seq;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct source s = {data, size};
    aura_cache *cache = NULL;
    fuzz_begin();
    if (!space)
        MUST((space = calloc(2 * REACH, sizeof *space)));
    aura_config config = config_of(&s);
    if (aura_cache_create(fuzz_ctx, &config, &cache))
        return 0;
    MUST(aura_cache_bytes(cache) <= FUZZ_BUDGET);
    if (config.q_heads <= MOST_HEADS && config.kv_heads <= MOST_HEADS) {
        aura_seq seq = fill(&s, cache, &config);
        aura_attend_job jobs[2] = {attend_of(&s, seq), attend_of(&s, seq)};
        aura_attend_options options = options_of(&s);
        size_t n = 1 + take_u8(&s) % 2, bytes = 0;
        aura_status status = aura_attend(cache, jobs, n, take_u8(&s) % 8 ? &options : NULL);
        if (!status && !aura_attend_workspace(cache, jobs, n, take_u8(&s) % 2 ? take_u64(&s) >> take_u8(&s) % 64 : 0, &bytes)) {
            options.workspace = bytes < FUZZ_BUDGET ? aligned_alloc(64, (bytes + 63) / 64 * 64 + 64) : NULL;
            options.workspace_bytes = options.workspace ? bytes - (take_u8(&s) == 255) : 0;
            aura_attend(cache, jobs, n, &options);
            free(options.workspace);
        }
        if (seq)
            fuzz_use(cache, seq);
    }
    aura_cache_destroy(cache);
    return 0;
}
