/* Caches over many processes: making them, and agreeing. Every call first does on each rank what can fail and changes nothing; then
 * all ranks agree on how that went; then each does what cannot fail, or takes back what it has begun. */
#include "../base/exact.h"
#ifdef AURA_HAVE_MPI
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "cluster.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

/* ---- waiting and agreeing ------------------------------------------------------------------------------------------ */

void aura_cluster_wait(aura_mpi_cache *c, MPI_Request *requests, int n, const char *what)
{
    const double begin = MPI_Wtime();
    int done = 0;
    for (unsigned i = 0; MPI_Testall(n, requests, &done, MPI_STATUSES_IGNORE), !done; i++) {
        if (i > 1000)
            sched_yield(); /* there may be more ranks than cores */
        if (c->timeout_s > 0 && i % 1024 == 1023 && MPI_Wtime() - begin > c->timeout_s) {
            fprintf(stderr, "aura: rank %d of %d has waited %.0f s for others (%s); one of them is gone or stuck. The job ends.\n",
                    c->rank, c->ranks, MPI_Wtime() - begin, what);
            MPI_Abort(c->all, 1);
        }
    }
}

/* Key 0 is fine; else the highest is that of the lowest rank. */
static int64_t key_of(const aura_mpi_cache *c, aura_status status)
{
    return status ? (int64_t)(c->ranks - c->rank) << 8 | (int64_t)status : 0;
}

aura_status aura_cluster_agree(aura_mpi_cache *c, struct aura_call call, aura_status status, uint64_t shape, int *not_finite)
{
    const int64_t number = (int64_t)(shape >> 1), mine[4] = {key_of(c, status), number, -number, not_finite ? *not_finite : 0};
    int64_t all[4];
    char text[256] = "";
    MPI_Request request;
    MPI_Iallreduce(mine, all, 4, MPI_INT64_T, MPI_MAX, c->all, &request);
    aura_cluster_wait(c, &request, 1, call.name);
    c->sent_bytes += c->ranks > 1 ? sizeof mine : 0;
    c->messages += c->ranks > 1;
    if (not_finite)
        *not_finite = all[3] != 0;
    if (!all[0] && all[1] == -all[2])
        return AURA_OK;
    if (!all[0])
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: the ranks do not all call the same, or with the same sizes", call.name);
    const int who = c->ranks - (int)(all[0] >> 8);
    if (who == c->rank)
        snprintf(text, sizeof text, "%s", aura_last_error());
    MPI_Ibcast(text, sizeof text, MPI_CHAR, who, c->all, &request);
    aura_cluster_wait(c, &request, 1, call.name);
    return aura_fail(call.ctx, (aura_status)(all[0] & 255), "rank %d: %s", who, text);
}

void aura_cluster_or(aura_mpi_cache *c, MPI_Comm comm, void *data, size_t bytes, const char *what)
{
    enum { PIECE = 1 << 24 };
    for (size_t at = 0; at < bytes; at += PIECE) {
        const size_t n = bytes - at < PIECE ? bytes - at : PIECE;
        MPI_Request request;
        MPI_Iallreduce(MPI_IN_PLACE, (uint8_t *)data + at, (int)n, MPI_BYTE, MPI_BOR, comm, &request);
        aura_cluster_wait(c, &request, 1, what);
        c->sent_bytes += n;
        c->messages++;
    }
}

/* ---- a cache ------------------------------------------------------------------------------------------------------- */

static aura_status check_options(struct aura_call call, const aura_mpi_options **options, int ranks)
{
    static const aura_mpi_options defaults = AURA_MPI_OPTIONS_INIT;
    aura_status status = *options ? aura_check_call(call, *options, sizeof **options) : AURA_OK;
    *options = *options ? *options : &defaults;
    if (status)
        return status;
    const uint32_t groups = (*options)->head_groups;
    if (groups && (groups > (uint32_t)ranks || (uint32_t)ranks % groups))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %u head groups do not divide %d ranks", call.name, groups, ranks);
    return AURA_OK;
}

