package page

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/kgen-project/kgen/gen/bench"
	"github.com/kgen-project/kgen/gen/spec"
)

// roofline has a point for each row: operations a second over operations a byte.
func roofline(r bench.Report) (chart, bool, error) {
	if r.Ceilings == nil || len(r.Rows) == 0 {
		return chart{}, false, nil
	}
	read, product := r.Ceilings.Read.Median/1e12, r.Ceilings.Product.Median/1e12
	c := chart{Title: "Roofline", Text: "Numbers are rows of the table. On the line a kernel does all that the device can: left of its bend memory is the limit, right of it the matrix products."}
	var points []point
	xs, ys := []float64{product / read}, []float64{product}
	used := map[group]bool{}
	few := len(r.Rows) <= fewRows
	for i, row := range r.Rows {
		x := row.Operations / row.Bytes
		f := familyOf(row)
		used[f] = true
		q := point{x: x, y: row.TFLOPs, family: f}
		if few || usual(row) {
			q.label = fmt.Sprint(i + 1)
		}
		points = append(points, q)
		xs, ys = append(xs, x), append(ys, row.TFLOPs)
	}
	for _, f := range []group{prefills, extends, decodes, sharings} {
		if used[f] {
			c.Legend = append(c.Legend, entry{f.name(), f.hue(), f.shape()})
		}
	}
	c.Legend = append(c.Legend, entry{"what the device can do", limit, "dash"})
	lowX, highX := extent(xs)
	lowY, highY := extent(ys)
	err := c.drawAll(func(width float64) (*plot.Plot, float64) {
		p := newPlot("operations a byte (FLOP/B)", "TFLOP/s")
		p.X.Min, p.X.Max = lowX/2, highX*3
		p.Y.Min, p.Y.Max = min(lowY, read*lowX)/2, highY*2
		p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
		p.X.Tick.Marker, p.Y.Tick.Marker = decades(p.X.Min, p.X.Max), decades(p.Y.Min, p.Y.Max)
		if width < 500 {
			p.X.Tick.Marker = decades(1e-3*p.X.Max, 2.1*p.X.Max) // the powers alone
		}
		line := roof{read, product}
		p.Add(lines{true, true}, line, cloud{points, line})
		return p, max(340, min(520, width*0.55))
	})
	return c, true, err
}

// group tells points of the roofline apart.
type group int

const (
	prefills group = iota
	extends
	decodes
	sharings
)

func familyOf(row bench.Row) group {
	switch c := row.Parsed(); {
	case c.Sharing.Documents > 0:
		return sharings
	case c.Kind == spec.Prefill:
		return prefills
	case c.Kind == spec.Extend:
		return extends
	}
	return decodes
}

func (f group) name() string {
	return []string{"prefill", "extend", "decode", "decode of shared documents"}[f]
}
func (f group) hue() hue      { return []hue{cudnn, copyBaked, kgen, lru}[f] }
func (f group) shape() string { return []string{"square", "triangle", "circle", "diamond"}[f] }
func (f group) glyph() draw.GlyphDrawer {
	return []draw.GlyphDrawer{draw.BoxGlyph{}, draw.PyramidGlyph{}, draw.CircleGlyph{}, diamond{}}[f]
}

type diamond struct{}

func (diamond) DrawGlyph(c *draw.Canvas, s draw.GlyphStyle, at vg.Point) {
	r := s.Radius * 1.15
	c.FillPolygon(s.Color, []vg.Point{{X: at.X - r, Y: at.Y}, {X: at.X, Y: at.Y + r}, {X: at.X + r, Y: at.Y}, {X: at.X, Y: at.Y - r}})
}

// roof is what a device can do, with its rates written on it.
type roof struct{ read, product float64 }

// corners are the line's, on the canvas.
func (r roof) corners(c draw.Canvas, p *plot.Plot) (from, bend, to vg.Point) {
	toX, toY := p.Transforms(&c)
	at := func(x, y float64) vg.Point { return vg.Point{X: toX(x), Y: toY(y)} }
	x := max(p.X.Min, p.Y.Min/r.read)
	return at(x, r.read*x), at(r.product/r.read, r.product), at(p.X.Max, r.product)
}

