// walk MODEL [--steps N] [--seed N] [--format kf32vf32] [--limit 1e-9] [--streams] [--full] [--nan] [--alone] [--loud]: two
// contexts of a model, one with llama.cpp's own f32 cache and one with aura's, are given the same operations at random: batches of
// several sequences, cuts, shifts, copies, states, aborts. Return codes and positions must be equal; logits must be as near as the
// limit says (NMSE). --loud: weights are such that attention matters, which in llama.cpp's small models it does not. --format '':
// both have llama.cpp's own. --alone: one sequence.
#include "llama-model.h"
#include "llama.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

static const int MOST = 3, ROOM = 512;
static int SEQS = MOST;
static uint64_t state = 1;
static int failures;

static uint32_t random_below(uint32_t n) {
    state = state*6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t) (state >> 33) % n;
}

static void quiet(ggml_log_level level, const char * text, void * saw) {
    if (strstr(text, "no aura cache")) {
        *(std::string *) saw = text;
    }
    if (level == GGML_LOG_LEVEL_ERROR && getenv("VERBOSE")) {
        fputs(text, stderr);
    }
}

struct pair { // llama.cpp's own cache, and aura's
    llama_context * ctx[2];
    llama_memory_t mem[2];
    int vocab, nan;
    bool recurrent; // what two sequences were before they are one does not come together then
    double worst, error, square;

    template <typename call> void both(call f) {
        for (int i = 0; i < 2; i++) {
            f(mem[i]);
        }
    }
};

static void fail(const std::string & what, int step) {
    printf("FAIL step %d: %s\n", step, what.c_str());
    failures++;
}

static llama_context * make(llama_model * model, bool streams, bool full) {
    auto p = llama_context_default_params();
    p.n_ctx = ROOM*(streams ? SEQS : 1), p.n_batch = 64, p.n_ubatch = 32, p.n_seq_max = SEQS, p.kv_unified = !streams;
    p.n_threads = p.n_threads_batch = 2, p.swa_full = full;
    p.type_k = p.type_v = GGML_TYPE_F32;
    p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    return llama_init_from_model(model, p);
}

// Logits of attention of some nats, and outputs larger than what they are added to.
static void make_loud(const llama_model * model) {
    for (const auto & [name, tensor] : llama_internal_get_tensor_map(model)) {
        auto ends = [&, &name = name](const char * with) {
            return name.size() > strlen(with) && name.compare(name.size() - strlen(with), std::string::npos, with) == 0;
        };
        if (name.find(".attn_") == std::string::npos || tensor->type != GGML_TYPE_F32 || !(ends(".weight") || ends(".scale"))) {
            continue;
        }
        std::vector<float> numbers(ggml_nelements(tensor));
        ggml_backend_tensor_get(tensor, numbers.data(), 0, ggml_nbytes(tensor));
        for (float & x : numbers) {
            x = ends(".scale") ? 1 : ends("_norm.weight") ? 8*x : 2*x;
        }
        ggml_backend_tensor_set(tensor, numbers.data(), 0, ggml_nbytes(tensor));
    }
}

// The logits of all outputs of both.
static void compare(pair & p, int outputs, int step) {
    const float * a = llama_get_logits(p.ctx[0]), * b = llama_get_logits(p.ctx[1]);
    double e = 0, s = 0;
    for (int i = 0; i < outputs*p.vocab; i++) {
        e += ((double) a[i] - b[i])*((double) a[i] - b[i]), s += (double) a[i]*a[i];
    }
    if (!(s == s)) { // a model whose own logits are no numbers says nothing
        p.nan++;
        return;
    }
    const double nmse = e/(s > 0 ? s : 1);
    p.error += e, p.square += s;
    if (!(nmse <= p.worst)) {
        p.worst = nmse;
    }
    if (getenv("VERBOSE")) {
        printf("step %d: nmse %g\n", step, nmse);
    }
}

static void put(llama_batch & b, int vocab, const std::vector<llama_seq_id> & in, int pos) {
    const int i = b.n_tokens++;
    b.token[i] = random_below(vocab), b.pos[i] = pos, b.n_seq_id[i] = in.size(), b.logits[i] = random_below(3) == 0;
    std::copy(in.begin(), in.end(), b.seq_id[i]);
}

// Tokens of two sequences that are equally long: some of each, then some of both.
static void put_both(pair & p, llama_batch & b, int * next) {
    for (int s = 0, n = p.recurrent ? 0 : random_below(3); s < 2; s++) {
        for (int i = 0; i < n; i++) {
            put(b, p.vocab, { s }, next[s]++);
        }
    }
    for (uint32_t i = 0, n = 1 + random_below(32); i < n; i++) {
        put(b, p.vocab, { 0, 1 }, next[0]++), next[1]++;
    }
}

