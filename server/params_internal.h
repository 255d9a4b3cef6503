/* params_internal.h - what the files behind params.h share. */
#ifndef SERVER_PARAMS_INTERNAL_H
#define SERVER_PARAMS_INTERNAL_H

#include "server/params.h"

struct params_ctx {
    struct params *p;
    struct gen_request *r;
    enum params_route route;
    const struct params_server *server;
    struct api_error *e;
    bool has_logprobs;
    const char *unsupported; /* the first valid field that is not built */
};

/* 400 unsupported_parameter. */
enum err params_unsupported(struct api_error *e, const char *param);

/* Notes that a valid value is not built; said when all fields are valid. */
enum err params_unsupported_later(struct params_ctx *c, const char *name);

/* A whole number from min to max, or the 400 that says what is wrong. */
enum err params_whole(struct params_ctx *c, const char *name, int64_t min,
                      int64_t max, const cJSON *v, int64_t *out);

/* Fields that need more than a row of the table (params_fields.c). v is never
 * null. */
enum err params_read_stop(struct params_ctx *c, const cJSON *v);
enum err params_read_bias(struct params_ctx *c, const cJSON *v);
enum err params_read_format(struct params_ctx *c, const cJSON *v);
enum err params_read_tools(struct params_ctx *c, const cJSON *v);
enum err params_read_tool_choice(struct params_ctx *c, const cJSON *v);
enum err params_read_functions(struct params_ctx *c, const cJSON *v);
enum err params_read_function_call(struct params_ctx *c, const cJSON *v);
enum err params_read_modalities(struct params_ctx *c, const cJSON *v);
enum err params_read_generation_prompt(struct params_ctx *c, const cJSON *v);
enum err params_read_min_tokens(struct params_ctx *c, const cJSON *v);

/* The kv object (params_kv.c). */
enum err params_read_kv(struct params_ctx *c, const cJSON *v);

#endif
