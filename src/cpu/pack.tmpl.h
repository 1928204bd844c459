/* pack and unpack, written once over the words of an instruction set: indices into the words of a tile, and its words into numbers.
 *
 * A lane of values is a channel, so that rows of tokens are read and written as they lie. A lane of keys is a token: quads of
 * 16 tokens are transposed, eight at a time.
 *
 * Needs: tile.tmpl.h; ivec_load8, ivec_plus, ivec_and, ivec_shl, ivec_shr, ivec_sar, ivec_add8, ivec_zero, ivec_store,
 *        ivec_columns, ivec_rows; vec_from_int, vec_fma, vec_mul, vec_set1, vec_store; AURA_ISA. */

/* aura_pack_single() and aura_pack_pair() of 16 lanes. */
AURA_INLINE ivec pack_single(const ivec *quad, const int at)
{
    ivec word = ivec_zero();
    AURA_UNROLL
    for (int k = 0; k < 8; k++)
        word = ivec_plus(word, ivec_shl(ivec_and(ivec_shr(quad[k], at), 0x01010101), at == 3 ? k ^ 4 : k));
    return word;
}

AURA_INLINE ivec pack_pair(const ivec *quad, const int at, const int w)
{
    ivec word = ivec_zero();
    AURA_UNROLL
    for (int j = 0; j < 4; j++)
        word = ivec_plus(word, ivec_shl(ivec_and(ivec_shr(quad[2 * j + w], at), 0x03030303), 2 * j));
    return word;
}

/* word[kind] = the codes of a run, given as quads: aura_pack_run() of 16 lanes. Not for trellis codes. */
AURA_INLINE void pack_run(ivec *word, const ivec *quad, const int kind)
{
    const int low = kind > 4 && kind < 8 ? 4 : kind, pairs = kind == 6; /* pairs: bits 4 and 5 have two words */
    AURA_UNROLL
    for (int w = 0; w < low; w++) {
        if (kind == 8)
            word[w] = quad[w];
        else if (kind == 2)
            word[w] = ivec_plus(ivec_plus(quad[4 * w], ivec_shl(quad[4 * w + 1], 2)),
                                ivec_plus(ivec_shl(quad[4 * w + 2], 4), ivec_shl(quad[4 * w + 3], 6)));
        else
            word[w] = ivec_plus(ivec_and(quad[2 * w], 0x0f0f0f0f), ivec_shl(ivec_and(quad[2 * w + 1], 0x0f0f0f0f), 4));
        if (kind == 3)
            word[w] = ivec_plus(word[w], ivec_plus(ivec_shl(ivec_and(ivec_shr(quad[6], w), 0x01010101), 3),
                                                   ivec_shl(ivec_and(ivec_shr(quad[7], w), 0x01010101), 7)));
    }
    if (kind == 5)
        word[4] = ivec_zero();
    AURA_UNROLL
    for (int k = 0; k < 8; k++)
        if (kind == 5)
            word[4] = ivec_plus(word[4], ivec_shl(ivec_and(ivec_shr(quad[k], 4), 0x01010101), k));
    AURA_UNROLL
    for (int k = 0; k < 8; k++)
        if (pairs && k % 4 == 0)
            word[4 + k / 4] = ivec_and(ivec_shr(quad[k], 4), 0x03030303);
        else if (pairs)
            word[4 + k / 4] = ivec_plus(word[4 + k / 4], ivec_shl(ivec_and(ivec_shr(quad[k], 4), 0x03030303), 2 * (k % 4)));
}

/* Words of a run, 16 lanes from `lane` on. */
AURA_INLINE void pack_store(uint32_t *words, const struct aura_side *s, uint32_t run, size_t lane, const ivec *quad, const int kind)
{
    ivec word[8];
    if (kind >= AURA_TRELLIS_2) {
        uint32_t *to = words + aura_word_at(s, run, 0) + lane;
        ivec_store(to, pack_single(quad, 0));
        ivec_store(to + s->lanes, kind == AURA_TRELLIS_2 ? pack_single(quad, 1) : pack_pair(quad, 1, 0));
        if (kind > AURA_TRELLIS_2)
            ivec_store(to + 2 * s->lanes, pack_pair(quad, 1, 1));
        if (kind == AURA_TRELLIS_4)
            ivec_store(to + 3 * s->lanes, pack_single(quad, 3));
        return;
    }
    pack_run(word, quad, kind > 8 ? 8 : kind);
    AURA_UNROLL
    for (uint32_t w = 0; w < (kind > 8 ? 8u : (uint32_t)kind); w++)
        ivec_store(words + aura_word_at(s, run, w) + lane, word[w]);
}

