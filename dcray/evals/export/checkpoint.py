"""The export of a run as a Hugging Face checkpoint, compared with the run before publication."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dcray import __version__
from dcray.config.sizes import num_params
from dcray.corpus.folder import NO_SPACE, partial_folder, publish
from dcray.errors import ConfigError
from dcray.evals.run import LoadedRun

MODELING = "modeling_dcray"
LARGEST = 1e-3  # the largest difference of logits that is allowed, in float32
EXTRA = "pip install 'dcray[hf]'"
SAMPLES = ("", "a", " two words", "caf\u00e9 \u6771\u4eac \U0001f600", "tabs\t\n\n  and 12345's",
           "<|endoftext|> as text", "[MASK]")  # fmt: skip


class ExportError(RuntimeError):
    """The written checkpoint differs from the run; it has been deleted."""


@dataclass(frozen=True)
class Export:
    """A written checkpoint and how it was checked."""

    folder: Path
    auto_class: str
    largest_difference: float  # of logits, float32, over `num_logits` of them
    num_logits: int
    num_texts: int  # encoded alike; 0 if the vocabulary is known by its ids alone


def check_target(folder: Path) -> None:
    """Raise ConfigError if `folder` cannot become a checkpoint, before anything is loaded."""
    for package in ("transformers", "safetensors"):
        try:
            version(package)
        except PackageNotFoundError:
            raise ConfigError(f"dcray export needs {package}: {EXTRA}") from None
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--out must be a new folder, and {folder} is there; name another")
    with partial_folder(folder, cannot=cannot):
        pass


def export(run: LoadedRun, folder: Path) -> Export:
    """Write the checkpoint, load it with transformers and compare; publish all of it or nothing.

    run: in float32. Raises ExportError if logits or ids differ, ConfigError if the folder
    cannot be written or the disk is full.
    """
    check_target(folder)
    with partial_folder(folder, cannot=cannot) as partial:
        auto_class = _write(run, partial)
        largest, num_logits = compare_logits(run, partial, auto_class)
        if not largest <= LARGEST:
            raise ExportError(f"logits differ by {largest:g}, allowed are {LARGEST:g}")
        num_texts = _compare_ids(run, partial)
        publish(partial, folder)
    return Export(folder, auto_class, largest, num_logits, num_texts)


def cannot(folder: Path, error: OSError) -> str:
    """Format the error sentence for a folder that cannot be written, or whose disk is full."""
    why = os.strerror(error.errno or 0)
    remedy = "make room there, or name" if error.errno in NO_SPACE else "name"
    return (
        f"--out must be a folder that can be made and written, got {folder} ({why}): {remedy} "
        "another; nothing was left behind"
    )


def _write(run: LoadedRun, folder: Path) -> str:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    model, causal = run.model, run.objective.causal
    kept = {
        name: (tensor[: model.vocab_size] if name.startswith(("embed.", "head.")) else tensor)
        .detach()
        .float()
        .cpu()
        .contiguous()
        for name, tensor in model.state_dict().items()
    }
    try:
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:  # safetensors raises it if the disk is full
        raise OSError(errno.ENOSPC, str(error)) from None
    auto_class = "AutoModelForCausalLM" if causal else "AutoModelForMaskedLM"
    (folder / "config.json").write_text(json.dumps(_config(run, auto_class), indent=1))
    shutil.copyfile(Path(__file__).with_name(f"{MODELING}.py"), folder / f"{MODELING}.py")
    _write_tokenizer(run, folder)
    return auto_class


def _config(run: LoadedRun, auto_class: str) -> dict[str, Any]:
    model, shape, row = run.single, run.single.shape, run.found.row
    name = auto_class.replace("AutoModelFor", "DcrayFor")
    return {
        "architectures": [name],
        "auto_map": {"AutoConfig": f"{MODELING}.DcrayConfig", auto_class: f"{MODELING}.{name}"},
        "model_type": "dcray",
        "vocab_size": model.vocab_size,
        "hidden_size": shape.dim,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "intermediate_size": shape.mlp_dim,
        "max_position_embeddings": run.seq_len,
        "windows": model.windows,
        "rope_theta": model.config.rope_base,
        "rms_norm_eps": model.config.norm_eps,
        "causal": run.objective.causal,
        "tie_word_embeddings": False,
        "use_cache": False,
        "dtype": "float32",
        "eos_token_id": run.found.corpus.eot_id,
        "mask_token_id": run.found.corpus.mask_id,
        "dcray": {
            "version": __version__, "run_id": row.run_id, "study": row.study, "key": row.key,
            "val_loss": row.val_loss, "num_params": num_params(shape, model.vocab_size),
            "tokenizer_sha256": run.found.corpus.manifest.tokenizer.sha256,
        },
    }  # fmt: skip


def _write_tokenizer(run: LoadedRun, folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    from dcray.evals.export.hf_tokenizer import special_names, to_hugging_face

    built = to_hugging_face(run.tokenizer)
    if built is None:
        return
    eot, mask = special_names(built, run.tokenizer)
    PreTrainedTokenizerFast(
        tokenizer_object=built,
        bos_token=eot,
        eos_token=eot,
        mask_token=mask,
        model_max_length=run.seq_len,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,  # "[MASK]" in a text is text
    ).save_pretrained(folder)


@torch.inference_mode()
def compare_logits(run: LoadedRun, folder: Path, auto_class: str) -> tuple[float, int]:
    """Compute (largest difference, number of logits) over random and real rows of five lengths."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    theirs = getattr(transformers, auto_class).from_pretrained(
        folder, trust_remote_code=True, dtype=torch.float32
    )
    theirs, ours = theirs.to(run.model.embed.weight.device).eval(), run.model
    device, rng = ours.embed.weight.device, np.random.default_rng(0)
    real, _ = run.found.corpus.validation(None)
    lengths = sorted({1, 2, run.seq_len // 2 + 1, run.seq_len, run.seq_len + 3})
    largest, count = 0.0, 0
    for length in lengths:
        rows = [rng.integers(0, ours.vocab_size, (2, length))]
        if len(real) >= length:
            rows.append(real[None, :length].astype(np.int64))
        for ids in (torch.from_numpy(row).to(device) for row in rows):
            a = ours(ids, causal=run.objective.causal)[..., : ours.vocab_size].float()
            b = theirs(input_ids=ids).logits.float()
            largest = max(largest, float((a - b).abs().max()))
            count += a.numel()
    return largest, count


def _compare_ids(run: LoadedRun, folder: Path) -> int:
    """Count texts that the exported tokenizer encodes alike; raise ExportError if one differs."""
    from transformers import AutoTokenizer

    if not (folder / "tokenizer.json").exists():
        return 0
    ours = run.tokenizer
    theirs = AutoTokenizer.from_pretrained(folder, trust_remote_code=True, model_max_length=10**9)
    real, _ = run.found.corpus.validation(None)
    texts = [*SAMPLES, *(ours.decode(real[start : start + 200]) for start in
                         range(0, min(len(real), 20_000), 2_000))]  # fmt: skip
    for text, ids in zip(texts, ours.encode_batch(texts), strict=True):
        found = theirs(text, add_special_tokens=False)["input_ids"]
        if list(found) != ids.tolist():
            raise ExportError(f"the tokenizer encodes {text[:60]!r} as {found[:20]}, "
                              f"not {ids.tolist()[:20]}")  # fmt: skip
    return len(texts)
