/* Profiles: loading gives what was saved, and refuses everything else. Most tests that concern every file of the library are
 * here, because a profile is small. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "file_tools.h"

#include <errno.h>
#include <math.h>
#include <sys/resource.h>

#include "../../include/aura_file.h"
#include "../cache/cache_tools.h"

enum { LAYERS = 4 };

/* Three layers of different shapes, the third without factors. */
static aura_profile *some_profile(aura_ctx *in, float first)
{
    aura_profile *p = NULL;
    float *a = some_balance(2, 64), *b = some_balance(1, 80);
    a[0] = first;
    EXPECT(!aura_profile_create(in, LAYERS, &p), "%s", aura_last_error());
    EXPECT(!aura_profile_set(p, 0, 2, 64, a) && !aura_profile_set(p, 1, 1, 80, b) && !aura_profile_set(p, 3, 1, 64, a),
           "%s", aura_last_error());
    free(a), free(b);
    return p;
}

static int same_profile(const aura_profile *a, const aura_profile *b)
{
    for (uint32_t i = 0; i < LAYERS; i++) {
        aura_profile_layer x = AURA_PROFILE_LAYER_INIT, y = AURA_PROFILE_LAYER_INIT;
        if (aura_profile_get(a, i, &x) || aura_profile_get(b, i, &y) || x.layers != y.layers || x.kv_heads != y.kv_heads ||
            x.k_dim != y.k_dim || !x.balance != !y.balance || (x.balance && memcmp(x.balance, y.balance, x.kv_heads * x.k_dim * 4)))
            return 0;
    }
    return 1;
}

static void what_is_saved_is_loaded(void)
{
    const char *path = file_path("profile");
    aura_profile *p = some_profile(ctx, 2), *q = NULL;
    aura_profile_layer info = AURA_PROFILE_LAYER_INIT;
    EXPECT(!aura_profile_save(p, path) && !aura_profile_load(ctx, path, &q), "%s", aura_last_error());
    EXPECT(same_profile(p, q), "another profile");
    EXPECT(!aura_profile_get(q, 0, &info) && info.layers == LAYERS && info.kv_heads == 2 && info.k_dim == 64 &&
           info.balance[0] == 2, "layer 0");
    EXPECT(!aura_profile_get(q, 2, &info) && !info.balance && info.kv_heads == 0, "a layer without factors has some");
    EXPECT(!aura_profile_set(q, 0, 0, 0, NULL) && !aura_profile_get(q, 0, &info) && !info.balance, "forgotten");
    EXPECT(!aura_profile_save(q, path), "over the old one: %s", aura_last_error());
    aura_profile_destroy(q), q = NULL;
    EXPECT(!aura_profile_load(ctx, path, &q) && !aura_profile_get(q, 0, &info) && !info.balance, "the new one");
    aura_profile_destroy(p), aura_profile_destroy(q), aura_profile_destroy(NULL);
    unlink(path);
}

/* ---- metrics ---- */

enum { TRIANGLE = 64 * 65 / 2, V_TRIANGLE = 80 * 81 / 2 };