AURA_INLINE void pack_keys(uint32_t *words, const uint8_t *index, const struct aura_side *s, const int kind)
{
    for (uint32_t run = 0; run < s->runs; run++)
        for (uint32_t c = 0; c < AURA_TILE; c += AURA_LANES) {
            const uint8_t *from = index + (size_t)c * s->dim + run * AURA_RUN;
            const int whole = s->dim - run * AURA_RUN >= AURA_RUN;
            ivec quad[8];
            if (aura_is_trellis(kind)) {
                uint8_t turned[AURA_LANES][AURA_RUN] = {{0}};
                for (uint32_t i = 0; i < AURA_LANES * (whole ? 32u : 16u); i++)
                    turned[i % AURA_LANES][aura_place(s, i / AURA_LANES)] = from[i % AURA_LANES * s->dim + i / AURA_LANES];
                ivec_columns(quad, turned[0], AURA_RUN, 8);
                pack_store(words, s, run, c, quad, kind);
                continue;
            }
            ivec_columns(quad, from, s->dim, whole ? 8 : 4);
            AURA_UNROLL
            for (int k = 0; k < 8; k++) /* what is beyond dim is code 0 */
                quad[k] = k < 4 || whole ? ivec_add8(quad[k], kind == 8 ? -127 : 0) : ivec_zero();
            pack_store(words, s, run, c, quad, kind);
        }
}

AURA_INLINE void pack_values(uint32_t *words, const uint8_t *index, const struct aura_side *s, const int kind)
{
    for (uint32_t d = 0; d < s->dim; d += AURA_LANES) {
        ivec quad[8];
        AURA_UNROLL
        for (int k = 0; k < 8; k++) {
            const uint8_t *from = index + 4 * (size_t)k * s->dim + d;
            ivec two = ivec_plus(ivec_load8(from), ivec_shl(ivec_load8(from + s->dim), 8));
            from += 2 * s->dim;
            quad[k] = ivec_plus(two, ivec_plus(ivec_shl(ivec_load8(from), 16), ivec_shl(ivec_load8(from + s->dim), 24)));
            quad[k] = ivec_add8(quad[k], kind == 8 ? -127 : 0);
        }
        pack_store(words, s, 0, d, quad, kind);
    }
}

#define AURA_STAMP(stage, shape, kind, isa)                                                               \
    void aura_pack_##shape##_##isa(uint32_t *words, const uint8_t *index, const struct aura_side *s)      \
    {                                                                                                     \
        if (s->lanes == AURA_TILE)                                                                        \
            pack_keys(words, index, s, kind);                                                             \
        else                                                                                              \
            pack_values(words, index, s, kind);                                                           \
    }
AURA_SHAPES_pack(AURA_STAMP, pack, AURA_ISA)
#undef AURA_STAMP

/* ---- the other way ------------------------------------------------------------------------------------------------- */

/* Numbers of 16 codes or, up to 4 bits, levels in the bytes `byte` of lanes; r, where it is not NULL, is added. */
AURA_INLINE void unpack_store(float *x, ivec quad, const struct aura_side *s, vec scale, const float *r, const int byte,
                              const int kind)
{
    ivec one = ivec_sar(ivec_shl(quad, 24 - 8 * byte), 24);
    vec level = vec_from_int(one);
    if (kind > 4 && kind < 8) /* the odd numbers around 0 */
        level = vec_fma(level, vec_set1(2), vec_set1((float)(1 - (1 << kind))));
    vec number = vec_mul(vec_mul(vec_set1(s->step), level), scale);
    vec_store(x, r ? vec_add(number, vec_load(r)) : number);
}

