/* SPDX-License-Identifier: Apache-2.0 */
/* The open files of an image. Init creates each once. Init has the guest's ids, root, Landlock
 * domain and filter, so it can open only paths that the guest could open. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "guest/det/vtime.h"
#include "guest/restore/restore_image.h"
#include "sys/syscalls.h"

#if defined(__x86_64__) && !defined(__GLIBC__)

#    define CREATING (O_CREAT | O_EXCL | O_TRUNC | O_NOCTTY | O_CLOEXEC)
#    define SETTABLE (O_APPEND | O_NONBLOCK | O_DIRECT | O_NOATIME)
#    define WATCH_MASK (IN_ALL_EVENTS | IN_ONESHOT | IN_EXCL_UNLINK)
#    define SET_TICKS 0x40085400u /* TFD_IOC_SET_TICKS */
#    define OWN_FDS "/proc/self/fd/"
#    define OWN_PATH 32 /* followed by a number */
#    define NAMELESS_MODE 0600u
#    define BUFFER_LOCK 72 /* SO_BUF_LOCK */
#    define SIOCOUTQNSD 0x894b
#    define RESET_TRIES 1000u
#    define SET_PIPE_SIZE 1031 /* F_SETPIPE_SZ */
#    define ADD_SEALS 1033     /* F_ADD_SEALS */
#    define MEMORY_FLAGS 3u    /* MFD_CLOEXEC, MFD_ALLOW_SEALING */
#    define SEAL_SEAL 1u
#    define SEAL_WRITE 8u
#    define SEAL_FUTURE_WRITE 16u

static bool has_many_users(void) {
    return restored.header->credentials.n;
}

static int set_flags(int fd, uint32_t flags) {
    return flags & SETTABLE && fcntl(fd, F_SETFL, flags) < 0 ? -errno : 0;
}

static int fail_file(int fd, int r) {
    close(fd);
    return r;
}

static int set_mode(const struct image_file *file, uint32_t mode) {
    return (int)sys_call3(__NR_fchmodat, AT_FDCWD, restored_text(file->path), mode & 07777);
}

/* A file may have a mode that no longer lets its owner open it. The owner can change that for a
 * moment. Afterwards the file gets its present mode again, which another user may have changed
 * since if the file is the host's. */
static int open_as_it_was(const struct image_file *file, int flags) {
    int fd = open(restored_text(file->path), flags), r = fd < 0 ? -errno : 0;
    struct stat st;

    if (r != -EACCES ||
        fstatat(AT_FDCWD, restored_text(file->path), &st, AT_SYMLINK_NOFOLLOW) < 0 ||
        (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) ||
        set_mode(file, st.st_mode | S_IRUSR | S_IWUSR) < 0)
        return r < 0 ? r : fd;
    fd = open(restored_text(file->path), flags);
    r = fd < 0 ? -errno : 0;
    int again = set_mode(file, st.st_mode);
    if (r == 0 && again < 0)
        r = again;
    if (r == 0)
        return fd;
    return fd < 0 ? r : fail_file(fd, r);
}

static int open_path(const struct image_file *file) {
    struct stat st;
    /* Opens the other end of a FIFO for a moment. */
    int other = S_ISFIFO(file->mode) ? open(restored_text(file->path),
                                           O_RDWR | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK | O_CLOEXEC)
                                     : -1;
    int fd = open_as_it_was(file, (int)(file->flags & ~(uint32_t)CREATING) | O_NOFOLLOW | O_NOCTTY |
                                      O_NONBLOCK | O_CLOEXEC),
        r = fd < 0 ? fd : 0;

    if (r == 0 && other >= 0 && file->data_length &&
        write(other, restored.base + file->data, file->data_length) != (ssize_t)file->data_length)
        r = -EIO;
    if (other >= 0)
        close(other);
    if (r < 0)
        return fd < 0 ? r : fail_file(fd, r);
    if (fstat(fd, &st) < 0)
        return fail_file(fd, -errno);
    if ((st.st_mode & S_IFMT) != (file->mode & S_IFMT))
        return fail_file(fd, -ESTALE);
    if ((S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) &&
        lseek(fd, (off_t)file->offset, SEEK_SET) < 0)
        return fail_file(fd, -errno);
    /* Opened with O_NONBLOCK, so the flags are set now. */
    return fcntl(fd, F_SETFL, file->flags & SETTABLE) < 0 ? fail_file(fd, -errno) : fd;
}

static int fill_file(int fd, const struct image_file *file) {
    const struct image_run *runs = restored_table(runs, struct image_run) + file->runs.first;

    if (ftruncate(fd, (off_t)file->length) < 0)
        return -errno;
    for (uint32_t i = 0; i < file->runs.n; i++) {
        uint64_t length = runs[i].address < file->length ? file->length - runs[i].address : 0;

        length = length < runs[i].length ? length : runs[i].length;
        for (uint64_t done = 0; done < length;) {
            long n = sys_call4(__NR_pwrite64, fd, restored.base + runs[i].at + done, length - done,
                runs[i].address + done);
            if (n <= 0)
                return n < 0 ? (int)n : -EIO;
            done += (uint64_t)n;
        }
    }
    return 0;
}

