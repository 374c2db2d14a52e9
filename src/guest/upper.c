/* SPDX-License-Identifier: Apache-2.0 */
/* Where the sandbox's own files are: in a directory among the launcher's uppers, or in an empty
 * place. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "guest/internal.h"
#include "sys/syscalls.h"

int ops_open_upper(const char *name) {
    /* The directory is the launcher's own, and the engine chooses the name. */
    int uppers = open(PLAN_UPPERS, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), r = uppers;

    if (r >= 0)
        r = sys_open_tree(uppers, name, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW);
    else
        r = -errno;
    if (uppers >= 0)
        close(uppers);
    return r;
}

bool ops_begin_empty(const struct plan *plan) {
    const struct plan_op *ops = plan_items(plan, box_ops, struct plan_op);

    for (uint32_t i = 0; i < plan->box_ops.n; i++)
        if (ops[i].kind == PLAN_OP_PIVOT || (ops[i].kind == PLAN_OP_PLACE && ops[i].source))
            return false;
    return true;
}
