/* SPDX-License-Identifier: Apache-2.0 */
/* /etc/passwd and /etc/group of a sandbox: the first byte is the length of the name to look for. */
#include <stdint.h>
#include <stdlib.h>

#include "base/passwd.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint32_t groups[PASSWD_GROUPS], number;
    struct passwd_user user;

    if (size < 1 || size - 1 < data[0])
        return 0;
    const struct passwd_text name = { (const char *)data + 1, data[0] };
    const struct passwd_text file = { name.data + name.length, size - 1 - name.length };
    if (passwd_by_name(file, name, &user) && (user.uid > PASSWD_LAST_ID || !user.name.length))
        abort();
    if (passwd_number(name, &number))
        (void)passwd_by_uid(file, number, &user);
    (void)passwd_group(file, name, &number);
    if (passwd_groups_of(file, name, groups) > PASSWD_GROUPS)
        abort();
    return 0;
}
