"""The machine itself: what it calls a race or a violation, and what it refuses, in small known programs."""

import re

import numpy as np
import pytest
import torch
from ptx_text import kernel

import ptx_machine
from ptx_machine import library

SCHEDULES = range(8)


def kinds(body, arguments=None, *, parameters=1, grid=(1,), threads=64, shared=512, seeds=SCHEDULES):
    """The kinds of findings over several schedules."""
    found = set()
    for seed in seeds:
        given = [np.zeros(256, "u4") for _ in range(parameters)] if arguments is None else arguments()
        report = ptx_machine.run(
            kernel(body, parameters, threads=threads, shared=shared), grid, given, seed=seed
        )
        found |= {finding.kind for finding in [*report.races, *report.violations]}
    return found


# Each thread writes its word of shared memory and reads that of thread 63 - t.
EXCHANGE = """
mov.b32 %r1, buffer; shl.b32 %r2, %r0, 2; add.s32 %r3, %r1, %r2;
st.shared.b32 [%r3], %r0;
SYNC
mov.b32 %r4, 63; sub.s32 %r4, %r4, %r0; shl.b32 %r4, %r4, 2; add.s32 %r4, %r1, %r4;
ld.shared.b32 %r5, [%r4];
"""


def test_a_barrier_orders_the_threads_of_a_block():
    assert kinds(EXCHANGE.replace("SYNC", "bar.sync 0;")) == set()
    assert kinds(EXCHANGE.replace("SYNC", "barrier.sync 0, 64;")) == set()
    assert kinds(EXCHANGE.replace("SYNC", "")) & {"READ_AFTER_WRITE", "WRITE_AFTER_READ"}
    assert kinds(EXCHANGE.replace("SYNC", "bar.warp.sync -1;"))  # of one warp, but the other wrote
    assert kinds(EXCHANGE.replace("SYNC", "membar.cta;"))  # a fence alone orders nothing


def test_lock_step_is_no_order_within_a_warp():
    """PTX promises nothing for lanes that happen to run together: bar.warp.sync does."""
    within = EXCHANGE.replace("63", "31")
    assert kinds(within.replace("SYNC", ""), threads=32) == {"READ_AFTER_WRITE"}
    assert kinds(within.replace("SYNC", "bar.warp.sync -1;"), threads=32) == set()
    shuffle = "shfl.sync.bfly.b32 %r9, %r0, 1, 31, -1;"  # exchanges registers, orders no memory
    assert kinds(within.replace("SYNC", shuffle), threads=32) == {"READ_AFTER_WRITE"}


def test_the_same_value_may_be_stored_twice_but_not_another():
    assert kinds("st.global.b32 [%d0], 7;") == set()
    assert kinds("st.global.b32 [%d0], %r0;") == {"WRITE_AFTER_WRITE"}


# Block 0 writes data and raises a flag; block 1 waits for the flag and reads the data.
MESSAGE = """
mov.u32 %r1, %ctaid.x;
setp.ne.b32 %p1, %r1, 0;
@%p1 bra $L_wait;
setp.ne.b32 %p2, %r0, 0;
@%p2 bra $L_end;
st.global.b32 [%d0], 42;
RELEASE
bra.uni $L_end;
$L_wait:
ACQUIRE
setp.eq.b32 %p3, %r2, 0;
@%p3 bra $L_wait;
AFTER
ld.global.b32 %r3, [%d0];
$L_end:
"""
FLAG = "[%d0+128]"


def message(release, acquire, after="", **options):
    body = MESSAGE.replace("RELEASE", release).replace("ACQUIRE", acquire).replace("AFTER", after)
    return kinds(body, grid=(2,), **options)


