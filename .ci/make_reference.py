"""The reference pages that follow from the source: python .ci/make_reference.py writes them.

tests/test_docs.py holds that the pages in docs/reference/ are what this makes.
"""

from __future__ import annotations

import inspect
import re
import tokenize
from io import StringIO
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from dcray.cli import app
from dcray.cli.sizes import size_rows
from dcray.config.run import RunConfig
from dcray.study import schema

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
FIRST = (
    "Every field of a study file, and of the configuration that `[base]`, a configuration file and "
    "`field=value` of `dcray train` set. A field that is not listed here is refused by name."
)
STUDY_TABLES = {
    "The file": schema.StudyFile,
    "`[recipes.NAME]`": schema.RecipeConfig,
    "`search = { ... }` of a recipe": schema.SearchConfig,
    '`[recipes.NAME.published."SIZE/BUDGET"]`': schema.PublishedWinner,
    "`[resources.SIZE]`": schema.ResourceConfig,
}


def commands() -> str:
    """Make the page of all commands from the parser itself."""
    group: Any = typer.main.get_command(app)
    parts = [
        "# Commands",
        "Every command with its arguments and options, as `dcray COMMAND --help` shows them.",
        "## `dcray`",
        _options(group.params),
    ]
    for name, command in sorted(group.commands.items()):
        parts += [f"## `dcray {name}`", *_help(command.help or ""), _options(command.params)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _help(text: str) -> list[str]:
    told, *rest = re.split(r"\[bold\]Examples?\[/bold\]", inspect.cleandoc(text))
    examples = "".join(rest)
    paragraphs = [_plain(one) for one in told.split("\n\n") if one.strip()]
    lines = [" ".join(one.split()) for one in examples.split("\n\n") if one.strip()]
    return paragraphs + (["```bash\n" + "\n".join(lines) + "\n```"] if lines else [])


def _plain(text: str) -> str:
    return " ".join(re.sub(r"\[/?\w*\]", "", text).split())


def _options(params: list[Any]) -> str:
    lines = ["| argument or option | value | default | what |", "|---|---|---|---|"]
    for one in params:
        if one.name in ("help", "install_completion", "show_completion") or one.hidden:
            continue
        names = (
            ", ".join(one.opts)
            if one.param_type_name == "option"
            else (one.metavar or one.name.upper())
        )
        flag = getattr(one, "is_flag", False)
        value = "" if flag else (one.metavar or _kind(one.type_descriptor.annotation))
        default = (
            "" if flag or one.default in (None, "", ()) or callable(one.default) else one.default
        )
        if one.required:
            default = "required"
        what = _plain(one.help or "")
        lines.append(f"| `{names}` | {_cell(value)} | {_code(default)} | {_cell(what)} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def _kind(annotation: Any) -> str:
    return {"str": "text", "int": "number", "float": "number", "Path": "path"}.get(
        getattr(annotation, "__name__", ""), "text"
    )


def study_file() -> str:
    """Make the page of a study file and of a configuration, from the models that check them."""
    parts = ["# The study file", FIRST]
    for title, model in STUDY_TABLES.items():
        parts += [f"## {title}", _first(model), _fields(model)]
    parts += ["## The configuration of a run", _first(RunConfig), _fields(RunConfig)]
    for name, field in RunConfig.model_fields.items():
        section = field.annotation
        if inspect.isclass(section) and issubclass(section, BaseModel) and section.model_fields:
            parts += [f"### `[{name}]`", _first(section), _fields(section)]
    parts += [
        "## Sizes",
        "Parameters with embeddings, at the vocabulary that is meant for each.",
        _sizes(),
    ]
    return "\n\n".join(parts) + "\n"


def _first(model: type[BaseModel]) -> str:
    return " ".join((inspect.getdoc(model) or "").split("\n\n")[0].split())


def _fields(model: type[BaseModel]) -> str:
    remarks = _remarks(model)
    lines = ["| field | type | default | what |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        annotation = model.__annotations__.get(name, field.annotation)
        kind = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        default = field.get_default(call_default_factory=True, validated_data={})
        shown = "required" if default is PydanticUndefined else default
        if isinstance(shown, BaseModel):
            shown = "its own table"
        rule = ", ".join(str(one) for one in field.metadata if type(one).__name__ in BOUNDS)
        what = "; ".join(filter(None, (remarks.get(name, ""), _bound(rule))))
        lines.append(f"| `{name}` | {_code(_short(kind))} | {_code(shown)} | {_cell(what)} |")
    return "\n".join(lines)


BOUNDS = ("Ge", "Gt", "Le", "Lt")


def _bound(rule: str) -> str:
    words = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    found = re.findall(r"\w+\((\w+)=([^)]+)\)", rule)
    return " and ".join(f"{words[name]} {value}" for name, value in found)


def _remarks(model: type[BaseModel]) -> dict[str, str]:
    """Read the comment behind each field, which is where the source explains it."""
    found: dict[str, str] = {}
    name = ""
    for token in tokenize.generate_tokens(StringIO(inspect.getsource(model)).readline):
        begins = re.match(r"    (\w+):", token.line)
        if token.type == tokenize.COMMENT and begins:
            name = begins.group(1)
            found[name] = token.string.lstrip("# ")
    return found


def _sizes() -> str:
    rows = size_rows()
    head = "| " + " | ".join(rows[0]) + " |"
    lines = ["| " + " | ".join(f"{value:,}" if isinstance(value, int) else value
                                for value in row.values()) + " |" for row in rows]  # fmt: skip
    return "\n".join([head, "|---" * len(rows[0]) + "|", *lines])


def _short(kind: str) -> str:
    """Leave the rules out of a type: "int" for "Annotated[int, Field(ge=1)]"."""
    while "Annotated[" in kind:
        shorter = re.sub(
            r"Annotated\[((?:[^\[\],]|\[[^\[\]]*\])+), \w+(?:\([^()]*\))?\]", r"\1", kind
        )
        if shorter == kind:
            return kind
        kind = shorter
    return kind


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


def _code(value: object) -> str:
    text = _cell(value)
    return f"`{text}`" if text and text not in ("required", "its own table") else text


PAGES = {"commands.md": commands, "study-file.md": study_file}

if __name__ == "__main__":
    for page, make in PAGES.items():
        (REFERENCE / page).write_text(make(), encoding="utf-8")
