package verify_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/verify"
	"github.com/kgen-project/kgen/runtime/numeric"
	"github.com/kgen-project/kgen/runtime/rope"
)

var encodings = []spec.Encoding{spec.Segment, spec.Raw, spec.Baked}

// small is a spec with small rows, so that cases are fast.
func small(change func(*spec.Spec)) spec.Spec {
	s := spec.Spec{
		Name:  "small",
		Model: spec.Model{QueryHeads: 6, KVHeads: 3, HeadDim: 16, VHeadDim: 16, DType: spec.BF16},
		Rope: rope.Variant{
			Type: "default", Pairing: rope.Half, RotaryDim: 16, AttentionFactor: 1, MaxPosition: 1 << 20,
			Frequencies: []float64{1, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0001},
		},
		Cache: spec.Cache{PageSize: 8, Layout: spec.NHD, Encoding: spec.Segment},
		Masks: spec.Masks{Causal: true},
		Scale: 0.25,
		Kinds: spec.AllKinds,
	}
	if change != nil {
		change(&s)
	}
	return s
}

// run verifies the Go kernels with a fault.
func run(t *testing.T, s spec.Spec, f fault, o verify.Options) verify.Report {
	t.Helper()
	dev := &hostDevice{}
	report, err := verify.Run(t.Context(), dev, s, provider(dev, f), o)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// provider gives the Go kernels with a fault.
func provider(dev *hostDevice, f fault) verify.Provider {
	return func(_ context.Context, s spec.Spec, _ []spec.Kind) (verify.Kernels, error) {
		g := goKernels{dev: dev, spec: s, format: numeric.BF16, keys: 16, fault: f, calls: new(atomic.Int64)}
		if s.Model.DType == spec.FP16 {
			g.format = numeric.FP16
		}
		tile := spec.Tile{Rows: 16, Keys: g.keys}
		return verify.Kernels{Launcher: g, Tiles: map[spec.Kind]spec.Tile{
			spec.Prefill: tile, spec.Extend: tile, spec.Decode: tile, spec.SharedDecode: tile,
		}}, nil
	}
}

func TestRightKernelsPass(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(*spec.Spec)
	}{
		{"plain", nil},
		{"fp16", func(s *spec.Spec) { s.Model.DType = spec.FP16 }},
		{"interleaved, hnd, small page", func(s *spec.Spec) {
			s.Rope.Pairing, s.Cache.Layout, s.Cache.PageSize = rope.Interleaved, spec.HND, 4
		}},
		{"partial rotation with attention factor", func(s *spec.Spec) {
			s.Rope.RotaryDim, s.Rope.Frequencies, s.Rope.AttentionFactor = 8, s.Rope.Frequencies[:4], 1.3
		}},
		{"full rotation with attention factor", func(s *spec.Spec) { s.Rope.AttentionFactor = 1.3 }},
		{"no rotation", func(s *spec.Spec) { s.Rope = rope.Variant{AttentionFactor: 1, MaxPosition: 1 << 20} }},
		{"all masks", func(s *spec.Spec) {
			s.Masks = spec.Masks{Causal: true, Window: 20, SinkTokens: 4, SinkLogits: true, SoftCap: 3}
		}},
		{"not causal", func(s *spec.Spec) { s.Masks.Causal = false }},
		{"few positions", func(s *spec.Spec) { s.Rope.MaxPosition = 100 }},
		{"three positions", func(s *spec.Spec) { s.Rope.MaxPosition = 3 }},
		{"one position", func(s *spec.Spec) { s.Rope.MaxPosition = 1 }},
		{"one query head a KV head, v head dim", func(s *spec.Spec) { s.Model.QueryHeads, s.Model.VHeadDim = 3, 24 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			const cases = 6
			r := run(t, small(c.change), "", verify.Options{Encodings: encodings, Cases: cases, Seed: 7, Work: 5e4})
			if !r.OK() {
				t.Error(r)
			}
			for _, row := range r.Rows {
				if row.Cases != cases {
					t.Errorf("%s %s: %d cases", row.Kind, row.Encoding, row.Cases)
				}
				if row.Encoding == spec.Raw && slices.Contains(spec.TiledKinds, row.Kind) && row.SameBits != cases {
					t.Errorf("%s: the bits of %d cases were compared with baked's", row.Kind, row.SameBits)
				}
			}
		})
	}
}

