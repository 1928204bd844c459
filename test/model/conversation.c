/* Conversations in files, and text that comes in pieces. */
#define _POSIX_C_SOURCE 200809L
#include <unistd.h>

#include "../../model/conversation.h"
#include "../../model/stream.h"
#include "llm_tools.h"
#include "../test.h"

static char error[LLM_ERROR_BYTES], path[64], tokens_path[80];
static struct llm *llm;

static struct llm_state *new_state(void)
{
    struct llm_state *state = NULL;
    EXPECT(!llm_state_create(llm, &(struct llm_options){0}, &state, error), "%s", error);
    return state;
}

static void edit_tokens(const char *text)
{
    FILE *file = fopen(tokens_path, "w");
    if (file)
        fputs(text, file), fclose(file);
}

/* The message of a load that fails; the state must stay empty. */
static void refused(uint64_t model, const char *why)
{
    struct conversation c = {0};
    struct llm_state *state = new_state();
    EXPECT(conversation_load(&c, state, model, path, error) && strstr(error, why), "expected \"%s\", got \"%s\"", why, error);
    EXPECT(llm_state_tokens(state) == 0, "%zu tokens were loaded", llm_state_tokens(state));
    conversation_free(&c);
    llm_state_destroy(state);
}

/* Tokens that are in the cache, and one more that is not. */
static void saved_and_loaded(void)
{
    struct conversation c = {0}, back = {0};
    struct llm_state *state = new_state(), *other = new_state();
    uint32_t token;
    for (token = 0; token < 39; token++)
        EXPECT(!conversation_add(&c, &token, 1), "no memory");
    EXPECT(!llm_forward(state, c.tokens, 38, 0, NULL, error) && !conversation_save(&c, state, 77, path, error), "%s", error);
    EXPECT(!conversation_load(&back, other, 77, path, error), "%s", error);
    EXPECT(back.count == 39 && !memcmp(back.tokens, c.tokens, 39 * sizeof *c.tokens) && llm_state_tokens(other) == 38,
           "%zu tokens, %zu in the cache",
           back.count, llm_state_tokens(other));
    conversation_free(&back);
    llm_state_destroy(other);
    refused(78, "another model");

    /* A newer snapshot beside an old list of tokens. */
    char name[sizeof tokens_path + 4];
    snprintf(name, sizeof name, "%s.old", tokens_path);
    EXPECT(!rename(tokens_path, name) && !llm_forward(state, c.tokens + 38, 1, 0, NULL, error), "%s", error);
    EXPECT(!conversation_save(&c, state, 77, path, error) && !rename(name, tokens_path), "%s", error);
    refused(77, "another snapshot");
    conversation_free(&c);
    llm_state_destroy(state);
}

static void damaged(void)
{
    edit_tokens("");
    refused(77, "damaged");
    edit_tokens("aura conversation 2\nmodel 4d\nsnapshot 89\ntokens 1\n5\n");
    refused(77, "version 2");
    unlink(tokens_path);
    refused(77, "No such file");
    unlink(path);
    refused(77, "No such file");
    FILE *file = fopen(path, "w");
    if (file)
        fputs("short", file), fclose(file);
    refused(77, "too short");
    unlink(path);
}

/* The list counts more tokens than it has, and fewer than the cache has. */
static void wrong_count(void)
{
    struct conversation c = {0};
    struct llm_state *state = new_state();
    uint32_t tokens[5] = {1, 2, 3, 4, 5};
    char text[400] = "", *at;
    EXPECT(!conversation_add(&c, tokens, 5) && !llm_forward(state, tokens, 5, 0, NULL, error) &&
           !conversation_save(&c, state, 77, path, error), "%s", error);
    FILE *file = fopen(tokens_path, "r");
    size_t size = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    EXPECT(size && (at = strstr(text, "tokens 5")), "no count in %s", text);
    at = strstr(text, "tokens 5");
    if (at)
        at[7] = '6', edit_tokens(text);
    refused(77, "ends after 5 of 6");
    conversation_free(&c);
    llm_state_destroy(state);
    unlink(path);
    unlink(tokens_path);
}

/* ---- text in pieces ------------------------------------------------------------------------------------------------------- */

/* How many bytes are shown after each piece. */
static void pieces(void)
{
    static const struct {
        const char *piece;
        size_t shown;
    } all[] = {{"a", 1}, {"\xc3", 1}, {"\xa4", 3}, {"\xe2\x82", 3}, {"\xac\xf0\x9f", 6}, {"\x98", 6}, {"\x80!", 11}, {"\xff", 12},
               {"\x80\x80\x80", 15}, {"\xf0\x9f", 15}, {"x", 18}, {"\xe2", 18}};
    struct stream s = {0};
    FILE *to = s.to = tmpfile();
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        EXPECT(!stream_add(&s, all[i].piece, strlen(all[i].piece)), "no memory");
        EXPECT(s.shown == all[i].shown, "after piece %zu, %zu bytes are shown, not %zu", i, s.shown, all[i].shown);
    }
    stream_end(&s);
    EXPECT(to && ftell(to) == 19 && s.size == 19, "%zu bytes in all", s.size);
    if (to)
        fclose(to);
    stream_free(&s);
}

int main(void)
{
    struct tiny t = tiny_model("llama");
    struct gguf_writer w = {0};
    struct gguf *file = NULL;
    tiny_write(&t, &w);
    struct gguf_part bytes = gguf_finish(&w);
    snprintf(path, sizeof path, "/tmp/aura-test-conversation-%d", (int)getpid());
    snprintf(tokens_path, sizeof tokens_path, "%s.tokens", path);
    if (gguf_read(bytes.data, bytes.size, &file, error) || llm_open(file, 1, &llm, error))
        return printf("FAIL model: %s\n", error), 1;
    RUN(saved_and_loaded);
    RUN(damaged);
    RUN(wrong_count);
    RUN(pieces);
    llm_close(llm);
    gguf_close(file);
    free(bytes.data);
    return test_result();
}
