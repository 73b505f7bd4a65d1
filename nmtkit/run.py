"""A run: one recipe carried out in one folder. The only place where the parts meet."""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from nmtkit import device as devices
from nmtkit import folder as folders
from nmtkit import metrics
from nmtkit.alignment import parse
from nmtkit.data.batch import BatchStream, batches_of
from nmtkit.data.corpus import Checker, DataReport, Example, Files, read_lines, read_pairs
from nmtkit.data.embeddings import EmbeddingsConfig, check_size, read_vectors
from nmtkit.data.store import Store, fingerprint, write_store
from nmtkit.data.tokenizer import TokenizerPair, learn
from nmtkit.errors import CheckpointError, DataError, NmtkitError, RecipeError
from nmtkit.folder import RunFolder
from nmtkit.models.base import MODELS, Seq2Seq, VocabularySizes
from nmtkit.recipe import Recipe
from nmtkit.training import checkpoint, distributed
from nmtkit.training.checkpoint import Checkpoints
from nmtkit.training.loop import Evaluated, Event, Step, Stopped, train
from nmtkit.training.losses import likelihood
from nmtkit.translator import Translation, Translator

Notify = Callable[[str], None]


@dataclass(frozen=True)
class TestResult:
    """The recipe's test set, translated by the trained model."""

    sources: list[str]
    """Its source lines."""
    references: list[str]
    """Its target lines; none if it has no targets."""
    translations: list[Translation]
    """One a source line, in order."""
    scores: list[metrics.Score]
    """BLEU and chrF, and AER if the test set names gold alignments; none without references."""
    seconds: float
    """Time of the translation, without opening the model."""


