/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/nft_probe.h"

#include <arpa/inet.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/rtnetlink.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include "base/buf.h"
#include "base/cleanup.h"

#define TABLE "probe"
#define TYPE(message) (NFNL_SUBSYS_NFTABLES << 8 | (message))

/* Places in the buffer are kept, not pointers: it moves while it grows. */
static void end(struct buf *to, size_t begin, bool is_header) {
    uint32_t length = (uint32_t)(to->length - begin);

    if (buf_failed(to))
        return;
    if (is_header)
        memcpy(to->data + begin, &length, sizeof length);
    else
        memcpy(to->data + begin, &(uint16_t){ (uint16_t)length }, sizeof(uint16_t));
}

static size_t begin_message(struct buf *to, unsigned type, uint8_t family, uint16_t resource) {
    const struct nlmsghdr header = { .nlmsg_type = (uint16_t)type,
        .nlmsg_flags = NLM_F_REQUEST | NLM_F_CREATE };
    const struct nfgenmsg body = { family, NFNETLINK_V0, htons(resource) };
    size_t begin = to->length;

    buf_add(to, &header, sizeof header);
    buf_add(to, &body, sizeof body);
    return begin;
}

static void add(struct buf *to, unsigned type, const void *data, size_t length) {
    static const char zeros[NLMSG_ALIGNTO];
    const struct rtattr header = { (uint16_t)(sizeof header + length), (uint16_t)type };

    buf_add(to, &header, sizeof header);
    buf_add(to, data, length);
    buf_add(to, zeros, NLMSG_ALIGN(length) - length);
}

static void add_text(struct buf *to, unsigned type, const char *text) {
    add(to, type, text, strlen(text) + 1);
}

static void add_number(struct buf *to, unsigned type, uint32_t value) {
    add(to, type, &(uint32_t){ htonl(value) }, sizeof value);
}

static size_t nest(struct buf *to, unsigned type) {
    size_t begin = to->length;

    add(to, type | NLA_F_NESTED, NULL, 0);
    return begin;
}

static void add_chain(struct buf *to) {
    size_t message = begin_message(to, TYPE(NFT_MSG_NEWTABLE), NFPROTO_INET, 0), hook;

    add_text(to, NFTA_TABLE_NAME, TABLE);
    end(to, message, true);
    message = begin_message(to, TYPE(NFT_MSG_NEWCHAIN), NFPROTO_INET, 0);
    add_text(to, NFTA_CHAIN_TABLE, TABLE);
    add_text(to, NFTA_CHAIN_NAME, TABLE);
    hook = nest(to, NFTA_CHAIN_HOOK);
    add_number(to, NFTA_HOOK_HOOKNUM, NF_INET_PRE_ROUTING);
    add_number(to, NFTA_HOOK_PRIORITY, 0);
    end(to, hook, false);
    add_text(to, NFTA_CHAIN_TYPE, "filter");
    end(to, message, true);
}

static void add_tproxy(struct buf *to) {
    const uint16_t port = htons(1);
    size_t element = nest(to, NFTA_LIST_ELEM), data, value;

    add_text(to, NFTA_EXPR_NAME, "immediate");
    data = nest(to, NFTA_EXPR_DATA);
    add_number(to, NFTA_IMMEDIATE_DREG, NFT_REG_1);
    value = nest(to, NFTA_IMMEDIATE_DATA);
    add(to, NFTA_DATA_VALUE, &port, sizeof port);
    end(to, value, false);
    end(to, data, false);
    end(to, element, false);
    element = nest(to, NFTA_LIST_ELEM);
    add_text(to, NFTA_EXPR_NAME, "tproxy");
    data = nest(to, NFTA_EXPR_DATA);
    add_number(to, NFTA_TPROXY_FAMILY, NFPROTO_UNSPEC);
    add_number(to, NFTA_TPROXY_REG_PORT, NFT_REG_1);
    end(to, data, false);
    end(to, element, false);
}

static void add_reject(struct buf *to) {
    const uint8_t code = NFT_REJECT_ICMPX_PORT_UNREACH;
    size_t element = nest(to, NFTA_LIST_ELEM), data;

    add_text(to, NFTA_EXPR_NAME, "reject");
    data = nest(to, NFTA_EXPR_DATA);
    add_number(to, NFTA_REJECT_TYPE, NFT_REJECT_ICMPX_UNREACH);
    add(to, NFTA_REJECT_ICMP_CODE, &code, sizeof code);
    end(to, data, false);
    end(to, element, false);
}

/* The kernel carries the batch out before send() returns, and answers failures alone. */
static bool transact(const struct buf *batch) {
    auto_close int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);
    char answer[512];

    if (fd < 0 || buf_failed(batch) || send(fd, batch->data, batch->length, 0) < 0)
        return false;
    return recv(fd, answer, sizeof answer, MSG_DONTWAIT) < 0;
}

bool nft_probe(void) {
    auto_buf struct buf batch = BUF_INIT;
    size_t message = begin_message(&batch, NFNL_MSG_BATCH_BEGIN, AF_UNSPEC, NFNL_SUBSYS_NFTABLES);
    size_t expressions;

    end(&batch, message, true);
    add_chain(&batch);
    message = begin_message(&batch, TYPE(NFT_MSG_NEWRULE), NFPROTO_INET, 0);
    add_text(&batch, NFTA_RULE_TABLE, TABLE);
    add_text(&batch, NFTA_RULE_CHAIN, TABLE);
    expressions = nest(&batch, NFTA_RULE_EXPRESSIONS);
    add_tproxy(&batch);
    add_reject(&batch);
    end(&batch, expressions, false);
    end(&batch, message, true);
    message = begin_message(&batch, NFNL_MSG_BATCH_END, AF_UNSPEC, NFNL_SUBSYS_NFTABLES);
    end(&batch, message, true);
    return transact(&batch);
}
