/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guest layer: the code that runs in the launcher, in a sandbox's init, and between fork and
 * exec of its commands.
 *
 * It is one static program, rollbox-init. The engine starts it as a *launcher* and sends it a plan.
 * The launcher carries out the template operations, and then clones sandboxes from itself on
 * request. A clone becomes the *init* of a sandbox (pid 1): it carries out the box operations,
 * gives up all rights, and executes commands on request.
 *
 * Nothing here allocates memory, formats text or takes a lock. An error is reported as a fixed
 * record {what, stage, operation, errno}, which the engine words. Under isolation `process` there
 * is no template and init is not pid 1; the rest is the same (no_namespace.c).
 *
 * Requests to the launcher and to init are messages of base/wire.h; their answers are records. When
 * the other end of its socket closes, a launcher ends, and an init ends with its whole sandbox.
 */
#ifndef ROLLBOX_GUEST_GUEST_H
#define ROLLBOX_GUEST_GUEST_H

#include <stdint.h>

#include "policy/plan.h"

#define GUEST_LAUNCHER_SOCKET                                                                      \
    3 /* the launcher's only descriptor at its start, besides /dev/null as 0, 1 and 2 */

/* As root, a launcher has GUEST_ID_RANGE ids of the host, from a base of its own, mapped to 0 and
 * up in U0. The ids below GUEST_ID_OTHERS are U0's root and the guest. The others represent all
 * host ids except the owner's on idmapped mounts. */
#define GUEST_ID_OTHERS 65536u
#define GUEST_ID_RANGE 131072u

/* With users "many" each sandbox has PLAN_MANY_IDS ids, of which root's is the first. As root, U0
 * has GUEST_MANY_RANGE ids then: after the others GUEST_MANY_SLOTS times those of a sandbox, the
 * first of which (PLAN_MANY_FIRST) are the plan's own. */
#define GUEST_MANY_SLOTS 510u
/* The bases of launchers with such a range are from here on, those of all others are below. */
#define GUEST_FIRST_MANY_BASE 0x80000000u
#define GUEST_MANY_RANGE (PLAN_MANY_FIRST + GUEST_MANY_SLOTS * PLAN_MANY_IDS)

/* Requests. */
enum guest_request {
    GUEST_PLAN = 1, /* to the launcher, once, as the first message. fd: the plan */
    GUEST_CREATE, /* to the launcher: GUEST_ID? GUEST_AFFINITY? GUEST_HOME? GUEST_UPPER? {GUEST_SEED
                     GUEST_UUID}? {GUEST_SINCE GUEST_GENERATION}? GUEST_CLOCKS?; fds: the sandbox's
                     socket; then as flagged by CREATE_* in header.flags (namespaces, SOURCES,
                     UPPER); then the layers, bottom first; then `tasks` files of cgroups
                     v1 to enter */
    GUEST_EXEC,   /* to init: {GUEST_ARG|GUEST_INTERPRETER}+ GUEST_ENV* GUEST_CWD GUEST_PROCESSES?
                     GUEST_TERMINAL? GUEST_NO_TRACE? GUEST_USER? {GUEST_FILE_*}*; fds: stdin,
                     stdout, stderr (not with GUEST_TERMINAL), then those that become 3 and up */
    GUEST_SESSION, /* to init, before its first EXEC: several will follow. Init enters the Landlock
                      domain itself, so that all its commands share one. Answered only on failure
                      (GUEST_FAILED) */
    GUEST_SIGNAL, /* to init: GUEST_TARGET GUEST_NUMBER GUEST_SCOPE; answer SIGNALLED. Target 0 with
                     SIGKILL: every process but init; with SCOPE CHILDREN, and but its agents */
    GUEST_FREEZE, /* to init: pause every process of the sandbox but itself; answer FROZEN */
    GUEST_THAW,   /* to init: resume them; no answer */
    GUEST_FILES, /* to init; fd: a socket, which a child of init's serves (files.h) until it closes;
                    answer FILES_SERVED. Flagged FILES_ALONE, the guest's processes are stopped
                    meanwhile */
    GUEST_COPY,  /* to the launcher: GUEST_BYTES GUEST_ENTRIES GUEST_UPPER? GUEST_NUMBERS?; fds:
                    layers, bottom first; a child of it merges them into a new one; answer COPIED.
                    With UPPER, that directory is it, and nobody counts */
    GUEST_IMAGE, /* to the launcher, once, before the first CREATE; fd: an image (process_image.h),
                    whose process every sandbox from then on has ready; answer IMAGE_LOADED */
    GUEST_ZYGOTE,   /* to the launcher; fds: a socket, an image, and where it is not written yet, a
                       socket that tells how far it is (struct image_progress); a copy of it, with
                       that image, serves the first as a launcher does: IMAGE_LOADED is its first
                       answer */
    GUEST_IMAGE_FS, /* to the launcher; answer POOLED */
    GUEST_RESTORE,  /* to init, as the first message, in a sandbox with the image of a tree:
                       {GUEST_TARGET GUEST_PROCESS}*, which become commands; fds: the image's
                       externals, in order; answer RESTORED. With GUEST_RESTORE_TRIAL, the processes
                       are made and not resumed: init answers and ends */
    GUEST_QUIESCE,  /* to init, of a sandbox with random_seed or time_start; fd: a socket to a dump
                       worker (quiesce.h); no answer */
    GUEST_TOUCHES,  /* to the launcher, after IMAGE; fd: memory that the process is likely to touch
                       (struct image_touch), which each process then has ready; no answer */
    GUEST_CONNECT,  /* to init: GUEST_NUMBER, a port of the sandbox's loopback; fd: a socket, which
                       receives CONNECTED with the connected socket, or its `error` */
};

