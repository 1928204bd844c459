/* Lookups of avx512vnni and amx: vpermb looks at 6 bits of each byte. Included after avx512.h. */
#ifndef AURA_CPU_VBMI_H
#define AURA_CPU_VBMI_H

enum { LOOKUP_BITS = 6 };

/* The entry for 6 bits of each byte, from bit `shift`, 0 or 4, on. A table of 16 is there four times, so the upper two bits do not
 * matter: nothing to mask. */
AURA_INLINE ivec ivec_lookup(ivec table, ivec codes, const int shift)
{
    return _mm512_permutexvar_epi8(ivec_shr(codes, shift), table);
}

/* The same of two tables for nibble k / 4 of each byte: of the second where bit k ^ 4 of that byte of `which` is set. An index is a
 * nibble and the bit wherever they are in 6 bits, with a table for each place: lower nibbles stay, upper ones are shifted by 2, and
 * of the bits only half are shifted, all at once. */
typedef struct {
    ivec of[4];
} tables;
AURA_INLINE tables ivec_tables(ivec first, ivec second)
{
    tables t;
    uint8_t index[2][64];
    for (int i = 0; i < 64; i++) {
        index[0][i] = (uint8_t)(i >> 2 | (i & 1) << 4);
        index[1][i] = (uint8_t)(i >> 2 | (i >> 1 & 1) << 4);
    }
    t.of[0] = _mm512_mask_blend_epi32(0xf0f0, first, second); /* nibble in bits 0 to 3, bit 4 */
    t.of[1] = _mm512_mask_blend_epi32(0xff00, first, second); /* bit 5 */
    t.of[2] = _mm512_permutexvar_epi8(ivec_load(index[0]), t.of[0]); /* nibble in bits 2 to 5, bit 0 */
    t.of[3] = _mm512_permutexvar_epi8(ivec_load(index[1]), t.of[0]); /* bit 1 */
    return t;
}
AURA_INLINE ivec ivec_lookup2(tables t, ivec codes, ivec which, const int k)
{
    which = k & 2 ? ivec_shr(which, 2) : which;
    codes = k < 4 ? ivec_select(0x0f0f0f0f, codes, which) : ivec_select(0x3c3c3c3c, ivec_shr(codes, 2), which);
    return _mm512_permutexvar_epi8(codes, t.of[k / 4 * 2 + k % 2]);
}

#endif