def test_messages_between_blocks():
    load, store, fence = "ld.relaxed.gpu.global.b32", "st.relaxed.gpu.global.b32", "fence.acq_rel.gpu;"
    ordered = [
        (f"st.release.gpu.global.b32 {FLAG}, 1;", f"ld.acquire.gpu.global.b32 %r2, {FLAG};", ""),
        (f"{fence} {store} {FLAG}, 1;", f"{load} %r2, {FLAG};", fence),
        (
            f"membar.gl; st.volatile.global.b32 {FLAG}, 1;",
            f"ld.volatile.global.b32 %r2, {FLAG};",
            "membar.gl;",
        ),
        (f"atom.release.gpu.global.exch.b32 %r9, {FLAG}, 1;", f"ld.acquire.gpu.global.b32 %r2, {FLAG};", ""),
        (
            f"red.release.gpu.global.add.u32 {FLAG}, 1;",
            f"atom.acquire.gpu.global.add.u32 %r2, {FLAG}, 0;",
            "",
        ),
    ]
    for release, acquire, after in ordered:
        assert message(release, acquire, after) == set(), (release, acquire)
    (release, acquire, _), fenced, *_ = ordered
    for weaker in (
        (release.replace("release", "relaxed"), acquire, ""),
        (release, acquire.replace("acquire", "relaxed"), ""),
        (release.replace("gpu", "cta"), acquire, ""),
        (release, acquire.replace("gpu", "cta"), ""),
        (fenced[0].replace(fence, ""), *fenced[1:]),
        (fenced[0].replace(fence, "fence.acq_rel.cta;"), *fenced[1:]),
        (*fenced[:2], ""),
    ):
        assert "READ_AFTER_WRITE" in message(*weaker), weaker


def test_a_plain_flag_races_itself():
    assert "READ_AFTER_WRITE" in message(
        f"st.global.b32 {FLAG}, 1;", f"ld.acquire.gpu.global.b32 %r2, {FLAG};"
    )


def test_a_release_covers_what_its_own_thread_did():
    """All 64 threads write, thread 0 releases: without a barrier the writes of the others are not covered."""
    body = """
    mad.wide.u32 %d10, %r0, 4, %d0;
    mov.u32 %r1, %ctaid.x;
    setp.ne.b32 %p1, %r1, 0; setp.eq.b32 %p2, %r0, 0;
    @!%p1 st.global.b32 [%d10], %r0;
    BEFORE
    @%p2 atom.acq_rel.gpu.global.add.u32 %r2, [%d0+512], 1;
    @%p2 st.shared.b32 [buffer], %r2;
    AFTER
    ld.shared.b32 %r3, [buffer];
    setp.eq.b32 %p3, %r3, 1; and.pred %p3, %p3, %p1;
    @%p3 ld.global.b32 %r4, [%d10];
    """
    for threads, sync in ((64, "bar.sync 0;"), (32, "bar.warp.sync -1;")):

        def found(before, after, threads=threads):
            return kinds(body.replace("BEFORE", before).replace("AFTER", after), grid=(2,), threads=threads)

        assert found(sync, sync) == set()
        assert "READ_AFTER_WRITE" in found("", sync)
        assert "READ_AFTER_WRITE" in found(sync, "")


def test_bounds_and_alignment():
    assert kinds("ld.global.b32 %r1, [%d0+1020];") == set()
    assert kinds("ld.global.b32 %r1, [%d0+1024];") == {"OUT_OF_BOUNDS"}
    assert kinds("ld.global.b32 %r1, [%d0+-4];") == {"OUT_OF_BOUNDS"}
    assert kinds("ld.global.b32 %r1, [%d0+2];") == {"MISALIGNED"}
    assert kinds("st.global.v2.b32 [%d0+4], {%r0, %r0};") == {"MISALIGNED"}
    assert kinds("ld.global.b32 %r1, [%d1];", lambda: [np.zeros(4, "u4"), None], parameters=2) == {
        "OUT_OF_BOUNDS"
    }
    assert kinds("mov.b32 %r1, buffer; st.shared.b32 [%r1+512], 1;") == {"OUT_OF_BOUNDS"}
    assert kinds("mov.b32 %r1, buffer; st.shared.v4.b32 [%r1+8], {1, 1, 1, 1};") == {"MISALIGNED"}
    assert kinds(
        "mov.b32 %r1, buffer; cp.async.ca.shared.global [%r1], [%d0+1024], 4; cp.async.wait_all;"
    ) >= {"OUT_OF_BOUNDS"}


