"""A run that was exported is the same model: for Hugging Face, for CTranslate2, and back here."""

from pathlib import Path
from typing import Any, get_args

import pytest
import sentencepiece
import torch

import nmtkit
from nmtkit.convert import engines
from nmtkit.convert.engines import require_comparable
from nmtkit.convert.exporting import export_run
from nmtkit.convert.importing import import_run
from nmtkit.core.errors import NmtkitError
from nmtkit.data.batches.batch import collate
from nmtkit.data.batches.shards import VERSION
from nmtkit.data.tokenizers.tokenizer import TokenizerConfig
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import EOS, LabelVocabulary
from nmtkit.decoding.settings import BeamConfig, SamplingConfig
from nmtkit.inference.translator import Translator
from nmtkit.models.rnn.rnnsearch import RnnSearchConfig
from nmtkit.models.transformer import TransformerConfig
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.run import Run
from tests.support.cases import daily
from tests.support.commands import Command, refused, succeeded
from tests.support.random_runs import (
    SEARCH,
    SOURCES,
    TARGETS,
    learned,
    made_run,
    needs,
    opened,
    raw,
    read,
    require_near,
    run_of,
)

KINDS: list[dict[str, Any]] = [
    {},
    {
        "norm": "post",
        "positions": "sinusoidal_halves",
        "activation": "silu",
        "scale_embeddings": False,
    },
    {
        "norm": "post",
        "positions": "learned",
        "max_positions": 64,
        "tie": "embeddings",
        "activation": "gelu",
    },
    {"tie": "decoder", "positions": "learned", "max_positions": 64, "activation": "gelu_tanh"},
    {"norm": "post", "tie": "decoder", "two": True},
    {"tie": "none", "two": True},
    {"tie": "none", "more source tokens": True},
]


def exported(kind: dict[str, Any], to: str, folder: Path) -> tuple[Translator, Path]:
    run = run_of(kind, folder / "run")
    export_run(run, to, folder / to)
    return opened(folder / "run"), folder / to


@pytest.mark.parametrize("kind", daily(KINDS, 2), ids=str)
def test_out_and_in_again_is_the_same_run(kind: dict[str, Any], tmp_path: Path) -> None:
    """Twice, for what was imported has two tokenizers over one table."""
    before, folder = exported(kind, "huggingface", tmp_path)
    for again in ("once", "twice"):
        import_run(folder, str(tmp_path / again))
        after = opened(tmp_path / again)
        assert (after.model.config, after.model.sizes) == (before.model.config, before.model.sizes)
        require_near(raw(tmp_path / again), raw(tmp_path / "run"))
        for side in ("src", "tgt"):
            tokens = (getattr(one.tokenizers, side).vocabulary.tokens for one in (after, before))
            assert next(tokens) == next(tokens)
        imported = {"at_limit": "compete", "max_length_offset": 30}
        assert after.config == before.config.changed(imported)
        assert after.translate(SOURCES[:20]) == before.translate(SOURCES[:20])
        folder = tmp_path / f"{again}-out"
        export_run(Run(RunFolder(tmp_path / again)), "huggingface", folder)


@needs("huggingface")
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_hugging_face_opens_it(kind: dict[str, Any], tmp_path: Path) -> None:
    ours, folder = exported(kind, "huggingface", tmp_path)
    theirs = engines.library("huggingface")
    theirs.logging.set_verbosity_error()
    model, info = theirs.AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    tokenizer = theirs.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(SOURCES, text_target=TARGETS, return_tensors="pt", padding=True)
    given = collate(
        ours.tokenizers.src.encode_many(SOURCES), ours.tokenizers.tgt.encode_many(TARGETS)
    )
    assert batch.input_ids.tolist() == given.inputs.ids.tolist()
    found = model.eval()(
        given.inputs.ids, given.inputs.mask.long(), given.targets.shifted
    ).logits.log_softmax(-1)
    expected = ours.model(given)
    real = given.targets.mask
    assert torch.allclose(found[real][:, : expected.shape[-1]], expected[real], atol=1e-4)
    written = model.generate(input_ids=batch.input_ids, attention_mask=batch.attention_mask)
    assert tokenizer.batch_decode(written, skip_special_tokens=True) == ours.translate(SOURCES)


