/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The image of a tree of processes: what src/dump captures and the guest layer restores.
 *
 * One file without pointers: pages first, then tables at the offsets that the header names, and at
 * its very end the header, so that a file that was not finished has none. It is for the kernel and
 * the build that it names (docs/reference/image-format.md). What it says was a guest's to choose,
 * so whoever loads it checks every range and index; what it says of registers and pages is for the
 * guest alone.
 *
 * An *addition* is an image of processes of which there is one already, its *base*: of memory that
 * is as it was then it has no pages, but says where the base has them (`kept`). It is of use to who
 * has the base in memory (restore/incremental.c), for a while.
 */
#ifndef ROLLBOX_IMAGE_PROCESS_IMAGE_H
#define ROLLBOX_IMAGE_PROCESS_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IMAGE_MAGIC 0x37456d4978427852ull
#define IMAGE_PAGE 4096u
#define IMAGE_TABLE 64u /* where tables begin, and the header: at a multiple */
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
#define IMAGE_MAX_WATCHES 65536u /* also the highest number of one */
#define IMAGE_MAX_NOTED 32u      /* of more processes it is not noted what they write to */
#define IMAGE_MAX_TERMINALS 64u  /* what a sandbox's devpts has */
#define IMAGE_MAX_XSTATE 3072u   /* with the rest of a frame it fits into IMAGE_FRAME */
#define IMAGE_SIGNALS 64
#define IMAGE_RLIMITS 16
#define IMAGE_MAX_WAITS 4096u
#define IMAGE_MAX_ALARMS 256u

/* Where a guest's memory can be: init itself is below (meson.build links it there), the kernel
 * above. Between the two, what the last steps of restoring need, which stays: a frame for each
 * thread, and two pages. */
#define IMAGE_LOWEST 0x400000ull
#define IMAGE_HIGHEST 0x7ffffffff000ull
#define IMAGE_TRAMPOLINE 0x3ff000ull     /* the code */
#define IMAGE_THREAD_BARRIER 0x3fe000ull /* two words that its threads meet at */
#define IMAGE_FRAMES 0x300000ull
#define IMAGE_FRAME 4096u
#define IMAGE_REGIONS                                                                              \
    0x200000000000ull /* from here on, where no process of the image has anything, that of who     \
                         restores it: 32 TiB, far from where the kernel, and Go and Java, put      \
                         things */
#define IMAGE_REGIONS_END 0x300000000000ull /* in general */
#define IMAGE_MAX_OWN_THREADS                                                                      \
    ((IMAGE_THREAD_BARRIER - IMAGE_FRAMES) / IMAGE_FRAME) /* of one process */

/* A table: where it begins, how many entries it has. */
struct image_part {
    uint64_t at, n;
};

/* Of a table: the first entry, how many. */
struct image_range {
    uint32_t first, n;
};

/* ---- memory ---- */

enum image_area_kind {
    IMAGE_ANONYMOUS = 1, /* also what was a private mapping of a file and has pages of its own: it
                            is copied whole */
    IMAGE_STACK,         /* grows downwards */
    IMAGE_FILE,   /* private and untouched, or shared: mapped again from the file at `path` */
    IMAGE_MEMORY, /* shared memory without a name, or a memory file: `path` is the index of that
                     among the files */
    IMAGE_VVAR,   /* the kernel's own: moved to where the process had them, in this order */
    IMAGE_VDSO,
};

enum image_forgets { IMAGE_WIPED = 1 /* MADV_WIPEONFORK */, IMAGE_DROPPABLE /* MAP_DROPPABLE */ };

