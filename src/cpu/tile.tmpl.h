/* Quads out of the words of a tile: the one place where packed codes are decoded for attention, on every instruction set.
 *
 * A vector holds one word of 16 lanes (tokens for keys, channels for values). Codes stay in their byte, so a quad is a
 * shift, and then a table lookup (2 to 4 bits) or the join of low and high words (5 and 6 bits); 8 bits are there already. Bits of
 * the neighbours that a shift brings along are ignored by the lookup or masked by the join.
 *
 * A run of trellis codes becomes nibbles first, in the layout that 4 bits have but for the order of quads: bits 0 and 1 of a nibble
 * are the subset, for all 32 codes of a lane out of four words of single bits, bits 2 and 3 are of the code. The neighbours of a
 * channel are shifted bits of its own lane for keys, and the words of the next lanes for values.
 *
 * Needs: ivec_load, ivec_shl, ivec_shr, ivec_shr2, ivec_and, ivec_both, ivec_xor3, ivec_join, ivec_select, ivec_add8,
 *        ivec_table, ivec_tables, ivec_lookup, ivec_lookup2, ivec_set1, ivec_turn, ivec_store; LOOKUP_BITS, the bits of
 *        a byte that ivec_lookup looks at: 6 where its table is a whole vector, else 4. */

enum { TILE_MOST = 16 }; /* queries that share a pass over a tile, at most */

/* What a lookup finds for the low bits of a byte and, with 2 bits, for the two above them: a nibble is two codes, and none of
 * them has to be moved. */
struct levels {
    ivec low, high;
    tables two; /* t4: 32 levels, as ivec_lookup2 wants them */
};

/* The levels, with `offset` added to each; kind is a constant. */
AURA_INLINE struct levels tile_levels(const int8_t *level, int offset, const int kind)
{
    static const uint8_t above[64] = {
        0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3,
        0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3,
    };
    struct levels l;
    l.low = ivec_add8(ivec_table(level), aura_is_table(kind) ? offset : 0);
    if (aura_is_split(kind) && LOOKUP_BITS >= kind) { /* of values */
        int8_t all[64];
        for (int i = 0; i < 64; i++)
            all[i] = (int8_t)(2 * (i % (1 << kind)) + 1 - (1 << kind));
        l.low = ivec_load(all);
    }
    l.high = kind == 2 ? ivec_lookup(l.low, ivec_load(above), 0) : l.low;
    l.two = ivec_tables(l.low, kind == AURA_TRELLIS_4 ? ivec_add8(ivec_table(level + 16), offset) : l.low);
    return l;
}

/* A run of trellis codes of 16 lanes: quad k has its nibbles in part 2 (k % 2) + k / 2 % 2, shifted by k / 4 * 4; bit 3 of t4 is in
 * bit k ^ 4 of `last`. Of the other kinds: nothing. */
struct nibbles {
    ivec subset[2]; /* of quads 0, 2, 4, 6 and of the others, two bits each */
    ivec part[4], last;
};

/* Parts j and 2 + j: those of quads 2 j, 2 j + 1, 2 j + 4 and 2 j + 5. */
AURA_INLINE void tile_parts(struct nibbles *n, const uint32_t *low, size_t lanes, const int j, const int kind)
{
    if (!aura_is_trellis(kind))
        return;
    AURA_UNROLL
    for (int w = 0; w < 2; w++) {
        const ivec more = ivec_load(low + (size_t)(kind == AURA_TRELLIS_2 ? 1 : 1 + w) * lanes);
        const int up = 2 - 2 * j - (kind == AURA_TRELLIS_2 ? w : 0); /* bits to the left */
        const ivec there = up > 0 ? ivec_shl(more, up) : ivec_shr(more, -up);
        n->part[2 * w + j] = ivec_select(0x33333333, ivec_shr(n->subset[w], 2 * j), there);
    }
}

/* u[i]: bit 0 of the codes of the channel i further along the path. Without parts. */
AURA_INLINE struct nibbles tile_subsets(const ivec u[4], const uint32_t *low, size_t lanes, const int kind)
{
    const ivec z1 = ivec_xor3(u[0], u[1], u[3]), z0 = u[2];
    struct nibbles n;
    n.subset[0] = ivec_select(0x55555555, z0, ivec_shl(z1, 1)), n.subset[1] = ivec_select(0x55555555, ivec_shr(z0, 1), z1);
    n.part[0] = n.part[1] = n.part[2] = n.part[3] = ivec_set1(0);
    n.last = kind == AURA_TRELLIS_4 ? ivec_load(low + 3 * lanes) : ivec_set1(0);
    return n;
}
AURA_INLINE struct nibbles tile_no_nibbles(void)
{
    struct nibbles n;
    n.subset[0] = n.subset[1] = n.part[0] = n.part[1] = n.part[2] = n.part[3] = n.last = ivec_set1(0);
    return n;
}

