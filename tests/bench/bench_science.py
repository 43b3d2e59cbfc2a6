"""Three cells of the published CPU table, trained by the product on nine document shuffles.

    python tests/bench/bench_science.py [FOLDER]

The table: plain eager PyTorch, one shuffle of the documents, means of two seeds; standard-library
corpus, 512 byte-pair ids, T = 128, batch 8, lr 5e-3, tau 1, 16 epochs, 400 validation rows. A
budget of 16k to 64k tokens is a handful of files, and so is the validation set: which ones they
are moves the loss, and the range over the shuffles is printed beside it.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from dcray.cluster.environment import set_environment
from dcray.cluster.start import ray_cluster

CELLS = {("60k", 16_000): 4.865, ("60k", 64_000): 3.549, ("226k", 32_000): 3.891}
SHUFFLES = (42, 1, 2, 3, 4, 5, 6, 7, 8)


class Silent:
    """A view that shows nothing."""

    def note(self, text: str) -> None: ...
    def show(self, event: object) -> None: ...


def main(folder: Path) -> None:
    """Train every cell on every shuffle; print losses, means and spreads beside the table's."""
    set_environment()
    from dcray.config.run import RunConfig, override
    from dcray.corpus.manifest import Corpus
    from dcray.corpus.prepare import prepare
    from dcray.driver.driver import train_runs
    from dcray.driver.session import Session
    from dcray.plugins import load
    from dcray.search.specs import single_run
    from dcray.track.store import Store

    losses: dict[tuple[str, int], list[tuple[float, float]]] = {cell: [] for cell in CELLS}
    with ray_cluster(num_cpus=2):
        for seed in SHUFFLES:
            path = folder / f"corpus-{seed}"
            prepare(
                load("sources", "stdlib"),
                path,
                tokenizer="bpe:512",
                budgets=[16_000, 32_000, 64_000],
                val_tokens=400 * 128 + 1,
                seed=seed,
            )
            corpus, wanted = Corpus.open(path), []
            for size, budget in CELLS:
                config = override(
                    RunConfig(),
                    {
                        "size": size,
                        "data.unique_tokens": budget,
                        "data.seq_len": 128,
                        "batch_size": 8,
                        "optim.lr": 5e-3,
                        "optim.weight_decay": round(8 * 128 / (5e-3 * budget), 3),
                        "validation.epochs": "end",
                    },
                )
                wanted.append(single_run(config, corpus, study=f"s{seed}", recipe="ar"))
            with Store.open(folder, study=f"s{seed}") as store:
                for ended in train_runs(wanted, Session(corpus, store, folder, Silent())):
                    cell = ended.key.cell
                    assert ended.val_loss is not None, ended
                    assert ended.val_bpb is not None, ended
                    found = losses[cell.size, cell.unique_tokens]
                    found.append((ended.val_loss, ended.val_bpb))
    print("cell          table   mean    lowest  highest  gap of the mean   bits per byte")
    for (size, budget), table in CELLS.items():
        values = [loss for loss, _ in losses[size, budget]]
        bits = statistics.mean(bpb for _, bpb in losses[size, budget])
        mean, low, high = statistics.mean(values), min(values), max(values)
        print(
            f"{size:5} {budget:7,}  {table:.3f}   {mean:.3f}   {low:.3f}   {high:.3f}    "
            f"{mean - table:+.3f}            {bits:.3f}"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()))
