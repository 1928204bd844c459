// inner MODEL WINDOWED DIR: what no program of llama.cpp's shows with the small models: caches that would share cells, profiles,
// what is learnt, positions that are divided, steps that are given up, cuts with shifts, and, with a model that has windows, memory
// that comes back.
#include "llama-kv-aura.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache.h"
#include "llama-model.h"
#include "llama.h"

#include <aura_file.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;
static std::string said;

static void expect(bool good, const char * what) {
    printf("%s%s\n", good ? "  as it should: " : "  NOT: ", what);
    failures += !good;
}

static bool says(const char * words) {
    return said.find(words) != std::string::npos;
}

static llama_context * make(llama_model * model) {
    llama_context_params p = llama_context_default_params();
    p.n_ctx = 256, p.n_threads = p.n_threads_batch = 1;
    said.clear();
    return llama_init_from_model(model, p);
}

// The logits after some tokens, with keys of 2 bits: what balance does shows.
static std::vector<float> logits(llama_model * model, const char * profile) {
    profile ? setenv("LLAMA_AURA_PROFILE", profile, 1) : unsetenv("LLAMA_AURA_PROFILE");
    llama_context * ctx = make(model);
    const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    std::vector<llama_token> tokens;
    for (int i = 0; i < 100; i++) {
        tokens.push_back(i*37 % vocab);
    }
    for (size_t i = 0; i < tokens.size(); i += 50) { // those of the first part are encoded when the second asks
        llama_decode(ctx, llama_batch_get_one(tokens.data() + i, 50));
    }
    const float * last = llama_get_logits_ith(ctx, -1);
    std::vector<float> res(last, last + vocab);
    llama_free(ctx);
    return res;
}

// A profile whose factors are 1, or by turns `factor` and its inverse.
static void write_profile(const llama_model * model, uint32_t dim, float factor, const char * path) {
    const auto & h = model->hparams;
    aura_ctx * ctx = nullptr;
    aura_profile * profile = nullptr;
    aura_ctx_create(nullptr, &ctx);
    aura_profile_create(ctx, h.n_layer_all, &profile);
    for (uint32_t il = 0; il < h.n_layer_all; il++) {
        std::vector<float> balance;
        for (uint32_t i = 0; i < h.n_head_kv(il)*dim; i++) {
            balance.push_back(i % 2 ? factor : 1/factor);
        }
        aura_profile_set(profile, il, h.n_head_kv(il), dim, balance.data());
    }
    expect(aura_profile_save(profile, path) == AURA_OK, "a profile is saved");
    aura_profile_destroy(profile);
    aura_ctx_destroy(ctx);
}

static void profiles(llama_model * model, const std::string & dir) {
    const std::string path = dir + "/inner.profile";
    const uint32_t dim = model->hparams.n_embd_head_k(0);
    setenv("LLAMA_AURA", "k2v8", 1);
    const auto plain = logits(model, nullptr);
    write_profile(model, dim, 1, path.c_str());
    const auto ones = logits(model, path.c_str());
    expect(says("make: aura") && ones == plain, "a profile of ones changes nothing");
    write_profile(model, dim, 4, path.c_str());
    const auto odd = logits(model, path.c_str());
    double e = 0, s = 0;
    for (size_t i = 0; i < odd.size(); i++) {
        e += (odd[i] - plain[i])*(odd[i] - plain[i]), s += plain[i]*plain[i];
    }
    expect(says("make: aura") && e > 0 && e < s, "another profile changes the codes, and not what they mean");
    write_profile(model, dim + 1, 1, path.c_str());
    logits(model, path.c_str());
    expect(says("LLAMA_AURA_PROFILE is of another model; f16 instead"), "a profile of another model is said to be that");
    remove(path.c_str());
    logits(model, path.c_str());
    expect(says("f16 instead") && says("inner.profile"), "a profile that is not there is named");
    unsetenv("LLAMA_AURA_PROFILE");
}

