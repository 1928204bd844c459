/* aura completion: prints a script with which a shell completes commands, options and values. It comes from the tables of the
 * commands. */
#include <stdio.h>
#include <string.h>

#include "tool.h"

static const char *long_name(const struct option *o)
{
    const char *comma = strstr(o->name, ", ");
    return comma ? comma + 2 : o->name;
}

static int is_path(const struct option *o)
{
    return o->kind == OPTION_FILE || o->kind == OPTION_RESULT || o->kind == OPTION_REST;
}

/* Prints a text between single quotes, with a backslash before each character of `special`. */
static void print_quoted(const char *text, const char *special)
{
    for (; *text; text++)
        if (*text == '\'')
            fputs("'\\''", stdout);
        else
            printf("%s%c", strchr(special, *text) ? "\\" : "", *text);
}

/* The words an option's value may be; returns how many. */
static size_t print_words(const struct option *o)
{
    char buffer[64];
    const char *word;
    size_t i = 0;
    for (; (word = option_word(o, i, buffer)); i++)
        printf("%s%s", i ? " " : "", word);
    return i;
}

static void print_operands(const struct command *c)
{
    if (c == &command_help)
        for (size_t i = 0; commands[i]; i++)
            printf(" %s", commands[i]->name);
    else if (c->operands)
        printf(" %s", c->operands);
}

/* Whether the operand is a file: it has no list of words, and is no pattern. */
static int takes_path(const struct command *c)
{
    return c->operand && !c->operands && c != &command_help;
}

/* ---- bash ---------------------------------------------------------------------------------------------------------- */

static void print_bash_command(const struct command *c)
{
    for (const struct option *o = c->options; o && o->kind != OPTION_END; o++) {
        if (!o->value)
            continue;
        printf("    '%s %s')", c->name, long_name(o));
        if (is_path(o)) {
            printf(" COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n");
            continue;
        }
        printf(" words='");
        print_words(o);
        printf("' ;;\n");
    }
    printf("    '%s '*) words='--help", c->name);
    for (const struct option *o = c->options; o && o->kind != OPTION_END; o++)
        printf(" %s", long_name(o));
    print_operands(c);
    printf("'%s ;;\n", takes_path(c) ? "; files=1" : "");
}

static void print_bash(void)
{
    printf("# Completion of aura for bash: `source <(aura completion bash)`.\n_aura() {\n"
           "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} words= files=\n"
           "    [ \"$COMP_CWORD\" != 1 ] || before=\n"
           "    case \"${COMP_WORDS[1]} $before\" in\n    \"$word \") words='--help --version");
    for (size_t i = 0; commands[i]; i++)
        printf(" %s", commands[i]->name);
    printf("' ;;\n");
    for (size_t i = 0; commands[i]; i++)
        print_bash_command(commands[i]);
    printf("    esac\n    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
           "    [ -z \"$files\" ] || COMPREPLY+=($(compgen -f -- \"$word\"))\n}\ncomplete -o filenames -F _aura aura\n");
}

/* ---- zsh ----------------------------------------------------------------------------------------------------------- */

static void print_zsh_command(const struct command *c)
{
    printf("    %s) _arguments '--help[show the options]'", c->name);
    for (const struct option *o = c->options; o && o->kind != OPTION_END; o++) {
        printf(" \\\n        '%s%s[", o->kind == OPTION_REST ? "*" : "", long_name(o));
        print_quoted(o->help, "[]:\\");
        printf("]");
        if (o->value) {
            printf(":%s:", o->value);
            if (is_path(o))
                printf("_files");
            else if (option_word(o, 0, (char[64]){0}))
                printf("("), print_words(o), printf(")");
        }
        printf("'");
    }
    if (c->operands || c == &command_help)
        printf(" \\\n        '1:%s:(", c->operand), print_operands(c), printf(")'");
    else if (takes_path(c))
        printf(" \\\n        '1:%s:_files'", c->operand);
    printf(" ;;\n");
}

static void print_zsh(void)
{
    printf("#compdef aura\n"
           "# Completion of aura for zsh: a file _aura in a directory of $fpath, or `source <(aura completion zsh)`.\n"
           "_aura() {\n    local -a commands\n    commands=(");
    for (size_t i = 0; commands[i]; i++) {
        printf("\n        '%s:", commands[i]->name);
        print_quoted(commands[i]->summary, "\\");
        printf("'");
    }
    printf(")\n    if (( CURRENT == 2 )); then\n        _describe command commands\n        return\n    fi\n"
           "    shift words\n    (( CURRENT-- ))\n    case $words[1] in\n");
    for (size_t i = 0; commands[i]; i++)
        print_zsh_command(commands[i]);
    printf("    esac\n}\nif [ \"$funcstack[1]\" = _aura ]; then\n    _aura \"$@\"\nelse\n    compdef _aura aura\nfi\n");
}

/* ---- fish ---------------------------------------------------------------------------------------------------------- */

static void print_fish_command(const struct command *c)
{
    for (const struct option *o = c->options; o && o->kind != OPTION_END; o++) {
        printf("complete -c aura -n '__fish_seen_subcommand_from %s'", c->name);
        if (strncmp(long_name(o), "--", 2))
            printf(" -s %s", long_name(o) + 1);
        else
            printf(" -l %s", long_name(o) + 2);
        if (o->name[1] != '-' && o->name[2] == ',')
            printf(" -s %c", o->name[1]);
        if (o->value && is_path(o))
            printf(" -r -F");
        else if (o->value)
            printf(" -x -a '"), print_words(o), printf("'");
        printf(" -d '");
        print_quoted(o->help, "\\");
        printf("'\n");
    }
    if (c->operands || c == &command_help)
        printf("complete -c aura -n '__fish_seen_subcommand_from %s' -a '", c->name), print_operands(c), printf("'\n");
    else if (takes_path(c))
        printf("complete -c aura -n '__fish_seen_subcommand_from %s' -F\n", c->name);
}

static void print_fish(void)
{
    printf("# Completion of aura for fish: `aura completion fish | source`.\ncomplete -c aura -f\n"
           "complete -c aura -l help -d 'show the options'\n");
    for (size_t i = 0; commands[i]; i++) {
        printf("complete -c aura -n __fish_use_subcommand -a %s -d '", commands[i]->name);
        print_quoted(commands[i]->summary, "\\");
        printf("'\n");
    }
    for (size_t i = 0; commands[i]; i++)
        print_fish_command(commands[i]);
}

static int run_completion(const struct command *self, int argc, char **argv)
{
    const char *shell = NULL;
    int status = parse_options(self, argc, argv, NULL, &shell);
    if (status)
        return status;
    if (!shell)
        return usage_error(self, "needs the name of a shell: bash, zsh or fish");
    (!strcmp(shell, "bash") ? print_bash : !strcmp(shell, "zsh") ? print_zsh : print_fish)();
    return 0;
}

const struct command command_completion = {
    "completion", "print the completion of a shell", "bash|zsh|fish",
    "Prints what makes a shell complete commands, options and formats: for a session\n"
    "as below; `cmake --install` puts it where the shells look.\n",
    "SHELL", "bash zsh fish", NULL,
    "source <(aura completion bash)\nsource <(aura completion zsh)\naura completion fish | source\n", run_completion};
