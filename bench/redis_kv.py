"""A redis-server filled with JSON-like values and read back with a skewed pattern.

    redis_kv.py [KEYS]      about 470 bytes a key; default 1.5 million, 700 MiB in the server

Client and server are one process tree and talk over a UNIX socket. Every value read is
compared with the one written. EBB_REDIS names the server's program.
"""

import hashlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import time

from phases import Phases, report

keys = int(sys.argv[1]) if len(sys.argv) > 1 else 1_500_000
reads = max(1, keys // 6)


def request(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


def value(i):
    note = hashlib.md5(str(i).encode()).hexdigest().encode() * 6
    return (
        b'{"id":%d,"name":"customer-%d","email":"c%d@example.org","city":"city-%d","balance":%d,'
        b'"active":true,"tags":["a%d","b%d"],"note":"%b"}'
        % (i, i * 7919 % keys, i, i % 1000, i * 37 % 100000, i % 13, i % 17, note)
    )


def connect(path):
    for _ in range(600):
        try:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(path)
            return connection
        except OSError:
            time.sleep(0.05)
    sys.exit("redis_kv: the server does not answer")


with tempfile.TemporaryDirectory() as directory:
    path = f"{directory}/redis"
    server = subprocess.Popen(
        [os.environ.get("EBB_REDIS", "redis-server"), "--port", "0", "--unixsocket", path]
        + ["--save", "", "--appendonly", "no", "--dir", directory],
        stdout=subprocess.DEVNULL,
    )
    client = connect(path)
    replies = client.makefile("rb", 1 << 20)
    phases = Phases(keys)
    for start in range(0, keys, 1000):
        batch = range(start, min(keys, start + 1000))
        client.sendall(b"".join(request(b"SET", b"k%d" % i, value(i)) for i in batch))
        for _ in batch:
            assert replies.readline() == b"+OK\r\n"
    phases.end("fill")

    rng = random.Random(3)
    latencies = []
    digest = hashlib.sha256()
    for _ in range(reads):
        i = min(int(rng.paretovariate(0.5)), keys) * 104729 % keys
        start = time.monotonic()
        client.sendall(request(b"GET", b"k%d" % i))
        length = int(replies.readline()[1:])
        data = replies.read(length + 2)[:-2]
        latencies.append(time.monotonic() - start)
        assert data == value(i), f"wrong value for k{i}"
        digest.update(data)
    phases.end("get", reads)
    latencies.sort()
    for percent in (50, 99, 99.9):
        report(f"get_p{percent}", latencies[min(reads - 1, int(reads * percent / 100))])
    client.sendall(request(b"SHUTDOWN", b"NOSAVE"))
    server.wait()
    print(digest.hexdigest())