class Run:
    """One recipe and the folder it is carried out in.

    Args:
        folder: of a run that was begun; `create`, `begin` and `open` give one.
        recipe: what is carried out in it.
    """

    def __init__(self, folder: RunFolder, recipe: Recipe) -> None:
        self.folder = folder
        self.recipe = recipe

    @classmethod
    def create(cls, recipe: Recipe, path: str | None = None, overwrite: bool = False) -> "Run":
        """Begins a run, or takes up one that was only preprocessed.

        Args:
            recipe: what to do.
            path: the folder; None is `runs/` and the recipe's name.
            overwrite: remove what an earlier training left there.

        Raises:
            NmtkitError: there is an earlier run, the folder holds other things, or it cannot be written.
        """
        folder = RunFolder(Path(path) if path else folders.RUNS / recipe.name)
        if folder.begun() and not overwrite:
            raise NmtkitError(
                f"{folder.path}: a training was begun here: go on with it (train --resume), "
                "replace it (train --overwrite), or name another folder (--run DIR)"
            )
        if folder.path.exists() and not folder.exists() and any(folder.path.iterdir()):
            raise NmtkitError(f"{folder.path}: not the folder of a run and not empty; name another one with --run DIR")
        for part in folder.parts_of_training():
            shutil.rmtree(part) if part.is_dir() else part.unlink()
        folders.write_text(folder.recipe, recipe.to_yaml())
        return cls(folder, recipe)

    @classmethod
    def begin(
        cls,
        recipe: Recipe,
        path: str,
        resume: bool,
        overwrite: bool,
        notify: Notify,
        report: Callable[[DataReport], None],
    ) -> "Run":
        """All that comes before training: the folder, and the preprocessed data. Process 0 does the work.

        Args:
            recipe: what to do.
            path: the folder.
            resume: go on with the run that is there.
            overwrite: replace the run that is there.
            notify: told in a sentence what is going on.
            report: given what was found in the text, when it was preprocessed.

        Raises:
            NmtkitError: as `create`, `resumed` and `preprocess`; or the recipe has no validation set, or its word
                vectors are missing or of another size than the model's.
        """
        fault: NmtkitError | None = None
        if distributed.rank() == 0:
            try:
                validation_files(recipe)
                require_data(recipe)
                if not resume:
                    require_embeddings(recipe)
                run = cls.resumed(recipe, path) if resume else cls.create(recipe, path, overwrite)
                run.preprocess(notify, report, learned_before=resume)
                if resume:
                    run.reopen(notify)
            except NmtkitError as found:
                fault = found
        failed = distributed.said_by_first(fault is not None)
        if fault is not None:
            raise fault
        if failed:
            raise NmtkitError("process 0 could not begin; see its message")
        return cls(RunFolder(Path(path)), recipe)

    @classmethod
    def resumed(cls, recipe: Recipe, path: str) -> "Run":
        """Opens a run to go on with it. Names and the limits of training may differ from before; nothing else may.

        Raises:
            RecipeError: the recipe is not the one that the run was begun with.
            CheckpointError: there is no run.
        """
        run = cls.open(path)
        run.require_same(recipe)
        folders.write_text(run.folder.recipe, recipe.to_yaml())
        return cls(run.folder, recipe)

    def require_same(self, recipe: Recipe) -> None:
        """Makes sure that the run was begun with this recipe; names and the limits of training may differ.

        Raises:
            RecipeError: it was begun with another one; names what differs.
        """
        limits = {"max_updates", "max_epochs", "max_minutes", "patience", "log_every", "save_every"}
        before, now = (
            one.model_dump(mode="json", exclude={"name": True, "description": True, "training": limits})
            for one in (self.recipe, recipe)
        )
        faults = list(_differences(before, now))
        if faults:
            listed = "".join(f"\n  {line}" for line in faults)
            raise RecipeError(
                f"{self.folder.path}: begun with another recipe, so one cannot go on with this one "
                f"(give the same --set, take {self.folder.recipe} itself, or train anew with --overwrite):{listed}"
            )

    @classmethod
    def open(cls, path: str) -> "Run":
        """Opens a run that was begun before.

        Raises:
            CheckpointError: there is none.
        """
        folder = RunFolder(Path(path))
        return cls(folder, folder.load_recipe())

    # ------------------------------------------------------------------------------------------------- preprocessing

    def reopen(self, notify: Notify) -> None:
        """Takes away what says that training is over, and the average, which is of the weights up to now."""
        self.folder.result.unlink(missing_ok=True)
        if self.folder.average.exists():
            self.folder.average.unlink()
            notify(f"{self.folder.average}: removed, since training goes on; average again when it is over")

    def preprocess(
        self, notify: Notify, report: Callable[[DataReport], None], learned_before: bool = False
    ) -> TokenizerPair:
        """Reads and checks the text, learns the tokenizers, writes the arrays; does nothing where that is done.

        Args:
            notify: told in a sentence what is going on.
            report: given what was found, when new arrays were written.
            learned_before: keep the tokenizers that are there, for a model that was trained with them.

        Raises:
            NmtkitError: a file is missing or damaged, the text does not fit the settings, or the folder cannot be
                written.
        """
        recipe = self.recipe
        splits = recipe.data.splits()
        mark = fingerprint(
            {"data": recipe.data.model_dump(mode="json"), "tokenizer": recipe.tokenizer.model_dump(mode="json")},
            recipe.data.paths(),
        )
        learned = self.folder.vocabulary.is_dir()
        if learned and all(Store.is_current(self.folder.data, name, mark) for name in splits):
            notify(f"{self.folder.data}: preprocessed before, and nothing has changed since")
            return self.folder.load_tokenizers()
        found = DataReport()
        if learned_before:
            notify(f"{self.folder.data}: the text has changed, or is new here; its tokenizer stays")
            tokenizers = self.folder.load_tokenizers()
        else:
            notify(f"learning the tokenizer ({recipe.tokenizer.kind}) from {', '.join(splits['train'].texts())}")
            tokenizers = learn(recipe.tokenizer, read_pairs(splits["train"]), found)
            # What names the arrays of an earlier tokenizer goes first: never do they pass for those of this one.
            for name in splits:
                self.folder.manifest(name).unlink(missing_ok=True)
            tokenizers.save(self.folder.vocabulary)
        checker = Checker(recipe.data, found)
        for name, files in splits.items():
            notify(f"reading and checking {name}")
            write_store(
                self.folder.data,
                name,
                read_pairs(files),
                tokenizers,
                checker,
                keep_text=name != "train" or tokenizers.sampling,
                fingerprint=mark,
            )
        folders.write_json(self.folder.report, found.as_dict())
        report(found)
        return tokenizers

    # ------------------------------------------------------------------------------------------------------ training

    def train(
        self,
        device: torch.device,
        notify: Notify,
        resume: bool = False,
        stop: Callable[[], bool] | None = None,
    ) -> Iterator[Event]:
        """Trains the recipe's model; `metrics.jsonl`, and TensorBoard if it is there, get every `Step` and `Evaluated`.

        Args:
            device: where to train.
            notify: told in a sentence what word vectors the model begins with.
            resume: go on from the last saved state, bit for bit as if training had never stopped.
            stop: asked between updates whether to stop; the state is saved first.

        Yields:
            The events of `nmtkit.training.loop.train`.

        Raises:
            NmtkitError: as `nmtkit.training.loop.train`; or the preprocessed data or the word vectors are missing or
                damaged.
        """
        recipe, tokenizers = self.recipe, self.folder.load_tokenizers()
        torch.manual_seed(recipe.seed)
        model = self.folder.build(recipe, tokenizers)
        if recipe.pretrained_embeddings is not None:
            if not resume:
                _begin_embeddings(model, tokenizers, recipe, recipe.pretrained_embeddings, notify)
            for side in recipe.pretrained_embeddings.files() if recipe.pretrained_embeddings.freeze else ():
                model.embedding(side).weight.requires_grad_(False)
        stream = BatchStream(
            Store.open(self.folder.data, "train"),
            recipe.batch,
            recipe.seed,
            tokenizers,
            distributed.rank(),
            distributed.size(),
        )
        checkpoints = Checkpoints(self.folder.checkpoints)
        evaluate = _Evaluation(self.folder, recipe, tokenizers, device)
        log = _Log(self.folder, recipe, resume) if distributed.rank() == 0 else None
        try:
            for event in train(
                model, stream, recipe.training, evaluate, checkpoints, device, resume, stop, recipe.seed
            ):
                if log is not None:
                    log.add(event)
                yield event
                if isinstance(event, Stopped) and log is not None and event.reason != "interrupted":
                    self._finish(event, checkpoints)
        finally:
            if log is not None:
                log.close()

    def _finish(self, event: Stopped, checkpoints: Checkpoints) -> None:
        kept = checkpoints.kept()
        result = {
            "reason": event.reason,
            "updates": event.update,
            "best": checkpoints.best()[0].name if kept else None,
            "kept": [asdict(entry) for entry in kept],
        }
        folders.write_json(self.folder.result, result)

    # ----------------------------------------------------------------------------------------------------------- test

    def test(self, device: torch.device) -> TestResult | None:
        """Translates the recipe's test set with the run's weights and scores it; None if the recipe names none.

        The translations are written beside the run's other files, one a line.

        Raises:
            NmtkitError: the run has no weights, the test set cannot be read, or the folder cannot be written.
        """
        files = self.recipe.data.splits().get("test")
        if files is None:
            return None
        pairs = list(read_pairs(files))
        sources, references = [pair.src for pair in pairs], [pair.tgt for pair in pairs]
        translator = Translator.from_folder(self.folder, str(device))
        begun = time.monotonic()
        found = [best[0] for best in translator.search(sources)]
        seconds = time.monotonic() - begun
        texts = [translation.text for translation in found]
        folders.write_text(self.folder.test_output, "".join(text + "\n" for text in texts))
        given = [reference for reference in references if reference is not None]
        scores = []
        if len(given) == len(texts):
            how = self.recipe.evaluation
            scores = [
                metrics.bleu(texts, [given], how.tokenize, how.lowercase),
                metrics.chrf(texts, [given], lowercase=how.lowercase),
            ]
            if files.alignment and translator.model.has_attention:
                scores.append(_alignment_error_rate(translator, files, pairs))
            summary = [asdict(score) for score in scores]
            folders.write_json(self.folder.test_scores, {"scores": summary, "seconds": seconds})
        return TestResult(sources, given, found, scores, seconds)


