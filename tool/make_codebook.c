/* Prints src/codebook.c, whose first line is the command. Every table is solved here or copied from its publication;
 * the text must not depend on the compiler, so that a re-run can be compared byte for byte. */
#include "../include/aura_rows.h"
#include "../src/base/exact.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HALF = 128, MAX_LEVELS = 256, MAX_BOOKS = 32 };

struct book {
    aura_table table;
    unsigned bits, levels, uniform;
    float sigma, step;
    float centroid[MAX_LEVELS], threshold[MAX_LEVELS - 1];
};

static struct book books[MAX_BOOKS];
static unsigned book_count;

static void fail(const char *what)
{
    fprintf(stderr, "make_codebook: %s\n", what);
    exit(1);
}

static struct book *new_book(aura_table table, unsigned bits)
{
    if (book_count == MAX_BOOKS)
        fail("more books than MAX_BOOKS");
    struct book *book = &books[book_count++];
    book->table = table;
    book->bits = bits;
    book->levels = 1u << bits;
    book->sigma = table == AURA_TABLE_AURA ? (float)sqrt(1 / 128.0) : 1;
    return book;
}

/* Writes a symmetric table from its half >= 0: `n` centroids and the n - 1 thresholds between them (NULL: midpoints).
 * An even number of levels has a threshold of 0 in the middle, an odd number has the level half[0] = 0 there. */
static void mirror(struct book *book, const double *half, const double *between, unsigned n)
{
    unsigned last = book->levels - 1, first = book->levels - n;

    book->threshold[book->levels / 2 - 1] = 0;
    for (unsigned i = 0; i < n; i++) {
        unsigned above = first + i, below = last - above;
        book->centroid[below] = -(float)half[i];
        book->centroid[above] = (float)half[i];
        if (i + 1 < n) {
            book->threshold[above] = (float)(between ? between[i] : (half[i] + half[i + 1]) / 2);
            book->threshold[below - 1] = -book->threshold[above];
        }
    }
}

/* ---- the normal distribution ----------------------------------------------------------------------------------- */

static double density(double x)
{
    return exp(-0.5 * x * x) / sqrt(6.28318530717958647693);
}

static double tail(double x)
{
    return 0.5 * erfc(x / sqrt(2.0));
}

/* The positive half of 16-point Gauss-Legendre quadrature on [-1, 1]. */
enum { NODES = 8 };
static const double node[NODES] = {
    0.989400934991649933, 0.944575023073232576, 0.865631202387831744, 0.755404408355003034, 0.617876244402643748,
    0.458016777657227386, 0.281603550779258913, 0.095012509837637440
};
static const double weight[NODES] = {
    0.027152459411754095, 0.062253523938647893, 0.095158511682492785, 0.124628971255533872, 0.149595988816576732,
    0.169156519395002538, 0.182603415044923589, 0.189450610455068496
};

struct cell {
    double mass, moment; /* integrals of density(x) and x * density(x) */
};

/* Differences of erfc lose the digits that the 8-bit equations need (their cells hold 1/150 of the mass, and the
 * system amplifies errors about a thousandfold): a sum of positive terms around the middle of the cell loses none. */
static struct cell cell(double a, double b)
{
    if (isinf(b))
        return (struct cell){tail(a), density(a)};
    double middle = (a + b) / 2, radius = (b - a) / 2, even = 0, odd = 0;
    for (int i = 0; i < NODES; i++) {
        double s = radius * node[i], w = weight[i] * exp(-0.5 * s * s);
        even += w * cosh(middle * s);
        odd += w * sinh(middle * s) * s;
    }
    double mass = 2 * radius * density(middle) * even;
    return (struct cell){mass, mass * (middle - odd / even)};
}

/* ---- exact: Lloyd-Max ------------------------------------------------------------------------------------------ */

/* Many levels are best placed at the quantiles of N(0,3), here by Tukey's approximation. */
static double first_guess(unsigned i, unsigned n)
{
    double p = 0.5 + 0.5 * (i + 0.5) / n;
    return sqrt(3.0) * (pow(p, 0.1349) - pow(1 - p, 0.1349)) / 0.1975;
}

/* One Newton step for "every level is the mean of its cell", unknowns half[n]. The Jacobian is tridiagonal because a
 * level moves only the two thresholds beside it. Returns the largest change. */
