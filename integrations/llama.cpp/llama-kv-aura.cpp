#include "llama-kv-aura.h"

#include "llama-context.h"
#include "llama-graph.h"
#include "llama-impl.h"
#include "llama-model.h"

#include <aura_file.h>
#include <aura_team.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <set>
#include <stdexcept>

// A call that cannot fail here: what it needs was reserved, and its arguments are ours.
#define MUST(call) do { if ((call) != AURA_OK) { GGML_ABORT("%s: %s", __func__, aura_last_error()); } } while (0)

// One that attends may meet numbers that are none, and makes NaN of them.
static void must_run(aura_status status) {
    if (status && status != AURA_NOT_FINITE) {
        GGML_ABORT("aura: %s", aura_last_error());
    }
}

thread_local uint32_t llama_kv_aura::next_batch = 512;
thread_local bool     llama_kv_aura::next_full  = false;

// ---- birth and death ----------------------------------------------------------------------------------------------------

static aura_kind kind_of(ggml_type type) {
    switch (type) {
        case GGML_TYPE_AURA2: return AURA_KIND_B2;
        case GGML_TYPE_AURA3: return AURA_KIND_B3;
        case GGML_TYPE_AURA4: return AURA_KIND_B4;
        case GGML_TYPE_AURA5: return AURA_KIND_B5;
        case GGML_TYPE_AURA6: return AURA_KIND_B6;
        case GGML_TYPE_AURA8: return AURA_KIND_B8;
        default:              return (aura_kind) 0;
    }
}

ggml_type llama_kv_aura::instead(ggml_type type) {
    return kind_of(type) ? GGML_TYPE_F16 : type;
}

// The other side of a pair may be plain.
static aura_kind kind_beside(ggml_type type) {
    switch (type) {
        case GGML_TYPE_F32:  return AURA_KIND_F32;
        case GGML_TYPE_F16:  return AURA_KIND_F16;
        case GGML_TYPE_BF16: return AURA_KIND_BF16;
        default:             return kind_of(type);
    }
}

llama_kv_aura::llama_kv_aura(const asked & a) : cells(a.cells), stream_of(a.stream_of), hparams(a.hparams),
    kv_size(a.kv_size), n_swa(a.n_swa), swa_type(a.swa_type) {
    seqs.resize(stream_of.size());
}

llama_kv_aura::~llama_kv_aura() {
    aura_model_cache_destroy(model);
    aura_ctx_destroy(ctx);
    aura_team_destroy(team);
}

// Why this cache cannot be aura's, or nullptr.
const char * llama_kv_aura::refuse(const asked & a) const {
    if (a.hparams.is_mla()) {
        return "it has latent attention, whose keys are its values";
    }
    if (a.hparams.indexer_head_size > 0 || a.hparams.ple_n_heads > 0) {
        return "its attention chooses keys by an index of its own";
    }
    switch (a.model.arch) {
        case LLM_ARCH_T5:
            return "it adds a bias of its own to every logit";
        case LLM_ARCH_DEEPSEEK4:
        case LLM_ARCH_MINIMAX_M3:
        case LLM_ARCH_DFLASH:
        case LLM_ARCH_QWEN4EXP:
            return "its graph reads the cache's tensors itself";
        default:
            break;
    }
    if (a.swa_type == LLAMA_SWA_TYPE_SYMMETRIC) {
        return "its window reaches into the future";
    }
    if (a.hparams.f_max_alibi_bias > 0 && !a.hparams.causal_attn) {
        return "it has ALiBi that reaches into the future";
    }
    for (uint32_t il = 0; a.offload && il < a.hparams.n_layer_all; il++) {
        if (ggml_backend_dev_type(a.model.dev_layer(il)) == GGML_BACKEND_DEVICE_TYPE_GPU) {
            return "its layers are on a device; -nkvo keeps keys and values here";
        }
    }
    return nullptr;
}

static std::vector<float> alibi_slopes(float bias, uint32_t heads) {
    std::vector<float> slopes;
    if (bias > 0) {
        const uint32_t n2 = 1u << (uint32_t) floorf(log2f(heads));
        const float m0 = powf(2.0f, -bias/n2), m1 = powf(2.0f, -bias/2/n2);
        for (uint32_t h = 0; h < heads; h++) {
            slopes.push_back(h < n2 ? powf(m0, h + 1) : powf(m1, 2*(h - n2) + 1));
        }
    }
    return slopes;
}

