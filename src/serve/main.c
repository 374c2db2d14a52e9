/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox-serve: the HTTP server. One loop; a client of its engine like any other.
 *
 *   rollbox-serve [--listen ADDRESS:PORT|PATH]... [--tokens FILE] [--engine SOCKET]
 *                 [--host NAME]... [--insecure]
 *   rollbox-serve token create|ls|rm ...
 *
 * SIGTERM drains: no new work is taken, open requests may end within DRAIN_S, then the server
 * exits with its private engine. When the engine is lost, every request is answered with
 * engine_lost, and the server exits with status 1, for a service manager to start both again.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/confine.h"
#include "serve/server.h"
#include "sys/limits.h"

#define LISTEN_MAX 8
#define HOSTS_MAX 32
#define DEFAULT_LISTEN "127.0.0.1:7420"
#define DRAIN_S 30
#define POOL_THREADS 16u
#define CONNECTIONS_MAX 10000u

struct listener {
    struct loop_source source;
    struct server *server;
    int fd;
    bool is_local;
    const char *path; /* of a Unix socket */
};

static struct listener listeners[LISTEN_MAX];
static size_t n_listeners;
static struct loop_timer end_timer;
static int exit_status;

static int complain(const char *doing, const char *what, int error_number) {
    fprintf(stderr, "rollbox-serve: %s%s: %s\n", doing, what, strerror(error_number));
    return 1;
}

/* ---- listening ---- */

static void on_connection(struct loop_source *source, uint32_t events) {
    struct listener *listener = container_of(source, struct listener, source);
    struct server *server = listener->server;

    (void)events;
    for (int i = 0; i < 64; i++) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), on = 1;
        struct ucred peer = { 0 };
        socklen_t length = sizeof peer;

        if (fd < 0)
            return;
        if (server->http.n_connections >= server->http.max_connections) {
            close(fd);
            continue;
        }
        if (listener->is_local) {
            peer.uid = (uid_t)-1;
            (void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length);
        } else {
            (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
        }
        (void)http_accepted(&server->http, fd, listener->is_local, peer.uid);
    }
}

static int listen_local(struct listener *listener, const char *path) {
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    struct stat st;

    if (strlen(path) >= sizeof address.sun_path)
        return -ENAMETOOLONG;
    memcpy(address.sun_path, path, strlen(path) + 1);
    auto_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    /* One that a server before this has left. */
    if (lstat(path, &st) == 0 && S_ISSOCK(st.st_mode)) {
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
            return -EADDRINUSE;
        (void)unlink(path);
    }
    mode_t mask = umask(0177);
    int r = bind(fd, (struct sockaddr *)&address, sizeof address) < 0 ? -errno : 0;
    (void)umask(mask);
    if (r < 0 || listen(fd, 4096) < 0)
        return r < 0 ? r : -errno;
    listener->is_local = true;
    listener->path = path;
    listener->fd = TAKE_FD(fd);
    printf("listening on unix:%s\n", path);
    return 0;
}

static bool parse_address(const char *text, struct sockaddr_storage *ret, bool *ret_loopback) {
    const char *colon = strrchr(text, ':');
    struct sockaddr_in *v4 = (struct sockaddr_in *)ret;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)ret;
    char host[INET6_ADDRSTRLEN + 2] = "127.0.0.1", *end;
    unsigned long port = strtoul(colon ? colon + 1 : text, &end, 10);
    size_t length = colon ? (size_t)(colon - text) : 0;

    memset(ret, 0, sizeof *ret);
    if (*end || port > 65535 || length >= sizeof host)
        return false;
    if (length)
        (void)snprintf(host, sizeof host, "%.*s", (int)length, text);
    if (host[0] == '[' && host[strlen(host) - 1] == ']') {
        host[strlen(host) - 1] = '\0';
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)port);
        if (inet_pton(AF_INET6, host + 1, &v6->sin6_addr) != 1)
            return false;
        *ret_loopback = IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
        return true;
    }
    v4->sin_family = AF_INET;
    v4->sin_port = htons((uint16_t)port);
    if (inet_pton(AF_INET, host, &v4->sin_addr) != 1)
        return false;
    *ret_loopback = ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    return true;
}

