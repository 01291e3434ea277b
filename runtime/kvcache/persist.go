package kvcache

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/kgen-project/kgen/runtime/filelock"
)

// PersistFile writes the chunks to a file, for [Cache.LoadFile]. It is written
// beside its place, synced and renamed, so whatever happens the file is the
// old one or the new one, whole. Of all the processes that persist to one path
// at a time, one does and the others wait.
func (c *Cache) PersistFile(ctx context.Context, path string) error {
	fail := func(err error) error { return fmt.Errorf("kvcache: persist to %s: %w", path, err) }
	unlock, err := filelock.Lock(ctx, path+".lock")
	if err != nil {
		return fail(err)
	}
	defer unlock()
	temp := path + ".tmp" // what a killed process left there is overwritten
	if err := c.writeFile(ctx, temp); err != nil {
		return fail(errors.Join(err, removeFile(temp)))
	}
	if err := os.Rename(temp, path); err != nil {
		return fail(errors.Join(err, removeFile(temp)))
	}
	if runtime.GOOS == "windows" { // which syncs no folders
		return nil
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fail(err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return fail(err)
	}
	return nil
}

func (c *Cache) writeFile(ctx context.Context, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := c.Persist(ctx, f); err != nil {
		return errors.Join(err, f.Close())
	}
	return errors.Join(f.Sync(), f.Close())
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Persist writes the chunks on the device and in the host tier, for
// [Cache.Load]: all that are there when it is called, but for those that are
// evicted before their turn. It reads one page at a time and lets everybody
// else use the cache meanwhile. Pins are not written.
func (c *Cache) Persist(ctx context.Context, w io.Writer) error {
	entries, err := c.begin()
	if err != nil {
		return fmt.Errorf("kvcache: persist: %w", err)
	}
	defer c.end()
	if err := c.persist(ctx, w, entries); err != nil {
		return fmt.Errorf("kvcache: persist: %w", err)
	}
	return nil
}

// begin returns the chunks there are, the most recently used first, and keeps
// Close waiting.
func (c *Cache) begin() ([]*entry, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	c.working.Add(1)
	var entries []*entry
	for _, e := range c.chunks {
		if e.flight == nil {
			entries = append(entries, e)
		}
	}
	slices.SortFunc(entries, func(a, b *entry) int { return cmp.Compare(b.used, a.used) })
	return entries, nil
}

// end undoes begin.
func (c *Cache) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.relist()
	c.working.Done()
}

func (c *Cache) persist(ctx context.Context, w io.Writer, entries []*entry) error {
	header := fileHeader{Model: c.config.Model, Spec: c.config.Spec, Encoding: c.config.Encoding, Shape: c.config.Shape}
	for _, e := range entries {
		header.Chunks = append(header.Chunks, fileChunk{ID: e.id.String(), Tokens: e.tokens})
	}
	buffered := bufio.NewWriterSize(w, 1<<16)
	f := &fileWriter{w: buffered, sum: sha256.New()}
	if err := f.header(header); err != nil {
		return err
	}
	buffer := make([]byte, c.config.Shape.PageBytes())
	for _, e := range entries {
		if err := c.persistChunk(ctx, f, e, buffer); err != nil {
			return err
		}
	}
	return buffered.Flush()
}

func (c *Cache) persistChunk(ctx context.Context, f *fileWriter, e *entry, buffer []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.sum.Write(e.id[:])
	pages, host, err := c.read(e)
	if err != nil {
		return err
	}
	if pages == nil && host == nil {
		return errors.Join(f.write([]byte{0}), f.end())
	}
	defer c.endRead(e)
	if err := f.write([]byte{1}); err != nil {
		return err
	}
	for _, page := range pages {
		err := c.pool.toHost(c.config.Stream, buffer, page)
		if err := errors.Join(err, c.pool.device.Synchronize(ctx, c.config.Stream)); err != nil {
			return fmt.Errorf("copy chunk %v to the host: %w", e.id, err)
		}
		if err := f.write(buffer); err != nil {
			return err
		}
	}
	if pages == nil {
		// The copies to the host tier may be under way.
		if err := c.pool.device.Synchronize(ctx, c.config.Stream); err != nil {
			return err
		}
		for _, page := range host {
			c.mu.Lock()
			memory := c.host.page(page)
			c.mu.Unlock()
			if err := f.write(memory); err != nil {
				return err
			}
		}
	}
	return f.end()
}

// read keeps an entry's pages in place until endRead and says which they are:
// on the device, or in the host tier, or none where it is gone.
func (c *Cache) read(e *entry) (pages, host []int32, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, nil, ErrClosed
	case c.chunks[e.id] != e:
		return nil, nil, nil
	}
	e.readers++
	c.settle(e)
	if e.pages != nil {
		return e.pages, nil, nil
	}
	return nil, e.host, nil
}

func (c *Cache) endRead(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.readers--
	c.settle(e)
}
