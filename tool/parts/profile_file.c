/* A profile and its context. */
#include "profile_file.h"

#include <string.h>

int profile_file_open(struct profile_file *file, const char *path)
{
    memset(file, 0, sizeof *file);
    return path && (aura_ctx_create(NULL, &file->ctx) || aura_profile_load(file->ctx, path, &file->profile));
}

void profile_file_close(struct profile_file *file)
{
    aura_profile_destroy(file->profile);
    aura_ctx_destroy(file->ctx);
    memset(file, 0, sizeof *file);
}

int profile_has_formats(const aura_profile *profile)
{
    aura_profile_layer layer = AURA_PROFILE_LAYER_INIT;
    if (!profile || aura_profile_get(profile, 0, &layer))
        return 0;
    for (uint32_t i = 0; i < layer.layers && !layer.format.k; i++)
        aura_profile_get(profile, i, &layer); /* there is one of that number */
    return layer.format.k != 0;
}
