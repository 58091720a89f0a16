# A service as systemd would run it: limits on a slice and on the service itself, controllers passed down level by
# level, and processes in leaves alone. Without --memory the budget follows from the tighter limit.
set -eu
top=/sys/fs/cgroup
slice=$top/system.slice
service=$slice/ebb.service
program='print(sum(list(range(4_000_000))))'
expected=7999998000000

echo '+memory' > $top/cgroup.subtree_control
mkdir -p $service
echo '+memory' > $slice/cgroup.subtree_control
echo 512M > $slice/memory.max
echo 120M > $service/memory.max
echo 0 > $service/memory.swap.max 2> /dev/null || true

# By itself it does not fit.
if (echo $BASHPID > $service/cgroup.procs; exec python3 -c "$program"); then
    echo 'the program fits into the limit: the check shows nothing'
    exit 1
fi
killed=$(sed -n 's/^oom_kill //p' $service/memory.events)
found=$(echo $BASHPID > $service/cgroup.procs; target/release/ebb run --stats /tmp/stats -- python3 -c "$program")
cat /tmp/stats | head -c 400; echo
[ "$found" = $expected ]
[ "$(sed -n 's/^oom_kill //p' $service/memory.events)" = "$killed" ]
# The budget is the service's limit less what is in use and a margin.
python3 -c '
import json
stats = json.load(open("/tmp/stats"))
assert stats["budget_bytes"] < 120 << 20, stats["budget_bytes"]
assert stats["counters"]["evicted"] > 0'
