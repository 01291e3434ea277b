#!/bin/sh
# Compiles, vets and tests all that has the build tag gorgonia, on a machine
# with neither CUDA nor a GPU: against NVIDIA's headers from a wheel and a libcuda
# of our own. It takes a minute the first time and seconds after that.
#
#   tests/gorgonia/build.sh           check
#   tests/gorgonia/build.sh FILE      build the test binary of tests/device to run where a GPU is
set -eu
cd "$(dirname "$0")/../.."

headers=nvidia-cuda-runtime-cu12
version=12.2.140
cache=${KGEN_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/kgen}/gorgonia/$version
include=$cache/nvidia/cuda_runtime/include
python=${PYTHON:-python3}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

if [ ! -e "$include/cuda.h" ]; then
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$work" "$headers==$version"
  "$python" -m zipfile -e "$work"/*.whl "$work/wheel"
  mkdir -p "$cache"
  # A run beside this one may have put them there first.
  mv -T "$work/wheel/nvidia" "$cache/nvidia" 2>"$work/moved" || [ -e "$include/cuda.h" ] || { cat "$work/moved" >&2; exit 1; }
fi

# To link with: every function that gorgonia.org/cu names. At run time the
# driver's libcuda.so.1, or for the tests here bindingtest's, takes its place.
# It lies in the cache, for Go compiles again where CGO_LDFLAGS is another.
mkdir -p "$cache/link"
mkdir "$work/run"
sed 's/.*/__attribute__((weak)) int &(void) { return 34; }/' tests/gorgonia/symbols.txt >"$work/stub.c"
${CC:-cc} -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$work/libcuda.so" "$work/stub.c"
mv "$work/libcuda.so" "$cache/link/libcuda.so"
${CC:-cc} -Wall -Werror -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$work/run/libcuda.so.1" \
  "$work/stub.c" runtime/cuda/internal/bindingtest/testdata/libcuda.c

export CGO_ENABLED=1 CGO_CFLAGS="-O1 -I$include" CGO_LDFLAGS="-L$cache/link"
if [ $# -gt 0 ]; then
  go test -c -tags gorgonia -o "$1" ./tests/device
  exit
fi
go vet -tags gorgonia ./runtime/cuda/gorgonia ./tests/device
LD_LIBRARY_PATH=$work/run go test -count=1 -tags gorgonia ./runtime/cuda/gorgonia
