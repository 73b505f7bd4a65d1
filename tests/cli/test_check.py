"""`nmtkit check` as people and scripts use it."""

import json
from functools import partial
from pathlib import Path

import pytest

from nmtkit import config
from nmtkit.cli.corpora import check as cli
from nmtkit.cli.terminal.reports import show_diagnosis
from nmtkit.config import load
from nmtkit.data.text.faults import EMPTY, FaultLocation
from nmtkit.datacheck.findings import Diagnosis, SplitDiagnosis
from tests.datacheck import real_looking
from tests.support.command_cases import Case, by_name, refusals, run_case, words_of
from tests.support.commands import Command, contents, refused, sets, succeeded, write_lines
from tests.tools.house import traced

PAIRS = [(f"this is line number {n} of them", f"das ist die Zeile Nummer {n}") for n in range(60)]
FILES = ("train.en", "train.de")


@pytest.fixture
def check(console: Command) -> Command:
    """`nmtkit check` in a folder with a small corpus, a recipe for it, the same as JSON lines, and empty files."""
    for split, pairs in (
        ("train", PAIRS),
        ("valid", [("something else here", "etwas anderes hier")]),
    ):
        for number, side in enumerate(("en", "de")):
            write_lines(f"{split}.{side}", [pair[number] for pair in pairs])
    write_lines(
        "corpus.jsonl", [json.dumps({"article": src, "summary": tgt}) for src, tgt in PAIRS]
    )
    write_lines("more.de", ["mehr"])
    write_lines("none.en", [])
    write_lines("none.de", [])
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


STAGES = [
    {"name": "first", "data": {"train": {"src": "valid.en", "tgt": "more.de"}}},
    {"name": "second"},
]
REPORTS = {
    "pairs and a validation set": Case(
        "train.en train.de --valid valid.en valid.de",
        out=[
            "No problems found in 61 pairs.",
            "train: words per line",
            "valid: letters of the target Latin 100.0%",
        ],
    ),
    "one file": Case("train.en", out=["No problems found in 60 lines."]),
    "empty files": Case(
        "none.en none.de",
        code=1,
        out=["Not ready for training: 1 error in 0 lines.", "file has no lines"],
    ),
    "JSON lines whose fields are named": Case(
        "corpus.jsonl#article corpus.jsonl#summary", out=["60 pairs"]
    ),
    "JSON lines with other fields": Case("corpus.jsonl", code=1, out=["no field 'src'"]),
    "a recipe without a tokenizer": Case(
        "mine.yaml",
        err=["training a tokenizer (word) for this check, because runs/mine has none"],
        out=[
            "The tokenizer (word) was trained for this check.",
            "unknown",
            "What preprocessing will do",
        ],
        not_out=["over-long"],
    ),
    "a recipe with a smaller limit": Case(
        "mine.yaml --set data.max_length=6", out=["over-long", "longer than data.max_length"]
    ),
    "a recipe without its tokenizer": Case(
        "mine.yaml --no-tokens", not_out=["What preprocessing will do"]
    ),
    "a vocabulary that the text cannot fill": Case(
        "mine.yaml --set tokenizer.kind=bpe --set tokenizer.vocab_size=5000", err=["5,000"]
    ),
    "texts of other stages": Case(
        f"mine.yaml --no-tokens --set 'stages={json.dumps(STAGES)}'",
        err=["were not checked; to check them, pass them as arguments: ", "/more.de"],
    ),
}


@pytest.mark.parametrize("case", by_name(REPORTS))
def test_check_reports_its_findings(check: Command, case: Case) -> None:
    run_case(check, case)


def test_languages_are_shown_and_a_mixed_side_is_explained(check: Command) -> None:
    src, tgt = real_looking.pairs(200)
    tgt[::10] = ["Als wir am Bahnhof ankamen, war der Zug schon weg."] * 20
    write_lines("mixed.en", src)
    write_lines("mixed.fr", tgt)
    case = Case(
        "mixed.en mixed.fr",
        out=[
            "data: language of the source: en",
            "note: one side was not checked for lines in other languages (data, 1)",
            "10% of a sample of 199 lines do not seem to be in the most common language, fr, but in de",
        ],
        not_out=["language of the target"],
    )
    run_case(check, case)


def test_clean_files_have_no_messages(check: Command) -> None:
    assert succeeded(check(*FILES)).err == ""


LINE_SEPARATOR = ("train.de", 3, "Zeile\u2028Nummer zwei".encode())
NOT_UTF_8 = ("train.en", 17, b"caf\xe9 au lait")
PLANTED = {
    "a warning": (LINE_SEPARATOR, Case("train.en train.de", out=["train.de:3:6"])),
    "a warning with --strict": (
        LINE_SEPARATOR,
        Case("train.en train.de --strict", code=1, out=["train.de:3:6", "Zeile⟨U+2028⟩Nummer"]),
    ),
    "an error": (
        NOT_UTF_8,
        Case(
            "train.en train.de",
            code=1,
            out=[
                "train.en:17:4",
                "line is not UTF-8",
                "caf",
                "Not ready for training: 1 error in 60 pairs.",
            ],
        ),
    ),
    "an error in the text of a recipe": (
        NOT_UTF_8,
        Case("mine.yaml", code=1, out=["train.en:17:4"], err=["the text was not tokenized"]),
    ),
}


@pytest.mark.parametrize(
    ("planted", "case"), [pytest.param(*row, id=name) for name, row in PLANTED.items()]
)
def test_check_places_a_fault_and_fails_for_errors(
    check: Command, planted: tuple[str, int, bytes], case: Case
) -> None:
    plant(*planted)
    run_case(check, case)


