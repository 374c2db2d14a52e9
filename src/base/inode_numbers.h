/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of files that keep the inode numbers of the originals.
 *
 * Programs compare the inode number of an open file with that of its path; SQLite does so before
 * each transaction. A tmpfs numbers its files consecutively and never reuses a number. So a new
 * tmpfs can provide any number: earlier numbers are used up by temporary files until the wanted one
 * comes. A file with that number waits in the top directory until the copier reaches the file that
 * needs it. The list of a layer is stored in an attribute of its top directory.
 *
 * A number is never worth a failure: if it is not available, the copy gets another. Nothing here
 * allocates memory.
 */
#ifndef ROLLBOX_BASE_INODE_NUMBERS_H
#define ROLLBOX_BASE_INODE_NUMBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#define NUMBERS_MAX 128
#define NUMBERS_HIGHEST                                                                            \
    2048 /* using up a number takes six microseconds, while processes are paused */
#define NUMBERS_LIST                                                                               \
    "user.overlay.numbers" /* struct number; no overlay shows attributes of such names */

/* A file, by the inode number that processes know. An open file that an overlay has copied up keeps
 * the number of the lower file, and in a user namespace nothing else reveals it. So the name, times
 * and size of the upper file are recorded, too. The upper half of `name` holds the directory's
 * name. */
struct number {
    uint64_t number, name, stamp;
};

/* Sorted. */
struct inode_numbers {
    uint32_t n;
    struct number list[NUMBERS_MAX];
};

/* The compared part of a directory's name; 0 if it is unknown, as for the topmost directory of a
 * layer's part. */
uint32_t inode_numbers_name(const char *name, size_t length);
struct number inode_numbers_of(uint32_t directory, const char *name, const struct stat *st);
/* The number that the copy of this file should have; 0: any. `kept`: the numbers of the file's
 * layer. */
uint64_t inode_numbers_wanted(const struct inode_numbers *numbers, const struct inode_numbers *kept,
    uint32_t directory, const char *name, const struct stat *st);
/* Adds a number. Numbers that cannot be provided, or that do not fit, are left out. */
void inode_numbers_add(struct inode_numbers *numbers, struct number number);
/* Adds all struct number of a message or an attribute. The data is untrusted. */
void inode_numbers_add_all(struct inode_numbers *numbers, const void *data, size_t length);
bool inode_numbers_has(const struct inode_numbers *numbers, uint64_t number);
/* The list of a layer (its top directory, opened for reading), and the other way. */
void inode_numbers_load(struct inode_numbers *numbers, int top);
void inode_numbers_save(const struct inode_numbers *numbers, int top);

/* Reserves the numbers. It must be the first operation in a new tmpfs, whose top directory is
 * `top`. On any other file system no number can be reserved, and the list becomes empty. */
void inode_numbers_reserve(struct inode_numbers *numbers, int top);
/* Gives the waiting file with this number a name in a directory that has no such name. Returns 0 or
 * -errno; -ENOENT: no file waits with this number. */
int inode_numbers_take(int top, uint64_t number, int directory, const char *name);
/* Makes the file wait again, with its contents. */
int inode_numbers_give_back(int top, uint64_t number, int directory, const char *name);
/* Removes the files that still wait. */
void inode_numbers_release(const struct inode_numbers *numbers, int top);

#endif
