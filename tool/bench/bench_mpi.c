/* aura bench --mpi, started by mpirun: one context over all ranks. How long a rank attends to its own pages, how long all of them
 * take to exchange and merge rows, at contexts that double. Times are those of the slowest rank, medians of calls. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>

#if defined(AURA_HAVE_MPI)
#include "../../include/aura_mpi.h"

enum { CALLS = 21, CHUNK = 2048 };

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Numbers that are alike on all ranks. */
static void fill(float *x, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525 + 1013904223;
        x[i] = (float)(seed >> 8) / (1 << 23) - 1;
    }
}

static aura_status grow(aura_mpi_cache *cache, aura_seq seq, const struct shape *s, uint64_t from, uint64_t to, float *k, float *v)
{
    aura_status status = AURA_OK;
    for (uint64_t at = from; !status && at < to;) {
        aura_append_job job = AURA_APPEND_JOB_INIT;
        job.seq = seq, job.tokens = to - at < CHUNK ? (uint32_t)(to - at) : CHUNK;
        fill(k, (size_t)job.tokens * s->kv_heads * s->dim, (unsigned)at);
        fill(v, (size_t)job.tokens * s->kv_heads * s->dim, (unsigned)at + 1);
        job.k.data = k, job.v.data = v;
        status = aura_mpi_append(cache, &job, 1);
        at += job.tokens;
    }
    return status;
}

/* Medians of the slowest rank's times: own pages; exchange and merge; both. */
static aura_status time_calls(aura_mpi_cache *cache, const aura_attend_job *job, double median[3])
{
    double time[3][CALLS];
    for (int i = 0; i < CALLS; i++) {
        aura_mpi_cache_info info = AURA_MPI_CACHE_INFO_INIT;
        MPI_Barrier(MPI_COMM_WORLD);
        const double start = MPI_Wtime();
        aura_status status = aura_mpi_attend(cache, job, 1, NULL, 1);
        double mine[3] = {0, MPI_Wtime() - start, 0}, all[3];
        if (status || (status = aura_mpi_cache_get_info(cache, &info)))
            return status;
        mine[0] = info.local_s;
        MPI_Allreduce(mine, all, 3, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        time[0][i] = all[0], time[1][i] = all[1] - all[0], time[2][i] = all[1];
    }
    for (int i = 0; i < 3; i++) {
        qsort(time[i], CALLS, sizeof time[i][0], compare);
        median[i] = time[i][CALLS / 2];
    }
    return AURA_OK;
}

/* What is said about a context. */
struct spread_out {
    uint64_t tokens;
    int ranks;
    double local, communication, total; /* seconds */
};

static void row_fields(struct table *t, const void *row)
{
    const struct spread_out *r = row;
    table_number(t, "tokens", "%llu", (unsigned long long)r->tokens);
    table_number(t, "local_s", "%.3g", r->local);
    table_number(t, "communication_s", "%.3g", r->communication);
    table_number(t, "total_s", "%.3g", r->total);
    table_number(t, "ranks", "%d", r->ranks);
}

static aura_status measure(const struct bench *b, int rank, int ranks, float *k, float *v)
{
    const struct shape *s = &b->shape;
    aura_config config = AURA_CONFIG_INIT;
    aura_mpi_cache *cache = NULL;
    aura_attend_job job = AURA_ATTEND_JOB_INIT;
    uint64_t tokens = 0;
    config.format = s->format, config.q_heads = s->q_heads, config.kv_heads = s->kv_heads, config.k_dim = s->dim;
    config.flags = AURA_NO_SEARCH; /* the same bytes to read, sooner filled */
    float *q = malloc((size_t)b->queries * s->q_heads * s->dim * sizeof *q);
    aura_status status = q ? aura_mpi_cache_create(b->ctx, MPI_COMM_WORLD, &config, NULL, &cache) : AURA_OUT_OF_MEMORY;
    if (!status)
        status = aura_mpi_seq_create(cache, &job.seq);
    fill(q, q ? (size_t)b->queries * s->q_heads * s->dim : 0, 7);
    job.queries = b->queries, job.q.data = q, job.out.data = q;
    for (uint64_t to = 8192 < s->tokens ? 8192 : s->tokens; !status && to <= s->tokens; to *= 2) {
        double t[3];
        if ((status = grow(cache, job.seq, s, tokens, to, k, v)) || (status = time_calls(cache, &job, t)))
            break;
        tokens = to;
        const struct spread_out row = {to, ranks, t[0], t[1], t[2]};
        if (rank == 0 && b->table)
            table_row(b->table, row_fields, &row);
        else if (rank == 0)
            printf("%9llu tokens, %2d ranks: own pages %9.1f us, exchange and merge %8.1f us, %4.1f %% of %9.1f us\n",
                   (unsigned long long)to, ranks, 1e6 * t[0], 1e6 * t[1], 100 * t[1] / t[2], 1e6 * t[2]);
        fflush(stdout);
    }
    aura_mpi_cache_destroy(cache);
    free(q);
    return status;
}

int bench_mpi(struct bench *b)
{
    int rank, ranks;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const size_t n = (size_t)CHUNK * b->shape.kv_heads * b->shape.dim;
    float *k = malloc(n * sizeof *k), *v = malloc(n * sizeof *v);
    if (rank == 0 && b->table)
        print_bench_head(b, "mpi");
    aura_status status = k && v ? measure(b, rank, ranks, k, v) : AURA_OUT_OF_MEMORY;
    if (rank == 0 && b->table)
        table_end(b->table, NULL, NULL);
    if (rank == 0 && status)
        fprintf(stderr, "aura bench: %s\n", aura_last_error());
    free(k), free(v);
    MPI_Finalize();
    return status ? 1 : 0;
}
#else
int bench_mpi(struct bench *b)
{
    (void)b;
    fprintf(stderr, "aura bench: this aura was built without MPI; `make mpi` builds it where MPI is\n");
    return 1;
}
#endif
