// The async proxy in shared memory, mbarriers, and who knows of the end of an asynchronous operation.
#include <cstring>

#include "machine.h"

uint32_t swizzled(uint32_t address, uint32_t bytes) {
  return bytes ? address ^ ((address >> 7 & (bytes / 16 - 1)) << 4) : address;
}

bool Machine::knows(const Warp& w, int lane, const AsyncAccess& a) const {
  if (!a.stream) return true;
  if (a.stream < TENSOR_STREAM && a.stream % LANES == w.index) return a.serial <= w.async.done[a.stream / LANES - 2];
  const uint32_t id = w.block->id;
  return a.serial <= w.block->clock.done(id, a.stream) ||
         ((w.informed >> lane & 1) && a.serial <= w.acquired.done(id, a.stream));
}
void Machine::add_done(Clock& clock, const Warp& w) const {
  for (int kind = 0; kind < 3; kind++)
    if (w.async.done[kind]) clock.add({w.block->id, WGMMA_STREAM + LANES * kind + w.index, w.async.done[kind]});
}

// What happens before a fence of these lanes now: all that they know, and all that they did.
void Machine::proxy_fence(Warp& w, uint32_t lanes) {
  if (!launch.races) return;
  Clock& known = w.async.fenced;
  known.join(w.block->clock);
  if (w.informed & lanes) known.join(w.acquired);
  known.add({w.block->id, -1, w.block->phase});
  known.add({w.block->id, w.index, w.block->phase, w.base, w.time + 1, lanes});
  w.async.fenced_by |= lanes;
  w.time++;
}
Clock Machine::fenced_by(const Warp& w, int lane) const {
  Clock out = w.block->async.fenced;
  if (w.async.fenced_by >> lane & 1) out.join(w.async.fenced);
  return out;
}
bool Machine::fenced(const Warp& w, int lane, const Access& a) const {
  return w.block->async.fenced.covers(a) || ((w.async.fenced_by >> lane & 1) && w.async.fenced.covers(a));
}

uint8_t* Machine::proxy_read(Warp& w, const Instruction& i, int lane, uint32_t address, int size, AsyncAccess by) {
  std::vector<uint8_t>& memory = w.block->shared;
  if (uint64_t(address) + size > memory.size()) {
    report(OUT_OF_BOUNDS, w, i, lane, -1, SHARED, address);
    return nullptr;
  }
  if (launch.races) {
    w.block->region.each(address, size, false, [&](Cell& c, int64_t, int) {
      const Access& a = c.write;
      // All lanes of a warp execute a wgmma: it comes after what each of them did.
      const int as = i.operation == WGMMA && a.warps == 1u << w.index && a.lane < LANES ? a.lane : lane;
      if (a.block != w.block->id) report(UNINITIALISED, w, i, lane, -1, SHARED, address);
      else if (a.lane == BY_TMA) {
        if (!ordered(w, lane, a)) report(NOT_WAITED, w, i, lane, a.at, SHARED, address);
      } else if (a.pending) report(PENDING_COPY, w, i, lane, a.at, SHARED, address);
      else if (!ordered(w, as, a)) report(READ_AFTER_WRITE, w, i, lane, a.at, SHARED, address);
      else if (!fenced(w, as, a)) report(NO_PROXY_FENCE, w, i, lane, a.at, SHARED, address);
      return true;
    });
    for (uint32_t line = address / 16; line <= (address + size - 1) / 16; line++) {
      std::vector<AsyncAccess>& all = w.block->async.reads[line];
      auto same = std::find_if(all.begin(), all.end(), [&](auto& other) { return other.stream == by.stream; });
      if (same == all.end()) all.push_back(by);
      else *same = by;  // the last of a stream stands for those before it
    }
  }
  return memory.data() + address;
}

// A thread writes shared memory that asynchronous operations read.
void Machine::overwrite(Warp& w, const Instruction& i, int lane, uint32_t address, int size) {
  std::map<uint32_t, std::vector<AsyncAccess>>& reads = w.block->async.reads;
  for (auto at = reads.lower_bound(address / 16); at != reads.end() && at->first <= (address + size - 1) / 16;) {
    bool all = true;
    for (const AsyncAccess& a : at->second)
      if (!knows(w, lane, a)) {
        report(PENDING_READ, w, i, lane, a.at, SHARED, address);
        all = false;
      }
    at = all ? reads.erase(at) : std::next(at);
  }
}

// mbarriers --------------------------------------------------------------------------------------------------------

