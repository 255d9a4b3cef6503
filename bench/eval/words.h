/* words.h - words and sentence patterns of the evaluation's documents.
 *
 * Gates that have learned a pattern by heart would be measured on their
 * memory of it: none of these words and patterns occurs in what gates are
 * trained on (gates/train/mix_words.h). A test compares both.
 *
 * Threads: any; constants only.
 */
#ifndef BENCH_EVAL_WORDS_H
#define BENCH_EVAL_WORDS_H

#include <stdbool.h>
#include <stddef.h>

/* A fact and how it is asked for. %K is the key; %V, in `fact` only, the
 * value: the answer that follows the stem after one space. */
struct words_pattern {
    const char *fact, *question, *stem;
    bool value_is_number; /* of four digits, else a name */
};

extern const struct words_pattern words_patterns[];
extern const size_t words_n_patterns;
extern const char *const words_nouns[]; /* keys, lower case */
extern const size_t words_n_nouns;
extern const char *const words_names[]; /* values */
extern const size_t words_n_names;

#endif
