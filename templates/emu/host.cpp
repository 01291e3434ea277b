// The emulator's process: holds the memory, loads kernels and runs launches,
// one request after another from standard input. gen/emulate is the other end.
//
// A request is a Request and then `bytes` of payload; the answer is an Answer
// and then `bytes` of payload: data, or the error's text. Both ends are on one
// machine, so integers lie as they do in memory.
#include <dlfcn.h>
#include <errno.h>

#include <string>

#include "clusters.hpp"
#include "copies.hpp"
#include "faults.hpp"
#include "machine.hpp"
#include "sync.hpp"
#include "transfer.hpp"
#include "warp.hpp"
#include "wgmma.hpp"

namespace kgen_emulator {

enum class Call : uint64_t { allocate = 1, free, upload, download, fill, load, unload, kernel, launch };
struct Request {
  Call call;
  uint64_t argument[9];
  uint64_t bytes;
};
struct Answer {
  uint64_t failed, value, bytes;
};

struct Kernel {
  Machine::Entry entry;
  unsigned long params;
  int min_blocks, cluster;
  bool optimized;
};

class Host {
 public:
  // Answers one request: its value, with data in out, or an error's text in out.
  bool answer(const Request& q, const std::string& in, uint64_t& value, std::string& out) {
    const uint64_t* a = q.argument;
    if (q.call == Call::free || q.call == Call::upload || q.call == Call::download || q.call == Call::fill) machine.previous.forget();
    switch (q.call) {
      case Call::allocate:
        value = machine.global.allocate(a[0]);
        return value || error(out, "no memory for %llu bytes", ull(a[0]));
      case Call::free:
        return machine.global.free(a[0]) || error(out, "0x%llx is not the start of a buffer", ull(a[0]));
      case Call::upload:
        if (!machine.global.holds(a[0], in.size())) return outside(a[0], in.size(), out);
        memcpy(reinterpret_cast<void*>(a[0]), in.data(), in.size());
        return true;
      case Call::download:
        if (!machine.global.holds(a[0], a[1])) return outside(a[0], a[1], out);
        out.assign(reinterpret_cast<const char*>(a[0]), a[1]);
        return true;
      case Call::fill:
        if (!machine.global.holds(a[0], a[1])) return outside(a[0], a[1], out);
        memset(reinterpret_cast<void*>(a[0]), static_cast<int>(a[2]), a[1]);
        return true;
      case Call::load: {
        void* library = dlopen(in.c_str(), RTLD_NOW | RTLD_LOCAL);
        value = reinterpret_cast<uint64_t>(library);
        return library || error(out, "%s", dlerror());
      }
      case Call::unload:
        return dlclose(reinterpret_cast<void*>(a[0])) == 0 || error(out, "%s", dlerror());
      case Call::kernel: {
        void* library = reinterpret_cast<void*>(a[0]);
        void* entry = dlsym(library, ("kgen_call_" + in).c_str());
        void* size = dlsym(library, ("kgen_size_" + in).c_str());
        void* min_blocks = dlsym(library, ("kgen_min_blocks_" + in).c_str());
        void* cluster = dlsym(library, ("kgen_cluster_" + in).c_str());
        void* optimized = dlsym(library, ("kgen_optimized_" + in).c_str());
        if (!entry || !size || !min_blocks || !cluster || !optimized) return error(out, "no entry point of this name");
        kernels_.push_back({reinterpret_cast<Machine::Entry>(entry), reinterpret_cast<unsigned long (*)()>(size)(),
                            reinterpret_cast<int (*)()>(min_blocks)(), reinterpret_cast<int (*)()>(cluster)(),
                            reinterpret_cast<bool (*)()>(optimized)()});
        value = kernels_.size() - 1;
        return true;
      }
      case Call::launch:
        return launch(a, in, out);
    }
    return error(out, "unknown request %llu", ull(static_cast<uint64_t>(q.call)));
  }

 private:
  using ull = unsigned long long;

  bool launch(const uint64_t* a, const std::string& in, std::string& out) {
    if (a[0] >= kernels_.size()) return error(out, "unknown kernel %llu", ull(a[0]));
    const Kernel& kernel = kernels_[a[0]];
    if (kernel.params != in.size()) {
      return error(out, "the entry point takes %lu bytes of parameters, not %zu", kernel.params, in.size());
    }
    alignas(16) unsigned char params[4096];
    if (in.size() > sizeof params) return error(out, "%zu bytes of parameters are more than %zu", in.size(), sizeof params);
    memcpy(params, in.data(), in.size());
    Machine::Launch launch{kernel.entry, params, {int(a[1]), int(a[2]), int(a[3])}, int(a[4]), uint32_t(a[5]), a[6], kernel.min_blocks, kernel.cluster, a[8] != 0, kernel.optimized};
    limit_time(a[7]);
    bool good = machine.run(launch);
    limit_time(0);
    if (!good) return error(out, "%s\n%s", machine.error, machine.faulted_at);  // gen/emulate takes the lines apart
    out.assign(reinterpret_cast<const char*>(&machine.counters), sizeof machine.counters);
    return true;
  }
  bool outside(uint64_t address, uint64_t bytes, std::string& out) {
    char where[256];
    machine.global.describe(address, where, sizeof where);
    return error(out, "%llu bytes at 0x%llx are not inside one buffer: they start %s", ull(bytes), ull(address), where);
  }
  __attribute__((format(printf, 3, 4))) bool error(std::string& out, const char* format, ...) {
    char text[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    out = text;
    return false;
  }

  std::vector<Kernel> kernels_;
};

bool read_all(int file, void* p, size_t n) {
  for (size_t done = 0; done < n;) {
    ssize_t k = read(file, static_cast<char*>(p) + done, n - done);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) return false;
    done += static_cast<size_t>(k);
  }
  return true;
}
bool write_all(int file, const void* p, size_t n) {
  for (size_t done = 0; done < n;) {
    ssize_t k = write(file, static_cast<const char*>(p) + done, n - done);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) return false;
    done += static_cast<size_t>(k);
  }
  return true;
}

}  // namespace kgen_emulator

int main() {
  using namespace kgen_emulator;
  const int answers = dup(1);
  dup2(2, 1);  // what a kernel prints does not mix with the answers
  if (!machine.start() || !catch_faults()) {
    fprintf(stderr, "cannot reserve the threads' stacks: %s\n", strerror(errno));
    return 1;
  }
  Host host;
  Request q;
  while (read_all(0, &q, sizeof q)) {
    std::string in(q.bytes, 0), out;
    if (!read_all(0, in.data(), in.size())) return 1;
    Answer answer{};
    answer.failed = !host.answer(q, in, answer.value, out);
    answer.bytes = out.size();
    if (!write_all(answers, &answer, sizeof answer) || !write_all(answers, out.data(), out.size())) return 1;
  }
  return 0;
}
