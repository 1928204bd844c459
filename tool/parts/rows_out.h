/* Rows of a bench for programs, which differ in their fields: objects of one array of JSON, or lines of CSV, a field of a row each:
 * row,field,value. Compiles as C and as C++. */
#ifndef AURA_TOOL_ROWS_OUT_H
#define AURA_TOOL_ROWS_OUT_H

#ifdef __cplusplus
extern "C" {
#endif

enum { ROWS_TEXT, ROWS_JSON, ROWS_CSV };
struct rows_out {
    int as;        /* ROWS_TEXT: these functions print nothing */
    unsigned rows; /* printed */
};

/* The first row has the version and the device. */
void begin_rows(struct rows_out *out, const char *device);
/* An object of JSON without objects in it, of less than 2048 characters; its texts have no quotes inside. */
void print_row(struct rows_out *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
void end_rows(const struct rows_out *out);

#ifdef __cplusplus
}
#endif
#endif
