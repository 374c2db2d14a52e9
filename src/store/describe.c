/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"
#include "store/describe.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/utf8.h"
#include "image/process_image.h"
#include "store/hibernate.h"

#define MAX_COMMAND 4096u /* bytes of a command line */

/* ---- processes ---- */

struct view {
    const char *base;
    const struct image *it;
};

#define TABLE(view, part, type) image_table((view)->it, (view)->base, part, type)

/* Names chosen by guests need not be text. */
static json_t *text_of(const void *data, size_t length) {
    auto_buf struct buf clean = BUF_INIT;

    utf8_replace(&clean, data, length);
    return buf_failed(&clean) ? NULL : json_stringn(text_or(clean.data, ""), clean.length);
}

static json_t *path_of(const struct view *view, uint64_t at) {
    const char *path = view->base + at;

    return text_of(path, strlen(path));
}

static bool has_pages(const struct image_area *area) {
    return area->kind == IMAGE_ANONYMOUS || area->kind == IMAGE_STACK;
}

static uint64_t bytes_of(const struct view *view, struct image_range runs) {
    const struct image_run *run = TABLE(view, runs, struct image_run) + runs.first;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < runs.n; i++)
        bytes += run[i].length;
    return bytes;
}

/* The part of a process's memory that the image has; other bytes stay unchanged. */
static void read_memory(const struct view *view, const struct image_process *p, uint64_t address,
    char *to, uint64_t length) {
    const struct image_area *areas = TABLE(view, areas, struct image_area) + p->areas.first;

    for (uint32_t i = 0; i < p->areas.n; i++) {
        const struct image_run *runs = TABLE(view, runs, struct image_run) + areas[i].runs.first;

        if (!has_pages(&areas[i]) || address >= areas[i].end || areas[i].start >= address + length)
            continue;
        for (uint32_t k = 0; k < areas[i].runs.n; k++) {
            uint64_t from = MAX(runs[k].address, address),
                     end = MIN(runs[k].address + runs[k].length, address + length);

            if (from < end)
                memcpy(to + (from - address), view->base + runs[k].at + (from - runs[k].address),
                    end - from);
        }
    }
}

/* The command line, as in /proc/PID/cmdline: it is in the guest's memory, so it may be false. */
static json_t *command_of(const struct view *view, const struct image_process *p) {
    const struct image_layout *layout = &p->layout;
    char text[MAX_COMMAND] = { 0 };

    if (layout->arg_start >= IMAGE_HIGHEST || layout->arg_end <= layout->arg_start)
        return json_null();
    uint64_t length = MIN(layout->arg_end - layout->arg_start, (uint64_t)sizeof text);
    read_memory(view, p, layout->arg_start, text, length);
    while (length && !text[length - 1])
        length--;
    for (uint64_t i = 0; i < length; i++)
        if (!text[i])
            text[i] = ' ';
    return length ? text_of(text, length) : json_null();
}

static const char *kind_of(const struct image_file *file) {
    switch ((enum image_file_kind)file->kind) {
    case IMAGE_FILE_PATH:
        return S_ISREG(file->mode)    ? "file"
               : S_ISDIR(file->mode)  ? "directory"
               : S_ISFIFO(file->mode) ? "fifo"
                                      : "device";
    case IMAGE_FILE_EXTERNAL:
        return "client";
    case IMAGE_FILE_PIPE:
        return "pipe";
    case IMAGE_FILE_MEMORY:
        return file->is_nameless ? "deleted" : "memory";
    case IMAGE_FILE_EVENT:
        return "eventfd";
    case IMAGE_FILE_EPOLL:
        return "epoll";
    case IMAGE_FILE_TIMER:
        return "timerfd";
    case IMAGE_FILE_SIGNAL:
        return "signalfd";
    case IMAGE_FILE_SOCKET:
        return file->backlog                               ? "listening"
               : file->domain == AF_UNIX || file->is_alone ? "socket"
                                                           : "connection";
    case IMAGE_FILE_PIDFD:
        return "pidfd";
    case IMAGE_FILE_MASTER:
        return "master";
    case IMAGE_FILE_TERMINAL:
        return "terminal";
    case IMAGE_FILE_HUNG_UP:
        return "hung up";
    case IMAGE_FILE_NOTIFY:
        return "inotify";
    case IMAGE_FILE_CLOCK:
        return "clock";
    }
    return "other";
}

static json_t *descriptors_of(const struct view *view, const struct image_process *p) {
    const struct image_file *files = TABLE(view, files, struct image_file);
    const struct image_fd *fds = TABLE(view, fds, struct image_fd) + p->fds.first;
    json_t *kinds = json_object();

    for (uint32_t i = 0; i < p->fds.n; i++) {
        const char *kind = kind_of(&files[fds[i].file]);

        if (json_object_set_new(kinds, kind,
                json_integer(json_integer_value(json_object_get(kinds, kind)) + 1)) < 0) {
            json_decref(kinds);
            return NULL;
        }
    }
    return kinds;
}