// Makes the caches of the layers; what is wrong, or nullptr.
const char * llama_kv_aura::configure(const asked & a, aura_format format) {
    std::vector<aura_config> configs;
    aura_profile * profile = nullptr;
    const char * path = getenv("LLAMA_AURA_PROFILE"), * learn = getenv("LLAMA_AURA_LEARN");
    aura_ctx_options o = AURA_CTX_OPTIONS_INIT;
    if (aura_team_create(nullptr, GGML_MAX_N_THREADS, &team)) {
        return aura_last_error();
    }
    o.executor = aura_team_executor(team); // ggml's threads are aura's
    if (aura_ctx_create(&o, &ctx) || (path && *path && aura_profile_load(ctx, path, &profile))) {
        return aura_last_error();
    }
    for (uint32_t il = 0; il < hparams.n_layer_all; il++) {
        if (!hparams.has_kv(il) || (a.filter && !a.filter(il))) {
            continue;
        }
        const bool grok = a.model.arch == LLM_ARCH_GROK;
        aura_config c = AURA_CONFIG_INIT;
        c.format = format;
        c.q_heads = hparams.n_head(il), c.kv_heads = hparams.n_head_kv(il);
        c.k_dim = hparams.n_embd_head_k(il), c.v_dim = hparams.n_embd_head_v(il);
        c.flags = learn && !strcmp(learn, "0") ? 0 : AURA_LEARN;
        if (n_swa > 0 && swa_type != LLAMA_SWA_TYPE_NONE) {
            c.window = n_swa, c.max_queries = most;
        }
        aura_profile_layer p = AURA_PROFILE_LAYER_INIT;
        if (profile && format.k <= AURA_KIND_B8) {
            if (aura_profile_get(profile, il, &p) || (p.balance && (p.kv_heads != c.kv_heads || p.k_dim != c.k_dim)) ||
                (p.v_metric && p.v_dim != c.v_dim)) {
                aura_profile_destroy(profile);
                return "LLAMA_AURA_PROFILE is of another model";
            }
            c.balance = p.balance, c.k_metric = p.k_metric;
            if (format.v <= AURA_KIND_B8) {
                c.v_balance = p.v_balance, c.v_metric = p.v_metric;
            }
        }
        layer_of[il] = layers.size();
        layers.push_back({ this, nullptr, il, c.q_heads, c.kv_heads, c.k_dim, c.v_dim,
            hparams.attn_soft_cap || grok ? hparams.f_attn_logit_softcapping : 0.0f, grok ? hparams.f_attn_out_scale : 1.0f,
            alibi_slopes(hparams.f_max_alibi_bias, c.q_heads) });
        configs.push_back(c);
    }
    aura_model_config m = AURA_MODEL_CONFIG_INIT;
    m.layers = configs.size(), m.configs = configs.data();
    const aura_status status = configs.empty() ? AURA_OK : aura_model_cache_create(ctx, &m, &model);
    aura_profile_destroy(profile);
    for (uint32_t il = 0; il < hparams.n_layer_all && a.reuse; il++) {
        const int32_t from = a.reuse(il);
        if (from >= 0 && (!a.filter || a.filter(il)) && layer_of.count(from)) {
            layer_of[il] = layer_of[from];
        }
    }
    return status ? aura_last_error() : nullptr;
}

std::shared_ptr<llama_kv_aura> llama_kv_aura::make(const asked & a) {
    aura_format format = { kind_beside(a.type_k), kind_beside(a.type_v) };
    const char * name = getenv("LLAMA_AURA");
    const bool named = name && *name && !kind_of(a.type_k) && !kind_of(a.type_v);
    if (!kind_of(a.type_k) && !kind_of(a.type_v) && !named) {
        return nullptr;
    }
    std::shared_ptr<llama_kv_aura> res(new llama_kv_aura(a));
    const char * why = nullptr;
    if (named && aura_format_parse(name, &format)) {
        why = aura_last_error();
    } else if (!format.k || !format.v) {
        why = "beside an aura type there are f32, f16, bf16 and other aura types";
    } else if (a.shared) {
        why = "it shares the cells of another cache";
    } else if (*a.tag) {
        why = "it is the index of keys of another cache";
    } else {
        why = res->refuse(a);
    }
    res->most = next_full ? std::max(next_batch, a.kv_size - std::min(a.kv_size, a.n_swa)) : next_batch;
    if (why || (why = res->configure(a, format))) {
        LLAMA_LOG_WARN("%s: no aura cache for this model (%s): %s; f16 instead\n", __func__, a.model.arch_name().c_str(), why);
        return nullptr;
    }
    if (res->layers.empty()) {
        return nullptr;
    }
    char text[16];
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    double page = 0;
    for (size_t i = 0; i < res->layers.size(); i++) {
        res->layers[i].cache = aura_model_cache_layer(res->model, i);
        MUST(aura_cache_get_info(res->layers[i].cache, &info));
        page += info.page_bytes;
    }
    res->planned = page*((a.kv_size + 255)/256)*a.cells.size();
    MUST(aura_format_name(format, text));
    LLAMA_LOG_INFO("%s: aura %s %s: %zu layers, %.2f bits a number, %.2f MiB for %u tokens, taken as they come%s\n", __func__,
        aura_version(), text, res->layers.size(), info.bits_per_value, res->planned/1024.0/1024,
        a.kv_size*(uint32_t) a.cells.size(), info.config.window ? ", a window" : "");
    return res;
}

size_t llama_kv_aura::bytes() const {
    aura_model_cache_info info = AURA_MODEL_CACHE_INFO_INIT;
    MUST(aura_model_cache_get_info(model, &info));
    return hparams.no_alloc ? planned : info.bytes; // without memory somebody asks what there will be
}

// ---- sequences ----------------------------------------------------------------------------------------------------------

void llama_kv_aura::forget(sequence & s) {
    if (s.id) {
        MUST(aura_model_seq_release(model, s.id));
    }
    s = {};
}

void llama_kv_aura::clear() {
    for (auto & s : seqs) {
        forget(s);
    }
    now = {};
}

