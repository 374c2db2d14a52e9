/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files agent and the library's half, one against the other: the agent is a process of its own
 * at the other end of a socket pair, with a directory of the test as its world. What a sandbox adds
 * to it, its root and rights, is not what is tested here.
 */
#include "client/files.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "guest/files.h"
#include "test.h"

static struct rollbox_error error;
static pid_t agent;

/* A connection to a new agent. */
static struct files *connect_agent(void) {
    static struct files files;
    int sockets[2];

    ASSERT_CALL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets));
    agent = fork();
    ASSERT_CALL(agent);
    if (agent == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(sockets[0]);
        files_serve(sockets[1], NULL);
    }
    close(sockets[1]);
    ASSERT_OK(files_init(&files, sockets[0]));
    return &files;
}

static int finish(struct files *files, int r) {
    int status;

    files_done(files);
    ASSERT_EQ(waitpid(agent, &status, 0), agent);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return r;
}

#define CALL(function, ...)                                                                        \
    ({                                                                                             \
        struct files *files_ = connect_agent();                                                    \
        finish(files_, function(files_, __VA_ARGS__, &error));                                     \
    })

/* A path below the test's directory; a few stay valid at a time. */
static const char *at(const char *name) {
    static char paths[8][4200];
    static unsigned n;
    char *path = paths[n++ % 8];

    snprintf(path, sizeof paths[0], "%s/%s", test_directory_in_memory(), name);
    return path;
}

static void put(const char *name, const char *text) {
    auto_close int fd = open(at(name), O_WRONLY | O_CREAT | O_TRUNC, 0644);

    ASSERT_CALL(fd);
    ASSERT_OK(fd_write_all(fd, text, strlen(text)));
}

static void check(const char *name, const char *text) {
    auto_buf struct buf content = BUF_INIT;

    ASSERT_OK(fd_read_file(at(name), 1 << 20, &content));
    ASSERT_STR_EQ(content.data, text);
}

static int read_text(const char *name, uint64_t most, char **ret_text, size_t *ret_length) {
    return CALL(files_read, at(name), most, (void **)ret_text, ret_length);
}

TEST(small_file_is_written_and_read) {
    auto_free char *text = NULL;
    size_t length;
    struct stat st;

    ASSERT_OK(CALL(files_write, at("new/deep/file"), "hello\n", 6, 0600));
    ASSERT_CALL(stat(at("new/deep/file"), &st));
    ASSERT_EQ(st.st_mode & 07777, 0600);
    ASSERT_OK(read_text("new/deep/file", 0, &text, &length));
    ASSERT_MEM_EQ(text, length, "hello\n", 6);
}

TEST(empty_file_is_written_and_read) {
    auto_free char *text = NULL;
    size_t length = 1;

    ASSERT_OK(CALL(files_write, at("empty"), NULL, 0, 0));
    ASSERT_OK(read_text("empty", 0, &text, &length));
    ASSERT_EQ(length, 0);
    ASSERT_NOT_NULL(text);
}

TEST(large_file_is_written_and_read) {
    size_t size = (5u << 20) + 3, length;
    auto_free char *data = malloc(size), *text = NULL;

    for (size_t i = 0; i < size; i++)
        data[i] = (char)(i * 31 + i / 65536);
    ASSERT_OK(CALL(files_write, at("large"), data, size, 0644));
    ASSERT_OK(read_text("large", 0, &text, &length));
    ASSERT_MEM_EQ(text, length, data, size);
}

TEST(reading_more_than_allowed_fails) {
    auto_free char *text = NULL;
    size_t length;

    put("ten", "0123456789");
    ASSERT_ERR(read_text("ten", 9, &text, &length), -EFBIG);
    ASSERT_EQ(error.code, ROLLBOX_ERR_INVALID_ARGUMENT);
    ASSERT_OK(read_text("ten", 10, &text, &length));
    /* One that does not say how long it is. */
    struct files *files = connect_agent();
    char *maps;
    ASSERT_ERR(
        finish(files, files_read(files, "/proc/version", 3, (void **)&maps, &length, &error)),
        -EFBIG);
    files = connect_agent();
    ASSERT_OK(
        finish(files, files_read(files, "/proc/version", 0, (void **)&maps, &length, &error)));
    ASSERT_STR_CONTAINS(maps, "Linux");
    free(maps);
}

