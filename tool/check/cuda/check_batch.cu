/* One sequence among others: neither what they are nor what is wrong with them changes its rows. */
#include <math.h>
#include <string.h>

#include <algorithm>

#include "check.cuh"

/* ---- calls ------------------------------------------------------------------------------------------------------------ */

/* Rows of a call, for each of its sequences: out [queries][q_heads][v_dim], then lse [queries][q_heads]. */
typedef std::vector<std::vector<float>> rows_of_call;

/* Attention for some of the sequences, with queries that go with them. */
static rows_of_call attend_some(const struct scene &s, const struct device_side &d, const std::vector<aura_cuda_seq> &seqs,
                                const std::vector<std::vector<float>> &queries)
{
    const struct dev_cache &c = d.cache->dev;
    const uint32_t n = (uint32_t)seqs.size();
    const size_t q_each = (size_t)s.queries * c.q_heads * c.k_dim, o_each = (size_t)s.queries * c.q_heads * c.v_dim;
    const size_t lse_each = (size_t)s.queries * c.q_heads;
    std::vector<float> q, out(n * o_each), lse(n * lse_each);
    for (const std::vector<float> &x : queries)
        q.insert(q.end(), x.begin(), x.end());
    device_array ids(seqs.data(), n * 4), dq(q.data(), n * q_each * 4), dout(out.size() * 4), dlse(lse.size() * 4);
    aura_cuda_attend_args args = AURA_CUDA_ATTEND_ARGS_INIT;
    args.seqs = (const aura_cuda_seq *)ids.p, args.n_seqs = n, args.queries = s.queries;
    args.q.data = dq.p, args.out.data = dout.p, args.lse = (float *)dlse.p;
    aura_status status = aura_cuda_attend(d.cache, d.workspace, &args, NULL);
    if (status || cudaMemcpy(out.data(), dout.p, out.size() * 4, cudaMemcpyDeviceToHost) != cudaSuccess ||
        cudaMemcpy(lse.data(), dlse.p, lse.size() * 4, cudaMemcpyDeviceToHost) != cudaSuccess)
        complain(s, "attend: %s", status ? aura_last_error() : "copying from the device");
    rows_of_call rows(n);
    for (uint32_t i = 0; i < n; i++) {
        rows[i].assign(out.begin() + i * o_each, out.begin() + (i + 1) * o_each);
        rows[i].insert(rows[i].end(), lse.begin() + i * lse_each, lse.begin() + (i + 1) * lse_each);
    }
    return rows;
}

static bool same_rows(const std::vector<float> &a, const std::vector<float> &b)
{
    return a.size() == b.size() && !memcmp(a.data(), b.data(), a.size() * 4);
}

/* A case whose device cache has these options; its sequences are those of the scene, and there is place for one more. */
static bool begin_batch(const struct scene &s, struct filled &f, struct device_side &d, uint32_t batch_invariant)
{
    const int before = failures;
    cases++;
    fill(s, f);
    if (failures > before)
        return false;
    aura_cuda_config config = device_config(s, f);
    config.batch_invariant = batch_invariant;
    aura_status status = aura_cuda_cache_create(f.ctx, &config, &d.cache);
    if (!status)
        d.cache->by_images = s.by_images;
    d.seqs.resize(s.tokens.size());
    for (size_t i = 0; i < d.seqs.size() && !status; i++)
        if (!(status = aura_cuda_seq_create(d.cache, &d.seqs[i])))
            status = aura_cuda_upload(d.cache, d.seqs[i], f.cache, f.seqs[i]);
    status = status ? status : aura_cuda_workspace_create(d.cache, (uint32_t)s.tokens.size() + 2, s.queries, &d.workspace);
    if (status)
        complain(s, "%s", aura_last_error());
    return !status;
}

static std::vector<std::vector<float>> queries_of(const struct scene &s, const struct device_side &d)
{
    std::vector<std::vector<float>> q;
    for (size_t i = 0; i < s.tokens.size(); i++)
        q.push_back(some_numbers(s.seed + 31 * i, (size_t)s.queries * d.cache->dev.q_heads * d.cache->dev.k_dim));
    return q;
}

/* ---- batch_invariant ---------------------------------------------------------------------------------------------------- */

