/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launcher: holds the template of a profile and clones sandboxes from it.
 *
 * For an ordinary user it first makes the user namespace U0 and builds the template inside. As root
 * it builds the template with root's rights, where it reaches all files that the caller can reach,
 * and then enters a U0 that maps none of the host's own ids. The copy of the mount namespace that
 * it takes along is locked against U0. Sandboxes are cloned with CLONE_PARENT: their parent is the
 * engine, which holds them by pidfd.
 *
 * The engine gets a descriptor of U0 with TEMPLATE_READY. A launcher that replaces a killed one
 * gets it with its plan, and enters that U0 and does not make one: the files of existing sandboxes
 * are in file systems of U0, with ids of its range.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/wire.h"
#include "guest/det/det.h"
#include "guest/init/init.h"
#include "guest/layers/layers.h"
#include "guest/restore/restore.h"
#include "guest/state.h"
#include "guest/template/template.h"
#include "sys/syscalls.h"

/* A directory that exists on any host, over which the new root is mounted until pivot_root; and the
 * place of the host's root until the template is built. */
#define STAGE "/tmp"
#define HOST ".rollbox-host"
#define NICE_ZERO 20         /* the kernel's priority value for nice 0; a higher one is nicer */
#define TIMER_SLACK_NS 50000 /* the kernel's default */

static int static_rules[GUEST_MAX_RULES];

static int user_namespace =
    -1; /* U0: given with the plan, or made here, until the engine has received it */

/* Waits for the plan: the engine starts a launcher while it still compiles the policy. */
static int receive_plan(const struct plan **ret_plan) {
    static struct wire_message message;
    struct stat st;

    int r = wire_receive(GUEST_LAUNCHER_SOCKET, &message);
    if (r == 0)
        _exit(0); /* the engine is gone, or does not need this launcher */
    if (r < 0)
        return r;
    int fd = wire_take_fd(&message, 0);
    if (message.n_fds > 1)
        user_namespace = wire_take_fd(&message, 1);
    wire_message_done(&message);
    if (message.header.type != GUEST_PLAN || fd < 0)
        return -EPROTO;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (st.st_size < (off_t)sizeof(struct plan))
        return -EINVAL;
    const struct plan *plan = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (plan == MAP_FAILED)
        return -errno;
    close(fd);
    if (plan->magic != PLAN_MAGIC || plan->length != (uint64_t)st.st_size ||
        (plan->rules.n > GUEST_MAX_RULES && !(plan->flags & PLAN_PROCESS)))
        return -EINVAL;
    *ret_plan = plan;
    return 0;
}

static int id_range = -1; /* U0, made by root and not entered yet */

static int make_id_range(uint32_t count, struct guest_fault *fault) {
    if (user_namespace >= 0) {
        id_range = user_namespace;
        return 0;
    }
    int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);

    id_range = root < 0 ? -errno : idmap_for_launcher(root, count);
    if (id_range < 0)
        return guest_fault(fault, GUEST_STAGE_MAP, 1, id_range);
    close(root);
    return 0;
}

