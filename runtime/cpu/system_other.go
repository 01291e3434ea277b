//go:build !linux

package cpu

func systemMemory() int64 { return otherMemory }
