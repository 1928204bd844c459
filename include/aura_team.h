/* aura on the threads of an engine: for programs whose own n threads all enter an operation at once, as those of ggml, of an
 * OpenMP region or of a thread pool do. Thread 0 leads: it calls the library. The others serve: they help with what it calls.
 *
 *     aura_team_create(NULL, 16, &team);
 *     options.executor = aura_team_executor(team);           // then aura_ctx_create(&options, &ctx)
 *     ...
 *     void operation(int thread, int threads)                // runs on all threads
 *     {
 *         if (thread > 0) {
 *             aura_team_serve(team, thread);
 *             return;
 *         }
 *         aura_team_lead(team, threads);
 *         aura_append(cache, ...);
 *         aura_attend(cache, ...);
 *         aura_team_end(team);
 *     }
 *
 * Thread 0 waits for nobody: what threads that come late, or not at all, would have done, the others do. Results are the same
 * with any number of them. Nothing is allocated after aura_team_create(). A thread that waits looks for 50 us, then sleeps until
 * it is needed.
 */
#ifndef AURA_TEAM_H
#define AURA_TEAM_H

#include "aura.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct aura_team aura_team;

/* Makes a team of at most `threads` threads, 1 to 1024, without starting any. allocator NULL: the C library's. The caller owns
 * *team, which must live longer than the contexts that have its executor.
 * Fails: AURA_BAD_ARGUMENT (threads, half an allocator), AURA_OUT_OF_MEMORY. */
AURA_API aura_status aura_team_create(const aura_allocator *allocator, uint32_t threads, aura_team **team);

/* Frees a team; NULL is allowed. No thread may be in one of its calls. Never fails. */
AURA_API void aura_team_destroy(aura_team *team);

/* For aura_ctx_options. Several contexts may have it. On a thread that does not lead, calls of such a context use that thread
 * alone. NULL gives an executor that is none. Never fails. */
AURA_API aura_executor aura_team_executor(aura_team *team);

/* Until aura_team_end(), calls of this thread on such a context are spread over threads 0 ... threads - 1: over those that come.
 * `threads` may be another number each time; with 1 the call does nothing that takes time.
 * Fails, and then changes nothing: AURA_BAD_ARGUMENT (more threads than the team has, or 0; somebody leads already, be it this
 * very thread). */
AURA_API aura_status aura_team_lead(aura_team *team, uint32_t threads);

/* Lets the threads go that serve. An engine that gives up before it leads calls aura_team_lead() and this, so that nobody
 * waits for it. Fails: AURA_BAD_ARGUMENT (this thread does not lead). */
AURA_API aura_status aura_team_end(aura_team *team);

/* Thread `thread` helps with one lead and returns when that has ended, or at once where it came too late for it. It may come
 * before the lead begins. Each thread below the `threads` of a lead calls this once for that lead: the n-th call is for
 * the n-th lead that had as many threads. One that has left a lead out counts as late from then on: it helps with what it finds
 * under way, and waits for nothing.
 * Fails, at once: AURA_BAD_ARGUMENT (thread 0, or one that the team does not have; the thread that leads; this number serves
 * already). */
AURA_API aura_status aura_team_serve(aura_team *team, uint32_t thread);

#ifdef __cplusplus
}
#endif
#endif
