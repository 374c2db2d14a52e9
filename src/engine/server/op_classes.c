/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs that are operations. Nothing else of the engine refers to this file, so that operations
 * know of their classes by op->class alone. */
#include "base/cleanup.h"
#include "engine/engine_serve.h"
#include "engine/hibernate/hibernate.h"
#include "engine/session/op.h"

void engine_set_operations(void) {
    static const struct op_class *const all[] = { &op_create_class, &op_close_class,
        &op_snapshot_class, &op_fork_class, &op_reset_class, &op_pause_class, &op_files_class,
        &op_connect_class, &op_diff_class, &op_commit_class, &op_export_class, &op_show_class,
        &op_verify_class, &op_hibernate_class, &op_wake_class };

    op_set_classes(all, ARRAY_SIZE(all));
    hibernate_set_up();
}
