// Matrix products of a warpgroup. Each warp issues a product of its own 16 rows;
// the four together are performed once all have issued them and one waits.
#pragma once
#include "sync.hpp"
#include "warp.hpp"

namespace kgen_emulator {

// A matrix descriptor taken apart.
struct Matrix {
  uint32_t start, leading, stride;
  bool swizzled;

  // Address of the 16 bytes with the first element of 8 at column c (a multiple
  // of 8) of row r; rows are 128 bytes and permuted by their address, or blocks of
  // eight rows of 16 bytes.
  uint32_t chunk(uint32_t r, uint32_t c) const {
    if (!swizzled) return start + c / 8 * leading + r / 8 * stride + r % 8 * 16;
    const uint32_t at = start + c / 64 * leading + r / 8 * stride + r % 8 * 128 + c % 64 * 2;
    return at ^ (at >> 7 & 7) << 4;
  }
};

inline Matrix decode(uint64_t d, const char* operand, int line) {
  if (d >> 62 > 1) machine.fail("Wgmma (line %d): the descriptor of %s has swizzle %d, not that of 128 bytes or none", line, operand, static_cast<int>(d >> 62));
  if (d >> 46 & 0xffff || d >> 30 & 3 || d >> 14 & 3) machine.fail("Wgmma (line %d): the descriptor of %s has bits that must be zero", line, operand);
  const auto field = [d](int at) { return static_cast<uint32_t>(d >> at & 0x3fff) << 4; };
  const Matrix m = {field(0), field(16), field(32), d >> 62 == 1};
  // The base offset, whose bits are zero, says that the permuted eight rows of 128 bytes begin here.
  constexpr uint32_t eight_rows = 1024;
  if (m.swizzled && (m.start % eight_rows >= 128 || m.stride % eight_rows)) {
    machine.fail("Wgmma (line %d): the descriptor of %s begins %u bytes behind a multiple of %u, with a stride of %u: eight rows must begin at a multiple", line, operand,
                 m.start % eight_rows, eight_rows, m.stride);
  }
  return m;
}

template <class F>
inline void each_chunk(const Matrix& m, uint32_t rows, uint32_t first_row, uint32_t columns, F f) {
  for (uint32_t r = first_row; r < first_row + rows; r++) {
    for (uint32_t c = 0; c < columns; c += 8) f(m.chunk(r, c), r, c);
  }
}

// The parts of shared memory that a product's operands are.
inline bool a_is_shared(const KgenWgmma& p) { return p.a == nullptr; }

// Checks that this warp may read a product's operands now.
inline void check_operands(const KgenWgmma& p, uint32_t group, int line) {
  const auto check = [&](uint32_t address, uint32_t, uint32_t) {
    const unsigned char* at = machine.shared_at(address, "Wgmma", line);
    machine.check(machine.shadow.product_read(machine.cell(address), machine.now(), group), "Wgmma", line, "reads", at);
  };
  if (a_is_shared(p)) {
    const uint32_t first = static_cast<uint32_t>(machine.warp_index() % 4 * product_rows);
    each_chunk(decode(p.a_descriptor, "a", line), product_rows, first, product_depth, check);
  }
  const Matrix b = decode(p.b_descriptor, "b", line);
  if (p.b_rows) {
    each_chunk(b, static_cast<uint32_t>(p.columns), 0, product_depth, check);
  } else {
    each_chunk(b, product_depth, 0, static_cast<uint32_t>(p.columns), check);
  }
}

inline float element(bool bf16, uint16_t bits) { return bf16 ? bf16_value(bits) : fp16_value(bits); }

// Reads the operands and adds up, for all four warps.
inline void perform(const Product& p) {
  alignas(64) float a[4 * product_rows * product_depth], b[product_depth * most_columns];
  const KgenWgmma& q = p.as_issued;
  const int n = q.columns;
  const unsigned char* shared = machine.own().begin();
  uint16_t bits[8];
  const Matrix mb = decode(q.b_descriptor, "b", p.line);
  if (a_is_shared(q)) {
    each_chunk(decode(q.a_descriptor, "a", p.line), 4 * product_rows, 0, product_depth, [&](uint32_t address, uint32_t r, uint32_t c) {
      memcpy(bits, shared + (address - shared_base), 16);
      for (uint32_t i = 0; i < 8; i++) a[r * product_depth + c + i] = element(q.bf16, bits[i]);
    });
  } else {
    const uint16_t* all = &p.a[0][0];
    for (int i = 0; i < 4 * product_rows * product_depth; i++) a[i] = element(q.bf16, all[i]);
  }
  if (q.b_rows) {
    each_chunk(mb, static_cast<uint32_t>(n), 0, product_depth, [&](uint32_t address, uint32_t r, uint32_t c) {
      memcpy(bits, shared + (address - shared_base), 16);
      for (uint32_t i = 0; i < 8; i++) b[(c + i) * static_cast<uint32_t>(n) + r] = element(q.bf16, bits[i]);
    });
  } else {
    each_chunk(mb, product_depth, 0, static_cast<uint32_t>(n), [&](uint32_t address, uint32_t r, uint32_t c) {
      memcpy(bits, shared + (address - shared_base), 16);
      for (uint32_t i = 0; i < 8; i++) b[r * static_cast<uint32_t>(n) + c + i] = element(q.bf16, bits[i]);
    });
  }
  for (int m = 0; m < 4; m++) multiply(p.accumulator[m]->value, a + m * product_rows * product_depth, b, n, q.accumulate);
  machine.counters.wgmmas++;
}

// Performs products in their order, as long as every warp has issued them and
// they are of groups before `group`.
inline void perform_before(Warpgroup& g, uint32_t group) {
  while (!g.products.empty() && g.products.front().issued == 15 && g.products.front().group < group) {
    perform(g.products.front());
    g.products.pop_front();
    g.performed++;
  }
}

// Moves an accumulator between its lanes' registers and its matrix: lane 4g+t
// has columns 8j+2t, 8j+2t+1 of rows g and g+8.
template <class F>
inline void each_pair(Accumulator& x, F f) {
  for (int lane = 0; lane < warp_size; lane++) {
    const int g = lane / 4, t = lane % 4 * 2;
    for (int j = 0; j < x.columns / 8; j++) {
      for (int half = 0; half < 2; half++) {
        f(x.registers[lane] + j * 4 + half * 2, x.value + (g + half * 8) * x.columns + j * 8 + t);
      }
    }
  }
}

// The warp's accumulator in the lanes' registers d, whose values are taken out
// of them unless a product is under way for it already.
inline Accumulator* accumulator(Warpgroup::Member& member, const Lane* lanes, const KgenWgmma& p, int line) {
  for (auto& x : member.accumulators) {
    if (x.registers[0] != lanes[0].operands.product->d) continue;
    if (x.columns != p.columns) machine.fail("Wgmma (line %d): an accumulator of %d columns is under way with %d columns", line, p.columns, x.columns);
    return &x;
  }
  machine.busy = 1;
  member.accumulators.emplace_back();
  machine.busy = 0;
  Accumulator& x = member.accumulators.back();
  x.columns = p.columns;
  for (int i = 0; i < warp_size; i++) x.registers[i] = lanes[i].operands.product->d;
  if (p.accumulate) each_pair(x, [](float* d, float* value) { memcpy(value, d, 8); });
  for (int i = 0; i < warp_size; i++) {
    for (int j = 0; j < p.columns / 2; j++) memcpy(x.registers[i] + j, &unknown_register, 4);
  }
  return &x;
}

// Gives accumulators whose products have all ended back to the registers.
inline void give_back(Warpgroup& g, Warpgroup::Member& member, int line) {
  for (auto i = member.accumulators.begin(); i != member.accumulators.end();) {
    Accumulator& x = *i;
    if (x.last >= g.performed) {
      ++i;
      continue;
    }
    bool written = false;
    each_pair(x, [&written](float* d, float* value) {
      uint32_t held[2];
      memcpy(held, d, 8);
      written |= held[0] != unknown_register || held[1] != unknown_register;
      memcpy(d, value, 8);
    });
    if (written) {
      machine.fail("wgmma_wait (line %d): an accumulator of Wgmma (line %d) was written to before the wait", line, x.line);
    }
    machine.busy = 1;
    i = member.accumulators.erase(i);
    machine.busy = 0;
  }
}

// What a function with a frame pointer leaves on its stack, on amd64 and arm64.
struct Frame {
  const Frame* caller;
  const void* return_address;
};

// The calls that lead from the kernel's start to a frame, as a number: the same for all where frames cannot be followed.
inline uint32_t path_to(const void* frame) {
  if (machine.optimized()) return 0;
  uint32_t hash = 0;
  const Frame* base = static_cast<const Frame*>(machine.lane().base);
  for (const Frame *f = static_cast<const Frame*>(frame), *last = nullptr; f > last && f < base; last = f, f = f->caller) {
    // Of an address the lower half: the upper bits of arm64's may be a signature.
    hash = (hash ^ static_cast<uint32_t>(reinterpret_cast<uintptr_t>(f->return_address))) * 0x9e3779b1u;
    hash ^= hash >> 15;
  }
  return hash;
}

// The running warp executes an instruction: the one that the others of its warpgroup execute here.
inline void step(Warpgroup& g, Op op, int line, uint32_t path) {
  const int warp = machine.warp_in_block(machine.warp_index());
  const size_t at = static_cast<size_t>(g.member[warp % 4].steps++ - g.together);
  if (at == most_steps) machine.fail("%s (line %d): warp %d is %zu instructions ahead of another warp of its warpgroup", name(op), line, warp, at);
  if (at == g.steps.size()) {
    machine.busy = 1;
    g.steps.push_back({op, line, path, warp});
    machine.busy = 0;
  }
  Step& s = g.steps[at];
  if (s.op != op || s.line != line) {
    machine.fail("%s (line %d): warp %d comes to it where warp %d of its warpgroup has come to %s (line %d): all warps of a warpgroup must execute the same", name(op), line,
                 warp, s.warp, name(s.op), s.line);
  }
  if (s.path != path) {
    machine.fail("%s (line %d): warp %d comes to it from another call than warp %d of its warpgroup, to another copy of it: all warps of a warpgroup must execute the same",
                 name(op), line, warp, s.warp);
  }
  if (++s.executed < 4) return;
  machine.busy = 1;
  g.steps.pop_front();
  machine.busy = 0;
  g.together++;
}

// Arrives at an instruction of the warpgroup, which is returned, as Machine::arrive does; null: it has been performed. The
// frame is that of the function which the kernel has called.
inline Warpgroup* arrive_together(Op op, int line, const void* frame) {
  const uint32_t path = path_to(frame);
  machine.lane().operands.path = path;
  if (!machine.arrive(op, line)) return nullptr;
  const Lane* lanes = machine.lanes_of_warp();
  for (int i = 0; i < warp_size; i++) {
    if (lanes[i].operands.path != path) machine.fail("diverged warp: this lane arrives at %s (line %d) from another call than lane %d of its warp", name(op), line, i);
  }
  const int i = machine.warpgroup_of(machine.warp_index());
  if (i < 0) machine.fail("%s (line %d): warp %d is in no warpgroup of four whole warps", name(op), line, machine.warp_in_block(machine.warp_index()));
  Warpgroup& g = machine.warpgroups[static_cast<size_t>(i)];
  step(g, op, line, path);
  return &g;
}

}  // namespace kgen_emulator

