/* SPDX-License-Identifier: Apache-2.0 */
/* Entries of a layer that sleeps: what is taken for sound has a path that leads nowhere else. The
 * input is an entry, then its texts; and a whole layer, as one that comes from elsewhere is looked
 * through. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fd.h"
#include "store/pack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void look_through(const uint8_t *data, size_t size) {
    int fd = memfd_create("layer", MFD_CLOEXEC);

    if (fd < 0 || fd_write_all(fd, data, size) < 0 || lseek(fd, 0, SEEK_SET) < 0)
        abort();
    (void)pack_check(fd);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct pack_entry entry;

    look_through(data, size);
    if (size < sizeof entry)
        return 0;
    memcpy(&entry, data, sizeof entry);
    char *texts = malloc(size - sizeof entry + 1);
    if (!texts)
        return 0;
    memcpy(texts, data + sizeof entry, size - sizeof entry);
    if (pack_is_sound(&entry, texts, size - sizeof entry) && entry.kind != PACK_END &&
        (texts[0] != 'p' || strstr(texts, "/../") || strlen(texts) + 1 != entry.path))
        abort();
    free(texts);
    return 0;
}
