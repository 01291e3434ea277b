package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kgen-project/kgen/gen/spec"
)

// maxInput is more bytes than anything that kgen reads has.
const maxInput = 16 << 20

const stdinName = "<stdin>"

// read returns a file's content and its name for messages; "-" is standard input.
func (a *app) read(ctx context.Context, path string) (name string, data []byte, err error) {
	name = path
	if path == "-" {
		name = stdinName
		data, err = readAll(ctx, name, func() (io.ReadCloser, error) { return io.NopCloser(a.stdin), nil })
	} else {
		data, err = readFile(ctx, path)
	}
	if err != nil {
		return "", nil, usageError{err}
	}
	return name, data, nil
}

func readFile(ctx context.Context, path string) ([]byte, error) {
	return readAll(ctx, path, func() (io.ReadCloser, error) { return os.Open(path) })
}

// readAll reads what open opens. A pipe or a terminal may give nothing for long, and a named
// pipe may not even open: readAll waits no longer than until ctx is done.
func readAll(ctx context.Context, name string, open func() (io.ReadCloser, error)) ([]byte, error) {
	type result struct {
		data []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		f, err := open()
		if err != nil {
			done <- result{err: err}
			return
		}
		defer f.Close()
		data, err := io.ReadAll(io.LimitReader(f, maxInput+1))
		done <- result{data, err}
	}()
	select {
	case r := <-done:
		if r.err == nil && len(r.data) > maxInput {
			return nil, fmt.Errorf("%s has more than %s, as nothing that kgen reads has", name, sizeText(maxInput))
		}
		return r.data, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// readSpecs parses all the files before it reports what is wrong with any.
func (a *app) readSpecs(ctx context.Context, paths []string) ([]spec.Spec, error) {
	var specs []spec.Spec
	var bad spec.Errors
	from := map[string]string{}
	for i, path := range paths {
		for _, before := range paths[:i] {
			if path == before {
				return nil, usagef("%s is given twice", path)
			}
		}
		name, data, err := a.read(ctx, path)
		if err != nil {
			return nil, err
		}
		s, err := spec.Parse(name, data)
		var errs spec.Errors
		switch {
		case errors.As(err, &errs):
			bad = append(bad, errs...)
			continue
		case err != nil:
			return nil, usageError{err}
		}
		if first, taken := from[s.Name]; taken {
			return nil, usagef("%s and %s are both named %s; a build needs a name of its own for each", first, name, s.Name)
		}
		from[s.Name] = name
		specs = append(specs, s)
	}
	if bad != nil {
		return nil, bad
	}
	return specs, nil
}

func (a *app) readSpec(ctx context.Context, path string) (spec.Spec, error) {
	specs, err := a.readSpecs(ctx, []string{path})
	if err != nil {
		return spec.Spec{}, err
	}
	return specs[0], nil
}

// cacheDir is the folder of everything that kgen keeps on this machine.
func (a *app) cacheDir() (string, error) {
	if dir := a.getenv("KGEN_CACHE_DIR"); dir != "" {
		if info, err := os.Stat(dir); err == nil && !info.IsDir() {
			return "", fmt.Errorf("no folder for the cache: KGEN_CACHE_DIR is %s, which is a file; set it to a folder", dir)
		}
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no folder for the cache: %w; set KGEN_CACHE_DIR to one", err)
	}
	return filepath.Join(dir, "kgen"), nil
}

// parseWords turns words given on the command line into values of a set, each once.
func parseWords[T ~string](what string, words []string, valid []T) ([]T, error) {
	var values []T
	for _, w := range words {
		known := false
		for _, v := range valid {
			if string(v) == w {
				known = true
				if !slices.Contains(values, v) {
					values = append(values, v)
				}
			}
		}
		if known {
			continue
		}
		names := make([]string, len(valid))
		for i, v := range valid {
			names[i] = string(v)
		}
		hint := ""
		if near := spec.Nearest(w, valid); near != "" {
			hint = fmt.Sprintf("; did you mean %s?", near)
		}
		return nil, usagef("unknown %s %q: it is one of %s%s", what, w, strings.Join(names, ", "), hint)
	}
	return values, nil
}
