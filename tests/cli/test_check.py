"""`nmtkit check` as people and scripts use it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Command, refused, succeeded

from nmtkit.cli.reports import show_diagnosis
from nmtkit.corpus.faults import EMPTY, FaultLocation
from nmtkit.diagnosis.findings import Diagnosis, SplitDiagnosis

PAIRS = [(f"this is line number {n} of them", f"das ist die Zeile Nummer {n}") for n in range(60)]
FILES = ("train.en", "train.de")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small corpus, and a recipe for it."""
    monkeypatch.chdir(tmp_path)
    for split, pairs in (("train", PAIRS), ("valid", [("something else here", "etwas anderes hier")])):
        for number, side in enumerate(("en", "de")):
            text = "".join(pair[number] + "\n" for pair in pairs)
            (tmp_path / f"{split}.{side}").write_text(text, encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(
        "extends: demo\nname: mine\ndata:\n  folder: .\n  train: {src: train.en, tgt: train.de}\n"
        "  valid: {src: valid.en, tgt: valid.de}\n  test: null\n  max_length: 7\n"
        "tokenizer: {kind: word, vocab_size: 40}\n",
        encoding="utf-8",
    )
    return tmp_path


@pytest.fixture
def nmtkit(folder: Path, console: Command) -> Command:
    assert folder == Path.cwd()
    return console


def plant(path: Path, line: int, text: bytes) -> None:
    """Puts something in the place of a line."""
    lines = path.read_bytes().split(b"\n")
    lines[line - 1] = text
    path.write_bytes(b"\n".join(lines))


def test_clean_files_pass(nmtkit: Command) -> None:
    done = succeeded(nmtkit("check", *FILES, "--valid", "valid.en", "valid.de"))
    assert done.out.endswith("Nothing wrong was found in 61 pairs.\n")
    assert "train: words a line" in done.out
    assert "valid: letters of the target\n  Latin 100.0%\n" in done.out
    assert all(len(line) <= 80 for line in done.out.splitlines())
    assert done.err == ""


def test_where_files_part_is_told_whole(nmtkit: Command, folder: Path) -> None:
    lines = (folder / "train.de").read_bytes().splitlines(keepends=True)
    (folder / "train.de").write_bytes(b"".join(lines[:30] + lines[31:]))
    done = nmtkit("check", *FILES)
    assert done.code == 1
    told = " ".join(done.out.split())
    assert "60 lines here, 59 in train.de; they part perhaps near line 31:" in told
    shown = told[told.index("they part") : told.index("findings")]
    assert "this is line number" in shown
    assert "das ist die Zeile Nummer" in shown
    assert all(len(line) <= 80 for line in done.out.splitlines() if not line.startswith(("error", "severity", "─")))


def test_errors_are_shown_with_their_place_and_fail(nmtkit: Command, folder: Path) -> None:
    plant(folder / "train.en", 17, b"caf\xe9 au lait")
    done = nmtkit("check", *FILES)
    assert done.code == 1
    assert "train.en:17:4" in done.out
    assert "line is not UTF-8" in done.out
    assert "caf" in done.out
    assert done.out.endswith("Not ready to train on: 1 error in 60 pairs.\n")


def test_warnings_fail_only_if_strict(nmtkit: Command, folder: Path) -> None:
    plant(folder / "train.de", 3, "Zeile\u2028Nummer zwei".encode())
    assert nmtkit("check", *FILES).code == 0
    done = nmtkit("check", *FILES, "--strict")
    assert done.code == 1
    assert "train.de:3:6" in done.out
    assert "Zeile⟨U+2028⟩Nummer" in done.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.en", "train.de"], "nowhere.en: not there"),
        (["nowhere.yaml"], "no recipe 'nowhere.yaml'"),
        (["demmo"], "the nearest are demo, "),
        (["train.en", "train.de", "valid.en"], "3 files"),
        (["train.en", "train.de", "--valid"], "--valid needs a file"),
        (["train.en", "train.de", "--valid", "--test", "valid.en"], "--valid needs a file"),
        (["mine.yaml", "--valid", "valid.en", "valid.de"], "a recipe names its own"),
        (["train.en", "train.de", "--set", "data.max_length=5"], "--set and --run go with a recipe"),
        (["mine.yaml", "--set", "data.train.src=gone"], "gone"),
        (["train.en", "train.de", "--fix", "."], "is not overwritten"),
        (["train.en", "train.de", "--html", "no/such/folder.html"], "no/such/folder.html"),
        ([], "RECIPE|FILES"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_checked_is_another_code(nmtkit: Command, arguments: list[str], said: str) -> None:
    refused(nmtkit("check", *arguments), said)


def test_json_on_standard_output_is_all_there_is(nmtkit: Command, folder: Path) -> None:
    plant(folder / "train.en", 17, b"caf\xe9")
    done = nmtkit("check", *FILES, "--json", "-")
    assert done.code == 1
    values = json.loads(done.out)
    assert values["wrong"] is True
    assert values["tokens"] is None
    (finding,) = [one for one in values["splits"]["data"]["findings"] if one["severity"] == "error"]
    assert finding["kind"] == "encoding"
    assert (finding["places"][0]["line"], finding["places"][0]["byte"]) == (17, 4)


def test_json_is_alone_with_fix_as_well(nmtkit: Command) -> None:
    done = nmtkit("check", *FILES, "--json", "-", "--fix", "clean")
    assert json.loads(done.out)["wrong"] is False
    assert "written to clean" in done.err


def test_reports_are_written(nmtkit: Command, folder: Path) -> None:
    done = succeeded(nmtkit("check", *FILES, "--html", "report.html", "--json", "report.json"))
    assert "wrote report.html" in done.err
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Nothing wrong was found in 60 pairs." in page
    assert json.loads((folder / "report.json").read_text(encoding="utf-8"))["wrong"] is False


def test_json_lines_and_a_text_alone(nmtkit: Command, folder: Path) -> None:
    rows = "".join(json.dumps({"article": src, "summary": tgt}) + "\n" for src, tgt in PAIRS)
    (folder / "corpus.jsonl").write_text(rows, encoding="utf-8")
    done = succeeded(nmtkit("check", "corpus.jsonl", "--src-field", "article", "--tgt-field", "summary"))
    assert "60 pairs" in done.out
    wrong = nmtkit("check", "corpus.jsonl")
    assert wrong.code == 1
    assert "no field 'src'" in wrong.out
    alone = succeeded(nmtkit("check", "train.en"))
    assert alone.out.endswith("Nothing wrong was found in 60 lines.\n")


def test_a_recipe_is_checked_with_its_tokenizer(nmtkit: Command) -> None:
    done = succeeded(nmtkit("check", "mine.yaml"))
    assert "learning a tokenizer (word) for this check, since runs/mine has none" in done.err
    assert "over-long" not in done.out
    assert "The tokenizer (word) was learned for this check." in done.out
    assert "unknown" in done.out
    shorter = nmtkit("check", "mine.yaml", "--set", "data.max_length=6")
    assert "over-long" in shorter.out
    assert "longer than data.max_length" in shorter.out
    assert "What preprocessing will do" not in nmtkit("check", "mine.yaml", "--no-tokens").out


def test_the_tokenizer_of_the_run_is_taken(nmtkit: Command) -> None:
    assert nmtkit("preprocess", "mine.yaml").code == 0
    done = nmtkit("check", "mine.yaml")
    assert "The tokenizer (word) is that of runs/mine." in done.out
    assert "learning a tokenizer" not in done.err
    other = nmtkit("check", "mine.yaml", "--set", "tokenizer.vocab_size=30")
    assert "was learned for this check" in other.out


def test_a_tokenizer_that_does_not_fit_is_told_after_the_report(nmtkit: Command) -> None:
    done = nmtkit("check", "mine.yaml", "--set", "tokenizer.kind=bpe", "--set", "tokenizer.vocab_size=5000")
    assert (done.code, "too large" in done.err) == (2, True), done
    assert done.out.endswith("Nothing wrong was found in 61 pairs.\n")


def test_text_that_cannot_be_read_is_not_cut_into_tokens(nmtkit: Command, folder: Path) -> None:
    plant(folder / "train.en", 17, b"caf\xe9")
    done = nmtkit("check", "mine.yaml")
    assert done.code == 1
    assert "not cut into tokens" in done.err
    assert "train.en:17:4" in done.out


def test_fix_writes_files_and_a_recipe_that_pass(nmtkit: Command, folder: Path) -> None:
    plant(folder / "train.en", 17, b"caf\xe9")
    plant(folder / "train.de", 20, "Zeile\u2028zwanzig".encode())
    done = nmtkit("check", "mine.yaml", "--fix", "clean")
    assert done.code == 0  # nothing is left that is wrong
    assert "next: nmtkit train clean/mine.yaml" in done.out
    assert sorted(path.name for path in (folder / "clean").iterdir()) == [
        "dropped.jsonl",
        "mine.yaml",
        "train.de",
        "train.en",
        "valid.de",
        "valid.en",
    ]
    assert len((folder / "clean/train.en").read_text(encoding="utf-8").splitlines()) == 59
    again = succeeded(nmtkit("check", "clean/mine.yaml", "--strict"))
    assert again.out.endswith("No errors and no warnings in 60 pairs.\n")
    resolved = nmtkit("recipe", "show", "clean/mine.yaml", "--resolved").out
    assert "name: mine-clean\n" in resolved
    assert "max_length: 7\n" in resolved


def test_what_cannot_be_fixed_is_refused(nmtkit: Command, folder: Path) -> None:
    (folder / "train.de").write_text("".join(tgt + "\n" for _, tgt in PAIRS[:-3]), encoding="utf-8")
    done = nmtkit("check", "mine.yaml", "--fix", "clean")
    assert done.code == 1
    assert "\ntrain: not written: " in done.out
    recipe = (folder / "clean/mine.yaml").read_text(encoding="utf-8")
    assert str(folder / "train.de") in recipe
    assert "- valid.de" in recipe


def test_nothing_is_made_where_nothing_can_be_fixed(nmtkit: Command, folder: Path) -> None:
    (folder / "train.de").write_text("".join(tgt + "\n" for _, tgt in PAIRS[:-3]), encoding="utf-8")
    done = nmtkit("check", "train.en", "train.de", "--fix", "clean")
    assert done.code == 1
    assert "data: not written: " in done.out
    assert "clean: not made, since nothing could be written" in done.out
    assert not (folder / "clean").exists()
    assert all(len(line) <= 100 for line in done.out.splitlines() if not line.startswith("data: not written"))


def test_findings_alone_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """As other commands show them."""
    split = SplitDiagnosis("train", pairs=10)
    split.find(EMPTY, FaultLocation("data/train.en", 4))
    show_diagnosis(Diagnosis({"train": split}))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "train.en:4" in captured.err
    assert captured.err.endswith("1 warning to look at before training.\n")


def test_files_are_checked_without_torch(folder: Path) -> None:
    program = (
        "import sys; from nmtkit.cli import cli\n"
        "code = cli.main(['check', 'train.en', 'train.de'], prog_name='nmtkit', standalone_mode=False)\n"
        "heavy = {'torch', 'sacrebleu', 'matplotlib', 'sentencepiece'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
