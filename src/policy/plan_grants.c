/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paths that a policy grants or denies, as operations of a plan.
 *
 * Grants are added in the order of their paths, parents first. One that lies below a private place
 * of the sandbox is "late" (plan.c): its source waits below PLAN_HIDDEN, and the sandbox mounts it
 * after that place. A denied path in a grant is covered by an empty file or directory.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "policy/compiler.h"
#include "policy/devices.h"
#include "policy/tmpfs.h"
#include "policy/volumes.h"
#include "sys/uapi.h"

#define MAX_GRANTS 1000

struct grant {
    const char *path, *real;
    const char *source; /* on the host: `real`, or the files of a volume */
    enum plan_grant kind;
    enum plan_path_type type;
    unsigned index;
    bool late;
    bool optional;
    bool is_volume, is_device;
    const struct policy_tmpfs *tmpfs; /* an empty directory; no `source` */
    enum plan_covered {
        COVERED_NOT,
        COVERED_BY_DEFAULT,
        COVERED
    } covered; /* readable: something in it is covered */
};

static int compare_grants(const void *left, const void *right) {
    const struct grant *a = left, *b = right;
    int order = strcmp(a->real, b->real);

    return order ? order : (int)a->kind - (int)b->kind;
}

static const char *const grant_keys[] = { "", "fs_readable", "fs_writable", "fs_shared",
    "fs_denied", "volumes", "devices", "tmpfs" };

static bool in_private_place(const struct compiler *c, const char *path) {
    return c->host->image || compiler_is_below(path, "/tmp") || compiler_is_below(path, "/var/tmp");
}

/* Adds the usable paths of one list. A missing path is an error unless it is one of the defaults,
 * or a copy-on-write one in a private place: that starts empty. */
static int gather_grants(struct compiler *c, const struct policy_paths *paths,
    const struct plan_host_path *found, enum plan_grant kind, struct grant *grants, size_t *n,
    struct rollbox_error *error) {
    for (size_t i = 0; i < paths->n; i++) {
        const char *path = paths->items[i].path, *key = grant_keys[kind];

        if (c->host->image && paths->items[i].optional && kind != PLAN_GRANT_DENIED)
            continue; /* the system comes from the image; host directories that are granted by name
                         can still contain secrets */
        if (found[i].type == PLAN_PATH_MISSING || found[i].error) {
            if (paths->items[i].optional ||
                (kind == PLAN_GRANT_DENIED &&
                    (found[i].error == ENOENT || found[i].error == ENOTDIR)))
                continue;
            if (kind == PLAN_GRANT_WRITABLE && found[i].error == ENOENT &&
                in_private_place(c, path)) {
                compiler_op(c, &c->box_ops, PLAN_OP_PRIVATE, path, NULL, 0755, plan_grant(kind, i));
                continue;
            }
            if (found[i].error == EACCES || found[i].error == EPERM)
                return error_set(error, ROLLBOX_ERR_PATH_DENIED, found[i].error, "policy",
                    "%s: %s: you cannot access this path yourself, so your sandboxes cannot "
                    "either; grant another path",
                    key, path);
            return error_set(error, ROLLBOX_ERR_PATH_NOT_FOUND,
                found[i].error ? found[i].error : ENOENT, "policy",
                "%s: %s: %s; create it or take it out of the policy", key, path,
                strerror(found[i].error ? found[i].error : ENOENT));
        }
        const char *real = found[i].real;
        int denied =
            kind == PLAN_GRANT_DENIED ? 0 : compiler_denied(c, key, &paths->items[i], real, error);
        if (denied < 0)
            return denied;
        if (denied)
            continue;
        if (compiler_is_below(real, "/proc") || compiler_is_below(real, "/sys") ||
            !strcmp(real, "/dev") || compiler_is_below(real, "/dev/shm") ||
            compiler_is_below(real, "/dev/pts") || compiler_is_below(real, PLAN_HIDDEN) ||
            (compiler_is_below(real, "/dev") && kind == PLAN_GRANT_WRITABLE)) {
            if (kind == PLAN_GRANT_DENIED)
                continue;
            return error_set(error, ROLLBOX_ERR_POLICY_INVALID, EINVAL, "policy",
                "%s: %s: every sandbox has %s of its own; grant single devices with fs_shared", key,
                path,
                compiler_is_below(real, "/proc")  ? "a /proc"
                : compiler_is_below(real, "/sys") ? "a /sys"
                                                  : "a /dev");
        }
        if (!strcmp(real, "/")) {
            if (kind == PLAN_GRANT_READABLE)
                return error_set(error, ROLLBOX_ERR_POLICY_INVALID, EINVAL, "policy",
                    "%s: / would grant every secret of the host; name the directories that are "
                    "needed",
                    key);
            return error_set(error, ROLLBOX_ERR_POLICY_INVALID, EINVAL, "policy",
                "%s: / itself cannot be granted or denied; name directories", key);
        }
        if (*n == MAX_GRANTS)
            return error_set(error, ROLLBOX_ERR_POLICY_INVALID, E2BIG, "policy",
                "more than %d paths; grant their parents instead", MAX_GRANTS);
        grants[(*n)++] = (struct grant){ .path = path,
            .real = real,
            .source = real,
            .kind = kind,
            .type = found[i].type,
            .index = (unsigned)i,
            .optional = paths->items[i].optional };
    }
    return 0;
}

