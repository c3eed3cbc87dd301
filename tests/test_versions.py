"""Which versions were tested: one table, which metadata, scripts and documentation agree with."""

import configparser
import pathlib
import re
import sys

import pytest

import ampi.self_test as first
from ampi.base import versions

ROOT = pathlib.Path(__file__).parents[1]
PYTHONS = sorted({environment["Python"] for environment in versions.TESTED}, key=lambda v: int(v.partition(".")[2]))


@pytest.fixture(scope="module")
def metadata():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_lower_bounds_are_the_oldest_tested(metadata):
    bounds = dict(re.findall(r"^(\w+)>=([\d.]+)", metadata["options"]["install_requires"], re.M))
    for package in versions.PACKAGES:
        tested = versions.TESTED[0][package]
        assert tested == bounds[package] or tested == bounds[package] + ".0"
    for environment in versions.TESTED:
        assert set(environment) == {"Python", *versions.PACKAGES}


def test_every_dependency_has_a_lower_bound(metadata):
    required = metadata["options"]["install_requires"].split("\n")
    names = [line for line in required if line and not line.startswith("#")]
    assert len(names) > 5 and [name for name in names if ">=" not in name] == []


def test_pythons_of_metadata_and_scripts(metadata):
    assert metadata["options"]["python_requires"] == f">={PYTHONS[0]}"
    classified = re.findall(r"Python :: (\d\.\d+)", metadata["metadata"]["classifiers"])
    assert classified == PYTHONS
    script = (ROOT / "scripts" / "environment.sh").read_text()
    assert re.search(r'^PYTHONS="(.*)"$', script, re.M)[1].split() == PYTHONS[::-1]


@pytest.mark.parametrize("environment", versions.TESTED, ids=lambda e: f"{e['Python']}-{e['numpy']}")
def test_what_was_tested_is_not_untested(environment):
    assert versions.untested({**environment, "Python": environment["Python"] + ".99"}) == []


@pytest.mark.parametrize(
    "name, version, sentence",
    [
        ("Python", "3.99.1", "Python 3.99.1 is newer than the newest tested, 3.13"),
        ("numpy", "2.0.2", "numpy 2.0.2 is older than the oldest tested, 2.2.6"),
        ("scipy", "2.0.0rc1", "scipy 2.0.0rc1 is newer than the newest tested, 1.18.1"),
        ("h5py", "(not installed)", "h5py is not installed"),
    ],
)
def test_what_was_not_tested_is_named(name, version, sentence):
    found = {**versions.TESTED[-1], name: version}
    assert versions.untested(found) == [sentence]
    assert first.tested_text(found)[0] == f"not tested: {sentence}"


def test_bug_fix_releases_count_as_tested():
    assert versions.untested({**versions.TESTED[-1], "numpy": "2.5.99"}) == []


def test_installed_versions():
    found = versions.installed()
    assert found["Python"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}.")
    assert list(found) == list(versions.TESTED[0]) and "(not installed)" not in found.values()


def test_the_table_of_the_documentation(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import tables

    text = tables.versions_text()
    for environment in versions.TESTED:
        rows = "\n".join(f"   {'* -' if not k else '  -'} {value}" for k, value in enumerate(environment.values()))
        assert rows in text
    assert ".. tested-versions::" in (ROOT / "docs" / "versions.rst").read_text()
