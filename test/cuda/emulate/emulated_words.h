/* What src/cuda/words.cuh says in the device's own instructions, in C++. */
#ifndef AURA_EMULATED_WORDS_H
#define AURA_EMULATED_WORDS_H

static inline float largest_or_nan(float x, float y)
{
    return x != x || y != y ? NAN : fmaxf(x, y);
}

static inline uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector)
{
    const uint64_t both = (uint64_t)b << 32 | a;
    uint32_t d = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t s = selector >> 4 * i & 15, byte = (uint32_t)(both >> 8 * (s & 7)) & 255;
        d |= (s & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    return d;
}

static inline uint32_t upper_half(uint32_t x)
{
    return x >> 16;
}

static inline uint32_t lower_turned(uint32_t x)
{
    return ~0u - (x & 0xffff);
}

static inline uint32_t upper_turned(uint32_t x)
{
    return ~0u - (x >> 16);
}

static inline uint32_t picked(uint32_t mask, uint32_t x, uint32_t y)
{
    return (x & mask) | (y & ~mask);
}

static inline uint32_t picked_turned(uint32_t mask, uint32_t x, uint32_t y)
{
    return picked(mask, ~x, y);
}

static inline float exp2_approx(float x)
{
    return exp2f(x);
}

static inline int warp_sum(int x)
{
    for (int far = 16; far; far /= 2)
        x += __shfl_xor_sync(~0u, x, far);
    return x;
}

static inline float warp_largest(float x)
{
    for (int far = 16; far; far /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, far));
    return x;
}

static inline uint32_t arrive(uint32_t *counter, uint32_t by = 1)
{
    return atomicAdd(counter, by);
}

static inline uint32_t load_acquire(const uint32_t *p)
{
    return *p;
}

static inline uint32_t load_relaxed(const uint32_t *p)
{
    return *p;
}

/* Blocks run one after the other: who waits for another one, and not for other warps of his own, waits in vain. */
void wait_a_little();

static inline uint16_t bf16_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return x != x ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float reciprocal_approx(float x)
{
    return 1 / x;
}

static inline float rsqrt_approx(float x)
{
    return 1 / sqrtf(x);
}

static inline uint4 load_once(const void *p)
{
    return *(const uint4 *)p;
}

static inline void store_once_if(bool wanted, void *p, uint4 v)
{
    if (wanted)
        *(uint4 *)p = v;
}

static inline void store_if(bool wanted, void *p, uint4 v)
{
    store_once_if(wanted, p, v);
}

static inline void prefetch(const void *)
{
}

static inline void prefetch_bytes(const void *, uint32_t)
{
}

/* As late as it may be: what is read before copies_arrived() is what was there before. */
void copy_ahead(void *shared, const void *from);
static inline void copy_ahead_if(bool wanted, void *shared, const void *from)
{
    if (wanted)
        copy_ahead(shared, from);
}
void copies_arrived();
void copies_grouped();
void copies_but_last_arrived();

static inline uint32_t lane_number()
{
    return threadIdx.x % 32;
}

static inline uint32_t kept(uint32_t x)
{
    return x;
}

static inline const uint8_t *kept(const uint8_t *p)
{
    return p;
}

static inline uint32_t take_next(uint32_t *shared)
{
    return (*shared)++;
}

static inline uint8_t *kept_shared(uint8_t *p)
{
    return p;
}

void lose_everything();

extern uint8_t emulate_shared[];

static inline uint8_t *dynamic_shared()
{
    return emulate_shared;
}

static inline uint32_t shared_place(const void *p)
{
    return (uint32_t)((const uint8_t *)p - emulate_shared);
}

template <class T>
static inline T shared_at(uint32_t place)
{
    return *(const T *)(emulate_shared + place);
}

/* One step of one lane: lane (g, t) has rows g and g + 8 of A and of the result, column g of B, columns 2 t and 2 t + 1 of the
 * result; of the summed axis, words t and t + 4. */
