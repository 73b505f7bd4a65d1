"""Tasks that a public model was trained for: prefixes, search settings, and what fine-tuning does with them."""

import json
from pathlib import Path
from typing import Any

import pytest

from nmtkit.convert.importing import import_run
from nmtkit.core.errors import NmtkitError
from nmtkit.core.formats import load_yaml
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.run import Run
from tests.convert.huggingface.random_models import gpt2, made
from tests.support.commands import Command, refused, succeeded, write_lines
from tests.support.random_runs import change, copied, import_refused, opened

transformers = pytest.importorskip("transformers")
from tests.convert.huggingface.public import TEXTS  # noqa: E402  # needs transformers

SUMMARIZATION = {
    "prefix": "find: ",
    "num_beams": 3,
    "max_length": 16,
    "min_length": 4,
    "length_penalty": 2.0,
}
SUMMARIZATION |= {"early_stopping": True, "no_repeat_ngram_size": 2}
TASKS = {
    "summarization": SUMMARIZATION,
    "translation_en_to_de": {
        "prefix": "turn it: ",
        "max_length": 14,
        "num_beams": 2,
        "early_stopping": True,
    },
    "text-generation": {"do_sample": True},
}
SOURCES = [" ".join(text.split()[: 2 + number % 9]) for number, text in enumerate(TEXTS[:30])]


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks") / "t5"
    made("t5", folder)
    change(folder / "config.json", task_specific_params=TASKS)
    change(folder / "generation_config.json", max_new_tokens=None)
    return folder


@pytest.mark.parametrize("name", ["summarization", "translation_en_to_de"])
def test_texts_of_a_task_equal_those_of_transformers_with_its_prefix(
    name: str, t5: Path, tmp_path: Path
) -> None:
    settings = dict(TASKS[name])
    prefix = settings.pop("prefix")
    tokenizer = transformers.AutoTokenizer.from_pretrained(t5)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(t5)
    batch = tokenizer([prefix + source for source in SOURCES], return_tensors="pt", padding=True)
    expected = tokenizer.batch_decode(model.generate(**batch, **settings), skip_special_tokens=True)
    told: list[str] = []
    run = import_run(t5, str(tmp_path / "run"), told.append, task=name)
    assert Run(run).recipe.task == name.partition("_")[0]
    assert any(f"every source gets the prefix {prefix!r}" in line for line in told)
    assert not any("ignored" in line for line in told)
    found = opened(tmp_path / "run").translate([*SOURCES, ""])
    assert len({*expected}) > 15
    assert found == [*expected, ""]
    plain = model.generate(**tokenizer(SOURCES, return_tensors="pt", padding=True), **settings)
    assert tokenizer.batch_decode(plain, skip_special_tokens=True) != expected


def test_summarize_reads_a_t5_and_a_prefix_of_the_user(t5: Path, console: Command) -> None:
    done = succeeded(console("import", t5, "-o", "runs/plain"))
    assert "choose one with --task" in done.err
    refused(console("summarize", "-m", "runs/plain", "--device", "cpu", stdin="a"), "translate")
    done = console("translate", "-m", "runs/plain", "--to", "fr", "--device", "cpu", stdin="a")
    refused(done, "has not learned the tag <2fr>; it was trained without tags, so remove --to")
    succeeded(console("import", t5, "-o", "runs/short", "--task", "summarization"))
    succeeded(
        console(
            "import",
            t5,
            "-o",
            "runs/own",
            "--task",
            "summarization",
            "--source-prefix",
            "turn it: ",
        )
    )
    lines = "\n".join(SOURCES[:9]) + "\n"
    cpu = ("--device", "cpu")
    found = [
        succeeded(console("summarize", "-m", f"runs/{name}", *cpu, stdin=lines)).out
        for name in ("short", "own")
    ]
    assert [len(text.splitlines()) for text in found] == [9, 9]
    assert found[0] != found[1]
    cut = succeeded(console("tokenize", "-m", "runs/short", stdin="the man\n")).out
    whole = succeeded(console("tokenize", "-m", "runs/plain", stdin="find: the man\n")).out
    assert cut == whole


