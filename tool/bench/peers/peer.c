/* llama.cpp's side of the comparison, through its own library: built by fetch.sh beside it, never part of aura.
 *
 *     peer tokens MODEL FILE plain|special     the tokens of a text; special: names of control tokens are those tokens
 *     peer greedy MODEL N PROMPT...            for each prompt its next N tokens, the most likely one each, with an f16 cache;
 *                                              then how near the closest decision was, in logits
 */
#include <llama.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 2048, MOST_TOKENS = 1 << 16 };

static llama_token tokens[MOST_TOKENS];

static void quiet(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static int fail(const char *what)
{
    fprintf(stderr, "peer: %s\n", what);
    return 1;
}

static int print_tokens(const struct llama_vocab *vocab, const char *path, int special)
{
    static char text[1 << 20];
    FILE *file = fopen(path, "rb");
    size_t size = file ? fread(text, 1, sizeof text, file) : 0;
    if (!size || size == sizeof text)
        return fail("the text cannot be read, or is a megabyte");
    fclose(file);
    int n = llama_tokenize(vocab, text, (int)size, tokens, MOST_TOKENS, true, special);
    if (n < 0)
        return fail("too many tokens");
    for (int i = 0; i < n; i++)
        printf("%s%d", i ? " " : "", tokens[i]);
    printf("\n");
    return 0;
}

/* The most likely token, and by how much. */
static llama_token best(const float *logits, int vocab, float *margin)
{
    int first = 0;
    float second = -1e30f;
    for (int i = 1; i < vocab; i++)
        first = logits[i] > logits[first] ? i : first;
    for (int i = 0; i < vocab; i++)
        second = i != first && logits[i] > second ? logits[i] : second;
    if (logits[first] - second < *margin)
        *margin = logits[first] - second;
    return first;
}

static int greedy(struct llama_model *model, int wanted, const char *prompt)
{
    const struct llama_vocab *vocab = llama_model_get_vocab(model);
    struct llama_context_params params = llama_context_default_params();
    float margin = 1e30f;
    params.n_ctx = params.n_batch = CONTEXT, params.n_threads = params.n_threads_batch = 1;
    params.type_k = params.type_v = GGML_TYPE_F16;
    struct llama_context *context = llama_init_from_model(model, params);
    int n = llama_tokenize(vocab, prompt, (int)strlen(prompt), tokens, MOST_TOKENS, true, true);
    if (!context || n <= 0 || n + wanted > CONTEXT)
        return fail("no context for the prompt");
    struct llama_batch batch = llama_batch_get_one(tokens, n);
    for (int i = 0; i < wanted; i++) {
        if (llama_decode(context, batch))
            return fail("llama_decode failed");
        tokens[n + i] = best(llama_get_logits_ith(context, -1), llama_vocab_n_tokens(vocab), &margin);
        printf("%s%d", i ? " " : "", tokens[n + i]);
        batch = llama_batch_get_one(&tokens[n + i], 1);
    }
    printf("\n%.3f\n", margin);
    llama_free(context);
    return 0;
}

int main(int argc, char **argv)
{
    int tokens_only = argc == 5 && !strcmp(argv[1], "tokens"), status = 0;
    if (!tokens_only && !(argc > 4 && !strcmp(argv[1], "greedy")))
        return fail("usage: peer tokens MODEL FILE plain|special, or peer greedy MODEL N PROMPT..."), 2;
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model_params params = llama_model_default_params();
    params.vocab_only = tokens_only;
    struct llama_model *model = llama_model_load_from_file(argv[2], params);
    if (!model)
        return fail("the model cannot be loaded");
    if (tokens_only)
        return print_tokens(llama_model_get_vocab(model), argv[3], !strcmp(argv[4], "special"));
    for (int i = 4; i < argc && !status; i++)
        status = greedy(model, atoi(argv[3]), argv[i]);
    llama_model_free(model);
    return status;
}