TEST(sparse_file_is_read_with_zeros) {
    auto_free char *text = NULL;
    auto_close int fd = open(at("sparse"), O_WRONLY | O_CREAT, 0644);
    size_t length;

    ASSERT_EQ(pwrite(fd, "x", 1, 3 << 20), 1);
    ASSERT_CALL(ftruncate(fd, 8 << 20));
    ASSERT_OK(read_text("sparse", 0, &text, &length));
    ASSERT_EQ(length, 8 << 20);
    ASSERT_EQ(text[3 << 20], 'x');
    ASSERT_EQ(text[(3 << 20) - 1] + text[0] + text[length - 1], 0);
}

TEST(only_regular_files_are_read) {
    auto_free char *text = NULL;
    size_t length;

    ASSERT_CALL(mkfifo(at("fifo"), 0644));
    ASSERT_ERR(read_text("fifo", 0, &text, &length), -EINVAL);
    ASSERT_ERR(read_text("", 0, &text, &length), -EISDIR);
    ASSERT_ERR(read_text("none", 0, &text, &length), -ENOENT);
    ASSERT_EQ(error.code, ROLLBOX_ERR_NOT_FOUND);
    ASSERT_ERR(CALL(files_read, "/dev/zero", 0, (void **)&text, &length), -EINVAL);
    ASSERT_ERR(CALL(files_read, "relative", 0, (void **)&text, &length), -EINVAL);
}

/* Its memory is not to be read by a link that the guest has laid. */
TEST(agent_does_not_open_its_own_memory) {
    auto_free char *text = NULL;
    size_t length;

    if (geteuid() == 0)
        ASSERT_CALL(setresuid(1000, 1000, 1000));
    ASSERT_LT(CALL(files_read, "/proc/self/mem", 0, (void **)&text, &length), 0);
    ASSERT_LT(CALL(files_read, "/proc/self/environ", 0, (void **)&text, &length), 0);
    ASSERT_LT(CALL(files_read, "/proc/self/exe", 0, (void **)&text, &length), 0);
    ASSERT_LT(CALL(files_read, "/proc/self/root/etc/passwd", 0, (void **)&text, &length), 0);
}

TEST(link_at_the_target_is_replaced) {
    struct stat st;

    put("victim", "old");
    ASSERT_CALL(symlink("victim", at("link")));
    ASSERT_OK(CALL(files_write, at("link"), "new", 3, 0));
    check("victim", "old");
    check("link", "new");
    ASSERT_CALL(lstat(at("link"), &st));
    ASSERT_TRUE(S_ISREG(st.st_mode));
    ASSERT_CALL(mkfifo(at("fifo"), 0644));
    ASSERT_OK(CALL(files_write, at("fifo"), "new", 3, 0));
    check("fifo", "new");
}

TEST(directory_at_the_target_is_kept) {
    ASSERT_CALL(mkdir(at("d"), 0755));
    ASSERT_ERR(CALL(files_write, at("d"), "new", 3, 0), -EISDIR);
    ASSERT_ERR(CALL(files_write, "/", "new", 3, 0), -EINVAL);
    ASSERT_ERR(CALL(files_write, at("d/.."), "new", 3, 0), -EINVAL);
}

/* A reader that has the old file open still reads the old content. */
TEST(reader_sees_old_or_new) {
    char text[8] = "";

    put("file", "old");
    auto_close int fd = open(at("file"), O_RDONLY);
    ASSERT_OK(CALL(files_write, at("file"), "newer", 5, 0));
    ASSERT_EQ(read(fd, text, 7), 3);
    ASSERT_STR_EQ(text, "old");
    check("file", "newer");
}

static bool no_temporary(const char *directory) {
    auto_free char *json = NULL;

    ASSERT_OK(CALL(files_list, at(directory), &json));
    return !strstr(json, ".rollbox-");
}

TEST(failed_write_leaves_the_old_file) {
    size_t size = 4u << 20;
    auto_free char *data = calloc(1, size);

    put("file", "old");
    signal(SIGXFSZ, SIG_IGN);
    ASSERT_CALL(setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 1 << 20, 1 << 20 }));
    ASSERT_ERR(CALL(files_write, at("file"), data, size, 0), -EFBIG);
    check("file", "old");
    ASSERT_TRUE(no_temporary(""));
}

