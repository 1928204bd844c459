#!/bin/bash
# integrations/llama.cpp/test/run.sh [--short | PART ...]: the proofs that llama.cpp works with aura's caches, on programs of llama.cpp's
# own. Prints "ok NAME", "FAIL NAME: why" or "skip NAME: why", a line for each test, as test/run.sh wants it; figures go to
# build/llama/. Without the network, and without an earlier build, it says that it is skipped.
#
#   --short   what `make test` runs: the glue's own tests, against a build that is there already
#   PART      anchors walk inner archs states programs server upstream binding quality speed; none: all of them; and turns, which is
#             speed for a machine with other things to do
#
#   PEERS_DIR   where llama.cpp is; MODEL  a model, SmolLM2 by default
set -u
cd "$(dirname "$0")/../../.." || exit 1
here=integrations/llama.cpp out=build/llama
model=${MODEL:-models/SmolLM2-135M-Instruct.Q4_1.gguf}
peers=${PEERS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/aura-peers}
dir=$peers/aura
bin=$dir/build/bin
tiny=$dir/tiny
programs='llama llama-cli llama-completion llama-server llama-bench llama-perplexity llama-passkey llama-lookahead llama-speculative
    llama-speculative-simple llama-batched-bench ggml-rpc-server test-llama-archs test-save-load-state test-state-restore-fragmented'
export OMP_WAIT_POLICY=passive
status=0

# try NAME COMMAND...: one test, passed when the command succeeds; what it prints is shown where it does not.
try() {
    local name=$1
    shift
    if "$@" >"$out/last.txt" 2>&1; then
        echo "ok $name"
    else
        echo "FAIL $name: $(tail -n 1 "$out/last.txt")"
        status=1
    fi
}

# ---- parts ------------------------------------------------------------------------------------------------------------

# Programs of ours, beside llama.cpp's.
compile() {
    c++ -std=c++17 -O1 -Wall -Wextra -Werror -Wno-unused-parameter $here/test/"$1".cpp -I"$dir/llama.cpp/include" -I"$dir/llama.cpp/src" \
        -I"$dir/llama.cpp/ggml/include" -Iinclude -L"$bin" -lllama -lggml -lggml-base -Wl,-rpath,"$bin" -o $out/"$1"
}

models() {
    [ -e "$tiny/llama-dense.gguf" ] || { mkdir -p "$tiny" && "$bin/test-llama-archs" -o "$tiny/" >"$out/archs.txt" 2>&1; }
    [ -e "$tiny/llama-dense.gguf" ]
}

# Operations at random, on models that differ in what matters: a window, ALiBi, a cap, sinks, recurrent layers, no rope, keys of others.
part_walk() {
    local name
    try 'walk: compiles' compile walk
    models || { echo 'skip walk: no small models: make test-llama makes them'; return; }
    for name in llama-dense gemma2-dense gemma3-dense llama4-moe gpt-oss-moe bloom-dense jamba-dense grok-moe qwen3-dense; do
        try "walk $name" $out/walk "$tiny/$name.gguf" --steps "${STEPS:-60}" --seed 1 --loud --limit 1e-11
        try "walk $name, streams" $out/walk "$tiny/$name.gguf" --steps "${STEPS:-60}" --seed 2 --loud --streams --limit 1e-11
    done
    try 'walk llama-dense, keys that are no numbers' $out/walk "$tiny/llama-dense.gguf" --steps "${STEPS:-60}" --nan
    try 'walk llama-dense in 4 bits' $out/walk "$tiny/llama-dense.gguf" --steps "${STEPS:-60}" --format k4v4 --limit 0.1
}

# What no program shows: caches that would share cells, profiles, divided positions, steps that are given up.
part_inner() {
    models || { echo 'skip inner: no small models'; return; }
    try 'inner: compiles' compile inner
    try "inner: sharing is refused; profiles; learning; divided positions; steps given up; cuts with shifts; windows, and back in them" \
        $out/inner "$tiny/llama-dense.gguf" "$tiny/gemma3-dense.gguf" $out
}

