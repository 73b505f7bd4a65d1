"""Imported models compute what they computed, and a folder that lies or would do harm is refused by name."""

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from nmtkit.convert import engines
from nmtkit.convert.exporting import export_run
from nmtkit.convert.importing import import_run
from nmtkit.convert.weight_names import SUPPRESSED_BIAS
from nmtkit.core.formats import load_yaml
from nmtkit.training.checkpoints.tensor_files import write_bare_tensors
from tests.support.commands import Command, refused, succeeded, write_lines
from tests.support.random_runs import (
    SOURCES,
    TARGETS,
    Harm,
    Spoil,
    change,
    changed,
    copied,
    gone,
    import_refused,
    made_run,
    marian,
    needs,
    opened,
    pipe,
    raw,
    read,
    tokenizers,
)

MARIAN = "marian model: 2+1 layers of size 16, 60 source and 60 target tokens"
MARIANS: list[dict[str, Any]] = [
    {"end": 1.0, "stops": False},
    {
        "bias": False,
        "share_encoder_decoder_embeddings": False,
        "activation_function": "relu",
        "end": 4.0,
    },
    {
        "two": True,
        "share_encoder_decoder_embeddings": False,
        "activation_function": "gelu",
        "stops": "never",
    },
    {
        "tie_word_embeddings": False,
        "share_encoder_decoder_embeddings": False,
        "scale_embedding": False,
        "spread": 0.8,
    },
    {
        "two": True,
        "bias": False,
        "tie_word_embeddings": False,
        "share_encoder_decoder_embeddings": False,
    },
    {"bias": False, "share_encoder_decoder_embeddings": False, "pad_last": True},
    {
        "d_model": 24,
        "encoder_layers": 3,
        "decoder_layers": 1,
        "heads": 3,
        "file": "pytorch_model.bin",
        "end": 4.0,
    },
]
"""Settings of theirs; and of ours, two vocabularies, how large weights are and how likely the end of a sentence is."""


