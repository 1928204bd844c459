/* What kernels need to know of a codec, made from a public codebook. */
#ifndef AURA_CODEC_H
#define AURA_CODEC_H

#include "stages.h"

/* Fills a plan. The codebook is a valid one. search 1: the nine fits of doc/format.md, 0: the plain fit. */
void aura_codec_plan_init(struct aura_codec_plan *plan, const aura_codebook *book, uint32_t dim, aura_scale_rule rule,
                          uint32_t search);

/* The same for a kind of trellis codes. */
void aura_trellis_plan_init(struct aura_codec_plan *plan, uint32_t kind, uint32_t dim, aura_scale_rule rule, uint32_t search);

/* Either, for a kind of codes of a cache. */
void aura_kind_plan_init(struct aura_codec_plan *plan, uint32_t kind, uint32_t dim, aura_scale_rule rule, uint32_t search);

#endif
