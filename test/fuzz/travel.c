/* Headers of sequences that travel. The first byte says whether the target makes the checksums right first. What a header asks for
 * is there to be written to; filled with anything, it is adopted only where it is what the header says, and then can be used.
 * Whatever is refused changes nothing. */
#include "fuzz.h"

#include "../../include/aura_file.h"
#include "../file/file_tools.h"

static aura_cache *target;

static void begin(void)
{
    aura_config config = AURA_CONFIG_INIT;
    if (fuzz_ctx)
        return;
    fuzz_begin();
    config.format.k = config.format.v = AURA_KIND_B2; /* as in the corpus */
    config.q_heads = 2, config.kv_heads = 1, config.k_dim = 64, config.seed = 5;
    config.budget_bytes = FUZZ_BUDGET;
    MUST(!aura_cache_create(fuzz_ctx, &config, &target));
}

/* Sections where they are in a header; of pages and rows, the checksums of what will be in the pieces. */
static void seal_header(struct bytes b, const aura_extents_info *pieces)
{
    struct aura_file_header *h = (struct aura_file_header *)(void *)b.data;
    struct aura_file_section *s = (struct aura_file_section *)(void *)(h + 1);
    static const uint8_t zeros[64];
    uint64_t front = aura_file_front(h->sections), at = front;
    for (uint32_t i = 0; front <= b.size && i < h->sections; i++) {
        const uint64_t padded = aura_file_padded(s[i].bytes);
        uint64_t bytes = 0;
        if (!AURA_SECTION_IS_LARGE(s[i].type)) {
            if (s[i].bytes > b.size || padded > b.size - at)
                break;
            s[i].crc = aura_crc32c(0, b.data + at, (size_t)padded, AURA_ISA_REF);
            at += padded;
            continue;
        }
        for (size_t k = 0; pieces && k < pieces->n; k++) {
            const aura_piece *p = &pieces->pieces[k];
            if ((p->what == AURA_PIECE_ROWS) != (s[i].type == AURA_SECTION_ROWS))
                continue;
            s[i].crc = aura_crc32c(bytes ? s[i].crc : 0, p->data, p->bytes, AURA_ISA_REF);
            bytes += p->bytes;
        }
        if (pieces)
            s[i].crc = aura_crc32c(bytes ? s[i].crc : 0, zeros, (size_t)(padded - bytes) % 64, AURA_ISA_REF);
    }
    h->crc = 0;
    h->crc = aura_crc32c(0, h, front <= b.size ? (size_t)front : sizeof *h, AURA_ISA_REF);
}

static void fill(const aura_extents_info *info, uint8_t how)
{
    for (size_t i = 0; i < info->n; i++) {
        MUST(info->pieces[i].bytes && info->pieces[i].bytes <= FUZZ_BUDGET);
        memset(info->pieces[i].data, how & 2 ? 0x3c : how & 4 ? 0xff : 0, info->pieces[i].bytes);
    }
}

static void expect_and_adopt(struct bytes b, uint8_t how)
{
    aura_extents_info info = AURA_EXTENTS_INFO_INIT;
    aura_extents *there = NULL;
    for (int again = 0; again < 2; again++) {
        aura_seq seq = 0;
        if (aura_seq_expect(target, b.data, b.size, &there)) {
            MUST(!there);
            return;
        }
        MUST(!aura_extents_get_info(there, &info));
        fill(&info, how);
        if (!again)
            seal_header(b, &info);
        if (again && !aura_seq_adopt(there, &seq)) {
            fuzz_use(target, seq);
            MUST(!aura_seq_release(target, seq));
        }
        aura_extents_destroy(there);
        there = NULL;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    aura_cache_info before = AURA_CACHE_INFO_INIT, after = AURA_CACHE_INFO_INIT;
    begin();
    if (size < 1)
        return 0;
    struct bytes b = {malloc(size), size - 1};
    memcpy(b.data, data + 1, b.size);
    if (!(data[0] & 1) && b.size >= sizeof(struct aura_file_header))
        seal_header(b, NULL);
    MUST(!aura_cache_get_info(target, &before));
    expect_and_adopt(b, data[0]);
    MUST(!aura_cache_get_info(target, &after));
    MUST(after.seqs == before.seqs && after.holders == before.holders && after.tokens == before.tokens);
    free(b.data);
    return 0;
}
