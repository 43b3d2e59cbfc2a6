"""`dcray prepare` as a user meets it: exit codes, messages, kills."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tokenizers
import zstandard

from dcray import cli
from dcray.corpus.manifest import Corpus

ASKED = ["--tokenizer", "byte", "--budgets", "500,2k", "--val-tokens", "300"]


@pytest.fixture
def texts(tmp_path):
    root = tmp_path / "texts"
    root.mkdir()
    for number in range(20):
        (root / f"{number}.txt").write_text(f"document {number} " * 30)
    return root


def run(monkeypatch, capsys, *words):
    """(exit code, standard output, error output) of one command."""
    monkeypatch.setattr(sys, "argv", ["dcray", *map(str, words)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    printed = capsys.readouterr()
    return stopped.value.code, printed.out, printed.err


def test_a_corpus_and_its_summary(monkeypatch, capsys, texts, tmp_path, ray_session):
    folder = tmp_path / "c [v2]"  # brackets are letters, not markup
    words = ["prepare", f"files:{texts}", "--out", folder, *ASKED]
    code, out, err = run(monkeypatch, capsys, *words)
    begin, warning = err.splitlines()
    assert (code, begin) == (0, f"preparing {folder} from files:{texts}")
    assert warning.startswith("warning: the validation set is of 1 document: a loss on it says")
    assert f"{folder} is prepared" in out
    assert "2,000 tokens" in out
    code, out, _ = run(monkeypatch, capsys, *words)
    assert code == 0
    assert "is already there" in out
    code, out, _ = run(monkeypatch, capsys, *words, "--json")
    assert json.loads(out)["train"]["tokens"] == 2000


def test_a_validation_set_of_many_documents_needs_no_warning(
    monkeypatch, capsys, texts, tmp_path, ray_session
):
    asked = [*ASKED, "--val-tokens", "3k"]  # of 20 documents of some 500 bytes each
    words = ["prepare", f"files:{texts}", "--out", tmp_path / "c", *asked]
    assert run(monkeypatch, capsys, *words)[2] == f"preparing {tmp_path / 'c'} from files:{texts}\n"


def test_a_vocabulary_that_is_mostly_dead_is_told_with_figures(
    monkeypatch, capsys, texts, tmp_path, ray_session
):
    rng = np.random.default_rng(0)
    for number in range(20):
        letters = rng.choice(list("abcdefghijklmnop      "), 2000)
        (texts / f"{number}.txt").write_text("".join(letters))
    asked = ["--budgets", "1k", "--val-tokens", "500", "--tokenizer", "bpe:700"]
    code, out, err = run(
        monkeypatch, capsys, "prepare", f"files:{texts}", "--out", tmp_path / "c", *asked
    )
    assert code == 0
    used = int(re.search(r"used ids +(\d+) of 700 occur in training", out).group(1))
    held = np.unique(Corpus.open(tmp_path / "c").tokens())
    assert used == len(held) < 350
    assert f"\nwarning: {700 - used} of the 700 ids of bpe:700 never occur in the" in err
    assert "--tokenizer bpe:512" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stdlb", *ASKED], 'did you mean "stdlib"'),
        (["stdlib", *ASKED, "--tokenizer", "gtp2"], 'did you mean "gpt2"'),
        (["stdlib", *ASKED, "--budgets", "5x"], "--budgets must be a count"),
        (["stdlib", *ASKED, "--val-tokens", "1k,2k"], "--val-tokens must be one count"),
        (["stdlib", *ASKED, "--option", "colour=red"], 'no option "colour"'),
        (["stdlib", *ASKED, "--option", "colour"], "must be key=value"),
        (["files:/nowhere", *ASKED], "does not exist"),
        (["huggingface:stack_v2", *ASKED], "gated"),
        (["stdlib", "--budgets", "1k", "--val-tokens", "1k"], "tokenizer must be given"),
        (["files:{texts}", *ASKED, "--budgets", "1b"], "the source is too small"),
    ],
)
def test_bad_input(monkeypatch, capsys, texts, tmp_path, ray_session, words, said):
    words = [word.format(texts=texts) for word in words]
    code, out, err = run(monkeypatch, capsys, "prepare", *words, "--out", tmp_path / "c")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("error: ")
    assert said in err
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]


def unknown_words(folder):
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0}, "<unk>"))
    model.save(str(folder / "tokenizer.json"))


def shard(count):
    return np.array([20240520, 1, count, *[0] * 253], np.int32).tobytes() + bytes(8000)


LINES = b"".join(b'{"text": "number %d"}\n' % number for number in range(9999))
UNREADABLE = {  # what is written beside good texts, further words of the command, what it says
    "cut.jsonl.zst": (zstandard.compress(LINES)[:99], [], "cut.jsonl.zst cannot be read"),
    "cut.json.gz": (gzip.compress(LINES)[:999], [], "cut.json.gz cannot be read"),
    "void.jsonl.gz": (b"", [], "void.jsonl.gz cannot be read: it is empty, and so cut off"),
    "old.txt": ("caf\u00e9".encode("latin-1"), [], "old.txt is not UTF-8 (byte 0xe9"),
    "wide.txt": ("wide".encode("utf-16-le"), [], "wide.txt holds NUL bytes"),
    "old.jsonl": (b'{"text": "caf\xe9"}\n', [], "old.jsonl, line 1 is not UTF-8"),
    "package.json": (b'{\n"name": "x"\n}', [], 'package.json, entry 1 has no text in "text"'),
    "broken.json": (b'[{"text": "x"}', [], "broken.json is neither JSON lines nor one JSON value"),
    "gone.txt": (None, [], "gone.txt cannot be read: it links to nothing"),
    "own.txt": (b"x", ["--option", "not_utf8=klingon"], 'must be "refuse", "replace" or the'),
    "tokenizer.json": (unknown_words, ["--tokenizer", "hf:{tmp}"], "knows 0% of the characters"),
}
WRONG_IDS = {
    "short.bin": (shard(5000), "short.bin says in its header that 5,000 ids of uint16 follow"),
    "int32.bin": (np.arange(4000, dtype=np.int32).tobytes(), "give --option dtype=uint32"),
    "int64.bin": (np.arange(4000, dtype=np.int64).tobytes(), "give --option dtype=int64"),
    "int64.npy": (np.arange(4000, dtype=np.int64).tobytes(), "give --option dtype=int64"),
    "high.bin": (np.full(4000, 60_000, np.uint16).tobytes(), "the source holds id 60000"),
    "lfs.bin": (b"version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS"),
    "void.bin": (b"", "void.bin is empty"),
    "ids.npz": (b"PK", "holds no tokens to train on"),
}


def check_refused(ran, tmp_path, said):
    """Exit code 2, one sentence, no corpus and no part of one."""
    code, out, err = ran
    assert (code, out) == (2, "")
    (sentence,) = [line for line in err.splitlines() if not line.startswith("preparing ")]
    assert sentence.startswith("error: ")
    assert said in sentence
    assert not [path for path in tmp_path.iterdir() if "c" in path.name.split(".")]


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_as_meant(monkeypatch, capsys, texts, tmp_path, ray_session, name):
    content, words, said = UNREADABLE[name]
    if content is None:
        (texts / name).symlink_to("nowhere")
    elif callable(content):
        content(tmp_path)
    else:
        (texts / name).write_bytes(content)
    words = [word.format(tmp=tmp_path) for word in words]
    words = ["prepare", f"files:{texts}", "--out", tmp_path / "c", *ASKED, *words]
    check_refused(run(monkeypatch, capsys, *words), tmp_path, said)


@pytest.mark.parametrize("name", WRONG_IDS)
def test_ids_that_cannot_be_read_as_meant(monkeypatch, capsys, tmp_path, name):
    content, said = WRONG_IDS[name]
    (tmp_path / name).write_bytes(content)
    asked = ["--option", "vocabulary=gpt2", "--budgets", "1k", "--val-tokens", "300"]
    words = ["prepare", f"tokens:{tmp_path / name}", "--out", tmp_path / "c", *asked]
    check_refused(run(monkeypatch, capsys, *words), tmp_path, said)


def test_what_is_left_out_is_told_and_kept(monkeypatch, capsys, texts, tmp_path, ray_session):
    for name in (".git/config", "a.png", "b.png", "._0.txt"):
        (texts / name).parent.mkdir(exist_ok=True)
        (texts / name).write_text("x")
    (texts / "none.jsonl").write_text("\n")
    words = ["prepare", f"files:{texts}", "--out", tmp_path / "c", *ASKED]
    _, out, _ = run(monkeypatch, capsys, *words)
    assert "\n  left out    2 .png (a.png, b.png), 2 hidden (._0.txt, .git/)\n" in out
    assert "\n  empty       left out: 1 document (none.jsonl)\n" in out
    assert Corpus.open(tmp_path / "c").manifest.source["left_out"] == {
        ".png": {"count": 2, "examples": ["a.png", "b.png"]},
        "hidden": {"count": 2, "examples": ["._0.txt", ".git/"]},
    }


def test_a_text_that_its_tokenizer_knows_in_part_is_told(
    monkeypatch, capsys, texts, tmp_path, ray_session
):
    """Of "document 7" it knows the word, eight letters of nine; of "document 17" of ten."""
    model = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"<unk>": 0, "document": 1}, unk_token="<unk>")
    )
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model.save(str(tmp_path / "tokenizer.json"))
    asked = ["--tokenizer", f"hf:{tmp_path}", "--budgets", "500", "--val-tokens", "100"]
    words = ["prepare", f"files:{texts}", "--out", tmp_path / "c", *asked]
    code, _, err = run(monkeypatch, capsys, *words)
    assert code == 0
    assert f"warning: {1 - 160 / 190:.1%} of the text's characters are unknown to hf:" in err


def test_a_missing_option_and_an_unknown_command(monkeypatch, capsys):
    assert run(monkeypatch, capsys, "prepare", "stdlib")[0] == 2
    assert run(monkeypatch, capsys, "prepar")[0] == 2


def test_versions(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "--version")
    assert code == 0
    assert {"dcray", "python", "torch", "ray", "mlflow", "optuna"} <= {
        line.split()[0] for line in out.splitlines()
    }


def test_a_plugin_file_is_a_source(monkeypatch, capsys, tmp_path, ray_session):
    plugin = tmp_path / "poems.py"
    plugin.write_text(
        "class Poems:\n"
        '    kind, name = "sources", "poems"\n'
        "    def documents(self):\n"
        "        import ray.data\n"
        '        rows = [{"id": str(i), "text": f"poem {i} " * 9} for i in range(50)]\n'
        "        return ray.data.from_items(rows)\n"
        "PLUGIN = Poems\n"
    )
    monkeypatch.setenv("DCRAY_PLUGIN_FILES", "")
    words = ["--plugin", plugin, "prepare", "poems", "--out", tmp_path / "c", *ASKED]
    code, out, err = run(monkeypatch, capsys, *words)
    assert (code, err) == (0, f"preparing {tmp_path / 'c'} from poems\n")
    assert "poems" in out


def test_help_is_quick_and_imports_nothing_heavy():
    script = (
        "import sys, dcray.cli\n"
        "heavy = {'torch', 'ray', 'mlflow', 'pydantic', 'numpy', 'pyarrow'} & set(sys.modules)\n"
        "sys.exit(f'imports {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


HELD = """
import time
from pathlib import Path
from typing import ClassVar

