#!/bin/bash
# python/test/run.sh: all tests of aura-kv, with torch and transformers; `make test-python`. The last line is "N passed, N failed, N skipped".
#
#     PYTHON_DIR=...            where pip installs torch and the rest, 3 GB: ~/.cache/aura-python. What is there is used again
#     TRANSFORMERS=5.22.2       the version of transformers
#     TRANSFORMERS_SOURCE=...   a checkout of transformers at that version: its own tests of generation and caches are then run twice, as
#                               they are and with AuraCache in the place of DynamicCache: what passes must still pass
#     MODELS='llama gpt2'       of which models
#     PARTS='own device example theirs'  some of it; device is a GPU that is emulated
#     LIBRARY=...               a libaura.so to take instead of building one
set -u
cd "$(dirname "$0")/../.." || exit 1
dir=${PYTHON_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/aura-python}
version=${TRANSFORMERS:-5.22.2}
models=${MODELS:-llama mistral qwen3 gemma2 gemma3 gemma3n gpt2 gpt_oss falcon bloom deepseek_v3 t5 qwen3_next lfm2}
parts=${PARTS:-own device example theirs}
venv=$dir/$version
log=$dir/log
mkdir -p "$log"

[ -x "$venv/bin/python" ] || python3 -m venv "$venv" || exit 1
"$venv/bin/pip" install --quiet numpy torch "transformers==$version" gguf accelerate matplotlib pytest pytest-timeout pytest-xdist parameterized datasets timm httpx ||
    { echo 'skip python: pip cannot fetch torch and transformers'; echo '0 passed, 0 failed, 1 skipped'; exit 0; }
python/wheel.sh build/wheel ${LIBRARY-} >"$log/wheel" || { echo 'FAIL python: make wheel'; exit 1; }
"$venv/bin/pip" install --quiet --no-deps --force-reinstall build/wheel/aura_kv-*.whl || exit 1
rm -f "$log"/*.txt

# wanted PART: whether it is to run.
wanted() {
    case " $parts " in *" $1 "*) ;; *) return 1 ;; esac
}

# Our own; the model and the tool are those of `make model` and `make build`.
model=$PWD/models/SmolLM2-135M-Instruct.Q4_1.gguf
! wanted own || AURA_SOURCE=$PWD AURA_MODEL=$model AURA_TOOL=$PWD/build/release/aura env -C "$dir" "$venv/bin/python" \
    "$PWD/python/test/run.py" "$PWD"/python/test/test_*.py 2>&1 | tee "$log/own.txt"

# What is there for a GPU, on an emulated one.
if wanted device; then
    if cmake -S . -B build/emulated -DAURA_TESTS=OFF -DAURA_EMULATE=ON >"$log/device" &&
        cmake --build build/emulated --parallel 2 --target emulated_shared >>"$log/device" 2>&1; then
        AURA_CUDA_LIBRARY=$PWD/build/emulated/emulated/libaura_cuda.so env -C "$dir" "$venv/bin/python" "$PWD/python/test/run.py" \
            "$PWD"/python/test/test_*cuda.py 2>&1 | sed -E 's/^(ok|FAIL|skip) /&emulated /'
    else
        echo 'FAIL device: build'
    fi | tee "$log/emulated.txt"
fi

# The example, with the small model.
if ! wanted example; then
    :
elif "$venv/bin/python" python/examples/kld.py "$model" README.md "$log/kld.png" >"$log/kld.out" 2>"$log/kld.err" && [ -s "$log/kld.png" ]; then
    echo 'ok example kld'
else
    echo "FAIL example kld: $(tail -n 1 "$log/kld.err")"
fi | tee "$log/example.txt"

chosen='(generate or cache or past or left_padding or assisted or lookup or custom_4d or position_ids or beam)'
chosen+=' and not compile and not quant and not export and not flash and not Integration'

# own_tests MODEL NAME OPTIONS...: transformers' tests of a model; the names of those that pass, sorted.
own_tests() {
    local model=$1 name=$2
    shift 2
    (cd "$TRANSFORMERS_SOURCE" && HF_HUB_OFFLINE=1 PYTHONPATH=$here/python/test OMP_NUM_THREADS=1 "$venv/bin/python" -m pytest -q -rp \
        -p older -p no:cacheprovider -o addopts= --timeout 300 "$@" "tests/models/$model/test_modeling_$model.py" -k "$chosen" 2>&1) \
        >"$log/$model.$name"
    sed -nE 's/^PASSED ([^ ]*::[^ ]*).*/\1/p' "$log/$model.$name" | sort -u >"$log/$model.$name.passed"
    grep '^aura: ' "$log/$model.$name"
}

here=$PWD
if ! wanted theirs; then
    :
elif [ -n "${TRANSFORMERS_SOURCE-}" ]; then
    for model in $models; do
        own_tests "$model" plain
        for attention in sdpa aura; do
            counts=$(AURA_ATTENTION=$attention own_tests "$model" $attention -p swap)
            lost=$(comm -23 "$log/$model.plain.passed" "$log/$model.$attention.passed" | sed 's/.*:://' | tr '\n' ' ')
            passed=$(wc -l <"$log/$model.$attention.passed")
            if [ -z "$lost" ] && [ "$passed" -gt 0 ]; then
                echo "ok transformers $model, $attention: $passed tests; $counts"
            else
                echo "FAIL transformers $model, $attention: $passed tests pass; no longer: $lost"
            fi
        done
    done | tee "$log/theirs.txt"
else
    echo 'skip transformers: TRANSFORMERS_SOURCE does not say where its tests are' | tee "$log/theirs.txt"
fi

cat "$log"/*.txt | awk '/^ok /{p++} /^FAIL /{f++} /^skip /{s++} END {printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0}'
