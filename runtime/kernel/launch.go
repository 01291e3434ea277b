package kernel

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// Append launches append on the stream. With no tokens it does nothing.
func (s *Set) Append(stream cuda.Stream, p abi.AppendParams) error {
	if err := p.CheckAligned(); err != nil {
		return fmt.Errorf("launch %s of %s: %w", abi.KindAppend, s.name, err)
	}
	return launch(s, stream, s.kernels[abi.KindAppend], abi.KindAppend, &p, p.Tokens, 1)
}

// Prefill launches prefill on the stream. With no items it does nothing.
func (s *Set) Prefill(stream cuda.Stream, p abi.AttendParams) error {
	return s.attend(stream, s.kernels[abi.KindPrefill], abi.KindPrefill, p)
}

// Extend launches extend on the stream. With no items it does nothing.
func (s *Set) Extend(stream cuda.Stream, p abi.AttendParams) error {
	return s.attend(stream, s.kernels[abi.KindExtend], abi.KindExtend, p)
}

// Decode launches decode on the stream. With no items it does nothing.
func (s *Set) Decode(stream cuda.Stream, p abi.AttendParams) error {
	return s.attend(stream, s.kernels[abi.KindDecode], abi.KindDecode, p)
}

// SharedDecode launches shared_decode on the stream. With no items it does nothing.
func (s *Set) SharedDecode(stream cuda.Stream, p abi.AttendParams) error {
	if p.ItemCount > 0 && (p.Members == 0 || p.MemberOffsets == 0) {
		return fmt.Errorf("launch %s of %s: Members or MemberOffsets is null: its items name their query tokens by them", abi.KindSharedDecode, s.name)
	}
	return s.attend(stream, s.kernels[abi.KindSharedDecode], abi.KindSharedDecode, p)
}

// attend launches a kernel of one of the kinds that attend. The blocks of family sm90
// are persistent: as many as the multiprocessors hold, each of which takes its share
// of the items.
func (s *Set) attend(stream cuda.Stream, l *loaded, kind abi.Kind, p abi.AttendParams) error {
	if err := p.CheckAligned(); err != nil {
		return fmt.Errorf("launch %s of %s: %w", kind, s.name, err)
	}
	x, y := p.ItemCount, p.KVHeads
	if l.persistent() && x > 0 && y > 0 {
		if p.KMap == 0 || p.VMap == 0 {
			return fmt.Errorf("launch %s of %s: no tensor maps of the caches: a kernel of family sm90 needs those of MapCache", kind, s.name)
		}
		work := int64(x) * int64(y)
		if work > math.MaxInt32 {
			return fmt.Errorf("launch %s of %s: %d items of %d KV heads; a launch takes %d in all", kind, s.name, x, y, math.MaxInt32)
		}
		x, y = int32(min(work, int64(s.blocks(l)))*int64(l.cluster())), 1
	}
	return launch(s, stream, l, kind, &p, x, y)
}

// Blocks is how many blocks of a kind that attends the device runs at a time, about, or of
// those that take an item together, clusters: what a sequence is cut for (schedule.Options.FillBy).
func (s *Set) Blocks(kind abi.Kind) int { return s.blocks(s.kernels[kind]) }

// SM80Blocks is how many blocks of family sm80 a multiprocessor is taken to hold, as
// gen/plan makes them fit.
const SM80Blocks = 2

func (s *Set) blocks(l *loaded) int {
	if l.persistent() {
		return max(1, max(1, l.artifact.Blocks)*s.multiprocessors/l.cluster())
	}
	return SM80Blocks * s.multiprocessors
}

// cluster is how many blocks take an item together.
func (l *loaded) cluster() int { return max(1, l.artifact.Cluster) }

// persistent is a kernel whose blocks share out the items.
func (l *loaded) persistent() bool { return l != nil && l.artifact.Family == "sm90" }

// Merge launches merge on the stream, a warp for each query head of a token.
// With no tokens it does nothing.
//
// What is ahead may be on two streams, shared decode on one and decode on the other,
// which this one follows by an event: merge starts only once that event is past, or, in
// a graph where both are kernels that it depends on, waits by itself for both.
func (s *Set) Merge(stream cuda.Stream, p abi.MergeParams) error {
	if err := p.CheckAligned(); err != nil {
		return fmt.Errorf("launch %s of %s: %w", abi.KindMerge, s.name, err)
	}
	rows := p.QHeads
	if l, ok := s.kernels[abi.KindMerge]; ok && rows > 0 {
		warps := int32(l.artifact.Warps)
		rows = (rows-1)/warps + 1
	}
	return launch(s, stream, s.kernels[abi.KindMerge], abi.KindMerge, &p, p.Tokens, rows)
}

// Materialise launches materialise on the stream. With no copies it does nothing.
func (s *Set) Materialise(stream cuda.Stream, p abi.MaterialiseParams) error {
	if err := p.CheckAligned(); err != nil {
		return fmt.Errorf("launch %s of %s: %w", abi.KindMaterialise, s.name, err)
	}
	return launch(s, stream, s.kernels[abi.KindMaterialise], abi.KindMaterialise, &p, p.CopyCount, p.KVHeads)
}

// Schedule launches schedule on the stream. What comes behind it reads its lists at once, before it has waited
// for anything: between them there must be what is not launched early, such as a copy.
func (s *Set) Schedule(stream cuda.Stream, p abi.ScheduleParams) error {
	return launch(s, stream, s.kernels[abi.KindSchedule], abi.KindSchedule, &p, 1, 1)
}

// maxGridY is the driver's limit.
const maxGridY = 65535

// launch queues a grid of x by y blocks with p as the kernel's parameter.
func launch[T abi.AppendParams | abi.AttendParams | abi.MergeParams | abi.MaterialiseParams | abi.ScheduleParams](
	s *Set, stream cuda.Stream, l *loaded, kind abi.Kind, p *T, x, y int32) error {
	switch {
	case l == nil:
		return s.missing("launch", kind)
	case l.kernel == nil:
		return fmt.Errorf("launch %s of %s: %w", kind, s.name, errClosed)
	case x < 0 || y < 1 || y > maxGridY:
		return fmt.Errorf("launch %s of %s: a grid of %d by %d blocks", kind, s.name, x, y)
	case x == 0:
		return nil
	}
	// The struct has no padding (package abi's tests) and kernels read it in the
	// host's byte order: every host of a GPU is little-endian, as GPUs are.
	params := unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p))
	err := l.kernel.Launch(stream, cuda.LaunchConfig{
		GridX: int(x), GridY: int(y), GridZ: 1,
		Threads:     32 * l.artifact.Warps,
		SharedBytes: l.artifact.SharedBytes,
		Early:       l.early,
	}, params)
	if err != nil {
		return fmt.Errorf("launch %s of %s: %w", kind, s.name, err)
	}
	return nil
}

var errClosed = errors.New("the set is closed")
