// One handler per operation and type: what an instruction does to the registers of a warp.
#include <cfenv>
#include <climits>
#include <cstdio>
#include <cstring>
#include <utility>

#include "machine.h"
#include "numbers.h"

namespace {

constexpr int ADDRESS = OPERANDS - 1, ADDRESS2 = OPERANDS - 2;

bool on(uint32_t mask, int lane) { return mask >> lane & 1; }
bool is_signed_type(int32_t type) { return type == S32 || type == S64; }

uint64_t address_of(Warp& w, const Instruction& i, int lane) {
  const int32_t place = i.operand[ADDRESS];
  return (i.wide & 1 ? w.reg<uint64_t>(place)[lane] : w.reg<uint32_t>(place)[lane]) + uint64_t(i.offset);
}

// Lane-wise arithmetic: D = F(A...). The loop over all lanes is the common case, and is vectorised.
template <class F, class D, class... A> void loop(uint32_t mask, D* d, A*... a) {
  if (mask == ALL_LANES) {
#pragma GCC ivdep
    for (int l = 0; l < LANES; l++) d[l] = F()(a[l]...);
  } else {
    for (int l = 0; l < LANES; l++)
      if (on(mask, l)) d[l] = F()(a[l]...);
  }
}
template <class F, class D, class... A, size_t... K>
void spread(Warp& w, const Instruction& i, uint32_t mask, std::index_sequence<K...>) {
  loop<F, D, A...>(mask, w.reg<D>(i.operand[0]), w.reg<A>(i.operand[1 + K])...);
}
template <class F, class D, class... A> void lanes(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  spread<F, D, A...>(w, i, mask, std::index_sequence_for<A...>());
}

// F with N operands of the type of the result.
template <class F, class T, int N> Handler same() {
  if constexpr (N == 1) return lanes<F, T, T>;
  else if constexpr (N == 2) return lanes<F, T, T, T>;
  else return lanes<F, T, T, T, T>;
}
template <template <class> class F, int N> Handler integers(int32_t type) {
  switch (type) {
    case U16: return same<F<uint16_t>, uint16_t, N>();
    case S16: return same<F<int16_t>, int16_t, N>();
    case U32: return same<F<uint32_t>, uint32_t, N>();
    case S32: return same<F<int32_t>, int32_t, N>();
    case U64: return same<F<uint64_t>, uint64_t, N>();
    case S64: return same<F<int64_t>, int64_t, N>();
    default: return nullptr;
  }
}
enum { FTZ = 1, NAN_WINS = 2, SAT = 4, DIRECTED = 8, SIGN_OF_BOTH = 64 };  // modes of arithmetic, as in decode.py
// A rounding to zero, down or up, .sat: rare, so one lane at a time and decided here. The operands are read again after
// the rounding is set, which a compiler might otherwise do before.
template <class F, class T> T directed(int rounding, const volatile T& a, const volatile T& b, const volatile T& c, int n) {
  const int before = std::fegetround();
  std::fesetround(rounding == 1 ? FE_TOWARDZERO : rounding == 2 ? FE_DOWNWARD : rounding == 3 ? FE_UPWARD : FE_TONEAREST);
  volatile T out;
  if constexpr (std::is_invocable_v<F, T, T, T>) out = F()(T(a), T(b), T(c));
  else if constexpr (std::is_invocable_v<F, T, T>) out = F()(T(a), T(b));
  else out = F()(T(a));
  std::fesetround(before);
  return out;
}
template <class F, class T, int N> void unusual(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) {
      T v[3] = {};
      for (int k = 0; k < N; k++) {
        v[k] = w.reg<T>(i.operand[1 + k])[l];
        if constexpr (std::is_same_v<T, float>) v[k] = i.mode & FTZ ? flushed(v[k]) : v[k];
      }
      T out = directed<F, T>(i.mode / DIRECTED, v[0], v[1], v[2], N);
      if constexpr (std::is_same_v<T, float>) out = i.mode & FTZ ? flushed(out) : out;
      if (i.mode & SAT) out = out > 0 ? std::min(out, T(1)) : T(0);  // of NaN: 0
      w.reg<T>(i.operand[0])[l] = out;
    }
}
template <template <class> class F, int N> Handler wide_floats(const Instruction& i) {
  if (i.mode & ~(FTZ | NAN_WINS | SIGN_OF_BOTH)) return i.type == F32 ? unusual<F<float>, float, N> : unusual<F<double>, double, N>;
  switch (i.type) {
    case F32: return i.mode & FTZ ? same<Flushed<F<float>>, float, N>() : same<F<float>, float, N>();
    case F64: return i.mode & FTZ ? same<FlushedDouble<F<double>>, double, N>() : same<F<double>, double, N>();
    default: return nullptr;
  }
}
template <template <class> class F, int N> Handler floats(const Instruction& i) {
  switch (i.type) {
    case F16: return same<F<Half>, Half, N>();
    case BF16: return same<F<Brain>, Brain, N>();
    case F16X2: return same<Pair<Half, F<Half>>, uint32_t, N>();
    case BF16X2: return same<Pair<Brain, F<Brain>>, uint32_t, N>();
    case F32X2: return same<Pair<float, F<float>>, uint64_t, N>();
    default: return wide_floats<F, N>(i);
  }
}
template <template <class> class F, int N> Handler numbers(const Instruction& i) {
  if (i.type == U16X2) return same<Pair<uint16_t, F<uint16_t>>, uint32_t, N>();
  if (i.type == S16X2) return same<Pair<int16_t, F<int16_t>>, uint32_t, N>();
  Handler found = integers<F, N>(i.type);
  return found ? found : floats<F, N>(i);
}
template <template <class> class F> Handler shifts(int32_t type) {
  switch (type) {
    case U16: return lanes<F<uint16_t>, uint16_t, uint16_t, uint32_t>;
    case S16: return lanes<F<int16_t>, int16_t, int16_t, uint32_t>;
    case U32: return lanes<F<uint32_t>, uint32_t, uint32_t, uint32_t>;
    case S32: return lanes<F<int32_t>, int32_t, int32_t, uint32_t>;
    case U64: return lanes<F<uint64_t>, uint64_t, uint64_t, uint32_t>;
    case S64: return lanes<F<int64_t>, int64_t, int64_t, uint32_t>;
    default: return nullptr;
  }
}
template <template <class> class F, bool ADDS> Handler widening(int32_t type) {
  auto of = [](auto zero) -> Handler {
    using T = decltype(zero);
    if constexpr (ADDS) return lanes<F<T>, Twice<T>, T, T, Twice<T>>;
    else return lanes<F<T>, Twice<T>, T, T>;
  };
  switch (type) {
    case U16: return of(uint16_t());
    case S16: return of(int16_t());
    case U32: return of(uint32_t());
    case S32: return of(int32_t());
    default: return nullptr;
  }
}
template <template <class> class F> Handler counting(int32_t type) {
  return type == U32 ? lanes<F<uint32_t>, uint32_t, uint32_t> : type == U64 ? lanes<F<uint64_t>, uint32_t, uint64_t> : nullptr;
}
template <bool DISTANCE> Handler highest(int32_t type) {
  switch (type) {
    case U32: return lanes<Highest<uint32_t, DISTANCE>, uint32_t, uint32_t>;
    case S32: return lanes<Highest<int32_t, DISTANCE>, uint32_t, int32_t>;
    case U64: return lanes<Highest<uint64_t, DISTANCE>, uint32_t, uint64_t>;
    case S64: return lanes<Highest<int64_t, DISTANCE>, uint32_t, int64_t>;
    default: return nullptr;
  }
}
template <template <class> class F> Handler fields(int32_t type) {
  switch (type) {
    case U32: return lanes<F<uint32_t>, uint32_t, uint32_t, uint32_t, uint32_t>;
    case S32: return lanes<F<int32_t>, int32_t, int32_t, uint32_t, uint32_t>;
    case U64: return lanes<F<uint64_t>, uint64_t, uint64_t, uint32_t, uint32_t>;
    case S64: return lanes<F<int64_t>, int64_t, int64_t, uint32_t, uint32_t>;
    default: return nullptr;
  }
}

