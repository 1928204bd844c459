/* aura demo: what it measures, and the functions that measure and show it. */
#ifndef AURA_DEMO_H
#define AURA_DEMO_H

#include <stdio.h>

#include "../../include/aura.h"
#include "../parts/recording.h"

enum { DEMO_CACHES = 12, DEMO_CONTEXTS = 3, DEMO_LAYERS = 8, DEMO_SHOWN = 2, DEMO_SEED = 1 };

/* A mean over layers, and the least and the most. */
struct spread {
    double mean, least, most;
};

struct demo_cache {
    const char *preset; /* its name, or "" */
    char name[16];
    aura_format format;
    double bits;                   /* per value of the recording, scales and references included */
    struct spread output, kl;      /* over the recorded layers; as of recording_compare() */
    double seconds[DEMO_CONTEXTS]; /* of the attention of one layer for one new token */
    double model_bytes;            /* of the 8B-class model at 128k tokens */
};

/* The attention weights of one query head of one layer, exact and with caches. A row is one query. */
struct demo_head {
    uint32_t layer, head, rows, tokens;
    double *exact;              /* [rows][tokens] */
    double *cached[DEMO_SHOWN]; /* [rows][tokens], from the keys that the cache returns */
    const struct demo_cache *cache[DEMO_SHOWN];
};

/* The shape whose memory is shown. */
struct demo_model {
    uint32_t layers, kv_heads, dim;
    uint64_t tokens;
};
extern const struct demo_model demo_model;

/* With a model: what it writes, and how far its next-token distributions are from the exact ones. */
struct demo_llm;

struct demo {
    const char *file;
    int quick;
    aura_ctx *ctx;
    uint32_t threads;
    struct recording recorded[DEMO_LAYERS];
    size_t layers;
    struct demo_cache caches[DEMO_CACHES]; /* the first is f16, with which all are compared */
    size_t count;
    uint32_t context[DEMO_CONTEXTS]; /* tokens, ascending */
    size_t contexts;
    struct demo_head head;
    double unrest;  /* mean time of f16's turns / its fastest turn: about 1.1 on a machine that does nothing else */
    double elapsed; /* seconds */
    struct demo_llm *llm; /* NULL: no model was given */
};

/* Each returns 0 when good; otherwise error[256] has the reason. */
int demo_load(struct demo *demo, const struct safetensors *file, char *error);
int demo_measure(struct demo *demo, char *error);
void demo_free(struct demo *demo);

/* How many times as fast as f16 a cache is at one context. */
double demo_faster(const struct demo *demo, const struct demo_cache *cache, size_t context);

int demo_was_busy(const struct demo *demo); /* whether times may mislead */

/* The sections of the page. */
void demo_html(FILE *to, const struct demo *demo);

/* Measures with a model, a GGUF file: 0 when good; otherwise error[256] has the reason. The caller calls demo_llm_free(). */
int demo_llm_measure(struct demo_llm **llm, const char *model, const char *prompt, uint32_t threads, int quick, char *error);
void demo_llm_free(struct demo_llm *llm); /* NULL is allowed */
void demo_llm_print(const struct demo_llm *llm);
void demo_llm_print_json(const struct demo_llm *llm);
void demo_llm_page(FILE *to, const struct demo_llm *llm);

#endif
