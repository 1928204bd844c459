/* The caches of a model. model.c makes them and their sequences, model_file.c saves and loads them. */
#ifndef AURA_MODEL_H
#define AURA_MODEL_H

#include "cache.h"

struct aura_model_cache {
    aura_ctx *ctx;
    struct aura_budget budget; /* of this struct and of all layers */
    pthread_mutex_t lock;      /* held by whoever makes or releases sequences: ids are the same in all layers. A layer's own
                                  lock is taken inside it, never the other way round */
    uint32_t layers;
    aura_cache *layer[];
};

/* Of the struct. */
size_t aura_model_bytes(uint32_t layers);

/* Gives a layer the format, the balances and the metrics that the profile has for it and its configuration has not. */
aura_status aura_take_profile(struct aura_call call, const aura_profile *profile, uint32_t layers, uint32_t layer,
                              aura_config *config);

/* A model without its profile: configs have their balance. */
aura_status aura_model_make(struct aura_call call, aura_ctx *ctx, const aura_config *configs, uint32_t layers, size_t budget,
                            aura_model_cache **model);

/* Takes a sequence out of the first `layers` layers. The lock is held. */
void aura_model_discard(aura_model_cache *model, aura_seq id, uint32_t layers);

#endif
