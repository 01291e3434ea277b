package abi_test

import (
	"fmt"
	"log"
	"reflect"

	"github.com/kgen-project/kgen/runtime/abi"
)

func ExampleLayout() {
	run, err := abi.Layout(reflect.TypeFor[abi.Run]())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(run.Name, run.Size)
	for _, f := range run.Fields {
		fmt.Println(f.Offset, f.CType, f.CName, f.Count)
	}
	// Output:
	// Run 32
	// 0 int32_t page 0
	// 4 int32_t begin 0
	// 8 int32_t end 0
	// 12 int32_t offset 0
	// 16 int32_t causal 0
	// 20 int32_t once 0
	// 24 int32_t ends_part 0
	// 28 int32_t reserved 0
}
