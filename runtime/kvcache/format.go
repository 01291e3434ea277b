package kvcache

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
)

// A file is
//
//	magic, version (uint32), length of the header (uint32)
//	header: JSON
//	SHA-256 of all that
//
// and, for each chunk of the header in its order,
//
//	1, then its pages (K of all layers, then V of all layers), or 0: it is gone
//	SHA-256 of the chunk's ID and that
//
// with numbers in little-endian order and nothing behind the last chunk.
const (
	magic   = "kgen kv\n"
	version = 1
)

type fileHeader struct {
	Model, Spec, Encoding string
	Shape                 Shape
	Chunks                []fileChunk // the most recently used first
}

type fileChunk struct {
	ID     string // hexadecimal
	Tokens int32
}

// fileWriter writes a file's parts with their checksums.
type fileWriter struct {
	w   io.Writer
	sum hash.Hash
}

func (f *fileWriter) write(b []byte) error {
	f.sum.Write(b)
	_, err := f.w.Write(b)
	return err
}

// end writes the checksum of what was written since the last one.
func (f *fileWriter) end() error {
	_, err := f.w.Write(f.sum.Sum(nil))
	f.sum.Reset()
	return err
}

func (f *fileWriter) header(h fileHeader) error {
	body, err := json.Marshal(h)
	if err != nil {
		return err
	}
	head := binary.LittleEndian.AppendUint32([]byte(magic), version)
	head = binary.LittleEndian.AppendUint32(head, uint32(len(body)))
	return errors.Join(f.write(append(head, body...)), f.end())
}

// fileReader reads a file's parts and checks them.
type fileReader struct {
	r   *bufio.Reader
	sum hash.Hash
}

// read fills b. what says what that is to be, for the error.
func (f *fileReader) read(b []byte, what string) error {
	_, err := io.ReadFull(f.r, b)
	f.sum.Write(b)
	return damagedAtEnd(err, what)
}

// end checks the checksum of what was read since the last one.
func (f *fileReader) end(what string) error {
	want := f.sum.Sum(nil)
	f.sum.Reset()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(f.r, got); err != nil {
		return damagedAtEnd(err, "the checksum of "+what)
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%w: the checksum of %s is wrong", ErrDamaged, what)
	}
	return nil
}

func damagedAtEnd(err error, what string) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it ends within %s", ErrDamaged, what)
	}
	return err
}

func (f *fileReader) header() (h fileHeader, err error) {
	head := make([]byte, len(magic)+8)
	if err := f.read(head, "the header"); err != nil {
		return h, err
	}
	numbers := head[len(magic):]
	if !bytes.HasPrefix(head, []byte(magic)) {
		return h, fmt.Errorf("%w: it is not a file of chunks", ErrDamaged)
	}
	if v := binary.LittleEndian.Uint32(numbers); v != version {
		return h, fmt.Errorf("%w: %d, this kgen reads %d", ErrVersion, v, version)
	}
	var body bytes.Buffer // grows with what there is, for the length may be wrong
	_, err = io.CopyN(io.MultiWriter(&body, f.sum), f.r, int64(binary.LittleEndian.Uint32(numbers[4:])))
	if err != nil {
		return h, damagedAtEnd(err, "the header")
	}
	if err := f.end("the header"); err != nil {
		return h, err
	}
	if err := json.Unmarshal(body.Bytes(), &h); err != nil {
		return h, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return h, nil
}

// atEnd checks that nothing follows.
func (f *fileReader) atEnd() error {
	switch _, err := f.r.ReadByte(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("%w: something follows its last chunk", ErrDamaged)
}

func newFileReader(r io.Reader) *fileReader {
	return &fileReader{r: bufio.NewReaderSize(r, 1<<16), sum: sha256.New()}
}

func parseID(s string) (id ID, err error) {
	if len(s) != 2*len(id) {
		return id, fmt.Errorf("%w: chunk ID %q", ErrDamaged, s)
	}
	if _, err := hex.Decode(id[:], []byte(s)); err != nil {
		return id, fmt.Errorf("%w: chunk ID %q", ErrDamaged, s)
	}
	return id, nil
}
