/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dumping terminals: pairs of a master and a terminal, of the sandbox's own devpts.
 *
 * The two ends are matched by their number. The settings of a terminal and its session can be read
 * from the master, which a process has open, or which belongs to the command and is lent to the
 * dump worker. Data that waits in a terminal cannot be read without removing it, so it is taken out
 * and put back, in both directions, while all processes are paused (base/tty.c). Data in a
 * command's own terminal stays there, as in all pipes from outside.
 */
#include <asm/termbits.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/tty.h"
#include "dump/internal.h"

#define TTY_MAJOR 5 /* minor 0: the controlling terminal; 2: /dev/ptmx */
#define SLAVE_MAJOR 136
#define MAX_OUTPUT (1u << 20)
#define MAX_INPUT 65536u
#define GET_DEVICE 0x80045432    /* TIOCGDEV */
#define GET_PACKETS 0x80045438   /* TIOCGPKT */
#define GET_LOCK 0x80045439      /* TIOCGPTLCK */
#define GET_EXCLUSIVE 0x80045440 /* TIOCGEXCL */
#define OPEN_PEER _IO('T', 0x41) /* TIOCGPTPEER */

_Static_assert(sizeof(struct termios2) == sizeof(struct image_modes),
    "struct image_modes is the kernel's struct termios2");

struct end {
    uint32_t number, lent;
    int master;   /* -EBADF: not known (yet) */
    bool is_open; /* a process has it open by its name */
};

bool terminals_is_one(const struct stat *st) {
    return S_ISCHR(st->st_mode) && ((major(st->st_rdev) == TTY_MAJOR &&
                                        (minor(st->st_rdev) == 0 || minor(st->st_rdev) == 2)) ||
                                       major(st->st_rdev) == SLAVE_MAJOR);
}

/* linux/kdev_t.h */
uint32_t terminals_number(uint64_t device) {
    uint32_t number = (uint32_t)((device & 0xff) | (device >> 12 & 0xfff00));

    return (device >> 8 & 0xfff) == SLAVE_MAJOR && number < IMAGE_MAX_TERMINALS ? number + 1 : 0;
}

static struct end *end_of(struct dump *c, uint32_t number) {
    struct end new = { .number = number, .master = -EBADF };
    size_t n = dump_count(&c->ends, struct end);

    for (size_t i = 0; i < n; i++)
        if (dump_entry(&c->ends, i, struct end)->number == number)
            return dump_entry(&c->ends, i, struct end);
    buf_add(&c->ends, &new, sizeof new);
    return buf_failed(&c->ends) ? NULL : dump_entry(&c->ends, n, struct end);
}

static int number_of_master(int fd, uint32_t *ret_number) {
    return ioctl(fd, TIOCGPTN, ret_number) < 0 ? -errno
           : *ret_number < IMAGE_MAX_TERMINALS ? 0
                                               : -ERANGE;
}

static int refuse_terminal(const char **ret_why, const char *why) {
    *ret_why = why;
    return -ENOTSUP;
}

int terminals_dump(struct dump *c, const struct dump_process *s, const struct stat *st, int take_fd,
    struct image_file *to, const char **ret_why) {
    auto_close int fd = take_fd;
    const bool is_own = major(st->st_rdev) == TTY_MAJOR && minor(st->st_rdev) == 0,
               is_master = major(st->st_rdev) == TTY_MAJOR && !is_own;
    struct termios2 modes;
    struct stat devices;
    uint32_t number, device = 0;

    if (!is_own &&
        (fstatat(s->root, "dev/pts/ptmx", &devices, 0) < 0 || devices.st_dev != st->st_dev))
        return refuse_terminal(ret_why, "a terminal that was opened outside of the sandbox");
    if (!is_master && ioctl(fd, TCGETS2, &modes) < 0 && errno == EIO) {
        to->kind = IMAGE_FILE_HUNG_UP;
        return 0;
    }
    if (is_master ? number_of_master(fd, &number) < 0
                  : ioctl(fd, GET_DEVICE, &device) < 0 || !(number = terminals_number(device)))
        return refuse_terminal(ret_why, "a terminal that was opened outside of the sandbox");
    number -= !is_master;
    struct end *end = end_of(c, number);
    if (!end)
        return -ENOMEM;
    to->kind = is_master ? IMAGE_FILE_MASTER : IMAGE_FILE_TERMINAL;
    to->value = number;
    if (!is_master)
        end->is_open = true;
    else if (end->master < 0)
        end->master = TAKE_FD(fd);
    return 0;
}