static int listen_tcp(struct listener *listener, const char *text, bool insecure) {
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    bool is_loopback;
    int on = 1;

    if (!parse_address(text, &address, &is_loopback))
        return -EINVAL;
    if (!is_loopback && !insecure) {
        fprintf(stderr,
            "rollbox-serve: %s is reached from other machines, and tokens would be sent in clear: "
            "put a proxy with TLS before a loopback address, or give --insecure\n",
            text);
        return -EPERM;
    }
    auto_close int fd = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 ||
        bind(fd, (struct sockaddr *)&address,
            address.ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                          : sizeof(struct sockaddr_in)) < 0 ||
        listen(fd, 4096) < 0 || getsockname(fd, (struct sockaddr *)&address, &length) < 0)
        return -errno;
    unsigned port =
        ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                            : ((struct sockaddr_in *)&address)->sin_port);
    const char *colon = strrchr(text, ':');
    printf("listening on http://%.*s:%u\n", colon ? (int)(colon - text) : 9,
        colon ? text : "127.0.0.1", port);
    listener->fd = TAKE_FD(fd);
    return 0;
}

static int add_listener(struct server *server, const char *text, bool insecure) {
    struct listener *listener = &listeners[n_listeners];

    listener->server = server;
    listener->fd = -EBADF;
    int r = strchr(text, '/') ? listen_local(listener, text) : listen_tcp(listener, text, insecure);
    if (r < 0)
        return complain("cannot listen on ", text, -r);
    n_listeners++;
    r = loop_add(server->loop, &listener->source, listener->fd, EPOLLIN, on_connection);
    return r < 0 ? complain("cannot listen on ", text, -r) : 0;
}

/* ---- the end ---- */

static void on_end(struct loop_timer *timer) {
    (void)timer;
    for (size_t i = 0; i < n_listeners; i++)
        if (listeners[i].path)
            (void)unlink(listeners[i].path);
    /* A private engine ends with its connection, and every sandbox with it. */
    _exit(exit_status);
}

static void look_whether_drained(struct loop_timer *timer);

static void end_within(struct server *server, int64_t ms, void (*then)(struct loop_timer *)) {
    (void)loop_timer_set(server->loop, &end_timer, clock_now_ns() + ms * 1000000, then);
}

static int64_t drain_deadline_ns;
static struct server *the_server;

static void look_whether_drained(struct loop_timer *timer) {
    (void)timer;
    http_close_all(&the_server->http, true);
    bool idle = !the_server->n_exchanges && list_empty(&the_server->http.connections);
    end_within(
        the_server, 20, idle || clock_now_ns() > drain_deadline_ns ? on_end : look_whether_drained);
}

static void drain(struct server *server) {
    if (server->draining)
        return;
    server->draining = server->http.draining = true;
    for (size_t i = 0; i < n_listeners; i++)
        loop_remove(server->loop, &listeners[i].source);
    drain_deadline_ns = clock_now_ns() + (int64_t)DRAIN_S * 1000000000;
    look_whether_drained(&end_timer);
}

static struct loop_source signals;

static void on_signal(struct loop_source *source, uint32_t events) {
    struct signalfd_siginfo info;

    (void)events;
    if (read(source->fd, &info, sizeof info) == (ssize_t)sizeof info)
        drain(the_server);
}

static void on_engine(struct loop_source *source, uint32_t events) {
    struct server *server = container_of(source, struct server, engine_source);

    (void)events;
    if (rollbox_dispatch(server->engine) != -ENOTCONN || server->engine_lost)
        return;
    fprintf(stderr, "rollbox-serve: the engine is lost; its sandboxes are gone\n");
    server->engine_lost = true;
    exit_status = 1;
    loop_remove(server->loop, &server->engine_source);
    end_within(server, 200, on_end);
}

/* ---- the start ---- */

static int open_engine(struct server *server, const char *socket_path) {
    struct rollbox_engine_options options = { .size = sizeof options, .socket_path = socket_path };
    struct rollbox_error error = { .code = ROLLBOX_OK };
    auto_free char *self = realpath("/proc/self/exe", NULL);
    auto_buf struct buf path = BUF_INIT;

    /* The engine of the same build lies beside this program. */
    if (self && !socket_path && !getenv("ROLLBOX_ENGINE")) {
        buf_add(&path, self, (size_t)(strrchr(self, '/') + 1 - self));
        buf_add_text(&path, "rollbox-engine");
        if (!buf_failed(&path) && access(path.data, X_OK) == 0)
            options.engine_path = path.data;
    }
    if (rollbox_engine_open(&options, &server->engine, &error) >= 0)
        return 0;
    fprintf(stderr, "rollbox-serve: %s\n", error.message);
    return 1;
}