@needs("huggingface")
def test_hugging_face_reads_the_tags_of_languages(tmp_path: Path) -> None:
    run = made_run(
        tmp_path / "run", {"norm": "post"}, learned(specials=["<2de>", "<2fr>"], vocab_size=70)
    )
    export_run(run, "huggingface", tmp_path / "out")
    tokenizer = engines.library("huggingface").AutoTokenizer.from_pretrained(tmp_path / "out")
    own = opened(tmp_path / "run").encode_sources(SOURCES[:9], ["<2fr>"] * 9)
    assert tokenizer([f"<2fr> {line}" for line in SOURCES[:9]]).input_ids == [
        [*one.ids, EOS] for one in own
    ]
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "A source may begin with one of these tags: `<2de>`, `<2fr>`." in card
    told: list[str] = []
    import_run(tmp_path / "out", str(tmp_path / "again"), told.append)
    assert "is ignored, so the tokenizer never produces <2de>, <2fr>" in told[-1]


def test_generate_ends_where_learned_positions_do(tmp_path: Path) -> None:
    run = made_run(
        tmp_path / "run", {"norm": "post", "positions": "learned", "max_positions": 16}, learned()
    )
    export_run(run, "huggingface", tmp_path / "out")
    assert read(tmp_path / "out" / "generation_config.json")["max_length"] == 17
    assert read(tmp_path / "out" / "config.json")["max_position_embeddings"] == 16


def test_the_longest_source_of_the_training_has_a_position_for_its_end(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", {}, learned())
    recipe = run.folder.recipe.read_text(encoding="utf-8")
    run.folder.recipe.write_text(
        recipe.replace("max_length: 256", "max_length: 2000"), encoding="utf-8"
    )
    export_run(run, "huggingface", tmp_path / "out")
    assert read(tmp_path / "out" / "config.json")["max_position_embeddings"] == 2001


def test_how_much_of_an_article_is_read_is_told(tmp_path: Path) -> None:
    run, told = made_run(tmp_path / "run", {}, learned()), list[str]()
    recipe = run.folder.recipe.read_text(encoding="utf-8")
    for old, new in (
        ("translation", "summarization"),
        ("bleu", "rougeL"),
        ("over_long: drop", "over_long: truncate"),
    ):
        recipe = recipe.replace(old, new)
    run.folder.recipe.write_text(recipe, encoding="utf-8")
    for to in ("huggingface", "safetensors"):
        export_run(run, to, tmp_path / to, notify=told.append)
    (warning,) = told
    assert (
        "huggingface reads whole sources, but nmtkit reads only their first 256 tokens; truncate longer sources"
        in warning
    )
    cards = [
        (tmp_path / to / "README.md").read_text(encoding="utf-8")
        for to in ("huggingface", "safetensors")
    ]
    assert ["at most the first 256 tokens of a source" in card for card in cards] == [True, False]


@needs("ctranslate2")
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_ctranslate2_opens_it(kind: dict[str, Any], tmp_path: Path) -> None:
    ours, folder = exported(kind, "ctranslate2", tmp_path)
    theirs = engines.library("ctranslate2").Translator(
        str(folder), compute_type="float32", intra_threads=1
    )
    src, tgt = ours.tokenizers.src, ours.tokenizers.tgt
    found = theirs.translate_batch(
        [src.tokens(line) for line in SOURCES],
        beam_size=SEARCH["beam_size"],
        max_decoding_length=SEARCH["max_length"],
        min_decoding_length=0,
        suppress_sequences=[["<pad>"], ["<s>"]],
    )
    assert [tgt.join(one.hypotheses[0]) for one in found] == ours.translate(SOURCES)
    exported_pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "source.spm"))
    for line in [*SOURCES, "ba\x0bzu\u00a0fo 10⁵ ½ e\u0301"]:
        assert exported_pieces.encode(line, out_type=str) == src.tokens(line)


