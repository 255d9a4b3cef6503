/* gate_file.h - retention gates as .safetensors files.
 *
 * Tensor names are those of the authors' code, so that a published checkpoint
 * converts by loading its state dict and saving it again:
 *
 *     model.layers.{l}.self_attn.retention_gate.linear1.weight  [m][n_embd]
 *                                              .linear1.bias    [m]
 *                                              .linear2.weight  [m][m]
 *                                              .linear2.bias    [m]
 *                                              .linear3.weight  [heads][m]
 *                                              .bias            [heads]
 *
 * linear3 and bias are shared by all layers in training: a file may hold them
 * under layer 0 only, or repeated. They are read per layer, since copies may
 * differ. A gate of type "rg" has linear1, linear2.weight ([heads][m]) and
 * bias, in every layer. F32, F16 and BF16 are read; we write F32 or F16.
 *
 * Metadata: format=pt, gate=rg10, base_model, base_fingerprint, m,
 * train_memory, train_context, all strings, and more on how the gates were made
 * (docs/gates.md). Without `gate` the type is told from the tensors.
 *
 * Threads: any.
 */
#ifndef GATES_GATE_FILE_H
#define GATES_GATE_FILE_H

#include <stdbool.h>

#include "base/safetensors.h"
#include "gates/gate.h"

/* The gates of an open file. model: what they must fit (width and kind are
 * ignored), or NULL for any. ERR_INVAL when a tensor is missing, has another
 * shape or holds a number beyond GATE_PARAM_MAX or none at all; ERR_UNSUPPORTED
 * for another type of gate; ERR_CONFLICT when they are whole but made for a
 * model of another shape. The sentence names the tensor, what was found and
 * what is needed. Nothing is allocated before the shapes of all tensors were
 * checked. On OK the caller owns *out. */
MUST_CHECK enum err gate_read(struct gate **out, const struct safetensors *f,
                              const struct gate_shape *model, struct errmsg *m);

/* The same from a path; the sentence names the file too. */
MUST_CHECK enum err gate_load(struct gate **out, const char *path,
                              const struct gate_shape *model, struct errmsg *m);

/* Writes the file atomically. as_f16 halves it; numbers beyond GATE_PARAM_MAX
 * are clamped to it. Last projections that are equal in all layers are stored
 * once, under layer 0. meta as given. */
MUST_CHECK enum err gate_save(const struct gate *g, const char *path,
                              bool as_f16,
                              const struct safetensors_string *meta,
                              size_t n_meta, struct errmsg *m);

#endif
