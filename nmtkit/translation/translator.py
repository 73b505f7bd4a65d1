"""Text to text for any model: order kept, n-best, scores, attention, copied words."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import ClassVar, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtkit import device as devices
from nmtkit.data.alignments import SoftAlignment, merge
from nmtkit.data.batch import Batch, in_order_batches
from nmtkit.data.tokenizer import TokenizerPair
from nmtkit.data.vocabulary import EOS
from nmtkit.data.words import cut
from nmtkit.errors import DataError, NmtkitError
from nmtkit.models.base import Readout, Seq2Seq, headed
from nmtkit.pictures import AttentionPicture, LayeredPicture, SourceWindow, merge_gates, merge_subwords, merge_windows
from nmtkit.search.beam import Hypothesis, SearchConfig, search
from nmtkit.search.scoring import coverage_penalty, length_penalty
from nmtkit.translation.copies import copied_from
from nmtkit.translation.inputs import Source, Target, make_batch, read_sources, read_targets, refuse_one_text, target_of
from nmtkit.translation.unknowns import Replacement, UnknownReplacer
from nmtkit.translation.way import BATCH_TOKENS, SearchWay, usual

FloatArray = NDArray[np.float32]

# A search goes over the budget for so many rows, up to so many times: of articles few would fit into it, and every step
# reads the matrix of the output layer anew, however few rows it is for.
LEAST_ROWS = {"cpu": 32, "cuda": 128}
MOST_OVER = 16
# How large the log-probabilities of given targets may be that are in memory at a time.
PART_BYTES = {"cpu": 32 << 20, "cuda": 1 << 30}


@dataclass(frozen=True)
class Translation:
    """One translation of one source line."""

    text: str
    score: float
    """The log-probability after length and coverage penalties; what the search ranks by."""
    log_prob: float
    """Sum over the target's tokens and EOS, in nats."""
    tokens: list[str]
    """Target pieces, without EOS."""
    token_log_probs: list[float]
    """One a token, EOS last."""
    src_tokens: list[str]
    """Source pieces, without EOS."""
    finished: bool = True
    """False where the search reached its length limit before EOS."""
    attention: FloatArray | None = None
    """`(T,S)`: a row for each of `tokens` and EOS, a column for each of `src_tokens` and EOS."""
    replaced: list[Replacement] = field(default_factory=list)
    """Unknown words of `tokens` that `text` has other words for; see `Translator.replace_unknown`."""
    p_gen: list[float] | None = None
    """One a token, EOS last: how likely the model was to generate and not to copy. None where it does not copy, or was
    not asked, here and below."""
    copied: list[int | None] | None = None
    """For each of `tokens` which of `src_tokens` it was copied from, or None; see `copies.copied_from`."""
    src_left_out: int = 0
    """Tokens at the end of the source that were not read; see `Translator`."""


EMPTY = Translation("", 0.0, 0.0, [], [], [])


