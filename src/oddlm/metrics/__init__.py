"""The numbers to publish: Pass@k, intervals, diversity.

This package needs numpy and rapidfuzz only. Sentence embeddings are in `embedding`, which is not
imported here.
"""

from .batch import (
    BATCH_METRICS,
    BESIDE,
    METRICS,
    Lengths,
    batch_diversity,
    describe_metric,
    diversity_beside,
    right_classes,
    text_diversity,
)
from .intervals import Interval, mean_intervals, mean_se, paired_interval, run_interval
from .passing import coverage, pass_at_1, pass_at_k, pass_at_k_unbiased, solutions_at_k, summarise
from .votes import answer_classes, majority_at_k, most_voted

__all__ = [
    "BATCH_METRICS",
    "BESIDE",
    "METRICS",
    "Interval",
    "Lengths",
    "answer_classes",
    "batch_diversity",
    "coverage",
    "describe_metric",
    "diversity_beside",
    "majority_at_k",
    "mean_intervals",
    "mean_se",
    "most_voted",
    "paired_interval",
    "pass_at_1",
    "pass_at_k",
    "pass_at_k_unbiased",
    "right_classes",
    "run_interval",
    "solutions_at_k",
    "summarise",
    "text_diversity",
]