/* ---- what waits in it ---- */

static short poll_ready(int fd, short events) {
    struct pollfd one = { .fd = fd, .events = events };

    return poll(&one, 1, 0) < 0 ? POLLERR : one.revents;
}

static int take_output(int master, struct buf *to) {
    while (to->length < MAX_OUTPUT && poll_ready(master, POLLIN) & POLLIN) {
        char *room = buf_reserve(to, 65536);
        ssize_t n = room ? read(master, room, 65536) : -1;

        if (!room)
            return -ENOMEM;
        if (n <= 0)
            return n < 0 && errno != EIO ? -errno : 0;
        to->length += (size_t)n;
    }
    return 0;
}

static int add_typed(struct buf *to, enum tty_kind kind, const char *bytes, size_t n) {
    static const char nothing[8];
    const struct tty_typed typed = { .length = (uint32_t)n, .kind = kind };

    buf_add(to, &typed, sizeof typed);
    buf_add(to, bytes, n);
    buf_add(to, nothing, (8 - n % 8) % 8);
    return buf_failed(to) ? -ENOMEM : 0;
}

/* Reads line by line. An unfinished line can only be seen in raw mode. */
static int take_input(int terminal, struct buf *to) {
    struct termios2 modes, raw;
    char bytes[2 * TTY_MAX_TYPED];
    int r = ioctl(terminal, TCGETS2, &modes) < 0 ? -errno : 0;

    while (r == 0 && modes.c_lflag & ICANON && to->length < MAX_INPUT &&
           poll_ready(terminal, POLLIN) & POLLIN) {
        ssize_t n = read(terminal, bytes, sizeof bytes);
        unsigned char last = n > 0 ? (unsigned char)bytes[n - 1] : 0;

        if (n < 0)
            return errno == EAGAIN ? 0 : -errno;
        r = add_typed(to,
            last == '\n' || (last && (last == modes.c_cc[VEOL] || last == modes.c_cc[VEOL2]))
                ? TTY_LINE
                : TTY_END,
            bytes, (size_t)n);
    }
    raw = modes;
    raw.c_lflag &= ~(tcflag_t)ICANON;
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    if (r == 0 && ioctl(terminal, TCSETS2, &raw) < 0)
        r = -errno;
    while (r == 0 && to->length < MAX_INPUT && poll_ready(terminal, POLLIN) & POLLIN) {
        ssize_t n = read(terminal, bytes, TTY_MAX_TYPED);

        if (n <= 0)
            break;
        r = add_typed(to, TTY_REST, bytes, (size_t)n);
    }
    return ioctl(terminal, TCSETS2, &modes) < 0 ? -errno : r;
}

/* Takes the data of both directions and puts it back. */
static int take_and_put(
    int master, int terminal, bool in_packets, struct buf *output, struct buf *input) {
    int on = 1, off = 0;
    int r = in_packets && ioctl(master, TIOCPKT, &off) < 0 ? -errno : 0;

    if (r < 0)
        return r;
    r = take_output(master, output);
    if (r == 0)
        r = take_input(terminal, input);
    int put = tty_put_input(master, terminal, input->data, input->length);
    if (put == 0)
        put = tty_put_output(terminal, output->data, output->length);
    if (in_packets && ioctl(master, TIOCPKT, &on) < 0)
        put = -errno;
    return r < 0 ? r : put;
}

static int open_terminal(int master, int is_locked) {
    int unlock = 0, lock = 1;

    if (is_locked && ioctl(master, TIOCSPTLCK, &unlock) < 0)
        return -errno;
    int fd = ioctl(master, OPEN_PEER, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC),
        r = fd < 0 ? -errno : fd;
    if (is_locked)
        (void)ioctl(master, TIOCSPTLCK, &lock);
    return r;
}

