#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "server/command/gates_internal.h"

enum { TEXTS_META_BYTES = 1 << 16 };

/* MIX_KINDS: none of that name. */
static int find_kind(const char *name)
{
    int i = 0;
    while (i < MIX_KINDS && strcmp(mix_kind_name((enum mix_kind)i), name) != 0)
        i++;
    return i;
}

static enum err unknown_kind(const char *name, struct errmsg *m)
{
    const char *names[MIX_KINDS];
    for (int i = 0; i < MIX_KINDS; i++)
        names[i] = mix_kind_name((enum mix_kind)i);
    return err_set(m, ERR_INVAL,
                   "--mix: there is no kind '%.40s'; the nearest is '%s'", name,
                   flags_nearest(name, names, MIX_KINDS));
}

/* "plain=20". A kind without a share is -1 until it is named. */
static enum err read_share(int64_t share[MIX_KINDS], char *word,
                           struct errmsg *m)
{
    static const struct option whole = {.type = OPT_INT, .max = 1000000};
    char where[OPTION_NAME_MAX + 8], *value = strchr(word, '=');
    if (value != NULL)
        *value++ = '\0';
    int kind = find_kind(word);
    if (kind == MIX_KINDS)
        return unknown_kind(word, m);
    if (value == NULL)
        return err_set(m, ERR_INVAL, "--mix: %s needs a share: %s=10", word,
                       word);
    if (share[kind] >= 0)
        return err_set(m, ERR_INVAL, "--mix: %s is named twice", word);
    snprintf(where, sizeof(where), "--mix: %s", word);
    return option_set(&share[kind], &whole, value, 0, where, m);
}

enum err gates_read_mix(uint32_t share[MIX_KINDS], const char *text,
                        struct errmsg *m)
{
    static const struct option words = {.type = OPT_LIST};
    struct config_list list = {NULL, 0};
    int64_t given[MIX_KINDS], sum = 0;
    enum err rc = option_set_flag(&list, &words, text, 0, "--mix", m);
    for (int i = 0; i < MIX_KINDS; i++)
        given[i] = -1;
    for (size_t i = 0; i < list.n && rc == OK; i++)
        rc = read_share(given, list.item[i], m);
    for (int i = 0; i < MIX_KINDS; i++) {
        share[i] = given[i] > 0 ? (uint32_t)given[i] : 0;
        sum += share[i];
    }
    if (rc == OK && sum == 0)
        rc = err_set(m, ERR_INVAL, "--mix: all shares are zero");
    option_clear_list(&list, &words);
    return rc;
}

void gates_put_mix(char out[GATES_MIX_BYTES], const uint32_t share[MIX_KINDS])
{
    size_t n = 0;
    for (int i = 0; i < MIX_KINDS; i++)
        if (share[i] > 0)
            n += (size_t)snprintf(out + n, GATES_MIX_BYTES - n, "%s%s=%u",
                                  n > 0 ? "," : "",
                                  mix_kind_name((enum mix_kind)i), share[i]);
}

/* One turn as an object of OpenAI's format. */
static bool add_turn(cJSON *messages, const struct mix_turn *turn)
{
    char *text = strndup(turn->text, turn->n);
    cJSON *message = cJSON_CreateObject();
    bool ok = text != NULL && message != NULL &&
              cJSON_AddStringToObject(message, "role",
                                      turn->is_user ? "user" : "assistant") &&
              cJSON_AddStringToObject(message, "content", text) &&
              cJSON_AddItemToArray(messages, message);
    if (!ok)
        cJSON_Delete(message);
    free(text);
    return ok;
}

static enum err write_chat(void *ctx, const struct mix_turn *turns,
                           size_t n_turns, struct tokens *out, struct errmsg *m)
{
    cJSON *messages = cJSON_CreateArray();
    bool ok = messages != NULL;
    for (size_t i = 0; i < n_turns && ok; i++)
        ok = add_turn(messages, &turns[i]);
    struct prompt_chat chat = {.messages = messages};
    enum err rc = ok ? prompt_from_chat(ctx, &chat, out, m)
                     : err_set(m, ERR_NOMEM, "no memory for a chat");
    cJSON_Delete(messages);
    return rc;
}

/* Whether the model's template takes a conversation; where it does not, chats
 * are written in plain words. */
static bool can_write_chats(struct prompt *prompt, uint32_t share)
{
    static const struct mix_turn turns[] = {{true, "Yes?", 4},
                                            {false, "Yes.", 4}};
    struct tokens tokens = {0};
    struct errmsg why = {""};
    bool ok =
        prompt != NULL && write_chat(prompt, turns, 2, &tokens, &why) == OK;
    tokens_fini(&tokens);
    if (!ok && share > 0)
        fprintf(stderr, "ebb gates: chats are written without a template: %s\n",
                why.text[0] != '\0' ? why.text : "the model has none");
    return ok;
}

/* Its name without folders and its hash go into the list. */
static enum err note_text(struct gates_texts *t, const char *path,
                          const struct buf *text, struct hash *all,
                          struct errmsg *m)
{
    uint8_t digest[HASH_BYTES];
    char hex[HASH_HEX];
    const char *slash = strrchr(path, '/');
    enum err rc = hash_sha256(digest, text->data, text->len);
    if (rc == OK)
        rc = hash_update(all, digest, sizeof(digest));
    hash_hex(hex, digest, sizeof(digest));
    if (rc == OK)
        rc = buf_printf(&t->list, "%s%s %s", t->list.len > 0 ? ", " : "",
                        slash == NULL ? path : slash + 1, hex);
    return rc == OK ? OK : err_set(m, rc, "no memory for %s", path);
}

/* Takes one file in: as something to learn from where there is a mixture. */
static enum err add_text(struct gates_texts *t, const char *path,
                         struct hash *all, struct errmsg *m)
{
    struct buf text = {0};
    struct errmsg why = {""};
    enum err rc = file_read_all(&text, path, MIX_TEXT_MAX, m);
    if (rc != OK)
        return rc;
    if (t->mix != NULL)
        rc = mix_add_text(t->mix, text.data == NULL ? "" : text.data, text.len,
                          &why);
    if (rc != OK)
        err_set(m, rc, "%s: %s", path, why.text);
    else
        rc = note_text(t, path, &text, all, m);
    buf_fini(&text);
    return rc;
}

enum err gates_name_texts(struct gates_texts *t,
                          const struct config_list *files, struct errmsg *m)
{
    struct hash all = {0};
    uint8_t digest[HASH_BYTES];
    t->list.max = TEXTS_META_BYTES;
    enum err rc = hash_init(&all);
    for (size_t i = 0; i < files->n && rc == OK; i++)
        rc = add_text(t, files->item[i], &all, m);
    if (rc == OK)
        rc = hash_final(&all, digest);
    if (rc == OK)
        hash_hex(t->sha256, digest, sizeof(digest));
    hash_fini(&all);
    return rc;
}

enum err gates_read_texts(struct gates_texts *t, const struct model_file *model,
                          const struct gates_texts_input *in, struct errmsg *m)
{
    struct mix_options o = {
        .tokenizer = model->tokenizer,
        .chat = can_write_chats(model->prompt, in->share[MIX_CHAT]) ? write_chat
                                                                    : NULL,
        .chat_ctx = model->prompt,
        .seed = in->seed};
    memcpy(o.share, in->share, sizeof(o.share));
    enum err rc = mix_new(&t->mix, &o, m);
    return rc == OK ? gates_name_texts(t, in->files, m) : rc;
}

void gates_texts_fini(struct gates_texts *t)
{
    mix_free(t->mix);
    buf_fini(&t->list);
}
