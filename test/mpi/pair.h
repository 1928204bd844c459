/* A cache over many processes and one of this process alone, side by side: both are given the same tokens and asked the same
 * questions. What goes over the wire is counted here too. */
#ifndef AURA_TEST_PAIR_H
#define AURA_TEST_PAIR_H

#include "../../include/aura_mpi.h"
#include "../file/snapshot_tools.h"

static int me, ranks;

/* ---- what goes over the wire --------------------------------------------------------------------------------------- */

/* Calls of MPI come here first: what this rank hands over for others, by its own count and not by the library's. */
static uint64_t wire_bytes, wire_calls, wire_messages;

int MPI_Iallreduce(const void *send, void *take, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm, MPI_Request *request)
{
    int size, all;
    MPI_Type_size(type, &size), MPI_Comm_size(comm, &all);
    wire_bytes += all > 1 ? (uint64_t)n * (uint64_t)size : 0, wire_calls++, wire_messages += all > 1;
    return PMPI_Iallreduce(send, take, n, type, op, comm, request);
}

int MPI_Ialltoallv(const void *send, const int *n, const int *at, MPI_Datatype type, void *take, const int *m, const int *to,
                   MPI_Datatype taken, MPI_Comm comm, MPI_Request *request)
{
    int size, all, rank;
    MPI_Type_size(type, &size), MPI_Comm_size(comm, &all), MPI_Comm_rank(comm, &rank);
    for (int i = 0; i < all; i++)
        wire_bytes += i == rank ? 0 : (uint64_t)n[i] * (uint64_t)size, wire_messages += i != rank && n[i];
    wire_calls++;
    return PMPI_Ialltoallv(send, n, at, type, take, m, to, taken, comm, request);
}

int MPI_Iallgatherv(const void *send, int n, MPI_Datatype type, void *take, const int *m, const int *to, MPI_Datatype taken,
                    MPI_Comm comm, MPI_Request *request)
{
    int size, all, rank;
    MPI_Type_size(taken, &size), MPI_Comm_size(comm, &all), MPI_Comm_rank(comm, &rank);
    wire_bytes += (uint64_t)m[rank] * (uint64_t)size * (uint64_t)(all - 1), wire_calls++;
    wire_messages += m[rank] ? (uint64_t)all - 1 : 0;
    return PMPI_Iallgatherv(send, n, type, take, m, to, taken, comm, request);
}

/* ---- both caches --------------------------------------------------------------------------------------------------- */

enum { Q_HEADS = 8, KV_HEADS = 4, MOST_SEQS = 8 };

struct pair {
    aura_config config;
    aura_cache *one;         /* of the heads of this rank */
    aura_mpi_cache *many;
    uint32_t first_head, heads, group;
    aura_seq a[MOST_SEQS], b[MOST_SEQS];
    int seqs;
    struct text t;           /* of all heads */
};

static aura_config whole_config(aura_kind k, aura_kind v)
{
    aura_config c = config_of(k, v, 64, 64, KV_HEADS);
    c.q_heads = Q_HEADS;
    return c;
}

static aura_mpi_options options_of(uint32_t groups)
{
    aura_mpi_options o = AURA_MPI_OPTIONS_INIT;
    o.head_groups = groups, o.timeout_s = 60;
    return o;
}

static struct pair pair_of(const aura_config *config, uint32_t groups, aura_mpi_cache *many)
{
    struct pair p = {*config, NULL, many, 0, 0, 0, {0}, {0}, 0, {0}};
    aura_mpi_options options = options_of(groups);
    aura_config own = *config;
    if (!many)
        EXPECT(!aura_mpi_cache_create(ctx, MPI_COMM_WORLD, config, &options, &p.many), "%s", aura_last_error());
    p.group = (uint32_t)me % groups, p.heads = KV_HEADS / groups, p.first_head = p.group * p.heads;
    own.kv_heads = p.heads, own.q_heads = Q_HEADS / groups;
    own.balance = config->balance ? config->balance + p.first_head * config->k_dim : NULL;
    p.one = cache_new(ctx, &own);
    p.t = text_new(config, 2000);
    return p;
}

static void pair_free(struct pair *p)
{
    aura_cache_destroy(p->one), aura_mpi_cache_destroy(p->many), text_free(&p->t);
}

