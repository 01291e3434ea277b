package spec

import (
	"fmt"
	"strings"
)

// longestWord is the longest word that is compared or quoted in full.
const longestWord = 48

// notOneOf says that word is none of the valid words, and which is nearest.
func notOneOf[T ~string](word string, valid []T) string {
	msg := fmt.Sprintf("%s is not one of %s", quote(word), join(valid))
	if near := Nearest(word, valid); near != "" {
		msg += fmt.Sprintf("; did you mean %s?", near)
	}
	return msg
}

func unknownField(word string, valid []string) string {
	if near := Nearest(word, valid); near != "" {
		return fmt.Sprintf("unknown field; did you mean %s?", near)
	}
	return "unknown field; the fields here are " + join(valid)
}

// Nearest returns the valid word that word is likely a misspelling of, or "".
func Nearest[T ~string](word string, valid []T) T {
	if len(word) > longestWord {
		return ""
	}
	word = strings.ToLower(word)
	best, bestDistance := T(""), max(1, len(word)/3)+1
	for _, v := range valid {
		if len(word) > 2 && strings.HasPrefix(string(v), word) {
			return v
		}
	}
	for _, v := range valid {
		if d := distance(word, strings.ToLower(string(v))); d < bestDistance {
			best, bestDistance = v, d
		}
	}
	return best
}

// distance counts the insertions, deletions, substitutions and swaps of
// neighbours that turn a into b.
func distance(a, b string) int {
	var before, last, row []int
	last = make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row = make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}

func join[T ~string](words []T) string {
	var b strings.Builder
	for i, w := range words {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(w))
	}
	return b.String()
}

// quote makes any text safe and short enough for a message.
func quote(s string) string {
	if r := []rune(s); len(r) > longestWord {
		return fmt.Sprintf("%q...", string(r[:longestWord]))
	}
	return fmt.Sprintf("%q", s)
}