// Predicates: one bit per lane.
template <class F> void predicates(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  uint32_t* d = w.reg<uint32_t>(i.operand[0]);
  uint32_t value = F()(*w.reg<uint32_t>(i.operand[1]), *w.reg<uint32_t>(i.operand[2]));
  *d = (*d & ~mask) | (value & mask);
}
template <template <class> class F, int N> Handler bitwise(int32_t type) {
  if (type == PRED) {
    if constexpr (N == 2) return predicates<F<uint32_t>>;
    else return predicates<decltype([](uint32_t a, uint32_t) { return F<uint32_t>()(a); })>;
  }
  return integers<F, N>(type);
}
template <class T> void set_predicate(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  const T *a = w.reg<T>(i.operand[1]), *b = w.reg<T>(i.operand[2]);
  uint32_t out = 0;
  auto all = [&](auto how) {
    for (int l = 0; l < LANES; l++) out |= uint32_t(compare<T>(how, a[l], b[l])) << l;
  };
  using std::integral_constant;
  switch (i.mode) {
    case 0: all(integral_constant<int, 0>()); break;
    case 1: all(integral_constant<int, 1>()); break;
    case 2: all(integral_constant<int, 2>()); break;
    case 3: all(integral_constant<int, 3>()); break;
    case 4: all(integral_constant<int, 4>()); break;
    case 5: all(integral_constant<int, 5>()); break;
    default: all(i.mode);
  }
  uint32_t* d = w.reg<uint32_t>(i.operand[0]);
  *d = (*d & ~mask) | (out & mask);
}
template <class T> void set_predicates(Machine&, Warp& w, const Instruction& i, uint32_t mask) {  // of two halves each
  for (int h = 0; h < 2; h++) {
    uint32_t out = 0;
    for (int l = 0; l < LANES; l++)
      out |= uint32_t(compare<T>(i.mode, w.reg<T>(i.operand[1])[2 * l + h], w.reg<T>(i.operand[2])[2 * l + h])) << l;
    if (i.operand[3 * h] < 0) continue;
    uint32_t* d = w.reg<uint32_t>(i.operand[3 * h]);
    *d = (*d & ~mask) | (out & mask);
  }
}
Handler set_predicate_of(int32_t type) {
  switch (type) {
    case U16: return set_predicate<uint16_t>;
    case S16: return set_predicate<int16_t>;
    case U32: return set_predicate<uint32_t>;
    case S32: return set_predicate<int32_t>;
    case U64: return set_predicate<uint64_t>;
    case S64: return set_predicate<int64_t>;
    case F16: return set_predicate<Half>;
    case BF16: return set_predicate<Brain>;
    case F16X2: return set_predicates<Half>;
    case BF16X2: return set_predicates<Brain>;
    case F32: return set_predicate<float>;
    case F64: return set_predicate<double>;
    default: return nullptr;
  }
}
template <class T> void select(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  T* d = w.reg<T>(i.operand[0]);
  const T *a = w.reg<T>(i.operand[1]), *b = w.reg<T>(i.operand[2]);
  const uint32_t p = *w.reg<uint32_t>(i.operand[3]);
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) d[l] = on(p, l) ? a[l] : b[l];
}
Handler by_width(int bytes, Handler two, Handler four, Handler eight) {
  return bytes == 2 ? two : bytes == 4 ? four : bytes == 8 ? eight : nullptr;
}
int bytes_of(int32_t type) {
  switch (type) {
    case U8: case S8: case E4M3: case E5M2: return 1;
    case U16: case S16: case F16: case BF16: return 2;
    case U32: case S32: case F32: case TF32: case F16X2: case BF16X2: case U16X2: case S16X2: return 4;
    case U64: case S64: case F64: case F32X2: return 8;
    default: return 0;
  }
}

uint64_t load(const uint8_t* from, int bytes) {
  uint64_t value = 0;
  std::memcpy(&value, from, bytes);
  return value;
}
// Registers of any width, one lane.
uint64_t get(Warp& w, int32_t place, int bytes, int lane) { return load(w.registers + place + lane * bytes, bytes); }
void set(Warp& w, int32_t place, int bytes, int lane, uint64_t value) {
  std::memcpy(w.registers + place + lane * bytes, &value, bytes);
}

// mov {a, b}, c and mov c, {a, b}: the narrow registers have `width` bytes, `count` of them.
void unpack(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) {
      const uint64_t value = get(w, i.operand[i.count], i.width * i.count, l);
      for (int k = 0; k < i.count; k++)
        if (i.operand[k] >= 0) set(w, i.operand[k], i.width, l, value >> 8 * i.width * k);
    }
}
void pack(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) {
      uint64_t value = 0;
      for (int k = 0; k < i.count; k++) value |= get(w, i.operand[1 + k], i.width, l) << 8 * i.width * k;
      set(w, i.operand[0], i.width * i.count, l, value);
    }
}

template <uint32_t (*F)(uint32_t, uint32_t, uint32_t, uint32_t)>
void table(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  uint32_t* d = w.reg<uint32_t>(i.operand[0]);
  const uint32_t *a = w.reg<uint32_t>(i.operand[1]), *b = w.reg<uint32_t>(i.operand[2]), *c = w.reg<uint32_t>(i.operand[3]);
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) d[l] = F(a[l], b[l], c[l], uint32_t(i.mode));
}
uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t truth) {
  uint32_t out = 0;
  for (int k = 0; k < 8; k++)
    if (truth >> k & 1) out |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
  return out;
}
template <class T> void insert(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  T* d = w.reg<T>(i.operand[0]);
  for (int l = 0; l < LANES; l++)
    if (on(mask, l))
      d[l] = Bfi<T>()(w.reg<T>(i.operand[1])[l], w.reg<T>(i.operand[2])[l], w.reg<uint32_t>(i.operand[3])[l],
                      w.reg<uint32_t>(i.operand[4])[l]);
}

template <class T> void test_number(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  uint32_t* d = w.reg<uint32_t>(i.operand[0]);
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) {
      const int kind = std::fpclassify(w.reg<T>(i.operand[1])[l]);
      const bool tests[6] = {kind != FP_INFINITE && kind != FP_NAN, kind == FP_INFINITE, kind != FP_NAN,
                             kind == FP_NAN, kind == FP_NORMAL, kind == FP_SUBNORMAL};
      *d = (*d & ~(1u << l)) | uint32_t(tests[i.mode]) << l;
    }
}
// set: all bits, or 1.0 of a floating-point result.
template <class T> void set_value(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  const uint32_t yes = i.type == F32 ? 0x3f800000u : i.type == F16 || i.type == F16X2 ? 0x3c00u
                     : i.type == BF16 || i.type == BF16X2 ? 0x3f80u : ~0u;
  const bool two = i.type == F16X2 || i.type == BF16X2;
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) {
      const int at = two ? 2 * l : l;
      const T *a = w.reg<T>(i.operand[1]) + at, *b = w.reg<T>(i.operand[2]) + at;
      uint32_t out = compare<T>(i.mode, a[0], b[0]) ? yes : 0;
      if (two) out |= (compare<T>(i.mode, a[1], b[1]) ? yes : 0) << 16;
      set(w, i.operand[0], bytes_of(i.type), l, out);
    }
}
Handler set_value_of(int32_t type) {
  switch (type) {
    case U16: return set_value<uint16_t>;
    case S16: return set_value<int16_t>;
    case U32: return set_value<uint32_t>;
    case S32: return set_value<int32_t>;
    case U64: return set_value<uint64_t>;
    case S64: return set_value<int64_t>;
    case F16: case F16X2: return set_value<Half>;
    case BF16: case BF16X2: return set_value<Brain>;
    case F32: return set_value<float>;
    case F64: return set_value<double>;
    default: return nullptr;
  }
}
void saturating(Machine&, Warp& w, const Instruction& i, uint32_t mask) {  // add.sat.s32, sub.sat.s32
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) {
      const int64_t a = w.reg<int32_t>(i.operand[1])[l], b = w.reg<int32_t>(i.operand[2])[l];
      const int64_t sum = i.operation == ADD ? a + b : a - b;
      w.reg<int32_t>(i.operand[0])[l] = int32_t(std::clamp<int64_t>(sum, INT32_MIN, INT32_MAX));
    }
}

