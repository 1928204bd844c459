/* Names of formats, both ways. */
#include <stdint.h>

#include "../../include/aura.h"
#include "../test.h"

static const struct {
    aura_kind kind;
    const char *name;
} kinds[12] = {{AURA_KIND_B2, "2"}, {AURA_KIND_B3, "3"},     {AURA_KIND_B4, "4"},     {AURA_KIND_B5, "5"},    {AURA_KIND_B6, "6"},
              {AURA_KIND_B8, "8"}, {AURA_KIND_F32, "f32"}, {AURA_KIND_F16, "f16"}, {AURA_KIND_BF16, "bf16"},
              {AURA_KIND_T2, "t2"}, {AURA_KIND_T3, "t3"}, {AURA_KIND_T4, "t4"}};

static void every_pair_has_a_name(void)
{
    for (int k = 0; k < 12; k++)
        for (int v = 0; v < 12; v++) {
            aura_format format = {kinds[k].kind, kinds[v].kind}, read = {(aura_kind)0, (aura_kind)0};
            char want[16], name[16];
            snprintf(want, sizeof want, "k%sv%s", kinds[k].name, kinds[v].name);
            EXPECT(!aura_format_name(format, name) && !strcmp(name, want), "%s", want);
            EXPECT(!aura_format_parse(want, &read) && read.k == format.k && read.v == format.v, "%s: %d %d", want,
                   (int)read.k, (int)read.v);
        }
}

static void presets_have_names(void)
{
    static const char *const presets[5][2] = {
        {"max", "k8v8"}, {"safe", "k6v6"}, {"quality", "k5v5"}, {"balanced", "k4v4"}, {"small", "k3v3"}};
    for (int i = 0; i < 5; i++) {
        aura_format format = {(aura_kind)0, (aura_kind)0};
        char name[16] = "";
        EXPECT(!aura_format_parse(presets[i][0], &format) && !aura_format_name(format, name) && !strcmp(name, presets[i][1]),
               "%s is %s", presets[i][0], name);
    }
}

static void bad_names(void)
{
    static const char *const bad[] = {"k9v4", "k4", "k4v4x", "",     NULL,    "kf16",  "k4v",  "K4V4",  "k1v4", "k4v9",
                                      "v4k4", "k4v4 ",
                                      " k4v4", "kv", "k44v4", "kf8v4", "max ", "Max", "ma", "maxk4v4", "k4v4v4", "k4k4",
                                      "k", "kt4", "kt5vt4", "kt1v4", "kbvb4", "ktv4", "kbf16"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        aura_format format = {AURA_KIND_B6, AURA_KIND_B5};
        EXPECT(aura_format_parse(bad[i], &format) == AURA_BAD_ARGUMENT, "\"%s\"", bad[i] ? bad[i] : "NULL");
        EXPECT(format.k == AURA_KIND_B6 && format.v == AURA_KIND_B5, "\"%s\" was written", bad[i] ? bad[i] : "NULL");
        EXPECT(strstr(aura_last_error(), bad[i] ? "kAvB" : "name is NULL"), "%s", aura_last_error());
    }
    EXPECT(strstr(aura_last_error(), "\"kbf16\"") && strstr(aura_last_error(), "small"), "%s", aura_last_error());
    EXPECT(aura_format_parse("k4v4", NULL) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "format is NULL"), "%s",
           aura_last_error());
}

static void bad_kinds(void)
{
    static const int bad[] = {0, 1, 15, 16, -1, 99};
    for (int i = 0; i < 6; i++) {
        aura_format format = {(aura_kind)bad[i], AURA_KIND_B4}, other = {AURA_KIND_F16, (aura_kind)bad[i]};
        char name[16] = "as it was";
        EXPECT(aura_format_name(format, name) == AURA_BAD_ARGUMENT && aura_format_name(other, name) == AURA_BAD_ARGUMENT,
               "kind %d", bad[i]);
        EXPECT(!strcmp(name, "as it was"), "kind %d was written as %s", bad[i], name);
    }
    aura_format good = {AURA_KIND_B4, AURA_KIND_B4};
    EXPECT(aura_format_name(good, NULL) == AURA_BAD_ARGUMENT, "NULL");
}

int main(void)
{
    RUN(every_pair_has_a_name);
    RUN(presets_have_names);
    RUN(bad_names);
    RUN(bad_kinds);
    return test_result();
}
