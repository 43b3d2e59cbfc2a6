"""An exported checkpoint through transformers and lm-eval's `hf`, against the run itself."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
from lm_eval import evaluator
from lm_eval.models.huggingface import HFLM

from dcray.corpus.tokenizers.encoders import HuggingFaceTokenizer
from dcray.evals.export.checkpoint import ExportError, compare_logits, export
from dcray.evals.export.hf_tokenizer import to_hugging_face
from dcray.evals.run import find_run
from dcray.evals.tasks.catalog import find_tasks, load_tasks, quiet
from dcray.evals.tasks.harness import RunLM
from dcray.evals.tasks.results import score_tasks
from dcray.evals.tasks.score import log_likelihoods
from tests.evals.support import BYTES, SEQ_LEN, byte_pairs

TASKS = ["offline_choice", "offline_yesno", "offline_lastword", "offline_text"]
CPU = torch.device("cpu")


def loaded(record, recipe):
    return find_run(record.directory, record.name(recipe)).load(CPU, precision="float32")


@pytest.fixture(scope="module")
def exported(finished, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hf") / "ar"
    done = export(loaded(finished, "ar"), folder)
    assert done.largest_difference <= 1e-3
    assert done.num_texts > 5
    return folder


def test_transformers_gives_the_run_s_logits(finished, exported):
    """Not by our own comparison: other rows, and each logit of them."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(exported, trust_remote_code=True)
    ours = loaded(finished, "ar").model
    for length in (1, 3, SEQ_LEN // 2 + 2, SEQ_LEN, SEQ_LEN + 9):
        ids = torch.randint(0, 258, (3, length), generator=torch.Generator().manual_seed(length))
        with torch.no_grad():
            a, b = ours(ids, causal=True)[..., :258], theirs(ids).logits
        assert a.shape == b.shape
        assert (a - b).abs().max() <= 1e-3
        loss = theirs(ids, labels=ids).loss if length > 1 else None
        if loss is not None:
            nats = ours(ids[:, :-1], causal=True, targets=ids[:, 1:])
            assert float(loss) == pytest.approx(float(nats.mean()), abs=1e-4)


def test_padding_on_either_side_changes_nothing(exported):
    theirs = transformers.AutoModelForCausalLM.from_pretrained(exported, trust_remote_code=True)
    ids = torch.randint(0, 258, (1, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        alone = theirs(ids).logits
        for left, right in ((7, 0), (0, 7)):
            padded = torch.nn.functional.pad(ids, (left, right))
            mask = torch.nn.functional.pad(torch.ones_like(ids), (left, right))
            found = theirs(padded, attention_mask=mask).logits[:, left : left + 20]
            assert torch.allclose(found, alone, atol=1e-5)


def test_lm_eval_s_hf_gives_the_same_scores(finished, exported):
    run = loaded(finished, "ar")
    score = partial(log_likelihoods, run.model, seq_len=run.seq_len, batch_size=8)
    ours = RunLM(run.model, run.tokenizer, score, seq_len=run.seq_len)
    manager = find_tasks(TASKS)
    mine = score_tasks(ours, load_tasks(manager, TASKS))
    tasks = load_tasks(manager, TASKS)
    for task in tasks["tasks"].values():
        task.set_config(key="num_fewshot", value=0)
    with quiet():
        model = HFLM(pretrained=str(exported), trust_remote_code=True, dtype="float32",
                     device="cpu", batch_size=8)  # fmt: skip
        theirs = evaluator.evaluate(model, tasks, bootstrap_iters=0)["results"]
    assert model.max_length == SEQ_LEN
    assert len(mine) == 7
    for one in mine:
        value = theirs[one.task][f"{one.metric},none"]
        exact = one.metric.startswith("acc")
        assert one.value == (value if exact else pytest.approx(value, rel=1e-4))


def test_a_diffusion_run_becomes_a_masked_language_model(finished, tmp_path):
    run = loaded(finished, "mdlm")
    done = export(run, tmp_path / "mdlm")
    assert done.auto_class == "AutoModelForMaskedLM"
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(
        tmp_path / "mdlm", trust_remote_code=True
    )
    ids = torch.randint(0, 258, (2, SEQ_LEN), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        a, b = run.model(ids, causal=False)[..., :258], theirs(ids).logits
    assert (a - b).abs().max() <= 1e-3


def test_what_differs_is_never_there(finished, tmp_path, monkeypatch):
    run = loaded(finished, "ar")
    monkeypatch.setattr("dcray.evals.export.checkpoint.LARGEST", -1.0)
    with pytest.raises(ExportError, match="logits differ"):
        export(run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_changed_weight_would_be_seen(finished, exported):
    run = loaded(finished, "ar")
    run.model.blocks[0].mlp.up.weight += 0.5
    assert compare_logits(run, exported, "AutoModelForCausalLM")[0] > 1e-3


def test_the_command_exports(record, dcray, tmp_path):
    target = tmp_path / "model"
    code, out, _ = dcray("export", record.name("mir"), "--out", target, "--dir", record.directory,
                         "--json")  # fmt: skip
    assert code == 0
    assert json.loads(out)["largest_difference"] <= 1e-3
    said = json.loads((target / "config.json").read_text())
    assert said["dcray"]["run_id"] == record.ids["mir"]
    assert said["windows"] == [SEQ_LEN // 2, None]
    code, _, said = dcray("export", record.name("mir"), "--out", target, "--dir",
                          record.directory)  # fmt: skip
    assert code == 2


TEXTS = ["", " ", "the cat", "and the other caf\u00e9s\n\n  of 2024's", "\u6771\u4eac \U0001f600",
         "<|endoftext|>[MASK]", "a" * 300, "\t x\r\n y", "don't WON'T 12345"]  # fmt: skip


@pytest.mark.parametrize("tokenizer", [BYTES, byte_pairs()], ids=["byte", "bpe"])
def test_tokenizers_give_the_same_ids(tokenizer, tmp_path):
    built = to_hugging_face(tokenizer)
    assert built.get_vocab_size() <= tokenizer.vocab_size
    assert built.token_to_id("<|endoftext|>") == tokenizer.eot_id
    assert built.token_to_id("[MASK]") == tokenizer.mask_id
    built.encode_special_tokens = True
    for text, ids in zip(TEXTS, tokenizer.encode_batch(TEXTS), strict=True):
        assert built.encode(text, add_special_tokens=False).ids == ids.tolist()
        assert built.decode(ids.tolist(), skip_special_tokens=False) == text


def test_a_tokenizer_json_keeps_its_ids_and_gains_the_special_ones(tmp_path):
    to_hugging_face(BYTES)  # a file without [MASK] and <|endoftext|>
    from tokenizers import Tokenizer, models, pre_tokenizers

    plain = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    plain.save(str(tmp_path / "tokenizer.json"))
    ours = HuggingFaceTokenizer.from_file(tmp_path / "tokenizer.json")
    built = to_hugging_face(ours)
    assert built.token_to_id("<|endoftext|>") == ours.eot_id == 3
    assert built.token_to_id("[MASK]") == ours.mask_id == 4
    assert built.encode("a b c").ids == [0, 1, 2]
