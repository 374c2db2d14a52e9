/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the changes that layers make.
 *
 * The function walks two stacks of directories together: the view with the upper layers, and the
 * view below them. Only names in the upper layers can differ, unless one of their directories is
 * opaque; then everything below it that is not also in it counts as deleted. A file that was copied
 * up but has the same bytes as before is not a change.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/text.h"
#include "base/utf8.h"
#include "store/digest.h"
#include "store/files.h"
#include "store/job.h"
#include "store/digest.h"
#include "store/textdiff.h"

#define MAX_DIFF_TOTAL (64u << 20) /* bytes of text diffs in one answer */
#define MAX_DIGEST                                                                                 \
    ((off_t)1 << 30) /* bytes of a file: holes cost a guest nothing, but reading them us */
#define MAX_PATHS_TOTAL                                                                            \
    (64u << 20) /* and of paths: a guest can make these long, and many, at no cost of its own */

struct comparing {
    change_visitor visit;
    void *context;
    struct rollbox_error *error;
    struct buf path;
    unsigned depth;
    uint64_t entries;
    bool vanished;
};

static int fail_comparing(struct comparing *comparing, int r) {
    return error_set(comparing->error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "store",
        "cannot compare %s: %s",
        comparing->path.length ? files_printable(comparing->path.data) : "the top directory",
        strerror(-r));
}

static int parent_of(const struct stack *stack, const struct found *found) {
    return found->there ? stack->fds[found->source] : -EBADF;
}

static int report_change(struct comparing *comparing, char kind, const char *name,
    const struct stack *below, const struct found *old, const struct stack *upper,
    const struct found *new, bool vanished) {
    struct change change = {
        .kind = kind,
        .path = comparing->path.data ? comparing->path.data : "",
        .name = name,
        .old_name = name,
        .old = old && old->there ? &old->st : NULL,
        .new = new &&new->there ? &new->st : NULL,
        .old_parent = old ? parent_of(below, old) : -EBADF,
        .new_parent = new ? parent_of(upper, new) : -EBADF,
        .old_is_host = old && old->there && below->with_base && old->source == below->n - 1,
        .vanished = vanished,
    };

    return comparing->visit(comparing->context, &change, comparing->error);
}

int changes_differ(const char *name, int old_parent, const struct stat *old, int new_parent,
    const struct stat *new) {
    if ((old->st_mode & S_IFMT) != (new->st_mode &S_IFMT))
        return 1;
    if (S_ISLNK(new->st_mode)) {
        auto_free char *a = files_link(old_parent, name, old);
        auto_free char *b = a ? files_link(new_parent, name, new) : NULL;

        return b ? strcmp(a, b) != 0 : -errno;
    }
    if ((old->st_mode & 07777) != (new->st_mode & 07777))
        return 1;
    if (!S_ISREG(new->st_mode))
        return S_ISDIR(new->st_mode) || S_ISFIFO(new->st_mode) || S_ISSOCK(new->st_mode)
                   ? 0
                   : old->st_rdev != new->st_rdev;
    if (old->st_size != new->st_size)
        return 1;
    if (old->st_ino == new->st_ino && old->st_dev == new->st_dev)
        return 0;
    auto_close int a = files_open(old_parent, name, 0);
    if (a < 0)
        return a;
    auto_close int b = files_open(new_parent, name, 0);
    if (b < 0)
        return b;
    int r = content_same(a, b, (uint64_t) new->st_size);
    return r < 0 ? r : !r;
}

static int compare_directories(
    struct comparing *comparing, const struct stack *upper, const struct stack *below, bool full);

