/* Lines that somebody types at a terminal: with editing, history and pasted text of several lines where libedit is installed, which
 * is loaded when it is needed; otherwise plain ones. */
#ifndef AURA_LINE_EDITOR_H
#define AURA_LINE_EDITOR_H

struct line_editor;

/* prompt: what stands before a line; a string that lives as long. A dumb terminal has plain lines. NULL: no memory. There can be
 * one at a time. */
struct line_editor *line_editor_open(const char *prompt);
void line_editor_close(struct line_editor *editor); /* NULL is allowed */

enum line_end { LINE_GOOD, LINE_OVER, LINE_INTERRUPTED, LINE_NO_MEMORY };

/* Reads a line without its end; pasted text may have line ends in it. The caller frees *line. LINE_OVER: there are no more.
 * LINE_INTERRUPTED: Ctrl-C, or another signal that has a handler, came meanwhile. */
enum line_end line_editor_read(struct line_editor *editor, char **line);

/* Whether lines can be edited. */
int line_editor_edits(const struct line_editor *editor);

#endif
