// The kernel ahead of a launch that starts before that one has ended.
#pragma once
#include <vector>

#include "memory.hpp"

namespace kgen_emulator {

// What the launch ahead wrote is taken back while the first cluster of the next one runs, until
// that can't go on without it: a thread that does not wait for it reads what was there before.
class Previous {
 public:
  // Before a launch. One that starts early finds the buffers as they were before the launch ahead.
  void begin(const Global& global, bool early) {
    writes_.clear();
    pending_ = early;
    if (early) compare();
    before_.clear();
    global.for_each([&](unsigned char* begin, size_t size) { before_.push_back({begin, {begin, begin + size}}); });
    if (early) {
      for (Write& w : writes_) memcpy(w.at, w.was.data(), w.was.size());
    }
  }
  // Something else has come since: the launch ahead has ended.
  void forget() { before_.clear(); }

  // The launch ahead ends. False: it has already.
  bool end() {
    if (!pending_) return false;
    for (const Write& w : writes_) memcpy(w.at, w.is.data(), w.is.size());
    pending_ = false;
    return true;
  }
  bool pending() const { return pending_; }

 private:
  struct Buffer {
    unsigned char* begin;
    std::vector<unsigned char> bytes;
  };
  struct Write {
    unsigned char* at;
    std::vector<unsigned char> was, is;
  };
  // Finds what has changed since the launch ahead began.
  void compare() {
    for (const Buffer& b : before_) {
      unsigned char* const at = b.begin;
      const size_t size = b.bytes.size();
      if (size == 0 || memcmp(at, b.bytes.data(), size) == 0) continue;
      for (size_t i = 0, end; i < size; i = end + 1) {
        for (end = i; end < size && at[end] != b.bytes[end]; end++) {}
        if (end > i) writes_.push_back({at + i, {&b.bytes[i], &b.bytes[i] + (end - i)}, {at + i, at + end}});
      }
    }
  }

  std::vector<Buffer> before_;  // the launch ahead
  std::vector<Write> writes_;   // its
  bool pending_ = false;        // they are taken back
};

}  // namespace kgen_emulator
