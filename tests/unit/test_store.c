/* SPDX-License-Identifier: Apache-2.0 */
/* The store as its readers see it: names, manifests, locks, damage; and what rollbox-store computes
 * by itself: digests, trees, unified diffs. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "store/delta.h"
#include "store/digest.h"
#include "store/files.h"
#include "store/layer.h"
#include "store/store.h"
#include "store/textdiff.h"
#include "store/unpack.h"
#include "test.h"

#define ID_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define ID_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

static void write_file(const char *path, const char *text) {
    int fd = (int)ASSERT_CALL(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));

    ASSERT_OK(fd_write_all(fd, text, strlen(text)));
    close(fd);
}

/* ---- names and manifests ---- */

TEST(names_of_images) {
    static const char *const good[] = { "a", "python:3.12", "docker.io/library/python:3.12-slim",
        "a@sha256", "A_b+c" };
    static const char *const bad[] = { "", ".a", "/a", "a/", "a//b", "a/../b", "a/.b", "-a", "a b",
        "a\nb", "a%b", "snapshot:a", "\xc3\xa9" };
    char longest[MANIFEST_MAX_NAME + 2];

    for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
        auto_free char *file = manifest_file_name(good[i]);
        auto_free char *back = manifest_name_of_file(file);

        ASSERT_TRUE(manifest_name_ok(good[i]));
        ASSERT_NULL(strchr(file, '/'));
        ASSERT_STR_EQ(back, good[i]);
    }
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        if (manifest_name_ok(bad[i]))
            FAIL("%s is taken for a name", bad[i]);
    memset(longest, 'a', sizeof longest);
    longest[MANIFEST_MAX_NAME + 1] = '\0';
    ASSERT_FALSE(manifest_name_ok(longest));
    longest[MANIFEST_MAX_NAME] = '\0';
    ASSERT_TRUE(manifest_name_ok(longest));
    ASSERT_NULL(manifest_name_of_file(".json"));
    ASSERT_NULL(manifest_name_of_file("a"));
}

static int parse(const char *text, enum manifest_kind kind, struct manifest *manifest,
    struct rollbox_error *error) {
    return manifest_parse(text, strlen(text), kind, manifest, error);
}

#define IMAGE                                                                                      \
    "{\"version\":1,\"kind\":\"image\",\"name\":\"a/b:1\",\"created\":7,\"layers\":[\"" ID_A       \
    "\",\"" ID_B                                                                                   \
    "\"],\"config\":{\"env\":[\"A=1\"],\"cwd\":\"/x\",\"user\":\"u\",\"entrypoint\":[\"/"          \
    "e\"],\"cmd\":[\"c\",\"d\"],\"architecture\":\"amd64\"}}"

TEST(manifest_there_and_back) {
    struct manifest manifest, again;

    ASSERT_OK(parse(IMAGE, MANIFEST_IMAGE, &manifest, NULL));
    ASSERT_EQ(manifest.n_layers, 2);
    ASSERT_STR_EQ(manifest.layers[1], ID_B);
    ASSERT_STR_EQ(manifest.cmd[1], "d");
    ASSERT_NULL(manifest.cmd[2]);
    auto_free char *text = manifest_text(&manifest);
    ASSERT_OK(parse(text, MANIFEST_IMAGE, &again, NULL));
    ASSERT_STR_EQ(again.name, "a/b:1");
    ASSERT_STR_EQ(again.env[0], "A=1");
    ASSERT_STR_EQ(again.cwd, "/x");
    ASSERT_EQ(again.created_s, 7);
    manifest_done(&manifest);
    manifest_done(&again);
}

