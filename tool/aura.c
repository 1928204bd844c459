/* The command-line tool: finds the command, nothing else. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../include/aura.h"
#include "parts/suggest.h"
#include "tool.h"

#define ADDRESS(name) &command_##name,
const struct command *const commands[] = {COMMANDS(ADDRESS) NULL};
#undef ADDRESS

const struct command *find_command(const char *name)
{
    for (size_t i = 0; commands[i]; i++)
        if (!strcmp(commands[i]->name, name))
            return commands[i];
    return NULL;
}

int unknown_command(const char *name)
{
    struct suggestion near = {0};
    for (size_t i = 0; commands[i]; i++)
        consider(&near, name, commands[i]->name);
    if (*name == '-')
        return fprintf(stderr, "aura: %s: options come after a command; `aura --help` shows the commands\n", name), 2;
    fprintf(stderr, "aura: there is no command %s", name);
    if (*near.name)
        fprintf(stderr, "; did you mean `aura %s`?\n", near.name);
    else
        fprintf(stderr, "; `aura --help` shows them all\n");
    return 2;
}

const char *cpu_name(void)
{
    static char line[256];
    static const char *name;
    FILE *file = name ? NULL : fopen("/proc/cpuinfo", "r");
    name = name ? name : "unknown CPU";
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "model name", 10) && strchr(line, ':')) {
            line[strcspn(line, "\n")] = 0;
            name = strchr(line, ':') + 2;
            break;
        }
    if (file)
        fclose(file);
    return name;
}

void table_machine(struct table *table)
{
    table_text(table, "version", aura_version());
    table_text(table, "cpu", cpu_name());
}

const char *find_data(const char *name, char path[DATA_PATH_BYTES])
{
    enum { ROOM = 512 }; /* for what is added to the tool's place */
    char tree[ROOM], installed[DATA_PATH_BYTES];
    snprintf(tree, sizeof tree, "data/%s", name);
    const ssize_t n = access(tree, R_OK) ? readlink("/proc/self/exe", installed, DATA_PATH_BYTES - ROOM) : -1;
    static const char *const places[] = {"/../share/aura/", "/../../data/", "/../../../data/"};
    installed[n > 0 ? n : 0] = 0;
    *(strrchr(installed, '/') ? strrchr(installed, '/') : installed) = 0;
    for (size_t i = 0; n > 0 && i < sizeof places / sizeof *places; i++) {
        snprintf(path, DATA_PATH_BYTES, "%.3500s%s%.100s", installed, places[i], name);
        if (!access(path, R_OK))
            return path;
    }
    return strcpy(path, tree);
}

#define TEXT_OF(x) #x
#define VERSION_OF(major, minor) TEXT_OF(major) "." TEXT_OF(minor)
#if defined(__clang__)
const char compiler_name[] = "clang " VERSION_OF(__clang_major__, __clang_minor__);
#elif defined(__GNUC__)
const char compiler_name[] = "gcc " VERSION_OF(__GNUC__, __GNUC_MINOR__);
#else
const char compiler_name[] = "an unknown compiler";
#endif

char *read_file(const char *path, size_t *size)
{
    FILE *file = strcmp(path, "-") ? fopen(path, "rb") : stdin;
    char *text = NULL, *more = NULL;
    size_t got = 1;
    *size = 0;
    while (file && got && (more = realloc(text, *size + 65536))) {
        text = more;
        got = fread(text + *size, 1, 65535, file);
        *size += got;
    }
    const int bad = !file || !more || ferror(file), error = errno;
    if (file && file != stdin)
        fclose(file);
    errno = error;
    if (bad)
        return free(text), NULL;
    text[*size] = 0;
    return text;
}

int on_cuda(int *argc, char **argv)
{
    for (int i = 0; i + 1 < *argc; i++)
        if (!strcmp(argv[i], "--device") && !strcmp(argv[i + 1], "cuda")) {
            memmove(argv + i, argv + i + 2, (size_t)(*argc - i - 2) * sizeof *argv);
            *argc -= 2;
            return 1;
        }
    return 0;
}

static int run_version(const struct command *self, int argc, char **argv)
{
    int status = parse_options(self, argc, argv, NULL, NULL);
    return status ? status : (puts(aura_version()), 0);
}

const struct command command_version = {"version", "print the version", "", "Prints the version of the library.\n", NULL,
    NULL, NULL, "", run_version};

/* Whether --help is among the arguments before a --, which ends the options. */
static int asks_for_help(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--"); i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
            return 1;
    return 0;
}

/* Whoever starts the tool without one of the files 0, 1 and 2 must not find what it prints in the next file that it opens. Reading
 * the one, or writing to the other, fails as if it were closed. */
static void fill_standard_files(void)
{
    static const int modes[] = {O_WRONLY, O_RDONLY, O_WRONLY};
    for (int i = 0; i < 3; i++)
        if (fcntl(i, F_GETFD) < 0 && open("/dev/null", modes[i]) != i)
            _exit(1);
}

int main(int argc, char **argv)
{
    fill_standard_files();
    if (argc < 2)
        return print_tool_help(stderr), 2;
    const char *name = argv[1];
    const int help = !strcmp(name, "--help") || !strcmp(name, "-h");
    const struct command *command = find_command(help ? "help" : !strcmp(name, "--version") ? "version" : name);
    int status = 0;
    if (!command)
        return unknown_command(name);
    if (!help && asks_for_help(argc - 2, argv + 2))
        print_command_help(command, stdout);
    else
        status = command->run(command, help ? 0 : argc - 2, argv + 2);
    if (fflush(stdout) || ferror(stdout)) /* a full disk, or a pipe that nobody reads any more */
        return failed(command, "what it printed could not be written"), status ? status : 1;
    return status;
}
