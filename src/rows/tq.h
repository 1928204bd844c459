/* TQ and TQ-HB caches: what their attention needs to know. */
#ifndef AURA_TQ_H
#define AURA_TQ_H

#include "../base/arguments.h"

/* 1 for the widths that TQ and TQ-HB have: 4, and 5, 6, 8. Fills centroid[256] where it is not NULL. */
int aura_tq_book(uint32_t bits, float *centroid);

enum { AURA_TQ_PART = 256 }; /* coordinates that share a norm */

/* What a decoder multiplies a stored norm with. At dim 256 the norm is a length, and 1/16 makes an RMS of it. At dim 512 it
 * is an RMS; the encoder has multiplied the row by its scale factor, and this divides by it. */
float aura_tq_norm_factor(uint32_t dim, float scale_factor_d512);

/* The plan that encodes a part of a row, 256 coordinates that share a norm, as 4-bit or 8-bit codes. */
struct aura_codec_plan;
void aura_tq_plan(struct aura_codec_plan *plan, uint32_t dim, uint32_t bits, float scale_factor_d512);

/* All checks of these calls, but for the numbers that aura_tq_encode() gets; and of these numbers. */
aura_status aura_check_tq_encode(struct aura_call call, const aura_tq_encode_args *args);
aura_status aura_check_tq_numbers(struct aura_call call, const aura_tq_encode_args *args);
aura_status aura_check_tq_dequant(struct aura_call call, const aura_tq_dequant_args *args);
aura_status aura_check_kv_copy(struct aura_call call, const aura_kv_copy_args *args);

#endif
