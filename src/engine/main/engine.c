/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine's life: starting, serving, stopping.
 *
 * Stopping means killing every box and waiting for the kernel to say that they are dead; then the
 * cgroups go, then the engine.
 */
#include "engine/box/launcher.h"
#include "engine/box/no_namespace.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/dirty_tracking.h"
#include "engine/command/result.h"
#include "engine/command/stream.h"
#include "engine/core/context.h"
#include "engine/core/deferred_close.h"
#include "engine/core/host_oom.h"
#include "engine/core/spawn.h"
#include "engine/engine_serve.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "engine/core/janitor.h"
#include "engine/core/log.h"
#include "engine/core/many_ids.h"
#include "engine/network/gateway.h"
#include "engine/ops/auto_snapshot.h"
#include "engine/pool/owned_image.h"
#include "engine/pool/profile.h"
#include "engine/record/record.h"
#include "engine/run/hoards.h"
#include "engine/run/run.h"
#include "engine/server/connection.h"
#include "engine/session/op.h"
#include "engine/session/session_files.h"
#include "engine/box/disk_upper.h"
#include "engine/ops/peers.h"
#include "engine/ops/publish.h"
#include "engine/record/network_step.h"
#include "sys/cgroup.h"
#include "sys/limits.h"
#include "sys/proc.h"
#include "sys/syscalls.h"
#include "sys/trust.h"

#define FILES_OF_ENGINE                                                                            \
    32u /* its own, of a few clients and launchers, and for telling failures                       \
         */
#define ENOUGH_FILES (1u << 19)
#define PEER_PIDFD 77 /* SO_PEERPIDFD */

int serve_complain(const char *what, const char *why) {
    fprintf(stderr, "rollbox-engine: %s: %s\n", what, why);
    return 125;
}

static bool take_away(pid_t child) {
    pid_t pid = waitpid(child, NULL, WNOHANG);

    if (pid > 0)
        deferred_close_ended(pid);
    return pid > 0;
}

/* Boxes and launchers are known to be dead by other means; here only their remains are taken away.
 * Signals that are pending at once become one, which names one child: box.c sees to its own, and to
 * look through all children, of which each sandbox is one, is for when there are few, or now and
 * then. */
static void on_signal(struct loop_source *source, uint32_t events) {
    struct engine *engine = container_of(source, struct engine, server.signals);
    struct signalfd_siginfo info;

    (void)events;
    while (read(source->fd, &info, sizeof info) == sizeof info)
        if (info.ssi_signo != SIGCHLD)
            engine_stop(engine);
        else if (info.ssi_pid)
            (void)take_away((pid_t)info.ssi_pid);
    if (deferred_close_look())
        run_schedule(engine); /* waiting runs may need their descriptors */
    while (!engine->boxes.n && take_away(-1))
        ;
}

/* The process that connected may have ended since, and left the connection to another and its id to
 * any new process: it exists as long as its pidfd says so (Linux 6.5). */
static bool is_outside(int connection, pid_t pid) {
    auto_close int process = -EBADF;
    socklen_t size = sizeof process;
    bool is_held = getsockopt(connection, SOL_SOCKET, PEER_PIDFD, &process, &size) == 0;

    if (!is_held && errno != ENOPROTOOPT)
        return false;
    if (proc_is_sandboxed(pid) != 0)
        return false;
    int there = is_held ? sys_pidfd_send_signal(process, 0, NULL, 0) : 0;
    return there == 0 || there == -EPERM;
}

/* A guest that finds our socket in what it was granted has the caller's id, where that is no
 * root's; but it is no caller. A process outside of our pid namespace (0) is in no sandbox below
 * it.
 */
static bool may_call(int connection) {
    struct ucred peer;
    socklen_t size = sizeof peer;

    if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
        return false;
    return trust_user(NULL, peer.uid) && (peer.pid == 0 || is_outside(connection, peer.pid));
}

static void on_connection(struct loop_source *source, uint32_t events) {
    struct engine *engine = container_of(source, struct engine, server.listen);
    int fd = accept4(source->fd, NULL, NULL, SOCK_CLOEXEC);

    (void)events;
    if (fd < 0)
        return;
    if (!may_call(fd))
        close(fd);
    else
        (void)client_new(engine, fd);
}

