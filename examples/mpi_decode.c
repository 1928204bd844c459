/* One context over many processes: prefill, decode, save, and go on with another number of them.
 *
 *     mpicc examples/mpi_decode.c -laura_mpi -laura -lm -lpthread -o mpi_decode
 *     mpirun -n 4 ./mpi_decode cache.aura 2000 20    # prefill 2000 tokens, decode 20, save after every 10
 *     mpirun -n 3 ./mpi_decode cache.aura 0 20       # go on, on 3 ranks: the numbers continue
 *
 * Killed at any moment, it leaves the last whole save. The model is a stand-in: a token's query is made of the output before it, as
 * everything a real one would compute, on all ranks alike. */
#include <aura_mpi.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { Q_HEADS = 8, KV_HEADS = 2, DIM = 64, CHUNK = 256 };

static void must(aura_status status, const char *what)
{
    if (status) {
        fprintf(stderr, "%s: %s\n", what, aura_last_error());
        MPI_Abort(MPI_COMM_WORLD, 1); /* a status is the same on all ranks: none waits for another */
    }
}

/* What a layer would compute of token t: numbers that depend on nothing else. */
static void make_token(unsigned t, float *k, float *v)
{
    unsigned x = t * 2654435761u + 1;
    for (int i = 0; i < KV_HEADS * DIM; i++) {
        x = x * 1664525 + 1013904223;
        k[i] = (float)(x >> 8) / (1 << 23) - 1;
        v[i] = (float)(x & 0xffff) / (1 << 15) - 1;
    }
}

static void append(aura_mpi_cache *cache, aura_seq seq, unsigned first, unsigned tokens)
{
    static float k[CHUNK * KV_HEADS * DIM], v[CHUNK * KV_HEADS * DIM];
    for (unsigned done = 0, n; done < tokens; done += n) {
        aura_append_job job = AURA_APPEND_JOB_INIT;
        n = tokens - done < CHUNK ? tokens - done : CHUNK;
        for (unsigned i = 0; i < n; i++)
            make_token(first + done + i, k + i * KV_HEADS * DIM, v + i * KV_HEADS * DIM);
        job.seq = seq, job.tokens = n, job.k.data = k, job.v.data = v;
        must(aura_mpi_append(cache, &job, 1), "append"); /* each rank keeps its own pages */
    }
}

/* One step: the query comes from the output before. Returns a number that shows whether all went as it should. */
static double decode(aura_mpi_cache *cache, aura_seq seq, unsigned token, float *out)
{
    float q[Q_HEADS * DIM];
    double sum = 0;
    aura_attend_job ask = AURA_ATTEND_JOB_INIT;
    for (int i = 0; i < Q_HEADS * DIM; i++)
        q[i] = out[i] * 8 + (float)((i * 7 + token) % 11) / 11 - 0.5f;
    append(cache, seq, token, 1);
    ask.seq = seq, ask.queries = 1, ask.q.data = q, ask.out.data = out;
    must(aura_mpi_attend(cache, &ask, 1, NULL, 1), "attend"); /* every rank gets all rows, the same bits */
    for (int i = 0; i < Q_HEADS * DIM; i++)
        sum += fabs(out[i]);
    return sum;
}

int main(int argc, char **argv)
{
    static float out[Q_HEADS * DIM];
    aura_ctx *ctx;
    aura_mpi_cache *cache;
    aura_seq seq = 1; /* of the only sequence in a file */
    aura_seq_info info = AURA_SEQ_INFO_INIT;
    aura_config config = AURA_CONFIG_INIT;
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 4) {
        fprintf(stderr, "usage: mpi_decode FILE PREFILL STEPS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    const unsigned prefill = (unsigned)atoi(argv[2]), steps = (unsigned)atoi(argv[3]);
    must(aura_ctx_create(NULL, &ctx), "context");
    config.q_heads = Q_HEADS, config.kv_heads = KV_HEADS, config.k_dim = DIM;
    if (prefill) {
        must(aura_mpi_cache_create(ctx, MPI_COMM_WORLD, &config, NULL, &cache), "create");
        must(aura_mpi_seq_create(cache, &seq), "sequence");
        append(cache, seq, 0, prefill);
    } else {
        must(aura_mpi_cache_load(ctx, MPI_COMM_WORLD, argv[1], NULL, &cache), "load"); /* pages move to the ranks there are now */
    }
    for (unsigned i = 0; i < steps; i++) {
        must(aura_mpi_seq_get_info(cache, seq, &info), "info");
        for (int d = 0; d < Q_HEADS * DIM && !i; d++)
            out[d] = 0; /* a query does not depend on what was before a restart */
        const double sum = decode(cache, seq, (unsigned)info.tokens, out);
        if (rank == 0)
            printf("%d ranks: token %llu, sum %.4f\n", ranks, (unsigned long long)info.tokens, sum);
        if (i % 10 == 9)
            must(aura_mpi_cache_save(cache, argv[1]), "save"); /* in one step: killed here, the old one is whole */
    }
    aura_mpi_cache_destroy(cache);
    aura_ctx_destroy(ctx);
    MPI_Finalize();
    return 0;
}
