/* The whole test framework. A test is a function. A failed EXPECT prints its place and makes the test fail. The exit code of the
 * program is the number of failed tests, at most 125. Each test prints one line: "ok NAME", "FAIL NAME" or "skip NAME: why". */
#ifndef AURA_TEST_H
#define AURA_TEST_H

#include <stdio.h>
#include <string.h>

static int test_failures;      /* failed tests so far */
static int test_bad_lines;     /* failed EXPECTs of the running test */
static const char *test_skip;  /* a test that cannot run here sets it to the reason */
static const char *test_suffix; /* printed behind the name of a test that runs several times: with what it runs */

#define EXPECT(condition, ...)                                                                                         \
    do {                                                                                                               \
        if (!(condition) && ++test_bad_lines <= 10) {                                                                  \
            printf("  %s:%d: expected %s; ", __FILE__, __LINE__, #condition);                                          \
            printf(__VA_ARGS__);                                                                                       \
            printf("\n");                                                                                              \
        }                                                                                                              \
    } while (0)

static inline void test_run(const char *name, void (*test)(void))
{
    test_bad_lines = 0;
    test_skip = NULL;
    test();
    const char *space = test_suffix ? " " : "", *suffix = test_suffix ? test_suffix : "";
    if (test_bad_lines)
        printf("FAIL %s%s%s\n", name, space, suffix), test_failures++;
    else if (test_skip)
        printf("skip %s%s%s: %s\n", name, space, suffix, test_skip);
    else
        printf("ok %s%s%s\n", name, space, suffix);
    fflush(stdout);
}

#define RUN(test) test_run(#test, test)

static inline int test_result(void)
{
    return test_failures > 125 ? 125 : test_failures;
}

#endif
