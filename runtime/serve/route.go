package serve

import (
	"fmt"
	"math"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// chooser is Kernels that may have several of a kind, for sequences of different
// lengths: see [kernel.Set.Choose].
type chooser interface {
	Choose(kind abi.Kind, query, keys int) kernel.Choice
	Choices(kind abi.Kind) []kernel.Choice
	Attend(s cuda.Stream, c kernel.Choice, p abi.AttendParams) error
	MapChoice(c kernel.Choice, keys, values abi.DevicePtr, pages, kvHeads int) (*kernel.CacheMaps, error)
}

// keyRotator is a chooser of kernels some of which read raw keys that are rotated ahead of
// them: see [kernel.Choice].
type keyRotator interface {
	MapKeys(c kernel.Choice, keys abi.DevicePtr, pages, kvHeads int) (*kernel.CacheMaps, error)
	Materialise(s cuda.Stream, p abi.MaterialiseParams) error
}

// mostChoices is the kernels of a kind that an engine takes.
const mostChoices = 8

// route is a kernel of a kind, and how its work is listed. Rows is 0 where there is
// none.
type route struct {
	kind     int           // index in kinds
	choice   kernel.Choice // the zero Choice: the kind's one kernel
	schedule schedule.Options
}

// routes are those of all kinds. A kind's own start at first. Decode has one, that
// of sequences of any length: those of a step are one launch, and a graph replays it
// whatever their lengths become.
type routes struct {
	all     []route
	first   [len(kinds)]int
	chooser chooser    // nil: each kind has one
	rotator keyRotator // nil: no kernel needs it
}

func newRoutes(m Model, k Kernels, device cuda.Info) (routes, error) {
	var r routes
	r.chooser, _ = k.(chooser)
	for i, kind := range kinds {
		r.first[i] = len(r.all)
		rows, keys := k.Tile(kind)
		choices := []kernel.Choice{{Kind: kind, Rows: rows, Keys: keys, Blocks: blocksOf(k, kind, device), Tokens: schedule.LeastPart(keys)}}
		switch {
		case r.chooser == nil || rows == 0 || i == sharedDecode:
		case i == decode:
			choices = []kernel.Choice{r.chooser.Choose(kind, 1, math.MaxInt)}
		default:
			choices = r.chooser.Choices(kind)
		}
		if len(choices) > mostChoices {
			return routes{}, fmt.Errorf("%d kernels of %s; an engine takes %d: tune with fewer choices", len(choices), kind, mostChoices)
		}
		for _, c := range choices {
			if c.KeysAhead && r.rotator == nil {
				var ok bool
				if r.rotator, ok = k.(keyRotator); !ok {
					return routes{}, fmt.Errorf("a kernel of %s reads keys that are rotated ahead of it, and %T has no MapKeys and Materialise: embed the *kernel.Set", kind, k)
				}
			}
			r.all = append(r.all, route{i, c, scheduleOptions(m, c).Cache(device.L2Bytes, m.tokenBytes())})
		}
	}
	return r, nil
}

// of is the route of a sequence, as an index in all.
func (r *routes) of(kind, query, keys int) int {
	if r.chooser == nil {
		return r.first[kind]
	}
	return r.first[kind] + r.chooser.Choose(kinds[kind], query, keys).Index
}

// together is the route by which extend attends all sequences of a step that have more new tokens
// than least: one launch, whose end the device reaches but once. Each would have the one that suits
// its query tokens and the keys of all; where these differ, most of the work decides, but tiles
// of several blocks suit none that does not fill them. A step without such sequences has no use for it.
func (r *routes) together(entries []Entry, extended []kvcache.Extended, least int) int {
	keys := 0
	for i, entry := range entries {
		if entry.Tokens > least {
			keys += tokensOf(extended[i].Segments)
		}
	}
	var work [mostChoices]int // query tokens by keys
	for i, entry := range entries {
		if entry.Tokens > least {
			work[r.of(extend, entry.Tokens, keys)-r.first[extend]] += entry.Tokens * tokensOf(extended[i].Segments)
		}
	}
	all := r.all[r.first[extend]:]
	better := func(i, j int) bool {
		if alone := all[i].choice.Cluster <= 1; alone != (all[j].choice.Cluster <= 1) {
			return alone
		}
		return work[i] > work[j]
	}
	best := -1
	for i, w := range work {
		if w > 0 && (best < 0 || better(i, best)) {
			best = i
		}
	}
	return r.first[extend] + best
}

// options are those of a kind's first route.
func (r *routes) options(kind int) *schedule.Options { return &r.all[r.first[kind]].schedule }

// scheduleOptions says how the work of a kernel is listed.
func scheduleOptions(m Model, c kernel.Choice) schedule.Options {
	if c.Rows == 0 || c.Kind == abi.KindSharedDecode {
		return schedule.Options{}
	}
	return c.Schedule(schedule.Options{
		Group: m.Group, Causal: m.Causal, Window: m.Window, SinkTokens: m.SinkTokens,
		MaxPosition: m.maxPosition(), PageSize: m.PageSize, Whole: c.Kind == abi.KindExtend && m.Batching == fastest,
	}, m.KVHeads)
}

// launch launches a route's kernel.
func (e *Engine) launch(stream cuda.Stream, r *route, p abi.AttendParams) error {
	switch {
	case r.kind == sharedDecode:
		return e.kernels.(sharedDecoder).SharedDecode(stream, p)
	case e.routes.chooser != nil:
		return e.routes.chooser.Attend(stream, r.choice, p)
	case r.kind == prefill:
		return e.kernels.Prefill(stream, p)
	case r.kind == extend:
		return e.kernels.Extend(stream, p)
	}
	return e.kernels.Decode(stream, p)
}

// mapCache makes the tensor maps of a route's kernel, where it takes any.
func (e *Engine) mapCache(r *route, keys, values abi.DevicePtr, pages int) (*kernel.CacheMaps, error) {
	if e.routes.chooser != nil && r.kind != sharedDecode {
		return e.routes.chooser.MapChoice(r.choice, keys, values, pages, e.model.KVHeads)
	}
	return e.kernels.(cacheMapper).MapCache(kinds[r.kind], keys, values, pages, e.model.KVHeads)
}
