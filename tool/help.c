/* aura --help, aura COMMAND --help, aura help, and aura man: all of it printed from the tables of the commands. */
#include <stdio.h>
#include <string.h>

#include "../src/variants.h"
#include "parts/terminal.h"
#include "tool.h"

const char exit_codes[] = "exit codes: 0 good; 1 a check failed or the work could not be done; 2 bad usage\n";

static const char what_it_is[] = "aura holds an LLM's key/value cache in 2 to 8 bits and attends straight from it.\n";

void print_tool_help(FILE *to)
{
    const char *bold = colour(to, BOLD), *plain = colour(to, PLAIN);
    fprintf(to, "%s\nusage: %saura COMMAND%s [OPTIONS]\n\n", what_it_is, bold, plain);
    for (size_t i = 0; commands[i]; i++)
        fprintf(to, "  %s%-11s%s %s\n", bold, commands[i]->name, plain, commands[i]->summary);
    fprintf(to, "\n`aura COMMAND --help` has the options of one; `man aura` has all.\n%s", exit_codes);
}

/* `usage` has a line for each way to call the command. */
static void print_usage(const struct command *command, FILE *to)
{
    const char *line = command->usage, *head = "usage:";
    do {
        size_t n = strcspn(line, "\n");
        fprintf(to, "%s %saura %s%s%s%.*s\n", head, colour(to, BOLD), command->name, colour(to, PLAIN), n ? " " : "", (int)n,
                line);
        line += n + (line[n] == '\n');
        head = "      ";
    } while (*line);
}

static void print_option(const struct option *o, int width, FILE *to)
{
    char left[64];
    snprintf(left, sizeof left, "%s%s%s", o->name, o->value ? " " : "", o->value ? o->value : "");
    fprintf(to, "  %s%-*s%s  %s\n", colour(to, BOLD), width, left, colour(to, PLAIN), o->help);
}

void print_command_help(const struct command *command, FILE *to)
{
    int width = 0;
    print_usage(command, to);
    fprintf(to, "\n%s", command->text);
    for (const struct option *o = command->options; o && o->kind != OPTION_END; o++) {
        int n = (int)(strlen(o->name) + (o->value ? strlen(o->value) + 1 : 0));
        width = n > width ? n : width;
    }
    if (width)
        fputc('\n', to);
    for (const struct option *o = command->options; o && o->kind != OPTION_END; o++)
        print_option(o, width, to);
    if (*command->examples)
        fprintf(to, "\n%s", command->examples);
}

static int run_help(const struct command *self, int argc, char **argv)
{
    const char *name = NULL;
    int status = parse_options(self, argc, argv, NULL, &name);
    if (status || !name)
        return status ? status : (print_tool_help(stdout), 0);
    const struct command *command = find_command(name);
    return command ? (print_command_help(command, stdout), 0) : unknown_command(name);
}

const struct command command_help = {"help", "explain a command", "[COMMAND]", "The commands, or the options of one, as "
    "`aura COMMAND --help`.\n", "COMMAND", NULL, NULL, "", run_help};

/* ---- the manual page ----------------------------------------------------------------------------------------------- */

/* Prints a text with roff's special characters escaped: \ everywhere, a - that is a minus, . and ' at the beginning of a line. */
static void print_roff(const char *text)
{
    int begin = 1;
    for (; *text; text++) {
        if (begin && (*text == '.' || *text == '\''))
            fputs("\\&", stdout);
        fputs(*text == '\\' ? "\\e" : *text == '-' ? "\\-" : (char[2]){*text, 0}, stdout);
        begin = *text == '\n';
    }
}

static void print_man_option(const struct option *o)
{
    printf(".TP\n\\fB");
    print_roff(o->name);
    printf("\\fR");
    if (o->value) {
        printf(" \\fI");
        print_roff(o->value);
        printf("\\fR");
    }
    printf("\n");
    print_roff(o->help);
    if (o->kind == OPTION_NUMBER)
        printf("; a number from %.0f to %.0f", o->least, o->most);
    else if (o->kind == OPTION_REAL)
        printf("; a number from %g to %g", o->least, o->most);
    if (o->alias) {
        printf(". Another name of it is \\fB");
        print_roff(o->alias);
        printf("\\fR");
    }
    printf(".\n");
}

static void print_man_command(const struct command *command)
{
    printf(".SS aura ");
    print_roff(command->name);
    printf("\n.nf\n");
    for (const char *line = command->usage, *end; line; line = *end ? end + 1 : NULL) {
        end = line + strcspn(line, "\n");
        char usage[200];
        snprintf(usage, sizeof usage, "%.*s", (int)(end - line), line);
        printf("\\fBaura %s\\fR ", command->name);
        print_roff(usage);
        printf("\n");
    }
    printf(".fi\n.PP\n");
    print_roff(command->text);
    for (const struct option *o = command->options; o && o->kind != OPTION_END; o++)
        print_man_option(o);
    if (*command->examples) {
        printf(".PP\n.nf\n");
        print_roff(command->examples);
        printf(".fi\n");
    }
}

static const char man_tail[] =
    ".SH FORMATS\n"
    "A format is written k\\fIA\\fRv\\fIB\\fR: \\fIA\\fR bits for a number of a key, \\fIB\\fR for one of a value, of "
    AURA_BITS(AURA_KIND_COMMA) "or\n"
    "t2, t3 and t4 for trellis codes of so many bits, whose errors are smaller, or\n"
    "f16, bf16 and f32 for plain numbers. Five have names: max (k8v8), safe (k6v6), quality (k5v5), balanced (k4v4)\n"
    "and small (k3v3).\n"
    ".SH EXIT STATUS\n"
    ".TP\n0\nGood.\n"
    ".TP\n1\nA check failed, or the work could not be done: a file that cannot be read, memory that is not there.\n"
    ".TP\n2\nBad usage: an unknown command, option, format or value. The message says what would be right.\n"
    ".TP\n130\n\\fBaura run\\fR was interrupted; what was written by then is good.\n"
    ".SH ENVIRONMENT\n"
    ".TP\n\\fBNO_COLOR\\fR\n"
    "Where this is set and not empty, nothing is coloured. Without it there are colours on a terminal only.\n"
    ".SH OUTPUT\n"
    "Results go to standard output, progress and messages to standard error. With \\fB\\-\\-json\\fR a command prints one JSON\n"
    "value on standard output and nothing else.\n"
    ".SH SEE ALSO\n"
    ".BR libaura (3)\n";

static int run_man(const struct command *self, int argc, char **argv)
{
    int status = parse_options(self, argc, argv, NULL, NULL);
    if (status)
        return status;
    printf(".\\\" Made by `aura man`; the options are those of the tables in tool/.\n"
           ".TH AURA 1 2026-11-16 \"aura %s\" \"User Commands\"\n"
           ".SH NAME\naura \\- a key/value cache of 2 to 8 bits, shown, checked and timed\n"
           ".SH SYNOPSIS\n.B aura\n.I COMMAND\n.RI [ OPTIONS ]\n.SH DESCRIPTION\n", aura_version());
    print_roff(what_it_is);
    printf("\\fBaura COMMAND \\-\\-help\\fR prints what stands here about one command.\n.SH COMMANDS\n");
    for (size_t i = 0; commands[i]; i++)
        print_man_command(commands[i]);
    fputs(man_tail, stdout);
    return 0;
}

const struct command command_man = {"man", "print the manual page", "", "Prints doc/aura.1, for `man -l`.\n", NULL, NULL,
    NULL,
                                    "aura man | man -l -\n", run_man};
