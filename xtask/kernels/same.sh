# A program by itself and under `ebb run`: the same output and ending, pages as the page map says at its end, and
# something was paged out. same.sh BUDGET OPTIONS PROGRAM [ARGUMENT...]
set -u
budget=$1 options=$2
shift 2
cd "$(mktemp -d)"
"$@" > alone 2> alone.err < /dev/null
ending=$?
# shellcheck disable=SC2086
EBB_CHECK=end "$OLDPWD/target/release/ebb" run --memory "$budget" $options --stats stats -- "$@" > managed 2> managed.err < /dev/null
found=$?
tail -20 managed.err
cut -c 1-300 stats | head -30
[ $found = $ending ] || { echo "ended with $found, not $ending"; exit 1; }
cmp alone managed || exit 1
number() { sed -n "s/.*\"$1\": *\([0-9]*\).*/\1/p" stats | head -1; }
echo "evicted $(number evicted), map_disagrees $(number map_disagrees)"
[ "$(number evicted)" -gt 0 ] && [ "$(number map_disagrees)" = 0 ]
