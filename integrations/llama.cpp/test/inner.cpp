// inner MODEL DIR: what no program of llama.cpp's shows with the small models: caches that would share cells, profiles, and
// positions that are divided.
#include "llama-kv-cache.h"
#include "llama-model.h"
#include "llama.h"

#include <aura_file.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

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
    llama_backend_init();
    llama_model * model = argc > 2 ? llama_model_load_from_file(argv[1], llama_model_default_params()) : nullptr;
    if (!model) {
        return fprintf(stderr, "inner: MODEL DIR\n"), 2;
    }
    profiles(model, argv[2]);
    division(model);
    sharing(model);
    llama_model_free(model);
    printf("%d of these are wrong\n", failures);
    return failures != 0;
}
