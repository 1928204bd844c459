/* neon: what every 64-bit ARM has. A vec is four 128-bit registers of 4 floats, so that its 16 lanes are those of
 * ref.c. Included after AURA_TARGET, if there is one, by a file that has included arm_neon.h before it. */
#ifndef AURA_CPU_NEON_H
#define AURA_CPU_NEON_H

/* clang before 16 declares these only where the whole file is compiled for them; 34 is its name for int32x4_t. */
#if defined(__clang__) && __clang_major__ < 16
#define vdotq_s32(sum, a, b) \
    ((int32x4_t)__builtin_neon_vdotq_v((int8x16_t)(sum), (int8x16_t)(a), (int8x16_t)(b), 34))
#define vusdotq_s32(sum, a, b) \
    ((int32x4_t)__builtin_neon_vusdotq_v((int8x16_t)(sum), (int8x16_t)(a), (int8x16_t)(b), 34))
#endif

typedef float32x4x4_t vec;
typedef uint32x4x4_t ivec;

AURA_INLINE vec vec_of(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d)
{
    vec v = {{a, b, c, d}};
    return v;
}
AURA_INLINE vec vec_load(const float *p)
{
    return vec_of(vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12));
}
AURA_INLINE void vec_store(float *p, vec v)
{
    for (int i = 0; i < 4; i++)
        vst1q_f32(p + 4 * i, v.val[i]);
}
/* The first n lanes, n = 8 or 16 as every dim is a multiple of 8; the others load or keep as 0, or are not stored. */
AURA_INLINE vec vec_load_n(const float *p, uint32_t n)
{
    float32x4_t zero = vdupq_n_f32(0);
    return n > 8 ? vec_load(p) : vec_of(vld1q_f32(p), vld1q_f32(p + 4), zero, zero);
}
AURA_INLINE void vec_store_n(float *p, vec v, uint32_t n)
{
    for (uint32_t i = 0; i < n / 4; i++)
        vst1q_f32(p + 4 * i, v.val[i]);
}
AURA_INLINE vec vec_keep(vec v, uint32_t n)
{
    float32x4_t zero = vdupq_n_f32(0);
    return n > 8 ? v : vec_of(v.val[0], v.val[1], zero, zero);
}
AURA_INLINE vec vec_set1(float x)
{
    return vec_of(vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x));
}
AURA_INLINE vec vec_add(vec a, vec b)
{
    for (int i = 0; i < 4; i++)
        a.val[i] = vaddq_f32(a.val[i], b.val[i]);
    return a;
}
AURA_INLINE vec vec_sub(vec a, vec b)
{
    for (int i = 0; i < 4; i++)
        a.val[i] = vsubq_f32(a.val[i], b.val[i]);
    return a;
}
AURA_INLINE vec vec_mul(vec a, vec b)
{
    for (int i = 0; i < 4; i++)
        a.val[i] = vmulq_f32(a.val[i], b.val[i]);
    return a;
}
AURA_INLINE vec vec_max(vec a, vec b)
{
    for (int i = 0; i < 4; i++)
        a.val[i] = vmaxq_f32(a.val[i], b.val[i]);
    return a;
}
AURA_INLINE vec vec_min(vec a, vec b)
{
    for (int i = 0; i < 4; i++)
        a.val[i] = vminq_f32(a.val[i], b.val[i]);
    return a;
}
/* b in the lanes where x > limit, a in the others. */
AURA_INLINE vec vec_above(vec x, vec limit, vec a, vec b)
{
    for (int i = 0; i < 4; i++)
        a.val[i] = vbslq_f32(vcgtq_f32(x.val[i], limit.val[i]), b.val[i], a.val[i]);
    return a;
}
/* The bits of floats as integers, and of integers as floats. */
AURA_INLINE ivec ivec_of_vec(vec v)
{
    ivec bits;
    for (int i = 0; i < 4; i++)
        bits.val[i] = vreinterpretq_u32_f32(v.val[i]);
    return bits;
}
AURA_INLINE vec vec_of_ivec(ivec v)
{
    return vec_of(vreinterpretq_f32_u32(v.val[0]), vreinterpretq_f32_u32(v.val[1]), vreinterpretq_f32_u32(v.val[2]),
                  vreinterpretq_f32_u32(v.val[3]));
}
AURA_INLINE vec vec_abs(vec v)
{
    for (int i = 0; i < 4; i++)
        v.val[i] = vabsq_f32(v.val[i]);
    return v;
}
/* Negates the lanes whose bit is set. */
AURA_INLINE vec vec_flip(vec v, uint16_t lanes)
{
    static const uint32_t bits[4] = {1, 2, 4, 8};
    uint32x4_t bit = vld1q_u32(bits), sign = vdupq_n_u32(0x80000000);
    for (int i = 0; i < 4; i++) {
        uint32x4_t set = vandq_u32(vtstq_u32(vdupq_n_u32((uint32_t)lanes >> (4 * i)), bit), sign);
        v.val[i] = vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(v.val[i]), set));
    }
    return v;
}

