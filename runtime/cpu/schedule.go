package cpu

import (
	"encoding/binary"
	"fmt"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// scheduleJob is a launch of schedule: package schedule makes the lists, which go to memory.
type scheduleJob struct {
	sequences []abi.Sequence
	segments  []abi.Segment
	maker     schedule.Maker
}

func (j *scheduleJob) run(d *Device, op *operation) error {
	p := &op.schedule
	l := regions{memory: &d.memory}
	if err := j.read(&l, p); err != nil {
		return err
	}
	lists, err := j.maker.Make(p, j.sequences, j.segments)
	if err != nil {
		return err
	}
	err = writeLists(&l, list{"Items", p.Items, lists.Decode.Items}, list{"Runs", p.Runs, lists.Decode.Runs}, list{"SlotBegin", p.SlotBegin, lists.Decode.SlotBegin})
	if err != nil || p.SharedItems == 0 {
		return err
	}
	err = writeLists(&l, list{"SharedItems", p.SharedItems, lists.Items}, list{"SharedRuns", p.SharedRuns, lists.Runs},
		list{"Members", p.Members, lists.Members}, list{"MemberOffsets", p.MemberOffsets, lists.Offsets})
	if err != nil {
		return err
	}
	spared, err := d.memory.bytes("Spared", p.Spared, 8)
	if err != nil {
		return err
	}
	binary.LittleEndian.PutUint64(spared, binary.LittleEndian.Uint64(spared)+uint64(lists.Saved))
	return nil
}

// read reads the step.
func (j *scheduleJob) read(l *regions, p *abi.ScheduleParams) error {
	counts, sequences, segments := l.of("Counts", p.Counts), l.of("Sequences", p.Sequences), l.of("Segments", p.Segments)
	if l.err != nil {
		return l.err
	}
	var n [2]int32
	if err := counts.get(n[:]); err != nil {
		return err
	}
	if n[0] < 0 || n[0] > p.SequenceRoom || n[1] < 0 || n[1] > p.SegmentRoom {
		return fmt.Errorf("%d sequences of %d segments: there is room for %d and %d", n[0], n[1], p.SequenceRoom, p.SegmentRoom)
	}
	j.sequences, j.segments = grow(j.sequences, int(n[0])), grow(j.segments, int(n[1]))
	if err := sequences.get(j.sequences); err != nil {
		return err
	}
	return segments.get(j.segments)
}

// list is a list with the parameter that says where it goes.
type list struct {
	name string
	to   abi.DevicePtr
	from any
}

func writeLists(l *regions, lists ...list) error {
	for _, list := range lists {
		to := l.of(list.name, list.to)
		if l.err != nil {
			return l.err
		}
		if err := to.put(list.from); err != nil {
			return err
		}
	}
	return nil
}
