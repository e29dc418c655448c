// Number formats and the arithmetic of one lane. Results are rounded as PTX asks (.rn unless it says otherwise); where
// PTX allows an error (div.full, ex2.approx, ...) they are as exact as the C library's.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

template <class To, class From> To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// The float next to x towards zero with an odd last bit, unless x is a float: rounding it once more is then the same
// as rounding x once.
inline float to_odd(double x) {
  float f = float(x);
  if (double(f) == x || std::isnan(x) || std::isinf(f)) return f;
  uint32_t u = bits<uint32_t>(f);
  if (std::fabs(double(f)) > std::fabs(x)) u--;
  return bits<float>(u | 1);
}

// A binary format: exponent and mantissa bits, the largest exponent field for infinity and NaN.
struct Format {
  int exponent, mantissa;
};

// The number +-(m + a little, if `more`) 2^e in a format, rounded once. Roundings are in the order of decode.ROUNDINGS:
// nearest even, to zero, down, up.
inline uint64_t encoded(bool negative, uint64_t m, int e, bool more, Format f, int rounding) {
  const uint64_t sign = uint64_t(negative) << (f.exponent + f.mantissa);
  if (m == 0) return sign;
  const int least = 2 - (1 << (f.exponent - 1)) - f.mantissa;  // of the last bit of a subnormal
  const int last = std::max(e + 63 - __builtin_clzll(m) - f.mantissa, least), shift = last - e;
  uint64_t kept;
  bool half = false;
  if (shift <= 0) kept = m << -shift;
  else {
    kept = shift > 63 ? 0 : m >> shift;
    half = shift <= 64 && (m >> (shift - 1) & 1);
    more |= shift > 64 || (m & ((uint64_t(1) << (shift - 1)) - 1));
  }
  const bool up = rounding == 0 ? half && (more || (kept & 1)) : rounding > 1 && negative == (rounding == 2) && (half || more);
  // The leading bit of `kept` counts as one in the exponent field, and so does a carry.
  const uint64_t raw = kept + up + (uint64_t(last - least) << f.mantissa);
  const uint64_t infinite = ((uint64_t(1) << f.exponent) - 1) << f.mantissa;
  const bool outwards = rounding == 0 || (rounding > 1 && negative == (rounding == 2));
  return sign | (raw < infinite ? raw : outwards ? infinite : infinite - 1);
}
inline uint64_t encoded(double x, Format f, int rounding) {
  const uint64_t u = bits<uint64_t>(x);
  const uint64_t infinite = ((uint64_t(1) << f.exponent) - 1) << f.mantissa;
  if (std::isnan(x)) return infinite | ((uint64_t(1) << f.mantissa) - 1);
  if (std::isinf(x)) return uint64_t(u >> 63) << (f.exponent + f.mantissa) | infinite;
  const int field = int(u >> 52 & 0x7ff);
  const uint64_t m = (u & ((uint64_t(1) << 52) - 1)) | uint64_t(field > 0) << 52;
  return encoded(u >> 63, m, (field ? field : 1) - 1075, false, f, rounding);
}

// Arithmetic on a GPU gives one NaN, and not that of the processor here, which has a sign.
inline float canonical(float x) { return x != x ? bits<float>(0x7fffffffu) : x; }
inline double canonical(double x) { return x; }

struct Half {
  uint16_t raw;
  Half() = default;
  explicit Half(double x) : raw(x != x ? 0x7fff : bits<uint16_t>(_Float16(x))) {}
  explicit Half(float x) : raw(x != x ? 0x7fff : bits<uint16_t>(_Float16(x))) {}
  operator double() const { return double(float(bits<_Float16>(raw))); }
};

struct Brain {
  uint16_t raw;
  Brain() = default;
  explicit Brain(double x) : Brain(to_odd(x)) {}
  explicit Brain(float x) {
    uint32_t u = bits<uint32_t>(x);
    raw = std::isnan(x) ? 0x7fff : uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
  }
  operator double() const { return double(bits<float>(uint32_t(raw) << 16)); }
};

inline float flushed(float x) { return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.f, x) : x; }