static int compare_name(struct comparing *comparing, const char *name, const struct stack *upper,
    const struct stack *below, bool full) {
    static const struct stack nothing = { 0 };
    struct found new = { 0 }, old = { 0 };
    int r = stack_find(upper, name, &new);

    if (r == 0)
        r = stack_find(below, name, &old);
    if (r < 0) {
        r = fail_comparing(comparing, r);
        goto out;
    }
    bool gone = !new.there && (new.whiteout || full);
    bool new_directory = new.there &&S_ISDIR(new.st.st_mode),
         old_directory = old.there &&S_ISDIR(old.st.st_mode);
    if (gone && old.there)
        r = report_change(comparing, 'D', name, below, &old, upper, NULL, false);
    else if (gone && new.whiteout && comparing->vanished)
        r = report_change(comparing, 'D', name, below, NULL, upper, NULL, true);
    else if (new.there && !old.there)
        r = report_change(comparing, 'A', name, below, NULL, upper, &new, false);
    else if (new.there) {
        int different =
            changes_differ(name, parent_of(below, &old), &old.st, parent_of(upper, &new), &new.st);

        if (different < 0)
            r = fail_comparing(comparing, different);
        else if (different)
            r = report_change(comparing, 'M', name, below, &old, upper, &new, false);
    }
    /* Enters directories: in both trees, only in the new one, or only in the old one. */
    if (r == 0 && (new_directory || (old_directory && (gone || new.there)))) {
        if (++comparing->depth > FILES_MAX_DEPTH)
            r = error_set(comparing->error, ROLLBOX_ERR_INVALID_ARGUMENT, ELOOP, "store",
                "%s: the tree is deeper than %d directories", files_printable(comparing->path.data),
                FILES_MAX_DEPTH);
        else
            r = compare_directories(comparing, new_directory ? &new.below : &nothing,
                old_directory ? &old.below : &nothing, full || new.closed || !new_directory);
        comparing->depth--;
    }
out:
    found_done(&new);
    found_done(&old);
    return r;
}

/* The same directories: snapshots that branch share them. */
static bool are_same(const struct stack *upper, const struct stack *below) {
    for (size_t i = 0; i < upper->n && upper->n == below->n; i++)
        if (upper->stats[i].st_ino != below->stats[i].st_ino ||
            upper->stats[i].st_dev != below->stats[i].st_dev)
            return false;
    return upper->n == below->n;
}

static int compare_directories(
    struct comparing *comparing, const struct stack *upper, const struct stack *below, bool full) {
    size_t base = comparing->path.length;
    struct names names = { 0 }, more = { 0 };

    if (are_same(upper, below))
        return 0;
    int r = stack_names(upper, &names);

    if (r == 0 && full)
        r = stack_names(below, &more);
    if (r < 0)
        r = fail_comparing(comparing, r);
    /* Both lists are sorted: they are merged on the way. */
    for (size_t i = 0, j = 0; r == 0 && (i < names.n || j < more.n);) {
        int order = i >= names.n ? 1 : -1;
        if (i < names.n && j < more.n)
            order = strcmp(names.list[i], more.list[j]);
        const char *name = order <= 0 ? names.list[i] : more.list[j];

        i += order <= 0;
        j += order >= 0;
        if (++comparing->entries > FILES_MAX_ENTRIES) {
            r = error_set(comparing->error, ROLLBOX_ERR_INVALID_ARGUMENT, E2BIG, "store",
                "there are more than %d entries to compare", FILES_MAX_ENTRIES);
            break;
        }
        if (base)
            buf_add(&comparing->path, "/", 1);
        buf_add_text(&comparing->path, name);
        r = buf_failed(&comparing->path)
                ? error_set(comparing->error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "store",
                      "out of memory")
                : compare_name(comparing, name, upper, below, full);
        comparing->path.length = base;
        if (comparing->path.data)
            comparing->path.data[base] = '\0';
    }
    names_done(&names);
    names_done(&more);
    return r;
}

/* A place that is a single file: a layer has it as a regular file, or as a directory with a file of
 * its name in it. Looks from the top down; *ret_parent is its directory, *ret_closed its descriptor
 * to close. 1: there. */
static int file_in(const int *layers, size_t n, const struct job_place *place, int *ret_parent,
    const char **ret_name, int *ret_opened, struct stat *ret_st) {
    const char *name = strrchr(place->path, '/') + 1;

    for (size_t i = n; i-- > 0;) {
        if (fstatat(layers[i], place->part, ret_st, AT_SYMLINK_NOFOLLOW) < 0) {
            if (errno == ENOENT)
                continue;
            return -errno;
        }
        if (S_ISREG(ret_st->st_mode)) {
            *ret_parent = layers[i];
            *ret_name = place->part;
            return 1;
        }
        if (!S_ISDIR(ret_st->st_mode))
            return -EINVAL;
        auto_close int directory = files_open(layers[i], place->part, O_DIRECTORY);
        if (directory < 0)
            return directory;
        if (fstatat(directory, name, ret_st, AT_SYMLINK_NOFOLLOW) < 0) {
            if (errno == ENOENT)
                continue;
            return -errno;
        }
        if (!S_ISREG(ret_st->st_mode))
            return -EINVAL;
        *ret_opened = *ret_parent = TAKE_FD(directory);
        *ret_name = name;
        return 1;
    }
    return 0;
}

