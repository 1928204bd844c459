# The front door. Every target works as the first command typed: it installs what is missing, or says what that is.
MAKEFLAGS += --no-print-directory

.PHONY: help build run check bench test test-long clean

help:
	@echo 'make run     build, then check every kernel on this machine against the reference'
	@echo 'make test    all tests: two compilers, sanitizers, ARM under emulation, install, ...'
	@echo 'make test-long  20 000 calls of a cache with options at random, compared with double; ROWS= and SEED= change them'
	@echo 'make check   the same as run'
	@echo 'make bench   time the cache and the kernels beside a plain read of memory, for some minutes'
	@echo 'make clean   remove build/'

build:
	@tool/setup.sh run
	@cmake -S . -B build/release -DAURA_TESTS=OFF
	@cmake --build build/release --parallel 2

run check: build
	build/release/aura check

bench: build
	build/release/aura bench
	build/release/aura bench rows

test:
	@tool/setup.sh test
	@test/run.sh

ROWS ?= 20000
SEED ?= 1
test-long:
	@tool/setup.sh run
	@cmake -S . -B build/long
	@cmake --build build/long --parallel 2 --target test_cache_cover
	build/long/test_cache_cover --random $(ROWS) $(SEED)

clean:
	rm -rf build
