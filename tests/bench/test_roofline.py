"""Modelled points follow from counts of compiled code, and say that they are modelled."""

import json
import math

import pytest

from eagc_ops.bench import tables
from eagc_ops.bench.measure import Spread
from eagc_ops.bench.pictures import draw_roofline
from eagc_ops.bench.results_file import load, save
from eagc_ops.bench.roofline import ASSUMPTIONS, DEVICES, dense, gather, library_product, model
from eagc_ops.bench.work import nominal_work

A100 = "A100 SXM 80 GB"
# A100, fp32, as compiled: 512 FFMA of a warp in a step are 64 lanes busy for 1,024 clocks of four warps.
LOOP = {
    "instructions": 700,
    "multiply_adds": 2 * 16 * 64 * 32,
    "kinds": {"FFMA": 512, "FMUL": 8, "IMAD": 8, "LDS": 99},
    "shared": 1400 * 128,
    "unrolled": 1,
    "loaded": (2 * 16 + 64) * 32 * 4,
    "times": 14,
}
ALONE = {  # g S alone
    "instructions": 400,
    "multiply_adds": 16 * 64 * 32,
    "kinds": {"FFMA": 256},
    "shared": 200 * 128,
    "unrolled": 1,
    "loaded": (16 + 64) * 32 * 4,
    "times": 10,
}
COMPILED = {
    "dim": 768,
    "dtype": "fp32",
    "rows": 256,
    "block_m": 16,
    "block_n": 64,
    "block_k": 32,
    "warps": 4,
    "stages": 4,
    "triangle": True,
    "blocks_per_sm": 3,
    "registers": 146,
    "shared": 36864,
    "arch": "sm_80",
    "instructions": 2400,
    "loops": [LOOP, ALONE],
}
HALF = {
    **COMPILED,
    "dtype": "bf16",
    "block_k": 64,
    "loops": [
        {**LOOP, "instructions": 87, "kinds": {"HMMA": 16}, "shared": 38400, "loaded": 12288, "times": 12}
    ],
}


def test_one_point_by_hand():
    """A100, fp32: 128 unlabelled rows in 8 blocks x 768 columns in 12: 96 blocks, one per SM.

    In the first loop shared memory is the busiest pipe (1,400 clocks of a step; products 528 x 4 x 32 / 64 =
    1,056, issue 700), in the second the products (512). Both exceed the latency of a step (780, 480).
    """
    row = model(A100, COMPILED)
    assert (row["blocks"], row["blocks_of_busiest_sm"], row["rounds"]) == (96, 1, 1)
    loops = (14 * 1400 + 10 * 512) / 0.85
    trips = 3 + 2 + 4 + 3  # before, one per loop, after, 768 columns in tails of 256
    outside = trips * 300 + 4 * (2400 - 700 - 400)
    assert row["seconds"] == pytest.approx(2 * 2e-6 + (loops + outside) / 1.41e9)
    assert row["bound_by"] == "shared memory"
    work = nominal_work(128, 128, 768, 4, running=False)
    assert row["gflop_per_s"] == pytest.approx(work.flops / row["seconds"] / 1e9)


def test_a_step_shorter_than_its_latency_takes_the_latency_once():
    """Two blocks of an SM: if they are resident together, their latencies overlap and their pipes add up."""
    short = {**HALF, "loops": [{**HALF["loops"][0], "shared": 128}]}
    alone = model(A100, short)
    tensor = 2 * 16 * 64 * 32 / 1024 / 0.85
    l2 = 12288 / 64 / 0.85
    assert max(tensor, l2) > 87 + 80
    assert alone["parts"]["loops"] == pytest.approx(12 * max(tensor, l2) / 1.41e9)
    slow = {**short, "loops": [{**short["loops"][0], "instructions": 400, "loaded": 128}]}
    two = model(A100, {**slow, "rows": 512})  # 192 blocks: two on the busiest SM
    assert two["blocks_of_busiest_sm"] == 2 and two["rounds"] == 1
    assert two["parts"]["loops"] == pytest.approx(12 * max(2 * 4 * 400 / 4 / 0.85, 480) / 1.41e9)
    serial = model(A100, {**slow, "rows": 512, "blocks_per_sm": 1})
    assert serial["rounds"] == 2
    assert serial["parts"]["loops"] == pytest.approx(12 * 2 * 480 / 1.41e9)


