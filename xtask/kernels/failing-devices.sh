# What fails under a program that pages: device-mapper's error and flakey targets, a loop device whose file is cut, and a
# limit of the control group that is lowered. The same output, or an end with a message of ebb's; never another output,
# and never a wait without end.
set -u
. xtask/kernels/survives.sh

modprobe dm_mod; modprobe dm_flakey
truncate -s 96M /var/tmp/area
mkswap -q /var/tmp/area
loop=$(losetup --find --show /var/tmp/area)
sectors=$(blockdev --getsz "$loop")
echo "0 $sectors linear $loop 0" | dmsetup create --noudevsync failing
dmsetup mknodes failing
[ -b /dev/mapper/failing ] || { echo 'no device-mapper device: the check shows nothing'; exit 1; }
run 'error target' /dev/mapper/failing "dmsetup suspend --noflush failing; echo '0 $sectors error' | dmsetup load failing; dmsetup resume --noudevsync failing"
dmsetup remove --noudevsync failing
echo "0 $sectors flakey $loop 0 1 1" | dmsetup create --noudevsync flakey
dmsetup mknodes flakey
[ -b /dev/mapper/flakey ] || { echo 'no device-mapper device: the check shows nothing'; exit 1; }
run 'flakey target' /dev/mapper/flakey 'sleep 2'
dmsetup remove --noudevsync flakey
run 'loop device without its file' "$loop" "truncate -s 0 /var/tmp/area"
losetup --detach "$loop"

# The kernel reclaims and refuses in the group's name when its limit sinks under what is in use.
group=/sys/fs/cgroup/lowered
mkdir -p $group
echo 160M > $group/memory.max
run 'lowered limit' /var/tmp "echo \$pid > $group/cgroup.procs; echo 96M > $group/memory.max"
exit $bad
