/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Boxes: sandboxes as the kernel knows them.
 *
 * A box is made of a socket to its init and, as soon as the launcher has told, a pidfd. Closing the
 * socket ends it (init exits, the kernel kills the rest); so does SIGKILL through the pidfd. It is
 * freed when the pidfd says that init is dead: then every process of its pid namespace is. What can
 * be used again (cgroup slot, network namespace without traffic) is kept then, not before.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/gateway.h"
#include "engine/session.h"
#include "engine/disk_upper.h"
#include "sys/proc.h"
#include "sys/sockmem.h"
#include "sys/syscalls.h"

#define SETUP_SECONDS 60 /* far more than set-up takes on a host that is not broken */
#define SPARE_SECONDS 30
#define PREFORK_MS 1000 /* the clocks of the processes in it run on meanwhile */
#define FILES_OF_BOX                                                                               \
    10 /* socket, pidfd, network namespace, tmpfs, two pipes, two spools, two on their way */
#define FILES_OF_SLOT 15
#define FILES_SPARED 64u
#define FILES_OF_LIVE 3 /* socket, pidfd, tmpfs: commands add theirs for as long as they run */
#define END_SECONDS                                                                                \
    60 /* isolation process: for init to end all the others and remove their files */
#define ASK_AT_ONCE_NS                                                                             \
    1000000 /* about sockets: some thousand; what takes longer goes on beside other work */

static void set_files(struct box *box, unsigned files) {
    box->engine->files += files - box->files;
    box->files = files;
}

static void note_asking(struct box *box, int64_t took_ns) {
    engine_account(&box->engine->socket_poll_cost_ns, &box->socket_poll_cost_ns, took_ns);
}

static unsigned files_of_new(const struct engine *engine) {
    return FILES_OF_BOX + (cgroup_root_backend(engine->cgroups) != CGROUP_NONE ? FILES_OF_SLOT : 0);
}

/* Of all kinds. The kernel tells since 6.2; before, that of states is not known, nor counted. */
static unsigned open_files(void) {
    struct stat st;

    return stat("/proc/self/fd", &st) == 0 ? (unsigned)MIN(st.st_size, (off_t)UINT32_MAX / 2) : 0;
}

/* A little is left for what those that there are may want yet. */
bool box_has_room(const struct engine *engine) {
    const unsigned more = files_of_new(engine);

    return (engine->files + deferred_close_waiting() + more <= engine->max_files &&
               open_files() + more + MIN(engine->open_files / 16, FILES_SPARED) <=
                   engine->open_files) ||
           !engine->n_boxes;
}

static unsigned files_of(const struct box *box) {
    unsigned n = FILES_OF_LIVE + (box->slot ? 1 : 0) + (box->netns >= 0 ? 1 : 0) +
                 (box->file_ids.fd >= 0 ? 1 : 0) + (box->file_ids.mounts >= 0 ? 1 : 0) +
                 (box->sockets.fd >= 0 ? 2 : 0) + gateway_box_files(box) +
                 (unsigned)box->session->checkpoint->tracking.dirty_tracking.n_trackers;

    list_for_each(node, &box->session->commands.runs) {
        const struct run *run = container_of(node, struct run, of_session);

        for (size_t i = 0; i < ARRAY_SIZE(run->outputs); i++)
            n += run->outputs[i].fd >= 0;
        for (size_t i = 0; i < ARRAY_SIZE(run->pipes); i++)
            n += run->pipes[i].kept >= 0;
    }
    return n;
}

void box_count_files(struct box *box) {
    set_files(box, files_of(box));
}

void box_checkpoint(struct box *box) {
    /* Making another takes half a millisecond: it is kept for the next sandbox where there is room.
     */
    if (box->engine->files > box->engine->max_files / 2) {
        close_fd(&box->netns);
        close_fd(&box->file_ids.fd);
        if (box->file_ids.mounts >= 0)
            deferred_close(TAKE_FD(box->file_ids.mounts));
    }
    if (box->slot)
        cgroup_lease_rest(box->slot);
    box_count_files(box);
}

static void close_held(struct box *box) {
    for (size_t i = 0; i < box->fds_until_dead.length / sizeof(int); i++) {
        int fd;

        memcpy(&fd, box->fds_until_dead.data + i * sizeof fd, sizeof fd);
        close(fd);
    }
    buf_done(&box->fds_until_dead);
}

