/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's messages, and those of rollbox-egress-tls: JSON objects, one a packet. A message of
 * the engine that makes no sense ends the program: the two are one version of one project. */
#ifndef ROLLBOX_EGRESS_CONTROL_H
#define ROLLBOX_EGRESS_CONTROL_H

#include "egress/egress.h"

/* 0 or -errno. */
int control_start(struct egress *egress);

#endif