/* The heads of this rank, of tokens of the text. */
static aura_append_job tokens_of(const struct pair *p, aura_seq seq, uint32_t first, uint32_t n)
{
    aura_append_job job = append_job(seq, &p->t.k, &p->t.v, first, n);
    job.k.data = (const float *)job.k.data + p->first_head * 64, job.v.data = (const float *)job.v.data + p->first_head * 64;
    job.k.token_stride = job.v.token_stride = KV_HEADS * 64;
    return job;
}

static void add_tokens(struct pair *p, int i, uint32_t tokens)
{
    while (tokens) {
        uint32_t n = tokens < 300 ? tokens : 300, at = (uint32_t)(seq_tokens(p->one, p->a[i]) * 7 % 1600);
        aura_append_job a = tokens_of(p, p->a[i], at, n), b = tokens_of(p, p->b[i], at, n);
        EXPECT(!aura_append(p->one, &a, 1), "%s", aura_last_error());
        EXPECT(!aura_mpi_append(p->many, &b, 1), "%s", aura_last_error());
        tokens -= n;
    }
}

static int add_seq(struct pair *p, uint32_t tokens)
{
    const int i = p->seqs++;
    p->a[i] = seq_new(p->one);
    EXPECT(!aura_mpi_seq_create(p->many, &p->b[i]), "%s", aura_last_error());
    add_tokens(p, i, tokens);
    return i;
}

/* ---- attention ----------------------------------------------------------------------------------------------------- */

/* How a call is made. */
struct way {
    uint32_t queries, everywhere;
    aura_attend_options o;
    int mask, limits;
    aura_dtype dtype;
};

enum { MOST_ROWS = MOST_SEQS * 6 * Q_HEADS };

struct answer {
    float out[MOST_ROWS * 64], lse[MOST_ROWS];
};

static uint64_t seq_len(const struct pair *p, int i)
{
    return seq_tokens(p->one, p->a[i]);
}

static aura_status ask_pair(const struct pair *p, const struct way *w, int many, const float *q, struct answer *to, size_t *rows)
{
    static float mask[6 * 40];
    static uint64_t from[MOST_SEQS][6], until[MOST_SEQS][6];
    aura_attend_job jobs[MOST_SEQS];
    const uint32_t heads = p->heads * (Q_HEADS / KV_HEADS);
    size_t at = 0;
    memset(to, 0x5a, sizeof *to);
    for (int i = 0; i < 6 * 40; i++)
        mask[i] = i % 7 == 3 ? -INFINITY : (float)(i % 5) * 0.3f;
    for (int i = 0; i < p->seqs; i++) {
        aura_attend_job job = AURA_ATTEND_JOB_INIT;
        const uint64_t len = seq_len(p, i);
        job.seq = many ? p->b[i] : p->a[i], job.queries = len < w->queries ? (uint32_t)len : w->queries;
        job.q.data = q + at * 64, job.lse = to->lse + at, job.out.data = to->out + at * 64;
        for (uint32_t k = 0; k < 6; k++)
            from[i][k] = len / 3 * (k % 2), until[i][k] = len - len / 5 * (k % 3);
        if (w->mask && len >= 40)
            job.mask = mask, job.mask_keys = 40;
        if (w->limits)
            job.from = from[i], job.until = until[i];
        jobs[i] = job;
        at += (size_t)job.queries * heads;
    }
    *rows = at;
    return many ? aura_mpi_attend(p->many, jobs, (size_t)p->seqs, &w->o, w->everywhere)
                : aura_attend(p->one, jobs, (size_t)p->seqs, &w->o);
}

/* The worst and the mean difference of numbers, where both are what they should be. */
static void compare(const struct answer *a, const struct answer *b, size_t first, size_t n, double *worst, double *mean)
{
    *worst = *mean = 0;
    for (size_t i = first * 64; i < (first + n) * 64; i++) {
        const double d = fabs((double)a->out[i] - b->out[i]);
        *worst = !(d <= *worst) ? d : *worst, *mean += d;
    }
    for (size_t i = first; i < first + n; i++) {
        const double d = a->lse[i] == b->lse[i] ? 0 : fabs((double)a->lse[i] - b->lse[i]) / 10;
        *worst = !(d <= *worst) ? d : *worst;
    }
    *mean /= n ? (double)n * 64 : 1;
}

