/* SPDX-License-Identifier: Apache-2.0 */
/* Access of init to the processes whose calls it answers: their memory and their files in /proc.
 * Nothing is stored here. */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "guest/code_write.h"
#include "guest/det/det.h"
#include "guest/det/vtime.h"
#include "sys/syscalls.h"

#define CALL_LENGTH 5 /* bytes of the instruction */
#define AUXV_ENTRIES 64
#define FORKED_NOT_EXECUTED 0x40 /* PF_FORKNOEXEC */

int determinism_proc = -1;
int64_t determinism_uptime_ahead_ns;

long process_read_memory(pid_t pid, uint64_t from, void *to, size_t length) {
    struct iovec ours = { to, length }, theirs = { (void *)(uintptr_t)from, length };

    return sys_call6(__NR_process_vm_readv, pid, SYS_ARG(&ours), 1, SYS_ARG(&theirs), 1, 0);
}

long process_write_memory(pid_t pid, uint64_t to, const void *from, size_t length) {
    struct iovec ours = { (void *)(uintptr_t)from, length },
                 theirs = { (void *)(uintptr_t)to, length };

    return sys_call6(__NR_process_vm_writev, pid, SYS_ARG(&ours), 1, SYS_ARG(&theirs), 1, 0);
}

int process_open(pid_t pid, const char *name, int flags) {
    return guest_open_process(determinism_proc, pid, name, flags);
}

int process_open_memory(pid_t pid) {
    return process_open(pid, "/mem", O_RDWR);
}

int process_put(pid_t pid, uint64_t to, const void *from, size_t size) {
    int memory = process_open_memory(pid);

    if (memory < 0)
        return memory;
    int r = code_write(pid, memory, to, from, size);
    close(memory);
    return r;
}

static int make_call(uint64_t at, uint64_t to, uint8_t ret_call[CALL_LENGTH]) {
    int64_t distance = (int64_t)to - (int64_t)(at + CALL_LENGTH);

    if (distance != (int32_t)distance)
        return -EOPNOTSUPP;
    ret_call[0] = 0xe8;
    memcpy(ret_call + 1, &distance, CALL_LENGTH - 1);
    return 0;
}

int process_put_call_by(pid_t pid, int memory, uint64_t at, uint64_t to) {
    uint8_t call[CALL_LENGTH];
    int r = make_call(at, to, call);

    return r < 0 ? r : code_write(pid, memory, at, call, sizeof call);
}

int process_put_call(pid_t pid, uint64_t at, uint64_t to) {
    uint8_t call[CALL_LENGTH];
    int r = make_call(at, to, call);

    return r < 0 ? r : process_put(pid, at, call, sizeof call);
}

bool process_read_auxv(pid_t pid, uint64_t *ret_vdso, uint64_t *ret_random) {
    Elf64_auxv_t entries[AUXV_ENTRIES];
    int fd = process_open(pid, "/auxv", O_RDONLY);

    if (fd < 0)
        return false;
    ssize_t n = read(fd, entries, sizeof entries);
    close(fd);
    *ret_vdso = *ret_random = 0;
    for (ssize_t i = 0; i < n / (ssize_t)sizeof entries[0] && entries[i].a_type != AT_NULL; i++) {
        if (entries[i].a_type == AT_SYSINFO_EHDR)
            *ret_vdso = entries[i].a_un.a_val;
        if (entries[i].a_type == AT_RANDOM)
            *ret_random = entries[i].a_un.a_val;
    }
    return *ret_vdso && *ret_random;
}

bool process_vdso_of(pid_t pid, uint64_t *ret_base) {
    uint64_t random;

    return process_read_auxv(pid, ret_base, &random);
}

