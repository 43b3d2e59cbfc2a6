"""Counts of tokens as people write them: "64k", "100m", "1.5b"; k, m and b are powers of ten."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}


def parse_count(value: Any) -> Any:
    """Parse a text such as "64k" to 64_000 (k, m, b are powers of ten); keep other types as is.

    Raises ValueError for a text that is not a whole count.
    """
    if isinstance(value, str):
        match = re.fullmatch(r"([\d_]+(?:\.\d+)?)\s*([kmb]?)", value.strip().lower())
        if match:
            count = Decimal(match[1].replace("_", "")) * COUNT_UNITS[match[2]]
            if count == int(count):
                return int(count)
        raise ValueError('must be a count such as 64000, "64k", "100m" or "1.5b"')
    return value


def count_label(count: int) -> str:
    """Format a count exactly, at most three decimals: 64_000 is "64k", 100_000_000 is "100m"."""
    for unit, factor in (("b", 10**9), ("m", 10**6), ("k", 10**3)):
        if count >= factor and count * 1000 % factor == 0:
            whole, thousandths = divmod(count * 1000 // factor, 1000)
            return f"{whole}.{thousandths:03}".rstrip("0").rstrip(".") + unit
    return str(count)
