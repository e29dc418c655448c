"""Modelled points follow from compiled resources and say that they are modelled."""

import json

import pytest

from eagc_ops.bench.measure import Spread
from eagc_ops.bench.pictures import draw_roofline
from eagc_ops.bench.results_file import load, save
from eagc_ops.bench.roofline import ASSUMPTIONS, DEVICES, model
from eagc_ops.bench.work import nominal_work

COMPILED = {
    "dim": 768,
    "dtype": "bf16",
    "rows": 256,
    "block_m": 16,
    "block_n": 64,
    "warps": 4,
    "stages": 4,
    "blocks_per_sm": 4,
    "registers": 72,
    "shared": 36864,
    "arch": "sm_80",
}


def test_one_point_by_hand():
    """A100, bf16: 128 unlabelled rows in 8 blocks x 768 columns in 12: 96 blocks.

    There is one block per SM, with 4 of the 8 warps that fill it.
    """
    row = model("A100 SXM 80 GB", COMPILED)
    assert row["blocks"] == 96
    arithmetic = 4 * 16 * 64 * 768 / (312e12 / 108 * 0.25 * 0.5)
    l2_per_sm = 2 * 768 * (64 + 2 * 16) / (64 * 1.41e9)
    epilogue = 1.5e-6 + 16 * 768 * 8 / (64 * 1.41e9)
    assert arithmetic > l2_per_sm
    assert row["seconds"] == pytest.approx(3e-6 + arithmetic + epilogue)
    work = nominal_work(128, 128, 768, 2, running=False)
    assert row["gflop_per_s"] == pytest.approx(work.flops / row["seconds"] / 1e9)


def test_more_resident_blocks_are_not_slower():
    many = {**COMPILED, "rows": 4096}
    slow, fast = (model("A100 SXM 80 GB", {**many, "blocks_per_sm": n})["seconds"] for n in (1, 2))
    assert fast < slow


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("rows", [256, 65536])
def test_no_point_lies_above_its_roof(name, dtype, rows):
    row = model(name, {**COMPILED, "dtype": dtype, "rows": rows, "block_m": 64, "arch": DEVICES[name].arch})
    roof = min(DEVICES[name].peak[dtype], DEVICES[name].memory * row["flop_per_byte"])
    assert row["gflop_per_s"] * 1e9 < roof


def test_modelled_points_are_marked_in_the_file_and_in_the_picture(tmp_path):
    modelled = [model(name, {**COMPILED, "dtype": dtype}) for name in DEVICES for dtype in ("fp32", "bf16")]
    assert {row["kind"] for row in modelled} == {"modelled"} and {
        row["uncertain_by"] for row in modelled
    } == {2.0}
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
    draw_roofline(
        tmp_path / "r.svg",
        {"flop_per_s": 8e10, "bytes_per_s": 1e10},
        [*measured, refused],
        modelled,
        "some CPU",
    )
    text = (tmp_path / "r.svg").read_text()
    assert text.count("MODELLED, not measured") == len(DEVICES) == 4
    assert text.count("MEASURED, fp32") == 1
    assert text.count("fused kernel, fp32, modelled") == text.count("fused kernel, bf16, modelled") == 4
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
        draw_roofline(
            tmp_path / name,
            {"flop_per_s": 8e10, "bytes_per_s": 1e10},
            [],
            [model("RTX 3090", COMPILED)],
            "some CPU",
        )
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_compiled_resources_reach_the_model():
    pytest.importorskip("triton", reason="Triton has no wheels for this platform")
    from eagc_ops.kernels import aot
    from eagc_ops.kernels.tiles import pick

    case = aot.Case(
        "coordinate", "sm_80", "bf16", "auto", 256, 768, pick("sm_80", 256, 768, aot.DTYPES["bf16"])
    )
    record = aot.as_record(case, aot.judge(case, 72, 0, 0, 36 << 10, 0, []))
    row = model("A100 SXM 80 GB", record)
    assert (row["registers"], row["blocks_per_sm"], row["block_m"]) == (72, 4, 16)
