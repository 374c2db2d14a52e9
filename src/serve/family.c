/* SPDX-License-Identifier: Apache-2.0 */
/* Trees of forks; family.h has the model. */
#include "serve/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"

struct family {
    struct list of_tenant;
    struct tenant *tenant;
    char id[17];
    json_t *nodes; /* a list */
    unsigned n_alive;
};

static struct list *families_of(struct tenant *tenant) {
    if (!tenant->families.next)
        list_init(&tenant->families);
    return &tenant->families;
}

static void free_family(struct family *family) {
    list_remove(&family->of_tenant);
    family->tenant->n_family_nodes -= json_array_size(family->nodes);
    json_decref(family->nodes);
    free(family);
}

/* Takes away the oldest nodes of sandboxes that have ended, but for the root, up to *n of them. */
static void drop_ended(struct family *family, size_t *n) {
    json_t *kept = json_array(), *node;
    size_t i;

    json_array_foreach(family->nodes, i, node) {
        const bool has_ended = !json_is_null(json_object_get(node, "ended"));

        if (i && *n && has_ended) {
            family->tenant->n_family_nodes--;
            --*n;
        } else {
            json_array_append(kept, node);
        }
    }
    json_decref(family->nodes);
    family->nodes = kept;
}

/* Old families of which no sandbox lives. If that is not enough, old nodes of the others: a search
 * from one living root makes and ends any number of forks. */
static void forget_old(struct tenant *tenant) {
    size_t n_alive = 0;

    if (tenant->n_family_nodes <= FAMILY_NODES)
        return;
    list_for_each(node, families_of(tenant)) {
        struct family *family = container_of(node, struct family, of_tenant);

        if (tenant->n_family_nodes <= FAMILY_NODES)
            return;
        if (family->n_alive)
            n_alive += family->n_alive;
        else
            free_family(family);
    }
    size_t n_ended = tenant->n_family_nodes - n_alive;
    if (n_ended <= FAMILY_NODES)
        return;
    n_ended -= FAMILY_NODES / 4 * 3; /* not one at each fork, because it visits all */
    list_for_each(node, families_of(tenant))
        drop_ended(container_of(node, struct family, of_tenant), &n_ended);
}

static void enter(
    struct box *box, struct family *family, const char *parent, const char *snapshot) {
    json_t *node =
        json_pack("{s:s, s:s?, s:s?, s:I, s:n, s:O?}", "sandbox", box->name, "parent", parent,
            "snapshot", snapshot, "created", (json_int_t)time(NULL), "ended", "note", box->note);

    if (!node)
        return;
    box->family = family;
    box->node = json_incref(node);
    json_array_append_new(family->nodes, node);
    family->tenant->n_family_nodes++;
    family->n_alive++;
}

static struct family *begin(struct box *root) {
    struct family *family = calloc(1, sizeof *family);

    if (!family)
        return NULL;
    family->tenant = root->tenant;
    family->nodes = json_array();
    (void)snprintf(family->id, sizeof family->id, "%016llx", (unsigned long long)root->number);
    list_add_tail(families_of(root->tenant), &family->of_tenant);
    enter(root, family, NULL, NULL);
    return family;
}

void family_fork(struct box *box, struct box *parent, const char *snapshot) {
    if (!parent->family && (parent->is_gone || !begin(parent)))
        return;
    enter(box, parent->family, parent->name, snapshot);
    forget_old(box->tenant);
}

void family_note(struct box *box, const char *note) {
    json_decref(box->note);
    box->note = note && strlen(note) <= FAMILY_NOTE_MAX ? json_string(note) : json_null();
    if (box->node)
        json_object_set(box->node, "note", box->note);
}

void family_leave(struct box *box) {
    if (box->node)
        json_object_set_new(box->node, "ended", json_integer((json_int_t)time(NULL)));
    if (box->family)
        box->family->n_alive--;
    json_decref(TAKE_PTR(box->node));
    json_decref(TAKE_PTR(box->note));
    box->family = NULL;
}

bool family_of(const struct box *box, char ret_id[17]) {
    if (!box->family)
        return false;
    memcpy(ret_id, box->family->id, 17);
    return true;
}

json_t *family_list(const struct tenant *tenant) {
    json_t *rows = json_array();

    if (!tenant->families.next)
        return rows;
    list_for_each(node, &tenant->families) {
        const struct family *family = container_of(node, struct family, of_tenant);
        const json_t *root = json_object_get(json_array_get(family->nodes, 0), "sandbox");

        json_array_insert_new(rows, 0,
            json_pack("{s:s, s:O, s:i, s:i}", "id", family->id, "root", root, "sandboxes",
                (int)family->n_alive, "nodes", (int)json_array_size(family->nodes)));
    }
    return rows;
}

static json_t *copy_nodes(const struct family *family) {
    json_t *nodes = json_deep_copy(family->nodes), *node;
    size_t i;

    json_array_foreach(nodes, i, node) {
        const char *note = json_string_value(json_object_get(node, "note"));

        if (note)
            json_object_set_new(
                node, "note", json_loads(note, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL));
    }
    return nodes;
}

json_t *family_nodes(const struct tenant *tenant, const char *id) {
    if (!tenant->families.next)
        return NULL;
    list_for_each(node, &tenant->families) {
        const struct family *family = container_of(node, struct family, of_tenant);

        if (!strcmp(family->id, id))
            return copy_nodes(family);
    }
    return NULL;
}
