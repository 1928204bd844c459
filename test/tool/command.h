/* The tool's commands, run inside of a test: in a child, whose calls of the system fail when the test says so, and whose clock is
 * the test's. The linker leads these calls here (--wrap, in CMakeLists.txt). A test that includes this begins in __wrap_main. */
#ifndef AURA_TEST_COMMAND_H
#define AURA_TEST_COMMAND_H

#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/resource.h>

#include "../../tool/parts/options.h"
#include "../../tool/parts/safetensors.h"
#include "../file/file_tools.h"
#include "../model/llm_tools.h"

extern const struct command *const commands[]; /* of tool/tool.h, whose read_file() is another than that of file_tools.h */
int __wrap_main(int argc, char **argv);
int __real_main(int argc, char **argv); /* the tool's */

/* ---- calls that fail --------------------------------------------------------------------------------------------------- */

enum { MOST_CALLS = 1 << 16, FRAMES = 8 };

/* Shared with the child. Call number i fails, or that and all after it. */
struct calls {
    atomic_long made;
    long fail_at; /* from 1; 0: none */
    int and_after;
    int failed;   /* whether one did */
    uint64_t stack[MOST_CALLS]; /* who made each call; 0: nobody looks */
    int look;
};
static struct calls *calls;
static int in_child; /* the test's own calls do not count */

/* The callers of a call, as a number. */
static inline uint64_t stack_number(void)
{
    void *frame[FRAMES];
    uint64_t number = 0xcbf29ce484222325u;
    int n = backtrace(frame, FRAMES);
    for (int i = 0; i < n; i++)
        number = (number ^ (uint64_t)(uintptr_t)frame[i]) * 0x100000001b3u;
    return number;
}

static inline int call_fails(int error)
{
    if (!in_child)
        return 0;
    const long i = atomic_fetch_add(&calls->made, 1) + 1;
    if (calls->look && i < MOST_CALLS) {
        calls->look = 0; /* the first backtrace allocates */
        calls->stack[i] = stack_number();
        calls->look = 1;
    }
    if (!calls->fail_at || i < calls->fail_at || (i > calls->fail_at && !calls->and_after))
        return 0;
    calls->failed = 1;
    errno = error;
    return 1;
}

#define WRAP(type, name, parameters, arguments, error, failure) \
    type __real_##name parameters;                              \
    type __wrap_##name parameters;                              \
    type __wrap_##name parameters                               \
    {                                                           \
        return call_fails(error) ? failure : __real_##name arguments; \
    }

WRAP(void *, malloc, (size_t bytes), (bytes), ENOMEM, NULL)
WRAP(void *, calloc, (size_t n, size_t bytes), (n, bytes), ENOMEM, NULL)
WRAP(void *, realloc, (void *old, size_t bytes), (old, bytes), ENOMEM, NULL)
WRAP(void *, aligned_alloc, (size_t align, size_t bytes), (align, bytes), ENOMEM, NULL)
WRAP(int, posix_memalign, (void **memory, size_t align, size_t bytes), (memory, align, bytes), ENOMEM, ENOMEM)
WRAP(char *, strdup, (const char *text), (text), ENOMEM, NULL)
WRAP(FILE *, fdopen, (int file, const char *mode), (file, mode), ENOMEM, NULL)
WRAP(FILE *, tmpfile, (void), (), EMFILE, NULL)
WRAP(void *, mmap, (void *at, size_t bytes, int protection, int flags, int file, off_t offset),
     (at, bytes, protection, flags, file, offset), ENOMEM, MAP_FAILED)
WRAP(int, pthread_create, (pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *arg),
     (thread, how, run, arg), EAGAIN, EAGAIN)

/* Where a CPU's name cannot be read it is an unknown CPU, which is no error. */
FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode)
{
    return strcmp(path, "/proc/cpuinfo") && call_fails(ENOMEM) ? NULL : __real_fopen(path, mode);
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
    va_end(more);
    return call_fails(EMFILE) ? -1 : __real_open(path, flags, mode);
}

