/* A profile for those who have none. */
#define _POSIX_C_SOURCE 200809L
#include "own_profile.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../tool.h"
#include "calibrator.h"
#include "terminal.h"

enum { PATH_BYTES = 1024 };

/* Where the profile of a model is kept; makes the directories. Returns NULL where there is no such place. */
static const char *kept_path(const struct gguf *file, char path[PATH_BYTES])
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const int own = cache && *cache == '/';
    int n = snprintf(path, PATH_BYTES, "%s%s", own ? cache : home ? home : "", own ? "" : "/.cache");
    if ((!own && (!home || *home != '/')) || n > PATH_BYTES - 64)
        return NULL;
    if (mkdir(path, 0700) && errno != EEXIST)
        return NULL;
    n += snprintf(path + n, 8, "/aura");
    if (mkdir(path, 0700) && errno != EEXIST)
        return NULL;
    snprintf(path + n, 40, "/%016" PRIx64 ".profile", gguf_weights_fingerprint(file));
    return path;
}

static int read_own(struct profile_file *file, struct text_model *m, uint32_t threads, char *error)
{
    struct calibrator c = {0};
    char path[DATA_PATH_BYTES];
    size_t used = 0;
    float least, most;
    const int bad = text_model_read(m, find_data("dictionary.txt", path), error) ||
                    calibrator_create(&c, file->ctx, llm_shape(m->llm), error) ||
                    calibrator_read(&c, m, OWN_TOKENS, OWN_TOKENS, threads, &used, error) ||
                    calibrator_profile(&c, m->llm, &file->profile, &least, &most, error);
    calibrator_destroy(&c);
    free(m->tokens);
    return bad;
}

int own_profile_make(struct profile_file *file, const struct text_model *m, uint32_t threads, int keep,
                     char error[LLM_ERROR_BYTES])
{
    struct text_model reads = {.file = m->file, .tokenizer = m->tokenizer, .llm = m->llm}; /* with a text of its own */
    char memory[PATH_BYTES];
    const char *path = keep ? kept_path(m->file, memory) : NULL;
    memset(file, 0, sizeof *file);
    if (aura_ctx_create(NULL, &file->ctx))
        return snprintf(error, LLM_ERROR_BYTES, "%.200s", aura_last_error()), 1;
    if (path && !aura_profile_load(file->ctx, path, &file->profile))
        return 0;
    const int bad = read_own(file, &reads, threads, error);
    print_progress(NULL);
    if (!bad && keep && (!path || aura_profile_save(file->profile, path)))
        fprintf(stderr, "the profile is not kept, and will be made again: %s\n",
                path ? aura_last_error() : "there is no directory for it");
    return bad;
}
