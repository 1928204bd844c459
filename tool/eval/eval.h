/* What `aura eval` prints. */
#ifndef AURA_EVAL_H
#define AURA_EVAL_H

#include <stdio.h>

#include "../parts/drift.h"
#include "../parts/quality.h"
#include "../parts/records.h"

struct eval_report {
    const char *model, *text, *profile; /* profile NULL: none */
    const struct quality_options *options;
    const struct quality_cache *caches; /* [count] measured, in the order of quality_sort() */
    size_t count;
};

void eval_print_table(const struct eval_report *report);
void eval_print_json(const struct eval_report *report);
void eval_print_csv(const struct eval_report *report);

/* results: [count + 1][2], the exact cache first. */
void eval_print_records(const struct eval_report *report, uint32_t facts, struct records_result (*results)[2], int json, int csv);
/* results: [count]. */
void eval_print_drift(const struct eval_report *report, uint32_t prompt, uint32_t steps, const struct drift_result *results,
                      int json, int csv);

/* What stands behind the names of caches that are not ours: "*" for llama.cpp's, "+" for a codec, "". */
const char *eval_family_mark(const struct quality_cache *cache);

/* Writes the charts of divergence against bits, and the table, into an open page. */
void eval_print_charts(FILE *to, const struct eval_report *report);

/* Writes a page of its own. 0 when good; otherwise 1, with a text. */
int eval_write_html(const struct eval_report *report, const char *path, char error[LLM_ERROR_BYTES]);

#endif
