"""How good a model is: accuracy on synthetic tasks, loss on text, and public benchmarks.

Names are resolved on first use, so that listing the benchmarks does not import torch.
"""

from typing import TYPE_CHECKING

from antiphase.lazy_imports import lazy_names

if TYPE_CHECKING:
    from antiphase.evaluation.benchmark_data import install_benchmarks
    from antiphase.evaluation.evaluate import (
        EvaluationOptions,
        ModelEvaluation,
        TaskScores,
        evaluate_model,
        evaluate_named,
    )
    from antiphase.evaluation.language_loss import recall_hits, score_text
    from antiphase.evaluation.report import summarise, write_report
    from antiphase.evaluation.task_accuracy import score_answers

__all__ = [
    "EvaluationOptions",
    "ModelEvaluation",
    "TaskScores",
    "evaluate_model",
    "evaluate_named",
    "install_benchmarks",
    "recall_hits",
    "score_answers",
    "score_text",
    "summarise",
    "write_report",
]

__getattr__ = lazy_names(
    __name__,
    {
        "EvaluationOptions": "evaluate",
        "ModelEvaluation": "evaluate",
        "TaskScores": "evaluate",
        "evaluate_model": "evaluate",
        "evaluate_named": "evaluate",
        "install_benchmarks": "benchmark_data",
        "recall_hits": "language_loss",
        "score_answers": "task_accuracy",
        "score_text": "language_loss",
        "summarise": "report",
        "write_report": "report",
    },
)
