/* What is said of each case, and which kernels ran in it. */
#include <stdarg.h>
#include <string.h>

#include "check.cuh"
extern "C" {
#include "../../parts/cuda_kernels.h"
}

int failures, cases, as_json;
const char *part = "";

/* ---- kernels ---- */

/* What is known of one kernel of the list. */
struct kernel_record {
    int last_case; /* the last case that launched it; 0: none did */
    int passed, failed; /* cases that launched it */
};

static struct kernel_record *records()
{
    static std::vector<struct kernel_record> all(cuda_kernel_count);
    return all.data();
}

static std::string latest;

const std::string &last_kernel()
{
    return latest;
}

static void note_launch(const char *name)
{
    latest = name;
    for (size_t i = 0; i < cuda_kernel_count; i++)
        if (!strcmp(cuda_kernel_list[i], name)) {
            records()[i].last_case = cases;
            return;
        }
    report("FAIL", name, "was launched, and is not in the list of src/variants.h");
}

void watch_kernels()
{
    aura_cuda_tell_launch = note_launch;
}

/* The kernels of the case that is running: each with `before` and `after` it and commas between, or nothing. */
static std::string kernels_of_case(const char *before, const char *after)
{
    std::string text;
    for (size_t i = 0; i < cuda_kernel_count; i++)
        if (cases && records()[i].last_case == cases)
            text += (text.empty() ? "" : ", ") + std::string(before) + cuda_kernel_list[i] + after;
    return text;
}

static void count_case(bool passed)
{
    for (size_t i = 0; i < cuda_kernel_count; i++)
        if (cases && records()[i].last_case == cases)
            (passed ? records()[i].passed : records()[i].failed)++;
}

void print_kernels(bool all_parts)
{
    size_t ran = 0;
    for (size_t i = 0; i < cuda_kernel_count; i++) {
        const struct kernel_record &r = records()[i];
        const char *outcome = r.failed ? "FAIL" : r.passed ? "ok" : "skip";
        ran += r.passed || r.failed;
        if (as_json)
            printf("%s\n  {\"variant\": \"%s\", \"outcome\": \"%s\", \"cases\": %d}", i ? "," : "", cuda_kernel_list[i], outcome,
                   r.passed + r.failed);
        else if (all_parts && !r.passed && !r.failed)
            printf("never ran: %s\n", cuda_kernel_list[i]);
    }
    if (!as_json)
        printf("%zu of %zu kernels ran\n", ran, cuda_kernel_count);
}

/* ---- cases ---- */

static void print_object(const char *outcome, const char *name, const char *text)
{
    static int objects;
    printf("%s\n  {\"part\": \"%s\", \"outcome\": \"%s\", \"case\": ", objects++ ? "," : "", part, outcome);
    print_json_string(name);
    printf(", \"text\": ");
    print_json_string(text);
    printf(", \"kernels\": [%s]}", kernels_of_case("\"", "\"").c_str());
}

static void report_text(const char *outcome, const char *name, const char *text)
{
    const bool failed = !strcmp(outcome, "FAIL"), passed = !strcmp(outcome, "ok");
    const std::string kernels = kernels_of_case("", "");
    failures += failed;
    if (passed || failed)
        count_case(passed);
    if (as_json)
        print_object(outcome, name, text);
    else if (passed)
        printf("ok   %-58s %s%s%s\n", name, text, kernels.empty() ? "" : "  by ", kernels.c_str());
    else
        printf("%s %s: %s%s%s\n", outcome, name, text, kernels.empty() ? "" : "; by ", kernels.c_str());
    fflush(stdout);
}

void report(const char *outcome, const std::string &name, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    report_text(outcome, name.c_str(), text);
}

void complain(const struct scene &s, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    report_text("FAIL", s.name.c_str(), text);
}
