/* SPDX-License-Identifier: Apache-2.0 */
/* Listening sockets; listen.h has the model. */
#include "serve/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"

#define LISTEN_MAX (CONFIG_LIST_MAX + 16)
#define PASSED_FIRST 3 /* SD_LISTEN_FDS_START */
#define BACKLOG 4096
#define DEFAULT_LISTEN "127.0.0.1:7420"
/* Silence after which the kernel asks whether the peer is still there, and how often. */
#define KEEPALIVE_IDLE_S 30
#define KEEPALIVE_EACH_S 10
#define KEEPALIVE_PROBES 3

struct listener {
    struct loop_source source;
    struct server *server;
    int fd;
    bool is_local;
    const char *path; /* of a Unix socket that this process has made */
};

static struct listener listeners[LISTEN_MAX];
static size_t n_listeners;

static int complain(const char *what, int error_number) {
    fprintf(stderr, "rollbox-serve: cannot listen on %s: %s\n", what, strerror(error_number));
    return 1;
}

static void set_int(int fd, int level, int option, int value) {
    (void)setsockopt(fd, level, option, &value, sizeof value);
}

/* Kept open, so that a connection can be refused when there is no other descriptor left. A
 * connection that is not accepted would wake the loop without end. */
static int spare = -EBADF;

static void keep_spare(void) {
    if (spare < 0)
        spare = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
}

/* There is no room for the connection, and nothing is read from it. A client that speaks TLS sees
 * the end alone. */
static void refuse_full(const struct server *server, int take_fd, bool is_clear) {
    static const char body[] =
        "{\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":503,"
        "\"code\":\"resource_exhausted\",\"stage\":\"request\",\"detail\":\"the server has as many "
        "connections as it may have: close some, or raise its limit of open files\"";
    auto_buf struct buf answer = BUF_INIT, text = BUF_INIT;

    buf_printf(&text, "%s,\"maximum\":%u}", body, server->http.max_connections);
    buf_printf(&answer,
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\n"
        "Retry-After: 1\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
        text.length, text.data ? text.data : "");
    if (is_clear && !buf_failed(&answer) &&
        send(take_fd, answer.data, answer.length, MSG_NOSIGNAL | MSG_DONTWAIT) > 0)
        (void)shutdown(take_fd, SHUT_WR);
    /* What has come is read: otherwise the end would be a reset, and the answer lost. */
    (void)recv(take_fd, (char[4096]){ 0 }, 4096, MSG_DONTWAIT);
    close(take_fd);
}

static int accept_or_refuse(const struct listener *listener, bool is_clear) {
    int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd >= 0 || (errno != EMFILE && errno != ENFILE) || spare < 0)
        return fd;
    close_fd(&spare);
    fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0)
        refuse_full(listener->server, fd, is_clear);
    keep_spare();
    return -EMFILE;
}

static void on_connection(struct loop_source *source, uint32_t events) {
    struct listener *listener = container_of(source, struct listener, source);
    struct server *server = listener->server;
    bool is_clear = listener->is_local || !server->tls;

    (void)events;
    keep_spare();
    for (int i = 0; i < 64; i++) {
        int fd = accept_or_refuse(listener, is_clear);
        struct ucred peer = { .uid = (uid_t)-1 };
        socklen_t length = sizeof peer;

        if (fd < 0)
            return;
        if (server->http.n_connections >= server->http.max_connections) {
            refuse_full(server, fd, is_clear);
            continue;
        }
        if (listener->is_local) {
            (void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length);
        } else {
            set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
            set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
            set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
            set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_EACH_S);
            set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES);
        }
        (void)http_accepted(&server->http, fd, listener->is_local ? NULL : server->tls,
            listener->is_local, peer.uid);
    }
}

static int add(struct listener *listener) {
    n_listeners++;
    return loop_add(
        listener->server->loop, &listener->source, listener->fd, EPOLLIN, on_connection);
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
    if (r < 0 || listen(fd, BACKLOG) < 0)
        return r < 0 ? r : -errno;
    listener->is_local = true;
    listener->path = path;
    listener->fd = TAKE_FD(fd);
    printf("listening on unix:%s\n", path);
    return 0;
}

static bool is_loopback(const struct sockaddr_storage *address) {
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;

    return address->ss_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr)
                                          : ntohl(v4->sin_addr.s_addr) >> 24 == 127;
}

static bool parse_address(const char *text, struct sockaddr_storage *ret) {
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
        return inet_pton(AF_INET6, host + 1, &v6->sin6_addr) == 1;
    }
    v4->sin_family = AF_INET;
    v4->sin_port = htons((uint16_t)port);
    return inet_pton(AF_INET, host, &v4->sin_addr) == 1;
}

