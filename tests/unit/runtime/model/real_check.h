/* real_check.h - what the tests of the two real models share: the files, and
 * a rig with the golden values beside it (tests/tools/reference_forward.py: a
 * forward pass in numpy over the dequantised weights).
 *
 * Threads: one test at a time.
 */
#ifndef TESTS_REAL_CHECK_H
#define TESTS_REAL_CHECK_H

#include "tests/unit/runtime/model/model_check.h"

#include "base/clock.h"

struct real {
    const char *file, *golden;
    bool is_default;
};

static const struct real real_models[] = {
    {"SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1.golden",
     true},
    {"qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
     "qwen2.5-coder-0.5b-instruct-q4_k_m.golden", false},
};

static bool is_long;
static int n_opened; /* models that the running test has found */

struct loaded {
    struct rig rig;
    struct golden golden;
};

/* Where a test begins and ends: it counts as skipped when no model was there
 * for it. */
static inline void begin(void)
{
    n_opened = 0;
    if (CHECK_IS_SANITIZED) {
        fprintf(stderr, "SKIPPED: too slow with a sanitizer\n");
        skip();
    }
}

static inline void end(void)
{
    if (n_opened == 0)
        skip();
}

/* False when the model is not there, or the kernels do not run here: the
 * caller skips. */
static inline bool open_real(struct loaded *l, const struct real *r,
                             const char *table, enum kv_type kv_type)
{
    char path[4096];
    const struct ops *ops = ops_find(table);
    if (!ops)
        fprintf(stderr, "SKIPPED: this CPU or OS cannot run %s\n", table);
    if (!ops || !check_model_file(path, r->file))
        return false;
    char golden[4096];
    snprintf(golden, sizeof(golden), "tests/golden/model/%s", r->golden);
    struct rig_options o = {.path = path,
                            .ops = ops,
                            .n_threads = 2,
                            .kv_type = kv_type,
                            .max_rows = 512,
                            .max_runs = 20,
                            .max_context = 1024,
                            .kv_bytes = 600 << 20};
    n_opened++;
    rig_open(&l->rig, &o);
    golden_open(&l->golden, golden);
    return true;
}

static inline void close_real(struct loaded *l)
{
    golden_close(&l->golden);
    rig_close(&l->rig);
}

#endif