/* Reads /proc/PID/status: the text after a heading. */
static const char *read_after(int proc, pid_t pid, char *text, size_t size, const char *heading) {
    size_t length = strlen(heading);
    int fd = guest_open_process(proc, pid, "/status", O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);

    if (fd >= 0)
        close(fd);
    for (ssize_t i = 0; i + (ssize_t)length < n; i++)
        if (!strncmp(text + i, heading, length)) {
            text[n] = '\0';
            return text + i + length;
        }
    return NULL;
}

bool process_has_thread(pid_t process, pid_t thread) {
    return process > 0 && (process == thread || sys_call3(__NR_tgkill, process, thread, 0) == 0);
}

pid_t process_of_thread(pid_t thread) {
    char text[1024];
    const char *at = sys_call3(__NR_tgkill, thread, thread, 0) == 0
                         ? NULL
                         : read_after(determinism_proc, thread, text, sizeof text, "\nTgid:\t");
    pid_t process = 0;

    for (; at && *at >= '0' && *at <= '9'; at++)
        process = process * 10 + (*at - '0');
    return process ? process : thread;
}

bool process_read_stat(pid_t thread, uint64_t ret_fields[DETERMINISM_STAT_FIELDS]) {
    char text[1024];
    int fd = process_open(thread, "/stat", O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);

    if (fd >= 0)
        close(fd);
    text[n < 0 ? 0 : n] = '\0';
    const char *at =
        strrchr(text, ')'); /* the name may contain anything, but no bracket follows it */
    if (!at)
        return false;
    for (size_t i = DETERMINISM_STAT_STATE; i < DETERMINISM_STAT_FIELDS; i++) {
        at += strcspn(at, " ");
        at += *at == ' ';
        ret_fields[i] = strtoul(at, NULL, 10);
    }
    return true;
}

bool process_is_single(pid_t thread) {
    uint64_t fields[DETERMINISM_STAT_FIELDS];

    return process_read_stat(thread, fields) && fields[DETERMINISM_STAT_THREADS] == 1 &&
           !(fields[DETERMINISM_STAT_FLAGS] & FORKED_NOT_EXECUTED);
}

/* The masks follow each other in the file and have the same length. */
static bool signals_of(int proc, pid_t pid, struct determinism_signals *ret_signals) {
    static const size_t line = sizeof "SigPnd:\t0123456789abcdef\n" - 1;
    char text[2048];
    const char *at = read_after(proc, pid, text, sizeof text, "\nSigPnd:\t");

    if (!at || strlen(at) < 5 * line)
        return false;
    ret_signals->pending = strtoul(at, NULL, 16) | strtoul(at + line, NULL, 16);
    ret_signals->blocked = strtoul(at + 2 * line, NULL, 16);
    ret_signals->caught = strtoul(at + 4 * line, NULL, 16);
    return true;
}

bool process_signals_of(pid_t pid, struct determinism_signals *ret_signals) {
    return signals_of(determinism_proc, pid, ret_signals);
}

bool process_is_to_stop(int proc, pid_t process, bool surely) {
    const uint64_t stops = 1ull << (SIGSTOP - 1) | 1ull << (SIGTSTP - 1) | 1ull << (SIGTTIN - 1) |
                           1ull << (SIGTTOU - 1);
    struct determinism_signals signals;

    return signals_of(proc, process, &signals) &&
           signals.pending & stops & (surely ? ~signals.blocked & ~signals.caught : ~0ull);
}

bool idle_stat(pid_t pid, uint64_t fd, struct stat *ret_st) {
    char path[64], *at = guest_put_number(path, (uint64_t)pid);

    memcpy(at, "/fd/", 4);
    *guest_put_number(at + 4, fd) = '\0';
    return fstatat(determinism_proc, path, ret_st, 0) == 0;
}

int vtime_parse_call(const char *text, uint64_t *ret_arguments) {
    char *at;

    if (*text < '0' || *text > '9')
        return -EAGAIN;
    int number = (int)strtoul(text, &at, 10);
    for (int i = 0; i < 6; i++)
        ret_arguments[i] = strtoul(at, &at, 16);
    return number;
}
