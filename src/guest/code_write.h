/* SPDX-License-Identifier: Apache-2.0 */
/* Writing to code of a guest's process that the process itself may not write to. */
#ifndef ROLLBOX_GUEST_CODE_WRITE_H
#define ROLLBOX_GUEST_CODE_WRITE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Finds out how the kernel allows writing to code: directly, by a tracer only, or not at all.
 * `proc`: a directory of procfs, or a negative number for /proc. Forks. A launcher calls it, and
 * its sandboxes inherit the result. 0, or -errno: -EOPNOTSUPP if not at all. */
int code_write_probe(int proc);

/* Writes through `memory`, which is /proc/PID/mem of `pid`, opened for writing. 0 or -errno: -EPERM
 * if a tracer is needed and the process has one already. */
int code_write(pid_t pid, int memory, uint64_t to, const void *from, size_t size);

#endif
