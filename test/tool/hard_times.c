/* The tool in hard times: a full disk, files 0 to 2 that are closed, numbers that are none, a clock that stands still, and things
 * in place of files. Every command ends with status 1 or 2 and a message, or with all of its output; JSON is JSON. */
#define _GNU_SOURCE
#include "command.h"

static const char old[] = "what was there before";

static void put_old(void)
{
    unlink(file_path("base"));
    write_file(file_path("out"), old, sizeof old);
}

static int out_is_old(void)
{
    struct bytes got = read_file(file_path("out"));
    const int same = got.size == sizeof old && !memcmp(got.data, old, sizeof old);
    free(got.data);
    return same;
}

static void expect_refused(const char *words, const struct how *how, const char *why)
{
    put_old();
    struct outcome o = run_line(words, how);
    EXPECT((o.status == 1 || o.status == 2) && has_message(&o), "%s: %s: status %d: %.300s", words, why, o.status, o.err.data);
    EXPECT(out_is_old() && !leftovers(), "%s: %s: it changed a file", words, why);
    outcome_free(&o);
}

/* ---- full ------------------------------------------------------------------------------------------------------------------ */

/* What is printed cannot be written. What a command saves before that is whole. */
static void standard_output_is_full(void)
{
    for (size_t i = 0; i < LINES; i++) {
        put_old();
        struct outcome o = run_line(lines[i].words, &(struct how){.to = "/dev/full"});
        EXPECT(o.status == 1 && strstr((char *)o.err.data, "could not be written"), "%s: status %d: %.300s", lines[i].words,
               o.status, o.err.data);
        EXPECT(!leftovers(), "%s: it left a file behind", lines[i].words);
        outcome_free(&o);
    }
}

/* A file may not grow beyond so many bytes: none, one, half of it, all but one. */
static void a_file_is_full(void)
{
    for (size_t i = 0; i < LINES; i++) {
        if (!lines[i].writes)
            continue;
        struct outcome o = run_line(lines[i].words, &(struct how){0});
        struct bytes whole = read_file(file_path("out"));
        EXPECT(o.status == 0, "%s: status %d", lines[i].words, o.status);
        const long most[] = {1, 100, (long)whole.size / 2, (long)whole.size - 1};
        for (int k = 0; k < 4; k++)
            expect_refused(lines[i].words, &(struct how){.to = "/dev/null", .most_bytes = most[k]}, "a full disk");
        free(whole.data);
        outcome_free(&o);
    }
}

/* The file of --base that could not be written to its end does not stand in the way of the next run. */
static void a_base_is_full(void)
{
    static const char words[] = "eval model.gguf --text text.txt --ctx 16 --chunks 2 --cache k4v4 --threads 1 --json --base base";
    for (long most = 1; most < 20000; most = most < 80 ? most + 7 : most * 3) {
        put_old();
        struct outcome o = run_line(words, &(struct how){.to = "/dev/null", .most_bytes = most});
        EXPECT(o.status == 1 && has_message(&o), "%ld bytes: status %d: %.300s", most, o.status, o.err.data);
        outcome_free(&o);
        o = run_line(words, &(struct how){0});
        EXPECT(o.status == 0, "after %ld bytes: status %d: %.300s", most, o.status, o.err.data);
        outcome_free(&o);
    }
}

/* ---- closed ---------------------------------------------------------------------------------------------------------------- */

/* Nothing that is printed ends in a file of the user's. Without standard output it is an error. */
static void standard_files_are_closed(void)
{
    for (size_t i = 0; i < LINES; i++) {
        put_old();
        struct outcome whole = run_line(lines[i].words, &(struct how){0});
        struct bytes want = read_file(file_path("out"));
        for (int closed = lines[i].slow ? 7 : 1; closed < 8; closed++) {
            put_old();
            struct outcome o = run_line(lines[i].words, &(struct how){.closed = closed});
            struct bytes got = read_file(file_path("out"));
            EXPECT(o.status == (closed & 2 ? 1 : whole.status), "%s: without files %d: status %d", lines[i].words, closed,
                   o.status);
            EXPECT(same_bytes(got, want) || out_is_old(), "%s: without files %d: it wrote something else", lines[i].words, closed);
            EXPECT(closed & 2 || same_bytes(o.out, whole.out), "%s: without files %d: it printed something else", lines[i].words,
                   closed);
            free(got.data);
            outcome_free(&o);
        }
        free(want.data);
        outcome_free(&whole);
    }
}

