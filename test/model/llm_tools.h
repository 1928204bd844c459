/* Small models for tests: a GGUF file in memory with random weights in f32, and the same model as plain loops in double. */
#ifndef AURA_TEST_LLM_TOOLS_H
#define AURA_TEST_LLM_TOOLS_H

#include <math.h>

#include "../../model/vocab.h"
#include "gguf_tools.h"

struct tiny {
    const char *arch;
    uint32_t vocab, dim, ffn, layers, q_heads, kv_heads, head_dim;
    int neox, bias, qk_norm, tied, factors;
    float rope_base, linear;          /* linear: factor of the scaling, 0: none */
    const char *leave_out, *add;      /* a tensor that the file lacks; one that it has besides */
    uint64_t seed;
};

static inline struct tiny tiny_model(const char *arch)
{
    struct tiny t = {arch, 40, 96, 160, 2, 4, 2, 64, 0, 0, 0, 0, 0, 10000, 0, NULL, NULL, 1};
    t.neox = strcmp(arch, "llama") != 0, t.bias = !strcmp(arch, "qwen2"), t.qk_norm = !strcmp(arch, "qwen3");
    return t;
}

/* ---- weights: numbers that depend on the tensor's name and the place alone ---------------------------------------------- */

static inline float tiny_weight(const struct tiny *t, const char *name, uint64_t i)
{
    uint64_t h = t->seed;
    for (const char *c = name; *c; c++)
        h = (h ^ (uint8_t)*c) * 0x100000001b3u;
    h = (h ^ i) * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
    float x = (float)(int32_t)(h >> 32) * 0x1p-31f;
    if (strstr(name, "norm"))
        return 1 + 0.3f * x;
    return strstr(name, "freqs") ? 1.5f + x * 0.4f : strstr(name, "weight") ? 0.2f * x : x;
}

static inline void tiny_tensor(const struct tiny *t, struct gguf_writer *w, const char *name, uint64_t rows, uint64_t cols)
{
    uint64_t size[2] = {cols, rows};
    float *data = malloc((size_t)(rows * cols) * sizeof *data);
    if (t->leave_out && !strcmp(t->leave_out, name)) {
        free(data);
        return;
    }
    for (uint64_t i = 0; i < rows * cols; i++)
        data[i] = tiny_weight(t, name, i);
    gguf_put_tensor(w, name, GGUF_TYPE_F32, rows > 1 ? 2 : 1, size, data, (size_t)(rows * cols) * sizeof *data);
    free(data);
}

static inline const char *tiny_name(uint32_t layer, const char *part, char name[64])
{
    snprintf(name, 64, "blk.%u.%s", layer, part);
    return name;
}

static inline void tiny_layer(const struct tiny *t, struct gguf_writer *w, uint32_t i)
{
    uint32_t q = t->q_heads * t->head_dim, kv = t->kv_heads * t->head_dim;
    char n[64];
    tiny_tensor(t, w, tiny_name(i, "attn_norm.weight", n), 1, t->dim);
    tiny_tensor(t, w, tiny_name(i, "ffn_norm.weight", n), 1, t->dim);
    tiny_tensor(t, w, tiny_name(i, "attn_q.weight", n), q, t->dim);
    tiny_tensor(t, w, tiny_name(i, "attn_k.weight", n), kv, t->dim);
    tiny_tensor(t, w, tiny_name(i, "attn_v.weight", n), kv, t->dim);
    tiny_tensor(t, w, tiny_name(i, "attn_output.weight", n), t->dim, q);
    tiny_tensor(t, w, tiny_name(i, "ffn_gate.weight", n), t->ffn, t->dim);
    tiny_tensor(t, w, tiny_name(i, "ffn_up.weight", n), t->ffn, t->dim);
    tiny_tensor(t, w, tiny_name(i, "ffn_down.weight", n), t->dim, t->ffn);
    if (t->bias) {
        tiny_tensor(t, w, tiny_name(i, "attn_q.bias", n), 1, q);
        tiny_tensor(t, w, tiny_name(i, "attn_k.bias", n), 1, kv);
        tiny_tensor(t, w, tiny_name(i, "attn_v.bias", n), 1, kv);
    }
    if (t->qk_norm) {
        tiny_tensor(t, w, tiny_name(i, "attn_q_norm.weight", n), 1, t->head_dim);
        tiny_tensor(t, w, tiny_name(i, "attn_k_norm.weight", n), 1, t->head_dim);
    }
}

