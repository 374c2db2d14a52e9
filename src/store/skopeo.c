/* SPDX-License-Identifier: Apache-2.0 */
#include "store/skopeo.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/text.h"
#include "store/files.h"
#include "store/layer.h"
#include "sys/confine.h"
#include "sys/syscalls.h"

#define PROGRAM "skopeo"
#define TICK_MS 100
#define MAX_OUTPUT (16u << 20)
#define MAX_ERRORS (64u << 10)
#define MAX_AUTHFILE (1u << 20)
#define MAX_ARGUMENTS 24

int skopeo_find(struct skopeo *skopeo, struct rollbox_error *error) {
    const char *path = text_or(secure_getenv("PATH"), "/usr/local/bin:/usr/bin:/bin");
    auto_buf struct buf candidate = BUF_INIT;

    while (*path) {
        const size_t length = strcspn(path, ":");

        candidate.length = 0;
        buf_add(&candidate, path, length);
        buf_add_text(&candidate, "/" PROGRAM);
        if (length && !buf_failed(&candidate) && access(candidate.data, X_OK) == 0) {
            skopeo->program = buf_take(&candidate);
            return skopeo->program ? 0
                                   : error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM,
                                         "pull", "out of memory");
        }
        path += length + (path[length] == ':');
    }
    return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOENT, skopeo->verb,
        "cannot %s %s: skopeo, which talks to registries, is not installed; as root run: apt-get "
        "install skopeo (dnf, zypper, pacman and apk have it by the same name)",
        skopeo->verb, files_printable(skopeo->subject));
}

void skopeo_done(struct skopeo *skopeo) {
    free(skopeo->program);
    skopeo->program = NULL;
}

/* ---- credentials ---- */

static int fail_authorize(const char *what, const char *path, int r, struct rollbox_error *error) {
    return error_set(error,
        r == -ENOENT ? ROLLBOX_ERR_NOT_FOUND : error_code_of(-r, ROLLBOX_ERR_IO), -r, "arguments",
        "--%s %s cannot be read: %s", what, files_printable(path), strerror(-r));
}

static void add_base64(struct buf *to, const char *text) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const size_t length = strlen(text);

    for (size_t i = 0; i < length; i += 3) {
        const size_t n = MIN(length - i, (size_t)3);
        char out[4] = "====";
        unsigned bits = 0;

        for (size_t j = 0; j < n; j++)
            bits |= (unsigned)(unsigned char)text[i + j] << (16 - 8 * j);
        for (size_t j = 0; j <= n; j++)
            out[j] = digits[bits >> (18 - 6 * j) & 63];
        buf_add(to, out, sizeof out);
    }
}

static int write_authfile(struct skopeo *skopeo, const char *text, struct rollbox_error *error) {
    skopeo->has_authfile = true;
    return layer_write_file(skopeo->work, SKOPEO_AUTHFILE, text, error);
}

static int write_creds(
    struct skopeo *skopeo, const char *creds, const char *host, struct rollbox_error *error) {
    auto_buf struct buf text = BUF_INIT, encoded = BUF_INIT, file = BUF_INIT;
    int r = strcmp(creds, "-") == 0 ? fd_read_all(STDIN_FILENO, MAX_ERRORS, &text)
                                    : fd_read_file(creds, MAX_ERRORS, &text);

    if (r == -ENOENT && strchr(creds, ':'))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "--creds takes a file with USER:PASSWORD, or - for standard input: other users could "
            "see a password among the arguments of a process");
    if (r < 0)
        return fail_authorize("creds", creds, r, error);
    const size_t length = strcspn(text_or(text.data, ""), "\r\n");
    if (text.data)
        text.data[length] = '\0';
    if (!text.data || !strchr(text.data, ':'))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "the file of --creds must have one line, USER:PASSWORD");
    add_base64(&encoded, text.data);
    buf_add(&encoded, "", 1);
    buf_printf(
        &file, "{\"auths\": {\"%s\": {\"auth\": \"%s\"}}}\n", host, text_or(encoded.data, ""));
    explicit_bzero(text.data, text.length);
    if (buf_failed(&encoded) || buf_failed(&file))
        return error_set(
            error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments", "out of memory");
    return write_authfile(skopeo, file.data, error);
}

int skopeo_authorize(struct skopeo *skopeo, const char *authfile, const char *creds,
    const char *host, struct rollbox_error *error) {
    auto_buf struct buf text = BUF_INIT;

    if (authfile && creds)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "give one of --authfile and --creds");
    if (creds)
        return write_creds(skopeo, creds, host, error);
    if (!authfile)
        return 0;
    int r = fd_read_file(authfile, MAX_AUTHFILE, &text);
    return r < 0 ? fail_authorize("authfile", authfile, r, error)
                 : write_authfile(skopeo, text_or(text.data, ""), error);
}

