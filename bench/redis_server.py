"""A redis-server for as long as a workload needs it, and a client of it over a UNIX socket.

EBB_REDIS names the server's program.
"""

import os
import socket
import subprocess
import sys
import time


def request(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


class Server:
    def __init__(self, directory, *options):
        path = f"{directory}/socket"
        self.process = subprocess.Popen(
            [os.environ.get("EBB_REDIS", "redis-server"), "--port", "0", "--unixsocket", path]
            + ["--dir", directory, "--save", "", "--appendonly", "no", *options],
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
            sys.exit("redis-server does not answer")
        self.replies = self.socket.makefile("rb", 1 << 20)

    def ask(self, *words):
        self.socket.sendall(request(*words))
        line = self.replies.readline()
        if line[:1] == b"$":
            return self.replies.read(int(line[1:]) + 2)[:-2]
        return line.strip()

    def fill(self, keys, value):
        """Sets each of so many keys, a thousand a batch, to what `value` makes of its number."""
        for start in range(0, keys, 1000):
            batch = range(start, min(keys, start + 1000))
            self.socket.sendall(b"".join(request(b"SET", b"k%d" % i, value(i)) for i in batch))
            for _ in batch:
                assert self.replies.readline() == b"+OK\r\n"

    def end(self):
        self.socket.sendall(request(b"SHUTDOWN", b"NOSAVE"))
        assert self.process.wait() == 0
