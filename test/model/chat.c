/* Conversations as text: for each family of templates the text that its models were trained on, and templates of no known family.
 * The templates here are the parts of the models' templates that decide the text. */
#define _GNU_SOURCE
#include "../../model/chat.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../file/file_tools.h"
#include "gguf_tools.h"
#include "../test.h"

static const char smollm2[] =
    "{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are SmolLM<|im_end|>\n' }}"
                              "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}";
static const char qwen25[] =
    "{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}"
                             "{%- else %}{{- '<|im_start|>system\\nYou are Qwen.<|im_end|>\\n' }}{%- endif %}";
static const char qwen3[] =
    "{%- if messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}"
                            "{%- endif %}{{- content.strip('\\n') }}";
static const char llama3[] =
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim"
                             " + '<|eot_id|>' %}";
static const char llama2[] = "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
                             "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{{ ' '  + content.strip() + ' ' + "
                             "eos_token }}";
static const char mistral1[] = "{{ '[INST] ' + message['content'] + ' [/INST]' }}{{ message['content'] + eos_token}}";
static const char mistral3[] =
    "{{- '[INST] ' + message['content'] + '[/INST]' }}{{- ' ' + message['content']|trim + eos_token}}[AVAILABLE_TOOLS]";
static const char tekken[] = "{{- '[INST]' + message['content'] + '[/INST]' }}{{- message['content'] + eos_token}}";
static const char zephyr[] =
    "{{ '<|user|>\\n' + message['content'] + eos_token }}{{ '<|assistant|>\\n' + message['content'] + eos_token }}";

static const struct chat_turn turns[] = {{"system", "Be short. "}, {"user", " Hi"}, {"assistant", "Hello "}, {"user", "Bye"}};

/* The text of turns first to first + n - 1; the caller frees it. NULL: refused, with `error`. */
static char *render(const char *template, size_t first, size_t n, char error[GGUF_ERROR_BYTES])
{
    static const char *const tokens[] = {"<unk>", "<b>", "<e>"};
    struct gguf_writer w = {0};
    struct gguf *file = NULL;
    char *text = NULL;
    struct chat_range said = {0, 0};
    gguf_put_strings(&w, "tokenizer.ggml.tokens", tokens, 3);
    gguf_put_u32(&w, "tokenizer.ggml.bos_token_id", 1);
    gguf_put_u32(&w, "tokenizer.ggml.eos_token_id", 2);
    if (template)
        gguf_put_string(&w, "tokenizer.chat_template", template);
    struct gguf_part bytes = gguf_finish(&w);
    if (!gguf_read(bytes.data, bytes.size, &file, error))
        EXPECT(!chat_prompt(file, turns + first, n, &text, &said, error) == !!text, "says one thing and does another");
    if (text && n) { /* what the last turn says, trimmed or not */
        const char *content = turns[first + n - 1].content;
        const size_t size = said.to - said.from;
        EXPECT(said.to <= strlen(text) && size && size <= strlen(content) &&
               memmem(content, strlen(content), text + said.from, size), "the last turn is [%zu, %zu)", said.from, said.to);
    }
    gguf_close(file);
    free(bytes.data);
    return text;
}

static void expect_text(const char *template, size_t first, size_t n, const char *wanted)
{
    char error[GGUF_ERROR_BYTES] = "";
    char *text = render(template, first, n, error);
    EXPECT(text && !strcmp(text, wanted), "%s%s\n  not:\n%s", text ? text : "refused: ", error, wanted);
    free(text);
}