TEST(list_and_stat_tell_any_name) {
    auto_free char *json = NULL;

    put("a\nb", "1");
    put("\xff\xfe", "22");
    ASSERT_CALL(symlink("to\xffhere", at("link")));
    ASSERT_OK(CALL(files_list, at(""), &json));
    ASSERT_STR_CONTAINS(json, "{\"name\":\"a\\nb\",\"type\":\"file\",\"size\":1,\"mode\":420,");
    ASSERT_STR_CONTAINS(json, "\"name_base64\":\"//4=\",\"type\":\"file\",\"size\":2,");
    ASSERT_STR_CONTAINS(json, "\"target_base64\":\"dG//aGVyZQ==\"");
    free(TAKE_PTR(json));
    ASSERT_OK(CALL(files_stat, at("link"), false, &json));
    ASSERT_STR_CONTAINS(json, "{\"name\":\"link\",\"type\":\"symlink\"");
    ASSERT_ERR(CALL(files_stat, at("link"), true, &json), -ENOENT);
    ASSERT_ERR(CALL(files_list, at("link"), &json), -ENOENT);
    ASSERT_ERR(CALL(files_list, at("a\nb"), &json), -ENOTDIR);
    ASSERT_FALSE(strchr(error.message, '\n'));
}

TEST(mkdir_makes_parents_and_takes_what_is_there) {
    struct stat st;

    ASSERT_OK(CALL(files_mkdir, at("a/b/c/"), 01750));
    ASSERT_CALL(stat(at("a/b/c"), &st));
    ASSERT_EQ(st.st_mode & 07777, 01750);
    ASSERT_OK(CALL(files_mkdir, at("a/b/c"), 0));
    put("file", "");
    ASSERT_ERR(CALL(files_mkdir, at("file"), 0), -EEXIST);
    ASSERT_ERR(CALL(files_mkdir, at("file/x"), 0), -ENOTDIR);
}

TEST(remove_takes_files_links_and_trees) {
    ASSERT_CALL(mkdir(at("outside"), 0755));
    put("outside/file", "kept");
    ASSERT_OK(CALL(files_mkdir, at("t/a/b"), 0));
    put("t/a/b/f", "");
    ASSERT_CALL(symlink("../outside", at("t/link")));
    ASSERT_CALL(chmod(at("t/a"), 0));
    ASSERT_ERR(CALL(files_remove, at("t"), false), -ENOTEMPTY);
    ASSERT_OK(CALL(files_remove, at("t"), true));
    ASSERT_ERR(CALL(files_remove, at("t"), true), -ENOENT);
    check("outside/file", "kept");
    ASSERT_OK(CALL(files_remove, at("outside/file"), false));
    ASSERT_OK(CALL(files_remove, at("outside"), false));
    ASSERT_ERR(CALL(files_remove, "/", true), -EINVAL);
}

/* Far deeper than there may be open descriptors, or than a path may be long. Time goes with the
 * square. */
#define DEEP 2500

static void make_deep(const char *name, unsigned levels) {
    int fd = open(at(name), O_PATH | O_DIRECTORY);

    for (unsigned i = 0; i < levels; i++) {
        ASSERT_CALL(mkdirat(fd, "d", 0755));
        int inner = openat(fd, "d", O_PATH | O_DIRECTORY);
        close(fd);
        fd = inner;
    }
    int file = openat(fd, "bottom", O_WRONLY | O_CREAT, 0644);
    ASSERT_CALL(file);
    close(file);
    close(fd);
}

static unsigned depth_of(const char *name) {
    int fd = open(at(name), O_PATH | O_DIRECTORY), inner;
    unsigned levels = 0;

    while ((inner = openat(fd, "d", O_PATH | O_DIRECTORY)) >= 0) {
        close(fd);
        fd = inner;
        levels++;
    }
    ASSERT_CALL(faccessat(fd, "bottom", F_OK, 0));
    close(fd);
    return levels;
}

TEST_TIMEOUT(deep_trees_take_no_descriptors, 240) {
    ASSERT_CALL(mkdir(at("from"), 0755));
    make_deep("from", DEEP);
    ASSERT_CALL(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 64, 64 }));
    ASSERT_OK(CALL(files_download, at("from"), at("to")));
    ASSERT_EQ(depth_of("to"), DEEP);
    ASSERT_OK(CALL(files_upload, at("to"), at("again")));
    ASSERT_EQ(depth_of("again"), DEEP);
    ASSERT_OK(CALL(files_remove, at("from"), true));
    ASSERT_OK(CALL(files_remove, at("to"), true));
    ASSERT_OK(CALL(files_remove, at("again"), true));
}

