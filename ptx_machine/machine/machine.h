// The state of a launch: blocks of warps, their registers and shared memory, and the arguments' memory.
#pragma once
#include <cstdlib>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>

#include "asynchronous.h"
#include "program.h"
#include "races.h"

constexpr int LANES = 32;
// Sizes of accesses are powers of 2.
inline bool aligned(uint64_t address, int size) { return !(address & uint64_t(size - 1)); }
// Addresses: every argument has a window of its own, in the middle of 2^40, so that an access before or behind it is out of
// bounds, not in the next argument. Arrays among the parameters have short addresses too. Memory of a lane has a mark.
constexpr int WINDOW = 40, PARAMETER_BITS = 12, LOCAL_BITS = 48;
constexpr uint64_t MIDDLE = uint64_t(1) << (WINDOW - 1), LOCAL_SPACE = 0xffff;

struct Machine;
struct Block;
struct Warp;
using Handler = void (*)(Machine&, Warp&, const Instruction&, uint32_t mask);

// Lanes that wait at a different place of the program after a divergent branch.
struct Fragment {
  int32_t at;
  uint32_t lanes;
};

// A cp.async whose bytes have not arrived.
struct Copy {
  uint32_t to;
  int size;
  int lane;
  uint32_t group;
  int32_t at;
  uint8_t data[16];
};

struct Fence {
  Clock known;
  uint32_t phase = 0, base = 0, time = 0, lanes = 0;
  bool block_scope = false;
};

struct Warp {
  Block* block;
  int index;
  int32_t at = 0;        // next instruction
  uint32_t active = 0;   // lanes that execute it
  uint32_t alive = 0;    // lanes that have not exited
  bool waiting = false;  // at a barrier
  int barrier = 0, members = 0;  // which one, and how many warps meet there; 0: all
  std::vector<uint8_t> local;    // memory of the lanes, one after the other
  std::vector<Fragment> elsewhere;
  std::unique_ptr<uint8_t[], void (*)(void*)> memory{nullptr, std::free};
  uint8_t* registers = nullptr;
  std::vector<Copy> copies;
  std::vector<uint32_t> stored;  // by instruction: lanes that executed it, if it is a sink
  uint32_t groups[LANES] = {};  // cp.async groups committed so far
  // Race detector: the present time, the time of the last synchronisation of all lanes, what was acquired since the
  // last barrier and the lanes that know it; what relaxed loads have seen; the last fence.
  uint32_t time = 1, base = 1, informed = 0, heard_by = 0;
  Clock acquired, heard;
  Fence fence;
  Asynchronous async;

  template <class T> T* reg(int32_t place) { return reinterpret_cast<T*>(registers + place); }
  bool done() const { return alive == 0; }
};

// A race of a load whose value may only be stored: it is one if a reading lane does store it. Triton gives several
// threads the same element; all of them load it, and one of them stores.
struct Suspect {
  Found found;
  uint32_t warps, lanes;  // that may have read
  int writer_warp, writer_lane;
  uint32_t load;
};

struct Block {
  uint32_t id = NOBODY;  // its place in the grid, counted from 1
  uint32_t phase = 0;  // it goes on when the object serves the next block
  Clock clock;  // what all warps know since the last barrier
  std::vector<uint8_t> shared;
  Region region;
  std::vector<Warp> warps;
  std::vector<Suspect> suspects;
  BlockAsynchronous async;
  bool parts = false;  // some warps meet without the others: mbarriers, barriers of a part of the block
};

// Bytes of an access before and behind its argument, where that is allowed (see WORD).
struct Outside {
  int before = 0, after = 0;
  bool keeps(const uint8_t* bytes, int size) const {  // they were read as zeros
    for (int k = 0; k < size; k++)
      if ((k < before || k >= size - after) && bytes[k]) return false;
    return true;
  }
};

struct Machine {
  const Launch& launch;
  std::vector<Handler> handlers;
  std::vector<Count> counts;
  std::vector<uint8_t> is_sink;
  std::vector<Region> regions;
  std::vector<Found> found;
  std::map<std::tuple<int, int, int>, size_t> known;  // (kind, at, earlier) -> place in `found`
  std::mt19937_64 random;
  int64_t executed = 0;
  bool parts = false;

  explicit Machine(const Launch& launch);
  void run();

