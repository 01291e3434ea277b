// Command kgen turns YAML specs into CUDA kernels with Go bindings, and checks
// them.
//
// It exits 0 when it has done what it was asked for, 1 when that failed, with the
// reason on standard error, 2 for bad usage or a bad spec, and 130 when a
// signal ended it. Files appear whole or not at all, whatever ends it.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv))
}
