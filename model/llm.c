/* A model from a file: its shape from the keys, its weights from the tensors. The code must understand the whole file: a key that
 * changes what is computed, or a tensor that nobody asked for, is an error and not a guess. */
#include "llm_parts.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../src/base/printable.h"

struct opening {
    const struct gguf *file;
    struct llm *llm;
    aura_ctx *ctx;
    uint8_t *used; /* [tensors] */
    int exact;     /* 1: quantised matrices become floats */
    char *error;
};

int llm_fail(char error[LLM_ERROR_BYTES], const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, LLM_ERROR_BYTES, format, arguments);
    va_end(arguments);
    aura_make_printable(error);
    return 1;
}

/* ---- keys ------------------------------------------------------------------------------------------------------------------ */

static const char *key_of(const struct opening *o, const char *name, char key[96])
{
    snprintf(key, 96, "%s.%s", o->llm->shape.arch, name);
    return key;
}

/* A size, 1 to 2^31. Where the file lacks the key, it is the default; a default of 0 means that the file must have the key. */
static int take_size(struct opening *o, const char *name, uint32_t otherwise, uint32_t *size)
{
    char key[96];
    uint64_t value = otherwise;
    if (gguf_uint(o->file, key_of(o, name, key), &value) < 0)
        return llm_fail(o->error, "key %s must be a whole number; one for each layer is not supported", key);
    if (value == 0 || value > INT32_MAX)
        return llm_fail(o->error, value ? "key %s: %" PRIu64 " is too large" : "key %s is missing or 0", key, value);
    *size = (uint32_t)value;
    return 0;
}

static int take_real(struct opening *o, const char *name, double otherwise, double *real)
{
    char key[96];
    *real = otherwise;
    if (gguf_float(o->file, key_of(o, name, key), real) < 0 || !(*real > 0 && *real < 1e12))
        return llm_fail(o->error, "key %s must be a number above 0", key);
    return 0;
}

/* Keys that ask for a computation that this code does not have, unless they are 0. */
static const char *const refused_keys[] = {"expert_count", "attention.sliding_window", "embedding_scale",
                                           "residual_scale", "logit_scale", "attention.scale",
                                           "attn_logit_softcapping", "final_logit_softcapping", NULL};

/* Refuses a key of the architecture that this code does not know: it may ask for another computation. */
static int refuse_unknown(struct opening *o)
{
    static const char *const names[] = {
        "attention.causal", "attention.head_count", "attention.head_count_kv", "attention.key_length",
        "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon", "attention.value_length", "block_count",
        "context_length", "embedding_length", "expert_used_count", "feed_forward_length", "pooling_type", "rope.dimension_count",
        "rope.freq_base", "rope.scale_linear", "rope.scaling.attn_factor", "rope.scaling.factor", "rope.scaling.finetuned",
        "rope.scaling.original_context_length", "rope.scaling.type", "tensor_data_layout", "vocab_size"};
    const char *arch = o->llm->shape.arch;
    const size_t prefix = strlen(arch);
    for (uint64_t i = 0; i < gguf_values(o->file); i++) {
        const struct gguf_text key = gguf_value_at(o->file, i)->key;
        int known = key.size <= prefix || memcmp(key.data, arch, prefix) || key.data[prefix] != '.';
        for (size_t k = 0; !known && k < sizeof names / sizeof names[0]; k++)
            known = gguf_text_is((struct gguf_text){key.data + prefix + 1, key.size - prefix - 1}, names[k]);
        for (size_t k = 0; !known && refused_keys[k]; k++)
            known = gguf_text_is((struct gguf_text){key.data + prefix + 1, key.size - prefix - 1}, refused_keys[k]);
        if (!known)
            return llm_fail(o->error, "key %.*s is not known here; it may change what the model computes",
                            key.size < 80 ? (int)key.size : 80, key.data);
    }
    return 0;
}

/* A bool that must be true, or not there. */
static int refuse_false(struct opening *o, const char *name)
{
    char key[96];
    int flag = 1;
    if (gguf_bool(o->file, key_of(o, name, key), &flag) < 0)
        return llm_fail(o->error, "key %s must be true or false", key);
    return flag ? 0 : llm_fail(o->error, "key %s: what it asks for is not supported", key);
}

