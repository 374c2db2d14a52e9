/* SPDX-License-Identifier: Apache-2.0 */
/* Trees of forks: what the server keeps of sandboxes that have ended. */
#include "test.h"

#include <stdio.h>
#include <string.h>

#include "serve/family.h"

static struct tenant tenant;
static struct box root, other;

static struct box *begin(struct box *box, const char *name, uint64_t number) {
    *box = (struct box){ .tenant = &tenant, .number = number };
    (void)snprintf(box->name, sizeof box->name, "%s", name);
    return box;
}

static void fork_and_end(struct box *parent, unsigned n) {
    for (unsigned i = 0; i < n; i++) {
        struct box box;

        family_fork(begin(&box, "child", 3), parent, NULL);
        family_leave(&box);
    }
}

static json_int_t nodes_of(size_t row) {
    json_t *rows = family_list(&tenant);
    const json_int_t n = json_integer_value(json_object_get(json_array_get(rows, row), "nodes"));

    json_decref(rows);
    return n;
}

TEST(nodes_of_a_living_root_are_bounded) {
    struct box kept;

    begin(&root, "root", 1);
    family_fork(begin(&kept, "kept", 4), &root, NULL);
    fork_and_end(&root, 3 * FAMILY_NODES);
    ASSERT_LE(nodes_of(0), (json_int_t)FAMILY_NODES + 2);
    ASSERT_GT(nodes_of(0), (json_int_t)FAMILY_NODES / 2);
    json_t *nodes = family_nodes(&tenant, "0000000000000001");
    ASSERT_STR_EQ(json_string_value(json_object_get(json_array_get(nodes, 0), "sandbox")), "root");
    ASSERT_STR_EQ(json_string_value(json_object_get(json_array_get(nodes, 1), "sandbox")), "kept");
    json_decref(nodes);
    family_leave(&kept);
    family_leave(&root);
}

TEST(families_without_a_living_sandbox_go_first) {
    begin(&root, "root", 1);
    begin(&other, "other", 2);
    fork_and_end(&other, FAMILY_NODES / 2);
    family_leave(&other);
    fork_and_end(&root, FAMILY_NODES / 2);
    json_t *rows = family_list(&tenant);
    ASSERT_EQ(json_array_size(rows), 1);
    json_decref(rows);
    ASSERT_EQ(nodes_of(0), FAMILY_NODES / 2 + 1);
    family_leave(&root);
}

TEST(long_note_is_not_kept) {
    static char note[FAMILY_NOTE_MAX + 8];
    struct box child;

    begin(&root, "root", 1);
    family_fork(begin(&child, "child", 3), &root, NULL);
    family_note(&root, "{\"reward\":1}");
    memset(note, 'x', FAMILY_NOTE_MAX + 1);
    note[0] = note[FAMILY_NOTE_MAX] = '"';
    family_note(&child, note);
    json_t *nodes = family_nodes(&tenant, "0000000000000001");
    ASSERT_TRUE(json_is_object(json_object_get(json_array_get(nodes, 0), "note")));
    ASSERT_TRUE(json_is_null(json_object_get(json_array_get(nodes, 1), "note")));
    json_decref(nodes);
    family_leave(&child);
    family_leave(&root);
}
