/* The built-in tables, checked without the code that made them: errors come from closed forms, facts about the
 * published tables from their publications. */
#include "../include/aura_rows.h"
#include "../src/codebook.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>

static const aura_codebook *find(aura_table table, uint32_t bits)
{
    for (size_t i = 0; i < aura_codebook_count; i++)
        if (aura_codebook_list[i].id == 16 * (uint32_t)table + bits)
            return &aura_codebook_list[i];
    printf("there is no codebook of table %d with %u bits\n", (int)table, bits);
    exit(1);
}

static double density(double x)
{
    return exp(-x * x / 2) / sqrt(2 * acos(-1.0));
}

/* Integrals of x^power times the normal density up to x, from minus infinity. */
static double below(double x, int power)
{
    double mass = erfc(-x / sqrt(2.0)) / 2;
    if (isinf(x))
        return power == 1 || x < 0 ? 0 : 1;
    return power == 0 ? mass : power == 1 ? -density(x) : mass - x * density(x);
}

/* Bounds and level of cell i in standard deviations; a factor stretches levels and thresholds. */
struct cell {
    double low, high, level;
};

static struct cell cell_of(const aura_codebook *book, uint32_t i, double stretch)
{
    double unit = stretch / book->sigma;
    struct cell cell = {-INFINITY, INFINITY, unit * book->centroid[i]};
    if (i > 0)
        cell.low = unit * book->threshold[i - 1];
    if (i + 1 < book->levels)
        cell.high = unit * book->threshold[i];
    return cell;
}

/* E[(x - level(x))^2] for x from N(0,1). */
static double stretched_error(const aura_codebook *book, double stretch)
{
    double sum = 0;
    for (uint32_t i = 0; i < book->levels; i++) {
        struct cell in = cell_of(book, i, stretch);
        double moment[3];
        for (int power = 0; power < 3; power++)
            moment[power] = below(in.high, power) - below(in.low, power);
        sum += moment[2] - 2 * in.level * moment[1] + in.level * in.level * moment[0];
    }
    return sum;
}

static double error_of(aura_table table, uint32_t bits)
{
    return stretched_error(find(table, bits), 1);
}

static void list_is_complete(void)
{
    static const char *const widths[] = {"", "12345678", "234568", "23468", "234568"};
    size_t count = 0;
    for (int table = AURA_TABLE_EXACT; table <= AURA_TABLE_TQ; table++)
        for (const char *bits = widths[table]; *bits; bits++, count++) {
            const aura_codebook *book = find((aura_table)table, (uint32_t)(*bits - '0'));
            uint32_t levels = book->id == 16 * AURA_TABLE_GRID + 8 ? 255 : 1u << book->bits;
            int uniform = table == AURA_TABLE_GRID && book->bits > 4;
            double sigma = table == AURA_TABLE_AURA ? sqrt(1 / 128.0) : 1;
            EXPECT(book->bits == (uint32_t)(*bits - '0'), "id %u has %u bits", book->id, book->bits);
            EXPECT(book->levels == levels, "id %u has %u levels", book->id, book->levels);
            EXPECT((int)book->uniform == uniform, "id %u has uniform %u", book->id, book->uniform);
            EXPECT(book->sigma == (float)sigma, "id %u has sigma %g", book->id, book->sigma);
            EXPECT((book->step > 0) == (table == AURA_TABLE_GRID), "id %u has step %g", book->id, book->step);
        }
    /* every expected id was found, so a list of the same length has no id twice and no other */
    EXPECT(aura_codebook_count == count, "%zu codebooks, expected %zu", aura_codebook_count, count);
}

/* How far a threshold may be from the middle of its levels: a float's rounding, or the digits that were published. */
static double midpoint_slack(const aura_codebook *book, double middle)
{
    double rounding = 1.5 * fabs(middle) * 0x1p-24 + 0x1p-26 * book->sigma;
    if (book->id / 16 == AURA_TABLE_TQ)
        return 5e-8 + rounding;
    return book->id / 16 == AURA_TABLE_AURA && book->bits <= 4 ? 5e-7 + rounding : rounding;
}