extern "C" {

void kgen_wgmma(const KgenWgmma* operands, int line) {
  using namespace kgen_emulator;
  machine.lane().operands.product = operands;
  Warpgroup* const of = arrive_together(Op::wgmma, line, __builtin_frame_address(0));
  if (!of) return;
  Warpgroup& g = *of;
  const int m = machine.warp_index() % 4;
  Warpgroup::Member& member = g.member[m];
  const Lane* lanes = machine.lanes_of_warp();
  KgenWgmma p = *lanes[0].operands.product;
  const auto same = [](const KgenWgmma& x, const KgenWgmma& y) {
    return x.a_descriptor == y.a_descriptor && x.b_descriptor == y.b_descriptor && x.columns == y.columns && x.bf16 == y.bf16 &&
           x.accumulate == y.accumulate && x.b_rows == y.b_rows && a_is_shared(x) == a_is_shared(y);
  };
  for (int i = 1; i < warp_size; i++) {
    if (!same(p, *lanes[i].operands.product)) machine.fail("Wgmma (line %d): the lanes of a warp do not give the same operands", line);
  }
  if (!member.fenced) machine.fail("Wgmma (line %d): no wgmma_fence since the last wgmma_wait", line);
  check_operands(p, member.committed, line);
  const uint64_t number = member.issued++;
  member.line = line;
  if (number < g.performed) machine.fail("Wgmma (line %d): a product that the emulator lost count of", line);
  const size_t at = static_cast<size_t>(number - g.performed);
  machine.busy = 1;
  if (at == g.products.size()) {
    g.products.emplace_back();
    g.products.back().as_issued = p;
    g.products.back().line = line;
    g.products.back().group = member.committed;
  }
  machine.busy = 0;
  Product& product = g.products[at];
  if (!same(product.as_issued, p)) machine.fail("Wgmma (line %d): another warp of the warpgroup issued this product with other operands", line);
  Accumulator* x = accumulator(member, lanes, p, line);
  x->last = number;
  x->line = line;
  product.accumulator[m] = x;
  product.issued |= 1 << m;
  if (!a_is_shared(p)) {
    for (int lane = 0; lane < warp_size; lane++) {
      const int row = lane / 4, t = lane % 4 * 2;
      for (int i = 0; i < 4; i++) {
        memcpy(&product.a[m][(row + i % 2 * 8) * product_depth + t + i / 2 * 8], &lanes[lane].operands.product->a[i], 4);
      }
    }
  }
  machine.performed();
}

void kgen_wgmma_fence(int line) {
  using namespace kgen_emulator;
  Warpgroup* const g = arrive_together(Op::wgmma_fence, line, __builtin_frame_address(0));
  if (!g) return;
  g->member[machine.warp_index() % 4].fenced = true;
  machine.performed();
}

void kgen_wgmma_commit(int line) {
  using namespace kgen_emulator;
  Warpgroup* const g = arrive_together(Op::wgmma_commit, line, __builtin_frame_address(0));
  if (!g) return;
  const uint32_t committed = ++g->member[machine.warp_index() % 4].committed;
  if (machine.early && machine.random().below(2)) perform_before(*g, committed);
  machine.performed();
}

void kgen_wgmma_wait(int pending, int line) {
  using namespace kgen_emulator;
  Warpgroup* const of = arrive_together(Op::wgmma_wait, line, __builtin_frame_address(0));
  if (!of) return;
  Warpgroup& g = *of;
  const int warp = machine.warp_index();
  Warpgroup::Member& member = g.member[warp % 4];
  member.pending = pending;
  if (member.committed > static_cast<uint32_t>(pending)) {
    if (!g.ready(warp % 4)) machine.stop_warp(Pause::wgmma, line);
    const uint32_t retired = member.committed - static_cast<uint32_t>(pending);
    perform_before(g, retired);
    give_back(g, member, line);
    Stamp& known = machine.warp().clock.of[product_clock + warp];
    if (known.time < retired) known.time = retired;
  }
  member.fenced = false;
  machine.performed();
}

}  // extern "C"
