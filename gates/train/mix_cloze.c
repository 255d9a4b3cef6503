/* Words of a text as the beginning of a sentence whose end is drawn. No two
 * are of one pattern, which the patterns of mix_words.c, a few dozen, are. */
#include <ctype.h>
#include <string.h>

#include "gates/train/mix_internal.h"

enum { WORDS_MIN = 4, WORDS_MAX = 9, PASSAGE_BYTES = 160, TRIES = 20 };

/* What may stand in a sentence. Bytes of other scripts do. */
static bool is_of_word(char c)
{
    return isalnum((unsigned char)c) || (c & 0x80) != 0 || c == '\'' ||
           c == '-';
}

/* Words of s with single spaces between, without punctuation. Returns how
 * many, at most `most`, went into out. */
static size_t copy_words(char *out, size_t size, const char *s, size_t n,
                         size_t most)
{
    size_t n_words = 0, len = 0, i = 0;
    while (n_words < most) {
        while (i < n && !is_of_word(s[i]))
            i++;
        size_t from = i;
        while (i < n && is_of_word(s[i]))
            i++;
        size_t word = i - from;
        if (word == 0 || len + word + 2 > size)
            break;
        if (len > 0)
            out[len++] = ' ';
        memcpy(out + len, s + from, word);
        len += word;
        n_words++;
    }
    out[len] = '\0';
    return n_words;
}

bool mix_phrase(struct maker *k, char *out, size_t size)
{
    for (int i = 0; i < TRIES; i++) {
        const char *s;
        size_t n, most = WORDS_MIN + mix_pick(k, WORDS_MAX - WORDS_MIN + 1);
        mix_passage(k, PASSAGE_BYTES, &s, &n);
        if (copy_words(out, size, s, n, most) >= WORDS_MIN) {
            out[0] = (char)toupper((unsigned char)out[0]);
            return true;
        }
    }
    return false;
}

size_t mix_first_words(const char *phrase, size_t n)
{
    size_t i = 0;
    for (; phrase[i] != '\0'; i++)
        if (phrase[i] == ' ' && --n == 0)
            break;
    return i;
}
