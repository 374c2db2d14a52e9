/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"
#include "store/image.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "store/confine.h"
#include "store/fault.h"
#include "store/image_config.h"
#include "store/layer.h"
#include "store/layer_turns.h"
#include "store/parser_process.h"

#define BAR_TICK_NS 100000000
/* SHA-256 of a tar without entries, 1024 zero bytes: builders write one for steps without files. */
#define EMPTY_DIFF_ID "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef"

/* ---- the bar ---- */

struct bar {
    uint64_t done, total;
    int64_t drawn_ns;
    bool drawn;
};

static void bar_draw(const struct bar *bar) {
    char cells[31];
    size_t full = bar->total ? (size_t)(30 * MIN(bar->done, bar->total) / bar->total) : 0;

    memset(cells, ' ', 30);
    memset(cells, '#', full);
    cells[30] = '\0';
    fprintf(stderr, "\r\033[Kimporting [%s] %.1f of %.1f MB", cells, (double)bar->done / 1e6,
        (double)bar->total / 1e6);
    fflush(stderr);
}

static void bar_add(void *context, uint64_t bytes) {
    struct bar *bar = context;
    int64_t now = clock_now_ns();

    bar->done += bytes;
    if (now - bar->drawn_ns < BAR_TICK_NS)
        return;
    bar->drawn_ns = now;
    bar->drawn = true;
    bar_draw(bar);
}

static void bar_clear(const struct bar *bar) {
    if (bar->drawn) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
}

/* ---- in the child ---- */

struct child {
    const struct import_options *options;
    int store, work, archive, turns;
    struct image_plan plan;
    struct stack below;              /* the topmost first */
    char chain[LAYER_ID_LENGTH + 1]; /* of the layers so far, as OCI counts */
    struct unpack_totals totals;
    json_t *layers;
    struct rollbox_error *error;
};

/* The name of a layer whose content depends on the layers below it. It differs from every diff id.
 */
static void dependent_id(const char *chain, char ret_id[LAYER_ID_LENGTH + 1]) {
    struct digest digest;

    digest_init(&digest);
    digest_add_sized(&digest, "rollbox layer over its chain 1", 30);
    digest_add_sized(&digest, chain, strlen(chain));
    digest_end_hex(&digest, ret_id);
}

static void extend_chain(char chain[LAYER_ID_LENGTH + 1], const char *diff_id) {
    struct digest digest;

    if (!chain[0]) {
        memcpy(chain, diff_id, LAYER_ID_LENGTH + 1);
        return;
    }
    digest_init(&digest);
    digest_add(&digest, "sha256:", 7);
    digest_add(&digest, chain, strlen(chain));
    digest_add(&digest, " sha256:", 8);
    digest_add(&digest, diff_id, strlen(diff_id));
    digest_end_hex(&digest, chain);
}

