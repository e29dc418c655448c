// Operations that go on while their thread does: products of tensor cores (wgmma, tcgen05), and what they are waited for
// with (groups, mbarriers).
//
// Operations of one kind by one warp or thread are a stream, and end in the order in which they began; `serial` counts
// them in a block. Who has waited knows a stream up to a serial. That knowledge is a row of its Clock, and spreads as all
// that a thread knows does: with barriers, mbarriers, release and acquire.
//
// They see shared memory through the async proxy: what a thread wrote, they may read once the write happens before a
// fence.proxy.async, and that before them.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "races.h"

constexpr int SHARED = -1, NO_ARGUMENT = -2, TENSOR = -3, REGISTER = -4, LOCAL = -5;  // instead of an argument, in findings

// Streams of a warp by kind, then those of its threads, then one for each mbarrier (copies that arrive there); the numbers
// stand beside those of warps in a Clock.
enum { WGMMA_STREAM = 64, LOAD_STREAM = 96, STORE_STREAM = 128, TENSOR_STREAM = 160, BULK_STREAM = 2048,
       BARRIER_STREAM = 4096 };

struct AsyncAccess {
  int32_t stream = 0;  // 0: none
  uint32_t serial = 0;
  int32_t at = -1;
};

// A register of a wgmma that was not waited for: the value that it will have. A register of the factor a has none; it may
// be read, not written.
struct Accumulator {
  int32_t place;
  uint32_t group, serial;
  int32_t at;
  bool factor;
  uint32_t value[32];
};

// Copies of a thread from shared to global memory, in groups.
struct Bulk {
  uint32_t last = 0, done = 0;
  int32_t at = -1;
  std::vector<uint32_t> groups;  // the last serial of each
};

struct Asynchronous {  // of a warp
  std::map<int, Bulk> bulk;       // by lane
  std::vector<Accumulator> accumulators;
  bool fence = false;             // there was a wgmma.fence
  std::vector<int32_t> unfenced;  // registers of wgmma written since the last one, but by a mov: compilers put those
                                  // between the fence and the wgmma, and ptxas takes them out
  std::vector<uint32_t> groups;   // of wgmma, committed so far: the last serial of each
  uint32_t done[3] = {}, last[3] = {};  // serials of wgmma, tcgen05.ld and tcgen05.st
  Clock fenced;  // what happens before a fence.proxy.async of these lanes
  uint32_t fenced_by = 0;
  bool yields = false;  // an mbarrier is not open yet: another warp goes on
};

struct MBarrier {
  uint32_t expected = 0, pending = 0, phase = 0;
  int64_t bytes = 0;
  Clock arriving, complete;  // of the running phase; of all before it
  Clock arriving_fenced, complete_fenced;
};

// A tcgen05.commit whose operations have not ended, or a copy of a box of a tensor.
struct Arrival {
  uint32_t address;
  int32_t stream, at;
  Clock clock, fenced;
  uint32_t to = 0, swizzle = 0;  // a copy to shared memory: where, and what changes addresses there
  std::vector<uint8_t> data;
};

struct TensorMemory {
  static constexpr int ROWS = 128, COLUMNS = 512, GROUP = 16;  // lanes of tensor memory; the detector sees 16 as one
  uint32_t value[ROWS][COLUMNS];
  int32_t owner[COLUMNS];  // the tcgen05.alloc; -1: none
  struct Cell {
    AsyncAccess write;
    std::vector<AsyncAccess> reads;
  } cell[ROWS / GROUP][COLUMNS];
  TensorMemory() {
    for (auto& row : value) std::fill(row, row + COLUMNS, ~0u);
    std::fill(owner, owner + COLUMNS, -1);
  }
};

struct BlockAsynchronous {
  uint32_t serial = 0;
  std::map<uint32_t, std::vector<AsyncAccess>> reads;  // by 16 bytes of shared memory, those that may go on
  Clock fenced;
  std::map<uint32_t, MBarrier> barriers;
  std::vector<Arrival> arrivals;
  int64_t spins = 0;  // how often a warp found its mbarrier closed since any arrival or barrier
  std::unique_ptr<TensorMemory> tensor;
  void clear() {
    reads.clear(), fenced.clear(), barriers.clear(), arrivals.clear();
    spins = 0;
    tensor.reset();
  }
};
