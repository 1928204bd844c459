/* Vocabularies of GGUF files. */
#include "vocab.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hash.h"
#include "pretoken.h"

/* ---- bytes as characters ------------------------------------------------------------------------------------------- */

/* GPT-2 writes bytes as characters, so that its files have no spaces: a byte that is printable in Latin-1 is that character; the
 * other 68 bytes are, in their order, the characters from U+0100 on. */
enum { LAST_BYTE_CHARACTER = 0x100 + 67 };

static uint32_t character_of_byte(uint8_t byte)
{
    if (byte <= 0x20)
        return 0x100u + byte;
    if (byte >= 0x7f && byte <= 0xa0)
        return 0x100u + 33 + (byte - 0x7fu);
    return byte == 0xad ? LAST_BYTE_CHARACTER : byte;
}

size_t vocab_write_byte(uint8_t byte, char out[2])
{
    uint32_t c = character_of_byte(byte);
    out[0] = (char)(c < 0x80 ? c : 0xc0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3f));
    return c < 0x80 ? 1 : 2;
}

/* ---- hash tables --------------------------------------------------------------------------------------------------- */

/* The size of a hash table that is at most half full, a power of two, minus 1. */
static uint64_t mask_for(uint64_t entries)
{
    uint64_t size = 16;
    while (size < 2 * entries)
        size *= 2;
    return size - 1;
}

uint32_t vocab_find(const struct vocab *v, const char *text, size_t size)
{
    if (size > v->longest)
        return NO_TOKEN;
    for (uint64_t i = hash_text(text, size) & v->slot_mask; v->slot[i] != NO_TOKEN; i = (i + 1) & v->slot_mask) {
        struct gguf_text found = gguf_array_text(v->texts, v->slot[i]);
        if (found.size == size && !memcmp(found.data, text, size))
            return v->slot[i];
    }
    return NO_TOKEN;
}

static struct vocab_merge *merge_place(const struct vocab *v, uint32_t left, uint32_t right)
{
    uint64_t i = hash_number((uint64_t)left << 32 | right) & v->merge_mask;
    while (v->merge[i].left != NO_TOKEN && (v->merge[i].left != left || v->merge[i].right != right))
        i = (i + 1) & v->merge_mask;
    return &v->merge[i];
}

const struct vocab_merge *vocab_merge(const struct vocab *v, uint32_t left, uint32_t right)
{
    if (left == NO_TOKEN || right == NO_TOKEN)
        return NULL;
    const struct vocab_merge *found = merge_place(v, left, right);
    return found->left == NO_TOKEN ? NULL : found;
}

/* ---- reading ------------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static int fail(char error[GGUF_ERROR_BYTES], const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, GGUF_ERROR_BYTES, format, arguments);
    va_end(arguments);
    return 1;
}

static int no_memory(char error[GGUF_ERROR_BYTES])
{
    return fail(error, "no memory for the vocabulary");
}

/* The texts, and the table that finds them; of equal texts it finds the first. */
static int read_texts(struct vocab *v, const struct gguf *file, char error[GGUF_ERROR_BYTES])
{
    v->texts = gguf_find(file, "tokenizer.ggml.tokens");
    if (!v->texts || v->texts->kind != GGUF_ARRAY || v->texts->of != GGUF_STRING || !v->texts->count)
        return fail(error, "tokenizer.ggml.tokens must be an array of strings that is not empty");
    if (v->texts->count > INT32_MAX)
        return fail(error, "tokenizer.ggml.tokens has %llu tokens: too many", (unsigned long long)v->texts->count);
    v->size = (uint32_t)v->texts->count;
    v->slot_mask = mask_for(v->size);
    if (!(v->slot = malloc((size_t)(v->slot_mask + 1) * sizeof *v->slot)))
        return no_memory(error);
    memset(v->slot, 0xff, (size_t)(v->slot_mask + 1) * sizeof *v->slot);
    for (uint32_t token = 0; token < v->size; token++) {
        struct gguf_text text = gguf_array_text(v->texts, token);
        v->longest = text.size > v->longest ? text.size : v->longest;
        if (vocab_find(v, text.data, text.size) != NO_TOKEN)
            continue;
        uint64_t i = hash_text(text.data, text.size) & v->slot_mask;
        while (v->slot[i] != NO_TOKEN)
            i = (i + 1) & v->slot_mask;
        v->slot[i] = token;
    }
    return 0;
}

/* An array of one number per token; NULL with no error: the file has none. */
static int array_of(const struct vocab *v, const struct gguf *file, const char *key, const struct gguf_value **array,
                    char error[GGUF_ERROR_BYTES])
{
    *array = gguf_find(file, key);
    if (!*array)
        return 0;
    if ((*array)->kind != GGUF_ARRAY || (*array)->of == GGUF_STRING || (*array)->count < v->size)
        return fail(error, "%s must be an array with a number for each of %u tokens", key, v->size);
    return 0;
}

