/* Snapshots to sinks and from sources: the bytes of a file, whatever takes or gives them, and nothing lost where these fail.
 * test/file/snapshot_damage.c has what is wrong inside a file. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "snapshot_tools.h"

/* ---- one function for each of the four kinds of snapshots ---------------------------------------------------------- */

struct world {
    aura_cache *cache;
    aura_model_cache *model;
    aura_seq seq, model_seq;
};

enum { CACHE, SEQ, MODEL, MODEL_SEQ, N_WHAT };
static const char *const names[] = {"cache", "sequence", "model", "sequence of a model"};

static aura_status size_of(const struct world *w, int what, const aura_snapshot_options *o, size_t *bytes)
{
    return what == CACHE   ? aura_cache_size(w->cache, o, bytes)
           : what == SEQ   ? aura_seq_size(w->cache, w->seq, o, bytes)
           : what == MODEL ? aura_model_size(w->model, o, bytes)
                           : aura_model_seq_size(w->model, w->model_seq, o, bytes);
}

static aura_status write_to(const struct world *w, int what, aura_sink *sink, const aura_snapshot_options *o)
{
    return what == CACHE   ? aura_cache_write(w->cache, sink, o)
           : what == SEQ   ? aura_seq_write(w->cache, w->seq, sink, o)
           : what == MODEL ? aura_model_write(w->model, sink, o)
                           : aura_model_seq_write(w->model, w->model_seq, sink, o);
}

static aura_status save_to(const struct world *w, int what, const char *path, const aura_snapshot_options *o)
{
    return what == CACHE   ? aura_cache_save(w->cache, path, o)
           : what == SEQ   ? aura_seq_save(w->cache, w->seq, path, o)
           : what == MODEL ? aura_model_save(w->model, path, o)
                           : aura_model_seq_save(w->model, w->model_seq, path, o);
}

/* Into a new cache or model; a sequence into the one of the world it came from. */
static aura_status read_from(aura_ctx *in, const struct world *from, int what, aura_source *source, struct world *to)
{
    *to = *from;
    return what == CACHE   ? aura_cache_read(in, source, NULL, &to->cache)
           : what == SEQ   ? aura_seq_read(to->cache, source, NULL, &to->seq)
           : what == MODEL ? aura_model_read(in, source, NULL, &to->model)
                           : aura_model_seq_read(to->model, source, NULL, &to->model_seq);
}

static void forget(const struct world *w, int what)
{
    if (what == CACHE)
        aura_cache_destroy(w->cache);
    else if (what == MODEL)
        aura_model_cache_destroy(w->model);
    else
        EXPECT(what == SEQ ? !aura_seq_release(w->cache, w->seq) : !aura_model_seq_release(w->model, w->model_seq), "%s",
               aura_last_error());
}

static struct world world_of(aura_ctx *in, const aura_config *config, const struct text *t, uint32_t tokens)
{
    aura_seq seq[SEQS], fork;
    aura_config configs[2] = {*config, *config};
    aura_model_config m = AURA_MODEL_CONFIG_INIT;
    struct world w = {some_cache(in, config, t, tokens, seq), NULL, 0, 0};
    configs[1].format.k = config->format.v, configs[1].balance = NULL;
    m.layers = 2, m.configs = configs;
    EXPECT(!aura_model_cache_create(in, &m, &w.model) && !aura_model_seq_create(w.model, &fork) &&
               !aura_model_seq_create(w.model, &w.model_seq) && !aura_model_seq_release(w.model, fork), "%s", aura_last_error());
    for (uint32_t i = 0; i < 2; i++)
        grow(aura_model_cache_layer(w.model, i), w.model_seq, t, tokens, i);
    EXPECT(!aura_model_seq_fork(w.model, w.model_seq, tokens / 2, &fork), "%s", aura_last_error());
    w.seq = seq[1];
    return w;
}

static void world_free(struct world *w)
{
    aura_cache_destroy(w->cache), aura_model_cache_destroy(w->model);
}