/* Each second while there are boxes; box_new arms it. */
static void on_tidy(struct loop_timer *timer) {
    struct engine *engine = container_of(timer, struct engine, boxes.tidy);

    run_schedule(engine); /* should a wake-up have found no memory */
    while (take_away(-1))
        ;
    (void)engine_oom_kills(engine, true);
    profile_tidy(engine);
    (void)cgroup_root_tidy(engine->cgroups);
    if (engine->boxes.n && !engine->stopping)
        loop_timer_set(engine->loop, &engine->boxes.tidy,
            clock_now_ns() + TIDY_SECONDS * 1000000000ll, on_tidy);
}

/* 0, or the exit status. The lock, not the socket, tells whether another engine is alive: a socket
 * stays behind when one is killed. It is of those that belong to a process: a fork that the engine
 * has just made when it is killed has not got it. */
static int listen_on(struct engine *engine, const char *path) {
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    struct flock whole = { .l_type = F_WRLCK };
    char lock[sizeof address.sun_path + 8];
    struct rollbox_error error;
    struct trust trust;
    struct stat st;

    if (strlen(path) >= sizeof address.sun_path)
        return serve_complain(
            path, "the path of the socket is too long for the kernel (107 bytes)");
    memcpy(address.sun_path, path, strlen(path) + 1);
    /* No client would connect there. The file in the socket's place is checked below. */
    auto_free char *directory = strdup(path);
    if (!directory || !strrchr(directory, '/'))
        directory = (free(directory), strdup("."));
    else
        strrchr(directory, '/')[1] = '\0';
    if (!directory)
        return serve_complain(path, "out of memory");
    if (trust_read(&trust, &error) < 0 || trust_path(&trust, directory, &error) < 0)
        return serve_complain(path, error.message);
    snprintf(lock, sizeof lock, "%s.lock", path);
    engine->server.lock_fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (engine->server.lock_fd < 0)
        return serve_complain(lock, strerror(errno));
    if (fstat(engine->server.lock_fd, &st) < 0 || st.st_uid != geteuid())
        return serve_complain(lock, "belongs to another user, who could keep the socket from being "
                                    "served; remove it, or use another path");
    if (fcntl(engine->server.lock_fd, F_SETLK, &whole) < 0)
        return serve_complain(path, errno == EAGAIN || errno == EACCES
                                        ? "another engine is serving that socket (engine_busy); "
                                          "stop it, or use another path"
                                        : strerror(errno));
    engine->server.listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (engine->server.listen_fd < 0)
        return serve_complain(path, strerror(errno));
    if (lstat(path, &st) == 0 && !S_ISSOCK(st.st_mode))
        return serve_complain(
            path, "exists and is not a socket; move it away, or use another path");
    if (unlink(path) < 0 && errno != ENOENT)
        return serve_complain(path, errno == EPERM || errno == EACCES
                                        ? "another user has put a socket there; use another path"
                                        : strerror(errno));
    mode_t before = umask(0177);
    int r = bind(engine->server.listen_fd, (struct sockaddr *)&address, sizeof address);
    umask(before);
    if (r < 0 || listen(engine->server.listen_fd, 1024) < 0)
        return serve_complain(path, strerror(errno));
    if (loop_add(engine->loop, &engine->server.listen, engine->server.listen_fd, EPOLLIN,
            on_connection) < 0)
        return serve_complain(path, "out of memory");
    engine->server.socket_path = strdup(path);
    return 0;
}

/* As many descriptors as we may have, as each sandbox takes a handful. Returns how many. */
static unsigned raise_open_files(void) {
    struct rlimit limit;
    auto_buf struct buf most = BUF_INIT;

    /* Root may have more than it was given. (Refused in a user namespace, which is fine.) */
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && !geteuid() &&
        fd_read_file("/proc/sys/fs/nr_open", 64, &most) == 0 &&
        (buf_add(&most, "", 1), !buf_failed(&most))) {
        rlim_t wanted = MIN((rlim_t)strtoull(most.data, NULL, 10), (rlim_t)ENOUGH_FILES);

        if (limit.rlim_max < wanted)
            (void)setrlimit(RLIMIT_NOFILE, &(struct rlimit){ wanted, wanted });
    }
    uint64_t files = limits_raise_open_files();
    return files ? (unsigned)MIN(files, UINT64_C(1) << 30) : 1024;
}

/*
 * A signal that our starter ignores (a shell's background job SIGINT, nohup SIGHUP, systemd
 * SIGPIPE) would be ignored by all processes that we start, guests' programs included, which cannot
 * tell why Ctrl-C or a closed pipe does not end them. It is blocked instead: that does not outlive
 * our spawns, and means the same to us.
 */