// Tokens that aura no longer has, with a window.
uint64_t llama_kv_aura::gone(const sequence & s) const {
    aura_seq_info info = AURA_SEQ_INFO_INIT;
    if (!s.id || swa_type == LLAMA_SWA_TYPE_NONE) {
        return 0;
    }
    MUST(aura_seq_get_info(layers[0].cache, s.id, &info));
    return info.first;
}

llama_pos llama_kv_aura::seq_pos_min(llama_seq_id seq) const {
    const llama_pos least = cells_of(seq).seq_pos_min(seq);
    const sequence & s = seqs[seq];
    const size_t first = std::max<size_t>(s.first, gone(s));
    return touched || first >= s.tokens.size() ? least : std::max(least, s.tokens[first].pos);
}

// Turns a key to where its cell is.
void llama_kv_aura::turn(void * user, uint32_t layer, uint64_t token, uint32_t, float * key) {
    const turned & what = *(const turned *) user;
    const uint32_t n = what.by->n_rot[layer], shift = what.shift_of[token];
    const float * with = what.by->of[layer].data() + (size_t) shift*n;
    for (uint32_t i = 0; i < n/2 && what.by->shifts[shift]; i++) {
        const uint32_t x = what.by->neox ? i : 2*i, y = what.by->neox ? i + n/2 : 2*i + 1;
        const float a = key[x], b = key[y];
        key[x] = a*with[x] - b*with[y], key[y] = a*with[y] + b*with[x];
    }
}

// Decodes tokens of one layer and appends them to `seq`.
bool llama_kv_aura::move(const layer & l, const run & r, aura_seq seq) {
    const size_t PIECE = std::min<size_t>(256, most), nk = (size_t) l.n_head_kv*l.dim_k, nv = (size_t) l.n_head_kv*l.dim_v;
    std::vector<float> k(PIECE*nk), v(PIECE*nv);
    for (size_t i = 0; i < r.n; i += PIECE) {
        const uint32_t n = std::min(PIECE, r.n - i);
        aura_view to_k = AURA_VIEW_INIT, to_v = AURA_VIEW_INIT;
        aura_append_job in = AURA_APPEND_JOB_INIT;
        to_k.data = k.data(), to_v.data = v.data();
        in.seq = seq, in.tokens = n, in.k.data = k.data(), in.v.data = v.data();
        if (aura_cache_decode(l.cache, r.from, r.first + i, n, &to_k, &to_v) || aura_append(l.cache, &in, 1)) {
            return false;
        }
    }
    return true;
}

// Makes a sequence of parts of others.
bool llama_kv_aura::build(std::vector<run> runs, aura_seq & seq) {
    if (!runs.empty() && runs[0].first == 0 && aura_model_seq_fork(model, runs[0].from, runs[0].n, &seq) == AURA_OK) {
        runs.erase(runs.begin());
    } else if (aura_model_seq_create(model, &seq)) {
        LLAMA_LOG_ERROR("%s: %s\n", __func__, aura_last_error());
        return false;
    }
    for (const auto & r : runs) {
        for (const auto & l : layers) {
            if (!move(l, r, seq)) {
                LLAMA_LOG_ERROR("%s: %s\n", __func__, aura_last_error());
                MUST(aura_model_seq_release(model, seq));
                return false;
            }
        }
    }
    return true;
}

// The first tokens stay.
bool llama_kv_aura::cut(sequence & s, size_t tokens) {
    if (tokens <= s.first) {
        forget(s);
        return true;
    }
    if (aura_model_seq_truncate(model, s.id, tokens)) {
        // with a window some that are to be seen again are gone: those that are there begin a new sequence
        const size_t first = std::max<size_t>(s.first, gone(s));
        if (first >= tokens) {
            forget(s);
            return true;
        }
        aura_seq seq;
        if (!build({ { s.id, first, tokens - first } }, seq)) {
            return false;
        }
        MUST(aura_model_seq_release(model, s.id));
        s.id = seq;
        s.tokens.erase(s.tokens.begin(), s.tokens.begin() + first);
        tokens -= first, s.first = 0;
    }
    s.tokens.resize(tokens);
    s.reserved = 0;
    return true;
}

// Takes tokens [first, first + n) out. With the last that go, the keys after them are turned, so that they are encoded once.
bool llama_kv_aura::take_out(sequence & s, size_t first, size_t n, turned & what, bool last) {
    what.shift_of.erase(what.shift_of.begin() + first, what.shift_of.begin() + first + n);
    s.reserved = 0;
    if (what.by && last ? aura_model_seq_shift(model, s.id, first, n, turn, &what) : aura_model_seq_remove(model, s.id, first, n)) {
        LLAMA_LOG_ERROR("%s: %s\n", __func__, aura_last_error());
        return false;
    }
    s.tokens.erase(s.tokens.begin() + first, s.tokens.begin() + first + n);
    return true;
}

// Turns the keys of tokens below `end`, run by run.
bool llama_kv_aura::turn_all(sequence & s, size_t end, turned & what) {
    auto still = [&](size_t i) { return what.by->shifts[what.shift_of[i]] == 0; };
    for (size_t i = s.first, n; i < end; i += n) {
        for (n = 1; i + n < end && still(i + n) == still(i); n++) {
        }
        if (!still(i) && aura_model_seq_map_keys(model, s.id, i, n, turn, &what)) {
            LLAMA_LOG_ERROR("%s: %s\n", __func__, aura_last_error());
            return false;
        }
    }
    return true;
}

