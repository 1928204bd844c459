/* Files for tests: whole files in memory, one changed bit or length at a time, and headers made up with checksums that
 * are right. */
#ifndef AURA_TEST_FILE_TOOLS_H
#define AURA_TEST_FILE_TOOLS_H

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../src/file/container.h"
#include "../../src/file/crc32c.h"
#include "../test.h"

struct bytes {
    uint8_t *data;
    size_t size;
};

/* A directory of our own, gone when the program ends well; in memory where that can be had, since every save waits for the
 * disk. */
static char file_dir[64];

static inline const char *file_path(const char *name)
{
    static char path[4][256];
    static int next;
    char *to = path[next++ % 4];
    snprintf(to, sizeof path[0], "%s/%s", file_dir, name);
    return to;
}

static inline int files_begin(void)
{
    const char *base = getenv("TMPDIR");
    base = base ? base : access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm";
    snprintf(file_dir, sizeof file_dir, "%.40s/aura-test-XXXXXX", base);
    return mkdtemp(file_dir) != NULL;
}

static inline void files_end(void)
{
    rmdir(file_dir);
}

/* A file of the tree, beside the sources of the tests. */
static inline const char *golden_path(const char *name)
{
    static char path[2][512];
    static int next;
    char *to = path[next++ % 2];
    const char *slash = strrchr(__FILE__, '/');
    snprintf(to, sizeof path[0], "%.*s../golden/%s", slash ? (int)(slash - __FILE__) + 1 : 0, __FILE__, name);
    return to;
}

static inline struct bytes read_file(const char *path)
{
    struct bytes b = {NULL, 0};
    struct stat about;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &about)) {
        EXPECT(0, "cannot read %s", path);
        return b;
    }
    b.data = malloc((size_t)about.st_size + 1);
    b.size = (size_t)about.st_size;
    EXPECT(read(file, b.data, b.size) == (ssize_t)b.size, "cannot read %s", path);
    close(file);
    return b;
}

static inline void write_file(const char *path, const void *data, size_t size)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    EXPECT(file >= 0 && write(file, data, size) == (ssize_t)size, "cannot write %s", path);
    close(file);
}

static inline int same_bytes(struct bytes a, struct bytes b)
{
    return a.size == b.size && !memcmp(a.data, b.data, a.size);
}

/* ---- damage ---- */

/* Loads the file, which must fail. 1: it did, as it should. */
typedef int refused_fn(void *user, const char *path, const char *what);

/* Flips bits, one at a time, in a copy of the file; `step` 1: every one. */
static inline void expect_flips_refused(struct bytes good, size_t step, refused_fn *refused, void *user)
{
    const char *path = file_path("flipped");
    char what[64];
    write_file(path, good.data, good.size);
    int file = open(path, O_WRONLY);
    for (size_t bit = 0; bit < 8 * good.size && test_bad_lines < 5; bit += step) {
        uint8_t byte = (uint8_t)(good.data[bit / 8] ^ 1u << bit % 8);
        snprintf(what, sizeof what, "bit %zu of byte %zu flipped", bit % 8, bit / 8);
        EXPECT(pwrite(file, &byte, 1, (off_t)(bit / 8)) == 1, "cannot write");
        EXPECT(refused(user, path, what), "%s", what);
        EXPECT(pwrite(file, &good.data[bit / 8], 1, (off_t)(bit / 8)) == 1, "cannot write");
    }
    close(file);
    unlink(path);
}

/* Cuts the file at lengths `step` apart, and makes it longer. */
static inline void expect_lengths_refused(struct bytes good, size_t step, refused_fn *refused, void *user)
{
    const char *path = file_path("cut");
    char what[64];
    uint8_t *longer = calloc(1, good.size + 4096);
    memcpy(longer, good.data, good.size);
    for (size_t add = 1; add <= 4096; add = add < 64 ? add + 7 : add * 2) {
        snprintf(what, sizeof what, "%zu bytes after its end", add);
        write_file(path, longer, good.size + add);
        EXPECT(refused(user, path, what), "%s", what);
    }
    write_file(path, good.data, good.size);
    for (size_t size = good.size; size > 0 && test_bad_lines < 5;) {
        size -= size < step ? size : step;
        snprintf(what, sizeof what, "cut to %zu bytes", size);
        EXPECT(!truncate(path, (off_t)size) && refused(user, path, what), "%s", what);
    }
    free(longer);
    unlink(path);
}

