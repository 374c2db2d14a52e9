/* SPDX-License-Identifier: Apache-2.0 */
#include "egress/box.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "egress/activity.h"
#include "egress/bucket.h"
#include "egress/connection.h"
#include "egress/dns_server.h"
#include "egress/log.h"
#include "egress/tally.h"
#include "egress/udp_flow.h"
#include "net/dns.h"

#define ACCEPTS_PER_TURN 4
#define ACCEPTS_PER_SECOND 2000
#define ACCEPTS_BURST 512
#define DRAIN_MAX 512 /* of one listener, at the end of a tally */
#define REST_MS 5
#define MS 1000000ll

static void on_listener(struct loop_source *source, uint32_t events);

/* --- rules --- */

static struct rules *rules_release(struct rules *rules) {
    if (rules && !--rules->users) {
        list_remove(&rules->node);
        policy_free(rules->policy);
        free(rules->text);
        free(rules);
    }
    return NULL;
}

static int rules_get(struct egress *egress, const char *text, struct rules **ret_rules) {
    list_for_each(node, &egress->rules) {
        struct rules *rules = container_of(node, struct rules, node);

        if (strcmp(rules->text, text) == 0) {
            rules->users++;
            *ret_rules = rules;
            return 0;
        }
    }
    struct policy_problems problems = { 0 };
    auto_free struct rules *rules = calloc(1, sizeof *rules);
    auto_free char *copy = strdup(text);
    if (!rules || !copy)
        return -ENOMEM;
    int r = policy_parse(text, strlen(text), &rules->policy, &problems);
    policy_problems_done(&problems);
    if (r < 0)
        return r;
    rules->text = TAKE_PTR(copy);
    rules->users = 1;
    list_add_tail(&egress->rules, &rules->node);
    *ret_rules = TAKE_PTR(rules);
    return 0;
}

/* --- accepting --- */

static void set_listening(struct box *box, bool on) {
    for (size_t i = 0; i < box->n_listeners; i++)
        if (!box->listeners[i].is_udp)
            (void)loop_modify(box->egress->loop, &box->listeners[i].source, on ? EPOLLIN : 0u);
}

static void end_rest(struct loop_timer *timer) {
    set_listening(container_of(timer, struct box, accept_timer), true);
}

/* With no descriptor left a connection would wait for ever, and the loop would spin. */
static void refuse_without_descriptor(struct listener *listener) {
    struct egress *egress = listener->box->egress;
    const struct linger reset = { 1, 0 };

    close_fd(&egress->spare_fd);
    int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        close(fd);
        tally_refusal(listener->box, "", listener->port, NET_WHY_GATEWAY);
    }
    egress->spare_fd = fcntl(egress->engine_fd, F_DUPFD_CLOEXEC, 0);
}

/* False: nothing waits. */
static bool accept_one(struct listener *listener) {
    struct sockaddr_storage own;
    socklen_t length = sizeof own;
    struct address address;
    uint16_t port = 0;
    int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
        refuse_without_descriptor(listener);
        return true;
    }
    if (fd < 0)
        return errno == ECONNABORTED || errno == EINTR;
    if (getsockname(fd, (void *)&own, &length) == 0)
        (void)address_of_socket(&own, &address, &port);
    if (port == DNS_PORT)
        dns_stream_start(listener->box, fd);
    else
        connection_start(listener->box, fd);
    return true;
}

static void on_tcp(struct listener *listener) {
    struct box *box = listener->box;

    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        if (!bucket_take(&box->accepts, ACCEPTS_PER_SECOND, ACCEPTS_BURST, 1)) {
            if (loop_timer_set(box->egress->loop, &box->accept_timer, clock_now_ns() + REST_MS * MS,
                    end_rest) == 0)
                set_listening(box, false);
            return;
        }
        if (!accept_one(listener))
            return;
    }
}

static void on_listener(struct loop_source *source, uint32_t events) {
    struct listener *listener = container_of(source, struct listener, source);

    (void)events;
    activity_touch(listener->box);
    if (!listener->is_udp)
        on_tcp(listener);
    else if (listener->port == DNS_PORT)
        dns_server_read(listener);
    else
        udp_flow_read(listener);
}

