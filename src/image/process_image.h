/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process image: the file format that src/dump writes and the guest layer restores.
 *
 * It is one file without pointers: the pages first, then tables at the offsets that the header
 * gives, and at the very end the header, so that an incomplete file has none. It is valid for the
 * kernel release and the build that it names (docs/reference/image-format.md). A guest could choose
 * most of its content, so a loader checks every range and index. Registers and pages concern only
 * the guest itself.
 *
 * An *incremental image* refers to an earlier image of the same processes, its *parent image*. It
 * has no pages for unchanged memory, but refers to the pages of the parent (`kept`). It is used
 * while the parent image is loaded (restore/incremental.c).
 */
#ifndef ROLLBOX_IMAGE_PROCESS_IMAGE_H
#define ROLLBOX_IMAGE_PROCESS_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IMAGE_MAGIC 0x39456d4978427852ull
#define IMAGE_PAGE 4096u
#define IMAGE_TABLE 64u /* alignment of tables and header */
#define IMAGE_MAX_PROCESSES 512u
#define IMAGE_MAX_THREADS 4096u
#define IMAGE_MAX_AREAS 262144u
#define IMAGE_MAX_RUNS 1048576u
#define IMAGE_MAX_ACTIONS 65536u
#define IMAGE_MAX_PENDING 1048576u
#define IMAGE_MAX_TIMERS 65536u
#define IMAGE_MAX_LOCKS 65536u
#define IMAGE_MAX_TARGETS 1048576u
#define IMAGE_MAX_GUARDS 262144u
#define IMAGE_MAX_KEPT 1048576u
#define IMAGE_MAX_FILES 4096u
#define IMAGE_MAX_FDS 65536u
#define IMAGE_MAX_WATCHES 65536u /* also the highest watch number */
#define IMAGE_MAX_NOTED 32u      /* images with more processes have no dirty tracking */
#define IMAGE_MAX_TERMINALS 64u  /* the limit of a sandbox's devpts */
#define IMAGE_MAX_XSTATE 3072u   /* fits into IMAGE_FRAME with the rest of a signal frame */
#define IMAGE_SIGNALS 64
#define IMAGE_MAX_GROUPS 65536u
#define IMAGE_IDS 65536u                 /* ids of a sandbox with many users */
#define IMAGE_CAPABILITIES 0x800425fbull /* all that a process of one can have */
#define IMAGE_RLIMITS 16
#define IMAGE_MAX_WAITS 4096u
#define IMAGE_MAX_ALARMS 256u
#define IMAGE_MAX_SEGMENTS 4096u /* the kernel's limit of a new namespace (SHMMNI) */

/* The range of guest memory. Init itself is below it (meson.build links it there), the kernel
 * above. Between init and guest memory is what the last steps of restore need and leave behind: a
 * frame for each thread, and two pages. */
#define IMAGE_LOWEST 0x400000ull
#define IMAGE_HIGHEST 0x7ffffffff000ull
#define IMAGE_TRAMPOLINE 0x3ff000ull /* the code */
#define IMAGE_THREAD_BARRIER                                                                       \
    0x3fe000ull /* two words for the synchronisation of a process's threads */
#define IMAGE_FRAMES 0x300000ull
#define IMAGE_FRAME 4096u
/* The memory of the restoring program, in a part of this range where no process of the image has
 * anything: 32 TiB, far from the default addresses of the kernel, Go and Java. */
#define IMAGE_REGIONS 0x200000000000ull
#define IMAGE_REGIONS_END 0x300000000000ull /* limit of all processes together */
#define IMAGE_MAX_OWN_THREADS                                                                      \
    ((IMAGE_THREAD_BARRIER - IMAGE_FRAMES) / IMAGE_FRAME) /* limit of one process */

/* A table: its offset and number of entries. */
struct image_part {
    uint64_t at, n;
};

/* Entries of a table: the first and their number. */
struct image_range {
    uint32_t first, n;
};

/* ---- memory ---- */

