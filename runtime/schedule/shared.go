package schedule

import (
	"fmt"
	"math"
	"slices"

	"github.com/kgen-project/kgen/runtime/abi"
)

// SharedOptions are the facts of a spec, a plan and a device that the lists of
// shared decode depend on, beside [Options], which are those of decode.
type SharedOptions struct {
	Rows, Keys int // of a tile of shared_decode
	Blocks     int // of shared_decode that the device runs at a time
	KVHeads    int

	// Bitwise: a sequence's results have the same bits whoever else holds its
	// chunks. Every chunk is then read by shared decode, held by many or by one, in
	// items that are cut by its own length alone; own tokens are read by decode.
	// Without it what is expected to be faster is done (see [SharedBuilder]).
	Bitwise bool

	// PadItems is a fixed size, for lists that a CUDA graph reads again and again:
	// items that do nothing are added up to PadItems. 0: no padding. MaxMembers is
	// the most members, which is the most partial slots of shared decode; 0: no limit.
	PadItems, MaxMembers int
}

// SharedLists are the work lists of a decode step in which what several sequences
// hold is read once. Decode and shared decode may run in any order, or at a
// time; one merge by Decode.SlotBegin takes the results of both.
type SharedLists struct {
	Decode Lists // of what is not shared; SlotBegin and Slots are of both

	Items   []abi.Item // of shared decode: heaviest first, about; padding last
	Runs    []abi.Run
	Members []abi.Member
	Offsets []int32 // what Run.Offset counts in

	// Saved is the tokens of KV, for each KV head, that decode alone would have
	// read beyond those that are read now.
	Saved int
}

// SharedBuilder makes the lists of steps in which sequences may hold the same
// chunks. Two segments are of one chunk where they are not Own and have the same
// Page and Tokens. It keeps its memory from call to call: once it has seen its
// largest step it allocates nothing. It is for one goroutine at a time.
//
// Where the sequences of a step hold what those of the step before did, as their Layouts
// say, it keeps what is known of the chunks and lists own tokens alone. Where some have left or
// joined, all is looked at again, and decode beside it keeps of the others what [Builder] does.
// The lists are, to the bit, those of a builder that has seen no step.
//
// # Cost model
//
// Costs are in keys: the time in which a block walks one key of a KV head. A tile
// of shared decode, however many of its rows are used, and a tile of decode walk
// a key in the same time, which is that of its bytes.
//
//   - An item of shared decode takes 96 keys beyond its own, for its start and end.
//   - A partial result is a row for each query head of the group, written and read
//     again in L2: Group keys for each member of an item.
//   - The launch takes 1536 keys on every block.
//
// Chunks that the same sequences hold one behind the other are a bundle, which is
// read by the same items. A bundle is shared where that costs less than what decode
// would read of it, and none is if that would gain less than the launch takes.
//
// A bundle's members go to tiles of Rows / Group, in their order, and its keys are
// cut into parts, as even as tiles of keys allow. With waves the items that each
// block takes, 1 to 4, the cuts are the finest with which so many waves
// hold the items; of these, those with the least waves * (keys of an item +
// 96) + partial results. Where 4 waves are too few, no item has more keys
// than a fourth of a block's even share.
type SharedBuilder struct {
	decode Builder

	table   []int32  // hash of a chunk -> its number + 1
	keys    []uint64 // [chunks]: page and tokens
	chunks  []chunk
	seen    []int64 // [chunks], with a window: keys that decode would walk
	first   []first // [chunks]
	empty   bool    // a segment that is not of own tokens has none
	numbers []int32 // [segments of all sequences]: of the chunk; negative: of none that is seen
	bundles []bundle
	rest    []Segment // what decode reads
	from    []int32   // [rest]: which segments of their sequences
	left    []Sequence
	divided divided
	known   []known // of the sequences, or of what is left of them
	order   []int32 // bundles, the heaviest items first
	items   []abi.Item
	runs    []abi.Run
	members []abi.Member
	offsets []int32
	buckets [sortBuckets + 2]int32
	before  before
}

// Build makes the lists. They share memory with b and stay as they are until the
// next call. Where nothing is shared, Decode is what [Builder.Build] makes.
func (b *SharedBuilder) Build(sequences []Sequence, o Options, s SharedOptions) (SharedLists, error) {
	lists, err := b.build(sequences, &o, &s)
	if err != nil {
		return SharedLists{}, fmt.Errorf("schedule: %w", err)
	}
	return lists, nil
}

func (b *SharedBuilder) build(sequences []Sequence, o *Options, s *SharedOptions) (SharedLists, error) {
	if err := o.check(); err != nil {
		return SharedLists{}, err
	}
	if err := s.check(o); err != nil {
		return SharedLists{}, err
	}
	tokens, err := b.decode.countTokens(sequences, o)
	if err != nil {
		return SharedLists{}, err
	}
	same, moved := b.again(sequences, o, s)
	b.before.known = false
	left, known := sequences, same
	switch {
	case !same:
		if err := b.share(sequences, o, s); err != nil {
			return SharedLists{}, err
		}
		known = b.remember(sequences, o, s)
		if len(b.bundles) > 0 {
			left = b.divide(sequences)
		}
		if divided := len(b.bundles) > 0; divided != b.divided.decoded {
			b.decode.known, b.divided.decoded = false, divided // all are left with something else
		}
	case len(b.bundles) > 0:
		left = b.divideAgain(sequences)
	}
	lists := SharedLists{Saved: b.before.saved}
	lists.Decode, err = b.decode.build(left, b.known, o, tokens)
	if err != nil {
		return SharedLists{}, err
	}
	if !same || moved {
		if o.Window > 0 || b.empty { // not all segments are of a chunk that is seen
			b.decode.readers.see(sequences)
		} else {
			b.decode.readers.know(b.chunks)
		}
		b.list(o, s)
	}
	b.decode.finish(left, &lists.Decode)
	slotBegin := lists.Decode.SlotBegin
	switch {
	case !same:
		b.listMembers(slotBegin)
	case !slices.Equal(slotBegin, b.before.slotBegin):
		b.moveMembers(slotBegin)
	}
	b.before.slotBegin = append(b.before.slotBegin[:0], slotBegin...)
	b.before.known = known
	lists.Items, lists.Runs, lists.Members, lists.Offsets = b.items, b.runs, b.members, b.offsets
	return lists, nil
}

// share finds what is shared, and cuts it.
func (b *SharedBuilder) share(sequences []Sequence, o *Options, s *SharedOptions) (err error) {
	if err := b.invert(sequences, o); err != nil {
		return err
	}
	b.bundle(o, s)
	if b.before.saved, err = b.cut(o, s); err != nil {
		return err
	}
	b.place(s)
	return nil
}

func (s *SharedOptions) check(o *Options) error {
	for _, f := range [...]struct {
		name         string
		value, least int
	}{
		{"Rows", s.Rows, o.Group}, {"Keys", s.Keys, 1}, {"Blocks", s.Blocks, 1}, {"KVHeads", s.KVHeads, 1},
		{"PadItems", s.PadItems, 0}, {"MaxMembers", s.MaxMembers, 0},
	} {
		if f.value < f.least || f.value > math.MaxInt32 {
			return fmt.Errorf("shared decode: %s is %d, want %d to %d", f.name, f.value, f.least, math.MaxInt32)
		}
	}
	return nil
}