// Tokens of this sequence that lost their cell go; with t, keys are turned to where their cell is.
bool llama_kv_aura::settle(llama_seq_id seq, const turns * t) {
    sequence & s = seqs[seq];
    const auto & c = cells_of(seq);
    auto alive = [&](size_t i) { return c.seq_has(s.tokens[i].cell, seq); };
    if (!s.id) {
        return true;
    }
    s.first = std::max<size_t>(s.first, gone(s));
    while (swa_type != LLAMA_SWA_TYPE_NONE && s.first < s.tokens.size() && !alive(s.first)) {
        s.first++; // a window hides its beginning
    }
    size_t end = s.tokens.size();
    while (end > s.first && !alive(end - 1)) {
        end--;
    }
    if (end < s.tokens.size() && !cut(s, end)) {
        return false;
    }
    turned what = { t, std::vector<uint32_t>(s.tokens.size()) };
    std::vector<run> holes;
    for (size_t i = s.first; i < s.tokens.size(); i++) {
        if (!alive(i)) {
            if (holes.empty() || holes.back().first + holes.back().n != i) {
                holes.push_back({ s.id, i, 0 });
            }
            holes.back().n++;
        } else if (t) {
            const llama_pos pos = c.pos_get(s.tokens[i].cell);
            what.shift_of[i] = std::lower_bound(t->shifts.begin(), t->shifts.end(), pos - s.tokens[i].pos) - t->shifts.begin();
            s.tokens[i].pos = pos;
        }
    }
    size_t left = s.tokens.size(); // of them, keys that are to be turned by themselves
    for (size_t i = holes.size(); i-- > 0;) {
        if (!take_out(s, holes[i].first, holes[i].n, what, i == 0)) {
            return false;
        }
        left = holes[i].first;
    }
    return !t || turn_all(s, left, what);
}

// Takes back a step that not all layers have seen: its computation was given up.
bool llama_kv_aura::undo() {
    const bool half = !now.before.empty() && now.layers != layers.size();
    for (size_t i = 0; half && i < now.before.size(); i++) {
        const llama_seq_id seq = now.before[i].first;
        sequence & s = seqs[seq];
        auto & c = cells[stream_of[seq]];
        for (size_t j = now.before[i].second; j < s.tokens.size(); j++) {
            if (c.seq_has(s.tokens[j].cell, seq)) {
                c.seq_rm(s.tokens[j].cell, seq);
            }
        }
        if (!cut(s, now.before[i].second)) {
            return false;
        }
    }
    now.before.clear();
    return true;
}

// The first that llama.cpp does after a step that was given up is to cut it off.
void llama_kv_aura::touch() {
    undo();
    touched = true;
}

bool llama_kv_aura::settle() {
    if (!undo()) {
        return false;
    }
    for (size_t seq = 0; touched && seq < seqs.size(); seq++) {
        if (!settle(seq, nullptr)) {
            return false;
        }
    }
    touched = false;
    return true;
}

void llama_kv_aura::seq_cp(llama_seq_id src, llama_seq_id dst, llama_pos p0, llama_pos p1) {
    if (src == dst || !settle()) {
        return;
    }
    sequence & from = seqs[src], & to = seqs[dst];
    const auto & c = cells_of(src);
    const bool streams = stream_of[src] != stream_of[dst];
    struct part { token t; aura_seq id; size_t i; llama_pos pos; };
    std::vector<part> parts;
    p1 = p1 < 0 ? std::numeric_limits<llama_pos>::max() : p1;
    for (size_t i = from.first; i < from.tokens.size(); i++) {
        const llama_pos pos = c.pos_get(from.tokens[i].cell);
        if (streams || (pos >= p0 && pos < p1)) {
            parts.push_back({ from.tokens[i], from.id, i, pos });
        }
    }
    const size_t copied = parts.size();
    for (size_t i = to.first; !streams && i < to.tokens.size(); i++) {
        const uint32_t cell = to.tokens[i].cell;
        if (!c.seq_has(cell, src) || c.pos_get(cell) < p0 || c.pos_get(cell) >= p1) {
            parts.push_back({ to.tokens[i], to.id, i, c.pos_get(cell) });
        }
    }
    if (parts.size() > copied) {
        std::stable_sort(parts.begin(), parts.end(), [](const part & a, const part & b) { return a.pos < b.pos; });
    }
    sequence made;
    std::vector<run> runs;
    if (copied == parts.size() && copied && parts[0].i == from.first && parts.back().i - parts[0].i + 1 == copied &&
        aura_model_seq_fork(model, from.id, from.first + copied, &made.id) == AURA_OK) {
        made.tokens.assign(from.tokens.begin(), from.tokens.begin() + from.first + copied);
        made.first = from.first;
    } else if (copied) {
        for (const auto & p : parts) {
            if (runs.empty() || runs.back().from != p.id || runs.back().first + runs.back().n != p.i) {
                runs.push_back({ p.id, p.i, 0 });
            }
            runs.back().n++;
            made.tokens.push_back(p.t);
        }
        if (!build(runs, made.id)) {
            GGML_ABORT("%s: no memory for a copy of sequence %d", __func__, src); // llama.cpp has no way to say it
        }
    } else {
        return;
    }
    from.reserved = 0; // pages that it shares now are copied when they are written to
    forget(to);
    to = std::move(made);
}

// ---- batches ------------------------------------------------------------------------------------------------------------

