/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a command: by the signal that it caught, or with its status. */
#include <stdio.h>

#include "cli/cli.h"
#include "cli/private_engine.h"
#include "cli/signals.h"

int cli_end(int status) {
    if (signals_caught()) {
        private_engine_end();
        signals_die(signals_caught());
    }
    return status;
}

int cli_done(const struct options *options, int status) {
    if (status)
        return status;
    if (options_has(options, OPTION_JSON))
        printf("{}\n");
    return cli_flush(options, 0);
}
