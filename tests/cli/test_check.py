"""`nmtkit check` as people and scripts use it."""

import json
from functools import partial
from pathlib import Path

import pytest
from commands import Command, lines_in, refused, sets, succeeded, write_lines

from nmtkit import config
from nmtkit.cli import check as cli
from nmtkit.cli.reports import show_diagnosis
from nmtkit.config import load
from nmtkit.data.text.faults import EMPTY, FaultLocation
from nmtkit.datacheck.findings import Diagnosis, SplitDiagnosis
from tests.house import traced

PAIRS = [(f"this is line number {n} of them", f"das ist die Zeile Nummer {n}") for n in range(60)]
FILES = ("train.en", "train.de")


@pytest.fixture
def check(console: Command) -> Command:
    """`nmtkit check` in a folder with a small corpus and a recipe for it."""
    for split, pairs in (("train", PAIRS), ("valid", [("something else here", "etwas anderes hier")])):
        for number, side in enumerate(("en", "de")):
            write_lines(f"{split}.{side}", [pair[number] for pair in pairs])
    Path("mine.yaml").write_text(
        "extends: demo\nname: mine\ndata:\n  folder: .\n  train: {src: train.en, tgt: train.de}\n"
        "  valid: {src: valid.en, tgt: valid.de}\n  test: null\n  max_length: 7\n"
        "tokenizer: {kind: word, vocab_size: 40}\n",
        encoding="utf-8",
    )
    return partial(console, "check")


def plant(path: str, line: int, text: bytes) -> None:
    """Puts something in the place of a line."""
    lines = Path(path).read_bytes().split(b"\n")
    lines[line - 1] = text
    Path(path).write_bytes(b"\n".join(lines))


def test_clean_files_pass(check: Command) -> None:
    done = succeeded(check(*FILES, "--valid", "valid.en", "valid.de"))
    assert done.out.endswith("Nothing wrong was found in 61 pairs.\n")
    assert "train: words a line" in done.out
    assert "valid: letters of the target\n  Latin 100.0%\n" in done.out
    assert all(len(line) <= 80 for line in done.out.splitlines())
    assert done.err == ""
    assert succeeded(check("train.en")).out.endswith("Nothing wrong was found in 60 lines.\n")
    write_lines("none.en", [])
    write_lines("none.de", [])
    done = check("none.en", "none.de")
    assert (done.code, done.out.splitlines()[-1]) == (1, "Not ready to train on: 1 error in 0 lines.")
    assert "no lines at all" in done.out


def test_where_files_part_is_told_whole(check: Command) -> None:
    write_lines("train.de", [tgt for n, (_, tgt) in enumerate(PAIRS) if n != 30])
    done = check(*FILES)
    assert done.code == 1
    report = " ".join(done.out.split())
    assert "60 lines here, 59 in train.de; they part perhaps near line 31:" in report
    shown = report[report.index("they part") : report.index("findings")]
    assert "this is line number" in shown
    assert "das ist die Zeile Nummer" in shown
    assert all(len(line) <= 80 for line in done.out.splitlines() if not line.startswith(("error", "severity", "─")))


def test_errors_fail_and_warnings_fail_if_strict(check: Command) -> None:
    plant("train.de", 3, "Zeile\u2028Nummer zwei".encode())
    succeeded(check(*FILES))
    done = check(*FILES, "--strict")
    assert done.code == 1
    assert "train.de:3:6" in done.out
    assert "Zeile⟨U+2028⟩Nummer" in done.out
    plant("train.de", 3, b"Zeile Nummer zwei")
    plant("train.en", 17, b"caf\xe9 au lait")
    done = check(*FILES)
    assert done.code == 1
    assert all(text in done.out for text in ("train.en:17:4", "line is not UTF-8", "caf"))
    assert done.out.endswith("Not ready to train on: 1 error in 60 pairs.\n")


