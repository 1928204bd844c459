/* aura eval's parts: llama.cpp's cache types, the statistics, the file of exact logits, and all of it on a small model. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>

#include "../../tool/parts/inputs.h"
#include "../../tool/parts/quality.h"
#include "../file/file_tools.h"

/* ---- llama.cpp's types ---------------------------------------------------------------------------------------------- */

static int read_block(FILE *file, float x[PEER_BLOCK])
{
    int n = 0;
    while (n < PEER_BLOCK && fscanf(file, "%f", &x[n]) == 1)
        n++;
    return n == PEER_BLOCK;
}

/* As recorded from llama.cpp itself, bit by bit. */
static void peer_blocks(void)
{
    FILE *file = fopen(golden_path("peer_blocks.txt"), "r");
    float x[PEER_BLOCK] = {0}, want[PEER_BLOCK], got[PEER_BLOCK];
    char name[16];
    int seen = 0;
    EXPECT(file, "the golden file is missing");
    if (file && fscanf(file, "#%*[^\n]"))
        EXPECT(0, "line 1 is a comment");
    while (file && fscanf(file, "%15s", name) == 1) {
        EXPECT(read_block(file, strcmp(name, "x") ? want : x), "a block of %s", name);
        const struct peer *peer = peer_find(name);
        if (!peer)
            continue;
        peer->block(x, got);
        for (int i = 0; i < PEER_BLOCK; i++)
            EXPECT(got[i] == want[i], "%s, number %d: %a, not %a", name, i, (double)got[i], (double)want[i]);
        seen++;
    }
    EXPECT(seen == 42, "%d blocks", seen);
    if (file)
        fclose(file);
}

static void peer_sizes(void)
{
    static const struct {
        const char *name;
        double bits;
    } want[] = {{"f16", 16}, {"q8_0", 8.5}, {"q5_1", 6}, {"q5_0", 5.5}, {"q4_1", 5}, {"q4_0", 4.5}, {"iq4_nl", 4.5}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const struct peer *peer = peer_find(want[i].name);
        EXPECT(peer && peer->bits == want[i].bits, "%s", want[i].name);
    }
    EXPECT(!peer_find("q3_0"), "there is no q3_0");
    EXPECT(peer_rotation(64, PEER_KEYS) == 64 && peer_rotation(128, PEER_KEYS) == 128, "keys, by all of a head");
    EXPECT(peer_rotation(192, PEER_KEYS) == 64 && peer_rotation(128, PEER_VALUES) == 64, "by 64");
    EXPECT(peer_rotation(96, PEER_KEYS) == 0 && peer_rotation(80, PEER_VALUES) == 0, "not at all");
}

/* x = H x / sqrt(n) in double; the parity of i & j is the sign of entry (i, j) of H. */
static void rotate_plainly(double *x, uint32_t n)
{
    double out[256];
    for (uint32_t i = 0; i < n; i++) {
        out[i] = 0;
        for (uint32_t j = 0; j < n; j++)
            out[i] += __builtin_parity(i & j) ? -x[j] : x[j];
    }
    for (uint32_t i = 0; i < n; i++)
        x[i] = out[i] / sqrt(n);
}

static void stored_plainly(const struct peer *peer, uint32_t turn, uint32_t dim, const float *x, double *out)
{
    float block[PEER_BLOCK];
    for (uint32_t i = 0; i < dim; i++)
        out[i] = x[i];
    for (uint32_t i = 0; turn && i < dim; i += turn)
        rotate_plainly(out + i, turn);
    for (uint32_t i = 0; i < dim; i += PEER_BLOCK) {
        for (uint32_t j = 0; j < PEER_BLOCK; j++)
            block[j] = (float)out[i + j];
        peer->block(block, block);
        for (uint32_t j = 0; j < PEER_BLOCK; j++)
            out[i + j] = block[j];
    }
    for (uint32_t i = 0; turn && i < dim; i += turn)
        rotate_plainly(out + i, turn);
}