void box_drain(struct box *box) {
    activity_touch(box);
    for (size_t i = 0; i < box->n_listeners; i++) {
        struct listener *listener = &box->listeners[i];

        for (unsigned n = 0; !listener->is_udp && n < DRAIN_MAX; n++)
            if (!accept_one(listener))
                break;
    }
    list_for_each(node, &box->connections)
        connection_look(container_of(node, struct connection, node));
}

/* --- opening and closing --- */

static int add_listener(struct box *box, int *fd) {
    struct listener *listener = &box->listeners[box->n_listeners];
    struct sockaddr_storage own;
    struct address address;
    socklen_t length = sizeof own;
    int type, accepts = 0;
    socklen_t size = sizeof type;

    if (getsockopt(*fd, SOL_SOCKET, SO_TYPE, &type, &size) < 0 ||
        getsockname(*fd, (void *)&own, &length) < 0)
        return -errno;
    if (address_of_socket(&own, &address, &listener->port) < 0)
        return -EINVAL;
    listener->is_udp = type == SOCK_DGRAM;
    size = sizeof accepts;
    if (!listener->is_udp &&
        (getsockopt(*fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &size) < 0 || !accepts))
        return -EINVAL;
    if (fcntl(*fd, F_SETFL, O_RDWR | O_NONBLOCK) < 0)
        return -errno;
    listener->box = box;
    int r = loop_add(box->egress->loop, &listener->source, *fd, EPOLLIN, on_listener);
    if (r < 0)
        return r;
    listener->fd = TAKE_FD(*fd);
    box->n_listeners++;
    return 0;
}

/* Writing to anything but a regular file might block the loop. */
static int take_file(int *fd, int *ret_fd) {
    struct stat status;

    if (fstat(*fd, &status) < 0 || !S_ISREG(status.st_mode))
        return -EINVAL;
    *ret_fd = TAKE_FD(*fd);
    return 0;
}

static int take_recording(struct box *box, int fd) {
    size_t length = 0;
    void *data = NULL;
    int r = fd_map_memory_file(fd, RECORDING_MAX_BYTES, &data, &length);

    if (r < 0 || !data)
        return r < 0 ? r : -EBADMSG;
    r = recording_read(data, length, &box->tape.recording);
    munmap(data, length);
    return r;
}

/* The files are the last descriptors. */
static int take_files(
    struct box *box, int *fds, size_t *n_fds, unsigned files, const char **ret_why) {
    int r = 0, record = -EBADF;

    *ret_why = "the recording to answer from cannot be read";
    if (files & BOX_REPLAY && *n_fds)
        r = take_recording(box, fds[--*n_fds]);
    if (r < 0)
        return r;
    *ret_why = "the file to record to is not a regular file";
    if (files & BOX_RECORD && *n_fds)
        r = take_file(&fds[--*n_fds], &record);
    if (r < 0)
        return r;
    recorder_init(&box->tape.recorder, record);
    *ret_why = "the log is not a regular file";
    if (files & BOX_LOG_FILE && *n_fds)
        r = take_file(&fds[--*n_fds], &box->log.file);
    if (r < 0)
        return r;
    return files & BOX_LOG && *n_fds ? take_file(&fds[--*n_fds], &box->log.fd) : 0;
}

static int load_names(struct box *box, const json_t *names) {
    size_t i;
    json_t *pair;

    json_array_foreach((json_t *)(uintptr_t)names, i, pair) {
        const char *text = json_string_value(json_array_get(pair, 0));
        const char *name = json_string_value(json_array_get(pair, 1));
        struct address address;

        if (!text || !name || address_parse(text, &address) < 0 || !address_is_v4(&address))
            return -EINVAL;
        int r = names_load(&box->names, name, address_v4(&address));
        if (r < 0)
            return r;
    }
    return names_add_rules(&box->names, &box->rules->policy->network);
}

