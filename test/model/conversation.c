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

static const struct conversation_model ours = {77, 5};

/* Saves as before there were notes: the tokens in a second file, which names the first by its first 64 bytes. */
static void save_pair(const struct conversation *c, const struct llm_state *state)
{
    uint8_t header[64] = {0};
    EXPECT(!llm_state_save(state, path, NULL, 0, error), "%s", error);
    FILE *file = fopen(path, "rb"), *tokens = fopen(tokens_path, "w");
    EXPECT(file && fread(header, 1, 64, file) == 64 && tokens, "no files");
    if (tokens) {
        fprintf(tokens, "aura conversation 1\nmodel %016x\nsnapshot ", 77);
        for (int i = 0; i < 64; i++)
            fprintf(tokens, "%02x", header[i]);
        fprintf(tokens, "\ntokens %zu\n", c->count);
        for (size_t i = 0; i < c->count; i++)
            fprintf(tokens, "%u%c", c->tokens[i], i % 20 == 19 ? '\n' : ' ');
        fclose(tokens);
    }
    if (file)
        fclose(file);
}

/* The message of a load that fails; the state must stay empty. */
static void refused(struct conversation_model model, const char *why)
{
    struct conversation c = {0};
    struct llm_state *state = new_state();
    EXPECT(conversation_load(&c, state, model, path, error) && strstr(error, why), "expected \"%s\", got \"%s\"", why, error);
    EXPECT(llm_state_tokens(state) == 0, "%zu tokens were loaded", llm_state_tokens(state));
    conversation_free(&c);
    llm_state_destroy(state);
}

static void expect_loaded(const struct conversation *c, size_t in_cache)
{
    struct conversation back = {0};
    struct llm_state *other = new_state();
    EXPECT(!conversation_load(&back, other, ours, path, error), "%s", error);
    EXPECT(back.count == c->count && !memcmp(back.tokens, c->tokens, c->count * sizeof *c->tokens) &&
           llm_state_tokens(other) == in_cache, "%zu tokens, %zu in the cache", back.count, llm_state_tokens(other));
    conversation_free(&back);
    llm_state_destroy(other);
}

/* Tokens that are in the cache, and one more that is not. */
static void saved_and_loaded(void)
{
    struct conversation c = {0};
    struct llm_state *state = new_state();
    for (uint32_t token = 0; token < 39; token++)
        EXPECT(!conversation_add(&c, &token, 1), "no memory");
    EXPECT(!llm_forward(state, c.tokens, 38, 0, NULL, error), "%s", error);
    save_pair(&c, state);
    expect_loaded(&c, 38);
    refused((struct conversation_model){78, 5}, "another model");
    EXPECT(!conversation_save(&c, state, ours, path, error), "%s", error);
    EXPECT(access(tokens_path, F_OK), "the second file of the old pair is still there");
    expect_loaded(&c, 38);
    refused((struct conversation_model){78, 5}, "another model");
    refused((struct conversation_model){77, 6}, "other weights");

    /* A newer snapshot beside an old list of tokens. */
    save_pair(&c, state);
    EXPECT(!llm_forward(state, c.tokens + 38, 1, 0, NULL, error) && !llm_state_save(state, path, NULL, 0, error), "%s", error);
    refused(ours, "another snapshot");
    conversation_free(&c);
    llm_state_destroy(state);
}

/* A snapshot with any note. */
static void save_note(const char *note)
{
    struct llm_state *state = new_state();
    uint32_t token = 7;
    EXPECT(!llm_forward(state, &token, 1, 0, NULL, error) && !llm_state_save(state, path, note, strlen(note), error), "%s", error);
    llm_state_destroy(state);
}

static void damaged_notes(void)
{
    save_note("something else");
    refused(ours, "its note is not of a conversation");
    save_note("aura conversation 3\n");
    refused(ours, "version 3");
    save_note("aura conversation 2\nmodel 4d\nweights x\n");
    refused(ours, "damaged");
    save_note("aura conversation 2\nmodel 4d\nweights 5\ntokens 2\n5\n");
    refused(ours, "ends after 1 of 2 tokens");
    save_note("aura conversation 2\nmodel 4d\nweights 5\ntokens 0\n");
    refused(ours, "has 0 tokens, and its snapshot 1");
    unlink(path);
}

static void damaged(void)
{
    edit_tokens("");
    refused(ours, "damaged");
    edit_tokens("aura conversation 2\nmodel 4d\nsnapshot 89\ntokens 1\n5\n");
    refused(ours, "version 2");
    unlink(tokens_path);
    refused(ours, "No such file");
    unlink(path);
    refused(ours, "No such file");
    FILE *file = fopen(path, "w");
    if (file)
        fputs("short", file), fclose(file);
    refused(ours, "not even its header is there");
    unlink(path);
}

/* The list counts more tokens than it has, and fewer than the cache has. */
static void wrong_count(void)
{
    struct conversation c = {0};
    struct llm_state *state = new_state();
    uint32_t tokens[5] = {1, 2, 3, 4, 5};
    char text[400] = "", *at;
    EXPECT(!conversation_add(&c, tokens, 5) && !llm_forward(state, tokens, 5, 0, NULL, error), "%s", error);
    save_pair(&c, state);
    FILE *file = fopen(tokens_path, "r");
    size_t size = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    EXPECT(size && (at = strstr(text, "tokens 5")), "no count in %s", text);
    at = strstr(text, "tokens 5");
    if (at)
        at[7] = '6', edit_tokens(text);
    refused(ours, "ends after 5 of 6");
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

/* What is shown after each piece never has the beginning of a text that stops it, and ends before that. */
static void texts_that_stop(void)
{
    static const char *const stops[] = {"STOP", "xxy"};
    static const struct {
        const char *pieces, *shown; /* a letter is a piece; what is shown in the end */
        int stopped;
    } all[] = {{"one STOP two", "one ", 1}, {"SSTOP", "S", 1}, {"xxxy.", "x", 1}, {"STO, no", "STO, no", 0}, {"STO", "STO", 0},
               {"xxySTOP", "", 1}, {"", "", 0}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct stream s = {.stops = stops, .n_stops = 2};
        for (const char *at = all[i].pieces; *at && !s.stopped; at++) {
            EXPECT(!stream_add(&s, at, 1), "no memory");
            EXPECT(s.shown <= s.size && (s.stopped || s.shown + 3 >= s.size), "%s: %zu of %zu", all[i].pieces, s.shown, s.size);
            EXPECT(s.shown <= strlen(all[i].shown), "%s: it shows what stops it", all[i].pieces);
        }
        stream_end(&s);
        EXPECT(s.stopped == all[i].stopped && s.size == strlen(all[i].shown) && s.shown == s.size &&
               !memcmp(s.text ? s.text : "", all[i].shown, s.size), "%s: %.*s", all[i].pieces, (int)s.size, s.text ? s.text : "");
        stream_clear(&s);
        EXPECT(!s.size && !s.shown && !s.stopped, "%s: not empty", all[i].pieces);
        stream_free(&s);
    }
    struct stream s = {.stops = stops, .n_stops = 2};
    EXPECT(!stream_add(&s, "a STOP and xxy", 14) && s.stopped && s.size == 2, "one piece with both: %zu bytes", s.size);
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
    RUN(damaged_notes);
    RUN(wrong_count);
    RUN(pieces);
    RUN(texts_that_stop);
    llm_close(llm);
    gguf_close(file);
    free(bytes.data);
    return test_result();
}