// Every fault is found, in the kinds that it breaks.
func TestFaultsAreFound(t *testing.T) {
	t.Parallel()
	masks := func(s *spec.Spec) {
		s.Masks = spec.Masks{Causal: true, Window: 20, SinkTokens: 4, SinkLogits: true, SoftCap: 3}
	}
	wide := func(s *spec.Spec) { s.Masks.Window = 4096 }
	capped := func(s *spec.Spec) {
		s.Model.HeadDim, s.Scale, s.Masks.SoftCap = 64, 0.125, 50
	}
	attend := spec.TiledKinds
	chunks := []spec.Kind{spec.Extend, spec.Decode, spec.SharedDecode} // over segments
	final := []spec.Kind{spec.Prefill, spec.Extend, spec.Decode}
	partial := []spec.Kind{spec.Decode, spec.SharedDecode}
	shared := []spec.Kind{spec.SharedDecode}
	lists := []spec.Kind{spec.Schedule}
	pages := []spec.Kind{spec.Append, spec.Materialise}
	for _, c := range []struct {
		fault  fault
		kinds  []spec.Kind
		change func(*spec.Spec)
	}{
		{"angle sign", append(pages, attend...), nil},
		{"not rotated", append(pages, attend...), nil},
		{"pairing", append(pages, attend...), nil},
		{"layout", append(pages, attend...), nil},
		{"high level of the table", append(pages, chunks...), nil},
		{"never two sequences of a chunk", lists, nil},
		{"more tokens than are read once", lists, nil},
		{"parts of an item", lists, nil},
		{"slots of the first token", lists, nil},
		{"nothing spared", lists, nil},
		{"offset ignored", chunks, nil},
		{"offset of the first member", shared, nil},
		{"slot of another member", shared, nil},
		{"position of the first row", []spec.Kind{spec.Prefill, spec.Extend}, nil},
		{"last run missed", chunks, nil},
		{"last key of a tile missed", attend, nil},
		{"ragged tail", chunks, nil},
		{"causal off by one", attend, nil},
		{"page of the run's begin", attend, nil},
		{"no rescale", attend, nil},
		{"group mapping", attend, nil},
		{"row not written", attend, nil},
		{"writes past the row", final, nil},
		{"LSE base 2", final, nil},
		{"partial LSE base e", partial, nil},
		{"different every time", attend, nil},
		{"depends on the batch", chunks, nil},
		{"window off by one", attend, masks},
		{"window off by one", attend, wide},
		{"soft cap", attend, masks},
		{"sink logit", append([]spec.Kind{spec.Merge}, attend...), masks},
		{"last split missed", append(partial, spec.Merge), nil},
		{"LSE of no key", []spec.Kind{spec.Extend, spec.Decode, spec.Merge}, nil},
		{"values one percent too large", attend, nil},
		{"scores one percent too large", []spec.Kind{spec.Extend}, nil}, // cases of hundreds of rows
		{"a sink token too many", attend, masks},
		{"soft cap three percent too high", attend, capped},
		{"output sums of fp16", []spec.Kind{spec.Extend, spec.SharedDecode}, func(s *spec.Spec) { s.Model.DType = spec.FP16 }},
		{"skipped token", []spec.Kind{spec.Append}, nil},
		{"begin of a copy", []spec.Kind{spec.Materialise}, nil},
	} {
		t.Run(string(c.fault), func(t *testing.T) {
			t.Parallel()
			r := run(t, small(c.change), c.fault, verify.Options{Kinds: c.kinds, Cases: 12, Seed: 3, Work: 5e4})
			for _, row := range r.Rows {
				if row.Failed == 0 {
					t.Errorf("not found in %s\n%s", row.Kind, r)
				}
			}
		})
	}
}

