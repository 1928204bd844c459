/* The commands of the tool and their options. Each command has one table of options. Parsing, --help, the manual page, completion
 * and suggestions all read that table: an option is described once, where it is defined. */
#ifndef AURA_OPTIONS_H
#define AURA_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

#include "../../include/aura.h"

enum option_kind {
    OPTION_END,     /* the last of a table */
    OPTION_FLAG,    /* int: set to 1 */
    OPTION_NUMBER,  /* uint32_t: the argument after it, least to most */
    OPTION_REAL,    /* double: likewise */
    OPTION_TEXT,    /* const char *: the argument after it */
    OPTION_TEXTS,   /* struct option_texts: likewise, each time that it is given */
    OPTION_FILE,    /* const char *: likewise, completed as a path: a file that is read */
    OPTION_RESULT,  /* const char *: likewise, a file that is written: none that is read, nor the operand */
    OPTION_CHOICE,  /* const char *: likewise, one of `choices` */
    OPTION_ISA,     /* const char *: likewise, the name of an instruction set */
    OPTION_FORMAT,  /* aura_format: the name of a format or preset; or the word `choices`, which is zero */
    OPTION_FORMATS, /* const char *: the argument after it, such names and others, with commas between them */
    OPTION_REST     /* struct option_rest: all arguments after it, paths */
};

struct option_rest {
    char **list;
    int count;
};

enum { OPTION_MOST_TEXTS = 8 };

struct option_texts {
    const char *list[OPTION_MOST_TEXTS];
    size_t count;
};

struct option {
    enum option_kind kind;
    const char *name;  /* "--seed", or with a letter for short, "-n, --tokens" */
    const char *value; /* what help calls its argument: "N", "FILE"; NULL for a flag */
    const char *help;  /* one line; with `--name value` before it, it must fit 80 columns, which test/run.sh checks */
    size_t to;         /* offset in the struct that parse_options() fills */
    double least, most;
    const char *choices; /* of OPTION_CHOICE, between blanks; of OPTION_FORMAT a word that is none, or NULL */
    const char *alias;   /* another name, which people bring from elsewhere; NULL: none */
};

/* Rows of a table of options. Every command has a `struct arguments` of its own, with the fields they name. */
#define FLAG(field, name, help) {OPTION_FLAG, name, NULL, help, offsetof(struct arguments, field), 0, 0, NULL, NULL}
#define NUMBER(field, name, least, most, value, help) \
    {OPTION_NUMBER, name, value, help, offsetof(struct arguments, field), least, most, NULL, NULL}
#define REAL(field, name, least, most, value, help) \
    {OPTION_REAL, name, value, help, offsetof(struct arguments, field), least, most, NULL, NULL}
#define REAL_OR(field, name, alias, least, most, value, help) \
    {OPTION_REAL, name, value, help, offsetof(struct arguments, field), least, most, NULL, alias}
#define TEXT(field, name, value, help) {OPTION_TEXT, name, value, help, offsetof(struct arguments, field), 0, 0, NULL, NULL}
#define TEXTS(field, name, value, help) {OPTION_TEXTS, name, value, help, offsetof(struct arguments, field), 0, 0, NULL, NULL}
#define PATH(field, name, value, help) {OPTION_FILE, name, value, help, offsetof(struct arguments, field), 0, 0, NULL, NULL}
#define RESULT(field, name, value, help) {OPTION_RESULT, name, value, help, offsetof(struct arguments, field), 0, 0, NULL, NULL}
#define CHOICE(field, name, choices, value, help) \
    {OPTION_CHOICE, name, value, help, offsetof(struct arguments, field), 0, 0, choices, NULL}
#define ISA(field, help) {OPTION_ISA, "--isa", "NAME", help, offsetof(struct arguments, field), 0, 0, NULL, NULL}
#define FORMAT(field, name, help) {OPTION_FORMAT, name, "FORMAT", help, offsetof(struct arguments, field), 0, 0, NULL, NULL}
#define FORMAT_OR_PROFILE(field, name, help) \
    {OPTION_FORMAT, name, "FORMAT", help, offsetof(struct arguments, field), 0, 0, "profile", NULL}
#define FORMATS(field, name, help) {OPTION_FORMATS, name, "LIST", help, offsetof(struct arguments, field), 0, 0, NULL, NULL}
#define REST(field, name, value, help) {OPTION_REST, name, value, help, offsetof(struct arguments, field), 0, 0, NULL, NULL}
#define LAST_OPTION {OPTION_END, NULL, NULL, NULL, 0, 0, 0, NULL, NULL}

/* A command. Its help is usage, text, options and examples, and fits a screen of 32 lines of 80 columns. */
struct command {
    const char *name;
    const char *summary;  /* a line of `aura --help` */
    const char *usage;    /* what follows the name, "FILE [OPTIONS]"; several lines are several ways to call it */
    const char *text;     /* what it does: lines of at most 80 columns, each with its line end */
    const char *operand;  /* what help calls an argument that is no option: "FILE", "PATTERN"; NULL: the command takes none */
    const char *operands; /* the words it may be, between blanks; NULL: anything */
    const struct option *options; /* may be NULL */
    const char *examples; /* lines that can be typed, each with its line end; "" */
    int (*run)(const struct command *self, int argc, char **argv); /* the arguments after the name; returns the exit code */
};

/* Fills in the struct from the arguments. An argument that is no option goes to *operand; where operand is NULL, it is an error.
 * `--name=value` is `--name value`, and everything after `--` is an operand. 0 when good; otherwise 2, with a message that begins
 * with the name of the command; where a name is nearly right, the message suggests the right one. */
int parse_options(const struct command *command, int argc, char **argv, void *into, const char **operand);

/* Prints "aura attend: ", the message and a line end to stderr. Returns 2, the exit code of bad usage. */
__attribute__((format(printf, 2, 3))) int usage_error(const struct command *command, const char *format, ...);
/* The same, but returns 1: the work could not be done. */
__attribute__((format(printf, 2, 3))) int failed(const struct command *command, const char *format, ...);

/* A format by its name, for options with a format as a part of their value. 0 when good; otherwise 2, with a message. */
int parse_format(const struct command *command, const char *option, const char *text, aura_format *format);

/* The mask for a context that behaves as on a machine whose best instruction set is `name`: "ref", "avx2", "avx512vnni" ...; NULL:
 * all. 0 when good; otherwise 2, with a message: no such name, or this machine lacks it. */
int parse_isa(const struct command *command, const char *name, uint32_t *mask);

/* Whether an argument is this option, by one of its names. */
int option_is(const struct option *option, const char *argument);

/* The i-th word that may be this option's value, or NULL; formats are the presets and then all pairs. word[64] may be written. */
const char *option_word(const struct option *option, size_t i, char word[64]);

/* Word number i of a text with blanks between words, in word[64]; NULL: the text has fewer words. */
const char *nth_word(const char *text, size_t i, char word[64]);

/* The best of a set of instruction sets, by name. */
const char *isa_name(uint32_t isas);

/* The number of processors that the tool may use; at least 1. */
uint32_t online_cpus(void);

#endif