static inline void tiny_u32(const struct tiny *t, struct gguf_writer *w, const char *name, uint32_t value)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", t->arch, name);
    gguf_put_u32(w, key, value);
}

/* Writes the keys of the shape, and all tensors, into a file that the caller has begun. */
static inline void tiny_write(const struct tiny *t, struct gguf_writer *w)
{
    char key[96];
    gguf_put_string(w, "general.architecture", t->arch);
    tiny_u32(t, w, "block_count", t->layers);
    tiny_u32(t, w, "embedding_length", t->dim);
    tiny_u32(t, w, "feed_forward_length", t->ffn);
    tiny_u32(t, w, "attention.head_count", t->q_heads);
    tiny_u32(t, w, "attention.head_count_kv", t->kv_heads);
    tiny_u32(t, w, "attention.key_length", t->head_dim);
    tiny_u32(t, w, "attention.value_length", t->head_dim);
    tiny_u32(t, w, "context_length", 512);
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", t->arch);
    gguf_put_f32(w, key, 1e-5f);
    snprintf(key, sizeof key, "%s.rope.freq_base", t->arch);
    gguf_put_f32(w, key, t->rope_base);
    if (t->linear > 0) {
        snprintf(key, sizeof key, "%s.rope.scaling.type", t->arch);
        gguf_put_string(w, key, "linear");
        snprintf(key, sizeof key, "%s.rope.scaling.factor", t->arch);
        gguf_put_f32(w, key, t->linear);
    }
    tiny_tensor(t, w, "token_embd.weight", t->vocab, t->dim);
    tiny_tensor(t, w, "output_norm.weight", 1, t->dim);
    if (!t->tied)
        tiny_tensor(t, w, "output.weight", t->vocab, t->dim);
    if (t->factors)
        tiny_tensor(t, w, "rope_freqs.weight", 1, t->head_dim / 2);
    if (t->add)
        tiny_tensor(t, w, t->add, 1, 8);
    for (uint32_t i = 0; i < t->layers; i++)
        tiny_layer(t, w, i);
}

/* ---- the same in double ---------------------------------------------------------------------------------------------------- */

/* x[n][cols] to out[n][rows]. */
static inline void tiny_product(const struct tiny *t, const char *name, const double *x, uint64_t n, uint32_t rows, uint32_t cols,
                                double *out)
{
    memset(out, 0, (size_t)n * rows * sizeof *out);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < cols; c++) {
            double weight = (double)tiny_weight(t, name, (uint64_t)r * cols + c);
            for (uint64_t p = 0; p < n; p++)
                out[p * rows + r] += weight * x[p * cols + c];
        }
}

static inline void tiny_rms_norm(const struct tiny *t, const char *name, const double *x, uint32_t n, double *out)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (uint32_t i = 0; i < n; i++)
        out[i] = x[i] / sqrt(sum / n + (double)1e-5f) * (double)tiny_weight(t, name, i);
}

