"""GPT-2 computes and writes what it did."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nmtkit.convert.importing import import_run
from nmtkit.data.batches.batch import collate
from nmtkit.data.tokenizers.vocabulary import BOS
from tests.convert.huggingface.public import TEXTS
from tests.convert.huggingface.random_models import END, gpt2
from tests.support.commands import Command, succeeded
from tests.support.random_runs import opened, raw

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize(
    "generation", [{}, {"num_beams": 4}, {"num_beams": 3, "early_stopping": True}], ids=str
)
def test_gpt2_computes_and_writes_what_it_did(generation: dict[str, Any], tmp_path: Path) -> None:
    tokenizer, theirs = gpt2(tmp_path / "theirs", **generation)
    import_run(tmp_path / "theirs", str(tmp_path / "run"))
    ours = opened(tmp_path / "run")
    prompts = [" ".join(text.split()[: number % 7]) for number, text in enumerate(TEXTS[:16])]
    encoded = ours.tokenizers.tgt.encode_many(prompts)
    batch, model = collate(None, encoded), raw(tmp_path / "run")
    with torch.inference_mode():
        log_probs = model.double()(batch)
        for row, prompt in enumerate(prompts):
            given = torch.tensor([[tokenizer.eos_token_id, *tokenizer(prompt).input_ids]])
            wanted = theirs.double()(given).logits[0].log_softmax(-1)
            rows = torch.tensor(
                [
                    tokenizer.convert_tokens_to_ids(END),
                    *range(tokenizer.eos_token_id + 1, len(tokenizer)),
                ]
            )
            torch.testing.assert_close(
                log_probs[row, : given.shape[1], 3:], wanted[:, rows], rtol=0, atol=1e-5
            )
            assert bool((log_probs[row, :, : BOS + 1] < -900).all())
    theirs.float()
    texts = []
    for prompt in prompts:
        given = torch.tensor([[tokenizer.eos_token_id, *tokenizer(prompt).input_ids]])
        mask = torch.ones_like(given)
        written = theirs.generate(given, attention_mask=mask, pad_token_id=tokenizer.eos_token_id)
        texts.append(tokenizer.decode(written[0], skip_special_tokens=True))
    assert len(set(texts)) > 8
    assert [one[0].text for one in ours.search(prompts)] == texts


def test_tokens_of_a_line_without_spaces_are_joined_again(tmp_path: Path, console: Command) -> None:
    """GPT-2 has no mark before the first word of a line."""
    gpt2(tmp_path / "theirs")
    how, text = (
        ["-m", import_run(tmp_path / "theirs", str(tmp_path / "run")).path],
        "Unbelievable!\nOne word more.\n",
    )
    cut = succeeded(console("tokenize", *how, "--side", "target", stdin=text)).out
    assert len(cut.splitlines()[0].split()) > 1
    assert succeeded(console("detokenize", *how, stdin=cut)).out == text
