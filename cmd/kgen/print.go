package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// json prints a value for programs.
func (a *app) json(v any) error {
	e := json.NewEncoder(a.stdout)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// table prints rows under a heading, in columns, with no blanks at the ends of lines.
func (a *app) table(heading []string, rows [][]string) error {
	var text bytes.Buffer
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	if heading != nil {
		fmt.Fprintln(w, strings.Join(heading, "\t"))
	}
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for line := range bytes.Lines(text.Bytes()) {
		if _, err := fmt.Fprintf(a.stdout, "%s\n", bytes.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// progress shows on standard error, if that is a terminal, how much of a work
// is done.
type progress struct{ bar *progressbar.ProgressBar }

func (a *app) progress() progress {
	if !isTerminal(a.stderr) {
		return progress{}
	}
	return progress{progressbar.NewOptions(1,
		progressbar.OptionSetWriter(a.stderr),
		progressbar.OptionShowCount(),
		progressbar.OptionSetWidth(30),
		progressbar.OptionClearOnFinish(),
	)}
}

func (p progress) set(done, total int, what string) {
	if p.bar != nil {
		p.bar.Describe(what)
		p.bar.ChangeMax(total)
		_ = p.bar.Set(done) // a bar that can't be drawn changes nothing
	}
}

func (p progress) end() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// sizeText writes a size the way people read it.
func sizeText(n int64) string {
	units := []string{"bytes", "KiB", "MiB", "GiB", "TiB"}
	x, u := float64(n), 0
	for x >= 1024 && u < len(units)-1 {
		x, u = x/1024, u+1
	}
	if u == 0 {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%.1f %s", x, units[u])
}
