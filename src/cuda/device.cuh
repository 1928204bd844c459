/* What kernels and host share: the state of a device cache, one attention call, and the smallest words of the device. */
#ifndef AURA_CUDA_DEVICE_CUH
#define AURA_CUDA_DEVICE_CUH

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#define _Alignas(n) alignas(n) /* stages.h is C */
extern "C" {
#include "../cache/backend.h"
#include "../cache/page_table.h"
}
#undef _Alignas
#include "../rules.h"
#include "cut.h"

/* A sequence on the device. Tokens are below 2^31. len and closed are read together. */
struct alignas(16) dev_seq {
    uint32_t len, closed;
    uint32_t own, reserved; /* the sequence has the pages of tokens [own, reserved), and no other has them: page_table.h */
    uint32_t status;        /* AURA_CUDA_... */
    uint32_t arrived;       /* blocks of the append that have read the sequence; 0 between calls */
    uint32_t top;           /* the largest length that it had when it was last cut; 0: it was not cut since it was last empty */
    uint32_t tiles;         /* that appends have closed, of one KV head */
};

/* The largest length since the sequence was last empty. It decides which pages have left the window. */
static inline AURA_ANYWHERE uint32_t top_of(const struct dev_seq &seq)
{
    return seq.top > seq.len ? seq.top : seq.len;
}

/* One threshold and the two levels next to it: a range in which a number has one of two levels. Levels have the sign of the
 * number; the threshold is compared with its magnitude. */
struct alignas(16) dev_window {
    float above;     /* the threshold: a number whose magnitude is larger becomes `high` */
    uint32_t code;   /* of low in the lower 16 bits, of high in the upper ones */
    float low, high;
};

/* The codec of a side as encode.cuh needs it; encoder.cu makes it from aura_codec_plan. fits.cuh says what cells, buckets and
 * weights are. */
struct alignas(16) dev_encoder {
    uint32_t bits, dim, n_fits, rule;
    float tiny, fits[9];
    float unit;                 /* with fit 1, the largest coordinate (or the RMS) becomes this */
    float step, spacing, first; /* from 5 bits on: level i is step * (spacing * i + first) */
    float bins;                 /* a magnitude times this, rounded, is its bin; from 5 bits on, a bin is from level to level */
    /* The rest is for up to 4 bits. */
    float cells, share;         /* a magnitude times these: its place in parts of a cell; its share of the sum of a bucket */
    float margin;               /* how far a sum of shares may be from the true one */
    struct dev_window window[2][8]; /* [0: numbers above 0; 1: others][thresholds that are surely below the magnitude] */
    uint8_t below[128];         /* [bin]: thresholds that are surely below the magnitude; the last bin has all larger ones */
    float level[16];            /* [code], of levels above 0 */
    uint8_t code[9][64];        /* [fit][bucket], of levels above 0 */
    uint32_t cell[256];
    uint4 weight[4][32];
    /* Of trellis codes: all levels; the thresholds between those of a subset. */
    float path_level[32], between[4][8];
};

/* What is too large for the arguments of a kernel. paley: for rotate of keys, rotate of values and undo of values; bit j of
 * word i is set where entry (i, j) of the Paley factor is -1. */
struct dev_codecs {
    struct dev_encoder encoder[3]; /* of keys, values, references */
    uint32_t paley[3][32];
    uint32_t k_inner, k_outer, v_inner, v_outer;
};

/* The cache as kernels see it, in the order in which an attention call reads it: every 64 bytes of arguments that it must read
 * at its beginning cost about 220 cycles (H200, 2026-11-15). */
struct dev_cache {
    uint8_t *pages;
    size_t page_bytes;
    uint32_t *table;       /* [seqs][table_stride]: page numbers */
    struct dev_seq *seqs;
    __half *k_rows, *v_rows; /* [seqs][kv_heads][rows][dim]; NULL for a plain side */
    uint32_t table_stride, n_seqs;
    uint32_t kv_heads, q_heads, ratio;
    uint32_t pinned, rollback, rows, has_reference, open;
    struct aura_page_window window;
    uint32_t keep_first; /* every query sees tokens [0, keep_first), however old */
    uint32_t kept_tiles; /* those of them that are not pinned are in tiles below this one; 0: there are none */
    const float *balance, *inverse_balance; /* [kv_heads][k_dim], or NULL */
    uint32_t head_bytes, tile_bytes, v_at, k_scale_at, v_scale_at, reference_at, reference_scale_at;
    uint32_t k_kind, v_kind, k_dim, v_dim;
    float k_norm, v_norm, k_step, v_step, reference_step;
    uint32_t k_sign[AURA_TILE_DIM / 32], v_sign[AURA_TILE_DIM / 32]; /* bit d % 32 of word d / 32: negative */
    uint32_t k_table[4], v_table[4]; /* levels + 64 of up to 4 bits, as bytes */
    const struct dev_codecs *codecs;
    const float *v_balance, *v_inverse_balance; /* [kv_heads][v_dim], or NULL */
    const float *k_metric, *v_metric; /* [kv_heads][metric_floats()] as search.cuh has them; NULL: none */
    uint32_t search_warps;            /* of a block that searches codes; 0: tiles close without */
};

