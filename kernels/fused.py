"""The Triton kernels: pointers in, pointers out. `launch` is their host side.

`coordinate_kernel` does the whole backward of EAGC in one launch. Grid: (column blocks of S, row blocks).

    1. Unlabelled rows are compacted inside the kernel: row block b owns the b-th group of BLOCK_M unlabelled
       rows, so no matrix product is spent on labelled rows and the host need not know how many there are.
       Beyond SCAN_LIMIT rows `compaction_kernel` has listed them.
    2. A program multiplies its rows of z and of g by one column block of S, reading S once for both. Its
       share of z S z^T and |z|^2 goes to `partial`, its block of g S to `product`. If the energy has a basis
       M, z is multiplied by M instead, and the shares are sums over the squares of z M, as in `formulas`.
    3. The last program of a row block to arrive sums the shares, forms E and tau, and writes
       g - lambda_p tau (g S). It is found by an atomic counter: no program spins, so none can deadlock. The
       shares are summed in a fixed order, so the result does not depend on which program came last.
    4. Labelled rows are a plain elementwise tile: g + s c lambda_a (z - z_ref).

`labelled_energy_kernel` does the forward-time part of the running energy reference: the mean E of the
labelled rows and the update of Ebar, also in one launch.
"""

import triton
import triton.language as tl

from . import formulas, tiles

NORM_FLOOR = tl.constexpr(formulas.NORM_FLOOR)
ENERGY_FLOOR = tl.constexpr(formulas.ENERGY_FLOOR)
SCAN_LIMIT = tl.constexpr(tiles.SCAN_LIMIT)
# By default min and max drop NaN, but a non-finite row must stay visible.
KEEP_NAN = tl.constexpr(tl.PropagateNan.ALL)


@triton.jit(do_not_specialize=["rows"])
def compaction_kernel(
    mask_ptr,  # (rows,) uint8, 1 = labelled
    order_ptr,  # (rows + 1,) int32: the rows of one kind in ascending order; their number at the end
    rows,
    LABELLED: tl.constexpr,  # the kind
    BLOCK: tl.constexpr,
):
    """Grid: blocks of BLOCK rows. Each counts the rows before its own itself, so none waits for another."""
    block = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    earlier = tl.zeros((BLOCK,), tl.int32)
    for other in range(0, block):
        earlier += (tl.load(mask_ptr + other * BLOCK + lane) == LABELLED).to(tl.int32)
    row = block * BLOCK + lane
    wanted = _wanted(mask_ptr, row, rows, LABELLED)
    upto = tl.sum(earlier, 0) + tl.cumsum(wanted, 0)
    tl.store(order_ptr + upto - 1, row, mask=wanted != 0)
    if block == tl.num_programs(0) - 1:
        tl.store(order_ptr + rows, tl.max(upto, 0))


@triton.jit
def _wanted(mask_ptr, row, rows, LABELLED: tl.constexpr):
    """1 where a row exists and is of the wanted kind, else 0."""
    labelled = tl.load(mask_ptr + row, mask=row < rows, other=0) != 0
    return ((row < rows) & (labelled == LABELLED)).to(tl.int32)