static json_t *threads_of(const struct view *view, const struct image_process *p) {
    const struct image_thread *threads =
        TABLE(view, threads, struct image_thread) + p->threads.first;
    json_t *rows = json_array();

    for (uint32_t i = 0; i < p->threads.n; i++)
        if (json_array_append_new(rows,
                json_pack("{s:I, s:o}", "tid", (json_int_t)threads[i].tid, "name",
                    text_of(threads[i].name, strnlen(threads[i].name, sizeof threads[i].name)))) <
            0) {
            json_decref(rows);
            return NULL;
        }
    return rows;
}

static json_t *describe_process(
    const struct view *view, const struct image_process *p, json_int_t parent) {
    const struct image_area *areas = TABLE(view, areas, struct image_area) + p->areas.first;
    const struct image_thread *first = TABLE(view, threads, struct image_thread) + p->threads.first;
    const struct image_guard *guards = TABLE(view, guards, struct image_guard);
    uint64_t memory = 0, mapped = 0, guarded = 0;

    for (uint32_t i = 0; i < p->areas.n; i++) {
        memory += has_pages(&areas[i]) ? bytes_of(view, areas[i].runs) : 0;
        mapped += areas[i].end - areas[i].start;
        for (uint32_t k = 0; k < areas[i].guards.n; k++)
            guarded += guards[areas[i].guards.first + k].length;
    }
    return json_pack("{s:I, s:I, s:I, s:I, s:s, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:o, s:o}",
        "pid", (json_int_t)p->pid, "parent", parent, "session", (json_int_t)p->session, "group",
        (json_int_t)p->group, "state", "living", "name",
        text_of(first->name, strnlen(first->name, sizeof first->name)), "command",
        command_of(view, p), "executable", path_of(view, p->executable), "directory",
        path_of(view, p->directory), "memory_bytes", (json_int_t)memory, "mapped_bytes",
        (json_int_t)mapped, "guarded_bytes", (json_int_t)guarded, "threads", threads_of(view, p),
        "descriptors", descriptors_of(view, p));
}

json_t *describe_processes(const void *base, uint64_t length) {
    const struct view view = { base,
        (const void *)((const char *)base + length - sizeof(struct image)) };
    const struct image_process *processes = TABLE(&view, processes, struct image_process);
    json_t *rows = json_array();

    for (uint64_t i = 0; rows && i < view.it->processes.n; i++) {
        const struct image_process *p = &processes[i];
        json_int_t parent = p->parent ? (json_int_t)processes[p->parent - 1].pid : 1;
        json_t *row =
            p->kind == IMAGE_LIVING
                ? describe_process(&view, p, parent)
                : json_pack("{s:I, s:I, s:I, s:I, s:s}", "pid", (json_int_t)p->pid, "parent",
                      parent, "session", (json_int_t)p->session, "group", (json_int_t)p->group,
                      "state", p->kind == IMAGE_ZOMBIE ? "zombie" : "gone");

        if (json_array_append_new(rows, row) < 0) {
            json_decref(rows);
            return NULL;
        }
    }
    return json_pack("{s:o, s:o}", "kernel",
        text_of(view.it->release, strnlen(view.it->release, sizeof view.it->release)), "processes",
        rows);
}

/* ---- obstacles to a restore ---- */

/* `why`: NULL if nothing would. */
static void add_check(json_t *state, const char *what, const char *why) {
    json_t *checks = json_object_get(state, "checks");

    if (checks)
        json_array_append_new(checks, json_pack("{s:s, s:b, s:o}", "what", what, "ok", why == NULL,
                                          "why", why ? text_of(why, strlen(why)) : json_null()));
}

/* The length of the longest of these that a path lies in. */
static size_t depth_in(const char *path, const json_t *directories) {
    const json_t *item;
    size_t i, deepest = 0;

    json_array_foreach(directories, i, item) {
        const char *directory = json_string_value(item);
        size_t length = directory ? strlen(directory) : 0;

        if (length && !strncmp(path, directory, length) &&
            (!path[length] || path[length] == '/' || directory[length - 1] == '/'))
            deepest = MAX(deepest, length);
    }
    return deepest;
}

/* Programs and libraries are mapped from the host again, so they must be unchanged. Files in the
 * sandbox's own places are in its layers, and grants below these places are the host's. */
static void check_mapped(const struct view *view, const json_t *places, json_t *state) {
    const json_t *own = json_object_get(places, "own"),
                 *granted = json_object_get(places, "granted");
    const struct image_area *areas = TABLE(view, areas, struct image_area);
    auto_buf struct buf why = BUF_INIT;

    for (uint64_t i = 0; i < view->it->areas.n && !why.length; i++) {
        const char *path = areas[i].kind == IMAGE_FILE ? view->base + areas[i].path : NULL;
        struct stat st;

        if (!path || areas[i].is_written || depth_in(path, own) > depth_in(path, granted))
            continue;
        if (stat(path, &st) < 0)
            buf_printf(&why, "%s, which a process has mapped: %s", path, strerror(errno));
        else if ((uint64_t)st.st_size != areas[i].size || st.st_mtim.tv_sec != areas[i].mtime_s ||
                 st.st_mtim.tv_nsec != areas[i].mtime_ns)
            buf_printf(&why,
                "%s, which a process has mapped, was replaced or changed (its size or change time "
                "differs)",
                path);
    }
    add_check(state, "mapped files", why.length ? why.data : NULL);
}