static double newton(double *half, unsigned n)
{
    double upper[MAX_HALF], change[MAX_HALF], a = 0, largest = 0;

    for (unsigned i = 0; i < n; i++) {
        double b = i + 1 < n ? (half[i] + half[i + 1]) / 2 : INFINITY;
        struct cell in = cell(a, b);
        double mean = in.moment / in.mass;
        double by_a = i > 0 ? 0.5 * density(a) * (mean - a) / in.mass : 0; /* d mean / d half[i - 1] */
        double by_b = i + 1 < n ? 0.5 * density(b) * (b - mean) / in.mass : 0;
        double pivot = 1 - by_a - by_b, right = mean - half[i];
        if (i > 0) {
            pivot -= by_a * upper[i - 1];
            right += by_a * change[i - 1];
        }
        upper[i] = by_b / pivot;
        change[i] = right / pivot;
        a = b;
    }
    for (unsigned i = n; i-- > 0;) {
        if (i + 1 < n)
            change[i] += upper[i] * change[i + 1];
        half[i] += change[i];
        largest = fmax(largest, fabs(change[i]));
    }
    return largest;
}

static void make_exact(unsigned bits)
{
    struct book *book = new_book(AURA_TABLE_EXACT, bits);
    unsigned n = book->levels / 2;
    double half[MAX_HALF];
    int passes = 0;

    for (unsigned i = 0; i < n; i++)
        half[i] = first_guess(i, n);
    while (newton(half, n) > 1e-12) /* the noise is 4e-13 at 8 bits; a float needs 1e-9 */
        if (++passes == 20)
            fail("Newton's method does not converge");
    mirror(book, half, NULL, n);
}

/* ---- grid: integers times a step ------------------------------------------------------------------------------- */

enum { MAX_INTEGER = 63, BEYOND = 2 * MAX_INTEGER + 1 };

/* The quantiser with levels +-step * integer[n]: its mean squared error is 1 - 2 * step * cross + step^2 * square. */
struct fit {
    double cross, square;
};

static struct fit grid_fit(const int *integer, unsigned n, double step)
{
    struct fit fit = {0, 0};
    double a = 0;
    for (unsigned i = 0; i < n; i++) {
        double b = i + 1 < n ? step * (integer[i] + integer[i + 1]) / 2 : INFINITY;
        struct cell in = cell(a, b);
        fit.cross += 2 * integer[i] * in.moment;
        fit.square += 2.0 * integer[i] * integer[i] * in.mass;
        a = b;
    }
    return fit;
}

/* The thresholds are the best ones for their levels, so the error's slope is that of fixed thresholds: a root of
 * step * square - cross. It is negative when the top level is at 0.5 sigma and positive when it is at 10. */
static double best_step(const int *integer, unsigned n)
{
    double low = 0.5 / integer[n - 1], high = 10.0 / integer[n - 1];
    for (int pass = 0; pass < 60; pass++) {
        double step = (low + high) / 2;
        struct fit fit = grid_fit(integer, n, step);
        if (step * fit.square < fit.cross)
            low = step;
        else
            high = step;
    }
    return low;
}

static double grid_error(const int *integer, unsigned n)
{
    double step = best_step(integer, n);
    struct fit fit = grid_fit(integer, n, step);
    return 1 - 2 * step * fit.cross + step * step * fit.square;
}

/* The integral of (x - c)^2 * density(x) from i to j half steps; above[k] are the integrals of density(x) times 1, x
 * and x^2 from k half steps up, 0 for k = BEYOND. */
static double error_between(double above[][3], int i, int j, double c)
{
    const double *from = above[i], *to = above[j];
    return from[2] - to[2] - 2 * c * (from[1] - to[1]) + c * c * (from[0] - to[0]);
}

/* The best n integers for a given step, by dynamic programming: cost[k][b] is the least error between 0 and the level
 * b when b is the integer number k. */
