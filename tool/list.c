/* aura list: every kernel there is, and the one this machine uses. */
#include <stdio.h>
#include <string.h>

#include "../model/matmul.h"
#include "../src/dispatch.h"
#include "cuda_tool.h"
#include "parts/cuda_kernels.h"
#include "tool.h"

/* Whether a context with these kernels calls v for its stage and shape. */
static int is_used(const struct aura_kernels *kernels, const struct aura_variant *v)
{
    return v->run && !memcmp((const char *)kernels + v->slot, &v->run, sizeof v->run);
}

/* One kernel, and what it needs. */
struct line {
    const char *name, *isa, *needs;
    int built, can, used;
};

static void line_fields(struct table *t, const void *line)
{
    const struct line *l = line;
    table_text(t, "variant", l->name), table_text(t, "isa", l->isa);
    table_number(t, "built", "%s", l->built ? "true" : "false");
    table_number(t, "can_run", "%s", l->can ? "true" : "false");
    table_number(t, "used", "%s", l->used ? "true" : "false");
    table_text(t, "needs", l->needs);
}

static void origin(struct table *t, const void *nothing)
{
    (void)nothing;
    table_machine(t);
}

/* table: for programs; NULL: for people. */
static void print_line(const struct line *l, struct table *table)
{
    if (table)
        table_row(table, line_fields, l);
    else
        printf("%c %-20s%s%s\n", l->used ? '*' : l->can ? '-' : ' ', l->name, l->can ? "" : " needs ", l->can ? "" : l->needs);
}

/* Prints one kernel of a CPU. */
static void print_kernel(const char *name, const char *isa, uint32_t isa_flag, int built, int used, struct table *table)
{
    struct line l = {name, isa, "", built, built && (isa_flag & aura_cpu_isas()), 0};
    for (size_t k = 0; k < aura_isa_count; k++)
        if (aura_isa_list[k].flag == isa_flag)
            l.needs = aura_isa_list[k].needs;
    l.used = used && l.can;
    print_line(&l, table);
}

/* The products of weights of the models that `aura run` runs. */
static void list_matmuls(uint32_t isas, struct table *table)
{
    char name[64];
    if (!table)
        printf("  products of a model's weights:\n");
    for (size_t i = 0; i < matmul_count; i++) {
        const struct matmul_kernels *m = &matmul_list[i];
#define PRINT(type, ...)                                              \
        snprintf(name, sizeof name, "matmul_" #type "_%s", m->isa);   \
        print_kernel(name, m->isa, m->isa_flag, m->type != NULL, m == matmul_kernels(isas), table);
        WEIGHT_TYPES(PRINT, any) WEIGHT_FLOATS(PRINT, any)
#undef PRINT
    }
}

/* The kernels of the GPU. The format of a cache and the call decide which of them runs, so that none is marked as used. */
static void list_cuda(struct table *table)
{
    char text[512];
    const int can = cuda_has_device(text, sizeof text);
#ifdef AURA_HAVE_CUDA
    struct line l = {NULL, "cuda", "an NVIDIA GPU", 1, can, 0};
#else
    struct line l = {NULL, "cuda", "an NVIDIA GPU and a build with CUDA", 0, can, 0};
#endif
    if (!table)
        printf("  CUDA: %s%s\n", can ? "" : "skipped: ", text);
    for (size_t i = 0; i < cuda_kernel_count; i++) {
        l.name = cuda_kernel_list[i];
        print_line(&l, table);
    }
}

struct arguments {
    const char *isa;
    int json, csv;
};

static const struct option options[] = {ISA(isa, "as if the machine had NAME and nothing else"), FLAG(json, "--json", "as JSON"),
                                        FLAG(csv, "--csv", "as CSV"), LAST_OPTION};

static int run_list(const struct command *self, int argc, char **argv)
{
    struct aura_kernels kernels;
    struct arguments arguments = {NULL, 0, 0};
    struct table memory, *table = NULL;
    uint32_t has = aura_cpu_isas(), isas = has;
    int status = parse_options(self, argc, argv, &arguments, NULL);
    if (status)
        return status;
    for (size_t k = 0; arguments.isa && k < aura_isa_count; k++)
        if (!strcmp(aura_isa_list[k].name, arguments.isa))
            isas = has & (aura_isa_list[k].flag | AURA_ISA_REF);
    aura_kernels_init(&kernels, isas);
    if (arguments.json || arguments.csv)
        table_begin(table = &memory, arguments.csv && !arguments.json, "variants", origin, NULL);
    else
        printf("%s\n  * used here   - can run here     needs ...: cannot\n", cpu_name());
    for (size_t i = 0; i < aura_variant_count; i++) {
        const struct aura_variant *v = &aura_variant_list[i];
        print_kernel(v->name, v->isa, v->isa_flag, v->run != NULL, is_used(&kernels, v), table);
    }
    list_matmuls(isas, table);
    list_cuda(table);
    if (table)
        table_end(table, NULL, NULL);
    return 0;
}

const struct command command_list = {"list", "every kernel, and which this machine uses", "[OPTIONS]",
                                     "Every kernel of the library by name: * is used on this machine, - could run.\n"
                                     "Those of the GPU end in _cuda; the format of a cache and the call decide\n"
                                     "which of them runs.\n", NULL, NULL,
                                     options, "aura list --isa avx2 --json\n", run_list};
