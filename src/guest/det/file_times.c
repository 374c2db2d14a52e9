/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time stamps of files, by the sandbox's clock.
 *
 * The kernel stamps files with its own time, and only the times of modification and access can be
 * set. So init receives the calls that read stamps (stat and similar) or set them. It first
 * inspects the file, which it finds from the caller's own directories with the guest's rights:
 * with one user these are init's own, with many it takes the caller's (det/caller.h). If no stamp
 * is from the time of the sandbox, as with nearly all files that programs look at, the kernel
 * answers; else init does.
 *
 * At the real rate, a stamp from the sandbox's time is shown by the sandbox's clock, which has a
 * fixed offset. An older stamp, of the host or an image, is shown unchanged.
 *
 * Under virtual time a fixed map is not good enough. The kernel's stamps have a granularity of up
 * to 4 ms, in which the clock may jump by a year. So a changed file gets the time at which init
 * notices the change: a new query of the clock, later than any stamp before. Init notices it when a
 * program looks at the file. For files that are not looked at for long, init remembers those last
 * opened for writing, and the directories last changed, and inspects them before it answers for
 * others, before the clock jumps, and when a command ends. Init then sets the modification time in
 * the file, so that forks have it. The other stamps are in a table; a file that drops out of the
 * table gets new times.
 *
 * A fork of files alone starts with its clock at the beginning again. So that its new files are
 * newer than the ones it inherited, times from before its start are shown before the start, in
 * their order. The last digits of a stored time say which of several clocks it is from, and times
 * of forks of forks are ordered by these first.
 *
 * A stamp that a guest sets is read back unchanged. A stamp that is not older than the sandbox
 * would be mistaken for a stamp of the kernel. So init adds MARK_S when it stores such a stamp, and
 * subtracts it when it shows the stamp. init recognises its own stamps by their last digits, or by
 * twice MARK_S.
 *
 * The kernel assigns device numbers in the order in which they are free, and programs record them
 * (git's index, for each file). So private places in memory and the template's file systems get
 * numbers of init's own, in the order of their mounts. Devices that an overlay shows for the files
 * of its layers, visible only in those files, get numbers in the order in which they are seen.
 * Calls about all these files reach init, because their time of change is not older than the
 * sandbox. Files of the host or an image show their real devices.
 *
 * Pipes have the clock's start as their time under virtual time; so do terminals. Objects that the
 * kernel shares between sandboxes (eventfds and similar), and files without a stored time (files of
 * /proc that belong to no process), always have the clock's start.
 *
 * All this concerns a guest's own files and decides nothing about access: each call costs a bounded
 * number of system calls, links of /proc are not followed (they would be init's), and calls
 * that init cannot make are left to the kernel.
 */
#include "guest/det/file_times.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "guest/det/caller.h"
#include "guest/det/det.h"
#include "guest/det/serial.h"
#include "guest/det/vtime.h"
#include "sys/syscalls.h"

#define NS 1000000000ll
#define MARK_S ((int64_t)STAMPS_MARK_S)
#define KEPT_NS 501 /* nanoseconds below the microsecond; one more for each generation, up to */
#define LAST_KEPT_NS 999
#define LONG_AGO_NS 86400e9
#define NEVER INT64_MIN
#define MAX_PATH 4096
#define PREFIX_BYTES 48 /* "PID/fd/N/" */
#define PAGE 4096u
#define MAX_MOUNTS 256
#define N_CALLERS 64
#define OFTEN 2
#define N_AGAINS 8
#define TRIES 8
#define MOST_OF_LOADER 65536ll /* bytes between two calls of glibc's loader */
#define N_KNOWN 4096
#define LAYER_STRIDE 1021u
#define N_KNOWN_OTHERS 1024
#define N_RECENT 8
#define RECENT_PATH 256
#define WRITES (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)
#define STATX_WANTED (UAPI_STATX_BASIC | UAPI_STATX_BORN | UAPI_STATX_MOUNT)
#define STATX_FLAGS                                                                                \
    (AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH | AT_NO_AUTOMOUNT | 0x6000 /* AT_STATX_SYNC_TYPE */)

#define MAX_NUMBERED 64
/* Minor numbers, downwards, because the kernel assigns the lowest free one. */
#define FIRST_NUMBER 0xfffffu

#define PROC_ROOT 1
#define PROC_NO_PROCESS                                                                            \
    0xf0000000ull /* from here on: inode numbers of files that belong to no process */

enum stamp { MODIFIED, CHANGED, ACCESSED, BORN, N_STAMPS };

/* A file that a caller is about to look at or to change. */
struct place {
    int directory;     /* the caller's descriptor, or AT_FDCWD */
    uint64_t path;     /* address in the caller's memory; 0: the descriptor's own file */
    bool is_link;      /* a link at the end of the path is not followed */
    bool may_be_empty; /* an empty path means the descriptor's own file */
};

/* Virtual time: the times that a file was shown with. If one of its raw stamps differs, the file
 * has changed. */
struct known {
    uint64_t device, inode;
    int64_t raw_ns[N_STAMPS], told_ns[N_STAMPS];
    bool is_set;   /* this init has set its modification time */
    bool has_lost; /* a file with is_set was evicted from this entry */
};

/* Virtual time: a file that may have been written since init last inspected it. */
struct recent {
    int base; /* O_PATH; -1: none */
    bool is_used;
    char path[RECENT_PATH];
};

/* A file that a process has looked at. */
struct again {
    pid_t pid;
    uint64_t inode;
};

/* An address from which newfstatat is called. */
struct caller {
    pid_t pid;
    unsigned n;
    uint64_t address;
};

static int64_t born_ns, begun_ns; /* by the kernel's time: birth of the sandbox, or of the first one
                                     in its line of forks; start of its clock */
static int64_t begun_finely_ns;   /* the same by the fine clock: files stamped between the two may
                                     have been changed before or after */
static int64_t ahead_ns, ahead_before_ns;
static int64_t told_before_ns; /* lowest stamp of files older than the clock: the template's;
                                  virtual time: any file of the sandbox */
static int64_t template_ns;    /* the same for the template, at the latest */
static uint64_t mounts[MAX_MOUNTS], proc_device, template_device, dev_device,
    own_device = UINT64_MAX;
static uint64_t numbered[MAX_NUMBERED], private_mounts[MAX_MOUNTS];
static size_t n_numbered, n_private;
static uint64_t made[2] = {
    UINT64_MAX, UINT64_MAX
}; /* mounts made with the sandbox that do not hold its own files: terminals, /proc/uptime */
static uint64_t pipes = UINT64_MAX,
                pipes_device = UINT64_MAX; /* the latter in the encoding of stat(2) */
static uint64_t anonymous = UINT64_MAX,
                anonymous_device = UINT64_MAX; /* the same of eventfd, timerfd, epoll and similar */
static int64_t start_ns;                       /* virtual time: start of the clock */
static int64_t kept_ns = KEPT_NS;              /* digits of new stamps */
static size_t n_mounts;
static const struct plan *times_plan; /* the sandbox's */
static const struct plan *unfound;    /* plan whose mounts have not been examined yet */
static struct known *known; /* N_KNOWN and N_KNOWN_OTHERS entries, in separate memory, because the
                               program must be small (restore.c) */
static struct recent recents[N_RECENT];
static bool any_recent; /* else the list need not be read, which would cost two page faults in each
                           sandbox */
static size_t next_recent;
static struct caller callers[N_CALLERS];
static struct again agains[N_AGAINS];
static bool is_fine; /* virtual time: no two changes of a file in memory with a look between them
                        have the same stamp */
/* The last program: the first address from which its loader, or another caller, called brk; and the
 * last one with a routed stat: the distance between the two. */
static struct {
    pid_t pid;
    uint64_t brk;
    int64_t stat_after_brk; /* 0: not known */
} loader;
static bool is_virtual;

static long stat_file(int fd, const char *path, int flags, struct uapi_statx *ret_file) {
    return sys_call5(__NR_statx, fd, path, flags, STATX_WANTED, ret_file);
}

static uint64_t device_of(const struct uapi_statx *file) {
    return (uint64_t)file->device_major << 32 | file->device_minor;
}

/* The index in a list; `n`: not found. */
static size_t index_of(const uint64_t *list, size_t n, uint64_t wanted) {
    size_t i = 0;

    while (i < n && list[i] != wanted)
        i++;
    return i;
}

static void number_device(uint64_t device) {
    if (device != UINT64_MAX && n_numbered < MAX_NUMBERED &&
        index_of(numbered, n_numbered, device) == n_numbered)
        numbered[n_numbered++] = device;
}

static bool is_private(const struct uapi_statx *file) {
    return index_of(private_mounts, n_private, file->mount) < n_private;
}

/* The minor number that its device is shown with, with 0 as the major one; 0: the real device is
 * shown. */
static uint32_t number_of(const struct uapi_statx *file) {
    if (is_private(file))
        number_device(device_of(file));
    size_t i = index_of(numbered, n_numbered, device_of(file));
    return i < n_numbered ? FIRST_NUMBER - (uint32_t)i : 0;
}

/* In the encoding of stat(2). */
static uint64_t stat_device_of(uint32_t minor) {
    return (minor & 0xff) | (uint64_t)(minor & ~0xffu) << 12;
}

static bool is_templates(const struct uapi_statx *file) {
    return device_of(file) == template_device || device_of(file) == dev_device ||
           device_of(file) == anonymous;
}

static int64_t ns_of(const struct uapi_statx_time *stamp) {
    return stamp->seconds < MARK_S ? stamp->seconds * NS + stamp->nanoseconds : INT64_MAX;
}

static bool is_own(const struct uapi_statx *file) {
    return index_of(mounts, n_mounts, file->mount) < n_mounts;
}

static bool is_made(const struct uapi_statx *file) {
    return file->mount == made[0] || file->mount == made[1];
}

void file_times_prepare(const struct box *box) {
    born_ns = box->since_ns ? box->since_ns : clock_coarse_ns();
    kept_ns = box->generation < LAST_KEPT_NS - KEPT_NS ? KEPT_NS + (int64_t)box->generation
                                                       : LAST_KEPT_NS;
}

/* Is this a private place in memory? */
static bool is_of_memory(const struct plan *plan, const struct plan_op *op) {
    return op->kind == PLAN_OP_PLACE && !op->source && !(plan->flags & PLAN_ON_DISK);
}

static void find_devices(const struct plan *plan) {
    const struct plan_op *ops = plan_items(plan, box_ops, struct plan_op);
    struct uapi_statx file;
    struct stat st;

    for (uint32_t i = 0; i < plan->box_ops.n && own_device == UINT64_MAX; i++)
        if (is_of_memory(plan, &ops[i]) &&
            sys_call4(__NR_newfstatat, AT_FDCWD, plan_text(plan, ops[i].path), &st,
                AT_SYMLINK_NOFOLLOW) == 0)
            own_device = st.st_dev;
    bool is_there = stat_file(AT_FDCWD, "/", 0, &file) == 0;
    template_device = is_there ? device_of(&file) : UINT64_MAX;
    template_ns = is_there ? ns_of(&file.born) : INT64_MAX;
}

static void find_mounts(const struct plan *plan) {
    const struct plan_op *ops = plan_items(plan, box_ops, struct plan_op);
    struct uapi_statx file;

    for (uint32_t i = 0; i < plan->box_ops.n && n_mounts < MAX_MOUNTS; i++) {
        if (ops[i].kind != PLAN_OP_PLACE ||
            stat_file(AT_FDCWD, plan_text(plan, ops[i].path), AT_SYMLINK_NOFOLLOW, &file) < 0)
            continue;
        mounts[n_mounts++] = file.mount;
        if (!is_of_memory(plan, &ops[i]))
            continue;
        private_mounts[n_private++] = file.mount;
        number_device(device_of(&file));
    }
    /* The template is the same for all sandboxes of the policy, unless an image is the root, whose
     * /dev is made for each sandbox. */
    if (stat_file(AT_FDCWD, "/", 0, &file) == 0 && is_own(&file)) {
        template_device = UINT64_MAX;
        template_ns = INT64_MAX;
    }
    dev_device = stat_file(AT_FDCWD, "/dev", 0, &file) == 0 && !is_own(&file) ? device_of(&file)
                                                                              : UINT64_MAX;
    number_device(template_device);
    number_device(dev_device);
    proc_device =
        stat_file(determinism_proc, "", AT_EMPTY_PATH, &file) == 0 ? device_of(&file) : UINT64_MAX;
    made[0] = stat_file(AT_FDCWD, "/dev/pts", 0, &file) == 0 && device_of(&file) != dev_device &&
                      !is_templates(&file)
                  ? file.mount
                  : UINT64_MAX;
    made[1] = stat_file(AT_FDCWD, "/proc/uptime", 0, &file) == 0 &&
                      device_of(&file) != proc_device && !is_templates(&file)
                  ? file.mount
                  : UINT64_MAX;
}

static void need_mounts(void) {
    if (unfound)
        find_mounts(unfound);
    unfound = NULL;
}

/* Most programs ask about no file, so init examines the mounts when one does. But where an image is
 * the root, or a place lies over a host's directory, a guest could move the mounts, so init
 * examines them now. */
void file_times_find_mounts(const struct plan *plan) {
    find_devices(plan);
    unfound = plan;
    if (!ops_begin_empty(plan))
        need_mounts();
}

/* Gets the device in both encodings. */
static void find_device(int fd, uint64_t *ret_device, uint64_t *ret_stat_device) {
    struct uapi_statx file;
    struct stat st;

    if (stat_file(fd, "", AT_EMPTY_PATH, &file) < 0 ||
        sys_call4(__NR_newfstatat, fd, "", &st, AT_EMPTY_PATH) < 0)
        return;
    *ret_device = device_of(&file);
    *ret_stat_device = st.st_dev;
}

/* Since Linux 6.13. Before, a change is stamped with the present tick. A tick may end between two
 * of these changes, but not between each two. */
static bool has_fine_stamps(void) {
    auto_close int fd = (int)sys_call2(__NR_memfd_create, "stamps", MFD_CLOEXEC);
    struct uapi_statx before, after;

    for (unsigned i = 0; i < TRIES; i++)
        if (stat_file(fd, "", AT_EMPTY_PATH, &before) < 0 || sys_call2(__NR_fchmod, fd, 0600) < 0 ||
            stat_file(fd, "", AT_EMPTY_PATH, &after) < 0 ||
            ns_of(&before.changed) == ns_of(&after.changed))
            return false;
    return true;
}

static void find_pipes(void) {
    int ends[2], event = (int)sys_call2(__NR_eventfd2, 0, O_CLOEXEC);

    if (event >= 0) {
        find_device(event, &anonymous, &anonymous_device);
        close(event);
    }
    if (sys_call2(__NR_pipe2, ends, O_CLOEXEC) < 0)
        return;
    find_device(ends[0], &pipes, &pipes_device);
    close(ends[0]);
    close(ends[1]);
}

void file_times_find_out(const struct plan *plan) {
    is_fine = plan->flags & PLAN_VIRTUAL && has_fine_stamps();
    find_pipes();
}

int file_times_begin(const struct plan *plan, int64_t ahead, int64_t before) {
    times_plan = plan;
    begun_ns = clock_coarse_ns();
    begun_finely_ns = clock_real_ns();
    if (pipes == UINT64_MAX)
        file_times_find_out(plan);
    is_virtual = plan->flags & PLAN_VIRTUAL;
    start_ns = plan->clock_seconds * NS + plan->clock_nanoseconds;
    ahead_ns = ahead;
    ahead_before_ns = before;
    told_before_ns = is_virtual ? vtime_time_of_day() : begun_ns + ahead;
    if (!is_virtual || known)
        return 0;
    void *table = mmap(NULL, (N_KNOWN + N_KNOWN_OTHERS) * sizeof *known, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (table == MAP_FAILED)
        return -errno;
    known = table;
    return 0;
}

struct stamps_bounds file_times_bounds(void) {
    bool is_fixed = !is_virtual && ahead_ns == ahead_before_ns;

    return (struct stamps_bounds){ .since_s = (template_ns < born_ns ? template_ns : born_ns) / NS,
        .born_s = born_ns / NS,
        .own_device = is_fixed ? own_device : UINT64_MAX,
        .pipes_device = pipes_device,
        .anonymous_device = anonymous_device,
        .renumbered_device = own_device,
        .renumbered_as = stat_device_of(FIRST_NUMBER) };
}

/* ---- files ---- */

/* Reads a text of the caller, at most MAX_PATH with its end. Its length, or -errno. */
static long read_path(pid_t pid, uint64_t from, char *to) {
    size_t n = 0;

    while (n < MAX_PATH) {
        size_t part = PAGE - (from + n) % PAGE;
        long r =
            process_read_memory(pid, from + n, to + n, part < MAX_PATH - n ? part : MAX_PATH - n);

        if (r <= 0)
            return r < 0 ? r : -EFAULT;
        const char *end = memchr(to + n, '\0', (size_t)r);
        if (end)
            return end - to;
        n += (size_t)r;
    }
    return -ENAMETOOLONG;
}

/* A path as init opens it: "PID/cwd/PATH" below its own /proc; PATH alone if it is absolute. */
struct spelled {
    char text[PREFIX_BYTES + MAX_PATH];
    char *path; /* in `text`; NULL: the descriptor's own file */
    bool is_link;
};

static char *spell_base(pid_t pid, int directory, char *to) {
    char *at = guest_put_number(to, (uint64_t)pid);

    memcpy(at, "/cwd", 5);
    if (directory != AT_FDCWD) {
        memcpy(at, "/fd/", 4);
        at = guest_put_number(at + 4, (uint64_t)directory);
        *at = '\0';
        return at;
    }
    return at + 4;
}

/* 0, or -errno. */
static int spell_path(pid_t pid, const struct place *place, struct spelled *to) {
    char *at = spell_base(pid, place->directory, to->text);
    long length = place->path ? read_path(pid, place->path, at + 1) : 0;

    if (length < 0 || (!length && place->path && !place->may_be_empty))
        return length < 0 ? (int)length : -ENOENT;
    if (place->directory < 0 && place->directory != AT_FDCWD && (!length || at[1] != '/'))
        return -EBADF;
    *at = length ? '/' : '\0';
    to->path = length ? at + 1 : NULL;
    to->is_link = place->is_link && length;
    return 0;
}

/* Opens the path as the caller would, but follows no link of /proc, which would lead to init's own
 * files. */
static int open_path(int base, const char *path, bool is_link) {
    struct open_how how = { .flags = O_PATH | O_CLOEXEC | (is_link ? O_NOFOLLOW : 0),
        .resolve = RESOLVE_NO_MAGICLINKS };

    return sys_openat2(base, path, &how);
}

static bool is_from_root(const struct spelled *spelled) {
    return spelled->path && spelled->path[0] == '/';
}

/* The directory that the path starts in, or the descriptor's own file: AT_FDCWD, which an absolute
 * path does not use; a descriptor; or -errno. This takes init's rights, because /proc hides the
 * descriptors of set-user-id programs even from their own user. */
static int open_base(struct spelled *spelled) {
    if (is_from_root(spelled))
        return AT_FDCWD;
    if (spelled->path)
        spelled->path[-1] = '\0';
    int base = openat(determinism_proc, spelled->text, O_PATH | O_CLOEXEC);
    return base < 0 ? -errno : base;
}

/* An O_PATH descriptor of the file, or -errno. Takes the base over. */
static int open_from(int take_base, const struct spelled *spelled) {
    if (!spelled->path || (take_base < 0 && take_base != AT_FDCWD))
        return take_base;
    int fd = open_path(take_base, spelled->path, spelled->is_link);
    if (take_base >= 0)
        close(take_base);
    return fd;
}

static int open_spelled(struct spelled *spelled) {
    return open_from(open_base(spelled), spelled);
}

/* May the file have stamps from the sandbox's time? */
static bool is_of_sandbox(const struct uapi_statx *file) {
    return is_templates(file) || is_private(file) || file->modified.seconds >= born_ns / NS ||
           file->changed.seconds >= born_ns / NS || file->accessed.seconds >= born_ns / NS ||
           file->born.seconds >= born_ns / NS;
}

/* A single call that excludes most files. A file behind a link of /proc is left to the kernel. */
static bool may_be_told(const struct spelled *spelled) {
    const char *path = is_from_root(spelled) ? spelled->path : spelled->text;
    struct uapi_statx file;

    return stat_file(determinism_proc, path, spelled->is_link ? AT_SYMLINK_NOFOLLOW : 0, &file) ==
               0 &&
           is_of_sandbox(&file);
}

/* ---- stamps ---- */

static struct uapi_statx_time *stamp_of(struct uapi_statx *file, enum stamp which) {
    struct uapi_statx_time *all[N_STAMPS] = { &file->modified, &file->changed, &file->accessed,
        &file->born };

    return all[which];
}

static void set_stamp(struct uapi_statx_time *to, int64_t ns) {
    int64_t fraction = ns % NS < 0 ? ns % NS + NS : ns % NS;

    to->seconds = (ns - fraction) / NS;
    to->nanoseconds = (uint32_t)fraction;
}

/* Is it a stamp that the kernel made in the sandbox's time? Files outside of the sandbox may have
 * newer stamps if those were set, but not newer than the fine clock. Stamps that were looked at
 * (since Linux 6.13), and those of their tick, are from the fine clock; all others are up to a tick
 * behind. */
static bool is_kernels(const struct uapi_statx_time *stamp, int64_t since_ns, bool own) {
    int64_t ns = stamp->seconds > 0 ? ns_of(stamp) : 0;

    return ns != INT64_MAX && ns >= since_ns && (own || ns <= clock_real_ns());
}

static bool is_kept(int64_t seconds, int64_t nanoseconds) {
    return seconds >= 0 && nanoseconds % 1000 >= KEPT_NS;
}

/* Converts a stamp that a guest sets to its stored form. True if that differs. */
static bool mark_time(struct timespec *t) {
    bool wanted = t->tv_sec < MARK_S &&
                  (t->tv_sec >= born_ns / NS || (is_virtual && is_kept(t->tv_sec, t->tv_nsec)));

    t->tv_sec += wanted ? MARK_S : 0;
    return wanted;
}

/* Converts a stamp that init sets. */
static struct timespec kept_time(int64_t ns) {
    struct timespec t = { ns / NS, ns % NS };

    if (t.tv_sec >= born_ns / NS)
        t.tv_sec += 2 * MARK_S;
    else
        t.tv_nsec += kept_ns - t.tv_nsec % 1000;
    return t;
}

/* The reverse. Was it set by init, and if known, how many clocks ago? */
static bool unmark_time(
    struct uapi_statx_time *stamp, bool touched, bool *ret_any, int64_t *ret_ago) {
    bool is_new = stamp->seconds >= 2 * MARK_S,
         is_old = is_virtual && touched && stamp->seconds < born_ns / NS &&
                  is_kept(stamp->seconds, stamp->nanoseconds);
    int64_t digits = stamp->nanoseconds % 1000;

    *ret_ago = is_old && digits < kept_ns ? kept_ns - digits : 1;

    if (stamp->seconds >= MARK_S)
        stamp->seconds -= is_new ? 2 * MARK_S : MARK_S;
    else if (is_old)
        stamp->nanoseconds -= (uint32_t)digits;
    else
        return false;
    *ret_any = true;
    return is_new || is_old;
}

/* Converts a time of an ancestor's clock: the direct ancestor's times begin a day before the start
 * and end before it; each earlier ancestor's a day before those. */
static int64_t long_ago(int64_t ns, int64_t ago) {
    double since = (double)(ns - told_before_ns);

    return told_before_ns - (ago - 1) * (int64_t)LONG_AGO_NS -
           (int64_t)(LONG_AGO_NS * LONG_AGO_NS / (LONG_AGO_NS + since));
}

static int set_stamps(int fd, const struct timespec times[2]) {
    return (int)sys_call4(__NR_utimensat, fd, "", times, AT_EMPTY_PATH);
}

/* Inode numbers of the sandbox's own files are consecutive for each device and repeat between
 * devices. Those of pipes and similar are arbitrary, and use a separate part of the table. */
static struct known *place_of(const struct uapi_statx *file) {
    return &known[is_own(file) ? (file->inode + number_of(file) * LAYER_STRIDE) % N_KNOWN
                               : N_KNOWN + file->inode % N_KNOWN_OTHERS];
}

static bool is_known(const struct known *k, const struct uapi_statx *file) {
    return k->inode == file->inode && k->device == device_of(file) &&
           k->raw_ns[BORN] == ns_of(&file->born);
}

static struct known *find_known(const struct uapi_statx *file, bool *ret_is_new) {
    struct known *k = place_of(file);

    *ret_is_new = !is_known(k, file);
    if (*ret_is_new)
        *k = (struct known){ .device = device_of(file),
            .inode = file->inode,
            .raw_ns = { [BORN] = ns_of(&file->born) },
            .has_lost = k->has_lost || k->is_set };
    return k;
}

/* Virtual time: sets stamps, which is itself a change, at time `ns`. 0 or -errno. */
static int set_at(int fd, const struct timespec times[2], int64_t ns) {
    struct uapi_statx file;
    bool is_new;
    int r = set_stamps(fd, times);

    if (r < 0 || stat_file(fd, "", AT_EMPTY_PATH, &file) < 0)
        return r;
    struct known *k = find_known(&file, &is_new);
    k->is_set |= times[1].tv_nsec != UTIME_OMIT;
    if (times[1].tv_nsec != UTIME_OMIT)
        k->raw_ns[MODIFIED] = NEVER; /* so the next stamp of the kernel counts as a change even if
                                        it is in the same tick */
    for (enum stamp i = CHANGED; i < N_STAMPS; i++)
        if (is_new || i == CHANGED) {
            k->raw_ns[i] = ns_of(stamp_of(&file, i));
            k->told_ns[i] = ns;
        }
    return 0;
}

/* Sets the modification time to this time permanently. */
static void keep_time(int fd, int64_t ns) {
    struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, kept_time(ns) };

    (void)set_at(fd, times, ns);
}

/* The stamp is from the tick of the kernel's clock in which the sandbox's clock began, so it may be
 * from before or after that. */
static bool is_of_beginning(int64_t raw_ns) {
    return raw_ns >= begun_ns && raw_ns <= begun_finely_ns;
}

/* Virtual time: another init set the modification time, before this clock began. Init knows the
 * stamps that it has set itself, unless an entry was evicted. A later change of the inode, as by
 * chmod, does not show when the file was written. */
static bool was_set_before(const struct uapi_statx *file) {
    const struct known *k = place_of(file);
    int64_t raw = ns_of(&file->changed);

    if (raw < begun_ns || !k->has_lost)
        return raw < begun_ns || !(is_known(k, file) && k->is_set);
    return is_of_beginning(raw) && !(is_known(k, file) && k->is_set);
}

/* Only writing moves the clock, because a write is always noticed: the earlier time was set
 * explicitly. With the other stamps, two changes within a tick look like one. */
static void tell_virtual(
    int fd, struct uapi_statx *file, const bool kernels[N_STAMPS], bool own, bool may_be_new) {
    bool is_new, has_changed = false, keeps = false;
    struct known *k = find_known(file, &is_new);
    int64_t now = vtime_time_of_day();

    for (enum stamp i = MODIFIED; i < N_STAMPS; i++) {
        struct uapi_statx_time *stamp = stamp_of(file, i);
        int64_t raw = ns_of(stamp);

        if (!kernels[i])
            continue;
        if (is_new || k->raw_ns[i] != raw || (i == CHANGED && has_changed)) {
            bool before = raw < begun_ns ||
                          (is_of_beginning(raw) && !may_be_new && !(i == CHANGED && has_changed));

            if (i == MODIFIED && own) {
                has_changed = !before;
                /* For files made together with a sandbox that is no fork (its places, and little
                 * else), it is random whether they are from that tick; in a fork, the stamps are
                 * set. */
                keeps = has_changed || is_of_beginning(raw) || kept_ns == KEPT_NS;
                if (has_changed)
                    now = vtime_query_time_of_day();
            }
            k->raw_ns[i] = raw;
            k->told_ns[i] = before ? told_before_ns : now;
        }
        set_stamp(stamp, k->told_ns[i]);
    }
    if (keeps)
        keep_time(fd, k->told_ns[MODIFIED]);
}

/* The stamps of a pipe cannot be set, and would show when other processes wrote to it: under
 * virtual time they are constant. */
static void tell_pipe(struct uapi_statx *file) {
    for (enum stamp i = MODIFIED; i < BORN; i++)
        set_stamp(stamp_of(file, i), is_virtual ? start_ns : ns_of(stamp_of(file, i)) + ahead_ns);
}

/* Terminals have stamps in whole seconds, which may be before the sandbox. Under virtual time they
 * are constant, as for pipes; and they are never from an earlier clock. */
static bool print_made(struct uapi_statx *file) {
    bool any = false;

    for (enum stamp i = MODIFIED; i < N_STAMPS; i++) {
        struct uapi_statx_time *stamp = stamp_of(file, i);

        if (!is_kernels(stamp, born_ns - NS, false))
            continue;
        set_stamp(stamp, is_virtual ? start_ns : ns_of(stamp) + ahead_ns);
        any = true;
    }
    return any;
}

/* Does the file belong to a process? /proc/self means another process for the caller than for
 * init. */
static bool is_of_process(int fd) {
    static const char proc[] = "/proc/";
    char link[32], path[64];
    char *at = link + sizeof "self/fd/" - 1;

    memcpy(link, "self/fd/", sizeof "self/fd/");
    *guest_put_number(at, (uint64_t)fd) = '\0';
    long n = sys_call4(__NR_readlinkat, determinism_proc, link, path, sizeof path);
    if (n < (long)sizeof proc || memcmp(path, proc, sizeof proc - 1))
        return false;
    at = path + sizeof proc - 1;
    return *at >= '1' && *at <= '9' && !(*at == '1' && (n == sizeof proc || at[1] == '/'));
}

/* Its number of links is the host's number of processes; directories of unknown size have one. */
static bool is_proc_root(const struct uapi_statx *file) {
    return device_of(file) == proc_device && file->inode == PROC_ROOT;
}

/* Files that belong to no process are created when any process of the host first looks at them. */
static bool is_of_proc_itself(const struct uapi_statx *file) {
    return is_proc_root(file) || (device_of(file) == proc_device && file->inode >= PROC_NO_PROCESS);
}

/* Converts the stamps to those that the guest sees. False: no change. `may_be_new`: the file may
 * have changed since the clock started. */
static bool report_times(int fd, struct uapi_statx *file, bool may_be_new) {
    bool kernels[N_STAMPS], any = is_templates(file) || is_of_proc_itself(file), own = is_own(file),
                            touched = ns_of(&file->changed) >= born_ns;

    if (device_of(file) == proc_device && !any && !is_of_process(fd))
        return false;
    if (is_made(file))
        return print_made(file);
    if (device_of(file) == pipes) {
        tell_pipe(file);
        return true;
    }
    for (enum stamp i = MODIFIED; any && i < N_STAMPS; i++)
        set_stamp(stamp_of(file, i), told_before_ns);
    if (any)
        return true;
    for (enum stamp i = MODIFIED; i < N_STAMPS; i++) {
        struct uapi_statx_time *stamp = stamp_of(file, i);
        int64_t ago;

        kernels[i] = is_kernels(stamp, own ? born_ns : begun_ns, own);
        any |= kernels[i];
        if (own && !kernels[i] && unmark_time(stamp, touched, &any, &ago) && is_virtual &&
            ns_of(stamp) >= told_before_ns && was_set_before(file))
            set_stamp(stamp, long_ago(ns_of(stamp), ago));
        if (kernels[i] && !is_virtual)
            set_stamp(stamp, ns_of(stamp) + (ns_of(stamp) < begun_ns ? ahead_before_ns : ahead_ns));
    }
    if (any && is_virtual)
        tell_virtual(fd, file, kernels, own, may_be_new);
    return any;
}

/* ---- recently written files (virtual time) ---- */

static void see_recent(const struct recent *recent, bool may_be_new) {
    int fd = open_path(recent->base < 0 ? AT_FDCWD : recent->base, recent->path, false);
    struct uapi_statx file;

    need_mounts();
    if (fd < 0)
        return; /* the file does not exist yet, or is gone */
    if (stat_file(fd, "", AT_EMPTY_PATH, &file) == 0 && is_own(&file))
        (void)report_times(fd, &file, may_be_new);
    close(fd);
}

/* False: there was nothing to inspect. */
static bool settle_recent(void) {
    bool is_any = false;

    for (size_t i = 0; any_recent && i < N_RECENT; i++) {
        const struct recent *recent = &recents[(next_recent + i) % N_RECENT];

        if (recent->is_used)
            see_recent(recent, true);
        is_any |= recent->is_used;
    }
    return is_any;
}

void file_times_settle(void) {
    (void)settle_recent();
}

/* Remembers the file at a path, or its directory. */
static void remember_change(pid_t pid, int directory, const char *path, bool parent) {
    size_t length = strlen(path);
    struct recent *recent = &recents[next_recent];

    if (parent) {
        while (length && path[length - 1] == '/')
            length--;
        while (length && path[length - 1] != '/')
            length--;
    }
    if (length >= RECENT_PATH - 1 || (path[0] != '/' && directory < 0 && directory != AT_FDCWD))
        return;
    if (recent->is_used && recent->base >= 0)
        close(recent->base);
    recent->is_used = false;
    recent->base = -1;
    if (path[0] != '/') {
        char base[PREFIX_BYTES];

        (void)spell_base(pid, directory, base);
        recent->base = openat(determinism_proc, base, O_PATH | O_CLOEXEC);
        if (recent->base < 0)
            return;
    }
    memcpy(recent->path, path, length);
    recent->path[length] = '\0';
    if (!length)
        memcpy(recent->path, ".", 2);
    recent->is_used = any_recent = true;
    see_recent(recent, false);
    next_recent = (next_recent + 1) % N_RECENT;
}

/* A change that a call is about to make: to the files at one or two paths, or to their
 * directories. */
struct change {
    int directories[2];
    uint64_t paths[2]; /* in the caller's memory; 0: none */
    bool is_file, is_parent;
};

static bool change_at(
    struct change *to, int directory, uint64_t path, bool is_file, bool is_parent) {
    *to = (struct change){
        .directories = { directory }, .paths = { path }, .is_file = is_file, .is_parent = is_parent
    };
    return true;
}

static bool at_both(
    struct change *to, int first, uint64_t first_path, int second, uint64_t second_path) {
    *to = (struct change){
        .directories = { first, second }, .paths = { first_path, second_path }, .is_parent = true
    };
    return true;
}

static bool change_of_open(struct change *to, int directory, uint64_t path, uint64_t flags) {
    return change_at(to, directory, path, true, flags & O_CREAT) && flags & WRITES;
}

/* False: the call changes nothing. */
static bool find_change(const struct seccomp_notif *question, struct change *ret_change) {
    const uint64_t *a = (const uint64_t *)question->data.args;
    uint64_t flags;

    switch (question->data.nr) {
    case __NR_open:
        return change_of_open(ret_change, AT_FDCWD, a[0], a[1]);
    case __NR_creat:
        return change_of_open(ret_change, AT_FDCWD, a[0], O_CREAT);
    case __NR_openat:
        return change_of_open(ret_change, (int)a[0], a[1], a[2]);
    case __NR_openat2:
        return process_read_memory((pid_t)question->pid, a[2], &flags, sizeof flags) ==
                   (long)sizeof flags &&
               change_of_open(ret_change, (int)a[0], a[1], flags);
    case __NR_truncate:
        return change_at(ret_change, AT_FDCWD, a[0], true, false);
    case __NR_mkdir:
    case __NR_mknod:
        return change_at(ret_change, AT_FDCWD, a[0], true, true);
    case __NR_mkdirat:
    case __NR_mknodat:
        return change_at(ret_change, (int)a[0], a[1], true, true);
    case __NR_unlink:
    case __NR_rmdir:
        return change_at(ret_change, AT_FDCWD, a[0], false, true);
    case __NR_unlinkat:
        return change_at(ret_change, (int)a[0], a[1], false, true);
    case __NR_symlink:
        return change_at(ret_change, AT_FDCWD, a[1], false, true);
    case __NR_symlinkat:
        return change_at(ret_change, (int)a[1], a[2], false, true);
    case __NR_rename:
    case __NR_link:
        return at_both(ret_change, AT_FDCWD, a[0], AT_FDCWD, a[1]);
    case __NR_renameat:
    case __NR_renameat2:
    case __NR_linkat:
        return at_both(ret_change, (int)a[0], a[1], (int)a[2], a[3]);
    default:
        return false;
    }
}

/* Earlier changes are inspected first, so that they are older. */
static void record_change(pid_t pid, const struct change *change) {
    static char path[MAX_PATH];

    file_times_settle();
    for (size_t i = 0; i < 2; i++) {
        if (!change->paths[i] || read_path(pid, change->paths[i], path) <= 0)
            continue;
        if (change->is_parent)
            remember_change(pid, change->directories[i], path, true);
        if (change->is_file)
            remember_change(pid, change->directories[i], path, false);
    }
}

/* ---- questions ---- */

static void put_time(struct timespec *to, const struct uapi_statx_time *from) {
    *to = (struct timespec){ from->seconds, from->nanoseconds };
}

/* Shows a file's times. If the file has changed, other changed files are inspected first: the
 * result must not depend on which tick the kernel's clock is in. */
static bool show_times(int fd, struct uapi_statx *file) {
    if (is_virtual && is_own(file) && is_kernels(&file->modified, born_ns, true) &&
        settle_recent() && stat_file(fd, "", AT_EMPTY_PATH, file) < 0)
        return false;
    return report_times(fd, file, false);
}

/* Opens the file that a call is about with the rights of its caller, in a sandbox of many users. If
 * it has a file, or -errno, caller_end() is due only with a file. */
static int open_as_caller(
    int listener, const struct seccomp_notif *question, struct spelled *spelled) {
    int base = open_base(spelled);
    int r = base < 0 && base != AT_FDCWD             ? base
            : !caller_has_root(times_plan, question) ? -EXDEV
                                                     : caller_begin(times_plan, listener, question);

    if (r < 0) {
        if (base >= 0)
            close(base);
        return r;
    }
    int fd = open_from(base, spelled);
    if (fd < 0)
        caller_end(times_plan);
    return fd;
}

/* Opens the file that a call is about, if init may answer for it; or -errno. */
static int open_shown(
    int listener, const struct seccomp_notif *question, const struct place *place) {
    static struct spelled spelled;
    struct uapi_statx file;

    need_mounts();
    int r = spell_path((pid_t)question->pid, place, &spelled);

    if (r < 0)
        return r;
    if (!(times_plan->flags & PLAN_MANY_USERS) || !spelled.path)
        return may_be_told(&spelled) ? open_spelled(&spelled) : -ENOENT;
    int fd = open_as_caller(listener, question, &spelled);
    if (fd < 0)
        return fd;
    caller_end(times_plan);
    if (stat_file(fd, "", AT_EMPTY_PATH, &file) == 0 && is_of_sandbox(&file))
        return fd;
    close(fd);
    return -ENOENT;
}

static bool is_stamp(const struct timespec *t, const struct uapi_statx_time *stamp) {
    return t->tv_sec == stamp->seconds && t->tv_nsec == (long)stamp->nanoseconds;
}

/* Stores the times in the process's vDSO, which shows them again without a call to init as long as
 * the kernel's stamps are the same. `seen`: the stamps before they were shown; if they differ now,
 * the file was changed, by init or meanwhile. */
static void tell_vdso(
    pid_t pid, const struct uapi_statx *seen, const struct stat *raw, const struct stat *told) {
    struct again *again = &agains[(uint64_t)raw->st_ino % N_AGAINS];
    uint64_t vdso;

    if (!is_fine || raw->st_dev != own_device)
        return;
    bool is_again = again->pid == pid && again->inode == raw->st_ino;
    *again = (struct again){ pid, raw->st_ino };
    if (!is_again || !is_own(seen) || !is_stamp(&raw->st_mtim, &seen->modified) ||
        !is_stamp(&raw->st_ctim, &seen->changed) || !is_stamp(&raw->st_atim, &seen->accessed))
        return;
    if (process_vdso_of(pid, &vdso))
        (void)vdso_tell_stat(pid, vdso,
            &(struct vdso_told){ raw->st_dev, raw->st_ino,
                { raw->st_atim, raw->st_mtim, raw->st_ctim },
                { told->st_atim, told->st_mtim, told->st_ctim } });
}

/* Writes the whole answer or nothing: a buffer with room for a part is a bad address. */
static void answer_with(int listener, const struct seccomp_notif *question, uint64_t to,
    const void *from, size_t size) {
    long r = process_write_memory((pid_t)question->pid, to, from, size);

    answer_written(listener, question->id, r < 0 || r == (long)size ? r : -EFAULT, 0);
}

static bool answer_stat(
    int listener, const struct seccomp_notif *question, const struct place *place, uint64_t to) {
    auto_close int fd = open_shown(listener, question, place);
    struct uapi_statx seen, file;
    struct stat raw, st;

    if (fd < 0 || stat_file(fd, "", AT_EMPTY_PATH, &seen) < 0)
        return false;
    file = seen;
    uint32_t minor = number_of(&seen);
    if ((!show_times(fd, &file) && !minor) ||
        sys_call4(__NR_newfstatat, fd, "", &raw, AT_EMPTY_PATH) < 0)
        return false;
    st = raw;
    st.st_dev = minor ? stat_device_of(minor) : raw.st_dev;
    put_time(&st.st_mtim, &file.modified);
    put_time(&st.st_ctim, &file.changed);
    put_time(&st.st_atim, &file.accessed);
    st.st_nlink = is_proc_root(&file) ? 1 : st.st_nlink;
    tell_vdso((pid_t)question->pid, &seen, &raw, &st);
    answer_with(listener, question, to, &st, sizeof st);
    return true;
}

static bool answer_statx(int listener, const struct seccomp_notif *question) {
    const uint64_t *a = (const uint64_t *)question->data.args;
    int flags = (int)a[2], fd;
    struct place place = { (int)a[0], a[1], flags & AT_SYMLINK_NOFOLLOW, flags & AT_EMPTY_PATH };
    struct uapi_statx file, theirs;
    bool told = false;

    if (flags & ~STATX_FLAGS || (!a[1] && !place.may_be_empty) ||
        (fd = open_shown(listener, question, &place)) < 0)
        return false;
    if (stat_file(fd, "", AT_EMPTY_PATH, &file) == 0 &&
        (show_times(fd, &file) || number_of(&file)) &&
        sys_call5(__NR_statx, fd, "", AT_EMPTY_PATH | (flags & 0x6000), (uint32_t)a[3], &theirs) ==
            0) {
        for (enum stamp i = MODIFIED; i < N_STAMPS; i++)
            if (stamp_of(&theirs, i)->seconds ||
                stamp_of(&theirs, i)->nanoseconds) /* fields that were not requested are zero */
                *stamp_of(&theirs, i) = *stamp_of(&file, i);
        theirs.nlink = is_proc_root(&file) ? 1 : theirs.nlink;
        uint32_t minor = number_of(&file);
        theirs.device_minor = minor ? minor : theirs.device_minor;
        answer_with(listener, question, a[4], &theirs, sizeof theirs);
        told = true;
    }
    close(fd);
    return told;
}

/* Converts the times of utime, utimes and futimesat to those of utimensat. False: the kernel
 * reports the error. */
static bool read_times(const struct seccomp_notif *question, uint64_t from, struct timespec to[2]) {
    bool micro = question->data.nr == __NR_utimes || question->data.nr == __NR_futimesat;
    int64_t times[4];
    size_t n = question->data.nr == __NR_utime ? 2 * sizeof times[0] : sizeof times;

    to[0] = to[1] = (struct timespec){ .tv_nsec = UTIME_NOW };
    if (!from)
        return true;
    if (process_read_memory((pid_t)question->pid, from, times, n) != (long)n)
        return false;
    for (unsigned i = 0; i < 2; i++) {
        if (question->data.nr == __NR_utime)
            to[i] = (struct timespec){ times[i], 0 };
        else if (!micro)
            to[i] = (struct timespec){ times[2 * i], times[2 * i + 1] };
        else if (times[2 * i + 1] >= 0 && times[2 * i + 1] < NS / 1000)
            to[i] = (struct timespec){ times[2 * i], times[2 * i + 1] * 1000 };
        else
            return false;
    }
    return true;
}

/* Prepares the times for a call that sets them. False: the kernel makes the call unchanged. */
static bool prepare_times(struct timespec times[2], bool own, int64_t *ret_now_ns) {
    bool ours = false;
    int64_t now = 0;

    for (unsigned i = 0; i < 2; i++) {
        if (times[i].tv_nsec == UTIME_OMIT)
            continue;
        if (times[i].tv_nsec == UTIME_NOW) {
            if (!is_virtual || !own)
                continue;
            if (!now)
                now = vtime_query_time_of_day();
            times[i] = kept_time(now);
            ours = true;
        } else
            ours |= own && mark_time(&times[i]);
    }
    *ret_now_ns = is_virtual && ours && !now ? vtime_query_time_of_day() : now;
    return ours;
}

static bool answer_set(
    int listener, const struct seccomp_notif *question, const struct place *place, uint64_t from) {
    static struct spelled spelled;
    struct timespec times[2];
    struct uapi_statx file;
    int64_t now;

    need_mounts();
    if (!read_times(question, from, times) || spell_path((pid_t)question->pid, place, &spelled) < 0)
        return false;
    int fd = open_as_caller(listener, question, &spelled);
    if (fd < 0)
        return false;
    bool done = stat_file(fd, "", AT_EMPTY_PATH, &file) == 0 &&
                prepare_times(times, is_own(&file), &now) &&
                (is_virtual ? set_at(fd, times, now) : set_stamps(fd, times)) == 0;
    caller_end(times_plan);
    close(fd);
    if (done)
        answer_call(listener, question->id, 0, 0);
    return done;
}

/* A program with the same loader as the one before has this call routed as it starts. */
static void route_call(pid_t pid, uint64_t vdso, uint64_t address) {
    int64_t after_brk = (int64_t)(address - loader.brk);

    if (vdso_route_stat(pid, vdso, address) == 0 && loader.pid == pid && loader.brk &&
        after_brk > -MOST_OF_LOADER && after_brk < MOST_OF_LOADER)
        loader.stat_after_brk = after_brk;
}

/* A process that often calls from one address may have that call routed to the vDSO. */
static void count_call(const struct seccomp_notif *question) {
    struct caller *caller =
        &callers[((uint64_t)question->pid * 7 + question->data.instruction_pointer / 16) %
                 N_CALLERS];
    uint64_t vdso;

    if (caller->pid != (pid_t)question->pid ||
        caller->address != question->data.instruction_pointer)
        *caller = (struct caller){ .pid = (pid_t)question->pid,
            .address = question->data.instruction_pointer };
    if (++caller->n == OFTEN && !serial_is_on() && process_is_single((pid_t)question->pid) &&
        process_vdso_of((pid_t)question->pid, &vdso))
        route_call((pid_t)question->pid, vdso, question->data.instruction_pointer);
}

uint64_t file_times_executed(pid_t pid, uint64_t address) {
    for (size_t i = 0; i < N_CALLERS; i++)
        if (callers[i].pid == pid)
            callers[i].pid = 0;
    loader.pid = pid;
    loader.brk = address;
    return address && loader.stat_after_brk ? address + (uint64_t)loader.stat_after_brk : 0;
}

bool file_times_answer(
    const struct plan *plan, int listener, const struct seccomp_notif *question) {
    const uint64_t *a = (const uint64_t *)question->data.args;
    struct change change;
    int flags = (int)a[3];

    if (!(plan->flags & PLAN_CLOCK))
        return false;
    switch (question->data.nr) {
    case __NR_stat:
        return answer_stat(
            listener, question, &(struct place){ .directory = AT_FDCWD, .path = a[0] }, a[1]);
    case __NR_lstat:
        return answer_stat(listener, question,
            &(struct place){ .directory = AT_FDCWD, .path = a[0], .is_link = true }, a[1]);
    case __NR_fstat:
        return (int)a[0] >= 0 &&
               answer_stat(listener, question, &(struct place){ .directory = (int)a[0] }, a[1]);
    case __NR_newfstatat:
        count_call(question);
        return !(flags & ~(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH | AT_NO_AUTOMOUNT)) &&
               (a[1] || flags & AT_EMPTY_PATH) &&
               answer_stat(listener, question,
                   &(struct place){
                       (int)a[0], a[1], flags & AT_SYMLINK_NOFOLLOW, flags & AT_EMPTY_PATH },
                   a[2]);
    case __NR_statx:
        return answer_statx(listener, question);
    case __NR_utime:
    case __NR_utimes:
        return a[0] && answer_set(listener, question,
                           &(struct place){ .directory = AT_FDCWD, .path = a[0] }, a[1]);
    case __NR_futimesat:
        return answer_set(
            listener, question, &(struct place){ .directory = (int)a[0], .path = a[1] }, a[2]);
    case __NR_utimensat:
        return !(flags & ~(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH)) &&
               (a[1] || (!flags && (int)a[0] >= 0)) &&
               answer_set(listener, question,
                   &(struct place){
                       (int)a[0], a[1], flags & AT_SYMLINK_NOFOLLOW, flags & AT_EMPTY_PATH },
                   a[2]);
    default:
        if (is_virtual && find_change(question, &change))
            record_change((pid_t)question->pid, &change);
        return false;
    }
}