static void best_integers(int *integer, unsigned n, double step)
{
    double above[BEYOND + 1][3] = {{0}}, cost[8][MAX_INTEGER + 1], least = INFINITY;
    int before[8][MAX_INTEGER + 1];

    for (int k = 0; k < BEYOND; k++) {
        double x = k * step / 2;
        above[k][0] = tail(x);
        above[k][1] = density(x);
        above[k][2] = tail(x) + x * density(x);
    }
    for (int b = 1; b <= MAX_INTEGER; b++)
        cost[0][b] = error_between(above, 0, 2 * b, b * step);
    for (unsigned k = 1; k < n; k++)
        for (int b = (int)k + 1; b <= MAX_INTEGER; b++) {
            cost[k][b] = INFINITY;
            for (int a = (int)k; a < b; a++) {
                double sum = cost[k - 1][a] + error_between(above, 2 * a, a + b, a * step) +
                             error_between(above, a + b, 2 * b, b * step);
                if (sum < cost[k][b]) {
                    cost[k][b] = sum;
                    before[k][b] = a;
                }
            }
        }
    for (int b = (int)n; b <= MAX_INTEGER; b++) {
        double sum = cost[n - 1][b] + error_between(above, 2 * b, BEYOND, b * step);
        if (sum < least) {
            least = sum;
            integer[n - 1] = b;
        }
    }
    for (unsigned k = n - 1; k > 0; k--)
        integer[k - 1] = before[k][integer[k]];
}

/* Fails if the best integers for any step make a better quantiser than the given ones. The top level is between 1 and
 * 4 sigma, and its integer above 31 because smaller sets can be doubled: at 2 bits {3, 10} is the same as {15, 50}. */
static void prove_best(const int *integer, unsigned n)
{
    double given = grid_error(integer, n);
    for (double step = 1.0 / MAX_INTEGER; step < 4.0 / 32; step *= 1.001) {
        int other[8];
        best_integers(other, n, step);
        if (grid_error(other, n) < given * (1 - 1e-10))
            fail("there are better integers for the grid");
    }
}

static void grid_book(unsigned bits, unsigned levels, unsigned uniform, const int *integer, unsigned n)
{
    struct book *book = new_book(AURA_TABLE_GRID, bits);
    double half[MAX_HALF];

    book->levels = levels;
    book->uniform = uniform;
    book->step = (float)best_step(integer, n);
    for (unsigned i = 0; i < n; i++)
        half[i] = (double)book->step * integer[i];
    mirror(book, half, NULL, n);
}

static void make_grid(void)
{
    static const int table[3][8] = {{15, 50}, {7, 22, 39, 62}, {3, 9, 15, 21, 28, 36, 46, 61}};
    int odd[32], all[128];

    for (unsigned bits = 2; bits <= 4; bits++) {
        prove_best(table[bits - 2], 1u << (bits - 1));
        grid_book(bits, 1u << bits, 0, table[bits - 2], 1u << (bits - 1));
    }
    for (int i = 0; i < 32; i++)
        odd[i] = 2 * i + 1;
    for (int i = 0; i < 128; i++)
        all[i] = i;
    grid_book(5, 32, 1, odd, 16);
    grid_book(6, 64, 1, odd, 32);
    grid_book(8, 255, 1, all, 128);
}

/* ---- AURA: as published for dim 128 ---------------------------------------------------------------------------- */

/* Weighted k-means over the coordinate of a random unit vector in 128 dimensions, all in f32: 32768 equally spaced
 * points of [-1, 1] with both ends, weights (1 - x^2)^62.5 divided by their sum, levels started at the first point
 * where the running weight reaches (i + 0.5) / levels, 100 Lloyd iterations, a point on a threshold goes down.
 *
 * The generator is published as a description. Of the readings tried (points at the ends or the middles of intervals,
 * six kinds of quantile, both tie rules, sums in f32 or f64) this one gives every published figure of the 8-bit table
 * to all printed digits: ends +-0.32178 (here -0.321782 and 0.321784), innermost +-0.000458, dim * error 1.57e-4,
 * slightly asymmetric. The 256 published numbers themselves were not available; between the readings that come close,
 * single levels differ by up to 6.1e-5, one point more or less in a cell. */
enum { POINTS = 32768, ITERATIONS = 100 };
static float point[POINTS], share[POINTS];

static void make_points(void)
{
    float total = 0;
    for (int i = 0; i < POINTS; i++) {
        point[i] = -1.0f + 2.0f * (float)i / (float)(POINTS - 1);
        double t = 1 - (double)point[i] * point[i], power = sqrt(t);
        for (int k = 0; k < 62; k++) /* not pow(): its last digit belongs to the C library */
            power *= t;
        share[i] = (float)power;
        total += share[i];
    }
    for (int i = 0; i < POINTS; i++)
        share[i] /= total;
}

