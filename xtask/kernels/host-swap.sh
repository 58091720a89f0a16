# The kernel swaps too, and at the same pages: programs under `ebb` in a group from which the kernel reclaims all
# the time. Then the test of UFFDIO_MOVE against swapping (CVE-2025-38242), where swap is.
set -eu
modprobe zram 2> /dev/null || true
[ -e /sys/block/zram0 ] || cat /sys/class/zram-control/hot_add > /dev/null
echo 768M > /sys/block/zram0/disksize
mkswap /dev/zram0 > /dev/null
swapon /dev/zram0
target/release/ebb doctor || { echo 'refused with swap on'; exit 1; }
target/release/ebb doctor | grep 'kernel-swap'

group=/sys/fs/cgroup/swapped
echo '+memory' > /sys/fs/cgroup/cgroup.subtree_control
mkdir -p $group
reclaim() {
    while [ -d $group ]; do
        echo 16M swappiness=200 > $group/memory.reclaim 2> /dev/null || echo 16M > $group/memory.reclaim 2> /dev/null || true
        sleep 0.2
    done
}
reclaim &
for budget in 48M 96M 400M; do
    found=$(echo $BASHPID > $group/cgroup.procs; EBB_CHECK=end target/release/ebb run --memory $budget --stats /tmp/stats -- \
        python3 -c 'print(sum(list(range(3_000_000))))')
    grep -E '^(pswpout|pswpin|zswpout) ' $group/memory.stat || true
    grep -o '"map_disagrees":[^,]*' /tmp/stats || true
    [ "$found" = 4499998500000 ]
done
swapped=$(sed -n 's/^pgsteal_anon //p; s/^pswpout //p' $group/memory.stat | sort -n | tail -1)
grep '^pswpout ' /proc/vmstat
rmdir $group 2> /dev/null || { sleep 1; rmdir $group; }
wait
[ "$(sed -n 's/^pswpout //p' /proc/vmstat)" -gt 1000 ]
"$1" --show-output
swapoff /dev/zram0
echo 1 > /sys/block/zram0/reset
