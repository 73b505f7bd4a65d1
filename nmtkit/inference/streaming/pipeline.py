"""From line to text in four stages: read -> encode -> decode -> write.

    read     numbers the lines of a window; from here on, each line is a `Job`
    encode   tokenizes the lines
    decode   searches for the best hypotheses, in batches of lines with similar lengths
    write    converts hypotheses to translations, in the order of the input

In a stream, a thread reads and encodes windows ahead and puts the jobs into the `JobQueue`. One or more decoders take
batches from the queue, and the caller's thread writes finished jobs. A single line passes through the same stages in
the caller's thread, without a queue.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from queue import SimpleQueue
from threading import Lock, Thread

from nmtkit.core import device as devices
from nmtkit.inference.constraints.requests import InputLine, Request
from nmtkit.inference.inputs import SourceLine
from nmtkit.inference.result import EMPTY, Translation
from nmtkit.inference.streaming.job_queue import Job, JobDecoder, JobQueue, JobSource, SingleBatch

Lines = Sequence[InputLine]
"""A window of input lines."""


class Pipeline:
    """The four stages, from `read` to `write`, and the two ways to run them; only one run per pipeline.

    Args:
        encode: tokenizes requests.
        write: converts the hypotheses of a job to translations.
    """

    def __init__(
        self,
        encode: Callable[[Sequence[Request]], list[SourceLine]],
        write: Callable[[Job], list[Translation]],
    ) -> None:
        self._encode_requests = encode
        self._write_job = write
        self._input_error: BaseException | None = None
        self._encoding = Lock()  # held while the reader thread encodes a window
        self._is_abandoned = False

    # ---------------------------------------------------------------------------------------------------- the stages

    def read(self, windows: Iterable[Lines]) -> Iterator[list[Job]]:
        """Yields the jobs of each window, numbered in the order of the input."""
        number = 0
        for lines in windows:
            jobs = []
            for line in lines:
                jobs.append(Job(number, Request.from_line(line)))
                number += 1
            yield jobs

    def encode(self, jobs: list[Job]) -> list[Job]:
        """Sets the source of each job; an empty line gets an empty translation and skips decoding."""
        sources = self._encode_requests([job.request for job in jobs])
        for job, source in zip(jobs, sources, strict=True):
            job.source = source
            if source.is_empty:
                job.translations = [EMPTY]
        return jobs

    def decode(self, decoder: JobDecoder, source: JobSource) -> Iterator[Job]:
        """Sets the hypotheses of jobs until the source has none left; yields each job when it is decoded.

        The decoder forms batches of the jobs that the source, usually the queue, supplies.
        """
        return decoder(source)

    def write(self, jobs: Sequence[Job]) -> list[list[Translation]]:
        """Sets the translations of decoded jobs, and returns them; workers have already set those of their jobs."""
        group = []
        for job in jobs:
            if job.translations is None:
                job.translations = self._write_job(job)
            group.append(job.translations)
        return group

    # ------------------------------------------------------------------------------- a single line, without a thread

    def run_single(
        self, line: InputLine, build_decoder: Callable[[], JobDecoder]
    ) -> list[Translation]:
        """Returns the translations of one line; builds the decoder only if the line is not empty."""
        (jobs,) = self.read([[line]])
        jobs = self.encode(jobs)
        if not jobs[0].is_finished:
            with devices.threads_for(1):
                jobs = list(self.decode(build_decoder(), SingleBatch(jobs)))
        (translations,) = self.write(jobs)
        return translations

    # --------------------------------------------------------------------------- a stream, with threads and the queue

    def run(
        self,
        windows: Iterator[Lines],
        queue: JobQueue,
        decoders: Sequence[JobDecoder],
        in_process: bool,
        stop: Callable[[], None] = lambda: None,
    ) -> Iterator[list[list[Translation]]]:
        """Yields groups of translations in input order; close the generator if you do not exhaust it.

        An exception raised by `windows` is re-raised after the results of all earlier lines.

        Args:
            windows: the input.
            queue: an empty queue.
            decoders: the decoders; if there are several, each runs in its own thread.
            in_process: whether the decoders compute in this process on the CPU. If so, and if there are several, each
                uses one core.
            stop: interrupts decoders that are still busy, if possible.
        """
        Thread(target=self._read_ahead, args=(windows, queue), daemon=True).start()
        # Decoders that compute in this process change torch's number of threads.
        restored_threads = devices.restored_threads if in_process else nullcontext
        try:
            while queue.wait_for_window():
                chosen = decoders[: queue.start_decoders()]
                if len(chosen) == 1 and in_process:
                    decoded = self._decode_in_this_thread(chosen[0], queue)
                else:
                    decoded = self._decode_in_threads(chosen, queue, in_process, stop)
                with restored_threads(), closing(decoded):
                    for _ in decoded:
                        group = self.write(queue.take_finished())
                        if group:
                            yield group
                # Write trailing empty lines, which no decoder returns.
                group = self.write(queue.take_finished())
                if group:
                    yield group
            if self._input_error is not None:
                raise self._input_error
        finally:
            # Python aborts if it exits while a thread is inside a C++ library. The reader thread may still be waiting
            # for a window, so make sure that it neither enters the tokenizer again nor holds the last reference to the
            # model.
            queue.close(drop=True)
            with self._encoding:
                self._is_abandoned = True
                del self._encode_requests, self._write_job

    def _read_ahead(self, windows: Iterator[Lines], queue: JobQueue) -> None:
        """Reads and encodes windows until the input ends or the run is abandoned; the body of the reader thread."""
        try:
            for jobs in self.read(windows):
                with self._encoding:
                    if self._is_abandoned:
                        return
                    encoded = self.encode(jobs)
                if not queue.put(encoded):
                    return
        except BaseException as fault:
            self._input_error = fault
        queue.close()

    def _decode_in_this_thread(self, decoder: JobDecoder, queue: JobQueue) -> Generator[Job]:
        """Yields a single decoder's jobs. Between jobs, torch's thread count is reset to the caller's setting."""
        lines = queue.lines_at_start
        jobs = self.decode(decoder, queue)
        while True:
            with devices.threads_for(lines):
                job = next(jobs, None)
            if job is None:
                return
            yield job

    def _decode_in_threads(
        self,
        decoders: Sequence[JobDecoder],
        queue: JobQueue,
        in_process: bool,
        stop: Callable[[], None],
    ) -> Generator[Job]:
        """Yields the jobs of several decoders or of worker processes; each decoder runs in its own thread."""
        # Each decoder's last output is None, or an exception if it failed.
        outputs: SimpleQueue[Job | BaseException | None] = SimpleQueue()

        def run_decoder(decoder: JobDecoder) -> None:
            end: BaseException | None = None
            try:
                if in_process:
                    # The matrix products of a decoding step are so small that cores sharing a product mostly wait for
                    # each other.
                    devices.use_one_thread()
                for job in self.decode(decoder, queue):
                    outputs.put(job)
            except BaseException as fault:
                end = fault
            outputs.put(end)

        threads = [Thread(target=run_decoder, args=(decoder,), daemon=True) for decoder in decoders]
        for thread in threads:
            thread.start()
        running = len(threads)
        try:
            while running:
                output = outputs.get()
                if isinstance(output, BaseException):
                    raise output
                if output is None:
                    running -= 1
                else:
                    yield output
        finally:
            if running:
                queue.close(drop=True)
                stop()
            for thread in threads:
                thread.join()
