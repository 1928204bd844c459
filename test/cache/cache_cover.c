/* Attention with every option beside every other: an array of test cases in which any three values of any three options occur
 * together at least once. Each row of the array is a cache and a call, compared with double on every instruction set.
 *
 *     test_cache_cover                  the array; with AURA_QUICK, one for pairs of options
 *     test_cache_cover --row N          row N of it, to repeat a failure
 *     test_cache_cover --random N SEED  N rows at random: the longer run
 */
#include "cache_attend.h"

/* ---- options and their values --------------------------------------------------------------------------------------- */

enum option {
    K_KIND, V_KIND, RATIO, K_DIM, V_DIM, CONTEXT, QUERIES, WINDOW, LAYOUT, OPEN, PLANES, SINKS, SOFTCAP, MASK, Q_DTYPE,
    OUT_DTYPE, KV_DTYPE,
    LIMITS, ALIBI, CAUSAL, BALANCE, REFERENCE, FIRST_TOKENS, SEARCH, SCALE, HEADS_SAID, ALWAYS, N_OPTIONS
};

static const uint32_t ratios[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20};
static const uint32_t contexts[] = {0, 1, 4, 29, 60, 230, 262, 530}; /* tokens before the first query's own */
static const uint32_t query_counts[] = {1, 2, 3, 4, 7, 16, 40};
static const uint64_t windows[] = {0, 1, 5, 33, 260};
static const struct {
    uint32_t flags, rollback;
} opens[] = {{0, 0}, {0, 1}, {0, 32}, {AURA_NO_ROLLBACK, 0}, {AURA_NO_OPEN, 0}};
static const float softcaps[] = {0, 3, 30};
static const aura_dtype dtypes[] = {AURA_F32, AURA_F16, AURA_BF16};

/* The last option has a single value: a triple with it is a pair of other options. */
static const uint8_t levels[N_OPTIONS] = {N_KINDS, N_KINDS, 11, N_DIMS, N_DIMS, 8, 7, 5, N_LAYOUTS, 5, 3, 3, 3, 3, 3, 3, 3,
                                          4, 2, 2, 2, 2, 2, 2, 2, 2, 1};

/* Pairs of values that no cache can have, and one pair that takes too long. */
static int impossible(int a, uint32_t x, int b, uint32_t y)
{
    if (a > b)
        return impossible(b, y, a, x);
    return (a == K_KIND && b == BALANCE && is_plain(kinds[x]) && y) || /* plain keys take no balance */
           (a == OPEN && b == REFERENCE && x == 4 && y) ||             /* a reference needs open tokens */
           (a == CONTEXT && b == SEARCH && contexts[x] > 200 && y);    /* would take most of the time; cache_store.c tests it */
}

/* ---- the array --------------------------------------------------------------------------------------------------------- */

struct row {
    uint8_t value[N_OPTIONS];
};

static uint8_t *covered;                            /* one byte per triple of values */
static size_t first_triple[N_OPTIONS][N_OPTIONS][N_OPTIONS]; /* for three options in ascending order: where their triples begin */
static size_t n_triples, n_left;

static size_t triple(int a, uint32_t x, int b, uint32_t y, int c, uint32_t z)
{
    return first_triple[a][b][c] + (x * levels[b] + y) * levels[c] + z;
}

static int wanted(int c)
{
    return c == ALWAYS || !small_run();
}

static void list_triples(void)
{
    for (int a = 0; a < N_OPTIONS; a++)
        for (int b = a + 1; b < N_OPTIONS; b++)
            for (int c = b + 1; c < N_OPTIONS; c++)
                first_triple[a][b][c] = n_triples, n_triples += (size_t)levels[a] * levels[b] * levels[c];
    covered = calloc(n_triples, 1);
    n_left = 0;
    for (int a = 0; a < N_OPTIONS; a++)
        for (int b = a + 1; b < N_OPTIONS; b++)
            for (int c = b + 1; c < N_OPTIONS; c++)
                for (uint32_t i = 0; i < (uint32_t)levels[a] * levels[b] * levels[c]; i++) {
                    uint32_t z = i % levels[c], y = i / levels[c] % levels[b], x = i / levels[c] / levels[b];
                    if (wanted(c) && !impossible(a, x, b, y) && !impossible(a, x, c, z) && !impossible(b, y, c, z))
                        n_left++;
                    else
                        covered[triple(a, x, b, y, c, z)] = 1;
                }
}

