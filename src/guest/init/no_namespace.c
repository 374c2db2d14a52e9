/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Isolation `process`: a sandbox without namespaces.
 *
 * Its init does the work of a namespace's pid 1. As a subreaper it inherits every descendant whose
 * parent has ended. Init is in a Landlock domain with the sandbox's rules, and each command is in a
 * further domain below it. A command cannot signal or trace anything outside of its own domain,
 * including init. Init's signals reach its whole domain, which consists of the sandbox's processes.
 * So kill(-1) by init works like the death of pid 1: it signals every process at once, under a lock
 * that no fork can pass.
 *
 * As root, a sandbox also has two user ids of its own. Commands run with the first. Init has the
 * second as its real and saved id, which the kernel checks when a process signals init, and the
 * first as its effective id, which applies to init's own signals and file accesses. Where Landlock
 * has no scopes, only these ids separate them.
 *
 * Init has no seccomp filter, because it corrects file modes that the filter would protect: files
 * that were made unreadable must be removable. Each command gets the filter before it executes.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/landlock.h>
#include <linux/openat2.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/remove_tree.h"
#include "guest/init/init.h"
#include "guest/internal.h"
#include "sys/syscalls.h"

#define MAX_RULES 4096

static char environment[2][4096 + 8];

static int add_rule(struct box *box, const struct plan_rule *rule) {
    const char *path = plan_text(box->plan, rule->path);
    struct landlock_path_beneath_attr attributes = { .allowed_access = rule->access,
        .parent_fd = box->home };
    struct open_how how = { .flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS };

    if (rule->kind == PLAN_RULE_PRIVATE)
        return sys_landlock_add_rule(box->ruleset, LANDLOCK_RULE_PATH_BENEATH, &attributes, 0);
    int fd = sys_openat2(AT_FDCWD, path, &how);
    if (fd < 0)
        return rule->kind == PLAN_RULE_HOST_OPTIONAL ? 0 : fd;
    attributes.parent_fd = fd;
    int r = sys_landlock_add_rule(box->ruleset, LANDLOCK_RULE_PATH_BENEATH, &attributes, 0);
    /* A file has replaced a directory, and the directory's rights do not apply to it. */
    if (r == -EINVAL && rule->kind == PLAN_RULE_HOST_OPTIONAL)
        r = 0;
    close(fd);
    return r;
}

static int build_ruleset(struct box *box, struct guest_fault *fault) {
    const struct plan *plan = box->plan;
    const struct plan_rule *rules = plan_items(plan, rules, struct plan_rule);
    struct uapi_landlock_ruleset attributes = { plan->landlock_fs, plan->landlock_net,
        plan->landlock_scoped };

    box->ruleset =
        sys_landlock_create_ruleset(&attributes, uapi_landlock_used_size(&attributes), 0);
    if (box->ruleset < 0)
        return guest_fault(fault, GUEST_STAGE_LANDLOCK, 0, box->ruleset);
    for (uint32_t i = 0; i < plan->rules.n; i++) {
        int r = add_rule(box, &rules[i]);
        if (r < 0)
            return guest_fault(fault, GUEST_STAGE_LANDLOCK, i, r);
    }
    return 0;
}

static int drop_privileges(const struct box *box) {
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct none[2] = { 0 };
    uint32_t id = box->outer_id;

    /* First of all: no exec gains rights from here on, so it does not matter if the bounding set
     * cannot be emptied. */
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -errno;
    for (int capability = 0; prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0; capability++)
        ;
    if (box->plan->flags & PLAN_AS_ROOT &&
        (setgroups(0, NULL) < 0 || setresgid(id, id, id) < 0 || setresuid(id + 1, id, id + 1) < 0))
        return -errno;
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 && errno != EINVAL)
        return -errno;
    int r = sys_capset(&header, none);
    if (r < 0)
        return r;
    return prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 ? -errno : 0;
}

/* Everything depends on this: no process here can signal processes outside, so kill(-1) reaches the
 * sandbox alone. The engine, init's parent, is outside. */
static int check_scope(const struct box *box) {
    uid_t real, effective, saved;

    if (box->plan->flags & PLAN_AS_ROOT && (getresuid(&real, &effective, &saved) < 0 || !real ||
                                               !effective || !saved || effective == real))
        return -EPERM;
    return kill(getppid(), 0) == 0 || errno != EPERM ? -EPERM : 0;
}

int process_set_home(const char *path) {
    size_t length = path ? strlen(path) : 0;

    if (!length || length >= 4096)
        return -EBADMSG;
    memcpy(environment[0], "HOME=", 5);
    memcpy(environment[0] + 5, path, length + 1);
    memcpy(environment[1], "TMPDIR=", 7);
    memcpy(environment[1] + 7, path, length + 1);
    return 0;
}

const char *process_environment(size_t i) {
    return i < 2 ? environment[i] : NULL;
}

int process_setup(struct box *box, struct guest_fault *fault) {
    const char *home = environment[0] + 5;
    struct guest_record ready = { .kind = GUEST_BOX_READY };
    int r;

    prctl(PR_SET_NAME, "rollbox-init", 0, 0, 0);
    if ((r = box_enter_cgroups(box)) < 0)
        return guest_fault(fault, GUEST_STAGE_CGROUP, 0, r);
    if (!*home || box->plan->rules.n > MAX_RULES ||
        (box->plan->flags & PLAN_AS_ROOT && !box->outer_id))
        return guest_fault(fault, GUEST_STAGE_REQUEST, 0, -EBADMSG);
    box->home = open(home, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (box->home < 0)
        return guest_fault(fault, GUEST_STAGE_BOX, 0, -errno);
    if (chdir("/") < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0 ||
        prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0) < 0)
        return guest_fault(fault, GUEST_STAGE_PRIVILEGE, 0, -errno);
    if ((r = build_ruleset(box, fault)) < 0)
        return r;
    if ((r = drop_privileges(box)) < 0)
        return guest_fault(fault, GUEST_STAGE_PRIVILEGE, 1, r);
    if ((r = sys_landlock_restrict_self(box->ruleset, 0)) < 0)
        return guest_fault(fault, GUEST_STAGE_RESTRICT, 0, r);
    if ((r = check_scope(box)) < 0)
        return guest_fault(fault, GUEST_STAGE_PRIVILEGE, 2, r);
    umask(022);
    record_send(box->socket, &ready, NULL, 0);
    return 0;
}

int process_become_guest(const struct box *box) {
    uint32_t id = box->outer_id;

    if (!(box->plan->flags & PLAN_AS_ROOT))
        return 0;
    return sys_setresuid(id, id, id);
}

void process_end(const struct box *box) {
    kill(-1, SIGKILL);
    while (waitpid(-1, NULL, __WALL) > 0 || errno == EINTR)
        ;
    /* The engine detects and removes files that cannot be removed here. There should be none. */
    (void)tree_empty(box->home);
}

_Noreturn void init_leave(const struct box *box, int status) {
    if (box->plan->flags & PLAN_PROCESS)
        process_end(box);
    _exit(status);
}
