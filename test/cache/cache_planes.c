/* How many bytes of a query a key is multiplied with, where the call leaves it open: every key decides by its own scale, so that
 * the rounding of the query moves no logit by more than the nat of src/rules.h. */
#include "cache_attend.h"

#include "../../src/rules.h"

static const aura_kind one_plane[] = {AURA_KIND_B2, AURA_KIND_B3, AURA_KIND_B4, AURA_KIND_B5};
enum { N_ONE = sizeof one_plane / sizeof *one_plane };

static void multiply(float *x, size_t n, float by)
{
    for (size_t i = 0; i < n; i++)
        x[i] *= by;
}

/* ---- logits of hundreds ------------------------------------------------------------------------------------------------ */

/* One call with planes 0, held to what two planes are held to. Before keys decided, rows had the value of another token. */
static void attend_extremes(struct scene *s, struct attention *a, const char *what)
{
    oracle_compute(a);
    for (int isa = 0; use_isa(isa); isa++) {
        aura_seq seq;
        aura_cache *cache = scene_cache(ctx, s, &seq);
        struct call c = call_new(a, seq, AURA_F32, AURA_F32, DENSE);
        a->options.planes = 0;
        EXPECT(!aura_attend(cache, &c.job, 1, &a->options), "%s", aura_last_error());
        a->options.planes = 2; /* what is allowed */
        expect_rows(&c.out, c.lse, a, 0, what);
        call_free(&c);
        aura_cache_destroy(cache);
    }
}

static void extreme_logits_are_right(void)
{
    static const float sinks[8] = {300, -5, 900, 0, 1, 2, 500, 700};
    for (uint32_t i = 0; i < N_ONE; i++) {
        aura_config config = config_of(one_plane[i], AURA_KIND_F32, i % 2 ? 80 : 128, 64, 2);
        config.q_heads = 8;
        float *keys = random_tokens(71 + i, 600, 2, config.k_dim, 1), *values = random_tokens(72 + i, 600, 2, 64, 0);
        multiply(keys, (size_t)600 * 2 * config.k_dim, 17);
        struct scene s = scene_of(config, 600, keys, values);
        for (uint32_t how = 0; how < (small_run() ? 2 : 4); how++) {
            struct attention a = attention_new(s.model, how == 0 ? 16 : how == 1 ? 3 : 1, 8, 80 + 4 * i + how);
            multiply(a.q, (size_t)a.queries * 8 * config.k_dim, 17);
            a.options.sinks = how == 1 ? sinks : NULL;
            a.options.window = how == 2 ? 200 : how == 1 ? 450 : 0;
            a.options.not_causal = how == 3;
            attend_extremes(&s, &a, how == 0 ? "16 queries" : how == 1 ? "sinks" : how == 2 ? "a window" : "not causal");
            attention_free(&a);
        }
        free(keys), free(values);
        scene_free(&s);
    }
}

/* ---- key by key -------------------------------------------------------------------------------------------------------- */

enum { TOKENS = 4 * TILE + 16, HEADS = 3 };

/* The logits of one query: with a mask that leaves one key, the logarithm of the sum is its logit. lse[key][head] */
static void logits_of_keys(float (*lse)[HEADS], const aura_cache *cache, aura_seq seq, struct attention *a, uint32_t planes)
{
    for (uint32_t t = 0; t < TOKENS; t++) {
        for (uint32_t j = 0; j < TOKENS; j++)
            a->mask[j] = j == t ? 0 : -INFINITY;
        struct call c = call_new(a, seq, AURA_F32, AURA_F32, DENSE);
        a->options.planes = planes;
        EXPECT(!aura_attend(cache, &c.job, 1, &a->options), "%s", aura_last_error());
        memcpy(lse[t], c.lse, sizeof lse[t]);
        call_free(&c);
    }
}

/* Keys of tile 1 are long, every fifth of tile 2, and none of the others but `except`. */
static struct scene mixed_scene(aura_kind kind, uint32_t except)
{
    aura_config config = config_of(kind, AURA_KIND_F32, 64, 64, 1);
    config.q_heads = HEADS, config.flags = AURA_NO_REFERENCE;
    float *keys = random_tokens(90 + kind, TOKENS, 1, 64, 1), *values = random_tokens(91, TOKENS, 1, 64, 0);
    for (uint32_t t = 0; t < TOKENS; t++)
        multiply(keys + t * 64, 64, t == except || t / TILE == 1 || (t / TILE == 2 && t % 5 == 0) ? 100 : 1);
    struct scene s = scene_of(config, TOKENS, keys, values);
    free(keys), free(values);
    return s;
}

