/* SPDX-License-Identifier: Apache-2.0 */
/* Does nf_tables work here, with what net "allow" needs of it? */
#ifndef ROLLBOX_SYS_NFT_PROBE_H
#define ROLLBOX_SYS_NFT_PROBE_H

#include <stdbool.h>

/* Adds a table with the expressions that a sandbox's table has (guest/init/network.c) to the
 * network namespace of the caller, which should be a new one. */
bool nft_probe(void);

#endif
