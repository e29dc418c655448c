"""The figures of README and docs come from the results files, and those from one machine."""

import re
import statistics

import pytest

from eagc_ops.bench import discover_tables, figures
from eagc_ops.bench.figures import RESULTS, ROOT, SECTIONS, pages, render
from eagc_ops.bench.results_file import load


@pytest.mark.parametrize("page", pages(ROOT), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_figures_come_from_the_results_files(page):
    text = page.read_text()
    assert render(text) == text, "figures and results have drifted apart: python -m eagc_ops.bench.figures"


@pytest.mark.skipif(not (ROOT / "docs" / "benchmarks.md").is_file(), reason="there are no docs yet")
def test_every_section_is_shown_once():
    text = "".join(page.read_text() for page in pages(ROOT))
    assert sorted(re.findall(r"<!-- results: (\w+) -->", text)) == sorted(SECTIONS)


@pytest.mark.parametrize("name", SECTIONS)
def test_a_marked_section_is_replaced_and_nothing_else(name):
    page = f"before\n<!-- results: {name} -->\nold\n<!-- end -->\nafter <!-- end -->\n"
    rendered = render(page)
    body = SECTIONS[name](RESULTS)
    assert rendered == f"before\n<!-- results: {name} -->\n{body}\n<!-- end -->\nafter <!-- end -->\n"
    assert render(rendered) == rendered


def test_the_headline_is_short_and_has_the_figures_of_the_long_tables():
    lines = SECTIONS["headline"](RESULTS).splitlines()
    rows = [line for line in lines if line.startswith("| ")][1:]
    assert 4 <= len(rows) <= 6
    operator, overhead = (load(RESULTS / f"{name}.json") for name in ("operator", "overhead"))
    speed_ups = [row["speed_up"].median for row in operator["operator"]]
    assert f"{speed_ups[0]:.1f} / {speed_ups[2]:.1f} / {speed_ups[4]:.1f} x; with a running Ebar" in rows[0]
    assert "256 / 1,024 / 4,096 rows" in rows[0]
    ours, released = overhead["steps"][-1], overhead["steps"][1]
    assert f"| {released['add_on_share'].median:.0%} | {ours['add_on_share'].median:.2%} |" in rows[1]
    assert f"| {ours['ratio_to_released'].median:.2f} |" in rows[2]
    assert f"| {ours['peak_to_released']:.2f} |" in rows[3]
    assert f"{overhead['epochs'][2]['speed_up'].median:.1f} x" in rows[4]
    assert "conceptor solve" in rows[5]


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("<!-- results: speed -->\n<!-- end -->", "must be one of headline, .*, got speed"),
        ("<!-- results: operator -->\n", "operator has no <!-- end -->"),
        (
            "<!-- results: operator -->\n<!-- results: headline -->\n<!-- end -->",
            "operator has no <!-- end -->",
        ),
    ],
    ids=["unknown section", "no end", "end of the next section"],
)
def test_a_wrong_marker_is_refused(page, words):
    with pytest.raises(ValueError, match=words):
        render(page)


def test_the_command_writes_readme_and_docs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    (tmp_path / "docs" / "more").mkdir(parents=True)
    marked = "<!-- results: headline -->\n<!-- end -->\n"
    written = ["README.md", "docs/benchmarks.md", "docs/more/page.md"]
    for name in written:
        (tmp_path / name).write_text(marked)
    (tmp_path / "docs" / "plain.md").write_text("no figures\n")
    assert figures.main() == 0
    assert capsys.readouterr().out == "".join(f"written: {name}\n" for name in written)
    assert all("conceptor solve" in (tmp_path / name).read_text() for name in written)
    assert (tmp_path / "docs" / "plain.md").read_text() == "no figures\n"
    (tmp_path / "README.md").write_text("<!-- results: speed -->\n<!-- end -->")
    assert figures.main() == 2 and "README.md: " in capsys.readouterr().err
    assert ">0.25 %<" in (tmp_path / "bench/results/cost.svg").read_text()


