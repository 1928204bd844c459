/* Calibration against a plain computation in double. */
#include "../../src/variants.h"
#include "../base/modes.h"
#include "../../include/aura_file.h"
#include "../oracle.h"

enum { Q_HEADS = 6, KV_HEADS = 2, DIM = 80, V_DIM = 64, TOKENS = 700, QUERIES = 40 };

/* Two texts. All numbers are multiples of 1/16 below 8, so that every element type holds them exactly. */
static struct {
    float k[2][TOKENS][KV_HEADS][DIM], q[QUERIES][Q_HEADS][DIM];
} data;
static const uint32_t text_tokens[2] = {TOKENS, 270}; /* the second ends inside the first tile of its second page */

static float coarse(double x)
{
    double rounded = rint(x * 16) / 16;
    return (float)fmax(fmin(rounded, 7.9375), -7.9375);
}

static void fill(void)
{
    uint64_t seed = 11;
    for (int text = 0; text < 2; text++)
        for (int t = 0; t < TOKENS; t++)
            for (int h = 0; h < KV_HEADS; h++)
                for (int d = 0; d < DIM; d++) /* a channel stays near a place of its own, which moves from page to page */
                    data.k[text][t][h][d] = coarse(3 * sin(d + h + t / 256) + 0.2 * (1 + d % 5) * random_normal(&seed));
    for (int t = 0; t < QUERIES; t++)
        for (int h = 0; h < Q_HEADS; h++)
            for (int d = 0; d < DIM; d++)
                data.q[t][h][d] = coarse(0.3 * (1 + (d + h / 3) % 7) * random_normal(&seed));
}

/* ---- what is right ----------------------------------------------------------------------------------------------- */

static double key_energy[KV_HEADS][DIM], query_energy[KV_HEADS][DIM];

/* Adds one text of n tokens, page by page. */
static double add_text(int head, int d, int text, uint32_t n, double *energy)
{
    double count = 0;
    for (uint32_t page = 0; page + 32 <= n; page += 256) {
        double reference = 0;
        uint32_t first = page == 0 ? 4 : page, end = page + 256 < n ? page + 256 : n;
        for (uint32_t t = first; t < page + 32; t++)
            reference += data.k[text][t][head][d];
        reference /= page + 32 - first;
        for (uint32_t t = first; t < end; t++, count++)
            *energy += pow(data.k[text][t][head][d] - reference, 2);
    }
    return count;
}

static void energies(int n_texts)
{
    for (int h = 0; h < KV_HEADS; h++)
        for (int d = 0; d < DIM; d++) {
            double keys = 0, queries = 0, n = 0;
            for (int text = 0; text < n_texts; text++)
                n += add_text(h, d, text, text_tokens[text], &keys);
            for (int t = 0; t < QUERIES; t++)
                for (int g = 0; g < Q_HEADS / KV_HEADS; g++)
                    queries += pow(data.q[t][h * (Q_HEADS / KV_HEADS) + g][d], 2);
            key_energy[h][d] = keys / n;
            query_energy[h][d] = queries / (QUERIES * (Q_HEADS / KV_HEADS));
        }
}

static double right_factor(int h, int d)
{
    double logs = 0;
    for (int i = 0; i < DIM; i++)
        logs += log(query_energy[h][i] / key_energy[h][i]) / 4;
    double factor = pow(query_energy[h][d] / key_energy[h][d], 0.25) / exp(logs / DIM);
    return fmin(fmax(factor, 0.125), 8);
}

/* ---- the library's ----------------------------------------------------------------------------------------------- */

static aura_calibration *create(void)
{
    aura_calibration_config config = {sizeof config, Q_HEADS, KV_HEADS, DIM, V_DIM};
    aura_calibration *c = NULL;
    EXPECT(!aura_calibration_create(ctx, &config, &c), "%s", aura_last_error());
    return c;
}

static void give_text(aura_calibration *c, int text, uint32_t n, uint32_t chunk)
{
    for (uint32_t t = 0; t < n; t += chunk) {
        aura_input k = {data.k[text][t], AURA_F32, 0, 0, NULL};
        EXPECT(!aura_calibration_keys(c, n - t < chunk ? n - t : chunk, &k), "%s", aura_last_error());
    }
}

