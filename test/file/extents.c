/* Sequences that travel: both ends hold the same bytes, what is damaged or foreign is refused, and nothing is lost or leaks where
 * something fails. What a header says is checked by the code of snapshots, whose tests are test/file/snapshot_damage.c. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "snapshot_tools.h"

static aura_extents_info info_of(const aura_extents *e)
{
    aura_extents_info info = AURA_EXTENTS_INFO_INIT;
    EXPECT(!aura_extents_get_info(e, &info), "%s", aura_last_error());
    return info;
}

static struct bytes snapshot_of(const aura_cache *cache, const aura_model_cache *model, aura_seq seq,
                                const aura_snapshot_options *o)
{
    struct bytes b = {NULL, 0};
    aura_sink sink = AURA_SINK_INIT;
    EXPECT(!(model ? aura_model_seq_size(model, seq, o, &b.size) : aura_seq_size(cache, seq, o, &b.size)), "%s", aura_last_error());
    sink.data = b.data = malloc(b.size), sink.bytes = b.size;
    EXPECT(!(model ? aura_model_seq_write(model, seq, &sink, o) : aura_seq_write(cache, seq, &sink, o)), "%s", aura_last_error());
    return b;
}

/* Every piece to its place, as a transport does; the pages there hold something else before. */
static void move(const aura_extents_info *from, const aura_extents_info *to)
{
    EXPECT(from->n == to->n && from->bytes == to->bytes, "%zu pieces of %llu bytes became %zu of %llu", from->n,
           (unsigned long long)from->bytes, to->n, (unsigned long long)to->bytes);
    for (size_t i = 0; i < from->n && i < to->n; i++) {
        const aura_piece *a = &from->pieces[i], *b = &to->pieces[i];
        EXPECT(a->bytes == b->bytes && a->what == b->what && a->layer == b->layer && a->bytes, "piece %zu", i);
        memset(b->data, 0xff, b->bytes);
        memcpy(b->data, a->data, a->bytes < b->bytes ? a->bytes : b->bytes);
    }
}

/* The header, and the pieces where the sections of pages and rows belong, are the snapshot. */
static void expect_is_snapshot(const aura_extents_info *e, struct bytes file)
{
    struct aura_file_header *h = header_of(file);
    struct aura_file_section *s = (struct aura_file_section *)(void *)(h + 1);
    size_t front = (sizeof *h + h->sections * sizeof *s + 63) / 64 * 64, at = front, piece = 0;
    EXPECT(e->header_bytes >= front && !memcmp(e->header, file.data, front), "the front of the header is not the file's");
    for (uint32_t i = 0; i < h->sections; i++) {
        if (!AURA_SECTION_IS_LARGE(s[i].type)) {
            EXPECT(!memcmp((const uint8_t *)e->header + at, file.data + s[i].offset, (s[i].bytes + 63) / 64 * 64), "section %u", i);
            at += (s[i].bytes + 63) / 64 * 64;
            continue;
        }
        for (uint64_t done = 0; done < s[i].bytes && piece < e->n; done += e->pieces[piece++].bytes)
            EXPECT(done + e->pieces[piece].bytes <= s[i].bytes &&
                       !memcmp(e->pieces[piece].data, file.data + s[i].offset + done, e->pieces[piece].bytes),
                   "section %u: piece %zu is not what a file has there", i, piece);
    }
    EXPECT(at == e->header_bytes && piece == e->n, "%zu of %zu bytes, %zu of %zu pieces", at, e->header_bytes, piece, e->n);
}

/* ---- there, and as it was ------------------------------------------------------------------------------------------ */

