#!/bin/sh
# tool/bench/peers/source.sh: the source of llama.cpp, which pip fetches once: the source package of llama-cpp-python contains it. It goes
# to PEERS_DIR (default: aura-peers in the user's cache), outside of this tree. The last line printed is its directory.
set -eu
version=0.3.36
dir=${PEERS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/aura-peers}
source=$dir/llama_cpp_python-$version/vendor/llama.cpp
for need in python3 cmake cc c++; do
    command -v $need >/dev/null || { echo "aura: $need is missing" >&2; exit 1; }
done
mkdir -p "$dir"
if [ ! -e "$source/CMakeLists.txt" ]; then
    python3 -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest "$dir" "llama-cpp-python==$version" >&2
    tar -xzf "$dir/llama_cpp_python-$version.tar.gz" -C "$dir"
fi
echo "$source"