static int look_inside(struct dump *c, const struct end *end, struct image_terminal *t) {
    auto_buf struct buf output = BUF_INIT;
    auto_buf struct buf input = BUF_INIT;
    const short waits = poll_ready(end->master, POLLIN | POLLPRI);

    if (waits & POLLPRI)
        return dump_refuse(c, EAGAIN,
            "terminal /dev/pts/%u has a status change that has not been read (TIOCPKT)", t->number);
    if (!end->is_open && !(waits & POLLIN))
        return 0;
    auto_close int terminal = open_terminal(end->master, t->state & IMAGE_TERMINAL_LOCKED);
    if (terminal < 0)
        return dump_refuse(
            c, -terminal, "terminal /dev/pts/%u: %s", t->number, strerror(-terminal));
    if (!(poll_ready(terminal, POLLOUT) & POLLOUT))
        return dump_refuse(c, EAGAIN,
            "terminal /dev/pts/%u: its output is stopped by ^S, or its buffer is full because "
            "nothing reads it",
            t->number);
    int r = take_and_put(end->master, terminal, t->state & IMAGE_TERMINAL_PACKETS, &output, &input);
    if (r < 0)
        return dump_refuse(c, -r, "terminal /dev/pts/%u: its buffered data cannot be read: %s",
            t->number, strerror(-r));
    t->output = dump_blob(c, output.data ? output.data : "", output.length);
    t->output_length = output.length;
    t->input = dump_blob(c, input.data ? input.data : "", input.length);
    t->input_length = input.length;
    return 0;
}

/* ---- how it is set ---- */

/* An empty process group is not restored: its number inside the sandbox is unknown. */
static uint32_t group_inside(const struct dump *c, pid_t outer) {
    for (size_t i = 0; i < c->n_dump_processes; i++)
        if (!c->dump_processes[i]->is_apart && c->dump_processes[i]->outer_group == (uint32_t)outer)
            return c->dump_processes[i]->group;
    return 0;
}

