/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fingerprint of a host: the properties that restored processes depend on. These are the kernel
 * (processes were inside its system calls), the code that the kernel maps into them, and a
 * processor with all features that they have detected.
 */
#include "store/fingerprint.h"

#include <elf.h>
#include <errno.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/utsname.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "store/hibernated_read.h"

#if defined(__x86_64__)
#    include <cpuid.h>

static void add_processor(struct buf *to) {
    static const unsigned leaves[][2] = { { 0, 0 }, { 7, 0 }, { 7, 1 }, { 13, 0 }, { 13, 1 },
        { 0x80000001, 0 } };
    unsigned a, b, c, d;

    for (size_t i = 0; i < ARRAY_SIZE(leaves); i++) {
        if (!__get_cpuid_count(leaves[i][0], leaves[i][1], &a, &b, &c, &d))
            continue;
        if (leaves[i][0] == 13)
            b = 0; /* the sizes of the present use */
        buf_printf(to, "%x.%x:%08x%08x%08x%08x\n", leaves[i][0], leaves[i][1], a, b, c, d);
    }
    if (__get_cpuid(1, &a, &b, &c, &d)) {
        buf_printf(to, "1:%08x%08x%08x\n", a, c, d); /* ebx identifies the processor */
        if (c & bit_OSXSAVE) {
            __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
            buf_printf(to, "xcr0:%08x%08x\n", d, a);
        }
    }
}
#else
static void add_processor(struct buf *to) {
    buf_printf(to, "%lx.%lx\n", getauxval(AT_HWCAP), getauxval(AT_HWCAP2));
}
#endif

/* Up to the end of its last segment, or of its section headers, which follow. */
static void add_vdso(struct buf *to) {
    const char *base = (const char *)getauxval(AT_SYSINFO_EHDR);
    const Elf64_Ehdr *header = (const void *)base;
    uint64_t end;

    if (!base)
        return;
    const Elf64_Phdr *segments = (const void *)(base + header->e_phoff);
    end = header->e_shoff + (uint64_t)header->e_shnum * header->e_shentsize;
    for (unsigned i = 0; i < header->e_phnum; i++)
        if (segments[i].p_type == PT_LOAD)
            end = MAX(end, segments[i].p_offset + segments[i].p_filesz);
    buf_add(to, base, end);
}

static json_t *digest_of(struct buf *text) {
    char hex[HIBERNATED_DIGEST_HEX + 1];

    if (buf_failed(text))
        return NULL;
    hibernated_digest(text->data ? text->data : "", text->length, hex);
    return json_string(hex);
}

json_t *fingerprint_now(void) {
    auto_buf struct buf vdso = BUF_INIT;
    auto_buf struct buf processor = BUF_INIT;
    struct utsname kernel;

    if (uname(&kernel) < 0)
        return NULL;
    add_vdso(&vdso);
    add_processor(&processor);
    return json_pack("{s:o, s:o, s:o}", "kernel",
        json_sprintf("%s %s %s", kernel.release, kernel.version, kernel.machine), "vdso",
        digest_of(&vdso), "processor", digest_of(&processor));
}

int fingerprint_check(
    const json_t *then, const char *stage, const char *hint, struct rollbox_error *error) {
    static const struct {
        const char *key, *words;
    } parts[] = {
        { "kernel", "another kernel" },
        { "vdso", "a kernel that maps another vDSO into processes" },
        { "processor", "a processor with other features" },
    };
    json_t *now = fingerprint_now();
    int r =
        now ? 0 : error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, stage, "out of memory");

    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(parts); i++) {
        const char *was = json_string_value(json_object_get(then, parts[i].key)),
                   *is = json_string_value(json_object_get(now, parts[i].key));

        if (was && is && !strcmp(was, is))
            continue;
        bool is_kernel = !strcmp(parts[i].key, "kernel");
        r = error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, stage,
            "the sandbox's processes were hibernated under %s (%.100s; this is %.100s), so they "
            "cannot be restored here; %s",
            parts[i].words, is_kernel && was ? was : "digests differ",
            is_kernel && is ? is : "another one", hint);
    }
    json_decref(now);
    return r;
}
