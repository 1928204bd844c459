/* Tokens in: on the device they become the bytes that they become on the CPU. */
#include <math.h>
#include <string.h>

#include "check.cuh"

void compare_appended(const struct scene &s, const struct filled &f, const struct device_side &d, const aura_config &config)
{
    for (size_t i = 0; i < s.tokens.size(); i++) {
        aura_cache *back;
        aura_seq seq;
        aura_cuda_seq_info info = AURA_CUDA_SEQ_INFO_INIT;
        TRY(aura_cuda_seq_get_info(d.cache, d.seqs[i], &info));
        TRY(aura_cache_create(f.ctx, &config, &back));
        TRY(aura_seq_create(back, &seq));
        TRY(aura_cuda_download(d.cache, d.seqs[i], back, seq));
        std::string where = first_difference(f.cache, f.seqs[i], back, seq);
        if (!where.empty() || info.status)
            complain(s, "sequence %zu, %u tokens: differs at: %s; status %u", i, s.tokens[i], where.c_str(), info.status);
        aura_cache_destroy(back);
    }
}

/* Tokens in chunks of all sizes on the device: the bytes of the CPU. Then, as a graph that is replayed, one by one. */
void run_append(const struct scene &s, uint32_t most)
{
    struct filled f;
    struct device_side d;
    int before = failures;
    cases++;
    fill(s, f);
    if (failures > before)
        return;
    aura_cuda_config config = device_config(s, f);
    const aura_config &c = config.cache;
    const uint32_t n = (uint32_t)s.tokens.size();
    TRY(aura_cuda_cache_create(f.ctx, &config, &d.cache));
    std::vector<std::vector<uint8_t>> k, v;
    const size_t k_row = (size_t)c.kv_heads * c.k_dim * aura_dtype_bytes(s.q_dtype);
    const size_t v_row = (size_t)c.kv_heads * c.v_dim * aura_dtype_bytes(s.q_dtype);
    for (uint32_t i = 0; i < n; i++) {
        aura_cuda_seq seq;
        TRY(aura_cuda_seq_create(d.cache, &seq));
        TRY(aura_cuda_seq_reserve(d.cache, seq, s.tokens[i]));
        d.seqs.push_back(seq);
        k.push_back(as_type(some_tokens(s.seed + 2 * i, s.tokens[i], c.kv_heads, c.k_dim, true), s.q_dtype));
        v.push_back(as_type(some_tokens(s.seed + 2 * i + 1, s.tokens[i], c.kv_heads, c.v_dim, false), s.q_dtype));
    }
    device_array dk(n * most * k_row), dv(n * most * v_row), ids(d.seqs.data(), n * 4), counts(n * 4);
    std::vector<uint32_t> done(n), count(n);
    uint64_t seed = s.seed + 7;
    aura_cuda_append_args args = AURA_CUDA_APPEND_ARGS_INIT;
    args.seqs = (const aura_cuda_seq *)ids.p, args.n_seqs = n, args.tokens = most, args.counts = (const uint32_t *)counts.p;
    args.k.data = dk.p, args.v.data = dv.p, args.k.dtype = args.v.dtype = s.q_dtype;
    struct captured graph(s, [&](cudaStream_t stream) { TRY(aura_cuda_append(d.cache, &args, stream)); });
    for (int step = 0;; step++) {
        uint32_t left = 0;
        for (uint32_t i = 0; i < n; i++) {
            left += s.tokens[i] - done[i];
            count[i] = pick(&seed, 3) == 0 ? 1 : pick(&seed, (int)most + 1);
            count[i] = count[i] < s.tokens[i] - done[i] ? count[i] : s.tokens[i] - done[i];
            TRY_CUDA(cudaMemcpy((char *)dk.p + i * most * k_row, k[i].data() + done[i] * k_row, count[i] * k_row,
                                cudaMemcpyHostToDevice));
            TRY_CUDA(cudaMemcpy((char *)dv.p + i * most * v_row, v[i].data() + done[i] * v_row, count[i] * v_row,
                                cudaMemcpyHostToDevice));
            done[i] += count[i];
        }
        if (!left)
            break;
        TRY_CUDA(cudaMemcpy(counts.p, count.data(), n * 4, cudaMemcpyHostToDevice));
        if (step >= 2) {
            graph.replay(s);
        } else {
            TRY(aura_cuda_append(d.cache, &args, graph.stream));
            TRY_CUDA(cudaStreamSynchronize(graph.stream));
        }
    }
    compare_appended(s, f, d, config.cache);
    end_case(s, before, "append: bytes equal");
}

