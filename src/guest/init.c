/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The init of a sandbox: reaps, and executes commands on request.
 *
 * One thread, one loop: a request on the socket, or a SIGCHLD. The socket's end is the sandbox' end: when init exits, the kernel kills whatever is left in its
 * pid namespace. Only the engine holds the other end, so that is also how the death of the engine, or of its client, reaches every process.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/wire.h"
#include "guest/internal.h"

struct command {
    pid_t pid;                  /* 0: none is running */
    uint64_t serial;
    int64_t started_ns;
    bool final;
};

static int64_t now_ns(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static uint64_t ns_of(struct timeval t) {
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_usec * 1000;
}

static void report_exit(const struct box *box, const struct command *command, int status) {
    struct guest_record record = {
        .kind = GUEST_EXITED, .serial = command->serial, .value = (uint64_t)status, .wall_ns = (uint64_t)(now_ns() - command->started_ns),
    };
    struct rusage usage;

    getrusage(RUSAGE_CHILDREN, &usage);
    record.cpu_ns = ns_of(usage.ru_utime) + ns_of(usage.ru_stime);
    record.max_rss_bytes = (uint64_t)usage.ru_maxrss * 1024;
    record_send(box->socket, &record, NULL, 0);
}

/* The sandbox' end. In a pid namespace the kernel kills what is left. */
_Noreturn static void leave(const struct box *box, int status) {
    if (box->plan->flags & PLAN_PROCESS)
        process_end(box);
    _exit(status);
}

/* Kills whatever the command left running and waits for it, so that its end, as told, is the end of all, and its usage complete. The kernel signals every process of the
 * namespace but init in one go, which no fork can slip through. */
static void end_all(void) {
    kill(-1, SIGKILL);
    while (waitpid(-1, NULL, __WALL) > 0 || errno == EINTR)
        ;
}

static void reap(const struct box *box, struct command *command) {
    pid_t pid;
    int status;

    while ((pid = waitpid(-1, &status, WNOHANG | __WALL)) > 0) {
        if (pid != command->pid)
            continue;
        if (command->final)
            end_all();
        report_exit(box, command, status);
        if (command->final)
            leave(box, 0);
        command->pid = 0;
    }
}

/* Puts one file of the request in place. Runs before the command, so no guest can interfere; with the guest's own rights, so it can reach only what the guest may write. */
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
    /* What an earlier guest left in a shared grant may be a FIFO, to hold us up. */
    int fd = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode & 0777);
    struct stat st;
    if (fd < 0)
        return -errno;
    int r = fstat(fd, &st) < 0 ? -errno : S_ISREG(st.st_mode) ? 0 : -EINVAL;
    if (r == 0 && ftruncate(fd, 0) < 0)
        r = -errno;
    if (r == 0)
        r = fd_write_all(fd, data, length);
    if (r == 0 && fchmod(fd, mode & 0777) < 0)
        r = -errno;
    close(fd);
    return r;
}

/* Adds an entry to the environment, unless it has one of that name. How many were added. */
static size_t add_default(char **env, size_t n, const char *entry) {
    size_t length = strcspn(entry, "=") + 1;

    for (size_t i = 0; i < n; i++)
        if (!strncmp(env[i], entry, length))
            return 0;
    env[n] = (char *)entry;
    env[n + 1] = NULL;
    return 1;
}

