/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lets a library that was linked with a new glibc run with glibc 2.28 (a wheel, -Dportable=true).
 *
 * Some functions got a new symbol version when glibc 2.33 and 2.34 moved them, without any change
 * that matters here: a library that names the new version does not load with an older glibc. The
 * linker sends calls of these functions here (--wrap). Those that moved from libdl and libpthread
 * have their old version in every glibc since; stat had no symbol at all, and is a plain system
 * call on this architecture. tools/dist fails if the library comes to need another newer symbol.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if !defined(__x86_64__)
#    error                                                                                         \
        "-Dportable=true is known for x86-64 only: the old symbol versions and struct stat differ elsewhere"
#endif

int __wrap_fstat64(int fd, struct stat *st);
int __wrap_stat64(const char *path, struct stat *st);
int __wrap_lstat64(const char *path, struct stat *st);
int __wrap_fstatat64(int directory_fd, const char *path, struct stat *st, int flags);
int __wrap_dladdr(const void *address, Dl_info *info);
int __wrap_pthread_condattr_setclock(pthread_condattr_t *attributes, clockid_t clock);
int __wrap_posix_spawn_file_actions_addclosefrom_np(posix_spawn_file_actions_t *actions, int from);

int old_dladdr(const void *address, Dl_info *info);
int old_condattr_setclock(pthread_condattr_t *attributes, clockid_t clock);
__asm__(".symver old_dladdr, dladdr@GLIBC_2.2.5");
__asm__(".symver old_condattr_setclock, pthread_condattr_setclock@GLIBC_2.3.3");

int __wrap_fstat64(int fd, struct stat *st) {
    return (int)syscall(SYS_fstat, fd, st);
}

int __wrap_stat64(const char *path, struct stat *st) {
    return (int)syscall(SYS_stat, path, st);
}

int __wrap_lstat64(const char *path, struct stat *st) {
    return (int)syscall(SYS_lstat, path, st);
}

int __wrap_fstatat64(int directory_fd, const char *path, struct stat *st, int flags) {
    return (int)syscall(SYS_newfstatat, directory_fd, path, st, flags);
}

int __wrap_dladdr(const void *address, Dl_info *info) {
    return old_dladdr(address, info);
}

int __wrap_pthread_condattr_setclock(pthread_condattr_t *attributes, clockid_t clock) {
    return old_condattr_setclock(attributes, clock);
}

/* Older versions have no such function. The engine closes inherited descriptors as its first
 * action. */
int __wrap_posix_spawn_file_actions_addclosefrom_np(posix_spawn_file_actions_t *actions, int from) {
    (void)actions;
    (void)from;
    return 0;
}
