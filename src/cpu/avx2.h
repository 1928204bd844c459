/* avx2: AVX2, FMA and F16C. A vec is two 256-bit registers of 8 floats, so that its 16 lanes are those of ref.c.
 * Included after AURA_TARGET, by a file that has included immintrin.h before it. */
#ifndef AURA_CPU_AVX2_H
#define AURA_CPU_AVX2_H

typedef struct {
    __m256 lo, hi;
} vec;
typedef struct {
    __m256i lo, hi;
} ivec;

AURA_INLINE vec vec_of(__m256 lo, __m256 hi)
{
    vec v = {lo, hi};
    return v;
}
AURA_INLINE ivec ivec_of(__m256i lo, __m256i hi)
{
    ivec v = {lo, hi};
    return v;
}

AURA_INLINE vec vec_load(const float *p) { return vec_of(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
AURA_INLINE void vec_store(float *p, vec v) { _mm256_storeu_ps(p, v.lo), _mm256_storeu_ps(p + 8, v.hi); }
/* The first n lanes, n = 8 or 16 as every dim is a multiple of 8; the others load or keep as 0, or are not stored. */
AURA_INLINE vec vec_load_n(const float *p, uint32_t n)
{
    return vec_of(_mm256_loadu_ps(p), n > 8 ? _mm256_loadu_ps(p + 8) : _mm256_setzero_ps());
}
AURA_INLINE void vec_store_n(float *p, vec v, uint32_t n)
{
    _mm256_storeu_ps(p, v.lo);
    if (n > 8)
        _mm256_storeu_ps(p + 8, v.hi);
}
AURA_INLINE vec vec_keep(vec v, uint32_t n) { return n > 8 ? v : vec_of(v.lo, _mm256_setzero_ps()); }
AURA_INLINE vec vec_set1(float x) { return vec_of(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
AURA_INLINE vec vec_add(vec a, vec b) { return vec_of(_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)); }
AURA_INLINE vec vec_sub(vec a, vec b) { return vec_of(_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)); }
AURA_INLINE vec vec_mul(vec a, vec b) { return vec_of(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)); }
AURA_INLINE vec vec_max(vec a, vec b) { return vec_of(_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)); }
AURA_INLINE vec vec_min(vec a, vec b) { return vec_of(_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)); }
/* b in the lanes where x > limit, a in the others. */
AURA_INLINE __m256 above_half(__m256 x, __m256 limit, __m256 a, __m256 b)
{
    return _mm256_blendv_ps(a, b, _mm256_cmp_ps(x, limit, _CMP_GT_OQ));
}
AURA_INLINE vec vec_above(vec x, vec limit, vec a, vec b)
{
    return vec_of(above_half(x.lo, limit.lo, a.lo, b.lo), above_half(x.hi, limit.hi, a.hi, b.hi));
}
/* The bits of floats as integers, and of integers as floats. */
AURA_INLINE ivec ivec_of_vec(vec v) { return ivec_of(_mm256_castps_si256(v.lo), _mm256_castps_si256(v.hi)); }
AURA_INLINE vec vec_of_ivec(ivec v) { return vec_of(_mm256_castsi256_ps(v.lo), _mm256_castsi256_ps(v.hi)); }
AURA_INLINE vec vec_abs(vec v)
{
    __m256 sign = _mm256_set1_ps(-0.f);
    return vec_of(_mm256_andnot_ps(sign, v.lo), _mm256_andnot_ps(sign, v.hi));
}

/* Negates the lanes whose bit is set. */
AURA_INLINE __m256 flip_half(__m256 v, int lanes)
{
    __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(lanes), bit), bit);
    return _mm256_xor_ps(v, _mm256_and_ps(_mm256_castsi256_ps(set), _mm256_set1_ps(-0.f)));
}
AURA_INLINE vec vec_flip(vec v, uint16_t lanes)
{
    return vec_of(flip_half(v.lo, lanes), flip_half(v.hi, lanes >> 8));
}

