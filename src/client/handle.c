/* SPDX-License-Identifier: Apache-2.0 */
/* Handles of engines: opening and closing them, and what forks of this process do to them. client.h
 * has the model. */
#include "client/client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "engine/protocol.h"
#include "sys/syscalls.h"
#include "sys/trust.h"

#define CONNECT_TIMEOUT_S 10
#define CLOSE_TIMEOUT_MS 10000

/* All handles of this process, for the fork handlers. Taken before any handle's own lock. */
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct list registry = LIST_INIT(registry);
static bool forks_handled;

ROLLBOX_PUBLIC const char *rollbox_version(void) {
    return ROLLBOX_VERSION;
}

/* ---- fork ---- */

static void close_descriptors(struct rollbox_engine *engine) {
    close_fd(&engine->socket);
    close_fd(&engine->wake);
    close_fd(&engine->epoll);
    close_fd(&engine->notify);
    close_fd(&engine->pidfd);
}

static void before_fork(void) {
    pthread_mutex_lock(&registry_lock);
    list_for_each(node, &registry)
        pthread_mutex_lock(&container_of(node, struct rollbox_engine, of_registry)->lock);
}

static void after_fork(bool child) {
    list_for_each(node, &registry) {
        struct rollbox_engine *engine = container_of(node, struct rollbox_engine, of_registry);

        if (child)
            close_descriptors(engine);
        pthread_mutex_unlock(&engine->lock);
    }
    if (child)
        list_init(&registry);
    pthread_mutex_unlock(&registry_lock);
}

static void after_fork_in_parent(void) {
    after_fork(false);
}

static void after_fork_in_child(void) {
    after_fork(true);
}

/* ---- opening and closing ---- */

static struct rollbox_engine *free_engine(struct rollbox_engine *engine) {
    close_descriptors(engine);
    for (size_t i = 0; i < CONNECTION_PLAN_BUCKETS; i++)
        for (struct rollbox_plan *plan = engine->plans[i], *next; plan; plan = next) {
            next = plan->next;
            policy_api_free_plan(plan);
        }
    pthread_mutex_destroy(&engine->lock);
    pthread_cond_destroy(&engine->quiet);
    free(engine->buckets);
    free(engine->path);
    free(engine);
    return NULL;
}

static int say_hello(struct rollbox_engine *engine, struct rollbox_error *error) {
    auto_buf struct buf hello = BUF_INIT;

    wire_begin(&hello, PROTOCOL_HELLO, 0);
    wire_add_u64(&hello, TAG_VERSION, PROTOCOL_VERSION);
    int r = connection_enter(engine, &engine->hello, error);
    return r < 0 ? r : connection_send(engine, &hello, engine->hello.serial, NULL, 0, error);
}

int handle_new(int take_socket, pid_t pid, int take_pidfd, const char *path,
    struct rollbox_engine **ret_engine, struct rollbox_error *error) {
    struct rollbox_engine *engine = calloc(1, sizeof *engine);

    if (!engine) {
        close_fd(&take_socket);
        close_fd(&take_pidfd);
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "connect", "out of memory");
    }
    engine->owner = getpid();
    engine->socket = take_socket;
    engine->pidfd = take_pidfd;
    engine->private_engine = take_pidfd >= 0;
    engine->pid = pid;
    engine->epoll = engine->notify = -EBADF;
    list_init(&engine->of_registry);
    list_init(&engine->waiters);
    list_init(&engine->runs);
    list_init(&engine->ended);
    list_init(&engine->queued);
    pthread_mutex_init(&engine->lock, NULL);
    pthread_cond_init(&engine->quiet, NULL);
    engine->path = strdup(path);
    engine->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = engine->wake < 0 ? -errno : 0;
    if (!engine->path)
        r = -ENOMEM;
    if (r < 0) {
        free_engine(engine);
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_INTERNAL), -r, "connect",
            "cannot make the engine's handle: %s", strerror(-r));
    }
    r = say_hello(engine, error);
    /* If a private engine has ended already, the first call that waits for an answer reports it,
     * with the cause if it is known by then. */
    if (r < 0 && !(r == -ENOTCONN && engine->private_engine)) {
        free_engine(engine);
        return r;
    }
    *ret_engine = engine;
    return 0;
}

