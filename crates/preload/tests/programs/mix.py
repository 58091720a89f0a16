"""Threads, both ways of multiprocessing, subprocess, SQLite: one line each."""
import hashlib
import multiprocessing
import os
import sqlite3
import subprocess
import sys
import threading


def work(n):
    rows = [bytes([n % 256]) * (i * 7 % 4000) for i in range(3000)]
    return hashlib.sha256(b"".join(rows)).hexdigest()[:12]


def threads():
    out = {}
    crew = [threading.Thread(target=lambda n=n: out.update({n: work(n)})) for n in range(8)]
    [t.start() for t in crew]
    [t.join() for t in crew]
    return [out[n] for n in range(8)]


def processes(method):
    with multiprocessing.get_context(method).Pool(3) as pool:
        return pool.map(work, range(9))


def database():
    db = sqlite3.connect(":memory:")
    db.execute("create table t (k integer primary key, v text)")
    db.executemany("insert into t values (?, ?)", ((i, work(i % 3) * (i % 50)) for i in range(300)))
    return db.execute("select sum(length(v)), count(*), max(v) from t where k % 7 < 3").fetchone()


if __name__ == "__main__":
    print(threads())
    print(processes("fork"))
    print(processes("spawn"))
    print(database())
    print(subprocess.run(["sort", "-r"], input=b"b\na\nc\n", capture_output=True, env={}).stdout)
    print(subprocess.run("echo $((6*7)); exit 3", shell=True, capture_output=True).returncode)
    pid = os.fork()
    if pid == 0:
        os._exit(len(work(1)))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), os.system("exit 5") >> 8)
    print(os.popen("echo popen").read().strip(), file=sys.stdout)
