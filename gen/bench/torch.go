package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/subprocess"
)

//go:embed torch_attention.py
var torchAttention string

// Torch is the attention of torch, by a Python process that [StartTorch] started.
type Torch struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	stderr *bytes.Buffer
	about  string
	ended  error // of a process that was waited for
}

// TorchOptions are what StartTorch needs.
type TorchOptions struct {
	Python  string // the interpreter; "": python3 in PATH
	Script  string // its text; "": torch_attention.py
	Repeats int    // timed launches
	Clean   bool   // as with a Reader in [Options]
	Layers  int    // as in Options
}

// StartTorch starts torch for a spec's heads, and waits until it is ready. It is a
// [Baseline] until it is closed or ctx ends. It gets contiguous K and V that are
// already rotated; sequences that share documents get one dense copy each, of
// the mean length.
func StartTorch(ctx context.Context, s spec.Spec, o TorchOptions) (_ *Torch, err error) {
	if o.Python == "" {
		if o.Python, err = exec.LookPath("python3"); err != nil {
			return nil, errors.New("torch: there is no python3 in PATH: install one that has torch, or leave torch out of the baselines")
		}
	}
	if s.Model.HeadDim != s.Model.VHeadDim {
		return nil, fmt.Errorf("torch: %s has keys of %d and values of %d elements, and the script takes one head dim: leave torch out of the baselines",
			s.Name, s.Model.HeadDim, s.Model.VHeadDim)
	}
	if m := s.Masks; !m.Causal || m.Window > 0 || m.SinkLogits || m.SoftCap > 0 {
		return nil, fmt.Errorf("torch: the script has none of %s's masks but causal: leave torch out of the baselines", s.Name)
	}
	t := &Torch{stderr: &bytes.Buffer{}}
	args := []string{"-c", cmp.Or(o.Script, torchAttention), "--serve", "--repeats", fmt.Sprint(max(1, o.Repeats)), "--dtype", string(s.Model.DType),
		"--heads", fmt.Sprintf("%d,%d,%d", s.Model.QueryHeads, s.Model.KVHeads, s.Model.HeadDim)}
	if o.Clean {
		args = append(args, "--clean")
	}
	if o.Layers > 1 {
		args = append(args, "--layers", fmt.Sprint(o.Layers))
	}
	t.cmd = exec.CommandContext(ctx, o.Python, args...)
	t.cmd.Stderr = t.stderr
	subprocess.OwnGroup(t.cmd)
	t.cmd.WaitDelay = time.Second
	if t.stdin, err = t.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("torch: %w", err)
	}
	out, err := t.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("torch: %w", err)
	}
	t.stdout = bufio.NewReader(out)
	if err := t.cmd.Start(); err != nil {
		return nil, fmt.Errorf("torch: %w", err)
	}
	var ready struct {
		Torch  string `json:"torch"`
		Device string `json:"device"`
	}
	if err := t.read(&ready); err != nil {
		return nil, fmt.Errorf("torch: %s can't time it: %w", o.Python, errors.Join(ctx.Err(), err))
	}
	t.about = fmt.Sprintf("torch %s on %s", ready.Torch, ready.Device)
	return t, nil
}

// Name says what is timed.
func (*Torch) Name() string { return "torch" }

// About is the version of torch and the device that it uses.
func (t *Torch) About() string { return t.about }

// Close ends the process.
func (t *Torch) Close() error {
	if t.ended != nil {
		return nil // an answer's error has told
	}
	t.stdin.Close()
	if err := t.cmd.Wait(); err != nil {
		return fmt.Errorf("torch: %w%s", err, t.said())
	}
	return nil
}

// read takes one line of JSON. A process that ended is waited for, so that all it
// said is there.
func (t *Torch) read(to any) error {
	line, err := t.stdout.ReadBytes('\n')
	if err != nil {
		if t.ended == nil {
			t.ended = cmp.Or(t.cmd.Wait(), err)
		}
		return fmt.Errorf("it ended: %w%s", t.ended, t.said())
	}
	if err := json.Unmarshal(line, to); err != nil {
		return fmt.Errorf("its answer %.60q: %w", line, err)
	}
	return nil
}

// said is the last line that the process wrote to its standard error.
func (t *Torch) said() string {
	text := strings.TrimSpace(t.stderr.String())
	if text == "" {
		return ""
	}
	return ": " + text[strings.LastIndexByte(text, '\n')+1:]
}

func (t *Torch) time(_ context.Context, _ *timer, p *Problem) ([]Peer, error) {
	c := p.c
	note := ""
	if c.Sharing.Documents > 0 {
		c.Sharing = Sharing{}
		note = "as " + c.String()
	}
	if _, err := fmt.Fprintln(t.stdin, c); err != nil {
		return nil, err
	}
	var rows []struct {
		Backend string `json:"backend"`
		Error   string `json:"error"`
		Times
	}
	if err := t.read(&rows); err != nil {
		return nil, err
	}
	var peers []Peer
	for _, r := range rows {
		peers = append(peers, Peer{Name: "torch " + r.Backend, Times: r.Times, Note: note, Error: r.Error})
	}
	return peers, nil
}
