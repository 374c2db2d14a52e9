/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commands of a sandbox, from the request to the report of their end.
 *
 * A command's main process is a child of init. When it ends, init reaps the processes that it left
 * behind, and they no longer belong to any command. In a session the main process is a subreaper:
 * its orphaned descendants become its own children and not init's, so that the command's tree of
 * processes stays complete until the main process ends (reaper.c).
 */
#include "guest/init/command.h"

#include <errno.h>
#include <fcntl.h>
#include <interpreter_source.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/transfer.h"
#include "guest/det/abs_timers.h"
#include "guest/det/det.h"
#include "guest/det/file_times.h"
#include "guest/det/vtime.h"
#include "guest/files.h"
#include "guest/init/init.h"
#include "guest/init/users.h"
#include "guest/restore/restore.h"
#include "guest/state.h"
#include "sys/syscalls.h"

#define MAX_REAPED 256 /* per round: guests can produce zombies faster than init reaps them */

struct command {
    uint64_t serial;
    int64_t started_ns;
    pid_t pid;
    bool final;
    bool counted;
    bool restored;
    struct restore_failure failure; /* the reason, if a restore was requested and failed */
};

static struct command commands[COMMAND_MAX]; /* the first state_commands entries; the kernel
                                                allocates the memory on first use */

pid_t command_main(uint64_t serial) {
    for (size_t i = 0; i < state_commands; i++)
        if (commands[i].serial == serial)
            return commands[i].pid;
    return 0;
}

/* ---- the end ---- */

static uint64_t ns_of(struct timeval t) {
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_usec * 1000;
}

/* Numbers of bytes that were read and written. */
struct moved {
    uint64_t read, written;
};

static const struct moved unknown = { UINT64_MAX, UINT64_MAX };

/* The I/O of init and of all processes that it has waited for, which the kernel adds up. Returns
 * the number of bytes that were read to find out, or -1. */
static ssize_t moved_so_far(const struct box *box, struct moved *ret_moved) {
    char text[256], *end;
    ssize_t n = box->io < 0 ? -1 : sys_call4(__NR_pread64, box->io, text, sizeof text - 1, 0);

    text[n < 0 ? 0 : n] = '\0';
    if (strncmp(text, "rchar: ", 7))
        return -1;
    ret_moved->read = strtoul(text + 7, &end, 10);
    if (strncmp(end, "\nwchar: ", 8))
        return -1;
    ret_moved->written = strtoul(end + 8, NULL, 10);
    return n;
}

/*
 * Reading the counters twice at the end of a command would be the main cost of recording. So the
 * first reading is taken after the command has started, when init can work on another processor. It
 * stays valid until init waits for a process, or reads anything but the notice of an end.
 */
static struct {
    bool is_known;
    struct moved moved;
    uint64_t since; /* bytes that init has read since then */
} noted;

/* Is this the main process of a command whose I/O is counted? 0: is there any such command? */
static bool is_counted(pid_t pid) {
    for (size_t i = 0; i < state_commands; i++)
        if (commands[i].counted && (!pid || commands[i].pid == pid))
            return true;
    return false;
}

static void note_moved(const struct box *box) {
    ssize_t n = moved_so_far(box, &noted.moved);

    noted.is_known = n >= 0;
    noted.since = (uint64_t)n; /* reading the counters counts, too */
}

void command_has_read(uint64_t bytes) {
    noted.since += bytes;
}

void command_has_read_more(void) {
    noted.is_known = false;
}

/* Like wait4 for any child. For a command whose I/O is counted, it also returns that I/O: the
 * growth of init's counters when the child is collected. */
static pid_t wait_next(
    const struct box *box, int *ret_status, struct rusage *ret_usage, struct moved *ret_moved) {
    siginfo_t next = { 0 };
    pid_t which = -1;
    struct moved after;

    if (!noted.is_known && is_counted(0)) {
        (void)sys_call5(__NR_waitid, P_ALL, 0, &next, WEXITED | WNOHANG | WNOWAIT | __WALL, NULL);
        if (next.si_pid && is_counted(next.si_pid)) {
            which = next.si_pid;
            note_moved(box);
        }
    }
    pid_t pid = sys_wait4(which, ret_status, WNOHANG | WUNTRACED | __WALL, ret_usage);
    *ret_moved = unknown;
    if (pid > 0 && noted.is_known && is_counted(pid) && moved_so_far(box, &after) >= 0)
        *ret_moved = (struct moved){ after.read - noted.moved.read - noted.since,
            after.written - noted.moved.written };
    if (pid > 0 || which > 0)
        noted.is_known = false;
    return pid;
}

