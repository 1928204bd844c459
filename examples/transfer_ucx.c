/* A cache that travels: one process prefills and sends, another receives and decodes, over UCX, which takes RDMA, TCP or shared
 * memory, whatever lies between them. Pages are sent from where they are and land where they will be used.
 *
 *     cc examples/transfer_ucx.c -laura -lucp -lucs -lm -lpthread -o transfer_ucx      (Debian: libucx-dev)
 *     ./transfer_ucx 32768                                                              tokens
 *
 * Both processes are on one machine here, so that one command shows it: they exchange UCX addresses through a socket, as two
 * machines would through theirs. */
#define _DEFAULT_SOURCE
#include <aura_file.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

enum { Q_HEADS = 32, KV_HEADS = 8, DIM = 128, ROUNDS = 5, CHUNK = 1024 };

static void must(int failed, const char *what)
{
    if (!failed)
        return;
    fprintf(stderr, "transfer_ucx: %s: %s\n", what, aura_last_error());
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- UCX ---- */

struct link {
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h peer;
};

static struct link link_open(int socket)
{
    struct link l;
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ucp_worker_params_t worker = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucp_address_t *address = NULL;
    size_t bytes, theirs = 0;
    must(ucp_init(&params, NULL, &l.context) || ucp_worker_create(l.context, &worker, &l.worker) ||
             ucp_worker_get_address(l.worker, &address, &bytes), "UCX");
    must(write(socket, &bytes, sizeof bytes) != sizeof bytes || write(socket, address, bytes) != (ssize_t)bytes ||
             read(socket, &theirs, sizeof theirs) != sizeof theirs, "the socket");
    void *other = malloc(theirs);
    must(read(socket, other, theirs) != (ssize_t)theirs, "the socket");
    ucp_ep_params_t ep = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = other};
    must(ucp_ep_create(l.worker, &ep, &l.peer), "UCX: no way to the other");
    ucp_worker_release_address(l.worker, address);
    free(other);
    return l;
}

static void link_wait(struct link *l, void *request)
{
    must(UCS_PTR_IS_ERR(request), "UCX: a transfer failed");
    while (request && ucp_request_check_status(request) == UCS_INPROGRESS)
        ucp_worker_progress(l->worker);
    if (request) {
        must(ucp_request_check_status(request), "UCX: a transfer failed");
        ucp_request_free(request);
    }
}

static void *begin(struct link *l, int sends, void *data, size_t bytes, uint64_t tag)
{
    const ucp_request_param_t plain = {0};
    return sends ? ucp_tag_send_nbx(l->peer, data, bytes, tag, &plain)
                 : ucp_tag_recv_nbx(l->worker, data, bytes, tag, UINT64_MAX, &plain);
}

static void move(struct link *l, int sends, void *data, size_t bytes, uint64_t tag)
{
    link_wait(l, begin(l, sends, data, bytes, tag));
}

/* All pieces at once. */
static void move_pieces(struct link *l, int sends, const aura_extents_info *e)
{
    void **request = malloc((e->n + 1) * sizeof *request);
    for (size_t i = 0; i < e->n; i++)
        request[i] = begin(l, sends, e->pieces[i].data, e->pieces[i].bytes, 100 + i);
    for (size_t i = 0; i < e->n; i++)
        link_wait(l, request[i]);
    free(request);
}

/* ---- the cache ---- */

static aura_cache *cache_new(aura_ctx *ctx)
{
    aura_config config = AURA_CONFIG_INIT;
    aura_cache *cache;
    config.q_heads = Q_HEADS, config.kv_heads = KV_HEADS, config.k_dim = DIM, config.flags = AURA_NO_SEARCH;
    must(aura_cache_create(ctx, &config, &cache), "create");
    return cache;
}

static void append(aura_cache *cache, aura_seq seq, unsigned first, unsigned tokens)
{
    static float k[CHUNK * KV_HEADS * DIM], v[CHUNK * KV_HEADS * DIM];
    for (unsigned done = 0, n; done < tokens; done += n) {
        unsigned x = first + done;
        aura_append_job job = AURA_APPEND_JOB_INIT;
        n = tokens - done < CHUNK ? tokens - done : CHUNK;
        for (size_t i = 0; i < (size_t)n * KV_HEADS * DIM; i++)
            x = x * 1664525 + 1013904223, k[i] = (float)(x >> 8) / (1 << 23) - 1, v[i] = (float)(x & 0xffff) / (1 << 15) - 1;
        job.seq = seq, job.tokens = n, job.k.data = k, job.v.data = v;
        must(aura_append(cache, &job, 1), "append");
    }
}

