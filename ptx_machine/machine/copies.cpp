// Copies of boxes of a tensor by a tensor map (TMA). The layout of the map is this machine's own: decode.TENSORMAP.
//
// A load reads global memory when it begins and arrives some time later; until a thread has waited for its mbarrier, its place
// in shared memory holds nothing. A store reads and writes when it begins; its place is read until it was waited for.
#include <cstring>

#include "machine.h"
#include "numbers.h"

namespace {

constexpr int ADDRESS = OPERANDS - 1, ADDRESS2 = OPERANDS - 2, BARRIER = 8;

struct TensorMap {
  uint64_t start;
  uint32_t rank;  // less 1
  uint8_t type, interleave, swizzle, fill;
  uint32_t box[5], dim[5];
  uint64_t stride[4];  // bytes, from the second dimension on
  uint32_t step[5];
  uint8_t rest[20];
};
static_assert(sizeof(TensorMap) == 128);

bool on(uint32_t mask, int lane) { return mask >> lane & 1; }
uint64_t address_of(Warp& w, const Instruction& i, int lane) {
  const int32_t place = i.operand[ADDRESS];
  return (i.wide & 1 ? w.reg<uint64_t>(place)[lane] : w.reg<uint32_t>(place)[lane]) + uint64_t(i.offset);
}

// A map and what the instruction asks of it. Types are numbered as in tensormap.replace.
struct Box {
  TensorMap map;
  int rank, bytes;  // of an element
  int64_t row;      // bytes of a row of the box
  int64_t rows;
  uint32_t swizzle;
  int32_t at[5];
};
Box box_of(Machine& m, Warp& w, const Instruction& i, int lane) {
  Box b{};
  const uint64_t address = address_of(w, i, lane);
  for (int k = 0; k < 128; k += 16) {
    const uint8_t* p = m.global(w, i, lane, address + k, 16, false, nullptr);
    if (!p) m.fail(i, "has no tensor map");
    std::memcpy(reinterpret_cast<uint8_t*>(&b.map) + k, p, 16);
  }
  static constexpr int bytes[11] = {1, 2, 4, 4, 8, 8, 2, 4, 0, 8, 2}, swizzles[4] = {0, 32, 64, 128};
  b.rank = int(b.map.rank) + 1;
  b.bytes = b.map.type < 11 ? bytes[b.map.type] : 0;
  if (!b.bytes || b.map.interleave || b.map.swizzle > 3) m.fail(i, "the machine does not know this tensor map");
  if (b.rank != i.count) m.fail(i, "the tensor map has another number of dimensions");
  for (int k = 0; k < b.rank; k++)
    if (b.map.step[k] != 1) m.fail(i, "the machine does not know tensor maps with steps");
  bool odd = b.map.start % 16;
  for (int k = 0; k + 1 < b.rank; k++) odd |= b.map.stride[k] % 16 != 0;
  if (odd) m.fail(i, "the tensor map has a start or a stride that is no multiple of 16 bytes");
  b.swizzle = swizzles[b.map.swizzle];
  b.row = int64_t(b.map.box[0]) * b.bytes;
  if (b.row % 16 || (b.swizzle && b.row > b.swizzle)) m.fail(i, "the rows of the box have no length that TMA copies");
  b.rows = i.width ? 4 : 1;
  for (int k = 1; k < b.rank && !i.width; k++) b.rows *= b.map.box[k];
  for (int k = 0; k < (i.width ? 5 : b.rank); k++) b.at[k] = int32_t(w.reg<uint32_t>(i.operand[k])[lane]);
  return b;
}
// f(offset in the box, address, bytes) for what lies inside of the tensor, in aligned parts.
template <class F> void each(const Box& b, const Instruction& i, F f) {
  for (int64_t row = 0; row < b.rows; row++) {
    uint64_t address = b.map.start;
    bool inside = true;
    int64_t left = row;
    for (int k = 1; k < b.rank; k++) {
      const int64_t at = i.width ? b.at[1 + row] : b.at[k] + left % b.map.box[k];
      left /= b.map.box[k];
      inside &= at >= 0 && at < int64_t(b.map.dim[k]);
      address += uint64_t(at) * b.map.stride[k - 1];
    }
    const int64_t first = std::max<int64_t>(0, -int64_t(b.at[0]));
    const int64_t end = std::min<int64_t>(b.map.box[0], int64_t(b.map.dim[0]) - b.at[0]);
    if (!inside || first >= end) continue;
    address += uint64_t(int64_t(b.at[0]) * b.bytes);
    for (int64_t from = first * b.bytes; from < end * b.bytes;) {
      const uint64_t here = address + uint64_t(from);
      const int size = here % 16 == 0 && end * b.bytes - from >= 16 ? 16 : b.bytes;
      f(row * b.row + from, here, size);
      from += size;
    }
  }
}

void load(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  for (int l = 0; l < LANES; l++) {
    if (!on(mask, l)) continue;
    const Box b = box_of(m, w, i, l);
    Arrival out{};
    out.to = w.reg<uint32_t>(i.operand[ADDRESS2])[l] + uint32_t(i.offset2);
    out.swizzle = b.swizzle;
    out.data.resize(size_t(b.row * b.rows));
    if (b.map.fill)  // beyond the tensor there is NaN, or 0
      for (size_t k = 0; k < out.data.size(); k++) out.data[k] = int(k) % b.bytes == b.bytes - 1 ? 0x7f : 0xff;
    each(b, i, [&](int64_t from, uint64_t address, int size) {
      if (const uint8_t* p = m.global(w, i, l, address, size, false, nullptr)) std::memcpy(out.data.data() + from, p, size);
      else std::memset(out.data.data() + from, 0xff, size);
    });
    m.tma_load(w, i, l, w.reg<uint32_t>(i.operand[BARRIER])[l] + uint32_t(i.target), std::move(out));
  }
}

template <class T> void combine(Machine& m, Warp& w, const Instruction& i, int lane, uint64_t address, const uint8_t* data, int size) {
  for (int k = 0; k < size; k += int(sizeof(T))) {
    uint8_t* p = m.strong(w, i, lane, address + k, sizeof(T), true, true);
    if (!p) continue;
    T old, value;
    std::memcpy(&old, p, sizeof old), std::memcpy(&value, data + k, sizeof value);
    value = changed<T>(i.mode, old, value, value);
    std::memcpy(p, &value, sizeof value);
  }
}
using Combine = void (*)(Machine&, Warp&, const Instruction&, int, uint64_t, const uint8_t*, int);
Combine combine_of(int type) {
  switch (type) {
    case 2: return combine<uint32_t>;
    case 3: return combine<int32_t>;
    case 4: return combine<uint64_t>;
    case 5: return combine<int64_t>;
    case 6: return combine<Half>;
    case 7: return combine<float>;
    case 9: return combine<double>;
    case 10: return combine<Brain>;
    default: return nullptr;
  }
}
void store(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  for (int l = 0; l < LANES; l++) {
    if (!on(mask, l)) continue;
    const Box b = box_of(m, w, i, l);
    const AsyncAccess by{BULK_STREAM + w.index * LANES + l, ++w.block->async.serial, m.place(i)};
    Bulk& bulk = w.async.bulk[l];
    bulk.last = by.serial, bulk.at = by.at;
    std::vector<uint8_t> data(size_t(b.row * b.rows), 0xff);
    const uint32_t from = w.reg<uint32_t>(i.operand[ADDRESS2])[l] + uint32_t(i.offset2);
    for (uint32_t k = 0; k < data.size(); k += 16)
      if (const uint8_t* p = m.proxy_read(w, i, l, swizzled(from + k, b.swizzle), 16, by)) std::memcpy(data.data() + k, p, 16);
    const Combine reduce = i.mode < 0 ? nullptr : combine_of(b.map.type);
    if (i.mode >= 0 && (!reduce || (i.mode > 0 && (b.map.type == 7 || b.map.type == 9)) || (i.mode > 2 && b.map.type > 5)))
      m.fail(i, "the machine does not know this reduction");
    each(b, i, [&](int64_t at, uint64_t address, int size) {
      const uint8_t* source = data.data() + at;
      if (reduce) return reduce(m, w, i, l, address, source, size);
      if (uint8_t* p = m.global(w, i, l, address, size, true, source)) std::memcpy(p, source, size);
    });
  }
}
void commit(Machine&, Warp& w, const Instruction&, uint32_t mask) {
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) w.async.bulk[l].groups.push_back(w.async.bulk[l].last);
}
void wait(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  for (int l = 0; l < LANES; l++) {
    if (!on(mask, l)) continue;
    Bulk& bulk = w.async.bulk[l];
    const size_t complete = bulk.groups.size() - std::min(bulk.groups.size(), size_t(i.count));
    if (!complete || bulk.groups[complete - 1] <= bulk.done) continue;
    bulk.done = bulk.groups[complete - 1];
    w.acquired.add({w.block->id, BULK_STREAM + w.index * LANES + l, bulk.done});
    w.informed |= 1u << l;
  }
}