@triton.jit
def _group_of_rows(mask_ptr, order_ptr, rows, group, LABELLED: tl.constexpr, BLOCK_M: tl.constexpr):
    """Indices of the `group`-th BLOCK_M rows of one kind, -1 past the end; and the number of all of them."""
    rank = group * BLOCK_M + tl.arange(0, BLOCK_M)
    if order_ptr is not None:
        count = tl.load(order_ptr + rows)
        index = tl.load(order_ptr + rank, mask=rank < count, other=-1)
    else:
        # Rows come in chunks of 64. The chunks' running totals tell which chunk holds the wanted row; a
        # second scan finds its place in that chunk.
        lane = tl.arange(0, 64)
        chunk = tl.arange(0, SCAN_LIMIT // 64)
        sizes = tl.sum(_wanted(mask_ptr, chunk[:, None] * 64 + lane[None, :], rows, LABELLED), 1)
        count = tl.sum(sizes, 0)
        ends = tl.cumsum(sizes, 0)
        passed = ends[None, :] <= rank[:, None]
        home = tl.sum(passed.to(tl.int32), 1)
        before = tl.max(tl.where(passed, ends[None, :], 0), 1)
        upto = tl.cumsum(_wanted(mask_ptr, home[:, None] * 64 + lane[None, :], rows, LABELLED), 1)
        place = tl.sum((upto <= (rank - before)[:, None]).to(tl.int32), 1)
        index = tl.where(rank < count, home * 64 + place, -1)
    return index, count


@triton.jit
def _products(
    g_ptr,  # None: no g S
    z_ptr,  # None: no z S
    g_stride,
    z_stride,
    matrix_ptr,
    basis_ptr,  # None: z too is multiplied by the matrix
    row,
    cols,
    column_block,
    D: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TRIANGLE: tl.constexpr,
):
    """g S in one column block, and a product for which z . product is this block's share of z S z^T.

    That is z S or, with TRIANGLE, half of it: S is symmetric, so its block in row i and column j contributes
    as much as that in row j and column i, and one of the two is enough, doubled. Column block j takes its
    diagonal block and the blocks above it up to half way round (the last one is above the first), so that all
    programs have the same work: of n blocks (n - 1) / 2 above the diagonal and, if n is even, one more in the
    second half of the column blocks. With a basis M it is z M, without TRIANGLE.
    """
    a_gs = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    a_zs = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    # The bounds of the loops are not constants: ptxas unrolls a loop of known length fully (27 KB of code at
    # D = 768, which every program runs through once) and needs different registers for every D.
    UNIT: tl.constexpr = BLOCK_N if BLOCK_N > BLOCK_K else BLOCK_K
    units = tl.cdiv(tl.num_programs(0) * BLOCK_N, UNIT)
    length = units * UNIT
    if TRIANGLE and z_ptr is not None:
        mine = column_block * BLOCK_N // UNIT
        above = (units - 1) // 2 + ((units % 2 == 0) & (mine >= units // 2)).to(tl.int32)
        first = (mine - above + tl.where(mine < above, units, 0)) * UNIT
        diagonal = above * UNIT
        for step in range(0, diagonal + UNIT, BLOCK_K):
            k = first + step
            k -= tl.where(k >= length, length, 0)
            a_zs *= tl.where(step == diagonal, 2.0, 1.0)
            b_s = _block_of_matrix(matrix_ptr, k, cols, D, BLOCK_N, BLOCK_K).to(DOT)
            if g_ptr is not None:
                b_g = _block_of_rows(g_ptr, row, g_stride, k, D, BLOCK_N, BLOCK_K).to(DOT)
                a_gs = tl.dot(b_g, b_s, a_gs, input_precision=PRECISION)
            b_z = _block_of_rows(z_ptr, row, z_stride, k, D, BLOCK_N, BLOCK_K).to(DOT)
            a_zs = tl.dot(b_z, b_s, a_zs, input_precision=PRECISION)
        if g_ptr is not None:
            for step in range(diagonal + UNIT, length, BLOCK_K):
                k = first + step
                k -= tl.where(k >= length, length, 0)
                b_s = _block_of_matrix(matrix_ptr, k, cols, D, BLOCK_N, BLOCK_K).to(DOT)
                b_g = _block_of_rows(g_ptr, row, g_stride, k, D, BLOCK_N, BLOCK_K).to(DOT)
                a_gs = tl.dot(b_g, b_s, a_gs, input_precision=PRECISION)
    else:
        for k in range(0, length, BLOCK_K):
            b_s = _block_of_matrix(matrix_ptr, k, cols, D, BLOCK_N, BLOCK_K).to(DOT)
            if g_ptr is not None:
                b_g = _block_of_rows(g_ptr, row, g_stride, k, D, BLOCK_N, BLOCK_K).to(DOT)
                a_gs = tl.dot(b_g, b_s, a_gs, input_precision=PRECISION)
            if z_ptr is not None:
                b_z = _block_of_rows(z_ptr, row, z_stride, k, D, BLOCK_N, BLOCK_K).to(DOT)
                if basis_ptr is not None:
                    b_s = _block_of_matrix(basis_ptr, k, cols, D, BLOCK_N, BLOCK_K).to(DOT)
                a_zs = tl.dot(b_z, b_s, a_zs, input_precision=PRECISION)
    return a_gs, a_zs


@triton.jit
def _block_of_rows(x_ptr, row, stride, k, D: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """Columns k to k + BLOCK_K of some rows; zero beyond D."""
    inner = k + tl.arange(0, BLOCK_K)
    pointers = x_ptr + (row[:, None] * stride + inner[None, :])
    if D % BLOCK_N == 0 and D % BLOCK_K == 0:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=(inner < D)[None, :], other=0.0)


@triton.jit
def _block_of_matrix(matrix_ptr, k, cols, D: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """Rows k to k + BLOCK_K of S in some columns; zero beyond D."""
    inner = k + tl.arange(0, BLOCK_K)
    pointers = matrix_ptr + inner[:, None].to(tl.int64) * D + cols[None, :]
    if D % BLOCK_N == 0 and D % BLOCK_K == 0:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=(inner < D)[:, None] & (cols < D)[None, :], other=0.0)


@triton.jit
def _clamp01(x):
    return tl.minimum(tl.maximum(x, 0.0, propagate_nan=KEEP_NAN), 1.0, propagate_nan=KEEP_NAN)


@triton.jit
def _energy_of_group(partial_ptr, rank, valid, rows, column_blocks):
    """E of one group from the shares of its column blocks, added in a fixed order."""
    inside = tl.zeros_like(rank).to(tl.float32)
    total = tl.zeros_like(rank).to(tl.float32)
    # 16 blocks at a time: one block at a time is one round trip to L2 for each (12 at D = 768).
    for start in range(0, column_blocks, 16):
        block = start + tl.arange(0, 16)
        share = partial_ptr + 2 * block[:, None] * rows.to(tl.int64) + rank[None, :]
        m_share = (block < column_blocks)[:, None] & valid[None, :]
        # .cg: the shares were written by other programs, so they must come from L2, not from this SM's L1.
        inside += tl.sum(tl.load(share, mask=m_share, other=0.0, cache_modifier=".cg"), 0)
        total += tl.sum(tl.load(share + rows, mask=m_share, other=0.0, cache_modifier=".cg"), 0)
    return _clamp01(inside / tl.maximum(total, NORM_FLOOR, propagate_nan=KEEP_NAN))


@triton.jit
def _factors(z_ptr, z_stride, weights_ptr, a_zs, row, cols, m_block, D: tl.constexpr):
    """z and z S, or in a basis z M and the same weighted: two blocks for `_store_energy_shares`.

    Their products add to the energy inside the subspace, the squares of the first to the whole energy.
    """
    if weights_ptr is not None:
        b_weights = tl.load(weights_ptr + cols, mask=cols < D, other=0.0)
        return a_zs, a_zs * b_weights[None, :]
    else:
        b_z = tl.load(z_ptr + row[:, None] * z_stride + cols[None, :], mask=m_block, other=0.0).to(tl.float32)
        return b_z, a_zs


@triton.jit
def _store_energy_shares(partial_ptr, b_z, b_zs, rank, valid, rows, column_block):
    share = partial_ptr + 2 * column_block * rows.to(tl.int64) + rank
    tl.store(share, tl.sum(b_z * b_zs, 1), mask=valid)
    tl.store(share + rows, tl.sum(b_z * b_z, 1), mask=valid)


@triton.jit
def _arrive(counter_ptr, AMD: tl.constexpr):
    """The number of programs that arrived earlier; their stores are visible to this one."""
    if AMD:
        # On AMD a release by one wave covers only its own stores, and the barrier waits for LDS only (the
        # assembly shows it). So every wave first waits until its stores have arrived.
        lane = tl.arange(0, 256)
        tl.inline_asm_elementwise(
            "s_waitcnt vmcnt(0)\nv_mov_b32 $0, $1", "=v,v", [lane], dtype=tl.int32, is_pure=False, pack=1
        )
    # Every thread's stores come before the one thread's release, and its acquire before their loads. Triton
    # has barriers around an atomic operation too, but does not promise them.
    tl.debug_barrier()
    earlier = tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu")
    tl.debug_barrier()
    return earlier


@triton.jit(
    do_not_specialize=["rows", "first"],
    do_not_specialize_on_alignment=["energy_ref_ptr", "scale_ptr", "count_ptr"],
)
def coordinate_kernel(
    g_ptr,  # (rows, D), row stride g_stride
    z_ptr,  # (rows, D), row stride z_stride
    z_ref_ptr,  # (rows, D), row stride z_ref_stride, read on labelled rows only; None: no anchor
    mask_ptr,  # (rows,) uint8, 1 = labelled
    order_ptr,  # the unlabelled rows as `compaction_kernel` lists them; None: found in the kernel
    matrix_ptr,  # (D, D) contiguous, symmetric
    basis_ptr,  # (D, D) contiguous; None: the energy is that of S
    weights_ptr,  # (D,) fp32; None exactly if basis_ptr is
    energy_ref_ptr,  # () fp32, Ebar
    scale_ptr,  # () fp32, loss scale; None: 1
    count_ptr,  # () fp32, N_l averaged over the ranks; None: counted here
    out_ptr,  # (rows, D) contiguous, dtype of g
    product_ptr,  # (rows, D) fp32 scratch for g S; may be out_ptr when out is fp32
    partial_ptr,  # (column blocks, 2, rows) fp32 scratch
    arrivals_ptr,  # (row blocks,) int32, zero before: the programs of each that have arrived
    energy_ptr,  # (rows,) fp32: E, NaN on labelled rows, and on all without PROJECT
    tau_ptr,  # (rows,) fp32: tau, NaN where E is, but for UNIFORM
    rows,
    first,  # row block of the first program
    g_stride,
    z_stride,
    z_ref_stride,
    lambda_a,
    lambda_p,
    D: tl.constexpr,
    MEAN: tl.constexpr,
    UNIFORM: tl.constexpr,
    PROJECT: tl.constexpr,  # False for lambda_p = 0: unlabelled rows are copied, whatever z holds
    DOT: tl.constexpr,  # dtype of the products' operands
    PRECISION: tl.constexpr,  # of fp32 products: "ieee", "tf32x3" or "tf32"
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TRIANGLE: tl.constexpr,  # the energy from a triangle of S
    TAIL: tl.constexpr,  # columns that the last program writes at a time
    AMD: tl.constexpr,
):
    column_block = tl.program_id(0)
    group = first + tl.program_id(1)
    column_blocks = tl.num_programs(0)
    index, unlabelled = _group_of_rows(mask_ptr, order_ptr, rows, group, False, BLOCK_M)
    cols = column_block * BLOCK_N + tl.arange(0, BLOCK_N)
    m_cols = cols < D

    # Labelled rows among rows [group * BLOCK_M, (group + 1) * BLOCK_M): the anchor.
    row = group.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    m_row = tl.load(mask_ptr + row, mask=row < rows, other=0) != 0
    m_tile = m_row[:, None] & m_cols[None, :]
    m_stored = m_tile if PROJECT else (row < rows)[:, None] & m_cols[None, :]
    l_out = tl.load(g_ptr + row[:, None] * g_stride + cols[None, :], mask=m_stored, other=0.0).to(tl.float32)
    if z_ref_ptr is not None:
        step = lambda_a
        if scale_ptr is not None:
            step *= tl.load(scale_ptr)
        if MEAN:
            labelled = (
                tl.maximum(rows - unlabelled, 1).to(tl.float32) if count_ptr is None else tl.load(count_ptr)
            )
            step /= labelled * D
        l_z = tl.load(z_ptr + row[:, None] * z_stride + cols[None, :], mask=m_tile, other=0.0).to(tl.float32)
        l_ref = tl.load(z_ref_ptr + row[:, None] * z_ref_stride + cols[None, :], mask=m_tile, other=0.0).to(
            tl.float32
        )
        if PROJECT:
            l_out += step * (l_z - l_ref)
        else:
            l_out += tl.where(m_tile, step * (l_z - l_ref), 0.0)
    tl.store(out_ptr + row[:, None] * D + cols[None, :], l_out.to(out_ptr.dtype.element_ty), mask=m_stored)
    if column_block == 0:
        tl.store(energy_ptr + row, float("nan"), mask=m_row if PROJECT else row < rows)
        tl.store(tau_ptr + row, float("nan"), mask=m_row if PROJECT else row < rows)

    # Unlabelled rows: the projection.
    if PROJECT and group * BLOCK_M < unlabelled:
        valid = index >= 0
        # Rows past the end repeat row 0 and are never stored, so the loop needs no mask for them.
        safe = tl.where(valid, index, 0).to(tl.int64)
        rank = group * BLOCK_M + tl.arange(0, BLOCK_M)
        m_block = valid[:, None] & m_cols[None, :]
        a_gs, a_zs = _products(
            g_ptr,
            None if UNIFORM else z_ptr,
            g_stride,
            z_stride,
            matrix_ptr,
            basis_ptr,
            safe,
            cols,
            column_block,
            D,
            DOT,
            PRECISION,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
            TRIANGLE,
        )

        if UNIFORM:  # tau = 1 needs no energy, so no program waits for another
            b_g = tl.load(g_ptr + safe[:, None] * g_stride + cols[None, :], mask=m_block, other=0.0).to(
                tl.float32
            )
            b_out = b_g - lambda_p * a_gs
            tl.store(
                out_ptr + safe[:, None] * D + cols[None, :], b_out.to(out_ptr.dtype.element_ty), mask=m_block
            )
            if column_block == 0:
                tl.store(energy_ptr + safe, float("nan"), mask=valid)
                tl.store(tau_ptr + safe, 1.0, mask=valid)
        else:
            b_z, b_zs = _factors(z_ptr, z_stride, weights_ptr, a_zs, safe, cols, m_block, D)
            _store_energy_shares(partial_ptr, b_z, b_zs, rank, valid, rows, column_block)
            tl.store(product_ptr + safe[:, None] * D + cols[None, :], a_gs, mask=m_block)
            if _arrive(arrivals_ptr + group, AMD) == column_blocks - 1:
                energy = _energy_of_group(partial_ptr, rank, valid, rows, column_blocks)
                tau = _clamp01(1.0 - energy / (tl.load(energy_ref_ptr) + ENERGY_FLOOR))
                weight = lambda_p * tau
                for start in range(0, column_blocks * BLOCK_N, TAIL):
                    every = start + tl.arange(0, TAIL)
                    m_every = valid[:, None] & (every < D)[None, :]
                    b_gs = tl.load(
                        product_ptr + safe[:, None] * D + every[None, :],
                        mask=m_every,
                        other=0.0,
                        cache_modifier=".cg",
                    )
                    b_g = tl.load(
                        g_ptr + safe[:, None] * g_stride + every[None, :], mask=m_every, other=0.0
                    ).to(tl.float32)
                    b_out = b_g - weight[:, None] * b_gs
                    tl.store(
                        out_ptr + safe[:, None] * D + every[None, :],
                        b_out.to(out_ptr.dtype.element_ty),
                        mask=m_every,
                    )
                tl.store(energy_ptr + safe, energy, mask=valid)
                tl.store(tau_ptr + safe, tau, mask=valid)


@triton.jit(do_not_specialize=["rows", "first"], do_not_specialize_on_alignment=["energy_ref_ptr"])
def labelled_energy_kernel(
    z_ptr,  # (rows, D), row stride z_stride
    mask_ptr,  # (rows,) uint8, 1 = labelled
    order_ptr,  # the labelled rows as `compaction_kernel` lists them; None: found in the kernel
    matrix_ptr,  # (D, D) contiguous: S, symmetric, or the basis
    weights_ptr,  # (D,) fp32, of the basis; None: the energy is that of S
    energy_ref_ptr,  # () fp32, Ebar, updated in place when UPDATE
    used_ptr,  # () fp32: the value after the update
    sums_ptr,  # (2,) fp32: sum of E over labelled rows, their number
    partial_ptr,  # (column blocks, 2, rows) fp32 scratch
    group_sum_ptr,  # (row blocks,) fp32 scratch
    arrivals_ptr,  # (1 + row blocks,) int32, zero before: all groups, then each
    rows,
    first,  # row block of the first program
    z_stride,
    momentum,
    D: tl.constexpr,
    UPDATE: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    AMD: tl.constexpr,
):
    column_block = tl.program_id(0)
    group = first + tl.program_id(1)
    column_blocks = tl.num_programs(0)
    index, labelled = _group_of_rows(mask_ptr, order_ptr, rows, group, True, BLOCK_M)
    cols = column_block * BLOCK_N + tl.arange(0, BLOCK_N)
    m_cols = cols < D

    if labelled == 0:
        if (group == 0) & (column_block == 0):
            tl.store(sums_ptr, 0.0)
            tl.store(sums_ptr + 1, 0.0)
            tl.store(used_ptr, tl.load(energy_ref_ptr))
    elif group * BLOCK_M < labelled:
        valid = index >= 0
        safe = tl.where(valid, index, 0).to(tl.int64)
        rank = group * BLOCK_M + tl.arange(0, BLOCK_M)
        _, a_zs = _products(
            None,
            z_ptr,
            None,
            z_stride,
            matrix_ptr,
            None,
            safe,
            cols,
            column_block,
            D,
            DOT,
            PRECISION,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
            weights_ptr is None,
        )
        m_block = valid[:, None] & m_cols[None, :]
        b_z, b_zs = _factors(z_ptr, z_stride, weights_ptr, a_zs, safe, cols, m_block, D)
        _store_energy_shares(partial_ptr, b_z, b_zs, rank, valid, rows, column_block)
        if _arrive(arrivals_ptr + 1 + group, AMD) == column_blocks - 1:
            energy = _energy_of_group(partial_ptr, rank, valid, rows, column_blocks)
            tl.store(group_sum_ptr + group, tl.sum(tl.where(valid, energy, 0.0), 0))
            groups = (labelled + BLOCK_M - 1) // BLOCK_M
            if _arrive(arrivals_ptr, AMD) == groups - 1:
                # The last group to arrive adds the sums of all groups, again in a fixed order.
                total = 0.0
                for start in range(0, groups, BLOCK_N):
                    other = start + tl.arange(0, BLOCK_N)
                    total += tl.sum(
                        tl.load(group_sum_ptr + other, mask=other < groups, other=0.0, cache_modifier=".cg"),
                        0,
                    )
                tl.store(sums_ptr, total)
                tl.store(sums_ptr + 1, labelled.to(tl.float32))
                before = tl.load(energy_ref_ptr)
                mean = total / labelled.to(tl.float32)
                finite = tl.abs(mean) < float("inf")  # False for NaN too: such a batch leaves Ebar unchanged
                after = tl.where(finite, momentum * before + (1.0 - momentum) * mean, before)
                if UPDATE:
                    tl.debug_barrier()  # every thread has read Ebar before one of them writes it
                    tl.store(energy_ref_ptr, after)
                tl.store(used_ptr, after)
