"""Contents of releases: metadata, versions in several places, distributions, workflows, web site."""

import configparser
import importlib.util
import io
import json
import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest
from patience import patience

import ampi

ROOT = pathlib.Path(__file__).parents[1]


def load(name):
    """A module in ``scripts``, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


distributions, publish_docs, home = load("distributions"), load("publish_docs"), load("home")


def test_versions_agree():
    assert distributions.wrong_versions(None) == []
    assert set(distributions.versions().values()) == {ampi.__version__}


def test_a_release_with_another_version_or_without_its_news_is_refused():
    assert len(distributions.wrong_versions("99.0")) == 4
    text = (ROOT / "CHANGELOG.rst").read_text()
    unreleased = f"{ampi.__version__} (unreleased)" in text
    assert bool(distributions.wrong_versions(ampi.__version__)) == unreleased


def test_the_changelog_has_a_section_for_each_version_newest_first():
    found = re.findall(r"^(\d+(?:\.\d+)+\S*)(?: \((.*)\))?\n=+$", (ROOT / "CHANGELOG.rst").read_text(), re.M)
    versions = [tuple(map(int, version.split("."))) for version, _ in found]
    assert versions and versions == sorted(versions, reverse=True)
    assert all(re.fullmatch(r"unreleased|\d{4}-\d\d-\d\d", when) for _, when in found)
    assert all(when != "unreleased" for _, when in found[1:])


def test_the_conda_recipe_has_the_requirements_of_the_metadata():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    required = re.findall(r"^(\w+)>=([\d.]+)", parser["options"]["install_requires"], re.M)
    recipe = (ROOT / "packaging" / "conda" / "recipe.yaml").read_text()
    run = recipe[recipe.index("  run:") : recipe.index("tests:")]
    listed = dict(re.findall(r"- ([\w-]+) >=([\d.]+)", run))
    assert listed.pop("python") == parser["options"]["python_requires"].strip(">=")
    assert {name.replace("-", "_"): bound for name, bound in listed.items()} == dict(required)
    assert parser["options.entry_points"]["console_scripts"].strip() in recipe


def names_in_scripts(text):
    return re.findall(r"(?<![\w/])scripts/[\w.]+", text)


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.y*ml")), ids=lambda path: path.name)
def test_workflows_call_scripts_that_exist(path):
    text = path.read_text()
    for name in names_in_scripts(text):
        assert (ROOT / name).is_file(), name
    for python in re.findall(r"python: \[(.*)\]", text):
        known = (ROOT / "scripts" / "environment.sh").read_text()
        tested = re.search(r'^PYTHONS="(.*)"$', known, re.M)[1].split()
        assert set(tested) <= set(re.findall(r"[\d.]+", python))
    for mpi in re.findall(r"mpi: \[(.*)\]", text):
        assert mpi.split(", ") == ["mpich", "openmpi", "impi"]
    for option in re.findall(r"scripts/test ([^\n]*)", text):
        assert set(re.findall(r"--[\w-]+", option)) <= set(
            "--mpi --python --extra --oldest-releases --few-cases --within".split()
        )


def test_scripts_that_people_start_are_executable():
    for path in sorted((ROOT / "scripts").iterdir()):
        if path.is_file() and not path.suffix:
            assert path.stat().st_mode & 0o100, path.name


METADATA = """\
Metadata-Version: 2.4
License-Expression: BSD-3-Clause
Project-URL: Documentation, https://a
Project-URL: Source, https://a
Project-URL: Issues, https://a
Project-URL: Changelog, https://a
Classifier: Programming Language :: Python
"""


def make(folder, in_sdist, in_wheel, metadata=METADATA):
    """An sdist and a wheel with empty files of these names."""
    with tarfile.open(folder / "ampi-1.tar.gz", "w:gz") as file:
        for name in in_sdist:
            file.addfile(tarfile.TarInfo(f"ampi-1/{name}"), io.BytesIO())
    with zipfile.ZipFile(folder / "ampi-1-py3-none-any.whl", "w") as file:
        for name in in_wheel:
            file.writestr(name, "")
        file.writestr("ampi-1.dist-info/METADATA", metadata)
    return distributions.problems_of(folder)


SOURCE = [name for name in distributions.tracked() if not name.startswith(distributions.LEFT_OUT)]
PACKAGE = [name for name in SOURCE if name.startswith("ampi/")]


def test_complete_distributions_have_no_problems(tmp_path):
    assert make(tmp_path, [*SOURCE, "PKG-INFO", "ampi.egg-info/SOURCES.txt"], PACKAGE) == []
    assert {"tests/conftest.py", "tests/data/bm1/ligand.in", "docs/conf.py", "scripts/test"} <= set(SOURCE)
    assert {"ampi/py.typed", "ampi/reports/page/page.html"} <= set(PACKAGE)


@pytest.mark.parametrize("name", ["tests/conftest.py", "tests/data/bm1/ligand.in", "docs/conf.py"])
def test_what_is_missing_in_an_sdist_is_named(name, tmp_path):
    (problem,) = make(tmp_path, [other for other in SOURCE if other != name], PACKAGE)
    assert name in problem and "MANIFEST.in" in problem


def test_other_problems_of_distributions_are_named(tmp_path):
    wrong = METADATA.replace("License-Expression: BSD-3-Clause", "License: BSD").replace("Issues", "Tickets")
    wrong += "Classifier: License :: OSI Approved :: BSD License\n"
    (tmp_path / "a").mkdir()
    found = make(tmp_path / "a", [*SOURCE, "docs/left.h5"], [*PACKAGE[1:], "tests/conftest.py"], wrong)
    for part in ("sdist has docs/left.h5", f"wheel lacks {PACKAGE[0]}", "wheel has tests/conftest.py", "SPDX"):
        assert any(part in problem for problem in found), part
    assert any("URL Issues" in problem for problem in found) and any("classifier" in problem for problem in found)
    assert len(found) == 6


def test_readmes_first_example_is_found():
    program, output = distributions.first_example()
    compile(program, "README", "exec")
    assert "import ampi" in program and output.strip()


@pytest.mark.slow
def test_a_users_program_with_annotations_runs():
    """Type checkers look at it in ``scripts/package``."""
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "data" / "typed_program.py"],
        **{"capture_output": True, "text": True, "check": False, "timeout": patience(100)},
    )
    assert done.returncode == 0, done.stderr


def test_the_web_site_has_a_folder_for_each_version(tmp_path):
    built, site = tmp_path / "html", tmp_path / "site"
    built.mkdir(), site.mkdir()
    lead = lambda: re.search(r'url=([^"]*)/', (site / "index.html").read_text())[1]
    listed = lambda: [entry["name"] for entry in json.loads((site / "versions.json").read_text())]
    (built / "index.html").write_text("first")
    publish_docs.main([str(site), "--version", "main", "--built", str(built)])
    assert lead() == "main" and listed() == ["main (stable)"]
    for version in ("v0.9.0", "v0.10.0", "v1.0.0rc1", "v0.9.1"):
        publish_docs.main([str(site), "--version", version, "--built", str(built)])
    assert lead() == "0.10.0"
    assert listed() == ["main", "1.0.0rc1", "0.10.0 (stable)", "0.9.1", "0.9.0"]
    (built / "index.html").write_text("second")
    publish_docs.main([str(site), "--version", "main", "--built", str(built)])
    assert (site / "main" / "index.html").read_text() == "second"
    assert (site / "0.9.1" / "index.html").read_text() == "first"
    assert "../0.10.0" in (site / "stable" / "index.html").read_text()


def test_the_home_of_the_project_is_filled_in_everywhere(tmp_path):
    old = home.addresses()
    for name in home.FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    new = {key: f"https://{key}.test/x" for key in old}
    home.change(new, tmp_path)
    assert home.addresses(tmp_path) == new
    for name in home.FILES:
        text = (tmp_path / name).read_text()
        assert "https://" in text and old["home"] not in text
    links = re.findall(r"https://docs[.]test/x[^>\s]*", (tmp_path / "README.rst").read_text())
    pages = [link.removeprefix("https://docs.test/x/") for link in links]
    assert len(pages) > 8 and all(
        (ROOT / "docs" / page.replace(".html", ".rst")).is_file() for page in pages if page.endswith(".html")
    )
    home.change(old, tmp_path)
    assert all((tmp_path / name).read_text() == (ROOT / name).read_text() for name in home.FILES)
