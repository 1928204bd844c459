#!/bin/bash
# All tests, the same here and in CI.
#
#     test/run.sh              every job, two at a time
#     test/run.sh JOB...       only these; `plant` means plant-x86 and plant-neon
#     test/run.sh JOB/TEST     one test program of a job that builds them, for example gcc/cache_fork, asan/fuzz_walk, neon/check
#     test/run.sh quick        for the edit loop: one compiler, test programs (without those in $slow), check; `make quick`
#     test/run.sh --list
#
# A job is a function job_NAME below. It prints a line per test, "ok NAME", "FAIL NAME: why" or "skip NAME: why"; all
# it prints goes to build/test/NAME.log. A job that ends badly without a FAIL line, or that tested nothing, has failed.
# The last line is "N passed, N failed, N skipped"; above it are the jobs that took longest.
set -u
cd "$(dirname "$0")/.." || exit 1
unset CC CXX CFLAGS CXXFLAGS CPPFLAGS LDFLAGS MAKEFLAGS MAKELEVEL MFLAGS # each job says its own
export LC_ALL=C
self=test/run.sh
top=$PWD
out=build/test
jobs='asan neon isa plain device plant-neon gcc clang plant-x86 tool model quality install mpi tsan drill llama python symbols header tables style union' # long first
time_limit=1450 # seconds; a job that takes longer hangs, as all of them together take 25 minutes at most on two cores

# ---- what jobs are made of ------------------------------------------------------------------------------------------

# try NAME COMMAND...: one test, passed when the command succeeds.
try() {
    local name=$1 status
    shift
    echo "+ $*"
    cpu "$@"
    status=$?
    if [ $status = 0 ]; then
        echo "ok $name"
    else
        echo "FAIL $name: exit status $status"
    fi
    return $status
}

# build DIR CMAKE_ARGUMENTS...: everything, with warnings as errors.
build() {
    local dir=$1
    shift
    cmake -S . -B "$dir" -DAURA_WERROR=ON "$@" && cmake --build "$dir" $(targets)
}

# What a build has to make: all, or what the one test needs that was asked for.
targets() {
    case ${one_test-} in
    '') ;;
    check) echo --target aura_tool ;;
    fuzz_*) echo --target "$one_test" ;;
    *) echo --target "test_$one_test" ;;
    esac
}

# asked NAME: whether a test is to run.
asked() {
    [ "${one_test:-$1}" = "$1" ]
}

# gcc_build [CMAKE_ARGUMENTS...]: the build that several jobs look at. Whoever comes first makes it, the others wait.
gcc_build() {
    flock "$out/gcc.lock" cmake -S . -B $out/gcc -DAURA_WERROR=ON -DCMAKE_C_COMPILER=gcc -DAURA_MPI=$(command -v mpicc >/dev/null && echo ON || echo OFF) &&
        flock "$out/gcc.lock" cmake --build $out/gcc $(targets) "$@"
}

# device_build TARGET...: the emulated device, as a program and as a library; for two jobs.
device_build() {
    flock "$out/device.lock" cmake -S . -B $out/device -DCMAKE_C_COMPILER=gcc -DAURA_EMULATE=ON &&
        flock "$out/device.lock" cmake --build $out/device --target "$@"
}

# cpu COMMAND...: runs it for test or step $name of $job, and notes its seconds of CPU time: those of a clock tell of two jobs.
cpu() {
    local TIMEFORMAT="%U %S $job/$name" status
    { time "$@" 2>&3; status=$?; } 3>&2 2>>"$top/$out/$job.cpu"
    return $status
}

# program NAME COMMAND...: a program that prints a line per test; NAME/ goes in front of each test's name.
program() {
    local name=$1 status text=$out/$job.$1.txt
    shift
    asked "$name" || return 0
    cpu "$@" >"$text" 2>&1
    status=$?
    sed -E "s,^(ok|FAIL|skip) ,&$name/," "$text"
    if [ $status != 0 ] && ! grep -q '^FAIL ' "$text"; then
        echo "FAIL $name: exit status $status"
    elif ! grep -qE '^(ok|FAIL|skip) ' "$text"; then
        echo "FAIL $name: no test ran"
    fi
}

# The test programs: every C file of test/ but the targets of the fuzzer.
test_names() {
    ls test/*.c test/*/*.c | grep -Ev '^test/(fuzz|mpi)/' | sed 's,.*/\(.*\)\.c,\1,'
}

# programs DIR [WRAPPER...]: every test program of a build, except those named in $except, which other jobs run.
programs() {
    local dir=$1 name
    shift
    for name in ${except-}; do
        test_names | grep -qx "$name" || echo "FAIL programs: there is no test $name to leave out"
    done
    for name in $(test_names); do
        case " ${except-} " in *" $name "*) ;; *) program "$name" "$@" "$dir/test_$name" ;; esac
    done
}

