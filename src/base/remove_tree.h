/* SPDX-License-Identifier: Apache-2.0 */
/* Empties a directory with hostile contents. */
#ifndef ROLLBOX_BASE_TREE_H
#define ROLLBOX_BASE_TREE_H

/* Removes everything below `directory` (borrowed, opened for reading), for any names, modes, depth
 * and links. No link is followed, and neither memory nor descriptors grow with the depth. Allocates
 * nothing. Tolerates other processes that remove or add files. Returns 0 once the directory is
 * empty, or the -errno of the first failure. */
int tree_empty(int directory);

/* Opens a directory for reading; links are refused. If the caller owns the directory and it is
 * unreadable, its mode is changed first. Returns a descriptor or -errno. */
int tree_open(int at, const char *name);

#endif
