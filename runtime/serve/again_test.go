package serve_test

import (
	"context"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"unsafe"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

// listed is an engine whose work lists are looked at in place of any work.
type listed struct {
	idleDevice
	idleKernels
	at     abi.DevicePtr
	copied []byte // to there
	lists  []any  // of the launches of a step

	engine    *serve.Engine
	chunks    []*kvcache.Chunk
	sequences []*serve.Sequence
}

func (l *listed) CopyFromHostAsync(_ cuda.Stream, dst abi.DevicePtr, src []byte, _ cuda.Blocks) error {
	l.at, l.copied = dst, slices.Clone(src)
	return nil
}

// listOf is n elements of what has been copied.
func listOf[T any](l *listed, at abi.DevicePtr, n int32) []T {
	if n == 0 {
		return nil
	}
	data := l.copied[at-l.at:]
	_ = data[:int(n)*int(unsafe.Sizeof(*new(T)))]
	return slices.Clone(unsafe.Slice((*T)(unsafe.Pointer(&data[0])), n))
}

func (l *listed) Append(_ cuda.Stream, p abi.AppendParams) error {
	l.lists = append(l.lists, "append", listOf[int32](l, p.Slots, p.Tokens), listOf[int32](l, p.Positions, p.Tokens))
	return nil
}

func (l *listed) Attend(_ cuda.Stream, c kernel.Choice, p abi.AttendParams) error {
	l.lists = append(l.lists, c.Kind, listOf[abi.Item](l, p.Items, p.ItemCount), listOf[abi.Run](l, p.Runs, p.RunCount), listOf[int32](l, p.PageTable, p.PageCount))
	return nil
}

func (l *listed) SharedDecode(_ cuda.Stream, p abi.AttendParams) error {
	items, runs := listOf[abi.Item](l, p.Items, p.ItemCount), listOf[abi.Run](l, p.Runs, p.RunCount)
	l.lists = append(l.lists, "shared", items, runs)
	for _, x := range items {
		l.lists = append(l.lists, listOf[abi.Member](l, p.Members+abi.DevicePtr(8*x.QBegin), x.QCount))
		for _, r := range runs[x.RunBegin:x.RunEnd] {
			l.lists = append(l.lists, listOf[int32](l, p.MemberOffsets+abi.DevicePtr(4*r.Offset), x.QCount))
		}
	}
	return nil
}

func (l *listed) Merge(_ cuda.Stream, p abi.MergeParams) error {
	l.lists = append(l.lists, "merge", listOf[int32](l, p.SlotBegin, p.Tokens+1))
	return nil
}

// step lists a step of the sequences, which is committed or taken back.
func (l *listed) step(t *testing.T, commit bool, batch ...serve.Entry) []any {
	t.Helper()
	l.lists = nil
	s, err := l.engine.Schedule(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Abort()
	if err := s.Attend(t.Context(), 0, serve.IO{Q: 256, K: 256, V: 256, Out: 256}); err != nil {
		t.Fatal(err)
	}
	if commit {
		if err := s.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	return append(l.lists, s.Spared())
}

// An engine that has listed the step before lists a step as one that has listed
// something else meanwhile: of sequences that come, grow, fork, go on with other documents,
// are taken back and go.
func TestStepAfterStep(t *testing.T) {
	for _, sharing := range []string{"fastest", "bitwise", "none"} {
		t.Run(sharing, func(t *testing.T) {
			for seed := range uint64(6) {
				testStepAfterStep(t, sharing, seed)
			}
		})
	}
}

func testStepAfterStep(t *testing.T, sharing string, seed uint64) {
	m := toy.Small()
	m.Layers, m.PageSize, m.KVHeads, m.Group, m.MaxPosition = 1, 16, 8, 4, 0
	m.Rope.RotaryDim, m.Rope.MaxPosition = 0, 0
	if sharing != "none" {
		m.Sharing = sharing
	}
	rng := rand.New(rand.NewPCG(seed, 3))
	documents := make([]int, 6)
	for i := range documents {
		documents[i] = 300 + rng.IntN(1000)
	}
	var engines [2]*listed // the second lists something else before each step
	for i := range engines {
		dev := cpu.Open(cpu.Options{Workers: 1})
		defer dev.Close()
		l := &listed{idleDevice: idleDevice{dev}, idleKernels: idleKernels{shared: sharing != "none"}}
		var err error
		if l.engine, err = serve.New(l, l, m, serve.Options{Pages: 6000}); err != nil {
			t.Fatal(err)
		}
		defer l.engine.Close()
		for j, n := range documents {
			c, err := l.engine.Register(t.Context(), toy.Document(uint64(j), n), func(_ context.Context, s *serve.Step) error {
				return s.Attend(t.Context(), 0, serve.IO{Q: 256, K: 256, V: 256, Out: 256})
			})
			if err != nil {
				t.Fatal(err)
			}
			l.chunks = append(l.chunks, c)
		}
		engines[i] = l
	}
	// both does the same with both engines.
	both := func(do func(l *listed) error) {
		t.Helper()
		for _, l := range engines {
			if err := do(l); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	}
	join := func(common int) {
		held := rng.Perm(len(documents))[:rng.IntN(len(documents))]
		for i := range common {
			held = slices.Insert(held, i, i)
		}
		at := rng.IntN(len(engines[0].sequences) + 1)
		both(func(l *listed) error {
			var of []*kvcache.Chunk
			for _, i := range held {
				of = append(of, l.chunks[i])
			}
			s, err := l.engine.Open(kvcache.Pack(of...), kvcache.Packed)
			l.sequences = slices.Insert(l.sequences, at, s)
			return err
		})
	}
	for range 24 {
		join(2)
	}
	other := make([]*serve.Sequence, len(engines))
	for i, l := range engines {
		var err error
		if other[i], err = l.engine.Open(nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	for step := range 120 {
		if rng.IntN(2) == 0 {
			i, n := rng.IntN(len(engines[0].sequences)), rng.IntN(len(documents))
			place := func(n int) {
				both(func(l *listed) error { return l.sequences[i].Place(kvcache.Pack(l.chunks[n]), kvcache.Packed) })
			}
			truncate := func(n int) { both(func(l *listed) error { return l.sequences[i].Truncate(n) }) }
			own := engines[0].sequences[i].Tokens()
			switch rng.IntN(8) {
			case 0:
				join(rng.IntN(3))
			case 1, 2:
				both(func(l *listed) error {
					err := l.sequences[i].Close()
					l.sequences = slices.Delete(l.sequences, i, i+1)
					return err
				})
				join(2)
			case 3:
				place(n)
			case 4:
				truncate(rng.IntN(own + 1))
			case 6: // what was placed last gives way to something else
				if own > 0 {
					truncate(own - 1)
				}
				place(n)
			case 5:
				both(func(l *listed) error {
					s, err := l.sequences[i].Fork()
					l.sequences = append(l.sequences, s)
					return err
				})
			}
		}
		more, commit := 1, rng.IntN(8) > 0
		if rng.IntN(10) == 0 {
			more = 1 + rng.IntN(40) // a prompt in the midst
		}
		// For some steps, a prompt comes in pieces, some of them in steps of no others.
		of, alone := step, false
		if step%12 > 8 {
			of, more, alone = step/12, 8, rng.IntN(2) == 0
		}
		var lists [2][]any
		for i, l := range engines {
			if i == 1 {
				l.step(t, false, serve.Entry{Sequence: other[i], Tokens: 1})
				l.step(t, false, serve.Entry{Sequence: other[i], Tokens: 8})
			}
			var batch []serve.Entry
			for _, s := range l.sequences {
				batch = append(batch, serve.Entry{Sequence: s, Tokens: 1})
			}
			of := of % len(batch)
			batch[of].Tokens = more
			if alone {
				batch = batch[of : of+1]
			}
			lists[i] = l.step(t, commit, batch...)
		}
		if len(lists[0]) != len(lists[1]) {
			t.Fatalf("seed %d, step %d: %d lists, want %d", seed, step, len(lists[0]), len(lists[1]))
		}
		for i := range lists[0] {
			if got, want := lists[0][i], lists[1][i]; !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d, step %d, list %d: got\n%v, want\n%v", seed, step, i, got, want)
			}
		}
	}
}
