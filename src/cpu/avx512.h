/* avx512: F, BW, DQ and VL, with BMI2. A vec is one 512-bit register of 16 floats, an ivec one of 16 int32.
 * Included after AURA_TARGET, by a file that has included immintrin.h before it. */
#ifndef AURA_CPU_AVX512_H
#define AURA_CPU_AVX512_H

typedef __m512 vec;
typedef __m512i ivec;

AURA_INLINE vec vec_load(const float *p) { return _mm512_loadu_ps(p); }
AURA_INLINE void vec_store(float *p, vec v) { _mm512_storeu_ps(p, v); }
/* The first n lanes, n = 1 to 16; the others load as 0, keep as 0, or are not stored. */
AURA_INLINE __mmask16 first_lanes(uint32_t n) { return (__mmask16)(0xffffu >> (16 - n)); }
AURA_INLINE vec vec_load_n(const float *p, uint32_t n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
AURA_INLINE void vec_store_n(float *p, vec v, uint32_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }
AURA_INLINE vec vec_keep(vec v, uint32_t n) { return _mm512_maskz_mov_ps(first_lanes(n), v); }
AURA_INLINE vec vec_set1(float x) { return _mm512_set1_ps(x); }
AURA_INLINE vec vec_add(vec a, vec b) { return _mm512_add_ps(a, b); }
AURA_INLINE vec vec_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
AURA_INLINE vec vec_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
AURA_INLINE vec vec_max(vec a, vec b) { return _mm512_max_ps(a, b); }
AURA_INLINE vec vec_min(vec a, vec b) { return _mm512_min_ps(a, b); }
AURA_INLINE vec vec_abs(vec v) { return _mm512_abs_ps(v); }
/* b in the lanes where x > limit, a in the others. */
AURA_INLINE vec vec_above(vec x, vec limit, vec a, vec b)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, limit, _CMP_GT_OQ), a, b);
}
/* The bits of floats as integers, and of integers as floats. */
AURA_INLINE ivec ivec_of_vec(vec v) { return _mm512_castps_si512(v); }
AURA_INLINE vec vec_of_ivec(ivec v) { return _mm512_castsi512_ps(v); }
/* Negates the lanes whose bit is set. */
AURA_INLINE vec vec_flip(vec v, uint16_t lanes) { return _mm512_mask_xor_ps(v, lanes, v, _mm512_set1_ps(-0.f)); }

/* Lane i becomes lane i ^ stride; stride 1, 2, 4 or 8. */
AURA_INLINE vec vec_swap(vec v, const int stride)
{
    return stride == 1   ? _mm512_permute_ps(v, 0xb1)
           : stride == 2 ? _mm512_permute_ps(v, 0x4e)
           : stride == 4 ? _mm512_shuffle_f32x4(v, v, 0xb1)
                         : _mm512_shuffle_f32x4(v, v, 0x4e);
}

/* `count` floats, 2 or more, over and over; from 16 on, just a load. */
AURA_INLINE vec vec_repeat(const float *p, uint32_t count)
{
    int64_t pair;
    switch (count) {
    case 2: memcpy(&pair, p, sizeof pair); return _mm512_castsi512_ps(_mm512_set1_epi64(pair));
    case 4: return _mm512_broadcast_f32x4(_mm_loadu_ps(p));
    case 8: return _mm512_broadcast_f32x8(_mm256_loadu_ps(p));
    default: return _mm512_loadu_ps(p);
    }
}

/* The sum of all lanes by halves: i and i + 8, then i and i + 4, + 2, + 1. */
AURA_INLINE float vec_sum(vec v)
{
    __m256 h8 = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 h4 = _mm_add_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
    __m128 h2 = _mm_add_ps(h4, _mm_movehl_ps(h4, h4));
    return _mm_cvtss_f32(_mm_add_ss(h2, _mm_shuffle_ps(h2, h2, 1)));
}
struct two {
    float first, second;
};
/* The sums of two vectors. */
AURA_INLINE struct two vec_sum2(vec a, vec b)
{
    vec h8 = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    vec h4 = _mm512_add_ps(_mm512_shuffle_f32x4(h8, h8, 0x88), _mm512_shuffle_f32x4(h8, h8, 0xdd)); /* a quarter each */
    vec h2 = _mm512_add_ps(h4, _mm512_permute_ps(h4, 0x4e));
    vec h1 = _mm512_add_ps(h2, _mm512_permute_ps(h2, 0xb1));
    struct two sums = {_mm512_cvtss_f32(h1), _mm_cvtss_f32(_mm512_extractf32x4_ps(h1, 1))};
    return sums;
}
/* The largest lane. */
AURA_INLINE float vec_top(vec v) { return _mm512_reduce_max_ps(v); }
/* top[i] = the largest lane of v[i]; four vectors at once take 8 shuffles instead of 16. */
AURA_INLINE void vec_tops(float *top, const vec *v, const int n)
{
    if (n == 4) {
        vec a = _mm512_max_ps(_mm512_shuffle_f32x4(v[0], v[1], 0x44), _mm512_shuffle_f32x4(v[0], v[1], 0xee));
        vec b = _mm512_max_ps(_mm512_shuffle_f32x4(v[2], v[3], 0x44), _mm512_shuffle_f32x4(v[2], v[3], 0xee));
        vec all = _mm512_max_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd)); /* a quarter each */
        all = _mm512_max_ps(all, _mm512_permute_ps(all, 0x4e));
        all = _mm512_max_ps(all, _mm512_permute_ps(all, 0xb1));
        _mm_storeu_ps(top, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, all)));
        return;
    }
    for (int i = 0; i < n; i++)
        top[i] = vec_top(v[i]);
}

