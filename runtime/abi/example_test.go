package abi_test

import (
	"fmt"

	"github.com/kgen-project/kgen/runtime/abi"
)

func ExampleManifest_Encode() {
	m := abi.Manifest{
		Spec: "llama3", SpecDigest: "5f0c", Generator: "0.1.0",
		Compiler: abi.Compiler{ID: "nvrtc", Version: "13.0.88"},
		Flags:    []string{"--std=c++17"},
		Kernels: []abi.ManifestKernel{{
			Kind: abi.KindMerge, Entry: "llama3_merge", Family: "sm80",
			Plan: abi.ManifestPlan{Warps: 4}, Threads: 128, Source: "merge.cu", SourceSHA256: "a1",
			Targets: []abi.ManifestTarget{{Target: "sm_80", CubinSHA256: "b2", Registers: 32}},
		}},
	}
	data, err := m.Encode()
	if err != nil {
		panic(err)
	}
	fmt.Print(string(data))
	// Output:
	// {
	//   "schema": 1,
	//   "spec": "llama3",
	//   "spec_digest": "5f0c",
	//   "generator": "0.1.0",
	//   "compiler": {
	//     "id": "nvrtc",
	//     "version": "13.0.88"
	//   },
	//   "flags": [
	//     "--std=c++17"
	//   ],
	//   "kernels": [
	//     {
	//       "kind": "merge",
	//       "entry": "llama3_merge",
	//       "family": "sm80",
	//       "plan": {
	//         "rows": 0,
	//         "keys": 0,
	//         "stages": 0,
	//         "warps": 4
	//       },
	//       "threads": 128,
	//       "shared_bytes": 0,
	//       "source": "merge.cu",
	//       "source_sha256": "a1",
	//       "targets": [
	//         {
	//           "target": "sm_80",
	//           "cubin_sha256": "b2",
	//           "registers": 32,
	//           "static_shared_bytes": 0,
	//           "spill_store_bytes": 0,
	//           "spill_load_bytes": 0,
	//           "stack_bytes": 0,
	//           "const_bytes": 0
	//         }
	//       ]
	//     }
	//   ]
	// }
}
