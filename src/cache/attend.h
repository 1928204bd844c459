/* One attention call: what is to be done, and where its intermediate results are. attend_plan.c lays it out, attend.c
 * does it. */
#ifndef AURA_ATTEND_H
#define AURA_ATTEND_H

#include "cache.h"

enum {
    AURA_SPLIT = 1024,       /* tokens of a partial result; fixed, so that results do not depend on who computes them */
    AURA_BLOCK_ROWS = 32,    /* most rows that share one pass over the tiles; a row is one query head of one query token */
    AURA_BLOCK_FLOATS = 8192, /* and most floats of their accumulators: 32 KiB of stack */
    AURA_PASS_ROWS = AURA_BLOCK_ROWS * AURA_TILES
};

/* One job. Rows of a KV head are [query][head of the group]; a unit of work is a KV head and a block of its rows. */
struct aura_attend_plan {
    const aura_attend_job *job;
    const struct aura_sequence *seq;
    uint64_t len, closed;
    size_t rows;        /* of one KV head */
    size_t blocks;      /* of one KV head */
    size_t splits;      /* that any row sees something of: the first kept_splits, and those from first_split on */
    size_t kept_splits, first_split;
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
    const struct aura_append *first;  /* what is appended before; NULL: nothing */
    aura_attend_options options;      /* with the defaults filled in */
    uint32_t k_planes, v_planes;
    uint32_t q_heads;
    size_t block_rows;
    uint64_t split;                   /* tokens of a partial result: AURA_SPLIT of them are here */
    float unit;                       /* of logits: scale * log2 e */
    float limit_of_call;              /* see rules.h */

    size_t rows, units, items, partials;
    size_t splits_per_item;           /* 0: an item is a unit, and merges its splits as it goes */
    int whole;                        /* every unit is one item */
    int one_block;                    /* every KV head of a job is one unit at most */
    /* in the workspace */
    struct aura_attend_plan *plan;    /* [n_jobs] */
    struct aura_query *query;         /* [rows], packed keys */
    float *q;                         /* [rows][stored k dim]: the query in units of 2^logit, rotated where the keys are */
    float *factor;                    /* [rows], packed keys: from integers to logits */
    uint16_t *limit;                  /* [rows], packed keys: the largest scale of a key that takes one plane, f16 */
    uint8_t *bad;                     /* [rows]: the row will be NaN */
    struct aura_partial *partial;     /* [partials]: by row, by split of a row */
    float *acc;                       /* [partials][stored v dim] */
};

/* How many query heads the jobs have. Looks at nothing else in them. */
aura_status aura_attend_heads(struct aura_call call, struct aura_attend *a);
/* The options with their defaults, checked. NULL: all defaults. */
aura_status aura_attend_set(struct aura_call call, struct aura_attend *a, const aura_attend_options *given);
/* Fills everything but the workspace; *bytes is what that takes. `tokens` not 0 stands for the length of every sequence.
 * With plan_only, of the jobs only seq, queries and q_heads are looked at. */
aura_status aura_attend_measure(struct aura_call call, struct aura_attend *a, uint64_t tokens, int plan_only,
                                size_t *bytes);
/* Points into the workspace and fills the plans. */
void aura_attend_place(struct aura_attend *a, void *workspace);
/* The call, with cache, jobs and `first` filled in; `first` was checked. */
aura_status aura_attend_all(struct aura_call call, struct aura_attend *a, const aura_attend_options *options);

/* Some rows of one KV head: a unit of work. */
struct aura_block {
    const struct aura_attend *a;
    const struct aura_attend_plan *plan;
    uint32_t head;        /* of the keys and values */
    size_t first, n;      /* rows of that head */
    size_t row;           /* the first of them among all rows */
    uint64_t begin, end;  /* tokens that any of them sees */
    uint64_t all_begin, all_end; /* tokens that all of them see */
    const uint32_t *list; /* tiles of slots; NULL: tile i is tile i */
    uint64_t kept;        /* tokens [0, kept) are a pass of their own, for the rows that have them apart */
    int is_kept;          /* this is that pass */
};

