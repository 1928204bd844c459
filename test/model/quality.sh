#!/bin/bash
# test/model/quality.sh AURA DIR: calibrate and eval on a real model, the files they write going to DIR. A line per test, as test/run.sh has
# them. Few positions, so bounds are those that doc/quality-tables.md has for many with some room: they see a codec that is broken, not one
# that is a little worse. Where the model is neither there nor to be had, that is a skip.
set -u
aura=$1 dir=$2
cd "$(dirname "$0")/../.." || exit 1
model=models/SmolLM2-135M-Instruct.Q4_1.gguf
results=$dir/quality.json profile=$dir/quality.profile base=$dir/quality.base page=$dir/quality.html

# result NAME STATUS WHY
result() {
    if [ "$2" = 0 ]; then echo "ok $1"; else echo "FAIL $1: $3"; fi
}

# number CACHE FIELD: of a result
number() {
    sed -n 's/.*"cache": "'"$1"'".*"'"$2"'": \([0-9.e+-]*\)[,}].*/\1/p' "$results"
}

# below A B TIMES: the mean divergence of A is at most so many times that of B
below() {
    local a=$(number "$1" kld_mean) b=$(number "$2" kld_mean)
    awk -v a="${a:-1e9}" -v b="${b:-0}" -v times="$3" 'BEGIN { exit !(a > 0 && a <= times * b) }'
    result "$1 diverges at most $3 times as much as $2" $? "${a:-nothing} and ${b:-nothing}"
}

measure() {
    "$aura" eval $model --text data/novel.txt --ctx 512 --chunks 1 --profile "$profile" --base "$base" --json "$@" \
        >"$results" 2>"$dir/quality.err"
}

if [ ! -e $model ] && ! timeout 120 tool/model.sh >/dev/null 2>&1; then
    echo "skip quality: $model is not here, and pip cannot fetch it"
    exit 0
fi
rm -f "$base" "$page" "$profile"
"$aura" calibrate $model --text data/essay.txt --tokens 1024 -o "$profile"
result 'calibrate' $? 'it failed'
measure --cache k4v4,q4_0,k6v6,q5_1,k8v8,q8_0 --html "$page"
result 'eval' $? "$(tail -n 1 "$dir/quality.err")"
below k4v4 q4_0 0.45
below k6v6 q5_1 0.28
below k8v8 q8_0 0.65
below q4_0 k4v4 10
grep -q 'pass 7 of 7, [0-9]*:[0-9][0-9] left' "$dir/quality.err"
result 'eval: time that is left' $? "$(tail -n 1 "$dir/quality.err")"
grep -q '<svg' "$page" && grep -q 'k4v4' "$page" && tail -n 1 "$page" | grep -q '</html>'
result 'eval: a page' $? "$page"

measure --cache f16
result 'eval: again' $? "$(tail -n 1 "$dir/quality.err")"
grep -q 'f16: pass 1 of 1' "$dir/quality.err"
result 'eval: nothing exact is computed again' $? "$(tail -n 1 "$dir/quality.err")"
awk -v kld="$(number f16 kld_mean)" 'BEGIN { exit !(kld != "" && kld < 1e-5) }'
result 'eval: an f16 cache hardly diverges' $? "$(number f16 kld_mean)"
"$aura" eval $model --text data/essay.txt --ctx 512 --chunks 1 --base "$base" --cache f16 2>"$dir/quality.err"
[ $? = 1 ] && grep -q 'another text' "$dir/quality.err"
result 'eval: exact logits of another text are refused' $? "$(tail -n 1 "$dir/quality.err")"

# Facts and questions: an exact cache loses nothing to itself, and two bits lose more than eight.
"$aura" eval $model --records 8 --chunks 1 --cache kf32vf32,k8v8,k2v2 --json >"$results" 2>"$dir/quality.err"
result 'eval: records' $? "$(tail -n 1 "$dir/quality.err")"
python3 - "$results" <<'E'
import json, sys
r = {(x["cache"], x["hops"]): x for x in json.load(open(sys.argv[1]))}
sys.exit(not (len(r) == 8 and r["exact", 1]["right"] > 0.2 and abs(r["kf32vf32", 1]["lost"]) < 1e-3 and
              abs(r["k8v8", 1]["lost"]) < 0.1 < abs(r["k2v2", 1]["lost"])))
E
result 'eval: records of an exact cache, of 8 bits and of 2' $? "$(tr -d '\n' <"$results" | head -c 1500)"
rm -f "$base"
