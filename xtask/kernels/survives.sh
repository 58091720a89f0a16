# run NAME SWAP FAILURE: a program that pages to SWAP, and the command FAILURE does something to it. The same output, or
# an end with a message of ebb's; never another output, and never a wait without end. What was wrong is in $bad. With
# BESIDE the program reads its pages meanwhile, too; with GROUP the tree is in that control group; with MUST_END=well a
# message is not enough.
ebb=$PWD/target/release/ebb
# It ends without freeing its pages one by one: that would bring each back and write it once more.
program='
import hashlib, os, time
data = [os.urandom(4096) for _ in range(8_000)]
sums = [hashlib.sha1(page).digest() for page in data]
open("filled", "w").close()
while not os.path.exists("go"): time.sleep(0.1)
right = True
while right:
    over = os.path.exists("over")
    right = all(hashlib.sha1(page).digest() == sum for page, sum in zip(data, sums))
    if over: break
print(right, len(data), flush=True)
open("ended", "w").close()
os._exit(0)
'
bad=0
run() {
    cd "$(mktemp -d -p /var/tmp)"
    (
        [ -z "${GROUP:-}" ] || echo $BASHPID > "$GROUP/cgroup.procs"
        exec "$ebb" run --memory 32M --pool none --swap "$2" -- python3 -c "$program" > output 2> said
    ) &
    pid=$!
    for _ in $(seq 500); do [ -e filled ] && break; sleep 0.2; done
    [ -z "${BESIDE:-}" ] || touch go
    eval "$3"
    touch over go
    # From here on: the time to fill memory on an emulated processor says nothing.
    for _ in $(seq 400); do kill -0 $pid 2> /dev/null || break; sleep 0.5; done
    if kill -0 $pid 2> /dev/null; then
        echo "$1: it hangs, and its program has$([ -e ended ] || echo ' not') ended"
        waits
        kill -9 $pid
        bad=1
    fi
    wait $pid
    status=$?
    echo "$1: status $status, output '$(cat output)'"; tail -3 said
    # A program that is ended for memory has the status of one that is killed.
    if [ $status = 0 ]; then [ "$(cat output)" = 'True 8000' ] || bad=1; else told $pid || bad=1; fi
    if [ "${MUST_END:-}" = well ] && [ $status != 0 ]; then echo "$1: it did not end well"; bad=1; fi
}

# Whether ebb told why the program ended; or the system, where it killed ebb, too. It does so in a control group where
# the program, which it kills first, takes longer to end than the helper that shares its memory.
told() {
    grep -q '^ebb' said || dmesg | grep "Killed process $1 (ebb)"
}

# Where each thread of the tree waits.
waits() {
    for task in /proc/[0-9]*/task/*; do
        case $(cat "$task/comm" 2> /dev/null) in
            ebb* | tide-guard | python3)
                echo "$task $(cat "$task/comm"): $(grep State "$task/status")"
                head -4 "$task/stack";;
        esac
    done
}
