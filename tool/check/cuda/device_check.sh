#!/bin/sh
# Everything that needs a GPU, in less than 200 seconds:  tool/check/cuda/device_check.sh [BINARY]
# BINARY is what `make cuda` builds. Every step has a limit of time, and the next one is done whatever became of it; the exit code is
# the number of steps that failed. Without compute-sanitizer its two steps are skipped, which is said.
set -u
cd "$(dirname "$0")/../../.." || exit 1
aura=${1:-build/cuda/aura}
[ -x "$aura" ] || { echo "device_check.sh: there is no $aura; \`make cuda\` builds it" >&2; exit 1; }
PATH="$PATH:/usr/local/cuda/bin"
failed=0

# step SECONDS NAME COMMAND...
step()
{
    limit=$1 name=$2
    shift 2
    began=$(date +%s)
    echo "== $name: $*"
    timeout "$limit" "$@"
    code=$?
    [ $code -eq 124 ] && echo "== $name: not done after $limit s"
    [ $code -eq 0 ] || failed=$((failed + 1))
    echo "== $name: exit code $code, $(($(date +%s) - began)) s"
}

step 90 check "$aura" check --device cuda
if command -v compute-sanitizer >/dev/null; then
    step 25 memcheck compute-sanitizer --tool memcheck --error-exitcode 9 "$aura" check --device cuda small
    step 25 racecheck compute-sanitizer --tool racecheck --error-exitcode 9 "$aura" check --device cuda small
else
    echo '== memcheck, racecheck: skipped, there is no compute-sanitizer'
fi
step 45 bench "$aura" bench --device cuda
echo "== $failed steps failed"
exit $failed
