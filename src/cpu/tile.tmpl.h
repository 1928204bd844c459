/* Quads out of the words of a tile: the one place where packed codes are decoded for attention, on every instruction set.
 *
 * A vector holds one word of 16 lanes (tokens for keys, channels for values). Codes stay in their byte, so a quad is a
 * shift, and then a table lookup (2 to 4 bits) or the join of low and high words (5 and 6 bits); 8 bits are there already. Bits of
 * the neighbours that a shift brings along are ignored by the lookup or masked by the join.
 *
 * Needs: ivec_load, ivec_shl, ivec_shr, ivec_and, ivec_select, ivec_lookup. */

/* Quad k of 16 lanes: bytes of the level table up to 4 bits, codes above. `low` and `high` are the low and
 * high words of this run, `lanes` words apart; k and kind are constants. */
AURA_INLINE ivec tile_quad(const uint32_t *low, const uint32_t *high, size_t lanes, ivec table, const int k, const int kind)
{
    const int nibble = 4 * (k % 2), pair = 2 * (k % 4);
    if (kind == 8)
        return ivec_load(low + (size_t)k * lanes);
    if (kind == 2)
        return ivec_lookup(table, ivec_shr(ivec_load(low + (size_t)(k / 4) * lanes), pair));
    if (kind == 3 && k >= 6) {
        const int at = k == 6 ? 3 : 7;
        ivec bit0 = ivec_shr(ivec_load(low), at), bit1 = ivec_shr(ivec_load(low + lanes), at - 1);
        ivec bit2 = ivec_shr(ivec_load(low + 2 * lanes), at - 2);
        return ivec_lookup(table, ivec_select(0x01010101, bit0, ivec_select(0x02020202, bit1, bit2)));
    }
    ivec four = ivec_shr(ivec_load(low + (size_t)(k / 2) * lanes), nibble);
    if (kind <= 4)
        return ivec_lookup(table, four);
    if (kind == 5) {
        ivec one = ivec_load(high);
        one = k < 4 ? ivec_shl(one, 4 - k) : ivec_shr(one, k - 4);
        return ivec_and(ivec_select(0x0f0f0f0f, four, one), 0x1f1f1f1f);
    }
    ivec two = ivec_load(high + (size_t)(k / 4) * lanes);
    two = pair < 4 ? ivec_shl(two, 4 - pair) : ivec_shr(two, pair - 4);
    return ivec_and(ivec_select(0x0f0f0f0f, four, two), 0x3f3f3f3f);
}

/* Where the low and the high words of a run begin. */
struct run {
    size_t low, high;
};

AURA_INLINE struct run tile_run(const struct aura_side *s, uint32_t run, const int kind)
{
    const size_t low = aura_low_words(kind), high = (size_t)kind - low;
    struct run at = {run * low * s->lanes, (s->runs * low + run * high) * s->lanes};
    return at;
}

/* Asks for `lines` lines of what will be read next, step by step. A burst for a whole tile at once is too many: the core can
 * wait for only so many lines. Into the second cache: the first waits for 16 lines at most, which is less than the memory can
 * deliver. */
AURA_INLINE void tile_prefetch(const struct aura_tile *tile, size_t step, const int lines)
{
    uintptr_t ahead = (uintptr_t)tile->ahead + step * 64 * (size_t)lines;
    AURA_UNROLL
    for (int i = 0; i < lines; i++)
        __builtin_prefetch((const void *)(ahead + 64 * (size_t)i), 0, 2);
}

/* Lines per step of a stage that reads `vecs` vectors of every word: three quarters of those. The weights ask for the others,
 * so that memory has work all the time: on an Intel Xeon (family 6, model 207) with 4 bits this made 7 to 10 % at 64k tokens. */
AURA_INLINE int tile_lines(const int vecs, const int kind)
{
    return (3 * vecs * kind + 3) / 4;
}

/* Four bytes of a query or of weights in every lane. */
AURA_INLINE ivec tile_four(const void *bytes, uint32_t flip)
{
    uint32_t four;
    memcpy(&four, bytes, sizeof four);
    return ivec_set1((int32_t)(four ^ flip));
}