/* Fills the pointer arrays of a request from its message. `texts` has room for every field, two defaults and two NULLs. */
static int parse_exec(const struct box *box, const struct wire_message *message, char **texts, size_t n_fields, struct exec_request *request) {
    struct wire_field field;
    size_t position = 0, n_args = 0, n_env = 0;
    char **args = texts, **env = texts + n_fields + 1;
    int r;

    while ((r = wire_next(message->data, message->length, &position, &field)) > 0) {
        const char *text = wire_text(&field);

        if (field.tag == GUEST_ARG && text)
            args[n_args++] = (char *)text;
        else if (field.tag == GUEST_ENV && text)
            env[n_env++] = (char *)text;
        else if (field.tag == GUEST_CWD && text)
            request->cwd = text;
        else if (field.tag == GUEST_PROCESSES && wire_u64(&field, &request->processes) == 0)
            continue;
        else if (field.tag != GUEST_FILE_PATH && field.tag != GUEST_FILE_MODE && field.tag != GUEST_FILE_DATA)
            return -EBADMSG;
    }
    args[n_args] = env[n_env] = NULL;
    for (size_t i = 0; box->plan->flags & PLAN_PROCESS && process_environment(i); i++)
        n_env += add_default(env, n_env, process_environment(i));
    request->argv = args;
    request->envp = env;
    return r < 0 ? r : n_args && request->cwd && message->n_fds >= 3 ? 0 : -EBADMSG;
}

static int put_files(const struct wire_message *message, struct guest_fault *fault) {
    struct wire_field field;
    size_t position = 0;
    const char *path = NULL;
    uint64_t mode = 0644;

    fault->stage = GUEST_STAGE_FILE;
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

static int start(const struct box *box, struct wire_message *message, struct command *command, struct guest_fault *fault) {
    struct exec_request request = { 0 };
    struct wire_field field;
    size_t position = 0, n_fields = 0;
    int r;

    fault->stage = GUEST_STAGE_REQUEST;
    while ((r = wire_next(message->data, message->length, &position, &field)) > 0)
        n_fields++;
    if (r < 0)
        return r;
    size_t size = (2 * n_fields + 4) * sizeof(char *);
    char **texts = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (texts == MAP_FAILED)
        return -errno;
    r = parse_exec(box, message, texts, n_fields, &request);
    if (r == 0 && (*request.cwd ? chdir(request.cwd) : fchdir(box->home)) < 0)
        r = guest_fault(fault, GUEST_STAGE_CWD, 0, -errno);
    if (r == 0)
        r = put_files(message, fault);
    if (r == 0) {
        memcpy(request.stdio, message->fds, sizeof request.stdio);
        command->started_ns = now_ns();
        r = exec_spawn(box, &request, fault);
        if (r > 0)
            command->pid = r;
    }
    if (chdir("/") < 0)         /* a command's directory must not be held by init */
        leave(box, 1);
    munmap(texts, size);
    return r;
}

static void handle_request(const struct box *box, struct wire_message *message, struct command *command) {
    struct guest_fault fault = { 0 };
    int r = -EBUSY;

    command->serial = message->header.serial;
    command->final = message->header.flags & GUEST_EXEC_FINAL;
    if (message->header.type == GUEST_EXEC && !command->pid)
        r = start(box, message, command, &fault);
    wire_message_done(message);
    if (r >= 0) {
        struct guest_record record = { .kind = GUEST_STARTED, .serial = command->serial };
        record_send(box->socket, &record, NULL, 0);
        return;
    }
    record_fault(box->socket, GUEST_EXEC_FAILED, command->serial, &fault, r);
    if (command->final)
        leave(box, 0);
}

_Noreturn void init_run(struct box *box) {
    static struct wire_message message;
    struct command command = { 0 };
    sigset_t all;

    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    int signals = signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals < 0)
        leave(box, 1);
    for (;;) {
        struct pollfd events[2] = { { box->socket, POLLIN, 0 }, { signals, POLLIN, 0 } };
        struct signalfd_siginfo info;

        if (poll(events, 2, -1) < 0 && errno != EINTR)
            leave(box, 1);
        if (events[1].revents) {
            while (read(signals, &info, sizeof info) == sizeof info)
                ;
            reap(box, &command);
        }
        if (events[0].revents) {
            int r = wire_receive(box->socket, &message);
            if (r == 1)
                handle_request(box, &message, &command);
            else if (r != -EAGAIN && r != -EINTR)
                leave(box, 0);
        }
    }
}
