#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
echo 0 > /logs/verifier/reward.txt
[ "$(busybox wget -q -O - http://127.0.0.1:8080/)" = hello ] || exit 0
[ "$(busybox stat -c %U /srv/site/index.html)" = alice ] || exit 0
echo 1 > /logs/verifier/reward.txt