// A cache learns unless it is told not to: what it does shows after 512 positions, and not before.
static void learning(llama_model * model) {
    std::vector<float> last[2][2];
    const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    setenv("LLAMA_AURA", "k2v8", 1);
    for (int off = 0; off < 2; off++) {
        off ? setenv("LLAMA_AURA_LEARN", "0", 1) : unsetenv("LLAMA_AURA_LEARN");
        llama_context_params p = llama_context_default_params();
        p.n_ctx = 1024, p.n_threads = p.n_threads_batch = 1;
        llama_context * ctx = llama_init_from_model(model, p);
        std::vector<llama_token> tokens;
        for (int i = 0; i < 100; i++) {
            tokens.push_back(i*37 % vocab);
        }
        for (int i = 0; i < 8; i++) {
            llama_decode(ctx, llama_batch_get_one(tokens.data(), tokens.size()));
            const float * l = llama_get_logits_ith(ctx, -1);
            if (i == 4 || i == 7) {
                last[off][i == 7].assign(l, l + vocab);
            }
        }
        llama_free(ctx);
    }
    unsetenv("LLAMA_AURA_LEARN");
    expect(last[0][0] == last[1][0] && last[0][1] != last[1][1],
        "it learns from 512 positions, and LLAMA_AURA_LEARN=0 says not to");
}

// Positions that are divided are those that seq_add gives one by one. (llama.cpp's own cache turns keys the other way when it
// divides: cells count the shift with the wrong sign.) A state is saved and restored between: its tokens are not in the order of
// their positions.
static void division(llama_model * model) {
    const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model)), AT = 20, N = 60;
    std::vector<float> last[2];
    for (int ours = 0; ours < 2; ours++) {
        ours ? setenv("LLAMA_AURA", "kf32vf32", 1) : unsetenv("LLAMA_AURA");
        llama_context_params p = llama_context_default_params();
        p.n_ctx = 256, p.n_threads = p.n_threads_batch = 1, p.type_k = p.type_v = GGML_TYPE_F32;
        p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
        llama_context * ctx = llama_init_from_model(model, p);
        llama_memory_t mem = llama_get_memory(ctx);
        std::vector<llama_token> tokens;
        for (int i = 0; i < N; i++) {
            tokens.push_back(i*37 % vocab);
        }
        llama_decode(ctx, llama_batch_get_one(tokens.data(), N));
        for (int pos = AT; pos < N && !ours; pos++) {
            llama_memory_seq_add(mem, 0, pos, pos + 1, pos/4 - pos);
        }
        if (ours) {
            llama_memory_seq_div(mem, 0, AT, N, 4);
        }
        llama_decode(ctx, llama_batch_get_one(tokens.data(), 1)); // keys are turned
        if (ours) {
            std::vector<uint8_t> state(llama_state_seq_get_size(ctx, 0));
            llama_state_seq_get_data(ctx, state.data(), state.size(), 0);
            llama_memory_seq_rm(mem, 0, -1, -1);
            expect(llama_state_seq_set_data(ctx, state.data(), state.size(), 0) == state.size(), "a state is restored");
        }
        llama_memory_seq_rm(mem, 0, 7, 12); // of both parts
        llama_memory_seq_add(mem, 0, 12, -1, 100);
        llama_decode(ctx, llama_batch_get_one(tokens.data() + 1, 1));
        const float * l = llama_get_logits_ith(ctx, -1);
        last[ours].assign(l, l + vocab);
        llama_free(ctx);
    }
    double e = 0, s = 0;
    for (int i = 0; i < vocab; i++) {
        e += ((double) last[0][i] - last[1][i])*((double) last[0][i] - last[1][i]), s += (double) last[0][i]*last[0][i];
    }
    printf("  division: nmse %.1e\n", e/s);
    expect(e <= 1e-11*s, "positions are divided, cut and moved as one by one");
}

