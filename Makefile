# The front door. Every target works as the first command typed: it installs what is missing, or says what that is.
MAKEFLAGS += --no-print-directory

.PHONY: help build run check bench test clean

help:
	@echo 'make run     build, then check every kernel on this machine against the reference'
	@echo 'make test    all tests: two compilers, sanitizers, ARM under emulation, install, ...'
	@echo 'make check   the same as run'
	@echo 'make bench   time the kernels beside the reference and a plain read of memory'
	@echo 'make clean   remove build/'

build:
	@tool/setup.sh run
	@cmake -S . -B build/release -DAURA_TESTS=OFF
	@cmake --build build/release --parallel 2

run check: build
	build/release/aura check

bench: build
	build/release/aura bench rows

test:
	@tool/setup.sh test
	@test/run.sh

clean:
	rm -rf build
