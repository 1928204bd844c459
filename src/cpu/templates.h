/* Every stage, stamped with the words that the including file has defined. */
#include "rotate.tmpl.h"
#include "rotate_dense.tmpl.h"

#include "codes.tmpl.h"
#include "dequant.tmpl.h"
#include "encode.tmpl.h"

#include "row.tmpl.h"
#include "score.tmpl.h"
#include "value.tmpl.h"

#include "reduce.tmpl.h"
#include "softmax.tmpl.h"

#include "tiles.h"
#include "query.tmpl.h"
#include "tile_weight.tmpl.h"
