//go:build gorgonia

package device

import (
	"github.com/kgen-project/kgen/runtime/cuda/driver"
	"github.com/kgen-project/kgen/runtime/cuda/gorgonia"
)

var openers = []opener{{"purego", driver.Open}, {"gorgonia", gorgonia.Open}}