/* Of a run of keys, without parts. `next`: the words of the run after it, or zeros. */
AURA_INLINE struct nibbles tile_key_subsets(const uint32_t *low, const uint32_t *next, const int kind)
{
    if (!aura_is_trellis(kind))
        return tile_no_nibbles();
    const ivec here = ivec_load(low), after = ivec_load(next);
    ivec u[4] = {here, here, here, here};
    AURA_UNROLL
    for (int i = 1; i < 4; i++)
        u[i] = ivec_shr2(here, after, i);
    return tile_subsets(u, low, AURA_TILE, kind);
}

/* Of 16 channels of values, without parts; left: how many there are from the first of them on. */
AURA_INLINE struct nibbles tile_value_subsets(const uint32_t *low, size_t lanes, uint32_t left, const int kind)
{
    static const uint32_t keep[19] = {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0, 0, 0};
    if (!aura_is_trellis(kind))
        return tile_no_nibbles();
    ivec u[4];
    AURA_UNROLL
    for (int i = 0; i < 4; i++)
        u[i] = ivec_load(low + i);
    if (left <= 16)
        AURA_UNROLL
        for (int i = 1; i < 4; i++)
            u[i] = ivec_both(u[i], ivec_load(keep + i));
    return tile_subsets(u, low, lanes, kind);
}
AURA_INLINE struct nibbles tile_value_nibbles(const uint32_t *low, size_t lanes, uint32_t left, const int kind)
{
    struct nibbles n = tile_value_subsets(low, lanes, left, kind);
    tile_parts(&n, low, lanes, 0, kind), tile_parts(&n, low, lanes, 1, kind);
    return n;
}

/* What codes of 5 and 6 bits have above the lower four, at bit 4 of each byte of quad k, among bits of other quads. */
AURA_INLINE ivec tile_high(const uint32_t *high, size_t lanes, const int k, const int kind)
{
    const int shift = kind == 5 ? 4 - k : 4 - 2 * (k % 4);
    const ivec words = ivec_load(kind == 5 ? high : high + (size_t)(k / 4) * lanes);
    return shift > 0 ? ivec_shl(words, shift) : ivec_shr(words, -shift);
}

/* Quad k of 16 lanes: bytes of the level table up to 4 bits, codes above. `low` and `high` are the low and
 * high words of this run, `lanes` words apart; k and kind are constants. */
AURA_INLINE ivec tile_quad(const uint32_t *low, const uint32_t *high, size_t lanes, const struct nibbles *nibbles,
                           struct levels levels, const int k, const int kind)
{
    const int nibble = 4 * (k % 2);
    if (aura_is_trellis(kind)) {
        const ivec n = nibbles->part[2 * (k % 2) + k / 2 % 2];
        if (kind == AURA_TRELLIS_4)
            return ivec_lookup2(levels.two, n, nibbles->last, k);
        return ivec_lookup(levels.low, n, k / 4 * 4);
    }
    if (kind == 8)
        return ivec_load(low + (size_t)k * lanes);
    if (kind == 2)
        return ivec_lookup(k % 2 ? levels.high : levels.low, ivec_load(low + (size_t)(k / 4) * lanes), k % 4 / 2 * 4);
    if (kind == 3 && k >= 6) { /* nibbles of the spare bits: both quads at once */
        ivec bit0 = ivec_shr(ivec_load(low), 3), bit1 = ivec_shr(ivec_load(low + lanes), 2);
        ivec bit2 = ivec_shr(ivec_load(low + 2 * lanes), 1);
        return ivec_lookup(levels.low, ivec_select(0x11111111, bit0, ivec_select(0x22222222, bit1, bit2)), nibble);
    }
    const ivec pair = ivec_load(low + (size_t)(k / 2) * lanes), four = ivec_shr(pair, nibble);
    if (kind <= 4)
        return ivec_lookup(levels.low, pair, nibble);
    return ivec_join(four, 0x0f0f0f0f, tile_high(high, lanes, k, kind), kind == 5 ? 0x10101010 : 0x30303030);
}

/* Where the low and the high words of a run begin. */
struct run {
    size_t low, high;
};