/* ---- sinks and sources of the tests -------------------------------------------------------------------------------- */

struct pipe {
    struct bytes have;
    size_t at, piece;    /* piece: at most so many at once, as a socket does */
    long fail_in;        /* calls until one fails; -1: none */
    ptrdiff_t failure;   /* what it then returns */
};

static int pipe_write(void *user, const void *data, size_t bytes)
{
    struct pipe *p = user;
    if (p->fail_in >= 0 && p->fail_in-- == 0)
        return (int)p->failure;
    p->have.data = realloc(p->have.data, p->have.size + bytes + 1);
    memcpy(p->have.data + p->have.size, data, bytes);
    p->have.size += bytes;
    return 0;
}

static ptrdiff_t pipe_read(void *user, void *data, size_t bytes)
{
    struct pipe *p = user;
    size_t left = p->have.size - p->at, n = bytes < p->piece ? bytes : p->piece;
    if (p->fail_in >= 0 && p->fail_in-- == 0)
        return p->failure < 0 ? p->failure : (ptrdiff_t)bytes + p->failure;
    n = n < left ? n : left;
    memcpy(data, p->have.data + p->at, n);
    p->at += n;
    return (ptrdiff_t)n;
}

/* The snapshot in memory of its exact size, which the caller frees. */
static struct bytes written(const struct world *w, int what, const aura_snapshot_options *o)
{
    struct bytes b = {NULL, 0};
    aura_sink sink = AURA_SINK_INIT;
    EXPECT(!size_of(w, what, o, &b.size), "%s: %s", names[what], aura_last_error());
    sink.data = b.data = malloc(b.size + 8), sink.bytes = b.size;
    memset(b.data + b.size, 0x5a, 8);
    EXPECT(!write_to(w, what, &sink, o), "%s: %s", names[what], aura_last_error());
    EXPECT(sink.used == b.size && !memcmp(b.data + b.size, "ZZZZZZZZ", 8), "%s: %zu of %zu bytes", names[what], sink.used, b.size);
    return b;
}

/* ---- the same bytes everywhere ------------------------------------------------------------------------------------- */

static void expect_same_everywhere(const struct world *w, int what, const aura_snapshot_options *o)
{
    struct pipe p = {{NULL, 0}, 0, 0, -1, 0};
    aura_sink sink = AURA_SINK_INIT;
    struct bytes memory = written(w, what, o);
    EXPECT(!save_to(w, what, file_path("file"), o), "%s", aura_last_error());
    struct bytes file = read_file(file_path("file"));
    sink.write = pipe_write, sink.user = &p;
    EXPECT(!write_to(w, what, &sink, o) && sink.used == memory.size, "%s: %s", names[what], aura_last_error());
    EXPECT(same_bytes(memory, file) && same_bytes(memory, p.have), "%s: a file of %zu bytes, memory of %zu, a function's %zu",
           names[what], file.size, memory.size, p.have.size);
    free(memory.data), free(file.data), free(p.have.data), unlink(file_path("file"));
}

static void files_and_sinks_get_the_same(void)
{
    static const uint32_t lengths[] = {0, 1, 40, 300, 700};
    float *balance = some_balance(2, 80);
    for (size_t i = 0; i < 5 * N_KINDS; i += small_run() ? 7 : 1) { /* dims of which rows are no multiple of 64 bytes */
        aura_config config = config_of(kinds[i % N_KINDS], kinds[(i / 2 + 3) % N_KINDS], 80, 64, 2);
        aura_snapshot_options o = AURA_SNAPSHOT_OPTIONS_INIT;
        config.q_heads = 4, config.balance = i % 2 && !is_plain(config.format.k) ? balance : NULL;
        config.window = i % 3 == 1 ? 200 : 0;
        struct text t = text_new(&config, 900);
        struct world w = world_of(ctx, &config, &t, lengths[i % 5]);
        for (int what = 0; what < N_WHAT && test_bad_lines < 5; what++) {
            o.note = i % 4 == 2 ? "mine" : NULL, o.note_bytes = o.note ? 4 : 0, o.first_head = (uint32_t)(i / 5 % 2);
            expect_same_everywhere(&w, what, &o);
        }
        world_free(&w), text_free(&t);
    }
    free(balance);
}

