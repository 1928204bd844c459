/* A cache over many processes: what a rank has of it. cluster.c makes it and agrees, cluster_attend.c attends, shards.c
 * saves and loads. */
#ifndef AURA_CLUSTER_H
#define AURA_CLUSTER_H

#include "../../include/aura_mpi.h"
#include "../cache/cache.h"

struct aura_mpi_cache {
    aura_ctx *ctx;
    aura_cache *local;     /* the pages of this rank, of its heads */
    MPI_Comm all, group;   /* everybody; those that share pages, whose ranks are those of pages */
    int rank, ranks;       /* of everybody */
    uint32_t groups;       /* of heads; this rank's is rank % groups */
    double timeout_s;      /* 0: none */
    uint32_t next_shift;
    float *rows;           /* a buffer that grows */
    size_t rows_bytes;
    uint64_t sent_bytes, messages;
    double local_s, waited_s;
};

static inline uint32_t aura_cluster_group(const aura_mpi_cache *c)
{
    return (uint32_t)c->rank % c->groups;
}

/* Waits for requests, and ends the job when that takes too long. `what` is for the message. */
void aura_cluster_wait(aura_mpi_cache *c, MPI_Request *requests, int n, const char *what);

/* What all ranks make of what each has found: of the failures that of the lowest rank, on all of them, with its message. `shape` is
 * a number that must be the same on all ranks. *not_finite, where it is not NULL, becomes 1 where it was on any. */
aura_status aura_cluster_agree(aura_mpi_cache *c, struct aura_call call, aura_status status, uint64_t shape, int *not_finite);

/* A number that differs, nearly always, where what was added to it does. */
static inline uint64_t aura_cluster_mix(uint64_t shape, uint64_t x)
{
    shape = (shape ^ x) * 0x9e3779b97f4a7c15u;
    return shape ^ shape >> 29;
}

/* Combines bytes of all ranks of a communicator with `or`, in pieces. */
void aura_cluster_or(aura_mpi_cache *c, MPI_Comm comm, void *data, size_t bytes, const char *what);

/* Everything of a cache but its local one. Fails, on all ranks, as aura_mpi_cache_create() does. */
aura_status aura_cluster_make(struct aura_call call, aura_ctx *ctx, MPI_Comm comm, const aura_mpi_options *options,
                              aura_mpi_cache **cache);
/* The configuration of this rank's heads. Fails, on this rank alone: AURA_BAD_ARGUMENT, AURA_UNSUPPORTED. */
aura_status aura_cluster_config(const aura_mpi_cache *c, struct aura_call call, const aura_config *whole, aura_config *own);
/* Makes the local cache. Fails on this rank alone. */
aura_status aura_cluster_local(aura_mpi_cache *c, struct aura_call call, aura_ctx *ctx, const aura_config *own);

#endif
