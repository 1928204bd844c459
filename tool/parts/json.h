/* JSON on standard output. */
#ifndef AURA_TOOL_JSON_H
#define AURA_TOOL_JSON_H

void print_json_string(const char *text);

/* A field of CSV, between quotes where it needs them. */
void print_csv_string(const char *text);

#endif
