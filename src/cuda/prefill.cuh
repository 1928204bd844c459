/* Attention of many queries: what is cached becomes images (image.cuh), once, and a tile of 128 rows at a time attends to them.
 * One launch does both, on blocks of threads that take work until there is none:
 *
 *     block   128 tokens of a KV head: one image. The images of a call are numbered; number x lies at x modulo the images that
 *             there is room for
 *     chunk   images of a head that one tile attends to in one go: all that its sequence's queries see, or, where they would take
 *             more than half the room, a part of them. What a tile has after a part is carried to the next one
 *     item    a tile of rows and a chunk
 *
 * Chunks and items are taken in order, of a chunk some images at a time. Before a block of threads does the item that it has
 * taken, it takes images as long as there are any of that item's chunk, or the next one. Warps that do nothing else take images of
 * any chunk meanwhile. An image waits until all items are done that read what is in its place, which are of earlier chunks; an item
 * waits for images of its chunk. So whoever has the first item that is not done waits for nobody who waits, and the call ends
 * however few blocks of threads run at once. Where there is room for more than one chunk, images are made ahead.
 *
 * Where there are fewer items than blocks of threads, chunks are cut into parts that are attended to side by side: then a tile
 * leaves what it has after each part, and the last to be done with a tile adds the parts up, in their order. Not so in a cache
 * that is batch-invariant.
 *
 * The lengths are the device's, so a first launch makes the list of jobs (sequences of the call), and sets everything to 0. */
#ifndef AURA_CUDA_PREFILL_CUH
#define AURA_CUDA_PREFILL_CUH

#include "image.cuh"
#include "whole_rows.cuh"

/* Heads whose parts are on their way at once; what is carried of a row besides its channels: two maxima, and the sums of four
 * lanes. */
enum { PREFILL_CARRY = 2, PREFILL_CARRIED = 6 };

#define PREFILL_QUERY_TOP 1024.f /* largest coordinate of a query as f16 */

/* A sequence of the call. */
struct alignas(16) prefill_job {
    uint32_t seq, len, closed, count;   /* seq: n_seqs where there is none; count: its queries */
    uint32_t first_block, kept, blocks; /* that its queries see: the first `kept`, then from first_block on */
    uint32_t parts, tiles;              /* of a head; of a chunk */
    uint32_t block, chunk, item, carry; /* of all jobs before; carry: heads that have several parts */
    uint32_t carried;                   /* when chunks before this one are done, its first head may be carried */
    uint32_t unused[2];
};

/* How far the call is. */
struct prefill_state {
    uint32_t next_chunk, next_item; /* chunks before this one have no image that nobody has taken; the first item likewise */
    uint32_t done;                  /* chunks before this one are done */
    uint32_t part, way;             /* the most images that a chunk has; what becomes of parts */
    uint32_t unused[3];
};

/* Parts of a head follow each other; the first parts of all heads come before the second ones; all are attended to side by side. */
enum { PREFILL_NARROW, PREFILL_WIDE, PREFILL_BESIDE };

struct prefill_chunk {
    uint32_t taken; /* images that somebody has taken, or more; PREFILL_CLOSED and the number of the chunk that comes here next */
    uint32_t items; /* that are done */
    uint32_t done;  /* its number plus 1 when all items are */
    uint32_t unused;
};

struct dev_prefill {
    struct dev_attend a;
    struct dev_images im;
    struct prefill_job *jobs;      /* [n_seqs + 1]; the last one has the totals */
    struct prefill_state *state;
    struct prefill_chunk *chunks;  /* [room]: number c is at c modulo room */
    uint32_t *made;                /* [room]: the number, plus 1, of the image that is there */
    uint8_t *images;
    uint32_t room;                 /* images that there is room for */
    float *carry;                  /* [tiles][tile_rows][v_dim + PREFILL_CARRIED]: PREFILL_CARRY times carry_tiles of them; or
                                    * beside, where parts are attended to side by side, that of each item */
    uint32_t *tiles_done;          /* [items]: parts of a tile that are done, at the number of its first item */
    uint32_t carry_tiles, beside;  /* beside: items that there can be side by side; 0: there are no such parts */
    uint32_t tile_rows;
};

enum : uint32_t { PREFILL_CLOSED = 1u << 31 };