/* One layer that has everything. */
static struct bytes file_of_metrics(void)
{
    static float k_metric[2 * TRIANGLE], v_metric[2 * V_TRIANGLE];
    aura_profile *p = NULL, *q = NULL;
    aura_profile_layer with = AURA_PROFILE_LAYER_INIT, got = AURA_PROFILE_LAYER_INIT;
    float *balance = some_balance(2, 64), *v_balance = some_balance(2, 80);
    const char *path = file_path("metrics");
    for (size_t h = 0; h < 2; h++)
        for (size_t d = 0; d < 80; d++) {
            v_metric[h * V_TRIANGLE + d * (d + 1) / 2 + d] = 1 + (float)d;
            if (d < 64)
                k_metric[h * TRIANGLE + d * (d + 1) / 2 + d] = 2 + (float)h;
        }
    with.kv_heads = 2, with.k_dim = 64, with.v_dim = 80;
    with.balance = balance, with.v_balance = v_balance, with.k_metric = k_metric, with.v_metric = v_metric;
    EXPECT(!aura_profile_create(ctx, 1, &p) && !aura_profile_put(p, 0, &with) && !aura_profile_save(p, path) &&
           !aura_profile_load(ctx, path, &q) && !aura_profile_get(q, 0, &got), "%s", aura_last_error());
    EXPECT(got.kv_heads == 2 && got.k_dim == 64 && got.v_dim == 80 && got.balance && !memcmp(got.balance, balance, 2 * 64 * 4) &&
           got.v_balance && !memcmp(got.v_balance, v_balance, 2 * 80 * 4) && got.k_metric &&
           !memcmp(got.k_metric, k_metric, sizeof k_metric) && got.v_metric && !memcmp(got.v_metric, v_metric, sizeof v_metric),
           "what was loaded is not what was saved");
    v_metric[V_TRIANGLE] = -1;
    EXPECT(aura_profile_put(q, 0, &with) == AURA_BAD_VALUE && strstr(aura_last_error(), "v_metric of KV head 1"), "%s",
           aura_last_error());
    with.v_dim = 513;
    EXPECT(aura_profile_put(q, 0, &with) == AURA_UNSUPPORTED && !aura_profile_get(q, 0, &got) && got.v_dim == 80, "a dim of 513");
    memset(v_metric, 0, sizeof v_metric);
    aura_profile_destroy(p), aura_profile_destroy(q);
    free(balance), free(v_balance);
    struct bytes file = read_file(path);
    unlink(path);
    return file;
}

static aura_status load_bytes(struct bytes bytes);

/* Every section of numbers that make no sense, with checksums that are right. */
static void made_up_metrics(void)
{
    static const struct {
        uint32_t type;
        size_t at; /* the float after the head of the section */
        float with;
    } bad[] = {{AURA_SECTION_V_BALANCE, 7, 9},  {AURA_SECTION_V_BALANCE, 0, NAN},         {AURA_SECTION_K_METRIC, 0, -1},
               {AURA_SECTION_K_METRIC, 1, 100}, {AURA_SECTION_K_METRIC, 2, NAN},
               {AURA_SECTION_V_METRIC, V_TRIANGLE, INFINITY},
               {AURA_SECTION_V_METRIC, V_TRIANGLE + 4, 1e30f}};
    struct bytes file = file_of_metrics();
    EXPECT(load_bytes(file) == AURA_OK, "%s", aura_last_error());
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        float *at = (float *)(void *)(file.data + section_of(file, 0, bad[i].type)->offset + 64) + bad[i].at, was = *at;
        *at = bad[i].with, seal(file);
        EXPECT(load_bytes(file) == AURA_BAD_FILE, "section %u, %g: %s", bad[i].type, (double)bad[i].with, aura_last_error());
        *at = was, seal(file);
    }
    for (uint32_t type = AURA_SECTION_V_BALANCE; type <= AURA_SECTION_V_METRIC; type++)
        for (int field = 0; field < 2; field++) { /* other heads, and another dim, than the other sections say */
            struct aura_file_section *s = section_of(file, 0, type);
            struct aura_file_numbers *n = (struct aura_file_numbers *)(void *)(file.data + s->offset), was = *n;
            const uint64_t bytes = s->bytes;
            *(field ? &n->dim : &n->kv_heads) = field ? 64 + 16 * (n->dim == 64) : 1;
            seal(file);
            EXPECT(load_bytes(file) == AURA_BAD_FILE, "section %u, field %d", type, field);
            s->bytes = bytes, *n = was, seal(file);
        }
    EXPECT(load_bytes(file) == AURA_OK, "%s", aura_last_error());
    free(file.data);
}

/* Formats of some layers: saved, loaded, listed, forgotten, and refused where there is no such cache. A library that does not know
 * the section leaves it out: its flag says so. */