TEST(manifests_that_are_refused) {
    static const struct {
        const char *text, *says;
    } bad[] = {
        { "", "not valid JSON" },
        { "[]", "\"version\"" },
        { "{\"version\":2}", "\"version\"" },
        { "{\"version\":1,\"kind\":\"snapshot\"}", "\"kind\"" },
        { "{\"version\":1,\"kind\":\"image\",\"name\":\"../a\"}", "\"name\"" },
        { "{\"version\":1,\"kind\":\"image\",\"name\":\"a\"}", "\"layers\"" },
        { "{\"version\":1,\"kind\":\"image\",\"name\":\"a\",\"layers\":[]}", "\"layers\"" },
        { "{\"version\":1,\"kind\":\"image\",\"name\":\"a\",\"layers\":[\"../../etc\"]}",
            "\"layers\"" },
        { "{\"version\":1,\"kind\":\"image\",\"name\":\"a\",\"layers\":[7]}", "\"layers\"" },
        { "{\"version\":1,\"kind\":\"image\",\"name\":\"a\",\"layers\":[\"" ID_A
          "\"],\"config\":{\"env\":[\"=\"]}}",
            "\"config\"" },
        { "{\"version\":1,\"kind\":\"image\",\"name\":\"a\",\"layers\":[\"" ID_A
          "\"],\"config\":{\"cwd\":\"x\"}}",
            "\"config\"" },
        { "{\"version\":1,\"kind\":\"image\",\"kind\":\"image\"}", "not valid JSON" },
    };

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct rollbox_error error = { 0 };
        struct manifest manifest;

        ASSERT_LT(parse(bad[i].text, MANIFEST_IMAGE, &manifest, &error), 0);
        ASSERT_EQ(error.code, ROLLBOX_ERR_DAMAGED);
        ASSERT_STR_CONTAINS(error.message, bad[i].says);
    }
}

TEST(places_of_snapshots) {
    static const char *const bad[] = { "..", "p", "p0/x", "p0x", "", "x0", "p000000000000" };
    struct manifest manifest;
    char text[400];

    snprintf(text, sizeof text,
        "{\"version\":1,\"kind\":\"snapshot\",\"name\":\"s\",\"layers\":[],\"places\":[{\"part\":"
        "\"p12\",\"path\":\"/w\",\"kind\":\"file\"}]}");
    ASSERT_OK(parse(text, MANIFEST_SNAPSHOT, &manifest, NULL));
    manifest_done(&manifest);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        snprintf(text, sizeof text,
            "{\"version\":1,\"kind\":\"snapshot\",\"name\":\"s\",\"layers\":[],\"places\":[{"
            "\"part\":\"%s\",\"path\":\"/w\",\"kind\":\"file\"}]}",
            bad[i]);
        ASSERT_LT(parse(text, MANIFEST_SNAPSHOT, &manifest, NULL), 0);
    }
}

/* ---- a store ---- */

