/* SPDX-License-Identifier: Apache-2.0 */
#include "build/ssh_agent.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"

#define MAX_CONNECTIONS 32
#define CHUNK 16384

/* Two sockets, and what was read from each and not yet written to the other. */
struct connection {
    int fds[2]; /* the command's, the agent's */
    struct half {
        size_t n, written;
        bool is_at_end;
        char data[CHUNK];
    } halves[2];
};

struct ssh_agent {
    char *agent;
    char outer[64];     /* may be entered by this user alone */
    char directory[80]; /* in it */
    char variable[128]; /* with the socket in that one */
    int listener, wake;
    pthread_t thread;
    bool has_thread;
    struct connection *connections[MAX_CONNECTIONS];
};

static int connect_to(const char *path) {
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    /* An agent that takes no more connections is not waited for. */
    auto_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -errno;
    if (strlen(path) >= sizeof address.sun_path)
        return -ENAMETOOLONG;
    memcpy(address.sun_path, path, strlen(path) + 1);
    if (connect(fd, (const struct sockaddr *)&address, sizeof address) < 0)
        return -errno;
    return TAKE_FD(fd);
}

static struct connection *connection_free(struct connection *connection) {
    if (!connection)
        return NULL;
    close_fd(&connection->fds[0]);
    close_fd(&connection->fds[1]);
    explicit_bzero(connection, sizeof *connection);
    free(connection);
    return NULL;
}

