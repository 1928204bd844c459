#!/bin/bash
# test/plant.sh ISA...: proves that `aura check` notices a kernel with a single wrong bit in a single lane.
#
# Every word that the kernels of ISA call in turn gets a bug: a wrapper, put right after its definition, calls it and
# changes one bit of the result. One program has all the wrappers; each does nothing until the environment names it:
#     PLANT='vec_add lowest' build/test/plant/ISA/aura check --isa ISA
# A run without a bug tells which kernels call which words. Then `aura check` of one of those kernels must fail with a
# mismatch. The bit is the lowest one, or where only bounded stages use the word and that is a rounding, a high one, of
#     lane 11           of a whole vector, so that lanes beyond the first half are covered too
#     lane 3            of half a vector, and of what was stored: a store may be of 8 lanes only
#     the number        where the result is one number
#     the lane 3 itself where the result is a mask of lanes
# Prints a line per word: ok, or FAIL when nobody noticed. Several ISAs of one architecture share a build of the rest.
set -u
cd "$(dirname "$0")/.." || exit 1
dir=build/test/plant/$1
top=$PWD

cc='gcc -DAURA_PLAIN_TILES' run= # amx with plain C for its tile instructions, so that every machine with AVX2 runs what is around them
if grep -q '__aarch64__' "src/cpu/$1.c"; then
    cc='aarch64-linux-gnu-gcc -static' run=qemu-aarch64
fi

# wrap FILE FIRST WORDS: that source with a wrapper around every AURA_INLINE function; adds a line "name FILE" for each
# to the file WORDS. The first one has the number FIRST.
wrap() {
    awk -v file="$1" -v id="$2" -v list="$3" '
    function end_of_word() {
        print "static __attribute__((noinline)) " type " planted_" word "(" parameters ")\n{"
        if (word ~ /_n$/) { # loads or stores n elements at p
            print "    if (planted(" id ") == PLANTED_PAST)"
            print "        planted_past((void *)(uintptr_t)p, n * sizeof *p, " (type == "void") ");"
        }
        if (type == "void") {
            print "    " word "(" arguments ");\n    if (planted(" id "))"
            print "        planted_store(" part[1] ", sizeof *" part[1] ");"
        } else {
            print "    " type " result = " word "(" arguments ");\n    if (planted(" id "))"
            print "        planted_result(&result, sizeof result);\n    return result;"
        }
        print "}\n#define " word " planted_" word
        print word, file >> list
        id++
        type = ""
    }
    NR == 1 { print "#include \"../planted.h\"" }
    /^AURA_INLINE / && match($0, /[a-z0-9_]+\(/) { # AURA_INLINE type name(parameters), perhaps of several lines
        word = substr($0, RSTART, RLENGTH - 1)
        type = substr($0, 13, RSTART - 13)
        sub(/ *$/, "", type)
        parameters = substr($0, RSTART + RLENGTH)
        while (parameters !~ /\)/) {
            print
            if (getline <= 0)
                exit 1
            parameters = parameters $0
        }
        sub(/\).*/, "", parameters)
        arguments = ""
        count = parameters == "void" ? 0 : split(parameters, part, ",")
        for (i = 1; i <= count; i++) {
            sub(/\[.*/, "", part[i])
            sub(/.*[ *]/, "", part[i])
            arguments = arguments (i > 1 ? ", " : "") part[i]
        }
        print
        if (/}$/)
            end_of_word()
        next
    }
    { print }
    type != "" && /^}/ { end_of_word() }' "$1"
}

# What the wrappers call, and how it learns from the environment which of them has a bug. At the end it prints all words
# that were called.
planted_header() {
    cat <<'EOF'
#ifndef PLANTED_H
#define PLANTED_H
#include <stddef.h>
#include <stdint.h>
enum { PLANTED_LOWEST = 1, PLANTED_HIGH, PLANTED_PAST };
extern int planted_id, planted_bug;
extern unsigned char planted_called[];
/* The bug in a word, or 0. */
static inline int planted(int id)
{
    planted_called[id] = 1;
    return id == planted_id ? planted_bug : 0;
}
void planted_result(void *result, size_t size);
void planted_store(void *p, size_t element);
void planted_past(void *p, size_t size, int write);
#endif
EOF
}
planted_source() { # WORDS
    cat <<'EOF'
#include "planted.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static const char *const words[] = {
EOF
    sed 's/\(.*\) .*/    "\1",/' "$1"
    cat <<'EOF'
};
enum { COUNT = sizeof words / sizeof *words };
int planted_id = -1, planted_bug;
unsigned char planted_called[COUNT];
void planted_result(void *result, size_t size)
{
    size_t lane = size >= 64 ? 44 : size == 32 ? 12 : 0;
    unsigned char *byte = result;
    if (planted_bug == PLANTED_HIGH && size > 2) /* half of a float */
        byte[lane + 2] ^= 0x40;
    else if (planted_bug != PLANTED_PAST)
        byte[lane] ^= size == 2 ? 1 << 3 : 1;
}
void planted_store(void *p, size_t element)
{
    unsigned char *byte = (unsigned char *)p + 3 * element;
    if (planted_bug == PLANTED_HIGH)
        byte[element > 2 ? 2 : 0] ^= 0x40;
    else if (planted_bug == PLANTED_LOWEST)
        byte[0] ^= 1;
}
void planted_past(void *p, size_t size, int write)
{
    volatile unsigned char *byte = (unsigned char *)p + size, kept = *byte;
    if (write)
        *byte = kept ^ 1;
}
__attribute__((constructor)) static void begin(void)
{
    const char *text = getenv("PLANT");
    char word[80], bug[80];
    if (!text || sscanf(text, "%79s %79s", word, bug) != 2)
        return;
    for (int i = 0; i < COUNT; i++)
        if (!strcmp(words[i], word))
            planted_id = i;
    planted_bug = !strcmp(bug, "lowest") ? PLANTED_LOWEST : !strcmp(bug, "high") ? PLANTED_HIGH : PLANTED_PAST;
}
__attribute__((destructor)) static void end(void)
{
    printf("called:");
    for (int i = 0; i < COUNT; i++)
        if (planted_called[i])
            printf(" %s", words[i]);
    printf("\n");
}
EOF
}