static void stop_ignoring(sigset_t *ret_ignored) {
    struct {
        uintptr_t handler;
        unsigned long flags;
        uintptr_t restorer;
        uint64_t mask;
    } action, by_default = { 0 }; /* the kernel's: the C library hides two signals that it uses
                                     itself, which can be ignored as well */
    sigset_t one;

    sigemptyset(ret_ignored);
    for (int number = 1; number <= SIGRTMAX; number++) {
        if (sys_call4(__NR_rt_sigaction, number, NULL, &action, sizeof action.mask) < 0 ||
            action.handler != (uintptr_t)SIG_IGN)
            continue;
        (void)sigaddset(ret_ignored, number);
        sigemptyset(&one);
        (void)sigaddset(&one, number);
        sigprocmask(SIG_BLOCK, &one, NULL);
        (void)sys_call4(__NR_rt_sigaction, number, &by_default, NULL, sizeof action.mask);
    }
}

static int open_signals(struct engine *engine, const sigset_t *ignored) {
    const int asked[] = { SIGINT, SIGHUP }; /* SIGTERM is `rollbox engine stop` */
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGPIPE);
    sigaddset(&set, SIGXFSZ); /* a write past RLIMIT_FSIZE is an error like any other */
    sigprocmask(SIG_BLOCK, &set, NULL);
    sigdelset(&set, SIGPIPE);
    sigdelset(&set, SIGXFSZ);
    for (size_t i = 0; i < ARRAY_SIZE(asked); i++)
        if (sigismember(ignored, asked[i]) == 1)
            sigdelset(&set, asked[i]);
    engine->server.signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (engine->server.signal_fd < 0)
        return -errno;
    return loop_add(
        engine->loop, &engine->server.signals, engine->server.signal_fd, EPOLLIN, on_signal);
}

static const char *option_or(const char *option, const char *variable) {
    const char *value = option ? option : secure_getenv(variable);

    return value && value[0] ? value : NULL;
}

/* 0, or the exit status. */
static int open_log(const struct serve_options *options) {
    const char *path = option_or(options->log, "ROLLBOX_LOG");
    int r = log_open(path, option_or(options->log_level, "ROLLBOX_LOG_LEVEL"),
        option_or(options->log_format, "ROLLBOX_LOG_FORMAT"));

    if (r == -EINVAL)
        return serve_complain("--log-level or --log-format",
            "unknown; levels are error, warn, info and debug, formats text and json");
    if (r < 0)
        return serve_complain(path, strerror(-r));
    log_at(LOG_INFO, "engine", NULL, "rollbox-engine " ROLLBOX_VERSION " starts, pid %d",
        (int)getpid());
    return 0;
}

static void make_room(struct engine *engine) {
    (void)tracking_make_room(engine);
}

/* A step of a record is written before anybody has the result. */
static void on_tally(uint64_t tally, const char *network) {
    network_step_tally(tally, network);
    result_tally(tally, network);
}

