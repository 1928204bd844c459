/* aura on NVIDIA GPUs, over plain arrays: the kernels of AURA and of mlx-native of aura_rows.h, on a stream.
 *
 * `make cuda` builds them into libaura_cuda. Every function takes the arguments of its namesake in aura_rows.h, means the same by
 * them and refuses the same ones with the same status, with nothing launched; every error of the CUDA runtime is AURA_DEVICE.
 *
 * Memory   Every array of the arguments is on the device. On the host are the structs themselves, aura_rotation.signs, and the
 *          aura_codebook of aura_cuda_encode() with its arrays: they are read before the call returns. The numbers of a dense
 *          matrix are not looked at.
 * Streams  A call only launches kernels on the stream it is given. It allocates nothing, waits for nothing and reads nothing from
 *          the device, so a CUDA graph can capture it.
 * Bad data What the CPU's functions return after they looked at the numbers, AURA_NOT_FINITE and AURA_BAD_VALUE, is not known when
 *          a call returns: aura_cuda_rows_finish() says it. The outputs are those of the CPU's functions; aura_cuda_encode() has an
 *          exception.
 * Threads  One thread and one stream at a time per aura_cuda_rows: make one for each stream.
 */
#ifndef AURA_CUDA_ROWS_H
#define AURA_CUDA_ROWS_H

#include "aura_rows.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* cudaStream_t is a pointer to it */

/* What calls leave on their way, and what went wrong in them. */
typedef struct aura_cuda_rows aura_cuda_rows;

/* Makes the place on a device: scratch_bytes for partial results, 0: 32 MB. The caller owns *rows; the context must outlive it.
 * Fails: AURA_BAD_ARGUMENT, AURA_OUT_OF_MEMORY, AURA_DEVICE. */
AURA_API aura_status aura_cuda_rows_create(const aura_ctx *ctx, int device, size_t scratch_bytes, aura_cuda_rows **rows);

/* Frees it; NULL is allowed. No call may be in flight. Never fails. */
AURA_API void aura_cuda_rows_destroy(aura_cuda_rows *rows);

/* Waits for the stream and says what went wrong on it since the last time. Fails: AURA_BAD_VALUE (rows that aura_cuda_encode()
 * could not encode: the message counts them and names the first), else AURA_NOT_FINITE (as every function of aura_rows.h that
 * attends), AURA_BAD_ARGUMENT, AURA_DEVICE. */
AURA_API aura_status aura_cuda_rows_finish(aura_cuda_rows *rows, struct CUstream_st *stream);

/* As aura_rotate() and aura_undo(): the same bits. Fail as they do, and with AURA_DEVICE. */
AURA_API aura_status aura_cuda_rotate(aura_cuda_rows *rows, const aura_rotate_args *args, struct CUstream_st *stream);
AURA_API aura_status aura_cuda_undo(aura_cuda_rows *rows, const aura_rotate_args *args, struct CUstream_st *stream);

/* As aura_encode(): the same bytes. But a row that cannot be encoded stays as it was and the others are written;
 * aura_cuda_rows_finish() then fails with AURA_BAD_VALUE. Fails as aura_encode() does otherwise, and with AURA_DEVICE. */
AURA_API aura_status aura_cuda_encode(aura_cuda_rows *rows, const aura_encode_args *args, struct CUstream_st *stream);

/* As aura_dequant(): the same bits. Fails as it does, and with AURA_DEVICE. */
AURA_API aura_status aura_cuda_dequant(aura_cuda_rows *rows, const aura_dequant_args *args, struct CUstream_st *stream);

/* As aura_score(). Fails as it does, and with AURA_DEVICE. */
AURA_API aura_status aura_cuda_score(aura_cuda_rows *rows, const aura_score_args *args, struct CUstream_st *stream);

/* As aura_value(). Fails as it does, and with AURA_DEVICE; AURA_TOO_LARGE also where the sums of all query heads, in f32, do not
 * fit the scratch once. */
AURA_API aura_status aura_cuda_value(aura_cuda_rows *rows, const aura_value_args *args, struct CUstream_st *stream);

/* As aura_flash_p1(). Fails as it does, and with AURA_DEVICE. */
AURA_API aura_status aura_cuda_flash_p1(aura_cuda_rows *rows, const aura_flash_p1_args *args, struct CUstream_st *stream);

/* As aura_flash_pass2(). Fails as it does, and with AURA_DEVICE. */
AURA_API aura_status aura_cuda_flash_pass2(aura_cuda_rows *rows, const aura_flash_pass2_args *args, struct CUstream_st *stream);

/* As aura_flash_sdpa(): one pass over the rows, whose partial results a second launch merges. Fails as it does, and with
 * AURA_DEVICE; AURA_TOO_LARGE also where one partial result of every query head, v_dim + 2 floats, does not fit the scratch. */
AURA_API aura_status aura_cuda_flash_sdpa(aura_cuda_rows *rows, const aura_flash_sdpa_args *args, struct CUstream_st *stream);

/* As aura_flash_attn_vec(). With temp and nwg above 1 it is one launch, else two. Fails as it does, and with AURA_DEVICE;
 * AURA_TOO_LARGE also as aura_cuda_flash_sdpa() where it is two. */
AURA_API aura_status aura_cuda_flash_attn_vec(aura_cuda_rows *rows, const aura_flash_attn_vec_args *args,
                                              struct CUstream_st *stream);

/* As aura_flash_attn_vec_reduce(); with undo, the bits of the reduce and aura_cuda_undo() after it. Fails as it does, and with
 * AURA_DEVICE. */
AURA_API aura_status aura_cuda_flash_attn_vec_reduce(aura_cuda_rows *rows, const aura_flash_attn_vec_reduce_args *args,
                                                     struct CUstream_st *stream);

/* As aura_tq_encode(): the same bytes. But a row that cannot be encoded stays as it was and the others are written;
 * aura_cuda_rows_finish() then fails with AURA_BAD_VALUE and names row token * kv_heads + head. Fails as aura_tq_encode() does
 * otherwise, and with AURA_DEVICE. */
AURA_API aura_status aura_cuda_tq_encode(aura_cuda_rows *rows, const aura_tq_encode_args *args, struct CUstream_st *stream);

/* As aura_tq_dequant(): the same bits. Fails as it does, and with AURA_DEVICE. */
AURA_API aura_status aura_cuda_tq_dequant(aura_cuda_rows *rows, const aura_tq_dequant_args *args, struct CUstream_st *stream);

/* As aura_kv_copy(): the same bits, but for those of NaN. Fails as it does, and with AURA_DEVICE. */
AURA_API aura_status aura_cuda_kv_copy(aura_cuda_rows *rows, const aura_kv_copy_args *args, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
