/* SPDX-License-Identifier: Apache-2.0 */
/* The program's messages with the engine and with rollbox-egress (docs/explanation/egress-tls.md).
 */
#ifndef ROLLBOX_EGRESS_TLS_SERVE_H
#define ROLLBOX_EGRESS_TLS_SERVE_H

/* Serves the engine at the other end of a SOCK_SEQPACKET socket until it closes it. Returns the
 * exit status. */
int serve(int engine);

#endif