static void give_queries(aura_calibration *c, uint32_t chunk)
{
    for (uint32_t t = 0; t < QUERIES; t += chunk) {
        aura_input q = {data.q[t], AURA_F32, 0, 0, NULL};
        EXPECT(!aura_calibration_queries(c, QUERIES - t < chunk ? QUERIES - t : chunk, &q), "%s", aura_last_error());
    }
}

typedef float balance_t[KV_HEADS][DIM];

static void take(aura_calibration *c, balance_t balance)
{
    EXPECT(!aura_calibration_balance(c, balance[0]), "%s", aura_last_error());
    aura_calibration_destroy(c);
}

static void run_texts(balance_t balance, int n_texts, uint32_t chunk)
{
    aura_calibration *c = create();
    for (int text = 0; text < n_texts; text++) {
        give_text(c, text, text_tokens[text], chunk);
        EXPECT(!aura_calibration_next_text(c), "%s", aura_last_error());
    }
    give_queries(c, chunk);
    take(c, balance);
}

static void expect_right(balance_t balance)
{
    for (int h = 0; h < KV_HEADS; h++)
        for (int d = 0; d < DIM; d++)
            EXPECT(fabs(balance[h][d] / right_factor(h, d) - 1) < 1e-7, "head %d channel %d: %.9g, not %.9g", h, d,
                   (double)balance[h][d], right_factor(h, d));
}

/* ---- with feedback ---------------------------------------------------------------------------------------------- */

/* Numbers with mean of logs 0, as factors are. */
static void expect_factors(const float *got, const double *size, const double *cost, int n, const char *what, int head)
{
    double logs = 0;
    for (int d = 0; d < n; d++)
        logs += (log(cost[d]) - 3 * log(size[d])) / 8 / n;
    for (int d = 0; d < n; d++) {
        const double want = fmin(fmax(exp((log(cost[d]) - 3 * log(size[d])) / 8 - logs), 0.125), 8);
        EXPECT(fabs(got[d] / want - 1) < 1e-6, "%s of head %d, channel %d: %.9g, not %.9g", what, head, d, (double)got[d], want);
    }
}

