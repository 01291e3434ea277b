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

// isMount says whether a file system is mounted at a folder, which then can't be renamed.
func isMount(path string) bool {
	var s unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, 0, &s)
	return err == nil && s.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 // a kernel without it says no
}
