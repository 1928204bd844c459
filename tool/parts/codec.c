/* Runs a codec that is a command. */
#define _GNU_SOURCE
#include "codec.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../src/base/dtype.h"
#include "safetensors.h"

struct files {
    char folder[512], in[600], out[600];
};

static int make_files(struct files *f, char *error)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(f->folder, sizeof f->folder, "%.480s/aura-codec-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(f->folder))
        return snprintf(error, CODEC_ERROR_BYTES, "%.150s: %s", f->folder, strerror(errno)), 1;
    snprintf(f->in, sizeof f->in, "%s/in.safetensors", f->folder);
    snprintf(f->out, sizeof f->out, "%s/out.safetensors", f->folder);
    return 0;
}

static void remove_files(const struct files *f)
{
    unlink(f->in), unlink(f->out), rmdir(f->folder);
}

/* The command with the two paths behind it. What it prints goes to standard error: standard output is the table's. */
static int start(const char *command, const struct files *f, uint32_t layer, char *error)
{
    char script[4096], number[16];
    int status = 0;
    snprintf(script, sizeof script, "%.4000s \"$1\" \"$2\"", command);
    snprintf(number, sizeof number, "%u", layer);
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        setenv("AURA_LAYER", number, 1);
        dup2(2, 1);
        execl("/bin/sh", "sh", "-c", script, "sh", f->in, f->out, (char *)NULL);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return snprintf(error, CODEC_ERROR_BYTES, "the codec cannot be started: %s", strerror(errno)), 1;
    if (status)
        snprintf(error, CODEC_ERROR_BYTES, WIFEXITED(status) ? "the codec ended with status %d: %.150s" : "the codec was killed by "
                 "signal %d: %.150s", WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), command);
    return status != 0;
}

static float number_of(const struct tensor *t, size_t i)
{
    float x;
    uint16_t half;
    if (!strcmp(t->dtype, "F32"))
        return memcpy(&x, t->data + 4 * i, 4), x;
    memcpy(&half, t->data + 2 * i, 2);
    return t->dtype[0] == 'B' ? aura_f32_from_bf16(half) : aura_f32_from_f16(half);
}

static int take(const struct safetensors *file, const char *name, uint32_t tokens, uint32_t heads, uint32_t dim, float *x,
                char *error)
{
    const struct tensor *t = safetensors_find(file, name);
    if (!t || !tensor_dtype_bytes(t->dtype))
        return snprintf(error, CODEC_ERROR_BYTES, "the codec wrote no tensor %s of f32, f16 or bf16", name), 1;
    if (t->rank != 3 || t->shape[0] != tokens || t->shape[1] != heads || t->shape[2] != dim)
        return snprintf(error, CODEC_ERROR_BYTES, "the codec wrote a %s of another shape than [%u][%u][%u]", name, tokens, heads,
                        dim), 1;
    for (size_t i = 0; i < t->elements; i++)
        if (!isfinite(x[i] = number_of(t, i)))
            return snprintf(error, CODEC_ERROR_BYTES, "the codec wrote a %s whose number %zu is not finite", name, i), 1;
    return 0;
}

int codec_run(const char *command, uint32_t layer, uint32_t tokens, uint32_t heads, uint32_t k_dim, uint32_t v_dim, float *k,
              float *v, double *bits, char error[CODEC_ERROR_BYTES])
{
    const struct tensor_out given[] = {{"k", 3, {tokens, heads, k_dim}, k}, {"v", 3, {tokens, heads, v_dim}, v}};
    struct files f;
    struct safetensors made = {0};
    if (make_files(&f, error))
        return 1;
    int bad = safetensors_write(f.in, given, 2) != 0;
    if (bad)
        snprintf(error, CODEC_ERROR_BYTES, "%.150s: %s", f.in, strerror(errno));
    bad = bad || start(command, &f, layer, error);
    if (!bad && safetensors_read(&made, f.out))
        bad = 1, snprintf(error, CODEC_ERROR_BYTES, "what the codec wrote: %.200s", made.error);
    bad = bad || take(&made, "k", tokens, heads, k_dim, k, error) || take(&made, "v", tokens, heads, v_dim, v, error);
    const struct tensor *t = bad ? NULL : safetensors_find(&made, "bits");
    *bits = t && t->elements == 1 && tensor_dtype_bytes(t->dtype) ? (double)number_of(t, 0) : NAN;
    safetensors_free(&made);
    remove_files(&f);
    return bad;
}

void codec_name(const char *command, char name[16])
{
    size_t end = strlen(command);
    while (end && command[end - 1] == ' ')
        end--;
    size_t begin = end;
    while (begin && command[begin - 1] != ' ' && command[begin - 1] != '/')
        begin--;
    size_t n = strcspn(command + begin, ". ");
    n = n < end - begin ? n : end - begin;
    size_t used = 0;
    for (size_t i = 0; i < n && used < 15; i++) /* a name in tables, CSV and JSON */
        if (strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-", command[begin + i]))
            name[used++] = command[begin + i];
    name[used] = 0;
    if (!used)
        strcpy(name, "codec");
}