static int read_types(struct vocab *v, const struct gguf *file, char error[GGUF_ERROR_BYTES])
{
    const struct gguf_value *types, *scores;
    if (array_of(v, file, "tokenizer.ggml.token_type", &types, error) ||
        array_of(v, file, "tokenizer.ggml.scores", &scores, error))
        return 1;
    if (!v->byte_level && !scores)
        return fail(error, "tokenizer.ggml.scores is missing: a vocabulary of SentencePiece needs it");
    v->type = malloc(v->size);
    v->score = scores ? malloc(v->size * sizeof *v->score) : NULL;
    if (!v->type || (scores && !v->score))
        return no_memory(error);
    for (uint32_t i = 0; i < v->size; i++) {
        double type = types ? gguf_array_number(types, i) : TOKEN_NORMAL;
        v->type[i] = type >= TOKEN_NORMAL && type <= TOKEN_BYTE ? (uint8_t)type : TOKEN_UNDEFINED;
        if (scores)
            v->score[i] = (float)gguf_array_number(scores, i);
    }
    return 0;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte that a text of the form <0xAB> stands for, or -1. */
static int byte_of_name(struct gguf_text text)
{
    if (text.size != 6 || memcmp(text.data, "<0x", 3) || text.data[5] != '>')
        return -1;
    int high = hex_digit(text.data[3]), low = hex_digit(text.data[4]);
    return high < 0 || low < 0 ? -1 : 16 * high + low;
}

/* The bytes that a normal token stands for; never more than its text has. byte_of: the byte that a character stands for, or -1. */
static size_t write_bytes(const struct vocab *v, struct gguf_text text, const int16_t byte_of[], char *out)
{
    static const char space[] = "\xe2\x96\x81";
    size_t used = 0, n;
    uint32_t c;
    for (size_t at = 0; at < text.size; at += n) {
        n = utf8_read(text.data + at, text.size - at, &c);
        if (v->byte_level && c <= LAST_BYTE_CHARACTER && byte_of[c] >= 0) {
            out[used++] = (char)byte_of[c];
        } else if (!v->byte_level && n == 3 && !memcmp(text.data + at, space, 3)) {
            out[used++] = ' ';
        } else {
            memcpy(out + used, text.data + at, n);
            used += n;
        }
    }
    return used;
}

static void write_all_bytes(struct vocab *v)
{
    int16_t byte_of[LAST_BYTE_CHARACTER + 1];
    memset(byte_of, 0xff, sizeof byte_of);
    for (int byte = 0; byte < 256; byte++)
        byte_of[character_of_byte((uint8_t)byte)] = (int16_t)byte;
    size_t used = 0;
    for (uint32_t i = 0; i < v->size; i++) {
        struct gguf_text text = gguf_array_text(v->texts, i);
        int byte = v->type[i] == TOKEN_BYTE ? byte_of_name(text) : -1;
        v->begin[i] = used;
        if (byte >= 0) {
            v->bytes[used++] = (char)byte;
        } else if (v->type[i] == TOKEN_NORMAL) {
            used += write_bytes(v, text, byte_of, v->bytes + used);
        } else if (v->type[i] == TOKEN_USER && text.size) {
            memcpy(v->bytes + used, text.data, text.size);
            used += text.size;
        }
    }
    v->begin[v->size] = used;
}

static int read_bytes(struct vocab *v, char error[GGUF_ERROR_BYTES])
{
    size_t total = 1;
    char name[8];
    for (uint32_t i = 0; i < v->size; i++)
        total += gguf_array_text(v->texts, i).size;
    v->bytes = malloc(total);
    v->begin = malloc(((size_t)v->size + 1) * sizeof *v->begin);
    if (!v->bytes || !v->begin)
        return no_memory(error);
    write_all_bytes(v);
    for (int byte = 0; byte < 256; byte++) {
        size_t n = v->byte_level ? vocab_write_byte((uint8_t)byte, name) : (size_t)snprintf(name, sizeof name, "<0x%02X>", byte);
        v->byte_token[byte] = vocab_find(v, name, n);
    }
    return 0;
}

/* A merge is the texts of two tokens with a space between them. A merge of tokens that the vocabulary lacks is ignored. */
static int read_merges(struct vocab *v, const struct gguf *file, char error[GGUF_ERROR_BYTES])
{
    const struct gguf_value *merges = gguf_find(file, "tokenizer.ggml.merges");
    if (!merges || merges->kind != GGUF_ARRAY || merges->of != GGUF_STRING || merges->count > INT32_MAX)
        return fail(error, "tokenizer.ggml.merges must be an array of strings");
    v->merge_mask = mask_for(merges->count);
    if (!(v->merge = malloc((size_t)(v->merge_mask + 1) * sizeof *v->merge)))
        return no_memory(error);
    memset(v->merge, 0xff, (size_t)(v->merge_mask + 1) * sizeof *v->merge);
    char *joined = malloc(v->longest + 1);
    if (!joined)
        return no_memory(error);
    for (uint32_t rank = 0; rank < merges->count; rank++) {
        struct gguf_text text = gguf_array_text(merges, rank);
        const char *space = text.size > 1 ? memchr(text.data + 1, ' ', text.size - 1) : NULL;
        if (!space)
            return free(joined), fail(error, "tokenizer.ggml.merges: number %u is not two tokens with a space between them", rank);
        size_t left_size = (size_t)(space - text.data), right_size = text.size - left_size - 1;
        uint32_t left = vocab_find(v, text.data, left_size), right = vocab_find(v, space + 1, right_size);
        if (left == NO_TOKEN || right == NO_TOKEN || left_size + right_size > v->longest)
            continue;
        memcpy(joined, text.data, left_size);
        memcpy(joined + left_size, space + 1, right_size);
        uint32_t token = vocab_find(v, joined, left_size + right_size);
        struct vocab_merge *place = merge_place(v, left, right);
        if (token != NO_TOKEN && place->left == NO_TOKEN)
            *place = (struct vocab_merge){left, right, token, rank};
    }
    free(joined);
    return 0;
}

int vocab_read(struct vocab *v, const struct gguf *file, int byte_level, char error[GGUF_ERROR_BYTES])
{
    memset(v, 0, sizeof *v);
    v->byte_level = byte_level;
    return read_texts(v, file, error) || read_types(v, file, error) || read_bytes(v, error) ||
           (byte_level && read_merges(v, file, error));
}

void vocab_free(struct vocab *v)
{
    free(v->type), free(v->score), free(v->bytes), free(v->begin), free(v->slot), free(v->merge);
}
