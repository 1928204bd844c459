/* Reading the arguments of a command by its table. */
#define _GNU_SOURCE
#include "options.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../src/dispatch.h"
#include "../../src/base/format_names.h"
#include "suggest.h"
#include "terminal.h"

/* ---- messages ------------------------------------------------------------------------------------------------------ */

static void complain(const struct command *command, const char *format, va_list arguments)
{
    end_progress();
    fprintf(stderr, "aura %s: ", command->name);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
}

int usage_error(const struct command *command, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    complain(command, format, arguments);
    va_end(arguments);
    return 2;
}

int failed(const struct command *command, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    complain(command, format, arguments);
    va_end(arguments);
    return 1;
}

/* ---- words --------------------------------------------------------------------------------------------------------- */

const char *nth_word(const char *text, size_t i, char word[64])
{
    for (; text && *text; i--) {
        size_t n = strcspn(text, " ");
        if (i == 0)
            return snprintf(word, 64, "%.*s", (int)n, text), word;
        text += n;
        text += strspn(text, " ");
    }
    return NULL;
}

/* The presets, then pairs of one kind twice, which users mean more often, then the other pairs. */
static const char *format_word(size_t i, char name[16])
{
    size_t n = aura_kind_count, k = i - aura_preset_count, v = k;
    if (i < aura_preset_count)
        return aura_presets[i].name;
    if (k >= n) {
        k = (i - aura_preset_count - n) / (n - 1), v = (i - aura_preset_count - n) % (n - 1);
        v += v >= k;
    }
    if (k >= n)
        return NULL;
    aura_format format = {aura_kind_names[k].kind, aura_kind_names[v].kind};
    return aura_format_name(format, name) ? NULL : name;
}

const char *option_word(const struct option *option, size_t i, char word[64])
{
    switch (option->kind) {
    case OPTION_CHOICE: return nth_word(option->choices, i, word);
    case OPTION_ISA: return i < aura_isa_count ? aura_isa_list[i].name : NULL;
    case OPTION_FORMAT:
        if (option->choices && i-- == 0)
            return option->choices;
        return format_word(i, word);
    case OPTION_FORMATS: return format_word(i, word);
    default: return NULL;
    }
}

/* The names of an option. A short name, if there is one, comes first and ends with a comma. */
static const char *long_name(const struct option *option)
{
    const char *comma = strstr(option->name, ", ");
    return comma ? comma + 2 : option->name;
}

int option_is(const struct option *option, const char *argument)
{
    return !strcmp(long_name(option), argument) || (option->alias && !strcmp(option->alias, argument)) ||
           (option->name[1] != '-' && option->name[2] == ',' && !strncmp(option->name, argument, 2) && !argument[2]);
}

/* ---- values -------------------------------------------------------------------------------------------------------- */

static int parse_number(const char *text, double least, double most, uint32_t *number)
{
    uint64_t value = 0;
    for (const char *at = text; *at; at++) {
        if (*at < '0' || *at > '9' || (value = value * 10 + (uint64_t)(*at - '0')) > (uint64_t)most)
            return -1;
    }
    if (!*text || (double)value < least)
        return -1;
    *number = (uint32_t)value;
    return 0;
}

static int parse_real(const char *text, double least, double most, double *number)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= least && value <= most))
        return -1;
    *number = value;
    return 0;
}

/* The format nearest to a type of llama.cpp's cache, q8_0, q4_K or iq4_nl, by its bits; NULL: it is no name of one. */
static const char *nearest_format(const char *type, char name[16])
{
    const char *bits = type + (*type == 'i');
    aura_format format;
    if (!strcmp(type, "fp16"))
        return "f16";
    if (*bits != 'q' || bits[1] < '0' || bits[1] > '9' || (bits[2] && bits[2] != '_'))
        return NULL;
    snprintf(name, 16, "k%cv%c", bits[1], bits[1]);
    return aura_format_parse(name, &format) ? NULL : name;
}

