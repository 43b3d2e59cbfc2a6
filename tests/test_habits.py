"""What the repository asks of its contributors is there, and can be followed."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent


def pins() -> dict[str, Version]:
    """The tested version of each package, by its normalized name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {re.sub(r"[-_.]+", "-", name).lower(): Version(version) for name, version in pairs}


def test_every_dependency_is_pinned_within_its_range():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [Requirement(text) for text in project["dependencies"] + extras["test"] + extras["hf"]]
    pinned = pins()
    outside = {
        str(need): str(pinned.get(need.name.lower()))
        for need in asked
        if need.name != "setuptools"
        if need.name.lower() not in pinned or pinned[need.name.lower()] not in need.specifier
    }
    assert outside == {}


@pytest.mark.parametrize(
    "path",
    [
        ".pre-commit-config.yaml",
        *sorted(str(p.relative_to(ROOT)) for p in (ROOT / ".github").rglob("*.yml")),
    ],
)
def test_a_file_for_the_forge_is_yaml(path):
    assert isinstance(yaml.safe_load((ROOT / path).read_text()), dict)


def test_the_public_ci_runs_what_everybody_runs():
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    steps = [step.get("run", "") for job in jobs.values() for step in job["steps"]]
    assert [step for step in steps if ".ci/run" in step]
    versions = {python for job in jobs.values() for python in job["strategy"]["matrix"]["python"]}
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert versions == {"3.11", "3.12"}
    assert requires == ">=3.11,<3.13"
