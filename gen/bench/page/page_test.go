package page_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kgen-project/kgen/gen/bench"
	"github.com/kgen-project/kgen/gen/bench/page"
)

var update = flag.Bool("update", false, "write testdata/report.md")

// example is a made-up report: its figures were never measured.
func example(t *testing.T) bench.Report {
	t.Helper()
	data, err := os.ReadFile("testdata/report.json")
	if err != nil {
		t.Fatal(err)
	}
	r, err := bench.ParseReport(data)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestMarkdown(t *testing.T) {
	got := page.Markdown(example(t))
	if *update {
		if err := os.WriteFile("testdata/report.md", []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/report.md")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("run go test ./gen/bench/page -update and look at the difference:\n%s", diff)
	}
}

func TestHTML(t *testing.T) {
	r := example(t)
	html, err := page.HTML(r)
	if err != nil {
		t.Fatal(err)
	}
	again, err := page.HTML(r)
	if err != nil || !bytes.Equal(html, again) {
		t.Errorf("the same report gives two pages (%v)", err)
	}
	text := string(html)

	// Nothing is loaded: no script, no address but the names of XML's name spaces.
	addresses := regexp.MustCompile(`(?i)(?:https?:)?//[a-z0-9.-]+|@import|url\(|<script|<link|<img|<iframe`)
	for _, found := range addresses.FindAllString(text, -1) {
		if found != "http://www.w3.org" {
			t.Errorf("the page has %q", found)
		}
	}
	for _, want := range []string{
		"llama3 on Example GPU", "<h2>Roofline</h2>", "<h2>Prefill and extend, as a part of the limit</h2>", "<h2>Decode, as a part of the limit</h2>",
		"<h2>Decode of shared documents, as a part of the limit</h2>", "<h2>Extend by 64 tokens over the length of the context, B=1</h2>",
		"<h2>Decode over Zipf&#39;s exponent, B=64</h2>", "4.31 TB/s", "802 TFLOP/s", "2026-01-02 03:04 UTC", r.Command, "No available kernel", "geometric mean of",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, row := range r.Rows {
		if !strings.Contains(text, "<code>"+strings.ReplaceAll(row.Case, "+", "&#43;")+"</code>") {
			t.Errorf("the page has no row %s", row.Case)
		}
	}
	if n := strings.Count(text, `<div class="chart wide">`); n != 6 {
		t.Errorf("%d charts, want 6", n)
	}

	// Each chart is well-formed, and its colours are the style sheet's.
	declared := map[string]bool{}
	for _, m := range regexp.MustCompile(`(--[a-z]+):`).FindAllStringSubmatch(text, -1) {
		declared[m[1]] = true
	}
	for _, m := range regexp.MustCompile(`var\((--[a-z]+)\)`).FindAllStringSubmatch(text, -1) {
		if !declared[m[1]] {
			t.Errorf("colour %s is not declared", m[1])
		}
	}
	for _, svg := range regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(text, -1) {
		if strings.Contains(svg, "#0101") || strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
			t.Errorf("a chart has a colour or a number that is none: %.200s", svg)
		}
		d := xml.NewDecoder(strings.NewReader(svg))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%v in %.200s", err, svg)
			}
		}
	}
}

// A report with little in it is a page too: without ceilings, baselines or rows, and
// names are text, not markup.
func TestHTMLOfLittle(t *testing.T) {
	r := example(t)
	r.Ceilings, r.Spec, r.Command = nil, "<b>&", `kgen bench "<script>"`
	for i := range r.Rows {
		r.Rows[i].Limit, r.Rows[i].Against = 0, nil
	}
	for _, rows := range [][]bench.Row{r.Rows, r.Rows[:1], {}} {
		r.Rows = rows
		html, err := page.HTML(r)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(html, []byte("<script")) || bytes.Contains(html, []byte("<b>&")) {
			t.Error("a name became markup")
		}
	}
}

// A regret is shown where a row has one.
func TestRegret(t *testing.T) {
	r := example(t)
	if strings.Contains(page.Markdown(r), "regret") {
		t.Error("a column of regrets, and no row has one")
	}
	regret := 0.034
	r.Rows[0].Regret = &regret
	html, err := page.HTML(r)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(page.Markdown(r), "3.4%") || !strings.Contains(string(html), "<td>3.4%</td>") {
		t.Error("the regret is not shown")
	}
}
