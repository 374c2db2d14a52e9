/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The policy: the files, network, limits and other resources that a sandbox may use.
 *
 * policy_parse turns JSON text into a struct policy. It checks types, ranges, unknown keys and
 * contradictions, but nothing on the host: this layer does no I/O. It collects all problems, each
 * with its line. docs/reference/policy.md documents every key and default.
 */
#ifndef ROLLBOX_POLICY_POLICY_H
#define ROLLBOX_POLICY_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/network.h"
#include "policy/strings.h"

enum policy_net { POLICY_NET_NONE, POLICY_NET_LOOPBACK, POLICY_NET_ALLOW, POLICY_NET_HOST };
enum policy_isolation { POLICY_ISOLATION_NAMESPACE, POLICY_ISOLATION_PROCESS };
enum policy_disk_at { POLICY_DISK_MEMORY, POLICY_DISK_STORE };
enum policy_time_mode { POLICY_TIME_OFFSET, POLICY_TIME_VIRTUAL };

/* An absolute, normalised path (no ".", "..", "//" or trailing "/"). */
struct policy_path {
    char *path;
    bool optional; /* from the defaults: skipped if the host has no such path */
};

struct policy_paths {
    struct policy_path *items;
    size_t n;
};

struct publish_port; /* policy/publish.h */

struct publish_ports {
    struct publish_port *items;
    size_t n;
};

struct policy_device; /* policy/devices.h */
struct policy_device_file;

struct policy_devices {
    struct policy_device *items;
    size_t n;
    struct policy_device_file *files; /* what they are on this host */
    size_t n_files;
};

struct policy_volume; /* policy/volumes.h */

struct policy_volumes {
    struct policy_volume *items;
    size_t n;
};

#define POLICY_OPEN_FILES_MAX 1048576 /* descriptors of one process */

struct policy_tmpfs; /* policy/tmpfs.h */

struct policy_tmpfs_list {
    struct policy_tmpfs *items;
    size_t n;
};

struct policy_ulimit; /* policy/ulimits.h */

struct policy_ulimits {
    struct policy_ulimit *items;
    size_t n;
};

struct policy {
    struct policy_paths fs_readable; /* default /usr /bin /sbin /lib /lib32 /lib64 /libx32 /etc
                                        /opt, all optional */
    struct policy_paths
        fs_readable_extra;           /* as given; policy_parse has put them into fs_readable, too */
    struct policy_paths fs_writable; /* private copy-on-write */
    struct policy_paths fs_shared;   /* writes through */
    struct policy_paths fs_denied;   /* default: the known secrets below /etc, all optional; a given
                                        list is added to them */
    struct policy_volumes volumes;
    struct policy_devices devices;
    struct policy_tmpfs_list tmpfs;
    struct policy_ulimits ulimits;
    uint64_t shm_bytes; /* the least space of /dev/shm; 0: not given */
    char *image;        /* NULL: none */
    char *cwd;          /* NULL: /tmp */
    char *python;       /* the interpreter that python3 is in the sandbox; NULL: that of its PATH */
    struct policy_strings env; /* "K=V", in the order given, a later one replaces an earlier */
    bool clean_env;  /* true: only the documented base environment + env; false: the caller's
                        environment is kept under it */
    char *user;      /* NULL: "box" (uid 1000), or with `many_users` root; else "root" or a number
                        0..65534, with `many_users` also a name of the sandbox's /etc/passwd */
    bool many_users; /* users "many": 65,536 ids, and a root with capabilities over them */
    char *hostname;  /* NULL: "rollbox" */
    uint64_t max_memory_bytes; /* 512 MiB */
    uint32_t max_processes;    /* 64, see policy_fit */
    bool max_processes_given, max_disk_given;
    uint32_t max_cpu_milli;      /* thousandths of a CPU; 0: no limit */
    uint64_t max_disk_bytes;     /* 1 GiB, see policy_fit */
    enum policy_disk_at disk_at; /* where private writes are kept: memory */
    uint32_t max_open_files;     /* 4096 */
    uint64_t max_output_bytes;   /* 10 MiB a stream */
    int64_t timeout_ms;          /* -1: not said (policy_run_timeout_ms); 0: "none" */
    enum policy_net net;
    struct net_rules network; /* of net "allow" */
    struct publish_ports publish;
    char *network_name; /* a private network of sandboxes; NULL: none */
    enum policy_isolation isolation;
    bool have_seed;
    uint64_t random_seed;
    char *time_start; /* NULL: the real clock */
    enum policy_time_mode time_mode;
    bool serial;
};

struct policy_problem {
    unsigned line; /* from 1; 0 if it has no place in the text */
    char *key;     /* "fs_readable[2]"; "" for the text as a whole */
    char *message; /* the error text */
    char *hint;    /* how to mend it; may be "" */
};

struct policy_problems {
    struct policy_problem *items;
    size_t n;
};

/* Parses text[0..length). 0 and a policy for the caller to free; -EINVAL with at least one problem
 * in *problems (the caller's, cleared first, freed with policy_problems_done); -ENOMEM. */
int policy_parse(
    const char *text, size_t length, struct policy **ret_policy, struct policy_problems *problems);
struct policy *policy_free(struct policy *policy);
/* Whether policies have this key. If not, *ret_meant is the key that was meant, or NULL. */
bool policy_has_key(const char *key, const char **ret_meant);
/* Denies one more path by default: what is granted by name, or denied already, stays so. `path` as
 * of struct policy_path. 0 or -ENOMEM. */
int policy_deny(struct policy *policy, const char *path);

/*
 * Makes defaults that do not go together on this host ones that do; what was given stays.
 *
 * Files in memory count as memory, so a disk that is larger than the memory is never full: a
 * program that fills it is ended as out_of_memory, where it could have handled ENOSPC. By default
 * it has at most three quarters of the memory, which leaves the rest to the program that writes.
 * Programs start a thread for each CPU, and several pools of them (BLAS, OpenMP, a JVM's collector
 * and compiler), so there are at least four processes and threads a CPU.
 */
void policy_fit(struct policy *policy, unsigned cpus);
/* Could it be the name of a user or group: letters, digits, "_.-", not a number? */
#define POLICY_USER_NAME_MAX 64
bool policy_is_user_name(const char *text);
/* Grants one more path to be read, unless it is there already. 0 or -ENOMEM. */
int policy_grant(struct policy *policy, const char *path);

/*
 * How long a run may take, in milliseconds; -1: as long as it likes. Code that nobody has read does
 * not end by itself, and its caller waits: without a default one looping answer holds a trainer for
 * ever. 300 s is far above what judging an answer takes, and short beside a night. Commands of
 * sessions have no such default: builds take longer, servers never end, and the sandbox
 * has limits of its own life.
 */
#define POLICY_RUN_TIMEOUT_MS 300000
int64_t policy_run_timeout_ms(const struct policy *policy);

void policy_problems_done(struct policy_problems *problems);

/* "512M" -> bytes (K, M, G, T are powers of 1024; a bare number is bytes), exact, no overflow. 0 or
 * -EINVAL / -ERANGE. */
int policy_parse_size(const char *text, uint64_t *ret_bytes);

#endif