/* Nothing can be mounted in a directory of the host where that has no directory for it. */
static int check_mount_point(const struct compiler *c, const struct grant *grants, size_t n_paths,
    const char *key, const char *path, const struct plan_host_path *at,
    struct rollbox_error *error) {
    for (size_t k = 0; k < n_paths; k++)
        if (!in_private_place(c, path) && compiler_is_below(path, grants[k].real) &&
            grants[k].kind != PLAN_GRANT_DENIED && at->type != PLAN_PATH_DIRECTORY)
            return error_set(error, ROLLBOX_ERR_POLICY_INVALID, ENOENT, "policy",
                "%s: %s lies in %s, where the host has no such directory; use another path, such "
                "as /data",
                key, path, grants[k].real);
    if (n_paths >= MAX_GRANTS - VOLUMES_MAX - TMPFS_MAX)
        return error_set(error, ROLLBOX_ERR_POLICY_INVALID, E2BIG, "policy",
            "more than %d paths; grant their parents instead",
            MAX_GRANTS - VOLUMES_MAX - TMPFS_MAX);
    return 0;
}

/* An empty directory is a place without a base. */
static int gather_tmpfs(
    struct compiler *c, struct grant *grants, size_t *n, struct rollbox_error *error) {
    const size_t n_paths = *n;

    for (size_t i = 0; i < c->policy->tmpfs.n; i++) {
        const struct policy_tmpfs *tmpfs = &c->policy->tmpfs.items[i];
        int r =
            check_mount_point(c, grants, n_paths, "tmpfs", tmpfs->path, &c->host->tmpfs[i], error);

        if (r < 0)
            return r;
        if (policy_tmpfs_is_there(c->policy, tmpfs->path))
            continue;
        grants[(*n)++] = (struct grant){ .path = tmpfs->path,
            .real = tmpfs->path,
            .kind = PLAN_GRANT_WRITABLE,
            .type = PLAN_PATH_DIRECTORY,
            .index = (unsigned)i,
            .tmpfs = tmpfs };
    }
    return 0;
}