def _alignment_error_rate(translator: Translator, files: Files, pairs: Sequence[Example]) -> metrics.Score:
    """AER of the model's attention on given pairs against the gold alignments that their files name."""
    gold = [pair for path in files.alignment for pair in parse(read_lines(path), path).pairs]

    def column(name: str) -> list[str]:
        return [str(getattr(pair, name)) for pair in pairs]

    found = translator.align(
        column("src"),
        column("tgt"),
        column("src_words") if files.src_words else None,
        column("tgt_words") if files.tgt_words else None,
    )
    return metrics.aer([one.links() for one in found], gold).aer


def _begin_embeddings(
    model: Seq2Seq, tokenizers: TokenizerPair, recipe: Recipe, config: EmbeddingsConfig, notify: Notify
) -> None:
    """Puts the recipe's word vectors into a model that was just made."""
    for side, path in config.files().items():
        vocabulary = (tokenizers.src if side == "src" else tokenizers.tgt).vocabulary
        weight = model.embedding(side).weight
        found = read_vectors(path, vocabulary, weight.shape[1], _embedding_setting(recipe))
        factor = model.begin_embedding(
            side, torch.from_numpy(found.ids), torch.from_numpy(found.vectors), config.rescale
        )
        places = [name for name, other in model.named_parameters(remove_duplicate=False) if other is weight]
        share = len(found.ids) / len(vocabulary)
        notify(
            f"{path}: {found.in_file:,} vectors; {len(found.ids):,} of the {len(vocabulary):,} tokens ({share:.1%}) "
            f"begin with one in {' and '.join(places)}, times {factor:.3g}; the others begin at random"
            + ("; none of them will be trained" if config.freeze else "")
        )


