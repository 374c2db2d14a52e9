/* SPDX-License-Identifier: Apache-2.0 */
/* A service in a sandbox, for E2B's clients. */
#ifndef ROLLBOX_SERVE_E2B_PORT_H
#define ROLLBOX_SERVE_E2B_PORT_H

#include "serve/e2b.h"

void handle_e2b_port(struct exchange *exchange);

#endif