aura_status aura_cluster_make(struct aura_call call, aura_ctx *ctx, MPI_Comm comm, const aura_mpi_options *options,
                              aura_mpi_cache **cache)
{
    aura_mpi_cache first; /* to agree with before there is one */
    void *memory = NULL;
    memset(&first, 0, sizeof first);
    first.ctx = ctx;
    MPI_Comm_dup(comm, &first.all);
    MPI_Comm_set_errhandler(first.all, MPI_ERRORS_ARE_FATAL); /* a rank that is gone ends the job */
    MPI_Comm_rank(first.all, &first.rank);
    MPI_Comm_size(first.all, &first.ranks);
    aura_status status = check_options(call, &options, first.ranks);
    first.groups = status || !options->head_groups ? 1 : options->head_groups;
    first.timeout_s = status || options->timeout_s == 0 ? 600 : options->timeout_s < 0 ? 0 : options->timeout_s;
    if (!status)
        status = aura_take_memory(call, sizeof first, &memory);
    if ((status = aura_cluster_agree(&first, call, status, aura_cluster_mix(1, first.groups), NULL))) {
        aura_give_memory(ctx, memory, sizeof first);
        MPI_Comm_free(&first.all);
        return status;
    }
    MPI_Comm_split(first.all, (int)aura_cluster_group(&first), first.rank, &first.group);
    *cache = memory;
    **cache = first;
    return AURA_OK;
}

aura_status aura_cluster_config(const aura_mpi_cache *c, struct aura_call call, const aura_config *whole, aura_config *own)
{
    aura_status status = aura_check_call(call, whole, sizeof *whole);
    if (status)
        return status;
    *own = *whole;
    if (whole->window || whole->slots)
        return aura_fail(call.ctx, AURA_UNSUPPORTED, "%s: %s", call.name,
                         whole->slots ? "slots are not shared between ranks"
                                      : "a cache with a window holds so few tokens that every rank can have them all");
    if (whole->k_metric || whole->v_metric || whole->v_balance || whole->flags & AURA_LEARN)
        return aura_fail(call.ctx, AURA_UNSUPPORTED, "%s: metrics, a balance of values and AURA_LEARN are not shared between ranks",
                         call.name);
    if (!whole->kv_heads || whole->kv_heads % c->groups || whole->q_heads % c->groups)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %u query heads and %u KV heads in %u groups", call.name, whole->q_heads,
                         whole->kv_heads, c->groups);
    own->kv_heads = whole->kv_heads / c->groups;
    own->q_heads = whole->q_heads / c->groups;
    if (whole->balance)
        own->balance = whole->balance + (size_t)aura_cluster_group(c) * own->kv_heads * whole->k_dim;
    return AURA_OK;
}

aura_status aura_cluster_local(aura_mpi_cache *c, struct aura_call call, aura_ctx *ctx, const aura_config *own)
{
    aura_status status = aura_cache_make(call, ctx, own, NULL, NULL, &c->local);
    if (!status) {
        c->local->rank = (uint32_t)c->rank / c->groups;
        c->local->ranks = (uint32_t)c->ranks / c->groups;
    }
    return status;
}

static uint64_t shape_of_config(const aura_config *c)
{
    uint64_t shape = 2;
    const uint64_t numbers[] = {c->format.k, c->format.v, c->q_heads, c->kv_heads, c->k_dim, c->v_dim,
                                c->flags, c->rollback, c->seed};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        shape = aura_cluster_mix(shape, numbers[i]);
    return shape;
}

aura_status aura_mpi_cache_create(aura_ctx *ctx, MPI_Comm comm, const aura_config *config, const aura_mpi_options *options,
                                  aura_mpi_cache **cache)
{
    struct aura_call call = {ctx, "aura_mpi_cache_create"};
    aura_config own = AURA_CONFIG_INIT;
    aura_mpi_cache *made = NULL;
    if (!ctx || !config || !cache) /* a mistake in the program, and so on all ranks */
        return aura_fail(ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call.name, !ctx ? "ctx" : !config ? "config" : "cache");
    aura_status status = aura_cluster_make(call, ctx, comm, options, &made);
    if (status)
        return status;
    if (!(status = aura_cluster_config(made, call, config, &own)))
        status = aura_cluster_local(made, call, ctx, &own);
    if ((status = aura_cluster_agree(made, call, status, shape_of_config(config), NULL)))
        aura_mpi_cache_destroy(made);
    else
        *cache = made;
    return status;
}