static void peer_rows(void)
{
    static const struct {
        const char *name;
        uint32_t dim, keys, values;
    } shapes[] = {{"q4_0", 128, 128, 64}, {"q8_0", 64, 64, 64}, {"q5_1", 192, 64, 64}, {"iq4_nl", 96, 0, 0}, {"f16", 128, 0, 0}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int side = 0; side < 2; side++) {
            uint32_t dim = shapes[s].dim, turn = side ? shapes[s].values : shapes[s].keys;
            const struct peer *peer = peer_find(shapes[s].name);
            float x[2 * 192];
            double want[2 * 192], error = 0, size = 0;
            for (uint32_t i = 0; i < 2 * dim; i++)
                x[i] = (float)sin(1.7 * i + (double)s) + (i % dim == 5 ? 4.0f : 0);
            for (uint32_t row = 0; row < 2; row++)
                stored_plainly(peer, turn, dim, x + row * dim, want + row * dim);
            peer_store(peer, side ? PEER_VALUES : PEER_KEYS, 1, dim, 2, x);
            for (uint32_t i = 0; i < 2 * dim; i++)
                error += (x[i] - want[i]) * (x[i] - want[i]), size += want[i] * want[i];
            EXPECT(error < 1e-10 * size, "%s, dim %u, side %d: %g of %g", peer->name, dim, side, error, size);
        }
}

static int near(double x, double want, double error)
{
    return fabs(x - want) <= error;
}

/* KIVI: keys by channel of 32 tokens, values by 32 channels of a token, 4 levels from the least to the most. */
static void kivi_rows(void)
{
    enum { TOKENS = 40, HEADS = 2, DIM = 64 };
    static float x[TOKENS * HEADS * DIM], y[TOKENS * HEADS * DIM];
    const struct peer *peer = peer_find("kivi2");
    EXPECT(peer && peer_bits(peer, DIM) == 3, "2 bits, and two f16 for 32");
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < TOKENS * HEADS * DIM; i++)
            x[i] = y[i] = (float)sin(0.37 * i) * (i % DIM == 7 ? 30.f : 1.f);
        peer_store(peer, side ? PEER_VALUES : PEER_KEYS, HEADS, DIM, TOKENS, y);
        for (int i = 0; i < TOKENS * HEADS * DIM; i++) {
            const int t = i / (HEADS * DIM), first = t / 32 * 32, n = first + 32 < TOKENS ? 32 : TOKENS - first;
            double least = INFINITY, most = -INFINITY;
            for (int k = 0; k < (side ? 32 : n); k++) {
                const int at = side ? i / 32 * 32 + k : (first + k) * HEADS * DIM + i % (HEADS * DIM);
                least = fmin(least, x[at]), most = fmax(most, x[at]);
            }
            const double step = (most - least) / 3, want = least + round((x[i] - least) / step) * step;
            EXPECT(near(y[i], want, 2e-3 * (most - least)), "side %d, number %d: %g, not %g", side, i, (double)y[i], want);
        }
    }
}

/* TurboQuant: the norm stays, and the error is that of Lloyd-Max levels of a normal variable. */
static void turboquant_rows(void)
{
    static const double distortion[] = {0.1175, 0.03454, 0.009497}; /* Max, 1960: 4, 8 and 16 levels */
    static const char *const names[] = {"tq2", "tq3", "tq4"};
    for (int b = 0; b < 3; b++) {
        enum { ROWS = 400, DIM = 128 };
        static float x[ROWS * DIM], y[ROWS * DIM];
        const struct peer *peer = peer_find(names[b]);
        uint64_t seed = 9;
        double error = 0, size = 0;
        for (int i = 0; i < ROWS * DIM; i++)
            x[i] = y[i] = random_normal(&seed) * (float)(1 + i / DIM) + (i % DIM == 3 ? 4.f * (float)(1 + i / DIM) : 0);
        peer_store(peer, PEER_KEYS, 1, DIM, ROWS, y);
        for (int i = 0; i < ROWS * DIM; i++)
            error += ((double)y[i] - x[i]) * ((double)y[i] - x[i]), size += (double)x[i] * x[i];
        EXPECT(near(error / size / distortion[b], 1, 0.03), "%s: %g of %g", names[b], error / size, distortion[b]);
        EXPECT(peer_bits(peer, DIM) == 2 + b + 0.125, "%g bits", peer_bits(peer, DIM));
    }
}

/* ---- statistics ----------------------------------------------------------------------------------------------------- */

