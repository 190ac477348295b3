"""How good a model is: accuracy on synthetic tasks, loss on text, and public benchmarks."""

from antiphase.lazy_imports import lazy_names

_MODULES = {
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
}
__all__ = [*_MODULES]
__getattr__ = lazy_names(__name__, _MODULES)
