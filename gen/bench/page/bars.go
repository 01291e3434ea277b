package page

import (
	"fmt"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/kgen-project/kgen/gen/bench"
	"github.com/kgen-project/kgen/gen/spec"
)

// bars are charts of how near to its limit each case comes, kgen's bar above those
// of the baselines.
func bars(r bench.Report) ([]chart, error) {
	var charts []chart
	for _, group := range []struct {
		title string
		has   func(bench.Row) bool
	}{
		{"Prefill and extend, as a part of the limit", func(row bench.Row) bool {
			f := familyOf(row)
			return f == prefills || f == extends
		}},
		{"Decode, as a part of the limit", func(row bench.Row) bool { return familyOf(row) == decodes }},
		{"Decode of shared documents, as a part of the limit", func(row bench.Row) bool { return familyOf(row) == sharings }},
	} {
		var rows []bench.Row
		for _, row := range r.Rows {
			if row.Limit > 0 && group.has(row) && (len(r.Rows) <= fewRows || usual(row)) {
				rows = append(rows, row)
			}
		}
		if len(rows) == 0 {
			continue
		}
		c := chart{Title: group.title, Text: "A bar that reaches 100% takes the time that the device's memory or its matrix products need at least; the thin line is from the 10th to the 90th percentile."}
		if familyOf(rows[0]) == sharings {
			c.Text = "The limit reads each document once, however many sequences hold it. The thin line is from the 10th to the 90th percentile."
		}
		groups, legend := barGroups(rows)
		c.Legend = legend
		err := c.drawAll(func(width float64) (*plot.Plot, float64) {
			p := newPlot("", "")
			b := barPlot{groups: groups}
			p.X.Min, p.X.Max = 0, b.most()*1.12
			p.Y.Min, p.Y.Max = -b.height(), 0
			p.X.Tick.Marker = percents(p.X.Max)
			var ticks marks
			at := 0.0
			for _, g := range groups {
				ticks = append(ticks, plot.Tick{Value: -(at + g.height()/2), Label: g.title})
				at += g.height() + groupGap
			}
			p.Y.Tick.Marker = named(ticks)
			p.Y.Tick.Length, p.Y.Tick.Label.Color = 0, ink
			p.Add(lines{x: true}, b)
			return p, b.height() + 40
		})
		if err != nil {
			return nil, err
		}
		charts = append(charts, c)
	}
	return charts, nil
}

// fewRows is how many rows are shown all; of more, those of [bench.Usual].
const fewRows = 24

func usual(row bench.Row) bool { return slices.Contains(bench.Usual(), row.Parsed()) }

// named are ticks of an axis that falls below zero.
type named []plot.Tick

func (n named) Ticks(float64, float64) []plot.Tick { return n }

func percents(most float64) marks {
	var m marks
	step := 0.2
	if most > 1.6 {
		step = 0.5
	}
	for i := 0; float64(i)*step <= most; i++ {
		m = append(m, plot.Tick{Value: float64(i) * step, Label: fmt.Sprintf("%.0f%%", 100*float64(i)*step)})
	}
	return m
}

type barGroup struct {
	title string
	bars  []bar
}

type bar struct {
	hue             hue
	part, low, high float64 // of the limit
	bold            bool
}

const barHeight, groupGap = 12.0, 13.0

func (g barGroup) height() float64 { return float64(len(g.bars)) * barHeight }

// barGroups joins the rows of one case, which differ in their method.
func barGroups(rows []bench.Row) ([]barGroup, []entry) {
	var groups []barGroup
	var legend []entry
	add := func(g *barGroup, name string, h hue, limit time.Duration, t bench.Times) {
		part := func(d time.Duration) float64 { return float64(limit) / float64(d) }
		g.bars = append(g.bars, bar{hue: h, part: part(t.Median), low: part(t.High), high: part(t.Low), bold: h <= bitwise && h >= kgen})
		if e := (entry{name, h, "bar"}); !slices.Contains(legend, e) {
			legend = append(legend, e)
		}
	}
	for len(rows) > 0 {
		n := 1
		for n < len(rows) && rows[n].Case == rows[0].Case {
			n++
		}
		g := barGroup{title: caseTitle(rows[0].Parsed())}
		for _, row := range rows[:n] {
			name, h := methodName(row)
			add(&g, name, h, row.Limit, row.Times)
		}
		for _, p := range rows[0].Against { // the rows of a case have the same
			if p.Error == "" {
				add(&g, p.Name, peerHue(p.Name), rows[0].Limit, p.Times)
			}
		}
		groups = append(groups, g)
		rows = rows[n:]
	}
	return groups, legend
}

func methodName(row bench.Row) (string, hue) {
	switch row.Method {
	case bench.MethodShared:
		return "kgen, shared decode", shared
	case bench.MethodBitwise:
		return "kgen, shared decode, bitwise", bitwise
	case bench.MethodPlain:
		return "kgen, plain decode", kgen
	}
	return "kgen", kgen
}

// caseTitle is short, for people.
func caseTitle(c bench.Case) string {
	switch h := c.Sharing; {
	case h.Apart:
		return fmt.Sprintf("%d share %s, own %d", c.Batch, tokens(h.Tokens), h.OwnTo)
	case h.Documents > 0:
		return fmt.Sprintf("Zipf %g, B=%d", h.Zipf, c.Batch)
	case c.Kind == spec.Prefill:
		return fmt.Sprintf("prefill %s, B=%d", tokens(c.Query), c.Batch)
	case c.Kind == spec.Decode && c.Query == 1:
		return fmt.Sprintf("decode %s, B=%d", tokens(c.Context), c.Batch)
	}
	return fmt.Sprintf("%s %d over %s, B=%d", c.Kind, c.Query, tokens(c.Context), c.Batch)
}

type barPlot struct{ groups []barGroup }

func (b barPlot) height() float64 {
	h := -groupGap
	for _, g := range b.groups {
		h += g.height() + groupGap
	}
	return h
}

func (b barPlot) most() float64 {
	most := 1.0
	for _, g := range b.groups {
		for _, bar := range g.bars {
			most = max(most, bar.high)
		}
	}
	return most
}

func (b barPlot) Plot(c draw.Canvas, p *plot.Plot) {
	toX, toY := p.Transforms(&c)
	s := draw.LineStyle{Color: limit, Width: 1.2, Dashes: []vg.Length{5, 3}}
	c.StrokeLine2(s, toX(1), c.Min.Y, toX(1), c.Max.Y)
	at := 0.0
	for _, g := range b.groups {
		for i, bar := range g.bars {
			top, bottom := toY(-(at + float64(i)*barHeight + 1)), toY(-(at + float64(i+1)*barHeight - 1))
			middle := (top + bottom) / 2
			c.FillPolygon(bar.hue, []vg.Point{{X: toX(0), Y: bottom}, {X: toX(bar.part), Y: bottom}, {X: toX(bar.part), Y: top}, {X: toX(0), Y: top}})
			c.StrokeLine2(draw.LineStyle{Color: ink, Width: 1}, toX(bar.low), middle, toX(bar.high), middle)
			label := style(faint, fontSize-3, text.XLeft, text.YCenter)
			if bar.bold {
				label.Color = ink
			}
			c.FillText(label, vg.Point{X: max(toX(bar.high), toX(bar.part)) + 4, Y: middle}, fmt.Sprintf("%.0f%%", 100*bar.part))
		}
		at += g.height() + groupGap
	}
}
