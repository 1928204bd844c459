/* Damaged snapshots: loading refuses each of them and leaves the cache unchanged. And the snapshot in test/golden, which every
 * later version must read. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "snapshot_tools.h"

#include <math.h>
#include <sys/resource.h>

#include "../../src/file/snapshot.h"

/* Small, and with something in every section: a page that two sequences share, f16 rows, a balance. */
static aura_config small_config(const float *balance)
{
    aura_config config = AURA_CONFIG_INIT;
    config.format.k = AURA_KIND_B2, config.format.v = AURA_KIND_B2;
    config.q_heads = 2, config.kv_heads = 1, config.k_dim = 64;
    config.seed = 5, config.balance = balance;
    return config;
}

static void small_file(const char *path, aura_kind v, aura_seq seq[2])
{
    float *balance = some_balance(1, 64);
    aura_config config = small_config(balance);
    config.format.v = v;
    struct text t = text_new(&config, 200);
    aura_cache *cache = cache_new(ctx, &config);
    seq[0] = seq_new(cache);
    grow(cache, seq[0], &t, 57, 0);
    EXPECT(!aura_seq_fork(cache, seq[0], 40, &seq[1]), "%s", aura_last_error());
    EXPECT(!aura_cache_save(cache, path, NULL), "%s", aura_last_error());
    seq[0] = number_of(cache, seq[0]), seq[1] = number_of(cache, seq[1]);
    aura_cache_destroy(cache);
    text_free(&t), free(balance);
}

/* A cache in use that a good file fits. */
struct target {
    aura_cache *cache;
    aura_seq seq;
    aura_snapshot_options which;
    aura_seq wanted;
    struct state before;
    int whole; /* also load the file as a cache of its own */
};

static void target_init(struct target *t, aura_kind v, aura_seq wanted)
{
    static const aura_snapshot_options none = AURA_SNAPSHOT_OPTIONS_INIT;
    float *balance = some_balance(1, 64);
    aura_config config = small_config(balance);
    config.format.v = v;
    struct text text = text_new(&config, 200);
    t->cache = cache_new(ctx, &config);
    t->seq = seq_new(t->cache);
    grow(t->cache, t->seq, &text, 90, 7);
    t->wanted = wanted, t->which = none;
    t->which.seqs = &t->wanted, t->which.n_seqs = 1;
    t->before = state_of(t->cache, t->seq);
    t->whole = 0;
    text_free(&text), free(balance);
}

static void target_free(struct target *t)
{
    EXPECT(is_state(&t->before, t->cache, t->seq), "the cache has changed");
    aura_cache_destroy(t->cache);
    free(t->before.out);
}

static int refused(void *user, const char *path, const char *what)
{
    struct target *t = user;
    aura_seq got = 7;
    aura_cache *cache = NULL;
    aura_status status = aura_seq_load(t->cache, path, &t->which, &got);
    int bad = status == AURA_BAD_FILE || status == AURA_UNSUPPORTED;
    (void)what;
    if (t->whole) {
        status = aura_cache_load(ctx, path, NULL, &cache);
        bad = bad && (status == AURA_BAD_FILE || status == AURA_UNSUPPORTED);
    }
    return bad && got == 7 && !cache && aura_cache_bytes(t->cache) == t->before.info.bytes;
}

static void every_flipped_bit_is_noticed(void)
{
    struct target t;
    aura_seq seq[2];
    small_file(file_path("good"), AURA_KIND_B2, seq);
    struct bytes good = read_file(file_path("good"));
    target_init(&t, AURA_KIND_B2, seq[0]);
    EXPECT(good.size > 10000 && good.size < 40000, "%zu bytes", good.size);
    expect_flips_refused(good, small_run() ? 37 : 1, refused, &t);
    t.whole = 1;
    expect_flips_refused(good, 101, refused, &t);
    target_free(&t);
    free(good.data), unlink(file_path("good"));
}