/* Moves every level to the mean of its points; one that has no points stays. */
static void lloyd(struct book *book)
{
    float sum[MAX_LEVELS] = {0}, mass[MAX_LEVELS] = {0};
    unsigned k = 0;
    for (int i = 0; i < POINTS; i++) {
        while (k + 1 < book->levels && point[i] > book->threshold[k])
            k++;
        sum[k] += share[i] * point[i];
        mass[k] += share[i];
    }
    for (k = 0; k < book->levels; k++)
        if (mass[k] > 0)
            book->centroid[k] = sum[k] / mass[k];
}

static void aura_generated(unsigned bits)
{
    struct book *book = new_book(AURA_TABLE_AURA, bits);
    unsigned k = 0;
    float running = 0;

    for (int i = 0; i < POINTS; i++) {
        running += share[i];
        while (k < book->levels && running >= ((float)k + 0.5f) / (float)book->levels)
            book->centroid[k++] = point[i];
    }
    if (k < book->levels)
        fail("the weights of the AURA generator do not add up to 1");
    for (int pass = 0; pass <= ITERATIONS; pass++) {
        if (pass > 0)
            lloyd(book);
        for (k = 0; k + 1 < book->levels; k++)
            book->threshold[k] = (book->centroid[k] + book->centroid[k + 1]) * 0.5f;
    }
}

static void make_aura(void)
{
    static const double c2[] = {0.039994, 0.133462}, t2[] = {0.086728};
    static const double c3[] = {0.021460, 0.065717, 0.117832, 0.190685}, t3[] = {0.043589, 0.091775, 0.154259};
    static const double c4[] = {0.006938, 0.020989, 0.035597, 0.051262, 0.068756, 0.089527, 0.117195, 0.173926};
    static const double t4[] = {0.013963, 0.028293, 0.043430, 0.060009, 0.079142, 0.103361, 0.145560};

    mirror(new_book(AURA_TABLE_AURA, 2), c2, t2, 2);
    mirror(new_book(AURA_TABLE_AURA, 3), c3, t3, 4);
    mirror(new_book(AURA_TABLE_AURA, 4), c4, t4, 8);
    make_points();
    aura_generated(6);
    aura_generated(8);
}

/* ---- TQ: as published, in units of 1e-7 ------------------------------------------------------------------------ */

static const int tq2[] = {4527800, 15104176};
static const int tq3[] = {2450942, 7560053, 13439093, 21519457};
static const int tq4[] = {1283950, 3880483, 6567591, 9423405, 12562312, 16180464, 20690172, 27325896};
static const int tq5[] = {
    658849, 1980377, 3313550, 4666676, 6048936, 7470884, 8945114, 10487242, 12117410, 13862739, 15761599, 17871646,
    20286608, 23176743, 26910589, 32606790
};
static const int tq6[] = {
    311537, 935225, 1560761, 2189392, 2822386, 3461048, 4106724, 4760822, 5424819, 6100285, 6788902, 7492492,
    8213046, 8952766, 9714118, 10499889, 11313277, 12157998, 13038428, 13959804, 14928497, 15952401, 17041502,
    18208742, 19471373, 20853192, 22388464, 24129324, 26161277, 28640626, 31907215, 36996161
};
static const int tq8[] = {
    135717, 407151, 678584, 950019, 1221453, 1492888, 1764324, 2035761, 2307198, 2578636, 2850076, 3121517, 3392960,
    3664405, 3935852, 4207301, 4478753, 4750208, 5021667, 5293129, 5564596, 5836067, 6107544, 6379027, 6650517,
    6922014, 7193520, 7465035, 7736561, 8008098, 8279648, 8551212, 8822793, 9094390, 9366008, 9637647, 9909310,
    10180999, 10452718, 10724469, 10996255, 11268081, 11539951, 11811868, 12083838, 12355865, 12627956, 12900118,
    13172356, 13444678, 13717093, 13989610, 14262237, 14534986, 14807869, 15080897, 15354084, 15627445, 15900996,
    16174755, 16448739, 16722970, 16997469, 17272261, 17547372, 17822828, 18098662, 18374904, 18651592, 18928763,
    19206458, 19484722, 19763603, 20043154, 20323430, 20604493, 20886408, 21169245, 21453081, 21737998, 22024086,
    22311440, 22600165, 22890372, 23182184, 23475732, 23771157, 24068614, 24368270, 24670306, 24974918, 25282321,
    25592748, 25906452, 26223710, 26544825, 26870129, 27199985, 27534795, 27874999, 28221086, 28573596, 28933131,
    29300362, 29676040, 30061011, 30456229, 30862780, 31281899, 31715011, 32163758, 32630056, 33116156, 33624729,
    34158977, 34722785, 35320936, 35959415, 36645851, 37390194, 38205780, 39111092, 40132856, 41311907, 42715508,
    44467193, 46836997, 50652659
};

