/* For programs that are linked with --wrap=pthread_create: theirs, and libc's. */
#ifndef GS_TESTS_WRAPPED_THREAD_H
#define GS_TESTS_WRAPPED_THREAD_H

#include <pthread.h>

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *arg);

#endif
