package spec

import (
	"fmt"
	"go/token"
	"go/types"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

var identifier = regexp.MustCompile(`^[a-z][a-z0-9_]{0,40}$`)

// windowsDevice is the names that the go command allows no part of an import path.
var windowsDevice = regexp.MustCompile(`^(con|prn|aux|nul|com[0-9]|lpt[0-9])$`)

// name reads the spec's name, which becomes a Go package, part of C
// identifiers, and a folder.
func (r *reader) name(p *string) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if n.Kind != yaml.ScalarNode {
			r.failAt(n, path, "want a name, found %s", describe(n))
			return
		}
		if msg := CheckName(n.Value); msg != "" {
			r.failAt(n, path, "%s", msg)
			return
		}
		*p = n.Value
	}
}

// CheckName says what keeps a word from being a spec's name, or "".
func CheckName(name string) string {
	switch {
	case !identifier.MatchString(name):
		return fmt.Sprintf("%s is not a name: want a letter a to z, then up to 40 of a to z, 0 to 9 and _", quote(name))
	case token.IsKeyword(name) || types.Universe.Lookup(name) != nil:
		return fmt.Sprintf("%s has a meaning of its own in Go; choose another name", name)
	case slices.Contains(cppWords, name):
		return fmt.Sprintf("%s has a meaning of its own in C++; choose another name", name)
	case slices.Contains([]string{"main", "internal", "vendor", "testdata"}, name) || strings.HasSuffix(name, "_test"):
		return fmt.Sprintf("the Go tool treats a package called %s as a special one; choose another name", name)
	case name == "init":
		return "no Go file can import a package called init; choose another name"
	case windowsDevice.MatchString(name):
		return fmt.Sprintf("the Go tool takes no package called %s, which Windows has for a device; choose another name", name)
	case slices.Contains(goPlatforms, name[strings.LastIndexByte(name, '_')+1:]) && strings.Contains(name, "_"):
		return fmt.Sprintf("the Go tool would build %s.go for that platform alone; choose another name", name)
	}
	return ""
}

// goPlatforms are the operating systems and architectures that Go knows or knew,
// at the end of a file's name.
var goPlatforms = strings.Fields(`aix android darwin dragonfly freebsd hurd illumos ios js linux nacl netbsd openbsd
	plan9 solaris wasip1 windows zos 386 amd64 amd64p32 arm armbe arm64 arm64be loong64 mips mipsle mips64 mips64le
	mips64p32 mips64p32le ppc ppc64 ppc64le riscv riscv64 s390 s390x sparc sparc64 wasm`)

// cppWords is the keywords of C++ that Go does not have.
var cppWords = strings.Fields(`alignas alignof and and_eq asm auto bitand bitor catch char char8_t char16_t
	char32_t class co_await co_return co_yield compl concept const_cast consteval constexpr constinit decltype
	delete do double dynamic_cast enum explicit export extern friend inline long mutable namespace new noexcept
	not not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires short signed
	sizeof static static_assert static_cast template this thread_local throw try typedef typeid typename union
	unsigned using virtual void volatile wchar_t while xor xor_eq`)
