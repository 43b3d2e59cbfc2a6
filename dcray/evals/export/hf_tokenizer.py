"""A corpus's tokenizer as a tokenizer.json that yields the same ids."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from dcray.corpus.tokenizers.encoders import BytePairTokenizer, ByteTokenizer, HuggingFaceTokenizer
from dcray.corpus.tokenizers.vocabularies import byte_letters

EOT, MASK = "<|endoftext|>", "[MASK]"


def to_hugging_face(tokenizer: Any) -> Any | None:
    """Build a tokenizers.Tokenizer; return None for a vocabulary that is known by its ids alone."""
    from tokenizers import Tokenizer

    match tokenizer:
        case BytePairTokenizer():
            built = _byte_level(tokenizer, tokenizer.ranks, tokenizer.pattern)
        case ByteTokenizer():
            built = _byte_level(tokenizer, tuple(bytes([b]) for b in range(256)), None)
        case HuggingFaceTokenizer():
            built = Tokenizer.from_str(tokenizer.json)
            known = built.get_vocab(with_added_tokens=True)
            fresh = [(tokenizer.eot_id, EOT), (tokenizer.mask_id, MASK)]
            built.add_special_tokens(
                [name for number, name in sorted(fresh) if number not in known.values()]
            )
        case _:
            return None
    return built


def special_names(built: Any, tokenizer: Any) -> tuple[str, str]:
    """Return the names of <|endoftext|> and [MASK] in the built tokenizer."""
    return built.id_to_token(tokenizer.eot_id), built.id_to_token(tokenizer.mask_id)


def _byte_level(tokenizer: Any, ranks: tuple[bytes, ...], pattern: str | None) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    letters = {byte: letter for letter, byte in byte_letters().items()}

    def spelled(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    vocabulary = {spelled(token): rank for rank, token in enumerate(ranks)}
    # ids that no merge took get names that no text has, since a space is spelled otherwise. The
    # special ids follow; they are not in the vocabulary of pieces, so that no text yields them
    vocabulary |= {f" unused {i}": i for i in range(len(ranks), tokenizer.eot_id)}
    merges = [(spelled(first), spelled(second)) for first, second in _merges(ranks)]
    built = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    split = [] if pattern is None else [pre_tokenizers.Split(Regex(pattern), "isolated")]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.pre_tokenizer = pre_tokenizers.Sequence([*split, level])
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([EOT, MASK])
    return built


def _merges(ranks: tuple[bytes, ...]) -> list[tuple[bytes, bytes]]:
    """Find the pair that each token is merged from: its bytes, merged by the lower ranks alone."""
    order = {token: rank for rank, token in enumerate(ranks)}
    found = []
    for rank, token in enumerate(ranks):
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            pairs = [order.get(a + b, rank) for a, b in pairwise(parts)]
            at = min(range(len(pairs)), key=pairs.__getitem__)
            if pairs[at] >= rank:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            found.append((parts[0], parts[1]))
    return found
