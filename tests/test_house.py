"""The house: imports point down only, Ray and MLflow stay at their edges, every part is told."""

import ast
import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dcray

ROOT = Path(dcray.__file__).parent
MODULES = {
    ".".join(["dcray", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__"): (
        path
    )
    for path in sorted(ROOT.rglob("*.py"))
}

# docs/ARCHITECTURE.md, from the bottom up. A layer holds packages and single modules; each imports
# from itself and from the layers below, so no two packages import each other.
LAYERS = [
    ["dcray", "errors"],
    ["plugins", "progress", "reports"],
    ["cluster", "config"],
    ["rng"],
    ["laws", "model", "objectives", "optimizers", "sources"],
    ["cost", "fit", "theory"],
    ["corpus", "types"],
    ["study", "track", "train"],
    ["evals", "search"],
    ["plan"],
    ["driver", "report"],
    ["api", "cli"],
    ["__main__"],
]
LAYER = {name: number for number, layer in enumerate(LAYERS) for name in layer}

RAY = {
    "cluster.start", "corpus.prepare", "corpus.split", "corpus.spool", "corpus.stream", "sources",
    "train.worker", "train.failure", "driver.session", "driver.tune", "driver.resources",
}  # fmt: skip
MAX_LINES, MAX_FUNCTION_LINES = 300, 60


def short(module: str) -> str:
    """ "train.loop" of "dcray.train.loop"."""
    return module.removeprefix("dcray.")


def room(module: str) -> str:
    """The package, or the single module, that a module belongs to: "train" of "train.loop"."""
    return short(module).split(".")[0]


def within(module: str, allowed: set[str]) -> bool:
    return any(short(module) == name or short(module).startswith(f"{name}.") for name in allowed)


def imports(module: str) -> Iterator[str]:
    """Every module that a module imports, inside functions too; not what only types need."""
    tree = ast.parse(MODULES[module].read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else str(node.module)


def test_every_package_stands_in_one_layer():
    assert {room(module) for module in MODULES} == set(LAYER)
    assert sum(map(len, LAYERS)) == len(LAYER)


def test_imports_point_down_only():
    upward = [
        f"{short(module)} imports {short(other)}"
        for module in MODULES
        for other in imports(module)
        if other.split(".")[0] == "dcray" and room(other) != room(module)
        if LAYER[room(other)] >= LAYER[room(module)]
    ]
    assert upward == []


def test_a_package_fits_on_one_shelf():
    """At most eleven modules a package, those of its own packages not counted.

    In `cli` a file is a command.
    """
    folders: dict[str, int] = {}
    for module, path in MODULES.items():
        if path.name != "__init__.py" and "." in short(module) and "cli." not in short(module):
            folder = short(module).rpartition(".")[0]
            folders[folder] = folders.get(folder, 0) + 1
    full = {name: count for name, count in folders.items() if count > 11}
    assert full == {}


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("ray", RAY),
        ("mlflow", {"track"}),
        ("optuna", {"search.sampler"}),
        ("matplotlib", {"report"}),
    ],
)
def test_edges(package, allowed):
    users = {
        module
        for module in MODULES
        if any(other.split(".")[0] == package for other in imports(module))
    }
    assert [module for module in users if not within(module, allowed)] == []


@pytest.mark.parametrize(
    ("siblings"),
    [("train", "objectives"), ("train", "optimizers"), ("fit", "laws"), ("laws", "track")],
)
def test_siblings_do_not_know_each_other(siblings):
    """The loop never names an objective, fit never names a law, laws never see a run."""
    module, other = siblings
    plugins = {m for m in MODULES if m.startswith(f"dcray.{other}.") and "._" not in m}
    for name in MODULES:
        if within(name, {module}):
            assert not plugins & set(imports(name))


def test_a_corpus_does_not_know_who_trains_on_it():
    users = [name for name in MODULES if within(name, {"corpus"})]
    assert [n for n in users if any(within(other, {"train"}) for other in imports(n))] == []