/* Lane i becomes lane i ^ stride; stride 1, 2, 4 or 8. */
AURA_INLINE vec vec_swap(vec v, const int stride)
{
    if (stride == 8)
        return vec_of(v.hi, v.lo);
    if (stride == 4)
        return vec_of(_mm256_permute2f128_ps(v.lo, v.lo, 1), _mm256_permute2f128_ps(v.hi, v.hi, 1));
    if (stride == 2)
        return vec_of(_mm256_permute_ps(v.lo, 0x4e), _mm256_permute_ps(v.hi, 0x4e));
    return vec_of(_mm256_permute_ps(v.lo, 0xb1), _mm256_permute_ps(v.hi, 0xb1));
}

/* `count` floats, 2 or more, over and over; from 16 on, just a load. */
AURA_INLINE vec vec_repeat(const float *p, uint32_t count)
{
    int64_t pair;
    __m256 half;
    switch (count) {
    case 2: memcpy(&pair, p, sizeof pair), half = _mm256_castsi256_ps(_mm256_set1_epi64x(pair)); break;
    case 4: half = _mm256_broadcast_ps((const __m128 *)p); break;
    case 8: half = _mm256_loadu_ps(p); break;
    default: return vec_load(p);
    }
    return vec_of(half, half);
}

/* The sum of all lanes by halves: i and i + 8, then i and i + 4, + 2, + 1. */
AURA_INLINE float vec_sum(vec v)
{
    __m256 h8 = _mm256_add_ps(v.lo, v.hi);
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
    __m256 a8 = _mm256_add_ps(a.lo, a.hi), b8 = _mm256_add_ps(b.lo, b.hi);
    __m256 h4 = _mm256_add_ps(_mm256_permute2f128_ps(a8, b8, 0x20), _mm256_permute2f128_ps(a8, b8, 0x31));
    __m256 h2 = _mm256_add_ps(h4, _mm256_permute_ps(h4, 0x4e));
    __m256 h1 = _mm256_add_ps(h2, _mm256_permute_ps(h2, 0xb1));
    struct two sums = {_mm256_cvtss_f32(h1), _mm_cvtss_f32(_mm256_extractf128_ps(h1, 1))};
    return sums;
}
/* The largest lane. */
AURA_INLINE float vec_top(vec v)
{
    __m256 h8 = _mm256_max_ps(v.lo, v.hi);
    __m128 h4 = _mm_max_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
    __m128 h2 = _mm_max_ps(h4, _mm_movehl_ps(h4, h4));
    return _mm_cvtss_f32(_mm_max_ss(h2, _mm_shuffle_ps(h2, h2, 1)));
}
/* top[i] = the largest lane of v[i]. */
AURA_INLINE void vec_tops(float *top, const vec *v, const int n)
{
    for (int i = 0; i < n; i++)
        top[i] = vec_top(v[i]);
}

AURA_INLINE ivec ivec_zero(void) { return ivec_of(_mm256_setzero_si256(), _mm256_setzero_si256()); }
AURA_INLINE ivec ivec_add(ivec a, int x)
{
    return ivec_of(_mm256_add_epi32(a.lo, _mm256_set1_epi32(x)), _mm256_add_epi32(a.hi, _mm256_set1_epi32(x)));
}
/* index + x in the lanes where v > limit. */
AURA_INLINE __m256i add_where_half(__m256i index, __m256 v, __m256 limit, int x)
{
    __m256i above = _mm256_castps_si256(_mm256_cmp_ps(v, limit, _CMP_GT_OQ));
    return _mm256_add_epi32(index, _mm256_and_si256(above, _mm256_set1_epi32(x)));
}
AURA_INLINE ivec ivec_add_where(ivec index, vec v, vec limit, int x)
{
    return ivec_of(add_where_half(index.lo, v.lo, limit.lo, x), add_where_half(index.hi, v.hi, limit.hi, x));
}
/* 16 bytes to and from lanes. */
AURA_INLINE ivec widen_bytes(__m128i bytes)
{
    return ivec_of(_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)));
}
AURA_INLINE ivec ivec_bytes(uint64_t lo, uint64_t hi)
{
    return widen_bytes(_mm_set_epi64x((long long)hi, (long long)lo));
}
AURA_INLINE ivec ivec_load8(const uint8_t *p) { return widen_bytes(_mm_loadu_si128((const __m128i *)p)); }
AURA_INLINE void ivec_store8(uint8_t *p, ivec v)
{
    __m128i lo = _mm_packus_epi32(_mm256_castsi256_si128(v.lo), _mm256_extracti128_si256(v.lo, 1));
    __m128i hi = _mm_packus_epi32(_mm256_castsi256_si128(v.hi), _mm256_extracti128_si256(v.hi, 1));
    _mm_storeu_si128((__m128i *)p, _mm_packus_epi16(lo, hi));
}