/* Memory at any address, and functions that give any number of bytes at once. Written again, it is the same. */
static void sources_give_it_back(void)
{
    static const size_t pieces[] = {1, 7, 64, 1000, 1 << 20};
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_F16, 64, 64, 2);
    struct text t = text_new(&config, 900);
    struct world w = world_of(ctx, &config, &t, 600), got;
    for (int what = 0; what < N_WHAT; what++) {
        struct bytes x = written(&w, what, NULL), room = {malloc(x.size + 100), x.size + 77};
        for (int way = 0; way < 20; way++) {
            aura_source source = AURA_SOURCE_INIT;
            const size_t at = way < 10 ? (size_t)way : 0; /* memory that begins here; then functions */
            struct pipe p = {room, 0, pieces[way % 5], -1, 0};
            memset(room.data, 0xee, x.size + 100);
            memcpy(room.data + at, x.data, x.size);
            source.data = way < 10 ? room.data + at : NULL, source.bytes = way < 15 ? x.size + (size_t)(way % 3) * 20 : 0;
            source.read = way < 10 ? NULL : pipe_read, source.user = &p;
            EXPECT(!read_from(ctx, &w, what, &source, &got), "%s, way %d: %s", names[what], way, aura_last_error());
            EXPECT(source.used == x.size && (way < 10 || p.at == x.size), "%s, way %d: %zu bytes of %zu", names[what], way,
                   source.used, x.size);
            struct bytes y = written(&got, what, NULL);
            EXPECT(same_bytes(x, y), "%s, way %d: written again, other bytes", names[what], way);
            forget(&got, what), free(y.data);
        }
        free(x.data), free(room.data);
    }
    world_free(&w), text_free(&t);
}

/* ---- only what is stored ------------------------------------------------------------------------------------------- */

/* Tokens 0 ... n - 1 of the text, by a short way or a long one: other sequences before, forks, pages that others had, tokens that
 * were taken back, other portions. */
static aura_seq by_a_way(aura_cache *cache, const struct text *t, uint32_t n, int way)
{
    aura_seq seq = seq_new(cache), other, fork;
    if (way == 0) {
        EXPECT(!append(cache, seq, &t->k, &t->v, 0, n), "%s", aura_last_error());
        return seq;
    }
    for (int i = 0; i < way; i++) { /* pages in another order, and used ones */
        other = seq_new(cache);
        grow(cache, other, t, 600 + 90 * (uint32_t)i, 13);
        EXPECT(i % 2 || !aura_seq_release(cache, other), "%s", aura_last_error());
    }
    for (uint32_t at = 0; at < n;) {
        uint32_t some = n - at < 41 ? n - at : 41;
        EXPECT(!append(cache, seq, &t->k, &t->v, at, some), "%s", aura_last_error());
        at += some;
        if (way == 2 && at % 3 == 0) { /* a draft that is taken back */
            EXPECT(!append(cache, seq, &t->k, &t->v, 500, 9) && !aura_truncate(cache, seq, at), "%s", aura_last_error());
        }
    }
    if (way == 3) { /* a fork, whose parent goes on in the page that they share and then goes */
        EXPECT(!aura_seq_fork(cache, seq, n, &fork), "%s", aura_last_error());
        grow(cache, seq, t, 70, 5);
        EXPECT(!aura_seq_release(cache, seq), "%s", aura_last_error());
        seq = fork;
    }
    if (way == 4) { /* a parent whose fork goes on in their pages, and stays */
        EXPECT(!aura_seq_fork(cache, seq, n, &fork), "%s", aura_last_error());
        grow(cache, fork, t, 70, 5);
    }
    return seq;
}

