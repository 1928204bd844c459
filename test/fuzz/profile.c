/* Files of profiles. The target makes their checksums right, unless the first byte is odd. A profile that loads is saved and
 * loaded again, and must be the same. */
#include "fuzz.h"

#include "../../include/aura_file.h"
#include "../file/file_tools.h"

static void expect_equal(const aura_profile *a, const aura_profile *b)
{
    aura_profile_layer x = AURA_PROFILE_LAYER_INIT, y = AURA_PROFILE_LAYER_INIT;
    MUST(!aura_profile_get(a, 0, &x));
    for (uint32_t i = 0; i < x.layers; i++) {
        MUST(!aura_profile_get(a, i, &x) && !aura_profile_get(b, i, &y));
        MUST(x.kv_heads == y.kv_heads && x.k_dim == y.k_dim && !x.balance == !y.balance);
        for (size_t j = 0; x.balance && j < (size_t)x.kv_heads * x.k_dim; j++)
            MUST(x.balance[j] >= 0.125f && x.balance[j] <= 8 && x.balance[j] == y.balance[j]);
    }
    MUST(aura_profile_get(a, x.layers, &x) == AURA_BAD_ARGUMENT);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    aura_profile *profile = NULL, *again = NULL;
    if (!fuzz_ctx)
        MUST(files_begin() && !atexit(files_end));
    fuzz_begin();
    if (size < 1)
        return 0;
    struct bytes file = {malloc(size), size - 1};
    memcpy(file.data, data + 1, file.size);
    if (!(data[0] & 1) && file.size >= sizeof(struct aura_file_header)) {
        header_of(file)->bytes = file.size;
        seal(file);
    }
    write_file(file_path("profile"), file.data, file.size);
    free(file.data);
    aura_status status = aura_profile_load(fuzz_ctx, file_path("profile"), &profile);
    MUST(!status == !!profile);
    if (!status) {
        MUST(!aura_profile_save(profile, file_path("again")));
        MUST(!aura_profile_load(fuzz_ctx, file_path("again"), &again));
        expect_equal(profile, again);
        unlink(file_path("again"));
    }
    aura_profile_destroy(profile), aura_profile_destroy(again);
    unlink(file_path("profile"));
    return 0;
}
