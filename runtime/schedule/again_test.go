package schedule_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// server is a batch of sequences that come, grow and go, and what they hold.
type server struct {
	rng       *rand.Rand
	documents []int32 // tokens of each
	batch     []request
	layouts   uint64 // of sequences so far
	placed    map[string]uint64
}

type request struct {
	layout  uint64
	held    []int // documents
	offsets []int32
	own     int32
	queries int32
}

func newServer(rng *rand.Rand) *server {
	s := &server{rng: rng, placed: make(map[string]uint64)}
	for range 1 + rng.IntN(8) {
		s.documents = append(s.documents, 10*rng.Int32N(10)+rng.Int32N(2)) // some of one length, or of none
	}
	for range 1 + rng.IntN(10) {
		s.join()
	}
	return s
}

func (s *server) join() { s.joinAt(s.rng.IntN(len(s.batch) + 1)) }

func (s *server) joinAt(i int) {
	s.layouts++
	r := request{layout: s.layouts, own: s.rng.Int32N(40), queries: 1}
	at := s.rng.Int32N(100)
	common := s.rng.IntN(2) * s.rng.IntN(len(s.documents)) // which sequences hold in the same order
	for i := range common + s.rng.IntN(4) {
		document := i
		if i >= common {
			document = s.rng.IntN(len(s.documents))
		}
		r.held, r.offsets = append(r.held, document), append(r.offsets, at)
		at += s.documents[document]
	}
	s.batch = slices.Insert(s.batch, i, r)
}

// change is what comes between two steps: most often nothing.
func (s *server) change() {
	i := s.rng.IntN(len(s.batch))
	r := &s.batch[i]
	changed := func() { // what the sequence holds
		s.layouts++
		r.layout = s.layouts
	}
	switch s.rng.IntN(12) {
	case 0:
		s.join()
	case 1:
		if len(s.batch) > 1 {
			s.batch = slices.Delete(s.batch, i, i+1)
		}
	case 2: // the step before was aborted
		for i := range s.batch {
			s.batch[i].own -= s.batch[i].queries
		}
	case 3:
		r.own /= 2
	case 4:
		r.queries = 1 + s.rng.Int32N(4)
	case 5: // further documents behind the own tokens, which begin anew
		changed()
		r.held, r.offsets = append(r.held, s.rng.IntN(len(s.documents))), append(r.offsets, 1000+s.rng.Int32N(100))
	case 6:
		if len(r.held) > 0 {
			changed()
			r.offsets[s.rng.IntN(len(r.held))]++
		}
	case 7:
		if len(r.held) > 0 {
			changed()
			r.held[s.rng.IntN(len(r.held))] = s.rng.IntN(len(s.documents))
		}
	case 9: // a fork, whose own tokens go on apart
		fork := *r
		fork.held, fork.offsets = slices.Clone(r.held), slices.Clone(r.offsets)
		s.batch = slices.Insert(s.batch, s.rng.IntN(len(s.batch)+1), fork)
	case 10: // several leave at a time
		s.batch = slices.Delete(s.batch, i, min(len(s.batch), i+1+s.rng.IntN(4)))
		if len(s.batch) == 0 {
			s.join()
		}
	case 8: // two change places
		j := s.rng.IntN(len(s.batch))
		s.batch[i], s.batch[j] = s.batch[j], s.batch[i]
	}
}