/* The part below the layers: a stored snapshot's, or the host's. NULL: none. */
static const char *below_file(const struct job_place *place, bool *ret_is_host) {
    struct stat st;

    *ret_is_host = false;
    for (size_t i = json_array_size(place->under); i-- > 0;) {
        const char *path = json_string_value(json_array_get(place->under, i));

        if (path && lstat(path, &st) == 0)
            return path;
    }
    *ret_is_host = place->base != NULL;
    return place->base;
}

static int changes_of_file(const struct job *job, const struct job_place *place,
    change_visitor visit, void *context, struct rollbox_error *error) {
    auto_close int opened_old = -EBADF;
    auto_close int opened_new = -EBADF;
    auto_close int root = -EBADF;
    auto_close int old = -EBADF;
    auto_close int new = -EBADF;
    const char *old_name = NULL, *new_name = NULL;
    struct change change = { .kind = 'A', .path = "", .old_parent = -EBADF, .new_parent = -EBADF };
    struct stat old_st, new_st;
    int r = file_in(
        job->upper, job->n_upper, place, &change.new_parent, &new_name, &opened_new, &new_st);

    if (r == 0 && job->beside)
        r = file_in(
            job->lower, job->n_shared, place, &change.new_parent, &new_name, &opened_new, &new_st);
    if (r == 0 && job->beside &&
        file_in(job->lower, job->n_lower, place, &change.old_parent, &old_name, &opened_old,
            &old_st) > 0)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "store",
            "%s: this single file was changed in one snapshot and is the host's file in the other, "
            "so the two cannot be compared",
            files_printable(place->path));
    if (r == 0)
        return 0;
    if (r > 0)
        r = file_in(
            job->lower, job->n_lower, place, &change.old_parent, &old_name, &opened_old, &old_st);
    bool is_host;
    const char *base = below_file(place, &is_host);
    if (r == 0 && base) {
        old = open(base, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        r = old < 0 || fstat(old, &old_st) < 0 ? -errno : 1;
        if (old < 0 && r == -ENOENT)
            r = 0;
        root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
        change.old_parent = root;
        change.old_is_host = is_host;
        old_name = base + 1;
    } else if (r == 1) {
        old = files_open(change.old_parent, old_name, 0);
        r = old < 0 ? old : 1;
    }
    bool there = r == 1;
    if (r >= 0) {
        new = files_open(change.new_parent, new_name, 0);
        r = new < 0 ? new : 0;
    }
    if (r == 0 && there) {
        int same = S_ISREG(old_st.st_mode) && old_st.st_size == new_st.st_size &&
                           (old_st.st_mode & 07777) == (new_st.st_mode & 07777)
                       ? content_same(old, new, (uint64_t)new_st.st_size)
                       : 0;

        if (same == 1)
            return 0;
        r = MIN(same, 0);
        change.kind = 'M';
        change.old = &old_st;
    }
    if (r < 0)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "store",
            "cannot compare %s: %s", files_printable(place->path), strerror(-r));
    change.new = &new_st;
    change.name = new_name;
    change.old_name = old_name;
    return visit(context, &change, error);
}

int changes_of_place(const struct job *job, const struct job_place *place, bool vanished,
    change_visitor visit, void *context, struct rollbox_error *error) {
    struct comparing comparing = {
        .visit = visit, .context = context, .error = error, .path = BUF_INIT, .vanished = vanished
    };
    struct stack upper, below;
    bool closed;

    if (place->is_file)
        return changes_of_file(job, place, visit, context, error);
    int r = place_open(job, place, &upper, &below, &closed, error);
    if (r < 0)
        return r;
    if (upper.n || job->beside)
        r = compare_directories(&comparing, &upper, &below, closed);
    buf_done(&comparing.path);
    stack_done(&upper);
    stack_done(&below);
    return r;
}

/* ---- as JSON ---- */

struct listing {
    const struct job *job;
    const struct job_place *place;
    json_t *changes;
    uint64_t diff_bytes, path_bytes, digested, omitted;
};

