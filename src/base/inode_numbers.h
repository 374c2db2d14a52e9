/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inode numbers that files keep in a copy of them.
 *
 * Programs compare the number of a file that they have open with what its path says, SQLite before
 * each transaction. A tmpfs numbers its files one after the other and never gives a number twice,
 * so a number that is wanted can be had in a new one: others are used up until it comes, and it
 * waits in a file of its own, at the top, until the copier gets to the file that is to have it. A
 * layer's list is an attribute of its top.
 *
 * No number is worth a failure: what cannot be had is another. Nothing here allocates.
 */
#ifndef ROLLBOX_BASE_INODE_NUMBERS_H
#define ROLLBOX_BASE_INODE_NUMBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#define NUMBERS_MAX 128
#define NUMBERS_HIGHEST                                                                            \
    2048 /* using one up takes six microseconds, while processes stand still                       \
          */
#define NUMBERS_LIST                                                                               \
    "user.overlay.numbers" /* struct number; no overlay shows attributes of such names */

/* A file, by the number that processes know it by. What an overlay has copied up goes on to show
 * the number of what lies below while it is open, and in a user namespace nothing else tells of it:
 * so there is its name, and its times and size, too, which are those of the file above. `name` has
 * that of the directory in its upper half. */
struct number {
    uint64_t number, name, stamp;
};

/* Sorted. */
struct inode_numbers {
    uint32_t n;
    struct number list[NUMBERS_MAX];
};

/* What is compared of a directory's name; 0 where that is not known, as of the topmost of a layer's
 * part. */
uint32_t inode_numbers_name(const char *name, size_t length);
struct number inode_numbers_of(uint32_t directory, const char *name, const struct stat *st);
/* The number that the copy of this file is to have; 0: any. `kept`: those of the layer that it is
 * in. */
uint64_t inode_numbers_wanted(const struct inode_numbers *numbers, const struct inode_numbers *kept,
    uint32_t directory, const char *name, const struct stat *st);
/* Numbers that nobody can have, and what there is no room for, are left out. */
void inode_numbers_add(struct inode_numbers *numbers, struct number number);
/* What somebody has written as struct number, one after the other, in a message or an attribute. */
void inode_numbers_add_all(struct inode_numbers *numbers, const void *data, size_t length);
bool inode_numbers_has(const struct inode_numbers *numbers, uint64_t number);
/* The list of a layer (its top directory, opened for reading), and the other way. */
void inode_numbers_load(struct inode_numbers *numbers, int top);
void inode_numbers_save(const struct inode_numbers *numbers, int top);

/* The first thing in a new tmpfs, whose top directory this is. In any other file system none can be
 * had, and the list is empty then. */
void inode_numbers_reserve(struct inode_numbers *numbers, int top);
/* The file that has waited with the number gets the name, in a directory that has none such. 0 or
 * -errno; -ENOENT: there is none. */
int inode_numbers_take(int top, uint64_t number, int directory, const char *name);
/* It waits again, with whatever is in it. */
int inode_numbers_give_back(int top, uint64_t number, int directory, const char *name);
/* Those that nobody took go. */
void inode_numbers_release(const struct inode_numbers *numbers, int top);

#endif