// step is the sequences of the next step, each with its new tokens, by a table that has a
// document's pages where it is first met, and those of own tokens behind all of them, as
// kvcache.Table has them, or between them.
func (s *server) step(pageSize int32, ownLast bool) []schedule.Sequence {
	pages := make(map[int]int32)
	next, query := int32(0), int32(0)
	add := func(tokens int32) int32 {
		page := next
		next += (tokens + pageSize - 1) / pageSize
		return page
	}
	var sequences []schedule.Sequence
	for i := range s.batch {
		r := &s.batch[i]
		r.own += r.queries
		q := schedule.Sequence{QueryBegin: query, Layout: r.layout}
		end := int32(0)
		for j, document := range r.held {
			page, ok := pages[document]
			if !ok {
				page = add(s.documents[document])
				pages[document] = page
			}
			q.Segments = append(q.Segments, schedule.Segment{Page: page, Tokens: s.documents[document], Offset: r.offsets[j]})
			end = r.offsets[j] + s.documents[document]
		}
		if at := fmt.Sprint(r.layout, q.Segments); s.rng.IntN(8) > 0 { // else nobody says
			if s.placed[at] == 0 {
				s.placed[at] = uint64(len(s.placed) + 1)
			}
			q.Placed = s.placed[at]
		}
		own := int32(0)
		if !ownLast {
			own = add(r.own)
		}
		q.Segments = append(q.Segments, schedule.Segment{Page: own, Tokens: r.own, Offset: end, Own: true})
		for j := range r.queries {
			q.Positions = append(q.Positions, end+r.own-r.queries+j)
		}
		query += r.queries
		sequences = append(sequences, q)
	}
	if ownLast {
		for i := range sequences {
			own := &sequences[i].Segments[len(sequences[i].Segments)-1]
			own.Page = add(own.Tokens)
		}
	}
	return sequences
}

// A builder that has made the lists of the steps before makes those that one makes that has
// not: of sequences that come, grow and go, whatever the builder keeps of them.
func TestStepAfterStep(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 7))
		_, o, s := randomSharing(rng, 1)
		o.MaxPosition = 2000
		if seed%3 > 0 { // else some of a chunk is not seen
			o.Window = 0
		}
		o.OnceTokens = rng.IntN(2) * rng.IntN(2000)
		server := newServer(rng)
		o.Fold, o.Whole = seed%7 > 2, seed%7 > 4
		var b schedule.SharedBuilder
		var plain schedule.Builder
		var runs, sharedRuns mirror[abi.Run]
		for step := range 60 {
			if rng.IntN(2) > 0 {
				server.change()
			}
			sequences := server.step(max(1, int32(o.PageSize)), seed%4 > 0)
			for i := range sequences {
				if seed%5 == 0 { // nobody says what they hold
					sequences[i].Layout = 0
				}
			}
			switch rng.IntN(30) {
			case 0: // what is wrong is no step
				i := rng.IntN(len(sequences))
				sequences[i].Positions[0] += 2000
			case 1: // as a chunk of no tokens
				i := rng.IntN(len(sequences))
				segments := sequences[i].Segments
				segments[rng.IntN(len(segments))].Tokens = 0
				sequences[i].Layout = 1<<32 + uint64(step)
			case 2: // pages in another order
				for i := range sequences {
					sequences[i].Placed = 0
					for j := range sequences[i].Segments {
						sequences[i].Segments[j].Page ^= 1
					}
				}
			case 3:
				q := &sequences[rng.IntN(len(sequences))]
				own := &q.Segments[rng.IntN(len(q.Segments))]
				own.Own, own.Tokens, q.Layout = !own.Own, max(own.Tokens, 4), 1<<32+uint64(step)
			case 9: // query tokens of nobody
				for i := rng.IntN(len(sequences)); i < len(sequences); i++ {
					sequences[i].QueryBegin++
				}
			case 11: // no own tokens
				q := &sequences[rng.IntN(len(sequences))]
				q.Segments = q.Segments[:len(q.Segments)-1]
			case 10: // fewer own tokens than query tokens
				segments := sequences[rng.IntN(len(sequences))].Segments
				segments[len(segments)-1].Tokens = 0
			case 7:
				o.SplitTokens = rng.IntN(20)
			case 8:
				o.PageSize = 1 << rng.IntN(5)
				o.Keys = someKeys(seed + uint64(step))
			case 4:
				s.Blocks = 1 + rng.IntN(20)
			case 5:
				o.PadTokens = rng.IntN(2) * 60
			case 6:
				s.MaxMembers = rng.IntN(2) * (1 + rng.IntN(20))
			}
			gotPlain, err := plain.Build(sequences, o)
			wantPlain, wantErr := schedule.Build(sequences, o)
			if fmt.Sprint(err) != fmt.Sprint(wantErr) {
				t.Fatalf("seed %d, step %d: error %v, want %v", seed, step, err, wantErr)
			}
			if err == nil && !same(gotPlain, wantPlain) {
				t.Fatalf("seed %d, step %d: got\n%+v, want\n%+v", seed, step, gotPlain, wantPlain)
			}
			if err == nil && rng.IntN(8) > 0 && !runs.follow(gotPlain.Runs, gotPlain.Number, gotPlain.Changed) {
				t.Fatalf("seed %d, step %d: of runs more have changed than %v", seed, step, gotPlain.Changed)
			}
			got, err := b.Build(sequences, o, s)
			want, wantErr := new(schedule.SharedBuilder).Build(sequences, o, s)
			if (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() {
				t.Fatalf("seed %d, step %d: error %v, want %v", seed, step, err, wantErr)
			}
			if err == nil && !sameShared(got, want) {
				t.Fatalf("seed %d, step %d: got\n%+v, want\n%+v", seed, step, got, want)
			}
			if l := &got.Decode; err == nil && !sharedRuns.follow(l.Runs, l.Number, l.Changed) {
				t.Fatalf("seed %d, step %d: of runs beside shared decode more have changed than %v", seed, step, l.Changed)
			}
		}
	}
}