/* A whole small text file. 1: it is text; 0: it is not, or too large. */
static int read_text(int parent, const char *name, const struct stat *st, struct buf *to) {
    if (!st)
        return 1;
    if (!S_ISREG(st->st_mode) || st->st_size > TEXTDIFF_MAX_BYTES)
        return 0;
    auto_close int fd = files_open(parent, name, 0);
    int r = fd < 0 ? fd : fd_read_all(fd, TEXTDIFF_MAX_BYTES, to);
    if (r < 0)
        return r == -EFBIG ? 0 : r;
    return textdiff_is_text(to->data, to->length);
}

static int add_diff(
    struct listing *listing, const struct change *change, const char *shown, json_t *row) {
    auto_buf struct buf old = BUF_INIT;
    auto_buf struct buf new = BUF_INIT;
    auto_buf struct buf a = BUF_INIT;
    auto_buf struct buf b = BUF_INIT;
    auto_buf struct buf text = BUF_INIT;
    const struct stat *either = change->new ? change->new : change->old;

    if ((change->old && !S_ISREG(change->old->st_mode)) ||
        (change->new && !S_ISREG(change->new->st_mode)))
        return 0;
    if (change->old && change->new && change->old->st_size == 0 && change->new->st_size == 0)
        return 0;
    int r = read_text(change->old_parent, change->old_name, change->old, &old);
    if (r == 1)
        r = read_text(change->new_parent, change->name, change->new, &new);
    if (r < 0)
        return r;
    if (r == 0)
        return json_object_set_new(row,
            MAX(either->st_size, change->old ? change->old->st_size : 0) > TEXTDIFF_MAX_BYTES
                ? "too_large"
                : "binary",
            json_true());
    if (listing->diff_bytes > MAX_DIFF_TOTAL)
        return json_object_set_new(row, "too_large", json_true());
    buf_printf(&a, "a%s", shown);
    buf_printf(&b, "b%s", shown);
    if (buf_failed(&a) || buf_failed(&b))
        return -ENOMEM;
    r = textdiff(change->old ? a.data : "/dev/null", text_or(old.data, ""), old.length,
        change->new ? b.data : "/dev/null", text_or(new.data, ""), new.length, &text);
    listing->diff_bytes += text.length;
    return r < 0 ? r
                 : json_object_set_new(
                       row, "diff", json_stringn(text.data ? text.data : "", text.length));
}

/* SHA-256 of a file's bytes, with holes as zeros, or of a link's target, as `sha256sum` prints it.
 */
static int add_digest(struct listing *listing, const struct change *change, json_t *row) {
    char chunk[65536], hex[DIGEST_HEX + 1];
    struct digest digest;
    ssize_t n;

    if (!change->new || (!S_ISREG(change->new->st_mode) && !S_ISLNK(change->new->st_mode)))
        return 0;
    const uint64_t most = listing->job->max_digested;
    if (change->new->st_size > MAX_DIGEST ||
        (most && (uint64_t)change->new->st_size > most - MIN(listing->digested, most)))
        return json_object_set_new(row, "too_large", json_true());
    listing->digested += (uint64_t)change->new->st_size;
    digest_init(&digest);
    if (S_ISLNK(change->new->st_mode)) {
        n = readlinkat(change->new_parent, change->name, chunk, sizeof chunk);
        if (n < 0)
            return -errno;
        digest_add(&digest, chunk, (size_t)n);
    } else {
        auto_close int fd = files_open(change->new_parent, change->name, 0);

        if (fd < 0)
            return fd;
        while ((n = read(fd, chunk, sizeof chunk)) > 0)
            digest_add(&digest, chunk, (size_t)n);
        if (n < 0)
            return -errno;
    }
    digest_end_hex(&digest, hex);
    return json_object_set_new(row, "sha256", json_string(hex));
}

/* A directory that was made as the mount point of another place is not a change. */
static bool leads_to_place(const struct job *job, const char *path) {
    size_t length = strlen(path);

    for (size_t i = 0; i < job->n_places; i++)
        if (strncmp(job->places[i].path, path, length) == 0 &&
            (job->places[i].path[length] == '/' || !job->places[i].path[length]))
            return true;
    return false;
}