/* ---- JSON -------------------------------------------------------------------------------------------------------------------- */

/* NULL: a text that is one JSON value, as far as brackets, strings, numbers and words go; otherwise what is wrong. */
static const char *json_fault(const char *at)
{
    int depth = 0;
    for (; *at; at++) {
        if (*at == '"') {
            for (at++; *at && *at != '"'; at++)
                at += *at == '\\' && at[1];
            if (!*at)
                return "a string without an end";
        } else if (*at == '{' || *at == '[') {
            depth++;
        } else if (*at == '}' || *at == ']') {
            if (--depth < 0)
                return "a bracket too many";
        } else if (*at == '-' || (*at >= '0' && *at <= '9')) {
            char *end;
            strtod(at, &end);
            if (at[*at == '-'] < '0' || at[*at == '-'] > '9')
                return "a number that is none";
            at = end - 1;
        } else if (*at >= 'a' && *at <= 'z') {
            size_t n = strspn(at, "abcdefghijklmnopqrstuvwxyz");
            if (strncmp(at, "true", n) && strncmp(at, "false", n) && strncmp(at, "null", n))
                return "a word that is none of JSON's";
            at += n - 1;
        }
    }
    return depth ? "a bracket without an end" : NULL;
}

/* Between two looks at the clock no time has passed. No rate is infinite, and what has no number is null. Those that repeat
 * something until time has passed are left out: it would take them long. */
static void a_clock_that_stands_still(void)
{
    coarse_clock = 1;
    for (size_t i = 0; i < LINES; i++) {
        if (lines[i].slow || !strncmp(lines[i].words, "bench --k", 9) || !strncmp(lines[i].words, "bench --prefill", 15))
            continue;
        put_old();
        struct outcome o = run_line(lines[i].words, &(struct how){0});
        o.out.data[o.out.size] = 0;
        EXPECT(o.status == (strstr(lines[i].words, "--union") ? 1 : 0), "%s: status %d: %.300s", lines[i].words, o.status,
               o.err.data);
        if (strstr(lines[i].words, "--json"))
            EXPECT(!json_fault((char *)o.out.data), "%s: %s", lines[i].words, json_fault((char *)o.out.data));
        EXPECT(!strstr((char *)o.out.data, " inf") && !strstr((char *)o.out.data, "nan"), "%s: %.300s", lines[i].words, o.out.data);
        outcome_free(&o);
    }
    coarse_clock = 0;
}

/* Times that vary make ratios that say little: the page of a bench says so, and only then. */
static void a_clock_that_varies(void)
{
    for (uneven_clock = 0; uneven_clock < 2; uneven_clock++) {
        put_old();
        struct outcome o = run_line("bench --dim 64 --heads 2 --kv-heads 1 --tokens 64 --threads 1 --html out", &(struct how){0});
        struct bytes page = read_file(file_path("out"));
        page.data[page.size - 1] = 0;
        EXPECT(o.status == 0 && strstr((char *)page.data, "<table>"), "status %d: %.300s", o.status, o.err.data);
        EXPECT(!strstr((char *)page.data, "<p class=\"warning\">Warning: in 1 of 1 rows") == !uneven_clock, "a warning");
        EXPECT(!strstr((char *)page.data, " ± ") == !uneven_clock, "marks");
        free(page.data);
        outcome_free(&o);
    }
    uneven_clock = 0;
}

/* ---- numbers that are none ------------------------------------------------------------------------------------------------- */

/* The model with a weight that is none, so many weights before its end. */
static void damage_model(const char *name, size_t before)
{
    struct bytes b = read_file(file_path("model.gguf"));
    const float nan = NAN;
    memcpy(b.data + b.size - 4 * before, &nan, 4);
    write_file(file_path(name), b.data, b.size);
    free(b.data);
}