static void box_free(struct box *box) {
    struct engine *engine = box->engine;
    bool has_lived = box->pid > 0; /* and so held what others may be waiting for */

    loop_remove(engine->loop, &box->death);
    loop_remove(engine->loop, &box->answers);
    loop_timer_clear(engine->loop, &box->deadline);
    close_fd(&box->pidfd);
    close_fd(&box->socket);
    loop_remove(box->engine->loop, &box->asking);
    sockmem_close(&box->sockets);
    note_asking(box, 0);
    gateway_box_free(box);
    close_held(box);
    if (box->disk >= 0 && !box->upper) /* of an upper it frees nothing */
        deferred_close(TAKE_FD(box->disk));
    close_fd(&box->disk);
    free(box->files_baseline);
    struct launcher *launcher = box->profile ? box->profile->launcher : NULL;
    if (box->netns >= 0 && launcher && launcher->number == box->launcher &&
        launcher->n_free_netns < ARRAY_SIZE(launcher->free_netns))
        launcher->free_netns[launcher->n_free_netns++] = TAKE_FD(box->netns);
    close_fd(&box->netns);
    launcher_take_ids(box);
    if (box->slot)
        cgroup_lease_put(box->profile, box->slot);
    if (box->private_dir) {
        box->private_dir = private_dir_free(box->private_dir);
        process_end_strays(engine);
    }
    box->upper = disk_upper_put(box->upper);
    if (box->stands_on)
        layer_hold_done(box->stands_on);
    free(box->stands_on);
    list_remove(&box->node);
    list_remove(&box->in_profile);
    list_remove(&box->in_launcher);
    engine->n_boxes--;
    set_files(box, 0);
    free(box);
    if (engine->stopping && !engine->n_boxes)
        loop_stop(engine->loop);
    else if (has_lived)
        run_schedule(engine);
}

static void leave_spares(struct box *box) {
    if (list_empty(&box->in_profile))
        return;
    list_remove(&box->in_profile);
    if (box->preforked) {
        box->preforked->preforked = NULL;
        box->preforked = NULL;
    } else
        box->profile->n_spares--;
}

/* Set up, and known: there are two to say so, init and the launcher, and either may be late. */
static void become_ready(struct box *box) {
    if (box->state != BOX_SETUP || !box->is_set_up || box->pid <= 0)
        return;
    box->state = BOX_READY;
    if ((box->run || box->session) && gateway_use(box, NULL) < 0) {
        box_failed(box, &(struct guest_record){
                            .kind = GUEST_FAILED, .stage = GUEST_STAGE_NETWORK, .error = ENOMEM });
        return;
    }
    disk_upper_watch(box);
    if (box->session) {
        loop_timer_clear(box->engine->loop, &box->deadline);
        session_box_ready(box->session);
    } else if (!list_empty(&box->in_profile))
        loop_timer_set(box->engine->loop, &box->deadline,
            clock_now_ns() +
                (box->preforked ? PREFORK_MS * 1000000ll : SPARE_SECONDS * 1000000000ll),
            box->deadline.callback);
}

static void take_ready(struct box *box, const struct guest_record *record, int *fds, size_t n_fds) {
    size_t next = 0;

    if (record->value & GUEST_VALUE_NETNS && next < n_fds) {
        close_fd(&box->netns);
        box->netns = TAKE_FD(fds[next]);
        next++;
    }
    if (record->value & GUEST_VALUE_DISK && next < n_fds) {
        box->disk = TAKE_FD(fds[next]);
        next++;
    }
    if (record->value & GUEST_VALUE_LISTENERS) {
        if (gateway_box_new(box, !(record->value & GUEST_VALUE_PORTS), fds + next, n_fds - next) <
            0) {
            box_failed(
                box, &(struct guest_record){
                         .kind = GUEST_FAILED, .stage = GUEST_STAGE_NETWORK, .error = ENOMEM });
            return;
        }
        set_files(box, box->files + gateway_box_files(box));
    }
    box->is_set_up = true;
    become_ready(box);
}