static void every_other_length_is_noticed(void)
{
    struct target t;
    aura_seq seq[2];
    small_file(file_path("good"), AURA_KIND_B2, seq);
    struct bytes good = read_file(file_path("good"));
    target_init(&t, AURA_KIND_B2, seq[0]);
    expect_lengths_refused(good, small_run() ? 11 : 1, refused, &t);
    target_free(&t);
    free(good.data), unlink(file_path("good"));
}

static void flipped_bits_of_a_larger_file(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_F32, 64, 128, 4);
    struct text text = text_new(&config, 900);
    struct target t;
    aura_cache *a = cache_new(ctx, &config);
    aura_seq seq = seq_new(a);
    grow(a, seq, &text, 3000, 0);
    EXPECT(!aura_cache_save(a, file_path("large"), NULL), "%s", aura_last_error());
    struct bytes good = read_file(file_path("large"));
    target_init(&t, AURA_KIND_B2, 1);
    aura_cache_destroy(t.cache);
    t.cache = a, t.seq = seq, free(t.before.out), t.before = state_of(a, seq);
    EXPECT(good.size > 4000000, "%zu bytes", good.size);
    expect_flips_refused(good, small_run() ? 1000003 : 100003, refused, &t);
    target_free(&t);
    free(good.data), text_free(&text);
    unlink(file_path("large"));
}

/* ---- files made up, with checksums that are right ---------------------------------------------------------------------- */

static struct bytes good;
static struct target target;

/* Changes `bytes` bytes at an offset of a section. */
static void expect_change_refused(uint32_t type, size_t at, const void *with, size_t bytes, const char *what)
{
    struct bytes bad = {malloc(good.size), good.size};
    memcpy(bad.data, good.data, good.size);
    struct aura_file_section *s = section_of(bad, 0, type);
    EXPECT(s && at + bytes <= s->bytes, "%s: no such place", what);
    if (memcmp(bad.data + s->offset + at, with, bytes)) {
        memcpy(bad.data + s->offset + at, with, bytes);
        seal(bad);
        write_file(file_path("made"), bad.data, bad.size);
        EXPECT(refused(&target, file_path("made"), what), "%s: %s", what, aura_last_error());
    }
    free(bad.data);
}

/* Loading refuses any other value of a field. BAD_ARGUMENT would blame the caller. */
static void expect_field_refused(uint32_t type, size_t at, size_t size, const char *what)
{
    const uint64_t values[] = {0, 1, 2, 3, 31, 33, 63, 64, 65, 255, 257, 65537, UINT32_MAX - 1, UINT32_MAX,
                               (uint64_t)1 << 32, UINT64_MAX / 2, (uint64_t)1 << 63,
                               UINT64_MAX - 255, UINT64_MAX - 1, UINT64_MAX};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (size == 8 || values[i] <= UINT32_MAX)
            expect_change_refused(type, at, &values[i], size, what);
}

