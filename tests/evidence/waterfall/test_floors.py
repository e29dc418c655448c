"""Clusterings beside finished runs: of the features before and after training, scored by the same truth."""

import shutil

import pytest
import small_runs

from eagc_ops.evidence.waterfall.floors import WAYS, floors, main, read
from eagc_ops.training.runs import train

pytestmark = pytest.mark.filterwarnings("ignore:the run predicts", "ignore:tau is below")


def test_the_network_scores_as_in_its_result_and_clusterings_before_it_do_not_change(data, tmp_path):
    """Two runs of one seed that differ by their epochs: the same frozen features, other trained ones."""
    last = {}
    for epochs in (1, 3):
        config = small_runs.small_config(data, epochs=epochs, seed=4)
        run = tmp_path / "out" / "runs" / f"2of4-epochs-{epochs}-4"
        last[run.name] = train(config, run)["last"]
    file = tmp_path / "floors.csv"
    main([str(tmp_path / "out"), "-o", str(file)])
    found = read(file)
    assert sorted(found) == sorted(last) and all(list(ways) == list(WAYS) for ways in found.values())
    for name, scores in last.items():
        want = [100 * scores[part] for part in ("all", "old", "new")]
        assert found[name]["network"] == pytest.approx(want, abs=1e-4)
    one, other = found.values()
    assert one["k-means"] == other["k-means"] and one["first"] == other["first"]
    shutil.rmtree(tmp_path / "out" / "runs")
    main([str(tmp_path / "out"), "-o", str(file)])  # nothing to look at: the file stays
    assert read(file) == found


def test_the_table_has_means_over_replicates():
    scores = {way: (50.0 + i, 40.0, 60.0) for i, way in enumerate(WAYS)}
    more = {way: (value[0] + 2, *value[1:]) for way, value in scores.items()}
    table = floors({"5of60-warm-start-0": scores, "5of60-warm-start-1": more, "5of60-EAGC-0": scores})
    cells = [row.cells for row in table.rows]
    assert [line[:3] for line in cells[::4]] == [["5of60", "warm start", "2"], ["5of60", "EAGC", "1"]]
    assert cells[3][3:5] == ["first answer, trained features", "54.0 ± 1.4"]
