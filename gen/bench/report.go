package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// ReportSchema is the version of the report that this package reads and writes.
const ReportSchema = 1

// Report is one run of `kgen bench`, with what it takes to repeat it.
type Report struct {
	Schema  int       `json:"schema"` // ReportSchema
	Kgen    string    `json:"kgen"`   // version
	Command string    `json:"command"`
	Date    time.Time `json:"date"`

	Spec     string        `json:"spec"`
	Digest   string        `json:"spec_digest"`
	Heads    [2]int        `json:"heads"`    // query heads, KV heads
	HeadDim  [2]int        `json:"head_dim"` // of keys, of values
	DType    spec.DType    `json:"dtype"`
	Encoding spec.Encoding `json:"encoding"`
	PageSize int           `json:"page_size"` // tokens
	Layout   spec.Layout   `json:"layout"`

	Device          string `json:"device"`
	Driver          string `json:"driver"`
	Compute         string `json:"compute_capability"`
	Multiprocessors int    `json:"multiprocessors"`
	L2Bytes         int64  `json:"l2_bytes"`
	MemoryBytes     int64  `json:"memory_bytes"`
	Torch           string `json:"torch,omitempty"` // version, where it is a baseline

	Repeats  int       `json:"repeats"`
	Seed     uint64    `json:"seed"`
	Fixed    bool      `json:"fixed_shares,omitempty"` // blocks had their shares of the work from the start
	Parts    int       `json:"parts,omitempty"`        // of an item, as asked for; 0: as many as were expected to be the fastest
	Layers   int       `json:"layers,omitempty"`       // of a graph, of which a time is a layer's share; 0: it is attend and merge alone
	Clean    bool      `json:"clean_l2,omitempty"`     // the L2 cache was full of what had been read, not written
	Ceilings *Ceilings `json:"ceilings,omitempty"`
	Rows     []Row     `json:"rows"`
}

// NewReport is a report without rows.
func NewReport(s spec.Spec, device cuda.Info, o Options) Report {
	r := Report{
		Schema: ReportSchema, Spec: s.Name, Digest: spec.Digest(s),
		Heads: [2]int{s.Model.QueryHeads, s.Model.KVHeads}, HeadDim: [2]int{s.Model.HeadDim, s.Model.VHeadDim}, DType: s.Model.DType,
		Encoding: s.Cache.Encoding, PageSize: s.Cache.PageSize, Layout: s.Cache.Layout,
		Device: device.Name, Driver: device.Driver, Compute: fmt.Sprintf("%d.%d", device.Major, device.Minor),
		Multiprocessors: device.Multiprocessors, L2Bytes: device.L2Bytes, MemoryBytes: device.MemoryBytes,
		Repeats: o.Repeats, Seed: o.Seed, Fixed: o.FixedShares, Parts: o.PartsPerItem, Rows: []Row{},
	}
	if o.Layers > 1 {
		r.Layers = o.Layers
	}
	return r
}

// ParseReport reads a report that was written as JSON. It refuses unknown fields,
// other schema versions, no rows, and rows without a time.
func ParseReport(data []byte) (Report, error) {
	type header struct { // its name is in messages
		Schema int `json:"schema"`
	}
	var version header
	if err := json.Unmarshal(data, &version); err != nil {
		return Report{}, fmt.Errorf("bench report: it is not what kgen bench --json prints: %w", err)
	}
	if version.Schema != ReportSchema {
		return Report{}, fmt.Errorf("bench report: schema %d, this kgen reads %d: it is made by kgen bench --json", version.Schema, ReportSchema)
	}
	var r Report
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return Report{}, fmt.Errorf("bench report: %w", err)
	}
	if r.Spec == "" || len(r.Rows) == 0 {
		return Report{}, errors.New("bench report: it has no spec, or no rows: it is not what kgen bench --json prints")
	}
	for i, row := range r.Rows {
		if _, err := ParseCase(row.Case); err != nil {
			return Report{}, fmt.Errorf("bench report: row %d: %w", i+1, err)
		}
		if row.Median <= 0 {
			return Report{}, fmt.Errorf("bench report: row %d, %s: no time", i+1, row.Case)
		}
	}
	return r, nil
}

// Label is the case, and the method where there are several.
func (r Row) Label() string {
	if r.Method == "" || r.Method == MethodPlain {
		return r.Case
	}
	return r.Case + ", " + r.Method
}

// Parsed is the row's case, the zero Case where it is none.
func (r Row) Parsed() Case {
	c, _ := ParseCase(r.Case)
	return c
}

// Peer is the baseline of a name, if it has a time.
func (r Row) Peer(name string) (Peer, bool) {
	i := slices.IndexFunc(r.Against, func(p Peer) bool { return p.Name == name && p.Error == "" })
	if i < 0 {
		return Peer{}, false
	}
	return r.Against[i], true
}

// Peers is the names of all rows' baselines, as they come.
func (r Report) Peers() []string {
	var names []string
	for _, row := range r.Rows {
		for _, p := range row.Against {
			if !slices.Contains(names, p.Name) {
				names = append(names, p.Name)
			}
		}
	}
	return names
}

