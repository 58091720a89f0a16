"""Worker processes, forked without exec, each read all of a dictionary they inherited.

    python_fork.py [RECORDS]      about 500 bytes a record; default 2 million, 950 MiB

Reading a Python object counts its references, so every worker gets a copy of its own of the pages that it
reads. The tree needs the parent's memory, and as much again for each of three workers.
"""

import hashlib
import multiprocessing
import sys

records = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
data = {i: f"record {i} of many, {i * 7919 % 100003}" for i in range(records)}


def digest(step):
    found = hashlib.sha256()
    for i in range(0, records, step):
        found.update(data[i].encode())
    return found.hexdigest()


with multiprocessing.get_context("fork").Pool(3) as pool:
    print(pool.map(digest, [1, 2, 3, 5, 7, 11] * 4, chunksize=1))
print(digest(1))
