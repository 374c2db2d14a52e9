# SPDX-License-Identifier: Apache-2.0
# Commands of distribution.py: a name after "###", and its script for bash.

### apt-get update
apt-get update
### apt-get install
apt-get install -y --no-install-recommends nginx openssh-server openssh-client postgresql redis-server cron \
    git tmux locales curl acl strace iproute2 python3-pip ca-certificates
### apt-get remove
apt-get remove -y tmux && apt-get install -y tmux
### dpkg-reconfigure
dpkg-reconfigure -f noninteractive tzdata
### useradd
useradd -m -s /bin/bash carol
### adduser, deluser
adduser --disabled-password --gecos '' dave && deluser --remove-home dave
### groupadd, usermod, gpasswd
groupadd -g 555 five && usermod -aG five carol && gpasswd -a carol mail && id -nG carol | grep -q 'five'
### chpasswd, passwd
echo carol:secret | chpasswd && passwd -S carol
### su - USER -c
su - carol -c 'test $(id -un) = carol && test $PWD = /home/carol'
### sudo
echo 'carol ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/c && su carol -c 'test $(sudo id -u) = 0 && test $(sudo -u nobody id -un) = nobody'
### chown, chmod, install -o
touch /root/f && chown carol:mail /root/f && install -o carol -g mail -m 640 /root/f /root/g &&
    test $(stat -c %U:%G:%a /root/g) = carol:mail:640
### cp -a, tar keep owners
cp -a /home/carol /root/copy && tar -C / -cf - home/carol | tar -C /root -xf - &&
    test $(stat -c %U /root/home/carol) = carol
### others' files are closed
install -m 600 /root/f /srv/f && ! su carol -c 'cat /srv/f'
### setuid program of a user
cp /usr/bin/id /usr/local/bin/idu && chown carol /usr/local/bin/idu && chmod 4755 /usr/local/bin/idu &&
    su nobody -s /bin/sh -c 'idu | grep -q euid'
### setcap, getcap
setcap cap_net_bind_service+ep /usr/local/bin/idu && getcap /usr/local/bin/idu | grep -q bind &&
    /usr/local/bin/idu
### setpriv
setpriv --reuid carol --regid carol --init-groups id
### chroot --userspec
test $(chroot --userspec=carol / id -un) = carol
### mkfifo
mkfifo /tmp/fifo
### ping
ping -c 1 127.0.0.1 && su carol -c 'ping -c 1 127.0.0.1'
### service nginx start
service nginx start && curl -s http://127.0.0.1/ | grep -q nginx &&
    ps -eo user,comm | grep -q '^www-data *nginx'
### nginx with sendfile off
printf 'sendfile off;\n' > /etc/nginx/conf.d/sendfile.conf && sed -i '/sendfile on/d' /etc/nginx/nginx.conf &&
    service nginx restart && sleep 1 && curl -s http://127.0.0.1/ | grep -q nginx
### service nginx stop
service nginx stop
### sshd, login as a user
su carol -c "mkdir -m 700 ~/.ssh && ssh-keygen -q -N '' -t ed25519 -f ~/.ssh/id_ed25519 &&
cp ~/.ssh/id_ed25519.pub ~/.ssh/authorized_keys" &&
    service ssh start && su carol -c 'ssh -o StrictHostKeyChecking=no 127.0.0.1 id'
