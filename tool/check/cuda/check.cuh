/* What the parts of `aura check --device cuda` share. */
#ifndef AURA_TOOL_CUDA_CHECK_CUH
#define AURA_TOOL_CUDA_CHECK_CUH

#include <stdio.h>

#include <string>
#include <vector>

#include "../../../src/cuda/cache.cuh"
#include "oracle.h"
extern "C" {
#include "../../parts/inputs.h"
#include "../../parts/json.h"
}

extern int failures, cases, as_json;
extern const char *part; /* that is running */

/* One case: a cache, some sequences, one call. */
struct scene {
    std::string name;
    aura_config config = AURA_CONFIG_INIT;
    std::vector<uint32_t> tokens; /* of each sequence */
    uint32_t queries = 1;
    aura_dtype q_dtype = AURA_F32, out_dtype = AURA_F32;
    uint32_t planes = 0, mask_keys = 0, not_causal = 0;
    float scale = 0, softcap = 0;
    uint64_t window = 0;
    bool sinks = false, alibi = false, balance = false;
    bool metric = false; /* on both sides that have codes */
    bool loud = false; /* keys of some tiles, and some keys of others, are so long that one plane would move their logits */
    float loud_by = 30; /* times */
    uint64_t seed = 1;
    std::vector<uint32_t> counts;   /* queries of each sequence; empty: all have `queries` */
    std::vector<uint32_t> starts;   /* padding before them; empty: none */
    std::vector<uint32_t> from, until; /* [sequence][queries] what queries see; empty: what window and causality say */
    size_t image_bytes = 0;         /* of the workspace; 0: as many as it likes */
    bool long_seqs = false;         /* the caller says so */
    bool batch_invariant = false;
    bool by_images = false;         /* more than 16 queries take images, whatever is faster */
    const char *kernel = "";        /* what the name of the kernel of attention has in it */
};

/* More than 16 queries, by codes or images: these are compared with double from the numbers that the cache holds. All rows of
 * images together are held to 1e-3 of |out|; one row, whose logits may be large, to 5e-3. */
bool has_many_queries(const struct scene &s);

/* "k4v4 d128 8/2", with a seed and these sequences. */
struct scene scene_of(uint32_t k, uint32_t v, uint32_t dim, uint32_t q_heads, uint32_t kv_heads, std::vector<uint32_t> tokens);

