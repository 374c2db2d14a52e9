/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "net/recorder.h"
#include "net/recording.h"
#include "test.h"

static int new_file(void) {
    int fd = memfd_create("recording", MFD_CLOEXEC);

    ASSERT_OK(fcntl(fd, F_SETFL, O_APPEND | O_RDWR));
    ASSERT_OK(fd_write_all(fd, RECORDING_FIRST_LINE, strlen(RECORDING_FIRST_LINE)));
    return fd;
}

static struct recording *read_back(const struct recorder *recorder) {
    auto_buf struct buf text = BUF_INIT;
    struct recording *recording = NULL;

    ASSERT_OK(fd_read_again(recorder->fd, RECORDING_MAX_BYTES, &text));
    ASSERT_OK(recording_read(text.data, text.length, &recording));
    return recording;
}

static void record_http(struct recorder *recorder, const char *target, const char *answer) {
    struct recorded_exchange exchange = { 0 };

    recorder_begin(&exchange, recorder, "a.org", 443, "GET", target);
    recorder_request(&exchange, "sha256:0");
    recorder_bytes(&exchange, false, answer, strlen(answer));
    recorder_end(&exchange);
}

static const char *take(struct recording *recording, const char *target) {
    struct recorded *found =
        recording_take_http(recording, "a.org", 443, "GET", target, "sha256:0");
    static char text[1024];

    if (!found)
        return NULL;
    memcpy(text, found->pieces[0].data, found->pieces[0].length);
    text[found->pieces[0].length] = 0;
    return text;
}

TEST(requests_get_their_answers_in_order) {
    struct recorder recorder;

    recorder_init(&recorder, new_file());
    record_http(&recorder, "/a", "first");
    record_http(&recorder, "/b", "other");
    record_http(&recorder, "/a", "second");
    struct recording *recording = read_back(&recorder);
    ASSERT_STR_EQ(take(recording, "/a"), "first");
    ASSERT_STR_EQ(take(recording, "/a"), "second");
    ASSERT_NULL(take(recording, "/a"));
    ASSERT_STR_EQ(take(recording, "/b"), "other");
    ASSERT_NULL(take(recording, "/c"));
    recording_free(recording);
    recorder_done(&recorder);
}

TEST(secrets_are_masked_wherever_the_pieces_end) {
    static const char secrets[] = "name\0s3cret\0other\0abc\0";
    static const char text[] = "x s3cret y abc s3cre s3crets3cret";
    struct recorder recorder;

    recorder_init(&recorder, new_file());
    recorder_set_secrets(&recorder, secrets);
    for (size_t piece = 1; piece < sizeof text; piece++) {
        struct recorded_exchange exchange = { 0 };

        recorder_begin(&exchange, &recorder, "a.org", 443, "GET", "/");
        recorder_request(&exchange, "sha256:0");
        for (size_t at = 0; at < sizeof text - 1; at += piece)
            recorder_bytes(&exchange, false, text + at, MIN(piece, sizeof text - 1 - at));
        recorder_end(&exchange);
    }
    struct recording *recording = read_back(&recorder);
    for (size_t piece = 1; piece < sizeof text; piece++)
        ASSERT_STR_EQ(take(recording, "/"), "x ****** y *** s3cre ************");
    recording_free(recording);
    recorder_done(&recorder);
}

TEST(a_secret_over_two_lines_is_masked) {
    static const char secrets[] = "name\0s3cret\0";
    struct recorder recorder;
    struct recorded_exchange exchange = { 0 };
    auto_buf struct buf text = BUF_INIT, seen = BUF_INIT;

    recorder_init(&recorder, new_file());
    recorder_set_secrets(&recorder, secrets);
    while (text.length < (100u << 10))
        buf_add_text(&text, "s3cret.");
    recorder_begin(&exchange, &recorder, "a.org", 443, "GET", "/");
    recorder_request(&exchange, "sha256:0");
    for (size_t at = 0; at < text.length; at += 1000)
        recorder_bytes(&exchange, false, text.data + at, MIN((size_t)1000, text.length - at));
    recorder_end(&exchange);
    struct recording *recording = read_back(&recorder);
    struct recorded *found = recording_take_http(recording, "a.org", 443, "GET", "/", "sha256:0");
    ASSERT_NOT_NULL(found);
    ASSERT_GT(found->n_pieces, 1);
    for (size_t i = 0; i < found->n_pieces; i++)
        buf_add(&seen, found->pieces[i].data, found->pieces[i].length);
    ASSERT_EQ(seen.length, text.length);
    ASSERT_NULL(strstr(seen.data, "s3c"));
    recording_free(recording);
    recorder_done(&recorder);
}