class Translator:
    """A model, its tokenizers and how to search.

    Args:
        model: in evaluation mode, on its device.
        tokenizers: of both sides.
        config: how to search.
        batch_tokens: padded source tokens in a batch; None takes what suits the device, and long sources.
        name: what to call the model in titles.
        max_source_tokens: only so many tokens of a source are read; `Translation.src_left_out` says how many were not.
            None reads all.
        task: what the model is for, as recipes call it; pictures of summaries are laid out otherwise.
        way: how the search goes over the machine; None takes what is right for most.
    """

    load: ClassVar[Callable[..., "Translator"]]
    """Opens a trained run. `nmtkit.experiment.opening` puts its `load` here: a translator itself knows no runs."""

    def __init__(
        self,
        model: Seq2Seq,
        tokenizers: TokenizerPair,
        config: SearchConfig,
        batch_tokens: int | None = None,
        name: str = "",
        max_source_tokens: int | None = None,
        task: str = "translation",
        way: SearchWay | None = None,
    ) -> None:
        self.model = model
        self.tokenizers = tokenizers
        self.config = config
        self.device = next(model.parameters()).device
        self._batch_tokens_given = batch_tokens
        self.way = way or usual(self.device)
        self._least_rows = 1 if batch_tokens else LEAST_ROWS.get(self.device.type, 32)
        self.name = name
        self.copies = model.config.copies
        self.max_source_tokens = max_source_tokens
        self.task = task
        self._replacer: UnknownReplacer | None = None

    @property
    def batch_tokens(self) -> int:
        """Padded source tokens in a batch: as given, else as the way says."""
        return self._batch_tokens_given or self.way.batch_tokens

    @overload
    def translate(self, lines: str) -> str: ...  # type: ignore[overload-overlap]  # a text is texts of a letter each

    @overload
    def translate(self, lines: Iterable[str]) -> list[str]: ...

    def translate(self, lines: str | Iterable[str]) -> str | list[str]:
        """The best translation of each line, or of the one line that is given by itself.

        An empty line gives an empty line. Only `search` says what was cut.
        """
        if isinstance(lines, str):
            return self.translate([lines])[0]
        refuse_one_text(lines=lines)
        return [best[0].text for best in self.search(list(lines))]

    def search(
        self, lines: Sequence[str], n_best: int = 1, need_attention: bool = False, need_copies: bool = False
    ) -> list[list[Translation]]:
        """The `n_best` translations of every line, best first.

        Lines are sorted by length into batches and given back in their own order. An empty line is translated by an
        empty line, without asking the model.

        Args:
            lines: source lines.
            n_best: how many of each, at most the beam size.
            need_attention: whether to keep the attention.
            need_copies: whether to say of a model that copies what it copied, and its p_gen; also with attention.

        Raises:
            DataError: one text is given by itself and not in a list.
        """
        refuse_one_text(lines=lines)
        sources = self._read(lines)
        found: list[list[Translation]] = [[EMPTY] for _ in lines]
        filled = [number for number, source in enumerate(sources) if source.ids]
        lengths = np.array([len(sources[number].ids) + 1 for number in filled], dtype=np.int64)
        attend = need_attention or self._replacer is not None or (need_copies and self.copies)

        def work(members: list[int]) -> None:
            numbers = [filled[member] for member in members]
            batch = make_batch([sources[number] for number in numbers]).to(self.device)
            results = search(self.model, batch, self.config, n_best=n_best, need_attention=attend)
            for number, hypotheses in zip(numbers, results, strict=True):
                translations = [self._translation(hypothesis, sources[number]) for hypothesis in hypotheses]
                if self._replacer is not None:
                    translations = [self._without_unknown(lines[number], one) for one in translations]
                if attend and not need_attention:
                    translations = [replace(one, attention=None) for one in translations]
                found[number] = translations

        devices.on_each(work, self._search_batches(lengths), self.device, self.way.one_a_core)
        return found

    def _search_batches(self, lengths: NDArray[np.int64]) -> list[list[int]]:
        """Which sources are searched together; long ones count as shorter, so that a batch has `LEAST_ROWS`."""
        if self._least_rows == 1:
            return in_order_batches(lengths, self.batch_tokens)
        order = np.argsort(-lengths, kind="stable")
        widths = np.minimum(lengths, self.batch_tokens // self._least_rows).clip(min=lengths // MOST_OVER)
        return [order[part].tolist() for part in in_order_batches(widths[order], self.batch_tokens)]

    def replace_unknown(self, dictionary: Mapping[str, str] | None = None) -> None:
        """From now on `translate` and `search` write source words in place of unknown words.

        Each is the word that the attention points to, or its translation by the dictionary; see `UnknownReplacer`.
        `Translation.text` has them, `Translation.replaced` says which, and `Translation.tokens` stay the model's. The
        search may write the unknown word from now on, even if the recipe forbids it.

        Args:
            dictionary: translations of source words, e.g. by `nmtkit.translation.unknowns.parse_dictionary`.

        Raises:
            NmtkitError: the model has no attention.
        """
        self._needs_attention("find the source of unknown words by")
        self.config = self.config.changed({"forbid_unknown": False})
        self._replacer = UnknownReplacer(self.tokenizers, dictionary)

    def _without_unknown(self, line: str, translation: Translation) -> Translation:
        assert self._replacer is not None
        assert translation.attention is not None
        read = len(translation.src_tokens)
        text, replaced = self._replacer.replace(line, translation.tokens, translation.attention[:, :read])
        return replace(translation, text=text, replaced=replaced)

    def _needs_attention(self, purpose: str) -> None:
        if not self.model.has_attention:
            raise NmtkitError(
                f"the model {self.name!r} ({self.model.config.kind}) has no attention to {purpose}; "
                "take one that has, e.g. rnnsearch or transformer"
            )

    def _read(self, lines: Sequence[str]) -> list[Source]:
        return read_sources(self.tokenizers, lines, self.copies, self.max_source_tokens)

    def _translation(self, hypothesis: Hypothesis, source: Source) -> Translation:
        ids = [int(token) for token in hypothesis.ids]
        tokenizer = self.tokenizers.tgt
        attention = None if hypothesis.attention is None else hypothesis.attention[:, : len(source.ids) + 1]
        log_probs = [float(value) for value in hypothesis.token_log_probs]
        return Translation(
            text=tokenizer.decode(ids, source.oov),
            score=hypothesis.score,
            log_prob=hypothesis.log_prob,
            tokens=tokenizer.pieces(ids, source.oov),
            token_log_probs=log_probs,
            src_tokens=source.tokens,
            finished=hypothesis.finished,
            attention=attention,
            p_gen=hypothesis.p_gen,
            copied=_copied(ids, log_probs, hypothesis.p_gen, attention, source),
            src_left_out=source.left_out,
        )

    @torch.no_grad()
    def rescore(
        self,
        sources: Sequence[str],
        targets: Sequence["str | Translation"],
        need_attention: bool = False,
        first: int = 1,
    ) -> list[Translation]:
        """What the model says of given translations: the same numbers as a search that had found the same tokens.

        A text is cut by the tokenizer, which may cut it otherwise than a search built it; a `Translation` keeps its
        tokens, and its open end if it is not finished. An empty target is one that ends at once; a pair of two empty
        sides is an empty line, of score 0, as in `search`.

        Args:
            sources: source lines.
            targets: a translation of each: text, or what `search` found.
            need_attention: whether to keep the attention, and to say of a model that copies what it copied.
            first: the number of the first pair, for messages.

        Raises:
            DataError: the sides differ in length, a source is empty and its target is not, or a translation has tokens
                that the vocabulary lacks.
        """
        refuse_one_text(sources=sources, targets=targets)
        if len(sources) != len(targets):
            raise DataError(f"{len(sources)} source lines but {len(targets)} target lines: they must be pairs")
        src = self._read(sources)
        given = [number for number, target in enumerate(targets) if isinstance(target, str)]
        texts = [target for target in targets if isinstance(target, str)]
        read = dict(zip(given, read_targets(self.tokenizers, texts, [src[n] for n in given]), strict=True))
        tgt = [
            read[number] if isinstance(target, str) else self._target(target.tokens, src[number], number + first)
            for number, target in enumerate(targets)
        ]
        ends = [isinstance(target, str) or target.finished for target in targets]
        for number, (source, wanted) in enumerate(zip(src, tgt, strict=True), start=first):
            if wanted.ids and not source.ids:
                raise DataError(
                    f"pair {number}: its source side is empty and its target side is not; "
                    "take the pair out, or see whether the files belong together"
                )
        attend = need_attention or self.config.coverage_penalty > 0
        found: list[Translation] = [EMPTY for _ in src]
        filled = [number for number, source in enumerate(src) if source.ids]
        lengths = np.array([max(len(src[n].ids), len(tgt[n].ids)) + 1 for n in filled], dtype=np.int64)
        for members in in_order_batches(lengths, self.batch_tokens):
            numbers = [filled[member] for member in members]
            batch = make_batch([src[n] for n in numbers], [tgt[n] for n in numbers])
            readout, chosen = self._read_targets(batch, attend)
            attention = None if readout.attention is None else readout.attention.float().cpu().numpy()  # (B,T,S)
            gates = None if readout.copy_gate is None else readout.copy_gate[..., 0].float().cpu()  # (B,T)
            for row, number in enumerate(numbers):
                ids, source = tgt[number].extended, src[number]
                length = len(ids) + ends[number]
                log_probs = chosen[row, :length].double()
                weights = None if attention is None else attention[row, :length, : len(source.ids) + 1]
                p_gen = None if gates is None or not need_attention else gates[row, :length].tolist()
                log_prob = float(log_probs.sum())
                found[number] = Translation(
                    text=self.tokenizers.tgt.decode(ids, source.oov),
                    score=self._score(log_prob, length, weights),
                    log_prob=log_prob,
                    tokens=self.tokenizers.tgt.pieces(ids, source.oov),
                    token_log_probs=log_probs.tolist(),
                    src_tokens=source.tokens,
                    finished=ends[number],
                    attention=weights if need_attention else None,
                    p_gen=p_gen,
                    copied=_copied(ids, log_probs.tolist(), p_gen, weights, source),
                    src_left_out=source.left_out,
                )
        return found

    def _read_targets(self, batch: Batch, attend: bool) -> tuple[Readout, Tensor]:
        """All steps over the targets of a batch on the CPU, and the log-probability of each target `(B,T)`, on the CPU.

        The output layer is gone through in parts, as in training: all log-probabilities of a batch are `(B,T,X)`, which
        with a large vocabulary is more than a GPU's memory.
        """
        assert batch.tgt_extended is not None
        assert batch.tgt_mask is not None
        moved = batch.to(self.device, non_blocking=True)
        memory = self.model.encode(moved)
        readout = self.model.unroll(moved, memory, attend)
        kept = readout.at(batch.tgt_mask)
        targets = batch.tgt_extended[batch.tgt_mask].to(self.device, non_blocking=True)  # (M,)
        size = PART_BYTES.get(self.device.type, PART_BYTES["cpu"])
        rows = max(1, size // (4 * (self.model.sizes.tgt + batch.n_oov)))
        parts = []
        for first in range(0, len(targets), rows):
            part = slice(first, first + rows)
            log_probs = self.model.predict(kept.part(part), memory)
            parts.append(log_probs.gather(-1, targets[part, None])[:, 0].float())
        chosen = torch.zeros(batch.tgt_mask.shape)
        chosen[batch.tgt_mask] = torch.cat(parts).cpu()
        return readout, chosen

    def _target(self, tokens: Sequence[str], source: Source, number: int) -> Target:
        """Target pieces as a model reads them; `number` is the pair's, for the message."""
        target = target_of(self.tokenizers, tokens, source)
        known = self.tokenizers.tgt.pieces(target.extended, source.oov)
        if known != list(tokens):
            # Marks such as </s> are in no translation, so that fewer may be known than there are.
            missing = next(one for one, other in zip_longest(tokens, known) if one != other)
            raise DataError(
                f"pair {number}: the model's vocabulary has no token {missing!r}"
                + (", nor has its source; " if self.copies else "; ")
                + "only translations by a model with the same tokenizer can be rescored token for token"
            )
        return target

    def align(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        src_words: Sequence[str] | None = None,
        tgt_words: Sequence[str] | None = None,
        first: int = 1,
    ) -> list[SoftAlignment]:
        """How much each word of given translations looks at each source word.

        The model reads the pair, and the row of a target token is its attention in the step that writes the token (a
        Transformer shows the layer that its recipe names). Words are what white space separates: the n-th word of the
        text is word n, whatever the tokenizer makes of it. Tokens are merged to words: the columns of a source word's
        tokens are added, the rows of a target word's tokens averaged. EOS has neither row nor column.

        Args:
            sources: source lines.
            targets: the translation of each. A pair with an empty side has no weights.
            src_words: the source lines with white space added between words, if words are to be counted otherwise;
                the model reads `sources` all the same. See `nmtkit.data.words.cut`.
            tgt_words: the same for the targets.
            first: the number of the first pair, for messages.

        Returns:
            One a pair; its `links()` are the alignment.

        Raises:
            NmtkitError: the model has no attention.
            DataError: the sides differ in length, or a line of words does not spell its text.
        """
        self._needs_attention("align words by")
        refuse_one_text(sources=sources, targets=targets, src_words=src_words, tgt_words=tgt_words)
        for name, lines in (("target", targets), ("source word", src_words), ("target word", tgt_words)):
            if lines is not None and len(lines) != len(sources):
                raise DataError(f"{len(sources)} source lines but {len(lines)} {name} lines: they must be pairs")
        src = cut(self.tokenizers.src, sources, src_words, "source line", first)
        tgt = cut(self.tokenizers.tgt, targets, tgt_words, "target line", first)
        found = [
            SoftAlignment(source.words, target.words, np.zeros((len(target.words), len(source.words))))
            for source, target in zip(src, tgt, strict=True)
        ]
        filled = [number for number in range(len(src)) if src[number].ids and tgt[number].ids]
        lengths = np.array([max(len(src[n].ids), len(tgt[n].ids)) + 1 for n in filled], dtype=np.int64)

        @torch.no_grad()  # here and not above: it holds in its own thread only
        def work(members: list[int]) -> None:
            numbers = [filled[member] for member in members]
            pairs = [Source(src[n].ids, []) for n in numbers], [Target(tgt[n].ids, tgt[n].ids) for n in numbers]
            batch = make_batch(*pairs).to(self.device)
            attention = self.model.unroll(batch, self.model.encode(batch), need_attention=True).attention
            assert attention is not None
            rows = attention.float().cpu().numpy()  # (B,T,S)
            for row, number in zip(rows, numbers, strict=True):
                weights = row[: len(tgt[number].ids), : len(src[number].ids)]
                merged = merge(weights, src[number].shares, tgt[number].shares)
                found[number] = SoftAlignment(src[number].words, tgt[number].words, merged)

        devices.on_each(work, in_order_batches(lengths, self.batch_tokens), self.device)
        return found

    def _score(self, log_prob: float, length: int, attention: FloatArray | None) -> float:
        """What the search would have ranked it by; `length` counts EOS."""
        config = self.config
        divisor = length_penalty(config.length_penalty, torch.tensor(length), config.alpha)
        score = log_prob / float(divisor)
        if config.coverage_penalty and attention is not None:
            coverage = torch.from_numpy(attention).sum(0)
            score += float(
                coverage_penalty(
                    config.coverage_kind, coverage, torch.ones_like(coverage).bool(), config.coverage_penalty
                )
            )
        return score

    def pictures(self, sources: Sequence[str], targets: Sequence[str] | None = None) -> list[AttentionPicture]:
        """The attention of each pair as a picture, subwords merged to words.

        Args:
            sources: source lines.
            targets: given translations, one a source; None draws the model's own.

        Raises:
            NmtkitError: the model has no attention.
            DataError: a line is empty, or the sides differ in length.
        """
        if not self.model.has_attention:
            raise NmtkitError(
                f"the model {self.name!r} ({self.model.config.kind}) has no attention to draw; "
                "train one that has, e.g. rnnsearch or transformer"
            )
        _refuse_empty(sources, targets)
        if targets is None:
            drawn = [best[0] for best in self.search(sources, need_attention=True)]
        else:
            drawn = self.rescore(sources, targets, need_attention=True)
        return [self._picture(translation, number) for number, translation in enumerate(drawn, start=1)]

    def _picture(self, translation: Translation, number: int) -> AttentionPicture:
        if translation.attention is None:
            raise _nothing_known(number)
        end = self.tokenizers.tgt.vocabulary.tokens[EOS]
        tgt_tokens = [*translation.tokens, end][: translation.attention.shape[0]]
        src_words, tgt_words, weights = merge_subwords(
            [*translation.src_tokens, end], tgt_tokens, translation.attention.astype(np.float64)
        )
        p_gen, copied = None, frozenset[int]()
        if translation.p_gen is not None and translation.copied is not None:
            places = (token for token, place in enumerate(translation.copied) if place is not None)
            p_gen, copied = merge_gates(tgt_tokens, translation.p_gen, places)
        return AttentionPicture(
            src_words,
            tgt_words,
            weights,
            title=self.name,
            score=translation.score,
            windows=merge_windows([*translation.src_tokens, end], tgt_tokens, self._windows(translation)),
            p_gen=p_gen,
            copied=copied,
            article=self.task == "summarization",
            left_out=translation.src_left_out,
        )

    @torch.no_grad()
    def _windows(self, translation: Translation) -> list[SourceWindow]:
        """The window of local attention in each row of a translation's attention; none where it is global.

        A pass of its own, since a search does not keep where the centres were.
        """
        half_width = self.model.window_half_width
        if half_width is None:
            return []
        assert translation.attention is not None
        src = Source(self.tokenizers.src.vocabulary.ids(translation.src_tokens), translation.src_tokens)
        batch = make_batch([src], [target_of(self.tokenizers, translation.tokens, src)]).to(self.device)
        centres = self.model.unroll(batch, self.model.encode(batch), need_attention=True).centres  # (1,T)
        assert centres is not None
        rows = len(translation.attention)
        return [SourceWindow(centre, half_width) for centre in centres[0, :rows].tolist()]

    @torch.no_grad()
    def layered(self, sources: Sequence[str], targets: Sequence[str] | None = None) -> list[LayeredPicture]:
        """Where every head of every layer of a Transformer looks, for each pair; tokens are not merged to words.

        Row t of `decoder` and `cross` is the step that *writes* target token t, so that it belongs to that token.

        Args:
            sources: source lines.
            targets: given translations, one a source; None searches for the model's own and reads those.

        Raises:
            NmtkitError: the model has no layers of attention heads.
            DataError: a line is empty, or the sides differ in length.
        """
        model = headed(self.model)
        if model is None:
            raise NmtkitError(
                f"the model {self.name!r} ({self.model.config.kind}) has no layers of attention heads to draw; "
                "take a transformer, or draw the one attention that this model has"
            )
        _refuse_empty(sources, targets)
        read = [best[0] for best in self.search(sources)] if targets is None else self.rescore(sources, targets)
        src = self._read(sources)
        for number, source in enumerate(src, start=1):
            if not source.ids:
                raise _nothing_known(number)
        tgt = [
            self._target(translation.tokens, source, number)
            for number, (translation, source) in enumerate(zip(read, src, strict=True), start=1)
        ]
        lengths = np.array([max(len(s.ids), len(t.ids)) + 1 for s, t in zip(src, tgt, strict=True)], dtype=np.int64)
        drawn: dict[int, LayeredPicture] = {}
        few = BATCH_TOKENS["cpu"]  # since all weights of all layers are kept
        for numbers in in_order_batches(lengths, few):
            batch = make_batch([src[n] for n in numbers], [tgt[n] for n in numbers]).to(self.device)
            found = model.attentions(batch)
            encoder, decoder, cross = (
                torch.stack(side, 1).float().cpu().numpy() for side in (found.encoder, found.decoder, found.cross)
            )  # (B,L,A,S,S), (B,L,A,T,T), (B,L,A,T,S)
            for row, number in enumerate(numbers):
                translation, end = read[number], self.tokenizers.tgt.vocabulary.tokens[EOS]
                tgt_tokens = [*translation.tokens, *([end] if translation.finished else [])]
                columns, rows = len(src[number].ids) + 1, len(tgt_tokens)
                drawn[number] = LayeredPicture(
                    [*translation.src_tokens, end],
                    tgt_tokens,
                    encoder[row, :, :, :columns, :columns],
                    decoder[row, :, :, :rows, :rows],
                    cross[row, :, :, :rows, :columns],
                    title=self.name,
                    score=translation.score,
                )
        return [drawn[number] for number in range(len(sources))]


def _copied(
    ids: list[int],
    log_probs: list[float],
    p_gen: list[float] | None,
    attention: FloatArray | None,
    source: Source,
) -> list[int | None] | None:
    if p_gen is None or attention is None or source.extended is None:
        return None
    return copied_from(ids, log_probs, p_gen, attention, source.extended)


def _nothing_known(number: int) -> DataError:
    return DataError(f"source line {number} has no letters that the tokenizer knows: there is nothing to draw")


def _refuse_empty(sources: Sequence[str], targets: Sequence[str] | None) -> None:
    refuse_one_text(sources=sources, targets=targets)
    for side, lines in (("source", sources), ("target", targets or [])):
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                raise DataError(f"{side} line {number} is empty: there is nothing to draw")