/* Bytes 4 k + i become bytes 8 i + k. */
AURA_INLINE void unpack_turn(uint8_t *run)
{
    uint8_t turned[AURA_RUN];
    memcpy(turned, run, AURA_RUN);
    for (uint32_t i = 0; i < AURA_RUN; i++)
        run[i] = turned[4 * (i % 8) + i / 8];
}

/* Rows [from, to) of 16 tokens from `lane` on. */
AURA_INLINE void unpack_keys(float *x, const struct aura_tile *tile, uint32_t from, uint32_t to, const float *r, const int kind)
{
    const struct aura_side *s = tile->side;
    const struct levels levels = tile_levels(s->level, 0, kind);
    uint8_t code[AURA_LANES * (AURA_TILE_DIM + AURA_RUN)]; /* a row of a token each, whole runs */
    const size_t stride = s->runs * AURA_RUN;
    for (uint32_t c = from / AURA_LANES * AURA_LANES; c < to; c += AURA_LANES) {
        for (uint32_t run = 0; run < s->runs; run++) {
            const struct run at = tile_run(s, run, kind);
            const struct nibbles nibbles = tile_run_nibbles(tile, at, run, c, kind);
            ivec quad[8];
            AURA_UNROLL
            for (int k = 0; k < 8; k++)
                quad[k] = tile_quad(tile->words + at.low + c, tile->words + at.high + c, AURA_TILE, &nibbles, levels, k, kind);
            ivec_rows(code + run * AURA_RUN, stride, quad);
            for (uint32_t t = 0; aura_is_trellis(kind) && t < AURA_LANES; t++)
                unpack_turn(code + run * AURA_RUN + t * stride);
        }
        for (uint32_t t = c < from ? from : c; t < to && t < c + AURA_LANES; t++) {
            const vec scale = vec_set1(aura_f32_from_f16(tile->scale[t]));
            for (uint32_t d = 0; d < s->dim; d += AURA_LANES)
                unpack_store(x + (size_t)(t - from) * s->dim + d, ivec_load8(code + (t - c) * stride + d), s, scale,
                             r ? r + d : NULL, 0, kind);
        }
    }
}

AURA_INLINE void unpack_values(float *x, const struct aura_tile *tile, uint32_t from, uint32_t to, const float *r, const int kind)
{
    const struct aura_side *s = tile->side;
    const struct levels levels = tile_levels(s->level, 0, kind);
    const struct run at = tile_run(s, 0, kind);
    float scale[AURA_TILE];
    for (uint32_t t = from; t < to; t++)
        scale[t] = aura_f32_from_f16(tile->scale[t]);
    for (uint32_t d = 0; d < s->dim; d += AURA_LANES) {
        const struct nibbles nibbles = tile_value_nibbles(tile->words + d, s->lanes, s->dim - d, kind);
        AURA_UNROLL
        for (int k = 0; k < 8; k++) {
            if (from >= 4 * (uint32_t)k + 4 || to <= 4 * (uint32_t)k)
                continue;
            const ivec quad =
                tile_quad(tile->words + at.low + d, tile->words + at.high + d, s->lanes, &nibbles, levels, k, kind);
            AURA_UNROLL
            for (int i = 0; i < 4; i++) {
                const uint32_t t = 4 * (uint32_t)k + (uint32_t)i;
                if (t >= from && t < to)
                    unpack_store(x + (size_t)(t - from) * s->dim + d, quad, s, vec_set1(scale[t]), r ? r + d : NULL, i, kind);
            }
        }
    }
}

#define AURA_STAMP(stage, shape, kind, isa)                                                                              \
    void aura_unpack_##shape##_##isa(float *x, const struct aura_tile *tile, uint32_t from, uint32_t to, const float *r) \
    {                                                                                                                    \
        if (tile->side->lanes == AURA_TILE)                                                                              \
            unpack_keys(x, tile, from, to, r, kind);                                                                     \
        else                                                                                                             \
            unpack_values(x, tile, from, to, r, kind);                                                                   \
    }
AURA_SHAPES_unpack(AURA_STAMP, unpack, AURA_ISA)
#undef AURA_STAMP
