/* Memory of the device: of a cache, or of all layers of a model, which share one budget. */
#include "cache.cuh"

#include <stdlib.h>

/* ---- from the allocator ------------------------------------------------------------------------------------------------ */

aura_status aura_cuda_alloc(const struct aura_cuda_store *s, const char *call, size_t bytes, const char *what, void **memory)
{
    const aura_cuda_allocator *a = &s->allocator;
    *memory = NULL;
    if (!a->alloc)
        return cuda_status(s->ctx, call, cudaMalloc(memory, bytes), what);
    void *given = a->alloc(a->user, bytes, a->stream);
    if (given && (uintptr_t)given % 256) {
        a->free(a->user, given, bytes, a->stream);
        return aura_backend_fail(s->ctx, AURA_BAD_ARGUMENT, "%s: the allocator gave memory that is not aligned to 256", call);
    }
    if (!given)
        return aura_backend_fail(s->ctx, AURA_OUT_OF_MEMORY, "%s: %s: the allocator has no %zu bytes", call, what, bytes);
    /* What comes next is on other streams. */
    const aura_status status = cuda_status(s->ctx, call, cudaStreamSynchronize(a->stream), what);
    if (status)
        a->free(a->user, given, bytes, a->stream);
    else
        *memory = given;
    return status;
}

void aura_cuda_free(const struct aura_cuda_store *s, void *memory, size_t bytes)
{
    if (memory && s->allocator.free)
        s->allocator.free(s->allocator.user, memory, bytes, s->allocator.stream);
    else
        cudaFree(memory);
}

/* ---- slabs ------------------------------------------------------------------------------------------------------------- */

/* The pages of a class that are inside a slab: [*first, *end). */
static void pages_of_slab(const struct aura_cuda_store *s, const struct page_class &k, size_t slab, size_t *first, size_t *end)
{
    const size_t begin = slab * s->slab_bytes, left = s->arena_bytes - begin;
    const size_t stop = begin + (left < s->slab_bytes ? left : s->slab_bytes);
    *first = (begin + k.page_bytes - 1) / k.page_bytes;
    *end = stop / k.page_bytes;
    *end = *end < k.n_pages ? *end : k.n_pages;
    *end = *end > *first ? *end : *first;
}

/* The lowest page goes first. */
static void give_slab(struct aura_cuda_store *s, uint32_t number, size_t slab)
{
    struct page_class &k = s->classes[number];
    size_t first, end;
    pages_of_slab(s, k, slab, &first, &end);
    s->slabs[slab] = number;
    k.given += end - first;
    for (size_t i = end; i-- > first;)
        aura_page_free(&k.pool, &k.page[i]);
}

static bool is_idle(const struct aura_cuda_store *s, const struct page_class &k, size_t slab)
{
    size_t first, end;
    pages_of_slab(s, k, slab, &first, &end);
    for (size_t i = first; i < end; i++)
        if (k.page[i].holders)
            return false;
    return true;
}

/* Takes a slab in which every page is free from its class, whose free pages are listed anew. */
static void take_slab(struct aura_cuda_store *s, size_t slab)
{
    struct page_class &k = s->classes[s->slabs[slab]];
    const uint32_t number = s->slabs[slab];
    s->slabs[slab] = NO_CLASS;
    k.pool.free = NULL, k.pool.n_free = 0, k.given = 0;
    for (size_t i = s->slabs.size(); i-- > 0;) {
        size_t first, end;
        if (s->slabs[i] != number)
            continue;
        pages_of_slab(s, k, i, &first, &end);
        k.given += end - first;
        for (size_t p = end; p-- > first;)
            if (!k.page[p].holders)
                aura_page_free(&k.pool, &k.page[p]);
    }
}

/* A slab that nobody has, or none of whose pages anybody of another class has. */
static size_t find_slab(const struct aura_cuda_store *s, uint32_t number)
{
    for (size_t i = 0; i < s->slabs.size(); i++)
        if (s->slabs[i] == NO_CLASS)
            return i;
    for (size_t i = 0; i < s->slabs.size(); i++)
        if (s->slabs[i] != number && is_idle(s, s->classes[s->slabs[i]], i))
            return i;
    return s->slabs.size();
}

