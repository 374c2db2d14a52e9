/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a capture, and what each offers to those above it. */
#ifndef ROLLBOX_DUMP_INTERNAL_H
#define ROLLBOX_DUMP_INTERNAL_H

#include "dump/context.h"

/* process_tree.c: stopping them all, and how they are related. */
int tree_stop(struct dump *c);
void tree_release(struct dump *c);
int tree_describe(struct dump *c);
struct task *tree_main(struct dump *c, const struct dump_process *s);
/* They go on; what is known of them is kept. */
void tree_let_go(struct dump *c);
/* A thread that may have gone on since is to stand once more. 0 or -errno: it goes on. */
int tree_hold(struct trace *trace, pid_t tid);

/* process.c: everything but private memory, and what its twin can be asked as well while it goes
 * on. */
int process_dump(struct dump *c, struct dump_process *s);
/* Of one of them, when all are captured: what is no process' own, and can be asked about last. */
int process_dump_shared(struct dump *c, struct dump_process *s);
int process_ask_twin(struct dump *c, struct dump_process *s);

/* cow_fork.c */
#define COW_FORK_GONE "its copy was killed before it was written; try again"
/* It takes twins after all. */
void cow_fork_plan(struct dump *c);
/* Begins to make one, if there is room for it. Until it is made no calls are made in the process'
 * first thread, and what is read of its memory waits. */
void cow_fork_make(struct dump *c, struct dump_process *s);
/* Waits for that, if it was begun; then s->pages are its. */
void cow_fork_made(struct dump *c, struct dump_process *s);
/* Or was it killed? */
bool cow_fork_stands(const struct dump_process *s);
void cow_fork_end(struct dump *c, struct dump_process *s);

/* async_read.c: begins to read a file of a process', which is taken, beside what else is done.
 * Then: was it read, to its end? Its text is added. What is not taken ends here. */
void async_read_begin(const struct dump_process *s, int take_fd);
bool async_read_take(const struct dump_process *s, struct buf *to);
void async_read_end(void);

/* mappings.c: lines of a process' maps. */
#define MAX_LINE 4352
/* Each line in turn. */
typedef int mappings_call(
    struct dump *c, struct dump_process *s, const struct map_line *map, void *data);
int mappings_each(struct dump *c, struct dump_process *s, mappings_call *call, void *data);
bool mappings_is_nameless(const struct map_line *map);
bool mappings_is_nobodys(const struct dump_process *s, const struct map_line *map);
bool mappings_is_looked_at(const struct dump_process *s, const struct map_line *map);
bool mappings_ends_with(const char *text, const char *end);
/* A path as the process sees it; a descriptor or -errno. */
int mappings_open_path(const struct dump_process *s, const char *path);
int memory_find_tools(struct dump *c, struct dump_process *s);
/* Does the process (still) have at this path what is in `st`? Its own root is where paths begin. 0;
 * -ESTALE; -errno. */
int memory_find_path(const struct dump_process *s, const char *path, struct stat *ret_st);
/* Each stretch of private memory of a process, by address. */
int memory_each_private(struct dump *c, struct dump_process *s,
    int (*call)(void *data, uint64_t start, uint64_t end), void *data);

/* pages.c. Memory for CHUNK_PAGES pages, which anybody here may use for a moment. */
#define CHUNK_PAGES                                                                                \
    64u /* its own memory has to be made for it, and a processor's cache holds it                  \
         */
char *pages_chunk(void);
ssize_t pages_read(const struct dump_process *s, uint64_t address, char *to, size_t length);
int pages_save(struct dump *c, const struct dump_process *s, size_t first_run, uint64_t address,
    uint64_t n, bool is_file);
/* Calls back for each stretch of the process' own pages from one address to another: -errno of its
 * own, or what `call` returns that is not 0. */
typedef int pages_call(
    struct dump *c, const struct dump_process *s, void *data, uint64_t address, uint64_t n);
int pages_each_own(struct dump *c, const struct dump_process *s, uint64_t start, uint64_t end,
    pages_call *call, void *data);
/* Such calls: the stretch goes to the image, as runs from *data (size_t) on; 1, as there is one. */
int pages_save_own(
    struct dump *c, const struct dump_process *s, void *data, uint64_t address, uint64_t n);
int pages_is_there(
    struct dump *c, const struct dump_process *s, void *data, uint64_t address, uint64_t n);
/* The content of a file of `length` bytes, without its holes. */
int memory_save_file(struct dump *c, int fd, uint64_t length, struct image_range *ret_runs);
/* The content of shared memory as far as it is mapped here. */
int memory_save_shared(struct dump *c, const struct dump_process *s, const struct map_line *map,
    struct image_range *ret_runs);

/* memory.c. Begins to read what is long and does not change while the process stands. */
void memory_begin(struct dump_process *s);
/* What others may change once the process goes on: what the files are that it maps; */
int memory_identify(struct dump *c, struct dump_process *s);
/* and, of those that are known, what is mapped of them, and memory that is shared. */
int memory_note(struct dump *c, struct dump_process *s);
int memory_dump(struct dump *c, struct dump_process *s);
/* What was promised for the memory of processes, in the order of its places in the image: `written`
 * is told of each part. 0 or -errno and the error. */
int memory_keep_promises(struct dump *c, void (*written)(struct dump *c, uint64_t end));

/* dirty_pages.c. The image that this may be an addition to is c->base, from here on; 0 or -errno
 * and the error. From there: it is to be none. */
int dirty_pages_begin(struct dump *c);
void dirty_pages_forget(struct dump *c);
/* Are the processes, once they are described, those of the base, as far as can be told before they
 * are looked at? */
