/* What somebody may have meant who mistyped a name. */
#ifndef AURA_SUGGEST_H
#define AURA_SUGGEST_H

/* Insertions, deletions, changes and swaps of neighbours that turn a into b; both are looked at up to 40 characters. */
unsigned edit_distance(const char *a, const char *b);

/* Keeps the nearest of the names it is shown. Begin with {0}; after all were shown, `name` is the nearest one, or "" where
 * none is near enough to have been meant. */
struct suggestion {
    char name[64];
    unsigned distance, apart;
};
void consider(struct suggestion *s, const char *typed, const char *name);

#endif
