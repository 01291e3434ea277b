package page

import (
	"fmt"
	"math"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/kgen-project/kgen/gen/bench"
	"github.com/kgen-project/kgen/gen/spec"
)

// sweeps are charts of rows that differ in one number alone: the length of the
// context, or Zipf's exponent.
func sweeps(r bench.Report) ([]chart, error) {
	var charts []chart
	for _, s := range collect(r.Rows) {
		if len(s.at) < 3 {
			continue
		}
		c, err := s.chart()
		if err != nil {
			return nil, err
		}
		charts = append(charts, c)
	}
	return charts, nil
}

// sweep is rows that differ in one number.
type sweep struct {
	key  bench.Case // with that number left out
	rows []bench.Row
	at   []float64 // different values of the number
}

func collect(rows []bench.Row) []*sweep {
	var all []*sweep
	for _, row := range rows {
		key, x := row.Parsed(), 0.0
		switch {
		case key.Sharing.Apart || key.Kind == spec.Prefill:
			continue
		case key.Sharing.Documents > 0:
			x = key.Sharing.Zipf
			key.Sharing.Zipf = 0
		default:
			x = float64(key.Context)
			key.Context = 0
		}
		i := slices.IndexFunc(all, func(s *sweep) bool { return s.key == key })
		if i < 0 {
			i = len(all)
			all = append(all, &sweep{key: key})
		}
		all[i].rows = append(all[i].rows, row)
		if !slices.Contains(all[i].at, x) {
			all[i].at = append(all[i].at, x)
		}
	}
	return all
}

func (s *sweep) x(row bench.Row) float64 {
	if c := row.Parsed(); c.Sharing.Documents > 0 {
		return c.Sharing.Zipf
	} else {
		return float64(c.Context)
	}
}

// series is one way to compute, over the sweep.
type series struct {
	entry
	points []sample
}

type sample struct{ x, y, low, high float64 } // y in microseconds

func (s *sweep) series() []series {
	var all []series
	add := func(e entry, x float64, t bench.Times) {
		i := slices.IndexFunc(all, func(other series) bool { return other.entry == e })
		if i < 0 {
			i = len(all)
			all = append(all, series{entry: e})
		}
		us := func(d time.Duration) float64 { return float64(d) / 1e3 }
		all[i].points = append(all[i].points, sample{x, us(t.Median), us(t.Low), us(t.High)})
	}
	for i, row := range s.rows {
		x := s.x(row)
		name, h := methodName(row)
		add(entry{name, h, "line"}, x, row.Times)
		if i > 0 && s.rows[i-1].Case == row.Case { // another method, with the same limit and baselines
			continue
		}
		if row.Limit > 0 {
			add(entry{"limit", limit, "dash"}, x, bench.Times{Median: row.Limit, Low: row.Limit, High: row.Limit})
		}
		for _, p := range row.Against {
			if p.Error == "" {
				add(entry{p.Name, peerHue(p.Name), "line"}, x, p.Times)
			}
		}
	}
	for _, of := range all {
		slices.SortFunc(of.points, func(a, b sample) int {
			if a.x < b.x {
				return -1
			}
			return 1
		})
	}
	// The limit and kgen first in the legend, and drawn last, above the others.
	slices.SortStableFunc(all, func(a, b series) int { return rank(b.Hue) - rank(a.Hue) })
	return all
}

func rank(h hue) int {
	switch h {
	case kgen, shared, bitwise:
		return int(h - kgen)
	case limit:
		return 3
	}
	return 4
}

