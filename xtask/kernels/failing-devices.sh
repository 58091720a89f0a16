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
# Good for a second and bad for one, in turn. Not before the program has filled its memory: it would not start.
echo "0 $sectors linear $loop 0" | dmsetup create --noudevsync flakey
dmsetup mknodes flakey
[ -b /dev/mapper/flakey ] || { echo 'no device-mapper device: the check shows nothing'; exit 1; }
run 'flakey target' /dev/mapper/flakey "dmsetup suspend --noflush flakey; echo '0 $sectors flakey $loop 0 1 1' | dmsetup load flakey; dmsetup resume --noudevsync flakey; sleep 1.5"
dmsetup remove --noudevsync flakey
run 'loop device without its file' "$loop" "truncate -s 0 /var/tmp/area"
losetup --detach "$loop"

# The kernel reclaims, and kills in the group's name, when its limit sinks under what is in use.
group=/sys/fs/cgroup/lowered
mkdir -p $group
GROUP=$group BESIDE=yes run 'lowered limit' /var/tmp "used=\$(cat $group/memory.current); echo \$((used - (4 << 20))) > $group/memory.max; sleep 3"
echo "of $used bytes in use 4 MiB less were allowed: $(tr '\n' ' ' < $group/memory.events)"
[ "$used" -gt $((32 << 20)) ] && grep -q '^max [1-9]' $group/memory.events || { echo 'the limit was not met'; bad=1; }
exit $bad