// e4m3 and e5m2, by the value of every byte: finite numbers come first, in order. The widest finite byte of each:
inline int most_of_eight(bool e4m3) { return e4m3 ? 0x7e : 0x7b; }
inline double widened(uint8_t raw, bool e4m3) {
  if (!e4m3) return bits<Half>(uint16_t(raw << 8));
  const int field = raw >> 3 & 15, rest = raw & 7;
  const double size = (raw & 0x7f) == 0x7f ? std::nan("") : field ? std::ldexp(8 + rest, field - 10) : std::ldexp(rest, -9);
  return raw & 0x80 ? -size : size;
}
// To the nearest, even; beyond the range, its end (.satfinite).
inline uint8_t narrowed(double x, bool e4m3) {
  if (std::isnan(x)) return 0x7f;
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  int low = 0, high = most_of_eight(e4m3);
  x = std::fabs(x);
  if (x >= widened(uint8_t(high), e4m3)) return sign | uint8_t(high);
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (widened(uint8_t(middle), e4m3) <= x ? low : high) = middle;
  }
  const double below = x - widened(uint8_t(low), e4m3), above = widened(uint8_t(high), e4m3) - x;
  return sign | uint8_t(below < above || (below == above && low % 2 == 0) ? low : high);
}

// Four bits, e2m1; and the scale of a block of numbers, a power of 2 (ue8m0) or a number without a sign (ue4m3).
inline double widened_four(uint32_t raw) {
  constexpr double sizes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return raw & 8 ? -sizes[raw & 7] : sizes[raw & 7];
}
inline double scale_of(uint8_t raw, bool power) {
  if (!power) return widened(raw & 0x7f, true);
  return raw == 0xff ? std::nan("") : std::ldexp(1.0, int(raw) - 127);
}
// Products of blocks of a row and a column, each with its scale.
template <class A> double scaled_product(const A* a, const A* b, int depth, const double* scale_a, const double* scale_b, int blocks) {
  double sum = 0;
  for (int j = 0; j < blocks; j++) {
    double part = 0;
    for (int k = depth / blocks * j; k < depth / blocks * (j + 1); k++) part += double(a[k]) * double(b[k]);
    sum += part * scale_a[j] * scale_b[j];
  }
  return sum;
}

// tf32 keeps 10 of 23 mantissa bits. cvt.rna rounds half away from zero; mma ignores the low bits.
inline uint32_t tf32_away(uint32_t u) { return (u & 0x7f800000) == 0x7f800000 ? u : (u + 0x1000) & ~0x1fffu; }
inline uint32_t tf32_even(uint32_t u) {
  return (u & 0x7f800000) == 0x7f800000 ? u : (u + 0xfff + (u >> 13 & 1)) & ~0x1fffu;
}

template <class T> constexpr bool is_float = !std::is_integral_v<T>;
template <class T> constexpr int width_of = 8 * sizeof(T);
// Integers are computed without sign, so that overflow wraps. 16-bit products are made of 32-bit numbers for the same
// reason: C++ promotes them to int.
template <class T> using Wrap = std::conditional_t<(sizeof(T) < 4), uint32_t, std::make_unsigned_t<T>>;
template <class T>
using Twice = std::conditional_t<
    sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
    std::conditional_t<sizeof(T) == 4, std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>,
                       std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>>>;

// Arithmetic on f16 and bf16 goes through double, in which products of two are exact.
template <class T> using Exact = std::conditional_t<sizeof(T) == 2 && is_float<T>, double, T>;
template <class T> using Unsigned = std::make_unsigned_t<T>;

