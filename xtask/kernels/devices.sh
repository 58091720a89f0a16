# A file and a loop device with ext4 beside each other: both are used, one is added while the program runs, and one
# is emptied and taken away.
set -eu
ebb=$PWD/target/release/ebb
cd "$(mktemp -d -p /var/tmp)"
truncate -s 64M first second
mkswap -q first; mkswap -q second
loop=$(losetup --find --show second)
program='
import os, sys, time
data = [os.urandom(4096) for _ in range(12_000)]
open("filled", "w").close()
while not os.path.exists("go"): time.sleep(0.1)
import hashlib
print(hashlib.sha256(b"".join(data[::7])).hexdigest() != "", sum(map(len, data)))
'
"$ebb" run --memory 32M --pool none --swap first --stats stats -- python3 -c "$program" > output &
run=$!
for _ in $(seq 600); do [ -e filled ] && break; sleep 0.2; done
"$ebb" swap on "$loop" $run
"$ebb" swap show $run
"$ebb" swap off "$PWD/first" $run
"$ebb" swap show $run | tee shown
! grep -q first shown
touch go
wait $run
grep 'True 49152000' output
losetup --detach "$loop"
