"""BERT computes what it did."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nmtkit.convert.importing import import_run
from nmtkit.data.batches.batch import Batch, Inputs
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.runs.folder import RunFolder
from nmtkit.training.checkpoints.tensor_files import write_bare_tensors
from tests.convert.huggingface.public import TEXTS
from tests.convert.huggingface.random_models import bert
from tests.support.random_runs import import_refused, raw

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("kind", ["BertForPreTraining", "BertForMaskedLM", "BertModel", "older"])
def test_bert_computes_what_it_did(kind: str, tmp_path: Path) -> None:
    tokenizer, theirs = bert(tmp_path / "theirs", "BertForPreTraining" if kind == "older" else kind)
    if kind == "older":
        given = {
            name: tensor for name, tensor in theirs.state_dict().items() if "decoder" not in name
        }
        old = {
            name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): given[name]
            for name in given
        }
        write_bare_tensors(tmp_path / "theirs" / "model.safetensors", old)
    said: list[str] = []
    import_run(tmp_path / "theirs", str(tmp_path / "run"), said.append)
    assert "bert model: 2 layers of size 32" in said[0]
    assert ("no head for masked language modelling" in " ".join(said)) == (kind == "BertModel")
    ours = raw(tmp_path / "run").double()
    encoder = Tokenizers.load(RunFolder(tmp_path / "run").vocabulary).tgt
    asked = tokenizer(TEXTS[:50], return_tensors="pt", padding=True)
    encoded = [[2, *ids] for ids in encoder.encode_many(TEXTS[:50])]
    batch = Batch(Inputs.of_texts(encoded))
    mask = asked.attention_mask.bool()
    assert torch.equal(batch.inputs.mask, mask)
    with torch.inference_mode():
        wanted = theirs.double()(**asked, output_hidden_states=True)
        found = ours.read(batch)[0]
        torch.testing.assert_close(
            found.features[mask], wanted.hidden_states[-1][mask], rtol=0, atol=1e-5
        )
        if kind != "BertModel":
            logits = wanted["prediction_logits" if kind != "BertForMaskedLM" else "logits"]
            rows = torch.tensor(
                tokenizer.convert_tokens_to_ids(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
            )
            rows = torch.cat([rows, torch.arange(5, len(tokenizer))])
            torch.testing.assert_close(
                ours.logits(found, None)[mask], logits[..., rows][mask], rtol=0, atol=1e-5
            )
        if "seq_relationship_logits" in wanted:
            torch.testing.assert_close(
                ours.auxiliary_logits(batch, found),
                wanted.seq_relationship_logits,
                rtol=0,
                atol=1e-5,
            )


def test_output_words_of_their_own_are_refused(tmp_path: Path) -> None:
    """Older folders have them twice, which is all the same."""
    bert(tmp_path / "theirs", "BertForMaskedLM")
    path, output = tmp_path / "theirs" / "model.safetensors", "cls.predictions.decoder.weight"
    given = load_file(path)
    words = given["bert.embeddings.word_embeddings.weight"]
    write_bare_tensors(path, given | {output: words.clone()})
    import_run(tmp_path / "theirs", str(tmp_path / "twice"))
    write_bare_tensors(path, given | {output: words.flip(0).contiguous()})
    import_refused(tmp_path / "theirs", output, tmp_path)
