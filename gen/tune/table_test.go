package tune

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kgen-project/kgen/gen/bench"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/tests/testutil"
)

func llama3(t testing.TB) spec.Spec {
	t.Helper()
	return testutil.Spec(t, "../../specs/llama3.yaml")
}

func setting(t testing.TB, text string) Setting {
	t.Helper()
	s, err := ParseSetting(text)
	if err != nil {
		t.Fatal(err)
	}
	if s.String() != text {
		t.Fatalf("%q reads as %q", text, s)
	}
	return s
}

func entry(t testing.TB) Entry {
	a, b := setting(t, "sm90_r128k128s2w12"), setting(t, "sm90_r64k64s3w8+f200t256")
	return Entry{
		Identity: Identity{
			Spec: "llama3", Digest: spec.Digest(llama3(t)), GPU: "NVIDIA H200", Target: "sm_90a",
			Driver: "driver 580.1, \"CUDA 13.0\"", Compiler: "nvrtc 13.0.88", Sources: "0123456789abcdef",
		},
		Date: "2026-11-21",
		Kinds: []KindTable{{
			Kind: spec.Extend, Default: a.Layout, Unfinished: true,
			Choices: []Choice{
				{Bucket: Bucket{128, 16384}, Setting: b, Gain: 0.0525, Measured: true},
				{Setting: a},
			},
			Cases: []TimedCase{
				{Case: bench.Case{Kind: spec.Extend, Batch: 1, Query: 64, Context: 8192}, Spread: 0.0012,
					Times: map[Setting]time.Duration{a: 42100, b: 40000}},
				{Case: bench.Case{Kind: spec.Extend, Batch: 2, Query: 256, Context: 6144}, HeldOut: true,
					Times: map[Setting]time.Duration{a: 100 * time.Microsecond}},
			},
			Rejected: []Rejected{{Layout: b.Layout, Why: "it spills 12 bytes"}},
		}},
	}
}

var values = cmp.Options{
	cmpopts.IgnoreUnexported(Entry{}, Choice{}), cmpopts.IgnoreFields(Entry{}, "Took"), cmpopts.IgnoreFields(Rejected{}, "Wrong"),
	cmpopts.EquateApprox(0, 1e-4),
}

