/* Tokens into tiles: reference, codes, pack. */
#ifndef AURA_TILE_H
#define AURA_TILE_H

#include "cache.h"
#include "../base/view.h"

/* What a job brings. */
struct aura_given {
    uint32_t tokens;
    const aura_input *k, *v; /* v may be NULL: no values */
    int zeros;               /* vectors that cannot be stored become zeros */
};
typedef struct aura_given aura_given_of(const void *jobs, size_t i);

/* That the tensors of a job can be read. */
aura_status aura_check_input(struct aura_call call, const aura_cache *cache, uint32_t tokens, const aura_input *k,
                             const aura_input *v);
/* That every vector can be stored, or becomes zeros: AURA_BAD_VALUE and the first that cannot. */
aura_status aura_check_vectors(struct aura_call call, const aura_cache *cache, aura_given_of *given_of, const void *jobs,
                               size_t n_jobs);

/* A vector of the model gets the balance of its side. */
void aura_balance_vector(float *x, const aura_cache *cache, uint32_t head, int values);
/* One vector of the caller's, with its balance, with zeros up to the dim that is stored. */
void aura_load_vector(float *x, const aura_cache *cache, const aura_input *view, size_t token, uint32_t head, int values);

/* Rows of f16, row after row, of n vectors x, which are rotated in place. */
void aura_rotate_rows(uint16_t *rows, float *x, const aura_cache *cache, size_t n, int values);

/* Whether all vectors of which these are the numbers can be stored, at a glance. 0: who knows. */
int aura_are_surely_good(const aura_cache *cache, const void *numbers, aura_dtype dtype, size_t n, int values);

/* Whether it cannot be stored. NaN cannot. */
int aura_is_bad_vector(const aura_cache *cache, const float *x, int values);

/* The reference of a page, of which `head` is the part of one KV head: to numbers, and from them. */
void aura_load_reference(float *r, const aura_cache *cache, const uint8_t *head);
void aura_store_reference(const aura_cache *cache, uint8_t *head, const float *mean);

/* The reference of a page: the mean of its first encoded keys, rows[n][k_dim] in token order, whose tile closes. */
void aura_mean_reference(const aura_cache *cache, uint8_t *head, const uint16_t *const *rows, uint32_t n);

/* Codes of tokens [first, end) of a tile of a KV head from rows[][dim], f16, for those columns; the other columns keep theirs.
 * Keys are relative to r, or NULL: to nothing. */
void aura_encode_keys(const aura_cache *cache, uint8_t *tile, uint32_t head, uint32_t first, uint32_t end,
                      const uint16_t *const rows[AURA_TILE], const float *r);
void aura_encode_values(const aura_cache *cache, uint8_t *tile, uint32_t head, uint32_t first, uint32_t end,
                        const uint16_t *const rows[AURA_TILE]);

/* One vector of a plain side to column c of a tile. */
void aura_store_plain(const aura_cache *cache, uint8_t *tile, uint32_t c, const float *x, int values);

#endif
