/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files and trees over a socket: the protocol between the client library and the files agent of a
 * sandbox, and the two halves of a transfer, sending and receiving.
 *
 * A message is one SOCK_SEQPACKET datagram: a record, a name, a NUL, then data. A request is READ,
 * WRITE, LIST, STAT, MKDIR, REMOVE, GET or PUT, with an absolute path as its name. Answers end with
 * DONE or FAILED; BUSY says that more time is needed. Before a request there may be USER and OWNER,
 * which have no answer: who it is made as, and who new files belong to.
 *
 * A tree is a stream that names one component at a time, so that neither end ever resolves a path
 * that the other one chose:
 *
 *     tree  := entry DONE
 *     entry := FILE DATA* FILE_END | FILE (complete) | SYMLINK | HARDLINK | ENTER entry* LEAVE |
 * SKIPPED
 *
 * The first entry is the root; its name is empty, because the receiver knows its path. The walk
 * keeps the last few directories open. It finds the directories above again through "..", and then
 * checks that they are the same directories. So depth costs neither descriptors nor stack, and all
 * memory is in struct transfer. The code allocates nothing, because the guest layer uses it too.
 *
 * The receiver does not trust the sender. A name is one component, and a link is never followed. A
 * file is written under a name that did not exist and then renamed. A hard link is made only to a
 * file of this transfer.
 */
#ifndef ROLLBOX_BASE_TRANSFER_H
#define ROLLBOX_BASE_TRANSFER_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#define TRANSFER_DATA_MAX 65536u
#define TRANSFER_TEXT_MAX 4096u   /* a path with its NUL */
#define TRANSFER_NAME_MAX 256u    /* a component with its NUL */
#define TRANSFER_DEPTH_MAX 16384u /* levels of directories */
#define TRANSFER_OPEN_MAX 32u     /* of them held open */
#define TRANSFER_REFUSED                                                                           \
    EUSERS /* the errno of FAILED if nothing was done and the request can be repeated */
#define TRANSFER_UNKNOWN_USER                                                                      \
    ENOKEY /* the errno of FAILED if the sandbox has no such user or group */
#define TRANSFER_LINKS_MAX                                                                         \
    4096u /* files with several names that are recognised; later ones become copies */

enum transfer_type {
    /* requests */
    TRANSFER_READ = 1, /* size: the most to send -> FILE ... */
    TRANSFER_WRITE,    /* mode, size: of the file; data: its beginning; DATA* follow until it is
                          complete -> DONE */
    TRANSFER_LIST,     /* -> ENTRY* DONE */
    TRANSFER_STAT,     /* number: 1 to follow links -> ENTRY DONE */
    TRANSFER_MKDIR,    /* mode -> DONE */
    TRANSFER_REMOVE,   /* number: 1 for whole trees -> BUSY* DONE */
    TRANSFER_GET,      /* -> a tree */
    TRANSFER_PUT, /* data: the name (text) for a file, if the path is a directory; a tree follows ->
                     DONE */
    TRANSFER_USER,  /* data: "USER[:GROUP[:GROUPS]]" (text) */
    TRANSFER_OWNER, /* data: "USER[:GROUP]" (text) */
    /* streams */
    TRANSFER_FILE, /* mode, size, mtime_ns; number: enum transfer_file_flag; data: its beginning */
    TRANSFER_DATA, /* number: the offset */
    TRANSFER_FILE_END, /* size, mtime_ns */
    TRANSFER_SYMLINK,  /* mtime_ns; data: the target (text) */
    TRANSFER_HARDLINK, /* number: which of the files that were TRANSFER_FILE_LINKED; data: its path
                          from the root (text) */
    TRANSFER_ENTER,    /* mode */
    TRANSFER_LEAVE,    /* mode, mtime_ns */
    TRANSFER_SKIPPED,  /* its name is a path from the root; number: errno */
    TRANSFER_ENTRY,    /* mode with the type, size, mtime_ns; data: a symlink's target (text) */
    TRANSFER_DONE,
    TRANSFER_FAILED, /* number: errno; its name, if any, is a path from the root */
    TRANSFER_BUSY,
};

enum transfer_file_flag {
    TRANSFER_FILE_COMPLETE = 1, /* no DATA and no FILE_END follow */
    TRANSFER_FILE_LINKED = 2,   /* hard links to it may follow */
};

struct transfer_record {
    uint32_t type;
    uint32_t mode;
    uint64_t size;
    uint64_t number;
    int64_t mtime_ns;
    uint32_t name_length; /* without its NUL */
    uint32_t data_length; /* a text's NUL counts */
};

struct transfer_message {
    struct transfer_record record;
    const char *name;
    const char *data;
};

struct transfer_level {
    uint64_t device, inode;
    int64_t offset;       /* the position for the next reading */
    uint32_t path_length; /* of its path from the root */
    bool named;           /* the path had room for its name */
    bool made;            /* taking: was not there before */
    bool left_over;       /* removing: to be read once more */
};

/* Directories on the way down. */
struct transfer_stack {
    unsigned depth;
    int fds[TRANSFER_OPEN_MAX];
    struct transfer_level levels[TRANSFER_DEPTH_MAX];
    char path[TRANSFER_TEXT_MAX];
};