/* How many uncovered triples a value makes with the options that already have a value; with `take`, they become covered. */
static uint32_t adds(const struct row *row, const uint8_t *has, int option, uint32_t value, int take)
{
    uint32_t sum = 0;
    for (int a = 0; a < N_OPTIONS; a++)
        for (int b = a + 1; has[a] && a != option && b < N_OPTIONS; b++) {
            if (!has[b] || b == option)
                continue;
            uint32_t x = row->value[a], y = row->value[b];
            size_t at = option < a   ? triple(option, value, a, x, b, y)
                        : option < b ? triple(a, x, option, value, b, y)
                                     : triple(a, x, b, y, option, value);
            sum += !covered[at];
            if (take && !covered[at])
                covered[at] = 1, n_left--;
        }
    return sum;
}

/* A row that begins with one uncovered triple; each other option then takes the value that covers most. */
static uint32_t grow_row(struct row *row, size_t missing, uint64_t *seed)
{
    uint8_t has[N_OPTIONS] = {0};
    uint32_t sum = 0;
    for (int a = 0; a < N_OPTIONS; a++)
        for (int b = a + 1; b < N_OPTIONS; b++)
            for (int c = b + 1; c < N_OPTIONS; c++) {
                size_t i = missing - first_triple[a][b][c];
                if (missing < first_triple[a][b][c] || i >= (size_t)levels[a] * levels[b] * levels[c])
                    continue;
                has[a] = has[b] = has[c] = 1;
                row->value[a] = (uint8_t)(i / levels[c] / levels[b]);
                row->value[b] = (uint8_t)(i / levels[c] % levels[b]), row->value[c] = (uint8_t)(i % levels[c]);
            }
    for (int turn = 0, start = (int)(random_bits(seed) % N_OPTIONS); turn < N_OPTIONS; turn++) {
        int option = (start + turn * 7) % N_OPTIONS; /* 7 and 27 have no common factor */
        uint32_t best = 0, from = (uint32_t)(random_bits(seed) % levels[option]);
        int found = 0;
        for (uint32_t i = 0; !has[option] && i < levels[option]; i++) {
            uint32_t value = (from + i) % levels[option], possible = 1;
            for (int other = 0; other < N_OPTIONS; other++)
                possible &= !has[other] || !impossible(option, value, other, row->value[other]);
            uint32_t gain = possible ? adds(row, has, option, value, 0) : 0;
            if (possible && (!found || gain > best))
                best = gain, row->value[option] = (uint8_t)value, found = 1;
        }
        has[option] = 1;
        sum += best;
    }
    return sum;
}

static void take_row(const struct row *row)
{
    uint8_t has[N_OPTIONS] = {0};
    for (int option = 0; option < N_OPTIONS; option++) {
        adds(row, has, option, row->value[option], 1);
        has[option] = 1;
    }
}

/* Makes rows, each the best of a few tries, until all triples are covered. */
static struct row *cover(size_t *n_rows)
{
    struct row *rows = NULL;
    uint64_t seed = 1;
    size_t at = 0;
    list_triples();
    size_t all = n_left;
    for (*n_rows = 0; n_left; ++*n_rows) {
        struct row best = {{0}}, row = {{0}};
        uint32_t most = 0;
        while (covered[at])
            at++;
        for (int i = 0; i < 4; i++) {
            uint32_t sum = grow_row(&row, at, &seed);
            if (i == 0 || sum > most)
                most = sum, best = row;
        }
        take_row(&best);
        rows = realloc(rows, (*n_rows + 1) * sizeof *rows);
        rows[*n_rows] = best;
    }
    printf("  %zu rows: all %zu possible %s of values of %d options\n", *n_rows, all, small_run() ? "pairs" : "triples",
           N_OPTIONS - 1);
    free(covered);
    return rows;
}