/* E[q q'], and the balances that go with metrics. Values count from the 5th token of a text on. */
static void metrics_are_what_double_says(void)
{
    enum { GROUP = Q_HEADS / KV_HEADS, TRIANGLE = DIM * (DIM + 1) / 2, V_TRIANGLE = V_DIM * (V_DIM + 1) / 2 };
    static float metric[KV_HEADS][TRIANGLE], v_metric[KV_HEADS][V_TRIANGLE], v[2][20][KV_HEADS][V_DIM];
    balance_t balance;
    float v_balance[KV_HEADS][V_DIM];
    uint64_t seed = 5;
    fill(), energies(1);
    for (size_t i = 0; i < sizeof v / sizeof(float); i++)
        (&v[0][0][0][0])[i] = (float)(1 + i % 7) * random_normal(&seed);
    for (int h = 0; h < KV_HEADS; h++)
        for (int d = 0; d < V_DIM; d++)
            v_metric[h][d * (d + 1) / 2 + d] = (float)(1 + d % 5);
    aura_calibration *c = create();
    EXPECT(aura_calibration_metric(c, metric[0]) == AURA_BAD_ARGUMENT &&
           aura_calibration_k_balance(c, balance[0]) == AURA_BAD_ARGUMENT &&
           aura_calibration_v_balance(c, v_metric[0], v_balance[0]) == AURA_BAD_ARGUMENT, "of nothing");
    give_text(c, 0, text_tokens[0], 33), give_queries(c, 7);
    for (int text = 0; text < 2; text++) {
        aura_input first = {v[text][0], AURA_F32, 0, 0, NULL}, rest = {v[text][3], AURA_F32, 0, 0, NULL};
        EXPECT(!aura_calibration_values(c, 3, &first) && !aura_calibration_values(c, 17, &rest) &&
               !aura_calibration_next_text(c), "%s", aura_last_error());
    }
    EXPECT(!aura_calibration_metric(c, metric[0]) && !aura_calibration_k_balance(c, balance[0]) &&
           !aura_calibration_v_balance(c, v_metric[0], v_balance[0]), "%s", aura_last_error());
    for (int h = 0; h < KV_HEADS; h++) {
        double size[V_DIM] = {0}, cost[V_DIM];
        for (int i = 0, at = 0; i < DIM; i++)
            for (int j = 0; j <= i; j++, at++) {
                double want = 0, most = sqrt(query_energy[h][i] * query_energy[h][j]);
                for (int t = 0; t < QUERIES; t++)
                    for (int g = h * GROUP; g < (h + 1) * GROUP; g++)
                        want += (double)data.q[t][g][i] * (double)data.q[t][g][j] / (QUERIES * GROUP);
                EXPECT(fabs(metric[h][at] - want) <= 1e-6 * most, "(%d, %d) of head %d: %g, not %g", i, j, h,
                       (double)metric[h][at], want);
            }
        expect_factors(balance[h], key_energy[h], query_energy[h], DIM, "balance", h);
        for (int d = 0; d < V_DIM; d++) {
            cost[d] = (double)v_metric[h][d * (d + 1) / 2 + d];
            for (int t = 4; t < 20; t++)
                size[d] += pow((double)v[0][t][h][d], 2) + pow((double)v[1][t][h][d], 2);
        }
        expect_factors(v_balance[h], size, cost, V_DIM, "balance of values", h);
    }
    v_metric[1][2] = -1; /* (1, 1) */
    EXPECT(aura_calibration_v_balance(c, v_metric[0], v_balance[0]) == AURA_BAD_VALUE, "less than nothing");
    aura_calibration_destroy(c);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void is_what_double_says(void)
{
    balance_t balance;
    fill();
    for (int n_texts = 1; n_texts <= 2; n_texts++) {
        energies(n_texts);
        run_texts(balance, n_texts, TOKENS);
        expect_right(balance);
    }
}

/* A large constant and a small signal: sums of k and of k^2 would lose the signal. */
static void constants_do_not_drown_the_signal(void)
{
    balance_t balance;
    uint64_t seed = 12;
    fill();
    for (int t = 0; t < TOKENS; t++)
        for (int d = 0; d < DIM; d++)
            data.k[0][t][1][d] = 16384 + (float)rint(2 * random_normal(&seed)) * 0x1p-9f;
    energies(1);
    run_texts(balance, 1, 50);
    expect_right(balance);
}

static void chunks_change_no_bit(void)
{
    static const uint32_t chunks[] = {1, 7, 31, 32, 33, 256, 300};
    balance_t whole, parts;
    fill();
    run_texts(whole, 2, TOKENS);
    for (int i = 0; i < 7; i++) {
        run_texts(parts, 2, chunks[i]);
        EXPECT(!memcmp(whole, parts, sizeof whole), "chunks of %u", chunks[i]);
    }
}

static void float_modes_change_no_bit(void)
{
    unsigned long before = mode_get();
    balance_t plain, strange;
    fill();
    for (int d = 0; d < DIM; d++)
        data.q[1][0][d] *= 0.7f; /* sums that need rounding */
    run_texts(plain, 1, TOKENS);
    for (int i = 0; i < N_MODES; i++) {
        mode_set(modes[i]);
        run_texts(strange, 1, TOKENS);
        mode_set(before);
        EXPECT(!memcmp(plain, strange, sizeof plain), "mode 0x%x", modes[i]);
    }
}

/* Tokens that must not count, changed. */
static void pinned_and_lonely_tokens_do_not_count(void)
{
    balance_t before, after;
    fill();
    run_texts(before, 2, 64);
    for (int h = 0; h < KV_HEADS; h++)
        for (int d = 0; d < DIM; d++) {
            for (int t = 0; t < 4; t++)
                data.k[0][t][h][d] = data.k[1][t][h][d] = 1e30f;
            for (int t = 256; t < 270; t++)
                data.k[1][t][h][d] = -77; /* their page's first tile is never complete */
        }
    run_texts(after, 2, 64);
    EXPECT(!memcmp(before, after, sizeof before), "pinned tokens or those of an incomplete tile were counted");
    data.k[0][4][0][0] += 1;
    run_texts(after, 2, 64);
    EXPECT(memcmp(before, after, sizeof before), "token 4 was not counted");
    fill();
    data.k[1][255][1][3] += 1;
    run_texts(after, 2, 64);
    EXPECT(memcmp(before, after, sizeof before), "token 255 of the second text was not counted");
}

/* [tokens][heads][DIM] in another place, type and order: 0 contiguous, 1 head-major, 2 backwards, 3 padded rows. */
static aura_input laid_out(uint8_t *buffer, const float *x, uint32_t tokens, uint32_t heads, aura_dtype dtype, int layout)
{
    size_t element = aura_dtype_bytes(dtype);
    ptrdiff_t row = layout == 3 ? DIM + 24 : DIM, head = layout == 1 ? (ptrdiff_t)tokens * row : row;
    ptrdiff_t token = layout == 1 ? row : (ptrdiff_t)heads * row, first = 0;
    if (layout == 2)
        first = (ptrdiff_t)(tokens * heads - 1) * row, token = -token, head = -head;
    aura_input v = {buffer + first * (ptrdiff_t)element, dtype, layout == 1 || layout == 2 ? token : 0,
                   layout == 0 ? 0 : head, NULL};
    memset(buffer, 0xff, (size_t)tokens * heads * (DIM + 24) * element); /* NaN in between */
    for (ptrdiff_t t = 0; t < tokens; t++)
        for (ptrdiff_t h = 0; h < heads; h++)
            for (ptrdiff_t d = 0; d < DIM; d++)
                aura_store(buffer, dtype, (size_t)(first + t * token + h * head + d), x[(t * heads + h) * DIM + d]);
    return v;
}

static void layouts_and_types_change_no_bit(void)
{
    static const aura_dtype dtypes[] = {AURA_F32, AURA_F16, AURA_BF16};
    static uint32_t buffer[TOKENS * Q_HEADS * (DIM + 24)];
    balance_t want, got;
    fill();
    run_texts(want, 1, TOKENS);
    for (int t = 0; t < 3; t++)
        for (int layout = 0; layout < 4; layout++) {
            aura_calibration *c = create();
            aura_input k = laid_out((uint8_t *)buffer, data.k[0][0][0], TOKENS, KV_HEADS, dtypes[t], layout);
            EXPECT(!aura_calibration_keys(c, TOKENS, &k), "%s", aura_last_error());
            aura_input q = laid_out((uint8_t *)buffer, data.q[0][0], QUERIES, Q_HEADS, dtypes[t], layout);
            EXPECT(!aura_calibration_queries(c, QUERIES, &q), "%s", aura_last_error());
            take(c, got);
            EXPECT(!memcmp(want, got, sizeof want), "dtype %d layout %d", t, layout);
        }
}

/* Noise in a score: the codec's, spread evenly over the balanced channels, times what the queries see of it. */
static double noise(int h, const float *balance)
{
    double keys = 0, queries = 0;
    for (int d = 0; d < DIM; d++) {
        double square = (double)balance[d] * balance[d];
        keys += square * key_energy[h][d];
        queries += query_energy[h][d] / square;
    }
    return keys * queries;
}

static void balance_lowers_the_noise(void)
{
    balance_t balance;
    fill();
    energies(1);
    run_texts(balance, 1, TOKENS);
    for (int h = 0; h < KV_HEADS; h++) {
        float ones[DIM], other[DIM];
        double logs = 0, first = pow(balance[h][0], 4) * key_energy[h][0] / query_energy[h][0];
        for (int d = 0; d < DIM; d++) {
            ones[d] = 1;
            logs += log(balance[h][d]);
            EXPECT(balance[h][d] > 0.126f && balance[h][d] < 7.9f, "clamped: nothing is tested");
            EXPECT(fabs(pow(balance[h][d], 4) * key_energy[h][d] / query_energy[h][d] / first - 1) < 1e-6,
                   "channel %d has another ratio of the balanced energies", d);
        }
        EXPECT(fabs(logs) < 1e-5, "geometric mean %g", exp(logs / DIM));
        EXPECT(noise(h, balance[h]) < 0.8 * noise(h, ones), "noise %g, without balance %g", noise(h, balance[h]), noise(h, ones));
        for (int d = 0; d < DIM; d++)
            for (int up = 0; up < 2; up++) {
                memcpy(other, balance[h], sizeof other);
                other[d] *= up ? 1.1f : 0.9f;
                EXPECT(noise(h, other) > noise(h, balance[h]), "another factor of channel %d would be better", d);
            }
    }
}

static void factors_stay_in_range(void)
{
    balance_t balance;
    int low = 0, high = 0;
    fill();
    for (int t = 0; t < QUERIES; t++)
        for (int h = 0; h < Q_HEADS; h++)
            for (int d = 0; d < DIM; d++)
                data.q[t][h][d] *= d % 8 == 0 ? 0x1p10f : d % 8 == 1 ? 0x1p-10f : 1;
    energies(1);
    run_texts(balance, 1, TOKENS);
    expect_right(balance);
    for (int d = 0; d < DIM; d++)
        high += balance[0][d] == 8, low += balance[0][d] == 0.125f;
    EXPECT(low == DIM / 8 && high == DIM / 8, "%d at 1/8, %d at 8", low, high);
}

static void channels_without_energy(void)
{
    balance_t plain, got;
    fill();
    run_texts(plain, 1, TOKENS);
    for (int d = 0; d < DIM; d += 2) { /* half of the channels: nobody asks for these, or they never change */
        for (int t = 0; t < QUERIES; t++)
            for (int h = 0; h < 3; h++)
                data.q[t][h][d] = 0;
        for (int t = 0; t < TOKENS; t++)
            data.k[0][t][1][d] = 5;
    }
    run_texts(got, 1, TOKENS);
    double shift[2] = {log(got[0][1] / plain[0][1]), log(got[1][1] / plain[1][1])};
    for (int h = 0; h < KV_HEADS; h++)
        for (int d = 0; d < DIM; d++) {
            EXPECT(got[h][d] >= 0.125f && got[h][d] <= 8, "head %d channel %d: %g", h, d, (double)got[h][d]);
            if (d % 2)
                EXPECT(fabs(log(got[h][d] / plain[h][d]) - shift[h]) < 1e-6, "head %d: a dead channel pushed channel %d", h, d);
            else
                EXPECT(got[h][d] == (h ? 8 : 0.125f), "head %d channel %d: %g", h, d, (double)got[h][d]);
        }
    EXPECT(fabs(shift[0]) < 0.5 && fabs(shift[1]) < 0.5, "%g %g", shift[0], shift[1]);
    for (int side = 0; side < 2; side++) { /* a whole head */
        fill();
        if (side)
            for (int t = 0; t < QUERIES; t++)
                memset(data.q[t], 0, 3 * DIM * sizeof(float));
        for (int t = 0; !side && t < TOKENS; t++)
            memset(data.k[0][t][0], 0, DIM * sizeof(float));
        run_texts(got, 1, TOKENS);
        for (int d = 0; d < DIM; d++)
            EXPECT(got[0][d] == 1 && got[1][d] == plain[1][d], "side %d, channel %d: %g", side, d, (double)got[0][d]);
    }
}

/* ---- misuse ------------------------------------------------------------------------------------------------------ */

static void bad_configs(void)
{
    static const aura_calibration_config bad[] = {{3, 4, 2, 64, 0}, {sizeof *bad, 0, 2, 64, 0}, {sizeof *bad, 4, 0, 64, 0},
                                                  {sizeof *bad, 5, 2, 64, 0},
        {sizeof *bad, 4, 2, 0, 0}, {sizeof *bad, 4, 2, 513, 0}, {sizeof *bad, 4, 2, 1024, 0}, {sizeof *bad, 4, 2, UINT32_MAX, 0},
        {sizeof *bad, 4, 2, 64, 513}};
    aura_calibration *c = (aura_calibration *)&data;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        aura_status status = aura_calibration_create(ctx, &bad[i], &c);
        EXPECT(status == (i < 5 ? AURA_BAD_ARGUMENT : AURA_UNSUPPORTED), "config %zu: %s", i, aura_last_error());
        EXPECT(!strncmp(aura_last_error(), "aura_calibration_create: ", 25), "%s", aura_last_error());
    }
    aura_calibration_config good = {sizeof good, 4, 2, 64, 0};
    EXPECT(aura_calibration_create(NULL, &good, &c) == AURA_BAD_ARGUMENT, "ctx NULL");
    EXPECT(aura_calibration_create(ctx, NULL, &c) == AURA_BAD_ARGUMENT, "config NULL");
    EXPECT(aura_calibration_create(ctx, &good, NULL) == AURA_BAD_ARGUMENT, "calibration NULL");
    EXPECT(c == (aura_calibration *)&data, "a failing create wrote");
    static const uint32_t dims[] = {AURA_DIMS(AURA_DIM_ITEM)};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        good.k_dim = dims[i];
        EXPECT(!aura_calibration_create(ctx, &good, &c), "%s", aura_last_error());
        aura_calibration_destroy(c);
    }
    aura_calibration_destroy(NULL);
}

