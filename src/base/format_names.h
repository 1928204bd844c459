/* The names of formats, for those who list them: the tool's help, suggestions and demo. */
#ifndef AURA_FORMAT_NAMES_H
#define AURA_FORMAT_NAMES_H

#include "../../include/aura.h"

struct aura_preset {
    const char *name;
    aura_format format;
};
extern const struct aura_preset aura_presets[]; /* most bits first */
extern const size_t aura_preset_count;

struct aura_kind_name {
    aura_kind kind;
    const char *name;
};
extern const struct aura_kind_name aura_kind_names[];
extern const size_t aura_kind_count;

#endif
