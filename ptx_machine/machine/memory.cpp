// Memory: bounds, alignment, and what the race detector notes of every access.
#include "machine.h"

#include <cstring>

void Machine::report(Finding kind, Warp& w, const Instruction& i, int lane, int earlier, int buffer, int64_t offset) {
  add({kind, place(i), earlier, int32_t(w.block->id) - 1, w.index, lane, buffer, 0, offset, 1});
}
void Machine::add(const Found& one) {
  auto [at, added] = known.try_emplace({one.kind, one.at, one.earlier}, found.size());
  if (added) found.push_back(one);
  else found[at->second].times++;
}

// A race of a load and a store. Whether the load counts is seen when its block has ended, if its value is only stored.
void Machine::report_read(Finding kind, Warp& w, const Instruction& i, int lane, const Access& other, int buffer,
                          int64_t offset) {
  const bool reads = kind == READ_AFTER_WRITE;
  const uint32_t load = reads ? uint32_t(place(i)) : other.at;
  const int32_t first = launch.sink_starts[load], end = launch.sink_starts[load + 1];
  const bool only_stored = first != end && launch.sinks[first] != NO_SINKS;
  if (!only_stored || (!reads && (other.block != w.block->id || other.mixed)))
    return report(kind, w, i, lane, int(other.at), buffer, offset);
  const Found one{kind, place(i), int(other.at), int32_t(w.block->id) - 1, w.index, lane, buffer, 0, offset, 1};
  if (reads) w.block->suspects.push_back({one, 1u << w.index, 1u << lane, -1, -1, load});
  else w.block->suspects.push_back({one, other.warps, other.lanes, w.index, lane, load});
}

void Machine::settle(Block& block) {
  for (const Suspect& s : block.suspects) {
    bool stores = false;
    for (const Warp& w : block.warps) {
      if (!(s.warps >> w.index & 1)) continue;
      const uint32_t lanes = w.index == s.writer_warp ? s.lanes & ~(1u << s.writer_lane) : s.lanes;
      for (int32_t k = launch.sink_starts[s.load]; k < launch.sink_starts[s.load + 1]; k++)
        stores |= (w.stored[launch.sinks[k]] & lanes) != 0;
    }
    if (stores) add(s.found);
  }
  block.suspects.clear();
  const int32_t id = int32_t(block.id) - 1;
  for (const Warp& w : block.warps)
    for (auto& [lane, bulk] : w.async.bulk)
      if (bulk.done < bulk.last) add({NOT_WAITED, bulk.at, -1, id, w.index, lane, SHARED, 0, 0, 1});
  for (const Arrival& a : block.async.arrivals)  // the kernel ended before they came
    add({NOT_WAITED, a.at, -1, id, 0, 0, SHARED, 0, a.address, 1});
  const TensorMemory* tensor = block.async.tensor.get();
  for (int column = 0; tensor && column < TensorMemory::COLUMNS; column++)
    if (tensor->owner[column] >= 0) {
      add({LEFT_BEHIND, tensor->owner[column], -1, id, 0, 0, TENSOR, 0, column, 1});
      break;
    }
}

const Buffer* Machine::find(Warp& w, const Instruction& i, int lane, uint64_t address, int size) {
  int64_t index = int64_t(address >> WINDOW) - 1;
  bool one = index >= 0 && index < launch.first_host;
  if (!one)  // a pointer that the host wrote into memory
    for (index = launch.first_host; index < launch.buffer_count && !one; index += !one) {
      const Buffer& host = launch.buffers[index];
      one = int64_t(address) >= host.base && int64_t(address) < host.base + host.size;
    }
  const Buffer* b = one ? launch.buffers + index : nullptr;
  int64_t offset = one ? int64_t(address) - b->base : int64_t(address);
  const Outside part = one && i.wide & WORD ? outside(address, size) : Outside();
  if (!one || offset + part.before < 0 || offset + size - part.after > b->size)
    report(OUT_OF_BOUNDS, w, i, lane, -1, one ? int(index) : NO_ARGUMENT, offset);
  else if (!aligned(address, size)) report(MISALIGNED, w, i, lane, -1, int(index), offset);
  else return b;
  return nullptr;
}

