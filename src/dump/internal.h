/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the dump module, and what each offers to the files above it. */
#ifndef ROLLBOX_DUMP_INTERNAL_H
#define ROLLBOX_DUMP_INTERNAL_H

#include <sys/socket.h>

#include "dump/context.h"

/* process_tree.c: stopping all processes, and their family tree. */
int tree_stop(struct dump *c);
void tree_release(struct dump *c);
int tree_describe(struct dump *c);
struct task *tree_main(struct dump *c, const struct dump_process *s);
/* Resumes the processes. Their descriptions are kept. */
void tree_let_go(struct dump *c);
/* Stops a thread again that may have been resumed. 0, or -errno: it is running. */
int tree_hold(struct trace *trace, pid_t tid);

/* process.c: everything but private memory. process_dump_cow_fork() reads the attributes that a
 * copy-on-write fork inherits from it, after the process has resumed. */
int process_dump(struct dump *c, struct dump_process *s);
/* Called for one process, after all others are dumped: resources that belong to no single
 * process. */
int process_dump_shared(struct dump *c, struct dump_process *s);
int process_dump_cow_fork(struct dump *c, struct dump_process *s);

/* cow_fork.c */
#define COW_FORK_GONE "its copy-on-write fork was killed before it was dumped; try again"
/* Decides that copy-on-write forks are made, and how much memory they may have. */
void cow_fork_plan(struct dump *c);
/* Starts a copy-on-write fork if there is room for it. Until cow_fork_made(), no calls are made in
 * the process's first thread and its memory is not read. */
void cow_fork_make(struct dump *c, struct dump_process *s);
/* Waits for a fork that was started. s->pages then refers to the fork. */
void cow_fork_made(struct dump *c, struct dump_process *s);
/* Does the fork still exist? The guest may have killed it. */
bool cow_fork_stands(const struct dump_process *s);
void cow_fork_end(struct dump *c, struct dump_process *s);

/* async_read.c: starts reading a file of a process in parallel to other work; `take_fd` is
 * consumed. async_read_take() appends the text and returns true if the file was read completely.
 * async_read_finish() waits until the reader has ended and keeps the result: before that, the
 * worker cannot change its user namespace. async_read_end() discards a result that was not taken.
 */
void async_read_begin(const struct dump_process *s, int take_fd);
bool async_read_take(const struct dump_process *s, struct buf *to);
void async_read_finish(void);
void async_read_end(void);

/* mappings.c: lines of a process's maps. */
#define MAX_LINE 4352
/* Called for each line in turn. */
typedef int mappings_call(
    struct dump *c, struct dump_process *s, const struct map_line *map, void *data);
int mappings_each(struct dump *c, struct dump_process *s, mappings_call *call, void *data);
bool mappings_is_nameless(const struct map_line *map);
bool mappings_is_nobodys(const struct dump_process *s, const struct map_line *map);
bool mappings_is_looked_at(const struct dump_process *s, const struct map_line *map);
bool mappings_ends_with(const char *text, const char *end);
/* Opens a path as the process sees it: a descriptor or -errno. */
int mappings_open_path(const struct dump_process *s, const char *path);
int memory_find_tools(struct dump *c, struct dump_process *s);
/* Does the process still have this file at this path, below its own root? Fills ret_st. 0; -ESTALE;
 * -errno. */
int memory_find_path(const struct dump_process *s, const char *path, struct stat *ret_st);
/* Calls back for each stretch of private memory of a process, by address. */
int memory_each_private(struct dump *c, struct dump_process *s,
    int (*call)(void *data, uint64_t start, uint64_t end), void *data);

/* pages.c: a buffer of CHUNK_PAGES pages that all files here share for a short time. */
/* The kernel allocates it page by page, and it fits a processor's cache. */
#define CHUNK_PAGES 64u
char *pages_chunk(void);
ssize_t pages_read(const struct dump_process *s, uint64_t address, char *to, size_t length);
int pages_save(struct dump *c, const struct dump_process *s, size_t first_run, uint64_t address,
    uint64_t n, bool is_file);
/* Calls back for each stretch of pages of the process's own between two addresses. Returns -errno,
 * or the first result of `call` that is not 0. */
typedef int pages_call(
    struct dump *c, const struct dump_process *s, void *data, uint64_t address, uint64_t n);
int pages_each_own(struct dump *c, const struct dump_process *s, uint64_t start, uint64_t end,
    pages_call *call, void *data);
/* Two such callbacks. pages_save_own() saves the stretch as runs from *data (a size_t) on.
 * pages_is_there() returns 1. */
int pages_save_own(
    struct dump *c, const struct dump_process *s, void *data, uint64_t address, uint64_t n);
int pages_is_there(
    struct dump *c, const struct dump_process *s, void *data, uint64_t address, uint64_t n);
/* Saves `n` pages that the worker has in its memory, for an address of the image. */
int pages_save_here(
    struct dump *c, size_t first_run, uint64_t address, const char *pages, size_t n);
