// Package gorgonia opens NVIDIA GPUs through gorgonia.org/cu, for programs that
// use that package already. It is behind the build tag gorgonia and wants cgo,
// the headers of CUDA 12.2 and libcuda.so to link with:
//
//	CGO_CFLAGS=-I<headers> CGO_LDFLAGS=-L<folder of libcuda.so> go build -tags gorgonia
//
// A program with it starts only where libcuda.so.1 is, and gorgonia.org/cu ends
// it at the start where the driver finds no GPU. Package driver has neither
// need, and is the same device otherwise.
package gorgonia