# replays DIR: every fuzz target of a build over its corpus and changes of it, for some seconds each.
replays() {
    local name
    for name in $(cd test/fuzz && ls ./*.c | sed 's,./\(.*\)\.c,\1,' | grep -vx replay); do
        program "fuzz_$name" "$1/fuzz_$name" "test/fuzz/corpus/$name"
    done
}

# The table of `make fuzz-long`, of two targets that only pretend: one runs twice and finds something, the other breaks at once.
fuzz_table() {
    local dir=$out/fuzz-table
    [ -z "${one_test-}" ] || return 0
    rm -rf $dir
    mkdir -p $dir
    printf '#!/bin/sh\necho "#9 DONE   cov: 12 ft: 3"\necho "stat::number_of_executed_units: 40"\ntouch %s/corpus/good/new\n' $dir >$dir/fuzz_good
    printf '#!/bin/sh\necho "stat::number_of_executed_units: 7"\nexit 77\n' >$dir/fuzz_bad
    chmod +x $dir/fuzz_*
    FUZZ_SLICE=2 test/fuzz/long.sh $dir 4 >$dir/table
    try 'fuzz-long: a target that breaks is a failure' test $? = 1
    try 'fuzz-long: and has no second turn' grep -q '^bad  *7 .*BROKEN: .*/bad.log$' $dir/table
    try 'fuzz-long: executions, a second, edges, new files' grep -q '^good  *80  *20  *12  *1  ok$' $dir/table
    rm $dir/fuzz_bad
    try 'fuzz-long: none breaks' test/fuzz/long.sh $dir 4
}

# check JSON COMMAND...: an `aura check`, its results kept in a file.
check() {
    local json=$1 status failed summary
    shift
    asked check || return 0
    local name=check
    echo "+ $* --json"
    cpu "$@" --json >"$json"
    status=$?
    failed=$(sed -n 's/.*"variant": "\([^"]*\)", "outcome": "FAIL".*"reason": "\(.*\)"}.*/FAIL check \1: \2/p' "$json")
    summary=$(sed -n 's/^\], "ok": \(.*\), "marginal": \(.*\), "failed": 0, "skipped": .*/\1 ok, \2 marginal/p' "$json")
    if [ $status = 0 ] && [ -n "$summary" ]; then
        echo "ok check: $summary"
    else
        echo "${failed:-FAIL check: exit status $status: $(tail -n 1 "$json")}"
    fi
}

# can_run ISA AURA...: whether this machine, or the emulated one, can.
can_run() {
    local isa=$1
    shift
    "$@" list --json | grep -q "\"isa\": \"$isa\", \"built\": true, \"can_run\": true"
}

# isas AURA...: the instruction sets that this build has kernels of.
isas() {
    "$@" list --json | sed -n 's/.*"isa": "\([^"]*\)", "built": true.*/\1/p' | awk '!seen[$0]++'
}

# ---- builds that run everything -------------------------------------------------------------------------------------

job_gcc() {
    try build gcc_build || return
    programs $out/gcc
    check $out/check-x86.json $out/gcc/aura check
}

# For the edit loop, at most two minutes on two cores from a warm build: the tests two at a time, shortened by AURA_QUICK; style;
# and whether the steps of doc/add-a-variant.md still find their places. The slow tests are left to the gcc job.
slow='alloc_fail cache_cover cache_edges cache_same cache_store cache_walk failed_calls killed_commands recorded'
job_quick() {
    local name
    export AURA_QUICK=1
    try build gcc_build --parallel 2 || return
    rm -f $out/quick.*.out
    { echo check; test_names; } | grep -vxF "$(printf '%s\n' $slow)" | xargs -P 2 -n 1 $self --quick ||
        echo 'FAIL quick: a test was killed'
    cat $out/quick.*.out
    if command -v python3 >/dev/null; then
        test/style.py || echo "FAIL style: exit status $?"
        test/drill.py --edits || echo "FAIL drill: exit status $?"
    else
        echo 'skip style: there is no python3'
    fi
}

# One of them; its lines go to a file of its own, as another test is printing.
quick_test() {
    if [ "$1" = check ]; then
        check $out/check-quick.json $out/gcc/aura check --no-times
    else
        program "$1" $out/gcc/test_"$1"
    fi >$out/quick."$1".out
}

job_clang() {
    export AURA_QUICK=1
    try build build $out/clang -DCMAKE_C_COMPILER=clang || return
    local except='alloc_fail cache_cover cache_edges cache_same cache_walk failed_calls hard_times killed_commands recorded' # the gcc job runs them
    programs $out/clang
    check $out/check-clang.json $out/clang/aura check --no-times
}

# The CUDA kernels and their host side, on a device that is emulated: the same checks as on a GPU. Job union looks for every kernel in
# check-cuda.json.
job_device() {
    try build device_build emulated_device block_table || return
    try 'examples: block_table has less than 120 lines' test "$(wc -l <examples/block_table.cu)" -lt 120
    try 'examples: block_table' $out/device/block_table
    program device device_check
    ! command -v python3 >/dev/null || try 'device: --json, for a parser' python3 -m json.tool $out/check-cuda.json $out/device.pretty
    $out/device/emulated_device check --device cuda small >$out/device.txt
    try 'device: a part, in lines with their kernels' grep -q '^ok .*  by .*attend_b4_d128_p1_r4_cuda$' $out/device.txt
}

# A line for each case of --json, as the tests print them.
device_check() {
    local status line='.*"outcome": "\([^"]*\)", "case": "\(.*\)", "text": "\(.*\)", "kernels": \[\(.*\)\]}.*'
    $out/device/emulated_device check --device cuda --json >$out/check-cuda.json
    status=$?
    sed -n "s/$line/\1 \2: \3: \4/p" $out/check-cuda.json
    return $status
}

# Debug, so that assertions are on. Without detect_stack_use_after_return: gcc 12 gives the stack it fakes an alignment
# of 32 and then loads 64-byte vectors from it as aligned (gcc bug 110027).
job_asan() {
    export UBSAN_OPTIONS=print_stacktrace=1 AURA_QUICK=1
    try build build $out/asan -DCMAKE_C_COMPILER=gcc -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG=-g1 -DAURA_PLAIN_KERNELS=ON \
        -DCMAKE_C_FLAGS='-fsanitize=address,undefined -fno-sanitize-recover=all -O1' || return
    local except='cache_attend cache_cover cache_edges cache_same cache_store killed_commands recorded team_model threads_model' # fibers, or minutes, over code that the others reach
    programs $out/asan
    replays $out/asan
    fuzz_table
    check $out/check-asan.json $out/asan/aura check --no-times
}

# Those that start threads; the rest has none.
job_tsan() {
    try configure cmake -S . -B $out/tsan -DCMAKE_C_COMPILER=gcc -DCMAKE_C_FLAGS='-fsanitize=thread -O1' || return
    try build cmake --build $out/tsan --target test_machine test_threads test_threads_start test_team test_cache_threads test_model_threads || return
    program machine $out/tsan/test_machine
    program threads $out/tsan/test_threads
    program threads_start $out/tsan/test_threads_start
    program team $out/tsan/test_team
    program cache_threads $out/tsan/test_cache_threads
    program model_threads $out/tsan/test_model_threads
}

# Dot products and I8MM too: an emulator that lacks one of them is a failure here, as nothing else runs those kernels.
job_neon() {
    local isa
    export AURA_QUICK=1
    try build build $out/neon -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
        -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_EXE_LINKER_FLAGS=-static || return
    # An emulated second is thirty: of the cache, what depends on the instruction set, its bytes and its attention.
    local except='alloc_fail cache_cover cache_dims cache_edges cache_edit cache_fork cache_learn cache_misuse cache_pages cache_pool
        cache_same cache_slots cache_step cache_threads cache_truncate cache_walk cache_window calibrate conversation cuda_cut eval extents format_names import listing llm merge mlx_kernels
        model_cache model_threads failed_calls hard_times killed_commands killed_saves page_table plan profile quality recorded
        safetensors sinks snapshot snapshot_damage snapshot_parts team team_model threads threads_model threads_start
        tiers view'
    except=$(echo $except)
    programs $out/neon qemu-aarch64 -cpu max
    rm -f $out/check-arm-*.json
    for isa in $(isas qemu-aarch64 -cpu max $out/neon/aura | grep -vx ref); do # the definition is plain C: test programs run it here
        check $out/check-arm-$isa.json qemu-aarch64 -cpu max $out/neon/aura check --no-times --isa $isa --strict
    done
    # Counted, not timed: one run is like another. Rows that share the decoding of a tile take less each, 16 less than 4, and trellis
    # codes at most 1.5 times as much as others.
    try 'instructions are counted' sh -c 'BUILD=$1 tool/bench/arm/count.sh i8mm "k4v4 kt4vt4" "1 4 16" >$1/counts &&
        BUILD=$1 tool/bench/arm/count.sh i8mm k4v4 4 | tail -n 1 | grep -Fxf - $1/counts' sh $out/neon
    counted 'rows share what is decoded' k4v4 1 '3 * sum[4] < 2 * one && sum[16] < sum[4] && sum[4] > 1000'
    counted 'reading trellis codes' kt4vt4 4 'one > 1000 && one <= 1.5 * sum[4]'
    # A kernel that asks at run time what its kind is has the code of all kinds, and takes twice as long.
    try 'kinds are constants of kernels' sh -c 'for isa in neon dotprod i8mm; do
        ! aarch64-linux-gnu-nm $(find $1 -path "*cpu/$isa.c.o") | grep -E "aura_is_(trellis|split|wide)|aura_bits_of" || exit 1; done' sh $out/neon
}

# The files may be of any compiler in any dialect: the bytes are the same.
job_plain() {
    plain 'gcc -O1 -march=native' gcc -O1 -march=native # may fuse products and sums
    plain 'clang' clang
    plain 'aarch64 gcc' aarch64-linux-gnu-gcc -static
}

plain() {
    local name=$1 dir=$out/plain run=
    shift
    rm -rf "$dir"
    mkdir -p "$dir"
    [ "$1" != aarch64-linux-gnu-gcc ] || run=qemu-aarch64
    (cd "$dir" && try "plain $name" "$@" -c "$top"/src/*.c "$top"/src/*/*.c) || return
    try "plain $name: link" "$@" -pthread test/golden.c "$dir"/*.o -lm -o "$dir/golden" || return
    program "plain $name" $run "$dir/golden"
}

# ---- instruction sets -----------------------------------------------------------------------------------------------

# Each one forced. Then on CPUs that have less, where a newer instruction that leaked into the detector or the
# reference would end the program.
job_isa() {
    local isa pattern old='qemu-x86_64 -cpu Nehalem' max='qemu-x86_64 -cpu max'
    gcc_build || return
    for isa in $(isas $out/gcc/aura); do
        if can_run $isa $out/gcc/aura; then
            try "isa $isa" $out/gcc/aura check --isa $isa --no-times --strict
            try "isa $isa is used when nothing else may be" only $isa
        else
            echo "skip isa $isa: this CPU lacks it"
        fi
    done

    if can_run amx $out/gcc/plain_tiles_aura; then
        try 'isa amx, with plain C for its tile instructions' $out/gcc/plain_tiles_aura check --isa amx --no-times --strict
        AURA_QUICK=1 AURA_TEST_ISA=amx program plain_tiles $out/gcc/plain_tiles_same
    else
        echo 'skip isa amx, with plain C for its tile instructions: this CPU has no AVX2'
    fi
    try 'isa AURA_ISA: nothing better' bash -c "! AURA_ISA=ref $out/gcc/aura list --json | grep -v '\"isa\": \"ref\"' | grep '\"used\": true'"

    try 'isa old CPU: list' $old $out/gcc/aura list
    if can_run avx2 $old $out/gcc/aura; then
        echo 'FAIL isa old CPU: claims to have AVX2'
    else
        echo 'ok isa old CPU: no AVX2 seen'
    fi
    try 'isa old CPU: rotate' $old $out/gcc/aura check rotate --isa ref --no-times
    try 'isa old CPU: encode' $old $out/gcc/aura check row_encode_b4 --isa ref --no-times
    program 'isa old CPU' $old $out/gcc/test_golden
    # Not the widths above 4 bits: they gather, and qemu 7.2 takes ymm4 as an index register for "no index".
    if can_run avx2 $max $out/gcc/aura; then
        for pattern in rotate undo encode_b3 score_b4p1 value_b3p2; do
            try "isa emulated AVX2: $pattern" $max $out/gcc/aura check $pattern --isa avx2 --no-times --strict
        done
    else
        echo 'skip isa emulated AVX2: this qemu has none'
    fi
}

# only ISA: with a mask of that set alone, all of its kernels are used, and beside them the definition, where it has none.
only() {
    local list=$out/isa.only.txt
    $out/gcc/aura list --isa "$1" --json >$list &&
        ! grep "\"isa\": \"$1\"" $list | grep '"used": false' &&
        ! grep '"used": true' $list | grep -v "\"isa\": \"$1\"" | grep -v '"isa": "ref"'
}

# A kernel that no job has run is a failure; those that this machine's CPU cannot run are a skip. Those of the GPU run on the emulated
# device, everywhere.
job_union() {
    local status isa names
    [ -e $out/gcc/aura ] || gcc_build || return
    $out/gcc/aura check --union $out/check-x86.json $out/check-arm-*.json $out/check-cuda.json >$out/union.txt
    status=$?
    cat $out/union.txt
    one_not_run
    if [ $status != 1 ]; then
        [ $status != 0 ] || echo "ok union: $(tail -n 1 $out/union.txt)"
        return $status
    fi
    for isa in $(sed -n 's/^never ran: .*_//p' $out/union.txt | sort -u); do
        names=$(sed -n "s/^never ran: \(.*_$isa\)\$/\1/p" $out/union.txt | tr '\n' ' ')
        if [ $isa = cuda ] || can_run $isa $out/gcc/aura || can_run $isa qemu-aarch64 -cpu max $out/neon/aura; then
            echo "FAIL union: never ran: $names"
        else
            echo "skip union: neither this CPU nor qemu has $isa, so nobody ran: $names"
        fi
    done
}

# Planted: a kernel of the GPU is taken out of the results, and must be missed.
one_not_run() {
    local name=attend_b4_d256_p1_r16_cuda
    sed "/\"variant\": \"$name\"/s/\"outcome\": \"ok\"/\"outcome\": \"skip\"/" $out/check-cuda.json >$out/union-planted.json
    $out/gcc/aura check --union $out/check-x86.json $out/check-arm-*.json $out/union-planted.json >$out/union-planted.txt
    try 'union: a GPU kernel that did not run is missed' grep -qx "never ran: $name" $out/union-planted.txt
}

job_plant-x86() { test/plant.sh avx2 avxvnni avx512 avx512vnni amx; }
# counted WHAT FORMAT ROWS CONDITION: awk's condition on `one`, the instructions of that format and so many rows, and sum[rows] of k4v4.
counted() {
    try "instructions: $1" awk -v format=$2 -v rows=$3 '$2 == format && $3 == rows { one = $7 } $2 == "k4v4" { sum[$3] = $7 }
        END { exit !('"$4"') }' $out/neon/counts
}
job_plant-neon() { test/plant.sh neon dotprod i8mm; }

# ---- the tool's commands --------------------------------------------------------------------------------------------

# That they run, print what they say, and end with the code that --help promises. How near and how fast the results are is
# the business of test/cache/recorded.c and of whoever reads `aura bench`.
job_tool() {
    local aura=$out/gcc/aura file=data/smollm2-attention.safetensors
    gcc_build || return
    ends 0 'attend' $aura attend $file --layer 18 --cache k4v4 --planes 2 --json
    holds 'attend: JSON' '"layer": 18, .*"output_error": 0\.[0-9]*, "attention_kl": '
    ends 0 'attend: without each part' $aura attend $file --layer 1 --no-reference --no-pinned --no-balance --no-search \
        --no-rollback --threads 3 --isa ref
    holds 'attend: says where the balance is from' 'balance from: none'
    ends 0 'attend: --out' $aura attend $file --cache kf16vf16 --out $out/tool.safetensors
    try 'attend: --out has six tensors' test "$(grep -ao '"layer[^"]*":' $out/tool.safetensors | wc -l)" = 6
    ends 2 'attend: no file' $aura attend
    ends 2 'attend: no such format' $aura attend $file --cache k9v9
    ends 2 'attend: no such option' $aura attend $file --unknown
    ends 2 'attend: a number out of range' $aura attend $file --planes 3
    ends 2 'attend: an option without its value' $aura attend $file --layer
    ends 1 'attend: no such layer' $aura attend $file --layer 2
    ends 1 'attend: not such a file' $aura attend README.md
    ends 1 'attend: nothing recorded' $aura attend $out/tool.safetensors
    ends 1 'attend: nowhere to write' $aura attend $file --layer 1 --out $out/no/such/folder

    ends 0 'bench' $aura bench --k 4 --v f16 --dim 64 --heads 6 --kv-heads 2 --tokens 300 --batch 3 --queries 5 --planes 2 --json
    holds 'bench: JSON' '"format": "k4vf16", "dim": 64, .*"read_ratio": [0-9.]*, .*"times_f16": '
    ends 0 'bench: for people' $aura bench --dim 64 --heads 4 --kv-heads 1 --tokens 512 --threads 3
    ends 0 'bench: prefill' $aura bench --prefill --dim 64 --heads 4 --kv-heads 1 --tokens 512 --queries 40 --isa ref --json
    holds 'bench: prefill, JSON' '"peak_ratio": '
    ends 0 'bench: codec' $aura bench --codec --k 8 --v 4 --dim 64 --kv-heads 1 --json
    holds 'bench: codec, JSON' '"format": "k8v4", .*"append_no_search_vectors_per_s": [1-9][0-9]*, "decode_gb_per_s": [0-9.]*, .*"pages_in_no_search_gb_per_s": [0-9.]*, '
    ends 2 'bench: codec and targets' $aura bench --codec --targets
    ends 2 'bench: a part of nothing' $aura bench --part hot
    ends 2 'bench: no such planes' $aura bench --planes 3
    ends 2 'bench: prefill of f16' $aura bench --prefill --k f16
    ends 2 'bench: more queries than tokens' $aura bench --tokens 4 --queries 5
    ends 1 'bench: no such dim' $aura bench --dim 600 --tokens 100
    try 'bench: no such dim, said before anything is filled' bash -c "! grep -q filling $out/tool.err"
    ends 0 'bench: for people, again' $aura bench --dim 64 --heads 2 --kv-heads 1 --tokens 64 --threads 1
    holds 'bench: names the compiler, and one thread is no threads' 'compiled by gcc [0-9][0-9]*\.[0-9][0-9]*, 1 thread, '
    bench_page
    ends 2 'bench: rows with options' $aura bench rows --dim 64
    ends 0 'check --device cuda: without CUDA it is no failure' $aura check --device cuda
    holds 'check --device cuda: and says so' 'skip CUDA: .*built without it'
    ends 0 'list: names CUDA' $aura list
    holds 'list: says why it is skipped' 'CUDA: skipped: '
    holds 'list: names the products of weights' 'matmul_Q4_K_ref'
    ends 2 'eval: no model' $aura eval
    ends 2 'eval: no text' $aura eval README.md
    ends 2 'eval: no such cache' $aura eval README.md --text README.md --cache k4v4,q9_0
    ends 2 'eval: a number out of range' $aura eval README.md --text README.md --rollback 33
    ends 1 'eval: not a model' $aura eval README.md --text README.md
    ends 1 'eval: no such profile' $aura eval README.md --text README.md --profile $out/no/such
    ends 2 'calibrate: nowhere to write' $aura calibrate README.md --text README.md
    ends 1 'calibrate: not a model' $aura calibrate README.md --text README.md -o $out/tool.profile
    ends 2 'no command' $aura
    tool_help
    tool_mistakes
    tool_demo
    tool_pages
    tool_setup
    tool_completion
    tool_run
    tool_tokens
}

# The page of a table that is killed has the rows that were measured.
bench_page() {
    local page=$out/bench.html child
    rm -f $page
    $aura bench --threads 1 --html $page >/dev/null 2>&1 &
    child=$!
    for _ in $(seq 600); do
        [ ! -e $page ] || break
        sleep 0.1
    done
    kill -KILL $child
    wait $child 2>/dev/null
    try 'bench: the page of a killed one' grep -q '</html>' $page
    try 'bench: the page of a killed one has rows' test "$(grep -c '>k8v8<' $page)" -ge 3
}

# The commands by their own list.
commands() {
    $aura completion fish | sed -n "s/.*__fish_use_subcommand -a \([a-z]*\) .*/\1/p"
}

# options COMMAND: those of its table, as the completion has them.
options() {
    $aura completion bash | sed -n "s/^    '$1 '\*) words='--help\([^']*\)'.*/\1/p" | tr ' ' '\n' | grep '^-'
}

# Every help fits a screen, and every option is in help, manual and completion: all three are printed from one table.
tool_help() {
    local command option missing=
    fits 'help' $aura --help
    try 'help: exit codes' grep -q 'exit codes: 0 good; 1 .*; 2 ' $out/tool.txt
    try 'help: there are commands' test "$(commands | wc -l)" -ge 9
    try 'help: completion has the commands of help' diff <(commands) <(sed -n 's/^  \([a-z][a-z]*\)  *[a-z].*/\1/p' $out/tool.txt)
    for command in $(commands); do
        fits "help: $command" $aura "$command" --help
        try "help: $command as another way to ask" diff <($aura help "$command") $out/tool.txt
        for option in $(sed -n 's/^  \(-[a-z], \)\?\(--[a-z-]*\).*/\2/p' $out/tool.txt); do
            options "$command" | grep -qx -- "$option" || missing="$missing $command:$option:bash"
        done
        for option in $(options "$command"); do
            grep -q -- "^  \(-., \)\?$option\b" $out/tool.txt || missing="$missing $command:$option:help"
            sed 's/\\-/-/g; s/\\f.//g' doc/aura.1 | sed -n "/^.SS aura $command\$/,/^.S[SH]/p" | grep -q -- "^\(-., \)\?$option\b" ||
                missing="$missing $command:$option:man"
            $aura completion zsh | sed -n "/^    $command) /,/;;\$/p" | grep -q -- "'\*\?$option\[" || missing="$missing $command:$option:zsh"
            $aura completion fish | grep -q -- "seen_subcommand_from $command' \(-l ${option#--}\|-s ${option#-}\) " ||
                missing="$missing $command:$option:fish"
        done
    done
    try "help: every option is everywhere;$missing" test -z "$missing"
    try 'help: of a command that takes options' grep -qx -- --cache <(options attend)
}

# fits NAME COMMAND...: what it prints is 32 lines of 80 columns at most, and there is something.
fits() {
    ends 0 "$1" "${@:2}"
    try "$1: fits a screen" awk 'length > 80 { print "too wide: " $0; bad = 1 } END { exit bad || NR > 32 || NR < 3 }' $out/tool.txt
}

# What somebody may type, and what the answer must have in it.
tool_mistakes() {
    says 2 'did you mean `aura attend`' $aura atend
    says 2 '`aura --help` shows them all' $aura zzzzzz
    says 2 'did you mean --cache?' $aura attend $file --cahce k4v4
    says 2 'did you mean --help?' $aura attend --hepl
    says 2 '`aura attend --help` shows' $aura attend --zzzzzzzzzzzz
    says 2 'did you mean k4v4?' $aura attend $file --cache k4b4
    says 2 'did you mean k4v4?' $aura attend $file --cache k4
    says 2 'FILE is data/smollm2-attention.safetensors already' $aura attend $file k4v4
    says 2 'options come after a command' $aura --json list
    says 2 'did you mean balanced?' $aura attend $file --cache=balancd
    says 2 'no such format: kAvB with' $aura attend $file --cache 17
    says 2 'did you mean avx2?' $aura list --isa avx
    says 2 'did you mean rows?' $aura bench row
    says 2 'must be a number from 1 to 1024' $aura demo --threads many
    says 2 'must be a number from 1 to 1024' $aura demo --threads=0
    says 2 '--json takes no value' $aura list --json=yes
    says 2 '--union needs at least one FILE' $aura check --union
    says 2 'cannot read no/such/file' $aura check --union no/such/file
    says 2 'bash, zsh or fish' $aura completion
    says 2 'unknown argument tcsh' $aura completion tcsh
    says 2 'there is no command nothing' $aura help nothing
    says 1 'run it where data/ is, or name a recording' $aura demo no/such/file
    says 1 'README.md: ' $aura demo --quick --model README.md --html $out/page.html
    try 'mistakes: demo --model, said before anything is measured' bash -c "! grep -q k4v4 $out/tool.err"
    says 1 '--html names another place' $aura demo --quick --html no/such/folder/page.html
    says 2 '--html is for the table and for one shape' $aura bench rows --html $out/page.html
    try 'mistakes: a full disk' bash -c "! $aura list >/dev/full 2>$out/tool.err"
    try 'mistakes: and that is said' grep -q 'could not be written' $out/tool.err
}

# says CODE TEXT COMMAND...: the exit code, and what is in the message.
says() {
    local code=$1 text=$2
    shift 2
    ends "$code" "mistakes: ${*:2}" "$@"
    try "mistakes: ${*:2}: $text" grep -qF -- "$text" $out/tool.err
}

# JSON for programs, colours for terminals only, and the page.
tool_demo() {
    local page=$out/demo.html model=$out/tool.gguf text
    try 'demo: a model' $out/gcc/test_llm --write $model
    ends 0 'demo, which finds the recording of its tree from elsewhere' env -C $out $PWD/$aura demo --quick --html $PWD/$page
    holds 'demo: a preset' '^balanced k4v4  *4\.28  *3\.7.x '
    try 'demo: no colours in a file' bash -c "! grep -q \$'\\033' $out/tool.txt"
    try 'demo: progress is on stderr' grep -q 'k4v4' $out/tool.err
    for text in 'Error against bits' 'Time against context' 'Memory of an 8B-class model' 'The attention of one head, before and after' \
        'Where the bytes are' 'All numbers' 'A tile: 4224 bytes' 'prefers-color-scheme: dark' '</html>'; do
        try "demo: the page has: $text" grep -qF "$text" $page
    done
    try 'demo: the page needs nothing else' bash -c "! grep -qE 'https?:|<script|<link|src=' $page"
    if command -v python3 >/dev/null; then
        try 'demo: the page is well-formed' python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' $page
        json 'check --device cuda, without CUDA' $aura check --device cuda
        json 'demo --model' $aura demo --quick --model $model --prompt 'ab c' --html $page
        try 'demo --model: what it wrote is on the page' grep -qF 'What a model writes' $page
        try 'demo --model: the page is well-formed' python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' $page
        json 'bench' $aura bench --tokens 300 --html $page
        try 'bench: its page is well-formed' python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' $page
    else
        echo 'skip demo: JSON and XML: there is no python3'
    fi
    if command -v script >/dev/null; then
        env -u NO_COLOR TERM=xterm script -qec "$aura check query_any --isa ref --no-times; $aura --help" /dev/null >$out/tool.txt </dev/null
        holds 'colours: on a terminal' $'\033'
        env NO_COLOR=1 TERM=xterm script -qec "$aura check query_any --isa ref --no-times; $aura --help" /dev/null >$out/tool.txt </dev/null
        try 'colours: not with NO_COLOR' bash -c "! grep -q \$'\\033' $out/tool.txt"
        env -u NO_COLOR TERM=dumb script -qec "$aura --help" /dev/null >$out/tool.txt </dev/null
        try 'colours: not on a dumb terminal' bash -c "! grep -q \$'\\033' $out/tool.txt"
    else
        echo 'skip colours: there is no script(1) to make a terminal'
    fi
}

# The pages of all commands that write one: what they say, and, in a browser, how they look.
tool_pages() {
    local dir=$out/pages model=$out/tool.gguf
    rm -rf $dir
    mkdir -p $dir
    command -v python3 >/dev/null || { echo 'skip pages: there is no python3'; return; }
    ends 0 'pages: demo' $aura demo --quick --model $model --prompt 'ab c' --html $dir/demo.html
    ends 0 'pages: demo without a model' $aura demo --quick --html $dir/demo-alone.html
    ends 0 'pages: eval' $aura eval $model --text README.md --ctx 32 --chunks 2 --codec examples/codec.py --html $dir/eval.html
    ends 0 'pages: bench' $aura bench --dim 64 --heads 2 --kv-heads 1 --tokens 64 --threads 1 --html $dir/bench.html
    try 'pages: the demo opens with a verdict and three numbers' python3 - $dir/demo-alone.html <<'END'
import re, sys
page = open(sys.argv[1]).read()
top = page[page.index('<main>'):page.index('<h2>')]
said = r'<p class="verdict">The default, k4v4, takes 3\.[89] times less memory than f16, is [^,]* at \d+k tokens, and changes the output of attention by [\d.]+ %'
sys.exit(not (re.match(r'<main>\s*' + said, top) and len(re.findall(r'<div><b>[^<]+</b><span>[^<]+</span></div>', top)) == 3))
END
    [ ! -e $out/bench.html ] || cp $out/bench.html $dir/bench-table.html # of bench_page
    program pages test/tool/pages.py $dir/*.html
}

# What `make run` installs, with an apt-get that only pretends: libedit where it is not, and nothing where it is. A line says what is
# lost where it cannot be had.
tool_setup() {
    local bin=$out/setup
    rm -rf $bin
    mkdir -p $bin
    printf '#!/bin/sh\necho 0\n' >$bin/id
    printf '#!/bin/sh\necho "$@" >>%s/asked\n' $bin >$bin/apt-get
    printf '#!/bin/sh\ncat %s/libraries\n' $bin >$bin/ldconfig
    chmod +x $bin/*
    echo 'libedit.so.2 (libc6,x86-64) => /lib/libedit.so.2' >$bin/libraries
    try 'setup: nothing is missing' env PATH=$bin:$PATH tool/setup.sh run
    try 'setup: and nothing is installed' test ! -e $bin/asked
    echo 'libc.so.6' >$bin/libraries
    ends 0 'setup: libedit is missing' env PATH=$bin:$PATH tool/setup.sh run
    try 'setup: it is installed' grep -q 'install .*libedit2' $bin/asked
    try 'setup: what is lost without it is said' grep -q 'without libedit (package libedit2) a conversation .* no editing' $out/tool.err
    try 'make install: where to' grep -q "cmake --install build/release --prefix '/some/where'" <(make -n install PREFIX=/some/where)
}

# json NAME COMMAND...: it prints one JSON value and nothing else.
json() {
    ends 0 "$1: --json" "${@:2}" --json
    try "$1: JSON parses" python3 -m json.tool $out/tool.txt $out/tool.json
}

# bash is here anyway; the others where they are installed.
tool_completion() {
    completes 'aura atten' 'attend'
    completes 'aura attend --ca' '--cache'
    completes 'aura attend --cache k4v' 'k4v4 k4v2 k4v3 k4v5 k4v6 k4v8'
    completes 'aura attend data/smol' "$file"
    completes 'aura help ben' 'bench'
    completes 'aura completion ' 'bash zsh fish'
    for shell in zsh fish; do
        $aura completion $shell >$out/completion.$shell
        if command -v $shell >/dev/null; then
            try "completion: $shell takes it" $shell -n $out/completion.$shell
        else
            echo "skip completion: there is no $shell to try it with"
        fi
    done
}

# completes LINE WORDS: what bash offers at the end of a line.
completes() {
    local got
    got=$($aura completion bash >$out/completion.bash && LINE=$1 bash -c '
        source '$out'/completion.bash
        COMP_WORDS=($LINE) && [ "${LINE% }" = "$LINE" ] || COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _aura; echo "${COMPREPLY[@]}"')
    echo "$1: $got"
    try "completion: $1" bash -c 'case " $0 " in *" $1 "*) ;; *) exit 1 ;; esac' "$got" "$2"
}

# A model of bytes with random weights: what it says means nothing, but is always the same.
tool_run() {
    local model=$out/tool.gguf talk=$out/tool.talk
    try 'run: a model' $out/gcc/test_llm --write $model || return
    ends 0 'run: text' $aura run $model -p 'ab c' -n 12
    try 'run: says how fast and how large' grep -q 'prompt: 3 tokens, .* tokens/s; new: 12 tokens, .* tokens/s; cache k4v4: 14 tokens, .* MB' $out/tool.err
    ends 0 'run: JSON' $aura run $model -p 'ab c' -n 40 --cache f16 --json
    holds 'run: JSON, its tokens' '"cache": "kf16vf16", "prompt": \[258, 32, 99\], "tokens": \[.*"ended": "length", .*"new_tokens": 40, .*"cache_tokens": 42, '
    try 'run: JSON, for a parser' python3 -m json.tool $out/tool.txt
    cp $out/tool.txt $out/tool.whole
    ends 0 'run: the same by numbers' $aura run $model --ids 258,32,99 -n 40 --cache f16 --json --threads 1
    try 'run: the same tokens' test "$(tokens_of $out/tool.txt)" = "$(tokens_of $out/tool.whole)"

    ends 0 'run: learns' $aura run $model -p 'ab c' -n 1 --json
    cp $out/tool.txt $out/tool.learns
    ends 0 'run: --no-learn' $aura run $model -p 'ab c' -n 1 --json --no-learn
    ends 0 'run: --exact' $aura run $model -p 'ab c' -n 40 --json --cache f16 --exact
    try 'run: --exact, of weights that are f32 already' test "$(tokens_of $out/tool.txt)" = "$(tokens_of $out/tool.whole)"
    try 'run: learning takes memory' test "$(bytes_of $out/tool.txt)" -lt "$(bytes_of $out/tool.learns)"

    ends 1 'run: formats that nobody gave' $aura run $model -p 'ab c' -n 1 --cache profile
    ends 0 'calibrate: formats' $aura calibrate $model --text README.md --tokens 96 --bits 3.6 -o $out/tool.profile
    holds 'calibrate: says which' '^  k[2-8]v[2-8] k[2-8]v[2-8]$'
    holds 'calibrate: says what they are worth' '^3\.[56][0-9]* bits a value, mean KL divergence [0-9.e-]*; k2v2 has'
    ends 0 'inspect: formats' $aura inspect --all $out/tool.profile
    holds 'inspect: says which' 'layer 1: a balance of .*, best as k[2-8]v[2-8]$'
    ends 0 'run: formats of a profile' $aura run $model -p 'ab c' -n 1 --json --cache profile --profile $out/tool.profile
    holds 'run: says so' '"cache": "profile", .*"bits_per_value": 3\.[56]'
    rm -rf $out/xdg && mkdir $out/xdg
    ends 0 'run: makes a profile' env XDG_CACHE_HOME=$top/$out/xdg $aura run $model -p 'ab c' -n 1 --profile auto
    try 'run: reads a text for it' grep -q 'read 0 of 1024 tokens' $out/tool.err
    ends 0 'run: takes the one it kept' env XDG_CACHE_HOME=$top/$out/xdg $aura run $model -p 'ab c' -n 1 --profile auto
    try 'run: reads no text' test "$(grep -c 'read 0 of' $out/tool.err)" = 0
    try 'run: one file is kept' test "$(ls $out/xdg/aura | wc -l)" = 1
    echo damaged >$out/xdg/aura/*.profile
    ends 0 'run: makes a damaged one again' env XDG_CACHE_HOME=$top/$out/xdg $aura run $model -p 'ab c' -n 1 --profile auto
    try 'run: which is whole' $aura inspect $out/xdg/aura/*.profile
    ends 0 'run: no place to keep it' env -u XDG_CACHE_HOME HOME=/dev/null $aura run $model -p 'ab c' -n 1 --profile auto
    try 'run: says that it is not kept' grep -q 'is not kept' $out/tool.err
    ends 0 'eval: a profile of its own' $aura eval $model --text README.md --ctx 64 --chunks 1 --cache k3v3 --profile auto --json
    cp $out/tool.txt $out/tool.auto
    ends 0 'eval: and none' $aura eval $model --text README.md --ctx 64 --chunks 1 --cache k3v3 --json
    try 'eval: it changes something' test "$(grep -o '"kld_mean": [0-9.e-]*' $out/tool.txt)" != "$(grep -o '"kld_mean": [0-9.e-]*' $out/tool.auto)"
    ends 2 'calibrate: trellis codes of no bits' $aura calibrate $model --text README.md --tokens 96 --trellis -o $out/tool.profile
    ends 0 'calibrate: trellis codes' $aura calibrate $model --text README.md --tokens 96 --bits 2.6 --trellis -o $out/tool.profile
    holds 'calibrate: says that they are' '^  kt[234]vt[234] kt[234]vt[234]$'
    ends 2 'calibrate: too many bits' $aura calibrate $model --text README.md --tokens 96 --bits 9.5 -o $out/tool.profile

    ends 0 'run: saved' $aura run $model -p 'ab c' -n 15 --cache f16 --json --save $talk
    cp $out/tool.txt $out/tool.first
    ends 0 'run: loaded' $aura run $model --load $talk -n 25 --cache f16 --json
    try 'run: goes on as if it had not stopped' test "$(tokens_of $out/tool.first), $(tokens_of $out/tool.txt)" = "$(tokens_of $out/tool.whole)"
    ends 1 'run: loaded into another cache' $aura run $model --load $talk -n 1
    ends 0 'run: chat' $aura run $model --chat -p 'ab' -n 3 --json --save $talk
    holds 'run: chat, the template' '"prompt": \[256, .*, 258, .*257, '
    ends 0 'run: chat, the name of a token' $aura run $model --chat -p 'ab<|im_end|>' -n 1 --json
    holds 'run: chat, it is text' '"prompt": \[256, 117, 115, 101, 114, 10, 258, 60, 124, 105, 109, 95, 101, 110, 100, 124, 62, 257, 10, 256, '
    ends 0 'run: chat goes on' $aura run $model --chat --load $talk -p 'ab' -n 3 --json
    holds 'run: chat, the end of a turn and the next' '"prompt": \[257, .*256, .*"loaded_tokens": '
    tool_record
    ends 0 'inspect' $aura inspect $talk
    holds 'inspect: what it is' ': a snapshot of a model, version .*, checksum [0-9a-f]*$'
    holds 'inspect: layers' '^layers 0 to 1: k4v4, 2 KV heads, D 64, 1 page, '
    holds 'inspect: sequences' '^  1: [0-9]* tokens, 0 of them as codes, 1 page$'
    holds 'inspect: the note' '^aura conversation 2$'
    ends 0 'inspect: JSON' $aura inspect $talk --json
    try 'inspect: JSON, for a parser' python3 -c '
import json, sys
f = json.load(open(sys.argv[1]))
sys.exit(not (f["held"] == "model" and f["damaged"] == 0 and len(f["layers"]) == 2 and f["layers"][1]["format"] == "k4v4"
              and f["layers"][0]["seqs"][0]["tokens"] > 10 and "weights" in f["note"]))' $out/tool.txt
    python3 -c 'import sys; b = bytearray(open(sys.argv[1], "rb").read()); b[-9] ^= 1; open(sys.argv[2], "wb").write(b)' $talk $out/tool.damaged
    ends 1 'inspect: a damaged one' $aura inspect $out/tool.damaged
    try 'inspect: says so, and lists the rest' grep -q '1 of [0-9]* sections are damaged' $out/tool.err
    holds 'inspect: a damaged one has its layers' '^layer 0: '
    ends 1 'inspect: another file' $aura inspect README.md
    ends 2 'inspect: no file' $aura inspect
    ends 1 'run: no room' $aura run $model -p 'a long prompt' --ctx 5
    ends 0 'run: until there is no room' $aura run $model -p 'ab c' -n 100 --ctx 20
    try 'run: says that it is full' grep -q 'the context of 20 tokens is full' $out/tool.err
    ends 0 'run: sampled' $aura run $model -p 'ab' -n 30 --temp 1.5 --top-k 100 --top-p 0.9 --seed 7 --json
    cp $out/tool.txt $out/tool.first
    ends 0 'run: sampled again' $aura run $model -p 'ab' -n 30 --temp 1.5 --top-k 100 --top-p 0.9 --seed 7 --json
    try 'run: the same seed, the same tokens' test "$(tokens_of $out/tool.first)" = "$(tokens_of $out/tool.txt)"
    ends 130 'run: Ctrl-C' timeout --preserve-status -s INT 0.5 $aura run $model -p 'ab' -n 100000000 --ctx 100000000 --json
    try 'run: Ctrl-C, the JSON is whole' python3 -m json.tool $out/tool.txt
    try 'run: Ctrl-C is said' grep -q '"ended": "interrupt"' $out/tool.txt

    ends 0 'run: a prompt from a pipe' sh -c "echo 'ab c' | $aura run $model -n 2 --json"
    holds 'run: a prompt from a pipe, without its line end' '"prompt": \[258, 32, 99\], '
    ends 0 'run: a prompt from -' sh -c "printf 'ab c' | $aura run $model -p - -n 2 --json"
    holds 'run: a prompt from -, the same' '"prompt": \[258, 32, 99\], '
    ends 1 'run: a prompt that is no text' sh -c "printf 'a\0b' | $aura run $model -n 2"
    ends 0 'run: --temperature' $aura run $model -p 'ab' -n 30 --temperature 1.5 --top-k 100 --top-p 0.9 --seed 7 --json
    try 'run: --temperature is --temp' test "$(tokens_of $out/tool.first)" = "$(tokens_of $out/tool.txt)"
    ends 0 'run: --repeat-penalty' $aura run $model -p 'ab' -n 40 --repeat-penalty 10 --json
    try 'run: --repeat-penalty, no token comes back' test "$(tokens_of $out/tool.txt | tr -d , | tr ' ' '\n' | sort | uniq -d | wc -l)" = 0
    ends 0 'run: without --stop' $aura run $model --ids 258,32,99 -n 40 --json
    python3 -c '
import json, sys
t = json.load(open(sys.argv[1]))["tokens"] # each is a byte; two of them that a shell takes
i = next(i for i in range(3, 38) if 32 < t[i] < 256 and 32 < t[i + 1] < 256)
open(sys.argv[2], "wb").write(bytes(t[i:i + 2])), open(sys.argv[3], "w").write(str(i + 2))' $out/tool.txt $out/tool.stop $out/tool.many
    ends 0 'run: --stop' $aura run $model --ids 258,32,99 -n 40 --json --stop 'not that' --stop "$(cat $out/tool.stop)"
    holds 'run: --stop ended it, with the last token of the text' "\"ended\": \"stop\", .*\"new_tokens\": $(cat $out/tool.many),"
    ends 0 'run: --system' $aura run $model --system 'be ab' -p 'ab' -n 1 --json
    holds 'run: --system, its turn comes first' '"prompt": \[256, 115, 121, 115, 116, 101, 109, 10, 98, 101, 32, 258, 257, 10, 256, 117, '
    ends 2 'run: --system of one that has begun' $aura run $model --system 'be ab' --load $talk -p ab
    ends 0 'run: one token' $aura run $model -p 'a' -n 1
    try 'run: one token is no tokens' grep -q 'prompt: 1 token, .*; new: 1 token, .*: 1 token, ' $out/tool.err
    says 2 'is a type of llama.cpp; the format nearest to it is k4v4' $aura run $model -p a --cache q4_0
    says 2 'is a type of llama.cpp; the format nearest to it is k8v8' $aura run $model -p a --cache q8_0
    says 2 'the format nearest to it is f16' $aura run $model -p a --cache fp16
    if command -v python3 >/dev/null; then
        test/tool/chat.py $aura $model $out || echo "FAIL chat: exit status $?"
        test/tool/tables.py $aura $model $out || echo "FAIL tables: exit status $?"
    else
        echo 'skip chat, tables: there is no python3'
    fi

    if command -v script >/dev/null; then
        script -qec "$aura run $model -p ab -n 1" /dev/null >$out/tool.txt </dev/null
        holds 'run: a text is no message, and that is said to people' 'went on with the text; --chat asks it as a message'
        script -qec "$aura run $model -p ab -n 1 --chat" /dev/null >$out/tool.txt </dev/null
        try 'run: not of a message' bash -c "! grep -q 'went on with the text' $out/tool.txt"
    fi

    ends 2 'run: no model' $aura run
    ends 2 'run: no prompt' sh -c "$aura run $model </dev/null"
    ends 2 'run: no tokens' $aura run $model -p ''
    ends 2 'run: no such token' $aura run $model --ids 1,300
    ends 2 'run: two prompts' $aura run $model --ids 1 -p a
    ends 1 'run: no such file' $aura run $out/no.gguf -p a
    ends 1 'run: another file' $aura run README.md -p a
    ends 1 'run: no such profile' $aura run $model -p a --profile $out/no.profile
    ends 1 'run: nowhere to save' $aura run $model -p a -n 1 --save $out/no/such/folder/talk
    ends 1 'run: nothing to load' $aura run $model --load $out/no.talk
}

# What a model puts into a cache, what others make of that, and tables for programs.
tool_record() {
    local kept=$out/record.safetensors text=$out/record.txt
    for _ in $(seq 20); do echo 'ab cab the quick brown fox jumps over the lazy dog'; done >$text
    ends 0 'record' $aura record $model --text $text --ctx 100 --queries 10 -o $kept
    holds 'record: says what it kept' ': 2 layers, 100 tokens, 10 queries; '
    try 'record: its tensors' test "$(grep -ao '"layer\.[01]\.[qkv]":{"dtype":"F32","shape":\[1\?[01]\?0,[24],64\]' $kept | wc -l)" = 6
    record_laws
    ends 2 'record: no such layer' $aura record $model --text $text --layers 0,2 -o $kept.no
    ends 2 'record: nowhere to write' $aura record $model --text $text
    ends 0 'attend: a list, and a type of llama.cpp' $aura attend $kept --cache k8v8,k3v3,q8_0 --csv --seed 5
    try 'attend: CSV, a row for each' test "$(wc -l <$out/tool.txt)" = 7
    try 'attend: CSV, fewer bits are further away' awk -F, '$2 == 0 { e[$1] = $12; kl[$1] = $13 } END { exit !(e["k8v8"] > 0 && e["k8v8"] * 5 < e["k3v3"] && e["q8_0"] * 5 < e["k3v3"] && kl["q8_0"] > 1e-6) }' $out/tool.txt
    cp $out/tool.txt $out/tool.first
    ends 0 'attend: the same seed' $aura attend $kept --cache k8v8,k3v3,q8_0 --csv --seed 5
    try 'attend: the same seed, the same table' diff $out/tool.first $out/tool.txt
    ends 2 'attend: --out of two' $aura attend $kept --cache k8v8,k3v3 --out $out/record.no
    ends 0 'attend: a codec that changes nothing' $aura attend $kept --cache k4v4 --codec cp --json
    try 'attend: a codec that changes nothing has no error' python3 -c '
import json, sys
rows = json.load(open(sys.argv[1]))["layers"]
same = [r for r in rows if r["cache"] == "cp"]
sys.exit(not (len(same) == 2 and all(r["output_error"] < 1e-6 and r["bits_per_value"] is None for r in same)
              and all(r["output_error"] > 1e-3 for r in rows if r["cache"] == "k4v4")))' $out/tool.txt
    says 1 'the codec ended with status 3' $aura attend $kept --codec 'exit 3;'
    says 1 'what the codec wrote: ' $aura attend $kept --codec true
    says 1 'the codec wrote no tensor k' $aura attend $kept --codec "cp $kept \"\$2\"; true"
    ends 0 'eval: a codec, positions' $aura eval $model --text $text --ctx 32 --chunks 2 --cache k4v4,k3v3 --codec cp --threads 1 --csv \
        --positions $out/positions.csv
    try 'eval: CSV' awk -F, 'NR > 1 { k[$1] = $4 } END { exit !(NR == 4 && k["cp"] < 1e-9 && k["k4v4"] > 1e-6 && k["k4v4"] < k["k3v3"]) }' $out/tool.txt
    try 'eval: a divergence for each position' awk -F, 'NR > 1 && $1 == "k3v3" { s += $4; n++ } END { exit !(NR == 91 && n == 30 && s > 0) }' $out/positions.csv
    cp $out/tool.txt $out/tool.first
    ends 0 'eval: the same seed' $aura eval $model --text $text --ctx 32 --chunks 2 --cache k4v4,k3v3 --codec cp --threads 1 --csv
    try 'eval: the same seed, the same table' diff $out/tool.first $out/tool.txt
    ends 0 'eval: JSON' $aura eval $model --text $text --ctx 32 --chunks 1 --cache k4v4 --json
    holds 'eval: JSON says what it is of' '"model": ".*", "text": ".*", "seed": 1, "version": "[0-9.]*", "cpu": ".*", "isa": '
    ends 0 'eval: as written, in pairs' $aura eval $model --text $text --ctx 32 --chunks 1 --cache k4v4,q4_0,kivi2,tq3 --decode --equal \
        --against q4_0 --csv
    try 'eval: as written, in pairs, and a draft' awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
        { n++; if (!($at["decode"] == 1 && $at["equal"] == 1 && $at["accepted"] > 0.5)) exit 1; r[$1] = $at["against"] }
        END { exit !(n == 4 && r["q4_0"] == 1 && r["k4v4"] != 1) }' $out/tool.txt
    ends 0 'eval: drift' $aura eval $model --text README.md --drift 8 --chunks 1 --cache kf32vf32,k2v2 --json
    try 'eval: drift, JSON' python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); assert d[0]["first_other"] == [0], d; assert len(d[1]["parts"]) == 4' $out/tool.txt
    says 2 'no multiple of 4' $aura eval $model --text $text --drift 6
    says 2 'one at a time' $aura eval $model --text $text --drift 8 --depths
    says 2 'whole chunks' $aura eval $model --text $text --decode --codec cp
    says 2 'are not for --records' $aura eval $model --records 8 --base $out/none.base
    says 2 'two hops take pairs' $aura eval $model --records 3
    says 1 'places whose names are one token' $aura eval $model --records 8
    command -v python3 >/dev/null || { echo 'skip attend: examples/codec.py: there is no python3'; return; }
    ends 0 'attend: examples/codec.py' $aura attend $kept --cache q8_0 --codec examples/codec.py --csv
    try 'attend: examples/codec.py is one of 8 bits' awk -F, '$1 == "codec" { if (!($9 == 8.5 && $12 > 0 && $12 < 0.02)) exit 1; n++ } END { exit n != 2 }' $out/tool.txt
}

# In the first layer a token has one value wherever it is, and one key, which RoPE turns: as long everywhere, and another number. In the
# second layer what came before is in both. Queries are those of the last positions.
record_laws() {
    command -v python3 >/dev/null || { echo 'skip record: what is in the tensors: there is no python3'; return; }
    ends 0 'record: all queries' $aura record $model --text $text --ctx 100 --queries 100 -o $kept.all
    $aura tokens $model --text $text --json >$out/record.tokens
    try 'record: what is in the tensors' python3 - $kept $kept.all $out/record.tokens <<'END'
import array, json, struct, sys
def tensors(path):
    data = open(path, 'rb').read()
    size, = struct.unpack('<Q', data[:8])
    return {name: (t['shape'], array.array('f', data[8 + size + t['data_offsets'][0]:8 + size + t['data_offsets'][1]]))
            for name, t in json.loads(data[8:8 + size]).items() if name != '__metadata__'}
kept, whole = tensors(sys.argv[1]), tensors(sys.argv[2])
tokens = json.load(open(sys.argv[3]))['tokens'][:100]
def rows(name, head):
    (n, heads, dim), x = whole[name]
    return [x[(t * heads + head) * dim:(t * heads + head + 1) * dim] for t in range(n)]
def near(x, y):
    return max(abs(a - b) for a, b in zip(x, y)) < 1e-4 * max(map(abs, x))
twins = [(i, j) for j in range(2, 100) for i in range(2, j) if tokens[i] == tokens[j]][::7]
assert len(twins) > 20
for head in range(2):
    k, v, deep = rows('layer.0.k', head), rows('layer.0.v', head), rows('layer.1.v', head)
    assert all(near(v[i], v[j]) for i, j in twins), 'values of the first layer'
    assert not any(near(k[i], k[j]) for i, j in twins), 'keys that RoPE has not turned'
    length = [sum(x * x for x in row) for row in k]
    assert all(abs(length[i] / length[j] - 1) < 1e-3 for i, j in twins), 'lengths of keys'
    assert not all(near(deep[i], deep[j]) for i, j in twins), 'values of the second layer are those of the first'
for layer in '01':
    assert kept['layer.%s.q' % layer][1] == whole['layer.%s.q' % layer][1][90 * 4 * 64:], 'the last queries'
    assert kept['layer.%s.k' % layer][1] == whole['layer.%s.k' % layer][1], 'keys'
END
}

# The same model's tokens, and how fast it decodes.
tool_tokens() {
    local model=$out/tool.gguf
    ends 0 'tokens' $aura tokens $model -p 'ab c'
    try 'tokens: a line for each' diff $out/tool.txt - <<'END'
258 "ab"
32 " "
99 "c"
END
    ends 0 'tokens: JSON' sh -c "printf 'ab c' | $aura tokens $model --text - --json"
    holds 'tokens: JSON, the same' '^{"count": 3, "tokens": \[258, 32, 99\]}$'
    printf 'ab cab c\0ab cab cab c' >$out/tool.nul
    ends 0 'eval: a text with a zero in it' $aura eval $model --text $out/tool.nul --cache k4v4 --ctx 4 --json
    try 'eval: all of it is read' grep -q 'chunk 4 of 4' $out/tool.err
    says 1 'cannot be read' $aura eval $model --text /proc/self/mem
    ends 2 'tokens: no model' $aura tokens
    ends 2 'tokens: no text' $aura tokens $model
    ends 2 'tokens: two texts' $aura tokens $model -p a --text README.md
    ends 1 'tokens: no such text' $aura tokens $model --text $out/no.txt
    ends 1 'tokens: another file' $aura tokens README.md -p a
    ends 0 'bench: model' $aura bench --model $model --depth 0,40,100 --cache k4v4,f16 --threads 2 --json
    try 'bench: model, for a parser' python3 -m json.tool $out/tool.txt
    try 'bench: model, a row for each' test "$(grep -c '"cache": .*"tokens_per_s": [0-9.]*, ' $out/tool.txt)" = 6
    holds 'bench: model, what filled it' '"cache": "kf16vf16", "bits": 16.*, "depth": 100, .*"prompt_tokens": 28, '
    ends 0 'bench: model, for people' $aura bench --model $model --depth 5 --cache k3v3
    ends 2 'bench: model, depths' $aura bench --model $model --depth 40,30
    ends 2 'bench: model, no depth' $aura bench --model $model --depth 1,x
    ends 2 'bench: model, no such cache' $aura bench --model $model --cache k9v9
    ends 2 'bench: model, and a shape' $aura bench --model $model --dim 64
    ends 2 'bench: depth of nothing' $aura bench --depth 40
    ends 1 'bench: another file' $aura bench --model README.md
}

# What `aura run --json` said, as numbers.
tokens_of() {
    sed -n 's/.*"tokens": \[\([^]]*\)\].*/\1/p' "$1"
}

bytes_of() {
    sed -n 's/.*"cache_bytes": \([0-9]*\).*/\1/p' "$1"
}

# ends CODE NAME COMMAND...: its exit code; what it printed is in tool.txt.
ends() {
    local code=$1 name=$2 status
    shift 2
    echo "+ $*"
    "$@" >$out/tool.txt 2>$out/tool.err
    status=$?
    cat $out/tool.txt $out/tool.err
    if [ $status != "$code" ]; then
        echo "FAIL $name: exit status $status, not $code"
    elif [ "$code" != 0 ] && [ ! -s $out/tool.err ]; then
        echo "FAIL $name: no message"
    else
        echo "ok $name"
    fi
}

# holds NAME PATTERN: what the last command printed.
holds() {
    try "$1" grep -q "$2" $out/tool.txt
}

# A real model, beside what llama.cpp made of it.
job_model() {
    gcc_build || return
    test/model/model.sh $out/gcc/aura
}

# What caches do to it.
job_quality() {
    gcc_build || return
    test/model/quality.sh $out/gcc/aura $out
}

# Inside llama.cpp, where `make llama` has built it. `make test-llama` builds it and runs far more.
job_llama() {
    integrations/llama.cpp/test/run.sh --short
}

# The wheel of aura-kv, from its source archive, installed where there is nothing but numpy, and used. `make test-python` has the rest.
job_python() {
    local dir=$PWD/$out/python status wheel
    command -v python3 >/dev/null || { echo 'skip python: there is no python3'; return; }
    gcc_build --target aura_shared || return
    rm -rf "$dir/venv"
    python/wheel.sh "$dir" $out/gcc/libaura.so
    status=$?
    [ $status != 3 ] || { echo 'skip python: pip cannot fetch what builds the wheel'; return; }
    try 'python: make wheel' test $status = 0 || return
    wheel=$(ls "$dir"/aura_kv-*.whl)
    rm -f "$dir"/aura_kv_cuda-*
    try 'python: the tag of the wheel' bash -c "echo $wheel | grep -E 'py3-none-manylinux_2_[0-9]+_$(uname -m)\.whl$'"
    try 'python: less than 1.75 MB' test "$(stat -c %s "$wheel")" -lt 1750000
    python3 -m venv "$dir/venv" && "$dir/venv/bin/pip" install --quiet numpy ||
        { echo 'skip python: pip cannot fetch numpy'; return; }
    try 'python: pip install' "$dir/venv/bin/pip" install --quiet --no-index "$wheel" || return
    AURA_SOURCE=$PWD program tests env -C "$dir" venv/bin/python "$PWD/python/test/run.py" "$PWD"/python/test/test_{layout,cache}.py
    # And what is there for a GPU, on the emulated one, which is installed as a GPU's library is.
    try 'python: the emulated device as a library' device_build emulated_shared || return
    try 'python: the wheel of a GPU' python/wheel_cuda.py $out/device/emulated/libaura_cuda.so "$dir" || return
    try 'python: pip install, a GPU' "$dir/venv/bin/pip" install --quiet --no-index --no-deps "$dir"/aura_kv_cuda-*.whl || return
    AURA_SOURCE=$PWD program device env -C "$dir" venv/bin/python "$PWD/python/test/run.py" "$PWD"/python/test/test_{layout,cuda}.py
}

# One context over many processes, where there is MPI.
job_mpi() {
    gcc_build || return
    test/mpi/run.sh $out/gcc
}

# ---- what others see ------------------------------------------------------------------------------------------------

headers='include/aura.h include/aura_file.h include/aura_rows.h include/aura_team.h' # of libaura

# declared HEADER...: the functions that they declare.
declared() {
    sed -n 's/^AURA_API .*[ *]\(aura_[a-z0-9_]*\)(.*/\1/p' "$@" | sort -u
}

job_symbols() {
    local api=$out/symbols.api exported=$out/symbols.exported
    gcc_build || return
    nm -g --defined-only $out/gcc/libaura.a | awk 'NF == 3 { print $3 }' | sort -u >$out/symbols.static
    nm -D --defined-only $out/gcc/libaura.so | awk '{ print $NF }' | sort -u >$exported
    declared $headers >$api
    try 'symbols: the headers declare some' test -s $api
    try 'symbols: there are some in libaura.a' test -s $out/symbols.static
    try 'symbols: all of them begin with aura_' bash -c "! grep -v ^aura_ $out/symbols.static"
    try 'symbols: libaura.so exports the headers and nothing else' diff $api $exported
    try 'symbols: soname' grep -q 'SONAME *libaura\.so\.0\.5$' <(objdump -p $out/gcc/libaura.so)
}

# Every header alone, and every _INIT macro as the initialiser of its struct.
job_header() {
    local compiler header
    for header in $headers include/aura_cuda.h include/aura_cuda_rows.h; do
        {
            echo "#include \"${header#include/}\""
            sed -n 's/^#define \(AURA_[A-Z0-9_]*_INIT\)\b.*/\1/p' $header | while read -r init; do
                name=$(echo "${init%_INIT}" | tr A-Z a-z)
                echo "extern $name a_$name; $name a_$name = $init;"
            done
        } >$out/header.c
        cat $out/header.c
        for compiler in gcc clang; do
            try "header $header $compiler C99" header $compiler -std=c99 -x c
            try "header $header $compiler C++11" header $compiler -std=c++11 -x c++
        done
    done
    gcc_build --target aura_static || return
    for compiler in g++ clang++; do
        if command -v $compiler >/dev/null; then
            try "header include/aura.hpp $compiler" $compiler -std=c++11 -Wall -Wextra -Werror -fsanitize=address,undefined \
                test/base/raii.cpp $out/gcc/libaura.a -lpthread -lm -o $out/raii && program raii $out/raii $out/raii.snapshot
        else
            echo "skip header include/aura.hpp: there is no $compiler"
        fi
    done
    if command -v mpicc >/dev/null; then
        printf '#include "aura_mpi.h"\nextern aura_mpi_options a; aura_mpi_options a = AURA_MPI_OPTIONS_INIT;\nextern aura_mpi_cache_info b; aura_mpi_cache_info b = AURA_MPI_CACHE_INFO_INIT;\n' >$out/header.c
        try 'header include/aura_mpi.h mpicc C99' mpicc -std=c99 -Wall -Wextra -Werror -Iinclude -fsyntax-only $out/header.c
    else
        echo 'skip header include/aura_mpi.h: there is no MPI'
    fi
    try 'header: include/aura.h has 650 lines at most' test "$(wc -l <include/aura.h)" -le 650
}

header() {
    "$@" -Wall -Wextra -Wpedantic -Werror -Iinclude -fsyntax-only $out/header.c
}

# in_manual HEADER: the functions under the headings of doc/libaura.3 that begin with its name.
in_manual() {
    awk -v header="$1:" '/^\.S[HS]/ { inside = $2 == header } inside && $1 == ".BR" && /^\.BR aura_/ { print $2 }' doc/libaura.3 | sort -u
}

job_tables() {
    local compiler header
    for compiler in gcc clang; do
        try "tables $compiler: build" $compiler -O2 tool/make_codebook.c -lm -o $out/make_codebook || continue
        $out/make_codebook >$out/codebook.c
        try "tables $compiler: src/codebook.c is what the generator prints" diff $out/codebook.c src/codebook.c
    done
    try 'tables: classes of characters' tool/make_unicode.py --check model/unicode.c
    gcc_build || return
    $out/gcc/aura man >$out/aura.1
    try 'tables: doc/aura.1 is what `aura man` prints' diff $out/aura.1 doc/aura.1
    for header in $headers include/aura_cuda.h include/aura_cuda_rows.h include/aura_mpi.h; do
        try "tables: doc/libaura.3 names every function of $header and no other" \
            diff <(declared $header) <(in_manual "${header#include/}")
    done
    if command -v mandoc >/dev/null; then
        try 'tables: man pages' mandoc -T lint -W warning doc/aura.1 doc/libaura.3
    elif command -v man >/dev/null; then
        try 'tables: man pages' bash -c 'test -z "$(man -l --warnings doc/aura.1 doc/libaura.3 2>&1 >/dev/null)"'
    else
        echo 'skip tables: man pages: there is neither mandoc nor man to read them'
    fi
}

# What a compiler does not see: widths, lengths, rooms, names in comments, lists; and that each rule finds what it is for.
job_style() {
    if command -v python3 >/dev/null; then
        test/style.py
    else
        echo 'skip style: there is no python3'
    fi
}

# doc/add-a-variant.md, followed to the letter on a copy of the tree: a dim, a width, an instruction set, a GPU kernel.
job_drill() {
    if command -v python3 >/dev/null; then
        test/drill.py
    else
        echo 'skip drill: there is no python3'
    fi
}

# ---- installed ------------------------------------------------------------------------------------------------------

job_install() {
    local prefix=$PWD/$out/install/prefix user=$PWD/$out/install/user
    local version=$(sed -n 's/#define AURA_VERSION_STRING "\(.*\)"/\1/p' include/aura.h)
    gcc_build || return
    rm -rf $out/install
    mkdir -p "$user"
    try 'install' cmake --install $out/gcc --prefix "$prefix" || return
    try 'install: man pages and completion' ls "$prefix/share/man/man1/aura.1" "$prefix/share/man/man3/libaura.3" \
        "$prefix/share/bash-completion/completions/aura" "$prefix/share/zsh/site-functions/_aura" \
        "$prefix/share/fish/vendor_completions.d/aura.fish"
    try 'install: the tool' test "$("$prefix/bin/aura" version)" = "$version"
    try 'install: the demo finds its recording' env -C "$user" "$prefix/bin/aura" demo --quick --threads 1 --html page.html

    cat >"$user/main.c" <<'END'
#include <aura.h>
#include <aura_file.h>
#include <aura_rows.h>
#include <aura_team.h>
#include <string.h>

int main(void)
{
    aura_ctx *ctx = NULL;
    aura_profile *profile = NULL;
    if (aura_ctx_create(NULL, &ctx) || aura_profile_create(ctx, 1, &profile) || aura_row_bytes(128, 4) != 64)
        return 1;
    aura_profile_destroy(profile);
    aura_ctx_destroy(ctx);
    return strcmp(aura_version(), AURA_VERSION_STRING) != 0;
}
END
    cat >"$user/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.16)
project(user LANGUAGES C)
find_package(aura ${WANTED} REQUIRED)
add_executable(user main.c)
target_link_libraries(user PRIVATE aura::aura)
END
    try 'install: find_package, static' find_package static "$version" OFF &&
        try 'install: that one needs no libaura.so' bash -c "! objdump -p $user/static/user | grep NEEDED.*aura"
    try 'install: find_package, shared' find_package shared "$version" ON &&
        try 'install: that one needs libaura.so.0.5' grep -q 'NEEDED *libaura\.so\.0\.5$' <(objdump -p "$user/shared/user")
    try 'install: find_package refuses another minor version' refuses_version "${version%%.*}.99"

    export PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name aura.pc)")
    try 'install: pkg-config, shared' pkg_config_user "$user/main.c" &&
        try 'install: pkg-config, static' pkg_config_user "$user/main.c" --static
    try 'install: pkg-config version' test "$(pkg-config --modversion aura)" = "$version"
    job_install_readme
    job_install_examples
    job_install_engine
    job_install_engine_doc
}

