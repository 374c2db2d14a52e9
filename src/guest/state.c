/* SPDX-License-Identifier: Apache-2.0 */
#include "guest/state.h"

#include <signal.h>
#include <stdint.h>
#include <stdlib.h>

#include "sys/syscalls.h"

bool command_in_session;
size_t state_commands;
struct state_agent state_agents[COMMAND_MAX_AGENTS];
size_t state_n_agents, state_n_alone;
bool state_is_frozen, state_is_held;
int state_capturer = -1;

/* The output of getdents64(2); C libraries disagree on its name. */
struct entry {
    uint64_t inode;
    int64_t offset;
    unsigned short length;
    unsigned char type;
    char name[];
};

size_t command_count(void) {
    return state_commands;
}

bool command_is_agent(pid_t pid) {
    for (size_t i = 0; i < state_n_agents; i++)
        if (state_agents[i].pid == pid)
            return true;
    return false;
}

void command_agents_resume(void) {
    for (size_t i = 0; i < state_n_agents; i++)
        (void)kill(state_agents[i].pid, SIGCONT);
}

bool tree_is_frozen(void) {
    return state_is_frozen;
}

bool quiesce_is(void) {
    return state_capturer >= 0;
}

int quiesce_socket(void) {
    return state_capturer;
}

int tree_each_number(int directory, bool (*call)(void *data, pid_t number), void *data) {
    _Alignas(8) char buffer[8192];
    long n;

    while ((n = sys_call3(__NR_getdents64, directory, buffer, sizeof buffer)) > 0)
        for (long at = 0; at < n;) {
            const struct entry *entry = (const void *)(buffer + at);

            at += entry->length;
            if (entry->name[0] >= '0' && entry->name[0] <= '9' &&
                !call(data, (pid_t)strtoul(entry->name, NULL, 10)))
                return 1;
        }
    return (int)n;
}
