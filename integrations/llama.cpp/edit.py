#!/usr/bin/env python3
"""edit.py FROM TO: the source of llama.cpp with our edits. FROM stays as it is; in TO only files that differ are written, so that a
build there starts again with what changed. An edit is found by a short anchor, within the function or class it is in. Where upstream
has moved, edit.py says which anchor is missing, and writes nothing."""
import filecmp
import os
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
OURS = ["llama-kv-aura.h", "llama-kv-aura.cpp"]
BITS = [2, 3, 4, 5, 6, 8]
FIRST = 43  # the first number of a type that upstream has not given away

texts = {}
source = ""


def fail(path, place, anchor):
    sys.exit(f"aura: llama.cpp has moved: {path}{', ' + place.strip() if place else ''}: no single \"{anchor.strip()}\"")


def edit(path, anchor, new, place=None, end="\n}"):
    """Puts `new` in place of the anchor: the only one in the file, or in the block that begins with `place`."""
    if path not in texts:
        try:
            with open(os.path.join(source, path)) as f:
                texts[path] = f.read()
        except OSError:
            fail(path, None, anchor)
    text = texts[path]
    begin, stop = 0, len(text)
    if place:
        if text.count(place) != 1:
            fail(path, None, place)
        begin = text.index(place)
        stop = text.index(end, begin) + 1
    if text.count(anchor, begin, stop) != 1:
        fail(path, place, anchor)
    texts[path] = text[:begin] + text[begin:stop].replace(anchor, new) + text[stop:]


def before(path, anchor, new, place=None):
    edit(path, anchor, new + anchor, place)


def after(path, anchor, new, place=None):
    edit(path, anchor, anchor + new, place)


def names():
    """The types, which are names and nothing else: a tensor of them cannot be made, and a file that has one is refused."""
    types = "".join(f"        GGML_TYPE_AURA{b}   = {FIRST + i},\n" for i, b in enumerate(BITS))
    types = types.replace("\n", " // caches of libaura: names only\n", 1)
    edit("ggml/include/ggml.h", f"        GGML_TYPE_COUNT   = {FIRST},\n", types + f"        GGML_TYPE_COUNT   = {FIRST + len(BITS)},\n")
    before("ggml/src/ggml.c", "    [GGML_TYPE_IQ4_NL] = {\n",
           "".join(f'    [GGML_TYPE_AURA{b}] = {{ .type_name = "aura{b}" }},\n' for b in BITS))
    after("common/arg.cpp", "    GGML_TYPE_Q5_1,\n", "".join(f"    GGML_TYPE_AURA{b},\n" for b in BITS), "kv_cache_types = {")
    before("tools/llama-bench/llama-bench.cpp", "    return GGML_TYPE_COUNT;\n",
           "    for (int type = GGML_TYPE_AURA2; type <= GGML_TYPE_AURA8; type++) {\n"
           "        if (s == ggml_type_name((ggml_type) type)) {\n            return (ggml_type) type;\n        }\n    }\n",
           "static ggml_type ggml_type_from_name(")


def build():
    path = "src/CMakeLists.txt"
    after(path, "    llama-kv-cache.cpp\n", "    llama-kv-aura.cpp\n")
    after(path, "target_link_libraries(llama PUBLIC ggml)\n",
          "target_include_directories(llama PRIVATE ${AURA_INCLUDE})\n"
          "target_link_libraries(llama PRIVATE ${AURA_LIBRARY} m pthread)\n")


