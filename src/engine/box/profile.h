/* SPDX-License-Identifier: Apache-2.0 */
/* A profile: a policy compiled for this host, from which boxes are made. pool/profile.h has its
 * functions. */
#ifndef ROLLBOX_ENGINE_BOX_PROFILE_H
#define ROLLBOX_ENGINE_BOX_PROFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/list.h"
#include "engine/box/launcher.h"
#include "policy/plan.h"
#include "policy/policy.h"
#include "store/store.h"

struct interpreter;
struct path_identity;
struct profile;

/* oci_image.c: an image that a policy names, with what it says where the policy is silent put into
 * the policy. */
struct image {
    struct store_image *stored;     /* its layers, locked */
    char *directory;                /* of the store's layers */
    struct store_identity identity; /* of its manifest, before it was read */
    struct plan_image plan;
    struct plan_image_place *places; /* of a snapshot; what they point to is ours */
};

/* The files at the paths that a policy names. Later they show whether a path has another file.
 */
struct path_identities {
    struct path_identity *items;
    size_t n;
    int64_t etc_changed_ns; /* the host's /etc */
    bool is_mixed; /* its template has something else than this, however the host looks now */
};

/* Values from the client's environment and files for a policy. */
struct profile_values {
    struct buf environment; /* "K=V" NUL each */
    int secrets;            /* of net_secrets: a sealed memory file; -EBADF: none */
};

/* The runs of code of a profile, and the interpreter that is kept started for them
 * (python_zygote.c). */
struct profile_code {
    unsigned n_runs;                 /* that an interpreter may be ready for */
    unsigned n_cold;                 /* of these, that have none, and run or are queued */
    struct interpreter *interpreter; /* NULL: none */
    struct profile *twin;            /* the profile that has the interpreter; NULL */
    void (*free_interpreter)(struct interpreter *interpreter);
};

/* The key that distinguishes profiles. */
struct profile_key {
    char *text; /* policy text and, where it counts, the caller's environment */
    size_t length, policy_length;
};

struct profile_sessions {
    unsigned n_created;
    unsigned n;          /* that stand on its launcher: it must not go */
    unsigned n_sleepers; /* sessions that sleep: it may rest, but must not go */
    unsigned n_wakers;   /* of these, and of its sessions, that are about to wake: what their files
                            are made with is to be what they run with */
};

struct profile {
    struct engine *engine;
    struct list node; /* engine->profiles.all */
    uint64_t number;
    struct profile_key key;
    struct list kept; /* struct kept: host directories that a commit has replaced, and that its
                         sandboxes still see */
    struct policy *policy;
    struct plan *plan;
    struct image *image; /* that its template shows; NULL: none */
    struct path_identities
        path_identities; /* the files at the policy's paths when it was compiled */
    struct profile_values values;
    char *isolation;
    struct launcher *launcher;                /* NULL: none yet, or it died */
    struct launcher_namespace user_namespace; /* what its sandboxes' files belong to */
    struct list spares;                       /* struct box.in_profile: ready and idle */
    unsigned n_spares, n_runs, n_running;
    struct profile_sessions sessions;
    struct list slots; /* struct cgroup_lease: free */
    int64_t used_ns;
    struct profile_code code;
    struct interpreter *serves;                 /* of the profile that has an interpreter; NULL */
    struct profile *base;                       /* of the same: whose code it runs; else NULL */
    int (*load_image)(struct profile *profile); /* into a new launcher; NULL: there is none */
};

#endif
