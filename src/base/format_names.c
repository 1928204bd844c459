/* The names of formats. */
#include "exact.h"

#include <stdio.h>
#include <string.h>

#include "context.h"
#include "format_names.h"
#include "../variants.h"

/* The public header and the list must number the kinds alike. */
_Static_assert((int)AURA_KIND_F32 == (int)AURA_ROW_F32 && (int)AURA_KIND_F16 == (int)AURA_ROW_F16 &&
                   (int)AURA_KIND_BF16 == (int)AURA_ROW_BF16 && (int)AURA_KIND_T2 == (int)AURA_TRELLIS_2 &&
                   (int)AURA_KIND_T3 == (int)AURA_TRELLIS_3 && (int)AURA_KIND_T4 == (int)AURA_TRELLIS_4, "variants.h");

/* No name is the beginning of another, so reading one needs no look ahead. */
#define NAME_OF_BITS(shape, kind, ...) {(aura_kind)kind, #kind},
#define NAME_OF_SHAPE(shape, kind, ...) {(aura_kind)kind, #shape},
const struct aura_kind_name aura_kind_names[] = {AURA_BITS(NAME_OF_BITS) AURA_TRELLIS(NAME_OF_SHAPE) AURA_PLAIN(NAME_OF_SHAPE)};
#undef NAME_OF_BITS
#undef NAME_OF_SHAPE
const size_t aura_kind_count = sizeof aura_kind_names / sizeof *aura_kind_names;

const struct aura_preset aura_presets[] = {{"max", {AURA_KIND_B8, AURA_KIND_B8}},
                                           {"safe", {AURA_KIND_B6, AURA_KIND_B6}},
                                           {"quality", {AURA_KIND_B5, AURA_KIND_B5}},
                                           {"balanced", {AURA_KIND_B4, AURA_KIND_B4}},
                                           {"small", {AURA_KIND_B3, AURA_KIND_B3}}};
const size_t aura_preset_count = sizeof aura_presets / sizeof *aura_presets;

/* Reads `letter` and a kind; returns what follows, or NULL. */
static const char *read_side(const char *text, char letter, aura_kind *kind)
{
    for (size_t i = 0; text && *text == letter && i < aura_kind_count; i++) {
        size_t n = strlen(aura_kind_names[i].name);
        if (!strncmp(text + 1, aura_kind_names[i].name, n)) {
            *kind = aura_kind_names[i].kind;
            return text + 1 + n;
        }
    }
    return NULL;
}

aura_status aura_format_parse(const char *name, aura_format *format)
{
    aura_format read = {AURA_KIND_B4, AURA_KIND_B4};
    if (!name || !format)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_format_parse: %s is NULL", name ? "format" : "name");
    for (size_t i = 0; i < aura_preset_count; i++)
        if (!strcmp(name, aura_presets[i].name)) {
            *format = aura_presets[i].format;
            return AURA_OK;
        }
    const char *end = read_side(read_side(name, 'k', &read.k), 'v', &read.v);
    if (!end || *end)
        return aura_fail(NULL, AURA_BAD_ARGUMENT,
                         "aura_format_parse: \"%.32s\" is no format: kAvB with A and B of "
                         AURA_BITS(AURA_KIND_COMMA) AURA_TRELLIS(AURA_SHAPE_COMMA)
                         "f16, bf16, f32, or max, safe, quality, balanced, small", name);
    *format = read;
    return AURA_OK;
}

static const char *kind_name(aura_kind kind)
{
    for (size_t i = 0; i < aura_kind_count; i++)
        if (aura_kind_names[i].kind == kind)
            return aura_kind_names[i].name;
    return NULL;
}

aura_status aura_format_name(aura_format format, char name[16])
{
    const char *k = kind_name(format.k), *v = kind_name(format.v);
    if (!name || !k || !v)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_format_name: %s: k %d, v %d",
                         name ? "no such kind" : "name is NULL", (int)format.k, (int)format.v);
    snprintf(name, 16, "k%sv%s", k, v);
    return AURA_OK;
}
