/* JSON on standard output. */
#ifndef AURA_TOOL_JSON_H
#define AURA_TOOL_JSON_H

void print_json_string(const char *text);

#endif