// Tokens of some sequences from `first` on. All of them ask.
static llama_batch tokens_of(const std::vector<llama_seq_id> & seqs, int first, int n, int vocab) {
    llama_batch b = llama_batch_init(n, 0, seqs.size());
    for (int i = b.n_tokens = 0; i < n; i = ++b.n_tokens) {
        b.token[i] = (first + i)*37 % vocab, b.pos[i] = first + i, b.logits[i] = true;
        b.n_seq_id[i] = seqs.size();
        std::copy(seqs.begin(), seqs.end(), b.seq_id[i]);
    }
    return b;
}

static std::vector<float> decode(llama_context * ctx, const std::vector<llama_seq_id> & seqs, int first, int n, int * code) {
    const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)));
    llama_batch b = tokens_of(seqs, first, n, vocab);
    *code = llama_decode(ctx, b);
    const float * l = *code ? nullptr : llama_get_logits(ctx);
    llama_batch_free(b);
    return std::vector<float>(l, l ? l + n*vocab : l);
}

// A step of two sequences is given up after some nodes of its graph. llama.cpp takes its tokens out of one of them. The other has
// them where all layers have, as with llama.cpp's own cache, and else never had any. -1: nothing is given up, which says how it
// should be.
static std::string given_up(llama_model * model, int nodes, std::vector<float> want[2], int * back) {
    const int N = 40;
    static int left;
    int code;
    llama_context_params p = llama_context_default_params();
    p.n_ctx = 256, p.n_seq_max = 2, p.kv_unified = true, p.n_threads = p.n_threads_batch = 1;
    std::unique_ptr<llama_context, void (*)(llama_context *)> ctx(llama_init_from_model(model, p), llama_free);
    llama_memory_t mem = llama_get_memory(ctx.get());
    decode(ctx.get(), { 0, 1 }, 0, N, &code);
    left = nodes;
    llama_set_abort_callback(ctx.get(), [](void *) { return left-- == 0; }, nullptr);
    const auto whole = decode(ctx.get(), { 0, 1 }, N, N, &code);
    llama_set_abort_callback(ctx.get(), nullptr, nullptr);
    if (code == 0 && nodes >= 0) {
        return "end";
    }
    const bool kept[2] = { llama_memory_seq_pos_max(mem, 0) == 2*N - 1, llama_memory_seq_pos_max(mem, 1) == 2*N - 1 };
    if (nodes < 0) {
        want[0] = whole;
    } else if (code != 2 || (kept[0] && kept[1])) {
        return "llama.cpp does something else";
    }
    for (int s = 0; s < 2; s++) {
        if (!kept[s] && (llama_memory_seq_pos_max(mem, s) != N - 1 || decode(ctx.get(), { s }, N, N, &code) != want[0])) {
            return "what is done again is not as the first time";
        }
        const auto after = decode(ctx.get(), { s }, 2*N, 1, &code);
        if (nodes < 0) {
            want[1] = after;
        } else if (after != want[1]) {
            return "what follows is not what it was";
        }
    }
    *back += !kept[0] && !kept[1];
    return "";
}

static void giving_up(llama_model * model) {
    std::vector<float> want[2];
    int back = 0, tried = 0;
    setenv("LLAMA_AURA", "kf32vf32", 1);
    std::string why = given_up(model, -1, want, &back);
    for (int nodes = 0; why.empty(); nodes += 2) {
        why = given_up(model, nodes, want, &back);
        tried += why.empty();
    }
    printf("  given up at %d places, at %d of them before all layers had it: %s\n", tried, back, why.c_str());
    expect(why == "end" && back > 5 && tried > back, "a step that is given up was not begun");
}

