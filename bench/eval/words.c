#include "bench/eval/words.h"

const struct words_pattern words_patterns[] = {
    {"The special number of the %K is %V.",
     "What is the special number of the %K?", "The special number of the %K is",
     true},
    {"A %K costs exactly %V pounds here.", "How much does a %K cost here?",
     "A %K costs exactly", true},
    {"The inventory lists the %K under number %V.",
     "Under which number does the inventory list the %K?",
     "The inventory lists the %K under number", true},
    {"The person who owns the %K is called %V.",
     "What is the person who owns the %K called?",
     "The person who owns the %K is called", false},
    {"The %K was a present from %V.", "From whom was the %K a present?",
     "The %K was a present from", false},
    {"The secret name of the %K is %V.", "What is the secret name of the %K?",
     "The secret name of the %K is", false},
};
const size_t words_n_patterns =
    sizeof(words_patterns) / sizeof(words_patterns[0]);

const struct words_chain words_chain = {
    "The ticket of %K has the digits %V.", "%K has the same ticket as %V.",
    "Who has a ticket with the digits %V?",
    "The ticket with the digits %V belongs to"};

const struct words_pattern words_move = {
    "%K went to the %V.", "Where is %K now?", "%K is now in the", false};

const char *const words_places[] = {"kitchen", "garden",  "office",
                                    "bedroom", "hallway", "bathroom"};
const size_t words_n_places = sizeof(words_places) / sizeof(words_places[0]);

const struct words_pattern words_sayings[] = {
    {"My %K is called %V.", "What is my %K called?", "Your %K is called",
     false},
    {"By the way, the name of my %K is %V.", "What is the name of my %K?",
     "The name of your %K is", false},
    {"I have a %K called %V.", "What is the name of my %K?",
     "Your %K is called", false},
};
const size_t words_n_sayings = sizeof(words_sayings) / sizeof(words_sayings[0]);

const char words_correction[] = "I was mistaken: my %K is called %V.";

const char *const words_relations[] = {
    "dog",    "cat",    "horse",  "boat",      "brother", "sister",
    "boss",   "cousin", "tailor", "neighbour", "dentist", "teacher",
    "parrot", "uncle",  "niece",  "gardener"};
const size_t words_n_relations =
    sizeof(words_relations) / sizeof(words_relations[0]);

const char *const words_labels[][2] = {{"left", "right"},
                                       {"winter", "summer"},
                                       {"iron", "wood"},
                                       {"square", "round"},
                                       {"tea", "coffee"}};
const size_t words_n_labels = sizeof(words_labels) / sizeof(words_labels[0]);

const char *const words_nouns[] = {
    "teapot",  "ladder",   "violin",  "blanket",  "candle",    "hammer",
    "mirror",  "basket",   "lantern", "saddle",   "kettle",    "anchor",
    "pillow",  "wagon",    "trumpet", "umbrella", "bucket",    "carpet",
    "compass", "drum",     "feather", "fountain", "guitar",    "helmet",
    "jacket",  "kite",     "lemon",   "medal",    "needle",    "orange",
    "pencil",  "quilt",    "rope",    "scarf",    "telescope", "turnip",
    "vase",    "whistle",  "button",  "cabbage",  "dagger",    "engine",
    "flute",   "glove",    "harp",    "jar",      "key",       "locket",
    "magnet",  "notebook", "oven",    "piano",    "ribbon",    "statue",
    "table",   "towel",    "wallet",  "wheel",    "barrel",    "clock",
    "ink",     "apron",    "oar",     "axe",      "arrow",     "acorn",
    "almond",  "apple",    "island",  "elbow",    "egg",       "envelope",
    "easel",   "eel",      "olive",   "oyster",   "onion",     "usher",
    "urn",     "anvil",    "atlas",   "icon",     "igloo",     "oak",
    "inn",     "eagle",    "otter",   "attic",    "arch",      "abbey",
};
const size_t words_n_nouns = sizeof(words_nouns) / sizeof(words_nouns[0]);

const char *const words_names[] = {
    "Alice",  "Benjamin", "Carlos",  "Diana",  "Edgar",   "Fiona",   "George",
    "Hannah", "Ivan",     "Julia",   "Kevin",  "Laura",   "Martin",  "Nancy",
    "Oscar",  "Paula",    "Robert",  "Sarah",  "Thomas",  "Victor",  "Walter",
    "Angela", "Brian",    "Cynthia", "Daniel", "Emily",   "Frank",   "Gloria",
    "Howard", "Irene",    "Jacob",   "Karen",  "Leonard", "Monica",  "Nicholas",
    "Olivia", "Patrick",  "Rachel",  "Samuel", "Teresa",  "Vincent", "Wendy",
};
const size_t words_n_names = sizeof(words_names) / sizeof(words_names[0]);
