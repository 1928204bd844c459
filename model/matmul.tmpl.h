/* The products of a panel, for every type of weights. An instruction set includes this after its words:
 *
 *   LANES               rows that a vector holds; divides 16
 *   TOKENS              tokens whose sums fit in registers; divides ACT_TOKENS
 *   WIDE_ZERO           what vi_dot subtracts from codes of 8 bits: 0 or 128. A panel stores these codes with 128 added
 *   ISA                 its name in matmul_variants.h
 *   vf, vi, vb          LANES floats, LANES int32, 4 * LANES bytes
 *   vf_zero vf_set vf_load vf_store vf_mul vf_fma(a, b, c) = a * b + c   vf_int(vi)
 *   vf_f16(p) vf_bf16(p) vf_i8(p) vf_u8(p)    LANES numbers of that kind as floats
 *   vi_set(x)
 *   vi_dot(sum, w, a, wide)   in each lane: sum + the products of its four bytes of w, unsigned, with the four signed bytes of the
 *                             word a. wide: the codes w have 8 bits
 *   vb_load(p) vb_low(b) vb_high(b)           bytes; their nibbles
 *   vb_bits(b, plane, half, bit)              b | bit in every byte whose bit is set in the plane, 8 bytes for a quad;
 *                                             `half` says which LANES of the 16 rows b has */

/* A product with one token waits for memory, so it asks for weights AHEAD bytes before it uses them. That saves 10 % of the time
 * of a token (10.2 for 11.5 ms, one thread; 135M parameters, Xeon, 2026-11). */
enum { HALVES = PANEL_ROWS / LANES, AHEAD = 4096 };

AURA_INLINE int32_t word_at(const int8_t *q)
{
    int32_t word;
    memcpy(&word, q, sizeof word);
    return word;
}

/* The codes of quad g of a part, for LANES of the 16 rows: those of the given half. */
AURA_INLINE vb quad_codes(const uint8_t *codes, size_t g, size_t half, const int bits)
{
    if (bits == 8)
        return vb_load(codes + 64 * g + half * 4 * LANES);
    const int planes = bits - 4;
    const uint8_t *pair = codes + g / 2 * (64 + 16 * (size_t)planes);
    vb both = vb_load(pair + half * 4 * LANES), code = g % 2 ? vb_high(both) : vb_low(both);
    if (planes > 0)
        code = vb_bits(code, pair + 64 + 8 * (g % 2), half, 16);
    if (planes > 1)
        code = vb_bits(code, pair + 80 + 8 * (g % 2), half, 32);
    return code;
}

/* What the weights' zero adds to the sum of a part: -zero * (sum of q). */
AURA_INLINE int32_t zero_sum(const struct act_block *a, size_t at, const int part, const int zero)
{
    return zero ? -zero * (part == 32 ? a->sum : a->half[at]) : 0;
}

/* One part: sums[t] += step * (sum of code * q) + least * (sum of q). a: the block of 32 that has the part; at: which half of the
 * block it is, where a part has 16 numbers. */
AURA_INLINE void add_part(vf *sums, const uint8_t *codes, const struct act_block *a, size_t half, size_t at, vf step, vf least,
                          const int bits, const int part, const int zero, const int min, const int tokens)
{
    vi exact[ACT_TOKENS];
    AURA_UNROLL for (int t = 0; t < tokens; t++)
        exact[t] = vi_set(zero_sum(&a[t], at, part, bits == 8 ? zero - WIDE_ZERO : zero));
    AURA_UNROLL for (int g = 0; g < part / 4; g++) {
        vb code = quad_codes(codes, (size_t)g, half, bits);
        AURA_UNROLL for (int t = 0; t < tokens; t++)
            exact[t] = vi_dot(exact[t], code, word_at(a[t].q + 16 * at + 4 * g), bits == 8);
    }
    AURA_UNROLL for (int t = 0; t < tokens; t++) {
        sums[t] = vf_fma(vf_int(exact[t]), vf_mul(step, vf_set(a[t].scale)), sums[t]);
        if (min)
            sums[t] = vf_fma(least, vf_set(a[t].offset), sums[t]);
    }
}

