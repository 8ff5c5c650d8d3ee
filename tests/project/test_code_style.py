"""How the code is organized and named: what a newcomer relies on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripts.code_metrics import CodeMetrics, find_cycles, measure_code

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def metrics() -> CodeMetrics:
    return measure_code(ROOT / "src" / "headscope")


def test_packages_do_not_import_each_other(metrics: CodeMetrics):
    assert metrics.cycles == []
    assert {"studies", "page", "run"} <= metrics.imports.keys()
    assert "corpus" in metrics.imports["run"]


@pytest.mark.parametrize(
    ("package", "later"), [("model", "pruning"), ("tally", "run"), ("run", "studies"), ("studies", "page")]
)
def test_packages_import_only_what_comes_before(metrics: CodeMetrics, package: str, later: str):
    assert later not in metrics.imports[package]


def test_only_one_package_knows_transformers():
    imports = re.compile(r"^\s*(import|from) transformers\b", re.MULTILINE)
    paths = (ROOT / "src" / "headscope").rglob("*.py")
    packages = {
        path.parent.relative_to(ROOT / "src" / "headscope").parts[:1]
        for path in paths
        if imports.search(path.read_text("utf-8"))
    }
    assert packages == {("model",)}


def test_function_names_begin_with_verbs(metrics: CodeMetrics):
    assert metrics.verb_first >= 0.85


def test_names_say_what_they_hold(metrics: CodeMetrics):
    assert metrics.vague_names == []


def test_no_module_shadows_the_standard_library():
    modules = (path.stem for path in (ROOT / "src" / "headscope").rglob("*.py"))
    assert {name for name in modules if not name.startswith("__")} & sys.stdlib_module_names == set()


def test_test_modules_do_not_import_each_other():
    imports = re.compile(r"^\s*(from tests\.\S*\btest_\w+ import|from tests\S* import test_).*", re.MULTILINE)
    paths = (ROOT / "tests").rglob("*.py")
    assert [match.group() for path in paths for match in imports.finditer(path.read_text("utf-8"))] == []


def test_test_folders_are_named_like_packages():
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/*.py")}
    packages = {path.name for path in (ROOT / "src" / "headscope").iterdir() if path.is_dir()}
    assert folders - packages == {"helpers", "portability", "project"}


def test_cycles_and_names_are_found(tmp_path: Path):
    package = tmp_path / "small"
    (package / "a").mkdir(parents=True)
    (package / "a" / "first.py").write_text("from small.b import x\n\n\ndef total(): ...\n", "utf-8")
    (package / "b.py").write_text("def count():\n    from small import a\n    made = a\n    return made\n", "utf-8")
    metrics = measure_code(package)
    assert metrics.cycles == [["a", "b"]]
    assert metrics.verb_first == 0.5
    assert metrics.vague_names == ["b.py:3 made"]


def test_imports_for_type_checkers_are_no_cycle(tmp_path: Path):
    package = tmp_path / "small"
    package.mkdir()
    (package / "a.py").write_text("if TYPE_CHECKING:\n    from small import b\n\n\ndef run(): ...\n", "utf-8")
    (package / "b.py").write_text("import small.a\n", "utf-8")
    assert measure_code(package).cycles == []


def test_longer_cycles_are_found():
    assert find_cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_the_script_prints_the_measures():
    script = [sys.executable, str(ROOT / "scripts" / "code_metrics.py"), str(ROOT / "src" / "headscope")]
    output = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert "import cycles: none" in output
