/* Questions about records that differ in few words. */
#include "records.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inputs.h"
#include "reader.h"

enum { FACTS = RECORDS_MOST_FACTS, TEXT = 96 };

static const char places[] =
    "Paris London Rome Berlin Madrid Vienna Moscow Tokyo Delhi Cairo Boston Chicago Dallas Denver Miami Houston Seattle Portland "
    "Toronto Montreal Dublin Oxford Cambridge Manchester Liverpool Bristol Edinburgh Glasgow Sydney Melbourne Perth Auckland "
    "Mumbai Singapore Shanghai Beijing Seoul Bangkok Jakarta Manila Istanbul Athens Lisbon Barcelona Milan Venice Florence Naples "
    "Geneva Zurich Munich Hamburg Prague Budapest Warsaw Stockholm Oslo Amsterdam Brussels Jerusalem Baghdad Tehran Lima Santiago "
    "Havana Mexico Texas California Florida Georgia Virginia Ohio Michigan Kansas Nevada Alaska Hawaii Maine France Germany Spain "
    "Italy Greece Turkey Egypt India China Japan Canada Brazil Chile Peru Cuba Ireland Scotland Wales Norway Sweden Denmark "
    "Finland Poland Austria Hungary Russia Israel Iran Iraq Kenya Ghana Nigeria";
static const char animals[] = "fox horse cat dog bear wolf goat sheep duck goose swan eagle owl crow raven mouse rat rabbit deer "
                              "lion tiger camel donkey monkey snake frog turtle whale seal crab bee ant";
static const char persons[] = "Anna Paul Maria Peter Clara James Emma Henry Laura David Julia Frank Helen Simon Alice Martin Nora "
                              "Victor Ruth Oscar Vera Hugo Ida Felix Grace Leo Eva Max Rosa Karl Lucy Tom John Mary Robert Susan "
                              "William Linda Richard Karen Joseph Nancy Thomas Betty Charles Sarah Daniel Lisa Matthew Carol Mark "
                              "Amanda Steven Emily Andrew Rachel Brian Diana George Sophia Kevin Olivia Jason Irene";

/* A text in the making, and what is asked in it. */
struct book {
    const struct tokenizer *tokenizer;
    uint32_t *tokens;
    size_t count, room, facts;              /* facts: tokens before the first question */
    uint32_t answer[FACTS], n_answers;      /* tokens of places */
    struct {
        size_t at;                          /* the token that the answer follows */
        uint32_t right;                     /* which place */
    } question[FACTS];
    uint32_t questions;
    int bad;
};

/* The i-th word of a list. */
static const char *word(const char *list, uint32_t i, char text[TEXT])
{
    for (; i; i--)
        list += strcspn(list, " "), list += *list == ' ';
    snprintf(text, TEXT, "%.*s", (int)strcspn(list, " "), list);
    return text;
}

static void add_tokens(struct book *b, const uint32_t *tokens, size_t n)
{
    if (b->bad || b->count + n > b->room) {
        const size_t room = 2 * (b->room + n);
        uint32_t *more = b->bad ? NULL : realloc(b->tokens, room * sizeof *more);
        b->bad = !more;
        if (b->bad)
            return;
        b->tokens = more, b->room = room;
    }
    memcpy(b->tokens + b->count, tokens, n * sizeof *tokens);
    b->count += n;
}

static void add(struct book *b, const char *text)
{
    uint32_t *tokens = NULL;
    const size_t n = tokenizer_encode(b->tokenizer, text, strlen(text), 0, 0, &tokens);
    b->bad |= !tokens;
    if (tokens)
        add_tokens(b, tokens, n);
    free(tokens);
}

/* Places whose names, with a blank before them, are one token. */
static void find_answers(struct book *b)
{
    char name[TEXT], text[TEXT + 1];
    for (uint32_t i = 0; b->n_answers < FACTS && *word(places, i, name); i++) {
        uint32_t *tokens = NULL;
        snprintf(text, sizeof text, " %s", name);
        if (tokenizer_encode(b->tokenizer, text, strlen(text), 0, 0, &tokens) == 1)
            b->answer[b->n_answers++] = tokens[0];
        free(tokens);
    }
}

static void shuffle(uint32_t *order, uint32_t n, uint64_t *random)
{
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        const uint32_t j = (uint32_t)(random_bits(random) % i), was = order[i - 1];
        order[i - 1] = order[j], order[j] = was;
    }
}

static void answer(struct book *b, uint32_t place, int asked)
{
    if (asked)
        b->question[b->questions].at = b->count - 1, b->question[b->questions++].right = place;
    add_tokens(b, &b->answer[place], 1);
    add(b, ".\n");
}

/* "Anna lives in"; when two hops are asked for, about the owner of an animal. */
static void about(struct book *b, int hops, uint32_t i, int asked)
{
    char name[TEXT], text[2 * TEXT];
    if (hops == 2 && asked)
        snprintf(text, sizeof text, "The owner of the %s lives in", word(animals, i, name));
    else
        snprintf(text, sizeof text, "%s lives in", word(persons, i, name));
    add(b, text);
}

