/* Confusable records: facts that differ in few words, and questions about them. What counts is the margin of the right answer
 * over the best wrong one among those that the facts have: a cache that blurs keys confuses records long before it confuses text.
 *
 *     Anna lives in Paris.                  The fox belongs to Anna. Anna lives in Paris.
 *     ...                                   ...
 *     Anna lives in                         The owner of the fox lives in
 *
 * One hop has a question for each of 64 facts, two hops one for each of 32 pairs of them. The model reads all facts in one call,
 * then question after question, each with its right answer. An answer is a place whose name is one token. */
#ifndef AURA_RECORDS_H
#define AURA_RECORDS_H

#include "../../model/tokenizer.h"
#include "quality.h"

enum { RECORDS_MOST_FACTS = 64 };

struct records_result {
    struct estimate right;  /* share of the questions */
    struct estimate margin; /* logit of the right answer less the best wrong one's, in nats */
    struct estimate loss;   /* of margin against the exact cache, question by question */
};

/* 2 to RECORDS_MOST_FACTS facts, an even number. Each of the rounds has facts of its own, made from options->seed. options: llm,
 * threads, rollback, seed, profile, learn, equal, progress. results: [count + 1][2]: the exact cache first, then those of the list,
 * one hop and two. Sets the caches' bits. 0 when good; otherwise 1, with a text: the tokenizer takes the names of places apart, or
 * the model fails. */
int records_measure(const struct quality_options *options, const struct tokenizer *tokenizer, int64_t begin, uint32_t facts,
                    uint32_t rounds, struct quality_cache *caches, size_t count, struct records_result (*results)[2],
                    char error[LLM_ERROR_BYTES]);

#endif