/* ---- a clock ------------------------------------------------------------------------------------------------------------- */

/* Every look at it is 125 milliseconds later, so that measurements are short and print the same: multiples of that are exact as
 * double, wherever a time begins. A coarse one moves with every eighth look, by as much; an uneven one steps farther each time. */
static int coarse_clock, uneven_clock;

int __real_clock_gettime(clockid_t which, struct timespec *time);
int __wrap_clock_gettime(clockid_t which, struct timespec *time);
int __wrap_clock_gettime(clockid_t which, struct timespec *time)
{
    static atomic_long looks;
    if (!in_child)
        return __real_clock_gettime(which, time);
    const long now = atomic_fetch_add(&looks, 1);
    const long milliseconds = 125 * (coarse_clock ? now / 8 : uneven_clock ? now * now * now : now);
    time->tv_sec = 1 + milliseconds / 1000, time->tv_nsec = milliseconds % 1000 * 1000000;
    return 0;
}

/* ---- a command ----------------------------------------------------------------------------------------------------------- */

enum { MOST_WORDS = 40, CRASHED = -1 };

/* A command line, words between blanks. `out` is the name of every file that a command is to write. */
struct line {
    const char *words;
    int writes; /* whether it writes `out` */
    int slow;
};

/* With every command of the tool, all that they have to allocate. The first word of each is its name. */
static const struct line lines[] = {
    {"version", 0, 0},
    {"help", 0, 0},
    {"help run", 0, 0},
    {"run --help", 0, 0},
    {"--help", 0, 0},
    {"man", 0, 0},
    {"completion bash", 0, 0},
    {"completion zsh", 0, 0},
    {"completion fish", 0, 0},
    {"list", 0, 0},
    {"list --json", 0, 0},
    {"check query_any --isa ref --no-times", 0, 0},
    {"check softmax_any --isa ref --json", 0, 0},
    {"check --union kernels.json", 0, 0},
    {"tokens model.gguf --text text.txt", 0, 0},
    {"tokens model.gguf -p ab_c --json", 0, 0},
    {"record model.gguf --text text.txt --ctx 40 --queries 3 --layers 1 --threads 1 -o out", 1, 0},
    {"attend recording.safetensors --cache k4v4,q4_0 --layer 0 --threads 1 --csv", 0, 0},
    {"eval model.gguf --text text.txt --ctx 16 --chunks 1 --cache k4v4 --threads 1 --csv --positions out", 1, 0},
    {"inspect talk", 0, 0},
    {"inspect profile --all", 0, 0},
    {"inspect talk --json", 0, 0},
    {"attend recording.safetensors --threads 1 --out out", 1, 0},
    {"attend recording.safetensors --layer 1 --threads 2 --json", 0, 0},
    {"run model.gguf -p ab_c -n 3 --threads 2 --profile profile --save out", 1, 0},
    {"run model.gguf --chat -p ab -n 40 --temp 1 --threads 1 --json", 0, 0},
    {"run model.gguf --chat --load talk -p ab -n 2 --threads 1 --json --save out", 1, 0},
    {"run model.gguf --ids 258,32,99 -n 2 --threads 1 --cache f16", 0, 0},
    {"calibrate model.gguf --text text.txt --ctx 64 --tokens 128 --threads 1 -o out", 1, 0},
    {"calibrate model.gguf --text text.txt --ctx 64 --tokens 64 --threads 1 -o out --json", 1, 0},
    {"eval model.gguf --text text.txt --ctx 64 --chunks 2 --cache k4v4,q4_0 --threads 1 --profile profile --html out", 1, 0},
    {"eval model.gguf --text text.txt --ctx 16 --chunks 2 --cache k4v4 --threads 1 --rounded --json --base base", 0, 0},
    {"demo recording.safetensors --quick --threads 1 --html out", 1, 1},
    {"demo recording.safetensors --quick --threads 1 --model model.gguf --prompt ab --json --html out", 1, 1},
    {"bench --k 4 --v 3 --dim 64 --heads 2 --kv-heads 1 --tokens 64 --threads 2 --html out", 1, 0},
    {"bench --k 4 --dim 64 --heads 2 --kv-heads 1 --tokens 64 --threads 1 --json --html out", 1, 0},
    {"bench --prefill --dim 64 --heads 2 --kv-heads 1 --tokens 64 --queries 8 --threads 1 --json", 0, 0},
    {"bench --model model.gguf --depth 0,40 --cache k4v4,f16 --threads 1 --json", 0, 0},
    {"bench --model model.gguf --depth 5 --cache k3v3 --threads 1", 0, 0},
};
enum { LINES = sizeof lines / sizeof *lines };

