// Package device holds the tests that need a GPU; they skip where there is
// none. To carry them to a machine without Go:
//
//	CGO_ENABLED=0 go test -c -o device.test ./tests/device
//
// With the build tag gorgonia they run over gorgonia.org/cu too:
//
//	tests/gorgonia/build.sh device.test
package device
