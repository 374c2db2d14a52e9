/* SPDX-License-Identifier: Apache-2.0 */
/* The tenants that the server has seen. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "serve/server.h"

struct tenant *tenant_of(struct server *server, const char *name) {
    list_for_each(node, &server->tenants) {
        struct tenant *tenant = container_of(node, struct tenant, of_server);

        if (!strcmp(tenant->name, name))
            return tenant;
    }
    struct tenant *tenant = calloc(1, sizeof *tenant);
    if (!tenant)
        return NULL;
    memcpy(tenant->name, name, strlen(name) + 1);
    list_add_tail(&server->tenants, &tenant->of_server);
    return tenant;
}
