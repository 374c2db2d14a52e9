/* SPDX-License-Identifier: Apache-2.0 */
/* Kept trajectories: the files, and how they are made. trajectories.h has the model;
 * trajectory_requests.c has the requests for them. */
#include "serve/trajectories.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "serve/admission.h"
#include "serve/digits.h"
#include "serve/trajectory.h"

#define TRAJECTORIES_MAX 10000u /* of a tenant */
#define FILE_BYTES (UINT64_C(64) << 20)
#define FILE_BYTES_MAX (UINT64_C(1) << 30)
#define STREAM_BYTES_MAX (UINT64_C(16) << 20)
#define RULES_MAX 64
#define ABOUT_MAX ((size_t)1 << 20)

static int directory = -EBADF;
static struct list trajectories; /* of all tenants, the oldest first */

static void name_of(const struct trajectory *trajectory, const char *suffix, struct buf *to) {
    buf_printf(to, "%s/%s%s", trajectory->tenant->name, trajectory->id, suffix);
}

int trajectory_file(const struct trajectory *trajectory) {
    auto_buf struct buf name = BUF_INIT;

    name_of(trajectory, ".jsonl", &name);
    int fd =
        buf_failed(&name) ? -1 : openat(directory, name.data, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/* ---- the quota ---- */

static void hold(struct trajectory *trajectory, uint64_t bytes) {
    struct amounts before = quota_nothing(), now = quota_nothing();

    before.of[QUOTA_DISK] = trajectory->held;
    now.of[QUOTA_DISK] = bytes;
    quota_give_back(&trajectory->tenant->use, &before);
    quota_take_levels(&trajectory->tenant->use, &now);
    trajectory->held = bytes;
}

void trajectory_look(struct trajectory *trajectory) {
    struct stat st;

    if (trajectory->has_ended || trajectory->is_new)
        return;
    auto_close int fd = trajectory_file(trajectory);
    if (fd < 0 || fstat(fd, &st) < 0)
        return;
    trajectory->bytes = (uint64_t)st.st_size;
    if (flock(fd, LOCK_SH | LOCK_NB) < 0)
        return;
    /* Its last line may have been written between the two calls. */
    trajectory->bytes = fstat(fd, &st) < 0 ? trajectory->bytes : (uint64_t)st.st_size;
    trajectory->has_ended = true;
    hold(trajectory, trajectory->bytes);
}

/* ---- the list ---- */

struct trajectory *trajectory_next(const struct tenant *tenant, const struct trajectory *after) {
    for (struct list *node = after ? after->of_all.next : trajectories.next; node != &trajectories;
         node = node->next) {
        struct trajectory *trajectory = container_of(node, struct trajectory, of_all);

        if (trajectory->tenant == tenant && !trajectory->is_new)
            return trajectory;
    }
    return NULL;
}

struct trajectory *trajectory_find(const struct tenant *tenant, const char *id) {
    struct trajectory *trajectory = NULL;

    while (directory >= 0 && (trajectory = trajectory_next(tenant, trajectory)))
        if (!strcmp(trajectory->id, id))
            return trajectory;
    return NULL;
}

bool trajectories_kept(void) {
    return directory >= 0;
}

static struct trajectory *add(struct tenant *tenant, const char *id) {
    struct trajectory *trajectory = calloc(1, sizeof *trajectory);

    if (!trajectory)
        return NULL;
    trajectory->tenant = tenant;
    (void)snprintf(trajectory->id, sizeof trajectory->id, "%s", id);
    list_add_tail(&trajectories, &trajectory->of_all);
    return trajectory;
}

int trajectory_remove(struct trajectory *trajectory) {
    static const char *const suffixes[] = { ".jsonl", ".json" };

    for (size_t i = 0; i < ARRAY_SIZE(suffixes); i++) {
        auto_buf struct buf name = BUF_INIT;

        name_of(trajectory, suffixes[i], &name);
        if (buf_failed(&name) || (unlinkat(directory, name.data, 0) < 0 && errno != ENOENT))
            return buf_failed(&name) ? -ENOMEM : -errno;
    }
    hold(trajectory, 0);
    list_remove(&trajectory->of_all);
    json_decref(trajectory->about);
    free(trajectory);
    return 0;
}

/* ---- at the start ---- */

static int by_age(const void *a, const void *b) {
    const struct trajectory *const *first = a, *const *second = b;
    double one = json_number_value(json_object_get((*first)->about, "created"));
    double other = json_number_value(json_object_get((*second)->about, "created"));

    return one < other ? -1 : one > other;
}

static void sort(void) {
    size_t n = 0, i = 0;

    list_for_each(node, &trajectories)
        n++;
    struct trajectory **all = calloc(n + 1, sizeof *all);
    if (!all)
        return;
    while (!list_empty(&trajectories)) {
        all[i] = container_of(trajectories.next, struct trajectory, of_all);
        list_remove(&all[i++]->of_all);
    }
    qsort(all, n, sizeof *all, by_age);
    for (i = 0; i < n; i++)
        list_add_tail(&trajectories, &all[i]->of_all);
    free(all);
}

/* What a server before this one wrote of it; one that was killed may have written nothing. */
static json_t *read_about(const struct trajectory *trajectory) {
    auto_buf struct buf name = BUF_INIT, text = BUF_INIT;

    name_of(trajectory, ".json", &name);
    auto_close int fd =
        buf_failed(&name) ? -1 : openat(directory, name.data, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    json_t *about = fd < 0 || fd_read_all(fd, ABOUT_MAX, &text) < 0
                        ? NULL
                        : json_loadb(text.data ? text.data : "", text.length, 0, NULL);
    if (json_is_object(about))
        return about;
    json_decref(about);
    return json_object();
}

static void read_tenant(struct server *server, const char *name) {
    struct tenant *tenant = token_tenant_ok(name) ? tenant_of(server, name) : NULL;
    int fd = tenant ? openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    DIR *entries = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *entry;
    unsigned char bytes[8];

    if (!entries)
        close_fd(&fd);
    while (entries && (entry = readdir(entries))) {
        char id[TRAJECTORY_DIGITS + 1];
        const size_t length = strlen(entry->d_name);

        if (length != TRAJECTORY_DIGITS + strlen(".jsonl") ||
            strcmp(entry->d_name + TRAJECTORY_DIGITS, ".jsonl") != 0)
            continue;
        memcpy(id, entry->d_name, TRAJECTORY_DIGITS);
        id[TRAJECTORY_DIGITS] = '\0';
        struct trajectory *trajectory = digits_read(id, bytes, 8) ? add(tenant, id) : NULL;
        if (trajectory) {
            trajectory->about = read_about(trajectory);
            trajectory->has_ended = false;
            hold(trajectory, FILE_BYTES); /* until it is seen to have ended */
            trajectory_look(trajectory);
        }
    }
    if (entries)
        closedir(entries);
}

int trajectories_open(struct server *server, const char *state) {
    auto_close int base = open(state, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const struct dirent *entry;

    list_init(&trajectories);
    if (base >= 0 && (mkdirat(base, "trajectories", 0700) >= 0 || errno == EEXIST))
        directory = openat(base, "trajectories", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int fd = directory < 0 ? -1 : fcntl(directory, F_DUPFD_CLOEXEC, 0);
    DIR *entries = fd < 0 ? NULL : fdopendir(fd);
    if (!entries) {
        fprintf(stderr, "rollbox-serve: cannot use %s/trajectories: %s\n", state, strerror(errno));
        close_fd(&fd);
        return 1;
    }
    while ((entry = readdir(entries)))
        read_tenant(server, entry->d_name);
    closedir(entries);
    sort();
    return 0;
}

/* ---- the member "record" ---- */

static const char *const record_keys[] = { "stream_bytes", "file_bytes", "redact_names",
    "redact_patterns", "env_values", "files", "changes", NULL };

static bool is_number(const json_t *value, uint64_t most) {
    return !value || (json_is_integer(value) && json_integer_value(value) >= 1 &&
                         (uint64_t)json_integer_value(value) <= most);
}

static bool is_flag(const json_t *value) {
    return !value || json_is_boolean(value);
}

static bool are_texts(const json_t *value) {
    const json_t *one;
    size_t i;

    if (!value)
        return true;
    if (!json_is_array(value) || json_array_size(value) > RULES_MAX)
        return false;
    json_array_foreach(value, i, one) {
        if (!json_is_string(one))
            return false;
    }
    return true;
}

/* NULL, or the reason for which it is not one. */
static const char *fault_of(const json_t *record) {
    const char *key;
    json_t *value;

    if (!json_is_object(record))
        return "record must be true, false or an object";
    json_object_foreach((json_t *)(uintptr_t)record, key, value) {
        size_t i = 0;

        while (record_keys[i] && strcmp(record_keys[i], key) != 0)
            i++;
        if (!record_keys[i])
            return "record has stream_bytes, file_bytes, redact_names, redact_patterns, "
                   "env_values, files and changes, and nothing else";
    }
    if (!is_number(json_object_get(record, "file_bytes"), FILE_BYTES_MAX) ||
        !is_number(json_object_get(record, "stream_bytes"), STREAM_BYTES_MAX))
        return "record: file_bytes must be 1 to 1 GiB, and stream_bytes 1 to 16 MiB";
    if (!is_flag(json_object_get(record, "env_values")) ||
        !is_flag(json_object_get(record, "files")) || !is_flag(json_object_get(record, "changes")))
        return "record: env_values, files and changes must be true or false";
    if (!are_texts(json_object_get(record, "redact_names")) ||
        !are_texts(json_object_get(record, "redact_patterns")))
        return "record: redact_names and redact_patterns must be lists of at most 64 strings";
    return NULL;
}

bool trajectories_wanted(struct exchange *exchange, bool *ret_wanted) {
    const json_t *record = json_object_get(exchange->body, "record");
    const char *fault = NULL;

    *ret_wanted = record && !json_is_false(record);
    if (!*ret_wanted)
        return true;
    if (!json_is_true(record) && (fault = fault_of(record))) {
        exchange_problem(exchange, 400, "invalid_argument", "%s", fault);
        return false;
    }
    if (!trajectories_kept()) {
        exchange_problem(exchange, 501, "feature_missing",
            "this server keeps no trajectories: it was started without --state");
        return false;
    }
    return true;
}

/* ---- recording ---- */

struct recording {
    struct pool_job job;
    struct exchange *exchange;
    struct box *box; /* referenced */
    struct rollbox_sandbox *handle;
    struct trajectory *trajectory;
    void (*then)(struct exchange *exchange, const char *id);
    const json_t *record; /* the exchange's */
    int fd, r;
    struct rollbox_error error;
};

static uint64_t number_of(const json_t *record, const char *key) {
    return (uint64_t)json_integer_value(json_object_get(record, key));
}

static uint64_t file_bytes(const json_t *record) {
    uint64_t given = number_of(record, "file_bytes");

    return given ? given : FILE_BYTES;
}

static const char **texts_of(const json_t *list) {
    const char **texts = calloc(json_array_size(list) + 1, sizeof *texts);

    for (size_t i = 0; texts && i < json_array_size(list); i++)
        texts[i] = json_string_value(json_array_get(list, i));
    return texts;
}

static void work(struct pool_job *job) {
    struct recording *recording = container_of(job, struct recording, job);
    const json_t *record = recording->record;
    auto_free const char **names = texts_of(json_object_get(record, "redact_names"));
    auto_free const char **patterns = texts_of(json_object_get(record, "redact_patterns"));
    const struct rollbox_record_options options = { .size = sizeof options,
        .fd = recording->fd,
        .stream_bytes = number_of(record, "stream_bytes"),
        .file_bytes = file_bytes(record),
        .redact_names = names,
        .redact_patterns = patterns,
        .env_values = json_is_true(json_object_get(record, "env_values")),
        .files = json_is_true(json_object_get(record, "files")),
        .changes = json_is_true(json_object_get(record, "changes")) };

    /* Without the rules the record would have what they were to remove. */
    if (!names || !patterns) {
        recording->r = -ENOMEM;
        recording->error = (struct rollbox_error){ .code = ROLLBOX_ERR_RESOURCE_EXHAUSTED };
        (void)snprintf(recording->error.message, sizeof recording->error.message,
            "the server is out of memory");
        return;
    }
    recording->r = rollbox_record(recording->handle, &options, NULL, &recording->error);
}

static void done(struct pool_job *job) {
    struct recording *recording = container_of(job, struct recording, job);
    struct exchange *exchange = recording->exchange;
    struct trajectory *trajectory = recording->trajectory;

    close_fd(&recording->fd); /* the recorder has the lock now */
    trajectory->is_new = false;
    if (recording->r < 0) {
        (void)trajectory_remove(trajectory);
        box_close(exchange->server, recording->box);
        exchange_fail(exchange, &recording->error);
    } else {
        recording->then(exchange, trajectory->id);
    }
    box_unref(recording->box);
    free(recording);
}

static int write_file(struct trajectory *trajectory, const char *suffix, const char *text) {
    auto_buf struct buf name = BUF_INIT;

    name_of(trajectory, suffix, &name);
    if (buf_failed(&name) || !text)
        return -ENOMEM;
    int fd = openat(directory, name.data, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int r = fd < 0 ? -errno : fd_write_all(fd, text, strlen(text));
    if (r >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0)
        r = -errno;
    if (r < 0)
        close_fd(&fd);
    return r < 0 ? r : fd;
}

/* Makes the files of a trajectory of this sandbox. The descriptor for the recorder, or -errno. */
static int make_files(struct trajectory *trajectory, const struct box *box) {
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    trajectory->about = json_pack("{s:s, s:O?, s:f}", "sandbox", box->name, "labels", box->labels,
        "created", (double)now.tv_sec + (double)now.tv_nsec / 1e9);
    auto_free char *about =
        trajectory->about ? json_dumps(trajectory->about, JSON_COMPACT | JSON_REAL_PRECISION(15))
                          : NULL;
    if (mkdirat(directory, trajectory->tenant->name, 0700) < 0 && errno != EEXIST)
        return -errno;
    auto_close int file = write_file(trajectory, ".json", about);
    return file < 0 ? file : write_file(trajectory, ".jsonl", "");
}

/* Whether the tenant may have one more of this size. False: the answer is given. */
static bool has_room(struct exchange *exchange, uint64_t bytes) {
    struct amounts more = quota_nothing();
    struct trajectory *trajectory = NULL;
    struct quota_verdict verdict;
    unsigned n = 0;

    while ((trajectory = trajectory_next(exchange->tenant, trajectory))) {
        trajectory_look(trajectory);
        n++;
    }
    if (n >= TRAJECTORIES_MAX) {
        exchange_problem(exchange, 429, "resource_exhausted",
            "the tenant has %u trajectories on the server, which is the most; delete some", n);
        return false;
    }
    more.of[QUOTA_DISK] = bytes;
    if (quota_fits(&exchange->quotas, &exchange->tenant->use, &more, &verdict))
        return true;
    exchange_over(exchange, &verdict);
    return false;
}

static void refuse(struct exchange *exchange, int r) {
    bool is_full = r == -ENOSPC || r == -EDQUOT;

    exchange_problem(exchange, is_full ? 507 : 503, "resource_exhausted",
        "the server cannot make a file for the trajectory: %s", strerror(-r));
}

void trajectories_record(
    struct exchange *exchange, void (*then)(struct exchange *exchange, const char *id)) {
    const json_t *record = json_object_get(exchange->body, "record");
    struct server *server = exchange->server;
    struct box *box = exchange->box;
    char id[TRAJECTORY_DIGITS + 1];

    /* Its answer frees the exchange, but not the box: the table has a reference to it. */
    if (!has_room(exchange, file_bytes(record))) {
        box_close(server, box);
        return;
    }
    digits_random(TRAJECTORY_DIGITS / 2, id);
    struct recording *recording = calloc(1, sizeof *recording);
    struct trajectory *trajectory = recording ? add(exchange->tenant, id) : NULL;
    int fd = trajectory ? make_files(trajectory, box) : -ENOMEM;
    if (fd < 0) {
        box_close(server, box);
        if (trajectory)
            (void)trajectory_remove(trajectory);
        free(recording);
        refuse(exchange, fd);
        return;
    }
    trajectory->is_new = true;
    hold(trajectory, file_bytes(record));
    box->references++;
    *recording = (struct recording){ .job = { .work = work, .done = done },
        .exchange = exchange,
        .box = box,
        .handle = box->handle,
        .trajectory = trajectory,
        .then = then,
        .record = record,
        .fd = fd };
    pool_submit(exchange->server->pool, &recording->job);
}
