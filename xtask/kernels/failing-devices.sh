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
# becomes NAME TARGET MORE: on a device that is good while the program fills its memory, and is of TARGET then. Bad from the
# beginning, it would not be used.
becomes() {
    echo "0 $sectors linear $loop 0" | dmsetup create --noudevsync "$1"
    dmsetup mknodes "$1"
    [ -b "/dev/mapper/$1" ] || { echo 'no device-mapper device: the check shows nothing'; exit 1; }
    run "$1 target" "/dev/mapper/$1" "dmsetup suspend --noflush $1; echo '0 $sectors $2' | dmsetup load $1; dmsetup resume --noudevsync $1; $3"
    dmsetup remove --noudevsync "$1"
}
becomes error error true
# Good for a second and bad for one, in turn.
becomes flakey "flakey $loop 0 1 1" 'sleep 1.5'
run 'loop device without its file' "$loop" "truncate -s 0 /var/tmp/area"
losetup --detach "$loop"

# The kernel reclaims, and kills in the group's name, when its limit sinks under what is in use.
group=/sys/fs/cgroup/lowered
mkdir -p $group
GROUP=$group BESIDE=yes run 'lowered limit' /var/tmp "used=\$(cat $group/memory.current); echo \$((used - (4 << 20))) > $group/memory.max; sleep 3"
echo "of $used bytes in use 4 MiB less were allowed: $(tr '\n' ' ' < $group/memory.events)"
[ "$used" -gt $((32 << 20)) ] && grep -q '^max [1-9]' $group/memory.events || { echo 'the limit was not met'; bad=1; }
exit $bad
