/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restore, on init's side; restore.h has the model.
 *
 * Init tells each process what to do, step by step, and receives the results. No guest code runs
 * before all processes have reported that nothing can fail any more.
 *
 * Pids: processes and threads get their old ones. Choosing a pid needs rights over the user
 * namespace that owns the pid namespace. That is U0, but the processes are born in the sandbox's
 * own user namespace. So while init is U0's root, it makes a child that remains so, the pid keeper.
 * On request it sets the next pid, and it ends before any restored process resumes. For a single
 * process, init sets the pid itself, once.
 */
#include "guest/restore/restore.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "guest/det/det.h"
#include "guest/det/vtime.h"
#include "guest/restore/restore_image.h"
#include "sys/syscalls.h"

#if defined(__x86_64__) && !defined(__GLIBC__)

#    define STREAMS 4
#    define FDS_AT_ONCE 32
/* By then, the last of a hundred processes that are made at once has answered; and before the
 * engine checks (CHECKPOINT_REST_NS). */
#    define REST_NS 120000000ll

static pid_t keeper;  /* the pid keeper */
static pid_t command; /* the single process of a command's image; 0: none, or it runs already */

static uint32_t n_processes(void) {
    return (uint32_t)restored.header->processes.n;
}

/* ---- pids ---- */

/* Of the pid keeper, until it has started. The last is open if the image has segments. */
static int kept_socket, kept_file, kept_segments = -1;

static int put_number(int file, uint32_t number) {
    char text[16], *end = guest_put_number(text, number);
    long r = sys_call4(__NR_pwrite64, file, text, end - text, 0);

    return r < 0 ? (int)r : 0;
}

/* Writes the last pid that was given out, as if this one were next. */
static int put_next_pid(int file, uint32_t next) {
    return put_number(file, next - 1);
}

/* Runs in init's memory, errno included, on a stack of its own: it must not touch what init
 * uses. */
static int keep_pids(void *unused) {
    enum { SOCKET, PIDS, SEGMENTS, NONE };
    struct restore_keeper_request request;
    int32_t result;

    (void)unused;
    if (sys_call3(__NR_dup3, kept_file, PIDS, 0) < 0 ||
        sys_call3(__NR_dup3, kept_socket, SOCKET, 0) < 0 ||
        (kept_segments > SEGMENTS && sys_call3(__NR_dup3, kept_segments, SEGMENTS, 0) < 0) ||
        sys_close_range(kept_segments >= 0 ? NONE : SEGMENTS, ~0u, 0) < 0)
        sys_exit_group(1);
    while (sys_call3(__NR_read, SOCKET, &request, sizeof request) == sizeof request &&
           request.kind != RESTORE_KEEPER_END) {
        result = request.kind == RESTORE_KEEPER_PID ? put_next_pid(PIDS, request.value)
                                                    : put_number(SEGMENTS, request.value);
        if (sys_call3(__NR_write, SOCKET, &result, sizeof result) != sizeof result)
            break;
    }
    sys_exit_group(0);
}

static bool is_taken(uint32_t pid) {
    const struct image_thread *threads = restored_table(threads, struct image_thread);

    for (uint32_t i = 0; i < n_processes(); i++)
        if (restored_process(i)->pid == pid)
            return true;
    for (uint64_t i = 0; i < restored.header->threads.n; i++)
        if (threads[i].tid == pid)
            return true;
    return false;
}

/* A fork would copy the page tables of all of init's memory, and init's next step would be to unmap
 * that memory. */
static int start_keeper(int file) {
    static _Alignas(GUEST_STACK_ALIGN) char stack[4096];
    uint32_t pid = 2;
    int pair[2];

    while (is_taken(pid))
        pid++;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    kept_socket = pair[1];
    kept_file = file;
    int r = put_next_pid(file, pid);
    if (r == 0 && (keeper = clone(keep_pids, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL)) < 0)
        r = -errno;
    if (r == 0 && (uint32_t)keeper != pid)
        r = -EEXIST; /* and it ends with init */
    close(pair[1]);
    if (r < 0)
        close(pair[0]);
    else
        restore_pids = pair[0];
    return r;
}

