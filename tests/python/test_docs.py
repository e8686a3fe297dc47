"""What README, docs and examples show is run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import topas

ROOT = Path(__file__).resolve().parents[2]


def blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_readme_code_runs() -> None:
    shown = blocks(ROOT / "README.md")
    assert shown
    for block in shown:
        exec(compile(block, "README.md", "exec"), {})


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_example_runs(example: Path) -> None:
    result = subprocess.run([sys.executable, str(example)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout


def test_every_setting_is_in_the_table_of_legal_values() -> None:
    text = (ROOT / "docs" / "scheduler.md").read_text(encoding="utf-8")
    missing = [field.name for field in fields(topas.Config) if f"`{field.name}`" not in text]
    assert not missing


def test_every_event_is_in_the_table_of_events() -> None:
    text = (ROOT / "docs" / "scheduler.md").read_text(encoding="utf-8")
    methods = [name for name in vars(topas.Scheduler) if not name.startswith("_")]
    missing = [name for name in methods if name not in text]
    assert not missing


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_tree_map_names_every_source() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    sources = {path.stem for path in (ROOT / "cpp" / "src").iterdir()}
    missing = [name for name in sorted(sources) if not re.search(rf"\b{name}\b", text)]
    assert not missing


def test_the_tree_map_names_every_module_of_the_plugin() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    modules = {path.stem for path in (ROOT / "python" / "topas" / "sglang").glob("[!_]*.py")}
    missing = [name for name in sorted(modules) if not re.search(rf"\b{name}\b", text)]
    assert not missing
