/* models.h - the model list, and which names mean the loaded model.
 *
 * Threads: any; nothing is kept.
 */
#ifndef SERVER_MODELS_H
#define SERVER_MODELS_H

#include "base/buf.h"
#include "base/err.h"
#include "server/api_error.h"
#include "server/options.h"

/* Append the body of GET /v1/models and of GET /v1/models/{id}. The second is
 * ERR_INVAL with a 404 in *e for an unknown name. */
MUST_CHECK enum err models_list(struct buf *out,
                                const struct server_options *o);
MUST_CHECK enum err models_one(struct buf *out, const struct server_options *o,
                               const char *id, struct api_error *e);

/* The configured spelling of a name (own id or alias); the own id for any
 * other name where every name is accepted; else NULL. */
const char *models_find(const struct server_options *o, const char *name);

/* 404 model_not_found. */
enum err models_unknown(struct api_error *e, const char *name);

#endif
