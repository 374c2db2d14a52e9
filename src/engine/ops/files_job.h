/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs of rollbox-store on the files of a state: DIFF, COMMIT, EXPORT, SHOW and VERIFY. */
#ifndef ROLLBOX_ENGINE_OPS_FILES_JOB_H
#define ROLLBOX_ENGINE_OPS_FILES_JOB_H

#include <jansson.h>

#include "engine/session/op.h"

/* The state is op->to. `take_state`, of SHOW and VERIFY: the engine's part of the answer; otherwise
 * NULL. The event STORE_JOB_DONE follows. 0, or the error. */
int files_job_start(struct op *op, json_t *take_state, struct rollbox_error *error);

#endif