/* The rows of a panel that one vector holds, with `tokens` tokens. */
AURA_INLINE void half_panel(float *out, const uint8_t *panel, const struct act_block *a, size_t blocks, size_t half, const int bits,
                            const int part, const int parts, const int zero, const int min, const int tokens)
{
    const size_t head = 2 * PANEL_ROWS * (1 + (size_t)min), factors = parts > 1 ? PANEL_ROWS * (1 + (size_t)min) : 0;
    const size_t part_bytes = factors + (size_t)(PANEL_ROWS * part * bits / 8);
    const size_t first = half * LANES, block_bytes = head + (size_t)parts * part_bytes;
    vf sums[ACT_TOKENS];
    AURA_UNROLL for (int t = 0; t < tokens; t++)
        sums[t] = vf_zero();
    for (size_t block = 0; block < blocks; block++) {
        for (size_t line = 0; tokens == 1 && line < block_bytes; line += 64)
            __builtin_prefetch(panel + line + AHEAD);
        vf d = vf_f16(panel + 2 * first), m = min ? vf_f16(panel + 2 * (PANEL_ROWS + first)) : d;
        panel += head;
        for (int p = 0; p < parts; p++, panel += part_bytes) {
            vf step = parts > 1 ? vf_mul(d, vf_i8(panel + first)) : d;
            vf least = parts > 1 && min ? vf_mul(m, vf_u8(panel + PANEL_ROWS + first)) : m;
            size_t at = part == 16 ? (size_t)p % 2 : 0;
            add_part(sums, panel + factors, a, half, at, step, least, bits, part, zero, min, tokens);
            if (part == 32 || at)
                a += ACT_TOKENS;
        }
    }
    AURA_UNROLL for (int t = 0; t < tokens; t++)
        vf_store(out + t * PANEL_ROWS + first, sums[t]);
}

/* One token alone, or TOKENS at a time; a batch that has fewer is filled up with zeros. */
AURA_INLINE void whole_panel(float *out, const uint8_t *panel, const struct act_block *batch, size_t blocks, size_t tokens,
                             const int bits, const int part, const int parts, const int zero, const int min)
{
    for (size_t half = 0; half < HALVES; half++) {
        if (tokens == 1)
            half_panel(out, panel, batch, blocks, half, bits, part, parts, zero, min, 1);
        else
            for (size_t t = 0; t < tokens; t += TOKENS)
                half_panel(out + t * PANEL_ROWS, panel, batch + t, blocks, half, bits, part, parts, zero, min, TOKENS);
    }
}

/* Weights that are floats. A single token has four sums: additions to one sum wait for each other. */
AURA_INLINE vf float_lanes(const uint8_t *p, const int bytes, const int bf16)
{
    return bytes == 4 ? vf_load((const float *)p) : bf16 ? vf_bf16(p) : vf_f16(p);
}

AURA_INLINE void half_floats(float *out, const uint8_t *panel, const float *x, size_t cols, size_t half, const int bytes,
                             const int bf16, const int tokens, const int chains)
{
    vf sums[ACT_TOKENS];
    panel += half * LANES * (size_t)bytes;
    AURA_UNROLL for (int i = 0; i < tokens * chains; i++)
        sums[i] = vf_zero();
    for (size_t c = 0; c < cols; c += (size_t)chains)
        AURA_UNROLL for (int i = 0; i < chains; i++, panel += PANEL_ROWS * bytes, x += ACT_TOKENS) {
            vf w = float_lanes(panel, bytes, bf16);
            AURA_UNROLL for (int t = 0; t < tokens; t++)
                sums[t * chains + i] = vf_fma(w, vf_set(x[t]), sums[t * chains + i]);
        }
    AURA_UNROLL for (int t = 0; t < tokens; t++) {
        vf sum = sums[t * chains];
        AURA_UNROLL for (int i = 1; i < chains; i++)
            sum = vf_fma(vf_set(1), sums[t * chains + i], sum);
        vf_store(out + (size_t)t * PANEL_ROWS + half * LANES, sum);
    }
}

AURA_INLINE void whole_floats(float *out, const uint8_t *panel, const float *batch, size_t blocks, size_t tokens, const int bytes,
                              const int bf16)
{
    for (size_t half = 0; half < HALVES; half++) {
        if (tokens == 1)
            half_floats(out, panel, batch, blocks * PANEL_COLS, half, bytes, bf16, 1, 4);
        else
            for (size_t t = 0; t < tokens; t += TOKENS)
                half_floats(out + t * PANEL_ROWS, panel, batch + t, blocks * PANEL_COLS, half, bytes, bf16, TOKENS, 1);
    }
}