/* ---- the process ---- */

/* All that skopeo needs to find its configuration, credentials, certificates and proxies. */
static bool keeps_variable(const char *variable) {
    static const char *const kept[] = { "PATH", "HOME", "USER", "LOGNAME", "LANG",
        "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "REGISTRY_AUTH_FILE", "DOCKER_CONFIG",
        "CONTAINERS_REGISTRIES_CONF", "SSL_CERT_FILE", "SSL_CERT_DIR", "http_proxy", "https_proxy",
        "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY" };

    for (size_t i = 0; i < ARRAY_SIZE(kept); i++) {
        const size_t length = strlen(kept[i]);

        if (strncmp(variable, kept[i], length) == 0 && variable[length] == '=')
            return true;
    }
    return false;
}

static char **make_environment(void) {
    static char temporary[] = "TMPDIR=.";
    size_t n = 0, kept = 0;

    while (environ && environ[n])
        n++;
    char **list = calloc(n + 2, sizeof *list);
    for (size_t i = 0; list && i < n; i++)
        if (keeps_variable(environ[i]))
            list[kept++] = environ[i];
    if (list)
        list[kept] = temporary;
    return list;
}

/* It writes below `work` alone. Without Landlock, skopeo has the rights of its user. */
static int restrict_writes(int work) {
    const int abi = confine_landlock_abi();
    const uint64_t reads = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR |
                           LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_IOCTL_DEV;
    const uint64_t writes = confine_landlock_files(abi) & ~reads;

    if (abi < 1)
        return 0;
    struct uapi_landlock_ruleset attributes = { .handled_access_fs = writes };
    auto_close int ruleset =
        sys_landlock_create_ruleset(&attributes, uapi_landlock_ruleset_size(abi), 0);
    auto_close int null = open("/dev/null", O_PATH | O_CLOEXEC);
    if (ruleset < 0 || null < 0)
        return ruleset < 0 ? ruleset : -errno;
    struct landlock_path_beneath_attr rule = { .allowed_access = writes, .parent_fd = work };
    int r = sys_landlock_add_rule(ruleset, UAPI_LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
    rule.parent_fd = null;
    rule.allowed_access = writes & LANDLOCK_ACCESS_FS_WRITE_FILE;
    if (r == 0)
        r = sys_landlock_add_rule(ruleset, UAPI_LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
    return r < 0 ? r : sys_landlock_restrict_self(ruleset, 0);
}

static int drop_rights(void) {
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct none[2] = { 0 };
    const struct rlimit no_core = { 0, 0 };

    (void)setrlimit(RLIMIT_CORE, &no_core);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -errno;
    return sys_capset(&header, none);
}

static __attribute__((noreturn)) void become_skopeo(
    const struct skopeo *skopeo, char **argv, char **environment, int out, int err, pid_t parent) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != parent)
        _exit(126);
    (void)setsid();
    int r = null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 ||
                    dup2(err, STDERR_FILENO) < 0 || fchdir(skopeo->work) < 0
                ? -errno
                : drop_rights();
    if (r == 0)
        r = restrict_writes(skopeo->work);
    if (r == 0)
        r = sys_close_range(STDERR_FILENO + 1, ~0u, 0);
    if (r == 0) {
        execve(skopeo->program, argv, environment);
        r = -errno;
    }
    dprintf(STDERR_FILENO, "level=fatal msg=\"it cannot be started: %s\"\n", strerror(-r));
    _exit(126);
}

/* ---- its errors ---- */

