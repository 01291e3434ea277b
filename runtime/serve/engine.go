package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"unsafe"

	"golang.org/x/sync/semaphore"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/rope"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// Engine holds the KV of one model on one device and attends to it. Its methods
// may be called from any goroutine.
type Engine struct {
	device    cuda.Device
	kernels   Kernels
	model     Model
	routes    routes
	sharing   *schedule.SharedOptions // nil: the kernels have no shared_decode
	side      *cuda.Side              // of every second launch of those that attend
	cache     *kvcache.Cache
	stream    cuda.Stream
	ownStream bool
	rope      abi.DevicePtr         // 0 where nothing is rotated
	maps      [][]*kernel.CacheMaps // [layers][routes]; none where the kernels take none
	log       *slog.Logger
	metrics   *metrics

	// work is had in part by what queues work on the device, and as a whole by what must
	// be alone with it: recording a graph, and closing. Who only waits has none of it.
	work    *semaphore.Weighted
	closed  bool // written by who has mu and all of work
	waiting sync.WaitGroup

	mu     sync.Mutex
	spaces map[*workspace]struct{} // all there are
	free   []*workspace            // those of no open step
	graphs map[*Graph]struct{}
}

// New allocates the pool of pages on the device. The kernels must have been
// made for the device and the model's spec; they stay the caller's, as the
// device does, and must outlive the engine.
func New(dev cuda.Device, k Kernels, m Model, o Options) (_ *Engine, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("serve: new engine for %s: %w", m.Name, err)
		}
	}()
	if err := m.check(); err != nil {
		return nil, err
	}
	if err := m.checkSpec(k); err != nil {
		return nil, err
	}
	e := &Engine{
		device: dev, kernels: k, model: m, sharing: sharingOptions(m, k, dev.Info()),
		stream: o.Stream, log: o.Logger, metrics: newMetrics(), work: semaphore.NewWeighted(alone),
		spaces: map[*workspace]struct{}{}, graphs: map[*Graph]struct{}{},
	}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	if e.routes, err = newRoutes(m, k, dev.Info()); err != nil {
		return nil, err
	}
	if err := e.checkKernels(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			if e.cache != nil {
				err = errors.Join(err, e.cache.Close())
			}
			err = errors.Join(err, e.freeAll())
		}
	}()
	if e.stream == 0 {
		if e.stream, err = dev.NewStream(); err != nil {
			return nil, err
		}
		e.ownStream = true
	}
	if e.side, err = cuda.OpenSide(dev); err != nil {
		return nil, fmt.Errorf("a second stream: %w", err)
	}
	if table := rope.Table(m.Rope); len(table) > 0 {
		if e.rope, err = dev.Alloc(int64(len(table)) * 4); err != nil {
			return nil, fmt.Errorf("the RoPE table: %w", err)
		}
		if err := dev.Upload(e.rope, bytesOf(table)); err != nil {
			return nil, fmt.Errorf("the RoPE table: %w", err)
		}
	}
	e.cache, err = kvcache.New(dev, kvcache.Config{
		Model: m.Name, Spec: m.SpecDigest, Encoding: m.Encoding, Shape: m.shape(), Pages: o.Pages,
		MaxPosition: m.maxPosition(), Stream: e.stream, HostBytes: o.HostBytes, Policy: o.Policy,
	})
	if err != nil {
		return nil, err
	}
	if err := e.mapCaches(o.Pages); err != nil {
		return nil, err
	}
	e.log.Info("engine open", "model", m.Name, "device", dev.Info().Name, "pages", o.Pages, "page_bytes", m.shape().PageBytes())
	return e, nil
}

// checkKernels says which kernel is missing, or too small for the model.
func (e *Engine) checkKernels() error {
	if a, ok := e.kernels.(artifacts); ok {
		for _, kind := range []abi.Kind{abi.KindAppend, abi.KindMerge} {
			if _, ok := a.Artifact(kind); !ok {
				return fmt.Errorf("the kernels have no %s: add it to the kernels of the spec", kind)
			}
		}
	}
	for i, kind := range kinds[:sharedDecode] {
		switch rows := e.routes.options(i).Rows; {
		case rows == 0:
			return fmt.Errorf("the kernels have no %s: add it to the kernels of the spec", kind)
		case rows < e.model.Group:
			return fmt.Errorf("the kernels' tile of %s has %d rows, and a token's group of query heads takes %d", kind, rows, e.model.Group)
		}
	}
	return nil
}

// mapCaches makes the tensor maps of every layer.
func (e *Engine) mapCaches(pages int) error {
	if _, ok := e.kernels.(cacheMapper); !ok {
		return nil
	}
	e.maps = make([][]*kernel.CacheMaps, e.model.Layers)
	for layer := range e.maps {
		kv := e.cache.Layer(layer)
		e.maps[layer] = make([]*kernel.CacheMaps, len(e.routes.all))
		for i := range e.routes.all {
			r := &e.routes.all[i]
			if r.kind == sharedDecode && e.sharing == nil {
				continue
			}
			m, err := e.mapCache(r, kv.K, kv.V, pages)
			if err != nil {
				return fmt.Errorf("layer %d: %w", layer, err)
			}
			e.maps[layer][i] = m
		}
	}
	return nil
}

// Cache is the registry of chunks and the pool of pages: for statistics,
// eviction and persistence. Sequences of an engine come from [Engine.Open]
// alone.
func (e *Engine) Cache() *kvcache.Cache { return e.cache }