/* Checked before anything is sent, because the engine sees all data of each run and its answers are
 * trusted. The kernel reports the process that began to listen on the socket. The path is checked
 * as well, because a user who can replace the socket could pose as the engine later. */
static int check_server(
    const struct trust *trust, const char *path, uid_t uid, struct rollbox_error *error) {
    if (!trust_user(trust, uid))
        return error_set(error, ROLLBOX_ERR_ENGINE_UNTRUSTED, EACCES, "connect",
            "%s is served by user %u, which is neither this user nor root: nothing was sent; start "
            "an engine of your own, or set "
            "ROLLBOX_TRUST_UID=%u if you trust that user",
            path, (unsigned)uid, (unsigned)uid);
    return trust_path(trust, path, error);
}

int handle_connect(const char *path, int *ret_fd, pid_t *ret_pid, struct rollbox_error *error) {
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    struct ucred peer = { 0 };
    struct trust trust;
    socklen_t length = sizeof peer;

    if (!path[0] || strlen(path) >= sizeof address.sun_path)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, ENAMETOOLONG, "connect",
            "the socket path has %zu bytes; 1 to %zu fit", strlen(path),
            sizeof address.sun_path - 1);
    memcpy(address.sun_path, path, strlen(path) + 1);
    if (trust_read(&trust, error) < 0)
        return -EINVAL;
    auto_close int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return error_set(error, error_code_of(errno, ROLLBOX_ERR_INTERNAL), errno, "connect",
            "cannot make a socket: %s", strerror(errno));
    /* An engine that hangs must not hang us: its queue of connections may be full. */
    struct timeval patience = { .tv_sec = CONNECT_TIMEOUT_S };
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    int r;
    do
        r = connect(fd, (struct sockaddr *)&address, sizeof address) < 0 ? -errno : 0;
    while (r == -EINTR);
    if (r == -ENOENT || r == -ECONNREFUSED)
        return error_set(error, ROLLBOX_ERR_ENGINE_LOST, -r, "connect",
            "no engine serves %s; start one with: rollbox engine start --background --socket %s",
            path, path);
    if (r == -EPROTOTYPE)
        return error_set(error, ROLLBOX_ERR_PROTOCOL, -r, "connect",
            "the server at %s is not a rollbox-engine", path);
    if (r < 0)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_ENGINE_LOST), -r, "connect",
            "cannot connect to %s: %s", path, strerror(-r));
    if (fcntl(fd, F_SETFL, O_NONBLOCK) < 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0)
        return error_set(error, ROLLBOX_ERR_INTERNAL, errno, "connect",
            "cannot prepare the socket: %s", strerror(errno));
    r = check_server(&trust, path, peer.uid, error);
    if (r < 0)
        return r;
    *ret_fd = TAKE_FD(fd);
    *ret_pid = peer.pid;
    return 0;
}

static int join_shared(
    const char *path, struct rollbox_engine **ret_engine, struct rollbox_error *error) {
    int fd;
    pid_t pid;
    int r = handle_connect(path, &fd, &pid, error);

    return r < 0 ? r : handle_new(fd, pid, -EBADF, path, ret_engine, error);
}