static void thresholds_are_between_levels(void)
{
    for (size_t k = 0; k < aura_codebook_count; k++) {
        const aura_codebook *book = &aura_codebook_list[k];
        for (uint32_t i = 0; i + 1 < book->levels; i++) {
            double low = book->centroid[i], high = book->centroid[i + 1], threshold = book->threshold[i];
            EXPECT(low < threshold && threshold < high, "id %u: %g is not between %g and %g", book->id, threshold, low,
                   high);
            EXPECT(fabs(threshold - (low + high) / 2) <= midpoint_slack(book, threshold),
                   "id %u: threshold %u is %.9g, the middle is %.9g", book->id, i, threshold, (low + high) / 2);
        }
    }
}

static void tables_are_symmetric(void)
{
    for (size_t k = 0; k < aura_codebook_count; k++) {
        const aura_codebook *book = &aura_codebook_list[k];
        uint32_t last = book->levels - 1;
        if (book->id / 16 == AURA_TABLE_AURA && book->bits > 4)
            continue; /* the published generator is not symmetric */
        for (uint32_t i = 0; i <= last; i++) {
            EXPECT(book->centroid[i] == -book->centroid[last - i], "id %u level %u", book->id, i);
            EXPECT(i == last || book->threshold[i] == -book->threshold[last - 1 - i], "id %u threshold %u", book->id,
                   i);
        }
    }
}

static void exact_tables_are_optimal(void)
{
    static const double error[] = {0, 0, 0.11748, 0.034548, 0.009501, 0.0025047, 6.442e-4, 0, 4.119e-5};
    static const double digit[] = {0, 0, 1e-5, 1e-6, 1e-6, 1e-7, 1e-7, 0, 1e-8};

    double one = error_of(AURA_TABLE_EXACT, 1);

    EXPECT(fabs(one - (1 - 2 / acos(-1.0))) < 1e-12, "1 bit: %.15g", one);
    for (uint32_t bits = 2; bits <= 8; bits++) {
        double got = error_of(AURA_TABLE_EXACT, bits);
        EXPECT(bits == 7 || fabs(got - error[bits]) <= digit[bits] / 2, "%u bits: %.9g", bits, got);
    }
    for (uint32_t bits = 1; bits <= 8; bits++) {
        const aura_codebook *book = find(AURA_TABLE_EXACT, bits);
        for (uint32_t i = 0; i < book->levels; i++) {
            struct cell in = cell_of(book, i, 1);
            double mean = (below(in.high, 1) - below(in.low, 1)) / (below(in.high, 0) - below(in.low, 0));
            EXPECT(fabs(mean - in.level) <= 0x1p-22 * fabs(in.level), "%u bits: level %u is %.9g, its cell's mean %.9g",
                   bits, i, in.level, mean);
        }
    }
}

/* The mean of a cell hardly changes when all levels drift together. A comparison with tables that others solved shows the drift. */
static void exact_tables_agree_with_others(void)
{
    for (uint32_t bits = 2; bits <= 4; bits++) {
        const aura_codebook *ours = find(AURA_TABLE_EXACT, bits), *other = find(AURA_TABLE_TQ, bits);
        for (uint32_t i = 0; i < ours->levels; i++)
            EXPECT(fabs(ours->centroid[i] - other->centroid[i]) < 2e-7, "%u bits: level %u is %.9g, theirs %.9g", bits,
                   i, ours->centroid[i], other->centroid[i]);
    }
    const aura_codebook *book = find(AURA_TABLE_EXACT, 8);
    double spacing = book->centroid[128] - book->centroid[127];
    EXPECT(fabs(book->centroid[255] - 4.604) < 5e-4, "8 bits end at %.9g", book->centroid[255]);
    EXPECT(fabs(spacing - 0.01689) < 5e-6, "8 bits are spaced %.9g", spacing);
}

static void grid_tables_are_integers(void)
{
    static const int named[3][8] = {{15, 50}, {7, 22, 39, 62}, {3, 9, 15, 21, 28, 36, 46, 61}};
    for (uint32_t bits = 2; bits <= 8; bits++) {
        if (bits == 7)
            continue;
        const aura_codebook *book = find(AURA_TABLE_GRID, bits);
        for (uint32_t i = 0; i < book->levels; i++) {
            int half = 1 << (bits - 1), n = 2 * (int)i - 2 * half + 1;
            if (bits <= 4)
                n = (int)i < half ? -named[bits - 2][half - 1 - (int)i] : named[bits - 2][(int)i - half];
            if (bits == 8)
                n = (int)i - 127;
            EXPECT(abs(n) <= (bits == 8 ? 127 : 63), "%u bits: %d is too large", bits, n);
            EXPECT(book->centroid[i] == (float)((double)book->step * n), "%u bits: level %u is %.9g, not %d steps",
                   bits, i, book->centroid[i], n);
        }
    }
}

