"""What other engines are given must compute what the model does, or a bench compares nothing."""

import random
from pathlib import Path

import pytest
import torch
from portable import needs

from nmtkit.core.errors import NmtkitError
from nmtkit.data.batch import collate
from nmtkit.data.vocabulary import BOS, EOS, PAD, SPECIALS
from nmtkit.interchange import conversion
from nmtkit.interchange.exporting import require_comparable
from nmtkit.models.base import MODELS, Seq2Seq, VocabularySizes
from nmtkit.models.rnnsearch import RnnSearchConfig
from nmtkit.models.transformer import TransformerConfig
from nmtkit.search.engine import beam_search
from nmtkit.search.rules import SearchConfig
from tests.bench.engines import generate, hugging_face_network

VOCABULARY = 40
TOKENS = [*SPECIALS, *(f"w{number}" for number in range(len(SPECIALS), VOCABULARY))]
SOURCES = [random.Random(number).choices(range(4, 30), k=1 + number % 9) for number in range(24)]
LONGEST = 60
SMALL = TransformerConfig(
    hidden_size=16, feed_forward_size=24, heads=2, encoder_layers=3, decoder_layers=2, tie="all", max_positions=LONGEST
)
KINDS: list[dict[str, object]] = [
    {},
    {"norm": "post"},
    {"positions": "learned"},
    {"activation": "gelu"},
    {"tie": "decoder"},
    {"norm": "post", "positions": "sinusoidal_halves", "activation": "silu", "scale_embeddings": False},
    {"norm": "post", "positions": "learned", "activation": "gelu", "tie": "none"},
]


def shaken(kind: dict[str, object], src: int = VOCABULARY) -> Seq2Seq:
    """Every weight random, so that none can be left out or taken for another unseen; ends are likely."""
    torch.manual_seed(3)
    sizes = VocabularySizes(src, VOCABULARY, src == VOCABULARY)
    model = MODELS.get("transformer")(SMALL.changed(kind), sizes).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
        model.get_parameter("output.bias")[[PAD, BOS, EOS]] = torch.tensor([-1e4, -1e4, 3.0])
    return model


def search(beam_size: int) -> SearchConfig:
    return SearchConfig(beam_size=beam_size, max_length=50, max_length_ratio=0.0, max_length_offset=50)


def check(found: list[list[int]], model: Seq2Seq, config: SearchConfig) -> None:
    """Compares with our own search what has ended; the others rank what has not among what has."""
    ours = [best[0] for best in beam_search(model, collate(SOURCES), config)]
    ended = [config.beam_size == 1 or (one.finished and len(ids) < 49) for one, ids in zip(ours, found, strict=True)]
    compared = [number for number, has_ended in enumerate(ended) if has_ended]
    assert len(compared) > 3
    assert [found[number][:49] for number in compared] == [ours[number].ids[:49] for number in compared]


@needs("huggingface")
@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("kind", KINDS[:2], ids=str)  # test_exporting asks about the others
def test_hugging_face_finds_the_same(kind: dict[str, object], beam_size: int) -> None:
    model, config = shaken(kind), search(beam_size)
    found = generate(hugging_face_network(model, LONGEST), collate(SOURCES), config, config.max_length)
    check(found, model, config)


@needs("ctranslate2")
@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_ctranslate2_finds_the_same(kind: dict[str, object], beam_size: int, tmp_path: Path) -> None:
    model, config = shaken(kind), search(beam_size)
    conversion.to_ctranslate2(model, TOKENS, TOKENS, LONGEST).save(str(tmp_path))
    check(ctranslate2_finds(tmp_path, config), model, config)


@needs("ctranslate2")
def test_two_vocabularies_stay_two(tmp_path: Path) -> None:
    model, config = shaken({"tie": "decoder"}, src=30), search(3)
    conversion.to_ctranslate2(model, TOKENS[:30], TOKENS, LONGEST).save(str(tmp_path))
    check(ctranslate2_finds(tmp_path, config), model, config)


def ctranslate2_finds(folder: Path, config: SearchConfig) -> list[list[int]]:
    library = conversion.library("ctranslate2")
    translator = library.Translator(str(folder), compute_type="float32", inter_threads=1, intra_threads=1)
    found = translator.translate_batch(
        [[TOKENS[word] for word in source] for source in SOURCES],
        beam_size=config.beam_size,
        length_penalty=config.alpha,
        max_decoding_length=config.max_length,
        min_decoding_length=0,
    )
    return [[TOKENS.index(token) for token in one.hypotheses[0]] for one in found]


@pytest.mark.parametrize("engine", conversion.LIBRARIES)
def test_what_an_engine_has_not_is_refused_by_name(engine: str) -> None:
    with pytest.raises(NmtkitError, match=f"{engine} has no counterpart of a rnnsearch"):
        conversion.require_convertible(RnnSearchConfig(), engine)
    with pytest.raises(NmtkitError, match="copies"):
        conversion.require_convertible(SMALL.changed({"copying": "head"}), engine)
    given = {"length_penalty": "gnmt", "coverage_penalty": 0.2, "stop": "joeynmt", "min_length_ratio": 0.5}
    with pytest.raises(NmtkitError, match=r"gnmt.*coverage_penalty 0.2.*stop joeynmt.*min_length_ratio"):
        require_comparable(engine, SearchConfig().changed(given))
    require_comparable(engine, SearchConfig())


@pytest.mark.parametrize("engine", conversion.LIBRARIES)
def test_a_missing_library_is_named_with_the_remedy(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "find_spec", lambda name: None)
    with pytest.raises(NmtkitError, match=rf"pip install {conversion.LIBRARIES[engine]}.*nmtkit\[peers\]"):
        conversion.library(engine)
