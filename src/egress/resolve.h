/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The addresses of names, by the host's DNS servers (c-ares).
 *
 * The servers are those of /etc/resolv.conf at the start of the program, which cannot read it
 * later: the engine sends its text when it has changed. /etc/hosts is not used, so that a name
 * means the same as on any other host. One query is under way for a name, however many connections
 * wait for it, and answers are kept for as long as they say, at most a minute.
 */
#ifndef ROLLBOX_EGRESS_RESOLVE_H
#define ROLLBOX_EGRESS_RESOLVE_H

#include "egress/egress.h"

/* Before the confinement. 0 or -errno. */
int resolver_new(struct loop *loop, struct resolver **ret_resolver);
struct resolver *resolver_free(struct resolver *resolver);
/* `text`: of a resolv.conf. Without a server in it nothing changes. Lookups under way begin again.
 */
void resolver_set_servers(struct resolver *resolver, const char *text);

/* Calls waiter->done later, never from within this call, with no address if there is none. `owner`
 * (a sandbox) may have a limited number of queries under way, and some even if others use all. 0,
 * -EAGAIN past that, or -ENOMEM. */
int resolve(struct resolver *resolver, const void *owner, const char *name,
    struct lookup_waiter *waiter,
    void (*done)(struct lookup_waiter *waiter, const struct address *addresses, size_t n));
/* Does nothing for a waiter that does not wait. */
void resolve_cancel(struct lookup_waiter *waiter);

#endif
