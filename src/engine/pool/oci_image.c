/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Images: the layers of a policy's image from the store, and the image's own settings where the
 * policy has none.
 *
 * The layers' locks are held as long as the plan exists, so that nobody removes a layer of a
 * template. The content of the layers is untrusted: the one file that is read, /etc/passwd, is
 * reached without following a link.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/core/context.h"
#include "engine/core/many_ids.h"
#include "engine/pool/owned_image.h"
#include "engine/pool/profile.h"
#include "sys/syscalls.h"

#define MAX_PASSWD (1u << 20)
#define LAST_ID 65534u

/* The image's /etc/passwd, of the topmost layer that has one. -ENOENT if none has. */
static int read_passwd(const struct store_image *image, struct buf *to) {
    struct open_how how = { .flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV };
    struct stat st;

    for (size_t i = image->manifest.n_layers; i--;) {
        auto_close int fd = sys_openat2(image->fs_fds[i], "etc/passwd", &how);

        if (fd == -ENOENT)
            continue;
        if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
            return -ENOENT;
        return fd_read_all(fd, MAX_PASSWD, to);
    }
    return -ENOENT;
}

static bool parse_number(const char *text, unsigned long *ret_number) {
    char *end;

    if (text[0] < '0' || text[0] > '9')
        return false;
    *ret_number = strtoul(text, &end, 10);
    return (!*end || *end == ':') && *ret_number <= LAST_ID;
}

/* "name:x:UID:..." */
static bool find_user(const char *passwd, const char *name, unsigned long *ret_uid) {
    size_t length = strcspn(name, ":");

    for (const char *line = passwd; line && *line;
         line = strchr(line, '\n'), line += line != NULL) {
        const char *field = line + length;

        if (strncmp(line, name, length) || *field != ':')
            continue;
        field += 1 + strcspn(field + 1, ":\n");
        return *field == ':' && parse_number(field + 1, ret_uid);
    }
    return false;
}

/* Root inside, unless the image says otherwise. */
static int choose_user(
    struct policy *policy, const struct store_image *image, struct rollbox_error *error) {
    const char *user = image->manifest.user;
    auto_buf struct buf passwd = BUF_INIT;
    unsigned long uid = 0;

    if (policy->user)
        return 0;
    if (policy->many_users) { /* init looks it up, in the sandbox's own files */
        policy->user = strdup(user[0] && user[0] != ':' ? user : "root");
        return policy->user ? 0 : -ENOMEM;
    }
    if (user[0] && user[0] != ':' && strcmp(user, "root") && !parse_number(user, &uid) &&
        (read_passwd(image, &passwd) < 0 || !find_user(passwd.data, user, &uid)))
        return error_set(error, ROLLBOX_ERR_POLICY_INVALID, ENOENT, "policy",
            "image: %s: its user %.100s is not in its /etc/passwd; name one in the policy: "
            "\"user\": 1000",
            policy->image, user);
    return asprintf(&policy->user, "%lu", uid) < 0 ? -ENOMEM : 0;
}

/* The image's variables come before the policy's, which replace them. */
static int add_environment(struct policy *policy, char *const *env) {
    size_t n = 0;

    while (env[n])
        n++;
    char **all = calloc(n + policy->env.n + 1, sizeof *all);
    if (!all)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        if (!(all[i] = strdup(env[i]))) {
            while (i--)
                free(all[i]);
            free(all);
            return -ENOMEM;
        }
    if (policy->env.n)
        memcpy(all + n, policy->env.items, policy->env.n * sizeof *all);
    free(policy->env.items);
    policy->env.items = all;
    policy->env.n += n;
    return 0;
}

