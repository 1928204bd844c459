/* Command-line options. */
#define _GNU_SOURCE
#include "options.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../src/dispatch.h"

static int parse_number(const char *text, uint32_t least, uint32_t most, uint32_t *number)
{
    uint64_t value = 0;
    for (const char *at = text; *at; at++) {
        if (*at < '0' || *at > '9' || (value = value * 10 + (uint64_t)(*at - '0')) > most)
            return -1;
    }
    if (!*text || value < least)
        return -1;
    *number = (uint32_t)value;
    return 0;
}

int parse_options(const char *command, int argc, char **argv, const struct option *options, const char **file)
{
    for (int i = 0; i < argc; i++) {
        const struct option *o = options;
        while (o->kind != OPTION_END && strcmp(o->name, argv[i]))
            o++;
        if (o->kind == OPTION_END) {
            if (argv[i][0] == '-' || !file || *file)
                return fprintf(stderr, "%s: unknown argument %s\n", command, argv[i]), 2;
            *file = argv[i];
            continue;
        }
        if (o->kind == OPTION_FLAG) {
            *(int *)o->to = 1;
            continue;
        }
        if (i + 1 == argc)
            return fprintf(stderr, "%s: %s needs a value\n", command, o->name), 2;
        i++;
        if (o->kind == OPTION_TEXT)
            *(const char **)o->to = argv[i];
        else if (parse_number(argv[i], o->least, o->most, o->to))
            return fprintf(stderr, "%s: %s %s: must be a number from %u to %u\n", command, o->name, argv[i], o->least,
                           o->most), 2;
    }
    return 0;
}

int parse_isa(const char *command, const char *name, uint32_t *mask)
{
    uint32_t has = aura_cpu_isas();
    *mask = 0;
    if (!name)
        return 0;
    for (size_t i = 0; i < aura_isa_count; i++) { /* the worst comes first */
        *mask |= has & aura_isa_list[i].flag;
        if (!strcmp(aura_isa_list[i].name, name))
            return has & aura_isa_list[i].flag ? 0 : (fprintf(stderr, "%s: this machine has no %s\n", command, name), 2);
    }
    return fprintf(stderr, "%s: unknown instruction set %s\n", command, name), 2;
}

const char *isa_name(uint32_t isas)
{
    size_t i = aura_isa_count - 1;
    while (i > 0 && !(isas & aura_isa_list[i].flag))
        i--;
    return aura_isa_list[i].name;
}

uint32_t online_cpus(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > 1024 ? 1024 : (uint32_t)n;
}