/* The meanings of error messages of skopeo and of registries. The first match counts. */
static const struct meaning {
    const char *words;
    enum rollbox_error_code code;
    int error_number;
    const char *hint;
} meanings[] = {
    { "no space left on device", ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOSPC,
        "make room on the store's file system, or run rollbox store gc" },
    { "disk quota exceeded", ROLLBOX_ERR_RESOURCE_EXHAUSTED, EDQUOT,
        "make room on the store's file system, or run rollbox store gc" },
    { "server gave HTTP response to HTTPS client", ROLLBOX_ERR_IO, EPROTO,
        "the registry has no TLS: add --insecure if that is right" },
    { "x509: ", ROLLBOX_ERR_IO, EPROTO,
        "the registry's certificate is not trusted: install its authority, or add --insecure" },
    { "igest did not match", ROLLBOX_ERR_DAMAGED, EBADMSG,
        "the registry sent other data than the image's manifest names; nothing of it is kept" },
    { " does not match expected sha256:", ROLLBOX_ERR_DAMAGED, EBADMSG,
        "the registry sent other data than the image's manifest names; nothing of it is kept" },
    { "does not match provided manifest digest", ROLLBOX_ERR_DAMAGED, EBADMSG,
        "the registry sent another manifest than the one that was asked for" },
    { "corresponding manifest digest", ROLLBOX_ERR_DAMAGED, EBADMSG,
        "the registry sent another manifest than the one that was asked for" },
    { "nauthorized", ROLLBOX_ERR_PATH_DENIED, EACCES,
        "log in with skopeo login or docker login, or give --authfile FILE or --creds FILE" },
    { "authentication required", ROLLBOX_ERR_PATH_DENIED, EACCES,
        "log in with skopeo login or docker login, or give --authfile FILE or --creds FILE" },
    { "invalid username/password", ROLLBOX_ERR_PATH_DENIED, EACCES,
        "the user name or the password is wrong" },
    { "denied: ", ROLLBOX_ERR_PATH_DENIED, EACCES,
        "the image does not exist there, or needs other credentials" },
    /* Of a registry that gives no reason. */
    { "StatusCode: 403", ROLLBOX_ERR_PATH_DENIED, EACCES,
        "the registry refuses it; it needs other credentials" },
    { "manifest unknown", ROLLBOX_ERR_NOT_FOUND, ENOENT, "the registry has no such tag or digest" },
    { "name unknown", ROLLBOX_ERR_NOT_FOUND, ENOENT, "the registry has no such image" },
    { "404 ", ROLLBOX_ERR_NOT_FOUND, ENOENT, "the registry has no such image" },
    { "toomanyrequests", ROLLBOX_ERR_RESOURCE_EXHAUSTED, EAGAIN,
        "the registry limits requests: try again later, or log in" },
    { "no such host", ROLLBOX_ERR_IO, EHOSTUNREACH,
        "no registry of this name is known; is the name right, and does this host have a "
        "network?" },
    { "connection refused", ROLLBOX_ERR_IO, ECONNREFUSED, "nothing listens there" },
    { "unexpected EOF", ROLLBOX_ERR_IO, ECONNRESET,
        "the registry ended the connection; layers that arrived are kept, so try again" },
    { "connection reset", ROLLBOX_ERR_IO, ECONNRESET,
        "the registry ended the connection; layers that arrived are kept, so try again" },
};

/* The value of msg="..." of the last fatal line, without backslashes; else the last line. */
static void find_sentence(const char *text, struct buf *to) {
    const char *found = NULL, *line = text;

    for (const char *p = text; (p = strstr(p, "level=fatal")); p++)
        found = p;
    found = found ? strstr(found, "msg=\"") : NULL;
    if (found) {
        for (found += 5; *found && *found != '"'; found++) {
            found += *found == '\\' && found[1];
            buf_add(to, found, 1);
        }
    } else {
        for (const char *p = text; *p; p++)
            if (*p == '\n' && p[1])
                line = p + 1;
        buf_add(to, line, strcspn(line, "\n"));
    }
    buf_add(to, "", 1);
}

/* Skopeo's sentence for a message: one line, no control characters, not too long. */
static const char *shown_sentence(struct buf *sentence) {
    if (buf_failed(sentence) || !sentence->data || !sentence->data[0])
        return "it was killed, or failed without a message";
    for (char *p = sentence->data; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = ' ';
    if (strlen(sentence->data) > 400)
        memcpy(sentence->data + 397, "...", 4);
    return sentence->data;
}

static int fail_skopeo(const struct skopeo *skopeo, const char *text, struct rollbox_error *error) {
    auto_buf struct buf sentence = BUF_INIT;

    find_sentence(text, &sentence);
    const char *shown = shown_sentence(&sentence);
    for (size_t i = 0; i < ARRAY_SIZE(meanings); i++)
        if (strstr(text, meanings[i].words))
            return error_set(error, meanings[i].code, meanings[i].error_number, skopeo->verb,
                "cannot %s %s: %s (skopeo: %s)", skopeo->verb, files_printable(skopeo->subject),
                meanings[i].hint, shown);
    return error_set(error, ROLLBOX_ERR_IO, EIO, skopeo->verb, "cannot %s %s: skopeo says: %s",
        skopeo->verb, files_printable(skopeo->subject), shown);
}

static int fail_stalled(const struct skopeo *skopeo, struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_IO, ETIMEDOUT, skopeo->verb,
        "cannot %s %s: nothing has arrived for %u seconds; layers that arrived are kept, so try "
        "again, or give --stall SECONDS",
        skopeo->verb, files_printable(skopeo->subject), skopeo->stall_s);
}

/* ---- a run ---- */

struct run {
    const struct skopeo *skopeo;
    skopeo_watcher watch;
    void *context;
    struct buf *out, err;
    int fds[2];
    int64_t seen, changed_ns;
};

/* One pipe's next part. */
static void read_pipe(int *fd, struct buf *to, size_t limit) {
    char data[4096];
    ssize_t n = read(*fd, data, sizeof data);

    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n <= 0)
        close_fd(fd);
    else if (to->length + (size_t)n <= limit)
        buf_add(to, data, (size_t)n);
}

