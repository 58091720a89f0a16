"""A redis-server that saves its data from a forked child while its client overwrites them.

    redis_bgsave.py [KEYS]      about 1000 bytes a key at peak; default 500,000, 480 MiB

The child must write the data as they were at the fork: redis-check-rdb must find the file
sound, and a second server that loads it must have the digest that the first had then.
"""

import hashlib
import subprocess
import sys
import tempfile
import time

from phases import Phases
from redis_server import Server

keys = int(sys.argv[1]) if len(sys.argv) > 1 else 500_000


def value(i, salt):
    return b'{"id":%d,"note":"%b"}' % (i, hashlib.md5(b"%d %b" % (i, salt)).hexdigest().encode() * 14)


def start(directory):
    server = Server(directory, "--enable-debug-command", "yes")
    while b"LOADING" in server.ask(b"DBSIZE"):
        time.sleep(0.02)
    return server


with tempfile.TemporaryDirectory() as directory:
    first = start(directory)
    phases = Phases(keys)
    first.fill(keys, lambda i: value(i, b"before"))
    phases.end("fill")
    digest = first.ask(b"DEBUG", b"DIGEST")
    phases.end("digest")
    assert first.ask(b"BGSAVE").startswith(b"+Background saving started")
    first.fill(keys, lambda i: value(i, b"after"))
    while b"rdb_bgsave_in_progress:1" in (info := first.ask(b"INFO", b"persistence")):
        time.sleep(0.02)
    phases.end("save")
    assert b"rdb_last_bgsave_status:ok" in info, info
    assert first.ask(b"DEBUG", b"DIGEST") != digest
    for i in range(0, keys, 997):
        assert first.ask(b"GET", b"k%d" % i) == value(i, b"after")
    first.end()

    checked = subprocess.run(["redis-check-rdb", f"{directory}/dump.rdb"], capture_output=True, text=True)
    assert checked.returncode == 0 and "RDB looks OK" in checked.stdout, checked.stdout + checked.stderr

    second = start(directory)
    assert second.ask(b"DEBUG", b"DIGEST") == digest
    second.end()
    print(keys, digest.decode())
