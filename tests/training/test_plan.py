"""Plans: memory by rank, what fits, and the commands that start a run."""

import ast
import json
import shlex

import pytest
import torch
from accelerate import FullyShardedDataParallelPlugin

from antiphase.models import AntiphaseForCausalLM, preset
from antiphase.training import Recipe, load_recipe
from antiphase.training.components import require_corpus
from antiphase.training.launch import FSDP, launch_lines, pack_line
from antiphase.training.plan import Hardware, forward_bytes, plan, saved_bytes
from antiphase.training.run_folder import default_run_folder
from tests.cli.runner import invoke

NANO = Recipe(
    size="nano",
    task="language",
    task_options={"length": 64, "tokenizer": "bpe:512"},
    batch_size=32,
)


def test_the_state_is_divided_among_the_devices():
    one, four = (plan(NANO, Hardware(devices=n)) for n in (1, 4))
    with torch.device("meta"):
        model = AntiphaseForCausalLM(preset("nano", "diff_v1", vocab_size=512))
    count = sum(p.numel() for p in model.parameters())
    assert one.parameters == four.parameters == count
    assert one.memory.weights == one.memory.gradients == 4 * count
    assert one.memory.optimiser == 8 * count
    assert one.memory.state == pytest.approx(4 * four.memory.state, rel=0.01)
    assert one.memory.activations == 4 * four.memory.activations
    assert four.sequences == 8
    assert one.tokens == 500 * 32 * 64
    assert four.tokens_per_second == pytest.approx(4 * one.tokens_per_second)
    assert one.hours == pytest.approx(4 * four.hours)


def saved_really(config, ids):
    """Return what autograd saves in a forward pass on real tensors."""
    model = AntiphaseForCausalLM(config).train()
    held = {}

    def save(tensor):
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    with torch.autograd.graph.saved_tensors_hooks(save, lambda t: t):
        model(ids, labels=ids, use_cache=False)
    return sum(s.nbytes() for place, s in held.items() if place not in own)


@pytest.mark.parametrize("attention", ["standard", "diff_v1", "diff_v2", "low_rank_noise", "gru"])
def test_counted_activations_are_those_of_a_real_forward_pass(attention):
    config = preset("nano", attention, vocab_size=512)
    real = saved_really(config, torch.zeros(2, 64, dtype=torch.long))
    block, outside = saved_bytes(config, 64)
    assert 2 * (2 * block + outside) == pytest.approx(real, rel=0.02)


def test_a_real_forward_pass_has_the_workspace_of_an_lstm_and_a_plan_does_not():
    config = preset("nano", "lstm", vocab_size=512)
    ids = torch.zeros(1, 64, dtype=torch.long)
    real = saved_really(config, ids)
    assert forward_bytes(AntiphaseForCausalLM(config), ids) == real
    block, outside = saved_bytes(config, 64)
    assert 2 * block + outside <= real
    if torch.backends.mkldnn.is_available():
        assert 2 * block + outside < 0.8 * real


def test_checkpointing_and_bf16_save_memory():
    plain, again, half = (
        plan(NANO.changed(**fields), Hardware()).memory.activations
        for fields in ({}, {"checkpointing": True}, {"precision": "bf16"})
    )
    assert again < 0.8 * plain
    assert half < 0.8 * plain


