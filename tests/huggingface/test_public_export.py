"""A fine-tuned public model is exported for `transformers` and CTranslate2, and writes the same texts there."""

from pathlib import Path

import pytest
from commands import write_lines
from public import TEXTS

from nmtkit import Translator
from nmtkit.interchange.exporting import export_run
from nmtkit.interchange.importing import import_run
from nmtkit.runs.saved import SavedRun

pytest.importorskip("transformers")
import transformers
from test_gpt2 import gpt2
from test_multilingual import LANGUAGES, SOURCES, TARGETS, public, trained, write_recipe

PAIRS = ["bart", "mbart", "mbart50", "nllb", "m2m100", "t5", "t5 v1.1"]
LINES = [" ".join(text.split()[: 2 + number % 9]) for number, text in enumerate(TEXTS[:24])]
BEAMS = [1, 4]


def tuned(kind: str, folder: Path) -> SavedRun:
    """A public model with random weights, fine-tuned on a few pairs."""
    write_lines(folder / "src", SOURCES)
    write_lines(folder / "tgt", TARGETS)
    corpora = {"src": "src", "tgt": "tgt"}
    if kind == "gpt2":
        gpt2(folder / "theirs")
        corpora = {"tgt": "tgt"}
    else:
        public(kind, folder / "theirs")
    if kind in LANGUAGES:
        corpora |= dict(zip(("src_lang", "tgt_lang"), LANGUAGES[kind], strict=False))
    import_run(folder / "theirs", str(folder / "imported"))
    path = write_recipe(folder / "tuned.yaml", folder / "imported", corpora, updates=2)
    run, losses = trained(path, folder / "tuned")
    assert losses[1] < losses[0]
    return run


def ours(folder: Path, beam_size: int, lines: list[str]) -> list[str]:
    search = {"beam_size": beam_size}
    return Translator.load(folder, device="cpu", search_settings=search).translate(lines)


@pytest.mark.parametrize("kind", PAIRS)
def test_a_tuned_model_writes_the_same_in_transformers_and_ctranslate2(kind: str, tmp_path: Path) -> None:
    run = tuned(kind, tmp_path)
    export_run(run, "huggingface", tmp_path / "exported")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "exported")
    batch = tokenizer(LINES, return_tensors="pt", padding=True)
    expected = {beam: ours(run.folder.path, beam, LINES) for beam in BEAMS}
    assert len({*expected[4]}) > 15
    for beam in BEAMS:
        written = model.generate(**batch, num_beams=beam)
        assert tokenizer.batch_decode(written, skip_special_tokens=True) == expected[beam]
    # What was exported can be imported again, with its languages.
    import_run(tmp_path / "exported", str(tmp_path / "again"))
    assert ours(tmp_path / "again", 1, LINES) == expected[1]


def ctranslate2_texts(folder: Path, kind: str, beam: int) -> list[str]:
    ctranslate2 = pytest.importorskip("ctranslate2")
    translator = ctranslate2.Translator(str(folder))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokens = [tokenizer.convert_ids_to_tokens(tokenizer(line).input_ids) for line in LINES]
    prefix = None
    if kind in LANGUAGES:
        prefix = [[LANGUAGES[kind][1]]] * len(LINES)
    results = translator.translate_batch(
        tokens,
        target_prefix=prefix,
        beam_size=beam,
        max_decoding_length=20,
        max_input_length=0,
        suppress_sequences=[["<pad>"]],
    )
    ids = [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
    return tokenizer.batch_decode(ids, skip_special_tokens=True)