// add.cc, subc, mad.hi.cc, ...: READS, WRITES, SUBTRACTS, MULTIPLIES, HIGH, as in decode.py. Operand 4: the carry.
template <class T> void carry(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  using Wide = std::conditional_t<sizeof(T) == 4, uint64_t, unsigned __int128>;
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) {
      uint32_t& flag = w.reg<uint32_t>(i.operand[4])[l];
      const Wide in = i.mode & 1 ? flag : 0;
      const T a = w.reg<T>(i.operand[1])[l], b = w.reg<T>(i.operand[2])[l];
      Wide out;
      if (i.mode & 8) {
        using S = std::make_signed_t<T>;
        const bool sign = is_signed_type(i.type);
        const T part = i.mode & 16 ? (sign ? T(MulHi<S>()(S(a), S(b))) : MulHi<T>()(a, b)) : T(Wide(a) * b);
        out = Wide(part) + w.reg<T>(i.operand[3])[l] + in;
      } else out = i.mode & 4 ? Wide(a) - b - in : Wide(a) + b + in;
      w.reg<T>(i.operand[0])[l] = T(out);
      if (i.mode & 2) flag = uint32_t(out >> 8 * sizeof(T)) & 1;
    }
}

// Two numbers of 8 bits to and from f16x2 or bf16x2, and from f32; mode 1: negative ones are zero.
void eights_widen(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) {
      uint32_t out = 0;
      for (int h = 0; h < 2; h++) {
        const double x = widened(uint8_t(w.reg<uint16_t>(i.operand[1])[l] >> 8 * h), i.type == E4M3);
        const uint16_t raw = i.from == F16X2 ? Half(x).raw : Brain(x).raw;
        out |= uint32_t(std::isnan(x) ? 0x7fff : i.mode && !(x > 0) ? 0 : raw) << 16 * h;
      }
      w.reg<uint32_t>(i.operand[0])[l] = out;
    }
}
void eights_narrow(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) {
      uint16_t out = 0;
      for (int h = 0; h < 2; h++) {  // of two f32 the first one becomes the upper half
        double x = i.from == F32    ? w.reg<float>(i.operand[2 - h])[l]
                   : i.from == F16X2 ? double(w.reg<Half>(i.operand[1])[2 * l + h])
                                     : double(w.reg<Brain>(i.operand[1])[2 * l + h]);
        if (i.mode && x <= 0) x = 0;
        out |= uint16_t(narrowed(x, i.type == E4M3) << 8 * h);
      }
      w.reg<uint16_t>(i.operand[0])[l] = out;
    }
}

// cvt. A mode is a rounding (0: .rn, 1: .rz, 2: .rm, 3: .rp, 4: .rna) and flags.
enum { ROUNDING = 7, TO_INTEGRAL = 8, SATURATE = 16, FLUSH = 32, EXACT = 64, RELU = 128 };

bool is_floating(int32_t type) { return type == F16 || type == BF16 || type == F32 || type == F64; }
bool is_signed(int32_t type) { return type == S8 || type == S16 || type == S32 || type == S64; }

int64_t whole(uint64_t raw, int32_t type) {
  switch (type) {
    case U8: return uint8_t(raw);
    case S8: return int8_t(raw);
    case U16: return uint16_t(raw);
    case S16: return int16_t(raw);
    case U32: return uint32_t(raw);
    case S32: return int32_t(raw);
    default: return int64_t(raw);
  }
}
double real(uint64_t raw, int32_t type) {
  switch (type) {
    case F16: return bits<Half>(uint16_t(raw));
    case BF16: return bits<Brain>(uint16_t(raw));
    case F32: return bits<float>(uint32_t(raw));
    default: return bits<double>(raw);
  }
}
Format format_of(int32_t type) {
  return type == F16 ? Format{5, 10} : type == BF16 ? Format{8, 7} : type == F32 ? Format{8, 23} : Format{11, 52};
}
uint64_t saturated_to(double x, int32_t type) {
  switch (type) {
    case U8: return saturated<uint8_t>(x);
    case S8: return uint64_t(int64_t(saturated<int8_t>(x)));
    case U16: return saturated<uint16_t>(x);
    case S16: return uint64_t(int64_t(saturated<int16_t>(x)));
    case U32: return saturated<uint32_t>(x);
    case S32: return uint64_t(int64_t(saturated<int32_t>(x)));
    case U64: return saturated<uint64_t>(x);
    default: return uint64_t(saturated<int64_t>(x));
  }
}
uint64_t converted(uint64_t raw, const Instruction& i) {
  const int rounding = i.mode & ROUNDING;
  if (!is_floating(i.from)) {
    const int64_t value = whole(raw, i.from);
    const bool negative = i.from != U64 && value < 0;
    if (is_floating(i.type)) {
      if (i.type == F32 && rounding == 0) return bits<uint32_t>(i.from == U64 ? float(uint64_t(value)) : float(value));
      const uint64_t size = negative ? uint64_t(0) - uint64_t(value) : uint64_t(value);
      return encoded(negative, size, 0, false, format_of(i.type), rounding);
    }
    if (!(i.mode & SATURATE)) return uint64_t(whole(uint64_t(value), i.type));
    const int bits_ = 8 * bytes_of(i.type) - is_signed(i.type);
    const uint64_t most = bits_ == 64 ? ~uint64_t(0) : (uint64_t(1) << bits_) - 1;
    if (negative) return is_signed(i.type) ? uint64_t(std::max(value, -int64_t(most) - 1)) : 0;
    return std::min(uint64_t(value), most);
  }
  double x = real(raw, i.from);
  if (i.mode & FLUSH && i.from == F32) x = flushed(float(x));
  if (!is_floating(i.type)) return saturated_to(integral(rounding, x), i.type);
  if (i.mode & TO_INTEGRAL) x = integral(rounding, x);
  if (i.mode & SATURATE) x = x > 0 ? std::fmin(x, 1.0) : 0;  // of NaN: 0
  uint64_t out = encoded(x, format_of(i.type), i.mode & TO_INTEGRAL ? 0 : rounding);
  return i.mode & FLUSH && i.type == F32 ? bits<uint32_t>(flushed(bits<float>(uint32_t(out)))) : out;
}
// `count` and `width`: bytes of the source's and of the result's register, which may be wider than their types.
void convert(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) {
      const uint64_t raw = get(w, i.operand[1], i.count, l);
      uint64_t out = converted(raw, i);
      if (i.mode & EXACT && real(raw, i.from) == real(raw, i.from) && real(out, i.type) != real(raw, i.from))
        m.fail(i, "rounds, and does not say how");
      const int bytes = bytes_of(i.type);
      if (!is_signed(i.type) && bytes < 8) out &= (uint64_t(1) << 8 * bytes) - 1;
      set(w, i.operand[0], i.width, l, out);
    }
}
template <class To, class From> struct Narrow { To operator()(From a) const { return To(a); } };
template <class From> struct Widen { float operator()(From a) const { return canonical(float(double(a))); } };
struct Away { uint32_t operator()(uint32_t a) const { return tf32_away(a); } };
struct Even { uint32_t operator()(uint32_t a) const { return tf32_even(a); } };
// cvt.rn.bf16x2.f32 d, a, b: a becomes the upper half.
template <class T> struct Two {
  uint32_t operator()(float a, float b) const { return uint32_t(T(a).raw) << 16 | T(b).raw; }
};
void convert_two(Machine&, Warp& w, const Instruction& i, uint32_t mask) {  // .rz, .relu
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) {
      uint32_t out = 0;
      for (int h = 0; h < 2; h++) {
        const float x = w.reg<float>(i.operand[2 - h])[l];
        if (!(i.mode & RELU && x <= 0)) out |= uint32_t(encoded(x, format_of(i.type == F16X2 ? F16 : BF16), i.mode & ROUNDING)) << 16 * h;
      }
      w.reg<uint32_t>(i.operand[0])[l] = out;
    }
}
Handler convert_of(const Instruction& i) {
  if (i.type == TF32) return (i.mode & ROUNDING) == 4 ? lanes<Away, uint32_t, uint32_t> : lanes<Even, uint32_t, uint32_t>;
  if (i.count != bytes_of(i.from) || i.width != bytes_of(i.type)) return convert;  // wider registers
  if (!i.mode && i.from == F32 && i.type == BF16) return lanes<Narrow<Brain, float>, Brain, float>;
  if (!i.mode && i.from == F32 && i.type == F16) return lanes<Narrow<Half, float>, Half, float>;
  if (!i.mode && i.from == BF16 && i.type == F32) return lanes<Widen<Brain>, float, Brain>;
  if (!i.mode && i.from == F16 && i.type == F32) return lanes<Widen<Half>, float, Half>;
  return convert;
}

