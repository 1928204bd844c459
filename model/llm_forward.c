/* Tokens through the layers, top to bottom:
 *
 *     x = embedding
 *     per layer:  q, k, v = rope(W norm(x))       out = attend(q, k, v)     x += W out
 *                 x += W_down (silu(W_gate norm(x)) * W_up norm(x))
 *     logits = W_head norm(x)
 *
 * All else is done token by token; where there are many tokens, the threads share them. */
#include "llm_state.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "../src/base/threads.h"

struct pass {
    struct llm_state *state;
    const struct llm_layer *layer;
    const uint32_t *tokens;
    const float *from;      /* the vectors that the running step rounds or norms */
    const float *norm;
    size_t n, first, stride;
};

/* ---- steps of a token --------------------------------------------------------------------------------------------------- */

enum { SUMS = 16 }; /* partial sums, which compilers keep in vectors */

/* out = x / rms(x) * weight; out may be x. */
static void rms_norm(float *out, const float *x, const float *weight, size_t n, float eps)
{
    float sums[SUMS] = {0};
    double sum = 0;
    size_t i = 0;
    for (; i + SUMS <= n; i += SUMS)
        for (int lane = 0; lane < SUMS; lane++)
            sums[lane] += x[i + (size_t)lane] * x[i + (size_t)lane];
    for (int lane = 0; lane < SUMS; lane++)
        sum += sums[lane];
    for (; i < n; i++)
        sum += x[i] * x[i];
    if (!(sum > 1e-30 && sum < 1e37)) { /* squares that f32 cannot hold: again, in double */
        sum = 0;
        for (i = 0; i < n; i++)
            sum += (double)x[i] * x[i];
    }
    float scale = (float)(1 / sqrt(sum / (double)n + (double)eps));
    for (i = 0; i < n; i++)
        out[i] = x[i] * scale * weight[i];
}

static void embed(struct pass *p, size_t t)
{
    const struct gguf_tensor *e = p->state->llm->embedding;
    size_t dim = (size_t)e->size[0], row_bytes = e->bytes / (size_t)e->size[1];
    weight_row(e->type, (const uint8_t *)e->data + p->tokens[t] * row_bytes, dim, p->state->x + t * dim);
}

static void norm_and_round(struct pass *p, size_t t)
{
    struct llm_state *state = p->state;
    size_t dim = state->llm->shape.dim;
    rms_norm(state->normed + t * dim, p->from + t * dim, p->norm, dim, state->llm->shape.eps);
    acts_set(&state->acts, state->kernels, t, state->normed + t * dim);
}

static void round_only(struct pass *p, size_t t)
{
    acts_set(&p->state->acts, p->state->kernels, t, p->from + t * p->stride);
}

/* Angles of the pairs at a position. */
static void angles(struct pass *p, size_t t)
{
    const struct llm_shape *s = &p->state->llm->shape;
    float *turns = p->state->turns + t * s->rope_dims;
    for (uint32_t i = 0; i < s->rope_dims / 2; i++) {
        double angle = (double)(p->first + t) * s->rope_scale * pow(s->rope_base, -2.0 * i / s->rope_dims);
        if (p->state->llm->rope_factors)
            angle /= (double)p->state->llm->rope_factors[i];
        turns[2 * i] = (float)cos(angle), turns[2 * i + 1] = (float)sin(angle);
    }
}

static void turn_head(const struct llm_shape *s, float *head, const float *turns)
{
    size_t half = s->rope_dims / 2, apart = s->rope_neox ? half : 1, step = s->rope_neox ? 1 : 2;
    for (size_t i = 0; i < half; i++) {
        float *a = head + i * step, *b = a + apart, x = *a, y = *b;
        *a = x * turns[2 * i] - y * turns[2 * i + 1];
        *b = x * turns[2 * i + 1] + y * turns[2 * i];
    }
}

static void turn(struct pass *p, size_t t)
{
    const struct llm_shape *s = &p->state->llm->shape;
    for (uint32_t h = 0; h < s->q_heads + s->kv_heads; h++) {
        int is_q = h < s->q_heads;
        const float *norm = is_q ? p->layer->q_norm : p->layer->k_norm;
        float *head = is_q ? p->state->q + (t * s->q_heads + h) * s->head_dim
                           : p->state->k + (t * s->kv_heads + h - s->q_heads) * s->head_dim;
        if (norm)
            rms_norm(head, head, norm, s->head_dim, s->eps);
        turn_head(s, head, p->state->turns + t * s->rope_dims);
    }
}

/* ---- steps of all tokens --------------------------------------------------------------------------------------------------- */

struct steps {
    struct pass *pass;
    void (*step)(struct pass *pass, size_t t);
};

enum { STEP_TOKENS = 8 }; /* of an item: one thread then writes all bytes of a batch of struct acts */

static void step_item(void *work, size_t i)
{
    const struct steps *s = work;
    for (size_t t = i * STEP_TOKENS; t < (i + 1) * STEP_TOKENS && t < s->pass->n; t++)
        s->step(s->pass, t);
}

static void each_token(struct pass *p, void (*step)(struct pass *pass, size_t t))
{
    struct steps steps = {p, step};
    aura_run(p->state->ctx, (p->n + STEP_TOKENS - 1) / STEP_TOKENS, step_item, &steps);
}