static void report_exit(const struct box *box, const struct command *command, int status,
    const struct rusage *usage, const struct moved *moved) {
    file_times_settle(); /* a snapshot may be next */
    struct guest_record record = {
        .kind = GUEST_EXITED,
        .serial = command->serial,
        .value = (uint64_t)status,
        .wall_ns = (uint64_t)(clock_now_ns() - command->started_ns),
        .cpu_ns = ns_of(usage->ru_utime) + ns_of(usage->ru_stime),
        .max_rss_bytes = (uint64_t)usage->ru_maxrss * 1024,
        .read_bytes = moved->read,
        .written_bytes = moved->written,
    };

    record_send(box->socket, &record, NULL, 0);
}

/* Kills all remaining processes of a command and waits for them, so that the reported end covers
 * them all and the usage is complete. kill(-1) signals every process of the namespace except init
 * at once, and no fork can escape it. But the kernel visits all processes of the host for that. If
 * init has no child, no process is left, because orphans are its children, too, and the kill is
 * skipped. */
static void end_all(void) {
    pid_t pid;

    while ((pid = waitpid(-1, NULL, __WALL | WNOHANG)) > 0)
        ;
    if (pid < 0 && errno == ECHILD)
        return;
    kill(-1, SIGKILL);
    while (waitpid(-1, NULL, __WALL) > 0 || errno == EINTR)
        ;
}

static void report_agent(const struct box *box) {
    struct guest_record record = { .kind = GUEST_FILES_ENDED };

    record_send(box->socket, &record, NULL, 0);
}

static void report_end(const struct box *box, pid_t pid, int status, const struct rusage *usage,
    const struct moved *moved) {
    for (size_t i = 0; i < state_n_agents; i++)
        if (state_agents[i].pid == pid) {
            bool was_alone = state_agents[i].alone;

            state_agents[i] = state_agents[--state_n_agents];
            if (was_alone && !--state_n_alone && !state_is_held)
                tree_thaw();
            report_agent(box);
            return;
        }
    for (size_t i = 0; i < state_commands; i++) {
        struct command command = commands[i];
        struct rusage all;

        if (command.pid != pid)
            continue;
        commands[i] = commands[--state_commands];
        if (command.final) {
            end_all();
            getrusage(RUSAGE_CHILDREN, &all);
            usage = &all;
        }
        report_exit(box, &command, status, usage, moved);
        if (command.final)
            init_leave(box, 0);
        if (!state_commands)
            vtime_stand();
        return;
    }
}

/* A child has stopped. The guest must not stop an agent. Otherwise the child may have made init its
 * tracer (PTRACE_TRACEME): init delivers the signal and stops tracing. */
static void let_go(pid_t pid, int status) {
    int number = status >> 16 || WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);

    if (!command_is_agent(pid))
        (void)sys_call4(__NR_ptrace, PTRACE_DETACH, pid, NULL, number);
    else if (!state_is_held)
        (void)kill(pid, SIGCONT);
}

bool command_reap(const struct box *box) {
    struct moved moved;
    struct rusage usage;
    int status;

    for (unsigned n = 0; n < MAX_REAPED; n++) {
        pid_t pid = wait_next(box, &status, &usage, &moved);

        if (pid <= 0)
            return false;
        if (WIFSTOPPED(status) && !vtime_stopped(pid, status) && !abs_timers_stopped(pid, status))
            let_go(pid, status);
        else if (WIFSTOPPED(status))
            continue;
        else
            report_end(box, pid, status, &usage, &moved);
    }
    return true;
}

/* ---- the start ---- */

/* Writes one file of the request. This runs with the guest's rights, so it reaches only files that
 * the guest may write, even if other commands change the path meanwhile. */
