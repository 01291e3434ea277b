# kgen: README.md says what it is. Everything goes into the user's cache folder
# (KGEN_CACHE_DIR), bin/ and generated/.

GO     ?= go
KGEN   := bin/kgen
SPECS  := specs/llama2_7b.yaml specs/llama3.yaml specs/smollm2_135m.yaml
RACE   := ./runtime/serve ./runtime/cpu ./runtime/kvcache ./runtime/cubincache ./runtime/cuda/... ./runtime/filelock ./runtime/kernel ./runtime/nvrtc \
          ./gen/build ./gen/parallel ./gen/subprocess ./gen/toolchain  # what has several goroutines or processes, the longest first
CASES  ?= 500
SOAK   ?= 1h

.PHONY: all kgen compiler toolchain test soak lint generate gorgonia device-test measure clean

# Build Llama-3's kernels and check them on the CPU.
all: kgen compiler
	$(KGEN) build specs/llama3.yaml
	$(KGEN) verify specs/llama3.yaml --backend emulator --cases 3 --seed 1

kgen:
	CGO_ENABLED=0 $(GO) build -trimpath -o $(KGEN) ./cmd/kgen

# A compiler for kernels, where there is none.
compiler: kgen
	$(KGEN) toolchain install --if-missing

# The compilers of fixed versions, which come before any other.
toolchain: kgen
	$(KGEN) toolchain install

# Tests that need a compiler for kernels, or a C++ compiler, skip where there is none.
test: compiler
	$(GO) test -timeout 30m ./...
	@if command -v "$$($(GO) env CC)" >/dev/null; then set -x; KGEN_SERVE_OPERATIONS=60000 CGO_ENABLED=1 $(GO) test -timeout 30m -race $(RACE); \
	else echo "no C compiler: go test -race is left out"; fi

# The engine under random operations and faults: its memory must stay flat.
soak:
	$(GO) test ./runtime/serve -count=1 -v -run '^TestSoak$$' -soak $(SOAK) -timeout 0

lint:
	@test -z "$$(gofmt -l .)" || { echo "gofmt these:"; gofmt -l .; exit 1; }
	CGO_ENABLED=0 $(GO) vet ./...
	CGO_ENABLED=0 $(GO) tool staticcheck ./...
	for os in darwin windows; do CGO_ENABLED=0 GOOS=$$os GOARCH=amd64 $(GO) build ./... || exit 1; done

# The committed output of the shipped specs.
generate: toolchain
	$(KGEN) build $(SPECS) --compiler nvrtc

# The device by gorgonia.org/cu, compiled and tested against CUDA's headers and a
# stand-in driver.
gorgonia:
	tests/gorgonia/build.sh

# For a machine with an NVIDIA GPU: both bindings of libcuda, what kgen vendor
# writes, built as a stranger does, the demo, and every spec's kernels.
VENDORED := bin/vendored
device-test: kgen compiler
	CGO_ENABLED=0 $(GO) test -count=1 -v -timeout 20m ./tests/device
	tests/gorgonia/build.sh bin/gorgonia.test
	cd tests/device && ../../bin/gorgonia.test -test.v -test.run /gorgonia
	$(KGEN) vendor specs/llama3.yaml --to $(VENDORED)/c --lang c
	cd $(VENDORED)/c && $${CC:-cc} -std=c11 -O2 -o example example.c llama3.c -ldl -lm && ./example
	$(KGEN) vendor specs/llama3.yaml --to $(VENDORED)/go --lang go
	cd $(VENDORED)/go && GOWORK=off CGO_ENABLED=0 $(GO) test -count=1 -v .
	$(KGEN) demo
	for spec in $(SPECS); do $(KGEN) verify $$spec --backend gpu --encoding segment,raw,baked --cases $(CASES) --seed 1 || exit 1; done

# What README.md and tests/device/README.md say was measured, on a machine with an NVIDIA GPU.
measure: kgen compiler
	tests/device/measure.sh bin/measured

clean:
	rm -rf bin