static void make_tree(const char *name) {
    char path[64];
    struct timespec times[2] = { { 1000000000, 5 }, { 1000000000, 123456789 } };

    snprintf(path, sizeof path, "%s/sub/empty", name);
    ASSERT_OK(CALL(files_mkdir, at(path), 0));
    snprintf(path, sizeof path, "%s/one", name);
    put(path, "text");
    ASSERT_CALL(chmod(at(path), 04750));
    ASSERT_CALL(utimensat(AT_FDCWD, at(path), times, 0));
    snprintf(path, sizeof path, "%s/sub/two", name);
    char one[64];
    snprintf(one, sizeof one, "%s/one", name);
    ASSERT_CALL(link(at(one), at(path)));
    snprintf(path, sizeof path, "%s/sub/link", name);
    ASSERT_CALL(symlink("/etc/passwd", at(path)));
    snprintf(path, sizeof path, "%s/sub/fifo", name);
    ASSERT_CALL(mkfifo(at(path), 0644));
    snprintf(path, sizeof path, "%s/sub/sparse", name);
    auto_close int fd = open(at(path), O_WRONLY | O_CREAT, 0644);
    ASSERT_EQ(pwrite(fd, "x", 1, 20 << 20), 1);
    ASSERT_CALL(ftruncate(fd, 64 << 20));
    snprintf(path, sizeof path, "%s/sub", name);
    ASSERT_CALL(chmod(at(path), 0555));
}

static void check_tree(const char *name) {
    char path[64], target[32] = "";
    struct stat st, other;

    snprintf(path, sizeof path, "%s/one", name);
    check(path, "text");
    ASSERT_CALL(lstat(at(path), &st));
    ASSERT_EQ(st.st_mode & 07777, 0750);
    ASSERT_EQ(st.st_mtim.tv_sec, 1000000000);
    ASSERT_EQ(st.st_mtim.tv_nsec, 123456789);
    snprintf(path, sizeof path, "%s/sub/two", name);
    ASSERT_CALL(lstat(at(path), &other));
    ASSERT_EQ(other.st_ino, st.st_ino);
    ASSERT_EQ(other.st_nlink, 2);
    snprintf(path, sizeof path, "%s/sub/link", name);
    ASSERT_EQ(readlink(at(path), target, sizeof target), 11);
    ASSERT_STR_EQ(target, "/etc/passwd");
    snprintf(path, sizeof path, "%s/sub/sparse", name);
    ASSERT_CALL(lstat(at(path), &st));
    ASSERT_EQ(st.st_size, 64 << 20);
    ASSERT_LT(st.st_blocks, 1000);
    snprintf(path, sizeof path, "%s/sub/fifo", name);
    ASSERT_EQ(lstat(at(path), &st), -1);
    snprintf(path, sizeof path, "%s/sub/empty", name);
    ASSERT_CALL(lstat(at(path), &st));
    snprintf(path, sizeof path, "%s/sub", name);
    ASSERT_CALL(lstat(at(path), &st));
    ASSERT_EQ(st.st_mode & 07777, 0555);
    ASSERT_TRUE(no_temporary(path));
    ASSERT_CALL(chmod(at(path), 0755)); /* the harness has to remove it */
}

TEST(trees_go_both_ways) {
    umask(022);
    make_tree("from");
    ASSERT_OK(CALL(files_download, at("from"), at("to")));
    check_tree("to");
    ASSERT_OK(CALL(files_upload, at("from"), at("parents/made/to")));
    check_tree("parents/made/to");
    /* Into what is there. */
    ASSERT_CALL(mkdir(at("there"), 0755));
    put("there/kept", "kept");
    put("there/one", "old");
    ASSERT_OK(CALL(files_download, at("from"), at("there")));
    check_tree("there");
    check("there/kept", "kept");
    ASSERT_CALL(chmod(at("from/sub"), 0755));
}

TEST(single_files_go_into_directories) {
    put("file", "text");
    ASSERT_CALL(mkdir(at("d"), 0755));
    ASSERT_OK(CALL(files_download, at("file"), at("d")));
    check("d/file", "text");
    ASSERT_OK(CALL(files_download, at("file"), at("other")));
    check("other", "text");
    ASSERT_OK(CALL(files_upload, at("file"), at("d/e/f")));
    check("d/e/f", "text");
    ASSERT_OK(CALL(files_upload, at("file"), at("d/e")));
    check("d/e/file", "text");
    ASSERT_ERR(CALL(files_upload, at("none"), at("d")), -ENOENT);
    ASSERT_ERR(CALL(files_download, at("none"), at("d")), -ENOENT);
    ASSERT_ERR(CALL(files_download, at("file"), at("missing/x")), -ENOENT);
    ASSERT_CALL(mkfifo(at("fifo"), 0644));
    ASSERT_ERR(CALL(files_download, at("fifo"), at("d")), -EINVAL);
    ASSERT_ERR(CALL(files_upload, at("fifo"), at("d")), -EINVAL);
}