static int refuse_others(struct opening *o)
{
    char key[96];
    for (size_t i = 0; refused_keys[i]; i++) {
        uint64_t number = 0;
        double real = 0;
        if (gguf_uint(o->file, key_of(o, refused_keys[i], key), &number) < 0 && gguf_float(o->file, key, &real) < 0)
            return llm_fail(o->error, "key %s is of a kind that is not supported", key);
        if (number || real != 0)
            return llm_fail(o->error, "key %s: what it asks for is not supported", key);
    }
    return refuse_false(o, "attention.causal");
}

static int take_rope(struct opening *o)
{
    struct llm_shape *s = &o->llm->shape;
    struct gguf_text scaling = {"none", 4};
    char key[96];
    double factor, linear, attention;
    if (gguf_string(o->file, key_of(o, "rope.scaling.type", key), &scaling) < 0)
        return llm_fail(o->error, "key %s must be a text", key);
    if (!gguf_text_is(scaling, "none") && !gguf_text_is(scaling, "linear"))
        return llm_fail(o->error, "key %s: %.*s is not supported; none and linear are", key,
                        scaling.size < 40 ? (int)scaling.size : 40, scaling.data);
    if (take_real(o, "rope.scaling.factor", 1, &factor) || take_real(o, "rope.scale_linear", 1, &linear) ||
        take_real(o, "rope.scaling.attn_factor", 1, &attention))
        return 1;
    if ((!gguf_text_is(scaling, "linear") && factor != 1) || linear != 1 || attention != 1)
        return llm_fail(o->error, "keys rope.scaling.factor %g without the type linear, rope.scale_linear %g or "
                        "rope.scaling.attn_factor %g: what they ask for is not supported", factor, linear, attention);
    s->rope_scale = 1 / factor;
    s->rope_neox = !!strcmp(s->arch, "llama");
    if (take_size(o, "rope.dimension_count", s->head_dim, &s->rope_dims) || take_real(o, "rope.freq_base", 10000, &s->rope_base))
        return 1;
    if (s->rope_dims > s->head_dim || s->rope_dims % 2)
        return llm_fail(o->error, "%" PRIu32 " numbers of each head are to be turned; it must be an even number, up to %" PRIu32,
                        s->rope_dims, s->head_dim);
    return 0;
}

static int take_arch(struct opening *o)
{
    struct gguf_text arch = {"", 0};
    struct llm_shape *s = &o->llm->shape;
    if (gguf_string(o->file, "general.architecture", &arch) != 1)
        return llm_fail(o->error, "the file does not say its architecture (general.architecture)");
    if (!gguf_text_is(arch, "llama") && !gguf_text_is(arch, "qwen2") && !gguf_text_is(arch, "qwen3"))
        return llm_fail(o->error, "architecture %.*s is not supported; llama, qwen2 and qwen3 are",
                        arch.size < 40 ? (int)arch.size : 40, arch.data);
    memcpy(s->arch, arch.data, arch.size);
    return 0;
}

static int take_shape(struct opening *o)
{
    struct llm_shape *s = &o->llm->shape;
    uint32_t value_dim = 0;
    double eps;
    if (take_arch(o) || refuse_others(o) || take_size(o, "block_count", 0, &s->layers) ||
        take_size(o, "embedding_length", 0, &s->dim) || take_size(o, "feed_forward_length", 0, &s->ffn) ||
        take_size(o, "attention.head_count", 0, &s->q_heads) ||
        take_size(o, "attention.head_count_kv", s->q_heads, &s->kv_heads) || take_size(o, "context_length", 0, &s->ctx) ||
        take_size(o, "attention.key_length", s->dim / s->q_heads, &s->head_dim) ||
        take_size(o, "attention.value_length", s->head_dim, &value_dim) ||
        take_real(o, "attention.layer_norm_rms_epsilon", 1e-5, &eps) || take_rope(o) || refuse_unknown(o))
        return 1;
    s->eps = (float)eps;
    if (value_dim != s->head_dim)
        return llm_fail(o->error, "keys of %" PRIu32 " and values of %" PRIu32 " numbers: they must be as long as each other",
                        s->head_dim, value_dim);
    if (s->q_heads % s->kv_heads)
        return llm_fail(o->error, "%" PRIu32 " query heads cannot be divided among %" PRIu32 " KV heads", s->q_heads, s->kv_heads);
    if (s->layers > 65536 || s->head_dim > 65536 || s->q_heads > 65536)
        return llm_fail(o->error, "%" PRIu32 " layers of %" PRIu32 " heads of %" PRIu32 " numbers are too many", s->layers,
                        s->q_heads, s->head_dim);
    return 0;
}

