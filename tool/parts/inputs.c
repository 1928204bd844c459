#include "inputs.h"

#include <math.h>
#include <string.h>

#include "../../src/variants.h"

uint64_t random_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

double random_uniform(uint64_t *state)
{
    return (double)(random_bits(state) >> 11) * 0x1p-53;
}

/* Twelve uniforms: near enough to normal for a test, and free of libm, whose last bits differ between systems. */
float random_normal(uint64_t *state)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += random_uniform(state);
    return (float)sum;
}

int pick(uint64_t *state, int n)
{
    return (int)(random_bits(state) % (uint64_t)n);
}

const char *vector_kind_name(enum vector_kind kind)
{
    static const char *const names[] = {"normal", "outliers", "one-hot", "constant", "zero",
                                        "signed-zero", "tiny", "denormal", "huge", "mixed"};
    return names[kind];
}

static float one(enum vector_kind kind, size_t i, size_t hot, uint64_t *state)
{
    switch (kind) {
    case OUTLIERS: return random_normal(state) * (random_bits(state) % 16 ? 1.f : 50.f);
    case ONE_HOT: return i == hot ? 3.f : 0.f;
    case CONSTANT: return -1.5f;
    case ZERO: return 0.f;
    case SIGNED_ZERO: return random_bits(state) & 1 ? 0.f : -0.f;
    case TINY: return random_normal(state) * 0x1p-53f;
    case DENORMAL: return random_normal(state) * 0x1p-140f;
    case HUGE_VALUES: return random_normal(state) * 0x1p36f;
    case MIXED: return ldexpf(random_normal(state), (int)(random_bits(state) % 81) - 60);
    default: return random_normal(state);
    }
}

void fill_vector(float *x, size_t n, enum vector_kind kind, uint64_t *state)
{
    size_t hot = n ? random_bits(state) % n : 0;
    for (size_t i = 0; i < n; i++)
        x[i] = one(kind, i, hot, state);
}

float scale_of_kind(int kind, uint64_t *state)
{
    switch (kind) {
    case 1: return 0;
    case 2: return -(float)random_uniform(state);
    case 3: return 0x1p-140f;
    case 4: return 0x1p100f;
    default: return 0.1f + (float)random_uniform(state);
    }
}

const uint32_t check_dims[] = {AURA_DIMS(AURA_DIM_ITEM) 8, 16, 24, 32, 40, 48, 56, 72, 88, 120, 160, 224, 320, 576, 640, 768, 1024};
const size_t n_check_dims = sizeof check_dims / sizeof *check_dims;
