"""The paper's run times beside what `plan` expects of the same runs on eight H100s."""

from __future__ import annotations

from dcray.config.run import RunConfig, override
from dcray.config.sizes import usual_vocab_size
from dcray.fit.paper import published
from dcray.fit.paper.reproduce import Check
from dcray.plan.estimate import estimate

ABOUT = 0.15  # relative tolerance of what the paper prints as "around" so many hours


def checks() -> list[Check]:
    """Check the paper's run times (hours on eight H100s) against what `plan` expects.

    They are the longest runs of three budgets, of AR (MIR, which trains twice), and of the dLLM.
    """
    figures, found = published.figures(), []
    printed, table = figures["run_hours_8_h100"], "run_hours_8_h100"
    for budget in ("200m", "300m", "400m"):
        num_epochs, *_ = figures["best_hyperparameters"][budget]["1.4b"]
        ours, hours = _hours("1.4b", budget, num_epochs, "ar"), printed[budget]
        found.append(Check(table, f"1.4b at {budget}", hours, ours, ABOUT * hours))
    mir = _hours("1.4b", "400m", figures["best_hyperparameters"]["400m"]["1.4b"][0], "mir")
    found.append(Check(table, "longest AR or MIR", printed["longest_ar"], mir, 0.0, at_most=True))
    protocol = figures["dllm_protocol"]
    longest = max(
        _hours(size, "100m", epochs, "mdlm", batch_size=protocol["batch_sequences"])
        for size, epochs in protocol["num_epochs"].items()
    )
    what = "longest dLLM"
    found.append(Check(table, what, printed["longest_dllm"], longest, 0.0, at_most=True))
    return found


def _hours(size: str, budget: str, num_epochs: int, objective: str, **more: int) -> float:
    """Estimate the hours of one run on eight H100s, as `plan` does."""
    fields = {
        "size": size, "num_epochs": num_epochs, "objective.name": objective,
        "data.unique_tokens": budget, "data.seq_len": 2048, "runtime.workers": 8, **more,
    }  # fmt: skip
    config = override(RunConfig(), fields).resolved(vocab_size=usual_vocab_size(size))
    return estimate(config, device="cuda").seconds / 3600
