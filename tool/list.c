/* aura list: every kernel there is, and the one this machine uses. */
#include <stdio.h>
#include <string.h>

#include "../src/dispatch.h"
#include "cuda/cuda_tool.h"
#include "tool.h"

/* What a context with this mask would call for the slot of v. */
static int is_used(const struct aura_kernels *kernels, const struct aura_variant *v)
{
    return v->run && !memcmp((const char *)kernels + v->slot, &v->run, sizeof v->run);
}

int command_list(int argc, char **argv)
{
    struct aura_kernels kernels;
    uint32_t has = aura_cpu_isas(), isas = has;
    int json = 0;
    for (int i = 0; i < argc; i++) {
        if (!strcmp(argv[i], "--json")) {
            json = 1;
        } else if (!strcmp(argv[i], "--isa") && i + 1 < argc) {
            size_t k = 0;
            for (i++; k < aura_isa_count && strcmp(aura_isa_list[k].name, argv[i]); k++)
                continue;
            if (k == aura_isa_count)
                return fprintf(stderr, "aura list: unknown instruction set %s\n", argv[i]), 2;
            isas = has & (aura_isa_list[k].flag | AURA_ISA_REF);
        } else {
            return fprintf(stderr, "aura list: unknown argument %s\n", argv[i]), 2;
        }
    }
    aura_kernels_init(&kernels, isas);
    if (json)
        printf("[");
    else
        printf("%s\n  * used here   - can run here     needs ...: cannot\n", cpu_name());
    for (size_t i = 0; i < aura_variant_count; i++) {
        const struct aura_variant *v = &aura_variant_list[i];
        int can = v->run && (v->isa_flag & has), used = can && is_used(&kernels, v);
        const char *needs = "";
        for (size_t k = 0; k < aura_isa_count; k++)
            if (aura_isa_list[k].flag == v->isa_flag)
                needs = aura_isa_list[k].needs;
        if (json)
            printf("%s\n  {\"variant\": \"%s\", \"isa\": \"%s\", \"built\": %s, \"can_run\": %s, \"used\": %s, "
                   "\"needs\": \"%s\"}", i ? "," : "", v->name, v->isa, v->run ? "true" : "false", can ? "true" : "false",
                   used ? "true" : "false", needs);
        else
            printf("%c %-20s%s%s\n", used ? '*' : can ? '-' : ' ', v->name, can ? "" : " needs ", can ? "" : needs);
    }
    if (json)
        printf("\n]\n");
    else
        cuda_list();
    return 0;
}