// mirror is a copy of a list, of which each step copies what has changed.
type mirror[T comparable] struct {
	number uint64
	list   []T
}

// follow says whether the copy is as the list.
func (m *mirror[T]) follow(list []T, number uint64, changed []schedule.Span) bool {
	if number != m.number+1 || m.number == 0 {
		m.list = slices.Clone(list)
	}
	m.number = number
	m.list = append(m.list[:min(len(m.list), len(list))], make([]T, max(0, len(list)-len(m.list)))...)
	for _, c := range changed {
		copy(m.list[c.Begin:c.End], list[c.Begin:c.End])
	}
	return slices.Equal(m.list, list)
}

// sameShared compares lists; an empty one and none are the same.
func sameShared(a, b schedule.SharedLists) bool {
	return same(a.Decode, b.Decode) && slices.Equal(a.Items, b.Items) && slices.Equal(a.Runs, b.Runs) &&
		slices.Equal(a.Members, b.Members) && slices.Equal(a.Offsets, b.Offsets) && a.Saved == b.Saved
}

// A large batch in decode: of hundreds of steps, in which some sequences are cut anew, some
// leave, some join in their place, at the end or in between, and the chunks' pages move at
// times, each has the lists of a fresh builder.
func TestManyStepsOfManySequences(t *testing.T) {
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 11))
		o, s := options(), sharedOptions()
		o.Fold, o.Whole = seed%2 == 0, seed%4 == 0
		o.OnceTokens = int(seed%3) * 30000
		if seed%4 == 3 {
			o.MaxItems = 4 // so that the distance of the cuts changes as own tokens grow
		}
		server := &server{rng: rng, placed: make(map[string]uint64)}
		for range 40 {
			server.documents = append(server.documents, 1+rng.Int32N(1000))
		}
		for range 70 {
			server.join()
		}
		var plain schedule.Builder
		var shared schedule.SharedBuilder
		for step := range 250 {
			for range rng.IntN(3) * rng.IntN(2) {
				i := rng.IntN(len(server.batch))
				switch rng.IntN(4) {
				case 0: // what was behind it moves up
					server.batch = slices.Delete(server.batch, i, i+1)
					server.join()
				case 1: // the last one joined stands in its place
					server.batch = slices.Delete(server.batch, i, i+1)
					server.joinAt(i)
				case 2:
					server.batch[i].own = server.rng.Int32N(600)
				case 3:
					server.batch[i].queries = 1 + rng.Int32N(5)
				}
			}
			sequences := server.step(16, true)
			if rng.IntN(20) == 0 {
				for i := range sequences {
					for j := range sequences[i].Segments {
						sequences[i].Segments[j].Page += 7
					}
				}
			}
			got, err := plain.Build(sequences, o)
			if err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			if want, _ := schedule.Build(sequences, o); !same(got, want) {
				t.Fatalf("seed %d, step %d: other lists than a fresh builder's", seed, step)
			}
			gotShared, err := shared.Build(sequences, o, s)
			if err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			if want, _ := new(schedule.SharedBuilder).Build(sequences, o, s); !sameShared(gotShared, want) {
				t.Fatalf("seed %d, step %d: other lists of shared decode than a fresh builder's", seed, step)
			}
		}
	}
}

