#!/bin/sh
# integrations/llama.cpp/build.sh [TARGET ...]: llama.cpp whose cache libaura can hold. pip fetches its source, edit.py makes a copy with
# our edits, and cmake builds that, all outside of this tree, in PEERS_DIR: llama-cli, llama-server, llama-bench, llama-perplexity and
# libllama, or the targets named. A quarter of an hour on two cores; minutes, or seconds, when something has changed.
# The last line printed is the directory with the programs.
#
#   PEERS_DIR   where all of it goes; see tool/bench/peers/source.sh
#   FLAGS       for cmake, besides ours
#   JOBS        2   compilers at once
set -eu
cd "$(dirname "$0")"
source=$(../../tool/bench/peers/source.sh | tail -n 1)
dir=${source%/*/vendor/llama.cpp}/aura
mkdir -p "$dir"
log=$dir/build.log

# cmake refuses a folder that another copy of this tree has used.
grep -qsx "CMAKE_HOME_DIRECTORY:INTERNAL=$(cd ../.. && pwd -P)" "$dir/libaura/CMakeCache.txt" || rm -rf "$dir/libaura"

build() {
    cmake -S ../.. -B "$dir/libaura" -DAURA_TESTS=OFF -DCMAKE_BUILD_TYPE=Release &&
        cmake --build "$dir/libaura" --parallel "${JOBS:-2}" --target aura_static &&
        cmake -S "$dir/llama.cpp" -B "$dir/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DAURA_INCLUDE="$PWD/../../include" \
            -DAURA_LIBRARY="$dir/libaura/libaura.a" -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF ${FLAGS:-} &&
        cmake --build "$dir/build" --parallel "${JOBS:-2}" --target "$@"
}

[ $# -gt 0 ] || set -- llama llama-cli llama-completion llama-server llama-bench llama-perplexity
echo "aura: llama.cpp is built in $dir; this takes a while. What happens is in $log" >&2
python3 edit.py "$source" "$dir/llama.cpp"
build "$@" >"$log" 2>&1 || { tail -n 20 "$log" >&2; exit 1; }
cat >&2 <<END
aura: done. With a model in a file, for example:
    $dir/build/bin/llama-cli -m MODEL.gguf -ctk aura4 -ctv aura4
    $dir/build/bin/llama-server -m MODEL.gguf -ctk aura8 -ctv aura8
    $dir/build/bin/llama-bench -m MODEL.gguf -p 512 -n 32 -d 0,4096 -ctk f16,aura4 -ctv f16,aura4
aura2, aura3, aura4, aura5, aura6, aura8; integrations/llama.cpp/README.md says the rest.
END
echo "$dir/build/bin"