enum guest_create_flag {
    GUEST_CREATE_NETNS = 1 << 8,  /* a network namespace to enter */
    GUEST_CREATE_CGROUP = 1 << 9, /* a cgroup v2 directory to be cloned into */
    GUEST_CREATE_KEEPS =
        1
        << 12, /* with an image: init may keep its copy of a resumed process's memory for a while */
    GUEST_CREATE_NOTES = 1 << 13, /* with the image of a tree: dirty tracking of its processes from
                                     their start (RESTORED) */
    GUEST_CREATE_LAYERED =
        1 << 10, /* BOX_READY is to carry the private tmpfs as a layer (GUEST_VALUE_DISK) */
    GUEST_CREATE_MAPS =
        1 << 14, /* its files are stored with the plan's id, and mounts show them as GUEST_ID's */
    GUEST_CREATE_HAS_MAP = 1 << 15, /* with a user namespace for that, which CREATED has returned
                                       for that id; without it, CREATED returns one */
};

/* As root, with files of the host that are to belong to GUEST_ID. */
#define GUEST_CREATE_SOURCES                                                                       \
    (1 << 16) /* a socket, on which the engine sends one byte with the sources as that id sees     \
                 them (template/own_mounts.c), or without: the sandbox has the plan's id */
#define GUEST_CREATE_UPPER                                                                         \
    (1 << 17) /* a mount of the directory GUEST_UPPER that shows its files as that id's; the       \
                 layers are mounts of that kind, too */

/* The number of layers that CREATE carries: in header.flags, from bit 18 on. A layer is the root of
 * a tmpfs (or a directory on disk) that was some sandbox's private one, or was made by COPY, as a
 * detached mount owned by U0. For each place of the plan (PLAN_OP_PLACE) it contains the part
 * "p<index>": a tree in the format of an overlay's upper directory with userxattr, or a file. */
#define GUEST_CREATE_LAYERS_SHIFT 18
#define GUEST_MAX_LAYERS 24

enum guest_exec_flag {
    GUEST_EXEC_FINAL = 1 << 8, /* the sandbox ends with this command */
    GUEST_EXEC_COUNTED =
        1 << 10, /* EXITED reports the bytes that the command has read and written */
    GUEST_EXEC_RESTORED =
        1 << 9, /* a restored process becomes the command, if there is one: with a fourth descriptor
                   as its 3. Else the command is started without it, */
    GUEST_EXEC_ALIKE = 1 << 11, /* or with all its descriptors: the command is the one that was
                                   dumped, from its beginning */
};

#define GUEST_FILES_ALONE (1 << 8)   /* in header.flags */
#define GUEST_RESTORE_TRIAL (1 << 8) /* in header.flags */
/* The last descriptor is an incremental image (process_image.h), which is applied before they
 * resume. */
