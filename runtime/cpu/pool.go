package cpu

import (
	"sync"
	"sync/atomic"
)

// pool shares the tasks of one job at a time out to its workers, one of which
// is the caller of run.
type pool struct {
	workers []*worker
	wake    chan struct{}
	idle    sync.WaitGroup // helpers at work on the job

	job   job
	tasks int64
	next  atomic.Int64 // first task that nobody has

	mu     sync.Mutex
	failed int64 // task of err
	err    error // of the first task that failed
}

// job is work that falls into tasks which can be done in any order.
type job interface {
	task(w *worker, i int) error
}

func newPool(n int) *pool {
	p := &pool{workers: make([]*worker, n), wake: make(chan struct{}, n)}
	for i := range p.workers {
		p.workers[i] = new(worker)
	}
	for _, w := range p.workers[1:] {
		go func() {
			for range p.wake {
				p.work(w)
				p.idle.Done()
			}
		}()
	}
	return p
}

func (p *pool) close() { close(p.wake) }

// run does tasks 0 to n-1 and returns the error of the first that failed; those
// not yet begun are then left.
func (p *pool) run(j job, n int) error {
	p.job, p.tasks, p.err = j, int64(n), nil
	p.next.Store(0)
	helpers := min(len(p.workers), n) - 1
	p.idle.Add(max(0, helpers))
	for range helpers {
		p.wake <- struct{}{}
	}
	p.work(p.workers[0])
	p.idle.Wait()
	p.job = nil
	return p.err
}

func (p *pool) work(w *worker) {
	for {
		i := p.next.Add(1) - 1
		if i >= p.tasks {
			return
		}
		if err := p.job.task(w, int(i)); err != nil {
			p.mu.Lock()
			if p.err == nil || i < p.failed {
				p.failed, p.err = i, err
			}
			p.mu.Unlock()
			p.next.Store(p.tasks)
			return
		}
	}
}
