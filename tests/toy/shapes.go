package toy

import (
	"github.com/kgen-project/kgen/generated/llama3"
	"github.com/kgen-project/kgen/generated/smollm2_135m"
	"github.com/kgen-project/kgen/runtime/serve"
)

// SmolLM2 is the shape of the generated kernels of that name, with so many layers.
func SmolLM2(layers int) serve.Model { return serve.ModelOf(smollm2_135m.Bundle(), "toy", layers) }

// Llama3 is the shape of the generated kernels of that name, with so many layers.
func Llama3(layers int) serve.Model { return serve.ModelOf(llama3.Bundle(), "toy", layers) }
