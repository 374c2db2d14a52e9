/* SPDX-License-Identifier: Apache-2.0 */
/* Reading, writing and moving files of sandboxes. files.h has the model. */
#include "base/text.h"
#include "client/files_agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/utf8.h"
#include "client/client.h"
#include "client/record.h"
#include "client/sandbox.h"

#define MAX_READ ((uint64_t)1 << 30) /* unless the caller says otherwise */
#define MAX_LIST ((size_t)1 << 28)   /* bytes of JSON */
#define MAX_KILLED 8u                /* agents for one call, */
#define KILLED_MS 3000               /* and for so long */
#define PROGRESS_BYTES (1u << 20)    /* bytes between two reports of progress */
#define PROGRESS_FILES 64u

/* A path as a message can have it: on one line, nothing that a terminal obeys, and not too long. */
struct shown {
    char text[240];
};

static struct shown make_shown(const char *path) {
    struct shown shown;
    size_t length = strlen(path),
           cut = length > sizeof shown.text - 1 ? length - (sizeof shown.text - 4) : 0;
    size_t n =
        (size_t)snprintf(shown.text, sizeof shown.text, "%s%s", cut ? "..." : "", path + cut);

    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)shown.text[i],
                      next = i + 1 < n ? (unsigned char)shown.text[i + 1] : 0;

        if (c < ' ' || c == 127)
            shown.text[i] = '?';
        else if (c == 0xc2 && next >= 0x80 && next <= 0x9f) /* control characters, too */
            shown.text[i] = shown.text[i + 1] = '?';
    }
    return shown;
}

static enum rollbox_error_code code_of(int error_number) {
    switch (error_number) {
    case TRANSFER_REFUSED:
        return ROLLBOX_ERR_RESOURCE_EXHAUSTED;
    case ENOENT:
        return ROLLBOX_ERR_NOT_FOUND;
    case EACCES:
    case EPERM:
    case EROFS:
        return ROLLBOX_ERR_PATH_DENIED;
    case EINVAL:
    case EISDIR:
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case EFBIG:
    case EEXIST:
    case ENOTEMPTY:
    case EBUSY:
        return ROLLBOX_ERR_INVALID_ARGUMENT;
    default:
        return error_code_of(error_number, ROLLBOX_ERR_IO);
    }
}

static const char *hint_of(int error_number) {
    switch (error_number) {
    case EINVAL:
        return " (it is neither a regular file nor a directory)";
    case EISDIR:
        return " (a file cannot take the place of a directory: remove it first)";
    case ENOTEMPTY:
        return " (remove it with all that is in it: recursive)";
    case ENOSPC:
    case EDQUOT:
        return " (see max_disk of the policy)";
    case EBUSY:
        return " (something is mounted there)";
    case ESTALE:
        return " (it was moved meanwhile)";
    case TRANSFER_REFUSED:
        return " (the sandbox has no room for one more process: see max_processes)";
    default:
        return "";
    }
}

/* An error of the agent about the requested path, or about one below it. */
static int agent_failed(const struct files *files, int error_number, const char *below,
    const char *doing, struct rollbox_error *error) {
    if (error_number == TRANSFER_UNKNOWN_USER)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, error_number, "files",
            "the sandbox's /etc/passwd and /etc/group have no %s \"%s\"; numbers need no entry",
            files->user ? "user" : "owner",
            make_shown(files->user ? files->user : text_if(files->owner, files->owner)).text);
    if (error_number == EOPNOTSUPP && (files->user || files->owner))
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, error_number, "files",
            "the sandbox has one user, so files cannot have another; it has more with users many");
    const char *hint =
        error_number == EISDIR && !strcmp(doing, "read")  ? " (list it, or download it)"
        : error_number == EFBIG && !strcmp(doing, "read") ? " (it has more bytes than may be read)"
                                                          : hint_of(error_number);

    return error_set(error, code_of(error_number), error_number, "files",
        "cannot %s \"%s%s%s\" in the sandbox: %s%s", doing, make_shown(files->path).text,
        text_if(*below, "/"), make_shown(below).text, strerror(error_number), hint);
}

static int host_failed(int error_number, const char *path, const char *below, const char *doing,
    struct rollbox_error *error) {
    return error_set(error, code_of(error_number), error_number, "files",
        "cannot %s \"%s%s%s\" on the host: %s%s", doing, make_shown(path).text, *below ? "/" : "",
        *below ? make_shown(below).text : "", strerror(error_number),
        error_number == EINVAL ? hint_of(EINVAL) : "");
}