void aura_mpi_cache_destroy(aura_mpi_cache *cache)
{
    if (!cache)
        return;
    aura_ctx *ctx = cache->ctx;
    MPI_Comm_free(&cache->group);
    MPI_Comm_free(&cache->all);
    aura_cache_destroy(cache->local);
    aura_give_memory(ctx, cache->rows, cache->rows_bytes);
    aura_give_memory(ctx, cache, sizeof *cache);
}

aura_status aura_mpi_cache_get_info(const aura_mpi_cache *cache, aura_mpi_cache_info *info)
{
    struct aura_call call = {cache ? cache->local->ctx : NULL, "aura_mpi_cache_get_info"};
    aura_cache_info local = AURA_CACHE_INFO_INIT;
    if (!cache)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "%s: cache is NULL", call.name);
    aura_status status = aura_check_call(call, info, sizeof *info);
    if (status || (status = aura_cache_get_info(cache->local, &local)))
        return status;
    info->rank = cache->local->rank;
    info->ranks = cache->local->ranks;
    info->group = aura_cluster_group(cache);
    info->groups = cache->groups;
    info->kv_heads = local.config.kv_heads;
    info->first_head = info->group * info->kv_heads;
    info->bytes = local.bytes;
    info->pages = local.pages;
    info->free_pages = local.free_pages;
    info->seqs = local.seqs;
    info->sent_bytes = cache->sent_bytes;
    info->messages = cache->messages;
    info->local_s = cache->local_s;
    info->waited_s = cache->waited_s;
    return AURA_OK;
}

/* ---- sequences ----------------------------------------------------------------------------------------------------- */

static struct aura_call call_of(const aura_mpi_cache *cache, const char *name)
{
    return (struct aura_call){cache ? cache->local->ctx : NULL, name};
}

static aura_status null_cache(struct aura_call call)
{
    return aura_fail(NULL, AURA_BAD_ARGUMENT, "%s: cache is NULL", call.name);
}

/* A sequence that was made here stays only where it was made everywhere. `generation` is that of the cache before: ids stay those
 * of the other ranks. */
static aura_status keep_or_release(aura_mpi_cache *c, struct aura_call call, aura_status status, uint64_t shape,
                                   uint32_t generation, aura_seq id, aura_seq *seq)
{
    const aura_status agreed = aura_cluster_agree(c, call, status, aura_cluster_mix(shape, status ? 0 : id), NULL);
    if (agreed && !status) {
        aura_seq_discard(c->local, aura_find_seq(call, c->local, id));
        aura_seqs_continue(c->local, generation);
    }
    if (!agreed)
        *seq = id;
    return agreed;
}

aura_status aura_mpi_seq_create(aura_mpi_cache *cache, aura_seq *seq)
{
    struct aura_call call = call_of(cache, "aura_mpi_seq_create");
    aura_seq id = 0;
    if (!cache || !seq)
        return cache ? aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: seq is NULL", call.name) : null_cache(call);
    const uint32_t generation = cache->local->generation;
    aura_status status = aura_seq_add(call, cache->local, &id);
    if (!status)
        aura_find_seq(call, cache->local, id)->shift = cache->next_shift;
    if (!(status = keep_or_release(cache, call, status, 3, generation, id, seq)))
        cache->next_shift++;
    return status;
}

