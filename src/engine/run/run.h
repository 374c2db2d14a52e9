/* SPDX-License-Identifier: Apache-2.0 */
/* The course of a command (command/command.h has the struct). */
#ifndef ROLLBOX_ENGINE_RUN_RUN_H
#define ROLLBOX_ENGINE_RUN_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

#include "engine/command/command.h"
#include "guest/guest.h"

struct client;
struct engine;

struct run *run_new(struct engine *engine);
void run_free(struct run *run);
void run_kill(struct run *run, enum rollbox_outcome outcome);
void run_out_of_memory(struct run *run,
    bool of_host); /* with all else in its sandbox: it may have begun already, which init has not
                      said yet. One that nobody has asked init for begins after it */
void run_broken(struct run *run); /* session_broken */
void run_fail(struct run *run, enum rollbox_error_code code, int error_number, const char *stage,
    const char *message);
void run_answer(struct run *run, const struct guest_record *record);
void run_abandon(struct run *run);             /* its client is gone */
void run_forget_client(struct client *client); /* as a client that waits for another client's run */
void run_cancel(struct client *client, uint64_t serial, enum rollbox_outcome outcome);
void run_enqueue(struct run
        *run); /* to be started by run_schedule; of code, by the interpreter that there is now */
void run_schedule(
    struct engine *engine); /* soon, from the loop: starts those queued runs that may start */

/* engine_hooks.code_released. */
void run_release_code(struct engine *engine, struct list *in_queue);
struct run *run_find(struct engine *engine, const struct run *except,
    const unsigned char *operation, size_t length); /* under way */
void run_finish(struct run *run);                   /* init has told all that it will */
int run_open_streams(struct run *run);
int run_wait_for(
    struct client *client, uint64_t serial, struct run *run); /* its result goes there, too */

#endif