def cache():
    """llama_kv_cache keeps its cells, which say which token of which sequence is where. Keys and values are aura's."""
    path = "src/llama-kv-cache.h"
    before(path, "struct llama_context;\n", "class llama_kv_aura;\n")
    after(path, "    ggml_type type_v() const;\n", "\n    // not null: it holds the keys and values, and there are no tensors\n"
          "    llama_kv_aura * get_aura() const { return aura.get(); }\n", "class llama_kv_cache : public llama_memory_i {")
    after(path, "    const llama_hparams & hparams;\n", "\n    std::shared_ptr<llama_kv_aura> aura;\n",
          "class llama_kv_cache : public llama_memory_i {")
    after(path, "    ggml_type type_v() const;\n", "\n    llama_kv_aura * get_aura() const { return kv->get_aura(); }\n",
          "class llama_kv_cache_context : public llama_memory_context_i {")

    path = "src/llama-kv-cache.cpp"
    after(path, '#include "llama-kv-cache.h"\n', '\n#include "llama-kv-aura.h"\n')
    before(path, "    const bool is_mla = hparams.is_mla();\n",
           "    if (other && other->aura) {\n"
           "        throw std::runtime_error(\"a cache cannot share cells with one that libaura holds\");\n    }\n"
           "    aura = llama_kv_aura::make({ model, hparams, type_k, type_v, offload, kv_size, n_seq_max, n_swa, swa_type, name_tag,\n"
           "                                 other != nullptr, filter, reuse, v_cells, seq_to_stream });\n"
           "    if (aura) {\n        return;\n    }\n"
           "    type_k = llama_kv_aura::instead(type_k);\n    type_v = llama_kv_aura::instead(type_v);\n\n",
           "llama_kv_cache::llama_kv_cache(")
    first = lambda signature, line: edit(path, signature + " {\n", signature + " {\n    if (aura) {\n        " + line + "\n    }\n\n")
    first("void llama_kv_cache::clear(bool data)", "aura->clear();")
    first("bool llama_kv_cache::seq_rm(llama_seq_id seq_id, llama_pos p0, llama_pos p1)", "aura->touch();")
    first("void llama_kv_cache::seq_cp(llama_seq_id seq_id_src, llama_seq_id seq_id_dst, llama_pos p0, llama_pos p1)",
          "aura->seq_cp(seq_id_src, seq_id_dst, p0, p1);")
    first("void llama_kv_cache::seq_keep(llama_seq_id seq_id)", "aura->touch();")
    first("void llama_kv_cache::seq_add(llama_seq_id seq_id, llama_pos p0, llama_pos p1, llama_pos shift)", "aura->touch();")
    first("void llama_kv_cache::seq_div(llama_seq_id seq_id, llama_pos p0, llama_pos p1, int d)", "aura->touch();")
    first("llama_pos llama_kv_cache::seq_pos_min(llama_seq_id seq_id) const", "return aura->seq_pos_min(seq_id);")
    first("std::map<ggml_backend_buffer_type_t, size_t> llama_kv_cache::memory_breakdown() const",
          "return { { ggml_backend_cpu_buffer_type(), aura->bytes() } };")
    first("llama_kv_cache::slot_info_vec_t llama_kv_cache::prepare(const std::vector<llama_ubatch> & ubatches)",
          "if (!aura->settle()) {\n            return {};\n        }")
    edit(path, "    if (!success) {\n", "    if (!success || (aura && !aura->reserve(ubatches))) {\n", "llama_kv_cache::prepare(")
    first("bool llama_kv_cache::update(llama_context * lctx, bool do_shift, const stream_copy_info & sc_info)",
          "return aura->update(*lctx, [&](ggml_context * ctx, ggml_tensor * k, ggml_tensor * shift, uint32_t il) {\n"
          "            const auto & cparams = lctx->get_cparams();\n"
          "            return build_rope_shift(cparams, ctx, k, shift, nullptr, model.get_rope_factors(cparams, il),\n"
          "                    model.get_rope_freq_base(cparams, il), model.get_rope_freq_scale(cparams, il), il);\n        });")
    first("ggml_type llama_kv_cache::type_k() const", "return GGML_TYPE_F16;")
    first("ggml_type llama_kv_cache::type_v() const", "return GGML_TYPE_F16;")
    first("uint32_t llama_kv_cache::get_n_kv(const slot_info & sinfo) const", "return 1; // graphs do not depend on it")
    for what in "k", "v":
        first(f"ggml_tensor * llama_kv_cache::get_{what}(ggml_context * ctx, int32_t il, uint32_t n_kv, const slot_info & sinfo) const",
              "return nullptr;")
        first(f"ggml_tensor * llama_kv_cache::cpy_{what}(ggml_context * ctx, ggml_tensor * {what}_cur, ggml_tensor * {what}_idxs,"
              " int32_t il, const slot_info & sinfo) const", f"return {what}_cur;")
    edit(path, "        state_write_data(io, cr);\n",
         "        if (aura) {\n            aura->state_write(io, s, seq_id);\n        } else {\n            state_write_data(io, cr);\n        }\n")
    edit(path, "res && state_read_data(io, strm, cell_count, sinfo);",
         "res && (aura ? aura->state_read(io, strm, seq_id) : state_read_data(io, strm, cell_count, sinfo));")
    after(path, "    kv->apply_ubatch(sinfos[i_cur], ubatches[i_cur]);\n",
          "    if (kv->get_aura()) {\n        kv->get_aura()->apply(sinfos[i_cur].idxs, ubatches[i_cur]);\n    }\n",
          "bool llama_kv_cache_context::apply() {")
    path = "src/llama-model.cpp"
    after(path, '#include "llama-kv-cache.h"\n', '#include "llama-kv-aura.h"\n')
    after(path, "llama_model::create_memory(const llama_memory_params & params, const llama_cparams & cparams) const {\n",
          "    llama_kv_aura::next_batch = cparams.n_ubatch;\n    llama_kv_aura::next_full  = params.swa_full;\n\n")