/* Saves number i of a test. */
typedef void save_fn(void *user, int i);

/* Kills a process that saves again and again, beginning with save `round`: after it has done up to three, by its own count and
 * not by the clock, which a busy machine stretches, and at a moment of the next one that is another in every round; given how long
 * one takes. */
static inline void kill_a_writer(save_fn *save, void *user, int round, double seconds)
{
    volatile int *done = mmap(NULL, sizeof *done, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    if (child == 0)
        for (int i = round;; i++, ++*done)
            save(user, i);
    while (*done < round % 4 && waitpid(child, NULL, WNOHANG) == 0)
        usleep(50);
    usleep((useconds_t)(seconds * 1e6 * (round * 37 % 100) / 100));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    munmap((void *)done, sizeof *done);
}

static inline double seconds_of(save_fn *save, void *user, int i)
{
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    save(user, i);
    clock_gettime(CLOCK_MONOTONIC, &after);
    return (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
}

/* ---- files made up ---- */

static inline struct aura_file_header *header_of(struct bytes file)
{
    return (struct aura_file_header *)(void *)file.data;
}

static inline struct aura_file_section *section_of(struct bytes file, uint32_t layer, uint32_t type)
{
    struct aura_file_section *s = (struct aura_file_section *)(void *)(header_of(file) + 1);
    for (uint32_t i = 0; i < header_of(file)->sections; i++)
        if (s[i].layer == layer && s[i].type == type)
            return &s[i];
    return NULL;
}

/* Makes the checksums right again: those of sections that are inside the file, then the header's. */
static inline void seal(struct bytes file)
{
    struct aura_file_header *h = header_of(file);
    struct aura_file_section *s = (struct aura_file_section *)(void *)(h + 1);
    size_t front = (sizeof *h + h->sections * sizeof *s + 63) / 64 * 64;
    for (uint32_t i = 0; i < h->sections && front <= file.size; i++) {
        uint64_t padded = (s[i].bytes + 63) / 64 * 64;
        if (s[i].offset < file.size && s[i].bytes <= file.size && padded <= file.size - s[i].offset)
            s[i].crc = aura_crc32c(0, file.data + s[i].offset, (size_t)padded, AURA_ISA_REF);
    }
    h->crc = 0;
    h->crc = aura_crc32c(0, h, front <= file.size ? front : sizeof *h, AURA_ISA_REF);
}

/* A copy with one more section at the end, of that layer and type. */
static inline struct bytes with_section(struct bytes file, uint32_t layer, uint32_t type, uint32_t flags, size_t bytes)
{
    struct aura_file_header *old = header_of(file);
    size_t front = (sizeof *old + old->sections * 32 + 63) / 64 * 64;
    size_t new_front = (sizeof *old + (old->sections + 1) * 32 + 63) / 64 * 64, grown = new_front - front;
    struct bytes out = {calloc(1, file.size + grown + (bytes + 63) / 64 * 64), file.size + grown + (bytes + 63) / 64 * 64};
    memcpy(out.data, file.data, sizeof *old + old->sections * 32);
    memcpy(out.data + new_front, file.data + front, file.size - front);
    struct aura_file_header *h = header_of(out);
    struct aura_file_section *s = (struct aura_file_section *)(void *)(h + 1);
    for (uint32_t i = 0; i < h->sections; i++)
        s[i].offset += grown;
    s[h->sections].layer = layer, s[h->sections].type = type, s[h->sections].flags = flags;
    s[h->sections].offset = file.size + grown, s[h->sections].bytes = bytes;
    memset(out.data + file.size + grown, 0x5a, bytes);
    h->sections++;
    h->bytes = out.size;
    seal(out);
    return out;
}

#endif