static int open_nameless(void) {
    int fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, NAMELESS_MODE);

    return fd < 0 ? -errno : fd;
}

static int give_mode(int fd, uint32_t mode) {
    struct stat st;

    if (fstat(fd, &st) < 0)
        return -errno;
    return (st.st_mode & 07777) == (mode & 07777) ? 0
                                                  : (int)sys_call2(__NR_fchmod, fd, mode & 07777);
}

/* F_SEAL_FUTURE_WRITE allows existing writable mappings, so it is added after those are made.
 * F_SEAL_WRITE would refuse while such mappings exist. */
static uint64_t late_seals(const struct image_file *file) {
    return file->kind == IMAGE_FILE_MEMORY &&
                   (file->seals & (SEAL_WRITE | SEAL_FUTURE_WRITE)) == SEAL_FUTURE_WRITE
               ? file->seals & (SEAL_FUTURE_WRITE | SEAL_SEAL)
               : 0;
}

/* The memory file may have been replaced by an ordinary file, which has no seals. */
static int add_seals(int fd, uint64_t seals) {
    return seals && fcntl(fd, ADD_SEALS, (int)seals) < 0 && errno != EINVAL ? -errno : 0;
}

int restore_seal(const int *fds, uint32_t *ret_file) {
    const struct image_file *files = restored_table(files, struct image_file);
    int r = 0;

    for (uint64_t i = 0; i < restored.header->files.n && r == 0; i++) {
        r = add_seals(fds[i], late_seals(&files[i]));
        *ret_file = (uint32_t)i;
    }
    return r;
}

/* The mode and seals are set later, so the host's default for all memory files (vm.memfd_noexec)
 * must not apply. Where the host enforces it, there is no choice. */
static int create_memory(const char *name) {
    int fd = (int)sys_call2(__NR_memfd_create, name, MEMORY_FLAGS | 16 /* MFD_EXEC */);

    if (fd == -EACCES)
        fd = (int)sys_call2(__NR_memfd_create, name, MEMORY_FLAGS | 8 /* MFD_NOEXEC_SEAL */);
    return fd == -EINVAL ? (int)sys_call2(__NR_memfd_create, name, MEMORY_FLAGS)
                         : fd; /* before Linux 6.3 */
}

/* Opens a file again that is open already. */
static int open_own(int fd, int access) {
    char path[OWN_PATH] = OWN_FDS;

    *guest_put_number(path + strlen(path), (uint64_t)fd) = '\0';
    return open(path, access | O_NONBLOCK | O_CLOEXEC);
}

/* Another user's file, which the process may have received with fewer rights. */
static int open_as_given(int take_fd, const struct image_file *file) {
    int fd = open_own(take_fd, (int)(file->flags & O_ACCMODE)), r = fd < 0 ? -errno : 0;

    close(take_fd);
    if (r == 0 && lseek(fd, (off_t)file->offset, SEEK_SET) < 0)
        r = -errno;
    if (r == 0 && fcntl(fd, F_SETFL, file->flags & SETTABLE) < 0)
        r = -errno;
    if (r < 0)
        return fd < 0 ? r : fail_file(fd, r);
    return fd;
}

/* If no cgroup counts the memory of a sandbox, its filter refuses memory files. Then a file in the
 * private files is used, which is counted. */
static int make_memory(const struct image_file *file) {
    int fd = file->is_nameless ? open_nameless() : create_memory(restored_text(file->path));

    if (fd < 0)
        fd = file->is_nameless ? create_memory(restored_text(file->path)) : open_nameless();
    if (fd < 0)
        return fd;
    int r = fill_file(fd, file);
    if (r == 0 && has_many_users())
        r = (int)sys_call3(__NR_fchown, fd, file->owner, file->group);
    if (r == 0)
        r = give_mode(fd, file->mode); /* before F_SEAL_EXEC, because that adds all other seals to
                                          an executable file */
    if (r == 0 && lseek(fd, (off_t)file->offset, SEEK_SET) < 0)
        r = -errno;
    if (r == 0)
        r = add_seals(fd, file->seals & ~late_seals(file));
    if (r == 0 && has_many_users() && (file->flags & O_ACCMODE) != O_RDWR && !late_seals(file))
        return open_as_given(fd, file);
    if (r == 0)
        r = set_flags(fd, file->flags);
    return r < 0 ? fail_file(fd, r) : fd;
}

int restore_open_again(int fd, int access) {
    int r = open_own(fd, access);

    return r < 0 ? -errno : r;
}

/* Both ends of a pipe at once, for all files that refer to them. An end may have been opened
 * several times (/dev/stdout), each with its own flags. */