static aura_seq travel(const aura_cache *from, aura_seq seq, const aura_snapshot_options *o, aura_cache *to)
{
    aura_extents *here = NULL, *there = NULL;
    aura_seq got = 0;
    struct bytes file = snapshot_of(from, NULL, seq, o);
    EXPECT(!aura_seq_extents(from, seq, o, &here), "%s", aura_last_error());
    aura_extents_info a = info_of(here);
    expect_is_snapshot(&a, file);
    uint8_t *odd = malloc(a.header_bytes + 1); /* a header may be anywhere */
    memcpy(odd + 1, a.header, a.header_bytes);
    EXPECT(!aura_seq_expect(to, odd + 1, a.header_bytes, &there), "%s", aura_last_error());
    memset(odd, 0xee, a.header_bytes + 1);
    aura_extents_info b = info_of(there);
    move(&a, &b);
    EXPECT(!aura_seq_adopt(there, &got) && got, "%s", aura_last_error());
    EXPECT(info_of(there).n == 0 && aura_seq_adopt(there, &got) == AURA_BAD_ARGUMENT, "adopted twice");
    aura_extents_destroy(here), aura_extents_destroy(there);
    struct bytes again = snapshot_of(to, NULL, got, NULL);
    EXPECT(o || same_bytes(file, again), "the snapshot of the one that came is another");
    free(odd), free(file.data), free(again.data);
    return got;
}

static void both_ends_are_equal(void)
{
    static const uint32_t lengths[] = {0, 3, 40, 300, 700, 1100};
    static const uint32_t flags[] = {0, AURA_NO_PINNED, AURA_NO_REFERENCE, AURA_NO_OPEN | AURA_NO_REFERENCE};
    float *balance = some_balance(2, 80);
    for (size_t i = 0; i < 3 * N_KINDS && test_bad_lines < 5; i += small_run() ? 5 : 1) {
        aura_config config = config_of(kinds[i % N_KINDS], kinds[(i / 2 + 3) % N_KINDS], 80, 64, 2);
        aura_seq seq[SEQS], other;
        config.q_heads = 4, config.balance = i % 2 && !is_plain(config.format.k) ? balance : NULL;
        config.window = i % 3 == 1 ? 200 : 0, config.flags |= flags[i / 3 % 4];
        struct text t = text_new(&config, 900);
        aura_cache *from = some_cache(ctx, &config, &t, lengths[i % 6], seq), *to = cache_new(ctx, &config);
        for (int k = 0; k < SEQS; k++) {
            aura_seq got = travel(from, seq[k], NULL, to);
            expect_same(from, seq[k], to, got, config_text(&config));
            EXPECT(!aura_seq_fork(from, seq[k], seq_tokens(from, seq[k]), &other), "%s", aura_last_error());
            grow(from, other, &t, 90, 3), grow(to, got, &t, 90, 3); /* and goes on as if it had always been there */
            expect_same(from, other, to, got, config_text(&config));
        }
        aura_cache_destroy(from), aura_cache_destroy(to), text_free(&t);
    }
    free(balance);
}

/* A page that holds what a file would have is not copied, and is where the sequence has it. */
static void pages_are_not_copied(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, 64, 64, 2);
    struct text t = text_new(&config, 900);
    struct counting memory = {0};
    aura_ctx *own = counting_ctx(&memory, 0xa5, 1); /* memory comes with something in it */
    for (int i = 0; i < 3; i++) {
        config.format.v = i == 1 ? AURA_KIND_F16 : AURA_KIND_B8, config.flags |= i == 2 ? AURA_NO_PINNED : 0;
        aura_cache *cache = cache_new(own, &config);
        aura_seq seq = seq_new(cache);
        grow(cache, seq, &t, 2000, 0);
        aura_extents *e = NULL;
        size_t before = memory.bytes;
        aura_cache_info about = AURA_CACHE_INFO_INIT;
        EXPECT(!aura_seq_extents(cache, seq, NULL, &e) && !aura_cache_get_info(cache, &about), "%s", aura_last_error());
        aura_extents_info info = info_of(e);
        size_t copies = i == 2 ? 2 : 3; /* the last page, the rows and, where tokens are pinned, the first page */
        EXPECT(info.n == 9 && info.copied == copies, "%zu pieces, %zu copied", info.n, info.copied);
        EXPECT(memory.bytes - before < about.page_bytes * copies + 16384, "%zu bytes more", memory.bytes - before);
        aura_extents_destroy(e);
        EXPECT(memory.bytes == before, "%zu bytes left", memory.bytes - before);
        aura_cache_destroy(cache);
    }
    aura_ctx_destroy(own), text_free(&t);
}