/* A volume is a grant whose files are elsewhere. */
static int gather_volumes(
    struct compiler *c, struct grant *grants, size_t *n, struct rollbox_error *error) {
    const size_t n_paths = *n;

    for (size_t i = 0; i < c->policy->volumes.n; i++) {
        const struct policy_volume *volume = &c->policy->volumes.items[i];
        const struct plan_host_volume *found = &c->host->volumes[i];
        int r = check_mount_point(c, grants, n_paths, "volumes", volume->path, &found->at, error);

        if (r < 0)
            return r;
        grants[(*n)++] = (struct grant){ .path = volume->path,
            .real = volume->path,
            .source = found->files,
            .kind = volume->mode == POLICY_VOLUME_READ_ONLY ? PLAN_GRANT_READABLE
                    : volume->mode == POLICY_VOLUME_PRIVATE ? PLAN_GRANT_WRITABLE
                                                            : PLAN_GRANT_SHARED,
            .type = PLAN_PATH_DIRECTORY,
            .index = (unsigned)i,
            .is_volume = true };
    }
    return 0;
}

/* The files of a CDI file, such as the libraries of a driver. */
static int gather_device_files(
    struct compiler *c, struct grant *grants, size_t *n, struct rollbox_error *error) {
    const struct policy_devices *devices = &c->policy->devices;

    for (size_t i = 0; i < devices->n_files; i++) {
        const struct policy_device_file *file = &devices->files[i];

        if (file->is_node)
            continue;
        if (*n == MAX_GRANTS)
            return error_set(error, ROLLBOX_ERR_POLICY_INVALID, E2BIG, "policy",
                "devices: more than %d files and paths", MAX_GRANTS);
        grants[(*n)++] = (struct grant){ .path = file->path,
            .real = file->is_there && !c->host->image ? file->source : file->path,
            .source = file->source,
            .kind = PLAN_GRANT_READABLE,
            .type = file->is_directory ? PLAN_PATH_DIRECTORY : PLAN_PATH_OTHER,
            .index = file->device,
            .is_device = true };
    }
    return 0;
}

/* Of a volume the guest owns what the owner of its directory has; many users are those of the
 * same numbers. */
static uint64_t volume_owners(const struct compiler *c) {
    return PLAN_BIND_IDMAP | (c->policy->many_users ? PLAN_BIND_ALL : 0);
}

/* A name for something in PLAN_HIDDEN. */
static void hidden_name(struct compiler *c, char *name, size_t size) {
    snprintf(name, size, PLAN_HIDDEN "/b%u", c->n_hidden++);
}

static void grant_bind(struct compiler *c, const struct grant *g, uint16_t tag) {
    bool device = compiler_is_below(g->real, "/dev");
    const bool is_shared = g->kind == PLAN_GRANT_SHARED;
    uint64_t shared = MOUNT_ATTR_NOSUID | (device ? MOUNT_ATTR_NOEXEC : MOUNT_ATTR_NODEV);
    uint64_t attributes = is_shared ? shared : READ_ONLY;
    uint64_t access = is_shared ? c->access_write : c->access_read;
    char hidden[64];
    const char *at = g->real;

    if (g->type != PLAN_PATH_DIRECTORY)
        access &= c->access_file;
    if (g->late) {
        hidden_name(c, hidden, sizeof hidden);
        at = hidden;
    }
    struct plan_op op = {
        .kind = PLAN_OP_BIND,
        .grant = tag,
        .mode = (uint32_t)attributes,
        .path = compiler_text(c, at),
        .source = compiler_text(c, g->source),
        .value = g->is_volume                              ? volume_owners(c)
                 : g->kind == PLAN_GRANT_SHARED && !device ? PLAN_BIND_IDMAP
                                                           : 0,
    };
    buf_add(&c->template_ops, &op, sizeof op);
    compiler_rule(c, at, access, PLAN_RULE_STATIC);
    if (g->late) {
        if (in_private_place(c, g->real))
            compiler_op(c, &c->box_ops,
                g->type == PLAN_PATH_DIRECTORY ? PLAN_OP_MKDIR : PLAN_OP_FILE, g->real,
                g->type == PLAN_PATH_DIRECTORY ? NULL : "", 0755, tag);
        compiler_op(c, &c->box_ops, PLAN_OP_COVER, g->real, at, 0, tag);
    }
}

