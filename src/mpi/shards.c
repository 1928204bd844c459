/* Caches over many processes in files. A shard is a snapshot of the pages of one rank; the manifest names the shards of all ranks,
 * and is replaced when all of them are on disk. Loading goes in steps, after each of which all ranks agree: the manifest; shards,
 * each read and checked by one rank, in turn; lists, which all ranks get; pages, each of which goes to the rank that has it from
 * now on. */
#include "../base/exact.h"
#ifdef AURA_HAVE_MPI
#define _POSIX_C_SOURCE 200809L /* clock_gettime, getpid */
#include "cluster.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../file/crc32c.h"
#include "../file/snapshot.h"

/* The note of a manifest; doc/snapshot.md draws it. */
struct manifest {
    uint64_t id;             /* of the names of its shards */
    uint32_t ranks, groups;  /* that shared pages; of heads. There are ranks * groups shards */
    uint32_t next_shift;     /* of the next sequence */
    uint32_t zero;
};

/* What it says of a shard: the bytes of its file, and the checksum in its header. */
struct shard_entry {
    uint64_t bytes;
    uint32_t crc, zero;
};

enum { MOST_SHARDS = 1 << 16 };

/* Its name. Fails where that is too long. */
static int shard_path(char path[PATH_MAX], const char *base, uint64_t id, uint32_t shard)
{
    const int n = snprintf(path, PATH_MAX, "%s.%016llx-%u", base, (unsigned long long)id, shard);
    return n > 0 && n < PATH_MAX;
}

/* ---- the manifest -------------------------------------------------------------------------------------------------- */

struct manifest_content {
    const struct manifest *m;
    const struct shard_entry *entry;
};

static void write_manifest_content(struct aura_writer *w, const void *what)
{
    const struct manifest_content *c = what;
    struct aura_file_content content = {1, 0};
    aura_writer_section(w, 0, AURA_SECTION_FILE, 0);
    aura_writer_put(w, &content, sizeof content);
    aura_writer_section(w, 0, AURA_SECTION_NOTE, AURA_SECTION_OPTIONAL);
    aura_writer_put(w, c->m, sizeof *c->m);
    aura_writer_put(w, c->entry, (size_t)c->m->ranks * c->m->groups * sizeof *c->entry);
}

static aura_status write_manifest(struct aura_call call, const char *path, const struct manifest *m,
                                  const struct shard_entry *entry)
{
    const struct manifest_content content = {m, entry};
    const struct aura_file_output to = aura_to_path(path);
    const uint64_t note = sizeof *m + (uint64_t)m->ranks * m->groups * sizeof *entry;
    const uint64_t bytes = aura_file_front(2) + aura_file_padded(sizeof(struct aura_file_content)) + aura_file_padded(note);
    const struct aura_file_plan plan = {AURA_FILE_MANIFEST, 2, bytes, write_manifest_content, &content};
    return aura_write_file(call, &to, &plan);
}

/* Reads a manifest; *entry is for give_entries(). */
static aura_status read_manifest(struct aura_call call, const char *path, struct manifest *m, struct shard_entry **entry)
{
    const struct aura_file_input from = aura_from_path(path);
    struct aura_reader r;
    uint64_t bytes = 0;
    void *memory = NULL;
    aura_status status = aura_reader_open(&r, call, &from, AURA_FILE_MANIFEST);
    if (status)
        return status;
    const uint8_t *note = aura_reader_find(&r, 0, AURA_SECTION_NOTE, &bytes);
    if (note && bytes >= sizeof *m)
        memcpy(m, note, sizeof *m);
    if (!note || bytes < sizeof *m || !m->ranks || !m->groups || m->ranks > MOST_SHARDS / m->groups ||
        bytes - sizeof *m != (uint64_t)m->ranks * m->groups * sizeof **entry)
        status = aura_reader_bad(&r, "it does not name its shards");
    else if (!(status = aura_take_memory(call, (size_t)(bytes - sizeof *m), &memory)))
        *entry = memcpy(memory, note + sizeof *m, (size_t)(bytes - sizeof *m));
    aura_reader_close(&r);
    return status;
}

static void give_entries(aura_ctx *ctx, const struct manifest *m, struct shard_entry *entry)
{
    aura_give_memory(ctx, entry, (size_t)m->ranks * m->groups * sizeof *entry);
}

