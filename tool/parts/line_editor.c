/* Lines from a terminal. libedit is loaded by name: building needs nothing of it, and a machine without it has plain lines. */
#define _GNU_SOURCE
#include "line_editor.h"

#include <dlfcn.h>
#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

/* What is used of libedit's interface; the numbers are part of its ABI. */
enum { EL_PROMPT = 0, EL_EDITOR = 2, EL_SIGNAL = 3, EL_HIST = 10, EL_GETCFN = 13, EL_PREP_TERM = 16 };
enum { H_SETSIZE = 1, H_ENTER = 10, H_SETUNIQUE = 20 };

struct history_event {
    int number;
    const char *text;
};

struct libedit {
    void *library;
    void *(*init)(const char *program, FILE *in, FILE *out, FILE *err);
    void (*end)(void *el);
    int (*set)(void *el, int what, ...);
    const char *(*gets)(void *el, int *count);
    void *(*history_init)(void);
    void (*history_end)(void *history);
    int (*history)(void *history, struct history_event *event, int what, ...);
};

enum { BYTES = 4096 };

struct line_editor {
    const char *prompt;
    struct libedit edit;
    void *el, *history; /* NULL: plain lines */
    unsigned char bytes[BYTES]; /* that were read, and nobody has taken */
    size_t at, count;
    int pasting, quoted; /* inside of a paste; its next character has been announced */
    int interrupted, over;
    sigset_t mask; /* of signals while it waits: at no other time does one come unnoticed */
};

static struct line_editor *current; /* libedit's functions know the handle alone */

/* ---- bytes of the terminal ----------------------------------------------------------------------------------------------- */

/* Makes sure of n bytes, as far as they come: the first may take as long as it likes, the others must follow at once. */
static int fill(struct line_editor *e, size_t n)
{
    enum { AT_ONCE = 50 }; /* milliseconds */
    if (e->at) { /* room at the end */
        memmove(e->bytes, e->bytes + e->at, e->count - e->at);
        e->count -= e->at, e->at = 0;
    }
    while (e->count < n) {
        struct pollfd wait = {0, POLLIN, 0};
        const int ready = ppoll(&wait, 1, e->count ? &(struct timespec){0, AT_ONCE * 1000000L} : NULL, &e->mask);
        const ssize_t got = ready > 0 ? read(0, e->bytes + e->count, BYTES - e->count) : ready;
        if (ready < 0)
            e->interrupted = 1;
        else if (ready && got <= 0)
            e->over = 1;
        if (got <= 0)
            return 0;
        e->count += (size_t)got;
    }
    return 1;
}

/* Whether these bytes come next; it takes them then. */
static int takes(struct line_editor *e, const char *bytes)
{
    for (size_t n = 1; bytes[n - 1]; n++)
        if ((e->at + n > e->count && !fill(e, n)) || e->bytes[e->at + n - 1] != (unsigned char)bytes[n - 1])
            return 0;
    e->at += strlen(bytes);
    return 1;
}

/* A character of UTF-8; a byte that begins none is U+FFFD. */
static wchar_t take_character(struct line_editor *e)
{
    const unsigned char first = e->bytes[e->at];
    const size_t n = first < 0x80 ? 1 : first >= 0xf0 && first < 0xf5 ? 4 : first >= 0xe0 ? 3 : first >= 0xc2 ? 2 : 0;
    if (!n || first >= 0xf5 || (e->at + n > e->count && !fill(e, n)))
        return e->at++, (wchar_t)0xfffd;
    wchar_t c = (wchar_t)(n == 1 ? first : first & (0x3f >> (n - 1)));
    for (size_t i = 1; i < n; i++) {
        if ((e->bytes[e->at + i] & 0xc0) != 0x80)
            return e->at++, (wchar_t)0xfffd;
        c = c << 6 | (wchar_t)(e->bytes[e->at + i] & 0x3f);
    }
    e->at += n;
    return c;
}

/* libedit asks for the next character. In a paste, which the terminal marks, control characters are text: libedit takes the one
 * after a Ctrl-V as such. Of these only line ends and tabs are text that somebody may want. */
static int next_character(void *el, wchar_t *c)
{
    struct line_editor *e = current;
    (void)el;
    for (;;) {
        if (e->at == e->count && !fill(e, 1))
            return e->over ? 0 : -1;
        if (!e->pasting && takes(e, "\033[200~")) {
            e->pasting = 1;
        } else if (e->pasting && takes(e, "\033[201~")) {
            e->pasting = 0;
        } else if (!e->pasting) {
            return *c = take_character(e), 1;
        } else if (e->bytes[e->at] >= 32 && e->bytes[e->at] != 127) {
            return *c = take_character(e), 1;
        } else if (!strchr("\r\n\t", e->bytes[e->at]) || !e->bytes[e->at]) {
            e->at++;
        } else if (!e->quoted) {
            return e->quoted = 1, *c = 'V' & 31, 1;
        } else {
            e->quoted = 0;
            const unsigned char byte = e->bytes[e->at++];
            return *c = byte == '\t' ? ' ' : '\n', 1;
        }
    }
}

