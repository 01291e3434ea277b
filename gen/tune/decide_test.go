package tune

import (
	"testing"
	"time"

	"github.com/kgen-project/kgen/gen/bench"
	"github.com/kgen-project/kgen/gen/spec"
)

// fieldOf is a field of measured times, in microseconds, by case and setting.
func fieldOf(t *testing.T, kind spec.Kind, times map[string]map[string]float64) (*field, Setting, []Setting) {
	f := &field{run: &run{spec: llama3(t)}, kind: kind, times: map[Case]map[Setting]sample{}}
	for text, of := range times {
		one, err := bench.ParseCase(text)
		if err != nil {
			t.Fatal(err)
		}
		c := Case{Case: one}
		f.cases = append(f.cases, c)
		f.times[c] = map[Setting]sample{}
		for s, us := range of {
			f.times[c][setting(t, s)] = sample{median: time.Duration(us * 1e3), round: 4}
		}
	}
	settings := []Setting{setting(t, usual), setting(t, other), setting(t, third), setting(t, cut)}
	return f, settings[0], settings
}

const (
	usual = "sm90_r16k64s4w7"
	other = "sm90_r16k32s8w7"
	third = "sm90_r16k32s6w5"
	cut   = "sm90_r16k32s8w7+f200t256"
)

func TestChoose(t *testing.T) {
	const short, batch, long = "extend:8x64/8192", "extend:1x64/32768", "extend:1x64/131072"
	for _, c := range []struct {
		name string
		want [3]string // of the buckets
		us   map[string]map[string]float64
	}{
		{"nothing is faster", [3]string{usual, usual, usual}, map[string]map[string]float64{
			short: {usual: 10, other: 10}, batch: {usual: 20, other: 20}, long: {usual: 30, other: 30}}},
		{"too little", [3]string{usual, usual, usual}, map[string]map[string]float64{
			short: {usual: 10, other: 9.9}, batch: {usual: 20, other: 19.8}, long: {usual: 30, other: 29.7}}},
		{"one for all", [3]string{other, other, other}, map[string]map[string]float64{
			short: {usual: 10, other: 9}, batch: {usual: 20, other: 18}, long: {usual: 30, other: 29.9}}},
		{"the simpler of equals", [3]string{other, other, other}, map[string]map[string]float64{
			short: {usual: 10, other: 9, third: 9.01, cut: 8.95}, batch: {usual: 20, other: 18, third: 17.9, cut: 17.9}, long: {usual: 30, other: 27, third: 27, cut: 27}}},
		{"far apart", [3]string{other, usual, third}, map[string]map[string]float64{
			short: {usual: 10, other: 8, third: 12}, batch: {usual: 20, other: 25, third: 25}, long: {usual: 30, other: 40, third: 24}}},
		{"one kernel for two", [3]string{third, third, usual}, map[string]map[string]float64{
			short: {usual: 10, other: 8, third: 8.05}, batch: {usual: 20, other: 25, third: 15}, long: {usual: 30, other: 40, third: 40}}},
		{"two kernels for two", [3]string{other, third, usual}, map[string]map[string]float64{
			short: {usual: 10, other: 8, third: 8.1}, batch: {usual: 20, other: 25, third: 15}, long: {usual: 30, other: 40, third: 40}}},
		{"both give theirs up for a third", [3]string{third, third, third}, map[string]map[string]float64{
			short: {usual: 10, other: 8, third: 8.05}, batch: {usual: 20, other: 15, third: 15.1}, long: {usual: 30, other: 40, third: 20}}},
		{"one of two does not", [3]string{other, other, third}, map[string]map[string]float64{
			short: {usual: 10, other: 8, third: 8.05}, batch: {usual: 20, other: 15, third: 15.4}, long: {usual: 30, other: 40, third: 20}}},
		{"little, by another's kernel", [3]string{other, other, usual}, map[string]map[string]float64{
			short: {usual: 10, other: 9}, batch: {usual: 20, other: 19.7}, long: {usual: 30, other: 30.5, third: 29.5}}},
		{"not finished", [3]string{usual, usual, usual}, map[string]map[string]float64{
			short: {usual: 10}, batch: {usual: 20}, long: {usual: 30}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, usual, settings := fieldOf(t, spec.Extend, c.us)
			for i, choice := range f.choose(usual, settings)[3:6] {
				if got := choice.Setting.String(); got != c.want[i] {
					t.Errorf("bucket %+v: %s, want %s", choice.Bucket, got, c.want[i])
				}
			}
		})
	}
}

// A setting that is the best in the mean but loses in a case is not chosen.
func TestChooseNeverLoses(t *testing.T) {
	f, usual, settings := fieldOf(t, spec.Decode, map[string]map[string]float64{
		"decode:8x1/8192":  {usual: 20, other: 10},
		"decode:32x1/8192": {usual: 20, other: 20.5},
	})
	for _, choice := range f.choose(usual, settings) {
		if choice.Setting != usual {
			t.Errorf("bucket %+v: %s", choice.Bucket, choice.Setting)
		}
	}
}

func TestBuckets(t *testing.T) {
	for _, s := range []spec.Spec{llama3(t), spec.WithEncoding(llama3(t), spec.Raw)} {
		for _, kind := range Kinds {
			buckets := Buckets(s, kind)
			if len(buckets) > mostChoices {
				t.Errorf("%s, %s: %d buckets, and a table has %d choices", s.Cache.Encoding, kind, len(buckets), mostChoices)
			}
			if buckets[len(buckets)-1] != (Bucket{}) {
				t.Errorf("%s, %s: the last bucket does not hold all", s.Cache.Encoding, kind)
			}
			for _, b := range buckets {
				if len(within(b, s, kind, Cases(s, kind))) == 0 {
					t.Errorf("%s, %s: no case in bucket %+v", s.Cache.Encoding, kind, b)
				}
			}
		}
	}
}
