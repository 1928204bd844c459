/* Files of models. The target reads a file that opens to its last byte. If the file gives a tokenizer, text and turns of a
 * conversation go through it and back. If it gives a model, the model computes some tokens. */
#include "fuzz.h"

#include "../../model/chat.h"
#include "../../model/llm.h"
#include "../../model/tokenizer.h"

static volatile uint64_t touched;

static void touch(const void *data, size_t size)
{
    const uint8_t *bytes = data;
    for (size_t i = 0; i < size; i++)
        touched += bytes[i];
}

static void use_values(const struct gguf *file)
{
    for (uint64_t i = 0; i < gguf_values(file); i++) {
        const struct gguf_value *v = gguf_value_at(file, i);
        char key[64];
        uint64_t number;
        double real;
        int truth;
        struct gguf_text text;
        touch(v->key.data, v->key.size);
        for (uint64_t k = 0; v->kind == GGUF_ARRAY && k < v->count + 1; k++) {
            text = gguf_array_text(v, k);
            touch(text.data, text.size);
            touched += gguf_array_number(v, k) > 0;
        }
        if (v->key.size >= sizeof key || memchr(v->key.data, 0, v->key.size))
            continue;
        memcpy(key, v->key.data, v->key.size);
        key[v->key.size] = 0;
        MUST(gguf_find(file, key) == v);
        int kinds = (gguf_uint(file, key, &number) == 1) + (gguf_float(file, key, &real) == 1) +
            (gguf_bool(file, key, &truth) == 1);
        if (gguf_string(file, key, &text) == 1) {
            touch(text.data, text.size);
            kinds++;
        }
        MUST(kinds <= 1);
    }
    MUST(!gguf_find(file, "a key that no file has"));
}

static void use_tensors(const struct gguf *file)
{
    for (uint64_t i = 0; i < gguf_tensors(file); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(file, i);
        MUST(t->dims <= GGUF_MAX_DIMS && !gguf_type_info(t->type) == !t->data);
        touch(t->name.data, t->name.size);
        if (t->data)
            touch(t->data, t->bytes);
    }
}

static void encode(const struct tokenizer *t, const char *text, size_t size)
{
    for (int how = 0; how < 4; how++) {
        uint32_t *tokens = NULL;
        size_t n = tokenizer_encode(t, text, size, how & 1, how >> 1, &tokens);
        MUST(tokens);
        for (size_t i = 0; i < n; i++) {
            MUST(tokens[i] < tokenizer_size(t));
            struct gguf_text bytes = tokenizer_bytes(t, tokens[i]);
            touch(bytes.data, bytes.size);
            touched += (uint64_t)tokenizer_ends(t, tokens[i]);
        }
        free(tokens);
    }
}

/* Text that the vocabularies of the corpus know, bytes that are no text, and the end of the input, which the fuzzer can write. */
static void use_tokenizer(const struct gguf *file, const uint8_t *data, size_t size)
{
    static const char some[] = "hello wo, I'll say: 12345  \n\n\t<|im_start|>abc</s> \xc3\xa9\xe4\xbd\xa0\xf0\x9f\x98\x80 \xff\xc3";
    struct tokenizer *t = NULL;
    char error[GGUF_ERROR_BYTES] = "";
    if (tokenizer_create(file, &t, error)) {
        MUST(error[0] && !t);
        return;
    }
    size_t end = size < 300 ? size : 300;
    encode(t, some, sizeof some - 1);
    encode(t, (const char *)data + size - end, end);
    MUST(!tokenizer_bytes(t, tokenizer_size(t)).size && !tokenizer_ends(t, tokenizer_size(t)));
    for (uint32_t i = 0; i < tokenizer_size(t); i++) {
        struct gguf_text bytes = tokenizer_bytes(t, i);
        touch(bytes.data, bytes.size);
    }
    tokenizer_destroy(t);
}

static void use_template(const struct gguf *file)
{
    static const struct chat_turn turns[] = {{"system", " a "}, {"user", "b"}, {"assistant", ""}, {"user", "  "}};
    char error[GGUF_ERROR_BYTES] = "", *text = NULL;
    struct chat_range said;
    for (size_t first = 0; first < 2; first++) {
        MUST(!chat_prompt(file, turns + first, 4 - first, &text, &said, error) == !!text);
        MUST(text || error[0]);
        MUST(!text || (said.from <= said.to && said.to <= strlen(text)));
        free(text);
    }
}

/* Weights may be any numbers, so the result may be an error: not finite. */
static void use_model(const struct gguf *file)
{
    static const uint32_t tokens[] = {0, 0, 0};
    struct llm *llm = NULL;
    struct llm_state *state = NULL;
    struct llm_options options = {.tokens = 4};
    char error[LLM_ERROR_BYTES] = "";
    if (llm_open(file, 1, &llm, error)) {
        MUST(error[0] && !llm);
        return;
    }
    float *logits = malloc(((size_t)llm_shape(llm)->vocab + 1) * sizeof *logits);
    if (llm_state_create(llm, &options, &state, error)) {
        MUST(error[0] && !state);
    } else {
        int status = llm_forward(state, tokens, 3, 1, logits, error);
        MUST(llm_state_tokens(state) == (status ? 0 : 3) && !status == !error[0]);
        MUST(status || (llm_forward(state, tokens, 3, 1, logits, error) && error[0])); /* there is room for one more */
    }
    llm_state_destroy(state);
    llm_close(llm);
    free(logits);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf *file = NULL;
    char error[GGUF_ERROR_BYTES] = "";
    if (gguf_read(data, size, &file, error)) {
        MUST(!file && error[0] && strlen(error) < sizeof error);
        return 0;
    }
    touched += gguf_fingerprint(file);
    use_values(file);
    use_tensors(file);
    use_tokenizer(file, data, size);
    use_template(file);
    use_model(file);
    gguf_close(file);
    return 0;
}