AURA_INLINE ivec ivec_zero(void) { return _mm512_setzero_si512(); }
AURA_INLINE ivec ivec_add(ivec a, int x) { return _mm512_add_epi32(a, _mm512_set1_epi32(x)); }
/* index + x in the lanes where v > limit. */
AURA_INLINE ivec ivec_add_where(ivec index, vec v, vec limit, int x)
{
    return _mm512_mask_add_epi32(index, _mm512_cmp_ps_mask(v, limit, _CMP_GT_OQ), index, _mm512_set1_epi32(x));
}
/* 16 bytes to and from lanes. */
AURA_INLINE ivec ivec_bytes(uint64_t lo, uint64_t hi)
{
    return _mm512_cvtepu8_epi32(_mm_set_epi64x((long long)hi, (long long)lo));
}
AURA_INLINE ivec ivec_load8(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
AURA_INLINE void ivec_store8(uint8_t *p, ivec v) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(v)); }

/* Entry index of a table of 2^bits floats, whose beginning is in `part` too: 32 and 64 entries are permutations of two
 * and four registers. */
AURA_INLINE vec vec_lookup(const float *table, const vec *part, ivec index, const int bits)
{
    if (bits == 5)
        return _mm512_permutex2var_ps(part[0], index, part[1]);
    if (bits == 6)
        return _mm512_mask_blend_ps(_mm512_test_epi32_mask(index, _mm512_set1_epi32(32)),
                                    _mm512_permutex2var_ps(part[0], index, part[1]),
                                    _mm512_permutex2var_ps(part[2], index, part[3]));
    return _mm512_i32gather_ps(index, table, 4);
}
/* Only the lowest 4 bits of an index count. */
AURA_INLINE vec vec_lookup16(vec table, ivec index) { return _mm512_permutexvar_ps(index, table); }

AURA_INLINE vec vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
/* b in the lanes whose bit is set, a in the others. */
AURA_INLINE vec vec_blend(vec a, vec b, const uint16_t lanes) { return _mm512_mask_blend_ps(lanes, a, b); }
/* 16 or, with n = 8, 8 numbers of 16 bits, at any address. */
AURA_INLINE __m256i load_halves(const uint8_t *p, uint32_t n)
{
    return n > 8 ? _mm256_loadu_si256((const __m256i *)p) : _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)p));
}
AURA_INLINE vec vec_load_f16(const uint8_t *p, uint32_t n) { return _mm512_cvtph_ps(load_halves(p, n)); }
AURA_INLINE vec vec_load_bf16(const uint8_t *p, uint32_t n)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_halves(p, n)), 16));
}
/* 16 floats as f16. */
AURA_INLINE void vec_store_f16(uint8_t *p, vec v)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
/* Lanes 0 to 7: lo >> bits * i; lanes 8 to 15: hi >> (bits * (i - 8) + more). */
AURA_INLINE ivec ivec_spread(uint32_t lo, uint32_t hi, const int bits, const int more)
{
    __m512i both = _mm512_mask_set1_epi32(_mm512_set1_epi32((int)lo), 0xff00, (int)hi);
    __m512i shift = _mm512_setr_epi32(0, bits, 2 * bits, 3 * bits, 4 * bits, 5 * bits, 6 * bits, 7 * bits, more,
                                      more + bits, more + 2 * bits, more + 3 * bits, more + 4 * bits, more + 5 * bits,
                                      more + 6 * bits, more + 7 * bits);
    return _mm512_srlv_epi32(both, shift);
}
/* To the nearest whole number; v * 2^n for whole n, where the result is normal; v, but 0 where x < limit. */
AURA_INLINE vec vec_round(vec v) { return _mm512_roundscale_ps(v, 8); }
AURA_INLINE vec vec_exponent(vec v, vec n) { return _mm512_scalef_ps(v, n); }
AURA_INLINE vec vec_below(vec x, float limit, vec v)
{
    return _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_LT_OQ), _mm512_setzero_ps());
}

