// The state of a launch: blocks of warps, their registers and shared memory, and the arguments' memory.
#pragma once
#include <cstdlib>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>

#include "program.h"
#include "races.h"

constexpr int LANES = 32;

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
  std::vector<Fragment> elsewhere;
  std::unique_ptr<uint8_t[], void (*)(void*)> memory{nullptr, std::free};
  uint8_t* registers = nullptr;
  std::vector<Copy> copies;
  uint32_t groups[LANES] = {};  // cp.async groups committed so far
  // Race detector: the present time, the time of the last synchronisation of all lanes, what was acquired since the
  // last barrier and the lanes that know it; what relaxed loads have seen; the last fence.
  uint32_t time = 1, base = 1, informed = 0, heard_by = 0;
  Clock acquired, heard;
  Fence fence;

  template <class T> T* reg(int32_t place) { return reinterpret_cast<T*>(registers + place); }
  bool done() const { return alive == 0; }
};

struct Block {
  uint32_t id = NOBODY;  // its place in the grid, counted from 1
  uint32_t phase = 0;  // it goes on when the object serves the next block
  int arrived = 0, barrier = 0;  // warps that wait, and at which barrier
  Clock clock;  // what all warps know since the last barrier
  std::vector<uint8_t> shared;
  Region region;
  std::vector<Warp> warps;
};

struct Machine {
  const Launch& launch;
  std::vector<Handler> handlers;
  std::vector<Count> counts;
  std::vector<Region> regions;
  std::vector<Found> found;
  std::map<std::tuple<int, int, int>, size_t> known;  // (kind, at, earlier) -> place in `found`
  std::mt19937_64 random;
  int64_t executed = 0;

  explicit Machine(const Launch& launch);
  void run();

  // Memory (memory.cpp). They return where the bytes are, or null after a violation.
  uint8_t* global(Warp&, const Instruction&, int lane, uint64_t address, int size, bool write, const uint8_t* data);
  uint8_t* shared(Warp&, const Instruction&, int lane, uint32_t address, int size, bool write, const uint8_t* data);
  uint8_t* strong(Warp&, const Instruction&, int lane, uint64_t address, int size, bool reads, bool writes);
  uint8_t* shared_strong(Warp&, const Instruction&, int lane, uint32_t address, int size);
  void start_copy(Warp&, const Instruction&, int lane, uint32_t to, int size, const uint8_t* data);
  void land(Warp&, const Copy&);
  void fence(Warp&, const Instruction&, uint32_t lanes);
  void warp_sync(Warp&);
  void count_sectors(const Instruction&, const uint64_t* addresses, uint32_t mask, int size);
  void count_wavefronts(const Instruction&, const uint32_t* addresses, uint32_t mask, int size);

  int place(const Instruction& i) const { return int(&i - launch.code); }
  void report(Finding kind, Warp& w, const Instruction& i, int lane, int earlier, int buffer, int64_t offset);
  [[noreturn]] void fail(const Instruction& i, const std::string& why) const {
    throw std::runtime_error(std::to_string(place(i)) + ":" + why);
  }

 private:
  void start(Block& block, uint32_t id);
  bool step(Warp& w);
  void converge(Warp& w);
  void branch(Warp& w, const Instruction& i, uint32_t taken);
  bool arrive(Warp& w, const Instruction& i, uint32_t mask);
  void open_barrier(Block& block);
  void leave(Warp& w, uint32_t lanes);

  const Buffer* find(Warp& w, const Instruction& i, int lane, uint64_t address, int size);
  bool ordered(const Warp& w, int lane, const Access& a) const;
  void note_read(Warp& w, const Instruction& i, int lane, Region& r, int64_t at, int size, int buffer, int64_t shown);
  void note_write(Warp& w, const Instruction& i, int lane, Region& r, int64_t at, int size, int buffer, int64_t shown,
                  const uint8_t* old, const uint8_t* data);
  void check_strong(Warp& w, const Instruction& i, int lane, Region& r, int64_t at, int size, bool write,
                    int buffer, int64_t shown);
  Access now(const Warp& w, const Instruction& i, int lane) const;
  Clock released_by(const Warp& w, int lane) const;
};

Handler handler_of(const Instruction& i);  // operations.cpp; null if there is none