/* Saves the content of a file of `length` bytes, without its holes. */
int memory_save_file(struct dump *c, int fd, uint64_t length, struct image_range *ret_runs);
/* Saves the content of shared memory as far as it is mapped here. */
int memory_save_shared(struct dump *c, const struct dump_process *s, const struct map_line *map,
    struct image_range *ret_runs);

/* memory.c. Starts reading the long files of /proc that do not change while the process is
 * paused. */
void memory_begin(struct dump_process *s);
/* The following may change once the process resumes, so it is read before. memory_identify(): the
 * identity of mapped files; */
int memory_identify(struct dump *c, struct dump_process *s);
/* memory_note(): mapped pages of those files, and shared memory. */
int memory_note(struct dump *c, struct dump_process *s);
int memory_dump(struct dump *c, struct dump_process *s);
/* Writes the pages that were promised to the image, in the order of their offsets, and calls
 * `written` after each part. 0 or -errno and the error. */
int memory_keep_promises(struct dump *c, void (*written)(struct dump *c, uint64_t end));

/* dirty_pages.c. Maps the parent image as c->base: 0 or -errno and the error. dirty_pages_forget()
 * drops it, so that the dump writes a full image. */
int dirty_pages_begin(struct dump *c);
void dirty_pages_forget(struct dump *c);
/* Once the processes are described: are they the processes of the parent image, as far as the
 * descriptions show? */
bool dirty_pages_has_same_tree(const struct dump *c);
/* Does the process continue from the parent image, with few pages that were written to since? Later
 * calls in the process leave its memory unchanged, so the answer holds until it resumes. */
bool dirty_pages_has_few(struct dump *c, struct dump_process *s);
/* The area of the parent image that an area of the process continues. NULL: none. */
const struct image_area *track_area(
    const struct dump *c, const struct dump_process *s, const struct image_area *area);
enum dirty_pages_since {
    DIRTY_PAGES_KEPT,    /* unchanged */
    DIRTY_PAGES_WRITTEN, /* perhaps written to; in a file mapping, also pages without a private copy
                          */
    DIRTY_PAGES_UNSURE,  /* the same, and an entry that looks swapped may be a guard page */
};
/* Calls back for each stretch of existing pages between two addresses, with their state. Returns
 * -errno, or the first result of `call` that is not 0. */
typedef int track_call(void *data, uint64_t address, uint64_t n, enum dirty_pages_since since);
int dirty_pages_each(const struct dump_process *s, uint64_t start, uint64_t end, bool is_file,
    track_call *call, void *data);
/* Records `n` unchanged pages, which the parent image has. 0 or -errno. */
int dirty_pages_keep(struct dump *c, const struct image_area *before, uint64_t address, uint64_t n);
/* Called when all tables but the last are complete: can the image be incremental? */
bool dirty_pages_resumes(struct dump *c);
/* Starts dirty tracking. If that fails, all pages count as written to (c->n_trackers is 0). */
void dirty_pages_start(struct dump *c);
void dirty_pages_end(struct dump *c);

/* guard_pages.c. Finds the guard pages of a process; records those of an area, in the order of
 * addresses; and, where memory could not be read, refuses if there may be a guard. 0 or -errno and
 * the error. */
int guard_pages_find(struct dump *c, const struct dump_process *s); /* does not set the error */
int guard_pages_take(struct dump *c, struct image_area *area);
int guard_pages_refuse(struct dump *c, const struct dump_process *s, uint64_t address);

/* reopen_check.c: may the process open a file again that it has open? Judged by file modes. With
 * many users, the sandbox's root opens the files of all of them. */
#define ACCESS_ENTER 1u /* bits as in a file's mode */
#define ACCESS_WRITE 2u
#define ACCESS_READ 4u
bool access_is_owner(const struct dump_process *s, const struct stat *st);
bool access_is_given(
    const struct dump *c, const struct dump_process *s, const struct stat *st, unsigned wanted);
/* Checks search permission on all directories of a path. */
bool access_reaches(struct dump *c, const struct dump_process *s, const char *path);

/* credentials.c: rights of processes of a sandbox with many users. In other sandboxes these do
 * nothing. 0 or -errno and the error. */
int credentials_begin(struct dump *c);
/* When the worker has entered another user namespace: ids are seen as there from then on. */
int credentials_begin_again(struct dump *c);
int credentials_dump(struct dump *c, const struct dump_process *s, struct trace *trace,
    const char *status, struct image_thread *thread);
int credentials_dump_closed(struct dump *c, const struct dump_process *s, struct trace *trace,
    struct image_process *process);
/* With many users: are owner and group ids of the sandbox, so that its root may open the file? */
bool credentials_owns(const struct dump *c, const struct stat *st);
/* Owners and peers as the sandbox has them; nobody where it has no such id. */
void credentials_owner(
    const struct dump *c, const struct stat *st, uint32_t *ret_owner, uint32_t *ret_group);
