/* A command that writes a file is killed at every system call after it creates a file, a slow one at every third: its file is then
 * the old one or the new one, byte by byte, and the next run, over what the killed ones left, writes the new one. */
#define _GNU_SOURCE
#include "../file/killed.h"
#include "command.h"

static const char old[] = "what was there before";
static int first_stop; /* at which there is a file that was not there before */

static int body(void *user)
{
    const struct line *line = user;
    if (chdir(file_dir))
        return 97;
    child_files(&(struct how){.to = "/dev/null"}, __real_open("/dev/null", O_WRONLY));
    const int status = command_main(line->words);
    fflush(stdout);
    return status;
}

static void look(int stop, pid_t child)
{
    char name[64];
    snprintf(name, sizeof name, "out.tmp-%ld-0", (long)child);
    if (!first_stop && (!access(file_path(name), F_OK) || !access(file_path("base"), F_OK)))
        first_stop = stop;
}

static void remove_leftovers(void)
{
    char command[256];
    snprintf(command, sizeof command, "rm -f '%s'/out* '%s'/base", file_dir, file_dir);
    EXPECT(!system(command), "rm");
}

/* What one kill leaves: *is_new is whether that is the new file. */
static void expect_old_or_new(const struct line *line, int stop, struct bytes new, int *is_new)
{
    struct bytes got = read_file(file_path("out"));
    *is_new = same_bytes(got, new);
    EXPECT(*is_new || (got.size == sizeof old && !memcmp(got.data, old, sizeof old)),
           "%s, killed at stop %d: neither the old file nor the new one", line->words, stop);
    free(got.data);
}

/* The next run, over what is there. */
static void expect_again(const struct line *line, struct bytes out, struct bytes new)
{
    struct outcome o = run_line(line->words, &(struct how){0});
    EXPECT(o.status == 0 && same_bytes(o.out, out), "%s, after killed ones: status %d: %s", line->words, o.status, o.err.data);
    outcome_free(&o);
    if (line->writes) {
        struct bytes got = read_file(file_path("out"));
        EXPECT(same_bytes(got, new), "%s, after killed ones: not the new file", line->words);
        free(got.data);
    }
}

static void try_line(const struct line *line)
{
    struct outcome o = run_line(line->words, &(struct how){0});
    struct bytes new = {NULL, 0};
    int status = -1, stop, killed, is_new = 0, news = 0, olds = 0;
    EXPECT(o.status == 0, "%s: status %d: %s", line->words, o.status, o.err.data);
    if (line->writes)
        new = read_file(file_path("out"));
    remove_leftovers();
    first_stop = 0;
    killed = killed_after(1 << 30, body, (void *)(uintptr_t)line, &status, look);
    if (killed < 0)
        test_skip = "no process may watch its child here";
    EXPECT(test_skip || (first_stop && status == 0), "%s: status %d, no file is made", line->words, status);
    for (stop = first_stop, killed = 1; killed == 1 && !test_skip && test_bad_lines < 5; stop += line->slow ? 3 : 1) {
        unlink(file_path("base"));
        write_file(file_path("out"), old, sizeof old);
        killed = killed_after(stop, body, (void *)(uintptr_t)line, &status, NULL);
        if (line->writes)
            expect_old_or_new(line, stop, new, &is_new);
        else
            expect_again(line, o.out, new);
        news += is_new, olds += !is_new;
    }
    if (!test_skip)
        expect_again(line, o.out, new);
    printf("  %s: %d stops, the old file %d times, the new one %d times\n", line->words, olds + news, olds, news);
    EXPECT(test_skip || !line->writes || (olds > 5 && news > 1), "%s: it was not killed on both sides of the change", line->words);
    remove_leftovers();
    free(new.data);
    outcome_free(&o);
}

static void a_killed_command_leaves_the_old_file_or_the_new_one(void)
{
    for (size_t i = 0; i < LINES && !test_skip && test_bad_lines < 5; i++)
        if ((lines[i].writes || strstr(lines[i].words, "--base")) && strstr(lines[i].words, "--threads 1"))
            try_line(&lines[i]);
}

int __wrap_main(int argc, char **argv)
{
    (void)argc, (void)argv;
    if (!commands_begin())
        return 125;
    RUN(a_killed_command_leaves_the_old_file_or_the_new_one);
    commands_end();
    return test_result();
}