bool llama_kv_aura::reserve(const std::vector<llama_ubatch> & ubatches) {
    std::vector<size_t> more(seqs.size());
    for (const auto & u : ubatches) {
        for (uint32_t i = 0; i < u.n_tokens; i++) {
            for (int32_t j = 0; j < u.n_seq_id[i]; j++) {
                more[u.seq_id[i][j]]++;
            }
        }
    }
    for (size_t i = 0; i < seqs.size(); i++) {
        sequence & s = seqs[i];
        const uint64_t tokens = s.tokens.size() + more[i];
        if (!more[i] || tokens <= s.reserved) {
            continue;
        }
        if ((!s.id && aura_model_seq_create(model, &s.id)) || aura_model_seq_reserve(model, s.id, tokens)) {
            LLAMA_LOG_ERROR("%s: %s\n", __func__, aura_last_error());
            return false;
        }
        s.reserved = (tokens + 255)/256*256; // pages are whole
    }
    return true;
}

// With a window llama.cpp gives cells of tokens that nobody will see to others.
void llama_kv_aura::advance() {
    for (size_t seq = 0; swa_type != LLAMA_SWA_TYPE_NONE && seq < seqs.size(); seq++) {
        sequence & s = seqs[seq];
        if (!s.tokens.empty()) {
            const llama_pos least = cells_of(seq).seq_pos_min(seq);
            while (s.first < s.tokens.size() && (least < 0 || s.tokens[s.first].pos < least)) {
                s.first++;
            }
        }
    }
}

// The first token that token t sees.
uint64_t llama_kv_aura::sees_from(const sequence & s, size_t t) const {
    llama_pos least = 0;
    const llama_pos pos = s.tokens[t].pos;
    if (swa_type == LLAMA_SWA_TYPE_STANDARD) {
        least = pos - (llama_pos) n_swa + 1;
    } else if (swa_type == LLAMA_SWA_TYPE_CHUNKED) {
        least = pos/(llama_pos) n_swa*(llama_pos) n_swa;
    }
    return std::lower_bound(s.tokens.begin() + s.first, s.tokens.begin() + t, least,
        [](const token & a, llama_pos p) { return a.pos < p; }) - s.tokens.begin();
}

// What is asked of each part of a sequence whose positions follow each other.
std::vector<llama_kv_aura::part> llama_kv_aura::parts_of(const sequence & s, const std::vector<uint32_t> & asks,
                                                         size_t before) const {
    std::vector<part> parts;
    for (size_t begin = s.first, end; begin < s.tokens.size(); begin = end) {
        for (end = begin + 1; end < s.tokens.size() && s.tokens[end].pos == s.tokens[end - 1].pos + 1; end++) {
        }
        part p;
        p.ask.seq = s.id, p.ask.queries = asks.size();
        for (uint32_t i : asks) {
            const size_t t = before + i, from = std::max<size_t>(begin, sees_from(s, t));
            const size_t until = std::max(from, std::min(end, t + 1));
            p.from.push_back(from), p.until.push_back(until);
            p.behind.push_back(until > from ? s.tokens[t].pos - s.tokens[until - 1].pos : 0);
        }
        parts.push_back(std::move(p));
    }
    return parts;
}

// The jobs of a sequence: rows of the tensors are appended, and those of them in `asks` ask.
void llama_kv_aura::plan(llama_seq_id seq, const std::vector<uint32_t> & rows, const std::vector<uint32_t> & asks, size_t before) {
    sequence & s = seqs[seq];
    auto even = [](const std::vector<uint32_t> & r) { return r.back() - r.front() + 1 == r.size(); };
    auto keep = [&](const std::vector<uint32_t> & r) {
        now.rows.insert(now.rows.end(), r.begin(), r.end());
        return now.rows.data() + now.rows.size() - r.size(); // reserved by apply()
    };
    aura_append_job in = AURA_APPEND_JOB_INIT;
    in.seq = s.id, in.tokens = rows.size();
    in.k.rows = in.v.rows = even(rows) ? nullptr : keep(rows);
    now.in.push_back(in);
    now.in_row.push_back(even(rows) ? rows.front() : 0);
    if (asks.empty()) {
        return;
    }
    std::vector<uint32_t> ask_rows;
    for (uint32_t i : asks) {
        ask_rows.push_back(rows[i]);
    }
    if (hparams.f_max_alibi_bias > 0) {
        auto parts = parts_of(s, asks, before);
        if (parts.size() > 1) {
            now.in_parts.push_back({ ask_rows, std::move(parts) });
            return;
        }
    }
    bool last = asks.size() == rows.size() - asks.front();
    const size_t at = now.until.size();
    for (uint32_t i : asks) {
        now.until.push_back(before + i + 1);
        now.from.push_back(sees_from(s, before + i));
    }
    aura_attend_job ask = AURA_ATTEND_JOB_INIT;
    ask.seq = s.id, ask.queries = asks.size();
    ask.q.rows = ask.out.rows = even(ask_rows) ? nullptr : keep(ask_rows);
    ask.until = last ? nullptr : now.until.data() + at;
    ask.from = swa_type == LLAMA_SWA_TYPE_NONE && s.first == 0 ? nullptr : now.from.data() + at;
    now.ask.push_back(ask);
    now.ask_row.push_back(even(ask_rows) ? ask_rows.front() : 0);
}