/* 32 registers: 4 heads x 4 tokens, 4 heads x 4 vectors, and 4 fits, are kept at once. */
enum { SCORE_TOGETHER = 4, VALUE_VECS = 4, ENCODE_FITS = 4 };
struct sums {
    float dot[ENCODE_FITS], size2[ENCODE_FITS];
};
AURA_INLINE __m128 sums_of_four(const vec *v)
{
    vec a = _mm512_add_ps(_mm512_shuffle_f32x4(v[0], v[1], 0x44), _mm512_shuffle_f32x4(v[0], v[1], 0xee));
    vec b = _mm512_add_ps(_mm512_shuffle_f32x4(v[2], v[3], 0x44), _mm512_shuffle_f32x4(v[2], v[3], 0xee));
    vec all = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd)); /* a quarter each */
    all = _mm512_add_ps(all, _mm512_permute_ps(all, 0x4e));
    all = _mm512_add_ps(all, _mm512_permute_ps(all, 0xb1));
    return _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, all));
}
/* The sums of as many vectors: 16 shuffles, where one pair after the other takes 28. */
AURA_INLINE struct sums vec_sums(const vec *dots, const vec *squares)
{
    struct sums sums;
    _mm_storeu_ps(sums.dot, sums_of_four(dots));
    _mm_storeu_ps(sums.size2, sums_of_four(squares));
    return sums;
}

/* Eight codes between bytes and a packed stream. */
AURA_INLINE uint64_t lowest_bits(const int bits) { return 0x0101010101010101u * ((1u << bits) - 1); }
AURA_INLINE uint64_t pack8(uint64_t bytes, const int bits) { return _pext_u64(bytes, lowest_bits(bits)); }
AURA_INLINE uint64_t unpack8(uint64_t packed, const int bits) { return _pdep_u64(packed, lowest_bits(bits)); }

/* ---- integers of a tile: an ivec is also 64 bytes ---- */

