#include "server/chat.h"

#include <stdio.h>
#include <string.h>

#include "server/params.h"
#include "server/params_internal.h"

/* Of a field's name, the part behind the message. */
enum { REST_MAX = 80 };

enum role {
    ROLE_SYSTEM,
    ROLE_DEVELOPER,
    ROLE_USER,
    ROLE_ASSISTANT,
    ROLE_TOOL,
    ROLE_FUNCTION,
    ROLE_COUNT
};

static const char *const role_names[ROLE_COUNT] = {
    "system", "developer", "user", "assistant", "tool", "function",
};

bool chat_is_role(const char *name)
{
    for (int i = 0; i < ROLE_COUNT; i++)
        if (strcmp(name, role_names[i]) == 0)
            return true;
    return false;
}

/* The message that is being looked at. */
struct at {
    cJSON *message;
    int index;
    enum role role;
    struct api_error *e;
};

static void name_of(char *out, const struct at *at, const char *rest)
{
    snprintf(out, API_PARAM_MAX, "messages[%d]%s", at->index, rest);
}

static enum err wrong_type(const struct at *at, const char *rest,
                           const char *expected, const cJSON *got)
{
    char param[API_PARAM_MAX];
    name_of(param, at, rest);
    return params_wrong_type(at->e, param, expected, got);
}

static enum err read_role(struct at *at)
{
    const cJSON *role = json_get(at->message, "role");
    char param[API_PARAM_MAX];
    name_of(param, at, ".role");
    if (!role)
        return api_error_set(at->e, 400, "missing_required_parameter", param,
                             "Missing required parameter: '%s'.", param);
    if (!cJSON_IsString(role))
        return params_wrong_type(at->e, param, "a string", role);
    for (int i = 0; i < ROLE_COUNT; i++) {
        if (strcmp(role->valuestring, role_names[i]) == 0) {
            at->role = (enum role)i;
            return OK;
        }
    }
    char shown[API_SHOWN_MAX + 4];
    api_error_shown(shown, role->valuestring, strlen(role->valuestring));
    return api_error_set(at->e, 400, "invalid_value", param,
                         "Invalid value: '%s'. Supported values are: 'system', "
                         "'developer', 'user', 'assistant', 'tool' and "
                         "'function'.",
                         shown);
}

static bool is_media(const char *type)
{
    static const char *const media[] = {
        "image_url", "input_image", "image",     "input_audio", "audio",
        "file",      "input_file",  "video_url", "video",
    };
    for (size_t i = 0; i < sizeof(media) / sizeof(media[0]); i++)
        if (strcmp(type, media[i]) == 0)
            return true;
    return false;
}

static enum err read_part(const struct at *at, const cJSON *part, int i)
{
    char rest[REST_MAX], param[API_PARAM_MAX];
    snprintf(rest, sizeof(rest), ".content[%d]", i);
    if (!cJSON_IsObject(part))
        return wrong_type(at, rest, "an object", part);
    const cJSON *type = json_get(part, "type");
    snprintf(rest, sizeof(rest), ".content[%d].type", i);
    name_of(param, at, rest);
    if (!cJSON_IsString(type))
        return params_wrong_type(at->e, param, "a string", type);
    const char *key = type->valuestring;
    bool refusal = strcmp(key, "refusal") == 0 && at->role == ROLE_ASSISTANT;
    if (strcmp(key, "text") != 0 && !refusal) {
        char shown[API_SHOWN_MAX + 4];
        api_error_shown(shown, key, strlen(key));
        if (is_media(key))
            return api_error_set(at->e, 400, "unsupported_parameter", param,
                                 "Content parts of type '%s' are not "
                                 "supported: this model reads text only.",
                                 shown);
        return api_error_set(at->e, 400, "invalid_value", param,
                             "Invalid value: '%s' is no type of a content "
                             "part; 'text' is.",
                             shown);
    }
    const cJSON *value = json_get(part, key);
    snprintf(rest, sizeof(rest), ".content[%d].%s", i, key);
    if (!cJSON_IsString(value))
        return wrong_type(at, rest, "a string", value);
    return OK;
}

static enum err read_parts(const struct at *at, const cJSON *parts)
{
    char param[API_PARAM_MAX];
    int i = 0;
    if (!parts->child) {
        name_of(param, at, ".content");
        return api_error_set(at->e, 400, "empty_array", param,
                             "Invalid '%s': empty array. Expected at least one "
                             "content part.",
                             param);
    }
    for (const cJSON *p = parts->child; p; p = p->next) {
        enum err rc = read_part(at, p, i++);
        if (rc != OK)
            return rc;
    }
    return OK;
}