#define GUEST_RESTORE_INCREMENTAL (1 << 9)

enum guest_tag {
    GUEST_ARG = 1,   /* text */
    GUEST_ENV,       /* text */
    GUEST_CWD,       /* text */
    GUEST_FILE_PATH, /* text */
    GUEST_FILE_MODE, /* u64 */
    GUEST_FILE_DATA, /* bytes */
    GUEST_ID, /* u64: the guest's id in U0, for this sandbox alone; under isolation `process` the
                 host's, and the next id is its init's */
    GUEST_AFFINITY,  /* bytes: a cpu_set_t for sched_setaffinity */
    GUEST_HOME,      /* text: isolation `process`: the directory of the sandbox's private files */
    GUEST_PROCESSES, /* u64: isolation `process`: RLIMIT_NPROC of the command */
    GUEST_TERMINAL,  /* u64: rows << 16 | columns: a terminal in place of the three streams; STARTED
                        then carries its master */
    GUEST_TARGET,    /* u64: the serial of an EXEC */
    GUEST_NUMBER,    /* u64: a signal */
    GUEST_SCOPE,     /* u64: enum guest_scope */
    GUEST_BYTES,     /* u64: limits of the new tmpfs, these two */
    GUEST_ENTRIES,
    GUEST_SEED,    /* u64: the sandbox's seed, in place of the plan's */
    GUEST_UUID,    /* text: /proc/sys/kernel/random/uuid with that seed */
    GUEST_PROCESS, /* u64: the pid, inside the sandbox, of the main process of the preceding command
                    */
    GUEST_UPPER,   /* text: the name, in PLAN_UPPERS, of the directory for private files, owned by
                      U0's root; with PLAN_ON_DISK, in place of a tmpfs */
    GUEST_SINCE,   /* u64: CLOCK_REALTIME in nanoseconds: birth of the first sandbox in this one's
                      line of forks */
    GUEST_GENERATION,  /* u64: the number of snapshots before the one that it starts from */
    GUEST_NUMBERS,     /* bytes: struct number of base/inode_numbers.h: files that keep their inode
                          numbers in a COPY */
    GUEST_INTERPRETER, /* empty: an argument like ARG, whose text is interpreter.py */
    GUEST_CLOCKS, /* bytes: two int64_t in nanoseconds: offsets of the sandbox's CLOCK_MONOTONIC and
                     CLOCK_BOOTTIME to the host's, in place of the image's */
    GUEST_PARTS,  /* bytes: a uint64_t for each layer of CREATE: bit K is set if its part "pK" has
                     content. Without it, and for parts past 63: all may */
    GUEST_USER,   /* text: users many: "USER[:GROUP[:GROUPS]]", in place of the plan's */
    GUEST_ACCOUNT,  /* u64: users many: the number, of the sandbox's ids, of the one that makes its
                       user namespace */
    GUEST_NO_TRACE, /* u64: not 0: the command and its descendants may not trace */
};

/* The receivers of a signal: enum rollbox_scope, which has the same numbers. */
enum guest_scope {
    GUEST_SCOPE_MAIN = 1,
    GUEST_SCOPE_TREE,
    GUEST_SCOPE_CHILDREN,
    GUEST_SCOPE_GROUP,
};

