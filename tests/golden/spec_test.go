package golden

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/generated/llama2_7b"
	"github.com/kgen-project/kgen/generated/llama3"
	"github.com/kgen-project/kgen/generated/smollm2_135m"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/templates"
	"github.com/kgen-project/kgen/tests/testutil"
)

// What a generated package says of its spec is what the generator knows of it.
func TestSpec(t *testing.T) {
	for _, got := range []kernel.Bundle{llama2_7b.Bundle(), llama3.Bundle(), smollm2_135m.Bundle()} {
		s := testutil.Spec(t, "../../specs/"+got.Name+".yaml")
		plans, err := plan.All(s)
		if err != nil {
			t.Fatal(err)
		}
		out, err := emit.Emit(s, plans, templates.FS)
		if err != nil {
			t.Fatal(err)
		}
		want := out.Bundle(s)
		if diff := cmp.Diff(want.Spec, got.Spec); diff != "" || got.SpecDigest != want.SpecDigest || got.Spec.Group == 0 {
			t.Errorf("%s: -want +got\n%s", got.Name, diff)
		}
	}
}
