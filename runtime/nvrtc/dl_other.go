//go:build !windows

package nvrtc

import "github.com/ebitengine/purego"

// dlopen loads a library, whose symbols are for those that are loaded later too where it is global.
func dlopen(path string, global bool) (uintptr, error) {
	if global {
		return purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	}
	return purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

func dlsym(handle uintptr, name string) (uintptr, error) { return purego.Dlsym(handle, name) }