// What is left of a sequence to decode may be another chunk than in the step before.
func TestLeftWithAnotherChunk(t *testing.T) {
	a, c := schedule.Segment{Page: 0, Tokens: 4096}, schedule.Segment{Page: 256, Tokens: 4000, Offset: 4096}
	page := int32(1000)
	sequence := func(query int32, layout uint64, held ...schedule.Segment) schedule.Sequence {
		page++
		return schedule.Sequence{QueryBegin: query, Positions: []int32{9000}, Layout: layout, Segments: append(held, schedule.Segment{
			Page: page, Tokens: 5, Offset: 8996, Own: true,
		})}
	}
	o := schedule.Options{Rows: 16, Group: 4, MaxPosition: 1 << 20, PageSize: 16}
	s := schedule.SharedOptions{Rows: 32, Keys: 64, Blocks: 1, KVHeads: 1}
	var b schedule.SharedBuilder
	for step := range 6 {
		of := a // that is shared
		if step%2 > 0 {
			of = c
		}
		layouts := uint64(10 * step)
		sequences := []schedule.Sequence{sequence(0, 1, a, c), sequence(1, layouts+2, of), sequence(2, layouts+3, of)}
		got, err := b.Build(sequences, o, s)
		if err != nil {
			t.Fatal(err)
		}
		want, err := new(schedule.SharedBuilder).Build(sequences, o, s)
		if err != nil {
			t.Fatal(err)
		}
		if len(want.Decode.Runs) != 4 || len(want.Runs) == 0 {
			t.Fatalf("step %d: %+v: this shows nothing", step, want)
		}
		if !sameShared(got, want) {
			t.Fatalf("step %d: got\n%+v, want\n%+v", step, got, want)
		}
	}
}

// A step that fails leaves nothing behind: not even which chunks it would have shared.
func TestStepAfterOneOfTooManyTokens(t *testing.T) {
	a, c := schedule.Segment{Page: 0, Tokens: 4096}, schedule.Segment{Page: 256, Tokens: 4000, Offset: 4096}
	step := func(layouts ...uint64) (sequences []schedule.Sequence) {
		for i, layout := range layouts {
			held := []schedule.Segment{a, c}
			switch {
			case layout >= 200:
				held = held[1:]
			case layout >= 100:
				held = held[:1]
			}
			sequences = append(sequences, schedule.Sequence{
				QueryBegin: int32(i), Positions: []int32{9000}, Layout: layout,
				Segments: append(slices.Clone(held), schedule.Segment{Page: int32(1000 + i), Tokens: 5, Offset: 8996, Own: true}),
			})
		}
		return sequences
	}
	o := schedule.Options{Rows: 16, Group: 4, MaxPosition: 1 << 20, PageSize: 16, PadTokens: 3}
	s := schedule.SharedOptions{Rows: 32, Keys: 64, Blocks: 1, KVHeads: 1}
	var b schedule.SharedBuilder
	for i, sequences := range [][]schedule.Sequence{
		step(1, 101, 102), // the first is left with c
		step(1, 101, 102),
		step(1, 201, 202, 203), // would be left with a
		step(1, 204, 205),
	} {
		got, err := b.Build(sequences, o, s)
		want, wantErr := new(schedule.SharedBuilder).Build(sequences, o, s)
		if fmt.Sprint(err) != fmt.Sprint(wantErr) || errors.Is(err, schedule.ErrFixedSize) != (i == 2) {
			t.Fatalf("step %d: error %v, want %v", i, err, wantErr)
		}
		if err == nil && (len(want.Items) == 0 || !sameShared(got, want)) {
			t.Fatalf("step %d: got\n%+v, want\n%+v", i, got, want)
		}
	}
}