static int start(struct server *server, const char *tokens_path) {
    const char *socket_path = NULL;
    sigset_t set;

    for (size_t i = 0; i < n_listeners; i++)
        if (listeners[i].path)
            socket_path = listeners[i].path;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
        return complain("cannot ", "block signals", errno);
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    int r = fd < 0 ? -errno : loop_add(server->loop, &signals, fd, EPOLLIN, on_signal);
    if (r >= 0)
        r = loop_add(server->loop, &server->engine_source, rollbox_engine_fd(server->engine),
            EPOLLIN, on_engine);
    if (r < 0)
        return complain("cannot ", "watch the engine", -r);
    r = confine_files(tokens_path, socket_path);
    if (r < 0)
        return complain("cannot ", "enter Landlock", -r);
    r = pool_new(server->loop, POOL_THREADS, &server->pool);
    if (r < 0)
        return complain("cannot ", "start threads", -r);
    r = confine_server();
    if (r < 0)
        return complain("cannot ", "filter system calls", -r);
    return 0;
}

static int serve(struct server *server, const char *tokens_path) {
    if (tokens_path) {
        server->tokens.path = tokens_path;
        int r = tokens_read(&server->tokens);
        if (r < 0)
            return complain("cannot read the tokens of ", tokens_path, -r);
    }
    if (start(server, tokens_path))
        return 1;
    printf("ready\n");
    (void)fflush(stdout);
    int r = loop_run(server->loop);
    return r < 0 ? complain("", "the loop failed", -r) : 0;
}

int main(int argc, char **argv) {
    static const struct option options[] = { { "listen", 1, NULL, 'l' }, { "tokens", 1, NULL, 't' },
        { "engine", 1, NULL, 'e' }, { "host", 1, NULL, 'h' }, { "insecure", 0, NULL, 'i' },
        { "version", 0, NULL, 'v' }, { NULL, 0, NULL, 0 } };
    static struct server server;
    static const char *hosts[HOSTS_MAX + 4] = { "localhost", "127.0.0.1", "[::1]" };
    const char *listen_on[LISTEN_MAX], *tokens_path = NULL, *engine_path = NULL;
    size_t n_hosts = 3, n_listen = 0;
    bool insecure = false;
    int c;

    if (argc > 1 && !strcmp(argv[1], "token"))
        return tokens_main(argc - 1, argv + 1);
    while ((c = getopt_long(argc, argv, "", options, NULL)) >= 0) {
        if (c == 'v') {
            puts("rollbox-serve " ROLLBOX_VERSION);
            return 0;
        } else if (c == 'l' && n_listen < LISTEN_MAX) {
            listen_on[n_listen++] = optarg;
        } else if (c == 'h' && n_hosts < HOSTS_MAX) {
            hosts[n_hosts++] = optarg;
        } else if (c == 't') {
            tokens_path = optarg;
        } else if (c == 'e') {
            engine_path = optarg;
        } else if (c == 'i') {
            insecure = true;
        } else {
            fprintf(stderr, "rollbox-serve: see rollbox serve --help\n");
            return 2;
        }
    }
    (void)signal(SIGPIPE, SIG_IGN);
    (void)limits_raise_open_files();
    the_server = &server;
    list_init(&server.tenants);
    list_init(&server.plans);
    list_init(&server.leases);
    list_init(&server.operations);
    for (size_t i = 0; i < ARRAY_SIZE(server.operations_by); i++)
        list_init(&server.operations_by[i]);
    for (size_t i = 0; i < SERVER_BUCKETS; i++)
        list_init(&server.boxes[i]);
    list_init(&server.tokens.list);
    if (loop_new(&server.loop) < 0 || open_engine(&server, engine_path))
        return 1;
    server.http = (struct http_server){ .loop = server.loop,
        .user = &router_user,
        .hosts = hosts,
        .max_connections = CONNECTIONS_MAX,
        .userdata = &server };
    list_init(&server.http.connections);
    if (!n_listen)
        listen_on[n_listen++] = DEFAULT_LISTEN;
    for (size_t i = 0; i < n_listen; i++)
        if (add_listener(&server, listen_on[i], insecure))
            return 1;
    return serve(&server, tokens_path);
}
