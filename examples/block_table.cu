/* An engine that owns its block table, on a GPU: blocks of 256 slots, a list of them for each sequence, tokens that are
 * written to slots, attention through the lists. Three sequences grow at their own pace, one ends and others take its
 * blocks. Every step is compared with attention over the keys and values themselves. */
#include <aura_cuda.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <algorithm>
#include <vector>

enum { BLOCK = 256, BLOCKS = 12, TABLE = 8, SEQS = 3, Q_HEADS = 4, KV_HEADS = 2, DIM = 64, STEPS = 5 };
enum { KV = KV_HEADS * DIM, Q = Q_HEADS * DIM, MOST = 4096 };

struct sequence {
    std::vector<uint32_t> blocks;
    std::vector<float> k, v; /* for the comparison */
    uint32_t tokens;
};

static std::vector<uint32_t> free_blocks;
static float number(void) { return ((float)rand() / (float)RAND_MAX - 0.5f) * 3.46f; } /* of variance 1 */

static void check(bool good, const char *what)
{
    if (!good)
        exit((fprintf(stderr, "%s: %s\n", what, aura_last_error()), 1));
}

/* Memory of the device, with what the host has for it. */
template <class T> struct array {
    T *p = NULL;
    explicit array(size_t n) { check(cudaMalloc((void **)&p, n * sizeof(T)) == cudaSuccess, "cudaMalloc"); }
    ~array() { cudaFree(p); }
    T *put(const T *x, size_t n) { return cudaMemcpy(p, x, n * sizeof(T), cudaMemcpyHostToDevice), p; }
};

/* One more token of a sequence: its slot, for which it may need a block, and its key and value. */
static void add_token(struct sequence &s, std::vector<uint64_t> &slot, std::vector<float> &k, std::vector<float> &v)
{
    if (s.tokens % BLOCK == 0) {
        check(!free_blocks.empty(), "no block is free");
        s.blocks.push_back(free_blocks.back()), free_blocks.pop_back();
    }
    slot.push_back((uint64_t)s.blocks.back() * BLOCK + s.tokens++ % BLOCK);
    for (int d = 0; d < KV; d++)
        k.push_back(number()), s.k.push_back(k.back()), v.push_back(number()), s.v.push_back(v.back());
}

/* |out - attention in double|^2 / |attention|^2 of one head, added to e. */
static void compare(const struct sequence &s, int head, const float *q, const float *out, double (&e)[2])
{
    std::vector<double> want(DIM, 0);
    double sum = 0;
    for (uint32_t t = 0; t < s.tokens; t++) {
        double x = 0;
        const float *k = &s.k[t * KV + head / 2 * DIM], *v = &s.v[t * KV + head / 2 * DIM];
        for (int d = 0; d < DIM; d++)
            x += (double)q[d] * k[d];
        sum += x = exp(x / sqrt((double)DIM));
        for (int d = 0; d < DIM; d++)
            want[d] += x * v[d];
    }
    for (int d = 0; d < DIM; d++)
        want[d] /= s.tokens ? sum : 1, e[0] += pow(out[d] - want[d], 2), e[1] += pow(want[d], 2);
}

int main(void)
{
    static const uint32_t pace[STEPS][SEQS] = {{300, 40, 700}, {1, 1, 1}, {130, 260, 0}, {1, 1, 600}, {1, 1, 1}};
    float q[SEQS * Q], out[SEQS * Q];
    uint32_t table[SEQS * TABLE] = {0}, tokens[SEQS], wrong;
    struct sequence seqs[SEQS] = {};
    aura_ctx *ctx = NULL;
    aura_cuda_cache *cache = NULL;
    aura_cuda_workspace *workspace = NULL;
    aura_cuda_config config = AURA_CUDA_CONFIG_INIT;
    config.cache.format = {AURA_KIND_B8, AURA_KIND_B8}, config.cache.slots = BLOCKS * BLOCK;
    config.cache.q_heads = Q_HEADS, config.cache.kv_heads = KV_HEADS;
    config.cache.k_dim = DIM, config.cache.budget_bytes = 64 << 20;
    check(!aura_ctx_create(NULL, &ctx) && !aura_cuda_cache_create(ctx, &config, &cache) &&
              !aura_cuda_workspace_create(cache, SEQS, 1, &workspace), "a cache of slots, and a workspace");
    array<float> dk(MOST * KV), dv(MOST * KV), dq(SEQS * Q), dout(SEQS * Q);
    array<uint64_t> dslot(MOST);
    array<uint32_t> dtable(SEQS * TABLE), dtokens(SEQS);
    free_blocks = {3, 8, 1, 6, 11, 4, 9, 2, 7, 0, 5, 10};
    for (int step = 0; step < STEPS; step++) {
        std::vector<uint64_t> slot; /* where the tokens of this step go */
        std::vector<float> k, v;
        double e[2] = {0, 0};
        if (step == 2) { /* the last sequence ends: its blocks are free, and who takes them writes over what is there */
            free_blocks.insert(free_blocks.end(), seqs[2].blocks.begin(), seqs[2].blocks.end());
            seqs[2] = {};
        }
        for (int i = 0; i < SEQS; i++) {
            for (uint32_t n = pace[step][i]; n > 0; n--)
                add_token(seqs[i], slot, k, v);
            std::copy(seqs[i].blocks.begin(), seqs[i].blocks.end(), table + i * TABLE);
            tokens[i] = seqs[i].tokens;
        }
        for (float &x : q)
            x = number();
        aura_cuda_slot_args in = AURA_CUDA_SLOT_ARGS_INIT;
        in.tokens = (uint32_t)slot.size(), in.slot = dslot.put(slot.data(), slot.size());
        in.k.data = dk.put(k.data(), k.size()), in.v.data = dv.put(v.data(), v.size());
        aura_cuda_attend_args ask = AURA_CUDA_ATTEND_ARGS_INIT;
        ask.n_seqs = SEQS, ask.queries = 1, ask.q.data = dq.put(q, SEQS * Q), ask.out.data = dout.p;
        ask.pages = dtable.put(table, SEQS * TABLE), ask.page_stride = TABLE, ask.tokens = dtokens.put(tokens, SEQS);
        check(!aura_cuda_slots_write(cache, &in, NULL) && !aura_cuda_attend(cache, workspace, &ask, NULL) &&
                  !aura_cuda_slots_status(cache, &wrong) && !wrong, "a step"); /* the status waits for the device */
        cudaMemcpy(out, dout.p, sizeof out, cudaMemcpyDeviceToHost);
        for (int i = 0; i < SEQS * Q_HEADS; i++)
            compare(seqs[i / Q_HEADS], i % Q_HEADS, q + i * DIM, out + i * DIM, e);
        printf("%zu tokens in; %u, %u and %u; %zu blocks are free; error %.2f %%\n", slot.size(), tokens[0], tokens[1],
               tokens[2], free_blocks.size(), 100 * sqrt(e[0] / e[1]));
        check(e[0] <= 0.02 * 0.02 * e[1], "the output is wrong");
    }
    aura_cuda_workspace_destroy(workspace), aura_cuda_cache_destroy(cache), aura_ctx_destroy(ctx);
}
