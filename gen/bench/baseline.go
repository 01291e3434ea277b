package bench

import (
	"context"
	"fmt"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// Baseline is another way to compute a case, or several.
type Baseline interface {
	Name() string
	time(ctx context.Context, t *timer, p *Problem) ([]Peer, error)
}

// Peer is a baseline's time on a case.
type Peer struct {
	Name string `json:"name"`
	Times
	Ratio float64 `json:"ratio"` // Median over the row's: above 1, kgen is faster

	// Of baselines that copy the documents of a request: the copies alone, that a
	// request needs once, before its first token. A decode step's Median is without them.
	Copy *Times `json:"copy,omitempty"`

	Note  string `json:"note,omitempty"`
	Error string `json:"error,omitempty"` // why there is no time
}

// Raw is the same by kernels that rotate un-rotated keys as they come, or once ahead of them.
func Raw(s spec.Spec, k Kernels) Baseline { return raw{spec.WithEncoding(s, spec.Raw), k} }

type raw struct {
	spec    spec.Spec
	kernels Kernels
}

func (raw) Name() string { return "raw" }

func (r raw) time(ctx context.Context, t *timer, p *Problem) ([]Peer, error) {
	st, err := p.attend(r.kernels, r.spec, p.layout.Sequences, p.cache)
	if err != nil {
		return nil, err
	}
	times, err := t.measure(ctx, st.launch)
	return []Peer{{Name: r.Name(), Times: times}}, err
}

// Batching is the same by the same kernels with the spec's other batching, in steps of extend of
// several sequences.
func Batching(s spec.Spec, k Kernels) Baseline {
	if s.Batching == spec.Fastest {
		s.Batching = spec.Bitwise
	} else {
		s.Batching = spec.Fastest
	}
	return batching{s, k}
}

type batching struct {
	spec    spec.Spec
	kernels Kernels
}

func (b batching) Name() string { return "batching: " + string(b.spec.Batching) }

func (b batching) time(ctx context.Context, t *timer, p *Problem) ([]Peer, error) {
	if p.c.Kind != spec.Extend || p.c.Batch == 1 {
		return nil, nil
	}
	st, err := p.attend(b.kernels, b.spec, p.layout.Sequences, p.cache)
	if err != nil {
		return nil, err
	}
	times, err := t.measure(ctx, st.launch)
	return []Peer{{Name: b.Name(), Times: times}}, err
}

// Materialiser copies segments to pages of a sequence's own, K turned to its place.
type Materialiser interface {
	Materialise(s cuda.Stream, p abi.MaterialiseParams) error
}

// Copies are two baselines that copy the documents of each request and
// turn them to its positions, and then attend by the classical kernel: baked is that
// kernel on copies that are there, `copy + baked` is Block-Attention, which makes
// them first. A third keeps the copies that were made, by document and
// place, in an LRU list as large as all documents are once, and makes those alone
// that are not there; it is timed on cases with Sharing.
func Copies(s spec.Spec, m Materialiser, baked Kernels) Baseline {
	return copies{spec.WithEncoding(s, spec.Baked), m, baked}
}

type copies struct {
	spec         spec.Spec
	materialiser Materialiser
	kernels      Kernels
}

func (copies) Name() string { return "copies" }

// The names of [Copies]' peers.
const (
	PeerBaked     = "baked"
	PeerCopyBaked = "copy + baked"
	PeerLRU       = "LRU of copies"
)

func (b copies) time(ctx context.Context, t *timer, p *Problem) ([]Peer, error) {
	if p.c.Kind == spec.Prefill {
		st, err := p.attend(b.kernels, b.spec, p.layout.Sequences, p.cache) // nothing to copy
		if err != nil {
			return nil, err
		}
		times, err := t.measure(ctx, st.launch)
		return []Peer{{Name: PeerBaked, Times: times}}, err
	}
	peers, err := b.perRequest(ctx, t, p)
	if err == nil && p.c.Sharing.Documents > 0 {
		var peer Peer
		peer, err = b.withReuse(ctx, t, p)
		peers = append(peers, peer)
	}
	return peers, err
}

// perRequest times copies that belong to one request each.
func (b copies) perRequest(ctx context.Context, t *timer, p *Problem) ([]Peer, error) {
	defer p.mark()()
	copies, err := b.copyPerRequest(ctx, t, p)
	if err != nil {
		return nil, err
	}
	attend, err := t.measure(ctx, copies.step.launch)
	if err != nil {
		return nil, err
	}
	copying, err := t.measure(ctx, copies.copy)
	if err != nil {
		return nil, err
	}
	peers := []Peer{{Name: PeerBaked, Times: attend, Copy: &copying}}
	if p.c.Kind == spec.Extend { // the step that gives the first token
		both, err := t.measure(ctx, func(stream cuda.Stream) error {
			if err := copies.copy(stream); err != nil {
				return err
			}
			return copies.step.launch(stream)
		})
		if err != nil {
			return nil, err
		}
		peers = append(peers, Peer{Name: PeerCopyBaked, Times: both, Copy: &copying})
	}
	return peers, nil
}

// withReuse times a batch that finds some of its copies made.
func (b copies) withReuse(ctx context.Context, t *timer, p *Problem) (Peer, error) {
	defer p.mark()()
	copies, err := b.copyWithReuse(ctx, t, p)
	if err != nil {
		return Peer{}, err
	}
	attend, err := t.measure(ctx, copies.step.launch)
	if err != nil {
		return Peer{}, err
	}
	h := p.c.Sharing
	peer := Peer{Name: PeerLRU, Times: attend, Note: fmt.Sprintf("%d of %d documents copied", copies.documents, p.c.Batch*h.Held)}
	if copies.documents > 0 {
		copying, err := t.measure(ctx, copies.copy)
		if err != nil {
			return Peer{}, err
		}
		peer.Copy = &copying
	}
	return peer, nil
}
