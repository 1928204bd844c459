/* Every stage, stamped with the words that the including file has defined. */
#include "rotate.tmpl.h"
#include "row_rotate_dense.tmpl.h"

#include "row_codes.tmpl.h"
#include "row_dequant.tmpl.h"
#include "encode.tmpl.h"
#include "../feedback.h"
#include "../trellis.h"
#include "feedback.tmpl.h"
#include "trellis.tmpl.h"

#include "row.tmpl.h"
#include "row_score.tmpl.h"
#include "row_value.tmpl.h"

#include "row_reduce.tmpl.h"
#include "row_softmax.tmpl.h"

#include "../base/dtype.h"
#include "numbers.tmpl.h"
#include "pack.tmpl.h"

#include "tiles.h"
#include "query.tmpl.h"
#include "softmax.tmpl.h"
