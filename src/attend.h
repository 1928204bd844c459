/* One attention call: what is to be done, and where its intermediate results are. attend_plan.c lays it out, attend.c
 * does it. */
#ifndef AURA_ATTEND_H
#define AURA_ATTEND_H

#include "cache.h"

enum {
    AURA_SPLIT = 1024,       /* tokens of a partial result; fixed, so that results do not depend on who computes them */
    AURA_BLOCK_ROWS = 32,    /* most rows that share one pass over the tiles; a row is one query head of one query token */
    AURA_BLOCK_FLOATS = 8192 /* and most floats of their accumulators: 32 KiB of stack */
};

/* One job. Rows of a KV head are [query][head of the group]; a unit of work is a KV head and a block of its rows. */
struct aura_attend_plan {
    const aura_attend_job *job;
    const struct aura_sequence *seq;
    uint64_t len;
    size_t rows;        /* of one KV head */
    size_t blocks;      /* of one KV head */
    size_t splits;
    size_t first_row, first_unit, first_item, first_partial;
};

/* A partial result: weights are in units of 2^max. */
struct aura_partial {
    float max, sum;
};

struct aura_attend {
    const aura_cache *cache;
    const aura_attend_job *jobs;
    size_t n_jobs;
    aura_attend_options options;      /* with the defaults filled in */
    uint32_t k_planes, v_planes;
    size_t block_rows;
    float unit;                       /* of logits: scale * log2 e */

    size_t rows, units, items, partials;
    size_t splits_per_item;           /* 0: an item is a unit, and merges its splits as it goes */
    /* in the workspace */
    struct aura_attend_plan *plan;    /* [n_jobs] */
    struct aura_query *query;         /* [rows], packed keys */
    float *q;                         /* [rows][k_dim]: the query in units of 2^logit, rotated where the keys are */
    float *factor;                    /* [rows], packed keys: from integers to logits */
    uint8_t *bad;                     /* [rows]: the row will be NaN */
    struct aura_partial *partial;     /* [partials]: by row, by split of a row */
    float *acc;                       /* [partials][v_dim] */
};

/* The options with their defaults, checked. NULL: all defaults. */
aura_status aura_attend_set(struct aura_call call, struct aura_attend *a, const aura_attend_options *given);
/* Fills everything but the workspace; *bytes is what that takes. `tokens` not 0 stands for the length of every sequence.
 * With plan_only, of the jobs only seq and queries are looked at. */
aura_status aura_attend_measure(struct aura_call call, struct aura_attend *a, uint64_t tokens, int plan_only,
                                size_t *bytes);
/* Points into the workspace and fills the plans. */
void aura_attend_place(struct aura_attend *a, void *workspace);

/* With few rows several tiles go through the stages together: the softmax is a long chain of dependent steps, and there must
 * be enough to do beside it. */
enum {
    AURA_FEW_ROWS = 8,   /* up to here every block of rows unpacks for itself; above, once for all is cheaper */
    AURA_MANY_TILES = 2, /* that go together above */
    AURA_PASS_ROWS = AURA_BLOCK_ROWS * AURA_MANY_TILES, /* rows times tiles */
    AURA_NEAR_BYTES = 16 << 10 /* of tiles that go together, packed or unpacked; as many are prefetched */
};

/* Some rows of one KV head: a unit of work. */
struct aura_block {
    const struct aura_attend *a;
    const struct aura_attend_plan *plan;
    uint32_t head;        /* of the keys and values */
    size_t first, n;      /* rows of that head */
    size_t row;           /* the first of them among all rows */
    size_t tiles;         /* that go through the stages together */
    uint64_t begin, end;  /* tokens that any of them sees */
    uint64_t all_begin, all_end; /* tokens that all of them see */
};

static inline uint32_t aura_ratio_of(const struct aura_attend *a)
{
    return a->cache->config.q_heads / a->cache->config.kv_heads;
}

/* Which query token and which query head row i of a block is. */
static inline size_t aura_query_of(const struct aura_block *b, size_t i)
{
    return (b->first + i) / aura_ratio_of(b->a);
}

static inline uint32_t aura_q_head_of(const struct aura_block *b, size_t i)
{
    return b->head * aura_ratio_of(b->a) + (uint32_t)((b->first + i) % aura_ratio_of(b->a));
}

/* One past the newest key that row i may see; its position is the one before. */
static inline uint64_t aura_row_end(const struct aura_block *b, size_t i)
{
    return b->a->options.not_causal ? b->plan->len : b->plan->len - b->plan->job->queries + aura_query_of(b, i) + 1;
}

static inline uint64_t aura_row_begin(const struct aura_block *b, size_t i)
{
    uint64_t end = aura_row_end(b, i), window = b->a->options.window;
    return window && window < end ? end - window : 0;
}

/* A tile of the block's KV head, and what is where in it. */
struct aura_place {
    const uint8_t *tile, *ahead; /* this one, and the one that will be read in its place next time */
    uint64_t first;              /* token */
    uint32_t columns;            /* tokens that there are */
    uint32_t packed, packed_end; /* columns [packed, packed_end) are codes; those before are pinned, those after open */
};

/* What a pass over some tiles needs, 65 KiB of it: it lives on the stack of the thread. */
struct aura_pass {
    float acc[AURA_BLOCK_FLOATS];
    struct aura_softmax_row softmax[AURA_BLOCK_ROWS];
    struct aura_weight weight[AURA_PASS_ROWS];
    float bias[AURA_BLOCK_ROWS];
    _Alignas(64) float logit[AURA_PASS_ROWS][AURA_TILE]; /* [tile][row]; then 2^(logit - max) */
    _Alignas(64) uint32_t bytes[AURA_NEAR_BYTES / 4]; /* unpacked: a tile of keys, or several of values */
};

/* ---- attend_tile.c: the steps of attend_split ---- */

void aura_find_place(struct aura_place *place, const struct aura_block *block, uint64_t tile);
/* pass->bias: the score of the page's reference. */
void aura_page_bias(const struct aura_block *block, struct aura_pass *pass, uint64_t page);
/* logit[row][column], for all columns that there are. */
void aura_score_tile(const struct aura_block *block, struct aura_pass *pass, const struct aura_place *place,
                     float (*logit)[AURA_TILE]);
/* Softcap, then ALiBi, then the mask. */
void aura_apply_options(const struct aura_block *block, const struct aura_place *place, float (*logits)[AURA_TILE]);
/* -inf in the columns that a row may not see: by index, never by what is in them. */
void aura_hide_columns(const struct aura_block *block, const struct aura_place *place, float (*logit)[AURA_TILE]);
/* Value scales, 0 for columns that hold no code; in the tile, or in `copy`. */
const uint16_t *aura_value_scales(const struct aura_block *block, const struct aura_place *place, uint16_t copy[AURA_TILE]);
/* n tiles into pass->acc: codes of all at once, then what is kept in rows. */
void aura_value_tiles(const struct aura_block *block, struct aura_pass *pass, const struct aura_place *place, size_t n);

#endif