size_t aura_cuda_want_pages(const aura_cuda_cache *c, size_t wanted)
{
    struct aura_cuda_store *s = c->store;
    while (s->classes[c->page_class].pool.n_free < wanted) {
        const size_t slab = find_slab(s, c->page_class);
        if (slab == s->slabs.size())
            break;
        if (s->slabs[slab] != NO_CLASS)
            take_slab(s, slab);
        give_slab(s, c->page_class, slab);
    }
    return s->classes[c->page_class].pool.n_free;
}

/* ---- making ------------------------------------------------------------------------------------------------------------ */

static size_t round_up(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static size_t bytes_of_states(const struct aura_cuda_store *s)
{
    return round_up(s->layers.size() * s->layers[0]->seqs * sizeof(struct dev_seq));
}

/* Which layers have pages of one size. */
static void find_classes(struct aura_cuda_store *s)
{
    for (aura_cuda_cache *c : s->layers) {
        uint32_t i = 0;
        while (i < s->classes.size() && s->classes[i].page_bytes != c->facts.page_bytes)
            i++;
        if (i == s->classes.size())
            s->classes.push_back({c->facts.page_bytes, NULL, 0, 0, {}});
        c->page_class = i;
    }
}

/* What an arena of so many bytes is cut into. */
static void cut_arena(struct aura_cuda_store *s, size_t bytes)
{
    const size_t n = s->classes.size();
    size_t largest = 0;
    for (const struct page_class &k : s->classes)
        largest = k.page_bytes > largest ? k.page_bytes : largest;
    s->arena_bytes = n == 1 ? bytes / largest * largest : bytes / 256 * 256;
    const size_t pages = s->arena_bytes / 16 / n / largest;
    s->slab_bytes = n == 1 ? s->arena_bytes : (pages > 2 ? pages : 2) * largest;
    s->arena_bytes = s->arena_bytes / s->slab_bytes * s->slab_bytes;
}

/* As many pages as the budget holds beside all else, which is known. */
static aura_status plan_arena(struct aura_cuda_store *s, const char *call)
{
    size_t least = 0, largest = 0;
    for (aura_cuda_cache *c : s->layers)
        least += c->facts.page_bytes, largest = c->facts.page_bytes > largest ? c->facts.page_bytes : largest;
    if (s->classes.size() > 1)
        least += 2 * s->classes.size() * largest;
    if (s->budget < s->fixed_bytes + 256 + least)
        return aura_backend_fail(s->ctx, AURA_OUT_OF_PAGES, "%s: in a budget of %zu bytes no page fits; give %zu or more", call,
                                 s->budget, s->fixed_bytes + 256 + least);
    cut_arena(s, s->budget - s->fixed_bytes - 256);
    return AURA_OK;
}

static aura_status plan_memory(struct aura_cuda_store *s, const char *call)
{
    find_classes(s);
    s->fixed_bytes = bytes_of_states(s);
    for (aura_cuda_cache *c : s->layers)
        s->fixed_bytes += aura_cuda_cache_carve(c, NULL);
    return plan_arena(s, call);
}

static aura_status make_classes(struct aura_cuda_store *s, const char *call)
{
    for (struct page_class &k : s->classes) {
        const size_t n = s->arena_bytes / k.page_bytes;
        k.n_pages = (uint32_t)(n < UINT32_MAX ? n : UINT32_MAX - 1);
        k.page = (struct aura_page *)calloc(k.n_pages + 1, sizeof *k.page);
        if (!k.page)
            return aura_backend_fail(s->ctx, AURA_OUT_OF_MEMORY, "%s: no memory for a list of %zu pages", call, n);
    }
    s->slabs.assign((s->arena_bytes + s->slab_bytes - 1) / s->slab_bytes, NO_CLASS);
    if (s->classes.size() == 1)
        give_slab(s, 0, 0);
    return AURA_OK;
}

aura_status aura_cuda_store_make(struct aura_cuda_store *s, const char *call)
{
    aura_status status = plan_memory(s, call);
    void *fixed = NULL, *arena = NULL;
    if (status || (status = make_classes(s, call)) ||
        (status = aura_cuda_alloc(s, call, s->fixed_bytes, "allocating the tables", &fixed)))
        return status;
    s->fixed = (uint8_t *)fixed;
    if ((status = aura_cuda_alloc(s, call, s->arena_bytes, "allocating the pages", &arena)))
        return status;
    s->arena = (uint8_t *)arena;
    uint8_t *at = s->fixed + bytes_of_states(s);
    for (size_t i = 0; i < s->layers.size() && !status; i++) {
        aura_cuda_cache *c = s->layers[i];
        struct page_class &k = s->classes[c->page_class];
        c->store = s;
        c->n_pages = k.n_pages;
        c->dev.pages = s->arena;
        c->dev.seqs = (struct dev_seq *)s->fixed + i * c->seqs;
        at += aura_cuda_cache_carve(c, at);
        if (aura_page_table_make_in(&c->page_table, c->seqs, k.page, k.n_pages, &k.pool, &c->dev.window))
            status = aura_backend_fail(s->ctx, AURA_OUT_OF_MEMORY, "%s: no memory for lists of %u sequences", call, c->seqs);
        else
            status = aura_cuda_cache_finish(c, call);
    }
    return status;
}

void aura_cuda_store_unmake(struct aura_cuda_store *s)
{
    on_device here(s->device);
    for (aura_cuda_cache *c : s->layers) {
        aura_page_table_unmake(&c->page_table);
        aura_cache_destroy(c->shape);
        free(c->known);
        delete c;
    }
    aura_cuda_free(s, s->arena, s->arena_bytes);
    aura_cuda_free(s, s->fixed, s->fixed_bytes);
    for (struct page_class &k : s->classes)
        free(k.page);
}

/* ---- another budget ---------------------------------------------------------------------------------------------------- */

/* Where the pages of a class are to go: to[n] is the new number of page n, NO_CLASS of one that nobody has. */
struct moved {
    uint32_t *to;
    struct page_class now;
};

/* The store with a new arena, which is not there yet, and the places of all pages in it. */
struct resized {
    struct aura_cuda_store s;
    std::vector<struct moved> classes;
    ~resized()
    {
        for (struct moved &m : classes)
            free(m.to), free(m.now.page);
    }
};

/* The next slab for a class; pages go to [*first, *end) of it. */
static bool next_slab(struct resized &r, uint32_t number, size_t *first, size_t *end)
{
    for (size_t i = 0; i < r.s.slabs.size(); i++)
        if (r.s.slabs[i] == NO_CLASS) {
            r.s.slabs[i] = number;
            pages_of_slab(&r.s, r.classes[number].now, i, first, end);
            return true;
        }
    return false;
}

/* Pages that are in use come first, in their order; what is left of the last slab is free. */
static aura_status place_pages(const struct aura_cuda_store *s, const char *call, struct resized &r, uint32_t number)
{
    const struct page_class &was = s->classes[number];
    struct moved &m = r.classes[number];
    size_t first = 0, end = 0;
    for (uint32_t i = 0; i < was.n_pages; i++) {
        m.to[i] = NO_CLASS;
        if (!was.page[i].holders)
            continue;
        while (first == end)
            if (!next_slab(r, number, &first, &end))
                return aura_backend_fail(s->ctx, AURA_OUT_OF_PAGES,
                                         "%s: the pages that are in use do not fit into a budget of %zu bytes", call, r.s.budget);
            else
                m.now.given += end - first;
        m.to[i] = (uint32_t)first++;
        m.now.page[m.to[i]] = was.page[i];
    }
    for (size_t i = end; i-- > first;)
        aura_page_free(&m.now.pool, &m.now.page[i]);
    return AURA_OK;
}

static aura_status plan_resize(const struct aura_cuda_store *s, const char *call, size_t budget, struct resized &r)
{
    r.s = *s;
    r.s.budget = budget;
    aura_status status = plan_arena(&r.s, call);
    if (status)
        return status;
    r.s.slabs.assign(r.s.arena_bytes / r.s.slab_bytes, NO_CLASS);
    for (uint32_t i = 0; i < s->classes.size() && !status; i++) {
        struct moved m = {NULL, s->classes[i]};
        const size_t n = r.s.arena_bytes / m.now.page_bytes;
        m.now.n_pages = (uint32_t)(n < UINT32_MAX ? n : UINT32_MAX - 1), m.now.given = 0;
        m.now.pool.free = NULL, m.now.pool.n_free = 0;
        m.now.page = (struct aura_page *)calloc(m.now.n_pages + 1, sizeof *m.now.page);
        m.to = (uint32_t *)calloc(s->classes[i].n_pages + 1, sizeof *m.to);
        r.classes.push_back(m);
        if (!m.now.page || !m.to)
            return aura_backend_fail(s->ctx, AURA_OUT_OF_MEMORY, "%s: no memory for a list of %zu pages", call, n);
        status = place_pages(s, call, r, i);
    }
    return status;
}

/* The bytes of all pages to the new arena; neighbours that stay such go together. */
static cudaError_t copy_pages(const struct aura_cuda_store *s, const struct resized &r)
{
    cudaError_t error = cudaSuccess;
    for (uint32_t k = 0; k < s->classes.size(); k++) {
        const struct moved &m = r.classes[k];
        const size_t bytes = m.now.page_bytes;
        for (uint32_t i = 0, n; i < s->classes[k].n_pages && error == cudaSuccess; i += n) {
            n = 1;
            if (m.to[i] == NO_CLASS)
                continue;
            while (i + n < s->classes[k].n_pages && m.to[i + n] == m.to[i] + n)
                n++;
            error = cudaMemcpyAsync(r.s.arena + m.to[i] * bytes, s->arena + i * bytes, n * bytes, cudaMemcpyDeviceToDevice, 0);
        }
    }
    return when_done(error);
}

/* Lists of the host have the new pages. Entries of pages that are gone, which nobody reads, have the first. */
static void move_lists(aura_cuda_cache *c, const struct moved &m, const struct page_class &was)
{
    struct aura_page_table *t = &c->page_table;
    for (uint32_t i = 0; i < t->n_seqs; i++)
        for (size_t p = 0; p < t->seq[i].capacity; p++) {
            const struct aura_page *page = t->seq[i].page[p];
            const uint32_t to = page ? m.to[page - was.page] : NO_CLASS;
            if (page)
                t->seq[i].page[p] = &m.now.page[to == NO_CLASS ? 0 : to];
        }
    t->page = m.now.page;
    t->n_pages = m.now.n_pages;
}

static aura_status use_arena(struct aura_cuda_store *s, const char *call, struct resized &r)
{
    aura_status status = AURA_OK;
    for (aura_cuda_cache *c : s->layers) {
        const struct moved &m = r.classes[c->page_class];
        move_lists(c, m, s->classes[c->page_class]);
        c->n_pages = m.now.n_pages;
        c->dev.pages = r.s.arena;
        status = status ? status : aura_cuda_write_lists(c, call);
        for (const struct attend_kernel &k : c->kernels)
            if (k.tile_rows && !status)
                status = aura_cuda_make_tile_map(c, call, k.tile_rows);
    }
    aura_cuda_free(s, s->arena, s->arena_bytes);
    for (uint32_t i = 0; i < s->classes.size(); i++) {
        free(s->classes[i].page);
        s->classes[i] = r.classes[i].now;
        r.classes[i].now.page = NULL;
    }
    s->arena = r.s.arena, s->arena_bytes = r.s.arena_bytes, s->slab_bytes = r.s.slab_bytes, s->budget = r.s.budget;
    s->slabs = r.s.slabs;
    if (s->classes.size() == 1 && s->slabs[0] == NO_CLASS)
        give_slab(s, 0, 0);
    return status ? status : cuda_status(s->ctx, call, when_done(cudaSuccess), "writing the page tables");
}

aura_status aura_cuda_store_resize(struct aura_cuda_store *s, const char *call, size_t budget)
{
    struct resized r;
    void *arena = NULL;
    on_device here(s->device);
    aura_status status = plan_resize(s, call, budget, r);
    if (status || (status = aura_cuda_alloc(s, call, r.s.arena_bytes, "allocating the pages", &arena)))
        return status;
    r.s.arena = (uint8_t *)arena;
    if ((status = cuda_status(s->ctx, call, copy_pages(s, r), "copying pages"))) {
        aura_cuda_free(s, arena, r.s.arena_bytes);
        return status;
    }
    return use_arena(s, call, r);
}
