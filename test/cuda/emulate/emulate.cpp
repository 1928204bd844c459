/* Runs the threads of a block as fibers, one block after the other, and says so when they wait for each other in vain. Memory that
 * is allocated ends at a page that nobody may touch, and begins as bytes that are no numbers; so does shared memory. x86-64
 * only. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "cuda_fp16.h" /* after those: they have a __noinline__ of their own */
#include "emulated_words.h"
#include "emulated_sm90.h"

enum { MULTIPROCESSORS = 3, SHARED_BYTES = 227 * 1024, PARAM_BYTES = 8192, STACK_BYTES = 256 * 1024, MOST_THREADS = 1024,
      POISON = 0xcb };

dim3 threadIdx, blockIdx, blockDim, gridDim;
alignas(128) uint8_t emulate_shared[SHARED_BYTES + 1024];

/* Whoever loads a library with this in it may give addresses of the host to it. */
extern "C" __attribute__((visibility("default"))) int aura_cuda_emulated = 1;

static cudaError_t lost = cudaSuccess; /* not cudaSuccess: from then on everything fails */

/* ---- fibers ----------------------------------------------------------------------------------------------------------- */

/* Puts what must survive a call onto the stack, that into *from, and goes on where `to` was left. */
extern "C" void emulate_switch(void **from, void *to);
asm(".text\n.globl emulate_switch\nemulate_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

struct copy {
    void *to; /* NULL: the end of a group */
    const void *from;
};

struct fiber {
    void *sp;
    bool alive;
    const uint32_t *waits_for; /* a count that goes on when it may; NULL: it may */
    uint32_t was;
    std::vector<struct copy> ahead;
};

struct warp {
    uint32_t generation, arrived, live;
    uint32_t slot[2][32][8];
};

static struct fiber fibers[MOST_THREADS];
static struct warp warps[MOST_THREADS / 32];
static uint32_t block_generation, block_arrived, block_live, block_or[2];
static uint32_t current, threads;
static void *scheduler;
static const char *kernel_name = "?";

static void *stack_of(uint32_t i)
{
    static uint8_t *all;
    if (!all)
        all = (uint8_t *)mmap(NULL, (size_t)MOST_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return all + (size_t)i * STACK_BYTES;
}

static void run(uint32_t i, void **from)
{
    current = i;
    threadIdx = dim3(i);
    emulate_switch(from, fibers[i].sp);
}

/* The next one that may run, from the current one on; back to the scheduler when there is none. */
static void pass_on(void **from)
{
    for (uint32_t n = 1; n <= threads; n++) {
        const uint32_t i = (current + n) % threads;
        if (fibers[i].alive && (!fibers[i].waits_for || *fibers[i].waits_for != fibers[i].was)) {
            fibers[i].waits_for = NULL;
            if (i == current && from == &fibers[i].sp)
                return;
            run(i, from);
            return;
        }
    }
    if (from != &scheduler) /* that is where it already is */
        emulate_switch(from, scheduler);
}

static void wait_for(const uint32_t *count)
{
    struct fiber *f = &fibers[current];
    f->was = *count;
    f->waits_for = count;
    pass_on(&f->sp);
    threadIdx = dim3(current);
}

const uint32_t (*emulate_warp(const uint32_t *mine, int words))[8]
{
    struct warp *w = &warps[current / 32];
    const uint32_t turn = w->generation % 2;
    if (words)
        memcpy(w->slot[turn][current % 32], mine, (size_t)words * 4);
    if (++w->arrived == w->live) {
        w->arrived = 0;
        w->generation++;
    } else {
        wait_for(&w->generation);
    }
    return w->slot[turn];
}

int __syncthreads_or(int condition)
{
    const uint32_t turn = block_generation % 2;
    block_or[turn] |= condition != 0;
    if (++block_arrived == block_live) {
        block_arrived = 0;
        block_or[!turn] = 0;
        block_generation++;
    } else {
        wait_for(&block_generation);
    }
    return (int)block_or[turn];
}

void __syncthreads()
{
    __syncthreads_or(0);
}

void copy_ahead(void *shared, const void *from)
{
    fibers[current].ahead.push_back({shared, from});
}

/* ---- barriers in shared memory ----------------------------------------------------------------------------------------- */

struct meeting {
    uint16_t count, missing;
    uint32_t phase_bytes; /* twice the bytes that are missing, plus the parity */
};

struct bulk {
    void *to;
    const void *from;
    uint32_t bytes;
    struct meeting *at;
    bool swizzled;
};

static std::vector<struct bulk> bulks;
static uint32_t groups_generation, groups_arrived;
static uint32_t look_again, looks; /* of the block: how often its threads have looked */
static bool somebody_looks;

static void meeting_look(struct meeting *m)
{
    if (m->missing == 0 && m->phase_bytes < 2)
        m->missing = m->count, m->phase_bytes ^= 1;
}

void meeting_init(uint64_t *at, uint32_t count)
{
    *(struct meeting *)at = {(uint16_t)count, (uint16_t)count, 0};
}

void meeting_arrive(uint64_t *at)
{
    meeting_expect(at, 0);
}

void meeting_expect(uint64_t *at, uint32_t bytes)
{
    struct meeting *m = (struct meeting *)at;
    m->phase_bytes += 2 * bytes, m->missing--;
    meeting_look(m);
}

void meeting_wait(uint64_t *at, uint32_t parity)
{
    struct meeting *m = (struct meeting *)at;
    while (m->phase_bytes % 2 == parity)
        wait_for(&m->phase_bytes);
}

void copy_bulk(void *shared, const void *from, uint32_t bytes, uint64_t *at)
{
    bulks.push_back({shared, from, bytes, (struct meeting *)at, false});
}

/* The oldest copy that has not been done. False: there is none. */
static bool do_copy()
{
    if (bulks.empty())
        return false;
    const struct bulk b = bulks[0];
    bulks.erase(bulks.begin());
    for (uint32_t i = 0; i < b.bytes; i += 16) {
        const uintptr_t to = (uintptr_t)b.to + i;
        memcpy((void *)(b.swizzled ? to ^ (to / 128 & 7) << 4 : to), (const uint8_t *)b.from + i, 16);
    }
    b.at->phase_bytes -= 2 * b.bytes;
    meeting_look(b.at);
    return true;
}

void copy_tile(void *shared, const struct tile_map *map, uint32_t row, uint32_t head, uint64_t *at)
{
    bulks.push_back({shared, map->pages + head * map->head_bytes + row * 128, map->box_rows * 128, (struct meeting *)at, true});
}

bool group_any(uint32_t group, bool condition)
{
    static uint32_t generation[8], arrived[8], any[8][2];
    const uint32_t turn = generation[group] % 2;
    any[group][turn] |= condition;
    if (++arrived[group] == 128) {
        arrived[group] = 0, any[group][!turn] = 0;
        generation[group]++;
    } else {
        wait_for(&generation[group]);
    }
    return any[group][turn];
}

void meet_groups()
{
    if (++groups_arrived == 256)
        groups_arrived = 0, groups_generation++;
    else
        wait_for(&groups_generation);
}

/* Goes on when no other thread of the block can. Other blocks do nothing meanwhile: who looks that often waits for one of them. */
void wait_a_little()
{
    enum { MOST_LOOKS = 1 << 22 };
    if (++looks > MOST_LOOKS) {
        fprintf(stderr, "emulated device: %s, block (%u, %u) waits for another one\n", kernel_name, blockIdx.x, blockIdx.y);
        abort();
    }
    somebody_looks = true;
    wait_for(&look_again);
}

static bool wake_those_who_look()
{
    const bool any = somebody_looks;
    somebody_looks = false;
    look_again++;
    return any;
}

void lose_everything()
{
    lost = cudaErrorLaunchFailure;
}

/* The first n of what a thread has asked for. */
static void copy_first(size_t n)
{
    std::vector<struct copy> &ahead = fibers[current].ahead;
    for (size_t i = 0; i < n; i++)
        if (ahead[i].to)
            memcpy(ahead[i].to, ahead[i].from, 16);
    ahead.erase(ahead.begin(), ahead.begin() + (ptrdiff_t)n);
}

void copies_arrived()
{
    copy_first(fibers[current].ahead.size());
}

void copies_grouped()
{
    fibers[current].ahead.push_back({NULL, NULL});
}

void copies_but_last_arrived()
{
    const std::vector<struct copy> &ahead = fibers[current].ahead;
    size_t at = ahead.size(), ends = 0;
    while (at > 0 && (ends += !ahead[at - 1].to) < 2)
        at--;
    copy_first(at);
}

/* Where a kernel returns to, with a stack that no call has aligned. */
__attribute__((force_align_arg_pointer)) static void end_of_thread()
{
    struct fiber *f = &fibers[current];
    f->alive = false;
    f->ahead.clear();
    block_live--;
    warps[current / 32].live--;
    pass_on(&f->sp);
    abort();
}

static void stuck()
{
    fprintf(stderr, "emulated device: %s, block (%u, %u): no thread can go on\n", kernel_name, blockIdx.x, blockIdx.y);
    for (uint32_t i = 0; i < threads; i++)
        if (fibers[i].alive && i % 32 == 0)
            fprintf(stderr, "  warp %u waits for %s; %u of %u lanes are there\n", i / 32,
                    fibers[i].waits_for == &block_generation ? "the block" : "itself", warps[i / 32].arrived, warps[i / 32].live);
    abort();
}

/* A fiber begins as if it had been called with the parameters on its stack. */
static void run_block(const void *kernel, const uint8_t *params)
{
    memset(emulate_shared, POISON, sizeof emulate_shared);
    memset(warps, 0, sizeof warps);
    block_generation = block_arrived = block_or[0] = block_or[1] = 0;
    block_live = threads;
    groups_arrived = looks = 0, bulks.clear();
    for (uint32_t i = 0; i < threads; i++) {
        uint8_t *top = (uint8_t *)stack_of(i) + STACK_BYTES - PARAM_BYTES;
        memcpy(top, params, PARAM_BYTES);
        void **sp = (void **)top - 8;
        memset(sp, 0, 6 * sizeof *sp);
        sp[6] = (void *)kernel;
        sp[7] = (void *)end_of_thread;
        fibers[i].sp = sp, fibers[i].alive = true, fibers[i].waits_for = NULL;
        warps[i / 32].live++;
    }
    while (block_live) {
        current = threads - 1;
        const uint32_t before = block_live;
        pass_on(&scheduler);
        if (block_live == before && !do_copy() && !wake_those_who_look())
            stuck();
    }
}

/* ---- the runtime ------------------------------------------------------------------------------------------------------ */

struct emulate_graph {
    std::vector<std::function<void()>> steps;
};

static std::unique_ptr<emulate_graph> capture;
static std::map<void *, size_t> allocations; /* what mmap gave, by what the caller got */

static cudaError_t now_or_later(std::function<void()> step)
{
    if (lost)
        return lost;
    if (capture)
        capture->steps.push_back(step);
    else
        step();
    return cudaSuccess;
}

/* What a kernel may be launched with: as on a device, the last word of cudaFuncSetAttribute, which belongs to the kernel. */
static std::map<const void *, size_t> allowed_shared;

static size_t shared_of(const void *kernel)
{
    const auto known = allowed_shared.find(kernel);
    return known == allowed_shared.end() ? 48 << 10 : known->second;
}

cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **params, size_t shared_bytes, cudaStream_t)
{
    if (block.x % 32 || block.x > MOST_THREADS || block.y * block.z != 1 || shared_bytes > shared_of(kernel) ||
        !grid.x || !grid.y || !grid.z)
        return cudaErrorInvalidValue;
    auto copy = std::make_shared<std::vector<uint8_t>>(PARAM_BYTES);
    if (params[0])
        memcpy(copy->data(), params[0], PARAM_BYTES / 2); /* the most that any may have; what follows does no harm */
    return now_or_later([=] {
        gridDim = grid, blockDim = block, threads = block.x;
        for (uint32_t at = grid.x * grid.y * grid.z; at-- > 0;) { /* backwards: no block may rely on those before it */
            blockIdx = dim3(at % grid.x, at / grid.x % grid.y, at / grid.x / grid.y);
            run_block(kernel, copy->data());
        }
    });
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    const size_t page = 4096, used = (bytes + 255) / 256 * 256, whole = (used + page - 1) / page * page;
    uint8_t *base = (uint8_t *)mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (lost || capture)
        return lost ? lost : cudaErrorInvalidValue; /* as on a device: a graph allocates nothing */
    if (base == MAP_FAILED || bytes > (size_t)1 << 36)
        return cudaErrorMemoryAllocation;
    mprotect(base + whole, page, PROT_NONE);
    *p = base + whole - used;
    memset(*p, POISON, used);
    allocations[*p] = whole + page;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    if (!p)
        return cudaSuccess;
    auto found = allocations.find(p);
    if (found == allocations.end())
        return cudaErrorInvalidValue;
    const uintptr_t base = (uintptr_t)p / 4096 * 4096;
    munmap((void *)base, found->second);
    allocations.erase(found);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind)
{
    if (lost || capture)
        return lost ? lost : cudaErrorInvalidValue;
    return memmove(to, from, bytes), cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t)
{
    return now_or_later([=] { memmove(to, from, bytes); });
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind)
{
    if (lost || capture || width > to_pitch || width > from_pitch)
        return lost ? lost : cudaErrorInvalidValue;
    for (size_t i = 0; i < height; i++)
        memmove((uint8_t *)to + i * to_pitch, (const uint8_t *)from + i * from_pitch, width);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t)
{
    return now_or_later([=] { memset(to, byte, bytes); });
}

cudaError_t cudaMemset(void *to, int byte, size_t bytes)
{
    return lost ? lost : (memset(to, byte, bytes), cudaSuccess);
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute, int value)
{
    return value <= SHARED_BYTES ? (allowed_shared[kernel] = value, cudaSuccess) : cudaErrorInvalidValue;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *kernel)
{
    attributes->maxDynamicSharedSizeBytes = (int)shared_of(kernel);
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *, int, size_t shared_bytes)
{
    *blocks = shared_bytes > SHARED_BYTES ? 0 : 2;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int)
{
    *value = attribute == cudaDevAttrMultiProcessorCount ? MULTIPROCESSORS
             : attribute == cudaDevAttrComputeCapabilityMajor ? 9
                                                              : SHARED_BYTES;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *prop, int)
{
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "emulated device");
    prop->major = 9, prop->multiProcessorCount = MULTIPROCESSORS, prop->totalGlobalMem = (size_t)1 << 36;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode)
{
    capture = std::make_unique<emulate_graph>();
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *graph)
{
    *graph = capture.release();
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    *exec = new emulate_graph(*graph);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t)
{
    for (auto &step : exec->steps)
        step();
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    return delete exec, cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    return delete graph, cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    return *device = 0, cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    return *count = 1, cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return *stream = NULL, cudaSuccess;
}

cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return lost; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return lost; }

const char *cudaGetErrorString(cudaError_t error)
{
    static const char *const text[] = {"no error", "invalid value", "out of memory", "a kernel came to grief"};
    return text[error];
}

const char *cudaGetErrorName(cudaError_t error)
{
    static const char *const name[] = {"cudaSuccess", "cudaErrorInvalidValue", "cudaErrorMemoryAllocation",
                                       "cudaErrorLaunchFailure"};
    return name[error];
}