static void numbers_that_are_none(void)
{
    static const char *const with_recording[] = {
        "attend %s --threads 1 --json --out out", "attend %s --threads 1 --cache f16 --out out",
        "demo %s --quick --threads 1 --json --html out", "demo %s --quick --threads 1 --html out"};
    static const char *const with_model[] = {
        "run %s -p ab -n 3 --threads 1 --save out", "run %s -p ab -n 3 --json --threads 1 --save out",
        "eval %s --text text.txt --ctx 16 --threads 1 --cache k4v4 --html out",
        "eval %s --text text.txt --ctx 16 --threads 1 --cache k4v4 --json --html out",
        "demo recording.safetensors --quick --threads 1 --model %s --prompt ab --json --html out",
        "bench --model %s --depth 0 --threads 1 --json"};
    char words[300];
    write_recording(file_path("nan"), NAN), write_recording(file_path("inf"), INFINITY), write_recording(file_path("huge"), 1e38f);
    damage_model("damaged", 1), damage_model("halfway", 145000);
    for (size_t i = 0; i < sizeof with_recording / sizeof *with_recording; i++)
        for (int k = 0; k < 3; k++) {
            static const char *const names[] = {"nan", "inf", "huge"};
            snprintf(words, sizeof words, with_recording[i], names[k]);
            expect_refused(words, &(struct how){0}, "its numbers are none");
        }
    for (size_t i = 0; i < sizeof with_model / sizeof *with_model; i++) {
        snprintf(words, sizeof words, with_model[i], "damaged");
        expect_refused(words, &(struct how){0}, "its weights are none");
    }
    /* Keys do not read the last weights. */
    expect_refused("calibrate halfway --text text.txt --ctx 64 --threads 1 -o out", &(struct how){0}, "its weights are none");
}

/* ---- things in place of files ---------------------------------------------------------------------------------------------- */

static void things_in_place_of_files(void)
{
    static const char *const names[] = {"empty", "data", "pipe", "/dev/null", "no/such/file", "stdin_is_closed", "text.txt"};
    static const char *const patterns[] = {
        "run %s -p ab --save out", "run model.gguf --load %s -n 1 --threads 1 --save out",
        "run model.gguf -p ab --profile %s --threads 1 --save out", "tokens %s -p ab", "attend %s --out out",
        "demo %s --quick --html out", "demo recording.safetensors --quick --threads 1 --model %s --html out",
        "eval %s --text text.txt --html out", "eval model.gguf --text text.txt --ctx 16 --threads 1 --profile %s --html out",
        "calibrate %s --text text.txt -o out", "bench --model %s", "inspect %s", "inspect %s --json", "check --union %s"};
    char words[300];
    write_file(file_path("empty"), "", 0);
    EXPECT(!mkfifo(file_path("pipe"), 0666), "%s", strerror(errno));
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
            if (strstr(patterns[i], "--union") && strcmp(names[k], "data") && strcmp(names[k], "no/such/file"))
                continue; /* any text may be a result in which nothing ran */
            snprintf(words, sizeof words, patterns[i], names[k]);
            expect_refused(words, &(struct how){0}, names[k]);
        }
    expect_refused("tokens model.gguf --text data", &(struct how){0}, "a folder");
    expect_refused("tokens model.gguf --text -", &(struct how){.closed = 1}, "no standard input");
    expect_refused("eval model.gguf --text empty --ctx 16 --threads 1 --html out", &(struct how){0}, "an empty text");
    expect_refused("calibrate model.gguf --text empty --threads 1 -o out", &(struct how){0}, "an empty text");
    expect_refused("calibrate model.gguf --text data --threads 1 -o out", &(struct how){0}, "a folder");
}