// A batch: tokens of some sequences, mixed. (Where one is given up, llama.cpp takes tokens of several out of the first alone.)
static void decode(pair & p, int step, bool abort_it) {
    int next[MOST], code[2], outputs = 0;
    llama_batch b = llama_batch_init(64, 0, SEQS);
    for (int s = 0; s < SEQS; s++) {
        next[s] = llama_memory_seq_pos_max(p.mem[0], s) + 1;
    }
    const bool unified = llama_n_ctx_seq(p.ctx[0]) == llama_n_ctx(p.ctx[0]);
    if (SEQS > 1 && unified && !abort_it && next[0] == 0 && next[1] == 0 && random_below(2)) {
        put_both(p, b, next);
    }
    const int total = 1 + random_below(random_below(2) ? 3 : 24);
    for (int i = 0, s = random_below(SEQS); i < total; i++) {
        s = random_below(3) ? s : random_below(SEQS);
        put(b, p.vocab, { s }, next[s]++);
    }
    b.logits[b.n_tokens - 1] = true;
    for (int i = 0; i < b.n_tokens; i++) {
        outputs += b.logits[i] != 0;
    }
    static int calls;
    for (int i = 0; i < 2; i++) {
        calls = 0;
        if (abort_it) {
            llama_set_abort_callback(p.ctx[i], [](void *) { return ++calls > 12; }, nullptr);
        }
        code[i] = llama_decode(p.ctx[i], b);
        llama_set_abort_callback(p.ctx[i], nullptr, nullptr);
    }
    if (code[0] != code[1]) {
        fail("decode gives " + std::to_string(code[0]) + " and " + std::to_string(code[1]), step);
    } else if (code[0] == 0) {
        compare(p, outputs, step);
    }
    llama_batch_free(b);
}

// A state is taken, brought to a sequence, and taken again: the same bytes.
static void restore(pair & p, llama_seq_id from, llama_seq_id to, int step) {
    bool full[2] = { false, false };
    for (int i = 0; i < 2; i++) {
        std::vector<uint8_t> one(llama_state_seq_get_size(p.ctx[i], from)), two;
        if (llama_state_seq_get_data(p.ctx[i], one.data(), one.size(), from) != one.size()) {
            fail("a state has another size than was said", step);
        }
        const bool any = llama_memory_seq_pos_max(p.mem[i], from) >= 0;
        llama_memory_seq_rm(p.mem[i], to, -1, -1);
        if (any && llama_state_seq_set_data(p.ctx[i], one.data(), one.size(), to) != one.size()) {
            full[i] = true;
            continue;
        }
        two.resize(llama_state_seq_get_size(p.ctx[i], to));
        llama_state_seq_get_data(p.ctx[i], two.data(), two.size(), to);
        if (i == 1 && from == to && one != two) {
            fail("a state that was restored has other bytes", step);
        }
    }
    if (full[0] != full[1]) {
        fail("a state can be restored in one of them only", step);
    }
}

static void restore_all(pair & p, int step) {
    for (int i = 0; i < 2; i++) {
        std::vector<uint8_t> one(llama_state_get_size(p.ctx[i]));
        const size_t n = llama_state_get_data(p.ctx[i], one.data(), one.size());
        llama_memory_clear(p.mem[i], true);
        if (llama_state_set_data(p.ctx[i], one.data(), n) != n) {
            fail("the state of all cannot be restored", step);
        }
    }
}

static void operate(pair & p, int step, bool window) {
    const llama_seq_id s = random_below(SEQS), d = random_below(SEQS);
    const int low = llama_memory_seq_pos_min(p.mem[0], s), high = llama_memory_seq_pos_max(p.mem[0], s);
    const int at = high < 0 ? 0 : low + (int) random_below(high - low + 1), n = 1 + random_below(40);
    switch (random_below(12)) {
        case 0: // the end goes
            if (!window || high - at < 16) {
                p.both([&](llama_memory_t m) { llama_memory_seq_rm(m, s, at, -1); });
            }
            break;
        case 1: // a part goes
            if (!window) {
                p.both([&](llama_memory_t m) { llama_memory_seq_rm(m, s, at, at + n); });
            }
            break;
        case 2: // a part goes, and what follows moves down
            if (llama_memory_can_shift(p.mem[0]) && !window && at + n <= high) {
                p.both([&](llama_memory_t m) {
                    llama_memory_seq_rm(m, s, at, at + n);
                    llama_memory_seq_add(m, s, at + n, -1, -n);
                });
            }
            break;
        case 3: // a copy
            if (d != s) {
                p.both([&](llama_memory_t m) {
                    llama_memory_seq_rm(m, d, -1, -1);
                    llama_memory_seq_cp(m, s, d, -1, -1);
                });
            }
            break;
        case 4:
            restore(p, s, d, step);
            break;
        case 5:
            restore_all(p, step);
            break;
        case 6:
            if (random_below(4) == 0) {
                p.both([&](llama_memory_t m) { llama_memory_seq_keep(m, s); });
            }
            break;
        case 7:
            decode(p, step, true);
            if (p.recurrent) { // states that some layers have brought forward are nobody's, with any cache
                p.both([&](llama_memory_t m) { llama_memory_clear(m, true); });
            }
            break;
        case 8: // room
            p.both([&](llama_memory_t m) { llama_memory_seq_rm(m, s, -1, -1); });
            break;
        default:
            break;
    }
}