/* Lane i becomes lane i ^ stride; stride 1, 2, 4 or 8. */
AURA_INLINE vec vec_swap(vec v, const int stride)
{
    if (stride == 8)
        return vec_of(v.val[2], v.val[3], v.val[0], v.val[1]);
    if (stride == 4)
        return vec_of(v.val[1], v.val[0], v.val[3], v.val[2]);
    for (int i = 0; i < 4; i++)
        v.val[i] = stride == 2 ? vextq_f32(v.val[i], v.val[i], 2) : vrev64q_f32(v.val[i]);
    return v;
}

/* `count` floats, 2 or more, over and over; from 16 on, just a load. */
AURA_INLINE vec vec_repeat(const float *p, uint32_t count)
{
    float32x4_t a, b;
    switch (count) {
    case 2: a = vcombine_f32(vld1_f32(p), vld1_f32(p)); return vec_of(a, a, a, a);
    case 4: a = vld1q_f32(p); return vec_of(a, a, a, a);
    case 8: a = vld1q_f32(p), b = vld1q_f32(p + 4); return vec_of(a, b, a, b);
    default: return vec_load(p);
    }
}

/* The sum of all lanes by halves: i and i + 8, then i and i + 4, + 2, + 1. */
AURA_INLINE float vec_sum(vec v)
{
    float32x4_t h4 = vaddq_f32(vaddq_f32(v.val[0], v.val[2]), vaddq_f32(v.val[1], v.val[3]));
    float32x2_t h2 = vadd_f32(vget_low_f32(h4), vget_high_f32(h4));
    return vget_lane_f32(h2, 0) + vget_lane_f32(h2, 1);
}
struct two {
    float first, second;
};
/* The sums of two vectors. */
AURA_INLINE struct two vec_sum2(vec a, vec b)
{
    struct two sums = {vec_sum(a), vec_sum(b)};
    return sums;
}
/* The largest lane. */
AURA_INLINE float vec_top(vec v)
{
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(v.val[0], v.val[1]), vmaxq_f32(v.val[2], v.val[3])));
}
/* top[i] = the largest lane of v[i]. */
AURA_INLINE void vec_tops(float *top, const vec *v, const int n)
{
    for (int i = 0; i < n; i++)
        top[i] = vec_top(v[i]);
}

AURA_INLINE ivec ivec_of(uint32x4_t a, uint32x4_t b, uint32x4_t c, uint32x4_t d)
{
    ivec v = {{a, b, c, d}};
    return v;
}
AURA_INLINE ivec ivec_zero(void)
{
    uint32x4_t zero = vdupq_n_u32(0);
    return ivec_of(zero, zero, zero, zero);
}
AURA_INLINE ivec ivec_add(ivec a, int x)
{
    for (int i = 0; i < 4; i++)
        a.val[i] = vaddq_u32(a.val[i], vdupq_n_u32((uint32_t)x));
    return a;
}
/* index + x in the lanes where v > limit. */
AURA_INLINE ivec ivec_add_where(ivec index, vec v, vec limit, int x)
{
    for (int i = 0; i < 4; i++) {
        uint32x4_t above = vcgtq_f32(v.val[i], limit.val[i]);
        index.val[i] = vaddq_u32(index.val[i], vandq_u32(above, vdupq_n_u32((uint32_t)x)));
    }
    return index;
}
/* 16 bytes to and from lanes. */
AURA_INLINE ivec widen_bytes(uint8x8_t first, uint8x8_t second)
{
    uint16x8_t lo = vmovl_u8(first), hi = vmovl_u8(second);
    ivec v = {{vmovl_u16(vget_low_u16(lo)), vmovl_high_u16(lo), vmovl_u16(vget_low_u16(hi)), vmovl_high_u16(hi)}};
    return v;
}
AURA_INLINE ivec ivec_bytes(uint64_t lo, uint64_t hi) { return widen_bytes(vcreate_u8(lo), vcreate_u8(hi)); }
AURA_INLINE ivec ivec_load8(const uint8_t *p) { return widen_bytes(vld1_u8(p), vld1_u8(p + 8)); }
AURA_INLINE void ivec_store8(uint8_t *p, ivec v)
{
    vst1_u8(p, vmovn_u16(vcombine_u16(vmovn_u32(v.val[0]), vmovn_u32(v.val[1]))));
    vst1_u8(p + 8, vmovn_u16(vcombine_u16(vmovn_u32(v.val[2]), vmovn_u32(v.val[3]))));
}

