#!/bin/bash
# python/wheel.sh FOLDER [LIBRARY]: puts the source archive of aura-kv and the wheel that is built from it into FOLDER. LIBRARY is a
# libaura.so to take instead of building one. The wheel's tag, manylinux_2_N, is the oldest C library that has every symbol which it
# asks for. Exits with 3 where pip cannot fetch what builds it.
set -eu
cd "$(dirname "$0")/.."
folder=$(mkdir -p "$1" && cd "$1" && pwd)
library=${2:+$(realpath "$2")}
tools=$folder/tools

if ! "$tools/bin/python" -c 'import scikit_build_core, wheel' 2>/dev/null; then
    { python3 -m venv "$tools" && "$tools/bin/pip" install --quiet 'scikit-build-core>=0.11' wheel; } ||
        { echo 'aura: pip could not fetch scikit-build-core' >&2; exit 3; }
fi
rm -f "$folder"/aura_kv-*
"$tools/bin/python" -c 'import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])' "$folder" >"$folder/sdist.log"
"$tools/bin/pip" wheel "$folder"/aura_kv-*.tar.gz --quiet --no-deps --no-build-isolation --wheel-dir "$folder" \
    ${library:+--config-settings=cmake.define.AURA_PYTHON_LIBRARY="$library"}

wheel=$(ls "$folder"/aura_kv-*.whl)
"$tools/bin/python" -m zipfile -e "$wheel" "$folder/inside"
glibc=$(objdump -T "$folder/inside/aura/libaura.so" | grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -n 1)
rm -r "$folder/inside"
"$tools/bin/python" -m wheel tags --remove --platform-tag "manylinux_2_${glibc#GLIBC_2.}_$(uname -m)" "$wheel" >/dev/null
ls "$folder"/aura_kv-*