/* How many sequences have other bits alone, in reverse and three times in a row than in a batch. */
static size_t count_changes(const struct scene &s, const struct device_side &d)
{
    const std::vector<std::vector<float>> q = queries_of(s, d);
    const rows_of_call batch = attend_some(s, d, d.seqs, q);
    std::vector<aura_cuda_seq> reverse(d.seqs.rbegin(), d.seqs.rend());
    const rows_of_call turned = attend_some(s, d, reverse, std::vector<std::vector<float>>(q.rbegin(), q.rend()));
    size_t changes = 0;
    for (size_t i = 0; i < d.seqs.size(); i++) {
        const rows_of_call alone = attend_some(s, d, {d.seqs[i]}, {q[i]});
        const rows_of_call thrice = attend_some(s, d, {d.seqs[i], d.seqs[i], d.seqs[i]}, {q[i], q[i], q[i]});
        changes += !same_rows(alone[0], batch[i]) || !same_rows(turned[d.seqs.size() - 1 - i], batch[i]) ||
                   !same_rows(thrice[0], batch[i]) || !same_rows(thrice[2], batch[i]);
    }
    return changes;
}

/* Against the oracle, so that it is not merely the same every time. */
static void compare_batch(const struct scene &s, const struct filled &f, const struct device_side &d)
{
    const std::vector<std::vector<float>> q = queries_of(s, d);
    const rows_of_call rows = attend_some(s, d, d.seqs, q);
    const size_t lse_each = (size_t)s.queries * d.cache->dev.q_heads;
    std::vector<float> all_q, out, lse;
    for (size_t i = 0; i < rows.size(); i++) {
        all_q.insert(all_q.end(), q[i].begin(), q[i].end());
        out.insert(out.end(), rows[i].begin(), rows[i].end() - lse_each);
        lse.insert(lse.end(), rows[i].end() - lse_each, rows[i].end());
    }
    size_t wrong = 0, first_bad = 0;
    const uint32_t longest = *std::max_element(s.tokens.begin(), s.tokens.end());
    const struct numbers_of_call call = {all_q.data(), NULL, NULL, NULL, out.data(), lse.data(), NULL, longest};
    const struct worst w = compare_call(s, f.cache, f.seqs, call, wrong, first_bad);
    if (!(w.ratio <= 1))
        complain(s, "row %zu, the first: error %.2e, %.1f times what is allowed", first_bad, w.row, w.ratio);
}

void run_invariant(struct scene s)
{
    const int before = failures;
    size_t even = 0;
    s.name += " batch_invariant";
    for (uint32_t invariant = 0; invariant < 2; invariant++) {
        struct filled f;
        struct device_side d;
        if (!begin_batch(s, f, d, invariant))
            return;
        const size_t changes = count_changes(s, d);
        if (!invariant) {
            even = changes;
            cases--; /* it is only told: where a batch is cut otherwise, bits may still be the same */
            continue;
        }
        if (changes)
            complain(s, "%zu sequences of %zu have other bits in another batch", changes, s.tokens.size());
        compare_batch(s, f, d);
    }
    const std::string told =
        "bits equal in every batch; without it " + std::to_string(even) + " of " + std::to_string(s.tokens.size()) + " change";
    end_case(s, before, told.c_str());
}

/* ---- however it was asked ------------------------------------------------------------------------------------------------ */

