package serve

import (
	"context"
	"errors"
	"fmt"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// rotated is the keys of a group whose kernel reads raw keys that were rotated ahead of it: see
// kernel.Choice.KeysAhead. Layers take turns with their pages.
type rotated struct {
	lists  schedule.Ahead // no copies: the kernel rotates keys as they come, if at all
	keys   buffer
	maps   *kernel.CacheMaps // nil, or of the memory mapped, for the kernel of route
	mapped buffer
	route  int
}

// list is what a route's launch reads of sequences in a page table.
func (r *rotated) list(e *Engine, route int, sequences []schedule.Sequence, table []int32) ([]schedule.Sequence, error) {
	if !e.routes.all[route].choice.KeysAhead {
		return sequences, nil
	}
	err := r.lists.List(sequences, table, e.model.PageSize)
	return r.lists.Sequences, err
}

// place makes room for the rotated keys of a route.
func (r *rotated) place(ctx context.Context, e *Engine, route int) error {
	page := int64(e.model.PageSize) * int64(2*e.model.KVHeads*e.model.HeadDim) // bytes
	if err := r.keys.grow(ctx, e, int64(len(r.lists.Pages))*page, true); err != nil {
		return fmt.Errorf("rotated keys of %d pages: %w", len(r.lists.Pages), err)
	}
	if r.maps != nil && r.mapped == r.keys && r.route == route {
		return nil
	}
	if err := r.unmap(ctx, e); err != nil {
		return err
	}
	maps, err := e.routes.rotator.MapKeys(e.routes.all[route].choice, r.keys.ptr, int(r.keys.bytes/page), e.model.KVHeads)
	if err != nil {
		return err
	}
	r.maps, r.mapped, r.route = maps, r.keys, route
	return nil
}

// unmap gives up the maps, when the work on the engine's stream is done.
func (r *rotated) unmap(ctx context.Context, e *Engine) error {
	if r.maps == nil {
		return nil
	}
	if err := e.device.Synchronize(ctx, e.stream); err != nil {
		return launchError(err)
	}
	maps := r.maps
	r.maps = nil
	return maps.Free()
}

// params rotate a layer's keys, but for where these are.
func (r *rotated) params(e *Engine, at *groupAddresses) abi.MaterialiseParams {
	return abi.MaterialiseParams{
		DstK: r.keys.ptr, Copies: at.copies, PageTable: at.pages, Rope: e.rope,
		KVHeads: int32(e.model.KVHeads), CopyCount: int32(len(r.lists.Copies)),
	}
}

func (r *rotated) release(dev cuda.Device) error {
	err := r.keys.release(dev)
	if r.maps != nil {
		err = errors.Join(err, r.maps.Free())
		r.maps = nil
	}
	return err
}