struct image_area {
    uint64_t start, end;
    uint32_t kind;       /* enum image_area_kind */
    uint32_t protection; /* PROT_* */
    uint64_t path; /* FILE: offset of its NUL-terminated path; of several areas of one file they are
                      equal */
    uint64_t offset; /* FILE, MEMORY: in the file */
    uint32_t is_shared;
    uint32_t is_written;  /* FILE: shared, and may be written to: opened so. It is not compared with
                             what it was */
    uint32_t forgets;     /* enum image_forgets: what is in it must never be seen twice (states of
                             random generators), so nothing of it is saved */
    uint32_t flags;       /* IMAGE_NO_DUMP... */
    uint64_t inode, size; /* FILE: all but the inode must be found at the path */
    int64_t mtime_s, mtime_ns;
    struct image_range runs; /* its pages */
    struct image_range guards;
    struct image_range kept; /* of an addition: its pages that the base has */
};

#define IMAGE_NOT_FORKED 1u /* MADV_DONTFORK */
#define IMAGE_READ_ONLY                                                                            \
    2u /* MEMORY: it may not be made writable, by who mapped a descriptor to read, or after a seal \
        */

/* Pages that follow each other in memory and in the image. All others of the area are zero. */
struct image_run {
    uint64_t address, length; /* of memory; of a memory file: the offset in it */
    uint64_t at;              /* offset in the image */
};

/* Pages that are the base's, at the same address. */
struct image_kept {
    uint64_t address, length;
    uint64_t at; /* offset in the base */
};

/* Pages of an area that nobody can touch (MADV_GUARD_INSTALL). */
struct image_guard {
    uint64_t address, length;
};

/* What a restored process is going to touch, as one did before it: a file of these, by address. */
struct image_touch {
    uint64_t address, length;
    uint64_t is_written; /* else it is only read */
};

#define IMAGE_MAX_TOUCHES 16384u

/* ---- descriptors ---- */

enum image_file_kind {
    IMAGE_FILE_PATH = 1, /* opened by its path; what kind of file it was is `mode` */
    IMAGE_FILE_EXTERNAL, /* number `value` of those that whoever restores it brings along */
    IMAGE_FILE_PIPE,     /* an end of pipe `value` */
    IMAGE_FILE_MEMORY, /* a memory file, a deleted file or shared memory: its pages are `runs`, its
                          length `length` */
    IMAGE_FILE_EVENT,  /* eventfd: its count is `value` */
    IMAGE_FILE_EPOLL,  /* its entries are `targets`, by the numbers of the process with pid `value`
                        */
    IMAGE_FILE_TIMER,  /* timerfd: clock `value`; `timer` */
    IMAGE_FILE_SIGNAL, /* signalfd: its mask is `value` */
    IMAGE_FILE_SOCKET, /* a Unix socket: connected to file `peer` - 1, or (0) to what is closed,
                          unless `is_alone`, and then of datagrams that go to `peer` - 1 if there is
                          one; or one of the internet's: likewise, by TCP; or, of UDP, alone and
                          perhaps connected to `remote` */
    IMAGE_FILE_PIDFD,  /* of process `value`, its pid inside */
    IMAGE_FILE_MASTER, /* of terminal `value` */
    IMAGE_FILE_TERMINAL, /* terminal `value` itself */
    IMAGE_FILE_HUNG_UP,  /* a terminal that is not any more */
    IMAGE_FILE_NOTIFY,   /* inotify: `targets` are of the table of watches, by number */
    IMAGE_FILE_CLOCK,    /* the page of a virtual clock: init's */
};

#define IMAGE_REUSE_ADDRESS 1u
#define IMAGE_REUSE_PORT 2u
#define IMAGE_KEEP_ALIVE 4u
#define IMAGE_BROADCAST 8u
#define IMAGE_V6_ONLY 16u
#define IMAGE_NO_DELAY 32u

/* Of TCP: TCP_KEEPIDLE, _KEEPINTVL, _KEEPCNT, _USER_TIMEOUT, and SO_LINGER: 0 or its seconds + 1.
 */
#define IMAGE_TUNING 5u

