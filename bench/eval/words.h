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
/* A name %K that has a number %V, and one that has that of another: who has
 * the number? */
extern const struct words_chain {
    const char *first, *next, *question, *stem;
} words_chain;
/* A person %K goes to a place %V. */
extern const struct words_pattern words_move;
extern const char *const words_places[];
extern const size_t words_n_places;
/* What a user says of a relation %K of his, called %V; and takes back. */
extern const struct words_pattern words_sayings[];
extern const size_t words_n_sayings;
extern const char words_correction[];
extern const char *const words_relations[];
extern const size_t words_n_relations;
/* Two labels for lists of examples. */
extern const char *const words_labels[][2];
extern const size_t words_n_labels;
extern const char *const words_nouns[]; /* keys, lower case */
extern const size_t words_n_nouns;
extern const char *const words_names[]; /* values */
extern const size_t words_n_names;

#endif