find_package() {
    cmake -S "$user" -B "$user/$1" -DCMAKE_C_COMPILER=gcc -DCMAKE_PREFIX_PATH="$prefix" -DWANTED="$2" \
        -DBUILD_SHARED_LIBS="$3" && cmake --build "$user/$1" && "$user/$1/user"
}

refuses_version() {
    ! cmake -S "$user" -B "$user/refused" -DCMAKE_C_COMPILER=gcc -DCMAKE_PREFIX_PATH="$prefix" -DWANTED="$1" \
        >"$user/refused.txt" 2>&1 && grep 'requested version "'"$1" "$user/refused.txt"
}

# pkg_config_user SOURCE [--static]: as the manuals of pkg-config have it.
pkg_config_user() {
    pkg_config_compile "$1" "$user/program" -std=c99 ${2-} && LD_LIBRARY_PATH=$(pkg-config --variable=libdir aura) "$user/program"
}

# pkg_config_compile SOURCE PROGRAM DIALECT [--static]; $own: libraries that the source itself needs
pkg_config_compile() {
    gcc "$3" -Wall -Wextra -Werror $(pkg-config --cflags aura) "$1" -o "$2" ${4:+-static} $(pkg-config ${4-} --libs aura) ${own-}
}

# picture FILE: the first drawing of how data flows.
picture() {
    sed -n '/K,V .* encode /,/ reference /{s/^ \*     //;p;/ reference /q}' "$1"
}

