package tune

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/kgen-project/kgen/gen/emulate"
	"github.com/kgen-project/kgen/templates"
)

// Sources is a hash of the templates that kernels are made from, without their comments:
// times are of the kernels of their day.
func Sources() string {
	sum := sha256.New()
	err := fs.WalkDir(templates.FS, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || strings.HasPrefix(path, "emu/") {
			return err
		}
		data, err := fs.ReadFile(templates.FS, path)
		fmt.Fprintln(sum, path)
		for line := range strings.Lines(string(data)) {
			code, _, _ := strings.Cut(line, "//")
			if code = strings.TrimSpace(code); code != "" {
				fmt.Fprintln(sum, code)
			}
		}
		return err
	})
	if err != nil {
		panic(err) // files that this program holds
	}
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

// Counted is what the emulator's counters stand for as a time, by about what each
// thing takes one multiprocessor of an H200, in nanoseconds: no GPU's time, but the
// same on every machine, so that a whole run can be had without a GPU.
func Counted(c emulate.Counters) time.Duration {
	const (
		mma, wgmma                  = 5, 60 // an m16n8k16; an m64nNk16 of a usual N
		ldmatrix, shuffle           = 2, 1
		barrier, warpBarrier, block = 30, 5, 2000
		globalBytes, sharedBytes    = 32, 128 // a nanosecond
	)
	ns := mma*c.MMAs + wgmma*c.WGMMAs + ldmatrix*c.LdMatrices + shuffle*c.Shuffles +
		barrier*c.Barriers + warpBarrier*c.WarpBarriers + block*c.Blocks +
		(c.CopyBytes+c.LoadBytes+c.StoreBytes+c.TensorCopyBytes)/globalBytes +
		(c.SharedLoadBytes+c.SharedStoreBytes)/sharedBytes
	return time.Duration(ns)
}
