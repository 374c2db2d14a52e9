/* SPDX-License-Identifier: Apache-2.0 */
/* The readers of a policy's network keys, for the table of keys in policy.c. */
#ifndef ROLLBOX_POLICY_NETWORK_READ_H
#define ROLLBOX_POLICY_NETWORK_READ_H

#include "policy/read.h"

void key_net(struct reader *r, json_t *value);
void key_net_allow_hosts(struct reader *r, json_t *value);
void key_net_allow(struct reader *r, json_t *value);
void key_net_secrets(struct reader *r, json_t *value);
void key_net_max_connections(struct reader *r, json_t *value);
void key_net_max_requests(struct reader *r, json_t *value);
void key_net_max_upload(struct reader *r, json_t *value);
void key_net_max_download(struct reader *r, json_t *value);
void key_net_max_rate(struct reader *r, json_t *value);
void key_net_idle(struct reader *r, json_t *value);
void key_net_log(struct reader *r, json_t *value);
void key_net_log_file(struct reader *r, json_t *value);
void key_net_record(struct reader *r, json_t *value);
void key_net_replay(struct reader *r, json_t *value);
void key_network(struct reader *r, json_t *value); /* publish.c, as the next */
void key_publish(struct reader *r, json_t *value);
void key_devices(struct reader *r, json_t *value); /* devices.c, as the next */
void key_gpus(struct reader *r, json_t *value);
void key_volumes(struct reader *r, json_t *value); /* volumes.c */
void key_tmpfs(struct reader *r, json_t *value);   /* tmpfs.c, as the next */
void key_shm_size(struct reader *r, json_t *value);
void key_ulimits(struct reader *r, json_t *value); /* ulimits.c */

/* After all keys: checks of the network keys against one another. */
void network_check(struct reader *r);
void publish_check(struct reader *r); /* after network_check */
void tmpfs_check(struct reader *r);   /* after the next */
void volumes_check(struct reader *r); /* when the lists of paths are complete */

#endif