// A part goes and what follows moves: keys after it are encoded once, not for each. Where a state is asked for between, they are
// encoded twice, which is another rounding.
static void once(llama_model * model) {
    const int N = 200, vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    std::vector<float> last[3]; // f32, once, twice
    double e[3] = {};
    int code;
    for (int how = 0; how < 3; how++) {
        setenv("LLAMA_AURA", how ? "k3v8" : "kf32vf32", 1);
        llama_context * ctx = make(model);
        llama_memory_t mem = llama_get_memory(ctx);
        decode(ctx, { 0 }, 0, N, &code);
        llama_memory_seq_rm(mem, 0, 10, 23);
        if (how == 2) {
            llama_state_seq_get_size(ctx, 0);
        }
        llama_memory_seq_add(mem, 0, 23, -1, -13);
        last[how] = decode(ctx, { 0 }, N - 13, 30, &code);
        llama_free(ctx);
    }
    for (int how = 1; how < 3; how++) {
        for (int i = 0; i < 30*vocab; i++) {
            e[how] += pow((double) last[how][i] - last[0][i], 2), e[0] += pow((double) last[0][i], 2)/2;
        }
    }
    printf("  a cut and a shift: %.3e away from f32, one after the other %.3e, of %.1e\n", e[1], e[2], e[0]);
    expect(e[1] < 1e-4*e[0] && e[2] < 1e-4*e[0] && last[1] != last[2], "a cut and a shift encode once");
}

static size_t resident() {
    size_t all = 0, pages = 0;
    if (FILE * f = fopen("/proc/self/statm", "r")) {
        if (fscanf(f, "%zu %zu", &all, &pages) != 2) {
            pages = 0;
        }
        fclose(f);
    }
    return pages*4096;
}

// How many bytes a process grows by while a text becomes longer.
static double growth(const char * path, bool full) {
    const int SOME = 1024, MANY = 6*SOME;
    setenv("LLAMA_AURA", "kf32vf32", 1);
    llama_model * model = llama_model_load_from_file(path, llama_model_default_params());
    const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_context_params p = llama_context_default_params();
    p.n_ctx = MANY, p.n_threads = p.n_threads_batch = 1, p.swa_full = full;
    llama_context * ctx = llama_init_from_model(model, p);
    const auto * mem = dynamic_cast<llama_kv_cache_iswa *>(llama_get_memory(ctx));
    std::vector<llama_token> tokens(512, 1);
    size_t base = 0, swa = 0, before = 0;
    for (int at = 0; at < MANY; at += tokens.size()) {
        for (auto & t : tokens) {
            t = (t*37 + 11) % vocab;
        }
        llama_decode(ctx, llama_batch_get_one(tokens.data(), tokens.size()));
        if (at + (int) tokens.size() == SOME) {
            base = mem->get_base()->get_aura()->bytes(), swa = mem->get_swa()->get_aura()->bytes(), before = resident();
        }
    }
    const size_t base_more = mem->get_base()->get_aura()->bytes() - base, swa_more = mem->get_swa()->get_aura()->bytes() - swa;
    const double grown = (double) resident() - before;
    printf("  %s, from %d to %d tokens: layers without a window %+.1f MiB, with one %+.1f MiB, the process %+.1f MiB\n",
        full ? "all is kept" : "windows", SOME, MANY, base_more/1048576.0, swa_more/1048576.0, grown/1048576);
    expect(base_more > 0 && (full ? swa_more == base_more : swa_more == 0), "a window, and nothing else, does not grow");
    expect(full || llama_memory_seq_pos_min(llama_get_memory(ctx), 0) > MANY - SOME, "the first position says what is gone");
    llama_free(ctx);
    llama_model_free(model);
    return grown;
}

// Layers with a window give the memory of what nobody sees back; a cache that is told to keep all does not. Each has a process, so
// that neither uses memory that others have left.
static void windows(const char * path) {
    double * grown = (double *) mmap(nullptr, 2*sizeof(double), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int full = 0; full < 2; full++) {
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            llama_backend_init();
            grown[full] = growth(path, full);
            fflush(stdout);
            _exit(failures);
        }
        int status = 1;
        waitpid(child, &status, 0);
        expect(status == 0, "a process ends well");
    }
    expect(grown[0] + 8*1048576.0 < grown[1], "the process has given it back");
    munmap(grown, 2*sizeof(double));
}