func (s *sweep) chart() (chart, error) {
	k := s.key
	var c chart
	zipf := k.Sharing.Documents > 0
	if zipf {
		c.Title = fmt.Sprintf("Decode over Zipf's exponent, B=%d", k.Batch)
		c.Text = fmt.Sprintf("One decode step; each sequence holds %d of %d documents of %d tokens and %d to %d tokens of its own. The further right, the more sequences hold the same documents. "+
			"The limit reads each document once. Error bars: 10th to 90th percentile.", k.Sharing.Held, k.Sharing.Documents, k.Sharing.Tokens, k.Sharing.OwnFrom, k.Sharing.OwnTo)
	} else {
		c.Title = fmt.Sprintf("Extend by %d tokens over the length of the context, B=%d", k.Query, k.Batch)
		if k.Kind == spec.Decode {
			c.Title = fmt.Sprintf("Decode over the length of the context, B=%d", k.Batch)
		}
		c.Text = "Both axes are logarithmic. Error bars: 10th to 90th percentile."
	}
	all := s.series()
	var ys []float64
	for _, of := range all {
		for _, p := range of.points {
			ys = append(ys, p.low, p.high)
		}
	}
	for _, of := range slices.Backward(all) {
		c.Legend = append(c.Legend, of.entry)
	}
	lowX, highX := extent(s.at)
	lowY, highY := extent(ys)
	err := c.drawAll(func(width float64) (*plot.Plot, float64) {
		p := newPlot("tokens of context", "time (µs)")
		p.Y.Min, p.Y.Max = lowY/1.3, highY*1.3
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, decades(p.Y.Min, p.Y.Max)
		var ticks marks
		if zipf {
			p.X.Label.Text = "Zipf's exponent"
			p.X.Min, p.X.Max = lowX-0.08, highX+0.08
			p.Y.Min, p.Y.Max, p.Y.Scale = 0, highY*1.05, plot.LinearScale{}
			p.Y.Tick.Marker = evenly(p.Y.Max)
			for _, x := range s.at {
				ticks = append(ticks, plot.Tick{Value: x, Label: fmt.Sprintf("%g", x)})
			}
		} else {
			p.X.Scale = plot.LogScale{}
			p.X.Min, p.X.Max = lowX/1.15, highX*1.15
			for _, x := range s.at {
				ticks = append(ticks, plot.Tick{Value: x, Label: tokens(int(x))})
			}
		}
		p.X.Tick.Marker = ticks
		p.Add(lines{true, true})
		for _, of := range all {
			p.Add(of)
		}
		return p, max(320, min(460, width*0.45))
	})
	return c, err
}

// evenly are ticks from 0 on, four to eight.
func evenly(most float64) marks {
	step := math.Pow(10, math.Floor(math.Log10(most/4)))
	for _, times := range []float64{5, 2} {
		if most/(step*times) >= 4 {
			step *= times
			break
		}
	}
	var m marks
	for i := 0; float64(i)*step <= most; i++ {
		m = append(m, plot.Tick{Value: float64(i) * step, Label: number(float64(i) * step)})
	}
	return m
}

func (s series) Plot(c draw.Canvas, p *plot.Plot) {
	toX, toY := p.Transforms(&c)
	line := draw.LineStyle{Color: s.Hue, Width: 1.5}
	switch s.Hue {
	case limit:
		line.Dashes = []vg.Length{5, 3}
	case kgen, shared, bitwise:
		line.Width = 2.5
	}
	var path plotter.XYs
	for _, q := range s.points {
		path = append(path, plotter.XY{X: q.x, Y: q.y})
	}
	l := plotter.Line{XYs: path, LineStyle: line}
	l.Plot(c, p)
	if s.Hue == limit {
		return
	}
	for _, q := range s.points {
		x, cap := toX(q.x), vg.Length(3)
		bar := draw.LineStyle{Color: s.Hue, Width: 1}
		c.StrokeLine2(bar, x, toY(q.low), x, toY(q.high))
		c.StrokeLine2(bar, x-cap, toY(q.low), x+cap, toY(q.low))
		c.StrokeLine2(bar, x-cap, toY(q.high), x+cap, toY(q.high))
		c.DrawGlyph(draw.GlyphStyle{Color: s.Hue, Radius: 3, Shape: draw.CircleGlyph{}}, vg.Point{X: x, Y: toY(q.y)})
	}
}
