/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan: a policy compiled once for one host, for any number of sandboxes.
 *
 * A plan is one block of memory without pointers. A launcher receives it as a sealed memory file.
 * At its start the launcher carries out the template operations, which leave it in a mount
 * namespace with everything that the sandboxes of this plan share. Each sandbox is cloned from
 * there and carries out the box operations, which create its private parts. All work that needs
 * memory, formatting or decisions is done here; the guest layer only executes.
 *
 * The launcher lives in a user namespace U0, which owns the template. Each sandbox ends in a user
 * namespace of its own below U0, and so has no rights over any mount that it sees.
 */
#ifndef ROLLBOX_POLICY_PLAN_H
#define ROLLBOX_POLICY_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

#include "base/buf.h"
#include "policy/expand.h"
#include "policy/policy.h"

#define PLAN_MAGIC 0x6e6c7072u /* "rpln" */
#define PLAN_HIDDEN                                                                                \
    "/.rollbox" /* where the template keeps what box operations bind from; not readable by guests  \
                   (Landlock) */
#define PLAN_UPPERS                                                                                \
    PLAN_HIDDEN "/uppers" /* disk_at store: where the template has the engine's directory of the   \
                             store, with one for each sandbox and layer */
#define PLAN_PRIVATE                                                                               \
    "/dev/shm" /* where a sandbox's own tmpfs, or that directory, is mounted while it is set up:   \
                  "p<number>" the parts of places, "w" what their overlays need, "uptime" */

/* kind, what it does with path (p), source (s), mode (m) and value (v) */
/* clang-format off */
#define PLAN_OPS(X) \
    X(MKDIR,    "make the directory p, with parents, mode m") \
    X(FILE,     "make the file p with content s of v bytes, mode m") \
    X(CHANCE,   "make the file p with v bytes that follow from the seed, mode m") \
    X(SYMLINK,  "make the symbolic link p to s, unless p exists") \
    X(BIND,     "bind the host's s at p, recursively, attributes m") \
    X(BIND_ONE, "bind the host's s at p without what is mounted below it, attributes m") \
    X(DEVICE,   "make a device node p like the host's s, attributes m") \
    X(OVERLAY,  "show s of the new root at p, read-only, under names that stay covered when the host replaces them; v: s stays mounted") \
    X(TMPFS,    "mount a tmpfs at p, options s") \
    X(UPPER,    "bind the directory of the sandbox's own in s at p") \
    X(PRIVATE,  "make the directory p of the sandbox's own, mode m") \
    X(PLACE,    "make p writable: the part v of the sandbox's own files over s, if given, and over its layers; mode m where it is new") \
    X(PIVOT,    "make p, a mount point, the root of what follows; s is still the template's") \
    X(COVER,    "bind s of the new root over p, attributes m") \
    X(COVER_IF, "the same if p exists") \
    X(PROC,     "mount proc at p, read-only") \
    X(UPTIME,   "cover p by the file s of the sandbox's own, attributes m, in which init writes the virtual clock") \
    X(DEVPTS,   "mount devpts at p, options s")
/* clang-format on */

enum plan_op_kind {
#define PLAN_OP_ENUM(name, text) PLAN_OP_##name,
    PLAN_OPS(PLAN_OP_ENUM)
#undef PLAN_OP_ENUM
};

enum plan_grant {
    PLAN_GRANT_READABLE = 1,
    PLAN_GRANT_WRITABLE,
    PLAN_GRANT_SHARED,
    PLAN_GRANT_DENIED,
    PLAN_GRANT_VOLUME,
    PLAN_GRANT_DEVICE,
    PLAN_GRANT_TMPFS,
};
#define plan_grant(kind, index) ((uint16_t)((kind) << 12 | (index)))

/* `value` of BIND and BIND_ONE, under PLAN_AS_ROOT: an idmapped mount, on which what belongs to the
 * owner of s is the guest's; or, with an owner, what belongs to that id. */
#define PLAN_BIND_IDMAP 1
#define PLAN_BIND_OWNER 2
/* Likewise: every id of the host below 65536 is the guest's of that number (PLAN_MANY_USERS). */
#define PLAN_BIND_ALL 4
#define plan_bind_is_mapped(op)                                                                    \
    (((op)->kind == PLAN_OP_BIND || (op)->kind == PLAN_OP_BIND_ONE) &&                             \
        (op)->value & PLAN_BIND_IDMAP)
#define plan_bind_owned(id) (PLAN_BIND_IDMAP | PLAN_BIND_OWNER | (uint64_t)(id) << 32)
#define plan_bind_owner(op) ((uint32_t)((op)->value >> 32))