def test_a_view_has_bounds_of_its_own():
    """Two arguments in one array: the first may not reach into the second."""
    whole = np.zeros(64, "u4")
    body = "ld.global.b32 %r1, [%d0+128];"
    assert kinds(body, lambda: [whole[:32], whole[32:]], parameters=2) == {"OUT_OF_BOUNDS"}
    racing = "@%p1 st.global.b32 [%d0], 1; @!%p1 ld.global.b32 %r1, [%d1];"
    body = f"setp.lt.u32 %p1, %r0, 32; {racing}"
    assert kinds(body, lambda: [whole, whole[:4]], parameters=2) & {"READ_AFTER_WRITE", "WRITE_AFTER_READ"}
    assert kinds(body, lambda: [whole[:8], whole[8:]], parameters=2) == set()


def test_shared_memory_that_nobody_wrote():
    assert kinds("ld.shared.b32 %r1, [buffer];") == {"UNINITIALISED"}
    # A block does not inherit it from the one that ran there before.
    body = """
    mov.u32 %r1, %ctaid.x; setp.eq.b32 %p1, %r1, 0;
    @%p1 st.shared.b32 [buffer], 1;
    bar.sync 0;
    @!%p1 ld.shared.b32 %r2, [buffer];
    """
    assert kinds(body, grid=(6,)) == {"UNINITIALISED"}


def test_a_finding_names_both_instructions():
    report = ptx_machine.run(kernel("st.global.b32 [%d0], %r0;", 1, threads=64), (1,), [np.zeros(4, "u4")])
    (finding,) = report.races
    assert finding.statement.opcode == finding.earlier.opcode == "st.global.b32"
    assert "byte 0 of 16 of argument 0 (p0)" in str(finding) and finding.times >= 31
    with pytest.raises(AssertionError, match="writes what another thread wrote"):
        report.check()


def test_schedules_differ_with_the_seed_and_repeat_with_it():
    """The order in which 16 blocks take a ticket."""
    body = """
    mov.u32 %r1, %ctaid.x; setp.eq.b32 %p1, %r0, 0; mad.wide.u32 %d10, %r1, 4, %d0;
    @%p1 atom.global.add.u32 %r2, [%d0+512], 1;
    @%p1 st.global.b32 [%d10], %r2;
    """

    def order(seed):
        out = np.zeros(256, "u4")
        ptx_machine.run(kernel(body, 1), (16,), [out], seed=seed).check()
        assert sorted(out[:16]) == list(range(16))
        return tuple(out[:16])

    assert order(3) == order(3)
    assert len({order(seed) for seed in range(8)}) == 8


def test_counts():
    body = """
    setp.lt.u32 %p1, %r0, 8;
    mad.wide.u32 %d10, %r0, 4, %d0;
    @%p1 ld.global.b32 %r1, [%d10];
    mov.b32 %r2, buffer; shl.b32 %r3, %r0, 7; add.s32 %r2, %r2, %r3;
    st.shared.b32 [%r2], %r0;
    """
    text = kernel(body, 1, threads=32, shared=4096)
    report = ptx_machine.run(text, (3,), [torch.zeros(256)], traffic=True)  # torch aligns to a sector
    assert report.counts()["ld.global.b32"] == 3 and report.counts()["setp.lt.u32"] == 3
    assert report.traffic() == {"ld.global": 3 * 8 * 4, "st.shared": 3 * 32 * 4}
    executed = {e.statement.opcode: e for e in report.instructions}
    assert (executed["ld.global.b32"].lanes, executed["ld.global.b32"].sectors) == (3 * 8, 3)
    # All lanes hit bank 0, 128 bytes apart: 32 wavefronts where one would do.
    assert (executed["st.shared.b32"].wavefronts, executed["st.shared.b32"].ideal_wavefronts) == (3 * 32, 3)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("trap;", "trap"),
        ("$L: bra $L;", "did not end after 1000 warp instructions"),
        ("setp.lt.u32 %p1, %r0, 5; @%p1 bar.sync 0;", "only some lanes of a warp reach"),
        ("setp.lt.u32 %p1, %r0, 32; @%p1 bar.sync 0; @!%p1 bar.sync 1;", "wait at a different barrier"),
        ("setp.lt.u32 %p1, %r0, 5; @%p1 shfl.sync.bfly.b32 %r1, %r0, 1, 31, -1;", "member mask"),
    ],
)
def test_what_ends_a_kernel(body, words):
    with pytest.raises(ptx_machine.MachineError, match=words):
        ptx_machine.run(kernel(body, 0, threads=64), (1,), [], limit=1000)


