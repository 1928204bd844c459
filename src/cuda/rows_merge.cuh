/* Partial results to finished rows. */
#ifndef AURA_CUDA_ROWS_MERGE_CUH
#define AURA_CUDA_ROWS_MERGE_CUH

#include "rows.cuh"

/* MERGE_PASS2: as aura_flash_pass2. MERGE_REDUCE: as aura_flash_attn_vec_reduce, o is interleaved and m, l are pairs (l, m).
 * MERGE_SUM: rows are added up, there are no m and l. */
enum merge_mode { MERGE_PASS2, MERGE_REDUCE, MERGE_SUM };

struct dev_merge {
    const void *o, *m, *l; /* [rows][parts][dim], [rows][parts] */
    void *out;             /* [rows][dim] */
    const void *sinks;     /* row r takes r % sink_heads */
    float *lse;
    struct dev_rows_status *status;
    size_t parts;
    uint32_t rows, dim, dtype, out_dtype, sink_dtype, sink_heads, mode;
    struct dev_rotation undo;
};

/* rows_merge.cu: one launch. */
aura_status aura_cuda_rows_merge(const aura_cuda_rows *rows, const char *call, const struct dev_merge &m,
                                 struct CUstream_st *stream);

#endif
