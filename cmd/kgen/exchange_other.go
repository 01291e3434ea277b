//go:build !linux

package main

import "errors"

func exchange(string, string) error { return errors.ErrUnsupported }

func isMount(string) bool { return false }
