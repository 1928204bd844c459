/* A model that reads through a cache. */
#include "reader.h"

#include <string.h>

#include "quality.h"

int reader_open(struct reader *r, const struct quality_options *o, const struct quality_cache *cache, size_t tokens,
                char error[LLM_ERROR_BYTES])
{
    struct llm_options options = {.threads = o->threads, .tokens = tokens, .seed = o->seed, .profile = o->profile,
                                  .format = cache ? cache->format : (aura_format){AURA_KIND_F32, AURA_KIND_F32},
                                  .formats = cache ? cache->formats : NULL,
                                  .flags = o->rollback ? 0 : AURA_NO_ROLLBACK, .rollback = o->rollback};
    memset(r, 0, sizeof *r);
    r->error = error;
    r->other = (struct baseline){.peer = cache ? cache->peer : NULL, .codec = cache ? cache->codec : NULL, .equal = o->equal,
                                 .shape = llm_shape(o->llm), .rollback = o->rollback, .error = error};
    options.flags |= o->learn && cache ? AURA_LEARN : 0;
    if (r->other.peer || r->other.codec)
        options.on_layer = baseline_on_layer, options.arg = &r->other;
    return llm_state_create(o->llm, &options, &r->state, error);
}

int reader_read(struct reader *r, const uint32_t *tokens, size_t n, size_t wanted, float *logits)
{
    return baseline_before(&r->other, r->state, n) || llm_forward(r->state, tokens, n, wanted, logits, r->error) || r->other.failed;
}

double reader_bits(const struct reader *r)
{
    return r->other.codec ? r->other.bits : r->other.peer ? peer_bits(r->other.peer, r->other.shape->head_dim) :
           llm_state_bits(r->state);
}

void reader_close(struct reader *r)
{
    llm_state_destroy(r->state);
    baseline_end(&r->other);
    memset(r, 0, sizeof *r);
}