static void known_distributions(void)
{
    float p[3] = {logf(0.5f) + 7, logf(0.3f) + 7, logf(0.2f) + 7}, q[3] = {logf(0.4f) - 3, logf(0.4f) - 3, logf(0.2f) - 3};
    struct divergence_row row = divergence_row(p, q, 3, 1);
    EXPECT(row.finite && near(row.kld, 0.5 * log(0.5 / 0.4) + 0.3 * log(0.3 / 0.4), 1e-6), "%g", row.kld);
    EXPECT(near(row.nll, -log(0.4), 1e-6) && near(row.exact_nll, -log(0.3), 1e-6), "%g, %g", row.nll, row.exact_nll);
    EXPECT(row.same_top, "the first of equals");
    EXPECT(near(row.accepted, 0.4 + 0.3 + 0.2, 1e-6), "a draft's token is taken: %g", row.accepted);
    row = divergence_row(p, p, 3, 2);
    EXPECT(row.kld == 0 && row.nll == row.exact_nll && row.same_top, "of itself: %g", row.kld);
    row = divergence_row((float[2]){3e4f, -3e4f}, (float[2]){-3e4f, 3e4f}, 2, 0);
    EXPECT(row.finite && near(row.kld, 6e4, 1e-6) && near(row.nll, 6e4, 1e-6) && !row.same_top, "far apart: %g", row.kld);
    EXPECT(!divergence_row(p, (float[3]){0, NAN, 0}, 3, 0).finite, "a NaN");
    EXPECT(!divergence_row((float[3]){0, 0, INFINITY}, p, 3, 0).finite, "an Inf");
}

static void against_long_double(void)
{
    enum { VOCAB = 5000 };
    static float a[VOCAB], b[VOCAB];
    long double sum_a = 0, sum_b = 0, kld = 0;
    for (int i = 0; i < VOCAB; i++)
        a[i] = (float)(10 * sin(i * 1.3) + 3), b[i] = a[i] + (float)(0.01 * cos(i * 0.7));
    for (int i = 0; i < VOCAB; i++)
        sum_a += expl(a[i]), sum_b += expl(b[i]);
    for (int i = 0; i < VOCAB; i++)
        kld += expl(a[i]) / sum_a * ((a[i] - logl(sum_a)) - (b[i] - logl(sum_b)));
    struct divergence_row row = divergence_row(a, b, VOCAB, 7);
    EXPECT(near(row.kld, (double)kld, 1e-13) && kld > 1e-6L, "%.17g, not %.17g", row.kld, (double)kld);
    EXPECT(near(row.nll, (double)(logl(sum_b) - b[7]), 1e-12), "%g", row.nll);
}

static void estimates(void)
{
    double x[1001];
    struct estimate e = estimate_mean((double[4]){1, 2, 3, 4}, 4);
    EXPECT(near(e.value, 2.5, 1e-15) && near(e.error, sqrt(5.0 / 12), 1e-15), "%g +- %g", e.value, e.error);
    EXPECT(isnan(estimate_mean(x, 1).error), "one number has no spread");
    for (int i = 0; i < 1001; i++)
        x[i] = i;
    e = estimate_quantile(x, 1001, 0.5);
    EXPECT(near(e.value, 500, 1e-9) && near(e.error, sqrt(1001 * 0.25), 1e-9), "%g +- %g", e.value, e.error);
    e = estimate_quantile(x, 1001, 0.99);
    EXPECT(near(e.value, 990, 1e-9) && near(e.error, sqrt(1001 * 0.0099), 1e-9), "%g +- %g", e.value, e.error);
    e = estimate_quantile(x, 1001, 0.999);
    EXPECT(near(e.value, 999, 1e-9) && near(e.error, sqrt(1001 * 0.000999), 1e-9), "%g +- %g", e.value, e.error);
    e = estimate_quantile(x, 100, 0.999);
    EXPECT(near(e.value, 98.901, 1e-9) && isnan(e.error), "too few to say: %g +- %g", e.value, e.error);
}

static void summary(void)
{
    struct divergence d = {0};
    for (int i = 0; i < 3000; i++) { /* more than the first allocation */
        struct divergence_row row = {(2999 - i) * 0.001, i % 2 ? 1.0 : 3.0, i % 2 ? 1.0 : 2.9, 0.9, i % 4 != 0, 1};
        EXPECT(!divergence_add(&d, &row), "memory");
    }
    struct divergence_summary s = divergence_sum_up(&d), again = divergence_sum_up(&d);
    EXPECT(s.positions == 3000 && near(s.kld_mean.value, 1.4995, 1e-12) && near(s.kld_median.value, 1.4995, 1e-12), "mean, median");
    EXPECT(near(s.kld_p99.value, 2.96901, 1e-9) && near(s.kld_p999.value, 2.996001, 1e-9) && s.kld_max == 2.999, "tails");
    EXPECT(near(s.same_top.value, 0.75, 1e-15) && near(s.same_top.error, sqrt(0.75 * 0.25 / 3000), 1e-15), "%g", s.same_top.value);
    EXPECT(near(s.ppl.value, exp(2), 1e-9) && near(s.ppl.error, exp(2) * sqrt(1 / 2999.0), 1e-9), "%g +- %g", s.ppl.value,
           s.ppl.error);
    EXPECT(near(s.ppl_ratio.value, exp(0.05), 1e-9) && s.ppl_ratio.error < 0.1 * s.ppl.error, "%g", s.ppl_ratio.value);
    EXPECT(again.kld_p99.value == s.kld_p99.value && again.ppl_ratio.value == s.ppl_ratio.value, "summing up changes nothing");
    divergence_free(&d);
}