/* A device is written to, and a pipe; neither is replaced. A folder is refused. */
static void things_in_place_of_results(void)
{
    static const char *const patterns[] = {"attend recording.safetensors --threads 1 --out %s",
                                           "eval model.gguf --text text.txt --ctx 16 --chunks 1 --cache k4v4 --threads 1 --html %s",
                                           "bench --dim 64 --heads 1 --kv-heads 1 --tokens 32 --threads 1 --html %s"};
    char words[300];
    struct stat about;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        snprintf(words, sizeof words, patterns[i], "data");
        expect_refused(words, &(struct how){0}, "a folder for its result");
        snprintf(words, sizeof words, patterns[i], "/dev/full");
        expect_refused(words, &(struct how){0}, "a full device");
        EXPECT(!stat("/dev/full", &about) && S_ISCHR(about.st_mode), "%s: /dev/full is something else now", words);
        snprintf(words, sizeof words, patterns[i], "link");
        write_file(file_path("target"), old, sizeof old);
        unlink(file_path("link"));
        EXPECT(!symlink("target", file_path("link")), "%s", strerror(errno));
        struct outcome o = run_line(words, &(struct how){0});
        struct bytes got = read_file(file_path("target"));
        EXPECT(o.status == 0 && got.size > sizeof old, "%s: status %d: %.300s", words, o.status, o.err.data);
        EXPECT(!lstat(file_path("link"), &about) && S_ISLNK(about.st_mode), "%s: the link is something else now", words);
        free(got.data);
        outcome_free(&o);
    }
}

/* ---- files that must stay ---------------------------------------------------------------------------------------------------- */

static void expect_stays(const char *words, const char *name, int status)
{
    struct bytes before = read_file(file_path(name));
    struct outcome o = run_line(words, &(struct how){0});
    struct bytes after = read_file(file_path(name));
    EXPECT(o.status == status && (!status || has_message(&o)), "%s: status %d: %.300s", words, o.status, o.err.data);
    EXPECT(same_bytes(before, after) && !leftovers(), "%s: it changed %s", words, name);
    free(before.data), free(after.data);
    outcome_free(&o);
}

/* A result is refused where it would replace what the command reads. A conversation may be saved where it was. */
static void a_result_replaces_no_input(void)
{
    EXPECT(!symlink("model.gguf", file_path("linked")), "%s", strerror(errno));
    expect_stays("run model.gguf -p ab -n 1 --threads 1 --save model.gguf", "model.gguf", 2);
    expect_stays("run model.gguf -p ab -n 1 --threads 1 --save linked", "model.gguf", 2);
    expect_stays("run model.gguf -p ab -n 1 --threads 1 --profile profile --save ./profile", "profile", 2);
    expect_stays("calibrate model.gguf --text text.txt --ctx 64 --threads 1 -o text.txt", "text.txt", 2);
    expect_stays("calibrate linked --text text.txt --ctx 64 --threads 1 -o model.gguf", "model.gguf", 2);
    expect_stays("eval model.gguf --text text.txt --ctx 16 --chunks 1 --cache k4v4 --threads 1 --html text.txt", "text.txt", 2);
    expect_stays("attend recording.safetensors --threads 1 --out recording.safetensors", "recording.safetensors", 2);
    expect_stays("demo recording.safetensors --quick --threads 1 --html recording.safetensors", "recording.safetensors", 2);
    expect_stays("demo recording.safetensors --quick --threads 1 --model model.gguf --html model.gguf", "model.gguf", 2);
    expect_made("run model.gguf --chat --load talk -p ab -n 2 --threads 1 --save talk", NULL);
}

/* Version 1 of a conversation had its tokens beside it. Another file of that name is the user's. */
static void a_save_leaves_the_file_beside_it(void)
{
    write_file(file_path("out.tokens"), old, sizeof old);
    expect_stays("run model.gguf -p ab -n 1 --threads 1 --save out", "out.tokens", 0);
    write_file(file_path("out.tokens"), "aura conversation 1\nmodel 0\n", 28);
    expect_made("run model.gguf -p ab -n 1 --threads 1 --save out", NULL);
    EXPECT(access(file_path("out.tokens"), F_OK), "a list that is out of date is still there");
}

int __wrap_main(int argc, char **argv)
{
    (void)argc, (void)argv;
    if (!commands_begin())
        return 125;
    RUN(standard_output_is_full);
    RUN(a_file_is_full);
    RUN(a_base_is_full);
    RUN(standard_files_are_closed);
    RUN(a_clock_that_stands_still);
    RUN(a_clock_that_varies);
    RUN(numbers_that_are_none);
    RUN(things_in_place_of_files);
    RUN(things_in_place_of_results);
    RUN(a_result_replaces_no_input);
    RUN(a_save_leaves_the_file_beside_it);
    commands_end();
    return test_result();
}
