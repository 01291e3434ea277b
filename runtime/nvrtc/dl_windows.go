package nvrtc

import "errors"

var errWindows = errors.New("kgen uses NVRTC on Linux only: embed the machine code (kgen build --embed)")

func dlopen(string, bool) (uintptr, error) { return 0, errWindows }

func dlsym(uintptr, string) (uintptr, error) { return 0, errWindows }