template <class T> struct Add {
  T operator()(T a, T b) const {
    if constexpr (is_float<T>) return T(canonical(Exact<T>(a) + Exact<T>(b)));
    else return T(Wrap<T>(a) + Wrap<T>(b));
  }
};
template <class T> struct Sub {
  T operator()(T a, T b) const {
    if constexpr (is_float<T>) return T(canonical(Exact<T>(a) - Exact<T>(b)));
    else return T(Wrap<T>(a) - Wrap<T>(b));
  }
};
template <class T> struct Mul {
  T operator()(T a, T b) const {
    if constexpr (is_float<T>) return T(canonical(Exact<T>(a) * Exact<T>(b)));
    else return T(Wrap<T>(a) * Wrap<T>(b));
  }
};
template <class T> struct Div {
  T operator()(T a, T b) const {
    if constexpr (is_float<T>) return T(canonical(Exact<T>(a) / Exact<T>(b)));
    else if (b == 0) return T(~T(0));  // PTX leaves it open; this is what GPUs give
    else if (std::is_signed_v<T> && b == T(-1)) return T(Wrap<T>(0) - Wrap<T>(a));
    else return T(a / b);
  }
};
template <class T> struct Rem {
  T operator()(T a, T b) const {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == T(-1)) return 0;
    return T(a % b);
  }
};
// a b + c with the last bit set if it is not exact: rounding it to far fewer bits is then one rounding. The product must
// be exact, as one of bf16 is: it may be a tie that a far smaller c decides.
inline double fma_to_odd(double a, double b, double c) {
  const double product = a * b, sum = product + c;
  const double other = sum - product, rest = (product - (sum - other)) + (c - other);
  if (!std::isfinite(sum) || rest == 0 || (bits<uint64_t>(sum) & 1)) return sum;
  return std::nextafter(sum, rest > 0 ? HUGE_VAL : -HUGE_VAL);
}
template <class T> struct Fma {
  T operator()(T a, T b, T c) const {
    if constexpr (std::is_same_v<T, Brain>) return T(fma_to_odd(a, b, c));
    else return T(canonical(std::fma(Exact<T>(a), Exact<T>(b), Exact<T>(c))));
  }
};
template <class T> struct MulHi {
  T operator()(T a, T b) const { return T((Twice<T>(a) * Twice<T>(b)) >> width_of<T>); }
};
template <class T> struct MulWide {
  Twice<T> operator()(T a, T b) const { return Twice<T>(a) * Twice<T>(b); }
};
template <class T> struct Mad {
  T operator()(T a, T b, T c) const { return Add<T>()(Mul<T>()(a, b), c); }
};
template <class T> struct MadHi {
  T operator()(T a, T b, T c) const { return Add<T>()(MulHi<T>()(a, b), c); }
};
template <class T> struct MadWide {
  Twice<T> operator()(T a, T b, Twice<T> c) const { return Add<Twice<T>>()(Twice<T>(a) * Twice<T>(b), c); }
};
template <class T> struct Neg {
  T operator()(T a) const {
    if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Brain>) { a.raw ^= 0x8000; return a; }
    else if constexpr (is_float<T>) return -a;
    else return T(Wrap<T>(0) - Wrap<T>(a));
  }
};
template <class T> struct Abs {
  T operator()(T a) const {
    if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Brain>) { a.raw &= 0x7fff; return a; }
    else if constexpr (is_float<T>) return std::fabs(a);
    else return a < 0 ? T(Wrap<T>(0) - Wrap<T>(a)) : a;
  }
};
// A NaN loses against a number, or wins (.NaN); -0 is below +0.
template <class T, bool NAN_WINS, bool LARGER> T extreme(T a, T b) {
  if constexpr (is_float<T>) {
    double x = double(a), y = double(b);
    if (std::isnan(x) || std::isnan(y)) {
      if (NAN_WINS || (std::isnan(x) && std::isnan(y))) {
        if constexpr (std::is_same_v<T, float>) return bits<float>(0x7fffffffu);
        else if constexpr (sizeof(T) == 2) return bits<T>(uint16_t(0x7fff));
        else return T(std::numeric_limits<double>::quiet_NaN());
      }
      return std::isnan(x) ? b : a;
    }
    if (x == y) return std::signbit(x) == LARGER ? b : a;
    return (x > y) == LARGER ? a : b;
  } else return (a > b) == LARGER ? a : b;
}
template <class T> struct Min { T operator()(T a, T b) const { return extreme<T, false, false>(a, b); } };
template <class T> struct Max { T operator()(T a, T b) const { return extreme<T, false, true>(a, b); } };
template <class T> struct MinNan { T operator()(T a, T b) const { return extreme<T, true, false>(a, b); } };
template <class T> struct MaxNan { T operator()(T a, T b) const { return extreme<T, true, true>(a, b); } };
template <class T> struct Min3 { T operator()(T a, T b, T c) const { return Min<T>()(Min<T>()(a, b), c); } };
template <class T> struct Max3 { T operator()(T a, T b, T c) const { return Max<T>()(Max<T>()(a, b), c); } };
template <class T> struct Min3Nan { T operator()(T a, T b, T c) const { return MinNan<T>()(MinNan<T>()(a, b), c); } };
template <class T> struct Max3Nan { T operator()(T a, T b, T c) const { return MaxNan<T>()(MaxNan<T>()(a, b), c); } };
// .xorsign.abs: the extreme of the sizes, with the product of the signs. `Neg`, because -x of a Half is a number of 64 bits.
template <class T, bool NAN_WINS, bool LARGER> T of_sizes(T a, T b) {
  const T size = extreme<T, NAN_WINS, LARGER>(Abs<T>()(a), Abs<T>()(b));
  return std::signbit(double(a)) != std::signbit(double(b)) && !std::isnan(double(size)) ? Neg<T>()(size) : size;
}
template <class T> struct Smaller { T operator()(T a, T b) const { return of_sizes<T, false, false>(a, b); } };
template <class T> struct SmallerNan { T operator()(T a, T b) const { return of_sizes<T, true, false>(a, b); } };
template <class T> struct Larger { T operator()(T a, T b) const { return of_sizes<T, false, true>(a, b); } };
template <class T> struct LargerNan { T operator()(T a, T b) const { return of_sizes<T, true, true>(a, b); } };
template <class T> struct And { T operator()(T a, T b) const { return T(a & b); } };
template <class T> struct Or { T operator()(T a, T b) const { return T(a | b); } };
template <class T> struct Xor { T operator()(T a, T b) const { return T(a ^ b); } };
template <class T> struct Not { T operator()(T a) const { return T(~a); } };
template <class T> struct Move { T operator()(T a) const { return a; } };
template <class T> struct Shl {
  T operator()(T a, uint32_t n) const { return n >= uint32_t(width_of<T>) ? T(0) : T(Wrap<T>(a) << n); }
};
template <class T> struct Shr {
  T operator()(T a, uint32_t n) const {
    if (n >= uint32_t(width_of<T>)) return std::is_signed_v<T> && a < 0 ? T(-1) : T(0);
    return T(a >> n);
  }
};
template <class T> struct Bfe {
  T operator()(T a, uint32_t from, uint32_t length) const {
    constexpr uint32_t N = width_of<T>;
    from &= 255, length &= 255;
    if (length == 0) return 0;
    bool sign = std::is_signed_v<T> && Unsigned<T>(a) >> (from + length < N ? from + length - 1 : N - 1) & 1;
    Unsigned<T> fill = sign ? ~Unsigned<T>(0) : 0;
    if (from >= N) return T(fill);
    uint32_t valid = length < N - from ? length : N - from;
    Unsigned<T> field = Unsigned<T>(a) >> from;
    return T(valid == N ? field : (field & ((Unsigned<T>(1) << valid) - 1)) | fill << valid);
  }
};
template <class T> struct Bfi {
  T operator()(T field, T into, uint32_t from, uint32_t length) const {
    from &= 255, length &= 255;
    if (from >= uint32_t(width_of<T>) || length == 0) return into;
    T mask = length >= uint32_t(width_of<T>) ? T(~T(0)) : T((T(1) << length) - 1);
    return T((into & ~(mask << from)) | ((field & mask) << from));
  }
};
template <class T> struct Brev {
  T operator()(T a) const {
    T out = 0;
    for (int k = 0; k < width_of<T>; k++) out = T(out << 1 | (a >> k & 1));
    return out;
  }
};
template <class T> struct Clz {
  uint32_t operator()(T a) const { return a ? __builtin_clzll(uint64_t(a)) - (64 - width_of<T>) : width_of<T>; }
};
// bfind: the place of the highest bit that is not a copy of the sign, or (DISTANCE) how far it is from the top.
template <class T, bool DISTANCE> struct Highest {
  uint32_t operator()(T a) const {
    const auto u = Unsigned<T>(std::is_signed_v<T> && a < 0 ? ~a : a);
    const uint32_t above = Clz<Unsigned<T>>()(u);
    return u == 0 ? ~0u : DISTANCE ? above : width_of<T> - 1 - above;
  }
};
template <class T> struct Popc { uint32_t operator()(T a) const { return __builtin_popcountll(uint64_t(a)); } };
template <class T> struct Sqrt { T operator()(T a) const { return canonical(std::sqrt(a)); } };
template <class T> struct Rsqrt { T operator()(T a) const { return canonical(T(1.0 / std::sqrt(double(a)))); } };
template <class T> struct Rcp { T operator()(T a) const { return canonical(T(1) / a); } };
template <class T> struct Ex2 {
  T operator()(T a) const {
    const auto x = canonical(std::exp2(Exact<T>(a)));
    return std::is_same_v<T, Brain> && x < std::numeric_limits<float>::min() ? T(0.0) : T(x);  // always .ftz
  }
};
template <class T> struct Lg2 { T operator()(T a) const { return canonical(std::log2(a)); } };
template <class T> struct Sin { T operator()(T a) const { return canonical(std::sin(a)); } };
template <class T> struct Cos { T operator()(T a) const { return canonical(std::cos(a)); } };
template <class T> struct Tanh { T operator()(T a) const { return T(canonical(std::tanh(Exact<T>(a)))); } };
template <class T> struct CopySign { T operator()(T sign, T a) const { return std::copysign(a, sign); } };