# README.md: short, with the picture of the code, and its program, which is the first C block with a main.
job_install_readme() {
    try 'install: README.md has 150 lines at most' test "$(wc -l <README.md)" -le 150
    try 'install: its picture is of this version' grep -aq "aura $version" doc/demo.png
    try 'install: so is its table' grep -q "^aura $version on " README.md
    picture README.md >"$user/picture"
    try 'install: README.md has a picture' grep -q undo "$user/picture"
    try 'install: README.md has the picture of src/stages.h' diff "$user/picture" <(picture src/stages.h)
    try 'install: the glossary has 31 words at most' test "$(grep -c '^| \*\*' doc/glossary.md)" -le 31
    awk '/^```/ { if (inside && block ~ /int main/) { printf "%s", block; exit }
                  inside = $0 == "```c"; block = ""; next }
         inside { block = block $0 "\n" }' README.md >"$user/readme.c"
    try 'install: README.md has a program' test -s "$user/readme.c" || return
    try 'install: it has 25 lines at most' test "$(grep -c '[^[:space:]]' "$user/readme.c")" -le 25
    try 'install: it compiles and runs' pkg_config_user "$user/readme.c"
}

# Those of one thing each: a program says itself whether its result is right.
job_install_examples() {
    local name
    export LD_LIBRARY_PATH=$(pkg-config --variable=libdir aura)
    for name in decode paged speculative calibrate; do
        try "examples: $name has less than 80 lines" test "$(wc -l <examples/$name.c)" -lt 80
        try "examples: $name compiles" pkg_config_compile examples/$name.c "$user/$name" -std=c99 &&
            try "examples: $name" env -C "$user" "./$name"
    done
}

