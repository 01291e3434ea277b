package cpu

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// systemMemory is the bytes of memory of the machine, or of the container where that has fewer.
func systemMemory() int64 {
	most := int64(otherMemory)
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		most = int64(info.Totalram) * int64(info.Unit)
	}
	for _, limit := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		text, err := os.ReadFile(limit)
		if err != nil {
			continue // the machine has the other version, or none
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil { // else it says max
			most = min(most, n)
		}
	}
	return most
}