enum image_area_kind {
    IMAGE_ANONYMOUS = 1, /* also a private file mapping with changed pages: it is saved in full */
    IMAGE_STACK,         /* grows downwards */
    IMAGE_FILE,   /* private and unchanged, or shared: mapped again from the file at `path` */
    IMAGE_MEMORY, /* shared memory without a name, or a memory file: `path` is its index among the
                     files */
    IMAGE_VVAR,   /* the kernel's own, moved to the process's addresses, in this order */
    IMAGE_VDSO,
    IMAGE_SEGMENT, /* System V shared memory: `path` is its index among the segments */
};

enum image_forgets { IMAGE_WIPED = 1 /* MADV_WIPEONFORK */, IMAGE_DROPPABLE /* MAP_DROPPABLE */ };

struct image_area {
    uint64_t start, end;
    uint32_t kind;       /* enum image_area_kind */
    uint32_t protection; /* PROT_* */
    uint64_t path; /* FILE: offset of its NUL-terminated path; areas of the same file have the same
                      offset */
    uint64_t offset; /* FILE, MEMORY, SEGMENT: offset in the file or segment */
    uint32_t is_shared;
    uint32_t is_written; /* FILE: shared and opened for writing; size and time are not compared */
    uint32_t forgets;    /* enum image_forgets: memory that must not be duplicated (states of random
                            generators), so its content is not saved */
    uint32_t flags;      /* IMAGE_NO_DUMP... */
    uint64_t inode, size; /* FILE: the file at the path must match all but the inode */
    int64_t mtime_s, mtime_ns;
    struct image_range runs; /* saved pages */
    struct image_range guards;
    struct image_range kept; /* incremental image: pages in the parent image */
};

#define IMAGE_NOT_FORKED 1u /* MADV_DONTFORK */
#define IMAGE_READ_ONLY                                                                            \
    2u /* MEMORY: must not be made writable: the descriptor was read-only, or a seal forbids it.   \
          SEGMENT: attached with SHM_RDONLY */

/* Pages that are adjacent in memory and in the image. All other pages of the area are zero. */
struct image_run {
    uint64_t address, length; /* address; in a memory file: offset */
    uint64_t at;              /* offset in the image */
};

/* Pages in the parent image, at the same address. */
struct image_kept {
    uint64_t address, length;
    uint64_t at; /* offset in the parent image */
};

/* A segment of System V shared memory. Processes attach it as areas, or none does. */
struct image_segment {
    uint32_t id, key;      /* key 0: IPC_PRIVATE */
    uint64_t size;         /* in bytes, as for shmget(2) */
    uint32_t mode;         /* permission bits */
    uint32_t is_removed;   /* it ends with its last attachment (SHM_DEST) */
    uint32_t owner, group; /* these four with many users, else 0 */
    uint32_t creator, creator_group;
    struct image_range runs; /* by offset; all other pages are zero */
};

/* Guard pages of an area (MADV_GUARD_INSTALL). */
struct image_guard {
    uint64_t address, length;
};

/* Memory that a restored process is likely to touch, because an earlier one did: a file of these,
 * by address. */
struct image_touch {
    uint64_t address, length;
    uint64_t is_written; /* else it is only read */
};

#define IMAGE_MAX_TOUCHES 16384u

/* ---- descriptors ---- */

