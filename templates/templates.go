// Package templates carries the CUDA C++ that kernels are made of: abi.cuh
// (launch parameters), ptx/ (instructions), tile/ (parts of a kernel), schedule/ (those
// of the kernel that makes work lists), kernel/
// (one file per kind) and emu/ (the instructions for a C++ compiler).
package templates

import "embed"

// FS is the templates, with paths such as kernel/attend.cuh.
//
//go:embed *.cuh */*.cuh emu/*.hpp emu/*.cpp
var FS embed.FS
