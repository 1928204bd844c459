/* What a caller of the row functions can get wrong, for the CPU and for the GPU: none of these reads an array. Rotations and
 * codebooks are checked by arguments.h. */
#ifndef AURA_ROWS_CHECKS_H
#define AURA_ROWS_CHECKS_H

#include "../base/arguments.h"

#ifdef __cplusplus
extern "C" {
#endif

aura_status aura_check_dequant(struct aura_call call, const aura_dequant_args *args);
aura_status aura_check_score(struct aura_call call, const aura_score_args *args);
aura_status aura_check_value(struct aura_call call, const aura_value_args *args);
aura_status aura_check_flash_p1(struct aura_call call, const aura_flash_p1_args *args);
aura_status aura_check_flash_pass2(struct aura_call call, const aura_flash_pass2_args *args);
aura_status aura_check_flash_sdpa(struct aura_call call, const aura_flash_sdpa_args *args);
aura_status aura_check_flash_attn_vec(struct aura_call call, const aura_flash_attn_vec_args *args);
aura_status aura_check_flash_attn_vec_reduce(struct aura_call call, const aura_flash_attn_vec_reduce_args *args);
aura_status aura_check_encode(struct aura_call call, const aura_encode_args *args);
aura_status aura_check_rotate(struct aura_call call, const aura_rotate_args *args); /* whose rotation is a good one */

/* What 0 stands for in the arguments. */
static inline uint32_t aura_v_dim_of(uint32_t dim, uint32_t v_dim)
{
    return v_dim ? v_dim : dim;
}

static inline size_t aura_or(size_t given, size_t otherwise)
{
    return given ? given : otherwise;
}

/* Tokens that a call of pass 1 sees. */
static inline size_t aura_p1_visible(const aura_flash_p1_args *a)
{
    return a->causal && a->q_position < a->tokens ? (size_t)a->q_position + 1 : a->tokens;
}

/* Slots that a call of flash_attn_vec sees: ranges, up to two for each of the two ranges in time. */
struct aura_slot_ranges {
    size_t count;
    struct {
        uint64_t first, end;
    } range[4];
};
struct aura_slot_ranges aura_visible_slots(const aura_flash_attn_vec_args *args);

enum { AURA_VEC_CHUNK = 32 }; /* positions that a workgroup takes at a time */

#ifdef __cplusplus
}
#endif
#endif