func TestTableReadsBack(t *testing.T) {
	want := Table{GPU: "NVIDIA H200"}.With(entry(t))
	text := want.Marshal()
	got, err := Parse("t.yaml", text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if d := cmp.Diff(want, got, values); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if again := got.Marshal(); string(again) != string(text) {
		t.Errorf("written again:\n%s\nfirst:\n%s", again, text)
	}
	e, ok := got.Entry("llama3")
	if !ok || e.Check(llama3(t)) != nil {
		t.Errorf("entry: %v, %v", ok, e.Check(llama3(t)))
	}
	if other := entry(t); len(want.With(other).Entries) != 1 {
		t.Errorf("a spec has two entries")
	}
}

// What was measured of other kinds by the same machine, compiler and kernels stays.
func TestTableKeepsOtherKinds(t *testing.T) {
	table := Table{GPU: "NVIDIA H200"}.With(entry(t))
	decode := entry(t)
	decode.Kinds = []KindTable{{Kind: spec.Decode}}
	prefill := entry(t)
	prefill.Kinds = []KindTable{{Kind: spec.Prefill}}
	other := entry(t)
	other.Sources, other.Kinds = "of other kernels", []KindTable{{Kind: spec.Decode}}
	for _, test := range []struct {
		name string
		new  []Entry
		want []spec.Kind
	}{
		{"the same kind", []Entry{entry(t)}, []spec.Kind{spec.Extend}},
		{"another kind", []Entry{decode}, []spec.Kind{spec.Extend, spec.Decode}},
		{"and one that comes first", []Entry{decode, prefill}, []spec.Kind{spec.Prefill, spec.Extend, spec.Decode}},
		{"other kernels", []Entry{prefill, other}, []spec.Kind{spec.Decode}},
	} {
		now := table
		for _, e := range test.new {
			now = now.With(e)
		}
		e, _ := now.Entry("llama3")
		var kinds []spec.Kind
		for _, k := range e.Kinds {
			kinds = append(kinds, k.Kind)
		}
		if !slices.Equal(kinds, test.want) {
			t.Errorf("%s: the table has %v, want %v", test.name, kinds, test.want)
		}
	}
}

// Whatever tuning may choose can be read back: a table that it writes is never refused.
func TestWhatTuningChoosesReadsBack(t *testing.T) {
	for _, text := range []string{
		"model: {query_heads: 32, kv_heads: 8, head_dim: 128}",
		"model: {query_heads: 8, kv_heads: 8, head_dim: 64}",
		"model: {query_heads: 48, kv_heads: 1, head_dim: 64}",
		"model: {query_heads: 6, kv_heads: 2, head_dim: 256, v_head_dim: 128}",
		"model: {query_heads: 32, kv_heads: 8, head_dim: 128}\ncache: {page_size: 256}",
		"model: {query_heads: 32, kv_heads: 8, head_dim: 128}\ncache: {encoding: raw}",
	} {
		s, err := spec.Parse("s.yaml", []byte("name: s\nrope: {type: default, theta: 10000}\n"+text))
		if err != nil {
			t.Fatal(err)
		}
		for _, target := range s.Targets {
			table := Table{GPU: "a GPU"}
			for _, kind := range KindsOf(s) {
				plans, err := plan.Candidates(s, kind, target)
				if err != nil {
					t.Fatal(err)
				}
				f := &field{run: &run{spec: s}, kind: kind}
				for _, p := range plans {
					one := entrant{Setting{Layout: p.Layout()}, &candidate{plan: p}}
					for _, e := range append(f.cuts([]entrant{one}), one) {
						table.Entries = append(table.Entries, Entry{
							Identity: Identity{Spec: fmt.Sprintf("s%d", len(table.Entries)), Digest: "x", Target: target, Driver: "x", Compiler: "x", Sources: "x"},
							Date:     "2026-11-21", Kinds: []KindTable{{Kind: kind, Default: plans[0].Layout(), Choices: []Choice{{Setting: e.Setting}}}},
						})
					}
				}
			}
			got, err := Parse("t.yaml", table.Marshal())
			if err != nil {
				t.Fatalf("%s, %s: %v", text, target, err)
			}
			for i, e := range got.Entries {
				if err := e.Check(s); err != nil {
					t.Errorf("%s, %s: %s: %v", text, target, table.Entries[i].Kinds[0].Choices[0].Setting, err)
				}
			}
		}
	}
}

// A table that someone edited is refused with the place of each mistake.
func TestTableErrors(t *testing.T) {
	good := string(Table{GPU: "NVIDIA H200"}.With(entry(t)).Marshal())
	for _, c := range []struct{ name, old, new, want string }{
		{"an impossible tile", "{family: sm90, rows: 64, keys: 64, stages: 3, warps: 8}", "{family: sm90, rows: 64, keys: 64, stages: 8, warps: 8}",
			"t.yaml:16:"},
		{"names the field", "stages: 3, warps: 8}", "stages: 8, warps: 8}", "specs.llama3.kinds.extend.choices[0].plan.stages: 64 rows, 64 keys and 8 stages need"},
		{"rows", "rows: 64", "rows: 65", "t.yaml:16:66: specs.llama3.kinds.extend.choices[0].plan.rows: 65 is not a multiple of 16"},
		{"a number", "keys: 16384", "keys: many", `choices[0].keys: "many" is not a whole number from 1 to`},
		{"a field", "tokens: 256", "token: 256", "a table has no such field here"},
		{"a family", "{family: sm90, rows: 128", "{family: sm70, rows: 128", `choices[1].plan.family: "sm70" is not sm80 or sm90`},
		{"missing", ", warps: 8}", "}", "warps is missing"},
		{"a case", `"extend:1x64/8192"`, `"extend:x"`, `case "extend:x"`},
		{"a setting", "sm90_r128k128s2w12: 42.1", "sm90: 42.1", `"sm90" is not a setting`},
		{"the last choice", "- {plan:", "- {query: 4, plan:", "the last choice is for all lengths"},
		{"two of decode", "      extend:\n", "      decode:\n", "decode has one choice"},
		{"YAML", "gpu:", "gpu: [", "t.yaml:2:1: file: not valid YAML"},
		{"YAML further down", "    target: sm_90a", "    target: [sm_90a", "not valid YAML"},
		{"a second document", "specs:\n", "specs:\n---\n", "a second YAML document starts here; a table is one document"},
		{"twice", "    digest:", "    digest: x\n    digest:", "given twice"},
		{"a target", "target: sm_90a", "target: sm_91", `"sm_91" is not a target`},
		{"a negative bound", "query: 128", "query: -128", `t.yaml:16:21: specs.llama3.kinds.extend.choices[0].query: "-128" is not a whole number from 1 to`},
		{"no bound", "keys: 16384", "keys: 0", `choices[0].keys: "0" is not a whole number from 1 to`},
		{"a bucket inside another", "          - {plan:", "          - {query: 100, keys: 16384, plan: {family: sm90, rows: 64, keys: 64, stages: 3, warps: 8}}\n          - {plan:",
			"t.yaml:17:13: specs.llama3.kinds.extend.choices[1]: it is never reached: specs.llama3.kinds.extend.choices[0] holds every sequence that it does"},
		{"a bucket twice", "          - {plan:", "          - {plan: {family: sm90, rows: 64, keys: 64, stages: 3, warps: 8}}\n          - {plan:", "choices[2]: it is never reached"},
		{"a kind", "      extend:\n", "      stretch:\n", "t.yaml:12:7: specs.llama3.kinds.stretch: want one of [prefill extend decode shared_decode]"},
		{"a kind without a tile", "      extend:\n", "      merge:\n", "want one of [prefill extend decode shared_decode]"},
		{"a family that the target does not run", "target: sm_90a", "target: sm_80", "t.yaml:16:54: specs.llama3.kinds.extend.choices[0].plan.family: sm90 runs on sm_90a, not on sm_80"},
		{"blocks", "stages: 3, warps: 8}", "stages: 3, warps: 8, blocks: 9}", `choices[0].plan.blocks: "9" is not a whole number from 1 to 8`},
		{"a part below a tile", "tokens: 256", "tokens: 32", "specs.llama3.kinds.extend.choices[0].tokens: parts of 32 tokens are smaller than a tile of 64 keys or a page of 16"},
		{"a negative cut", "fill: 200", "fill: -1", `choices[0].fill: "-1" is not a whole number from 1 to 10000`},
		{"no date", `date: "2026-11-21"`, "date: yesterday", `t.yaml:10:11: specs.llama3.date: "yesterday" is not a date such as 2026-11-21`},
		{"a day that is none", `date: "2026-11-21"`, "date: 2026-02-30", `"2026-02-30" is not a date`},
		{"a negative gain", "gain: ", "gain: -", `choices[0].gain: "-0.0525" is not a number from 0 to 1e+12`},
		{"an infinite gain", "gain: 0.0525", "gain: .inf", `choices[0].gain: ".inf" is not a number`},
		{"an endless gain", "gain: 0.0525", "gain: Inf", `choices[0].gain: "Inf" is not a number`},
		{"a gain that is no number", "gain: 0.0525", "gain: NaN", `choices[0].gain: "NaN" is not a number`},
		{"a negative spread", "spread: ", "spread: -", `.spread: "-0.0012" is not a number from 0 to 1e+12`},
		{"a negative time", "sm90_r128k128s2w12: 42.1", "sm90_r128k128s2w12: -42.1", `"-42.100" is not a number from 0 to 1e+12`},
		{"a control character", `driver: "`, `driver: "\e[31m`, `specs.llama3.driver: "\x1b[31m`},
		{"one in a field's name", "    driver:", `    "dri\aver":`, `specs.llama3: "dri\aver" is no field's name`},
		{"no choice", "        choices:\n", "        choices: []\n        cases:\n", "want a list of choices"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := strings.Replace(good, c.old, c.new, 1)
			if text == good {
				t.Fatalf("no %q in\n%s", c.old, good)
			}
			table, err := Parse("t.yaml", []byte(text))
			if err == nil {
				e, _ := table.Entry("llama3")
				err = e.Check(llama3(t))
			}
			var errs spec.Errors
			if !errors.As(err, &errs) || !strings.Contains(err.Error(), c.want) || errs[0].Line < 1 {
				t.Errorf("error %v, want one that contains %q", err, c.want)
			}
		})
	}
	for _, text := range []string{"", "[]", "gpu: x", strings.Repeat("a", document.MaxBytes+1), "\xff\xfe", "gpu: &a x\nspecs: *a"} {
		if _, err := Parse("t.yaml", []byte(text)); err == nil {
			t.Errorf("%.20q: no error", text)
		}
	}
}

