package build

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cubincache"
)

// Attributes of section .nv.info whose value is a symbol and a number.
const (
	infoFrameSize = 0x11 // bytes of stack
	infoRegisters = 0x2f
)

// infoSized is the form of an attribute that gives the size of its value; all
// other forms have a value of two bytes.
const infoSized = 0x04

// reservedShared is the shared memory of a block that is the driver's. From
// sm_90 on it is a part of the kernel's own section.
const reservedShared = 1024

// inspect reads what a kernel uses: from the cubin all but the spills, which
// the compiler's messages give.
func inspect(e cubincache.Entry, entry string) (abi.ManifestTarget, error) {
	f, err := elf.NewFile(bytes.NewReader(e.Cubin))
	if err != nil {
		return abi.ManifestTarget{}, fmt.Errorf("it is not an ELF file: %w", err)
	}
	if f.Section(".text."+entry) == nil {
		return abi.ManifestTarget{}, fmt.Errorf("it has no kernel %s", entry)
	}
	info, err := kernelInfo(f, entry)
	if err != nil {
		return abi.ManifestTarget{}, err
	}
	registers, ok := info[infoRegisters]
	if !ok {
		return abi.ManifestTarget{}, fmt.Errorf("it gives no registers of %s", entry)
	}
	figures := abi.ManifestTarget{Registers: registers, StackBytes: info[infoFrameSize]}
	if figures.SpillStores, figures.SpillLoads, err = spills(e.Log, entry); err != nil {
		return abi.ManifestTarget{}, err
	}
	for _, s := range f.Sections {
		switch {
		case s.Name == ".nv.shared."+entry:
			figures.StaticBytes = int(s.Size)
			if f.Section(".nv.shared.reserved.0") != nil {
				figures.StaticBytes -= reservedShared
			}
		case strings.HasPrefix(s.Name, ".nv.constant") && strings.HasSuffix(s.Name, "."+entry):
			figures.ConstBytes += int(s.Size)
		}
	}
	return figures, nil
}

// kernelInfo returns the attributes of one kernel in section .nv.info.
func kernelInfo(f *elf.File, entry string) (map[byte]int, error) {
	symbols, err := f.Symbols()
	if err != nil {
		return nil, fmt.Errorf("read its symbols: %w", err)
	}
	section := f.Section(".nv.info")
	if section == nil {
		return nil, errors.New("it has no section .nv.info")
	}
	data, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("read its section .nv.info: %w", err)
	}
	info := map[byte]int{}
	for len(data) >= 4 {
		form, attribute, size := data[0], data[1], int(binary.LittleEndian.Uint16(data[2:]))
		data = data[4:]
		if form != infoSized {
			continue
		}
		if size > len(data) {
			return nil, errors.New("its section .nv.info is cut short")
		}
		value := data[:size]
		data = data[size:]
		if attribute != infoFrameSize && attribute != infoRegisters || size != 8 {
			continue
		}
		symbol := int(binary.LittleEndian.Uint32(value)) - 1 // Symbols leaves out symbol 0
		if symbol >= 0 && symbol < len(symbols) && symbols[symbol].Name == entry {
			info[attribute] = int(binary.LittleEndian.Uint32(value[4:]))
		}
	}
	return info, nil
}

var spillPattern = regexp.MustCompile(`(\d+) bytes spill stores, (\d+) bytes spill loads`)

// spills returns the bytes that a kernel spills and reloads, by the line after
// the one that names it.
func spills(log, entry string) (stores, loads int, err error) {
	lines := strings.Split(log, "\n")
	for i, line := range lines[:len(lines)-1] {
		if !strings.HasSuffix(strings.TrimSpace(line), "Function properties for "+entry) {
			continue
		}
		m := spillPattern.FindStringSubmatch(lines[i+1])
		if m == nil {
			break
		}
		if stores, err = strconv.Atoi(m[1]); err != nil {
			return 0, 0, fmt.Errorf("the spills of %s: %w", entry, err)
		}
		if loads, err = strconv.Atoi(m[2]); err != nil {
			return 0, 0, fmt.Errorf("the spills of %s: %w", entry, err)
		}
		return stores, loads, nil
	}
	return 0, 0, fmt.Errorf("the compiler's messages do not give the spills of %s:\n%s", entry, log)
}

// account is a line of the compiler's figures, which are not a warning.
var account = regexp.MustCompile(`^ptxas info|^ptxas\s+\.|^\s+\d+ bytes stack frame`)

// warnings is the compiler's messages without its figures.
func warnings(log string) string {
	var b strings.Builder
	for line := range strings.Lines(log) {
		if !account.MatchString(line) {
			b.WriteString(line)
		}
	}
	return strings.TrimSpace(b.String())
}