static int describe_image(
    int fd, const json_t *places, json_t *state, struct rollbox_error *error) {
    struct utsname kernel;
    struct stat st;

    if (fstat(fd, &st) < 0)
        return error_set(error, ROLLBOX_ERR_IO, errno, "store",
            "the process image cannot be read: %s", strerror(errno));
    void *base =
        st.st_size ? mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    if (base == MAP_FAILED)
        return error_set(error, ROLLBOX_ERR_IO, st.st_size ? errno : EINVAL, "store",
            "the process image cannot be read");
    bool is_sound = image_is_sound(base, (uint64_t)st.st_size);
    json_t *found = is_sound ? describe_processes(base, (uint64_t)st.st_size) : NULL;
    int r = found ? json_object_update(state, found) : 0;

    json_decref(found);
    if (is_sound && (!found || r < 0)) {
        munmap(base, (size_t)st.st_size);
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "store", "out of memory");
    }
    add_check(state, "tables",
        is_sound ? NULL
                 : "the process image is invalid: a table, range or address leads outside of it, "
                   "or it has another version");
    if (is_sound) {
        const struct view view = { base,
            (const void *)((const char *)base + st.st_size - (off_t)sizeof(struct image)) };
        bool same = uname(&kernel) == 0 &&
                    !strncmp(kernel.release, view.it->release, sizeof view.it->release - 1);

        add_check(state, "kernel",
            same ? NULL : "the processes are from another kernel than the running one");
        if (places)
            check_mapped(&view, places, state);
    }
    munmap(base, (size_t)st.st_size);
    return 0;
}

/* ---- jobs ---- */

static json_t *begin_description(const json_t *root, struct rollbox_error *error) {
    json_t *state = json_deep_copy(json_object_get(root, "state"));

    if (!json_is_object(state)) {
        json_decref(state);
        error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "the job's \"state\" is missing or not valid");
        return NULL;
    }
    return state;
}

/* Refused if any check is. */
static void settle_description(json_t *state) {
    const json_t *checks = json_object_get(state, "checks"), *check;
    bool is_sound = true;
    size_t i;

    json_array_foreach(checks, i, check) is_sound &= !json_is_false(json_object_get(check, "ok"));
    if (checks)
        json_object_set_new(state, "sound", json_boolean(is_sound));
}

int describe_state(const struct job *job, json_t **ret_json, struct rollbox_error *error) {
    const json_t *image = json_object_get(job->root, "image");
    struct rollbox_error unreadable;
    json_t *state = begin_description(job->root, error), *changes = NULL;

    if (!state)
        return -EINVAL;
    int r = json_is_integer(image)
                ? describe_image((int)json_integer_value(image), NULL, state, error)
                : 0;
    bool verifies = json_object_get(state, "checks");
    if (r == 0)
        r = changes_json(job, &changes, verifies ? &unreadable : error);
    if (verifies && (changes || r < 0)) {
        add_check(state, "layers", r < 0 ? unreadable.message : NULL);
        r = 0;
    }
    if (r == 0 && changes)
        r = json_object_update(state, changes);
    json_decref(changes);
    settle_description(state);
    if (r < 0)
        json_decref(state);
    else
        *ret_json = state;
    return r;
}

int describe_hibernated(int store, int fd, json_t **ret_json, struct rollbox_error *error) {
    struct hibernate_job job;
    int r = hibernate_job_read(fd, &job, error);

    if (r < 0)
        return r;
    const json_t *index = json_object_get(job.root, "image");
    json_t *state = begin_description(job.root, error);
    auto_close int image = -EBADF;
    struct rollbox_error damage;
    r = state ? 0 : -EINVAL;
    if (r == 0 && json_object_get(state, "checks"))
        add_check(
            state, "digests", hibernate_verify(store, job.id, &damage) < 0 ? damage.message : NULL);
    if (r == 0 && json_is_integer(index)) {
        image = hibernate_open_image(store, job.id, (size_t)json_integer_value(index));
        r = image < 0 ? error_set(error, ROLLBOX_ERR_IO, -image, "store",
                            "the process image cannot be read: %s", strerror(-image))
                      : describe_image(image, json_object_get(job.root, "places"), state, error);
    }
    hibernate_job_done(&job);
    if (r < 0) {
        json_decref(state);
        return r;
    }
    settle_description(state);
    *ret_json = state;
    return 0;
}
