/* SPDX-License-Identifier: Apache-2.0 */
/* The quotas and queues of tenants as metrics. */
#ifndef ROLLBOX_SERVE_TENANT_METRICS_H
#define ROLLBOX_SERVE_TENANT_METRICS_H

#include "serve/server.h"

void tenant_metrics(struct buf *to, struct server *server);

#endif