// Stream is where the engine queues its work.
func (e *Engine) Stream() cuda.Stream { return e.stream }

// Encode runs the model over a document's tokens, alone and at positions from 0,
// and calls [Step.Attend] for each layer. Register ends the step; encode must not. It
// may return when its work is queued on the engine's stream. It runs on a goroutine of
// its own, and its context ends when nobody waits for the document any more. Where it
// panics, the panic is its error.
type Encode func(ctx context.Context, s *Step) error

// Register returns a hold on a document's chunk, and encodes it where there is
// none: once, however many ask for it at a time. If the encode fails, all who
// wait get its error and nothing of it is left. Release the chunk when no
// further sequence is to be opened with it.
func (e *Engine) Register(ctx context.Context, tokens []int32, encode Encode) (*kvcache.Chunk, error) {
	var write kvcache.Encode // nil where encode is: the cache says so
	if encode != nil {
		write = func(ctx context.Context, pages []int32) error { return e.encode(ctx, len(tokens), pages, encode) }
	}
	chunk, err := e.cache.Acquire(ctx, kvcache.Document{Tokens: tokens}, write)
	if err != nil {
		e.log.Warn("register failed", "tokens", len(tokens), "error", err)
		return nil, fmt.Errorf("serve: register a document of %d tokens: %w", len(tokens), err)
	}
	return chunk, nil
}

func (e *Engine) encode(ctx context.Context, tokens int, pages []int32, encode Encode) error {
	s, err := e.scheduleChunk(ctx, tokens, pages)
	if err != nil {
		return err
	}
	defer s.Abort()
	if err := encode(ctx, s); err != nil {
		return err
	}
	// The chunk will be taken for good: wait for what the device says.
	if err := s.Wait(ctx); err != nil {
		return err
	}
	return s.Commit()
}

// Open makes a sequence of chunks and, behind them, its own tokens, of which it
// has none yet. own is the position of the first own token, or kvcache.Packed.
// The chunks may be released once it is open. See [kvcache.Cache.Open].
func (e *Engine) Open(placements []kvcache.Placement, own int) (*Sequence, error) {
	if err := e.checkBaked(placements, 0); err != nil {
		return nil, fmt.Errorf("serve: open: %w", err)
	}
	s, err := e.cache.Open(placements, own)
	if err != nil {
		return nil, fmt.Errorf("serve: open: %w", err)
	}
	return &Sequence{engine: e, kv: s}, nil
}

// checkBaked says whether chunks behind position next stand where they were encoded,
// if they must.
func (e *Engine) checkBaked(placements []kvcache.Placement, next int) error {
	if e.model.Encoding != baked {
		return nil
	}
	for i, p := range placements {
		at := p.Offset
		if at == kvcache.Packed {
			at = next
		}
		if p.Chunk == nil {
			return nil // the cache says so
		}
		if next = at + p.Chunk.Tokens(); at != 0 {
			return fmt.Errorf("segment %d is at offset %d: a chunk in the baked encoding stands at 0 only", i, at)
		}
	}
	return nil
}

// Close ends the encodes under way, waits for the work on the stream, and frees
// the device memory. Steps that are open, graphs, sequences and chunks are
// worth nothing afterwards: their methods fail with [ErrClosed].
func (e *Engine) Close() error {
	if err := e.enter(context.Background(), alone); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.leave(alone) // the encodes that the cache waits for want it
	err := e.cache.Close()
	e.waiting.Wait()
	if err = errors.Join(err, e.freeAll()); err != nil {
		err = fmt.Errorf("serve: close: %w", err)
	}
	e.log.Info("engine closed", "model", e.model.Name, "error", err)
	return err
}

// freeAll frees everything but the cache. Nothing may be under way: where the engine is
// closed, nobody enters any more.
func (e *Engine) freeAll() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	for g := range e.graphs {
		errs = append(errs, g.destroy())
	}
	for w := range e.spaces {
		errs = append(errs, w.release(e.device))
	}
	clear(e.graphs)
	clear(e.spaces)
	e.free = nil
	for _, layer := range e.maps {
		for _, m := range layer {
			if m != nil {
				errs = append(errs, m.Free())
			}
		}
	}
	if e.rope != 0 {
		errs = append(errs, e.device.Free(e.rope))
	}
	errs = append(errs, e.side.Close())
	if e.ownStream {
		errs = append(errs, e.device.DestroyStream(e.stream))
	}
	return errors.Join(errs...)
}

// How much of Engine.work an exchange with the device takes.
const (
	beside = 1
	alone  = 1 << 30
)

// enter begins an exchange with the device, beside others or alone, which leave ends.
func (e *Engine) enter(ctx context.Context, how int64) error {
	if err := e.work.Acquire(ctx, how); err != nil {
		return err
	}
	if e.closed {
		e.leave(how)
		return ErrClosed
	}
	return nil
}

func (e *Engine) leave(how int64) { e.work.Release(how) }

func (e *Engine) isClosed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

// wait waits for streams of the engine, while others queue work or record a graph.
func (e *Engine) wait(ctx context.Context, streams ...cuda.Stream) error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return ErrClosed
	}
	e.waiting.Add(1)
	e.mu.Unlock()
	defer e.waiting.Done()
	for _, s := range streams {
		if err := e.device.Synchronize(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// bytesOf is the memory of s: every host of a device is little-endian, as
// devices are, and the structs of package abi have no padding.
func bytesOf[T any](s []T) []byte {
	var element T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(element)))
}