static int put_file(const char *path, mode_t mode, const void *data, size_t length) {
    char prefix[4096];
    size_t path_length = strlen(path);

    if (path_length >= sizeof prefix)
        return -ENAMETOOLONG;
    for (size_t i = 1; i < path_length; i++)
        if (path[i] == '/') {
            memcpy(prefix, path, i);
            prefix[i] = '\0';
            if (mkdir(prefix, 0755) < 0 && errno != EEXIST)
                return -errno;
        }
    /* An earlier guest may have left a FIFO in a shared directory, which would block the open. */
    int fd = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode & 0777);
    struct stat st;
    if (fd < 0)
        return -errno;
    int r = fstat(fd, &st) < 0 ? -errno : 0;
    if (r == 0 && !S_ISREG(st.st_mode))
        r = -EINVAL;
    if (r == 0 && ftruncate(fd, 0) < 0)
        r = -errno;
    if (r == 0)
        r = fd_write_all(fd, data, length);
    if (r == 0 && fchmod(fd, mode & 0777) < 0)
        r = -errno;
    close(fd);
    return r;
}

/* Adds an entry to the environment, unless that has one of the same name. Returns the number of
 * added entries. */
static size_t add_default(char **env, size_t n, const char *entry) {
    size_t length = strcspn(entry, "=") + 1;

    for (size_t i = 0; i < n; i++)
        if (!strncmp(env[i], entry, length))
            return 0;
    env[n] = (char *)entry;
    env[n + 1] = NULL;
    return 1;
}

/* Fills the pointer arrays of a request from its message. `texts` has room for all fields, three
 * defaults and two NULLs. */
static int parse_exec(const struct box *box, const struct wire_message *message, char **texts,
    size_t n_fields, struct exec_request *request, uint64_t *ret_terminal,
    struct users_identity *identity, struct guest_fault *fault) {
    struct wire_field field;
    size_t position = 0, n_args = 0, n_env = 0;
    uint64_t no_trace;
    const bool many_users = box->plan->flags & PLAN_MANY_USERS;
    const char *user = plan_text(box->plan, box->plan->user);
    char **args = texts, **env = texts + n_fields + 1;
    unsigned part;
    int r;

    while ((r = wire_next(message->data, message->length, &position, &field)) > 0) {
        const char *text = wire_text(&field);

        if (field.tag == GUEST_ARG && text)
            args[n_args++] = (char *)text;
        else if (field.tag == GUEST_INTERPRETER)
            args[n_args++] = (char *)interpreter_source;
        else if (field.tag == GUEST_ENV && text)
            env[n_env++] = (char *)text;
        else if (field.tag == GUEST_CWD && text)
            request->cwd = text;
        else if (field.tag == GUEST_PROCESSES && wire_u64(&field, &request->processes) == 0)
            continue;
        else if (field.tag == GUEST_TERMINAL && wire_u64(&field, ret_terminal) == 0)
            request->terminal = true;
        else if (field.tag == GUEST_NO_TRACE && wire_u64(&field, &no_trace) == 0)
            request->no_trace = no_trace;
        else if (field.tag == GUEST_USER && text && many_users)
            user = text;
        else if (field.tag != GUEST_FILE_PATH && field.tag != GUEST_FILE_MODE &&
                 field.tag != GUEST_FILE_DATA)
            return -EBADMSG;
    }
    if (r == 0 && many_users) {
        if ((r = users_find(user, identity, &part)) < 0)
            return guest_fault(fault, GUEST_STAGE_USER, part + 1, r);
        request->user = identity;
        for (size_t i = 0; i < USERS_N_VARIABLES; i++)
            n_env += add_default(env, n_env, identity->variables[i]);
    }
    args[n_args] = env[n_env] = NULL;
    for (size_t i = 0; box->plan->flags & PLAN_PROCESS && process_environment(i); i++)
        n_env += add_default(env, n_env, process_environment(i));
    request->argv = args;
    request->envp = env;
    return r < 0 ? r
           : n_args && request->cwd &&
                   (request->terminal ? message->n_fds + 3 <= FD_MESSAGE_MAX_FDS
                                      : message->n_fds >= 3)
               ? 0
               : -EBADMSG;
}

