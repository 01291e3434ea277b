package schedule

import (
	"fmt"

	"github.com/kgen-project/kgen/runtime/abi"
)

// Ahead lists the rotation of raw keys ahead of a launch that reads them rotated
// (kernel.Choice.KeysAhead). A token that two sequences hold is at a position in each, so each
// segment of each sequence has entries of its own in the launch's page table, and rotated keys
// have a page for each entry. Reuse it: it allocates nothing once it has grown.
type Ahead struct {
	Sequences []Sequence // those of List, with segments in Pages
	Pages     []int32    // the launch's page table
	Copies    []abi.Copy // for materialise without DstV, with Pages as its page table

	segments []Segment
}

// aheadTokens are those of a work item: few, so that they fill a device.
const aheadTokens = 64

// List makes the lists of sequences whose segments are in a page table.
func (a *Ahead) List(sequences []Sequence, table []int32, pageSize int) error {
	a.Sequences, a.Pages, a.Copies, a.segments = a.Sequences[:0], a.Pages[:0], a.Copies[:0], a.segments[:0]
	for i, s := range sequences {
		first := len(a.segments)
		for j, g := range s.Segments {
			pages := ceil(int(g.Tokens), pageSize)
			if g.Page < 0 || g.Tokens < 0 || int(g.Page)+pages > len(table) {
				return fmt.Errorf("schedule: sequence %d, segment %d: %d pages from entry %d of a page table of %d", i, j, pages, g.Page, len(table))
			}
			from := table[g.Page:][:pages]
			g.Page = int32(len(a.Pages))
			a.Pages = append(a.Pages, from...)
			a.segments = append(a.segments, g)
			for begin := int32(0); begin < g.Tokens; begin += aheadTokens {
				a.Copies = append(a.Copies, abi.Copy{
					SrcPage: g.Page, SrcBegin: begin, DstPage: g.Page, DstBegin: begin, Count: min(aheadTokens, g.Tokens-begin), Offset: g.Offset,
				})
			}
		}
		a.Sequences = append(a.Sequences, Sequence{QueryBegin: s.QueryBegin, Positions: s.Positions, Segments: a.segments[first:len(a.segments):len(a.segments)]})
	}
	return nil
}
