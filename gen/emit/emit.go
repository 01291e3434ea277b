// Package emit turns a spec and its plans into files: CUDA sources, Go
// bindings, a C header and a manifest. It is pure: values in, a map of path to
// content out, byte-identical from run to run.
package emit
