package rope_test

import (
	"fmt"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/rope"
)

// The rotation of pair 1 at position -70000, from the two levels of the table.
func ExampleTable() {
	v, err := rope.Rule{Type: rope.Linear, RotaryDim: 64, Theta: 10000, Factor: 2}.Resolve()
	if err != nil {
		fmt.Println(err)
		return
	}
	table := rope.Table(v)
	at := func(row, pair int) (cos, sin float32) {
		i := row*v.RotaryDim + 2*pair
		return table[i], table[i+1]
	}
	const lowRows = 1 << abi.RopeLowBits
	lowCos, lowSin := at(70000%lowRows, 1)
	highCos, highSin := at(lowRows+70000/lowRows, 1)
	cos := highCos*lowCos - highSin*lowSin
	sin := -(highSin*lowCos + highCos*lowSin) // the position is negative
	fmt.Printf("%d rows, cos %.5f, sin %.5f\n", len(table)/v.RotaryDim, cos, sin)
	// Output: 32800 rows, cos 0.13806, sin -0.99042
}