Outside Machine::outside(uint64_t address, int size) const {
  const int64_t index = int64_t(address >> WINDOW) - 1;
  if (index < 0 || index >= launch.first_host) return {};
  const int64_t offset = int64_t(address) - launch.buffers[index].base, end = launch.buffers[index].size;
  const bool touches = offset < end && offset + size > 0;
  return touches ? Outside{int(std::max<int64_t>(0, -offset)), int(std::max<int64_t>(0, offset + size - end))} : Outside();
}

uint8_t* Machine::global(Warp& w, const Instruction& i, int lane, uint64_t address, int size, bool write,
                         const uint8_t* data) {
  const Buffer* b = find(w, i, lane, address, size);
  if (!b) return nullptr;
  int64_t offset = int64_t(address) - b->base;
  uint8_t* bytes = b->host + offset;
  if (launch.races && b->region >= 0) {
    Region& r = regions[b->region];
    int index = int(b - launch.buffers);
    if (write) note_write(w, i, lane, r, b->place + offset, size, index, offset, bytes, data);
    else note_read(w, i, lane, r, b->place + offset, size, index, offset);
  }
  return bytes;
}

uint8_t* Machine::local(Warp& w, const Instruction& i, int lane, uint64_t address, int size) {
  if (!aligned(address, size)) report(MISALIGNED, w, i, lane, -1, LOCAL, int64_t(address));
  else if (address + size > uint64_t(launch.local)) report(OUT_OF_BOUNDS, w, i, lane, -1, LOCAL, int64_t(address));
  else return w.local.data() + size_t(lane) * launch.local + address;
  return nullptr;
}

uint8_t* Machine::shared(Warp& w, const Instruction& i, int lane, uint32_t address, int size, bool write,
                         const uint8_t* data) {
  std::vector<uint8_t>& memory = w.block->shared;
  if (!aligned(address, size)) report(MISALIGNED, w, i, lane, -1, SHARED, address);
  else if (uint64_t(address) + size > memory.size()) report(OUT_OF_BOUNDS, w, i, lane, -1, SHARED, address);
  else {
    uint8_t* bytes = memory.data() + address;
    if (launch.races) {
      if (write) note_write(w, i, lane, w.block->region, address, size, SHARED, address, bytes, data);
      else note_read(w, i, lane, w.block->region, address, size, SHARED, address);
    }
    return bytes;
  }
  return nullptr;
}

Access Machine::now(const Warp& w, const Instruction& i, int lane) const {
  return {w.block->id, w.block->phase, w.time, 1u << w.index, uint32_t(place(i)), uint8_t(lane), false, false, 1u << lane};
}

// Does `a` happen before what `lane` does now?
bool Machine::ordered(const Warp& w, int lane, const Access& a) const {
  if (a.block == NOBODY) return true;
  if (a.lane == BY_TMA) return a.block != w.block->id || knows(w, lane, {int32_t(a.warps), a.time, 0});
  if (a.block == w.block->id) {
    if (a.phase < w.block->phase) return true;
    if (a.warps == 1u << w.index && (a.lane == lane || a.time < w.base)) return true;
  }
  return w.block->clock.covers(a) || ((w.informed >> lane & 1) && w.acquired.covers(a));
}