/* The files of a layer that the store has and that is not damaged; -ENOENT. */
static int open_known(int store, const char *id) {
    struct layer_meta meta;
    auto_free char *path = NULL;

    if (layer_meta_read(store, id, &meta) < 0)
        return -ENOENT;
    auto_free char *damage = store_layer_damage(store, id);
    if (damage || asprintf(&path, "layers/%s/fs", id) < 0)
        return -ENOENT;
    int fd = openat(store, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -ENOENT : fd;
}

/* Puts a layer on top of the stack. */
static int push_fd(struct child *child, int take_fd) {
    struct stack *below = &child->below;
    struct stat st;

    auto_close int fd = take_fd;
    if (fstat(fd, &st) < 0)
        return error_set(child->error, ROLLBOX_ERR_IO, errno, "import",
            "cannot examine a layer: %s", strerror(errno));
    memmove(below->fds + 1, below->fds, below->n * sizeof *below->fds);
    memmove(below->stats + 1, below->stats, below->n * sizeof *below->stats);
    below->stats[0] = st;
    below->fds[0] = TAKE_FD(fd);
    below->n++;
    return 0;
}

static int report_layer(
    struct child *child, const char *id, const char *diff_id, const char *directory) {
    json_t *row =
        json_pack("{s:s, s:s, s:s}", "id", id, "diff_id", diff_id, "directory", directory);

    return row && json_array_append_new(child->layers, row) == 0
               ? 0
               : error_set(child->error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "import",
                     "out of memory");
}

static int check_digests(struct child *child, size_t i, const struct unpacked *unpacked) {
    const char *packed = child->plan.packed[i], *diff_id = child->plan.diff_ids[i];

    if (packed[0] && strcmp(packed, unpacked->packed) != 0)
        return error_set(child->error, ROLLBOX_ERR_INVALID_ARGUMENT, EBADMSG, "import",
            "layer %zu (%s) has the digest %.16s..., not %.16s...: the archive is damaged; the "
            "image is refused",
            i + 1, files_printable(child->plan.members[i]), unpacked->packed, packed);
    if (diff_id[0] && strcmp(diff_id, unpacked->diff_id) != 0)
        return error_set(child->error, ROLLBOX_ERR_INVALID_ARGUMENT, EBADMSG, "import",
            "layer %zu (%s) unpacks to the digest %.16s..., not %.16s... as its configuration "
            "says; the image is refused",
            i + 1, files_printable(child->plan.members[i]), unpacked->diff_id, diff_id);
    return 0;
}

bool image_layer_is_empty(const char *diff_id) {
    return strcmp(diff_id, EMPTY_DIFF_ID) == 0;
}

bool image_layers_known(
    int store, char *const *diff_ids, size_t n, char (*ret_ids)[LAYER_ID_LENGTH + 1]) {
    char chain[LAYER_ID_LENGTH + 1] = "", dependent[LAYER_ID_LENGTH + 1];
    bool all = true;

    for (size_t i = 0; i < n; i++) {
        extend_chain(chain, diff_ids[i]);
        dependent_id(chain, dependent);
        const char *id = diff_ids[i];
        int known = open_known(store, id);
        if (known < 0) {
            id = dependent;
            known = open_known(store, id);
        }
        if (known >= 0)
            close(known);
        memcpy(ret_ids[i], known >= 0 ? id : "", known >= 0 ? LAYER_ID_LENGTH + 1 : 1);
        all = all && (known >= 0 || image_layer_is_empty(diff_ids[i]));
    }
    return all;
}

/* Waits while others import the image's layers, unless the store has them all. */
static int wait_for_turns(struct child *child) {
    size_t n = child->plan.n_layers;
    auto_free char(*ids)[LAYER_ID_LENGTH + 1] = calloc(n + 1, sizeof *ids);

    if (!ids)
        return error_set(
            child->error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "import", "out of memory");
    if (image_layers_known(child->store, child->plan.diff_ids, n, ids))
        return 0;
    int r = layer_turns_take(child->turns, child->plan.diff_ids, n);
    return r < 0 ? error_set(child->error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "import",
                       "cannot lock the image's layers: %s", strerror(-r))
                 : 0;
}

static int make_layer_root(struct child *child, size_t i, char directory[24]) {
    char path[32];

    snprintf(directory, 24, "L%zu", i);
    snprintf(path, sizeof path, "%.23s/fs", directory);
    const bool made =
        mkdirat(child->work, directory, 0700) == 0 && mkdirat(child->work, path, 0700) == 0;
    int root =
        made ? openat(child->work, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    return root < 0 ? error_set(child->error, error_code_of(errno, ROLLBOX_ERR_IO), errno, "import",
                          "cannot write to the store: %s", strerror(errno))
                    : root;
}

static int do_layer(struct child *child, struct image_source *source, size_t i) {
    const char *diff_id = child->plan.diff_ids[i], *id = diff_id;
    char dependent[LAYER_ID_LENGTH + 1] = "", directory[24];
    struct unpacked unpacked;
    struct names names;
    int known = -ENOENT;

    if (diff_id[0]) {
        extend_chain(child->chain, diff_id);
        dependent_id(child->chain, dependent);
        known = open_known(child->store, id);
        if (known < 0)
            known = open_known(child->store, id = dependent);
        if (known < 0 && image_layer_is_empty(diff_id) && i)
            return 0;
    }
    if (known >= 0) {
        if (source->progress)
            source->progress(
                source->progress_context, image_source_size(source, child->plan.members[i]));
        int r = push_fd(child, known);
        return r < 0 ? r : report_layer(child, id, diff_id, "");
    }
    auto_close int root = make_layer_root(child, i, directory);
    if (root < 0)
        return root;
    int r = unpack_layer(source, child->plan.members[i], root, &child->below,
        &child->options->limits, &child->totals, &unpacked, child->error);
    if (r == 0)
        r = check_digests(child, i, &unpacked);
    if (r < 0)
        return r;
    fault_point(FAULT_layer_unpacked);
    if (!diff_id[0]) {
        diff_id = unpacked.diff_id;
        extend_chain(child->chain, diff_id);
        dependent_id(child->chain, dependent);
    }
    /* A layer without changes is left out, because an overlay has a limited number of layers. */
    if (names_read(root, &names) == 0 && names.n == 0 &&
        (child->below.n || i + 1 < child->plan.n_layers))
        return 0;
    names_done(&names);
    r = report_layer(child, unpacked.depends ? dependent : diff_id, diff_id, directory);
    return r < 0 ? r : push_fd(child, TAKE_FD(root));
}

static json_t *report_of(struct child *child, bool landlock) {
    return json_pack("{s:O, s:O, s:{s:I, s:I, s:I, s:I}, s:b}", "layers", child->layers, "config",
        child->plan.config, "totals", "devices", (json_int_t)child->totals.devices, "setid",
        (json_int_t)child->totals.setid, "attributes", (json_int_t)child->totals.attributes,
        "dropped", (json_int_t)child->totals.dropped, "landlock", landlock);
}

/* Reads the archive; the report is JSON. */
static int read_archive(struct child *child, json_t **ret_report) {
    struct bar bar = { 0 };
    struct image_source source;
    bool landlock = false;

    auto_close int layers = openat(child->store, "layers", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (layers < 0)
        return error_set(child->error, ROLLBOX_ERR_IO, errno, "import",
            "cannot open the store's layers: %s", strerror(errno));
    const int readable[] = { layers, child->archive };
    const struct confine confine = { readable, ARRAY_SIZE(readable), child->work };
    int r = confine_enter(&confine, &landlock, child->error);
    if (r == 0)
        r = image_source_open(child->archive, &source, child->error);
    if (r < 0)
        return r;
    fault_point(FAULT_archive_listed);
    r = oci_manifest_choose(&source, &child->options->choice, &child->plan, child->error);
    if (r == 0)
        r = wait_for_turns(child);
    size_t n = child->plan.n_layers;
    child->layers = json_array();
    child->below.fds = calloc(n + 1, sizeof *child->below.fds);
    child->below.stats = calloc(n + 1, sizeof *child->below.stats);
    if (r == 0 && (!child->layers || !child->below.fds || !child->below.stats))
        r = error_set(
            child->error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "import", "out of memory");
    if (r == 0 && child->options->progress) {
        for (size_t i = 0; i < n; i++)
            bar.total += image_source_size(&source, child->plan.members[i]);
        source.progress = bar_add;
        source.progress_context = &bar;
    }
    for (size_t i = 0; r == 0 && i < n; i++)
        r = do_layer(child, &source, i);
    bar_clear(&bar);
    if (r == 0 && !(*ret_report = report_of(child, landlock)))
        r = error_set(
            child->error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "import", "out of memory");
    image_source_done(&source);
    return r;
}

static int read_in_child(void *context, json_t **ret_report, struct rollbox_error *error) {
    struct child *child = context;

    child->error = error;
    return read_archive(child, ret_report);
}

/* ---- in the parent ---- */

/* A layer that the child found or made, published and locked. */
static int take_layer(const struct work *work, const json_t *row, int *ret_lock,
    struct layer_meta *ret_meta, bool *ret_new, struct rollbox_error *error) {
    const char *id = json_string_value(json_object_get(row, "id")),
               *diff_id = json_string_value(json_object_get(row, "diff_id")),
               *directory = json_string_value(json_object_get(row, "directory"));
    struct layer_meta meta = { .kind = "image", .created_s = time(NULL) };
    auto_free char *path = NULL;
    int r;

    const bool ids_ok = id && layer_id_ok(id) && diff_id && layer_id_ok(diff_id);
    if (!ids_ok || !directory || strspn(directory, "L0123456789") != strlen(directory))
        return error_set(error, ROLLBOX_ERR_INTERNAL, EBADMSG, "import",
            "the process that reads the archive sent an invalid report");
    if (!directory[0]) {
        r = store_layer_lock(work->store, id, ret_lock);
        if (r == 0)
            r = layer_meta_read(work->store, id, ret_meta);
        return r < 0 ? error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "import",
                           "layer %.12s was removed meanwhile; try again", id)
                     : 0;
    }
    if (asprintf(&path, "%s/fs", directory) < 0)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "import", "out of memory");
    auto_close int root = openat(work->fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (root < 0)
        return error_set(error, ROLLBOX_ERR_IO, errno, "import",
            "cannot open an unpacked layer: %s", strerror(errno));
    snprintf(meta.id, sizeof meta.id, "%s", id);
    snprintf(meta.diff_id, sizeof meta.diff_id, "%s", diff_id);
    r = tree_digest(root, &meta.tree, error);
    if (r == 0)
        r = layer_publish(work, directory, &meta, ret_lock, error);
    *ret_meta = meta;
    *ret_new = true;
    return r;
}

static void add_note(json_t *notes, json_int_t count, const char *text) {
    auto_free char *line = NULL;

    if (count > 0 && asprintf(&line, "%" PRId64 " %s", (int64_t)count, text) >= 0)
        json_array_append_new(notes, json_string(line));
}

static json_t *describe_import(const struct manifest *manifest, size_t n_new, uint64_t bytes,
    uint64_t files, const json_t *report) {
    const json_t *totals = json_object_get(report, "totals");
    json_t *notes = json_array();

    add_note(notes, json_integer_value(json_object_get(totals, "devices")),
        "device files were left out");
    add_note(notes, json_integer_value(json_object_get(totals, "setid")),
        "files lost their setuid or setgid bit");
    add_note(notes, json_integer_value(json_object_get(totals, "attributes")),
        "extended attributes were left out");
    if (manifest->architecture[0] && strcmp(manifest->architecture, image_architecture()) != 0) {
        auto_free char *line = NULL;

        if (asprintf(&line, "it is for %s and this machine is %s: its programs will not run here",
                files_printable(manifest->architecture), image_architecture()) >= 0)
            json_array_append_new(notes, json_string(line));
    }
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:s, s:o, s:{s:b, s:b}}", "name", manifest->name,
        "layers", (json_int_t)manifest->n_layers, "new_layers", (json_int_t)n_new, "bytes",
        (json_int_t)bytes, "files", (json_int_t)files, "architecture", manifest->architecture,
        "notes", notes, "isolation", "landlock", json_is_true(json_object_get(report, "landlock")),
        "seccomp", 1);
}

