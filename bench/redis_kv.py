"""A redis-server filled with JSON-like values and read back with a skewed pattern.

    redis_kv.py [KEYS]      about 470 bytes a key; default 1.5 million, 690 MiB

Client and server are one process tree. Every value read is compared with the one written.
"""

import hashlib
import random
import sys
import tempfile
import time

from phases import Phases, report
from redis_server import Server

keys = int(sys.argv[1]) if len(sys.argv) > 1 else 1_500_000
reads = max(1, keys // 6)


def value(i):
    note = hashlib.md5(str(i).encode()).hexdigest().encode() * 6
    return (
        b'{"id":%d,"name":"customer-%d","email":"c%d@example.org","city":"city-%d","balance":%d,'
        b'"active":true,"tags":["a%d","b%d"],"note":"%b"}'
        % (i, i * 7919 % keys, i, i % 1000, i * 37 % 100000, i % 13, i % 17, note)
    )


with tempfile.TemporaryDirectory() as directory:
    server = Server(directory)
    phases = Phases(keys)
    server.fill(keys, value)
    phases.end("fill")

    rng = random.Random(3)
    latencies = []
    digest = hashlib.sha256()
    for _ in range(reads):
        i = min(int(rng.paretovariate(0.5)), keys) * 104729 % keys
        start = time.monotonic()
        data = server.ask(b"GET", b"k%d" % i)
        latencies.append(time.monotonic() - start)
        assert data == value(i), f"wrong value for k{i}"
        digest.update(data)
    phases.end("get", reads)
    latencies.sort()
    for percent in (50, 99, 99.9):
        report(f"get_p{percent}", latencies[min(reads - 1, int(reads * percent / 100))])
    server.end()
    print(digest.hexdigest())
