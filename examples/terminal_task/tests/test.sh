#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Writes the reward. Each check ends the test when it fails.
exec >/logs/verifier/test.log 2>&1
set -x
echo 0 >/logs/verifier/reward.txt
work=$(mktemp -d)
chown developer "$work"
cd "$work" || exit
ssh="ssh -o StrictHostKeyChecking=no -o BatchMode=yes -o ConnectTimeout=10"
as_developer() {
    su developer -c "export GIT_SSH_COMMAND='$ssh'; cd $work && $1"
}
page=$RANDOM$RANDOM

as_developer "git clone -q git@127.0.0.1:site.git site" || exit
as_developer "cd site && git config user.name d && git config user.email d@example.org && git checkout -q -B main &&
    echo $page >index.html && git add . && git commit -q -m page && git push -q origin main" || exit
[ "$(curl -s http://127.0.0.1:8080/)" = "$page" ] || exit
as_developer "cd site && git checkout -q -b draft && echo draft >index.html && git commit -q -a -m draft &&
    git push -q -f origin draft" || exit
[ "$(curl -s http://127.0.0.1:8080/)" = "$page" ] || exit
as_developer "$ssh git@127.0.0.1 id" && exit
as_developer "$ssh root@127.0.0.1 id" && exit
[ "$(stat -c %U /home/git/site.git)" = git ] || exit
sshd=$(/usr/sbin/sshd -T)
grep -qx 'passwordauthentication no' <<<"$sshd" || exit
grep -qx 'permitrootlogin no' <<<"$sshd" || exit
for status in /proc/[0-9]*/status; do
    if grep -qx 'Name:.nginx' "$status" && grep -q '^Uid:.[1-9]' "$status"; then
        echo 1 >/logs/verifier/reward.txt
    fi
done
