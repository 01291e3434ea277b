package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// replaceFile writes a file whole or not at all.
func replaceFile(path string, data []byte) error {
	temp, err := beginFile(path)
	if err != nil {
		return err
	}
	if err := writeSynced(temp, data); err != nil {
		return notWritten(path, errors.Join(err, os.RemoveAll(temp)))
	}
	if err := os.Rename(temp, path); err != nil {
		return notWritten(path, errors.Join(err, os.RemoveAll(temp)))
	}
	return syncFolder(filepath.Dir(path))
}

// checkFile says whether replaceFile could write a file, for who has much to do
// before it does.
func checkFile(path string) error {
	temp, err := beginFile(path)
	if err != nil {
		return err
	}
	return notWritten(path, errors.Join(writeSynced(temp, nil), os.RemoveAll(temp)))
}

// beginFile returns where a file is written before it is renamed.
func beginFile(path string) (temp string, err error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return "", fmt.Errorf("write %s: it is a folder", path)
	}
	temp = beside(path)
	return temp, notWritten(path, os.RemoveAll(temp)) // of a process that was killed
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