/* Under a place now: the snapshot's layers that have its part. */
static int add_place(struct image *image, const json_t *item) {
    const struct manifest *manifest = &image->stored->manifest;
    const char *path = json_string_value(json_object_get(item, "path")),
               *part = json_string_value(json_object_get(item, "part")),
               *kind = json_string_value(json_object_get(item, "kind"));
    struct plan_image_place *place = &image->places[image->plan.n_places];
    struct buf under = BUF_INIT;
    struct stat st;

    if (!path || !part || !kind)
        return -EBADMSG;
    if (strpbrk(part, "/:") || part[0] == '.')
        return -EBADMSG;
    bool is_file = !strcmp(kind, "file");
    for (size_t i = manifest->n_layers; i--;) {
        if (fstatat(image->stored->fs_fds[i], part, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
            (is_file ? !S_ISREG(st.st_mode) : !S_ISDIR(st.st_mode)))
            continue;
        if (is_file && !under.length)
            buf_printf(&under, PLAN_HIDDEN "/store/%s/fs/%s", manifest->layers[i], part);
        else if (!is_file)
            buf_printf(&under, "%s" PLAN_HIDDEN "/i/%zu/%s", under.length ? ":" : "", i, part);
    }
    if (!under.length)
        return 0;
    *place = (struct plan_image_place){ strdup(path), is_file, buf_take(&under) };
    image->plan.n_places++;
    return place->path && place->under ? 0 : -ENOMEM;
}

/* A snapshot says what lies in the places of the policy, and nothing else. */
static int add_places(struct image *image) {
    json_t *item;
    size_t i;

    image->places =
        calloc(json_array_size(image->stored->manifest.places) + 1, sizeof *image->places);
    if (!image->places)
        return -ENOMEM;
    image->plan.places = image->places;
    json_array_foreach(image->stored->manifest.places, i, item) {
        int r = add_place(image, item);
        if (r < 0)
            return r;
    }
    return 0;
}

/* An ordinary user's layers need copies with owners. -EINPROGRESS: they are being made. */
static int get_owned(struct engine *engine, const char *store, const struct policy *policy,
    struct store_image **ret_image, struct rollbox_error *error) {
    const struct id_range *range = many_ids_range(engine);
    int r = store_image_owned(store, policy->image, range, ret_image, error);

    return r == -ESTALE ? owned_image_make(engine, store, policy->image, error) : r;
}

static int set_up(struct engine *engine, struct policy *policy, struct image *image,
    struct rollbox_error *error) {
    auto_free char *path = NULL;
    auto_free char *real = NULL;
    int r = store_default_path(&path, error);

    if (r == 0)
        image->identity = store_identity_of(path, policy->image);
    bool is_snapshot = !strncmp(policy->image, STORE_SNAPSHOT, strlen(STORE_SNAPSHOT));

    if (r == 0)
        r = policy->many_users && !engine->features.is_root
                ? get_owned(engine, path, policy, &image->stored, error)
            : is_snapshot ? store_snapshot(
                                path, policy->image + strlen(STORE_SNAPSHOT), &image->stored, error)
                          : store_image(path, policy->image, &image->stored, error);
    if (r < 0)
        return r;
    const struct manifest *manifest = &image->stored->manifest;
    real = realpath(path, NULL);
    if (!real || asprintf(&image->directory, "%s/layers", real) < 0) {
        image->directory = NULL;
        return real ? -ENOMEM : -errno;
    }
    image->plan = (struct plan_image){
        .directory = image->directory, .n = manifest->n_layers, .ids = manifest->layers
    };
    if (is_snapshot)
        return add_places(image);
    if ((r = choose_user(policy, image->stored, error)) < 0 ||
        (r = add_environment(policy, manifest->env)) < 0)
        return r;
    if (!policy->cwd)
        policy->cwd = strdup(manifest->cwd[0] == '/' ? manifest->cwd : "/");
    return policy->cwd ? 0 : -ENOMEM;
}

int image_get(struct engine *engine, struct policy *policy, struct image **ret_image,
    struct rollbox_error *error) {
    struct image *image = calloc(1, sizeof *image);
    struct rollbox_error why = { 0 };

    int r = image ? set_up(engine, policy, image, &why) : -ENOMEM;
    if (r < 0) {
        image_free(image);
        if (!why.message[0])
            return error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "policy",
                "image: %s: %s", policy->image, strerror(-r));
        return error_set(error, why.code, why.error_number, "policy", "image: %s", why.message);
    }
    *ret_image = image;
    return 0;
}

bool image_is_current(const struct image *image, const char *name) {
    auto_free char *path = NULL;

    if (store_default_path(&path, NULL) < 0)
        return false;
    const struct store_identity now = store_identity_of(path, name);
    return now.device == image->identity.device && now.inode == image->identity.inode &&
           now.born_ns == image->identity.born_ns;
}

struct image *image_free(struct image *image) {
    if (!image)
        return NULL;
    store_image_free(image->stored);
    for (size_t i = 0; i < image->plan.n_places; i++) {
        free((char *)image->places[i].path);
        free((char *)image->places[i].under);
    }
    free(image->places);
    free(image->directory);
    free(image);
    return NULL;
}