/* ---- tensors --------------------------------------------------------------------------------------------------------------- */

/* A tensor [rows][cols], or a vector where rows is 1; NULL where the file lacks it. Fails where it has another shape or type. */
static int find_tensor(struct opening *o, const char *name, uint64_t rows, uint64_t cols, const struct gguf_tensor **tensor)
{
    const struct gguf_tensor *t = gguf_tensor(o->file, name);
    *tensor = t;
    if (!t)
        return 0;
    if (!t->data)
        return llm_fail(o->error, "tensor %s is of type %" PRIu32 ", which is not supported; F32, F16, BF16, "
                        "Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K are", name, t->type);
    if (t->size[0] != cols || t->size[1] != rows || t->size[2] != 1 || t->size[3] != 1)
        return llm_fail(o->error, "tensor %s is %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
                        "; it must be %" PRIu64 " x %" PRIu64, name, t->size[0], t->size[1], t->size[2], t->size[3], cols, rows);
    o->used[t - gguf_tensor_at(o->file, 0)] = 1;
    return 0;
}

static const char *tensor_of(uint32_t layer, const char *name, char text[64])
{
    snprintf(text, 64, "blk.%" PRIu32 ".%s", layer, name);
    return text;
}

/* A vector as numbers; *vector stays NULL where the file lacks it and the model does not need it. */
static int take_vector(struct opening *o, const char *name, uint64_t size, int needed, float **vector)
{
    const struct gguf_tensor *t;
    if (find_tensor(o, name, 1, size, &t))
        return 1;
    if (!t)
        return needed ? llm_fail(o->error, "tensor %s is missing", name) : 0;
    *vector = malloc((size_t)size * sizeof **vector);
    if (!*vector)
        return llm_fail(o->error, "no memory for tensor %s", name);
    weight_row(t->type, t->data, (size_t)size, *vector);
    return 0;
}

/* A matrix of quantised weights as floats; -1: no memory. */
static int make_float_matrix(struct opening *o, const struct gguf_tensor *t, struct matrix *matrix)
{
    size_t rows = (size_t)t->size[1], cols = (size_t)t->size[0], row_bytes = t->bytes / rows;
    float *x = cols > SIZE_MAX / sizeof *x / rows ? NULL : malloc(rows * cols * sizeof *x);
    for (size_t i = 0; x && i < rows; i++)
        weight_row(t->type, (const uint8_t *)t->data + i * row_bytes, cols, x + i * cols);
    int failed = x ? matrix_create(o->ctx, GGUF_TYPE_F32, x, rows, cols, matrix) : -1;
    free(x);
    return failed;
}

static int make_matrix(struct opening *o, const struct gguf_tensor *t, struct matrix *matrix)
{
    int is_float = gguf_type_info(t->type)->block == 1, make_float = o->exact && !is_float;
    if (is_float || make_float)
        o->llm->has_floats = 1;
    else
        o->llm->has_blocks = 1;
    int failed = make_float ? make_float_matrix(o, t, matrix)
                            : matrix_create(o->ctx, t->type, t->data, (size_t)t->size[1], (size_t)t->size[0], matrix);
    return failed ? llm_fail(o->error, "no memory for tensor %.*s", (int)t->name.size, t->name.data) : 0;
}

static int take_matrix(struct opening *o, const char *name, uint64_t rows, uint64_t cols, struct matrix *matrix)
{
    const struct gguf_tensor *t;
    if (find_tensor(o, name, rows, cols, &t))
        return 1;
    return t ? make_matrix(o, t, matrix) : llm_fail(o->error, "tensor %s is missing", name);
}

