/* Attention over many processes:
 *
 *     all queries ─▶ the pages of this rank ─▶ partial rows ─ all to all ─ merge, in the order of ranks ─▶ [all gather ─▶] output
 *
 * A row on its way is v_dim numbers and its log-sum-exp, f32. Rank i of n merges rows [rows * i / n, rows * (i + 1) / n). */
#include "../base/exact.h"
#ifdef AURA_HAVE_MPI
#include "cluster.h"

#include <limits.h>
#include <string.h>

#include "../base/fpmode.h"
#include "../base/not_finite.h"
#include "../base/view.h"

/* One call. */
struct attend {
    aura_mpi_cache *c;
    const aura_attend_job *jobs;
    size_t n_jobs, rows;
    uint32_t q_heads, dim;
    int me, ranks;
    float *partial;  /* [rows][dim + 1] of this rank */
    float *parts;    /* [ranks][my rows][dim + 1] */
    float *merged;   /* [rows][dim + 1] */
    float *lse;      /* [rows] */
    aura_attend_job *local;
    int *counts;     /* [4][ranks] */
};

static size_t first_row(const struct attend *a, int rank)
{
    return a->rows / (size_t)a->ranks * (size_t)rank + a->rows % (size_t)a->ranks * (size_t)rank / (size_t)a->ranks;
}

static size_t rows_of(const struct attend *a, int rank)
{
    return first_row(a, rank + 1) - first_row(a, rank);
}

aura_status aura_mpi_rows(const aura_mpi_cache *cache, size_t rows, size_t *first, size_t *n)
{
    struct aura_call call = {cache ? cache->local->ctx : NULL, "aura_mpi_rows"};
    if (!cache || !first || !n)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call.name, !cache ? "cache" : first ? "n" : "first");
    const struct attend a = {.rows = rows, .ranks = (int)cache->local->ranks};
    *first = first_row(&a, (int)cache->local->rank);
    *n = rows_of(&a, (int)cache->local->rank);
    return AURA_OK;
}

/* Sizes, and memory for all of it. */
static aura_status begin(struct attend *a, struct aura_call call)
{
    const aura_cache *local = a->c->local;
    a->q_heads = a->n_jobs && a->jobs[0].q_heads ? a->jobs[0].q_heads : local->config.q_heads;
    for (size_t i = 0; i < a->n_jobs; i++) {
        aura_status status = aura_check_call(call, &a->jobs[i], sizeof *a->jobs);
        if (status)
            return status;
        a->rows += (size_t)a->jobs[i].queries * a->q_heads;
    }
    const size_t row = (size_t)a->dim + 1, mine = rows_of(a, a->me);
    if (a->rows > INT_MAX / row / (size_t)a->ranks)
        return aura_fail(call.ctx, AURA_TOO_LARGE, "%s: %zu rows in one call", call.name, a->rows);
    const size_t floats = 2 * a->rows * row + (size_t)a->ranks * mine * row + a->rows;
    const size_t bytes = floats * sizeof(float) + 64 + a->n_jobs * sizeof *a->local + 4 * (size_t)a->ranks * sizeof(int);
    if (bytes > a->c->rows_bytes) {
        void *memory = NULL;
        aura_status status = aura_take_memory(call, bytes, &memory);
        if (status)
            return status;
        aura_give_memory(call.ctx, a->c->rows, a->c->rows_bytes);
        a->c->rows = memory;
        a->c->rows_bytes = bytes;
    }
    a->partial = a->c->rows;
    a->merged = a->partial + a->rows * row;
    a->parts = a->merged + a->rows * row;
    a->lse = a->parts + (size_t)a->ranks * mine * row;
    a->local = (aura_attend_job *)(void *)(((uintptr_t)(a->lse + a->rows) + 63) / 64 * 64);
    a->counts = (int *)(void *)(a->local + a->n_jobs);
    return AURA_OK;
}

/* Own pages, into `partial`. Sinks are the first rank's. */
static aura_status attend_here(struct attend *a, const aura_attend_options *options)
{
    static const aura_attend_options defaults = AURA_ATTEND_OPTIONS_INIT;
    const size_t row = (size_t)a->dim + 1;
    aura_attend_options own = options ? *options : defaults;
    size_t at = 0;
    own.workspace = NULL;
    own.workspace_bytes = 0;
    if (a->me > 0)
        own.sinks = NULL;
    for (size_t i = 0; i < a->n_jobs; i++) {
        const aura_view out = {a->partial + at * row, AURA_F32, (ptrdiff_t)(a->q_heads * row), (ptrdiff_t)row, NULL};
        a->local[i] = a->jobs[i];
        a->local[i].out = out;
        a->local[i].lse = a->lse + at;
        at += (size_t)a->jobs[i].queries * a->q_heads;
    }
    const aura_status status = aura_attend(a->c->local, a->local, a->n_jobs, &own);
    for (size_t i = 0; i < a->rows; i++)
        a->partial[i * row + a->dim] = a->lse[i];
    return status;
}