/* One record of init's. False when there is none, or no more to come. */
static bool handle_answer(struct box *box) {
    struct guest_record record = { 0 };
    int fds[FD_MESSAGE_MAX_FDS];
    size_t n_fds = 0;

    if (!box->answers.callback)
        return false;
    ssize_t n = fd_receive(box->socket, &record, sizeof record, fds, &n_fds);
    if (n == -EAGAIN)
        return false;
    /* A terminal that found no room is the failure of its command, not of a sandbox that has files.
     */
    if (n == -EMFILE && box->session && box->state == BOX_READY)
        n = sizeof record;
    if (n == -EMFILE)
        box_failed(box, &(struct guest_record){ .kind = GUEST_FAILED,
                            .stage = GUEST_STAGE_CLONE,
                            .error = EMFILE }); /* what came with it found no room */
    else if (n != sizeof record)
        loop_remove(
            box->engine->loop, &box->answers); /* init is ending; its pidfd tells when it has */
    else if (record.kind == GUEST_BOX_READY)
        take_ready(box, &record, fds, n_fds);
    else if (record.kind == GUEST_FAILED)
        box_failed(box, &record);
    else if (box->session)
        session_answer(box->session, &record, fds, n_fds);
    else if (box->interpreter)
        interpreter_answer(box->interpreter, &record);
    else if (box->run)
        run_answer(box->run, &record);
    for (size_t i = 0; n > 0 && i < n_fds; i++)
        close_fd(&fds[i]);
    return n == sizeof record;
}

static void on_answer(struct loop_source *source, uint32_t events) {
    (void)events;
    handle_answer(container_of(source, struct box, answers));
}

static void on_death(struct loop_source *source, uint32_t events) {
    struct box *box = container_of(source, struct box, death);
    siginfo_t unused;

    (void)events;
    (void)waitid(P_PIDFD, (id_t)box->pidfd, &unused, WEXITED | WNOHANG);
    loop_remove(box->engine->loop, &box->death);
    leave_spares(box);
    /* What init said before it died is still in the socket. */
    while (handle_answer(box))
        ;
    if (box->run)
        run_box_dead(box->run);
    if (box->session)
        session_box_dead(box->session, box);
    if (box->interpreter)
        interpreter_box_lost(box->interpreter, box);
    box_free(box);
}

static void on_deadline(struct loop_timer *timer) {
    struct box *box = container_of(timer, struct box, deadline);
    struct guest_record record = {
        .kind = GUEST_FAILED, .stage = GUEST_STAGE_SPAWN, .error = ETIMEDOUT
    };

    if (!list_empty(&box->in_launcher))
        launcher_kill(box->maker); /* and with it all that wait for it */
    else if (box->run && box->run->state == RUN_STARTING)
        box_failed(box, &record);
    else if (box->private_dir && box->state == BOX_DYING)
        sys_pidfd_send_signal(
            box->pidfd, SIGKILL, NULL, 0); /* it had its time; what it leaves is for us to end */
    else
        box_kill(box);
}

static int listen_to_init(struct box *box) {
    return loop_add(box->engine->loop, &box->answers, box->socket, EPOLLIN, on_answer);
}