static int make_pipe(uint64_t number, int *fds) {
    const struct image_file *files = restored_table(files, struct image_file);
    const struct image_pipe *pipe = restored_table(pipes, struct image_pipe) + number;
    int ends[2], r = (int)sys_call2(__NR_pipe2, ends, O_CLOEXEC);
    bool is_taken[2] = { false, false };

    if (r < 0)
        return r;
    /* At the user's limit of pipe memory, it is as large as possible. */
    if (pipe->capacity)
        (void)fcntl(ends[1], SET_PIPE_SIZE, (int)pipe->capacity);
    for (uint64_t done = 0; done < pipe->length && r == 0;) {
        ssize_t n = fcntl(ends[1], F_SETFL, O_NONBLOCK) < 0
                        ? -1
                        : write(ends[1], restored.base + pipe->data + done, pipe->length - done);

        if (n <= 0)
            r = n < 0 ? -errno : -EIO;
        else
            done += (uint64_t)n;
    }
    for (uint64_t i = 0; i < restored.header->files.n && r == 0; i++) {
        bool writes = (files[i].flags & O_ACCMODE) == O_WRONLY;

        if (files[i].kind != IMAGE_FILE_PIPE || files[i].value != number)
            continue;
        const int access = writes ? O_WRONLY : O_RDONLY;
        fds[i] = is_taken[writes] ? open_own(ends[writes], access)
                                  : fcntl(ends[writes], F_DUPFD_CLOEXEC, 3);
        r = fds[i] < 0                                              ? -errno
            : fcntl(fds[i], F_SETFL, files[i].flags & SETTABLE) < 0 ? -errno
                                                                    : 0;
        is_taken[writes] = true;
    }
    close(ends[0]);
    close(ends[1]);
    return r;
}

/* A timer that has expired and was not read: it is set to expire at once, and gets its number of
 * ticks. */
static int make_timer(const struct image_file *file) {
    uint64_t time[4] = { file->timer[0], file->timer[1], file->timer[2], file->timer[3] };
    int fd =
        (int)sys_call2(__NR_timerfd_create, file->value, (file->flags & O_NONBLOCK) | O_CLOEXEC);
    long r = fd;

    if (file->offset) {
        time[2] = file->offset / 1000000000u;
        time[3] = file->offset % 1000000000u;
    } else if ((time[0] || time[1]) && !time[2] && !time[3])
        time[3] = 1;
    if (fd >= 0 && (time[2] || time[3]))
        r = sys_call4(__NR_timerfd_settime, fd, file->offset ? file->seals : 0, time, NULL);
    if (r >= 0 && file->ticks)
        r = ioctl(fd, (int)SET_TICKS, &file->ticks) < 0 ? -errno : 0;
    if (r < 0)
        return fd < 0 ? fd : fail_file(fd, (int)r);
    return fd;
}

/* The initial value has 32 bits, the counter 64. */
static int make_event(const struct image_file *file) {
    int fd = (int)sys_call2(
        __NR_eventfd2, 0, (file->flags & O_NONBLOCK) | O_CLOEXEC | (file->ticks ? 1u : 0u));
    long n = fd < 0 || !file->value ? (long)sizeof file->value
                                    : sys_call3(__NR_write, fd, &file->value, sizeof file->value);

    if (n == (long)sizeof file->value)
        return fd;
    return fail_file(fd, n < 0 ? (int)n : -EIO);
}

/* ---- sockets ---- */

static int set_option_of(int fd, int level, int name, uint64_t value) {
    int number = (int)value;

    return (int)sys_call5(__NR_setsockopt, fd, level, name, &number, sizeof number);
}

static int set_option(int fd, int name, uint64_t value) {
    return set_option_of(fd, SOL_SOCKET, name, value);
}

static int set_patience(int fd, int name, uint64_t patience_us) {
    struct timeval time = { .tv_sec = (time_t)(patience_us / 1000000u),
        .tv_usec = (suseconds_t)(patience_us % 1000000u) };

    return patience_us ? (int)sys_call5(__NR_setsockopt, fd, SOL_SOCKET, name, &time, sizeof time)
                       : 0;
}

/* After connecting, which may take longer than the time-outs allow. */
static int set_patiences(int fd, const struct image_file *file) {
    int r = set_patience(fd, SO_SNDTIMEO, file->patience[0]);

    return r < 0 ? r : set_patience(fd, SO_RCVTIMEO, file->patience[1]);
}