static int start_engine(struct engine *engine, const struct serve_options *options) {
    struct list *lists[] = { &engine->server.clients, &engine->profiles.all,
        &engine->profiles.copies, &engine->boxes.all, &engine->runs.all, &engine->runs.turns,
        &engine->results.all, &engine->sessions.all, &engine->outputs.streams,
        &engine->outputs.drains, &engine->zygotes.all, &engine->copies, &engine->boxes.volumes };
    sigset_t ignored;
    int r;

    r = open_log(options);
    if (r)
        return r;
    stop_ignoring(&ignored);
    record_init();
    auto_snapshot_init();
    publish_init();
    peers_init();
    for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
        list_init(lists[i]);
    for (size_t i = 0; i < ARRAY_SIZE(engine->sessions.by_name); i++)
        list_init(&engine->sessions.by_name[i]);
    for (size_t i = 0; i < ARRAY_SIZE(engine->results.by_operation); i++)
        list_init(&engine->results.by_operation[i]);
    engine->server.listen_fd = engine->server.signal_fd = engine->server.lock_fd = -EBADF;
    engine->boxes.tidy.callback = on_tidy;
    engine->hooks = (struct engine_hooks){
        .room_freed = run_schedule,
        .make_room = make_room,
        .drop_zygotes = checkpoint_drop_zygotes,
        .code_released = run_release_code,
        .layer_measured = op_measured,
    };
    engine->launchers.next_id_base =
        (uint32_t)getpid() * 61; /* engines that run at once should not meet */
    limits_settle();
    (void)umask(umask(0) & 077); /* what we make for ourselves we must be able to use */
    unsigned open_files = raise_open_files();
    /* Above the standard streams, one of which may be closed: what we open next must not be taken
     * for it. */
    do
        engine->null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    while (engine->null_fd >= 0 && engine->null_fd <= STDERR_FILENO);
    if (engine->null_fd < 0)
        return serve_complain("/dev/null", strerror(errno));
    engine->programs.init = spawn_find_program("ROLLBOX_INIT", "rollbox-init");
    engine->programs.store = spawn_find_program("ROLLBOX_STORE_PROGRAM", "rollbox-store");
    if (!engine->programs.init)
        return serve_complain("rollbox-init", "cannot be found beside the engine");
    /* It has much to do before the first plan. */
    features_identity(&engine->features);
    launcher_prestart(engine, options->expects_fixed);
    features_quick(&engine->features);
    if (engine->features.mask_problem[0])
        return serve_complain("ROLLBOX_KFEAT", engine->features.mask_problem);
    r = loop_new(&engine->loop);
    gateway_on_tally(on_tally);
    snapshot_set_sessions(&session_files_users);
    if (r == 0)
        r = open_signals(engine, &ignored);
    if (r == -ENOSPC)
        return serve_complain("starting",
            "all of this user's epoll watches are in use; end what holds them (a "
            "sandbox may), or raise fs.epoll.max_user_watches");
    if (r == 0)
        r = cgroup_root_open(&engine->features, CGROUP_LIMITS, &engine->cgroups);
    if (r < 0)
        return serve_complain("starting", strerror(-r));
    engine->results.max_fds = MIN(open_files / 8, 2048u);
    engine->files.limit = open_files;
    engine->files.most =
        open_files - engine->results.max_fds - MIN(open_files / 2, FILES_OF_ENGINE);
    uint64_t available = MIN(engine->features.memory_available_bytes, cgroup_memory_left());
    engine->runs.memory_budget =
        options->have_budget ? options->memory_budget : MAX(available / 10 * 8, (uint64_t)1);
    return 0;
}

static void finish_engine(struct engine *engine) {
    struct cgroup_root *cgroups = engine->cgroups;

    record_finish(engine);
    result_forget_all(engine);
    gateway_finish(engine);
    launcher_drop_idle(engine);
    stream_forget_all(engine);
    drain_forget_all(engine);
    while (!list_empty(&engine->profiles.all))
        profile_free(container_of(engine->profiles.all.next, struct profile, node));
    loop_run_tasks(engine->loop); /* launchers end in some */
    if (engine->server.socket_path) {
        (void)unlink(engine->server.socket_path);
        free(engine->server.socket_path);
    }
    owned_image_finish(engine);
    hoards_finish(engine);
    process_finish(engine);
    deferred_close_wait();
    many_ids_finish(engine);
    disk_upper_finish(engine);
    close_fd(&engine->server.listen_fd);
    close_fd(&engine->server.signal_fd);
    close_fd(&engine->server.lock_fd);
    close_fd(&engine->null_fd);
    if (engine->janitor.leftovers && cgroup_root_remove(cgroups) == 0)
        engine->janitor.leftovers[0] = '\0';
    engine->cgroups = cgroup_root_free(cgroups);
    janitor_finish(engine);
    free(engine->programs.init);
    free(engine->programs.store);
    engine->loop = loop_free(engine->loop);
    log_at(LOG_INFO, "engine", NULL, "has ended");
    log_close();
}

int engine_serve(const struct serve_options *options) {
    static struct engine engine;

    engine.janitor.leftovers = options->leftovers;
    engine.janitor.leftovers_size = options->leftovers_size;
    int status = start_engine(&engine, options);
    if (status)
        return status;
    if (options->socket_path)
        status = listen_on(&engine, options->socket_path);
    else
        engine.is_private = true;
    if (!status && engine.is_private && client_new(&engine, options->fd) < 0)
        status = serve_complain("--fd", "is not a socket");
    if (!status && loop_run(engine.loop) < 0)
        status = serve_complain("waiting for events", strerror(errno));
    finish_engine(&engine);
    return status;
}