/* How a child is run. */
struct how {
    long fail_at;
    int and_after, look;
    const char *to;      /* its standard output; NULL: a file that the outcome has */
    long most_bytes;     /* of a file that it writes; 0: any */
    int closed;          /* files 0, 1, 2 that it begins without, as bits */
};

struct outcome {
    int status; /* its exit status, or CRASHED */
    int failed; /* whether a call was made to fail */
    long calls;
    struct bytes out, err;
};

/* In the child: the words of the line, to the tool. A _ is a blank in a word. */
static inline int command_main(const char *text)
{
    char words[600], *argv[MOST_WORDS] = {(char[]){"aura"}};
    int argc = 1;
    snprintf(words, sizeof words, "%s", text);
    for (char *word = strtok(words, " "); word && argc + 1 < MOST_WORDS; word = strtok(NULL, " "))
        argv[argc++] = word;
    for (int i = 1; i < argc; i++)
        for (char *at = argv[i]; *at && i > 1 && !strcmp(argv[i - 1], "-p"); at++)
            *at = *at == '_' ? ' ' : *at;
    return __real_main(argc, argv);
}

/* err: where its messages go. */
static inline void child_files(const struct how *how, int err)
{
    const int out = __real_open(how->to ? how->to : "stdout", O_WRONLY | O_CREAT | O_TRUNC, 0666);
    const int in = __real_open("/dev/null", O_RDONLY);
    in_child = 1;
    dup2(in, 0), dup2(out, 1), dup2(err, 2);
    for (int i = 3; i < 64; i++)
        close(i);
    for (int i = 0; i < 3; i++)
        if (how->closed & 1 << i)
            close(i);
}

static inline void child_run(const char *text, const struct how *how, int err)
{
    if (chdir(file_dir))
        _exit(97);
    child_files(how, err);
    if (how->most_bytes) {
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){(rlim_t)how->most_bytes, (rlim_t)how->most_bytes});
    }
    alarm(100);
    atomic_store(&calls->made, 0);
    calls->fail_at = how->fail_at, calls->and_after = how->and_after, calls->failed = 0, calls->look = how->look;
    const int status = command_main(text);
    calls->fail_at = 0, calls->look = 0;
    exit(status);
}

static inline void read_messages(struct bytes *b, int from)
{
    enum { MOST = 1 << 16 };
    ssize_t got = 1;
    b->data = calloc(1, MOST + 1);
    for (; got > 0 && b->size < MOST; b->size += got > 0 ? (size_t)got : 0)
        got = read(from, b->data + b->size, MOST - b->size);
}