/* `value` of COVER in a sandbox with an image: s is not in the template but where p is. */
#define PLAN_COVER_HERE 1
/* Nothing is mounted below s: spares the kernel a look at each mount of the template. */
#define PLAN_COVER_ALONE 2
/* The host may have removed the file to cover. */
#define PLAN_COVER_OR_GONE 4

/* `value` of PLACE: the number of its part "p<number>" of the private tmpfs, which is the same in
 * every sandbox of the plan and in layers; and whether it is a single file, a private copy of s. */
#define PLAN_PLACE_FILE (1u << 16)
#define PLAN_MAX_IMAGE_LAYERS 128 /* so that their names fit into the options of a mount */
#define plan_place_part(op) ((unsigned)(op)->value & 0xffff)

struct plan_op {
    uint16_t kind;
    uint16_t grant;  /* what policy path caused it, for messages: enum plan_grant and its index; 0:
                        none */
    uint32_t mode;   /* permission bits, or MOUNT_ATTR_* */
    uint32_t path;   /* offset of a text in the plan */
    uint32_t source; /* offset of a text, or 0 */
    uint64_t value;
    uint64_t device, inode; /* of BIND and BIND_ONE: what s was when the engine looked, which fills
                               it in; inode 0: it may be anything */
};

/* The location of the path of a Landlock rule. */
enum plan_rule_kind {
    PLAN_RULE_OWN,    /* the sandbox's own: opened for each */
    PLAN_RULE_STATIC, /* in the template: opened once */
    PLAN_RULE_HOST,   /* isolation process: on the host, opened for each sandbox: files are replaced
                         there; no link is followed */
    PLAN_RULE_HOST_OPTIONAL, /* the same, and skipped when it is gone: one of many that a grant was
                                expanded to */
    PLAN_RULE_PRIVATE,       /* isolation process: the directory of the sandbox's own files */
};

/* A Landlock rule: `access` is allowed at and below `path`. */
struct plan_rule {
    uint64_t access;
    uint32_t path;
    uint32_t kind; /* enum plan_rule_kind */
};

#define PLAN_NET_MAX_PORTS 62u /* each may take a socket of init's, beside two others */

/* Ports that the rules of net "allow" name, but 53. Without transparent proxying a TCP port has a
 * listener of its own; a UDP port always has. Ranges do not overlap. */
struct plan_net_ports {
    uint16_t first, last;
    uint32_t is_udp;
};

/* A resource limit: the hard one, and the soft one, which is not above it. A resource may have two,
 * of which the first is the sandbox's own limit, and the second the policy's below it. */
struct plan_rlimit {
    uint32_t resource;
    uint32_t padding;
    uint64_t value;
    uint64_t soft;
};

enum plan_flag {
    PLAN_AS_ROOT = 1 << 0, /* the launcher starts as the host's root: real mounts first, then U0
                              with a range of ids, of which each sandbox has one of its own */
    PLAN_NET_OWN = 1 << 1, /* a network namespace of its own, from the engine's pool or new */
    PLAN_NET_LOOPBACK = 1 << 2, /* with its loopback interface up */
    PLAN_TIMENS = 1 << 3,       /* boottime and monotonic clocks start at zero */
    PLAN_CGROUPNS = 1 << 4,
    PLAN_PROCESS = 1 << 5,     /* isolation "process": no namespaces */
    PLAN_REPORT_DISK = 1 << 6, /* send the engine a descriptor of the private tmpfs */
    PLAN_LANDLOCK = 1 << 7,
    PLAN_SECCOMP = 1 << 8,
    PLAN_SEED = 1 << 10, /* random_seed: random bytes come from `seed` */
    PLAN_CLOCK =
        1 << 11, /* time_start: the time of day is `clock_*` when the first command starts */
    PLAN_VIRTUAL =
        1 << 12, /* time_mode virtual: and it moves with what the guest does (guest/det/vtime.h) */
    PLAN_ON_DISK = 1 << 14,    /* disk_at store: what is private lies in a directory of PLAN_UPPERS,
                                  not in a tmpfs */
    PLAN_NET_ALLOW = 1 << 15,  /* with PLAN_NET_LOOPBACK: connections to outside lead to a gateway,
                                  through sockets that the engine gets with BOX_READY */
    PLAN_NET_TPROXY = 1 << 16, /* with PLAN_NET_ALLOW: by transparent proxying, if the kernel can;
                                  else a listener for each port */
    PLAN_SERIAL = 1 << 13,     /* serial: and one thread runs at a time (guest/det/serial.h) */
    PLAN_MANY_USERS = 1 << 17, /* users many: PLAN_MANY_IDS ids from `outer_uid` on, of which the
                                  first is root's, with `capabilities` */
};

/* With PLAN_VIRTUAL: what CLOCK_MONOTONIC and CLOCK_BOOTTIME show at the start. Further than the
 * kernel's own, which is at 0 then, ever gets: so no time-out until one of their times ends by
 * itself. */