// Table is the rows for people: times in microseconds with their [Times.Spread],
// each baseline's with its ratio to kgen's. MB are the fewest bytes possible, MB read
// those of the work lists.
func (r Report) Table() (heading []string, rows [][]string) {
	limits := slices.ContainsFunc(r.Rows, func(row Row) bool { return row.Limit > 0 })
	regrets := slices.ContainsFunc(r.Rows, func(row Row) bool { return row.Regret != nil })
	sharing := slices.ContainsFunc(r.Rows, func(row Row) bool { return row.ReadBytes > row.Bytes })
	peers := r.Peers()
	heading = []string{"case", "time (µs)", "spread", "TFLOP/s", "TB/s"}
	if sharing {
		heading = append(heading, "MB", "MB read")
	}
	if limits {
		heading = append(heading, "limit (µs)", "of limit")
	}
	if regrets {
		heading = append(heading, "regret")
	}
	heading = append(heading, peers...)
	for _, row := range r.Rows {
		cells := []string{row.Label(), Microseconds(row.Median), Percent(row.Spread()), fmt.Sprintf("%.1f", row.TFLOPs), fmt.Sprintf("%.2f", row.TBs)}
		if sharing {
			cells = append(cells, fmt.Sprintf("%.0f", row.Bytes/1e6), fmt.Sprintf("%.0f", row.ReadBytes/1e6))
		}
		if limits {
			cells = append(cells, Microseconds(row.Limit), fmt.Sprintf("%.2f", row.Fraction))
		}
		if regrets {
			cell := "-"
			if row.Regret != nil {
				cell = fmt.Sprintf("%.1f%%", 100**row.Regret)
			}
			cells = append(cells, cell)
		}
		for _, name := range peers {
			cells = append(cells, row.peerCell(name))
		}
		rows = append(rows, cells)
	}
	return heading, rows
}

func (r Row) peerCell(name string) string {
	i := slices.IndexFunc(r.Against, func(p Peer) bool { return p.Name == name })
	if i < 0 {
		return "-"
	}
	p := r.Against[i]
	if p.Error != "" {
		return "none"
	}
	cell := fmt.Sprintf("%s %s, %.2fx", Microseconds(p.Median), Percent(p.Spread()), p.Ratio)
	if p.Copy != nil && p.Name != PeerCopyBaked {
		cell += ", copies " + Microseconds(p.Copy.Median)
	}
	return cell
}

// Microseconds is a time with three digits or more.
func Microseconds(d time.Duration) string {
	switch us := float64(d.Nanoseconds()) / 1e3; {
	case us < 10:
		return fmt.Sprintf("%.2f", us)
	case us < 1000:
		return fmt.Sprintf("%.1f", us)
	default:
		return fmt.Sprintf("%.0f", us)
	}
}

// Percent is a [Times.Spread].
func Percent(spread float64) string { return fmt.Sprintf("±%.1f%%", 100*spread) }

// About is what was measured, in lines.
func (r Report) About() []string {
	shape := fmt.Sprintf("%s, %d query heads, %d KV heads, head dim %d", r.DType, r.Heads[0], r.Heads[1], r.HeadDim[0])
	if r.HeadDim[0] != r.HeadDim[1] {
		shape += fmt.Sprintf(" (values %d)", r.HeadDim[1])
	}
	lines := []string{
		fmt.Sprintf("%s (digest %s): %s; encoding %s, pages of %d tokens in shuffled order, %s", r.Spec, r.Digest[:min(12, len(r.Digest))], shape, r.Encoding, r.PageSize, r.Layout),
		fmt.Sprintf("%s, driver %s, compute capability %s; kgen %s; %s", r.Device, r.Driver, r.Compute, r.Kgen, r.Date.UTC().Format("2006-01-02 15:04 UTC")),
	}
	if r.Torch != "" {
		lines = append(lines, r.Torch+", on contiguous keys that are already rotated")
	}
	if r.Ceilings != nil {
		lines = append(lines, "Ceilings: "+r.Ceilings.String())
	}
	times, cold := "launches of a replayed graph", "a cold L2 cache, full of writes, merge included"
	switch {
	case r.Layers > 1:
		times, cold = "replays of a graph", fmt.Sprintf("%d layers, each with KV of its own: of a layer's append, attend and merge", r.Layers)
	case r.Clean:
		cold = "a cold L2 cache, full of reads, merge included"
	}
	if r.Fixed {
		cold += ", each block's share of the work fixed from the start"
	}
	if r.Parts > 0 {
		cold += fmt.Sprintf(", up to %d parts in an item", r.Parts)
	}
	return append(lines, fmt.Sprintf("Medians of %d %s with %s; ± is half of what lies between the 10th and the 90th percentile", r.Repeats, times, cold))
}

// String is both rates with their spread.
func (c Ceilings) String() string {
	part := func(what string, r Rate, unit string) string {
		text := fmt.Sprintf("%s %.4g %s", what, r.Median/1e12, unit)
		if r.Given {
			return text + " (given)"
		}
		return text + fmt.Sprintf(" %s", Percent((r.High-r.Low)/2/r.Median))
	}
	return part("read", c.Read, "TB/s") + ", " + part("product", c.Product, "TFLOP/s")
}

// Notes are what the table has no room for, a line each: what a baseline did in
// place of the case, and why one has no time.
func (r Report) Notes() []string {
	var lines []string
	for _, row := range r.Rows {
		for _, p := range row.Against {
			switch {
			case p.Error != "":
				lines = append(lines, fmt.Sprintf("%s: %s: none: %s", row.Label(), p.Name, p.Error))
			case p.Note != "":
				lines = append(lines, fmt.Sprintf("%s: %s: %s", row.Label(), p.Name, p.Note))
			}
		}
	}
	return lines
}
