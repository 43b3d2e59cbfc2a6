"""`dcray prepare`: text to a corpus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from dcray.cli.screen.console import err, last_word, out, progress_bar, say
from dcray.errors import ConfigError, plural

SMALL_VOCABULARY = 512  # every vocabulary holds the 256 bytes, used or not
FEW_DOCUMENTS = 5  # in a validation set: fewer give a warning
KNOWN_FRAC = 0.99  # of the text's characters, by a tokenizer: less gives a warning


def prepare(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="stdlib, files:PATH, huggingface:NAME|dclm|stack_v2, tokens:PATH, or a plug-in.",
        ),
    ],
    folder: Annotated[Path, typer.Option("--out", help="The corpus folder to make.")],
    budgets: Annotated[str, typer.Option(help="Unique tokens, nested: 64k,128k,1m.")],
    val_tokens: Annotated[str, typer.Option(help="Tokens of the validation set.")],
    tokenizer: Annotated[
        str | None,
        typer.Option(help="gpt2, bpe:V (trained here), hf:PATH or byte; of tokens: their own."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the document order.")] = 42,
    option: Annotated[
        list[str] | None,
        typer.Option(help="An option of the source, key=value; repeatable (text_column=content)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest.")] = False,
) -> None:
    """Turn text into a corpus: nested budgets, a validation set split off by document, a manifest.

    [bold]Examples[/bold]

    dcray prepare stdlib --out corpora/stdlib --tokenizer bpe:512
    --budgets 16k,32k,64k --val-tokens 51k

    dcray prepare files:texts --out corpora/texts --tokenizer gpt2 --budgets 1m --val-tokens 100k

    dcray prepare huggingface:dclm --out corpora/dclm --tokenizer gpt2
    --budgets 100m,200m,300m,400m --val-tokens 10m

    dcray prepare tokens:rows.pt --option vocabulary=gpt2 --option validation=val.pt
    --out corpora/rows --budgets 100m --val-tokens 10m
    """
    from dcray.sources import parse

    counts = _counts(budgets=budgets, val_tokens=val_tokens)
    built = parse(source, _options(option))
    say(f"preparing {folder} from {source}", quiet=as_json)
    from dcray.corpus.prepare import prepare as prepare_corpus

    there = (folder / "manifest.json").exists()
    with progress_bar() as on_progress, last_word():
        manifest = prepare_corpus(
            built,
            folder,
            tokenizer=tokenizer,
            budgets=counts["budgets"],
            val_tokens=counts["val_tokens"][0],
            seed=seed,
            on_progress=on_progress,
        )
    if as_json:
        out.print_json(json.dumps(manifest.model_dump(mode="json")))
        return
    _print_corpus(folder, manifest, there)
    for warning in filter(None, (tell(manifest) for tell in WARNINGS)):
        err.print(f"warning: {warning}", markup=False)


def _counts(**texts: str) -> dict[str, list[int]]:
    """Parse comma-separated counts ("64k,1m") by option; raise ConfigError with every problem."""
    from dcray.config.counts import parse_count

    counts: dict[str, list[int]] = {}
    problems = []
    for name, text in texts.items():
        try:
            counts[name] = [parse_count(part) for part in text.split(",")]
        except ValueError as error:
            problems.append(f'--{name.replace("_", "-")} {error}, got "{text}"')
    if len(counts.get("val_tokens", [0])) > 1:
        problems.append(f'--val-tokens must be one count, got "{texts["val_tokens"]}"')
    if problems:
        raise ConfigError(problems)
    return counts


def _options(pairs: list[str] | None) -> dict[str, Any]:
    options = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f'--option must be key=value, got "{pair}"')
        options[key.strip()] = value
    return options


def _print_corpus(folder: Path, manifest: Any, there: bool) -> None:
    from dcray.sources import left_out_line

    train, validation, tokenizer = manifest.train, manifest.validation, manifest.tokenizer
    overlap = manifest.overlap
    unit = "document" if manifest.split == "document" else "row"
    about = "" if manifest.available_exact else "about "
    rows = {
        "source": _source_line(manifest.source),
        "tokenizer": f"{tokenizer.name}, {tokenizer.vocab_size:,} ids, kept as {manifest.dtype}",
        "training": _part_line(train, unit),
        "used ids": f"{_number(manifest.used_ids)} of {tokenizer.vocab_size:,} occur in training",
        "available": f"{about}{manifest.available_tokens:,} tokens for training in the source",
        "validation": _part_line(validation, unit),
        "budgets": ", ".join(f"{budget.tokens:,}" for budget in manifest.budgets),
        "shared": f"{plural(overlap.shared_documents, unit)} in both validation and training",
        "copies": f"{overlap.duplicates_removed:,} exact, left out",
    }
    if files := manifest.source.get("validation_files"):
        more = f" and {plural(len(files) - 1, 'file')} more" if len(files) > 1 else ""
        rows["validation"] += f", from {files[0]}{more}"
    if left_out := manifest.source.get("left_out"):
        rows["left out"] = left_out_line(left_out)
    if manifest.invalid_utf8.count:
        bad = manifest.invalid_utf8
        rows["bad UTF-8"] = f"{plural(bad.count, 'sequence')} replaced, in {_named(bad)}"
    if manifest.empty_documents.count:
        rows["empty"] = f"left out: {_named(manifest.empty_documents)}"
    out.print(
        f"[bold]{escape(str(folder))}[/bold] {'is already there' if there else 'is prepared'}"
    )
    for name, text in rows.items():
        out.print(f"  {name:<11} {text}", markup=False)


def _number(count: int | None) -> str:
    return "not counted," if count is None else f"{count:,}"


def _dead_ids(manifest: Any) -> str:
    """Warn in a sentence if most ids of a vocabulary of text never occur in training, else ""."""
    used, size = manifest.used_ids, manifest.tokenizer.vocab_size
    if used is None or 2 * used >= size or size < SMALL_VOCABULARY or manifest.split == "row":
        return ""
    smaller = max(1 << (used.bit_length() - 1), 2 * 256)
    fits = f"a smaller vocabulary fits (--tokenizer bpe:{smaller}), or a larger budget"
    return (
        f"{size - used:,} of the {size:,} ids of {manifest.tokenizer.name} never occur in the "
        f"{manifest.train.tokens:,} training tokens: their embeddings are parameters that nothing "
        f"trains; {fits if smaller < size else 'a larger budget would train them'}"
    )


def _few_documents(manifest: Any) -> str:
    """Warn in a sentence if the validation set has hardly any documents, else ""."""
    found = manifest.validation.documents
    if manifest.split == "row" or found >= FEW_DOCUMENTS:
        return ""
    return (
        f"the validation set is of {plural(found, 'document')}: a loss on it says little of other "
        "text. More and shorter documents make it broader, or a larger --val-tokens"
    )


def _unknown_text(manifest: Any) -> str:
    """Warn in a sentence if the tokenizer does not know some of the text, else ""."""
    known = manifest.known_frac
    if known is None or known >= KNOWN_FRAC:
        return ""
    return (
        f"{1 - known:.1%} of the text's characters are unknown to {manifest.tokenizer.name} and "
        "became <unk> or nothing: a loss on this corpus says nothing of them"
    )


WARNINGS = (_dead_ids, _few_documents, _unknown_text)


def _part_line(part: Any, unit: str) -> str:
    text = "" if part.source_bytes is None else f" ({part.source_bytes:,} bytes of text)"
    return f"{plural(part.tokens, 'token')} of {plural(part.documents, unit)}{text}"


def _named(notes: Any) -> str:
    few = ", ".join(notes.examples) + (", ..." if notes.documents > len(notes.examples) else "")
    return f"{plural(notes.documents, 'document')} ({few})"


def _source_line(source: dict[str, Any]) -> str:
    revision, licence = source.get("revision"), source.get("licence")
    return f"{source['source']}, revision {revision or 'none'}, licence {licence or 'not stated'}"
