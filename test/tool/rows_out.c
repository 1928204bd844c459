/* Rows of a bench for programs: what is printed, as JSON and as CSV. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

#include "../../include/aura.h"
#include "../../tool/parts/rows_out.h"
#include "../test.h"

static char printed[4096];

/* What two rows look like. */
static void print_two(int as)
{
    struct rows_out out = {as, 0};
    FILE *file = tmpfile();
    fflush(stdout);
    const int before = dup(1);
    if (!file || before < 0 || dup2(fileno(file), 1) < 0) {
        test_skip = "no temporary file";
        return;
    }
    begin_rows(&out, "a device, of tests");
    print_row(&out, "{\"cache\": \"%s\", \"lengths\": [%u, %u], \"us\": %.2f}", "k4v4", 3, 70, 1.5);
    end_rows(&out);
    fflush(stdout);
    dup2(before, 1);
    close(before);
    rewind(file);
    printed[fread(printed, 1, sizeof printed - 1, file)] = 0;
    fclose(file);
}

static void objects_of_json(void)
{
    char want[512];
    snprintf(want, sizeof want,
             "[\n  {\"version\": \"%s\", \"device\": \"a device, of tests\", \"runs\": 41},\n"
             "  {\"cache\": \"k4v4\", \"lengths\": [3, 70], \"us\": 1.50}\n]\n", aura_version());
    print_two(ROWS_JSON);
    EXPECT(test_skip || !strcmp(printed, want), "%s", printed);
}

static void lines_of_csv(void)
{
    char want[512];
    snprintf(want, sizeof want,
             "row,field,value\n0,version,%s\n0,device,\"a device, of tests\"\n0,runs,41\n"
             "1,cache,k4v4\n1,lengths,\"[3, 70]\"\n1,us,1.50\n", aura_version());
    print_two(ROWS_CSV);
    EXPECT(test_skip || !strcmp(printed, want), "%s", printed);
}

int main(void)
{
    RUN(objects_of_json);
    RUN(lines_of_csv);
    return test_result();
}