/* Some of the heads, for a machine that has only these. */
static void heads_travel_alone(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B3, 64, 64, 4), two = config;
    aura_snapshot_options o = AURA_SNAPSHOT_OPTIONS_INIT;
    float *balance = some_balance(4, 64);
    config.balance = balance, two.balance = balance + 64, two.kv_heads = two.q_heads = 2;
    struct text t = text_new(&config, 900);
    aura_cache *from = cache_new(ctx, &config), *to = cache_new(ctx, &two), *loaded = NULL;
    aura_seq seq = seq_new(from);
    grow(from, seq, &t, 800, 0);
    o.first_head = 1, o.heads = 2;
    aura_seq got = travel(from, seq, &o, to);
    EXPECT(!aura_cache_save(from, file_path("heads"), &o), "%s", aura_last_error());
    loaded = load(ctx, file_path("heads"), NULL);
    expect_same(loaded, 1, to, got, "heads 1 and 2 of 4");
    unlink(file_path("heads"));
    aura_cache_destroy(from), aura_cache_destroy(to), aura_cache_destroy(loaded), text_free(&t), free(balance);
}

static aura_model_cache *model_of(const aura_config *config, size_t budget)
{
    aura_config configs[3] = {*config, *config, *config};
    aura_model_config m = AURA_MODEL_CONFIG_INIT;
    aura_model_cache *model = NULL;
    configs[1].format.k = config->format.v, configs[2].window = 200;
    m.layers = 3, m.configs = configs, m.budget_bytes = budget;
    EXPECT(!aura_model_cache_create(ctx, &m, &model), "%s", aura_last_error());
    return model;
}

static void models_travel(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_F16, 64, 64, 2);
    struct text t = text_new(&config, 900);
    aura_model_cache *from = model_of(&config, 0), *to = model_of(&config, 0), *small = model_of(&config, 400000);
    aura_seq seq, got = 0, other;
    aura_extents *here = NULL, *there = NULL;
    EXPECT(!aura_model_seq_create(from, &seq) && !aura_model_seq_create(to, &other), "%s", aura_last_error());
    for (uint32_t i = 0; i < 3; i++)
        grow(aura_model_cache_layer(from, i), seq, &t, 700, i);
    struct bytes file = snapshot_of(NULL, from, seq, NULL);
    EXPECT(!aura_model_seq_extents(from, seq, NULL, &here), "%s", aura_last_error());
    aura_extents_info a = info_of(here);
    expect_is_snapshot(&a, file);
    EXPECT(aura_model_seq_expect(small, a.header, a.header_bytes, &there) == AURA_OUT_OF_PAGES && !there, "no budget");
    aura_model_cache_info about = AURA_MODEL_CACHE_INFO_INIT;
    EXPECT(!aura_model_cache_get_info(small, &about) && about.pages == about.free_pages && !about.tokens, "pages are left over");
    EXPECT(!aura_model_seq_expect(to, a.header, a.header_bytes, &there), "%s", aura_last_error());
    aura_extents_info b = info_of(there);
    move(&a, &b);
    EXPECT(!aura_seq_adopt(there, &got) && got != other, "%s", aura_last_error());
    struct bytes again = snapshot_of(NULL, to, got, NULL);
    EXPECT(same_bytes(file, again), "the snapshot of the one that came is another");
    for (uint32_t i = 0; i < 3; i++)
        expect_same(aura_model_cache_layer(from, i), seq, aura_model_cache_layer(to, i), got, "a layer");
    EXPECT(aura_seq_expect(aura_model_cache_layer(to, 0), a.header, a.header_bytes, &there) == AURA_BAD_ARGUMENT, "a layer");
    EXPECT(!aura_model_seq_release(to, got), "%s", aura_last_error());
    free(file.data), free(again.data), aura_extents_destroy(here), aura_extents_destroy(there), text_free(&t);
    aura_model_cache_destroy(from), aura_model_cache_destroy(to), aura_model_cache_destroy(small);
}

