/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's protocol: with any messages of a client, in any order, the engine neither crashes
 * nor sends nonsense.
 *
 * An input is a byte of flags and then messages {type, serial, number of descriptors, length in 16
 * bits, fields}. They go over a real connection to the real server, which has one policy prepared
 * (number 1) but a launcher that ends at once, so no sandbox is ever made: with flag 1 every run
 * fails at its start; without it all wait for memory, so that retries, cancelling and leaving meet
 * runs that are under way. The loop's tasks run, now or at the end; its descriptors and timers do
 * not: what they would do later is not under test here.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "engine/core/client.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/engine_serve.h"
#include "engine/pool/profile.h"
#include "engine/protocol.h"
#include "engine/server/connection.h"
#include "sys/cgroup.h"
#include "sys/features.h"

#define MAX_MESSAGES 64
#define SKIPPED 77 /* as meson takes it */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct engine engine;
static struct profile *profile;

static void check(bool holds) {
    if (!holds)
        abort();
}

static void start(void) {
    struct list *lists[] = { &engine.server.clients, &engine.profiles.all, &engine.boxes.all,
        &engine.runs.all, &engine.runs.turns, &engine.results.all, &engine.sessions.all,
        &engine.outputs.streams, &engine.outputs.drains, &engine.copies, &engine.profiles.copies };
    struct rollbox_error error;

    for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
        list_init(lists[i]);
    for (size_t i = 0; i < ARRAY_SIZE(engine.sessions.by_name); i++)
        list_init(&engine.sessions.by_name[i]);
    for (size_t i = 0; i < ARRAY_SIZE(engine.results.by_operation); i++)
        list_init(&engine.results.by_operation[i]);
    engine.server.listen_fd = engine.server.signal_fd = engine.server.lock_fd = -EBADF;
    engine.programs.init = "/bin/true";
    engine.files.most = 64 * (16);
    engine.results.max_fds = 16;
    engine.null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    features_quick(&engine.features);
    engine.features.cgroup_v1 = engine.features.cgroup_v2 = false;
    engine_set_operations();
    check(loop_new(&engine.loop) == 0 && engine.null_fd >= 0 &&
          cgroup_root_open(&engine.features, CGROUP_LIMITS, &engine.cgroups) == 0);
    /* The launcher may have ended before it received anything. */
    for (int tries = 0; profile_get(&engine, "{}", 2, NULL, -EBADF, &profile, &error) < 0;)
        if (++tries == 100) {
            fprintf(stderr, "no sandbox can be here: %s\n", error.message);
            _exit(SKIPPED);
        }
    check(profile->number == 1 && waitpid(profile->launcher->pid, NULL, 0) > 0);
    signal(SIGCHLD, SIG_IGN);
}

/* Everything that was answered: well-formed, of a type that answers are of. */
static void read_answers(int fd) {
    static struct wire_message message;

    while (wire_receive(fd, &message) == 1) {
        struct wire_field field;
        size_t position = 0;
        int r;

        while ((r = wire_next(message.data, message.length, &position, &field)) > 0)
            ;
        check(r == 0);
        check(message.header.type == PROTOCOL_WELCOME || message.header.type == PROTOCOL_PREPARED ||
              message.header.type == PROTOCOL_TEXT || message.header.type == PROTOCOL_RESULT ||
              message.header.type == PROTOCOL_FAILED);
        wire_message_done(&message);
    }
}

static struct client *connect_client(int *ret_fd) {
    int pair[2];

    check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0 &&
          client_new(&engine, pair[1]) == 0);
    *ret_fd = pair[0];
    return container_of(engine.server.clients.prev, struct client, node);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct wire_message message;
    struct client *clients[2];
    int fds[2];

    if (!engine.loop)
        start();
    if (!size)
        return 0;
    engine.runs.memory_budget = data[0] & 1 ? 0 : 1;
    engine.runs.n_running = data[0] & 1 ? 0 : 1;
    for (size_t i = 0; i < 2; i++) {
        clients[i] = connect_client(&fds[i]);
        clients[i]->greeted = data[0] & 2;
    }
    size_t at = 1;
    for (int n = 0; n < MAX_MESSAGES && size - at >= 5; n++) {
        size_t which = data[at] >> 7,
               length = MIN((size_t)data[at + 3] | (size_t)data[at + 4] << 8, size - at - 5);
        struct wire_header header = {
            .type = data[at] & 15, .flags = data[at] >> 6 & 1, .serial = data[at + 1]
        };
        int carried[4] = { engine.null_fd, engine.null_fd, engine.null_fd, engine.null_fd };
        auto_buf struct buf raw = BUF_INIT;

        buf_add(&raw, &header, sizeof header);
        buf_add(&raw, data + at + 5, MIN(length, (size_t)WIRE_INLINE - sizeof header));
        size_t n_fds = data[at + 2] % 5;
        at += 5 + length;
        if (!clients[which] || fd_send(fds[which], raw.data, raw.length, carried, n_fds) < 0)
            continue;
        int r = wire_receive(clients[which]->fd, &message);
        if (r == 1) {
            r = server_handle(clients[which], &message) < 0 ? -EPROTO : 1;
            wire_message_done(&message);
            if (data[0] & 4)
                loop_run_tasks(engine.loop);
        }
        read_answers(fds[which]);
        if (r <= 0) {
            client_free(clients[which]);
            clients[which] = NULL;
        }
    }
    for (size_t i = 0; i < 2; i++) {
        read_answers(fds[i]);
        if (clients[i])
            client_free(clients[i]);
        close(fds[i]);
    }
    loop_run_tasks(engine.loop);
    check(list_empty(&engine.server.clients) && list_empty(&engine.runs.turns) &&
          !engine.runs.n_queued && !engine.runs.memory_reserved && !profile->n_running);
    list_for_each(node, &engine.profiles.all)
        if (container_of(node, struct profile, node) != profile)
            profile_free(container_of(node, struct profile, node));
    check(!engine.boxes.n);
    return 0;
}
