/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices of a policy: the keys `devices` and `gpus`.
 *
 * A device is a path below /dev, or the name of a device in a CDI file (cdi.h). Of the paths, those
 * of a list of kinds may be given: accelerators, KVM and FUSE. Others need "unlisted". Some never
 * are: memory, disks, terminals, input (device_refusal).
 */
#ifndef ROLLBOX_POLICY_DEVICES_H
#define ROLLBOX_POLICY_DEVICES_H

#include <stdbool.h>
#include <sys/types.h>

#include "policy/policy.h"

#define DEVICES_MAX 64

struct policy_device {
    char *name; /* an absolute path, or "vendor.com/class=name" */
    bool unlisted;
};

/* What the devices were resolved to on this host, by the engine: a device node, or a file that a
 * CDI file mounts. */
struct policy_device_file {
    char *source; /* on the host, without links */
    char *path;   /* in the sandbox */
    bool is_node, is_directory;
    bool is_there;   /* the host has the source at `path`, too */
    bool needs_node; /* the sandbox's user cannot open the host's: root makes one of its own */
    unsigned device; /* of the policy's list */
};

/* Why a node may not be given to a sandbox, NULL: it may. `real`: without links, of the host.
 * `by_list`: it must be of a listed kind. */
const char *device_refusal(const char *real, mode_t mode, dev_t number, bool by_list);
void policy_devices_done(struct policy_devices *devices);
int policy_add_device(struct policy *policy, const char *name, bool unlisted);

#endif