# examples/engine.c: what it prints in one go must be what it prints in two processes with a file between them. And its memory:
# a prompt of 2000 tokens is 8 pages; a question after it copies the last of these and adds one; of two samples one copies that
# one again; another user's question takes two more. In layer 1 each sequence has the page of the first tokens, which all share,
# and the three of its ring, the oldest of which two samples share.
job_install_engine() {
    local engine=$user/engine
    export LD_LIBRARY_PATH=$(pkg-config --variable=libdir aura)
    try 'engine: compiles' pkg_config_compile examples/engine.c "$engine" -std=c99 || return
    try 'engine: has 250 lines at most' test "$(wc -l <examples/engine.c)" -le 250
    try 'engine: in one go' into "$engine.whole" "$engine"
    try 'engine: until it is saved' into "$engine.first" "$engine" --save "$user/model.aura"
    try 'engine: in a new process' into "$engine.second" "$engine" --load "$user/model.aura"
    try 'engine: prints then what it prints in one go' diff <(cat "$engine.first" "$engine.second") "$engine.whole"
    try 'engine: three streams, with guesses that were right' \
        test "$(grep -c '^stream [123]: 2[0-9]* tokens, [1-9][0-9]* guessed, checksum ' "$engine.whole")" = 3
    sed -n 's/^  layer \(.\) .*: \(.*\) sequences, \(.*\) pages, \(.*\) shared, \(.*\) bytes/\1 \2 \3 \4 \5/p' \
        "$engine.whole" >"$engine.memory"
    try 'engine: memory of layers' diff "$engine.memory" - <<'END'
0 1 8 0 280576
1 1 4 0 189440
2 1 8 0 411648
0 3 10 9 350720
1 3 7 3 331520
2 3 10 9 514560
0 4 13 8 455936
1 4 12 2 568320
2 4 13 8 668928
END
    # In all: those pages, and not more than as much again for the f16 rows of sequences and for pages not in use.
    try 'engine: memory in all' awk '
        / of [0-9]* bytes$/ { all = $(NF - 3); reports++; pages = layers = 0; bad += $(NF - 1) != 4194304 || all > $(NF - 1) }
        /^  layer/ { pages += $(NF - 1); bad += ++layers == 3 && (pages > all || all > 2 * pages) }
        END { exit bad || reports != 3 || layers != 3 }' "$engine.whole"
    try 'engine: nothing is left over' grep -qx 'all answered: 0 sequences, 0 pages in use' "$engine.whole"
    try 'engine: refuses a file that is cut short' refuses_short
}