#define STAMP(type, isa, number, bytes, bits, part, parts, zero, min)                                                      \
    void matmul_##type##_##isa(float *out, const uint8_t *panel, const void *batch, size_t blocks, size_t tokens)           \
    {                                                                                                                      \
        whole_panel(out, panel, batch, blocks, tokens, bits, part, parts, zero, min);                                       \
    }
WEIGHT_TYPES(STAMP, ISA)
#undef STAMP
#define STAMP(type, isa, number, bytes)                                                                                    \
    void matmul_##type##_##isa(float *out, const uint8_t *panel, const void *batch, size_t blocks, size_t tokens)           \
    {                                                                                                                      \
        whole_floats(out, panel, batch, blocks, tokens, bytes, GGUF_TYPE_##type == GGUF_TYPE_BF16);                         \
    }
WEIGHT_FLOATS(STAMP, ISA)
#undef STAMP

#define PASTE(a, b) a##b
#define JOIN(a, b) PASTE(a, b)

/* ---- vectors of tokens: plain loops, which compilers vectorise for the instruction set --------------------------------- */

AURA_INLINE uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

AURA_INLINE float bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The nearest integer, the even one at a tie, for |x| < 2^22: adding 1.5 * 2^23 leaves it in the low bits. */
AURA_INLINE int32_t nearest(float x)
{
    return (int32_t)(float_bits(x + 12582912.0f) - float_bits(12582912.0f));
}

/* If a number is not finite, the scale is NaN, and so is every sum of the block. */
void JOIN(matmul_round_, ISA)(struct act_block *out, const float *x)
{
    uint32_t most = 0;
    int32_t sum[2] = {0, 0};
    for (int i = 0; i < ACT_COLS; i++) {
        uint32_t size = float_bits(x[i]) & 0x7fffffff;
        most = size > most ? size : most;
    }
    float largest = bits_float(most), up = largest > 1e-30f ? 127.0f / largest : 0;
    for (int i = 0; i < ACT_COLS; i++)
        out->q[i] = (int8_t)nearest(x[i] * up);
    for (int h = 0; h < 2; h++)
        for (int i = 0; i < 16; i++)
            sum[h] += out->q[16 * h + i];
    out->scale = most >= 0x7f800000 ? bits_float(0x7fc00000) : largest > 1e-30f ? largest / 127.0f : 0;
    out->sum = sum[0] + sum[1];
    out->half[0] = (int16_t)sum[0], out->half[1] = (int16_t)sum[1];
    out->offset = out->scale * (float)out->sum;
}

/* e^x to 2 units in the last place, for x in -87 to 88: 2^n times e^r, |r| <= ln(2) / 2. */
AURA_INLINE float exponential(float x)
{
    int32_t n = nearest(x * 1.44269504f);
    float r = (x - (float)n * 0.693145752f) - (float)n * 1.42860677e-6f;
    float p = 1.98756915e-4f;
    p = p * r + 1.39819995e-3f;
    p = p * r + 8.33345190e-3f;
    p = p * r + 4.16657961e-2f;
    p = p * r + 1.66666652e-1f;
    p = p * r + 5.0e-1f;
    p = p * r * r + r + 1.0f;
    return p * bits_float((uint32_t)(n + 127) << 23);
}

/* The clamps have loops of their own: in one loop with the rest, gcc 12 makes branches of them and vectorises nothing. */
void JOIN(matmul_gate_, ISA)(float *gate, const float *up, size_t n)
{
    for (size_t first = 0; first < n; first += PANEL_ROWS) {
        float x[PANEL_ROWS], y[PANEL_ROWS];
        memcpy(x, gate + first, sizeof x);
        memcpy(y, up + first, sizeof y);
        for (int i = 0; i < PANEL_ROWS; i++)
            y[i] *= x[i];
        for (int i = 0; i < PANEL_ROWS; i++)
            x[i] = x[i] > 87.0f ? 87.0f : x[i];
        for (int i = 0; i < PANEL_ROWS; i++)
            x[i] = x[i] < -88.0f ? -88.0f : x[i];
        for (int i = 0; i < PANEL_ROWS; i++)
            y[i] /= 1.0f + exponential(-x[i]);
        memcpy(gate + first, y, sizeof y);
    }
}