enum image_file_kind {
    IMAGE_FILE_PATH = 1, /* opened by its path; `mode` has the kind of file */
    IMAGE_FILE_EXTERNAL, /* number `value` of the descriptors that are passed to the restore */
    IMAGE_FILE_PIPE,     /* an end of pipe `value` */
    IMAGE_FILE_MEMORY, /* a memory file, a deleted file or shared memory: its pages are `runs`, its
                          length `length` */
    IMAGE_FILE_EVENT,  /* eventfd: its count is `value` */
    IMAGE_FILE_EPOLL,  /* its entries are `targets`, by descriptor numbers of the process with pid
                          `value` */
    IMAGE_FILE_TIMER,  /* timerfd: clock `value`; `timer` */
    IMAGE_FILE_SIGNAL, /* signalfd: its mask is `value` */
    IMAGE_FILE_SOCKET, /* a Unix socket: connected to file `peer` - 1, or (0) to a closed one. With
                          `is_alone`, not connected; its datagrams go to `peer` - 1 if there is one.
                          Or an internet socket: TCP in the same way; UDP alone, perhaps connected
                          to `remote` */
    IMAGE_FILE_PIDFD,  /* of process `value`, a pid inside the sandbox */
    IMAGE_FILE_MASTER, /* master of terminal `value` */
    IMAGE_FILE_TERMINAL, /* terminal `value` itself */
    IMAGE_FILE_HUNG_UP,  /* a terminal whose master is closed */
    IMAGE_FILE_NOTIFY,   /* inotify: `targets` refers to the table of watches, in order of number */
    IMAGE_FILE_CLOCK,    /* the page of a virtual clock, which init has */
};

#define IMAGE_REUSE_ADDRESS 1u
#define IMAGE_REUSE_PORT 2u
#define IMAGE_KEEP_ALIVE 4u
#define IMAGE_BROADCAST 8u
#define IMAGE_V6_ONLY 16u
#define IMAGE_NO_DELAY 32u

/* How a connection has ended that is neither open nor ended by its other end. */
enum image_failure {
    IMAGE_RESET = 1, /* reset, after the unread data had arrived: ECONNRESET */
    IMAGE_REFUSED,   /* never accepted: ECONNREFUSED */
};

/* Of TCP: TCP_KEEPIDLE, _KEEPINTVL, _KEEPCNT, _USER_TIMEOUT, and SO_LINGER: 0 or its seconds + 1.
 */
#define IMAGE_TUNING 5u

/* An open file description, which several descriptors of several processes may share. */
struct image_file {
    uint32_t kind;        /* enum image_file_kind */
    uint32_t flags;       /* O_* */
    uint32_t mode;        /* of st_mode */
    uint32_t is_nameless; /* MEMORY: a deleted file, created again without a name in directory
                             `path` (0: a memory file) */
    uint64_t path;        /* PATH: its path; MEMORY: its name */
    uint64_t offset; /* file position; TIMER: time of day when it expires, in nanoseconds; 0: after
                        the rest in `timer` */
    uint64_t value;
    uint64_t length; /* MEMORY: length; TIMER: index among the alarms + 1 */
    uint64_t seals;  /* MEMORY; TIMER, with `offset`: TFD_TIMER_* */
    struct image_range runs, targets;
    uint64_t timer[4]; /* TIMER: seconds and nanoseconds of its interval, and of the time that is
                          left; 0: not set */
    uint64_t ticks;
    /* SOCKET: */
    uint32_t peer, type; /* its SOCK_* */
    uint32_t is_alone;   /* not connected */
    uint32_t is_shut;    /* bits: 1: shut for reading, 2: for writing */
    uint32_t backlog;    /* listening, with this backlog; 0: not listening */
    uint32_t passes_credentials;
    uint32_t domain, protocol;
    /* With many users. MEMORY: the file's owner. SOCKET, of Unix: SO_PEERCRED, and the sender of
     * its unread data. */
    uint32_t owner, group;
    uint32_t sender, sender_group;
    /* O_ASYNC: the process that sets it (index + 1; 0: not set), as the owner's signals are sent
     * with the rights of the one who named the owner; F_SETSIG; F_SETOWN_EX: type and pid, 0: none.
     */
    uint32_t signaller, signal;
    int32_t signalled_type, signalled;
    uint32_t options;               /* IMAGE_REUSE_ADDRESS... */
    uint32_t fixed;                 /* SO_BUF_LOCK */
    uint64_t name, name_length;     /* sockaddr of its own address */
    uint64_t remote, remote_length; /* sockaddr of the remote address */
    uint32_t tuning[IMAGE_TUNING];
    uint32_t failure; /* of TCP: enum image_failure; the process has not read the error yet */
    uint64_t data, data_length; /* unread data: messages, each a length (u64) and bytes, padded to
                                   8; of a FIFO, also PATH: bytes */
    uint64_t buffers[2];        /* SO_SNDBUF, SO_RCVBUF */
    uint64_t patience[2];       /* SO_SNDTIMEO, SO_RCVTIMEO in microseconds; 0: none */
};

