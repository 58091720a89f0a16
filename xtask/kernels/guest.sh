# The checks of a guest, one after another. A line of /run/kernels/checks is NAME, SECONDS and COMMAND, with tabs
# between. Progress goes to the second serial port, where `cargo xtask kernels` reads it.
export HOME=/root LANG=C.UTF-8
export PATH=/run/kernels/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
report=/dev/ttyS1
cd "$(cat /run/kernels/project)"
# Everything is built, and the guest has no time to look whether it is.
mkdir -p /run/kernels/bin
ln -s /bin/true /run/kernels/bin/cargo
ln -s /run/kernels/busybox /run/kernels/bin/modprobe
echo always > /sys/kernel/mm/transparent_hugepage/enabled
echo 1 > /proc/sys/kernel/numa_balancing
echo '+memory' > /sys/fs/cgroup/cgroup.subtree_control
echo "release $(uname -r)" > $report

while IFS=$'\t' read -r name seconds command <&3; do
    echo "begin $name" > $report
    start=$SECONDS
    timeout -k 5 "$seconds" bash -c "$command" > /run/kernels/output 2>&1 < /dev/null
    status=$?
    cat /run/kernels/output
    [ $status = 0 ] || tail -60 /run/kernels/output | sed 's/^/| /' > $report
    echo "end $status $((SECONDS - start)) $name" > $report
done 3< /run/kernels/checks

# What the kernel itself complains of; an emulated processor is late at times, which is no complaint.
echo "begin kernel log" > $report
complaint='BUG:|WARNING:|Oops|Bad page|Bad rss-counter'
complaints=$(dmesg | grep -v 'soft lockup' | grep -cE "$complaint")
[ "$complaints" = 0 ] || dmesg | grep -A 25 -E "$complaint" | head -80 | sed 's/^/| /' > $report
echo "end $((complaints > 0)) 0 kernel log" > $report
sync
/run/kernels/busybox poweroff -f
