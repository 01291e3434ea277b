package kvcache

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// ChunkKey is everything that decides a chunk's content.
type ChunkKey struct {
	Model    string // identity of the weights
	Spec     string // digest of the spec
	Encoding string // segment, raw or baked
	Document
}

// Document is the text of a chunk.
type Document struct {
	Tokens []int32
	// Boundaries are the tokens at which encoding starts afresh, for a document
	// of several blocks that don't see each other: ascending, within 1 to
	// len(Tokens)-1. None: all tokens are one block.
	Boundaries []int32
}

// ID names a chunk: SHA-256 over its [ChunkKey].
type ID [sha256.Size]byte

// String is the ID in hexadecimal.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// ID hashes every field with its length before it, so that no two keys give
// the same bytes to the hash.
func (k ChunkKey) ID() ID {
	size := 5*8 + len(k.Model) + len(k.Spec) + len(k.Encoding) + 4*(len(k.Tokens)+len(k.Boundaries))
	b := make([]byte, 0, size)
	for _, s := range []string{k.Model, k.Spec, k.Encoding} {
		b = append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
	}
	for _, list := range [][]int32{k.Tokens, k.Boundaries} {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(list)))
		for _, v := range list {
			b = binary.LittleEndian.AppendUint32(b, uint32(v))
		}
	}
	return sha256.Sum256(b)
}