void llama_kv_aura::apply(const std::vector<std::vector<uint32_t>> & in_cells, const llama_ubatch & u) {
    struct group { std::vector<uint32_t> rows, asks; };
    std::map<llama_seq_id, group> groups;
    std::vector<uint32_t> cell;
    size_t all = 0;
    for (const auto & c : in_cells) {
        cell.insert(cell.end(), c.begin(), c.end());
    }
    now = {};
    advance();
    for (uint32_t i = 0; i < u.n_tokens; i++) {
        for (int32_t j = 0; j < u.n_seq_id[i]; j++, all++) {
            const llama_seq_id seq = u.seq_id[i][j];
            group & g = groups[seq];
            if (g.rows.empty()) {
                now.before.push_back({ seq, seqs[seq].tokens.size() });
            }
            if (j == 0) { // a token of several sequences asks in its first
                g.asks.push_back(g.rows.size());
            }
            g.rows.push_back(i);
            seqs[seq].tokens.push_back({ cell[i], u.pos[i] });
        }
    }
    now.rows.reserve(all + u.n_tokens);
    now.until.reserve(u.n_tokens), now.from.reserve(u.n_tokens);
    now.bad.resize(all);
    for (const auto & b : now.before) {
        now.longest = std::max<uint64_t>(now.longest, seqs[b.first].tokens.size());
        plan(b.first, groups[b.first].rows, groups[b.first].asks, b.second);
    }
    size_t at = 0;
    for (auto & in : now.in) {
        in.bad = now.bad.data() + at;
        at += in.tokens;
    }
}

// ---- the op -------------------------------------------------------------------------------------------------------------

ggml_tensor * llama_kv_aura::attend(ggml_context * ctx0, ggml_cgraph * gf, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
                                    ggml_tensor * bias, ggml_tensor * sinks, float scale, bool causal, int il,
                                    const std::function<void (ggml_tensor *)> & here) {
    layer & l = layers[layer_of.at(il)];
    const op_options o = { scale*l.factor, causal, k != nullptr, sinks != nullptr };
    ggml_tensor * args[4] = { q };
    int n = 1;
    GGML_ASSERT(!bias && q->type == GGML_TYPE_F32 && (!k || (k->type == GGML_TYPE_F32 && v->type == GGML_TYPE_F32)));
    GGML_ASSERT(!l.softcap || scale == 1.0f); // llama.cpp caps before it scales
    if (k) {
        args[n++] = k, args[n++] = v;
    }
    if (sinks) {
        args[n++] = sinks;
    }
    ggml_tensor * res = ggml_custom_4d(ctx0, GGML_TYPE_F32, (int64_t) l.dim_v*l.n_head, q->ne[2], 1, 1, args, n, op,
        GGML_N_TASKS_MAX, &l);
    memcpy((char *) res->op_params + GGML_MAX_OP_PARAMS - sizeof o, &o, sizeof o);
    here(res); // a device may say of any op that it has it
    ggml_build_forward_expand(gf, res);
    return res;
}

void llama_kv_aura::op(ggml_tensor * dst, int ith, int nth, void * user) {
    layer & l = *(layer *) user;
    if (ith) {
        MUST(aura_team_serve(l.self->team, ith));
        return;
    }
    MUST(aura_team_lead(l.self->team, nth));
    l.self->lead(dst, l);
    MUST(aura_team_end(l.self->team));
}

template <typename view>
static void place(view & v, const ggml_tensor * t, uint32_t row, size_t head, size_t token) {
    v.data = (char *) t->data + row*token;
    v.token_stride = token/sizeof(float), v.head_stride = head/sizeof(float);
}

// The results of the parts, joined. A slope times how far a part is behind a query is the same for all its keys: it goes to their
// sum.
void llama_kv_aura::attend_parts(const parted & p, ggml_tensor * dst, const layer & l, aura_attend_options how) const {
    const size_t rows = p.rows.size()*l.n_head;
    const ggml_tensor * q = dst->src[0];
    std::vector<float> out[2], lse[2]; // all so far, and of a part
    how.workspace = nullptr;
    for (size_t i = 0; i < p.parts.size(); i++) {
        const part & of = p.parts[i];
        const bool more = i > 0;
        out[more].resize(rows*l.dim_v), lse[more].resize(rows);
        aura_attend_job ask = of.ask;
        place(ask.q, q, 0, q->nb[1], q->nb[2]);
        ask.q.rows = p.rows.data(), ask.from = of.from.data(), ask.until = of.until.data();
        ask.out.data = out[more].data(), ask.lse = lse[more].data();
        must_run(aura_attend(l.cache, &ask, 1, &how));
        for (size_t row = 0; row < rows; row++) {
            lse[more][row] -= l.alibi[row%l.n_head]*of.behind[row/l.n_head];
        }
        how.sinks = nullptr; // once
        if (more) {
            aura_merge_args m = AURA_MERGE_ARGS_INIT;
            m.rows = rows, m.dim = l.dim_v;
            m.a = m.out = out[0].data(), m.a_lse = m.out_lse = lse[0].data(), m.b = out[1].data(), m.b_lse = lse[1].data();
            must_run(aura_merge(ctx, &m));
        }
    }
    for (size_t i = 0; i < p.rows.size(); i++) {
        const size_t n = (size_t) l.n_head*l.dim_v;
        memcpy((char *) dst->data + p.rows[i]*dst->nb[1], out[0].data() + i*n, n*sizeof(float));
    }
}

