package schedule

// rolling is a list of a step, one sequence's elements behind the other's, that is written
// over the list of the step before: what has stayed as it was stays where it is.
type rolling[T any] struct {
	all   []T // up to n of this step, from rest on what is left of the step before
	n     int
	rest  int
	moved int // so many places up the rest was moved in this step
}

// begin starts the list of a step, which has nothing of the step before if that is forgotten.
func (l *rolling[T]) begin(forget bool) {
	if forget {
		l.all = l.all[:0]
	}
	l.n, l.rest, l.moved = 0, 0, 0
}

// left is how many elements of the step before there are that come next, and next the first.
func (l *rolling[T]) left() int { return len(l.all) - l.rest }
func (l *rolling[T]) next() *T  { return &l.all[l.rest] }

// stays is whether what comes next, if it is kept, has the place that it had in the step before.
func (l *rolling[T]) stays() bool { return l.n == l.rest-l.moved }

// drop leaves out the next k elements of the step before.
func (l *rolling[T]) drop(k int) { l.rest += k }

// keep takes over the next k elements of the step before, and returns them.
func (l *rolling[T]) keep(k int) []T {
	kept := l.all[l.n : l.n+k]
	if l.n != l.rest {
		copy(kept, l.all[l.rest:l.rest+k])
	}
	l.n += k
	l.rest += k
	return kept
}

// add appends k elements, and returns them to be written.
func (l *rolling[T]) add(k int) []T {
	if short := l.n + k - l.rest; short > 0 {
		l.push(short)
	}
	l.n += k
	return l.all[l.n-k : l.n]
}

// push moves the rest up, by so many places at least: the first time in a step by no more, as
// what follows has mostly stayed as it was and then stands where it should, and after that
// as far as there is room, so that a step in which many sequences have changed makes few moves.
func (l *rolling[T]) push(by int) {
	end := len(l.all)
	if end+by > cap(l.all) {
		grown := make([]T, end, 2*(end+by))
		copy(grown, l.all)
		l.all = grown
	}
	if l.moved > 0 {
		by = cap(l.all) - end
	}
	l.moved += by
	l.all = l.all[:end+by]
	copy(l.all[l.rest+by:], l.all[l.rest:end])
	l.rest += by
}

// end leaves the list of the step in all. There is then room for twice as much: what a step
// of no more takes beside the step before.
func (l *rolling[T]) end() {
	l.all = resize(l.all, 2*l.n)[:l.n]
}
