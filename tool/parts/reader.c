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
                                 .decode = o->decode, .rollback = o->rollback, .shape = llm_shape(o->llm), .error = error};
    const int ours = cache && !cache->peer && !cache->codec;
    options.flags |= o->learn && ours ? AURA_LEARN : 0;
    options.exact_prompts = o->decode && ours;
    if (cache && !ours)
        options.on_layer = baseline_on_layer, options.arg = &r->other;
    r->vocab = llm_shape(o->llm)->vocab;
    r->part = (o->decode && cache) || (o->learn && ours) ? LLM_PART : SIZE_MAX; /* an exact cache returns the same in any case */
    return llm_state_create(o->llm, &options, &r->state, error);
}

static int read_part(struct reader *r, const uint32_t *tokens, size_t n, size_t wanted, float *logits)
{
    return baseline_before(&r->other, r->state, n) || llm_forward(r->state, tokens, n, wanted, logits, r->error) || r->other.failed;
}

int reader_read(struct reader *r, const uint32_t *tokens, size_t n, size_t wanted, float *logits)
{
    for (size_t at = 0, left = n; left; left = n - at) {
        const size_t part = left < r->part ? left : r->part, after = left - part; /* tokens that come after the part */
        const size_t of_part = wanted > after ? wanted - after < part ? wanted - after : part : 0;
        if (read_part(r, tokens + at, part, of_part, logits))
            return 1;
        if (of_part)
            logits += of_part * r->vocab;
        at += part;
    }
    return 0;
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
