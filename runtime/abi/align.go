package abi

import "fmt"

// Aligned says whether every address is a multiple of 16 bytes.
func Aligned(addresses ...DevicePtr) bool {
	all := DevicePtr(0)
	for _, p := range addresses {
		all |= p
	}
	return all%16 == 0
}

// AlignedStrides says whether every stride, in elements of 2 bytes, is a multiple of
// 16 bytes.
func AlignedStrides(strides ...int32) bool {
	all := int32(0)
	for _, n := range strides {
		all |= n
	}
	return all%8 == 0
}

// CheckAligned says which of a launch's addresses and strides break the rules of this package.
func (p *AppendParams) CheckAligned() error {
	if Aligned(p.K, p.V, p.KCache, p.VCache, p.Rope) && AlignedStrides(p.KTokenStride, p.VTokenStride) {
		return nil
	}
	return misaligned("K %#x, V %#x, KCache %#x, VCache %#x, Rope %#x, KTokenStride %d, VTokenStride %d",
		p.K, p.V, p.KCache, p.VCache, p.Rope, p.KTokenStride, p.VTokenStride)
}

// CheckAligned is that of [AppendParams].
func (p *AttendParams) CheckAligned() error {
	if Aligned(p.Q, p.Out, p.KCache, p.VCache, p.PartialOut, p.Rope) && AlignedStrides(p.QTokenStride, p.OutTokenStride) {
		return nil
	}
	return misaligned("Q %#x, Out %#x, KCache %#x, VCache %#x, PartialOut %#x, Rope %#x, QTokenStride %d, OutTokenStride %d",
		p.Q, p.Out, p.KCache, p.VCache, p.PartialOut, p.Rope, p.QTokenStride, p.OutTokenStride)
}

// CheckAligned is that of [AppendParams].
func (p *MergeParams) CheckAligned() error {
	if Aligned(p.PartialOut, p.Out) && AlignedStrides(p.OutTokenStride) {
		return nil
	}
	return misaligned("PartialOut %#x, Out %#x, OutTokenStride %d", p.PartialOut, p.Out, p.OutTokenStride)
}

// CheckAligned is that of [AppendParams].
func (p *MaterialiseParams) CheckAligned() error {
	if Aligned(p.SrcK, p.SrcV, p.DstK, p.DstV, p.Rope) {
		return nil
	}
	return misaligned("SrcK %#x, SrcV %#x, DstK %#x, DstV %#x, Rope %#x", p.SrcK, p.SrcV, p.DstK, p.DstV, p.Rope)
}

func misaligned(format string, values ...any) error {
	return fmt.Errorf(format+": addresses must be multiples of 16 bytes, token strides of 8 elements", values...)
}
