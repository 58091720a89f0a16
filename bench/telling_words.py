"""Finds the words that tell a text file from the others: term frequency times inverse document frequency.

    telling_words.py DIRECTORY [MEBIBYTES]      reads at most so much text, default 60

Real data with a Python heap: every word of every file is an object, millions of small ones, and the
heap is walked through twice after it was filled.
"""

import collections
import hashlib
import math
import os
import re
import sys

directory = sys.argv[1]
limit = int(float(sys.argv[2] if len(sys.argv) > 2 else 60) * (1 << 20))
endings = (".rs", ".md", ".txt", ".c", ".h", ".py", ".toml", ".html")
word = re.compile(r"\w+")

files = []
used_in = collections.Counter()
read = 0
for parent, directories, names in os.walk(directory):
    directories.sort()
    for name in sorted(names):
        if not name.endswith(endings) or read >= limit:
            continue
        try:
            with open(os.path.join(parent, name), encoding="utf-8") as file:
                text = file.read(limit - read)
        except (OSError, UnicodeDecodeError):
            continue
        read += len(text)
        words = [found.lower() for found in word.findall(text)]
        used_in.update(set(words))
        files.append((name, words))
print(f"{len(files)} files, {sum(len(words) for _, words in files)} words, {len(used_in)} different")

# How much a word says of a file is known only now that all have been read.
says = {w: math.log(len(files) / n) for w, n in used_in.items()}
digest = hashlib.sha256()
telling = collections.Counter()
for name, words in files:
    score = {w: n * says[w] for w, n in collections.Counter(words).items()}
    best = sorted(score, key=lambda w: (-score[w], w))[:3]
    telling.update(best)
    digest.update(f"{name}: {' '.join(best)}\n".encode())
print("tell most files apart:", ", ".join(f"{w} ({n})" for w, n in telling.most_common(5)))

# And the rare ones in their places.
for name, words in files:
    rare = [place for place, w in enumerate(words) if used_in[w] == 1]
    digest.update(f"{name}: {rare}\n".encode())
print("digest:", digest.hexdigest())