func (r roof) Plot(c draw.Canvas, p *plot.Plot) {
	from, to, end := r.corners(c, p)
	c.StrokeLines(draw.LineStyle{Color: limit, Width: 1.5, Dashes: []vg.Length{5, 3}}, []vg.Point{from, to, end})
	label := style(limit, fontSize, text.XRight, text.YBottom)
	c.FillText(label, vg.Point{X: end.X, Y: end.Y + 4}, fmt.Sprintf("%.0f TFLOP/s", r.product))
	// Along the slope, above it.
	label.XAlign, label.Rotation = text.XCenter, math.Atan2(float64(to.Y-from.Y), float64(to.X-from.X))
	c.FillText(label, vg.Point{X: (from.X + to.X) / 2, Y: (from.Y+to.Y)/2 + 4}, fmt.Sprintf("%.2f TB/s", r.read))
}

type point struct {
	x, y   float64
	label  string // "": none
	family group
}

// cloud draws points, and labels to the right of those that are near each other, no
// label over another, a point or the roof.
type cloud struct {
	points []point
	roof   roof
}

func (all cloud) Plot(c draw.Canvas, p *plot.Plot) {
	toX, toY := p.Transforms(&c)
	const near, away = 26, 14 // in pixels: of one column; from the points to the labels
	label := style(ink, fontSize-2, text.XLeft, text.YCenter)
	sorted := slices.Clone(all.points)
	slices.SortFunc(sorted, func(a, b point) int { return cmp.Compare(a.x, b.x) })
	var t taken
	for _, q := range sorted {
		t.points = append(t.points, vg.Point{X: toX(q.x), Y: toY(q.y)})
	}
	from, bend, end := all.roof.corners(c, p)
	for i := range 100 {
		part := vg.Length(i) / 100
		t.points = append(t.points, vg.Point{X: from.X + part*(bend.X-from.X), Y: from.Y + part*(bend.Y-from.Y)}, vg.Point{X: bend.X + part*(end.X-bend.X), Y: bend.Y})
	}
	for rest := sorted; len(rest) > 0; {
		n := 1
		for n < len(rest) && toX(rest[n].x)-toX(rest[0].x) < near {
			n++
		}
		column := slices.DeleteFunc(slices.Clone(rest[:n]), func(q point) bool { return q.label == "" })
		at := toX(rest[n-1].x) + away
		rest = rest[n:]
		slices.SortStableFunc(column, func(a, b point) int { return cmp.Compare(b.y, a.y) })
		for _, q := range column {
			place := t.free(vg.Point{X: at, Y: toY(q.y)}, c.Min.Y+5, c.Max.Y-5)
			t.labels = append(t.labels, place)
			c.StrokeLine2(draw.LineStyle{Color: faint, Width: 0.4}, toX(q.x), toY(q.y), place.X-2, place.Y)
			c.FillText(label, place, q.label)
		}
	}
	for _, q := range sorted {
		c.DrawGlyph(draw.GlyphStyle{Color: q.family.hue(), Radius: 4, Shape: q.family.glyph()}, vg.Point{X: toX(q.x), Y: toY(q.y)})
	}
}

// taken is where something is drawn: points by their centres, labels by their left ends.
type taken struct{ points, labels []vg.Point }

// free is the place nearest to the wanted one, straight above or below it, where a
// label hides nothing.
func (t taken) free(want vg.Point, low, high vg.Length) vg.Point {
	const wide, tall, point = 15, 10.5, 5 // of a label; of half a point
	hit := func(all []vg.Point, y, left, far vg.Length) bool {
		return slices.ContainsFunc(all, func(o vg.Point) bool {
			return o.X > want.X-left && o.X < want.X+wide+2 && o.Y > y-far && o.Y < y+far
		})
	}
	for by := vg.Length(0); by < high-low; by += 0.5 {
		for _, y := range []vg.Length{want.Y - by, want.Y + by} {
			if y >= low && y <= high && !hit(t.points, y, point, tall/2+point-1) && !hit(t.labels, y, wide, tall) {
				return vg.Point{X: want.X, Y: y}
			}
		}
	}
	return want
}