void set_field(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  for (int l = 0; l < LANES; l++) {
    if (!on(mask, l)) continue;
    uint64_t value = i.type == U64 ? w.reg<uint64_t>(i.operand[0])[l] : w.reg<uint32_t>(i.operand[0])[l];
    const uint8_t* data = reinterpret_cast<const uint8_t*>(&value);
    if (uint8_t* p = m.shared(w, i, l, uint32_t(address_of(w, i, l)), i.count, true, data)) std::memcpy(p, data, size_t(i.count));
  }
}
// A warp copies a map from shared to global memory.
void copy_map(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  const int l = __builtin_ctz(mask);
  const uint32_t from = w.reg<uint32_t>(i.operand[0])[i.count == 8 ? 2 * l : l];
  for (int k = 0; k < 128; k += 16) {
    uint8_t data[16];
    const uint8_t* source = m.shared(w, i, l, from + k, 16, false, nullptr);
    if (!source) continue;
    std::memcpy(data, source, 16);
    if (uint8_t* p = m.global(w, i, l, address_of(w, i, l) + k, 16, true, data)) std::memcpy(p, data, 16);
  }
}

}  // namespace

Handler copy_handler_of(const Instruction& i) {
  switch (i.operation) {
    case TMA_LOAD: return load;
    case TMA_STORE: return store;
    case BULK_COMMIT: return commit;
    case BULK_WAIT: return wait;
    case TENSORMAP_SET: return set_field;
    case TENSORMAP_COPY: return copy_map;
    default: return nullptr;
  }
}