/* The connection to the agent, or a message on it, is broken. `r` as of transfer_receive, or -EPIPE
 * and others. */
int files_agent_lost(const struct files *files, int r, struct rollbox_error *error) {
    switch (r) {
    case -ETIMEDOUT:
        return error_set(error, ROLLBOX_ERR_IO, ETIMEDOUT, "files",
            "the files agent of the sandbox has not answered for %d ms at \"%s\": a process of the "
            "sandbox may have stopped it",
            files->transfer->timeout_ms, make_shown(files->path).text);
    case -EBADMSG:
        return error_set(error, ROLLBOX_ERR_PROTOCOL, EBADMSG, "files",
            "the files agent of the sandbox sent an unexpected message at \"%s\"",
            make_shown(files->path).text);
    case 0:
    case -EPIPE:
    case -ECONNRESET:
        return error_set(error, ROLLBOX_ERR_GUEST_INTERFERED, ECONNRESET, "files",
            "a process of the sandbox killed each files agent that was started for \"%s\" (%u "
            "tries and more)",
            make_shown(files->path).text, MAX_KILLED);
    default:
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "files",
            "the connection to the files agent failed: %s", strerror(-r));
    }
}

static int out_of_memory(struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "files", "out of memory");
}

/* ---- the agent ---- */

int files_init(struct files *files, int take_socket) {
    auto_close int socket = take_socket;
    /* Not by calloc, which would fill all of it with zeros each time. */
    struct transfer *transfer = mmap(NULL, sizeof *transfer, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (transfer == MAP_FAILED)
        return -ENOMEM;
    transfer_init(transfer, TAKE_FD(socket), FILES_SILENCE_MS);
    memset(files, 0, sizeof *files);
    files->theirs = -EBADF;
    files->transfer = transfer;
    return 0;
}

void files_done(struct files *files) {
    if (files->transfer) {
        transfer_done(files->transfer);
        close_fd(&files->transfer->socket);
        munmap(files->transfer, sizeof *files->transfer);
        files->transfer = NULL;
    }
    close_fd(&files->theirs);
}

int files_agent_open(
    struct files *files, struct rollbox_sandbox *sandbox, struct rollbox_error *error) {
    int sockets[2];

    *files = (struct files){ .theirs = -EBADF };
    if (!sandbox)
        return error_set(
            error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments", "a sandbox must be given");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0)
        return error_set(error, error_code_of(errno, ROLLBOX_ERR_INTERNAL), errno, "files",
            "cannot make a socket pair: %s", strerror(errno));
    if (files_init(files, sockets[0]) < 0) {
        close(sockets[1]);
        return out_of_memory(error);
    }
    files->sandbox = sandbox;
    files->theirs = sockets[1];
    return 0;
}

int files_set_path(struct files *files, const char *path, struct rollbox_error *error) {
    size_t length = path ? strlen(path) : 0;

    if (!length || path[0] != '/' || length >= TRANSFER_TEXT_MAX)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT,
            length >= TRANSFER_TEXT_MAX ? ENAMETOOLONG : EINVAL, "arguments",
            "the path in the sandbox must be absolute, of at most %u bytes: \"%s\"",
            TRANSFER_TEXT_MAX - 1, make_shown(path ? path : "").text);
    memcpy(files->path, path, length + 1);
    return 0;
}

int files_start_agent(struct rollbox_sandbox *sandbox, int socket, bool alone, bool *ret_recorded,
    struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;
    auto_free char *answer = NULL;

    sandbox_begin(&message, sandbox, VERB_FILES);
    if (alone)
        wire_add_u64(&message, TAG_FORCE, 1);
    int r = sandbox_call(sandbox, &message, &socket, 1, &answer, error);
    if (ret_recorded)
        *ret_recorded = r >= 0 && answer && strstr(answer, "\"recorded\"");
    return r;
}

static int send_user(const struct files *files, enum transfer_type type, const char *user) {
    return user ? transfer_send(files->transfer, (struct transfer_record){ .type = type }, NULL,
                      user, strlen(user) + 1)
                : 0;
}

/* Sends the request and has it served. */
int files_send_request(struct files *files, struct transfer_record record, const void *data,
    size_t length, struct rollbox_error *error) {
    int r = send_user(files, TRANSFER_USER, files->user);

    if (r == 0)
        r = send_user(files, TRANSFER_OWNER, files->owner);
    if (r == 0)
        r = transfer_send(files->transfer, record, files->path, data, length);
    if (r < 0)
        return files_agent_lost(files, r, error);
    if (files->theirs < 0)
        return 0;
    r = files_start_agent(files->sandbox, files->theirs, files->alone, &files->is_recorded, error);
    close_fd(&files->theirs);
    return r;
}

/* The next message of an answer. 0 and the message; or the error, which FAILED is, too. */
int files_next_message(const struct files *files, const char *doing,
    struct transfer_message *ret_message, struct rollbox_error *error) {
    int r = transfer_receive(files->transfer, ret_message);

    if (r <= 0)
        return files_agent_lost(files, r, error);
    if (ret_message->record.type == TRANSFER_FAILED)
        return agent_failed(
            files, (int)ret_message->record.number, ret_message->name, doing, error);
    return 0;
}

int files_expect_done(const struct files *files, const char *doing, struct rollbox_error *error) {
    struct transfer_message m;
    int r = files_next_message(files, doing, &m, error);

    return r == 0 && m.record.type != TRANSFER_DONE ? files_agent_lost(files, -EBADMSG, error) : r;
}

static int check_mode(unsigned mode, struct rollbox_error *error) {
    return mode & ~01777u ? error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
                                "mode is 0%o; only permission bits (01777) can be given", mode)
                          : 0;
}