/* Leaves the host's root for good: another user namespace, no groups, ids of the range. */
static int enter_id_range(struct guest_fault *fault) {
    if (setgroups(0, NULL) < 0 || setns(id_range, CLONE_NEWUSER) < 0)
        return guest_fault(fault, GUEST_STAGE_MAP, 2, -errno);
    user_namespace = id_range;
    id_range = -1;
    /* A change of ids makes the process undumpable, so that its /proc/self belongs to another user,
     * and clears the death signal. */
    if (setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0 ||
        prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
        return guest_fault(fault, GUEST_STAGE_MAP, 3, -errno);
    if (unshare(CLONE_NEWNS | CLONE_NEWUTS) < 0)
        return guest_fault(fault, GUEST_STAGE_UNSHARE, 2, -errno);
    return 0;
}

/* The part of the set-up that does not need the plan, done before it arrives. */
static int enter_namespaces(bool as_root, uint32_t n_ids, struct guest_fault *fault) {
    bool makes_user = !as_root && user_namespace < 0;
    int flags = CLONE_NEWNS | CLONE_NEWUTS | (makes_user ? CLONE_NEWUSER : 0);
    uid_t uid = getuid();
    gid_t gid = getgid();

    /* The namespace's owner has every capability in it. */
    if (!as_root && user_namespace >= 0 && setns(user_namespace, CLONE_NEWUSER) < 0 &&
        errno != EINVAL) /* with many users it has begun there */
        return guest_fault(fault, GUEST_STAGE_MAP, 4, -errno);
    if (unshare(flags) < 0)
        return guest_fault(fault, GUEST_STAGE_UNSHARE, 0, -errno);
    if (makes_user) {
        int proc_self = open("/proc/self", O_PATH | O_DIRECTORY | O_CLOEXEC);
        int r = proc_self < 0 ? -errno : guest_map_one(proc_self, 0, uid, 0, gid);
        if (r == 0 && (user_namespace = openat(proc_self, "ns/user", O_RDONLY | O_CLOEXEC)) < 0)
            r = -errno;
        if (r < 0)
            return guest_fault(fault, GUEST_STAGE_MAP, 0, r);
        close(proc_self);
    }
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return guest_fault(fault, GUEST_STAGE_ROOT, 0, -errno);
    return as_root ? make_id_range(n_ids, fault) : 0;
}

static int set_names(const struct plan *plan, struct guest_fault *fault) {
    const char *hostname = plan_text(plan, plan->hostname);

    if (sethostname(hostname, strlen(hostname)) < 0)
        return guest_fault(fault, GUEST_STAGE_UNSHARE, 1, -errno);
    return setdomainname("", 0) < 0 ? guest_fault(fault, GUEST_STAGE_UNSHARE, 3, -errno) : 0;
}

/* An empty root, which contains the host's. */
static int enter_root(struct guest_fault *fault) {
    umask(0);
    if (mount("rollbox", STAGE, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=16m") < 0)
        return guest_fault(fault, GUEST_STAGE_ROOT, 1, -errno);
    if (chdir(STAGE) < 0 || mkdir(HOST, 0700) < 0)
        return guest_fault(fault, GUEST_STAGE_PIVOT, 5, -errno);
    int r = sys_pivot_root(".", HOST);
    if (r < 0)
        return guest_fault(fault, GUEST_STAGE_PIVOT, 0, r);
    return chdir("/") < 0 ? guest_fault(fault, GUEST_STAGE_PIVOT, 5, -errno) : 0;
}

static int build_root(const struct plan *plan, struct guest_fault *fault) {
    struct mount_attr read_only = { .attr_set = MOUNT_ATTR_RDONLY };

    int root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int host = open("/" HOST, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0 || host < 0)
        return guest_fault(fault, GUEST_STAGE_PIVOT, 1, -errno);
    fault->stage = GUEST_STAGE_TEMPLATE;
    int r = ops_run(plan, NULL, plan->template_ops, root, host, fault);
    if (r < 0)
        return r;
    close(root);
    close(host);
    if (umount2("/" HOST, MNT_DETACH) < 0 || rmdir("/" HOST) < 0)
        return guest_fault(fault, GUEST_STAGE_PIVOT, 2, -errno);
    r = sys_mount_setattr(AT_FDCWD, "/", 0, &read_only);
    return r < 0 ? guest_fault(fault, GUEST_STAGE_PIVOT, 3, r) : 0;
}

static int open_rules(const struct plan *plan, struct guest_fault *fault) {
    const struct plan_rule *rules = plan_items(plan, rules, struct plan_rule);

    for (uint32_t i = 0; i < plan->rules.n; i++) {
        static_rules[i] = -1;
        if (rules[i].kind != PLAN_RULE_STATIC)
            continue;
        static_rules[i] = open(plan_text(plan, rules[i].path), O_PATH | O_CLOEXEC);
        if (static_rules[i] < 0)
            return guest_fault(fault, GUEST_STAGE_LANDLOCK, i, -errno);
    }
    return 0;
}

/* Of all parts of a sandbox, a network namespace takes the kernel longest, so the first one is made
 * before it is needed. A child that shares the launcher's memory and descriptors makes it, on
 * another processor if there is one. It belongs to U0, like all others. */
static int first_netns = -1;
static int netns_proc = -1,
           netns_pidfd =
               -1; /* while it is being made: /proc, which the launcher leaves; the child */
static pid_t netns_maker;

static int open_netns(void *unused) {
    struct open_how how = { .flags = O_RDONLY | O_CLOEXEC };

    (void)unused;
    /* The child shares the launcher's errno, so it makes raw system calls only. */
    if ((id_range < 0 || sys_setns(id_range, CLONE_NEWUSER) == 0) && sys_unshare(CLONE_NEWNET) == 0)
        first_netns = sys_openat2(netns_proc, "self/ns/net", &how);
    _exit(0);
}

static void make_first_netns(void) {
    static _Alignas(GUEST_STACK_ALIGN) char stack[8192];

    netns_proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (netns_proc >= 0)
        netns_maker = clone(open_netns, stack + sizeof stack,
            CLONE_VM | CLONE_FILES | CLONE_PIDFD | SIGCHLD, NULL, &netns_pidfd, NULL, NULL);
}

static void await_first_netns(void) {
    if (netns_maker > 0) {
        waitpid(netns_maker, NULL, __WALL);
        close(netns_pidfd);
    }
    if (netns_proc >= 0)
        close(netns_proc);
    netns_maker = 0;
    netns_proc = -1;
}

/* Waits for the plan, and collects the child meanwhile. */
static void await_plan(void) {
    struct pollfd events[2] = { { GUEST_LAUNCHER_SOCKET, POLLIN, 0 }, { netns_pidfd, POLLIN, 0 } };

    if (netns_maker > 0 && poll(events, 2, -1) > 0 && events[1].revents)
        await_first_netns();
}

static int build_template(const struct plan *plan, bool in_namespaces, struct guest_fault *fault) {
    if (plan->flags & PLAN_PROCESS)
        return prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0
                   ? guest_fault(fault, GUEST_STAGE_PRIVILEGE, 0, -errno)
                   : 0;

    const uint32_t n_ids = plan->flags & PLAN_MANY_USERS ? GUEST_MANY_RANGE : GUEST_ID_RANGE;
    int r = in_namespaces ? 0 : enter_namespaces(plan->flags & PLAN_AS_ROOT, n_ids, fault);

    if (r == 0 && !in_namespaces)
        r = enter_root(fault);
    if (r == 0)
        r = set_names(plan, fault);
    if (r == 0)
        r = build_root(plan, fault);
    await_first_netns();
    if (r == 0 && plan->flags & PLAN_AS_ROOT)
        r = enter_id_range(fault);
    return r < 0 ? r : open_rules(plan, fault);
}

/* Takes the fields of the request that concern this sandbox alone: the guest's id in U0, the
 * processors, the size of its files, and so on. */
static int take_fields(const struct wire_message *message, struct box *box) {
    struct wire_field field;
    size_t position = 0;
    uint64_t id;

    while (wire_next(message->data, message->length, &position, &field) > 0) {
        if (field.tag == GUEST_ID && wire_u64(&field, &id) == 0)
            box->outer_id = (uint32_t)id;
        if (field.tag == GUEST_ACCOUNT && wire_u64(&field, &id) == 0)
            box->account = (uint32_t)id % PLAN_MANY_IDS;
        if (field.tag == GUEST_BYTES && wire_u64(&field, &box->bytes) < 0)
            return -EBADMSG;
        if (field.tag == GUEST_ENTRIES && wire_u64(&field, &box->entries) < 0)
            return -EBADMSG;
        if (field.tag == GUEST_SEED && wire_u64(&field, &box->seed) < 0)
            return -EBADMSG;
        if (field.tag == GUEST_SINCE) {
            if (wire_u64(&field, &id) < 0 || id > INT64_MAX)
                return -EBADMSG;
            box->since_ns = (int64_t)id;
        }
        if (field.tag == GUEST_GENERATION && wire_u64(&field, &box->generation) < 0)
            return -EBADMSG;
        if (field.tag == GUEST_UUID)
            box->uuid = wire_text(&field);
        if (field.tag == GUEST_UPPER)
            box->upper = wire_text(&field);
        if (field.tag == GUEST_NUMBERS) {
            box->numbers = field.data;
            box->inode_numbers_length = field.length;
        }
        if (field.tag == GUEST_CLOCKS && field.length == 2 * sizeof(int64_t))
            box->clocks = field.data;
        if (field.tag == GUEST_PARTS && field.length == box->n_layers * sizeof box->parts[0])
            memcpy(box->parts, field.data, field.length);
        if (field.tag == GUEST_HOME && process_set_home(wire_text(&field)) < 0)
            return -EBADMSG;
        if (field.tag == GUEST_AFFINITY && sched_setaffinity(0, field.length, field.data) < 0)
            return -errno;
    }
    return 0;
}

static bool takes_first_netns(const struct plan *plan) {
    return first_netns >= 0 && plan->flags & PLAN_NET_OWN && !(plan->flags & PLAN_NET_LOOPBACK);
}

/* The index of the cgroup directory among the descriptors of a request, if there is one. An image
 * to be loaded follows. */
static size_t cgroup_place(const struct wire_message *message) {
    return 1 + !!(message->header.flags & GUEST_CREATE_NETNS);
}

/* The index of the user namespace for its files. */
static size_t map_place(const struct wire_message *message) {
    return cgroup_place(message) + !!(message->header.flags & GUEST_CREATE_CGROUP);
}

/* The index of the mount that shows the host's files as the sandbox's own. */
static size_t own_place(const struct wire_message *message) {
    return map_place(message) + !!(message->header.flags & GUEST_CREATE_HAS_MAP);
}

static void take_own_mounts(struct wire_message *message, struct box *box) {
    size_t at = own_place(message);

    if (message->header.flags & GUEST_CREATE_SOURCES)
        box->sources_socket = wire_take_fd(message, at++);
    if (message->header.flags & GUEST_CREATE_UPPER)
        box->own_upper = wire_take_fd(message, at);
}

/* The index and number of the layers; the files of cgroups follow. False if there are too few
 * descriptors. */
static bool find_layers(const struct wire_message *message, size_t *ret_first, size_t *ret_n) {
    *ret_first = own_place(message) + !!(message->header.flags & GUEST_CREATE_SOURCES) +
                 !!(message->header.flags & GUEST_CREATE_UPPER);
    *ret_n = message->header.flags >> GUEST_CREATE_LAYERS_SHIFT;
    return *ret_n <= GUEST_MAX_LAYERS && *ret_first + *ret_n <= message->n_fds;
}

_Noreturn static void become_box(
    const struct plan *plan, struct wire_message *message, int file_ids) {
    struct box box = { .plan = plan,
        .file_ids = file_ids,
        .outer_id = plan->outer_uid,
        .static_rules = static_rules,
        .socket = wire_take_fd(message, 0),
        .netns = -1,
        .sources_socket = -1,
        .sources = -1,
        .own_upper = -1,
        .disk = -1,
        .layer = -1,
        .template = -1,
        .root = -1,
        .proc_sys = -1,
        .ruleset = -1,
        .home = -1,
        .io = -1 };
    struct guest_fault fault = { 0 };
    size_t first_layer, n_layers;

    close(GUEST_LAUNCHER_SOCKET);
    find_layers(message, &first_layer, &n_layers);
    box.layered = message->header.flags & GUEST_CREATE_LAYERED;
    box.keeps = message->header.flags & GUEST_CREATE_KEEPS;
    box.notes = message->header.flags & GUEST_CREATE_NOTES;
    box.layers = message->fds + first_layer;
    box.n_layers = (unsigned)n_layers;
    memset(box.parts, 0xff, sizeof box.parts);
    if (message->header.flags & GUEST_CREATE_NETNS)
        box.netns = wire_take_fd(message, 1);
    else if (takes_first_netns(plan)) {
        box.netns = first_netns;
        box.netns_is_new = true;
    }
    box.tasks = message->fds + first_layer + n_layers;
    box.n_tasks = message->n_fds - first_layer - n_layers;
    take_own_mounts(message, &box);
    int r = take_fields(message, &box);

    if (message->header.flags & GUEST_CREATE_MAPS && file_ids < 0)
        box.outer_id = plan->outer_uid;
    if (message->header.flags & GUEST_CREATE_HAS_MAP && file_ids >= 0)
        (void)wire_take_fd(message, map_place(message)); /* the box owns it */
    if (r < 0)
        guest_fault(&fault, GUEST_STAGE_CGROUP, 0, r);
    else if (plan->flags & PLAN_PROCESS)
        r = process_setup(&box, &fault);
    else
        r = box_setup(&box, &fault);
    wire_message_done(message);
    if (file_ids >= 0)
        close(file_ids);
    if (box.sources >= 0)
        close(box.sources);
    if (box.netns >= 0)
        close(box.netns);
    if (r < 0) {
        record_fault(box.socket, GUEST_FAILED, 0, &fault, r);
        _exit(1);
    }
    for (uint32_t i = 0; i < plan->rules.n && !(plan->flags & PLAN_PROCESS); i++)
        if (static_rules[i] >= 0)
            close(static_rules[i]);
    init_run(&box, message); /* the pages are already there */
}

static uint64_t guest_id(const struct wire_message *message) {
    struct wire_field field;
    size_t position = 0;
    uint64_t id = 0;

    while (wire_next(message->data, message->length, &position, &field) > 0)
        if (field.tag == GUEST_ID)
            (void)wire_u64(&field, &id);
    return id;
}

/* The user namespace for the sandbox's files: the engine's, or a new one. -1: the files need none,
 * or it cannot be made, and the sandbox runs with the plan's id. */
static int take_file_ids(
    const struct plan *plan, const struct wire_message *message, bool *ret_is_new) {
    uint64_t id = guest_id(message);

    *ret_is_new = false;
    if (!(message->header.flags & GUEST_CREATE_MAPS) || !id)
        return -1;
    if (message->header.flags & GUEST_CREATE_HAS_MAP)
        return map_place(message) < message->n_fds ? message->fds[map_place(message)] : -1;
    int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int fd =
        root < 0 ? -1 : idmap_for_files(root, plan->outer_uid, (uint32_t)id, guest_id_count(plan));
    if (root >= 0)
        close(root);
    *ret_is_new = fd >= 0;
    return *ret_is_new ? fd : -1;
}

static void create_box(const struct plan *plan, struct wire_message *message) {
    struct guest_record record = { .kind = GUEST_CREATED, .serial = message->header.serial };
    struct guest_fault fault = { .stage = GUEST_STAGE_CLONE };
    size_t first_layer, n_layers;
    unsigned long flags = CLONE_PARENT | CLONE_PIDFD;
    int pidfd = -1;
    pid_t pid;

    if (!(plan->flags & PLAN_PROCESS))
        flags |= CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS;
    if (!find_layers(message, &first_layer, &n_layers)) {
        record_fault(
            GUEST_LAUNCHER_SOCKET, GUEST_CREATE_FAILED, message->header.serial, &fault, -EBADMSG);
        return;
    }
    const int cgroup =
        message->header.flags & GUEST_CREATE_CGROUP ? message->fds[cgroup_place(message)] : -1;
    bool is_new;
    int file_ids = take_file_ids(plan, message, &is_new);
    if (cgroup >= 0) {
        struct clone_args args = { .flags = flags | CLONE_INTO_CGROUP,
            .pidfd = (uintptr_t)&pidfd,
            .cgroup = (uint64_t)cgroup };

        pid = (pid_t)sys_clone3(&args, sizeof args);
    } else {
        pid = (pid_t)sys_clone(flags, &pidfd);
    }
    if (pid == 0)
        become_box(plan, message, file_ids);
    if (pid < 0) {
        if (is_new)
            close(file_ids);
        record_fault(
            GUEST_LAUNCHER_SOCKET, GUEST_CREATE_FAILED, message->header.serial, &fault, pid);
        return;
    }
    if (!(message->header.flags & GUEST_CREATE_NETNS) && takes_first_netns(plan)) {
        close(first_netns);
        first_netns = -1;
    }
    record.value = (uint64_t)pid;
    record_send(GUEST_LAUNCHER_SOCKET, &record, (const int[]){ pidfd, file_ids }, is_new ? 2 : 1);
    close(pidfd);
    if (is_new)
        close(file_ids);
}

/* Merges the layers of a request, in a separate process. Like a sandbox's init, it has the engine
 * as its parent. */
static void serve_copy(const struct plan *plan, struct wire_message *message) {
    struct guest_record record = {
        .kind = GUEST_COPIED, .stage = GUEST_STAGE_CLONE, .serial = message->header.serial
    };
    struct box sizes = { 0 };
    pid_t pid = (pid_t)sys_clone(CLONE_PARENT, NULL);

    if (pid > 0)
        return;
    int r = pid, layer = -1;
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        record.stage = GUEST_STAGE_REQUEST;
        r = message->n_fds <= GUEST_MAX_LAYERS ? take_fields(message, &sizes) : -EBADMSG;
    }
    if (r == 0) {
        record.stage = GUEST_STAGE_FILE;
        r = layer = copy_layers(
            message->fds, message->n_fds, plan->outer_uid, &sizes, &record.value, &record.wall_ns);
    }
    record.error = r < 0 ? -r : 0;
    record_send(GUEST_LAUNCHER_SOCKET, &record, &layer, layer >= 0);
    if (pid < 0)
        return;
    copy_end();
    _exit(r < 0);
}

/* Descriptors of the message, from the first one on: the image, and the socket of its progress, if
 * it is incomplete. */
static void load_image(const struct plan *plan, const struct wire_message *message, size_t first) {
    struct guest_record record = {
        .kind = GUEST_IMAGE_LOADED, .serial = message->header.serial, .value = (uint64_t)getpid()
    };

    int r = message->n_fds > first
                ? restore_load(message->fds[first],
                      message->n_fds > first + 1 ? message->fds[first + 1] : -1, plan)
                : -EBADMSG;

    if (r == 0)
        r = restore_fill();
    record.error = -r;
    record_send(GUEST_LAUNCHER_SOCKET, &record, NULL, 0);
    if (record.error)
        _exit(1); /* its part of the image is freed then */
}

static void make_image_fs(const struct wire_message *message) {
    int pool = guest_new_tmpfs(&(struct guest_tmpfs){
        .size = "80%", .huge = "always", .mode = "0700", .attributes = MOUNT_ATTR_NOEXEC });
    struct guest_record record = {
        .kind = GUEST_IMAGE_FS_MADE, .serial = message->header.serial, .error = pool < 0 ? -pool : 0
    };

    record_send(GUEST_LAUNCHER_SOCKET, &record, &pool, pool >= 0);
    if (pool >= 0)
        close(pool);
}

static void serve_requests(const struct plan *plan);

/* Starts a copy of this launcher, as a child of the engine. It inherits everything except the
 * socket and the network namespace that was made in advance. */
static void start_zygote(const struct plan *plan, struct wire_message *message) {
    struct guest_record failed = {
        .kind = GUEST_IMAGE_LOADED, .serial = message->header.serial, .error = EBADMSG
    };
    pid_t pid = message->n_fds == 2 || message->n_fds == 3 ? (pid_t)sys_clone(CLONE_PARENT, NULL)
                                                           : -EBADMSG;

    if (pid > 0)
        return;
    if (pid < 0) {
        failed.error = -pid;
        if (message->n_fds)
            record_send(message->fds[0], &failed, NULL, 0);
        return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    prctl(PR_SET_NAME, "rollbox-hold", 0, 0, 0);
    if (dup2(message->fds[0], GUEST_LAUNCHER_SOCKET) < 0)
        _exit(1);
    if (first_netns >= 0)
        close(first_netns);
    first_netns = -1;
    close(wire_take_fd(message, 0));
    load_image(plan, message, 1);
    wire_message_done(message);
    serve_requests(plan);
}

static void serve_requests(const struct plan *plan) {
    static struct wire_message message;

    for (;;) {
        int r = wire_receive(GUEST_LAUNCHER_SOCKET, &message);
        if (r == -EBADMSG || r == -EMFILE)
            continue;
        if (r <= 0)
            _exit(r == 0 ? 0 : 1);
        if (message.header.type == GUEST_CREATE && message.n_fds >= 1)
            create_box(plan, &message);
        else if (message.header.type == GUEST_COPY)
            serve_copy(plan, &message);
        else if (message.header.type == GUEST_IMAGE)
            load_image(plan, &message, 0);
        else if (message.header.type == GUEST_IMAGE_FS)
            make_image_fs(&message);
        else if (message.header.type == GUEST_ZYGOTE)
            start_zygote(plan, &message);
        else if (message.header.type == GUEST_TOUCHES && message.n_fds == 1)
            restore_expect(message.fds[0]);
        wire_message_done(&message);
    }
}

int main(int argc, char **argv) {
    struct guest_record ready = { .kind = GUEST_TEMPLATE_READY };
    struct guest_fault fault = { .stage = GUEST_STAGE_PLAN };
    const struct plan *plan = NULL;
    static const int raised[] = { RLIMIT_NOFILE, RLIMIT_AS, RLIMIT_FSIZE, RLIMIT_NPROC };
    struct rlimit limit;
    sigset_t all;

    /* As root: the first host id of the launcher's user namespace. */
    if (argc != 3)
        return 2;
    idmap_base = (uint32_t)strtoul(argv[1], NULL, 10);
    const char when = argv[2][0];
    /* Clears /proc/1/cmdline: guests should not see it, and it differs between runs. */
    for (int i = 1; i < argc; i++)
        memset(argv[i], 0, strlen(argv[i]));
    /* It ends with the engine in any case, and ignores signals from terminals. */
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    prctl(PR_SET_NAME, "rollbox-launch", 0, 0, 0);
    /* Soft limits of the engine, or of its caller, must not restrict init. */
    for (size_t i = 0; i < sizeof raised / sizeof raised[0]; i++)
        if (getrlimit(raised[i], &limit) == 0)
            (void)setrlimit(raised[i], &(struct rlimit){ limit.rlim_max, limit.rlim_max });
    /* Nor may guests inherit scheduling attributes: real-time priority would be theirs. */
    (void)sys_call3(__NR_sched_setscheduler, 0, SCHED_OTHER, &(const int){ 0 });
    (void)prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0);
    if (sys_call2(__NR_getpriority, PRIO_PROCESS, 0) > NICE_ZERO)
        (void)sys_call3(__NR_setpriority, PRIO_PROCESS, 0, 0);
    (void)sys_call3(__NR_ioprio_set, 1 /* IOPRIO_WHO_PROCESS */, 0, 0);
    /* If the host runs out of memory, guests are killed first; they inherit this. Raising the value
     * needs no right. */
    (void)guest_write(AT_FDCWD, "/proc/self/oom_score_adj", "1000");
    bool early = when != 'l'; /* for a plan with namespaces, started by "root" or another user */
    int early_error = early ? enter_namespaces(when == 'r', GUEST_ID_RANGE, &fault) : 0;
    if (early && early_error == 0) {
        make_first_netns();
        early_error = enter_root(&fault);
    }
    await_plan();
    int r = receive_plan(&plan);
    if (r == 0)
        r = early_error ? early_error : build_template(plan, early, &fault);
    if (r < 0) {
        record_fault(GUEST_LAUNCHER_SOCKET, GUEST_FAILED, 0, &fault, r);
        return 1;
    }
    ready.value = ops_others;
    record_send(GUEST_LAUNCHER_SOCKET, &ready, (const int[]){ user_namespace, own_mounts_sources },
        user_namespace < 0       ? 0
        : own_mounts_sources < 0 ? 1
                                 : 2);
    /* Before any sandbox is cloned, because none may inherit them. */
    if (user_namespace >= 0)
        close(user_namespace);
    if (own_mounts_sources >= 0)
        close(own_mounts_sources);
    dispatch_prepare(plan);
    (void)clock_now_ns(); /* musl looks up the kernel's function on first use, and every sandbox
                             would do so again */
    serve_requests(plan);
}