/* Reads until skopeo has closed its pipes, which is at its end. */
static int follow(struct run *run, struct rollbox_error *error) {
    run->changed_ns = clock_now_ns();
    while (run->fds[0] >= 0 || run->fds[1] >= 0) {
        struct pollfd fds[2] = { { run->fds[0], POLLIN, 0 }, { run->fds[1], POLLIN, 0 } };

        if (poll(fds, 2, TICK_MS) < 0 && errno != EINTR)
            return error_set(error, ROLLBOX_ERR_IO, errno, run->skopeo->verb,
                "cannot wait for skopeo: %s", strerror(errno));
        if (fds[0].revents)
            read_pipe(&run->fds[0], run->out, MAX_OUTPUT);
        if (fds[1].revents)
            read_pipe(&run->fds[1], &run->err, MAX_ERRORS);
        const int64_t seen = run->watch ? run->watch(run->context, error) : 0;
        if (seen < 0)
            return (int)seen;
        const int64_t now = clock_now_ns();
        if (seen != run->seen)
            run->changed_ns = now;
        run->seen = seen;
        if (now - run->changed_ns > run->skopeo->stall_s * INT64_C(1000000000))
            return fail_stalled(run->skopeo, error);
    }
    return 0;
}

/* Whether the host has rules about signatures of images. Without any, skopeo copies nothing. */
static bool has_signature_rules(void) {
    auto_free char *own = NULL;
    const char *home = secure_getenv("HOME");

    if (home && asprintf(&own, "%s/.config/containers/policy.json", home) < 0)
        own = NULL;
    return access("/etc/containers/policy.json", F_OK) == 0 || (own && access(own, F_OK) == 0);
}

static void fill_argv(
    const struct skopeo *skopeo, const char *const *arguments, const char **argv) {
    const bool is_push = strcmp(skopeo->verb, "push") == 0;
    const bool is_copy = strcmp(arguments[0], "copy") == 0;
    size_t n = 0;

    argv[n++] = PROGRAM;
    if (is_copy && !has_signature_rules())
        argv[n++] = "--insecure-policy";
    argv[n++] = arguments[0];
    if (skopeo->has_authfile)
        argv[n++] = "--authfile=" SKOPEO_AUTHFILE;
    if (skopeo->insecure)
        argv[n++] = !is_copy  ? "--tls-verify=false"
                    : is_push ? "--dest-tls-verify=false"
                              : "--src-tls-verify=false";
    for (size_t i = 1; arguments[i] && n < MAX_ARGUMENTS - 1; i++)
        argv[n++] = arguments[i];
    argv[n] = NULL;
}

int skopeo_run(const struct skopeo *skopeo, const char *const *arguments, skopeo_watcher watch,
    void *context, struct buf *to, struct rollbox_error *error) {
    const char *argv[MAX_ARGUMENTS];
    auto_free char **environment = make_environment();
    struct run run = { .skopeo = skopeo, .watch = watch, .context = context, .out = to };
    int out[2], err[2], status = 0;

    fill_argv(skopeo, arguments, argv);
    if (!environment)
        return error_set(
            error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, skopeo->verb, "out of memory");
    if (pipe2(out, O_CLOEXEC) < 0)
        return error_set(error, error_code_of(errno, ROLLBOX_ERR_IO), errno, skopeo->verb,
            "cannot make a pipe: %s", strerror(errno));
    auto_close int out_write = out[1];
    run.fds[0] = out[0];
    run.fds[1] = -EBADF;
    const bool piped = pipe2(err, O_CLOEXEC) == 0;
    auto_close int err_write = piped ? err[1] : -EBADF;
    run.fds[1] = piped ? err[0] : -EBADF;
    const pid_t parent = getpid();
    fflush(NULL);
    pid_t pid = piped ? fork() : -1;
    if (pid == 0)
        become_skopeo(skopeo, (char **)(uintptr_t)argv, environment, out_write, err_write, parent);
    int r = pid < 0 ? error_set(error, error_code_of(errno, ROLLBOX_ERR_IO), errno, skopeo->verb,
                          "cannot start skopeo: %s", strerror(errno))
                    : 0;
    close_fd(&out_write);
    close_fd(&err_write);
    if (r == 0)
        r = follow(&run, error);
    if (pid > 0 && r < 0)
        kill(pid, SIGKILL);
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    close_fd(&run.fds[0]);
    close_fd(&run.fds[1]);
    buf_add(&run.err, "", 1);
    const bool failed = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    if (r == 0 && failed)
        r = fail_skopeo(skopeo, text_or(run.err.data, ""), error);
    buf_done(&run.err);
    if (r == 0 && buf_failed(to))
        r = error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, skopeo->verb, "out of memory");
    return r;
}