def test_repeated_products_cost_time():
    """A block of 64 x 64 whose 8 warps do every tensor product twice."""
    big = {**HALF, "rows": 4096, "block_m": 64, "warps": 8, "blocks_per_sm": 1}
    loop = {**HALF["loops"][0], "multiply_adds": 2 * 64 * 64 * 64}
    once, twice = (
        model(A100, {**big, "loops": [{**loop, "multiply_adds": n * loop["multiply_adds"]}]}) for n in (1, 2)
    )
    assert once["parts"]["loops"] == pytest.approx(
        4 * 12 * 2 * 64**3 / 1024 / 0.85 / 1.41e9
    )  # 4 blocks of an SM
    assert twice["parts"]["loops"] == pytest.approx(2 * once["parts"]["loops"])


def test_a_pass_of_several_steps_is_divided():
    loop = {**LOOP, "kinds": {"v_mfma": 16, "ds_read": 12}}
    twice = {key: 2 * loop[key] for key in ("instructions", "multiply_adds", "shared")}
    unrolled = {**loop, **twice, "unrolled": 2, "kinds": {"v_mfma": 32, "ds_read": 24}}
    times = [model("MI300X", {**COMPILED, "loops": [one]})["parts"]["loops"] for one in (loop, unrolled)]
    assert times[0] == pytest.approx(times[1])


@pytest.mark.parametrize("change", ["instructions", "multiply_adds", "shared", "loaded", "times"])
@pytest.mark.parametrize("name", DEVICES)
def test_more_work_is_not_faster(name, change):
    more = {**HALF, "loops": [{**HALF["loops"][0], change: 8 * HALF["loops"][0][change]}]}
    assert model(name, more)["seconds"] >= model(name, HALF)["seconds"]


