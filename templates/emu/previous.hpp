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
    forget();
    global.for_each([&](unsigned char* begin, size_t size) {
      before_.push_back({begin, bytes_.size(), size});
      bytes_.insert(bytes_.end(), begin, begin + size);
    });
    if (early) {
      for (Write& w : writes_) memcpy(w.at, w.was.data(), w.was.size());
    }
  }
  // Something else has come since: the launch ahead has ended.
  void forget() { before_.clear(), bytes_.clear(); }

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
    size_t kept, size;  // its bytes are at `kept` in bytes_
  };
  struct Write {
    unsigned char* at;
    std::vector<unsigned char> was, is;
  };
  // Finds what has changed since the launch ahead began.
  void compare() {
    for (const Buffer& b : before_) {
      const unsigned char* const was = bytes_.data() + b.kept;
      unsigned char* const is = b.begin;
      if (b.size == 0 || memcmp(is, was, b.size) == 0) continue;
      for (size_t i = 0, end; i < b.size; i = end + 1) {
        for (end = i; end < b.size && is[end] != was[end]; end++) {}
        if (end > i) writes_.push_back({is + i, {was + i, was + end}, {is + i, is + end}});
      }
    }
  }

  std::vector<Buffer> before_;        // the launch ahead
  std::vector<unsigned char> bytes_;  // of all of these, in memory that stays
  std::vector<Write> writes_;         // its
  bool pending_ = false;              // they are taken back
};

}  // namespace kgen_emulator