static void bytes_depend_on_nothing_else(void)
{
    static const uint32_t lengths[] = {3, 57, 256, 530};
    static const uint32_t flags[] = {0, AURA_NO_PINNED, AURA_NO_REFERENCE, AURA_NO_OPEN | AURA_NO_REFERENCE};
    for (int i = 0; i < 4 * N_KINDS; i += small_run() ? 5 : 1) {
        aura_config config = config_of(kinds[i % N_KINDS], kinds[(i + 4) % N_KINDS], 64, 80, 2);
        config.flags |= flags[i / 2 % 4];
        struct text t = text_new(&config, 900);
        struct bytes first = {NULL, 0};
        for (int way = 0; way < 5 && test_bad_lines < 5; way++) {
            struct counting memory = {0};
            aura_ctx *own = counting_ctx(&memory, (uint8_t)(17 * way + 5), 1);
            struct world w = {cache_new(own, &config), NULL, 0, 0};
            w.seq = by_a_way(w.cache, &t, lengths[i % 4], way == 2 && config.flags & AURA_NO_OPEN ? 1 : way);
            struct bytes now = written(&w, SEQ, NULL);
            EXPECT(!way || same_bytes(first, now), "%s, %u tokens, way %d: other bytes", config_text(&config), lengths[i % 4], way);
            aura_cache_destroy(w.cache), aura_ctx_destroy(own);
            free(way ? now.data : NULL);
            first = way ? first : now;
        }
        free(first.data), text_free(&t);
    }
}

/* Some heads, saved, are a cache of their own; what that saves again is the same. */
static void heads_do_not_tell_where_they_stood(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B3, 64, 64, 4);
    struct text t = text_new(&config, 900);
    struct world w = world_of(ctx, &config, &t, 300), got;
    aura_snapshot_options o = AURA_SNAPSHOT_OPTIONS_INIT;
    o.first_head = 1, o.heads = 2;
    struct bytes x = written(&w, CACHE, &o);
    aura_source source = AURA_SOURCE_INIT;
    source.data = x.data, source.bytes = x.size;
    EXPECT(!read_from(ctx, &w, CACHE, &source, &got), "%s", aura_last_error());
    struct bytes y = written(&got, CACHE, NULL);
    EXPECT(same_bytes(x, y), "heads 1 and 2 of 4, written again: other bytes");
    forget(&got, CACHE);
    free(x.data), free(y.data), world_free(&w), text_free(&t);
}

/* ---- sinks that fail ----------------------------------------------------------------------------------------------- */

static void sinks_that_fail(void)
{
    aura_config config = config_of(AURA_KIND_B8, AURA_KIND_F32, 128, 128, 4);
    struct text t = text_new(&config, 900);
    struct world w = world_of(ctx, &config, &t, 700);
    for (int what = 0; what < N_WHAT; what++) {
        struct bytes good = written(&w, what, NULL);
        aura_sink sink = AURA_SINK_INIT;
        long calls = 0;
        for (aura_status status = AURA_IO; status && calls < 100; calls++) {
            struct pipe p = {{NULL, 0}, 0, 0, calls, calls % 2 ? -1 : 7};
            sink.write = pipe_write, sink.user = &p, sink.used = 99;
            status = write_to(&w, what, &sink, NULL);
            EXPECT(status == (p.fail_in < 0 ? AURA_IO : AURA_OK) && sink.used == p.have.size &&
                       (!status || strstr(aura_last_error(), "the sink failed")), "%s, call %ld: %s", names[what], calls,
                   aura_status_text(status));
            EXPECT(p.have.size <= good.size && !memcmp(p.have.data ? p.have.data : good.data, good.data, p.have.size),
                   "%s, call %ld: other bytes", names[what], calls);
            free(p.have.data);
        }
        EXPECT(calls > 3 && calls < 100, "%s: %ld calls", names[what], calls);
        uint8_t *small = malloc(good.size);
        memset(small, 0x5a, good.size);
        sink.write = NULL, sink.data = small, sink.bytes = good.size - 1;
        EXPECT(write_to(&w, what, &sink, NULL) == AURA_BAD_ARGUMENT, "%s: a byte too few", names[what]);
        for (size_t i = 0; i < good.size; i++)
            EXPECT(small[i] == 0x5a, "%s: byte %zu was written", names[what], i);
        struct bytes again = written(&w, what, NULL);
        EXPECT(same_bytes(good, again), "%s: what was saved has changed", names[what]);
        free(good.data), free(again.data), free(small);
    }
    world_free(&w), text_free(&t);
}