#define CONFIG_FIELD(field) \
    expect_field_refused(AURA_SECTION_CONFIG, offsetof(struct aura_file_config, field), \
                         sizeof((struct aura_file_config *)0)->field, "config " #field)
#define SEQ_FIELD(field) \
    expect_field_refused(AURA_SECTION_SEQS, offsetof(struct aura_file_seq, field), \
                         sizeof((struct aura_file_seq *)0)->field, "sequence " #field)

/* Some values are right for another cache: only loading a whole cache from the file can show that they are damage. */
static int refused_whole(const struct bytes *bad)
{
    aura_cache *cache = NULL;
    write_file(file_path("made"), bad->data, bad->size);
    aura_status status = aura_cache_load(ctx, file_path("made"), NULL, &cache);
    aura_cache_destroy(cache);
    return status == AURA_BAD_FILE || status == AURA_UNSUPPORTED;
}

static void config_that_is_not_that_of_the_bytes(void)
{
    static const struct {
        const char *name;
        size_t at, size;
    } fields[] = {
#define FIELD(f) {#f, offsetof(struct aura_file_config, f), sizeof((struct aura_file_config *)0)->f}
        FIELD(window), FIELD(max_queries), FIELD(keep_first), FIELD(slots), FIELD(k_kind), FIELD(v_kind), FIELD(k_dim),
            FIELD(v_dim), FIELD(kv_heads), FIELD(seed), FIELD(pinned), FIELD(tile_tokens), FIELD(page_tokens),
        FIELD(k_codebook), FIELD(v_codebook), FIELD(reference_codebook), FIELD(k_codebook_crc), FIELD(v_codebook_crc),
        FIELD(reference_codebook_crc),
        FIELD(k_signs_crc), FIELD(v_signs_crc), FIELD(head_bytes), FIELD(seqs), FIELD(entries), FIELD(pages)};
    const uint64_t values[] = {0, 1, 3, 4, 9, 10, 63, 64, 65, 80, 128, 512, 513, 65536, 65537, UINT32_MAX,
                               (uint64_t)1 << 32, UINT64_MAX / 64 + 1, UINT64_MAX};
    aura_seq seq[2];
    struct bytes bad;
    small_file(file_path("good"), AURA_KIND_B2, seq);
    bad = read_file(file_path("good"));
    uint8_t *config = bad.data + section_of(bad, 0, AURA_SECTION_CONFIG)->offset;
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
            uint64_t old = 0, new = fields[f].size == 4 ? (uint32_t)values[i] : values[i];
            memcpy(&old, config + fields[f].at, fields[f].size);
            const int padded = fields[f].at == offsetof(struct aura_file_config, v_dim) && new > 0 && new < old;
            if (old == new || padded) /* fewer numbers in as many bytes: values that somebody may have stored */
                continue;
            memcpy(config + fields[f].at, &new, fields[f].size), seal(bad);
            EXPECT(refused_whole(&bad), "%s = %llu", fields[f].name, (unsigned long long)new);
            memcpy(config + fields[f].at, &old, fields[f].size);
        }
    seal(bad);
    EXPECT(!refused_whole(&bad), "%s", aura_last_error());
    free(bad.data);
    unlink(file_path("made")), unlink(file_path("good"));
}

static void lengths_and_pages_that_cannot_be(void)
{
    aura_seq seq[2];
    small_file(file_path("good"), AURA_KIND_B2, seq);
    good = read_file(file_path("good"));
    target_init(&target, AURA_KIND_B2, seq[0]);
    target.whole = 1;
    CONFIG_FIELD(seqs);
    CONFIG_FIELD(entries);
    CONFIG_FIELD(pages);
    CONFIG_FIELD(head_bytes);
    SEQ_FIELD(tokens);
    SEQ_FIELD(closed);
    SEQ_FIELD(first);
    SEQ_FIELD(entries);
    SEQ_FIELD(rows);
    for (uint64_t page = 1; page; page <<= 7)
        expect_change_refused(AURA_SECTION_TABLE, 0, &page, 8, "a page that is not there");
    uint32_t zero = 0;
    expect_change_refused(AURA_SECTION_SEQS, offsetof(struct aura_file_seq, id), &zero, 4, "a sequence without a name");
    const uint16_t nan = 0x7e00, inf = 0xfc00;
    const struct aura_layout *l = &target.cache->layout;
    expect_change_refused(AURA_SECTION_ROWS, 130, &nan, 2, "a row with a NaN");
    expect_change_refused(AURA_SECTION_ROWS, 0, &inf, 2, "a row with an Inf");
    expect_change_refused(AURA_SECTION_PAGES, l->k_scale_at + 10, &nan, 2, "a key's scale");
    expect_change_refused(AURA_SECTION_PAGES, l->v_scale_at + 20, &inf, 2, "a value's scale");
    expect_change_refused(AURA_SECTION_PAGES, l->reference_scale_at, &nan, 2, "the scale of a reference");
    expect_change_refused(AURA_SECTION_PAGES, l->reference_at + 9, &(uint8_t){0x80}, 1, "a code without a level in a reference");
    expect_change_refused(AURA_SECTION_FILE, 0, &(uint32_t){2}, 4, "two layers");
    target_free(&target);
    *(float *)(void *)(good.data + section_of(good, 0, AURA_SECTION_BALANCE)->offset + 64 + 12) = 9, seal(good);
    EXPECT(refused_whole(&good), "a factor of 9: %s", aura_last_error());
    free(good.data), unlink(file_path("good")), unlink(file_path("made"));
}

/* A cache of slots allocates all of them at once, so loading must check their number first. */
static void slots_that_are_not_there(void)
{
    const uint64_t numbers[] = {299, 301, 256, 512, 513, 100000, (uint64_t)1 << 40, (uint64_t)1 << 63, UINT64_MAX - 254,
                                UINT64_MAX};
    aura_config config = small_config(NULL);
    config.slots = 300;
    aura_cache *cache = cache_new(ctx, &config);
    EXPECT(!aura_cache_save(cache, file_path("good"), NULL), "%s", aura_last_error());
    struct bytes file = read_file(file_path("good"));
    EXPECT(!refused_whole(&file), "%s", aura_last_error());
    struct aura_file_config *f = (struct aura_file_config *)(void *)(file.data + section_of(file, 0, AURA_SECTION_CONFIG)->offset);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        f->slots = numbers[i], seal(file);
        EXPECT(refused_whole(&file), "%llu slots", (unsigned long long)numbers[i]);
    }
    aura_cache_destroy(cache);
    free(file.data), unlink(file_path("good")), unlink(file_path("made"));
}

