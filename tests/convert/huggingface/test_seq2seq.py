"""BART, mBART, M2M100, NLLB and T5 compute and write what they did."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from nmtkit.convert import external_files
from nmtkit.convert.importing import import_run
from nmtkit.data.batches.batch import collate
from nmtkit.runs.run import Run
from nmtkit.training.checkpoints.tensor_files import write_bare_tensors
from tests.convert.huggingface.public import TEXTS
from tests.convert.huggingface.random_models import made
from tests.support.commands import Command, refused, succeeded, write_lines
from tests.support.random_runs import (
    Spoil,
    changed,
    copied,
    gone,
    import_refused,
    needs,
    opened,
    raw,
)

transformers = pytest.importorskip("transformers")


KINDS = ["bart", "mbart", "mbart50", "nllb", "m2m100", "pegasus", "t5", "t5 v1.1"]
DIRECTIONS = {
    "nllb": {"source_language": "eng_Latn", "to": "deu_Latn"},
    "m2m100": {"source_language": "fr", "to": "de"},
}
BEAM = {"num_beams": 4, "length_penalty": 1.3, "no_repeat_ngram_size": 3, "min_length": 4}


@pytest.mark.parametrize("kind", KINDS)
def test_it_computes_and_writes_what_it_did(kind: str, tmp_path: Path) -> None:
    tokenizer, theirs = made(kind, tmp_path / "theirs")
    import_run(tmp_path / "theirs", str(tmp_path / "run"))
    direction = DIRECTIONS.get(kind, {})
    ours = opened(tmp_path / "run", **direction)
    sources = [" ".join(text.split()[: 2 + number % 9]) for number, text in enumerate(TEXTS[:36])]
    given = tokenizer(sources, return_tensors="pt", padding=True)
    src = ours.tokenizers.src.encode_many(sources)
    tgt = ours.tokenizers.tgt.encode_many(TEXTS[:36])
    batch, model = collate(src, [row[:30] for row in tgt]), raw(tmp_path / "run")
    rows = torch.tensor(json.loads(ours.tokenizers.tgt.content())["ids"])
    extra = 1 if kind == "mbart" else 0  # one end more, which nothing looks at
    for row, number in enumerate(given.attention_mask.sum(1).tolist()):
        assert (
            rows[batch.inputs.ids[row, :number]].tolist() == given.input_ids[row, :number].tolist()
        )
        assert batch.inputs.mask[row].sum() == number + extra
    with torch.inference_mode():
        log_probs = model.double()(batch)
        labels = rows[batch.targets.ids]
        start = rows[batch.targets.shifted]
        logits = theirs.double()(**given, decoder_input_ids=start).logits
        own = theirs(
            **given, decoder_input_ids=start, labels=labels.masked_fill(~batch.targets.mask, -100)
        ).loss
    wanted = logits.log_softmax(-1)[:, :, rows.clamp(max=logits.shape[-1] - 1)]
    real, kept = batch.targets.mask, torch.tensor([*range(3, len(rows))])
    # Parts of theirs stay in float32 (the softmax of T5, sinusoids), and large weights multiply that rounding.
    found, expected = log_probs[real][:, kept], wanted[real][:, kept]
    assert torch.linalg.norm(found - expected) < 1e-5 * torch.linalg.norm(expected)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    loss = -log_probs.gather(2, batch.targets.ids[..., None])[..., 0][real].mean()
    torch.testing.assert_close(loss, own, rtol=0, atol=1e-5)
    theirs.float()
    forced, languages = {}, {*()}
    if kind == "nllb":
        forced = {"forced_bos_token_id": tokenizer.convert_tokens_to_ids("deu_Latn")}
    if kind == "m2m100":
        forced = {"forced_bos_token_id": tokenizer.get_lang_id("de")}
        # which their tokenizer leaves in a text unless a file lists them
        languages = {*tokenizer.id_to_lang_token}
    for settings in ({}, BEAM):
        written = theirs.generate(**given, **forced, **settings)
        written = [[token for token in row if token not in languages] for row in written.tolist()]
        texts = tokenizer.batch_decode(written, skip_special_tokens=True)
        assert len(set(texts)) > 18
        theirs.generation_config.update(**settings)
        theirs.generation_config.save_pretrained(tmp_path / "theirs")
        run = tmp_path / f"run{len(settings)}"
        import_run(tmp_path / "theirs", str(run))
        found = opened(run, **direction).translate(sources)
        differing = [line for line, text in enumerate(texts) if found[line] != text]
        # Rounding decides near ties of random weights, and depends on the alignment of memory.
        assert len(differing) <= 1


def test_pegasus_in_its_published_files_writes_what_it_did(tmp_path: Path) -> None:
    """The layout of google/pegasus-xsum: a .bin with tables of positions, and settings of its time."""
    tokenizer, theirs = made("pegasus", tmp_path / "theirs")
    folder = tmp_path / "theirs"
    (folder / "model.safetensors").unlink()
    torch.save(theirs.state_dict(), folder / "pytorch_model.bin")
    assert "model.encoder.embed_positions.weight" in theirs.state_dict()
    content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    content.pop("decoder_start_token_id")
    content |= {
        "add_final_layer_norm": True,
        "normalize_before": True,
        "static_position_embeddings": True,
    }
    content |= {"extra_pos_embeddings": 0, "forced_eos_token_id": 1, "task_specific_params": {}}
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    generation = {
        "bos_token_id": 0,
        "decoder_start_token_id": 0,
        "eos_token_id": 1,
        "forced_eos_token_id": 1,
    }
    generation |= {"length_penalty": 0.6, "max_length": 30, "num_beams": 8, "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    sources = TEXTS[:30]
    batch = tokenizer(sources, return_tensors="pt", padding=True)
    expected = tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)
    run = import_run(folder, str(tmp_path / "run"))
    assert Run(run).recipe.task == "summarization"
    assert opened(run.path).translate(sources) == expected
    assert len({*expected}) > 15


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made("t5", path := tmp_path_factory.mktemp("public") / "t5")
    return path


def sharded(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    names = {
        name: f"model-0000{1 + number % 2}-of-00002.safetensors"
        for number, name in enumerate(tensors)
    }
    for file in {*names.values()}:
        write_bare_tensors(
            folder / file, {name: tensors[name] for name in tensors if names[name] == file}
        )
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": names}), encoding="utf-8"
    )


def test_weights_in_parts_are_the_same_weights(small: Path, tmp_path: Path) -> None:
    sharded(copy := copied(small, tmp_path))
    for folder, name in ((small, "one"), (copy, "parts")):
        import_run(folder, str(tmp_path / name))
    one, other = (raw(tmp_path / name).state_dict() for name in ("one", "parts"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_forced_first_token_of_a_t5_is_certain(small: Path, tmp_path: Path) -> None:
    changed("generation_config.json", forced_bos_token_id=9)(copy := copied(small, tmp_path))
    for folder, name in ((small, "free"), (copy, "forced")):
        import_run(folder, str(tmp_path / name))
    free, forced = (opened(tmp_path / name) for name in ("free", "forced"))
    assert (free.config.certain_prefix, forced.config.certain_prefix) == (False, True)
    ((one,),) = forced.search([TEXTS[0]])
    assert one.token_log_probs[0] == 0.0


def with_index(content: Any) -> Spoil:
    def spoil(folder: Path) -> None:
        sharded(folder)
        (folder / "model.safetensors.index.json").write_text(json.dumps(content), encoding="utf-8")

    return spoil


def part_of(length: int) -> Spoil:
    def spoil(folder: Path) -> None:
        sharded(folder)
        os.truncate(folder / "model-00002-of-00002.safetensors", length)

    return spoil


HOSTILE: dict[str, tuple[Spoil, str]] = {
    "a part elsewhere": (
        with_index({"weight_map": {"a": "../../a.safetensors"}}),
        "index.json.*not a valid file name",
    ),
    "no parts": (with_index({}), "index.json: lists no weight files"),
    "half a part": (part_of(2000), "model-00002-of-00002.safetensors.*damaged"),
    "a missing part": (
        lambda at: (sharded(at), gone("model-00001-of-00002.safetensors")(at)),
        "00001.*not a readable file",
    ),
    "other heads": (
        changed("config.json", num_heads=3),
        r"relative_attention_bias.weight.*\[8, 4\].*\[8, 3\]",
    ),
    "an activation": (changed("config.json", feed_forward_proj="gated-silu"), "feed_forward_proj"),
    "far buckets": (changed("config.json", relative_attention_max_distance=2), "relative_buckets"),
    "a far beginning": (
        changed("generation_config.json", forced_bos_token_id=10**6),
        "generation_config.json: `forced_bos_token_id` is 1000000",
    ),
    "neither tokenizer.json": (gone("tokenizer.json"), "neither tokenizer.json"),
}


@pytest.mark.parametrize("harm", HOSTILE)
def test_a_folder_that_lies_is_refused(harm: str, small: Path, tmp_path: Path) -> None:
    spoil, match = HOSTILE[harm]
    spoil(copy := copied(small, tmp_path))
    import_refused(copy, match, tmp_path)


def test_a_model_beyond_the_memory_is_not_read(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_files, "free_memory", lambda: 1000)
    monkeypatch.setattr(external_files.ExternalWeights, "tensor", None)
    import_refused(copied(small, tmp_path), "GiB of memory.*smaller model", tmp_path)


def test_it_is_tuned_and_told_no_language(small: Path, console: Command, tmp_path: Path) -> None:
    succeeded(console("import", small, "-o", "runs/t5"))
    for name in ("a", "b"):
        write_lines(tmp_path / name, TEXTS[:60])
    settings = [
        f"--set={one}"
        for one in ("training.max_updates=4", "training.validate_every=4", "training.log_every=2")
    ]
    files = ("--source", "a", "--target", "b")
    succeeded(
        console(
            "train",
            "--init-from",
            "runs/t5",
            *files,
            "--run",
            "runs/tuned",
            "--device",
            "cpu",
            *settings,
        )
    )
    one, other = (raw(tmp_path / "runs" / name).state_dict() for name in ("t5", "tuned"))
    assert not torch.equal(one["src_positions.weight"], other["src_positions.weight"])
    assert (
        len(
            succeeded(
                console("translate", "-m", "runs/tuned", "--device", "cpu", stdin=TEXTS[0])
            ).out.splitlines()
        )
        == 1
    )
    succeeded(console("export", "runs/t5", "out", "--to", "safetensors"))
    refused(
        console("translate", "-m", "runs/t5", "--from", "de", "--device", "cpu", stdin="a"),
        "remove this option",
    )


@needs("ctranslate2")
@pytest.mark.parametrize("kind", KINDS)
def test_ctranslate2_finds_the_same(kind: str, tmp_path: Path) -> None:
    made(kind, tmp_path / "theirs")
    import_run(tmp_path / "theirs", str(tmp_path / "run"))
    sources = [" ".join(text.split()[: 2 + number % 5]) for number, text in enumerate(TEXTS[:40])]
    forces_language = kind in ("bart", "mbart50", "nllb", "m2m100")
    beam_size = 1 if forces_language else 4
    search = {"beam_size": beam_size, "stop": "first_k"}
    own, auto = (
        opened(tmp_path / "run", engine=engine, search_settings=search, **DIRECTIONS.get(kind, {}))
        for engine in ("nmtkit", "auto")
    )
    assert auto.external_engine is not None
    for some, others in zip(
        auto.search(sources, beam_size), own.search(sources, beam_size), strict=True
    ):
        assert [one.tokens for one in some] == [one.tokens for one in others]
        for one, other in zip(some, others, strict=True):
            assert one.score == pytest.approx(other.score, rel=1e-4)
            assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-3)
    if forces_language:
        wider = search | {"beam_size": 2}
        assert (
            opened(
                tmp_path / "run", search_settings=wider, **DIRECTIONS.get(kind, {})
            ).external_engine
            is None
        )