/* Where the general kernel has the codes of one side of a tile, in the shared memory of a warp. They lie as in the tile, except
 * that rows (a word of every token or channel) are ROW_SPACE bytes further apart: no four of them begin in the same banks. */
enum { ROW_SPACE = 32 };
struct dev_staged {
    uint32_t at, end;
    uint32_t chunks; /* of 16 bytes; 0: the side is plain, and is not copied */
    uint32_t pitch;  /* bytes from row to row */
};

/* The shared memory of a warp of the general kernel. It begins with the scales. */
struct dev_stage {
    struct dev_staged k, v;
    uint32_t scale_chunks;                /* of both sides */
    uint32_t reference, reference_chunks; /* codes of the page's reference, then its scale */
    uint32_t bytes;                       /* of a warp, in all */
    uint32_t k_pad;                       /* k_dim in whole pairs of runs */
    uint32_t q_pitch, half_pitch;         /* bytes from column to column of the queries */
};

/* A tensor of the caller's, its strides filled in. */
struct dev_view {
    void *data;
    uint32_t dtype;
    int64_t seq, token, head; /* strides in elements */
};

/* One attention call, in the order in which kernels come to it. */
struct dev_attend {
    const uint32_t *seqs;
    uint32_t n_seqs, queries;
    uint32_t window, not_causal;      /* window 0: none */
    struct aura_cut_even even;        /* how units of one length are cut */
    struct aura_divider by_splits, by_units, by_row_blocks, by_ratio; /* by_units: those of a sequence */
    uint32_t rows;                    /* of a KV head: queries * ratio */
    uint32_t row_blocks;              /* that the kernel takes one at a time */
    const uint32_t *counts, *starts;  /* queries of each sequence; NULL: `queries`. The first that is no padding; NULL: 0 */
    const uint32_t *from, *until;     /* [n_seqs][queries] what queries see; NULL: what window and causality say */
    const uint2 *seen;                /* [n_seqs] with from or until: the tokens that a sequence's queries see are in [x, y) */
    uint32_t fixed_cut, share;        /* 1: neither batch, queries nor the device decide how a row is added up: cut.h; share:
                                       * tasks of a unit */
    struct dev_cache c;
    struct dev_view q, out;
    float unit, limit_of_call, softcap; /* unit: scale * log2 e; limit_of_call: rules.h, infinite where no key decides for itself;
                                         * softcap in units of log2 e, 0: none */
    uint32_t options;                 /* 1: there is softcap, ALiBi or a mask */
    uint32_t planes;                  /* of keys, plus 4 times those of values */
    const float *mask, *sinks, *alibi;
    uint32_t mask_keys;
    float *partial;        /* [partials][rows of a block][dim of the kernel]; there are blocks + units partials. With a
                            * fixed cut one for every task, and from number `scratch` on AURA_CUT_LEVELS - 1 for every warp */
    uint32_t scratch;
    float2 *partial_ml;    /* [partials][rows of a block] */
    uint32_t *counter;     /* [units], 0 between calls */
    uint32_t *node_counter; /* [tasks], likewise: leaves of nodes of level 1 that are there */
    float *lse;
    float *trace;          /* not NULL: [n_seqs][queries][q_heads][trace_tokens], the logits of codes before options; for checks */
    uint32_t trace_tokens;
    struct dev_stage stage; /* of the general kernel */
};

/* One append. */
struct dev_append {
    struct dev_cache c;
    const uint32_t *seqs, *counts, *starts; /* counts NULL: `tokens` of each; starts NULL: none is padding */
    uint32_t tokens;
    uint32_t slots; /* 1: of slots, whose pages have the reference that the caller gave them */
    struct dev_view k, v;
};

/* One write of slots, or of references: slot[i] is then a page. */
struct dev_slots {
    struct dev_append a;   /* a token is a sequence of one token */
    const uint64_t *slot;  /* [tokens] */
    uint64_t slots;        /* that there are; pages */
    uint32_t tokens, references;
};