// cvta: mode 0 .param, 1 .local, 2 .to.param, 3 .to.local.
void generic_address(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) {
      const uint64_t a = w.reg<uint64_t>(i.operand[1])[l];
      const uint64_t out[4] = {((a >> PARAMETER_BITS) << WINDOW) + MIDDLE + (a & ((1 << PARAMETER_BITS) - 1)),
                               LOCAL_SPACE << LOCAL_BITS | a, 0, a & ((uint64_t(1) << LOCAL_BITS) - 1)};
      w.reg<uint64_t>(i.operand[0])[l] = out[i.mode];
    }
}

// Operations of a warp as a whole --------------------------------------------------------------------------------

void need(Machine& m, Warp& w, const Instruction& i, uint32_t mask, int operand) {
  uint32_t members = 0;
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) members |= w.reg<uint32_t>(i.operand[operand])[l];
  if ((members & w.alive) != mask) m.fail(i, "the lanes of the member mask do not all execute it");
}
// shfl: mode 0 bfly, 1 up, 2 down, 3 idx. Operands: result, source, b, c, member mask, predicate of the result or -1.
void shuffle(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  need(m, w, i, mask, 4);
  uint32_t out[LANES], valid = 0;
  const uint32_t *a = w.reg<uint32_t>(i.operand[1]), *b = w.reg<uint32_t>(i.operand[2]), *c = w.reg<uint32_t>(i.operand[3]);
  for (int l = 0; l < LANES; l++) {
    const int n = b[l] & 31, clamp = c[l] & 31, segment = c[l] >> 8 & 31;
    const int last = (l & segment) | (clamp & ~segment), first = l & segment;
    int from = l;
    bool ok = true;
    switch (i.mode) {
      case 0: from = l ^ n, ok = from <= last; break;
      case 1: from = l - n, ok = from >= last; break;
      case 2: from = l + n, ok = from <= last; break;
      default: from = first | (n & ~segment), ok = from <= last;
    }
    if (ok && on(mask, l) && !on(mask, from)) m.fail(i, "a lane reads from a lane that does not take part");
    out[l] = a[ok ? from : l];
    valid |= uint32_t(ok) << l;
  }
  uint32_t* d = w.reg<uint32_t>(i.operand[0]);
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) d[l] = out[l];
  if (i.operand[5] >= 0) {
    uint32_t* p = w.reg<uint32_t>(i.operand[5]);
    *p = (*p & ~mask) | (valid & mask);
  }
}
// vote: mode 0 all, 1 any, 2 uni, 3 ballot. Operands: result, predicate, member mask.
void vote(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  need(m, w, i, mask, 2);
  uint32_t p = *w.reg<uint32_t>(i.operand[1]);
  if (i.wide) p = ~p;
  p &= mask;
  if (i.mode == 3) {
    for (int l = 0; l < LANES; l++)
      if (on(mask, l)) w.reg<uint32_t>(i.operand[0])[l] = p;
    return;
  }
  const bool yes = i.mode == 0 ? p == mask : i.mode == 1 ? p != 0 : p == mask || p == 0;
  uint32_t* d = w.reg<uint32_t>(i.operand[0]);
  *d = yes ? *d | mask : *d & ~mask;
}
// redux: mode 0 add, 1 min, 2 max, 3 and, 4 or, 5 xor.
template <class T> void reduce(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  need(m, w, i, mask, 2);
  const T* a = w.reg<T>(i.operand[1]);
  T sum = a[__builtin_ctz(mask)];
  for (int l = __builtin_ctz(mask) + 1; l < LANES; l++)
    if (on(mask, l)) switch (i.mode) {
        case 0: sum = Add<T>()(sum, a[l]); break;
        case 1: sum = std::min(sum, a[l]); break;
        case 2: sum = std::max(sum, a[l]); break;
        case 3: sum &= a[l]; break;
        case 4: sum |= a[l]; break;
        default: sum ^= a[l];
      }
  T* d = w.reg<T>(i.operand[0]);
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) d[l] = sum;
}
// The bits of the numbers are looked at, not their order in C++: -0 is below +0, and a NaN loses or wins.
template <bool LARGER, bool WINS> void reduce_floats(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  need(m, w, i, mask, 2);
  const bool size = i.mode & 8;
  const float* a = w.reg<float>(i.operand[1]);
  auto value = [&](int l) { return size ? std::fabs(a[l]) : a[l]; };
  float out = value(__builtin_ctz(mask));
  if (std::isnan(out)) out = bits<float>(0x7fffffffu);
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) out = extreme<float, WINS, LARGER>(out, value(l));
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) w.reg<float>(i.operand[0])[l] = out;
}
void nothing(Machine&, Warp&, const Instruction&, uint32_t) {}
void clock(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {  // no time, but it goes on
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) set(w, i.operand[0], bytes_of(i.type), l, uint64_t(m.executed));
}
void elect(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  need(m, w, i, mask, 2);
  const int leader = __builtin_ctz(mask);
  if (i.operand[0] >= 0)
    for (int l = 0; l < LANES; l++)
      if (on(mask, l)) w.reg<uint32_t>(i.operand[0])[l] = leader;
  uint32_t* p = w.reg<uint32_t>(i.operand[1]);
  *p = (*p & ~mask) | 1u << leader;
}
void active_mask(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) w.reg<uint32_t>(i.operand[0])[l] = mask;
}
void warp_sync(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  need(m, w, i, mask, 0);
  if (mask != w.alive) m.fail(i, "bar.warp.sync of a part of a warp");
  m.warp_sync(w);
}
void fence(Machine& m, Warp& w, const Instruction& i, uint32_t mask) { m.fence(w, i, mask); }

