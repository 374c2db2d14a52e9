#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
set -e
echo "hello" > /srv/site/index.html
chown alice:staff /srv/site/index.html
busybox httpd -u alice:staff -p 127.0.0.1:8080 -h /srv/site