/* A graph of one append and one attend, replayed while the sequences grow: what the last replay gives is attention over what is
 * stored by then. */
static void run_graph()
{
    struct scene s;
    s.name = "graph of append and attend, 90 replays";
    s.config.q_heads = 8, s.config.kv_heads = 2, s.config.k_dim = 128;
    s.tokens = {200, 7};
    const uint32_t n = 2, steps = 90, longest = 200 + steps;
    struct filled f;
    struct device_side d;
    const int before = failures;
    if (!begin_case(s, f, d))
        return;
    for (uint32_t i = 0; i < n; i++)
        TRY(aura_cuda_seq_reserve(d.cache, d.seqs[i], longest));
    const size_t token = 2 * 128;
    std::vector<float> x = some_tokens(5, n * steps, 2, 128, false), q((size_t)n * 8 * 128);
    uint64_t seed = 17;
    for (float &y : q)
        y = random_normal(&seed);
    device_array ids(d.seqs.data(), n * 4), dx(n * token * 4), dq(q.data(), q.size() * 4), out(q.size() * 4), lse(n * 8 * 4);
    aura_cuda_append_args append = AURA_CUDA_APPEND_ARGS_INIT;
    append.seqs = (const aura_cuda_seq *)ids.p, append.n_seqs = n, append.tokens = 1;
    append.k.data = append.v.data = dx.p;
    aura_cuda_attend_args attend = AURA_CUDA_ATTEND_ARGS_INIT;
    attend.seqs = (const aura_cuda_seq *)ids.p, attend.n_seqs = n, attend.queries = 1;
    attend.q.data = dq.p, attend.out.data = out.p, attend.lse = (float *)lse.p;
    TRY(aura_cuda_workspace_create(d.cache, n, 1, &d.workspace));
    struct captured graph(s, [&](cudaStream_t stream) {
        TRY(aura_cuda_append(d.cache, &append, stream));
        TRY(aura_cuda_attend(d.cache, d.workspace, &attend, stream));
    });
    for (uint32_t step = 0; step < steps; step++) {
        TRY_CUDA(cudaMemcpyAsync(dx.p, x.data() + step * n * token, n * token * 4, cudaMemcpyHostToDevice, graph.stream));
        graph.replay(s);
    }
    std::vector<float> got(q.size()), got_lse(n * 8);
    TRY_CUDA(cudaMemcpy(got.data(), out.p, got.size() * 4, cudaMemcpyDeviceToHost));
    TRY_CUDA(cudaMemcpy(got_lse.data(), lse.p, got_lse.size() * 4, cudaMemcpyDeviceToHost));
    std::vector<aura_seq> back(n);
    for (uint32_t i = 0; i < n; i++) {
        aura_seq_info info = AURA_SEQ_INFO_INIT;
        TRY(aura_seq_create(f.cache, &back[i]));
        TRY(aura_cuda_download(d.cache, d.seqs[i], f.cache, back[i]));
        TRY(aura_seq_get_info(f.cache, back[i], &info));
        if (info.tokens != s.tokens[i] + steps)
            complain(s, "sequence %u has %llu tokens", i, (unsigned long long)info.tokens);
    }
    size_t wrong = 0, first_bad = 0;
    struct numbers_of_call call = {q.data(), NULL, NULL, NULL, got.data(), got_lse.data(), NULL, longest};
    struct worst w = compare_call(s, f.cache, back, call, wrong, first_bad);
    if (w.ratio > 1)
        complain(s, "error %.2e, %.1f times what is allowed", w.row, w.ratio);
    if (failures == before)
        report("ok", s.name, "error %8.1e", w.row);
}

/* Bad tokens and a reservation that ends: nothing is stored, the others go on, the status stays until it is cleared.
 * `few` tokens, then one more. */
