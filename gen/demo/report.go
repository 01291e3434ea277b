package demo

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// Report is what serving the workload cost.
type Report struct {
	Spec   string `json:"spec"`
	Device string `json:"device"`
	Seed   uint64 `json:"seed"`

	Documents  int     `json:"documents"`
	Shortest   int     `json:"shortest_tokens"`
	Longest    int     `json:"longest_tokens"`
	Zipf       float64 `json:"zipf"`
	Requests   int     `json:"requests"`
	PerRequest int     `json:"documents_per_request"`
	Question   int     `json:"question_tokens"`
	Decode     int     `json:"decode_steps"`
	Checked    int     `json:"requests_checked"`

	Uses int `json:"document_uses"`  // documents of all requests
	Used int `json:"documents_used"` // different ones
	Hits int `json:"hits"`           // uses of a document whose KV was there

	Methods []Method `json:"methods"`
}

// Method is one way to serve.
type Method struct {
	Name string `json:"name"`

	// To a request's first token, in the mean, and what it is made of.
	First  time.Duration `json:"first_token_ns"`
	Encode time.Duration `json:"encode_ns"` // documents whose KV was not there
	Copy   time.Duration `json:"copy_ns"`   // KV to the request's own pages
	Attend time.Duration `json:"attend_ns"`

	Step         time.Duration `json:"decode_step_ns"` // one token of every request, in the mean
	Spared       int64         `json:"spared_bytes"`   // of KV that a decode step need not read, as several requests hold it
	KVBytes      int64         `json:"kv_bytes"`       // of one layer, all requests open
	LargestError float64       `json:"largest_error"`  // of an output row of the requests checked, relative to the oracle's
}

func newReport(device cuda.Info, s spec.Spec, w workload, servers []*server) Report {
	r := Report{
		Spec: s.Name, Device: device.Name, Seed: w.Seed,
		Documents: w.Documents, Shortest: w.Shortest, Longest: w.Longest, Zipf: w.Zipf,
		Requests: w.Requests, PerRequest: w.PerRequest, Question: w.Question, Decode: w.Decode, Checked: min(w.Check, w.Requests),
		Uses: w.Requests * w.PerRequest, Used: len(w.used()), Methods: []Method{},
	}
	requests, steps := time.Duration(w.Requests), time.Duration(max(1, w.Decode))
	for _, v := range servers {
		if v.method == lazyReuse {
			r.Hits = int(v.documents.Cache().Stats().Hits)
		}
		r.Methods = append(r.Methods, Method{
			Name: v.method.name, First: v.first / requests, Encode: v.encode / requests, Copy: v.copy / requests,
			Attend: (v.first - v.encode - v.copy) / requests, Step: v.decode / steps, Spared: v.spared / int64(steps),
			KVBytes: v.kvBytes(), LargestError: v.largest,
		})
	}
	return r
}

// String is the report as a table.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, one layer, on %s, seed %d\n", r.Spec, r.Device, r.Seed)
	fmt.Fprintf(&b, "%d requests of %d documents and a question of %d tokens, then %d tokens each\n", r.Requests, r.PerRequest, r.Question, r.Decode)
	fmt.Fprintf(&b, "%d documents of %d to %d tokens, Zipf %g: uses %d, documents used %d, hits %d (%.0f%%)\n\n",
		r.Documents, r.Shortest, r.Longest, r.Zipf, r.Uses, r.Used, r.Hits, 100*float64(r.Hits)/float64(r.Uses))
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "method\tfirst token\tencode\tcopy\tattend\tdecode step\tKV held\tlargest error")
	for _, m := range r.Methods {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%.2f MiB\t%s\n", m.Name, milliseconds(m.First), milliseconds(m.Encode), milliseconds(m.Copy),
			milliseconds(m.Attend), milliseconds(m.Step), float64(m.KVBytes)/(1<<20), r.errorText(m))
	}
	w.Flush()
	fmt.Fprintf(&b, "\nFirst token: mean of a request, of which encode, copy and attend. Decode step: one token of all %d requests.\n", r.Requests)
	fmt.Fprintf(&b, "KV held: all requests open. Largest error: of an output, relative to attention in float64, in %d requests.\n", r.Checked)
	for _, m := range r.Methods {
		if m.Spared > 0 {
			fmt.Fprintf(&b, "With %s, a decode step reads what several requests hold once (shared decode): %.2f MiB of KV less.\n", m.Name, float64(m.Spared)/(1<<20))
		}
	}
	return b.String()
}

func (r Report) errorText(m Method) string {
	if r.Checked == 0 {
		return "-"
	}
	return fmt.Sprintf("%.4f", m.LargestError)
}

func milliseconds(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3f ms", float64(d)/float64(time.Millisecond))
}
