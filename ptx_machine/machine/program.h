// What the decoder (decode.py) hands to the machine. Python reads the three enums from this file, so that there is one
// list of operations, of types and of findings.
#pragma once
#include <cstdint>

enum Operation : int32_t {
  MOV, PACK, UNPACK, ADD, SUB, MUL, MULHI, MULWIDE, MAD, MADHI, MADWIDE, DIV, REM, ABS, NEG, MIN, MAX, AND, OR, XOR,
  NOT, SHL, SHR, CARRY, SHF_LEFT, SHF_RIGHT, BFE, BFI, BREV, CLZ, POPC, BFIND, PRMT, LOP3, SELP, SETP, FMA, SQRT, RSQRT, RCP, EX2,
  LG2, SIN, COS, TANH, COPYSIGN, TESTP, SET, NOTHING, CVT, CVT_PAIR, EIGHTS_WIDEN, EIGHTS_NARROW, CVTA, CLOCK, SHFL, VOTE, REDUX, ELECT, ACTIVEMASK, LOAD_GLOBAL, STORE_GLOBAL,
  LOAD_SHARED, STORE_SHARED, LOAD_LOCAL, STORE_LOCAL, ATOM_GLOBAL, ATOM_SHARED, CP_ASYNC, CP_COMMIT, CP_WAIT, LDMATRIX, STMATRIX, MMA, MMA_SCALED, FENCE,
  WARP_SYNC, BARRIER, BRANCH, BRANCH_TABLE, EXIT, TRAP, PRINT, ASSERT,
  PROXY_FENCE, WGMMA, WGMMA_FENCE, WGMMA_COMMIT, WGMMA_WAIT, MBARRIER_INIT, MBARRIER_INVAL, MBARRIER_ARRIVE, MBARRIER_WAIT,
  TENSOR_ALLOC, TENSOR_DEALLOC, TENSOR_MMA, TENSOR_COMMIT, TENSOR_LOAD, TENSOR_STORE, TENSOR_WAIT,
  TMA_LOAD, TMA_STORE, BULK_COMMIT, BULK_WAIT, TENSORMAP_SET, TENSORMAP_COPY
};

enum Type : int32_t {
  PRED, U8, S8, U16, S16, U32, S32, U64, S64, F16, BF16, F32, F64, TF32, F16X2, BF16X2, F32X2,
  U16X2, S16X2, E4M3, E5M2, E2M1
};

enum Finding : int32_t {
  READ_AFTER_WRITE, WRITE_AFTER_READ, WRITE_AFTER_WRITE, PENDING_COPY, OUT_OF_BOUNDS, MISALIGNED, UNINITIALISED,
  NO_PROXY_FENCE, PENDING_READ, NOT_WAITED, NO_REGISTER_FENCE, LEFT_BEHIND
};

// The order and scope of a strong memory operation; WEAK is a plain ld or st.
enum Order : int32_t { WEAK = 0, RELAXED = 1, ACQUIRE = 2, RELEASE = 4 };

constexpr int OPERANDS = 16, SPECIAL = 20;
constexpr int32_t NO_SINKS = -1;
constexpr int32_t WORD = 2;

struct Instruction {
  int32_t operation;
  int32_t type;       // of the result, or of the data in memory
  int32_t from;       // the second type of cvt, mma and mixed arithmetic
  int32_t mode;       // comparison, rounding, shuffle kind, atomic operation, truth table of lop3, ...
  int32_t order;      // Order of a memory operation
  int32_t block_scope;  // 1: the order holds within the block only
  int32_t predicate;  // byte offset of a predicate register, -1: none
  int32_t negated;    // the predicate is negated
  int32_t count;      // registers of a vector, matrices of ldmatrix, k of mma, bytes of cp.async
  int32_t width;      // bytes of the register that a load fills
  int32_t wide;       // bit 0: the address register has 64 bits; bit 1: a part of the access may be outside (WORD)
  int32_t target;     // of a branch
  int32_t list;       // in `lists`: the registers of an operand that has too many for `operand`
  int32_t touches;    // in `lists`: the registers of a wgmma that another instruction reads or writes; 0: none
  int32_t operand[OPERANDS];  // byte offsets into the registers of a warp; the last one is an address, the one before
                              // it the second address of cp.async
  int64_t offset, offset2;    // added to these addresses
};

struct Buffer {
  uint8_t* host;
  int64_t size;
  int64_t base;    // the address that the kernel sees
  int32_t region;  // of the race detector; -1: never written by this kernel
  int32_t pad;
  int64_t place;   // bytes from the start of the region
};

struct Found {
  int32_t kind, at, earlier, block, warp, lane, buffer, pad;  // buffer -1: shared memory; -2: no argument; see memory.cpp
  int64_t offset, times;
};

// decode.py and execute.py have the same layouts.
static_assert(sizeof(Instruction) == 136 && sizeof(Buffer) == 40 && sizeof(Found) == 48);

struct Count {
  int64_t warps, lanes, sectors, wavefronts, ideal;
};

struct Launch {
  const Instruction* code;
  const uint8_t* registers;  // initial values: constants, parameters
  const Buffer* buffers;
  const int64_t* regions;    // bytes of each region
  int32_t instructions, register_bytes, buffer_count, region_count;
  int32_t grid[3], block[3];
  int32_t shared, resident;
  int32_t global_cell, shared_cell;  // bytes per cell of the race detector
  int32_t races, traffic;
  const int32_t* sink_starts;  // of each instruction, in `sinks`; one more at the end
  const int32_t* lists;
  const int32_t* sinks;  // where the value of a load may end: stores; NO_SINKS: elsewhere too, or it is no load
  int32_t special[SPECIAL];  // byte offsets of the special registers, in the order of decode.SPECIAL; -1: not used
  uint64_t seed;
  int64_t limit;        // warp instructions
  int32_t replicas, pad;  // 1: Triton's code, in which several lanes hold one number
  int32_t local, first_host;  // bytes of a lane; buffers from this one on have the addresses that the host gave them
};