static void expect_like_one(const struct pair *p, const struct way *w, const char *what)
{
    static struct answer one, many, again;
    static float *q;
    size_t rows, same, first = 0, n;
    double worst, mean;
    q = q ? q : random_tokens(99, MOST_SEQS * 6, Q_HEADS, 64, 0);
    aura_status x = ask_pair(p, w, 0, q, &one, &rows), y = ask_pair(p, w, 1, q, &many, &same);
    n = rows;
    EXPECT(!x && !y && rows == same, "%s: %s, %s: %s", what, aura_status_text(x), aura_status_text(y), aura_last_error());
    EXPECT(!ask_pair(p, w, 1, q, &again, &same) && !memcmp(&many, &again, sizeof many), "%s: asked again, other bits", what);
    if (!w->everywhere)
        EXPECT(!aura_mpi_rows(p->many, rows, &first, &n), "%s", aura_last_error());
    compare(&one, &many, first, n, &worst, &mean);
    const uint32_t kind = p->config.format.k > p->config.format.v ? p->config.format.v : p->config.format.k;
    const int planes = kind >= AURA_KIND_F32 ? 0 : w->o.planes ? (int)w->o.planes : kind <= 5 ? 1 : 2;
    EXPECT(worst <= 3 * tolerance.typical[planes] && mean <= 2e-5, "%s: off by %.2g, mean %.2g", what, worst, mean);
    for (size_t i = 0; i < rows; i++) /* rows of others stay as they were */
        EXPECT((i >= first && i < first + n) || aura_f32_bits(many.lse[i]) == 0x5a5a5a5a, "%s: row %zu was written", what, i);
    if (w->everywhere && p->heads == KV_HEADS) { /* all ranks have the same bits */
        uint32_t crc = aura_crc32c(0, &many, sizeof many, AURA_ISA_REF), sum[2] = {crc, ~crc}, all[2];
        MPI_Allreduce(sum, all, 2, MPI_UINT32_T, MPI_MAX, MPI_COMM_WORLD);
        EXPECT(all[0] == ~all[1], "%s: ranks have different bits", what);
    }
}

static void expect_all_ways(const struct pair *p, const char *what)
{
    static float sinks[Q_HEADS] = {1, -2, 3, 0.5f, 2, 4, -1, 0}, alibi[Q_HEADS] = {0.5f, 0.1f, 0.01f, 0, 0.2f, 0.02f, 0.3f, 0.002f};
    for (int i = 0; i < 10 && test_bad_lines < 3; i++) {
        struct way w = {1 + (uint32_t)i % 6, i != 4, AURA_ATTEND_OPTIONS_INIT, 0, 0, AURA_F32};
        w.o.sinks = i % 2 ? sinks + p->first_head * 2 : NULL, w.o.alibi = i % 3 == 2 ? alibi + p->first_head * 2 : NULL;
        w.o.softcap = i % 4 == 3 ? 20 : 0, w.o.window = i == 5 || i == 8 ? 200 : 0, w.o.planes = i == 6 ? 2 : 0;
        w.o.not_causal = i == 7, w.mask = i % 5 == 1, w.limits = i == 9;
        expect_like_one(p, &w, what);
    }
}

/* Tokens, bit by bit. */
static void expect_same_tokens(const struct pair *p, const char *what)
{
    for (int i = 0; i < p->seqs; i++) {
        const uint32_t n = (uint32_t)seq_len(p, i);
        const size_t numbers = (size_t)n * p->heads * 64;
        float *k[2], *v[2];
        for (int m = 0; m < 2; m++)
            k[m] = calloc(numbers + 1, sizeof(float)), v[m] = calloc(numbers + 1, sizeof(float));
        aura_view k_view = {k[0], AURA_F32, 0, 0, NULL}, v_view = {v[0], AURA_F32, 0, 0, NULL};
        aura_seq_info x = AURA_SEQ_INFO_INIT, y = AURA_SEQ_INFO_INIT;
        EXPECT(!aura_seq_get_info(p->one, p->a[i], &x) && !aura_mpi_seq_get_info(p->many, p->b[i], &y) && x.tokens == y.tokens &&
                   x.closed == y.closed, "%s: sequence %d: %s", what, i, aura_last_error());
        EXPECT(!aura_cache_decode(p->one, p->a[i], 0, n, &k_view, &v_view), "%s", aura_last_error());
        EXPECT(!aura_mpi_decode(p->many, p->b[i], 0, n, k[1], v[1]), "%s: %s", what, aura_last_error());
        EXPECT(!memcmp(k[0], k[1], numbers * 4) && !memcmp(v[0], v[1], numbers * 4), "%s: sequence %d has other tokens", what, i);
        for (int m = 0; m < 2; m++)
            free(k[m]), free(v[m]);
    }
}

#endif
