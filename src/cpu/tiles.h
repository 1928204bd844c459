/* The stages of a tile that multiply integers, stamped with the words that the including file has defined: what an
 * instruction set with a better dot product stamps again. Before it come tile.tmpl.h and either of sums.tmpl.h and
 * sums16.tmpl.h. */
#include "reference.tmpl.h"
#include "score.tmpl.h"
#include "value.tmpl.h"