def _embedding_setting(recipe: Recipe) -> str:
    """The key of a model's settings that says how many numbers a word has."""
    has_own = "embedding_size" in type(recipe.model).model_fields
    return "model.embedding_size" if has_own else "model.hidden_size"


class _Evaluation:
    """What training calls to judge the model: loss over the validation set, and BLEU of a real search."""

    def __init__(self, folder: RunFolder, recipe: Recipe, tokenizers: TokenizerPair, device: torch.device) -> None:
        self.recipe = recipe
        self.tokenizers = tokenizers
        self.device = device
        pairs = islice(read_pairs(validation_files(recipe)), recipe.evaluation.max_sentences)
        self.store = Store.open(folder.data, "valid")
        self.pairs = [(pair.src, pair.tgt or "") for pair in pairs]

    def __call__(self, model: Seq2Seq) -> dict[str, float]:
        begun = time.monotonic()
        how = self.recipe.evaluation
        nll, tokens = torch.zeros((), dtype=torch.float64), 0
        for batch in batches_of(self.store, how.batch_tokens):
            output = model(batch.to(self.device), keep=batch.tgt_mask)
            loss = likelihood(output, batch, model.sizes.tgt, 0.0)
            nll += loss.nll.cpu()
            assert batch.tgt_mask is not None
            tokens += int(batch.tgt_mask.sum())
        config = self.recipe.search.changed({"beam_size": how.beam_size})
        translator = Translator(model, self.tokenizers, config, name=self.recipe.name)
        hypotheses = translator.translate(source for source, _ in self.pairs)
        references = [target for _, target in self.pairs]
        mean = float(nll) / max(tokens, 1)
        return {
            "bleu": metrics.bleu(hypotheses, [references], how.tokenize, how.lowercase).value,
            "loss": mean,
            "perplexity": metrics.perplexity(-float(nll), tokens).value,
            "seconds": time.monotonic() - begun,
        }


class _Log:
    """Writes events to `metrics.jsonl`, one a line, and to TensorBoard where it is installed."""

    def __init__(self, folder: RunFolder, recipe: Recipe, resume: bool) -> None:
        self.path = folder.metrics
        self.writer: Any = None
        purge_step = None
        if resume:
            _, facts = Checkpoints(folder.checkpoints).load_last()
            purge_step = int(facts["update"]) + 1
            if self.path.exists():
                folders.cut_json_lines(self.path, after_update=int(facts["update"]))
        with suppress(ImportError):
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(folder.tensorboard), purge_step=purge_step)

    def add(self, event: Event) -> None:
        if isinstance(event, Step):
            values = {key: value for key, value in asdict(event).items() if key != "update" and value is not None}
        elif isinstance(event, Evaluated):
            values = {**{f"valid_{key}": value for key, value in event.metrics.items()}, "best": event.best}
        else:
            return
        folders.append_json_line(self.path, {"update": event.update, "event": type(event).__name__.lower(), **values})
        if self.writer is not None:
            room = "train" if isinstance(event, Step) else "valid"
            for key, value in values.items():
                self.writer.add_scalar(f"{room}/{key.removeprefix('valid_')}", float(value), event.update)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


# ------------------------------------------------------------------------------------------------------ smaller works


