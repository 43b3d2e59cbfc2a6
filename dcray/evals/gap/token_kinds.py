"""The kind of a target token, by rules that a reader can check. The first rule that holds counts.

document     <|endoftext|>
white space  nothing but white space
non-English  a letter outside ASCII in it, or more than a tenth of the letters before it are
             such; other languages in plain letters are not distinguished from English
punctuation  neither a letter nor a digit in it
number       digits and no letter
continuation a piece of a character, or a letter that follows a letter or digit directly
common word  one of the hundred commonest English words
other word   the rest
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcray.errors import ConfigError

KINDS = (
    "document", "white space", "non-English", "punctuation", "number", "continuation",
    "common word", "other word",
)  # fmt: skip
UNKNOWN = "unknown"  # for a vocabulary that is known by its ids alone
FOREIGN_FRAC = 0.1
BEFORE, AFTER = 24, 8  # tokens of context that are decoded
BROKEN = "\N{REPLACEMENT CHARACTER}"
WORDS = """
the be to of and a in that have i it for not on with he as you do at this but his by
from they we say her she or an will my one all would there their what so up out if about
who get which go me when make can like time no just him know take people into year your
good some could them see other than then now look only come its over think also back
after use two how our work first well way even new want because any these give day most
us is are was were been has had
"""
COMMON = frozenset(WORDS.split())


@dataclass(frozen=True)
class Token:
    """One target in its context, with the probability that each run gave it."""

    index: int  # of the target in the validation stream
    gap: float
    probability_a: float
    probability_b: float
    before: str
    text: str
    after: str
    kind: str


def kind_of(text: str, before: str, *, is_end: bool) -> str:
    """Classify a token's text, given the text before it, as one of KINDS."""
    if is_end:
        return "document"
    if not text.strip():
        return "white space"
    if any(_foreign(c) for c in text) or _foreign_share(before) > FOREIGN_FRAC:
        return "non-English"
    if BROKEN in text:
        return "continuation"
    letters, digits = any(c.isalpha() for c in text), any(c.isdigit() for c in text)
    if not letters:
        return "number" if digits else "punctuation"
    if text[0].isalpha() and before[-1:].isalnum():
        return "continuation"
    return "common word" if text.strip().lower() in COMMON else "other word"


def in_context(
    tokenizer: Any,
    tokens: NDArray[Any],  # the validation stream
    targets: Sequence[int] | NDArray[np.int64],  # indices into the nats: target t stands at t - 1
    first: NDArray[np.float32],
    second: NDArray[np.float32],
) -> list[Token]:
    """Decode each target with the text around it, and classify it."""
    found = []
    for at in (int(t) for t in targets):
        here = at + 1
        before, text, after = (
            decode(tokenizer, tokens[low:high])
            for low, high in ((max(0, here - BEFORE), here), (here, here + 1),
                              (here + 1, here + 1 + AFTER))
        )  # fmt: skip
        is_end = int(tokens[here]) == tokenizer.eot_id
        readable = None not in (before, text, after)
        kind = kind_of(text or "", before or "", is_end=is_end) if readable else UNKNOWN
        a, b = float(first[at]), float(second[at])
        shown = text if readable and not is_end else f"<{int(tokens[here])}>"
        found.append(
            Token(here, a - b, float(np.exp(-a)), float(np.exp(-b)), before or "",
                  "<|endoftext|>" if is_end else shown or "", after or "", kind)
        )  # fmt: skip
    return found


def shares(found: Sequence[Token]) -> dict[str, float]:
    """Compute the share of each kind that occurs, in the order of the rules."""
    return {
        kind: sum(token.kind == kind for token in found) / len(found)
        for kind in (*KINDS, UNKNOWN)
        if any(token.kind == kind for token in found)
    }


def decode(tokenizer: Any, ids: NDArray[Any]) -> str | None:
    """Decode ids to text; None if the vocabulary is known by its ids alone."""
    try:
        return str(tokenizer.decode(ids))
    except ConfigError:
        return None


def _foreign(character: str) -> bool:
    return character != BROKEN and not character.isascii() and character.isalpha()


def _foreign_share(text: str) -> float:
    letters = [c for c in text if c.isalpha()]
    return sum(map(_foreign, letters)) / len(letters) if letters else 0.0
