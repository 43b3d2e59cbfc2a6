"""A run as a model of lm-eval: texts become ids here, score.py scores them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from dcray.evals.tasks.generate import generate
from dcray.evals.tasks.packing import Request
from dcray.evals.tasks.score import Score

Scorer = Callable[[Sequence[Request]], list[Score]]


@dataclass
class Truncation:
    """The number of requests of each task, and of those that lost tokens at the left."""

    asked: Counter[str] = field(default_factory=Counter)
    cut: Counter[str] = field(default_factory=Counter)

    def count(self, task: str | None, *, cut: bool) -> None:
        """Count one more request of a task, and whether it was cut."""
        self.asked[task or ""] += 1
        self.cut[task or ""] += cut

    def share(self, task: str) -> float:
        """Compute the share of a task's requests that were cut."""
        return self.cut[task] / self.asked[task] if self.asked[task] else 0.0


class RunLM(TemplateLM):  # type: ignore[misc]
    """Answers lm-eval's requests by one model; ids and windows are as in lm-eval's `hf` model."""

    def __init__(self, model: Any, tokenizer: Any, score: Scorer, *, seq_len: int) -> None:
        super().__init__()
        self.model, self.encoder, self.score, self.seq_len = model, tokenizer, score, seq_len
        self.truncation = Truncation()

    @property
    def eot_token_id(self) -> int:
        """Return the id of <|endoftext|>, which starts documents and texts without a context."""
        return int(self.encoder.eot_id)

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Encode a text without special ids."""
        ids: list[int] = self.encoder.encode_batch([string])[0].tolist()
        return ids

    def loglikelihood(
        self, requests: list[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Compute (log-likelihood in nats, is it greedy) of each (context, continuation)."""
        pairs = self._encoded([request.args for request in requests])
        scores = self.score(pairs)
        for request, score in zip(requests, scores, strict=True):
            self.truncation.count(request.task_name, cut=score.truncated)
        return [(score.log_likelihood, score.greedy) for score in scores]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Compute the log-likelihood (nats) of whole texts, each token with the longest context."""
        windows, owners = list[Request](), list[int]()
        for number, request in enumerate(requests):
            ids = self.tok_encode(request.args[0])
            for window in get_rolling_token_windows(ids, self.eot_token_id, self.seq_len, 1):
                context, continuation = make_disjoint_window(window)
                windows.append(Request(tuple(context), tuple(continuation)))
                owners.append(number)
        totals = [0.0] * len(requests)
        for owner, score in zip(owners, self.score(windows), strict=True):
            totals[owner] += score.log_likelihood
        for request in requests:
            self.truncation.count(request.task_name, cut=False)
        return totals

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Generate greedily up to a stop; raise NotImplementedError if sampling is asked for."""
        texts = []
        for request in requests:
            context, kwargs = request.args
            wanted = normalize_gen_kwargs(kwargs)
            if wanted["do_sample"]:
                raise NotImplementedError("generation here is greedy: set do_sample to false")
            ids = self.tok_encode(context) or [self.eot_token_id]
            room = max(1, self.seq_len - wanted["max_gen_toks"])
            self.truncation.count(request.task_name, cut=len(ids) > room)
            texts.append(
                generate(
                    self.model,
                    self.encoder,
                    ids[-room:],
                    until=[stop for stop in wanted["until"] if stop],
                    num_tokens=wanted["max_gen_toks"],
                    seq_len=self.seq_len,
                )
            )
        return texts

    def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[tuple[float, bool]]:
        scores = self.score([Request(tuple(a), tuple(b)) for _, a, b in requests])
        return [(score.log_likelihood, score.greedy) for score in scores]

    def _encoded(self, pairs: Sequence[tuple[str, str]]) -> list[Request]:
        """Encode pairs as lm-eval does: spaces at a context's end belong to the continuation.

        If the two merge so that no token is left of the continuation, it is encoded alone.
        """
        split = [_moved(context, continuation) for context, continuation in pairs]
        texts = list(dict.fromkeys(text for c, rest in split for text in (c, c + rest)))
        ids = dict(zip(texts, map(tuple, self._encode_all(texts)), strict=True))
        found = []
        for context, rest in split:
            before, whole = ids[context], ids[context + rest]
            if not before:
                found.append(Request((self.eot_token_id,), whole))
            else:
                after = whole[len(before) :] or tuple(self.tok_encode(rest) if rest else ())
                found.append(Request(before, after))
        return found

    def _encode_all(self, texts: list[str]) -> list[list[int]]:
        return [ids.tolist() for ids in self.encoder.encode_batch(texts)]


def _moved(context: str, continuation: str) -> tuple[str, str]:
    kept = context.rstrip()
    return (kept, context[len(kept) :] + continuation) if kept else (context, continuation)
