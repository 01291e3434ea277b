package kvcache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// LoadFile is [Cache.Load] from a file.
func (c *Cache) LoadFile(ctx context.Context, path string) (int, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("kvcache: load %s: %w", path, err)
	}
	n, err := c.load(ctx, newFileReader(f))
	if err := errors.Join(err, f.Close()); err != nil {
		return 0, fmt.Errorf("kvcache: load %s: %w", path, err)
	}
	return n, nil
}

// Load reads what [Cache.Persist] wrote, to the end of r, and returns how many
// chunks are new. It evicts nothing: chunks go to free pages of the device,
// the most recently used first, and then to free room of the host tier; where
// that is too little the error is an [ErrNoPages]. A file that is damaged, or
// was written for another model, spec, encoding or shape, is an error too, and
// then none of its chunks are there.
func (c *Cache) Load(ctx context.Context, r io.Reader) (int, error) {
	n, err := c.load(ctx, newFileReader(r))
	if err != nil {
		return 0, fmt.Errorf("kvcache: load: %w", err)
	}
	return n, nil
}

// loaded is a chunk that was read, with its pages on the device or in the
// host tier, which nobody else knows of yet. It has neither if it is skipped.
type loaded struct {
	id          ID
	tokens      int32
	pages, host []int32
}

func (c *Cache) load(ctx context.Context, f *fileReader) (n int, err error) {
	header, err := f.header()
	if err != nil {
		return 0, err
	}
	chunks, err := c.match(header)
	if err != nil {
		return 0, err
	}
	if err := c.reserve(chunks); err != nil {
		return 0, err
	}
	defer c.working.Done()
	defer func() {
		if err != nil {
			c.discard(chunks)
		}
	}()
	// Copies from or to the host pages that are written here may be under way.
	if err := c.pool.device.Synchronize(ctx, c.config.Stream); err != nil {
		return 0, err
	}
	buffer := make([]byte, c.config.Shape.PageBytes())
	for i := range chunks {
		if err := c.stillOpen(); err != nil {
			return 0, err
		}
		if err := c.loadChunk(ctx, f, &chunks[i], buffer); err != nil {
			return 0, err
		}
	}
	if err := f.atEnd(); err != nil {
		return 0, err
	}
	return c.admit(chunks)
}

func (c *Cache) stillOpen() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	return nil
}

// match checks that a file is of this cache.
func (c *Cache) match(h fileHeader) ([]loaded, error) {
	for _, f := range []struct {
		name      string
		got, want any
	}{
		{"model", h.Model, c.config.Model}, {"spec", h.Spec, c.config.Spec},
		{"encoding", h.Encoding, c.config.Encoding}, {"shape", h.Shape, c.config.Shape},
	} {
		if f.got != f.want {
			return nil, fmt.Errorf("%w: %s %+v, want %+v", ErrMismatch, f.name, f.got, f.want)
		}
	}
	chunks := make([]loaded, len(h.Chunks))
	for i, chunk := range h.Chunks {
		id, err := parseID(chunk.ID)
		if err != nil {
			return nil, err
		}
		if chunk.Tokens < 1 {
			return nil, fmt.Errorf("%w: chunk %v of %d tokens", ErrDamaged, id, chunk.Tokens)
		}
		chunks[i] = loaded{id: id, tokens: chunk.Tokens}
	}
	return chunks, nil
}

// reserve gives the chunks that the registry lacks their pages, and keeps
// Close waiting.
func (c *Cache) reserve(chunks []loaded) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	need := 0
	full := false
	for i := range chunks {
		chunk := &chunks[i]
		if c.chunks[chunk.id] != nil {
			continue
		}
		n := c.config.Shape.Pages(int(chunk.tokens))
		need += n
		if n <= len(c.pool.free) {
			chunk.pages = c.pool.take(nil, n)
		} else if chunk.host = c.host.take(n); chunk.host == nil {
			full = true
		}
	}
	if full {
		c.giveBack(chunks)
		return &NoPagesError{Needed: need, Free: len(c.pool.free) + c.host.limit - c.host.used, Total: len(c.pool.refs) + c.host.limit}
	}
	c.working.Add(1)
	return nil
}

func (c *Cache) discard(chunks []loaded) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.giveBack(chunks)
}

func (c *Cache) giveBack(chunks []loaded) {
	for i := range slices.Backward(chunks) {
		c.pool.release(chunks[i].pages)
		c.host.release(chunks[i].host)
		chunks[i].pages, chunks[i].host = nil, nil
	}
}

func (c *Cache) loadChunk(ctx context.Context, f *fileReader, chunk *loaded, buffer []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	what := fmt.Sprintf("chunk %v", chunk.id)
	f.sum.Write(chunk.id[:])
	var there [1]byte
	if err := f.read(there[:], what); err != nil {
		return err
	}
	if there[0] == 0 {
		c.discard([]loaded{*chunk})
		chunk.pages, chunk.host = nil, nil
		return f.end(what)
	}
	for i := range c.config.Shape.Pages(int(chunk.tokens)) {
		memory := buffer
		if chunk.host != nil {
			c.mu.Lock()
			memory = c.host.page(chunk.host[i])
			c.mu.Unlock()
		}
		if err := f.read(memory, what); err != nil {
			return err
		}
		if chunk.pages == nil {
			continue
		}
		err := c.pool.fromHost(c.config.Stream, chunk.pages[i], memory)
		if err := errors.Join(err, c.pool.device.Synchronize(ctx, c.config.Stream)); err != nil {
			return fmt.Errorf("copy %s to the device: %w", what, err)
		}
	}
	return f.end(what)
}

// admit puts the chunks that were read into the registry.
func (c *Cache) admit(chunks []loaded) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, ErrClosed
	}
	for i := range slices.Backward(chunks) { // the least recently used first
		chunk := &chunks[i]
		if chunk.pages == nil && chunk.host == nil {
			continue
		}
		if c.chunks[chunk.id] != nil { // made meanwhile
			c.giveBack(chunks[i : i+1])
			continue
		}
		e := c.add(chunk.id, chunk.tokens)
		e.host = chunk.host
		if chunk.pages != nil {
			c.place(e, chunk.pages)
		}
		c.touch(e)
		c.settle(e)
		n++
	}
	return n, nil
}
