/* A fuzz target without libFuzzer: the files of a directory, then changes of them, for some seconds.
 *
 *     fuzz_NAME DIRECTORY [SECONDS]    5 seconds, of which AURA_QUICK makes 3
 *     fuzz_NAME FILE                   one input
 *     fuzz_NAME DIRECTORY 0 NUMBER     one change, by its number, written to crash-NUMBER first
 *
 * All of it runs in a child process, so that the parent can print the number of the change that ended it. */
#define _DEFAULT_SOURCE
#include <dirent.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"

#include "../../tool/parts/inputs.h"

enum { MOST_FILES = 4096, LONGEST = 1 << 20 };

static struct {
    uint8_t *data;
    size_t size;
} file[MOST_FILES];
static int files;

static void read_one(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f || files == MOST_FILES)
        return;
    file[files].data = malloc(LONGEST);
    file[files].size = fread(file[files].data, 1, LONGEST, f);
    file[files].data = realloc(file[files].data, file[files].size + 1);
    files++;
    fclose(f);
}

/* In the order of their names: a number means the same change everywhere. */
static int read_all(const char *path)
{
    struct dirent **entry;
    struct stat about;
    char name[1024];
    if (stat(path, &about))
        return 0;
    if (S_ISREG(about.st_mode)) {
        read_one(path);
        return 1;
    }
    int n = scandir(path, &entry, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s/%s", path, entry[i]->d_name);
        if (entry[i]->d_name[0] != '.')
            read_one(name);
        free(entry[i]);
    }
    free(n >= 0 ? entry : NULL);
    return files;
}

/* One change: another bit, byte or length, an interesting number, or a copy of another place of the input. */
static size_t change(uint8_t *data, size_t size, uint64_t *state)
{
    static const uint64_t numbers[] = {0, 1, 255, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff, UINT64_MAX, INT64_MAX,
                                       (uint64_t)1 << 40};
    if (!size)
        return size;
    size_t at = random_bits(state) % size, n = 1 + random_bits(state) % 8;
    uint64_t number = numbers[random_bits(state) % 10] + random_bits(state) % 3 - 1;
    n = n < size - at ? n : size - at;
    switch (random_bits(state) % 8) {
    case 0:
    case 1: data[at] ^= (uint8_t)(1u << random_bits(state) % 8); break;
    case 2: data[at] = (uint8_t)random_bits(state); break;
    case 3:
    case 4: memcpy(data + at, &number, n); break;
    case 5: memmove(data + at, data + random_bits(state) % (size - n + 1), n); break;
    case 6: data[at] = (uint8_t)(data[at] + (random_bits(state) % 2 ? 1 : 255)); break;
    default: return random_bits(state) % 4 ? size : at;
    }
    return size;
}

static void run(uint64_t number, int keep)
{
    uint64_t state = number;
    int from = (int)(random_bits(&state) % (uint64_t)files);
    size_t size = file[from].size;
    uint8_t *data = malloc(size + 1);
    memcpy(data, file[from].data, size);
    for (uint64_t changes = 1 + random_bits(&state) % 6; changes; changes--)
        size = change(data, size, &state);
    if (keep) {
        char name[64];
        snprintf(name, sizeof name, "crash-%llu", (unsigned long long)number);
        FILE *f = fopen(name, "wb");
        if (f && fwrite(data, 1, size, f) == size)
            printf("written to %s\n", name);
        if (f)
            fclose(f);
    }
    data = realloc(data, size ? size : 1); /* exact size, so that sanitizers notice an access behind it */
    LLVMFuzzerTestOneInput(data, size);
    free(data);
}

static void run_all(double seconds, uint64_t *count)
{
    clock_t begin = clock();
    for (int i = 0; i < files; i++, ++*count)
        LLVMFuzzerTestOneInput(file[i].data, file[i].size);
    while ((double)(clock() - begin) / CLOCKS_PER_SEC < seconds)
        run((*count)++, 0);
}

int main(int argc, char **argv)
{
    double seconds = argc > 2 ? atof(argv[2]) : getenv("AURA_QUICK") ? 3 : 5;
    uint64_t *count = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int status = 0;
    if (argc < 2 || !read_all(argv[1]) || count == MAP_FAILED) {
        printf("FAIL corpus: no files in %s\n", argc < 2 ? "no directory" : argv[1]);
        return 2;
    }
    if (argc > 3) {
        run(strtoull(argv[3], NULL, 10), 1);
        return 0;
    }
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        run_all(seconds, count);
        exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) < 0 || status) {
        if (*count < (uint64_t)files)
            printf("FAIL corpus: file %llu of %s\n", (unsigned long long)*count, argv[1]);
        else
            printf("FAIL corpus: %s %s 0 %llu\n", argv[0], argv[1], (unsigned long long)*count - 1);
        return 1;
    }
    printf("  %d files, %llu changes of them\n", files, (unsigned long long)*count - (uint64_t)files);
    printf("ok corpus\n");
    return 0;
}
