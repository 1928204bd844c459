#!/bin/sh
# tool/bench/peers/fetch.sh: llama.cpp, to be compared with. The source package of llama-cpp-python, which pip fetches, contains it. It
# is built outside of this tree, in PEERS_DIR (default: aura-peers in the user's cache), for this machine and with its own defaults;
# without AMX where that does not work.
# Done once: an hour or so on a slow machine, minutes on others. The last line printed is the directory with its programs.
set -eu
cd "$(dirname "$0")"
version=0.3.36
dir=${PEERS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/aura-peers}
source=$dir/llama_cpp_python-$version/vendor/llama.cpp
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

for need in python3 cmake cc c++; do
    command -v $need >/dev/null || { echo "aura: $need is missing" >&2; exit 1; }
done
mkdir -p "$dir"
if [ ! -e "$source/CMakeLists.txt" ]; then
    python3 -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest "$dir" "llama-cpp-python==$version" >&2
    tar -xzf "$dir/llama_cpp_python-$version.tar.gz" -C "$dir"
fi
[ ! -e "$bin/flags" ] || [ ! peer.c -nt "$bin/peer" ] || ask >&2
if [ ! -x "$bin/peer" ] || ! works; then
    build '' >"$dir/build.log" 2>&1 && works || build '-mno-amx-tile -mno-amx-int8 -mno-amx-bf16' >"$dir/build.log" 2>&1 ||
        { tail -n 20 "$dir/build.log" >&2; exit 1; }
    works || { echo "aura: what was built in $dir does not run" >&2; exit 1; }
fi
echo "$bin"
