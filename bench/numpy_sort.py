"""Groups a large table in NumPy: sort by key, gather, sum per group.

    numpy_sort.py [ROWS]      about 40 bytes a row at peak; default 40 million rows, 1.5 GiB
"""

import hashlib
import sys

import numpy as np

from phases import Phases

rows = int(sys.argv[1]) if len(sys.argv) > 1 else 40_000_000
phases = Phases(rows * 8 / 4096)

random = np.random.default_rng(7)
keys = random.integers(0, 1_000_000, rows)
values = np.arange(rows, dtype=np.int64) // 3
phases.end("make")
order = np.argsort(keys, kind="stable")
phases.end("argsort")
keys, values = keys[order], values[order]
phases.end("gather")
starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
sums = np.add.reduceat(values, starts)
phases.end("group")
print(hashlib.sha256(sums.tobytes()).hexdigest())
