/* SPDX-License-Identifier: Apache-2.0 */
/* A circular doubly linked list whose nodes live inside their owners. An empty list and an unlinked
 * node point to themselves. */
#ifndef ROLLBOX_BASE_LIST_H
#define ROLLBOX_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *next, *prev;
};

#define LIST_INIT(name) ((struct list){ &(name), &(name) })
#define container_of(pointer, type, member)                                                        \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

static inline void list_init(struct list *l) {
    l->next = l->prev = l;
}

static inline bool list_empty(const struct list *l) {
    return l->next == l;
}

static inline void list_add_tail(struct list *head, struct list *node) {
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

static inline void list_remove(struct list *node) {
    node->prev->next = node->next;
    node->next->prev = node->prev;
    list_init(node);
}

/* The body may remove the current node. */
#define list_for_each(node, head)                                                                  \
    for (struct list *node = (head)->next, *node##_next = node->next; node != (head);              \
         node = node##_next, node##_next = node->next)

#endif