/* A connection that is one too many, or that the agent does not take, ends at once. */
static void accept_one(struct ssh_agent *agent) {
    auto_close int fd = accept4(agent->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    size_t i = 0;

    while (i < MAX_CONNECTIONS && agent->connections[i])
        i++;
    if (fd < 0 || i == MAX_CONNECTIONS)
        return;
    auto_close int to = connect_to(agent->agent);
    struct connection *connection = to < 0 ? NULL : calloc(1, sizeof *connection);
    if (!connection)
        return;
    connection->fds[0] = TAKE_FD(fd);
    connection->fds[1] = TAKE_FD(to);
    agent->connections[i] = connection;
}

/* Moves bytes from one side to the other, without waiting. False: the connection has ended. */
static bool move(struct connection *connection, size_t side) {
    struct half *half = &connection->halves[side];
    int from = connection->fds[side], to = connection->fds[!side];

    if (!half->n && !half->is_at_end) {
        ssize_t n = recv(from, half->data, sizeof half->data, MSG_DONTWAIT);

        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        half->n = (size_t)n;
        half->written = 0;
        half->is_at_end = n == 0;
        if (n == 0)
            (void)shutdown(to, SHUT_WR);
    }
    while (half->written < half->n) {
        ssize_t n = send(
            to, half->data + half->written, half->n - half->written, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        half->written += (size_t)n;
    }
    half->n = 0;
    return !(connection->halves[0].is_at_end && connection->halves[1].is_at_end);
}

/* Nobody is left to read what would come. */
static bool is_gone(const struct connection *connection, const struct pollfd *polled) {
    return (polled[0].revents & (POLLHUP | POLLERR) && connection->halves[0].is_at_end) ||
           (polled[1].revents & (POLLHUP | POLLERR) && connection->halves[1].is_at_end);
}

static short wanted(const struct connection *connection, size_t side) {
    const struct half *in = &connection->halves[side], *out = &connection->halves[!side];

    return (short)((!in->n && !in->is_at_end ? POLLIN : 0) | (out->n ? POLLOUT : 0));
}

static void *serve(void *context) {
    struct ssh_agent *agent = context;

    for (;;) {
        struct pollfd polled[2 + 2 * MAX_CONNECTIONS] = { { agent->wake, POLLIN, 0 },
            { agent->listener, POLLIN, 0 } };
        struct connection *of[2 + 2 * MAX_CONNECTIONS] = { NULL };
        nfds_t n = 2;

        for (size_t i = 0; i < MAX_CONNECTIONS; i++)
            for (size_t side = 0; agent->connections[i] && side < 2; side++) {
                of[n] = agent->connections[i];
                polled[n++] = (struct pollfd){ agent->connections[i]->fds[side],
                    wanted(agent->connections[i], side), 0 };
            }
        if (poll(polled, n, -1) < 0 && errno != EINTR)
            return NULL;
        if (polled[0].revents)
            return NULL;
        if (polled[1].revents)
            accept_one(agent);
        for (nfds_t k = 2; k < n; k += 2)
            if ((polled[k].revents || polled[k + 1].revents) &&
                (!(move(of[k], 0) && move(of[k], 1)) || is_gone(of[k], &polled[k])))
                for (size_t i = 0; i < MAX_CONNECTIONS; i++)
                    if (agent->connections[i] == of[k])
                        agent->connections[i] = connection_free(of[k]);
    }
}

static int listen_at(struct ssh_agent *agent) {
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    const char *directory = getenv("TMPDIR");

    /* A socket's path is short. */
    if (!directory || directory[0] != '/' || strlen(directory) > 30)
        directory = "/tmp";
    snprintf(agent->outer, sizeof agent->outer, "%s/rollbox-ssh.XXXXXX", directory);
    if (!mkdtemp(agent->outer)) {
        agent->outer[0] = '\0';
        return -errno;
    }
    snprintf(agent->directory, sizeof agent->directory, "%s/a", agent->outer);
    snprintf(address.sun_path, sizeof address.sun_path, "%s/agent", agent->directory);
    snprintf(agent->variable, sizeof agent->variable, "SSH_AUTH_SOCK=%s", address.sun_path);
    /* The umask would take the rights of the sandbox's users. */
    if (mkdir(agent->directory, 0755) < 0 || chmod(agent->directory, 0755) < 0)
        return -errno;
    agent->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (agent->listener < 0 ||
        bind(agent->listener, (const struct sockaddr *)&address, sizeof address) < 0 ||
        chmod(address.sun_path, 0666) < 0 || listen(agent->listener, MAX_CONNECTIONS) < 0)
        return -errno;
    agent->wake = eventfd(0, EFD_CLOEXEC);
    return agent->wake < 0 ? -errno : 0;
}

int ssh_agent_start(const char *path, struct ssh_agent **ret_agent, struct rollbox_error *error) {
    struct ssh_agent *agent = calloc(1, sizeof *agent);
    auto_close int probe = connect_to(path);

    if (probe < 0) {
        free(agent);
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, -probe, "build",
            "no SSH agent answers at %.300s: %s", path, strerror(-probe));
    }
    if (!agent || !(agent->agent = strdup(path))) {
        free(agent);
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "build", "out of memory");
    }
    agent->listener = agent->wake = -EBADF;
    int r = listen_at(agent);
    if (r == 0)
        r = -pthread_create(&agent->thread, NULL, serve, agent);
    if (r < 0) {
        ssh_agent_stop(agent);
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "build",
            "cannot make a socket for the SSH agent: %s", strerror(-r));
    }
    agent->has_thread = true;
    *ret_agent = agent;
    return 0;
}

struct ssh_agent *ssh_agent_stop(struct ssh_agent *agent) {
    char path[128];

    if (!agent)
        return NULL;
    if (agent->has_thread) {
        (void)eventfd_write(agent->wake, 1);
        pthread_join(agent->thread, NULL);
    }
    for (size_t i = 0; i < MAX_CONNECTIONS; i++)
        connection_free(agent->connections[i]);
    close_fd(&agent->listener);
    close_fd(&agent->wake);
    if (agent->outer[0]) {
        snprintf(path, sizeof path, "%s/agent", agent->directory);
        (void)unlink(path);
        (void)rmdir(agent->directory);
        (void)rmdir(agent->outer);
    }
    free(agent->agent);
    free(agent);
    return NULL;
}

const char *ssh_agent_directory(const struct ssh_agent *agent) {
    return agent->directory;
}

const char *ssh_agent_variable(const struct ssh_agent *agent) {
    return agent->variable;
}