### sshd, login as root
mkdir -p -m 700 /root/.ssh && cp /home/carol/.ssh/id_ed25519* /home/carol/.ssh/authorized_keys /root/.ssh/ &&
    chown root /root/.ssh/* && ssh -o StrictHostKeyChecking=no root@127.0.0.1 true
### scp
scp -o StrictHostKeyChecking=no /etc/passwd root@127.0.0.1:/tmp/p && cmp /tmp/p /etc/passwd
### git clone over ssh and file
su - carol -c 'git init -q r && cd r && git -c user.email=a@b -c user.name=c commit -q --allow-empty -m x &&
git clone -q ssh://127.0.0.1/home/carol/r ~/r2 && git clone -q /home/carol/r ~/r3'
### crontab
service cron start && echo '* * * * * true' | crontab - && crontab -l &&
    echo '* * * * * true' | crontab -u carol -
### postgres initdb
su postgres -c '/usr/lib/postgresql/*/bin/initdb -D /tmp/pg'
### service postgresql start, psql
service postgresql start && sleep 3 && su postgres -c 'psql -c "select 1"'
### redis
service redis-server start && sleep 1 && redis-cli ping | grep -q PONG
### tmux
tmux new-session -d 'sleep 60' && tmux ls
### script, a terminal of another user
script -qec "su carol -c tty" /dev/null
### locale-gen
echo 'de_DE.UTF-8 UTF-8' > /etc/locale.gen && locale-gen
### update-alternatives
update-alternatives --install /usr/bin/foo foo /bin/true 10
### ulimit
ulimit -Sn 512 && ulimit -Sn $(ulimit -Hn)
### nice
nice -n 5 true
### writing to /dev/stdout as a user
set -o pipefail; su carol -c 'echo x > /dev/stdout' | cat
### host name resolves
getent hosts $(hostname)
### /dev nodes
for n in null zero full random urandom tty ptmx; do test -c /dev/$n || exit 3; done; head -c 4 /dev/urandom | wc -c | grep -q 4
### /dev/fd, stdin, stdout, stderr
test "$(echo a | cat /dev/stdin)" = a && echo x > /dev/stderr && cat /dev/fd/3 3< /etc/passwd > /dev/stdout
### /dev/full
cat /etc/passwd > /dev/full
### /dev/shm
echo x > /dev/shm/f && df /dev/shm && su carol -c 'echo y > /dev/shm/g'
### a terminal of /dev/pts
script -qec 'test -c $(tty)' /dev/null
### reading /proc/sys
cd /proc/sys &&
    cat kernel/osrelease kernel/pid_max kernel/shmmax kernel/random/uuid vm/overcommit_memory fs/file-max \
        net/core/somaxconn
### the host name in /proc/sys
cat /proc/sys/kernel/hostname
### writing to /proc/sys
echo 65536 > /proc/sys/kernel/shmmax
### nproc, free, uptime, ps
nproc && free && uptime && ps aux
### /etc/resolv.conf
grep -q nameserver /etc/resolv.conf
### writing to /etc/hosts
echo 127.0.0.1 other >> /etc/hosts
### orphans are reaped
(setsid sleep 0.1 &); sleep 1; ! ps -eo stat | grep -q ^Z
### start-stop-daemon
start-stop-daemon --start --background --make-pidfile --pidfile /tmp/pid --exec /bin/sleep -- 100 && sleep 0.5 &&
    start-stop-daemon --stop --pidfile /tmp/pid
### root kills a user's process
(su carol -c 'exec sleep 100' &); sleep 1; pkill -u carol sleep
### a user cannot kill root's process
sleep 100 & su carol -c "kill $!"
### runuser
test $(runuser -u carol -- id -un) = carol
### sudo -l
sudo -l -U carol
### setfacl
setfacl -m u:carol:r /root/g && getfacl /root/g | grep -q user:carol
### fallocate
fallocate -l 1M /tmp/reserved
### strace
strace -f -o /dev/null sh -c true
### ldconfig
ldconfig
### python3 -m venv
apt-get install -y --no-install-recommends python3-venv && python3 -m venv /tmp/venv &&
    /tmp/venv/bin/pip --version
### pip install
pip install --break-system-packages --no-index --no-deps /usr/share/python-wheels/setuptools-*.whl &&
    pip list | grep -q setuptools