def to_average(folder: RunFolder, best: int | None = None, recent: int | None = None) -> list[Path]:
    """The weights files of a run that are to be averaged.

    Args:
        folder: of the run.
        best: how many of its best; None for all that were kept.
        recent: how many of its newest, instead of the best.

    Raises:
        CheckpointError: there are not so many, or fewer than two.
    """
    checkpoints = Checkpoints(folder.checkpoints)
    kept = checkpoints.best() if recent is None else checkpoints.recent()
    wanted = recent or best or 2
    if len(kept) < wanted:
        raise CheckpointError(
            f"{folder.checkpoints}: at least {wanted} checkpoints are needed for this, and {len(kept)} were kept; "
            "keep more with training.keep_best or training.keep_recent"
        )
    return kept[: recent or best]


def average(files: Sequence[Path], output: Path) -> None:
    """Averages weights files into one.

    Raises:
        CheckpointError: there are fewer than two, they do not fit each other, or the output cannot be written.
    """
    if len(files) < 2:
        raise CheckpointError(f"{files[0] if files else output}: an average needs at least two checkpoints; name more")
    checkpoint.save_weights(output, checkpoint.average(files))


def dry_run(recipe: Recipe) -> list[tuple[str, str]]:
    """Builds the recipe's model without memory for its weights, and looks for its files; what and value of each."""
    size = recipe.tokenizer.vocab_size
    with torch.device("meta"):
        model = MODELS.get(recipe.model.kind)(recipe.model, VocabularySizes(size, size, recipe.tokenizer.joint))
    parameters = sum(weight.numel() for weight in checkpoint.weights_of(model).values())
    rows = [("model", recipe.model.kind), ("parameters", f"{parameters:,} with {size:,} tokens in a vocabulary")]
    rows.append(("size", f"{parameters * 4 / 2**20:,.0f} MiB in fp32"))
    training = recipe.training
    rows.append(("optimizer", f"{training.optimizer}, learning rate {training.lr}, schedule {training.schedule.kind}"))
    rows.append(("batch", f"{recipe.batch.batch_tokens:,} padded tokens x {training.accumulate}"))
    for name, files in recipe.data.splits().items():
        for path in files.paths():
            rows.append((f"data.{name}", path if Path(path).is_file() else f"{path} (not here)"))
    vectors = recipe.pretrained_embeddings.files() if recipe.pretrained_embeddings else {}
    for side, path in vectors.items():
        rows.append((f"pretrained_embeddings.{side}", path if Path(path).is_file() else f"{path} (not here)"))
    return rows


def choose_device(name: str, recipe: Recipe, threads: int | None = None) -> torch.device:
    """The device of that name, made ready for the recipe; joins the other processes under torchrun."""
    device = distributed.join(devices.choose(name))
    devices.prepare(device, recipe.training.matmul_precision, threads)
    return device


def _differences(before: Any, now: Any, key: str = "") -> Iterator[str]:
    """Where two recipes part, one sentence a key."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted(before.keys() | now.keys()):
            yield from _differences(before.get(name), now.get(name), f"{key}.{name}" if key else name)
    elif before != now:
        yield f"`{key}` was {before!r} and is {now!r}"


def validation_files(recipe: Recipe) -> Files:
    """The text that training judges the model by.

    Raises:
        RecipeError: the recipe names none.
    """
    files = recipe.data.splits().get("valid")
    if files is None:
        raise RecipeError(f"recipe {recipe.name}: `data.valid` is missing: training judges the model by it")
    return files


def require_data(recipe: Recipe) -> None:
    """Looks for the recipe's files before anything is begun.

    Raises:
        DataError: all that are missing, in one message.
    """
    missing = [path for path in recipe.data.paths() if not Path(path).is_file()]
    if missing:
        places = f"{recipe.data.folder} and the current folder" if recipe.data.folder else "the current folder"
        listed = "".join(f"\n  {path}" for path in missing)
        raise DataError(
            f"recipe {recipe.name}: these files are not there (looked in {places}); "
            f"name them under `data`, or their folder with --set data.folder=DIR:{listed}"
        )


def require_embeddings(recipe: Recipe) -> None:
    """Looks whether the recipe's word vectors are there and of the model's size, before anything is begun.

    Raises:
        DataError: they are not.
    """
    setting = _embedding_setting(recipe)
    size = recipe.model.model_dump()[setting.removeprefix("model.")]
    for path in (recipe.pretrained_embeddings.files() if recipe.pretrained_embeddings else {}).values():
        check_size(path, size, setting)
