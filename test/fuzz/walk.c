/* The walks of test/cache/cache_walk.h; the bytes of the input make the choices. */
#include "fuzz.h"

#define WALK_CAPACITY 800
#define WALK_COMPARED 2
#include "../cache/cache_walk.h"

enum { WALK_STEPS = 16 }; /* longer inputs are slower, and find no more in the same time */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct choices choices = {1, data, size, 0};
    if (!fuzz_ctx) {
        MUST(files_begin() && !atexit(files_end));
        walk_texts();
    }
    fuzz_begin();
    ctx = fuzz_ctx;
    if (size)
        walk(choices, WALK_STEPS, 0);
    MUST(!test_bad_lines);
    return 0;
}
