/* What the dot products of ARM can do beyond others: each lane's four bytes times four bytes out of a vector of 16. Included after
 * neon.h by dotprod.c and i8mm.c. */
#ifndef AURA_CPU_LANES_H
#define AURA_CPU_LANES_H

/* clang makes one instruction of the two. */
#if defined(__clang__) && __clang_major__ < 16
#define vdotq_laneq_s32(sum, a, b, lane) vdotq_s32(sum, a, vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(b), lane)))
#define vmmlaq_s32(sum, a, b) \
    ((int32x4_t)__builtin_neon_vmmlaq_v((int8x16_t)(sum), (int8x16_t)(a), (int8x16_t)(b), 34))
#define vusmmlaq_s32(sum, a, b) \
    ((int32x4_t)__builtin_neon_vusmmlaq_v((int8x16_t)(sum), (int8x16_t)(a), (int8x16_t)(b), 34))
#endif

/* 16 bytes of a query or of weights: four for each of four quads. */
typedef uint32x4_t fours;
AURA_INLINE fours fours_load(const void *p, uint32_t flip) { return veorq_u32(load_quarter(p), vdupq_n_u32(flip)); }

/* Each lane of sum + its four products of signed bytes, with those of `lane` of b. Lanes are constants in the instruction. */
AURA_INLINE uint32x4_t dot_lane(uint32x4_t sum, uint32x4_t a, fours b, const int lane)
{
    const int32x4_t s = vreinterpretq_s32_u32(sum);
    const int8x16_t x = vreinterpretq_s8_u32(a), y = vreinterpretq_s8_u32(b);
    switch (lane) {
    case 0: return vreinterpretq_u32_s32(vdotq_laneq_s32(s, x, y, 0));
    case 1: return vreinterpretq_u32_s32(vdotq_laneq_s32(s, x, y, 1));
    case 2: return vreinterpretq_u32_s32(vdotq_laneq_s32(s, x, y, 2));
    default: return vreinterpretq_u32_s32(vdotq_laneq_s32(s, x, y, 3));
    }
}
AURA_INLINE ivec ivec_dot_key_lane(ivec sum, ivec keys, fours query, const int lane)
{
    return ivec_of(dot_lane(sum.val[0], keys.val[0], query, lane), dot_lane(sum.val[1], keys.val[1], query, lane),
                   dot_lane(sum.val[2], keys.val[2], query, lane), dot_lane(sum.val[3], keys.val[3], query, lane));
}

/* Two quads of four lanes to memory; two quads of 16 lanes from there. */
AURA_INLINE void pair_store(uint8_t *to, uint32x4_t even, uint32x4_t odd)
{
    vst1q_u8(to, vreinterpretq_u8_u32(even)), vst1q_u8(to + 16, vreinterpretq_u8_u32(odd));
}
typedef struct {
    ivec a, b;
} ivec2;
AURA_INLINE ivec2 pair_load(const uint8_t *p)
{
    ivec2 pair;
    AURA_UNROLL
    for (int i = 0; i < 4; i++)
        pair.a.val[i] = load_quarter(p + 32 * i), pair.b.val[i] = load_quarter(p + 32 * i + 16);
    return pair;
}

/* What was stored at p is not kept in registers: gcc would do that with more vectors than there are registers. */
AURA_INLINE void lane_written(uint8_t *p) { __asm__("" : : "r"(p) : "memory"); }
/* The same address, of which gcc does not know that: what it made of the words there before, it makes again. */
AURA_INLINE const uint32_t *lane_again(const uint32_t *p)
{
    __asm__("" : "+r"(p));
    return p;
}

/* Rows that rows_multiply takes at once. Eight rows of two registers of sums are half of all registers; the rest is for what they
 * are multiplied by. */
enum { LANE_ROWS = 8 };

#endif
