#!/bin/bash
# test/model/model.sh AURA: a real model beside what llama.cpp made of it, test/golden/smollm2-*.txt: tokens, greedy decoding, perplexity.
# A line per test, as test/run.sh has them. Where the model is neither there nor to be had, that is a skip.
set -u
aura=$1
cd "$(dirname "$0")/../.." || exit 1
model=models/SmolLM2-135M-Instruct.Q4_1.gguf golden=test/golden
equal=64      # tokens from the first on
apart=0.005   # perplexities, the mean of their logarithms

# result NAME STATUS WHY
result() {
    if [ "$2" = 0 ]; then echo "ok $1"; else echo "FAIL $1: $3"; fi
}

# The numbers of the first list with that name in JSON, with blanks between them.
list() {
    sed -n 's/.*"'"$1"'": \[\([0-9, ]*\)\].*/\1/p' | tr -d ,
}

same_tokens() {
    local how=$1 wanted got
    wanted=$(grep -A 1 "^$how:" $golden/smollm2-tokens.txt | tail -n 1)
    got=$("$aura" tokens $model --text $golden/awkward.txt --json ${2-} | list tokens)
    [ -n "$wanted" ] && [ "$got" = "$wanted" ]
    result "tokens of awkward text, $how" $? "they are not those of llama.cpp: aura tokens $model --text $golden/awkward.txt ${2-}"
}

# The prompt has \n for line ends; $() takes away those at its end unless something follows.
same_greedy() {
    local prompt=$1 wanted=$2 text got
    text=$(printf '%b.' "$prompt")
    got=$("$aura" run $model -p "${text%.}" -n $equal --temp 0 --cache f16 --json | list tokens)
    [ "$(echo "$got" | wc -w)" = $equal ] && [ "$got" = "$(echo "$wanted" | cut -d ' ' -f 1-$equal)" ]
    result "$equal tokens after '$prompt'" $? "they are $got"
}

# perplexity TEXT CTX CHUNKS WANTED: ours and llama.cpp's.
perplexity() {
    "$aura" eval $model --text "$1" --ctx "$2" --chunks "$3" --cache f16 --rounded --json 2>/dev/null |
        sed -n 's/.*"cache": "f16".*"ppl": \([0-9.]*\).*/\1 '"$4"'/p'
}

# Both texts together: vectors are rounded to bytes, and which way single ones fall moves a text of some hundred tokens by a third of
# a percent.
same_perplexity() {
    local both
    both=$(while read -r _ text _ ctx _ chunks _ ppl; do perplexity "$text" "$ctx" "$chunks" "$ppl"; done < \
        <(tail -n +2 $golden/smollm2-perplexity.txt))
    echo "$both" | awk -v apart=$apart '{ d += log($1 / $2); n++ } END { exit !(n == 2 && d / n < apart && d / n > -apart) }'
    result 'perplexity of two texts' $? "ours and llama.cpp's: $(echo $both)"
}

if [ ! -e $model ] && ! timeout 120 tool/model.sh >/dev/null 2>&1; then
    echo "skip model: $model is not here, and pip cannot fetch it"
    exit 0
fi
same_tokens plain
same_tokens special --special
while read -r word prompt && read -r _ tokens && read -r _; do
    [ "$word" = prompt ] && same_greedy "$prompt" "$tokens"
done < <(tail -n +2 $golden/smollm2-greedy.txt)
same_perplexity
