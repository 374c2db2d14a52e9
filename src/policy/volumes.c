/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the key `volumes` of a policy (volumes.h). */
#include "policy/volumes.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "policy/network_read.h"
#include "policy/read.h"

static const char *const modes[] = { [POLICY_VOLUME_EXCLUSIVE] = "exclusive",
    [POLICY_VOLUME_SHARED] = "shared",
    [POLICY_VOLUME_READ_ONLY] = "read-only",
    [POLICY_VOLUME_PRIVATE] = "private" };

bool policy_is_volume_name(const char *text) {
    size_t n = strlen(text);

    if (n < 1 || n > VOLUME_NAME_MAX || !isascii(*text) || !isalnum((unsigned char)*text))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isascii(text[i]) || (!isalnum((unsigned char)text[i]) && !strchr("._-", text[i])))
            return false;
    return true;
}

const char *policy_volume_mode_name(enum policy_volume_mode mode) {
    return modes[mode];
}

bool policy_writes_volumes(const struct policy *policy) {
    for (size_t i = 0; i < policy->volumes.n; i++)
        if (policy_volume_is_written(&policy->volumes.items[i]))
            return true;
    return false;
}

static void read_object(struct reader *r, const json_t *value, struct policy_volume *volume) {
    const char *key;
    json_t *member;

    json_object_foreach((json_t *)value, key, member) {
        if (!strcmp(key, "path")) {
            volume->path = read_path(r, member);
        } else if (!strcmp(key, "mode")) {
            int found = read_word(r, member, modes, ARRAY_SIZE(modes));

            if (found >= 0)
                volume->mode = (enum policy_volume_mode)found;
        } else {
            read_bad(r, "a volume has \"path\" and \"mode\"", "unknown member \"%.40s\"", key);
        }
    }
    if (!json_object_get(value, "path"))
        read_bad(r, "add \"path\": \"/data\"", "has no path");
}

/* The sandbox's own file systems, and its root. The setup makes directories in them and above the
 * directories for temporary files, which must not happen among files that a guest has left. */
static const char *taken_by(const char *path) {
    static const char *const temporary[] = { "/tmp", "/var/tmp" };

    for (size_t i = 0; i < ARRAY_SIZE(temporary); i++)
        if (!strcmp(path, "/") || read_is_in(temporary[i], path))
            return temporary[i];
    return read_own_mount(path);
}

static void add_volume(struct reader *r, struct policy_volume *volume) {
    struct policy_volumes *volumes = &r->policy->volumes;
    struct policy_volume *items;

    if (taken_by(volume->path)) {
        read_bad(r, "use another path, such as /data", "\"%.80s\": every sandbox has %s of its own",
            volume->path, taken_by(volume->path));
        return;
    }
    for (size_t i = 0; i < volumes->n; i++)
        if (!strcmp(volumes->items[i].path, volume->path)) {
            read_bad(r, "give each a path of its own", "\"%.80s\" is the path of volume %s, too",
                volume->path, volumes->items[i].name);
            return;
        }
    items = reallocarray(volumes->items, volumes->n + 1, sizeof *items);
    if (!items) {
        r->out_of_memory = true;
        return;
    }
    volumes->items = items;
    items[volumes->n++] = *volume;
    *volume = (struct policy_volume){ NULL, NULL, POLICY_VOLUME_EXCLUSIVE };
}

void key_volumes(struct reader *r, json_t *value) {
    const char *name;
    json_t *member;

    if (!read_is_object(r, value, "write {\"NAME\": \"/path\"}", VOLUMES_MAX, "volumes"))
        return;
    json_object_foreach(value, name, member) {
        struct policy_volume volume = { NULL, NULL, POLICY_VOLUME_EXCLUSIVE };

        r->member = name;
        if (!policy_is_volume_name(name)) {
            read_bad(r, "use 1 to 64 letters, digits and . _ -, and begin with a letter or digit",
                "\"%.64s\" is not a name of a volume", name);
            continue;
        }
        if (json_is_object(member))
            read_object(r, member, &volume);
        else
            volume.path = read_path(r, member);
        volume.name = volume.path ? read_copy(r, name) : NULL;
        if (volume.name)
            add_volume(r, &volume);
        free(volume.name);
        free(volume.path);
    }
    r->member = NULL;
}

/* A volume may lie in a grant. What lies in a volume would have to be made there, for all its
 * users, and so would a place for another volume. */
static void check_volume(struct reader *r, const struct policy_volume *volume) {
    const struct policy *policy = r->policy;
    const struct {
        const char *key;
        const struct policy_paths *paths;
    } lists[] = { { "fs_readable_extra", &policy->fs_readable_extra },
        { "fs_writable", &policy->fs_writable }, { "fs_shared", &policy->fs_shared },
        { "fs_denied", &policy->fs_denied }, { "fs_readable", &policy->fs_readable } };

    r->member = volume->name;
    for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
        for (size_t k = 0; k < lists[i].paths->n; k++) {
            const char *path = lists[i].paths->items[k].path;
            const bool is_above = read_is_in(path, volume->path);
            const bool holds =
                lists[i].paths == &policy->fs_shared && read_is_in(volume->path, path);
            const bool hides =
                lists[i].paths == &policy->fs_denied && read_is_in(volume->path, path);

            if (is_above || holds || hides) {
                read_bad(r, "give the volume a path of its own, such as /data",
                    "\"%.80s\" %s \"%.80s\" of %s", volume->path,
                    is_above ? "has in it" : "lies in", path, lists[i].key);
                return;
            }
        }
    for (size_t i = 0; i < policy->volumes.n; i++) {
        const struct policy_volume *other = &policy->volumes.items[i];

        if (other != volume && read_is_in(volume->path, other->path)) {
            read_bad(r, "put them beside each other", "\"%.80s\" lies in volume %s", volume->path,
                other->name);
            return;
        }
    }
}

void volumes_check(struct reader *r) {
    r->key = "volumes";
    for (size_t i = 0; i < r->policy->volumes.n; i++)
        check_volume(r, &r->policy->volumes.items[i]);
    r->member = NULL;
}

void policy_volumes_done(struct policy_volumes *volumes) {
    for (size_t i = 0; i < volumes->n; i++) {
        free(volumes->items[i].name);
        free(volumes->items[i].path);
    }
    free(volumes->items);
    *volumes = (struct policy_volumes){ NULL, 0 };
}
