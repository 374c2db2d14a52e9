/* SPDX-License-Identifier: Apache-2.0 */
#include "base/size_text.h"

#include "base/buf.h"

/* Three figures at most. */
void size_text_add(struct buf *to, double bytes) {
    static const char units[] = "KMGTPE";
    int unit = -1;

    while (bytes >= 999.5 && units[unit + 1]) {
        bytes /= 1024;
        unit++;
    }
    if (unit < 0)
        buf_printf(to, "%.0f", bytes);
    else
        buf_printf(to, bytes < 9.95 ? "%.1f%c" : "%.0f%c", bytes, units[unit]);
}
