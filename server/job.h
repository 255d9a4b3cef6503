/* job.h - the state of a request that makes an answer. For the files behind
 * generate.h only.
 */
#ifndef SERVER_JOB_H
#define SERVER_JOB_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "runtime/engine/engine.h"
#include "server/answer.h"
#include "server/api_error.h"
#include "server/ids.h"
#include "server/params.h"

/* Written by a prepare thread, then by the HTTP thread only. */
struct job {
    char id[IDS_MAX];
    struct answer answer;
    struct params params;
    struct api_error error; /* why there is no answer; status 0: none */
    struct gen *gen;        /* NULL when there is an error */
    struct gen_status status;
    struct buf text;
    struct buf out; /* events that are not sent yet */
    size_t sent;    /* bytes of out */
    bool has_begun; /* the role was sent */
    bool ended;     /* all events were made */
    bool refused;   /* it waited too long, and nothing was done for it */
    bool failed;    /* an error took the place of an answer that had begun */
};

#endif
