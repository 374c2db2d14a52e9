/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of a transfer, and the directories that it has on its way down. transfer.h has the
 * model. */
#include "base/transfer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/cleanup.h"

void transfer_init(struct transfer *transfer, int socket, int timeout_ms) {
    transfer->socket = socket;
    transfer->timeout_ms = timeout_ms;
    transfer->root = transfer->file = -EBADF;
    transfer->target.parent = transfer->target.into = -EBADF;
    for (unsigned i = 0; i < TRANSFER_OPEN_MAX; i++)
        transfer->stack.fds[i] = -EBADF;
}

/* ---- messages ---- */

bool transfer_is_name(const char *name) {
    return name[0] && strcmp(name, ".") && strcmp(name, "..") && !strchr(name, '/') &&
           strlen(name) < TRANSFER_NAME_MAX;
}

static bool is_text(const char *data, size_t length) {
    return length && length <= TRANSFER_TEXT_MAX && memchr(data, '\0', length) == data + length - 1;
}

/* The data that each type of message may have. */
static bool is_sound(const struct transfer_message *m) {
    const struct transfer_record *r = &m->record;
    bool named = *m->name, component = transfer_is_name(m->name);

    switch ((enum transfer_type)r->type) {
    case TRANSFER_READ:
    case TRANSFER_LIST:
    case TRANSFER_STAT:
    case TRANSFER_MKDIR:
    case TRANSFER_REMOVE:
    case TRANSFER_GET:
        return m->name[0] == '/' && !r->data_length;
    case TRANSFER_WRITE:
        return m->name[0] == '/';
    case TRANSFER_PUT:
        return m->name[0] == '/' && is_text(m->data, r->data_length) && transfer_is_name(m->data);
    case TRANSFER_USER:
    case TRANSFER_OWNER:
        return !named && is_text(m->data, r->data_length) && r->data_length > 1;
    case TRANSFER_FILE:
        return component || !named;
    case TRANSFER_SYMLINK:
    case TRANSFER_HARDLINK:
        return (component || (!named && r->type == TRANSFER_SYMLINK)) &&
               is_text(m->data, r->data_length) && r->data_length > 1;
    case TRANSFER_ENTRY:
        return (component || !named) && (!r->data_length || is_text(m->data, r->data_length));
    case TRANSFER_ENTER:
        return (component || !named) && !r->data_length;
    case TRANSFER_DATA:
        return !named && r->data_length;
    case TRANSFER_FILE_END:
    case TRANSFER_LEAVE:
    case TRANSFER_DONE:
    case TRANSFER_BUSY:
        return !named && !r->data_length;
    case TRANSFER_SKIPPED:
    case TRANSFER_FAILED:
        return !r->data_length && r->number > 0 && r->number < 4096;
    }
    return false;
}

int transfer_parse(const char *bytes, size_t length, struct transfer_message *ret_message) {
    struct transfer_message m;

    if (length < sizeof m.record)
        return -EBADMSG;
    memcpy(&m.record, bytes, sizeof m.record);
    if (m.record.name_length >= TRANSFER_TEXT_MAX || m.record.data_length > TRANSFER_DATA_MAX ||
        length != sizeof m.record + m.record.name_length + 1 + m.record.data_length)
        return -EBADMSG;
    m.name = bytes + sizeof m.record;
    m.data = m.name + m.record.name_length + 1;
    if (memchr(m.name, '\0', m.record.name_length + 1) != m.name + m.record.name_length ||
        !is_sound(&m))
        return -EBADMSG;
    *ret_message = m;
    return 0;
}

/* Waits for the socket. 0: it is ready; -EPIPE: there is something to receive first. */
static int await_events(const struct transfer *transfer, short events, int timeout_ms) {
    struct pollfd event = { transfer->socket, (short)(events | (transfer->listens ? POLLIN : 0)),
        0 };
    int r;

    do
        r = poll(&event, 1, timeout_ms);
    while (r < 0 && errno == EINTR);
    if (r < 0)
        return -errno;
    if (r == 0)
        return -ETIMEDOUT;
    return event.revents & POLLIN && !(events & POLLIN) ? -EPIPE : 0;
}

int transfer_send(struct transfer *transfer, struct transfer_record record, const char *name,
    const void *data, size_t data_length) {
    record.name_length = name ? (uint32_t)strlen(name) : 0;
    record.data_length = (uint32_t)data_length;
    struct iovec parts[] = { { &record, sizeof record },
        { (void *)(name ? name : ""), record.name_length + 1 }, { (void *)data, data_length } };
    struct msghdr message = { .msg_iov = parts, .msg_iovlen = data_length ? 3 : 2 };

    for (;;) {
        int r = transfer->listens ? await_events(transfer, POLLOUT, transfer->timeout_ms) : 0;
        if (r < 0)
            return r;
        if (sendmsg(transfer->socket, &message,
                MSG_NOSIGNAL | (transfer->timeout_ms >= 0 ? MSG_DONTWAIT : 0)) >= 0)
            return 0;
        if (errno == EAGAIN && transfer->timeout_ms >= 0)
            r = await_events(transfer, POLLOUT, transfer->timeout_ms);
        else if (errno != EINTR)
            r = -errno;
        if (r < 0)
            return r;
    }
}

