/* What the commands of the tool share. */
#ifndef AURA_TOOL_H
#define AURA_TOOL_H

#include <stdio.h>

#include "parts/json.h"
#include "parts/options.h"
#include "parts/table.h"

/* Every command, in the order in which `aura --help` shows them. command_NAME is defined in the file that does the work. */
#define COMMANDS(COMMAND) \
    COMMAND(demo)         \
    COMMAND(run)          \
    COMMAND(eval)         \
    COMMAND(calibrate)    \
    COMMAND(attend)       \
    COMMAND(record)       \
    COMMAND(inspect)      \
    COMMAND(bench)        \
    COMMAND(check)        \
    COMMAND(list)         \
    COMMAND(tokens)       \
    COMMAND(completion)   \
    COMMAND(man)          \
    COMMAND(version)      \
    COMMAND(help)
#define DECLARE(name) extern const struct command command_##name;
COMMANDS(DECLARE)
#undef DECLARE

/* All of them; the last is NULL. */
extern const struct command *const commands[];
const struct command *find_command(const char *name); /* NULL: there is none */
/* Prints that there is no such command, and the one that the user may have meant. Returns 2. */
int unknown_command(const char *name);

void print_tool_help(FILE *to);
void print_command_help(const struct command *command, FILE *to);

/* The exit codes of all commands and what they mean, for help and manual. */
extern const char exit_codes[];

/* Whether `--device cuda` is among the arguments; it is then removed from them. */
int on_cuda(int *argc, char **argv);

/* The CPU's name as the system has it; "unknown CPU" where it has none. A static string. */
const char *cpu_name(void);

/* The fields of every table: the version and the CPU. */
void table_machine(struct table *table);

enum { DATA_PATH_BYTES = 4096 };

/* The path of a file of data/: here, where `cmake --install` has put it beside the tool, or in the source tree that the tool was
 * built in; data/NAME where it is in none. It may be in `path`. */
const char *find_data(const char *name, char path[DATA_PATH_BYTES]);

/* What compiled the tool, "gcc 12.2" or "clang 14.0". */
extern const char compiler_name[];

/* A whole file as a string, which the caller frees; "-" is standard input. NULL when it cannot be read. */
char *read_file(const char *path, size_t *size);

#endif