struct image_pipe {
    uint64_t data, length; /* content */
    uint64_t capacity;
};

/* Of inotify(7). */
struct image_watch {
    uint32_t number, mask;
    uint64_t path;
};

/* The kernel's struct termios2. */
struct image_modes {
    uint32_t input, output, control, local;
    unsigned char line, characters[19];
    uint32_t speeds[2];
};

/* A pseudo-terminal of the sandbox. */
struct image_terminal {
    uint32_t number; /* number below /dev/pts; entries are in this order */
    uint32_t lent;  /* its master belongs to a command and is passed to the restore: index + 1; 0: a
                       file of the image, or closed */
    uint32_t state; /* IMAGE_TERMINAL_... */
    uint32_t foreground; /* foreground process group, inside the sandbox; 0: that of the session's
                            leader, or none */
    uint16_t rows, columns, width, height; /* struct winsize */
    struct image_modes modes;
    uint32_t owner, group, mode;    /* of its file; with many users */
    uint64_t output, output_length; /* data written to the terminal and not read from its master */
    uint64_t input, input_length;   /* data typed and not read: struct tty_typed */
};

#define IMAGE_TERMINAL_PACKETS 1u   /* TIOCPKT */
#define IMAGE_TERMINAL_LOCKED 2u    /* TIOCSPTLCK */
#define IMAGE_TERMINAL_EXCLUSIVE 4u /* TIOCEXCL */
#define IMAGE_TERMINAL_UNOPENED 8u  /* never opened so far: its master does not report a hang-up */

struct image_target {
    uint32_t fd, events;
    uint64_t data;
};

struct image_fd {
    uint32_t number, file;
    uint32_t is_closed_on_exec, unused;
};

/* ---- processes ---- */

/* The kernel's format for rt_sigaction. */
struct image_action {
    uint64_t number; /* signal number; signals with the default action are left out */
    uint64_t handler, flags, restorer, mask;
};

/* timer_create(2). */
struct image_timer {
    uint32_t id, clock;
    uint32_t signal, notify; /* SIGEV_* */
    uint32_t tid, unused;    /* SIGEV_THREAD_ID: inside */
    uint64_t value;          /* sigval */
    uint64_t time[4];        /* struct itimerspec: the interval and the remaining time */
};

enum image_lock_kind { IMAGE_LOCK_FLOCK = 1, IMAGE_LOCK_POSIX, IMAGE_LOCK_OFD };

/* A lock through descriptor `fd` of the process. */
struct image_lock {
    uint32_t fd, kind; /* enum image_lock_kind */
    uint32_t is_write, unused;
    uint64_t start, length; /* length 0: to the end */
};

/* A pending signal: the kernel's siginfo. */
struct image_pending {
    unsigned char info[128];
};

/* In the order of PTRACE_GETREGS (struct user_regs_struct), x86-64. */
struct image_registers {
    uint64_t r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi, orig_rax, rip,
        cs, eflags, rsp, ss, fs_base, gs_base, ds, es, fs, gs;
};

/* The argument of PR_SET_MM_MAP. */
struct image_layout {
    uint64_t start_code, end_code, start_data, end_data, start_brk, brk, start_stack, arg_start,
        arg_end, env_start, env_end;
};

/* What happens to an interrupted call, which is about to be restarted, if a signal is handled
 * first. */
