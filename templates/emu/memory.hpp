// Guarded memory: global buffers and the block's shared memory.
#pragma once
#include <stdio.h>
#include <string.h>

#include <deque>
#include <map>

#include "fiber.hpp"

namespace kgen_emulator {

constexpr int poison = 0xFF;  // NaN in bf16, fp16 and fp32, -1 in integers

// Some bytes whose end is at a page that no one may touch, as far as the
// alignment of their start allows; what is left over is filled with poison and
// looked at by damage().
class Guarded {
 public:
  static constexpr size_t guard = 64 << 20;  // address space only

  bool allocate(size_t bytes, size_t alignment) {
    size_ = bytes;
    pages_size_ = round_up(round_up(bytes, alignment), page_size());
    void* p = mmap(nullptr, pages_size_ + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return false;
    reserved_ = static_cast<unsigned char*>(p);
    if (pages_size_ && mprotect(pages(), pages_size_, PROT_READ | PROT_WRITE) != 0) {
      release();
      return false;
    }
    begin_ = pages() + pages_size_ - round_up(bytes, alignment);
    if (pages_size_) memset(pages(), poison, pages_size_);
    return true;
  }
  // Keeps the addresses, so that a later access is found.
  void close() {
    if (pages_size_) {
      mmap(pages(), pages_size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    }
  }
  void release() {
    if (reserved_) munmap(reserved_, pages_size_ + 2 * guard);
    reserved_ = nullptr;
  }
  unsigned char* begin() const { return begin_; }
  size_t size() const { return size_; }
  uintptr_t address() const { return reinterpret_cast<uintptr_t>(begin_); }
  bool holds(uintptr_t a, size_t n) const { return a >= address() && n <= size_ && a - address() <= size_ - n; }
  bool reserves(uintptr_t a) const { return a - reinterpret_cast<uintptr_t>(reserved_) < pages_size_ + 2 * guard; }

  // Looks for writes just outside: bytes before the start (negative) or past
  // the end of the first one, 0 for none. Repairs what it finds.
  long damage() {
    long found = 0;
    if (!pages_size_) return 0;
    for (unsigned char* p = pages(); p < begin_; p++) {
      if (*p != poison) found = p - begin_, *p = poison;
    }
    for (unsigned char* p = pages() + pages_size_ - 1; p >= begin_ + size_; p--) {
      if (*p != poison) found = p - (begin_ + size_) + 1, *p = poison;
    }
    return found;
  }
  // Writes where an address lies, such as "4 bytes past the end of WHAT (64 bytes)".
  void describe(uintptr_t a, const char* what, char* text, size_t room) const {
    if (a < address()) {
      snprintf(text, room, "%zu bytes before the start of %s (%zu bytes)", size_t(address() - a), what, size_);
    } else if (a >= address() + size_) {
      snprintf(text, room, "%zu bytes past the end of %s (%zu bytes)", size_t(a - address() - size_), what, size_);
    } else {
      snprintf(text, room, "%zu bytes into %s (%zu bytes)", size_t(a - address()), what, size_);
    }
  }

 private:
  unsigned char* pages() const { return reserved_ + guard; }

  unsigned char* reserved_ = nullptr;
  unsigned char* begin_ = nullptr;
  size_t size_ = 0, pages_size_ = 0;
};

// The device's global memory.
class Global {
 public:
  static constexpr size_t alignment = 16;
  static constexpr size_t freed_kept = 1024;  // freed buffers that an access is still told of

  uintptr_t allocate(size_t bytes) {
    Buffer b;
    if (!b.memory.allocate(bytes, alignment)) return 0;
    b.number = ++allocated_;
    uintptr_t address = b.memory.address();
    buffers_[address] = b;
    return address;
  }
  bool free(uintptr_t address) {
    auto it = buffers_.find(address);
    if (it == buffers_.end() || it->second.freed) return false;
    it->second.memory.close();
    it->second.freed = true;
    freed_.push_back(address);
    if (freed_.size() > freed_kept) {
      auto oldest = buffers_.find(freed_.front());
      oldest->second.memory.release();
      buffers_.erase(oldest);
      freed_.pop_front();
    }
    return true;
  }
  // Do n bytes from address lie in one buffer?
  bool holds(uintptr_t address, size_t n) const {
    auto it = buffers_.upper_bound(address);
    return it != buffers_.begin() && !(--it)->second.freed && it->second.memory.holds(address, n);
  }
  // Calls f with the start and the size of each buffer.
  template <class F>
  void for_each(F f) const {
    for (const auto& [address, b] : buffers_) {
      if (!b.freed) f(b.memory.begin(), b.memory.size());
    }
  }
  // Says in words where an address lies. Allocates nothing.
  void describe(uintptr_t address, char* text, size_t room) const {
    auto it = buffers_.upper_bound(address);
    if (it != buffers_.end() && it->second.memory.reserves(address)) return describe(it->second, address, text, room);
    if (it != buffers_.begin() && (--it)->second.memory.reserves(address)) {
      return describe(it->second, address, text, room);
    }
    snprintf(text, room, address < 65536 ? "a null pointer and an offset" : "far from every buffer");
  }
  // Looks for writes just outside of buffers; says where in words.
  bool damaged(char* text, size_t room) {
    bool found = false;
    for (auto& [address, b] : buffers_) {
      if (b.freed) continue;
      if (long at = b.memory.damage()) {
        found = true;
        describe(b, at < 0 ? address + at : address + b.memory.size() + at - 1, text, room);
      }
    }
    return found;
  }

 private:
  struct Buffer {
    Guarded memory;
    unsigned long number = 0;  // counted from 1 in the order of allocation
    bool freed = false;
  };
  static void describe(const Buffer& b, uintptr_t address, char* text, size_t room) {
    char what[64];
    snprintf(what, sizeof what, "%sbuffer #%lu", b.freed ? "freed " : "", b.number);
    b.memory.describe(address, what, text, room);
  }

  std::map<uintptr_t, Buffer> buffers_;  // by address
  std::deque<uintptr_t> freed_;
  unsigned long allocated_ = 0;
};

}  // namespace kgen_emulator
