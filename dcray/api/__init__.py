"""dcray for notebooks: the commands as functions, with pandas frames and matplotlib figures.

    import dcray.api as dc

    fitted = dc.fit(frame, baseline="ar", recipe="mir")
    study = dc.read_study("quickstart", dir="dcray-runs")

Nothing here computes what a command does not: `fit`, `read_study`, `analyze`, `plan` and `train`
call what the commands of those names call. Losses are nats per token, sizes parameters with
embeddings, budgets unique tokens.
"""

from dcray.api.functions import analyze, fit, plan, read_study, train
from dcray.api.results import Fitted, Planned, StudyReport
from dcray.errors import ConfigError

__all__ = ["ConfigError", "Fitted", "Planned", "StudyReport", "analyze", "fit", "plan",
           "read_study", "train"]  # fmt: skip