static bool is_alone(void) {
    return n_processes() == 1 && restored.header->threads.n == 1 &&
           restored.header->determinism.last_pid < 2 && !restored.header->segments.n;
}

int restore_keep_pids(const struct plan *plan, int proc_sys) {
    int file = openat(proc_sys, "kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);

    if (file < 0)
        return errno == ENOENT ? -EOPNOTSUPP : -errno;
    if (restored.header->segments.n) {
        kept_segments = openat(proc_sys, "kernel/shm_next_id", O_WRONLY | O_CLOEXEC);
        if (kept_segments < 0) {
            int r = errno == ENOENT ? -EOPNOTSUPP : -errno;
            close(file);
            return r;
        }
    }
    /* The next process is the only one. With many users, another one writes the maps before. */
    int r = is_alone() && !(plan->flags & PLAN_MANY_USERS)
                ? put_next_pid(file, restored_process(0)->pid)
                : start_keeper(file);
    close(file);
    if (kept_segments >= 0)
        close(kept_segments);
    return r;
}

static void end_keeper(void) {
    const struct restore_keeper_request none = { RESTORE_KEEPER_END, 0 };

    if (restore_pids < 0)
        return;
    /* Processes may still have its socket open, and it has rights that init has dropped, so init
     * cannot kill it. */
    (void)!write(restore_pids, &none, sizeof none);
    close(restore_pids);
    restore_pids = -1;
    (void)waitpid(keeper, NULL, __WALL);
}

/* ---- the tree ---- */

static struct restore_failure failure;

static bool goes_unasked; /* the single process, when it has received everything */

/* A seccomp listener may come with the reply. The caller expects and owns it (ret_listener). */
static int hear_with(uint32_t index, int *ret_listener) {
    struct restore_word word;
    int fds[FD_MESSAGE_MAX_FDS];
    size_t n_fds = 0;
    ssize_t n = fd_receive(restore_ends[index].ours, &word, sizeof word, fds, &n_fds);

    if (n == sizeof word && word.error == 0) {
        *ret_listener = n_fds ? fds[0] : -1;
        return 0;
    }
    failure = (struct restore_failure){ n == sizeof word ? -word.error : 0,
        n == sizeof word ? word.step : 0, restored_process(index)->pid };
    return n == sizeof word && word.error < 0 ? word.error : -ECHILD;
}

static int receive_reply(uint32_t index) {
    int none;

    return hear_with(index, &none);
}

static int order_more(uint32_t index, enum restore_order_kind kind, uint32_t argument, bool is_last,
    const int *fds, size_t n_fds) {
    struct restore_order message = { kind, argument, is_last, is_last && goes_unasked };
    int r = fd_send(restore_ends[index].ours, &message, sizeof message, fds, n_fds);

    if (r >= 0)
        return r;
    /* A process that has failed before has left the reason. */
    int told = r == -EPIPE ? receive_reply(index) : 0;
    if (told < 0 && failure.error)
        return told;
    failure = (struct restore_failure){ -r, RESTORE_DESCRIPTORS, restored_process(index)->pid };
    return r;
}

static int send_order(uint32_t index, enum restore_order_kind kind, uint32_t argument) {
    return order_more(index, kind, argument, false, NULL, 0);
}

static int notify_process(uint32_t index, enum restore_order_kind kind, uint32_t argument) {
    int r = send_order(index, kind, argument);

    return r < 0 ? r : receive_reply(index);
}

static bool owes_word; /* each process, for its preparation or its incremental image; a process by
                          itself sends nothing before it is asked */
static int trackers[IMAGE_MAX_NOTED];
static size_t n_trackers;

bool restore_has_command(uint32_t pid) {
    for (uint32_t i = 0; i < n_processes(); i++)
        if (restored_process(i)->pid == pid)
            return restored_process(i)->kind == IMAGE_LIVING && !restored_process(i)->parent;
    return false;
}

static int hear_all(void) {
    int r = 0;

    for (uint32_t i = 0; i < n_processes() && r == 0; i++)
        if (restored_process(i)->kind == IMAGE_LIVING) {
            int tracker = -1;

            r = hear_with(i, &tracker);
            if (r == 0 && tracker >= 0)
                trackers[n_trackers++] = tracker;
        }
    return r;
}

static int order_all(enum restore_order_kind kind, const int *fds, size_t n_fds) {
    int r = 0;

    for (uint32_t i = 0; i < n_processes() && r == 0; i++)
        if (restored_process(i)->kind == IMAGE_LIVING)
            r = order_more(i, kind, 0, false, fds, n_fds);
    owes_word = !restored_is_by_itself();
    return r;
}

static int hear_owed(void) {
    int r = owes_word ? hear_all() : 0;

    owes_word = false;
    return r;
}

/* Collects the results of the preparation. */
static int hear_prepared(const struct box *box) {
    if (restored_is_by_itself() && restore_are_noted(box)) {
        int r = send_order(0, RESTORE_SAY, 0);

        return r < 0 ? r : hear_all();
    }
    return hear_owed();
}

size_t restore_take_trackers(int *ret_trackers) {
    size_t n = 0, n_living = 0;

    for (uint32_t i = 0; i < n_processes(); i++)
        n_living += restored_process(i)->kind == IMAGE_LIVING;
    for (size_t i = 0; i < n_trackers; i++)
        if (n_trackers == n_living)
            ret_trackers[n++] = trackers[i];
        else
            close(trackers[i]);
    n_trackers = 0;
    return n;
}

static int open_sockets(void) {
    for (uint32_t i = 0; i < n_processes(); i++) {
        int pair[2];

        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
            return -errno;
        restore_ends[i].ours = pair[0];
        restore_ends[i].its = pair[1];
    }
    return 0;
}

/* Started while the next process is made. */
static int hear_begin(uint32_t index) {
    if (restore_ends[index].has_begun)
        return 0;
    restore_ends[index].has_begun = true;
    return receive_reply(index);
}

static bool has_several_tops; /* several processes without a parent in the image: the memory of each
                                 is kept from the forks of the others */

static void keep_from_each_other(void) {
    unsigned n = 0;

    for (uint32_t i = 0; i < n_processes(); i++)
        n += !restored_process(i)->parent;
    has_several_tops = n > 1;
    for (uint32_t i = 0; i < n_processes() && has_several_tops; i++)
        if (!restored_process(i)->parent)
            restore_keep_from_forks(i);
}

static bool keeps_memory; /* parked memory of the single process is kept until the process has run
                             for a while */
static const struct image *rests; /* that image; NULL: no image remains */
static int64_t rests_until_ns;

/* Unmapping init's copy of the memory takes as long as everything else between the fork and its
 * answer, and other processes wait for the processor. Keeping it costs no additional page copies: a
 * zygote has all pages anyway, and its forks share them. */
static bool may_keep_memory(const struct box *box) {
    return box->keeps && restored_is_by_itself() && !determinism_wanted(box->plan);
}

/* No other process is made meanwhile, so the pid after the last one needs no request. */
static int make_one(const struct box *box, uint32_t index) {
    uint32_t parent = restored_process(index)->parent,
             pid_before = index ? restored_process(index - 1)->pid : 0;
    int r = pid_before && restored_process(index)->pid == pid_before + 1
                ? 0
                : restore_next_pid(restored_process(index)->pid);

    if (r < 0)
        return r;
    if (parent) {
        r = hear_begin(parent - 1);
        return r < 0 ? r : notify_process(parent - 1, RESTORE_MAKE_CHILD, index);
    }
    if (has_several_tops)
        restore_take_to_forks(index);
    long pid = sys_call5(__NR_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == 0)
        restore_become(box, index);
    command = (pid_t)pid;
    keeps_memory = may_keep_memory(box);
    if (!keeps_memory)
        restore_give_up(index); /* init does not use it, and would be charged for it */
    return pid < 0 ? (int)pid : 0;
}

/* The process group at birth, until groups are joined: that of the nearest ancestor that leads a
 * session. 0: a group outside of the image. */
static uint32_t group_at_birth(uint32_t index) {
    const struct image_process *p = restored_process(index);

    while (p->session != p->pid && p->parent)
        p = restored_process(p->parent - 1);
    return p->session == p->pid ? p->pid : 0;
}

static bool joins_as(uint32_t index, bool leader) {
    const struct image_process *p = restored_process(index);

    return p->session != p->pid && (p->group == p->pid) == leader &&
           p->group != group_at_birth(index);
}

/* Group leaders first, then the members. A session leader is in its group already. */
static int join_groups(void) {
    int r = 0;

    for (int leaders = 1; leaders >= 0; leaders--) {
        for (uint32_t i = 0; i < n_processes() && r == 0; i++)
            if (joins_as(i, leaders))
                r = send_order(i, RESTORE_JOIN_GROUP, 0);
        for (uint32_t i = 0; i < n_processes() && r == 0; i++)
            if (joins_as(i, leaders))
                r = receive_reply(i);
    }
    return r;
}

static int set_foregrounds(void) {
    int r = 0;

    for (uint32_t i = 0; i < n_processes() && r == 0; i++)
        if (restored_process(i)->terminal &&
            restored_process(i)->session == restored_process(i)->pid)
            r = notify_process(i, RESTORE_SET_FOREGROUND, 0);
    return r;
}

/* Ends the dead processes, so that their children pass to the right parents. */
static int end_dead(void) {
    int r = 0;

    for (uint32_t i = n_processes(); i-- > 0 && r == 0;) {
        const struct image_process *p = restored_process(i);
        bool is_ghost = p->kind == IMAGE_DEAD_LEADER;

        if (p->kind == IMAGE_LIVING)
            continue;
        r = notify_process(i, RESTORE_END, 0);
        if (r == 0 && p->parent)
            r = notify_process(p->parent - 1, is_ghost ? RESTORE_REAP : RESTORE_AWAIT_END, i);
        else if (r == 0)
            (void)waitpid((pid_t)p->pid, NULL, __WALL);
    }
    return r;
}

/* Builds the family tree. Then each process prepares itself. */
static int order_tree(void) {
    int r = 0;

    for (uint32_t i = 0; i < n_processes() && r == 0; i++)
        r = hear_begin(i);
    if (r == 0)
        r = join_groups();
    if (r == 0)
        r = set_foregrounds();
    if (r == 0)
        r = end_dead();
    return r < 0 ? r : order_all(RESTORE_PREPARE, NULL, 0);
}

int restore_fork(const struct box *box) {
    int r = restored.header ? open_sockets() : 0;

    if (!restored.header || (r < 0 && restored.header->is_command))
        return 0;
    if (r == 0)
        r = restore_make_terminals();
    keep_from_each_other();
    for (uint32_t i = 0; i < n_processes() && r == 0; i++)
        r = make_one(box, i);
    for (uint32_t i = 0; i < n_processes(); i++)
        close(restore_ends[i].its);
    return r < 0 || restored.header->is_command || restored_is_by_itself() ? r : order_tree();
}

/* ---- resuming a tree ---- */

static const struct image_area *areas_of(uint32_t index) {
    return restored_table(areas, struct image_area) + restored_process(index)->areas.first;
}

static bool has_more(uint32_t index) {
    const struct image_process *p = restored_process(index);
    struct restore_end *has = &restore_ends[index];

    while (has->areas < p->areas.n && areas_of(index)[has->areas].kind != IMAGE_MEMORY &&
           areas_of(index)[has->areas].kind != IMAGE_SEGMENT)
        has->areas++;
    return has->fds < p->fds.n || has->areas < p->areas.n;
}

static int give_area(uint32_t index, uint32_t first, bool is_last, const int *files) {
    const struct image_area *area = &areas_of(index)[first];

    if (area->kind == IMAGE_SEGMENT)
        return order_more(index, RESTORE_TAKE_SEGMENT, first, is_last, NULL, 0);
    int file = files[area->path], fd = -EACCES;

    const struct image_file *of = restored_table(files, struct image_file) + area->path;
    const bool is_read_only = area->flags & IMAGE_READ_ONLY;
    const bool is_other = is_read_only || (of->flags & O_ACCMODE) != O_RDWR;

    if (is_other && of->kind == IMAGE_FILE_MEMORY &&
        (fd = restore_open_again(file, is_read_only ? O_RDONLY : O_RDWR)) < 0 && fd != -EACCES) {
        failure = (struct restore_failure){ -fd, RESTORE_MEMORY, restored_process(index)->pid };
        return fd;
    }
    int r = order_more(index, RESTORE_TAKE_MEMORY, first, is_last, fd < 0 ? &file : &fd, 1);
    if (fd >= 0)
        close(fd);
    return r;
}

/* Sends the next message with descriptors or memory. With the last, or if there is none, the
 * process completes itself. */
static int give_files(uint32_t index, const int *files) {
    const struct image_process *p = restored_process(index);
    const struct image_fd *fds = restored_table(fds, struct image_fd) + p->fds.first;
    struct restore_end *has = &restore_ends[index];
    uint32_t first = has->fds, n = 0;
    int batch[FDS_AT_ONCE];

    for (; n < FDS_AT_ONCE && has->fds < p->fds.n; n++)
        batch[n] = files[fds[has->fds++].file];
    has->waits = true;
    if (!n && has_more(index)) {
        first = has->areas++;
        has->completes = !has_more(index);
        return give_area(index, first, has->completes, files);
    }
    has->completes = !has_more(index);
    return n ? order_more(index, RESTORE_TAKE_FDS, first, has->completes, batch, n)
             : order_more(index, RESTORE_COMPLETE, 0, true, NULL, 0);
}

/* From then on its system calls are sent to init. */
static int has_threads(const struct box *box, uint32_t index) {
    int listener = -1, r = hear_with(index, &listener);

    if (r < 0 || !determinism_wanted(box->plan))
        return r;
    r = listener < 0 ? -EBADMSG : quiesce_adopt(restored_process(index), listener);
    if (r < 0)
        failure = (struct restore_failure){ -r, RESTORE_VDSO, restored_process(index)->pid };
    return r;
}

/* Only a process that creates more than one task needs the pid keeper, so only it takes turns with
 * the others. A single task is made after everything else. */
static bool takes_turns(uint32_t index) {
    return restored_process(index)->threads.n != 1;
}

/* One message for each process in turn. With more than one message under way, neither side could be
 * sure that the socket has room for the other's reply. */
static int give_all(const struct box *box, const int *files) {
    bool is_more = true;
    int r = 0;

    while (is_more && r == 0) {
        is_more = false;
        for (uint32_t i = 0; i < n_processes() && r == 0; i++)
            if (restored_process(i)->kind == IMAGE_LIVING && !restore_ends[i].completes)
                r = give_files(i, files);
        for (uint32_t i = 0; i < n_processes() && r == 0; i++)
            if (restore_ends[i].waits) {
                is_more |= !restore_ends[i].completes;
                restore_ends[i].waits = false;
                r = restore_ends[i].completes && !takes_turns(i) ? has_threads(box, i)
                                                                 : receive_reply(i);
            }
    }
    return r;
}

static int make_threads(const struct box *box) {
    int r = 0;

    for (uint32_t i = 0; i < n_processes() && r == 0; i++)
        if (restored_process(i)->kind == IMAGE_LIVING && takes_turns(i) &&
            (r = send_order(i, RESTORE_MAKE_THREADS, 0)) == 0)
            r = has_threads(box, i);
    return r;
}

int restore_incremental(
    const struct box *box, int incremental, struct restore_failure *ret_failure) {
    int r = hear_prepared(box);

    if (r == 0 && (r = restore_take_incremental(incremental, true)) < 0)
        failure = (struct restore_failure){ -r, RESTORE_MEMORY, 0 };
    if (r == 0)
        r = order_all(RESTORE_INCREMENTAL, &incremental, 1);
    *ret_failure = failure;
    return r;
}

static int resume(const struct box *box, const int *externals, size_t n_externals, int *files) {
    uint32_t file = 0, last_pid = restored.header->determinism.last_pid;
    int r = quiesce_resume(box);

    if (r == 0)
        r = restore_open_files(externals, n_externals, files, &file);
    if (r < 0)
        failure = (struct restore_failure){ -r, RESTORE_FILES, 0 };
    if (r == 0 && (r = restore_make_segments()) < 0)
        failure = (struct restore_failure){ -r, RESTORE_SEGMENTS, 0 };
    if (r == 0)
        r = restored.before
                ? hear_owed()
                : hear_prepared(box); /* their incremental image is applied, or they are prepared */
    if (r == 0)
        r = give_all(box, files);
    if (r == 0)
        r = make_threads(box);
    if (r == 0 && (r = restore_finish_segments()) < 0)
        failure = (struct restore_failure){ -r, RESTORE_SEGMENTS, 0 };
    if (r == 0 && ((r = restore_seal(files, &file)) < 0 || (r = restore_watch(files, &file)) < 0))
        failure = (struct restore_failure){ -r, RESTORE_FILES, 0 };
    /* The last used pid is part of the restored state. */
    if (r == 0 && last_pid > 1)
        r = restore_next_pid(last_pid + 1);
    if (r == 0)
        quiesce_continue(files, externals, n_externals);
    return r;
}

/* Nothing may fail between the last message to the process and its start. Nor may init have one of
 * its files open: a process that closes the file would find it still locked, or the other end of a
 * pipe still open, for a moment. */
static bool may_go_unasked(const struct box *box) {
    return restored_is_by_itself() && !takes_turns(0) && !determinism_wanted(box->plan) &&
           restored.header->determinism.last_pid < 2 && !restore_makes_files();
}

static bool has_wait(const struct image_process *p) {
    const struct image_wait *waits = restored_table(waits, struct image_wait);
    const struct image_thread *threads =
        restored_table(threads, struct image_thread) + p->threads.first;

    for (uint64_t i = 0; i < restored.header->waits.n; i++)
        for (uint32_t k = 0; k < p->threads.n; k++)
            if (waits[i].thread == threads[k].tid)
                return true;
    return false;
}

static void let_go_those(bool with_waits) {
    for (uint32_t i = 0; i < n_processes(); i++)
        if (restored_process(i)->kind == IMAGE_LIVING &&
            has_wait(restored_process(i)) == with_waits)
            (void)send_order(i, RESTORE_GO, 0);
}

/* A thread that begins a wait again starts first, so that others cannot signal it before it waits
 * (vtime_wait.c). */
static void let_go(const struct box *box) {
    let_go_those(true);
    if (restored.header->waits.n && !restored_is_by_itself())
        dispatch_await_waits(box->plan);
    let_go_those(false);
}

int restore_finish(const struct box *box, const int *externals, size_t n_externals, bool is_dry_run,
    int *ret_masters, size_t *ret_n_masters, struct restore_failure *ret_failure) {
    size_t n = (size_t)restored.header->files.n, length = (n + 1) * sizeof(int);
    int *files = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int r = files == MAP_FAILED                           ? -errno
            : n_externals != restored.header->n_externals ? -EBADMSG
                                                          : 0;

    for (size_t i = 0; i < n && files != MAP_FAILED; i++)
        files[i] = -1;
    goes_unasked = !is_dry_run && may_go_unasked(box);
    if (r == 0)
        r = resume(box, externals, n_externals, files);
    end_keeper();
    for (size_t i = 0; i < n && files != MAP_FAILED; i++)
        if (files[i] >= 0)
            close(files[i]);
    *ret_n_masters = restore_leave_terminals(ret_masters);
    /* Nothing can fail any more. Processes that resume may kill the others, as in any sandbox. */
    if (r == 0 && !is_dry_run && !goes_unasked)
        let_go(box);
    for (uint32_t i = 0; i < n_processes(); i++)
        close(restore_ends[i].ours);
    if (files != MAP_FAILED)
        (void)munmap(files, length);
    *ret_failure = failure;
    return r;
}

static void forget_region(void) {
    (void)munmap((void *)restored.region, restored.region_end - restored.region);
    restored.header = NULL;
}

void restore_forget(void) {
    if (!keeps_memory) {
        forget_region();
        return;
    }
    if (restored.before) { /* init has applied it */
        restored.header = restored.before;
        restored.base = restored.before_base;
        restored.before = NULL;
    }
    rests = restored.header;
    rests_until_ns = clock_now_ns() + REST_NS;
    restored.header = NULL;
}

int64_t restore_rests_until_ns(void) {
    return rests ? rests_until_ns : INT64_MAX;
}

void restore_forget_rest(void) {
    if (!rests)
        return;
    restored.header = rests;
    restore_give_up(0);
    forget_region();
    rests = NULL;
}

/* ---- a command to be ---- */

void restore_cancel(void) {
    if (command <= 0 || !restored.header || !restored.header->is_command)
        return;
    close(restore_ends[0].ours);
    (void)kill(command, SIGKILL);
    (void)waitpid(command, NULL, __WALL);
    command = 0;
}

/* With random_seed or time_start: the process is prepared, and init answers its system calls from
 * here on. */
static int begin_serving(const struct box *box, int *ret_listener) {
    int listener = -1, r = determinism_wanted(box->plan) ? hear_with(0, &listener) : 0;

    *ret_listener = listener;
    if (r < 0 || !determinism_wanted(box->plan))
        return r;
    r = listener < 0 ? -EBADMSG : quiesce_begin_command(box->plan, listener);
    if (r < 0)
        failure = (struct restore_failure){ -r, RESTORE_VDSO, restored_process(0)->pid };
    return r;
}

pid_t restore_resume(const struct box *box, const struct exec_request *request,
    struct restore_failure *ret_failure) {
    pid_t pid = command;

    if (pid <= 0 || !restored.header || !restored.header->is_command || request->n_fds < STREAMS)
        return -ENOENT;
    int listener, r = begin_serving(box, &listener);
    /* If the process has ended, it has left the reason. */
    if (r == 0)
        (void)fd_send(
            restore_ends[0].ours, request->cwd, strlen(request->cwd) + 1, request->fds, STREAMS);
    if (r == 0 && receive_reply(0) == 0) {
        close(restore_ends[0].ours);
        command = 0;
        vtime_started(listener, request->fds);
        return pid;
    }
    /* The command is started in the usual way, and nothing of the failed restore remains. */
    restore_cancel();
    dispatch_undo_command(box->plan);
    *ret_failure = failure;
    return -ENOENT;
}

#else

int restore_keep_pids(const struct plan *plan, int proc_sys) {
    (void)plan, (void)proc_sys;
    return -EOPNOTSUPP;
}

int restore_fork(const struct box *box) {
    (void)box;
    return 0;
}

pid_t restore_resume(const struct box *box, const struct exec_request *request,
    struct restore_failure *ret_failure) {
    (void)box, (void)request, (void)ret_failure;
    return -ENOENT;
}

void restore_cancel(void) {
}

int restore_incremental(
    const struct box *box, int incremental, struct restore_failure *ret_failure) {
    (void)box, (void)incremental, (void)ret_failure;
    return -EOPNOTSUPP;
}

int restore_finish(const struct box *box, const int *externals, size_t n_externals, bool is_dry_run,
    int *ret_masters, size_t *ret_n_masters, struct restore_failure *ret_failure) {
    (void)box, (void)externals, (void)n_externals, (void)is_dry_run, (void)ret_masters,
        (void)ret_n_masters, (void)ret_failure;
    return -EOPNOTSUPP;
}

bool restore_has_command(uint32_t pid) {
    (void)pid;
    return false;
}

size_t restore_take_trackers(int *ret_trackers) {
    (void)ret_trackers;
    return 0;
}

void restore_forget(void) {
}

int64_t restore_rests_until_ns(void) {
    return INT64_MAX;
}

void restore_forget_rest(void) {
}

#endif