TEST(exchanges_without_an_end_and_torn_lines_do_not_count) {
    struct recorder recorder;
    struct recorded_exchange exchange = { 0 };

    recorder_init(&recorder, new_file());
    recorder_begin(&exchange, &recorder, "a.org", 443, "GET", "/cut");
    recorder_request(&exchange, "sha256:0");
    recorder_drop(&exchange);
    ASSERT_OK(fd_write_all(recorder.fd, "{\"id\":\"torn", 11));
    recorder.is_torn = true;
    record_http(&recorder, "/whole", "yes");
    struct recording *recording = read_back(&recorder);
    ASSERT_NULL(take(recording, "/cut"));
    ASSERT_STR_EQ(take(recording, "/whole"), "yes");
    recording_free(recording);
    recorder_done(&recorder);
}

TEST(a_full_recording_loses_whole_exchanges) {
    struct recorder recorder;
    struct recorded_exchange exchange = { 0 };

    recorder_init(&recorder, new_file());
    record_http(&recorder, "/fits", "yes");
    recorder_begin(&exchange, &recorder, "a.org", 443, "GET", "/large");
    recorder_request(&exchange, "sha256:0");
    ASSERT_OK(ftruncate(recorder.fd, RECORDING_MAX_BYTES));
    recorder_bytes(&exchange, false, "no", 2);
    recorder_end(&exchange);
    ASSERT_EQ(recorder.n_lost, 1);
    struct recording *recording = read_back(&recorder);
    ASSERT_STR_EQ(take(recording, "/fits"), "yes");
    ASSERT_NULL(take(recording, "/large"));
    recording_free(recording);
    recorder_done(&recorder);
}

TEST(other_files_are_no_recordings) {
    struct recording *recording = NULL;

    ASSERT_ERR(recording_read("", 0, &recording), -EBADMSG);
    ASSERT_ERR(recording_read("{\"rollbox_recording\":2}\n", 24, &recording), -EBADMSG);
}

static const char timing[] = RECORDING_FIRST_LINE
    "{\"id\":\"a\",\"begin\":\"stream\",\"host\":\"d\",\"port\":1}\n" /* one, hello, two, bye */
    "{\"id\":\"a\",\"up\":\"b25l\"}\n{\"id\":\"a\",\"down\":\"aGVsbG8=\"}\n"
    "{\"id\":\"a\",\"up\":\"dHdv\"}\n{\"id\":\"a\",\"down\":\"Ynll\"}\n"
    "{\"id\":\"a\",\"down_end\":true}\n{\"id\":\"a\",\"end\":true}\n"
    "{\"id\":\"b\",\"begin\":\"stream\",\"host\":\"d\",\"port\":1}\n" /* hello, six */
    "{\"id\":\"b\",\"down\":\"aGVsbG8=\"}\n{\"id\":\"b\",\"up\":\"c2l4\"}\n"
    "{\"id\":\"b\",\"end\":true}\n";

static void expect_server(struct replay *replay, const char *want) {
    const char *data = "";
    size_t n = replay_server(replay, &data);

    ASSERT_MEM_EQ(data, n, want, strlen(want));
    replay_sent(replay, n);
}

TEST(which_side_spoke_first_does_not_matter) {
    struct recording *recording = NULL;
    struct replay replay;

    ASSERT_OK(recording_read(timing, sizeof timing - 1, &recording));
    replay_init(&replay, recording, "d", 1);
    /* The second stream began with its server, the first with its guest. */
    expect_server(&replay, "hello");
    ASSERT_EQ(replay_guest(&replay, "one", 3), 3);
    expect_server(&replay, "");
    ASSERT_EQ(replay_guest(&replay, "tw", 2), 2);
    expect_server(&replay, "");
    ASSERT_EQ(replay_guest(&replay, "o", 1), 1);
    expect_server(&replay, "bye");
    ASSERT_TRUE(replay_server_ends(&replay));
    ASSERT_TRUE(replay_is_over(&replay));
    ASSERT_ERR(replay_guest(&replay, "x", 1), -ENOENT);
    /* The other stream is free again, and its guest is ahead of the server. */
    replay_init(&replay, recording, "d", 1);
    ASSERT_EQ(replay_guest(&replay, "six", 3), 3);
    expect_server(&replay, "hello");
    recording_free(recording);
}