/* Publishes the layers in the report. */
static int publish_import(const struct work *work, const struct import_options *options,
    const json_t *report, json_t **ret_json, struct rollbox_error *error) {
    const json_t *rows = json_object_get(report, "layers");
    size_t n = json_array_size(rows), n_new = 0;
    struct manifest manifest = {
        .kind = MANIFEST_IMAGE, .name = strdup(options->name), .created_s = time(NULL)
    };
    auto_free int *locks = calloc(n + 1, sizeof *locks);
    uint64_t bytes = 0, files = 0;
    int r = 0;

    manifest.layers = calloc(n + 1, sizeof *manifest.layers);
    if (!manifest.name || !manifest.layers || !locks)
        r = error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "import", "out of memory");
    else if (!n || n > MANIFEST_MAX_LAYERS)
        r = error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "import",
            "the image has no layers with files");
    size_t n_locks = 0;
    for (size_t i = 0; r == 0 && i < n; i++) {
        struct layer_meta meta;
        bool is_new = false;

        locks[i] = -EBADF;
        n_locks = i + 1;
        r = take_layer(work, json_array_get(rows, i), &locks[i], &meta, &is_new, error);
        if (r < 0)
            break;
        /* The same layer twice: all that the lower one has is under the upper one, and an overlay
         * takes no directory twice. */
        for (size_t j = 0; j < manifest.n_layers; j++)
            if (strcmp(manifest.layers[j], meta.id) == 0) {
                free(manifest.layers[j]);
                memmove(manifest.layers + j, manifest.layers + j + 1,
                    (manifest.n_layers - j) * sizeof *manifest.layers);
                manifest.n_layers--;
                bytes -= meta.tree.bytes;
                files -= meta.tree.files;
                break;
            }
        manifest.layers[manifest.n_layers] = strdup(meta.id);
        if (!manifest.layers[manifest.n_layers])
            r = error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "import", "out of memory");
        else
            manifest.n_layers++;
        n_new += is_new;
        bytes += meta.tree.bytes;
        files += meta.tree.files;
    }
    if (r == 0)
        r = image_config_fill(json_object_get(report, "config"), &manifest, error);
    manifest.reference = strdup(text_or(options->reference, ""));
    manifest.digest = strdup(text_or(options->digest, ""));
    if (r == 0 && (!manifest.reference || !manifest.digest))
        r = error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "import", "out of memory");
    if (r == 0)
        r = layer_publish_manifest(work, &manifest, error);
    if (r == 0) {
        *ret_json = describe_import(&manifest, n_new, bytes, files, report);
        if (!*ret_json)
            r = error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "import", "out of memory");
    }
    for (size_t i = 0; i < n_locks; i++)
        close_fd(&locks[i]);
    manifest_done(&manifest);
    return r;
}

