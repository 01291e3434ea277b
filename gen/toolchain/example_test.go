package toolchain_test

import (
	"context"
	"fmt"
	"log"

	"github.com/kgen-project/kgen/gen/toolchain"
)

func Example() {
	ctx, dir := context.Background(), "/var/cache/kgen/toolchain"
	tools := toolchain.Find(dir)
	if tools.NVRTC == "" {
		if err := toolchain.Install(ctx, dir, toolchain.InstallOptions{}); err != nil {
			log.Fatal(err)
		}
		tools = toolchain.Find(dir)
	}
	version, err := toolchain.Version(ctx, tools.NVRTC, "")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(version)
}
