/* TQ and TQ-HB caches: what their attention needs to know. */
#ifndef AURA_TQ_H
#define AURA_TQ_H

#include "../base/arguments.h"

/* 1 for the widths that TQ and TQ-HB have: 4, and 5, 6, 8. Fills centroid[256] where it is not NULL. */
int aura_tq_book(uint32_t bits, float *centroid);

/* What a stored norm is multiplied with: a length becomes an RMS at dim 256; at 512 it is one already, over the
 * encoder's scale factor. */
float aura_tq_norm_factor(uint32_t dim, float scale_factor_d512);

/* Everything that these calls can be refused for. */
aura_status aura_check_tq_encode(struct aura_call call, const aura_tq_encode_args *args);
aura_status aura_check_kv_copy(struct aura_call call, const aura_kv_copy_args *args);

#endif