int image_import(int store, const struct import_options *options, json_t **ret_json,
    struct rollbox_error *error) {
    struct child child = { .options = options, .store = store };
    struct parser_process worker = WORKER_NONE;
    struct work work = WORK_NONE;
    json_t *report = NULL;

    if (!manifest_name_ok(options->name))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "%.200s is not an image name: use letters, digits and . _ : @ / + -, and begin with a "
            "letter or digit",
            options->name);
    struct stat st;
    auto_close int opened = -EBADF;
    if (options->archive < 0) {
        opened = files_open_archive(options->path, &st, error);
        if (opened < 0)
            return opened;
    }
    child.archive = options->archive < 0 ? opened : options->archive;
    if (options->archive < 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "import",
            "%s is neither a file nor a directory; write the archive to a file first",
            files_printable(options->path));
    auto_close int turns = options->turns < 0 ? layer_turns_open(store) : -EBADF;
    child.turns = options->turns < 0 ? turns : options->turns;
    if (child.turns < 0)
        return error_set(error, error_code_of(-turns, ROLLBOX_ERR_IO), -turns, "import",
            "cannot write to the store: %s", strerror(-turns));
    int r = work_begin(store, &work, error);
    if (r < 0)
        return r;
    child.work = work.fd;
    r = parser_process_start(read_in_child, &child, &worker, &report, error);
    if (r == 0)
        r = publish_import(&work, options, report, ret_json, error);
    parser_process_end(&worker);
    json_decref(report);
    work_done(&work);
    return r;
}
