package driver_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/cuda/driver"
)

func ExampleOpen() {
	dev, err := driver.Open(context.Background(), 0)
	switch {
	case errors.Is(err, cuda.ErrNoDevice):
		fmt.Println("no GPU: package cpu has a device")
		return
	case err != nil:
		log.Fatal(err)
	}
	defer dev.Close()
	fmt.Println(dev.Info().Name)
}