TEST(umask_holds_for_what_is_downloaded) {
    struct stat st;

    ASSERT_CALL(mkdir(at("from"), 0777));
    put("from/file", "");
    ASSERT_CALL(chmod(at("from/file"), 0777));
    umask(027);
    ASSERT_OK(CALL(files_download, at("from"), at("to")));
    ASSERT_CALL(stat(at("to/file"), &st));
    ASSERT_EQ(st.st_mode & 07777, 0750);
}

/* What a first download has left must not lead a second one away. */
TEST(link_in_the_way_of_a_download_is_not_followed) {
    ASSERT_OK(CALL(files_mkdir, at("from/d"), 0));
    put("from/d/file", "planted");
    ASSERT_CALL(mkdir(at("outside"), 0755));
    ASSERT_CALL(mkdir(at("to"), 0755));
    ASSERT_CALL(symlink("../outside", at("to/d")));
    ASSERT_ERR(CALL(files_download, at("from"), at("to")), -ENOTDIR);
    ASSERT_STR_CONTAINS(error.message, "/d");
    ASSERT_EQ(access(at("outside/file"), F_OK), -1);
    /* In the sandbox what was planted gives way. */
    ASSERT_OK(CALL(files_upload, at("from"), at("to")));
    check("to/d/file", "planted");
    ASSERT_EQ(access(at("outside/file"), F_OK), -1);
}

TEST(unreadable_entries_are_skipped_and_reported) {
    if (geteuid() == 0)
        ASSERT_CALL(chmod(test_directory_in_memory(), 0777));
    if (geteuid() == 0)
        ASSERT_CALL(setresuid(1000, 1000, 1000));
    ASSERT_OK(CALL(files_mkdir, at("from/closed"), 0));
    put("from/a", "a");
    put("from/secret", "s");
    ASSERT_CALL(chmod(at("from/secret"), 0));
    ASSERT_CALL(chmod(at("from/closed"), 0));
    ASSERT_ERR(CALL(files_download, at("from"), at("to")), -EACCES);
    ASSERT_EQ(error.code, ROLLBOX_ERR_PATH_DENIED);
    ASSERT_STR_CONTAINS(error.message, "2 entries");
    check("to/a", "a");
    ASSERT_ERR(CALL(files_upload, at("from"), at("up")), -EACCES);
    check("up/a", "a");
    ASSERT_CALL(chmod(at("from/closed"), 0700));
}

static int stop_early(uint64_t bytes, uint64_t files, void *userdata) {
    (void)files;
    return bytes >= *(uint64_t *)userdata;
}

TEST(progress_can_end_a_transfer) {
    uint64_t limit = 2 << 20;
    auto_free char *data = calloc(1, 8 << 20);

    ASSERT_CALL(mkdir(at("from"), 0755));
    ASSERT_OK(CALL(files_write, at("from/large"), data, 8 << 20, 0));
    struct files *files = connect_agent();
    files->progress = stop_early;
    files->userdata = &limit;
    ASSERT_ERR(finish(files, files_download(files, at("from"), at("to"), &error)), -ECANCELED);
    ASSERT_EQ(error.code, ROLLBOX_ERR_CANCELLED);
    ASSERT_TRUE(no_temporary("to"));
    files = connect_agent();
    files->progress = stop_early;
    files->userdata = &limit;
    ASSERT_ERR(finish(files, files_upload(files, at("from"), at("up"), &error)), -ECANCELED);
    ASSERT_TRUE(no_temporary("up"));
}

TEST(upload_that_fails_early_says_why) {
    auto_free char *data = calloc(1, 8 << 20);

    ASSERT_CALL(mkdir(at("from"), 0755));
    ASSERT_OK(CALL(files_write, at("from/large"), data, 8 << 20, 0));
    signal(SIGXFSZ, SIG_IGN);
    ASSERT_CALL(setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 1 << 20, 1 << 20 }));
    ASSERT_ERR(CALL(files_upload, at("from"), at("up")), -EFBIG);
    ASSERT_STR_CONTAINS(error.message, "up/large");
    ASSERT_TRUE(no_temporary("up"));
}

