"""Models of Joey NMT and OpenNMT-py compute here what they computed; what they hold beyond that is refused by name."""

from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from nmtkit.convert.importing import detect_toolkit, import_run
from tests.convert.external_recurrent import (
    joey_rnn,
    joey_rnn_scores,
    opennmt_rnn,
    opennmt_rnn_scores,
)
from tests.convert.external_toolkits import (
    JOEY,
    OPENNMT,
    joey_config,
    joey_recurrent,
    joey_scores,
    opennmt_options,
    opennmt_scores,
    words_of,
    write_joey,
    write_opennmt,
)
from tests.support.random_runs import SOURCES, TARGETS, learned, opened

SPM = {
    "data__src__level": "bpe",
    "data__trg__level": "bpe",
    "data__src__tokenizer_cfg": {"model_file": "/elsewhere/src.model"},
    "data__trg__tokenizer_cfg": {"model_file": "/elsewhere/trg.model"},
}
POST = {f"model__{side}__layer_norm": "post" for side in ("encoder", "decoder")}
GELU = {f"model__{side}__activation": "gelu" for side in ("encoder", "decoder")}
JOEYS: dict[str, dict[str, Any]] = {
    "pre-norm": {},
    "post-norm, sentencepiece": POST | SPM,
    "gelu, tied": GELU | {"model__tied_softmax": True},
}
JOEY_RECURRENT: dict[str, dict[str, Any]] = {
    "gru, bahdanau, bridge": {},
    "lstm, luong, last": {
        "rnn_type": "lstm",
        "attention": "luong",
        "init_hidden": "last",
        "num_layers": 2,
    },
    "lstm, bahdanau, bridge, two layers, not fed": {
        "rnn_type": "lstm",
        "num_layers": 2,
        "input_feeding": False,
    },
    "gru, luong, zero": {"attention": "luong", "init_hidden": "zero"},
}


def ids(words: list[str], tokens: list[str]) -> list[int]:
    table = {word: number for number, word in enumerate(words)}
    return [table.get(token, 0) for token in tokens]


def cut(side: int, text: str, pieces: bool, words: list[str]) -> list[str]:
    """Words; or the likeliest pieces of all that the vocabulary has, and single characters (Kudo 2018, section 3.2)."""
    if not pieces:
        return text.split()
    one = (learned(joint=False).src, learned(joint=False).tgt)[side]
    model = sentencepiece.SentencePieceProcessor(model_proto=one.content())
    scores = {
        piece: model.get_score(model.piece_to_id(piece)) for piece in one.vocabulary.tokens[4:]
    }
    text = "\u2581" + text.replace(" ", "\u2581")
    best: list[tuple[float, list[str]]] = [(0.0, [])]
    for end in range(1, len(text) + 1):
        ways = [
            (best[begin][0] + scores[text[begin:end]], [*best[begin][1], text[begin:end]])
            for begin in range(end)
            if text[begin:end] in scores and (text[begin:end] in words or end - begin == 1)
        ]
        best.append(max(ways))
    return best[-1][1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", JOEYS)
def test_a_transformer_of_joey_nmt_computes_what_it_did(kind: str, tmp_path: Path) -> None:
    config = joey_config(**JOEYS[kind])
    pieces = config["data"]["src"]["level"] == "bpe"
    weights, words = write_joey(tmp_path / "theirs", config)
    import_run(tmp_path / "theirs", str(tmp_path / "run"), toolkit="joeynmt")
    ours = opened(tmp_path / "run")
    for source, target, found in zip(
        SOURCES[:6], TARGETS[:6], ours.rescore(SOURCES[:6], TARGETS[:6]), strict=True
    ):
        src, tgt = (
            ids(words[n], cut(n, text, pieces, words[n])) for n, text in enumerate((source, target))
        )
        wanted = joey_scores(weights, config, src, tgt)
        assert found.token_log_probs == pytest.approx(wanted.tolist(), abs=1e-4)
    for text in SOURCES:
        tokens = cut(0, text, pieces, words[0])
        assert ours.tokenizers.src.tokens(text) == (
            tokens if pieces else [f"\u2581{token}" for token in tokens]
        )


OPENNMTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gelu, biases, four heads": {"pos_ffn_activation_fn": "gelu", "add_qkvbias": True, "heads": 4},
    "sentencepiece": {
        "transforms": ["sentencepiece"],
        "src_subword_model": "/there/en.model",
        "tgt_subword_model": "/elsewhere/de.model",
        "add_ffnbias": False,
    },
    "copying": {"copy_attn": True, "dec_layers": 2},
}
RECURRENT = {
    "encoder_type": "brnn",
    "decoder_type": "rnn",
    "rnn_type": "LSTM",
    "position_encoding": False,
}
RECURRENT |= {
    "src_word_vec_size": 12,
    "tgt_word_vec_size": 12,
    "global_attention": "general",
    "input_feed": 1,
}
SUMMARIZER = RECURRENT | {
    "enc_layers": 1,
    "bridge": True,
    "global_attention": "mlp",
    "copy_attn": True,
}
SUMMARIZER |= {"reuse_copy_attn": True}
OPENNMT_RECURRENT: dict[str, dict[str, Any]] = {
    "lstm, both directions": RECURRENT | {"enc_layers": 2, "dec_layers": 2},
    "gru, dot, one direction": RECURRENT
    | {"encoder_type": "rnn", "rnn_type": "GRU", "global_attention": "dot", "enc_layers": 1},
    "lstm, not fed": RECURRENT | {"input_feed": 0, "enc_layers": 1},
    "a summarizer": SUMMARIZER,
    "a summarizer, not fed, gru": SUMMARIZER
    | {"input_feed": 0, "rnn_type": "GRU", "reuse_copy_attn": False},
    "copying by general attention": RECURRENT | {"enc_layers": 1, "copy_attn": True},
}


