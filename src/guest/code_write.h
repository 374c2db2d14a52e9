/* SPDX-License-Identifier: Apache-2.0 */
/* Writing to the code of a guest's process, which the process itself may not write to. */
#ifndef ROLLBOX_GUEST_CODE_WRITE_H
#define ROLLBOX_GUEST_CODE_WRITE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Finds out how the kernel lets code be written: plainly, by a tracer alone, or not at all. `proc`:
 * a directory of procfs, or a negative number for the one at /proc. Forks. What a launcher has
 * found its sandboxes know. 0, or -errno: -EOPNOTSUPP if not at all. */
int code_write_probe(int proc);

/* Writes by `memory`, which is /proc/PID/mem of `pid`, opened for writing. 0 or -errno: -EPERM of a
 * process that has a tracer already, where a tracer is needed. */
int code_write(pid_t pid, int memory, uint64_t to, const void *from, size_t size);

#endif