int parse_format(const struct command *command, const char *option, const char *text, aura_format *format)
{
    struct suggestion near = {0};
    char name[16], both[16];
    const char *word;
    if (!aura_format_parse(text, format))
        return 0;
    if (snprintf(both, sizeof both, "k%.5sv%.5s", text, text) > 0 && strlen(text) < 5 && !aura_format_parse(both, format))
        return 0; /* a kind alone stands for both sides: f16 */
    if ((word = nearest_format(text, name)))
        return usage_error(command, "%s %s: is a type of llama.cpp; the format nearest to it is %s", option, text, word);
    for (size_t i = 0; (word = format_word(i, name)); i++)
        consider(&near, text, word);
    usage_error(command, "%s %s: no such format: kAvB with A and B of " AURA_BITS(AURA_KIND_COMMA)
                AURA_TRELLIS(AURA_SHAPE_COMMA) "f16, bf16, f32, "
                "one of these for both, or max, safe, quality, balanced, small%s%s%s", option, text,
                *near.name ? "; did you mean " : "",
                near.name, *near.name ? "?" : "");
    return 2;
}

/* One of the words of an option. */
static int parse_word(const struct command *command, const struct option *o, const char *text, const char **to)
{
    struct suggestion near = {0};
    char buffer[64], all[400] = "";
    const char *word;
    for (size_t i = 0; (word = option_word(o, i, buffer)); i++) {
        size_t used = strlen(all);
        if (!strcmp(word, text))
            return *to = text, 0;
        consider(&near, text, word);
        snprintf(all + used, sizeof all - used, "%s%s", used ? ", " : "", word);
    }
    return usage_error(command, "%s %s: must be one of %s%s%s%s", long_name(o), text, all,
                       *near.name ? "; did you mean " : "", near.name, *near.name ? "?" : "");
}

static int add_text(const struct command *command, const struct option *o, const char *text, struct option_texts *to)
{
    if (!*text)
        return usage_error(command, "%s: must be a text that is not empty", long_name(o));
    if (to->count == OPTION_MOST_TEXTS)
        return usage_error(command, "%s: at most %d times", long_name(o), OPTION_MOST_TEXTS);
    to->list[to->count++] = text;
    return 0;
}

static int parse_value(const struct command *command, const struct option *o, const char *text, void *to)
{
    switch (o->kind) {
    case OPTION_TEXTS: return add_text(command, o, text, to);
    case OPTION_NUMBER:
        if (parse_number(text, o->least, o->most, to))
            return usage_error(command, "%s %s: must be a number from %.0f to %.0f", long_name(o), text, o->least, o->most);
        return 0;
    case OPTION_REAL:
        if (parse_real(text, o->least, o->most, to))
            return usage_error(command, "%s %s: must be a number from %g to %g", long_name(o), text, o->least, o->most);
        return 0;
    case OPTION_CHOICE:
    case OPTION_ISA: return parse_word(command, o, text, to);
    case OPTION_FORMAT:
        if (o->choices && !strcmp(text, o->choices))
            return memset(to, 0, sizeof(aura_format)), 0;
        return parse_format(command, long_name(o), text, to);
    default: return *(const char **)to = text, 0;
    }
}

/* ---- arguments ----------------------------------------------------------------------------------------------------- */

static int unknown(const struct command *command, const char *argument, int is_option)
{
    struct suggestion near = {0};
    char word[64];
    for (const struct option *o = command->options; is_option && o && o->kind != OPTION_END; o++)
        consider(&near, argument, long_name(o));
    if (is_option)
        consider(&near, argument, "--help");
    for (size_t i = 0; !is_option && nth_word(command->operands, i, word); i++)
        consider(&near, argument, word);
    if (*near.name)
        return usage_error(command, "unknown %s %s; did you mean %s?", is_option ? "option" : "argument", argument,
                           near.name);
    return usage_error(command, "unknown %s %s; `aura %s --help` shows what there is", is_option ? "option" : "argument",
                       argument,
                       command->name);
}