static int take_layer(struct opening *o, uint32_t i)
{
    const struct llm_shape *s = &o->llm->shape;
    struct llm_layer *l = &o->llm->layers[i];
    uint64_t q = (uint64_t)s->q_heads * s->head_dim, kv = (uint64_t)s->kv_heads * s->head_dim;
    int bias = !strcmp(s->arch, "qwen2"), qk_norm = !strcmp(s->arch, "qwen3");
    char n[64];
    return take_vector(o, tensor_of(i, "attn_norm.weight", n), s->dim, 1, &l->attn_norm) ||
           take_vector(o, tensor_of(i, "ffn_norm.weight", n), s->dim, 1, &l->ffn_norm) ||
           take_vector(o, tensor_of(i, "attn_q.bias", n), q, bias, &l->q_bias) ||
           take_vector(o, tensor_of(i, "attn_k.bias", n), kv, bias, &l->k_bias) ||
           take_vector(o, tensor_of(i, "attn_v.bias", n), kv, bias, &l->v_bias) ||
           (qk_norm && take_vector(o, tensor_of(i, "attn_q_norm.weight", n), s->head_dim, 1, &l->q_norm)) ||
           (qk_norm && take_vector(o, tensor_of(i, "attn_k_norm.weight", n), s->head_dim, 1, &l->k_norm)) ||
           take_matrix(o, tensor_of(i, "attn_q.weight", n), q, s->dim, &l->q) ||
           take_matrix(o, tensor_of(i, "attn_k.weight", n), kv, s->dim, &l->k) ||
           take_matrix(o, tensor_of(i, "attn_v.weight", n), kv, s->dim, &l->v) ||
           take_matrix(o, tensor_of(i, "attn_output.weight", n), s->dim, q, &l->out) ||
           take_matrix(o, tensor_of(i, "ffn_gate.weight", n), s->ffn, s->dim, &l->gate) ||
           take_matrix(o, tensor_of(i, "ffn_up.weight", n), s->ffn, s->dim, &l->up) ||
           take_matrix(o, tensor_of(i, "ffn_down.weight", n), s->dim, s->ffn, &l->down);
}

/* Where the file has no output matrix, the embedding is the output, too. */
static int take_ends(struct opening *o)
{
    struct llm *m = o->llm;
    const struct gguf_tensor *embedding = gguf_tensor(o->file, "token_embd.weight"), *head;
    if (!embedding)
        return llm_fail(o->error, "tensor token_embd.weight is missing: a file of a vocabulary alone?");
    if (embedding->size[1] > INT32_MAX || find_tensor(o, "token_embd.weight", embedding->size[1], m->shape.dim, &m->embedding))
        return embedding->size[1] > INT32_MAX ? llm_fail(o->error, "a vocabulary of %" PRIu64 " tokens", embedding->size[1]) : 1;
    m->shape.vocab = (uint32_t)embedding->size[1];
    if (find_tensor(o, "output.weight", m->shape.vocab, m->shape.dim, &head))
        return 1;
    m->shape.tied = !head;
    return take_vector(o, "output_norm.weight", m->shape.dim, 1, &m->out_norm) ||
           take_vector(o, "rope_freqs.weight", m->shape.rope_dims / 2, 0, &m->rope_factors) ||
           make_matrix(o, head ? head : embedding, &m->head);
}

/* A tensor that nobody asked for would be part of another computation. */
static int refuse_unused(struct opening *o)
{
    for (uint64_t i = 0; i < gguf_tensors(o->file); i++) {
        struct gguf_text name = gguf_tensor_at(o->file, i)->name;
        if (!o->used[i])
            return llm_fail(o->error, "tensor %.*s: a %s model of %" PRIu32 " layers with it is not supported",
                            name.size < 80 ? (int)name.size : 80, name.data, o->llm->shape.arch, o->llm->shape.layers);
    }
    return 0;
}

