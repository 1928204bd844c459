/* Command-line options, described by a table. */
#ifndef AURA_OPTIONS_H
#define AURA_OPTIONS_H

#include <stdint.h>

enum option_kind {
    OPTION_END,    /* the last of a table */
    OPTION_FLAG,   /* int *to: set to 1 */
    OPTION_NUMBER, /* uint32_t *to: the argument after it, least to most */
    OPTION_TEXT    /* const char **to: the argument after it */
};

struct option {
    enum option_kind kind;
    const char *name;
    void *to;
    uint32_t least, most;
};

/* Fills in what the arguments say. An argument that is no option goes to *file, if there is room for one: file may be NULL.
 * 0 when good; otherwise 2, with a message that begins with the name of the command. */
int parse_options(const char *command, int argc, char **argv, const struct option *options, const char **file);

/* What a context may use so that it is as on a machine with no better than that: "ref", "avx2", "avx512vnni" ...; NULL: all.
 * 0 when good; otherwise 2, with a message: no such name, or this machine lacks it. */
int parse_isa(const char *command, const char *name, uint32_t *mask);

/* The best of a set of instruction sets, by name. */
const char *isa_name(uint32_t isas);

/* Processors that are there to be used; at least 1. */
uint32_t online_cpus(void);

#endif