def test_the_results_are_of_committed_code_one_machine_and_one_day():
    results = {path.stem: load(path) for path in RESULTS.glob("*.json")}
    measured = ["conceptor", "operator", "overhead", "roofline", "throughput"]
    alone = ["estimate", "loader", "scale"]
    assert sorted(results) == sorted(
        [*measured, *alone, "discover", "discover_training", "refine", "triangle"]
    )
    origins = [str([results[name][key] for key in ("machine", "versions")]) for name in (*measured, *alone)]
    assert len(set(origins)) == 1
    # The conceptor, loading, the estimate of K, scale and the counts of compiled code are compared with no
    # other result; their sections name their own days.
    assert len({results[name]["date"] for name in measured[1:]}) == 1
    uncommitted = [name for name, result in results.items() if (result["commit"] or "").endswith("+")]
    assert not uncommitted, "measured with uncommitted changes"
    assert results["roofline"]["measured"] == results["throughput"]["throughput"]
    timed = [*measured, *alone]
    assert not any(results[name]["settings"]["quick"] for name in timed), "the short form is no result"


def test_the_search_for_k_is_as_good_as_the_published_one_and_faster():
    """The page says so: the median K lies within the spread of the published search over its seeds."""
    rows = load(RESULTS / "estimate.json")["estimate"]
    found = {(row["data"], row["way"]): row for row in rows}
    names = {name for name, way in found if way == "published"}
    assert len(names) == 3
    for name in names:
        ours, published = found[name, "here"], found[name, "published"]
        assert min(published["found"]) <= statistics.median(ours["found"]) <= max(published["found"])
        assert ours["seconds"].high < published["seconds"].low
    (large,) = (row for row in rows if row["N"] > 20_000)
    assert large["D"] == 384 and large["seconds"].high < 120


def test_the_fit_is_faster_than_the_released_one_and_exact():
    """The page says so."""
    content = load(RESULTS / "conceptor.json")
    ours = {(row["D"], row["N"]): row for row in content["times"] if row["way"] == "ours"}
    for dim in (384, 768, 1024):
        for count in (1500, 20000):
            assert ours[dim, count]["speed_up"].median >= 1.1, (dim, count)
    assert max(row["largest_error"] for row in content["quality"] if row["way"] == "ours") <= 1e-7


def test_the_overhead_picture_shows_the_figures_of_the_table():
    picture = (RESULTS / "overhead.svg").read_text()
    for row in load(RESULTS / "overhead.json")["steps"]:
        for value in (row["ratio_to_released"].median, row["peak_to_released"]):
            assert f">{value:.2f}<" in picture


def test_the_first_screen_says_the_figures_of_the_results():
    """The README's three reasons stand before its table; the picture is drawn from the same file."""
    rows = [row for row in load(RESULTS / "overhead.json")["steps"] if row["add_on_share"] is not None]
    shares = [f"{row['add_on_share'].median * 100:.2g} %" for row in rows]
    picture = (RESULTS / "cost.svg").read_text()
    assert all(f">{share}<" in picture for share in shares)
    first = (ROOT / "README.md").read_text().split("## ")[0]
    assert f"makes a training step {shares[0]} longer" in " ".join(first.split()) and shares[-1] in first


def test_the_first_answer_is_near_the_best_simple_clustering_of_every_set():
    """The page says so."""
    rows = load(RESULTS / "discover.json")["records"]
    lines = [line for line in discover_tables.accuracies(rows).rows if line.cells[1] == "true"]
    header = discover_tables.accuracies(rows).header
    to_best, to_published = (header.index(name) for name in ("to the best simple", "to published"))
    assert len(lines) == 7
    assert min(float(line.cells[to_best]) for line in lines) >= -1
    assert statistics.mean(float(line.cells[to_published]) for line in lines) >= 10
    assert all(int(line.cells[header.index("draws")]) >= 5 for line in lines)
