/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The terminals of an image, in init. They are made before the processes, because a session leader
 * must have its terminal before it has children, which inherit it and cannot get it in another way.
 *
 * The kernel assigns the lowest free number, so the unused numbers between are opened temporarily.
 * Init keeps both ends of each terminal until all files exist. Then it closes them, except for the
 * masters of commands' terminals, which it passes to their new owner.
 */
#include <asm/termbits.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/tty.h"
#include "guest/det/vtime.h"
#include "guest/restore/restore_image.h"
#include "sys/syscalls.h"

#if defined(__x86_64__) && !defined(__GLIBC__)

#    define OPEN_PEER _IO('T', 0x41) /* TIOCGPTPEER */
#    define SET_MODES 0x402c542b     /* TCSETS2 */
#    define SET_PACKETS 0x5420       /* TIOCPKT */
#    define SET_LOCK 0x40045431      /* TIOCSPTLCK */
#    define SET_EXCLUSIVE 0x540c     /* TIOCEXCL */
#    define LEAVE 0x5422             /* TIOCNOTTY */
#    define SETTABLE (O_APPEND | O_NONBLOCK | O_DIRECT | O_NOATIME)

static struct { int master, terminal; /* -1: not open */ } ends[IMAGE_MAX_TERMINALS];
static int between[IMAGE_MAX_TERMINALS]; /* masters of numbers that the image does not use */

static uint32_t n_terminals(void) {
    return (uint32_t)restored.header->terminals.n;
}

static const struct image_terminal *find_terminal(uint32_t index) {
    return restored_table(terminals, struct image_terminal) + index;
}

static int open_master(uint32_t *ret_number) {
    int unlock = 0, master = open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);

    if (master < 0)
        return -errno;
    if (ioctl(master, (int)SET_LOCK, &unlock) == 0 && ioctl(master, (int)TIOCGPTN, ret_number) == 0)
        return master;
    int r = -errno;
    close(master);
    return r;
}

/* O_CLOEXEC would stay in the flags of the opened file, and fdinfo would show it for each
 * descriptor. */
static int open_terminal(int master, uint32_t flags) {
    int fd = ioctl(master, (int)OPEN_PEER, (int)(flags & O_ACCMODE) | O_NOCTTY | O_NONBLOCK);

    if (fd < 0)
        return -errno;
    if (fcntl(fd, F_SETFL, flags & SETTABLE) == 0 && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0)
        return fd;
    int r = -errno;
    close(fd);
    return r;
}

/* With many users. */
static int give_owner(const struct image_terminal *t) {
    char path[24] = "/dev/pts/";

    *guest_put_number(path + strlen(path), t->number) = '\0';
    long r = sys_call5(__NR_fchownat, AT_FDCWD, path, t->owner, t->group, AT_SYMLINK_NOFOLLOW);
    return r < 0 ? (int)r : (int)sys_call3(__NR_fchmodat, AT_FDCWD, path, t->mode);
}

static int set_up(uint32_t index) {
    const struct image_terminal *t = find_terminal(index);
    struct winsize size = {
        .ws_row = t->rows, .ws_col = t->columns, .ws_xpixel = t->width, .ws_ypixel = t->height
    };
    struct termios2 modes;
    int on = 1, r = 0, master = ends[index].master;

    memcpy(&modes, &t->modes, sizeof modes);
    if (!(t->state & IMAGE_TERMINAL_UNOPENED) &&
        (ends[index].terminal = open_terminal(master, O_RDWR | O_NONBLOCK)) < 0)
        return ends[index].terminal;
    if (ioctl(master, SET_MODES, &modes) < 0 || ioctl(master, (int)TIOCSWINSZ, &size) < 0)
        return -errno;
    if (t->output_length || t->input_length)
        r = ends[index].terminal >= 0 ? tty_put_input(master, ends[index].terminal,
                                            restored.base + t->input, t->input_length)
                                      : -EBADMSG;
    if (r == 0)
        r = tty_put_output(ends[index].terminal, restored.base + t->output, t->output_length);
    if (r < 0)
        return r;
    if (restored.header->credentials.n && (r = give_owner(t)) < 0)
        return r;
    return t->state & IMAGE_TERMINAL_PACKETS && ioctl(master, SET_PACKETS, &on) < 0 ? -errno : 0;
}