#define PLAN_VIRTUAL_UPTIME_S 10000000
/* init's own code is below, that of programs above: what is called from there on the way to execve
 * is nobody's question. */
#define PLAN_PROGRAMS_FROM 0x400000u
/* With PLAN_CLOCK: the sixth argument of a newfstatat that is not asked about, which has four. The
 * patched vDSO's text has it, so it is a plain number. */
#define PLAN_STAT_UNASKED 0x726f6c6c73746174
/* With PLAN_MANY_USERS: the ids of a sandbox; and the first of the plan's own in U0. For an
 * ordinary user these are his range of /etc/subuid, and all ids of U0 but its root, who is the
 * user. */
#define PLAN_MANY_IDS 65536u
#define PLAN_MANY_FIRST 131072u
/* With PLAN_MANY_USERS: what root has in the sandbox's user namespace, one bit for each capability.
 * Docker's default set without MKNOD (devices are the host's) and AUDIT_WRITE (there are no sockets
 * of the audit system). NET_RAW and NET_BIND_SERVICE have no effect, because the network namespace
 * belongs to U0; they are there because a file that asks for a capability which is out of bounds is
 * not executed at all. docs/explanation/security.md argues each. */
#define PLAN_CAPABILITIES                                                                          \
    (UINT64_C(1) << 0 /* CHOWN */ | UINT64_C(1) << 1 /* DAC_OVERRIDE */ |                          \
        UINT64_C(1) << 3 /* FOWNER */ | UINT64_C(1) << 4 /* FSETID */ |                            \
        UINT64_C(1) << 5 /* KILL */ | UINT64_C(1) << 6 /* SETGID */ |                              \
        UINT64_C(1) << 7 /* SETUID */ | UINT64_C(1) << 8 /* SETPCAP */ |                           \
        UINT64_C(1) << 10 /* NET_BIND_SERVICE */ | UINT64_C(1) << 13 /* NET_RAW */ |               \
        UINT64_C(1) << 18 /* SYS_CHROOT */ | UINT64_C(1) << PLAN_CAP_SETFCAP)
#define PLAN_CAP_SETFCAP 31
#define PLAN_MAX_QUESTIONS 256 /* instructions of the program of questions */
/* In it, in place of the low half of an address: where glibc's loader calls arch_prctl from, which
 * need not be asked about again. Init puts it there when it knows. */
#define PLAN_LOADER_UNKNOWN 0xffffffffu
/* Likewise of a timer_settime. */
#define PLAN_SETTIME_UNASKED 0x726f6c6c74696d65

/* Certificates to trust where the gateway ends TLS, in every sandbox that has such a rule. */
#define PLAN_CA_BUNDLE "/dev/rollbox-ca.pem"
#define PLAN_CA_JAVA "/dev/rollbox-ca.jks"

struct plan_array {
    uint32_t offset;
    uint32_t n;
};

/* The head of the block. Offsets count from its start; 0 stands for "none". */
struct plan {
    uint32_t magic;
    uint32_t length;
    uint32_t flags; /* enum plan_flag */
    uint32_t hostname;
    struct plan_array template_ops; /* struct plan_op */
    struct plan_array box_ops;      /* struct plan_op */
    struct plan_array rules;        /* struct plan_rule */
    struct plan_array rlimits;      /* struct plan_rlimit */
    struct plan_array net_ports;    /* struct plan_net_ports */
    struct plan_array filter;       /* struct sock_filter */
    struct plan_array notify;       /* struct sock_filter: calls that init answers
                                       (policy/determinism.c); none without seed and clock */
    uint32_t inner_uid, inner_gid;  /* the guest's, as it sees them */
    uint32_t outer_uid;             /* the guest's in U0, uid and gid */
    uint64_t capabilities;          /* of the sandbox's root, one bit for each; 0 for one user */
    uint32_t
        user; /* text: with PLAN_MANY_USERS, the user of commands that name none, "USER[:GROUP]"
               */
    uint32_t clock_nanoseconds;
    int64_t clock_seconds;
    uint64_t seed;
    uint64_t landlock_fs; /* access rights handled (all that the kernel knows) */
    uint64_t landlock_net;
    uint64_t landlock_scoped;
    uint64_t affinity;      /* number of CPUs to pin to; 0: none */
    uint64_t memory_bytes;  /* the limit, as the sandbox sees it; 0: none */
    uint64_t segment_bytes; /* bound of all System V shared memory together; 0: the kernel's own, as
                               a cgroup counts it */
};

#define plan_text(plan, at) ((const char *)(plan) + (at))
#define plan_items(plan, array, type)                                                              \
    ((const type *)(const void *)((const char *)(plan) + (plan)->array.offset))

