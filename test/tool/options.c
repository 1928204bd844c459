/* Reading arguments by a table, and suggestions for mistyped names. */
#include "../../tool/parts/options.h"
#include "../../tool/parts/suggest.h"
#include "../test.h"

struct arguments {
    int flag;
    uint32_t number;
    double real;
    const char *text, *file, *choice, *isa;
    aura_format format;
    struct option_rest rest;
};

static const struct option options[] = {FLAG(flag, "--flag", "a flag"),
                                        NUMBER(number, "-n, --number", 2, 4000000000, "N", "a number"),
                                        REAL(real, "--real", -1, 1.5, "X", "a real number"),
                                        TEXT(text, "-p, --text", "TEXT", "a text"),
                                        PATH(file, "--file", "FILE", "a file"),
                                        CHOICE(choice, "--choice", "one two three", "WORD", "a word"),
                                        ISA(isa, "an instruction set"),
                                        FORMAT(format, "--format", "a format"),
                                        REST(rest, "--rest", "FILE...", "the others"),
                                        LAST_OPTION};
static const struct command command = {"test", "", "", "", "FILE", NULL, options, "", NULL};
static const struct command words = {"test", "", "", "", "WORD", "here there", options, "", NULL};

static struct arguments got;
static const char *operand;

/* The arguments are between blanks. */
static int parse(const struct command *c, const char *line)
{
    static char text[256];
    char *argv[32];
    int argc = 0;
    snprintf(text, sizeof text, "%s", line);
    for (char *at = strtok(text, " "); at; at = strtok(NULL, " "))
        argv[argc++] = at;
    memset(&got, 0, sizeof got);
    operand = NULL;
    return parse_options(c, argc, argv, &got, &operand);
}

static void every_kind_is_read(void)
{
    EXPECT(!parse(&command, "--flag --number 12 --real -0.5 --text a --file b --choice two --isa ref --format k5v4 c"),
           "good");
    EXPECT(got.flag == 1 && got.number == 12 && got.real == -0.5, "%d %u %g", got.flag, got.number, got.real);
    EXPECT(!strcmp(got.text, "a") && !strcmp(got.file, "b") && !strcmp(got.choice, "two") && !strcmp(got.isa, "ref"), "texts");
    EXPECT(got.format.k == AURA_KIND_B5 && got.format.v == AURA_KIND_B4 && operand && !strcmp(operand, "c"),
           "format, operand");
    EXPECT(!parse(&command, "-n 4000000000 -p -x"), "letters; a value may begin with -");
    EXPECT(got.number == 4000000000u && !strcmp(got.text, "-x"), "%u %s", got.number, got.text);
    EXPECT(!parse(&command, "--number=7 --text=a=b --format=small"), "values after =");
    EXPECT(got.number == 7 && !strcmp(got.text, "a=b") && got.format.k == AURA_KIND_B3, "%u %s", got.number, got.text);
    EXPECT(!parse(&command, "-- --flag"), "after -- everything is an operand");
    EXPECT(!got.flag && operand && !strcmp(operand, "--flag"), "operand");
    EXPECT(!parse(&command, "-"), "a - alone is no option");
    EXPECT(!parse(&command, "--flag --rest a --flag b"), "the rest");
    EXPECT(got.rest.count == 3 && !strcmp(got.rest.list[1], "--flag"), "%d", got.rest.count);
    EXPECT(!parse(&words, "there") && !strcmp(operand, "there"), "an operand of a list");
}

static void what_is_wrong_is_refused(void)
{
    static const char *const bad[] = {"--number 1",
                                      "--number 4000000001",
                                      "--number 99999999999999999999",
                                      "--number 3x",
                                      "--number",
                                      "--number=",
                                      "--real 1.6",
                                      "--real x",
                                      "--real nan",
                                      "--real",
                                      "--flag=1",
                                      "--choice four",
                                      "--isa sse9",
                                      "--format k7v7",
                                      "--unknown",
                                      "-z",
                                      "a b",
                                      "--rest",
                                      "--text"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        EXPECT(parse(&command, bad[i]) == 2, "%s", bad[i]);
    EXPECT(parse(&words, "nowhere") == 2, "an operand that is not of the list");
}

static void distances(void)
{
    EXPECT(edit_distance("", "abc") == 3 && edit_distance("abc", "") == 3 && edit_distance("same", "same") == 0, "ends");
    EXPECT(edit_distance("kitten", "sitting") == 3, "%u", edit_distance("kitten", "sitting"));
    EXPECT(edit_distance("chekc", "check") == 1, "a swap is one: %u", edit_distance("chekc", "check"));
    EXPECT(edit_distance("ca", "abc") == 3, "letters are swapped once: %u", edit_distance("ca", "abc"));
    char endless[200];
    memset(endless, 'x', sizeof endless - 1);
    endless[sizeof endless - 1] = 0;
    EXPECT(edit_distance(endless, "x") == 39, "what is long is looked at up to 40 letters: %u", edit_distance(endless, "x"));
}

static const char *nearest(const char *typed)
{
    static struct suggestion s;
    static const char *const names[] = {"attend", "bench", "check", "k4v2", "k4v4", "k4v8", "completion"};
    memset(&s, 0, sizeof s);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        consider(&s, typed, names[i]);
    return s.name;
}

static void suggestions(void)
{
    static const char *const pairs[][2] = {
        {"atend", "attend"}, {"bnech", "bench"}, {"k4v9", "k4v8"}, {"k4v3", "k4v2"}, {"comp", "completion"},
        {"x", ""},           {"hello", ""},      {"", ""},         {"zz", ""}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        EXPECT(!strcmp(nearest(pairs[i][0]), pairs[i][1]), "%s: %s instead of %s", pairs[i][0], nearest(pairs[i][0]),
               pairs[i][1]);
}

int main(void)
{
    if (!freopen("/dev/null", "w", stderr)) /* test/run.sh checks the messages */
        return 1;
    RUN(every_kind_is_read);
    RUN(what_is_wrong_is_refused);
    RUN(distances);
    RUN(suggestions);
    return test_result();
}