/* ---- saving -------------------------------------------------------------------------------------------------------- */

/* One that no older shard has in its name. */
static uint64_t new_id(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec + ((uint64_t)getpid() << 48);
}

static aura_status describe_shard(struct aura_call call, const char *path, struct shard_entry *entry)
{
    struct aura_file_header h;
    FILE *f = fopen(path, "rb");
    const size_t n = f ? fread(&h, 1, sizeof h, f) : 0;
    if (f)
        fclose(f);
    if (n != sizeof h)
        return aura_fail(call.ctx, AURA_IO, "%s: cannot read what was written: %s", call.name, path);
    entry->bytes = h.bytes;
    entry->crc = h.crc;
    return AURA_OK;
}

/* Takes away what an older manifest named; where that cannot be, it stays, and nobody reads it. */
static void remove_shards(const aura_mpi_cache *c, const char *base, const struct manifest *old)
{
    char path[PATH_MAX];
    for (uint32_t i = (uint32_t)c->rank; i < old->ranks * old->groups; i += (uint32_t)c->ranks)
        if (shard_path(path, base, old->id, i))
            unlink(path);
}

/* The manifest that is there, or none where it cannot be read. Rank 0 looks. */
static void find_old(aura_mpi_cache *c, struct aura_call call, const char *path, struct manifest *old)
{
    struct aura_ctx quiet = *c->ctx;
    struct shard_entry *entry = NULL;
    MPI_Request request;
    memset(old, 0, sizeof *old);
    quiet.log = NULL; /* a first save finds nothing */
    call.ctx = &quiet;
    if (c->rank == 0 && !access(path, F_OK) && read_manifest(call, path, old, &entry))
        memset(old, 0, sizeof *old);
    if (c->rank == 0)
        give_entries(c->ctx, old, entry);
    MPI_Ibcast(old, sizeof *old, MPI_BYTE, 0, c->all, &request);
    aura_cluster_wait(c, &request, 1, call.name);
}

aura_status aura_mpi_cache_save(aura_mpi_cache *cache, const char *path)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_mpi_cache_save"};
    char shard[PATH_MAX];
    struct shard_entry mine = {0, 0, 0}, *all = NULL;
    struct manifest m, old;
    void *memory = NULL;
    MPI_Request request;
    if (!cache)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "%s: cache is NULL", call.name);
    memset(&m, 0, sizeof m);
    m.id = new_id(), m.ranks = cache->local->ranks, m.groups = cache->groups, m.next_shift = cache->next_shift;
    MPI_Ibcast(&m.id, sizeof m.id, MPI_BYTE, 0, cache->all, &request);
    aura_cluster_wait(cache, &request, 1, call.name);
    aura_status status = aura_check_path(call, path);
    if (!status && !shard_path(shard, path, m.id, (uint32_t)cache->rank))
        status = aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: the path is too long", call.name);
    const int named = !status;
    const size_t bytes = (size_t)cache->ranks * sizeof *all;
    if (!status && !(status = aura_take_memory(call, bytes, &memory)) && !(status = aura_cache_save(cache->local, shard, NULL)))
        status = describe_shard(call, shard, &mine);
    all = memory;
    if (!(status = aura_cluster_agree(cache, call, status, 12, NULL))) {
        MPI_Iallgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, cache->all, &request);
        aura_cluster_wait(cache, &request, 1, call.name);
        find_old(cache, call, path, &old);
        status = cache->rank == 0 ? write_manifest(call, path, &m, all) : AURA_OK;
        if (!(status = aura_cluster_agree(cache, call, status, 13, NULL)))
            remove_shards(cache, path, &old);
    }
    if (status && named)
        unlink(shard);
    aura_give_memory(call.ctx, memory, bytes);
    return status;
}

/* ---- loading: shards ----------------------------------------------------------------------------------------------- */

/* A shard that this rank reads. */
struct shard {
    struct aura_reader reader;
    struct aura_loaded loaded;
    aura_config config;
    aura_cache shape;
    int open;
};

