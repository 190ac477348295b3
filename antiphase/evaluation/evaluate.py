"""Evaluate causal language models on public benchmarks, with lm-evaluation-harness as the engine.

    OUT/results.json   OUT/README.md   OUT/needle.png
    OUT/models/NAME-DIGEST/TASK.json   scores of every item, written when a task is complete
    OUT/models/NAME-DIGEST/requests_rank0.db   the model's answers so far: what a killed run resumes

A model's folder has the digest of its weights in its name, so results of other weights are never
mixed in. Models are compared on the items that fit into the context of all of them.
"""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import logging
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from antiphase.cache_folder import write_private
from antiphase.evaluation.benchmark_data import read_manifest, require_files
from antiphase.evaluation.suite.needle import LENGTHS
from antiphase.evaluation.suite.registry import Benchmark, find_benchmarks
from antiphase.pretrained.base_model import load_base

DEFAULT_TASKS = (
    "needle",
    "squad2",
    "hotpotqa",
    "many_shot",
    "lambada",
    "hellaswag",
    "arc_easy",
    "gsm8k_bpb",
    "essays_bpb",
)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PREFIX = "antiphase_"  # of our tasks' names in the harness


@dataclass(frozen=True)
class EvaluationOptions:
    """What is evaluated, and how.

    Attributes:
        tasks: names of benchmarks.
        limit: number of items per task; None for all.
        lengths: of the needle's haystacks, in words.
        dtype: of the weights.
        batch_size: number of requests per forward pass.
        chat: put prompts into the tokenizer's chat template.
    """

    tasks: list[str] = field(default_factory=lambda: list(DEFAULT_TASKS))
    limit: int | None = 200
    lengths: list[int] = field(default_factory=lambda: list(LENGTHS))
    dtype: str = "float32"
    batch_size: int = 1
    chat: bool = False

    def __post_init__(self) -> None:
        find_benchmarks(self.tasks)
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit: got {self.limit}, expected at least 1 item")
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"lengths: got {self.lengths}, expected numbers of words")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype: got {self.dtype!r}, allowed are {', '.join(DTYPES)}")
        if self.batch_size < 1:
            raise ValueError(f"batch_size: got {self.batch_size}, expected at least 1")


@dataclass(frozen=True)
class TaskScores:
    """Scores of a model on a benchmark.

    Attributes:
        items: per item `id`, `cluster`, `scores` by name, and what describes the item.
        skipped: ids of items that do not fit into the model's context, or belong to one.
    """

    items: list[dict[str, Any]]
    skipped: list[int]


@dataclass(frozen=True)
class ModelEvaluation:
    """Scores of a model on all benchmarks.

    Attributes:
        name: as it was given.
        digest: of weights, configuration, tokenizer and dtype.
        parameters: their number.
        context: number of tokens.
        tasks: scores by benchmark.
        seconds: wall time of this process, without what earlier ones had done.
    """

    name: str
    digest: str
    parameters: int
    context: int
    tasks: dict[str, TaskScores]
    seconds: float


def evaluate_named(
    name: str, options: EvaluationOptions, folder: Path, *, quiet: bool = False
) -> ModelEvaluation:
    """Load a model by name and evaluate it.

    Args:
        name: what `locate_model` accepts.
        options: what is evaluated.
        folder: where results are kept; the same call resumes a run that was killed.
        quiet: show no progress.

    Raises:
        ValueError: the model or benchmark files are missing, or do not fit together.
    """
    base = load_base(name)
    return evaluate_model(base.model, base.tokenizer, name, options, folder, quiet=quiet)