enum image_interruption {
    IMAGE_GOES_ON,               /* it is restarted, or there was no call */
    IMAGE_ENDS_UNLESS_RESTARTED, /* EINTR, except after handlers with SA_RESTART */
    IMAGE_ENDS,                  /* with EINTR */
};

/* Rights of threads of a sandbox with many users. Ids are inside the sandbox. */
struct image_credentials {
    uint32_t uids[4], gids[4]; /* real, effective, saved, of files */
    struct image_range groups; /* supplementary */
    uint64_t permitted, effective, inheritable, ambient, bounds; /* capabilities, by bit */
    uint32_t secure_bits, has_no_new_privileges;
};

struct image_thread {
    uint32_t tid;          /* inside the sandbox */
    uint32_t interruption; /* enum image_interruption */
    struct image_registers registers;
    uint64_t signal_mask;
    uint64_t alternate_stack[3]; /* stack_t */
    uint64_t robust_list, robust_length;
    uint64_t clear_tid; /* set_tid_address */
    uint64_t rseq, rseq_length, rseq_signature;
    uint64_t xstate,
        xstate_length;        /* offset and length; the format of PTRACE_GETREGSET NT_X86_XSTATE */
    uint64_t xstate_features; /* the components of the extended state */
    struct image_range pending;
    char name[16];        /* comm */
    uint32_t credentials; /* index + 1; 0: the sandbox has one user */
    uint32_t unused;
};

enum image_process_kind {
    IMAGE_LIVING = 1,
    IMAGE_ZOMBIE,      /* ended with `status`, not waited for yet */
    IMAGE_DEAD_LEADER, /* a ghost: dead, but it was the leader of a session or group; it exists
                          until the members are made */
};

struct image_process {
    uint32_t kind;                /* enum image_process_kind */
    uint32_t pid, session, group; /* inside the sandbox */
    uint32_t parent;              /* index of the parent + 1; parents come first. 0: init */
    uint32_t umask;
    uint16_t status;  /* ZOMBIE: status as from wait(2) */
    uint16_t goodbye; /* LIVING: the signal that it sends its parent at its end + 1; 0: SIGCHLD */
    uint32_t is_subreaper, death_signal;
    uint32_t terminal; /* controlling terminal: index + 1; 0: none */
    uint32_t is_fresh; /* its vDSO is unpatched: with random_seed or time_start, the process has not
                          started to run */
    uint32_t barriers; /* registrations with membarrier(2), MEMBARRIER_CMD_REGISTER_* */
    uint32_t is_closed, unused; /* with many users: it is not dumpable */
    struct image_layout layout;
    uint64_t executable, directory;    /* offsets of paths */
    uint64_t root;                     /* the same, of chroot(2); "": the sandbox's */
    uint64_t auxv, auxv_length;        /* offset, bytes */
    uint64_t limits[IMAGE_RLIMITS][2]; /* soft, hard */
    uint64_t timers[3][4];             /* ITIMER_REAL, _VIRTUAL, _PROF: struct itimerval */
    struct image_range areas;          /* by address */
    struct image_range threads;        /* the first is the main thread */
    struct image_range actions, pending, posix_timers, locks;
    struct image_range fds; /* by number */
};

/* ---- random_seed and time_start ---- */

#define IMAGE_NEVER (1ll << 61) /* the maximum of a virtual clock */
#define IMAGE_VIRTUAL 1u        /* in `flags`: the clock is virtual */

/* The state of init (guest/quiesce.h), except for random streams, which are among the processes'
 * limits. */
struct image_determinism {
    uint32_t is_there, flags;
    uint32_t last_pid; /* the last pid that was given out */
    uint32_t unused;
    uint64_t n_commands;    /* number of commands so far */
    int64_t ahead_ns;       /* the time of day minus the kernel's; only the dump needs it */
    uint64_t ticks, jumped; /* the virtual clock, in nanoseconds */
    uint64_t page_device, page_inode; /* its page, for recognition by the dump */
};

/* A wait with a time-out under a virtual clock, which the thread begins again when it resumes, and
 * its deadline. */
