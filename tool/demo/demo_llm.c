/* aura demo --model: what a model writes with each cache, and how far its next-token distributions are from the exact ones. */
#include <stdlib.h>
#include <string.h>

#include "../bench/bench.h"
#include "demo.h"
#include "../eval/eval.h"
#include "../../model/chat.h"
#include "../../model/sample.h"
#include "../parts/html.h"
#include "../parts/terminal.h"
#include "../parts/text_model.h"
#include "../tool.h"

enum { ANSWERS = 4, MOST_WORDS = 96, TEXT_BYTES = 8192 };

static const char *const answered[ANSWERS] = {"kf16vf16", "k8v8", "k4v4", "k3v3"};

static const char *text_file(void)
{
    static char path[DATA_PATH_BYTES];
    return find_data("novel.txt", path);
}

/* What the model writes with one cache. */
struct answer {
    const char *cache;
    uint32_t tokens[MOST_WORDS];
    size_t count, same; /* same: how many of the first tokens are those of f16 */
    char text[TEXT_BYTES];
    double per_second; /* tokens */
};

struct demo_llm {
    char model[256];
    const char *prompt;
    struct answer answers[ANSWERS];
    struct quality_cache *caches;
    size_t count;
    struct quality_options options;
};

/* ---- what it writes ------------------------------------------------------------------------------------------------ */

/* The tokens of the prompt: as a message where chat.h knows the file's template, otherwise as plain text. *tokens is NULL where
 * there is no memory. */
static size_t prompt_tokens(const struct text_model *m, const char *prompt, uint32_t **tokens)
{
    struct chat_turn turn = {"user", prompt};
    char *text = NULL, error[GGUF_ERROR_BYTES];
    struct chat_range said = {0, 0};
    const int status = chat_prompt(m->file, &turn, 1, &text, &said, error), chat = !status;
    if (status == CHAT_NO_MEMORY)
        return *tokens = NULL, 0;
    const char *asked = chat ? text : prompt;
    size_t count = chat ? tokenizer_encode_around(m->tokenizer, asked, strlen(asked), said.from, said.to, 1, tokens)
                        : tokenizer_encode(m->tokenizer, asked, strlen(asked), 0, 1, tokens);
    free(text);
    return count;
}

static void add_text(struct answer *a, struct gguf_text bytes)
{
    size_t used = strlen(a->text), room = TEXT_BYTES - 1 - used, n = bytes.size < room ? bytes.size : room;
    memcpy(a->text + used, bytes.data, n);
    a->text[used + n] = 0;
}

/* Takes the most likely token each time, so that answers differ by their caches alone. */
static int write_answer(struct answer *a, const struct text_model *m, const uint32_t *prompt, size_t count, size_t most,
                        uint32_t threads, char *error)
{
    struct llm_options options = {.threads = threads, .tokens = count + most, .exact_prompts = 1};
    struct sample_options greedy = {0, 0, 0, 1};
    struct llm_state *state = NULL;
    uint32_t vocab = llm_shape(m->llm)->vocab;
    struct sampler *sampler = sampler_create(&greedy, vocab);
    float *logits = malloc(vocab * sizeof *logits);
    snprintf(error, LLM_ERROR_BYTES, "out of memory");
    int bad = !sampler || !logits || aura_format_parse(a->cache, &options.format) ||
              llm_state_create(m->llm, &options, &state, error) || llm_forward(state, prompt, count, 1, logits, error);
    double start = now();
    while (!bad && a->count < most) {
        uint32_t token = sampler_next(sampler, logits);
        if (tokenizer_ends(m->tokenizer, token))
            break;
        a->tokens[a->count++] = token;
        add_text(a, tokenizer_bytes(m->tokenizer, token));
        bad = llm_forward(state, &token, 1, 1, logits, error);
    }
    a->per_second = (double)a->count / seconds_since(start);
    llm_state_destroy(state);
    sampler_destroy(sampler);
    free(logits);
    return bad;
}

static int write_answers(struct demo_llm *l, const struct text_model *m, uint32_t threads, int quick, char *error)
{
    uint32_t *prompt = NULL;
    size_t count = prompt_tokens(m, l->prompt, &prompt);
    int bad = count == 0;
    if (bad)
        snprintf(error, LLM_ERROR_BYTES, prompt ? "the prompt has no tokens" : "no memory for the prompt");
    for (size_t i = 0; i < ANSWERS && !bad; i++) {
        struct answer *a = &l->answers[i];
        char text[80];
        snprintf(text, sizeof text, "writing with %s (%zu of %d)", answered[i], i + 1, ANSWERS);
        print_progress(text);
        a->cache = answered[i];
        bad = write_answer(a, m, prompt, count, quick ? 12 : MOST_WORDS, threads, error);
        while (a->same < a->count && a->same < l->answers[0].count && a->tokens[a->same] == l->answers[0].tokens[a->same])
            a->same++;
    }
    free(prompt);
    return bad;
}

/* ---- how far it is from exact -------------------------------------------------------------------------------------- */

static void report_progress(void *arg, const struct quality_step *step)
{
    char text[96];
    (void)arg;
    snprintf(text, sizeof text, "divergence: %s, chunk %u of %u (%u of %u)", step->cache, step->chunk + 1, step->chunks,
             step->step + 1, step->steps);
    print_progress(text);
}

