/* Where a file is saved: a link stays a link and its target is replaced; a pipe, a device or a directory stays what it is.
 * Permissions stay too. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/sysmacros.h>

#include "snapshot_tools.h"

static aura_ctx *ctx;
static aura_profile *profile;

static mode_t mode_of(const char *path)
{
    struct stat about;
    return lstat(path, &about) ? 0 : about.st_mode & S_IFMT;
}

static void expect_saved(const char *path, const char *what)
{
    aura_profile *got = NULL;
    EXPECT(!aura_profile_save(profile, path), "%s: %s", what, aura_last_error());
    EXPECT(!aura_profile_load(ctx, path, &got), "%s: %s", what, aura_last_error());
    aura_profile_destroy(got);
}

static void expect_refused_place(const char *path, const char *what)
{
    const mode_t before = mode_of(path);
    EXPECT(before, "%s is not there", what);
    EXPECT(aura_profile_save(profile, path) == AURA_IO, "%s: %s", what, aura_last_error());
    EXPECT(mode_of(path) == before, "%s is something else now", what);
}

static void a_link_stays_and_its_target_is_replaced(void)
{
    char folder[256], target[300], link[256], chain[256];
    snprintf(folder, sizeof folder, "%s", file_path("folder"));
    snprintf(target, sizeof target, "%s/target", folder);
    snprintf(link, sizeof link, "%s", file_path("link"));
    snprintf(chain, sizeof chain, "%s", file_path("chain"));
    EXPECT(!mkdir(folder, 0777) && !symlink("folder/target", link) && !symlink(link, chain), "%s", strerror(errno));
    expect_saved(link, "a link whose target is not there yet");
    EXPECT(mode_of(target) == S_IFREG, "the target is not there");
    write_file(target, "old", 3);
    expect_saved(chain, "a link to a link");
    EXPECT(mode_of(link) == S_IFLNK && mode_of(chain) == S_IFLNK && mode_of(target) == S_IFREG, "a link was replaced");
    struct bytes now = read_file(target);
    EXPECT(now.size > 3, "the target was not replaced");
    free(now.data);
    unlink(target), unlink(link), unlink(chain), rmdir(folder);
}

static void links_that_lead_nowhere_are_refused(void)
{
    char one[256], two[256];
    snprintf(one, sizeof one, "%s", file_path("one"));
    snprintf(two, sizeof two, "%s", file_path("two"));
    EXPECT(!symlink("two", one) && !symlink("one", two), "%s", strerror(errno));
    expect_refused_place(one, "a ring of links");
    unlink(one), unlink(two);
    EXPECT(!symlink("no/such/folder/file", one), "%s", strerror(errno));
    expect_refused_place(one, "a link into a folder that is not there");
    unlink(one);
}

static void what_is_no_file_is_refused(void)
{
    char path[256], link[256];
    snprintf(path, sizeof path, "%s", file_path("place"));
    snprintf(link, sizeof link, "%s", file_path("link"));
    EXPECT(!symlink("place", link), "%s", strerror(errno));
    EXPECT(!mkfifo(path, 0666), "%s", strerror(errno));
    expect_refused_place(path, "a pipe");
    expect_refused_place(link, "a link to a pipe");
    EXPECT(mode_of(path) == S_IFIFO, "the pipe behind the link is something else now");
    unlink(path);
    EXPECT(!mkdir(path, 0777), "%s", strerror(errno));
    expect_refused_place(path, "a directory");
    rmdir(path), unlink(link);
}

static void a_device_is_refused(void)
{
    char path[256];
    snprintf(path, sizeof path, "%s", file_path("device"));
    if (mknod(path, S_IFCHR | 0666, makedev(1, 3))) {
        test_skip = "only root may make a device, and not everywhere";
        return;
    }
    expect_refused_place(path, "a device like /dev/null");
    unlink(path);
}

static void permissions_stay(void)
{
    struct stat about;
    char path[256];
    snprintf(path, sizeof path, "%s", file_path("private"));
    const mode_t mask = umask(022);
    expect_saved(path, "a new file");
    EXPECT(!stat(path, &about) && (about.st_mode & 0777) == 0644, "a new file has mode %o", about.st_mode & 0777);
    static const mode_t modes[] = {0600, 0640, 0666, 0755};
    for (int i = 0; i < 4; i++) {
        EXPECT(!chmod(path, modes[i]), "%s", strerror(errno));
        expect_saved(path, "a file with a mode");
        EXPECT(!stat(path, &about) && (about.st_mode & 0777) == modes[i], "mode %o became %o", modes[i], about.st_mode & 0777);
    }
    umask(mask);
    unlink(path);
}

/* In a child that is not root, since root may write everything. */
static void a_protected_file_is_refused(void)
{
    char path[256];
    int status = -1;
    snprintf(path, sizeof path, "%s", file_path("protected"));
    write_file(path, "old", 3);
    EXPECT(!chmod(path, 0444) && !chmod(file_dir, 0777), "%s", strerror(errno));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        if (!geteuid() && setuid(65534))
            _exit(97);
        _exit(aura_profile_save(profile, path) == AURA_IO && strstr(aura_last_error(), "denied") ? 0 : 98);
    }
    EXPECT(child > 0 && waitpid(child, &status, 0) == child && status == 0, "status 0x%x", status);
    struct bytes now = read_file(path);
    EXPECT(now.size == 3 && !memcmp(now.data, "old", 3), "it was replaced");
    free(now.data);
    unlink(path);
}

int main(void)
{
    float balance[64];
    for (int i = 0; i < 64; i++)
        balance[i] = 1;
    if (!files_begin() || aura_ctx_create(NULL, &ctx) || aura_profile_create(ctx, 1, &profile) ||
        aura_profile_set(profile, 0, 1, 64, balance))
        return 125;
    RUN(a_link_stays_and_its_target_is_replaced);
    RUN(links_that_lead_nowhere_are_refused);
    RUN(what_is_no_file_is_refused);
    RUN(a_device_is_refused);
    RUN(permissions_stay);
    RUN(a_protected_file_is_refused);
    aura_profile_destroy(profile);
    aura_ctx_destroy(ctx);
    files_end();
    return test_result();
}
