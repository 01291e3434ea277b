package tune

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/filelock"
)

// Identity is what a measurement is worth nothing without.
type Identity struct {
	Spec     string      `json:"spec"`
	Digest   string      `json:"digest"`
	GPU      string      `json:"gpu"`
	Target   spec.Target `json:"target"`
	Driver   string      `json:"driver"`
	Compiler string      `json:"compiler"` // such as nvrtc 13.0.88
	Sources  string      `json:"sources"`  // see [Sources]
}

// Differs says in a sentence what of a table's or journal's identity is no longer so,
// or "". Empty fields of now are not known and not compared.
func (then Identity) Differs(now Identity) string {
	for _, f := range []struct{ what, then, now string }{
		{"the spec", then.Spec, now.Spec},
		{"the GPU", then.GPU, now.GPU}, {"the spec's digest", then.Digest, now.Digest}, {"the target", string(then.Target), string(now.Target)},
		{"the driver", then.Driver, now.Driver}, {"the compiler", then.Compiler, now.Compiler}, {"the hash of the kernels", then.Sources, now.Sources},
	} {
		if f.now != "" && f.then != f.now {
			return fmt.Sprintf("%s was %s and is now %s", f.what, f.then, f.now)
		}
	}
	return ""
}

// Journal keeps every check and every time in a file, a line each, as it is made, so
// that a run that was interrupted, by whatever, goes on where it was. It is for one
// goroutine at a time; while it is open, no other run can open the same file.
type Journal struct {
	file    *os.File
	unlock  func()
	checked map[string]string
	timed   map[string][]int64
}

// event is a line.
type event struct {
	Start   *Identity `json:"start,omitempty"`
	Seed    uint64    `json:"seed,omitempty"` // with Start
	Checked string    `json:"checked,omitempty"`
	Failure string    `json:"failure,omitempty"` // with Checked
	Timed   string    `json:"timed,omitempty"`
	Times   []int64   `json:"ns,omitempty"` // with Timed
}

// OpenJournal opens or makes a journal. One of another identity or seed is refused, and one
// that is open: lines of two runs among each other would be no run's.
func OpenJournal(path string, id Identity, seed uint64) (_ *Journal, err error) {
	unlock, err := filelock.Try(path + ".lock")
	if errors.Is(err, filelock.ErrHeld) {
		return nil, fmt.Errorf("tune: journal %s: another run is using it: wait for its end, or give another --journal", path)
	}
	if err != nil {
		return nil, fmt.Errorf("tune: journal: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		unlock()
		return nil, fmt.Errorf("tune: journal: %w", err)
	}
	j := &Journal{file: f, unlock: unlock, checked: map[string]string{}, timed: map[string][]int64{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, j.Close())
		}
	}()
	started, whole, err := j.read(id, seed)
	if err != nil {
		return nil, fmt.Errorf("tune: journal %s: %w", path, err)
	}
	// What a kill cut short is not a line.
	if err := f.Truncate(whole); err != nil {
		return nil, fmt.Errorf("tune: journal: %w", err)
	}
	if _, err := f.Seek(whole, 0); err != nil {
		return nil, fmt.Errorf("tune: journal: %w", err)
	}
	if !started {
		return j, j.write(event{Start: &id, Seed: seed})
	}
	return j, nil
}

// journalStart begins a journal, and nothing else that someone would miss.
var journalStart = []byte(`{"start":`)

// read returns the length of the whole lines.
func (j *Journal) read(id Identity, seed uint64) (started bool, whole int64, err error) {
	scanner := bufio.NewReader(j.file)
	for {
		line, err := scanner.ReadBytes('\n')
		switch {
		case err != nil && err != io.EOF:
			return false, 0, err
		case err == io.EOF && !started && !bytes.HasPrefix(line, journalStart) && !bytes.HasPrefix(journalStart, line):
			return false, 0, errors.New("it is no journal: remove it, or give another --journal")
		case err == io.EOF:
			return started, whole, nil // or a line without its end
		}
		var e event
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&e); err != nil {
			return false, 0, fmt.Errorf("it is no journal, or damaged, at byte %d: %w; remove it to start again", whole, err)
		}
		switch {
		case e.Start != nil:
			if why := e.Start.Differs(id); why != "" {
				return false, 0, fmt.Errorf("it is of another run: %s; remove it to start again", why)
			}
			if e.Seed != seed {
				return false, 0, fmt.Errorf("it is of a run with --seed %d; use that, or remove it to start again", e.Seed)
			}
			started = true
		case !started:
			return false, 0, errors.New("it does not say what it is of; remove it to start again")
		case e.Checked != "":
			j.checked[e.Checked] = e.Failure
		case e.Timed != "":
			j.timed[e.Timed] = e.Times
		}
		whole += int64(len(line))
	}
}

func (j *Journal) write(e event) error {
	line, err := json.Marshal(e)
	if err == nil {
		_, err = j.file.Write(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("tune: journal: %w", err)
	}
	return nil
}

// Known is how many checks and times the journal has.
func (j *Journal) Known() (checks, times int) {
	return len(j.checked), len(j.timed)
}

func (j *Journal) check(key string) (failure string, known bool) {
	failure, known = j.checked[key]
	return failure, known
}

func (j *Journal) addCheck(key, failure string) error {
	j.checked[key] = failure
	return j.write(event{Checked: key, Failure: failure})
}

func (j *Journal) time(key string) (ns []int64, known bool) {
	ns, known = j.timed[key]
	return ns, known
}

func (j *Journal) addTime(key string, ns []int64) error {
	j.timed[key] = ns
	return j.write(event{Timed: key, Times: ns})
}

// Close closes the file, which stays.
func (j *Journal) Close() error {
	defer j.unlock()
	return j.file.Close()
}

// Remove closes the file and removes it.
func (j *Journal) Remove() error {
	defer j.unlock() // behind the removal: who has the lock has the file
	return errors.Join(j.file.Close(), os.Remove(j.file.Name()))
}