/* A store with one layer and an image of it. */
static char *make_store(void) {
    static char path[400];
    struct tree_digest tree;
    int store, lock;

    snprintf(path, sizeof path, "%s/store", test_directory());
    int r = layer_store_open(path, true, &store, NULL);
    if (r == -EOPNOTSUPP || r == -EPERM)
        SKIP("xattr", "the file system of %s has no user attributes", test_directory());
    ASSERT_OK(r);
    struct work work;
    ASSERT_OK(work_begin(store, &work, NULL));
    ASSERT_CALL(mkdirat(work.fd, "L0", 0700));
    ASSERT_CALL(mkdirat(work.fd, "L0/fs", 0755));
    int root = (int)ASSERT_CALL(openat(work.fd, "L0/fs", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    int file = (int)ASSERT_CALL(openat(root, "hello", O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    ASSERT_OK(fd_write_all(file, "hello\n", 6));
    close(file);
    ASSERT_OK(tree_digest(root, &tree, NULL));
    ASSERT_EQ(tree.bytes, 6);
    ASSERT_EQ(tree.files, 1);
    struct layer_meta meta = { .id = ID_A, .kind = "image", .created_s = 1, .tree = tree };
    ASSERT_OK(layer_publish(&work, "L0", &meta, &lock, NULL));
    struct manifest manifest = { .kind = MANIFEST_IMAGE,
        .name = strdup("img"),
        .n_layers = 1,
        .layers = calloc(2, sizeof(char *)) };
    manifest.layers[0] = strdup(ID_A);
    ASSERT_OK(layer_publish_manifest(&work, &manifest, NULL));
    manifest_done(&manifest);
    work_done(&work);
    close(lock);
    close(root);
    close(store);
    return path;
}

TEST(image_is_found_and_locked) {
    const char *path = make_store();
    struct store_image *image;
    struct stat st;
    char meta[600];

    ASSERT_OK(store_image(path, "img", &image, NULL));
    ASSERT_STR_EQ(image->manifest.layers[0], ID_A);
    ASSERT_CALL(fstatat(image->fs_fds[0], "hello", &st, 0));
    ASSERT_EQ(st.st_size, 6);
    snprintf(meta, sizeof meta, "%s/layers/" ID_A "/meta.json", path);
    auto_close int other = (int)ASSERT_CALL(open(meta, O_RDONLY | O_CLOEXEC));
    ASSERT_EQ(flock(other, LOCK_EX | LOCK_NB), -1);
    ASSERT_NULL(store_image_free(image));
    ASSERT_CALL(flock(other, LOCK_EX | LOCK_NB));
    /* A process that holds it exclusively is about to remove it. */
    struct rollbox_error error = { 0 };
    ASSERT_LT(store_image(path, "img", &image, &error), 0);
    ASSERT_EQ(error.code, ROLLBOX_ERR_DAMAGED);
}

TEST(lock_goes_with_its_process) {
    const char *path = make_store();
    int ready[2];
    char meta[600], byte;

    ASSERT_CALL(pipe(ready));
    pid_t pid = (pid_t)ASSERT_CALL(fork());
    if (pid == 0) {
        struct store_image *image;

        ASSERT_OK(store_image(path, "img", &image, NULL));
        ASSERT_EQ(write(ready[1], "x", 1), 1);
        for (;;)
            pause();
    }
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    snprintf(meta, sizeof meta, "%s/layers/" ID_A "/meta.json", path);
    auto_close int other = (int)ASSERT_CALL(open(meta, O_RDONLY | O_CLOEXEC));
    ASSERT_EQ(flock(other, LOCK_EX | LOCK_NB), -1);
    ASSERT_CALL(kill(pid, SIGKILL));
    ASSERT_CALL(waitpid(pid, NULL, 0));
    ASSERT_CALL(flock(other, LOCK_EX | LOCK_NB));
}

TEST(damage_is_named) {
    const char *path = make_store();
    struct rollbox_error error = { 0 };
    struct store_image *image;
    char file[600];

    snprintf(file, sizeof file, "%s/layers/" ID_A "/damaged", path);
    write_file(file, "its files were changed\n");
    ASSERT_LT(store_image(path, "img", &image, &error), 0);
    ASSERT_EQ(error.code, ROLLBOX_ERR_DAMAGED);
    ASSERT_STR_CONTAINS(
        error.message, "layer aaaaaaaaaaaa of image img is damaged: its files were changed");
    ASSERT_CALL(unlink(file));
    snprintf(file, sizeof file, "%s/layers/" ID_A "/meta.json", path);
    write_file(file, "{}");
    ASSERT_LT(store_image(path, "img", &image, &error), 0);
    ASSERT_STR_CONTAINS(error.message, "meta.json");
    ASSERT_CALL(unlink(file));
    ASSERT_LT(store_image(path, "img", &image, &error), 0);
    ASSERT_STR_CONTAINS(error.message, "missing");
    ASSERT_LT(store_image(path, "other", &image, &error), 0);
    ASSERT_EQ(error.code, ROLLBOX_ERR_NOT_FOUND);
    ASSERT_LT(store_snapshot(path, "img", &image, &error), 0);
    ASSERT_EQ(error.code, ROLLBOX_ERR_NOT_FOUND);
    ASSERT_LT(store_image(path, "../img", &image, &error), 0);
    ASSERT_EQ(error.code, ROLLBOX_ERR_INVALID_ARGUMENT);
}

TEST(store_of_others_is_refused) {
    char *path = make_store(), link[500];
    struct rollbox_error error = { 0 };
    int fd;

    ASSERT_CALL(chmod(path, 0750));
    ASSERT_LT(store_open(path, &fd, &error), 0);
    ASSERT_EQ(error.code, ROLLBOX_ERR_PATH_DENIED);
    ASSERT_CALL(chmod(path, 0700));
    snprintf(link, sizeof link, "%s/store.link", test_directory());
    ASSERT_CALL(symlink(path, link));
    ASSERT_LT(store_open(link, &fd, &error), 0);
    ASSERT_EQ(error.code, ROLLBOX_ERR_PATH_DENIED);
    ASSERT_LT(store_open("/nowhere/store", &fd, &error), 0);
    ASSERT_EQ(error.code, ROLLBOX_ERR_NOT_FOUND);
    /* A directory with other things in it does not become a store. */
    snprintf(link, sizeof link, "%s/home", test_directory());
    ASSERT_CALL(mkdir(link, 0700));
    snprintf(link, sizeof link, "%s/home/letter", test_directory());
    write_file(link, "dear");
    *strrchr(link, '/') = '\0';
    ASSERT_LT(layer_store_open(link, true, &fd, &error), 0);
    ASSERT_EQ(error.code, ROLLBOX_ERR_INVALID_ARGUMENT);
    if (geteuid() == 0) {
        ASSERT_CALL(chown(path, 12345, 12345));
        ASSERT_LT(store_open(path, &fd, &error), 0);
        ASSERT_STR_CONTAINS(error.message, "belongs to user 12345");
    }
}

/* ---- digests ---- */

static void content_hex(const char *path, char hex[DIGEST_HEX + 1]) {
    uint8_t bytes[DIGEST_BYTES];
    struct stat st;

    auto_close int fd = (int)ASSERT_CALL(open(path, O_RDONLY | O_CLOEXEC));
    ASSERT_CALL(fstat(fd, &st));
    ASSERT_OK(content_of(fd, (uint64_t)st.st_size, bytes));
    digest_hex(bytes, hex);
}

TEST(holes_and_zeros_are_the_same_content) {
    char sparse[400], dense[400], a[DIGEST_HEX + 1], b[DIGEST_HEX + 1], zeros[65536] = { 0 };
    const off_t end = 300000;

    snprintf(sparse, sizeof sparse, "%s/sparse", test_directory());
    snprintf(dense, sizeof dense, "%s/dense", test_directory());
    int s = (int)ASSERT_CALL(open(sparse, O_RDWR | O_CREAT | O_CLOEXEC, 0644)),
        d = (int)ASSERT_CALL(open(dense, O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    for (off_t at = 0; at < end; at += (off_t)sizeof zeros)
        ASSERT_CALL(pwrite(d, zeros, (size_t)MIN((off_t)sizeof zeros, end - at), at));
    ASSERT_CALL(ftruncate(s, end));
    ASSERT_CALL(pwrite(s, "middle", 6, 131070));
    ASSERT_CALL(pwrite(d, "middle", 6, 131070));
    content_hex(sparse, a);
    content_hex(dense, b);
    ASSERT_STR_EQ(a, b);
    ASSERT_EQ(content_same(s, d, (uint64_t)end), 1);
    ASSERT_CALL(pwrite(d, "x", 1, end - 1));
    content_hex(dense, b);
    ASSERT_STR_NE(a, b);
    ASSERT_EQ(content_same(s, d, (uint64_t)end), 0);
    ASSERT_EQ(content_same(d, s, (uint64_t)end), 0);
    /* In portions of any length. */
    struct content content;
    uint8_t whole[DIGEST_BYTES], parts[DIGEST_BYTES];
    static char data[20000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = i < 5000 || i > 13000 ? (char)(i * 7) : '\0';
    content_init(&content, sizeof data);
    content_add(&content, 0, data, sizeof data);
    content_end(&content, whole);
    content_init(&content, sizeof data);
    for (size_t i = 0, n = 1; i < sizeof data; i += n, n = n * 3 % 4999 + 1) {
        n = MIN(n, sizeof data - i);
        content_add(&content, i, data + i, n);
    }
    content_end(&content, parts);
    ASSERT_MEM_EQ(whole, sizeof whole, parts, sizeof parts);
    close(s);
    close(d);
}

TEST(tree_digest_sees_every_change) {
    char path[400], before[65];
    struct tree_digest tree;

    snprintf(path, sizeof path, "%s/tree", test_directory());
    ASSERT_CALL(mkdir(path, 0755));
    auto_close int root = (int)ASSERT_CALL(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_CALL(mkdirat(root, "d", 0755));
    ASSERT_CALL(symlinkat("there", root, "link"));
    auto_close int fd =
        (int)ASSERT_CALL(openat(root, "d/file", O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    ASSERT_OK(tree_digest(root, &tree, NULL));
#define CHANGED(what)                                                                              \
    do {                                                                                           \
        memcpy(before, tree.hex, sizeof before);                                                   \
        what;                                                                                      \
        ASSERT_OK(tree_digest(root, &tree, NULL));                                                 \
        ASSERT_STR_NE(tree.hex, before);                                                           \
    } while (0)
    CHANGED(ASSERT_CALL(pwrite(fd, "x", 1, 0)));
    CHANGED(ASSERT_CALL(fchmod(fd, 0600)));
    CHANGED(ASSERT_CALL(renameat(root, "d/file", root, "file")));
    CHANGED(ASSERT_CALL(linkat(root, "file", root, "again", 0)));
    CHANGED(ASSERT_CALL(mknodat(root, "gone", S_IFCHR, makedev(0, 0))));
    CHANGED(ASSERT_CALL(unlinkat(root, "link", 0));
            ASSERT_CALL(symlinkat("elsewhere", root, "link")));
    if (fsetxattr(fd, "user.test", "1", 1, 0) == 0)
        CHANGED(ASSERT_CALL(fsetxattr(fd, "user.test", "2", 1, 0)));
    /* What an overlay notes for itself is no part of it, nor are times. */
    memcpy(before, tree.hex, sizeof before);
    (void)fsetxattr(fd, "user.overlay.origin", "z", 1, 0);
    ASSERT_CALL(futimens(fd, (const struct timespec[2]){ { 1, 0 }, { 1, 0 } }));
    ASSERT_OK(tree_digest(root, &tree, NULL));
    ASSERT_STR_EQ(tree.hex, before);
    ASSERT_EQ(tree.whiteouts, 1);
}

/* ---- names in archives ---- */

TEST(names_in_archives) {
    static const struct {
        const char *name, *plain;
    } names[] = { { "a/b", "a/b" }, { "./a//b/", "a/b" }, { "/etc/x", "etc/x" }, { "./", "" },
        { "..", NULL }, { "a/../b", NULL }, { "../a", NULL }, { "a/..", NULL },
        { "..a/b..", "..a/b.." } };

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        auto_free char *plain = unpack_name(names[i].name);

        ASSERT_STR_EQ(plain, names[i].plain);
    }
}

/* ---- unified diffs ---- */

static char *diff_of(const char *old, const char *new) {
    struct buf text = BUF_INIT;

    ASSERT_OK(textdiff("a", old, strlen(old), "b", new, strlen(new), &text));
    return text.data ? buf_take(&text) : strdup("");
}

#define DIFF(old, new, want)                                                                       \
    do {                                                                                           \
        auto_free char *got_ = diff_of(old, new);                                                  \
        ASSERT_STR_EQ(got_, want);                                                                 \
    } while (0)

TEST(unified_diffs) {
    DIFF("", "", "");
    DIFF("a\n", "a\n", "");
    DIFF("", "a\n", "--- a\n+++ b\n@@ -0,0 +1 @@\n+a\n");
    DIFF("a\n", "", "--- a\n+++ b\n@@ -1 +0,0 @@\n-a\n");
    DIFF("a\nb\nc\n", "a\nB\nc\n", "--- a\n+++ b\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n");
    DIFF("a", "a\n", "--- a\n+++ b\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n");
    DIFF("1\n2\n3\n4\n5\n6\n7\n8\n9\n", "1\n2\n3\n4\n5\n6\n7\n8\nX\n9\n",
        "--- a\n+++ b\n@@ -6,4 +6,5 @@\n 6\n 7\n 8\n+X\n 9\n");
    /* Changes that are further apart than their context are two hunks. */
    DIFF("a\n1\n2\n3\n4\n5\n6\n7\nb\n", "A\n1\n2\n3\n4\n5\n6\n7\nB\n",
        "--- a\n+++ b\n@@ -1,4 +1,4 @@\n-a\n+A\n 1\n 2\n 3\n@@ -6,4 +6,4 @@\n 5\n 6\n 7\n-b\n+B\n");
    DIFF("a\n1\n2\n3\n4\n5\n6\nb\n", "A\n1\n2\n3\n4\n5\n6\nB\n",
        "--- a\n+++ b\n@@ -1,8 +1,8 @@\n-a\n+A\n 1\n 2\n 3\n 4\n 5\n 6\n-b\n+B\n");
}

/* Applies a diff to the old text; NULL if it does not fit. */
static char *apply(const char *old, const char *diff) {
    struct buf to = BUF_INIT;
    const char *at = old, *p = strstr(diff, "\n@@");

    while (p && *p) {
        if (*p == '\n')
            p++;
        if (strncmp(p, "@@ -", 4) != 0)
            return NULL;
        size_t start = strtoul(p + 4, NULL, 10), line = 1;
        const char *comma = strpbrk(p + 4, ", "), *from = old;
        bool empty = *comma == ',' && strtoul(comma + 1, NULL, 10) == 0;
        for (; line < start + empty && *from; line++)
            from = strchr(from, '\n') ? strchr(from, '\n') + 1 : from + strlen(from);
        buf_add(&to, at, (size_t)(from - at));
        at = from;
        p = strchr(p, '\n') + 1;
        while (*p == ' ' || *p == '-' || *p == '+') {
            size_t n = strcspn(p, "\n");
            bool bare = strncmp(p + n, "\n\\", 2) == 0;

            if (*p != '+') {
                if (strncmp(at, p + 1, n - 1) != 0)
                    return NULL;
                at += n - 1 + !bare;
            }
            if (*p != '-')
                buf_add(&to, p + 1, n - 1 + !bare);
            p += n + 1;
            if (bare)
                p += strcspn(p, "\n") + 1;
        }
    }
    buf_add_text(&to, at);
    return buf_take(&to);
}

TEST(diffs_of_random_texts_apply) {
    unsigned seed = 7;

    for (int round = 0; round < 2000; round++) {
        char texts[2][400];

        for (int t = 0; t < 2; t++) {
            size_t n = 0, lines = (seed = seed * 1103515245 + 12345) >> 16 & 31;

            for (size_t i = 0; i < lines; i++) {
                seed = seed * 1103515245 + 12345;
                n += (size_t)sprintf(texts[t] + n, "%c\n", 'a' + (int)(seed >> 16 & 3));
            }
            if (n && round % 5 == t)
                n--;
            texts[t][n] = '\0';
        }
        auto_free char *diff = diff_of(texts[0], texts[1]);
        auto_free char *again =
            strcmp(texts[0], texts[1]) ? apply(texts[0], diff) : strdup(texts[1]);
        if (!again || strcmp(again, texts[1]) != 0)
            FAIL("round %d: from\n%s\nto\n%s\nby\n%s\nbecomes\n%s", round, texts[0], texts[1], diff,
                again ? again : "nothing");
    }
}

TEST(texts_that_have_nothing_in_common) {
    struct buf old = BUF_INIT, new = BUF_INIT, text = BUF_INIT;

    for (int i = 0; i < 20000; i++) {
        buf_printf(&old, "old %d\n", i);
        buf_printf(&new, "new %d\n", i);
    }
    ASSERT_OK(textdiff("a", old.data, old.length, "b", new.data, new.length, &text));
    ASSERT_STR_CONTAINS(text.data, "@@ -1,20000 +1,20000 @@\n-old 0\n");
    ASSERT_FALSE(textdiff_is_text("a\0b", 3));
    ASSERT_FALSE(textdiff_is_text("\xff", 1));
    ASSERT_TRUE(textdiff_is_text("\xc3\xa9", 2));
    buf_done(&old);
    buf_done(&new);
    buf_done(&text);
}

/* ---- differences of images ---- */

#define BLOCKS 40u

/* Block `i` of many that look different, but for the last byte, which `change` is. */
static void fill_block(char *block, unsigned i, char change) {
    for (size_t k = 0; k < DELTA_BLOCK; k++)
        block[k] = (char)(i * 31 + k * (i + 1) + k / 256);
    block[DELTA_BLOCK - 1] = change;
}

static void expect_image(const struct delta_view *view, const struct delta_file *image) {
    uint64_t at = 0;

    ASSERT_EQ(view->length, image->length);
    for (size_t i = 0; i < view->n_runs; at += view->runs[i++].length)
        ASSERT_EQ(memcmp(view->files[view->runs[i].file].data + view->runs[i].offset,
                      image->data + at, view->runs[i].length),
            0);
    ASSERT_EQ(at, image->length);
}

/* As rollbox-store writes it: of what came of `image` over the base's files that are kept. */
static char *difference_of(const struct delta_file *image, const struct delta_view *base,
    const bool *keeps, uint64_t *ret_fresh, uint64_t *ret_length) {
    struct delta_run *runs;
    size_t n_runs;

    ASSERT_OK(delta_find(image, base, &runs, &n_runs));
    uint64_t fresh = delta_settle(runs, &n_runs, keeps, base->n_files), at = 0,
             table = (fresh + 7) / 8 * 8;
    const struct delta_end end = {
        .n_runs = n_runs, .fresh = fresh, .length = image->length, .magic = DELTA_MAGIC
    };
    *ret_length = table + n_runs * sizeof *runs + sizeof end;
    char *file = calloc(1, *ret_length);
    ASSERT_TRUE(file != NULL);
    for (size_t i = 0; i < n_runs; at += runs[i++].length)
        if (!runs[i].file)
            memcpy(file + runs[i].offset, image->data + at, runs[i].length);
    memcpy(file + table, runs, n_runs * sizeof *runs);
    memcpy(file + table + n_runs * sizeof *runs, &end, sizeof end);
    free(runs);
    *ret_fresh = fresh;
    return file;
}

/* The base, with a block put in, one changed, one gone, and the end that it has beside whole
 * blocks. */
TEST(differences_of_images) {
    static char before[BLOCKS * DELTA_BLOCK + 100], now[BLOCKS * DELTA_BLOCK + 50],
        later[BLOCKS * DELTA_BLOCK + 50];
    const struct delta_file base_file = { before, sizeof before }, image = { now, sizeof now },
                            last = { later, sizeof later };
    const struct delta_run whole = { .length = sizeof before };
    const struct delta_view base = {
        .files = &base_file, .n_files = 1, .runs = &whole, .n_runs = 1, .length = sizeof before
    };
    const bool keeps[] = { true, true }, only_second[] = { false, true };
    struct delta_view view, again;
    uint64_t fresh, length;

    for (unsigned i = 0; i < BLOCKS; i++)
        fill_block(before + i * DELTA_BLOCK, i, 0);
    for (unsigned i = 0, from = 0; i < BLOCKS; i++, from += i != 10)
        fill_block(now + i * DELTA_BLOCK, i == 10 ? 1000 : from + (from >= 30), i == 20);
    auto_free char *file = difference_of(&image, &base, keeps, &fresh, &length);
    ASSERT_EQ(fresh, 2 * DELTA_BLOCK + 50);
    const struct delta_file files[] = { { file, length }, base_file };
    ASSERT_TRUE(delta_view(files, 2, &view));
    expect_image(&view, &image);
    /* A difference over both; then one over the whole base alone, so that the content of the
     * first is written again. */
    memcpy(later, now, sizeof now);
    later[5 * DELTA_BLOCK] ^= 1;
    auto_free char *second = difference_of(&last, &view, keeps, &fresh, &length);
    ASSERT_EQ(fresh, DELTA_BLOCK + 50);
    const struct delta_file three[] = { { second, length }, files[0], base_file };
    ASSERT_TRUE(delta_view(three, 3, &again));
    expect_image(&again, &last);
    ASSERT_FALSE(delta_view(three, 2, &again));
    auto_free char *joined = difference_of(&last, &view, only_second, &fresh, &length);
    ASSERT_EQ(fresh, 3 * DELTA_BLOCK + 50);
    const struct delta_file two[] = { { joined, length }, base_file };
    ASSERT_TRUE(delta_view(two, 2, &again));
    expect_image(&again, &last);
}
