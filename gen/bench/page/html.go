package page

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"slices"

	"github.com/kgen-project/kgen/gen/bench"
)

//go:embed page.tmpl
var pageText string

// HTML is the report as one page that needs no other file and no network: charts
// are SVG elements in it, in the reader's light or dark colours.
func HTML(r bench.Report) ([]byte, error) {
	t, err := template.New("page").Parse(pageText)
	if err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	v := view{Report: r, Tiles: tiles(r), Rows: rows(r)}
	for _, name := range r.Peers() {
		v.Peers = append(v.Peers, entry{Name: name, Hue: peerHue(name)})
	}
	for _, row := range r.Rows {
		v.Limits = v.Limits || row.Limit > 0
		v.Regrets = v.Regrets || row.Regret != nil
		v.Sharing = v.Sharing || row.ReadBytes > row.Bytes
		v.Copies = v.Copies || slices.ContainsFunc(row.Against, func(p bench.Peer) bool { return p.Copy != nil })
	}
	roof, ok, err := roofline(r)
	if err != nil {
		return nil, err
	}
	if ok {
		v.Charts = append(v.Charts, roof)
	}
	for _, draw := range []func(bench.Report) ([]chart, error){bars, sweeps} {
		more, err := draw(r)
		if err != nil {
			return nil, err
		}
		v.Charts = append(v.Charts, more...)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, v); err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	return b.Bytes(), nil
}

// view is what the template shows.
type view struct {
	Report                           bench.Report
	Tiles                            []tile
	Charts                           []chart
	Peers                            []entry
	Rows                             []rowView
	Limits, Regrets, Sharing, Copies bool
}

type tile struct{ Name, Value, Note string }

// tiles are the ceilings, and kgen beside each baseline over all cases.
func tiles(r bench.Report) []tile {
	var all []tile
	if c := r.Ceilings; c != nil {
		note := func(rate bench.Rate) string {
			if rate.Given {
				return "given"
			}
			return "measured, " + bench.Percent((rate.High-rate.Low)/2/rate.Median)
		}
		all = append(all,
			tile{"Reads memory at", fmt.Sprintf("%.2f TB/s", c.Read.Median/1e12), note(c.Read)},
			tile{"Multiplies at", fmt.Sprintf("%.0f TFLOP/s", c.Product.Median/1e12), note(c.Product)})
	}
	best := fastest(r.Rows)
	for _, name := range r.Peers() {
		var ratios []float64
		for _, row := range best {
			if p, ok := row.Peer(name); ok {
				ratios = append(ratios, float64(p.Median)/float64(row.Median))
			}
		}
		if len(ratios) == 0 {
			continue
		}
		sum := 0.0
		for _, x := range ratios {
			sum += math.Log(x)
		}
		low, high := extent(ratios)
		all = append(all, tile{"Speed beside " + name, fmt.Sprintf("%.2fx", math.Exp(sum/float64(len(ratios)))),
			fmt.Sprintf("geometric mean of %d cases, %.2f to %.2f", len(ratios), low, high)})
	}
	return all
}

// fastest is a row of each case.
func fastest(rows []bench.Row) []bench.Row {
	var best []bench.Row
	for _, row := range rows {
		i := slices.IndexFunc(best, func(b bench.Row) bool { return b.Case == row.Case })
		switch {
		case i < 0:
			best = append(best, row)
		case row.Median < best[i].Median:
			best[i] = row
		}
	}
	return best
}

type rowView struct {
	Number                                                                     int
	Title, Case                                                                string
	Time, Spread, Range, TFLOPs, TBs, Bytes, ReadBytes, Limit, OfLimit, Regret string
	Peers                                                                      []peerView
}

type peerView struct{ Time, Spread, Ratio, Copy, Missing string }

func rows(r bench.Report) []rowView {
	var all []rowView
	peers := r.Peers()
	megabytes := func(n float64) string { return fmt.Sprintf("%.4g", n/1e6) }
	for i, row := range r.Rows {
		v := rowView{
			Number: i + 1, Title: caseTitle(row.Parsed()), Case: row.Case,
			Time: bench.Microseconds(row.Median), Spread: bench.Percent(row.Spread()),
			Range:  bench.Microseconds(row.Low) + " to " + bench.Microseconds(row.High),
			TFLOPs: fmt.Sprintf("%.1f", row.TFLOPs), TBs: fmt.Sprintf("%.2f", row.TBs), Bytes: megabytes(row.Bytes), Regret: "-",
		}
		if row.Method != "" {
			v.Title += ", " + row.Method
		}
		if row.ReadBytes > row.Bytes {
			v.ReadBytes = megabytes(row.ReadBytes)
		}
		if row.Limit > 0 {
			v.Limit, v.OfLimit = bench.Microseconds(row.Limit), fmt.Sprintf("%.0f%%", 100*row.Fraction)
		}
		if row.Regret != nil {
			v.Regret = fmt.Sprintf("%.1f%%", 100**row.Regret)
		}
		for _, name := range peers {
			cell := peerView{Missing: "-"}
			if j := slices.IndexFunc(row.Against, func(p bench.Peer) bool { return p.Name == name }); j >= 0 {
				if p := row.Against[j]; p.Error != "" {
					cell.Missing = "none"
				} else {
					cell = peerView{Time: bench.Microseconds(p.Median), Spread: bench.Percent(p.Spread()), Ratio: fmt.Sprintf("%.2fx", p.Ratio)}
					if p.Copy != nil && p.Name != bench.PeerCopyBaked {
						cell.Copy = bench.Microseconds(p.Copy.Median)
					}
				}
			}
			v.Peers = append(v.Peers, cell)
		}
		all = append(all, v)
	}
	return all
}