/* A few steps; what comes out depends on every bit of the cache. */
static void decode(aura_cache *cache, aura_seq seq, unsigned tokens, float *out)
{
    aura_attend_job ask = AURA_ATTEND_JOB_INIT;
    float q[Q_HEADS * DIM];
    for (unsigned step = 0; step < 3; step++) {
        for (int i = 0; i < Q_HEADS * DIM; i++)
            q[i] = (step ? out[i] : 0) * 8 + (float)(i % 13) / 13 - 0.5f;
        append(cache, seq, tokens + step, 1);
        ask.seq = seq, ask.queries = 1, ask.q.data = q, ask.out.data = out;
        must(aura_attend(cache, &ask, 1, NULL), "attend");
    }
}

/* ---- both sides ---- */

static int prefill_and_send(aura_ctx *ctx, int socket, unsigned tokens)
{
    aura_cache *cache = cache_new(ctx);
    aura_seq seq;
    must(aura_seq_create(cache, &seq), "sequence");
    append(cache, seq, 0, tokens);
    struct link l = link_open(socket);
    for (int i = 0; i < ROUNDS; i++) {
        aura_extents *extents;
        aura_extents_info info = AURA_EXTENTS_INFO_INIT;
        must(aura_seq_extents(cache, seq, NULL, &extents) || aura_extents_get_info(extents, &info), "extents");
        move(&l, 1, &info.header_bytes, sizeof info.header_bytes, 1);
        move(&l, 1, (void *)info.header, info.header_bytes, 2);
        move_pieces(&l, 1, &info);
        aura_extents_destroy(extents);
    }
    char done;
    return read(socket, &done, 1) == 1 ? 0 : 1; /* so that nothing is gone before it has arrived */
}

static double copy_bandwidth(const aura_extents_info *e)
{
    double best = 0;
    char *a = malloc(e->bytes), *b = malloc(e->bytes);
    memset(a, 1, e->bytes), memset(b, 2, e->bytes);
    for (int i = 0; i < ROUNDS; i++) {
        const double start = now();
        memcpy(i % 2 ? a : b, i % 2 ? b : a, e->bytes);
        const double rate = (double)e->bytes / (now() - start);
        best = rate > best ? rate : best;
    }
    free(a), free(b);
    return best;
}

static int receive_and_decode(aura_ctx *ctx, int socket, unsigned tokens)
{
    static float out[2][Q_HEADS * DIM];
    aura_cache *cache = cache_new(ctx), *own = cache_new(ctx);
    aura_seq seq = 0, mine;
    aura_extents_info info = AURA_EXTENTS_INFO_INIT;
    double moved = 0, all = 0, copied = 0;
    struct link l = link_open(socket);
    for (int i = 0; i < ROUNDS; i++) {
        aura_extents *extents;
        size_t bytes;
        must(i && aura_seq_release(cache, seq), "release");
        move(&l, 0, &bytes, sizeof bytes, 1);
        void *header = malloc(bytes);
        move(&l, 0, header, bytes, 2);
        const double start = now();
        must(aura_seq_expect(cache, header, bytes, &extents) || aura_extents_get_info(extents, &info), "expect");
        const double ready = now();
        move_pieces(&l, 0, &info);
        const double here = now(), amount = (double)info.bytes;
        copied = i ? copied : copy_bandwidth(&info);
        const double checked = now();
        must(aura_seq_adopt(extents, &seq), "adopt");
        const double end = now();
        moved = amount / (here - ready) > moved ? amount / (here - ready) : moved;
        all = amount / (end - checked + here - start) > all ? amount / (end - checked + here - start) : all;
        aura_extents_destroy(extents), free(header);
    }
    must(aura_seq_create(own, &mine), "sequence");
    append(own, mine, 0, tokens);
    decode(cache, seq, tokens, out[0]), decode(own, mine, tokens, out[1]);
    const int same = !memcmp(out[0], out[1], sizeof out[0]);
    printf("%u tokens, %.1f MB: moved at %.2f GB/s, with checks %.2f GB/s; a plain copy: %.2f GB/s, so %.0f %%; %s\n", tokens,
           (double)info.bytes / 1e6, moved / 1e9, all / 1e9, copied / 1e9, 100 * moved / copied,
           same ? "the next bits are the same" : "the next bits DIFFER");
    return write(socket, "d", 1) == 1 && same ? 0 : 1;
}

int main(int argc, char **argv)
{
    const unsigned tokens = argc > 1 ? (unsigned)atoi(argv[1]) : 8192;
    int ends[2], status = 1;
    aura_ctx *ctx;
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
    const pid_t child = fork();
    must(aura_ctx_create(NULL, &ctx), "context");
    if (child == 0)
        _exit(prefill_and_send(ctx, ends[1], tokens));
    const int bad = receive_and_decode(ctx, ends[0], tokens);
    return waitpid(child, &status, 0) != child || status || bad;
}