/* The kernel doubles the value. */
static int set_options(int fd, const struct image_file *file) {
    int r = set_option(fd, SO_SNDBUF, file->buffers[0] / 2);

    if (r == 0)
        r = set_option(fd, SO_RCVBUF, file->buffers[1] / 2);
    if (r == 0 && file->passes_credentials)
        r = set_option(fd, SO_PASSCRED, 1);
    if (r == 0 && file->options & IMAGE_REUSE_ADDRESS)
        r = set_option(fd, SO_REUSEADDR, 1);
    if (r == 0 && file->options & IMAGE_REUSE_PORT)
        r = set_option(fd, SO_REUSEPORT, 1);
    if (r == 0 && file->options & IMAGE_KEEP_ALIVE)
        r = set_option(fd, SO_KEEPALIVE, 1);
    if (r == 0 && file->options & IMAGE_BROADCAST)
        r = set_option(fd, SO_BROADCAST, 1);
    if (r == 0 && file->options & IMAGE_V6_ONLY)
        r = set_option_of(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    if (r == 0 && file->options & IMAGE_NO_DELAY)
        r = set_option_of(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    return r;
}

/* The path exists or not, as the snapshot's files have it. A socket file at the path no longer
 * belongs to any process. */
static int bind_to(int fd, const struct image_file *file) {
    const struct sockaddr_un *name = (const void *)(restored.base + file->name);
    const struct sockaddr_in *internet =
        (const void *)name; /* an IPv6 address begins in the same way */
    char path[sizeof name->sun_path + 1] = "";
    struct stat st;
    long r;

    if (file->name_length <= sizeof name->sun_family || file->name_length > sizeof *name ||
        (file->domain != AF_UNIX && !internet->sin_port))
        return 0;
    if (file->domain == AF_UNIX && name->sun_path[0])
        memcpy(path, name->sun_path, file->name_length - sizeof name->sun_family);
    bool is_file =
        *path && fstatat(AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(st.st_mode);
    if (is_file && unlinkat(AT_FDCWD, path, 0) < 0)
        return -errno;
    bool is_removed = *path && !is_file && errno == ENOENT;
    r = sys_call3(__NR_bind, fd, name, file->name_length);
    if (r == 0 && is_file && has_many_users())
        r = sys_call5(__NR_fchownat, AT_FDCWD, path, st.st_uid, st.st_gid, AT_SYMLINK_NOFOLLOW);
    if (r == 0 && is_file)
        r = sys_call3(__NR_fchmodat, AT_FDCWD, path, st.st_mode & 07777);
    if (r == 0 && is_removed)
        r = unlinkat(AT_FDCWD, path, 0) < 0 ? -errno : 0;
    return (int)r;
}

/* With many users, the receiver may ask for the sender's credentials (SO_PASSCRED). */
static long send_as_sender(int from, const struct image_file *to, const char *data, size_t length) {
    struct ucred sender = { .pid = 1, .uid = to->sender, .gid = to->sender_group };
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof sender)] = { 0 };
    struct cmsghdr *header = (void *)control;
    struct iovec part = { (void *)(uintptr_t)data, length };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

    if (has_many_users() && to->domain == AF_UNIX) {
        *header = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof sender),
            .cmsg_level = SOL_SOCKET,
            .cmsg_type = SCM_CREDENTIALS };
        memcpy(CMSG_DATA(header), &sender, sizeof sender);
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(sizeof sender);
    }
    return sys_call3(__NR_sendmsg, from, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Data that waits at one end is sent from the other. */
static int send_data(int from, const struct image_file *to) {
    const char *at = restored.base + to->data, *end = at + to->data_length;

    while (at < end) {
        uint64_t length;

        memcpy(&length, at, sizeof length);
        at += sizeof length;
        if (length > (uint64_t)(end - at))
            return -EBADMSG;
        for (uint64_t done = 0; done < length || !length;) {
            long n = send_as_sender(from, to, at + done, length - done);

            if (n < 0)
                return (int)n;
            done += (uint64_t)n;
            if (!length)
                break;
        }
        at += (length + 7) & ~7ull;
    }
    return 0;
}

static int set_room(const int *ends, uint64_t first, uint64_t second) {
    int r = set_option(ends[0], SO_SNDBUF, first);

    return r < 0 ? r : set_option(ends[1], SO_SNDBUF, second);
}

/* The kernel accepts a last message while there is any room, so a buffer may hold more than its
 * size allows when the messages are sent again. So the size is raised to the maximum first. */
static int send_waiting(
    const int *ends, const struct image_file *file, const struct image_file *other) {
    const bool needs_room =
        file->domain == AF_UNIX && (file->data_length || (other && other->data_length));
    int r = needs_room ? set_room(ends, INT32_MAX, INT32_MAX) : 0;

    if (r == 0)
        r = send_data(ends[1], file);
    if (r == 0 && other)
        r = send_data(ends[0], other);
    if (r < 0 || !needs_room)
        return r;
    return set_room(ends, file->buffers[0] / 2, other ? other->buffers[0] / 2 : 0);
}

static int shut_socket(int fd, const struct image_file *file) {
    return file->is_shut ? (int)sys_call2(__NR_shutdown, fd, file->is_shut - 1) : 0;
}

/* A connection may use a port on which another socket listens, in either order of creation. The
 * original setting is restored last. */
static int share_port(int fd, const struct image_file *file) {
    return file->domain == AF_UNIX ? 0 : set_option(fd, SO_REUSEADDR, 1);
}

static int set_address_of(
    int fd, const struct image_file *file, long call, uint64_t address, uint64_t length) {
    const struct sockaddr_in *name = (const void *)(restored.base + address);

    return length >= sizeof *name && length <= sizeof(struct sockaddr_in6) &&
                   name->sin_family == file->domain
               ? (int)sys_call3(call, fd, name, length)
               : -EBADMSG;
}

/* Clients see the listener's credentials (SO_PEERCRED), so they are set before listen(2). */
static int listen_as_owner(int fd, const struct image_file *file) {
    const bool is_of_other = has_many_users() && file->domain == AF_UNIX;
    int r = is_of_other ? box_act_as(file->owner, file->group) : 0;

    if (r == 0)
        r = (int)sys_call2(__NR_listen, fd, file->backlog);
    int back = is_of_other ? box_act_as_root() : 0;
    return back < 0 ? back : r;
}

static int make_alone(const struct image_file *file) {
    const bool is_connected = file->remote_length && file->protocol == IPPROTO_UDP;
    int fd = (int)sys_call3(__NR_socket, file->domain, file->type | SOCK_CLOEXEC, file->protocol);
    int r = fd < 0 ? fd : set_options(fd, file);

    if (r == 0 && file->protocol == IPPROTO_TCP)
        r = share_port(fd, file);

    if (r == 0)
        r = bind_to(fd, file);
    if (r == 0 && file->backlog)
        r = listen_as_owner(fd, file);
    if (r == 0 && is_connected)
        r = set_address_of(fd, file, __NR_connect, file->remote, file->remote_length);
    /* See make_failed. */
    if (is_connected && (r == -EADDRNOTAVAIL || r == -ENETUNREACH))
        r = 0;
    if (r == 0)
        r = set_flags(fd, file->flags);
    if (r < 0 && fd >= 0)
        return fail_file(fd, r);
    return r < 0 ? r : fd;
}

static int bound_range(
    const struct image_file *like, const struct image_file *of, uint64_t address, uint64_t length) {
    int fd = (int)sys_call3(__NR_socket, of->domain, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
    int r = fd < 0 ? fd : set_options(fd, like);

    if (r == 0)
        r = share_port(fd, of);
    if (r == 0)
        r = set_address_of(fd, of, __NR_bind, address, length);
    if (r < 0 && fd >= 0)
        return fail_file(fd, r);
    return r < 0 ? r : fd;
}

/* To the port that the socket was bound to, or that the kernel assigned if it was 0. */
static int connect_to(int fd, int listening) {
    struct sockaddr_storage name;
    socklen_t length = sizeof name;
    long r = sys_call3(__NR_getsockname, listening, &name, &length);

    return r < 0 ? (int)r : (int)sys_call3(__NR_connect, fd, &name, length);
}

/* One of the two listens for a moment. It cannot be seen later which one it was. */
static int connect_ends(
    const struct image_file *file, const struct image_file *other, int *ret_ends) {
    int ends[2] = { -1, -1 }, r = 0,
        listening = other ? bound_range(other, other, other->name, other->name_length)
                          : bound_range(file, file, file->remote, file->remote_length);

    if (listening < 0)
        return listening;
    if ((r = (int)sys_call2(__NR_listen, listening, 1)) == 0 &&
        (ends[0] = bound_range(file, file, file->name, file->name_length)) < 0)
        r = ends[0];
    if (r == 0)
        r = other ? set_address_of(ends[0], file, __NR_connect, file->remote, file->remote_length)
                  : connect_to(ends[0], listening);
    if (r == 0 && (ends[1] = (int)sys_call4(__NR_accept4, listening, NULL, NULL, SOCK_CLOEXEC)) < 0)
        r = ends[1];
    close(listening);
    if (r < 0 && ends[0] >= 0)
        close(ends[0]);
    ret_ends[0] = ends[0];
    ret_ends[1] = ends[1];
    return r;
}

/* Closing an end with SO_LINGER of 0 s resets the connection. Data that is still to be sent then is
 * lost, so it is sent before: loopback delivers in order. */
static int reset(int take_fd) {
    const struct linger none = { .l_onoff = 1 };
    int unsent = 1;

    for (unsigned tries = 0; tries < RESET_TRIES && unsent; tries++)
        if (ioctl(take_fd, (int)SIOCOUTQNSD, &unsent) < 0 ||
            (unsent && sys_call1(__NR_sched_yield, 0) < 0))
            break;
    int r = (int)sys_call5(
        __NR_setsockopt, take_fd, SOL_SOCKET, SO_LINGER, SYS_ARG(&none), sizeof none);
    close(take_fd);
    return r;
}

/* `remote` is an own address, without a port: the kernel chooses an unused one, also not that of
 * `fd`, which is bound already. */
static int make_reset(int fd, const struct image_file *file) {
    int listening =
            (int)sys_call3(__NR_socket, file->domain, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP),
        other = -1;
    int r = listening < 0 ? listening : set_options(listening, file);

    if (r == 0)
        r = set_address_of(listening, file, __NR_bind, file->remote, file->remote_length);
    if (r == 0)
        r = (int)sys_call2(__NR_listen, listening, 1);
    if (r == 0)
        r = connect_to(fd, listening);
    if (r == 0 && (other = (int)sys_call4(__NR_accept4, listening, NULL, NULL, SOCK_CLOEXEC)) < 0)
        r = other;
    if (r == 0)
        r = send_data(other, file);
    if (r == 0)
        r = shut_socket(fd, file);
    if (other >= 0) {
        int reset_r = reset(other);

        r = r < 0 ? r : reset_r;
    }
    if (listening >= 0)
        close(listening);
    return r;
}

/* No guest can listen on port 1. The answer arrives while connect() has the socket, so the error
 * stays with the socket for the process. A process that waited in connect() gets it there. */
static int make_refused(int fd, const struct image_file *file) {
    union {
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } to;

    if (file->remote_length > sizeof to)
        return -EBADMSG;
    memcpy(&to, restored.base + file->remote, file->remote_length);
    to.v4.sin_port = __builtin_bswap16(1); /* IPv6 has the port in the same place */
    int r = fcntl(fd, F_SETFL, O_NONBLOCK) < 0 ? -errno : 0;
    if (r == 0)
        r = (int)sys_call3(__NR_connect, fd, SYS_ARG(&to), file->remote_length);
    if (r == -EINPROGRESS || r == -ECONNREFUSED)
        r = fcntl(fd, F_SETFL, 0) < 0 ? -errno : 0;
    return r;
}

/* An imported sandbox may have another policy, and not the addresses of net "allow" any more. Then
 * the socket is not connected. */
static int make_failed(const struct image_file *file) {
    int fd = bound_range(file, file, file->name, file->name_length), r = 0;
    const bool is_elsewhere = fd == -EADDRNOTAVAIL;

    if (is_elsewhere)
        fd = (int)sys_call3(__NR_socket, file->domain, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0)
        return fd;
    if (is_elsewhere)
        r = set_options(fd, file);
    else
        r = file->failure == IMAGE_RESET ? make_reset(fd, file) : make_refused(fd, file);
    if (r == 0)
        r = set_flags(fd, file->flags);
    return r < 0 ? fail_file(fd, r) : fd;
}

/* Ends of the same user on both sides, as of socketpair(2). */
static int make_pair(uint32_t type, const struct image_file *of, int *ret_ends) {
    const bool is_of_other = has_many_users() && (of->owner || of->group);
    int r = is_of_other ? box_act_as(of->owner, of->group) : 0;

    if (r == 0)
        r = (int)sys_call4(__NR_socketpair, AF_UNIX, type | SOCK_CLOEXEC, 0, ret_ends);
    int back = is_of_other ? box_act_as_root() : 0;
    if (r == 0 && back < 0) {
        close(ret_ends[0]);
        close(ret_ends[1]);
    }
    return back < 0 ? back : r;
}

/* Each end records the credentials of the other: the connected end those of the listener, the
 * accepted end those of the client. The kernel chooses an abstract name, which none of the
 * processes can use while they do not run. */
static int connect_users(
    const struct image_file *file, const struct image_file *other, int *ret_ends) {
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    socklen_t length = sizeof name;
    int listening = (int)sys_call3(__NR_socket, AF_UNIX, file->type | SOCK_CLOEXEC, 0), back;
    long r = listening;

    ret_ends[0] = ret_ends[1] = -1;
    if (r >= 0)
        r = sys_call3(__NR_bind, listening, &name, sizeof name.sun_family);
    if (r >= 0)
        r = sys_call3(__NR_getsockname, listening, &name, &length);
    if (r >= 0)
        r = box_act_as(file->owner, file->group);
    if (r >= 0)
        r = sys_call2(__NR_listen, listening, 1);
    if ((back = box_act_as_root()) < 0)
        r = back;
    if (r >= 0)
        r = ret_ends[0] = (int)sys_call3(__NR_socket, AF_UNIX, file->type | SOCK_CLOEXEC, 0);
    if (r >= 0)
        r = box_act_as(other->owner, other->group);
    if (r >= 0)
        r = sys_call3(__NR_connect, ret_ends[0], &name, length);
    if ((back = box_act_as_root()) < 0)
        r = back;
    if (r >= 0)
        r = ret_ends[1] = (int)sys_call4(__NR_accept4, listening, NULL, NULL, SOCK_CLOEXEC);
    if (listening >= 0)
        close(listening);
    if (r < 0 && ret_ends[0] >= 0)
        close(ret_ends[0]);
    return r < 0 ? (int)r : 0;
}

static int make_unix_ends(
    const struct image_file *file, const struct image_file *other, int *ret_ends) {
    const bool has_two_users = has_many_users() && other && file->type != SOCK_DGRAM &&
                               (file->owner != other->owner || file->group != other->group);

    return has_two_users ? connect_users(file, other, ret_ends)
                         : make_pair(file->type, file, ret_ends);
}

/* Both ends at once, unless the other end was closed. */
static int make_socket(const struct image_file *file, int *fds) {
    const struct image_file *files = restored_table(files, struct image_file),
                            *other = file->peer ? &files[file->peer - 1] : NULL;
    int ends[2], r;

    if (file->is_alone)
        return make_alone(file);
    if (file->failure)
        return file->domain == AF_UNIX || other ? -EBADMSG : make_failed(file);
    if (other && (other->kind != IMAGE_FILE_SOCKET || other->is_alone ||
                     (other->domain == AF_UNIX) != (file->domain == AF_UNIX) ||
                     other->peer != (uint32_t)(file - files) + 1 || fds[other - files] >= 0))
        return -EBADMSG;
    r = file->domain == AF_UNIX ? make_unix_ends(file, other, ends)
                                : connect_ends(file, other, ends);
    if (r < 0)
        return r;
    /* Before data is sent, because the sender's credentials are recorded only if one end asks for
     * them. */
    if (file->domain == AF_UNIX)
        r = set_options(ends[0], file);
    if (r == 0 && other && file->domain == AF_UNIX)
        r = set_options(ends[1], other);
    if (r == 0)
        r = send_waiting(ends, file, other);
    if (r == 0)
        r = shut_socket(ends[0], file);
    if (r == 0 && other)
        r = shut_socket(ends[1], other);
    if (r == 0)
        r = set_flags(ends[0], file->flags);
    if (r == 0 && other)
        r = set_flags(ends[1], other->flags);
    if (r == 0 && other)
        fds[other - files] = ends[1];
    else
        close(ends[1]);
    return r < 0 ? fail_file(ends[0], r) : ends[0];
}

static int make_one(const struct image_file *file, const int *externals, int *fds) {
    int fd;

    switch ((enum image_file_kind)file->kind) {
    case IMAGE_FILE_PATH:
        return open_path(file);
    case IMAGE_FILE_EXTERNAL:
        fd = sys_dup_above(externals[file->value], 3);
        return fd < 0                                           ? fd
               : fcntl(fd, F_SETFL, file->flags & SETTABLE) < 0 ? fail_file(fd, -errno)
                                                                : fd;
    case IMAGE_FILE_PIPE:
        return make_pipe(file->value, fds);
    case IMAGE_FILE_MEMORY:
        return make_memory(file);
    case IMAGE_FILE_EVENT:
        return make_event(file);
    case IMAGE_FILE_EPOLL:
        return (int)sys_call1(__NR_epoll_create1, O_CLOEXEC);
    case IMAGE_FILE_TIMER:
        return make_timer(file);
    case IMAGE_FILE_SIGNAL:
        return (int)sys_call4(
            __NR_signalfd4, -1, &file->value, 8, (file->flags & O_NONBLOCK) | O_CLOEXEC);
    case IMAGE_FILE_PIDFD:
        return (int)sys_call2(__NR_pidfd_open, file->value, file->flags & O_NONBLOCK);
    case IMAGE_FILE_SOCKET:
        return make_socket(file, fds);
    case IMAGE_FILE_NOTIFY:
        return (int)sys_call1(__NR_inotify_init1, (file->flags & O_NONBLOCK) | O_CLOEXEC);
    case IMAGE_FILE_MASTER:
    case IMAGE_FILE_TERMINAL:
    case IMAGE_FILE_HUNG_UP:
        return restore_open_terminal(file);
    case IMAGE_FILE_CLOCK:
        return vtime_page();
    }
    return -EBADMSG;
}

/* Options that depend on all sockets being there. */
static int set_last_options(int fd, const struct image_file *file) {
    static const int names[] = { TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_USER_TIMEOUT };
    const uint32_t linger = file->tuning[IMAGE_TUNING - 1];
    struct linger lingers = { 1, (int)linger - 1 };
    int r = set_option(fd, SO_REUSEADDR, file->options & IMAGE_REUSE_ADDRESS ? 1 : 0);

    (void)set_option(fd, BUFFER_LOCK, file->fixed); /* before Linux 5.14 these stay as they are */
    for (size_t i = 0; i < IMAGE_TUNING - 1 && r == 0 && file->protocol == IPPROTO_TCP; i++)
        if (file->tuning[i])
            r = set_option_of(fd, IPPROTO_TCP, names[i], file->tuning[i]);
    if (r == 0 && linger)
        r = (int)sys_call5(__NR_setsockopt, fd, SOL_SOCKET, SO_LINGER, &lingers, sizeof lingers);
    return r;
}

static bool is_connection(const struct image_file *file) {
    return file->kind == IMAGE_FILE_SOCKET && !file->is_alone && file->domain != AF_UNIX;
}

static int make_all(const int *externals, int *fds, bool connections, uint32_t *ret_file) {
    const struct image_file *files = restored_table(files, struct image_file);

    for (uint64_t i = 0; i < restored.header->files.n; i++) {
        if (fds[i] >= 0 || is_connection(&files[i]) != connections)
            continue;
        int r = make_one(&files[i], externals, fds);
        *ret_file = (uint32_t)i;
        if (r < 0)
            return r;
        if (files[i].kind != IMAGE_FILE_PIPE)
            fds[i] = r;
    }
    return 0;
}

/* For datagrams to an unconnected receiver, which exists by now. */
static int send_to_other(const struct image_file *files, const int *fds, uint64_t index) {
    const struct image_file *file = &files[index],
                            *other = file->peer ? &files[file->peer - 1] : NULL;

    if (file->kind != IMAGE_FILE_SOCKET || file->domain != AF_UNIX || !file->is_alone || !other)
        return 0;
    /* A stream would have to be accepted. */
    return file->type == SOCK_DGRAM && other->kind == IMAGE_FILE_SOCKET &&
                   other->domain == AF_UNIX && other->name_length <= sizeof(struct sockaddr_un)
               ? (int)sys_call3(
                     __NR_connect, fds[index], restored.base + other->name, other->name_length)
               : -EBADMSG;
}

/* Connections first: a socket cannot listen for a moment on a port where another socket listens
 * already. */
int restore_open_files(const int *externals, size_t n_externals, int *fds, uint32_t *ret_file) {
    const struct image_file *files = restored_table(files, struct image_file);
    int r = make_all(externals, fds, true, ret_file);

    (void)n_externals; /* the number is the image's, whose files were checked against it */
    if (r == 0)
        r = make_all(externals, fds, false, ret_file);
    for (uint64_t i = 0; i < restored.header->files.n && r == 0; i++) {
        r = send_to_other(files, fds, i);
        *ret_file = (uint32_t)i;
    }
    for (uint64_t i = 0; i < restored.header->files.n && r == 0; i++)
        if (files[i].kind == IMAGE_FILE_SOCKET) {
            r = set_patiences(fds[i], &files[i]);
            if (r == 0 && files[i].domain != AF_UNIX)
                r = set_last_options(fds[i], &files[i]);
            *ret_file = (uint32_t)i;
        }
    return r;
}

bool restore_makes_files(void) {
    const struct image_file *files = restored_table(files, struct image_file);
    bool makes = restored.header->segments.n > 0;

    for (uint64_t i = 0; i < restored.header->files.n && !makes; i++)
        makes = files[i].kind != IMAGE_FILE_EXTERNAL;
    return makes;
}

/* ---- inotify ---- */

/* Watch numbers are assigned in sequence. For unused numbers, a pipe of init's is watched for a
 * moment, which no guest watches. */
static int watch_to(int fd, const char *nothing, uint32_t from, uint32_t to) {
    for (; from < to; from++) {
        long number = sys_call3(__NR_inotify_add_watch, fd, nothing, IN_ATTRIB);

        if (number != (long)from)
            return number < 0 ? (int)number : -EEXIST;
        (void)sys_call2(__NR_inotify_rm_watch, fd, number);
    }
    return 0;
}

static int add_watches(int fd, const struct image_file *file, const char *nothing) {
    const struct image_watch *watches =
        restored_table(watches, struct image_watch) + file->targets.first;
    char events[4096];
    int waiting = 0;

    for (uint32_t i = 0; i < file->targets.n; i++) {
        int r = watch_to(fd, nothing, i ? watches[i - 1].number + 1 : 1, watches[i].number);
        if (r < 0)
            return r;
        long made = sys_call3(__NR_inotify_add_watch, fd, restored_text(watches[i].path),
            (watches[i].mask & WATCH_MASK) | IN_DONT_FOLLOW);
        if (made != (long)watches[i].number)
            return made < 0 ? (int)made : -EEXIST;
    }
    /* Events of those temporary watches. */
    while (ioctl(fd, (int)FIONREAD, &waiting) == 0 && waiting > 0)
        if (read(fd, events, sizeof events) <= 0)
            return -errno;
    return 0;
}

int restore_watch(const int *fds, uint32_t *ret_file) {
    const struct image_file *files = restored_table(files, struct image_file);
    char nothing[OWN_PATH] = OWN_FDS;
    int ends[2] = { -1, -1 }, r = 0;

    for (uint64_t i = 0; i < restored.header->files.n && r == 0; i++) {
        if (files[i].kind != IMAGE_FILE_NOTIFY || !files[i].targets.n)
            continue;
        if (ends[0] < 0 && (r = (int)sys_call2(__NR_pipe2, ends, O_CLOEXEC)) == 0)
            *guest_put_number(nothing + strlen(nothing), (uint64_t)ends[0]) = '\0';
        if (r == 0)
            r = add_watches(fds[i], &files[i], nothing);
        *ret_file = (uint32_t)i;
    }
    if (ends[0] >= 0) {
        close(ends[0]);
        close(ends[1]);
    }
    return r;
}

int restore_fill_epoll(const struct image_process *process) {
    const struct image_fd *own = restored_table(fds, struct image_fd) + process->fds.first;
    const struct image_file *files = restored_table(files, struct image_file);

    for (uint32_t i = 0; i < process->fds.n; i++) {
        const struct image_file *file = &files[own[i].file];
        const struct image_target *targets =
            restored_table(targets, struct image_target) + file->targets.first;

        for (uint32_t k = 0;
             file->kind == IMAGE_FILE_EPOLL && file->value == process->pid && k < file->targets.n;
             k++) {
            struct epoll_event event = { .events = targets[k].events, .data.u64 = targets[k].data };
            long r = sys_call4(__NR_epoll_ctl, own[i].number, EPOLL_CTL_ADD, targets[k].fd, &event);

            /* A duplicate of the descriptor was handled before. */
            if (r < 0 && r != -EEXIST)
                return (int)r;
        }
    }
    return 0;
}

#endif