/* Bias, norm and RoPE of all heads of q or k. */
static inline void tiny_heads(const struct tiny *t, uint32_t layer, char which, double *x, uint32_t heads, uint64_t position)
{
    char name[64], part[32];
    uint32_t d = t->head_dim;
    snprintf(part, sizeof part, "attn_%c.bias", which);
    for (uint32_t i = 0; t->bias && i < heads * d; i++)
        x[i] += (double)tiny_weight(t, tiny_name(layer, part, name), i);
    snprintf(part, sizeof part, "attn_%c_norm.weight", which);
    for (uint32_t h = 0; h < heads && which != 'v'; h++) {
        double *head = x + h * d;
        if (t->qk_norm)
            tiny_rms_norm(t, tiny_name(layer, part, name), head, d, head);
        for (uint32_t i = 0; i < d / 2; i++) {
            double angle = (double)position * pow((double)t->rope_base, -2.0 * i / d) / (t->linear > 0 ? (double)t->linear : 1);
            if (t->factors)
                angle /= (double)tiny_weight(t, "rope_freqs.weight", i);
            double *a = t->neox ? head + i : head + 2 * i, *b = t->neox ? a + d / 2 : a + 1, p = *a, q = *b;
            *a = p * cos(angle) - q * sin(angle), *b = p * sin(angle) + q * cos(angle);
        }
    }
}

/* Attention of all heads of one position over the first n keys and values, [n][kv_heads * head_dim]. */
static inline void tiny_attend(const struct tiny *t, const double *q, const double *k, const double *v, uint64_t n, double *out)
{
    uint32_t d = t->head_dim, kv = t->kv_heads * d;
    double *w = malloc((size_t)n * sizeof *w);
    for (uint32_t h = 0; h < t->q_heads; h++) {
        uint32_t from = h / (t->q_heads / t->kv_heads) * d;
        double most = -1e300, sum = 0;
        for (uint64_t p = 0; p < n; p++) {
            w[p] = 0;
            for (uint32_t i = 0; i < d; i++)
                w[p] += q[h * d + i] * k[p * kv + from + i] / sqrt(d);
            most = w[p] > most ? w[p] : most;
        }
        for (uint64_t p = 0; p < n; p++)
            sum += w[p] = exp(w[p] - most);
        for (uint32_t i = 0; i < d; i++) {
            out[h * d + i] = 0;
            for (uint64_t p = 0; p < n; p++)
                out[h * d + i] += w[p] / sum * v[p * kv + from + i];
        }
    }
    free(w);
}

static inline double *tiny_doubles(uint64_t n, uint32_t each)
{
    return malloc((size_t)n * each * sizeof(double));
}

static inline void tiny_add(double *x, const double *more, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        x[i] += more[i];
}

static inline void tiny_feed_forward(const struct tiny *t, uint32_t layer, double *x, uint64_t n)
{
    double *normed = tiny_doubles(n, t->dim), *gate = tiny_doubles(n, t->ffn), *up = tiny_doubles(n, t->ffn);
    char name[64];
    for (uint64_t p = 0; p < n; p++)
        tiny_rms_norm(t, tiny_name(layer, "ffn_norm.weight", name), x + p * t->dim, t->dim, normed + p * t->dim);
    tiny_product(t, tiny_name(layer, "ffn_gate.weight", name), normed, n, t->ffn, t->dim, gate);
    tiny_product(t, tiny_name(layer, "ffn_up.weight", name), normed, n, t->ffn, t->dim, up);
    for (uint64_t i = 0; i < n * t->ffn; i++)
        gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
    tiny_product(t, tiny_name(layer, "ffn_down.weight", name), gate, n, t->dim, t->ffn, normed);
    tiny_add(x, normed, n * t->dim);
    free(normed), free(gate), free(up);
}