/* Entry index of a table of 2^bits floats. No gather here: four loads a register. `part`, its beginning in
 * registers, is for those who can permute more than 16. */
AURA_INLINE vec vec_lookup(const float *table, const vec *part, ivec index, const int bits)
{
    vec v;
    (void)part, (void)bits;
    for (int i = 0; i < 4; i++) {
        float32x4_t x = vdupq_n_f32(table[vgetq_lane_u32(index.val[i], 0)]);
        x = vsetq_lane_f32(table[vgetq_lane_u32(index.val[i], 1)], x, 1);
        x = vsetq_lane_f32(table[vgetq_lane_u32(index.val[i], 2)], x, 2);
        v.val[i] = vsetq_lane_f32(table[vgetq_lane_u32(index.val[i], 3)], x, 3);
    }
    return v;
}
/* tbl looks up bytes in 64: entry n is bytes 4 n to 4 n + 3. Only the lowest 4 bits of an index count. */
AURA_INLINE vec vec_lookup16(vec table, ivec index)
{
    uint8x16x4_t bytes;
    vec v;
    for (int i = 0; i < 4; i++)
        bytes.val[i] = vreinterpretq_u8_f32(table.val[i]);
    for (int i = 0; i < 4; i++) {
        uint32x4_t low = vandq_u32(index.val[i], vdupq_n_u32(15));
        uint32x4_t which = vmlaq_n_u32(vdupq_n_u32(0x03020100), low, 0x04040404);
        v.val[i] = vreinterpretq_f32_u8(vqtbl4q_u8(bytes, vreinterpretq_u8_u32(which)));
    }
    return v;
}

