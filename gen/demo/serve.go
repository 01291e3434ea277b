package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
)

// method is a way to serve a request.
type method struct {
	name   string
	reuses bool // a document is encoded once
}

var (
	lazyReuse     = method{"lazy reuse", true}
	copies        = method{"copy per request", true}
	recomputation = method{"full recomputation", false}
)

// server serves a workload by one method.
type server struct {
	device    *device
	method    method
	model     *model
	work      workload
	documents *serve.Engine // holds chunks; nil where there are none
	requests  *serve.Engine // holds sequences; with lazy reuse the same
	open      []*serve.Sequence

	encode, copy, first time.Duration // of all requests' first tokens: in all, and two parts of it
	decode              time.Duration // of all decode steps
	spared              int64         // bytes that they need not read
	largest             float64       // relative error of an output row
}

func (d *device) server(how method, m *model, w workload) (*server, error) {
	v := &server{device: d, method: how, model: m, work: w}
	var documents, requests []int // tokens
	if how.reuses {
		for _, document := range w.used() {
			documents = append(documents, w.lengths[document])
		}
	}
	for r := range w.Requests {
		switch own := w.Question + w.Decode; how {
		case lazyReuse:
			requests = append(requests, own)
		case copies:
			requests = append(requests, own, w.tokens(r)) // which are in pages of their own
		default:
			requests = append(requests, own+w.tokens(r))
		}
	}
	var err error
	switch how {
	case lazyReuse:
		v.requests, err = d.engine(spec.Segment, append(documents, requests...))
		v.documents = v.requests
	case copies:
		if v.documents, err = d.engine(spec.Segment, documents); err == nil {
			v.requests, err = d.engine(spec.Baked, requests)
		}
	default:
		v.requests, err = d.engine(spec.Baked, requests)
	}
	if err != nil {
		return nil, errors.Join(err, v.close())
	}
	return v, nil
}

func (v *server) engines() []*serve.Engine {
	var all []*serve.Engine
	for _, e := range []*serve.Engine{v.documents, v.requests} {
		if e != nil && (len(all) == 0 || all[0] != e) {
			all = append(all, e)
		}
	}
	return all
}

func (v *server) close() error {
	var errs []error
	for _, e := range v.engines() {
		errs = append(errs, e.Close())
	}
	return errors.Join(errs...)
}

// kvBytes is the size of the pages in use.
func (v *server) kvBytes() int64 {
	n := int64(0)
	for _, e := range v.engines() {
		n += int64(e.Cache().Stats().PagesUsed) * e.Cache().Config().Shape.PageBytes()
	}
	return n
}

// serveAll gives each request its first token when it comes, one after the other,
// and then all of them together the others. The servers take turns, so that
// what else the machine does hits all alike.
func serveAll(ctx context.Context, servers []*server, w workload) error {
	for i := range w.Requests + w.Decode {
		for turn := range servers {
			v := servers[(i+turn)%len(servers)]
			var err error
			if i < w.Requests {
				if err = v.firstToken(ctx, i); err != nil {
					err = fmt.Errorf("request %d: %w", i, err)
				}
			} else if err = v.decodeStep(ctx, i-w.Requests); err != nil {
				err = fmt.Errorf("decode step %d: %w", i-w.Requests, err)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", v.method.name, err)
			}
		}
		w.Progress(i+1, w.Requests+w.Decode)
	}
	return nil
}

// firstToken opens a request's sequence and runs its question.
func (v *server) firstToken(ctx context.Context, r int) error {
	var chunks []*kvcache.Chunk
	defer func() {
		for _, c := range chunks {
			c.Release() // the sequence has holds of its own
		}
	}()
	if v.method.reuses {
		for _, document := range v.work.requests[r] {
			c, err := v.register(ctx, document)
			if err != nil {
				return fmt.Errorf("document %d: %w", document, err)
			}
			chunks = append(chunks, c)
		}
	}
	placed := kvcache.Pack(chunks...)
	if v.method == copies {
		c, err := v.materialise(ctx, r, chunks)
		if err != nil {
			return fmt.Errorf("copy its documents: %w", err)
		}
		chunks = append(chunks, c)
		placed = kvcache.Pack(c)
	}
	q, err := v.requests.Open(placed, kvcache.Packed)
	if err != nil {
		return err
	}
	v.open = append(v.open, q)

	in := v.model.own(r).part(0, v.work.Question)
	if !v.method.reuses {
		var all []vectors
		for _, document := range v.work.requests[r] {
			all = append(all, v.model.document(document))
		}
		in = join(append(all, in)...)
	}
	took, _, out, err := v.step(ctx, []serve.Entry{{Sequence: q, Tokens: in.tokens}}, in)
	if err != nil {
		return err
	}
	v.first += took
	return v.judge(out, r, in.tokens-v.work.Question, 0, v.work.Question)
}