void Machine::note_read(Warp& w, const Instruction& i, int lane, Region& r, int64_t at, int size, int buffer,
                        int64_t shown) {
  const uint32_t id = w.block->id, phase = w.block->phase, mine = 1u << w.index;
  const bool apart = buffer == SHARED && w.block->parts;  // warps are ordered one by one: each has its own reader
  r.each(at, size, false, [&](Cell& c, int64_t, int) {
    if (buffer == SHARED && c.write.block != id) report(UNINITIALISED, w, i, lane, -1, buffer, shown);
    else if (c.write.pending) report(PENDING_COPY, w, i, lane, c.write.at, buffer, shown);
    else if (c.write.lane == BY_TMA && !ordered(w, lane, c.write)) report(NOT_WAITED, w, i, lane, c.write.at, buffer, shown);
    else if (!ordered(w, lane, c.write)) report_read(READ_AFTER_WRITE, w, i, lane, c.write, buffer, shown);
    Access* reader = &c.read;
    if (apart && reader->block == id && reader->phase == phase && reader->warps != mine) {
      std::vector<Access>& others = r.readers[&c];
      auto own = std::find_if(others.begin(), others.end(), [&](auto& o) { return o.block == id && o.phase == phase && o.warps == mine; });
      reader = own != others.end() ? &*own : &others.emplace_back();
    }
    Access& a = *reader;
    if (a.block == id && a.phase == phase) {
      bool alone = a.warps == mine && (a.lane == lane || a.time < w.base);
      a.lane = alone ? uint8_t(lane) : SEVERAL;
      a.mixed = !alone && (a.mixed || a.at != uint32_t(place(i)));
      a.lanes = (alone ? 0u : a.lanes) | 1u << lane;
      a.warps |= mine;
      a.time = w.time;
      a.at = uint32_t(place(i));
    } else if (buffer == SHARED || ordered(w, lane, a)) a = now(w, i, lane);
    else {
      std::vector<Access>& others = r.readers[&c];
      others.erase(std::remove_if(others.begin(), others.end(), [&](auto& o) { return ordered(w, lane, o); }),
                   others.end());
      others.push_back(now(w, i, lane));
    }
    return true;
  });
  if (!r.strong.empty()) check_strong(w, i, lane, r, at, size, false, buffer, shown);
}

// Threads that Triton lets store one sum by one instruction, each the one that it formed in its own order: the last bits may
// differ.
bool Machine::replica(const Warp& w, const Instruction& i, const Access& a) const {
  return launch.replicas && i.operation == STORE_SHARED && a.at == uint32_t(place(i)) && a.phase == w.block->phase && a.time == w.time;
}

void Machine::note_write(Warp& w, const Instruction& i, int lane, Region& r, int64_t at, int size, int buffer,
                         int64_t shown, const uint8_t* old, const uint8_t* data) {
  const uint32_t id = w.block->id;
  if (buffer == SHARED && !w.block->async.reads.empty()) overwrite(w, i, lane, uint32_t(at), size);
  r.each(at, size, true, [&](Cell& c, int64_t from, int bytes) {
    const bool stale = buffer == SHARED && c.write.block != id;
    const bool after = stale || ordered(w, lane, c.write);
    if (!stale && c.write.pending) report(PENDING_COPY, w, i, lane, c.write.at, buffer, shown);
    // Compilers let several warps store the same value to one place; the order of such writes changes nothing.
    else if (!after && (!data || std::memcmp(old + from, data + from, bytes)) && !replica(w, i, c.write))
      report(WRITE_AFTER_WRITE, w, i, lane, c.write.at, buffer, shown);
    bool unread = (buffer == SHARED && c.read.block != id) || ordered(w, lane, c.read);
    if (!unread) report_read(WRITE_AFTER_READ, w, i, lane, c.read, buffer, shown);
    if (!r.readers.empty()) {
      auto others = r.readers.find(&c);
      if (others != r.readers.end()) {
        for (auto& a : others->second)
          if (!ordered(w, lane, a)) report_read(WRITE_AFTER_READ, w, i, lane, a, buffer, shown);
        r.readers.erase(others);
      }
    }
    if (after) c = {now(w, i, lane), {}};
    return after;
  });
  if (!r.strong.empty()) check_strong(w, i, lane, r, at, size, true, buffer, shown);
  if (!r.released.empty())
    for (int64_t byte = at; byte < at + size; byte++) r.released.erase(byte);  // a plain store ends a release sequence
}

void Machine::check_strong(Warp& w, const Instruction& i, int lane, Region& r, int64_t at, int size, bool write,
                           int buffer, int64_t shown) {
  for (int64_t byte = at; byte < at + size; byte++) {
    auto there = r.strong.find(byte);
    if (there == r.strong.end()) continue;
    for (auto& s : there->second)
      if ((write || s.writes) && !ordered(w, lane, s.access))
        report(!write ? READ_AFTER_WRITE : s.writes ? WRITE_AFTER_WRITE : WRITE_AFTER_READ, w, i, lane, s.access.at,
               buffer, shown);
  }
}

