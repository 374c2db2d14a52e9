/* SPDX-License-Identifier: Apache-2.0 */
/* Users and groups, as files name them that a guest may have written. */
#include "base/passwd.h"
#include "test.h"

static struct passwd_text text(const char *value) {
    return (struct passwd_text){ value, strlen(value) };
}

static const char users[] =
    "\n:::\nroot:x:0:0:root:/root:/bin/sh\nbad:x:-1:0::/:\nhuge:x:4294967296:0::/:\n"
    "short:x:1:1\nann:x:1000:100:,,,:/home/ann\nann:x:7:7::/:/bin/sh\n"
    "last:x:65535:1::/last:/bin/sh";
static const char groups[] =
    "root:x:0:\nstaff:x:50:bob,ann\nnone:x:x:ann\nwheel:x:10:ann\nannex:x:11:annex";

TEST(user_by_name_is_the_first) {
    struct passwd_user user;

    ASSERT_TRUE(passwd_by_name(text(users), text("ann"), &user));
    ASSERT_EQ(user.uid, 1000);
    ASSERT_EQ(user.gid, 100);
    ASSERT_MEM_EQ(user.home.data, user.home.length, "/home/ann", 9);
    ASSERT_TRUE(passwd_by_name(text(users), text("last"), &user));
    ASSERT_EQ(user.uid, 65535);
}

TEST(lines_of_another_form_are_passed_over) {
    static const char *const none[] = { "bad", "huge", "short", "", "an", "annx", "ann:x" };
    struct passwd_user user;

    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        ASSERT_FALSE(passwd_by_name(text(users), text(none[i]), &user));
    ASSERT_FALSE(passwd_by_name(text(""), text("root"), &user));
}

TEST(user_by_id) {
    struct passwd_user user;

    ASSERT_TRUE(passwd_by_uid(text(users), 7, &user));
    ASSERT_MEM_EQ(user.name.data, user.name.length, "ann", 3);
    ASSERT_FALSE(passwd_by_uid(text(users), 8, &user));
}

TEST(groups_of_a_user) {
    uint32_t found[PASSWD_GROUPS], gid;

    ASSERT_EQ(passwd_groups_of(text(groups), text("ann"), found), 2);
    ASSERT_EQ(found[0], 50);
    ASSERT_EQ(found[1], 10);
    ASSERT_TRUE(passwd_group(text(groups), text("wheel"), &gid));
    ASSERT_EQ(gid, 10);
    ASSERT_FALSE(passwd_group(text(groups), text("none"), &gid));
}

TEST(numbers_are_whole_and_in_range) {
    static const char *const none[] = { "", "+1", "-1", " 1", "1 ", "0x1", "65536", "99999999999" };
    uint32_t number;

    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        ASSERT_FALSE(passwd_number(text(none[i]), &number));
    ASSERT_TRUE(passwd_number(text("65535"), &number));
    ASSERT_EQ(number, 65535);
}