# into FILE COMMAND...: what it prints, into a file and the log.
into() {
    local file=$1
    shift
    "$@" >"$file" && cat "$file"
}

refuses_short() {
    head -c 100000 "$user/model.aura" >"$user/short.aura"
    ! "$user/engine" --load "$user/short.aura" 2>"$user/short.txt" && grep 'aura_model_load.*short\.aura' "$user/short.txt"
}

# The C of doc/engine.md in its order: the first block stands above main, each other one is a block in it.
job_install_engine_doc() {
    awk '/^```/ { if (inside && blocks > 1) print "}"
                  inside = $0 == "```c"
                  if (inside && ++blocks > 1) print blocks == 2 ? "int main(void)\n{\n{" : "{"
                  if (inside) printf "#line %d \"doc/engine.md\"\n", NR + 1
                  next }
         inside
         END { print "}" }' doc/engine.md >"$user/engine_doc.c"
    try 'engine.md: has C in it' test "$(grep -c '^{$' "$user/engine_doc.c")" -ge 15 || return
    own=-lm try 'engine.md: it compiles' pkg_config_compile "$user/engine_doc.c" "$user/engine_doc" -std=c11 || return
    try 'engine.md: it runs' env -C "$user" ./engine_doc
}

# ---- running jobs ---------------------------------------------------------------------------------------------------