/* The queries of a scene, of one sequence, and the arrays of its options. */
struct asked {
    const struct scene &s;
    const struct device_side &d;
    uint32_t most; /* queries that there are */
    std::vector<float> q, mask, heads;
    asked(const struct scene &of, const struct device_side &on, uint32_t n)
        : s(of), d(on), most(n), q(some_numbers(of.seed, (size_t)n * on.cache->dev.q_heads * on.cache->dev.k_dim)),
          mask(some_numbers(of.seed + 1, (size_t)n * of.mask_keys + 1)), heads(some_numbers(of.seed + 2, 2 * on.cache->dev.q_heads))
    {
        for (float &x : q)
            x *= 4; /* so that maxima move within a leaf, of one row and not of another */
    }
    /* Queries [first, first + n): rows, then sums. They are the newest of the sequence; `by`: `until` says what they see. */
    std::vector<float> rows(aura_cuda_seq seq, uint32_t first, uint32_t n, uint32_t tokens, bool by) const
    {
        const struct dev_cache &c = d.cache->dev;
        const size_t each = (size_t)c.q_heads * c.v_dim;
        std::vector<float> out(n * (each + c.q_heads));
        std::vector<uint32_t> until(n);
        for (uint32_t i = 0; i < n; i++)
            until[i] = tokens - most + first + i + 1;
        device_array ids(&seq, 4), dq(&q[(size_t)first * c.q_heads * c.k_dim], (size_t)n * c.q_heads * c.k_dim * 4);
        device_array dout(n * each * 4), dlse((size_t)n * c.q_heads * 4), dheads(heads.data(), heads.size() * 4);
        device_array dmask(&mask[(size_t)first * s.mask_keys], (size_t)n * s.mask_keys * 4 + 4), duntil(until.data(), n * 4);
        aura_cuda_attend_args args = AURA_CUDA_ATTEND_ARGS_INIT;
        args.seqs = (const aura_cuda_seq *)ids.p, args.n_seqs = 1, args.queries = n;
        args.q.data = dq.p, args.out.data = dout.p, args.lse = (float *)dlse.p;
        args.window = s.window, args.softcap = s.softcap, args.planes = s.planes, args.long_seqs = 1;
        args.until = by ? (const uint32_t *)duntil.p : NULL;
        args.sinks = s.sinks ? (const float *)dheads.p : NULL;
        args.alibi = s.alibi ? (const float *)dheads.p + c.q_heads : NULL;
        args.mask = s.mask_keys ? (const float *)dmask.p : NULL, args.mask_keys = s.mask_keys;
        const aura_status status = aura_cuda_attend(d.cache, d.workspace, &args, NULL);
        if (status || cudaMemcpy(out.data(), dout.p, n * each * 4, cudaMemcpyDeviceToHost) != cudaSuccess ||
            cudaMemcpy(&out[n * each], dlse.p, (size_t)n * c.q_heads * 4, cudaMemcpyDeviceToHost) != cudaSuccess)
            complain(s, "attend: %s", status ? aura_last_error() : "copying from the device");
        return out;
    }
};

/* How many of n rows of `part`, from query `first` on, have other bits in `all`, which has `most`. */
static size_t other_rows(const struct asked &x, const std::vector<float> &all, const std::vector<float> &part, uint32_t first,
                         uint32_t n)
{
    const size_t heads = x.d.cache->dev.q_heads, dim = x.d.cache->dev.v_dim;
    size_t others = 0;
    for (size_t i = 0; i < n * heads; i++)
        others += memcmp(&all[(first * heads + i) * dim], &part[i * dim], dim * 4) != 0 ||
                  memcmp(&all[x.most * heads * dim + first * heads + i], &part[n * heads * dim + i], 4) != 0;
    return others;
}

/* Rows among `most`, and the same among fewer: the newest of them; by `until` any of them; and in sequences that are cut, so
 * that others are the newest. few: the fewest queries that take the same arithmetic. */
static size_t count_asked(const struct asked &x, uint32_t few, uint32_t tokens)
{
    const std::vector<float> all = x.rows(x.d.seqs[0], 0, x.most, tokens, false);
    size_t others = 0;
    for (uint32_t n : {few, few + 1, few + 2, few + 6, x.most - 1})
        others += other_rows(x, all, x.rows(x.d.seqs[0], x.most - n, n, tokens, false), x.most - n, n);
    for (uint32_t first : {0u, 1u, x.most / 2}) {
        const uint32_t n = std::max(few, std::min(x.most - first, few + 2));
        if (first + n <= x.most && !x.s.mask_keys) /* a mask goes by the last token of the sequence */
            others += other_rows(x, all, x.rows(x.d.seqs[0], first, n, tokens, true), first, n);
    }
    for (uint32_t less : {1u, 3u, x.most - few}) {
        aura_cuda_seq cut;
        if (x.s.mask_keys || aura_cuda_seq_fork(x.d.cache, x.d.seqs[0], tokens - less, &cut))
            continue;
        const uint32_t n = std::min(few + 3, x.most - less), first = x.most - less - n;
        others += other_rows(x, all, x.rows(cut, first, n, tokens, false), first, n);
        aura_cuda_seq_release(x.d.cache, cut);
    }
    return others;
}