static int take_all(struct opening *o)
{
    struct llm *m = o->llm;
    if (take_shape(o))
        return 1;
    if (m->shape.layers > gguf_tensors(o->file)) /* checked before the number sizes an allocation */
        return llm_fail(o->error, "%" PRIu32 " layers of %" PRIu64 " tensors", m->shape.layers, gguf_tensors(o->file));
    m->layers = calloc(m->shape.layers, sizeof *m->layers);
    if (!m->layers)
        return llm_fail(o->error, "no memory for %" PRIu32 " layers", m->shape.layers);
    if (take_ends(o))
        return 1;
    for (uint32_t i = 0; i < m->shape.layers; i++)
        if (take_layer(o, i))
            return 1;
    m->shape.bias = m->layers[0].q_bias != NULL, m->shape.qk_norm = m->layers[0].q_norm != NULL;
    return refuse_unused(o);
}

static int open_model(const struct gguf *file, uint32_t threads, int exact, struct llm **llm, char *error)
{
    struct opening o = {file, calloc(1, sizeof(struct llm)), NULL, calloc((size_t)gguf_tensors(file) + 1, 1), exact, error};
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    options.threads = threads;
    int failed = !o.llm || !o.used || aura_ctx_create(&options, &o.ctx)
                     ? llm_fail(error, "%s", o.llm && o.used ? aura_last_error() : "no memory") : take_all(&o);
    aura_ctx_destroy(o.ctx);
    free(o.used);
    if (failed)
        return llm_close(o.llm), 1;
    o.llm->file = file;
    *llm = o.llm;
    return 0;
}

int llm_open(const struct gguf *file, uint32_t threads, struct llm **llm, char error[LLM_ERROR_BYTES])
{
    return open_model(file, threads, 0, llm, error);
}

int llm_open_exact(const struct gguf *file, uint32_t threads, struct llm **llm, char error[LLM_ERROR_BYTES])
{
    return open_model(file, threads, 1, llm, error);
}

static void free_layer(struct llm_layer *l)
{
    float *vectors[] = {l->attn_norm, l->ffn_norm, l->q_norm, l->k_norm, l->q_bias, l->k_bias, l->v_bias};
    struct matrix *matrices[] = {&l->q, &l->k, &l->v, &l->out, &l->gate, &l->up, &l->down};
    for (int i = 0; i < 7; i++) {
        free(vectors[i]);
        matrix_destroy(matrices[i]);
    }
}

void llm_close(struct llm *llm)
{
    if (!llm)
        return;
    for (uint32_t i = 0; llm->layers && i < llm->shape.layers; i++)
        free_layer(&llm->layers[i]);
    matrix_destroy(&llm->head);
    free(llm->layers);
    free(llm->out_norm);
    free(llm->rope_factors);
    free(llm);
}

int llm_value_metric(const struct llm *llm, uint32_t layer, float *metric)
{
    const struct llm_shape *s = &llm->shape;
    char name[64];
    const struct gguf_tensor *out = gguf_tensor(llm->file, tensor_of(layer, "attn_output.weight", name));
    const size_t cols = (size_t)s->q_heads * s->head_dim, triangle = (size_t)s->head_dim * (s->head_dim + 1) / 2;
    const size_t group = s->q_heads / s->kv_heads, row_bytes = out->bytes / s->dim;
    float *row = malloc(cols * sizeof *row);
    double *sum = calloc(s->kv_heads * triangle, sizeof *sum);
    for (size_t r = 0; row && sum && r < s->dim; r++) {
        weight_row(out->type, (const uint8_t *)out->data + r * row_bytes, cols, row);
        for (size_t h = 0; h < s->q_heads; h++) {
            const float *w = row + h * s->head_dim;
            double *to = sum + h / group * triangle;
            for (uint32_t i = 0; i < s->head_dim; to += ++i)
                for (uint32_t j = 0; j <= i; j++)
                    to[j] += (double)w[i] * w[j];
        }
    }
    for (size_t i = 0; row && sum && i < s->kv_heads * triangle; i++)
        metric[i] = (float)sum[i];
    const int bad = !row || !sum;
    free(row);
    free(sum);
    return bad;
}

const struct llm_shape *llm_shape(const struct llm *llm)
{
    return &llm->shape;
}