static void run_refused(uint32_t few)
{
    struct scene s;
    s.name = "append refused, " + std::to_string(few) + " tokens";
    s.config.q_heads = s.config.kv_heads = 2, s.config.k_dim = 128;
    const uint32_t base = 253 - few;
    s.tokens = {base, base};
    struct filled f;
    struct device_side d;
    const int before = failures;
    if (!begin_case(s, f, d))
        return;
    const uint32_t most = few + 17;
    std::vector<float> x((size_t)2 * most * 2 * 128, 0.5f);
    device_array ids(d.seqs.data(), 8), v(x.data(), x.size() * 4);
    x[(size_t)(most + 2) * 2 * 128 + 130] = NAN; /* token 2 of the second sequence, head 1 */
    device_array k(x.data(), x.size() * 4);
    aura_cuda_append_args args = AURA_CUDA_APPEND_ARGS_INIT;
    args.seqs = (const aura_cuda_seq *)ids.p, args.n_seqs = 2, args.tokens = few;
    args.k.data = k.p, args.v.data = v.p;
    args.k.seq_stride = args.v.seq_stride = most * 2 * 128;
    aura_cuda_seq_info info[2] = {AURA_CUDA_SEQ_INFO_INIT, AURA_CUDA_SEQ_INFO_INIT};
    TRY(aura_cuda_append(d.cache, &args, NULL));
    for (int i = 0; i < 2; i++)
        TRY(aura_cuda_seq_get_info(d.cache, d.seqs[i], &info[i]));
    if (info[0].tokens != 253 || info[0].status || info[1].tokens != base || info[1].status != AURA_CUDA_BAD_VALUE)
        complain(s, "after a NaN: %llu tokens, status %u; %llu tokens, status %u", (unsigned long long)info[0].tokens,
                 info[0].status, (unsigned long long)info[1].tokens, info[1].status);
    /* Good now; beyond the reservation of the first, and the second is still marked. */
    args.k.data = v.p, args.tokens = few + 1;
    TRY(aura_cuda_append(d.cache, &args, NULL));
    for (int i = 0; i < 2; i++)
        TRY(aura_cuda_seq_get_info(d.cache, d.seqs[i], &info[i]));
    if (info[0].tokens != 253 || info[0].status != AURA_CUDA_OUT_OF_PAGES || info[1].tokens != base)
        complain(s, "beyond the reservation: %llu tokens, status %u; %llu tokens", (unsigned long long)info[0].tokens,
                 info[0].status, (unsigned long long)info[1].tokens);
    for (int i = 0; i < 2; i++) {
        TRY(aura_cuda_seq_clear_status(d.cache, d.seqs[i]));
        TRY(aura_cuda_seq_reserve(d.cache, d.seqs[i], 400));
    }
    TRY(aura_cuda_append(d.cache, &args, NULL));
    for (int i = 0; i < 2; i++)
        TRY(aura_cuda_seq_get_info(d.cache, d.seqs[i], &info[i]));
    if (info[0].tokens != 254 + few || info[0].status || info[1].tokens != 254 || info[1].status)
        complain(s, "cleared: %llu tokens, status %u; %llu tokens, status %u", (unsigned long long)info[0].tokens, info[0].status,
                 (unsigned long long)info[1].tokens, info[1].status);
    end_case(s, before, "");
}

void check_append()
{
    static const uint32_t pairs[][2] = {{4, 4}, {3, 3}, {2, 5}, {5, 2}, {6, 6}, {8, 8}, {4, 10}, {11, 3}, {9, 8}, {10, 10}};
    static const uint32_t dims[] = {AURA_DIMS(AURA_DIM_ITEM)};
    for (const uint32_t *p : pairs)
        for (uint32_t dim : {128, 80}) {
            struct scene s = scene_of(p[0], p[1], dim, 2, 2, {600, 31, 290});
            s.balance = p[0] <= 8, s.seed = p[0] * 10 + p[1];
            for (uint32_t most : {20, 70, 400}) /* from 32 on by kernels of their own */
                run_append(s, most);
        }
    for (uint32_t dim : dims) {
        struct scene s = scene_of(4, 4, dim, 2, 2, {300, 64});
        for (uint32_t most : {20, 300})
            run_append(s, most);
    }
    static const uint32_t flags[] = {AURA_NO_REFERENCE, AURA_NO_PINNED, AURA_NO_ROLLBACK, AURA_NO_REFERENCE | AURA_NO_OPEN,
                                     AURA_NO_SEARCH};
    for (uint32_t f : flags) {
        struct scene s = scene_of(4, 4, 128, 2, 2, {300, 64});
        s.config.flags = f;
        s.name += " flags " + std::to_string(f);
        for (uint32_t most : {20, 300})
            run_append(s, most);
    }
    check_fits();
    run_refused(3);
    run_refused(70);
    run_graph();
}
