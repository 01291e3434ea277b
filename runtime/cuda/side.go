package cuda

import "errors"

// Side is a second stream, for work beside that of another. A Side of nil has none:
// one piece of work is behind the other.
type Side struct {
	device         StreamFollower
	stream         Stream
	forked, joined Event
}

// OpenSide returns nil for a device whose streams don't wait for each other.
func OpenSide(dev Device) (_ *Side, err error) {
	d, ok := dev.(StreamFollower)
	if !ok {
		return nil, nil
	}
	s := &Side{device: d}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.stream, err = d.NewStream(); err != nil {
		return nil, err
	}
	if s.forked, err = d.NewEvent(); err != nil {
		return nil, err
	}
	if s.joined, err = d.NewEvent(); err != nil {
		return nil, err
	}
	return s, nil
}

// Both calls two functions, each with the stream that it is to queue its work on. Both
// pieces of work are behind what is queued on the stream by now, and before what
// comes next on it. It may be called within a capture of the stream.
func (s *Side) Both(stream Stream, on, beside func(Stream) error) error {
	if s == nil {
		if err := on(stream); err != nil {
			return err
		}
		return beside(stream)
	}
	side := s.stream
	if lanes, ok := s.device.(LaneDevice); ok { // which tells whoever waits for the stream what failed
		var err error
		if side, err = lanes.NewLane(stream); err != nil {
			return err
		}
		defer lanes.EndLane(side, true)
	}
	if err := s.device.Follow(side, stream, s.forked); err != nil {
		return err
	}
	err := on(stream)
	if err == nil {
		err = beside(side)
	}
	// Whatever failed: work that is under way must be before what comes next.
	return errors.Join(err, s.device.Follow(stream, side, s.joined))
}

// Close destroys the stream. Nothing may be under way on it.
func (s *Side) Close() error {
	if s == nil {
		return nil
	}
	var errs []error
	for _, e := range []Event{s.forked, s.joined} {
		if e != 0 {
			errs = append(errs, s.device.DestroyEvent(e))
		}
	}
	if s.stream != 0 {
		errs = append(errs, s.device.DestroyStream(s.stream))
	}
	return errors.Join(errs...)
}