static void grant_tmpfs(struct compiler *c, const struct grant *g, uint16_t tag) {
    if (!g->late || in_private_place(c, g->real))
        compiler_op(
            c, g->late ? &c->box_ops : &c->template_ops, PLAN_OP_MKDIR, g->real, NULL, 0755, tag);
    compiler_place(c, g->real, NULL, g->tmpfs->mode, 0, tag);
    compiler_rule(c, g->real, c->access_write, PLAN_RULE_OWN);
    if (!g->tmpfs->no_exec)
        return;
    struct plan_op op = { .kind = PLAN_OP_COVER,
        .grant = tag,
        .mode = MOUNT_ATTR_NOEXEC,
        .path = compiler_text(c, g->real),
        .value = PLAN_COVER_HERE };
    op.source = op.path;
    buf_add(&c->box_ops, &op, sizeof op);
}

static void grant_writable(struct compiler *c, const struct grant *g, uint16_t tag) {
    bool directory = g->type == PLAN_PATH_DIRECTORY;
    const char *content = directory ? NULL : "";
    char lower[64];

    hidden_name(c, lower, sizeof lower);
    struct plan_op op = { .kind = PLAN_OP_BIND_ONE,
        .grant = tag,
        .mode = READ_ONLY,
        .path = compiler_text(c, lower),
        .source = compiler_text(c, g->source),
        .value = g->is_volume ? volume_owners(c) : PLAN_BIND_IDMAP };
    buf_add(&c->template_ops, &op, sizeof op);
    if (!g->late || in_private_place(c, g->real))
        compiler_op(c, g->late ? &c->box_ops : &c->template_ops,
            directory ? PLAN_OP_MKDIR : PLAN_OP_FILE, g->real, content, 0755, tag);
    compiler_place(c, g->real, lower, 0755, directory ? 0 : PLAN_PLACE_FILE, tag);
    compiler_rule(
        c, g->real, directory ? c->access_write : c->access_write & c->access_file, PLAN_RULE_OWN);
}

/* Mounts inside a directory of the host: an overlay does not show them by itself. An ordinary user
 * has no overlay there (guest/template/mount_ops.c). */
static void add_mounts_below(
    struct compiler *c, const struct grant *g, const char *hidden, uint16_t tag) {
    for (const char *const *mount = c->host->mounts; mount && *mount; mount++) {
        char from[4096];

        if (!compiler_is_below(*mount, g->real) || !strcmp(*mount, g->real) ||
            (size_t)snprintf(from, sizeof from, "%s%s", hidden, *mount + strlen(g->real)) >=
                sizeof from)
            continue;
        if (g->covered == COVERED)
            compiler_op(c, &c->box_ops, PLAN_OP_COVER_IF, *mount, from, 0, tag);
        else
            compiler_op(c, &c->template_ops, PLAN_OP_BIND_ONE, *mount, *mount, READ_ONLY, tag);
    }
}

/* A readable directory in which something is covered. Where that is by default alone (/etc), one
 * overlay serves all sandboxes of the template. An overlay remembers names that were looked up, and
 * so may show an older file than the host has by now. What a policy's author denies lies beside
 * files that are being worked on, so there each sandbox has an overlay of its own, which is made
 * with it. */
static void grant_covered(struct compiler *c, const struct grant *g, uint16_t tag) {
    bool each = g->covered == COVERED;
    char hidden[64] = PLAN_HIDDEN "/base";

    if (each)
        hidden_name(c, hidden, sizeof hidden);
    compiler_op(c, &c->template_ops, PLAN_OP_BIND, hidden, g->real, READ_ONLY, tag);
    compiler_op(c, in_private_place(c, g->real) ? &c->box_ops : &c->template_ops, PLAN_OP_MKDIR,
        g->real, NULL, 0755, tag);
    struct plan_op op = { .kind = PLAN_OP_OVERLAY,
        .grant = tag,
        .path = compiler_text(c, g->real),
        .source = compiler_text(c, hidden),
        .value = each };
    buf_add(each ? &c->box_ops : &c->template_ops, &op, sizeof op);
    add_mounts_below(c, g, hidden, tag);
    compiler_rule(c, g->real, c->access_read, each ? PLAN_RULE_OWN : PLAN_RULE_STATIC);
}