/* Facts about the host that plan_compile needs. The caller gathers them (no I/O here). */
enum plan_path_type { PLAN_PATH_MISSING, PLAN_PATH_DIRECTORY, PLAN_PATH_OTHER };

struct plan_host_path {
    const char *real; /* with every symbolic link resolved */
    enum plan_path_type type;
    int error;         /* errno of looking it up; ENOENT goes with MISSING */
    bool others_write; /* its mode lets everybody write (and, for a directory, enter and list) */
};

/* An image as root file system. */
struct plan_image {
    const char *directory; /* of all layers of the store: DIRECTORY/ID/fs */
    size_t n;
    char *const *ids; /* bottom first */
    /* Of a snapshot, no root file system: its places, and what lies under each now. */
    const struct plan_image_place *places; /* NULL: an image */
    size_t n_places;
};

struct plan_image_place {
    const char *path;
    bool is_file;
    const char *under; /* directories PLAN_HIDDEN "/i/INDEX/PART", topmost first, with colons
                          between; of a file: the topmost, below PLAN_HIDDEN "/store" */
};

/* A volume of the policy. */
struct plan_host_volume {
    const char *files;        /* its directory in the store, without links */
    struct plan_host_path at; /* what the host has at its path in the sandbox */
};

struct plan_host {
    const struct plan_image *image;    /* NULL: the policy names none */
    const struct plan_image *snapshot; /* likewise; image or snapshot */
    bool is_root;
    bool overlay;              /* OVERLAY operations are possible */
    const char *const *mounts; /* mount points of the host, parents before what is mounted in them;
                                  NULL-terminated, or NULL */
    bool own_ids; /* isolation process: each sandbox gets user ids of its own; else it runs as the
                     caller */
    const struct expand_lister
        *lister; /* isolation process: looks into directories that contain something denied */
    const char *const
        *private_places; /* isolation process, as the caller: real paths of the directories that
                            private files may be in; NULL-terminated, or NULL */
    int landlock_abi;    /* 0: none */
    bool seccomp;
    const char *uppers; /* disk_at store: the host's directory for PLAN_UPPERS */
    bool timens, cgroupns, nft_tproxy;
    bool memory_cgroup, processes_cgroup, cpu_cgroup;
    unsigned cpus;                          /* usable by us */
    uint64_t open_files_max, processes_max; /* our hard limits */
    struct plan_host_path *readable, *writable, *shared,
        *denied;                            /* parallel to the policy's lists */
    const struct plan_host_volume *volumes; /* parallel to the policy's */
    const struct plan_host_path *tmpfs;     /* likewise: what the host has at their paths */
    const char *const *root_links; /* name, target, name, target, ..., NULL: the host's top-level
                                      symbolic links (merged /usr) */
    const char *cpuinfo, *stat, *meminfo, *loadavg,
        *vmstat; /* contents of the faked files of /proc */
    const char *const
        *sysctls; /* values of plan_sysctl_names, in order; NULL: the host has none such */
    /* Certificates that programs trust where the gateway ends TLS: the host's roots and the store's
     * own, as text. NULL: there are none yet. */
    const char *ca_bundle;
    const void *ca_java;
    size_t ca_java_bytes;
    const bool *proc_exists; /* parallel to plan_proc_masked: does the host have it? */
};

/* The files below /proc/sys that a sandbox sees (copies made when the plan is), NULL-terminated.
 * All else there is the host's business. */
extern const char *const plan_sysctl_names[];

/* Files of /proc that tell of the host or of other sandboxes, replaced by an empty one; with a
 * trailing '/', directories. NULL-terminated. */
extern const char *const plan_proc_masked[];

/* Compiles. 0 and the block, for the caller to free(); or -errno and the error: PATH_NOT_FOUND,
 * PATH_DENIED, FEATURE_MISSING, POLICY_INVALID. */
int plan_compile(const struct policy *policy, const struct plan_host *host, struct plan **ret_plan,
    struct rollbox_error *error);

/* The environment every command starts from: base values, then the policy's. One "K=V" NUL each,
 * appended to `to`. */
void plan_environment(const struct policy *policy, const char *const *caller, struct buf *to);

/* The plan of the policy as text: operations, rules, limits, the filter disassembled. */
void plan_explain(const struct plan *plan, const struct policy *policy, struct buf *to);

/* In two texts: plan_process.c. */
void plan_process_explain(const struct plan *plan, struct buf *to);
void plan_process_isolation(const struct plan *plan, const struct plan_host *host,
    const struct policy *policy, const char *cgroup, struct buf *to);

/* What the plan applies, as JSON: {"level": "namespace", "user": ..., "landlock_abi": 7, ...} */
void plan_isolation(const struct plan *plan, const struct plan_host *host,
    const struct policy *policy, const char *cgroup, struct buf *to);

#endif
