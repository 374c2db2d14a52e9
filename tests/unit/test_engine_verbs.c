/* SPDX-License-Identifier: Apache-2.0 */
/* The table of verbs: which requests are refused, and that each is answered exactly once. The
 * client is a socket of the test; there is no sandbox and no launcher. */
#include "test.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/wire.h"
#include "engine/core/client.h"
#include "engine/core/context.h"
#include "engine/core/sender.h"
#include "engine/core/verb_names.h"
#include "engine/protocol.h"
#include "engine/server/verbs.h"

static struct engine engine;
static struct client client;
static int client_end = -EBADF;

static void begin(void) {
    struct list *lists[] = { &engine.server.clients, &engine.boxes.all, &engine.profiles.all,
        &engine.runs.all, &engine.runs.turns, &engine.sessions.all, &engine.results.all,
        &engine.outputs.streams, &engine.outputs.drains, &engine.copies, &client.runs,
        &client.sessions, &client.queue, &client.in_turns };
    int ends[2];

    for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
        list_init(lists[i]);
    for (size_t i = 0; i < ARRAY_SIZE(engine.sessions.by_name); i++)
        list_init(&engine.sessions.by_name[i]);
    engine.stored.was_searched = true;
    ASSERT_OK(loop_new(&engine.loop));
    ASSERT_CALL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends));
    client.engine = &engine;
    client.fd = client.source.fd = ends[0];
    client_end = ends[1];
    sender_init(&client.sender, engine.loop, &client.source, NULL);
}

/* Carries out the request. The type of its one answer; of FAILED, the text of the error is in
 * `ret_text`, which may be NULL. */
static uint16_t answer_of(struct buf *request, char *ret_text, size_t size) {
    static struct wire_message message;
    struct wire_field field;
    size_t position = 0;

    ASSERT_OK(wire_send(client_end, request, NULL, 0));
    ASSERT_EQ(wire_receive(client.fd, &message), 1);
    verbs_request(&client, &message);
    wire_message_done(&message);
    ASSERT_EQ(wire_receive(client_end, &message), 1);
    ASSERT_EQ(message.header.serial, 7u);
    const uint16_t type = (uint16_t)message.header.type;
    while (ret_text && wire_next(message.data, message.length, &position, &field) > 0)
        if (field.tag == TAG_ERROR_MESSAGE)
            (void)snprintf(ret_text, size, "%.*s", (int)field.length, (const char *)field.data);
    wire_message_done(&message);
    ASSERT_LE(wire_receive(client_end, &message), 0); /* and no second one */
    return type;
}

static void begin_request(struct buf *request, uint64_t verb) {
    wire_begin(request, PROTOCOL_SANDBOX, 7);
    wire_add_u64(request, TAG_VERB, verb);
}

TEST(unknown_verbs_are_refused) {
    const uint64_t unknown[] = { VERB_NONE, VERB_END, VERB_END + 1, UINT32_MAX, UINT64_MAX };
    char text[200] = "";

    begin();
    for (size_t i = 0; i < ARRAY_SIZE(unknown); i++) {
        auto_buf struct buf request = BUF_INIT;

        begin_request(&request, unknown[i]);
        ASSERT_EQ(answer_of(&request, text, sizeof text), PROTOCOL_FAILED);
        ASSERT_STR_CONTAINS(text, "does not know the request");
    }
}

TEST(unknown_fields_are_refused) {
    auto_buf struct buf request = BUF_INIT;
    char text[200] = "";

    begin();
    begin_request(&request, VERB_LIST);
    wire_add_u64(&request, 0x7fff, 1);
    ASSERT_EQ(answer_of(&request, text, sizeof text), PROTOCOL_FAILED);
    ASSERT_STR_CONTAINS(text, "a field that this engine does not know");
}

TEST(every_verb_answers_a_request_without_fields_once) {
    begin();
    for (unsigned verb = VERB_NONE + 1; verb < VERB_END; verb++) {
        auto_buf struct buf request = BUF_INIT;
        const bool needs_nothing = verb == VERB_LIST || verb == VERB_DEBUG || verb == VERB_STATS;

        begin_request(&request, verb);
        const uint16_t type = answer_of(&request, NULL, 0);
        if (type != (needs_nothing ? PROTOCOL_TEXT : PROTOCOL_FAILED))
            FAIL("%s: an answer of type %u", verb_name((enum protocol_verb)verb), type);
    }
    ASSERT_EQ(engine.sessions.n, 0u);
}