def test_json_on_standard_output_is_all_there_is(check: Command) -> None:
    plant("train.en", 17, b"caf\xe9")
    done = check(*FILES, "--json", "-")
    assert done.code == 1
    values = json.loads(done.out)
    assert values["wrong"] is True
    assert values["tokens"] is None
    (finding,) = [one for one in values["splits"]["data"]["findings"] if one["severity"] == "error"]
    assert finding["kind"] == "encoding"
    assert (finding["places"][0]["line"], finding["places"][0]["byte"]) == (17, 4)
    done = check(*FILES, "--json", "-", "--fix", "clean")
    assert json.loads(done.out)["wrong"] is True
    assert "written to clean" in done.err


def test_reports_are_written(check: Command) -> None:
    done = succeeded(check(*FILES, "--html", "report.html", "--json", "report.json"))
    assert "wrote report.html" in done.err
    assert "Nothing wrong was found in 60 pairs." in Path("report.html").read_text(encoding="utf-8")
    assert json.loads(Path("report.json").read_text(encoding="utf-8"))["wrong"] is False
    for option in ("--html", "--json", "--fix"):  # as a script gives that forgot to set its variable
        refused(check(*FILES, option, ""), "--fix, --html and --json have an empty name")
    refused(check(*FILES, "--html", "one", "--json", "./one"), "--html and --json are both one: name two files")


def test_a_report_replaces_nothing_but_a_report(check: Command) -> None:
    for option in ("--json", "--html"):  # --json is a flag of other commands
        refused(check(option, *FILES), "train.en: this file is not a report, and a report would replace it")
        assert lines_in(Path("train.en")) == [source for source, _ in PAIRS]
        refused(check(*FILES, option, "nowhere/report"), "the folder nowhere does not exist")
        for _ in range(2):
            succeeded(check("train.en", option, "report"))
        Path("report").write_text("")


def test_commands_that_are_told_can_be_pasted(check: Command, console: Command) -> None:
    done = succeeded(check("mine.yaml", "--no-tokens", "--fix", "all clean"))
    assert done.out.endswith("the recipe for it is all clean/mine.yaml; next: nmtkit train 'all clean/mine.yaml'\n")
    Path("all clean", "request.json").write_text('{"--preset": "tiny"}')
    again = console("train", "--source", "train.en", "--target", "train.de", "--run", "all clean", "--resume")
    refused(again, "use `nmtkit train 'all clean/chosen.yaml' --run 'all clean' --resume`, or train anew")


def test_json_lines(check: Command) -> None:
    write_lines("corpus.jsonl", [json.dumps({"article": src, "summary": tgt}) for src, tgt in PAIRS])
    done = succeeded(check("corpus.jsonl", "--src-field", "article", "--tgt-field", "summary"))
    assert "60 pairs" in done.out
    wrong = check("corpus.jsonl")
    assert wrong.code == 1
    assert "no field 'src'" in wrong.out
    for names in (FILES, ["mine.yaml"]):
        refused(check(*names, "--src-field", "article"), "--src-field and --tgt-field are for files of JSON lines")


def test_a_recipe_is_checked_with_its_tokenizer(check: Command, console: Command) -> None:
    done = succeeded(check("mine.yaml"))
    assert "learning a tokenizer (word) for this check, since runs/mine has none" in done.err
    assert "over-long" not in done.out
    assert "The tokenizer (word) was learned for this check." in done.out
    assert "unknown" in done.out
    shorter = check("mine.yaml", "--set", "data.max_length=6").out
    assert "over-long" in shorter
    assert "longer than data.max_length" in shorter
    assert "What preprocessing will do" not in check("mine.yaml", "--no-tokens").out
    done = succeeded(check("mine.yaml", *sets("tokenizer.kind=bpe", "tokenizer.vocab_size=5000")))
    assert "5,000" in done.err, "a vocabulary that the text cannot fill is made smaller, with a note"

    succeeded(console("preprocess", "mine.yaml"))
    done = succeeded(check("mine.yaml"))
    assert "The tokenizer (word) is that of runs/mine." in done.out
    assert "learning a tokenizer" not in done.err
    assert "was learned for this check" in check("mine.yaml", "--set", "tokenizer.vocab_size=30").out

    stages = [{"name": "first", "data": {"train": {"src": "valid.en", "tgt": "more.de"}}}, {"name": "second"}]
    write_lines("more.de", ["mehr"])
    done = succeeded(check("mine.yaml", "--no-tokens", "--set", f"stages={json.dumps(stages)}"))
    assert done.err.endswith(f"not checked with a recipe; check them as files: {Path('more.de').absolute()}\n")

    plant("train.en", 17, b"caf\xe9")
    done = check("mine.yaml")
    assert done.code == 1
    assert "not cut into tokens" in done.err
    assert "train.en:17:4" in done.out