/* What all ranks know of a file. */
struct arriving {
    aura_mpi_cache *c;
    struct aura_call call;
    struct manifest m;
    struct aura_file_config config; /* of shard 0 */
    struct aura_file_seq *seq;      /* [config.seqs] */
    uint64_t *page;                 /* of all pages of all sequences: 1 + which page of its shard */
    size_t pages;
    struct shard *shard;            /* [n] i is number rank + i * ranks */
    size_t n;
    struct aura_sequence **to;      /* [config.seqs] */
    float *balance;                 /* of all heads, or NULL */
};

static uint32_t shards_of(const struct arriving *a)
{
    return a->m.ranks * a->m.groups;
}

/* That a shard is the one that the manifest means, and makes sense. */
static aura_status open_shard(struct arriving *a, const char *base, uint32_t number, const struct shard_entry *entry,
                              struct shard *s)
{
    static const aura_snapshot_options all = AURA_SNAPSHOT_OPTIONS_INIT;
    char path[PATH_MAX];
    if (!shard_path(path, base, a->m.id, number))
        return aura_fail(a->call.ctx, AURA_BAD_ARGUMENT, "%s: the path is too long", a->call.name);
    const struct aura_file_input from = aura_from_path(path);
    aura_status status = aura_reader_open(&s->reader, a->call, &from, AURA_FILE_SHARD);
    if (status)
        return status;
    s->open = 1;
    s->reader.path = base; /* `path` ends with this function */
    const struct aura_file_header *h = (const struct aura_file_header *)(const void *)s->reader.data;
    if (h->bytes != entry->bytes || h->crc != entry->crc)
        return aura_reader_bad(&s->reader, "a shard is not that of its manifest");
    if ((status = aura_loaded_init(&s->loaded, &s->reader, 0, &all, &s->config)))
        return status;
    const struct aura_file_config *f = s->loaded.config;
    if (f->ranks != a->m.ranks || f->rank != number / a->m.groups || f->slots || f->window)
        return aura_reader_bad(&s->reader, "a shard has the pages of another");
    if ((status = aura_blame_file(aura_cache_shape(a->call, a->c->ctx, &s->config, &s->shape))))
        return status;
    s->shape.rank = f->rank;
    s->shape.ranks = f->ranks;
    return aura_blame_file(aura_loaded_verify(&s->loaded, &s->shape));
}

static aura_status open_shards(struct arriving *a, const char *base, const struct shard_entry *entry)
{
    void *memory = NULL;
    for (uint32_t i = (uint32_t)a->c->rank; i < shards_of(a); i += (uint32_t)a->c->ranks)
        a->n++;
    aura_status status = aura_take_memory(a->call, a->n * sizeof *a->shard + 1, &memory);
    if (status) {
        a->n = 0;
        return status;
    }
    a->shard = memset(memory, 0, a->n * sizeof *a->shard + 1);
    for (size_t i = 0; !status && i < a->n; i++) {
        const uint32_t number = (uint32_t)a->c->rank + (uint32_t)i * (uint32_t)a->c->ranks;
        status = open_shard(a, base, number, &entry[number], &a->shard[i]);
    }
    return status;
}

static void bcast(struct arriving *a, void *data, size_t bytes)
{
    enum { PIECE = 1 << 24 };
    for (size_t at = 0; at < bytes; at += PIECE) {
        MPI_Request request;
        MPI_Ibcast((uint8_t *)data + at, (int)(bytes - at < PIECE ? bytes - at : PIECE), MPI_BYTE, 0, a->c->all, &request);
        aura_cluster_wait(a->c, &request, 1, a->call.name);
    }
}

/* ---- loading: lists ------------------------------------------------------------------------------------------------ */

/* That a shard is one of the same cache as shard 0. */
static aura_status check_same(const struct arriving *a, const struct shard *s)
{
    struct aura_file_config f = *s->loaded.config;
    f.rank = a->config.rank;
    f.entries = a->config.entries;
    f.pages = a->config.pages;
    int same = !memcmp(&f, &a->config, sizeof f);
    for (uint64_t i = 0; same && i < f.seqs; i++) {
        const struct aura_file_seq *x = &s->loaded.seq[i], *y = &a->seq[i];
        same = x->tokens == y->tokens && x->closed == y->closed && x->first == y->first && x->id == y->id;
    }
    return same ? AURA_OK : aura_reader_bad(&s->reader, "its shards are of different caches");
}

