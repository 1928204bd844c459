/* An engine in small: what a server of a language model does with its cache, over the public header alone.
 *
 *     engine              everything in one go
 *     engine --save FILE  the first half; then the cache goes to FILE, with what the engine knows about it
 *     engine --load FILE  the second half, in a new process: together they print what one go prints
 *
 * The model is a toy: its queries, keys and values are numbers made from (layer, token, position), and the token that
 * follows is made from the bits of what attention gave, so that one wrong bit changes the text and the checksum. All that
 * concerns the cache is what a real engine does; doc/engine.md explains it. */
#include <aura_file.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAYERS = 3, Q_HEADS = 6, KV_HEADS = 2, DIM = 64, Q = Q_HEADS * DIM, KV = KV_HEADS * DIM, VOCABULARY = 1000,
    STREAMS = 3, CHUNK = 64, DRAFTS = 3, /* at once; most tokens of one in a step; of these, guessed ahead of the model */
    SYSTEM = 2000, QUESTION = 120, ANSWER = 50, /* tokens: the prompt that all share, a user's own, at least in return */
    BUDGET = 4 << 20
};

/* Layer 1 looks back 256 tokens, and at the first 4: it keeps a ring of pages, however long a stream gets. */
static const struct { const char *format; uint32_t window, max_queries, keep_first; } kinds[LAYERS] = {
    {"k4v4", 0, 0, 0}, {"k6v5", 256, CHUNK, 4}, {"k8v4", 0, 0, 0}};

struct stream {
    aura_seq seq;
    uint32_t len;          /* tokens in the cache */
    uint32_t prompt;       /* tokens of the prompt that are still to be run */
    uint32_t n, drafts;    /* tokens of a step, the last `drafts` of them guessed; after it, those that stay */
    uint32_t token[CHUNK];
    uint64_t bits[CHUNK];  /* what the model made of each */
    uint64_t sum;          /* the checksum of all outputs */
    uint32_t salt;         /* makes prompts and samples differ */
    uint32_t guessed;      /* tokens that were right guesses */
};

struct engine {
    aura_ctx *ctx;
    aura_model_cache *model;
    struct state { /* what has to be known besides the cache to go on */
        aura_seq system; /* holds the prompt that all users share */
        uint32_t streams; struct stream stream[STREAMS];
    } now;
};