/* An open file description: several descriptors, of several processes, may have it. */
struct image_file {
    uint32_t kind;        /* enum image_file_kind */
    uint32_t flags;       /* O_* */
    uint32_t mode;        /* of st_mode */
    uint32_t is_nameless; /* MEMORY: a deleted file, made anew without a name in directory `path`
                             (0: a memory file) */
    uint64_t path;        /* PATH: its path; MEMORY: its name */
    uint64_t offset; /* where it is read and written next; TIMER: when it expires, by the time of
                        day: nanoseconds; 0: after what is left in `timer` */
    uint64_t value;
    uint64_t length; /* MEMORY; TIMER: its number among the alarms + 1 */
    uint64_t seals;  /* MEMORY; TIMER, with `offset`: TFD_TIMER_* */
    struct image_range runs, targets;
    uint64_t timer[4]; /* TIMER: seconds and nanoseconds of its interval, and until it expires; 0:
                          it is not set */
    uint64_t ticks;
    /* SOCKET: */
    uint32_t peer, type; /* its SOCK_* */
    uint32_t is_alone;   /* not connected */
    uint32_t is_shut;    /* bits: 1: for reading, 2: for writing */
    uint32_t backlog;    /* it listens; 0: it does not */
    uint32_t passes_credentials;
    uint32_t domain, protocol;
    uint32_t options;               /* IMAGE_REUSE_ADDRESS... */
    uint32_t fixed;                 /* SO_BUF_LOCK */
    uint64_t name, name_length;     /* a sockaddr that it is bound to */
    uint64_t remote, remote_length; /* a sockaddr that it is connected to */
    uint32_t tuning[IMAGE_TUNING], more_unused;
    uint64_t data, data_length; /* what waits to be read: messages, each a length (u64) and bytes,
                                   padded to 8; of a FIFO, also PATH: bytes */
    uint64_t buffers[2];        /* SO_SNDBUF, SO_RCVBUF */
    uint64_t patience[2];       /* SO_SNDTIMEO, SO_RCVTIMEO: microseconds; 0: for ever */
};

struct image_pipe {
    uint64_t data, length; /* what is in it */
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
    uint32_t number; /* below /dev/pts; they are in this order */
    uint32_t lent;   /* its master is that of a command, with whoever restores it: which one + 1; 0:
                        it is a file of the image, or closed */
    uint32_t state;  /* IMAGE_TERMINAL_... */
    uint32_t foreground; /* the group, inside; 0: its session's leader's, or it is nobody's */
    uint16_t rows, columns, width, height; /* struct winsize */
    struct image_modes modes;
    uint32_t unused;
    uint64_t output,
        output_length;            /* what has been written to it and not yet read from its master */
    uint64_t input, input_length; /* what has been typed and not yet read: struct tty_typed */
};

#define IMAGE_TERMINAL_PACKETS 1u   /* TIOCPKT */
#define IMAGE_TERMINAL_LOCKED 2u    /* TIOCSPTLCK */
#define IMAGE_TERMINAL_EXCLUSIVE 4u /* TIOCEXCL */
#define IMAGE_TERMINAL_UNOPENED                                                                    \
    8u /* nobody has had it open yet: its master does not tell of an end */

struct image_target {
    uint32_t fd, events;
    uint64_t data;
};

struct image_fd {
    uint32_t number, file;
    uint32_t is_closed_on_exec, unused;
};

/* ---- processes ---- */

/* As the kernel's rt_sigaction has it. */
struct image_action {
    uint64_t number; /* of the signal; those that have the default are not here */
    uint64_t handler, flags, restorer, mask;
};

/* timer_create(2). */
struct image_timer {
    uint32_t id, clock;
    uint32_t signal, notify; /* SIGEV_* */
    uint32_t tid, unused;    /* SIGEV_THREAD_ID: inside */
    uint64_t value;          /* sigval */
    uint64_t time[4];        /* struct itimerspec: the interval, and what is left */
};