// The first position says how far back one may go: what is computed from there is what a new context computes. Tokens come one by
// one before, when aura gives back more than llama.cpp's cells do.
static void going_back(const char * path) {
    const int MANY = 1024, ONE = 240;
    llama_model * model = llama_model_load_from_file(path, llama_model_default_params());
    const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model)), window = llama_model_n_swa(model);
    std::vector<float> last[2];
    double e = 0, s = 0;
    int code = 0, bad = 0, first = 0;
    setenv("LLAMA_AURA", "kf32vf32", 1);
    for (int fresh = 0; fresh < 2; fresh++) {
        llama_context_params p = llama_context_default_params();
        p.n_ctx = 2048, p.n_threads = p.n_threads_batch = 1, p.swa_full = false;
        llama_context * ctx = llama_init_from_model(model, p);
        for (int at = 0, n; at < (fresh ? first + window : MANY + ONE); at += n, bad |= code) {
            n = fresh ? std::min(512, first + window - at) : at < MANY ? 512 : 1;
            decode(ctx, { 0 }, at, n, &code);
        }
        if (!fresh) {
            first = llama_memory_seq_pos_min(llama_get_memory(ctx), 0);
            llama_memory_seq_rm(llama_get_memory(ctx), 0, first + window, -1);
        }
        last[fresh] = decode(ctx, { 0 }, first + window, 8, &code);
        bad |= code;
        llama_free(ctx);
    }
    for (size_t i = 0; !bad && i < last[0].size(); i++) {
        e += pow((double) last[0][i] - last[1][i], 2), s += pow((double) last[1][i], 2);
    }
    printf("  back to position %d of %d, window %d: nmse %.1e\n", first + window, MANY + ONE, window, e/s);
    expect(!bad && first > 0 && s > 0 && e < 1e-10*s && (int) last[0].size() == 8*vocab, "what is said to be there is there");
    llama_model_free(model);
}

static void sharing(llama_model * model) {
    const auto share = [&](llama_memory_t with) -> std::string {
        try {
            llama_kv_cache cache(*model, model->hparams, GGML_TYPE_F16, GGML_TYPE_F16, false, false, true, 256, 1, 1, 0,
                LLAMA_SWA_TYPE_NONE, with, nullptr, nullptr, nullptr, "");
            return cache.get_aura() ? "aura's" : "its own";
        } catch (const std::runtime_error & why) {
            return why.what();
        }
    };
    setenv("LLAMA_AURA", "k4v4", 1);
    llama_context * ours = make(model);
    expect(share(llama_get_memory(ours)).find("cannot share cells") != std::string::npos,
        "a draft that shares cells of aura's is refused");
    unsetenv("LLAMA_AURA");
    llama_context * theirs = make(model);
    setenv("LLAMA_AURA", "k4v4", 1);
    said.clear();
    expect(share(llama_get_memory(theirs)) == "its own" && says("it shares the cells of another cache; f16 instead"),
        "a cache that shares others' cells falls back, and says so");
    llama_free(ours);
    llama_free(theirs);
}

int main(int argc, char ** argv) {
    llama_log_set([](ggml_log_level, const char * text, void *) { said += text; }, nullptr);
    if (argc < 4) {
        return fprintf(stderr, "inner: MODEL WINDOWED DIR\n"), 2;
    }
    windows(argv[2]); // before there are threads
    llama_backend_init();
    llama_model * model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) {
        return fprintf(stderr, "inner: no model\n"), 2;
    }
    profiles(model, argv[3]);
    learning(model);
    division(model);
    giving_up(model);
    once(model);
    going_back(argv[2]);
    sharing(model);
    llama_model_free(model);
    printf("%d of these are wrong\n", failures);
    return failures != 0;
}
