package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/kvcache"
)

// method is a way to serve a request.
type method struct {
	name     string
	encoding spec.Encoding // of what requests attend to
	chunks   bool          // a document is encoded once
	copies   bool          // a request has the KV of its documents to itself
	kind     spec.Kind     // of the first step
}

var (
	lazyReuse     = method{"lazy reuse", spec.Segment, true, false, spec.Extend}
	copies        = method{"copy per request", spec.Baked, true, true, spec.Extend}
	recomputation = method{"full recomputation", spec.Baked, false, true, spec.Prefill}
)

// served is what a method did.
type served struct {
	encode, copy, first time.Duration // of all requests' first tokens: in all, and two parts of it
	decode              time.Duration // of all decode steps
	stats               kvcache.Stats // with all requests open
	pageBytes           int64
	largest             float64 // relative error of an output row
}

// server serves a workload by one method.
type server struct {
	served
	device *device
	method method
	model  *model
	work   workload
	cache  *kvcache.Cache
	open   []*kvcache.Sequence // of each request
}

// serve gives each request its first token when it comes, one after the other,
// and then all of them together the others. The methods take turns, so that
// what else the machine does hits all alike.
func (d *device) serve(ctx context.Context, m *model, w workload) (servers []*server, err error) {
	for _, how := range []method{lazyReuse, copies, recomputation} {
		v := &server{device: d, method: how, model: m, work: w}
		if v.cache, err = kvcache.New(d.dev, v.config()); err != nil {
			return nil, fmt.Errorf("%s: %w", how.name, err)
		}
		defer func() { err = errors.Join(err, v.cache.Close()) }()
		v.pageBytes = v.cache.Config().Shape.PageBytes()
		servers = append(servers, v)
	}
	for i := range w.Requests + w.Decode {
		for turn := range servers {
			v := servers[(i+turn)%len(servers)]
			if i < w.Requests {
				err = v.firstToken(ctx, i)
			} else {
				err = v.decodeStep(ctx, i-w.Requests)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", v.method.name, err)
			}
		}
		w.Progress(i+1, w.Requests+w.Decode)
	}
	for _, v := range servers {
		v.stats = v.cache.Stats()
		for _, q := range v.open {
			q.Close()
		}
	}
	return servers, nil
}

// config is a cache with just enough pages.
func (v *server) config() kvcache.Config {
	s, w := v.device.spec, v.work
	c := kvcache.Config{
		Model: "demo", Spec: spec.Digest(s), Encoding: string(spec.Segment), MaxPosition: s.Rope.MaxPosition,
		Shape: kvcache.Shape{
			Layers: 1, KVHeads: s.Model.KVHeads, HeadDim: s.Model.HeadDim, VHeadDim: s.Model.VHeadDim,
			ElementBytes: 2, PageSize: s.Cache.PageSize,
		},
	}
	if v.method.chunks {
		for _, document := range w.used() {
			c.Pages += c.Shape.Pages(w.lengths[document])
		}
	}
	for r := range w.Requests {
		own := w.Question + w.Decode
		if v.method.copies {
			own += w.tokens(r)
		}
		c.Pages += c.Shape.Pages(own)
	}
	return c
}

// firstToken opens a request's sequence and runs its question.
func (v *server) firstToken(ctx context.Context, r int) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("request %d: %w", r, err)
		}
	}()
	var chunks []*kvcache.Chunk
	if v.method.chunks {
		for _, document := range v.work.requests[r] {
			c, err := v.acquire(ctx, document)
			if err != nil {
				return fmt.Errorf("document %d: %w", document, err)
			}
			defer c.Release()
			chunks = append(chunks, c)
		}
	}
	var placed []kvcache.Placement
	if !v.method.copies {
		placed = kvcache.Pack(chunks...)
	}
	q, err := v.cache.Open(placed, kvcache.Packed)
	if err != nil {
		return err
	}
	v.open = append(v.open, q)
	if v.method.chunks && v.method.copies {
		if err := v.materialise(ctx, q, r, chunks); err != nil {
			return fmt.Errorf("copy its documents: %w", err)
		}
	}

	in := v.model.own(r).part(0, v.work.Question)
	if !v.method.chunks {
		var all []vectors
		for _, document := range v.work.requests[r] {
			all = append(all, v.model.document(document))
		}
		in = join(append(all, in)...)
	}
	s, err := v.device.newStep(v.cache, v.model, v.method.encoding, v.method.kind, in)
	if err != nil {
		return err
	}
	start := time.Now()
	if err := s.sequence(q, in.tokens); err != nil {
		return err
	}
	if err := s.run(ctx); err != nil {
		return err
	}
	v.first += time.Since(start)
	return v.judge(s, r, in.tokens-v.work.Question, 0, v.work.Question)
}