// A part below a page is refused even where a tile is smaller.
func TestTableCutBelowPage(t *testing.T) {
	s, e := llama3(t), entry(t)
	s.Cache.PageSize = 128
	e.Kinds[0].Choices[0].Cut.Tokens = 100
	if err := e.Check(s); err == nil || !strings.Contains(err.Error(), "choices[0].tokens: parts of 100 tokens are smaller than a tile of 64 keys or a page of 128") {
		t.Errorf("error %v", err)
	}
}

// What was the default when it was measured and no longer is stays a rule.
func TestTunedKeepsAnOldDefault(t *testing.T) {
	s, e := llama3(t), entry(t)
	now, err := e.Tuned(s)
	if err != nil || len(now.Rules) != 1 {
		t.Fatalf("%+v, %v", now, err)
	}
	old := setting(t, "sm90_r128k64s3w12").Layout
	e.Kinds[0].Default, e.Kinds[0].Choices[1].Layout = old, old
	then, err := e.Tuned(s)
	if err != nil || len(then.Rules) != 2 || then.Rules[1].Layout != old {
		t.Errorf("%+v, %v", then, err)
	}
	s.Kinds = []spec.Kind{spec.Append}
	if none, err := e.Tuned(s); err != nil || none.Rules != nil {
		t.Errorf("rules of kinds that the spec does not have: %+v, %v", none, err)
	}
}

