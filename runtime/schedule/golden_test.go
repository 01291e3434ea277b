package schedule_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"testing"

	"github.com/kgen-project/kgen/runtime/schedule"
)

// The lists are, to the bit, what they were when the digests were taken: results
// of a model that is served do not change with a faster builder. Who changes how
// work is listed takes the digests again and says why.
func TestUnchanged(t *testing.T) {
	var b schedule.Builder
	small, steps, even := sha256.New(), sha256.New(), sha256.New()
	add := func(seed int, sequences []schedule.Sequence, o schedule.Options) []byte {
		l, err := b.Build(sequences, o)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		var data []byte
		for _, list := range []any{l.Items, withoutOnce(l.Runs), l.SlotBegin, int64(l.Slots)} {
			if data, err = binary.Append(data, binary.LittleEndian, list); err != nil {
				t.Fatal(err)
			}
		}
		return data
	}
	for seed := range 2000 {
		sequences, o := random(rand.New(rand.NewPCG(uint64(seed), 5)))
		small.Write(add(seed, sequences, o))
	}
	for seed := range 60 { // steps of a server
		rng := rand.New(rand.NewPCG(uint64(seed), 6))
		most := 1 + rng.Int32N(2000)
		sequences, o := batch(1+rng.IntN(64), 1+rng.IntN(30), func() int32 { return rng.Int32N(most) }), options()
		if seed%3 == 1 {
			o.Window, o.SinkTokens = 1+rng.IntN(4000), rng.IntN(10)
		}
		if seed%5 == 1 {
			o.PageSize = 64
		}
		steps.Write(add(seed, sequences, o))
		o.Keys, o.Fold = 64<<(seed/2%2), seed%4 > 0
		even.Write(add(seed, sequences, o))
	}
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"small", small.Sum(nil), "08948fe6c016117faebf0a31855e08f177caf8eeae525d55938bd5129203d22c"},
		{"steps", steps.Sum(nil), "0ba4b1525ff9d084f7380b98663e58a85aaf14a99ecbacd3538e134de8fcfe3d"},
		{"even", even.Sum(nil), "ee6d2473fe4ca07e9f45c2e0ea7326233f3f272bc64fc126cc43ed25537e9c94"},
	} {
		if got := hex.EncodeToString(c.got); got != c.want {
			t.Errorf("%s: the lists' digest is %s, it was %s", c.name, got, c.want)
		}
	}
}

// Those of shared decode too, of one step and of steps that follow one another.
func TestSharedUnchanged(t *testing.T) {
	var b schedule.SharedBuilder
	small, steps := sha256.New(), sha256.New()
	add := func(seed int, sequences []schedule.Sequence, o schedule.Options, s schedule.SharedOptions) []byte {
		l, err := b.Build(sequences, o, s)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		var data []byte
		for _, list := range []any{
			l.Decode.Items, l.Decode.Runs, l.Decode.SlotBegin, int64(l.Decode.Slots),
			l.Items, l.Runs, l.Members, l.Offsets, int64(l.Saved),
		} {
			if data, err = binary.Append(data, binary.LittleEndian, list); err != nil {
				t.Fatal(err)
			}
		}
		return data
	}
	for seed := range 2000 {
		sequences, o, s := randomSharing(rand.New(rand.NewPCG(uint64(seed), 8)), 12)
		small.Write(add(seed, sequences, o, s))
	}
	for seed := range 60 { // steps of a server
		rng := rand.New(rand.NewPCG(uint64(seed), 9))
		sequences, s := zipf(rng, 1+rng.IntN(64), 1+rng.IntN(20)), sharedOptions()
		s.Bitwise = seed%4 == 1
		for range 5 {
			for i := range sequences {
				sequences[i].Positions[0] += 40
				sequences[i].Segments[len(sequences[i].Segments)-1].Tokens += 40
			}
			steps.Write(add(seed, sequences, options(), s))
		}
	}
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"small", small.Sum(nil), "4ca6d4e1e679a22d44500353078ebb302439e5e7271dad154f4a49e43ae4a164"},
		{"steps", steps.Sum(nil), "177d5c59ddad611e307c6fd0450fd2e034c6dcf326eea8b68dd0253ab1c3b988"},
	} {
		if got := hex.EncodeToString(c.got); got != c.want {
			t.Errorf("%s: the lists' digest is %s, it was %s", c.name, got, c.want)
		}
	}
}