// acquire holds a document's chunk, and encodes it if there is none yet.
func (v *server) acquire(ctx context.Context, document int) (*kvcache.Chunk, error) {
	// The tokens' numbers stand for a text: they tell documents apart.
	tokens := make([]int32, v.work.lengths[document])
	for i := range tokens {
		tokens[i] = int32(document)
	}
	return v.cache.Acquire(ctx, kvcache.Document{Tokens: tokens}, func(ctx context.Context, pages []int32) error {
		s, err := v.device.newStep(v.cache, v.model, spec.Segment, spec.Prefill, v.model.document(document))
		if err != nil {
			return err
		}
		start := time.Now()
		s.chunk(pages, len(tokens))
		if err := s.run(ctx); err != nil {
			return err
		}
		v.encode += time.Since(start)
		v.first += time.Since(start)
		return nil
	})
}

// materialise copies a request's documents to pages of its own, K turned to
// where it stands in the request.
func (v *server) materialise(ctx context.Context, q *kvcache.Sequence, r int, chunks []*kvcache.Chunk) error {
	start := time.Now()
	if err := q.Extend(v.work.tokens(r)); err != nil {
		return err
	}
	var table kvcache.Table
	segments, err := table.Add(nil, q)
	if err != nil {
		return err
	}
	var copies []abi.Copy
	end := 0
	for _, c := range chunks {
		pages, err := c.Pages(nil)
		if err != nil {
			return err
		}
		copies = append(copies, abi.Copy{
			SrcPage: table.Append(pages), DstPage: segments[0].Page, DstBegin: int32(end), Count: int32(c.Tokens()), Offset: int32(end),
		})
		end += c.Tokens()
	}
	u, layer := uploads{device: v.device}, v.cache.Layer(0)
	p := abi.MaterialiseParams{
		SrcK: layer.K, SrcV: layer.V, DstK: layer.K, DstV: layer.V, Rope: v.device.rope,
		Copies: u.upload("copies", copies), PageTable: u.upload("page table", table.Pages),
		KVHeads: int32(v.device.spec.Model.KVHeads), CopyCount: int32(len(copies)),
	}
	if u.err != nil {
		return u.err
	}
	if err := v.device.kernels[spec.Segment].Materialise(0, p); err != nil {
		return err
	}
	if err := v.device.dev.Synchronize(ctx, 0); err != nil {
		return err
	}
	v.copy += time.Since(start)
	v.first += time.Since(start)
	return nil
}

// decodeStep is token t behind the question, of all requests.
func (v *server) decodeStep(ctx context.Context, t int) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("decode step %d: %w", t, err)
		}
	}()
	var all []vectors
	for r := range v.open {
		all = append(all, v.model.own(r).part(v.work.Question+t, v.work.Question+t+1))
	}
	s, err := v.device.newStep(v.cache, v.model, v.method.encoding, spec.Decode, join(all...))
	if err != nil {
		return err
	}
	start := time.Now()
	for _, q := range v.open {
		if err := s.sequence(q, 1); err != nil {
			return err
		}
	}
	if err := s.run(ctx); err != nil {
		return err
	}
	v.decode += time.Since(start)
	for r := range v.open {
		if err := v.judge(s, r, r, v.work.Question+t, 1); err != nil {
			return fmt.Errorf("request %d: %w", r, err)
		}
	}
	return nil
}
