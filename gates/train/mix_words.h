/* mix_words.h - words and sentence patterns of the training documents. The
 * evaluation must use none of them (docs/design, evaluation 4.2). */
#ifndef GATES_TRAIN_MIX_WORDS_H
#define GATES_TRAIN_MIX_WORDS_H

#include <stddef.h>

/* A fact and the question it answers. In `fact` and `question` %K is the key
 * and in `fact` %V the value, which is the answer. */
struct mix_pattern {
    const char *fact, *question;
    int value_is_number; /* else a word */
};

extern const struct mix_pattern mix_patterns[];
extern const size_t mix_n_patterns;
extern const char *const mix_keys[];
extern const size_t mix_n_keys;
extern const char *const mix_values[];
extern const size_t mix_n_values;

#endif