static void formats_of_layers(void)
{
    const char *path = file_path("formats");
    aura_profile *p = some_profile(ctx, 2), *q = NULL;
    aura_profile_layer with = AURA_PROFILE_LAYER_INIT, got = AURA_PROFILE_LAYER_INIT;
    aura_listing *listing = NULL;
    aura_listing_layer listed = AURA_LISTING_LAYER_INIT;
    with.format = (aura_format){AURA_KIND_B3, AURA_KIND_BF16};
    EXPECT(!aura_profile_put(p, 2, &with) && !aura_profile_get(p, 0, &got), "%s", aura_last_error());
    with = got, with.format = (aura_format){AURA_KIND_B8, AURA_KIND_B2};
    EXPECT(!aura_profile_put(p, 0, &with) && !aura_profile_save(p, path) && !aura_profile_load(ctx, path, &q), "%s",
           aura_last_error());
    EXPECT(same_profile(p, q), "the numbers are others");
    EXPECT(!aura_profile_get(q, 0, &got) && got.format.k == AURA_KIND_B8 && got.format.v == AURA_KIND_B2 && got.balance, "layer 0");
    EXPECT(!aura_profile_get(q, 2, &got) && got.format.k == AURA_KIND_B3 && got.format.v == AURA_KIND_BF16 && !got.balance,
           "layer 2");
    EXPECT(!aura_profile_get(q, 1, &got) && !got.format.k && !got.format.v, "layer 1 has one");
    EXPECT(!aura_list_file(ctx, path, &listing) && !aura_listing_get_layer(listing, 2, &listed) &&
           listed.config.format.k == AURA_KIND_B3 && !aura_listing_get_layer(listing, 1, &listed) && !listed.config.format.k,
           "listed");
    with = (aura_profile_layer)AURA_PROFILE_LAYER_INIT, with.format.k = AURA_KIND_B4;
    EXPECT(aura_profile_put(q, 0, &with) == AURA_UNSUPPORTED, "one side only");
    with.format.v = (aura_kind)7;
    EXPECT(aura_profile_put(q, 0, &with) == AURA_UNSUPPORTED && !aura_profile_get(q, 0, &got) && got.format.v == AURA_KIND_B2,
           "a kind that is none");
    EXPECT(!aura_profile_set(q, 0, 0, 0, NULL) && !aura_profile_get(q, 0, &got) && !got.format.k, "forgotten");
    struct bytes file = read_file(path);
    unlink(path);
    struct aura_file_section *s = section_of(file, 2, AURA_SECTION_FORMAT);
    uint32_t *kinds = (uint32_t *)(void *)(file.data + s->offset), was = kinds[1];
    EXPECT(s->flags == AURA_SECTION_OPTIONAL, "an older library would refuse it");
    kinds[1] = 0, seal(file);
    EXPECT(load_bytes(file) == AURA_BAD_FILE, "a side without a kind");
    kinds[1] = 0x80000007u, seal(file);
    EXPECT(load_bytes(file) == AURA_UNSUPPORTED, "a kind of a later library");
    kinds[1] = was, s->bytes = 4, seal(file);
    EXPECT(load_bytes(file) == AURA_BAD_FILE, "half a format");
    free(file.data);
    aura_listing_destroy(listing);
    aura_profile_destroy(p), aura_profile_destroy(q);
}

/* A relative path without a directory in it. */
static void relative_paths(void)
{
    aura_profile *p = some_profile(ctx, 2), *q = NULL;
    char here[512];
    EXPECT(getcwd(here, sizeof here) && !chdir(file_dir), "cannot change the directory");
    EXPECT(!aura_profile_save(p, "plain-name") && !aura_profile_load(ctx, "./plain-name", &q) && same_profile(p, q), "%s",
           aura_last_error());
    EXPECT(!unlink("plain-name") && !chdir(here), "cannot change back");
    aura_profile_destroy(p), aura_profile_destroy(q);
}