/* The tokens of the scene's first sequence, appended by so many at a time. */
static void append_by(const struct scene &s, const struct device_side &d, aura_cuda_seq seq, const std::vector<uint32_t> &by)
{
    const uint32_t tokens = s.tokens[0], kv = d.cache->dev.kv_heads, k_dim = d.cache->dev.k_dim, v_dim = d.cache->dev.v_dim;
    const std::vector<float> k = some_tokens(5, tokens, kv, k_dim, true), v = some_tokens(6, tokens, kv, v_dim, false);
    device_array id(&seq, 4), dk(k.data(), k.size() * 4), dv(v.data(), v.size() * 4);
    TRY(aura_cuda_seq_reserve(d.cache, seq, tokens));
    for (uint32_t at = 0, i = 0, n; at < tokens; at += n, i++) {
        n = std::min(by[i % by.size()], tokens - at);
        aura_cuda_append_args args = AURA_CUDA_APPEND_ARGS_INIT;
        args.seqs = (const aura_cuda_seq *)id.p, args.n_seqs = 1, args.tokens = n;
        args.k.data = (float *)dk.p + (size_t)at * kv * k_dim, args.v.data = (float *)dv.p + (size_t)at * kv * v_dim;
        TRY(aura_cuda_append(d.cache, &args, NULL));
    }
    TRY_CUDA(cudaDeviceSynchronize());
}

/* Beside itself so often that tasks become larger: alone it has tasks of leaves. */
static void run_crowd(struct scene s, uint32_t times)
{
    struct filled f;
    struct device_side d;
    const int before = failures;
    s.name += " beside itself";
    s.tokens.resize(times, 1);
    if (!begin_batch(s, f, d, 1))
        return;
    const std::vector<float> q = queries_of(s, d)[0];
    const rows_of_call alone = attend_some(s, d, {d.seqs[0]}, {q});
    const rows_of_call all = attend_some(s, d, std::vector<aura_cuda_seq>(times, d.seqs[0]),
                                         std::vector<std::vector<float>>(times, q));
    for (uint32_t i = 0; i < times; i++)
        if (!same_rows(all[i], alone[0])) {
            complain(s, "number %u of %u has other bits than alone", i, times);
            break;
        }
    end_case(s, before, "bits equal");
}

static void run_asked(struct scene s, uint32_t few, uint32_t most)
{
    struct filled f;
    struct device_side d;
    const int before = failures;
    s.name += " however it was asked, " + std::to_string(few) + " to " + std::to_string(most) + " queries";
    s.queries = most;
    if (!begin_batch(s, f, d, 1))
        return;
    const struct asked x(s, d, most);
    size_t others = count_asked(x, few, s.tokens[0]);
    if (others)
        complain(s, "%zu rows have other bits among others", others);
    aura_cuda_seq one, other;
    TRY(aura_cuda_seq_create(d.cache, &one));
    append_by(s, d, one, {s.tokens[0]});
    const std::vector<float> want = x.rows(one, 0, most, s.tokens[0], false);
    TRY(aura_cuda_seq_release(d.cache, one));
    TRY(aura_cuda_seq_create(d.cache, &other));
    append_by(s, d, other, {7, 1, 300, 64, 33});
    others = other_rows(x, want, x.rows(other, most - few, few, s.tokens[0], false), most - few, few);
    if (others)
        complain(s, "%zu rows have other bits when tokens came in other calls", others);
    end_case(s, before, "bits equal");
}

/* Pairs of kinds with kernels of their own and without, dims, groups of heads, options; then tasks of all levels. */
static void check_asked()
{
    struct scene cases[] = {scene_of(4, 4, 128, 4, 1, {1330}), scene_of(8, 8, 64, 6, 2, {700}), scene_of(5, 5, 256, 2, 1, {500}),
                            scene_of(3, 3, 64, 8, 1, {900}),   scene_of(4, 2, 80, 3, 1, {640}), scene_of(6, 4, 128, 5, 1, {530}),
                            scene_of(AURA_KIND_F16, AURA_KIND_F16, 64, 4, 2, {300}),
                            scene_of(4, AURA_KIND_F32, 256, 1, 1, {270}), scene_of(4, 4, 128, 4, 1, {640}),
                            scene_of(3, 4, 64, 4, 1, {900}),   scene_of(4, 2, 128, 4, 1, {530}),
                            scene_of(AURA_TRELLIS_3, AURA_TRELLIS_3, 128, 4, 1, {400})};
    cases[0].sinks = true;
    cases[1].window = 340, cases[1].softcap = 3;
    cases[2].alibi = true, cases[2].config.rollback = 96;
    cases[3].loud = true;
    cases[4].window = 210, cases[4].config.flags = AURA_NO_PINNED;
    cases[5].mask_keys = 64;
    /* Of some rows the window reaches the kept tokens. */
    cases[8].config.window = 495, cases[8].config.max_queries = 640, cases[8].config.keep_first = 150;
    cases[9].config.window = 300, cases[9].config.max_queries = 900, cases[9].config.keep_first = 333;
    for (struct scene &s : cases) {
        s.config.rollback = std::max<uint32_t>(s.config.rollback, 32);
        run_asked(s, 1, 16);
    }
    for (int i : {0, 1, 4, 8})
        run_asked(cases[i], 17, 40);
    struct scene three = scene_of(4, 4, 64, 1, 1, {4500}), any = scene_of(2, 4, 64, 1, 1, {4200}), kept = any;
    run_crowd(three, 145);
    run_crowd(any, 145);
    kept.config.window = 3000, kept.config.max_queries = 16, kept.config.keep_first = 700;
    run_crowd(kept, 145);
}