def evaluate_model(
    model: Any,
    tokenizer: Any,
    name: str,
    options: EvaluationOptions,
    folder: Path,
    *,
    quiet: bool = False,
) -> ModelEvaluation:
    """Evaluate a loaded model.

    Args:
        model: a Hugging Face causal language model; put into eval mode, and converted to the dtype.
        tokenizer: that belongs to it.
        name: for tables and the folder of its results.
        options: what is evaluated.
        folder: where results are kept.
        quiet: show no progress.

    Returns:
        Scores of every item.

    Raises:
        ValueError: a package or a benchmark file is missing, or no item fits into the context.
    """
    require_engine()
    benchmarks = find_benchmarks(options.tasks)
    for benchmark in benchmarks:
        require_files(benchmark.name, benchmark.files)
    model = model.to(DTYPES[options.dtype]).eval()
    digest = model_digest(model, tokenizer)
    own = folder / "models" / f"{re.sub(r'[^A-Za-z0-9.]+', '-', name).strip('-')}-{digest[:8]}"
    own.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    lm = _engine(model, tokenizer, options.batch_size, own)
    scores = {}
    for benchmark in benchmarks:
        with _progress(benchmark.name, name, quiet) as report:
            scores[benchmark.name] = _task_scores(lm, benchmark, options, own, report)
    parameters = sum(p.numel() for p in model.parameters())
    seconds = time.perf_counter() - began
    return ModelEvaluation(name, digest, parameters, int(lm.max_length), scores, seconds)


def require_engine() -> None:
    """Raise unless lm-evaluation-harness is installed."""
    if importlib.util.find_spec("lm_eval") is None:
        raise ValueError("evaluate: needs lm-evaluation-harness; pip install 'antiphase[evaluate]'")


def model_digest(model: Any, tokenizer: Any) -> str:
    """Return the sha256 of what determines a model's answers."""
    digest = hashlib.sha256()
    config = model.config.to_dict()
    for key in ("_name_or_path", "transformers_version", "dtype", "torch_dtype"):
        config.pop(key, None)
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    backend = getattr(tokenizer, "backend_tokenizer", None)
    digest.update(backend.to_str().encode() if backend else repr(tokenizer).encode())
    for key, tensor in sorted(model.state_dict().items()):
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _engine(model: Any, tokenizer: Any, batch_size: int, folder: Path) -> Any:
    """Return the harness's Hugging Face model, with a file that keeps its answers."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    from lm_eval.api.model import CachingLM
    from lm_eval.models.huggingface import HFLM

    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch_size)
    lm.loglikelihood_rolling = _one_by_one(lm.loglikelihood_rolling)
    return CachingLM(lm, str(folder / "requests_rank0.db"))


def _one_by_one(rolling: Callable[..., list[float]]) -> Callable[[list[Any]], list[float]]:
    """Return the harness's function for texts, so that it stores the answer of each when it has it.

    It would store them after the last one, and show a progress bar for every text.
    """
    from tqdm import tqdm

    def each(requests: list[Any]) -> list[float]:
        answers = []
        for request in tqdm(requests, desc="Running loglikelihood_rolling requests"):
            with contextlib.redirect_stderr(io.StringIO()):
                answers += rolling([request], disable_tqdm=True)
        return answers

    return each


def _task_scores(
    lm: Any,
    benchmark: Benchmark,
    options: EvaluationOptions,
    folder: Path,
    report: Callable[[str], None],
) -> TaskScores:
    """Evaluate a task, or read its scores if that was done with the same settings."""
    settings = _settings(benchmark, options)
    path = folder / f"{benchmark.name}.json"
    if path.is_file():
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["settings"] == settings:
            report("complete")
            return TaskScores(stored["items"], stored["skipped"])
    scores = _run_task(lm, benchmark, options)
    write_private(path, json.dumps({"settings": settings, **asdict(scores)}))
    return scores


def _settings(benchmark: Benchmark, options: EvaluationOptions) -> dict[str, Any]:
    """Return what must be equal for stored scores to be read."""
    files = read_manifest()["files"]
    return {
        "version": benchmark.version,
        "limit": options.limit,
        "chat": options.chat,
        "batch_size": options.batch_size,
        "lengths": options.lengths if benchmark.name == "needle" else None,
        "files": {name: files[name]["sha256"] for name in benchmark.files},
        "lm_eval": importlib.metadata.version("lm_eval"),
    }


def _run_task(lm: Any, benchmark: Benchmark, options: EvaluationOptions) -> TaskScores:
    from lm_eval.evaluator import evaluate
    from lm_eval.tasks import TaskManager

    name = PREFIX + benchmark.name
    manager = TaskManager(
        include_path=str(Path(__file__).parent / "suite"),
        include_defaults=False,
        metadata={"lengths": options.lengths},
    )
    task = manager.load([name])["tasks"][name]
    task.set_fewshot_seed(0)
    task.build_all_requests(
        limit=_complete_limit(task.eval_docs, options.limit),
        apply_chat_template=options.chat,
        chat_template=lm.apply_chat_template if options.chat else None,
        tokenizer_name=lm.tokenizer_name,
    )
    clusters = {i.doc_id: _cluster(i.doc, i.doc_id) for i in task.instances}
    too_long = {clusters[i.doc_id] for i in task.instances if request_length(lm, i) > lm.max_length}
    kept = [doc_id for doc_id, cluster in clusters.items() if cluster not in too_long]
    skipped = [doc_id for doc_id, cluster in clusters.items() if cluster in too_long]
    if not kept:
        raise ValueError(
            f"{benchmark.name}: none of {len(skipped)} items fits into the model's context of "
            f"{lm.max_length} tokens; leave this task out"
            + (", or give shorter --lengths" if benchmark.name == "needle" else "")
        )
    found = evaluate(
        lm=lm,
        task_dict={"tasks": {name: task}, "groups": {}},
        samples={name: kept},
        bootstrap_iters=0,
        apply_chat_template=options.chat,
    )
    return TaskScores([_item(sample) for sample in found["samples"][name]], skipped)


def request_length(lm: Any, instance: Any) -> int:
    """Return the number of tokens that a request needs in the model's context."""
    if instance.request_type == "loglikelihood_rolling":
        return 0  # goes through the text in windows
    if instance.request_type == "generate_until":
        return len(lm.tok_encode(instance.args[0])) + int(instance.args[1]["max_gen_toks"])
    return len(lm.tok_encode("".join(instance.args)))


