"""The values that the interface for notebooks returns: frames, figures, and how they show."""

from __future__ import annotations

import html
import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from dcray.fit.answer import Answer
    from dcray.plan.report import Comparison
    from dcray.report.analysis import Analysis

TEXTS = {"run_id": str, "config_hash": str, "key": str}  # a hash may look like a number


@dataclass(frozen=True, repr=False)
class Fitted:
    """Laws fitted to a grid of losses, and what recipes are worth by them; from `fit`."""

    answer: Answer

    @property
    def text(self) -> str:
        """Return what `dcray fit` prints."""
        from dcray.fit.output.text import answer_text

        return answer_text(self.answer)

    @property
    def laws(self) -> pd.DataFrame:
        """List recipe, law, constants, rmse (nats), aicc and flags: a row for each fit."""
        import pandas as pd

        rows = [
            {
                "recipe": recipe,
                "law": law,
                **dict(zip(fit.law.names, fit.theta, strict=True)),
                "rmse": fit.rmse,
                "aicc": fit.aicc,
                "flags": "; ".join(fit.flags),
            }
            for recipe, fits in self.answer.fits.items()
            for law, fit in fits.items()
        ]
        return pd.DataFrame(rows)

    @property
    def worth(self) -> pd.DataFrame:
        """List the worth of each recipe in unique data, by law, method and budget."""
        import pandas as pd

        return pd.DataFrame(self.to_dict()["efficiency"])

    @property
    def recipes(self) -> pd.DataFrame:
        """List recipes by worth at equal parameters, the one worth most first: a row a budget."""
        import pandas as pd

        return pd.DataFrame(self.to_dict()["by_worth"])

    @cached_property
    def figures(self) -> dict[str, Figure]:
        """Draw every figure for which the grid holds the data: {name: figure}."""
        from dcray.report.figures.draw import of_answer

        return {picture.name: picture.figure for picture in of_answer(self.answer)[0]}

    def to_dict(self) -> dict[str, Any]:
        """Return what `dcray fit --json` prints."""
        from dcray.fit.output.as_json import as_json

        return as_json(self.answer)

    def __repr__(self) -> str:
        """Return the text of `dcray fit`."""
        return self.text

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text)}</pre>"


@dataclass(frozen=True, repr=False)
class StudyReport:
    """A study on record, analyzed; from `read_study` or `analyze`."""

    analysis: Analysis
    directory: Path
    tracking_uri: str | None = None

    @property
    def headlines(self) -> list[str]:
        """Return the sentences of the answer; if no law can be fitted, one that says why."""
        return self.analysis.headlines or [self.analysis.no_law]

    @cached_property
    def cells(self) -> pd.DataFrame:
        """List the winner of every cell: the columns of cells.csv."""
        from dcray.report.data import cells_csvs

        return _frame(cells_csvs(self.analysis)["cells.csv"])

    @cached_property
    def recipes(self) -> pd.DataFrame:
        """List recipes by worth, at equal parameters and at equal FLOPs: recipes.csv."""
        from dcray.report.data import recipes_csv

        return _frame(recipes_csv(self.analysis))

    @cached_property
    def runs(self) -> pd.DataFrame:
        """List every run with its part (winner, fresh seed, candidate, left out): runs.csv."""
        from dcray.report.data import runs_csv

        return _frame(runs_csv(self.analysis))

    @cached_property
    def figures(self) -> dict[str, Figure]:
        """Draw every figure for which the study holds the data: {name: figure}."""
        from dcray.report.figures.draw import of_study

        return {picture.name: picture.figure for picture in of_study(self.analysis)[0]}

    def write(self) -> Path:
        """Write DIR/STUDY/analysis as `dcray analyze` does, and keep it in MLflow; return it."""
        from dcray.report.study import write

        return write(self.analysis, self.directory, tracking_uri=self.tracking_uri).folder

    def __repr__(self) -> str:
        """Return the sentences of the answer, and the recipes side by side if there are several."""
        from dcray.report.tables.contents import side_by_side

        return "\n\n".join([*self.headlines, *(one.plain() for one in side_by_side(self.analysis))])

    def _repr_html_(self) -> str:
        import pandas as pd

        from dcray.report.tables.contents import side_by_side

        sentences = "".join(f"<p>{html.escape(one)}</p>" for one in self.headlines)
        tables = [
            pd.DataFrame([one.texts(row) for row in one.rows], columns=list(one.header))
            for one in side_by_side(self.analysis)
        ]
        return sentences + "".join(each.to_html(index=False) for each in [*tables, self.cells])


@dataclass(frozen=True, repr=False)
class Planned:
    """Holds the forecast of a study: runs, FLOPs, device-hours, cost; from `plan`."""

    comparison: Comparison
    price: float | None = None

    @property
    def cells(self) -> pd.DataFrame:
        """List runs, flops, device_hours and cost of each cell by mode (grid, ladder, warm)."""
        import pandas as pd

        found = self.to_dict()
        modes = [*self.comparison.by_mode, "confirmations"]
        rows = [
            {
                **{name: cell[name] for name in ("size", "unique_tokens", "recipe")},
                "mode": mode,
                **cell[mode],
            }
            for cell in found["cells"]
            for mode in modes
        ]
        return pd.DataFrame(rows)

    @property
    def total(self) -> pd.DataFrame:
        """Sum all cells by mode; `search_does` marks what `dcray search` does."""
        import pandas as pd

        found = self.to_dict()
        rows = [
            {"mode": mode, **sums, "search_does": mode == found["search_does"]}
            for mode, sums in found["all"].items()
        ]
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """Return what `dcray plan --json` prints."""
        from dcray.plan.as_json import as_dict

        return as_dict(self.comparison, self.price)

    def __repr__(self) -> str:
        """Return the sums, and what they rest on."""
        return "\n".join([self.total.to_string(index=False), *self.comparison.assumptions])

    def _repr_html_(self) -> str:
        assumed = "".join(f"<li>{html.escape(one)}</li>" for one in self.comparison.assumptions)
        return f"{self.total.to_html(index=False)}<ul>{assumed}</ul>"


def _frame(text: str) -> pd.DataFrame:
    """Parse a CSV of ours; its hashes stay texts."""
    import pandas as pd

    return pd.read_csv(io.StringIO(text), dtype=TEXTS)
