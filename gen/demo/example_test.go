package demo_test

import (
	"context"
	"fmt"
	"log"

	"github.com/kgen-project/kgen/gen/demo"
	"github.com/kgen-project/kgen/gen/verify"
	"github.com/kgen-project/kgen/runtime/cpu"
)

// Which documents are asked for follows from the seed; the times do not.
func ExampleRun() {
	s, err := demo.SmolLM2()
	if err != nil {
		log.Fatal(err)
	}
	dev := cpu.Open(cpu.Options{})
	defer dev.Close()
	report, err := demo.Run(context.Background(), dev, s, verify.CPU(dev), demo.Options{
		Seed: 1, Documents: 5, Zipf: 1, Requests: 4, PerRequest: 2, Shortest: 10, Longest: 20, Question: 3, Decode: 1,
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(report.Uses, "uses of documents,", report.Used, "different ones,", report.Hits, "were there")
	for _, m := range report.Methods {
		fmt.Println(m.Name)
	}
	// Output:
	// 8 uses of documents, 4 different ones, 4 were there
	// lazy reuse
	// copy per request
	// full recomputation
}