static bool is_etc(const struct grant *g) {
    return !strcmp(g->real, "/etc");
}

/* Whether something is covered in a readable directory. Files that are granted for writing besides
 * have an overlay anyway. */
static enum plan_covered look_for_covers(
    const struct compiler *c, const struct grant *grants, size_t n, const struct grant *g) {
    enum plan_covered covered = is_etc(g) ? COVERED_BY_DEFAULT : COVERED_NOT;

    if (!c->host->overlay || g->kind != PLAN_GRANT_READABLE || g->type != PLAN_PATH_DIRECTORY ||
        g->is_volume)
        return COVERED_NOT;
    for (const struct grant *other = grants; other < grants + n; other++) {
        if ((other->kind == PLAN_GRANT_WRITABLE || other->kind == PLAN_GRANT_SHARED) &&
            !strcmp(other->real, g->real))
            return COVERED_NOT;
        if (other->kind == PLAN_GRANT_DENIED && compiler_is_below(other->real, g->real) &&
            covered != COVERED)
            covered = other->optional ? COVERED_BY_DEFAULT : COVERED;
    }
    return covered && (g->late || in_private_place(c, g->real)) ? COVERED : covered;
}

static void deny_grant(struct compiler *c, const struct grant *g, bool is_in_shared, uint16_t tag) {
    struct plan_op op = {
        .kind = PLAN_OP_COVER,
        .grant = tag,
        .mode = MASK,
        .path = compiler_text(c, g->real),
        .source = compiler_text(
            c, g->type == PLAN_PATH_DIRECTORY ? PLAN_HIDDEN "/void" : PLAN_HIDDEN "/none"),
        .value = is_in_shared ? PLAN_COVER_OR_GONE : 0,
    };

    buf_add(g->late ? &c->box_ops : &c->template_ops, &op, sizeof op);
}

/* The directories between a shared grant and what lies in it become mounts of their own, which
 * cannot be renamed: else a guest would move one aside, with what is denied or read-only in it, and
 * find that open by another name in the next run, or put something else where the caller looks for
 * it. */
static void pin_parents(struct compiler *c, const struct grant *grants, size_t i, uint16_t tag) {
    const struct grant *g = &grants[i], *shared = grants;
    char parent[4096];

    while (shared < g &&
           (shared->kind != PLAN_GRANT_SHARED || !compiler_is_below(g->real, shared->real)))
        shared++;
    if (shared == g || strlen(g->real) >= sizeof parent)
        return;
    for (size_t length = strlen(shared->real) + 1; g->real[length]; length++) {
        bool pinned = false;

        if (g->real[length] != '/')
            continue;
        memcpy(parent, g->real, length);
        parent[length] = '\0';
        for (const struct grant *other = shared; other < g; other++)
            pinned |= compiler_is_below(other->real, parent);
        struct plan_op op = { .kind = PLAN_OP_COVER,
            .grant = tag,
            .path = compiler_text(c, parent),
            .value = PLAN_COVER_HERE };
        op.source = op.path;
        if (!pinned)
            buf_add(g->late ? &c->box_ops : &c->template_ops, &op, sizeof op);
    }
}

/* As root each sandbox has an id of its own, and attaches a mount of the directory with that owner
 * before it binds it (guest/template/own_mounts.c). */
static bool is_shown_as_own(const struct compiler *c, const struct grant *g) {
    return c->host->is_root && (g->kind == PLAN_GRANT_SHARED || g->is_volume) &&
           !compiler_is_below(g->real, "/dev");
}