void credentials_peer(
    const struct dump *c, const struct ucred *peer, uint32_t *ret_owner, uint32_t *ret_group);

/* files.c */
int files_dump(struct dump *c, struct dump_process *s, struct image_process *process);
/* network.c: calls `ask` in a child that has entered the network namespace of the process, and
 * returns the content of its buffer. 0, or -errno of the child's too. */
int network_ask(const struct dump_process *s, int (*ask)(int fd, struct buf *to), int fd,
    struct buf *ret_answer);
/* outside.c. Is it an address of the world outside of the sandbox? */
bool outside_is_address(const struct sockaddr *name);
/* Does a TCP socket lead, or is it about to lead, to such an address? */
bool outside_is_remote(int fd);
/* Have all datagrams that wait in a UDP socket come from outside? */
bool outside_may_lose(int fd);
/* The remote end of a TCP connection is in no process of the sandbox: does a process of the host
 * have it? `s` is a process of the sandbox. */
bool outside_is_held(const struct dump_process *s, int fd);
/* For each connection that waits to be accepted at a listening socket: the inode of its other end;
 * 0: it is closed. 0 or -errno. */
int outside_waiting(const struct dump_process *s, int fd, struct buf *ret_inodes);
/* sockets.c. `fd` is a copy of the process's descriptor. -errno; ENOTSUP and a reason (ret_why) for
 * a socket that is refused. */
int sockets_dump(
    struct dump *c, int fd, uint64_t inode, struct image_file *to, const char **ret_why);
/* Called when all sockets are known: finds which are connected. */
int sockets_connect(struct dump *c);

/* terminals.c. Is the file a terminal or the master of one? */
bool terminals_is_one(const struct stat *st);
/* `take_fd` is a copy of the process's descriptor and is consumed. -errno; ENOTSUP and a reason
 * (ret_why) if it is refused. Until terminals_connect(), the entry holds the terminal's number. */
int terminals_dump(struct dump *c, const struct dump_process *s, const struct stat *st, int take_fd,
    struct image_file *to, const char **ret_why);
/* The number of a terminal + 1, from its device number in the kernel's encoding; 0: not a
 * terminal. */
uint32_t terminals_number(uint64_t device);
/* Called when nothing else can refuse the dump: settings and content of the terminals. */
int terminals_connect(struct dump *c);
void terminals_forget(struct dump *c);

/* inotify.c. `fd` is a copy of the process's descriptor `number`; `info` is its fdinfo. -errno; a
 * reason (ret_why) if it is refused. */
int inotify_dump(struct dump *c, const struct dump_process *s, int number, int fd, const char *info,
    struct image_file *to, const char **ret_why);
/* Called when all watches are known: finds the paths of the watched files. */
int inotify_connect(struct dump *c);

/* quiesce.c: requests to the init of a sandbox with random_seed or time_start. In other sandboxes
 * these do nothing. 0 or -errno. */
int quiesce_hold(struct dump *c);
int quiesce_give_back(struct dump *c); /* a thread that does not stop may be held by init */
int quiesce_pass(struct dump *c);
int quiesce_reply(struct dump *c); /* which paused threads continue a wait */
int quiesce_release(struct dump *c);
/* Resumes threads first that begin a wait again, because other threads might signal them before
 * they wait. */
void quiesce_lead(struct dump *c);
/* For a thread that stops only after the others have been resumed, just before it is resumed
 * too. */
void quiesce_late(struct dump *c, const struct task *task);
void quiesce_end(struct dump *c);
/* A thread that continues the remainder of a wait begins that wait again after a restore. Init
 * knows which call it was. */
void quiesce_find_call(struct dump *c, const struct trace *trace, struct image_thread *thread);
/* After all processes are dumped: drops the parts of init's state that concern none of them. */
void quiesce_finish(struct dump *c);
/* Is this the page of the virtual clock? Is this timer descriptor one whose time init keeps? */
bool quiesce_is_page(const struct dump *c, uint64_t inode, const char *name);
bool quiesce_is_marked(const struct dump *c, const uint64_t *interval, uint64_t value_s);
/* Records whether init has patched the vDSO yet. */
int quiesce_look_at_vdso(struct dump *c, const struct dump_process *s,
    const struct image_area *area, struct image_process *process);

/* segments.c: System V shared memory. Records all segments of the namespace that the worker has
 * entered. 0 or -errno and the error. */
int segments_dump(struct dump *c);
/* Is the mapping a segment, or does it look like one? */
bool segments_is_one(const struct map_line *map);
/* The index of the segment that a mapping attaches. 0 or -errno and the error. */
int segments_find(struct dump *c, const struct map_line *map, uint32_t *ret_segment);

/* The memory behind a mapping: its index among the files. */
int files_memory(
    struct dump *c, struct dump_process *s, const struct map_line *map, uint32_t *ret_file);

#endif