/* ---- single files ---- */

struct content {
    char *data;
    size_t length, capacity; /* the bytes after the length are zero */
};

/* Makes the buffer at least that long, with room for growth. Large blocks come from the kernel as
 * zeros, so holes cost nothing. */
static int content_grow(struct content *content, uint64_t length, uint64_t room) {
    if (length >= content->capacity) {
        size_t capacity = (size_t)MAX(MAX(length, room), content->capacity * 2) + 1;
        char *data = calloc(1, capacity);

        if (!data)
            return -ENOMEM;
        memcpy(data, content->data ? content->data : "", content->length);
        free(content->data);
        content->data = data;
        content->capacity = capacity;
    }
    content->length = MAX(content->length, (size_t)length);
    return 0;
}

static int read_content(
    struct files *files, uint64_t most, struct content *content, struct rollbox_error *error) {
    bool begun = false, complete = false;
    uint64_t announced = 0;
    struct transfer_message m;

    for (;;) {
        int r = files_next_message(files, "read", &m, error);
        if (r < 0)
            return r;
        const struct transfer_record *record = &m.record;
        uint64_t offset = 0, end = record->data_length;
        bool is_first = record->type == TRANSFER_FILE && !begun,
             is_more = record->type == TRANSFER_DATA && begun && !complete;
        bool is_end = record->type == TRANSFER_FILE_END && begun && !complete;

        if (record->type == TRANSFER_DONE && complete)
            return 0;
        if (is_first) {
            announced = record->size;
            complete = record->number & TRANSFER_FILE_COMPLETE;
        } else if (is_more) {
            offset = record->number;
            end = offset > most ? UINT64_MAX : offset + record->data_length;
        } else if (is_end) {
            end = record->size;
            complete = true;
        }
        begun = true;
        bool is_expected = is_first || is_more || is_end;
        bool is_in_order = offset >= (is_more ? content->length : 0) && end >= content->length;
        if (!is_expected || !is_in_order || announced > most || end > most)
            return files_agent_lost(files, -EBADMSG, error);
        if (content_grow(content, end, announced) < 0)
            return out_of_memory(error);
        memcpy(content->data + offset, m.data, record->data_length);
    }
}

int files_read(struct files *files, const char *path, uint64_t most, void **ret_data,
    size_t *ret_length, struct rollbox_error *error) {
    struct content content = { 0 };
    uint64_t limit = most ? MIN(most, (uint64_t)INT64_MAX / 4) : MAX_READ;
    int r = files_set_path(files, path, error);

    if (r == 0)
        r = files_send_request(files,
            (struct transfer_record){ .type = TRANSFER_READ, .size = limit }, NULL, 0, error);
    if (r == 0)
        r = read_content(files, limit, &content, error);
    if (r < 0) {
        free(content.data);
        return r;
    }
    *ret_data = content.data;
    *ret_length = content.length;
    return 0;
}