AURA_INLINE vec vec_fma(vec a, vec b, vec c)
{
    for (int i = 0; i < 4; i++)
        c.val[i] = vfmaq_f32(c.val[i], a.val[i], b.val[i]);
    return c;
}
/* b in the lanes whose bit is set, a in the others: every other lane, pair, four or eight. */
AURA_INLINE vec vec_blend(vec a, vec b, const uint16_t lanes)
{
    static const uint32_t bits[4] = {1, 2, 4, 8};
    for (int i = 0; i < 4; i++) {
        uint32x4_t set = vtstq_u32(vdupq_n_u32((uint32_t)lanes >> (4 * i)), vld1q_u32(bits));
        a.val[i] = vbslq_f32(set, b.val[i], a.val[i]);
    }
    return a;
}
/* 16 or, with n = 8, 8 numbers of 16 bits, at any address. */
AURA_INLINE uint16x4_t load_halves(const uint8_t *p) { return vreinterpret_u16_u8(vld1_u8(p)); }
AURA_INLINE vec vec_load_f16(const uint8_t *p, uint32_t n)
{
    vec v = vec_set1(0);
    for (uint32_t i = 0; i < n / 4; i++)
        v.val[i] = vcvt_f32_f16(vreinterpret_f16_u16(load_halves(p + 8 * i)));
    return v;
}
AURA_INLINE vec vec_load_bf16(const uint8_t *p, uint32_t n)
{
    vec v = vec_set1(0);
    for (uint32_t i = 0; i < n / 4; i++)
        v.val[i] = vreinterpretq_f32_u32(vshll_n_u16(load_halves(p + 8 * i), 16));
    return v;
}
/* 16 floats as f16. */
AURA_INLINE void vec_store_f16(uint8_t *p, vec v)
{
    for (int i = 0; i < 4; i++)
        vst1_u8(p + 8 * i, vreinterpret_u8_f16(vcvt_f16_f32(v.val[i])));
}
/* Lanes 0 to 7: lo >> bits * i; lanes 8 to 15: hi >> (bits * (i - 8) + more). */
AURA_INLINE ivec ivec_spread(uint32_t lo, uint32_t hi, const int bits, const int more)
{
    const int32_t count[4] = {0, -bits, -2 * bits, -3 * bits};
    int32x4_t shift = vld1q_s32(count);
    ivec v = {{vshlq_u32(vdupq_n_u32(lo), shift), vshlq_u32(vdupq_n_u32(lo), vsubq_s32(shift, vdupq_n_s32(4 * bits))),
               vshlq_u32(vdupq_n_u32(hi), vsubq_s32(shift, vdupq_n_s32(more))),
               vshlq_u32(vdupq_n_u32(hi), vsubq_s32(shift, vdupq_n_s32(4 * bits + more)))}};
    return v;
}
/* To the nearest whole number; v * 2^n for whole n, where the result is normal; v, but 0 where x < limit. */
AURA_INLINE vec vec_round(vec v)
{
    for (int i = 0; i < 4; i++)
        v.val[i] = vrndnq_f32(v.val[i]);
    return v;
}
AURA_INLINE vec vec_exponent(vec v, vec n)
{
    for (int i = 0; i < 4; i++) {
        int32x4_t add = vshlq_n_s32(vcvtnq_s32_f32(n.val[i]), 23);
        v.val[i] = vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(v.val[i]), add));
    }
    return v;
}
AURA_INLINE vec vec_below(vec x, float limit, vec v)
{
    for (int i = 0; i < 4; i++) {
        uint32x4_t below = vcltq_f32(x.val[i], vdupq_n_f32(limit));
        v.val[i] = vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(v.val[i]), below));
    }
    return v;
}

/* 32 registers, four a vector: 4 heads of one token, or of one vector of the accumulator. */
enum { SCORE_TOGETHER = 1, VALUE_VECS = 1, ENCODE_FITS = 1 };
struct sums {
    float dot[ENCODE_FITS], size2[ENCODE_FITS];
};
/* The sums of as many vectors. */
AURA_INLINE struct sums vec_sums(const vec *dots, const vec *squares)
{
    const struct two two = vec_sum2(dots[0], squares[0]);
    struct sums sums = {{two.first}, {two.second}};
    return sums;
}

AURA_INLINE uint64_t pack8(uint64_t bytes, const int bits) { return bits_pack8(bytes, bits); }
AURA_INLINE uint64_t unpack8(uint64_t packed, const int bits) { return bits_unpack8(packed, bits); }

/* ---- integers of a tile: an ivec is also 64 bytes ----
 * Without loops over the four registers: gcc 12 would keep arrays of such vectors in memory. */