// The table that specs/README.md shows is one.
func TestReadmeTable(t *testing.T) {
	data, err := os.ReadFile("../../specs/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(data), "```yaml\ngpu:")
	block, _, _ := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("no table in specs/README.md")
	}
	table, err := Parse("README.md", []byte("gpu:"+block))
	if err != nil {
		t.Fatal(err)
	}
	e, ok := table.Entry("llama3")
	if !ok || len(e.Kinds) != 1 || len(e.Kinds[0].Choices) != 2 || len(e.Kinds[0].Cases) != 2 {
		t.Errorf("%+v", table)
	}
	if err := e.Check(llama3(t)); err != nil {
		t.Error(err)
	}
}

func TestFileName(t *testing.T) {
	for gpu, want := range map[string]string{"NVIDIA H200": "nvidia-h200.yaml", "NVIDIA A100-SXM4-80GB": "nvidia-a100-sxm4-80gb.yaml", "../x": "x.yaml"} {
		if got := FileName(gpu); got != want {
			t.Errorf("%s: %s, want %s", gpu, got, want)
		}
	}
}

func TestDiffers(t *testing.T) {
	now := entry(t).Identity
	if why := now.Differs(now); why != "" {
		t.Errorf("the same: %s", why)
	}
	then := now
	then.Driver = "driver 570"
	if why := then.Differs(now); why != `the driver was driver 570 and is now driver 580.1, "CUDA 13.0"` {
		t.Errorf("%s", why)
	}
	if why := then.Differs(Identity{Digest: now.Digest}); why != "" {
		t.Errorf("of what is not known: %s", why)
	}
}

// A file that is no journal stays as it is, even one whose only line has no end; the first
// line of a run that was killed is written anew.
func TestJournalOfOtherFiles(t *testing.T) {
	for text, taken := range map[string]bool{
		"": true, "{": true, `{"start":{"sp`: true, "notes": false, "{}": false, "{\"specs\":1}\n": false, "\n": false,
	} {
		path := filepath.Join(t.TempDir(), "j")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		j, err := OpenJournal(path, entry(t).Identity, 1)
		if (err == nil) != taken {
			t.Errorf("%q: %v", text, err)
		}
		if err == nil {
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
		} else if got, readErr := os.ReadFile(path); string(got) != text || !strings.Contains(err.Error(), "no journal") {
			t.Errorf("%q is now %q, and the error %v, %v", text, got, err, readErr)
		}
	}
}

func TestJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	id := entry(t).Identity
	j, err := OpenJournal(path, id, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{j.addCheck("a", ""), j.addCheck("b", "wrong"), j.addTime("c", []int64{1, 2}), j.Close()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	// What a kill leaves: half a line.
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"timed":"d","ns":[1`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	for range 2 {
		j, err = OpenJournal(path, id, 1)
		if err != nil {
			t.Fatal(err)
		}
		if failure, known := j.check("b"); !known || failure != "wrong" {
			t.Errorf("b: %q, %v", failure, known)
		}
		if ns, known := j.time("c"); !known || len(ns) != 2 {
			t.Errorf("c: %v, %v", ns, known)
		}
		if _, known := j.time("d"); known {
			t.Errorf("half a line is known")
		}
		if err := errors.Join(j.addTime("e", []int64{3}), j.Close()); err != nil {
			t.Fatal(err)
		}
	}
	other := id
	other.Driver = "another"
	if _, err := OpenJournal(path, other, 1); err == nil || !strings.Contains(err.Error(), "the driver was") {
		t.Errorf("another driver: %v", err)
	}
	if _, err := OpenJournal(path, id, 2); err == nil || !strings.Contains(err.Error(), "--seed 1") {
		t.Errorf("another seed: %v", err)
	}
	if err := os.WriteFile(path, []byte("no journal\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenJournal(path, id, 1); err == nil || !strings.Contains(err.Error(), "no journal, or damaged") {
		t.Errorf("no journal: %v", err)
	}
}

// Two runs on one journal would each measure what the other does, and mix their lines.
func TestJournalIsOfOneRunAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	id := entry(t).Identity
	j, err := OpenJournal(path, id, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenJournal(path, id, 1); err == nil || !strings.Contains(err.Error(), path+": another run is using it: wait for its end, or give another --journal") {
		t.Errorf("a second run: %v", err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if j, err = OpenJournal(path, id, 1); err != nil {
		t.Fatalf("after the first: %v", err)
	}
	if err := j.Remove(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("gpu: x\nspecs: {a: {kinds: {extend: {choices: [{plan: {rows: 16}}]}}}}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if table, err := Parse("f.yaml", data); err == nil {
			for _, e := range table.Entries {
				_ = e.Check(spec.Spec{Model: spec.Model{QueryHeads: 4, KVHeads: 1, HeadDim: 64, VHeadDim: 64}, Cache: spec.Cache{PageSize: 16}})
			}
		}
	})
}

func TestScoreModel(t *testing.T) {
	s := llama3(t)
	e := entry(t)
	scores := ScoreModel(s, e, plan.NominalCeilings("sm_90a"))
	if len(scores) != 2 || scores[0].Settings != 2 || scores[0].Regret < 0 || !scores[1].HeldOut {
		t.Fatalf("%+v", scores)
	}
	if regret, n := MeanRegret(scores, true); n != 1 || regret != 0 {
		t.Errorf("held out: %v of %d", regret, n)
	}
	if c := spearman([]float64{1, 2, 3, 4}, []float64{10, 20, 30, 40}); c != 1 {
		t.Errorf("the same order: %v", c)
	}
	if c := spearman([]float64{1, 2, 3, 4}, []float64{4, 3, 2, 1}); c != -1 {
		t.Errorf("the opposite order: %v", c)
	}
	if c := spearman([]float64{1, 1, 2, 2}, []float64{1, 2, 1, 2}); c != 0 {
		t.Errorf("no order: %v", c)
	}
}

// Shared decode has the plan that was measured with the spec's own sharing alone.
func TestTunedOfAnotherSharing(t *testing.T) {
	s := llama3(t)
	chosen := setting(t, "sm90_r128k64s3w12")
	e := Entry{Identity: Identity{Digest: spec.Digest(s), Target: "sm_90a"}, Kinds: []KindTable{
		{Kind: spec.Decode, Choices: []Choice{{Setting: setting(t, "sm90_r16k64s6w7")}}},
		{Kind: spec.SharedDecode, Choices: []Choice{{Setting: chosen}}},
	}}
	bitwise := s
	bitwise.Sharing = spec.Bitwise
	for _, test := range []struct {
		s     spec.Spec
		kinds []spec.Kind
	}{{s, []spec.Kind{spec.Decode, spec.SharedDecode}}, {bitwise, []spec.Kind{spec.Decode}}} {
		tuned, err := e.Tuned(test.s)
		if err != nil {
			t.Fatal(err)
		}
		var kinds []spec.Kind
		for _, r := range tuned.Rules {
			kinds = append(kinds, r.Kind)
		}
		if !slices.Equal(kinds, test.kinds) {
			t.Errorf("sharing %s: rules for %v, want %v", test.s.Sharing, kinds, test.kinds)
		}
	}
}

// Another sharing or batching is another listing for the same kernels; anything else is another
// spec.
func TestMeasuredOf(t *testing.T) {
	s := llama3(t)
	e := Entry{Identity: Identity{Digest: spec.Digest(s)}}
	listed, other := s, s
	listed.Sharing, listed.Batching = spec.Bitwise, spec.Fastest
	other.Scale *= 2
	for _, test := range []struct {
		name  string
		s     spec.Spec
		holds bool
	}{{"the spec", s, true}, {"other modes", listed, true}, {"another scale", other, false}} {
		if got := e.MeasuredOf(test.s); (spec.Digest(got) == e.Digest) != test.holds || !test.holds && spec.Digest(got) != spec.Digest(test.s) {
			t.Errorf("%s: measured of the spec with digest %.8s, want that of the entry, %.8s: %t", test.name, spec.Digest(got), e.Digest, test.holds)
		}
	}
}