int files_write(struct files *files, const char *path, const void *data, size_t length,
    unsigned mode, struct rollbox_error *error) {
    struct transfer *t = files->transfer;
    size_t have = MIN(length, (size_t)TRANSFER_DATA_MAX);
    int r = files_set_path(files, path, error);

    if (r == 0)
        r = check_mode(mode, error);
    if (r == 0 && length && !data)
        r = error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "a length is given without data");
    if (r == 0)
        r = files_send_request(files,
            (struct transfer_record){
                .type = TRANSFER_WRITE, .mode = mode ? mode : 0644, .size = length },
            data, have, error);
    if (r < 0)
        return r;
    t->listens = true;
    while (r == 0 && have < length) {
        size_t n = MIN(length - have, (size_t)TRANSFER_DATA_MAX);

        r = transfer_send(t, (struct transfer_record){ .type = TRANSFER_DATA, .number = have },
            NULL, (const char *)data + have, n);
        have += n;
    }
    t->listens = false;
    /* The agent may have failed, and reported it, before it had received everything. */
    return r == 0 || r == -EPIPE || r == -ECONNRESET ? files_expect_done(files, "write", error)
                                                     : files_agent_lost(files, r, error);
}

/* ---- names ---- */

static const char *type_name(uint32_t mode) {
    switch (mode & S_IFMT) {
    case S_IFREG:
        return "file";
    case S_IFDIR:
        return "directory";
    case S_IFLNK:
        return "symlink";
    case S_IFIFO:
        return "fifo";
    case S_IFSOCK:
        return "socket";
    case S_IFBLK:
        return "block";
    default:
        return "char";
    }
}

/* Any bytes: as text, and in base64 where that does not carry them. */
static void add_name(struct buf *to, const char *key, const char *name) {
    buf_printf(to, "\"%s\":", key);
    result_json_string(to, name, strlen(name));
    if (!utf8_valid(name, strlen(name))) {
        buf_printf(to, ",\"%s_base64\":\"", key);
        base64_encode(to, name, strlen(name));
        buf_add_text(to, "\"");
    }
}

static void add_entry(struct buf *to, const struct transfer_message *m, const char *name) {
    buf_add_text(to, "{");
    add_name(to, "name", name);
    buf_printf(to, ",\"type\":\"%s\",\"size\":%llu,\"mode\":%u,\"mtime_ns\":%lld",
        type_name(m->record.mode), (unsigned long long)MIN(m->record.size, (uint64_t)INT64_MAX),
        m->record.mode & 07777, (long long)m->record.mtime_ns);
    if (m->record.data_length) {
        buf_add_text(to, ",");
        add_name(to, "target", m->data);
    }
    buf_add_text(to, "}");
}

static int take_json(struct buf *json, char **ret_json, struct rollbox_error *error) {
    char *text = buf_failed(json) ? NULL : buf_take(json);

    if (!text)
        return out_of_memory(error);
    *ret_json = text;
    return 0;
}

int files_list(
    struct files *files, const char *path, char **ret_json, struct rollbox_error *error) {
    auto_buf struct buf json = BUF_INIT;
    struct transfer_message m;
    bool first = true;
    int r = files_set_path(files, path, error);

    if (r == 0)
        r = files_send_request(
            files, (struct transfer_record){ .type = TRANSFER_LIST }, NULL, 0, error);
    buf_add_text(&json, "{\"entries\":[");
    while (r == 0 && (r = files_next_message(files, "list", &m, error)) == 0 &&
           m.record.type != TRANSFER_DONE) {
        if (m.record.type != TRANSFER_ENTRY || !*m.name)
            return files_agent_lost(files, -EBADMSG, error);
        if (json.length > MAX_LIST)
            return agent_failed(files, EFBIG, "", "list", error);
        if (!first)
            buf_add_text(&json, ",");
        first = false;
        add_entry(&json, &m, m.name);
    }
    if (r < 0)
        return r;
    buf_add_text(&json, "]}");
    return take_json(&json, ret_json, error);
}

/* The last component of a path, or `otherwise` where that is no name. */
static void last_name(const char *path, const char *otherwise, char ret_name[TRANSFER_NAME_MAX]) {
    size_t end = strlen(path), begin;

    while (end > 1 && path[end - 1] == '/')
        end--;
    for (begin = end; begin && path[begin - 1] != '/'; begin--)
        ;
    size_t length = MIN(end - begin, (size_t)TRANSFER_NAME_MAX - 1);
    memcpy(ret_name, path + begin, length);
    ret_name[length] = '\0';
    if (!transfer_is_name(ret_name) || length < end - begin)
        snprintf(ret_name, TRANSFER_NAME_MAX, "%s", otherwise);
}

