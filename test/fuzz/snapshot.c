/* Files of caches, sequences and models. The first byte says whether the target makes the checksums right first, so that the code
 * behind the checksums is reached. A file that loads can be used, saved and loaded again; one that fails changes nothing. */
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
    MUST(files_begin() && !atexit(files_end));
    config.format.k = config.format.v = AURA_KIND_B2; /* the format of the sequences in the first files of the corpus */
    config.q_heads = 2, config.kv_heads = 1, config.k_dim = 64, config.seed = 5;
    config.budget_bytes = FUZZ_BUDGET;
    MUST(!aura_cache_create(fuzz_ctx, &config, &target));
}

static void use_cache(aura_cache *cache)
{
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    aura_cache *again = NULL;
    aura_snapshot_options options = AURA_SNAPSHOT_OPTIONS_INIT;
    MUST(!aura_cache_get_info(cache, &info));
    MUST(info.bytes <= FUZZ_BUDGET);
    options.budget_bytes = FUZZ_BUDGET;
    MUST(!aura_cache_save(cache, file_path("again"), NULL));
    MUST(!aura_cache_load(fuzz_ctx, file_path("again"), &options, &again));
    for (aura_seq seq = 1; seq < 8 && !info.config.slots; seq++) { /* the ids that files of the corpus have */
        aura_seq_info about = AURA_SEQ_INFO_INIT;
        for (aura_seq id = seq; id < seq + (8u << 21); id += 1u << 21)
            if (!aura_seq_get_info(cache, id, &about))
                fuzz_use(cache, id), fuzz_use(again, id);
    }
    aura_cache_destroy(again);
}

static void load_cache(const char *path, const aura_snapshot_options *options)
{
    aura_cache *cache = NULL;
    aura_status status = aura_cache_load(fuzz_ctx, path, options, &cache);
    MUST(!status == !!cache);
    if (!status)
        use_cache(cache);
    aura_cache_destroy(cache);
}

static void load_seq(const char *path, const aura_snapshot_options *options)
{
    aura_seq seq = 0;
    aura_cache_info before = AURA_CACHE_INFO_INIT, after = AURA_CACHE_INFO_INIT;
    MUST(!aura_cache_get_info(target, &before));
    aura_status status = aura_seq_load(target, path, options, &seq);
    if (!status) {
        fuzz_use(target, seq);
        MUST(!aura_seq_release(target, seq));
    }
    MUST(!aura_cache_get_info(target, &after));
    MUST(after.seqs == before.seqs && after.holders == before.holders && after.tokens == before.tokens);
    MUST(after.pages - after.free_pages == before.pages - before.free_pages);
}

static void load_model(const char *path, const aura_snapshot_options *options)
{
    aura_model_cache *model = NULL;
    aura_model_cache_info info = AURA_MODEL_CACHE_INFO_INIT;
    aura_status status = aura_model_load(fuzz_ctx, path, options, &model);
    MUST(!status == !!model);
    if (status)
        return;
    MUST(!aura_model_cache_get_info(model, &info) && info.bytes <= FUZZ_BUDGET);
    MUST(!aura_model_save(model, file_path("again"), NULL));
    for (uint32_t i = 0; i < info.layers; i++)
        for (aura_seq seq = 1u << 21; seq < 8u << 21; seq += 1u << 21) {
            aura_seq_info about = AURA_SEQ_INFO_INIT;
            if (!aura_seq_get_info(aura_model_cache_layer(model, i), seq | 1, &about))
                fuzz_use(aura_model_cache_layer(model, i), seq | 1);
        }
    aura_model_cache_destroy(model);
}

/* The file with right checksums and sizes, which would stop most changes early. */
static void write_input(const char *path, const uint8_t *data, size_t size, int sealed)
{
    struct bytes file = {malloc(size + 1), size};
    memcpy(file.data, data, size);
    if (sealed && size >= sizeof(struct aura_file_header)) {
        header_of(file)->bytes = size;
        seal(file);
    }
    write_file(path, file.data, size);
    free(file.data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static aura_seq some = (1u << 21) | 1;
    aura_snapshot_options options = AURA_SNAPSHOT_OPTIONS_INIT;
    const char *path = "snapshot";
    begin();
    if (size < 1)
        return 0;
    uint8_t how = data[0];
    write_input(file_path(path), data + 1, size - 1, !(how & 1));
    options.budget_bytes = FUZZ_BUDGET;
    options.first_head = how >> 1 & 1;
    options.seqs = how & 4 ? &some : NULL, options.n_seqs = how & 4 ? 1 : 0;
    load_cache(file_path(path), &options);
    load_model(file_path(path), &options);
    options.budget_bytes = 0;
    load_seq(file_path(path), &options);
    unlink(file_path(path)), unlink(file_path("again"));
    return 0;
}