void llama_kv_aura::lead(ggml_tensor * dst, layer & l) {
    op_options o;
    memcpy(&o, (const char *) dst->op_params + GGML_MAX_OP_PARAMS - sizeof o, sizeof o);
    const ggml_tensor * q = dst->src[0], * k = dst->src[1], * v = dst->src[2], * sinks = dst->src[o.keys ? 3 : 1];
    for (size_t i = 0; o.keys && i < now.in.size(); i++) {
        place(now.in[i].k, k, now.in_row[i], k->nb[1], k->nb[2]);
        place(now.in[i].v, v, now.in_row[i], v->nb[1], v->nb[2]);
    }
    for (size_t i = 0; i < now.ask.size(); i++) {
        place(now.ask[i].q,   q,   now.ask_row[i], q->nb[1], q->nb[2]);
        place(now.ask[i].out, dst, now.ask_row[i], l.dim_v*sizeof(float), dst->nb[1]);
    }
    aura_attend_options how = AURA_ATTEND_OPTIONS_INIT;
    how.scale = o.scale, how.softcap = l.softcap, how.not_causal = !o.causal;
    how.alibi = l.alibi.empty() ? nullptr : l.alibi.data();
    how.sinks = o.sinks ? (const float *) sinks->data : nullptr;
    size_t bytes = 0;
    MUST(aura_attend_workspace(l.cache, now.ask.data(), now.ask.size(), now.longest, &bytes));
    if (workspace.size() < bytes + 64) {
        workspace.resize(bytes + bytes/4 + 64);
    }
    how.workspace = (void *) (((uintptr_t) workspace.data() + 63) & ~(uintptr_t) 63);
    how.workspace_bytes = workspace.size() - 64;
    must_run(aura_append_attend(l.cache, now.in.data(), o.keys ? now.in.size() : 0, now.ask.data(), now.ask.size(), &how));
    for (const auto & p : now.in_parts) {
        attend_parts(p, dst, l, how);
    }
    now.layers += o.keys;
    if (o.keys && !said_bad && std::any_of(now.bad.begin(), now.bad.end(), [](uint8_t b) { return b != 0; })) {
        said_bad = true;
        LLAMA_LOG_WARN("%s: layer %u: keys or values that are not finite are stored as zeros\n", __func__, l.il);
    }
}

// ---- positions that change ------------------------------------------------------------------------------------------------

// What becomes of (1, 0) in each pair of numbers, for every shift and layer: llama.cpp's own rope says it.
bool llama_kv_aura::compute(llama_context & lctx, const rope_fn & rope, turns & t) const {
    auto * sched = lctx.get_sched();
    auto * res = lctx.get_gf_res_reserve();
    ggml_backend_sched_reset(sched);
    res->reset();
    ggml_tensor * shift = ggml_new_tensor_1d(res->get_ctx(), GGML_TYPE_I32, t.shifts.size());
    ggml_set_input(shift);
    std::vector<ggml_tensor *> in(layers.size()), out(layers.size());
    for (size_t i = 0; i < layers.size(); i++) {
        t.n_rot.push_back(hparams.has_rope(layers[i].il) ? hparams.n_rot(layers[i].il) : 0);
        t.of.emplace_back((size_t) t.n_rot[i]*t.shifts.size());
        if (t.n_rot[i]) {
            in[i] = ggml_new_tensor_3d(res->get_ctx(), GGML_TYPE_F32, t.n_rot[i], 1, t.shifts.size());
            ggml_set_input(in[i]);
            out[i] = rope(res->get_ctx(), in[i], shift, layers[i].il);
            ggml_set_output(out[i]);
            ggml_build_forward_expand(res->get_gf(), out[i]);
        }
    }
    if (!ggml_backend_sched_alloc_graph(sched, res->get_gf())) {
        return false;
    }
    ggml_backend_tensor_set(shift, t.shifts.data(), 0, ggml_nbytes(shift));
    for (size_t i = 0; i < layers.size(); i++) {
        for (size_t j = 0; j < t.of[i].size(); j++) {
            const uint32_t at = j%t.n_rot[i];
            t.of[i][j] = t.neox ? at < t.n_rot[i]/2 : at%2 == 0;
        }
        if (in[i]) {
            ggml_backend_tensor_set(in[i], t.of[i].data(), 0, ggml_nbytes(in[i]));
        }
    }
    if (lctx.graph_compute(res->get_gf(), false) != GGML_STATUS_SUCCESS) {
        return false;
    }
    ggml_backend_sched_synchronize(sched);
    for (size_t i = 0; i < layers.size(); i++) {
        if (out[i]) {
            ggml_backend_tensor_get(out[i], t.of[i].data(), 0, ggml_nbytes(out[i]));
        }
    }
    return true;
}

