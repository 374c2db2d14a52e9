/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Confines the gateway, for the case that a guest or a server takes it over.
 *
 * It then has sockets and memory, and nothing else: no file can be opened (seccomp, and a Landlock
 * domain that grants nothing), no program executed, no process made or touched. Sockets are of the
 * two Internet families only. Run by root, it has an id that owns nothing.
 */
#ifndef ROLLBOX_EGRESS_CONFINE_H
#define ROLLBOX_EGRESS_CONFINE_H

/* For the calling process, for good. 0 or -errno, and *ret_step says at which step. */
int confine_gateway(const char **ret_step);

#endif
