"""The facts of a run: JSON in and out, and run.json of a different version."""

import dataclasses
import json

import pytest
from run_facts import some_facts

from eagc_ops.training.config import ConfigError, resolve
from eagc_ops.training.engine.facts import RunFacts
from eagc_ops.training.engine.run_folder import RunFolder


def test_facts_survive_json():
    facts = some_facts(start={"method": "simgcd"}, versions={"python": "3.11", "timm": None}, commit="abc+")
    assert RunFacts.from_json(json.loads(json.dumps(facts.to_json()))) == facts
    with pytest.raises(dataclasses.FrozenInstanceError):
        facts.trunk = "changed"


def test_facts_that_a_run_does_not_have_are_not_written():
    written = some_facts().to_json()
    assert not {"start", "k_estimate", "versions", "commit"} & written.keys()
    assert RunFacts.from_json(written).k_estimate is None


def test_the_identity_is_what_decides_the_numbers():
    facts = some_facts(split_hash="s", trunk="t", inputs={"pixels": 8}, commit="abc")
    assert facts.identity == {"split_hash": "s", "trunk": "t", "inputs": {"pixels": 8}}


def test_missing_and_unknown_facts_are_named():
    values = some_facts().to_json()
    with pytest.raises(ConfigError, match="the facts have the unknown keys colour, mood"):
        RunFacts.from_json({**values, "colour": "red", "mood": "good"})
    del values["trunk"], values["dim"]
    with pytest.raises(
        ConfigError, match="the facts lack trunk, dim; they were written by a different version"
    ):
        RunFacts.from_json(values)


def test_a_folder_with_unknown_facts_names_its_file(tmp_path):
    RunFolder.create(tmp_path / "run", resolve(), some_facts())
    file = tmp_path / "run" / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "colour": "red"}))
    with pytest.raises(ConfigError, match=r"run\.json: the facts have the unknown keys colour"):
        RunFolder.open(tmp_path / "run")


def test_a_new_folder_knows_versions_and_commit(tmp_path):
    made = RunFolder.create(tmp_path / "run", resolve(), some_facts()).facts
    assert made.versions["python"] and "torch" in made.versions
    assert RunFolder.open(tmp_path / "run").facts == made