  // Memory (memory.cpp). They return where the bytes are, or null after a violation.
  uint8_t* global(Warp&, const Instruction&, int lane, uint64_t address, int size, bool write, const uint8_t* data);
  uint8_t* shared(Warp&, const Instruction&, int lane, uint32_t address, int size, bool write, const uint8_t* data);
  Outside outside(uint64_t address, int size) const;
  uint8_t* strong(Warp&, const Instruction&, int lane, uint64_t address, int size, bool reads, bool writes);
  uint8_t* shared_strong(Warp&, const Instruction&, int lane, uint32_t address, int size);
  uint8_t* local(Warp&, const Instruction&, int lane, uint64_t address, int size);
  void start_copy(Warp&, const Instruction&, int lane, uint32_t to, int size, const uint8_t* data);
  void land(Warp&, const Copy&);
  void fence(Warp&, const Instruction&, uint32_t lanes);
  void warp_sync(Warp&);
  void count_sectors(const Instruction&, const uint64_t* addresses, uint32_t mask, int size);
  void count_wavefronts(const Instruction&, const uint32_t* addresses, uint32_t mask, int size);

  // Asynchronous operations (asynchronous.cpp).
  uint8_t* proxy_read(Warp&, const Instruction&, int lane, uint32_t address, int size, AsyncAccess by);
  bool knows(const Warp& w, int lane, const AsyncAccess& a) const;
  void proxy_fence(Warp&, uint32_t lanes);
  void mbarrier_init(Warp&, const Instruction&, int lane, uint32_t address, uint32_t count);
  void mbarrier_inval(Warp&, const Instruction&, int lane, uint32_t address);
  void mbarrier_arrive(Warp&, const Instruction&, int lane, uint32_t address, uint32_t count, uint32_t bytes);
  bool mbarrier_wait(Warp&, const Instruction&, int lane, uint32_t address, uint32_t parity);
  void tensor_commit(Warp&, const Instruction&, int lane, uint32_t address, int32_t stream);
  void touch_registers(Warp&, const Instruction&);
  void tma_load(Warp&, const Instruction&, int lane, uint32_t address, Arrival arrival);

  int place(const Instruction& i) const { return int(&i - launch.code); }
  void report(Finding kind, Warp& w, const Instruction& i, int lane, int earlier, int buffer, int64_t offset);
  void report_read(Finding kind, Warp& w, const Instruction& i, int lane, const Access& other, int buffer, int64_t offset);
  void settle(Block& block);
  [[noreturn]] void fail(const Instruction& i, const std::string& why) const {
    throw std::runtime_error(std::to_string(place(i)) + ":" + why);
  }

 private:
  void add(const Found& one);
  void start(Block& block, uint32_t id);
  bool step(Warp& w);
  void converge(Warp& w);
  void branch(Warp& w, const Instruction& i, uint32_t taken);
  void branch_table(Warp& w, const Instruction& i, uint32_t mask);
  bool arrive(Warp& w, const Instruction& i, uint32_t mask);
  void open_barriers(Block& block);
  void open_all(Block& block);
  void same_time(Block& block);
  void open_some(Block& block, int barrier);
  void leave(Warp& w, uint32_t lanes);
  void happen(Block& block);
  void count_down(Block& block, uint32_t address, uint32_t count, int64_t bytes, const Clock& clock, const Clock& fenced);
  void overwrite(Warp& w, const Instruction& i, int lane, uint32_t address, int size);
  MBarrier& mbarrier(Warp& w, const Instruction& i, int lane, uint32_t address);
  void add_done(Clock& clock, const Warp& w) const;
  Clock fenced_by(const Warp& w, int lane) const;
  bool fenced(const Warp& w, int lane, const Access& a) const;

  const Buffer* find(Warp& w, const Instruction& i, int lane, uint64_t address, int size);
  bool ordered(const Warp& w, int lane, const Access& a) const;
  bool replica(const Warp& w, const Instruction& i, const Access& a) const;
  void note_read(Warp& w, const Instruction& i, int lane, Region& r, int64_t at, int size, int buffer, int64_t shown);
  void note_write(Warp& w, const Instruction& i, int lane, Region& r, int64_t at, int size, int buffer, int64_t shown,
                  const uint8_t* old, const uint8_t* data);
  void check_strong(Warp& w, const Instruction& i, int lane, Region& r, int64_t at, int size, bool write,
                    int buffer, int64_t shown);
  Access now(const Warp& w, const Instruction& i, int lane) const;
  Clock released_by(const Warp& w, int lane) const;
};

uint32_t swizzled(uint32_t address, uint32_t bytes);  // in shared memory: its bits 4, 5, 6 change with its bits 7, 8, 9

Handler handler_of(const Instruction& i);  // operations.cpp; null if there is none
Handler tensor_handler_of(const Instruction& i);  // tensor.cpp
Handler copy_handler_of(const Instruction& i);    // copies.cpp