/* What a context has allocated at most. */
static size_t most_allocated, now_allocated;
static void *most_alloc(void *user, size_t bytes, size_t align)
{
    void *memory = NULL;
    (void)user;
    now_allocated += bytes;
    most_allocated = now_allocated > most_allocated ? now_allocated : most_allocated;
    return bytes > (size_t)1 << 30 || posix_memalign(&memory, align < 64 ? 64 : align, bytes) ? NULL : memory;
}
static void most_free(void *user, void *memory, size_t bytes)
{
    (void)user;
    now_allocated -= bytes;
    free(memory);
}

/* The file of a cache without sequences, with an empty one put in. */
static struct bytes with_an_empty_seq(struct bytes file)
{
    struct aura_file_seq empty = {.id = 1};
    struct aura_file_section *seqs = section_of(file, 0, AURA_SECTION_SEQS);
    const size_t at = (size_t)seqs->offset, index = (size_t)(seqs - (struct aura_file_section *)(void *)(header_of(file) + 1));
    struct bytes out = {malloc(file.size + sizeof empty), file.size + sizeof empty};
    memcpy(out.data, file.data, at);
    memcpy(out.data + at, &empty, sizeof empty);
    memcpy(out.data + at + sizeof empty, file.data + at, file.size - at);
    struct aura_file_section *s = (struct aura_file_section *)(void *)(header_of(out) + 1);
    s[index].bytes = sizeof empty;
    for (size_t i = index + 1; i < header_of(out)->sections; i++)
        s[i].offset += sizeof empty;
    header_of(out)->bytes = out.size;
    ((struct aura_file_config *)(void *)(out.data + section_of(out, 0, AURA_SECTION_CONFIG)->offset))->seqs = 1;
    seal(out);
    return out;
}

static void expect_little(aura_ctx *watched, struct bytes file, const char *why)
{
    aura_cache *got = NULL;
    const size_t before = most_allocated = now_allocated;
    write_file(file_path("made"), file.data, file.size);
    EXPECT(aura_cache_load(watched, file_path("made"), NULL, &got) == AURA_BAD_FILE && strstr(aura_last_error(), why),
           "expected %s, got %s", why, aura_last_error());
    EXPECT(most_allocated - before < (size_t)1 << 20, "%zu bytes made it allocate %zu", file.size, most_allocated - before);
    EXPECT(now_allocated == before, "%zu bytes are left", now_allocated - before);
    aura_cache_destroy(got);
    free(file.data), unlink(file_path("made"));
}