AURA_INLINE uint32x4_t load_quarter(const uint8_t *p) { return vreinterpretq_u32_u8(vld1q_u8(p)); }
AURA_INLINE ivec ivec_load(const void *p)
{
    const uint8_t *b = p;
    return ivec_of(load_quarter(b), load_quarter(b + 16), load_quarter(b + 32), load_quarter(b + 48));
}
AURA_INLINE void ivec_store(void *p, ivec v)
{
    for (int i = 0; i < 4; i++)
        vst1q_u8((uint8_t *)p + 16 * i, vreinterpretq_u8_u32(v.val[i]));
}
/* The low 16 bits of lanes, at any address. */
AURA_INLINE void ivec_store16(uint8_t *p, ivec v)
{
    for (int i = 0; i < 4; i++)
        vst1_u8(p + 8 * i, vreinterpret_u8_u16(vmovn_u32(v.val[i])));
}
AURA_INLINE ivec ivec_set1(int32_t x)
{
    uint32x4_t all = vdupq_n_u32((uint32_t)x);
    return ivec_of(all, all, all, all);
}
AURA_INLINE ivec ivec_plus(ivec a, ivec b)
{
    return ivec_of(vaddq_u32(a.val[0], b.val[0]), vaddq_u32(a.val[1], b.val[1]), vaddq_u32(a.val[2], b.val[2]),
                   vaddq_u32(a.val[3], b.val[3]));
}
AURA_INLINE ivec ivec_xor(ivec a, ivec b)
{
    return ivec_of(veorq_u32(a.val[0], b.val[0]), veorq_u32(a.val[1], b.val[1]), veorq_u32(a.val[2], b.val[2]),
                   veorq_u32(a.val[3], b.val[3]));
}
/* Three at once, as AVX-512 has it; with two calls a wrong bit of a word would cancel itself, and no check would see it. */
AURA_INLINE ivec ivec_xor3(ivec a, ivec b, ivec c)
{
    return ivec_of(veorq_u32(veorq_u32(a.val[0], b.val[0]), c.val[0]), veorq_u32(veorq_u32(a.val[1], b.val[1]), c.val[1]),
                   veorq_u32(veorq_u32(a.val[2], b.val[2]), c.val[2]), veorq_u32(veorq_u32(a.val[3], b.val[3]), c.val[3]));
}
/* Whether some lane of a v that was noted had none of the bits `places`: the smallest of what they had is kept. */
typedef ivec ties;
#define TIES_NONE ivec_set1(0x7fffffff)
AURA_INLINE ties ties_note(ties t, ivec v, uint32_t places)
{
    for (int i = 0; i < 4; i++)
        t.val[i] = vminq_u32(t.val[i], vandq_u32(v.val[i], vdupq_n_u32(places)));
    return t;
}
AURA_INLINE int ties_found(ties t)
{
    return vminvq_u32(vminq_u32(vminq_u32(t.val[0], t.val[1]), vminq_u32(t.val[2], t.val[3]))) == 0;
}
/* Shifts by a constant: left, right, right with the sign. Written as operators, which take a constant that a function
 * was called with also where nothing is optimised; the intrinsics do not. */