/* ---- what is refused ----------------------------------------------------------------------------------------------- */

/* A cache with a sequence of its own, which nothing here may change, and extents of another's. */
struct refusal {
    aura_cache *from, *to;
    aura_seq seq, own;
    aura_extents *here;
    aura_extents_info info;
    struct state before;
    struct text t;
};

static struct refusal refusal_new(void)
{
    aura_config config = config_of(AURA_KIND_B8, AURA_KIND_F32, 64, 64, 1);
    struct refusal r = {cache_new(ctx, &config), cache_new(ctx, &config), 0, 0, NULL, AURA_EXTENTS_INFO_INIT,
                        {AURA_CACHE_INFO_INIT, NULL, 0}, text_new(&config, 900)};
    r.seq = seq_new(r.from), r.own = seq_new(r.to);
    grow(r.from, r.seq, &r.t, 560, 0), grow(r.to, r.own, &r.t, 300, 9);
    aura_seq_info about = AURA_SEQ_INFO_INIT; /* so that there are free pages, and their number does not change */
    EXPECT(!aura_seq_reserve(r.to, r.own, 2560) && !aura_truncate(r.to, r.own, 300) &&
               !aura_seq_get_info(r.to, r.own, &about), "%s", aura_last_error());
    EXPECT(!aura_seq_extents(r.from, r.seq, NULL, &r.here), "%s", aura_last_error());
    r.info = info_of(r.here);
    aura_extents *there = NULL;
    EXPECT(!aura_seq_expect(r.to, r.info.header, r.info.header_bytes, &there), "%s", aura_last_error());
    aura_extents_destroy(there); /* it gives its pages back, and the slab stays */
    r.before = state_of(r.to, r.own);
    return r;
}

static void refusal_free(struct refusal *r)
{
    EXPECT(is_state(&r->before, r->to, r->own), "the cache has changed");
    aura_extents_destroy(r->here), aura_cache_destroy(r->from), aura_cache_destroy(r->to), text_free(&r->t), free(r->before.out);
}

static aura_status expect_header(struct refusal *r, const void *header, size_t bytes)
{
    aura_extents *there = NULL;
    aura_status status = aura_seq_expect(r->to, header, bytes, &there);
    EXPECT(!status == !!there && is_state(&r->before, r->to, r->own) == !!status, "%s", aura_status_text(status));
    aura_extents_destroy(there);
    return status;
}

static void damaged_headers_are_refused(void)
{
    struct refusal r = refusal_new();
    size_t n = r.info.header_bytes;
    uint8_t *header = malloc(n + 64);
    memcpy(header, r.info.header, n), memset(header + n, 0, 64);
    for (size_t bit = 0; bit < 8 * n && test_bad_lines < 5; bit += small_run() ? 11 : 1) {
        header[bit / 8] = (uint8_t)(header[bit / 8] ^ 1u << bit % 8);
        aura_status status = expect_header(&r, header, n);
        EXPECT(status == AURA_BAD_FILE || status == AURA_UNSUPPORTED, "bit %zu: %s", bit, aura_status_text(status));
        header[bit / 8] = (uint8_t)(header[bit / 8] ^ 1u << bit % 8);
    }
    for (size_t length = 0; length < n; length += 3)
        EXPECT(expect_header(&r, header, length) == AURA_BAD_FILE, "cut to %zu bytes", length);
    for (size_t more = 1; more <= 64; more++)
        EXPECT(expect_header(&r, header, n + more) == AURA_BAD_FILE, "%zu bytes more", more);
    EXPECT(expect_header(&r, NULL, 0) == AURA_BAD_ARGUMENT && !expect_header(&r, header, n), "%s", aura_last_error());
    free(header), refusal_free(&r);
}

