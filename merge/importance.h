/* importance.h - SelKV stage 1: what an entry is worth to the last queries of
 * the prompt (value-aware importance, VATP).
 *
 *     I_j = avgpool(a_j * |v_j|)
 *
 * a_j is the mass: softmax attention to entry j, summed over the window's
 * queries and the query heads of the KV head; |v_j| the Euclidean length of
 * its value. The mean runs over neighbours in the list; where it reaches
 * beyond an end, zeros count, as in PyTorch (docs/design/methods.md).
 *
 * Threads: any; nothing is kept.
 */
#ifndef MERGE_IMPORTANCE_H
#define MERGE_IMPORTANCE_H

#include <stdint.h>

/* mass[n] from the rows of the window: window[n_rows][n], added from the
 * first row on. */
void importance_mass(const float *window, uint32_t n_rows, uint32_t n,
                     float *mass);

/* out[n] from mass[n] and value_norm[n], entries in order of position. n_pool
 * is odd. `out` is none of the inputs. */
void importance_of(const float *mass, const float *value_norm, uint32_t n,
                   uint32_t n_pool, float *out);

#endif