static enum err read_content(const struct at *at)
{
    const cJSON *content = json_get_set(at->message, "content");
    if (cJSON_IsString(content))
        return OK;
    if (cJSON_IsArray(content))
        return read_parts(at, content);
    bool may_lack = at->role == ROLE_ASSISTANT || at->role == ROLE_FUNCTION;
    if (!content && may_lack)
        return OK;
    return wrong_type(at, ".content", "a string or an array of content parts",
                      json_get(at->message, "content"));
}

static enum err read_call(const struct at *at, const cJSON *call, int i)
{
    char rest[REST_MAX];
    snprintf(rest, sizeof(rest), ".tool_calls[%d]", i);
    if (!cJSON_IsObject(call))
        return wrong_type(at, rest, "an object", call);
    const cJSON *id = json_get_set(call, "id");
    snprintf(rest, sizeof(rest), ".tool_calls[%d].id", i);
    if (id && !cJSON_IsString(id))
        return wrong_type(at, rest, "a string", id);
    const cJSON *function = json_get(call, "function");
    snprintf(rest, sizeof(rest), ".tool_calls[%d].function", i);
    if (!cJSON_IsObject(function))
        return wrong_type(at, rest, "an object", function);
    const cJSON *name = json_get(function, "name");
    snprintf(rest, sizeof(rest), ".tool_calls[%d].function.name", i);
    if (!cJSON_IsString(name))
        return wrong_type(at, rest, "a string", name);
    const cJSON *arguments = json_get_set(function, "arguments");
    snprintf(rest, sizeof(rest), ".tool_calls[%d].function.arguments", i);
    if (arguments && !cJSON_IsString(arguments) && !cJSON_IsObject(arguments))
        return wrong_type(at, rest, "a string", arguments);
    return OK;
}

static enum err read_calls(const struct at *at)
{
    cJSON *calls = cJSON_GetObjectItemCaseSensitive(at->message, "tool_calls");
    int i = 0;
    if (!calls)
        return OK;
    if (cJSON_IsNull(calls) || (cJSON_IsArray(calls) && !calls->child)) {
        /* Templates ask whether the key is there. */
        cJSON_DeleteItemFromObjectCaseSensitive(at->message, "tool_calls");
        return OK;
    }
    if (!cJSON_IsArray(calls))
        return wrong_type(at, ".tool_calls", "an array", calls);
    for (cJSON *call = calls->child; call; call = call->next) {
        enum err rc = read_call(at, call, i++);
        if (rc != OK)
            return rc;
    }
    return OK;
}

/* Which call a result answers. */
static enum err need_call_id(const struct at *at)
{
    char param[API_PARAM_MAX];
    if (json_get_set(at->message, "tool_call_id"))
        return OK;
    name_of(param, at, ".tool_call_id");
    return api_error_set(at->e, 400, "missing_required_parameter", param,
                         "Missing required parameter: '%s'.", param);
}

static enum err read_string_if_set(const struct at *at, const char *key)
{
    char rest[REST_MAX];
    const cJSON *v = json_get_set(at->message, key);
    snprintf(rest, sizeof(rest), ".%s", key);
    return !v || cJSON_IsString(v) ? OK : wrong_type(at, rest, "a string", v);
}

static enum err read_message(struct at *at)
{
    if (!cJSON_IsObject(at->message))
        return wrong_type(at, "", "an object", at->message);
    enum err rc = read_role(at);
    if (rc == OK)
        rc = read_content(at);
    if (rc == OK)
        rc = read_string_if_set(at, "name");
    if (rc == OK)
        rc = read_string_if_set(at, "tool_call_id");
    if (rc == OK && at->role == ROLE_TOOL)
        rc = need_call_id(at);
    if (rc == OK && at->role == ROLE_ASSISTANT)
        rc = read_calls(at);
    return rc;
}

enum err chat_messages(const cJSON **out, cJSON *body, struct api_error *e)
{
    cJSON *messages = cJSON_GetObjectItemCaseSensitive(body, "messages");
    struct at at = {.e = e};
    if (!messages)
        return api_error_set(e, 400, "missing_required_parameter", "messages",
                             "Missing required parameter: 'messages'.");
    if (!cJSON_IsArray(messages))
        return params_wrong_type(e, "messages", "an array of messages",
                                 messages);
    if (!messages->child)
        return api_error_set(e, 400, "empty_array", "messages",
                             "Invalid 'messages': empty array. Expected at "
                             "least one message.");
    for (cJSON *m = messages->child; m; m = m->next) {
        at.message = m;
        enum err rc = read_message(&at);
        if (rc != OK)
            return rc;
        at.index++;
    }
    *out = messages;
    return OK;
}