/* ---- a row, run ------------------------------------------------------------------------------------------------------- */

static struct {
    const struct row *row;
    size_t number;
    struct scene scene;
    struct attention at;
    aura_dtype kv_dtype;
} now;

static aura_config row_config(const uint8_t *value, float **balance)
{
    uint32_t kv_heads = ratios[value[RATIO]] < 4 ? 2 : 1;
    aura_config c = config_of(kinds[value[K_KIND]], kinds[value[V_KIND]], dims[value[K_DIM]], dims[value[V_DIM]], kv_heads);
    c.q_heads = ratios[value[RATIO]] * kv_heads;
    c.flags = opens[value[OPEN]].flags | (value[REFERENCE] ? 0 : AURA_NO_REFERENCE) | (value[FIRST_TOKENS] ? 0 : AURA_NO_PINNED) |
              (value[SEARCH] ? 0 : AURA_NO_SEARCH);
    c.rollback = opens[value[OPEN]].rollback;
    *balance = value[BALANCE] ? some_balance(kv_heads, c.k_dim) : NULL;
    c.balance = *balance;
    return c;
}

/* A tree of drafts over the queries' own keys, or numbers and -inf over all keys. */
static void row_mask(struct attention *a, uint32_t how)
{
    uint64_t seed = 5;
    if (!how)
        return;
    a->mask_keys = how == 1 && a->queries < a->model->len ? a->queries : (uint32_t)a->model->len;
    a->mask_stride = a->mask_keys + (how == 1 ? 0 : 3);
    a->mask = malloc(a->queries * a->mask_stride * sizeof *a->mask);
    for (size_t i = 0; i < a->queries * a->mask_stride; i++)
        a->mask[i] = random_bits(&seed) % 3 == 0 ? -INFINITY : how == 1 ? 0 : random_normal(&seed);
}

/* Tokens from some place on, up to some place, or both: among them none, one, and all. */
static void row_limits(struct attention *a, uint32_t how)
{
    uint64_t seed = 7 + how, len = a->model->len;
    a->from = how & 1 ? malloc(a->queries * sizeof *a->from) : NULL;
    a->until = how & 2 ? malloc(a->queries * sizeof *a->until) : NULL;
    for (uint32_t i = 0; i < a->queries && how; i++) {
        uint64_t end = a->options.not_causal ? len : len - a->queries + i + 1;
        if (a->until)
            a->until[i] = end = i % 5 == 4 ? len : random_bits(&seed) % (len + 1);
        if (a->from)
            a->from[i] = i % 7 == 6 ? end : random_bits(&seed) % (end + 1);
    }
}

static void row_options(struct attention *a, const uint8_t *value)
{
    static float sinks[2][40], slopes[40];
    for (uint32_t h = 0; h < 40; h++)
        sinks[0][h] = (float)(h % 5) - 2, sinks[1][h] = 6 + (float)(h % 3), slopes[h] = 0.5f / (float)(h + 1);
    a->options.scale = value[SCALE] ? 0.07f : 0;
    a->options.softcap = softcaps[value[SOFTCAP]];
    a->options.window = windows[value[WINDOW]];
    a->options.sinks = value[SINKS] ? sinks[value[SINKS] - 1] : NULL;
    a->options.alibi = value[ALIBI] ? slopes : NULL;
    a->options.not_causal = !value[CAUSAL];
    a->options.planes = value[PLANES];
}