/* ---- what is wrong with one ---------------------------------------------------------------------------------------------- */

static bool is_all_nan(const std::vector<float> &x, size_t from, size_t to)
{
    return std::all_of(x.begin() + from, x.begin() + to, [](float y) { return isnan(y); });
}

/* A query that is not finite: its row is NaN and its sequence says so; the others have the bits that they have without it. */
static void run_not_finite(struct scene s)
{
    struct filled f;
    struct device_side d;
    const int before = failures;
    s.name += " queries that are not finite";
    if (!begin_batch(s, f, d, 1))
        return;
    std::vector<std::vector<float>> q = queries_of(s, d);
    const rows_of_call good = attend_some(s, d, d.seqs, q);
    const uint32_t k_dim = d.cache->dev.k_dim, v_dim = d.cache->dev.v_dim, heads = d.cache->dev.q_heads;
    q[1][2 * k_dim + 5] = NAN;
    q[2][3 * k_dim] = -INFINITY;
    const rows_of_call bad = attend_some(s, d, d.seqs, q);
    for (size_t i = 0; i < d.seqs.size(); i++) {
        aura_cuda_seq_info info = AURA_CUDA_SEQ_INFO_INIT;
        const uint32_t head = i == 1 ? 2 : 3, lse_at = s.queries * heads * v_dim;
        TRY(aura_cuda_seq_get_info(d.cache, d.seqs[i], &info));
        if (i == 1 || i == 2) {
            if (!is_all_nan(bad[i], head * v_dim, (head + 1) * v_dim) || !isnan(bad[i][lse_at + head]) ||
                info.status != AURA_CUDA_NOT_FINITE)
                complain(s, "sequence %zu: status %u, or a row that is not NaN", i, info.status);
            for (uint32_t h = 0; h < heads; h++)
                if (h != head && !isfinite(bad[i][h * v_dim] + bad[i][lse_at + h]))
                    complain(s, "sequence %zu, head %u is not finite either", i, h);
            TRY(aura_cuda_seq_clear_status(d.cache, d.seqs[i]));
            TRY(aura_cuda_seq_get_info(d.cache, d.seqs[i], &info));
        } else if (!same_rows(good[i], bad[i])) {
            complain(s, "sequence %zu has other bits beside a bad query", i);
        }
        if (info.status)
            complain(s, "sequence %zu: status %u", i, info.status);
    }
    end_case(s, before, "");
}