/* Writes down which page of its shard every page is, of the first group of heads: those that are the same are shared. */
static void list_pages(struct arriving *a, const struct shard *s)
{
    const struct aura_file_entry *entry = s->loaded.table;
    size_t at = 0;
    for (uint64_t i = 0; i < a->config.seqs; i++) {
        const size_t pages = aura_pages_of(a->seq[i].tokens);
        const uint32_t shift = (uint32_t)a->seq[i].first;
        for (uint64_t p = aura_next_page_of_rank(0, shift, s->shape.rank, s->shape.ranks); p < pages; p += s->shape.ranks)
            a->page[at + p] = 1 + entry++->page;
        at += pages;
    }
}

/* Every rank gets the lists of shard 0, which rank 0 reads, and compares those of its own. */
static aura_status share_lists(struct arriving *a)
{
    void *memory[2] = {NULL, NULL};
    const size_t balance_bytes = a->balance ? (size_t)a->config.kv_heads * a->m.groups * a->config.k_dim * sizeof *a->balance : 0;
    aura_status status = aura_take_memory(a->call, (size_t)a->config.seqs * sizeof *a->seq + 1, &memory[0]);
    a->seq = memory[0];
    if ((status = aura_cluster_agree(a->c, a->call, status, aura_cluster_mix(14, a->config.seqs), NULL)))
        return status;
    if (a->c->rank == 0)
        memcpy(a->seq, a->shard[0].loaded.seq, (size_t)a->config.seqs * sizeof *a->seq);
    bcast(a, a->seq, (size_t)a->config.seqs * sizeof *a->seq);
    for (uint64_t i = 0; i < a->config.seqs; i++)
        a->pages += aura_pages_of(a->seq[i].tokens);
    for (size_t i = 0; !status && i < a->n; i++)
        status = check_same(a, &a->shard[i]);
    if (!status)
        status = aura_take_memory(a->call, a->pages * sizeof *a->page + 1, &memory[1]);
    a->page = memory[1];
    if ((status = aura_cluster_agree(a->c, a->call, status, aura_cluster_mix(15, a->pages), NULL)))
        return status;
    memset(a->page, 0, a->pages * sizeof *a->page);
    for (size_t i = 0; i < a->n; i++) {
        const uint32_t group = (uint32_t)(a->c->rank + (int)i * a->c->ranks) % a->m.groups, heads = a->config.kv_heads;
        if (group == 0)
            list_pages(a, &a->shard[i]);
        if (a->balance && a->shard[i].shape.rank == 0)
            memcpy(a->balance + (size_t)group * heads * a->config.k_dim, a->shard[i].loaded.numbers[AURA_K_BALANCE],
                   heads * (size_t)a->config.k_dim * sizeof *a->balance);
    }
    aura_cluster_or(a->c, a->c->all, a->page, a->pages * sizeof *a->page, a->call.name);
    aura_cluster_or(a->c, a->c->all, a->balance, balance_bytes, a->call.name);
    return AURA_OK;
}

/* ---- loading: the cache and its sequences -------------------------------------------------------------------------- */

/* The first sequence that has page p of sequence i, which may be i itself. */
static uint64_t first_holder(const struct arriving *a, uint64_t i, uint64_t p, uint64_t number)
{
    size_t at = 0;
    for (uint64_t k = 0; k < i; k++) {
        const size_t pages = aura_pages_of(a->seq[k].tokens);
        if (a->seq[k].first == a->seq[i].first && p < pages && a->page[at + p] == number)
            return k;
        at += pages;
    }
    return i;
}

/* All sequences, with pages that are not filled yet. */
static aura_status make_sequences(struct arriving *a)
{
    aura_cache *local = a->c->local;
    aura_status status = AURA_OK;
    size_t at = 0;
    pthread_mutex_lock(&local->lock);
    for (uint64_t i = 0; !status && i < a->config.seqs; i++) {
        if ((status = aura_seq_make(a->call, local, &a->to[i])))
            break;
        struct aura_sequence *seq = a->to[i];
        const uint64_t pages = aura_pages_of(a->seq[i].tokens);
        seq->shift = (uint32_t)a->seq[i].first;
        for (uint64_t p = aura_page_here(local, seq, 0), n = 0; !status && p < pages; p += local->ranks, n++) {
            const uint64_t holder = first_holder(a, i, p, a->page[at + p]);
            uint8_t *page = holder == i ? NULL : aura_page_of(local, a->to[holder], (size_t)p);
            status = aura_pages_add(a->call, local, seq, (size_t)n, &page);
        }
        seq->len = a->seq[i].tokens;
        seq->closed = a->seq[i].closed;
        aura_count_tokens(local, seq);
        at += pages;
    }
    pthread_mutex_unlock(&local->lock);
    return status;
}

