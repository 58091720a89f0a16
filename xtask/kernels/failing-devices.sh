# What fails under a program that pages: device-mapper's error and flakey targets, a loop device whose file is cut, and a
# limit of the control group that is lowered. The same output, or an end with a message of ebb's; never another output,
# and never a wait without end.
set -u
ebb=$PWD/target/release/ebb
program='
import hashlib, os, time
data = [os.urandom(4096) for _ in range(8_000)]
sums = [hashlib.sha1(page).digest() for page in data]
open("filled", "w").close()
while not os.path.exists("go"): time.sleep(0.1)
print(all(hashlib.sha1(page).digest() == sum for page, sum in zip(data, sums)), len(data))
'
bad=0
# run NAME SWAP FAILURE: FAILURE is a command.
run() {
    cd "$(mktemp -d -p /var/tmp)"
    timeout -k 5 200 "$ebb" run --memory 32M --pool none --swap "$2" -- python3 -c "$program" > output 2> said &
    pid=$!
    for _ in $(seq 500); do [ -e filled ] && break; sleep 0.2; done
    eval "$3"
    touch go
    wait $pid
    status=$?
    echo "$1: status $status, output '$(cat output)'"; tail -3 said
    if [ $status = 124 ] || [ $status = 137 ]; then echo "$1: it hung"; bad=1; fi
    if [ $status = 0 ]; then [ "$(cat output)" = 'True 8000' ] || bad=1; else grep -q '^ebb' said || bad=1; fi
}

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
