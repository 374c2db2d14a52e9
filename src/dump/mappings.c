/* SPDX-License-Identifier: Apache-2.0 */
/* The mappings of a process, from /proc/PID/maps: iteration, classification, and the addresses that
 * system calls in the process need. */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "dump/internal.h"
#include "sys/syscalls.h"

bool mappings_ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);

    return n >= m && !strcmp(text + n - m, end);
}

/* The process's root is untrusted, so the path is opened with O_PATH, within that root. */
int mappings_open_path(const struct dump_process *s, const char *path) {
    struct open_how how = { .flags = O_PATH | O_NOFOLLOW | O_CLOEXEC,
        .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS };

    return sys_openat2(s->root, path, &how);
}

int memory_find_path(const struct dump_process *s, const char *path, struct stat *ret_st) {
    auto_close int fd = mappings_open_path(s, path);

    if (fd < 0)
        return fd;
    return fstat(fd, ret_st) < 0 ? -errno : 0;
}

/* Shared memory without a name, and memory files. Their pages are saved once for all processes. */
bool mappings_is_nameless(const struct map_line *map) {
    return map->is_shared && (!map->path[0] || !strncmp(map->path, "/memfd:", 7) ||
                                 !strncmp(map->path, "/dev/zero (deleted)", 19) ||
                                 !strncmp(map->path, "[anon_shmem:", 12) ||
                                 mappings_ends_with(map->path, " (deleted)"));
}

#define LEFT                                                                                       \
    "\n003ff000-00400000 r-xp" /* the line in /proc/PID/maps of the last of these mappings */
_Static_assert(IMAGE_TRAMPOLINE == 0x3ff000 && IMAGE_LOWEST == 0x400000, "it lies there");

/* [vsyscall] is the same in all processes. The other mappings are remains of an earlier restore,
 * recognised because all of them exist, at fixed addresses. Otherwise the memory belongs to the
 * guest. */
bool mappings_is_nobodys(const struct dump_process *s, const struct map_line *map) {
    return map->start >= IMAGE_HIGHEST ||
           (map->end <= IMAGE_LOWEST &&
               (map->start == IMAGE_FRAMES || map->start == IMAGE_THREAD_BARRIER ||
                   map->start == IMAGE_TRAMPOLINE) &&
               strstr(s->maps.data, LEFT));
}

int mappings_each(struct dump *c, struct dump_process *s, mappings_call *call, void *data) {
    char line[MAX_LINE];
    int r = 0;

    for (const char *at = s->maps.data, *end; *at && r == 0; at = end + (*end == '\n')) {
        struct map_line map;

        end = strchrnul(at, '\n');
        if ((size_t)(end - at) >= sizeof line)
            return dump_refuse(c, ENAMETOOLONG, "a line of its /proc/PID/maps is too long");
        memcpy(line, at, (size_t)(end - at));
        line[end - at] = '\0';
        r = map_line_parse(line, &map) < 0
                ? dump_refuse(c, EBADMSG, "a line of its /proc/PID/maps cannot be parsed")
                : call(c, s, &map, data);
    }
    return r;
}

bool mappings_is_looked_at(const struct dump_process *s, const struct map_line *map) {
    return !mappings_is_nobodys(s, map) && map->start >= IMAGE_LOWEST;
}

struct private_lines {
    int (*call)(void *data, uint64_t start, uint64_t end);
    void *data;
};

/* A read-only file mapping counts too, because pages of it may be private copies: a loader's
 * relocations. */
static int pass_private(
    struct dump *c, struct dump_process *s, const struct map_line *map, void *data) {
    const struct private_lines *lines = data;
    bool is_kernels = !strncmp(map->path, "[v", 2);

    if (map->is_shared || is_kernels || !mappings_is_looked_at(s, map))
        return 0;
    int own = map->path[0] == '/' && !(map->protection & PROT_WRITE)
                  ? pages_each_own(c, s, map->start, map->end, pages_is_there, NULL)
                  : 1;
    return own <= 0 ? own : lines->call(lines->data, map->start, map->end);
}

int memory_each_private(struct dump *c, struct dump_process *s,
    int (*call)(void *data, uint64_t start, uint64_t end), void *data) {
    return mappings_each(c, s, pass_private, &(struct private_lines){ call, data });
}

/* The vDSO has a `syscall` instruction. The top of the stack, or else of other writable memory,
 * serves as scratch space. */
static int find_tool(
    struct dump *c, struct dump_process *s, const struct map_line *map, void *data) {
    bool writable = !map->is_shared &&
                    (map->protection & (PROT_READ | PROT_WRITE)) == (PROT_READ | PROT_WRITE) &&
                    map->start >= IMAGE_LOWEST;

    (void)c, (void)data;
    if (!strcmp(map->path, "[vdso]"))
        (void)trace_find_instruction(&s->tools, map->start, map->end - map->start);
    if (writable && (!strcmp(map->path, "[stack]") || !s->tools.scratch))
        s->tools.scratch = map->end - TRACE_SCRATCH;
    return 0;
}

int memory_find_tools(struct dump *c, struct dump_process *s) {
    int r = dump_read(c, s, "maps", &s->maps);

    if (r < 0)
        return dump_fail(c, "its mappings", r);
    r = mappings_each(c, s, find_tool, NULL);
    return r < 0 ? r
           : s->tools.instruction && s->tools.scratch
               ? 0
               : dump_refuse(c, ENOTSUP, "it has no vDSO, or no writable memory");
}
