/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the keys `devices` and `gpus`, and knows which devices are never given (devices.h). */
#include "policy/devices.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/cleanup.h"
#include "policy/cdi.h"
#include "policy/network_read.h"
#include "policy/read.h"

#define MAX_GPU 1023

/* Below /dev. Each gives work to a device, or a virtual machine or file system to its user; none
 * reaches memory, disks, terminals or input of the host. */
static const char *const listed[] = { "fuse", "kvm", "nvidia[0-9]*", "nvidiactl", "nvidia-uvm",
    "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps/*", "nvidia-caps-imex-channels/*",
    "dri/renderD*", "kfd", "accel/accel*", "neuron[0-9]*", "dxg" };

/* No policy can give these: the host's memory, disks, terminals, input, firmware, and the kernel's
 * controls of those. */
static const char *const never[] = { "mem", "kmem", "port", "kmsg", "core", "initctl", "nvme*",
    "ng[0-9]*", "bsg/*", "sg[0-9]*", "st[0-9]*", "nst[0-9]*", "dm-*", "mapper/*", "loop*", "md*",
    "raw/*", "vfio/*", "iommu", "uinput", "uhid", "input/*", "hidraw*", "console", "tty",
    "tty[0-9]*", "vcs*", "ptmx", "pts/*", "fb[0-9]*", "cpu/*", "mcelog", "nvram", "snapshot",
    "userfaultfd", "watchdog*", "rfkill", "btrfs-control", "autofs", "vhost-*", "tpm*", "ipmi*",
    "mei*", "rtc*", "shm/*", "mqueue/*", "hugepages/*" };

static bool matches(const char *real, const char *const *patterns, size_t n) {
    const char *name = !strncmp(real, "/dev/", 5) ? real + 5 : "";

    for (size_t i = 0; i < n; i++)
        if (!fnmatch(patterns[i], name, FNM_PATHNAME | FNM_PERIOD))
            return true;
    return false;
}

/* By number, however the node is called. Major 1 has the kernel's memory beside null and zero. */
static bool is_never(dev_t number) {
    static const unsigned char majors[] = { 2, 3, 4, 5, 6, 7, 8, 9, 13, 21, 29, 136, 137, 138, 139,
        140, 141, 142, 143, 162, 202, 203, 206 };
    static const unsigned char misc[] = { 1, 126, 130, 144, 203, 223, 227, 228, 231, 234, 235, 236,
        237, 238, 239, 241, 242 };
    static const unsigned char memory[] = { 3, 5, 7, 8, 9 };

    if (major(number) == 1)
        return !memchr(memory, (int)minor(number), sizeof memory) || minor(number) > 255;
    if (major(number) == 10)
        return minor(number) < 256 && memchr(misc, (int)minor(number), sizeof misc);
    return major(number) < 256 && memchr(majors, (int)major(number), sizeof majors);
}

const char *device_refusal(const char *real, mode_t mode, dev_t number, bool by_list) {
    if (S_ISBLK(mode))
        return "a disk is never given to a sandbox";
    if (!S_ISCHR(mode))
        return "it is not a device";
    if (strncmp(real, "/dev/", 5) != 0)
        return "only devices below /dev are given to sandboxes";
    if (is_never(number) || matches(real, never, ARRAY_SIZE(never)))
        return "it reaches memory, disks, terminals or input of the host, and is never given to a "
               "sandbox";
    if (by_list && !matches(real, listed, ARRAY_SIZE(listed)))
        return "it is of no kind that is known to be safe to give; if the sandbox may use "
               "everything that its driver does, write {\"path\": ..., \"unlisted\": true}";
    return NULL;
}

int policy_add_device(struct policy *policy, const char *name, bool unlisted) {
    struct policy_devices *devices = &policy->devices;
    struct policy_device *items = reallocarray(devices->items, devices->n + 1, sizeof *items);
    char *copy = strdup(name);

    if (items)
        devices->items = items;
    if (!items || !copy) {
        free(copy);
        return -ENOMEM;
    }
    items[devices->n++] = (struct policy_device){ copy, unlisted };
    return 0;
}

static void add(struct reader *r, const char *name, bool unlisted) {
    for (size_t i = 0; i < r->policy->devices.n; i++)
        if (!strcmp(r->policy->devices.items[i].name, name)) {
            read_bad(r, "leave one out", "\"%.80s\" is in the list twice", name);
            return;
        }
    if (r->policy->devices.n == DEVICES_MAX)
        read_bad(r, "", "has more than %d devices", DEVICES_MAX);
    else if (policy_add_device(r->policy, name, unlisted) < 0)
        r->out_of_memory = true;
}

static void read_device(struct reader *r, json_t *value) {
    const json_t *named = json_is_object(value) ? json_object_get(value, "path") : value;
    const char *text = json_string_value(named), *key;
    bool unlisted = false;
    json_t *member;

    if (json_is_object(value)) {
        json_object_foreach(value, key, member) {
            if (!strcmp(key, "unlisted"))
                read_bool(r, member, &unlisted);
            else if (strcmp(key, "path") != 0)
                read_bad(
                    r, "a device has \"path\" and \"unlisted\"", "unknown member \"%.40s\"", key);
        }
        if (!named) {
            read_bad(r, "add \"path\"", "has no path");
            return;
        }
    }
    if (text && strlen(text) == json_string_length(named) && cdi_kind_length(text)) {
        add(r, text, false);
        return;
    }
    auto_free char *path = read_path(r, named);
    if (!path)
        return;
    if (strncmp(path, "/dev/", 5) != 0)
        read_bad(r, "write \"/dev/kvm\" or, for a device of a CDI file, \"vendor.com/class=name\"",
            "\"%.80s\" is not below /dev", path);
    else
        add(r, path, unlisted);
}

void key_devices(struct reader *r, json_t *value) {
    if (!json_is_array(value)) {
        read_bad(r, json_is_string(value) ? "put it between [ and ]" : "",
            "must be a list of devices, not %s", read_type(value));
        return;
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        r->index = (long)i;
        read_device(r, json_array_get(value, i));
    }
    r->index = -1;
}

void key_gpus(struct reader *r, json_t *value) {
    const char *text = json_string_value(value);
    char name[40];

    if (text && !strcmp(text, "none"))
        return;
    if (text && !strcmp(text, "all")) {
        add(r, "nvidia.com/gpu=all", false);
        return;
    }
    if (!json_is_array(value)) {
        read_bad(r, "", "must be \"none\", \"all\" or a list of numbers such as [0, 2]");
        return;
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i);
        const json_int_t number = json_integer_value(item);

        r->index = (long)i;
        if (!json_is_integer(item) || number < 0 || number > MAX_GPU) {
            read_bad(r, "", "must be a number of a GPU, from 0");
            continue;
        }
        snprintf(name, sizeof name, "nvidia.com/gpu=%d", (int)number);
        add(r, name, false);
    }
    r->index = -1;
}

void policy_devices_done(struct policy_devices *devices) {
    for (size_t i = 0; i < devices->n; i++)
        free(devices->items[i].name);
    for (size_t i = 0; i < devices->n_files; i++) {
        free(devices->files[i].source);
        free(devices->files[i].path);
    }
    free(devices->items);
    free(devices->files);
    *devices = (struct policy_devices){ 0 };
}