/* ---- sources that fail --------------------------------------------------------------------------------------------- */

/* What a context has allocated at most, and has now. */
struct most {
    size_t now, most;
};
static void *most_alloc(void *user, size_t bytes, size_t align)
{
    struct most *m = user;
    void *memory = NULL;
    m->now += bytes, m->most = m->now > m->most ? m->now : m->most;
    return posix_memalign(&memory, align < 64 ? 64 : align, bytes) ? NULL : memory;
}
static void most_free(void *user, void *memory, size_t bytes)
{
    ((struct most *)user)->now -= bytes;
    free(memory);
}

static aura_ctx *watched_ctx(struct most *m)
{
    aura_ctx_options o = AURA_CTX_OPTIONS_INIT;
    aura_ctx *made = NULL;
    o.allocator.alloc = most_alloc, o.allocator.free = most_free, o.allocator.user = m, o.threads = 1;
    EXPECT(!aura_ctx_create(&o, &made), "%s", aura_last_error());
    return made;
}

/* A read that fails: the status, nothing made, nothing left, little allocated. */
static void expect_refused(aura_ctx *in, struct most *m, const struct world *w, int what, aura_source *source, aura_status wanted,
                           size_t at_most, const char *why)
{
    struct world got;
    aura_model_cache_info model = AURA_MODEL_CACHE_INFO_INIT, after = AURA_MODEL_CACHE_INFO_INIT;
    const size_t before = m->most = m->now;
    aura_model_cache_get_info(w->model, &model);
    const aura_status status = read_from(in, w, what, source, &got);
    EXPECT(status == wanted || (wanted == AURA_BAD_FILE && status == AURA_UNSUPPORTED), "%s, %s: %s: %s", names[what], why,
           aura_status_text(status), aura_last_error());
    EXPECT(!memcmp(&got, w, sizeof got), "%s, %s: something was made", names[what], why);
    aura_model_cache_get_info(w->model, &after);
    EXPECT(m->now == before && !memcmp(&model, &after, sizeof model), "%s, %s: %zu bytes are left", names[what], why,
           m->now - before);
    EXPECT(m->most - before <= at_most, "%s, %s: %zu bytes were allocated, at most %zu", names[what], why, m->most - before,
           at_most);
}

static void sources_that_fail(void)
{
    struct most m = {0, 0};
    aura_ctx *in = watched_ctx(&m);
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, 64, 64, 1);
    struct text t = text_new(&config, 900);
    struct world w = world_of(in, &config, &t, 90);
    char why[64];
    for (int what = 0; what < N_WHAT; what++) {
        struct bytes x = written(&w, what, NULL);
        for (size_t cut = 0; cut < x.size; cut += cut < 700 ? 13 : 4099) {
            aura_source source = AURA_SOURCE_INIT;
            struct pipe p = {{x.data, cut}, 0, 999, -1, 0};
            snprintf(why, sizeof why, "cut to %zu", cut);
            source.data = x.data, source.bytes = cut; /* what is said is true */
            expect_refused(in, &m, &w, what, &source, AURA_BAD_FILE, 0, why);
            source.read = pipe_read, source.user = &p, source.bytes = 0; /* nothing is said */
            expect_refused(in, &m, &w, what, &source, AURA_BAD_FILE, 3 * cut + (3 << 16), why);
            p.at = 0, source.bytes = x.size; /* what is said is false */
            expect_refused(in, &m, &w, what, &source, AURA_BAD_FILE, x.size + 64, why);
        }
        for (long call = 0; call < 12; call++) {
            aura_source source = AURA_SOURCE_INIT;
            struct pipe p = {x, 0, 64, call, call % 3 ? -call : 1}; /* a failure, or more than was asked for */
            snprintf(why, sizeof why, "call %ld failed", call);
            source.read = pipe_read, source.user = &p;
            expect_refused(in, &m, &w, what, &source, AURA_IO, 1 << 17, why);
        }
        free(x.data);
    }
    world_free(&w), text_free(&t);
    aura_ctx_destroy(in);
    EXPECT(!m.now, "%zu bytes lost", m.now);
}

