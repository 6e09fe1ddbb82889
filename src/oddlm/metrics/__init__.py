"""Numbers to publish: Pass@k, intervals, diversity. numpy only; sentence embeddings are apart, in `embedding`."""

from .batch import BATCH_METRICS, BESIDE, METRICS, batch_diversity, describe_metric, diversity_beside, text_diversity
from .intervals import Interval, mean_intervals, mean_se, paired_interval, run_interval
from .passing import coverage, pass_at_1, pass_at_k, pass_at_k_unbiased, summarise

__all__ = [
    "BATCH_METRICS",
    "BESIDE",
    "METRICS",
    "Interval",
    "batch_diversity",
    "coverage",
    "describe_metric",
    "diversity_beside",
    "mean_intervals",
    "mean_se",
    "paired_interval",
    "pass_at_1",
    "pass_at_k",
    "pass_at_k_unbiased",
    "run_interval",
    "summarise",
    "text_diversity",
]
