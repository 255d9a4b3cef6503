/* mix_words.h - words and sentence patterns of the training documents. The
 * evaluation must use none of them (docs/design, evaluation 4.2).
 *
 * Threads: any; all of it is constant.
 */
#ifndef GATES_TRAIN_MIX_WORDS_H
#define GATES_TRAIN_MIX_WORDS_H

#include <stdbool.h>
#include <stddef.h>

/* A fact and the question it answers, with the beginning of the answer behind
 * the question mark and a space. %K is the key, %R what is told of it (one of
 * mix_measures where the value is a number, else of mix_roles), and in `fact`
 * %V the value, which ends the answer. */
struct mix_pattern {
    const char *fact, *question;
    bool value_is_number; /* else a word */
    bool key_is_thing;    /* one of mix_things, else of mix_keys */
};

extern const struct mix_pattern mix_patterns[];
extern const size_t mix_n_patterns;
extern const char *const mix_keys[];
extern const size_t mix_n_keys;
extern const char *const mix_things[];
extern const size_t mix_n_things;
extern const char *const mix_measures[];
extern const size_t mix_n_measures;
extern const char *const mix_roles[];
extern const size_t mix_n_roles;
extern const char *const mix_values[];
extern const size_t mix_n_values;

#endif
