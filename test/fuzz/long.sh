#!/bin/bash
# test/fuzz/long.sh BUILD [SECONDS]: all fuzz targets of a build with libFuzzer, for so many seconds together; a night unless told.
# `make fuzz-long` builds them first. From the environment:
#
#     FUZZ_JOBS     targets that run at once; 2
#     FUZZ_CORPUS   where the inputs that reach something new are kept from run to run; BUILD/corpus, which make clean removes
#     FUZZ_SLICE    seconds of a target in one go; 600. All targets take turns: a run that is stopped has run each of them
#
# Logs and the inputs that break a target are in BUILD. The last lines are a table. Exit status 1: a target broke, or did not run; it
# has had no more turns since.
set -u
# One turn of a target, a process of its own.
if [ "${1-}" = --turn ]; then
    build=$2 corpus=$3 seeds=$4 name=$5 seconds=$6 log=$2/$5.log
    [ ! -e "$build/$name.broken" ] || exit 0
    mkdir -p "$corpus/$name"
    ASAN_OPTIONS=quarantine_size_mb=16 "$build/fuzz_$name" -max_total_time="$seconds" -max_len=60000 -timeout=60 -rss_limit_mb=4096 \
        -entropic_scale_per_exec_time=1 -print_final_stats=1 -artifact_prefix="$build/crash-$name-" "$corpus/$name" "$seeds/$name" \
        >"$log" 2>&1 || touch "$build/$name.broken"
    sed -n 's/^stat::number_of_executed_units: *//p' "$log" >>"$build/$name.executions"
    echo "$seconds" >>"$build/$name.seconds"
    sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1 >"$build/$name.edges"
    exit 0
fi

build=$1
seconds=${2:-28800}
jobs=${FUZZ_JOBS:-2}
corpus=${FUZZ_CORPUS:-$build/corpus}
slice=${FUZZ_SLICE:-600}
seeds=$(dirname "$0")/corpus
targets=$(cd "$build" && ls fuzz_* 2>/dev/null | grep -v '\.' | sed 's/^fuzz_//')

files() {
    ls "$corpus/$1" 2>/dev/null | wc -l
}

sum() {
    awk '{n += $1} END {print n + 0}' "$1" 2>/dev/null
}

summary() {
    local name executions spent all=0 seconds=0 broken=0
    printf '%-14s %12s %9s %7s %9s  %s\n' target executions 'a second' edges 'new files' ''
    for name in $targets; do
        executions=$(sum "$build/$name.executions") spent=$(sum "$build/$name.seconds")
        all=$((all + executions)) seconds=$((seconds + spent))
        printf '%-14s %12d %9d %7d %9d  ' "$name" "$executions" $((executions / (spent > 0 ? spent : 1))) \
            "$(sum "$build/$name.edges")" $(($(files "$name") - $(cat "$build/$name.before")))
        if [ -e "$build/$name.broken" ]; then
            echo "BROKEN: $(ls -t "$build/crash-$name-"* 2>/dev/null | head -n 1) $build/$name.log"
            broken=1
        elif [ "$executions" = 0 ] && [ "$spent" != 0 ]; then
            echo "BROKEN: it ran nothing: $build/$name.log"
            broken=1
        else
            echo ok
        fi
    done
    echo "$all executions; in 8 hours, $jobs at a time: $((all * 28800 / (seconds > 0 ? seconds : 1) * jobs))"
    return $broken
}

[ -n "$targets" ] || { echo "FAIL fuzz: no targets in $build" >&2; exit 2; }
for name in $targets; do
    rm -f "$build/$name".broken "$build/$name".executions "$build/$name".seconds "$build/$name".edges
    files "$name" >"$build/$name.before"
done
share=$((seconds * jobs / $(echo "$targets" | wc -w)))
share=$((share > 0 ? share : 1))
trap 'summary; exit 1' INT TERM
for ((done = 0; done < share; done += slice)); do
    turn=$((share - done < slice ? share - done : slice))
    printf '%s\n' $targets | xargs -P "$jobs" -I NAME "$0" --turn "$build" "$corpus" "$seeds" NAME $turn || break
done
summary