static const char *row_text(void)
{
    static char text[400];
    const uint8_t *v = now.row->value;
    snprintf(text, sizeof text,
             "row %zu: %s balance %d context %u queries %u window %u sinks %d softcap %g mask %d alibi %d causal %d "
             "limits %d dtypes %d %d %d layout %d scale %d heads said %d",
             now.number, config_text(&now.scene.config), v[BALANCE], contexts[v[CONTEXT]], query_counts[v[QUERIES]],
             (unsigned)windows[v[WINDOW]], v[SINKS], (double)softcaps[v[SOFTCAP]], v[MASK], v[ALIBI], v[CAUSAL],
             v[LIMITS], v[KV_DTYPE], v[Q_DTYPE], v[OUT_DTYPE], v[LAYOUT], v[SCALE], v[HEADS_SAID]);
    return text;
}

static void attend_row(void)
{
    const uint8_t *value = now.row->value;
    aura_seq seq;
    aura_cache *cache = scene_cache(ctx, &now.scene, &seq);
    struct call c = call_new(&now.at, seq, dtypes[value[Q_DTYPE]], dtypes[value[OUT_DTYPE]], (enum layout)value[LAYOUT]);
    c.job.q_heads = value[HEADS_SAID] ? now.at.q_heads : 0;
    aura_status status = seq ? aura_attend(cache, &c.job, 1, &now.at.options) : AURA_BAD_ARGUMENT;
    EXPECT(!status, "%s: %s", row_text(), aura_last_error());
    if (!status)
        expect_rows(&c.out, c.lse, &now.at, 0, row_text());
    call_free(&c);
    aura_cache_destroy(cache);
}

static void run_row(const struct row *row, size_t number)
{
    const uint8_t *value = row->value;
    float *balance;
    aura_config config = row_config(value, &balance);
    uint32_t queries = query_counts[value[QUERIES]], tokens = contexts[value[CONTEXT]] + queries;
    float *keys = random_tokens(number * 2, tokens, config.kv_heads, config.k_dim, 1);
    float *values = random_tokens(number * 2 + 1, tokens, config.kv_heads, config.v_dim, 0);
    now.row = row, now.number = number;
    now.scene = scene_typed(config, tokens, keys, values, dtypes[value[KV_DTYPE]], (enum layout)((value[LAYOUT] + 3) % N_LAYOUTS));
    now.at = attention_new(now.scene.model, queries, config.q_heads, number);
    now.scene.config.q_heads = value[HEADS_SAID] ? 0 : config.q_heads; /* the cache need not know */
    attention_round(&now.at, dtypes[value[Q_DTYPE]]);
    row_options(&now.at, value);
    row_mask(&now.at, value[MASK]);
    row_limits(&now.at, value[LIMITS]);
    oracle_compute(&now.at);
    for (int isa = 0; use_isa(isa); isa++)
        attend_row();
    attention_free(&now.at);
    scene_free(&now.scene);
    free(keys), free(values), free(balance);
}

/* ---- which rows --------------------------------------------------------------------------------------------------------- */

static long only_row = -1, random_rows;
static uint64_t random_seed = 1;

static void any_three_options(void)
{
    size_t n;
    struct row *rows = cover(&n);
    for (size_t i = 0; i < n; i++)
        if (only_row < 0 || i == (size_t)only_row)
            run_row(&rows[i], i);
    free(rows);
}

static void rows_at_random(void)
{
    for (long i = 0; i < random_rows; i++) {
        struct row row;
        for (int option = 0, again = 0; option < N_OPTIONS; option += !again, again = 0) {
            row.value[option] = (uint8_t)(random_bits(&random_seed) % levels[option]);
            for (int other = 0; other < option; other++)
                again |= impossible(option, row.value[option], other, row.value[other]);
        }
        run_row(&row, (size_t)i);
        if (i % 1000 == 999)
            printf("  %ld rows\n", i + 1), fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], "--row"))
        only_row = atol(argv[2]);
    if (argc > 2 && !strcmp(argv[1], "--random"))
        random_rows = atol(argv[2]), random_seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    isas_open(1);
    if (random_rows)
        RUN(rows_at_random);
    else
        RUN(any_three_options);
    print_worst();
    isas_close();
    return test_result();
}
