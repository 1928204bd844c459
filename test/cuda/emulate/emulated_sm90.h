/* What src/cuda/words_sm90.cuh says in the instructions of sm_90a, in C++. */
#ifndef AURA_EMULATED_SM90_H
#define AURA_EMULATED_SM90_H

/* Barriers, and copies as late as they may be: when no thread can go on. */
void meeting_init(uint64_t *at, uint32_t count);
void meeting_arrive(uint64_t *at);
void meeting_expect(uint64_t *at, uint32_t bytes);
void meeting_wait(uint64_t *at, uint32_t parity);
void copy_bulk(void *shared, const void *from, uint32_t bytes, uint64_t *at);
void meet_groups();

static inline void fence_engines() {}
static inline uint4 load_shared16(const void *shared) { return *(const uint4 *)shared; }
static inline uint2 load_shared8(const void *shared) { return *(const uint2 *)shared; }
static inline void fence_products() {}
template <int N> static inline void fewer_registers() {}
template <int N> static inline void more_registers() {}
static inline void products_begin() {}
template <class T, int N> static inline void sums_are_there(T (&)[N]) {}
static inline void products_grouped() {}
template <int N> static inline void products_but_last_done() {}

static inline uint64_t operand_at(const void *shared)
{
    return (uint64_t)(uintptr_t)shared / 16;
}

/* Number k of row r of an operand. */
static inline float emulate_operand(uint64_t operand, uint32_t r, uint32_t k)
{
    uintptr_t at = (uintptr_t)operand * 16 + r / 8 * 1024 + r % 8 * 128 + 2 * k;
    at ^= (at / 128 & 7) << 4;
    return aura_f32_from_f16(*(const uint16_t *)at);
}

/* What a lane has of D += A B, its two rows of A being given. */
template <int N>
static inline void emulate_product(float (&d)[N], const float (&a)[2][16], uint64_t b)
{
    const uint32_t t = threadIdx.x % 4;
    for (int j = 0; j < N / 4; j++)
        for (int e = 0; e < 2; e++) {
            float sum[2] = {0, 0};
            for (int k = 0; k < 16; k++) {
                const float x = emulate_operand(b, 8 * j + 2 * t + e, k);
                sum[0] += a[0][k] * x, sum[1] += a[1][k] * x;
            }
            d[4 * j + e] += sum[0], d[4 * j + 2 + e] += sum[1];
        }
}

template <int N>
static inline void product_shared(float (&d)[N], uint64_t a, uint64_t b, bool add)
{
    const uint32_t row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    float x[2][16];
    for (int k = 0; k < 16; k++)
        x[0][k] = emulate_operand(a, row, k), x[1][k] = emulate_operand(a, row + 8, k);
    for (int i = 0; i < N && !add; i++)
        d[i] = 0;
    emulate_product(d, x, b);
}

template <int N>
static inline void product_registers(float (&d)[N], const uint32_t *a, uint64_t b)
{
    const uint32_t (*all)[8] = emulate_warp(a, 4), first = threadIdx.x % 32 / 4 * 4;
    float x[2][16];
    for (int k = 0; k < 16; k++)
        for (int r = 0; r < 2; r++)
            x[r][k] = aura_f32_from_f16((uint16_t)(all[first + k % 8 / 2][r + k / 8 * 2] >> k % 2 * 16));
    emulate_product(d, x, b);
}

/* Products of bytes: 32 of the summed axis. */
template <class A, int N>
static inline void emulate_bytes(int (&d)[N], const uint32_t *a, uint64_t b)
{
    const uint32_t (*all)[8] = emulate_warp(a, 4), first = threadIdx.x % 32 / 4 * 4, t = threadIdx.x % 4;
    for (int j = 0; j < N / 4; j++)
        for (int e = 0; e < 2; e++)
            for (int k = 0; k < 32; k++) {
                uintptr_t at = (uintptr_t)b * 16 + j * 1024 + (2 * t + e) * 128 + k;
                at ^= (at / 128 & 7) << 4;
                for (int r = 0; r < 2; r++)
                    d[4 * j + 2 * r + e] += (int)(A)(all[first + k % 16 / 4][r + k / 16 * 2] >> k % 4 * 8) * *(const int8_t *)at;
            }
}
template <int N>
static inline void product_u8s8(int (&d)[N], const uint32_t *a, uint64_t b) { emulate_bytes<uint8_t>(d, a, b); }
template <int N>
static inline void product_s8s8(int (&d)[N], const uint32_t *a, uint64_t b) { emulate_bytes<int8_t>(d, a, b); }

bool group_any(uint32_t group, bool condition);
static inline void group_meets(uint32_t group) { group_any(group, false); }

static inline void store_matrices_turned(void *row, const uint32_t (&r)[4])
{
    uint32_t mine[2];
    memcpy(mine, &row, sizeof row);
    const uint32_t (*all)[8] = emulate_warp(mine, 2);
    const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (uint32_t m = 0; m < 4; m++)
        for (uint32_t i = 0; i < 2; i++) {
            uint16_t *to;
            memcpy(&to, all[8 * m + 2 * t + i], sizeof to);
            to[g] = (uint16_t)(r[m] >> 16 * i);
        }
    emulate_warp(NULL, 0);
}

void copy_tile(void *shared, const struct tile_map *map, uint32_t row, uint32_t head, uint64_t *at);

#endif
