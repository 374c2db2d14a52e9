#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get install -y --no-install-recommends nginx openssh-server

# The repository, and its user without a shell.
useradd --create-home --shell /usr/bin/git-shell git
install -d -o git -g git -m 700 /home/git/.ssh
install -o git -g git -m 600 /home/developer/.ssh/id_ed25519.pub /home/git/.ssh/authorized_keys
install -d -o git -g git /srv/site
su -s /bin/sh git -c 'git init -q --bare --initial-branch=main /home/git/site.git'
cat >/home/git/site.git/hooks/post-receive <<'HOOK'
#!/bin/sh
while read -r old new ref; do
    if [ "$ref" = refs/heads/main ]; then
        git --work-tree=/srv/site checkout -q -f main
    fi
done
HOOK
chmod 755 /home/git/site.git/hooks/post-receive
chown git:git /home/git/site.git/hooks/post-receive

# Without sendfile it works in sandboxes without a memory cgroup, too.
cat >/etc/nginx/sites-available/default <<'SITE'
server {
    listen 127.0.0.1:8080;
    root /srv/site;
    index index.html;
    sendfile off;
}
SITE
printf 'PasswordAuthentication no\nPermitRootLogin no\n' >/etc/ssh/sshd_config.d/task.conf
service ssh start
service nginx start