/* Entry index of a table of 2^bits floats. `part`, its beginning in registers, is for those who can permute more than 16. */
AURA_INLINE vec vec_lookup(const float *table, const vec *part, ivec index, const int bits)
{
    (void)part, (void)bits;
    return vec_of(_mm256_i32gather_ps(table, index.lo, 4), _mm256_i32gather_ps(table, index.hi, 4));
}
/* Only the lowest 4 bits of an index count. A permutation sees 8 entries: look up in both halves of the table and
 * choose by bit 3. */
AURA_INLINE __m256 lookup16_half(vec table, __m256i index)
{
    __m256 lo = _mm256_permutevar8x32_ps(table.lo, index), hi = _mm256_permutevar8x32_ps(table.hi, index);
    return _mm256_blendv_ps(lo, hi, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}
AURA_INLINE vec vec_lookup16(vec table, ivec index)
{
    return vec_of(lookup16_half(table, index.lo), lookup16_half(table, index.hi));
}

AURA_INLINE vec vec_fma(vec a, vec b, vec c)
{
    return vec_of(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}
/* b in the lanes whose bit is set, a in the others: every other lane, pair, four or eight. */
AURA_INLINE vec vec_blend(vec a, vec b, const uint16_t lanes)
{
    if (lanes == 0xff00)
        return vec_of(a.lo, b.hi);
    if (lanes == 0xf0f0)
        return vec_of(_mm256_blend_ps(a.lo, b.lo, 0xf0), _mm256_blend_ps(a.hi, b.hi, 0xf0));
    if (lanes == 0xcccc)
        return vec_of(_mm256_blend_ps(a.lo, b.lo, 0xcc), _mm256_blend_ps(a.hi, b.hi, 0xcc));
    return vec_of(_mm256_blend_ps(a.lo, b.lo, 0xaa), _mm256_blend_ps(a.hi, b.hi, 0xaa));
}
/* 16 or, with n = 8, 8 numbers of 16 bits, at any address. */
AURA_INLINE __m128i load_halves(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)p); }
AURA_INLINE vec vec_load_f16(const uint8_t *p, uint32_t n)
{
    return vec_of(_mm256_cvtph_ps(load_halves(p)), n > 8 ? _mm256_cvtph_ps(load_halves(p + 16)) : _mm256_setzero_ps());
}
AURA_INLINE __m256 widen_bf16(__m128i v)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}
AURA_INLINE vec vec_load_bf16(const uint8_t *p, uint32_t n)
{
    return vec_of(widen_bf16(load_halves(p)), n > 8 ? widen_bf16(load_halves(p + 16)) : _mm256_setzero_ps());
}
/* 16 floats as f16. */
AURA_INLINE void vec_store_f16(uint8_t *p, vec v)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 16), _mm256_cvtps_ph(v.hi, _MM_FROUND_TO_NEAREST_INT));
}
/* Lanes 0 to 7: lo >> bits * i; lanes 8 to 15: hi >> (bits * (i - 8) + more). */
AURA_INLINE ivec ivec_spread(uint32_t lo, uint32_t hi, const int bits, const int more)
{
    __m256i shift = _mm256_setr_epi32(0, bits, 2 * bits, 3 * bits, 4 * bits, 5 * bits, 6 * bits, 7 * bits);
    return ivec_of(_mm256_srlv_epi32(_mm256_set1_epi32((int)lo), shift),
                   _mm256_srlv_epi32(_mm256_set1_epi32((int)hi), _mm256_add_epi32(shift, _mm256_set1_epi32(more))));
}
/* To the nearest whole number; v * 2^n for whole n, where the result is normal; v, but 0 where x < limit. */
AURA_INLINE vec vec_round(vec v) { return vec_of(_mm256_round_ps(v.lo, 8), _mm256_round_ps(v.hi, 8)); }
AURA_INLINE __m256 exponent_half(__m256 v, __m256 n)
{
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
}
AURA_INLINE vec vec_exponent(vec v, vec n) { return vec_of(exponent_half(v.lo, n.lo), exponent_half(v.hi, n.hi)); }
AURA_INLINE __m256 below_half(__m256 x, float limit, __m256 v)
{
    return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_LT_OQ), v);
}
AURA_INLINE vec vec_below(vec x, float limit, vec v)
{
    return vec_of(below_half(x.lo, limit, v.lo), below_half(x.hi, limit, v.hi));
}

