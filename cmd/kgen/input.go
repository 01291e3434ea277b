package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kgen-project/kgen/gen/spec"
)

// maxInput is more bytes than any spec or config may have.
const maxInput = 16 << 20

const stdinName = "<stdin>"

// read returns a file's content and its name for messages; "-" is standard input.
func (a *app) read(path string) (name string, data []byte, err error) {
	name, from := path, io.Reader(nil)
	if path == "-" {
		name, from = stdinName, a.stdin
	} else {
		f, err := os.Open(path)
		if err != nil {
			return "", nil, usageError{err}
		}
		defer f.Close()
		from = f
	}
	data, err = io.ReadAll(io.LimitReader(from, maxInput+1))
	if err != nil {
		return "", nil, usageError{err}
	}
	if len(data) > maxInput {
		return "", nil, usagef("%s has more than %s: it is neither a spec nor a config.json", name, sizeText(maxInput))
	}
	return name, data, nil
}

// readSpecs parses all the files before it reports what is wrong with any.
func (a *app) readSpecs(paths []string) ([]spec.Spec, error) {
	var specs []spec.Spec
	var bad spec.Errors
	from := map[string]string{}
	for i, path := range paths {
		for _, before := range paths[:i] {
			if path == before {
				return nil, usagef("%s is given twice", path)
			}
		}
		name, data, err := a.read(path)
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

func (a *app) readSpec(path string) (spec.Spec, error) {
	specs, err := a.readSpecs([]string{path})
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
