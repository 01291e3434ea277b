// Package serve is the engine that a server embeds: it keeps one copy of every
// document's KV, and attends to it for any number of requests, each of which
// places the documents in any order, at any offset.
//
// # Use
//
// A document is registered once, with a callback that runs the model over it.
// A request is a [Sequence]: documents at offsets, and its own tokens behind
// them; an agent that goes on to read more puts that behind its own tokens with
// [Sequence.Place]. A server's loop makes one [Step] for each forward pass:
//
//	step, err := engine.Schedule(ctx, batch) // which sequences, how many new tokens each
//	for layer := range layers {
//		// the model's own kernels make q, k and v, un-rotated, on step.Stream()
//		err = step.Attend(ctx, layer, serve.IO{Q: q, K: k, V: v, Out: out})
//	}
//	err = step.Commit() // or step.Abort()
//
// Attend appends K and V to the pages, attends and merges, all by the spec's
// kernels; it queues work and returns. The example has the whole of it.
//
// A decode step can be recorded once as a CUDA graph ([Engine.Capture]) and then
// replayed for any batch that fits it, with sequences as long as they get: the
// work lists stay in fixed device memory, grids are fixed, and
// [Graph.Schedule] refreshes what the graph reads.
//
// # Keeping the host out of the device's way
//
// Listing a step of hundreds of sequences takes the host up to a tenth of a millisecond, which
// nobody waits for where the step is made while the one before is at work:
//
//	step.Launch(ctx)                             // or Attend, layer by layer
//	step.Commit()                                // waits for nothing
//	next, err := graph.Schedule(ctx, batch)      // as if all went on
//	// the tokens of the step come; where a sequence has ended:
//	next.Abort()                                 // its new tokens are taken back
//	next, err = graph.Schedule(ctx, withoutIt)
//
// A host that has no time for it leaves it to the device: a graph with [GraphSize].Lists
// [ListsByDevice] begins with a kernel that makes the lists, and Schedule only tells the device
// what the sequences hold. The step takes longer by more than that
// kernel's own time.
//
// # Kernels
//
// The engine is the same over a GPU, the emulator and the processor. Without a
// GPU:
//
//	dev := cpu.Open(cpu.Options{})
//	kernels, err := cpu.NewKernels(dev, config)
//
// and with one, from the bundle of a generated package such as generated/llama3:
//
//	dev, err := driver.Open(ctx, 0)
//	kernels, err := kernel.Open(ctx, dev, llama3.Bundle(), kernel.Options{})
//	model := serve.ModelOf(llama3.Bundle(), "Llama-3-8B", 32)
//
// Of a bundle whose raw keys are rotated ahead of some kernels (kernel.Choice.KeysAhead), a step
// that uses one takes memory for the rotated keys of its sequences, in one layer, which the
// engine keeps for the steps after it.
//
// # What is promised
//
// A sequence's outputs have the same bits whatever else is in the batch, and
// whether or not its documents have been evicted and restored meanwhile. With
// kernels that have shared decode, that holds where [Model].Sharing is bitwise; where
// it is fastest, the bits of a decode step depend on which of the sequence's
// documents others in the batch hold, and on nothing else. Where [Model].Batching is
// fastest, the last bits of extend's outputs depend on how long the step's other sequences are.
//
// A call that fails leaves sequences and registry as they were, and later calls are
// served. Its error says which argument is wrong, or wraps one of [ErrNoPages],
// [ErrOutOfMemory], [ErrClosed], [ErrLaunch], [ErrFixedSize], [ErrBusy], [ErrEnded],
// [ErrIncomplete], [ErrNoGraphs], kvcache.ErrPosition, kvcache.ErrReleased or the context's.
//
// Work is queued on one stream, in the order of the calls (of the kernels by which a step's
// sequences attend every second on another, for which that one waits), and Schedule does not wait for it: a server
// may make a step while the one before is at work. What the device does wrong after a
// call has returned comes to light in [Step.Wait]; a server that reads its results by
// other means should call it before Commit. A GPU does nothing more then, so every step
// fails. The CPU backend goes on, and tells each step what went wrong with its own work,
// and with that of steps that were committed before it was done.
//
// Nothing global is used: metrics come from [Engine.Collector], logs go to
// [Options].Logger.
package serve