int box_new(struct profile *profile, const struct box_options *options, struct box **ret_box,
    struct rollbox_error *error) {
    struct engine *engine = profile->engine;
    int pair[2] = { -EBADF, -EBADF };
    int r = options->zygote || profile->launcher ? 0 : launcher_start(profile, error);

    (void)tracking_make_room(engine);
    if (r < 0)
        return r;
    struct box *box = calloc(1, sizeof *box);
    if (!box)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "setup", "out of memory");
    struct launcher *launcher = options->zygote ? options->zygote : profile->launcher;
    box->engine = engine;
    box->profile = profile;
    box->made_ns = clock_coarse_ns();
    box->session = options->session;
    box->is_layered = options->session || options->base || profile->n_sessions;
    box->launcher = launcher->number;
    box->restored_image = options->loads ? options->loads : launcher->checkpoint;
    box->pidfd = box->socket = box->file_ids.fd = box->file_ids.mounts = box->file_ids.waits =
        box->netns = box->disk = box->sockets.fd = box->sockets.protocols = -EBADF;
    list_init(&box->in_profile);
    list_init(&box->in_launcher);
    list_add_tail(&engine->boxes, &box->node);
    set_files(box, files_of_new(engine));
    if (!engine->n_boxes++)
        (void)loop_timer_set(engine->loop, &engine->tidy, clock_now_ns(), engine->tidy.callback);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        r = -errno;
    box->socket = pair[0];
    if (r == 0 && cgroup_root_backend(engine->cgroups) != CGROUP_NONE) {
        r = cgroup_lease_get(profile, box->is_layered, &box->slot);
        if (r == 0)
            box->slot->box = box;
    }
    /* Only namespaces without a loopback interface are used again: nothing a guest did can have
     * left a trace in them. */
    struct launcher *pool = profile->launcher;
    if (r == 0 && profile->plan->flags & PLAN_NET_OWN &&
        !(profile->plan->flags & PLAN_NET_LOOPBACK) && pool && pool->number == box->launcher &&
        pool->n_free_netns)
        box->netns = pool->free_netns[--pool->n_free_netns];
    if (r == 0 && fcntl(box->socket, F_SETFL, O_NONBLOCK) < 0)
        r = -errno;
    if (r == 0)
        r = listen_to_init(box);
    if (r == 0)
        r = loop_timer_set(engine->loop, &box->deadline,
            clock_now_ns() + SETUP_SECONDS * 1000000000ll, on_deadline);
    if (r == 0 && profile->plan->flags & PLAN_PROCESS)
        r = private_dir_new(profile, launcher->id_base, &box->private_dir);
    if (r == 0 && profile->plan->flags & PLAN_ON_DISK)
        r = disk_upper_new(engine, launcher->id_base, &box->upper);
    if (r == 0) {
        launcher_lend_ids(box);
        r = launcher_create(launcher, box, options, pair[1]);
    }
    close_fd(&pair[1]);
    if (r < 0) {
        box_free(box);
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_SETUP_FAILED), -r, "setup",
            "the sandbox cannot be made: %s", strerror(-r));
    }
    *ret_box = box;
    return 0;
}

void box_created(struct box *box, pid_t pid, int take_pidfd) {
    box->pid = pid;
    box->pidfd = take_pidfd;
    if (loop_add(box->engine->loop, &box->death, box->pidfd, EPOLLIN, on_death) < 0) {
        struct guest_record record = {
            .kind = GUEST_FAILED, .stage = GUEST_STAGE_CLONE, .error = ENOMEM
        };

        sys_pidfd_send_signal(box->pidfd, SIGKILL, NULL, 0);
        box_failed(box, &record);
        box_free(box); /* nobody will tell of its death */
        return;
    }
    if (box->state == BOX_DYING) {
        box_kill(box);
        return;
    }
    become_ready(box);
    if (box->interpreter)
        interpreter_box_created(box->interpreter);
    else if (box->session)
        session_box_created(box->session);
}

void box_failed(struct box *box, const struct guest_record *record) {
    struct run *run = box->run;
    struct list held;

    /* With the last session of a retired program that goes, too, and would free its boxes: not this
     * one. */
    list_init(&held);
    list_remove(&box->in_launcher);
    list_add_tail(&held, &box->in_launcher);
    if (box->session)
        session_box_failed(box->session, record);
    if (box->interpreter)
        interpreter_box_lost(box->interpreter, box);
    if (run) {
        box->run = NULL;
        run->box = NULL;
        struct rollbox_error error;
        guest_error_to_text(box->profile, record, NULL, NULL, &error);
        run_fail(run, error.code, error.error_number, error.stage, error.message);
    }
    run_schedule(box->engine); /* it made others wait, perhaps, and has not lived */
    list_remove(&box->in_launcher);
    box_kill(box);
}

/* Before its pipes are closed: who found them at their end would wake up, and take itself apart at
 * length on the processor that we are on. */
void box_send_kill(struct box *box) {
    if (box->pidfd >= 0 && !box->private_dir)
        box->kill_sent = sys_pidfd_send_signal(box->pidfd, SIGKILL, NULL, 0) == 0;
}

/* The others die of init's end, and that takes a processor, which who woke up would have for as
 * long as it liked. */