static int put_all_files(const struct wire_message *message, struct guest_fault *fault) {
    struct wire_field field;
    size_t position = 0;
    const char *path = NULL;
    uint64_t mode = 0644;

    while (wire_next(message->data, message->length, &position, &field) > 0) {
        if (field.tag == GUEST_FILE_PATH) {
            path = wire_text(&field);
            mode = 0644;
        } else if (field.tag == GUEST_FILE_MODE) {
            (void)wire_u64(&field, &mode);
        } else if (field.tag == GUEST_FILE_DATA) {
            int r = path ? put_file(path, (mode_t)mode, field.data, field.length) : -EBADMSG;
            if (r < 0)
                return r;
            fault->operation++;
        }
    }
    return 0;
}

/* As the user of the command: the files are the user's, and no other user of the sandbox can direct
 * root's hand by a link. */
static int put_files(const struct wire_message *message, const struct users_identity *user,
    struct guest_fault *fault) {
    fault->stage = GUEST_STAGE_FILE;
    int r = user ? users_act_as(user) : 0;
    if (r == 0)
        r = put_all_files(message, fault);
    int again = user ? users_act_as(NULL) : 0;
    return r < 0 ? r : again;
}

/* The descriptors are the streams of the request, or a terminal for all three; then those that
 * become 3 and up. */
static pid_t spawn_command(const struct box *box, const struct wire_message *message,
    struct exec_request *request, uint64_t size, struct command *command, int *ret_master,
    struct guest_fault *fault) {
    int fds[FD_MESSAGE_MAX_FDS], slave;

    if (!request->terminal) {
        request->fds = message->fds;
        request->n_fds = message->n_fds;
        if (!(message->header.flags & GUEST_EXEC_RESTORED))
            return exec_spawn(box, request, fault);
        pid_t pid = restore_resume(box, request, &command->failure);
        command->restored = pid > 0;
        if (pid > 0)
            return pid;
        if (!(message->header.flags & GUEST_EXEC_ALIKE))
            request->n_fds = 3; /* the last one was the terminal's master */
        return exec_spawn(box, request, fault);
    }
    int r = terminal_open(size, ret_master, &slave);
    if (r < 0)
        return guest_fault(fault, GUEST_STAGE_STREAMS, 1, r);
    if (request->user && fchown(slave, request->user->uid, (gid_t)-1) < 0) {
        r = -errno;
        close(slave);
        return guest_fault(fault, GUEST_STAGE_STREAMS, 1, r);
    }
    fds[0] = fds[1] = fds[2] = slave;
    memcpy(fds + 3, message->fds, message->n_fds * sizeof fds[0]);
    request->fds = fds;
    request->n_fds = 3 + message->n_fds;
    pid_t pid = exec_spawn(box, request, fault);
    close(slave);
    return pid;
}

static pid_t start_command(const struct box *box, struct wire_message *message,
    struct command *command, int *ret_master, struct guest_fault *fault) {
    struct exec_request request = { .keeps_orphans = command_in_session };
    struct wire_field field;
    size_t position = 0, n_fields = 0;
    struct users_identity identity;
    uint64_t size = 0;
    int r;

    fault->stage = GUEST_STAGE_REQUEST;
    while ((r = wire_next(message->data, message->length, &position, &field)) > 0)
        n_fields++;
    if (r < 0)
        return r;
    size_t length = (2 * n_fields + 5) * sizeof(char *);
    char *few[128], **texts = few;
    if (length > sizeof few)
        texts = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (texts == MAP_FAILED)
        return -errno;
    r = parse_exec(box, message, texts, n_fields, &request, &size, &identity, fault);
    if (r == 0 && (*request.cwd ? chdir(request.cwd) : fchdir(box->home)) < 0)
        r = guest_fault(fault, GUEST_STAGE_CWD, 0, -errno);
    if (r == 0)
        r = put_files(message, request.user, fault);
    if (r == 0) {
        if (!(message->header.flags & GUEST_EXEC_RESTORED))
            restore_cancel();
        command->started_ns = clock_now_ns();
        r = spawn_command(box, message, &request, size, command, ret_master, fault);
    }
    if (chdir("/") < 0) /* init must not keep a command's directory in use */
        init_leave(box, 1);
    if (texts != few)
        munmap(texts, length);
    return r;
}