# check VARIANT [WORD BUG]: leaves the exit status in `status` and the output in $dir/check.txt.
check() {
    PLANT="${2-} ${3-}" $run "$dir/aura" check "$1" --isa "$isa" --no-times --stop >"$dir/check.txt" 2>&1
    status=$?
    cat "$dir/check.txt"
}

# noticed WORD BUG PATTERN VARIANTS: the first of these kernels that fails with the bug, in a line with PATTERN.
noticed() {
    local variant
    for variant in $4; do
        check "$variant" "$1" "$2"
        by=$(sed -nE "/ FAIL .*($3)/s/ .*//p" "$dir/check.txt" | head -n 1)
        [ "$status" != 1 ] || [ -z "$by" ] || return 0
    done
    return 1
}

one_isa() {
    local isa=$1 file id=0 variant variants word users by status
    local words=$dir/words-$isa.txt called=$dir/called-$isa.txt
    local files templates
    files=$(set -o pipefail; $cc -MM "src/cpu/$isa.c" | tr -s ' \\' '\n' | grep -E '^src/cpu/[a-z0-9_.]+$') || return
    templates=$(echo "$files" | grep '\.tmpl\.h$')
    files=$(echo "$files" | grep -v '\.tmpl\.h$')
    if [ -z "$templates" ]; then
        echo "plant $isa: no kernels yet"
        return
    fi

    rm -rf "$dir/src"
    cp -r src include "$dir"
    planted_header >"$dir/src/planted.h"
    : >"$words"
    : >"$called"
    for file in $files; do
        wrap "$file" "$id" "$words" >"$dir/$file"
        id=$(wc -l <"$words")
    done
    planted_source "$words" >"$dir/src/planted.c"
    $cc -Og -c "$dir/src/cpu/$isa.c" -o "$dir/$isa.o" &&
        $cc "$dir/$isa.o" "$dir/src/planted.c" "$dir"/tool/*.o "$dir/libaura.a" -lm -o "$dir/aura" || return

    # A word written in a way that the pattern above misses must not go untested.
    if [ "$(cat $files | grep -c '^AURA_INLINE')" != "$id" ] || cat $files | grep -q '^static inline.*vec'; then
        echo "FAIL plant $isa: not every word got a bug of those in" $files
    fi
    for word in $(cat $templates | grep -oE '\bi?vec_[a-z0-9_]+' | sort -u); do
        grep -q "^$word " "$words" || echo "FAIL plant $isa $word: used by a template, but got no bug"
    done

    variants=$($run "$dir/aura" list --json | sed -n '/"variant": "matmul_/d; s/.*"variant": "\([^"]*\)", "isa": "'"$isa"'", .*/\1/p')
    for variant in $variants; do
        check "$variant"
        if grep -q ' skip ' "$dir/check.txt"; then
            echo "skip plant $isa: this machine cannot run it ($(sed -n 's/.* skip *//p' "$dir/check.txt" | head -n 1))"
            return
        fi
        [ "$status" = 0 ] || echo "FAIL plant $isa nothing: $variant fails without a bug"
        sed -n "s/^called:\(.*\)/$variant\1 /p" "$dir/check.txt" >>"$called"
    done
    echo "ok plant $isa nothing: $(wc -l <"$called") kernels ran without a bug"

    while read -r word file; do
        users=$(sed -n "/ $word /s/ .*//p" "$called")
        if [ -z "$users" ]; then # words that another instruction set lends may be of no use here
            case $file in "src/cpu/$isa".?) echo "FAIL plant $isa $word: no kernel calls it" ;; esac
            continue
        fi
        echo "--- $word"
        if noticed "$word" lowest '' "$users"; then
            echo "ok plant $isa $word: noticed by $by, lowest bit"
        elif noticed "$word" high '' "$users"; then
            echo "ok plant $isa $word: noticed by $by, high bit"
        else
            echo "FAIL plant $isa $word: nobody noticed, exit status $status"
        fi
        # Guard pages, canaries and caught signals: one byte too many is noticed for what it is.
        case $word in *_n)
            if noticed "$word" past 'Segmentation fault|wrote outside' "$users"; then
                echo "ok plant $isa $word one byte past the end: noticed by $by"
            else
                echo "FAIL plant $isa $word one byte past the end: nobody noticed, exit status $status"
            fi ;;
        esac
    done <"$words"
}

rm -rf "$dir"
mkdir -p "$dir/lib" "$dir/tool"
(cd "$dir/lib" && $cc -O1 -c "$top"/src/*.c "$top"/src/*/*.c && ar rc ../libaura.a ./*.o) || exit 1
(cd "$dir/tool" && $cc -O2 -c $(ls "$top"/tool/*.c "$top"/tool/*/*.c | grep -v /make_codebook) && $cc -O0 -c "$top"/model/*.c) || exit 1 # models are not run
for isa in "$@"; do
    one_isa "$isa" || echo "FAIL plant $isa: does not build"
done