/* A line, or an object of `--json`: outcome is "ok", "FAIL" or "skip"; then the kernels that the case has launched. */
void report(const char *outcome, const std::string &name, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The same of a scene, with the outcome "FAIL". */
void complain(const struct scene &s, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* From now on, launches are noted; after the last case, what ran is printed: a line, or objects of `--json`. all_parts: then a
 * kernel that did not run is named. */
void watch_kernels();
const std::string &last_kernel(); /* that was launched */
void print_kernels(bool all_parts);

/* In functions that return nothing and have the scene `s`. */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        aura_status try_status = (call);                                                                               \
        if (try_status) {                                                                                              \
            complain(s, "%s: %s: %s", #call, aura_status_text(try_status), aura_last_error());                         \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)
#define TRY_CUDA(call)                                                                                                 \
    do {                                                                                                               \
        cudaError_t try_error = (call);                                                                                \
        if (try_error != cudaSuccess) {                                                                                \
            complain(s, "%s: %s", #call, cudaGetErrorString(try_error));                                               \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)

/* Calls on a stream that are captured once and done again and again; goes with its scope. */
struct captured {
    cudaStream_t stream = NULL;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    template <class CALLS> captured(const struct scene &s, CALLS calls)
    {
        TRY_CUDA(cudaStreamCreate(&stream));
        TRY_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        calls(stream);
        TRY_CUDA(cudaStreamEndCapture(stream, &graph));
        TRY_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    }
    captured(const captured &) = delete;
    void replay(const struct scene &s)
    {
        TRY_CUDA(cudaGraphLaunch(exec, stream));
        TRY_CUDA(cudaStreamSynchronize(stream));
    }
    ~captured()
    {
        cudaGraphExecDestroy(exec);
        cudaGraphDestroy(graph);
        cudaStreamDestroy(stream);
    }
};

/* Device memory that goes with its scope; every byte is 0xff, NaN in every type, before it is written. */
struct device_array {
    void *p = NULL;
    size_t bytes;
    explicit device_array(size_t n) : bytes(n + 16)
    {
        if (cudaMalloc(&p, bytes) != cudaSuccess || cudaMemset(p, 0xff, bytes) != cudaSuccess)
            report("FAIL", "device memory", "no %zu bytes on the device", n);
    }
    device_array(const void *from, size_t n) : device_array(n)
    {
        cudaMemcpy(p, from, n, cudaMemcpyHostToDevice);
    }
    ~device_array()
    {
        cudaFree(p);
    }
};

std::vector<uint8_t> as_type(const std::vector<float> &x, aura_dtype dtype);
std::vector<float> as_float(const std::vector<uint8_t> &bytes, aura_dtype dtype);

/* Keys with channels that stand out and an offset that drifts from page to page. */
std::vector<float> some_tokens(uint64_t seed, uint32_t tokens, uint32_t heads, uint32_t dim, bool keys);
std::vector<float> some_numbers(uint64_t seed, size_t n);
std::vector<float> some_metric(uint64_t seed, uint32_t heads, uint32_t dim); /* as aura_config has it, of one side */

bool same_bytes(const aura_cache *a, aura_seq sa, const aura_cache *b, aura_seq sb);

/* The bytes that mean something: rows of pinned and open tokens, codes and scales of closed ones, references of pages that have
 * one. Everything else may hold anything. "" where they are equal. */
std::string first_difference(const aura_cache *a, aura_seq sa, const aura_cache *b, aura_seq sb);

/* A file that goes with its scope, should there be one. */
struct scratch_file {
    std::string path;
    explicit scratch_file(const char *what);
    ~scratch_file()
    {
        remove(path.c_str());
    }
};

std::string read_all(const struct scratch_file &from);

/* A CPU cache with the sequences of the scene. */
struct filled {
    aura_ctx *ctx = NULL;
    aura_cache *cache = NULL;
    std::vector<aura_seq> seqs;
    std::vector<float> balance, v_balance, k_metric, v_metric;
    ~filled()
    {
        aura_cache_destroy(cache);
        aura_ctx_destroy(ctx);
    }
};

void fill(const struct scene &s, struct filled &f);

/* Device cache with copies of the sequences; not in the order of their pages. */
struct device_side {
    aura_cuda_cache *cache = NULL;
    aura_cuda_workspace *workspace = NULL;
    std::vector<aura_cuda_seq> seqs;
    ~device_side()
    {
        aura_cuda_workspace_destroy(workspace);
        aura_cuda_cache_destroy(cache);
    }
};

aura_cuda_config device_config(const struct scene &s, const struct filled &f);
void upload(const struct scene &s, const struct filled &f, struct device_side &d);

/* A case with a cache on either side; false where something failed already. */
bool begin_case(const struct scene &s, struct filled &f, struct device_side &d);
void end_case(const struct scene &s, int failures_before, const char *what);

/* That the sequences on the device have the bytes of those on the CPU. */
void compare_appended(const struct scene &s, const struct filled &f, const struct device_side &d, const aura_config &config);

/* ---- the same on both sides: check_both.cu ---- */

struct both {
    aura_seq cpu;
    aura_cuda_seq gpu;
};

/* A device cache with room for many sequences, and the first sequence of the scene. */
void make_both(const struct scene &s, const struct filled &f, struct device_side &d, struct both &first);
/* A case of that name begins: its cache, and its first sequence on both sides. */
bool begin_seqs(struct scene &s, const char *what, struct filled &f, struct device_side &d, struct both &first);
/* The same tokens to both; wanted: the status that the device's sequence then has. Where it refuses them, the CPU does not get
 * them either. */
void append_both(const struct scene &s, const struct filled &f, const struct device_side &d, const struct both &b, uint32_t n,
                 uint64_t seed, uint32_t wanted);
/* Pages for n tokens more, on the device. */
void reserve_more(const struct scene &s, const struct device_side &d, const struct both &b, uint32_t n);
struct both fork_both(const struct scene &s, const struct filled &f, const struct device_side &d, const struct both &b, uint32_t n);
void truncate_both(const struct scene &s, const struct filled &f, const struct device_side &d, const struct both &b, uint32_t n,
                   bool on_stream);
void compare_both(const struct scene &s, const struct filled &f, const struct device_side &d, const struct both &b,
                  const char *when);

/* The worst of a case, relative to what is allowed and absolute. */
struct worst {
    double row = 0, lse = 0, ratio = 0;
    uint64_t one = 0, both = 0; /* logits of codes, by planes */
    double error2 = 0, norm2 = 0; /* of all rows together */
};

/* What went into a call and came out of it, on the host. trace NULL: the logits are not compared. */
struct numbers_of_call {
    const float *q, *sinks, *alibi, *mask, *out, *lse, *trace;
    uint32_t longest;
};

/* All rows of a call against the oracle over these sequences of a CPU cache. wrong: logits with other bits. */
struct worst compare_call(const struct scene &s, const aura_cache *cache, const std::vector<aura_seq> &seqs,
                          const struct numbers_of_call &x, size_t &wrong, size_t &first_bad);

/* A whole case each, from nothing to a line that it prints. */
void run_scene(const struct scene &s);                   /* attention */
void run_append(const struct scene &s, uint32_t most);   /* tokens, up to `most` at once */
void run_caches(struct scene s, bool errors);            /* of three sequences, the first the longest; with damaged files */
void run_fork(struct scene s);                           /* of one sequence of 700 tokens */
void run_invariant(struct scene s);
void run_unpack_of(const struct scene &s, uint32_t first, uint32_t tokens, bool rotated); /* both sides, f16 */

void check_fits(); /* of the part `append` */

/* The parts, by the names that the tool knows them by. */
void check_formats();
void check_options();
void check_general();
void check_prefill();
void check_codes();
void check_unpack();
void check_append();
void check_seqs();
void check_caches();
void check_step();
void check_models();
void check_slots();
void check_windows();
void check_batch();
void check_recording();
void check_rows();
void check_rows_small(); /* a little of it, for `small` */
void check_lost();

/* What check_lost() starts the tool with, in a process of its own; and what that one does. Returns the exit code. */
#define LOST_CHILD "lost-child"
int lose_device();

#endif
