/* Rows of any kind as vectors, for row_score and row_value.
 *
 * Needs: row_codes.tmpl.h; vec_load_n, vec_keep, vec_load_f16, vec_load_bf16. */

/* The levels of packed rows; plain rows have none. */
AURA_INLINE struct table row_table(const struct aura_rows *rows, const int kind)
{
    static const float none[AURA_LANES];
    return kind <= 8 ? table_of(rows->centroid, kind) : table_of(none, 0);
}

/* Coordinates d to d + 15 of a row; with n = 8 only the first 8 are read and the others are 0. */
AURA_INLINE vec row_vec(const struct aura_rows *rows, const struct table *centroid, size_t t, uint32_t d, uint32_t n,
                        const int kind)
{
    const uint8_t *row = rows->data + t * rows->stride;
    const int bits = kind <= 8 ? kind : 8;
    if (kind == AURA_ROW_F32)
        return vec_load_n((const float *)(const void *)row + d, n);
    if (kind == AURA_ROW_F16)
        return vec_load_f16(row + 2 * d, n);
    if (kind == AURA_ROW_BF16)
        return vec_load_bf16(row + 2 * d, n);
    if (n < AURA_LANES)
        return vec_keep(table_lookup(centroid, codes_unpack(row + d * bits / 8, n, bits), bits), n); /* level 0 may be NaN */
    return table_lookup(centroid, codes_unpack16(row + d * bits / 8, bits), bits);
}

/* Asks for the row that comes a block later. A caller goes through keys, then values, a block at a time: while one side is
 * read, the other's next rows arrive. Addresses past the end are never loaded from. */
AURA_INLINE void row_prefetch(const struct aura_rows *rows, size_t t, const int kind)
{
    uintptr_t row = (uintptr_t)rows->data + t * rows->stride + rows->ahead;
    size_t bytes = kind <= 8 ? (size_t)rows->dim * (size_t)kind / 8 : (size_t)rows->dim * aura_plain_bytes((uint32_t)kind);
    for (size_t at = 0; at < bytes; at += 64)
        __builtin_prefetch((const void *)(row + at), 0, 2);
}
