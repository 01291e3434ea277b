// Package kgen is the root of the module and holds its licence alone, for what goes
// into other people's trees. README.md says what kgen is; the command is cmd/kgen, and
// what servers import is below runtime.
package kgen

import _ "embed"

// License is the text of the Apache License 2.0.
//
//go:embed LICENSE
var License []byte