# count WORD FILE...
count() {
    local word=$1
    shift
    cat "$@" | grep -c "^$word "
}

# One job, and a line about it.
one() {
    local job=$1 log=$out/$1.log status pid start=$SECONDS report tail=
    timeout -k 10 $time_limit $self --body "$job" >"$log" 2>&1 </dev/null &
    pid=$!
    trap 'kill $pid; exit 1' HUP INT TERM # timeout is in a process group of its own: Ctrl-C does not reach it
    wait $pid
    status=$?
    if [ $status != 0 ] && ! grep -q '^FAIL ' "$log"; then
        [ $status != 124 ] || status="$status, still running after $time_limit s"
        echo "FAIL $job: exit status $status" >>"$log"
    elif ! grep -qE '^(ok|FAIL|skip) ' "$log"; then
        echo "FAIL $job: no test ran" >>"$log"
    fi
    report=$(printf '%-13s %4d s  %d passed, %d failed, %d skipped' "$job" $((SECONDS - start)) \
        "$(count ok "$log")" "$(count FAIL "$log")" "$(count skip "$log")")
    echo "$((SECONDS - start)) $job" >$out/$job.time
    if grep -q '^FAIL ' "$log"; then
        tail=$(grep -B 8 '^FAIL ' "$log" | tail -n 40 | sed 's/^/    | /')
    fi
    echo "$report${tail:+$'\n'    from $log:$'\n'$tail}" # in one write: another job may be printing
}

