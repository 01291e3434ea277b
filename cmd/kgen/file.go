package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// replaceFile writes a file whole or not at all; of a link, what it leads to.
func replaceFile(path string, data []byte) error {
	place, temp, err := beginFile(path)
	if err != nil {
		return err
	}
	if err := writeSynced(temp, data); err != nil {
		return notWritten(path, errors.Join(err, os.RemoveAll(temp)))
	}
	if err := os.Rename(temp, place); err != nil {
		return notWritten(path, errors.Join(err, os.RemoveAll(temp)))
	}
	return syncFolder(filepath.Dir(place))
}

// checkFile says whether replaceFile could write a file, for who has much to do
// before it does.
func checkFile(path string) error {
	_, temp, err := beginFile(path)
	if err != nil {
		return err
	}
	return notWritten(path, errors.Join(writeSynced(temp, nil), os.RemoveAll(temp)))
}

// beginFile returns a file's place, behind links, and where it is written before it is
// renamed. What is there and no regular file, such as a device, is not to be replaced.
func beginFile(path string) (place, temp string, err error) {
	place = path
	if _, err := os.Lstat(path); err == nil {
		if place, err = filepath.EvalSymlinks(path); err != nil {
			return "", "", notWritten(path, err)
		}
	}
	switch info, err := os.Stat(place); {
	case err == nil && info.IsDir():
		return "", "", fmt.Errorf("write %s: it is a folder", path)
	case err == nil && !info.Mode().IsRegular():
		return "", "", fmt.Errorf("write %s: it is not a regular file", path)
	}
	temp = beside(place)
	return place, temp, notWritten(path, os.RemoveAll(temp)) // of a process that was killed
}

// notWritten is an error with the name that the caller gave in the place of the
// temporary one.
func notWritten(path string, err error) error {
	if err == nil {
		return nil
	}
	var of *fs.PathError
	if errors.As(err, &of) {
		err = of.Err
	}
	var rename *os.LinkError
	if errors.As(err, &rename) {
		err = rename.Err
	}
	return fmt.Errorf("write %s: %w", path, err)
}
