/* Which kernels, the vectors of tokens, and how products are divided among threads. */
#define _POSIX_C_SOURCE 200809L
#include "../src/base/exact.h"
#include "matmul.h"

#include <stdlib.h>
#include <string.h>

#include "../src/base/threads.h"

/* ---- kernels ------------------------------------------------------------------------------------------------------------- */

/* Kernels of the other architecture are in the list, so that it is the same everywhere, but are not in this binary. */
#define KERNEL(type, isa, ...) matmul_##type##_##isa,
#define HERE(isa, flag) \
    {#isa, flag, WEIGHT_TYPES(KERNEL, isa) WEIGHT_FLOATS(KERNEL, isa) matmul_round_##isa, matmul_gate_##isa},
#define ELSEWHERE(isa, flag) {#isa, flag, .round = NULL},
#if defined(__x86_64__)
#define X86 HERE
#define ARM ELSEWHERE
#elif defined(__aarch64__)
#define X86 ELSEWHERE
#define ARM HERE
#else
#define X86 ELSEWHERE
#define ARM ELSEWHERE
#endif

const struct matmul_kernels matmul_list[] = {MATMUL_ISAS_ANY(HERE) MATMUL_ISAS_X86(X86) MATMUL_ISAS_ARM(ARM)};
const size_t matmul_count = sizeof matmul_list / sizeof *matmul_list;

const struct matmul_kernels *matmul_kernels(uint32_t isas)
{
    const struct matmul_kernels *best = &matmul_list[0];
    for (size_t i = 1; i < matmul_count; i++)
        if (matmul_list[i].round && isas & matmul_list[i].isa_flag)
            best = &matmul_list[i];
    return best;
}

static matmul_panel_fn *panel_fn(const struct matmul_kernels *kernels, uint32_t type)
{
    switch (type) {
#define CASE(name, ...) case GGUF_TYPE_##name: return kernels->name;
        WEIGHT_TYPES(CASE, any) WEIGHT_FLOATS(CASE, any)
#undef CASE
    }
    return NULL;
}

static int is_plain(uint32_t type)
{
    return gguf_type_info(type)->block == 1;
}

/* ---- vectors ------------------------------------------------------------------------------------------------------------- */

int acts_resize(struct acts *acts, size_t cols, size_t tokens)
{
    size_t blocks = (cols + ACT_COLS - 1) / ACT_COLS, batches = (tokens + ACT_TOKENS - 1) / ACT_TOKENS, room = blocks * batches;
    void *block = NULL, *plain = NULL;
    if (room > acts->room) {
        int failed = (acts->wants_block && posix_memalign(&block, 64, room * ACT_TOKENS * sizeof *acts->block)) ||
                     (acts->wants_plain && posix_memalign(&plain, 64, room * ACT_TOKENS * ACT_COLS * sizeof *acts->plain));
        acts_destroy(acts);
        if (failed)
            return free(block), -1;
        acts->block = block, acts->plain = plain, acts->room = room;
    }
    acts->cols = cols, acts->blocks = blocks, acts->tokens = tokens, acts->batches = batches;
    /* The last batch may lack tokens, and the last block of a token may lack columns: zeros stand for them. */
    if (acts->block && batches)
        memset(acts->block + (batches - 1) * blocks * ACT_TOKENS, 0, blocks * ACT_TOKENS * sizeof *acts->block);
    if (acts->plain)
        memset(acts->plain, 0, room * ACT_TOKENS * ACT_COLS * sizeof *acts->plain);
    return 0;
}

void acts_destroy(struct acts *acts)
{
    free(acts->block);
    free(acts->plain);
    acts->block = NULL, acts->plain = NULL, acts->room = 0;
}

void acts_set(struct acts *acts, const struct matmul_kernels *kernels, size_t t, const float *x)
{
    size_t batch = t / ACT_TOKENS * acts->blocks, place = t % ACT_TOKENS;
    float last[ACT_COLS] = {0};
    for (size_t b = 0; acts->block && b < acts->blocks; b++) {
        const float *from = x + b * ACT_COLS;
        if ((b + 1) * ACT_COLS > acts->cols)
            from = memcpy(last, from, (acts->cols - b * ACT_COLS) * sizeof *last);
        kernels->round(&acts->block[(batch + b) * ACT_TOKENS + place], from);
    }
    for (size_t i = 0; acts->plain && i < acts->cols; i++)
        acts->plain[(batch * ACT_COLS + i) * ACT_TOKENS + place] = x[i];
}

/* Batch i, and how many tokens it has. */
static const void *act_batch(const struct acts *acts, size_t i, int plain, size_t *tokens)
{
    size_t left = acts->tokens - i * ACT_TOKENS, first = i * acts->blocks * ACT_TOKENS;
    *tokens = left < ACT_TOKENS ? left : ACT_TOKENS;
    return plain ? (const void *)(acts->plain + first * ACT_COLS) : (const void *)(acts->block + first);
}

/* ---- products ------------------------------------------------------------------------------------------------------------ */

/* A thread takes an item of panels at a time. An item has at least ITEM_BYTES of weights, so that taking the next one costs
 * little beside its work. A product has up to ITEMS items, so that all threads are busy until the end. */
enum { ITEM_BYTES = 12 << 10, ITEMS = 64 };

static size_t panels_of_item(const struct matrix *m, size_t matrices)
{
    size_t least = (ITEM_BYTES + m->panel_bytes * matrices - 1) / (m->panel_bytes * matrices),
        share = (m->panels + ITEMS - 1) / ITEMS;
    return share > least ? share : least;
}

static size_t items_of(const struct matrix *m, size_t matrices)
{
    size_t n = panels_of_item(m, matrices);
    return (m->panels + n - 1) / n;
}

struct panel_work {
    const struct matmul_kernels *kernels;
    const struct acts *acts;
    const struct product *products;
    const struct matrix *gate, *up;
    float *out;
    size_t stride;
};

static void store_panel(const struct product *p, size_t panel, size_t first, size_t tokens, const float *sums)
{
    size_t row = panel * PANEL_ROWS, rows = p->weights->rows - row < PANEL_ROWS ? p->weights->rows - row : PANEL_ROWS;
    for (size_t t = 0; t < tokens; t++, sums += PANEL_ROWS) {
        float *out = p->out + (first + t) * p->stride + row;
        for (size_t r = 0; r < rows; r++)
            out[r] = (p->add ? out[r] : 0) + (p->bias ? sums[r] + p->bias[row + r] : sums[r]);
    }
}

static void product_panel(const struct panel_work *w, const struct product *p, size_t panel)
{
    _Alignas(64) float sums[ACT_TOKENS * PANEL_ROWS];
    const struct matrix *m = p->weights;
    matmul_panel_fn *run = panel_fn(w->kernels, m->type);
    for (size_t i = 0, tokens; i < w->acts->batches; i++) {
        const void *batch = act_batch(w->acts, i, is_plain(m->type), &tokens);
        run(sums, m->data + panel * m->panel_bytes, batch, m->blocks, tokens);
        store_panel(p, panel, i * ACT_TOKENS, tokens, sums);
    }
}

/* Items of the first product come first, then those of the second ... */
static void product_item(void *work, size_t i)
{
    const struct panel_work *w = work;
    const struct product *p = w->products;
    while (i >= items_of(p->weights, 1))
        i -= items_of((p++)->weights, 1);
    size_t n = panels_of_item(p->weights, 1);
    for (size_t panel = i * n; panel < (i + 1) * n && panel < p->weights->panels; panel++)
        product_panel(w, p, panel);
}

void matmul_run(const aura_ctx *ctx, const struct matmul_kernels *kernels, const struct acts *acts, const struct product *products,
                size_t n)
{
    struct panel_work work = {kernels, acts, products, NULL, NULL, NULL, 0};
    size_t items = 0;
    for (size_t i = 0; i < n; i++)
        items += items_of(products[i].weights, 1);
    aura_run(ctx, items, product_item, &work);
}

static void gated_panel(const struct panel_work *w, size_t panel)
{
    _Alignas(64) float gate[ACT_TOKENS * PANEL_ROWS], up[ACT_TOKENS * PANEL_ROWS];
    struct product p = {w->gate, w->out, w->stride, NULL, 0};
    for (size_t i = 0, tokens; i < w->acts->batches; i++) {
        const void *batch = act_batch(w->acts, i, is_plain(w->gate->type), &tokens);
        panel_fn(w->kernels, w->gate->type)(gate, w->gate->data + panel * w->gate->panel_bytes, batch, w->gate->blocks, tokens);
        batch = act_batch(w->acts, i, is_plain(w->up->type), &tokens);
        panel_fn(w->kernels, w->up->type)(up, w->up->data + panel * w->up->panel_bytes, batch, w->up->blocks, tokens);
        w->kernels->gate(gate, up, tokens * PANEL_ROWS);
        store_panel(&p, panel, i * ACT_TOKENS, tokens, gate);
    }
}

static void gated_item(void *work, size_t i)
{
    const struct panel_work *w = work;
    size_t n = panels_of_item(w->gate, 2);
    for (size_t panel = i * n; panel < (i + 1) * n && panel < w->gate->panels; panel++)
        gated_panel(w, panel);
}

void matmul_gated(const aura_ctx *ctx, const struct matmul_kernels *kernels, const struct acts *acts, const struct matrix *gate,
                  const struct matrix *up, float *out, size_t stride)
{
    struct panel_work work = {kernels, acts, NULL, gate, up, out, stride};
    aura_run(ctx, items_of(gate, 2), gated_item, &work);
}
