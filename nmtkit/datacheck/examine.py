"""Examines a corpus: runs every check on every block of every split in one pass."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from nmtkit.data.text import faults
from nmtkit.data.text.blocks import Block
from nmtkit.data.text.config import SplitFiles
from nmtkit.data.text.faults import HELD_OUT, BlockFaults, FaultKind, FaultLocation, RowIndices
from nmtkit.data.text.files.formats import text_format
from nmtkit.data.text.files.names import split_reference
from nmtkit.data.text.hashes import HashSet, Mask, PairHashes, SoughtHashes
from nmtkit.data.text.reading import SplitReader
from nmtkit.datacheck.characters import TextArrays, find_odd_characters
from nmtkit.datacheck.findings import MAX_EXAMPLES, Diagnosis, Finding, SplitDiagnosis
from nmtkit.datacheck.language import Languages
from nmtkit.datacheck.misalignment import first_mismatch, shifted_pairs
from nmtkit.datacheck.pairs import UsualPairs, examine_pairs, read_sample, thin_out

SWAPPED_SAMPLE = 200
"""Maximum number of pairs of a split used to decide whether its files are swapped."""
QUICK_LANGUAGE_PAIRS = 4000
"""Number of pairs at the beginning of a split whose languages are checked in a quick examination."""


def examine(
    splits: Mapping[str, SplitFiles],
    monolingual: bool = False,
    quick: bool = False,
    progress: Callable[[int], object] = lambda count: None,
    see: Callable[[Block], object] = lambda block: None,
    take: Callable[[Block], object] = lambda block: None,
) -> Diagnosis:
    """Examines all splits of a corpus, reading each once.

    The main split, with which the others are compared, comes last. Its pairs that occur in other
    splits get the fault `faults.HELD_OUT` in their block, and count as faults of the other splits
    in the diagnosis.

    Args:
        splits: files by name; the main one is "train", or else the first.
        monolingual: whether both sides are in the same language, like an article and its summary.
        quick: whether to check languages only in the first `QUICK_LANGUAGE_PAIRS` pairs of a split,
            and not to look for duplicates within and between splits. Checking languages takes most
            of the time; finding duplicates takes up to 20 bytes of memory per training pair.
        progress: receives the number of bytes read since its last call.
        see: receives every block before its examination, and may change its text.
        take: receives every block with its faults, which are removed from the block afterwards.
    """
    diagnosis = Diagnosis({name: SplitDiagnosis(name) for name in splits})
    main = "train" if "train" in splits else next(iter(splits))
    readers = {
        name: SplitReader(name, files, lambda path: lambda data: progress(len(data)))
        for name, files in splits.items()
    }
    usual_in_main = UsualPairs.learn(read_sample(readers[main]), monolingual)
    languages = usual_in_main.languages
    overlap = None if quick else Overlap(main)
    for name in sorted(splits, key=lambda name: name == main):
        split = diagnosis.splits[name]
        usual = usual_in_main
        if name != main and languages is not None:
            sample = read_sample(readers[name])
            if languages.are_swapped(thin_out(sample, SWAPPED_SAMPLE)):
                first = next(SplitReader(name, splits[name]).peek(0))
                split.find(faults.SWAPPED_FILES, first.pair(0))
                usual = UsualPairs.learn(sample, monolingual)
        for block in _examined(readers[name], split, usual, overlap, quick, see):
            take(block)
            # breaks the reference cycle between block and faults, so that the text is freed immediately
            block.faults.clear()
        if not split.pairs and not split.findings:
            split.find(faults.NO_LINES, FaultLocation(splits[name].texts()[0], 1))
    if languages is not None:
        _add_languages(languages, diagnosis.splits[main], splits[main])
    if overlap is not None:
        for name, files in splits.items():
            overlap.add_findings(diagnosis.splits[name], SplitReader(name, files))
    return diagnosis


def _examined(
    reader: SplitReader,
    split: SplitDiagnosis,
    usual: UsualPairs,
    overlap: "Overlap | None",
    quick: bool,
    see: Callable[[Block], object],
) -> Iterator[Block]:
    # for each block with shifted pairs: the first such pair, and their number
    shifts: list[tuple[FaultLocation, int]] = []
    for block in reader:
        if not isinstance(block, Block):
            split.find(
                block.kind,
                first_mismatch(block) if block.line_counts else block.location,
                block.n_lines,
            )
            continue
        _find_formats(block, split)
        see(block)
        if not block.texts:
            split.pairs += len(block)
            yield block
            continue
        texts = {"src": TextArrays.of(block.src)}
        if block.tgt is not None:
            texts["tgt"] = TextArrays.of(block.tgt)
        split.columns = block.text_columns
        split.count(texts["src"], texts.get("tgt"))
        for side, text in texts.items():
            find_odd_characters(block, side, text)
        if "tgt" in texts and block.src_file != block.tgt_file:
            rows = shifted_pairs(texts["src"], texts["tgt"]).tolist()
            shifts += [(block.pair(row), len(rows)) for row in rows[:1]]
        language_pairs = max(0, QUICK_LANGUAGE_PAIRS - block.offset) if quick else len(block)
        usable = examine_pairs(block, texts, usual, language_pairs)
        if overlap is not None:
            overlap.add(block, usable)
        _count(block, split)
        yield block
    unequal = split.findings.get(faults.LINE_COUNTS.name, Finding(faults.LINE_COUNTS))
    for place, count in shifts:
        if place.file not in {place.file for place in unequal.places}:
            split.find(faults.SHIFT, place, count)


def _add_languages(languages: Languages, split: SplitDiagnosis, files: SplitFiles) -> None:
    """Adds the languages of a corpus to its main split, and a note on sides whose language is unclear."""
    split.src.language = languages.codes.get("src", "")
    split.tgt.language = languages.codes.get("tgt", "")
    paths = {"src": files.src, "tgt": files.tgt}
    for side, sentence in languages.unclear.items():
        path = (paths[side] or files.texts())[0]
        split.find(faults.UNCLEAR_LANGUAGE, FaultLocation(path, 1, text=sentence))


def _find_formats(block: Block, split: SplitDiagnosis) -> None:
    """Reports files whose first lines look like tables, markup or subtitles."""
    if block.first != 1 or "record" in block.columns or block.names:
        return
    for path, lines in ((block.src_file, block.src), (block.tgt_file, block.tgt or [])):
        if split_reference(path)[1]:
            continue
        if found := text_format(lines, path):
            split.find(faults.FORMAT, FaultLocation(path, 1, text=f"{found.title}. {found.advice}"))


def _count(block: Block, split: SplitDiagnosis) -> None:
    """Adds the faults of a block to the findings, counting a pair once per kind."""
    by_kind: dict[str, list[BlockFaults]] = {}
    for fault in block.faults:
        if fault.kind is not HELD_OUT:  # it counts in the split that it harms (valid or test)
            by_kind.setdefault(fault.kind.name, []).append(fault)
    for name, same_kind in by_kind.items():
        finding = split.findings.setdefault(name, Finding(same_kind[0].kind))
        rows = np.unique(np.concatenate([fault.rows for fault in same_kind]))
        finding.count += len(rows)
        for row in rows[: MAX_EXAMPLES - len(finding.places)].tolist():
            finding.places.append(
                next(fault.locate(row) for fault in same_kind if row in fault.rows)
            )


class Overlap:
    """Finds duplicates: pairs repeated within a split, held-out pairs that occur in train, and test pairs in valid.

    Train must come last. The training pairs are stored in a `HashSet`; pairs of other splits take
    about 40 bytes each.
    """

    def __init__(self, train: str) -> None:
        self._train = train
        self._pairs = defaultdict[str, HashSet](HashSet)
        # For the other splits: all pairs, which of them are usable, and the keys looked up in train.
        self._others = defaultdict[str, list[tuple[PairHashes, Mask]]](list)
        self._sought_pairs, self._sought_sources = SoughtHashes(), SoughtHashes()

    def add(self, block: Block, usable: Mask) -> None:
        """Adds the faults of a block; `usable` marks pairs with text on both sides."""
        rows, hashes, of_train = np.flatnonzero(usable), block.hashes(), block.split == self._train
        if of_train or block.tgt is not None:
            block.add(faults.DUPLICATE, rows[self._pairs[block.split].add(hashes.pairs[rows])])
        if of_train:
            self._sought_sources.mark_matches(hashes.src[rows])
            block.add(HELD_OUT, rows[self._sought_pairs.mark_matches(hashes.pairs[rows])])
        else:
            self._others[block.split].append((hashes, usable))
            self._sought_sources.add(hashes.src)
            self._sought_pairs.add(hashes.pairs)

    def add_findings(self, split: SplitDiagnosis, reader: SplitReader) -> None:
        """Adds the pairs of a split that also occur in others to its findings; rereads the split to locate them."""
        overlaps = self._overlaps(split.name)
        for kind, rows in overlaps.items():
            split.findings[kind.name] = Finding(kind, len(rows))
        examples = {kind: rows[:MAX_EXAMPLES].tolist() for kind, rows in overlaps.items()}
        last = max((rows[-1] for rows in examples.values()), default=-1)
        for block in reader if overlaps else ():
            if isinstance(block, Block):
                end = block.offset + len(block)
                for kind, rows in examples.items():
                    here = [row - block.offset for row in rows if block.offset <= row < end]
                    split.findings[kind.name].places += map(block.pair, here)
                if end > last:
                    break

    def _overlaps(self, split: str) -> dict[FaultKind, RowIndices]:
        """Returns the indices of a split's pairs that occur in train, and of test pairs that occur in valid."""
        if split not in self._others:
            return {}
        hashes, usable = self._whole(split)
        pair, same_src = (
            self._sought_pairs.was_matched(hashes.pairs),
            self._sought_sources.was_matched(hashes.src),
        )
        masks = {faults.IN_TRAIN: pair, faults.SRC_IN_TRAIN: same_src & ~pair}
        if split == "test" and "valid" in self._others:
            valid, of_use = self._whole("valid")
            masks[faults.IN_VALID] = np.isin(hashes.pairs, valid.pairs[of_use])
        rows = {kind: np.flatnonzero(mask & usable) for kind, mask in masks.items()}
        return {kind: some for kind, some in rows.items() if len(some)}

    def _whole(self, split: str) -> tuple[PairHashes, Mask]:
        parts, usable = zip(*self._others[split], strict=True)
        return PairHashes(*map(np.concatenate, zip(*parts, strict=True))), np.concatenate(usable)