// The layouts of mma.sync fragments: lane l holds rows l / 4 (+ 8) and columns from l % 4 on. Operands: d 0-3, a, b, c.
// The sum is formed in f64 and rounded once; tensor cores add in an order and width that NVIDIA does not tell.
template <class T> void mma(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  if (mask != ALL_LANES) m.fail(i, "mma.sync needs all lanes of a warp");
  constexpr int PER = sizeof(T) == 2 ? 2 : 1;  // values in a register
  const int k_size = i.count, a_registers = 16 * k_size / (LANES * PER), b_registers = 8 * k_size / (LANES * PER);
  const int step = 4 * PER;  // columns of a that one register of all lanes covers
  float a[16][16], b[8][16];
  auto value = [](uint32_t raw, int half) {
    if constexpr (PER == 1) return bits<float>(raw & ~0x1fffu);
    else return float(double(bits<T>(uint16_t(raw >> 16 * half))));
  };
  for (int l = 0; l < LANES; l++) {
    const int row = l / 4, column = l % 4 * PER;
    for (int r = 0; r < a_registers; r++)
      for (int h = 0; h < PER; h++)
        a[row + 8 * (r & 1)][column + h + step * (r >> 1)] = value(w.reg<uint32_t>(i.operand[4 + r])[l], h);
    for (int r = 0; r < b_registers; r++)
      for (int h = 0; h < PER; h++)
        b[row][column + h + step * r] = value(w.reg<uint32_t>(i.operand[4 + a_registers + r])[l], h);
  }
  const int32_t *c = i.operand + 4 + a_registers + b_registers, *d = i.operand;
  if (i.type == F16) {  // two accumulators in a register
    Half out[4][LANES];
    for (int l = 0; l < LANES; l++)
      for (int r = 0; r < 4; r++) {
        const int row = l / 4 + 8 * (r >> 1), column = l % 4 * 2 + (r & 1);
        double sum = 0;
        for (int k = 0; k < k_size; k++) sum += double(a[row][k]) * double(b[column][k]);
        out[r][l] = Half(sum + double(w.reg<Half>(c[r >> 1])[2 * l + (r & 1)]));
      }
    for (int l = 0; l < LANES; l++)
      for (int r = 0; r < 4; r++) w.reg<Half>(d[r >> 1])[2 * l + (r & 1)] = out[r][l];
    return;
  }
  float out[4][LANES];
  for (int l = 0; l < LANES; l++)
    for (int r = 0; r < 4; r++) {
      const int row = l / 4 + 8 * (r >> 1), column = l % 4 * 2 + (r & 1);
      double sum = 0;
      for (int k = 0; k < k_size; k++) sum += double(a[row][k]) * double(b[column][k]);
      out[r][l] = canonical(float(sum + double(w.reg<float>(c[r])[l])));
    }
  for (int r = 0; r < 4; r++) std::memcpy(w.reg<float>(d[r]), out[r], sizeof out[r]);
}

// Of bytes: four in a register; sums wrap, or stop at the ends if `mode` says so.
template <class A, class B> void mma_bytes(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  if (mask != ALL_LANES) m.fail(i, "mma.sync needs all lanes of a warp");
  const int a_registers = i.count / 8, b_registers = i.count / 16;
  int64_t a[16][32], b[8][32];
  for (int l = 0; l < LANES; l++)
    for (int h = 0; h < 4; h++) {
      for (int r = 0; r < a_registers; r++)
        a[l / 4 + 8 * (r & 1)][l % 4 * 4 + h + 16 * (r >> 1)] = A(w.reg<uint32_t>(i.operand[4 + r])[l] >> 8 * h);
      for (int r = 0; r < b_registers; r++)
        b[l / 4][l % 4 * 4 + h + 16 * r] = B(w.reg<uint32_t>(i.operand[4 + a_registers + r])[l] >> 8 * h);
    }
  const int32_t *c = i.operand + 4 + a_registers + b_registers, *d = i.operand;
  int32_t out[4][LANES];
  for (int l = 0; l < LANES; l++)
    for (int r = 0; r < 4; r++) {
      int64_t sum = w.reg<int32_t>(c[r])[l];
      for (int k = 0; k < i.count; k++) sum += a[l / 4 + 8 * (r >> 1)][k] * b[l % 4 * 2 + (r & 1)][k];
      out[r][l] = int32_t(i.mode & SAT ? std::clamp<int64_t>(sum, INT32_MIN, INT32_MAX) : sum);
    }
  for (int r = 0; r < 4; r++) std::memcpy(w.reg<int32_t>(d[r]), out[r], sizeof out[r]);
}
// m8n8k4 of f64: lane l holds a[l / 4][l % 4], b[l % 4][l / 4] and c[l / 4][2 (l % 4)] with the next.
void mma_doubles(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  if (mask != ALL_LANES) m.fail(i, "mma.sync needs all lanes of a warp");
  double out[2][LANES];
  for (int l = 0; l < LANES; l++)
    for (int r = 0; r < 2; r++) {
      double sum = w.reg<double>(i.operand[6 + r])[l];
      for (int k = 0; k < 4; k++)
        sum = std::fma(w.reg<double>(i.operand[4])[l / 4 * 4 + k], w.reg<double>(i.operand[5])[(l % 4 * 2 + r) * 4 + k], sum);
      out[r][l] = sum;
    }
  for (int r = 0; r < 2; r++) std::memcpy(w.reg<double>(i.operand[r]), out[r], sizeof out[r]);
}

// Of e4m3 and e5m2: four in a register, as bytes.
void mma_eights(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  if (mask != ALL_LANES) m.fail(i, "mma.sync needs all lanes of a warp");
  const int a_registers = i.count / 8, b_registers = i.count / 16;
  const int32_t *a_at = i.operand + 4, *b_at = a_at + a_registers, *c_at = b_at + b_registers;
  double a[16][32], b[8][32];
  for (int l = 0; l < LANES; l++)
    for (int h = 0; h < 4; h++) {
      for (int r = 0; r < a_registers; r++)
        a[l / 4 + 8 * (r & 1)][l % 4 * 4 + h + 16 * (r >> 1)] =
            widened(uint8_t(w.reg<uint32_t>(a_at[r])[l] >> 8 * h), i.from == E4M3);
      for (int r = 0; r < b_registers; r++)
        b[l / 4][l % 4 * 4 + h + 16 * r] = widened(uint8_t(w.reg<uint32_t>(b_at[r])[l] >> 8 * h), i.width == E4M3);
    }
  double out[4][LANES];
  for (int l = 0; l < LANES; l++)
    for (int r = 0; r < 4; r++) {
      const int row = l / 4 + 8 * (r >> 1), column = l % 4 * 2 + (r & 1);
      double sum = 0;
      for (int k = 0; k < i.count; k++) sum += a[row][k] * b[column][k];
      out[r][l] = sum + (i.type == F16 ? double(w.reg<Half>(c_at[r >> 1])[2 * l + (r & 1)]) : w.reg<float>(c_at[r])[l]);
    }
  for (int l = 0; l < LANES; l++)
    for (int r = 0; r < 4; r++) {
      if (i.type == F16) w.reg<Half>(i.operand[r >> 1])[2 * l + (r & 1)] = Half(out[r][l]);
      else w.reg<float>(i.operand[r])[l] = canonical(float(out[r][l]));
    }
}