template <class A, class B>
static inline void emulate_mma(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1,
                               const int *c)
{
    const uint32_t mine[6] = {a0, a1, a2, a3, b0, b1};
    const uint32_t (*all)[8] = emulate_warp(mine, 6);
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int i = 0; i < 4; i++) {
        const int row = i / 2, column = 2 * t + i % 2;
        int sum = c[i];
        for (int k = 0; k < 8; k++) {
            const uint32_t x = all[4 * g + k % 4][row + (k < 4 ? 0 : 2)], y = all[4 * column + k % 4][k < 4 ? 4 : 5];
            for (int s = 0; s < 32; s += 8)
                sum += (int)(A)(x >> s) * (int)(B)(y >> s);
        }
        d[i] = sum;
    }
}
#define MMA_BYTES(name, a_type, b_type)                                                                                \
    static inline void name(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1, \
                            const int *c)                                                                              \
    {                                                                                                                  \
        emulate_mma<a_type, b_type>(d, a0, a1, a2, a3, b0, b1, c);                                                     \
    }
MMA_BYTES(mma_u8s8, uint8_t, int8_t)
MMA_BYTES(mma_s8s8, int8_t, int8_t)
MMA_BYTES(mma_u8u8, uint8_t, uint8_t)
MMA_BYTES(mma_s8u8, int8_t, uint8_t)
#undef MMA_BYTES

static inline float emulate_f16(uint16_t bits) { return aura_f32_from_f16(bits); }
static inline float emulate_bf16(uint16_t bits) { return __uint_as_float((uint32_t)bits << 16); }

template <float NUMBER(uint16_t)>
static inline void emulate_mma_numbers(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    const uint32_t mine[6] = {a0, a1, a2, a3, b0, b1};
    const uint32_t (*all)[8] = emulate_warp(mine, 6);
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int i = 0; i < 4; i++) {
        const int row = i / 2, column = 2 * t + i % 2;
        float sum = 0;
        for (int k = 0; k < 8; k++) {
            const uint32_t x = all[4 * g + k % 4][row + (k < 4 ? 0 : 2)], y = all[4 * column + k % 4][k < 4 ? 4 : 5];
            for (int s = 0; s < 32; s += 16)
                sum += NUMBER((uint16_t)(x >> s)) * NUMBER((uint16_t)(y >> s));
        }
        c[i] += sum;
    }
}
#define MMA_NUMBERS(name, number)                                                                                      \
    static inline void name(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) \
    {                                                                                                                  \
        emulate_mma_numbers<number>(c, a0, a1, a2, a3, b0, b1);                                                        \
    }
MMA_NUMBERS(mma_f16, emulate_f16)
MMA_NUMBERS(mma_bf16, emulate_bf16)
#undef MMA_NUMBERS

/* What copy_tile() copies from. */
struct tile_map {
    const uint8_t *pages;
    size_t head_bytes;
    uint32_t box_rows;
};

static inline void emulate_matrices(uint32_t (&r)[4], const void *row, bool turned)
{
    uint32_t mine[2];
    memcpy(mine, &row, sizeof row);
    const uint32_t (*all)[8] = emulate_warp(mine, 2);
    const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (uint32_t m = 0; m < 4; m++) {
        r[m] = 0;
        for (uint32_t i = 0; i < 2; i++) {
            const uint16_t *from;
            memcpy(&from, all[8 * m + (turned ? 2 * t + i : g)], sizeof from);
            r[m] |= (uint32_t)from[turned ? g : 2 * t + i] << 16 * i;
        }
    }
    emulate_warp(NULL, 0); /* none may write there before all have read */
}
static inline void load_matrices(uint32_t (&r)[4], const void *row) { emulate_matrices(r, row, false); }
static inline void load_matrices_turned(uint32_t (&r)[4], const void *row) { emulate_matrices(r, row, true); }

#endif
