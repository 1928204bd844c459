#!/bin/sh
# tool/bench/peers/golden.sh: what llama.cpp makes of SmolLM2, for tests that run where llama.cpp is not: test/golden/smollm2-*.txt.
# Prompts of smollm2-greedy.txt are kept, their tokens made anew. A prompt is good for a test if llama.cpp never decides between
# two tokens by less than a tenth, in logits, or so: the sums of two implementations differ in their last bits, and a rounding to
# bytes that falls the other way makes hundredths of that.
set -eu
cd "$(dirname "$0")/../../.."
bin=$(tool/bench/peers/fetch.sh | tail -n 1)
model=models/SmolLM2-135M-Instruct.Q4_1.gguf golden=test/golden
by="by llama.cpp of llama-cpp-python 0.3.36, ${model#models/}; made by tool/bench/peers/golden.sh"
[ -e $model ] || make model
export OMP_WAIT_POLICY=passive # the threads of a loaded machine would wait for each other busily

{
    echo "Tokens of awkward.txt $by"
    echo 'plain: names of control tokens are text'
    "$bin/peer" tokens $model $golden/awkward.txt plain
    echo 'special: names of control tokens are those tokens'
    "$bin/peer" tokens $model $golden/awkward.txt special
} >$golden/smollm2-tokens.new
mv $golden/smollm2-tokens.new $golden/smollm2-tokens.txt

# Lines of three: the prompt, with \n for line ends; its next tokens; how near the closest decision was.
{
    echo "The most likely tokens after prompts, f16 cache, $by"
    sed -n 's/^prompt //p' $golden/smollm2-greedy.txt | while read -r prompt; do
        printf 'prompt %s\n' "$prompt"
        text=$(printf '%b.' "$prompt") # with something behind the line end that it may end with, which $() would take away
        "$bin/peer" greedy $model 72 "${text%.}" | sed '1s/^/tokens /; 2s/^/margin /'
    done
} >$golden/smollm2-greedy.new
mv $golden/smollm2-greedy.new $golden/smollm2-greedy.txt

{
    echo "Perplexities of texts, second halves of chunks, f16 cache, $by"
    for text in data/novel.txt data/essay.txt; do
        "$bin/llama-perplexity" -m $model -f $text -c 512 --chunks 4 -t 2 2>&1 |
            sed -n "s,.*Final estimate: PPL = \([0-9.]*\).*,text $text ctx 512 chunks 4 ppl \1,p"
    done
} >$golden/smollm2-perplexity.new
mv $golden/smollm2-perplexity.new $golden/smollm2-perplexity.txt