/* 16 registers, two a vector: 4 heads of one token, or of one vector of the accumulator. */
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

/* ---- integers of a tile: an ivec is also 64 bytes ---- */

AURA_INLINE ivec ivec_load(const void *p)
{
    const __m256i *half = p;
    return ivec_of(_mm256_loadu_si256(half), _mm256_loadu_si256(half + 1));
}
AURA_INLINE void ivec_store(void *p, ivec v)
{
    __m256i *half = p;
    _mm256_storeu_si256(half, v.lo), _mm256_storeu_si256(half + 1, v.hi);
}
/* The low 16 bits of lanes, whose high ones are 0, at any address. */
AURA_INLINE void ivec_store16(uint8_t *p, ivec v)
{
    __m256i words = _mm256_packus_epi32(v.lo, v.hi);
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(words, 0xd8));
}
AURA_INLINE ivec ivec_set1(int32_t x) { return ivec_of(_mm256_set1_epi32(x), _mm256_set1_epi32(x)); }
AURA_INLINE ivec ivec_plus(ivec a, ivec b)
{
    return ivec_of(_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi));
}
AURA_INLINE ivec ivec_xor(ivec a, ivec b)
{
    return ivec_of(_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi));
}
AURA_INLINE ivec ivec_xor3(ivec a, ivec b, ivec c)
{
    return ivec_of(_mm256_xor_si256(_mm256_xor_si256(a.lo, b.lo), c.lo), _mm256_xor_si256(_mm256_xor_si256(a.hi, b.hi), c.hi));
}
/* Whether some lane of a v that was noted had none of the bits `places`: the smallest of what they had is kept. */
typedef ivec ties;
#define TIES_NONE ivec_set1(0x7fffffff)
AURA_INLINE ties ties_note(ties t, ivec v, uint32_t places)
{
    const __m256i m = _mm256_set1_epi32((int)places);
    return ivec_of(_mm256_min_epi32(t.lo, _mm256_and_si256(v.lo, m)), _mm256_min_epi32(t.hi, _mm256_and_si256(v.hi, m)));
}
AURA_INLINE int ties_found(ties t)
{
    const __m256i zero = _mm256_setzero_si256();
    return _mm256_movemask_epi8(_mm256_or_si256(_mm256_cmpeq_epi32(t.lo, zero), _mm256_cmpeq_epi32(t.hi, zero))) != 0;
}
/* Shifts by a constant: left, right, right with the sign. */
AURA_INLINE ivec ivec_shl(ivec v, const int n)
{
    return ivec_of(_mm256_slli_epi32(v.lo, n), _mm256_slli_epi32(v.hi, n));
}
AURA_INLINE ivec ivec_shr(ivec v, const int n)
{
    return n ? ivec_of(_mm256_srli_epi32(v.lo, n), _mm256_srli_epi32(v.hi, n)) : v;
}
AURA_INLINE ivec ivec_sar(ivec v, const int n)
{
    return ivec_of(_mm256_srai_epi32(v.lo, n), _mm256_srai_epi32(v.hi, n));
}
/* 32 bits of lanes from bit n on, n from 1 to 3, of which `after` has those that `here` has not. */
AURA_INLINE ivec ivec_shr2(ivec here, ivec after, const int n) { return ivec_xor(ivec_shr(here, n), ivec_shl(after, 32 - n)); }
/* Right, each lane by its own count. */
AURA_INLINE ivec ivec_shrv(ivec v, ivec n) { return ivec_of(_mm256_srlv_epi32(v.lo, n.lo), _mm256_srlv_epi32(v.hi, n.hi)); }
AURA_INLINE ivec ivec_both(ivec a, ivec b) { return ivec_of(_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)); }
AURA_INLINE ivec ivec_and(ivec v, uint32_t mask)
{
    __m256i m = _mm256_set1_epi32((int)mask);
    return ivec_of(_mm256_and_si256(v.lo, m), _mm256_and_si256(v.hi, m));
}
/* a in the bits of the mask, b in the others. */
AURA_INLINE __m256i select_half(__m256i mask, __m256i a, __m256i b)
{
    return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
}
AURA_INLINE ivec ivec_select(uint32_t mask, ivec a, ivec b)
{
    __m256i m = _mm256_set1_epi32((int)mask);
    return ivec_of(select_half(m, a.lo, b.lo), select_half(m, a.hi, b.hi));
}
/* Bits of a in one mask, of b in the other, which have none in common. */
AURA_INLINE ivec ivec_join(ivec a, uint32_t of_a, ivec b, uint32_t of_b)
{
    a = ivec_and(a, of_a), b = ivec_and(b, of_b);
    return ivec_of(_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi));
}
/* x added to every byte. */
AURA_INLINE ivec ivec_add8(ivec v, int x)
{
    __m256i all = _mm256_set1_epi8((char)x);
    return x ? ivec_of(_mm256_add_epi8(v.lo, all), _mm256_add_epi8(v.hi, all)) : v;
}
enum { LOOKUP_BITS = 4 };
/* A table of 16 bytes, and the entry for the 4 bits of each byte from bit `shift`, 0 or 4, on. */
AURA_INLINE ivec ivec_table(const int8_t *p)
{
    __m256i twice = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
    return ivec_of(twice, twice);
}
AURA_INLINE ivec ivec_lookup(ivec table, ivec codes, const int shift)
{
    __m256i low = _mm256_set1_epi8(15);
    codes = ivec_shr(codes, shift);
    return ivec_of(_mm256_shuffle_epi8(table.lo, _mm256_and_si256(codes.lo, low)),
                   _mm256_shuffle_epi8(table.hi, _mm256_and_si256(codes.hi, low)));
}
/* The same of two tables for nibble k / 4 of each byte: of the second where bit k ^ 4 of that byte of `which` is set. */
typedef struct {
    __m256i first, second;
} tables;
AURA_INLINE tables ivec_tables(ivec first, ivec second)
{
    const tables both = {first.lo, second.lo};
    return both;
}
AURA_INLINE __m256i lookup2_half(__m256i first, __m256i second, __m256i codes, __m256i which, const int k)
{
    const __m256i nibble = k < 4 ? codes : _mm256_srli_epi32(codes, 4), low = _mm256_and_si256(nibble, _mm256_set1_epi8(0x0f));
    return _mm256_blendv_epi8(_mm256_shuffle_epi8(first, low), _mm256_shuffle_epi8(second, low),
                              _mm256_slli_epi32(which, 7 - (k ^ 4)));
}
AURA_INLINE ivec ivec_lookup2(tables both, ivec codes, ivec which, const int k)
{
    return ivec_of(lookup2_half(both.first, both.second, codes.lo, which.lo, k),
                   lookup2_half(both.first, both.second, codes.hi, which.hi, k));
}
/* Of each 32 bytes, byte 8 i + k goes to 4 k + i. */
AURA_INLINE __m256i turn_half(__m256i v)
{
    const __m256i pairs = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
    v = _mm256_shuffle_epi8(v, pairs);
    const __m128i lo = _mm256_castsi256_si128(v), hi = _mm256_extracti128_si256(v, 1);
    return _mm256_set_m128i(_mm_unpackhi_epi16(lo, hi), _mm_unpacklo_epi16(lo, hi));
}
AURA_INLINE ivec ivec_turn(ivec v) { return ivec_of(turn_half(v.lo), turn_half(v.hi)); }
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
        quad[k] = ivec_of(out[0][k], out[1][k]);
}
/* The other way, for all eight quads. */
AURA_INLINE void ivec_rows(uint8_t *p, size_t stride, const ivec *quad)
{
    __m256i in[8], out[8];
    for (int half = 0; half < 2; half++) {
        for (int k = 0; k < 8; k++)
            in[k] = half ? quad[k].hi : quad[k].lo;
        transpose8(out, in);
        for (int i = 0; i < 8; i++)
            _mm256_storeu_si256((__m256i *)(p + (size_t)(8 * half + i) * stride), out[i]);
    }
}
/* The sum of all lanes. */
AURA_INLINE int32_t ivec_total(ivec v)
{
    __m256i h8 = _mm256_add_epi32(v.lo, v.hi);
    __m128i h4 = _mm_add_epi32(_mm256_castsi256_si128(h8), _mm256_extracti128_si256(h8, 1));
    __m128i h2 = _mm_add_epi32(h4, _mm_shuffle_epi32(h4, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(h2, _mm_shuffle_epi32(h2, 0xb1)));
}
/* plane[0][32] = the low bytes of a and b, or with two planes the second byte there and the lowest in plane[1]. All are
 * below 65536. Packing goes by halves of a register, hence the permutation. */
AURA_INLINE void store_bytes(uint8_t *p, __m256i a, __m256i b)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((__m256i *)p, _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b), order));
}
AURA_INLINE void ivec_store_planes(uint8_t plane[2][32], ivec a, ivec b, const uint32_t planes)
{
    __m256i first = _mm256_packus_epi32(a.lo, a.hi), second = _mm256_packus_epi32(b.lo, b.hi);
    const __m256i low = _mm256_set1_epi16(255);
    if (planes == 2) {
        store_bytes(plane[1], _mm256_and_si256(first, low), _mm256_and_si256(second, low));
        first = _mm256_srli_epi16(first, 8), second = _mm256_srli_epi16(second, 8);
    }
    store_bytes(plane[0], first, second);
}
/* What is above the whole number below x, and v * 2^(that number): 0 where x < -125, whatever v. */
AURA_INLINE vec vec_floor(vec x) { return vec_of(_mm256_floor_ps(x.lo), _mm256_floor_ps(x.hi)); }
AURA_INLINE vec vec_fraction(vec x) { return vec_sub(x, vec_floor(x)); }
AURA_INLINE vec vec_scale2(vec v, vec x) { return vec_below(x, -125.f, vec_exponent(v, vec_floor(x))); }
AURA_INLINE vec vec_from_int(ivec v) { return vec_of(_mm256_cvtepi32_ps(v.lo), _mm256_cvtepi32_ps(v.hi)); }
/* To the nearest whole number, ties to even. */
AURA_INLINE ivec ivec_from_vec(vec v) { return ivec_of(_mm256_cvtps_epi32(v.lo), _mm256_cvtps_epi32(v.hi)); }

/* 16 registers, two a vector: 4 queries, 2 where each has two sums. Keys go in unsigned, weights are. */
enum { KEYS_UNSIGNED = 1, WEIGHTS_SIGNED = 0, TILE_VECS = 1, TILE_ROWS = 4, TILE_SUMS = 4, FEEDBACK_ROWS = 4, FEEDBACK_FITS = 1 };

#endif
