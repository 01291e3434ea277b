package kernel

import (
	"fmt"
	"strings"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// Tuned is the kernels that were the fastest on one GPU model, or that the generator's cost
// model chooses for all others of a target.
type Tuned struct {
	Device string // cuda.Info.Name of the model
	Target string // in its place: the bundle's target that is closest to the device
	Rules  []Rule // of one kind, the first that a sequence is within is used
}

// Rule is a kernel for sequences of a kind up to some lengths.
type Rule struct {
	Kind        abi.Kind
	Query, Keys int    // the most query tokens and tokens of KV of a sequence; 0: any number
	Entry       string // of the artifact
	Fill        int    // blocks that a sequence alone is cut for, in percent of the multiprocessors; 0: as many as they hold
	Tokens      int    // of the smallest part that a sequence is cut into; 0: max(4 keys of a tile, 256)
}

// Choice is a kernel for a sequence, and what its work is listed by. It follows from
// the device and the sequence's own lengths, so that a sequence has the same
// results in any batch.
type Choice struct {
	Kind       abi.Kind
	Index      int  // in Choices
	Rows, Keys int  // of a tile
	Blocks     int  // that a sequence alone is cut for: schedule.Options.FillBy
	Tokens     int  // of the smallest part, likewise
	Resident   int  // blocks that the device runs at a time, likewise
	Cluster    int  // of the device's blocks that count as one in these
	Folds      bool // it takes items of several parts: schedule.Options.Fold

	// KeysAhead says that raw keys are rotated ahead of the launch, to pages of their own, one for
	// each entry of its page table: schedule.Ahead has the lists, Materialise rotates, MapKeys maps
	// the pages. KCache and KMap are then of these.
	KeysAhead bool

	kernel *loaded
}

// cutKeys is what a sequence is cut by, as [schedule.Options].Keys says: extend's tiles, where it folds parts.
func (c Choice) cutKeys() int {
	if c.Kind == abi.KindExtend && c.Folds {
		return c.Keys
	}
	return 0
}

// Schedule is o, which says what a sequence is and sees, for lists of the choice's kernel: by its tiles, in the order or the parts that suit
// how many of its blocks the device runs.
func (c Choice) Schedule(o schedule.Options, kvHeads int) schedule.Options {
	o.Rows, o.Cluster, o.Keys, o.Fold = c.Rows, c.Cluster, c.cutKeys(), c.Folds
	if c.Kind == abi.KindPrefill {
		return o.Together(c.Blocks, c.Resident, kvHeads)
	}
	return o.FillBy(c.Blocks, c.Resident, kvHeads, c.Tokens)
}

// Plan is the tile of the choice's kernel, such as r16k64s4w8, as its file is named by it; "" of
// the zero Choice. (Rows are those of an item, which may be fewer.)
func (c Choice) Plan() string {
	if c.kernel == nil {
		return ""
	}
	name := strings.TrimSuffix(c.kernel.artifact.File, ".cu")
	return name[strings.LastIndexByte(name, '_')+1:]
}

// route is a rule with its kernel.
type route struct {
	query, keys int
	choice      Choice
}

// Choose returns the kernel for a sequence of so many query tokens and tokens of KV,
// the query tokens' own included. It allocates nothing. A kind that the set does not
// have gives the zero Choice.
func (s *Set) Choose(kind abi.Kind, query, keys int) Choice {
	for i := range s.routes[kind] {
		r := &s.routes[kind][i]
		if query <= r.query && keys <= r.keys {
			return r.choice
		}
	}
	return Choice{}
}

// Choices are all that Choose gives for a kind.
func (s *Set) Choices(kind abi.Kind) []Choice {
	var all []Choice
	for _, r := range s.routes[kind] {
		if r.choice.Index == len(all) {
			all = append(all, r.choice)
		}
	}
	return all
}

// Attend launches a kind that attends by the kernel of a choice. With no items it
// does nothing.
func (s *Set) Attend(stream cuda.Stream, c Choice, p abi.AttendParams) error {
	if c.kernel == nil {
		return s.missing("launch", c.Kind)
	}
	return s.attend(stream, c.kernel, c.Kind, p)
}

// MapChoice is MapCache for the kernel of a choice.
func (s *Set) MapChoice(c Choice, keys, values abi.DevicePtr, pages, kvHeads int) (*CacheMaps, error) {
	if c.kernel == nil {
		return nil, s.missing("map the cache for", c.Kind)
	}
	return s.mapFor(c.kernel, keys, values, pages, kvHeads)
}

// MapKeys makes the tensor map of keys that were rotated ahead of launches by a choice: of so many
// pages at keys. V of it is null.
func (s *Set) MapKeys(c Choice, keys abi.DevicePtr, pages, kvHeads int) (*CacheMaps, error) {
	if c.kernel == nil {
		return nil, s.missing("map keys for", c.Kind)
	}
	return s.mapKeysFor(c.kernel, keys, pages, kvHeads)
}

func (s *Set) missing(what string, kind abi.Kind) error {
	return fmt.Errorf("%s %s: %s has no such kernel: add it to the kinds of its spec", what, kind, s.name)
}

// tunedFor is what was measured on a device's model, or else what the cost model chooses
// for its target; nothing where there is neither. target is the one to take, or "".
func (b *Bundle) tunedFor(device cuda.Info, target string) (Tuned, error) {
	for _, t := range b.Tuned {
		if t.Device != "" && t.Device == device.Name {
			return t, nil
		}
	}
	if device.EmulatesSource {
		return Tuned{}, nil
	}
	if target == "" {
		var targets []string
		for _, a := range b.Kernels {
			targets = append(targets, a.Targets...)
		}
		var err error
		if target, err = Closest(targets, device); err != nil {
			return Tuned{}, err
		}
	}
	for _, t := range b.Tuned {
		if target != "" && t.Target == target {
			return t, nil
		}
	}
	return Tuned{}, nil
}

// attends are the kinds that have a tile, and so a choice.
var attends = [...]abi.Kind{abi.KindPrefill, abi.KindExtend, abi.KindDecode, abi.KindSharedDecode}

const anyLength = int(^uint(0) >> 1)

// route lists the choices of each kind: those of the table, and behind them the
// kind's usual kernel for any sequence.
func (s *Set) route(rules []Rule, tuned map[string]*loaded) {
	s.routes = map[abi.Kind][]route{}
	for _, kind := range attends {
		for _, rule := range append(rules[:len(rules):len(rules)], Rule{Kind: kind}) {
			l := s.kernels[kind]
			if rule.Entry != "" {
				l = tuned[rule.Entry]
			}
			if rule.Kind != kind || l == nil {
				continue
			}
			s.addRoute(rule, l)
		}
	}
}

func (s *Set) addRoute(rule Rule, l *loaded) {
	r := route{query: rule.Query, keys: rule.Keys, choice: Choice{
		Kind: rule.Kind, Rows: l.artifact.Rows, Keys: l.artifact.Keys, Blocks: s.blocks(l), Tokens: rule.Tokens, Resident: s.blocks(l), Cluster: l.cluster(), Folds: l.artifact.Folds, KeysAhead: l.artifact.KeysAhead, kernel: l,
	}}
	if r.query == 0 {
		r.query = anyLength
	}
	if r.keys == 0 {
		r.keys = anyLength
	}
	if rule.Fill > 0 {
		r.choice.Blocks = max(1, rule.Fill*s.multiprocessors/100/r.choice.Cluster)
	}
	if r.choice.Tokens == 0 {
		r.choice.Tokens = schedule.LeastPart(l.artifact.Keys)
	}
	known := s.routes[rule.Kind]
	for _, k := range known {
		if k.query >= r.query && k.keys >= r.keys {
			return // never reached
		}
		r.choice.Index = max(r.choice.Index, k.choice.Index+1)
	}
	for _, k := range known {
		c := k.choice
		if c.Index = r.choice.Index; c == r.choice {
			r.choice = k.choice // the same for other lengths
			break
		}
	}
	s.routes[rule.Kind] = append(known, r)
}