from dcray.sources import SourceOptions


class Held(SourceOptions):
    kind: ClassVar[str] = "sources"
    name: ClassVar[str] = "held"
    ARGUMENT: ClassVar[str] = "go"
    go: Path  # the last document comes when this file is there

    def documents(self):
        import ray.data

        def text(row):
            while row["id"] == "19" and not self.go.exists():
                time.sleep(0.05)
            return {"id": row["id"], "text": f"document {row['id']} " * 30}

        rows = [{"id": str(number)} for number in range(20)]
        return ray.data.from_items(rows, override_num_blocks=20).map(text)


PLUGIN = Held
"""


def start(plugin, go, out):
    words = ["--plugin", plugin, "prepare", f"held:{go}", "--out", out, *ASKED]
    return subprocess.Popen(
        [sys.executable, "-m", "dcray", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_prepare_leaves_no_half_corpus_and_runs_again(tmp_path, stop):
    """Stopped while documents are on their way to disk; the next run cleans up and finishes.

    The source holds its last document back, so that it cannot end before it is stopped.
    """
    plugin, go, out = tmp_path / "held.py", tmp_path / "go", tmp_path / "c"
    plugin.write_text(HELD)
    first = start(plugin, go, out)
    try:
        while not list(tmp_path.glob(".c.partial-*/spool/*.txt")) and first.poll() is None:
            time.sleep(0.02)
        assert first.poll() is None, first.communicate()
        os.kill(first.pid, stop)
        _, err = first.communicate(timeout=120)
    finally:
        first.kill()
    assert not out.exists()
    assert "Traceback" not in err
    if stop == signal.SIGINT:
        assert first.returncode == 3, err
    left = list(tmp_path.glob(".c.partial-*"))
    assert len(left) == (stop == signal.SIGKILL)
    go.touch()
    again = start(plugin, go, out)
    _, err = again.communicate(timeout=300)
    assert again.returncode == 0, err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "go", "held.py"]
    Corpus.open(out).verify()
