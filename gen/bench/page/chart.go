package page

import (
	"bytes"
	"fmt"
	"html/template"
	"image/color"
	"math"
	"regexp"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// hue is a colour that the page's style sheet decides, for light and for dark.
type hue int

// The style sheet has a variable for each.
const (
	ink hue = iota
	faint
	grid
	limit
	kgen
	shared
	bitwise
	baked
	copyBaked
	lru
	raw
	flash
	cudnn
	other
)

var hueNames = []string{"ink", "faint", "grid", "limit", "kgen", "shared", "bitwise", "baked", "copy", "lru", "raw", "flash", "cudnn", "other"}

// RGBA gives each hue a place of its own among the colours that are almost black, which
// [render] turns into the style sheet's.
func (h hue) RGBA() (r, g, b, a uint32) { return color.RGBA{1, 1, uint8(h) + 1, 255}.RGBA() }

// CSS is the hue in a style sheet.
func (h hue) CSS() template.CSS { return template.CSS("var(--" + hueNames[h] + ")") }

const fontSize = 12

func style(h hue, size float64, x text.XAlignment, y text.YAlignment) text.Style {
	return text.Style{
		Color: h, Font: font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Points(size)},
		XAlign: x, YAlign: y, Handler: plot.DefaultTextHandler,
	}
}

// newPlot is empty, in the page's style.
func newPlot(x, y string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.Transparent
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Color, axis.Tick.LineStyle.Color = faint, faint
		axis.Padding = 0
		axis.Label.Padding = 4
	}
	p.X.Label.TextStyle = style(ink, fontSize, text.XCenter, text.YBottom)
	p.Y.Label.TextStyle = style(ink, fontSize, text.XCenter, text.YBottom)
	p.X.Tick.Label = style(faint, fontSize-1, text.XCenter, text.YTop)
	p.Y.Tick.Label = style(faint, fontSize-1, text.XRight, text.YCenter)
	p.X.Label.Text, p.Y.Label.Text = x, y
	return p
}

// widths are those that each chart is drawn at; the style sheet shows the one that
// suits the window.
var widths = []struct {
	Class string
	width float64
}{{"wide", 1000}, {"mid", 680}, {"narrow", 360}}

// chart is one chart at every width.
type chart struct {
	Title, Text string
	Legend      []entry
	Drawings    []drawing
}

type entry struct {
	Name  string
	Hue   hue
	Shape string // line, dash, bar, or a marker's
}

type drawing struct {
	Class string
	Width float64
	SVG   template.HTML
}

// drawAll draws a plot for every width.
func (c *chart) drawAll(of func(width float64) (p *plot.Plot, height float64)) error {
	for _, w := range widths {
		p, height := of(w.width)
		svg, err := render(p, w.width, height, c.Title)
		if err != nil {
			return fmt.Errorf("page: %s: %w", c.Title, err)
		}
		c.Drawings = append(c.Drawings, drawing{w.Class, w.width, svg})
	}
	return nil
}

var (
	opening = regexp.MustCompile(`(?s)^.*?<svg[^>]*>`)
	hues    = regexp.MustCompile(`#0101([0-9A-F]{2})`)
	family  = regexp.MustCompile(`font-family:[^;"]*;font-variant:[^;"]*;font-weight:normal;font-style:normal;?`)
	spaces  = regexp.MustCompile(`>\s+<`)
)

// render draws a plot as an SVG element whose colours and fonts the page decides.
func render(p *plot.Plot, width, height float64, title string) (template.HTML, error) {
	canvas := vgsvg.New(vg.Length(width), vg.Length(height))
	const margin = 8
	p.Draw(draw.Crop(draw.New(canvas), 0, -margin, 0, -margin))
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return "", err
	}
	svg := opening.ReplaceAllString(b.String(), "")
	svg = family.ReplaceAllString(svg, "")
	svg = spaces.ReplaceAllString(svg, "><")
	var unknown error
	svg = hues.ReplaceAllStringFunc(svg, func(found string) string {
		var i int
		if _, err := fmt.Sscanf(found, "#0101%02X", &i); err != nil || i < 1 || i > len(hueNames) {
			unknown = fmt.Errorf("colour %s is none of the style sheet", found)
			return found
		}
		return string(hue(i - 1).CSS())
	})
	head := fmt.Sprintf(`<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, width, height, template.HTMLEscapeString(title))
	return template.HTML(head + strings.TrimSpace(svg)), unknown
}

// marks are ticks at given places.
type marks []plot.Tick

// Ticks is those between two values.
func (m marks) Ticks(low, high float64) []plot.Tick {
	var all []plot.Tick
	for _, t := range m {
		if t.Value >= low*(1-1e-9) && t.Value <= high*(1+1e-9) {
			all = append(all, t)
		}
	}
	return all
}

// decades are ticks at 1, 2 and 5 times powers of ten, or at the powers alone where
// those are many.
func decades(low, high float64) marks {
	steps := []float64{1, 2, 5}
	if high/low > 2e3 {
		steps = steps[:1]
	}
	var m marks
	for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
		for _, s := range steps {
			v := s * math.Pow(10, e)
			m = append(m, plot.Tick{Value: v, Label: number(v)})
		}
	}
	return m
}

// number is short: 20000 is 20k.
func number(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.3gM", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%.3gk", v/1e3)
	default:
		return fmt.Sprintf("%.4g", v)
	}
}

// tokens is a number of tokens: 8192 is 8k.
func tokens(n int) string {
	if n >= 1024 && n%1024 == 0 {
		return fmt.Sprintf("%dk", n/1024)
	}
	return fmt.Sprint(n)
}

// lines are the grid of an axis each, at its ticks.
type lines struct{ x, y bool }

func (g lines) Plot(c draw.Canvas, p *plot.Plot) {
	toX, toY := p.Transforms(&c)
	s := draw.LineStyle{Color: grid, Width: 0.7}
	if g.x {
		for _, t := range p.X.Tick.Marker.Ticks(p.X.Min, p.X.Max) {
			c.StrokeLine2(s, toX(t.Value), c.Min.Y, toX(t.Value), c.Max.Y)
		}
	}
	if g.y {
		for _, t := range p.Y.Tick.Marker.Ticks(p.Y.Min, p.Y.Max) {
			c.StrokeLine2(s, c.Min.X, toY(t.Value), c.Max.X, toY(t.Value))
		}
	}
}

// peerHue is the colour of a baseline, the same in every chart.
func peerHue(name string) hue {
	for _, p := range []struct {
		name string
		hue  hue
	}{{"copy + baked", copyBaked}, {"baked", baked}, {"LRU of copies", lru}, {"raw", raw}, {"torch FA2", flash}, {"torch cuDNN", cudnn}} {
		if p.name == name {
			return p.hue
		}
	}
	return other
}

func extent(values []float64) (low, high float64) {
	return slices.Min(values), slices.Max(values)
}