/* Numbers that are no sequences: NaN for them, and nothing for the others. */
static void run_no_sequence(struct scene s)
{
    struct filled f;
    struct device_side d;
    const int before = failures;
    s.name += " ids of no sequence";
    if (!begin_batch(s, f, d, 1))
        return;
    const std::vector<std::vector<float>> q = queries_of(s, d);
    const rows_of_call good = attend_some(s, d, {d.seqs[0], d.seqs[1]}, {q[0], q[1]});
    const uint32_t beyond = d.cache->seqs, v_dim = d.cache->dev.v_dim, heads = d.cache->dev.q_heads;
    const aura_cuda_seq unused = beyond - 1; /* device_config has one more than the scene */
    const rows_of_call rows = attend_some(s, d, {beyond, d.seqs[0], UINT32_MAX, d.seqs[1], unused}, {q[0], q[0], q[1], q[1], q[0]});
    if (!is_all_nan(rows[0], 0, rows[0].size()) || !is_all_nan(rows[2], 0, rows[2].size()))
        complain(s, "rows of no sequence are not NaN");
    if (!same_rows(rows[1], good[0]) || !same_rows(rows[3], good[1]))
        complain(s, "the others have other bits");
    if (rows[4][0] != 0 || rows[4][heads * v_dim - 1] != 0 || rows[4][heads * v_dim] != -INFINITY)
        complain(s, "a sequence that is not in use is not empty");
    std::vector<float> x(5 * 2 * std::max(d.cache->dev.k_dim, v_dim), 0.5f);
    const aura_cuda_seq id[] = {beyond, d.seqs[0], UINT32_MAX, unused};
    device_array ids(id, sizeof id), data(x.data(), x.size() * 4);
    aura_cuda_append_args args = AURA_CUDA_APPEND_ARGS_INIT;
    args.seqs = (const aura_cuda_seq *)ids.p, args.n_seqs = 4, args.tokens = 1;
    args.k.data = args.v.data = data.p;
    TRY(aura_cuda_seq_reserve(d.cache, d.seqs[0], s.tokens[0] + 1));
    TRY(aura_cuda_append(d.cache, &args, NULL));
    TRY_CUDA(cudaDeviceSynchronize());
    aura_cuda_seq_info info = AURA_CUDA_SEQ_INFO_INIT;
    TRY(aura_cuda_seq_get_info(d.cache, d.seqs[0], &info));
    if (info.tokens != s.tokens[0] + 1 || info.status)
        complain(s, "%llu tokens, status %u beside sequences that there are not", (unsigned long long)info.tokens, info.status);
    end_case(s, before, "");
}

/* ---- views -------------------------------------------------------------------------------------------------------------- */

/* [sequence][head][token][dim] with gaps everywhere, for the same numbers as [sequence][token][head][dim]. */
struct gapped {
    uint32_t seqs, tokens, heads, dim;
    size_t head, token, seq;
    gapped(uint32_t n, uint32_t t, uint32_t h, uint32_t d)
        : seqs(n), tokens(t), heads(h), dim(d), head((size_t)(d + 8) * t + 24), token(d + 8), seq(head * h + 40)
    {
    }
    size_t at(uint32_t s, uint32_t t, uint32_t h) const { return s * seq + t * token + h * head; }
    size_t size() const { return seqs * seq; }
    std::vector<float> spread(const std::vector<float> &x) const
    {
        std::vector<float> y(size(), NAN);
        for (uint32_t i = 0; i < seqs * tokens * heads; i++)
            std::copy_n(&x[(size_t)i * dim], dim, &y[at(i / heads / tokens, i / heads % tokens, i % heads)]);
        return y;
    }
    aura_cuda_view view(void *data) const
    {
        return {data, AURA_F32, (ptrdiff_t)seq, (ptrdiff_t)token, (ptrdiff_t)head};
    }
};

/* Queries and outputs with strides: the bits of contiguous ones, and the gaps are not written to. */
static void attend_strided(const struct scene &s, const struct device_side &d)
{
    const uint32_t n = (uint32_t)d.seqs.size(), heads = d.cache->dev.q_heads;
    const uint32_t k_dim = d.cache->dev.k_dim, v_dim = d.cache->dev.v_dim;
    const std::vector<std::vector<float>> q = queries_of(s, d);
    const rows_of_call want = attend_some(s, d, d.seqs, q);
    std::vector<float> all_q;
    for (const std::vector<float> &x : q)
        all_q.insert(all_q.end(), x.begin(), x.end());
    const gapped in(n, s.queries, heads, k_dim), out(n, s.queries, heads, v_dim);
    const std::vector<float> spread = in.spread(all_q);
    device_array ids(d.seqs.data(), n * 4), dq(spread.data(), spread.size() * 4), dout(out.size() * 4);
    aura_cuda_attend_args args = AURA_CUDA_ATTEND_ARGS_INIT;
    args.seqs = (const aura_cuda_seq *)ids.p, args.n_seqs = n, args.queries = s.queries;
    args.q = in.view(dq.p), args.out = out.view(dout.p);
    TRY(aura_cuda_attend(d.cache, d.workspace, &args, NULL));
    std::vector<float> got(out.size());
    TRY_CUDA(cudaMemcpy(got.data(), dout.p, got.size() * 4, cudaMemcpyDeviceToHost));
    std::vector<float> flat;
    for (const std::vector<float> &x : want)
        flat.insert(flat.end(), x.begin(), x.end() - s.queries * heads);
    const std::vector<float> wanted = out.spread(flat);
    for (size_t i = 0; i < got.size(); i++)
        if (isnan(wanted[i]) ? !isnan(got[i]) : memcmp(&wanted[i], &got[i], 4) != 0) {
            complain(s, "element %zu of the output is %g, not %g", i, (double)got[i], (double)wanted[i]);
            break;
        }
}

