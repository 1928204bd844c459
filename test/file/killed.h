/* A process that is killed at a system call of its own. */
#ifndef AURA_TEST_KILLED_H
#define AURA_TEST_KILLED_H

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs body(user) in a child, and kills that when it has stopped `stops` times, where a call begins or ends. Returns 1 when it was,
 * 0 when it ended before that, and *status is then its exit status; -1 when nobody may watch a child here. stopped, unless it is
 * NULL, is called at every stop. */
static inline int killed_after(int stops, int (*body)(void *user), void *user, int *status, void (*stopped)(int stop, pid_t child))
{
    int how;
    pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
            _exit(99);
        raise(SIGSTOP);
        _exit(body(user));
    }
    if (child < 0 || waitpid(child, &how, 0) != child || !WIFSTOPPED(how))
        return -1;
    for (int i = 0; i < stops; i++) {
        if (ptrace(PTRACE_SYSCALL, child, NULL, NULL)) {
            kill(child, SIGKILL);
            waitpid(child, &how, 0);
            return -1;
        }
        if (waitpid(child, &how, 0) != child || !WIFSTOPPED(how))
            return *status = WIFEXITED(how) ? WEXITSTATUS(how) : -1, 0;
        if (stopped)
            stopped(i + 1, child);
    }
    kill(child, SIGKILL);
    waitpid(child, &how, 0);
    return 1;
}

#endif
