/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Terminals: pairs from the sandbox's own devpts, whose masters go to the engine.
 *
 * The slave is opened through the master and not by name. A new terminal has the kernel's default
 * settings, like a console, and UTF-8 input, so that erasing a character in the kernel's line
 * editing erases all its bytes.
 */
#include <asm/termbits.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "guest/init/command.h"
#include "guest/state.h"

#ifndef TIOCGPTPEER
#    define TIOCGPTPEER _IO('T', 0x41)
#endif

static int set_up(int master, int slave, uint64_t size) {
    struct winsize window = { .ws_row = (unsigned short)(size >> 16),
        .ws_col = (unsigned short)size };
    struct termios modes;

    if (ioctl(slave, TCGETS, &modes) < 0)
        return -errno;
    modes.c_iflag |= IUTF8;
    return ioctl(slave, TCSETS, &modes) < 0 || ioctl(master, TIOCSWINSZ, &window) < 0 ? -errno : 0;
}

int terminal_open(uint64_t size, int *ret_master, int *ret_slave) {
    int unlock = 0, slave = -1;
    int master = open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);

    if (master < 0)
        return -errno;
    int r = ioctl(master, TIOCSPTLCK, &unlock) < 0 ? -errno : 0;
    /* O_CLOEXEC would stay in the flags of the opened file, and fdinfo would show it for each
     * descriptor. */
    if (r == 0 && ((slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY)) < 0 ||
                      fcntl(slave, F_SETFD, FD_CLOEXEC) < 0))
        r = -errno;
    if (r == 0)
        r = set_up(master, slave, size);
    if (r < 0) {
        close(master);
        if (slave >= 0)
            close(slave);
        return r;
    }
    *ret_master = master;
    *ret_slave = slave;
    return 0;
}

int terminal_control(void) {
    return ioctl(0, TIOCSCTTY, 0) < 0 ? -errno : 0;
}