void command_start(const struct box *box, struct wire_message *message) {
    struct command command = { .serial = message->header.serial,
        .final = message->header.flags & GUEST_EXEC_FINAL,
        .counted = message->header.flags & GUEST_EXEC_COUNTED };
    struct guest_fault fault = { .stage = GUEST_STAGE_REQUEST };
    int master = -1, r;

    if (state_is_held || (state_commands && !command_in_session))
        r = -EBUSY;
    else
        r = state_commands == COMMAND_MAX  ? -EAGAIN
            : command_main(command.serial) ? -EEXIST
                                           : start_command(box, message, &command, &master, &fault);
    wire_message_done(message);
    if (r > 0) {
        struct guest_record record = {
            .kind = GUEST_STARTED,
            .serial = command.serial,
            .value = (uint64_t)r,
            .operation = command.restored,
            .stage = command.failure.step,
            .error = command.failure.error,
            .wall_ns = determinism_wanted(box->plan) ? dispatch_last_stream() : 0,
        };

        command.pid = r;
        commands[state_commands++] = command;
        record_send(box->socket, &record, &master, master >= 0);
        if (command.counted &&
            !determinism_wanted(box->plan)) /* answering the guest's system calls reads, too */
            note_moved(box);
    } else {
        record_fault(box->socket, GUEST_EXEC_FAILED, command.serial, &fault, r);
    }
    if (master >= 0)
        close(master);
    if (r <= 0 && command.final)
        init_leave(box, 0);
}

int command_adopt(uint64_t serial, pid_t pid) {
    if (state_commands == COMMAND_MAX || command_main(serial))
        return state_commands == COMMAND_MAX ? -EAGAIN : -EEXIST;
    for (size_t i = 0; i < state_commands; i++)
        if (commands[i].pid == pid)
            return -EEXIST;
    commands[state_commands++] =
        (struct command){ .serial = serial, .started_ns = clock_now_ns(), .pid = pid };
    return 0;
}

/* ---- agents ---- */

static bool agent_has_users; /* the sandbox has many */

static int find_user(const char *text, struct users_identity *identity) {
    unsigned part;

    if (!agent_has_users)
        return -EOPNOTSUPP;
    int r = users_find(text, identity, &part);
    return r == -ENOENT ? -TRANSFER_UNKNOWN_USER : r;
}

/* Only the ids for files change, so no process of that user can kill the agent. */
static int act_as_user(const char *text) {
    static struct users_identity identity;
    int r = find_user(text, &identity);

    return r < 0 ? r : users_act_as(&identity);
}

static int find_owner(const char *text, uint32_t *ret_uid, uint32_t *ret_gid) {
    static struct users_identity identity;
    int r = find_user(text, &identity);

    *ret_uid = identity.uid;
    *ret_gid = identity.gid;
    return r;
}

_Noreturn static void become_agent(int socket, bool has_users) {
    static const struct files_users users = { act_as_user, find_owner };
    static const char name[] = "rollbox-files";
    int fd = fcntl(socket, F_DUPFD, 3);

    if (fd < 0 || dup2(fd, 0) < 0 || sys_close_range(1, ~0u, 0) < 0)
        _exit(1);
    (void)sys_prctl(PR_SET_NAME, (unsigned long)name, 0, 0, 0);
    agent_has_users = has_users;
    files_serve(0, &users);
}

int command_serve_files(const struct box *box, int socket, bool alone) {
    if (state_n_agents == COMMAND_MAX_AGENTS)
        return -EAGAIN;
    /* A fork without handlers: a copy of init that is not dumpable either, with all signals blocked
     * and no descriptor except its socket. */
    pid_t pid = (pid_t)sys_call5(__NR_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == 0)
        become_agent(socket, box->plan->flags & PLAN_MANY_USERS);
    if (pid > 0) {
        state_agents[state_n_agents++] = (struct state_agent){ .pid = pid, .alone = alone };
        state_n_alone += alone;
    }
    return pid < 0 ? pid : 0;
}
