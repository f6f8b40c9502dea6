#!/bin/sh
# Boots systemd as PID 1 of its own PID, mount, cgroup, UTS and IPC namespaces, in an existing network namespace.
# usage: systemd.sh NETNS CGROUP DIRECTORY LOWER [WARREN]
# DIRECTORY has upper/, which is laid over the root LOWER, and root/ and work/ for the overlay. WARREN replaces
# /usr/bin/warren. This process becomes `unshare` with systemd as its child, so killing the child ends everything.
set -eu

if [ "$1" != inside ]; then
  mkdir "$2"
  echo $$ >"$2/cgroup.procs"
  # Without `ip netns exec`, which would hide the cgroups.
  exec nsenter --net="/run/netns/$1" unshare --cgroup --uts --ipc --mount --propagation private --pid --fork --kill-child \
    /bin/sh "$0" inside "$3" "$4" "${5-}"
fi
directory=$2 lower=$3 warren=$4
cd "$directory"

mount -t overlay overlay -o "lowerdir=$lower,upperdir=upper,workdir=work" root
cd root
if [ -n "$warren" ]; then
  touch usr/bin/warren
  mount --bind "$warren" usr/bin/warren
fi
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/net dev/pts dev/shm
for device in null zero full random urandom tty; do
  touch "dev/$device"
  mount --bind "/dev/$device" "dev/$device"
done
# With the mode that udev sets. CAP_NET_ADMIN decides what a program may do with it.
mknod -m 666 dev/net/tun c 10 200
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx

# The old root is below /mnt for an instant.
pivot_root . mnt
umount -l mnt
# Credentials reach a service's namespace by mount propagation.
mount --make-rshared /
exec env -i container=warren-test PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb LC_ALL=C \
  /lib/systemd/systemd --system --unit=multi-user.target --show-status=0 --log-target=console
