# run NAME SWAP FAILURE: a program that pages to SWAP, and the command FAILURE does something to it. The same output, or
# an end with a message of ebb's; never another output, and never a wait without end. What was wrong is in $bad. With
# BESIDE the program reads its pages meanwhile, too; with MUST_END=well a message is not enough.
ebb=$PWD/target/release/ebb
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
'
bad=0
run() {
    cd "$(mktemp -d -p /var/tmp)"
    timeout --verbose -k 5 200 "$ebb" run --memory 32M --pool none --swap "$2" -- \
        python3 -c "$program" > output 2> said &
    pid=$!
    # A second before the time is up.
    { sleep 199; ps -eo pid,ppid,stat,etimes,wchan:32,args | grep -E '[e]bb|[p]ython3' > states; } &
    watcher=$!
    for _ in $(seq 500); do [ -e filled ] && break; sleep 0.2; done
    [ -z "${BESIDE:-}" ] || touch go
    eval "$3"
    touch over go
    wait $pid
    status=$?
    kill $watcher 2> /dev/null
    echo "$1: status $status, output '$(cat output)'"; tail -3 said
    # A program that is ended for memory has the status of one that is killed.
    if grep -q '^timeout: sending' said; then
        echo "$1: it hung; the program ended $(($(date +%s) - $(stat -c %Y ended || date +%s))) s before"
        cat states
        bad=1
    fi
    if [ $status = 0 ]; then [ "$(cat output)" = 'True 8000' ] || bad=1; else grep -q '^ebb' said || bad=1; fi
    if [ "${MUST_END:-}" = well ] && [ $status != 0 ]; then echo "$1: it did not end well"; bad=1; fi
}
