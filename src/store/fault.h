/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault points: places where ROLLBOX_FAULT=name makes rollbox-store kill itself with SIGKILL, as a
 * power cut or the OOM killer might. A test tries every row (tests/integration/test_store.py) and
 * checks that the store and the host's directory are in the state before or after the operation,
 * never between. The process that unpacks may not send signals; it exits with FAULT_EXIT, and its
 * parent kills itself instead.
 */
#ifndef ROLLBOX_STORE_FAULT_H
#define ROLLBOX_STORE_FAULT_H

#include <stdbool.h>

/* Name; its command; true if the command's effect is done by then. */
/* clang-format off */
#define FAULTS(X) \
    X(store_created, "import", false)           /* directories made, no version yet */ \
    X(work_made, "import", false)               /* a directory in tmp/ */ \
    X(archive_listed, "import", false) \
    X(layer_half, "import", false)              /* in the middle of a layer's files */ \
    X(layer_unpacked, "import", false) \
    X(meta_written, "import", false) \
    X(layer_published, "import", false)         /* renamed into layers/ */ \
    X(manifest_written, "import", false)        /* still in tmp/ */ \
    X(manifest_published, "import", true) \
    X(pull_described, "pull", false)            /* the manifest and the configuration are there */ \
    X(pull_fetched, "pull", false)              /* skopeo has ended, nothing is unpacked */ \
    X(layout_half, "image-export", false)       /* a layer is written, under a temporary name */ \
    X(layout_written, "image-export", false) \
    X(manifest_removed, "rm", true) \
    X(gc_trashed, "gc", true) \
    X(gc_deleting, "gc", true) \
    X(gc_sleeper_trashed, "gc-asleep", true) \
    X(damage_marked, "fsck", true) \
    X(export_half, "export", false) \
    X(export_written, "export", false)          /* under its temporary name */ \
    X(snapshot_half, "import-snapshot", false) \
    X(snapshot_checked, "import-snapshot", false) \
    X(commit_staged, "commit", false)           /* .rollbox-commit-XXXX made */ \
    X(commit_half, "commit", false) \
    X(commit_built, "commit", false) \
    X(commit_synced, "commit", false) \
    X(commit_exchanged, "commit", true) \
    X(commit_removing, "commit", true) \
    X(carry_half, "export-live", false)         /* in the middle of a file's data */ \
    X(carried_half, "import-live", false) \
    X(carried_checked, "import-live", false)    /* everything is written, in tmp/ */ \
    X(sleep_half, "hibernate", false)           /* in the middle of a file's data */ \
    X(sleep_packed, "hibernate", false)         /* a layer or image is written */ \
    X(sleep_linked, "hibernate-again", false)   /* kept files are linked, no difference yet */ \
    X(sleep_written, "hibernate", false)        /* everything is on the disk, in tmp/ */ \
    X(sleep_published, "hibernate", true)       /* renamed into asleep/ */ \
    X(wake_checked, "wake", false)              /* digests are right */ \
    X(wake_half, "wake", false)                 /* a file made again */ \
    X(wake_made, "wake", false) \
    X(wake_joined, "wake-again", false)         /* an image made of a difference and its base */ \
    X(step_written, "build", false)             /* files of COPY are in tmp/ */ \
    X(step_exported, "build", false)            /* files of RUN are in tmp/ */
/* clang-format on */

enum fault {
#define FAULT_ENUM(name, command, done) FAULT_##name,
    FAULTS(FAULT_ENUM)
#undef FAULT_ENUM
        FAULT_COUNT
};

#define FAULT_EXIT 199

void fault_init(void);
void fault_in_worker(void);
void fault_point(enum fault fault);
const char *fault_name(enum fault fault);
const char *fault_command(enum fault fault);
bool fault_is_done(enum fault fault);

#endif