static void one_question(void)
{
    expect_text(smollm2, 1, 1,
                "<|im_start|>system\nYou are SmolLM<|im_end|>\n<|im_start|>user\n Hi<|im_end|>\n<|im_start|>assistant\n");
    expect_text(qwen25, 1, 1,
                "<|im_start|>system\nYou are Qwen.<|im_end|>\n<|im_start|>user\n Hi<|im_end|>\n<|im_start|>assistant\n");
    expect_text(qwen3, 1, 1, "<|im_start|>user\n Hi<|im_end|>\n<|im_start|>assistant\n");
    expect_text(llama3, 1, 1,
                "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
    expect_text(llama2, 1, 1, "[INST] Hi [/INST]");
    expect_text(mistral1, 1, 1, "[INST]  Hi [/INST]");
    expect_text(mistral3, 1, 1, "[INST] Hi[/INST]");
    expect_text(tekken, 1, 1, "[INST] Hi[/INST]");
    expect_text(tekken, 3, 1, "[INST]Bye[/INST]");
    expect_text(zephyr, 3, 1, "<|user|>\nBye<e>\n<|assistant|>\n");
    expect_text(smollm2, 0, 0, "<|im_start|>system\nYou are SmolLM<|im_end|>\n<|im_start|>assistant\n");
}

static void several_turns(void)
{
    const char *chatml =
        "<|im_start|>system\nBe short. <|im_end|>\n<|im_start|>user\n Hi<|im_end|>\n<|im_start|>assistant\nHello <|im_end|>\n"
                         "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n";
    expect_text(smollm2, 0, 4, chatml);
    expect_text(qwen25, 0, 4, chatml);
    expect_text(qwen3, 0, 4, chatml);
    expect_text(llama3, 0, 4,
                "<|start_header_id|>system<|end_header_id|>\n\nBe short.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi"
                              "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello<|eot_id|><|start_header_id|>user"
                              "<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
    expect_text(llama2, 0, 4, "[INST] <<SYS>>\nBe short.\n<</SYS>>\n\nHi [/INST] Hello <e><b>[INST] Bye [/INST]");
    expect_text(mistral1, 0, 4, "[INST] Be short. \n\n Hi [/INST]Hello <e>[INST] Bye [/INST]");
    expect_text(mistral3, 0, 4, "[INST] Be short.\n\nHi[/INST] Hello<e>[INST] Bye[/INST]");
    expect_text(tekken, 1, 3, "[INST] Hi[/INST]Hello <e>[INST]Bye[/INST]");
    expect_text(zephyr, 0, 2, "<|system|>\nBe short. <e>\n<|user|>\n Hi<e>\n<|assistant|>\n");
}

static void unknown_templates(void)
{
    static const char *const unknown[] = {"", "{{ messages }}", "<|im_start|>user<|im_sep|>x<|im_end|>", "<start_of_turn>user",
                                          "[SYSTEM_PROMPT]x[/SYSTEM_PROMPT][INST]y[/INST]",
                                          "<|user|>x<|end|><|assistant|>", "<|im_start|>"};
    char error[GGUF_ERROR_BYTES] = "";
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        char *text = render(unknown[i], 0, 4, error);
        EXPECT(!text && strstr(error, "none that is known here") && strstr(error, "leave out --chat"), "%s: %s", unknown[i], error);
        free(text);
    }
    char *text = render(NULL, 0, 4, error);
    EXPECT(!text && strstr(error, "no chat template; leave out --chat"), "%s", error);
    free(text);
}

/* Beginnings of a literal by the thousand: what looks from each of them to the end takes minutes. */
static void long_templates(void)
{
    enum { TIMES = 200000 };
    static const char begin[] = "<|im_start|>system\n";
    char *template = malloc(TIMES * strlen(begin) + 64), *at = template, error[GGUF_ERROR_BYTES] = "";
    at = stpcpy(at, "<|im_end|>"); /* a template without one is of another family */
    for (int i = 0; i < TIMES; i++)
        at = stpcpy(at, begin);
    for (int ends = 0; ends < 2; ends++) {
        strcpy(at, ends ? "'<|im_end|>" : "");
        clock_t start = clock();
        free(render(template, 1, 1, error));
        double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        EXPECT(seconds < 2, "%.1f seconds, %d ends", seconds, ends);
    }
    free(template);
}

static void of_the_model(void)
{
    static const char wanted[] =
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
                                 "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n";
    struct gguf *file = NULL;
    char error[GGUF_ERROR_BYTES], *text = NULL;
    if (gguf_open(golden_path("../../models/SmolLM2-135M-Instruct.Q4_1.gguf"), &file, error)) {
        test_skip = "no models/SmolLM2-135M-Instruct.Q4_1.gguf; `make model` fetches it";
        return;
    }
    EXPECT(!chat_prompt(file, turns + 3, 1, &text, NULL, error) && !strcmp(text, wanted), "%s", text ? text : error);
    free(text);
    gguf_close(file);
}

int main(void)
{
    RUN(one_question);
    RUN(several_turns);
    RUN(unknown_templates);
    RUN(long_templates);
    RUN(of_the_model);
    return test_result();
}
