/* Bits where they count. */
#include "allocate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KINDS = 6 };

/* From few bits to many: plain ones, and with trellis codes where there are any. */
static const aura_kind kinds_to_choose[2][KINDS] = {
    {AURA_KIND_B2, AURA_KIND_B3, AURA_KIND_B4, AURA_KIND_B5, AURA_KIND_B6, AURA_KIND_B8},
    {AURA_KIND_T2, AURA_KIND_T3, AURA_KIND_T4, AURA_KIND_B5, AURA_KIND_B6, AURA_KIND_B8}};

static const aura_format exact = {AURA_KIND_F32, AURA_KIND_F32};

/* What an allocation goes by. */
struct costs {
    const struct quality_options *o;
    const struct llm_shape *shape;
    const aura_kind *kind; /* [KINDS] */
    double bits[KINDS];  /* per value, of a cache with this kind on both sides */
    double whole[KINDS]; /* divergence of the whole model in it */
    double *side;        /* [layers][2] divergence with one side in the kind number `probe`, all else exact */
    int probe;
};

/* A place of the list of caches to be measured. */
static void add(struct quality_cache *cache, const char *name, uint32_t number)
{
    memset(cache, 0, sizeof *cache);
    snprintf(cache->name, sizeof cache->name, "%s %u", name, (unsigned)(uint16_t)number);
    cache->format = exact;
}

/* The whole model in one kind after the other: its bits and its divergence. */
static int measure_kinds(struct costs *c, char *error)
{
    struct quality_cache caches[KINDS];
    for (uint32_t i = 0; i < KINDS; i++) {
        add(&caches[i], "kind", (uint32_t)c->kind[i]);
        caches[i].format = (aura_format){c->kind[i], c->kind[i]};
    }
    if (quality_measure(c->o, caches, KINDS, error))
        return 1;
    for (uint32_t i = 0; i < KINDS; i++)
        c->bits[i] = caches[i].bits, c->whole[i] = caches[i].result.kld_mean.value;
    return 0;
}

/* One side of one layer after the other in the kind `probe`. */
static int measure_sides(struct costs *c, char *error)
{
    const uint32_t layers = c->shape->layers, sides = 2 * layers;
    struct quality_cache *caches = malloc(sides * sizeof *caches);
    aura_format *formats = malloc((size_t)sides * layers * sizeof *formats);
    int bad = !caches || !formats;
    if (bad)
        snprintf(error, LLM_ERROR_BYTES, "out of memory");
    for (uint32_t i = 0; i < sides && !bad; i++) {
        aura_format *of = formats + (size_t)i * layers;
        for (uint32_t l = 0; l < layers; l++)
            of[l] = exact;
        *(i % 2 ? &of[i / 2].v : &of[i / 2].k) = c->kind[c->probe];
        add(&caches[i], i % 2 ? "values" : "keys", i / 2);
        caches[i].formats = of;
    }
    bad = bad || quality_measure(c->o, caches, sides, error);
    for (uint32_t i = 0; i < sides && !bad; i++)
        c->side[i] = caches[i].result.kld_mean.value;
    free(caches), free(formats);
    return bad;
}

/* What a side costs in a kind. */
static double cost(const struct costs *c, uint32_t side, int kind)
{
    return c->side[side] * c->whole[kind] / c->whole[c->probe];
}

/* Gives the bits away, one step of one side at a time. chosen: [layers][2]. Returns the bits per value. */
static double give_away(const struct costs *c, double most, int *chosen)
{
    const uint32_t sides = 2 * c->shape->layers;
    double bits = c->bits[0];
    memset(chosen, 0, sides * sizeof *chosen);
    for (;;) {
        double best = 0, step = 0;
        uint32_t at = sides;
        for (uint32_t i = 0; i < sides; i++) {
            if (chosen[i] + 1 == KINDS)
                continue;
            const double more = (c->bits[chosen[i] + 1] - c->bits[chosen[i]]) / sides;
            const double saves = (cost(c, i, chosen[i]) - cost(c, i, chosen[i] + 1)) / more;
            if (bits + more <= most + 1e-9 && saves > best)
                best = saves, at = i, step = more;
        }
        if (at == sides)
            return bits;
        chosen[at]++;
        bits += step;
    }
}

/* The kind that most sides will have: the one with the most bits that all of them could have. */
static int kind_to_probe(const struct costs *c, double bits)
{
    int kind = 0;
    while (kind + 1 < KINDS && c->bits[kind + 1] <= bits)
        kind++;
    return kind;
}

/* The divergence of what was chosen. */
static int measure_choice(const struct costs *c, struct allocation *a, char *error)
{
    struct quality_cache cache;
    add(&cache, "layers", c->shape->layers);
    cache.formats = a->formats;
    if (quality_measure(c->o, &cache, 1, error))
        return 1;
    a->bits = cache.bits, a->kld = cache.result.kld_mean.value;
    a->fewest = (aura_format){c->kind[0], c->kind[0]};
    a->fewest_bits = c->bits[0], a->fewest_kld = c->whole[0];
    return 0;
}

int allocate(const struct quality_options *o, double bits, int trellis, struct allocation *a, char error[LLM_ERROR_BYTES])
{
    struct costs c = {.o = o, .shape = llm_shape(o->llm), .kind = kinds_to_choose[trellis]};
    const uint32_t layers = c.shape->layers;
    int *chosen = malloc(2 * layers * sizeof *chosen);
    c.side = malloc(2 * layers * sizeof *c.side);
    int bad = !chosen || !c.side;
    if (bad)
        snprintf(error, LLM_ERROR_BYTES, "out of memory");
    bad = bad || measure_kinds(&c, error);
    if (!bad && bits < c.bits[0])
        bad = snprintf(error, LLM_ERROR_BYTES, "%.3g bits a value are too few: with heads of %u the least is %.3f", bits,
                       c.shape->head_dim, c.bits[0]) > 0;
    if (!bad) {
        c.probe = kind_to_probe(&c, bits);
        bad = measure_sides(&c, error);
    }
    if (!bad)
        give_away(&c, bits, chosen);
    for (uint32_t l = 0; l < layers && !bad; l++)
        a->formats[l] = (aura_format){c.kind[chosen[2 * l]], c.kind[chosen[2 * l + 1]]};
    bad = bad || measure_choice(&c, a, error);
    free(chosen), free(c.side);
    return bad;
}