# The names given, `plant` spelled out, union after the jobs whose results it joins; in the order of the list.
chosen() {
    local wanted=" $* " job name
    for name in "$@"; do
        case " $jobs quick" in *" $name"[\ -]* | *" $name") ;; *) echo "test/run.sh: no job $name" >&2; return 2 ;; esac
    done
    case $wanted in *' union '*) wanted="$wanted gcc neon device " ;; esac
    case $wanted in *' quick '*) echo quick ;; esac
    for job in $jobs; do
        case $wanted in '  ' | *" $job "* | *" ${job%%-*} "*) echo "$job" ;; esac
    done
}

all() {
    local list logs job start=$SECONDS
    list=$(chosen "$@") || return
    logs=$(for job in $list run; do echo "$out/$job.log"; done)
    rm -f $logs $out/*.time $out/*.cpu
    case $list in union) ;; *) rm -f $out/check-*.json ;; esac # union reads what this run wrote
    : >$out/run.log
    echo "$list" | grep -vx union | xargs -r -P 2 -n 1 $self --one || echo "FAIL a job was killed" >>$out/run.log
    ! echo "$list" | grep -qx union || one union
    echo
    for job in $list run; do
        sed -n "s/^FAIL /failed:  $job: /p; s/^skip /skipped: $job: /p" "$out/$job.log"
    done
    echo "slowest: $(sort -rn $out/*.time | head -n 5 | awk '{ printf "%s%s %d s", (NR > 1 ? ", " : ""), $2, $1 }')"
    echo "most CPU time: $(cat $out/*.cpu | awk '{ n = $3; for (i = 4; i <= NF; i++) n = n " " $i; t[n] += $1 + $2 }
        END { for (n in t) print t[n], n }' | sort -rn | head -n 8 | awk '{ t = $1; $1 = ""; printf "%s%s %d s", (NR > 1 ? "," : ""), $0, t }')"
    echo "$((SECONDS - start)) seconds; logs in $out"
    echo "$(count ok $logs) passed, $(count FAIL $logs) failed, $(count skip $logs) skipped"
    [ "$(count FAIL $logs)" = 0 ]
}

# one_of JOB/TEST: one test program, on the screen.
one_of() {
    local log=$out/one.log
    export one_test=${1#*/}
    chosen "${1%%/*}" >/dev/null || return
    $self --body "${1%%/*}" 2>&1 | tee $log
    if ! sed '/^ok \(build\|configure\)$/d' $log | grep -qE '^(ok|FAIL|skip) '; then
        echo "test/run.sh: the job ${1%%/*} has no test $one_test" >&2
        return 2
    fi
    ! grep -q '^FAIL ' $log
}

mkdir -p $out
case ${1-} in
--list) printf '%s\n' $jobs ;;
--body) job=$2 && "job_$2" ;;
--one) one "$2" ;;
--quick) job=quick && quick_test "$2" ;;
-*) echo 'usage: test/run.sh [--list | JOB/TEST | JOB...]' >&2; exit 2 ;;
*/*) one_of "$1" ;;
*) all "$@" ;;
esac
