package kernel

import (
	"fmt"
	"regexp"
	"strconv"

	"github.com/kgen-project/kgen/runtime/cuda"
)

// architecture is a target taken apart.
type architecture struct {
	major, minor int
	suffix       string // "", "a" for one architecture alone, "f" for one and its successors of the same major
}

var targetPattern = regexp.MustCompile(`^sm_([1-9][0-9]*)([0-9])([af]?)$`)

func parseTarget(target string) (architecture, error) {
	m := targetPattern.FindStringSubmatch(target)
	if m == nil {
		return architecture{}, fmt.Errorf("%q is not a target such as sm_80 or sm_90a", target)
	}
	major, err := strconv.Atoi(m[1])
	if err != nil {
		return architecture{}, fmt.Errorf("target %s: %w", target, err)
	}
	return architecture{major: major, minor: int(m[2][0] - '0'), suffix: m[3]}, nil
}

// runsOn tells whether machine code for the architecture runs on a device of
// the given compute capability: the major number must be the device's own and
// the minor not above it; with suffix "a" both must be the device's.
func (a architecture) runsOn(major, minor int) bool {
	if a.suffix == "a" {
		return a.major == major && a.minor == minor
	}
	return a.major == major && a.minor <= minor
}

// Closest is the target whose machine code was made closest to the device, of those
// that run on it, or "".
func Closest(targets []string, device cuda.Info) (string, error) {
	best, found := "", architecture{minor: -1}
	for _, target := range targets {
		arch, err := parseTarget(target)
		if err != nil {
			return "", err
		}
		closer := arch.minor > found.minor || arch.minor == found.minor && arch.suffix > found.suffix && arch.suffix != "f"
		if arch.runsOn(device.Major, device.Minor) && closer {
			best, found = target, arch
		}
	}
	return best, nil
}

// chooseTarget picks the closest of the kernel's targets; where none runs on the
// device, the device's own architecture, for which the source can be compiled.
func chooseTarget(a Artifact, device cuda.Info) (string, error) {
	if best, err := Closest(a.Targets, device); best != "" || err != nil {
		return best, err
	}
	switch {
	case a.Family == "sm80" && device.Major >= 8:
		return fmt.Sprintf("sm_%d%d", device.Major, device.Minor), nil
	case a.Family == "sm90" && device.Major == 9 && device.Minor == 0:
		return "sm_90a", nil
	}
	return "", fmt.Errorf("family %s does not run on compute capability %d.%d", a.Family, device.Major, device.Minor)
}
