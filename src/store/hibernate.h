/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a sandbox's files and processes to the disk and reads them back: the work of rollbox-store
 * for `hibernate` and `wake`.
 *
 * Both are jobs for the engine (docs/reference/store-jobs.md). A hibernated sandbox
 * appears by rename after all its data has reached the disk. It is woken only after every digest
 * was verified.
 */
#ifndef ROLLBOX_STORE_HIBERNATE_H
#define ROLLBOX_STORE_HIBERNATE_H

#include <jansson.h>

#include <rollbox/rollbox.h>

#include "store/dedup_write.h"
#include "store/layer.h"

#define SLEEP_STAGE "asleep" /* in the directory of work */

/* The job that the engine has put on standard input. */
struct hibernate_job {
    json_t *root;
    const char *id;
    const json_t *layers, *images;
};

int hibernate_job_read(int fd, struct hibernate_job *ret_job, struct rollbox_error *error);
void hibernate_job_done(struct hibernate_job *job);

/* The work directory, with a directory in it for the sandbox. */
int hibernate_begin(int store, struct work *ret_work, int *ret_stage, struct rollbox_error *error);

/* The job's layers and images, into that. */
int hibernate_stage(
    const struct hibernate_job *job, struct stage *stage, struct rollbox_error *error);

/* The content of record.json; `record` is the engine's part. New references. NULL: out of memory,
 * or `record` is NULL. */
json_t *hibernate_whole(
    const char *id, json_t *record, json_t *layers, json_t *images, json_t *bases);

/* A sandbox that could not be woken is not written: the error would appear only after its processes
 * are gone. DAMAGED. */
int hibernate_check_record(
    const struct hibernate_job *job, const json_t *whole, struct rollbox_error *error);

/* Syncs everything to disk, then publishes it. The lock goes to `owner`, a socket; -1: to no
 * process. */
int hibernate_publish(const struct work *work, int stage, const json_t *record, int owner,
    struct rollbox_error *error);

/* {"id", "layers": [...], "images": [...], "owner": fd, "detached", "record": {...}} on `fd`;
 * dedup_write.h has what an element of the lists is. The lock on what was written goes to the
 * socket `owner`. *ret_json: {"bytes", "written"}: of what sleeps, and how much of that was not
 * there already. */
int hibernate_write(int store, int fd, json_t **ret_json, struct rollbox_error *error);

/* {"id", "layers": [{"fd"}], "images": [{"fd"}], "drops"}: empty directories, one a layer, and
 * empty files, one an image that is a difference. `drops`: what ran is not wanted, so the images
 * may be of another version. */
int hibernate_read(int store, int fd, json_t **ret_json, struct rollbox_error *error);

/* All of a record's. DAMAGED, by name. */
int hibernate_check_files(int directory, const json_t *record, struct rollbox_error *error);

/* Whether a file matches its row ({"bytes", "sha256"}). *ret_reason, static: the difference; NULL:
 * none. -errno if the file cannot be read. */
int hibernate_check_file(
    int directory, const char *name, const json_t *row, const char **ret_reason);
/* Whether all files of asleep/ID are as written. 0; DAMAGED, with the first that is not. */
int hibernate_verify(int store, const char *id, struct rollbox_error *error);

/* A descriptor of its image `i`, whole: of a difference, of a memory file. Or -errno. */
int hibernate_open_image(int store, const char *id, size_t i);

#endif