Clock Machine::released_by(const Warp& w, int lane) const {
  Clock out = w.block->clock;
  if (w.informed >> lane & 1) out.join(w.acquired);
  out.add({w.block->id, -1, w.block->phase});
  out.add({w.block->id, w.index, w.block->phase, w.base, w.time + 1, 1u << lane});
  add_done(out, w);
  return out;
}

// An atomic operation, or a load or store that is volatile, relaxed, acquire or release. Two of them race only if the
// scope of one does not hold the other.
uint8_t* Machine::strong(Warp& w, const Instruction& i, int lane, uint64_t address, int size, bool reads, bool writes) {
  const Buffer* b = find(w, i, lane, address, size);
  if (!b) return nullptr;
  const int64_t offset = int64_t(address) - b->base;
  if (!launch.races || b->region < 0) return b->host + offset;
  Region& r = regions[b->region];
  const int64_t place = b->place + offset;
  const int index = int(b - launch.buffers);
  r.each(place, size, false, [&](Cell& c, int64_t, int) {
    if (!ordered(w, lane, c.write))
      report(reads ? READ_AFTER_WRITE : WRITE_AFTER_WRITE, w, i, lane, c.write.at, index, offset);
    if (!writes) return true;
    if (!ordered(w, lane, c.read)) report(WRITE_AFTER_READ, w, i, lane, c.read.at, index, offset);
    auto others = r.readers.find(&c);
    if (others != r.readers.end())
      for (auto& a : others->second)
        if (!ordered(w, lane, a)) report(WRITE_AFTER_READ, w, i, lane, a.at, index, offset);
    return true;
  });
  std::vector<Strong>& all = r.strong[place];
  Strong* mine = nullptr;
  for (auto& s : all) {
    bool apart = s.access.block != w.block->id;
    if (apart && (i.block_scope || s.block_scope) && (writes || s.writes) && !ordered(w, lane, s.access))
      report(!writes ? READ_AFTER_WRITE : s.writes ? WRITE_AFTER_WRITE : WRITE_AFTER_READ, w, i, lane, s.access.at,
             index, offset);
    if (!apart && s.access.warps == 1u << w.index && s.access.lane == lane && s.writes == writes) mine = &s;
  }
  Strong access{now(w, i, lane), writes, i.block_scope != 0};
  if (mine) *mine = access;
  else all.push_back(access);

  Released& at = r.released[place];
  if (reads) {
    Clock learnt = i.block_scope ? Clock() : at.everyone;
    auto inside = at.block.find(w.block->id);
    if (inside != at.block.end()) learnt.join(inside->second);
    if (i.order & ACQUIRE) w.acquired.join(learnt), w.informed |= 1u << lane;
    else w.heard.join(learnt), w.heard_by |= 1u << lane;
  }
  if (writes) {
    if (!reads) at = Released();  // a store starts a new release sequence, a read-modify-write continues it
    bool block_scope = i.block_scope;
    Clock out;
    if (i.order & RELEASE) out = released_by(w, lane);
    else if (w.fence.lanes >> lane & 1) {  // fence; relaxed store
      const Fence& f = w.fence;
      out = f.known;
      out.add({w.block->id, -1, f.phase});
      out.add({w.block->id, w.index, f.phase, f.base, f.time, 1u << lane});
      block_scope |= f.block_scope;
    }
    if (!out.empty()) {
      at.block[w.block->id].join(out);
      if (!block_scope) at.everyone.join(out);
      w.time++;  // what the lane does from here on is not released
    }
  }
  return b->host + offset;
}