/* Files that speak of more than they hold: 65 536 heads of 512 numbers are 64 GiB a page, and 9 GiB of rows for a sequence. */
static void small_files_ask_for_little(void)
{
    aura_ctx_options o = AURA_CTX_OPTIONS_INIT;
    aura_ctx *watched = NULL;
    aura_config config = small_config(NULL);
    o.allocator.alloc = most_alloc, o.allocator.free = most_free, o.threads = 1;
    EXPECT(!aura_ctx_create(&o, &watched), "%s", aura_last_error());
    config.slots = 300;
    aura_cache *slots = cache_new(ctx, &config);
    config.slots = 0, config.q_heads = config.kv_heads = 1 << 16, config.k_dim = config.v_dim = 512;
    aura_cache *heads = cache_new(ctx, &config);
    EXPECT(!aura_cache_save(slots, file_path("good"), NULL), "%s", aura_last_error());
    struct bytes file = read_file(file_path("good"));
    struct aura_file_config *f = (struct aura_file_config *)(void *)(file.data + section_of(file, 0, AURA_SECTION_CONFIG)->offset);
    f->q_heads = f->kv_heads = f->all_heads = 1 << 16, seal(file);
    expect_little(watched, file, "a section is not as long as it should be");
    EXPECT(!aura_cache_save(heads, file_path("good"), NULL), "%s", aura_last_error());
    file = read_file(file_path("good"));
    expect_little(watched, with_an_empty_seq(file), "its empty sequences take more memory");
    free(file.data), unlink(file_path("good"));
    aura_cache_destroy(slots), aura_cache_destroy(heads);
    aura_ctx_destroy(watched);
}

/* A file with a tile that is still open although it must have closed: it would be encoded together with the next one. */
static void tokens_open_for_too_long(void)
{
    aura_config config = small_config(NULL);
    struct text t = text_new(&config, 200);
    config.rollback = 32;
    aura_cache *cache = cache_new(ctx, &config);
    grow(cache, seq_new(cache), &t, 57, 0);
    EXPECT(!aura_cache_save(cache, file_path("good"), NULL), "%s", aura_last_error());
    struct bytes file = read_file(file_path("good"));
    EXPECT(!refused_whole(&file), "%s", aura_last_error());
    struct aura_file_config *f = (struct aura_file_config *)(void *)(file.data + section_of(file, 0, AURA_SECTION_CONFIG)->offset);
    f->rollback = 16, seal(file);
    EXPECT(refused_whole(&file), "57 open tokens, of which 16 may be taken back");
    aura_cache_destroy(cache);
    free(file.data), text_free(&t), unlink(file_path("good")), unlink(file_path("made"));
}

/* Damage in kinds of sides that the small file does not have. */
static void numbers_that_cannot_be(void)
{
    static const struct {
        aura_kind v;
        uint8_t bad[4];
        size_t bytes;
    } cases[] = {{AURA_KIND_B8, {0x80}, 1}, {AURA_KIND_F16, {0, 0x7c}, 2}, {AURA_KIND_BF16, {0x80, 0x7f}, 2},
                 {AURA_KIND_BF16, {0xc0, 0xff}, 2}, {AURA_KIND_F32, {0, 0, 0x80, 0xff}, 4}};
    for (int i = 0; i < 5; i++) {
        aura_seq seq[2];
        small_file(file_path("good"), cases[i].v, seq);
        good = read_file(file_path("good"));
        target_init(&target, cases[i].v, seq[1]);
        expect_change_refused(AURA_SECTION_PAGES, target.cache->layout.v_at + 40, cases[i].bad, cases[i].bytes,
                              "a number that is none");
        target_free(&target);
        free(good.data), unlink(file_path("good")), unlink(file_path("made"));
    }
}

