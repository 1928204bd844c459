/* Finds the name that a user may have meant who mistyped it. */
#ifndef AURA_SUGGEST_H
#define AURA_SUGGEST_H

/* How many insertions, deletions, changes and swaps of neighbours turn a into b. Only the first 40 characters count. */
unsigned edit_distance(const char *a, const char *b);

/* Remembers the nearest of all names that it is shown. It begins as {0}; at the end `name` is the nearest one, or "" where none is
 * near enough. */
struct suggestion {
    char name[64];
    unsigned distance, apart;
};
void consider(struct suggestion *s, const char *typed, const char *name);

#endif
