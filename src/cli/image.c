/* SPDX-License-Identifier: Apache-2.0 */
/* rollbox image, rollbox import: images and snapshots by name. See store.c for who does the work.
 */
#include "cli/cli.h"

int cmd_image(const struct options *options) {
    switch (options->command->bit) {
    case COMMAND_IMPORT:
        return cli_become_store(options, "import-snapshot");
    case COMMAND_IMAGE_IMPORT:
        return cli_become_store(options, "import");
    case COMMAND_IMAGE_PULL:
        return cli_become_store(options, "pull");
    case COMMAND_IMAGE_PUSH:
        return cli_become_store(options, "push");
    case COMMAND_IMAGE_EXPORT:
        return cli_become_store(options, "export-image");
    case COMMAND_IMAGE_INSPECT:
        return cli_become_store(options, "inspect");
    case COMMAND_IMAGE_LS:
        return cli_become_store(options, "ls");
    case COMMAND_IMAGE_RM:
        return cli_become_store(options, "rm");
    default:
        return cli_become_store(options, "show");
    }
}