def test_blocks_that_wait_for_blocks_which_do_not_run_are_told_of_resident():
    """Block 0 waits for the last one of 20."""
    body = """
    mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 19; setp.ne.u32 %p2, %r1, 0;
    @%p1 st.release.gpu.global.b32 [%d0], 1;
    @%p2 bra $L_end;
    $L_wait: ld.acquire.gpu.global.b32 %r2, [%d0]; setp.eq.u32 %p3, %r2, 0; @%p3 bra $L_wait;
    $L_end:
    """
    text, hints = kernel(body, 1), set()
    for seed in range(12):  # in half of the schedules block 0 comes first
        try:
            ptx_machine.run(text, (20,), [np.zeros(1, "u4")], seed=seed, resident=1, limit=20_000)
        except ptx_machine.MachineError as error:
            hints.add(str(error).partition("; ")[2])
    assert hints == {"1 of 20 blocks ran at a time; if they wait for others, raise `resident`"}
    ptx_machine.run(text, (20,), [np.zeros(1, "u4")], resident=20, limit=2_000_000)


UNKNOWN = """
    tcgen05.shift.cta_group::1.down [%r1] | wgmma.fence.aligned | fence.proxy.alias | call foo
    bar.arrive 0, 64
    add.sat.u32 %r1, %r1, %r2 | add.rna.f32 %r1, %r1, %r2 | add.s32 %r1, %r2, %d1 | cvt.rna.bf16.f32 %h1, %r1
    barrier.cluster.arrive | ld.global.b32 %r1, [%unknown] | mov.b32 %r1, %envreg3 | bar.sync 1, 64
    mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r1}, {%r2}, {%r3}, {%r4}
    mma.sync.aligned.m16n8k8.row.col.f16.bf16.bf16.f16 {%r1, %r2}, {%r3, %r4}, {%r7}, {%r1, %r2}
    red.shared.release.cta.add.u32 [%r1], 1 | setp.lt.and.s32 %p1, %r1, %r2, %p2 | @%p99x mov.b32 %r1, 0
"""


@pytest.mark.parametrize(
    "instruction", [part.strip() for part in re.split(r"[|\n]", UNKNOWN) if part.strip()]
)
def test_what_it_does_not_know_it_names(instruction):
    """Never a silent no-op: not a modifier, not a type, not a width of a register."""
    text = kernel(f"{instruction};", 1)
    with pytest.raises(ptx_machine.UnknownInstruction) as raised:
        ptx_machine.run(text, (1,), [np.zeros(4, "u4")])
    assert instruction in str(raised.value)
    assert ptx_machine.unknown_instructions(text) == raised.value.opcodes != []


def test_the_wrong_call_is_refused():
    text = kernel("", 1)
    with pytest.raises(ValueError, match="k has 1 parameters, got 2"):
        ptx_machine.run(text, (1,), [None, None])
    with pytest.raises(ValueError, match=r"no \.reqntid, pass block"):
        ptx_machine.run(text.replace(".reqntid 32", ""), (1,), [None])
    with pytest.raises(ValueError, match=r"no \.entry"):
        ptx_machine.run("", (1,), [])


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(library.shutil, "which", lambda name: None)
    library.library.cache_clear()
    with pytest.raises(ptx_machine.NoCompiler, match=r"install g\+\+ or clang\+\+, or set CXX"):
        library.library()
    monkeypatch.undo()
    assert library.library()


def test_a_compiler_that_fails_leaves_nothing_behind(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(library, "FLAGS", ("-no-such-flag",))
    library.library.cache_clear()
    with pytest.raises(ptx_machine.NoCompiler, match="no-such-flag"):
        library.library()
    assert not list(tmp_path.rglob("*.so"))
    monkeypatch.undo()
    library.library.cache_clear()