/* A bad tensor for a calibration that already has data: the data must not change. */
static void refuse(const aura_input *view, uint32_t tokens, int queries, aura_status want, const char *text)
{
    balance_t before, after;
    aura_calibration *c = create();
    give_text(c, 0, 300, 300), give_queries(c, QUERIES);
    EXPECT(!aura_calibration_balance(c, before[0]), "%s", aura_last_error());
    aura_status status = queries ? aura_calibration_queries(c, tokens, view) : aura_calibration_keys(c, tokens, view);
    EXPECT(status == want && strstr(aura_last_error(), text), "%s: %s", text, aura_last_error());
    EXPECT(strstr(aura_last_error(), queries ? "aura_calibration_queries: q" : "aura_calibration_keys: k"), "%s",
           aura_last_error());
    take(c, after);
    EXPECT(!memcmp(before, after, sizeof before), "%s: something was counted", text);
}

static void bad_tensors(void)
{
    static float copy[TOKENS * Q_HEADS * DIM];
    for (int queries = 0; queries < 2; queries++) {
        uint32_t tokens = queries ? QUERIES : 64, heads = queries ? Q_HEADS : KV_HEADS;
        fill();
        memcpy(copy, queries ? data.q[0][0] : data.k[0][0][0], (size_t)tokens * heads * DIM * sizeof *copy);
        aura_input good = {copy, AURA_F32, 0, 0, NULL}, v;
        v = good, v.data = NULL, refuse(&v, tokens, queries, AURA_BAD_ARGUMENT, "NULL");
        refuse(NULL, tokens, queries, AURA_BAD_ARGUMENT, "NULL");
        v = good, v.dtype = (aura_dtype)3, refuse(&v, tokens, queries, AURA_UNSUPPORTED, "dtype");
        v = good, v.data = (char *)copy + 2, refuse(&v, 1, queries, AURA_BAD_ARGUMENT, "aligned");
        v = good, v.token_stride = PTRDIFF_MAX / 8, refuse(&v, tokens, queries, AURA_TOO_LARGE, "fit in memory");
        v = good, v.token_stride = PTRDIFF_MIN, refuse(&v, tokens, queries, AURA_TOO_LARGE, "fit in memory");
        v = good, v.head_stride = PTRDIFF_MIN, refuse(&v, tokens, queries, AURA_TOO_LARGE, "fit in memory");
        for (int kind = 0; kind < 3; kind++) { /* in the last token, when all before it looked good */
            size_t at = ((tokens - 1) * heads + 1) * DIM + 33;
            float kept = copy[at];
            char text[64];
            copy[at] = kind == 0 ? NAN : kind == 1 ? INFINITY : -INFINITY;
            snprintf(text, sizeof text, "token %u, head 1, channel 33 is", tokens - 1);
            refuse(&good, tokens, queries, AURA_BAD_VALUE, text);
            copy[at] = kept;
        }
    }
}