/* A piece of work, in shared memory. */
enum { PREFILL_NOTHING, PREFILL_IMAGE, PREFILL_ITEM };
struct prefill_work {
    uint32_t what, job, head, part, tile;
    uint32_t first;          /* of the images, among those of the head */
    uint32_t chunk, images;  /* images: that are to be made, or of the chunk */
    uint32_t block;          /* the number, in the call, of the first of them */
    uint32_t carry;          /* where the tile's carry is */
    uint32_t last;           /* 1: this was the last part of its tile */
    uint32_t help;           /* before an item: images are taken of chunks before this one */
};

/* ---- numbers ---------------------------------------------------------------------------------------------------------- */

/* The last job whose `before` is not above x. */
__device__ __forceinline__ uint32_t job_before(const struct dev_prefill &p, uint32_t x, uint32_t prefill_job::*before)
{
    uint32_t low = 0, high = p.a.n_seqs;
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (p.jobs[middle].*before <= x)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The chunk of image number `block` of the call. Chunks follow each other head by head, or, where parts are wide, part by part. */
__device__ __forceinline__ uint32_t chunk_of_block(const struct dev_prefill &p, uint32_t block)
{
    const struct prefill_job &j = p.jobs[job_before(p, block, &prefill_job::block)];
    const uint32_t local = block - j.block, part = p.state->part, heads = p.a.c.kv_heads;
    if (p.state->way != PREFILL_WIDE)
        return j.chunk + local / j.blocks * j.parts + local % j.blocks / part;
    const uint32_t which = local / (part * heads);
    return j.chunk + which * heads + (local - which * part * heads) / min(part, j.blocks - which * part);
}

/* The images of a chunk. */
__device__ __forceinline__ void describe_chunk(const struct dev_prefill &p, struct prefill_work &w, uint32_t chunk)
{
    w.job = job_before(p, chunk, &prefill_job::chunk);
    const struct prefill_job &j = p.jobs[w.job];
    const uint32_t local = chunk - j.chunk, part = p.state->part, heads = p.a.c.kv_heads;
    const bool wide = p.state->way == PREFILL_WIDE;
    w.chunk = chunk;
    w.head = wide ? local % heads : local / j.parts, w.part = wide ? local / heads : local % j.parts;
    w.first = w.part * part, w.images = min(part, j.blocks - w.first);
    w.block = j.block + (wide ? w.first * heads + w.head * w.images : w.head * j.blocks + w.first);
}

/* The token that image i of a head begins with. */
__device__ __forceinline__ uint32_t token_of_image(const struct prefill_job &j, uint32_t i)
{
    return (i < j.kept ? i : j.first_block + i - j.kept) * IMAGE_TOKENS;
}

/* The number, in the call, of image i of the head; where it is. */
__device__ __forceinline__ uint32_t image_number(const struct prefill_work &w, uint32_t i)
{
    return w.block + i - w.first;
}

__device__ __forceinline__ uint8_t *image_place(const struct dev_prefill &p, const struct prefill_work &w, uint32_t i)
{
    return p.images + (size_t)(image_number(w, i) % p.room) * p.im.bytes;
}

/* Asks the second cache for the pages of the images that are to be made; by some warps, of which this is number `warp`. */
__device__ __forceinline__ void prefetch_pages(const struct dev_prefill &p, const struct prefill_work &w, uint32_t warp,
                                               uint32_t warps)
{
    const struct prefill_job &j = p.jobs[w.job];
    for (uint32_t i = w.first + warp; i < w.first + w.images; i += warps) {
        const uint32_t token = token_of_image(j, i);
        if (token < j.len)
            prefetch_bytes(page_head(p.a.c, j.seq, token / AURA_PAGE, w.head) +
                               token % AURA_PAGE / AURA_TILE * p.a.c.tile_bytes, IMAGE_TOKENS / AURA_TILE * p.a.c.tile_bytes);
    }
}

/* ---- by one thread of a block ----------------------------------------------------------------------------------------- */

/* Until a count has come so far. Only the last look is one that makes what was written before visible: it empties the first
 * cache, where the jobs are. */
__device__ __forceinline__ void wait_for_count(const uint32_t *count, uint32_t least)
{
    while (load_relaxed(count) < least)
        wait_a_little();
    load_acquire(count);
}

__device__ __forceinline__ void wait_for_chunks(const struct dev_prefill &p, uint32_t before)
{
    if (before)
        wait_for_count(&p.state->done, before);
}

/* The first image of a chunk that nobody has taken, and those after it, `most` in all; of chunks before `end`. */
__device__ __forceinline__ bool take_images(const struct dev_prefill &p, struct prefill_work &w, uint32_t end, uint32_t most)
{
    for (uint32_t chunk = load_relaxed(&p.state->next_chunk); chunk < end; chunk++) {
        struct prefill_chunk *c = &p.chunks[chunk % p.room];
        describe_chunk(p, w, chunk);
        if (chunk >= p.room) {
            wait_for_chunks(p, chunk - p.room + 1); /* that was in the same place */
            atomicCAS(&c->taken, PREFILL_CLOSED | chunk, 0u);
        }
        const uint32_t at = load_relaxed(&c->taken) < w.images ? atomicAdd(&c->taken, most) : w.images;
        if (at < w.images) {
            if (at + most >= w.images)
                atomicMax(&p.state->next_chunk, chunk + 1);
            w.what = PREFILL_IMAGE;
            w.first += at, w.block += at, w.images = min(w.images - at, most);
            if (w.block + w.images > p.room)
                wait_for_chunks(p, chunk_of_block(p, w.block + w.images - 1 - p.room) + 1);
            return true;
        }
    }
    return false;
}

__device__ __forceinline__ void describe_item(const struct dev_prefill &p, struct prefill_work &w, uint32_t item)
{
    const struct prefill_job &j = p.jobs[job_before(p, item, &prefill_job::item)];
    const uint32_t local = item - j.item, of_head = local / j.tiles;
    describe_chunk(p, w, j.chunk + of_head);
    w.what = PREFILL_ITEM;
    w.tile = j.tiles - 1 - local % j.tiles; /* the last rows see most: first come those that take longest */
    w.carry = p.state->way == PREFILL_BESIDE ? item
              : p.state->way == PREFILL_WIDE ? j.carry / p.a.c.kv_heads % 2 * (p.beside / 2) + w.head * j.tiles + w.tile
                                             : (j.carry + w.head) % PREFILL_CARRY * p.carry_tiles + w.tile;
}

/* Waits for chunks that must be done before an item: those that were in the same place, and the part before. Before a first part,
 * those that were carried in its place, of which there are two: of the heads that have several parts the one before the last; where
 * parts are wide, the job before the last. */
__device__ __forceinline__ void wait_for_turn(const struct dev_prefill &p, const struct prefill_work &w)
{
    const struct prefill_job &j = p.jobs[w.job];
    const bool wide = p.state->way == PREFILL_WIDE;
    uint32_t before = w.chunk >= p.room ? w.chunk - p.room + 1 : 0;
    if (w.part && p.state->way != PREFILL_BESIDE)
        before = wide ? w.chunk - p.a.c.kv_heads + 1 : w.chunk;
    else if (j.parts > 1 && p.state->way != PREFILL_BESIDE)
        before = max(before, wide || w.head == 0 ? j.carried : w.chunk - j.parts);
    wait_for_chunks(p, before);
}

/* The next item, for a block of threads in which some warps do nothing but make images. The others help them before it, until all
 * images of its chunk are taken; all images of the call, where there is room for them and nobody will have another item: the call
 * then takes as long as the item that begins last. */
__device__ __forceinline__ void take_item(const struct dev_prefill &p, struct prefill_work &w)
{
    const struct prefill_job &all = p.jobs[p.a.n_seqs];
    const uint32_t item = atomicAdd(&p.state->next_item, 1);
    if (item >= all.item) {
        w.what = PREFILL_NOTHING, w.help = all.chunk;
        return;
    }
    describe_item(p, w, item);
    w.help = item + gridDim.x >= all.item && all.block <= p.room ? all.chunk : w.chunk + 1;
    wait_for_turn(p, w);
}

/* Images, `most` at once, or an item. held: the item that this block of threads has taken and not done; ~0: none. */
__device__ __forceinline__ void take_work(const struct dev_prefill &p, struct prefill_work &w, uint32_t &held, uint32_t most)
{
    const uint32_t items = p.jobs[p.a.n_seqs].item, chunks = p.jobs[p.a.n_seqs].chunk;
    if (held == ~0u)
        held = atomicAdd(&p.state->next_item, 1);
    uint32_t end = chunks;
    if (held < items) {
        describe_item(p, w, held);
        end = min(w.chunk + 2, chunks);
    }
    if (take_images(p, w, end, most))
        return;
    w.what = PREFILL_NOTHING;
    if (held >= items)
        return;
    describe_item(p, w, held);
    held = ~0u;
    wait_for_turn(p, w);
}

/* After a barrier: these images are there. */
__device__ __forceinline__ void images_made(const struct dev_prefill &p, const struct prefill_work &w)
{
    __threadfence();
    for (uint32_t i = w.block; i < w.block + w.images; i++)
        atomicExch(&p.made[i % p.room], i + 1);
}

/* After a barrier: this item is done. */
__device__ __forceinline__ void item_done(const struct dev_prefill &p, const struct prefill_work &w)
{
    struct prefill_chunk *c = &p.chunks[w.chunk % p.room];
    if (arrive(&c->items) < p.jobs[w.job].tiles - 1)
        return;
    c->taken = PREFILL_CLOSED | (w.chunk + p.room), c->items = 0; /* who thinks that it is still to be made finds it closed */
    __threadfence();
    c->done = w.chunk + 1;
    __threadfence();
    const uint32_t chunks = p.jobs[p.a.n_seqs].chunk;
    for (uint32_t at = load_acquire(&p.state->done); at < chunks && load_acquire(&p.chunks[at % p.room].done) == at + 1;
         at = load_acquire(&p.state->done)) {
        atomicCAS(&p.state->done, at, at + 1);
        __threadfence();
    }
}

/* ---- rows ------------------------------------------------------------------------------------------------------------- */

/* Row r of a tile. */
__device__ __forceinline__ struct row_info prefill_row(const struct dev_prefill &p, const struct prefill_work &w, uint32_t r)
{
    const struct prefill_job &j = p.jobs[w.job];
    struct row_info row = {};
    const uint32_t index = w.tile * p.tile_rows + r;
    row.there = index < j.count * p.a.c.ratio;
    const uint32_t query = row.there ? aura_divide(index, p.a.by_ratio) : 0;
    row.query = row.there ? first_query_of_job(p.a, w.job) + query : 0;
    row.head = w.head * p.a.c.ratio + (row.there ? index - query * p.a.c.ratio : 0);
    const uint2 seen = row.there ? tokens_seen(p.a, w.job, j.len, j.count, query) : make_uint2(0, 0);
    row.begin = seen.x, row.end = seen.y;
    return row;
}

/* Which images of a chunk a tile attends to: `kept` of the head from kept_from on, and numbers [from, to). Tokens [begin, end) are
 * seen by every row. */
struct tile_reach {
    uint32_t kept_from, kept, from, to;
    uint32_t begin, end;
    uint32_t token; /* that image 0 of these would begin with, were none kept */
};

__device__ __forceinline__ struct tile_reach tile_reach_of(const struct dev_prefill &p, const struct prefill_work &w)
{
    const struct prefill_job &j = p.jobs[w.job];
    const uint32_t ratio = p.a.c.ratio, rows = j.count * ratio, first = w.tile * p.tile_rows;
    const uint32_t low = aura_divide(first, p.a.by_ratio), high = aura_divide(min(first + p.tile_rows, rows) - 1, p.a.by_ratio);
    const uint2 *given = p.a.seen; /* queries say themselves what they see: any row may see any of it */
    const uint32_t low_end = given ? 0 : (uint32_t)aura_seen_end(j.len, j.count, low, p.a.not_causal),
                   high_end = given ? min(given[w.job].y, j.len) : (uint32_t)aura_seen_end(j.len, j.count, high, p.a.not_causal);
    struct tile_reach t;
    const uint32_t begin = given ? min(given[w.job].x, j.len) : (uint32_t)aura_seen_begin(low_end, p.a.window);
    t.begin = (uint32_t)aura_seen_begin(high_end, p.a.window), t.end = low_end;
    t.from = begin / IMAGE_TOKENS - j.first_block + j.kept;
    t.to = high_end > j.first_block * IMAGE_TOKENS ? (high_end - 1) / IMAGE_TOKENS + 1 - j.first_block + j.kept : 0;
    const uint32_t kept = high_end ? min((p.a.c.keep_first + IMAGE_TOKENS - 1) / IMAGE_TOKENS, t.from) : 0;
    t.kept_from = w.first, t.kept = max(min(kept, w.first + w.images), w.first) - w.first;
    t.from = max(t.from, w.first), t.to = min(t.to, w.first + w.images);
    t.token = (j.first_block - j.kept + t.from - t.kept) * IMAGE_TOKENS;
    return t;
}

/* The token that the i-th image of a tile begins with. */
__device__ __forceinline__ uint32_t token_of(const struct tile_reach &t, uint32_t i)
{
    return i < t.kept ? (t.kept_from + i) * IMAGE_TOKENS : t.token + i * IMAGE_TOKENS;
}

/* How many images there are, and the i-th of them: its number among those of the head. */
__device__ __forceinline__ uint32_t images_of(const struct tile_reach &t)
{
    return t.kept + (t.to > t.from ? t.to - t.from : 0);
}

__device__ __forceinline__ uint32_t image_of(const struct tile_reach &t, uint32_t i)
{
    return i < t.kept ? t.kept_from + i : t.from + i - t.kept;
}

/* By some threads: until all images of the item's chunk are there. */
__device__ __forceinline__ void wait_for_images(const struct dev_prefill &p, const struct prefill_work &w, uint32_t thread,
                                                uint32_t threads)
{
    for (uint32_t i = w.block + thread; i < w.block + w.images; i += threads)
        wait_for_count(&p.made[i % p.room], i + 1);
}

/* By a warp: how many images of a tile are there from the i-th on, of 32. Waits until one is. */
__device__ __forceinline__ uint32_t images_there(const struct dev_prefill &p, const struct prefill_work &w,
                                                 const struct tile_reach &t, uint32_t i)
{
    const uint32_t mine = i + threadIdx.x % 32, number = image_number(w, image_of(t, mine));
    for (;;) {
        const bool there = mine < images_of(t) && load_relaxed(&p.made[number % p.room]) == number + 1;
        const uint32_t n = min(32u, (uint32_t)__ffs((int)~__ballot_sync(~0u, there)) - 1);
        if (n) {
            __threadfence();
            __syncwarp();
            return n;
        }
        wait_a_little();
    }
}

/* Whether every row sees all tokens of the image that begins with this one. */
__device__ __forceinline__ bool is_all_seen(const struct tile_reach &t, uint32_t token)
{
    return token >= t.begin && token + IMAGE_TOKENS <= t.end;
}

/* What is kept of row r of a tile after a part; `carry`: where that of the tile is. */
__device__ __forceinline__ float *carry_of(const struct dev_prefill &p, uint32_t carry, uint32_t r)
{
    return p.carry + ((size_t)carry * p.tile_rows + r) * (p.a.c.v_dim + PREFILL_CARRIED);
}

/* Whether the tile is done with this part, and if not, whether what it has is kept: parts side by side keep all. */
__device__ __forceinline__ bool is_last_part(const struct dev_prefill &p, const struct prefill_work &w)
{
    return w.part + 1 == p.jobs[w.job].parts && (!w.part || p.state->way != PREFILL_BESIDE);
}

/* Parts side by side: by one thread, when what the tile has was kept. The last to come finishes the tile. */
__device__ __forceinline__ void tile_done(const struct dev_prefill &p, struct prefill_work &w)
{
    const struct prefill_job &j = p.jobs[w.job];
    w.last = p.state->way == PREFILL_BESIDE && arrive(&p.tiles_done[j.item + w.head * j.parts * j.tiles + w.tile]) == j.parts - 1;
}

/* Where the carry of part i of the tile is. */
__device__ __forceinline__ uint32_t carry_of_part(const struct dev_prefill &p, const struct prefill_work &w, uint32_t i)
{
    return w.carry + i * p.jobs[w.job].tiles - w.part * p.jobs[w.job].tiles;
}

/* A row to the caller's tensor, by one warp. o, in shared memory: weights times values, in rotated space where values are codes.
 * space: as long as o. */
__device__ __forceinline__ void finish_prefill(const struct dev_prefill &p, const struct prefill_work &w,
                                               const struct row_info &row, float *o, float *space, float m, float l)
{
    struct split g = {};
    g.job = w.job, g.seq = p.jobs[w.job].seq, g.head = w.head;
    row_from_shared(p.a, g, row, o, space, m, l);
}

#endif