/* That the outputs can be written: the local call checked other views. */
static aura_status check_outputs(const struct attend *a, struct aura_call call)
{
    aura_status status = AURA_OK;
    for (size_t i = 0; !status && i < a->n_jobs; i++) {
        const aura_input out = aura_place_of(&a->jobs[i].out);
        const uint32_t queries = a->jobs[i].queries;
        if (queries && ((status = aura_check_view(call, "out", &out)) ||
                        (status = aura_check_view_extent(call, "out", &out, queries, a->q_heads, a->dim))))
            break;
        if (queries)
            status = aura_check_view_apart(call, "out", &out, queries, a->q_heads, a->dim);
    }
    return status;
}

/* Every row to the rank that merges it. */
static void exchange(struct attend *a)
{
    const int row = (int)a->dim + 1, mine = (int)rows_of(a, a->me) * row;
    int *send = a->counts, *send_at = send + a->ranks, *take = send_at + a->ranks, *take_at = take + a->ranks;
    MPI_Request request;
    for (int i = 0; i < a->ranks; i++) {
        send[i] = (int)rows_of(a, i) * row;
        send_at[i] = (int)first_row(a, i) * row;
        take[i] = mine;
        take_at[i] = i * mine;
        a->c->sent_bytes += i == a->me ? 0 : (uint64_t)send[i] * sizeof(float);
        a->c->messages += i != a->me && send[i];
    }
    MPI_Ialltoallv(a->partial, send, send_at, MPI_FLOAT, a->parts, take, take_at, MPI_FLOAT, a->c->group, &request);
    aura_cluster_wait(a->c, &request, 1, "aura_mpi_attend: rows");
}

static void merge(struct attend *a)
{
    enum { FEW = 64 };
    const size_t row = (size_t)a->dim + 1, mine = rows_of(a, a->me), first = first_row(a, a->me);
    for (size_t i = 0; i < mine; i++) {
        float *to = a->merged + (first + i) * row, lse = -INFINITY;
        memset(to, 0, a->dim * sizeof *to);
        for (int rank = 0; rank < a->ranks;) { /* what there is, and the next ranks */
            const float *part[FEW];
            float part_lse[FEW], so_far[AURA_MAX_DIM];
            size_t n = 0;
            memcpy(so_far, to, a->dim * sizeof *to);
            if (rank) {
                part[n] = so_far;
                part_lse[n++] = lse;
            }
            for (; rank < a->ranks && n < FEW; rank++, n++) {
                part[n] = a->parts + ((size_t)rank * mine + i) * row;
                part_lse[n] = part[n][a->dim];
            }
            aura_merge_row(to, &lse, part, part_lse, n, a->dim, AURA_F32);
        }
        to[a->dim] = lse;
    }
}

static void gather(struct attend *a)
{
    const int row = (int)a->dim + 1;
    int *take = a->counts, *take_at = take + a->ranks;
    MPI_Request request;
    for (int i = 0; i < a->ranks; i++) {
        take[i] = (int)rows_of(a, i) * row;
        take_at[i] = (int)first_row(a, i) * row;
    }
    MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, a->merged, take, take_at, MPI_FLOAT, a->c->group, &request);
    aura_cluster_wait(a->c, &request, 1, "aura_mpi_attend: results");
    a->c->sent_bytes += (uint64_t)take[a->me] * sizeof(float) * (uint64_t)(a->ranks - 1);
    a->c->messages += take[a->me] ? (uint64_t)a->ranks - 1 : 0;
}

/* Rows [first, end) to where the caller wants them; returns how many are not finite. */
static size_t hand_out(const struct attend *a, size_t first, size_t end)
{
    const size_t row = (size_t)a->dim + 1;
    size_t bad = 0, at = 0;
    for (size_t i = 0; i < a->n_jobs; i++) {
        const aura_attend_job *job = &a->jobs[i];
        const aura_input place = aura_place_of(&job->out);
        const struct aura_strides strides = aura_view_strides(&place, a->q_heads, a->dim);
        const size_t rows = (size_t)job->queries * a->q_heads;
        for (size_t r = at < first ? first - at : 0; r < rows && at + r < end; r++) {
            float *out = a->merged + (at + r) * row;
            const int is_bad = aura_poison_row(out, a->dim, job->out.dtype);
            bad += is_bad;
            aura_view_store(&job->out, strides, r / a->q_heads, (uint32_t)(r % a->q_heads), out, a->dim);
            if (job->lse)
                job->lse[r] = is_bad ? NAN : out[a->dim];
        }
        at += rows;
    }
    return bad;
}

