/* records.h - what was measured, document by document, in a file that
 * survives kill -9.
 *
 * One JSON object a line, appended when a document has been asked under one
 * policy and budget. A run reads the lines of runs with the same settings and
 * measures only what is missing; lines with other settings stay in the file
 * and are not read. A line that was cut short by the end of a run goes.
 *
 * Owns the open file, locked: two runs never write to one file.
 *
 * Threads: one at a time.
 */
#ifndef BENCH_EVAL_RECORDS_H
#define BENCH_EVAL_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "bench/eval/choice.h"
#include "bench/eval/document.h"
#include "bench/eval/metric.h"

enum { RECORDS_KEY_MAX = 17 };

struct record {
    enum task task;
    uint32_t doc;
    char policy[CHOICE_NAME_MAX];
    double budget;
    bool has_gates; /* it depends on the gates */
    struct figures figures;
};

/* Short names of all settings that a record depends on, letters and digits:
 * without the gates, and with them. What does not depend on the gates need not
 * be measured again for others. */
struct records_keys {
    char plain[RECORDS_KEY_MAX], gates[RECORDS_KEY_MAX];
};

struct records;

/* path NULL: nothing is read or written. ERR_BUSY: another run has the file.
 * ERR_INVAL: a line is no record. */
MUST_CHECK enum err records_open(struct records **out, const char *path,
                                 const struct records_keys *keys,
                                 struct errmsg *m);
void records_close(struct records *r); /* NULL is allowed */

/* NULL where there is none. Valid until the next records_add(). */
const struct record *records_find(const struct records *r, enum task task,
                                  uint32_t doc, const struct choice *c);

/* A record that is not there yet; written before the call returns. */
MUST_CHECK enum err records_add(struct records *r, const struct record *record,
                                struct errmsg *m);

#endif
