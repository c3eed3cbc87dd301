"""Copy the built documentation into a web site that has a folder for each version.

    python3 scripts/publish_docs.py SITE --version v1.2.0      (or: main)

``SITE/versions.json`` lists the folders, newest first, for the choice in the pages' margin; ``SITE/stable`` and
``SITE/index.html`` lead to the newest release (to ``main`` before there is one).
"""

import argparse
import json
import pathlib
import re
import shutil

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILT = ROOT / "docs" / "build" / "html"
LEAD = """\
<!DOCTYPE html>
<meta charset="utf-8">
<title>ampi</title>
<meta http-equiv="refresh" content="0; url={0}/">
<link rel="canonical" href="{0}/">
<a href="{0}/">{0}</a>
"""


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="scripts/publish_docs.py", description=__doc__.splitlines()[0])
    parser.add_argument("site", type=pathlib.Path)
    parser.add_argument("--version", required=True, help="main, or the tag of a release")
    parser.add_argument("--built", type=pathlib.Path, default=BUILT, help="the output of scripts/docs")
    options = parser.parse_args(arguments)
    publish(options.site, options.version.removeprefix("v"), options.built)


def publish(site, version, built):
    """Replace one version's folder, and write what depends on all of them."""
    folder = site / version
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(built, folder)
    known = sorted((path.name for path in site.iterdir() if is_version(path)), key=numbers, reverse=True)
    latest = newest(known)
    entries = [{"version": name, "name": f"{name} (stable)" if name == latest else name} for name in known]
    (site / "versions.json").write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    (site / "stable").mkdir(exist_ok=True)
    (site / "stable" / "index.html").write_text(LEAD.format(f"../{latest}"), encoding="utf-8")
    (site / "index.html").write_text(LEAD.format(latest), encoding="utf-8")
    (site / ".nojekyll").touch()  # folders whose names begin with _ are served


def is_version(path):
    return path.is_dir() and (path.name == "main" or re.fullmatch(r"\d+(\.\d+)+\w*", path.name) is not None)


def numbers(name):
    """The order of versions: main is newer than all releases, and a release newer than its candidates."""
    if name == "main":
        return (1, (), True)
    return (0, tuple(map(int, re.match(r"[\d.]*\d", name)[0].split("."))), name.replace(".", "").isdigit(), name)


def newest(known):
    """The newest release; a candidate or main only where there is none."""
    releases = [name for name in known if name.replace(".", "").isdigit()]
    return (releases or known)[0]


if __name__ == "__main__":
    main()