static void write_book(struct book *b, int hops, uint32_t facts, int64_t begin, uint64_t seed)
{
    uint64_t random = seed * 2 + (uint64_t)hops;
    uint32_t place[FACTS], person[FACTS], order[FACTS], n = facts / (uint32_t)hops, first = (uint32_t)begin;
    char a[TEXT], p[TEXT], text[3 * TEXT];
    shuffle(place, n, &random), shuffle(person, n, &random), shuffle(order, n, &random);
    if (begin >= 0)
        add_tokens(b, &first, 1);
    for (uint32_t i = 0; hops == 2 && i < n; i++) { /* person[i] is the owner of animal i */
        snprintf(text, sizeof text, "The %s belongs to %s.\n", word(animals, order[i], a), word(persons, person[order[i]], p));
        add(b, text);
    }
    shuffle(order, n, &random);
    for (uint32_t i = 0; i < n; i++)
        about(b, hops, order[i], 0), answer(b, place[order[i]], 0);
    b->facts = b->count;
    shuffle(order, n, &random);
    for (uint32_t i = 0; i < n; i++)
        about(b, hops, order[i], 1), answer(b, place[hops == 1 ? order[i] : person[order[i]]], 1);
}

/* The margin of each question. */
static int ask(const struct quality_options *o, struct quality_cache *cache, const struct book *b, double *margin, char *error)
{
    const uint32_t used = b->questions; /* answers that the facts have */
    const size_t vocab = llm_shape(o->llm)->vocab;
    struct reader r;
    float *logits = malloc(vocab * sizeof *logits);
    if (!logits)
        return snprintf(error, LLM_ERROR_BYTES, "out of memory"), 1;
    int bad = reader_open(&r, o, cache, b->count, error) || reader_read(&r, b->tokens, b->facts, 0, NULL);
    for (size_t i = 0, at = b->facts; i < b->questions && !bad; at = b->question[i++].at + 1) {
        bad = reader_read(&r, b->tokens + at, b->question[i].at + 1 - at, 1, logits);
        double best = -INFINITY;
        for (uint32_t k = 0; k < used && !bad; k++)
            if (k != b->question[i].right)
                best = fmax(best, (double)logits[b->answer[k]]);
        margin[i] = bad ? 0 : (double)logits[b->answer[b->question[i].right]] - best;
    }
    if (!bad && cache)
        cache->bits = reader_bits(&r);
    reader_close(&r);
    free(logits);
    return bad;
}

/* margin and exact: [n]. */
static struct records_result sum_up(const double *margin, const double *exact, double *scratch, size_t n)
{
    struct records_result result = {.margin = estimate_mean(margin, n)};
    for (size_t i = 0; i < n; i++)
        scratch[i] = exact[i] - margin[i];
    result.loss = estimate_mean(scratch, n);
    for (size_t i = 0; i < n; i++)
        scratch[i] = margin[i] > 0;
    result.right = estimate_mean(scratch, n);
    return result;
}

/* One round of one kind, with all caches: cache i's margins go to margin + i * stride. */
static int ask_all(const struct quality_options *o, const struct book *b, struct quality_cache *caches, size_t count,
                   double *margin, size_t stride, struct quality_step *step, char *error)
{
    for (size_t i = 0; i <= count; i++) {
        step->cache = i ? caches[i - 1].name : "exact";
        if (o->progress)
            o->progress(o->arg, step);
        step->step++;
        if (ask(o, i ? &caches[i - 1] : NULL, b, margin + i * stride, error))
            return 1;
    }
    return 0;
}

int records_measure(const struct quality_options *o, const struct tokenizer *tokenizer, int64_t begin, uint32_t facts,
                    uint32_t rounds, struct quality_cache *caches, size_t count, struct records_result (*results)[2],
                    char error[LLM_ERROR_BYTES])
{
    const size_t most = (size_t)rounds * FACTS;
    double *margin = malloc((count + 2) * most * sizeof *margin);
    struct quality_step step = {.chunks = rounds, .steps = 2 * rounds * ((uint32_t)count + 1)};
    int bad = !margin;
    if (bad)
        snprintf(error, LLM_ERROR_BYTES, "out of memory");
    for (int hops = 1; hops <= 2 && !bad; hops++) {
        size_t asked = 0;
        for (uint32_t round = 0; round < rounds && !bad; round++) {
            struct book book = {.tokenizer = tokenizer};
            find_answers(&book);
            step.chunk = round;
            bad = book.n_answers < FACTS;
            if (bad)
                snprintf(error, LLM_ERROR_BYTES, "records need %d places whose names are one token, and this model has %u", FACTS,
                         book.n_answers);
            else
                write_book(&book, hops, facts, begin, o->seed + round);
            if (book.bad)
                bad = 1, snprintf(error, LLM_ERROR_BYTES, "out of memory");
            bad = bad || ask_all(o, &book, caches, count, margin + asked, most, &step, error);
            asked += book.questions;
            free(book.tokens);
        }
        for (size_t i = 0; i <= count && !bad; i++)
            results[i][hops - 1] = sum_up(margin + i * most, margin, margin + (count + 1) * most, asked);
    }
    free(margin);
    return bad;
}