def states():
    """A file that ends within a number is refused. Upstream reads what there is, and ends the process later."""
    before("src/llama-context.cpp", "        file->read_raw(dst, size);\n",
           "        if (size > file->size() - file->tell()) {\n"
           "            throw std::runtime_error(\"the file of a state ends too early\");\n        }\n",
           "class llama_io_read_file : public llama_io_read_i {")


def graph():
    path = "src/llama-graph.cpp"
    after(path, '#include "llama-kv-cache.h"\n', '#include "llama-kv-aura.h"\n')
    for kind in "llm_graph_input_attn_kv", "llm_graph_input_attn_kv_iswa":
        edit(path, "    ggml_tensor * cur = build_attn_mha(",
             "    ggml_tensor * cur = mctx_cur->get_aura() && !cparams.training ?\n"
             "        mctx_cur->get_aura()->attend(ctx0, gf, q_cur, k_cur, v_cur, kq_b, sinks, kq_scale, cparams.causal_attn, il,\n"
             "            [&](ggml_tensor * t) { ggml_backend_sched_set_tensor_backend(sched, t, backend_cpu); }) :\n"
             "        build_attn_mha(", f"llm_graph_context::build_attn(\n        {kind} * inp,")
    place = "void llm_graph_input_mem_hybrid::set_input("
    for line in ("k_idxs(inp_attn->self_k_idxs, ubatch);", "v_idxs(inp_attn->self_v_idxs, ubatch);",
                 "kq_mask(inp_attn->self_kq_mask, ubatch, cparams.causal_attn);"):
        before(path, "    mctx->get_attn()->set_input_" + line, "    if (!mctx->get_attn()->get_aura())\n    ", place)


def put(path, text):
    """Writes a file, or leaves it alone where it has that text already."""
    if os.path.exists(path):
        with open(path) as f:
            if f.read() == text:
                return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(text)


def edits():
    names()
    build()
    cache()
    states()
    graph()


def main():
    global source
    if len(sys.argv) != 3:
        sys.exit("usage: edit.py FROM TO")
    source, to = sys.argv[1:]
    edits()
    for folder, _, files in os.walk(source):
        for name in files:
            path = os.path.join(folder, name)
            inside = os.path.relpath(path, source)
            copy = os.path.join(to, inside)
            if inside in texts or (os.path.exists(copy) and filecmp.cmp(path, copy)):
                continue
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copy2(path, copy)
    for path, text in texts.items():
        put(os.path.join(to, path), text)
    for name in OURS:
        with open(os.path.join(HERE, name)) as f:
            put(os.path.join(to, "src", name), f.read())


if __name__ == "__main__":
    main()
