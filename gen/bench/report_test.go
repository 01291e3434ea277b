package bench

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kgen-project/kgen/runtime/cuda"
)

func TestReportReadsBack(t *testing.T) {
	r := NewReport(small(t), cuda.Info{Name: "a device", Driver: "1.2", Major: 9}, Options{Repeats: 3, Seed: 4})
	r.Kgen, r.Command, r.Date = "0", "kgen bench x.yaml", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r.Ceilings = &Ceilings{Read: Given(1e12), Product: Rate{Median: 2, Low: 1, High: 3}}
	times := Times{Median: 30, Fastest: 10, Slowest: 50, Low: 20, High: 40}
	r.Rows = []Row{{Case: "decode:1x1/64", Times: times, Against: []Peer{{Name: "raw", Times: times, Ratio: 1, Copy: &times}, {Name: "x", Error: "why"}}}}
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseReport(data)
	if diff := cmp.Diff(r, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	for change, want := range map[string]string{
		`"schema":1→"schema":7`:                    "schema 7, this kgen reads 1",
		`"schema":1→"schema":"x"`:                  "cannot unmarshal",
		`"seed":4→"sead":4`:                        "unknown field",
		`"case":"decode:1x1/64"→"case":"decode:1"`: "row 1: case \"decode:1\"",
		`"median_ns":30→"median_ns":0`:             "row 1, decode:1x1/64: no time",
		`"spec":"small"→"spec":""`:                 "it has no spec, or no rows",
		string(data) + `→{"schema":1}`:             "it has no spec, or no rows",
	} {
		from, to, _ := strings.Cut(change, "→")
		if _, err := ParseReport([]byte(strings.Replace(string(data), from, to, 1))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q in it", change, err, want)
		}
	}
}

func TestTimes(t *testing.T) {
	var all []time.Duration
	for i := range 20 {
		all = append(all, time.Duration(100+(i*7)%20))
	}
	got := timesOf(all)
	if want := (Times{Median: 110, Fastest: 100, Slowest: 119, Low: 102, High: 117}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := got.Spread(); got != 7.5/110 {
		t.Errorf("spread %g", got)
	}
	if got, want := timesOf([]time.Duration{5}), (Times{5, 5, 5, 5, 5}); got != want {
		t.Errorf("of one: %+v", got)
	}
}
