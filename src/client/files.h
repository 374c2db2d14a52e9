/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of sandboxes: the library's half of base/transfer.h.
 *
 * Each call has an agent of its own in the sandbox, at the other end of a socket pair (VERB_FILES).
 * The library writes its request into the socket before it requests the agent, which then finds it
 * there. The agent's answers are untrusted, like all data of a guest: sizes are bounded, names are
 * one component, and links are not followed. If the agent sends nothing for FILES_SILENCE_MS,
 * because the guest has stopped it, the call fails.
 *
 * A guest may kill the agent. The call is then made again, with an agent for which the engine stops
 * the guest's processes. Every operation may be repeated: it reads, or it leaves the same state.
 */
#ifndef ROLLBOX_CLIENT_FILES_H
#define ROLLBOX_CLIENT_FILES_H

#include <rollbox/rollbox.h>

#include "base/transfer.h"

#define FILES_SILENCE_MS 30000

struct files {
    struct rollbox_sandbox *sandbox; /* NULL: the agent is running already */
    bool alone;       /* an agent was killed before: the guest is frozen for this one */
    bool is_recorded; /* the sandbox, if calls on its files are recorded (record.h) */
    int theirs;       /* the agent's end of the socket until it has it; -EBADF */
    struct transfer *transfer;
    rollbox_progress progress;
    void *userdata;
    const char *user, *owner; /* of struct rollbox_file_options; NULL: none */
    const char *name;         /* the name of an upload; NULL: its own */
    uint64_t told_bytes, told_files;
    char path[TRANSFER_TEXT_MAX]; /* the path in the sandbox, as the caller gave it; for messages */
};

/* For an agent that serves the other end of a connected SOCK_SEQPACKET socket (consumed). 0 or
 * -ENOMEM. */
int files_init(struct files *files, int take_socket);
void files_done(struct files *files);

/* Has an agent serve a connected SOCK_SEQPACKET socket (borrowed), in which its request lies
 * already. `alone`: the guest is frozen meanwhile. ret_recorded may be NULL. */
int files_start_agent(struct rollbox_sandbox *sandbox, int socket, bool alone, bool *ret_recorded,
    struct rollbox_error *error);

/* As the functions of rollbox.h. */
int files_read(struct files *files, const char *path, uint64_t most, void **ret_data,
    size_t *ret_length, struct rollbox_error *error);
int files_write(struct files *files, const char *path, const void *data, size_t length,
    unsigned mode, struct rollbox_error *error);
int files_list(struct files *files, const char *path, char **ret_json, struct rollbox_error *error);
int files_stat(struct files *files, const char *path, bool follow, char **ret_json,
    struct rollbox_error *error);
int files_mkdir(struct files *files, const char *path, unsigned mode, struct rollbox_error *error);
int files_remove(
    struct files *files, const char *path, bool recursive, struct rollbox_error *error);
int files_upload(
    struct files *files, const char *host_path, const char *path, struct rollbox_error *error);
int files_download(
    struct files *files, const char *path, const char *host_path, struct rollbox_error *error);

/* As rollbox_upload, for an open file (borrowed) with that name. */
int files_upload_descriptor(struct rollbox_sandbox *sandbox, int fd, const char *name,
    const char *path, struct rollbox_error *error);

#endif
