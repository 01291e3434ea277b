package main

import (
	"errors"

	"golang.org/x/sys/unix"
)

// exchange swaps the names of two folders at once.
func exchange(a, b string) error {
	err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // a file system or a kernel without it
		return errors.ErrUnsupported
	}
	return err
}
