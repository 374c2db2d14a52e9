/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives up all rights that the process no longer needs, before it reads a byte of a guest or a
 * server.
 *
 * The process has secrets and an authority's key, and parses the bytes of attackers. An attacker
 * that took it over would have these, but no way further: the process can open no file, start no
 * program, make no connection and reach no other process. It sends on sockets that it was given.
 */
#ifndef ROLLBOX_EGRESS_TLS_CONFINE_H
#define ROLLBOX_EGRESS_TLS_CONFINE_H

/* For good. 0 or -errno, and *ret_step says at which step. */
int confine_self(const char **ret_step);

#endif