static void misuse(void)
{
    aura_profile *p = some_profile(ctx, 2), *q = NULL;
    aura_profile_layer info = AURA_PROFILE_LAYER_INIT;
    float x[64];
    for (int i = 0; i < 64; i++)
        x[i] = 1;
    EXPECT(aura_profile_create(NULL, 1, &q) == AURA_BAD_ARGUMENT && aura_profile_create(ctx, 1, NULL) == AURA_BAD_ARGUMENT,
           "NULLs");
    EXPECT(aura_profile_create(ctx, 0, &q) == AURA_BAD_ARGUMENT &&
           aura_profile_create(ctx, 65537, &q) == AURA_BAD_ARGUMENT && !q, "layers");
    EXPECT(aura_profile_set(NULL, 0, 1, 64, x) == AURA_BAD_ARGUMENT &&
           aura_profile_set(p, LAYERS, 1, 64, x) == AURA_BAD_ARGUMENT, "layer");
    EXPECT(aura_profile_set(p, 0, 0, 64, x) == AURA_BAD_ARGUMENT && aura_profile_set(p, 0, 1, 513, x) == AURA_UNSUPPORTED, "shape");
    float bad[] = {0, 0.1249f, 8.01f, -1, NAN, INFINITY};
    for (int i = 0; i < 6; i++) {
        x[63] = bad[i];
        EXPECT(aura_profile_set(p, 0, 1, 64, x) == AURA_BAD_VALUE, "a factor of %g", (double)bad[i]);
    }
    EXPECT(aura_profile_get(p, LAYERS, &info) == AURA_BAD_ARGUMENT && aura_profile_get(p, 0, NULL) == AURA_BAD_ARGUMENT, "get");
    info.size++;
    EXPECT(aura_profile_get(p, 0, &info) == AURA_BAD_ARGUMENT, "an unknown size");
    EXPECT(aura_profile_save(NULL, "x") == AURA_BAD_ARGUMENT && aura_profile_save(p, NULL) == AURA_BAD_ARGUMENT &&
           aura_profile_save(p, "") == AURA_BAD_ARGUMENT, "save");
    EXPECT(aura_profile_load(ctx, NULL, &q) == AURA_BAD_ARGUMENT && aura_profile_load(ctx, "x", NULL) == AURA_BAD_ARGUMENT, "load");
    info.size = sizeof info;
    EXPECT(!aura_profile_get(p, 0, &info) && info.kv_heads == 2 && info.balance[0] == 2, "a refused call changed something");
    aura_profile_destroy(p);
}

/* The system refuses a file: the message says why. */
static void system_errors(void)
{
    aura_profile *p = some_profile(ctx, 2), *q = NULL;
    const char *fifo = file_path("fifo");
    EXPECT(aura_profile_load(ctx, file_path("none"), &q) == AURA_IO && strstr(aura_last_error(), strerror(ENOENT)), "%s",
           aura_last_error());
    EXPECT(aura_profile_load(ctx, file_dir, &q) == AURA_IO, "a directory: %s", aura_last_error());
    EXPECT(!mkfifo(fifo, 0600) && aura_profile_load(ctx, fifo, &q) == AURA_IO, "a pipe: %s", aura_last_error());
    EXPECT(aura_profile_save(p, file_path("no/such/place")) == AURA_IO && strstr(aura_last_error(), strerror(ENOENT)),
           "%s", aura_last_error());
    EXPECT(aura_profile_save(p, file_dir) == AURA_IO, "over a directory: %s", aura_last_error());
    EXPECT(!q, "a profile of nothing");
    unlink(fifo);
    aura_profile_destroy(p);
}

/* ---- damage ---- */

static int refused(void *user, const char *path, const char *what)
{
    aura_profile *p = NULL;
    aura_status status = aura_profile_load(ctx, path, &p);
    (void)user, (void)what;
    return (status == AURA_BAD_FILE || status == AURA_UNSUPPORTED) && !p;
}

