package main

import (
	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"
	"github.com/posener/complete"

	"github.com/kgen-project/kgen/gen/spec"
)

type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (completionCommand) Help() string {
	return `For bash and zsh: source <(kgen completion bash). For fish: kgen completion fish | source. ` +
		`Put the line into the shell's start-up file to keep it.`
}

func (c *completionCommand) Run(k *kong.Context) error {
	return (&kongcompletion.Completion{Shell: c.Shell, Code: true}).Run(k)
}

// predictors say what a shell may complete an argument or a flag's value with.
func predictors() kongcompletion.Option {
	return kongcompletion.WithPredictors(map[string]complete.Predictor{
		"spec":     complete.PredictFiles("*.yaml"),
		"built":    complete.PredictOr(complete.PredictFiles("*.yaml"), complete.PredictDirs("*")),
		"config":   complete.PredictFiles("*.json"),
		"folder":   complete.PredictDirs("*"),
		"target":   words(spec.AllTargets),
		"kernel":   words(spec.AllKinds),
		"encoding": words(spec.AllEncodings),
		"baseline": words(allBaselines),
	})
}

func words[T ~string](all []T) complete.Predictor {
	names := make([]string, len(all))
	for i, w := range all {
		names[i] = string(w)
	}
	return complete.PredictSet(names...)
}