TEST(stopped_agent_is_given_up) {
    struct files *files = connect_agent();
    char *json;

    files->transfer->timeout_ms = 50;
    kill(agent, SIGSTOP);
    ASSERT_ERR(files_stat(files, "/", true, &json, &error), -ETIMEDOUT);
    ASSERT_EQ(error.code, ROLLBOX_ERR_IO);
    files_done(files);
    kill(agent, SIGKILL);
    /* Also while it is being sent to. */
    auto_free char *data = calloc(1, 8 << 20);
    files = connect_agent();
    files->transfer->timeout_ms = 50;
    kill(agent, SIGSTOP);
    ASSERT_ERR(files_write(files, at("x"), data, 8 << 20, 0, &error), -ETIMEDOUT);
    files_done(files);
    kill(agent, SIGKILL);
}

TEST(killed_agent_is_an_error) {
    struct files *files = connect_agent();
    auto_free char *data = calloc(1, 8 << 20);
    char *json;

    kill(agent, SIGKILL);
    waitpid(agent, NULL, 0);
    ASSERT_ERR(files_stat(files, "/", true, &json, &error), -ECONNRESET);
    ASSERT_ERR(files_write(files, at("x"), data, 8 << 20, 0, &error), -ECONNRESET);
    files_done(files);
}

/* A process swaps a directory for a link all the while. */
TEST_TIMEOUT(swapped_directory_leads_nowhere, 120) {
    ASSERT_OK(CALL(files_mkdir, at("from/d"), 0));
    put("from/d/file", "uploaded");
    ASSERT_CALL(mkdir(at("outside"), 0755));
    put("outside/file", "kept");
    ASSERT_OK(CALL(files_mkdir, at("to/d"), 0));
    pid_t swapper = fork();
    if (swapper == 0) {
        const char *d = at("to/d"), *away = at("to/away");

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) {
            (void)!rename(d, away);
            (void)!symlink("../outside", d);
            (void)!unlink(d);
            (void)!rename(away, d);
        }
    }
    for (int i = 0; i < 300; i++) {
        auto_free char *json = NULL;
        auto_free void *data = NULL;
        size_t length;

        (void)CALL(files_upload, at("from"), at("to"));
        check("outside/file", "kept");
        (void)CALL(files_download, at("to"), at("back"));
        (void)CALL(files_list, at("to/d"), &json);
        if (CALL(files_read, at("to/d/file"), 0, &data, &length) == 0)
            ASSERT_TRUE(length == 8 || length == 4);
    }
    kill(swapper, SIGKILL);
    ASSERT_EQ(waitpid(swapper, NULL, 0), swapper);
}

TEST_TIMEOUT(many_files, 120) {
    char name[64];

    ASSERT_CALL(mkdir(at("from"), 0755));
    for (int i = 0; i < 10000; i++) {
        snprintf(name, sizeof name, "from/%d", i % 100);
        if (i < 100)
            ASSERT_CALL(mkdir(at(name), 0755));
        snprintf(name, sizeof name, "from/%d/%d", i % 100, i);
        put(name, name);
    }
    ASSERT_OK(CALL(files_download, at("from"), at("to")));
    ASSERT_OK(CALL(files_upload, at("to"), at("up")));
    for (int i = 0; i < 10000; i++) {
        char text[64];

        snprintf(name, sizeof name, "up/%d/%d", i % 100, i);
        snprintf(text, sizeof text, "from/%d/%d", i % 100, i);
        check(name, text);
    }
    ASSERT_OK(CALL(files_remove, at("up"), true));
}

TEST_TIMEOUT(hard_links_beyond_the_table_become_copies, 120) {
    char name[64], other[64];
    struct stat st;

    ASSERT_OK(CALL(files_mkdir, at("from/a"), 0));
    ASSERT_OK(CALL(files_mkdir, at("from/b"), 0));
    for (unsigned i = 0; i < TRANSFER_LINKS_MAX + 50; i++) {
        snprintf(name, sizeof name, "from/a/%u", i);
        snprintf(other, sizeof other, "from/b/%u", i);
        put(name, name);
        ASSERT_CALL(link(at(name), at(other)));
    }
    ASSERT_OK(CALL(files_download, at("from"), at("to")));
    unsigned linked = 0;
    for (unsigned i = 0; i < TRANSFER_LINKS_MAX + 50; i++) {
        snprintf(name, sizeof name, "to/b/%u", i);
        snprintf(other, sizeof other, "from/a/%u", i);
        check(name, other);
        ASSERT_CALL(stat(at(name), &st));
        linked += st.st_nlink == 2;
    }
    ASSERT_EQ(linked, TRANSFER_LINKS_MAX);
}
