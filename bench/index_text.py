"""An index of every word in the text files under a directory, and a few questions to it.

    index_text.py DIRECTORY [MEBIBYTES]      indexes at most so much text, default 40

Real data with a Python heap: a list of places for each word, millions of small objects.
"""

import array
import hashlib
import os
import re
import sys

directory = sys.argv[1]
limit = int(float(sys.argv[2] if len(sys.argv) > 2 else 40) * (1 << 20))
endings = (".rs", ".md", ".txt", ".c", ".h", ".py", ".toml", ".html")
word = re.compile(r"\w+")

places = {}
lines = []
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
        for line in text.splitlines():
            for column, found in enumerate(word.findall(line)):
                places.setdefault(found.lower(), []).append((len(lines), column))
            lines.append(line)

print(f"{len(lines)} lines, {len(places)} words, {sum(map(len, places.values()))} places")
common = sorted(places, key=lambda w: (-len(places[w]), w))[:5]
print("most common:", ", ".join(f"{w} ({len(places[w])})" for w in common))

# Every place of every word is visited again, alphabetically: nothing like the order it was made in.
digest = hashlib.sha256()
for w in sorted(places):
    found = places[w]
    digest.update(w.encode())
    digest.update(array.array("L", (n for place in found for n in place)).tobytes())
    digest.update(lines[found[len(found) // 2][0]].encode())
print("digest:", digest.hexdigest())