static int take_operand(const struct command *command, const char *argument, const char **operand)
{
    char word[64];
    if (operand && *operand)
        return usage_error(command, "%s: %s is %s already; what belongs to an option stands behind it, see `aura %s --help`",
                           argument,
                           command->operand, *operand, command->name);
    if (!operand)
        return unknown(command, argument, 0);
    *operand = argument;
    if (!command->operands)
        return 0;
    for (size_t i = 0; nth_word(command->operands, i, word); i++)
        if (!strcmp(word, argument))
            return 0;
    return unknown(command, argument, 0);
}

/* The option that an argument names. *value: the text after a =, or NULL. */
static const struct option *find_option(const struct option *options, const char *argument, const char **value)
{
    char name[64];
    const char *equals = strncmp(argument, "--", 2) ? NULL : strchr(argument, '=');
    snprintf(name, sizeof name, "%.*s", equals ? (int)(equals - argument) : (int)sizeof name - 1, argument);
    *value = equals ? equals + 1 : NULL;
    for (const struct option *o = options; o && o->kind != OPTION_END; o++)
        if (option_is(o, name))
            return o;
    return NULL;
}

static int same_file(const char *a, const char *b)
{
    struct stat x, y;
    return a && b && !stat(a, &x) && !stat(b, &y) && S_ISREG(x.st_mode) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* A result must not replace what the command reads: a model, a text, a recording. */
static int check_results(const struct command *command, const void *into, const char *operand)
{
    for (const struct option *o = command->options; o && o->kind != OPTION_END; o++) {
        const char *result = o->kind == OPTION_RESULT ? *(const char *const *)(const void *)((const char *)into + o->to) : NULL;
        const char *lost = result && !command->operands && same_file(result, operand) ? command->operand : NULL;
        for (const struct option *in = command->options; result && in->kind != OPTION_END; in++)
            if (in->kind == OPTION_FILE && same_file(result, *(const char *const *)(const void *)((const char *)into + in->to)))
                lost = long_name(in);
        if (lost)
            return usage_error(command, "%s %s: is the file of %s, which is only read; give another", long_name(o), result, lost);
    }
    return 0;
}

int parse_options(const struct command *command, int argc, char **argv, void *into, const char **operand)
{
    int only_operands = 0, status = 0;
    for (int i = 0; i < argc && !status; i++) {
        const char *value = NULL;
        int is_option = !only_operands && argv[i][0] == '-' && argv[i][1];
        const struct option *o = is_option ? find_option(command->options, argv[i], &value) : NULL;
        char *to = o ? (char *)into + o->to : NULL;
        if (is_option && !strcmp(argv[i], "--")) {
            only_operands = 1;
        } else if (!o) {
            status = is_option ? unknown(command, argv[i], 1) : take_operand(command, argv[i], operand);
        } else if (o->kind == OPTION_FLAG) {
            *(int *)(void *)to = 1;
            if (value)
                status = usage_error(command, "%s takes no value", long_name(o));
        } else if (o->kind == OPTION_REST) {
            struct option_rest rest = {argv + i + 1, argc - i - 1};
            memcpy(to, &rest, sizeof rest);
            return rest.count ? 0 : usage_error(command, "%s needs at least one %s", long_name(o), o->value);
        } else if (!value && i + 1 == argc) {
            status = usage_error(command, "%s needs a value: %s", long_name(o), o->help);
        } else {
            status = parse_value(command, o, value ? value : argv[++i], to);
        }
    }
    return status ? status : check_results(command, into, operand ? *operand : NULL);
}

/* ---- instruction sets, processors ---------------------------------------------------------------------------------- */

int parse_isa(const struct command *command, const char *name, uint32_t *mask)
{
    uint32_t has = aura_cpu_isas();
    *mask = 0;
    for (size_t i = 0; name && i < aura_isa_count; i++) { /* the worst comes first */
        *mask |= has & aura_isa_list[i].flag;
        if (!strcmp(aura_isa_list[i].name, name))
            return has & aura_isa_list[i].flag
                       ? 0
                       : usage_error(command, "this machine has no %s; `aura list` shows what it has", name);
    }
    return name ? usage_error(command, "unknown instruction set %s", name) : 0;
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
