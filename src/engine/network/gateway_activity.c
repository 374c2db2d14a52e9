/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/network/gateway_activity.h"

#include <errno.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"

#define BYTES (NET_ACTIVITY_SLOTS * sizeof(struct net_activity))
#define MAX_SOCKETS 16 /* to look at; of more, the gateway is asked */

void gateway_activity_init(struct gateway_activity *activity) {
    auto_close int fd = memfd_create("rollbox-activity", MFD_CLOEXEC);
    void *at = MAP_FAILED;

    activity->fd = -EBADF;
    if (fd >= 0 && ftruncate(fd, (off_t)BYTES) == 0)
        at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return;
    activity->slots = at;
    activity->fd = TAKE_FD(fd);
}

void gateway_activity_done(struct gateway_activity *activity) {
    if (activity->slots)
        munmap(activity->slots, BYTES);
    activity->slots = NULL;
    close_fd(&activity->fd);
}

void gateway_activity_reset(struct gateway_activity *activity) {
    for (size_t i = 0; activity->slots && i < NET_ACTIVITY_SLOTS; i++)
        if (activity->used[i])
            atomic_store(&activity->slots[i].connections, 0);
}

int gateway_activity_take(struct gateway_activity *activity) {
    for (unsigned i = 0; activity->slots && i < NET_ACTIVITY_SLOTS; i++) {
        unsigned slot = (activity->next + i) % NET_ACTIVITY_SLOTS;

        if (activity->used[slot])
            continue;
        activity->used[slot] = true;
        activity->next = slot + 1;
        atomic_store(&activity->slots[slot].connections, 0);
        return (int)slot;
    }
    return -1;
}

void gateway_activity_release(struct gateway_activity *activity, int slot) {
    if (slot >= 0)
        activity->used[slot] = false;
}

uint64_t gateway_activity_turns(const struct gateway_activity *activity, int slot) {
    return slot < 0 ? 0 : atomic_load(&activity->slots[slot].turns);
}

bool gateway_activity_is_quiet(const struct gateway_activity *activity, int slot, uint64_t turns,
    const int *fds, size_t n_fds) {
    struct pollfd sockets[MAX_SOCKETS];

    if (slot < 0 || n_fds > MAX_SOCKETS)
        return false;
    for (size_t i = 0; i < n_fds; i++)
        sockets[i] = (struct pollfd){ .fd = fds[i], .events = POLLIN };
    /* The sockets first: the gateway counts a connection before it takes it from them. */
    if (poll(sockets, n_fds, 0) != 0)
        return false;
    return atomic_load(&activity->slots[slot].turns) == turns &&
           atomic_load(&activity->slots[slot].connections) == 0;
}