@pytest.mark.parametrize("kind", OPENNMTS)
def test_a_transformer_of_opennmt_py_computes_what_it_did(kind: str, tmp_path: Path) -> None:
    options = opennmt_options(**OPENNMTS[kind])
    pieces = "sentencepiece" in options["transforms"]
    path = tmp_path / "there" / "model_step_5.pt"
    weights, words = write_opennmt(path, options)
    import_run(path, str(tmp_path / "run"), toolkit="opennmt-py")
    ours = opened(tmp_path / "run")
    sources = [*SOURCES[:5], f"zzz {SOURCES[5]} {TARGETS[5]}"]
    targets = [*TARGETS[:5], f"{TARGETS[5]} zzz"]
    for source, target, found in zip(sources, targets, ours.rescore(sources, targets), strict=True):
        pair = [ours.tokenizers.src.tokens(source), ours.tokenizers.tgt.tokens(target)]
        pair = pair if pieces else [[token[1:] for token in side] for side in pair]
        assert pieces or pair == [source.split(), target.split()]
        wanted = opennmt_scores(weights, options, [*words], pair)
        assert found.token_log_probs == pytest.approx(wanted.tolist(), abs=1e-4)


@pytest.mark.parametrize("kind", [*JOEY_RECURRENT, *OPENNMT_RECURRENT])
def test_a_recurrent_model_computes_what_it_did(kind: str, tmp_path: Path) -> None:
    if kind in JOEY_RECURRENT:
        settings, scores, toolkit = joey_recurrent(JOEY_RECURRENT[kind]), joey_rnn_scores, "joeynmt"
        weights, words = write_joey(tmp_path / "theirs", settings, joey_rnn)
    else:
        settings, scores, toolkit = (
            opennmt_options(**OPENNMT_RECURRENT[kind]),
            opennmt_rnn_scores,
            "opennmt-py",
        )
        weights, words = write_opennmt(tmp_path / "theirs", settings, opennmt_rnn)
    import_run(tmp_path / "theirs", str(tmp_path / "run"), toolkit=toolkit)
    targets = [
        source if settings.get("copy_attn") else TARGETS[n] for n, source in enumerate(SOURCES[:4])
    ]
    found = opened(tmp_path / "run").rescore(SOURCES[:4], targets)
    for source, target, one in zip(SOURCES[:4], targets, found, strict=True):
        src, tgt, copies = ids(words[0], source.split()), ids(words[1], target.split()), []
        if settings.get("copy_attn"):  # unknown words of the source have ids beyond the vocabulary
            beyond = [
                *words[1],
                *dict.fromkeys(word for word in source.split() if word not in words[1]),
            ]
            tgt, copies = ids(beyond, target.split()), [ids(beyond, source.split())]
        expected = scores(weights, settings, src, tgt, *copies)
        assert one.token_log_probs == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_folder_with_a_checkpoint_of_opennmt_py_is_recognized(tmp_path: Path) -> None:
    write_opennmt(tmp_path / "there" / "model_step_5.pt", opennmt_options())
    assert detect_toolkit(tmp_path / "there") == "opennmt-py"
    # of Hugging Face, whose trainer saves optimizer.pt beside it
    (tmp_path / "there" / "config.json").write_text("{}")
    assert detect_toolkit(tmp_path / "there") == "huggingface"


def test_what_opennmt_py_made_of_every_text_before_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    write_opennmt(
        tmp_path / "model.pt", opennmt_options(transforms=["onmt_tokenize", "filtertoolong", "bpe"])
    )
    import_run(tmp_path / "model.pt", str(tmp_path / "run"), told.append, "opennmt-py")
    assert (
        "the training text was processed with bpe, onmt_tokenize, which nmtkit does not apply; process "
        "your sources in the same way" in told
    )


@pytest.mark.parametrize("toolkit", ["joeynmt", "opennmt-py"])
def test_pieces_without_their_model_are_text_cut_beforehand(toolkit: str, tmp_path: Path) -> None:
    """Each piece is known, results are pieces as well, and the user is told."""
    plain = words_of(JOEY if toolkit == "joeynmt" else OPENNMT)
    cut = [
        [word if number < 4 or number % 3 else f"\u2581{word}" for number, word in enumerate(one)]
        for one in plain
    ]
    told: list[str] = []
    model = tmp_path / "model.pt"
    if toolkit == "joeynmt":
        write_joey(model, joey_config(), words=(cut[0], cut[1]))
    else:
        write_opennmt(model, opennmt_options(), words=(cut[0], cut[1]))
    import_run(model, str(tmp_path / "run"), told.append, toolkit)
    ours = opened(tmp_path / "run")
    line = " ".join([*cut[0][4:], "<s>", "nowhere"])
    assert ours.tokenizers.src.encode(line)[:-2] == list(range(4, len(cut[0])))
    assert ours.tokenizers.src.encode(line)[-2:] == [1, 1]
    assert ours.tokenizers.tgt.join(cut[1][4:]) == " ".join(cut[1][4:])
    assert any("reads and outputs pieces separated by spaces" in note for note in told)
    assert any(
        "search settings: " in note and f"as used by {toolkit}; see `search`" in note
        for note in told
    )
