#!/bin/sh
# tool/bench/peers/run.sh [MODEL]: aura beside llama.cpp on this machine, in one run: tokens, greedy decoding, perplexity, speed.
# Writes build/peers/peers.md and build/peers/peers.json, and prints the former. It ends with 1 if something is not as it should be.
#
#   PEERS_DIR   where llama.cpp is, or goes: see fetch.sh
#   DEPTHS      0,2048,8192   tokens before those that are timed; the model must be able to have so many
#   PROMPTS     '512 2048 8192'  lengths of prompts that are timed as a whole
#   PARTS       'same speed prompts'  some of it
#   ROUNDS      3             of the speed, in which both take turns
#   THREADS     the processors there are
#   CTX CHUNKS  512 8         of the perplexity
set -eu
cd "$(dirname "$0")/../../.."
model=${1:-models/SmolLM2-135M-Instruct.Q4_1.gguf}
depths=${DEPTHS:-0,2048,8192} lengths=${PROMPTS:-512 2048 8192} parts=${PARTS:-same speed prompts}
rounds=${ROUNDS:-3} threads=${THREADS:-$(nproc)} ctx=${CTX:-512} chunks=${CHUNKS:-8}
aura=${AURA:-build/release/aura} out=build/peers
[ -e "$model" ] || make model
[ -x "$aura" ] || make build
bin=$(tool/bench/peers/fetch.sh | tail -n 1)
rm -rf $out
mkdir -p $out
cp "$bin/flags" $out/flags # that llama.cpp was built with besides its own
say() { echo "peers: $*" >&2; }

# That both are the same model: its tokens, what it says, how well it foretells a text.
same() {
    say 'tokens of a page of awkward text'
    for how in plain special; do
        "$bin/peer" tokens "$model" test/golden/awkward.txt $how >$out/tokens.$how.llama
        "$aura" tokens "$model" --text test/golden/awkward.txt $([ $how = plain ] || echo --special) --json >$out/tokens.$how.aura
    done

    say 'the most likely tokens after some prompts, f16 cache'
    number=0
    sed -n 's/^prompt //p' test/golden/smollm2-greedy.txt | while read -r prompt; do
        number=$((number + 1))
        text=$(printf '%b.' "$prompt")
        printf '%s\n' "$prompt" >$out/greedy.$number.prompt
        "$bin/peer" greedy "$model" 72 "${text%.}" >$out/greedy.$number.llama
        "$aura" run "$model" -p "${text%.}" -n 72 --temp 0 --cache f16 --threads "$threads" --json >$out/greedy.$number.aura
    done

    say "perplexity of $chunks chunks of $ctx tokens, f16 cache"
    for text in data/novel.txt data/essay.txt; do
        name=$(basename $text .txt)
        "$bin/llama-perplexity" -m "$model" -f $text -c "$ctx" --chunks "$chunks" -t "$threads" >$out/perplexity.$name.llama 2>&1
        "$aura" eval "$model" --text $text --ctx "$ctx" --chunks "$chunks" --cache f16 --rounded --threads "$threads" --json \
            >$out/perplexity.$name.aura 2>$out/perplexity.$name.err
    done
}

# Decoding. The same machine at the same time: one cache of theirs, then the one of ours that stands beside it.
speed() {
    for pair in f16:kf16vf16 q8_0:k8v8 q4_0:k4v4 q4_0:k3v3; do
        theirs=${pair%:*} ours=${pair#*:}
        say "speed, round $1 of $rounds: $theirs and $ours behind $depths tokens"
        [ $ours = k3v3 ] || "$bin/llama-bench" -m "$model" -p 0 -n 32 -d "$depths" -r 1 -t "$threads" -fa on -ctk $theirs -ctv $theirs \
            -o json >$out/speed.$1.$theirs.llama 2>$out/speed.err
        "$aura" bench --model "$model" --depth "$depths" --cache $ours --threads "$threads" --json \
            >$out/speed.$1.$ours.aura 2>$out/speed.err
    done
}

# Prompts, each computed as a whole.
prompts() {
    for length in $lengths; do
        say "prompts, round $1 of $rounds: $length tokens"
        "$bin/llama-bench" -m "$model" -p "$length" -n 0 -r 1 -t "$threads" -fa on -o json >$out/prompt.$1.$length.llama \
            2>$out/speed.err
        "$aura" bench --model "$model" --depth "$length" --cache kf16vf16,k4v4 --threads "$threads" --json \
            >$out/prompt.$1.$length.aura 2>$out/speed.err
    done
}

for part in $parts; do
    case $part in
    same) same ;;
    speed | prompts) for round in $(seq "$rounds"); do $part "$round"; done ;;
    *) say "no part is called $part"; exit 2 ;;
    esac
done

python3 tool/bench/peers/table.py $out
cat $out/peers.md
grep -q '"good": true' $out/peers.json
