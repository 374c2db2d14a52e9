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

/* Old families of which no sandbox lives. */
static void forget_old(struct tenant *tenant) {
    list_for_each(node, families_of(tenant)) {
        struct family *family = container_of(node, struct family, of_tenant);

        if (tenant->n_family_nodes <= FAMILY_NODES)
            return;
        if (!family->n_alive)
            free_family(family);
    }
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

void family_note(struct box *box, const json_t *note) {
    json_decref(box->note);
    box->note = json_deep_copy(note);
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

const json_t *family_nodes(const struct tenant *tenant, const char *id) {
    if (!tenant->families.next)
        return NULL;
    list_for_each(node, &tenant->families) {
        const struct family *family = container_of(node, struct family, of_tenant);

        if (!strcmp(family->id, id))
            return family->nodes;
    }
    return NULL;
}
