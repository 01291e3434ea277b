package main

import (
	"context"
	"os"

	"github.com/kgen-project/kgen/gen/build"
)

// workerCommand is how kgen runs NVRTC in a process of its own.
type workerCommand struct {
	Library string `arg:""`
}

const workerName = "compile-worker"

func (c *workerCommand) Run(ctx context.Context, a *app) error {
	return build.Work(ctx, c.Library, a.stdin, os.NewFile(build.WorkerAnswers, "answers"))
}
