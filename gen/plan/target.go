package plan

import "github.com/kgen-project/kgen/gen/spec"

// Limits is what one target's multiprocessor offers.
type Limits struct {
	SharedPerBlock int // most dynamic shared memory of a block, bytes
	SharedPerSM    int // shared memory of a multiprocessor, bytes; each block takes 1 KiB more than it asks for
}

const (
	kibibyte       = 1 << 10
	sharedReserved = kibibyte // what the driver keeps of each block's shared memory
	registersPerSM = 64 * kibibyte
)

// limits are of the CUDA C++ programming guide's table of compute capabilities.
var limits = map[spec.Target]Limits{
	"sm_80":   {163 * kibibyte, 164 * kibibyte},
	"sm_86":   {99 * kibibyte, 100 * kibibyte},
	"sm_89":   {99 * kibibyte, 100 * kibibyte},
	"sm_90a":  {227 * kibibyte, 228 * kibibyte},
	"sm_100a": {227 * kibibyte, 228 * kibibyte},
	"sm_120a": {99 * kibibyte, 100 * kibibyte},
}

// BlocksPerSM is how many blocks of the plan one multiprocessor of the target
// holds at a time, for the given registers a thread.
func BlocksPerSM(p Plan, t spec.Target, registers int) int {
	const threadsPerSM, registerUnit = 1536, 8 // 2048 threads on some; no plan comes near
	blocks := limits[t].SharedPerSM / (p.Shared + sharedReserved)
	blocks = min(blocks, threadsPerSM/p.Threads())
	if registers > 0 {
		rounded := (registers + registerUnit - 1) / registerUnit * registerUnit
		blocks = min(blocks, registersPerSM/(rounded*p.Threads()))
	}
	return blocks
}