### ip addr
ip -o addr show lo
### date -s
date -s 2030-01-01
### mknod of a device
mknod /tmp/null c 1 3
### mount
mount -t tmpfs none /mnt
### unshare --user
unshare -U true
### hostname NAME
hostname other
### raw socket
perl -MSocket -e 'socket(my $s, AF_INET, SOCK_RAW, 1) or exit 1'
### chattr +i
touch /tmp/i && chattr +i /tmp/i
### npm install
apt-get install -y --no-install-recommends nodejs &&
    curl -sSf https://registry.npmjs.org/npm/-/npm-9.9.4.tgz | tar -C /opt -xz && mkdir /tmp/n && cd /tmp/n &&
    node /opt/package/bin/npm-cli.js install semver && node -e 'require("semver")'
### npm install -g
node /opt/package/bin/npm-cli.js install -g cowsay && cowsay x
### pip install from PyPI
pip install --break-system-packages toolz && python3 -c 'import toolz'
### cargo build
apt-get install -y --no-install-recommends cargo librust-itoa-dev && mkdir -p /root/.cargo &&
    printf '[source.crates-io]\nreplace-with = "d"\n[source.d]\ndirectory = "/usr/share/cargo/registry"\n' \
        > /root/.cargo/config.toml &&
    cd /tmp && cargo new -q c && cd c && echo 'itoa = "1"' >> Cargo.toml && cargo build -q && cargo run -q
### cargo install
cargo install -q --path /tmp/c --root /usr/local && c
### dnf install
apt-get install -y --no-install-recommends dnf rpm createrepo-c && mkdir -p /srv/rpms /srv/fedora/etc && cp /etc/passwd /etc/group /srv/fedora/etc &&
    cat > /tmp/thing.spec <<'END'
Name: thing
Version: 1
Release: 1
Summary: x
License: x
AutoReqProv: no
%description
x
%install
mkdir -p %{buildroot}/srv/thing
echo x > %{buildroot}/srv/thing/file
cp /bin/true %{buildroot}/srv/thing/tool
%files
%attr(0640,mail,games) /srv/thing/file
%dir %attr(2755,root,mail) /srv/thing
%attr(0755,root,root) %caps(cap_net_bind_service=p) /srv/thing/tool
END
rpmbuild -bb --define '_rpmdir /srv/rpms' /tmp/thing.spec && createrepo_c -q /srv/rpms &&
    dnf -y --installroot=/srv/fedora --releasever=1 --repofrompath=l,file:///srv/rpms --nogpgcheck \
        --disablerepo='*' --enablerepo=l install thing &&
    test $(stat -c %u:%g:%a /srv/fedora/srv/thing/file) = 8:60:640
### apache2
apt-get install -y --no-install-recommends apache2 && service nginx stop; service apache2 start && sleep 1 &&
    curl -sf http://127.0.0.1/ | grep -q Apache && service apache2 stop
### mariadb
apt-get install -y --no-install-recommends mariadb-server && service mariadb start && mariadb -e 'select 1'
### supervisor
apt-get install -y --no-install-recommends supervisor &&
    printf '[program:x]\ncommand=sleep 100\nuser=carol\n' > /etc/supervisor/conf.d/x.conf &&
    service supervisor start && sleep 3 && supervisorctl status x | grep -q RUNNING
### dbus
apt-get install -y --no-install-recommends dbus && service dbus start &&
    dbus-send --system --print-reply --dest=org.freedesktop.DBus / org.freedesktop.DBus.ListNames
### rsyslog, logger
apt-get install -y --no-install-recommends rsyslog bsdutils && rsyslogd && logger hello && sleep 1 &&
    grep -q hello /var/log/syslog
### at
apt-get install -y --no-install-recommends at && service atd start && echo 'touch /tmp/at' | at now && sleep 3 &&
    test -e /tmp/at
### logrotate
apt-get install -y --no-install-recommends logrotate && logrotate -f /etc/logrotate.conf
### rsync -a over ssh
apt-get install -y --no-install-recommends rsync &&
    rsync -a -e 'ssh -o StrictHostKeyChecking=no' /home/carol root@127.0.0.1:/srv/ &&
    test $(stat -c %U /srv/carol) = carol