// .ftz: subnormal inputs and results are zero.
template <class F> struct Flushed {
  template <class... A> float operator()(A... a) const { return flushed(F()(flushed(a)...)); }
};
template <class F> struct FlushedDouble {  // rcp.approx.ftz.f64
  static double flush(double x) { return std::fabs(x) < std::numeric_limits<double>::min() ? std::copysign(0.0, x) : x; }
  template <class... A> double operator()(A... a) const { return flush(F()(flush(a)...)); }
};
// f16x2, bf16x2: two numbers in one 32-bit register; f32x2: in one 64-bit register.
template <class T, class F> struct Pair {
  using Both = std::conditional_t<sizeof(T) == 2, uint32_t, uint64_t>;
  using One = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  template <class... A> Both operator()(A... a) const {
    constexpr int half = 8 * sizeof(T);
    Both low = bits<One>(F()(bits<T>(One(a))...)), high = bits<One>(F()(bits<T>(One(a >> half))...));
    return low | high << half;
  }
};
// fma.rn.f32.bf16: the narrow operands are exact in f32.
template <class H> struct MixedFma {
  float operator()(H a, H b, float c) const { return canonical(std::fma(float(double(a)), float(double(b)), c)); }
};
template <class H> struct MixedAdd { float operator()(H a, float b) const { return canonical(float(double(a)) + b); } };
template <class H> struct MixedSub { float operator()(H a, float b) const { return canonical(float(double(a)) - b); } };