/* ---- loading: pages ------------------------------------------------------------------------------------------------ */

/* The messages of a few pages. */
struct moving {
    struct arriving *a;
    MPI_Request request[512];
    int n;
};

static void flush(struct moving *m)
{
    aura_cluster_wait(m->a->c, m->request, m->n, m->a->call.name);
    m->n = 0;
}

/* Where the heads of an old group are in a page of shard `number`, whose reader is this rank. */
static const uint8_t *old_page(const struct arriving *a, uint32_t number, uint64_t page)
{
    const struct shard *s = &a->shard[number / (uint32_t)a->c->ranks];
    return s->loaded.pages + page * a->config.kv_heads * s->shape.layout.head_bytes;
}

/* Where page p of sequence i is in a shard that this rank reads. */
static uint64_t page_in_shard(const struct arriving *a, uint32_t number, uint64_t i, uint64_t p)
{
    const struct shard *s = &a->shard[number / (uint32_t)a->c->ranks];
    const struct aura_file_entry *entry = s->loaded.table;
    for (uint64_t k = 0; k < i; k++)
        entry += s->loaded.seq[k].entries;
    return entry[aura_pages_of_rank(p, (uint32_t)a->seq[i].first, s->shape.rank, s->shape.ranks)].page;
}

/* The heads that an old and a new group have in common, of one page: from who reads them to who has them now. */
static void move_part(struct moving *m, uint64_t i, uint64_t p, uint32_t old_group, uint32_t new_group)
{
    const struct arriving *a = m->a;
    const aura_mpi_cache *c = a->c;
    const uint32_t shift = (uint32_t)a->seq[i].first, old_heads = a->config.kv_heads, heads = c->local->config.kv_heads;
    const uint32_t first = old_group * old_heads > new_group * heads ? old_group * old_heads : new_group * heads;
    const uint32_t old_end = (old_group + 1) * old_heads, new_end = (new_group + 1) * heads;
    const uint32_t end = old_end < new_end ? old_end : new_end;
    const size_t head_bytes = c->local->layout.head_bytes;
    const uint32_t number = aura_rank_of_page(p, shift, a->m.ranks) * a->m.groups + old_group;
    const int from = (int)(number % (uint32_t)c->ranks);
    const int to = (int)(aura_rank_of_page(p, shift, c->local->ranks) * c->groups + new_group);
    if (first >= end)
        return;
    const int bytes = (int)((end - first) * head_bytes);
    const uint8_t *source = NULL;
    uint8_t *target = NULL;
    if (from == c->rank)
        source = old_page(a, number, page_in_shard(a, number, i, p)) + (first - old_group * old_heads) * head_bytes;
    if (to == c->rank)
        target = aura_page_of(c->local, a->to[i], (size_t)p) + (first - new_group * heads) * head_bytes;
    if (source && target)
        memcpy(target, source, (size_t)bytes);
    else if (source)
        MPI_Isend(source, bytes, MPI_BYTE, to, 1, c->all, &m->request[m->n++]);
    else if (target)
        MPI_Irecv(target, bytes, MPI_BYTE, from, 1, c->all, &m->request[m->n++]);
}

/* All ranks go through all pages in one order, so that the messages between two of them need no names. */
static void move_pages(struct arriving *a)
{
    struct moving m = {.a = a, .n = 0};
    size_t at = 0;
    for (uint64_t i = 0; i < a->config.seqs; i++) {
        const uint64_t pages = aura_pages_of(a->seq[i].tokens);
        for (uint64_t p = 0; p < pages; p++) {
            if (first_holder(a, i, p, a->page[at + p]) != i)
                continue;
            for (uint32_t x = 0; x < a->m.groups; x++)
                for (uint32_t y = 0; y < a->c->groups; y++) {
                    move_part(&m, i, p, x, y);
                    if (m.n == sizeof m.request / sizeof *m.request)
                        flush(&m);
                }
        }
        at += pages;
    }
    flush(&m);
}

