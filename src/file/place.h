/* What replacing a file in one step takes: where its path leads, and a file beside it. For the library and the tool. */
#ifndef AURA_PLACE_H
#define AURA_PLACE_H

#include <stddef.h>

enum { AURA_TARGET_BYTES = 4096, AURA_TEMPORARY_BYTES = AURA_TARGET_BYTES + 48 };

/* What a path leads to. */
enum aura_place {
    AURA_PLACE_FILE, /* a file, or nothing yet: it may be replaced */
    AURA_PLACE_OTHER /* a device, a pipe, a directory: a rename would put a file in its stead */
};

/* Follows links, also to what is not there yet: a link stays a link, and its target is replaced. Returns 0, or an errno. */
int aura_find_target(const char *path, char target[AURA_TARGET_BYTES], enum aura_place *place);

/* Creates a file beside the target, and writes its name. Its permissions are the target's; a target that we may not write is
 * refused. Names that killed writers have left behind are skipped. Returns the file, or -1 with errno and the name of what is in
 * the way. */
int aura_open_temporary(const char *target, char *name, size_t bytes);

/* A rename is on disk when its directory is. Changes `path`, which is in that directory. Returns 0, or an errno. */
int aura_sync_directory(char *path);

#endif