/* The destination of a tree. Descriptors are borrowed. */
struct transfer_target {
    int parent; /* the root becomes `name` in this directory */
    const char *name;
    int into; /* -1, or the existing directory: a root that is a directory is merged into it, ... */
    const char *inner_name; /* ... any other becomes this in it */
    bool has_owner;         /* new files belong to these ids */
    uint32_t owner, group;
    bool replaces; /* below the root, files other than directories are replaced by directories;
                      special files are replaced */
};

struct transfer {
    int socket;
    int timeout_ms; /* of silence at the other end; -1: for ever */
    bool listens;   /* sending stops with -EPIPE once there is something to receive */
    int (*tick)(struct transfer
            *transfer); /* after each message of a tree; may be NULL; a negative errno ends it */
    void *userdata;
    uint64_t bytes, files; /* moved so far */
    uint64_t
        skipped; /* left out because they could not be read, with the first one's error and path */
    int skipped_error;
    char skipped_path[TRANSFER_TEXT_MAX];
    char name[TRANSFER_NAME_MAX]; /* the last entry that was worked on, in the stack's directory */
    struct transfer_stack stack;
    /* Sending: files with several names. */
    uint32_t n_links, texts_length;
    struct {
        uint64_t device, inode;
        uint32_t text;
    } links[TRANSFER_LINKS_MAX];
    uint16_t buckets[2 * TRANSFER_LINKS_MAX]; /* 1 + index; 0: free */
    char texts[1 << 19];
    /* Taking. */
    struct transfer_target target;
    bool begun, complete;
    int root; /* a directory; -1 */
    int file; /* being written under `temporary`; -1 */
    bool file_linked;
    char temporary[32];
    unsigned n_temporary;
    int64_t position;
    char in[sizeof(struct transfer_record) + TRANSFER_TEXT_MAX + TRANSFER_DATA_MAX];
    _Alignas(8) char out[TRANSFER_DATA_MAX];
};

/* `transfer` must be zeroed memory. transfer_done closes what it opened (not the socket) and takes
 * a temporary file away. */
void transfer_init(struct transfer *transfer, int socket, int timeout_ms);
void transfer_done(struct transfer *transfer);

/* ---- transfer.c: messages and the stack ---- */

/* A message from its bytes, strictly: 0 or -EBADMSG. Points into them. */
int transfer_parse(const char *bytes, size_t length, struct transfer_message *ret_message);

/* Sends a record with a name (NULL: none) and data. The lengths are filled in. 0; -EPIPE, also if
 * the other end has sent something (`listens`); -ETIMEDOUT; -errno. */
int transfer_send(struct transfer *transfer, struct transfer_record record, const char *name,
    const void *data, size_t data_length);

/* The next message, but for BUSY. 1: got it, valid until the next call; 0: the other end closed;
 * -ETIMEDOUT, -EBADMSG, -errno. */
int transfer_receive(struct transfer *transfer, struct transfer_message *ret_message);

/* One component that is neither empty nor "." nor "..". */
bool transfer_is_name(const char *name);

/* The directory at the top, or -errno if it cannot be found again. */
int transfer_stack_top(struct transfer_stack *stack);
struct transfer_level *transfer_stack_level(struct transfer_stack *stack);
/* Goes down into a directory that was opened by `name` in the top one. The descriptor is consumed,
 * also on failure. */
int transfer_stack_enter(struct transfer_stack *stack, int take_fd, const char *name);
/* Goes up. On success the top is open, unless that was the last one. */
int transfer_stack_leave(struct transfer_stack *stack);
void transfer_stack_done(struct transfer_stack *stack);
/* The path of an entry from the root on, truncated to the room that there is. */
void transfer_stack_path(
    const struct transfer_stack *stack, const char *name, char *ret_path, size_t size);

/* Reads a part of a directory. How many bytes, 0 at its end, or -errno; then the entries in them:
 * NULL after the last, "." and ".." left out. */
long transfer_read_entries(int directory, void *buffer, size_t size);
const char *transfer_next_entry(
    const void *buffer, long length, long *position, int64_t *ret_offset);

/* ---- transfer_tree.c ---- */

/* Sends an open regular file as an entry; `most` bytes of it at the most (-EFBIG). The descriptor
 * is borrowed. */
int transfer_send_file(struct transfer *transfer, int fd, const char *name, uint64_t most);

/* Sends the directory or regular file of the descriptor (consumed) as a tree, with its DONE. 0 or
 * -errno; -EINVAL: another kind of file. */
int transfer_send_tree(struct transfer *transfer, int take_fd);

/* Prepares for receiving a tree. */
void transfer_take_begin(struct transfer *transfer, const struct transfer_target *target);
/* Handles the next message of the tree. 1: it was the last one; 0; -EBADMSG; -errno of the file
 * that could not be made. */
int transfer_take(struct transfer *transfer, const struct transfer_message *message);

/* A new file beside the target, for writing, of the target's owner; its name is
 * transfer->temporary. A descriptor or -errno. */
int transfer_make_temporary(struct transfer *transfer, int directory, mode_t mode);
int transfer_write_at(int fd, const char *data, size_t length, int64_t offset);

#endif