static inline uint32_t aura_ratio_of(const struct aura_attend *a)
{
    return a->q_heads / a->cache->config.kv_heads;
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

/* Tokens [begin, end); none where they are equal. */
struct aura_span {
    uint64_t begin, end;
};

/* What a query of a job sees, but for the first tokens that the cache keeps; its position is end - 1. */
static inline struct aura_span aura_query_span(const struct aura_attend *a, const aura_attend_job *job, uint64_t len, size_t query)
{
    struct aura_span s;
    s.end = job->until ? job->until[query] : aura_seen_end(len, job->queries, query, a->options.not_causal);
    s.begin = job->from ? job->from[query] : aura_seen_begin(s.end, a->options.window);
    return s;
}

static inline struct aura_span aura_row_span(const struct aura_block *b, size_t i)
{
    return aura_query_span(b->a, b->plan->job, b->plan->len, aura_query_of(b, i));
}

/* What queries [first, last] of a job see: together, from the first token to the last, or 0 to 0 where that is none; and, in
 * *all, each of them. */
struct aura_span aura_queries_span(const struct aura_attend *a, const aura_attend_job *job, uint64_t len, size_t first, size_t last,
                                   struct aura_span *all);

/* Tokens at the beginning that a job sees from outside the window. */
static inline uint32_t aura_kept_of(const struct aura_attend *a, const aura_attend_job *job)
{
    return job->from ? 0 : a->cache->config.keep_first;
}

/* They take tiles of their own, unless the window reaches into them: then everything from 0 on is gone through, and what is
 * between is hidden. */
static inline uint64_t aura_kept_apart(const struct aura_attend *a, const aura_attend_job *job, uint64_t begin)
{
    uint64_t keep = aura_kept_of(a, job);
    return begin / AURA_TILE * AURA_TILE >= keep ? keep : 0;
}

/* Where tile `tile` of the job is: tiles of slots come in any order. */
static inline uint64_t aura_tile_number(const struct aura_block *b, uint64_t tile)
{
    return b->list ? b->list[tile] : tile;
}

/* This tile or, where it is of another rank's page, the next that is not. */
static inline uint64_t aura_tile_here(const struct aura_block *b, uint64_t tile)
{
    const uint64_t page = tile / AURA_PAGE_TILES, here = aura_page_here(b->a->cache, b->plan->seq, page);
    return here == page ? tile : here * AURA_PAGE_TILES;
}

/* A tile of the block's KV head, and what is where in it. */
struct aura_place {
    const uint8_t *tile, *ahead; /* this one, and the one that will be read in its place next time */
    uint64_t first;              /* token */
    uint32_t columns;            /* tokens that there are */
    uint32_t packed, packed_end; /* columns [packed, packed_end) are codes; those before are pinned, those after open */
    int full;                    /* all columns are codes */
};

/* What a pass over some tiles needs, 60 KiB of it: it lives on the stack of the thread. */
struct aura_pass {
    float acc[AURA_BLOCK_FLOATS];
    struct aura_softmax_row softmax[AURA_BLOCK_ROWS];
    struct aura_weight weight[AURA_PASS_ROWS];
    struct aura_place place[AURA_TILES];
    struct aura_tile k[AURA_TILES], v[AURA_TILES];
    struct aura_scales scales[AURA_TILES];
    uint16_t copy[AURA_TILES][AURA_TILE]; /* of scales, where they are not those of the tile */
    const uint8_t *next;                  /* the tile after these; NULL: not known yet */
    size_t middle, v_ahead;               /* of a tile: where the weights, where the values begin to ask memory for it */
    uint16_t limit;                       /* the lowest of the rows' */
    uint64_t page;                        /* whose bias was computed last */
    float bias[AURA_PASS_ROWS];           /* [tile][row]: the score of the page's reference */
    _Alignas(64) float logit[AURA_PASS_ROWS][AURA_TILE]; /* [tile][row]; then 2^(logit - max) */
};

/* ---- attend_tile.c: the steps of attend_split ---- */

void aura_start_tiles(const struct aura_block *block, struct aura_pass *pass);
/* Tiles [tile, tile + n), of one page unless they are slots: where they are, and the scores of their references. */
void aura_find_tiles(const struct aura_block *block, struct aura_pass *pass, uint64_t tile, size_t n);
/* logit[tile][row][column], for all columns that there are. */
void aura_score_tiles(const struct aura_block *block, struct aura_pass *pass, size_t n);
/* Softcap, then ALiBi, then the mask. */
void aura_apply_options(const struct aura_block *block, const struct aura_place *place, float (*logits)[AURA_TILE]);
/* -inf in the columns that a row may not see: by index, never by what is in them. */
void aura_hide_columns(const struct aura_block *block, const struct aura_place *place, float (*logit)[AURA_TILE]);
/* n tiles into pass->acc: codes of all at once, then what is in rows. */
void aura_value_tiles(const struct aura_block *block, struct aura_pass *pass, size_t n);

#endif
