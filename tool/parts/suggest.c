/* Finds the name that a user may have meant who mistyped it. */
#include "suggest.h"

#include <stdio.h>
#include <string.h>

enum { LONGEST = 40 };

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

unsigned edit_distance(const char *a, const char *b)
{
    unsigned row[3][LONGEST + 1]; /* of the current prefix of a, and of the two prefixes before it */
    size_t n = strlen(a), m = strlen(b);
    n = n > LONGEST ? LONGEST : n, m = m > LONGEST ? LONGEST : m;
    for (size_t j = 0; j <= m; j++)
        row[0][j] = row[1][j] = row[2][j] = (unsigned)j;
    for (size_t i = 1; i <= n; i++) {
        unsigned *now = row[i % 3], *before = row[(i + 2) % 3], *earlier = row[(i + 1) % 3];
        now[0] = (unsigned)i;
        for (size_t j = 1; j <= m; j++) {
            now[j] = least(least(before[j] + 1, now[j - 1] + 1), before[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = least(now[j], earlier[j - 2] + 1);
        }
    }
    return row[n % 3][m];
}

/* How far apart the differing letters are: with equal distances, k4v8 is nearer to k4v9 than k4v2 is. */
static unsigned letters_apart(const char *a, const char *b)
{
    unsigned sum = 0;
    for (; *a && *b; a++, b++)
        sum += (unsigned)(*a > *b ? *a - *b : *b - *a);
    return sum;
}

/* Whether a name is near enough: one mistake in a short word, one in every three letters of a long one; or its beginning. */
void consider(struct suggestion *s, const char *typed, const char *name)
{
    size_t letters = strlen(typed);
    unsigned limit = letters < 2 ? 0 : letters < 4 ? 1 : (unsigned)(letters / 3 + 1), distance = edit_distance(typed, name);
    unsigned apart = letters_apart(typed, name);
    if (distance > limit && letters >= 2 && !strncmp(typed, name, letters))
        distance = limit;
    if (distance <= limit && (!*s->name || distance < s->distance || (distance == s->distance && apart < s->apart))) {
        snprintf(s->name, sizeof s->name, "%s", name);
        s->distance = distance, s->apart = apart;
    }
}