// mma.sync.block_scale: numbers of 8 or 4 bits. Operands 14 and 15 hold the scales of a and b; `target` of them (a byte each)
// belong to a row, or a column. Two threads of four have those of rows l / 4 and l / 4 + 8, one has those of a column; `mode`
// says which: the first byte (2 bits) and the threads (2 bits), of a and then of b. `block_scope`: the scales are ue4m3.
void mma_scaled(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  if (mask != ALL_LANES) m.fail(i, "mma.sync needs all lanes of a warp");
  const bool fours = i.from == E2M1;
  const int per = fours ? 8 : 4, bits_ = 32 / per, blocks = i.target;
  auto value = [&](uint32_t raw, int h, int32_t type) {
    return fours ? widened_four(raw >> bits_ * h & 15) : widened(uint8_t(raw >> bits_ * h), type == E4M3);
  };
  double a[16][64], b[8][64], scale_a[16][4], scale_b[8][4];
  for (int l = 0; l < LANES; l++)
    for (int h = 0; h < per; h++) {
      for (int r = 0; r < 4; r++)
        a[l / 4 + 8 * (r & 1)][l % 4 * per + h + 4 * per * (r >> 1)] = value(w.reg<uint32_t>(i.operand[4 + r])[l], h, i.from);
      for (int r = 0; r < 2; r++)
        b[l / 4][l % 4 * per + h + 4 * per * r] = value(w.reg<uint32_t>(i.operand[8 + r])[l], h, i.width);
    }
  const int byte_a = i.mode & 3, threads_a = i.mode >> 2 & 3, byte_b = i.mode >> 4 & 3, thread_b = i.mode >> 6 & 3;
  for (int j = 0; j < blocks; j++)
    for (int n = 0; n < 8; n++) {
      for (int h = 0; h < 2; h++)
        scale_a[n + 8 * h][j] = scale_of(uint8_t(w.reg<uint32_t>(i.operand[14])[4 * n + 2 * threads_a + h] >> 8 * (byte_a + j)), !i.block_scope);
      scale_b[n][j] = scale_of(uint8_t(w.reg<uint32_t>(i.operand[15])[4 * n + thread_b] >> 8 * (byte_b + j)), !i.block_scope);
    }
  float out[4][LANES];
  for (int l = 0; l < LANES; l++)
    for (int r = 0; r < 4; r++) {
      const int row = l / 4 + 8 * (r >> 1), column = l % 4 * 2 + (r & 1);
      const double sum = scaled_product(a[row], b[column], i.count, scale_a[row], scale_b[column], blocks);
      out[r][l] = canonical(float(sum + double(w.reg<float>(i.operand[10 + r])[l])));
    }
  for (int r = 0; r < 4; r++) std::memcpy(w.reg<float>(i.operand[r]), out[r], sizeof out[r]);
}

// Memory -----------------------------------------------------------------------------------------------------------

// Bytes in memory are of `type`, `count` of them per lane; registers have `width` bytes.
void fill(Warp& w, const Instruction& i, int lane, const uint8_t* from) {
  const int bytes = bytes_of(i.type);
  if (bytes == 4 && i.width == 4 && from) {  // most loads
    for (int k = 0; k < i.count; k++)
      if (i.operand[k] >= 0) std::memcpy(w.registers + i.operand[k] + 4 * lane, from + 4 * k, 4);
    return;
  }
  for (int k = 0; k < i.count; k++) {
    uint64_t value = from ? load(from + k * bytes, bytes) : ~uint64_t(0);
    if (is_signed(i.type)) value = uint64_t(whole(value, i.type));
    if (i.operand[k] >= 0) set(w, i.operand[k], i.width, lane, value);
  }
}
void take(Warp& w, const Instruction& i, int lane, uint8_t* to) {
  const int bytes = bytes_of(i.type);
  if (bytes == 4 && i.width == 4) {
    for (int k = 0; k < i.count; k++) std::memcpy(to + 4 * k, w.registers + i.operand[k] + 4 * lane, 4);
    return;
  }
  for (int k = 0; k < i.count; k++) std::memcpy(to + k * bytes, w.registers + i.operand[k] + lane * i.width, bytes);
}

// Memory of a lane. Its generic addresses have a mark.
template <bool STORE> void local(Machine& m, Warp& w, const Instruction& i, int lane, uint64_t address) {
  const int size = bytes_of(i.type) * i.count;
  uint8_t data[32];
  uint8_t* p = m.local(w, i, lane, address, size);
  if (STORE) take(w, i, lane, p ? p : data);
  else fill(w, i, lane, p);
}
template <bool STORE> void every_local(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) local<STORE>(m, w, i, l, address_of(w, i, l));
}
template <bool STORE> void global(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  const int size = bytes_of(i.type) * i.count;
  uint64_t addresses[LANES];
  for (int l = 0; l < LANES; l++) {
    addresses[l] = address_of(w, i, l);
    if (on(mask, l) && addresses[l] >> LOCAL_BITS == LOCAL_SPACE) {
      local<STORE>(m, w, i, l, addresses[l] & ((uint64_t(1) << LOCAL_BITS) - 1));
      mask &= ~(1u << l);
    }
  }
  m.count_sectors(i, addresses, mask, size);
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) {
      uint8_t data[32];
      if (STORE) take(w, i, l, data);
      uint8_t* p = i.order == WEAK ? m.global(w, i, l, addresses[l], size, STORE, STORE ? data : nullptr)
                                   : m.strong(w, i, l, addresses[l], size, !STORE, STORE);
      if (!STORE && i.wide & WORD && p) {
        const Outside part = m.outside(addresses[l], size);
        uint8_t inside[4] = {};
        std::memcpy(inside + part.before, p + part.before, 4 - part.before - part.after);
        fill(w, i, l, inside);
      } else if (!STORE) fill(w, i, l, p);
      else if (p) std::memcpy(p, data, size);
    }
}
template <bool STORE> void shared(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  const int size = bytes_of(i.type) * i.count;
  uint32_t addresses[LANES];
  for (int l = 0; l < LANES; l++) addresses[l] = uint32_t(address_of(w, i, l));
  m.count_wavefronts(i, addresses, mask, size);
  // Many lanes read the same address. The detector sees two of them, and that is "several".
  uint32_t seen[64], times[64];
  if (!STORE) std::fill(seen, seen + 64, ~0u);
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) {
      uint8_t data[32];
      if (STORE) take(w, i, l, data);
      const int slot = addresses[l] >> __builtin_ctz(size) & 63;
      if (!STORE && seen[slot] == addresses[l] && ++times[slot] > 2) {
        fill(w, i, l, uint64_t(addresses[l]) + size <= w.block->shared.size() ? &w.block->shared[addresses[l]] : nullptr);
        continue;
      }
      if (!STORE && seen[slot] != addresses[l]) seen[slot] = addresses[l], times[slot] = 1;
      uint8_t* p = m.shared(w, i, l, addresses[l], size, STORE, STORE ? data : nullptr);
      if (!STORE) fill(w, i, l, p);
      else if (p) std::memcpy(p, data, size);
    }
}

// A sum of f32 in global memory is formed as .ftz, in shared memory it is not.
template <class T, bool SHARED> T after(const Instruction& i, T old, T b, T c) {
  if constexpr (std::is_same_v<T, float> && !SHARED)
    if (i.mode == 0) return Flushed<Add<float>>()(old, b);
  return changed<T>(i.mode, old, b, c);
}
template <class T, bool SHARED> void atomic(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  uint64_t addresses[LANES];
  for (int l = 0; l < LANES; l++) addresses[l] = address_of(w, i, l);
  if (!SHARED) m.count_sectors(i, addresses, mask, sizeof(T));
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) {
      Outside part;
      if (i.wide & WORD) part = m.outside(addresses[l], sizeof(T));
      uint8_t* p = SHARED ? m.shared_strong(w, i, l, uint32_t(addresses[l]), sizeof(T))
                          : m.strong(w, i, l, addresses[l], sizeof(T), true, true);
      if (!p) continue;
      T old, b = w.reg<T>(i.operand[1])[l], c = b;
      if (i.mode == 7) c = w.reg<T>(i.operand[2])[l];
      uint8_t bytes[sizeof(T)] = {};
      std::memcpy(bytes + part.before, p + part.before, sizeof(T) - part.before - part.after);
      std::memcpy(&old, bytes, sizeof old);
      const T value = after<T, SHARED>(i, old, b, c);
      std::memcpy(bytes, &value, sizeof value);
      std::memcpy(p + part.before, bytes + part.before, sizeof(T) - part.before - part.after);
      if (!part.keeps(bytes, sizeof(T))) m.report(OUT_OF_BOUNDS, w, i, l, -1, -2, int64_t(addresses[l]));
      if (i.operand[0] >= 0) w.reg<T>(i.operand[0])[l] = old;
    }
}
// atom.v2, .v4: every element for itself.
template <class T> void atomics(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  uint64_t addresses[LANES];
  for (int l = 0; l < LANES; l++) addresses[l] = address_of(w, i, l);
  m.count_sectors(i, addresses, mask, int(sizeof(T)) * i.count);
  for (int l = 0; l < LANES; l++)
    for (int k = 0; k < i.count && on(mask, l); k++) {
      T old, b = w.reg<T>(i.operand[i.count + k])[l];
      uint8_t* p = m.strong(w, i, l, addresses[l] + k * sizeof(T), sizeof(T), true, true);
      if (!p) continue;
      std::memcpy(&old, p, sizeof old);
      const T value = after<T, false>(i, old, b, b);
      std::memcpy(p, &value, sizeof value);
      if (i.operand[k] >= 0) w.reg<T>(i.operand[k])[l] = old;
    }
}
Handler atomics_of(int32_t type) {
  switch (type) {
    case F32: return atomics<float>;
    case F16: return atomics<Half>;
    case BF16: return atomics<Brain>;
    case F16X2: return atomics<Two16<Half>>;
    case BF16X2: return atomics<Two16<Brain>>;
    default: return nullptr;
  }
}
template <bool SHARED> Handler atomic_of(int32_t type) {
  switch (type) {
    case U32: return atomic<uint32_t, SHARED>;
    case S32: return atomic<int32_t, SHARED>;
    case U64: return atomic<uint64_t, SHARED>;
    case S64: return atomic<int64_t, SHARED>;
    case F32: return atomic<float, SHARED>;
    case F64: return atomic<double, SHARED>;
    case F16: return atomic<Half, SHARED>;
    case BF16: return atomic<Brain, SHARED>;
    case U16: return atomic<uint16_t, SHARED>;
    case F16X2: return atomic<Two16<Half>, SHARED>;
    case BF16X2: return atomic<Two16<Brain>, SHARED>;
    default: return nullptr;
  }
}