static int measure_divergence(struct demo_llm *l, uint32_t threads, int quick, char *error)
{
    struct text_model m = {0};
    const char *list = quick ? "kf16vf16,k8v8,k4v4,q4_0" : "kf16vf16,k8v8,k6v6,k5v5,k4v4,k3v3,q8_0,q5_0,q4_0";
    int bad = quality_parse(list, &l->caches, &l->count, error) || text_model_open(&m, l->model, text_file(), threads, 0, error);
    struct quality_options options = {.llm = m.llm,
                                      .tokens = m.tokens,
                                      .count = m.count,
                                      .begin = m.begin,
                                      .ctx = quick ? 128 : 512,
                                      .chunks = quick ? 1 : 2,
                                      .threads = threads,
                                      .seed = 1,
                                      .progress = report_progress};
    bad = bad || quality_measure(&options, l->caches, l->count, error);
    quality_sort(l->caches, l->count);
    l->options = options;
    text_model_close(&m);
    return bad;
}

int demo_llm_measure(struct demo_llm **llm, const char *model, const char *prompt, uint32_t threads, int quick, char *error)
{
    struct text_model m = {0};
    struct demo_llm *l = *llm = calloc(1, sizeof *l);
    if (!l)
        return snprintf(error, LLM_ERROR_BYTES, "out of memory"), 1;
    snprintf(l->model, sizeof l->model, "%s", model);
    l->prompt = prompt;
    print_progress("reading the model");
    int bad = text_model_open(&m, model, text_file(), threads, 1, error) || write_answers(l, &m, threads, quick, error);
    text_model_close(&m); /* before the model with f32 weights is opened: both at once need much memory */
    bad = bad || measure_divergence(l, threads, quick, error);
    print_progress(NULL);
    return bad;
}

void demo_llm_free(struct demo_llm *l)
{
    if (l)
        free(l->caches);
    free(l);
}

/* ---- shown --------------------------------------------------------------------------------------------------------- */

static struct eval_report report_of(const struct demo_llm *l)
{
    struct eval_report report = {l->model, text_file(), NULL, &l->options, l->caches, l->count};
    return report;
}

/* Prints lines of at most 76 columns behind four blanks, broken between words. */
static void print_wrapped(const char *text)
{
    size_t column = 0; /* 0: nothing is on this line yet */
    while (*text) {
        size_t n = strcspn(text, " \n");
        if (column + n >= 76 && column)
            putchar('\n'), column = 0;
        if (n)
            printf("%s%.*s", column ? " " : "    ", (int)n, text), column += n + 1;
        text += n;
        if (*text == '\n' && column)
            putchar('\n'), column = 0;
        text += *text != 0;
    }
    fputs(column ? "\n" : "", stdout);
}

void demo_llm_print(const struct demo_llm *l)
{
    struct eval_report report = report_of(l);
    printf("\n%s was asked: %s\n", l->model, l->prompt);
    for (size_t i = 0; i < ANSWERS; i++) {
        const struct answer *a = &l->answers[i];
        printf("\n  %s%s%s, %.1f tokens/s", colour(stdout, BOLD), a->cache, colour(stdout, PLAIN), a->per_second);
        if (i)
            printf(a->same == a->count && a->count == l->answers[0].count ? ", the same" : ", the first %zu tokens the same",
                   a->same);
        printf("\n");
        print_wrapped(a->text);
    }
    printf("\n");
    eval_print_table(&report);
}

void demo_llm_print_json(const struct demo_llm *l)
{
    struct eval_report report = report_of(l);
    printf("{\"prompt\": ");
    print_json_string(l->prompt);
    printf(", \"answers\": [");
    for (size_t i = 0; i < ANSWERS; i++) {
        const struct answer *a = &l->answers[i];
        printf("%s\n  {\"cache\": \"%s\", \"tokens\": %zu, \"same_as_f16\": %zu, \"tokens_per_second\": %.2f, \"text\": ",
               i ? "," : "",
               a->cache, a->count, a->same, a->per_second);
        print_json_string(a->text);
        printf("}");
    }
    printf("], \"eval\": ");
    eval_print_json(&report);
    printf("}");
}

void demo_llm_page(FILE *to, const struct demo_llm *l)
{
    struct eval_report report = report_of(l);
    char heading[96];
    html_section(to, "What a model writes");
    html_text(to, "%s, asked: “%s” Always the most likely token, so that only the cache makes a difference. Two tokens that "
              "are nearly as likely are enough for another text: one that differs need not be worse.",
              l->model, l->prompt);
    html_columns_begin(to);
    for (size_t i = 0; i < ANSWERS; i++) {
        const struct answer *a = &l->answers[i];
        int whole = a->same == a->count && a->count == l->answers[0].count;
        if (i == 0)
            snprintf(heading, sizeof heading, "%s", a->cache);
        else if (whole)
            snprintf(heading, sizeof heading, "%s: the same", a->cache);
        else
            snprintf(heading, sizeof heading, "%s: the first %zu of %zu tokens the same", a->cache, a->same, a->count);
        html_column(to, heading, a->text);
    }
    html_columns_end(to);
    html_section(to, "How far the model is from itself");
    html_text(to, "The distribution of the next token with each cache beside that with an exact cache, f32, on %zu positions "
              "of %s: KL divergence in nats. q8_0, q5_0 and q4_0 are llama.cpp's caches as stored values. `aura eval` "
              "measures more of it.",
              l->caches[0].result.positions, text_file());
    eval_print_charts(to, &report);
}
