/* What the subcommands of the tool share. */
#ifndef AURA_TOOL_H
#define AURA_TOOL_H

/* Each gets the arguments after its name and returns the exit code: 0 good, 1 something failed, 2 bad usage. */
int command_check(int argc, char **argv);
int command_list(int argc, char **argv);
int command_bench(int argc, char **argv);
int command_attend(int argc, char **argv);

/* The CPU's name as the system has it; "unknown CPU" where it has none. A static string. */
const char *cpu_name(void);

/* A whole file as a string to be freed by the caller; NULL when it cannot be read. */
char *read_file(const char *path);

void print_json_string(const char *text);

#endif