/* All grants, parents before what lies in them. */
int plan_grants(struct compiler *c, struct rollbox_error *error) {
    const struct policy *p = c->policy;
    const struct plan_host *h = c->host;
    auto_free struct grant *grants = calloc(MAX_GRANTS, sizeof *grants);
    size_t n = 0;
    int r;

    if (!grants)
        return -ENOMEM;
    if ((r = gather_grants(
             c, &p->fs_readable, h->readable, PLAN_GRANT_READABLE, grants, &n, error)) < 0 ||
        (r = gather_grants(
             c, &p->fs_writable, h->writable, PLAN_GRANT_WRITABLE, grants, &n, error)) < 0 ||
        (r = gather_grants(c, &p->fs_shared, h->shared, PLAN_GRANT_SHARED, grants, &n, error)) <
            0 ||
        (r = gather_grants(c, &p->fs_denied, h->denied, PLAN_GRANT_DENIED, grants, &n, error)) <
            0 ||
        (r = gather_tmpfs(c, grants, &n, error)) < 0 ||
        (r = gather_volumes(c, grants, &n, error)) < 0 ||
        (r = gather_device_files(c, grants, &n, error)) < 0)
        return r;
    qsort(grants, n, sizeof *grants, compare_grants);
    for (size_t i = 0; i < n; i++) {
        struct grant *g = &grants[i];
        const struct grant *inside = NULL; /* the closest grant that it lies in */
        bool below_late = false;

        for (size_t j = 0; j < i; j++) {
            if (!compiler_is_below(g->real, grants[j].real) || grants[j].kind == PLAN_GRANT_DENIED)
                continue;
            inside = &grants[j];
            below_late |=
                inside->kind == PLAN_GRANT_WRITABLE || inside->late || inside->covered == COVERED;
        }
        /* In a shared directory a cover goes when the host replaces what is under it: each sandbox
         * makes its own, so that those that start later have one. */
        bool is_in_shared =
            g->kind == PLAN_GRANT_DENIED && inside && inside->kind == PLAN_GRANT_SHARED;
        g->late = below_late || is_in_shared || in_private_place(c, g->real);
        uint16_t tag = plan_grant(g->tmpfs       ? PLAN_GRANT_TMPFS
                                  : g->is_volume ? PLAN_GRANT_VOLUME
                                  : g->is_device ? PLAN_GRANT_DEVICE
                                                 : g->kind,
            g->index);
        if (!g->late && is_shown_as_own(c, g)) {
            compiler_op(c, &c->template_ops,
                g->type == PLAN_PATH_DIRECTORY ? PLAN_OP_MKDIR : PLAN_OP_FILE, g->real,
                g->type == PLAN_PATH_DIRECTORY ? NULL : "", 0755, tag);
            g->late = true;
        }
        pin_parents(c, grants, i, tag);
        if (g->kind == PLAN_GRANT_DENIED) {
            if (inside) /* a path that is not granted needs no denial */
                deny_grant(c, g, is_in_shared, tag);
        } else if (g->tmpfs) {
            grant_tmpfs(c, g, tag);
        } else if (g->kind == PLAN_GRANT_WRITABLE) {
            grant_writable(c, g, tag);
        } else if (!(g->kind == PLAN_GRANT_READABLE && inside && !g->is_volume &&
                       inside->kind == PLAN_GRANT_READABLE)) {
            g->covered = look_for_covers(c, grants, n, g);
            if (g->covered)
                grant_covered(c, g, tag);
            else
                grant_bind(c, g, tag);
        }
        if (g->kind != PLAN_GRANT_DENIED && strcmp(g->path, g->real) &&
            !compiler_is_below(g->path, g->real))
            compiler_op(c, in_private_place(c, g->path) ? &c->box_ops : &c->template_ops,
                PLAN_OP_SYMLINK, g->path, g->real, 0, tag);
    }
    return 0;
}
