"""Packed documents: a token sees everything before it in its row, other documents too."""

import pytest
import torch

from dcray import plugins
from dcray.config.run import RunConfig, override
from dcray.config.sizes import PAPER_SIZES
from dcray.corpus.tokenizers.encoders import ByteTokenizer
from dcray.train.shard import RankContext, build_model
from tests.evals.support import SEQ_LEN, model_of

EOT = ByteTokenizer().eot_id


def two_documents(first: int) -> torch.Tensor:
    return torch.tensor([[EOT, first, 3, 4, 5, EOT, *range(10, 10 + SEQ_LEN - 6)]])


def test_a_document_sees_the_one_before_it_in_its_row():
    model = model_of(258)
    a, b = (model(two_documents(first), causal=True) for first in (1, 2))
    assert torch.equal(a[:, 0], b[:, 0])  # nothing sees what comes later
    for place in (5, 6, 10, SEQ_LEN - 1):  # the second document, its <|endoftext|> included
        assert not torch.allclose(a[:, place], b[:, place])


def test_a_bidirectional_row_sees_both_ways_across_documents():
    model = model_of(258)
    a, b = (model(two_documents(first), causal=False) for first in (1, 2))
    c = model(two_documents(1).flip(1), causal=False).flip(1)
    assert not torch.allclose(a[:, SEQ_LEN - 1], b[:, SEQ_LEN - 1])
    assert not torch.allclose(a[:, 0], c[:, 0])


@pytest.mark.parametrize("size", PAPER_SIZES)
@pytest.mark.parametrize("name", plugins.names("objectives"))
def test_it_is_the_same_in_every_cell(size, name):
    """Windows follow from the rows' length alone; no size, budget or objective changes them."""
    reach = set()
    for budget in (100_000_000, 400_000_000):
        changes = {"size": size, "objective": name, "data.unique_tokens": budget}
        config = override(RunConfig(), changes).resolved(vocab_size=50_258)
        windows = build_windows(config)
        reach |= {tuple(sorted({str(window) for window in windows}))}
    assert reach == {("1024", "None")}


def build_windows(config: RunConfig) -> list[int | None]:
    from dcray.model.transformer import Transformer

    meta = torch.device("meta")
    return Transformer(config.shape, config.model, seq_len=config.data.seq_len, device=meta).windows


def test_an_end_of_text_is_a_token_like_any_other():
    """Attention does not look at ids: with equal embeddings <|endoftext|> hides nothing."""
    config = override(RunConfig(), {"size": "60k", "data.seq_len": SEQ_LEN, "data.unique_tokens":
                      999}).resolved(vocab_size=258)  # fmt: skip
    model = build_model(config, RankContext(torch.device("cpu")))
    with torch.no_grad():
        model.embed.weight[EOT] = model.embed.weight[7]
    row = two_documents(1)
    assert torch.equal(model(row, causal=True), model(row.masked_fill(row == EOT, 7), causal=True))
