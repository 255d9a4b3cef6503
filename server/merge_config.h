/* merge_config.h - the options --merge-* as the engine and `ebb eval` take
 * them: names, ranges and defaults are those of the option table, for both.
 *
 * Threads: plain data.
 */
#ifndef SERVER_MERGE_CONFIG_H
#define SERVER_MERGE_CONFIG_H

#include "config/config.h"
#include "runtime/engine/engine.h"

struct merge_options merge_config_options(const struct config *c);

#endif
