"""`dcray plan`: what a study will take before anything is prepared, and where to start a cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dcray.cli.screen.console import names, out, say
from dcray.cli.search import BudgetsOption, RecipesOption, SizesOption, corpus_beside
from dcray.cli.train import DirOption, UriOption
from dcray.errors import ConfigError

if TYPE_CHECKING:
    from dcray.config.run import RunConfig
    from dcray.corpus.record import Manifest


def plan(
    study: Annotated[
        str | None,
        typer.Argument(metavar="STUDY", help="A study file, or a study that ships with dcray."),
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(help="For its vocabulary; else the study file's, where that is there."),
    ] = None,
    sizes: SizesOption = "",
    budgets: BudgetsOption = "",
    recipes: RecipesOption = "",
    price: Annotated[
        float | None, typer.Option(min=0.0, help="Of one device-hour, in any currency.")
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(help="A Ray launcher or KubeRay file; what it could never place is refused."),
    ] = None,
    suggest: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="SIZE BUDGET", help="Where to start this cell, and why there."),
    ] = None,
    directory: DirOption = Path("dcray-runs"),
    tracking_uri: UriOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell what a study will take: as a grid, on the ladder, warm-started. Needs no corpus, no Ray.

    [bold]Examples[/bold]

    dcray plan dclm --recipes ar

    dcray plan mini_cpu --price 0.05 --json

    dcray plan --suggest 257m 150m
    """
    if suggest is not None:
        _suggest(suggest, study, corpus, names(recipes), directory, tracking_uri, as_json=as_json)
        return
    if study is None:
        raise ConfigError("STUDY must be given: a study file, or a study that ships with dcray")
    from dcray.study.study import Study

    asked = Study.read(study)
    cell_specs = asked.select(sizes=names(sizes), budgets=names(budgets), recipes=names(recipes))
    manifest = _manifest(corpus, corpus_beside(asked))
    _warn_of_small(manifest, max(cell_spec.cell.unique_tokens for cell_spec in cell_specs))
    from dcray.cli.screen.plan_view import print_plan
    from dcray.plan.as_json import as_dict
    from dcray.plan.study_plan import plan_study

    found = plan_study(
        asked,
        cell_specs,
        directory,
        vocab_size=_vocab_size(manifest),
        cluster=cluster,
        tracking_uri=tracking_uri,
        tell=say,
    )
    if as_json:
        out.print_json(json.dumps(as_dict(found, price)))
    else:
        print_plan(found, price, study)


def _manifest(corpus: Path | None, of_study: Path | None) -> Manifest | None:
    """Read the manifest of the corpus that is named, else of the study's if that can be read."""
    from dcray.corpus.record import read_manifest

    if corpus is not None:
        return read_manifest(corpus)
    try:
        return read_manifest(of_study) if of_study else None
    except ConfigError:  # the corpus is not prepared yet: a plan needs none
        return None


def _vocab_size(manifest: Manifest | None) -> int | None:
    return manifest.tokenizer.vocab_size if manifest else None


def _warn_of_small(manifest: Manifest | None, largest: int) -> None:
    """Warn of a corpus that lies there and is smaller than the largest budget (tokens)."""
    if manifest and largest > manifest.train.tokens:
        say(
            f"warning: the corpus has {manifest.train.tokens:,} training tokens, and the largest "
            f"budget is {largest:,}: dcray search will refuse it; prepare a larger corpus"
        )


def _suggest(
    wanted: tuple[str, str],
    study: str | None,
    corpus: Path | None,
    recipes: list[str],
    directory: Path,
    tracking_uri: str | None,
    *,
    as_json: bool,
) -> None:
    from dcray.cli.screen.plan_view import print_suggestion, suggestion_dict
    from dcray.config.sizes import num_params
    from dcray.plan.estimate import planned_vocab_size
    from dcray.plan.history import studies_on_record
    from dcray.plan.suggest import published, recorded, suggest
    from dcray.study.study import Study
    from dcray.track.runs import every_result

    config, name = _start_of(wanted, study)
    recipe = recipes[0] if recipes else "ar"
    begun = name in studies_on_record(directory, tracking_uri) if study else False
    rows = every_result(directory, study=name, tracking_uri=tracking_uri) if begun else []
    known = recorded(rows, recipe)
    source = f'results of "{name}" on record, recipe {recipe}' if known else "the paper's winners"
    beside = corpus_beside(Study.read(study)) if study else None
    vocab_size, _ = planned_vocab_size(config, _vocab_size(_manifest(corpus, beside)))
    found = suggest(config, num_params(config.shape, vocab_size), known or published())
    if as_json:
        out.print_json(json.dumps(suggestion_dict(found, source)))
        return
    print_suggestion(wanted, found, source, config.batch_size * config.data.seq_len)
    if study and not known:
        out.print(f'"{name}" has no result of recipe {recipe} in this record yet', markup=False)


def _start_of(wanted: tuple[str, str], study: str | None) -> tuple[RunConfig, str]:
    """Build the configuration of a cell not searched yet; return it and the name of its study."""
    from dcray.config.run import RunConfig, override
    from dcray.study.schema import read_study

    size, budget = wanted
    changes: dict[str, Any] = {"size": size, "data.unique_tokens": budget}
    if study is None:
        return override(RunConfig(), changes), ""
    _, file = read_study(study)[0]
    if isinstance(file.sizes, dict) and size in file.sizes:
        changes["size"] = file.sizes[size]
    return override(override(RunConfig(), file.base), changes), file.study