/* The f16 rows of a sequence, [heads of all groups][rows][dim] of keys, then of values: every shard has those of its pages. */
static aura_status move_rows(struct arriving *a, uint64_t i)
{
    const aura_cache *local = a->c->local;
    const struct aura_file_seq *s = &a->seq[i];
    const uint32_t old = a->config.kv_heads, all = old * a->m.groups, heads = local->config.kv_heads;
    const uint32_t first = aura_cluster_group(a->c) * heads, dims[2] = {local->layout.k.dim, local->layout.v.dim};
    aura_status status = AURA_OK;
    for (int values = 0; !status && values < 2; values++) {
        uint16_t *rows = values ? a->to[i]->v : a->to[i]->k;
        const size_t row = dims[values] * sizeof *rows, bytes = (size_t)all * s->rows * row;
        void *memory = NULL;
        if (!rows)
            continue;
        status = aura_cluster_agree(a->c, a->call, aura_take_memory(a->call, bytes + 1, &memory), 16, NULL);
        if (!status)
            memset(memory, 0, bytes + 1);
        for (size_t k = 0; !status && k < a->n; k++) {
            const struct shard *shard = &a->shard[k];
            const uint32_t group = (uint32_t)(a->c->rank + (int)k * a->c->ranks) % a->m.groups;
            const uint8_t *from = shard->loaded.rows;
            for (uint64_t before = 0; before < i; before++)
                from += (size_t)shard->loaded.seq[before].rows * old * aura_row_pair_bytes(local);
            from += values && a->to[i]->k ? (size_t)s->rows * old * dims[0] * sizeof *rows : 0;
            for (size_t b = 0; b < (size_t)old * s->rows * row; b++)
                ((uint8_t *)memory)[(size_t)group * old * s->rows * row + b] |= from[b];
        }
        if (!status)
            aura_cluster_or(a->c, a->c->all, memory, bytes, a->call.name);
        for (uint32_t h = 0; !status && h < heads; h++)
            for (uint32_t r = 0; r < s->rows; r++)
                memcpy(aura_row_of(local, rows, dims[values], h, aura_token_of_row(local, s->tokens, s->closed, r)),
                       (uint8_t *)memory + ((size_t)(first + h) * s->rows + r) * row, row);
        aura_give_memory(a->call.ctx, memory, bytes + 1);
    }
    return status;
}

/* ---- the call ------------------------------------------------------------------------------------------------------ */

/* The manifest to all ranks; then each its shards. */
static aura_status find_shards(struct arriving *a, const char *path)
{
    struct shard_entry *entry = NULL;
    void *memory = NULL;
    aura_status status = a->c->rank == 0 ? aura_check_path(a->call, path) : AURA_OK;
    if (!status && a->c->rank == 0)
        status = read_manifest(a->call, path, &a->m, &entry);
    if ((status = aura_cluster_agree(a->c, a->call, status, 17, NULL)))
        return status;
    bcast(a, &a->m, sizeof a->m);
    if (a->c->rank && !(status = aura_take_memory(a->call, shards_of(a) * sizeof *entry, &memory)))
        entry = memory;
    if (!(status = aura_cluster_agree(a->c, a->call, status, 18, NULL))) {
        bcast(a, entry, shards_of(a) * sizeof *entry);
        status = aura_cluster_agree(a->c, a->call, open_shards(a, path, entry), 19, NULL);
    }
    give_entries(a->c->ctx, &a->m, entry);
    return status;
}

/* The local cache for what the shards hold. */
static aura_status make_local(struct arriving *a, const aura_mpi_options *options)
{
    aura_config whole = AURA_CONFIG_INIT, own = AURA_CONFIG_INIT;
    aura_config_of_file(&whole, &a->config);
    whole.kv_heads *= a->m.groups;
    whole.q_heads *= a->m.groups;
    whole.balance = a->balance;
    whole.budget_bytes = options ? options->budget_bytes : 0;
    aura_status status = aura_cluster_config(a->c, a->call, &whole, &own);
    return status ? status : aura_cluster_local(a->c, a->call, a->c->ctx, &own);
}

