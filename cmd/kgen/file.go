package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kgen-project/kgen/runtime/filelock"
)

// replaceFile writes a file whole or not at all; of a link, what it leads to.
func replaceFile(path string, data []byte) error {
	return changeFile(path, func() ([]byte, error) { return data, nil })
}

// changeFile is replaceFile by what content returns, which no other kgen writes the file
// during.
func changeFile(path string, content func() ([]byte, error)) error {
	place, unlock, err := lockPlace(path)
	if err != nil {
		return err
	}
	defer unlock()
	data, err := content()
	if err != nil {
		return err
	}
	temp := unfinished(place)
	err = writeSynced(temp, data)
	if err == nil {
		err = os.Rename(temp, place)
	}
	if err != nil {
		return notWritten(path, errors.Join(err, os.RemoveAll(temp)))
	}
	return syncFolder(filepath.Dir(place))
}

// checkFile says whether replaceFile could write a file, for who has much to do
// before it does.
func checkFile(path string) error {
	place, unlock, err := lockPlace(path)
	if err != nil {
		return err
	}
	defer unlock()
	temp := unfinished(place)
	return notWritten(path, errors.Join(writeSynced(temp, nil), os.RemoveAll(temp)))
}

// lockPlace returns a file's place, behind links, with the lock of who writes it: they all
// write beside it first, to a file of the same name. What is there and no regular file,
// such as a device, is not to be replaced.
func lockPlace(path string) (place string, unlock func(), err error) {
	place = path
	if _, err := os.Lstat(path); err == nil {
		if place, err = filepath.EvalSymlinks(path); err != nil {
			return "", nil, notWritten(path, err)
		}
	}
	switch info, err := os.Stat(place); {
	case err == nil && info.IsDir():
		return "", nil, fmt.Errorf("write %s: it is a folder", path)
	case err == nil && !info.Mode().IsRegular():
		return "", nil, fmt.Errorf("write %s: it is not a regular file", path)
	case err == nil && isMount(place):
		return "", nil, fmt.Errorf("write %s: it is a mount point, which no other file can take the place of: give another file", path)
	}
	unlock, err = filelock.Lock(context.Background(), unfinished(place)+".lock") // nobody has it for long
	if err != nil {
		return "", nil, notWritten(path, err)
	}
	if err := os.RemoveAll(unfinished(place)); err != nil { // of a process that was killed
		unlock()
		return "", nil, notWritten(path, err)
	}
	return place, unlock, nil
}

// unfinished is where a file is written before it takes its place. It is never where a folder
// is: what a killed process leaves of the one is not in the way of the other.
func unfinished(place string) string {
	return filepath.Join(filepath.Dir(place), "."+filepath.Base(place)+".kgen-file")
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