static void grid_tables_are_good(void)
{
    static const double allowed[] = {0, 0, 1e-5, 5e-4, 2.5e-3};
    for (uint32_t bits = 2; bits <= 4; bits++) {
        double excess = error_of(AURA_TABLE_GRID, bits) / error_of(AURA_TABLE_EXACT, bits) - 1;
        EXPECT(excess >= 0 && excess <= allowed[bits], "%u bits: %.4g %% over the optimum", bits, 100 * excess);
    }
    for (uint32_t bits = 2; bits <= 8; bits++) {
        if (bits == 7)
            continue;
        const aura_codebook *book = find(AURA_TABLE_GRID, bits);
        double error = stretched_error(book, 1);
        double wider = stretched_error(book, 1.0001), narrower = stretched_error(book, 0.9999);
        EXPECT(error < wider && error < narrower, "%u bits: %.17g, %.17g, %.17g", bits, narrower, error, wider);
        EXPECT(fabs(wider - narrower) < 1e-8 * error, "%u bits: a better step is elsewhere", bits);
    }
}

/* E[(x - level(x))^2] times 128 for a coordinate of a random unit vector in 128 dimensions. */
static double unit_vector_error(const aura_codebook *book)
{
    enum { POINTS = 1 << 20 };
    double sum = 0, mass = 0;
    uint32_t k = 0;
    for (int i = 0; i < POINTS; i++) {
        double x = -1 + (2 * i + 1.0) / POINTS, weight = pow(1 - x * x, (128 - 3) / 2.0);
        while (k + 1 < book->levels && x > book->threshold[k])
            k++;
        sum += weight * (x - book->centroid[k]) * (x - book->centroid[k]);
        mass += weight;
    }
    return 128 * sum / mass;
}

/* The 4- and 8-bit tables are far from optimal; they are what the kernels were published with. */
static void aura_tables_are_as_published(void)
{
    const aura_codebook *four = find(AURA_TABLE_AURA, 4), *eight = find(AURA_TABLE_AURA, 8);
    EXPECT(fabs(four->centroid[15] / four->sigma - 1.968) < 5e-4, "4 bits end at %.9g", four->centroid[15]);
    EXPECT(fabs(error_of(AURA_TABLE_AURA, 4) - 0.0203) < 5e-5, "4 bits: %.9g", error_of(AURA_TABLE_AURA, 4));

    EXPECT(fabs(eight->centroid[0] + 0.32178) < 5e-6, "8 bits start at %.9g", eight->centroid[0]);
    EXPECT(fabs(eight->centroid[255] - 0.32178) < 5e-6, "8 bits end at %.9g", eight->centroid[255]);
    EXPECT(fabs(eight->centroid[127] + 0.000458) < 5e-7, "8 bits: inner %.9g", eight->centroid[127]);
    EXPECT(fabs(eight->centroid[128] - 0.000458) < 5e-7, "8 bits: inner %.9g", eight->centroid[128]);
    EXPECT(fabs(unit_vector_error(eight) - 1.57e-4) < 5e-7, "8 bits: %.9g", unit_vector_error(eight));

    double six = unit_vector_error(find(AURA_TABLE_AURA, 6)); /* nothing is published about 6 bits */
    EXPECT(six > error_of(AURA_TABLE_EXACT, 6) && six < 2 * error_of(AURA_TABLE_EXACT, 6), "6 bits: %.9g", six);
}