static struct bytes good_file(void)
{
    aura_profile *p = some_profile(ctx, 2);
    EXPECT(!aura_profile_save(p, file_path("good")), "%s", aura_last_error());
    aura_profile_destroy(p);
    struct bytes good = read_file(file_path("good"));
    unlink(file_path("good"));
    return good;
}

static void every_flipped_bit_is_noticed(void)
{
    struct bytes good = good_file();
    EXPECT(good.size > 1000 && good.size % 64 == 0, "%zu bytes", good.size);
    expect_flips_refused(good, small_run() ? 3 : 1, refused, NULL);
    free(good.data);
}

static void every_other_length_is_noticed(void)
{
    struct bytes good = good_file();
    expect_lengths_refused(good, 1, refused, NULL);
    free(good.data);
}

/* ---- versions and headers made up ---- */

static aura_status load_bytes(struct bytes file)
{
    aura_profile *p = NULL;
    write_file(file_path("made"), file.data, file.size);
    aura_status status = aura_profile_load(ctx, file_path("made"), &p);
    unlink(file_path("made"));
    aura_profile_destroy(p);
    return status;
}

static void other_versions(void)
{
    struct bytes good = good_file();
    struct aura_file_header *h = header_of(good);
    h->major = 2, seal(good);
    EXPECT(load_bytes(good) == AURA_UNSUPPORTED && strstr(aura_last_error(), "version 2.0"), "%s", aura_last_error());
    h->major = 1, h->minor = 9, seal(good);
    EXPECT(load_bytes(good) == AURA_OK, "a newer minor version: %s", aura_last_error());
    h->minor = 0, h->byte_order = 0x04030201, seal(good);
    EXPECT(load_bytes(good) == AURA_UNSUPPORTED && strstr(aura_last_error(), "byte order"), "%s", aura_last_error());
    h->byte_order = 0x01020304, h->kind = AURA_FILE_SNAPSHOT, seal(good);
    EXPECT(load_bytes(good) == AURA_BAD_FILE && strstr(aura_last_error(), "not a profile"), "%s", aura_last_error());
    h->kind = AURA_FILE_PROFILE, seal(good);
    EXPECT(load_bytes(good) == AURA_OK, "%s", aura_last_error());
    struct bytes more = with_section(good, LAYERS - 1, 77, AURA_SECTION_OPTIONAL, 100);
    EXPECT(load_bytes(more) == AURA_OK, "an optional section that nobody knows: %s", aura_last_error());
    free(more.data);
    more = with_section(good, LAYERS - 1, 77, 0, 100);
    EXPECT(load_bytes(more) == AURA_UNSUPPORTED && strstr(aura_last_error(), "type 77"), "%s", aura_last_error());
    free(more.data), free(good.data);
}