/* Answers. */
enum guest_record_kind {
    GUEST_TEMPLATE_READY = 1, /* launcher */
    GUEST_CREATED, /* launcher; serial of the request; fds: a pidfd; and a new user namespace, if
                      CREATE_MAPS came without one */
    GUEST_CREATE_FAILED, /* launcher */
    GUEST_BOX_READY,   /* init; fds as flagged in `value`: a new network namespace (1), the private
                          tmpfs (2), sockets for the gateway (4) */
    GUEST_FAILED,      /* launcher or init: the set-up failed; it ends */
    GUEST_STARTED,     /* init: the command is running; `value`: the pid, inside the sandbox, of its
                          main process; `wall_ns`: with random_seed, the number of its stream,
                          from 0. With EXEC_RESTORED: `operation` 1 if it is the restored
                          process; else `stage` and `error` are the step of restore.c that
                          failed, if one did */
    GUEST_EXEC_FAILED, /* init: the command never ran */
    GUEST_EXITED,      /* init: wait status in `value`, usage in the rest */
    GUEST_SIGNALLED,   /* init: `error` is 0 or an errno (ESRCH: no such command runs); `value`:
                          number of processes */
    GUEST_FROZEN, /* init: `value`: number of processes besides init and its agents (GUEST_FILES),
                     which are paused, too; `error` ETIMEDOUT if some could not be paused (all
                     continue then) */
    GUEST_FILES_SERVED, /* init: `error` */
    GUEST_COPIED, /* launcher: `error`, with stage and operation; else fd: the new layer, `value`
                     its bytes, `wall_ns` its entries */
    GUEST_IMAGE_LOADED,  /* launcher: `error` */
    GUEST_IMAGE_FS_MADE, /* launcher: `error`; else fd: a file system in memory with large pages,
                            for images: memory files without large pages take the kernel many times
                            as long to fill */
    GUEST_RESTORED,      /* init: all processes have resumed, fds: the masters of its commands'
                            terminals, in the image's order, or, with GUEST_CREATE_NOTES, a
                            userfaultfd of each living process, in the image's order, if all
                            have one, and no terminals; or `error`, at `stage` (enum
                            restore_step), of process `operation` (its pid inside the sandbox;
                            0: none), and it ends */
    GUEST_FILES_ENDED,   /* init: one of the agents (FILES_SERVED) has ended */
    GUEST_CONNECTED,     /* init, to the socket of CONNECT */
};

enum guest_stage {
    GUEST_STAGE_PLAN = 1,
    GUEST_STAGE_UNSHARE,
    GUEST_STAGE_MAP,
    GUEST_STAGE_ROOT,
    GUEST_STAGE_TEMPLATE,
    GUEST_STAGE_PIVOT,
    GUEST_STAGE_CLONE,
    GUEST_STAGE_CGROUP,
    GUEST_STAGE_NETWORK,
    GUEST_STAGE_TIME,
    GUEST_STAGE_BOX,
    GUEST_STAGE_LANDLOCK,
    GUEST_STAGE_USER,
    GUEST_STAGE_PRIVILEGE,
    GUEST_STAGE_SECCOMP,
    GUEST_STAGE_REQUEST,
    GUEST_STAGE_FILE,
    GUEST_STAGE_SPAWN,
    GUEST_STAGE_SESSION,
    GUEST_STAGE_STREAMS,
    GUEST_STAGE_CWD,
    GUEST_STAGE_LIMITS,
    GUEST_STAGE_RESTRICT,
    GUEST_STAGE_EXEC,
    GUEST_STAGE_RESTORE,
};

/* Of restoring processes (restore.h). */
enum restore_step {
    RESTORE_FORK = 1,
    RESTORE_GROUP,
    RESTORE_PROGRAM,
    RESTORE_PRIVILEGE,
    RESTORE_RESTRICT,
    RESTORE_LIMITS,
    RESTORE_MEMORY,
    RESTORE_FILES,
    RESTORE_VDSO,
    RESTORE_SIGNALS,
    RESTORE_THREADS,
    RESTORE_UNMAP,
    RESTORE_CWD,
    RESTORE_STREAMS,
    RESTORE_DESCRIPTORS,
    RESTORE_TERMINAL,
    RESTORE_ASK,
    RESTORE_SEGMENTS,
};

#define GUEST_VALUE_NETNS 1
#define GUEST_VALUE_DISK 2
#define GUEST_VALUE_LISTENERS                                                                      \
    4                       /* the rest of the descriptors: where the guest's connections to       \
                               outside and its DNS queries arrive */
#define GUEST_VALUE_PORTS 8 /* with LISTENERS: a listener for each port; else one for all */

struct guest_record {
    uint32_t kind;
    uint32_t stage;     /* of a failure: enum guest_stage */
    uint32_t operation; /* of a failure: index of the plan operation, file or argument */
    int32_t error;      /* of a failure: errno */
    uint64_t serial;
    uint64_t value;
    uint64_t wall_ns;
    uint64_t cpu_ns;        /* of the command and all processes that it and init have waited for */
    uint64_t max_rss_bytes; /* the maximum of those */
    uint64_t read_bytes,
        written_bytes; /* EXEC_COUNTED: bytes of read, write and similar calls, of the command and
                          the processes that it has waited for; UINT64_MAX: unknown */
};

#endif