/* Sources that announce what they do not have; and every kind of damage. */
static void hostile_sources(void)
{
    struct most m = {0, 0};
    aura_ctx *in = watched_ctx(&m);
    aura_config config = config_of(AURA_KIND_B2, AURA_KIND_B2, 64, 64, 1);
    struct text t = text_new(&config, 900);
    struct world w = world_of(in, &config, &t, 60);
    char why[64];
    for (int what = 0; what < N_WHAT; what++) {
        struct bytes x = written(&w, what, NULL), y = {malloc(x.size), x.size};
        aura_source source = AURA_SOURCE_INIT;
        struct pipe p = {y, 0, 1 << 20, -1, 0};
        source.user = &p;
        for (int i = 0; i < 40; i++) { /* lengths and tables up to all there is; the checksum is right or not */
            memcpy(y.data, x.data, x.size);
            header_of(y)->bytes = i < 20 ? (uint64_t)x.size << i : UINT64_MAX >> (i - 20);
            header_of(y)->sections = i % 3 ? header_of(x)->sections : UINT32_MAX >> i % 20;
            if (i % 2)
                seal(y);
            if (!memcmp(x.data, y.data, x.size))
                continue;
            snprintf(why, sizeof why, "lie %d", i);
            for (int way = 0; way < 3; way++) {
                p.at = 0, source.read = way ? pipe_read : NULL, source.data = way ? NULL : y.data;
                source.bytes = way == 1 ? 0 : y.size;
                expect_refused(in, &m, &w, what, &source, AURA_BAD_FILE, 3 * y.size + (3 << 16), why);
            }
        }
        for (size_t bit = 0; bit < 8 * x.size && test_bad_lines < 5; bit += small_run() ? 1009 : 61) {
            memcpy(y.data, x.data, x.size);
            y.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
            snprintf(why, sizeof why, "bit %zu flipped", bit);
            p.at = 0, source.read = bit % 2 ? pipe_read : NULL, source.data = bit % 2 ? NULL : y.data, source.bytes = y.size;
            expect_refused(in, &m, &w, what, &source, AURA_BAD_FILE, 3 * y.size + (3 << 16), why);
        }
        free(x.data), free(y.data);
    }
    world_free(&w), text_free(&t);
    aura_ctx_destroy(in);
    EXPECT(!m.now, "%zu bytes lost", m.now);
}

/* ---- lists, misuse ------------------------------------------------------------------------------------------------- */

