// Package page shows a report of package bench: as Markdown, and as one HTML page
// with charts that opens without a network.
package page

import (
	"strings"

	"github.com/kgen-project/kgen/gen/bench"
)

// Markdown is the report's table, what was measured above it and notes below.
func Markdown(r bench.Report) string {
	var b strings.Builder
	for i, line := range r.About() {
		if i > 0 {
			b.WriteString("  \n")
		}
		b.WriteString(line)
	}
	if r.Command != "" {
		b.WriteString("  \n`" + r.Command + "`")
	}
	b.WriteString("\n\n")
	heading, rows := r.Table()
	row := func(cells []string) {
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	row(heading)
	b.WriteString("|" + strings.Repeat("---|", len(heading)) + "\n")
	for _, cells := range rows {
		row(cells)
	}
	if notes := r.Notes(); len(notes) > 0 {
		b.WriteByte('\n')
		for _, line := range notes {
			b.WriteString("- " + line + "\n")
		}
	}
	return b.String()
}
