# Clocks that jump, while a program pages.
set -u
. xtask/kernels/survives.sh

jumps='for by in "+1 day" "-2 days" "+10 years" "-9 years"; do sleep 2; date -s "$by" > /dev/null; done'
MUST_END=well BESIDE=yes run 'clocks that jump' /var/tmp "$jumps"
exit $bad
