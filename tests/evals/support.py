"""Small models of bytes and of byte pairs, and the plainest scorer there can be."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import torch
from lm_eval.api.instance import Instance

from dcray.config.run import RunConfig, override
from dcray.corpus.tokenizers.encoders import ByteTokenizer
from dcray.corpus.tokenizers.vocabularies import train_bpe
from dcray.evals.tasks.harness import RunLM
from dcray.evals.tasks.score import log_likelihoods
from dcray.model.transformer import Transformer
from dcray.train.shard import RankContext, build_model
from tests.support import TINY

SEQ_LEN = 32
BYTES = ByteTokenizer()
LETTERS = "abc de\n\u00e9\u6771\U0001f600 the and"


def byte_pairs() -> Any:
    """300 ids trained on a few words."""
    words = "the cat and the other cat sat on the mat with another hat caf\u00e9 caf\u00e9s"
    return train_bpe("bpe:300", [f"{words} {i}" for i in range(30)])


def model_of(vocab_size: int, **changes: Any) -> Transformer:
    """An untrained model with windows of half its rows of 32 tokens, weights large enough to
    tell tokens apart."""
    dotted = {name.replace("__", "."): value for name, value in changes.items()}
    base = TINY | {"data.seq_len": SEQ_LEN, "data.unique_tokens": 1000, "model.dropout": 0.0}
    config = override(RunConfig(), base | dotted).resolved(vocab_size=vocab_size)
    model = build_model(config, RankContext(torch.device("cpu")))
    with torch.no_grad():
        model.embed.weight.mul_(16)
        model.head.weight.mul_(3)
    return model.eval().requires_grad_(False)


def lm_of(model: Transformer, tokenizer: Any, batch_size: int) -> RunLM:
    """The model as lm-eval sees it."""
    score = partial(log_likelihoods, model, seq_len=SEQ_LEN, batch_size=batch_size)
    return RunLM(model, tokenizer, score, seq_len=SEQ_LEN)


def instances(pairs: list[tuple[Any, ...]], kind: str = "loglikelihood") -> list[Instance]:
    """lm-eval's requests."""
    return [
        Instance(kind, {}, pair, 0, metadata=("task", number, 1))
        for number, pair in enumerate(pairs)
    ]


def text(rng: random.Random, length: int) -> str:
    """Random characters, among them ones of two, three and four bytes."""
    return "".join(rng.choices(LETTERS, k=length))


def brute_force(
    model: Transformer, tokenizer: Any, context: str, continuation: str
) -> tuple[float, bool]:
    """Token by token, each from a row of its own that is padded to the trained length."""
    kept = context.rstrip()
    if kept:
        context, continuation = kept, context[len(kept) :] + continuation
    encode = lambda text: tokenizer.encode_batch([text])[0].tolist()  # noqa: E731
    whole, before = encode(context + continuation), encode(context)
    after = whole[len(before) :] if before else whole
    if before and not after and continuation:
        after = encode(continuation)
    ids = (before or [tokenizer.eot_id]) + after
    ids = ids[-(SEQ_LEN + 1) :]
    places = range(max(1, len(ids) - len(after)), len(ids))
    if not places:
        return 0.0, True
    rows = torch.tensor([ids[:place] + [0] * (SEQ_LEN - place) for place in places])
    logits = model(rows, causal=True)[:, :, : model.vocab_size].double()
    said = [logits[i, place - 1] for i, place in enumerate(places)]
    nats = [float(s.log_softmax(-1)[ids[place]]) for s, place in zip(said, places, strict=True)]
    greedy = [int(s.argmax()) == ids[place] for s, place in zip(said, places, strict=True)]
    return sum(nats), all(greedy)
