package cuda

// GraphDevice is a Device that can record launches and replay them as one.
type GraphDevice interface {
	Device
	// Capture records what f launches on s, running none of it. s must not be
	// the default stream. f must launch from the goroutine it is called on, and
	// must not allocate, copy or wait. While f runs, other goroutines must not
	// use the default stream, Upload or Download.
	Capture(s Stream, f func() error) (Graph, error)
}

// Graph is a recorded sequence of launches.
type Graph interface {
	Launch(s Stream) error
	Destroy() error
}

// MemoryDevice is a Device that knows how much of its memory is in use.
type MemoryDevice interface {
	Device
	// Memory returns the free and the total bytes of device memory.
	Memory() (free, total int64, err error)
}