static aura_status load(struct arriving *a, const char *path, const aura_mpi_options *options)
{
    void *memory[2] = {NULL, NULL};
    uint8_t has_balance = 0;
    aura_status status = find_shards(a, path);
    if (status)
        return status;
    if (a->c->rank == 0) {
        a->config = *a->shard[0].loaded.config;
        has_balance = a->shard[0].loaded.numbers[AURA_K_BALANCE] != NULL;
    }
    bcast(a, &a->config, sizeof a->config);
    bcast(a, &has_balance, 1);
    const size_t floats = has_balance ? (size_t)a->config.kv_heads * a->m.groups * a->config.k_dim : 0;
    if (floats)
        status = aura_take_memory(a->call, floats * sizeof(float), &memory[0]);
    if (!status && !(status = aura_take_memory(a->call, (size_t)a->config.seqs * sizeof *a->to + 1, &memory[1])))
        a->to = memset(memory[1], 0, (size_t)a->config.seqs * sizeof *a->to + 1);
    a->balance = memory[0] ? memset(memory[0], 0, floats * sizeof(float)) : NULL;
    for (size_t i = 0; !status && i < a->n; i++)
        if (!a->shard[i].loaded.numbers[AURA_K_BALANCE] != !has_balance)
            status = aura_reader_bad(&a->shard[i].reader, "its shards are of different caches");
    if (!(status = aura_cluster_agree(a->c, a->call, status, 20, NULL)) && !(status = share_lists(a)) &&
        !(status = aura_cluster_agree(a->c, a->call, make_local(a, options), 21, NULL)) &&
        !(status = aura_cluster_agree(a->c, a->call, make_sequences(a), 22, NULL))) {
        move_pages(a);
        for (uint64_t i = 0; !status && i < a->config.seqs; i++)
            status = move_rows(a, i);
    }
    aura_give_memory(a->call.ctx, memory[0], floats * sizeof(float));
    return status;
}

/* From now on ids lead to the sequences: 1, 2, 3 ... */
static aura_status publish(struct arriving *a)
{
    aura_cache *local = a->c->local;
    aura_status status = AURA_OK;
    pthread_mutex_lock(&local->lock);
    for (uint64_t i = 0; !status && i < a->config.seqs; i++) {
        aura_seq id = (aura_seq)i + 1;
        if (!(status = aura_seq_publish(a->call, local, a->to[i], &id)))
            a->to[i] = NULL;
    }
    pthread_mutex_unlock(&local->lock);
    a->c->next_shift = a->m.next_shift;
    return status;
}

static void leave(struct arriving *a)
{
    aura_ctx *ctx = a->c->ctx;
    for (uint64_t i = 0; a->to && i < a->config.seqs; i++)
        if (a->to[i]) {
            pthread_mutex_lock(&a->c->local->lock);
            aura_seq_unmake(a->c->local, a->to[i]);
            pthread_mutex_unlock(&a->c->local->lock);
        }
    for (size_t i = 0; i < a->n; i++)
        if (a->shard[i].open)
            aura_reader_close(&a->shard[i].reader);
    aura_give_memory(ctx, a->shard, a->n * sizeof *a->shard + 1);
    aura_give_memory(ctx, a->seq, (size_t)a->config.seqs * sizeof *a->seq + 1);
    aura_give_memory(ctx, a->page, a->pages * sizeof *a->page + 1);
    aura_give_memory(ctx, a->to, (size_t)a->config.seqs * sizeof *a->to + 1);
}

aura_status aura_mpi_cache_load(aura_ctx *ctx, MPI_Comm comm, const char *path, const aura_mpi_options *options,
                                aura_mpi_cache **cache)
{
    struct arriving a;
    memset(&a, 0, sizeof a);
    a.call.ctx = ctx, a.call.name = "aura_mpi_cache_load";
    if (!ctx || !cache)
        return aura_fail(ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", a.call.name, ctx ? "cache" : "ctx");
    aura_status status = aura_cluster_make(a.call, ctx, comm, options, &a.c);
    if (status)
        return status;
    if (!(status = load(&a, path, options)))
        status = aura_cluster_agree(a.c, a.call, publish(&a), 23, NULL);
    leave(&a);
    if (status)
        aura_mpi_cache_destroy(a.c);
    else
        *cache = a.c;
    return status;
}
#endif
