package cpu

import "fmt"

// cache is K or V in pages, seen through a page table.
type cache struct {
	region    region
	table     region
	dim       int64
	heads     int64
	pageSize  int64
	headMajor bool
}

func (c Config) cache(r, table region, dim int, heads int32) cache {
	return cache{r, table, int64(dim), int64(heads), int64(c.PageSize), c.HeadMajor}
}

// token is one head's vector of token index of the segment whose pages begin at
// entry page of the table.
func (c cache) token(page int32, index int64, head int) ([]byte, error) {
	entry := int64(page) + index/c.pageSize
	p, err := c.table.int32(entry)
	if err != nil {
		return nil, err
	}
	b, err := c.slot(int64(p), index%c.pageSize, head)
	if err != nil {
		return nil, fmt.Errorf("entry %d of the page table is page %d: %w", entry, p, err)
	}
	return b, nil
}

// slot is one head's vector in a place of a page.
func (c cache) slot(page, place int64, head int) ([]byte, error) {
	vector := (page*c.pageSize+place)*c.heads + int64(head)
	if c.headMajor {
		vector = (page*c.heads+int64(head))*c.pageSize + place
	}
	size := c.dim * elementBytes
	return c.region.at(vector*size, size)
}