### gdb
apt-get install -y --no-install-recommends gdb libc6-dbg && gdb -batch -ex 'break exit' -ex run -ex bt --args /bin/true &&
    su carol -c 'gdb -batch -ex run --args /bin/true'
### gdb attaches to a user's process
(su carol -c 'exec sleep 50' &); sleep 1; gdb -batch -p $(pgrep -u carol -x sleep | head -1) -ex bt
### lsof, fuser
apt-get install -y --no-install-recommends lsof psmisc && lsof -p $$ && (sleep 20 > /tmp/held &) && sleep 0.3 &&
    fuser /tmp/held
### inotifywait
apt-get install -y --no-install-recommends inotify-tools &&
    mkdir -p /tmp/watched && { (sleep 2; touch /tmp/watched/x) & inotifywait -t 20 /tmp/watched; }
### screen
apt-get install -y --no-install-recommends screen && screen -dmS s sleep 50 && sleep 2 &&
    screen -ls | grep -q Detached
### expect, su with a password
apt-get install -y --no-install-recommends expect &&
    su nobody -s /bin/sh -c "expect -c 'spawn su carol -c id; expect Password:; send secret\\r; expect carol; exit 0'"
### sg, newgrp
su carol -c 'test $(sg five "id -gn") = five'
### chsh, chfn, chage
chsh -s /bin/sh carol && chfn -f C carol && chage -M 90 carol
### visudo -c, vipw
chmod 440 /etc/sudoers.d/c && visudo -c && EDITOR=true vipw
### install a package with dpkg -i
cd /tmp && apt-get download hello && dpkg -i hello_*.deb && hello
### gcc, make
apt-get install -y --no-install-recommends gcc make libc6-dev && echo 'int main(){return 0;}' > /tmp/m.c &&
    make -C /tmp m && /tmp/m
### fakeroot
apt-get install -y --no-install-recommends fakeroot && su carol -c 'fakeroot sh -c "test \$(id -u) = 0"'
### fakeroot-tcp
su carol -c 'fakeroot-tcp sh -c "test \$(id -u) = 0"'
### System V IPC
ipcmk -M 4096 && ipcmk -S 2 && ipcmk -Q && ipcs && ipcrm -a
### System V shared memory
ipcmk -M 4096 && ipcs -m && ipcrm --all=shm
### POSIX message queues
python3 -c 'import ctypes; l=ctypes.CDLL("librt.so.1"); exit(l.mq_open(b"/q", 0o102, 0o600, None) < 0)'
### locks of files
flock -n /tmp/lock true
### sparse files, hard links, xattrs of users
apt-get install -y --no-install-recommends attr && truncate -s 1G /tmp/sparse && ln /tmp/sparse /tmp/hard && setfattr -n user.a -v b /tmp/sparse
### set-group-id directories
install -d -g mail -m 2775 /srv/d && touch /srv/d/f && test $(stat -c %G /srv/d/f) = mail
### sticky /tmp
su carol -c 'touch /tmp/carols' && ! su nobody -s /bin/sh -c 'rm -f /tmp/carols'
### reading /sys
cat /sys/class/net/lo/mtu /sys/devices/system/cpu/online
### writing to /sys
echo 0 > /sys/kernel/mm/ksm/run
### interfaces in /sys/class/net
test -r /sys/class/net/lo/address && ls /sys/class/net
### dmesg
dmesg
### renice, ionice, taskset, chrt -o
renice -n 5 $$ && ionice -c 3 true && taskset -c 0 true && chrt -o 0 true
### a negative nice value
nice -n -5 true 2>&1 | grep -q . && exit 1
### swapon
swapon -s
### iptables
apt-get install -y --no-install-recommends iptables && iptables -L
### losetup
losetup -f /tmp/sparse
### modprobe
apt-get install -y --no-install-recommends kmod && modprobe nothing
### systemctl
systemctl status
