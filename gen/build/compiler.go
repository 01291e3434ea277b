package build

import (
	"context"
	"errors"
	"fmt"

	"github.com/kgen-project/kgen/gen/toolchain"
	"github.com/kgen-project/kgen/runtime/cubincache"
	"github.com/kgen-project/kgen/runtime/nvrtc"
)

// Compiler turns a source into a cubin. It is safe for concurrent use.
type Compiler interface {
	ID() string      // nvrtc or nvcc
	Version() string // such as 13.0.88
	// Compile compiles with [Flags]. Its error has the compiler's whole message.
	Compile(ctx context.Context, s Source) (cubincache.Entry, error)
	// PTX returns the source's PTX, for people to read.
	PTX(ctx context.Context, s Source) ([]byte, error)
}

// Choice names a compiler.
type Choice string

const (
	Auto  Choice = "auto" // NVRTC if there is one, else nvcc
	NVRTC Choice = "nvrtc"
	NVCC  Choice = "nvcc"
)

// FindCompiler returns the chosen one of the tools. It keeps the versions that it
// finds in the folder memo, so that NVRTC, which takes a while to load, is
// not loaded until something needs a compile.
func FindCompiler(ctx context.Context, choice Choice, tools toolchain.Tools, memo string) (Compiler, error) {
	switch {
	case (choice == Auto || choice == NVRTC) && tools.NVRTC != "":
		version, err := toolchain.Version(ctx, tools.NVRTC, memo)
		if err != nil {
			return nil, err
		}
		return newNVRTC(tools.NVRTC, version), nil
	case (choice == Auto || choice == NVCC) && tools.NVCC != "":
		version, err := toolchain.Version(ctx, tools.NVCC, memo)
		if err != nil {
			return nil, err
		}
		return &nvccCompiler{path: tools.NVCC, version: version}, nil
	case choice == Auto:
		return nil, errors.New("build: neither NVRTC nor nvcc is found; run `kgen toolchain install`, or set CUDA_HOME to a CUDA toolkit")
	case choice == NVRTC:
		return nil, nvrtc.ErrNotFound
	case choice == NVCC:
		return nil, errors.New("build: nvcc is not found; run `kgen toolchain install --nvcc`, or set CUDA_HOME to a CUDA toolkit")
	default:
		return nil, fmt.Errorf("build: unknown compiler %q: it is one of auto, nvrtc, nvcc", choice)
	}
}
