/* SPDX-License-Identifier: Apache-2.0 */
#include "build/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"

#define MAX_LINKS 40

int source_of_directory(int fd, struct source *ret_source) {
    struct source source = { .top = { .fds = calloc(1, sizeof *source.top.fds),
                                 .stats = calloc(1, sizeof *source.top.stats) } };
    int r = source.top.fds && source.top.stats ? 0 : -ENOMEM;

    if (r == 0) {
        source.top.fds[0] = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (source.top.fds[0] < 0 || fstat(source.top.fds[0], &source.top.stats[0]) < 0)
            r = -errno;
        source.top.n = source.top.fds[0] >= 0;
    }
    if (r < 0)
        source_done(&source);
    else
        *ret_source = source;
    return r;
}

void source_done(struct source *source) {
    stack_done(&source->top);
}

/* ---- lookups ---- */

static int copy_stack(const struct stack *from, struct stack *ret_stack) {
    struct stack stack = { .fds = calloc(from->n + 1, sizeof *stack.fds),
        .stats = calloc(from->n + 1, sizeof *stack.stats) };

    if (!stack.fds || !stack.stats) {
        stack_done(&stack);
        return -ENOMEM;
    }
    for (size_t i = 0; i < from->n; i++) {
        stack.fds[i] = openat(from->fds[i], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (stack.fds[i] < 0) {
            int r = -errno;

            stack_done(&stack);
            return r;
        }
        stack.stats[i] = from->stats[i];
        stack.n++;
    }
    *ret_stack = stack;
    return 0;
}

static int find_top(const struct source *source, struct found *ret_found) {
    struct found found = { .there = true, .st.st_mode = S_IFDIR | 0755 };
    int r = copy_stack(&source->top, &found.below);

    if (r < 0)
        return r;
    if (source->top.n)
        found.st = source->top.stats[0];
    *ret_found = found;
    return 0;
}

int source_find(const struct source *source, const char *path, struct found *ret_found) {
    struct found at;
    int r = find_top(source, &at);

    while (r == 0 && *path) {
        char name[256];
        size_t n = strcspn(path, "/");
        struct found next;

        if (n >= sizeof name)
            r = -ENAMETOOLONG;
        else if (!S_ISDIR(at.st.st_mode))
            r = -ENOTDIR;
        if (r < 0)
            break;
        memcpy(name, path, n);
        name[n] = '\0';
        r = stack_find(&at.below, name, &next);
        if (r == 0 && !next.there) {
            found_done(&next);
            r = -ENOENT;
        }
        if (r < 0)
            break;
        found_done(&at);
        at = next;
        path += n + (path[n] == '/');
    }
    if (r < 0) {
        found_done(&at);
        return r;
    }
    *ret_found = at;
    return 0;
}

/* The directory of a path and its last name. */
static int find_parent(const struct source *source, const char *path, struct found *ret_parent,
    const char **ret_name) {
    const char *slash = strrchr(path, '/');
    auto_free char *directory = slash ? strndup(path, (size_t)(slash - path)) : strdup("");

    *ret_name = slash ? slash + 1 : path;
    return directory ? source_find(source, directory, ret_parent) : -ENOMEM;
}

static int open_found(const struct stack *parent, const struct found *found, const char *name) {
    return found->source < parent->n ? files_open(parent->fds[found->source], name, 0) : -ENOENT;
}

int source_open_file(const struct source *source, const char *path) {
    struct found parent, found;
    const char *name;
    int r = find_parent(source, path, &parent, &name);

    if (r < 0)
        return r;
    r = stack_find(&parent.below, name, &found);
    if (r == 0) {
        r = !found.there                 ? -ENOENT
            : !S_ISREG(found.st.st_mode) ? -EINVAL
                                         : open_found(&parent.below, &found, name);
        found_done(&found);
    }
    found_done(&parent);
    return r;
}

static char *link_target(const struct source *source, const char *path) {
    struct found parent, found;
    const char *name;
    char *target = NULL;

    if (find_parent(source, path, &parent, &name) < 0)
        return NULL;
    if (stack_find(&parent.below, name, &found) == 0) {
        if (found.there && S_ISLNK(found.st.st_mode))
            target = files_link(parent.below.fds[found.source], name, &found.st);
        found_done(&found);
    }
    found_done(&parent);
    return target;
}

/* Puts a link's target before the rest of the path. */
static int follow(
    const struct source *source, struct buf *done, size_t parent_length, char **rest) {
    buf_add(done, "", 1);
    if (buf_failed(done))
        return -ENOMEM;
    auto_free char *target = link_target(source, done->data);
    char *longer = NULL;
    if (!target)
        return -ENOENT;
    if (strlen(target) + strlen(*rest) > 65536)
        return -ENAMETOOLONG;
    if (asprintf(&longer, "%s/%s", target, *rest) < 0)
        return -ENOMEM;
    free(*rest);
    *rest = longer;
    done->length = target[0] == '/' ? 0 : parent_length;
    return 0;
}

static void go_up(struct buf *done) {
    while (done->length && done->data[--done->length] != '/')
        ;
}

/* The path so far: 1 if it is a link; 0; -ENOENT if it is missing. */
static int is_link(const struct source *source, struct buf *done) {
    struct found found;

    buf_add(done, "", 1);
    if (buf_failed(done))
        return -ENOMEM;
    done->length--;
    int r = source_find(source, done->data, &found);
    if (r < 0)
        return r;
    r = S_ISLNK(found.st.st_mode);
    found_done(&found);
    return r;
}

int source_resolve(const struct source *source, const char *path, enum source_tail tail,
    char **ret_path, struct found *ret_found) {
    auto_buf struct buf done = BUF_INIT;
    char *rest = strdup(path);
    unsigned links = 0;
    bool missing = false;
    int r = rest ? 0 : -ENOMEM;

    while (r == 0 && rest[strspn(rest, "/")]) {
        char *at = rest + strspn(rest, "/");
        size_t n = strcspn(at, "/"), before = done.length;
        const bool is_last = !at[n + strspn(at + n, "/")];

        if (n == 2 && at[0] == '.' && at[1] == '.') {
            go_up(&done);
        } else if (!(n == 1 && at[0] == '.')) {
            if (done.length)
                buf_add(&done, "/", 1);
            buf_add(&done, at, n);
        }
        char *next = strdup(at + n);
        free(rest);
        rest = next;
        if (!rest) {
            r = -ENOMEM;
            break;
        }
        if (missing || (is_last && tail == SOURCE_TAIL_KEPT))
            continue;
        r = is_link(source, &done);
        if (r == -ENOENT && !ret_found) {
            missing = true;
            r = 0;
        }
        if (r > 0)
            r = ++links > MAX_LINKS ? -ELOOP : follow(source, &done, before, &rest);
    }
    free(rest);
    buf_add(&done, "", 1);
    if (r == 0 && buf_failed(&done))
        r = -ENOMEM;
    if (r == 0 && ret_found)
        r = source_find(source, done.data, ret_found);
    if (r == 0 && ret_path)
        *ret_path = buf_take(&done);
    return r;
}

int source_read(const struct source *source, const char *path, size_t limit, char **ret_text) {
    auto_free char *plain = NULL;
    auto_buf struct buf text = BUF_INIT;
    struct found found;
    int r = source_resolve(source, path, SOURCE_TAIL_FOLLOWED, &plain, &found);

    if (r < 0)
        return r;
    found_done(&found);
    auto_close int fd = source_open_file(source, plain);
    if (fd < 0)
        return fd;
    r = fd_read_all(fd, limit, &text);
    if (r < 0)
        return r;
    buf_add(&text, "", 1);
    *ret_text = buf_failed(&text) ? NULL : buf_take(&text);
    return *ret_text ? 0 : -ENOMEM;
}

/* ---- walks ---- */

struct ancestor {
    const struct source_entry *entry;
    struct ancestor *above;
    bool visited;
};

struct walk {
    const struct source *source;
    const struct ignore *excluded;
    size_t start_length; /* of the start's path and its slash */
    source_visitor visit;
    void *context;
    struct rollbox_error *error;
    unsigned depth;
};

static int fail_walk(struct walk *walk, int r, const char *path) {
    return error_set(walk->error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "build",
        "cannot read %s: %s", files_printable(path), strerror(-r));
}

/* Directories that are left out are visited if something in them is not. */
static int visit_ancestors(struct walk *walk, struct ancestor *ancestor) {
    if (!ancestor || ancestor->visited)
        return 0;
    int r = visit_ancestors(walk, ancestor->above);
    ancestor->visited = true;
    return r < 0 ? r : walk->visit(walk->context, ancestor->entry, walk->error);
}

enum { WANTED, IGNORED_BUT_ENTERED, IGNORED };

static int is_ignored(const struct ignore *ignore, const char *path, bool directory) {
    if (!ignore || !path[0] || !ignore_matches(ignore, path))
        return WANTED;
    return directory && ignore->has_includes ? IGNORED_BUT_ENTERED : IGNORED;
}

static int walk_entry(struct walk *walk, const struct stack *parent, const char *name,
    struct found *found, const char *path, struct ancestor *above);

static int walk_names(
    struct walk *walk, const struct stack *directory, const char *path, struct ancestor *ancestor) {
    struct names names;
    int r = stack_names(directory, &names);

    if (r < 0)
        return fail_walk(walk, r, path);
    for (size_t i = 0; r == 0 && i < names.n; i++) {
        auto_free char *inner = NULL;
        struct found found;

        r = stack_find(directory, names.list[i], &found);
        if (r < 0) {
            r = fail_walk(walk, r, path);
            break;
        }
        if (found.there) {
            if (asprintf(&inner, "%s%s%s", path, path[0] ? "/" : "", names.list[i]) < 0)
                r = fail_walk(walk, -ENOMEM, path);
            else
                r = walk_entry(walk, directory, names.list[i], &found, inner, ancestor);
        }
        found_done(&found);
    }
    names_done(&names);
    return r;
}

/* Fills an entry. Frees nothing on failure. */
static int fill_entry(struct source_entry *entry, const struct stack *parent, const char *name,
    const struct found *found, char **ret_target) {
    if (S_ISREG(found->st.st_mode)) {
        entry->fd = open_found(parent, found, name);
        if (entry->fd < 0)
            return entry->fd;
    } else if (S_ISLNK(found->st.st_mode)) {
        *ret_target = files_link(parent->fds[found->source], name, &found->st);
        if (!*ret_target)
            return -errno;
        entry->target = *ret_target;
    } else if (S_ISDIR(found->st.st_mode) && found->below.n) {
        entry->fd = found->below.fds[0];
    }
    files_owner(entry->fd, &found->st, &entry->owner);
    return 0;
}

static int walk_entry(struct walk *walk, const struct stack *parent, const char *name,
    struct found *found, const char *path, struct ancestor *above) {
    const bool is_directory = S_ISDIR(found->st.st_mode);
    const char *below = strlen(path) > walk->start_length ? path + walk->start_length : "";
    struct source_entry entry = { .path = below, .st = found->st, .fd = -EBADF };
    auto_free char *target = NULL;
    int ignored = is_ignored(walk->source->ignore, path, is_directory);

    ignored = MAX(ignored, is_ignored(walk->excluded, below, is_directory));
    if (ignored == IGNORED || files_is_left_out(&found->st))
        return 0;
    int r = fill_entry(&entry, parent, name, found, &target);
    auto_close int file = S_ISREG(found->st.st_mode) ? entry.fd : -EBADF;
    if (r < 0)
        return fail_walk(walk, r, path);
    struct ancestor here = { &entry, above, false };
    if (ignored == WANTED)
        r = visit_ancestors(walk, &here);
    if (r < 0 || !is_directory)
        return r;
    if (++walk->depth > FILES_MAX_DEPTH)
        return fail_walk(walk, -ELOOP, path);
    r = walk_names(walk, &found->below, path, &here);
    walk->depth--;
    return r;
}

int source_walk(const struct source *source, const char *path, const struct ignore *excluded,
    source_visitor visit, void *context, struct rollbox_error *error) {
    struct walk walk = { .source = source,
        .excluded = excluded,
        .start_length = path[0] ? strlen(path) + 1 : 0,
        .visit = visit,
        .context = context,
        .error = error };
    struct found parent = { 0 }, found;
    const char *name = "";
    int r = path[0] ? find_parent(source, path, &parent, &name) : 0;

    if (r == 0)
        r = source_find(source, path, &found);
    if (r < 0) {
        found_done(&parent);
        return fail_walk(&walk, r, path);
    }
    r = walk_entry(&walk, &parent.below, name, &found, path, NULL);
    found_done(&found);
    found_done(&parent);
    return r;
}

/* ---- patterns ---- */

static int glob_in(
    const struct source *source, const char *directory, const char *pattern, struct words *paths) {
    size_t n = strcspn(pattern, "/");
    auto_free char *part = strndup(pattern, n), *plain = NULL;
    const bool is_last = !pattern[n + strspn(pattern + n, "/")];
    struct found found;
    struct names names;

    if (!part)
        return -ENOMEM;
    int r = source_resolve(source, directory, SOURCE_TAIL_FOLLOWED, &plain, &found);
    if (r == -ENOENT || r == -ENOTDIR)
        return 0;
    if (r < 0)
        return r;
    r = S_ISDIR(found.st.st_mode) ? stack_names(&found.below, &names) : 1;
    if (r) {
        found_done(&found);
        return MIN(r, 0);
    }
    for (size_t i = 0; r == 0 && i < names.n; i++) {
        auto_free char *path = NULL;
        struct found entry;

        if (!glob_match(part, names.list[i], GLOB_PATH))
            continue;
        r = stack_find(&found.below, names.list[i], &entry);
        if (r < 0)
            break;
        const bool there = entry.there;
        found_done(&entry);
        if (!there)
            continue;
        if (asprintf(&path, "%s%s%s", plain, plain[0] ? "/" : "", names.list[i]) < 0)
            r = -ENOMEM;
        else if (!is_last)
            r = glob_in(source, path, pattern + n + strspn(pattern + n, "/"), paths);
        else if (!source->ignore || !ignore_matches(source->ignore, path) ||
                 source->ignore->has_includes)
            r = words_add(paths, path, strlen(path));
    }
    names_done(&names);
    found_done(&found);
    return r;
}

int source_glob(const struct source *source, const char *pattern, struct words *paths) {
    return glob_in(source, "", pattern + strspn(pattern, "/"), paths);
}