AURA_INLINE ivec ivec_shl(ivec v, const int n)
{
    return ivec_of(v.val[0] << n, v.val[1] << n, v.val[2] << n, v.val[3] << n);
}
AURA_INLINE ivec ivec_shr(ivec v, const int n)
{
    return n ? ivec_of(v.val[0] >> n, v.val[1] >> n, v.val[2] >> n, v.val[3] >> n) : v;
}
/* 32 bits of lanes from bit n on, n from 1 to 3, of which `after` has those that `here` has not. */
AURA_INLINE uint32x4_t shr2_quarter(uint32x4_t here, uint32x4_t after, const int n)
{
    switch (n) { /* a constant in the instruction */
    case 1: return vsliq_n_u32(here >> 1, after, 31);
    case 2: return vsliq_n_u32(here >> 2, after, 30);
    default: return vsliq_n_u32(here >> 3, after, 29);
    }
}
AURA_INLINE ivec ivec_shr2(ivec here, ivec after, const int n)
{
    return ivec_of(shr2_quarter(here.val[0], after.val[0], n), shr2_quarter(here.val[1], after.val[1], n),
                   shr2_quarter(here.val[2], after.val[2], n), shr2_quarter(here.val[3], after.val[3], n));
}
AURA_INLINE uint32x4_t sar_quarter(uint32x4_t v, const int n)
{
    return vreinterpretq_u32_s32(vreinterpretq_s32_u32(v) >> n);
}
AURA_INLINE ivec ivec_sar(ivec v, const int n)
{
    return ivec_of(sar_quarter(v.val[0], n), sar_quarter(v.val[1], n), sar_quarter(v.val[2], n), sar_quarter(v.val[3], n));
}
/* Right, each lane by its own count. */
AURA_INLINE uint32x4_t shrv_quarter(uint32x4_t v, uint32x4_t n) { return vshlq_u32(v, vnegq_s32(vreinterpretq_s32_u32(n))); }
AURA_INLINE ivec ivec_shrv(ivec v, ivec n)
{
    return ivec_of(shrv_quarter(v.val[0], n.val[0]), shrv_quarter(v.val[1], n.val[1]), shrv_quarter(v.val[2], n.val[2]),
                   shrv_quarter(v.val[3], n.val[3]));
}
AURA_INLINE ivec ivec_both(ivec a, ivec b)
{
    return ivec_of(vandq_u32(a.val[0], b.val[0]), vandq_u32(a.val[1], b.val[1]), vandq_u32(a.val[2], b.val[2]),
                   vandq_u32(a.val[3], b.val[3]));
}
AURA_INLINE ivec ivec_and(ivec v, uint32_t mask)
{
    uint32x4_t m = vdupq_n_u32(mask);
    return ivec_of(vandq_u32(v.val[0], m), vandq_u32(v.val[1], m), vandq_u32(v.val[2], m), vandq_u32(v.val[3], m));
}
/* a in the bits of the mask, b in the others. */
AURA_INLINE ivec ivec_select(uint32_t mask, ivec a, ivec b)
{
    uint32x4_t m = vdupq_n_u32(mask);
    return ivec_of(vbslq_u32(m, a.val[0], b.val[0]), vbslq_u32(m, a.val[1], b.val[1]), vbslq_u32(m, a.val[2], b.val[2]),
                   vbslq_u32(m, a.val[3], b.val[3]));
}
/* Bits of a in one mask, of b in the other, which have none in common. */
AURA_INLINE ivec ivec_join(ivec a, uint32_t of_a, ivec b, uint32_t of_b) { return ivec_select(of_a, a, ivec_and(b, of_b)); }
/* quad[k] lane i = the four bytes at p + i * stride + 4 * k, for k < n, 4 or 8. */
AURA_INLINE void ivec_columns(ivec *quad, const uint8_t *p, size_t stride, int n)
{
    uint32_t lane[8][16];
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < n; k++)
            memcpy(&lane[k][i], p + (size_t)i * stride + 4 * k, 4);
    for (int k = 0; k < 8; k++)
        quad[k] = ivec_load(lane[k < n ? k : 0]);
}
/* The other way, for all eight quads. */
AURA_INLINE void ivec_rows(uint8_t *p, size_t stride, const ivec *quad)
{
    uint32_t lane[8][16];
    for (int k = 0; k < 8; k++)
        ivec_store(lane[k], quad[k]);
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 8; k++)
            memcpy(p + (size_t)i * stride + 4 * k, &lane[k][i], 4);
}
/* x added to every byte. */
AURA_INLINE ivec ivec_add8(ivec v, int x)
{
    uint8x16_t all = vdupq_n_u8((uint8_t)x);
    for (int i = 0; i < 4; i++)
        v.val[i] = vreinterpretq_u32_u8(vaddq_u8(vreinterpretq_u8_u32(v.val[i]), all));
    return v;
}
enum { LOOKUP_BITS = 4 };
/* A table of 16 bytes, and the entry for the 4 bits of each byte from bit `shift`, 0 or 4, on. */
AURA_INLINE ivec ivec_table(const int8_t *p)
{
    uint32x4_t all = vreinterpretq_u32_s8(vld1q_s8(p));
    return ivec_of(all, all, all, all);
}
AURA_INLINE uint8x16_t nibble_quarter(uint32x4_t codes, const int shift)
{
    const uint8x16_t bytes = vreinterpretq_u8_u32(codes);
    return shift ? bytes >> 4 : vandq_u8(bytes, vdupq_n_u8(15));
}
AURA_INLINE uint32x4_t lookup_quarter(uint32x4_t table, uint32x4_t codes, const int shift)
{
    return vreinterpretq_u32_u8(vqtbl1q_u8(vreinterpretq_u8_u32(table), nibble_quarter(codes, shift)));
}
AURA_INLINE ivec ivec_lookup(ivec table, ivec codes, const int shift)
{
    return ivec_of(lookup_quarter(table.val[0], codes.val[0], shift), lookup_quarter(table.val[1], codes.val[1], shift),
                   lookup_quarter(table.val[2], codes.val[2], shift), lookup_quarter(table.val[3], codes.val[3], shift));
}
/* The same of two tables for nibble k / 4 of each byte: of the second where bit k ^ 4 of that byte of `which` is set. */
typedef struct {
    uint32x4_t first, second;
} tables;
AURA_INLINE tables ivec_tables(ivec first, ivec second)
{
    const tables t = {first.val[0], second.val[0]};
    return t;
}
AURA_INLINE uint32x4_t lookup2_quarter(tables t, uint32x4_t codes, uint32x4_t which, const int k)
{
    const uint8x16x2_t both = {{vreinterpretq_u8_u32(t.first), vreinterpretq_u8_u32(t.second)}};
    const uint8x16_t bits = vreinterpretq_u8_u32(which), two = vandq_u8(k % 4 ? bits >> k % 4 : bits, vdupq_n_u8(0x11));
    const uint8x16_t index = k < 4 ? vbslq_u8(vdupq_n_u8(15), vreinterpretq_u8_u32(codes), two)
                                   : vsliq_n_u8(nibble_quarter(codes, 4), two, 4);
    return vreinterpretq_u32_u8(vqtbl2q_u8(both, index));
}
AURA_INLINE ivec ivec_lookup2(tables t, ivec codes, ivec which, const int k)
{
    return ivec_of(lookup2_quarter(t, codes.val[0], which.val[0], k), lookup2_quarter(t, codes.val[1], which.val[1], k),
                   lookup2_quarter(t, codes.val[2], which.val[2], k), lookup2_quarter(t, codes.val[3], which.val[3], k));
}
/* Of each 32 bytes, byte 8 i + k goes to 4 k + i. */
AURA_INLINE uint16x8_t turn_quarter(uint32x4_t v)
{
    const uint8x16_t bytes = vreinterpretq_u8_u32(v);
    return vreinterpretq_u16_u8(vzip1q_u8(bytes, vextq_u8(bytes, bytes, 8)));
}
AURA_INLINE ivec ivec_turn(ivec v)
{
    const uint16x8_t a = turn_quarter(v.val[0]), b = turn_quarter(v.val[1]), c = turn_quarter(v.val[2]), d = turn_quarter(v.val[3]);
    return ivec_of(vreinterpretq_u32_u16(vzip1q_u16(a, b)), vreinterpretq_u32_u16(vzip2q_u16(a, b)),
                   vreinterpretq_u32_u16(vzip1q_u16(c, d)), vreinterpretq_u32_u16(vzip2q_u16(c, d)));
}
/* The sum of all lanes. */
AURA_INLINE int32_t ivec_total(ivec v)
{
    return (int32_t)vaddvq_u32(vaddq_u32(vaddq_u32(v.val[0], v.val[1]), vaddq_u32(v.val[2], v.val[3])));
}
AURA_INLINE float32x4_t from_int_quarter(uint32x4_t v) { return vcvtq_f32_s32(vreinterpretq_s32_u32(v)); }
/* plane[0][32] = the low bytes of a and b, or with two planes the second byte there and the lowest in plane[1]. All are
 * below 65536. */