static inline void tiny_attention(const struct tiny *t, uint32_t layer, double *x, uint64_t n)
{
    uint32_t q_size = t->q_heads * t->head_dim, kv = t->kv_heads * t->head_dim;
    double *normed = tiny_doubles(n, t->dim), *q = tiny_doubles(n, q_size), *k = tiny_doubles(n, kv), *v = tiny_doubles(n, kv);
    double *out = tiny_doubles(n, q_size);
    char name[64];
    for (uint64_t p = 0; p < n; p++)
        tiny_rms_norm(t, tiny_name(layer, "attn_norm.weight", name), x + p * t->dim, t->dim, normed + p * t->dim);
    tiny_product(t, tiny_name(layer, "attn_q.weight", name), normed, n, q_size, t->dim, q);
    tiny_product(t, tiny_name(layer, "attn_k.weight", name), normed, n, kv, t->dim, k);
    tiny_product(t, tiny_name(layer, "attn_v.weight", name), normed, n, kv, t->dim, v);
    for (uint64_t p = 0; p < n; p++) {
        tiny_heads(t, layer, 'q', q + p * q_size, t->q_heads, p);
        tiny_heads(t, layer, 'k', k + p * kv, t->kv_heads, p);
        tiny_heads(t, layer, 'v', v + p * kv, t->kv_heads, p);
        tiny_attend(t, q + p * q_size, k, v, p + 1, out + p * q_size);
    }
    tiny_product(t, tiny_name(layer, "attn_output.weight", name), out, n, t->dim, q_size, normed);
    tiny_add(x, normed, n * t->dim);
    free(normed), free(q), free(k), free(v), free(out);
}

/* logits[n][vocab] of n tokens from position 0. */
static inline void tiny_forward(const struct tiny *t, const uint32_t *tokens, uint64_t n, double *logits)
{
    double *x = tiny_doubles(n, t->dim);
    for (uint64_t p = 0; p < n; p++)
        for (uint32_t i = 0; i < t->dim; i++)
            x[p * t->dim + i] = (double)tiny_weight(t, "token_embd.weight", (uint64_t)tokens[p] * t->dim + i);
    for (uint32_t layer = 0; layer < t->layers; layer++) {
        tiny_attention(t, layer, x, n);
        tiny_feed_forward(t, layer, x, n);
    }
    for (uint64_t p = 0; p < n; p++)
        tiny_rms_norm(t, "output_norm.weight", x + p * t->dim, t->dim, x + p * t->dim);
    tiny_product(t, t->tied ? "token_embd.weight" : "output.weight", x, n, t->vocab, t->dim, logits);
    free(x);
}

/* ---- a model that talks ----------------------------------------------------------------------------------------------------- */

/* Writes a model whose tokens are bytes, with a tokenizer and a chat template, so that `aura run` can use it. begin: 1 for one that
 * wants a token before every text. 0 when good. */
static inline int talker_write(const char *path, int begin)
{
    static char byte[256][3];
    static const char *texts[259] = {[256] = "<|im_start|>", "<|im_end|>", "ab"};
    static int32_t types[259] = {[256] = TOKEN_CONTROL, TOKEN_CONTROL, TOKEN_NORMAL};
    static const char *const merges[] = {"a b"};
    struct tiny t = tiny_model("llama");
    struct gguf_writer w = {0};
    for (int i = 0; i < 256; i++) {
        byte[i][vocab_write_byte((uint8_t)i, byte[i])] = 0;
        texts[i] = byte[i], types[i] = TOKEN_NORMAL;
    }
    gguf_put_string(&w, "tokenizer.ggml.model", "gpt2");
    gguf_put_string(&w, "tokenizer.ggml.pre", "gpt-2");
    gguf_put_strings(&w, "tokenizer.ggml.tokens", texts, 259);
    gguf_put_i32s(&w, "tokenizer.ggml.token_type", types, 259);
    gguf_put_strings(&w, "tokenizer.ggml.merges", merges, 1);
    gguf_put_u32(&w, "tokenizer.ggml.eos_token_id", 257);
    if (begin)
        gguf_put_u32(&w, "tokenizer.ggml.bos_token_id", 256), gguf_put_bool(&w, "tokenizer.ggml.add_bos_token", 1);
    gguf_put_string(&w, "tokenizer.chat_template",
                    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>'}}");
    t.vocab = 259;
    tiny_write(&t, &w);
    struct gguf_part file = gguf_finish(&w);
    FILE *to = fopen(path, "wb");
    int bad = !to || fwrite(file.data, 1, file.size, to) != file.size;
    free(file.data);
    return to && fclose(to) ? 1 : bad;
}

#endif