@pytest.mark.parametrize("compiled", [COMPILED, HALF], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", DEVICES)
def test_more_rows_are_not_faster_and_more_resident_blocks_are_not_slower(name, compiled):
    for resident in range(1, 6):
        times = [
            model(name, {**compiled, "rows": rows, "blocks_per_sm": resident})["seconds"]
            for rows in (16, 256, 512, 1024, 4096, 65536)
        ]
        assert times == sorted(times)
    many = {**compiled, "rows": 4096}
    times = [model(name, {**many, "blocks_per_sm": resident})["seconds"] for resident in range(1, 9)]
    assert times == sorted(times, reverse=True) and times[-1] < times[0]


@pytest.mark.parametrize("compiled", [COMPILED, HALF], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("rows", [256, 65536])
def test_no_point_lies_above_its_roof(name, compiled, rows):
    """The products that a form does take at least their time at the peak, and its bytes theirs."""
    row = model(name, {**compiled, "rows": rows})
    device, dtype = DEVICES[name], compiled["dtype"]
    products = row["blocks"] * sum(loop["times"] * loop["multiply_adds"] for loop in compiled["loops"])
    nominal = 2 * (rows // 2) * 768**2
    bytes = row["gflop_per_s"] * 1e9 * row["seconds"] / row["flop_per_byte"]
    for seconds, done in (("seconds", products), ("gather_seconds", nominal), ("dense_seconds", 2 * nominal)):
        assert row[seconds] > 2 * done / device.peak[dtype]
        assert row[seconds] > bytes / device.memory


def test_the_data_sheets():
    """TFLOP/s of the vendors' sheets; the H100's fp32 is quoted at a higher clock."""
    sheets = {A100: (19.5, 312), "RTX 3090": (35.6, 71), "H100 SXM": (61.8, 989), "MI300X": (163.4, 1307)}
    for name, device in DEVICES.items():
        assert [device.peak[dtype] / 1e12 for dtype in ("fp32", "bf16")] == pytest.approx(
            sheets[name], rel=0.005
        )


def test_a_product_of_the_library_by_hand():
    """A100, fp32, 256 x 768 x 768: 192 tiles of 32 x 32, each in 8 parts of 3 steps: 15 of them on an SM."""
    clocks = 15 * 3 * 32**3 / 64 / 0.85 + 4 * 300
    assert library_product(DEVICES[A100], 256, 768, 768, "fp32") == pytest.approx(clocks / 1.41e9)
    # Whole waves: 81 tiles of 128 x 128 on 82 SMs take as long as one of them.
    device = DEVICES["RTX 3090"]
    one, full, more = (
        library_product(device, m, 128, 1 << 16, "fp32") for m in (64 * 128, 82 * 128, 83 * 128)
    )
    assert one <= full < more


def test_the_library_forms_cost_their_launches_and_rows():
    device = DEVICES[A100]
    few = [form(device, 16, 64, "bf16") for form in (gather, dense)]
    assert 10e-6 < few[0] < 15e-6 and 8e-6 < few[1] < 13e-6  # 5 and 4 launches of 2 us
    many = [form(device, 1 << 17, 768, "fp32") for form in (gather, dense)]
    assert 1.7 < many[1] / many[0] < 2.1  # all rows instead of half of them
    work = nominal_work(1 << 16, 1 << 16, 768, 4, running=False)
    assert many[0] > work.flops / device.peak["fp32"] / 0.85


def test_modelled_points_are_marked_in_the_table_the_file_and_the_picture(tmp_path):
    modelled = [model(name, compiled) for name in DEVICES for compiled in (COMPILED, HALF)]
    assert {row["kind"] for row in modelled} == {"modelled"}
    assert {row["uncertain_by"] for row in modelled} == {2.0}
    table = tables.modelled(modelled).markdown()
    assert table.startswith("| modelled, not measured |") and "gather + BLAS, us" in table
    for row in modelled:
        assert f"| {row['seconds'] * 1e6:.0f} | {row['gather_seconds'] * 1e6:.0f} |" in table
    one = Spread(1.0, 1.0, 1.0)
    measured = [
        {
            "kind": "measured",
            "dtype": "fp32",
            "contender": "ours, torch",
            "flop_per_byte": 60.0,
            "gflop_per_s": 50.0,
            "seconds": one,
        }
    ]
    refused = {"kind": "not timed", "dtype": "fp32", "contender": "wrong one", "reason": "wrong"}
    roofs = {"flop_per_s": 8e10, "bytes_per_s": 1e10}
    draw_roofline(tmp_path / "r.svg", roofs, [*measured, refused], modelled, "some CPU")
    text = (tmp_path / "r.svg").read_text()
    assert text.count("MODELLED, not measured") == len(DEVICES) == 4
    assert text.count("MEASURED, fp32") == 1
    for form in ("fused kernel", "gather BLAS", "dense BLAS"):
        assert text.count(f"{form}, fp32, modelled") == text.count(f"{form}, bf16, modelled") == 4
    assert "wrong one" not in text
    for line in ASSUMPTIONS:
        assert line.split()[0] in text
    save(
        tmp_path / "r.json",
        "roofline",
        {"modelled": modelled, "measured": measured, "assumptions": ASSUMPTIONS},
    )
    again = load(tmp_path / "r.json")
    assert again["assumptions"] == list(ASSUMPTIONS) and "not measured" in again["assumptions"][0]
    assert all(json.dumps(row).count("modelled") for row in again["modelled"])


def test_the_same_picture_twice_is_the_same_file(tmp_path):
    for name in ("a.svg", "b.svg"):
        roofs = {"flop_per_s": 8e10, "bytes_per_s": 1e10}
        draw_roofline(tmp_path / name, roofs, [], [model("RTX 3090", COMPILED)], "some CPU")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_compiled_counts_reach_the_model():
    """The paper's batch on an A100 in bf16, compiled here: the counts are those of the machine code."""
    pytest.importorskip("triton", reason="Triton has no wheels for this platform")
    from eagc_ops.kernels import DTYPES, aot
    from eagc_ops.kernels.tiles import pick

    tile = pick("sm_80", 256, 768, DTYPES["bf16"])
    case = aot.Case("coordinate", "sm_80", "bf16", "auto", 256, 768, tile)
    record = aot.as_record(case, aot.compile_case(case))
    (loop,) = record["loops"]
    # A step of a block stores what it loads, and every product reads at least 16 x 16 of A and 16 x 8 of B,
    # which a warp may share among a few of them.
    assert loop["shared"] > 2 * loop["loaded"]
    assert loop["kinds"]["HMMA"] * 4 * 16 * 8 * 16 == loop["multiply_adds"]
    assert record["instructions"] > 3 * loop["instructions"]
    row = model(A100, record)
    assert (row["registers"], row["blocks_per_sm"]) == (record["registers"], record["blocks_per_sm"])
    assert 5e-6 < row["seconds"] < 30e-6 and math.isfinite(row["gather_seconds"])