def test_nothing_prints_but_the_command_line():
    loud = [
        f"{short(module)}:{node.lineno}"
        for module, path in MODULES.items()
        if not within(module, {"cli"})
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id == "print"
    ]
    assert loud == []


def test_files_and_functions_hold_one_idea():
    long_files = {
        short(module): lines
        for module, path in MODULES.items()
        if (lines := len(path.read_text().splitlines())) > MAX_LINES
    }
    long_functions = {
        f"{short(module)}.{node.name}": code_lines(node)
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and code_lines(node) > MAX_FUNCTION_LINES
    }
    assert (long_files, long_functions) == ({}, {})


def code_lines(node: ast.FunctionDef) -> int:
    """Lines of a function's body without its docstring: what a reader must hold in mind."""
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return node.end_lineno - body[0].lineno + 1 if body else 0


def test_code_is_ascii_and_100_columns():
    for path in [*MODULES.values(), *Path(__file__).parent.rglob("*.py")]:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            code = re.sub(r"  # (type: ignore|noqa)\S*$", "", line)
            assert len(code) <= 100, f"{path}:{number}"
            if "tests" not in path.parts:
                assert line.isascii(), f"{path}:{number}"


def test_every_public_thing_has_a_docstring():
    silent = []
    for module, path in MODULES.items():
        tree = ast.parse(path.read_text())
        if not ast.get_docstring(tree):
            silent.append(short(module))
        silent += [
            f"{short(module)}.{node.name}"
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
            if not ast.get_docstring(node)
        ]
    assert silent == []


ALONE = """
import importlib, json, sys
sys.modules["__main__"].__file__ = "alone"
done = {}
for name in json.loads(sys.argv[1]):
    for loaded in [m for m in sys.modules if m.split(".")[0] == "dcray"]:
        del sys.modules[loaded]
    importlib.import_module(name)
    ray = sys.modules.get("ray")
    done[name] = bool(ray and ray.is_initialized())
print(json.dumps(done))
"""


def test_every_module_can_be_imported_first():
    """One interpreter; before each import dcray is forgotten, so no import order is relied on."""
    names = [name for name in MODULES if name != "dcray.__main__"]
    done = subprocess.run(
        [sys.executable, "-c", ALONE, json.dumps(names)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == dict.fromkeys(names, False)  # and Ray is not running


NO_HEAVY = """
import runpy, sys
try:
    runpy.run_module("dcray", run_name="__main__", alter_sys=True)
except SystemExit as end:
    code = end.code
heavy = {"torch", "ray", "mlflow", "optuna", "numpy", "matplotlib"} & set(sys.modules)
sys.exit(f"imports {heavy}" if heavy else code)
"""


@pytest.mark.parametrize("asked", [["--help"], ["train", "--help"], ["sizes", "--json"]])
def test_what_is_quick_imports_nothing_heavy(asked):
    done = subprocess.run(
        [sys.executable, "-c", NO_HEAVY, *asked], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_every_command_s_help_has_an_example(monkeypatch, capsys):
    from dcray import cli

    commands = [command.callback for command in cli.app.registered_commands]
    assert len(commands) >= 4
    for command in commands:
        monkeypatch.setattr(sys, "argv", ["dcray", command.__name__, "--help"])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        shown = capsys.readouterr().out
        assert stopped.value.code == 0
        assert "Example" in shown
        assert f"dcray {command.__name__}" in shown.split("Example")[1]


def test_plugins_are_found_where_they_lie():
    from dcray import plugins

    for kind in plugins.KINDS:
        package = importlib.import_module(f"dcray.{kind}")
        for info in pkgutil.iter_modules(package.__path__):
            if not info.name.startswith("_"):
                assert inspect.isclass(plugins.plugin(kind, info.name)) or callable(
                    plugins.plugin(kind, info.name)
                )
