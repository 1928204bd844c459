#!/bin/sh
# tool/bench/peers/fetch.sh: llama.cpp, to be compared with. It is built outside of this tree, in PEERS_DIR (source.sh fetches it there),
# for this machine and with its own defaults; without AMX where that does not work.
# Done once: an hour or so on a slow machine, minutes on others. The last line printed is the directory with its programs.
set -eu
cd "$(dirname "$0")"
source=$(./source.sh | tail -n 1)
dir=${source%/*/vendor/llama.cpp}
bin=$dir/build/bin

# That a prompt can be computed. Machines are seen whose CPU claims AMX and whose system does not let programs use it.
works() {
    [ ! -e "$model" ] || "$bin/peer" greedy "$model" 1 'A prompt of some tokens, so that they are computed together' >/dev/null 2>&1
}
model=../../../models/SmolLM2-135M-Instruct.Q4_1.gguf

# build FLAGS: of the compilers.
build() {
    cmake -S "$source" -B "$dir/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_FLAGS="$1" -DCMAKE_CXX_FLAGS="$1" -DBUILD_SHARED_LIBS=ON \
        -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_MTMD=OFF &&
        cmake --build "$dir/build" --parallel 2 --target llama-bench llama-perplexity && ask && echo "${1:-none}" >"$bin/flags"
}

# The program that asks llama.cpp, alone.
ask() {
    cc -O2 peer.c -I"$source/include" -I"$source/ggml/include" -L"$bin" -lllama -lggml -lggml-base -Wl,-rpath,"$bin" -o "$bin/peer"
}

[ ! -e "$bin/flags" ] || [ ! peer.c -nt "$bin/peer" ] || ask >&2
if [ ! -x "$bin/peer" ] || ! works; then
    build '' >"$dir/build.log" 2>&1 && works || build '-mno-amx-tile -mno-amx-int8 -mno-amx-bf16' >"$dir/build.log" 2>&1 ||
        { tail -n 20 "$dir/build.log" >&2; exit 1; }
    works || { echo "aura: what was built in $dir does not run" >&2; exit 1; }
fi
echo "$bin"
