/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Disassembles a seccomp program. Jumps only go forward. So one pass over the instructions knows,
 * for each of them, which field of seccomp_data the accumulator holds on every path, and whether an
 * instruction jumps to it.
 */
#include "policy/filter.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

/* The content of the accumulator at an instruction: unknown (not reached yet), a field by its
 * offset + 1, or ambiguous. */
enum { HOLDS_NOTHING = 0, HOLDS_MASKED = 1u << 8, HOLDS_VARIOUS = 1u << 9 };

struct line {
    unsigned holds;
    bool target;
};

static void mark_reached(struct line *lines, size_t to, unsigned holds, bool jump) {
    if (lines[to].holds == HOLDS_NOTHING)
        lines[to].holds = holds;
    else if (lines[to].holds != holds)
        lines[to].holds = HOLDS_VARIOUS;
    lines[to].target |= jump;
}

static void add_field(struct buf *to, uint32_t offset) {
    if (offset == offsetof(struct seccomp_data, nr))
        buf_add_text(to, "nr");
    else if (offset == offsetof(struct seccomp_data, arch))
        buf_add_text(to, "arch");
    else if (offset >= offsetof(struct seccomp_data, args) &&
             offset < sizeof(struct seccomp_data) && offset % 4 == 0)
        buf_printf(to, "args[%u].%s",
            (unsigned)((offset - offsetof(struct seccomp_data, args)) / 8),
            offset % 8 == 0 ? "low" : "high");
    else
        buf_printf(to, "data[%u]", (unsigned)offset);
}

static void add_action(struct buf *to, uint32_t action) {
    uint32_t data = action & SECCOMP_RET_DATA;

    switch (action & SECCOMP_RET_ACTION_FULL) {
    case SECCOMP_RET_KILL_PROCESS:
        buf_add_text(to, "kill process");
        break;
    case SECCOMP_RET_KILL_THREAD:
        buf_add_text(to, "kill thread");
        break;
    case SECCOMP_RET_TRAP:
        buf_printf(to, "trap %u", (unsigned)data);
        break;
    case SECCOMP_RET_ERRNO:
        if (data == 0)
            buf_add_text(to, "return 0 without an effect");
        else if (strerrorname_np((int)data) != NULL)
            buf_printf(to, "errno %s", strerrorname_np((int)data));
        else
            buf_printf(to, "errno %u", (unsigned)data);
        break;
    case SECCOMP_RET_USER_NOTIF:
        buf_add_text(to, "ask supervisor");
        break;
    case SECCOMP_RET_TRACE:
        buf_printf(to, "trace %u", (unsigned)data);
        break;
    case SECCOMP_RET_LOG:
        buf_add_text(to, "log and allow");
        break;
    case SECCOMP_RET_ALLOW:
        buf_add_text(to, "allow");
        break;
    default:
        buf_printf(to, "return 0x%08x", (unsigned)action);
    }
}

static void add_jump(struct buf *to, size_t from, unsigned distance) {
    if (distance == 0)
        buf_add_text(to, "next");
    else
        buf_printf(to, "L%zu", from + 1 + distance);
}

/* The value an instruction compares with: as a call's name where it compares the call's number. */
static void add_value(struct buf *to, unsigned holds, uint32_t value, bool bits) {
    const char *name =
        holds == offsetof(struct seccomp_data, nr) + 1 ? filter_syscall_name(value) : NULL;

    if (holds == offsetof(struct seccomp_data, arch) + 1 && value == AUDIT_ARCH_X86_64)
        name = "x86-64";
    if (bits || value > 4096)
        buf_printf(to, "0x%x", (unsigned)value);
    else
        buf_printf(to, "%u", (unsigned)value);
    if (name != NULL)
        buf_printf(to, " (%s)", name);
}

static void add_condition(struct buf *to, size_t i, const struct sock_filter *instruction,
    const char *relation, unsigned holds) {
    buf_add_text(to, "if ");
    if (holds == HOLDS_NOTHING || (holds & (HOLDS_VARIOUS | HOLDS_MASKED)) != 0)
        buf_add_text(to, "A");
    else
        add_field(to, holds - 1);
    buf_printf(to, " %s ", relation);
    add_value(to, holds, instruction->k, BPF_OP(instruction->code) == BPF_JSET);
    buf_add_text(to, " then ");
    add_jump(to, i, instruction->jt);
    buf_add_text(to, " else ");
    add_jump(to, i, instruction->jf);
}

int filter_disassemble(const struct sock_filter *program, size_t n, struct buf *to) {
    auto_free struct line *lines = calloc(n + 1, sizeof(*lines));

    if (lines == NULL)
        return -ENOMEM;

    for (size_t i = 0; i < n; i++) {
        const struct sock_filter *instruction = &program[i];
        unsigned holds = lines[i].holds;
        bool jumps = BPF_CLASS(instruction->code) == BPF_JMP;
        size_t left = n - i - 1;

        if (jumps && (BPF_OP(instruction->code) == BPF_JA
                             ? instruction->k >= left
                             : instruction->jt >= left || instruction->jf >= left))
            return -EINVAL;
        if (lines[i].target)
            buf_printf(to, "L%zu:\n", i);
        buf_printf(to, "%5zu  ", i);

        switch (instruction->code) {
        case BPF_LD | BPF_W | BPF_ABS:
            buf_add_text(to, "load ");
            add_field(to, instruction->k);
            mark_reached(lines, i + 1, MIN(instruction->k, 254u) + 1, false);
            break;
        case BPF_ALU | BPF_AND | BPF_K:
            buf_printf(to, "A &= 0x%x", (unsigned)instruction->k);
            mark_reached(lines, i + 1, HOLDS_MASKED, false);
            break;
        case BPF_JMP | BPF_JA:
            buf_add_text(to, "go to ");
            add_jump(to, i, instruction->k);
            mark_reached(lines, i + 1 + instruction->k, holds, instruction->k > 0);
            break;
        case BPF_JMP | BPF_JEQ | BPF_K:
            add_condition(to, i, instruction, "==", holds);
            break;
        case BPF_JMP | BPF_JGE | BPF_K:
            add_condition(to, i, instruction, ">=", holds);
            break;
        case BPF_JMP | BPF_JGT | BPF_K:
            add_condition(to, i, instruction, ">", holds);
            break;
        case BPF_JMP | BPF_JSET | BPF_K:
            add_condition(to, i, instruction, "has a bit of", holds);
            break;
        case BPF_RET | BPF_K:
            add_action(to, instruction->k);
            break;
        default:
            return -EINVAL;
        }
        if (jumps && BPF_OP(instruction->code) != BPF_JA) {
            mark_reached(lines, i + 1 + instruction->jt, holds, instruction->jt > 0);
            mark_reached(lines, i + 1 + instruction->jf, holds, instruction->jf > 0);
        }
        buf_add_text(to, "\n");
    }
    return buf_failed(to) ? -ENOMEM : 0;
}