static void other_versions(void)
{
    aura_seq seq[2];
    aura_cache *cache = NULL;
    struct target t;
    small_file(file_path("good"), AURA_KIND_B2, seq);
    struct bytes file = read_file(file_path("good")), more;
    target_init(&t, AURA_KIND_B2, seq[0]);
    header_of(file)->major = 2, seal(file);
    write_file(file_path("made"), file.data, file.size);
    EXPECT(aura_cache_load(ctx, file_path("made"), NULL, &cache) == AURA_UNSUPPORTED &&
           strstr(aura_last_error(), "version 2.0"), "%s", aura_last_error());
    EXPECT(refused(&t, file_path("made"), "") && !cache, "a newer version");
    header_of(file)->major = 1, header_of(file)->minor = 3, seal(file);
    more = with_section(file, 0, 200, AURA_SECTION_OPTIONAL, 1000);
    write_file(file_path("made"), more.data, more.size);
    EXPECT(!aura_cache_load(ctx, file_path("made"), NULL, &cache) && seq_tokens(cache, seq[0]) == 57,
           "an optional section that nobody knows: %s", aura_last_error());
    free(more.data);
    more = with_section(file, 0, 200, 0, 1000);
    write_file(file_path("made"), more.data, more.size);
    EXPECT(refused(&t, file_path("made"), ""), "a section that nobody knows");
    target_free(&t);
    aura_cache_destroy(cache);
    free(more.data), free(file.data);
    unlink(file_path("made")), unlink(file_path("good"));
}

/* ---- saving ------------------------------------------------------------------------------------------------------------ */

static void save_by_turns(void *user, int i)
{
    aura_cache **two = user;
    aura_cache_save(two[i % 2], file_path("killed"), NULL);
}

/* Two caches, saved by turns. */
static void killed_writer_leaves_a_whole_file(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, 64, 64, 2);
    struct text t = text_new(&config, 900);
    aura_cache *a = cache_new(ctx, &config), *b = cache_new(ctx, &config), *got, *both[2] = {a, b};
    aura_seq x = seq_new(a), y = seq_new(b);
    char path[256];
    int as = 0, bs = 0;
    char command[640];
    grow(a, x, &t, 3000, 0), grow(b, y, &t, 1200, 5);
    snprintf(path, sizeof path, "%s", file_path("killed"));
    double seconds = seconds_of(save_by_turns, both, 0);
    for (int round = 0; round < 120; round++) {
        kill_a_writer(save_by_turns, both, round, seconds);
        got = NULL;
        EXPECT(!aura_cache_load(ctx, path, NULL, &got), "round %d: %s", round, aura_last_error());
        if (!got)
            break;
        uint64_t tokens = seq_tokens(got, 1);
        EXPECT(tokens == 3000 || tokens == 1200, "round %d: %llu tokens", round, (unsigned long long)tokens);
        as += tokens == 3000, bs += tokens == 1200;
        if (round % 20 == 0)
            expect_same(tokens == 3000 ? a : b, tokens == 3000 ? x : y, got, 1, "after a kill");
        aura_cache_destroy(got);
    }
    EXPECT(as > 3 && bs > 3, "%d times one, %d times the other: nobody was killed in between", as, bs);
    aura_cache_destroy(a), aura_cache_destroy(b), text_free(&t);
    snprintf(command, sizeof command, "rm -f '%s'*", path);
    EXPECT(!system(command), "rm");
}

static void full_disk_keeps_the_old_file(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, 64, 64, 2);
    struct text t = text_new(&config, 900);
    aura_cache *a = cache_new(ctx, &config);
    aura_seq seq = seq_new(a);
    const char *path = file_path("full");
    struct rlimit before, limit;
    grow(a, seq, &t, 100, 0);
    EXPECT(!aura_cache_save(a, path, NULL), "%s", aura_last_error());
    struct bytes old = read_file(path);
    grow(a, seq, &t, 2000, 0);
    getrlimit(RLIMIT_FSIZE, &before);
    limit = before;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (rlim_t most = 0; most < 300000; most += 40001) {
        limit.rlim_cur = most;
        setrlimit(RLIMIT_FSIZE, &limit);
        aura_status status = aura_cache_save(a, path, NULL);
        setrlimit(RLIMIT_FSIZE, &before);
        EXPECT(status == AURA_IO, "%d bytes: %s", (int)most, aura_status_text(status));
        struct bytes now = read_file(path);
        EXPECT(same_bytes(old, now), "%d bytes: the old file is gone", (int)most);
        free(now.data);
    }
    signal(SIGXFSZ, handler);
    unlink(path);
    EXPECT(!rmdir(file_dir) && files_begin(), "something was left behind");
    aura_cache_destroy(a);
    free(old.data), text_free(&t);
}