static const char *prompt_of(void *el)
{
    (void)el;
    return current->prompt;
}

/* ---- opening and closing --------------------------------------------------------------------------------------------------- */

static int load(struct libedit *edit)
{
    static const char *const names[] = {"libedit.so.2", "libedit.so.0", "libedit.so", "libedit.3.dylib"};
    static const char *const symbols[] = {"el_init", "el_end", "el_set", "el_gets", "history_init", "history_end", "history"};
    void *found[sizeof symbols / sizeof *symbols];
    for (size_t i = 0; i < sizeof names / sizeof *names && !edit->library; i++)
        edit->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        if (!edit->library || !(found[i] = dlsym(edit->library, symbols[i])))
            return -1;
    memcpy(&edit->init, &found[0], sizeof found[0]), memcpy(&edit->end, &found[1], sizeof found[0]);
    memcpy(&edit->set, &found[2], sizeof found[0]), memcpy(&edit->gets, &found[3], sizeof found[0]);
    memcpy(&edit->history_init, &found[4], sizeof found[0]), memcpy(&edit->history_end, &found[5], sizeof found[0]);
    memcpy(&edit->history, &found[6], sizeof found[0]);
    return 0;
}

static void start_editing(struct line_editor *e)
{
    enum { REMEMBERED = 1000 };
    struct history_event event;
    const char *term = getenv("TERM");
    if (!term || !*term || !strcmp(term, "dumb") || load(&e->edit))
        return;
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8"))
        setlocale(LC_CTYPE, "C.UTF-8"); /* models write UTF-8, so it is what people type, too */
    e->history = e->edit.history_init();
    e->el = e->history ? e->edit.init("aura", stdin, stdout, stderr) : NULL;
    if (!e->el)
        return;
    e->edit.history(e->history, &event, H_SETSIZE, REMEMBERED);
    e->edit.history(e->history, &event, H_SETUNIQUE, 1);
    e->edit.set(e->el, EL_EDITOR, "emacs");
    e->edit.set(e->el, EL_SIGNAL, 0);
    e->edit.set(e->el, EL_HIST, e->edit.history, e->history);
    e->edit.set(e->el, EL_PROMPT, prompt_of);
    e->edit.set(e->el, EL_GETCFN, next_character);
}

struct line_editor *line_editor_open(const char *prompt)
{
    struct line_editor *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->prompt = prompt;
    current = e;
    start_editing(e);
    return e;
}

void line_editor_close(struct line_editor *e)
{
    if (!e)
        return;
    if (e->el)
        e->edit.end(e->el);
    if (e->history)
        e->edit.history_end(e->history);
    if (e->edit.library)
        dlclose(e->edit.library);
    free(e);
    current = NULL;
}

int line_editor_edits(const struct line_editor *e)
{
    return e->el != NULL;
}

/* ---- a line ---------------------------------------------------------------------------------------------------------------- */

static enum line_end plain_line(struct line_editor *e, char **line)
{
    size_t size = 0;
    printf("%s", e->prompt);
    fflush(stdout);
    for (;; size++) {
        if (size % BYTES == 0) {
            char *grown = realloc(*line, size + BYTES + 1);
            if (!grown)
                return free(*line), *line = NULL, LINE_NO_MEMORY;
            *line = grown;
        }
        if ((e->at == e->count && !fill(e, 1) && (e->interrupted || !size)) || e->interrupted)
            return free(*line), *line = NULL, e->interrupted ? LINE_INTERRUPTED : LINE_OVER;
        if (e->over || e->bytes[e->at] == '\n')
            break;
        (*line)[size] = (char)e->bytes[e->at++];
    }
    e->at += !e->over;
    (*line)[size] = 0;
    return LINE_GOOD;
}

/* The terminal marks what is pasted while a line is typed, and at no other time. */
static enum line_end edited_line(struct line_editor *e, char **line)
{
    struct history_event event;
    int count = 0;
    e->edit.set(e->el, EL_PREP_TERM, 1); /* before the prompt is there: libedit by itself would do it after */
    printf("\033[?2004h");
    fflush(stdout);
    const char *text = e->edit.gets(e->el, &count);
    printf("\033[?2004l");
    fflush(stdout);
    if (e->interrupted)
        return e->pasting = e->quoted = 0, LINE_INTERRUPTED;
    if (!text || count <= 0)
        return LINE_OVER;
    *line = strdup(text);
    if (!*line)
        return LINE_NO_MEMORY;
    const size_t size = strlen(*line);
    if (size && (*line)[size - 1] == '\n')
        (*line)[size - 1] = 0;
    if (**line)
        e->edit.history(e->history, &event, H_ENTER, *line);
    return LINE_GOOD;
}

enum line_end line_editor_read(struct line_editor *e, char **line)
{
    sigset_t interrupt;
    *line = NULL;
    e->interrupted = e->over = 0;
    sigemptyset(&interrupt), sigaddset(&interrupt, SIGINT);
    sigprocmask(SIG_BLOCK, &interrupt, &e->mask);
    const enum line_end end = e->el ? edited_line(e, line) : plain_line(e, line);
    sigprocmask(SIG_SETMASK, &e->mask, NULL);
    return end;
}
