#!/bin/sh
# Boots systemd as PID 1 of its own PID, mount, cgroup, UTS and IPC namespaces, in a network namespace that is there.
# usage: systemd.sh NETNS CGROUP DIRECTORY LOWER [WARREN]
# DIRECTORY has upper/, laid over the root LOWER; root/ and work/ for the overlay. WARREN stands for /usr/bin/warren. This
# process becomes `unshare`, and systemd its child, so that killing the child ends all of it.
set -eu

if [ "$1" != inside ]; then
  mkdir "$2"
  echo $$ >"$2/cgroup.procs"
  # Not by `ip netns exec`, which would hide the cgroups.
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
# As udev makes it: what a program may do with it depends on CAP_NET_ADMIN.
mknod -m 666 dev/net/tun c 10 200
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx

# The old root goes below /mnt for an instant.
pivot_root . mnt
umount -l mnt
# Credentials come into a service's namespace by propagation.
mount --make-rshared /
exec env -i container=warren-test PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb LC_ALL=C \
  /lib/systemd/systemd --system --unit=multi-user.target --show-status=0 --log-target=console