def test_a_micro_batch_that_does_not_fit_is_accumulated():
    needed = plan(NANO, Hardware(devices=2)).memory.total
    smaller = plan(NANO, Hardware(devices=2, memory=0.7 * needed))
    assert smaller.fits
    assert smaller.recipe.accumulate > 1
    assert 32 % (2 * smaller.recipe.accumulate) == 0
    hopeless = plan(NANO, Hardware(devices=2, memory=1e5))
    assert not hopeless.fits
    assert hopeless.sequences == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: plan(NANO, Hardware(devices=3)), "32 sequences .* cannot be divided among 3"),
        (lambda: plan(Recipe(start="smollm2"), Hardware()), "--plan: is for new models"),
        (lambda: Hardware(mfu=2), "mfu: got 2, expected a fraction"),
        (lambda: Hardware(memory=0), "memory: got 0"),
    ],
)
def test_what_cannot_be_planned_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_command_prints_the_plan():
    small = ["--set", "size=nano", "--set", "task_options.length=64"]
    done = invoke("train", "paper-1.4b", "--plan", "--devices", "16", *small)
    assert done.exit_code == 0, done.output
    for word in ("activations", "tokens/s at 40%", "torchrun --nnodes 2", "sbatch", "ray job"):
        assert word in done.output
    found = json.loads(invoke("train", "paper-1.4b", "--plan", "--json", *small).stdout)
    assert found["memory"]["total"] > found["memory"]["weights"] > 0
    assert "no run" not in str(found)
    assert found["pack"] == (
        "antiphase data pack datasets:HuggingFaceFW/fineweb-edu:sample-100BT "
        "--tokenizer bpe:100288 --out /shared/text"
    )
    assert found["pack"] in done.output
    assert "ray[default,train]" in done.output
    assert invoke("train", "--task", "needle", "--plan").exit_code == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device-memory", "0"], "--device-memory: got 0, expected a number above 0"),
        (["--devices", "0"], "--devices: got 0"),
        (["--device-tflops", "nan"], "--device-tflops: got nan"),
        (["--sweep", "grid.yaml"], "--plan: trains nothing"),
    ],
)
def test_options_that_do_not_go_with_a_plan_are_named(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grid.yaml").write_text("steps: [1]\nbatch_size: 1\n")
    done = invoke("train", "needle-nano", "--plan", *options)
    assert done.exit_code == 2
    assert message in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["grid.yaml"]


def test_launch_lines_name_the_settings():
    lines = launch_lines("paper-2.8b", ["seed=1"], 64)
    assert list(lines) == ["torchrun, on every node", "SLURM", "Ray"]
    assert all("FSDP_VERSION" in line and "seed=1" in line for line in lines.values())


def test_launch_lines_keep_spaces_quotes_and_globs():
    """Each line is read as a shell reads it; so is the script in it, and the code is compiled."""
    source = "my recipes/large it's.yaml"
    text = 'task_options.text=["/data/my files/*.parquet", "$HOME/it\'s"]'
    torchrun, slurm, ray = launch_lines(source, [text, "seed=1"], 16).values()
    out = "/shared/runs/large it's"
    run = ["-m", "antiphase", "train", source, "--set", text, "--set", "seed=1", "--out", out]
    assert shlex.split(torchrun)[-len(run) :] == run
    *words, wrap, script = shlex.split(slurm)
    assert (words[0], wrap) == ("sbatch", "--wrap")
    assert shlex.split(script)[-len(run) :] == run
    assert "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1):29500" in script
    *words, python, option, code = shlex.split(ray)
    assert (words[:3], python, option) == (["ray", "job", "submit"], "python", "-c")
    assert json.loads(words[words.index("--runtime-env-json") + 1]) == {"env_vars": FSDP}
    compile(code, "line", "exec")
    constants = {node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)}
    assert {source, text, "seed=1", out, 16} <= constants


@pytest.mark.parametrize(
    ("devices", "nodes", "each"), [(1, 1, 1), (8, 1, 8), (12, 2, 6), (20, 4, 5), (64, 8, 8)]
)
def test_a_launch_has_as_many_processes_as_the_plan(devices, nodes, each):
    lines = launch_lines("paper-1.4b", [], devices)
    assert f"--nnodes {nodes} --nproc-per-node {each} " in lines["torchrun, on every node"]
    assert f"--nodes {nodes} --ntasks-per-node 1 --gpus-per-node {each} " in lines["SLURM"]
    assert f"num_workers={devices}," in lines["Ray"]


def test_text_is_packed_once_unless_it_is():
    options = {"text": "/data/my files/*.jsonl", "tokenizer": "bpe:300"}
    line = pack_line(NANO.changed(task_options=options))
    assert shlex.split(line) == [
        *("antiphase", "data", "pack", "/data/my files/*.jsonl"),
        *("--tokenizer", "bpe:300", "--out", "/shared/text"),
    ]
    assert pack_line(NANO.changed(task_options={"text": "packed:/shared/text"})) is None
    assert pack_line(load_recipe("needle-nano")) is None


def test_a_run_folder_has_the_complete_name_of_its_recipe():
    recipe = load_recipe("paper-1.4b")
    assert default_run_folder(recipe, "paper-1.4b").name == "paper-1.4b-diff_v1-0"
    assert default_run_folder(recipe, "mine/large.yaml").name == "large-diff_v1-0"


@pytest.mark.parametrize("name", ["paper-1.4b", "paper-2.8b"])
def test_paper_recipes_name_a_corpus_and_reject_the_default_text(name):
    recipe = load_recipe(name)
    require_corpus(recipe)
    assert recipe.task_options["text"][0].startswith("datasets:")
    for text in ({"text": "stdlib"}, {"text": ["stdlib", "x.txt"]}, {}):
        options = {k: v for k, v in recipe.task_options.items() if k != "text"}
        with pytest.raises(ValueError, match="far too little text for a model of size"):
            require_corpus(recipe.changed(task_options={**options, **text}))


def test_accelerate_reads_how_to_shard(monkeypatch):
    for name, value in FSDP.items():
        monkeypatch.setenv(name, value)
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is True
    assert plugin.transformer_cls_names_to_wrap == ["Block"]
    assert "SHARDED_STATE_DICT" in str(plugin.state_dict_type)