// cp.async: `count` bytes from the second address to the first; the last operand before the addresses is the number of
// bytes to read, the rest is zero.
void copy(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  uint64_t from[LANES];
  uint32_t reading = 0;
  for (int l = 0; l < LANES; l++) {
    from[l] = address_of(w, i, l);
    if (on(mask, l) && w.reg<uint32_t>(i.operand[0])[l]) reading |= 1u << l;
  }
  if (reading) m.count_sectors(i, from, reading, i.count);
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) {
      uint8_t data[16] = {};
      const int size = std::min<int>(w.reg<uint32_t>(i.operand[0])[l], i.count);
      if (size) {
        const uint8_t* p = m.global(w, i, l, from[l], i.count, false, nullptr);
        if (p) std::memcpy(data, p, size);
        else std::memset(data, 0xff, size);
      }
      const uint32_t to = w.reg<uint32_t>(i.operand[ADDRESS2])[l] + uint32_t(i.offset2);
      m.start_copy(w, i, l, to, i.count, data);
    }
}
void commit(Machine&, Warp& w, const Instruction&, uint32_t mask) {
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) w.groups[l]++;
}
// Waits until at most `count` groups are pending; -1: for all copies, committed or not.
void wait(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  auto stays = [&](const Copy& c) {
    return !on(mask, c.lane) || (i.count >= 0 && c.group + uint32_t(i.count) >= w.groups[c.lane]);
  };
  auto end = std::stable_partition(w.copies.begin(), w.copies.end(), stays);
  for (auto c = end; c != w.copies.end(); ++c) m.land(w, *c);
  w.copies.erase(end, w.copies.end());
}

// ldmatrix and stmatrix: 8 x 8 matrices of 16 bits; lanes 8 k .. 8 k + 7 give the row addresses of matrix k. Lane l has
// row l / 4, columns 2 (l % 4) and the next; with .trans (mode 1) rows and columns change places.
template <bool STORE> void matrix(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  if (mask != ALL_LANES) m.fail(i, "needs all lanes of a warp");
  uint32_t addresses[LANES];
  for (int l = 0; l < LANES; l++) addresses[l] = uint32_t(address_of(w, i, l));
  for (int k = 0; k < i.count; k++) {
    m.count_wavefronts(i, addresses, 0xffu << 8 * k, 16);
    uint16_t values[8][8];
    uint32_t* r = w.reg<uint32_t>(i.operand[k]);
    auto each = [&](auto move) {
      for (int l = 0; l < LANES; l++)
        for (int h = 0; h < 2; h++) {
          const int row = l / 4, column = l % 4 * 2 + h;
          move(i.mode ? values[column][row] : values[row][column], l, h);
        }
    };
    if (STORE) each([&](uint16_t& v, int l, int h) { v = uint16_t(r[l] >> 16 * h); });
    for (int row = 0; row < 8; row++) {
      uint8_t* line = reinterpret_cast<uint8_t*>(values[row]);
      uint8_t* p = m.shared(w, i, 8 * k + row, addresses[8 * k + row], 16, STORE, STORE ? line : nullptr);
      if (STORE && p) std::memcpy(p, line, 16);
      if (!STORE) p ? std::memcpy(line, p, 16) : std::memset(line, 0xff, 16);
    }
    if (!STORE) each([&](uint16_t& v, int l, int h) { r[l] = h ? (r[l] & 0xffff) | uint32_t(v) << 16 : v; });
  }
}

void control(Machine&, Warp&, const Instruction&, uint32_t) {}  // Machine::step does these

// A parameter of a call, and text in global memory.
uint64_t parameter(Machine& m, Warp& w, const Instruction& i, int lane, int number) {
  uint64_t value = 0;
  if (const uint8_t* p = m.local(w, i, lane, uint64_t(i.operand[number]), 8)) std::memcpy(&value, p, 8);
  return value;
}
std::string text(Machine& m, Warp& w, const Instruction& i, int lane, uint64_t address) {
  std::string out;
  while (const uint8_t* p = m.global(w, i, lane, address++, 1, false, nullptr)) {
    if (!*p) break;
    out += char(*p);
  }
  return out;
}
// vprintf: the arguments lie one after the other in memory of the lane, each aligned to its size.
void print(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  for (int l = 0; l < LANES; l++) {
    if (!on(mask, l)) continue;
    const std::string format = text(m, w, i, l, parameter(m, w, i, l, 0));
    uint64_t at = parameter(m, w, i, l, 1) & ((uint64_t(1) << LOCAL_BITS) - 1);
    std::string out;
    for (size_t k = 0; k < format.size(); k++) {
      if (format[k] != '%') { out += format[k]; continue; }
      size_t end = k + 1;
      while (end < format.size() && std::strchr("0123456789+-# .lhz", format[end])) end++;
      const std::string one = format.substr(k, end - k + 1);
      const char kind = end < format.size() ? format[end] : '%';
      k = end;
      if (kind == '%') { out += '%'; continue; }
      const bool real = std::strchr("fFeEgGaA", kind), large = real || kind == 's' || kind == 'p' || one.find('l') != one.npos;
      const int size = large ? 8 : 4;
      at = (at + size - 1) / size * size;
      uint64_t raw = 0;
      if (const uint8_t* p = m.local(w, i, l, at, size)) std::memcpy(&raw, p, size);
      at += size;
      char word[128];
      if (kind == 's') out += text(m, w, i, l, raw);
      else if (real) std::snprintf(word, sizeof word, one.c_str(), bits<double>(raw)), out += word;
      else if (large) std::snprintf(word, sizeof word, one.c_str(), raw), out += word;
      else std::snprintf(word, sizeof word, one.c_str(), uint32_t(raw)), out += word;
    }
    std::fputs(out.c_str(), stdout);
  }
  std::fflush(stdout);
}
void assertion(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  const int l = __builtin_ctz(mask);
  m.fail(i, "assertion failed: " + text(m, w, i, l, parameter(m, w, i, l, 0)));
}

template <template <class> class F> Handler mixed2(int32_t from) {
  return from == F16 ? lanes<F<Half>, float, Half, float> : from == BF16 ? lanes<F<Brain>, float, Brain, float> : nullptr;
}

}  // namespace

