// turns MODEL THREADS DEPTH TOKENS PROMPT ROUNDS TYPE...: the speed of caches beside each other, on a machine that has other things
// to do: each type has a context of its own in this process, filled with DEPTH tokens. Then prompts of PROMPT tokens in turns,
// ROUNDS times, after each of which the cache is cut to what it was, and one token of each in turns, TOKENS times. Prints tokens
// per second at the 25th percentile of the times, at the median, and how many times the first type's, turn by turn (the median
// of the ratios).
#include "ggml.h"
#include "llama.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

struct cache {
    std::string name;
    llama_context * ctx;
    std::vector<double> token, prompt;
    double fill;
};

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static ggml_type type_of(const std::string & name) {
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        if (ggml_type_name((ggml_type) type) == name) {
            return (ggml_type) type;
        }
    }
    fprintf(stderr, "turns: no type %s\n", name.c_str());
    exit(2);
}

// The time that so many tokens take, at once or one by one.
static double decode(llama_context * ctx, int n, int vocab) {
    static uint32_t state = 1;
    std::vector<llama_token> tokens(n);
    for (auto & t : tokens) {
        state = state*1664525 + 1013904223, t = (state >> 8) % vocab;
    }
    const double begin = now();
    for (int at = 0; at < n; at += 512) {
        if (llama_decode(ctx, llama_batch_get_one(tokens.data() + at, std::min(512, n - at)))) {
            fprintf(stderr, "turns: a batch is refused\n");
            exit(1);
        }
    }
    llama_synchronize(ctx);
    return now() - begin;
}

static double at(std::vector<double> times, double part) {
    std::sort(times.begin(), times.end());
    return times[(size_t) ((times.size() - 1)*part)];
}

static void print(const std::vector<cache> & caches, std::vector<double> cache::*of, const char * what, int depth, int tokens) {
    for (const auto & c : caches) {
        std::vector<double> ratios;
        if ((c.*of).empty()) {
            return;
        }
        for (size_t i = 0; i < (c.*of).size(); i++) {
            ratios.push_back((caches[0].*of)[i]/(c.*of)[i]);
        }
        printf("%-10s behind %5d  %-6s %8.1f tokens/s, median %8.1f, %.3f of %s\n", what, depth, c.name.c_str(),
            tokens/at(c.*of, 0.25), tokens/at(c.*of, 0.5), at(ratios, 0.5), caches[0].name.c_str());
    }
}

int main(int argc, char ** argv) {
    if (argc < 8) {
        return fprintf(stderr, "turns: MODEL THREADS DEPTH TOKENS PROMPT ROUNDS TYPE...\n"), 2;
    }
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_model * model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) {
        return fprintf(stderr, "turns: no model\n"), 2;
    }
    const int threads = atoi(argv[2]), depth = atoi(argv[3]), tokens = atoi(argv[4]), prompt = atoi(argv[5]);
    const int rounds = atoi(argv[6]);
    const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    std::vector<cache> caches;
    for (int i = 7; i < argc; i++) {
        llama_context_params p = llama_context_default_params();
        p.n_ctx = depth + tokens + prompt + 64, p.n_threads = p.n_threads_batch = threads;
        p.type_k = p.type_v = type_of(argv[i]), p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
        caches.push_back({ argv[i], llama_init_from_model(model, p), {}, {}, 0 });
        decode(caches.back().ctx, 8, vocab); // memory is touched
        llama_memory_clear(llama_get_memory(caches.back().ctx), true);
        caches.back().fill = depth ? decode(caches.back().ctx, depth, vocab) : 0;
    }
    for (int i = 0; i < rounds && prompt; i++) {
        for (auto & c : caches) {
            c.prompt.push_back(decode(c.ctx, prompt, vocab));
            llama_memory_seq_rm(llama_get_memory(c.ctx), 0, depth, -1);
        }
    }
    for (int i = 0; i < tokens; i++) {
        for (auto & c : caches) {
            c.token.push_back(decode(c.ctx, 1, vocab));
        }
    }
    for (const auto & c : caches) {
        if (depth) {
            printf("the first %d tokens      %-6s %8.1f tokens/s\n", depth, c.name.c_str(), depth/c.fill);
        }
    }
    print(caches, &cache::prompt, "prompt", depth, prompt);
    print(caches, &cache::token, "generation", depth, 1);
    return 0;
}