/* ---- the file of exact logits --------------------------------------------------------------------------------------- */

enum { VOCAB = 7, ROWS = 5 };

static const struct base_key some_key = {.model_bytes = 1234, .model_crc = 99, .tokens = 55, .tokens_crc = 17, .vocab = VOCAB,
                                         .ctx = 12, .rows = ROWS, .isas = 3, .version = "1.2.3"};

static void chunk_of(uint32_t chunk, float *logits)
{
    for (int i = 0; i < ROWS * VOCAB; i++)
        logits[i] = (float)chunk * 1000 + (float)i;
}

static void expect_chunk(struct base *base, uint32_t chunk)
{
    float want[ROWS * VOCAB], row[VOCAB];
    char error[BASE_ERROR_BYTES] = "";
    chunk_of(chunk, want);
    EXPECT(!base_check(base, chunk, error), "%s", error);
    for (uint32_t i = 0; i < ROWS; i++)
        EXPECT(!base_read(base, chunk, i, row, error) && !memcmp(row, want + i * VOCAB, sizeof row), "row %u of %u: %s", i, chunk,
               error);
}

/* A file with `chunks` complete chunks and `rows` rows of the next. */
static void make_base(const char *path, uint32_t chunks, uint32_t rows)
{
    float logits[ROWS * VOCAB];
    char error[BASE_ERROR_BYTES] = "";
    struct base *base = NULL;
    EXPECT(!base_open(path, &some_key, &base, error), "%s", error);
    for (uint32_t i = 0; base && i <= chunks; i++) {
        chunk_of(base_chunks(base), logits);
        EXPECT(!base_add(base, logits, i < chunks ? 2 : rows, error), "%s", error); /* in two parts */
        if (i < chunks)
            EXPECT(!base_add(base, logits + 2 * VOCAB, ROWS - 2, error), "%s", error);
    }
    base_close(base);
}

static void base_resumes(void)
{
    const char *path = file_path("base");
    char error[BASE_ERROR_BYTES] = "";
    struct base *base = NULL;
    make_base(path, 2, 3);
    make_base(path, 2, 0);
    EXPECT(!base_open(path, &some_key, &base, error), "%s", error);
    EXPECT(base && base_chunks(base) == 4, "%u chunks", base ? base_chunks(base) : 0);
    for (uint32_t i = 0; base && i < 4; i++)
        expect_chunk(base, i);
    base_close(base);
    unlink(path);
}

static void base_temporary(void)
{
    float logits[ROWS * VOCAB];
    char error[BASE_ERROR_BYTES] = "";
    struct base *base = NULL;
    EXPECT(!base_open(NULL, &some_key, &base, error), "%s", error);
    for (uint32_t i = 0; base && i < 3; i++) {
        chunk_of(i, logits);
        EXPECT(!base_add(base, logits, ROWS, error) && base_chunks(base) == i + 1, "%s", error);
        expect_chunk(base, i);
    }
    float first[VOCAB];
    EXPECT(base && !base_read(base, 0, 0, first, error) && !memcmp(first, logits, sizeof first), "only the last chunk is kept");
    base_close(base);
}

static void base_refuses(const char *path, const struct base_key *key, const char *why)
{
    char error[BASE_ERROR_BYTES] = "";
    struct base *base = NULL;
    int bad = base_open(path, key, &base, error);
    EXPECT(bad && strstr(error, why), "must be refused for %s: %s", why, bad ? error : "it was not");
    base_close(base);
}

