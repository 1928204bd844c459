#!/bin/bash
# test/mpi/run.sh BUILD: the tests of libaura_mpi, with 1, 2, 3, 4 and 8 processes on however many cores there are. Prints a line per
# test, as test/run.sh wants it.
set -u
build=$1
dir=$(mktemp -d /tmp/aura-mpi-XXXXXX)
trap 'rm -rf "$dir"' EXIT
if ! command -v mpirun >/dev/null || [ ! -x "$build/test_ranks" ]; then
    echo 'skip mpi: there is no MPI (Debian: libopenmpi-dev, openmpi-bin)'
    exit 0
fi

# ranks N COMMAND...: at most a minute, whoever is root, on fewer cores than ranks.
ranks() {
    local n=$1
    shift
    timeout 60 mpirun --allow-run-as-root --oversubscribe --mca mpi_yield_when_idle 1 --mca btl self,vader,tcp -n "$n" "$@" 2>"$dir/err"
}

# tests N ARGUMENTS...: the test program's own lines; that it ended badly without one is a failure.
tests() {
    local n=$1 status
    ranks "$n" "$build/test_ranks" "${@:2}" >"$dir/out"
    status=$?
    cat "$dir/out"
    if [ $status != 0 ] && ! grep -q '^FAIL ' "$dir/out"; then
        echo "FAIL ranks ${*:2} with $n: exit status $status: $(tail -n 3 "$dir/err" | tr '\n' ' ')"
    fi
}

try() {
    local name=$1
    shift
    if "$@"; then echo "ok $name"; else echo "FAIL $name"; fi
}

for n in 1 2 3 4 8; do
    tests $n
done

# Saved by so many, loaded by so many others.
for n in 1 3 4; do
    tests $n --save "$dir/saved-$n"
done
for pair in 1:3 3:2 4:1 4:8 3:4; do
    tests "${pair#*:}" --load "$dir/saved-${pair%:*}"
done
try 'mpi: one shard a rank, and no others' test "$(ls "$dir" | grep -c '^saved-4\.1\.')" = 4

# A rank that is killed ends the job, soon; one that is stopped, after the timeout.
ended() { # SIGNAL SECONDS TEXT
    local pid started=$SECONDS
    : >"$dir/out"
    ranks 3 "$build/test_ranks" --wait "$2" >"$dir/out" &
    for i in $(seq 300); do
        pid=$(sed -n 's/^pid //p' "$dir/out")
        [ -z "$pid" ] || break
        sleep 0.1
    done
    [ -n "$pid" ] && kill -"$1" "$pid" || return 1
    wait $!
    local status=$?
    kill -KILL "$pid" 2>/dev/null
    [ $status != 0 ] && [ $((SECONDS - started)) -lt 50 ] && ! grep -q 'while others live' "$dir/out" && grep -q "$3" "$dir/err"
}
try 'mpi: a rank that is killed ends the job with a message' ended KILL 40 'signal 9'
try 'mpi: a rank that is stuck ends it after the timeout' ended STOP 3 'aura: rank [0-9] of 3 has waited'

# Saves of which a rank is killed leave a whole one.
interrupted() { # SAVES, and then so many hundredths of a second
    local pid
    : >"$dir/out"
    ranks 3 "$build/test_ranks" --loop "$dir/loop.1" >"$dir/out" &
    for k in $(seq 400); do
        [ "$(grep -c saved "$dir/out")" -lt "$1" ] || break
        sleep 0.05
    done
    pid=$(sed -n 's/^pid //p' "$dir/out")
    sleep "0.0$2"
    [ -n "$pid" ] && kill -KILL "$pid"
    wait $!
}
interrupted 1 2 && echo 'FAIL mpi: it was not killed'
interrupted 2 5
interrupted 1 8
tests 2 --load "$dir/loop"

# Two network namespaces with names of their own are two hosts: nothing but TCP between them.
hosts=aura-$$
namespaces() {
    local i
    for i in 1 2; do
        ip netns add $hosts-$i && ip -n $hosts-$i link set lo up || return 1
    done
    ip -n $hosts-1 link add aura0 type veth peer name aura0 netns $hosts-2 || return 1
    for i in 1 2; do
        ip -n $hosts-$i addr add 10.177.0.$i/24 dev aura0 && ip -n $hosts-$i link set aura0 up || return 1
    done
    printf '#!/bin/sh\nn=${1##*.}\nshift\nexec ip netns exec %s-$n unshare --uts sh -c "hostname host$n; $*"\n' $hosts >"$dir/agent"
    chmod +x "$dir/agent"
}
if [ "$(id -u)" = 0 ] && command -v ip >/dev/null && namespaces 2>"$dir/err"; then
    timeout 60 "$dir/agent" 10.177.0.1 "mpirun --allow-run-as-root --oversubscribe --mca mpi_yield_when_idle 1 --mca plm_rsh_agent $dir/agent \
        --mca btl self,tcp --mca pml ob1 --mca btl_tcp_if_include 10.177.0.0/24 --mca oob_tcp_if_include 10.177.0.0/24 \
        --host 10.177.0.1:2,10.177.0.2:2 -n 4 $(realpath "$build/test_ranks")" >"$dir/out" 2>"$dir/err"
    status=$?
    sed -E 's/^(ok|FAIL) .*/& on two hosts/' "$dir/out"
    grep -q '^ok ' "$dir/out" && [ $status = 0 ] || echo "FAIL mpi: two hosts: exit status $status: $(tail -n 3 "$dir/err" | tr '\n' ' ')"
else
    echo 'skip mpi: two hosts: this user may make no network namespaces'
fi
for i in 1 2; do
    ip netns del $hosts-$i 2>/dev/null
done

# The example: what four ranks decoded, three continue.
decode() {
    ranks "$1" "$build/mpi_decode" "$dir/example.aura" "$2" "$3"
}
decode 4 2000 20 >"$dir/whole" && decode 4 2000 10 >"$dir/first" && decode 3 0 10 >"$dir/second"
try 'mpi: the example goes on with another number of ranks' test "$(sed -n 's/.*token //p' "$dir/second" | wc -l)" = 10
try 'mpi: the example, at the same token' grep -q 'token 2010,' "$dir/second"
try 'mpi: the example, the same numbers' diff <(sed -n '1,10s/.*token //p' "$dir/whole") <(sed 's/.*token //' "$dir/first")

# A cache that travels from one process to another.
if echo '#include <ucp/api/ucp.h>' | cc -E -x c - >/dev/null 2>&1; then
    try 'transfer: compiles' cc -O2 -std=gnu11 -Wall -Wextra -Werror -Iinclude examples/transfer_ucx.c "$build/libaura.a" -lucp -lucs -lm -lpthread \
        -o "$dir/transfer_ucx"
    timeout 60 "$dir/transfer_ucx" 8192 >"$dir/out" 2>"$dir/err"
    cat "$dir/out"
    try 'transfer: the same next bits' grep -q 'the next bits are the same' "$dir/out"
else
    echo 'skip transfer: there is no UCX (Debian: libucx-dev)'
fi

ranks 2 "$build/aura" bench --mpi --dim 64 --heads 4 --kv-heads 2 --tokens 16384 --json >"$dir/out"
try 'bench: two ranks, two contexts' test "$(grep -o '"tokens": [0-9]*, "local_s"' "$dir/out" | wc -l)" = 2