void box_close(struct box *box, int *fd) {
    if (*fd >= 0 && box->kill_sent) {
        buf_add(&box->fds_until_dead, fd, sizeof *fd);
        if (!buf_failed(&box->fds_until_dead))
            *fd = -EBADF;
    }
    close_fd(fd);
}

void box_kill(struct box *box) {
    box->state = BOX_DYING;
    leave_spares(box);
    loop_remove(box->engine->loop, &box->answers);
    close_fd(&box->socket);
    /* Without a pid namespace it is init that ends the others, as soon as it sees its socket
     * closed. */
    if (box->pidfd >= 0 && box->private_dir &&
        loop_timer_set(box->engine->loop, &box->deadline,
            clock_now_ns() + END_SECONDS * 1000000000ll, on_deadline) == 0)
        return;
    if (box->pidfd >= 0)
        sys_pidfd_send_signal(box->pidfd, SIGKILL, NULL, 0);
    else if (list_empty(&box->in_launcher))
        box_free(box); /* the launcher said that it is not to be */
}

void box_orphan(struct box *box) {
    leave_spares(box);
    box->profile = NULL;
    box_kill(box);
}

/* Which of the sandbox's sockets nothing else counts. Of a network that is not its own they cannot
 * be told from others'. A memory group of version 1 counts those of Unix only, one of version 2 all
 * but netlink. */
static unsigned uncounted_sockets(const struct box *box) {
    const struct policy *policy = box->profile ? box->profile->policy : NULL;

    if (!policy || box->private_dir || policy->net == POLICY_NET_HOST)
        return 0;
    unsigned all =
        SOCKMEM_UNIX | (policy->net != POLICY_NET_NONE ? SOCKMEM_INET | SOCKMEM_NETLINK : 0);
    if (!box->slot)
        return all;
    return all &
           (cgroup_root_backend(box->engine->cgroups) == CGROUP_V1 ? SOCKMEM_INET | SOCKMEM_NETLINK
                                                                   : SOCKMEM_NETLINK);
}

static void stop_asking(struct box *box) {
    if (box->sockets.fd < 0)
        return;
    loop_remove(box->engine->loop, &box->asking);
    sockmem_close(&box->sockets);
    note_asking(box, 0);
    set_files(box, box->files - 2);
}

/* Nothing runs in it: no more is to be asked for a while. */
void box_rest(struct box *box) {
    stop_asking(box);
    box->socket_bytes = 0;
}

static void on_more_sockets(struct loop_source *source, uint32_t events);

/* A guest can have so many that asking takes long: in parts, between which others get their turn,
 * and altogether they get ten times that. And the kernel looks through a table of all that the
 * machine has, for each: of many sandboxes all together get a fifth of our time. */
static void ask_for(struct box *box, int64_t budget_ns) {
    const uint64_t limit = box->profile->policy->max_memory_bytes;
    const int64_t begun = clock_now_ns();
    uint64_t bytes = 0;
    int r = sockmem_usage(&box->sockets, uncounted_sockets(box), limit, begun + budget_ns, &bytes);
    const int64_t now = clock_now_ns();

    box->asked_ns += now - begun;
    if (r == 0 && (box->asking.callback || (r = loop_add(box->engine->loop, &box->asking,
                                                box->sockets.fd, EPOLLIN, on_more_sockets)) == 0))
        return;
    loop_remove(box->engine->loop, &box->asking);
    if (r > 0)
        box->socket_bytes = bytes;
    if (r < 0 || bytes > limit)
        stop_asking(box); /* it may still have an answer for us: another one next time, and what it
                             said last until then */
    else
        note_asking(box, box->asked_ns);
    box->ask_again_ns = now + MAX(10 * box->asked_ns, 5 * box->engine->socket_poll_cost_ns);
    box->asked_ns = 0;
}

static void on_more_sockets(struct loop_source *source, uint32_t events) {
    struct box *box = container_of(source, struct box, asking);

    (void)events;
    if (box->profile)
        ask_for(box, 0);
    else
        box_rest(box);
}

static uint64_t socket_memory(struct box *box) {
    if (!uncounted_sockets(box) || box->asking.callback || clock_now_ns() < box->ask_again_ns)
        return box->socket_bytes;
    if (box->sockets.fd < 0 && sockmem_open(box->pid, &box->sockets) == 0)
        set_files(box, box->files + 2);
    if (box->sockets.fd >= 0)
        ask_for(box, ASK_AT_ONCE_NS);
    return box->socket_bytes;
}

