/* SPDX-License-Identifier: Apache-2.0 */
/* Emptying a directory that somebody hostile has filled. */
#ifndef ROLLBOX_BASE_TREE_H
#define ROLLBOX_BASE_TREE_H

/* Removes everything below `directory` (borrowed; opened for reading), whatever names, modes, depth
 * and links it has: no link is followed, and neither memory nor descriptors grow with the depth.
 * Allocates nothing. Tolerates others who remove, or add, meanwhile. 0 once it is empty, or -errno
 * of the first thing that would not go. */
int tree_empty(int directory);

/* Opens a directory, no link, for reading; made readable first if its owner, who is the caller, has
 * made it unreadable. A descriptor or -errno. */
int tree_open(int at, const char *name);

#endif
