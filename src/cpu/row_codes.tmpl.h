/* Codes in vectors: tables, and 16 codes to and from a packed row.
 *
 * Needs: vec, vec_load, vec_lookup, vec_lookup16; ivec, ivec_spread, ivec_bytes, ivec_load8, ivec_store8; pack8, unpack8. */

/* A table of floats, and its beginning in vectors: as many as an instruction set can look up without going to memory. */
struct table {
    const float *entry;
    vec part[4];
};

AURA_INLINE struct table table_of(const float *entry, const int bits)
{
    struct table table;
    table.entry = entry;
    AURA_UNROLL
    for (int i = 0; i < 4; i++)
        table.part[i] = vec_load(entry + (i < (1 << bits) / AURA_LANES ? i * AURA_LANES : 0));
    return table;
}

AURA_INLINE vec table_lookup(const struct table *table, ivec index, const int bits)
{
    return bits <= 4 ? vec_lookup16(table->part[0], index) : vec_lookup(table->entry, table->part, index, bits);
}

/* 16 codes, or with n = 8 the first 8, as exactly n * bits / 8 bytes. */
AURA_INLINE void codes_pack(uint8_t *packed, ivec index, uint32_t n, const int bits)
{
    uint64_t bytes[2];
    ivec_store8((uint8_t *)bytes, index);
    bytes[0] = pack8(bytes[0], bits);
    bytes[1] = pack8(bytes[1], bits);
    memcpy(packed, &bytes[0], bits);
    if (n == AURA_LANES)
        memcpy(packed + bits, &bytes[1], bits);
}

/* 16 codes, or with n = 8 the first 8 and zeros. */
AURA_INLINE ivec codes_unpack(const uint8_t *packed, uint32_t n, const int bits)
{
    uint64_t lo = unpack8(bits_load8(packed, bits), bits), hi = 0;
    if (n == AURA_LANES)
        hi = unpack8(bits_load8(packed + bits, bits), bits);
    return ivec_bytes(lo, hi);
}

/* 16 codes; up to 4 bits with their neighbours' bits above, which vec_lookup16 ignores. */
AURA_INLINE ivec codes_unpack16(const uint8_t *p, const int bits)
{
    uint32_t lo, hi;
    if (bits == 8)
        return ivec_load8(p);
    if (bits > 4)
        return codes_unpack(p, AURA_LANES, bits);
    memcpy(&lo, p, 4);
    memcpy(&hi, p + 2 * bits - 4, 4); /* the last 8 codes begin at its bit 32 - 8 * bits */
    return ivec_spread(lo, hi, bits, 32 - 8 * bits);
}
