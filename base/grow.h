/* grow.h - arrays that grow.
 *
 * For the modules that collect elements one by one and cannot know how many
 * there will be. The array belongs to the caller, who frees it with free().
 *
 * Threads: one at a time per array.
 */
#ifndef BASE_GROW_H
#define BASE_GROW_H

#include <stddef.h>

/* Makes room for `need` elements of `elem` bytes each in the array p of *cap
 * elements (p may be NULL, then *cap is 0). Returns the array, which may have
 * moved, and the room it has now in *cap; the room at least doubles, so that
 * n single appends cost O(n). NULL: no memory; then p and *cap are as they
 * were. elem and need must not be 0. */
void *grow_array(void *p, size_t *cap, size_t need, size_t elem);

#endif