/* ---- for ever ---------------------------------------------------------------------------------------------------------- */

/* A cache with everything: packed and plain kinds, a balance, a fork, pinned and open tokens. Its numbers are multiples of 1/16,
 * so that they are the same with every compiler and on every machine. */
static aura_cache *golden_cache(aura_seq seq[2])
{
    float *balance = some_balance(1, 64);
    aura_config config = small_config(balance);
    config.format.k = AURA_KIND_B3;
    struct tensor k = tensor_new(300, 1, 64, AURA_F32, DENSE), v = tensor_new(300, 1, 64, AURA_F32, DENSE);
    for (int i = 0; i < 300 * 64; i++) {
        ((float *)k.view.data)[i] = (float)((i * 37 + i / 64 * 11) % 101 - 50) / 16;
        ((float *)v.view.data)[i] = (float)((i * 53 + i / 64 * 29) % 67 - 33) / 16;
    }
    aura_cache *cache = cache_new(ctx, &config);
    seq[0] = seq_new(cache);
    EXPECT(!append(cache, seq[0], &k, &v, 0, 282), "%s", aura_last_error());
    EXPECT(!aura_seq_fork(cache, seq[0], 200, &seq[1]) && !append(cache, seq[1], &k, &v, 30, 9), "%s", aura_last_error());
    tensor_free(&k), tensor_free(&v), free(balance);
    return cache;
}

/* Loads one golden file, whose sequences have these numbers; saved again it is always the newer golden file. */
static void expect_golden(const char *name, const aura_seq number[2])
{
    aura_seq seq[2];
    aura_cache *want = golden_cache(seq), *got = NULL;
    EXPECT(!aura_cache_load(ctx, golden_path(name), NULL, &got), "%s: %s", name, aura_last_error());
    if (got) {
        expect_same(want, seq[0], got, number[0], name);
        expect_same(want, seq[1], got, number[1], name);
        for (int i = 0; i < 2; i++) {
            EXPECT(!aura_cache_save(i ? got : want, file_path("again"), NULL), "%s", aura_last_error());
            struct bytes a = read_file(golden_path("snapshot-canonical.aura")), b = read_file(file_path("again"));
            EXPECT(same_bytes(a, b), "%s: a save of the %s cache writes other bytes", name, i ? "loaded" : "same");
            free(a.data), free(b.data);
        }
    }
    aura_cache_destroy(want), aura_cache_destroy(got);
    unlink(file_path("again"));
}

static void golden_file(void)
{
    expect_golden("snapshot-canonical.aura", (const aura_seq[]){1, 2});
}

/* Made by version 0.4: it has the ids of the sequences and the number of the last one. */
static void golden_file_with_ids(void)
{
    expect_golden("snapshot.aura", (const aura_seq[]){1u << 21 | 1, 2u << 21 | 2});
}

int main(int argc, char **argv)
{
    if (aura_ctx_create(NULL, &ctx) || !files_begin())
        return 1;
    if (argc > 2 && !strcmp(argv[1], "--write")) {
        aura_seq seq[2];
        return aura_cache_save(golden_cache(seq), argv[2], NULL);
    }
    RUN(every_flipped_bit_is_noticed);
    RUN(every_other_length_is_noticed);
    RUN(flipped_bits_of_a_larger_file);
    RUN(config_that_is_not_that_of_the_bytes);
    RUN(lengths_and_pages_that_cannot_be);
    RUN(slots_that_are_not_there);
    RUN(small_files_ask_for_little);
    RUN(tokens_open_for_too_long);
    RUN(numbers_that_cannot_be);
    RUN(other_versions);
    RUN(killed_writer_leaves_a_whole_file);
    RUN(full_disk_keeps_the_old_file);
    RUN(golden_file);
    RUN(golden_file_with_ids);
    aura_ctx_destroy(ctx);
    files_end();
    return test_result();
}