int transfer_receive(struct transfer *transfer, struct transfer_message *ret_message) {
    bool reset = false;

    for (;;) {
        ssize_t n = recv(transfer->socket, transfer->in, sizeof transfer->in,
            MSG_TRUNC | (transfer->timeout_ms >= 0 ? MSG_DONTWAIT : 0));
        int r = 0;

        if (n == 0)
            return 0;
        if (n > 0) {
            r = (size_t)n > sizeof transfer->in
                    ? -EBADMSG
                    : transfer_parse(transfer->in, (size_t)n, ret_message);
            if (r == 0 && ret_message->record.type != TRANSFER_BUSY)
                return 1;
        } else if (errno == EAGAIN && transfer->timeout_ms >= 0) {
            r = await_events(transfer, POLLIN, transfer->timeout_ms);
        } else if (errno == ECONNRESET && !reset) {
            reset = true; /* the peer closed without reading everything; the messages that it had
                             sent follow */
        } else if (errno != EINTR) {
            r = -errno;
        }
        if (r < 0)
            return r;
    }
}

/* ---- directories ---- */

/* The record of getdents64(2). C libraries give it different names. */
struct directory_entry {
    uint64_t inode;
    int64_t offset;
    unsigned short length;
    unsigned char type;
    char name[];
};

long transfer_read_entries(int directory, void *buffer, size_t size) {
    long n = syscall(SYS_getdents64, directory, buffer, size);

    return n < 0 ? -errno : n;
}

const char *transfer_next_entry(
    const void *buffer, long length, long *position, int64_t *ret_offset) {
    while (*position < length) {
        const struct directory_entry *entry = (const void *)((const char *)buffer + *position);

        *position += entry->length;
        if (!strcmp(entry->name, ".") || !strcmp(entry->name, ".."))
            continue;
        *ret_offset = entry->offset;
        return entry->name;
    }
    return NULL;
}

static int *stack_slot(struct transfer_stack *stack, unsigned depth) {
    return &stack->fds[(depth - 1) % TRANSFER_OPEN_MAX];
}

struct transfer_level *transfer_stack_level(struct transfer_stack *stack) {
    return &stack->levels[stack->depth - 1];
}

int transfer_stack_top(struct transfer_stack *stack) {
    return stack->depth ? *stack_slot(stack, stack->depth) : -EBADF;
}

int transfer_stack_enter(struct transfer_stack *stack, int take_fd, const char *name) {
    auto_close int fd = take_fd;
    size_t at = stack->depth ? transfer_stack_level(stack)->path_length : 0, length = strlen(name);
    struct stat st;

    if (stack->depth == TRANSFER_DEPTH_MAX)
        return -ELOOP;
    if (fstat(fd, &st) < 0)
        return -errno;
    bool named = at + length + 2 <= sizeof stack->path &&
                 (!stack->depth || transfer_stack_level(stack)->named);
    if (named) {
        if (at)
            stack->path[at++] = '/';
        memcpy(stack->path + at, name, length + 1);
        at += length;
    }
    stack->depth++;
    *transfer_stack_level(stack) = (struct transfer_level){
        .device = st.st_dev, .inode = st.st_ino, .path_length = (uint32_t)at, .named = named
    };
    close_fd(stack_slot(stack, stack->depth));
    *stack_slot(stack, stack->depth) = TAKE_FD(fd);
    return 0;
}

int transfer_stack_leave(struct transfer_stack *stack) {
    int *from = stack_slot(stack, stack->depth);

    stack->path[stack->depth > 1 ? stack->levels[stack->depth - 2].path_length : 0] = '\0';
    if (stack->depth > 1 && *stack_slot(stack, stack->depth - 1) < 0) {
        const struct transfer_level *level = &stack->levels[stack->depth - 2];
        auto_close int fd = openat(*from, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        struct stat st;

        if (fd < 0 || fstat(fd, &st) < 0)
            return -errno;
        if (st.st_dev != level->device || st.st_ino != level->inode)
            return -ESTALE; /* it was moved elsewhere meanwhile */
        *stack_slot(stack, stack->depth - 1) = TAKE_FD(fd);
    }
    close_fd(from);
    stack->depth--;
    return 0;
}

void transfer_stack_done(struct transfer_stack *stack) {
    for (unsigned i = 0; i < TRANSFER_OPEN_MAX; i++)
        close_fd(&stack->fds[i]);
    stack->depth = 0;
}

void transfer_stack_path(
    const struct transfer_stack *stack, const char *name, char *ret_path, size_t size) {
    size_t length = stack->depth ? stack->levels[stack->depth - 1].path_length : 0,
           more = strlen(name);

    memcpy(ret_path, stack->path, length);
    if (length && more && length + 1 < size)
        ret_path[length++] = '/';
    more = MIN(more, size - 1 - length);
    memcpy(ret_path + length, name, more);
    ret_path[length + more] = '\0';
}