struct image_wait {
    uint32_t thread, number; /* inside the sandbox; of the call */
    uint64_t arguments[6];
    int64_t deadline; /* of the virtual clock */
};

enum image_alarm_kind { IMAGE_ALARM_INTERVAL = 1, IMAGE_ALARM_POSIX, IMAGE_ALARM_DESCRIPTOR };

/* A timer of a virtual clock. Init keeps its time. */
struct image_alarm {
    uint32_t kind, number; /* enum image_alarm_kind; POSIX: followed by its id */
    uint32_t pid, thread;  /* inside the sandbox; thread: the receiver of the signal, 0: any */
    uint32_t signal, clock;
    uint32_t file;                        /* DESCRIPTOR: its index among the files + 1 */
    uint32_t has_fired, is_ready, missed; /* is_ready: a readable DESCRIPTOR; missed: expirations
                                             after the one that has not been read */
    int64_t deadline, interval;
    uint64_t value, overrun, stream, sequence;
};

struct image {
    struct image_part processes, threads, areas, runs, actions, pending, timers, locks, files,
        pipes, targets, fds, terminals, watches, waits, alarms, guards, kept, credentials, groups,
        segments;
    struct image_determinism determinism;
    uint64_t texts, texts_end; /* NUL-terminated each */
    int64_t clocks[3]; /* CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_REALTIME of the processes, in
                          nanoseconds */
    uint64_t n_externals;
    uint64_t n_lent;     /* terminals whose masters are passed to the restore */
    uint64_t is_command; /* a single process without descriptors, the start of a command, which gets
                            the command's */
    uint64_t is_incremental;
    char release[64]; /* kernel release, uname(2) */
    uint64_t length;  /* of the file */
    uint64_t magic;   /* the last member */
};

/* Message to a process that loads an image while it is written. The first says that everything
 * except the pages is there, each further one that the pages before this offset are. UINT64_MAX:
 * all are. */
struct image_progress {
    uint64_t written;
};

/* process_image.c: is the image well-formed? Every range and index is checked, and every address of
 * guest memory. `length` bytes at `base`, aligned to 8. */
bool image_is_sound(const void *base, uint64_t length);
/* Is it a well-formed incremental image for that parent image, which was checked? That includes
 * that both have the same processes, with no differences that an incremental image cannot
 * express. */
bool image_is_incremental(
    const void *found, uint64_t length, const void *base, uint64_t base_length);
/* Among `n` areas of a parent image, sorted by address: the area that an area of the same process
 * continues. NULL: none, so the area is mapped from scratch. For files: the same mapping. The bases
 * are the addresses that text offsets refer to. */
const struct image_area *image_area_before(const struct image_area *areas, uint32_t n,
    const char *base, const struct image_area *area, const char *found);
/* Are `n` processes the same, with the same family tree, as those of an image? Their resources are
 * not compared. */
bool image_has_same_tree(
    const struct image *was, const char *base, const struct image_process *processes, uint64_t n);
/* Are the processes of two images the same, with threads and everything that an incremental image
 * cannot change? The second is given by the counts of its header, its processes, and the base of
 * its text offsets. */
bool image_is_of_same(const struct image *was, const char *base, const struct image *now,
    const struct image_process *processes, const char *texts);
/* Are the kernel's own mappings at the same addresses in both? */
bool image_has_same_parts(
    const struct image_area *was, uint32_t n, const struct image_area *now, uint32_t n_now);

/* Up to the next multiple of a power of two. */
static inline uint64_t image_up_to(uint64_t at, uint64_t multiple) {
    return (at + multiple - 1) & ~(multiple - 1);
}

/* The header of an image of that length: its last bytes. */
#define image_header(base, length)                                                                 \
    ((const struct image *)(const void *)((const char *)(base) + (length) - sizeof(struct image)))
#define image_table(image, base, part, type)                                                       \
    ((const type *)(const void *)((const char *)(base) + (image)->part.at))

#endif