aura_status aura_mpi_seq_fork(aura_mpi_cache *cache, aura_seq from, uint64_t tokens, aura_seq *seq)
{
    struct aura_call call = call_of(cache, "aura_mpi_seq_fork");
    aura_seq id = 0;
    if (!cache || !seq)
        return cache ? aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: seq is NULL", call.name) : null_cache(call);
    const uint64_t shape = aura_cluster_mix(aura_cluster_mix(4, from), tokens);
    const uint32_t generation = cache->local->generation;
    const aura_status status = aura_seq_branch(call, cache->local, from, tokens, &id);
    return keep_or_release(cache, call, status, shape, generation, id, seq);
}

aura_status aura_mpi_seq_release(aura_mpi_cache *cache, aura_seq seq)
{
    struct aura_call call = call_of(cache, "aura_mpi_seq_release");
    if (!cache)
        return null_cache(call);
    struct aura_sequence *found = aura_find_seq(call, cache->local, seq);
    aura_status status = aura_cluster_agree(cache, call, found ? AURA_OK : AURA_BAD_ARGUMENT, aura_cluster_mix(5, seq), NULL);
    if (!status)
        aura_seq_discard(cache->local, found);
    return status;
}

aura_status aura_mpi_truncate(aura_mpi_cache *cache, aura_seq seq, uint64_t tokens)
{
    struct aura_call call = call_of(cache, "aura_mpi_truncate");
    if (!cache)
        return null_cache(call);
    struct aura_sequence *found = aura_find_seq(call, cache->local, seq);
    aura_status status = found ? aura_check_cut(call, cache->local, found, tokens) : AURA_BAD_ARGUMENT;
    status = aura_cluster_agree(cache, call, status, aura_cluster_mix(aura_cluster_mix(6, seq), tokens), NULL);
    if (!status)
        aura_seq_cut(cache->local, found, tokens);
    return status;
}

aura_status aura_mpi_seq_reserve(aura_mpi_cache *cache, aura_seq seq, uint64_t tokens)
{
    struct aura_call call = call_of(cache, "aura_mpi_seq_reserve");
    if (!cache)
        return null_cache(call);
    struct aura_sequence *found = aura_find_seq(call, cache->local, seq);
    const size_t before = found ? found->reserved : 0;
    const aura_status status = found ? aura_pages_reserve(call, cache->local, found, tokens) : AURA_BAD_ARGUMENT;
    const aura_status agreed = aura_cluster_agree(cache, call, status, aura_cluster_mix(aura_cluster_mix(7, seq), tokens), NULL);
    if (agreed && !status) {
        found->reserved = before;
        aura_seq_cut(cache->local, found, found->len);
    }
    return agreed;
}

aura_status aura_mpi_seq_get_info(const aura_mpi_cache *cache, aura_seq seq, aura_seq_info *info)
{
    return cache ? aura_seq_get_info(cache->local, seq, info) : null_cache(call_of(cache, "aura_mpi_seq_get_info"));
}

aura_status aura_mpi_append(aura_mpi_cache *cache, const aura_append_job *jobs, size_t n_jobs)
{
    struct aura_call call = call_of(cache, "aura_mpi_append");
    uint64_t shape = aura_cluster_mix(8, n_jobs);
    if (!cache)
        return null_cache(call);
    for (size_t i = 0; jobs && i < n_jobs; i++)
        shape = aura_cluster_mix(aura_cluster_mix(shape, jobs[i].seq), jobs[i].tokens);
    struct aura_append a = {cache->local, jobs, n_jobs, NULL, 0};
    aura_status status = jobs || !n_jobs ? aura_append_check(call, &a)
                                         : aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: jobs is NULL", call.name);
    if (!status)
        status = aura_pages_grow(call, cache->local, a.list);
    const aura_status agreed = aura_cluster_agree(cache, call, status, shape, NULL);
    if (!agreed && !(status = aura_append_begin(call, &a))) { /* it has its pages */
        aura_append_run(&a);
        aura_append_end(&a);
    } else if (!status) {
        pthread_mutex_lock(&cache->local->lock);
        for (struct aura_sequence *seq = a.list; seq; seq = seq->next)
            aura_pages_trim(cache->local, seq);
        pthread_mutex_unlock(&cache->local->lock);
    }
    return agreed;
}
#endif