static int list_change(void *context, const struct change *change, struct rollbox_error *error) {
    struct listing *listing = context;
    auto_buf struct buf path = BUF_INIT;
    auto_buf struct buf shown = BUF_INIT;
    const struct stat *st = change->new ? change->new : change->old;

    buf_add_text(&path, listing->place->path);
    if (change->path[0]) {
        if (path.length > 1)
            buf_add(&path, "/", 1);
        buf_add_text(&path, change->path);
    }
    if (!buf_failed(&path) && change->kind == 'A' && S_ISDIR(st->st_mode) &&
        leads_to_place(listing->job, path.data))
        return 0;
    if (listing->job->max_changes &&
        json_array_size(listing->changes) >= listing->job->max_changes) {
        listing->omitted++;
        return 0;
    }
    listing->path_bytes += path.length;
    if (listing->path_bytes > MAX_PATHS_TOTAL)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, E2BIG, "store",
            "the paths of the changed files have more than %u MiB in all; remove files, or list "
            "them inside the sandbox",
            MAX_PATHS_TOTAL >> 20);
    if (!buf_failed(&path))
        utf8_replace(&shown, path.data, path.length);
    json_t *row = buf_failed(&path) || buf_failed(&shown)
                      ? NULL
                      : json_pack("{s:s%, s:s%, s:s, s:I}", "path", shown.data, shown.length,
                            "change", &change->kind, (size_t)1, "type", files_type(st), "size",
                            (json_int_t)(change->new &&S_ISREG(st->st_mode) ? st->st_size : 0));
    int r = row ? 0 : -ENOMEM;
    if (r == 0 && change->old && (change->kind == 'M' || S_ISREG(change->old->st_mode)))
        r = json_object_set_new(row, "old_size",
            json_integer(S_ISREG(change->old->st_mode) ? change->old->st_size : 0));
    if (r == 0 && change->kind == 'M' &&
        (change->old->st_mode & S_IFMT) != (change->new->st_mode &S_IFMT))
        r = json_object_set_new(row, "old_type", json_string(files_type(change->old)));
    if (r == 0 && !utf8_valid(path.data, path.length)) {
        auto_buf struct buf base64 = BUF_INIT;

        base64_encode(&base64, path.data, path.length);
        r = buf_failed(&base64) ? -ENOMEM
                                : json_object_set_new(row, "path_base64", json_string(base64.data));
    }
    if (r == 0 && listing->job->text)
        r = add_diff(listing, change, shown.data, row);
    if (r == 0 && listing->job->digests)
        r = add_digest(listing, change, row);
    if (r == 0) {
        r = json_array_append_new(listing->changes, row);
        row = NULL;
    }
    json_decref(row);
    if (r == -1 || r == -ENOMEM)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "store", "out of memory");
    return r < 0 ? error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "store",
                       "cannot read %s: %s", files_printable(path.data), strerror(-r))
                 : 0;
}

static int compare_rows(const void *a, const void *b) {
    const json_t *const *x = a, *const *y = b;

    return strcmp(json_string_value(json_object_get(*x, "path")),
        json_string_value(json_object_get(*y, "path")));
}

int changes_json(const struct job *job, json_t **ret_json, struct rollbox_error *error) {
    struct listing listing = { .job = job, .changes = json_array() };
    int r = listing.changes ? 0
                            : error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "store",
                                  "out of memory");

    for (size_t i = 0; r == 0 && i < job->n_places; i++) {
        listing.place = &job->places[i];
        r = changes_of_place(job, listing.place, false, list_change, &listing, error);
    }
    /* Sorted by path over all places. */
    size_t n = json_array_size(listing.changes);
    auto_free json_t **rows = r == 0 ? calloc(n + 1, sizeof *rows) : NULL;
    json_t *sorted = rows ? json_array() : NULL;
    if (r == 0 && !sorted)
        r = error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "store", "out of memory");
    for (size_t i = 0; r == 0 && i < n; i++)
        rows[i] = json_array_get(listing.changes, i);
    if (r == 0)
        qsort(rows, n, sizeof *rows, compare_rows);
    for (size_t i = 0; r == 0 && i < n; i++)
        json_array_append(sorted, rows[i]);
    json_decref(listing.changes);
    if (r == 0)
        *ret_json = listing.omitted ? json_pack("{s:o, s:I}", "changes", sorted, "omitted",
                                          (json_int_t)listing.omitted)
                                    : json_pack("{s:o}", "changes", sorted);
    else
        json_decref(sorted);
    return r == 0 && !*ret_json
               ? error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "store", "out of memory")
               : r;
}