static void base_of_others(void)
{
    const char *path = file_path("base");
    make_base(path, 1, 0);
    struct base_key key = some_key;
    key.model_crc++, base_refuses(path, &key, "another model"), key = some_key;
    key.model_bytes++, base_refuses(path, &key, "another model"), key = some_key;
    key.vocab++, base_refuses(path, &key, "another model"), key = some_key;
    key.tokens++, base_refuses(path, &key, "another text"), key = some_key;
    key.tokens_crc++, base_refuses(path, &key, "another text"), key = some_key;
    key.ctx++, base_refuses(path, &key, "another length"), key = some_key;
    key.rounded++, base_refuses(path, &key, "--rounded"), key = some_key;
    key.isas++, base_refuses(path, &key, "instruction sets"), key = some_key;
    key.version[0]++, base_refuses(path, &key, "another version");
    base_refuses(file_path("no/such/folder"), &some_key, "cannot be opened");
    struct base *base = NULL;
    char error[BASE_ERROR_BYTES] = "";
    EXPECT(!base_open(path, &some_key, &base, error), "%s", error);
    base_refuses(path, &some_key, "in use");
    base_close(base);
    unlink(path);
}

/* Changes every bit of a small file: in the header, the file is refused; in a chunk, base_check() finds the change. */
static void base_damage(void)
{
    const char *path = file_path("base");
    make_base(path, 2, 0);
    FILE *file = fopen(path, "rb");
    static unsigned char bytes[4096];
    size_t size = file ? fread(bytes, 1, sizeof bytes, file) : 0;
    if (file)
        fclose(file);
    EXPECT(size == 68 + 2 * (ROWS * VOCAB * 4 + 4), "%zu bytes", size);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        char error[BASE_ERROR_BYTES] = "";
        struct base *base = NULL;
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        file = fopen(path, "wb");
        EXPECT(file && fwrite(bytes, 1, size, file) == size && !fclose(file), "writing");
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        int opened = !base_open(path, &some_key, &base, error);
        EXPECT(opened == (bit / 8 >= 68), "bit %zu: %s", bit, error);
        EXPECT(!opened || base_check(base, 0, error) || base_check(base, 1, error), "bit %zu was not found", bit);
        base_close(base);
    }
    for (size_t length = 1; length <= size; length += 7) { /* complete chunks stay */
        EXPECT(!truncate(path, 0), "truncate");
        file = fopen(path, "wb");
        EXPECT(file && fwrite(bytes, 1, length, file) == length && !fclose(file), "writing");
        char error[BASE_ERROR_BYTES] = "";
        struct base *base = NULL;
        int opened = !base_open(path, &some_key, &base, error);
        EXPECT(opened == (length >= 68), "%zu bytes: %s", length, error);
        EXPECT(!opened || base_chunks(base) == (length - 68) / (ROWS * VOCAB * 4 + 4), "%zu bytes", length);
        base_close(base);
    }
    unlink(path);
}

/* ---- lists of caches ------------------------------------------------------------------------------------------------ */

static void lists(void)
{
    struct quality_cache *caches = NULL;
    size_t count = 0;
    char error[LLM_ERROR_BYTES] = "";
    EXPECT(!quality_parse("k4v4,q4_0,balanced,f16,kf16vf16", &caches, &count, error) && count == 5, "%s", error);
    if (count == 5) {
        EXPECT(!strcmp(caches[0].name, "k4v4") && !caches[0].peer && !strcmp(caches[2].name, "k4v4"), "ours");
        EXPECT(caches[1].peer && peer_bits(caches[1].peer, 64) == 4.5 && caches[3].peer && !caches[4].peer, "llama.cpp's");
    }
    free(caches);
    caches = NULL;
    EXPECT(!quality_parse(quality_default_caches, &caches, &count, error) && count > 10, "%s", error);
    free(caches);
    static const char *const bad[] = {"", "k4v4,", ",k4v4", "q3_0", "k4v4,,q4_0", "k9v9",
                                      "a name that is far too long for any cache there ever was"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        error[0] = 0;
        EXPECT(quality_parse(bad[i], &caches, &count, error) && strstr(error, "no cache is called"), "\"%s\": %s", bad[i], error);
    }
}

int main(void)
{
    RUN(peer_blocks);
    RUN(peer_sizes);
    RUN(peer_rows);
    RUN(kivi_rows);
    RUN(turboquant_rows);
    RUN(known_distributions);
    RUN(against_long_double);
    RUN(estimates);
    RUN(summary);
    EXPECT(files_begin(), "a directory for files");
    RUN(base_resumes);
    RUN(base_temporary);
    RUN(base_of_others);
    RUN(base_damage);
    files_end();
    RUN(lists);
    return test_result();
}
