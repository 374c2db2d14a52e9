/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The addresses that names have inside a sandbox.
 *
 * Each name has one address of 198.18.0.0/15, and each address stands for one name. A guest cannot
 * connect to an address that it was not given for a name, two names that share a server stay
 * apart, and no query of a guest leaves the host. The gateway alone resolves names.
 *
 * Exact names of rules are numbered in the policy's order, names below a wildcard as the guest asks
 * for them. A name keeps its address for the sandbox's life, because programs cache addresses. So
 * the table is a part of the sandbox's state: names_load puts a saved pair back.
 */
#ifndef ROLLBOX_NET_NAMES_H
#define ROLLBOX_NET_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/network.h"

#define NAMES_NETWORK 0xc6120000u                  /* 198.18.0.0/15 */
#define NAMES_FIRST_EXACT (NAMES_NETWORK + 1)      /* 198.18.0.1 */
#define NAMES_FIRST_WILD (NAMES_NETWORK + 0x8001u) /* 198.18.128.1 */
/* A guest can ask for any number of names below a wildcard. Past this, new names get no address. */
#define NAMES_MAX_WILD 4096u
#define NAMES_MAX_EXACT 32768u
#define NAMES_MAX_LENGTH 253u

struct names {
    struct names_table {
        struct names_entry {
            char *name; /* lower case, without a dot at its end; NULL: a gap */
            uint32_t hash;
        } * items; /* items[i]: of the address first + i */
        uint32_t n, capacity;
    } exact, wild;
};

void names_release(struct names *names);

/* Is the text a host's name: labels of letters, digits, '-' and '_' with dots between, in lower
 * case? */
bool names_valid(const char *name);

/* Gives every exact name of the rules an address, unless it has one. 0 or -ENOMEM. */
int names_add_rules(struct names *names, const struct net_rules *rules);
/* Puts a pair of a saved table back. 0, -EINVAL for an address outside of the range or a name that
 * is none, -EEXIST if name or address is taken by another, or -ENOMEM. */
int names_load(struct names *names, const char *name, uint32_t address);
/* The address of the name, made if `may_add`. *ret_is_new: it was made now. 0, -ENOENT for a name
 * without an address, -ENOSPC if the table is full, -ENOMEM. */
int names_address(
    struct names *names, const char *name, bool may_add, uint32_t *ret_address, bool *ret_is_new);
/* The name behind the address, or NULL. */
const char *names_name(const struct names *names, uint32_t address);
/* Is the address in the range that names have? */
bool names_is_fake(uint32_t address);

#endif
