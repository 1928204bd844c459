/* Every command of the tool, with each call that may fail failing in turn: allocations, files that cannot be opened or mapped,
 * threads that are not to be had. It ends with status 1 and a message, or with all of its output; the file that it writes is the
 * old one or the new one, and nothing is beside it. */
#define _GNU_SOURCE
#include "command.h"

static const char old[] = "what was there before";

static void put_old(void)
{
    write_file(file_path("out"), old, sizeof old);
    unlink(file_path("base"));
}

static int is_old(struct bytes b)
{
    return b.size == sizeof old && !memcmp(b.data, old, sizeof old);
}

/* What a run of a line must be like where nothing failed. */
struct whole {
    const struct line *line;
    int status;
    long calls;
    struct bytes out, file;
};

static void expect_sound(const struct whole *w, const struct outcome *o, long fail_at, int and_after)
{
    struct bytes file = read_file(file_path("out"));
    const int is_new = w->line->writes && same_bytes(file, w->file);
    const int is_whole = o->status == w->status && same_bytes(o->out, w->out) && (is_new || !w->line->writes);
    char which[700];
    snprintf(which, sizeof which, "%s: call %ld%s fails", w->line->words, fail_at, and_after ? ", and all after it," : "");
    EXPECT(o->status != CRASHED, "%s: it crashes: %s", which, o->err.data);
    EXPECT(is_whole || o->status == 1, "%s: status %d, and not all of its output: %.200s", which, o->status, o->err.data);
    EXPECT(is_whole || has_message(o), "%s: no message: %.200s", which, o->err.data);
    EXPECT(is_new || is_old(file), "%s: its file is neither the old one nor the new one", which);
    free(file.data);
}

/* In how many ways a call is tried: alone (1), and with all calls after it (2). All calls of a short run are; of a long one the
 * first of the same callers, and the last alone; of a slow one the first alone. */
static int ways(const struct line *line, const uint64_t *stack, long calls_made, long i)
{
    const int quick = getenv("AURA_QUICK") != NULL, once = quick || line->slow;
    int before = 0, after = 0;
    for (long k = 1; k <= calls_made && (calls_made > 60 || quick); k++)
        if (k != i && stack[k] == stack[i])
            before += k < i, after += k > i;
    if (quick && line->slow && i % 8)
        return 0;
    return !before ? once ? 1 : 2 : !after && !once;
}

/* The file of --base grows as the run goes on: the next run takes it as it is, and prints the same. */
static void expect_goes_on(const struct whole *w)
{
    struct outcome o = run_line(w->line->words, &(struct how){0});
    EXPECT(o.status == 0 && same_bytes(o.out, w->out), "%s: not after a failed one: %s", w->line->words, o.err.data);
    outcome_free(&o);
}

static void try_line(const struct line *line)
{
    put_old();
    struct outcome o = run_line(line->words, &(struct how){.look = 1});
    struct whole w = {line, o.status, o.calls, o.out, read_file(file_path("out"))};
    long tried = 0, errors = 0;
    EXPECT(o.status != CRASHED && o.calls < MOST_CALLS, "%s: status %d, %ld calls: %s", line->words, o.status, o.calls, o.err.data);
    free(o.err.data);
    uint64_t *stack = malloc(sizeof calls->stack);
    memcpy(stack, calls->stack, sizeof calls->stack);
    for (long i = 1; i <= w.calls && test_bad_lines < 10; i++)
        for (int and_after = 0; and_after < ways(line, stack, w.calls, i); and_after++) {
            put_old();
            o = run_line(line->words, &(struct how){.fail_at = i, .and_after = and_after});
            EXPECT(o.failed, "%s: there was no call %ld", line->words, i);
            expect_sound(&w, &o, i, and_after);
            tried++, errors += o.status != w.status;
            if (strstr(line->words, "--base"))
                expect_goes_on(&w);
            outcome_free(&o);
        }
    EXPECT(!leftovers(), "%s: it left a file behind", line->words);
    printf("  %s: %ld calls, %ld failures tried, %ld were errors\n", line->words, w.calls, tried, errors);
    free(stack), free(w.out.data), free(w.file.data);
}

static void every_call_that_fails_is_an_error_or_does_not_matter(void)
{
    for (size_t i = 0; i < LINES && test_bad_lines < 10; i++)
        try_line(&lines[i]);
}

/* A command that is added to the tool belongs into the list. */
static void every_command_is_tried(void)
{
    for (size_t i = 0; commands[i]; i++) {
        int found = 0;
        for (size_t k = 0; k < LINES; k++)
            found |= !strncmp(lines[k].words, commands[i]->name, strlen(commands[i]->name));
        EXPECT(found, "aura %s is in no line of command.h", commands[i]->name);
    }
}

int __wrap_main(int argc, char **argv)
{
    if (!commands_begin())
        return 125;
    if (argc > 1)
        return try_line(&(struct line){argv[1], argc > 2, 0}), commands_end(), test_bad_lines != 0;
    RUN(every_command_is_tried);
    RUN(every_call_that_fails_is_an_error_or_does_not_matter);
    commands_end();
    return test_result();
}