/* Headers with right checksums that make no sense. */
static void made_up_headers(void)
{
    struct bytes good = good_file(), bad = {malloc(good.size), good.size};
    const uint64_t sizes[] = {0, 1, 63, good.size, good.size + 1, UINT32_MAX, UINT64_MAX, UINT64_MAX - 63, UINT64_MAX / 2,
                              (uint64_t)1 << 63};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int field = 0; field < 6; field++) {
            memcpy(bad.data, good.data, good.size);
            struct aura_file_section *s = section_of(bad, 1, AURA_SECTION_BALANCE);
            struct aura_file_numbers *b = (struct aura_file_numbers *)(void *)(bad.data + s->offset);
            uint64_t old = field == 0 ? s->offset : field == 1 ? s->bytes : header_of(bad)->bytes;
            if (field == 0)
                s->offset = sizes[i];
            else if (field == 1)
                s->bytes = sizes[i];
            else if (field == 2)
                header_of(bad)->bytes = sizes[i];
            else if (field == 3)
                header_of(bad)->sections = (uint32_t)sizes[i] ? (uint32_t)sizes[i] : 77;
            else if (field == 4)
                b->kv_heads = (uint32_t)sizes[i] == 1 ? 2 : (uint32_t)sizes[i];
            else
                b->dim = (uint32_t)sizes[i];
            if (field < 3 && old == sizes[i])
                continue;
            seal(bad);
            aura_status status = load_bytes(bad);
            EXPECT(status == AURA_BAD_FILE || status == AURA_UNSUPPORTED, "field %d = %llu: %s", field,
                   (unsigned long long)sizes[i], aura_status_text(status));
        }
    memcpy(bad.data, good.data, good.size);
    uint32_t *layers = (uint32_t *)(void *)(bad.data + section_of(bad, 0, AURA_SECTION_FILE)->offset);
    const uint32_t counts[] = {0, LAYERS - 1, 65537, UINT32_MAX};
    for (int i = 0; i < 4; i++) {
        *layers = counts[i], seal(bad);
        EXPECT(load_bytes(bad) == AURA_BAD_FILE, "%u layers", counts[i]);
    }
    *layers = LAYERS;
    float *factor = (float *)(void *)(bad.data + section_of(bad, 3, AURA_SECTION_BALANCE)->offset + 64);
    *factor = 9, seal(bad);
    EXPECT(load_bytes(bad) == AURA_BAD_FILE, "a factor of 9");
    *factor = 1, seal(bad);
    struct aura_file_section *s = section_of(bad, 1, AURA_SECTION_BALANCE);
    s->layer = 0, seal(bad);
    EXPECT(load_bytes(bad) == AURA_BAD_FILE, "a section twice");
    s->layer = 1, seal(bad);
    EXPECT(load_bytes(bad) == AURA_OK, "%s", aura_last_error());
    free(good.data), free(bad.data);
}

/* Files with bytes added at the end, or padding cut off, and a header that agrees. */
static void made_up_ends(void)
{
    struct bytes good = good_file(), longer = {calloc(1, good.size + 64), good.size + 64};
    struct bytes more = with_section(good, LAYERS - 1, 77, AURA_SECTION_OPTIONAL, 100), shorter = more; /* 28 bytes of padding */
    memcpy(longer.data, good.data, good.size);
    header_of(longer)->bytes = longer.size, seal(longer);
    EXPECT(load_bytes(longer) == AURA_BAD_FILE, "64 bytes after the last section");
    EXPECT(load_bytes(more) == AURA_OK, "%s", aura_last_error());
    for (size_t cut = 1; cut <= 28; cut++) {
        shorter.size = more.size - cut, header_of(more)->bytes = shorter.size;
        seal(shorter);
        EXPECT(load_bytes(shorter) == AURA_BAD_FILE, "%zu bytes of padding are missing", cut);
    }
    free(good.data), free(longer.data), free(more.data);
}

/* ---- saving ---- */

/* The number of names in our directory. */
static int files_there(void)
{
    char command[128];
    int n = -1;
    snprintf(command, sizeof command, "ls -A %s | wc -l", file_dir);
    FILE *pipe = popen(command, "r");
    EXPECT(pipe && fscanf(pipe, "%d", &n) == 1, "cannot look into %s", file_dir);
    pclose(pipe);
    return n;
}

/* A disk that is full after a given number of bytes. */
static void full_disk_keeps_the_old_file(void)
{
    const char *path = file_path("kept");
    aura_profile *old = some_profile(ctx, 2), *new = some_profile(ctx, 3), *got = NULL;
    struct rlimit before, limit;
    EXPECT(!aura_profile_save(old, path), "%s", aura_last_error());
    getrlimit(RLIMIT_FSIZE, &before);
    limit = before;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (rlim_t most = 0; most < 1200; most += 100) {
        limit.rlim_cur = most;
        setrlimit(RLIMIT_FSIZE, &limit);
        aura_status status = aura_profile_save(new, path);
        setrlimit(RLIMIT_FSIZE, &before);
        EXPECT(status == AURA_IO && strstr(aura_last_error(), strerror(EFBIG)), "%d bytes: %s", (int)most, aura_last_error());
        EXPECT(!aura_profile_load(ctx, path, &got) && same_profile(got, old), "%d bytes: the old file is gone", (int)most);
        aura_profile_destroy(got), got = NULL;
        EXPECT(files_there() == 1, "something was left behind");
    }
    signal(SIGXFSZ, handler);
    EXPECT(!aura_profile_save(new, path) && !aura_profile_load(ctx, path, &got) && same_profile(got, new), "%s", aura_last_error());
    aura_profile_destroy(old), aura_profile_destroy(new), aura_profile_destroy(got);
    unlink(path);
}