int files_stat(struct files *files, const char *path, bool follow, char **ret_json,
    struct rollbox_error *error) {
    auto_buf struct buf json = BUF_INIT;
    char name[TRANSFER_NAME_MAX];
    struct transfer_message m;
    int r = files_set_path(files, path, error);

    if (r == 0)
        r = files_send_request(files,
            (struct transfer_record){ .type = TRANSFER_STAT, .number = follow }, NULL, 0, error);
    if (r == 0)
        r = files_next_message(files, "stat", &m, error);
    if (r < 0)
        return r;
    if (m.record.type != TRANSFER_ENTRY)
        return files_agent_lost(files, -EBADMSG, error);
    last_name(path, "/", name);
    add_entry(&json, &m, name);
    r = files_expect_done(files, "stat", error);
    return r < 0 ? r : take_json(&json, ret_json, error);
}

int files_mkdir(struct files *files, const char *path, unsigned mode, struct rollbox_error *error) {
    int r = files_set_path(files, path, error);

    if (r == 0)
        r = check_mode(mode, error);
    if (r == 0)
        r = files_send_request(files,
            (struct transfer_record){ .type = TRANSFER_MKDIR, .mode = mode ? mode : 0755 }, NULL, 0,
            error);
    return r < 0 ? r : files_expect_done(files, "make the directory", error);
}

int files_remove(
    struct files *files, const char *path, bool recursive, struct rollbox_error *error) {
    int r = files_set_path(files, path, error);

    if (r == 0)
        r = files_send_request(files,
            (struct transfer_record){ .type = TRANSFER_REMOVE, .number = recursive }, NULL, 0,
            error);
    if (r == 0)
        r = files_expect_done(files, "remove", error);
    /* An agent that was killed before may have removed it. */
    return r == -ENOENT && files->alone ? 0 : r;
}

/* ---- trees ---- */

static int tell_progress(struct files *files) {
    const struct transfer *t = files->transfer;

    files->told_bytes = t->bytes;
    files->told_files = t->files;
    return files->progress && files->progress(t->bytes, t->files, files->userdata) ? -ECANCELED : 0;
}

static int report_progress(struct transfer *t) {
    struct files *files = t->userdata;

    return t->bytes - files->told_bytes >= PROGRESS_BYTES ||
                   t->files - files->told_files >= PROGRESS_FILES
               ? tell_progress(files)
               : 0;
}

static void begin_tree(struct files *files) {
    files->transfer->tick = report_progress;
    files->transfer->userdata = files;
}

static int check_cancelled(const struct files *files, struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_CANCELLED, ECANCELED, "files",
        "the transfer of \"%s\" was cancelled after %llu bytes", make_shown(files->path).text,
        (unsigned long long)files->transfer->bytes);
}

/* Everything is done, except for entries that could not be read. */
static int end_tree(struct files *files, const char *from, struct rollbox_error *error) {
    const struct transfer *t = files->transfer;

    if (tell_progress(files) < 0)
        return check_cancelled(files, error);
    if (!t->skipped)
        return 0;
    return error_set(error, code_of(t->skipped_error), t->skipped_error, "files",
        "%llu entries below \"%s\" could not be read and were left out, the first \"%s\": %s",
        (unsigned long long)t->skipped, make_shown(from).text, make_shown(t->skipped_path).text,
        strerror(t->skipped_error));
}

/* Reports a failure on the host's side, with the path in the tree. */
static int tree_failed_here(const struct files *files, int r, const char *host_path,
    const char *doing, struct rollbox_error *error) {
    char below[TRANSFER_TEXT_MAX];

    transfer_stack_path(&files->transfer->stack,
        files->transfer->stack.depth ? files->transfer->name : "", below, sizeof below);
    return host_failed(-r, host_path, below, doing, error);
}

/* Cancels a transfer in the middle of a tree. Tells the agent and waits for its end, because only
 * then are its incomplete files gone. */
void files_give_up(const struct files *files) {
    const int64_t end_ns = clock_now_ns() + (int64_t)FILES_SILENCE_MS * 1000000;
    struct transfer_message m;

    if (shutdown(files->transfer->socket, SHUT_WR) == 0)
        while (transfer_receive(files->transfer, &m) > 0 && clock_now_ns() < end_ns)
            ;
}

bool files_is_of_socket(int r) {
    return r == -EPIPE || r == -ECONNRESET || r == -ETIMEDOUT || r == -ENOBUFS || r == -EMSGSIZE;
}

