/* SPDX-License-Identifier: Apache-2.0 */
/* The operations in progress, as a JSON object. */
#ifndef ROLLBOX_ENGINE_SERVER_DEBUG_H
#define ROLLBOX_ENGINE_SERVER_DEBUG_H

#include "base/buf.h"

struct engine;

void debug_dump(struct engine *engine, struct buf *to);

#endif