int restore_make_terminals(void) {
    uint32_t number;
    int r;

    for (uint32_t i = 0; i < IMAGE_MAX_TERMINALS; i++)
        between[i] = ends[i].master = ends[i].terminal = -1;
    for (uint32_t i = 0, next = 0; i < n_terminals(); next++) {
        int master = open_master(&number);

        if (master < 0)
            return master;
        if (number != next) {
            close(master);
            return -EEXIST;
        }
        if (number < find_terminal(i)->number) {
            between[number] = master;
            continue;
        }
        ends[i].master = master;
        if ((r = set_up(i)) < 0)
            return r;
        i++;
    }
    return 0;
}

/* For a session leader, before it has children; or for a process that has left the terminal of its
 * birth. */
int restore_enter_terminal(const struct image_process *process) {
    if (process->pid != process->session) {
        for (uint32_t i = 0; i < n_terminals() && !process->terminal; i++)
            if (ends[i].terminal >= 0)
                (void)ioctl(ends[i].terminal, LEAVE, 0);
        return 0;
    }
    if (!process->terminal)
        return 0;
    int terminal = ends[process->terminal - 1].terminal;
    if (terminal < 0)
        return -EBADMSG;
    return ioctl(terminal, (int)TIOCSCTTY, 0) < 0 ? -errno : 0;
}

/* For the session leader, when all groups are joined. If the foreground group no longer exists, no
 * group is set. */
int restore_set_foreground(const struct image_process *process) {
    pid_t group = process->terminal ? (pid_t)find_terminal(process->terminal - 1)->foreground : 0;

    return group && ioctl(ends[process->terminal - 1].terminal, (int)TIOCSPGRP, &group) < 0 &&
                   errno != ESRCH
               ? -errno
               : 0;
}

int restore_open_terminal(const struct image_file *file) {
    const int master = file->kind == IMAGE_FILE_HUNG_UP ? 0 : ends[file->value].master;
    uint32_t number;

    if (file->kind == IMAGE_FILE_MASTER) {
        int fd = fcntl(master, F_DUPFD_CLOEXEC, 3);
        return fd < 0 || fcntl(fd, F_SETFL, file->flags & SETTABLE) < 0 ? -errno : fd;
    }
    if (file->kind == IMAGE_FILE_TERMINAL)
        return open_terminal(master, file->flags);
    /* A terminal that is no process's controlling terminal. The end of its master detaches it. */
    int other = open_master(&number), fd = other < 0 ? other : open_terminal(other, file->flags);
    if (other >= 0)
        close(other);
    return fd;
}

/* Called when all files are open. */
size_t restore_leave_terminals(int *ret_masters) {
    size_t n = 0;

    for (uint32_t i = 0; i < n_terminals(); i++) {
        const struct image_terminal *t = find_terminal(i);
        int locked = 1;

        if (t->state & IMAGE_TERMINAL_EXCLUSIVE)
            (void)ioctl(ends[i].master, SET_EXCLUSIVE, 0);
        if (t->state & IMAGE_TERMINAL_LOCKED)
            (void)ioctl(ends[i].master, (int)SET_LOCK, &locked);
        if (ends[i].terminal >= 0 && t->lent)
            idle_add_external(
                ends[i].terminal); /* a client has its other end, so a virtual clock waits for it */
        if (ends[i].terminal >= 0)
            close(ends[i].terminal);
        if (t->lent) {
            ret_masters[t->lent - 1] = ends[i].master;
            n++;
        } else if (ends[i].master >= 0)
            close(ends[i].master);
    }
    for (uint32_t i = 0; i < IMAGE_MAX_TERMINALS; i++)
        if (between[i] >= 0)
            close(between[i]);
    return n;
}

#endif