/* Checksums that are right, and a content that is not. */
static void hostile_headers_are_refused(void)
{
    struct refusal r = refusal_new();
    size_t n = r.info.header_bytes;
    for (int way = 0; way < 12; way++) {
        struct bytes b = {malloc(n), n};
        memcpy(b.data, r.info.header, n);
        struct aura_file_header *h = header_of(b);
        struct aura_file_section *s = (struct aura_file_section *)(void *)(h + 1);
        uint64_t at = (sizeof *h + h->sections * sizeof *s + 63) / 64 * 64;
        for (uint32_t i = 0; i < h->sections; i++) { /* where they are in a header */
            uint64_t *words = (uint64_t *)(void *)(b.data + at);
            uint32_t *halves = (uint32_t *)(void *)words;
            const uint32_t type = s[i].type;
            if (AURA_SECTION_IS_LARGE(type))
                continue;
            if (type == AURA_SECTION_CONFIG) {
                words[16] += way == 0, words[17] += way == 1 || way == 2, words[18] += way == 2; /* sequences, entries, pages */
                halves[5] += way == 3, halves[18] ^= way == 4, words[15] += way == 5 ? 64 : 0;   /* heads, pinned, head_bytes */
            }
            if (type == AURA_SECTION_SEQS) {
                words[0] += way == 6 ? 256 : way == 7 ? UINT64_MAX / 2 : 0; /* tokens */
                words[1] += way == 8 ? 32 : 0, words[3] += way == 9;        /* closed, entries */
            }
            if (type == AURA_SECTION_TABLE)
                words[0] = way == 10 ? 99 : way == 11 ? words[2] : words[0]; /* no such page; one that nobody has */
            s[i].crc = aura_crc32c(0, words, (size_t)((s[i].bytes + 63) / 64 * 64), AURA_ISA_REF);
            at += (s[i].bytes + 63) / 64 * 64;
        }
        h->crc = 0;
        h->crc = aura_crc32c(0, h, (sizeof *h + h->sections * sizeof *s + 63) / 64 * 64, AURA_ISA_REF);
        aura_status status = expect_header(&r, b.data, n);
        EXPECT(status == AURA_BAD_FILE || status == AURA_BAD_ARGUMENT || status == AURA_UNSUPPORTED, "way %d: %s", way,
               aura_status_text(status));
        free(b.data);
    }
    refusal_free(&r);
}

/* A bit of any piece; and bytes that left so, but that nobody can have stored. */
static void damaged_pieces_are_refused(void)
{
    struct refusal r = refusal_new();
    for (size_t i = 0; i < r.info.n; i++) {
        size_t step = r.info.pieces[i].bytes * 8 / (small_run() ? 5 : 40) + 1;
        for (size_t bit = i; bit < r.info.pieces[i].bytes * 8; bit += step) {
            aura_extents *there = NULL;
            aura_seq got = 77;
            EXPECT(!aura_seq_expect(r.to, r.info.header, r.info.header_bytes, &there), "%s", aura_last_error());
            aura_extents_info b = info_of(there);
            move(&r.info, &b);
            uint8_t *byte = (uint8_t *)b.pieces[i].data + bit / 8;
            *byte = (uint8_t)(*byte ^ 1u << bit % 8);
            EXPECT(aura_seq_adopt(there, &got) == AURA_BAD_FILE && got == 77, "piece %zu, bit %zu", i, bit);
            EXPECT(aura_seq_adopt(there, &got) == AURA_BAD_ARGUMENT, "refused, and then not");
            aura_extents_destroy(there);
            EXPECT(is_state(&r.before, r.to, r.own), "piece %zu, bit %zu: the cache has changed", i, bit);
        }
    }
    refusal_free(&r);
}

