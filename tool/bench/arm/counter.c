/* A plugin for qemu's emulation of a process (7.2, interface 1): prints at the end how many instructions ran. Debian packages no
 * header for plugins; what of the interface is used is declared here. */
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct qemu_plugin_tb;
typedef uint64_t plugin_id;
enum { ADD_U64 = 0 };

void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id id, void (*translated)(plugin_id id, struct qemu_plugin_tb *block));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *block, int operation, void *counter, uint64_t number);
void qemu_plugin_register_atexit_cb(plugin_id id, void (*ended)(plugin_id id, void *user), void *user);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);

int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv);
int qemu_plugin_version = 1;

static uint64_t instructions;

/* A block of instructions without a branch runs from its beginning to its end. */
static void count_block(plugin_id id, struct qemu_plugin_tb *block)
{
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_inline(block, ADD_U64, &instructions, qemu_plugin_tb_n_insns(block));
}

static void print_count(plugin_id id, void *user)
{
    (void)id, (void)user;
    fprintf(stderr, "%" PRIu64 "\n", instructions);
}

int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
    (void)info, (void)argc, (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, count_block);
    qemu_plugin_register_atexit_cb(id, print_count, NULL);
    return 0;
}