// A segment kernel that is only less exact than baked passes case by case, and
// fails by the pooled ratio.
func TestCoarseKernelFailsAgainstBaked(t *testing.T) {
	t.Parallel()
	dev := &hostDevice{}
	mixed := func(ctx context.Context, s spec.Spec, kinds []spec.Kind) (verify.Kernels, error) {
		if s.Cache.Encoding == spec.Baked {
			return provider(dev, "")(ctx, s, kinds)
		}
		return provider(dev, "coarse weights")(ctx, s, kinds)
	}
	r, err := verify.Run(t.Context(), dev, small(nil), mixed, verify.Options{Kinds: []spec.Kind{spec.Extend}, Cases: 12, Work: 1e5})
	if err != nil {
		t.Fatal(err)
	}
	if r.OK() || r.Rows[0].Failed != 0 || r.Failures[0].Case != 0 {
		t.Error(r)
	}
}

func TestCaseRunsAlone(t *testing.T) {
	t.Parallel()
	o := verify.Options{Kinds: []spec.Kind{spec.Extend}, Cases: 8, Seed: 11, Work: 1e5}
	all := run(t, small(nil), "causal off by one", o)
	if len(all.Failures) == 0 {
		t.Fatal("no failure to run again")
	}
	want := all.Failures[len(all.Failures)-1]
	o.Case = want.Case
	alone := run(t, small(nil), "causal off by one", o)
	if len(alone.Failures) != 1 || alone.Failures[0] != want {
		t.Errorf("alone: %+v\nwant:  %+v", alone.Failures, want)
	}
	flags := fmt.Sprintf("again: --kernel extend --encoding segment --seed 11 --case %d\n", want.Case)
	if s := alone.String(); !strings.HasSuffix(s, flags) {
		t.Errorf("%s, want %q at the end", s, flags)
	}
	alone.Target = "sm_80"
	if got, want := alone.Flags(want), strings.TrimSpace(strings.TrimPrefix(flags, "again: "))+" --target sm_80"; got != want {
		t.Errorf("flags %q, want %q", got, want)
	}
}

func TestReportIsDeterministic(t *testing.T) {
	t.Parallel()
	o := verify.Options{Encodings: encodings, Cases: 3, Seed: 5, Work: 1e5}
	first, second := run(t, small(nil), "", o), run(t, small(nil), "", o)
	if !reflect.DeepEqual(first, second) {
		t.Errorf("%+v\n%+v", first, second)
	}
	data, err := json.Marshal(first)
	if err != nil || !strings.Contains(string(data), `"kind":"extend","encoding":"raw","cases":3,"failed":0`) {
		t.Errorf("%s, %v", data, err)
	}
}

// The errors of outputs that are no numbers are none either, and the report is JSON all the same.
func TestReportOfNaN(t *testing.T) {
	text, err := json.Marshal(verify.Report{Rows: []verify.Row{{Kind: spec.Extend, Failed: 1, Error: math.NaN(), Ratio: 1.5, Largest: math.Inf(1)}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"kind":"extend"`, `"failed":1`, `"error":null`, `"baked":0`, `"ratio":1.5`, `"largest":null`, `"lse":0`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
}

func TestRunRefuses(t *testing.T) {
	dev := &hostDevice{}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	s := small(func(s *spec.Spec) { s.Kinds = []spec.Kind{spec.Append, spec.Prefill} })
	for _, c := range []struct {
		name    string
		ctx     context.Context
		provide verify.Provider
		options verify.Options
		want    string
	}{
		{"kind", t.Context(), provider(dev, ""), verify.Options{Kinds: []spec.Kind{spec.Merge}}, `verify small: the spec has no kind "merge"; it has [append prefill]`},
		{"encoding", t.Context(), provider(dev, ""), verify.Options{Encodings: []spec.Encoding{"row"}}, `no encoding "row"`},
		{"case", t.Context(), provider(dev, ""), verify.Options{Cases: 3, Case: 4}, "case 4 of 3"},
		{"cancelled", cancelled, provider(dev, ""), verify.Options{Cases: 3}, context.Canceled.Error()},
		{"build", t.Context(), func(context.Context, spec.Spec, []spec.Kind) (verify.Kernels, error) {
			return verify.Kernels{}, errors.New("no compiler")
		}, verify.Options{}, "verify small: encoding baked: no compiler"},
	} {
		if _, err := verify.Run(c.ctx, dev, s, c.provide, c.options); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
	if len(dev.all()) != 0 {
		t.Errorf("%d allocations are left", len(dev.all()))
	}
}