/* With many users it belongs to the one who logged in. */
static int look_at_owner(struct dump *c, struct image_terminal *t) {
    char path[32];
    struct stat st;

    snprintf(path, sizeof path, "dev/pts/%u", t->number);
    for (size_t i = 0; i < c->n_dump_processes; i++)
        if (c->dump_processes[i]->root >= 0) {
            if (fstatat(c->dump_processes[i]->root, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return -errno;
            credentials_owner(c, &st, &t->owner, &t->group);
            t->mode = st.st_mode & 0777;
            return 0;
        }
    return -ENOENT;
}

static int describe_terminal(struct dump *c, const struct end *end, struct image_terminal *t) {
    static const struct {
        unsigned long request;
        uint32_t bit;
    } states[] = { { GET_PACKETS, IMAGE_TERMINAL_PACKETS }, { GET_LOCK, IMAGE_TERMINAL_LOCKED },
        { GET_EXCLUSIVE, IMAGE_TERMINAL_EXCLUSIVE } };
    struct winsize size;
    struct termios2 modes;
    pid_t foreground = 0;

    *t = (struct image_terminal){ .number = end->number, .lent = end->lent };
    if (ioctl(end->master, TCGETS2, &modes) < 0 || ioctl(end->master, TIOCGWINSZ, &size) < 0)
        return -errno;
    if (modes.c_line)
        return -ENOTSUP;
    memcpy(&t->modes, &modes, sizeof modes);
    t->rows = size.ws_row;
    t->columns = size.ws_col;
    t->width = size.ws_xpixel;
    t->height = size.ws_ypixel;
    for (size_t i = 0; i < ARRAY_SIZE(states); i++) {
        int value = 0;

        if (ioctl(end->master, states[i].request, &value) < 0)
            return -errno;
        t->state |= value ? states[i].bit : 0;
    }
    if (!end->is_open && !(poll_ready(end->master, POLLIN) & POLLHUP))
        t->state |= IMAGE_TERMINAL_UNOPENED;
    if (ioctl(end->master, TIOCGPGRP, &foreground) == 0)
        t->foreground = group_inside(c, foreground);
    return c->options->many_users ? look_at_owner(c, t) : 0;
}

/* A process has a terminal because it leads a session or inherited it from its parent. */
static int check_owners(struct dump *c) {
    for (size_t i = 0; i < dump_count(&c->processes, struct image_process); i++) {
        const struct image_process *p = dump_entry(&c->processes, i, struct image_process);
        const struct image_process *parent =
            p->parent ? dump_entry(&c->processes, p->parent - 1, struct image_process) : NULL;

        if (p->terminal && p->pid != p->session &&
            (!parent || parent->terminal != p->terminal || parent->session != p->session)) {
            c->current = NULL;
            return dump_refuse(
                c, ENOTSUP, "process %u has a terminal that its parent does not have", p->pid);
        }
    }
    return 0;
}

static int by_number(const void *a, const void *b) {
    const struct end *x = a, *y = b;

    return (x->number > y->number) - (x->number < y->number);
}

static uint32_t index_of(struct dump *c, uint32_t number) {
    return (uint32_t)(end_of(c, number) - dump_entry(&c->ends, 0, struct end));
}

/* Replaces numbers by indices of the table. */
static void name_by_index(struct dump *c) {
    for (size_t i = 0; i < dump_count(&c->files, struct image_file); i++) {
        struct image_file *file = dump_entry(&c->files, i, struct image_file);

        if (file->kind == IMAGE_FILE_MASTER || file->kind == IMAGE_FILE_TERMINAL)
            file->value = index_of(c, (uint32_t)file->value);
    }
    for (size_t i = 0; i < dump_count(&c->processes, struct image_process); i++) {
        struct image_process *p = dump_entry(&c->processes, i, struct image_process);

        p->terminal = p->terminal ? index_of(c, p->terminal - 1) + 1 : 0;
    }
}

static int add_lent(struct dump *c) {
    for (size_t i = 0; i < c->options->n_masters; i++) {
        uint32_t number;
        int r = number_of_master(c->options->masters[i], &number);
        struct end *end = r < 0 ? NULL : end_of(c, number);

        if (r == 0 && !end)
            r = -ENOMEM;
        if (r == 0 && (end->lent || end->master >= 0))
            r = -EBUSY;
        if (r < 0)
            return dump_fail(c, "a command's terminal", r);
        end->lent = (uint32_t)i + 1;
        end->master = fcntl(c->options->masters[i], F_DUPFD_CLOEXEC, 3);
    }
    for (size_t i = 0; i < dump_count(&c->processes, struct image_process); i++) {
        uint32_t terminal = dump_entry(&c->processes, i, struct image_process)->terminal;

        if (terminal && !end_of(c, terminal - 1))
            return dump_fail(c, "its terminals", -ENOMEM);
    }
    return 0;
}

int terminals_connect(struct dump *c) {
    int r = check_owners(c);

    c->current = NULL;
    if (r == 0)
        r = add_lent(c);
    size_t n = dump_count(&c->ends, struct end);
    if (r < 0 || !n)
        return r;
    qsort(c->ends.data, n, sizeof(struct end), by_number);
    name_by_index(c);
    for (size_t i = 0; i < n; i++) {
        const struct end *end = dump_entry(&c->ends, i, struct end);
        struct image_terminal t;

        if (end->master < 0)
            return dump_refuse(c, ENOTSUP,
                "the master of terminal /dev/pts/%u is closed, or outside of the sandbox",
                end->number);
        r = describe_terminal(c, end, &t);
        if (r < 0)
            return dump_refuse(c, -r, "terminal /dev/pts/%u: %s", end->number, strerror(-r));
        buf_add(&c->terminals, &t, sizeof t);
    }
    if (buf_failed(&c->terminals))
        return dump_fail(c, "its terminals", -ENOMEM);
    /* Data that was taken out is put back at once, but nothing that can fail should follow. */
    for (size_t i = 0; i < n && r == 0; i++)
        if (!dump_entry(&c->ends, i, struct end)->lent)
            r = look_inside(c, dump_entry(&c->ends, i, struct end),
                dump_entry(&c->terminals, i, struct image_terminal));
    return r;
}

void terminals_forget(struct dump *c) {
    for (size_t i = 0; i < dump_count(&c->ends, struct end); i++)
        close_fd(&dump_entry(&c->ends, i, struct end)->master);
}