def test_fix_writes_files_and_a_recipe_that_pass(check: Command, console: Command) -> None:
    plant("train.en", 17, b"caf\xe9")
    plant("train.de", 20, "Zeile\u2028zwanzig".encode())
    done = succeeded(check("mine.yaml", "--fix", "clean"))  # nothing is left that is wrong
    assert "next: nmtkit train clean/mine.yaml" in done.out
    files = {f"{split}.{side}" for split in ("train", "valid") for side in ("en", "de")}
    assert {path.name for path in Path("clean").iterdir()} == {"dropped.jsonl", "mine.yaml", *files}
    assert len(Path("clean/train.en").read_text(encoding="utf-8").splitlines()) == 59
    again = succeeded(check("clean/mine.yaml", "--strict"))
    assert again.out.endswith("No errors and no warnings in 60 pairs.\n")
    resolved = console("recipe", "show", "clean/mine.yaml", "--resolved").out
    assert config.load("clean/mine.yaml").name == "mine-clean"
    assert "max_length: 7\n" in resolved


def test_the_recipe_of_fixed_files_has_what_was_set(check: Command) -> None:
    write_lines("other.en", [src for src, _ in PAIRS])
    done = check("mine.yaml", "--no-tokens", "--fix", "clean", *sets("data.train.src=other.en", "training.lr=0.25"))
    assert "next: nmtkit train clean/mine.yaml" in done.out
    fixed = load("clean/mine.yaml")
    assert (fixed.training.lr, fixed.data.max_length, fixed.data.test, fixed.name) == (0.25, 7, None, "mine-clean")
    assert [Path(path).resolve() for path in fixed.data.splits()["train"].src] == [Path("clean/other.en").resolve()]


def test_files_are_whole_though_nobody_reads_to_the_end(check: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def show(*arguments: object, **named: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(cli, "_show_examination", show)
    assert check("mine.yaml", "--no-tokens", "--fix", "clean").code == 1
    assert {"train.en", "valid.de", "mine.yaml"} <= {path.name for path in Path("clean").iterdir()}


def test_what_cannot_be_fixed_is_refused(check: Command) -> None:
    write_lines("train.de", [tgt for _, tgt in PAIRS[:-3]])
    done = check(*FILES, "--fix", "clean")
    assert done.code == 1
    assert "data: not written: " in done.out
    assert "clean: not made, since nothing could be written" in done.out
    assert not Path("clean").exists()
    assert all(len(line) <= 100 for line in done.out.splitlines() if not line.startswith("data: not written"))
    done = check("mine.yaml", "--fix", "clean")
    assert done.code == 1
    assert "\ntrain: not written: " in done.out
    recipe = Path("clean/mine.yaml").read_text(encoding="utf-8")
    assert str(Path("train.de").absolute()) in recipe
    assert "- valid.de" in recipe


def test_findings_alone_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """As other commands show them."""
    split = SplitDiagnosis("train", pairs=10)
    split.find(EMPTY, FaultLocation("data/train.en", 4))
    show_diagnosis(Diagnosis({"train": split}))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "train.en:4" in captured.err
    assert captured.err.endswith("1 warning to look at before training.\n")


@pytest.mark.usefixtures("check")
def test_files_are_checked_without_torch() -> None:
    assert not {"torch", "sacrebleu", "matplotlib", "sentencepiece"} & traced("check", *FILES).imported