// step runs the layer for new tokens of some sequences.
func (v *server) step(ctx context.Context, batch []serve.Entry, in vectors) (took time.Duration, spared int64, out abi.DevicePtr, err error) {
	io, err := v.device.load(in)
	if err != nil {
		return 0, 0, 0, err
	}
	start := time.Now()
	s, err := v.requests.Schedule(ctx, batch)
	if err != nil {
		return 0, 0, 0, err
	}
	defer s.Abort() // once committed, it does nothing
	if err := s.Attend(ctx, 0, io); err != nil {
		return 0, 0, 0, err
	}
	if err := s.Wait(ctx); err != nil {
		return 0, 0, 0, err
	}
	return time.Since(start), s.Spared(), io.Out, s.Commit()
}

// register holds a document's chunk, and encodes it if there is none yet.
func (v *server) register(ctx context.Context, document int) (*kvcache.Chunk, error) {
	start := time.Now()
	tokens := number(document, v.work.lengths[document])
	c, err := v.documents.Register(ctx, tokens, func(ctx context.Context, s *serve.Step) error {
		loading := time.Now()
		io, err := v.device.load(v.model.document(document))
		if err != nil {
			return err
		}
		start = start.Add(time.Since(loading)) // a server has the inputs on the device
		if err := s.Attend(ctx, 0, io); err != nil {
			return err
		}
		return s.Wait(ctx)
	})
	took := time.Since(start)
	v.encode += took
	v.first += took
	return c, err
}

// number stands for a text's tokens: it tells texts apart.
func number(text, tokens int) []int32 {
	x := make([]int32, tokens)
	for i := range x {
		x[i] = int32(text)
	}
	return x
}

// materialise copies a request's documents to pages of its own, K turned to
// where it stands in the request. In the baked encoding they are one chunk.
func (v *server) materialise(ctx context.Context, r int, chunks []*kvcache.Chunk) (*kvcache.Chunk, error) {
	start := time.Now()
	c, err := v.requests.Cache().Acquire(ctx, kvcache.Document{Tokens: number(r, v.work.tokens(r))}, func(ctx context.Context, pages []int32) error {
		var table kvcache.Table
		target, end := table.Append(pages), 0
		var list []abi.Copy
		for _, c := range chunks {
			source, err := c.Pages(nil)
			if err != nil {
				return err
			}
			list = append(list, abi.Copy{
				SrcPage: table.Append(source), DstPage: target, DstBegin: int32(end), Count: int32(c.Tokens()), Offset: int32(end),
			})
			end += c.Tokens()
		}
		copies, err := v.device.upload("copies", list)
		if err != nil {
			return err
		}
		entries, err := v.device.upload("page table", table.Pages)
		if err != nil {
			return err
		}
		from, to := v.documents.Cache().Layer(0), v.requests.Cache().Layer(0)
		err = v.device.kernels[spec.Segment].Materialise(v.requests.Stream(), abi.MaterialiseParams{
			SrcK: from.K, SrcV: from.V, DstK: to.K, DstV: to.V, Copies: copies, PageTable: entries, Rope: v.device.rope,
			KVHeads: int32(v.device.spec.Model.KVHeads), CopyCount: int32(len(list)),
		})
		if err != nil {
			return err
		}
		return v.device.dev.Synchronize(ctx, v.requests.Stream())
	})
	took := time.Since(start)
	v.copy += took
	v.first += took
	return c, err
}

// decodeStep is token t behind the question, of all requests.
func (v *server) decodeStep(ctx context.Context, t int) error {
	var all []vectors
	var batch []serve.Entry
	for r, q := range v.open {
		all = append(all, v.model.own(r).part(v.work.Question+t, v.work.Question+t+1))
		batch = append(batch, serve.Entry{Sequence: q, Tokens: 1})
	}
	took, spared, out, err := v.step(ctx, batch, join(all...))
	if err != nil {
		return err
	}
	v.decode += took
	v.spared += spared
	for r := range v.open {
		if err := v.judge(out, r, r, v.work.Question+t, 1); err != nil {
			return fmt.Errorf("request %d: %w", r, err)
		}
	}
	return nil
}
