/* SPDX-License-Identifier: Apache-2.0 */
#include "base/size_text.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "test.h"

/* tests/integration/test_size_text.py has Python's function give the same. */
static const struct {
    double bytes;
    const char *text;
} cases[] = {
    { 0, "0" },
    { 1, "1" },
    { 999, "999" },
    { 1000, "1.0K" },
    { 1023, "1.0K" },
    { 1024, "1.0K" },
    { 10188, "9.9K" },
    { 10240, "10K" },
    { 1022464, "998K" },
    { 1023487, "999K" },
    { 1023488, "1.0M" },
    { 1048576, "1.0M" },
    { 35651584, "34M" },
    { 1073741824, "1.0G" },
    { 5497558138880, "5.0T" },
    { 1125899906842624, "1.0P" },
    { 9223372036854775807, "8.0E" },
};

TEST(sizes_have_three_figures_at_most) {
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        auto_buf struct buf text = BUF_INIT;

        size_text_add(&text, cases[i].bytes);
        ASSERT_STR_EQ(text.data, cases[i].text);
    }
}
