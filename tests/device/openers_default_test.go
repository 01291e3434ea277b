//go:build !gorgonia

package device

import "github.com/kgen-project/kgen/runtime/cuda/driver"

var openers = []opener{{"purego", driver.Open}}
