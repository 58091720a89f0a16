"""A redis-server that saves its data from a forked child while its client overwrites them.

    bgsave.py [KEYS]        about 600 bytes a key

What the child writes must be the data as they were at the fork: redis-check-rdb must find the file
sound, and a second server that loads it must have the digest that the first had then.
"""

import hashlib
import os
import socket
import subprocess
import sys
import tempfile
import time

keys = int(sys.argv[1]) if len(sys.argv) > 1 else 120_000


def request(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


def value(i, salt):
    return b'{"id":%d,"note":"%b"}' % (i, hashlib.md5(b"%d %b" % (i, salt)).hexdigest().encode() * 14)


class Server:
    def __init__(self, directory):
        path = f"{directory}/socket"
        self.process = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", path, "--dir", directory]
            + ["--save", "", "--appendonly", "no", "--enable-debug-command", "yes"],
            stdout=subprocess.DEVNULL,
        )
        for _ in range(600):
            try:
                self.socket = socket.socket(socket.AF_UNIX)
                self.socket.connect(path)
                break
            except OSError:
                time.sleep(0.05)
        else:
            sys.exit("bgsave: the server does not answer")
        self.replies = self.socket.makefile("rb", 1 << 20)
        while b"LOADING" in self.ask(b"DBSIZE"):
            time.sleep(0.02)

    def ask(self, *words):
        self.socket.sendall(request(*words))
        line = self.replies.readline()
        if line[:1] == b"$":
            return self.replies.read(int(line[1:]) + 2)[:-2]
        return line.strip()

    def write(self, salt):
        for start in range(0, keys, 1000):
            batch = range(start, min(keys, start + 1000))
            self.socket.sendall(b"".join(request(b"SET", b"k%d" % i, value(i, salt)) for i in batch))
            for _ in batch:
                assert self.replies.readline() == b"+OK\r\n"

    def end(self):
        self.socket.sendall(request(b"SHUTDOWN", b"NOSAVE"))
        assert self.process.wait() == 0


with tempfile.TemporaryDirectory() as directory:
    first = Server(directory)
    first.write(b"before")
    digest = first.ask(b"DEBUG", b"DIGEST")
    assert first.ask(b"BGSAVE").startswith(b"+Background saving started")
    first.write(b"after")
    while b"rdb_bgsave_in_progress:1" in (info := first.ask(b"INFO", b"persistence")):
        time.sleep(0.02)
    assert b"rdb_last_bgsave_status:ok" in info, info
    assert first.ask(b"DEBUG", b"DIGEST") != digest
    for i in range(0, keys, 997):
        assert first.ask(b"GET", b"k%d" % i) == value(i, b"after")
    first.end()

    checked = subprocess.run(["redis-check-rdb", f"{directory}/dump.rdb"], capture_output=True, text=True)
    assert checked.returncode == 0 and "RDB looks OK" in checked.stdout, checked.stdout + checked.stderr

    second = Server(directory)
    assert second.ask(b"DEBUG", b"DIGEST") == digest
    second.end()
    print(keys, digest.decode())
