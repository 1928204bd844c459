#!/bin/bash
# tool/bench/arm/count.sh ['ISA...' ['FORMAT...' ['ROWS...']]]: how many instructions the stages of attention take on ARM, per row and tile of 32
# tokens, D 128.
# Counted under emulation, which says nothing about time: not what an instruction takes, nor which run side by side.
# BUILD=DIR: where there is a library for ARM; without it, build/arm is made.
set -eu
cd "$(dirname "$0")/../../.."
out=${BUILD:-build/arm}
if [ -z "${BUILD-}" ]; then
    cmake -S . -B $out -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc \
        -DCMAKE_EXE_LINKER_FLAGS=-static -DAURA_TESTS=OFF >/dev/null
    cmake --build $out --parallel 2 --target aura_static >/dev/null
fi
cc -std=c11 -O2 -Wall -Wextra -shared -fPIC tool/bench/arm/counter.c -o $out/counter.so
aarch64-linux-gnu-gcc -std=c11 -O2 -Wall -Wextra -static -Iinclude tool/bench/arm/stages.c $out/libaura.a -lm -lpthread -o $out/stages

# count ISA STAGE FORMAT ROWS: of four tiles, the difference of 30 and 10 turns
count() {
    local few many
    few=$(AURA_ISA=$1 qemu-aarch64 -cpu max -plugin $out/counter.so $out/stages "$2" "$3" "$4" 10 2>&1)
    many=$(AURA_ISA=$1 qemu-aarch64 -cpu max -plugin $out/counter.so $out/stages "$2" "$3" "$4" 30 2>&1)
    echo $(((many - few) / (20 * 4 * $4)))
}

printf '%-8s %-8s %4s %7s %8s %7s %7s\n' isa format rows score softmax value sum
for isa in ${1:-neon dotprod i8mm}; do
    for format in ${2:-k2v2 k3v3 k4v4 k5v5 k6v6 k8v8 kt2vt2 kt3vt3 kt4vt4}; do
        for rows in ${3:-1 4 8 16 64}; do
            score=$(count $isa score $format $rows) softmax=$(count $isa softmax $format $rows)
            value=$(count $isa value $format $rows)
            printf '%-8s %-8s %4d %7d %8d %7d %7d\n' $isa $format $rows $score $softmax $value $((score + softmax + value))
        done
    done
done
