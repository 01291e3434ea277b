// Package cubincache keeps compiled kernels on disk by what they were compiled
// from, so that each is compiled once, whichever process asks first.
//
// An entry is one file. It is written beside its place under a lock, synced
// and renamed, so a reader sees all of it or nothing; its hash is checked at
// every read, and an entry that fails the check counts as absent.
package cubincache

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/kgen-project/kgen/runtime/filelock"
)

// Input is everything that decides a cubin's bytes.
type Input struct {
	Name     string // program name, which messages carry
	Compiler string // such as nvrtc
	Version  string // full version of the compiler
	Flags    []string
	Target   string // such as sm_90a
	Source   []byte
}

// Key is the address of an entry: SHA-256 over its Input.
type Key [sha256.Size]byte

// String is the key in hexadecimal.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// Key hashes every field with its length before it, so that no two inputs
// give the same bytes to the hash.
func (in Input) Key() Key {
	h := sha256.New()
	number := func(n int) { h.Write(binary.LittleEndian.AppendUint64(nil, uint64(n))) }
	field := func(b []byte) { number(len(b)); h.Write(b) }
	field([]byte(in.Name))
	field([]byte(in.Compiler))
	field([]byte(in.Version))
	number(len(in.Flags))
	for _, f := range in.Flags {
		field([]byte(f))
	}
	field([]byte(in.Target))
	field(in.Source)
	return Key(h.Sum(nil))
}

// Entry is what a compile gave.
type Entry struct {
	Cubin []byte
	Log   string // the compiler's messages
}

// Cache is a folder of entries. Any number of processes may share it. The
// zero Cache keeps nothing.
type Cache struct {
	Dir string // made when the first entry is stored
}

// ErrUnusable is a folder that can't be read or written: the cache needs another.
var ErrUnusable = errors.New("the cache can't be used")

// unusable is an ErrUnusable, but for a folder in a file's place: the rest of the cache can be used.
func unusable(err error) error {
	var of *fs.PathError
	if errors.Is(err, syscall.EISDIR) && errors.As(err, &of) {
		return fmt.Errorf("cubincache: a folder is in a file's place: remove %s", of.Path)
	}
	return fmt.Errorf("cubincache: %w: %w", ErrUnusable, err)
}

// header is the first line of an entry's file; the log and then the cubin
// follow it.
type header struct {
	Format   string
	Key      string
	LogBytes int
	Bytes    int    // log and cubin
	SHA256   string // of log and cubin
}

const format = "kgen cubin 1"

// Get reads the entry of a key. An absent or a damaged entry is a miss, not an
// error.
func (c Cache) Get(key Key) (Entry, bool, error) {
	if c.Dir == "" {
		return Entry{}, false, nil
	}
	file, err := os.ReadFile(c.path(key, ".cubin"))
	if errors.Is(err, fs.ErrNotExist) {
		return Entry{}, false, nil
	}
	if err != nil {
		return Entry{}, false, unusable(err)
	}
	entry, ok := decode(key, file)
	return entry, ok, nil
}

// GetOrBuild returns the entry of a key and whether it was there; where it was
// not, it calls build and stores the result. Of all the callers in
// all processes that ask for one key at a time, one builds and the rest wait for
// it; if it fails, the next tries. A failed build stores nothing.
//
// A folder that can't be written is found before build is called, and is an
// [ErrUnusable]; a full disk after it. Both errors name the file.
func (c Cache) GetOrBuild(ctx context.Context, key Key, build func(context.Context) (Entry, error)) (entry Entry, hit bool, err error) {
	entry, hit, err = c.Get(key)
	if hit || err != nil {
		return entry, hit, err
	}
	if c.Dir == "" {
		entry, err = build(ctx)
		return entry, false, err
	}
	unlock, err := c.lock(ctx, key)
	if err != nil {
		return Entry{}, false, err
	}
	defer unlock()
	entry, hit, err = c.Get(key)
	if hit || err != nil {
		return entry, hit, err
	}
	if entry, err = build(ctx); err != nil {
		return Entry{}, false, err
	}
	return entry, false, c.put(key, entry)
}

// Rebuild calls build and stores the result, whatever is there: for a caller to whom
// an entry is not good enough.
func (c Cache) Rebuild(ctx context.Context, key Key, build func(context.Context) (Entry, error)) (Entry, error) {
	if c.Dir == "" {
		return build(ctx)
	}
	unlock, err := c.lock(ctx, key)
	if err != nil {
		return Entry{}, err
	}
	defer unlock()
	entry, err := build(ctx)
	if err != nil {
		return Entry{}, err
	}
	return entry, c.put(key, entry)
}

func (c Cache) path(key Key, suffix string) string {
	return filepath.Join(c.Dir, key.String()+suffix)
}

func encode(key Key, e Entry) ([]byte, error) {
	body := append([]byte(e.Log), e.Cubin...)
	sum := sha256.Sum256(body)
	head, err := json.Marshal(header{
		Format:   format,
		Key:      key.String(),
		LogBytes: len(e.Log),
		Bytes:    len(body),
		SHA256:   hex.EncodeToString(sum[:]),
	})
	if err != nil {
		return nil, err
	}
	return append(append(head, '\n'), body...), nil
}

func decode(key Key, file []byte) (Entry, bool) {
	line, body, _ := bytes.Cut(file, []byte("\n"))
	var head header
	if json.Unmarshal(line, &head) != nil {
		return Entry{}, false
	}
	sum := sha256.Sum256(body)
	want := header{
		Format:   format,
		Key:      key.String(),
		LogBytes: head.LogBytes,
		Bytes:    len(body),
		SHA256:   hex.EncodeToString(sum[:]),
	}
	if head != want || head.LogBytes < 0 || head.LogBytes > len(body) {
		return Entry{}, false
	}
	return Entry{Log: string(body[:head.LogBytes]), Cubin: body[head.LogBytes:]}, true
}

// put stores an entry. The caller holds the key's lock, so the temporary
// file is its own, and what a killed process left there is overwritten.
func (c Cache) put(key Key, e Entry) error {
	data, err := encode(key, e)
	if err != nil {
		return fmt.Errorf("cubincache: %w", err)
	}
	temp := c.path(key, ".tmp")
	if err := writeSynced(temp, data); err != nil {
		return errors.Join(fmt.Errorf("cubincache: store a cubin: %w", err), remove(temp))
	}
	if err := os.Rename(temp, c.path(key, ".cubin")); err != nil {
		return errors.Join(fmt.Errorf("cubincache: store a cubin: %w", err), remove(temp))
	}
	return c.syncDir()
}

func writeSynced(path string, data []byte) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Sync(); err != nil {
		return errors.Join(err, f.Close())
	}
	return f.Close()
}

func (c Cache) syncDir() error {
	if runtime.GOOS == "windows" { // which syncs no folders
		return nil
	}
	d, err := os.Open(c.Dir)
	if err != nil {
		return fmt.Errorf("cubincache: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("cubincache: sync %s: %w", c.Dir, err)
	}
	return nil
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// lock takes the key's lock.
func (c Cache) lock(ctx context.Context, key Key) (unlock func(), err error) {
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return nil, unusable(err)
	}
	unlock, err = filelock.Lock(ctx, c.path(key, ".lock"))
	if err != nil && ctx.Err() == nil {
		err = unusable(err)
	}
	return unlock, err
}