static void save_by_turns(void *user, int i)
{
    aura_profile **two = user;
    aura_profile_save(two[i % 2], file_path("killed"));
}

/* A writer that is killed at any moment leaves the old file or the new one. A temporary file that it leaves does no harm. */
static void killed_writer_leaves_a_whole_file(void)
{
    char path[256];
    snprintf(path, sizeof path, "%s", file_path("killed"));
    aura_profile *one = some_profile(ctx, 2), *two = some_profile(ctx, 3), *got = NULL, *both[2] = {one, two};
    int ones = 0, twos = 0, left;
    char command[640];
    double seconds = seconds_of(save_by_turns, both, 0);
    for (int round = 0; round < 150; round++) {
        kill_a_writer(save_by_turns, both, round, seconds);
        EXPECT(!aura_profile_load(ctx, path, &got), "round %d: %s", round, aura_last_error());
        EXPECT(same_profile(got, one) || same_profile(got, two), "round %d: neither", round);
        ones += same_profile(got, one), twos += same_profile(got, two);
        aura_profile_destroy(got), got = NULL;
    }
    EXPECT(ones > 5 && twos > 5, "%d times one, %d times the other: nobody was killed in between", ones, twos);
    snprintf(command, sizeof command, "touch '%s.tmp-%ld-0' '%s.tmp-%ld-1'", path, (long)getpid(), path, (long)getpid());
    EXPECT(!system(command), "touch"); /* as if a writer with our process number had been killed */
    left = files_there();
    EXPECT(!aura_profile_save(two, path) && !aura_profile_load(ctx, path, &got) && same_profile(got, two), "%s", aura_last_error());
    EXPECT(files_there() == left, "%d files, %d before", files_there(), left);
    aura_profile_destroy(one), aura_profile_destroy(two), aura_profile_destroy(got);
    snprintf(command, sizeof command, "rm -f '%s'*", path);
    EXPECT(!system(command), "rm");
}

/* ---- for ever ---- */

static void golden_file(void)
{
    aura_profile *want = some_profile(ctx, 2), *got = NULL;
    EXPECT(!aura_profile_load(ctx, golden_path("profile.aura"), &got), "%s", aura_last_error());
    EXPECT(got && same_profile(got, want), "not what was saved");
    EXPECT(!aura_profile_save(want, file_path("again")), "%s", aura_last_error());
    struct bytes a = read_file(golden_path("profile.aura")), b = read_file(file_path("again"));
    EXPECT(same_bytes(a, b), "a save writes other bytes");
    free(a.data), free(b.data);
    aura_profile_destroy(want), aura_profile_destroy(got);
    unlink(file_path("again"));
}

int main(int argc, char **argv)
{
    if (aura_ctx_create(NULL, &ctx) || !files_begin())
        return 1;
    if (argc > 2 && !strcmp(argv[1], "--write")) {
        aura_profile *p = some_profile(ctx, 2);
        return aura_profile_save(p, argv[2]);
    }
    RUN(what_is_saved_is_loaded);
    RUN(relative_paths);
    RUN(misuse);
    RUN(system_errors);
    RUN(every_flipped_bit_is_noticed);
    RUN(every_other_length_is_noticed);
    RUN(other_versions);
    RUN(made_up_headers);
    RUN(made_up_metrics);
    RUN(formats_of_layers);
    RUN(made_up_ends);
    RUN(full_disk_keeps_the_old_file);
    RUN(killed_writer_leaves_a_whole_file);
    RUN(golden_file);
    aura_ctx_destroy(ctx);
    files_end();
    return test_result();
}