static void lists_of_live_caches(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, 64, 64, 1);
    struct text t = text_new(&config, 900);
    struct world w = world_of(ctx, &config, &t, 60);
    aura_seq all[8] = {0}, two[2], many[200];
    size_t n = 8, none = 0, some = 2;
    EXPECT(!aura_cache_list(w.cache, all, &n) && n == SEQS && !all[SEQS], "%zu", n);
    EXPECT(!aura_cache_list(w.cache, NULL, &none) && none == SEQS, "%zu", none);
    EXPECT(!aura_cache_list(w.cache, two, &some) && some == SEQS && two[0] == all[0] && two[1] == all[1], "%zu", some);
    for (size_t i = 0; i < n; i++)
        EXPECT(seq_tokens(w.cache, all[i]) != UINT64_MAX, "%u", all[i]);
    n = 8;
    EXPECT(!aura_model_cache_list(w.model, all, &n) && n == 2, "%zu", n);
    EXPECT(all[0] != w.model_seq && all[1] == w.model_seq, "a place that was left is taken first");
    for (int i = 0; i < 190; i++)
        seq_new(w.cache);
    n = 200;
    EXPECT(!aura_cache_list(w.cache, many, &n) && n == 190 + SEQS, "%zu", n);
    EXPECT(aura_cache_list(NULL, all, &n) == AURA_BAD_ARGUMENT && aura_cache_list(w.cache, NULL, &n) == AURA_BAD_ARGUMENT &&
               aura_cache_list(w.cache, all, NULL) == AURA_BAD_ARGUMENT &&
               aura_model_cache_list(NULL, all, &n) == AURA_BAD_ARGUMENT, "NULLs");
    world_free(&w), text_free(&t);
}

static void misuse(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, 64, 64, 1);
    struct text t = text_new(&config, 900);
    struct world w = world_of(ctx, &config, &t, 60), none = {NULL, NULL, 0, 0}, got;
    uint8_t place[64];
    for (int what = 0; what < N_WHAT; what++) {
        aura_sink sink = AURA_SINK_INIT;
        aura_source source = AURA_SOURCE_INIT;
        aura_snapshot_options o = AURA_SNAPSHOT_OPTIONS_INIT;
        size_t bytes;
        EXPECT(write_to(&w, what, NULL, NULL) == AURA_BAD_ARGUMENT && size_of(&w, what, NULL, NULL) == AURA_BAD_ARGUMENT &&
                   read_from(ctx, &w, what, NULL, &got) == AURA_BAD_ARGUMENT, "%s: NULL", names[what]);
        EXPECT(write_to(&w, what, &sink, NULL) == AURA_BAD_ARGUMENT && read_from(ctx, &w, what, &source, &got) == AURA_BAD_ARGUMENT,
               "%s: neither a function nor memory", names[what]);
        sink.data = place, sink.bytes = sizeof place, source.data = place, source.bytes = sizeof place;
        sink.size--, source.size++;
        EXPECT(write_to(&w, what, &sink, NULL) == AURA_BAD_ARGUMENT && read_from(ctx, &w, what, &source, &got) == AURA_BAD_ARGUMENT,
               "%s: another size", names[what]);
        sink.size++, source.size--;
        EXPECT(write_to(&none, what, &sink, NULL) == AURA_BAD_ARGUMENT && size_of(&none, what, NULL, &bytes) == AURA_BAD_ARGUMENT &&
                   read_from(NULL, &none, what, &source, &got) == AURA_BAD_ARGUMENT, "%s: no handle", names[what]);
        o.size++;
        EXPECT(write_to(&w, what, &sink, &o) == AURA_BAD_ARGUMENT && size_of(&w, what, &o, &bytes) == AURA_BAD_ARGUMENT,
               "%s: options", names[what]);
        o.size--, o.seqs = &w.seq, o.n_seqs = 1;
        if (what == SEQ || what == MODEL_SEQ)
            EXPECT(size_of(&w, what, &o, &bytes) == AURA_BAD_ARGUMENT, "%s: two ways of saying which", names[what]);
    }
    world_free(&w), text_free(&t);
}

int main(void)
{
    if (aura_ctx_create(NULL, &ctx) || !files_begin())
        return 1;
    RUN(files_and_sinks_get_the_same);
    RUN(sources_give_it_back);
    RUN(bytes_depend_on_nothing_else);
    RUN(heads_do_not_tell_where_they_stood);
    RUN(sinks_that_fail);
    RUN(sources_that_fail);
    RUN(hostile_sources);
    RUN(lists_of_live_caches);
    RUN(misuse);
    aura_ctx_destroy(ctx);
    files_end();
    return test_result();
}
