// The keys and values of a llama_kv_cache, held by libaura. Its cells stay and say which token of which sequence is where; what
// llama.cpp does to them (seq_rm, seq_add ...) reaches aura's sequences before the next batch. A layer is one custom op, which
// appends and attends.
#pragma once

#include "llama-batch.h"
#include "llama-hparams.h"
#include "llama-io.h"
#include "llama-kv-cells.h"

#include <aura.h>

#include <functional>
#include <map>
#include <memory>
#include <vector>

struct aura_team;
struct llama_context;
struct llama_model;

class llama_kv_aura {
public:
    // what the constructor of a llama_kv_cache knows
    struct asked {
        const llama_model   & model;
        const llama_hparams & hparams;
        ggml_type      type_k, type_v;
        bool           offload;
        uint32_t       kv_size, n_seq_max, n_swa;
        llama_swa_type swa_type;
        const char   * tag;
        bool           shared; // with the cells of another cache
        const std::function<bool   (int32_t)> & filter;
        const std::function<int32_t(int32_t)> & reuse;
        llama_kv_cells_vec          & cells;
        const std::vector<uint32_t> & stream_of;
    };

    // what llama_model::create_memory knows and that constructor does not
    static thread_local uint32_t next_batch;
    static thread_local bool     next_full;

    // nullptr: nobody asked for it, or it is not possible, which the log says
    static std::shared_ptr<llama_kv_aura> make(const asked & a);
    static ggml_type instead(ggml_type type); // of a cache that falls back

    ~llama_kv_aura();

    // ---- sequences

    void clear();
    void touch(); // its cells change
    void seq_cp(llama_seq_id src, llama_seq_id dst, llama_pos p0, llama_pos p1);
    llama_pos seq_pos_min(llama_seq_id seq) const;
    size_t bytes() const;

    bool settle(); // what happened to the cells happens to aura's sequences
    bool reserve(const std::vector<llama_ubatch> & ubatches);
    void apply(const std::vector<std::vector<uint32_t>> & cells, const llama_ubatch & ubatch); // the next graph is of this

    // keys whose positions have changed are turned
    using rope_fn = std::function<ggml_tensor * (ggml_context * ctx, ggml_tensor * k, ggml_tensor * shift, uint32_t il)>;
    bool update(llama_context & lctx, const rope_fn & rope);

    void state_write(llama_io_write_i & io, uint32_t stream, llama_seq_id seq);
    bool state_read (llama_io_read_i  & io, uint32_t stream, llama_seq_id seq);

    // ---- the graph

    ggml_tensor * attend(ggml_context * ctx, ggml_cgraph * gf, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
                         ggml_tensor * bias, ggml_tensor * sinks, float scale, bool causal, int il,
                         const std::function<void (ggml_tensor *)> & here); // on the CPU, wherever the weights are

private:
    struct token {
        uint32_t  cell;
        llama_pos pos; // that its keys are turned to
    };

    struct sequence {
        aura_seq id = 0;
        std::vector<token> tokens;  // of aura's sequence, in its order
        size_t   first    = 0;      // of them that is there; with a window others go
        uint64_t reserved = 0;
    };

    struct layer {
        llama_kv_aura * self;
        aura_cache * cache;
        uint32_t il, n_head, n_head_kv, dim_k, dim_v;
        float softcap, factor; // of logits: cap, and what the scale is multiplied with
        std::vector<float> alibi;
    };

    // of the graph's op, behind what ggml puts into op_params
    struct op_options {
        float scale;
        bool  causal, keys, sinks;
    };

    // ALiBi goes by positions. Queries of a sequence whose positions have gaps ask each part without any by itself.
    struct part {
        aura_attend_job ask = AURA_ATTEND_JOB_INIT;
        std::vector<uint64_t> from, until;
        std::vector<float>    behind; // positions from the last token that a query sees of it to the query
    };

    struct parted {
        std::vector<uint32_t> rows; // of the queries
        std::vector<part>     parts;
    };

    // what an ubatch appends and asks, the same in every layer but for where the tensors are
    struct step {
        std::vector<aura_append_job> in;
        std::vector<aura_attend_job> ask;
        std::vector<uint32_t>        in_row, ask_row; // the first row of each job
        std::vector<uint32_t>        rows;
        std::vector<uint64_t>        from, until;
        std::vector<parted>          in_parts;
        std::vector<uint8_t>         bad;
        std::vector<std::pair<llama_seq_id, size_t>> before; // tokens of the sequences before it
        uint64_t longest = 0; // of them, with its tokens
        size_t layers = 0;    // that have appended
    };

    // tokens [first, first + n) of a sequence of aura's
    struct run {
        aura_seq from;
        size_t   first, n;
    };

    // keys to be turned: for each layer, [shifts][n_rot] of what becomes of (1, 0) in every pair
    struct turns {
        std::vector<llama_pos> shifts;
        std::vector<std::vector<float>> of;
        std::vector<uint32_t> n_rot;
        bool neox = false;
    };

    struct turned { // tokens of a sequence
        const turns * by;
        std::vector<uint32_t> shift_of; // an index into its shifts for each
    };

    const char * configure(const asked & a, aura_format format);
    const char * refuse(const asked & a) const;
    const llama_kv_cells & cells_of(llama_seq_id seq) const { return cells[stream_of[seq]]; }
    void  forget(sequence & s);
    bool  cut(sequence & s, size_t tokens);
    bool  settle(llama_seq_id seq, const turns * t);
    bool  build(std::vector<run> runs, aura_seq & seq);
    bool  move(const layer & l, const run & r, aura_seq seq);
    bool  take_out(sequence & s, size_t first, size_t n, turned & what, bool last);
    bool  turn_all(sequence & s, size_t end, turned & what);
    static void turn(void * user, uint32_t layer, uint64_t token, uint32_t head, float * key);
    bool  undo();
    bool  link(llama_seq_id seq, const std::vector<llama_pos> & positions);
    void  advance();
    uint64_t gone(const sequence & s) const;
    uint64_t sees_from(const sequence & s, size_t t) const;
    bool  compute(llama_context & lctx, const rope_fn & rope, turns & t) const;
    void  plan(llama_seq_id seq, const std::vector<uint32_t> & rows, const std::vector<uint32_t> & asks, size_t before);
    std::vector<part> parts_of(const sequence & s, const std::vector<uint32_t> & asks, size_t before) const;
    void  attend_parts(const parted & p, ggml_tensor * dst, const layer & l, aura_attend_options how) const;
    void  lead(ggml_tensor * dst, layer & l);
    static void op(ggml_tensor * dst, int ith, int nth, void * user);

    aura_team * team = nullptr;
    aura_ctx * ctx = nullptr;
    aura_model_cache * model = nullptr;

    llama_kv_cells_vec          & cells;
    const std::vector<uint32_t> & stream_of;
    const llama_hparams         & hparams;
    uint32_t       kv_size;
    uint32_t       n_swa;
    llama_swa_type swa_type;
    uint32_t       most = 0; // tokens of an append, with a window
    size_t         planned = 0; // bytes of a full cache

    std::vector<layer>    layers;
    std::map<int, size_t> layer_of;
    std::vector<sequence> seqs;
    step now;
    bool touched = false;
    bool said_bad = false;
    std::vector<uint8_t> workspace;

    explicit llama_kv_aura(const asked & a);
};
