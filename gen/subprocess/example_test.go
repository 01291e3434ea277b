package subprocess_test

import (
	"context"
	"fmt"

	"github.com/kgen-project/kgen/gen/subprocess"
)

func ExampleRun() {
	out, err := subprocess.Run(context.Background(), subprocess.Command{Path: "/bin/sh", Args: []string{"-c", "echo done"}})
	fmt.Print(out, err, "\n")
	_, err = subprocess.Run(context.Background(), subprocess.Command{Path: "/bin/sh", Args: []string{"-c", "echo no such file >&2; exit 3"}})
	fmt.Println(err)
	// Output:
	// done
	// <nil>
	// sh: exit status 3
	// no such file
}
