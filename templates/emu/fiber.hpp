// Fibers: stacks that one processor thread switches between.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

namespace kgen_emulator {

inline size_t page_size() {
  static const size_t size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}
inline size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

// switch_context(from, to) saves the registers that a callee must keep and the
// stack pointer in from, and goes on where `to` was saved.
#if defined(__x86_64__) && !defined(KGEN_UCONTEXT)

struct Context { void* stack_pointer; };
extern "C" void kgen_switch(void** from, void* to);
asm(R"(
.text
.p2align 4
.globl kgen_switch
.type kgen_switch, @function
kgen_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size kgen_switch, .-kgen_switch
)");
inline void switch_context(Context& from, Context& to) { kgen_switch(&from.stack_pointer, to.stack_pointer); }
// Makes c start at entry, which never returns, on the stack that ends at top (a multiple of 16).
inline void prepare(Context& c, unsigned char* top, size_t, void (*entry)()) {
  void** sp = reinterpret_cast<void**>(top);
  *--sp = nullptr;  // entry's return address
  *--sp = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; i++) *--sp = nullptr;
  c.stack_pointer = sp;
}

#elif defined(__aarch64__) && !defined(KGEN_UCONTEXT)

struct Context { void* stack_pointer; };
extern "C" void kgen_switch(void** from, void* to);
asm(R"(
.text
.p2align 4
.globl kgen_switch
.type kgen_switch, %function
kgen_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size kgen_switch, .-kgen_switch
)");
inline void switch_context(Context& from, Context& to) { kgen_switch(&from.stack_pointer, to.stack_pointer); }
inline void prepare(Context& c, unsigned char* top, size_t, void (*entry)()) {
  void** sp = reinterpret_cast<void**>(top) - 20;
  for (int i = 0; i < 20; i++) sp[i] = nullptr;
  sp[11] = reinterpret_cast<void*>(entry);  // x30
  c.stack_pointer = sp;
}

#else

}  // namespace kgen_emulator
#include <ucontext.h>
namespace kgen_emulator {
struct Context { ucontext_t ucontext; };
inline void switch_context(Context& from, Context& to) { swapcontext(&from.ucontext, &to.ucontext); }
inline void prepare(Context& c, unsigned char* top, size_t size, void (*entry)()) {
  getcontext(&c.ucontext);
  c.ucontext.uc_stack.ss_sp = top - size;
  c.ucontext.uc_stack.ss_size = size;
  c.ucontext.uc_link = nullptr;
  makecontext(&c.ucontext, entry, 0);
}

#endif

// Stacks for up to a block's threads, each above a page that no one may touch.
// Memory is taken by the system when a stack is first used.
class Stacks {
 public:
  static constexpr size_t size = 256 << 10;
  static constexpr int count = 1024;

  bool reserve() {
    stride_ = size + page_size();
    void* p = mmap(nullptr, stride_ * count, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return false;
    base_ = static_cast<unsigned char*>(p);
    for (int i = 0; i < count; i++) {
      if (mprotect(base_ + i * stride_ + page_size(), size, PROT_READ | PROT_WRITE) != 0) return false;
    }
    return true;
  }
  // Tops are staggered, so that the threads' frames do not share cache sets.
  unsigned char* top(int i) const { return base_ + (i + 1) * stride_ - i % 32 * 320; }
  size_t usable(int i) const { return size - i % 32 * 320; }
  // Is the address in a page that guards a stack?
  bool guards(uintptr_t address) const {
    uintptr_t offset = address - reinterpret_cast<uintptr_t>(base_);
    return offset < stride_ * count && offset % stride_ < page_size();
  }

 private:
  unsigned char* base_ = nullptr;
  size_t stride_ = 0;
};

}  // namespace kgen_emulator
