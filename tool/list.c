/* aura list: every kernel there is, and the one this machine uses. */
#include <stdio.h>
#include <string.h>

#include "../model/matmul.h"
#include "../src/dispatch.h"
#include "cuda_tool.h"
#include "tool.h"

/* Whether a context with these kernels calls v for its stage and shape. */
static int is_used(const struct aura_kernels *kernels, const struct aura_variant *v)
{
    return v->run && !memcmp((const char *)kernels + v->slot, &v->run, sizeof v->run);
}

/* Prints one kernel: a line, or an object of JSON. `before` separates the object from the one before it. */
static void print_kernel(const char *name, const char *isa, uint32_t isa_flag, int built, int used, int json, const char *before)
{
    int can = built && (isa_flag & aura_cpu_isas());
    const char *needs = "";
    for (size_t k = 0; k < aura_isa_count; k++)
        if (aura_isa_list[k].flag == isa_flag)
            needs = aura_isa_list[k].needs;
    used = used && can;
    if (json)
        printf("%s\n  {\"variant\": \"%s\", \"isa\": \"%s\", \"built\": %s, \"can_run\": %s, \"used\": %s, \"needs\": \"%s\"}",
               before, name, isa, built ? "true" : "false", can ? "true" : "false", used ? "true" : "false", needs);
    else
        printf("%c %-20s%s%s\n", used ? '*' : can ? '-' : ' ', name, can ? "" : " needs ", can ? "" : needs);
}

/* The products of weights of the models that `aura run` runs. */
static void list_matmuls(uint32_t isas, int json)
{
    char name[64];
    if (!json)
        printf("  products of a model's weights:\n");
    for (size_t i = 0; i < matmul_count; i++) {
        const struct matmul_kernels *m = &matmul_list[i];
#define PRINT(type, ...)                                              \
        snprintf(name, sizeof name, "matmul_" #type "_%s", m->isa);   \
        print_kernel(name, m->isa, m->isa_flag, m->type != NULL, m == matmul_kernels(isas), json, ",");
        WEIGHT_TYPES(PRINT, any) WEIGHT_FLOATS(PRINT, any)
#undef PRINT
    }
}

struct arguments {
    const char *isa;
    int json;
};

static const struct option options[] = {ISA(isa, "as if the machine had NAME and nothing else"), FLAG(json, "--json", "as JSON"),
                                        LAST_OPTION};

static int run_list(const struct command *self, int argc, char **argv)
{
    struct aura_kernels kernels;
    struct arguments arguments = {NULL, 0};
    uint32_t has = aura_cpu_isas(), isas = has;
    int status = parse_options(self, argc, argv, &arguments, NULL), json = arguments.json;
    if (status)
        return status;
    for (size_t k = 0; arguments.isa && k < aura_isa_count; k++)
        if (!strcmp(aura_isa_list[k].name, arguments.isa))
            isas = has & (aura_isa_list[k].flag | AURA_ISA_REF);
    aura_kernels_init(&kernels, isas);
    if (json)
        printf("[");
    else
        printf("%s\n  * used here   - can run here     needs ...: cannot\n", cpu_name());
    for (size_t i = 0; i < aura_variant_count; i++) {
        const struct aura_variant *v = &aura_variant_list[i];
        print_kernel(v->name, v->isa, v->isa_flag, v->run != NULL, is_used(&kernels, v), json, i ? "," : "");
    }
    list_matmuls(isas, json);
    if (json)
        printf("\n]\n");
    else
        cuda_list();
    return 0;
}

const struct command command_list = {"list", "every kernel, and which this machine uses", "[OPTIONS]",
                                     "Every kernel of the library by name: * is used on this machine, - could run.\n", NULL, NULL,
                                     options, "aura list --isa avx2 --json\n", run_list};