static struct attention one_key_at_a_time(const struct scene *s)
{
    struct attention a = attention_new(s->model, 1, HEADS, 93);
    multiply(a.q + 64, 64, 40); /* in the second head all keys are loud, in the third none */
    multiply(a.q + 128, 64, 1e-3f);
    a.mask = malloc(TOKENS * sizeof *a.mask), a.mask_keys = TOKENS, a.mask_stride = TOKENS;
    return a;
}

/* Coded keys: those after the pinned and before the open ones. */
static void compare_planes(float (*open)[HEADS], float (*one)[HEADS], float (*two)[HEADS])
{
    int of_one[HEADS] = {0}, of_two[HEADS] = {0}, in_tile[2] = {0};
    double most = 0;
    for (uint32_t t = PINNED; t < TOKENS - ROLLBACK; t++)
        for (uint32_t h = 0; h < HEADS; h++) {
            double moved = fabs((double)one[t][h] - (double)two[t][h]);
            most = fmax(most, moved);
            EXPECT(open[t][h] == one[t][h] || open[t][h] == two[t][h], "key %u, head %u: %g is neither %g nor %g", t, h,
                   (double)open[t][h], (double)one[t][h], (double)two[t][h]);
            EXPECT(fabs((double)open[t][h] - (double)two[t][h]) <= (double)AURA_MOST_MOVED * (1 + 1e-6),
                   "key %u, head %u: off by %g", t, h, moved);
            if (one[t][h] == two[t][h])
                continue;
            of_one[h] += open[t][h] == one[t][h], of_two[h] += open[t][h] == two[t][h];
            if (t / TILE == 2 && h == 0)
                in_tile[open[t][h] == two[t][h]]++;
        }
    EXPECT(most > 2, "one plane moves a logit by %g nats: too little to tell", most);
    EXPECT(of_one[0] && of_two[0] && in_tile[0] && in_tile[1], "the first head has %d and %d, its mixed tile %d and %d", of_one[0],
           of_two[0], in_tile[0], in_tile[1]);
    EXPECT(!of_one[1] && of_one[2] && !of_two[2], "the others: %d, and %d and %d", of_one[1], of_one[2], of_two[2]);
}

static void every_key_decides(void)
{
    static float open[TOKENS][HEADS], one[TOKENS][HEADS], two[TOKENS][HEADS], beside[TOKENS][HEADS];
    static int first[TOKENS * HEADS];
    for (uint32_t i = 0; i < N_ONE; i++) {
        struct scene s = mixed_scene(one_plane[i], TOKENS), other = mixed_scene(one_plane[i], 3 * TILE + 7);
        struct attention a = one_key_at_a_time(&s);
        for (int isa = 0; use_isa(isa); isa++) {
            aura_seq seq, next;
            aura_cache *cache = scene_cache(ctx, &s, &seq), *elsewhere = scene_cache(ctx, &other, &next);
            logits_of_keys(open, cache, seq, &a, 0), logits_of_keys(one, cache, seq, &a, 1), logits_of_keys(two, cache, seq, &a, 2);
            compare_planes(open, one, two);
            logits_of_keys(beside, elsewhere, next, &a, 0);
            for (uint32_t t = PINNED; t < TOKENS - ROLLBACK; t++)
                EXPECT(t == 3 * TILE + 7 || !memcmp(beside[t], open[t], sizeof open[t]), "key %u: another key decided", t);
            /* Logits are the same bits everywhere; 2^0 and its logarithm are not, so decisions are compared. */
            for (uint32_t j = HEADS * PINNED; j < HEADS * (TOKENS - ROLLBACK); j++) {
                int both = open[j / HEADS][j % HEADS] == two[j / HEADS][j % HEADS];
                EXPECT(isa == 0 || both == first[j], "key %u, head %u: %s decides as %s does not", j / HEADS, j % HEADS,
                       isas[isa].name, isas[0].name);
                first[j] = isa == 0 ? both : first[j];
            }
            aura_cache_destroy(cache), aura_cache_destroy(elsewhere);
        }
        attention_free(&a);
        scene_free(&s), scene_free(&other);
    }
}

int main(void)
{
    isas_open(1);
    RUN(extreme_logits_are_right);
    RUN(every_key_decides);
    isas_close();
    return test_result();
}