AURA_INLINE void ivec_store_planes(uint8_t plane[2][32], ivec a, ivec b, const uint32_t planes)
{
    if (planes == 2) {
        ivec_store8(plane[1], ivec_and(a, 255)), ivec_store8(plane[1] + 16, ivec_and(b, 255));
        a = ivec_shr(a, 8), b = ivec_shr(b, 8);
    }
    ivec_store8(plane[0], a), ivec_store8(plane[0] + 16, b);
}
/* What is above the whole number below x, and v * 2^(that number): 0 where x < -125, whatever v. */
AURA_INLINE vec vec_floor(vec x)
{
    for (int i = 0; i < 4; i++)
        x.val[i] = vrndmq_f32(x.val[i]);
    return x;
}
AURA_INLINE vec vec_fraction(vec x) { return vec_sub(x, vec_floor(x)); }
AURA_INLINE vec vec_scale2(vec v, vec x) { return vec_below(x, -125.f, vec_exponent(v, vec_floor(x))); }
AURA_INLINE vec vec_from_int(ivec v)
{
    return vec_of(from_int_quarter(v.val[0]), from_int_quarter(v.val[1]), from_int_quarter(v.val[2]),
                  from_int_quarter(v.val[3]));
}
/* To the nearest whole number, ties to even. */
AURA_INLINE uint32x4_t from_vec_quarter(float32x4_t v) { return vreinterpretq_u32_s32(vcvtnq_s32_f32(v)); }
AURA_INLINE ivec ivec_from_vec(vec v)
{
    return ivec_of(from_vec_quarter(v.val[0]), from_vec_quarter(v.val[1]), from_vec_quarter(v.val[2]),
                   from_vec_quarter(v.val[3]));
}

/* 32 registers, four a vector: 4 queries with one plane, 2 with two. Keys are signed; whether weights are, the dot
 * product says. */
enum { KEYS_UNSIGNED = 0, TILE_VECS = 1, TILE_ROWS = 4, TILE_SUMS = 4, FEEDBACK_ROWS = 4, FEEDBACK_FITS = 1 };

#endif