/* Tokens are not sent in clear to other machines by accident. */
static int check_reach(const struct listener *listener, const char *text,
    const struct sockaddr_storage *address, bool insecure) {
    if (is_loopback(address) || insecure || listener->server->tls)
        return 0;
    fprintf(stderr,
        "rollbox-serve: %s is reached from other machines, and tokens would be sent in clear: give "
        "--tls-cert and --tls-key, or put a proxy with TLS before a loopback address, or give "
        "--insecure\n",
        text);
    return -EPERM;
}

static void announce(const struct listener *listener, const struct sockaddr_storage *address) {
    char text[INET6_ADDRSTRLEN] = "";
    bool v6 = address->ss_family == AF_INET6;
    const struct sockaddr_in *of_v4 = (const struct sockaddr_in *)address;
    const struct sockaddr_in6 *of_v6 = (const struct sockaddr_in6 *)address;

    const void *bytes = &of_v4->sin_addr;

    if (v6)
        bytes = &of_v6->sin6_addr;
    (void)inet_ntop(address->ss_family, bytes, text, sizeof text);
    printf("listening on %s://", listener->server->tls ? "https" : "http");
    printf(v6 ? "[%s]:%u\n" : "%s:%u\n", text, ntohs(of_v4->sin_port)); /* as in v6 */
}

static int listen_tcp(struct listener *listener, const char *text, bool insecure) {
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    int on = 1;

    if (!parse_address(text, &address))
        return -EINVAL;
    int r = check_reach(listener, text, &address, insecure);
    if (r < 0)
        return r;
    auto_close int fd = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 ||
        bind(fd, (struct sockaddr *)&address,
            address.ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                          : sizeof(struct sockaddr_in)) < 0 ||
        listen(fd, BACKLOG) < 0 || getsockname(fd, (struct sockaddr *)&address, &length) < 0)
        return -errno;
    announce(listener, &address);
    listener->fd = TAKE_FD(fd);
    return 0;
}

/* ---- sockets of a service manager ---- */

/* How many; they are PASSED_FIRST and those after it. */
static int n_passed(void) {
    const char *pid = getenv("LISTEN_PID"), *n = getenv("LISTEN_FDS");
    long count = pid && n && strtol(pid, NULL, 10) == getpid() ? strtol(n, NULL, 10) : 0;

    /* They are this process's, and not its engine's. */
    (void)unsetenv("LISTEN_PID");
    (void)unsetenv("LISTEN_FDS");
    (void)unsetenv("LISTEN_FDNAMES");
    return (int)MIN(MAX(count, 0L), 16L);
}

static int take_passed(struct listener *listener, int fd, bool insecure) {
    struct sockaddr_storage address = { .ss_family = AF_UNSPEC };
    socklen_t length = sizeof address;
    char what[32];
    int listens = 0, flags = fcntl(fd, F_GETFL);
    socklen_t size = sizeof listens;

    (void)snprintf(what, sizeof what, "descriptor %d", fd);
    if (flags < 0 || getsockname(fd, (struct sockaddr *)&address, &length) < 0 ||
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) < 0 ||
        fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return complain(what, errno);
    if (!listens || (address.ss_family != AF_UNIX && address.ss_family != AF_INET &&
                        address.ss_family != AF_INET6))
        return complain(what, EINVAL);
    listener->is_local = address.ss_family == AF_UNIX;
    if (!listener->is_local && check_reach(listener, what, &address, insecure) < 0)
        return complain(what, EPERM);
    if (listener->is_local)
        printf("listening on %s\n", what);
    else
        announce(listener, &address);
    listener->fd = fd;
    int r = add(listener);
    return r < 0 ? complain(what, -r) : 0;
}

int listen_start(struct server *server, const struct config *config) {
    int passed = n_passed();
    const char *const only_default[] = { DEFAULT_LISTEN, NULL };
    const char *const *texts = config->listen.n || passed ? config->listen.values : only_default;

    for (int i = 0; i < passed; i++) {
        struct listener *listener = &listeners[n_listeners];

        *listener = (struct listener){ .server = server, .fd = -EBADF };
        if (take_passed(listener, PASSED_FIRST + i, config->insecure))
            return 1;
    }
    for (size_t i = 0; texts[i]; i++) {
        struct listener *listener = &listeners[n_listeners];

        *listener = (struct listener){ .server = server, .fd = -EBADF };
        int r = strchr(texts[i], '/') ? listen_local(listener, texts[i])
                                      : listen_tcp(listener, texts[i], config->insecure);
        if (r >= 0)
            r = add(listener);
        if (r < 0)
            return complain(texts[i], -r);
    }
    return 0;
}

void listen_stop(void) {
    for (size_t i = 0; i < n_listeners; i++)
        loop_remove(listeners[i].server->loop, &listeners[i].source);
}

void listen_remove(void) {
    for (size_t i = 0; i < n_listeners; i++)
        if (listeners[i].path)
            (void)unlink(listeners[i].path);
}

const char *listen_local_path(void) {
    for (size_t i = 0; i < n_listeners; i++)
        if (listeners[i].path)
            return listeners[i].path;
    return NULL;
}
