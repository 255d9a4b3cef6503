/* malloc_conf.c - how jemalloc is set up; linked into the program only, next
 * to jemalloc, which looks for a variable of this name before main. */

extern const char *malloc_conf;

/* A burst of requests must not leave its memory behind: unused pages go back
 * after a second, from a thread of the allocator's own, so that no request
 * pays for it. */
const char *malloc_conf =
    "background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0";