/* FEW_QUERIES: up to so many read codes, as the caller's `planes` says; more read codes with two planes, or images of them. */
enum { ATTEND_MAX_SEQS = 4096, ATTEND_MAX_QUERIES = 65536, FEW_QUERIES = 16 };

/* Kernels for many rows: tiles that one copy brings, of so many rows of 128 bytes. The copy engine takes 256 rows at a time. */
static inline AURA_ANYWHERE constexpr uint32_t tiles_of_copy(uint32_t tile_rows)
{
    return 4 * tile_rows <= 256 ? 4 : 2 * tile_rows <= 256 ? 2 : 1;
}

/* A kernel of attention: what it takes, and how it is launched. Kind 0: it takes every kind and number of planes. */
struct attend_kernel {
    const char *name;                 /* as in src/variants.h */
    uint32_t kind;
    uint32_t dim;                     /* of keys and values; with kind 0, the largest dim of values */
    uint32_t planes, rows;            /* rows: the most that a block has */
    uint32_t threads;
    const void *run;
    uint32_t shared_bytes;            /* without the list of sequences */
    uint32_t blocks_per_sm;           /* at most; 0: as many as fit */
    uint32_t tile_rows;               /* not 0: it is one for many rows, of sm_90 (attend_wide.cuh); rows of 128 bytes of a tile */
    uint32_t no_options;              /* 1: it takes no softcap, ALiBi or mask */
    uint32_t v_kind;                  /* of values; 0: the same as kind */
};

#ifdef __CUDACC__

#include "words.cuh"

/* An element of the caller's tensor as it is in memory. number_of() is apart, so that a kernel can start many loads before it
 * waits. */
__device__ __forceinline__ uint32_t load_bits(const void *array, uint32_t dtype, int64_t i)
{
    return dtype == AURA_F32 ? ((const uint32_t *)array)[i] : ((const uint16_t *)array)[i];
}

__device__ __forceinline__ float number_of(uint32_t bits, uint32_t dtype)
{
    return dtype == AURA_F32   ? __uint_as_float(bits)
           : dtype == AURA_F16 ? __half2float(__ushort_as_half((unsigned short)bits))
                               : __uint_as_float(bits << 16);
}

__device__ __forceinline__ float load_element(const void *array, uint32_t dtype, int64_t i)
{
    return number_of(load_bits(array, dtype, i), dtype);
}

/* Rounded to nearest even; a NaN stays one. */
__device__ __forceinline__ void store_element(void *array, uint32_t dtype, int64_t i, float x)
{
    if (dtype == AURA_F32)
        ((float *)array)[i] = x;
    else
        ((uint16_t *)array)[i] = dtype == AURA_F16 ? __half_as_ushort(__float2half_rn(x)) : bf16_bits(x);
}

__device__ __forceinline__ uint32_t low_half(uint2 pair, int i)
{
    return i < 2 ? pair.x : pair.y;
}

/* The sum of x over the lanes up to this one. */
__device__ __forceinline__ uint32_t warp_prefix(uint32_t x)
{
#pragma unroll
    for (int far = 1; far < 32; far *= 2) {
        const uint32_t other = __shfl_up_sync(~0u, x, far);
        x += threadIdx.x % 32 >= far ? other : 0;
    }
    return x;
}

/* f16 number i of four. */
__device__ __forceinline__ float half_of(uint2 four, int i)
{
    uint32_t word = low_half(four, i);
    return __half2float(__ushort_as_half((unsigned short)(i % 2 ? word >> 16 : word & 0xffff)));
}

__device__ __forceinline__ const uint8_t *page_head(const struct dev_cache &c, uint32_t seq, uint32_t page, uint32_t head)
{
    return c.pages + (size_t)c.table[(size_t)seq * c.table_stride + page] * c.page_bytes + (size_t)head * c.head_bytes;
}

/* The f16 row of a token that is pinned or open, among those of one head. */
__device__ __forceinline__ uint32_t row_of(const struct dev_cache &c, uint32_t token)
{
    return aura_ring_row(token, c.pinned, c.rows);
}

/* The same for tokens [from, to). Other tokens get row 0, which exists, so that no load needs a branch. */
__device__ __forceinline__ uint32_t row_in(const struct dev_cache &c, uint32_t token, uint32_t from, uint32_t to)
{
    return token >= from && token < to ? row_of(c, token) : 0;
}

/* The call of a kernel for many rows. */
struct dev_wide {
    struct dev_attend a;
    struct tile_map map;
};

#endif
#endif
