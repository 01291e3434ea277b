// Package kvcache keeps one copy of every document's KV on a device and lets
// any number of sequences use it at any position, without a copy.
//
// A [Cache] owns one allocation of pages. A page index is valid in all layers
// at once: [Cache.Layer] gives the addresses that a layer's kernels take.
//
// A document's tokens become a chunk through [Cache.Acquire], which encodes
// them the first time and finds the chunk by its content afterwards. Chunks
// are immutable. One that somebody holds, or that is pinned, stays on the
// device; the others are evicted where room is needed, in the order of a
// [Policy], to the host tier if there is one.
//
// A [Sequence] is an ordered list of chunks at offsets and, behind them, the
// request's own tokens; [Sequence.Place] puts further chunks behind those.
// [Table.Extend] gives a step's sequences room for their new tokens, and makes what its
// schedule needs of them: package serve takes nothing else. [Sequence.Extend],
// [Sequence.Slots] and [Table.Add] do the parts of it for one sequence, for a server with
// an engine of its own.
//
// # Host tier and files
//
// With [Config.HostBytes], an evicted chunk is copied to host memory,
// page-locked where the device is a [cuda.Copier], and copied back when it is
// acquired again. [Cache.Persist] and [Cache.PersistFile] write the chunks of
// both tiers, [Cache.Load] and [Cache.LoadFile] read them, so that a restart
// keeps its documents.
//
// # Order on the device
//
// The cache never waits for the device where it need not: copies are queued
// on [Config.Stream], and a freed page can be given to somebody else at once.
// Work that reads or writes pages therefore belongs on that stream, or must be
// ordered against it.
//
// # Locking
//
// One mutex guards all of a cache: its pages, its chunks and its sequences.
// Every method may be called from any goroutine. No lock is held while a chunk
// is encoded or a file is read or written. A [Policy] is called with the lock
// held; a [Table] belongs to one goroutine.
package kvcache