// An atomic operation in shared memory is relaxed, and only races with plain accesses.
uint8_t* Machine::shared_strong(Warp& w, const Instruction& i, int lane, uint32_t address, int size) {
  std::vector<uint8_t>& memory = w.block->shared;
  if (!aligned(address, size)) report(MISALIGNED, w, i, lane, -1, SHARED, address);
  else if (uint64_t(address) + size > memory.size()) report(OUT_OF_BOUNDS, w, i, lane, -1, SHARED, address);
  else {
    if (launch.races) {
      w.block->region.each(address, size, true, [&](Cell& c, int64_t, int) {
        const bool atomic = c.write.block == w.block->id && launch.code[c.write.at].operation == ATOM_SHARED;
        if (c.write.block != w.block->id) report(UNINITIALISED, w, i, lane, -1, SHARED, address);
        else if (!atomic && !ordered(w, lane, c.write))
          report(READ_AFTER_WRITE, w, i, lane, c.write.at, SHARED, address);
        if (c.read.block == w.block->id && !ordered(w, lane, c.read))
          report(WRITE_AFTER_READ, w, i, lane, c.read.at, SHARED, address);
        c.write = now(w, i, lane);
        return false;
      });
    }
    return memory.data() + address;
  }
  return nullptr;
}

void Machine::fence(Warp& w, const Instruction& i, uint32_t lanes) {
  if (!launch.races) return;
  if (w.heard_by & lanes) w.acquired.join(w.heard), w.informed |= w.heard_by & lanes;
  w.fence = {w.block->clock, w.block->phase, w.base, w.time + 1, lanes, i.block_scope != 0};
  if (w.informed & lanes) w.fence.known.join(w.acquired);
  add_done(w.fence.known, w);
  w.time++;
}

void Machine::warp_sync(Warp& w) {
  w.base = ++w.time;
  if (w.informed) w.informed = ALL_LANES;
}

// The bytes arrive when the lane waits for them, as late as they may; until then nobody may touch the place.
void Machine::start_copy(Warp& w, const Instruction& i, int lane, uint32_t to, int size, const uint8_t* data) {
  if (!shared(w, i, lane, to, size, true, nullptr)) return;
  Copy copy{to, size, lane, w.groups[lane], place(i), {}};
  std::memcpy(copy.data, data, size);
  w.copies.push_back(copy);
  if (!launch.races) return;
  w.block->region.each(to, size, true, [&](Cell& c, int64_t, int) {
    c = {now(w, i, lane), {}};
    return c.write.pending = true;
  });
}

void Machine::land(Warp& w, const Copy& copy) {
  std::memcpy(w.block->shared.data() + copy.to, copy.data, copy.size);
  if (!launch.races) return;
  w.block->region.each(copy.to, copy.size, true, [&](Cell& c, int64_t, int) {
    c = {now(w, launch.code[copy.at], copy.lane), {}};
    return true;
  });
}

// Global memory moves in sectors of 32 bytes; a request of a warp costs as many as it touches.
void Machine::count_sectors(const Instruction& i, const uint64_t* addresses, uint32_t mask, int size) {
  if (!launch.traffic) return;
  std::vector<uint64_t> sectors;
  for (int l = 0; l < LANES; l++)
    if (mask >> l & 1)
      for (uint64_t s = addresses[l] / 32; s <= (addresses[l] + size - 1) / 32; s++) sectors.push_back(s);
  std::sort(sectors.begin(), sectors.end());
  counts[place(i)].sectors += std::unique(sectors.begin(), sectors.end()) - sectors.begin();
}

// Shared memory has 32 banks of 4 bytes. Wide accesses are served for half (8 bytes) or a quarter (16) of the lanes at a
// time; each part costs as many wavefronts as its busiest bank has different words.
void Machine::count_wavefronts(const Instruction& i, const uint32_t* addresses, uint32_t mask, int size) {
  if (!launch.traffic) return;
  const int lanes = size <= 4 ? 32 : size == 8 ? 16 : 8;
  for (int first = 0; first < LANES; first += lanes) {
    std::vector<uint32_t> words;
    for (int l = first; l < first + lanes; l++)
      if (mask >> l & 1)
        for (uint32_t word = addresses[l] / 4; word <= (addresses[l] + size - 1) / 4; word++) words.push_back(word);
    if (words.empty()) continue;
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    int banks[32] = {}, most = 0;
    for (uint32_t word : words) most = std::max(most, ++banks[word % 32]);
    counts[place(i)].wavefronts += most;
    counts[place(i)].ideal += int64_t(words.size() + 31) / 32;
  }
}