static inline struct outcome run_line(const char *text, const struct how *how)
{
    struct outcome o = {CRASHED, 0, 0, {NULL, 0}, {NULL, 0}};
    int status = 0, messages[2]; /* a pipe: a full disk must not swallow them */
    unlink(file_path("stdout"));
    fflush(stdout);
    calls->fail_at = 0;
    if (pipe(messages))
        return o;
    pid_t child = fork();
    if (child == 0)
        child_run(text, how, messages[1]);
    close(messages[1]);
    read_messages(&o.err, messages[0]);
    close(messages[0]);
    if (child < 0 || waitpid(child, &status, 0) != child)
        return o;
    calls->fail_at = 0, calls->look = 0;
    o.failed = calls->failed, o.calls = atomic_load(&calls->made);
    o.status = WIFEXITED(status) ? WEXITSTATUS(status) : CRASHED;
    if (!how->to)
        o.out = read_file(file_path("stdout"));
    return o;
}

/* Whether its last line is a message, and not of the progress before it. */
static inline int has_message(const struct outcome *o)
{
    const char *text = (const char *)o->err.data, *last = text;
    for (const char *at = text; (at = strchr(at, '\n')) && at[1]; last = ++at)
        continue;
    return !strncmp(last, "aura ", 5) && strlen(last) > 10 && last[strlen(last) - 2] != ' ';
}

static inline void outcome_free(struct outcome *o)
{
    free(o->out.data), free(o->err.data);
    o->out.data = o->err.data = NULL;
}

/* ---- files that it reads and writes ---------------------------------------------------------------------------------------- */

static inline void write_recording(const char *path, float size)
{
    enum { TOKENS = 40, QUERIES = 3, Q_HEADS = 2, DIM = 64 };
    static float x[TOKENS * Q_HEADS * DIM];
    static const char *const names[] = {"layer.0.q", "layer.0.k", "layer.0.v", "layer.1.q", "layer.1.k", "layer.1.v"};
    struct tensor_out t[6];
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = size * ((float)(i * 7919 % 1000) / 500 - 1);
    for (int i = 0; i < 6; i++)
        t[i] = (struct tensor_out){names[i], 3, {i % 3 ? TOKENS : QUERIES, i % 3 ? 1 : Q_HEADS, DIM}, x};
    EXPECT(!safetensors_write(path, t, 6), "%s", path);
}

static inline void expect_made(const char *text, const char *name)
{
    struct outcome o = run_line(text, &(struct how){0});
    EXPECT(o.status == 0, "%s: status %d: %s", text, o.status, o.err.data);
    if (name)
        EXPECT(!rename(file_path("out"), file_path(name)), "%s: it wrote nothing", text);
    outcome_free(&o);
}

static inline int commands_begin(void)
{
    static const char words[] = "ab cab the quick brown fox jumps over the lazy dog, and so on; ";
    char text[20 * sizeof words] = "";
    void *shared = __real_mmap(NULL, sizeof *calls, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    void *warm[1];
    if (!files_begin() || shared == MAP_FAILED)
        return 0;
    backtrace(warm, 1); /* the first one loads what it needs */
    for (int i = 0; i < 20; i++)
        strcat(text, words);
    EXPECT(!mkdir(file_path("data"), 0777), "%s", strerror(errno));
    write_file(file_path("text.txt"), text, strlen(text));
    write_file(file_path("data/novel.txt"), text, strlen(text));
    write_file(file_path("kernels.json"), "{}", 2);
    EXPECT(!talker_write(file_path("model.gguf"), 1), "model.gguf");
    write_recording(file_path("recording.safetensors"), 1);
    calls = shared;
    expect_made("calibrate model.gguf --text text.txt --ctx 64 --tokens 128 --threads 1 -o out", "profile");
    expect_made("run model.gguf --chat -p ab -n 3 --threads 1 --save out", "talk");
    return 1;
}

static inline void commands_end(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", file_dir);
    EXPECT(!system(command), "rm");
}

/* Files beside those that commands_begin() and a run leave: names that nobody asked for. */
static inline int leftovers(void)
{
    char command[256];
    snprintf(command, sizeof command, "test -z \"$(ls '%s' | grep -F .tmp-)\"", file_dir);
    return system(command) != 0;
}

#endif