def _item(sample: dict[str, Any]) -> dict[str, Any]:
    """Return an item's scores, and what describes it."""
    doc = sample["doc"]
    scores = {}
    for name in sample["metrics"]:
        value = sample[name]
        if isinstance(value, (tuple, list)):  # of bits per byte
            scores[f"{name}_loglikelihood"], scores[f"{name}_bytes"] = map(float, value)
        else:
            scores[name] = float(value)
    described = {k: doc[k] for k in ("words", "depth", "condition") if k in doc}
    cluster = _cluster(doc, sample["doc_id"])
    return {"id": sample["doc_id"], "cluster": cluster, "scores": scores, **described}


def _cluster(doc: dict[str, Any], doc_id: int) -> str:
    """Return what items that belong together share; an item alone is a cluster of its own."""
    return str(doc.get("cluster", doc_id))


def _complete_limit(docs: Any, limit: int | None) -> int | None:
    """Return the limit, raised until the last cluster is complete."""
    if limit is None or limit >= len(docs) or "cluster" not in docs[0]:
        return limit
    while limit < len(docs) and docs[limit]["cluster"] == docs[limit - 1]["cluster"]:
        limit += 1
    return limit


@contextlib.contextmanager
def _progress(task: str, model: str, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Name the task above the harness's progress bars, or hide them."""
    if quiet:
        with contextlib.redirect_stderr(io.StringIO()):
            yield lambda text: None
        return
    print(f"antiphase: {task}, {model}", file=sys.stderr, flush=True)
    yield lambda text: print(f"antiphase: {task}: {text}", file=sys.stderr, flush=True)


def common_rows(
    evaluations: Sequence[ModelEvaluation], task: str
) -> list[dict[str, dict[str, float]]]:
    """Return the scores by cluster of items, per model, where every model has the cluster.

    Args:
        evaluations: of one or several models.
        task: a benchmark.

    Returns:
        Per model: cluster -> score by name; all models have the same clusters in the same order.
    """
    items = [{i["id"]: i for i in e.tasks[task].items} for e in evaluations]
    shared = [i for i in items[0] if all(i in of_model for of_model in items)]
    tables = []
    for of_model in items:
        rows: dict[str, dict[str, float]] = {}
        for i in shared:
            rows.setdefault(of_model[i]["cluster"], {}).update(of_model[i]["scores"])
        tables.append(rows)
    return tables