int files_upload(
    struct files *files, const char *host_path, const char *path, struct rollbox_error *error) {
    struct transfer *t = files->transfer;
    char name[TRANSFER_NAME_MAX];
    struct stat st;
    int r = files_set_path(files, path, error);

    if (r < 0)
        return r;
    if (!host_path || !*host_path)
        return error_set(
            error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments", "host_path is empty");
    auto_close int fd = open(host_path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return host_failed(errno == ENXIO ? EINVAL : errno, host_path, "", "read", error);
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return host_failed(EINVAL, host_path, "", "read", error);
    last_name(files->name ? files->name : host_path, "file", name);
    r = files_send_request(
        files, (struct transfer_record){ .type = TRANSFER_PUT }, name, strlen(name) + 1, error);
    if (r < 0)
        return r;
    begin_tree(files);
    t->listens = true;
    r = transfer_send_tree(t, TAKE_FD(fd));
    t->listens = false;
    if (r < 0 && !files_is_of_socket(r))
        files_give_up(files);
    if (r == -ECANCELED)
        return check_cancelled(files, error);
    if (r < 0 && !files_is_of_socket(r))
        return tree_failed_here(files, r, host_path, "read", error);
    if (r < 0 && r != -EPIPE && r != -ECONNRESET)
        return files_agent_lost(files, r, error);
    r = files_expect_done(files, "write", error);
    return r < 0 ? r : end_tree(files, host_path, error);
}

/* Opens the destination of a download: an existing directory, or the parent of the path. */
static int open_target(
    const char *host_path, int *ret_parent, int *ret_into, char ret_name[TRANSFER_NAME_MAX]) {
    int into = open(host_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (into >= 0) {
        *ret_into = into;
        return 0;
    }
    if (errno != ENOENT && errno != ENOTDIR)
        return -errno;
    auto_free char *parent = strdup(host_path);
    if (!parent)
        return -ENOMEM;
    size_t length = strlen(parent);
    while (length > 1 && parent[length - 1] == '/')
        length--;
    while (length && parent[length - 1] != '/')
        length--;
    while (length > 1 && parent[length - 1] == '/')
        length--;
    parent[length] = '\0';
    last_name(host_path, "", ret_name);
    if (!*ret_name)
        return -EINVAL;
    *ret_parent = open(length ? parent : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return *ret_parent < 0 ? -errno : 0;
}

int files_download(
    struct files *files, const char *path, const char *host_path, struct rollbox_error *error) {
    char name[TRANSFER_NAME_MAX] = "", inner_name[TRANSFER_NAME_MAX];
    auto_close int parent = -EBADF, into = -EBADF;
    struct transfer *t = files->transfer;
    struct transfer_message m;
    int r = files_set_path(files, path, error);

    if (r < 0)
        return r;
    if (!host_path || !*host_path)
        return error_set(
            error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments", "host_path is empty");
    r = open_target(host_path, &parent, &into, name);
    if (r < 0)
        return host_failed(-r, host_path, "", "write", error);
    last_name(path, "file", inner_name);
    r = files_send_request(files, (struct transfer_record){ .type = TRANSFER_GET }, NULL, 0, error);
    if (r < 0)
        return r;
    begin_tree(files);
    transfer_take_begin(
        t, &(struct transfer_target){
               .parent = parent, .name = name, .into = into, .inner_name = inner_name });
    while (r == 0 && (r = files_next_message(files, "read", &m, error)) == 0) {
        r = transfer_take(t, &m);
        if (r == -EBADMSG)
            r = files_agent_lost(files, r, error);
        else if (r == -ECANCELED)
            r = check_cancelled(files, error);
        else if (r < 0)
            r = tree_failed_here(files, r, host_path, "write", error);
    }
    /* Remove the temporary file while its directory is open. */
    transfer_done(t);
    return r < 0 ? r : end_tree(files, path, error);
}

/* ---- the public functions ---- */

/* The sandbox may have no room for one more agent (its limit of processes), or be paused for a
 * snapshot. Both are temporary. */
bool files_try_again(int r, int64_t since_ns, unsigned *tries) {
    const unsigned ms = MIN(1u << MIN(*tries, 6u), 50u);

    if (r != -TRANSFER_REFUSED || clock_now_ns() - since_ns > (int64_t)FILES_SILENCE_MS * 1000000)
        return false;
    (*tries)++;
    (void)poll(NULL, 0, (int)ms);
    return true;
}

/* The guest has killed the agent. While the next one works the guest is frozen, unless one of its
 * processes cannot be stopped in time (an uninterruptible wait), or the client starts commands. A
 * lost engine has this errno, too: then the next try fails at once. */
static bool is_killed_again(
    int r, const struct rollbox_error *error, int64_t since_ns, unsigned *killed) {
    if (r != -ECONNRESET)
        return false;
    if (++*killed < MAX_KILLED)
        return true;
    /* Other calls of the client, such as resume and snapshot, let the guest run again meanwhile, on
     * a slow machine as often as that. */
    return error && error->code == ROLLBOX_ERR_GUEST_INTERFERED &&
           clock_now_ns() - since_ns < (int64_t)KILLED_MS * 1000000;
}

static void clear_error(struct rollbox_error *error) {
    if (error)
        error->code = ROLLBOX_OK;
}

/* Opens, calls and closes; and adds the call to the sandbox's trajectory, if it has one: `note` is
 * a statement about r_ and files. */
#define WITH_AGENT_NOTED(sandbox, error, call, note)                                               \
    ({                                                                                             \
        const int64_t since_ns_ = clock_now_ns();                                                  \
        unsigned tries_ = 0, killed_ = 0;                                                          \
        int r_;                                                                                    \
        do {                                                                                       \
            struct files files;                                                                    \
            clear_error(error);                                                                    \
            r_ = files_agent_open(&files, sandbox, error);                                         \
            files.alone = killed_ > 0;                                                             \
            if (r_ >= 0)                                                                           \
                r_ = call;                                                                         \
            bool again_ = files_try_again(r_, since_ns_, &tries_) ||                               \
                          is_killed_again(r_, error, since_ns_, &killed_);                         \
            if (files.is_recorded && !again_ && r_ != -TRANSFER_REFUSED)                           \
                note;                                                                              \
            files_done(&files);                                                                    \
            if (!again_)                                                                           \
                break;                                                                             \
        } while (true);                                                                            \
        r_;                                                                                        \
    })

#define WITH_AGENT(sandbox, error, call) WITH_AGENT_NOTED(sandbox, error, call, (void)0)

static int outputs_missing(struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
        "the places for the results must be given");
}

ROLLBOX_PUBLIC int rollbox_file_read(struct rollbox_sandbox *sandbox, const char *path,
    uint64_t most, void **ret_data, size_t *ret_length, struct rollbox_error *error) {
    if (!ret_data || !ret_length)
        return outputs_missing(error);
    return WITH_AGENT(sandbox, error, files_read(&files, path, most, ret_data, ret_length, error));
}

ROLLBOX_PUBLIC int rollbox_file_write(struct rollbox_sandbox *sandbox, const char *path,
    const void *data, size_t length, unsigned mode, struct rollbox_error *error) {
    struct rollbox_error own = { .code = ROLLBOX_OK };
    int r = WITH_AGENT_NOTED(sandbox, &own, files_write(&files, path, data, length, mode, &own),
        record_note_write(sandbox, path, data, length, mode ? mode : 0644, own.code));

    return record_pass(r, &own, error);
}

/* 0 or the error; then the options have the caller's size and the rest is 0. */
static int take_options(const struct rollbox_file_options *given,
    struct rollbox_file_options *ret_options, struct rollbox_error *error) {
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-:,";

    *ret_options = (struct rollbox_file_options){ 0 };
    if (given)
        memcpy(ret_options, given, MIN(given->size, sizeof *ret_options));
    const char *const names[] = { ret_options->user, ret_options->owner };
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (names[i] && (!*names[i] || names[i][0] == ':' || names[i][strspn(names[i], allowed)] ||
                            strlen(names[i]) > TRANSFER_NAME_MAX))
            return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
                "%s %.100s: must be USER, USER:GROUP or USER:GROUP:GROUPS, of names or numbers",
                i ? "owner" : "user", names[i]);
    return 0;
}

ROLLBOX_PUBLIC int rollbox_file_write_as(struct rollbox_sandbox *sandbox, const char *path,
    const void *data, size_t length, const struct rollbox_file_options *given,
    struct rollbox_error *error) {
    struct rollbox_error own = { .code = ROLLBOX_OK };
    struct rollbox_file_options options;
    int r = take_options(given, &options, error);

    if (r < 0)
        return r;
    r = WITH_AGENT_NOTED(sandbox, &own,
        (files.user = options.user, files.owner = options.owner,
            files_write(&files, path, data, length, options.mode, &own)),
        record_note_write(
            sandbox, path, data, length, options.mode ? options.mode : 0644, own.code));
    return record_pass(r, &own, error);
}

ROLLBOX_PUBLIC int rollbox_file_list(struct rollbox_sandbox *sandbox, const char *path,
    char **ret_json, struct rollbox_error *error) {
    return !ret_json ? outputs_missing(error)
                     : WITH_AGENT(sandbox, error, files_list(&files, path, ret_json, error));
}

ROLLBOX_PUBLIC int rollbox_file_stat(struct rollbox_sandbox *sandbox, const char *path, bool follow,
    char **ret_json, struct rollbox_error *error) {
    return !ret_json
               ? outputs_missing(error)
               : WITH_AGENT(sandbox, error, files_stat(&files, path, follow, ret_json, error));
}

ROLLBOX_PUBLIC int rollbox_file_mkdir(
    struct rollbox_sandbox *sandbox, const char *path, unsigned mode, struct rollbox_error *error) {
    struct rollbox_error own = { .code = ROLLBOX_OK };
    int r = WITH_AGENT_NOTED(sandbox, &own, files_mkdir(&files, path, mode, &own),
        record_note_mkdir(sandbox, path, mode ? mode : 0755, own.code));

    return record_pass(r, &own, error);
}

ROLLBOX_PUBLIC int rollbox_file_remove(struct rollbox_sandbox *sandbox, const char *path,
    bool recursive, struct rollbox_error *error) {
    struct rollbox_error own = { .code = ROLLBOX_OK };
    int r = WITH_AGENT_NOTED(sandbox, &own, files_remove(&files, path, recursive, &own),
        record_note_remove(sandbox, path, recursive, own.code));

    return record_pass(r, &own, error);
}

static int upload_path(struct rollbox_sandbox *sandbox, const char *host_path, const char *name,
    const char *path, rollbox_progress progress, void *userdata, struct rollbox_error *error) {
    struct rollbox_error own = { .code = ROLLBOX_OK };
    int r = WITH_AGENT_NOTED(sandbox, &own,
        (files.progress = progress, files.userdata = userdata, files.name = name,
            files_upload(&files, host_path, path, &own)),
        record_note_upload(sandbox, host_path, name, path, files.transfer->bytes,
            files.transfer->files, own.code));

    return record_pass(r, &own, error);
}

ROLLBOX_PUBLIC int rollbox_upload_as(struct rollbox_sandbox *sandbox, const char *host_path,
    const char *path, const struct rollbox_file_options *given, struct rollbox_error *error) {
    struct rollbox_error own = { .code = ROLLBOX_OK };
    struct rollbox_file_options options;
    int r = take_options(given, &options, error);

    if (r < 0)
        return r;
    r = WITH_AGENT_NOTED(sandbox, &own,
        (files.progress = options.progress, files.userdata = options.userdata,
            files.user = options.user, files.owner = options.owner,
            files_upload(&files, host_path, path, &own)),
        record_note_upload(sandbox, host_path, NULL, path, files.transfer->bytes,
            files.transfer->files, own.code));
    return record_pass(r, &own, error);
}

ROLLBOX_PUBLIC int rollbox_upload(struct rollbox_sandbox *sandbox, const char *host_path,
    const char *path, rollbox_progress progress, void *userdata, struct rollbox_error *error) {
    return upload_path(sandbox, host_path, NULL, path, progress, userdata, error);
}

int files_upload_descriptor(struct rollbox_sandbox *sandbox, int fd, const char *name,
    const char *path, struct rollbox_error *error) {
    char host_path[32];

    (void)snprintf(host_path, sizeof host_path, "/proc/self/fd/%d", fd);
    return upload_path(sandbox, host_path, name, path, NULL, NULL, error);
}

ROLLBOX_PUBLIC int rollbox_download(struct rollbox_sandbox *sandbox, const char *path,
    const char *host_path, rollbox_progress progress, void *userdata, struct rollbox_error *error) {
    return WITH_AGENT(sandbox, error,
        (files.progress = progress, files.userdata = userdata,
            files_download(&files, path, host_path, error)));
}

typedef int transfer(
    struct files *files, const char *from, const char *to, struct rollbox_error *error);

static int transfer_by_agent(int take_socket, transfer *move, const char *from, const char *to,
    rollbox_progress progress, void *userdata, struct rollbox_error *error) {
    struct files files;

    if (files_init(&files, take_socket) < 0)
        return out_of_memory(error);
    files.progress = progress;
    files.userdata = userdata;
    int r = move(&files, from, to, error);
    files_done(&files);
    return r;
}

ROLLBOX_PUBLIC int rollbox_agent_upload(int take_socket, const char *host_path, const char *path,
    rollbox_progress progress, void *userdata, struct rollbox_error *error) {
    return transfer_by_agent(take_socket, files_upload, host_path, path, progress, userdata, error);
}

ROLLBOX_PUBLIC int rollbox_agent_download(int take_socket, const char *path, const char *host_path,
    rollbox_progress progress, void *userdata, struct rollbox_error *error) {
    return transfer_by_agent(
        take_socket, files_download, path, host_path, progress, userdata, error);
}
