package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/cubincache"
)

// Exit codes.
const (
	exitDone        = 0
	exitFailed      = 1 // for diff: they differ
	exitUsage       = 2
	exitInterrupted = 130
)

// commands is the command line.
type commands struct {
	Build      buildCommand      `cmd:"" help:"Turn specs into CUDA sources, cubins, Go bindings, a C header and a manifest."`
	Import     importCommand     `cmd:"" help:"Turn a Hugging Face config.json into a spec."`
	Verify     verifyCommand     `cmd:"" help:"Check a spec's kernels against float64 attention, on random cases."`
	Bench      benchCommand      `cmd:"" help:"Time a spec's kernels on a GPU, beside what the hardware allows."`
	Tune       tuneCommand       `cmd:"" help:"Measure which plans are the fastest on a GPU, for kgen build."`
	Vendor     vendorCommand     `cmd:"" help:"Make a folder of a spec's kernels that needs nothing of kgen."`
	Inspect    inspectCommand    `cmd:"" help:"Show a spec's kernels: what they use, their source, PTX or machine code."`
	Demo       demoCommand       `cmd:"" help:"Serve requests that share documents, with and without one copy of their KV."`
	Diff       diffCommand       `cmd:"" help:"Compare two specs or two built folders."`
	Doctor     doctorCommand     `cmd:"" help:"Show what kgen finds on this machine, and what is missing."`
	Toolchain  toolchainCommand  `cmd:"" help:"Install or show NVIDIA's compilers."`
	Completion completionCommand `cmd:"" help:"Print the code that gives a shell tab completion."`
	Version    versionCommand    `cmd:"" help:"Show the version."`

	Worker workerCommand `cmd:"" name:"compile-worker" hidden:"" help:"Compile what standard input asks for."`
}

const description = `Attention kernels for NVIDIA GPUs from a YAML spec.

A spec is a file, or - for standard input. Exit codes: 0 done, 1 failed, 2 bad usage or bad spec, 130 interrupted.`

// app is what commands work with besides their flags.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	args           []string // without the program's name
	given          []string // the names of the flags among args
}

// usageError is a mistake of the caller.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// exitError ends a command with a code of its own and no message.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// run carries out one command line and returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, getenv func(string) string) int {
	out := &checkedWriter{w: stdout}
	a := &app{stdin: stdin, stdout: out, stderr: stderr, getenv: getenv, args: args}
	err := a.command(ctx, args)
	if err == nil {
		err = out.err
	}
	return a.report(ctx, err)
}

func (a *app) command(ctx context.Context, args []string) error {
	exited := false // by --help, which kong goes on after
	parser, err := kong.New(&commands{},
		kong.Name("kgen"),
		kong.Description(description),
		kong.Writers(a.stdout, a.stderr),
		kong.Exit(func(int) { exited = true }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, WrapUpperBound: 100}),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(a),
		kong.Vars(demoDefaults()),
	)
	if err != nil {
		return err
	}
	kongcompletion.Register(parser, predictors()) // answers a shell that sets COMP_LINE
	if exited {
		return nil
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if exited {
		return nil
	}
	if err != nil {
		help := "kgen --help"
		var parse *kong.ParseError
		if errors.As(err, &parse) && parse.Context != nil && parse.Context.Command() != "" {
			help = "kgen " + parse.Context.Selected().Path() + " --help"
		}
		return usagef("%w; see %s", err, help)
	}
	if err := a.look(parsed.Path); err != nil {
		return err
	}
	return parsed.Run()
}

// look notes which flags are given, and refuses empty values: one is of a variable that is
// not set, more likely than for everything that there is.
func (a *app) look(path []*kong.Path) error {
	for _, p := range path {
		switch {
		case p.Flag != nil:
			a.given = append(a.given, p.Flag.Name)
			if emptyValue(p.Flag.Target) {
				hint := ", or leave out the flag"
				if p.Flag.Required {
					hint = ""
				}
				return usagef("--%s is empty: give a value%s", p.Flag.Name, hint)
			}
		case p.Positional != nil && emptyValue(p.Positional.Target):
			return usagef("<%s> is empty: give a value", p.Positional.Name)
		}
	}
	return nil
}

// emptyValue reports a text that is empty, a list of which one is, and an empty list.
func emptyValue(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.String:
		return v.Len() == 0
	case reflect.Slice:
		for i := range v.Len() {
			if emptyValue(v.Index(i)) {
				return true
			}
		}
		return v.Len() == 0
	}
	return false
}

// besides are the given flags that are none of the named ones, as they are written.
func (a *app) besides(names ...string) []string {
	var others []string
	for _, name := range a.given {
		if flag := "--" + name; !slices.Contains(names, name) && !slices.Contains(others, flag) {
			others = append(others, flag)
		}
	}
	return others
}

// report says on standard error why a command failed and returns its exit code.
func (a *app) report(ctx context.Context, err error) int {
	var code exitError
	var specErrors spec.Errors
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &code):
		return int(code)
	case ctx.Err() != nil:
		fmt.Fprintln(a.stderr, "kgen: interrupted")
		return exitInterrupted
	case errors.As(err, &specErrors):
		fmt.Fprintln(a.stderr, err)
		return exitUsage
	}
	fmt.Fprintf(a.stderr, "kgen: %s%s\n", strings.TrimSpace(err.Error()), a.advice(err))
	if errors.As(err, &usageError{}) {
		return exitUsage
	}
	return exitFailed
}

// advice is what to do about a cache folder that can't be made or written, whoever met that; "" about any other error.
func (a *app) advice(err error) string {
	const elsewhere = "; set KGEN_CACHE_DIR to a folder that can be written"
	if errors.Is(err, cubincache.ErrUnusable) {
		return elsewhere
	}
	var at *fs.PathError
	dir, noDir := a.cacheDir()
	if noDir != nil || !errors.As(err, &at) {
		return ""
	}
	if at.Op == "mkdir" && below(dir, at.Path) || below(at.Path, dir) && !errors.Is(err, fs.ErrNotExist) {
		return elsewhere
	}
	return ""
}

// below reports whether a path is a folder or in it.
func below(path, dir string) bool {
	in, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(in)
}

// checkedWriter keeps the first error of writing, so that commands need not
// look at each.
type checkedWriter struct {
	w   io.Writer
	err error
}

func (c *checkedWriter) Write(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.w.Write(p)
	if err != nil {
		c.err = fmt.Errorf("write to standard output: %w", err)
	}
	return n, c.err
}
