package kvcache_test

import (
	"bytes"
	"context"
	"fmt"
	"log"

	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// Two requests use the same two documents in different orders: each document
// is encoded once, and stands in the step's page table once.
func Example() {
	ctx := context.Background()
	device := cpu.Open(cpu.Options{})
	defer device.Close()
	cache, err := kvcache.New(device, kvcache.Config{
		Model: "llama-3-8b", Spec: "digest of the spec", Encoding: "segment",
		Shape: kvcache.Shape{Layers: 2, KVHeads: 8, HeadDim: 128, VHeadDim: 128, ElementBytes: 2, PageSize: 16},
		Pages: 64,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()

	manual, article := make([]int32, 100), make([]int32, 40) // tokens
	encodes := 0
	hold := func(tokens []int32) *kvcache.Chunk {
		chunk, err := cache.Acquire(ctx, kvcache.Document{Tokens: tokens}, func(ctx context.Context, pages []int32) error {
			encodes++ // here the model's prefill writes K and V to the pages
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
		return chunk
	}
	var table kvcache.Table
	for _, order := range [][][]int32{{manual, article}, {article, manual}} {
		first, second := hold(order[0]), hold(order[1])
		s, err := cache.Open(kvcache.Pack(first, second), kvcache.Packed)
		if err != nil {
			log.Fatal(err)
		}
		defer s.Close()
		first.Release() // the sequence keeps its own hold
		second.Release()

		if err := s.Extend(5); err != nil { // room for the question
			log.Fatal(err)
		}
		segments, err := table.Add(nil, s)
		if err != nil {
			log.Fatal(err)
		}
		for _, g := range segments {
			fmt.Printf("%d tokens at %d: from page %d of the table, own: %v\n", g.Tokens, g.Offset, g.Page, g.Own)
		}
	}
	fmt.Printf("%d encodes, %d pages in the table, %d used\n", encodes, len(table.Pages), cache.Stats().PagesUsed)
	// Output:
	// 100 tokens at 0: from page 0 of the table, own: false
	// 40 tokens at 100: from page 7 of the table, own: false
	// 5 tokens at 140: from page 10 of the table, own: true
	// 40 tokens at 0: from page 7 of the table, own: false
	// 100 tokens at 40: from page 0 of the table, own: false
	// 5 tokens at 140: from page 11 of the table, own: true
	// 2 encodes, 12 pages in the table, 12 used
}

// Beams share what they have in common; the one that writes first to the last
// page gets a copy of it.
func ExampleSequence_Fork() {
	cache, err := kvcache.New(newDevice(), kvcache.Config{Shape: shape, Pages: 8})
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	beam, err := cache.Open(nil, 0)
	if err == nil {
		err = beam.Extend(6)
	}
	if err != nil {
		log.Fatal(err)
	}
	other, err := beam.Fork()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(cache.Stats().PagesUsed, "pages for two beams of two")
	if err := other.Extend(1); err != nil {
		log.Fatal(err)
	}
	a, _ := beam.Slots(nil, 0)
	b, _ := other.Slots(nil, 0)
	fmt.Println(a)
	fmt.Println(b)
	// Output:
	// 2 pages for two beams of two
	// [0 1 2 3 4 5]
	// [0 1 2 3 8 9 10]
}

// A restarted server has the documents of the one before.
func ExampleCache_Persist() {
	ctx := context.Background()
	config := kvcache.Config{Model: "m", Spec: "s", Encoding: "segment", Shape: shape, Pages: 8}
	before, err := kvcache.New(newDevice(), config)
	if err != nil {
		log.Fatal(err)
	}
	defer before.Close()
	document := kvcache.Document{Tokens: []int32{3, 1, 4, 1, 5}}
	chunk, err := before.Acquire(ctx, document, func(context.Context, []int32) error { return nil })
	if err != nil {
		log.Fatal(err)
	}
	chunk.Release()
	var file bytes.Buffer // or PersistFile and LoadFile
	if err := before.Persist(ctx, &file); err != nil {
		log.Fatal(err)
	}

	after, err := kvcache.New(newDevice(), config)
	if err != nil {
		log.Fatal(err)
	}
	defer after.Close()
	n, err := after.Load(ctx, &file)
	if err != nil {
		log.Fatal(err)
	}
	chunk, err = after.Get(ctx, after.Key(document).ID())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(n, "chunk of", chunk.Tokens(), "tokens")
	// Output: 1 chunk of 5 tokens
}

// A step: sequences get room for their new tokens, and their segments go to the schedule as
// they come from the table.
func ExampleTable() {
	cache, err := kvcache.New(newDevice(), kvcache.Config{Shape: shape, Pages: 8})
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	s, err := cache.Open(nil, 0)
	if err != nil {
		log.Fatal(err)
	}
	var table kvcache.Table // kept from step to step
	extended, slots, err := table.Extend(nil, []kvcache.Extension{{Sequence: s, Tokens: 6}})
	if err != nil {
		log.Fatal(err)
	}
	of := extended[0]
	sequence := schedule.Sequence{Positions: []int32{0, 1, 2, 3, 4, 5}, Segments: of.Segments, Layout: of.Layout, Placed: of.Placed}
	fmt.Printf("%+v\npages %v, slots %v\n", sequence.Segments, table.Pages[:2], slots)
	// Output:
	// [{Page:0 Tokens:6 Offset:0 Own:true}]
	// pages [0 1], slots [0 1 2 3 4 5]
}