@needs("ctranslate2")
def test_what_ctranslate2_does_not_do_to_a_text_is_told(tmp_path: Path) -> None:
    text = learned(specials=["<2de>", "<2fr>"], vocab_size=50, lowercase=True)
    export_run(made_run(tmp_path / "run", {}, text), "ctranslate2", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert (
        "A source may begin with one of these tags: `<2de>`, `<2fr>`.\n\n"
        "Lower-case the text before you split it into TOKENS.\n" in card
    )


@needs("ctranslate2")
@pytest.mark.parametrize("kind", ["word", "wordpiece", "whitespace", "pieces"])
def test_ctranslate2_scores_a_model_of_words(kind: str, tmp_path: Path) -> None:
    export_run(
        made_run(tmp_path / "run", {}, learned(kind=kind, vocab_size=100)),
        "ctranslate2",
        tmp_path / "out",
    )
    assert not [*(tmp_path / "out").glob("*.spm")]
    ours = opened(tmp_path / "run")
    src, tgt = ours.tokenizers.src, ours.tokenizers.tgt
    theirs = engines.library("ctranslate2").Translator(
        str(tmp_path / "out"), compute_type="float32", intra_threads=1
    )
    sources = [src.vocabulary.tokens_of(ids) for ids in src.encode_many(SOURCES)]
    targets = [tgt.vocabulary.tokens_of(ids) for ids in tgt.encode_many(TARGETS)]
    scores = theirs.score_batch(sources, targets, max_input_length=0)
    for found, expected in zip(ours.rescore(SOURCES, TARGETS), scores, strict=True):
        assert found.token_log_probs == pytest.approx(expected.log_probs, abs=3e-4)


@needs("ctranslate2")
def test_import_refuses_what_was_exported_to_ctranslate2(tmp_path: Path) -> None:
    export_run(made_run(tmp_path / "run", {}, learned()), "ctranslate2", tmp_path / "out")
    with pytest.raises(
        NmtkitError, match=r"a CTranslate2 model.*import .* that it was converted from"
    ):
        import_run(tmp_path / "out", str(tmp_path / "again"))


def test_as_safetensors_any_model_is_a_run_without_text(trained: Path, tmp_path: Path) -> None:
    export_run(Run(RunFolder(trained)), "safetensors", tmp_path / "out", licence="cc-by-4.0")
    assert opened(tmp_path / "out").translate(["ba zu fo"]) == opened(trained).translate(
        ["ba zu fo"]
    )
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert not names & {"data", "checkpoints", "metrics.jsonl"}
    texts = "".join(
        (tmp_path / "out" / name).read_text(encoding="utf-8")
        for name in ("recipe.yaml", "README.md")
    )
    assert "train.src" in texts
    report = read(tmp_path / "out" / "data-report.json")
    assert report == {**read(trained / "data-report.json"), "files": {}}
    assert str(trained.parent) not in texts
    assert "/corpus" not in texts
    scores = read(trained / "test.json")["scores"]
    assert f"* {scores[0]['name']} {scores[0]['value']:.2f} (`{scores[0]['signature']}`)" in texts
    assert "\nlicense: cc-by-4.0\n" in texts


def test_as_safetensors_the_folders_of_other_runs_are_not_told(tmp_path: Path) -> None:
    run_of({}, tmp_path / "run")
    path, there = tmp_path / "run" / "recipe.yaml", tmp_path / "private"
    text = path.read_text(encoding="utf-8")
    named = f"{{encoder: {there}/base, checkpoint: {there}/a.safetensors, test: {{src: {there}/a, tgt: {there}/b}}}}"
    text = text.replace("init_from: null", f"init_from: {named}")
    path.write_text(
        text.replace(
            "pretrained_embeddings: null", f"pretrained_embeddings: {{tgt: {there}/vectors}}"
        )
    )
    export_run(Run(RunFolder(tmp_path / "run")), "safetensors", tmp_path / "out")
    assert str(tmp_path) not in (tmp_path / "out" / "recipe.yaml").read_text(encoding="utf-8")
    again = Run(RunFolder(tmp_path / "out")).recipe
    assert (begun := again.init_from) is not None
    assert (begun.encoder, begun.checkpoint, begun.test) == ("base", "a.safetensors", None)
    assert Path(again.embedding_files["tgt"]).name == "vectors"


@pytest.mark.parametrize(
    ("settings", "cut", "match"),
    [
        ({"copying": "head"}, {}, "that copy"),
        ({}, {"lowercase": True, "vocab_size": 45}, "lower-cased text"),
        ({}, {"kind": "word", "vocab_size": 100}, "(words)"),
        ({}, {"kind": "wordpiece", "vocab_size": 100}, "(words)"),
    ],
)
def test_what_hugging_face_has_not_is_refused_by_name(
    settings: dict[str, Any], cut: dict[str, Any], match: str, tmp_path: Path
) -> None:
    run = made_run(tmp_path / "run", settings, learned(**cut))
    with pytest.raises(NmtkitError, match=match):
        export_run(run, "huggingface", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("engine", engines.LIBRARIES)
def test_what_an_engine_has_not_is_refused_by_name(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NmtkitError, match=f"{engine} does not support rnnsearch models"):
        engines.require_convertible(RnnSearchConfig(), engine)
    with pytest.raises(NmtkitError, match="that copy"):
        engines.require_convertible(TransformerConfig(copying="head"), engine)
    with pytest.raises(NmtkitError, match="does not support src_embedding"):
        engines.require_convertible(
            TransformerConfig.model_validate({"src_embedding": {"kind": "elmo"}}), engine
        )
    with pytest.raises(NmtkitError, match="mixtures of experts"):
        engines.require_convertible(TransformerConfig.model_validate({"experts": {}}), engine)
    given = {
        "length_penalty": "gnmt",
        "coverage_penalty": 0.2,
        "at_limit": "end",
        "min_length_ratio": 0.5,
    }
    with pytest.raises(NmtkitError, match=r"gnmt.*coverage_penalty 0.2.*min_length_ratio"):
        require_comparable(engine, BeamConfig().changed(given))
    with pytest.raises(NmtkitError, match=r"does not support rules .*brackets"):
        require_comparable(engine, BeamConfig(rules=["brackets"]))
    with pytest.raises(NmtkitError, match="does not support kind sampling"):
        require_comparable(engine, SamplingConfig(samples=2))
    require_comparable(engine, BeamConfig())
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with pytest.raises(
        NmtkitError, match=rf"{engines.LIBRARIES[engine]} is not installed.*nmtkit\[(fast|peers)\]"
    ):
        engines.library(engine)


def test_the_command_writes_into_a_new_folder_only(console: Command, tmp_path: Path) -> None:
    run_of({"norm": "post"}, tmp_path / "run")
    recipe = tmp_path / "run" / "recipe.yaml"
    text = recipe.read_text(encoding="utf-8").replace(
        "length_penalty: average", "length_penalty: gnmt"
    )
    recipe.write_text(text)
    done = succeeded(console("export", "run", "out", "--to", "huggingface"))
    assert (
        "warning: huggingface cannot run this search; it does not support length_penalty gnmt"
        in done.err
    )
    assert "--license" in done.err
    assert "license: unknown" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    refused(
        console("export", "run", "out", "--to", "huggingface"),
        "out already exists; use another folder",
    )


def test_the_page_on_the_format_names_every_file_of_a_run(tmp_path: Path) -> None:
    page = Path(nmtkit.__file__).with_name("runs").joinpath("FORMAT.md").read_text(encoding="utf-8")
    folder = RunFolder(tmp_path)
    names = {
        getattr(folder, name).relative_to(tmp_path).parts[0]
        for name, one in vars(RunFolder).items()
        if hasattr(one, "name")
    }
    assert len(names) > 15
    assert [name for name in names if f"`{name}" not in page] == []
    assert f"`version` of this format, now {VERSION}." in page
    one_text = learned()
    Tokenizers(one_text.config, {"tgt": one_text.tgt}, LabelVocabulary(["Y", "X"])).save(tmp_path)
    assert one_text.config.joint
    assert [path.name for path in tmp_path.iterdir() if f"`{path.name}`" not in page] == []
    assert (tmp_path / "tgt.model").is_file()
    kinds = {
        kind
        for line in page.splitlines()
        if line.startswith("| ")
        for kind in line.split(" | ")[0][2:].split(", ")
    }
    assert {*get_args(TokenizerConfig.model_fields["kind"].annotation)} - kinds == set()