/* A handle of a started or shared engine; if it cannot be made, a private one ends. */
static int hold_spawned(
    struct spawned *take, struct rollbox_engine **ret_engine, struct rollbox_error *error) {
    auto_free char *path = take->path;
    int r = handle_new(
        take->socket, take->pid, take->pidfd, path ? path : "rollbox-engine", ret_engine, error);

    if (r < 0 && take->pidfd >= 0) {
        kill(take->pid, SIGKILL);
        while (waitpid(take->pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    return r;
}

static int start_private(
    const char *engine_path, struct rollbox_engine **ret_engine, struct rollbox_error *error) {
    struct spawned spawned;
    int r = spawn_engine(engine_path, &spawned, error);

    return r < 0 ? r : hold_spawned(&spawned, ret_engine, error);
}

/* So that a fork shares nothing. */
static int watch_forks(struct rollbox_error *error) {
    pthread_mutex_lock(&registry_lock);
    int problem =
        forks_handled ? 0 : pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    forks_handled = problem == 0;
    pthread_mutex_unlock(&registry_lock);
    if (problem)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, problem, "connect",
            "cannot register fork handlers: %s", strerror(problem));
    return 0;
}

ROLLBOX_PUBLIC int rollbox_engine_open(const struct rollbox_engine_options *options,
    struct rollbox_engine **ret_engine, struct rollbox_error *error) {
    const char *socket_path = options ? options->socket_path : NULL;
    struct rollbox_engine *engine = NULL;

    if (!ret_engine || (options && options->size != sizeof *options))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "options.size is %zu, not %zu: set it to sizeof(struct rollbox_engine_options)",
            options ? options->size : 0, sizeof *options);
    int r = watch_forks(error);
    if (r < 0)
        return r;
    /* A fork of the process must not fall between the making of the socket and its entry here: the
     * child would keep the engine alive. */
    pthread_mutex_lock(&registry_lock);
    r = socket_path ? join_shared(socket_path, &engine, error)
                    : start_private(options ? options->engine_path : NULL, &engine, error);
    if (r >= 0)
        list_add_tail(&registry, &engine->of_registry);
    pthread_mutex_unlock(&registry_lock);
    if (r < 0)
        return r;
    /* HELLO is on its way; a private engine, started from a program we found, may answer it along
     * with the first request. */
    if (socket_path) {
        r = connection_await_welcome(engine, error);
        if (r < 0) {
            rollbox_engine_close(engine);
            return r;
        }
    }
    *ret_engine = engine;
    return 0;
}

int handle_adopt(
    struct spawned *take, struct rollbox_engine **ret_engine, struct rollbox_error *error) {
    struct rollbox_engine *engine = NULL;
    int r = watch_forks(error);

    if (r < 0) {
        close_fd(&take->socket);
        close_fd(&take->pidfd);
        return r; /* it ends when it notices */
    }
    pthread_mutex_lock(&registry_lock);
    r = hold_spawned(take, &engine, error);
    if (r >= 0)
        list_add_tail(&registry, &engine->of_registry);
    pthread_mutex_unlock(&registry_lock);
    if (r >= 0)
        *ret_engine = engine;
    return r;
}

static void reap_engine(struct rollbox_engine *engine) {
    struct pollfd poller = { .fd = engine->pidfd, .events = POLLIN };
    int64_t deadline = clock_now_ns() + (int64_t)CLOSE_TIMEOUT_MS * 1000000;
    int n;

    do {
        int64_t left_ms = (deadline - clock_now_ns()) / 1000000;

        n = poll(&poller, 1, (int)MAX(left_ms, (int64_t)0));
    } while (n < 0 && errno == EINTR);
    /* It hangs. Its death takes its sandboxes along. */
    if (n <= 0)
        (void)sys_pidfd_send_signal(engine->pidfd, SIGKILL, NULL, 0);
    /* The host program may have reaped it, or ignore SIGCHLD: ECHILD. */
    while (waitid(P_PIDFD, (id_t)engine->pidfd, &(siginfo_t){ 0 }, WEXITED) < 0 && errno == EINTR)
        ;
}

ROLLBOX_PUBLIC struct rollbox_engine *rollbox_engine_close(struct rollbox_engine *engine) {
    struct rollbox_error error;
    bool ours;

    if (!engine)
        return NULL;
    ours = engine->owner == getpid();
    if (ours) {
        pthread_mutex_lock(&registry_lock);
        list_remove(&engine->of_registry);
        pthread_mutex_unlock(&registry_lock);
        pthread_mutex_lock(&engine->lock);
        error_set(&error, ROLLBOX_ERR_ENGINE_LOST, ESHUTDOWN, "run",
            "the engine's handle was closed while the run was under way");
        connection_lose(engine, &error);
        close_fd(&engine->socket);
        pthread_mutex_unlock(&engine->lock);
        if (engine->private_engine)
            reap_engine(engine);
    }
    list_for_each(node, &engine->runs) {
        struct rollbox_run *run = container_of(node, struct rollbox_run, of_engine);

        list_remove(&run->of_engine);
        list_remove(&run->of_ended);
        run->engine = NULL;
        if (!run->own_isolation)
            run->isolation = NULL;
    }
    return free_engine(engine);
}

ROLLBOX_PUBLIC int rollbox_engine_pid(struct rollbox_engine *engine) {
    int r = connection_check_owner(engine->owner, NULL);

    if (r < 0)
        return r;
    pthread_mutex_lock(&engine->lock);
    r = (int)engine->pid;
    pthread_mutex_unlock(&engine->lock);
    return r;
}