/* Where the midpoint of entries k and k + 1 ends in a half digit, the published threshold is rounded away from zero;
 * everywhere else toward zero. Nothing is published for 2 and 3 bits: toward zero there. */
static const int tq4_away[] = {0, 3, -1};
static const int tq5_away[] = {1, -1};
static const int tq6_away[] = {16, 19, 21, 28, -1};
static const int tq8_away[] = {1,  2,  4,  10, 11, 12, 14, 16, 21, 22, 24, 26, 31, 32, 36,  37,
                               45, 49, 52, 57, 60, 61, 63, 72, 74, 82, 90, 91, 112, 122, -1};
static const int tq_none[] = {-1};

/* A quotient by 1e7 rounded to double and then to float is the float nearest the decimal: 7 digits cannot come closer
 * to the middle of two floats than double resolves. */
static void tq_book(unsigned bits, const int *value, const int *away)
{
    struct book *book = new_book(AURA_TABLE_TQ, bits);
    unsigned n = book->levels / 2;
    double half[MAX_HALF], between[MAX_HALF];

    for (unsigned i = 0; i < n; i++)
        half[i] = value[i] / 1e7;
    for (unsigned i = 0; i + 1 < n; i++) {
        int sum = value[i] + value[i + 1], up = sum % 2 && *away == (int)i;
        away += up;
        between[i] = (sum / 2 + up) / 1e7;
    }
    if (*away != -1)
        fail("a rounding is listed for a midpoint without a half digit");
    mirror(book, half, between, n);
}

static void make_tq(void)
{
    tq_book(2, tq2, tq_none);
    tq_book(3, tq3, tq_none);
    tq_book(4, tq4, tq4_away);
    tq_book(5, tq5, tq5_away);
    tq_book(6, tq6, tq6_away);
    tq_book(8, tq8, tq8_away);
}

/* ---- the text -------------------------------------------------------------------------------------------------- */

static const char *const table_name[] = {"", "exact", "grid", "aura", "tq"};

/* 9 digits bring a float back exactly; C wants a point or an exponent before the f. */
static const char *float_text(char text[32], float x)
{
    snprintf(text, 30, "%.9g", x);
    return strcat(text, strpbrk(text, ".e") ? "f" : ".f");
}

static void print_array(const struct book *book, const char *what, const float *value, unsigned count)
{
    size_t column = 100;
    printf("\nstatic const float %s%u_%s[%u] = {", table_name[book->table], book->bits, what, count);
    for (unsigned i = 0; i < count; i++) {
        char text[32];
        size_t length = strlen(float_text(text, value[i])) + 2;
        if (column + length > 100) {
            printf("\n   ");
            column = 3;
        }
        column += length;
        printf(" %s,", text);
    }
    printf("\n};\n");
}

static void print_row(const struct book *book)
{
    const char *name = table_name[book->table];
    char sigma[32], step[32];
    printf("    {%u, %u, %u, %u, %s, %s, ", 16 * (unsigned)book->table + book->bits, book->bits, book->levels,
           book->uniform, float_text(sigma, book->sigma), float_text(step, book->step));
    printf("%s%u_centroid, %s%u_threshold},\n", name, book->bits, name, book->bits);
}

int main(void)
{
    for (unsigned bits = 1; bits <= 8; bits++)
        make_exact(bits);
    make_grid();
    make_aura();
    make_tq();

    printf("/* cc -O2 tool/make_codebook.c -lm -o make_codebook && ./make_codebook > src/codebook.c */\n"
           "#include \"codebook.h\"\n");
    for (unsigned i = 0; i < book_count; i++) {
        print_array(&books[i], "centroid", books[i].centroid, books[i].levels);
        print_array(&books[i], "threshold", books[i].threshold, books[i].levels - 1);
    }
    printf("\nconst aura_codebook aura_codebook_list[] = {\n");
    for (unsigned i = 0; i < book_count; i++)
        print_row(&books[i]);
    printf("};\n\nconst size_t aura_codebook_count = sizeof aura_codebook_list / sizeof *aura_codebook_list;\n");
    return fflush(stdout) || ferror(stdout);
}