bool box_needs_watch(const struct box *box) {
    return !box->slot || uncounted_sockets(box);
}

/* A group ends by itself what is over by what it counts. */
bool box_is_over(const struct box *box, uint64_t memory) {
    return box->profile &&
           (box->slot ? box->socket_bytes : memory) > box->profile->policy->max_memory_bytes;
}

/* The sandbox's use of memory and processor so far. -errno if it cannot be told. */
int box_usage(
    struct box *box, uint64_t *ret_memory, uint64_t *ret_cpu_ns, uint32_t *ret_processes) {
    struct proc_usage usage;
    struct statfs disk;

    if (box->slot) {
        struct cgroup_usage group;
        int r = cgroup_slot_usage(box->slot->cgroup, &group);

        if (r < 0)
            return r;
        *ret_memory = group.memory_peak + (box->pid > 0 ? socket_memory(box) : 0);
        *ret_cpu_ns = group.cpu_ns                                       ? group.cpu_ns
                      : box->pid > 0 && proc_scan(box->pid, &usage) == 0 ? usage.cpu_ns
                                                                         : 0;
        *ret_processes = group.processes_now > 1 ? group.processes_now - 1 : 0;
        return 0;
    }
    if (box->pid <= 0)
        return -ESRCH;
    int r = proc_scan(box->pid, &usage);
    if (r < 0)
        return r;
    uint64_t limit = box->profile ? box->profile->policy->max_memory_bytes : UINT64_MAX;
    if (usage.anon_bytes > limit)
        (void)proc_scan_exact(box->pid, &usage);
    *ret_memory = usage.anon_bytes + box->kernel_bytes + socket_memory(box);
    if (box->disk >= 0 && !box->upper && fstatfs(box->disk, &disk) == 0)
        *ret_memory += (uint64_t)(disk.f_blocks - disk.f_bfree) * (uint64_t)disk.f_bsize;
    *ret_cpu_ns = usage.cpu_ns;
    *ret_processes = usage.threads > 1 ? usage.threads - 1 : 0;
    return 0;
}

/* Until init tells of the start, the time limit of the command does not run. What stands still on
 * the way to it (a path on a file system that does not answer) ends here. */
void box_expect_start(struct box *box) {
    loop_timer_set(box->engine->loop, &box->deadline, clock_now_ns() + SETUP_SECONDS * 1000000000ll,
        on_deadline);
}

void box_make_spare(struct box *box) {
    list_add_tail(&box->profile->spares, &box->in_profile);
    box->profile->n_spares++;
}

void box_set_preforked(struct box *box, struct checkpoint *checkpoint) {
    list_add_tail(&box->profile->spares, &box->in_profile);
    box->preforked = checkpoint;
    checkpoint->preforked = box;
}

static void take_spare(struct box *box) {
    leave_spares(box);
    loop_timer_clear(box->engine->loop, &box->deadline);
    if (box->state != BOX_READY)
        box_expect_start(box);
    disk_upper_watch(box);
}

/* Killed from outside, of which we have not heard yet. */
static bool is_dead(const struct box *box) {
    return box->pidfd >= 0 &&
           poll(&(struct pollfd){ .fd = box->pidfd, .events = POLLIN }, 1, 0) > 0;
}

struct box *box_take_preforked(struct checkpoint *checkpoint, const struct profile *profile) {
    struct box *box = checkpoint->preforked;

    if (!box || box->profile != profile)
        return NULL;
    if (is_dead(box)) {
        box_kill(box);
        return NULL;
    }
    take_spare(box);
    box->from_prefork = true;
    return box;
}

/* One that is ready, else one that is on its way. */
struct box *box_take_spare(struct profile *profile, bool layered) {
    struct box *best = NULL;

    list_for_each(node, &profile->spares) {
        struct box *box = container_of(node, struct box, in_profile);

        if (box->preforked || (layered && !box->is_layered))
            continue;
        if (box->state == BOX_READY || (box->state == BOX_SETUP && !best)) {
            best = box;
            if (box->state == BOX_READY)
                break;
        }
    }
    if (best)
        take_spare(best);
    return best;
}
