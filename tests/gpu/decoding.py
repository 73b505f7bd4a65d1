"""How fast sentences are translated, one by one and in batches, beside Hugging Face where it is installed."""

from dataclasses import replace

import torch

from tests.bench import summarization

from . import fixed_length, work
from .results import Given, given, middle

SENTENCES = {1: 8, 32: 64, 256: 512}
"""How many are decoded, by the size of the batch."""


def main(told: Given) -> None:
    threads, rounds = torch.get_num_threads(), 1 if told.quick else 2
    sentences = {1: 2, 4: 8} if told.quick else SENTENCES
    whole = work.to_decode(told, max(sentences.values()))
    compared = fixed_length.unfit(whole.model) is None
    for batch_size, count in sentences.items():
        part = replace(whole.first(count), batch_size=batch_size)
        for row in fixed_length.measure(part, rounds, threads, compared, beams=(4, 1)):
            each = row.tokens / len(part.sources)
            speeds = [each * speed for speed in row.sentences_per_second]
            steps = each * -(-len(part.sources) // batch_size)
            step = [1000 * len(part.sources) / speed / steps for speed in row.sentences_per_second]
            figure = f"{middle(speeds, 'tok/s')}, {middle(step, 'ms a step', 2)}, {row.peak_mib:,.0f} MiB"
            if row.ratio is not None:
                figure += f", {row.ratio:.1f} x Hugging Face"
            name = f"batch {batch_size}, {row.search}, {row.engine}, {row.arithmetic}"
            told.results.add(name, None, figure, tokens_per_second=speeds, ms_per_step=step, peak_mib=row.peak_mib)
    sizes = (2, 1, 2, 1, threads, told.place, 4) if told.quick else (128, 2, 128, 2, threads, told.place)
    for article in summarization.decoding(*sizes):
        figure = f"{middle(article.per_second, 'articles/s', 2)}, {article.peak_mib:,.0f} MiB"
        told.results.add(f"pointer-generator, {article.how}", None, figure, articles_per_second=article.per_second)


if __name__ == "__main__":
    main(given("decoding", __doc__))