AURA_INLINE ivec ivec_load(const void *p) { return _mm512_loadu_si512(p); }
AURA_INLINE void ivec_store(void *p, ivec v) { _mm512_storeu_si512(p, v); }
/* The low 16 bits of lanes, at any address. */
AURA_INLINE void ivec_store16(uint8_t *p, ivec v) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(v)); }
AURA_INLINE ivec ivec_set1(int32_t x) { return _mm512_set1_epi32(x); }
AURA_INLINE ivec ivec_plus(ivec a, ivec b) { return _mm512_add_epi32(a, b); }
AURA_INLINE ivec ivec_xor(ivec a, ivec b) { return _mm512_xor_si512(a, b); }
AURA_INLINE ivec ivec_xor3(ivec a, ivec b, ivec c) { return _mm512_ternarylogic_epi32(a, b, c, 0x96); }
/* Whether some lane of a v that was noted had none of the bits `places`. */
typedef __mmask16 ties;
#define TIES_NONE ((ties)0xffff)
AURA_INLINE ties ties_note(ties t, ivec v, uint32_t places)
{
    return _mm512_mask_test_epi32_mask(t, v, _mm512_set1_epi32((int)places));
}
AURA_INLINE int ties_found(ties t) { return t != 0xffff; }
/* Shifts by a constant: left, right, right with the sign. */
AURA_INLINE ivec ivec_shl(ivec v, const int n) { return _mm512_sll_epi32(v, _mm_cvtsi32_si128(n)); }
AURA_INLINE ivec ivec_shr(ivec v, const int n) { return n ? _mm512_srl_epi32(v, _mm_cvtsi32_si128(n)) : v; }
AURA_INLINE ivec ivec_sar(ivec v, const int n) { return _mm512_sra_epi32(v, _mm_cvtsi32_si128(n)); }
/* 32 bits of lanes from bit n on, n from 1 to 3, of which `after` has those that `here` has not. */
AURA_INLINE ivec ivec_shr2(ivec here, ivec after, const int n) { return ivec_xor(ivec_shr(here, n), ivec_shl(after, 32 - n)); }
/* Right, each lane by its own count. */
AURA_INLINE ivec ivec_shrv(ivec v, ivec n) { return _mm512_srlv_epi32(v, n); }
AURA_INLINE ivec ivec_both(ivec a, ivec b) { return _mm512_and_si512(a, b); }
AURA_INLINE ivec ivec_and(ivec v, uint32_t mask) { return _mm512_and_si512(v, _mm512_set1_epi32((int)mask)); }
/* a in the bits of the mask, b in the others. */
AURA_INLINE ivec ivec_select(uint32_t mask, ivec a, ivec b)
{
    return _mm512_ternarylogic_epi32(_mm512_set1_epi32((int)mask), a, b, 0xca);
}
/* Bits of a in one mask, of b in the other, which have none in common. */
AURA_INLINE ivec ivec_join(ivec a, uint32_t of_a, ivec b, uint32_t of_b) { return ivec_select(of_a, a, ivec_and(b, of_b)); }
/* x added to every byte. */
AURA_INLINE ivec ivec_add8(ivec v, int x) { return x ? _mm512_add_epi8(v, _mm512_set1_epi8((char)x)) : v; }
/* A table of 16 bytes, for ivec_lookup. */
AURA_INLINE ivec ivec_table(const int8_t *p) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p)); }
/* Of each 32 bytes, byte 8 i + k goes to 4 k + i. */
AURA_INLINE ivec ivec_turn(ivec v)
{
    const __m512i pairs = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
    const __m512i order = _mm512_set_epi16(31, 23, 30, 22, 29, 21, 28, 20, 27, 19, 26, 18, 25, 17, 24, 16,
                                           15, 7, 14, 6, 13, 5, 12, 4, 11, 3, 10, 2, 9, 1, 8, 0);
    return _mm512_permutexvar_epi16(order, _mm512_shuffle_epi8(v, pairs));
}
/* quad[k] lane i = the four bytes at p + i * stride + 4 * k, for k < n, 4 or 8. */
AURA_INLINE void transpose8(__m256i *out, const __m256i *in)
{
    __m256i a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_epi32(in[i], in[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi32(in[i], in[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; k++) {
            b[i + 2 * k] = _mm256_unpacklo_epi64(a[i + k], a[i + 2 + k]);
            b[i + 2 * k + 1] = _mm256_unpackhi_epi64(a[i + k], a[i + 2 + k]);
        }
    for (int i = 0; i < 4; i++) {
        out[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
        out[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
    }
}
AURA_INLINE void ivec_columns(ivec *quad, const uint8_t *p, size_t stride, int n)
{
    __m256i in[8], out[2][8];
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < 8; i++) {
            const uint8_t *row = p + (size_t)(8 * half + i) * stride;
            in[i] = n == 8 ? _mm256_loadu_si256((const __m256i *)row)
                           : _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)row));
        }
        transpose8(out[half], in);
    }
    for (int k = 0; k < 8; k++)
        quad[k] = _mm512_inserti64x4(_mm512_castsi256_si512(out[0][k]), out[1][k], 1);
}
/* The other way, for all eight quads. */
AURA_INLINE void ivec_rows(uint8_t *p, size_t stride, const ivec *quad)
{
    __m256i in[8], out[8];
    for (int half = 0; half < 2; half++) {
        for (int k = 0; k < 8; k++)
            in[k] = half ? _mm512_extracti64x4_epi64(quad[k], 1) : _mm512_castsi512_si256(quad[k]);
        transpose8(out, in);
        for (int i = 0; i < 8; i++)
            _mm256_storeu_si256((__m256i *)(p + (size_t)(8 * half + i) * stride), out[i]);
    }
}
/* The sum of all lanes. */
AURA_INLINE int32_t ivec_total(ivec v)
{
    __m256i h8 = _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
    __m128i h4 = _mm_add_epi32(_mm256_castsi256_si128(h8), _mm256_extracti128_si256(h8, 1));
    __m128i h2 = _mm_add_epi32(h4, _mm_shuffle_epi32(h4, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(h2, _mm_shuffle_epi32(h2, 0xb1)));
}
/* plane[0][32] = the low bytes of a and b, or with two planes the second byte there and the lowest in plane[1]. All are
 * below 65536. Packing goes by quarters of a vector, hence the permutation. */
AURA_INLINE void ivec_store_planes(uint8_t plane[2][32], ivec a, ivec b, const uint32_t planes)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i words = _mm512_packus_epi32(a, b);
    if (planes == 1) {
        __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_packus_epi16(words, words));
        _mm256_storeu_si256((__m256i *)plane[0], _mm512_castsi512_si256(bytes));
    } else {
        __m512i hi = _mm512_srli_epi16(words, 8), lo = _mm512_and_si512(words, _mm512_set1_epi16(255));
        _mm512_storeu_si512(plane, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(hi, lo)));
    }
}
/* What is above the whole number below x, and v * 2^(that number): 0 where x < -125, whatever v. Not the subnormals that vscalefps
 * would make: each costs it hundreds of cycles. */
AURA_INLINE vec vec_fraction(vec x) { return _mm512_reduce_ps(x, 1); }
AURA_INLINE vec vec_scale2(vec v, vec x)
{
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-125.f), _CMP_NLT_UQ), v, x);
}
AURA_INLINE vec vec_from_int(ivec v) { return _mm512_cvtepi32_ps(v); }
/* To the nearest whole number, ties to even. */
AURA_INLINE ivec ivec_from_vec(vec v) { return _mm512_cvtps_epi32(v); }

#endif
