// Signals that a kernel's mistakes raise, turned into failed launches.
#pragma once
#include <dlfcn.h>
#include <signal.h>
#include <sys/time.h>
#include <ucontext.h>

#include "machine.hpp"

namespace kgen_emulator {

inline const char* access_kind([[maybe_unused]] void* context) {
#if defined(__x86_64__) && defined(__linux__)
  return static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2 ? "write" : "read";
#else
  return "access";
#endif
}

// Writes which instruction raised a signal: its library and its place there, for
// gen/emulate to find the line of the source. Nothing where that is not known.
inline void program_counter([[maybe_unused]] void* context, char* text, [[maybe_unused]] size_t room) {
  text[0] = 0;
  uintptr_t pc = 0;
#if defined(__linux__) && defined(__x86_64__)
  pc = static_cast<uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__linux__) && defined(__aarch64__)
  pc = static_cast<uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.pc);
#endif
  Dl_info info;
  if (pc && dladdr(reinterpret_cast<void*>(pc), &info) && info.dli_fname) {
    snprintf(text, room, "%s+0x%zx", info.dli_fname, static_cast<size_t>(pc - reinterpret_cast<uintptr_t>(info.dli_fbase)));
  }
}

// Ends the launch from a signal handler: the handler is left as any fiber is,
// and its stack is free again for the next signal.
inline void on_fault(int signal, siginfo_t* info, void* context) {
  if (!machine.running || machine.busy) {  // a mistake of the host itself
    ::signal(signal, SIG_DFL);
    return;
  }
  char during[64] = "";
  if (machine.doing) {
    snprintf(during, sizeof during, " by %s (line %d)", machine.doing, machine.doing_line);
  } else {
    program_counter(context, machine.faulted_at, sizeof machine.faulted_at);
  }
  if (signal == SIGFPE) machine.fail("integer division by zero");
  if (signal == SIGILL || signal == SIGTRAP) machine.fail("an address that is not aligned, an index outside of an array, or a trap");
#if defined(__linux__)
  if (info->si_code == SI_KERNEL) machine.fail("an access that is not aligned, or far outside of memory%s", during);
#endif
  const uintptr_t address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (machine.stack_guard(address)) machine.fail("a thread's stack is full (%zu bytes): local variables are too large", Stacks::size);
  char where[256] = "";
  for (const Guarded& shared : machine.shared) {
    if (shared.begin() && shared.reserves(address)) shared.describe(address, "shared memory", where, sizeof where);
  }
  if (!where[0]) machine.global.describe(address, where, sizeof where);
  machine.fail("out-of-bounds %s at 0x%zx%s, %s", access_kind(context), static_cast<size_t>(address), during, where);
}

inline void on_time(int, siginfo_t*, void* context) {
  if (!machine.running || machine.busy) return;
  program_counter(context, machine.faulted_at, sizeof machine.faulted_at);
  machine.fail("the launch used more than its limit of processor time");
}

inline bool catch_faults() {
  static unsigned char stack[64 << 10];
  stack_t alternate{};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  if (sigaltstack(&alternate, nullptr) != 0) return false;
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP}) {
    if (sigaction(s, &action, nullptr) != 0) return false;
  }
  struct sigaction timer{};
  timer.sa_sigaction = on_time;
  timer.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART;
  return sigaction(SIGVTALRM, &timer, nullptr) == 0;
}

// Limits the processor time from now on; 0 ends the limit. It strikes again
// every 10 ms, for when it came while the machine was busy.
inline void limit_time(uint64_t milliseconds) {
  itimerval t{};
  t.it_value.tv_sec = static_cast<time_t>(milliseconds / 1000);
  t.it_value.tv_usec = static_cast<suseconds_t>(milliseconds % 1000 * 1000);
  t.it_interval.tv_usec = milliseconds ? 10000 : 0;
  setitimer(ITIMER_VIRTUAL, &t, nullptr);
}

}  // namespace kgen_emulator