static void foreign_ones_are_refused(void)
{
    aura_config config = config_of(AURA_KIND_B8, AURA_KIND_F32, 64, 64, 1);
    struct refusal r = refusal_new();
    for (int way = 0; way < 7; way++) {
        aura_config other = config;
        float *balance = some_balance(1, 64);
        aura_extents *there = NULL;
        other.format.k = way == 0 ? AURA_KIND_B4 : other.format.k, other.kv_heads = other.q_heads = way == 1 ? 2 : 1;
        other.k_dim = way == 2 ? 128 : 64, other.seed += way == 3, other.balance = way == 4 ? balance : NULL;
        other.flags |= way == 5 ? AURA_NO_PINNED : 0, other.slots = way == 6 ? 600 : 0;
        aura_cache *cache = cache_new(ctx, &other);
        EXPECT(aura_seq_expect(cache, r.info.header, r.info.header_bytes, &there) == AURA_BAD_ARGUMENT && !there, "way %d", way);
        aura_cache_destroy(cache), free(balance);
    }
    aura_extents *there = NULL;
    aura_seq got;
    config.budget_bytes = 150000;
    aura_cache *small = cache_new(ctx, &config);
    EXPECT(aura_seq_expect(small, r.info.header, r.info.header_bytes, &there) == AURA_OUT_OF_PAGES, "%s", aura_last_error());
    aura_cache_destroy(small);
    EXPECT(aura_seq_extents(r.from, r.seq + 1, NULL, &there) == AURA_BAD_ARGUMENT, "no such sequence");
    EXPECT(aura_seq_adopt(r.here, &got) == AURA_BAD_ARGUMENT && aura_seq_adopt(NULL, &got) == AURA_BAD_ARGUMENT, "none expected");
    EXPECT(aura_seq_extents(NULL, 1, NULL, &there) == AURA_BAD_ARGUMENT && aura_extents_get_info(NULL, NULL) == AURA_BAD_ARGUMENT,
           "NULL");
    aura_extents_destroy(NULL);
    refusal_free(&r);
}

/* ---- where memory ends --------------------------------------------------------------------------------------------- */

static void no_memory_no_leak(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, 64, 64, 1);
    struct text t = text_new(&config, 900);
    struct counting memory = {0};
    aura_ctx *own = counting_ctx(&memory, 0x11, 1);
    aura_cache *from = cache_new(own, &config), *to = cache_new(own, &config);
    aura_seq seq = seq_new(from), got;
    grow(from, seq, &t, 700, 0);
    int rounds = 0;
    for (int ended = 0; !ended && rounds < 60; rounds++) {
        aura_extents *here = NULL, *there = NULL;
        size_t before = memory.bytes;
        memory.fail_in = rounds, memory.failed = 0, got = 0;
        aura_status status = aura_seq_extents(from, seq, NULL, &here);
        if (!status) {
            aura_extents_info a = info_of(here);
            if (!(status = aura_seq_expect(to, a.header, a.header_bytes, &there))) {
                aura_extents_info b = info_of(there);
                move(&a, &b);
                status = aura_seq_adopt(there, &got);
            }
        }
        EXPECT(status == (memory.failed ? AURA_OUT_OF_MEMORY : AURA_OK), "allocation %d: %s", rounds, aura_status_text(status));
        ended = !memory.failed;
        memory.fail_in = -1;
        aura_extents_destroy(here), aura_extents_destroy(there);
        EXPECT(!got || !aura_seq_release(to, got), "%s", aura_last_error());
        aura_cache_info info = AURA_CACHE_INFO_INIT;
        EXPECT(!aura_cache_get_info(to, &info) && info.pages == info.free_pages && !info.seqs, "pages are left over");
        EXPECT(!status || memory.bytes >= before, "allocation %d", rounds);
    }
    EXPECT(rounds > 8 && rounds < 60 && !memory.wrong, "%d allocations", rounds);
    aura_cache_destroy(from), aura_cache_destroy(to), aura_ctx_destroy(own);
    EXPECT(memory.bytes == 0, "%zu bytes left", memory.bytes);
    text_free(&t);
}

int main(void)
{
    if (!files_begin() || aura_ctx_create(NULL, &ctx))
        return 1;
    RUN(both_ends_are_equal);
    RUN(pages_are_not_copied);
    RUN(heads_travel_alone);
    RUN(models_travel);
    RUN(damaged_headers_are_refused);
    RUN(hostile_headers_are_refused);
    RUN(damaged_pieces_are_refused);
    RUN(foreign_ones_are_refused);
    RUN(no_memory_no_leak);
    aura_ctx_destroy(ctx);
    files_end();
    return test_result();
}