struct box *box_find(struct egress *egress, const char *id) {
    list_for_each(node, &egress->boxes) {
        struct box *box = container_of(node, struct box, node);

        if (strcmp(box->id, id) == 0)
            return box;
    }
    return NULL;
}

static int fill(struct box *box, const char *policy, const json_t *names, int *fds, size_t n_fds,
    unsigned files, const char **ret_why) {
    *ret_why = "the rules cannot be read";
    int r = rules_get(box->egress, policy, &box->rules);
    if (r < 0)
        return r;
    *ret_why = "the table of names cannot be read";
    r = load_names(box, names);
    if (r < 0)
        return r;
    r = take_files(box, fds, &n_fds, files, ret_why);
    if (r < 0)
        return r;
    *ret_why = "a listener cannot be used";
    if (n_fds > BOX_MAX_LISTENERS)
        return -E2BIG;
    box->listeners = n_fds ? calloc(n_fds, sizeof *box->listeners) : NULL;
    if (n_fds && !box->listeners)
        return -ENOMEM;
    for (size_t i = 0; i < n_fds && r == 0; i++)
        r = add_listener(box, &fds[i]);
    return r;
}

int box_open(struct egress *egress, const char *id, const char *policy, const json_t *names,
    int *fds, size_t n_fds, unsigned files, const char **ret_why) {
    *ret_why = "there is a sandbox of that name";
    if (box_find(egress, id))
        return -EEXIST;
    struct box *box = calloc(1, sizeof *box);
    *ret_why = "out of memory";
    if (!box)
        return -ENOMEM;
    box->egress = egress;
    box->log.fd = box->log.file = box->tape.recorder.fd = -EBADF;
    box->turn.loop = egress->loop;
    box->turn.epoll = -EBADF;
    list_init(&box->node);
    list_init(&box->connections);
    list_init(&box->flows);
    list_init(&box->dns_streams);
    list_init(&box->tallies);
    box->id = strdup(id);
    int r = box->id ? fill(box, policy, names, fds, n_fds, files, ret_why) : -ENOMEM;
    if (r < 0) {
        box_stop(box);
        box_free(box);
        return r;
    }
    list_add_tail(&egress->boxes, &box->node);
    return 0;
}

int box_set_rules(struct box *box, const char *policy, const char **ret_why) {
    struct rules *rules;

    *ret_why = "the rules cannot be read";
    int r = rules_get(box->egress, policy, &rules);
    if (r == 0)
        r = names_add_rules(&box->names, &rules->policy->network);
    if (r < 0)
        return r;
    struct rules *before = box->rules;
    box->rules = rules;
    list_for_each(node, &box->connections)
        connection_check_rules(
            container_of(node, struct connection, node), &before->policy->network);
    udp_flow_check_rules(box, &before->policy->network);
    rules_release(before);
    return 0;
}

void box_tally(struct box *box) {
    list_for_each(node, &box->connections)
        connection_tally(container_of(node, struct connection, node));
    udp_flow_tally(box);
}

void box_stop(struct box *box) {
    struct loop *loop = box->egress->loop;

    connection_end_all(box);
    udp_flow_end_all(box);
    dns_stream_end_all(box);
    for (size_t i = 0; i < box->n_listeners; i++) {
        loop_remove(loop, &box->listeners[i].source);
        close_fd(&box->listeners[i].fd);
    }
    box->n_listeners = 0;
    loop_timer_clear(loop, &box->accept_timer);
    loop_timer_clear(loop, &box->query_timer);
    loop_timer_clear(loop, &box->rate_timer);
    if (box->rules)
        log_done(box);
    close_fd(&box->log.fd);
    close_fd(&box->log.file);
}

struct box *box_free(struct box *box) {
    list_remove(&box->node);
    while (!list_empty(&box->tallies))
        tally_free(container_of(box->tallies.next, struct tally, node));
    tally_done(&box->totals);
    recorder_done(&box->tape.recorder);
    recording_free(box->tape.recording);
    names_release(&box->names);
    json_decref(box->peers);
    rules_release(box->rules);
    free(box->listeners);
    free(box->id);
    free(box);
    return NULL;
}
