/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the keys `tmpfs` and `shm_size` of a policy (tmpfs.h). */
#include "policy/tmpfs.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "policy/network_read.h"
#include "policy/read.h"
#include "policy/volumes.h"

#define SIZE_MIN 4096 /* a page */
#define SIZE_MIN_TEXT "4K"

static void read_mode(struct reader *r, const json_t *value, uint32_t *ret_mode) {
    const char *text = json_string_value(value);
    unsigned long mode;
    char *end;

    if (!text) {
        read_bad(r, "write \"0700\"", "a mode must be a string, not %s", read_type(value));
        return;
    }
    mode = strtoul(text, &end, 8);
    if (*end || !strchr("01234567", *text) || !*text || mode > 01777)
        read_bad(r, "write octal digits, at most \"1777\"", "\"%.20s\" is not a mode", text);
    else
        *ret_mode = (uint32_t)mode;
}

static void read_members(struct reader *r, const json_t *value, struct policy_tmpfs *tmpfs) {
    const char *key;
    json_t *member;

    json_object_foreach((json_t *)value, key, member) {
        if (json_is_null(member)) {
            continue;
        } else if (!strcmp(key, "size")) {
            read_size(r, member, SIZE_MIN, SIZE_MIN_TEXT, &tmpfs->size_bytes);
        } else if (!strcmp(key, "mode")) {
            read_mode(r, member, &tmpfs->mode);
        } else if (!strcmp(key, "exec")) {
            bool exec = true;

            read_bool(r, member, &exec);
            tmpfs->no_exec = !exec;
        } else {
            read_bad(
                r, "a tmpfs has \"size\", \"mode\" and \"exec\"", "unknown member \"%.40s\"", key);
        }
    }
}

/* The sandbox's own file systems, and what the setup needs to be its own. */
static const char *taken_by(const char *path) {
    const char *own = read_own_mount(path);

    if (own)
        return strcmp(path, "/dev/shm") ? own : NULL;
    return strcmp(path, "/") ? NULL : "a root";
}

static void add_tmpfs(struct reader *r, struct policy_tmpfs *tmpfs) {
    struct policy_tmpfs_list *list = &r->policy->tmpfs;
    struct policy_tmpfs *items;

    if (taken_by(tmpfs->path)) {
        read_bad(r, "use another path, such as /scratch",
            "\"%.80s\": every sandbox has %s of its own", tmpfs->path, taken_by(tmpfs->path));
        return;
    }
    for (size_t i = 0; i < list->n; i++)
        if (!strcmp(list->items[i].path, tmpfs->path)) {
            read_bad(r, "leave one out", "\"%.80s\" is named twice", tmpfs->path);
            return;
        }
    items = reallocarray(list->items, list->n + 1, sizeof *items);
    if (!items) {
        r->out_of_memory = true;
        return;
    }
    list->items = items;
    items[list->n++] = *tmpfs;
    tmpfs->path = NULL;
}

void key_tmpfs(struct reader *r, json_t *value) {
    const char *path;
    json_t *member;

    if (!read_is_object(r, value, "write {\"/path\": \"64M\"}", TMPFS_MAX, "directories"))
        return;
    json_object_foreach(value, path, member) {
        json_t *name = json_string(path);
        struct policy_tmpfs tmpfs = { .mode = 01777 };

        r->member = path;
        if (!name) {
            r->out_of_memory = true;
            break;
        }
        tmpfs.path = read_path(r, name);
        json_decref(name);
        /* A link of every sandbox's, and of every image's. */
        if (tmpfs.path && read_is_in(tmpfs.path, "/var/run"))
            memmove(tmpfs.path, tmpfs.path + 4, strlen(tmpfs.path + 4) + 1);
        if (json_is_object(member))
            read_members(r, member, &tmpfs);
        else if (!json_is_null(member))
            read_size(r, member, SIZE_MIN, SIZE_MIN_TEXT, &tmpfs.size_bytes);
        if (tmpfs.path)
            add_tmpfs(r, &tmpfs);
        free(tmpfs.path);
    }
    r->member = NULL;
}

void key_shm_size(struct reader *r, json_t *value) {
    read_size(r, value, SIZE_MIN, SIZE_MIN_TEXT, &r->policy->shm_bytes);
}

uint64_t policy_tmpfs_bytes(const struct policy *policy) {
    uint64_t sum = policy->shm_bytes;

    for (size_t i = 0; i < policy->tmpfs.n; i++)
        sum = MIN(sum + policy->tmpfs.items[i].size_bytes, (uint64_t)INT64_MAX);
    return sum;
}

bool policy_tmpfs_is_there(const struct policy *policy, const char *path) {
    return !strcmp(path, "/dev/shm") ||
           (!policy->image && (!strcmp(path, "/tmp") || !strcmp(path, "/var/tmp")));
}

/* An entry that shares its path with a grant, or hides the directories for temporary files. */
static void check_path(struct reader *r, const struct policy_tmpfs *tmpfs) {
    const struct policy *policy = r->policy;
    const struct {
        const char *key;
        const struct policy_paths *paths;
    } lists[] = { { "fs_readable_extra", &policy->fs_readable_extra },
        { "fs_writable", &policy->fs_writable }, { "fs_shared", &policy->fs_shared },
        { "fs_denied", &policy->fs_denied }, { "fs_readable", &policy->fs_readable } };

    r->member = tmpfs->path;
    if (policy_tmpfs_is_there(policy, tmpfs->path))
        return;
    if (!policy->image && read_is_in("/var/tmp", tmpfs->path)) {
        read_bad(
            r, "use another path, such as /scratch", "\"%.80s\" would hide /var/tmp", tmpfs->path);
        return;
    }
    for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
        for (size_t k = 0; k < lists[i].paths->n; k++) {
            const struct policy_path *other = &lists[i].paths->items[k];
            const bool hides = lists[i].paths == &policy->fs_denied && !other->optional &&
                               read_is_in(tmpfs->path, other->path);

            if (!strcmp(other->path, tmpfs->path) || hides) {
                read_bad(r, "leave one of them out", "\"%.80s\" is in %s, too", tmpfs->path,
                    lists[i].key);
                return;
            }
        }
    for (size_t i = 0; i < policy->volumes.n; i++)
        if (!strcmp(policy->volumes.items[i].path, tmpfs->path)) {
            read_bad(r, "leave one of them out", "\"%.80s\" is the path of volume %s, too",
                tmpfs->path, policy->volumes.items[i].name);
            return;
        }
}

void tmpfs_check(struct reader *r) {
    const struct policy *policy = r->policy;

    r->key = "tmpfs";
    for (size_t i = 0; i < policy->tmpfs.n; i++)
        check_path(r, &policy->tmpfs.items[i]);
    r->member = NULL;
    r->key = policy->tmpfs.n ? "tmpfs" : "shm_size";
    if (policy->max_disk_given && policy_tmpfs_bytes(policy) > policy->max_disk_bytes)
        read_bad(r, "raise max_disk, which holds for all files of the sandbox's own",
            "%llu bytes in all are more than max_disk has (%llu)",
            (unsigned long long)policy_tmpfs_bytes(policy),
            (unsigned long long)policy->max_disk_bytes);
}

void policy_tmpfs_done(struct policy_tmpfs_list *list) {
    for (size_t i = 0; i < list->n; i++)
        free(list->items[i].path);
    free(list->items);
    *list = (struct policy_tmpfs_list){ NULL, 0 };
}
