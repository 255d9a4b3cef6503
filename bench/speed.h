/* speed.h - `ebb bench`: tokens per second of a model on this machine, by
 * prompt length, and by batch size and depth of context.
 *
 * The model runs as the server runs it, but for HTTP, sampling and
 * scheduling. Decode is measured on caches that were filled without
 * computing: speed does not depend on the values.
 *
 * Threads: the caller's, and a worker pool of its own.
 */
#ifndef BENCH_SPEED_H
#define BENCH_SPEED_H

/* Runs the command; argv[0] is its name, the options follow. Results on stdout,
 * faults on stderr; returns the exit status. */
int speed_main(int argc, char **argv);

#endif