MBarrier& Machine::mbarrier(Warp& w, const Instruction& i, int lane, uint32_t address) {
  auto there = w.block->async.barriers.find(address);
  if (there == w.block->async.barriers.end()) fail(i, "there is no mbarrier, it was not initialised or is invalidated");
  if (launch.races)
    w.block->region.each(address, 8, false, [&](Cell& c, int64_t, int) {
      if (!ordered(w, lane, c.write)) report(READ_AFTER_WRITE, w, i, lane, c.write.at, SHARED, address);
      return true;
    });
  return there->second;
}
void Machine::mbarrier_init(Warp& w, const Instruction& i, int lane, uint32_t address, uint32_t count) {
  if (!shared(w, i, lane, address, 8, true, nullptr)) return;
  if (w.block->async.barriers.count(address)) fail(i, "an mbarrier that is in use is initialised");
  if (!count) fail(i, "an mbarrier that nobody arrives at");
  MBarrier& b = w.block->async.barriers[address];
  b.expected = b.pending = count;
}
void Machine::mbarrier_inval(Warp& w, const Instruction& i, int lane, uint32_t address) {
  mbarrier(w, i, lane, address);
  for (const Arrival& a : w.block->async.arrivals)
    if (a.address == address) report(NOT_WAITED, w, i, lane, a.at, SHARED, address);
  std::vector<Arrival>& all = w.block->async.arrivals;
  all.erase(std::remove_if(all.begin(), all.end(), [&](auto& a) { return a.address == address; }), all.end());
  w.block->async.barriers.erase(address);
  shared(w, i, lane, address, 8, true, nullptr);
}
void Machine::count_down(Block& block, uint32_t address, uint32_t count, int64_t bytes, const Clock& clock,
                         const Clock& fenced) {
  MBarrier& b = block.async.barriers.at(address);
  b.pending -= std::min(count, b.pending);
  b.bytes += bytes;
  b.arriving.join(clock), b.arriving_fenced.join(fenced);
  if (b.pending || b.bytes) return;
  if (launch.races) b.arriving.add({block.id, BARRIER_STREAM + int32_t(address / 8), ++block.async.serial});
  b.complete.join(b.arriving), b.complete_fenced.join(b.arriving_fenced);
  b.arriving.clear(), b.arriving_fenced.clear();
  b.pending = b.expected;
  b.phase++;
}
void Machine::mbarrier_arrive(Warp& w, const Instruction& i, int lane, uint32_t address, uint32_t count, uint32_t bytes) {
  mbarrier(w, i, lane, address);
  w.block->async.spins = 0;
  if (!launch.races) return count_down(*w.block, address, count, bytes, {}, {});
  count_down(*w.block, address, count, bytes, released_by(w, lane), fenced_by(w, lane));
  w.time++;  // what the lane does from here on is not released
}
bool Machine::mbarrier_wait(Warp& w, const Instruction& i, int lane, uint32_t address, uint32_t parity) {
  MBarrier& b = mbarrier(w, i, lane, address);
  if ((b.phase & 1) == (parity & 1)) {
    w.async.yields = true;
    return false;
  }
  if (launch.races) {
    w.acquired.join(b.complete), w.informed |= 1u << lane;
    w.async.fenced.join(b.complete_fenced), w.async.fenced_by |= 1u << lane;
  }
  return true;
}

// The arrival comes when all that the thread began before it has ended: some time later.
void Machine::tensor_commit(Warp& w, const Instruction& i, int lane, uint32_t address, int32_t stream) {
  mbarrier(w, i, lane, address);
  Arrival a{address, stream, place(i), {}, {}};
  if (launch.races) {
    a.clock = released_by(w, lane), a.fenced = fenced_by(w, lane);
    a.clock.add({w.block->id, stream, w.block->async.serial});
    w.time++;
  }
  w.block->async.arrivals.push_back(a);
}
void Machine::happen(Block& block) {
  block.async.spins = 0;
  std::vector<Arrival>& all = block.async.arrivals;
  auto first = all.begin() + int64_t(random() % all.size());
  const int32_t stream = first->stream;
  if (first->data.empty()) first = std::find_if(all.begin(), all.end(), [&](auto& a) { return a.stream == stream; });
  const Arrival a = std::move(*first);
  all.erase(first);
  if (a.data.empty()) return count_down(block, a.address, 1, 0, a.clock, a.fenced);
  const uint32_t serial = ++block.async.serial;
  const Access written{block.id, block.phase, serial, uint32_t(a.stream), uint32_t(a.at), BY_TMA, false, false, 0};
  for (uint32_t from = 0; from < a.data.size(); from += 16) {
    const uint32_t address = swizzled(a.to + from, a.swizzle);
    std::memcpy(block.shared.data() + address, a.data.data() + from, 16);
    if (launch.races)
      block.region.each(address, 16, true, [&](Cell& c, int64_t, int) {
        c = {written, {}};
        return true;
      });
  }
  count_down(block, a.address, 0, -int64_t(a.data.size()), {}, {});
}

// A copy to shared memory begins: its place holds nothing until it is waited for.
void Machine::tma_load(Warp& w, const Instruction& i, int lane, uint32_t address, Arrival arrival) {
  mbarrier(w, i, lane, address);
  for (uint32_t from = 0; from < arrival.data.size(); from += 16) {
    const uint32_t to = swizzled(arrival.to + from, arrival.swizzle);
    uint8_t* p = shared(w, i, lane, to, 16, true, nullptr);
    if (!p) return;
    std::memset(p, 0xff, 16);
    if (launch.races)
      w.block->region.each(to, 16, true, [&](Cell& c, int64_t, int) {
        c = {now(w, i, lane), {}};
        return c.write.pending = true;
      });
  }
  arrival.address = address, arrival.at = place(i);
  arrival.stream = BARRIER_STREAM + int32_t(address / 8);
  w.block->async.arrivals.push_back(std::move(arrival));
}

// Registers of a wgmma --------------------------------------------------------------------------------------------

// `i` reads or writes registers that some wgmma has for its accumulator or its factor a.
void Machine::touch_registers(Warp& w, const Instruction& i) {
  const int32_t* list = launch.lists + i.touches;
  for (int k = 0; k < *list; k++) {
    const int32_t place = list[1 + 2 * k];
    const bool writes = list[2 + 2 * k];
    for (const Accumulator& a : w.async.accumulators)
      if (a.place == place && !writes && !a.factor && i.operation == UNPACK)  // as ptxas does: it waits before the copy
        std::memcpy(w.reg<uint32_t>(place), a.value, sizeof a.value);
      else if (a.place == place && (writes || !a.factor))
        report(NOT_WAITED, w, i, __builtin_ctz(w.active), a.at, REGISTER, place);
    std::vector<int32_t>& written = w.async.unfenced;
    if (writes && i.operation != MOV && std::find(written.begin(), written.end(), place) == written.end()) written.push_back(place);
  }
}
