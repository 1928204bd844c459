/* Bits where they count: a format for each layer of a model, so that all together take a given number of bits per value.
 *
 * Each side of each layer is stored in few bits while all else is exact, and the divergence is measured (quality.h): what errors
 * there cost. How much less they cost in more bits is measured with the whole model in one format after the other. Then all sides
 * begin with the fewest bits, and the side whose next kind saves most for its bits gets it, as long as there are bits left. */
#ifndef AURA_ALLOCATE_H
#define AURA_ALLOCATE_H

#include "quality.h"

enum { ALLOCATE_LEAST_BITS = 2, ALLOCATE_MOST_BITS = 9 };

struct allocation {
    aura_format *formats; /* [layers], the caller's */
    double bits;          /* per value, of all layers: at most what was asked for */
    double kld;           /* the mean divergence, measured on the same positions */
    aura_format fewest;   /* the kinds with the fewest bits; their bits and divergence on all sides: */
    double fewest_bits, fewest_kld;
};

/* trellis: 1 for trellis codes where there are such of as many bits, 0 for none. options: the text, the profile and the chunks to
 * measure on; model_bytes ... row_arg are not used. 0 when good; otherwise 1, with a text: too few bits for any format, and as
 * quality_measure(). */
int allocate(const struct quality_options *options, double bits, int trellis, struct allocation *allocation,
             char error[LLM_ERROR_BYTES]);

#endif
