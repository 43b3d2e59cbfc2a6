"""prepare against single-thread tiktoken, and the two trainers of byte pairs.

Both sides of a comparison run here, one after the other, on the standard library's text.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from dcray.cluster.environment import set_environment
from dcray.cluster.start import ray_cluster
from dcray.corpus.manifest import Corpus
from dcray.corpus.prepare import prepare
from dcray.corpus.tokenizers import vocabularies
from dcray.sources import decode_utf8, parse


def seconds(work, *args, **kwargs):
    started = time.perf_counter()
    result = work(*args, **kwargs)
    return time.perf_counter() - started, result


def copies(texts, folder, times):
    """The texts `times` over, each copy made another document, as JSON lines of 8 MB or so."""
    import json

    for number in range(times):
        lines = [json.dumps({"text": f"{number} {text}"}) for text in texts]
        (folder / f"{number:03d}.jsonl").write_text("\n".join(lines) + "\n")


def trainers(texts):
    import rustbpe

    for vocab_size in (512, 4096, 16_384):
        ours, trained = seconds(vocabularies.train_bpe, f"bpe:{vocab_size}", texts)
        again = vocabularies.train_bpe(f"bpe:{vocab_size}", texts)
        theirs = rustbpe.Tokenizer()
        rust, _ = seconds(
            theirs.train_from_iterator,
            iter(texts),
            vocab_size - 2,
            pattern=vocabularies.BPE_PATTERN,
        )
        print(
            f"bpe:{vocab_size:<6} tokenizers {ours:.2f} s, rustbpe {rust:.2f} s, "
            f"two runs of tokenizers equal: {trained == again}"
        )


def throughput(texts, tokenizer, times, rounds):
    """Seconds of prepare over all of the text, and of one thread of tiktoken over the same."""
    encoder = Corpus.open(tokenizer).tokenizer._encoding
    with tempfile.TemporaryDirectory() as place, ray_cluster():
        folder = Path(place) / "texts"
        folder.mkdir()
        copies(texts, folder, times)
        size = sum(len(t.encode()) + 2 for t in texts) * times
        ratios = []
        for turn in range(rounds):
            single, count = seconds(
                lambda: sum(
                    len(encoder.encode_to_numpy(f"{n} {t}", disallowed_special=()))
                    for n in range(times)
                    for t in texts
                )
            )
            full = int(count * 0.95)
            whole, _ = seconds(
                prepare,
                parse(f"files:{folder}"),
                Path(place) / f"c{turn}",
                tokenizer="gpt2",
                budgets=[full],
                val_tokens=100_000,
            )
            ratios.append(single / whole)
            print(
                f"{size / 1e6:.0f} MB: prepare {whole:.1f} s ({size / whole / 1e6:.1f} MB/s, "
                f"{count / whole / 1e6:.2f} M tokens/s), tiktoken alone {single:.1f} s "
                f"({size / single / 1e6:.1f} MB/s), ratio {ratios[-1]:.2f}"
            )
        print(f"median ratio on {os.cpu_count()} cores: {statistics.median(ratios):.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10, help="copies of the 12 MB")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    set_environment()
    texts = [decode_utf8(path.read_bytes())[0] for path in parse("stdlib").paths()]
    texts = [text for text in texts if text]
    trainers(texts)
    with tempfile.TemporaryDirectory() as place:
        small = Path(place) / "c"
        prepare(parse("stdlib"), small, tokenizer="gpt2", budgets=[1000], val_tokens=1000)
        throughput(texts, small, args.times, args.rounds)


if __name__ == "__main__":
    main()