Handler handler_of(const Instruction& i) {
  const bool mixed = i.type == F32 && (i.from == F16 || i.from == BF16);
  switch (i.operation) {
    case MOV:
      if (i.type == PRED) return predicates<decltype([](uint32_t a, uint32_t) { return a; })>;
      return by_width(bytes_of(i.type), lanes<Move<uint16_t>, uint16_t, uint16_t>,
                      lanes<Move<uint32_t>, uint32_t, uint32_t>, lanes<Move<uint64_t>, uint64_t, uint64_t>);
    case PACK: return pack;
    case UNPACK: return unpack;
    case TESTP: return i.type == F32 ? test_number<float> : test_number<double>;
    case SET: return set_value_of(i.from);
    case NOTHING: return nothing;
    case ADD: if (i.type == S32 && i.mode & SAT) return saturating;
      return mixed ? mixed2<MixedAdd>(i.from) : numbers<Add, 2>(i);
    case SUB: if (i.type == S32 && i.mode & SAT) return saturating;
      return mixed ? mixed2<MixedSub>(i.from) : numbers<Sub, 2>(i);
    case MUL: return numbers<Mul, 2>(i);
    case MULHI: return integers<MulHi, 2>(i.type);
    case MULWIDE: return widening<MulWide, false>(i.type);
    case MAD: return integers<Mad, 3>(i.type);
    case MADHI: return integers<MadHi, 3>(i.type);
    case MADWIDE: return widening<MadWide, true>(i.type);
    case DIV: {
      Handler found = integers<Div, 2>(i.type);
      return found ? found : wide_floats<Div, 2>(i);
    }
    case REM: return integers<Rem, 2>(i.type);
    case ABS: return numbers<Abs, 1>(i);
    case NEG: return numbers<Neg, 1>(i);
    case MIN: if (i.count == 3) return i.mode & NAN_WINS ? wide_floats<Min3Nan, 3>(i) : wide_floats<Min3, 3>(i);
      if (i.mode & SIGN_OF_BOTH) return i.mode & NAN_WINS ? floats<SmallerNan, 2>(i) : floats<Smaller, 2>(i);
      return i.mode & NAN_WINS ? floats<MinNan, 2>(i) : numbers<Min, 2>(i);
    case MAX: if (i.count == 3) return i.mode & NAN_WINS ? wide_floats<Max3Nan, 3>(i) : wide_floats<Max3, 3>(i);
      if (i.mode & SIGN_OF_BOTH) return i.mode & NAN_WINS ? floats<LargerNan, 2>(i) : floats<Larger, 2>(i);
      return i.mode & NAN_WINS ? floats<MaxNan, 2>(i) : numbers<Max, 2>(i);
    case AND: return bitwise<And, 2>(i.type);
    case OR: return bitwise<Or, 2>(i.type);
    case XOR: return bitwise<Xor, 2>(i.type);
    case NOT: return bitwise<Not, 1>(i.type);
    case CARRY: return bytes_of(i.type) == 4 ? carry<uint32_t> : carry<uint64_t>;
    case SHL: return shifts<Shl>(i.type);
    case SHR: return shifts<Shr>(i.type);
    case SHF_LEFT: return i.mode ? lanes<Funnel<true, true>, uint32_t, uint32_t, uint32_t, uint32_t>
                                 : lanes<Funnel<true, false>, uint32_t, uint32_t, uint32_t, uint32_t>;
    case SHF_RIGHT: return i.mode ? lanes<Funnel<false, true>, uint32_t, uint32_t, uint32_t, uint32_t>
                                  : lanes<Funnel<false, false>, uint32_t, uint32_t, uint32_t, uint32_t>;
    case BFE: return fields<Bfe>(i.type);
    case BFI: return i.type == U32 ? insert<uint32_t> : i.type == U64 ? insert<uint64_t> : nullptr;
    case BREV: return i.type == U32 || i.type == U64 ? integers<Brev, 1>(i.type) : nullptr;
    case CLZ: return counting<Clz>(i.type);
    case POPC: return counting<Popc>(i.type);
    case BFIND: return i.mode ? highest<true>(i.type) : highest<false>(i.type);
    case PRMT: return lanes<Prmt, uint32_t, uint32_t, uint32_t, uint32_t>;
    case LOP3: return table<lop3>;
    case SELP: return by_width(bytes_of(i.type), select<uint16_t>, select<uint32_t>, select<uint64_t>);
    case SETP: return set_predicate_of(i.type);
    case FMA:
      if (mixed) return i.from == F16 ? lanes<MixedFma<Half>, float, Half, Half, float>
                                      : lanes<MixedFma<Brain>, float, Brain, Brain, float>;
      return floats<Fma, 3>(i);
    case SQRT: return wide_floats<Sqrt, 1>(i);
    case RSQRT: return wide_floats<Rsqrt, 1>(i);
    case RCP: return wide_floats<Rcp, 1>(i);
    case EX2: return floats<Ex2, 1>(i);
    case LG2: return wide_floats<Lg2, 1>(i);
    case SIN: return wide_floats<Sin, 1>(i);
    case COS: return wide_floats<Cos, 1>(i);
    case TANH: return floats<Tanh, 1>(i);
    case COPYSIGN: return wide_floats<CopySign, 2>(i);
    case CVT: return convert_of(i);
    case CVT_PAIR: if (i.mode) return convert_two;
      return i.type == F16X2 ? lanes<Two<Half>, uint32_t, float, float> : lanes<Two<Brain>, uint32_t, float, float>;
    case EIGHTS_WIDEN: return eights_widen;
    case EIGHTS_NARROW: return eights_narrow;
    case CVTA: return generic_address;
    case CLOCK: return clock;
    case SHFL: return shuffle;
    case VOTE: return vote;
    case REDUX:
      if (i.type == F32) {
        if (i.mode & 16) return (i.mode & 7) == 2 ? reduce_floats<true, true> : reduce_floats<false, true>;
        return (i.mode & 7) == 2 ? reduce_floats<true, false> : reduce_floats<false, false>;
      }
      return i.type == S32 ? reduce<int32_t> : reduce<uint32_t>;
    case ELECT: return elect;
    case ACTIVEMASK: return active_mask;
    case LOAD_GLOBAL: return global<false>;
    case STORE_GLOBAL: return global<true>;
    case LOAD_SHARED: return shared<false>;
    case STORE_SHARED: return shared<true>;
    case LOAD_LOCAL: return every_local<false>;
    case STORE_LOCAL: return every_local<true>;
    case ATOM_GLOBAL: return i.count > 1 ? atomics_of(i.type) : atomic_of<false>(i.type);
    case ATOM_SHARED: return atomic_of<true>(i.type);
    case CP_ASYNC: return copy;
    case CP_COMMIT: return commit;
    case CP_WAIT: return wait;
    case LDMATRIX: return matrix<false>;
    case STMATRIX: return matrix<true>;
    case MMA:
      if (i.type == F64) return mma_doubles;
      if (i.from == E4M3 || i.from == E5M2) return mma_eights;
      if (i.from == S8) return i.block_scope ? mma_bytes<int8_t, uint8_t> : mma_bytes<int8_t, int8_t>;
      if (i.from == U8) return i.block_scope ? mma_bytes<uint8_t, int8_t> : mma_bytes<uint8_t, uint8_t>;
      return i.from == F16 ? mma<Half> : i.from == BF16 ? mma<Brain> : i.from == TF32 ? mma<float> : nullptr;
    case MMA_SCALED: return mma_scaled;
    case FENCE: return fence;
    case WARP_SYNC: return warp_sync;
    case BARRIER: case BRANCH: case BRANCH_TABLE: case EXIT: case TRAP: return control;
    case PRINT: return print;
    case ASSERT: return assertion;
    default: {
      Handler found = tensor_handler_of(i);
      return found ? found : copy_handler_of(i);
    }
  }
}
