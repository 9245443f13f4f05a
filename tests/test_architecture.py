"""The shape of the code: what ruff, mypy and import-linter (`make check`) do not look at."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(path for folder in ("rig", "tests", "scripts") for path in (ROOT / folder).rglob("*.py"))
LONGEST_FILE, LONGEST_FUNCTION = 400, 60
VAGUE = re.compile(r"(?:^|_)(?:manager|handler|helper|engine|utils?|common|base|misc|runner)s?(?:$|_)")
MOCKS = {"unittest", "mock", "pytest_mock", "flexmock", "doublex"}
HEAVY = ("torch", "pandas", "docker", "matplotlib", "numpy", "pyroute2")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture(params=SOURCES, ids=named)
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_files_are_short_and_say_what_they_are_for(path: Path, tree: ast.Module) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE
    docstring = ast.get_docstring(tree)
    assert docstring or (path.name == "__init__.py" and not tree.body)


def test_functions_are_short(tree: ast.Module) -> None:
    lengths = {
        node.name: (node.end_lineno or 0) - node.lineno for node in ast.walk(tree) if isinstance(node, FUNCTIONS)
    }
    assert {name: length for name, length in lengths.items() if length >= LONGEST_FUNCTION} == {}


def test_names_say_something(path: Path, tree: ast.Module) -> None:
    """A module, class or function called handler, helper or the like has not found its name yet."""
    assert [name for name in (path.stem, *definitions(tree)) if VAGUE.search(snake(name))] == []


def test_no_mock_library(tree: ast.Module) -> None:
    imported = {name.partition(".")[0] for name in imports(tree)}
    assert imported & MOCKS == set()


def test_a_start_of_the_command_line_imports_nothing_heavy() -> None:
    """`rig --help` must answer at once; what is heavy is imported where it is used."""
    modules = [name for name in ("cli", "pipeline") if (ROOT / "rig" / f"{name}.py").exists()]
    code = (
        "".join(f"import rig.{name}\n" for name in modules)
        + f"import sys; print(*[n for n in {HEAVY} if n in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True)
    assert answer.stdout.split() == []


def test_make_check_looks_at_the_rest() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    check = makefile.partition("\ncheck:")[2].partition("\n\n")[0]
    assert re.findall(r"\$\(BIN\)/(\S.*)", check) == ["ruff check", "ruff format --check", "mypy", "lint-imports"]


def definitions(tree: ast.Module) -> Iterator[str]:
    """Classes and functions; a test's name is a sentence, in which an engine may occur."""
    names = (node.name for node in ast.walk(tree) if isinstance(node, (*FUNCTIONS, ast.ClassDef)))
    return (name for name in names if not name.startswith("test_"))


def imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def test_the_dockerfile_people_look_for_is_the_one_that_is_used() -> None:
    """A copy, not a link: archives and some checkouts turn a link into a file with a path in it."""
    assert (ROOT / "Dockerfile").read_bytes() == (ROOT / "rig/lab/Dockerfile").read_bytes()
