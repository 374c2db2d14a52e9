# SPDX-License-Identifier: Apache-2.0
"""The metadata of the Python package, from pyproject.toml, as `pip` would write it: so that
importlib.metadata and entry points
work. Arguments: the version, the directory of packages."""
import sys
import tomllib
from pathlib import Path

version, directory = sys.argv[1:]
project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
metadata = Path(directory, f"{project['name']}-{version}.dist-info")
metadata.mkdir()
lines = [
    "Metadata-Version: 2.1",
    f"Name: {project['name']}",
    f"Version: {version}",
    f"Summary: {project['description']}",
    f"Requires-Python: {project['requires-python'].replace(' ', '')}",
]
for extra, requirements in project["optional-dependencies"].items():
    lines += [f"Provides-Extra: {extra}"]
    lines += [f"Requires-Dist: {requirement} ; extra == '{extra}'" for requirement in requirements]
(metadata / "METADATA").write_text("\n".join(lines) + "\n")
(metadata / "INSTALLER").write_text("debian\n")
groups = [f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
          for group, entries in project["entry-points"].items()]
(metadata / "entry_points.txt").write_text("\n".join(groups))