static void bad_calls(void)
{
    balance_t balance;
    aura_input v = {data.k, AURA_F32, 0, 0, NULL};
    fill();
    memset(balance, 0x5a, sizeof balance);
    EXPECT(aura_calibration_keys(NULL, 1, &v) == AURA_BAD_ARGUMENT && aura_calibration_queries(NULL, 1, &v) == AURA_BAD_ARGUMENT &&
               aura_calibration_next_text(NULL) == AURA_BAD_ARGUMENT &&
               aura_calibration_balance(NULL, balance[0]) == AURA_BAD_ARGUMENT, "NULL");
    aura_calibration *c = create();
    EXPECT(aura_calibration_balance(c, NULL) == AURA_BAD_ARGUMENT, "balance NULL");
    give_queries(c, QUERIES);
    give_text(c, 0, 31, 31); /* twice one token less than a tile: no tile is complete */
    aura_calibration_next_text(c);
    give_text(c, 0, 31, 31);
    EXPECT(aura_calibration_balance(c, balance[0]) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "no keys"), "%s",
           aura_last_error());
    aura_calibration_destroy(c);
    c = create();
    give_text(c, 0, 32, 32);
    EXPECT(aura_calibration_balance(c, balance[0]) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "no queries"), "%s",
           aura_last_error());
    for (size_t i = 0; i < sizeof balance; i++)
        EXPECT(((uint8_t *)balance)[i] == 0x5a, "a failing call wrote");
    EXPECT(!aura_calibration_keys(c, 0, NULL) && !aura_calibration_queries(c, 0, NULL), "no tokens: %s", aura_last_error());
    give_queries(c, QUERIES);
    EXPECT(!aura_calibration_balance(c, balance[0]), "32 keys and some queries are enough: %s", aura_last_error());
    aura_calibration_destroy(c);
}