static uint64_t shape_of(const struct attend *a, const aura_attend_options *o, uint32_t everywhere)
{
    uint64_t shape = aura_cluster_mix(aura_cluster_mix(9, everywhere), a->n_jobs);
    for (size_t i = 0; i < a->n_jobs; i++) {
        const aura_attend_job *job = &a->jobs[i];
        shape = aura_cluster_mix(aura_cluster_mix(shape, job->seq), (uint64_t)job->queries << 32 | job->mask_keys);
        shape = aura_cluster_mix(shape, (uint64_t)job->out.dtype << 8 | (job->mask != NULL));
    }
    return o ? aura_cluster_mix(shape, o->window << 2 | o->planes) : shape;
}

static int is_narrow(const struct attend *a)
{
    int narrow = 0;
    for (size_t i = 0; i < a->n_jobs; i++)
        narrow |= a->jobs[i].out.dtype != AURA_F32;
    return narrow;
}

aura_status aura_mpi_attend(aura_mpi_cache *cache, const aura_attend_job *jobs, size_t n_jobs, const aura_attend_options *options,
                            uint32_t everywhere)
{
    struct aura_call call = {cache ? cache->local->ctx : NULL, "aura_mpi_attend"};
    if (!cache)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "%s: cache is NULL", call.name);
    struct attend a = {.c = cache, .jobs = jobs, .n_jobs = jobs ? n_jobs : 0, .dim = cache->local->config.v_dim,
                       .me = (int)cache->local->rank, .ranks = (int)cache->local->ranks};
    const double start = MPI_Wtime();
    aura_status status = jobs || !n_jobs ? begin(&a, call) : aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: jobs is NULL", call.name);
    if (!status)
        status = check_outputs(&a, call);
    if (!status)
        status = attend_here(&a, options);
    cache->local_s = MPI_Wtime() - start;
    int bad = status == AURA_NOT_FINITE;
    if ((status = aura_cluster_agree(cache, call, bad ? AURA_OK : status, shape_of(&a, options, everywhere), &bad)))
        return status;
    const uint64_t mode = aura_fpmode_enter();
    exchange(&a);
    merge(&a);
    if (everywhere)
        gather(&a);
    const size_t first = everywhere ? 0 : first_row(&a, a.me), end = everywhere ? a.rows : first_row(&a, a.me + 1);
    bad |= hand_out(&a, first, end) > 0;
    aura_fpmode_leave(mode);
    if (is_narrow(&a) || cache->groups > 1) /* what does not fit the type, only who has the row has seen */
        status = aura_cluster_agree(cache, call, AURA_OK, 10, &bad);
    cache->waited_s = MPI_Wtime() - start - cache->local_s;
    if (!status && bad)
        status = aura_fail(call.ctx, AURA_NOT_FINITE, "%s: rows of some ranks are not finite and NaN now", call.name);
    return status;
}

/* ---- decode -------------------------------------------------------------------------------------------------------- */

aura_status aura_mpi_decode(aura_mpi_cache *cache, aura_seq seq, uint64_t first, uint32_t tokens, float *k, float *v)
{
    struct aura_call call = {cache ? cache->local->ctx : NULL, "aura_mpi_decode"};
    if (!cache)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "%s: cache is NULL", call.name);
    const aura_cache *local = cache->local;
    const aura_config *c = &local->config;
    const struct aura_sequence *found = aura_find_seq(call, local, seq);
    aura_status status = found ? aura_check_range(call, found, first, tokens) : AURA_BAD_ARGUMENT;
    const uint64_t shape = aura_cluster_mix(aura_cluster_mix(11, first), (uint64_t)tokens << 2 | (k ? 1 : 0) | (v ? 2 : 0));
    if ((status = aura_cluster_agree(cache, call, status, shape, NULL)))
        return status;
    const uint64_t mode = aura_fpmode_enter();
    for (int values = 0; values < 2; values++) {
        float *to = values ? v : k;
        const uint32_t dim = values ? c->v_dim : c->k_dim;
        const size_t bytes = (size_t)tokens * c->kv_heads * dim * sizeof *to;
        if (!to)
            continue;
        memset(to, 0, bytes);
        for (uint64_t t = first; t < first + tokens; t++)
            for (uint32_t h = 0; h < c->kv_heads && aura_is_here(local, found, t / AURA_PAGE); h++) {
                float x[AURA_TILE_DIM];
                aura_decode_vector(x, local, found, t, h, values);
                memcpy(to + ((size_t)(t - first) * c->kv_heads + h) * dim, x, dim * sizeof *to);
            }
        aura_cluster_or(cache, cache->group, to, bytes, call.name); /* of each token one rank has bits, the others zeros */
    }
    aura_fpmode_leave(mode);
    return AURA_OK;
}
#endif