/* Keys and values with strides, to a fork of sequence 0, and contiguous ones to sequence 0: the same bytes. */
static void append_strided(const struct scene &s, const struct filled &f, const struct device_side &d)
{
    const uint32_t tokens = 40, kv = d.cache->dev.kv_heads, k_dim = d.cache->dev.k_dim, v_dim = d.cache->dev.v_dim;
    aura_cuda_seq fork;
    TRY(aura_cuda_seq_fork(d.cache, d.seqs[0], s.tokens[0], &fork));
    const std::vector<float> k = some_tokens(3, tokens, kv, k_dim, true), v = some_tokens(4, tokens, kv, v_dim, false);
    const gapped kg(1, tokens, kv, k_dim), vg(1, tokens, kv, v_dim);
    const std::vector<float> ks = kg.spread(k), vs = vg.spread(v);
    device_array one(&d.seqs[0], 4), other(&fork, 4), dk(k.data(), k.size() * 4), dv(v.data(), v.size() * 4);
    device_array dks(ks.data(), ks.size() * 4), dvs(vs.data(), vs.size() * 4);
    for (int strided = 0; strided < 2; strided++) {
        aura_cuda_append_args append = AURA_CUDA_APPEND_ARGS_INIT;
        append.seqs = (const aura_cuda_seq *)(strided ? other.p : one.p), append.n_seqs = 1, append.tokens = tokens;
        append.k.data = dk.p, append.v.data = dv.p;
        if (strided)
            append.k = kg.view(dks.p), append.v = vg.view(dvs.p);
        TRY(aura_cuda_seq_reserve(d.cache, strided ? fork : d.seqs[0], s.tokens[0] + tokens));
        TRY(aura_cuda_append(d.cache, &append, NULL));
        TRY_CUDA(cudaDeviceSynchronize());
    }
    aura_seq a, b;
    TRY(aura_seq_create(f.cache, &a));
    TRY(aura_seq_create(f.cache, &b));
    TRY(aura_cuda_download(d.cache, d.seqs[0], f.cache, a));
    TRY(aura_cuda_download(d.cache, fork, f.cache, b));
    const std::string where = first_difference(f.cache, a, f.cache, b);
    aura_seq_info info = AURA_SEQ_INFO_INIT;
    TRY(aura_seq_get_info(f.cache, b, &info));
    if (!where.empty() || info.tokens != s.tokens[0] + tokens)
        complain(s, "%llu tokens; strided keys and values differ at: %s", (unsigned long long)info.tokens, where.c_str());
}

static void run_strided(struct scene s)
{
    struct filled f;
    struct device_side d;
    const int before = failures;
    s.name += " strided views";
    s.queries = 3;
    if (!begin_batch(s, f, d, 0))
        return;
    attend_strided(s, d);
    append_strided(s, f, d);
    end_case(s, before, "bits equal");
}

void check_batch()
{
    const struct scene fused = scene_of(4, 4, 128, 8, 2, {9000, 40, 700, 2500, 0, 1});
    const struct scene general = scene_of(4, 2, 80, 6, 2, {5000, 40, 700, 1, 1300});
    struct scene many = scene_of(8, 8, 64, 8, 2, {3000, 1500, 33, 2049}), wide = scene_of(3, 3, 256, 16, 2, {2000, 40, 1000});
    many.queries = 5;
    many.name += " 5 queries";
    for (const struct scene &s : {fused, general, many, wide})
        run_invariant(s);
    check_asked();
    struct scene more = fused;
    more.queries = 20, more.tokens = {300, 40, 700, 64}, more.name += " 20 queries";
    for (bool by_images : {false, true}) {
        more.by_images = by_images, more.name += by_images ? " from images" : "";
        run_not_finite(more);
    }
    for (struct scene s : {fused, general}) {
        s.tokens = {300, 40, 700, 64};
        run_not_finite(s);
        run_no_sequence(s);
        run_strided(s);
    }
}