def test_fine_tuning_keeps_the_prefix_and_trains_with_it(
    t5: Path, console: Command, tmp_path: Path
) -> None:
    succeeded(console("import", t5, "-o", "runs/short", "--task", "summarization"))
    for name in ("a", "b"):
        write_lines(tmp_path / name, TEXTS[:60])
    settings = [
        "--set=training.max_updates=2",
        "--set=training.validate_every=2",
        "--device",
        "cpu",
    ]
    files = ("--source", "a", "--target", "b")
    succeeded(
        console("train", "--init-from", "runs/short", *files, "--run", "runs/tuned", *settings)
    )
    recipe = load_yaml(tmp_path / "runs" / "tuned" / "recipe.yaml")[0]
    assert (recipe["task"], recipe["tokenizer"]["source_prefix"]) == ("summarization", "find: ")
    tuned = Run(RunFolder(tmp_path / "runs" / "tuned"))
    ids = tuned.load_tokenizers().src.encode("the man")
    without = Run(RunFolder(tmp_path / "runs" / "short")).load_tokenizers().with_source_prefix("")
    assert ids == without.src.encode("find: the man")
    assert without.src.encode("the man") != ids
    out = succeeded(
        console("summarize", "-m", "runs/tuned", "--device", "cpu", stdin="the man\n")
    ).out
    assert len(out.splitlines()) == 1

    succeeded(console("export", "runs/tuned", "published", "--to", "huggingface"))
    succeeded(console("import", "published", "-o", "runs/again"))
    recipe = load_yaml(tmp_path / "runs" / "again" / "recipe.yaml")[0]
    assert (recipe["task"], recipe["tokenizer"]["source_prefix"]) == ("summarization", "find: ")
    assert (
        succeeded(
            console("summarize", "-m", "runs/again", "--device", "cpu", stdin="the man\n")
        ).out
        == out
    )


def test_the_only_task_of_a_model_is_chosen(t5: Path, tmp_path: Path) -> None:
    copy = copied(t5, tmp_path)
    change(copy / "config.json", task_specific_params={"summarization": SUMMARIZATION})
    run = Run(import_run(copy, str(tmp_path / "run")))
    assert (run.recipe.task, run.recipe.tokenizer.source_prefix) == ("summarization", "find: ")
    assert (
        run.recipe.search.beam_size,
        run.recipe.search.max_length,
        run.recipe.search.min_length,
    ) == (3, 15, 3)


def test_bart_translates_if_it_is_imported_for_that(tmp_path: Path) -> None:
    made("bart", tmp_path / "theirs")
    for task, command in ((None, "summarization"), ("translation", "translation")):
        run = Run(import_run(tmp_path / "theirs", str(tmp_path / command), task=task))
        assert run.recipe.task == command


def test_a_task_or_prefix_that_cannot_be_is_refused(t5: Path, tmp_path: Path) -> None:
    gpt2(tmp_path / "gpt2")
    for folder, options, match in (
        (t5, {"task": "translation_en_to_fr"}, "did you mean 'translation_en_to_de'"),
        (t5, {"task": "parsing"}, "valid names: .*summarization.*translation_en_to_de"),
        (tmp_path / "gpt2", {"task": "summarization"}, "reads no source"),
        (tmp_path / "gpt2", {"source_prefix": "a"}, "models that read a source"),
    ):
        with pytest.raises(NmtkitError, match=match):
            import_run(folder, str(tmp_path / "run"), **options)
    copy = copied(t5, tmp_path)
    change(copy / "config.json", task_specific_params={"summarization": {"length_penalty": -1}})
    import_refused(
        copy, "/config.json: task_specific_params.summarization: `length_penalty`", tmp_path
    )


ADVICE = {
    "llama": "GPT-2 is the only supported language model",
    "qwen3": "vLLM",
    "gemma3_text": "vLLM",
    "xlm-roberta": "or import BERT",
    "distilbert": "or import BERT",
    "led": "summarize --window",
    "whisper": "use transformers",
    "fsmt": "OPUS-MT",
}


@pytest.mark.parametrize("kind", ADVICE)
def test_the_refusal_of_a_family_says_what_to_use(kind: str, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text(
        json.dumps({"model_type": kind}), encoding="utf-8"
    )
    import_refused(
        tmp_path / "theirs",
        f"does not support models of type '{kind}'; .*{ADVICE[kind]}.*; supported: .*pegasus",
        tmp_path,
    )


def test_a_folder_of_another_program_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text("{}", encoding="utf-8")
    import_refused(
        tmp_path / "theirs",
        "`model_type` is missing, so this folder was not saved by transformers",
        tmp_path,
    )


def test_eole_is_named(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    config: dict[str, Any] = {"model": {"architecture": "transformer"}, "training": {}}
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "theirs" / "model.00.safetensors").write_bytes(b"")
    import_refused(tmp_path / "theirs", "an eole model, which cannot be imported", tmp_path)


def test_a_run_is_not_imported_again(t5: Path, console: Command, tmp_path: Path) -> None:
    succeeded(console("import", t5, "-o", "runs/short", "--task", "summarization"))
    succeeded(console("export", "runs/short", "shared", "--to", "safetensors"))
    for folder in ("runs/short", "shared"):
        refused(
            console("import", folder, "-o", "x"),
            f"this is already a run; use it with `nmtkit summarize -m {folder}",
        )
    assert Run(RunFolder(tmp_path / "shared")).recipe.tokenizer.source_prefix == "find: "
