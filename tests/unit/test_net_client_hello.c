/* SPDX-License-Identifier: Apache-2.0 */
#include "net/client_hello.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "test.h"

static void put(struct buf *to, size_t value, unsigned bytes) {
    while (bytes-- > 0)
        buf_add(to, &(uint8_t){ (uint8_t)(value >> (8 * bytes)) }, 1);
}

static void put_extension(struct buf *to, unsigned type, const void *data, size_t length) {
    put(to, type, 2);
    put(to, length, 2);
    buf_add(to, data, length);
}

static void put_name(struct buf *to, const char *name) {
    auto_buf struct buf list = BUF_INIT;

    put(&list, strlen(name) + 3, 2);
    put(&list, 0, 1);
    put(&list, strlen(name), 2);
    buf_add_text(&list, name);
    put_extension(to, 0, list.data, list.length);
}

/* A handshake message with these extensions. */
static void put_hello(struct buf *to, const struct buf *extensions) {
    static const uint8_t random[32] = { 7 };

    put(to, 1, 1);
    put(to, 2 + 32 + 1 + 4 + 2 + 2 + extensions->length, 3);
    put(to, 0x303, 2);
    buf_add(to, random, sizeof random);
    put(to, 0, 1);
    put(to, 2, 2);
    put(to, 0x1301, 2);
    put(to, 1, 1);
    put(to, 0, 1);
    put(to, extensions->length, 2);
    buf_add(to, extensions->data, extensions->length);
}

/* The message in records of at most `size` bytes. */
static void put_records(struct buf *to, const struct buf *message, size_t size) {
    for (size_t at = 0; at < message->length; at += size) {
        size_t here = MIN(size, message->length - at);

        put(to, 22, 1);
        put(to, 0x301, 2);
        put(to, here, 2);
        buf_add(to, message->data + at, here);
    }
}

static int read_extensions(const struct buf *extensions, size_t size, struct client_hello *hello) {
    auto_buf struct buf message = BUF_INIT;
    auto_buf struct buf wire = BUF_INIT;

    put_hello(&message, extensions);
    put_records(&wire, &message, size);
    for (size_t length = 0; length < wire.length; length++)
        ASSERT_ERR(client_hello_read(wire.data, length, hello), -EAGAIN);
    /* What follows is not looked at. */
    buf_add_text(&wire, "early data");
    return client_hello_read(wire.data, wire.length, hello);
}

TEST(name_is_read_at_any_split_into_records) {
    auto_buf struct buf extensions = BUF_INIT;
    struct client_hello hello;

    put_extension(&extensions, 0x0a0a, "x", 1);
    put_name(&extensions, "PyPI.org.");
    put_extension(&extensions, 16, "\0\3\2h2", 5);
    for (size_t size = 1; size < 100; size++) {
        ASSERT_OK(read_extensions(&extensions, size, &hello));
        ASSERT_STR_EQ(hello.name, "pypi.org");
        ASSERT_FALSE(hello.has_ech);
    }
}

TEST(missing_name_and_ech_are_seen) {
    auto_buf struct buf extensions = BUF_INIT;
    struct client_hello hello;

    ASSERT_OK(read_extensions(&extensions, 16384, &hello));
    ASSERT_STR_EQ(hello.name, "");
    put_name(&extensions, "a.org");
    put_extension(&extensions, 0xfe0d, "x", 1);
    ASSERT_OK(read_extensions(&extensions, 16384, &hello));
    ASSERT_TRUE(hello.has_ech);
}

TEST(two_names_are_refused) {
    auto_buf struct buf extensions = BUF_INIT, list = BUF_INIT;
    struct client_hello hello;

    put_name(&extensions, "a.org");
    put_name(&extensions, "b.org");
    ASSERT_ERR(read_extensions(&extensions, 16384, &hello), -EBADMSG);
    buf_done(&extensions);
    put_extension(&extensions, 0, "\0\x0c\0\0\3a.b\0\0\3c.d", 14);
    ASSERT_ERR(read_extensions(&extensions, 16384, &hello), -EBADMSG);
}

TEST(malformed_names_are_refused) {
    static const char *const names[] = { "", "." };
    struct client_hello hello;

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        auto_buf struct buf extensions = BUF_INIT;

        put_name(&extensions, names[i]);
        ASSERT_ERR(read_extensions(&extensions, 16384, &hello), -EBADMSG);
    }
    auto_buf struct buf extensions = BUF_INIT;
    put_extension(&extensions, 0, "\0\6\0\0\3a\0b", 8);
    ASSERT_ERR(read_extensions(&extensions, 16384, &hello), -EBADMSG);
}

TEST(long_hello_is_refused_before_it_has_come) {
    static uint8_t wire[CLIENT_HELLO_WIRE] = { 22, 3, 1, 0x40, 0, 1, 0, 0x44, 0 };
    struct client_hello hello;

    ASSERT_ERR(client_hello_read(wire, 8, &hello), -EAGAIN);
    ASSERT_ERR(client_hello_read(wire, 9, &hello), -EMSGSIZE);
    for (size_t i = 0; i + 6 <= sizeof wire; i += 6)
        memcpy(wire + i, "\x16\x03\x01\x00\x01", 5);
    wire[5] = 1;
    wire[17] = 0x3f; /* 16,128 bytes, one in each record */
    ASSERT_ERR(client_hello_read(wire, 600, &hello), -EAGAIN);
    ASSERT_ERR(client_hello_read(wire, sizeof wire, &hello), -EMSGSIZE);
}

TEST(other_protocols_are_refused) {
    struct client_hello hello;

    ASSERT_ERR(client_hello_read("", 0, &hello), -EAGAIN);
    ASSERT_ERR(client_hello_read("G", 1, &hello), -EBADMSG);
    ASSERT_ERR(client_hello_read("\x16\x02", 2, &hello), -EBADMSG);
    ASSERT_ERR(client_hello_read("\x16\x03\x01\x00\x00", 5, &hello), -EBADMSG);
    ASSERT_ERR(client_hello_read("\x16\x03\x01\x40\x01", 5, &hello), -EBADMSG);
    ASSERT_ERR(client_hello_read("\x16\x03\x01\x00\x04\x02", 6, &hello), -EBADMSG);
    ASSERT_ERR(client_hello_read("\x16\x03\x01\x00\x01\x01\x17", 7, &hello), -EBADMSG);
}