struct Prmt {
  uint32_t operator()(uint32_t a, uint32_t b, uint32_t selector) const {
    uint64_t both = a | uint64_t(b) << 32;
    uint32_t out = 0;
    for (int k = 0; k < 4; k++) {
      uint32_t select = selector >> 4 * k & 15, byte = both >> 8 * (select & 7) & 255;
      if (select & 8) byte = byte & 128 ? 255 : 0;
      out |= byte << 8 * k;
    }
    return out;
  }
};
// shf: the middle of (high:low) shifted; .wrap takes the amount modulo 32, .clamp stops at 32.
template <bool LEFT, bool WRAP> struct Funnel {
  uint32_t operator()(uint32_t low, uint32_t high, uint32_t n) const {
    n = WRAP ? n & 31 : n < 32 ? n : 32;
    uint64_t both = low | uint64_t(high) << 32;
    return LEFT ? uint32_t(both << n >> 32) : uint32_t(both >> n);
  }
};

// Comparisons, in the order of decode.COMPARISONS. The unordered ones (ltu, ...) are true if an operand is NaN.
template <class T> bool compare(int how, T a, T b) {
  if constexpr (is_float<T>) {
    double x = double(a), y = double(b);
    bool unordered = std::isnan(x) || std::isnan(y);
    switch (how) {
      case 5: return !unordered && x != y;
      case 6: return !unordered;
      case 7: return unordered;
      case 13: return unordered || x != y;
      default: break;
    }
    if (how >= 8) {
      if (unordered) return true;
      how -= 8;
    }
    switch (how) { case 0: return x < y; case 1: return x <= y; case 2: return x > y; case 3: return x >= y; }
    return x == y;
  } else {
    switch (how) {
      case 0: return a < b;
      case 1: return a <= b;
      case 2: return a > b;
      case 3: return a >= b;
      case 4: return a == b;
      default: return a != b;
    }
  }
}

// The four roundings to an integer, in the order of decode.ROUNDINGS: nearest even, to zero, down, up.
inline double integral(int rounding, double x) {
  switch (rounding) {
    case 0: return std::nearbyint(x);
    case 1: return std::trunc(x);
    case 2: return std::floor(x);
    default: return std::ceil(x);
  }
}
// Out of range saturates and NaN is 0, as cvt does.
template <class T> T saturated(double x) {
  if (std::isnan(x)) return 0;
  if (x <= double(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  if (x >= std::ldexp(1.0, width_of<T> - std::is_signed_v<T>)) return std::numeric_limits<T>::max();
  return T(x);
}

// atom and red: mode 0 add, 1 min, 2 max, 3 and, 4 or, 5 xor, 6 exch, 7 cas, 8 inc, 9 dec. 
template <class H> struct Two16 { H low, high; };
template <class T> T changed(int mode, T old, T b, T c) {
  if constexpr (std::is_same_v<T, Two16<Half>>) return {Add<Half>()(old.low, b.low), Add<Half>()(old.high, b.high)};
  else if constexpr (std::is_same_v<T, Two16<Brain>>)
    return {Add<Brain>()(old.low, b.low), Add<Brain>()(old.high, b.high)};
  else if (mode == 0) return Add<T>()(old, b);
  if (mode == 6) return b;
  if constexpr (std::is_integral_v<T>) switch (mode) {
      case 1: return std::min(old, b);
      case 2: return std::max(old, b);
      case 3: return old & b;
      case 4: return old | b;
      case 5: return old ^ b;
      case 7: return old == b ? c : old;
      case 8: return old >= b ? 0 : old + 1;
      case 9: return old == 0 || old > b ? b : old - 1;
    }
  return old;
}