AURA_INLINE struct run tile_run(const struct aura_side *s, uint32_t run, const int kind)
{
    const size_t low = aura_low_words(kind), high = aura_bits_of(kind) - low;
    struct run at = {run * low * s->lanes, (s->runs * low + run * high) * s->lanes};
    return at;
}

/* Whether quads of values are levels. Of codes that are split they are where a lookup makes them: then no row needs the sum of its
 * weights. To make them by two additions is slower where a vector is several registers. */
AURA_INLINE int tile_has_levels(const int kind) { return !aura_is_split(kind) || LOOKUP_BITS >= kind; }

/* The same of a tile of values, 16 channels; `words` are theirs. */
AURA_INLINE ivec tile_value_quad(const uint32_t *words, struct run at, const struct aura_side *s, const struct nibbles *nibbles,
                                 struct levels levels, const int k, const int kind)
{
    if (aura_is_split(kind) && tile_has_levels(kind)) {
        const ivec four = ivec_shr(ivec_load(words + at.low + (size_t)(k / 2) * s->lanes), 4 * (k % 2));
        return ivec_lookup(levels.low, ivec_select(0x0f0f0f0f, four, tile_high(words + at.high, s->lanes, k, kind)), 0);
    }
    return tile_quad(words + at.low, words + at.high, s->lanes, nibbles, levels, k, kind);
}

/* The same of a tile of keys, 16 tokens from `lane` on. `offset` is what tables have in them already. */
AURA_INLINE ivec tile_key_quad(const struct aura_tile *tile, struct run at, size_t lane, const struct nibbles *nibbles,
                               struct levels levels, int offset, const int k, const int kind)
{
    const uint32_t *words = tile->words + lane;
    ivec x = tile_quad(words + at.low, words + at.high, AURA_TILE, nibbles, levels, k, kind);
    return kind == 8 ? ivec_add8(x, offset) : x;
}

/* Of a run of keys, 16 tokens from `lane` on. */
AURA_INLINE const uint32_t *tile_run_low(const struct aura_tile *tile, struct run at, size_t lane)
{
    return tile->words + at.low + lane;
}
AURA_INLINE const uint32_t *tile_run_next(const struct aura_tile *tile, struct run at, uint32_t run, size_t lane, const int kind)
{
    static const uint32_t none[AURA_LANES];
    return run + 1 < tile->side->runs ? tile_run_low(tile, at, lane) + (size_t)aura_bits_of(kind) * AURA_TILE : none;
}
AURA_INLINE struct nibbles tile_run_nibbles(const struct aura_tile *tile, struct run at, uint32_t run, size_t lane, const int kind)
{
    const uint32_t *low = tile_run_low(tile, at, lane);
    struct nibbles n = tile_key_subsets(low, tile_run_next(tile, at, run, lane, kind), kind);
    tile_parts(&n, low, AURA_TILE, 0, kind), tile_parts(&n, low, AURA_TILE, 1, kind);
    return n;
}

/* Queries in the order in which codes of keys lie. */
AURA_INLINE void tile_turn(int8_t plane[2][AURA_TILE_DIM], const struct aura_query *q, uint32_t dim, const int planes)
{
    for (int p = 0; p < planes; p++)
        for (uint32_t d = 0; d < dim; d += 64)
            ivec_store(plane[p] + d, ivec_turn(ivec_load(q->plane[p] + d)));
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
    return (3 * vecs * (int)aura_bits_of(kind) + 3) / 4;
}

/* Four bytes of a query or of weights in every lane. */
AURA_INLINE ivec tile_four(const void *bytes, uint32_t flip)
{
    uint32_t four;
    memcpy(&four, bytes, sizeof four);
    return ivec_set1((int32_t)(four ^ flip));
}

/* The sum of 32 bytes, eight at a time. */
AURA_INLINE int32_t tile_byte_sum(const uint8_t *byte)
{
    const uint64_t even = 0x00ff00ff00ff00ffu;
    uint64_t sums = 0, eight;
    for (int i = 0; i < AURA_TILE; i += 8) {
        memcpy(&eight, byte + i, sizeof eight);
        sums += (eight & even) + (eight >> 8 & even);
    }
    return (int32_t)(sums * 0x0001000100010001u >> 48);
}

/* The sum of the integer weights: what a constant in all levels adds. */
AURA_INLINE int32_t tile_weight_sum(const struct aura_weight *w, const int planes)
{
    int32_t hi = tile_byte_sum(w->plane[0]);
    return planes == 1 ? hi : 256 * hi + tile_byte_sum(w->plane[1]);
}
