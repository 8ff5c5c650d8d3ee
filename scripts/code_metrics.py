"""Measure the code: files, lines, import cycles between packages, and how things are named.

    python scripts/code_metrics.py [src/headscope]

`tests/project/test_code_style.py` holds the package to the same measures.
"""

from __future__ import annotations

import argparse
import ast
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VAGUE_NAMES = frozenset(("made", "found", "held", "each", "told", "kept", "given", "about", "whole", "one"))
"""names that say nothing of what they hold"""
VERBS = frozenset(
    """
    add adjust append apply assert attach average begin build call catch change check choose clean clear close collect
    combine compare compile compute connect convert copy count create cut decode defer delete describe detect divide
    download drain draw drop encode end ensure escape estimate evaluate exclude expand explain extract feed fill filter
    find finish fit flush format forward generate get group handle has hash hide highlight ignore import include index
    initialize insert inspect interpolate is join keep label limit list load locate make map mark match measure merge
    mix move name normalize note number observe open order pack pad parse pick place plan plot prefetch prepare print
    propagate prune put quantize queue raise rank read record reduce refuse register release remove rename render repair
    replace replay report request require reset resolve restart restore resume retry return run sample save scale score
    search segment select send set shift shorten show shrink shuffle shut silence skip solve sort split start stop store
    strip submit subtract sum summarize swap tabulate take test tokenize trace transpose trim try unpack update
    use validate verify wait walk watch weight wrap write yield
    """.split()  # noqa: SIM905
)
"""first words of function names"""


@dataclass(frozen=True)
class CodeMetrics:
    """What `measure_code` finds in a package."""

    files: int
    lines: int
    median_lines: float
    longest: int
    functions: int
    verb_first: float
    """share of the functions whose name begins with a verb"""
    vague_names: list[str]
    """assignments to names that say nothing, as file:line name"""
    imports: dict[str, set[str]]
    """packages and top-level modules, and which others each of them imports, inside functions too"""
    cycles: list[list[str]]
    """packages that import each other"""


def measure_code(root: Path) -> CodeMetrics:
    """Measure all Python files of a package."""
    paths = sorted(root.rglob("*.py"))
    trees = {path: ast.parse(path.read_text("utf-8")) for path in paths}
    lengths = [len(path.read_text("utf-8").splitlines()) for path in paths]
    names = [name for tree in trees.values() for name in list_functions(tree)]
    imports = list_imports(trees, root)
    return CodeMetrics(
        files=len(paths),
        lines=sum(lengths),
        median_lines=statistics.median(lengths),
        longest=max(lengths),
        functions=len(names),
        verb_first=sum(name.strip("_").split("_")[0] in VERBS for name in names) / len(names),
        vague_names=[
            f"{path.relative_to(root)}:{node.lineno} {node.id}"
            for path, tree in trees.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE_NAMES
        ],
        imports=imports,
        cycles=find_cycles(imports),
    )


def list_functions(tree: ast.Module) -> Iterator[str]:
    """Yield the names of functions and methods; of properties and special methods none."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("__"):
            decorators = " ".join(map(ast.unparse, node.decorator_list))
            if "property" not in decorators and "overload" not in decorators:
                yield node.name


def list_imports(trees: dict[Path, ast.Module], root: Path) -> dict[str, set[str]]:
    """Return which packages and top-level modules import which others; imports for type checkers alone do not count."""
    imports: dict[str, set[str]] = {}
    for path, tree in trees.items():
        importer = path.relative_to(root).with_suffix("").parts[0]
        if importer == "__init__":  # it imports public names when they are used
            continue
        imported = imports.setdefault(importer, set())
        for node in walk_without_type_checking(tree):
            imported |= {name for name in list_imported(node, root.name) if name != importer and is_part(root, name)}
    return imports


def walk_without_type_checking(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes but those under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield child
            yield from walk_without_type_checking(child)


def list_imported(node: ast.AST, package: str) -> list[str]:
    """Return the parts of a package that a statement may import."""
    if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == package:
        return node.module.split(".")[1:2] or [alias.name for alias in node.names]
    if isinstance(node, ast.Import):
        return [alias.name.split(".")[1] for alias in node.names if alias.name.startswith(f"{package}.")]
    return []


def is_part(root: Path, name: str) -> bool:
    """Return whether a package has a subpackage or module of this name."""
    return (root / name).is_dir() or (root / f"{name}.py").is_file()


def find_cycles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of packages each of which reaches all others of its group.

    >>> find_cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}})
    [['b', 'c']]
    """
    reached = {name: find_reached(imports, name) for name in imports}
    groups = {tuple(sorted(other for other in reached[name] if name in reached.get(other, ()))) for name in imports}
    return sorted(list(group) for group in groups if group)


def find_reached(imports: dict[str, set[str]], start: str) -> set[str]:
    """Return everything that a package imports, directly or through others."""
    reached, waiting = set[str](), list(imports.get(start, ()))
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += imports.get(name, ())
    return reached


def main() -> None:
    """Print the measures of a package."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", nargs="?", type=Path, default=Path("src/headscope"))
    metrics = measure_code(parser.parse_args().package)
    print(f"{metrics.files} files, {metrics.lines:,} lines; median {metrics.median_lines:g}, longest {metrics.longest}")
    print(f"{metrics.functions} functions, {metrics.verb_first:.0%} of their names begin with a verb")
    print(f"{len(metrics.vague_names)} assignments to vague names", *metrics.vague_names, sep="\n  ")
    print("import cycles:", "; ".join(" ↔ ".join(cycle) for cycle in metrics.cycles) or "none")


if __name__ == "__main__":
    main()
