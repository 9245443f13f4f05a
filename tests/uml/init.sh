#!/bin/sh
# The first process of a User-mode Linux guest whose root is the host's own files. The kernel's command line gives
# RIG_FOLDER, the checkout; RIG_PYTHON; RIG_GUEST, the Python module to run.
# What it writes goes to a file system of its own in /dev/shm: the checkout may lie anywhere, in /tmp too.
OWN=/dev/shm/guest
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=$OWN TMPDIR=$OWN

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mountpoint -q /dev || mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm && mount -t tmpfs tmpfs /dev/shm

mkdir -p $OWN/modules/lib && ln -s /usr/lib/uml/modules $OWN/modules/lib/modules
modprobe -d $OWN/modules -a bridge veth tun sch_tbf sch_netem
ip link set lo up

cd "$RIG_FOLDER" && "$RIG_PYTHON" -m "$RIG_GUEST" </dev/null
echo "{\"event\": \"over\", \"code\": $?}"
echo o >/proc/sysrq-trigger # power off
sleep 10