enum image_lock_kind { IMAGE_LOCK_FLOCK = 1, IMAGE_LOCK_POSIX, IMAGE_LOCK_OFD };

/* Of the process' descriptor `fd`. */
struct image_lock {
    uint32_t fd, kind; /* enum image_lock_kind */
    uint32_t is_write, unused;
    uint64_t start, length; /* length 0: to the end */
};

/* A signal that waits: the kernel's siginfo. */
struct image_pending {
    unsigned char info[128];
};

/* In the order of PTRACE_GETREGS (struct user_regs_struct), x86-64. */
struct image_registers {
    uint64_t r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi, orig_rax, rip,
        cs, eflags, rsp, ss, fs_base, gs_base, ds, es, fs, gs;
};

/* What PR_SET_MM_MAP takes. */
struct image_layout {
    uint64_t start_code, end_code, start_data, end_data, start_brk, brk, start_stack, arg_start,
        arg_end, env_start, env_end;
};

/* What becomes of a call that a thread was in, and is about to make again, when a signal is handled
 * before. */
enum image_interruption {
    IMAGE_GOES_ON,               /* or it was in none */
    IMAGE_ENDS_UNLESS_RESTARTED, /* with EINTR, but for handlers with SA_RESTART */
    IMAGE_ENDS,                  /* with EINTR */
};

struct image_thread {
    uint32_t tid;          /* inside */
    uint32_t interruption; /* enum image_interruption */
    struct image_registers registers;
    uint64_t signal_mask;
    uint64_t alternate_stack[3]; /* stack_t */
    uint64_t robust_list, robust_length;
    uint64_t clear_tid; /* set_tid_address */
    uint64_t rseq, rseq_length, rseq_signature;
    uint64_t xstate, xstate_length; /* offset; as PTRACE_GETREGSET NT_X86_XSTATE gives it */
    uint64_t xstate_features;       /* what the processor's extended state has */
    struct image_range pending;
    char name[16]; /* comm */
};

enum image_process_kind {
    IMAGE_LIVING = 1,
    IMAGE_ZOMBIE,      /* ended with `status`, and its parent has not asked yet */
    IMAGE_DEAD_LEADER, /* dead and forgotten, but some have it for the leader of their session or
                          group: it lives until they are made */
};

struct image_process {
    uint32_t kind;                /* enum image_process_kind */
    uint32_t pid, session, group; /* inside */
    uint32_t parent;              /* its index + 1; parents come before their children. 0: init */
    uint32_t umask;
    uint16_t status;  /* ZOMBIE: as of wait(2) */
    uint16_t goodbye; /* LIVING: the signal that its parent gets at its end + 1; 0: SIGCHLD */
    uint32_t is_subreaper, death_signal;
    uint32_t terminal; /* that controls it: its index + 1; 0: none */
    uint32_t is_fresh; /* its vDSO is as the kernel made it: with random_seed or time_start, it has
                          not begun yet */
    uint32_t barriers; /* of membarrier(2): what it has registered, MEMBARRIER_CMD_REGISTER_* */
    struct image_layout layout;
    uint64_t executable, directory;    /* offsets of paths */
    uint64_t auxv, auxv_length;        /* offset, bytes */
    uint64_t limits[IMAGE_RLIMITS][2]; /* soft, hard */
    uint64_t timers[3][4];             /* ITIMER_REAL, _VIRTUAL, _PROF: struct itimerval */
    struct image_range areas;          /* by address */
    struct image_range threads;        /* the first is that of its pid */
    struct image_range actions, pending, posix_timers, locks;
    struct image_range fds; /* by number */
};

/* ---- random_seed and time_start ---- */

#define IMAGE_NEVER (1ll << 61) /* the end of a virtual clock */
#define IMAGE_VIRTUAL 1u        /* flags: the clock is a virtual one */

/* What init knows beside what its processes have (guest/quiesce.h). Their streams of chance are
 * among their limits. */