static void positions(pair & p, int step, bool window) {
    for (int s = 0; s < SEQS; s++) {
        if (llama_memory_seq_pos_max(p.mem[0], s) != llama_memory_seq_pos_max(p.mem[1], s)) {
            fail("the last positions differ", step);
        }
        const int a = llama_memory_seq_pos_min(p.mem[0], s), b = llama_memory_seq_pos_min(p.mem[1], s);
        if (window ? b < a : a != b) { // with a window ours may have given more of it back
            fail("the first positions differ", step);
        }
    }
}

// Embeddings that are no numbers make keys that are none. The process goes on, and so do other sequences.
static void not_finite(pair & p, const llama_model * model, int step) {
    const int n = llama_model_n_embd(model);
    llama_batch b = llama_batch_init(1, n, 1);
    llama_memory_seq_rm(p.mem[1], SEQS - 1, -1, -1);
    llama_memory_seq_rm(p.mem[0], SEQS - 1, -1, -1);
    b.n_tokens = 1, b.pos[0] = 0, b.n_seq_id[0] = 1, b.seq_id[0][0] = SEQS - 1, b.logits[0] = true;
    std::fill(b.embd, b.embd + n, NAN);
    if (llama_decode(p.ctx[1], b)) {
        fail("a batch of NaN cannot be decoded", step);
    }
    llama_memory_seq_rm(p.mem[1], SEQS - 1, -1, -1);
    llama_batch_free(b);
}

int main(int argc, char ** argv) {
    int steps = 200;
    double limit = 1e-9;
    bool streams = false, full = false, nan = false, loud = false;
    const char * format = "kf32vf32";
    for (int i = 2; i < argc; i++) {
        auto is = [&](const char * name) { return !strcmp(argv[i], name) && i + 1 < argc; };
        if      (is("--steps"))  steps = atoi(argv[++i]);
        else if (is("--seed"))   state = atoll(argv[++i]);
        else if (is("--format")) format = argv[++i];
        else if (is("--limit"))  limit = atof(argv[++i]);
        else if (!strcmp(argv[i], "--streams")) streams = true;
        else if (!strcmp(argv[i], "--full"))    full = true;
        else if (!strcmp(argv[i], "--nan"))     nan = true;
        else if (!strcmp(argv[i], "--alone"))   SEQS = 1;
        else if (!strcmp(argv[i], "--loud"))    loud = true;
        else return fprintf(stderr, "walk: %s?\n", argv[i]), 2;
    }
    std::string instead;
    llama_log_set(quiet, &instead);
    llama_backend_init();
    auto params = llama_model_default_params();
    params.load_mode = loud ? LLAMA_LOAD_MODE_NONE : params.load_mode; // weights that can be written to
    llama_model * model = argc > 1 ? llama_model_load_from_file(argv[1], params) : nullptr;
    if (!model) {
        return fprintf(stderr, "walk: no model\n"), 2;
    }
    if (loud) {
        make_loud(model);
    }
    const bool window = llama_model_n_swa(model) > 0 && !full;
    pair p = {};
    setenv("LLAMA_AURA", format, 1);
    p.ctx[1] = make(model, streams, full);
    unsetenv("LLAMA_AURA");
    p.ctx[0] = make(model, streams, full);
    if (!p.ctx[0] || !p.ctx[1] || !llama_get_memory(p.ctx[1])) {
        return printf("skip %s: no cache\n", argv[1]), 0;
    }
    if (!instead.empty()) {
        return printf("skip %s: %s", argv[1], instead.c_str()), 0;
    }
    p.vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    p.recurrent = llama_model_is_recurrent(model) || llama_model_is_hybrid(model);
    for (int i = 0; i < 2; i++) {
        p.mem[i] = llama_get_memory(p.ctx[i]);
    }
    for (int step = 0; step < steps && failures < 5; step++) {
        decode(p, step, false);
        operate(p, step, window);
        positions(p, step, window);
        if (nan && step % 20 == 10) {
            not_finite(p, model, step);
        }
        if (p.worst > 20*limit || p.error > limit*p.square) { // ggml's gelu rounds to f16: a single step may fall the other way
            fail("the logits differ", step);
            break;
        }
    }
    printf("%s %s: %d steps, nmse %.1e, at worst %.1e%s\n", failures ? "FAIL" : "ok", argv[1], steps, p.error/p.square, p.worst,
           p.nan ? ", some not finite" : "");
    return failures != 0;
}
