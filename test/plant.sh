#!/bin/bash
# test/plant.sh ISA [DIR]: proves that `aura check` notices a kernel with a single wrong bit in a single lane.
#
# Every word of src/cpu/ISA.c in turn gets a bug: a wrapper, put right after its definition, calls it and changes one
# bit of the result. The file is compiled, linked before the good library, and `aura check --isa ISA` must fail with a
# mismatch. The bit is the lowest one, or where only bounded stages use the word and that is a rounding, a high one, of
#     lane 11           of a whole vector, so that lanes beyond the first half are covered too
#     lane 3            of half a vector, and of what was stored: a store may be of 8 lanes only
#     the number        where the result is one float
#     the lane 3 itself where the result is a mask of lanes
# Prints a line per word: ok, or FAIL when nobody noticed.
set -u
cd "$(dirname "$0")/.." || exit 1
isa=$1
dir=${2:-build/test/plant}/$isa

cc=gcc run=
[ "$isa" != neon ] || cc='aarch64-linux-gnu-gcc -static' run=qemu-aarch64

# plant [WORD OFFSET FLIP]: the source on stdin with the bug in that function: FLIP in the byte at OFFSET of the lane; FLIP
# `past`: a load or store of n floats that touches the byte behind them.
# Without a word, the names of all functions that can have one.
plant() {
    awk -v word="${1-}" -v offset="${2-}" -v flip="${3-}" '
    # AURA_INLINE type name(parameters)
    /^AURA_INLINE / && match($0, /[a-z0-9_]+\(/) {
        name = substr($0, RSTART, RLENGTH - 1)
        if (word == "")
            print name
        if (name == word) {
            type = substr($0, 13, RSTART - 13)
            gsub(/ /, "", type)
            parameters = substr($0, RSTART + RLENGTH)
            sub(/\).*/, "", parameters)
            count = parameters == "void" ? 0 : split(parameters, part, ",")
            for (i = 1; i <= count; i++) {
                sub(/.*[ *]/, "", part[i])
                arguments = arguments (i > 1 ? ", " : "") part[i]
            }
        }
    }
    word != "" { print }
    type != "" && /}$/ && (/^}/ || /^AURA_INLINE/) { # the end of the definition
        call = word "(" arguments ")"
        print "AURA_INLINE " type " planted_" word "(" parameters ")\n{"
        if (flip == "past" && type == "void") { # writes a byte too many
            print "    " call ";\n    ((unsigned char *)p)[4 * n] ^= 1;"
        } else if (flip == "past") { # reads one
            print "    volatile unsigned char past = ((const unsigned char *)p)[4 * n];\n    (void)past;\n    return " call ";"
        } else if (type == "void") {
            print "    " call ";"
            print "    ((unsigned char *)" part[1] ")[3 * sizeof *" part[1] " + (sizeof *" part[1] " > 2 ? " offset " : 0)] ^= " flip ";"
        } else {
            print "    " type " result = " call ";"
            print "    unsigned char *byte = (unsigned char *)&result;"
            print "    if (sizeof result == 2)\n        byte[0] ^= 1 << 3;"
            print "    else\n        byte[(sizeof result == 64 ? 44 : sizeof result == 32 ? 12 : 0) + " offset "] ^= " flip ";"
            print "    return result;"
        }
        print "}\n#define " word " planted_" word
        type = ""
    }'
}

# Compiles the changed source and checks it; leaves the exit status in `status` and the output in $dir/check.txt.
try() {
    $cc -O1 -c "$dir/src/cpu/$isa.c" -o "$dir/planted.o" &&
        $cc "$dir/planted.o" "$dir"/tool/*.o "$dir/libaura.a" -lm -o "$dir/aura" || return 1
    $run "$dir/aura" check --isa "$isa" --no-times --stop >"$dir/check.txt" 2>&1
    status=$?
    cat "$dir/check.txt"
}

rm -rf "$dir"
mkdir -p "$dir/lib" "$dir/tool"
cp -r src include "$dir"
top=$PWD
(cd "$dir/lib" && $cc -O2 -c "$top"/src/*.c "$top"/src/*/*.c && ar rc ../libaura.a ./*.o) || exit 1
(cd "$dir/tool" && $cc -O2 -c $(ls "$top"/tool/*.c | grep -v /make_codebook)) || exit 1

try || exit 1
if grep -q ' skip ' "$dir/check.txt"; then
    echo "skip plant $isa: this machine cannot run it ($(sed -n 's/.* skip *//p' "$dir/check.txt" | head -n 1))"
    exit 0
fi
if [ "$status" = 0 ]; then
    echo "ok plant $isa nothing: passes without a bug"
else
    echo "FAIL plant $isa nothing: fails without a bug"
fi

words=$(plant <"src/cpu/$isa.c")
for word in $words; do
    echo "--- $word"
    for bit in '0 1' '2 0x40'; do # the lowest of a float; half of its size
        plant "$word" $bit <"src/cpu/$isa.c" >"$dir/src/cpu/$isa.c"
        try || { echo "FAIL plant $isa $word: does not compile" && continue 2; }
        noticed=$(sed -n 's/ .* FAIL .*//p' "$dir/check.txt" | head -n 1)
        [ "$status" = 1 ] && [ -n "$noticed" ] && break
    done
    if [ "$status" = 1 ] && [ -n "$noticed" ]; then
        echo "ok plant $isa $word: noticed by $noticed, $([ "$bit" = '0 1' ] && echo lowest bit || echo high bit)"
    else
        echo "FAIL plant $isa $word: nobody noticed, exit status $status"
    fi
done

# Guard pages, canaries and caught signals: one byte too many is noticed for what it is.
for word in vec_load_n vec_store_n; do
    plant $word 0 past <"src/cpu/$isa.c" >"$dir/src/cpu/$isa.c"
    if try && [ "$status" = 1 ] && grep -qE ' FAIL .*(Segmentation fault|wrote outside)' "$dir/check.txt"; then
        echo "ok plant $isa $word one byte past the end: noticed"
    else
        echo "FAIL plant $isa $word one byte past the end: exit status $status"
    fi
done

# A word written in a way that the pattern above misses must not go untested.
for word in $(cat src/cpu/*.tmpl.h | grep -oE '\bi?vec_[a-z0-9_]+' | sort -u); do
    echo "$words" | grep -qx "$word" || echo "FAIL plant $isa $word: used by a template, but got no bug"
done