struct image_determinism {
    uint32_t is_there, flags;
    uint32_t last_pid; /* that was given to anybody */
    uint32_t unused;
    uint64_t n_commands; /* that have begun */
    int64_t ahead_ns; /* what the time of day is ahead of the kernel's; capturing alone needs it */
    uint64_t ticks, jumped;           /* the virtual clock: nanoseconds */
    uint64_t page_device, page_inode; /* and its page, which capturing knows by this */
};

/* A wait with a time-out, which a thread of a sandbox with a virtual clock begins anew when it goes
 * on: when it was to end. */
struct image_wait {
    uint32_t thread, number; /* inside; of the call */
    uint64_t arguments[6];
    int64_t deadline; /* of the virtual clock */
};

enum image_alarm_kind { IMAGE_ALARM_INTERVAL = 1, IMAGE_ALARM_POSIX, IMAGE_ALARM_DESCRIPTOR };

/* A timer of a virtual clock, which init keeps. */
struct image_alarm {
    uint32_t kind, number; /* enum image_alarm_kind; of POSIX, its id follows */
    uint32_t pid, thread;  /* inside; thread: that gets the signal, 0: any */
    uint32_t signal, clock;
    uint32_t file;                        /* DESCRIPTOR: its index among the files + 1 */
    uint32_t has_fired, is_ready, missed; /* is_ready: a DESCRIPTOR that is to be read; missed:
                                             expirations behind the one that nobody has noticed */
    int64_t deadline, interval;
    uint64_t value, overrun, stream, sequence;
};

struct image {
    struct image_part processes, threads, areas, runs, actions, pending, timers, locks, files,
        pipes, targets, fds, terminals, watches, waits, alarms, guards, kept;
    struct image_determinism determinism;
    uint64_t texts, texts_end; /* NUL-terminated each */
    int64_t clocks[3];         /* CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_REALTIME of the processes:
                                  nanoseconds */
    uint64_t n_externals;
    uint64_t n_lent;     /* terminals whose masters go to whoever restores it */
    uint64_t is_command; /* there is one process, which has no descriptors: it is to be a command,
                            and gets those of one */
    uint64_t is_incremental;
    char release[64]; /* of the kernel; uname(2) */
    uint64_t length;  /* of the whole */
    uint64_t magic;   /* the last thing */
};

/* To who loads an image while it is written: the first message says that everything but pages is
 * there, and each that pages are before this offset, as far as there are any. UINT64_MAX: all are.
 */
struct image_progress {
    uint64_t written;
};

/* process_image.c: does it hold what it says? Every range and index in it is within it, every
 * address where a guest's can be. `length` bytes at `base`, aligned to 8. */
bool image_is_sound(const void *base, uint64_t length);
/* And an addition, to that base, which is sound? That they are of the same processes, of which
 * nothing differs that cannot be amended, is part of it. */
bool image_is_incremental(
    const void *found, uint64_t length, const void *base, uint64_t base_length);
/* Of `n` areas of a base, by address: the one whose memory an area of the same process goes on
 * with, where both have it; NULL: none, and it is made anew. Files: the one that is the same. The
 * bases are what their texts' offsets count from. */
const struct image_area *image_area_before(const struct image_area *areas, uint32_t n,
    const char *base, const struct image_area *area, const char *found);
/* Whether `n` processes are, and are related as, those of an image. What they have is not looked
 * at. */
bool image_has_same_tree(
    const struct image *was, const char *base, const struct image_process *processes, uint64_t n);
/* Whether the processes of one image are those of another, threads and all that cannot be amended
 * included. Of the other, the counts in its header, its processes, and what their texts' offsets
 * count from. */
bool image_is_of_same(const struct image *was, const char *base, const struct image *now,
    const struct image_process *processes, const char *texts);
/* And of one of them, whether the kernel's own parts of its memory are where they were. */
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
