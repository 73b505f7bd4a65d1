"""COMET and BERTScore with tiny models of random weights, where their libraries are installed, and else the message."""

import json
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from commands import Command, refused, write_lines

from nmtkit import metrics, recipe
from nmtkit.core.errors import DataError, RecipeError
from nmtkit.metrics import METRICS

HYPS = ["the cat sat", "a dog barked at it", "no"]
REFS = ["the cat sat", "the dog barked", "yes , it did"]
SOURCES = ["le chat assis", "le chien aboyait", "oui"]
WORDS = sorted({word for line in (*HYPS, *REFS, *SOURCES) for word in line.split()})


def write(**files: list[str]) -> None:
    for name, lines in files.items():
        write_lines(name, lines)


@pytest.mark.parametrize("name", ["comet", "bertscore", "bertscore-en"])
def test_a_metric_that_is_not_installed_says_how_to_get_it(console: Command, corpus: Path, name: str) -> None:
    if METRICS.get(name).installed:
        pytest.skip(f"{name} is installed")
    write(hyp=HYPS, ref=REFS)
    remedy = f"metric '{name}' is not installed; get it: pip install 'nmtkit[{METRICS.get(name).extra}]'"
    refused(console("score", "hyp", "--ref", "ref", "-m", "bleu", name), remedy)
    with pytest.raises(RecipeError, match="is not installed"):  # said before the training, not after it
        recipe.load(corpus / "tiny.yaml", [f"evaluation.metrics=[{name}]"])


def tiny_bert(folder: Path, kind: str) -> None:
    """Writes a model of two layers with random weights, and a tokenizer that knows the words above."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    raw = Tokenizer(models.WordLevel({word: n for n, word in enumerate([*special, *WORDS])}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> $B </s>", [("<s>", 0), ("</s>", 2)])
    names = {"bos": "<s>", "cls": "<s>", "pad": "<pad>", "eos": "</s>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, model_max_length=64, **{f"{role}_token": token for role, token in names.items()}
    )
    wrapped.save_pretrained(folder)
    torch.manual_seed(3)
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape = sizes | {"intermediate_size": 32, "vocab_size": len(special) + len(WORDS), "pad_token_id": 1}
    config = getattr(transformers, f"{kind}Config")(**shape, max_position_embeddings=80)
    getattr(transformers, f"{kind}Model")(config).save_pretrained(folder)


def judged(console: Command, name: str, *more: str) -> list[dict[str, Any]]:
    """The scores that the command gives the references themselves and the outputs."""
    write(hyp=HYPS, ref=REFS, src=SOURCES)
    done = console("score", "ref", "hyp", "--ref", "ref", "-m", name, "--n-samples", 20, "--json", *more)
    assert done.code == 0, done.err
    return [system["scores"][0] for system in json.loads(done.out)["systems"]]


@pytest.mark.skipif(find_spec("bert_score") is None, reason="bert-score is not installed")
def test_bertscore(console: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bert_score import scorer

    tiny_bert(tmp_path / "bert", "Bert")
    monkeypatch.setitem(scorer.model2layers, str(tmp_path / "bert"), 2)
    metric = METRICS.get("bertscore")
    monkeypatch.setitem(metric.__dict__, "model", str(tmp_path / "bert"))
    same, other = judged(console, "bertscore")
    assert same["value"] == pytest.approx(100, abs=1e-3)
    assert other["value"] < 99.9
    assert f"|model:{tmp_path / 'bert'}|version:bert-score-" in other["signature"]
    _, _, f1 = scorer.BERTScorer(model_type=str(tmp_path / "bert")).score(HYPS, REFS)
    assert other["value"] == pytest.approx(100 * float(f1.mean()))
    best = metrics.score_all(HYPS, [REFS, HYPS], ["bertscore"])[0]
    assert best.value == pytest.approx(100, abs=1e-3)


@pytest.mark.skipif(find_spec("comet") is None, reason="unbabel-comet is not installed")
def test_comet(console: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import comet
    import torch
    import yaml

    tiny_bert(tmp_path / "xlmr", "XLMRoberta")
    settings = {
        "encoder_model": "XLM-RoBERTa",
        "pretrained_model": str(tmp_path / "xlmr"),
        "pool": "avg",
        "layer": "mix",
        "hidden_sizes": [8],
        "class_identifier": "regression_metric",
    }
    given = {key: value for key, value in settings.items() if key != "class_identifier"}
    torch.manual_seed(4)
    model = comet.models.RegressionMetric(**given)
    (tmp_path / "checkpoints").mkdir()
    saved = tmp_path / "checkpoints" / "model.ckpt"
    written_by = {"pytorch-lightning_version": version("pytorch-lightning")}
    torch.save({"state_dict": model.state_dict(), "hyper_parameters": settings} | written_by, saved)
    (tmp_path / "hparams.yaml").write_text(yaml.safe_dump(settings))
    monkeypatch.setattr(comet, "download_model", lambda name: str(saved))
    same, other = judged(console, "comet", "--source", "src")
    rows = [{"src": src, "mt": hyp, "ref": ref} for src, hyp, ref in zip(SOURCES, HYPS, REFS, strict=True)]
    wanted = comet.load_from_checkpoint(str(saved)).predict(rows, gpus=0, progress_bar=False)
    assert other["value"] == pytest.approx(100 * wanted.system_score, rel=1e-4)
    assert other["value"] != pytest.approx(same["value"], rel=1e-4)
    assert "|model:Unbabel/wmt22-comet-da|version:unbabel-comet-" in other["signature"]
    with pytest.raises(DataError, match="one reference"):
        metrics.score_all(HYPS, [REFS, REFS], ["comet"], sources=SOURCES)