def test_check_shows_where_files_stop_to_match(check: Command) -> None:
    write_lines("train.de", [tgt for n, (_, tgt) in enumerate(PAIRS) if n != 30])
    done = check(*FILES)
    assert done.code == 1
    report = " ".join(done.out.split())
    assert "60 lines here, but 59 in train.de; the files may diverge near line 31:" in report
    shown = report[report.index("the files may diverge") : report.index("findings")]
    assert "this is line number" in shown
    assert "das ist die Zeile Nummer" in shown


NO_REPORT = "train.en: this file already exists and is not a report"
NO_NAME = "--fix, --html and --json do not accept an empty name"
REFUSED = {
    "train.en train.de": {
        # A script that forgot to set its variable gives an empty name.
        "--html ''": NO_NAME,
        "--json ''": NO_NAME,
        "--fix ''": NO_NAME,
        "--html one --json ./one": "--html and --json would both write to one; use two different files",
        "--html nowhere/report": "the folder nowhere does not exist",
        "--json nowhere/report": "the folder nowhere does not exist",
    },
    # --json is a flag of other commands.
    "--json": {"train.en train.de": NO_REPORT},
    "--html": {"train.en train.de": NO_REPORT},
}


@pytest.mark.parametrize(("line", "message"), refusals(REFUSED))
def test_check_refuses_and_writes_nothing(
    check: Command, tmp_path: Path, line: str, message: str
) -> None:
    before = contents(tmp_path)
    refused(check(*words_of(line)), message)
    assert contents(tmp_path) == before


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
    assert "No problems found in 60 pairs." in Path("report.html").read_text(encoding="utf-8")
    assert json.loads(Path("report.json").read_text(encoding="utf-8"))["wrong"] is False


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_report_replaces_an_earlier_report_or_an_empty_file(check: Command, option: str) -> None:
    Path("report").write_text("")
    succeeded(check("train.en", option, "report"))
    first = Path("report").read_text(encoding="utf-8")
    assert first
    succeeded(check("train.de", option, "report"))
    assert Path("report").read_text(encoding="utf-8") != first


def test_recommended_commands_can_be_pasted(check: Command, console: Command) -> None:
    done = succeeded(check("mine.yaml", "--no-tokens", "--fix", "all clean"))
    assert done.out.endswith(
        "the recipe for the cleaned files is all clean/mine.yaml; next: nmtkit train 'all clean/mine.yaml'\n"
    )
    Path("all clean", "request.json").write_text('{"--preset": "tiny"}')
    again = console(
        "train", "--source", "train.en", "--target", "train.de", "--run", "all clean", "--resume"
    )
    refused(
        again, "use `nmtkit train 'all clean/chosen.yaml' --run 'all clean' --resume`, or restart"
    )


def test_a_recipe_is_checked_with_the_tokenizer_of_its_run(
    check: Command, console: Command
) -> None:
    succeeded(console("preprocess", "mine.yaml"))
    done = succeeded(check("mine.yaml"))
    assert "The tokenizer (word) comes from runs/mine." in done.out
    assert "training a tokenizer" not in done.err
    assert (
        "was trained for this check" in check("mine.yaml", "--set", "tokenizer.vocab_size=30").out
    )


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


def test_the_recipe_of_fixed_files_keeps_the_settings_of_set_options(check: Command) -> None:
    write_lines("other.en", [src for src, _ in PAIRS])
    done = check(
        "mine.yaml",
        "--no-tokens",
        "--fix",
        "clean",
        *sets("data.train.src=other.en", "training.lr=0.25"),
    )
    assert "next: nmtkit train clean/mine.yaml" in done.out
    fixed = load("clean/mine.yaml")
    assert (fixed.training.lr, fixed.data.max_length, fixed.data.test, fixed.name) == (
        0.25,
        7,
        None,
        "mine-clean",
    )
    assert [Path(path).resolve() for path in fixed.data.splits()["train"].src] == [
        Path("clean/other.en").resolve()
    ]


def test_fixed_files_are_complete_though_the_reader_of_the_report_goes_away(
    check: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(*arguments: object, **named: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(cli, "_show_examination", show)
    assert check("mine.yaml", "--no-tokens", "--fix", "clean").code == 1
    assert {"train.en", "valid.de", "mine.yaml"} <= {path.name for path in Path("clean").iterdir()}


def test_fix_writes_no_folder_for_files_that_do_not_match(check: Command) -> None:
    write_lines("train.de", [tgt for _, tgt in PAIRS[:-3]])
    done = check(*FILES, "--fix", "clean")
    assert done.code == 1
    assert "data: not written: " in done.out
    assert "clean: not created, because nothing could be written" in done.out
    assert not Path("clean").exists()


def test_fix_keeps_the_original_of_a_split_that_it_cannot_write(check: Command) -> None:
    write_lines("train.de", [tgt for _, tgt in PAIRS[:-3]])
    done = check("mine.yaml", "--fix", "clean")
    assert done.code == 1
    assert "train: not written: " in done.out
    recipe = Path("clean/mine.yaml").read_text(encoding="utf-8")
    assert str(Path("train.de").absolute()) in recipe
    assert "- valid.de" in recipe


def test_other_commands_show_findings_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    split = SplitDiagnosis("train", pairs=10)
    split.find(EMPTY, FaultLocation("data/train.en", 4))
    show_diagnosis(Diagnosis({"train": split}))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "train.en:4" in captured.err
    assert captured.err.endswith("but check 1 warning before training.\n")


@pytest.mark.usefixtures("check")
def test_files_are_checked_without_torch() -> None:
    assert (
        not {"torch", "sacrebleu", "matplotlib", "sentencepiece"} & traced("check", *FILES).imported
    )
