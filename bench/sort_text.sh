#!/bin/bash
# GNU sort of generated text, all of it in memory.
#
#   sort_text.sh [LINES] [THREADS] [MORE]     about 100 bytes a line, and MORE; default 8 million, 750 MiB
set -eu -o pipefail
lines=${1:-8000000}
threads=${2:-1}
more=${3:-0}

awk -v lines="$lines" -v more="$more" 'BEGIN {
	random = 42
	for (i = 0; i < lines; i++) {
		random = (random * 1103515245 + 12345) % 2147483648
		printf "%010d,customer-%d,order %d of %d%*s\n", random, random % 50000, i, lines, more, ""
	}
}' | LC_ALL=C sort --parallel="$threads" --buffer-size=3G | sha256sum
