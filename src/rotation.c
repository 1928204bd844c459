/* Hadamard matrices for head sizes that are not powers of two, and the signs that make a rotation of one.
 *
 * dim = odd * 2^e. A power of two takes Sylvester's matrix, entry (-1)^popcount(i & j). Otherwise the matrix is a
 * Kronecker product Paley(m) (x) Sylvester(dim / m) with the smallest m = odd * 2^f, f >= 2, that Paley's construction
 * gives over a prime field: 80 = 20 * 4, 96 = 12 * 8, 112 = 28 * 4, 192 = 12 * 16, 320 = 20 * 16, 576 = 36 * 16. */
#include "base/exact.h"
#include "rotation.h"

#include <math.h>
#include <string.h>

static int is_prime(uint32_t n)
{
    if (n < 2)
        return 0;
    for (uint32_t d = 2; d * d <= n; d++)
        if (n % d == 0)
            return 0;
    return 1;
}

/* The prime q of the construction: m = q + 1 with q = 3 mod 4 (type I), or m = 2 (q + 1) with q = 1 mod 4 (type II). */
static uint32_t paley_prime(uint32_t m)
{
    if (m % 4 == 0 && is_prime(m - 1))
        return m - 1;
    if (m % 4 == 0 && m / 2 % 4 == 2 && is_prime(m / 2 - 1))
        return m / 2 - 1;
    return 0;
}

uint32_t aura_paley_order(uint32_t dim)
{
    uint32_t odd = dim;
    while (odd && odd % 2 == 0)
        odd /= 2;
    if (odd == 1)
        return 1;
    for (uint32_t m = 4 * odd; m && m <= AURA_MAX_PALEY && dim % m == 0; m *= 2)
        if (paley_prime(m))
            return m;
    return 0;
}

uint64_t aura_paley_residues(uint32_t order)
{
    uint32_t q = paley_prime(order);
    uint64_t squares = 0;
    for (uint32_t k = 1; k < q; k++)
        squares |= 1ull << (k * k % q);
    return squares;
}

/* Type I:  H = I + S with S = [0 1; -1 Q], Q[a][b] = chi(a - b), chi = +1 on squares, -1 on the rest, 0 at 0.
 * Type II: H = C (x) [1 1; 1 -1] + I (x) [1 -1; -1 -1] with the symmetric C = [0 1; 1 Q]. */
int aura_paley_negative(uint32_t order, uint64_t residues, uint32_t i, uint32_t j)
{
    uint32_t q = paley_prime(order);
    int type2 = order != q + 1;
    uint32_t a = type2 ? i / 2 : i, b = type2 ? j / 2 : j; /* row and column of S or C */
    int negative = 0;
    if (a == b)
        return type2 ? (i & 1) | (j & 1) : 0;
    if (a > 0 && b > 0)
        negative = !(residues >> ((a + q - b) % q) & 1);
    else if (!type2)
        negative = b == 0; /* the first column of S is -1 */
    return type2 ? negative ^ (int)(i & j & 1) : negative;
}

int aura_rotation_plan_init(struct aura_rotation_plan *plan, uint32_t dim, const uint8_t *signs, const float *balance,
                            int transposed)
{
    uint32_t outer = aura_paley_order(dim);
    if (!outer)
        return 0;
    plan->dim = dim;
    plan->outer = outer;
    plan->inner = dim / outer;
    plan->transposed = transposed;
    plan->norm = (float)(1.0 / sqrt((double)dim));
    plan->balance = balance;
    memset(plan->negative, 0, sizeof plan->negative);
    for (uint32_t d = 0; signs && d < dim; d++)
        plan->negative[d / AURA_LANES] |= (uint16_t)((signs[d / 8] >> (d % 8) & 1) << (d % AURA_LANES));
    if (outer == 1)
        return 1;
    uint64_t residues = aura_paley_residues(outer);
    memset(plan->outer_negative, 0, sizeof plan->outer_negative);
    for (uint32_t row = 0; row < outer; row++)
        for (uint32_t column = 0; column < outer; column++) {
            if (!(transposed ? aura_paley_negative(outer, residues, column, row)
                             : aura_paley_negative(outer, residues, row, column)))
                continue;
            for (uint32_t d = row * plan->inner; d < (row + 1) * plan->inner; d++)
                plan->outer_negative[d / AURA_LANES * outer + column] |= (uint16_t)(1u << d % AURA_LANES);
        }
    return 1;
}