static void check(aura_status status)
{
    if (status)
        exit((fprintf(stderr, "engine: %s\n", aura_last_error()), 1));
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* x[s->n][width], within -1 to 1, from what it is ('q', 'k', 'v'), the layer, the tokens and their positions. */
static void project(float *x, uint32_t width, uint32_t what, uint32_t layer, const struct stream *s)
{
    for (uint32_t i = 0; i < s->n * width; i++) {
        uint64_t seed = mix(mix(what << 16 | layer) + ((uint64_t)s->token[i / width] << 32 | (s->len + i / width)));
        x[i] = (float)(mix(seed + i % width) >> 40) / (float)(1 << 23) - 1;
    }
}

static uint64_t checksum(uint64_t sum, const float *x, size_t n)
{
    for (uint32_t bits; n-- > 0; sum = mix(sum + bits + 1))
        memcpy(&bits, x++, sizeof bits);
    return sum;
}

static uint32_t guess(uint32_t token)
{
    return (token * 5 + 1) % VOCABULARY;
}

/* The token after token t of a step: three times in four what the draft model says too. */
static uint32_t follows(const struct stream *s, uint32_t t)
{
    uint64_t bits = mix(s->bits[t] + s->salt);
    return bits % 4 ? guess(s->token[t]) : (uint32_t)(bits / 4 % VOCABULARY);
}

/* What a stream runs next: a piece of its prompt, or its newest token and guesses. */
static void prepare(struct engine *e, struct stream *s)
{
    uint32_t chunk = s->prompt < CHUNK ? s->prompt : CHUNK, newest = chunk ? 0 : follows(s, s->n - 1);
    s->prompt -= chunk;
    s->drafts = chunk ? 0 : DRAFTS;
    s->n = chunk ? chunk : 1 + DRAFTS;
    for (uint32_t t = 0; t < s->n; t++)
        s->token[t] = chunk ? (uint32_t)(mix(s->salt + s->len + t) % VOCABULARY) : t ? guess(s->token[t - 1]) : newest;
    memset(s->bits, 0, sizeof s->bits);
    check(aura_model_seq_reserve(e->model, s->seq, s->len + s->n)); /* in all layers; now append has what it needs */
}

/* The tokens of all streams through a layer in one append and one attend call, however many each has. */
static void run_layer(aura_cache *cache, struct state *now, uint32_t layer)
{
    static float k[STREAMS][CHUNK][KV], v[STREAMS][CHUNK][KV], q[STREAMS][CHUNK][Q], out[STREAMS][CHUNK][Q];
    aura_append_job in[STREAMS];
    aura_attend_job ask[STREAMS];
    for (uint32_t i = 0; i < now->streams; i++) {
        const struct stream *s = &now->stream[i];
        project(k[i][0], KV, 'k', layer, s);
        project(v[i][0], KV, 'v', layer, s);
        project(q[i][0], Q, 'q', layer, s);
        in[i] = (aura_append_job)AURA_APPEND_JOB_INIT;
        in[i].seq = s->seq, in[i].tokens = s->n, in[i].k.data = k[i], in[i].v.data = v[i];
        ask[i] = (aura_attend_job)AURA_ATTEND_JOB_INIT;
        ask[i].seq = s->seq, ask[i].queries = s->n, ask[i].q.data = q[i], ask[i].out.data = out[i];
    }
    check(aura_append(cache, in, now->streams));
    check(aura_attend(cache, ask, now->streams, NULL));
    for (struct stream *s = now->stream; s < now->stream + now->streams; s++)
        for (uint32_t t = 0; t < s->n; t++)
            s->sum = mix(s->sum + (s->bits[t] = checksum(s->bits[t], out[s - now->stream][t], Q)));
}

/* Keeps the guesses that were right. The others leave all layers again: fewer than `rollback` tokens, so nothing is lost. */
static void accept(struct engine *e, struct stream *s)
{
    uint32_t right = s->n - s->drafts;
    for (; right < s->n && s->token[right] == follows(s, right - 1); right++)
        s->guessed++;
    s->len += s->n = right;
    check(aura_model_seq_truncate(e->model, s->seq, s->len));
}

static void step(struct engine *e)
{
    struct stream *end = e->now.stream + e->now.streams;
    for (struct stream *s = e->now.stream; s < end; s++)
        prepare(e, s);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        run_layer(aura_model_cache_layer(e->model, layer), &e->now, layer);
    for (struct stream *s = e->now.stream; s < end; s++)
        accept(e, s);
}

static void report(const struct engine *e, const char *when)
{
    aura_model_cache_info all = AURA_MODEL_CACHE_INFO_INIT;
    check(aura_model_cache_get_info(e->model, &all));
    printf("%s: %zu of %zu bytes\n", when, all.bytes, all.budget_bytes);
    for (uint32_t i = 0; i < LAYERS; i++) {
        aura_cache_info info = AURA_CACHE_INFO_INIT;
        check(aura_cache_get_info(aura_model_cache_layer(e->model, i), &info));
        size_t pages = info.pages - info.free_pages;
        printf("  layer %u %s: %zu sequences, %zu pages, %zu shared, %zu bytes\n", i, kinds[i].format, info.seqs, pages,
               info.shared_pages, pages * info.page_bytes);
    }
}

static void create_model(struct engine *e)
{
    aura_model_config config = AURA_MODEL_CONFIG_INIT;
    aura_config layer[LAYERS];
    for (uint32_t i = 0; i < LAYERS; i++) {
        layer[i] = (aura_config)AURA_CONFIG_INIT;
        check(aura_format_parse(kinds[i].format, &layer[i].format));
        layer[i].q_heads = Q_HEADS, layer[i].kv_heads = KV_HEADS, layer[i].k_dim = DIM;
        layer[i].window = kinds[i].window, layer[i].max_queries = kinds[i].max_queries, layer[i].keep_first = kinds[i].keep_first;
    }
    config.layers = LAYERS, config.configs = layer, config.budget_bytes = BUDGET;
    check(aura_model_cache_create(e->ctx, &config, &e->model));
}

/* A stream that goes on from where another is, sharing its pages. */
static void fork_stream(struct engine *e, struct stream from, uint32_t prompt, uint32_t salt)
{
    check(aura_model_seq_fork(e->model, from.seq, from.len, &from.seq));
    from.prompt = prompt, from.salt = salt;
    e->now.stream[e->now.streams++] = from;
}

static void first_half(struct engine *e)
{
    struct stream *s = e->now.stream, system;
    check(aura_model_seq_create(e->model, &s[0].seq));
    for (s[0].prompt = SYSTEM, e->now.streams = 1; s[0].prompt;)
        step(e);
    report(e, "the system prompt, in chunks");
    system = s[0], e->now.system = s[0].seq, e->now.streams = 0;
    for (fork_stream(e, system, QUESTION, 1); s[0].prompt;)
        step(e);
    fork_stream(e, s[0], 0, 2);
    report(e, "a question after it, and two samples of the answer about to begin");
    for (int i = 0; i < 8; i++)
        step(e);
    for (fork_stream(e, system, QUESTION, 3); s[2].prompt;)
        step(e);
    report(e, "another user's question, run while the two are being answered");
}

/* Until all have their answer; who has it leaves the batch at once. */
static void second_half(struct engine *e)
{
    aura_model_cache_info info = AURA_MODEL_CACHE_INFO_INIT;
    for (struct stream *s = e->now.stream; e->now.streams;) {
        step(e);
        for (uint32_t i = e->now.streams; i-- > 0;)
            if (s[i].len >= SYSTEM + QUESTION + ANSWER) {
                printf("stream %u: %u tokens, %u guessed, checksum %" PRIx64 "\n", s[i].salt, s[i].len, s[i].guessed, s[i].sum);
                check(aura_model_seq_release(e->model, s[i].seq));
                s[i] = s[--e->now.streams];
            }
    }
    check(aura_model_seq_release(e->model, e->now.system));
    check(aura_model_cache_get_info(e->model, &info));
    printf("all answered: %zu sequences, %zu pages in use\n", info.seqs, info.pages - info.free_pages);
}

/* Sequences have numbers in a file, 1, 2, 3 ... in this order; when it is loaded these are their ids. The engine's own state is
 * the note: only for this program, so its bytes will do. */
static void save_model(struct engine *e, const char *path)
{
    aura_snapshot_options saving = AURA_SNAPSHOT_OPTIONS_INIT;
    aura_seq seqs[STREAMS + 1] = {e->now.system};
    e->now.system = 1;
    for (uint32_t i = 0; i < e->now.streams; i++)
        seqs[i + 1] = e->now.stream[i].seq, e->now.stream[i].seq = i + 2;
    saving.seqs = seqs, saving.n_seqs = e->now.streams + 1, saving.note = &e->now, saving.note_bytes = sizeof e->now;
    check(aura_model_save(e->model, path, &saving));
}

int main(int argc, char **argv)
{
    struct engine e = {0};
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    aura_snapshot_options loading = AURA_SNAPSHOT_OPTIONS_INIT;
    int save = argc == 3 && !strcmp(argv[1], "--save"), load = argc == 3 && !strcmp(argv[1], "--load");
    if (argc != 1 && !save && !load)
        return fprintf(stderr, "usage: engine [--save FILE | --load FILE]\n"), 2;
    options.threads = 2, loading.budget_bytes = BUDGET;
    check(aura_ctx_create(&options, &e.ctx));
    if (load)
        check(aura_model_load(e.ctx, argv[2], &loading, &e.model)),
            check(aura_snapshot_note(e.ctx, argv[2], &e.now, &(size_t){sizeof e.now}));
    else
        create_model(&e), first_half(&e);
    save ? save_model(&e, argv[2]) : second_half(&e);
    aura_model_cache_destroy(e.model);
    aura_ctx_destroy(e.ctx);
}