bool dirty_pages_has_same_tree(const struct dump *c);
/* Does the process go on from the base, with few pages that were written to since? What is called
 * for in it from here on leaves its memory as it was, so what is found out is true until it goes
 * on. */
bool dirty_pages_has_few(struct dump *c, struct dump_process *s);
/* The area of the base that one of the process' goes on with. NULL: none. */
const struct image_area *track_area(
    const struct dump *c, const struct dump_process *s, const struct image_area *area);
enum dirty_pages_since {
    DIRTY_PAGES_KEPT,    /* as it was */
    DIRTY_PAGES_WRITTEN, /* may have been written to; of a file's, also what is not the process' own
                          */
    DIRTY_PAGES_UNSURE,  /* the same, and where it seems to be swapped it may be a guard */
};
/* Calls back for each stretch of pages that is there between two addresses, with what became of it.
 * -errno of its own, or what `call` returns that is not 0. */
typedef int track_call(void *data, uint64_t address, uint64_t n, enum dirty_pages_since since);
int dirty_pages_each(const struct dump_process *s, uint64_t start, uint64_t end, bool is_file,
    track_call *call, void *data);
/* `n` pages that are as they were. 0 or -errno. */
int dirty_pages_keep(struct dump *c, const struct image_area *before, uint64_t address, uint64_t n);
/* When all tables but the last are there: is nothing in the way of an addition? */
bool dirty_pages_resumes(struct dump *c);
/* From here on. If it cannot be, all is taken as written to (c->n_trackers is 0). */
void dirty_pages_start(struct dump *c);
void dirty_pages_end(struct dump *c);

/* guard_pages.c. Where a process has guards in its memory; which of them are in an area, as areas
 * come by address; and, as something could not be read there, is there one? 0 or -errno and the
 * error. */
int guard_pages_find(struct dump *c, const struct dump_process *s); /* without the error */
int guard_pages_take(struct dump *c, struct image_area *area);
int guard_pages_refuse(struct dump *c, const struct dump_process *s, uint64_t address);

/* reopen_check.c: what the process has open and whether it may open it again; by mode. */
#define ACCESS_ENTER 1u /* as in modes */
#define ACCESS_WRITE 2u
#define ACCESS_READ 4u
bool access_is_owner(const struct dump_process *s, const struct stat *st);
bool access_is_given(const struct dump_process *s, const struct stat *st, unsigned wanted);
/* All directories on the way to a path. */
bool access_reaches(struct dump *c, const struct dump_process *s, const char *path);

/* files.c */
int files_dump(struct dump *c, struct dump_process *s, struct image_process *process);
/* sockets.c: Unix sockets. `fd` is a copy of the process' own. -errno; ENOTSUP and why (ret_why) if
 * it is refused. */
int sockets_dump(
    struct dump *c, int fd, uint64_t inode, struct image_file *to, const char **ret_why);
/* When all are known: which are each other's ends. */
int sockets_connect(struct dump *c);

/* terminals.c. Is it one, or the master of one? */
bool terminals_is_one(const struct stat *st);
/* `fd` is a copy of the process' own, `take_fd`: consumed. -errno; ENOTSUP and why (ret_why) if it
 * is refused. Until terminals_connect their number stands for them. */
int terminals_dump(struct dump *c, const struct dump_process *s, const struct stat *st, int take_fd,
    struct image_file *to, const char **ret_why);
/* Of a device, as the kernel writes it down: its number + 1; 0: it is none. */
uint32_t terminals_number(uint64_t device);
/* When all is known that could be a reason to refuse: how they are set, and what is in them. */
int terminals_connect(struct dump *c);
void terminals_forget(struct dump *c);

/* inotify.c: inotify; `fd` is a copy of the process' own, which has it as `number`; `info` is its
 * fdinfo. -errno; why (ret_why) if it is refused. */
int inotify_dump(struct dump *c, const struct dump_process *s, int number, int fd, const char *info,
    struct image_file *to, const char **ret_why);
/* When all is known: the paths of what is watched. */
int inotify_connect(struct dump *c);

/* quiesce.c: what is asked of the init of a sandbox with random_seed or time_start; elsewhere these
 * do nothing. 0 or -errno. */
int quiesce_hold(struct dump *c);
int quiesce_give_back(
    struct dump *c); /* whoever was told to stand and does not yet may be one that init holds */
int quiesce_pass(struct dump *c);
int quiesce_reply(struct dump *c); /* which of those that stand go on with a wait */
int quiesce_release(struct dump *c);
/* Who begins a wait anew, and would be signalled by others before that, is let go before them. */
void quiesce_lead(struct dump *c);
/* One that stands only now that the others have been let go, and is about to be. */
void quiesce_late(struct dump *c, const struct task *task);
void quiesce_end(struct dump *c);
/* A thread that goes on with what is left of a wait begins that wait where it is restored: init
 * knows which call it was. */
void quiesce_find_call(struct dump *c, const struct trace *trace, struct image_thread *thread);
/* When all is captured: what of what init knows is about what was. */
void quiesce_finish(struct dump *c);
/* Is this the page of the virtual clock, is this timer descriptor one that init keeps? */
bool quiesce_is_page(const struct dump *c, uint64_t inode, const char *name);
bool quiesce_is_marked(const struct dump *c, const uint64_t *interval, uint64_t value_s);
/* Whether init has put it in order yet. */
int quiesce_look_at_vdso(struct dump *c, const struct dump_process *s,
    const struct image_area *area, struct image_process *process);

/* The memory that a mapping is of: its index among the files. */
int files_memory(
    struct dump *c, struct dump_process *s, const struct map_line *map, uint32_t *ret_file);

#endif
