// Blocks of a cluster that send each other values, many mistakes: `which` chooses, 0
// being none. In each round every thread sends one to the same thread of all blocks,
// its own among them, and adds up what it gets.
struct Params {
  unsigned* out;  // [blocks][threads]
  int which;
  int rounds;
};

constexpr int threads = 128, cluster = 4;

struct Shared {
  uint4 inbox[cluster][threads];
  uint4 note[2][cluster];  // of each rank: the round. One is read while the next is written
  unsigned long long room, full, spare;
};

extern "C" __global__ void __launch_bounds__(threads) __cluster_dims__(cluster, 1, 1) exchange(const __grid_constant__ Params p) {
  Shared& shared = *reinterpret_cast<Shared*>(ptx::dynamic_shared());
  const int which = p.which, thread = ptx::thread_index(), rank = ptx::cluster_rank();
  const uint32_t room = ptx::shared_address(&shared.room), full = ptx::shared_address(&shared.full);
  if (thread == 0) {
    ptx::barrier_init(room, cluster);
    ptx::barrier_init(full, 1);
    ptx::barrier_init(ptx::shared_address(&shared.spare), 1);
    ptx::barrier_init_fence();
  }
  if (which == 1) ptx::sync_threads();
  else ptx::cluster_sync();

  unsigned sum = 0;
  auto give_room = [&](int round) {
    if (which != 2) ptx::sync_threads();
    if (thread == 0) ptx::barrier_arrive_expecting(full, sizeof(shared.inbox) - (which == 6 ? 16 : 0));
    if (thread < cluster) {
      const int at = which == 14 ? 0 : rank;
      ptx::peer_store_16(ptx::peer_address(ptx::shared_address(&shared.note[round % 2][at]), thread), make_uint4(round, 0, 0, 0));
      const int peer = which == 12 && round == 1 && thread == 3 ? 0 : thread;
      ptx::peer_barrier_arrive(which == 10 ? room : ptx::peer_address(room, which == 9 ? peer + 1 : peer));
    }
  };
  give_room(0);
  for (int round = 0; round < p.rounds; ++round) {
    if (which == 4) ptx::barrier_wait(room, round % 2);
    else if (which != 3) ptx::barrier_wait_cluster(room, round % 2);
    sum += ptx::load_16(&shared.note[round % 2][(rank + 1) % cluster]).x;
    for (int peer = 0; peer < cluster; ++peer) {
      const uint32_t to = ptx::shared_address(&shared.inbox[which == 13 ? 0 : rank][thread]);
      ptx::peer_store_async_16(ptx::peer_address(to, peer), make_uint4(round + rank, 0, 0, 0), ptx::peer_address(full, which == 5 ? 0 : peer));
    }
    if (which == 8 && round == p.rounds - 1) break;
    if (which == 7 && round + 1 < p.rounds) give_room(round + 1);
    if (which != 15) ptx::barrier_wait_cluster(full, round % 2);
    for (int peer = 0; peer < cluster; ++peer) sum += ptx::load_16(&shared.inbox[peer][thread]).x;
    if (which != 7 && round + 1 < p.rounds) give_room(round + 1);
  }
  ptx::sync_warp();
  if (which == 11 && rank == 1 && thread == 0) ptx::peer_barrier_arrive(ptx::peer_address(ptx::shared_address(&shared.spare), 0));
  p.out[(ptx::cluster_x() * cluster + rank) * threads + thread] = sum;
}