static size_t allocated;
static int allocations_left;
static void *scarce_alloc(void *user, size_t bytes, size_t align)
{
    (void)user;
    if (allocations_left-- <= 0)
        return NULL;
    allocated += bytes;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}
static void scarce_free(void *user, void *memory, size_t bytes)
{
    (void)user;
    allocated -= bytes;
    free(memory);
}

static void no_memory(void)
{
    aura_ctx_options o = AURA_CTX_OPTIONS_INIT;
    aura_calibration_config config = {sizeof config, Q_HEADS, KV_HEADS, DIM, V_DIM};
    aura_calibration *c = (aura_calibration *)&o;
    aura_ctx *scarce;
    o.allocator.alloc = scarce_alloc, o.allocator.free = scarce_free;
    allocations_left = 1;
    EXPECT(!aura_ctx_create(&o, &scarce), "%s", aura_last_error());
    EXPECT(aura_calibration_create(scarce, &config, &c) == AURA_OUT_OF_MEMORY && c == (aura_calibration *)&o, "%s",
           aura_last_error());
    allocations_left = 1;
    EXPECT(!aura_calibration_create(scarce, &config, &c), "%s", aura_last_error());
    aura_calibration_destroy(c);
    aura_ctx_destroy(scarce);
    EXPECT(allocated == 0, "%zu bytes not given back", allocated);
}

int main(void)
{
    if (aura_ctx_create(NULL, &ctx))
        return 1;
    RUN(is_what_double_says);
    RUN(metrics_are_what_double_says);
    RUN(constants_do_not_drown_the_signal);
    RUN(chunks_change_no_bit);
    RUN(float_modes_change_no_bit);
    RUN(pinned_and_lonely_tokens_do_not_count);
    RUN(layouts_and_types_change_no_bit);
    RUN(balance_lowers_the_noise);
    RUN(factors_stay_in_range);
    RUN(channels_without_energy);
    RUN(bad_configs);
    RUN(bad_tensors);
    RUN(bad_calls);
    RUN(no_memory);
    aura_ctx_destroy(ctx);
    return test_result();
}