bool llama_kv_aura::update(llama_context & lctx, const rope_fn & rope) {
    std::set<llama_pos> shifts = { 0 };
    turns t;
    if (!undo()) {
        return false;
    }
    for (size_t seq = 0; seq < seqs.size(); seq++) {
        for (size_t i = seqs[seq].first; i < seqs[seq].tokens.size(); i++) {
            const token & k = seqs[seq].tokens[i];
            if (cells_of(seq).seq_has(k.cell, seq)) {
                shifts.insert(cells_of(seq).pos_get(k.cell) - k.pos);
            }
        }
    }
    t.shifts.assign(shifts.begin(), shifts.end());
    t.neox = hparams.rope_type != LLAMA_ROPE_TYPE_NORM;
    if (hparams.rope_type == LLAMA_ROPE_TYPE_NONE) {
        t.n_rot.resize(layers.size()), t.of.resize(layers.size());
    } else if (!compute(lctx, rope, t)) {
        LLAMA_LOG_ERROR("%s: no memory to turn keys\n", __func__);
        return false;
    }
    for (size_t seq = 0; seq < seqs.size(); seq++) {
        if (!settle(seq, &t)) {
            return false;
        }
    }
    for (auto & c : cells) {
        c.reset_shift();
    }
    touched = false;
    return true;
}

// ---- state --------------------------------------------------------------------------------------------------------------

void llama_kv_aura::state_write(llama_io_write_i & io, uint32_t stream, llama_seq_id seq) {
    if (!settle()) {
        throw std::runtime_error("the aura cache cannot be put in order");
    }
    std::vector<uint32_t> which;
    for (uint32_t i = 0; i < seqs.size(); i++) {
        if (stream_of[i] == stream && (seq < 0 || i == (uint32_t) seq) && seqs[i].first < seqs[i].tokens.size()) {
            which.push_back(i);
        }
    }
    const uint32_t n = which.size();
    io.write(&n, sizeof n);
    aura_sink sink = AURA_SINK_INIT;
    sink.user = &io;
    sink.write = [](void * to, const void * data, size_t bytes) {
        try {
            ((llama_io_write_i *) to)->write(data, bytes);
        } catch (...) { // not through C
            return 1;
        }
        return 0;
    };
    for (const uint32_t i : which) {
        const uint32_t name = seq < 0 ? i : 0;
        io.write(&name, sizeof name);
        std::vector<llama_pos> positions;
        for (const token & t : seqs[i].tokens) { // after seq_div their order is not that of the tokens
            if (swa_type == LLAMA_SWA_TYPE_NONE) { // which of a window's cells are saved is not known here
                positions.push_back(cells_of(i).pos_get(t.cell));
            }
        }
        const uint32_t n_pos = positions.size();
        io.write(&n_pos, sizeof n_pos);
        io.write(positions.data(), n_pos*sizeof(llama_pos));
        if (aura_model_seq_write(model, seqs[i].id, &sink, nullptr)) {
            throw std::runtime_error(aura_last_error());
        }
    }
}

// The tokens of a sequence that was read are those of the cells with these positions; of a window, in the order of theirs.
bool llama_kv_aura::link(llama_seq_id seq, const std::vector<llama_pos> & positions) {
    sequence & s = seqs[seq];
    auto found = cells_of(seq).seq_pos_get(seq);
    const size_t n = found.size();
    aura_seq_info info = AURA_SEQ_INFO_INIT;
    MUST(aura_seq_get_info(layers[0].cache, s.id, &info));
    s.first = info.tokens - std::min<uint64_t>(info.tokens, n); // what a window no longer shows was saved with its page
    s.tokens.resize(s.first);
    for (const llama_pos pos : positions) {
        const auto cell = found.lower_bound({ pos, 0 });
        if (cell != found.end() && cell->first == pos) {
            s.tokens.push_back({ cell->second, pos });
            found.erase(cell);
        }
    }
    for (const auto & [pos, cell] : found) {
        s.tokens.push_back({ cell, pos });
    }
    if (info.tokens < n || (!positions.empty() && (positions.size() != n || s.tokens.size() != info.tokens))) {
        LLAMA_LOG_ERROR("%s: %zu cells of %zu tokens\n", __func__, n, (size_t) info.tokens);
        forget(s);
        return false;
    }
    return true;
}

bool llama_kv_aura::state_read(llama_io_read_i & io, uint32_t stream, llama_seq_id seq) {
    uint32_t n = 0;
    if (seq >= 0) {
        forget(seqs[seq]);
    }
    aura_source source = AURA_SOURCE_INIT;
    source.user = &io;
    source.read = [](void * from, void * data, size_t bytes) -> ptrdiff_t {
        try {
            ((llama_io_read_i *) from)->read(data, bytes);
        } catch (...) {
            return -1;
        }
        return bytes;
    };
    io.read(&n, sizeof n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t name = 0, n_pos = 0;
        io.read(&name, sizeof name);
        io.read(&n_pos, sizeof n_pos);
        name = seq >= 0 ? (uint32_t) seq : name;
        if (name >= seqs.size() || stream_of[name] != stream || seqs[name].id) {
            LLAMA_LOG_ERROR("%s: a sequence that cannot be here\n", __func__);
            return false;
        }
        if (n_pos > kv_size) {
            LLAMA_LOG_ERROR("%s: %u tokens of %u\n", __func__, n_pos, kv_size);
            return false;
        }
        std::vector<llama_pos> positions(n_pos);
        io.read(positions.data(), n_pos*sizeof(llama_pos));
        if (aura_model_seq_read(model, &source, nullptr, &seqs[name].id)) {
            LLAMA_LOG_ERROR("%s: %s\n", __func__, aura_last_error());
            return false;
        }
        if (!link(name, positions)) {
            return false;
        }
    }
    return true;
}
