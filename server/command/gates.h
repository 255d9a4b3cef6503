/* gates.h - the command `ebb gates`: trains retention gates and shows them.
 *
 * Threads: the main thread.
 */
#ifndef SERVER_COMMAND_GATES_H
#define SERVER_COMMAND_GATES_H

#include <stdatomic.h>

/* argv are the words after `gates`. Returns the exit status: 0 done, 1 it
 * failed or was stopped, 2 the words make no sense. stop: set by a signal
 * handler; training then writes its checkpoint and ends. */
int gates_command(int argc, char *const *argv, const atomic_bool *stop);

/* Prints the help of `train`, of `show`, or (NULL) of both in short. */
int gates_help(const char *name);

#endif
