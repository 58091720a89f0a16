"""A dictionary of small Python records, updated with a skewed pattern: pointer chasing.

    python_heap.py [RECORDS] [MORE]      about 500 bytes a record, and MORE; default 2 million, 950 MiB
"""

import hashlib
import random
import sys

from phases import Phases

records = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
more = " " * int(sys.argv[2]) if len(sys.argv) > 2 else ""
rng = random.Random(11)
phases = Phases(records)


def key(i):
    return f"user:{i}"


users = {
    key(i): {"id": i, "name": f"name-{i * 7919 % records}{more}", "tags": [i % 97, i % 89], "score": i / 2}
    for i in range(records)
}
phases.end("build")

mixed = 0
for _ in range(records // 2):
    # A few records are hot, a long tail is cold; the multiplier scatters them in memory.
    rank = min(int(rng.paretovariate(0.6)), records) - 1
    user = users[key(rank * 104729 % records)]
    user["score"] += 1
    mixed = (mixed * 31 + user["id"] + len(user["name"])) % (1 << 48)
phases.end("lookup", records // 2)

digest = hashlib.sha256()
for i in range(0, records, 17):
    digest.update(repr(users[key(i)]).encode())
phases.end("check", records // 17)
print(mixed, digest.hexdigest())
