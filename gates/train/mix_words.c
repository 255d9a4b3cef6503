#include "gates/train/mix_words.h"

const struct mix_pattern mix_patterns[] = {
    {"Locker %K opens with the code %V.",
     "Which code opens locker %K? It is the code", 1},
    {"The account of %K holds %V coins.",
     "How many coins are in the account of %K? It holds", 1},
    {"At gate %K you must ask for %V.",
     "Whom must you ask for at gate %K? You must ask for", 0},
    {"Captain %K sails on a ship named %V.",
     "What is the ship of captain %K named? It is named", 0},
    {"In the ledger, the entry for %K reads %V.",
     "What does the ledger's entry for %K read? It reads", 1},
    {"Doctor %K lives in the town of %V.",
     "In which town does doctor %K live? In the town of", 0},
    {"The train to %K leaves from platform %V.",
     "From which platform does the train to %K leave? From platform", 1},
    {"Remember that project %K is led by %V.",
     "Who leads project %K? It is led by", 0},
    {"The lamp in room %K was paid for by %V.",
     "Who paid for the lamp in room %K? It was paid for by", 0},
    {"Parcel %K weighs %V grams.",
     "How many grams does parcel %K weigh? It weighs", 1},
    {"On the map, %K is marked with the word %V.",
     "With which word is %K marked on the map? With the word", 0},
    {"%K's lucky number has always been %V.",
     "What has always been %K's lucky number? It has always been", 1},
};
const size_t mix_n_patterns = sizeof(mix_patterns) / sizeof(mix_patterns[0]);

const char *const mix_keys[] = {
    "Adler",    "Bergamot", "Cobalt", "Dorian",  "Ember",    "Falk",
    "Garnet",   "Halberd",  "Indigo", "Jasper",  "Kestrel",  "Larch",
    "Mortimer", "Nettle",   "Onyx",   "Pelham",  "Quarry",   "Rowan",
    "Saffron",  "Thistle",  "Umber",  "Vesper",  "Willow",   "Yarrow",
    "Zephyr",   "Alder",    "Birch",  "Cedar",   "Damson",   "Elder",
    "Fennel",   "Gorse",    "Heron",  "Ibis",    "Juniper",  "Kelp",
    "Lupin",    "Merlin",   "Newt",   "Osprey",  "Plover",   "Quince",
    "Raven",    "Sorrel",   "Teal",   "Urchin",  "Viper",    "Wren",
    "Aspen",    "Bramble",  "Clover", "Drake",   "Egret",    "Finch",
    "Gannet",   "Hazel",    "Iris",   "Jackdaw", "Knapweed", "Linnet",
};
const size_t mix_n_keys = sizeof(mix_keys) / sizeof(mix_keys[0]);

const char *const mix_values[] = {
    "Harrow",   "Silverton", "Marlowe",  "Bridgit",   "Castor",  "Delphine",
    "Everett",  "Fairfax",   "Greta",    "Hollis",    "Ingram",  "Jocelyn",
    "Kendrick", "Lowell",    "Mirabel",  "Norwood",   "Ottilie", "Preston",
    "Quentin",  "Rosalind",  "Sheridan", "Tobias",    "Ursula",  "Valentin",
    "Winslow",  "Yolanda",   "Ambrose",  "Beatrix",   "Cedric",  "Dunstan",
    "Eleanor",  "Florian",   "Gideon",   "Henrietta", "Isidore", "Josephine",
    "Killian",  "Leopold",   "Matilda",  "Nathaniel", "Octavia", "Percival",
    "Ravenna",  "Sebastian", "Theodora", "Ulrich",    "Verena",  "Wilhelmina",
};
const size_t mix_n_values = sizeof(mix_values) / sizeof(mix_values[0]);
