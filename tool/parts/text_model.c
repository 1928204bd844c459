/* A model and a text. */
#define _POSIX_C_SOURCE 200809L
#include "text_model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/base/regular.h"
#include "../../src/file/crc32c.h"
#include "../tool.h"

/* m->begin: the first token of an empty text, if it is the file's bos token; otherwise -1. 0 when good; otherwise there is no
 * memory. */
static int find_begin(struct text_model *m)
{
    uint64_t bos = 0;
    uint32_t *tokens = NULL;
    size_t count = tokenizer_encode(m->tokenizer, "", 0, 0, 1, &tokens);
    const int bad = !tokens, begins = count && gguf_uint(m->file, "tokenizer.ggml.bos_token_id", &bos) == 1 && tokens[0] == bos;
    free(tokens);
    m->begin = begins ? (int64_t)bos : -1;
    return bad;
}

int text_model_read(struct text_model *m, const char *path, char error[LLM_ERROR_BYTES])
{
    size_t size;
    free(m->tokens);
    m->tokens = NULL, m->count = 0;
    errno = 0;
    char *text = read_file(path, &size);
    if (!text) {
        snprintf(error, LLM_ERROR_BYTES, "%.150s: cannot be read: %s", path, strerror(errno ? errno : ENOMEM));
        return 1;
    }
    m->count = tokenizer_encode(m->tokenizer, text, size, 0, 1, &m->tokens);
    free(text);
    if (!m->tokens || find_begin(m))
        return snprintf(error, LLM_ERROR_BYTES, "%.150s: no memory for its tokens, or too long", path), 1;
    if (!m->count)
        snprintf(error, LLM_ERROR_BYTES, "%.150s: is empty, or no file", path);
    return !m->count;
}

int text_model_open(struct text_model *m, const char *model, const char *text, uint32_t threads, int rounded,
                    char error[LLM_ERROR_BYTES])
{
    char why[LLM_ERROR_BYTES];
    memset(m, 0, sizeof *m);
    if (gguf_open(model, &m->file, why) || tokenizer_create(m->file, &m->tokenizer, why) ||
        (rounded ? llm_open : llm_open_exact)(m->file, threads, &m->llm, why))
        return snprintf(error, LLM_ERROR_BYTES, "%.100s: %.150s", model, why), 1;
    if (text)
        return text_model_read(m, text, error);
    return find_begin(m) ? (snprintf(error, LLM_ERROR_BYTES, "out of memory"), 1) : 0;
}

void text_model_close(struct text_model *m)
{
    llm_close(m->llm);
    tokenizer_destroy(m->tokenizer);
    gguf_close(m->file);
    free(m->tokens);
    memset(m, 0, sizeof *m);
}

int file_identity(const char *path, uint64_t *bytes, uint32_t *crc, char error[LLM_ERROR_BYTES])
{
    enum { PART = 1 << 20 };
    FILE *file = aura_open_regular(path);
    char *part = malloc(PART);
    int bad = !file || !part;
    *bytes = 0, *crc = 0;
    for (size_t got = 1; !bad && got; *bytes += got) {
        got = fread(part, 1, PART, file);
        *crc = aura_crc32c(*crc, part, got, aura_cpu_isas());
    }
    bad = bad || ferror(file);
    if (bad)
        snprintf(error, LLM_ERROR_BYTES, "%.150s: cannot be read: %s", path, strerror(errno));
    if (file)
        fclose(file);
    free(part);
    return bad;
}