/* The published positive halves of 2, 3, 4, 5, 6 and 8 bits, one after the other. */
static const double tq[] = {
    /* 2 bits */
    0.4527800, 1.5104176,
    /* 3 bits */
    0.2450942, 0.7560053, 1.3439093, 2.1519457,
    /* 4 bits */
    0.1283950, 0.3880483, 0.6567591, 0.9423405, 1.2562312, 1.6180464, 2.0690172, 2.7325896,
    /* 5 bits */
    0.0658849, 0.1980377, 0.3313550, 0.4666676, 0.6048936, 0.7470884, 0.8945114, 1.0487242, 1.2117410, 1.3862739,
    1.5761599, 1.7871646, 2.0286608, 2.3176743, 2.6910589, 3.2606790,
    /* 6 bits */
    0.0311537, 0.0935225, 0.1560761, 0.2189392, 0.2822386, 0.3461048, 0.4106724, 0.4760822, 0.5424819, 0.6100285,
    0.6788902, 0.7492492, 0.8213046, 0.8952766, 0.9714118, 1.0499889, 1.1313277, 1.2157998, 1.3038428, 1.3959804,
    1.4928497, 1.5952401, 1.7041502, 1.8208742, 1.9471373, 2.0853192, 2.2388464, 2.4129324, 2.6161277, 2.8640626,
    3.1907215, 3.6996161,
    /* 8 bits */
    0.0135717, 0.0407151, 0.0678584, 0.0950019, 0.1221453, 0.1492888, 0.1764324, 0.2035761, 0.2307198, 0.2578636,
    0.2850076, 0.3121517, 0.3392960, 0.3664405, 0.3935852, 0.4207301, 0.4478753, 0.4750208, 0.5021667, 0.5293129,
    0.5564596, 0.5836067, 0.6107544, 0.6379027, 0.6650517, 0.6922014, 0.7193520, 0.7465035, 0.7736561, 0.8008098,
    0.8279648, 0.8551212, 0.8822793, 0.9094390, 0.9366008, 0.9637647, 0.9909310, 1.0180999, 1.0452718, 1.0724469,
    1.0996255, 1.1268081, 1.1539951, 1.1811868, 1.2083838, 1.2355865, 1.2627956, 1.2900118, 1.3172356, 1.3444678,
    1.3717093, 1.3989610, 1.4262237, 1.4534986, 1.4807869, 1.5080897, 1.5354084, 1.5627445, 1.5900996, 1.6174755,
    1.6448739, 1.6722970, 1.6997469, 1.7272261, 1.7547372, 1.7822828, 1.8098662, 1.8374904, 1.8651592, 1.8928763,
    1.9206458, 1.9484722, 1.9763603, 2.0043154, 2.0323430, 2.0604493, 2.0886408, 2.1169245, 2.1453081, 2.1737998,
    2.2024086, 2.2311440, 2.2600165, 2.2890372, 2.3182184, 2.3475732, 2.3771157, 2.4068614, 2.4368270, 2.4670306,
    2.4974918, 2.5282321, 2.5592748, 2.5906452, 2.6223710, 2.6544825, 2.6870129, 2.7199985, 2.7534795, 2.7874999,
    2.8221086, 2.8573596, 2.8933131, 2.9300362, 2.9676040, 3.0061011, 3.0456229, 3.0862780, 3.1281899, 3.1715011,
    3.2163758, 3.2630056, 3.3116156, 3.3624729, 3.4158977, 3.4722785, 3.5320936, 3.5959415, 3.6645851, 3.7390194,
    3.8205780, 3.9111092, 4.0132856, 4.1311907, 4.2715508, 4.4467193, 4.6836997, 5.0652659
};

/* The published thresholds are decimal midpoints of 7 digits. As f32, a known number of them differs from the true midpoint. That
 * number is right only if every half digit is rounded as the publication did. */
static void tq_tables_are_as_published(void)
{
    static const int differing[] = {0, 0, 0, 2, 2, 2, 12, 0, 72};
    const double *level = tq;
    for (uint32_t bits = 2; bits <= 8; bits++) {
        if (bits == 7)
            continue;
        const aura_codebook *book = find(AURA_TABLE_TQ, bits);
        uint32_t half = book->levels / 2;
        int count = 0;
        for (uint32_t i = 0; i < half; i++) {
            EXPECT(book->centroid[half + i] == (float)level[i], "%u bits: level %u is %.9g", bits, i,
                   book->centroid[half + i]);
            if (i + 1 < half)
                count += 2 * (book->threshold[half + i] != (float)((level[i] + level[i + 1]) / 2));
        }
        EXPECT(count == differing[bits], "%u bits: %d thresholds are not the f32 midpoint", bits, count);
        level += half;
    }
    EXPECT(fabs(error_of(AURA_TABLE_TQ, 8) - 6.27e-5) < 5e-8, "8 bits: %.9g", error_of(AURA_TABLE_TQ, 8));
}

int main(void)
{
    RUN(list_is_complete);
    RUN(thresholds_are_between_levels);
    RUN(tables_are_symmetric);
    RUN(exact_tables_are_optimal);
    RUN(exact_tables_agree_with_others);
    RUN(grid_tables_are_integers);
    RUN(grid_tables_are_good);
    RUN(aura_tables_are_as_published);
    RUN(tq_tables_are_as_published);
    return test_result();
}