@needs("huggingface")
@pytest.mark.parametrize("kind", MARIANS, ids=str)
def test_a_marian_model_computes_and_finds_what_it_did(
    kind: dict[str, Any], tmp_path: Path
) -> None:
    theirs = marian(tmp_path / "theirs", kind)
    import_run(tmp_path / "theirs", str(tmp_path / "run"))
    ours = opened(tmp_path / "run")
    tokenizer = engines.library("huggingface").MarianTokenizer.from_pretrained(tmp_path / "theirs")
    sources = [f">>de<< {one}" if number % 7 == 0 else one for number, one in enumerate(SOURCES)]
    batch = tokenizer(sources, text_target=TARGETS, return_tensors="pt", padding=True)
    assert batch.attention_mask.sum(1).tolist() == [
        len(one) + 1 for one in ours.tokenizers.src.encode_many(sources)
    ]
    begin = torch.full_like(batch.labels[:, :1], theirs.config.decoder_start_token_id)
    with torch.inference_mode():
        given = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        logits = theirs(
            **given, decoder_input_ids=torch.cat([begin, batch.labels[:, :-1]], 1)
        ).logits.log_softmax(-1)
        written = theirs.generate(**given)
    expected = logits.gather(2, batch.labels[..., None])[..., 0]
    for row, found in enumerate(ours.rescore(sources, TARGETS)):
        wanted = expected[row, : len(found.token_log_probs)].tolist()
        assert found.token_log_probs == pytest.approx(wanted, abs=1e-3)  # float32, up to 10 in size
    texts = tokenizer.batch_decode(written, skip_special_tokens=True)
    assert sum(0 in row for row in written[:, 1:].tolist()) > 10, "some end"
    assert len(set(texts)) >= 5
    # They leave <unk> out, and the space after it at the beginning.
    assert [text.replace("<unk>", "").lstrip() for text in ours.translate(sources)] == texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that export wrote; needs no library."""
    path = tmp_path_factory.mktemp("exported")
    settings = {"norm": "post", "positions": "sinusoidal_halves", "activation": "silu"}
    export_run(
        made_run(path / "run", settings, tokenizers(two=False)),
        "huggingface",
        path / "out",
        licence="mit",
    )
    return path / "out"


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return copied(folder, tmp_path)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("layout", ["zip", "old", "half", "without bias or positions"])
def test_weights_in_other_files_are_the_same_weights(
    layout: str, folder: Path, copy: Path, tmp_path: Path
) -> None:
    given = tensors(folder)
    (copy / "model.safetensors").unlink()
    if layout == "half":
        given = {name: tensor.half() for name, tensor in given.items()}
    left_out = ("final_logits_bias", "embed_positions") if layout.startswith("without") else ()
    given = {
        name: tensor for name, tensor in given.items() if not any(part in name for part in left_out)
    }
    torch.save(given, copy / "pytorch_model.bin", _use_new_zipfile_serialization=layout != "old")
    import_run(folder, str(tmp_path / "one"))
    import_run(copy, str(tmp_path / "other"))
    one, other = (raw(tmp_path / name) for name in ("one", "other"))
    assert one.config == other.config
    for (name, tensor), found in zip(
        one.state_dict().items(), other.state_dict().values(), strict=True
    ):
        wanted = (
            torch.zeros_like(tensor)
            if layout.startswith("without") and name == "output.bias"
            else tensor
        )
        assert torch.equal(found, wanted.half().float() if layout == "half" else wanted)


def in_pickle(
    content: Callable[[Path], Any], save: Callable[[Any, Path], object] = torch.save
) -> Spoil:
    """Puts something else into the weights' place."""

    def spoil(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        save(content(folder), folder / "pytorch_model.bin")

    return spoil


def save_bare(content: Any, path: Path) -> None:
    path.write_bytes(pickle.dumps(content))


def save_compressed(content: bytes, path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", content)


def weight(name: str, tensor: torch.Tensor | None) -> Spoil:
    """Replaces a weight, or takes it out."""

    def spoil(folder: Path) -> None:
        given = tensors(folder) | {name: tensor}
        write_bare_tensors(
            folder / "model.safetensors",
            {key: one for key, one in given.items() if one is not None},
        )

    return spoil


def words(change: Callable[[dict[str, Any]], object]) -> Spoil:
    def spoil(folder: Path) -> None:
        given = read(folder / "vocab.json")
        change(given)
        (folder / "vocab.json").write_text(json.dumps(given), encoding="utf-8")

    return spoil


def config(**values: Any) -> Spoil:
    return changed("config.json", **values)


FC1 = "model.encoder.layers.0.fc1.weight"
SHARED = "model.shared.weight"
HOSTILE: dict[str, tuple[Spoil, str]] = {
    "a pickle with code": (
        in_pickle(lambda at: {SHARED: Harm(at.parent / "harm")}),
        "bin.*no code in it was run",
    ),
    "a bare pickle": (
        in_pickle(lambda at: Harm(at.parent / "harm"), save_bare),
        "bin.*no code in it was run",
    ),
    "a compressed pickle": (
        in_pickle(lambda at: bytes(1 << 20), save_compressed),
        "pytorch_model.bin.*compressed",
    ),
    "other objects": (
        in_pickle(lambda at: {"a": [1, 2]}),
        "pytorch_model.bin.*objects other than named tensors",
    ),
    "one number for many": (
        in_pickle(lambda at: {FC1: torch.zeros(1).expand(24, 16)}),
        "fc1.weight.*fewer values",
    ),
    "half a file": (
        lambda at: os.truncate(at / "model.safetensors", 3000),
        "model.safetensors.*damaged",
    ),
    "no weights": (
        gone("model.safetensors"),
        "no weights.*pytorch_model.bin.*download the whole folder",
    ),
    "no config": (gone("config.json"), "config.json.*missing"),
    "no numbers": (weight(FC1, torch.full((24, 16), torch.nan)), "fc1.weight.*NaN"),
    "another shape": (weight(FC1, torch.zeros(16, 24)), r"fc1.weight.*\[16, 24\].*\[24, 16\]"),
    "a weight less": (weight(FC1, None), "fc1.weight.*missing"),
    "a weight more": (
        weight("model.x", torch.zeros(1)),
        "this kind of model has no weight .*model.x",
    ),
    "other ties": (weight("lm_head.weight", torch.zeros(60, 16)), "config.json ties.*differ"),
    "a huge vocabulary": (config(vocab_size=99_999_999), "config.json.*99,999,999"),
    "a huge width": (config(d_model=1 << 20), "config.json.*1048576"),
    "many layers": (config(encoder_layers=200), "layers.2.*missing"),
    "more layers": (config(encoder_layers=10**9), "config.json.*encoder_layers"),
    "odd heads": (
        config(encoder_attention_heads=3, decoder_attention_heads=3),
        "16 is not a multiple of 3",
    ),
    "two sizes": (
        config(decoder_ffn_dim=8),
        "a `decoder_ffn_dim` .8. that differs from `encoder_ffn_dim` .24.",
    ),
    "a far end": (
        changed("generation_config.json", eos_token_id=10**6),
        "generation_config.json.*1000000",
    ),
    "an activation": (config(activation_function="mish"), "activation_function"),
    "another family": (
        config(model_type="rwkv"),
        "nmtkit does not support models of type 'rwkv'; .*supported: .*marian",
    ),
    "a search": (changed("generation_config.json", num_beams=10**6), "num_beams"),
    "no JSON": (lambda at: (at / "vocab.json").write_text("[1"), "vocab.json.*not valid JSON"),
    "a list": (lambda at: (at / "vocab.json").write_text("[1]"), "vocab.json.*list"),
    "two for one": (words(lambda given: given.update(a=7)), "vocab.json.*'a' has id 7"),
    "far words": (words(lambda given: given.update(a=60)), "vocab.json.*'a' has id 60"),
    "words of words": (words(lambda given: given.update(a="b")), "vocab.json.*'a' has id 'b'"),
    "no unknown": (
        words(lambda given: given.pop("<unk>")),
        "nmtkit does not support a vocabulary without <unk>",
    ),
    "no pieces": (
        lambda at: (at / "target.spm").write_bytes(b"x" * 99),
        "target.spm.*not a sentencepiece model",
    ),
    "a pipe": (pipe("source.spm"), "source.spm.*is not a file"),
}


@pytest.mark.parametrize("harm", HOSTILE)
def test_a_folder_that_lies_is_refused_by_name_and_leaves_nothing(
    harm: str, copy: Path, tmp_path: Path
) -> None:
    spoil, match = HOSTILE[harm]
    spoil(copy)
    import_refused(copy, match, tmp_path)


def test_odd_words_keep_their_rows(copy: Path, tmp_path: Path) -> None:
    """What no line can hold, and what is called as our special words are, gets another name and nothing else."""
    ninth = list(read(copy / "vocab.json"))[9]
    words(lambda given: given.update([("a\nb", given.pop(ninth))]))(copy)
    change(copy / "config.json", decoder_start_token_id=0)
    change(copy / "generation_config.json", decoder_start_token_id=0)
    import_run(copy, str(tmp_path / "run"))
    found = opened(tmp_path / "run")
    tokens = found.tokenizers.src.vocabulary.tokens
    assert tokens[:4] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert tokens[4] == "<unused 2>"  # their <s>, which the decoder no longer begins with
    assert len(tokens) == 61
    model = raw(tmp_path / "run")
    theirs, own = tensors(copy)[SHARED], model.tgt_embedding.weight
    assert torch.equal(own[2], theirs[0])
    assert torch.equal(own[4], theirs[2])
    assert torch.equal(own[5:], theirs[4:])
    assert model.get_parameter("output.bias")[2].item() == SUPPRESSED_BIAS
    assert "<unused 9>" in tokens


def test_what_an_older_folder_says_of_generation_beside_its_sizes_is_told(
    copy: Path, tmp_path: Path
) -> None:
    settings = read(copy / "generation_config.json")
    settings |= {"encoder_repetition_penalty": 1.5, "diversity_penalty": 0.0, "top_k": 50}
    (copy / "generation_config.json").unlink()
    change(copy / "config.json", **settings)
    told: list[str] = []
    import_run(copy, str(tmp_path / "run"), told.append)
    (note,) = (line for line in told if "ignored" in line)
    assert (
        note
        == "these settings in config.json are ignored: encoder_repetition_penalty; the output of generate may differ"
    )


NO_EFFECT = {
    "temperature": 0.6,
    "top_k": 50,
    "num_return_sequences": 1,
    "encoder_repetition_penalty": 1.0,
    "output_scores": True,
}
IGNORED = {
    "bad_words_ids": [[5, 6]],
    "suppress_tokens": [7],
    "begin_suppress_tokens": [8],
    "encoder_no_repeat_ngram_size": 2,
    "exponential_decay_length_penalty": [5, 1.5],
    "sequence_bias": [[[5], 2.0]],
    "do_sample": True,
    "num_return_sequences": 2,
}


def test_generation_settings_are_kept_or_told_as_ignored(copy: Path, tmp_path: Path) -> None:
    kept = {
        "no_repeat_ngram_size": 3,
        "repetition_penalty": 1.5,
        "num_beams": 2,
        "early_stopping": True,
    }
    change(copy / "generation_config.json", **kept, **NO_EFFECT)
    told: list[str] = []
    import_run(copy, str(tmp_path / "kept"), told.append)
    assert not [line for line in told if "ignored" in line]
    search = load_yaml(tmp_path / "kept" / "recipe.yaml")[0]["search"]
    assert (search["no_repeat_ngram"], search["repetition_penalty"], search["beam_size"]) == (
        3,
        1.5,
        2,
    )
    assert [line for line in told if "beam size 2" in line and "repetition penalty 1.5" in line]
    for key, value in IGNORED.items():
        change(copy / "generation_config.json", **{**NO_EFFECT, key: value})
        told.clear()
        import_run(copy, str(tmp_path / key), told.append)
        assert [
            line
            for line in told
            if line.startswith("these settings in generation_config.json are ignored: ")
            and key in line
        ], key
        change(copy / "generation_config.json", **{key: None})


FAULTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "generation": (
        "generation_config.json",
        {"length_penalty": -1.0},
        "generation_config.json: `length_penalty`",
    ),
    "several ends": (
        "generation_config.json",
        {"eos_token_id": [3, 2]},
        "generation_config.json: `eos_token_id`",
    ),
    "model": ("config.json", {"dropout": -1.0}, "/config.json: `dropout`"),
    "model's end": (
        "generation_config.json",
        {"pad_token_id": 10**6},
        "generation_config.json: `pad_token_id`",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_names_the_file_that_has_the_value(case: str, copy: Path, tmp_path: Path) -> None:
    file, values, match = FAULTS[case]
    change(copy / file, **values)
    import_refused(copy, match, tmp_path)


def test_generation_settings_in_config_json_alone_are_named_there(
    copy: Path, tmp_path: Path
) -> None:
    settings = read(copy / "generation_config.json") | {"length_penalty": -1.0}
    (copy / "generation_config.json").unlink()
    change(copy / "config.json", **settings)
    import_refused(copy, "/config.json: `length_penalty`", tmp_path)


def test_an_imported_run_is_a_run_for_every_command(
    folder: Path, console: Command, tmp_path: Path
) -> None:
    assert MARIAN in succeeded(console("import", folder, "-o", "runs/mine")).err
    for name, lines in (("src", SOURCES[:3]), ("tgt", TARGETS[:3])):
        write_lines(tmp_path / name, lines)
    cpu = ("--device", "cpu")
    newest = succeeded(console("translate", *cpu, stdin=SOURCES[0]))
    assert len(newest.out.splitlines()) == 1
    for command in ("rescore", "align"):
        done = succeeded(console(command, "-m", "mine", *cpu, "--source", "src", "--target", "tgt"))
        assert len(done.out.splitlines()) == 3
    succeeded(console("plot-attention", "-m", "mine", *cpu, SOURCES[0], "-o", "picture.html"))
    assert (tmp_path / "picture.html").exists()
    succeeded(console("export", "mine", "again", "--to", "safetensors"))
    card = (tmp_path / "again" / "README.md").read_text(encoding="utf-8")
    assert "license: mit\n" in card
    assert "Imported from the marian model out" in card
    assert (
        load_yaml(tmp_path / "runs" / "mine" / "recipe.yaml")[0]["model"]["positions"]
        == "sinusoidal_halves"
    )
    refused(console("import", folder, "-o", "runs/mine"), "choose another folder with -o")