/* Prepares the vectors [n][cols] for the products that follow; norms them first if `norm` is not NULL. */
static int round_vectors(struct pass *p, const float *from, size_t cols, const float *norm)
{
    if (acts_resize(&p->state->acts, cols, p->n))
        return -1;
    p->from = from, p->stride = cols, p->norm = norm;
    each_token(p, norm ? norm_and_round : round_only);
    return 0;
}

static int attention_block(struct pass *p, uint32_t layer, char *error)
{
    struct llm_state *state = p->state;
    const struct llm_layer *l = p->layer;
    const struct llm_shape *s = &state->llm->shape;
    size_t q = (size_t)s->q_heads * s->head_dim, kv = (size_t)s->kv_heads * s->head_dim;
    const struct product in[] = {
        {&l->q, state->q, q, l->q_bias, 0}, {&l->k, state->k, kv, l->k_bias, 0}, {&l->v, state->v, kv, l->v_bias, 0}};
    if (round_vectors(p, state->x, s->dim, l->attn_norm))
        return llm_fail(error, "no memory for %zu tokens at once", p->n);
    matmul_run(state->ctx, state->kernels, &state->acts, in, 3);
    each_token(p, turn);
    if (state->on_layer)
        state->on_layer(state->arg, layer, p->first, (uint32_t)p->n, state->q, state->k, state->v);
    if (llm_attend(state, layer, p->first, p->n, error))
        return 1;
    if (round_vectors(p, state->q, q, NULL))
        return llm_fail(error, "no memory for %zu tokens at once", p->n);
    matmul_run(state->ctx, state->kernels, &state->acts, &(struct product){&l->out, state->x, s->dim, NULL, 1}, 1);
    return 0;
}

static int feed_forward_block(struct pass *p, char *error)
{
    struct llm_state *state = p->state;
    const struct llm_layer *l = p->layer;
    const struct llm_shape *s = &state->llm->shape;
    if (round_vectors(p, state->x, s->dim, l->ffn_norm))
        return llm_fail(error, "no memory for %zu tokens at once", p->n);
    matmul_gated(state->ctx, state->kernels, &state->acts, &l->gate, &l->up, state->hidden, s->ffn);
    if (round_vectors(p, state->hidden, s->ffn, NULL))
        return llm_fail(error, "no memory for %zu tokens at once", p->n);
    matmul_run(state->ctx, state->kernels, &state->acts, &(struct product){&l->down, state->x, s->dim, NULL, 1}, 1);
    return 0;
}

/* Infinities and NaN are the numbers with all bits of the exponent set. */
static int all_finite(const float *x, size_t n)
{
    uint32_t bad = 0, bits;
    for (size_t i = 0; i < n; i++) {
        memcpy(&bits, &x[i], sizeof bits);
        bad |= (bits & 0x7f800000) == 0x7f800000;
    }
    return !bad;
}

static int logits_of(struct pass *p, size_t wanted, float *logits, char *error)
{
    struct llm_state *state = p->state;
    const struct llm_shape *s = &state->llm->shape;
    const float *from = state->x + (p->n - wanted) * s->dim;
    p->n = wanted;
    if (round_vectors(p, from, s->dim, state->llm->out_norm))
        return llm_fail(error, "no memory for the logits of %zu tokens", wanted);
    matmul_run(state->ctx, state->kernels, &state->acts, &(struct product){&state->llm->head, logits, s->vocab, NULL, 0}, 1);
    return all_finite(logits, wanted * s->vocab)
        ? 0 : llm_fail(error, "the logits are not finite: the model's weights may be damaged");
}

static int check_call(const struct llm_state *state, const struct pass *p, size_t wanted, char *error)
{
    if (p->n == 0 || wanted > p->n)
        return llm_fail(error, "the logits of %zu out of %zu tokens", wanted, p->n);
    if (p->n > UINT32_MAX || p->first > state->capacity || p->n > state->capacity - p->first)
        return llm_fail(error, "the context is full: %zu tokens are there, %zu more are too many for %zu", p->first, p->n,
                        state->capacity);
    for (size_t t = 0; t < p->n; t++)
        if (p->tokens[t] >= state->llm->shape.vocab)
            return llm_fail(error, "token %" PRIu32 ": the vocabulary has %" PRIu32, p->tokens[t], state->llm->shape.vocab);
    return 0;
}

int llm_forward(struct llm_state *state, const uint32_t *tokens, size_t n, size_t wanted, float *logits,
                char error[LLM_ERROR_BYTES])
{
    struct pass p = {state, NULL, tokens, NULL, NULL, n, llm_state_tokens(state), 0};
    int failed = 0;
    if (check_call(state, &p, wanted, error) || llm_state_grow(state, n, p.first + n, error))
        return 1;
    each_token(&p, embed);
    each_token(&p, angles);
    for (uint32_t i = 0; i < state->llm->shape.layers && !failed; i++) {
        p.layer = &state->llm->layers[i];
        failed = attention_block(&p, i, error) || feed_forward_block(&p, error);
    }
    if (!failed && wanted)
        failed = logits_of(&p, wanted, logits, error);
    if (failed)
        aura_model_seq_truncate(state->cache, state->seq, p.first); /* cannot fail: all layers have these */
    return failed;
}