# Every architecture that llama.cpp's own test knows. Where llama.cpp's own cache ends the process with several sequences, too, which is
# so by chance with some, there is one sequence.
part_archs() {
    local path said seed bad=0 ran=0 back=0
    compile walk && models || { echo 'skip archs: no small models'; return; }
    : >$out/archs.md
    for path in "$tiny"/*.gguf; do
        said=$($out/walk "$path" --steps 20 --seed 3 2>&1 | tail -n 1)
        for seed in 1 2 3 4; do
            case $said in ok*|skip*|FAIL*) break ;; esac
            $out/walk "$path" --steps 20 --seed $seed --format '' >/dev/null 2>&1 ||
                said="$($out/walk "$path" --steps 20 --seed 3 --alone 2>&1 | tail -n 1), alone: llama.cpp's own ends with several"
        done
        echo "$said" | sed "s,$tiny/,," >>$out/archs.md
        case $said in ok*) ran=$((ran + 1)) ;; skip*) back=$((back + 1)) ;; *) bad=$((bad + 1)); echo "FAIL archs $said" ;; esac
    done
    [ $bad = 0 ] && echo "ok archs: $ran as llama.cpp's f32 cache to 1e-9, $back without aura: $out/archs.md" || status=1
}

# What caches do to the model's predictions, by llama.cpp's own measure.
part_quality() {
    local text=data/novel.txt type base=$out/base.kld
    "$bin/llama-perplexity" -m "$model" -f $text -c 512 --chunks "${CHUNKS:-20}" --kl-divergence-base $base >$out/quality.log 2>&1
    { echo '| cache | mean KLD | same top |'; echo '|---|---|---|'; } >$out/quality.md
    for type in f16 aura8 q8_0 aura6 q5_1 aura5 q5_0 aura4 q4_0 aura3 aura2; do
        "$bin/llama-perplexity" -m "$model" -f $text -c 512 --chunks "${CHUNKS:-20}" --kl-divergence-base $base --kl-divergence -fa on \
            -ctk $type -ctv $type >$out/quality.$type.txt 2>&1
        echo "| $type | $(sed -n 's/^Mean *KLD: *\([^ ]*\).*/\1/p' $out/quality.$type.txt) |" \
            "$(sed -n 's/^Same top p: *\([^ ]*\).*/\1/p' $out/quality.$type.txt) % |" >>$out/quality.md
    done
    kld() { sed -n "s/^| $1 | \([^ ]*\) .*/\1/p" $out/quality.md; }
    try 'quality: aura8 is nearer than q8_0' awk "BEGIN { exit !($(kld aura8) < $(kld q8_0)) }"
    try 'quality: aura4 is nearer than q4_0' awk "BEGIN { exit !($(kld aura4) < $(kld q4_0)) }"
    cat $out/quality.md
}

# In turns, on a machine that should have nothing else to do. Threads wait as they do for users.
part_speed() {
    local round type
    unset OMP_WAIT_POLICY
    for round in $(seq "${ROUNDS:-3}"); do
        for type in f16 aura4 q8_0 aura8 q4_0; do
            "$bin/llama-bench" -m "$model" -p 512 -n 32 -d "${DEPTHS:-0,2048,8192}" -r 1 -fa on -t "${THREADS:-$(nproc)}" -ctk $type -ctv $type \
                -o json >$out/speed.$round.$type.json 2>$out/speed.log
        done
    done
    python3 $here/test/speed.py $out | tee $out/speed.md
}

# The same where there is other work: a process in which each cache computes a token in turn.
part_turns() {
    local threads
    compile turns || return
    unset OMP_WAIT_POLICY
    for threads in 1 $(nproc); do
        echo "$threads threads:"
        $out/turns "$model" "$threads" "${DEPTH:-0}" 200 512 5 f16 aura4 aura8 q8_0 q4_0
    done | tee $out/turns.txt
}

# ---- the run ------------------------------------------------------------------------------------------------------------

mkdir -p $out
if [ "${1-}" = --short ]; then
    for name in llama-kv-aura.h llama-kv-aura.cpp; do
        [ -e "$bin/libllama.so" ] || { echo "skip llama: there is no build in $dir: make llama"; exit 0; }
        cmp -s "$here/$name" "$dir/llama.cpp/src/$name" || { echo "skip llama: the build in $dir is of another $name: make llama"; exit 0; }
    done
    set -- anchors walk
else
    tool/bench/peers/source.sh >/dev/null 2>$out/last.txt || { echo "skip llama: no source: $(tail -n 1 $out/last.txt)"; exit 0; }
    [ -e "$model" ] || make model >/dev/null 2>&1 || { echo "skip llama: no $model"; exit 0; }
    FLAGS="-DLLAMA_BUILD_TESTS=ON -DGGML_RPC=ON" $here/build.sh $programs >/dev/null || { echo 'FAIL llama: it does not build'; exit 1; }
    [ $# -gt 0 ] || set -- anchors walk inner archs states programs server upstream binding quality speed
fi
for part; do
    [ "$part" != states ] || models
    if ! declare -F "part_$part" >/dev/null; then
        python3 "$here/test/$part.py" "$bin" "$model" "$out" || status=1
    else
        "part_$part"
    fi
done
exit $status
